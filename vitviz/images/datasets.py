"""Find data sets by name, with torchvision, or as folders with train/CLASS/image and val/CLASS/image.

This module does not decode photographs: it lists folders, and torchvision reads archives. Shapes: n images of h x w
pixels.
"""

import gzip
import os
import shutil
import socket
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, TypeVar
from urllib.parse import urlparse

import torch
from filelock import FileLock
from torch import Tensor

from vitviz.images.folders import SUFFIXES, DataError, is_image, list_images
from vitviz.images.torchvision_import import import_torchvision
from vitviz.resources import cache_folder

SYSTEM = Path("/usr/share/datasets")
"""Folder of the operating system's data sets; Debian's package `dataset-fashion-mnist` uses fashion-mnist/."""

IMAGENETTE = {
    "n01440764": "tench",
    "n02102040": "English springer",
    "n02979186": "cassette player",
    "n03000684": "chain saw",
    "n03028079": "church",
    "n03394916": "French horn",
    "n03417042": "garbage truck",
    "n03425413": "gas pump",
    "n03445777": "golf ball",
    "n03888257": "parachute",
}
"""WordNet ids of Imagenette's ten classes -> labels."""

CONNECT_SECONDS = 3.0
Part = TypeVar("Part")  # a split: `Samples`, or `Split` in training


@dataclass(frozen=True, eq=False)
class Samples:
    """One undecoded split of a data set: files, or images in memory.

    Args:
        classes: (n,) int64.
        paths: one file per image, or None.
        images: (n, 1 or 3, h, w) uint8 if `paths` is None.
    """

    classes: Tensor
    paths: tuple[Path, ...] | None = None
    images: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Dataset(Generic[Part]):
    """Data set on this machine.

    Args:
        name: a data set's name, or the folder's.
        labels: readable class names, in the order of the model's outputs.
        class_ids: names of the class folders, in the same order.
        train, val: the splits; every class occurs in both.
        source: authors, for model cards; contains no path.
        licence: licence of the images, as far as known.
        folder: path on disk, or `None`.
    """

    name: str
    labels: tuple[str, ...]
    class_ids: tuple[str, ...]
    train: Part
    val: Part
    source: str
    licence: str
    folder: Path | None = None


def find_dataset(
    name_or_folder: str | os.PathLike[str],
    root: str | os.PathLike[str] | None = None,
    *,
    val_share: float | None = None,
    seed: int = 0,
) -> Dataset[Samples]:
    """Find a data set by name, downloading it if necessary, or in a folder with train/ and val/ (or test/).

    Args:
        name_or_folder: one of `NAMES`, which takes precedence over a folder of that name (write ./NAME for it).
        root: folder of named data sets; by default the user's cache. The usual subfolders and `root` are searched.
        val_share: for a folder CLASS/image, share of each class (at least one image) to hold out for validation.
        seed: seed of that split.

    Raises:
        DataError: if the data set or folder does not exist, is invalid, or cannot be downloaded.
    """
    if isinstance(name_or_folder, str) and name_or_folder in _NAMED:
        if val_share is not None:
            raise DataError(f"Expected a folder to split, got {name_or_folder}, which is split. Omit --val-share.")
        return _find_named(name_or_folder, None if root is None else Path(root))
    folder = Path(name_or_folder)
    if not folder.is_dir():
        got = f"{os.fspath(name_or_folder)!r:.200}"
        raise DataError(f"Expected a folder with train/ and val/, or one of {', '.join(NAMES)}, got {got}. Check it.")
    if root is not None:
        raise DataError(
            f"Expected a named data set ({', '.join(NAMES)}) with root, got {str(folder)!r}. Leave root out."
        )
    ids, train, val = _class_folders(folder) if val_share is None else _split_folder(folder, val_share, seed)
    labels, name = tuple(IMAGENETTE.get(class_id, class_id) for class_id in ids), folder.resolve().name
    source = f"a folder of images, {name}"
    if val_share is not None:
        source += f"; {val_share:.4g} of each class was drawn for validation with seed {seed}"
    return Dataset(name, labels, ids, train, val, source, "unknown", folder)


# ---- folders of classes


def _class_folders(folder: Path) -> tuple[tuple[str, ...], Samples, Samples]:
    """Return the class names in order, and the files of both splits; every class has images in both."""
    train_folder = folder / "train"
    val_folder = folder / ("val" if (folder / "val").is_dir() else "test")
    if not train_folder.is_dir() or not val_folder.is_dir():
        inside = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
        raise DataError(
            f"Expected train/ and val/ (or test/) in {str(folder)!r}, got {inside}. Check the path; if these are the "
            "classes, split the images with --val-share 0.2."
        )
    train, val = _list_classes(train_folder), _list_classes(val_folder)
    if missing := sorted(set(train) ^ set(val)):
        places = [f"{name} (only in {train_folder.name if name in train else val_folder.name}/)" for name in missing]
        raise DataError(
            f"Expected the same classes in both splits of {str(folder)!r}, got {', '.join(places)}. Add images "
            "of these classes to the other split, or move them away."
        )
    ids = tuple(train)
    return ids, _samples(train, ids), _samples(val, ids)


def _split_folder(folder: Path, share: float, seed: int) -> tuple[tuple[str, ...], Samples, Samples]:
    """Return the class names of a folder in order, and its files, split at random within each class."""
    if not 0.0 < share < 1.0:
        raise DataError(f"Expected a share between 0 and 1 for validation, got {share:g}. Give --val-share 0.2.")
    if (folder / "train").is_dir() and ((folder / "val").is_dir() or (folder / "test").is_dir()):
        raise DataError(f"Expected a folder of classes, got {str(folder)!r}, which is split. Omit --val-share.")
    train, val = {}, {}
    for name, files in _list_classes(folder).items():
        if len(files) < 2:
            raise DataError(
                f"Expected at least two images of every class in {str(folder)!r}, because one is held out, got "
                f"{len(files)} of {name}. Add images, or move this class away."
            )
        count = min(max(1, round(share * len(files))), len(files) - 1)
        order = torch.randperm(len(files), generator=torch.Generator().manual_seed(seed)).tolist()
        held_out = {*order[:count]}
        train[name] = [file for index, file in enumerate(files) if index not in held_out]
        val[name] = [file for index, file in enumerate(files) if index in held_out]
    ids = tuple(train)
    return ids, _samples(train, ids), _samples(val, ids)


def _list_classes(split: Path) -> dict[str, list[Path]]:
    """Return class name -> its image files, both sorted."""
    entries = sorted(path for path in split.iterdir() if not path.name.startswith("."))
    if loose := [path.name for path in entries if is_image(path.name) and not path.is_dir()]:
        raise DataError(
            f"Expected one folder for each class in {str(split)!r}, got an image: {loose[0]}. Move it away."
        )
    files = {path.name: list_images(path) for path in entries if path.is_dir()}
    if not files:
        raise DataError(f"Expected one folder of images for each class in {str(split)!r}, got none. Check the path.")
    if empty := [name for name, images in files.items() if not images]:
        raise DataError(
            f"Expected images ({', '.join(SUFFIXES)}) of every class in {str(split)!r}, got none in "
            f"{', '.join(empty)}. Add images, or remove the folder."
        )
    return files


def _samples(files: dict[str, list[Path]], ids: tuple[str, ...]) -> Samples:
    pairs = [(index, path) for index, name in enumerate(ids) for path in files[name]]
    return Samples(torch.tensor([index for index, _ in pairs]), tuple(path for _, path in pairs))


# ---- named data sets: torchvision's


@dataclass(frozen=True)
class _Named:
    """Data set of torchvision.

    Args:
        kind: name of its class in `torchvision.datasets`.
        source, licence: as in `Dataset`.
        expected: its files below the root, for messages.
    """

    kind: str
    source: str
    licence: str
    expected: str

    def reader(self) -> Any:
        """Return torchvision's class."""
        return getattr(import_torchvision().datasets, self.kind)


_IDX = "train-images-idx3-ubyte, train-labels-idx1-ubyte and the two of t10k, plain or as .gz"
_OF_CIFAR = "none stated; collected for research"
_NAMED = {
    "cifar10": _Named("CIFAR10", "CIFAR-10 (Krizhevsky 2009)", _OF_CIFAR, "cifar-10-batches-py/ or cifar10/train/"),
    "cifar100": _Named("CIFAR100", "CIFAR-100 (Krizhevsky 2009)", _OF_CIFAR, "cifar-100-python/ or cifar100/train/"),
    "mnist": _Named("MNIST", "MNIST (LeCun, Cortes, Burges 1998)", "CC BY-SA 3.0", _IDX),
    "fashion-mnist": _Named("FashionMNIST", "Fashion-MNIST (Xiao, Rasul, Vollgraf 2017)", "MIT", _IDX),
    "imagenette": _Named(
        "Imagenette", "Imagenette (Howard, fast.ai), ten classes of ImageNet",
        "Apache-2.0 for the selection; the photographs are ImageNet's, for non-commercial research",
        "imagenette2/train/ or imagenette/train/",
    ),
}  # fmt: skip
NAMES = tuple(_NAMED)
"""The named data sets."""
_UNREADABLE = (OSError, EOFError, zlib.error, RuntimeError, LookupError, ValueError, TypeError, AssertionError)
_Found = tuple[tuple[str, ...], Samples, Samples, Path]  # names of the classes, train, val, folder


def _find_named(name: str, root: Path | None) -> Dataset[Samples]:
    named, home = _NAMED[name], root or cache_folder("data")
    if home.exists() and not home.is_dir():
        raise DataError(f"Expected root to be a folder, got the file {str(home)!r}. Choose another.")
    found = _look(name, home) or (_look(name, SYSTEM / name) if root is None else None)
    if found is None:
        _check_reachable(name, home)
        try:
            home.mkdir(parents=True, exist_ok=True)
            with FileLock(home / f".{name}.lock"):  # processes must not unpack at the same time
                if _look(name, home) is None:
                    _fetch(name, home)
        except OSError as error:
            raise DataError(
                f"Expected a folder that can be written and locked, got {str(home)!r}: {error}. Choose another "
                "(--root)."
            ) from error
        found = _look(name, home)
    if found is None:
        raise DataError(f"Expected {named.expected} in {str(home)!r}, got {name} in another format. Use --root.")
    classes, train, val, folder = found
    ids = tuple(word.partition(" - ")[0].replace("/", "-") for word in classes)  # "0 - zero", "T-shirt/top"
    labels = tuple(IMAGENETTE.get(word, word.partition(" - ")[0].replace("_", " ")) for word in classes)
    return Dataset(name, labels, ids, train, val, named.source, named.licence, folder)


def _look(name: str, root: Path) -> _Found | None:
    """Return a named data set below a folder: folders of classes, or torchvision's files; None if it is missing."""
    archives = [f"imagenette2{size}" for size in ("", "-320", "-160")] if name == "imagenette" else []
    for folder in (root / name, *(root / archive for archive in archives)):
        if (folder / "train").is_dir():
            return *_class_folders(folder), folder
    kind = _NAMED[name].reader()
    if hasattr(kind, "base_folder"):  # CIFAR
        folder = root / kind.base_folder
        return _read(kind, root, folder) if folder.is_dir() else None
    if hasattr(kind, "resources"):  # MNIST's format
        folder = next((place for place in (root / kind.__name__ / "raw", root) if place.is_dir()), root)
        files = [folder / file for file, _ in kind.resources]
        files = [file if file.is_file() else file.with_suffix("") for file in files]
        if all(file.is_file() for file in files):
            with TemporaryDirectory() as scratch:
                return _read(kind, Path(scratch), folder, files)
    return None


def _read(kind: Any, root: Path, folder: Path, files: Sequence[Path] = ()) -> _Found:
    """Read both splits with torchvision, which opens CIFAR's pickles only if their checksums match the authors' files.

    Args:
        kind: torchvision's class.
        root: the folder where it looks.
        folder: the folder of the data set.
        files: MNIST's files, plain or .gz, which are copied below `root` first.
    """
    try:
        for file in files:
            target = root / kind.__name__ / "raw" / file.name.removesuffix(".gz")
            target.parent.mkdir(parents=True, exist_ok=True)
            with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as packed, target.open("wb") as plain:
                shutil.copyfileobj(packed, plain)
        splits = [kind(str(root), train=train) for train in (True, False)]
        pairs = [(torch.as_tensor(split.targets), _channels_first(split.data)) for split in splits]
        for labels, images in pairs:
            if len(images) != len(labels) or labels.max() >= len(splits[0].classes):
                counts = f"{len(images):,} and {len(labels):,} labels up to {labels.max()}"
                raise DataError(f"Expected as many images as labels of its classes, got {counts}. Check the files.")
    except _UNREADABLE as error:
        raise DataError(
            f"Expected the authors' files in {str(folder)!r}, got files that torchvision rejects: {error}. Move them "
            "away, and download them again."
        ) from error
    train, val = (Samples(labels, images=images) for labels, images in pairs)
    return tuple(splits[0].classes), train, val, folder


def _channels_first(pixels: Any) -> Tensor:
    images = torch.as_tensor(pixels)  # (n, h, w) or (n, h, w, 3)
    return images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()


def _check_reachable(name: str, root: Path) -> None:
    """Raise an error if none of the addresses from which torchvision downloads a data set can be reached."""
    named = _NAMED[name]
    kind = named.reader()
    addresses = getattr(kind, "mirrors", None) or [getattr(kind, "url", None) or kind._ARCHIVES["full"][0]]
    if not any(map(reachable, addresses)):
        hosts = " and ".join(dict.fromkeys(urlparse(address).hostname or address for address in addresses))
        raise DataError(
            f"Expected {name} in {str(root)!r} ({named.expected}; or train/ and test/ with a folder for each class), "
            f"got none, and {hosts} cannot be reached. Put it there, or name its folder (--root FOLDER); known names: "
            f"{', '.join(NAMES)}."
        )


def _fetch(name: str, root: Path) -> None:
    try:
        _NAMED[name].reader()(str(root), download=True)
    except (OSError, RuntimeError, ValueError, EOFError) as error:  # RuntimeError: wrong checksum, or no mirror left
        reason = " ".join(str(error).split())
        raise DataError(
            f"Expected to download {name} to {str(root)!r}, got: {reason}. Try again, or use --root."
        ) from error


def reachable(url: str) -> bool:
    """Return whether a host can be reached: one attempt of a few seconds instead of minutes of retries."""
    address = urlparse(url)
    proxies = (f"{address.scheme}_proxy", f"{address.scheme}_proxy".upper(), "all_proxy", "ALL_PROXY")
    if any(os.environ.get(name) for name in proxies):
        return True  # a proxy may work even if direct connections do not
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), timeout=CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
