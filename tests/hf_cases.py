"""Make small random transformers models (Hugging Face), one for each convertible class."""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file
from torch import Tensor

from vitviz.model.vit import ViT

MAJOR = int(hf.__version__.partition(".")[0])  # version 4 lacks some settings

# Each size is a different prime (times its required divisor), so that a swapped axis cannot fit by chance.
PATCH, NATIVE, CLASSES = 4, (44, 44), 13
SIZES: dict[str, Any] = {"hidden_size": 5 * 7, "num_attention_heads": 5, "num_hidden_layers": 3, "image_size": 44}
SIZES |= {"intermediate_size": 23, "patch_size": PATCH, "layer_norm_eps": 1e-3}
DINOV2 = {name: value for name, value in SIZES.items() if name != "intermediate_size"}
DINOV2 |= {"mlp_ratio": 2, "layerscale_value": 0.7}
DINOV3 = SIZES | {"hidden_size": 5 * 12, "layerscale_value": 0.7}
RECTANGLE = {"image_size": [28, 44]} if MAJOR > 4 else {}
NO_BIAS = {f"{part}_bias": False for part in ("query", "value", "proj", "mlp")}
BIASES = [{f"use_{kind}": True} for kind in ("relative_position_bias", "shared_relative_position_bias")]
BIASES += [{"use_absolute_position_embeddings": True, "layer_scale_init_value": 0.0}]
TEXT = {"hidden_size": 10, "num_attention_heads": 5, "num_hidden_layers": 1, "intermediate_size": 11}
TEXT |= {"vocab_size": 17, "max_position_embeddings": 19, "bos_token_id": 1, "eos_token_id": 2}

Read = Callable[[Any], Tensor]


def first(out: Any) -> Tensor:
    return out.last_hidden_state[:, 0]


def mean(out: Any) -> Tensor:
    return out.last_hidden_state.mean(1)


def mean_of_patches(out: Any) -> Tensor:
    return out.last_hidden_state[:, 1:].mean(1)


pooled, logits = attrgetter("pooler_output"), attrgetter("logits")


@dataclass(frozen=True, eq=False)
class Case:
    """A transformers model class: its settings, and the part of its output that equals vitviz's.

    Its name is `family + kind`, and its configuration's name `family + "Config"`. If `whole`, the configuration
    contains the image model's; if it has a `tower`, that part of the model takes images.
    """

    family: str
    kind: str
    settings: dict[str, Any]
    read: Read
    whole: bool = False
    tower: str = ""

    @property
    def config(self) -> type:
        return getattr(hf, f"{self.family}Config")

    def build(self, **changes: Any) -> Any:
        """Build a random model, far from its initial values, so that every tensor matters."""
        torch.manual_seed(20261121)
        settings = self.settings | changes
        if self.whole:
            text = TEXT | ({"hidden_size": settings["hidden_size"]} if self.family == "Tipsv2" else {})
            settings = {"vision_config": settings, "text_config": text}
        labels = {"num_labels": CLASSES} if self.read is logits else {}
        model = getattr(hf, self.family + self.kind)(self.config(**settings, **labels, attn_implementation="eager"))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.2)
        return model.eval()

    def run(self, model: torch.nn.Module, images: Tensor) -> Any:
        part = getattr(model, self.tower) if self.tower else model
        # DINO's and TIPSv2's models interpolate their positions by default.
        always = self.family.lower().startswith(("dino", "tips"))
        more: dict[str, Any] = {} if always else {"interpolate_pos_encoding": True}
        if self.family in ("Yolos", "DPT", "MLCDVision", "Aimv2Vision", "Aimv2"):
            more = {}  # they interpolate always, or never
        if self.family.startswith("Siglip2"):
            grid = tuple(side // PATCH for side in images.shape[2:])
            cut = images.unflatten(3, (grid[1], PATCH)).unflatten(2, (grid[0], PATCH))  # (B, 3, gh, p, gw, p)
            images = cut.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)  # (B, gh * gw, p * p * 3)
            mask = torch.ones(images.shape[:2], dtype=torch.int64)
            more = {"pixel_attention_mask": mask, "spatial_shapes": torch.tensor([grid] * len(images))}
        if self.family == "ViTMAE":  # keeps the order of the patches
            more["noise"] = torch.arange(images[0, 0].numel() // PATCH**2).float().expand(len(images), -1)
        with torch.no_grad():
            return part(images, output_attentions=True, **more)


CLASSIFIER, TOWER = "ForImageClassification", "vision_model"
REGISTERS = {"num_register_tokens": 3}
GATED = {"use_gated_mlp": True, "hidden_act": "silu"}
CASES = {
    "ViT": Case("ViT", "Model", SIZES, first),
    "ViT-classifier": Case("ViT", CLASSIFIER, SIZES | {"qkv_bias": False}, logits),
    "DeiT": Case("DeiT", "Model", SIZES, first),
    "DeiT-classifier": Case("DeiT", CLASSIFIER, SIZES, logits),
    "DeiT-two": Case("DeiT", "ForImageClassificationWithTeacher", SIZES, logits),
    "DINOv2": Case("Dinov2", "Model", DINOV2, first),
    "DINOv2-classifier": Case("Dinov2", CLASSIFIER, DINOV2, logits),
    "DINOv2-gated": Case("Dinov2", "Model", DINOV2 | {"use_swiglu_ffn": True}, first),
    "DINOv2-registers": Case("Dinov2WithRegisters", "Model", DINOV2 | REGISTERS, first),
    "DINOv2-registers-classifier": Case(
        "Dinov2WithRegisters", CLASSIFIER, DINOV2 | REGISTERS | {"use_swiglu_ffn": True}, logits
    ),
    "DINOv3": Case("DINOv3ViT", "Model", DINOV3 | REGISTERS, pooled),
    "DINOv3-gated": Case("DINOv3ViT", "Model", DINOV3 | GATED, pooled),
    "DINOv3-gated-by-gelu": Case("DINOv3ViT", "Model", DINOV3 | {"use_gated_mlp": True, "hidden_act": "gelu"}, pooled),
    "DINOv3-no-bias": Case("DINOv3ViT", "Model", DINOV3 | NO_BIAS | {"rope_theta": 31.0} | RECTANGLE, pooled),
    "BEiT": Case("Beit", "Model", SIZES | BIASES[0], pooled),
    "BEiT-classifier": Case("Beit", CLASSIFIER, SIZES | BIASES[1] | {"use_mean_pooling": False}, logits),
    "Data2Vec-classifier": Case("Data2VecVision", CLASSIFIER, SIZES | BIASES[0] | BIASES[1] | BIASES[2], logits),
    "Data2Vec": Case("Data2VecVision", "Model", SIZES | BIASES[0], mean_of_patches),
    "CLIP": Case("CLIPVision", "Model", SIZES, pooled),
    "CLIP-projection": Case("CLIPVision", "ModelWithProjection", SIZES | {"projection_dim": 7}, pooled, tower=TOWER),
    "CLIP-whole": Case("CLIP", "Model", SIZES | {"hidden_act": "gelu"}, pooled, True, TOWER),
    "ViT-MSN-classifier": Case("ViTMSN", CLASSIFIER, SIZES, logits),
    "ViT-MAE": Case("ViTMAE", "Model", SIZES | {"mask_ratio": 0.0}, first),
    "CLIP-classifier": Case("CLIP", CLASSIFIER, SIZES, logits, True),
    "I-JEPA": Case("IJepa", "Model", SIZES, mean),
    "I-JEPA-classifier": Case("IJepa", CLASSIFIER, SIZES, logits),
    "MetaCLIP2": Case("MetaClip2Vision", "Model", SIZES, pooled),
    "MetaCLIP2-whole": Case("MetaClip2", "Model", SIZES, pooled, True, TOWER),
    "ChineseCLIP": Case("ChineseCLIPVision", "Model", SIZES, pooled),
    "ChineseCLIP-whole": Case("ChineseCLIP", "Model", SIZES, pooled, True, TOWER),
    "AltCLIP": Case("AltCLIPVision", "Model", SIZES, pooled),
    "SigLIP": Case("SiglipVision", "Model", SIZES, pooled),
    "SigLIP-whole": Case("Siglip", "Model", SIZES, pooled, True, TOWER),
    "SigLIP-classifier": Case("Siglip", CLASSIFIER, SIZES, logits, True),
}
NAFLEX = {name: value for name, value in SIZES.items() if name != "image_size"} | {"num_patches": 121}
AIMV2 = {name: value for name, value in SIZES.items() if name != "layer_norm_eps"} | {"rms_norm_eps": 1e-3}
YOLOS = SIZES | {"image_size": [28, 44], "num_detection_tokens": 3}
if MAJOR > 4:
    CASES |= {
        "BLIP": Case("BlipVision", "Model", SIZES, first),
        "YOLOS": Case("Yolos", "Model", YOLOS, first),
        "YOLOS-tiny": Case("Yolos", "Model", YOLOS | {"use_mid_position_embeddings": False}, first),
        "DPT": Case("DPT", "Model", SIZES, first),
        "MLCD": Case("MLCDVision", "Model", SIZES | {"hidden_size": 60}, pooled),
        "AIMv2": Case("Aimv2Vision", "Model", AIMV2, pooled),
        "AIMv2-biases": Case(
            "Aimv2Vision", "Model", AIMV2 | {"qkv_bias": True, "mlp_bias": True, "hidden_act": "relu"}, pooled
        ),
        "SigLIP2": Case("Siglip2Vision", "Model", NAFLEX, pooled),
        "TIPSv2": Case("Tipsv2Vision", "Model", DINOV2 | REGISTERS, pooled),
        "TIPSv2-gated": Case("Tipsv2Vision", "Model", DINOV2 | REGISTERS | {"use_swiglu_ffn": True}, pooled),
        "TIPSv2-whole": Case("Tipsv2", "Model", DINOV2, pooled, True, TOWER),
        "BLIP-whole": Case("Blip", "Model", SIZES, first, True, TOWER),
        "AIMv2-whole": Case("Aimv2", "Model", AIMV2, pooled, True, TOWER),
        "SigLIP2-whole": Case("Siglip2", "Model", NAFLEX, pooled, True, TOWER),
        "SigLIP2-classifier": Case("Siglip2", CLASSIFIER, NAFLEX, logits, True),
    }
    CASES["ViT-head-width"] = Case("ViT", "Model", SIZES | {"hidden_size": 19, "head_dim": 17}, first)
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def on_disk(model: Any, folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors by their names in files, which differ from those in memory, and the `config.json`."""
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return load_file(folder / "model.safetensors"), config


@cache
def files_of(case: Case) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return `on_disk` of a case's model, cached, so callers must not change it."""
    with tempfile.TemporaryDirectory() as folder:
        return on_disk(case.build(), Path(folder))


def saved(case: Case, folder: Path, **options: Any) -> Any:
    """Write the model of a case and its preprocessing as a folder; return the model."""
    theirs = case.build()
    theirs.save_pretrained(folder, **options)
    hf.ViTImageProcessor(size={"height": 44, "width": 44}).save_pretrained(folder)
    return theirs


def assert_same(case: Case, theirs: torch.nn.Module, ours: ViT, size: tuple[int, int] = (28, 52)) -> None:
    images = torch.randn(2, 3, *size)
    expected = case.run(theirs, images)
    with torch.no_grad():
        trace, out = ours.trace(images), ours(images)
    torch.testing.assert_close(out, case.read(expected), rtol=0, atol=1e-4)
    assert len(trace.attentions) == 3
    attentions = expected.attentions
    if attentions is None:  # the image model inside SigLIP
        assert MAJOR == 4
        attentions = trace.attentions
    order = torch.arange(trace.tokens.shape[1])
    if case.family == "Yolos":  # its detection tokens follow the patches
        order = torch.cat([order[:1], order[-3:], order[1:-3]])
    for attention, reference in zip(trace.attentions, attentions, strict=True):
        torch.testing.assert_close(attention, reference[:, :, order][..., order], rtol=0, atol=1e-5)
    if case.read is not logits:
        torch.testing.assert_close(trace.tokens, expected.last_hidden_state[:, order], rtol=0, atol=1e-4)
