"""Small random models of Hugging Face's transformers, one for each class that is converted."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file
from torch import Tensor

from vitviz.model.vit import ViT

# Every size another prime (times what has to divide it), so that a swapped axis cannot fit by chance.
PATCH, NATIVE, CLASSES = 4, (44, 44), 13
SIZES = {
    "hidden_size": 5 * 7,
    "num_attention_heads": 5,
    "num_hidden_layers": 3,
    "intermediate_size": 23,
    "image_size": 44,
    "patch_size": PATCH,
    "layer_norm_eps": 1e-3,
}
DINOV2 = {name: value for name, value in SIZES.items() if name != "intermediate_size"} | {"mlp_ratio": 2}
DINOV2 |= {"layerscale_value": 0.7}
DINOV3 = SIZES | {"hidden_size": 5 * 12, "layerscale_value": 0.7}
TEXT = {
    "hidden_size": 10,
    "num_attention_heads": 5,
    "num_hidden_layers": 1,
    "intermediate_size": 11,
    "vocab_size": 17,
    "max_position_embeddings": 19,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

Read = Callable[[Any], Tensor]


def first(out: Any) -> Tensor:
    return out.last_hidden_state[:, 0]


def mean(out: Any) -> Tensor:
    return out.last_hidden_state.mean(1)


def pooled(out: Any) -> Tensor:
    return out.pooler_output


def logits(out: Any) -> Tensor:
    return out.logits


@dataclass(frozen=True)
class Case:
    """One class of transformers: its settings, what it returns for an image, and what of it looks at images."""

    model: type[torch.nn.Module]
    config: type
    settings: dict[str, Any]
    read: Read
    interpolates: bool = True  # takes interpolate_pos_encoding; others interpolate unasked
    tower: str = ""
    composite: bool = False
    more: dict[str, Any] = field(default_factory=dict)

    def build(self, **changes: Any) -> torch.nn.Module:
        """A random model, far from its initial values: every tensor matters."""
        torch.manual_seed(20261121)
        settings = self.settings | changes
        if self.composite:
            settings = {"vision_config": settings, "text_config": TEXT}
        model = self.model(self.config(**settings, **self.more))
        model.set_attn_implementation("eager")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.2)
        return model.eval()

    def run(self, model: torch.nn.Module, images: Tensor) -> Any:
        part = getattr(model, self.tower) if self.tower else model
        with torch.no_grad():
            more = {"interpolate_pos_encoding": True} if self.interpolates else {}
            return part(images, output_attentions=True, **more)


LABELS = {"num_labels": CLASSES}
CASES = {
    "ViT": Case(hf.ViTModel, hf.ViTConfig, SIZES, first),
    "ViT-head-width": Case(hf.ViTModel, hf.ViTConfig, SIZES | {"hidden_size": 19, "head_dim": 17}, first),
    "ViT-classifier": Case(
        hf.ViTForImageClassification, hf.ViTConfig, SIZES | {"qkv_bias": False}, logits, more=LABELS
    ),
    "DeiT": Case(hf.DeiTModel, hf.DeiTConfig, SIZES, first),
    "DeiT-classifier": Case(hf.DeiTForImageClassification, hf.DeiTConfig, SIZES, logits, more=LABELS),
    "DeiT-two": Case(hf.DeiTForImageClassificationWithTeacher, hf.DeiTConfig, SIZES, logits, more=LABELS),
    "DINOv2": Case(hf.Dinov2Model, hf.Dinov2Config, DINOV2, first, False),
    "DINOv2-classifier": Case(hf.Dinov2ForImageClassification, hf.Dinov2Config, DINOV2, logits, False, more=LABELS),
    "DINOv2-gated": Case(hf.Dinov2Model, hf.Dinov2Config, DINOV2 | {"use_swiglu_ffn": True}, first, False),
    "DINOv2-registers": Case(
        hf.Dinov2WithRegistersModel, hf.Dinov2WithRegistersConfig, DINOV2 | {"num_register_tokens": 3}, first, False
    ),
    "DINOv2-registers-classifier": Case(
        hf.Dinov2WithRegistersForImageClassification,
        hf.Dinov2WithRegistersConfig,
        DINOV2 | {"num_register_tokens": 3, "use_swiglu_ffn": True},
        logits,
        False,
        more=LABELS,
    ),
    "DINOv3": Case(hf.DINOv3ViTModel, hf.DINOv3ViTConfig, DINOV3 | {"num_register_tokens": 3}, pooled, False),
    "DINOv3-gated": Case(
        hf.DINOv3ViTModel, hf.DINOv3ViTConfig, DINOV3 | {"use_gated_mlp": True, "hidden_act": "silu"}, pooled, False
    ),
    "DINOv3-no-bias": Case(
        hf.DINOv3ViTModel,
        hf.DINOv3ViTConfig,
        DINOV3
        | {f"{part}_bias": False for part in ("query", "value", "proj", "mlp")}
        | {"rope_theta": 31.0, "image_size": [28, 44]},
        pooled,
        False,
    ),
    "CLIP": Case(hf.CLIPVisionModel, hf.CLIPVisionConfig, SIZES, pooled),
    "CLIP-projection": Case(
        hf.CLIPVisionModelWithProjection,
        hf.CLIPVisionConfig,
        SIZES | {"projection_dim": 7},
        pooled,
        tower="vision_model",
    ),
    "CLIP-whole": Case(
        hf.CLIPModel, hf.CLIPConfig, SIZES | {"hidden_act": "gelu"}, pooled, tower="vision_model", composite=True
    ),
    "ViT-MSN-classifier": Case(hf.ViTMSNForImageClassification, hf.ViTMSNConfig, SIZES, logits, more=LABELS),
    "I-JEPA": Case(hf.IJepaModel, hf.IJepaConfig, SIZES, mean),
    "I-JEPA-classifier": Case(hf.IJepaForImageClassification, hf.IJepaConfig, SIZES, logits, more=LABELS),
    "MetaCLIP2": Case(hf.MetaClip2VisionModel, hf.MetaClip2VisionConfig, SIZES, pooled),
    "ChineseCLIP": Case(hf.ChineseCLIPVisionModel, hf.ChineseCLIPVisionConfig, SIZES, pooled),
    "AltCLIP": Case(hf.AltCLIPVisionModel, hf.AltCLIPVisionConfig, SIZES, pooled),
    **{
        f"{name}-whole": Case(model, config, SIZES, pooled, tower="vision_model", composite=True)
        for name, model, config in (
            ("MetaCLIP2", hf.MetaClip2Model, hf.MetaClip2Config),
            ("ChineseCLIP", hf.ChineseCLIPModel, hf.ChineseCLIPConfig),
        )
    },
    "SigLIP": Case(hf.SiglipVisionModel, hf.SiglipVisionConfig, SIZES, pooled),
    "SigLIP-whole": Case(hf.SiglipModel, hf.SiglipConfig, SIZES, pooled, tower="vision_model", composite=True),
    "SigLIP-classifier": Case(
        hf.SiglipForImageClassification, hf.SiglipConfig, SIZES, logits, composite=True, more=LABELS
    ),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def on_disk(model: torch.nn.Module, folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors under the names they have in files, which are not those in memory, and the `config.json`."""
    model.save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return load_file(folder / "model.safetensors"), settings


def assert_same(case: Case, theirs: torch.nn.Module, ours: ViT, size: tuple[int, int]) -> None:
    images = torch.randn(2, 3, *size)
    expected = case.run(theirs, images)
    with torch.no_grad():
        trace, out = ours.trace(images), ours(images)
    torch.testing.assert_close(out, case.read(expected), rtol=0, atol=1e-4)
    assert len(expected.attentions) == len(trace.attentions) == 3
    for attention, reference in zip(trace.attentions, expected.attentions, strict=True):
        torch.testing.assert_close(attention, reference, rtol=0, atol=1e-5)
    if case.read is not logits:
        torch.testing.assert_close(trace.tokens, expected.last_hidden_state, rtol=0, atol=1e-4)


# What a stranger's JSON may hold where something else belongs.
ODD = (None, "x", -1, 0, 0.5, 10**9, True, [1], [], {}, {"a": 1}, float("inf"))
