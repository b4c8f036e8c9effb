"""Compute statistics of one block's attention per head, in chunks of its N x N matrix.

Shapes: B images, H heads, N tokens = P prefix tokens followed by gh x gw patches; n queries per chunk.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitviz.analysis import AnalysisError
from vitviz.images.geometry import Geometry
from vitviz.model.trace import BlockTrace, Query, Trace


@dataclass(frozen=True, eq=False)
class QueryRange:
    """Range of query tokens, with the layout of all tokens.

    Args:
        first, last: the queries are the tokens first..last-1.
        prefix: names of the P prefix tokens.
        grid: (gh, gw).
        patch_pixels: (B or 1, 2), (height, width) of a patch in pixels of the photograph; `None` if unknown.
    """

    first: int
    last: int
    prefix: tuple[str, ...]
    grid: tuple[int, int]
    patch_pixels: Tensor | None

    @classmethod
    def of(
        cls, trace: Trace, geometry: Geometry | Sequence[Geometry] | None = None, query: Query | None = None
    ) -> "QueryRange":
        """Return the range of one token of a trace, or of all patches for `query=None`.

        Raises:
            AnalysisError: unless there is one geometry for each image, or if the query is a mean.
            TraceError: if the token does not exist.
        """
        batch, tokens = trace.tokens.shape[:2]
        if query == "mean":
            raise AnalysisError("Expected one token as the query, got 'mean'. Leave it out to average over patches.")
        first = len(trace.prefix) if query is None else trace.token(query)
        pixels = None
        if geometry is not None:
            frames = [one.frame for one in ([geometry] if isinstance(geometry, Geometry) else geometry)]
            if len(frames) not in (1, batch):
                raise AnalysisError(
                    f"Expected one geometry for each of the {batch} images, got {len(frames)}. Give one for all."
                )
            extents = torch.tensor([[bottom - top, right - left] for left, top, right, bottom in frames])
            pixels = (extents / torch.tensor(trace.grid)).to(trace.tokens.device)
        return cls(first, tokens if query is None else first + 1, trace.prefix, trace.grid, pixels)

    @property
    def are_patches(self) -> bool:
        """Return whether the queries are patches; prefix tokens have no position in the image."""
        return self.first >= len(self.prefix)


def row_statistics(kept: BlockTrace, queries: QueryRange) -> dict[str, Tensor]:
    """Compute all statistics of attention rows as means over the queries: name -> (B, H), float64.

    The memory is a few chunks of `trace.CHUNK_BYTES` for any N.
    """
    sums: dict[str, Tensor] = {}
    for start, stop in kept.chunks():
        start, stop = max(start, queries.first), min(stop, queries.last)
        if start >= stop:
            continue
        for name, values in _measure_rows(kept.log_rows(start, stop), start, queries).items():
            total = values.sum(2).cpu().double()  # (B, H, n) -> (B, H); some devices have no float64
            sums[name] = sums[name] + total if name in sums else total
    return {name: total / (queries.last - queries.first) for name, total in sums.items()}


def _measure_rows(log: Tensor, start: int, queries: QueryRange) -> dict[str, Tensor]:
    """Measure the rows of the tokens from `start` on: log-attention (B, H, n, N) -> name -> (B, H, n)."""
    prefix, tokens = len(queries.prefix), log.shape[-1]
    rows = log.exp()
    entropy = -(rows * log).sum(-1)
    own = torch.arange(start, start + log.shape[2], device=log.device)  # (n,)
    found = {
        "entropy": entropy,
        "entropy_share": entropy / math.log(tokens) if tokens > 1 else torch.zeros_like(entropy),
        "mass_self": rows.gather(3, own[:, None].expand(*rows.shape[:3], 1)).squeeze(3),
    }
    cls = [index for index, name in enumerate(queries.prefix) if name == "CLS"]
    others = [index for index, name in enumerate(queries.prefix) if name != "CLS"]
    if cls:
        found["mass_cls"] = rows[..., cls].sum(-1)
    if others:
        found["mass_registers"] = rows[..., others].sum(-1)
    patches = rows[..., prefix:]  # (B, H, n, gh * gw)
    if not queries.are_patches:
        return found | {"mass_elsewhere": patches.sum(-1)}
    down, across = _offsets(own - prefix, queries.grid)  # (n, gh * gw) each, in patches
    near = torch.maximum(down.abs(), across.abs()) == 1
    found["mass_neighbors"] = (patches * near).sum(-1)
    far = patches.sum(-1) - found["mass_self"] - found["mass_neighbors"]
    found["mass_elsewhere"] = far.clamp_min(0.0)  # rounding
    # From logarithms: if prefix tokens take nearly all attention, the patches' probabilities underflow in float32.
    patches = log[..., prefix:].softmax(-1)  # rescaled to sum to 1 without prefix tokens
    found["distance"] = (patches * torch.hypot(down, across)).sum(-1)
    if queries.patch_pixels is not None:
        height, width = queries.patch_pixels.to(log)[:, :, None, None].unbind(1)  # (B or 1, 1, 1) each
        pixels = torch.hypot(down * height, across * width)  # (B or 1, n, gh * gw)
        found["distance_pixels"] = (patches * pixels[:, None]).sum(-1)
    return found


def _offsets(own: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the row and column offsets from each query patch (n,) to every patch: (n, gh * gw) each."""
    every = torch.arange(grid[0] * grid[1], device=own.device)
    down = every // grid[1] - own[:, None] // grid[1]
    across = every % grid[1] - own[:, None] % grid[1]
    return down.float(), across.float()


def effective_rank(kept: BlockTrace) -> Tensor:
    """Compute the effective rank of each head's attention matrix: (B, H), float64, 1..N.

    The exponential of the entropy of the singular values, scaled to sum to 1 (Roy and Vetterli 2007, "The effective
    rank: a measure of effective dimensionality"). It needs (H, N, N) of an image and O(H N³) time.
    """
    ranks = []
    for index in range(len(kept.queries)):
        attention = kept.image(index).rows(0, kept.queries.shape[2])[0]  # (H, N, N)
        values = torch.linalg.svdvals(attention).cpu().double()  # (H, N)
        share = values / values.sum(1, keepdim=True)
        ranks.append(torch.special.entr(share).sum(1).exp())  # entr(p) = -p log p, and 0 at 0
    return torch.stack(ranks)
