"""A model as a folder: `config.json` for the sizes and what travels with weights, `model.safetensors` for the numbers.

Nothing here unpickles. A folder may come from anywhere, so everything it says is checked before it is believed: the
config's types, then the names and shapes in the header of the weights against the config, and only then is memory
taken, never more than the file itself is long (in float32).
"""

from __future__ import annotations

import hashlib
import json
import os
import types
import typing
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch
from safetensors.torch import save_file

from vitviz.config import ViTConfig
from vitviz.model import Pretrained, ViT
from vitviz.preprocess import Preprocess
from vitviz.weights.checks import (
    CheckpointError,
    blank,
    check_finite,
    check_kinds,
    filled,
    read_header,
    read_tensors,
)

FORMAT = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"
MAX_CONFIG_BYTES = 10 * 2**20  # a thousand times the bundled one; 21,841 long class names fit
_KEYS = ("format", "name", "licence", "source", "model", "preprocess", "labels", "class_ids")


def save(model: ViT, folder: str | os.PathLike[str], *, dtype: torch.dtype = torch.float32) -> None:
    """Write a model and what travels with it as a folder that `load_folder` reads.

    Each file is written beside its place and then moved there, so that an interruption leaves the old one whole.

    Args:
        model: a model with `pretrained` set.
        folder: made where it is missing; files of the same names are replaced.
        dtype: precision on disk. Half precision is half as long and loses the last of the numbers.

    Raises:
        CheckpointError: if `pretrained` is missing or does not fit the model, or a weight is not finite in `dtype`.
    """
    about = model.pretrained
    if about is None:
        raise CheckpointError(
            "Expected a model that knows how it is fed and what its outputs mean, got one without. "
            "Set model.pretrained = Pretrained(name=..., preprocess=..., labels=...) first."
        )
    _check_labels(model.config, about.labels, about.class_ids)
    state = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in model.state_dict().items()}
    check_finite(state, f"in {dtype}")
    config = {
        "format": FORMAT,
        "name": about.name,
        "licence": about.licence,
        "source": about.source,
        "model": model.config.to_dict(),
        "preprocess": about.preprocess.to_dict(),
        "labels": list(about.labels),
        "class_ids": list(about.class_ids),
    }
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(config, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    _replace(folder / WEIGHTS, lambda path: save_file(state, path, metadata={"format": "pt"}))
    _replace(folder / CONFIG, lambda path: path.write_text(text, encoding="utf-8"))


def load_folder(folder: str | os.PathLike[str]) -> ViT:
    """The model that `save` wrote to a folder: float32, on the CPU, in eval mode.

    Raises:
        CheckpointError: for whatever is missing, damaged, or does not fit together, in words.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(f"Expected a checkpoint folder, but {str(folder)!r} is not a folder.")
    config, about = _read_config(_need(folder, CONFIG))
    path = _need(folder, WEIGHTS)
    header = read_header(path)
    check_kinds(header, repr(str(path)))
    shapes = {name: entry.shape for name, entry in header.items()}
    model = blank(config, about, shapes, f"{str(path)!r} does not fit its {CONFIG}")
    return filled(model, read_tensors(path), f"in {str(path)!r}")


def fingerprint(model: ViT, names: Container[str] | None = None) -> str:
    """A model's sizes and weights as a few letters: other weights, other letters.

    Args:
        model: on any device.
        names: of the weights that count; all by default, and then the sizes count too.
    """
    digest = hashlib.blake2b(digest_size=12)
    if names is None:
        digest.update(json.dumps(model.config.to_dict(), sort_keys=True).encode())
    for name, weights in model.state_dict().items():
        if names is None or name in names:
            digest.update(f"{name} {weights.dtype}".encode())
            digest.update(weights.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _need(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        raise CheckpointError(f"Expected a checkpoint with {CONFIG} and {WEIGHTS}, but {str(folder)!r} has no {name}.")
    return path


# --- the config


def _read_config(path: Path) -> tuple[ViTConfig, Pretrained]:
    """Everything in `config.json`, checked."""
    if (size := path.stat().st_size) > MAX_CONFIG_BYTES:
        raise CheckpointError(f"{str(path)!r} is {size:,} bytes long: expected at most {MAX_CONFIG_BYTES:,}.")
    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{str(path)!r} is not JSON: {error}.") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        came = data.get("format") if isinstance(data, dict) else type(data).__name__
        raise CheckpointError(
            f"{str(path)!r}: expected a checkpoint of vitviz in format {FORMAT}, got {came!r}. "
            "Use a folder that vitviz saved; one of another library has to be converted first."
        )
    if set(data) != set(_KEYS):
        missing, unknown = sorted(set(_KEYS) - set(data)), sorted(set(data) - set(_KEYS))
        raise CheckpointError(f"{str(path)!r}: settings missing: {missing or 'none'}; unknown: {unknown or 'none'}.")
    try:
        config = _read_sizes(data["model"])
        for name in ("name", "licence", "source"):
            _expect(name, data[name], str)
        for name in ("labels", "class_ids"):
            _expect(name, data[name], tuple[str, ...])
        _expect("preprocess", data["preprocess"], dict)
        preprocess = Preprocess.from_dict(data["preprocess"])
        labels, class_ids = tuple(data["labels"]), tuple(data["class_ids"])
        _check_labels(config, labels, class_ids)
    except ValueError as error:
        raise CheckpointError(f"{str(path)!r}: {error}") from error
    about = Pretrained(
        name=data["name"],
        preprocess=preprocess,
        labels=labels,
        class_ids=class_ids,
        licence=data["licence"],
        source=data["source"],
    )
    return config, about


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number that a setting can have")


def _read_sizes(data: object) -> ViTConfig:
    """The model's config, with the type of every value checked: JSON may hold anything anywhere."""
    _expect("model", data, dict)
    assert isinstance(data, dict)
    for name, hint in typing.get_type_hints(ViTConfig).items():
        if name in data:
            _expect(name, data[name], hint)
    return ViTConfig.from_dict(data)


def _expect(name: str, value: object, hint: Any) -> None:
    if not _is_a(value, hint):
        wanted = hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
        raise CheckpointError(f"{name}: expected {wanted}, got {value!r:.80}.")


def _is_a(value: object, hint: Any) -> bool:
    """Whether a value from JSON is what a type hint says; a list stands for a tuple."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(_is_a(value, one) for one in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin is tuple:
        if not isinstance(value, list):
            return False
        kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
        return len(kinds) == len(value) and all(_is_a(one, kind) for one, kind in zip(value, kinds, strict=True))
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def _check_labels(config: ViTConfig, labels: tuple[str, ...], class_ids: tuple[str, ...]) -> None:
    for name, given, allowed in (
        ("labels", labels, (config.classes,)),
        ("class_ids", class_ids, (0, config.classes)),
    ):
        if len(given) not in allowed:
            raise CheckpointError(
                f"Expected one of {name} for each of {config.classes} classes, got {len(given)}. "
                "They name the outputs of the classifier, in order."
            )


# --- writing


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside `path`, then move there in one step."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        beside.touch()
        mode = beside.stat().st_mode  # what this user's files have; safetensors would keep others from reading
        write(beside)
        beside.chmod(mode)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
