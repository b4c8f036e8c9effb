"""Data sets by name and as folders: read as torchvision reads them, fetched where they can be, else said at once."""

from __future__ import annotations

import gzip
import pickle
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import data_files as files
import numpy as np
import pytest
import torch

from vitviz.images import datasets
from vitviz.images.datasets import IMAGENETTE, NAMES, Dataset, find_dataset, read_idx
from vitviz.images.folders import DataError
from vitviz.images.torchvision_import import import_torchvision

torchvision = import_torchvision().datasets


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No network but this machine, and none of its own data sets."""
    real = datasets.socket.create_connection

    def connect(address: tuple[str, int], *rest: object, **options: object) -> object:
        if address[0] != "127.0.0.1":
            raise OSError("Network is unreachable")
        return real(address, *rest, **options)

    monkeypatch.setattr(datasets.socket, "create_connection", connect)
    monkeypatch.setattr(datasets, "SYSTEM", tmp_path / "no system")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


# ---- IDX


@pytest.mark.parametrize(("name", "kind"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_idx_files_are_read_as_torchvision_reads_them(tmp_path: Path, name: str, kind: str) -> None:
    files.mnist(tmp_path / kind / "raw")
    found = find_dataset(name, tmp_path)
    for split, train in ((found.train, True), (found.val, False)):
        theirs = getattr(torchvision, kind)(str(tmp_path), train=train)
        assert split.images is not None
        assert split.images.dtype == torch.uint8
        torch.testing.assert_close(split.images[:, 0], theirs.data)
        torch.testing.assert_close(split.classes, theirs.targets)
        assert split.paths is None
    if kind == "FashionMNIST":
        assert list(found.labels) == theirs.classes
    assert len(found.labels) == 10


@pytest.mark.parametrize("place", [".", "MNIST/raw", "mnist"])
@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_lie_in_the_root_or_where_torchvision_puts_them(tmp_path: Path, place: str, packed: bool) -> None:
    files.mnist(tmp_path / place, packed=packed)
    found = find_dataset("mnist", str(tmp_path))
    assert found.folder == tmp_path / place
    assert found.train.images is not None
    np.testing.assert_array_equal(found.train.images[:, 0].numpy(), files.noise(30, 28, 28, seed=0))
    assert found.val.classes.tolist() == [*range(10)] * 2


def test_the_systems_own_copy_is_found_without_a_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "SYSTEM", tmp_path)
    files.mnist(tmp_path / "fashion-mnist", packed=True)
    assert find_dataset("fashion-mnist").folder == tmp_path / "fashion-mnist"
    files.mnist(datasets.default_root() / "FashionMNIST" / "raw", counts=(10, 10))  # the user's goes first
    assert len(find_dataset("fashion-mnist").train.classes) == 10
    with pytest.raises(DataError, match="cannot be reached"):
        find_dataset("fashion-mnist", tmp_path / "elsewhere")  # who names a root wants that one


GOOD = files.idx(files.noise(3, 4, 5))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "nothing"),
        (GOOD[:15], "IDX"),
        (GOOD[:-1], "60 bytes.*got 59"),
        (GOOD + b"\0", "60 bytes.*got 61"),
        (b"\0\0\x0d\x03" + GOOD[4:], "00 00 0d 03"),  # floats
        (files.idx(files.noise(7)), "3 axes.*00 00 08 01"),
        (GOOD[:4] + b"\xff" * 12 + GOOD[16:], "got 60"),  # claims 2^96 bytes
        (b"PK\x03\x04" + GOOD[4:], "50 4b 03 04"),
    ],
    ids=("empty", "no header", "short", "long", "floats", "flat", "a lie", "a zip"),
)
def test_damaged_idx_files_are_refused(tmp_path: Path, data: bytes, words: str) -> None:
    plain, packed = tmp_path / "a", tmp_path / "a.gz"
    plain.write_bytes(data)
    packed.write_bytes(gzip.compress(data))
    for path in (plain, packed):
        with pytest.raises(DataError, match=words):
            read_idx(path, 3)


def test_damaged_compression_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    for data in (GOOD, gzip.compress(GOOD)[:-9]):
        path.write_bytes(data)
        with pytest.raises(DataError, match="readable file"):
            read_idx(path, 3)


def test_images_and_labels_must_be_a_pair(tmp_path: Path) -> None:
    files.mnist(tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(files.idx(np.arange(29, dtype=np.uint8) % 10))
    with pytest.raises(DataError, match=r"got 30 and 29"):
        find_dataset("mnist", tmp_path)
    labels.write_bytes(files.idx(np.arange(30, dtype=np.uint8)))
    with pytest.raises(DataError, match=r"0 to 9.*up to 29"):
        find_dataset("mnist", tmp_path)


# ---- CIFAR


@pytest.mark.parametrize(("name", "kind"), [("cifar10", "CIFAR10"), ("cifar100", "CIFAR100")])
@pytest.mark.parametrize("inside", [False, True])
def test_cifar_is_read_as_torchvision_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str, inside: bool
) -> None:
    files.cifar(tmp_path, kind, monkeypatch)
    base = getattr(torchvision, kind).base_folder
    found = find_dataset(name, tmp_path / base if inside else tmp_path)
    for split, train in ((found.train, True), (found.val, False)):
        theirs = getattr(torchvision, kind)(str(tmp_path), train=train)
        assert split.images is not None
        np.testing.assert_array_equal(split.images.permute(0, 2, 3, 1).numpy(), theirs.data)
        assert split.classes.tolist() == theirs.targets
    assert len(found.labels) == len(found.class_ids) == {"cifar10": 10, "cifar100": 100}[name]
    assert list(found.class_ids) == sorted(set(found.class_ids))  # as its authors number them


def test_files_with_another_checksum_are_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.cifar(tmp_path, "CIFAR10", monkeypatch)
    mark = tmp_path / "was run"

    class Hostile:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (mark,)

    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(DataError, match=r"checksum.*not opened"):
        find_dataset("cifar10", tmp_path)
    assert not mark.exists()


# ---- folders


def test_cifar_as_folders_has_the_order_of_the_archive(tmp_path: Path) -> None:
    names = datasets.CIFAR10.split()
    files.folder(tmp_path / "cifar10", dict.fromkeys(names, (1, 2)), "test")
    for root in (tmp_path, tmp_path / "cifar10"):
        found = find_dataset("cifar10", root)
        assert found.class_ids == tuple(names)
        assert found.train.paths is not None
        assert [names[index] for index in found.train.classes.tolist()] == [p.parent.name for p in found.train.paths]
        assert len(found.val.classes) == 20
    shutil.rmtree(tmp_path / "cifar10" / "train" / "ship")
    shutil.rmtree(tmp_path / "cifar10" / "test" / "ship")
    files.folder(tmp_path / "cifar10", {"yacht": (1, 1)}, "test")
    with pytest.raises(DataError, match=r"10 classes of cifar10.*got others: ship, yacht"):
        find_dataset("cifar10", tmp_path)


def test_fashion_as_folders_keeps_its_own_order(tmp_path: Path) -> None:
    """Its classes are not in the order of the alphabet, and one has a slash in its name."""
    labels = torchvision.FashionMNIST.classes
    files.folder(tmp_path, {label.replace("/", "-"): (1, 1) for label in labels})
    found = find_dataset("fashion-mnist", tmp_path)
    assert list(found.labels) == labels
    assert found.train.paths is not None
    pairs = zip(found.train.classes.tolist(), found.train.paths, strict=True)
    assert all(labels[index].replace("/", "-") == path.parent.name for index, path in pairs)


@pytest.mark.parametrize("place", [".", "imagenette2", "imagenette2-160", "imagenette"])
def test_imagenette_is_found_and_its_classes_have_words(tmp_path: Path, place: str) -> None:
    files.folder(tmp_path / place, dict.fromkeys(IMAGENETTE, (1, 1)))
    found = find_dataset("imagenette", tmp_path)
    assert found.class_ids == tuple(IMAGENETTE)
    assert found.labels[3] == "chain saw"
    assert find_dataset(tmp_path / place).labels == found.labels  # also where it is only a folder


def test_the_words_of_imagenette_are_torchvisions() -> None:
    theirs = torchvision.Imagenette._WNID_TO_CLASS
    assert {wnid: words[0] for wnid, words in theirs.items()} == IMAGENETTE


def test_a_folder_is_listed_in_order(tmp_path: Path) -> None:
    files.folder(tmp_path, {"zebra": (2, 1), "Ant": (3, 1)})
    files.photo(tmp_path / "train" / "zebra" / "deep" / "er" / "x.JPG")
    (tmp_path / "train" / "zebra" / "notes.txt").write_text("no image")
    files.photo(tmp_path / "train" / "zebra" / ".hidden.png")
    files.photo(tmp_path / "train" / "zebra" / ".cache" / "x.png")
    (tmp_path / "train" / ".git").mkdir()
    files.photo(tmp_path / "elsewhere" / "bear" / "b.png")
    for half in ("train", "val"):
        (tmp_path / half / "bear").symlink_to(tmp_path / "elsewhere" / "bear")
    found = find_dataset(tmp_path)
    assert found.labels == found.class_ids == ("Ant", "bear", "zebra")
    assert found.name == tmp_path.name
    assert found.train.paths is not None
    shown = [str(path.relative_to(tmp_path / "train")) for path in found.train.paths]
    assert shown == ["Ant/0.png", "Ant/1.png", "Ant/2.png", "bear/b.png", "zebra/0.png", "zebra/1.png",
                     "zebra/deep/er/x.JPG"]  # fmt: skip
    assert found.train.classes.tolist() == [0, 0, 0, 1, 2, 2, 2]


def test_a_plain_folder_is_split_by_lot_within_each_class(tmp_path: Path) -> None:
    pets = files.folder(tmp_path / "pets", {"cat": (10, 0), "dog": (25, 0), "owl": (2, 0)}) / "train"
    found, again, other = (find_dataset(pets, val_share=0.2, seed=seed) for seed in (3, 3, 4))
    assert found.class_ids == ("cat", "dog", "owl")
    assert found.train.classes.bincount().tolist() == [8, 20, 1]
    assert found.val.classes.bincount().tolist() == [2, 5, 1]
    both = {*(found.train.paths or ()), *(found.val.paths or ())}
    assert both == {*pets.rglob("*.png")}
    assert found.val.paths == again.val.paths != other.val.paths
    assert "0.2 of each class" in found.source
    assert "seed 3" in found.source
    with pytest.raises(DataError, match="--val-share"):
        find_dataset(pets)
    with pytest.raises(DataError, match="which is split"):
        find_dataset(files.folder(tmp_path / "split", {"cat": (2, 1), "dog": (2, 1)}), val_share=0.2)
    with pytest.raises(DataError, match="which is split"):
        find_dataset("mnist", tmp_path, val_share=0.2)
    with pytest.raises(DataError, match="between 0 and 1"):
        find_dataset(pets, val_share=1.0)
    (pets / "owl" / "0.png").unlink()
    with pytest.raises(DataError, match="1 of owl"):
        find_dataset(pets, val_share=0.5)


def test_val_goes_before_test(tmp_path: Path) -> None:
    files.folder(tmp_path, {"a": (1, 1)}, "val")
    files.folder(tmp_path, {"a": (1, 3)}, "test")
    assert len(find_dataset(tmp_path).val.classes) == 1
    shutil.rmtree(tmp_path / "val")
    assert len(find_dataset(tmp_path).val.classes) == 3


def test_folders_that_cannot_be_trained_on_are_refused(tmp_path: Path) -> None:
    def refused(words: str, name: str | Path = tmp_path, root: Path | None = None) -> None:
        with pytest.raises(DataError, match=words):
            find_dataset(name, root)

    refused("cifar10, cifar100, mnist, fashion-mnist, imagenette, got 'cifra10'", "cifra10")
    refused(r"train/ and val/ \(or test/\) in .*, got nothing")
    (tmp_path / "train").mkdir()
    refused("got train")
    (tmp_path / "test").mkdir()
    refused("one folder of images for each class.*none")
    files.folder(tmp_path, {"a": (1, 1), "b": (1, 1), "c": (1, 0), "d": (1, 0)}, "test")
    refused(r"got c \(only in train/\), d \(only in train/\)\.")
    files.folder(tmp_path, {"c": (1, 1), "d": (1, 1), "e": (0, 1)}, "test")
    refused(r"got e \(only in test/\)\.")
    files.folder(tmp_path, {"e": (1, 1)}, "test")
    find_dataset(tmp_path)
    refused("named data set .* with root", root=tmp_path)
    (tmp_path / "train" / "f").mkdir()
    refused("none in f")
    (tmp_path / "train" / "f").rmdir()
    files.photo(tmp_path / "test" / "loose.png")
    refused("loose.png")


# ---- downloads


@pytest.mark.parametrize("name", NAMES)
def test_without_a_network_it_is_said_at_once(tmp_path: Path, name: str) -> None:
    began = time.monotonic()
    with pytest.raises(DataError, match=f"{name}.*cannot be reached.*--root.*{', '.join(NAMES)}") as caught:
        find_dataset(name, tmp_path / "new")
    assert time.monotonic() - began < 20  # no minute of retries
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "new").exists()
    with pytest.raises(DataError, match="cache"):
        find_dataset(name)


def test_a_proxy_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not datasets.reachable("https://example.org/x")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    assert datasets.reachable("https://example.org/x")
    assert not datasets.reachable("http://example.org/x")


def test_cifar_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.cifar(tmp_path / "there", "CIFAR10", monkeypatch)
    kind, archive = torchvision.CIFAR10, tmp_path / "there" / "cifar-10-python.tar.gz"
    files.packed(tmp_path / "there" / kind.base_folder, archive)
    monkeypatch.setattr(kind, "tgz_md5", files.md5(archive))
    with files.served(tmp_path / "there") as address:
        monkeypatch.setattr(kind, "url", address + archive.name)
        found = find_dataset("cifar10", tmp_path / "here")
        same(found, find_dataset("cifar10", tmp_path / "there"))
        monkeypatch.setattr(kind, "tgz_md5", "0" * 32)
        with pytest.raises(DataError, match="Expected to fetch"):
            find_dataset("cifar10", tmp_path / "third")
    same(found, find_dataset("cifar10", tmp_path / "here"))  # no network any more


def test_processes_that_start_together_fetch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[Path] = []

    def fetch(_: str, root: Path) -> None:
        fetched.append(root)
        time.sleep(0.3)  # the others would find half of it
        files.cifar(root, "CIFAR10", monkeypatch)

    monkeypatch.setattr(datasets, "_fetch", fetch)
    monkeypatch.setattr(datasets, "reachable", lambda _: True)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: find_dataset("cifar10", tmp_path), range(3)))
    assert fetched == [tmp_path]
    assert len({one.folder for one in found}) == 1


def test_mnist_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = files.mnist(tmp_path / "there", packed=True)
    kind = torchvision.FashionMNIST
    monkeypatch.setattr(kind, "resources", [(name, files.md5(there / name)) for name, _ in kind.resources])
    with files.served(there) as address:
        monkeypatch.setattr(kind, "mirrors", ["http://127.0.0.1:9/", address])
        same(find_dataset("fashion-mnist", tmp_path / "here"), find_dataset("fashion-mnist", there))
        (there / "t10k-labels-idx1-ubyte.gz").write_bytes(b"another file")
        with pytest.raises(DataError, match="Expected to fetch"):
            find_dataset("fashion-mnist", tmp_path / "third")


def test_imagenette_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = files.folder(tmp_path / "there" / "imagenette2", dict.fromkeys(IMAGENETTE, (1, 1)), suffix=".JPEG")
    archive = files.packed(there, tmp_path / "there" / "imagenette2.tgz")
    with files.served(tmp_path / "there") as address:
        entry = {"full": (address + archive.name, files.md5(archive))}
        monkeypatch.setattr(torchvision.Imagenette, "_ARCHIVES", {**torchvision.Imagenette._ARCHIVES, **entry})
        found = find_dataset("imagenette", tmp_path / "here")
    assert found.train.paths is not None
    assert len(found.train.paths) == 10
    assert found.folder == tmp_path / "here" / "imagenette2"


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="root to be a folder"):
        find_dataset("mnist", tmp_path / "file")


def same(one: Dataset, other: Dataset) -> None:
    for split, its in ((one.train, other.train), (one.val, other.val)):
        assert split.images is not None
        assert its.images is not None
        torch.testing.assert_close(split.images, its.images)
        torch.testing.assert_close(split.classes, its.classes)
