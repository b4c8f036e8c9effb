"""The two sides of a data set before anything is decoded: train and val, listed from folders of classes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vitviz.folders import SUFFIXES
from vitviz.training import TrainingError


class DataError(TrainingError):
    """Data that cannot be trained on; the text says what was expected, what came and what to do."""


@dataclass(frozen=True, eq=False)
class Side:
    """What one side of a data set holds, before anything is decoded.

    Args:
        classes: (n,) int64.
        paths: one file for each image; or None, and then
        images: (n, 1 or 3, h, w) uint8.
    """

    classes: Tensor
    paths: tuple[Path, ...] | None = None
    images: Tensor | None = None


def class_folders(folder: Path) -> tuple[tuple[str, ...], Side, Side]:
    """FOLDER/train/CLASS/image and FOLDER/val/CLASS/image (or test/): the names of the classes in order, both sides.

    Raises:
        DataError: if a side is missing, a class occurs on one side only, or has no images.
    """
    train_folder, val_folder = folder / "train", folder / "val"
    if not val_folder.is_dir():
        val_folder = folder / "test"
    if not train_folder.is_dir() or not val_folder.is_dir():
        inside = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
        raise DataError(f"Expected {str(folder)!r} to hold train/ and val/ (or test/); it holds {inside}.")
    train, val = _list_classes(train_folder), _list_classes(val_folder)
    for here, there in (((train, train_folder), (val, val_folder)), ((val, val_folder), (train, train_folder))):
        if alone := sorted(set(here[0]) - set(there[0])):
            raise DataError(
                f"Expected the same classes in {there[1].name}/ and {here[1].name}/ of {str(folder)!r}; only in "
                f"{here[1].name}/: {', '.join(alone)}. Add images of them to {there[1].name}/, or move them away."
            )
    ids = tuple(sorted(train))
    return ids, _side(train, ids), _side(val, ids)


def _list_classes(half: Path) -> dict[str, list[Path]]:
    """Class name -> its image files, in sorted order."""
    entries = sorted(path for path in half.iterdir() if not path.name.startswith("."))
    if loose := [path.name for path in entries if _is_image(path.name) and not path.is_dir()]:
        raise DataError(f"Expected one folder for each class in {str(half)!r}; an image lies beside them: {loose[0]}.")
    found = {path.name: sorted(_images(path)) for path in entries if path.is_dir()}
    if not found:
        raise DataError(f"Expected one folder of images for each class in {str(half)!r}; there is none.")
    if empty := [name for name, images in found.items() if not images]:
        raise DataError(
            f"Expected images ({', '.join(SUFFIXES)}) of every class in {str(half)!r}; none in {', '.join(empty)}."
        )
    return found


def _images(folder: Path) -> Iterator[Path]:
    """Image files in a folder and below it; what is hidden does not count."""
    for place, inner, names in os.walk(folder):
        inner[:] = [name for name in inner if not name.startswith(".")]
        yield from (Path(place, name) for name in names if _is_image(name))


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in SUFFIXES and not name.startswith(".")


def _side(found: dict[str, list[Path]], ids: tuple[str, ...]) -> Side:
    pairs = [(index, path) for index, name in enumerate(ids) for path in found[name]]
    return Side(torch.tensor([index for index, _ in pairs]), tuple(path for _, path in pairs))
