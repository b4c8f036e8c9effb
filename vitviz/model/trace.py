"""Hold what one forward pass of a Vision Transformer computed, and answer questions about its attention.

A `Trace` keeps what enters each block and the log-sum-exp of every attention row: memory grows with the number of
tokens N, not with N². Queries and keys are computed from it again on demand (and kept while they are small), rows of
probabilities from those: A = softmax(q @ k.T). A single column is exp(q @ k.T - lse), which needs no rows.

Shapes: B images, L blocks, H heads, N tokens = P prefix tokens (CLS, distillation, registers) followed by gh x gw
patches, n rows, D width, d head width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from vitviz.errors import VitvizError
from vitviz.fields import matches_type
from vitviz.formatting import short_repr
from vitviz.model.positions import Angles

# The largest part of an N x N matrix that is held at once while rows are summed, in bytes: what a core's cache holds,
# because the sums read each part three times (4 MB take 0.6 of the time of 64 MB at 4,097 tokens on a CPU).
CHUNK_BYTES = 4 * 2**20

# From here on the fused kernel computes weighted sums of rows on the CPU: chunks have too few rows to be fast.
MANY_TOKENS = 6_000

# Queries and keys of all kept blocks together stay in memory up to so many bytes: of ViT-B up to 1,820 tokens.
# Above, each question computes those of its block again, a hundredth of the work of the forward pass.
KEEP_BYTES = 128 * 2**20

Query = str | int | tuple[int, int]
"""A token: "cls" or another prefix token's name, "mean" over the patches, a patch (row, column), or an index."""


def keeps_queries(nbytes: int) -> bool:
    """Say whether a trace keeps queries and keys that take so many bytes in all blocks together."""
    return nbytes <= KEEP_BYTES


class TraceError(VitvizError):
    """Question that this trace cannot answer."""


@dataclass(frozen=True, eq=False)
class BlockTrace:
    """Attention of one block.

    Args:
        queries: (B, H, N, d), with the scale (and the norm or rotation of the model): logits are `queries @ keys.T`.
        keys: (B, H, N, d).
        lse: (B, H, N), log-sum-exp of each row of logits, float32; float64 of a model in float64.
        probabilities: (B, H, N, N), only in a trace with `grad=True`, where gradients flow through it, and where edges
            were cut.
        cut: whether edges were cut, which queries and keys do not show.
    """

    queries: Tensor
    keys: Tensor
    lse: Tensor
    probabilities: Tensor | None = None
    cut: bool = False

    __repr__ = short_repr

    def image(self, index: int) -> BlockTrace:
        """Return one image of the batch, as a batch of one (views, not copies)."""
        one = slice(index, index + 1)
        probabilities = None if self.probabilities is None else self.probabilities[one]
        return BlockTrace(self.queries[one], self.keys[one], self.lse[one], probabilities, self.cut)

    @property
    def nbytes(self) -> int:
        """Return the bytes that this holds."""
        held = (self.queries, self.keys, self.lse, self.probabilities)
        return sum(tensor.nbytes for tensor in held if tensor is not None)

    def log_rows(self, start: int, stop: int) -> Tensor:
        """Return the logarithm of rows start..stop-1 of the attention: (B, H, n, N), float32, all finite.

        A cut edge, whose attention is 0, has the logarithm of the smallest float32.
        """
        if self.cut:
            return self.rows(start, stop).clamp_min(torch.finfo(torch.float32).tiny).log()
        return self.logits(start, stop).log_softmax(-1).float()

    def rows(self, start: int, stop: int) -> Tensor:
        """Return rows start..stop-1 of the attention: (B, H, n, N), float32, each sums to 1."""
        if self.probabilities is not None:
            return self.probabilities[:, :, start:stop].float()
        return self.logits(start, stop).softmax(-1).float()

    def logits(self, start: int, stop: int) -> Tensor:
        """Return rows start..stop-1 of `queries @ keys.T`: (B, H, n, N), float32, or float64 of a model in float64."""
        with self._exact():
            return self._wide(self.queries[:, :, start:stop]) @ self._wide(self.keys).mT  # (B, H, n, d) @ (B, H, d, N)

    def column(self, key: int) -> Tensor:
        """Return how strongly every token attends to token `key`: (B, H, N), float32. It does not sum to 1.

        The numbers are those of `rows` up to the rounding of `lse`: 1e-4 of a probability in float32 and below.
        """
        if self.probabilities is not None:
            return self.probabilities[:, :, :, key].float()
        one = self._wide(self.keys[:, :, key, :, None])  # (B, H, d, 1)
        with self._exact():
            logits = (self._wide(self.queries) @ one).squeeze(-1)  # (B, H, N, d) @ (B, H, d, 1) -> (B, H, N)
        return logits.sub_(self.lse).exp_().float()

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Yield row ranges (start, stop) of which (B, H, n, N) takes no more than `CHUNK_BYTES`."""
        batch, heads, tokens, _ = self.queries.shape
        step = max(1, CHUNK_BYTES // (4 * batch * heads * tokens))
        for start in range(0, tokens, step):
            yield start, min(start + step, tokens)

    def propagate(self, weights: Tensor) -> Tensor:
        """Return the weighted sum of attention rows without holding A: weights (B, N) @ A -> (B, H, N), float32."""
        if self.lse.device.type == "cpu" and self.probabilities is None and weights.shape[1] > MANY_TOKENS:
            return self._propagate_fused(weights)
        total = torch.zeros(self.lse.shape, dtype=torch.float32, device=self.lse.device)
        for start, stop in self.chunks():
            some = weights[:, None, None, start:stop].float()  # (B, 1, 1, n)
            with self._exact():
                total += (some @ self.rows(start, stop)).squeeze(2)  # (B, 1, 1, n) @ (B, H, n, N) -> (B, H, N)
        return total

    def _propagate_fused(self, weights: Tensor) -> Tensor:
        """Compute `propagate` by the fused kernel, queries and keys exchanged: half the time at 21,000 tokens.

        sum_n w_n exp(q_n . k_m - lse_n) is the exponential of a log-sum-exp over n of k_m . q_n + (log w_n - lse_n):
        what the kernel computes for a "query" k_m over "keys" q_n, beside values that are not used. The sum in brackets
        is one more channel, against ones; as a mask the kernel would write it out for every pair.
        """
        tiny = torch.finfo(torch.float32).tiny  # a weight of zero would be minus infinity everywhere, if all were zero
        shift = weights.float().clamp_min(tiny).log()[:, None] - self.lse.float()  # (B, H, N)
        keys = torch.cat([self.keys.float(), torch.ones_like(shift)[..., None]], dim=-1)  # (B, H, N, d + 1)
        queries = torch.cat([self.queries.float(), shift[..., None]], dim=-1)
        _, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(keys, queries, queries, scale=1.0)
        return cast(Tensor, sums).exp()  # (B, H, N)

    def _wide(self, tensor: Tensor) -> Tensor:
        """Return a tensor in float32, or as it is in float64."""
        return tensor if tensor.dtype == torch.float64 else tensor.float()

    def _exact(self) -> AbstractContextManager[Any]:
        """Switch autocast off: float32 stays float32."""
        kind = self.lse.device.type
        return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


@dataclass(frozen=True, eq=False)
class Kept:
    """State of one block that a trace keeps: enough to compute its attention again.

    Args:
        stream: (B, N, D), what entered the block.
        lse: (B, H, N), log-sum-exp of each row of logits, as in `BlockTrace`.
        project: (stream, angles) -> queries and keys, (B, H, N, d) each, as the block computed them.
        angles: rotations of the patches.
        attention: the computed attention, where it is small enough to keep or part of a graph.
    """

    stream: Tensor
    lse: Tensor
    project: Callable[[Tensor, Angles | None], tuple[Tensor, Tensor]]
    angles: Angles | None = None
    attention: BlockTrace | None = None

    __repr__ = short_repr

    def open(self) -> BlockTrace:
        """Return the attention of this block."""
        return self.attention or BlockTrace(*self.project(self.stream, self.angles), self.lse)

    def image(self, index: int) -> Kept:
        """Return one image of the batch, as a batch of one (views, not copies)."""
        one, angles = slice(index, index + 1), self.angles
        if angles is not None and angles[0].ndim == 4:  # each image has patches, and rotations, of its own
            angles = angles[0][one], angles[1][one]
        attention = self.attention and self.attention.image(index)
        return Kept(self.stream[one], self.lse[one], self.project, angles, attention)

    @property
    def nbytes(self) -> int:
        """Return the bytes that this holds."""
        return self.stream.nbytes + (self.lse.nbytes if self.attention is None else self.attention.nbytes)


@dataclass(frozen=True, eq=False)
class Trace:
    """One forward pass of a model, kept for questions about its attention.

    Where queries and keys were too large to keep they are computed again from the model's weights: questions after the
    weights were changed are refused.

    Args:
        logits: (B, C), what `model(images)` returns; `None` when the model has no classifier.
        tokens: (B, N, D), the tokens after the final norm.
        grid: (gh, gw), rows and columns of patches.
        prefix: names of the P tokens in front of the patches, e.g. `("CLS", "register 1")`.
        blocks: which blocks of the model were kept, counted from 0.
        kept: what was kept of each of `blocks`.
        depth: L, how many blocks the model has.
    """

    logits: Tensor | None
    tokens: Tensor
    grid: tuple[int, int]
    prefix: tuple[str, ...]
    blocks: tuple[int, ...]
    kept: tuple[Kept, ...]
    depth: int

    def __repr__(self) -> str:
        batch, tokens, width = self.tokens.shape
        rows, columns = self.grid
        return (
            f"<Trace of {batch} image{'s' if batch > 1 else ''}: {len(self.blocks)} of {self.depth} blocks, "
            f"{self.heads} heads, {tokens:,} tokens ({len(self.prefix)} + {rows} x {columns}) of width {width}, "
            f"{self.nbytes / 1e6:.1f} MB>"
        )

    @property
    def heads(self) -> int:
        """Return H, the number of heads of each block."""
        return self.kept[0].lse.shape[1]

    @property
    def head_width(self) -> int:
        """Return d, the width of each head."""
        return self.block(self.blocks[0]).queries.shape[-1]

    @property
    def nbytes(self) -> int:
        """Return the bytes that this holds."""
        return self.tokens.nbytes + sum(kept.nbytes for kept in self.kept)

    @property
    def attentions(self) -> Attentions:
        """Return the probabilities (B, H, N, N) of every kept block, each computed when it is indexed."""
        return Attentions(self)

    @property
    def default_query(self) -> Query:
        """Return "cls" where the model has a class token, else "mean"."""
        return "cls" if "CLS" in self.prefix else "mean"

    def block(self, block: int) -> BlockTrace:
        """Return the attention of a block, counted from 0, or from the last block of the model by negative numbers.

        For several questions about one block call this once: queries and keys of a large input are computed each time.

        Raises:
            TraceError: if the model has no such block, it was not kept, or the model's weights have changed since.
        """
        return self._kept(block).open()

    def stream(self, block: int) -> Tensor:
        """Return what entered a block, the residual stream (B, N, D); blocks are counted as in `block`."""
        return self._kept(block).stream

    def _kept(self, block: int) -> Kept:
        index = block + self.depth if block < 0 else block
        if index not in self.blocks:
            raise TraceError(
                f"Expected one of the blocks {list(self.blocks)} (counted from 0), got {block}. "
                "Choose one of them, or call trace(images, blocks=[...]) with the one you need."
            )
        return self.kept[self.blocks.index(index)]

    def attention(self, block: int) -> Tensor:
        """Return all attention of a block: (B, H, N, N), float32, rows sum to 1."""
        kept = self.block(block)
        return kept.rows(0, kept.queries.shape[2])

    def row(self, block: int, query: Query = "cls") -> Tensor:
        """Return what `query` attends to in `block`: (B, H, N), sums to 1; "mean" averages over the patches."""
        kept = self.block(block)
        if query == "mean":
            return kept.propagate(self.weights(query))
        token = self.token(query)
        return kept.rows(token, token + 1).squeeze(2)

    def column(self, block: int, key: Query = "cls") -> Tensor:
        """Return how strongly each token attends to `key` in `block`: (B, H, N); "mean" averages over the patches."""
        kept = self.block(block)
        if key == "mean":
            # Mean over the patch keys, row by row: chunks of (B, H, n, N).
            parts = [kept.rows(start, stop)[..., len(self.prefix) :].mean(-1) for start, stop in kept.chunks()]
            return torch.cat(parts, dim=2)
        return kept.column(self.token(key))

    def token(self, query: Query) -> int:
        """Return the index, 0..N-1, of a token named as "cls", another prefix token, a patch (row, column) or an index.

        Raises:
            TraceError: if there is no such token.
        """
        rows, columns = self.grid
        count = len(self.prefix) + rows * columns
        names = [name.lower() for name in self.prefix]
        if isinstance(query, str) and query.lower() in names:
            return names.index(query.lower())
        if (
            isinstance(query, tuple)
            and matches_type(query, tuple[int, int])
            and 0 <= query[0] < rows
            and 0 <= query[1] < columns
        ):
            return len(names) + query[0] * columns + query[1]
        if isinstance(query, int) and 0 <= query < count:
            return query
        known = ", ".join(map(repr, names)) or "no named tokens (this model has no CLS)"
        raise TraceError(
            f"Expected a query among {known}, 'mean', a patch (row, column) inside the {rows} x {columns} grid "
            f"or a token index below {count}, got {query!r}. Choose one of them."
        )

    def weights(self, query: Query) -> Tensor:
        """Return a query as weights over tokens, (B, N), summing to 1: one token, or the mean over all patches."""
        weights = torch.zeros(self.tokens.shape[:2], device=self.tokens.device)
        if query == "mean":
            weights[:, len(self.prefix) :] = 1.0 / (self.grid[0] * self.grid[1])
        else:
            weights[:, self.token(query)] = 1.0
        return weights

    def image(self, index: int) -> Trace:
        """Return the trace of one image of the batch, counted from 0, as a batch of one (views, not copies).

        Raises:
            TraceError: if the batch has no such image.
        """
        if not 0 <= index < len(self.tokens):  # a slice would be empty
            last = len(self.tokens) - 1
            raise TraceError(f"Expected an image among 0..{last} of the batch, got {index}. Choose one of them.")
        one = slice(index, index + 1)
        kept = tuple(block.image(index) for block in self.kept)
        logits = None if self.logits is None else self.logits[one]
        return Trace(logits, self.tokens[one], self.grid, self.prefix, self.blocks, kept, self.depth)


class Attentions(Sequence[Tensor]):
    """Sequence of the probabilities (B, H, N, N) of all kept blocks that holds none of them."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def __len__(self) -> int:
        return len(self._trace.blocks)

    def __repr__(self) -> str:
        return f"<Attentions of {self._trace!r}: index a block for its (B, H, N, N)>"

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        kept = self._trace.kept[index].open()
        return kept.rows(0, kept.queries.shape[2]) if kept.probabilities is None else kept.probabilities
