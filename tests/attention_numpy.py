"""Attention and rollout as dense matrices in NumPy, one image and one row after the other: the oracle of the tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import tiny
import torch
from numpy.typing import NDArray

from vitviz.attribution.scores import TokenScores
from vitviz.model.trace import BlockTrace, Kept, Query, Trace

PREFIXES = [
    {},
    {"class_token": False, "pooling": "mean"},
    {"distillation_token": True, "registers": 3},
    {"class_token": False, "pooling": "mean", "registers": 2},
]
SMALL: dict[str, Any] = {"grid": (3, 5), "patch": 2}
TRACES = [tiny.trace(seed=seed, **SMALL, **changes) for seed, changes in enumerate(PREFIXES)]
TRACE_NAMES = ["CLS", "none", "many", "registers"]
Array = NDArray[np.float64]


def close(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    a, b = (x.detach().double().numpy() if isinstance(x, torch.Tensor) else x for x in (a, b))
    assert a.shape == b.shape
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def whole(scores: TokenScores) -> torch.Tensor:
    """Scores of all tokens, prefix first: (B, N)."""
    return torch.cat([scores.prefix, scores.patches.flatten(1)], dim=1)


def keep(queries: torch.Tensor, keys: torch.Tensor) -> Kept:
    """What a trace would keep of a block with these queries and keys."""
    lse = (queries @ keys.mT).logsumexp(-1)
    stream = torch.zeros(1, queries.shape[2], tiny.WIDTH)
    return Kept(stream, lse, lambda *_: (queries, keys), attention=BlockTrace(queries, keys, lse))


# ---- the oracle: one image, one row after the other


def step(heads: Array, fuse: str, discard: float, prefix: int, rescale: bool = True) -> Array:
    """Attention (H, N, N) of one image -> (N, N), rows summing to 1."""
    fused = {"mean": np.mean, "max": np.max, "min": np.min}[fuse](heads, axis=0)
    if rescale:
        fused = np.stack([row / row.sum() for row in fused])
    if discard:
        entries = sorted((value, at) for at, value in enumerate(fused.flat))
        for _, at in entries[: int(discard * fused.size)]:
            row, column = divmod(at, fused.shape[1])
            if column >= prefix and column != int(fused[row].argmax()):
                fused[row, column] = 0.0
        if rescale:
            fused = np.stack([row / row.sum() for row in fused])
    return fused


def gildenblat(trace: Trace, image: int, *, fuse: str, discard: float, residual: float, start: int) -> Array:
    """The matrix of Gildenblat (2020): attention and identity are rescaled together, in each block."""
    result = np.eye(trace.tokens.shape[1])
    for block in range(start, trace.depth):
        heads = tiny.dense(trace, block)[image].numpy()
        fused = step(heads, fuse, discard, len(trace.prefix), rescale=False)
        both = (1 - residual) * fused + residual * np.eye(len(result))
        result = (both / both.sum(axis=1, keepdims=True)) @ result
    return result


def product(trace: Trace, image: int, *, fuse: str, discard: float, residual: float, start: int) -> Array:
    """The matrix of Abnar & Zuidema: later blocks stand on the left."""
    result = np.eye(trace.tokens.shape[1])
    for block in range(start, trace.depth):
        heads = tiny.dense(trace, block)[image].numpy()
        result = (
            (1 - residual) * step(heads, fuse, discard, len(trace.prefix)) + residual * np.eye(len(result))
        ) @ result
    return result


def start_row(trace: Trace, query: Query) -> Array:
    count, patches = trace.tokens.shape[1], trace.grid[0] * trace.grid[1]
    row = np.zeros(count)
    if query == "mean":
        row[count - patches :] = 1 / patches
    else:
        row[trace.token(query)] = 1.0
    return row
