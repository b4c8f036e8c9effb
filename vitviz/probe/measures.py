"""How one block attends, measured head by head, on a piece of its N x N matrix at a time.

Shapes: B images, H heads, N tokens = P prefix tokens followed by gh x gw patches; n queries at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitviz.preprocess import Geometry
from vitviz.probe import ProbeError
from vitviz.trace import BlockTrace, Query, Trace

AROUND = tuple((row, column) for row in (-1, 0, 1) for column in (-1, 0, 1) if (row, column) != (0, 0))

FAINT = 1e-20
"""Where patches hold less of a row than this, their shares of it are computed from logarithms."""


@dataclass(frozen=True, eq=False)
class Layout:
    """Which tokens ask, and where each token lies.

    Args:
        first, last: the queries are the tokens first..last-1.
        prefix: names of the P prefix tokens.
        grid: (gh, gw).
        sides: (B or 1, 2), (height, width) of a patch in pixels of the photograph; `None` where they are not known.
    """

    first: int
    last: int
    prefix: tuple[str, ...]
    grid: tuple[int, int]
    sides: Tensor | None

    @classmethod
    def of(
        cls, trace: Trace, geometry: Geometry | Sequence[Geometry] | None = None, query: Query | None = None
    ) -> Layout:
        """The layout of a trace; `query` asks from one token, `None` from every patch.

        Raises:
            ProbeError: if there is not one geometry for each image, or the query is a mean.
            TraceError: if there is no such token.
        """
        batch, count = trace.tokens.shape[:2]
        if query == "mean":
            raise ProbeError("Expected one token as the query; got 'mean'. Leave it out: the patches are averaged.")
        first = len(trace.prefix) if query is None else trace.token(query)
        sides = None if geometry is None else _sides(geometry, batch, trace.grid).to(trace.tokens.device)
        return cls(first, count if query is None else first + 1, trace.prefix, trace.grid, sides)

    @property
    def placed(self) -> bool:
        """Whether the queries are patches: prefix tokens lie nowhere."""
        return self.first >= len(self.prefix)


def _sides(geometry: Geometry | Sequence[Geometry], batch: int, grid: tuple[int, int]) -> Tensor:
    """(height, width) of a patch of each image in pixels of the photograph: (B or 1, 2)."""
    each = [geometry] if isinstance(geometry, Geometry) else list(geometry)
    if len(each) not in (1, batch):
        raise ProbeError(f"Expected one geometry for each of the {batch} images or one for all, got {len(each)}.")
    frames = [one.frame for one in each]
    return torch.tensor([[(bottom - top) / grid[0], (right - left) / grid[1]] for left, top, right, bottom in frames])


def measure(kept: BlockTrace, layout: Layout) -> dict[str, Tensor]:
    """Everything that can be read from rows of attention, as means over the queries: name -> (B, H), float64.

    Holds a few pieces of `trace.CHUNK_BYTES`, whatever N is.
    """
    sums: dict[str, Tensor] = {}
    for start, stop in _within(kept, layout):
        for name, part in _measure_rows(kept.log_rows(start, stop), start, layout).items():
            total = part.sum(2).cpu().double()  # (B, H, n) -> (B, H); some devices have no float64
            sums[name] = sums[name] + total if name in sums else total
    return {name: total / (layout.last - layout.first) for name, total in sums.items()}


def _within(kept: BlockTrace, layout: Layout) -> Iterator[tuple[int, int]]:
    """The pieces of `chunks` that hold queries, cut to them."""
    for start, stop in kept.chunks():
        if start < layout.last and stop > layout.first:
            yield max(start, layout.first), min(stop, layout.last)


def _measure_rows(log: Tensor, start: int, layout: Layout) -> dict[str, Tensor]:
    """The same for the logarithms of the rows from token `start` on: (B, H, n, N) -> name -> (B, H, n)."""
    prefix, tokens = len(layout.prefix), log.shape[-1]
    rows = log.exp()
    entropy = -(rows * log).sum(-1)
    queries = torch.arange(start, start + log.shape[2], device=log.device)  # (n,)
    found = {
        "entropy": entropy,
        "entropy_share": entropy / math.log(tokens) if tokens > 1 else torch.zeros_like(entropy),
        "mass_self": rows.gather(3, queries[:, None].expand(*rows.shape[:3], 1)).squeeze(3),
    }
    cls = [index for index, name in enumerate(layout.prefix) if name == "CLS"]
    others = [index for index, name in enumerate(layout.prefix) if name != "CLS"]
    if cls:
        found["mass_cls"] = rows[..., cls].sum(-1)
    if others:
        found["mass_registers"] = rows[..., others].sum(-1)
    patches = rows[..., prefix:]  # (B, H, n, gh * gw)
    mass = patches.sum(-1)
    if not layout.placed:
        return found | {"mass_elsewhere": mass}
    near, inside = _neighbours(queries - prefix, layout.grid)  # (n, 8) each
    found["mass_neighbours"] = (patches.gather(3, near.expand(*rows.shape[:2], -1, -1)) * inside).sum(-1)
    far = mass - found["mass_self"] - found["mass_neighbours"]
    found["mass_elsewhere"] = far.clamp_min(0.0)  # rounding
    if bool((mass < FAINT).any()):  # prefix tokens took nearly all: float32 would lose the rest
        patches = log[..., prefix:].softmax(-1)
        mass = torch.ones_like(mass)
    down, across = _offsets(queries - prefix, layout.grid)  # (n, gh * gw) each, in patches
    # Divided by the mass: the row without its prefix tokens, rescaled to 1.
    found["distance"] = (patches * torch.hypot(down, across)).sum(-1) / mass
    if layout.sides is not None:
        height, width = layout.sides.to(mass)[:, :, None, None].unbind(1)  # (B or 1, 1, 1) each
        pixels = torch.hypot(down * height, across * width)  # (B or 1, n, gh * gw)
        found["distance_pixels"] = (patches * pixels[:, None]).sum(-1) / mass
    return found


def _offsets(queries: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """From each query patch (n,) to every patch, in rows and in columns: (n, gh * gw) each."""
    every = torch.arange(grid[0] * grid[1], device=queries.device)
    down = every // grid[1] - queries[:, None] // grid[1]
    across = every % grid[1] - queries[:, None] % grid[1]
    return down.float(), across.float()


def _neighbours(queries: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The 8 patches around each query patch (n,), and which of them the grid has: (n, 8) each."""
    around = torch.tensor(AROUND, device=queries.device)  # (8, 2)
    rows = queries[:, None] // grid[1] + around[:, 0]  # (n, 8)
    columns = queries[:, None] % grid[1] + around[:, 1]
    inside = (rows >= 0) & (rows < grid[0]) & (columns >= 0) & (columns < grid[1])
    return torch.where(inside, rows * grid[1] + columns, 0), inside


def effective_rank(kept: BlockTrace) -> Tensor:
    """Effective rank of each head's attention matrix over all tokens: (B, H), float64, 1..N.

    The exponential of the entropy of the singular values, scaled to sum to 1 (Roy and Vetterli 2007, "The effective
    rank: a measure of effective dimensionality"). This one needs the whole matrix: one (N, N) at a time, O(N³).
    """
    batch, heads, tokens, _ = kept.queries.shape
    found = torch.empty(batch, heads, dtype=torch.float64)
    for image in range(batch):
        one = kept.image(image)
        for head in range(heads):
            values = torch.linalg.svdvals(_matrix(one, head, tokens)).cpu().double()  # (N,)
            share = values / values.sum()
            found[image, head] = torch.special.entr(share).sum().exp()  # entr(p) = -p log p, and 0 at 0
    return found


def _matrix(kept: BlockTrace, head: int, tokens: int) -> Tensor:
    """The attention of one head of one image: (N, N)."""
    if kept.probabilities is not None:
        return kept.probabilities[0, head].float()
    one = slice(head, head + 1)
    return BlockTrace(kept.queries[:, one], kept.keys[:, one], kept.lse[:, one]).rows(0, tokens)[0, 0]
