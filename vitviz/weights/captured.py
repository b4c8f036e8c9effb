"""Hold the attention calls of a module that ran as it is, and answer the same questions as a `Trace`.

Shapes: B images, H heads, n queries, N keys, d head width. Between tokens, n = N = P prefix tokens + gh x gw patches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from vitviz.errors import VitvizError
from vitviz.formatting import counted, short_repr
from vitviz.model.trace import AttentionTrace, BlockTrace, Query, TraceError
from vitviz.weights.windows import SparseAttention, Windows

SEPARATED = 1e-30  # a probability below it is that of a masked pair: Swin adds -100 to its logit
Read = Literal["cls", "mean", "cls+mean", ""]
_NO_STREAM = (
    "Expected a module whose class vitviz knows, because this reads the tokens between blocks, got a captured module "
    "of which only the attention is observed. Use attention, rollout or a gradient method."
)


class CaptureError(VitvizError):
    """Raised for a module whose attention cannot be captured, and for calls that are not between tokens."""


@dataclass(frozen=True, eq=False)
class Mask:
    """Numbers added to the logits of a call.

    Args:
        keys: (B or 1, H or 1, N), the same for all queries, `CUT` for keys without attention.
        pairs: (B or 1, H or 1, n, N), of any other mask or bias; bools are true where a query attends.
        rows, columns: (B or 1, H or 1, n, r) and (B or 1, H or 1, n, c), relative position biases that each query adds
            to the logits of the keys in each row and in each column of a grid of r x c keys.
        causal: whether no token attends to a later one.
    """

    keys: Tensor | None = None
    pairs: Tensor | None = None
    rows: Tensor | None = None
    columns: Tensor | None = None
    causal: bool = False

    __repr__ = short_repr

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        parts = {"keys": self.keys, "pairs": self.pairs, "rows": self.rows, "columns": self.columns}
        return {name: part for name, part in parts.items() if part is not None}

    def by_head(self, heads: int) -> Mask:
        """Return a mask whose axes of batch and heads are split: (1, B * H, ...) -> (B, H, ...)."""
        split: dict[str, Any] = {
            name: part[0].unflatten(0, (-1, heads)) for name, part in self.tensors.items() if part.shape[1] > 1
        }
        return replace(self, **split)

    def image(self, start: int, stop: int) -> Mask:
        """Select images start..stop-1 of the batch."""
        chosen: dict[str, Any] = {name: part[start:stop] for name, part in self.tensors.items() if len(part) > 1}
        return replace(self, **chosen)


@dataclass(frozen=True, eq=False)
class Tokens:
    """Places of tokens in the photograph.

    Args:
        grid: (gh, gw), rows and columns of patches.
        prefix: names of the tokens in front of the patches.
        patch_size: side length of a patch in pixels.
        layouts: windows of each call between tokens, in a model with windows.
        read: what the classifier reads of the last tokens, unless attention pools them; by default the class token, or
            the mean without one.
    """

    grid: tuple[int, int]
    prefix: tuple[str, ...] = ()
    patch_size: int = 1
    layouts: tuple[Windows, ...] = ()
    read: Read = ""

    @property
    def pooling(self) -> Literal["cls", "mean", "cls+mean"]:
        """Return what the classifier reads."""
        return self.read or ("cls" if "CLS" in self.prefix else "mean")

    @property
    def lengths(self) -> set[int]:
        """Return the numbers of tokens of a call between tokens: patches alone, or with the prefix."""
        patches = math.prod(self.grid)
        return {patches, patches + len(self.prefix)}


@dataclass(frozen=True, eq=False)
class Call:
    """One attention call of a module.

    Args:
        name: path of the module that made it, such as "blocks.3.attn".
        kind: name of its class.
        shape: (B, H, n, N).
        queries, keys: (B, H, n, d) and (B, H, N, d), or fewer heads of keys, each shared by several heads of queries;
            as the module computed them. `None` if only its softmax was observed.
        scale: factor of the logits.
        mask: numbers added to the logits.
        kernel_sums: (B, H, n), log-sum-exp of each row, if the kernel returned it.
        probabilities: (B, H, n, N), in the autograd graph with `grad=True`; packed into 16 bits if only the softmax was
            observed.
    """

    name: str
    kind: str
    shape: tuple[int, int, int, int]
    queries: Tensor | None = None
    keys: Tensor | None = None
    scale: float = 1.0
    mask: Mask = Mask()
    kernel_sums: Tensor | None = None
    probabilities: Tensor | None = None

    def __repr__(self) -> str:
        return f"<Call of {self.name} ({self.kind}): {' x '.join(map(str, self.shape))}>"

    @property
    def nbytes(self) -> int:
        """Return the size in bytes, without masks, which calls share."""
        tensors = (self.queries, self.keys, self.kernel_sums, self.probabilities)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    @property
    def attentions(self) -> Tensor:
        """Return the probabilities (B, H, n, N), float32; with `grad=True`, those of the autograd graph."""
        if self.probabilities is not None and self.probabilities.requires_grad:
            return self.probabilities
        return self.open().rows(0, self.shape[2])

    def row(self, token: int) -> Tensor:
        """Return the attention from a query, by index: (B, H, N), float32."""
        token = self._index(token, self.shape[2])
        return self.open().rows(token, token + 1).squeeze(2)

    def column(self, token: int) -> Tensor:
        """Return the attention to a key, by index, from each query: (B, H, n), float32."""
        return self.open().column(self._index(token, self.shape[3]))

    def open(self) -> BlockTrace:
        """Return the attention with scaled queries and all keys, as a trace of a `ViT` has it."""
        if self.probabilities is not None:
            batch, heads, rows, columns = self.shape
            empty = torch.zeros(batch, heads, max(rows, columns), 0, device=self.probabilities.device)
            sums = empty[:, :, :rows].sum(3)
            return BlockTrace(empty[:, :, :rows], empty[:, :, :columns], sums, self.probabilities)
        return replace(self._factors, lse=self._sums)

    @property
    def _factors(self) -> BlockTrace:
        """Return scaled queries and all keys, with zeros as log-sum-exp."""
        assert self.queries is not None
        assert self.keys is not None
        heads = self.shape[1]
        queries = self.queries.to(torch.promote_types(self.queries.dtype, torch.float32)) * self.scale
        keys = self.keys.repeat_interleave(heads // self.keys.shape[1], dim=1)
        if self.mask.keys is not None:  # a further channel, which is 1 in all queries
            channel = self.mask.keys.to(queries)[..., None].expand(*keys.shape[:3], 1)
            queries, keys = F.pad(queries, (0, 1), value=1.0), torch.cat([keys.to(queries), channel], dim=3)
        if self.mask.rows is not None and self.mask.columns is not None:  # an extra channel for each row and column
            added = [part.to(queries).expand(*queries.shape[:3], -1) for part in (self.mask.rows, self.mask.columns)]
            places = torch.cartesian_prod(*(torch.arange(part.shape[3], device=keys.device) for part in added))
            sides = (F.one_hot(place, part.shape[3]) for place, part in zip(places.T, added, strict=True))
            ones = torch.cat([*sides], dim=1).to(queries)  # (N, r + c)
            queries = torch.cat([queries, *added], dim=3)
            keys = torch.cat([keys.to(queries), ones.expand(*keys.shape[:3], -1)], dim=3)
        sums = torch.zeros(queries.shape[:3], dtype=queries.dtype, device=queries.device)
        bias = self.mask.pairs
        if bias is not None and bias.dtype == torch.bool:
            bias = torch.where(bias, 0.0, -torch.inf)
        return BlockTrace(queries, keys, sums, bias=bias, causal=self.mask.causal)

    @cached_property
    def _sums(self) -> Tensor:
        """Return the log-sum-exp of each row: (B, H, n); 0 for a row without keys."""
        sums = self.kernel_sums
        if sums is None:
            parts = self._factors
            sums = torch.cat([parts.logits(*chunk).logsumexp(-1) for chunk in parts.chunks()], dim=2)
        return torch.where(sums.isfinite(), sums, 0.0)

    def image(self, start: int, stop: int) -> Call:
        """Return images start..stop-1 of the batch (views, not copies)."""
        queries, keys, sums, probabilities = (
            None if part is None else part[start:stop]
            for part in (self.queries, self.keys, self.kernel_sums, self.probabilities)
        )
        return replace(
            self, shape=(stop - start, *self.shape[1:]), mask=self.mask.image(start, stop),
            queries=queries, keys=keys, kernel_sums=sums, probabilities=probabilities,
        )  # fmt: skip

    def arranged(self, layout: Windows, batch: int) -> Call:
        """Return the call between the tokens of each window, for B images; this call if it has this form."""
        if not layout.rearranges:
            return self
        sums = None if self.kernel_sums is None else layout.arranged(self.kernel_sums[..., None], batch).squeeze(3)
        queries, keys, probabilities = (
            None if tensor is None else layout.arranged(tensor, batch, rows=rows, columns=columns)
            for tensor, rows, columns in (
                (self.queries, True, False), (self.keys, False, False), (self.probabilities, True, True)
            )
        )  # fmt: skip
        heads = self.shape[0] // batch if layout.heads_first else self.shape[1]
        count, size = layout.members.shape
        return replace(
            self, shape=(batch * count, heads, size, size), queries=queries, keys=keys, kernel_sums=sums,
            probabilities=probabilities,
        )  # fmt: skip

    @staticmethod
    def _index(token: int, count: int) -> int:
        if not -count <= token < count:
            raise TraceError(f"Expected a token index below {count}, got {token}. Choose one of them.")
        return token % count


@dataclass(frozen=True, eq=False)
class Captured(AttentionTrace):
    """Attention of a module that ran once, as it is: every call, and those between tokens as blocks.

    Args:
        calls: all attention calls, in order.
        output: what the module returned.
        batch_size: B, the number of images.
        places: places of the tokens; `None` if they are not known.
        classifies: whether an output (B, C) is logits.
        streams: (B, N, D) each: the input of each block, then the final tokens; empty if the blocks are not known.
    """

    calls: tuple[Call, ...]
    output: Any
    batch_size: int
    places: Tokens | None = None
    classifies: bool = True
    streams: tuple[Tensor, ...] = ()
    recomputes = False

    def __repr__(self) -> str:
        between = set(self.between)
        lines = [
            f"  {call.name or '(the module)'} ({call.kind}): {' x '.join(map(str, call.shape))}"
            + ("" if index in between or self.places is None else ", not between tokens")
            for index, call in enumerate(self.calls)
        ]
        of = "" if self.places is None else f", {self.depth} between {self.count:,} tokens"
        return "\n".join([f"<Captured: {counted(len(self.calls), 'call')}{of}, {self.nbytes / 1e6:.1f} MB>", *lines])

    @property
    def nbytes(self) -> int:
        """Return the size in bytes of calls, masks and tokens, without the module's output."""
        masks = {id(part): part.nbytes for part in self._masks()}
        calls = sum(call.nbytes for call in self.calls) + sum(masks.values())
        return calls + sum(tokens.nbytes for tokens in self.streams)

    def _masks(self) -> Iterator[Tensor]:
        return (part for call in self.calls for part in call.mask.tensors.values())

    @cached_property
    def between(self) -> tuple[int, ...]:
        """Return the indices of the calls between tokens, the blocks; none if the places of tokens are not known."""
        if self.places is None:
            return ()
        lengths = self.places.lengths
        return tuple(
            index
            for index, call in enumerate(self.calls)
            if call.shape[0] == self.batch and call.shape[2] == call.shape[3] and call.shape[2] in lengths
        )

    @property
    def pooling(self) -> tuple[Call, ...]:
        """Return the calls after the last block that pool its tokens: one query, which may be the first key."""
        after = self.calls[self.between[-1] + 1 :] if self.between else ()
        keys = {self.count, self.count + 1}
        return tuple(
            call for call in after if (call.shape[0], call.shape[2]) == (self.batch, 1) and call.shape[3] in keys
        )

    @property
    def batch(self) -> int:
        """Return B, the number of images."""
        return self.batch_size

    @property
    def device(self) -> torch.device:
        """Return the device of the tensors."""
        call = self.calls[0]
        tensor = call.keys if call.probabilities is None else call.probabilities
        assert tensor is not None
        return tensor.device

    # `AttentionTrace` declares these names as fields; mypy allows no property in their place, hence `override`.

    @property
    def logits(self) -> Tensor | None:  # type: ignore[override]
        """Return the module's output (B, C), or the `logits` of its output; `None` without."""
        logits = getattr(self.output, "logits", self.output)
        return logits if self.classifies and isinstance(logits, Tensor) and logits.ndim == 2 else None

    @property
    def tokens(self) -> Tensor:  # type: ignore[override]
        """Return the final tokens (B, N, D), after the final norm where a module has it before pooling."""
        return self._stream(-1)

    def stream(self, block: int) -> Tensor:
        """Return the input tokens of a block: (B, N, D)."""
        self.call(block)  # checks the index
        return self._stream(block % self.depth)

    def _stream(self, point: int) -> Tensor:
        if not self.streams:
            raise CaptureError(_NO_STREAM)
        return self.streams[point]

    @property
    def grid(self) -> tuple[int, int]:  # type: ignore[override]
        """Return rows and columns of patches."""
        return self._places.grid

    @property
    def prefix(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the names of the tokens in front of the patches."""
        return self._places.prefix

    @property
    def patch_size(self) -> int:  # type: ignore[override]
        """Return the side length of a patch in pixels."""
        return self._places.patch_size

    @property
    def layouts(self) -> tuple[Windows, ...]:
        """Return the windows of each block, in a model with windows."""
        return self._places.layouts

    @property
    def _places(self) -> Tokens:
        if self.places is None:
            raise CaptureError(
                "Expected to know where the tokens lie in the photograph, got a module of an unknown class. Pass "
                "grid=(rows, columns), and prefix=[...] with the names of tokens in front of the patches."
            )
        return self.places

    @property
    def depth(self) -> int:  # type: ignore[override]
        """Return L, the number of calls between tokens."""
        return len(self.between)

    @property
    def blocks(self) -> tuple[int, ...]:  # type: ignore[override]
        """Return the indices of the blocks, from 0."""
        return tuple(range(self.depth))

    def call(self, block: int) -> Call:
        """Return the call between tokens with this index; negative indices count from the last.

        Raises:
            TraceError: if it does not exist.
            CaptureError: if the places of the tokens are not known.
        """
        places, depth = self._places, self.depth
        if not -depth <= block < depth:
            lengths = " or ".join(map(str, sorted(places.lengths)))
            got = block if depth else f"none among {counted(len(self.calls), 'call')}; {self!r}"
            raise TraceError(
                f"Expected one of the {counted(depth, 'block')} between {lengths} tokens, got {got}. Choose another."
            )
        return self._blocks[block]

    @cached_property
    def _blocks(self) -> tuple[Call, ...]:
        """Return the attention call of each block."""
        return tuple(self.calls[index] for index in self.between)

    def heads_in(self, block: int) -> int:
        """Return the number of heads of a block."""
        return self.call(block).shape[1]

    def block(self, block: int) -> BlockTrace:
        """Return the attention of a block; negative indices count from the last."""
        return self.call(block).open()

    def image(self, index: int) -> Captured:
        """Return the attention of one image of the batch, as a batch of one (views, not copies)."""
        if not 0 <= index < self.batch:
            raise TraceError(f"Expected an image among 0..{self.batch - 1} of the batch, got {index}. Choose one.")
        calls = []
        for call in self.calls:
            windows = call.shape[0] // self.batch if call.shape[0] % self.batch == 0 else 0
            calls.append(call.image(index * windows, (index + 1) * windows) if windows else call)
        output = self.output[index : index + 1] if isinstance(self.output, Tensor) else self.output
        streams = tuple(tokens[index : index + 1] for tokens in self.streams)
        return replace(self, calls=tuple(calls), output=output, batch_size=1, streams=streams)


class CapturedWindows(Captured):
    """Attention of a module whose blocks divide their tokens into windows, and whose stages may merge tokens."""

    windowed = True

    @cached_property
    def between(self) -> tuple[int, ...]:
        """Return the index of the attention call of each block, in order; empty unless every block has one."""
        indices: list[int] = []
        for index, call in enumerate(self.calls):
            layout = self.layouts[min(len(indices), len(self.layouts) - 1)]
            windows, *sizes = layout.call_shape
            if layout.heads_first:  # (B * H, W, ...)
                fits = call.shape[0] % self.batch == 0 and call.shape[1] == windows and not call.mask.tensors
            else:
                fits = call.shape[0] == self.batch * windows
            if fits and [*call.shape[2:]] == sizes:
                indices.append(index)
        return tuple(indices) if len(indices) == len(self.layouts) else ()

    @cached_property
    def _blocks(self) -> tuple[Call, ...]:
        """Return the call of each block between the tokens of each window, a copy where the module has another form."""
        pairs = zip(self.between, self.layouts, strict=True)
        return tuple(self.calls[index].arranged(layout, self.batch) for index, layout in pairs)

    def grid_in(self, block: int) -> tuple[int, int]:
        """Return the rows and columns of patches in a block."""
        return self.layouts[block].grid

    def entered_grid(self, block: int) -> tuple[int, int]:
        """Return the rows and columns of the patches that enter a block, before it merges any."""
        (rows, columns), factor = self.grid_in(block), 2 if self.layouts[block].merges else 1
        return factor * rows, factor * columns

    def stage_name(self, block: int) -> str:
        """Return the display name of a block's stage, such as " (stage 3)", or "" in a model with one stage."""
        return f" (stage {self.layouts[block].stage + 1})" if self.layouts[-1].stage else ""

    def within(self, block: int, step: Callable[..., Any], *rows: Tensor) -> Any:
        """Apply `step`, which gets the rows (B, N) of all windows as a batch: (B * W, M)."""
        windows = self.layouts[block]
        results = step(*map(windows.split, rows))
        return tuple(map(windows.join, results)) if isinstance(results, tuple) else windows.join(results)

    def entering(self, block: int, rows: Tensor) -> Tensor:
        """Return rows over a block's input tokens. Each of 2 x 2 merged tokens gets a quarter of the sum."""
        if not self.layouts[block].merges:
            return rows
        squares: Tensor = (rows / 4).unflatten(1, self.layouts[block].grid)  # (B, gh, gw)
        return squares.repeat_interleave(2, 1).repeat_interleave(2, 2).flatten(1)

    def attendable(self, block: int, gradient: Tensor) -> Tensor:
        """Return a matrix like a block's attention, such as its gradient, 0 for pairs of tokens that a mask separates.

        It has the form of the module's attention, and gets that of `call`.
        """
        gradient = self.layouts[block].arranged(gradient, self.batch, columns=True)
        return gradient.masked_fill(self.call(block).attentions.detach() < SEPARATED, 0.0)

    def matrix_grid(self, block: int) -> tuple[int, int]:
        """Return the rows and columns of patches of a window."""
        return self.layouts[block].side

    def matrix_spacing(self, block: int) -> tuple[int, int]:
        """Return the distance between neighbors in a window of a block, in rows and columns of its grid."""
        return self.layouts[block].spacing

    def place_of(self, block: int, token: int) -> tuple[int, int]:
        """Return the window of a token, and the token's row there."""
        return self.layouts[block].place_of(token)

    def per_image(self, block: int, values: Tensor, token: int | None = None) -> Tensor:
        """Return the mean of the windows' values over those without padding, or the values of a token's window."""
        of_windows: Tensor = values.unflatten(0, (self.batch, -1))  # (B * W, H) -> (B, W, H)
        if token is None:
            return of_windows[:, self.layouts[block].whole].mean(1)
        return of_windows[:, self.place_of(block, token)[0]]

    def attention(self, block: int) -> Tensor:
        """Return the attention matrix of a block: (B, H, N, N), float32; see `SparseAttention`."""
        return self.probabilities(block).dense()

    def probabilities(self, block: int) -> SparseAttention:
        """Return the attention probabilities of a block as a sparse matrix, zero between different windows."""
        return SparseAttention(self.call(block).attentions, self.layouts[block], partial(self.weights, block=block))

    def row(self, block: int, query: Query = "cls") -> Tensor:
        """Return the attention from `query` in `block`: (B, H, N); "mean" averages over the patches."""
        windows = self.layouts[block]
        rows = self.block(block).propagate(windows.split(self.weights(query, block)))  # (B * W, H, M)
        return windows.join(rows.mT).mT

    def column(self, block: int, key: Query = "cls") -> Tensor:
        """Return the attention from each token to `key` in `block`: (B, H, N); "mean" averages over the patches."""
        windows = self.layouts[block]
        return windows.join(self.block(block).mix(windows.split(self.weights(key, block))).mT).mT
