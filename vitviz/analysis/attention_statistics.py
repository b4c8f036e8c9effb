"""Compute statistics of one block's attention per head, in chunks of its N x N matrix.

Shapes: B images, H heads, N tokens = P prefix tokens followed by gh x gw patches; n queries per chunk.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from vitviz.analysis import AnalysisError
from vitviz.analysis.statistic import Statistic
from vitviz.images.geometry import Geometry
from vitviz.model.trace import AttentionTrace, BlockTrace, Query
from vitviz.phrases import Phrase

RANK_TOKENS = 600  # maximum N for the effective rank, because its singular values take O(N³) time


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
        cls,
        trace: AttentionTrace,
        geometry: Geometry | Sequence[Geometry] | None = None,
        query: Query | None = None,
        block: int = -1,
    ) -> "QueryRange":
        """Return the range of one token in each matrix of a block, or of all patches for `query=None`.

        Raises:
            AnalysisError: unless there is one geometry for each image, or if the query is a mean.
            TraceError: if the token does not exist.
        """
        batch, prefix, grid = trace.batch, len(trace.prefix), trace.matrix_grid(block)
        if query == "mean":
            raise AnalysisError("Expected one token as the query, got 'mean'. Omit it to average over patches.")
        token = None if query is None else trace.token(query, block)
        token = None if token is None else trace.place_of(block, token)[1]
        first = prefix if token is None else token
        pixels = None
        if geometry is not None:
            frames = [photo.frame for photo in ([geometry] if isinstance(geometry, Geometry) else geometry)]
            if len(frames) not in (1, batch):
                raise AnalysisError(
                    f"Expected one geometry for each of the {batch} images, got {len(frames)}. Give one for all images."
                )
            extents = torch.tensor([[bottom - top, right - left] for left, top, right, bottom in frames])
            places = torch.tensor(trace.grid_in(block)) / torch.tensor(trace.matrix_spacing(block))
            pixels = (extents / places).to(trace.device)
            if len(pixels) > 1:  # one for each matrix
                pixels = pixels.repeat_interleave(len(trace.block(block).lse) // batch, dim=0)
        return cls(first, prefix + grid[0] * grid[1] if token is None else first + 1, trace.prefix, grid, pixels)

    @property
    def are_patches(self) -> bool:
        """Return whether the queries are patches; prefix tokens have no position in the image."""
        return self.first >= len(self.prefix)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of attention of one block, with quantities that several statistics share.

    Args:
        log: log-attention (B, H, n, N) of the tokens from `start` on.
        start: the first of the n queries.
        queries: the queries of these rows.
    """

    log: Tensor
    start: int
    queries: QueryRange

    @cached_property
    def attention(self) -> Tensor:
        """Return probabilities: (B, H, n, N)."""
        return self.log.exp()

    @cached_property
    def entropy(self) -> Tensor:
        """Return the entropy of each row: (B, H, n)."""
        return -(self.attention * self.log).sum(-1)

    @cached_property
    def own(self) -> Tensor:
        """Return the indices of the queries among all tokens: (n,)."""
        return torch.arange(self.start, self.start + self.log.shape[2], device=self.log.device)

    @cached_property
    def on_self(self) -> Tensor:
        """Return the attention of each query to itself: (B, H, n)."""
        return self.attention.gather(3, self.own[:, None].expand(*self.log.shape[:3], 1)).squeeze(3)

    @cached_property
    def patches(self) -> Tensor:
        """Return the attention on patches: (B, H, n, gh * gw)."""
        return self.attention[..., len(self.queries.prefix) :]

    @cached_property
    def among_patches(self) -> Tensor:
        """Return the rows without their prefix tokens, rescaled to sum to 1: (B, H, n, gh * gw).

        Computed from log-probabilities: if prefix tokens receive nearly all the attention, the probabilities of patches
        underflow in float32.
        """
        return self.log[..., len(self.queries.prefix) :].softmax(-1)

    @cached_property
    def offsets(self) -> tuple[Tensor, Tensor]:
        """Return rows down and columns across from each query patch to every patch: (n, gh * gw) each, in patches."""
        columns, prefix = self.queries.grid[1], len(self.queries.prefix)
        keys, query_patches = torch.arange(self.log.shape[3] - prefix, device=self.own.device), self.own - prefix
        down = keys // columns - query_patches[:, None] // columns
        across = keys % columns - query_patches[:, None] % columns
        return down.float(), across.float()

    @cached_property
    def on_neighbors(self) -> Tensor:
        """Return the attention on the 8 patches around each query patch: (B, H, n)."""
        down, across = self.offsets
        return (self.patches * (torch.maximum(down.abs(), across.abs()) == 1)).sum(-1)

    @property
    def placeless(self) -> str:
        """Return the reason why the queries have no neighbours; empty for patches."""
        queries = self.queries
        text = "{0} has no position in the image"
        return "" if queries.are_patches else Phrase("no-position-in-the-image", text, queries.prefix[queries.first])


Measure = Callable[[Rows], Tensor | str]
"""Function that computes a statistic of rows: (B, H, n), or returns the reason why it is missing."""


def row_statistics(
    block_trace: BlockTrace, queries: QueryRange, measures: Mapping[str, Measure]
) -> dict[str, Tensor | str]:
    """Return statistics of attention rows as means over the queries.

    Each is (B, H) in float64, or the reason why it is missing.

    The memory is a few chunks of `trace.chunk_bytes` for any N.
    """
    sums: dict[str, Tensor | str] = {}
    for start, stop in block_trace.chunks() if measures else ():
        start, stop = max(start, queries.first), min(stop, queries.last)
        if start >= stop:
            continue
        rows = Rows(block_trace.log_rows(start, stop), start, queries)
        for name, measure in measures.items():
            values, before = measure(rows), sums.get(name)
            if not isinstance(values, str):  # (B, H, n) -> (B, H); some devices have no float64
                values = values.sum(2).cpu().double() + (before if isinstance(before, Tensor) else 0)
            sums[name] = values
    count = queries.last - queries.first
    return {name: total if isinstance(total, str) else total / count for name, total in sums.items()}


def distance(rows: Rows) -> Tensor | str:
    """Return the mean distance from the query to patches, in patches."""
    return rows.placeless or (rows.among_patches * _length(*rows.offsets)).sum(-1)


def distance_pixels(rows: Rows) -> Tensor | str:
    """Return the mean distance from the query to patches, in pixels of the photograph."""
    if rows.placeless or rows.queries.patch_pixels is None:
        return rows.placeless or "no geometry was given, so the photograph's pixels are not known"
    height, width = rows.queries.patch_pixels.to(rows.log)[:, :, None, None].unbind(1)  # (B or 1, 1, 1) each
    down, across = rows.offsets
    pixels = _length(down * height, across * width)  # (B or 1, n, gh * gw)
    return (rows.among_patches * pixels[:, None]).sum(-1)


def _length(down: Tensor, across: Tensor) -> Tensor:
    """Return distances; without `torch.hypot`, which ONNX does not have."""
    return (down.square() + across.square()).sqrt()


def entropy(rows: Rows) -> Tensor:
    """Return the entropy, in nats."""
    return rows.entropy


def entropy_share(rows: Rows) -> Tensor:
    """Return the entropy as a share of its maximum."""
    tokens = rows.log.shape[-1]
    # As a tensor, whose logarithm a graph for any number of tokens contains.
    return rows.entropy / torch.full_like(rows.log[0, 0, 0, 0], tokens).log() if tokens > 1 else rows.entropy


def mass_cls(rows: Rows) -> Tensor | str:
    """Return the share on the class token."""
    places = [index for index, name in enumerate(rows.queries.prefix) if name == "CLS"]
    return rows.attention[..., places].sum(-1) if places else "this model has no class token"


def mass_registers(rows: Rows) -> Tensor | str:
    """Return the share on all other prefix tokens."""
    places = [index for index, name in enumerate(rows.queries.prefix) if name != "CLS"]
    return rows.attention[..., places].sum(-1) if places else "this model has no registers"


def mass_self(rows: Rows) -> Tensor:
    """Return the share on the query itself."""
    return rows.on_self


def mass_neighbors(rows: Rows) -> Tensor | str:
    """Return the share on the patches around the query."""
    return rows.placeless or rows.on_neighbors


def mass_elsewhere(rows: Rows) -> Tensor:
    """Return the share on patches that are neither the query nor around it."""
    everywhere = rows.patches.sum(-1)
    if rows.placeless:
        return everywhere
    return (everywhere - rows.on_self - rows.on_neighbors).clamp_min(0.0)  # rounding


def effective_rank(block_trace: BlockTrace) -> Tensor | str:
    """Return the effective rank of each head's attention matrix over all tokens: (B, H), float64, 1..N.

    The exponential of the entropy of the singular values, scaled to sum to 1 (Roy and Vetterli 2007, "The effective
    rank: a measure of effective dimensionality"). It needs (H, N, N) of an image and O(H N³) time.
    """
    tokens, ranks = block_trace.queries.shape[2], []
    if tokens > RANK_TOKENS:
        text = "{0} tokens exceed the limit of {1} for its O(N³) time"
        return Phrase("too-many-tokens-for-the-rank", text, f"{tokens:,}", RANK_TOKENS)
    for index in range(len(block_trace.queries)):
        attention = block_trace.image(index).rows(0, tokens)[0]  # (H, N, N)
        values = torch.linalg.svdvals(attention).cpu().double()  # (H, N)
        share = values / values.sum(1, keepdim=True)
        ranks.append(torch.special.entr(share).sum(1).exp())  # entr(p) = -p log p, and 0 at 0
    return torch.stack(ranks)


STATISTICS = (
    Statistic(
        distance, "Attention distance", "patches",
        "Mean distance from a patch to the patches it attends to, weighted by attention. Prefix tokens are excluded as "
        "queries and keys, and the rest of the row is rescaled to 1 (Dosovitskiy et al. 2021, figure 7).", 0.0,
    ),
    Statistic(
        distance_pixels, "Attention distance", "px",
        "The same in pixels of the photograph, in which patches may not be square.", 0.0,
    ),
    Statistic(
        entropy, "Attention entropy", "nats",
        "Spread of attention over all tokens: 0 for a single token, ln N for N equal shares.", 0.0,
    ),
    Statistic(
        entropy_share, "Attention entropy, relative", "",
        "The entropy divided by ln N: 1 for equal shares on all tokens.", 0.0, 1.0,
    ),
    Statistic(
        mass_cls, "On CLS", "", "Share of the attention that goes to CLS.", 0.0, 1.0,
    ),
    Statistic(
        mass_registers, "On registers", "",
        "Share on all other prefix tokens: registers and the distillation token.", 0.0, 1.0,
    ),
    Statistic(mass_self, "On itself", "", "Share that stays on the token itself.", 0.0, 1.0),
    Statistic(
        mass_neighbors, "On neighbours", "",
        "Share on the 8 patches around the query patch (fewer at the border).", 0.0, 1.0,
    ),
    Statistic(
        mass_elsewhere, "On other patches", "",
        "Share on all patches except the query and its neighbours. From a patch, the shares on the class token, "
        "registers, itself, neighbours and other patches add up to 1. From a prefix token, the share on itself is also "
        "counted as class token or registers.", 0.0, 1.0,
    ),
    Statistic(
        effective_rank, "Effective rank", "",
        "Effective number of dimensions of the N × N attention matrix: the exponential of the entropy of its singular "
        "values (Roy and Vetterli 2007). 1 if all rows are equal, N if each token attends to a different one. It does "
        "not depend on the query.", 1.0, None, "matrix", "it needs a singular value decomposition",
    ),
)  # fmt: skip
