"""One file of weights: what does not fit, what is missing and what cannot be shown is refused in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers as hf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from timm_models import vit
from torch import nn
from torchvision import models
from weight_files import SQUARE, TIMM, state_of, written

import vitviz
from vitviz.weights.checks import CheckpointError, ConvertError
from vitviz.weights.infer import FAMILIES, Architecture

pytestmark = pytest.mark.usefixtures("one_thread")


# --- what names do not tell


def test_moco_has_twice_the_heads_at_a_width_where_others_have_six(tmp_path: Path) -> None:
    theirs = timm.create_model("vit_small_patch16_224", depth=1, num_heads=12, img_size=32, num_classes=3).eval()
    with torch.no_grad():
        theirs.head.weight.normal_()
        theirs.pos_embed[:, 0] = 0.0  # MoCo v3's positions are fixed, and the class token has none
    path = written(theirs.state_dict(), tmp_path, ".pth")
    with pytest.raises(ConvertError, match=r"MoCo v3.*--heads 12"):
        vitviz.load(path)
    images = torch.randn(1, 3, 32, 32)
    torch.testing.assert_close(vitviz.load(path, heads=12)(images), theirs(images), atol=1e-4, rtol=1e-4)


def test_a_width_that_is_not_published_asks_for_its_heads(tmp_path: Path) -> None:
    path = written(state_of(vit(**SQUARE)), tmp_path, ".pt")
    cases: list[tuple[Any, str]] = [(None, r"width 60.*--heads"), (7, "Expected a divisor of 60, got 7")]
    for heads, words in (*cases, *((wrong, "whole number of at least 1") for wrong in (0, -5, True, 2.5))):
        with pytest.raises(ConvertError, match=words):
            vitviz.load(path, heads=heads)
    normed = written(state_of(vit(**SQUARE, qk_norm=True)), tmp_path, ".pth")
    assert vitviz.load(normed).config.heads == 5  # the norm of a query is as long as a head is wide
    with pytest.raises(ConvertError, match="Expected 5 heads of width 12, got 6"):
        vitviz.load(normed, heads=6)


@pytest.mark.parametrize("family", ["clip", "siglip", "gap"])
def test_a_family_that_names_do_not_tell_is_asked_for(tmp_path: Path, family: str) -> None:
    assert TIMM[family][1] in FAMILIES
    assert FAMILIES[family if family in FAMILIES else "vit"].who
    path = written(state_of(TIMM[family][0]()), tmp_path, ".pt")
    for named, words in (
        (None, r"do not tell .*--family.*GELU|do not tell .*--family.*siglip"),
        ("dinov3", "names and shapes, got family dinov3"),
        ("resnet", r"Expected one of vit.*got family 'resnet'"),
    ):
        with pytest.raises(ConvertError, match=words):
            vitviz.load(path, heads=5, family=named)


# --- nothing is forced

WHOLE = ["deit", "dinov2 with registers", "siglip", "dinov3 swiglu", "qk norm"]
STATES = {name: state_of(TIMM[name][0]()) for name in WHOLE}


@given(data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_tensor_that_is_missing_reshaped_or_too_many_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(WHOLE))
    state = dict(STATES[kind])
    # Without registers, and without a class token beside them, it is a whole model of another kind.
    whole = {"reg_token", "cls_token"} if kind == "dinov2 with registers" else set()
    name = data.draw(st.sampled_from(sorted(set(state) - whole)))
    tensor = state.pop(name)
    change = data.draw(st.sampled_from(["missing", "longer", "one axis more", "turned", "beside", "empty"]))
    if change == "longer":
        state[name] = torch.cat([tensor, tensor[-1:]])
    elif change == "one axis more":
        state[name] = tensor[None].clone()
    elif change == "turned":
        state[name] = tensor.movedim(0, -1).contiguous() if tensor.ndim > 1 else tensor[:-1].clone()
    elif change == "beside":
        state |= {name: tensor, name + "_2": tensor.clone()}
    elif change == "empty":
        state[name] = tensor[:0].clone()
    if state.get(name) is not None and change != "beside" and state[name].shape == tensor.shape:
        return  # a square matrix turned
    path = written(state, tmp_path, data.draw(st.sampled_from([".pt", ".safetensors"])))
    with pytest.raises(CheckpointError):
        vitviz.load(path, family=TIMM[kind][1], heads=5)


def test_half_of_a_part_is_refused(tmp_path: Path) -> None:
    """Where the first tensor of a part is missing, the model is another one, without that part."""
    for name in ("head.weight", "head_dist.weight", "dist_token", "cls_token", "norm.bias"):
        state = {other: tensor for other, tensor in STATES["deit"].items() if other != name}
        with pytest.raises(CheckpointError):
            vitviz.load(written(state, tmp_path, ".pt"), heads=5)


# --- models that cannot be shown

NOT_SHOWN: dict[str, tuple[Callable[[], nn.Module], str]] = {
    name: (lambda name=name: timm.create_model(name), words)
    for name, words in {
        "swin_tiny_patch4_window7_224": "Swin.*windowed",
        "swinv2_tiny_window8_256": "Swin.*windowed",
        "maxvit_tiny_tf_224": "MaxViT.*windows",
        "beit_base_patch16_224": "BEiT.*bias",
        "vit_base_r50_s16_224": "hybrid.*stem",
        "cait_xxs24_224": "CaiT.*heads",
        "convit_tiny": "ConViT.*position",
        "xcit_nano_12_p16_224": "XCiT.*channels",
        "tnt_s_patch16_224": "TNT.*inside",
        "pvt_v2_b0": "stages",
        "samvit_base_patch16_224": "SAM.*windowed",
        "resnet18": "convolutional network.*no attention",
        "eva02_tiny_patch14_224": "EVA",
        "vit_pe_core_tiny_patch16_384": "position|Perception",
        "vit_base_patch16_rope_reg1_gap_256": "position",
        "vit_small_patch16_rope_ape_224": "EVA",
    }.items()
    if timm.is_model(name)
} | {
    "torchvision's Swin": (lambda: models.swin_t(), "Swin"),
    "torchvision's MaxViT": (lambda: models.maxvit_t(), "MaxViT"),
    "Swin": (lambda: hf.SwinForImageClassification(hf.SwinConfig()), "Swin"),
    "Swin v2": (lambda: hf.Swinv2Model(hf.Swinv2Config()), "Swin"),
    "BEiT": (lambda: hf.BeitForImageClassification(hf.BeitConfig(use_relative_position_bias=True)), "BEiT"),
    "MAE": (lambda: hf.ViTMAEForPreTraining(hf.ViTMAEConfig()), "MAE"),
    "ResNet": (lambda: hf.ResNetModel(hf.ResNetConfig()), "names"),
    "BERT": (lambda: hf.BertModel(hf.BertConfig(num_hidden_layers=1)), "names"),
}


@pytest.mark.parametrize("name", NOT_SHOWN)
def test_a_model_that_cannot_be_shown_is_refused_by_name(name: str) -> None:
    build, words = NOT_SHOWN[name]
    with torch.device("meta"):
        shapes = {key: tuple(tensor.shape) for key, tensor in build().state_dict().items()}
    with pytest.raises(ConvertError, match=words):
        Architecture(shapes)
