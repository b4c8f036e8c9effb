"""What a file of weights has to pass before it is believed: its header first, then its shapes, then its numbers.

Nothing here unpickles. Memory is taken only after the header was checked, and never much more than the file is long.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitviz.config import ViTConfig
from vitviz.model import Pretrained, ViT

FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}  # bytes of one number
MAX_HEADER_BYTES = 4 * 2**20  # names and shapes of 40,000 tensors; the largest Vision Transformers have 2,000
_MAY_BE_EMPTY = ("register_tokens", "reg_token")  # (1, 0, D) where there are no registers
_COUNTING = ("position_ids",)  # 0, 1, 2, ... in older files; no weights, so they may be integers


class CheckpointError(ValueError):
    """A checkpoint that cannot be read or written; the text says what was expected, what came and what to do."""


@dataclass(frozen=True)
class Entry:
    """One tensor as a header describes it: its shape, and its type in the words of safetensors ("F32")."""

    shape: tuple[int, ...]
    kind: str

    @property
    def count(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


Header = dict[str, Entry]


# --- safetensors


def read_header(path: Path) -> Header:
    """Names, shapes and types of a safetensors file; nothing else of it is read.

    Raises:
        CheckpointError: if it is no such file, is damaged, or has a header longer than `MAX_HEADER_BYTES`.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
        if MAX_HEADER_BYTES < length <= path.stat().st_size - 8:
            raise CheckpointError(
                f"{str(path)!r} has a header of {length:,} bytes: expected at most {MAX_HEADER_BYTES:,}, names and "
                "shapes of tensors. It is not read."
            )
        # The library checks that the header fits into the file and that the tensors cover it without gap or overlap.
        with safe_open(path, framework="pt") as weights:
            slices = {name: weights.get_slice(name) for name in weights.keys()}  # noqa: SIM118
            return {name: Entry(tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()}
    except (SafetensorError, OSError) as error:
        refuse_file(path, error)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, as they are; call `read_header` and check what it says first."""
    try:
        with safe_open(path, framework="pt") as weights:
            return {name: weights.get_tensor(name) for name in weights.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        refuse_file(path, error)


def refuse_file(path: Path, error: Exception) -> NoReturn:
    """The library's one-word error as a sentence; the word stays at its end."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(512)
    if (known := foreign(start)) is not None:
        text = known
    elif size >= 8 and (length := int.from_bytes(start[:8], "little")) > size - 8:
        text = f"is cut short or no safetensors file: it announces a header of {length:,} bytes and is {size:,} long."
    else:
        text = "is damaged or no safetensors file. Fetch or save it again."
    raise CheckpointError(f"{str(path)!r} {text} ({error})") from error


def foreign(start: bytes) -> str | None:
    """What a file is that holds no weights at all, told from its first bytes; `None` for any other."""
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith(b"version https://git-lfs"):
        return "is a pointer of Git LFS, not the weights themselves. Run `git lfs pull` in that repository."
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        return "is a web page, not weights: a download that ended at a login or an error. Fetch the file itself."
    if text and all(byte in b"\t\r\n" or 32 <= byte < 127 for byte in start):
        return f"is text, not weights: it begins with {start[:40].decode('ascii')!r}."
    return None


# --- what a header says


def check_kinds(header: Header, where: str) -> None:
    """Refuse weights that are no floating-point numbers, and tensors without any number in them.

    Raises:
        CheckpointError: naming the first of them.
    """
    weights = {name: entry for name, entry in header.items() if not name.endswith(_COUNTING)}
    if wrong := {name: entry.kind for name, entry in weights.items() if entry.kind not in FLOATS}:
        name, kind = next(iter(wrong.items()))
        raise CheckpointError(
            f"{where}: expected weights of {', '.join(FLOATS)}, got {kind} in {name!r}"
            f"{f' and {len(wrong) - 1} more' if len(wrong) > 1 else ''}. Quantised weights have to be expanded first."
        )
    # Without a number in it a tensor may claim any size for nothing.
    if empty := [name for name, entry in weights.items() if not entry.count and not name.endswith(_MAY_BE_EMPTY)]:
        name = empty[0]
        raise CheckpointError(f"{where}: expected numbers in every tensor, but {name!r} is {header[name].shape}.")


def check_sum(header: Header, path: Path) -> None:
    """Refuse tensors that together claim more than the file is long: many may look into the same numbers.

    Raises:
        CheckpointError: saying both lengths.
    """
    claimed = sum(entry.count * FLOATS.get(entry.kind, 1) for entry in header.values())
    if claimed > (size := path.stat().st_size):
        raise CheckpointError(
            f"{str(path)!r} is {size:,} bytes long, but its tensors claim {claimed:,}: they share their numbers. "
            "Save a copy of each: {name: tensor.clone() ...}."
        )


def blank(config: ViTConfig, about: Pretrained | None, found: Mapping[str, tuple[int, ...]], misfit: str) -> ViT:
    """A model without memory behind its weights, if `found` are exactly the weights that it needs.

    Args:
        config, about: of the model.
        found: shapes by name, in our names.
        misfit: how the text of an error begins: which file does not fit what.

    Raises:
        CheckpointError: naming tensors that are missing, too many, or shaped otherwise.
    """
    _check_size(config, found, misfit)
    with torch.device("meta"), NoDraws():
        model = ViT(config, about)
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for problem, names in (
        ("missing", sorted(set(wanted) - set(found))),
        ("too many", sorted(set(found) - set(wanted))),
    ):
        if names:
            raise CheckpointError(f"{misfit}: tensors {problem}: {some(names)}.")
    if wrong := sorted(name for name in wanted if wanted[name] != tuple(found[name])):
        shapes = some([f"{name} (expected {wanted[name]}, got {tuple(found[name])})" for name in wrong])
        raise CheckpointError(f"{misfit}: tensors with other shapes: {shapes}.")
    return model


def _check_size(config: ViTConfig, found: Mapping[str, tuple[int, ...]], misfit: str) -> None:
    """Refuse a config that describes more than the file holds, before even an empty model is built from it.

    Building takes time for each block and PyTorch counts elements in 64 bits; both are bounded here by what is in the
    file. Every size below is one side of a matrix whose other side is the width.
    """
    blocks = len({name.split(".")[1] for name in found if name.startswith("blocks.")})
    if blocks != config.depth:
        raise CheckpointError(f"{misfit}: expected {config.depth} blocks, got {blocks}.")
    held = sum(math.prod(shape) for shape in found.values())
    rows, columns = config.learned_grid if config.positions == "learned" else (0, 0)
    for name, size in (
        ("channels and patch_size", config.channels * config.patch_size**2),
        ("heads and head_width", config.heads * config.head_size),
        ("mlp_width", config.hidden),
        ("classes", config.classes),
        ("registers", config.registers),
        ("position_grid", rows * columns),
    ):
        if size * config.width > held:
            raise CheckpointError(
                f"{misfit}: {name} and width ask for a matrix of {size} x {config.width}, but the whole file holds "
                f"{held} numbers."
            )


class NoDraws(TorchFunctionMode):
    """Inside, `nn.init` draws no random numbers. On the meta device there is nothing to fill, and trying to imports
    PyTorch's compiler, which takes seconds.
    """

    _DRAWS = (nn.init.normal_, nn.init.uniform_)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        if func in self._DRAWS and kwargs:
            return kwargs["tensor"]
        return func(*args, **(kwargs or {}))


# --- the numbers


def filled(model: ViT, state: Mapping[str, Tensor], where: str) -> ViT:
    """A blank model with its weights: float32, in eval mode.

    Raises:
        CheckpointError: if a weight is not finite.
    """
    single = {name: tensor.float() for name, tensor in state.items()}
    check_finite(single, where)
    model.load_state_dict(single, strict=True, assign=True)
    return model.eval()


def check_finite(state: Mapping[str, Tensor], where: str) -> None:
    """Refuse NaN and infinity. `where` says which weights these are."""
    if wrong := [name for name, tensor in state.items() if not bool(tensor.isfinite().all())]:
        raise CheckpointError(f"Expected finite weights {where}, but there is NaN or infinity in {some(wrong)}.")


def some(names: list[str]) -> str:
    """The first three names, shortened, and how many more there are."""
    return ", ".join(f"{name:.120}" for name in names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
