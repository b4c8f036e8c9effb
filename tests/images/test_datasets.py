"""Test data sets by name and as folders: the contents equal torchvision's, and downloads are verified."""

import gzip
import pickle
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import data_files as files
import numpy as np
import pytest
import torch
from hostile_files import Call
from patience import patience
from static_site import serve

from vitviz.images import datasets
from vitviz.images.datasets import IMAGENETTE, NAMES, Dataset, Samples, find_dataset
from vitviz.images.folders import DataError
from vitviz.images.torchvision_import import import_torchvision
from vitviz.resources import cache_folder

torchvision = import_torchvision().datasets


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Allow connections to this machine only, and hide the system's data sets."""
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


def assert_theirs(dataset: Dataset[Samples], kind: str, root: Path) -> None:
    """Assert that both splits equal torchvision's."""
    for split, train in ((dataset.train, True), (dataset.val, False)):
        torchvision_split = getattr(torchvision, kind)(str(root), train=train)
        assert split.images is not None
        assert (split.images.dtype, split.paths) == (torch.uint8, None)
        pixels = split.images.permute(0, 2, 3, 1).numpy()
        assert np.array_equal(pixels.reshape(torchvision_split.data.shape), torchvision_split.data)
        assert split.classes.tolist() == list(torchvision_split.targets)


@pytest.mark.parametrize(("name", "kind"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_idx_files_match_torchvision(tmp_path: Path, name: str, kind: str) -> None:
    files.mnist(tmp_path / kind / "raw")
    dataset = find_dataset(name, tmp_path)
    assert_theirs(dataset, kind, tmp_path)
    assert list(dataset.labels) == (list("0123456789") if name == "mnist" else getattr(torchvision, kind).classes)
    assert dataset.class_ids[0] == ("0" if name == "mnist" else "T-shirt-top")  # names of folders have no slash
    assert dataset.folder == tmp_path / kind / "raw"


def test_idx_files_are_found_in_root_and_debians_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, packed in ((".", False), (".", True), ("MNIST/raw", True)):
        root = tmp_path / f"{place.replace('/', ' ')} {packed}"
        files.mnist(root / place, packed=packed)
        dataset = find_dataset("mnist", str(root))
        assert dataset.folder == root / place
        assert dataset.train.images is not None
        assert np.array_equal(dataset.train.images[:, 0].numpy(), files.noise(30, 28, 28, seed=0))
    monkeypatch.setattr(datasets, "SYSTEM", tmp_path / "system")
    files.mnist(tmp_path / "system" / "fashion-mnist", packed=True)
    assert find_dataset("fashion-mnist").folder == tmp_path / "system" / "fashion-mnist"
    # The user's folder precedes the system's.
    files.mnist(cache_folder("data") / "FashionMNIST" / "raw", counts=(10, 10))
    assert len(find_dataset("fashion-mnist").train.classes) == 10
    with pytest.raises(DataError, match="cannot be reached"):
        find_dataset("fashion-mnist", tmp_path / "elsewhere")  # with a root, the system's folder is not used


GOOD = files.idx(files.noise(30, 28, 28))


@pytest.mark.parametrize("packed", [False, True])
def test_damaged_idx_files_raise(tmp_path: Path, packed: bool) -> None:
    files.mnist(tmp_path, packed=packed)
    path = tmp_path / f"train-images-idx3-ubyte{'.gz' if packed else ''}"
    for data in (
        b"",
        GOOD[:15],
        GOOD[:-1],
        b"\0\0\x0d\x03" + GOOD[4:],  # floats
        b"\0\0\x63\x03" + GOOD[4:],  # an unknown type
        files.idx(files.noise(7)),
        GOOD[:4] + b"\xff" * 12 + GOOD[16:],  # claims 2^96 bytes
        files.idx(files.noise(29, 28, 28)),  # 30 labels
        files.idx(files.noise(0, 28, 28)),
    ):
        path.write_bytes(gzip.compress(data) if packed else data)
        with pytest.raises(DataError, match="torchvision rejects"):
            find_dataset("mnist", tmp_path)
    for damaged in (GOOD, gzip.compress(GOOD)[:-9]) if packed else ():
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="the authors' files"):
            find_dataset("mnist", tmp_path)


@pytest.mark.parametrize(("name", "kind"), [("cifar10", "CIFAR10"), ("cifar100", "CIFAR100")])
def test_cifar_matches_torchvision_and_other_checksums_raise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    files.cifar(tmp_path, kind, monkeypatch)
    inside = tmp_path / getattr(torchvision, kind).base_folder
    dataset = find_dataset(name, tmp_path)
    assert_theirs(dataset, kind, tmp_path)
    classes = int(name.removeprefix("cifar"))
    assert dataset.class_ids == tuple(f"some_class {index}" for index in range(classes))
    assert dataset.labels == tuple(f"some class {index}" for index in range(classes))
    mark = tmp_path / "was run"
    (inside / getattr(torchvision, kind).train_list[-1][0]).write_bytes(pickle.dumps(Call(Path.touch, mark)))
    with pytest.raises(DataError, match="torchvision rejects"):
        find_dataset(name, tmp_path)
    assert not mark.exists()


def test_class_folders_of_named_data_sets(tmp_path: Path) -> None:
    files.folder(tmp_path / "cifar10", {"frog": (1, 2), "cat": (1, 2)}, "test")
    dataset = find_dataset("cifar10", tmp_path)
    assert dataset.labels == dataset.class_ids == ("cat", "frog")
    assert (dataset.name, len(dataset.val.classes)) == ("cifar10", 4)
    for index, place in enumerate(("imagenette2", "imagenette2-160", "imagenette")):
        root = tmp_path / str(index)
        files.folder(root / place, dict.fromkeys(IMAGENETTE, (1, 1)))
        dataset = find_dataset("imagenette", root)
        assert dataset.class_ids == tuple(IMAGENETTE)
        assert dataset.labels[3] == "chain saw"
        assert find_dataset(root / place).labels == dataset.labels  # the folder alone also works
    assert {wnid: words[0] for wnid, words in torchvision.Imagenette._WNID_TO_CLASS.items()} == IMAGENETTE


def test_folders_are_sorted_and_val_precedes_test(tmp_path: Path) -> None:
    files.folder(tmp_path, {"zebra": (2, 1), "Ant": (3, 1)})
    for image in ("zebra/deep/er/x.JPG", "zebra/.hidden.png", "zebra/.cache/x.png"):
        files.photo(tmp_path / "train" / image)
    (tmp_path / "train" / "zebra" / "notes.txt").write_text("no image")
    (tmp_path / "train" / ".git").mkdir()
    files.photo(tmp_path / "elsewhere" / "bear" / "b.png")
    for half in ("train", "val"):
        (tmp_path / half / "bear").symlink_to(tmp_path / "elsewhere" / "bear")
    files.folder(tmp_path, {"bear": (0, 3), "zebra": (0, 3), "Ant": (0, 3)}, "test")
    dataset = find_dataset(tmp_path)
    assert dataset.labels == dataset.class_ids == ("Ant", "bear", "zebra")
    assert (dataset.name, len(dataset.val.classes)) == (tmp_path.name, 3)
    assert dataset.train.paths is not None
    listed = [str(path.relative_to(tmp_path / "train")) for path in dataset.train.paths]
    expected = ["Ant/0.png", "Ant/1.png", "Ant/2.png", "bear/b.png", "zebra/0.png", "zebra/1.png"]
    assert listed == [*expected, "zebra/deep/er/x.JPG"]
    assert dataset.train.classes.tolist() == [0, 0, 0, 1, 2, 2, 2]
    shutil.rmtree(tmp_path / "val")
    assert len(find_dataset(tmp_path).val.classes) == 9


def test_val_share_splits_each_class_at_random(tmp_path: Path) -> None:
    pets = files.folder(tmp_path / "pets", {"cat": (10, 0), "dog": (25, 0), "owl": (2, 0)}) / "train"
    first, again, other = (find_dataset(pets, val_share=0.2, seed=seed) for seed in (3, 3, 4))
    assert first.class_ids == ("cat", "dog", "owl")
    assert first.train.classes.bincount().tolist() == [8, 20, 1]
    assert first.val.classes.bincount().tolist() == [2, 5, 1]
    assert {*(first.train.paths or ()), *(first.val.paths or ())} == {*pets.rglob("*.png")}
    assert first.val.paths == again.val.paths != other.val.paths
    assert "0.2 of each class" in first.source
    assert "seed 3" in first.source
    split = files.folder(tmp_path / "split", {"cat": (2, 1), "dog": (2, 1)})
    for name, share, words in (
        (pets, None, "--val-share"),
        (pets, 1.0, "between 0 and 1"),
        (split, 0.2, "which is split"),
        ("mnist", 0.2, "which is split"),
    ):
        with pytest.raises(DataError, match=words):
            find_dataset(name, tmp_path if name == "mnist" else None, val_share=share)
    (pets / "owl" / "0.png").unlink()
    with pytest.raises(DataError, match="1 of owl"):
        find_dataset(pets, val_share=0.5)


def test_invalid_folders_raise(tmp_path: Path) -> None:
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
    refused("root to be a folder", "mnist", tmp_path / "test" / "loose.png")


@pytest.mark.parametrize("name", NAMES)
def test_missing_data_set_without_network_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail(f"a retry waits for {seconds} s"))
    with pytest.raises(DataError, match=f"{name}.*cannot be reached.*--root.*{', '.join(NAMES)}"):
        find_dataset(name, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(DataError, match="cache"):
        find_dataset(name)
    assert not datasets.reachable("https://example.org/x")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")  # connections through a proxy are not tested
    assert datasets.reachable("https://example.org/x")
    assert not datasets.reachable("http://example.org/x")


def fetchable(name: str, folder: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a data set and set its address in torchvision; return one of the downloaded files."""
    if name == "cifar10":
        files.cifar(folder, "CIFAR10", monkeypatch)
        archive = files.packed(folder / torchvision.CIFAR10.base_folder, folder / "cifar-10-python.tar.gz")
        monkeypatch.setattr(torchvision.CIFAR10, "tgz_md5", files.md5(archive))
        monkeypatch.setattr(torchvision.CIFAR10, "url", address + archive.name)
        return archive
    if name == "fashion-mnist":
        kind = torchvision.FashionMNIST
        files.mnist(folder, packed=True)
        monkeypatch.setattr(kind, "resources", [(name, files.md5(folder / name)) for name, _ in kind.resources])
        monkeypatch.setattr(kind, "mirrors", ["http://127.0.0.1:9/", address])
        return folder / "t10k-labels-idx1-ubyte.gz"
    files.folder(folder / "imagenette2", dict.fromkeys(IMAGENETTE, (1, 1)), suffix=".JPEG")
    archive = files.packed(folder / "imagenette2", folder / "imagenette2.tgz")
    entry = {"full": (address + archive.name, files.md5(archive))}
    monkeypatch.setattr(torchvision.Imagenette, "_ARCHIVES", {**torchvision.Imagenette._ARCHIVES, **entry})
    return archive


@pytest.mark.parametrize("name", ["cifar10", "fashion-mnist", "imagenette"])
def test_data_set_is_downloaded_once_and_other_checksums_raise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    remote, local = tmp_path / "remote", tmp_path / "local"
    remote.mkdir()
    with serve(remote) as site:
        file = fetchable(name, remote, site.url, monkeypatch)
        fetched = find_dataset(name, local)
        file.write_bytes(b"another file")
        with pytest.raises(DataError, match="Expected to download"):
            find_dataset(name, tmp_path / "third")
    again = find_dataset(name, local)  # the server has stopped
    assert fetched.folder is not None
    assert fetched.folder.is_relative_to(local)
    for split, again_split in ((fetched.train, again.train), (fetched.val, again.val)):
        assert torch.equal(split.classes, again_split.classes)
        assert split.paths == again_split.paths
        assert split.images is None or torch.equal(split.images, again_split.images)
        assert len(split.paths if split.images is None else split.images) == len(split.classes) >= 10


def test_concurrent_calls_download_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[Path] = []
    all_have_looked = threading.Barrier(3, timeout=patience(60))

    def fetch(_: str, root: Path) -> None:
        fetched.append(root)
        files.cifar(root, "CIFAR10", monkeypatch)

    monkeypatch.setattr(datasets, "_fetch", fetch)
    monkeypatch.setattr(datasets, "reachable", lambda _: all_have_looked.wait() >= 0)
    with ThreadPoolExecutor(3) as pool:
        datasets_found = list(pool.map(lambda _: find_dataset("cifar10", tmp_path), range(3)))
    assert fetched == [tmp_path]
    assert len({dataset.folder for dataset in datasets_found}) == 1
