"""What to change inside a run: heads silenced, edges of attention cut, patches taken out. Data, not hooks.

`Edits` say what; `ViT.forward`, `ViT.run` and `ViT.trace` take them as an argument, and the model stays as it is.

Shapes: B images, H heads, N tokens = P prefix tokens followed by n = gh x gw patches, K patches that stay, D width, d
head width.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from vitviz.config import ModelError, ViTConfig
from vitviz.trace import BlockTrace

HeadMode = Literal["zero", "mean"]
Angles = tuple[Tensor, Tensor]


class EditError(ModelError):
    """Edits that this model or these images do not admit; the text says what there is."""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Edges of attention to cut, from each of `queries` to each of `keys`: masked before the softmax.

    What is left of a row is rescaled to sum to 1.

    Args:
        block: counted from 0, negative from the last; `None` for every block.
        head: counted from 0; `None` for every head.
        queries, keys: tokens, counted from 0 in the whole sequence (prefix first, then patches in reading order), also
            where patches were removed; `None` for all tokens.
    """

    block: int | None = None
    head: int | None = None
    queries: tuple[int, ...] | None = None
    keys: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("block", "head"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _whole(name, getattr(self, name)))
        for name in ("queries", "keys"):
            if (tokens := getattr(self, name)) is not None:
                listed = tokens if isinstance(tokens, Iterable) and not isinstance(tokens, str) else (tokens,)
                object.__setattr__(self, name, tuple(_whole(name, token) for token in listed))


@dataclass(frozen=True, eq=False, kw_only=True)
class Edits:
    """What to change in a run. `a | b` does both; the order does not matter.

    >>> both = Edits(heads={(-1, 2): "zero"}) | Edits(cuts=[Cut(block=0, queries=(0,), keys=(5, 6))])
    >>> len(both.heads), len(both.cuts)
    (1, 1)

    Args:
        heads: (block, head) -> "zero" or "mean": the head's output (B, N, d), which enters the output projection,
            becomes zero, or at every token its mean over the tokens (prefix too) of the same image. A negative block
            counts from the last.
        cuts: edges of attention that are cut.
        keep: (B, K) or (1, K), whole numbers: the patches that stay, in reading order from 0 to n - 1. The others are
            removed from the sequence after the embedding, so that those that stay keep their positions.

    Raises:
        EditError: here for what makes no sense anywhere; when the edits are applied for what this model, grid or batch
            does not have, and for cuts that leave a token nothing to attend to.
    """

    heads: Mapping[tuple[int, int], HeadMode] = field(default_factory=dict)
    cuts: Sequence[Cut] = ()
    keep: Tensor | None = None
    _highest: int = field(default=-1, init=False, repr=False)  # of `keep`: looked up once, not in each run

    def __post_init__(self) -> None:
        heads: dict[tuple[int, int], HeadMode] = {}
        for place, mode in self.heads.items():
            if not isinstance(place, tuple) or len(place) != 2:
                raise EditError(f"Expected heads as (block, head), got {place!r}.")
            if mode not in get_args(HeadMode):
                raise EditError(f"Expected 'zero' or 'mean' for head {place}, got {mode!r}.")
            heads[_whole("block", place[0]), _whole("head", place[1])] = mode
        cuts = tuple(self.cuts)
        if wrong := [cut for cut in cuts if not isinstance(cut, Cut)]:
            raise EditError(f"Expected cuts as Cut(...), got {wrong[0]!r}.")
        object.__setattr__(self, "heads", heads)
        object.__setattr__(self, "cuts", cuts)
        if self.keep is not None:
            keep = _in_order(self.keep)
            object.__setattr__(self, "keep", keep)
            object.__setattr__(self, "_highest", int(keep.max()) if keep.numel() else -1)

    def __bool__(self) -> bool:
        return bool(self.heads or self.cuts or self.keep is not None)

    def __or__(self, other: Edits) -> Edits:
        for place in set(self.heads) & set(other.heads):
            _same_mode(place, self.heads[place], other.heads[place])
        keep = self.keep if other.keep is None else other.keep if self.keep is None else _common(self.keep, other.keep)
        return Edits(heads={**self.heads, **other.heads}, cuts=(*self.cuts, *other.cuts), keep=keep)

    def gather(self, tokens: Tensor, angles: Angles | None, config: ViTConfig) -> tuple[Tensor, Angles | None]:
        """The sequence that is left: (B, P + n, D) -> (B, P + K, D), and the rotations of its patches.

        Raises:
            EditError: if `keep` does not fit the tokens, or leaves nothing to read the answer from.
        """
        if self.keep is None:
            return tokens, angles
        prefix = len(config.prefix)
        keep = self._fitting(config, len(tokens), tokens.shape[1] - prefix).to(tokens.device)  # (B, K)
        if angles is not None:
            cos, sin = (angle[keep][:, None] for angle in angles)  # (n, d) -> (B, K, d) -> (B, 1, K, d)
            angles = cos, sin
        index = keep[..., None].expand(-1, -1, tokens.shape[2])  # (B, K, D)
        return torch.cat([tokens[:, :prefix], tokens[:, prefix:].gather(1, index)], dim=1), angles

    def by_block(self, config: ViTConfig, batch: int, tokens: int, device: torch.device) -> dict[int, BlockEdit]:
        """The changes of heads and edges for each block that has some.

        Args:
            config: of the model.
            batch: B.
            tokens: N, before patches are removed.
            device: where the masks are to lie.

        Raises:
            EditError: if there is no such block, head or token, or a token is left with nothing to attend to.
        """
        modes: dict[int, dict[int, HeadMode]] = {}
        for (block, head), mode in self.heads.items():
            of = modes.setdefault(_index("block", block, config.depth, negative=True), {})
            index = _index("head", head, config.heads)
            _same_mode((block, head), of.get(index, mode), mode)
            of[index] = mode
        cut: dict[int, list[Cut]] = {}
        for one in self.cuts:
            one_block = None if one.block is None else _index("block", one.block, config.depth, negative=True)
            for block in range(config.depth) if one_block is None else (one_block,):
                cut.setdefault(block, []).append(one)
        edits = {}
        for block in sorted({*modes, *cut}):
            chosen = [[modes.get(block, {}).get(head) == mode for head in range(config.heads)] for mode in MODES]
            zero, mean = (torch.tensor(of, device=device)[:, None, None] if any(of) else None for of in chosen)
            mask = self._mask(block, cut[block], config, batch, tokens).to(device) if block in cut else None
            edits[block] = BlockEdit(zero, mean, mask)
        return edits

    def grid(self, grid: tuple[int, int]) -> tuple[int, int]:
        """The grid of the patches that stay.

        Raises:
            EditError: if they are no full rectangle of the same size in every image.
        """
        if self.keep is None:
            return grid
        rows, columns = self.keep // grid[1], self.keep % grid[1]  # (B, K) each
        sizes = set()
        if self.keep.numel():
            spans = [(axis.amax(1) - axis.amin(1) + 1).tolist() for axis in (rows, columns)]
            sizes = set(zip(*spans, strict=True))
        count = self.keep.shape[1]
        # K different patches within a rectangle of K patches fill it.
        if len(sizes) != 1 or any(height * width != count for height, width in sizes):
            raise EditError(
                f"A trace needs a grid of patches, and these {count} of {grid[0]} x {grid[1]} are no full rectangle of "
                "one size in every image. Keep a rectangle, or ask model(images, edits) for the answer alone."
            )
        height, width = sizes.pop()
        return height, width

    def _fitting(self, config: ViTConfig, batch: int, patches: int) -> Tensor:
        """`keep` for each image: (B, K)."""
        keep = self.keep
        assert keep is not None  # the callers looked
        if len(keep) not in (1, batch):
            raise EditError(f"Expected keep of shape (batch, K) with a batch of {batch} or 1, got {tuple(keep.shape)}.")
        if self._highest >= patches:
            raise EditError(f"Expected patches among 0..{patches - 1} in keep, got {self._highest}.")
        if keep.shape[1] == 0 and (not config.prefix or "mean" in config.pooling):
            raise EditError("Expected at least one patch to stay: this model reads its answer from the patches.")
        return keep.expand(batch, -1)

    def _mask(self, block: int, cuts: Iterable[Cut], config: ViTConfig, batch: int, tokens: int) -> Tensor:
        """Which edges of a block are left: (1 or B, 1 or H, N, N), of the tokens that stay."""
        cuts = tuple(cuts)
        every = all(cut.head is None for cut in cuts)
        left = torch.ones(1, 1 if every else config.heads, tokens, tokens, dtype=torch.bool)
        for cut in cuts:
            heads = slice(None) if cut.head is None else _index("head", cut.head, config.heads)
            queries, keys = (_tokens(some, tokens) for some in (cut.queries, cut.keys))
            left[0, heads, queries[:, None], keys] = False
        stay = torch.arange(tokens)[None]  # (1, N)
        if self.keep is not None:
            prefix = len(config.prefix)
            keep = self._fitting(config, batch, tokens - prefix).cpu() + prefix
            stay = torch.cat([stay[:, :prefix].expand(batch, -1), keep], dim=1)  # (B, P + K)
            left = torch.stack([left[0][:, one][:, :, one] for one in stay])  # (H, N, N) -> (B, H, P + K, P + K)
        empty = ~left.any(dim=-1)  # (B, H, N)
        if empty.any():
            image, head, row = empty.nonzero()[0].tolist()
            raise EditError(
                "Expected every token to have something left to attend to, but these cuts leave token "
                f"{int(stay[image, row])} nothing in block {block}, {'every head' if every else f'head {head}'}. "
                "Leave it a key, for instance itself; to silence a head use heads={(block, head): 'zero'}."
            )
        return left


MODES: tuple[HeadMode, ...] = get_args(HeadMode)


@dataclass(frozen=True, eq=False)
class BlockEdit:
    """The edits of one block, checked: what its attention is computed with.

    `zero` and `mean` (H, 1, 1) say for which heads; `mask` (1 or B, 1 or H, N, N) is false where an edge is cut.
    """

    zero: Tensor | None = None
    mean: Tensor | None = None
    mask: Tensor | None = None

    def heads(self, mixed: Tensor) -> Tensor:
        """The heads' outputs as they enter the output projection: (B, H, N, d) -> (B, H, N, d)."""
        if self.mean is not None:
            mixed = torch.where(self.mean, mixed.mean(dim=2, keepdim=True), mixed)  # (B, H, 1, d) -> (B, H, N, d)
        return mixed if self.zero is None else mixed.masked_fill(self.zero, 0.0)


@dataclass(frozen=True, eq=False)
class CutTrace(BlockTrace):
    """The attention of a block with cut edges: its probabilities (B, H, N, N) are kept.

    They cannot be made again from queries and keys, which know of no cut.
    """

    def image(self, index: int) -> CutTrace:
        """One image of the batch, as a batch of one (views, not copies)."""
        one = super().image(index)
        return CutTrace(one.queries, one.keys, one.lse, one.probabilities)

    def log_rows(self, start: int, stop: int) -> Tensor:
        """Logarithm of the attention of the tokens start..stop-1: (B, H, stop - start, N), float32, all finite.

        A cut edge, whose attention is 0, has the logarithm of the smallest float32.
        """
        return self.rows(start, stop).clamp_min(torch.finfo(torch.float32).tiny).log()


def _whole(name: str, value: object) -> int:
    """A whole number as Python's own; NumPy's are welcome."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise EditError(f"{name}: expected a whole number, got {value!r}.") from None


def _index(name: str, value: int, count: int, negative: bool = False) -> int:
    if not (-count if negative else 0) <= value < count:
        also = f" (or -{count}..-1)" if negative else ""
        raise EditError(f"Expected a {name} among 0..{count - 1}{also}, got {value}.")
    return value % count


def _tokens(some: tuple[int, ...] | None, count: int) -> Tensor:
    """Tokens of the whole sequence as indices."""
    if some is None:
        return torch.arange(count)
    return torch.tensor([_index("token", token, count) for token in some], dtype=torch.long)


def _same_mode(place: tuple[int, int], first: HeadMode, second: HeadMode) -> None:
    if first != second:
        raise EditError(f"Expected one edit for head {place}, got {first!r} and {second!r}. Leave one out.")


def _in_order(keep: object) -> Tensor:
    """`keep` checked, in reading order: (B, K), long. The order says nothing, as positions go with their patches."""
    if not isinstance(keep, Tensor) or keep.ndim != 2 or keep.is_floating_point() or keep.dtype == torch.bool:
        got = f"{keep.dtype} {tuple(keep.shape)}" if isinstance(keep, Tensor) else repr(keep)
        raise EditError(f"Expected keep as a tensor (batch, K) of whole numbers, one for each patch; got {got}.")
    keep = keep.detach().long().sort(dim=1).values
    if keep.numel() and int(keep.min()) < 0:
        raise EditError(f"Expected patches counted from 0 in keep, got {int(keep.min())}.")
    if bool((keep[:, 1:] == keep[:, :-1]).any()):
        raise EditError("Expected each patch at most once in keep, got some twice in one image.")
    return keep


def _common(first: Tensor, second: Tensor) -> Tensor:
    """The patches that stay in both: (B, K), (B, L) -> (B, M)."""
    batch = max(len(first), len(second))
    if {len(first), len(second)} - {1, batch}:
        raise EditError(f"Expected edits of one batch, got keep for {len(first)} and for {len(second)} images.")
    first, second = first.expand(batch, -1), second.to(first.device).expand(batch, -1)
    shared = (first[:, :, None] == second[:, None]).any(dim=2)  # (B, K, L) -> (B, K)
    counts = shared.sum(dim=1)
    if batch and bool((counts != counts[0]).any()):
        raise EditError(
            f"Expected the same number of patches to stay in every image, got {counts.tolist()} when both edits are "
            "applied. Run these images one by one."
        )
    return first[shared].unflatten(0, (batch, -1)) if first.numel() else first
