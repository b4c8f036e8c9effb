"""Load labelled images for training: two splits of preprocessed uint8 pixels.

Shapes: n images in a split, k per read, H x W pixels of the model's input.
"""

import functools
import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import get_worker_info

from vitviz.formatting import counted, text_table
from vitviz.images.datasets import NAMES, Dataset, Samples, find_dataset
from vitviz.images.decoding import ImageError, decode
from vitviz.images.folders import DataError
from vitviz.images.preprocess import Preprocess
from vitviz.model.vit import Pretrained
from vitviz.progress import bar
from vitviz.training.duplicates import Print, find_duplicates, fingerprints

Fit = Literal["crop", "squash"]
MEMORY = 3 * 2**30
"""Maximum bytes of pixels in memory, for both splits; enough for CIFAR-10, or Imagenette at 224 x 224."""
_LISTED = 24  # maximum classes or duplicates to list
Channels = tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Split:
    """One split of a data set.

    Args:
        samples: classes (n,) int64, and files or images (n, 3 or 1, h, w) uint8.
        preprocess: preprocessing to (H, W) pixels from 0 to 1.
        images: (n, 3 or 1, H, W) uint8 in memory, or `None` to decode on access.
    """

    samples: Samples
    preprocess: Preprocess
    images: Tensor | None = None

    def __len__(self) -> int:
        return len(self.samples.classes)

    @property
    def classes(self) -> Tensor:
        """Return the class of each image: (n,) int64."""
        return self.samples.classes

    @property
    def size(self) -> tuple[int, int]:
        """Return (height, width) of the pixels."""
        return self.preprocess.height, self.preprocess.width

    def read(self, indices: Tensor) -> Tensor:
        """Return a copy of RGB images: indices (k,) -> (k, 3, H, W) uint8.

        Raises:
            ImageError: if a file can no longer be read.
        """
        if self.images is not None:
            return self.images[indices].expand(-1, 3, -1, -1).contiguous()  # (k, 3 or 1, H, W) -> (k, 3, H, W)
        threads = 1 if get_worker_info() else cores()  # a DataLoader has several workers
        with ThreadPoolExecutor(threads) as pool:
            return torch.stack([*pool.map(self.pixels, indices.tolist())])

    def pixels(self, index: int) -> Tensor:
        """Return one image at the model's size: (3, H, W) uint8, as in `preprocess` before division by 255."""
        return self.prepare(self.picture(index))

    def prepare(self, picture: Image.Image) -> Tensor:
        """Return a picture at the model's size: (3, H, W) uint8."""
        if picture.size == self.size[::-1]:
            pixels = np.array(picture).transpose(2, 0, 1)  # (H, W, 3) -> (3, H, W)
        else:
            pixels = np.rint(self.preprocess(picture).pixels * 255).astype(np.uint8)
        return torch.from_numpy(np.ascontiguousarray(pixels))

    def picture(self, index: int) -> Image.Image:
        """Return one image at its original size, upright, RGB."""
        if self.samples.paths is not None:
            return decode(self.samples.paths[index])
        assert self.samples.images is not None  # either files or images
        return decode(self.samples.images[index].permute(1, 2, 0).numpy())  # (c, h, w) -> (h, w, c)


@dataclass(frozen=True, eq=False)
class Data(Dataset[Split]):
    """Checked data set for training.

    Args:
        left_out: skipped files with reasons.
        duplicates: photographs in two classes or in both splits, with their first copy.
    """

    left_out: tuple[str, ...] = ()
    duplicates: tuple[str, ...] = ()

    def preprocess(self, mean: Channels, std: Channels) -> Preprocess:
        """Return the preprocessing to save with a model trained on these pixels."""
        return replace(self.train.preprocess, mean=mean, std=std)

    def record(self, name: str, licence: str = "unknown") -> Pretrained:
        """Return the record of a new model that is trained on this data."""
        return Pretrained(
            name=name, preprocess=self.preprocess(*self.mean_std()), labels=self.labels, class_ids=self.class_ids,
            licence=licence, source=f"trained from scratch on {self.name}",
        )  # fmt: skip

    def counts(self, split: Split) -> tuple[int, ...]:
        """Count the images of each class in a split."""
        return tuple(split.classes.bincount(minlength=len(self.labels)).tolist())

    def describe(self) -> str:
        """Return text for a terminal: classes, counts, skipped files."""
        splits = f"{len(self.train):,} training images, {len(self.val):,} validation images"
        lines = [f"{self.name}: {len(self.labels)} classes, {splits}", f"{self.source}; licence: {self.licence}"]
        lines += [f"in {self.folder}"] if self.folder is not None else []
        counts = [self.counts(self.train), self.counts(self.val)]
        if len(self.labels) <= _LISTED:
            rows = zip(self.labels, *([f"{count:,}" for count in split] for split in counts), strict=True)
            lines += ["", text_table([("class", "train", "val"), *rows])]
        else:
            lines.append("per class: {} training images, {} validation images".format(*map(count_range, counts)))
        if self.left_out:
            lines += ["", f"{len(self.left_out)} broken files are left out:", *(f"  {file}" for file in self.left_out)]
        if self.duplicates:
            title = f"{len(self.duplicates)} photographs are in two classes or in both splits:"
            lines += ["", title, _listed(self.duplicates)]
        return "\n".join(lines)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Return a hash of classes, sizes, and each image's file (name and length) or pixels, independent of paths."""
        digest = hashlib.sha256(repr((self.labels, self.class_ids, self.train.preprocess)).encode())
        for samples in (self.train.samples, self.val.samples):
            digest.update(samples.classes.numpy().tobytes())
            for path in samples.paths or ():
                line = f"{path.parent.name}/{path.name} {path.stat().st_size}\n"
                digest.update(line.encode(errors="surrogateescape"))
            if samples.images is not None:
                digest.update(samples.images.numpy().tobytes())
        return digest.hexdigest()

    def mean_std(self, most: int = 5000) -> tuple[Channels, Channels]:
        """Return mean and standard deviation of the training pixels per channel, 0..1, with 4 digits.

        Args:
            most: maximum number of images, spread evenly.
        """
        chosen = torch.linspace(0, len(self.train) - 1, min(most, len(self.train))).long()
        moments = torch.zeros(2, 3, dtype=torch.float64)
        for indices in chosen.split(256):
            pixels = self.train.read(indices).transpose(0, 1).flatten(1).double() / 255  # (k, 3, H, W) -> (3, k H W)
            moments += torch.stack([pixels.mean(1), pixels.square().mean(1)]) * len(indices) / len(chosen)
        mean, square = moments
        std = (square - mean.square()).clamp_min(0).sqrt().clamp_min(1e-3)  # avoid division by 0 for one flat color
        channels = [tuple(round(value, 4) for value in values.tolist()) for values in (mean, std)]
        return cast(tuple[Channels, Channels], tuple(channels))


def open_data(
    name_or_folder: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    size: tuple[int, int],
    fit: Fit = "squash",
    skip_broken: bool = False,
    allow_duplicates: bool = False,
    val_share: float | None = None,
    seed: int = 0,
    memory: int = MEMORY,
    progress: bool = True,
) -> Data:
    """Find or download a data set, and check every image.

    Args:
        name_or_folder: a data set's name; or a folder with train/CLASS/image and val/CLASS/image (or test/); or, with
            `val_share`, a folder with CLASS/image.
        root: folder of named data sets; by default the user's cache.
        size: (height, width) of the model's input, in pixels.
        fit: "squash" the whole picture to that size, or "crop" its largest centre of that shape.
        skip_broken: skip unreadable files instead of raising an error.
        allow_duplicates: accept photographs in two classes or in both splits, see `vitviz.training.duplicates`. Named
            data sets are not checked.
        val_share: share of each class to hold out for validation, above 0 and below 1, drawn by `seed`.
        seed: seed of that split.
        memory: maximum bytes of pixels in memory; splits that do not fit are decoded on access.
        progress: show progress on standard error.

    Raises:
        DataError: if the data set does not exist, classes lack images in a split, files cannot be read (the message
            lists all of them), or photographs are in two classes or in both splits.
    """
    if fit not in get_args(Fit):
        raise DataError(f"Expected fit among {', '.join(get_args(Fit))}, got {fit!r}. Choose one.")
    resize = min(size) if fit == "crop" else None
    identity: Channels = (0.0, 0.0, 0.0)
    preprocess = Preprocess(height=size[0], width=size[1], mode=fit, resize=resize, mean=identity, std=(1.0, 1.0, 1.0))
    dataset = find_dataset(name_or_folder, root, val_share=val_share, seed=seed)
    folder = dataset.folder
    splits: list[Split] = []
    unread: list[str] = []
    prints: list[Print] | None = None if folder is None or name_or_folder in NAMES else []
    for name, samples in (("train", dataset.train), ("val", dataset.val)):
        title = f"{dataset.name}, {name}" if progress else None
        split, errors = _open_split(samples, preprocess, memory, title, prints)
        memory -= 0 if split.images is None else split.images.numel()
        splits.append(split)
        unread += [f"{os.path.relpath(path, folder)}: {error}" for path, error in errors.items()]
    if unread and not skip_broken:
        raise DataError(
            f"Expected images in {str(folder)!r}, got {counted(len(unread), 'unreadable file')}. Repair or remove "
            "them, or skip them (--skip-broken):\n" + "\n".join(f"  {line}" for line in unread)
        )
    train, val = splits
    data = Data(**vars(dataset) | {"train": train, "val": val}, left_out=tuple(unread))
    if len(data.labels) < 2:
        raise DataError(
            f"Expected at least two classes, one folder each, got {', '.join(data.labels) or 'none'}. Check the "
            "folder levels."
        )
    for name, split in (("train", train), ("val", val)):  # without broken files
        if empty := [class_id for class_id, count in zip(data.class_ids, data.counts(split), strict=True) if not count]:
            raise DataError(f"Expected images of every class in {name}, got none of {', '.join(empty)}. Add some.")
    copies = _duplicates(prints, splits, folder) if prints else []
    if copies and not allow_duplicates:
        raise DataError(
            f"Expected each photograph in one class and one split, got {len(copies)} that are in another too. Remove "
            f"one of each pair, or accept them (--allow-duplicates):\n{_listed(copies)}"
        )
    return replace(data, duplicates=tuple(copies))


def _open_split(
    samples: Samples, preprocess: Preprocess, memory: int, title: str | None, prints: list[Print] | None
) -> tuple[Split, dict[Path, ImageError]]:
    """Return a split without unreadable files, with pixels in memory if they fit, and the unreadable files.

    Fingerprints of the photographs are appended to `prints`, unless that is `None`.
    """
    split = Split(samples, preprocess)
    if samples.images is not None and samples.images.shape[-2:] == split.size:
        return replace(split, images=samples.images), {}
    count, (height, width) = len(split), split.size
    keep = count * 3 * height * width <= memory
    if samples.images is not None and not keep:
        return split, {}
    pixels = torch.empty((count if keep else 0, 3, height, width), dtype=torch.uint8)
    readable: list[int] = []
    errors: dict[Path, ImageError] = {}

    def read(index: int) -> tuple[Tensor, Print | None] | ImageError:
        try:
            picture = split.picture(index)
            return split.prepare(picture), None if prints is None else fingerprints(picture)
        except ImageError as error:
            return error

    pool = ThreadPoolExecutor(cores())
    try:
        results = pool.map(read, range(count))
        with bar(count, title or "", show=title is not None) as counted:
            for index, result in enumerate(results):
                counted.update()
                if isinstance(result, tuple):
                    image, fingerprint = result
                    if keep:
                        pixels[len(readable)] = image
                    if prints is not None and fingerprint is not None:
                        prints.append(fingerprint)
                    readable.append(index)
                else:
                    assert samples.paths is not None  # images of an archive cannot be broken
                    errors[samples.paths[index]] = result
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C, skip the remaining images
    if errors and samples.paths is not None:
        samples = Samples(samples.classes[readable], tuple(samples.paths[index] for index in readable))
    return Split(samples, preprocess, pixels[: len(readable)] if keep else None), errors


def _duplicates(prints: list[Print], splits: Sequence[Split], folder: Path | None) -> list[str]:
    """Return a line for each photograph that is also in another class or split."""
    paths = [path for split in splits for path in split.samples.paths or ()]
    groups = [(number, place) for number, split in enumerate(splits) for place in split.classes.tolist()]
    lines = []
    for first, copy, bits in find_duplicates(prints, groups):
        names = " and ".join(os.path.relpath(paths[index], folder) for index in (first, copy))
        where = "" if groups[first][0] == groups[copy][0] else " (train and val)"
        similarity = "the same pixels" if bits < 0 else f"near duplicates, {bits} of 256 bits differ"
        lines.append(f"{names}{where}: {similarity}")
    return lines


def _listed(lines: Sequence[str]) -> str:
    more = [f"and {len(lines) - _LISTED} more"] if len(lines) > _LISTED else []
    return "\n".join(f"  {line}" for line in (*lines[:_LISTED], *more))


def cores() -> int:
    """Return the number of CPU cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_range(counts: Sequence[int]) -> str:
    """Return a range such as "75" or "60 to 75"."""
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
