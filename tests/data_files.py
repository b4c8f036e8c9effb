"""Make small data sets: folders of photographs, MNIST's IDX files, CIFAR's archives."""

import gzip
import hashlib
import pickle
import resource
import struct
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitviz.images.torchvision_import import import_torchvision


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Let writes beyond `size` bytes of a file fail, as on a full disk."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def photo(path: Path, width: int = 20, height: int = 14, seed: int = 0) -> Path:
    """Save a picture of smooth noise, which resizing does not make uniform."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(noise(5, 7, 3, seed=seed)).resize((width, height), Image.Resampling.BICUBIC)
    image.save(path)
    return path


def folder(root: Path, counts: dict[str, tuple[int, int]], second: str = "val", suffix: str = ".png") -> Path:
    """Make ROOT/train/CLASS/N.png and ROOT/val/CLASS/N.png, with a number of images per class and split."""
    for label, sides in counts.items():
        for half, count in zip(("train", second), sides, strict=True):
            for index in range(count):
                photo(root / half / label / f"{index}{suffix}", seed=zlib.crc32(f"{half} {label} {index}".encode()))
    return root


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def mnist(root: Path, *, packed: bool = False, counts: tuple[int, int] = (30, 20), size: int = 28) -> Path:
    """Make the four files of MNIST with pictures of noise; every digit occurs."""
    root.mkdir(parents=True, exist_ok=True)
    for seed, (half, count) in enumerate(zip(("train", "t10k"), counts, strict=True)):
        digits = np.arange(count, dtype=np.uint8) % 10
        for kind, array in (("images-idx3", noise(count, size, size, seed=seed)), ("labels-idx1", digits)):
            name, data = f"{half}-{kind}-ubyte", idx(array)
            (root / f"{name}.gz").write_bytes(gzip.compress(data)) if packed else (root / name).write_bytes(data)
    return root


def cifar(root: Path, name: str, monkeypatch: pytest.MonkeyPatch, per_file: int = 20) -> Path:
    """Make CIFAR's files with few images, and set their checksums in torchvision."""
    kind = getattr(import_torchvision().datasets, name)
    base = root / kind.base_folder
    base.mkdir(parents=True, exist_ok=True)
    classes, key = (10, "labels") if name == "CIFAR10" else (100, "fine_labels")
    for seed, (attribute, half) in enumerate((("train_list", "train"), ("test_list", "test"))):
        sums = []
        for number, (file, _) in enumerate(getattr(kind, attribute)):
            labels = [(index * 7 + number) % classes for index in range(max(per_file, classes))]
            batch = {"batch_label": half, key: labels, "data": noise(len(labels), 3072, seed=10 * seed + number)}
            (base / file).write_bytes(pickle.dumps(batch, protocol=2))
            sums.append([file, md5(base / file)])
        monkeypatch.setattr(kind, attribute, sums)
    names = [f"some_class {index}" for index in range(classes)]
    about = base / kind.meta["filename"]
    about.write_bytes(pickle.dumps({kind.meta["key"]: names}, protocol=2))
    monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": md5(about)})
    return root


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def packed(source: Path, archive: Path) -> Path:
    """Pack a folder as .tgz, with its name as the top folder."""
    with tarfile.open(archive, "w:gz") as file:
        file.add(source, source.name)
    return archive
