"""Folders of photographs: finding the files, and feeding them to a model exactly as a visitor's photograph is fed.

Shapes: n images of one size, H x W pixels of the model's input.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar

import torch
from torch import Tensor

from vitviz.image import ImageError, decode
from vitviz.model import Pretrained
from vitviz.preprocess import Geometry, Preprocess

SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".jp2", ".j2k",
    ".ppm", ".pgm", ".pbm", ".pnm", ".heic", ".heif",
)  # fmt: skip
"""Files that count as images, in lower case. One that then cannot be decoded is an error, not left out."""

One = TypeVar("One")
Labelled = tuple[Path, int]
"""An image file and the number that goes with it: the index of its class, or whatever the caller counts by."""


class FolderError(ValueError):
    """A folder that cannot be used; the text says what was expected, what came and what to do."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Images of one size, ready for the model.

    Args:
        images: (n, 3, H, W), normalised pixels.
        classes: (n,), the number that went with each file.
        paths: where each comes from.
        geometries: which pixels of the photograph the patches of each saw.
    """

    images: Tensor
    classes: Tensor
    paths: tuple[Path, ...]
    geometries: tuple[Geometry, ...]


def find_images(folder: Path) -> dict[int, list[Path]]:
    """Image files in a folder and anywhere below it, by the number of the folder they lie in, in sorted order.

    Raises:
        FolderError: if there is no such folder, or no image in it.
    """
    if not folder.is_dir():
        raise FolderError(f"Expected a folder of images, but {str(folder)!r} is none.")
    files = _images_below(folder)
    if not files:
        raise FolderError(f"Expected {str(folder)!r} to hold images ({', '.join(SUFFIXES)}), found none.")
    by_parent: dict[Path, list[Path]] = {}
    for path in files:
        by_parent.setdefault(path.parent, []).append(path)
    return dict(enumerate(by_parent.values()))


def find_classes(folder: Path, about: Pretrained) -> dict[int, list[Path]]:
    """Image files of FOLDER/CLASS, and of folders in there, by the index of their class. Classes may be missing.

    Raises:
        FolderError: if there is no such folder, a subfolder is no class of the model, or there are no images.
    """
    if not folder.is_dir():
        raise FolderError(f"Expected a folder with one subfolder for each class, but {str(folder)!r} is none.")
    classes = class_names(about)
    inside = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    known = ", ".join((about.class_ids or about.labels)[:12])
    if unknown := [path.name for path in inside if path.name not in classes]:
        raise FolderError(
            f"{str(folder)!r} has subfolders that are no classes of this model: {_some(unknown)}. "
            f"Expected its labels or class ids: {known}."
        )
    found: dict[int, list[Path]] = {}
    for path in inside:
        if images := _images_below(path):
            found.setdefault(classes[path.name], []).extend(images)
    if not found:
        raise FolderError(
            f"Expected {str(folder)!r} to hold images in one subfolder for each class, found none. "
            f"The subfolders are named after labels or class ids: {known}."
        )
    return found


def spread(found: Mapping[int, Sequence[One]], limit: int | None) -> list[tuple[One, int]]:
    """All images, or `limit` of them: the first of each class, then the second of each, and so on."""
    if limit is None:
        return [(path, index) for index, paths in found.items() for path in paths]
    turns = [(turn, index, path) for index, paths in found.items() for turn, path in enumerate(paths)]
    return [(path, index) for _, index, path in sorted(turns, key=lambda one: one[:2])[:limit]]


def batches(found: Sequence[Labelled], preprocess: Preprocess, size: int) -> Iterator[Batch]:
    """At most `size` images at once, one image size a batch and not many images in waiting.

    Raises:
        FolderError: if files cannot be decoded; all are named.
    """
    waiting: dict[tuple[int, ...], list[tuple[Tensor, int, Path, Geometry]]] = {}
    for position, (path, index) in enumerate(found):
        try:
            prepared = preprocess(decode(path))
        except ImageError as error:
            _refuse_broken(error, found[position:], preprocess)
        pixels = torch.from_numpy(prepared.pixels)  # (3, H, W)
        same = waiting.setdefault(tuple(pixels.shape), [])
        same.append((pixels, index, path, prepared.geometry))
        if len(same) == size or sum(map(len, waiting.values())) >= 4 * size:
            yield _stack(waiting.pop(max(waiting, key=lambda shape: len(waiting[shape]))))
    for same in waiting.values():
        yield _stack(same)


def show(text: str) -> None:
    """Progress on standard error: for people who watch, not for log files."""
    if sys.stderr.isatty():
        sys.stderr.write(text)
        sys.stderr.flush()


def _stack(same: list[tuple[Tensor, int, Path, Geometry]]) -> Batch:
    pixels, classes, paths, geometries = zip(*same, strict=True)
    return Batch(torch.stack(pixels), torch.tensor(classes), paths, geometries)


def class_names(about: Pretrained) -> dict[str, int]:
    """Ids and labels of classes -> index. Labels that two classes share (ImageNet has two cranes) are left out."""
    once = {label: index for index, label in enumerate(about.labels) if about.labels.count(label) == 1}
    return once | {wnid: index for index, wnid in enumerate(about.class_ids)}


def _images_below(folder: Path) -> list[Path]:
    every = (path for path in folder.rglob("*") if _is_image(path) and not _is_hidden(path, folder))
    return sorted(path for path in every if path.is_file())


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in SUFFIXES and not file.name.startswith(".")


def _is_hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _refuse_broken(first: ImageError, rest: Sequence[Labelled], preprocess: Preprocess) -> NoReturn:
    """Name every file from the first broken one on that cannot be read: predicting has stopped, decoding is quick."""
    broken = [f"{path.parent.name}/{path.name}" for path, _ in rest if _is_broken(path, preprocess)]
    raise FolderError(
        f"{len(broken)} files cannot be read as images: {_some(broken)}. Mend or remove them. The first: {first}"
    ) from first


def _is_broken(path: Path, preprocess: Preprocess) -> bool:
    try:
        preprocess(decode(path))
    except ImageError:
        return True
    return False


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
