"""Describe edits of a forward pass as data: heads silenced, edges of attention cut, patches removed.

`ViT.forward`, `ViT.run` and `ViT.trace` take `Edits` as an argument; the model is not changed.

Shapes: B images, H heads, N tokens = P prefix tokens followed by n = gh x gw patches, K remaining patches, D width, d
head width.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from vitviz.model.config import ModelError, ViTConfig
from vitviz.model.positions import Angles

HeadMode = Literal["zero", "mean"]


class EditError(ModelError):
    """Raised for edits that do not fit the model or the images."""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Edges of attention to mask before the softmax, from each of `queries` to each of `keys`.

    The rest of each row is rescaled to sum to 1.

    Args:
        block: index from 0, negative from the last; `None` for every block.
        head: index from 0; `None` for every head.
        queries, keys: token indices in the full sequence (prefix first, then patches in reading order), even if patches
            are removed; `None` for all tokens.
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
    """Edits of a forward pass. `a | b` applies both; their order does not matter.

    >>> both = Edits(heads={(-1, 2): "zero"}) | Edits(cuts=[Cut(block=0, queries=(0,), keys=(5, 6))])
    >>> len(both.heads), len(both.cuts)
    (1, 1)

    Args:
        heads: (block, head) -> "zero" or "mean": replaces the head's output (B, N, d), before the output projection, by
            zero, or by its mean over all tokens of the image. A negative block counts from the last.
        cuts: edges of attention to cut.
        keep: (B, K) or (1, K), indices from 0 to n - 1 of the patches that stay. Other patches are removed from
            the sequence after the embedding, so the remaining patches keep their positions.

    Raises:
        EditError: on construction, if the edits are invalid for any model; when applied, if the model, grid or batch
            does not fit, or cuts leave a token no keys to attend to.
    """

    heads: Mapping[tuple[int, int], HeadMode] = field(default_factory=dict)
    cuts: Sequence[Cut] = ()
    keep: Tensor | None = None
    _highest: int = field(default=-1, init=False, repr=False)  # maximum of `keep`, cached

    def __post_init__(self) -> None:
        heads: dict[tuple[int, int], HeadMode] = {}
        for place, mode in self.heads.items():
            if not isinstance(place, tuple) or len(place) != 2:
                raise EditError(f"Expected heads as (block, head), got {place!r}. Write heads={{(0, 1): 'zero'}}.")
            if mode not in get_args(HeadMode):
                raise EditError(f"Expected 'zero' or 'mean' for head {place}, got {mode!r}. Choose one of them.")
            heads[_whole("block", place[0]), _whole("head", place[1])] = mode
        cuts = tuple(self.cuts)
        if wrong := [cut for cut in cuts if not isinstance(cut, Cut)]:
            raise EditError(f"Expected cuts as Cut objects, got {wrong[0]!r}. Write cuts=[Cut(...)].")
        object.__setattr__(self, "heads", heads)
        object.__setattr__(self, "cuts", cuts)
        if self.keep is not None:
            keep = _sorted_patches(self.keep)
            object.__setattr__(self, "keep", keep)
            object.__setattr__(self, "_highest", int(keep.max()) if keep.numel() else -1)

    def __bool__(self) -> bool:
        return bool(self.heads or self.cuts or self.keep is not None)

    def __or__(self, other: Edits) -> Edits:
        for place in set(self.heads) & set(other.heads):
            _same_mode(place, self.heads[place], other.heads[place])
        keeps = [keep for keep in (self.keep, other.keep) if keep is not None]
        keep = _intersection(*keeps) if len(keeps) == 2 else keeps[0] if keeps else None
        return Edits(heads={**self.heads, **other.heads}, cuts=(*self.cuts, *other.cuts), keep=keep)

    def gather(self, tokens: Tensor, angles: Angles | None, config: ViTConfig) -> tuple[Tensor, Angles | None]:
        """Remove patches from the tokens, (B, P + n, D) -> (B, P + K, D), and from the rotations.

        Raises:
            EditError: if `keep` does not fit the tokens, or leaves no tokens.
        """
        if self.keep is None:
            return tokens, angles
        prefix = len(config.prefix)
        keep = self._keep_for(config, len(tokens), tokens.shape[1] - prefix).to(tokens.device)  # (B, K)
        if angles is not None:
            angles = angles.keep(keep)
        index = keep[..., None].expand(-1, -1, tokens.shape[2])  # (B, K, D)
        return torch.cat([tokens[:, :prefix], tokens[:, prefix:].gather(1, index)], dim=1), angles

    def by_block(self, config: ViTConfig, batch: int, tokens: int, device: torch.device) -> dict[int, BlockEdit]:
        """Return the edits by block, for B images with N tokens before removal.

        Raises:
            EditError: if a block, head or token does not exist, or a token has no keys to attend to.
        """
        modes: dict[int, dict[int, HeadMode]] = {}
        for (block, head), mode in self.heads.items():
            of_block = modes.setdefault(index_in("block", block, config.depth, negative=True), {})
            index = index_in("head", head, config.heads)
            _same_mode((block, head), of_block.get(index, mode), mode)
            of_block[index] = mode
        cuts: dict[int, list[Cut]] = {}
        for cut in self.cuts:
            only = None if cut.block is None else index_in("block", cut.block, config.depth, negative=True)
            for block in range(config.depth) if only is None else [only]:
                cuts.setdefault(block, []).append(cut)
        edits = {}
        for block in sorted({*modes, *cuts}):
            of_block = modes.get(block, {})
            flags = [[of_block.get(head) == mode for head in range(config.heads)] for mode in get_args(HeadMode)]
            zero, mean = (torch.tensor(row, device=device)[:, None, None] if any(row) else None for row in flags)
            mask = self._mask(block, cuts[block], config, batch, tokens).to(device) if block in cuts else None
            edits[block] = BlockEdit(zero, mean, mask)
        return edits

    def grid(self, grid: tuple[int, int]) -> tuple[int, int]:
        """Return the grid of the remaining patches.

        Raises:
            EditError: unless they form a rectangle of the same size in every image.
        """
        if self.keep is None:
            return grid
        self._check_range(grid[0] * grid[1])
        sizes = set()
        if self.keep.numel():
            axes = self.keep // grid[1], self.keep % grid[1]  # rows and columns, (B, K) each
            spans = [(axis.amax(1) - axis.amin(1) + 1).tolist() for axis in axes]
            sizes = set(zip(*spans, strict=True))
        count = self.keep.shape[1]
        # K different patches within a rectangle of K patches fill it.
        if len(sizes) != 1 or any(height * width != count for height, width in sizes):
            raise EditError(
                f"Expected a rectangle of patches, of equal size in every image, for a trace, got {count} of {grid[0]} "
                f"x {grid[1]} patches that do not form one. Keep a rectangle, or call model(images, edits)."
            )
        height, width = sizes.pop()
        return height, width

    def _keep_for(self, config: ViTConfig, batch: int, patches: int) -> Tensor:
        """Return `keep` for each image: (B, K)."""
        keep = self.keep
        assert keep is not None  # checked by the callers
        if len(keep) not in (1, batch):
            raise EditError(
                f"Expected keep of shape (batch, K) with a batch of {batch} or 1, got {tuple(keep.shape)}. "
                "Give one row for each image, or one for all."
            )
        self._check_range(patches)
        if keep.shape[1] == 0 and (not config.prefix or "mean" in config.pooling):
            raise EditError("Expected at least one patch to stay, got none; this model pools patches. Keep some.")
        return keep.expand(batch, -1)

    def _check_range(self, patches: int) -> None:
        if self._highest >= patches:
            raise EditError(f"Expected patches among 0..{patches - 1} in keep, got {self._highest}. Remove it.")

    def _mask(self, block: int, cuts: Sequence[Cut], config: ViTConfig, batch: int, tokens: int) -> Tensor:
        """Return the mask of remaining edges between remaining tokens: (1 or B, 1 or H, N, N)."""
        all_heads = all(cut.head is None for cut in cuts)
        mask = torch.ones(1, 1 if all_heads else config.heads, tokens, tokens, dtype=torch.bool)
        for cut in cuts:
            heads = slice(None) if cut.head is None else index_in("head", cut.head, config.heads)
            queries, keys = (_tokens(indices, tokens) for indices in (cut.queries, cut.keys))
            mask[0, heads, queries[:, None], keys] = False
        remaining = torch.arange(tokens)[None]  # (1, N)
        if self.keep is not None:
            prefix = len(config.prefix)
            keep = self._keep_for(config, batch, tokens - prefix).cpu() + prefix
            remaining = torch.cat([remaining[:, :prefix].expand(batch, -1), keep], dim=1)  # (B, P + K)
            mask = torch.stack([mask[0][:, row][:, :, row] for row in remaining])  # (H, N, N) -> (B, H, P + K, P + K)
        empty = ~mask.any(dim=-1)  # (B, H, N)
        if empty.any():
            image, head, row = empty.nonzero()[0].tolist()
            raise EditError(
                f"Expected at least one key for every token, got cuts that leave token "
                f"{int(remaining[image, row])} without keys in block {block}, "
                f"{'every head' if all_heads else f'head {head}'}. Keep a key, for instance the token itself; to "
                "silence a head, use heads={(block, head): 'zero'}."
            )
        return mask


@dataclass(frozen=True, eq=False)
class Replacement:
    """Other values for some outputs of a run.

    Args:
        values: the values, broadcastable to the outputs.
        keep: share of the own output that stays, broadcastable to the outputs: 0 for the other values alone.
    """

    values: Tensor
    keep: Tensor

    def apply(self, own: Tensor) -> Tensor:
        """Mix the own output with the values."""
        return self.values + self.keep * (own - self.values)


@dataclass(frozen=True, eq=False)
class BlockEdit:
    """Checked edits of one block.

    Args:
        zero, mean: (H, 1, 1), true for heads whose output is replaced by zero, or by its mean over tokens.
        mask: (1 or B, 1 or H, N, N), false where an edge is cut.
        scale: (B, H, 1, 1), factors for the heads' outputs.
        heads: replacement of the heads' outputs, (B, H, N, d).
        mlp: replacement of the MLP's output, (B, N, D), before layer scale and norm.
    """

    zero: Tensor | None = None
    mean: Tensor | None = None
    mask: Tensor | None = None
    scale: Tensor | None = None
    heads: Replacement | None = None
    mlp: Replacement | None = None

    def apply(self, mixed: Tensor) -> Tensor:
        """Edit the heads' outputs before the output projection: (B, H, N, d) -> (B, H, N, d)."""
        if self.mean is not None:
            mixed = torch.where(self.mean, mixed.mean(dim=2, keepdim=True), mixed)  # (B, H, 1, d) -> (B, H, N, d)
        if self.zero is not None:
            mixed = mixed.masked_fill(self.zero, 0.0)
        mixed = mixed if self.heads is None else self.heads.apply(mixed)
        return mixed if self.scale is None else mixed * self.scale


def _whole(name: str, value: Any) -> int:
    """Convert a whole number, such as NumPy's, to int."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise EditError(f"Expected a whole number as the {name}, got {value!r}. Count from 0.") from None


def index_in(name: str, value: int, count: int, negative: bool = False) -> int:
    """Return an index from 0 to count - 1; with `negative`, -1 is the last.

    Raises:
        EditError: if it is out of range.
    """
    if not (-count if negative else 0) <= value < count:
        also = f" (or -{count}..-1)" if negative else ""
        raise EditError(f"Expected a {name} among 0..{count - 1}{also}, got {value}. Choose one of them.")
    return value % count


def _tokens(chosen: tuple[int, ...] | None, count: int) -> Tensor:
    """Return token indices of the full sequence as a tensor."""
    if chosen is None:
        return torch.arange(count)
    return torch.tensor([index_in("token", token, count) for token in chosen], dtype=torch.long)


def _same_mode(place: tuple[int, int], first: HeadMode, second: HeadMode) -> None:
    if first != second:
        raise EditError(f"Expected one edit for head {place}, got {first!r} and {second!r}. Remove one.")


def _sorted_patches(keep: object) -> Tensor:
    """Check `keep` and sort each row: (B, K), long. The order does not matter, because positions move with patches."""
    if not isinstance(keep, Tensor) or keep.ndim != 2 or keep.is_floating_point() or keep.dtype == torch.bool:
        got = f"{keep.dtype} {tuple(keep.shape)}" if isinstance(keep, Tensor) else repr(keep)
        raise EditError(f"Expected keep as a tensor (batch, K), got {got}. Give patch indices as integers.")
    keep = keep.detach().long().sort(dim=1).values
    if keep.numel() and int(keep.min()) < 0:
        raise EditError(f"Expected patches counted from 0 in keep, got {int(keep.min())}. Remove it.")
    if bool((keep[:, 1:] == keep[:, :-1]).any()):
        raise EditError("Expected each patch at most once in keep, got a patch twice in one image. Remove one.")
    return keep


def _intersection(first: Tensor, second: Tensor) -> Tensor:
    """Return the patches in both: (B, K), (B, L) -> (B, M)."""
    batch = max(len(first), len(second))
    if {len(first), len(second)} - {1, batch}:
        raise EditError(
            f"Expected edits for the same batch, got keep for {len(first)} and for {len(second)} images. "
            "Give both the same number of rows, or one of them a single row."
        )
    first, second = first.expand(batch, -1), second.to(first.device).expand(batch, -1)
    shared = (first[:, :, None] == second[:, None]).any(dim=2)  # (B, K, L) -> (B, K)
    counts = shared.sum(dim=1)
    if batch and bool((counts != counts[0]).any()):
        raise EditError(
            f"Expected the same number of patches to stay in every image, got {counts.tolist()} when both edits are "
            "applied. Run these images one by one."
        )
    return first[shared].unflatten(0, (batch, -1)) if first.numel() else first
