"""Data sets that come in a few large files: MNIST's IDX files, and CIFAR's through torchvision. And their downloads."""

from __future__ import annotations

import gzip
import math
import os
import socket
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlparse

import torch
from torch import Tensor

from vitviz.compat import import_torchvision
from vitviz.training.sides import DataError, Side

CONNECT_SECONDS = 3.0
_AT_ONCE = 2**24  # bytes: a header that lies about its file takes no more memory than the file has


def dataset(name: str) -> Any:
    """A class of torchvision.datasets."""
    import_torchvision()
    from torchvision import datasets

    return getattr(datasets, name)


# ---- IDX files (MNIST and Fashion-MNIST)


def read_idx_files(folder: Path) -> tuple[Side, Side] | None:
    """MNIST's four files, plain or compressed: train and t10k; None where one is missing.

    Raises:
        DataError: if they are damaged, or are no images and labels from 0 to 9.
    """
    halves: list[Side] = []
    for half in ("train", "t10k"):
        pictures, labels = (_plain_or_gz(folder / f"{half}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
        if pictures is None or labels is None:
            return None
        images, classes = read_idx(pictures, 3), read_idx(labels, 1)
        if len(images) != len(classes) or not images.numel():
            raise DataError(f"{pictures} has {len(images):,} images and {labels} {len(classes):,} labels: not a pair.")
        if int(classes.max()) > 9:
            raise DataError(f"Expected labels from 0 to 9 in {labels}; {int(classes.max())} came.")
        halves.append(Side(classes.long(), images=images[:, None]))  # (n, h, w) -> (n, 1, h, w)
    return halves[0], halves[1]


def _plain_or_gz(path: Path) -> Path | None:
    return next((one for one in (path, path.with_name(f"{path.name}.gz")) if one.is_file()), None)


def read_idx(path: Path, axes: int) -> Tensor:
    """An IDX file of bytes (LeCun, "The MNIST database of handwritten digits"), plain or as .gz: uint8.

    Args:
        path: its name ends in .gz where it is compressed.
        axes: how many the array must have.

    Raises:
        DataError: if it is another kind of file, or holds less or more than its header says.
    """
    opened: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            return _read_idx(file, path, axes)
    except (OSError, EOFError) as error:  # gzip.BadGzipFile is an OSError
        raise DataError(f"{path} cannot be read ({error}). Fetch it again.") from error


def _read_idx(file: BinaryIO, path: Path, axes: int) -> Tensor:
    head = file.read(4 + 4 * axes)
    if len(head) < 4 + 4 * axes or head[:4] != bytes((0, 0, 8, axes)):  # 8: unsigned bytes
        came = head[:4].hex(" ") or "nothing"
        raise DataError(f"Expected {path} to be an IDX file of bytes with {axes} axes; it begins with {came}.")
    shape = tuple(int.from_bytes(head[4 + 4 * axis : 8 + 4 * axis], "big") for axis in range(axes))
    wanted, values = math.prod(shape), bytearray()
    while len(values) <= wanted and (some := file.read(min(_AT_ONCE, wanted + 1 - len(values)))):
        values += some
    if len(values) != wanted:
        came = "more" if len(values) > wanted else f"{len(values):,}"
        raise DataError(f"Expected {wanted:,} bytes in {path} behind its header; {came} came. Fetch it again.")
    return torch.frombuffer(values, dtype=torch.uint8).reshape(shape) if wanted else torch.empty(shape)


# ---- CIFAR


def read_cifar(name: str, folder: Path) -> tuple[Side, Side] | None:
    """CIFAR's archive as torchvision unpacks it, read by torchvision; None where it is not in `folder`.

    Its files are pickles, and opening one runs whatever is written in it. torchvision opens them only after it has
    found the checksums of the authors' own files; others are refused here, unopened.

    Args:
        name: CIFAR10 or CIFAR100.
        folder: that of the archive, or the one it lies in.

    Raises:
        DataError: if files are missing or have another checksum.
    """
    kind = dataset(name)
    if folder.name == kind.base_folder:
        folder = folder.parent
    if not (folder / kind.base_folder).is_dir():
        return None
    try:
        halves = [kind(str(folder), train=train) for train in (True, False)]
    except RuntimeError as error:
        raise DataError(
            f"The files in {str(folder / kind.base_folder)!r} are not those of {name}: some are missing or have "
            "another checksum. They are pickles, which may run anything, so they are not opened. Move the folder away "
            "to have it fetched again."
        ) from error
    sides: list[Side] = []
    for half in halves:
        images = torch.from_numpy(half.data).permute(0, 3, 1, 2)  # (n, h, w, 3) -> (n, 3, h, w)
        sides.append(Side(torch.tensor(half.targets), images=images.contiguous()))
    return sides[0], sides[1]


# ---- downloads


def fetch_cifar(name: str, root: Path) -> None:
    """The archive, if it has its checksum. Not through torchvision's class, which would go on to open it."""
    kind = dataset(name)
    from torchvision.datasets.utils import download_and_extract_archive

    download_and_extract_archive(kind.url, str(root), filename=kind.filename, md5=kind.tgz_md5)


def fetch_whole(name: str, root: Path) -> None:
    """A data set without pickles, by torchvision's own class."""
    dataset(name)(str(root), download=True)


def urls(name: str) -> tuple[str, ...]:
    """Where torchvision fetches a data set from; each of them will do."""
    kind = dataset(name)
    if name == "Imagenette":
        return (str(kind._ARCHIVES["full"][0]),)
    return tuple(kind.mirrors) if hasattr(kind, "mirrors") else (str(kind.url),)


def reachable(url: str) -> bool:
    """Whether a download is worth trying: one attempt of a few seconds, instead of minutes of retries."""
    address = urlparse(url)
    proxies = (f"{address.scheme}_proxy", f"{address.scheme}_proxy".upper(), "all_proxy", "ALL_PROXY")
    if any(os.environ.get(name) for name in proxies):
        return True  # the proxy knows; a direct connection may be shut and the way through it open
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), timeout=CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
