"""Edits to try on models: patches that stay, and all kinds of edits at once."""

from __future__ import annotations

import tiny
import torch
from torch import Tensor

from vitviz.model.edits import Cut, Edits

PATCHES = tiny.GRID[0] * tiny.GRID[1]


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
