"""Sizes: what is refused, what survives JSON, and the published models by number."""

import dataclasses
import json
from typing import Any

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitviz.model.config import PRESETS, ModelError, ViTConfig, preset
from vitviz.model.vit import ViT

PATCHES = st.integers(1, 5)
SIZES = st.integers(1, 40)


@st.composite
def configs(draw: st.DrawFn) -> ViTConfig:
    patch, heads = draw(SIZES), draw(st.integers(1, 7))
    cls = draw(st.booleans())
    free = draw(st.booleans())
    positions = draw(st.sampled_from(["learned", "none", "sincos"]))
    return ViTConfig(
        image_size=(draw(PATCHES) * patch, draw(PATCHES) * patch),
        patch_size=patch,
        channels=draw(SIZES),
        width=4 * heads * draw(SIZES),
        depth=draw(SIZES),
        heads=heads,
        head_width=draw(SIZES) if free else None,
        mlp_width=draw(st.none() | SIZES),
        classes=draw(st.integers(0, 40)),
        class_token=cls,
        distillation_token=draw(st.booleans()),
        registers=draw(st.integers(0, 5)),
        pooling=draw(st.sampled_from(["cls", "mean", "cls+mean"] if cls else ["mean"])),
        positions=positions,
        position_grid=draw(st.none() | st.tuples(PATCHES, PATCHES)),
        position_antialias=draw(st.booleans()),
        layer_scale=draw(st.none() | st.floats(1e-6, 1.0)),
        qkv_bias=draw(st.booleans()),
        norm_eps=draw(st.floats(1e-8, 1e-3)),
        dropout=draw(st.floats(0.0, 0.9)),
        attention_dropout=draw(st.floats(0.0, 0.9)),
        path_dropout=draw(st.floats(0.0, 0.9)),
    )


@given(configs())
def test_a_config_survives_json(config: ViTConfig) -> None:
    back = ViTConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert back == config
    assert hash(back) == hash(config)
    assert back.grid == config.grid
    assert back.prefix == config.prefix


@given(configs())
def test_sizes_that_follow_from_others(config: ViTConfig) -> None:
    rows, columns = config.grid
    assert (rows * config.patch_size, columns * config.patch_size) == config.image_size
    assert config.learned_grid == (config.position_grid or config.grid)
    assert len(config.prefix) == config.class_token + config.distillation_token + config.registers
    assert config.head_size == (config.head_width or config.width // config.heads)
    assert config.hidden == (config.mlp_width or 4 * config.width)


def test_a_config_is_frozen_and_compares_by_value() -> None:
    one: Any = tiny.config()
    same, other = tiny.config(), tiny.config(depth=2)
    assert len({one, same, other}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.depth = 7


def test_prefix_tokens_are_named_in_the_order_in_which_they_stand() -> None:
    config = tiny.config(class_token=True, distillation_token=True, registers=2)
    assert config.prefix == ("CLS", "distillation", "register 1", "register 2")
    assert tiny.config(class_token=False, pooling="mean").prefix == ()


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"image_size": (91, 140), "patch_size": 13}, ["91 x 140", "13 x 13", "91 x 143"]),
        ({"image_size": (10, 13), "patch_size": 13}, ["10 x 13", "13 x 13"]),
        ({"width": 19, "heads": 5, "head_width": None}, ["19", "5 heads", "15"]),
        ({"width": 3, "heads": 5, "head_width": None}, ["3", "5 heads"]),
        ({"depth": 0}, ["depth", "at least 1", "0"]),
        ({"heads": 2.0}, ["heads", "2.0"]),
        ({"registers": -1}, ["registers", "at least 0", "-1"]),
        ({"classes": True}, ["classes", "True"]),
        ({"head_width": 0}, ["head_width", "at least 1", "0"]),
        ({"mlp_width": -23}, ["mlp_width", "at least 1", "-23"]),
        ({"image_size": 224}, ["image_size", "224"]),
        ({"image_size": (91.0, 143)}, ["image_size", "91.0"]),
        ({"position_grid": (7,)}, ["position_grid", "7"]),
        ({"position_grid": (0, 3)}, ["position_grid", "at least 1", "0"]),
        ({"dropout": 1.0}, ["dropout", "1.0"]),
        ({"path_dropout": -0.25}, ["path_dropout", "-0.25"]),
        ({"attention_dropout": float("nan")}, ["attention_dropout", "nan"]),
        ({"pooling": "max"}, ["pooling", "'cls'", "'mean'", "'cls+mean'", "'max'"]),
        ({"pooling": None}, ["pooling", "'cls'", "None"]),
        ({"pooling": "cls", "class_token": False}, ["'cls'", "'mean'"]),
        ({"pooling": "cls+mean", "class_token": False}, ["'cls+mean'", "'mean'"]),
        ({"positions": "fourier"}, ["positions", "'learned'", "'sincos'", "'fourier'"]),
        ({"norm_eps": -1e-6}, ["norm_eps", "-1e-06"]),
        ({"norm_eps": 0.0}, ["norm_eps", "0.0"]),
        ({"positions": "sincos", "width": 19}, ["4", "19"]),
        ({"positions": "sincos1d", "width": 19}, ["even", "19"]),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_what_came(changes: dict, facts: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        tiny.config(**changes)
    for fact in facts:
        assert fact in str(caught.value)


def test_unknown_settings_are_refused_by_name() -> None:
    with pytest.raises(ModelError) as caught:
        ViTConfig.from_dict({**tiny.config().to_dict(), "patchsize": 16, "stride": 8})
    assert "patchsize" in str(caught.value)
    assert "stride" in str(caught.value)
    assert "patch_size" in str(caught.value)
    with pytest.raises(ModelError, match="tiny, small, base, large, huge"):
        preset("enormous")


def test_the_suggested_size_fits() -> None:
    """The error's own advice must work."""
    with pytest.raises(ModelError, match="96 x 144"):
        ViTConfig(image_size=(90, 150), patch_size=48)
    assert ViTConfig(image_size=(96, 144), patch_size=48).grid == (2, 3)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("tiny", 5_717_416),  # DeiT, table 1
        ("small", 22_050_664),
        ("base", 86_567_656),  # ViT, table 1, with 1,000 classes at 224 pixels
        ("large", 304_326_632),
        ("huge", 632_045_800),
    ],
)
def test_presets_have_the_published_number_of_parameters(name: str, published: int) -> None:
    with torch.device("meta"):
        model = ViT(preset(name))
    # The published models add a position to the class token; here it is part of the token itself.
    assert sum(p.numel() for p in model.parameters()) == published - PRESETS[name]["width"]


def test_presets_can_be_changed() -> None:
    assert preset("huge").patch_size == 14
    assert preset("huge", patch_size=16).grid == (14, 14)
    assert preset("tiny", classes=10).classes == 10
