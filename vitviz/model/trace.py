"""Store the trace of one forward pass, and compute its attention on demand.

A `Trace` stores the input of each block and the log-sum-exp of every attention row, so memory grows with the number of
tokens N, not with N². Queries and keys are recomputed on demand (and kept while they are small); rows of probabilities
are A = softmax(q @ k.T), and a single column is exp(q @ k.T - lse).

Shapes: B images, L blocks, H heads, N tokens = P prefix tokens (CLS, distillation, registers) followed by gh x gw
patches, n rows, D width, d head width.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitviz.errors import VitvizError
from vitviz.fields import matches_type
from vitviz.formatting import short_repr
from vitviz.model.positions import Angles

# Maximum size in bytes of a chunk of an N x N matrix while rows are summed. On the CPU it fits a core's cache, because
# the sums read each chunk three times (at 4,097 tokens, 4 MB chunks take 0.6 times as long as 64 MB). On a GPU, every
# chunk costs several kernel launches.
CHUNK_BYTES, GPU_CHUNK_BYTES = 4 * 2**20, 64 * 2**20


def chunk_bytes(device: torch.device) -> int:
    """Return the maximum size in bytes of a chunk of an N x N matrix on a device."""
    return CHUNK_BYTES if device.type == "cpu" else GPU_CHUNK_BYTES


# Queries and keys of all blocks stay in memory up to this total in bytes: for ViT-B, up to 1,820 tokens. Above it, each
# query to the trace recomputes them for its block, at a hundredth of the cost of the forward pass.
KEEP_BYTES = 128 * 2**20

SHARES = 2**16 - 1  # the largest packed number

Query = str | int | tuple[int, int]
"""Name of a prefix token ("cls"), "mean" over the patches, a patch (row, column), or a token index."""


def keeps_queries(nbytes: int) -> bool:
    """Return whether a trace keeps queries and keys of this total size in bytes."""
    return nbytes <= KEEP_BYTES


def packed(probabilities: Tensor) -> Tensor:
    """Return probabilities in 16 bits: their square roots as multiples of 1 / 65,535.

    Errors are at most 0.000015, and relative errors of probabilities above 0.001 at most 0.0005.
    """
    return probabilities.float().sqrt().mul_(SHARES).round_().to(torch.uint16)


def unpacked(probabilities: Tensor) -> Tensor:
    """Return probabilities as float32, which may be `packed`."""
    if probabilities.dtype != torch.uint16:
        return probabilities.float()
    return (probabilities.float() / SHARES).square_()


class TraceError(VitvizError):
    """Raised for a query that this trace cannot answer."""


@dataclass(frozen=True, eq=False)
class BlockTrace:
    """Attention of one block.

    Args:
        queries: (B, H, N, d), scaled (and normed or rotated): logits are `queries @ keys.T`.
        keys: (B, H, N, d).
        lse: (B, H, N), log-sum-exp of each row of logits, float32, or float64 for a float64 model.
        probabilities: (B, H, N, N), only with `grad=True`, where gradients flow through it, if edges were cut, or if a
            captured module computes nothing else; then in 16 bits, see `packed`.
        cut: whether edges were cut.
        bias: (B or 1, H or 1, N, N), added to the logits of a captured module.
        causal: whether no token attends to a later one.
    """

    queries: Tensor
    keys: Tensor
    lse: Tensor
    probabilities: Tensor | None = None
    cut: bool = False
    bias: Tensor | None = None
    causal: bool = False

    __repr__ = short_repr

    def image(self, index: int) -> BlockTrace:
        """Select one image, as a batch of one. Tensors are views, not copies."""
        single = slice(index, index + 1)
        probabilities = None if self.probabilities is None else self.probabilities[single]
        bias = self.bias if self.bias is None or len(self.bias) == 1 else self.bias[single]
        parts = self.queries[single], self.keys[single], self.lse[single]
        return BlockTrace(*parts, probabilities, self.cut, bias, self.causal)

    @property
    def tokens(self) -> int:
        """Return N, the number of keys."""
        return self.keys.shape[2] if self.probabilities is None else self.probabilities.shape[3]

    @property
    def factored(self) -> bool:
        """Return whether the logits are `queries @ keys.T` alone."""
        return self.probabilities is None and self.bias is None and not self.causal

    @property
    def nbytes(self) -> int:
        """Return the size in bytes."""
        tensors = (self.queries, self.keys, self.lse, self.probabilities, self.bias)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    def log_rows(self, start: int, stop: int) -> Tensor:
        """Return the logarithm of attention rows start..stop-1: (B, H, n, N), float32, finite.

        An edge without attention has the logarithm of the smallest float32.
        """
        if self.cut or not self.factored:
            return self.rows(start, stop).clamp_min(torch.finfo(torch.float32).tiny).log()
        return self.logits(start, stop).log_softmax(-1).float()

    def rows(self, start: int, stop: int) -> Tensor:
        """Return attention rows start..stop-1: (B, H, n, N), float32; each sums to 1."""
        if self.probabilities is not None:
            rows = unpacked(self.probabilities[:, :, start:stop])
            packs = self.probabilities.dtype == torch.uint16
            return rows / rows.sum(-1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny) if packs else rows
        rows = self.logits(start, stop).softmax(-1).float()
        return rows if self.bias is None else rows.nan_to_num_(0.0)  # a mask may leave a row without keys

    def logits(self, start: int, stop: int) -> Tensor:
        """Return rows start..stop-1 of `queries @ keys.T`: (B, H, n, N), float32, or float64 for a float64 model.

        The bias of a captured module is added.
        """
        with self._exact():
            # (B, H, n, d) @ (B, H, d, N) -> (B, H, n, N)
            logits = self._wide(self.queries[:, :, start:stop]) @ self._wide(self.keys).mT
        return self._biased(logits, slice(start, stop), slice(None))

    def _biased(self, logits: Tensor, rows: slice, columns: slice, head: int | None = None) -> Tensor:
        """Add the bias to some rows and columns of the logits, of all heads or of one, in place: (B, H, n, m)."""
        if self.bias is not None:
            heads = slice(None) if head is None or self.bias.shape[1] == 1 else slice(head, head + 1)
            logits += self.bias[:, heads, rows, columns]
        if self.causal:
            queries, keys = (torch.arange(self.queries.shape[2]), torch.arange(self.tokens))
            later = keys[columns] > queries[rows, None]
            logits.masked_fill_(later.to(logits.device), -torch.inf)
        return logits

    def column(self, key: int) -> Tensor:
        """Return the attention of every token to token `key`: (B, H, N), float32, not normalised.

        It equals `rows` up to the rounding of `lse`: a relative error of 1e-4 in float32 and half precision.
        """
        if self.probabilities is not None:
            return unpacked(self.probabilities[:, :, :, key])
        key_vector = self._wide(self.keys[:, :, key, :, None])  # (B, H, d, 1)
        with self._exact():
            logits = self._wide(self.queries) @ key_vector  # (B, H, N, d) @ (B, H, d, 1) -> (B, H, N, 1)
        logits = self._biased(logits, slice(None), slice(key, key + 1)).squeeze(-1)
        return logits.sub_(self.lse).exp_().float()

    def mix(self, weights: Tensor) -> Tensor:
        """Return the attention of each query, summed over the keys with weights: (B, N) -> (B, H, n)."""
        parts = [(self.rows(*chunk) @ weights[:, None, :, None]).squeeze(-1) for chunk in self.chunks()]
        return torch.cat(parts, dim=2)

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Yield row ranges (start, stop) whose attention (B, H, n, N) takes at most `chunk_bytes`."""
        batch, heads, queries = self.lse.shape
        step = max(1, chunk_bytes(self.lse.device) // (4 * batch * heads * self.tokens))
        for start in range(0, queries, step):
            yield start, min(start + step, queries)

    def propagate(self, weights: Tensor) -> Tensor:
        """Return the weighted sum of attention rows without storing A: weights (B, N) @ A -> (B, H, N), float32.

        Entry m is the sum over n of w_n exp(q_n . k_m - lse_n). An additional channel of queries and keys subtracts the
        log-sum-exp within the matrix product, so that a chunk is written once and read twice. Finally, the rounding of
        the log-sum-exp is corrected: each head's sum is that of the weights.
        """
        if self.probabilities is not None:
            with self._exact():  # (B, 1, 1, n) @ (B, H, n, N) -> (B, H, 1, N)
                parts = (weights[:, None, None, a:b].float() @ self.rows(a, b) for a, b in self.chunks())
                return reduce(torch.add, parts).squeeze(2)
        batch, heads, tokens = self.lse.shape
        step = max(1, chunk_bytes(self.lse.device) // (4 * batch * tokens))
        weights, total = weights.to(self.lse), torch.empty_like(self.lse)
        with self._exact():
            for head in range(heads):
                queries = torch.cat([self._wide(self.queries[:, head]), -self.lse[:, head, :, None]], dim=2)
                keys = F.pad(self._wide(self.keys[:, head]), (0, 1), value=1.0)  # (B, N, d + 1)
                for start in range(0, tokens, step):
                    chunk = slice(start, start + step)
                    rows = keys[:, chunk] @ queries.mT  # (B, n, d + 1) @ (B, d + 1, N) -> (B, n, N)
                    self._biased(rows.mT[:, None], slice(None), chunk, head)
                    rows.exp_()
                    total[:, head, chunk] = (rows @ weights[..., None]).squeeze(2)  # (B, n, N) @ (B, N, 1)
            least = torch.finfo(total.dtype).tiny  # windows may have no weight
            return (total * (weights.sum(1)[:, None, None] / total.sum(2, keepdim=True).clamp_min(least))).float()

    def _wide(self, tensor: Tensor) -> Tensor:
        """Return a tensor in float32; float64 is unchanged."""
        return tensor if tensor.dtype == torch.float64 else tensor.float()

    def _exact(self) -> AbstractContextManager[Any]:
        """Disable autocast, so float32 stays float32."""
        kind = self.lse.device.type
        return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


@dataclass(frozen=True, eq=False)
class BlockState:
    """State of one block from which a trace recomputes its attention.

    Args:
        stream: (B, N, D), the input of the block.
        lse: (B, H, N), log-sum-exp of each row of logits, as in `BlockTrace`.
        project: (stream, angles) -> queries and keys, (B, H, N, d) each, as the block computed them.
        angles: positions of the patches.
        attention: the attention, if it is small enough to keep or part of a graph.
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

    def image(self, index: int) -> BlockState:
        """Return one image of the batch, as a batch of one (views, not copies)."""
        single, angles = slice(index, index + 1), self.angles
        angles = None if angles is None else angles.image(index)
        attention = self.attention and self.attention.image(index)
        return BlockState(self.stream[single], self.lse[single], self.project, angles, attention)

    @property
    def nbytes(self) -> int:
        """Return the size in bytes."""
        return self.stream.nbytes + (self.lse.nbytes if self.attention is None else self.attention.nbytes)


class AttentionTrace(ABC):
    """Attention between the tokens of one forward pass: what methods read, of a `Trace` or of a captured module.

    Attributes:
        logits, tokens, grid, prefix, blocks, depth, patch_size: see `Trace`.
        windowed: whether blocks divide their tokens into windows, and later stages merge tokens; see `Captured`.
    """

    logits: Tensor | None
    tokens: Tensor
    grid: tuple[int, int]
    prefix: tuple[str, ...]
    blocks: tuple[int, ...]
    depth: int
    patch_size: int
    windowed: bool = False
    recomputes: bool = True
    """Whether `block` may recompute queries and keys."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Return the size in bytes."""

    @property
    @abstractmethod
    def batch(self) -> int:
        """Return B, the number of images."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Return the device of the tensors."""

    @property
    def count(self) -> int:
        """Return N, the number of tokens of the last block."""
        return len(self.prefix) + math.prod(self.grid_in(-1))

    @abstractmethod
    def stream(self, block: int) -> Tensor:
        """Return the input of a block, the residual stream (B, N, D); indices as in `block`."""

    @abstractmethod
    def heads_in(self, block: int) -> int:
        """Return the number of heads of a block."""

    @abstractmethod
    def block(self, block: int) -> BlockTrace:
        """Return the attention of a block; negative indices count from the last block.

        Call this once for several queries about one block: for large inputs, each call recomputes queries and keys.

        Raises:
            TraceError: if the block does not exist or was not kept, or the model's weights have changed since.
        """

    @property
    def attentions(self) -> Attentions:
        """Return the probabilities (B, H, N, N) of all kept blocks, computed on access."""
        return Attentions(self)

    @property
    def default_query(self) -> Query:
        """Return "cls" if the model has a class token, else "mean"."""
        return "cls" if "CLS" in self.prefix else "mean"

    def grid_of(self, patches: int) -> tuple[int, int]:
        """Return the grid with this number of patches: the model's, or a stage's."""
        grids = [self.grid, *map(self.grid_in, self.blocks)]
        return next(grid for grid in grids if math.prod(grid) == patches)

    def grid_in(self, block: int) -> tuple[int, int]:  # noqa: ARG002
        """Return the rows and columns of patches in a block."""
        return self.grid

    def entered_grid(self, block: int) -> tuple[int, int]:
        """Return the rows and columns of the patches that enter a block, before it merges any."""
        return self.grid_in(block)

    def within(self, block: int, step: Callable[..., Any], *rows: Tensor) -> Any:  # noqa: ARG002
        """Call `step`, which multiplies rows by a block's attention, with rows (B, N), or with those of each window."""
        return step(*rows)

    def entering(self, block: int, rows: Tensor) -> Tensor:  # noqa: ARG002
        """Convert rows (B, N) over a block's tokens to rows over its input tokens, some of which it may merge."""
        return rows

    def attendable(self, block: int, gradient: Tensor) -> Tensor:  # noqa: ARG002
        """Return a gradient of a block's attention, 0 for pairs of tokens that a mask excludes."""
        return gradient

    @property
    def heads(self) -> int:
        """Return H, the number of heads of the first kept block."""
        return self.heads_in(self.blocks[0])

    @property
    def head_width(self) -> int:
        """Return d, the width of each head."""
        return self.block(self.blocks[0]).queries.shape[-1]

    def name_of(self, block: int) -> str:
        """Return the display name of a block: "Layer 5", or "Layer 5 (stage 3)" in a model with several stages."""
        return f"Layer {block % self.depth + 1}{self.stage_name(block)}"

    def stage_name(self, block: int) -> str:  # noqa: ARG002
        """Return the display name of a block's stage, such as " (stage 3)", or "" in a model with one stage."""
        return ""

    def matrix_grid(self, block: int) -> tuple[int, int]:
        """Return the rows and columns of patches between which each of a block's matrices is."""
        return self.grid_in(block)

    def matrix_spacing(self, block: int) -> tuple[int, int]:  # noqa: ARG002
        """Return the distance between neighbors in a matrix of a block, in rows and columns of patches."""
        return 1, 1

    def place_of(self, block: int, token: int) -> tuple[int, int]:  # noqa: ARG002
        """Return which of a block's matrices has a token, and the token's row there."""
        return 0, token

    def per_image(self, block: int, values: Tensor, token: int | None = None) -> Tensor:  # noqa: ARG002
        """Return values of each image from those of each of a block's matrices: (matrices, H) -> (B, H).

        They are those of a token's matrix, or the mean over all matrices between patches, NaN if there are none.
        """
        return values

    def probabilities(self, block: int) -> Any:
        """Return the attention of a block as `attentions` has it."""
        block_trace = self.block(block)
        if block_trace.probabilities is not None and block_trace.probabilities.requires_grad:
            return block_trace.probabilities
        return block_trace.rows(0, block_trace.queries.shape[2])

    def attention(self, block: int) -> Tensor:
        """Return the attention matrix of a block: (B, H, N, N), float32; rows sum to 1."""
        block_trace = self.block(block)
        return block_trace.rows(0, block_trace.queries.shape[2])

    def row(self, block: int, query: Query = "cls") -> Tensor:
        """Return the attention from `query` in `block`: (B, H, N), sums to 1; "mean" averages over the patches."""
        block_trace = self.block(block)
        if query == "mean":
            return block_trace.propagate(self.weights(query))
        token = self.token(query)
        return block_trace.rows(token, token + 1).squeeze(2)

    def column(self, block: int, key: Query = "cls") -> Tensor:
        """Return the attention from each token to `key` in `block`: (B, H, N); "mean" averages over the patches."""
        block_trace = self.block(block)
        return block_trace.column(self.token(key)) if key != "mean" else block_trace.mix(self.weights(key))

    def token(self, query: Query, block: int = -1) -> int:
        """Return the index of a token in a block, 0..N-1, from a prefix token's name, a patch (row, column) or index.

        Raises:
            TraceError: if the token does not exist.
        """
        rows, columns = self.grid_in(block)
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
        known = ", ".join(map(repr, names)) or "names (no class token: ask for 'mean', the mean over all queries)"
        raise TraceError(
            f"Expected a query among {known}, 'mean', a patch (row, column) inside the {rows} x {columns} grid"
            f"{self.stage_name(block)} or a token index below {count}, got {query!r}. Choose one of them."
        )

    def weights(self, query: Query, block: int = -1) -> Tensor:
        """Return a query as weights (B, N) over a block's tokens that sum to 1: one token, or the mean over patches."""
        patches = math.prod(self.grid_in(block))
        weights = torch.zeros(self.batch, len(self.prefix) + patches, device=self.device)
        if query == "mean":
            weights[:, len(self.prefix) :] = 1.0 / patches
        else:
            weights[:, self.token(query, block)] = 1.0
        return weights


@dataclass(frozen=True, eq=False)
class Trace(AttentionTrace):
    """Trace of one forward pass, which answers queries about its attention.

    Queries and keys that are too large to keep are recomputed from the model's weights; after a change of the weights,
    such queries raise an error.

    Args:
        logits: (B, C), as returned by `model(images)`; `None` without a classifier.
        tokens: (B, N, D), the tokens after the final norm.
        grid: (gh, gw), rows and columns of patches.
        prefix: names of the P tokens in front of the patches, e.g. `("CLS", "register 1")`.
        blocks: indices of the kept blocks, from 0.
        states: the state of each of `blocks`.
        depth: L, the number of blocks of the model.
        patch_size: side length of a patch in pixels.
    """

    logits: Tensor | None
    tokens: Tensor
    grid: tuple[int, int]
    prefix: tuple[str, ...]
    blocks: tuple[int, ...]
    states: tuple[BlockState, ...]
    depth: int
    patch_size: int = 1

    def __repr__(self) -> str:
        batch, tokens, width = self.tokens.shape
        rows, columns = self.grid
        return (
            f"<Trace of {batch} image{'s' if batch > 1 else ''}: {len(self.blocks)} of {self.depth} blocks, "
            f"{self.heads} heads, {tokens:,} tokens ({len(self.prefix)} + {rows} x {columns}) of width {width}, "
            f"{self.nbytes / 1e6:.1f} MB>"
        )

    @property
    def batch(self) -> int:
        """Return B, the number of images."""
        return len(self.tokens)

    @property
    def device(self) -> torch.device:
        """Return the device of the tensors."""
        return self.tokens.device

    @property
    def nbytes(self) -> int:
        """Return the size in bytes."""
        return self.tokens.nbytes + sum(state.nbytes for state in self.states)

    def heads_in(self, block: int) -> int:
        """Return the number of heads of a block."""
        return self._state(block).lse.shape[1]

    def block(self, block: int) -> BlockTrace:
        """Return the attention of a block; negative indices count from the last block of the model.

        Call this once for several queries about one block: for large inputs, each call recomputes queries and keys.

        Raises:
            TraceError: if the block does not exist or was not kept, or the model's weights have changed since.
        """
        return self._state(block).open()

    def stream(self, block: int) -> Tensor:
        """Return the input of a block, the residual stream (B, N, D); indices as in `block`."""
        return self._state(block).stream

    def _state(self, block: int) -> BlockState:
        index = block + self.depth if block < 0 else block
        if index not in self.blocks:
            otherwise = ", or call trace(images, blocks=[...]) with the one you need" if 0 <= index < self.depth else ""
            raise TraceError(
                f"Expected one of the blocks {list(self.blocks)} (counted from 0), got {block}. "
                f"Choose one of them{otherwise}."
            )
        return self.states[self.blocks.index(index)]

    def image(self, index: int) -> Trace:
        """Return the trace of one image of the batch as a batch of one (views, not copies).

        Raises:
            TraceError: if the index is out of range.
        """
        if not 0 <= index < len(self.tokens):  # a slice would be empty
            last = len(self.tokens) - 1
            raise TraceError(f"Expected an image among 0..{last} of the batch, got {index}. Choose one of them.")
        single = slice(index, index + 1)
        states = tuple(state.image(index) for state in self.states)
        logits = None if self.logits is None else self.logits[single]
        return replace(self, logits=logits, tokens=self.tokens[single], states=states)


class Attentions(Sequence[Tensor]):
    """Lazy sequence: computes each kept block's probabilities (B, H, N, N), or `SparseAttention`, on access."""

    def __init__(self, trace: AttentionTrace) -> None:
        self._trace = trace

    def __len__(self) -> int:
        return len(self._trace.blocks)

    def __repr__(self) -> str:
        return f"<Attentions of {self._trace!r}: index a block for its (B, H, N, N)>"

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        return self._trace.probabilities(self._trace.blocks[index])


def describe_query(query: Query) -> str:
    """Return a query as text, with rows and columns from 1."""
    if isinstance(query, tuple):
        return f"patch row {query[0] + 1}, column {query[1] + 1}"
    if query == "mean":
        return "all patches"
    return query.upper() if query == "cls" else str(query)
