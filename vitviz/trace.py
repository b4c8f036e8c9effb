"""What one forward pass of a Vision Transformer leaves behind.

A `Trace` keeps the queries, the keys and the log-sum-exp of every attention row: memory grows with the number of
tokens N, not with N². The probabilities are rebuilt from them when somebody asks: A = exp(q @ k.T - lse).

Shapes in this file: B images, L blocks, H heads, N tokens = P prefix tokens (CLS, distillation, registers) followed
by gh x gw patches, D width, d head width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

# The largest piece of an N x N matrix that is held at once while rows are summed, in bytes: what a core's cache holds,
# because the sums read each piece three times (4 MB take 0.6 of the time of 64 MB at 4,097 tokens on a CPU).
CHUNK_BYTES = 4 * 2**20

Query = str | int | tuple[int, int]


class TraceError(ValueError):
    """A question that this trace cannot answer; the text says which ones it can."""


@dataclass(frozen=True, eq=False)
class BlockTrace:
    """What one block keeps of its attention.

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

    def log_rows(self, start: int, stop: int) -> Tensor:
        """Logarithm of the attention of the tokens start..stop-1: (B, H, stop - start, N), float32, all finite."""
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
        total = torch.zeros(self.lse.shape, dtype=torch.float32, device=self.lse.device)
        for start, stop in self.chunks():
            some = weights[:, None, None, start:stop].float()  # (B, 1, 1, n)
            total += (some @ self.rows(start, stop)).squeeze(2)  # (B, 1, 1, n) @ (B, H, n, N) -> (B, H, N)
        return total


@dataclass(frozen=True, eq=False)
class Trace:
    """One forward pass, kept for questions.

    Args:
        logits: (B, C), what `model(images)` returns; `None` when the model has no classifier.
        tokens: (B, N, D), the tokens after the final norm.
        grid: (gh, gw), rows and columns of patches.
        prefix: names of the P tokens in front of the patches, e.g. `("CLS", "register 1")`.
        blocks: which blocks of the model were kept, counted from 0.
        kept: one `BlockTrace` for each of `blocks`.
        depth: L, how many blocks the model has.
    """

    logits: Tensor | None
    tokens: Tensor
    grid: tuple[int, int]
    prefix: tuple[str, ...]
    blocks: tuple[int, ...]
    kept: tuple[BlockTrace, ...]
    depth: int

    @property
    def heads(self) -> int:
        """H, heads of each block."""
        return self.kept[0].queries.shape[1]

    @property
    def attentions(self) -> Attentions:
        """For every kept block the probabilities (B, H, N, N), rows summing to 1; built one at a time when indexed."""
        return Attentions(self)

    def block(self, block: int) -> BlockTrace:
        """The kept tensors of a block; negative numbers count from the last block of the model.

        Raises:
            TraceError: if the model has no such block or it was not kept.
        """
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
        kept = self._trace.kept[index]
        if kept.probabilities is not None:
            return kept.probabilities
        return kept.rows(0, kept.queries.shape[2])
