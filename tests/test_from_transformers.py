"""Models of Hugging Face's transformers, converted, compute what transformers computes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from hf_cases import CASES, CLASSES, ODD, SIZES, Case, assert_same, each_case, logits, on_disk
from torch import Tensor

from vitviz.config import ModelError
from vitviz.model import ViT
from vitviz.weights.from_clip import CLIP_DEFAULTS, SIGLIP_DEFAULTS
from vitviz.weights.from_transformers import (
    DINOV2_DEFAULTS,
    DINOV3_DEFAULTS,
    FAMILIES,
    REFUSED,
    VIT_DEFAULTS,
    convert_transformers,
)
from vitviz.weights.source import ConvertError
from vitviz.weights.transformers_folder import about_transformers


def converted(state: dict[str, Tensor], settings: dict[str, Any]) -> ViT:
    config, new = convert_transformers(state, settings)
    ours = ViT(config)
    ours.load_state_dict(new, strict=True)
    return ours.eval()


@each_case
def test_the_same_numbers_as_transformers(tmp_path: Path, case: Case) -> None:
    theirs = case.build()
    ours = converted(*on_disk(theirs, tmp_path))
    native = ours.config.image_size
    for size in (native, (28, 52), (60, 24)):
        assert_same(case, theirs, ours, size)
    head = case.read is logits
    assert ours.config.classes == (CLASSES if head else 0)


@each_case
def test_a_left_over_a_missing_and_a_misshaped_tensor_are_named(tmp_path: Path, case: Case) -> None:
    state, settings = on_disk(case.build(), tmp_path)
    with pytest.raises(ConvertError, match=r"1 tensors too many: surplus\.weight"):
        convert_transformers(state | {"surplus.weight": torch.zeros(2)}, settings)
    unread = ("text_", "mask_token", "pooler.", "projection.weight", "logit_")
    taken = [name for name in state if not any(part in name for part in unread)]
    taken = [name for name in taken if not (case.model is hf.SiglipForImageClassification and ".head." in name)]
    assert len(taken) > 40
    for name in taken:
        if "register_tokens" in name and not state[name].numel():
            continue
        without = {other: tensor for other, tensor in state.items() if other != name}
        with pytest.raises(ConvertError, match="there is none"):
            convert_transformers(without, settings)
    wrong = state | {name: state[name][None] for name in taken[-1:]}
    with pytest.raises(ConvertError, match=r"of shape .*got \(1, "):
        convert_transformers(wrong, settings)


@each_case
def test_conversion_is_pure_and_in_float32(tmp_path: Path, case: Case) -> None:
    state, settings = on_disk(case.build(), tmp_path)
    before = {name: tensor.clone() for name, tensor in state.items()}
    _, new = convert_transformers(state, settings)
    for tensor in new.values():
        tensor.fill_(7.0)
    assert all(torch.equal(state[name], before[name]) for name in before)
    _, half = convert_transformers({name: tensor.half() for name, tensor in state.items()}, settings)
    assert {tensor.dtype for tensor in half.values()} == {torch.float32}


def test_names_with_and_without_the_prefix(tmp_path: Path) -> None:
    state, settings = on_disk(CASES["ViT"].build(), tmp_path)
    _, bare = convert_transformers(state, settings)
    _, prefixed = convert_transformers({f"vit.{name}": tensor for name, tensor in state.items()}, settings)
    assert all(torch.equal(bare[name], prefixed[name]) for name in bare)
    with pytest.raises(ConvertError, match=r"with and without 'vit\.'"):
        convert_transformers(state | {f"vit.{name}": tensor for name, tensor in state.items()}, settings)


def test_dinov3_as_it_is_named_in_memory(tmp_path: Path) -> None:
    """Its blocks are called `model.layer.0`, in files `layer.0`."""
    theirs = CASES["DINOv3"].build()
    state, settings = on_disk(theirs, tmp_path)
    _, expected = convert_transformers(state, settings)
    assert theirs.state_dict().keys() != state.keys()
    _, new = convert_transformers(theirs.state_dict(), settings)
    assert all(torch.equal(new[name], expected[name]) for name in expected)


def test_the_tower_of_a_whole_clip_converts_with_its_own_settings_too(tmp_path: Path) -> None:
    """An older CLIP: positions are counted, and the tower's settings are there under two names, one of them wrong."""
    theirs = CASES["CLIP-whole"].build()
    state, settings = on_disk(theirs, tmp_path)
    state["vision_model.embeddings.position_ids"] = torch.arange(122)[None]
    state["text_model.embeddings.position_ids"] = torch.arange(19)[None]
    _, expected = convert_transformers(state, settings)
    older = settings | {"vision_config_dict": settings["vision_config"], "vision_config": {"hidden_size": 999}}
    for other in (settings["vision_config"], older):
        _, new = convert_transformers(state, other)
        assert all(torch.equal(new[name], expected[name]) for name in expected)


def test_an_image_that_patches_do_not_fill(tmp_path: Path) -> None:
    """SigLIP has one with 384 pixels and patches of 14: its convolution never reaches the last pixels."""
    theirs = CASES["SigLIP"].build(image_size=47)
    ours = converted(*on_disk(theirs, tmp_path))
    assert ours.config.image_size == (44, 44)
    images = torch.randn(2, 3, 47, 47)
    with torch.no_grad():
        expected = theirs(images).pooler_output
        torch.testing.assert_close(ours(images[..., :44, :44]), expected, rtol=0, atol=1e-4)


def test_the_defaults_are_those_of_transformers() -> None:
    for ours, theirs in (
        (VIT_DEFAULTS, hf.ViTConfig()),
        (VIT_DEFAULTS, hf.DeiTConfig()),
        ({k: v for k, v in DINOV2_DEFAULTS.items() if k != "num_register_tokens"}, hf.Dinov2Config()),
        (DINOV2_DEFAULTS, hf.Dinov2WithRegistersConfig()),
        (DINOV3_DEFAULTS, hf.DINOv3ViTConfig()),
        (CLIP_DEFAULTS, hf.CLIPVisionConfig()),
        (SIGLIP_DEFAULTS, hf.SiglipVisionConfig()),
    ):
        said = theirs.to_dict()
        assert ours == {name: said[name] for name in ours}, type(theirs).__name__


def test_settings_that_are_absent_take_their_defaults(tmp_path: Path) -> None:
    """SigLIP's own files say no more of the tower than that it is one."""
    sparse = {"model_type": "siglip", "architectures": ["SiglipModel"], "vision_config": {}}
    with pytest.raises(ConvertError, match=r"position_embedding\.weight' of shape \(196, 768\)"):
        convert_transformers({}, sparse)
    state, settings = on_disk(CASES["ViT"].build(qkv_bias=True), tmp_path)
    _, expected = convert_transformers(state, settings)
    short = {name: settings[name] for name in ("model_type", *SIZES)}
    config, new = convert_transformers(state, short)
    assert config.classes == 0
    assert all(torch.equal(new[name], expected[name]) for name in expected)


@pytest.mark.parametrize("kind", [*REFUSED, "resnet", None])
def test_other_kinds_are_refused_by_name(kind: str | None) -> None:
    with pytest.raises(ConvertError, match=f"model_type {kind!r} (is|are) not supported: "):
        convert_transformers({}, {"model_type": kind})


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"model_type": "vit", "architectures": ["ViTForMaskedImageModeling"]}, "ViTForMaskedImageModeling.*ViTModel"),
        ({"model_type": "clip", "architectures": ["CLIPForImageClassification"]}, "without the final norm"),
        ({"model_type": "siglip_vision_model", "vision_use_head": False}, "vision_use_head=False is not supported"),
        ({"model_type": "vit", "hidden_act": "relu"}, "hidden_act='relu' is not supported"),
        ({"model_type": "vit", "hidden_size": "768"}, "hidden_size='768': expected a whole number"),
        ({"model_type": "vit", "hidden_size": True}, "hidden_size=True"),
        ({"model_type": "vit", "layer_norm_eps": None}, "layer_norm_eps=None: expected a number"),
        ({"model_type": "vit", "qkv_bias": 1}, "qkv_bias=1: expected true or false"),
        ({"model_type": "vit", "patch_size": [16, 8]}, r"patch_size=\[16, 8\]: expected a square"),
        ({"model_type": "clip", "vision_config": 3}, "vision_config=3: expected an object"),
        ({"model_type": "clip_vision_model", "image_size": [224, 448]}, "expected a square"),
        ({"model_type": "clip_vision_model", "image_size": 31}, "room for a patch of 32 x 32"),
        ({"model_type": "dinov3_vit", "use_gated_mlp": True}, "hidden_act='gelu' is not supported: expected silu"),
        ({"model_type": "dinov2", "image_size": 224}, "without hidden_size"),
    ],
)
def test_settings_that_the_model_cannot_follow_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConvertError, match=text):
        convert_transformers({}, settings)


@each_case
def test_odd_settings_end_in_words(tmp_path: Path, case: Case) -> None:
    """A stranger's file may hold anything: either it converts all the same, or the error is one of ours."""
    state, settings = on_disk(case.build(), tmp_path)
    inner = settings.get("vision_config", {})
    tried = [settings | {name: value} for name in settings for value in ODD]
    tried += [settings | {"vision_config": inner | {name: value}} for name in inner for value in ODD]
    for changed in tried:
        with suppress(ConvertError, ModelError):
            convert_transformers(state, changed)
            about_transformers(changed, {"size": 44, "image_processor_type": "ViTImageProcessor"}, "a")


def test_every_family_is_proved() -> None:
    proved = {case.config.model_type for case in CASES.values()}
    assert proved == set(FAMILIES)
