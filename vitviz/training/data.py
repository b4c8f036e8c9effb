"""Labelled images for training: two sides, each one size, as uint8 pixels that the model's preprocessing would show.

Shapes: n images a side, k of them asked for at once, H x W pixels of the model's input.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from vitviz.folders import show
from vitviz.image import ImageError, decode
from vitviz.preprocess import Preprocess
from vitviz.training.sources import DataError, Side, find

__all__ = ["MEMORY", "Data", "DataError", "Fit", "Split", "fitted", "open_data"]

Fit = Literal["crop", "squash"]
MEMORY = 3 * 2**30
"""Bytes of pixels that are kept in memory, for both sides together: all of CIFAR-10, or Imagenette at 224 x 224."""
_CHUNK = 64  # images that a thread takes at once
_LISTED = 24  # classes that are told one by one


def fitted(size: tuple[int, int], fit: Fit) -> Preprocess:
    """The preprocessing that `Split.pixels` does: the whole picture squashed, or its largest centre of that shape.

    Its pixels are from 0 to 1: mean and std belong to a model; see `Data.preprocess`.

    Args:
        size: (height, width) of the model's input, in pixels.
        fit: "squash", or "crop".
    """
    if fit not in ("crop", "squash"):
        raise DataError(f"Expected fit to be crop or squash; {fit!r} came.")
    height, width = size
    resize = min(size) if fit == "crop" else None
    return Preprocess(height=height, width=width, mode=fit, resize=resize, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


@dataclass(frozen=True, eq=False)
class Split:
    """One side of a data set.

    Args:
        classes: (n,) int64, the index of each image's class.
        paths: the file of each image; None where they came in one archive.
        preprocess: how a picture becomes (H, W) pixels; from `fitted`.
        images: (n, 3 or 1, H, W) uint8, in memory; None where pictures are brought to this size as they are asked for.
        origin: (n, 3 or 1, h, w) uint8, an archive's images, where they had another size.
    """

    classes: Tensor
    paths: tuple[Path, ...] | None
    preprocess: Preprocess
    images: Tensor | None = None
    origin: Tensor | None = None

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the pixels, unless others are asked for."""
        return self.preprocess.height, self.preprocess.width

    def pixels(self, indices: Tensor, size: tuple[int, int] | None = None) -> Tensor:
        """Some images, RGB, each call a copy of its own: indices (k,) -> (k, 3, H, W) uint8.

        The same whether they lie in memory or are decoded now. It may be called from several threads.

        Args:
            indices: (k,) whole numbers from 0 to n - 1.
            size: (height, width), where it is to be another than the one that the data were opened with.

        Raises:
            ImageError: if a file can no longer be read.
        """
        height, width = size or self.size
        preprocess = self.preprocess if (height, width) == self.size else _resized(self.preprocess, height, width)
        if self.images is not None and (height, width) == self.size:
            chosen = self.images.index_select(0, indices)
            return chosen.expand(-1, 3, -1, -1).contiguous()  # (k, 3 or 1, H, W) -> (k, 3, H, W)
        wanted: list[int] = indices.tolist()
        pixels = torch.empty(len(wanted), 3, height, width, dtype=torch.uint8)
        array = pixels.numpy()

        def put(at: int) -> None:
            array[at] = _fit(self.picture(wanted[at]), preprocess)

        with ThreadPoolExecutor(_threads()) as pool:
            list(pool.map(put, range(len(wanted))))  # the list, because an error is raised only where it is read
        return pixels

    def picture(self, index: int) -> Image.Image:
        """One image as it came: decoded from its file, upright, RGB; or an archive's."""
        if self.paths is not None:
            return decode(self.paths[index])
        images = self.images if self.origin is None else self.origin
        assert images is not None  # without files there are images
        return decode(images[index].permute(1, 2, 0).numpy())  # (c, h, w) -> (h, w, c)


@dataclass(frozen=True, eq=False)
class Data:
    """A data set, checked and ready.

    Args:
        name: for people: a data set's name, or the folder's.
        labels: a readable word or more for each class, in the order of the model's outputs.
        class_ids: the names of the class folders, in the same order.
        train, val: the two sides. Every class occurs on both.
        source: whose it is; no path, because it goes into model cards.
        licence: of the images, as far as known.
        left_out: files that were skipped, each with its reason.
        place: the folder in which it was found.
    """

    name: str
    labels: tuple[str, ...]
    class_ids: tuple[str, ...]
    train: Split
    val: Split
    source: str
    licence: str
    left_out: tuple[str, ...] = ()
    place: Path | None = None

    def preprocess(self, mean: tuple[float, float, float], std: tuple[float, float, float]) -> Preprocess:
        """What is saved with a model that was trained on these pixels, normalised so: it then sees the same."""
        return replace(self.train.preprocess, mean=mean, std=std)

    def counts(self, side: Split) -> tuple[int, ...]:
        """How many images of each class a side has."""
        return tuple(side.classes.bincount(minlength=len(self.labels)).tolist())

    def words(self) -> str:
        """What there is, as lines for a terminal."""
        sides = f"{len(self.train):,} images to train on, {len(self.val):,} to validate on"
        lines = [f"{self.name}: {len(self.labels)} classes, {sides}", f"{self.source}; licence: {self.licence}"]
        lines += [f"in {self.place}"] if self.place is not None else []
        train, val = self.counts(self.train), self.counts(self.val)
        if len(self.labels) <= _LISTED:
            width = max(len("class"), *map(len, self.labels))
            lines += ["", f"{'class':<{width}}  {'train':>8}  {'val':>8}"]
            rows = zip(self.labels, train, val, strict=True)
            lines += [f"{label:<{width}}  {of_train:>8,}  {of_val:>8,}" for label, of_train, of_val in rows]
        else:
            lines.append(f"a class has {_range(train)} to train on, {_range(val)} to validate on")
        if self.left_out:
            lines += ["", f"{len(self.left_out)} broken files are left out:", *(f"  {file}" for file in self.left_out)]
        return "\n".join(lines)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of what is trained on: classes, sizes, and each image's file (name and bytes) or pixels.

        Another place on the disk does not change it.
        """
        digest = hashlib.sha256(repr((self.labels, self.class_ids, self.train.preprocess)).encode())
        for side in (self.train, self.val):
            digest.update(side.classes.numpy().tobytes())
            if side.paths is not None:
                for path in side.paths:
                    line = f"{path.parent.name}/{path.name} {path.stat().st_size}\n"
                    digest.update(line.encode(errors="surrogateescape"))
            else:
                images = side.images if side.origin is None else side.origin
                digest.update(b"" if images is None else images.numpy().tobytes())
        return digest.hexdigest()

    def mean_std(self, most: int = 5000) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
        """Mean and standard deviation of the training pixels for each channel, on a scale of 0..1, to 4 digits.

        Args:
            most: so many images are looked at, spread evenly.
        """
        chosen = torch.linspace(0, len(self.train) - 1, min(most, len(self.train))).long()
        total, squares, count = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64), 0
        for some in chosen.split(256):
            pixels = self.train.pixels(some).transpose(0, 1).flatten(1).double() / 255  # (k, 3, H, W) -> (3, k H W)
            total, squares, count = total + pixels.sum(1), squares + pixels.square().sum(1), count + pixels.shape[1]
        mean = total / count
        std = (
            (squares / count - mean.square()).clamp_min(0).sqrt().clamp_min(1e-3)
        )  # one flat colour: do not divide by 0
        return _three(mean), _three(std)


def open_data(
    name_or_folder: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    size: tuple[int, int],
    fit: Fit = "squash",
    broken: Literal["refuse", "skip"] = "refuse",
    memory: int = MEMORY,
    progress: bool = True,
) -> Data:
    """Find a data set, fetch it where it is missing and there is a network, and check all of it.

    Args:
        name_or_folder: one of `sources.NAMES`; or a folder with train/CLASS/image and val/CLASS/image (or test/).
        root: where a named data set lies, or is put; by default the user's cache.
        size: (height, width) of the model's input, in pixels.
        fit: how a picture comes to that size; see `fitted`.
        broken: what to do with files that cannot be read as images.
        memory: bytes of pixels that may be kept; a side that does not fit is decoded as it is asked for.
        progress: write a line that counts up to standard error, when that is a terminal.

    Raises:
        DataError: if it is not there, has classes on one side only, or files that cannot be read (all are named).
    """
    if broken not in ("refuse", "skip"):
        raise DataError(f"Expected broken to be refuse or skip; {broken!r} came.")
    preprocess = fitted(size, fit)
    found = find(name_or_folder, root)
    sides: list[Split] = []
    unread: list[str] = []
    for name, side in (("train", found.train), ("val", found.val)):
        split, wrong = _open_side(side, preprocess, memory, f"{found.name}, {name}" if progress else "")
        memory -= 0 if split.images is None else split.images.numel()
        sides.append(split)
        unread += [f"{path.relative_to(found.place)}: {error}" for path, error in wrong.items()]
    if unread and broken == "refuse":
        raise DataError(
            f"{len(unread)} files of {str(found.place)!r} cannot be read as images. Mend or remove them, or have them "
            "skipped (--skip-broken, broken='skip'):\n" + "\n".join(f"  {one}" for one in unread)
        )
    about = found.source, found.licence, tuple(unread), found.place
    return _checked(Data(found.name, found.labels, found.class_ids, sides[0], sides[1], *about))


def _checked(data: Data) -> Data:
    """The data set, if there are images of every class on both sides, also without those that were skipped."""
    if len(data.labels) < 2:
        raise DataError(
            f"Expected at least two classes, one folder each, got {', '.join(data.labels) or 'none'}: every answer "
            "would be right. Check how deep the folders lie."
        )
    for name, side in (("train", data.train), ("val", data.val)):
        if empty := [data.class_ids[at] for at, count in enumerate(data.counts(side)) if not count]:
            raise DataError(f"Expected images of every class in {name}; there are none of {', '.join(empty)}.")
    return data


def _open_side(side: Side, preprocess: Preprocess, memory: int, words: str) -> tuple[Split, dict[Path, str]]:
    """A side with its pixels in memory, if there is room, without the files that cannot be read; and these."""
    count, height, width = len(side.classes), preprocess.height, preprocess.width
    raw = Split(side.classes, side.paths, preprocess, origin=side.images)
    if side.images is not None and side.images.shape[-2:] == (height, width):
        return Split(side.classes, None, preprocess, side.images), {}
    keep = count * 3 * height * width <= memory
    if side.images is not None and not keep:
        return raw, {}
    pixels = torch.empty((count if keep else 0, 3, height, width), dtype=torch.uint8)
    array, wrong = pixels.numpy(), dict[int, str]()

    def read(index: int) -> None:
        try:
            picture = _fit(raw.picture(index), preprocess)
        except ImageError as error:
            wrong[index] = str(error)
        else:
            if keep:
                array[index] = picture

    _in_chunks(read, count, words)
    if not wrong:
        return replace(raw, images=pixels if keep else None), {}
    assert side.paths is not None  # an archive's images are numbers already: nothing to be read wrongly
    good = torch.tensor([index for index in range(count) if index not in wrong], dtype=torch.long)
    paths = tuple(side.paths[index] for index in good.tolist())
    split = Split(side.classes[good], paths, preprocess, pixels[good] if keep else None)
    return split, {side.paths[index]: wrong[index] for index in sorted(wrong)}


def _in_chunks(work: Callable[[int], None], count: int, words: str) -> None:
    """`work` for each of 0..count - 1, in threads, and a line that counts up."""

    def some(start: int) -> int:
        end = min(start + _CHUNK, count)
        for index in range(start, end):
            work(index)
        return end - start

    done, pool = 0, ThreadPoolExecutor(_threads())
    try:
        for number in pool.map(some, range(0, count, _CHUNK)):
            done += number
            if words:
                show(f"\r{words}: {done:,} of {count:,} images read ")
    finally:
        pool.shutdown(cancel_futures=True)  # at Ctrl-C the rest is not read
        if words:
            show("\n")


def _fit(picture: Image.Image, preprocess: Preprocess) -> npt.NDArray[np.uint8]:
    """An RGB picture at the model's size: (3, H, W) uint8, the very pixels that `preprocess` divides by 255."""
    if picture.size == (preprocess.width, preprocess.height):
        return np.asarray(picture).transpose(2, 0, 1)  # (H, W, 3) -> (3, H, W)
    return np.rint(preprocess(picture).pixels * 255).astype(np.uint8)  # 0..1 in steps of 1/255: nothing is lost


def _threads() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _resized(preprocess: Preprocess, height: int, width: int) -> Preprocess:
    return fitted((height, width), "squash" if preprocess.mode == "squash" else "crop")


def _range(counts: Sequence[int]) -> str:
    return f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"


def _three(values: Tensor) -> tuple[float, float, float]:
    red, green, blue = (round(value, 4) for value in values.tolist())
    return red, green, blue
