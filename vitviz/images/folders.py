"""List folders of photographs, and batch them with the same preprocessing as single photographs.

Shapes: n images of equal size, H x W pixels of the model's input.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar

import torch
from torch import Tensor

from vitviz.errors import VitvizError
from vitviz.formatting import abbreviate, counted
from vitviz.images.decoding import ImageError, decode
from vitviz.images.geometry import Geometry
from vitviz.images.preprocess import Preprocess

SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".jp2", ".j2k",
    ".ppm", ".pgm", ".pbm", ".pnm", ".heic", ".heif",
)  # fmt: skip
"""Suffixes of image files, in lower case. Files that cannot be decoded raise an error."""

Item = TypeVar("Item")
Labeled = tuple[Path, int]
"""An image file with a number, such as its class index."""


class DataError(VitvizError):
    """Raised for a folder or data set that cannot be used."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Preprocessed images of equal size.

    Args:
        images: (n, 3, H, W), normalized pixels.
        classes: (n,), the class index (or other number) of each file.
        paths: path of each image.
        geometries: geometry of each image.
    """

    images: Tensor
    classes: Tensor
    paths: tuple[Path, ...]
    geometries: tuple[Geometry, ...]


def list_images(folder: Path) -> list[Path]:
    """List the image files below a folder and its links, sorted, without hidden files and folders."""
    paths: list[Path] = []
    for place, inner, names in os.walk(folder, followlinks=True):
        above = {each.resolve() for each in (Path(place), *Path(place).parents)}  # a link to one of these is a circle
        inner[:] = [name for name in inner if not name.startswith(".") and Path(place, name).resolve() not in above]
        paths += [Path(place, name) for name in names if not name.startswith(".") and is_image(name)]
    return sorted(path for path in paths if path.is_file())


def is_image(name: str) -> bool:
    """Return whether a file name has an image suffix."""
    return name.lower().endswith(SUFFIXES)


def find_images(folder: Path) -> dict[int, list[Path]]:
    """List the image files below a folder, grouped by the index of their folder in sorted order.

    Raises:
        DataError: if the folder does not exist or has no images.
    """
    if not folder.is_dir():
        raise DataError(f"Expected a folder of images, got {str(folder)!r}. Check the path.")
    by_parent: dict[Path, list[Path]] = {}
    for path in list_images(folder):
        by_parent.setdefault(path.parent, []).append(path)
    if not by_parent:
        raise DataError(f"Expected images ({', '.join(SUFFIXES)}) in {str(folder)!r}, got none. Check the path.")
    return dict(enumerate(by_parent.values()))


def find_classes(folder: Path, classes: Mapping[str, int]) -> dict[int, list[Path]]:
    """List the image files below each FOLDER/CLASS by class index.

    Args:
        folder: folder with one subfolder per class; subfolders may be missing.
        classes: subfolder name -> class index, from `class_names`.

    Raises:
        DataError: if the folder does not exist, a subfolder is not a class, or there are no images.
    """
    if not folder.is_dir():
        raise DataError(f"Expected a folder with one subfolder for each class, got {str(folder)!r}. Check the path.")
    inside = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    files = {path.name: images for path in inside if (images := list_images(path))}
    known = f"Name the subfolders after its labels or class ids: {abbreviate(classes, 5)}."
    if unknown := [name for name in files if name not in classes]:
        raise DataError(
            f"Expected subfolders of {str(folder)!r} to be classes of this model, got {abbreviate(unknown, 5)}. {known}"
        )
    files_by_class: dict[int, list[Path]] = {}
    for name, images in files.items():
        files_by_class.setdefault(classes[name], []).extend(images)
    if not files_by_class:
        raise DataError(f"Expected images in subfolders of {str(folder)!r}, got none. {known}")
    return files_by_class


def class_names(labels: Sequence[str], class_ids: Sequence[str] = ()) -> dict[str, int]:
    """Map labels, except ambiguous ones (ImageNet has two cranes), and then class ids to indices."""
    once = {label: index for index, label in enumerate(labels) if labels.count(label) == 1}
    return once | {class_id: index for index, class_id in enumerate(class_ids)}


def spread(items_by_class: Mapping[int, Sequence[Item]], limit: int | None) -> list[tuple[Item, int]]:
    """Return all images, or the first `limit`, taking one of each class in turn."""
    if limit is None:
        return [(item, index) for index, items in items_by_class.items() for item in items]
    ranked = [(rank, index, item) for index, items in items_by_class.items() for rank, item in enumerate(items)]
    return [(item, index) for _, index, item in sorted(ranked, key=lambda entry: entry[:2])[:limit]]


def batches(files: Sequence[Labeled], preprocess: Preprocess, size: int) -> Iterator[Batch]:
    """Yield batches of at most `size` images of equal size.

    Raises:
        DataError: if files cannot be decoded; the message names all of them.
    """
    pending: dict[tuple[int, ...], list[tuple[Tensor, int, Path, Geometry]]] = {}
    for position, (path, index) in enumerate(files):
        try:
            prepared = preprocess(decode(path))
        except ImageError as error:
            _refuse_broken(error, files[position:], preprocess)
        pixels = torch.from_numpy(prepared.pixels)  # (3, H, W)
        group = pending.setdefault(tuple(pixels.shape), [])
        group.append((pixels, index, path, prepared.geometry))
        if len(group) == size or sum(map(len, pending.values())) >= 4 * size:
            yield _stack(pending.pop(max(pending, key=lambda shape: len(pending[shape]))))
    for group in pending.values():
        yield _stack(group)


def _stack(group: list[tuple[Tensor, int, Path, Geometry]]) -> Batch:
    pixels, classes, paths, geometries = zip(*group, strict=True)
    return Batch(torch.stack(pixels), torch.tensor(classes), paths, geometries)


def _refuse_broken(first: ImageError, rest: Sequence[Labeled], preprocess: Preprocess) -> NoReturn:
    """Raise an error that names all unreadable files, starting with the first broken one."""

    def is_broken(path: Path) -> bool:
        try:
            preprocess(decode(path))
        except ImageError:
            return True
        return False

    broken = [f"{path.parent.name}/{path.name}" for path, _ in rest if is_broken(path)]
    raise DataError(
        f"Expected images, got {counted(len(broken), 'unreadable file')}: {abbreviate(broken, 5)}. Repair or remove "
        f"them. The first error: {first}"
    ) from first
