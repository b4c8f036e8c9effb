"""Tiny models of every way to read an answer, and cases for attribution methods."""

from __future__ import annotations

from typing import Any

import numpy as np
import tiny
import torch
from torch import Tensor

from vitviz.attribution.inputs import Case, resolve_target
from vitviz.model.vit import ViT

SMALL = {"grid": (3, 5), "patch": 2}  # not square
MODELS: dict[str, dict[str, Any]] = {
    "class token": {},
    "registers, layer scale": {"registers": 3, "layer_scale": 0.3},
    "distillation and register": {"distillation_token": True, "registers": 1},
    "distillation, no class token": {
        "distillation_token": True,
        "class_token": False,
        "pooling": "mean",
        "registers": 1,
    },
    "mean, no prefix": {"class_token": False, "pooling": "mean"},
    "mean beside a class token": {"pooling": "mean", "norm_pooled": True},
    "class token and mean": {"pooling": "cls+mean", "registers": 2},
    "attention": {"class_token": False, "pooling": "attention", "width": 20},
    "attention, class token, norm after": {"pooling": "attention", "width": 20, "norm_pooled": True},
    "attention and distillation": {"pooling": "attention", "width": 20, "distillation_token": True},
}
TARGETS = [3, 7]  # for a batch of two, each image another


def model(changes: dict[str, Any], dtype: torch.dtype = torch.float64) -> ViT:
    return tiny.model(**SMALL, **changes).to(dtype)


def images(batch: int = 2, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return tiny.images(batch, seed, **SMALL).to(dtype)


def case(made: ViT, pixels: Tensor, target: Any = None, contrast: Any = None) -> Case:
    trace = made.trace(pixels)
    return Case(made, pixels, resolve_target(made, trace.logits, target, contrast), trace)


def rows_read(made: ViT) -> Tensor:
    """Which rows the classifier reads, as (N,) weights; without those that an attention pools."""
    config, patches = made.config, SMALL["grid"][0] * SMALL["grid"][1]
    prefix = len(config.prefix)
    cls = torch.zeros(prefix + patches, dtype=torch.float64)
    if prefix:
        cls[0] = 1
    mean = torch.cat([torch.zeros(prefix), torch.full((patches,), 1 / patches)]).double()
    rows = {"cls": cls, "mean": mean, "cls+mean": (cls + mean) / 2, "attention": 0 * mean}[config.pooling]
    if config.distillation_token:
        token = torch.zeros_like(rows)
        token[config.prefix.index("distillation")] = 1
        rows = (rows + token) / 2
    return rows


def close(ours: Tensor, expected: Any, tolerance: float = 1e-6) -> None:
    """Equal but for rounding, measured at the largest of the expected numbers."""
    ours = ours.detach().double()
    expected = torch.as_tensor(np.asarray(expected.detach() if isinstance(expected, Tensor) else expected)).double()
    assert ours.shape == expected.shape
    scale = float(expected.abs().max()) or 1.0
    np.testing.assert_allclose(ours / scale, expected / scale, rtol=0, atol=tolerance)
