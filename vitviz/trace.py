"""What one forward pass of a Vision Transformer leaves behind.

A `Trace` keeps what enters each block and the log-sum-exp of every attention row: memory grows with the number of
tokens N, not with N². Queries and keys are made from it again when somebody asks (and kept while they are small), the
probabilities from those: A = exp(q @ k.T - lse).

Shapes in this file: B images, L blocks, H heads, N tokens = P prefix tokens (CLS, distillation, registers) followed
by gh x gw patches, D width, d head width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, cast, overload

import torch
from torch import Tensor

# The largest piece of an N x N matrix that is held at once while rows are summed, in bytes: what a core's cache holds,
# because the sums read each piece three times (4 MB take 0.6 of the time of 64 MB at 4,097 tokens on a CPU).
CHUNK_BYTES = 4 * 2**20

# From here on a weighted sum of rows on the CPU is left to the fused kernel: the pieces have too few rows to be fast.
MANY_TOKENS = 6_000

# Queries and keys of all kept blocks together stay in memory up to so many bytes: of ViT-B up to 1,820 tokens.
# Above, each question makes those of its block again, a hundredth of the work of the forward pass.
KEEP_BYTES = 128 * 2**20

Query = str | int | tuple[int, int]


def stays(nbytes: int) -> bool:
    """Whether a trace keeps queries and keys of so many bytes, all blocks together."""
    return nbytes <= KEEP_BYTES


class TraceError(ValueError):
    """A question that this trace cannot answer; the text says which ones it can."""


@dataclass(frozen=True, eq=False)
class BlockTrace:
    """The attention of one block, ready for questions.

    `queries` (B, H, N, d) carry the scale (and whatever norm or rotation the model applies), so that the logits are
    `queries @ keys.T`; `keys` (B, H, N, d); `lse` (B, H, N) is the log-sum-exp of each row of logits, in float32.
    `probabilities` (B, H, N, N) is there only when the trace was taken with `grad=True`: then it is the tensor that
    the output was computed from, and gradients flow through it.
    """

    queries: Tensor
    keys: Tensor
    lse: Tensor
    probabilities: Tensor | None = None

    def image(self, index: int) -> BlockTrace:
        """One image of the batch, as a batch of one (views, not copies)."""
        one = slice(index, index + 1)
        kept = None if self.probabilities is None else self.probabilities[one]
        return BlockTrace(self.queries[one], self.keys[one], self.lse[one], kept)

    @property
    def nbytes(self) -> int:
        """Memory that this holds, in bytes."""
        held = (self.queries, self.keys, self.lse, self.probabilities)
        return sum(tensor.nbytes for tensor in held if tensor is not None)

    def log_rows(self, start: int, stop: int) -> Tensor:
        """Logarithm of the attention of the tokens start..stop-1: (B, H, stop - start, N), float32, all finite."""
        with self._exact():
            logits = self.queries[:, :, start:stop].float() @ self.keys.float().mT  # (B, H, n, d) @ (B, H, d, N)
        return logits.sub_(self.lse[:, :, start:stop, None])

    def rows(self, start: int, stop: int) -> Tensor:
        """Attention of the tokens start..stop-1 over all tokens: (B, H, stop - start, N), float32, rows sum to 1."""
        if self.probabilities is not None:
            return self.probabilities[:, :, start:stop].float()
        return self.log_rows(start, stop).exp_()

    def column(self, key: int) -> Tensor:
        """How strongly every token attends to token `key`: (B, H, N), float32. It does not sum to 1."""
        if self.probabilities is not None:
            return self.probabilities[:, :, :, key].float()
        one = self.keys[:, :, key, :, None].float()  # (B, H, d, 1)
        with self._exact():
            logits = (self.queries.float() @ one).squeeze(-1)  # (B, H, N, d) @ (B, H, d, 1) -> (B, H, N)
        return logits.sub_(self.lse).exp_()

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Row ranges (start, stop) that keep a (B, H, n, N) piece under `CHUNK_BYTES`."""
        batch, heads, tokens, _ = self.queries.shape
        step = max(1, CHUNK_BYTES // (4 * batch * heads * tokens))
        for start in range(0, tokens, step):
            yield start, min(start + step, tokens)

    def propagate(self, weights: Tensor) -> Tensor:
        """Weighted sum of attention rows, `weights @ A` for each head, without holding A.

        Args:
            weights: (B, N), how much of each row to take.

        Returns:
            (B, H, N), float32.
        """
        if self.lse.device.type == "cpu" and self.probabilities is None and weights.shape[1] > MANY_TOKENS:
            return self._propagate_fused(weights)
        total = torch.zeros(self.lse.shape, dtype=torch.float32, device=self.lse.device)
        for start, stop in self.chunks():
            some = weights[:, None, None, start:stop].float()  # (B, 1, 1, n)
            with self._exact():
                total += (some @ self.rows(start, stop)).squeeze(2)  # (B, 1, 1, n) @ (B, H, n, N) -> (B, H, N)
        return total

    def _propagate_fused(self, weights: Tensor) -> Tensor:
        """The same by the fused kernel, with queries and keys exchanged: half the time at 21,000 tokens.

        sum_n w_n exp(q_n . k_m - lse_n) is the exponential of a log-sum-exp over n of k_m . q_n + (log w_n - lse_n):
        what the kernel computes for a "query" k_m over "keys" q_n, beside values that nobody needs. The sum in brackets
        is one more channel, against ones; as a mask the kernel would write it out for every pair.
        """
        tiny = torch.finfo(torch.float32).tiny  # a weight of zero would be minus infinity everywhere, if all were zero
        shift = weights.float().clamp_min(tiny).log()[:, None] - self.lse  # (B, H, N)
        keys = torch.cat([self.keys.float(), torch.ones_like(shift)[..., None]], dim=-1)  # (B, H, N, d + 1)
        queries = torch.cat([self.queries.float(), shift[..., None]], dim=-1)
        _, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(keys, queries, queries, scale=1.0)
        return cast(Tensor, sums).exp()  # (B, H, N)

    def _exact(self) -> AbstractContextManager[Any]:
        """Float32 stays float32, also for who asks under autocast."""
        kind = self.lse.device.type
        return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


class Projection(Protocol):
    """Makes queries and keys (B, H, N, d) of what entered a block (B, N, D), as the block did."""

    def __call__(self, stream: Tensor, /) -> tuple[Tensor, Tensor]:
        """(B, N, D) -> queries, keys."""

    def image(self, index: int) -> Projection:
        """The same for one image of the batch, as a batch of one."""


@dataclass(frozen=True, eq=False)
class Kept:
    """What a trace keeps of one block: enough to make its attention again.

    `stream` (B, N, D) is what entered the block; `lse` (B, H, N) the log-sum-exp of each row of logits, in float32;
    `project` makes queries and keys (B, H, N, d) of the stream, as the block did. `made` holds what it made, where that
    was small enough to keep or is part of a graph.
    """

    stream: Tensor
    lse: Tensor
    project: Projection
    made: BlockTrace | None = None

    def open(self) -> BlockTrace:
        """The attention of this block, ready for questions."""
        return self.made or BlockTrace(*self.project(self.stream), self.lse)

    def image(self, index: int) -> Kept:
        """One image of the batch, as a batch of one (views, not copies)."""
        one = slice(index, index + 1)
        return Kept(self.stream[one], self.lse[one], self.project.image(index), self.made and self.made.image(index))

    @property
    def nbytes(self) -> int:
        """Memory that this holds, in bytes."""
        return self.stream.nbytes + (self.lse.nbytes if self.made is None else self.made.nbytes)


@dataclass(frozen=True, eq=False)
class Trace:
    """One forward pass, kept for questions.

    Args:
        logits: (B, C), what `model(images)` returns; `None` when the model has no classifier.
        tokens: (B, N, D), the tokens after the final norm.
        grid: (gh, gw), rows and columns of patches.
        prefix: names of the P tokens in front of the patches, e.g. `("CLS", "register 1")`.
        blocks: which blocks of the model were kept, counted from 0.
        kept: what was kept of each of `blocks`.
        depth: L, how many blocks the model has.

    The blocks that were not small enough to keep their queries and keys make them again from the model's weights: a
    question after the weights were changed is refused.
    """

    logits: Tensor | None
    tokens: Tensor
    grid: tuple[int, int]
    prefix: tuple[str, ...]
    blocks: tuple[int, ...]
    kept: tuple[Kept, ...]
    depth: int

    @property
    def heads(self) -> int:
        """H, heads of each block."""
        return self.kept[0].lse.shape[1]

    @property
    def head_width(self) -> int:
        """d, width of each head."""
        return self.block(self.blocks[0]).queries.shape[-1]

    @property
    def nbytes(self) -> int:
        """Memory that this holds, in bytes."""
        return self.tokens.nbytes + sum(kept.nbytes for kept in self.kept)

    @property
    def attentions(self) -> Attentions:
        """For every kept block the probabilities (B, H, N, N), rows summing to 1; built one at a time when indexed."""
        return Attentions(self)

    def block(self, block: int) -> BlockTrace:
        """The attention of a block, ready for questions; negative numbers count from the last block of the model.

        For several questions about one block ask for it once: queries and keys of a large input are made each time.

        Raises:
            TraceError: if the model has no such block, it was not kept, or the model's weights have changed since.
        """
        return self._kept(block).open()

    def stream(self, block: int) -> Tensor:
        """What entered a block: (B, N, D), the sum of all that the blocks before it added. Counted as in `block`."""
        return self._kept(block).stream

    def _kept(self, block: int) -> Kept:
        index = block + self.depth if block < 0 else block
        if index not in self.blocks:
            raise TraceError(
                f"Expected one of the blocks {list(self.blocks)} (counted from 0), got {block}. "
                "Choose one of them, or take the trace again with blocks=[...] naming the one you need."
            )
        return self.kept[self.blocks.index(index)]

    def attention(self, block: int) -> Tensor:
        """All attention of a block: (B, H, N, N), float32, rows sum to 1."""
        kept = self.block(block)
        return kept.rows(0, kept.queries.shape[2])

    def row(self, block: int, query: Query = "cls") -> Tensor:
        """What `query` attends to in `block`: (B, H, N), sums to 1. `query="mean"` averages over the patches."""
        kept = self.block(block)
        weights = self.weights(query)  # (B, N)
        chosen = weights[0].nonzero().flatten()
        if len(chosen) == 1:
            index = int(chosen)
            return kept.rows(index, index + 1).squeeze(2)
        return kept.propagate(weights)

    def column(self, block: int, key: Query = "cls") -> Tensor:
        """How strongly each token attends to `key` in `block`: (B, H, N). `key="mean"` averages over the patches."""
        kept = self.block(block)
        if key == "mean":
            # Mean over the patch keys, row by row: chunks of (B, H, n, N).
            parts = [kept.rows(start, stop)[..., len(self.prefix) :].mean(-1) for start, stop in kept.chunks()]
            return torch.cat(parts, dim=2)
        return kept.column(self.token(key))

    def token(self, query: Query) -> int:
        """The index in 0..N-1 of a token given as `"cls"`, a prefix token's name, a patch (row, column) or an index.

        Raises:
            TraceError: if there is no such token; the text names those there are.
        """
        rows, columns = self.grid
        count = len(self.prefix) + rows * columns
        if isinstance(query, str):
            names = [name.lower() for name in self.prefix]
            if query.lower() in names:
                return names.index(query.lower())
        elif isinstance(query, tuple):
            if len(query) == 2 and 0 <= query[0] < rows and 0 <= query[1] < columns:
                return len(self.prefix) + query[0] * columns + query[1]
        elif isinstance(query, int) and 0 <= query < count:
            return query
        named = ", ".join(repr(name.lower()) for name in self.prefix) or "no named tokens (this model has no CLS)"
        raise TraceError(
            f"Expected a query among {named}, 'mean', a patch (row, column) inside the {rows} x {columns} grid "
            f"or a token index below {count}; got {query!r}."
        )

    def weights(self, query: Query) -> Tensor:
        """A query as weights over tokens: (B, N), summing to 1. One token, or the mean over all patches."""
        batch, count = self.tokens.shape[:2]
        weights = torch.zeros(batch, count, device=self.tokens.device)
        if query == "mean":
            weights[:, len(self.prefix) :] = 1.0 / (self.grid[0] * self.grid[1])
        else:
            weights[:, self.token(query)] = 1.0
        return weights

    @property
    def default_query(self) -> Query:
        """`"cls"` where the model has a class token, else the mean over patches."""
        return "cls" if "CLS" in self.prefix else "mean"

    def image(self, index: int) -> Trace:
        """The trace of one image of the batch, counted from 0, as a batch of one (a view, not a copy).

        Raises:
            TraceError: if the batch has no such image.
        """
        if not 0 <= index < len(self.tokens):  # a slice would be empty, and so would every answer
            raise TraceError(f"Expected one of the images 0..{len(self.tokens) - 1} of the batch, got {index}.")
        one = slice(index, index + 1)
        kept = tuple(block.image(index) for block in self.kept)
        logits = None if self.logits is None else self.logits[one]
        return Trace(logits, self.tokens[one], self.grid, self.prefix, self.blocks, kept, self.depth)


class Attentions(Sequence[Tensor]):
    """`trace.attentions`: reads like a tuple of (B, H, N, N) tensors, holds none of them."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def __len__(self) -> int:
        return len(self._trace.blocks)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Tensor, ...]: ...
    def __getitem__(self, index: int | slice) -> Tensor | tuple[Tensor, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        kept = self._trace.kept[index].open()
        if kept.probabilities is not None:
            return kept.probabilities
        return kept.rows(0, kept.queries.shape[2])
