"""Sizes: what is refused, what survives JSON, and the published models by number."""

import json

import pytest
import tiny
import torch

from vitviz.model.config import PRESETS, ModelError, ViTConfig, preset
from vitviz.model.vit import ViT

CHANGES = [
    *tiny.KINDS.values(),
    {"position_grid": (3, 5), "position_antialias": False, "norm_eps": 1e-3, "channels": 1, "classes": 0},
    {"width": 35, "head_width": None, "mlp_width": None, "path_dropout": 0.1, "dropout": 0.2, "attention_dropout": 0.3},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_a_config_survives_json_and_derives_its_sizes(changes: dict) -> None:
    config = tiny.config(**changes)
    back = ViTConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert back == config
    assert hash(back) == hash(config)
    assert config.grid == tiny.GRID
    assert config.learned_grid == changes.get("position_grid", tiny.GRID)
    assert len(config.prefix) == config.class_token + config.distillation_token + config.registers
    assert config.head_size == (config.head_width or 7)
    assert config.hidden == (config.mlp_width or 140)


def test_a_config_names_its_prefix_tokens() -> None:
    config = tiny.config(class_token=True, distillation_token=True, registers=2)
    assert config.prefix == ("CLS", "distillation", "register 1", "register 2")


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"image_size": (91, 140), "patch_size": 13}, ["91 x 140", "13 x 13", "91 x 143"]),
        ({"image_size": (10, 13), "patch_size": 13}, ["10 x 13", "13 x 13"]),
        ({"width": 19, "heads": 5, "head_width": None}, ["19", "5 heads", "15"]),
        ({"depth": 0}, ["depth", "at least 1", "0"]),
        ({"heads": 2.0}, ["heads", "2.0"]),
        ({"registers": -1}, ["registers", "at least 0", "-1"]),
        ({"classes": True}, ["classes", "True"]),
        ({"head_width": 0}, ["head_width", "at least 1", "0"]),
        ({"mlp_width": -23}, ["mlp_width", "at least 1", "-23"]),
        ({"image_size": 224}, ["image_size", "224"]),
        ({"image_size": (91.0, 143)}, ["image_size", "91.0"]),
        ({"position_grid": (0, 3)}, ["position_grid", "at least 1", "0"]),
        ({"dropout": 1.0}, ["dropout", "1.0"]),
        ({"path_dropout": -0.25}, ["path_dropout", "-0.25"]),
        ({"attention_dropout": float("nan")}, ["attention_dropout", "nan"]),
        ({"pooling": "max"}, ["pooling", "'cls'", "'mean'", "'cls+mean'", "'max'"]),
        ({"pooling": "cls", "class_token": False}, ["'cls'", "'mean'"]),
        ({"pooling": "cls+mean", "class_token": False}, ["'cls+mean'", "'mean'"]),
        ({"positions": "fourier"}, ["positions", "'learned'", "'sincos'", "'fourier'"]),
        ({"norm_eps": 0.0}, ["norm_eps", "0.0"]),
        ({"positions": "sincos", "width": 19}, ["4", "19"]),
        ({"positions": "sincos1d", "width": 19}, ["even", "19"]),
        ({"positions": "rotary", "head_width": 18}, ["divisible by 4", "18"]),
        ({"norm_pooled": True, "pooling": "cls+mean"}, ["norm_pooled", "'cls+mean'"]),
        ({"pooling": "attention"}, ["5 heads", "19"]),
        ({"image_size": (13 * 2000, 13 * 2000)}, ["26000 x 26000", "smaller"]),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_the_value_given(changes: dict, facts: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        tiny.config(**changes)
    for fact in facts:
        assert fact in str(caught.value)


def test_errors_name_unknown_settings_and_suggest_a_size_that_fits() -> None:
    with pytest.raises(ModelError) as caught:
        ViTConfig.from_dict({**tiny.config().to_dict(), "patchsize": 16, "stride": 8})
    assert all(name in str(caught.value) for name in ("patchsize", "stride", "patch_size"))
    with pytest.raises(ModelError, match="tiny, small, base, large, huge"):
        preset("enormous")
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
    assert preset(name).patch_size == (14 if name == "huge" else 16)
    assert preset(name, patch_size=32, classes=10).grid == (7, 7)
