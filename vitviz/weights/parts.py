"""Parts that state dicts of several libraries share: linear maps, norms, queries, keys and values in three matrices.

Each function takes its tensors from a `Source` and returns them under our names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from vitviz.weights.source import ConvertError, Source

State = dict[str, Tensor]


def open_source(
    state: Mapping[str, Tensor], family: str, *, prefix: str = "", leave: Iterable[str] = ()
) -> tuple[Source, set[str]]:
    """A source in float32 without the base model's prefix, and the names in it.

    Args:
        state: the state dict; it is not changed.
        family: for the error texts.
        prefix: stripped from the names that have it, such as "vit." in the files of classifiers.
        leave: beginnings of names, before the prefix is stripped, that the caller has a reason to leave out.

    Raises:
        ConvertError: if a tensor is there with and without the prefix.
    """
    left_out = tuple(leave)
    kept = {name: tensor for name, tensor in state.items() if not name.startswith(left_out)}
    bare = {name.removeprefix(prefix): tensor.float() for name, tensor in kept.items()}
    if len(bare) != len(kept):
        twice = next(name for name in kept if name.startswith(prefix) and name.removeprefix(prefix) in kept)
        raise ConvertError(f"Expected each tensor of {family} weights once, got {twice!r} with and without {prefix!r}.")
    return Source(bare, family), set(bare)


def finish(source: Source, new: State) -> State:
    """Check that nothing is left; copies, so that the result shares no memory with the source."""
    source.finish()
    return {name: tensor.clone() for name, tensor in new.items()}


def linear(source: Source, ours: str, theirs: str, rows: int, columns: int, *, bias: bool = True) -> State:
    """A linear map: weight (rows, columns) and, if it has one, bias (rows,)."""
    new = {f"{ours}.weight": source.take(f"{theirs}.weight", rows, columns)}
    if bias:
        new[f"{ours}.bias"] = source.take(f"{theirs}.bias", rows)
    return new


def norm(source: Source, ours: str, theirs: str, width: int) -> State:
    """A layer norm: weight and bias, (width,) each."""
    return {f"{ours}.{part}": source.take(f"{theirs}.{part}", width) for part in ("weight", "bias")}


def patches(source: Source, theirs: str, shape: tuple[int, int, int, int], *, bias: bool = True) -> State:
    """The patch embedding: a convolution with weight (D, channels, p, p)."""
    new = {"patch_embed.proj.weight": source.take(f"{theirs}.weight", *shape)}
    if bias:
        new["patch_embed.proj.bias"] = source.take(f"{theirs}.bias", shape[0])
    return new


def stacked(
    source: Source,
    ours: str,
    theirs: tuple[str, ...],
    rows: int,
    columns: int,
    biases: tuple[bool, ...] | None = None,
) -> State:
    """Several maps (rows, columns), one above the other: queries, keys and values, or a gate and what it gates.

    `biases` says which of them have a bias; where some have and some have not, adding zero is the same as having none.
    """
    biases = biases or (True,) * len(theirs)
    new = {f"{ours}.weight": torch.cat([source.take(f"{part}.weight", rows, columns) for part in theirs])}
    if any(biases):
        new[f"{ours}.bias"] = torch.cat(
            [
                source.take(f"{part}.bias", rows) if there else torch.zeros(rows)
                for part, there in zip(theirs, biases, strict=True)
            ]
        )
    return new


def within(prefix: str, state: State) -> State:
    """The same tensors, each name behind a prefix."""
    return {prefix + name: tensor for name, tensor in state.items()}
