"""Models of Hugging Face's transformers, converted, compute what transformers computes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from hf_cases import CASES, CLASSES, ODD, SIZES, Case, assert_same, each_case, logits, on_disk

from vitviz.model.vit import ViT
from vitviz.weights.checks import CheckpointError, ConvertError
from vitviz.weights.from_transformers import (
    CLIP_DEFAULTS,
    DINOV2_DEFAULTS,
    DINOV3_DEFAULTS,
    FAMILIES,
    REFUSED,
    SIGLIP_DEFAULTS,
    VIT_DEFAULTS,
    convert_transformers,
)
from vitviz.weights.transformers_folder import about_transformers


def assert_equal(model: ViT, expected: ViT) -> None:
    state = expected.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


@each_case
def test_the_same_numbers_as_transformers(tmp_path: Path, case: Case) -> None:
    theirs = case.build()
    ours = convert_transformers(*on_disk(theirs, tmp_path))
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
        with pytest.raises(
            CheckpointError, match=r"missing|with one \w+ of the same shape|Expected (prefix tokens|the weight)"
        ):
            convert_transformers(without, settings)
    wrong = state | {name: state[name][None] for name in taken[-1:]}
    with pytest.raises(CheckpointError, match=r"\(1, "):
        convert_transformers(wrong, settings)


@each_case
def test_conversion_is_pure_and_in_float32(tmp_path: Path, case: Case) -> None:
    state, settings = on_disk(case.build(), tmp_path)
    before = {name: tensor.clone() for name, tensor in state.items()}
    with torch.no_grad():
        for parameter in convert_transformers(state, settings).parameters():
            parameter.fill_(7.0)
    assert all(torch.equal(state[name], before[name]) for name in before)
    half = convert_transformers({name: tensor.half() for name, tensor in state.items()}, settings)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.float32}


def test_names_with_and_without_the_prefix(tmp_path: Path) -> None:
    state, settings = on_disk(CASES["ViT"].build(), tmp_path)
    bare = convert_transformers(state, settings)
    assert_equal(convert_transformers({f"vit.{name}": tensor for name, tensor in state.items()}, settings), bare)
    with pytest.raises(ConvertError, match="Expected each tensor once"):
        convert_transformers(state | {f"vit.{name}": tensor for name, tensor in state.items()}, settings)


def test_a_bias_that_the_settings_deny_is_refused(tmp_path: Path) -> None:
    state, settings = on_disk(CASES["DINOv3"].build(), tmp_path)
    name = "layer.1.attention.k_proj"
    with pytest.raises(ConvertError, match=rf"1 tensors too many: {name}\.bias"):
        convert_transformers(state | {f"{name}.bias": state[f"{name}.weight"][:, 0]}, settings)


def test_dinov3_as_it_is_named_in_memory(tmp_path: Path) -> None:
    """Its blocks are called `model.layer.0`, in files `layer.0`."""
    theirs = CASES["DINOv3"].build()
    state, settings = on_disk(theirs, tmp_path)
    assert theirs.state_dict().keys() != state.keys()
    assert_equal(convert_transformers(theirs.state_dict(), settings), convert_transformers(state, settings))


def test_the_tower_of_a_whole_clip_converts_with_its_own_settings_too(tmp_path: Path) -> None:
    """An older CLIP: positions are counted, and the tower's settings are there under two names, one of them wrong."""
    theirs = CASES["CLIP-whole"].build()
    state, settings = on_disk(theirs, tmp_path)
    state["vision_model.embeddings.position_ids"] = torch.arange(122)[None]
    state["text_model.embeddings.position_ids"] = torch.arange(19)[None]
    expected = convert_transformers(state, settings)
    older = settings | {"vision_config_dict": settings["vision_config"], "vision_config": {"hidden_size": 999}}
    for other in (settings["vision_config"], older):
        assert_equal(convert_transformers(state, other), expected)


def test_an_image_that_patches_do_not_fill(tmp_path: Path) -> None:
    """SigLIP has one with 384 pixels and patches of 14: its convolution never reaches the last pixels."""
    theirs = CASES["SigLIP"].build(image_size=47)
    ours = convert_transformers(*on_disk(theirs, tmp_path))
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
    with pytest.raises(CheckpointError, match=r"Expected 12 blocks .*got 0"):
        convert_transformers({}, sparse)
    state, settings = on_disk(CASES["ViT"].build(qkv_bias=True), tmp_path)
    expected = convert_transformers(state, settings)
    short = {name: settings[name] for name in ("model_type", *SIZES)}
    model = convert_transformers(state, short)
    assert model.config.classes == 0
    assert_equal(model, expected)


@pytest.mark.parametrize("kind", [*REFUSED, "resnet", None])
def test_other_kinds_are_refused_by_name(kind: str | None) -> None:
    with pytest.raises(ConvertError, match=f"got model_type {kind!r}: "):
        convert_transformers({}, {"model_type": kind})


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"model_type": "vit", "architectures": ["ViTForMaskedImageModeling"]}, "got .*ViTForMaskedImageModeling"),
        ({"model_type": "clip", "architectures": ["CLIPForImageClassification"]}, "without the final norm"),
        ({"model_type": "siglip_vision_model", "vision_use_head": False}, "vision_use_head as true.*got False"),
        ({"model_type": "vit", "hidden_act": "relu"}, "hidden_act as one of gelu, .*got 'relu'"),
        ({"model_type": "vit", "hidden_size": "768"}, "width to be int .*got '768'"),
        ({"model_type": "vit", "hidden_size": True}, "width to be int .*got True"),
        ({"model_type": "vit", "layer_norm_eps": None}, "norm_eps to be float .*got None"),
        ({"model_type": "vit", "qkv_bias": 1}, "qkv_bias to be bool, got 1"),
        ({"model_type": "vit", "patch_size": [16, 8]}, r"patch_size as a square.*got \[16, 8\]"),
        ({"model_type": "clip", "vision_config": 3}, "vision_config as an object, got 3"),
        ({"model_type": "clip_vision_model", "image_size": [224, 448]}, "as a square"),
        ({"model_type": "clip_vision_model", "image_size": 31}, "room for a patch of 32 x 32"),
        ({"model_type": "dinov3_vit", "use_gated_mlp": True}, "hidden_act as silu in a gated MLP, got 'gelu'"),
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
        with suppress(CheckpointError):
            convert_transformers(state, changed)
            about_transformers(changed, {"size": 44, "image_processor_type": "ViTImageProcessor"}, "a")


def test_every_family_is_proved() -> None:
    proved = {case.config.model_type for case in CASES.values()}
    assert proved == set(FAMILIES)
