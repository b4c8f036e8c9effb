"""Find data sets by name, as in torchvision, or as folders with train/CLASS/image and val/CLASS/image.

This module does not decode photographs: it lists folders and reads archives. Shapes: n images of h x w pixels.
"""

import gzip
import math
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
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

CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
CIFAR100 = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm
"""
FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
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


# ---- archives: MNIST's files, and CIFAR through torchvision

Splits = tuple[Samples, ...]  # train and val


def _read_mnist(_: str, folder: Path) -> Splits | None:
    """Read the four files of MNIST or Fashion-MNIST, plain or as .gz; None if one is missing."""
    splits = []
    for split in ("train", "t10k"):
        unpacked = [folder / f"{split}-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1")]
        files = [path if path.is_file() else path.with_name(f"{path.name}.gz") for path in unpacked]
        if not all(path.is_file() for path in files):
            return None
        images, classes = read_idx(files[0], 3), read_idx(files[1], 1)
        if len(images) != len(classes) or not images.numel() or int(classes.max()) > 9:
            raise DataError(
                f"Expected as many images in {files[0]} as labels 0 to 9 in {files[1]}, got {len(images):,} and "
                f"{len(classes):,} up to {int(classes.max()) if len(classes) else 'none'}. Download them again."
            )
        splits.append(Samples(classes.long(), images=images[:, None]))  # (n, h, w) -> (n, 1, h, w)
    return tuple(splits)


def read_idx(path: Path, axes: int) -> Tensor:
    """Read an IDX file of bytes (LeCun, "The MNIST database of handwritten digits"), plain or .gz, as uint8.

    Raises:
        DataError: if the file has another format, or its size does not match the header.
    """
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:  # gzip.BadGzipFile is an OSError
        raise DataError(f"Expected a readable file, got {path} ({error}). Download it again.") from error
    start = 4 + 4 * axes
    if len(data) < start or data[:4] != bytes((0, 0, 8, axes)):  # 8: unsigned bytes
        got = data[:4].hex(" ") or "nothing"
        raise DataError(f"Expected an IDX file of bytes with {axes} axes, got {got} at the start of {path}. Check it.")
    shape = [int.from_bytes(data[at : at + 4], "big") for at in range(4, start, 4)]
    if len(data) - start != math.prod(shape):
        raise DataError(
            f"Expected {math.prod(shape):,} bytes after the header of {path}, got {len(data) - start:,}. "
            "Download it again."
        )
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)[start:].reshape(shape)


def _read_cifar(kind: str, folder: Path) -> Splits | None:
    """Read CIFAR's unpacked archive with torchvision; None if it is not in `folder`.

    The files are pickles, which can run arbitrary code. torchvision opens them only if their checksums match the
    authors' files; otherwise, an error is raised without opening them.
    """
    reader = _torchvision(kind)
    if folder.name == reader.base_folder:
        folder = folder.parent
    if not (folder / reader.base_folder).is_dir():
        return None
    try:
        splits = [reader(str(folder), train=train) for train in (True, False)]
    except RuntimeError as error:
        raise DataError(
            f"Expected the files of {kind}, got missing or different ones in {str(folder / reader.base_folder)!r} (by "
            "checksum). They are pickles, which can run any code, so they are not opened. Move the folder away to "
            "download it again."
        ) from error
    return tuple(
        # (n, 32, 32, 3) -> (n, 3, 32, 32)
        Samples(torch.tensor(split.targets), images=torch.from_numpy(split.data).permute(0, 3, 1, 2).contiguous())
        for split in splits
    )


def _torchvision(kind: str) -> Any:
    """Return a class of torchvision.datasets."""
    return getattr(import_torchvision().datasets, kind)


# ---- named data sets


@dataclass(frozen=True)
class _Named:
    """Description of a named data set.

    Args:
        kind: name of torchvision's class.
        source, licence: as in `Dataset`.
        classes: class id -> label, in the data set's order.
        expected: description of the expected files, for messages.
        read: (kind, folder) -> both splits, or None if the folder lacks them; None for folders of classes.
        places: possible subfolders of the root, as torchvision or the authors unpack them.
    """

    kind: str
    source: str
    licence: str
    classes: Mapping[str, str]
    expected: str
    read: Callable[[str, Path], Splits | None] | None = None
    places: tuple[str, ...] = ()


_IDX = "train-images-idx3-ubyte, train-labels-idx1-ubyte and the two of t10k, plain or as .gz"
_OF_CIFAR = "none stated; collected for research"
_NAMED = {
    "cifar10": _Named(
        "CIFAR10", "CIFAR-10 (Krizhevsky 2009)", _OF_CIFAR, {name: name for name in CIFAR10.split()},
        "cifar-10-batches-py/ as torchvision unpacks it", _read_cifar,
    ),
    "cifar100": _Named(
        "CIFAR100", "CIFAR-100 (Krizhevsky 2009)", _OF_CIFAR,
        {name: name.replace("_", " ") for name in CIFAR100.split()},
        "cifar-100-python/ as torchvision unpacks it", _read_cifar,
    ),
    "mnist": _Named(
        "MNIST", "MNIST (LeCun, Cortes, Burges 1998)", "CC BY-SA 3.0", {digit: digit for digit in "0123456789"},
        _IDX, _read_mnist, ("MNIST/raw",),
    ),
    "fashion-mnist": _Named(
        "FashionMNIST", "Fashion-MNIST (Xiao, Rasul, Vollgraf 2017)", "MIT",
        {label.replace("/", "-"): label for label in FASHION},  # folder names have no slash
        _IDX, _read_mnist, ("FashionMNIST/raw",),
    ),
    "imagenette": _Named(
        "Imagenette", "Imagenette (Howard, fast.ai), ten classes of ImageNet",
        "Apache-2.0 for the selection; the photographs are ImageNet's, for non-commercial research",
        IMAGENETTE, "imagenette2/ as torchvision unpacks it",
        places=("imagenette2", "imagenette2-320", "imagenette2-160"),
    ),
}  # fmt: skip
NAMES = tuple(_NAMED)
"""The named data sets."""


def _find_named(name: str, root: Path | None) -> Dataset[Samples]:
    named, home = _NAMED[name], root or cache_folder("data")
    if home.exists() and not home.is_dir():
        raise DataError(f"Expected root to be a folder, got the file {str(home)!r}. Choose another.")
    location = _look(name, home) or (_look(name, SYSTEM) if root is None else None)
    if location is None:
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
        location = _look(name, home)
    if location is None:
        raise DataError(f"Expected {named.expected} in {str(home)!r}, got {name} in another format. Use --root.")
    (train, val), folder = location
    labels, ids = tuple(named.classes.values()), tuple(named.classes)
    return Dataset(name, labels, ids, train, val, named.source, named.licence, folder)


def _look(name: str, root: Path) -> tuple[Splits, Path] | None:
    """Return both splits of a named data set, and the first folder that contains it."""
    named = _NAMED[name]
    for folder in (root, *(root / place for place in (*named.places, name))):
        splits = named.read(named.kind, folder) if named.read and folder.is_dir() else None
        if splits := splits or _as_class_folders(name, folder):
            return splits, folder
    return None


def _as_class_folders(name: str, folder: Path) -> Splits | None:
    """Return a named data set stored as class folders of images."""
    if not (folder / "train").is_dir():
        return None
    ids, train, val = _class_folders(folder)
    known = list(_NAMED[name].classes)
    if set(ids) != set(known):
        wrong = ", ".join(sorted(set(ids) ^ set(known))[:5])
        raise DataError(
            f"Expected the {len(known)} classes of {name} in {str(folder)!r}, got others: {wrong}. Rename the folders."
        )
    place = torch.tensor([known.index(class_id) for class_id in ids])  # in the data set's order, not alphabetical
    return Samples(place[train.classes], train.paths), Samples(place[val.classes], val.paths)


def _check_reachable(name: str, root: Path) -> None:
    """Raise an error if none of the addresses from which torchvision downloads a data set can be reached."""
    named = _NAMED[name]
    reader = _torchvision(named.kind)
    addresses = getattr(reader, "mirrors", None) or [getattr(reader, "url", None) or reader._ARCHIVES["full"][0]]
    if not any(map(reachable, addresses)):
        hosts = " and ".join(dict.fromkeys(urlparse(address).hostname or address for address in addresses))
        raise DataError(
            f"Expected {name} in {str(root)!r} ({named.expected}; or train/ and test/ with a folder for each class), "
            f"got none, and {hosts} cannot be reached. Put it there, or name its folder (--root FOLDER); known names: "
            f"{', '.join(NAMES)}."
        )


def _fetch(name: str, root: Path) -> None:
    kind = _torchvision(_NAMED[name].kind)
    try:
        if hasattr(kind, "tgz_md5"):  # CIFAR: torchvision's class would open the pickles
            from torchvision.datasets.utils import download_and_extract_archive

            download_and_extract_archive(kind.url, str(root), filename=kind.filename, md5=kind.tgz_md5)
        else:
            kind(str(root), download=True)
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
