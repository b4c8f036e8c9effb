"""Where training images come from: data sets by name, as torchvision has them, and folders of one's own.

Nothing here decodes a photograph: a folder is listed, an archive is read as it is.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse

import torch

from vitviz.training.archives import fetch_cifar, fetch_whole, reachable, read_cifar, read_idx_files, urls
from vitviz.training.parallel import alone
from vitviz.training.sides import DataError, Side, class_folders

__all__ = ["IMAGENETTE", "NAMES", "DataError", "Found", "Side", "default_root", "find"]

SYSTEM = Path("/usr/share/datasets")
"""Where Debian puts data sets: `dataset-fashion-mnist` has its files in fashion-mnist/."""

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
"""WordNet ids of Imagenette's ten classes -> words."""

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


@dataclass(frozen=True, eq=False)
class Found:
    """A data set where it lies.

    Args:
        name: for people: a data set's name, or the folder's.
        labels: a readable word or more for each class.
        class_ids: the names of the class folders, in the same order.
        train, val: both sides.
        source: whose it is; no path, because it goes into model cards.
        licence: of the images, as far as known.
        place: the folder in which it was found.
    """

    name: str
    labels: tuple[str, ...]
    class_ids: tuple[str, ...]
    train: Side
    val: Side
    source: str
    licence: str
    place: Path


@dataclass(frozen=True, kw_only=True)
class _Named:
    """A data set with a name.

    Args:
        torchvision: the class that torchvision has for it.
        title: its name and whose it is.
        labels, class_ids, licence: as in `Found`.
        places: folders under the root where it may lie, as torchvision or its authors unpack it.
        read: both sides from a folder, or None where the folder does not hold it.
        fetch: puts it under a root.
        expected: what `read` looks for, in words.
    """

    torchvision: str
    title: str
    labels: tuple[str, ...]
    class_ids: tuple[str, ...]
    licence: str
    places: tuple[str, ...]
    read: Callable[[Path], tuple[Side, Side] | None]
    fetch: Callable[[str, Path], None]
    expected: str


def find(name_or_folder: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> Found:
    """A data set by its name, or a folder with train/CLASS/image and val/CLASS/image (or test/).

    Args:
        name_or_folder: one of `NAMES` as a string, which goes before a folder of that name (write ./NAME for it).
        root: where a named one lies or is put. Its usual places under `root` are tried, and `root` itself.

    Raises:
        DataError: if there is no such data set or folder, it is not as expected, or it cannot be fetched.
    """
    if isinstance(name_or_folder, str) and name_or_folder in _NAMED:
        return _find_named(name_or_folder, None if root is None else Path(root))
    folder = Path(name_or_folder)
    if not folder.is_dir():
        came = repr(os.fspath(name_or_folder))
        raise DataError(f"Expected a folder with train/ and val/, or one of {', '.join(NAMES)}; {came} is neither.")
    if root is not None:
        raise DataError(f"root is for data sets with a name ({', '.join(NAMES)}); {str(folder)!r} is a folder itself.")
    ids, train, val = class_folders(folder)
    labels, name = tuple(IMAGENETTE.get(one, one) for one in ids), folder.resolve().name
    return Found(name, labels, ids, train, val, f"a folder of images, {name}", "unknown", folder)


def default_root() -> Path:
    """Where named data sets are kept when no root is given: the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitviz" / "data"


def _find_named(name: str, root: Path | None) -> Found:
    named, home = _NAMED[name], root or default_root()
    if home.exists() and not home.is_dir():
        raise DataError(f"Expected root to be a folder; {str(home)!r} is a file.")
    found = _look(name, home)
    if found is None and root is None:
        found = _look(name, SYSTEM)
    if found is None:
        with _room(name, home):
            found = _look(name, home)  # another process may have fetched it meanwhile
            if found is None:
                _fetch(name, home)
                found = _look(name, home)
    if found is None:
        raise DataError(f"{name} was fetched to {str(home)!r}, but is not there as expected: {named.expected}.")
    train, val, place = found
    return Found(name, named.labels, named.class_ids, train, val, named.title, named.licence, place)


def _look(name: str, root: Path) -> tuple[Side, Side, Path] | None:
    """Both sides of a named data set, from the first of its places where it lies."""
    for folder in (root, *(root / place for place in (*_NAMED[name].places, name))):
        if folder.is_dir() and (sides := _NAMED[name].read(folder) or _as_class_folders(name, folder)):
            return *sides, folder
    return None


def _as_class_folders(name: str, folder: Path) -> tuple[Side, Side] | None:
    """A named data set that lies as images in folders of its classes."""
    if not (folder / "train").is_dir():
        return None
    ids, train, val = class_folders(folder)
    known = _NAMED[name].class_ids
    if set(ids) != set(known):
        wrong = ", ".join(sorted(set(ids) ^ set(known))[:5])
        raise DataError(f"Expected the {len(known)} classes of {name} in {str(folder)!r}; these differ: {wrong}.")
    place = torch.tensor([known.index(one) for one in ids])  # their order in the data set, not that of the alphabet
    return Side(place[train.classes], train.paths), Side(place[val.classes], val.paths)


@contextmanager
def _room(name: str, root: Path) -> Iterator[None]:
    """The folder to fetch a data set to, for one process at a time: several would unpack over one another."""
    addresses = urls(_NAMED[name].torchvision)
    if not any(map(reachable, addresses)):
        hosts = " and ".join(dict.fromkeys(urlparse(address).hostname or address for address in addresses))
        raise DataError(
            f"{name} is not in {str(root)!r}, and {hosts} cannot be reached from here. Expected there: "
            f"{_NAMED[name].expected}; or train/ and test/ with a folder for each class. Put it there, or say where it "
            f"lies (--root FOLDER). Names that are known: {', '.join(NAMES)}."
        )
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{str(root)!r} cannot be made: {error}. Choose another folder with --root.") from error
    with alone(root / f".{name}.lock"):
        yield


def _fetch(name: str, root: Path) -> None:
    named = _NAMED[name]
    try:
        named.fetch(named.torchvision, root)
    except (OSError, RuntimeError, ValueError, EOFError) as error:  # RuntimeError: another checksum, or no mirror left
        reason = " ".join(str(error).split())
        raise DataError(f"{name} could not be fetched to {str(root)!r}: {reason}. Try again, or use --root.") from error


# ---- the data sets


def _cifar(torchvision: str, title: str, names: str, archive: str) -> _Named:
    return _Named(
        torchvision=torchvision,
        title=f"{title} (Krizhevsky 2009)",
        labels=tuple(name.replace("_", " ") for name in names.split()),
        class_ids=tuple(names.split()),
        licence="none stated; collected for research",
        places=(),
        read=functools.partial(read_cifar, torchvision),
        fetch=fetch_cifar,
        expected=f"{archive}/ as torchvision unpacks it",
    )


def _mnist(torchvision: str, title: str, labels: tuple[str, ...], licence: str) -> _Named:
    return _Named(
        torchvision=torchvision,
        title=title,
        labels=labels,
        class_ids=tuple(label.replace("/", "-") for label in labels),  # a folder's name has no slash
        licence=licence,
        places=(f"{torchvision}/raw",),
        read=read_idx_files,
        fetch=fetch_whole,
        expected="train-images-idx3-ubyte, train-labels-idx1-ubyte and the two of t10k, plain or as .gz",
    )


_NAMED = {
    "cifar10": _cifar("CIFAR10", "CIFAR-10", CIFAR10, "cifar-10-batches-py"),
    "cifar100": _cifar("CIFAR100", "CIFAR-100", CIFAR100, "cifar-100-python"),
    "mnist": _mnist("MNIST", "MNIST (LeCun, Cortes, Burges 1998)", tuple("0123456789"), "CC BY-SA 3.0"),
    "fashion-mnist": _mnist("FashionMNIST", "Fashion-MNIST (Xiao, Rasul, Vollgraf 2017)", FASHION, "MIT"),
    "imagenette": _Named(
        torchvision="Imagenette",
        title="Imagenette (Howard, fast.ai), ten classes of ImageNet",
        labels=tuple(IMAGENETTE.values()),
        class_ids=tuple(IMAGENETTE),
        licence="Apache-2.0 for the selection; the photographs are ImageNet's, for non-commercial research",
        places=("imagenette2", "imagenette2-320", "imagenette2-160"),
        read=lambda _: None,  # it comes as folders of classes
        fetch=fetch_whole,
        expected="imagenette2/ as torchvision unpacks it",
    ),
}
NAMES = tuple(_NAMED)
"""The data sets that have a name."""
