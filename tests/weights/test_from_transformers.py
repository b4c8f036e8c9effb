"""Models of Hugging Face's transformers, converted, compute what transformers computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from hf_cases import CASES, CLASSES, SIZES, Case, assert_same, each_case, files_of, logits, on_disk

import vitviz.weights.from_transformers as ours_of
from vitviz.model.vit import ViT
from vitviz.weights.checks import CheckpointError, ConvertError
from vitviz.weights.from_transformers import FAMILIES, REFUSED, convert_transformers

pytestmark = pytest.mark.usefixtures("one_thread")


def assert_equal(model: ViT, expected: ViT) -> None:
    state = expected.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


@each_case
def test_same_numbers_as_transformers_from_a_copy_in_float32(case: Case) -> None:
    state, settings = files_of(case)
    before = {name: tensor.clone() for name, tensor in state.items()}
    ours = convert_transformers(state, settings)
    for size in (ours.config.image_size, (28, 52), (60, 24)):
        assert_same(case, case.build(), ours, size)
    assert ours.config.classes == (CLASSES if case.read is logits else 0)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.fill_(7.0)
    assert all(torch.equal(state[name], before[name]) for name in before)
    half = convert_transformers({name: tensor.half() for name, tensor in state.items()}, settings)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.float32}


@each_case
def test_a_surplus_a_missing_and_a_misshaped_tensor_are_named(case: Case) -> None:
    state, settings = files_of(case)
    with pytest.raises(ConvertError, match=r"1 tensors too many: surplus\.weight"):
        convert_transformers(state | {"surplus.weight": torch.zeros(2)}, settings)
    unread = ["text_", "mask_token", "pooler.", "projection.weight", "logit_"]
    unread += [".head."] if (case.family, case.read) == ("Siglip", logits) else []
    taken = [name for name in state if not any(part in name for part in unread) and state[name].numel()]
    assert len(taken) > 40
    words = r"missing|with one \w+ of the same shape|Expected (prefix tokens|the weight)"
    for name in taken:
        if ".0." not in name and ".2." not in name:  # one block stands for the others
            with pytest.raises(CheckpointError, match=words):
                convert_transformers({other: state[other] for other in state if other != name}, settings)
    with pytest.raises(CheckpointError, match=r"\(1, "):
        convert_transformers(state | {taken[-1]: state[taken[-1]][None]}, settings)


def test_dinov3_as_it_is_named_in_memory_and_with_a_bias_that_the_settings_deny() -> None:
    """Its blocks are called `model.layer.0`, in files `layer.0`."""
    state, settings = files_of(CASES["DINOv3"])
    named_in_memory = CASES["DINOv3"].build().state_dict()
    assert named_in_memory.keys() != state.keys()
    assert_equal(convert_transformers(named_in_memory, settings), convert_transformers(state, settings))
    name = "layer.1.attention.k_proj"
    with pytest.raises(ConvertError, match=rf"1 tensors too many: {name}\.bias"):
        convert_transformers(state | {f"{name}.bias": state[f"{name}.weight"][:, 0]}, settings)


def test_the_tower_of_a_whole_clip_converts_with_its_own_settings_too() -> None:
    """An older CLIP: positions are counted, and the tower's settings are there under two names, one of them wrong."""
    state, settings = files_of(CASES["CLIP-whole"])
    counted = {f"{part}.embeddings.position_ids": torch.arange(122)[None] for part in ("vision_model", "text_model")}
    state = state | counted
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
        torch.testing.assert_close(ours(images[..., :44, :44]), theirs(images).pooler_output, rtol=0, atol=1e-4)


def test_the_defaults_are_those_of_transformers() -> None:
    assert {case.config.model_type for case in CASES.values()} == set(FAMILIES)
    without_registers = {name: value for name, value in ours_of.DINOV2_DEFAULTS.items() if "register" not in name}
    for ours, theirs in (
        (ours_of.VIT_DEFAULTS, hf.ViTConfig()),
        (ours_of.VIT_DEFAULTS, hf.DeiTConfig()),
        (ours_of.MSN_DEFAULTS, hf.ViTMSNConfig()),
        (without_registers, hf.Dinov2Config()),
        (ours_of.DINOV2_DEFAULTS, hf.Dinov2WithRegistersConfig()),
        (ours_of.DINOV3_DEFAULTS, hf.DINOv3ViTConfig()),
        (ours_of.CLIP_DEFAULTS, hf.CLIPVisionConfig()),
        (ours_of.SIGLIP_DEFAULTS, hf.SiglipVisionConfig()),
    ):
        said = theirs.to_dict()
        assert ours == {name: said[name] for name in ours}, type(theirs).__name__
    # SigLIP's own files say no more of the tower than that it is one.
    sparse = {"model_type": "siglip", "architectures": ["SiglipModel"], "vision_config": {}}
    with pytest.raises(CheckpointError, match=r"Expected 12 blocks .*got 0"):
        convert_transformers({}, sparse)


def test_names_have_a_prefix_and_settings_that_are_absent_their_defaults() -> None:
    state, settings = files_of(CASES["ViT"])
    expected = convert_transformers(state, settings)
    prefixed = {f"vit.{name}": tensor for name, tensor in state.items()}
    model = convert_transformers(prefixed, {name: settings[name] for name in ("model_type", *SIZES)})
    assert model.config == expected.config
    assert_equal(model, expected)
    with pytest.raises(ConvertError, match="Expected each tensor once"):
        convert_transformers(state | prefixed, settings)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        *[({"model_type": kind}, f"got model_type {kind!r}: ") for kind in (*REFUSED, "resnet", None)],
        ({"model_type": "vit", "architectures": ["ViTForMaskedImageModeling"]}, "got .*ViTForMaskedImageModeling"),
        ({"model_type": "clip", "architectures": ["CLIPForImageClassification"]}, "without the final norm"),
        ({"model_type": "siglip_vision_model", "vision_use_head": False}, "vision_use_head as true.*got False"),
        ({"model_type": "vit", "hidden_act": "relu"}, "hidden_act as one of gelu, .*got 'relu'"),
        ({"model_type": "vit", "hidden_size": "768"}, "width to be int .*got '768'"),
        ({"model_type": "vit", "layer_norm_eps": None}, "norm_eps to be float .*got None"),
        ({"model_type": "vit", "patch_size": [16, 8]}, r"patch_size as a square.*got \[16, 8\]"),
        ({"model_type": "clip", "vision_config": 3}, "vision_config as an object, got 3"),
        ({"model_type": "clip_vision_model", "image_size": [224, 448]}, "as a square"),
        ({"model_type": "clip_vision_model", "image_size": 31}, "room for a patch of 32 x 32"),
        ({"model_type": "dinov3_vit", "use_gated_mlp": True}, "hidden_act as silu in a gated MLP, got 'gelu'"),
        ({"model_type": "dinov2", "image_size": 224}, "without hidden_size"),
    ],
)
def test_kinds_and_settings_that_the_model_cannot_follow_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConvertError, match=text):
        convert_transformers({}, settings)
