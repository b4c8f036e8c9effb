"""Make tiny models with every kind of pooling, and cases for attribution methods."""

from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

from vitviz.attribution.inputs import Case
from vitviz.attribution.target_specs import resolve_target
from vitviz.images.preprocess import Preprocess
from vitviz.model.vit import ViT

GRID, PATCH = tiny.SMALL["grid"], tiny.SMALL["patch"]
PATCHES = GRID[0] * GRID[1]
TARGETS = [3, 7]  # classes of a batch of two images
FEW: dict[str, dict[str, Any]] = {"kernel_shap": {"samples": 40}, "integrated_gradients": {"steps": 2}}
"""Options that make slow methods fast."""
LABELS = ("church", "gas pump", "crane", *(f"thing {index}" for index in range(3, 28)), "crane")
"""Labels of the 29 classes of a tiny model; "crane" names a bird and a machine."""
kinds = pytest.mark.parametrize("kind", tiny.KINDS)


def model(kind: str = "class token", dtype: torch.dtype = torch.float64, **changes: Any) -> ViT:
    return tiny.model(**tiny.SMALL, **{**tiny.KINDS[kind], **changes}).to(dtype)


def known(kind: str = "class token", dtype: torch.dtype = torch.float64, **changes: Any) -> ViT:
    preprocess = Preprocess(height=6, width=10, mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.5))
    return tiny.known(0, preprocess, LABELS, **{**tiny.SMALL, **tiny.KINDS[kind], **changes}).to(dtype)


def small(seed: int = 0, **changes: Any) -> ViT:
    """Return the tiny model for the smallest images, in single precision."""
    return tiny.model(seed, **tiny.SMALL, **changes)


def images(batch: int = 2, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return pictures(batch, seed).to(dtype)


def pictures(batch: int = 1, seed: int = 1) -> Tensor:
    return tiny.images(batch, seed, **tiny.SMALL)


def case(vit: ViT, pixels: Tensor, target: Any = None, contrast: Any = None) -> Case:
    trace = vit.trace(pixels)
    return Case(vit, pixels, resolve_target(vit, trace.logits, target, contrast), trace)


def rows_read(vit: ViT) -> Tensor:
    """Return the weights (N,) of the rows that the classifier reads, without attention pooling."""
    config, prefix = vit.config, len(vit.config.prefix)
    cls = torch.zeros(prefix + PATCHES, dtype=torch.float64)
    if prefix:
        cls[0] = 1
    mean = torch.cat([torch.zeros(prefix), torch.full((PATCHES,), 1 / PATCHES)]).double()
    rows = {"cls": cls, "mean": mean, "cls+mean": (cls + mean) / 2, "attention": 0 * mean}[config.pooling]
    if config.distillation_token:
        token = torch.zeros_like(rows)
        token[config.prefix.index("distillation")] = 1
        rows = (rows + token) / 2
    return rows


def close(ours: Tensor, expected: Any, tolerance: float = 1e-6) -> None:
    """Assert equality up to rounding, relative to the largest expected number."""
    ours = ours.detach().double()
    expected = torch.as_tensor(np.asarray(expected.detach() if isinstance(expected, Tensor) else expected)).double()
    assert ours.shape == expected.shape
    scale = float(expected.abs().max()) or 1.0
    np.testing.assert_allclose(ours / scale, expected / scale, rtol=0, atol=tolerance)
