"""Correlate maps."""

import torch
from torch import Tensor


def pearson(first: Tensor, second: Tensor) -> Tensor:
    """Return Pearson's correlation of rows (..., n), float64: (..., n), (..., n) -> (...)."""
    first, second = first.double(), second.double()
    x, y = (row - row.mean(-1, keepdim=True) for row in (first, second))
    # Rounding errors of a constant row do not count as variation.
    flat = [centered.norm(dim=-1) <= 1e-12 * row.norm(dim=-1) for centered, row in ((x, first), (y, second))]
    correlations: Tensor = (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1))
    return correlations.masked_fill(flat[0] | flat[1], float("nan"))


def spearman(first: Tensor, second: Tensor) -> Tensor:
    """Return Spearman's rank correlation of rows, with mean ranks for ties: (B, n), (B, n) -> (B,)."""
    return pearson(*(torch.stack([_ranks(row) for row in rows]) for rows in (first, second)))


def _ranks(row: Tensor) -> Tensor:
    """Return ascending ranks, with mean ranks for ties: (n,) -> (n,), float64."""
    _, group, counts = row.unique(return_inverse=True, return_counts=True)
    mean: Tensor = counts.cumsum(0) - (counts - 1) / 2
    return mean[group].double()
