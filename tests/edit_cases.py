"""What edits are tried on: models of every kind, and patches that stay."""

from __future__ import annotations

import pytest
import tiny
import torch
from torch import Tensor

from vitviz.model.edits import Cut, Edits

PATCHES = tiny.GRID[0] * tiny.GRID[1]

# Every kind of prefix, pooling and position, one with another.
KINDS = {
    "CLS": {},
    "CLS and registers, rotary": {"registers": 3, "positions": "rotary", "head_width": 16},
    "CLS and distillation": {"distillation_token": True, "layer_scale": 0.3},
    "none, mean": {"class_token": False, "pooling": "mean", "positions": "sincos", "width": 20},
    "CLS and mean": {"pooling": "cls+mean", "norm_pre": True, "qk_norm": True, "qkv_bias": False},
    "none, attention": {"class_token": False, "pooling": "attention", "width": 20, "mlp": "swiglu"},
    "registers without CLS, normed after pooling": {
        "class_token": False, "registers": 2, "pooling": "mean", "norm_pooled": True
    },
}  # fmt: skip
kinds = pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS.keys())


def close(a: Tensor, b: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(a.detach().double(), b.detach().double(), rtol=tolerance, atol=tolerance)


def some_patches(count: int, seed: int = 0, batch: int = tiny.BATCH) -> Tensor:
    """Patches that stay, others in each image, in no order: (B, K)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(PATCHES, generator=generator)[:count] for _ in range(batch)])


def everything(prefix: int) -> Edits:
    """All kinds of edits at once."""
    cuts = [
        Cut(block=1, head=2, queries=(0,), keys=(5, 6)),
        Cut(block=-1, queries=(prefix + 3, prefix + 4), keys=(0, prefix + 9)),
    ]
    return Edits(heads={(0, 1): "zero", (-2, 4): "mean"}, cuts=cuts, keep=some_patches(31))
