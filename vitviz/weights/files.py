"""One file of weights, without the settings it was trained with -> a model.

A file says names and shapes and nothing else. `recognise` tells the family from them; what they cannot say is taken
from the field's convention where there is one, and written down in `Pretrained.source`, or asked for.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch import Tensor

from vitviz.model import Pretrained, ViT
from vitviz.weights import pickled
from vitviz.weights.checks import (
    CheckpointError,
    Entry,
    Header,
    blank,
    check_kinds,
    check_sum,
    filled,
    foreign,
    read_header,
    read_tensors,
    some,
)
from vitviz.weights.recognise import recognise

SAFE, PICKLED = (".safetensors",), (".pt", ".pth", ".bin")
SUFFIXES = SAFE + PICKLED

# Where training scripts put the weights, the ones to prefer first: a running mean, what a student learned from.
NESTS = ("state_dict_ema", "model_ema", "teacher", "state_dict", "model_state_dict", "model")
MAX_NESTS = 3

# Wrappers that name every tensor after themselves: parallel training, torch.compile, a model inside a model.
PREFIXES = ("module.", "_orig_mod.", "backbone.", "model.")
# What self-supervised training keeps beside a backbone, to make its targets: neither a classifier nor attention.
PROJECTIONS = ("dino_head.", "ibot_head.", "head.mlp.", "head.last_layer.")


def load_file(path: str | os.PathLike[str], *, family: str | None = None, heads: int | None = None) -> ViT:
    """The model in one file: float32, on the CPU, in eval mode.

    Args:
        path: a `.safetensors` file, or one of `torch.save` with tensors by name (`.pt`, `.pth`, `.bin`), bare or under
            one of the usual keys (`NESTS`), with or without a wrapper's prefix.
        family: one of `recognise.FAMILIES`, where names and shapes cannot tell.
        heads: attention heads in each block, where the width is none of the published ones.

    Returns:
        The model. `pretrained.source` says what was assumed; there are no labels, because the file has none.

    Raises:
        CheckpointError: if the file is damaged, hostile, or holds something else than weights.
        ConvertError: if the model is none that can be shown, cannot be told from names and shapes, or lacks tensors.
    """
    path = Path(path)
    where = repr(str(path))
    under: tuple[str, ...] = ()
    _check_file(path)
    if path.suffix.lower() in SAFE:
        header = read_header(path)
    else:
        header, under = _find(pickled.outline(path), where)
    names, words = _own_names(header, where)
    found = recognise({name: header[theirs].shape for name, theirs in names.items()}, family=family, heads=heads)
    kept = {theirs: header[theirs] for name, theirs in names.items() if name not in found.unread}
    check_kinds(kept, where)
    check_sum(kept, path)
    tensors = _tensors(path, under, header)
    config, state = found.convert({name: tensors[theirs] for name, theirs in names.items()})
    nest = (f"the weights under {'.'.join(under)!r}",) if under else ()
    about = Pretrained(
        name=path.stem,
        preprocess=found.preprocess(config),
        source=f"file {path.name}, read as {found.words(config, (*nest, *words))}",
    )
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    return filled(blank(config, about, shapes, f"{where} does not fit together"), state, f"in {where}")


def _check_file(path: Path) -> None:
    """Refuse what is no file of weights by its first bytes, or is another kind than its name says."""
    where, suffix = repr(str(path)), path.suffix.lower()
    if suffix not in SUFFIXES:
        raise CheckpointError(f"{where}: expected a file that ends in {', '.join(SUFFIXES)}. Rename it if it is one.")
    if not path.is_file():
        came = "is a folder" if path.is_dir() else "does not exist"
        raise CheckpointError(f"Expected a file of weights, but {where} {came}.")
    with path.open("rb") as file:
        start = file.read(512)
    if not start:
        raise CheckpointError(f"{where} is empty: expected weights. Fetch or save it again.")
    if (known := foreign(start)) is not None:
        raise CheckpointError(f"{where} {known}")
    torch_made = start.startswith((pickled.ZIP, pickled.PICKLE))
    length = int.from_bytes(start[:8], "little")
    safe = start[8:9] == b"{" and length < 2**40
    if suffix in SAFE and torch_made and not safe:
        raise CheckpointError(f"{where} is a file of torch.save, not a safetensors file as its name says. Name it .pt.")
    if suffix in PICKLED and safe:
        raise CheckpointError(
            f"{where} is a safetensors file, not one of torch.save as its name says. Name it .safetensors."
        )
    if suffix in PICKLED and not torch_made:
        raise CheckpointError(f"{where} is no file of torch.save, or is damaged. Fetch or save it again.")


def _find(found: Any, where: str) -> tuple[Header, tuple[str, ...]]:
    """The state dict in what a file holds, and the keys that lead to it."""
    under: tuple[str, ...] = ()
    for _ in range(MAX_NESTS):
        if not isinstance(found, dict) or not found:
            came = "an empty dict" if found == {} else f"a {_kind(found)}"
            raise CheckpointError(f"{where}: expected a dict of tensors by name, got {came}{_below(under)}.")
        if wrong := [key for key in found if not isinstance(key, str)]:
            raise CheckpointError(
                f"{where}: expected names of tensors, got the key {wrong[0]!r:.40}{_below(under)}. "
                "A state dict has a name for each tensor."
            )
        if all(isinstance(item, Entry) for item in found.values()):
            return dict(found), under
        nest = next((key for key in NESTS if isinstance(found.get(key), dict)), None)
        if nest is None:
            other = [f"{key} ({_kind(item)})" for key, item in found.items() if not isinstance(item, Entry)]
            raise CheckpointError(
                f"{where}: expected tensors by name, or a dict of them under {', '.join(NESTS)}; got other things"
                f"{_below(under)}: {some(other)}."
            )
        found, under = found[nest], (*under, nest)
    raise CheckpointError(f"{where}: expected weights at most {MAX_NESTS - 1} keys deep, got {' > '.join(under)}.")


def _kind(item: Any) -> str:
    return "tensor" if isinstance(item, Entry) else type(item).__name__


def _below(under: tuple[str, ...]) -> str:
    return f" under {'.'.join(under)!r}" if under else ""


def _own_names(header: Header, where: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Names without what a wrapper put in front of all of them -> names in the file, and what was left out."""
    names = {name: name for name in header}
    words: tuple[str, ...] = ()
    stripped = True
    while stripped and names:
        stripped = False
        if any(name.startswith("backbone.") for name in names):
            rest = {name: theirs for name, theirs in names.items() if not name.startswith(PROJECTIONS)}
            if len(rest) < len(names) and all(name.startswith("backbone.") for name in rest):
                names, words = rest, ("without the projection head of its training",)
        for prefix in PREFIXES:
            if all(name.startswith(prefix) for name in names):
                names = {name.removeprefix(prefix): theirs for name, theirs in names.items()}
                stripped = True
    if not names or "" in names:
        raise CheckpointError(f"{where}: expected tensors by name, but there is none.")
    return names, words


def _tensors(path: Path, under: tuple[str, ...], header: Header) -> dict[str, Tensor]:
    """The numbers, if they are what the header said."""
    if path.suffix.lower() in SAFE:
        return read_tensors(path)
    loaded = pickled.load(path)
    for key in under:
        loaded = loaded[key]
    for name, entry in header.items():
        if not isinstance(loaded.get(name), Tensor) or tuple(loaded[name].shape) != entry.shape:
            raise CheckpointError(f"{str(path)!r} is damaged: {name!r:.80} is not what its description says.")
    return {name: loaded[name].detach() for name in header}
