"""Opening data: what the model will see, the same from memory and from files, checked before the first step."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import data_files as files
import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from vitviz.image import decode
from vitviz.preprocess import Preprocess
from vitviz.training.data import DataError, Fit, Split, fitted, open_data

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three classes of photographs of many shapes, one of them stored on its side."""
    root = files.folder(tmp_path / "pets", {"cat": (3, 2), "dog": (4, 2), "owl": (2, 3)})
    for index, (width, height) in enumerate([(31, 17), (12, 40), (8, 11)]):
        files.photo(root / "train" / "cat" / f"{index}.png", width, height, seed=index)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.fromarray(files.noise(10, 16, 3)).save(root / "train" / "dog" / "0.jpg", exif=exif)
    return root


# ---- pixels


@pytest.mark.parametrize("fit", ["squash", "crop"])
@pytest.mark.parametrize("size", [(8, 11), (20, 13), (16, 16)])
def test_training_sees_what_the_saved_model_will_see(photos: Path, fit: Fit, size: tuple[int, int]) -> None:
    data = open_data(photos, size=size, fit=fit)
    later = data.preprocess(MEAN, STD)
    assert data.train.paths is not None
    pixels = data.train.pixels(torch.arange(len(data.train)))
    assert pixels.shape == (10, 3, *size)
    assert pixels.dtype == torch.uint8
    mean, std = (torch.tensor(value)[:, None, None] for value in (MEAN, STD))
    seen = [torch.from_numpy(later(decode(path)).pixels) for path in data.train.paths]
    assert torch.equal(pixels.float().div_(255).sub_(mean).div_(std), torch.stack(seen))


def test_fits_show_the_whole_picture_or_its_largest_centre() -> None:
    wide = Image.fromarray(files.noise(10, 20, 3))
    assert fitted((5, 5), "squash")(wide).geometry.frame == (0, 0, 20, 10)
    assert fitted((6, 6), "crop")(wide).geometry.frame == (5, 0, 15, 10)
    assert fitted((4, 16), "crop")(wide).geometry.frame == (0, 2.5, 20, 7.5)
    with pytest.raises(DataError, match="crop or squash"):
        fitted((5, 5), "pad")  # type: ignore[arg-type]


@pytest.mark.parametrize("fit", ["squash", "crop"])
def test_memory_changes_nothing(photos: Path, fit: Fit) -> None:
    kept = open_data(photos, size=(9, 7), fit=fit)
    room = 10 * 3 * 9 * 7
    read, half = (open_data(photos, size=(9, 7), fit=fit, memory=memory) for memory in (room - 1, room))
    assert kept.train.images is not None
    assert kept.val.images is not None
    assert read.train.images is None
    assert half.train.images is not None
    assert half.val.images is None
    some = torch.tensor([7, 0, 9, 9])
    for other in (read, half):
        for size in (None, (9, 7), (16, 5)):
            assert torch.equal(kept.train.pixels(some, size), other.train.pixels(some, size))
            assert torch.equal(kept.val.pixels(some[1:2], size), other.val.pixels(some[1:2], size))
    assert kept.fingerprint == read.fingerprint
    assert kept.train.pixels(some, (16, 5)).shape == (4, 3, 16, 5)
    assert read.train.pixels(some[:0]).shape == (0, 3, 9, 7)


def test_pixels_are_copies(photos: Path) -> None:
    data = open_data(photos, size=(8, 8))
    before = data.train.pixels(torch.tensor([3]))
    data.train.pixels(torch.tensor([3])).zero_()
    assert torch.equal(data.train.pixels(torch.tensor([3])), before)


def test_several_threads_may_ask_at_once(photos: Path) -> None:
    data = open_data(photos, size=(8, 8), memory=0)
    everything = torch.arange(len(data.train))
    expected, found = data.train.pixels(everything), []
    threads = [threading.Thread(target=lambda: found.append(data.train.pixels(everything))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(torch.equal(one, expected) for one in found)


def test_grey_pictures_become_rgb(tmp_path: Path) -> None:
    files.mnist(tmp_path)
    data = open_data("mnist", root=tmp_path, size=(28, 28), fit="squash")
    digits = torch.from_numpy(files.noise(30, 28, 28, seed=0))
    pixels = data.train.pixels(torch.tensor([4, 29]))
    assert torch.equal(pixels, digits[[4, 29], None].expand(-1, 3, -1, -1))
    pixels[0, 0] = 0  # each channel is its own memory
    assert torch.equal(pixels[0, 1], digits[4])


@pytest.mark.parametrize("memory", [0, 2**30])
def test_archives_are_resized_once_however_they_are_asked(tmp_path: Path, memory: int) -> None:
    files.mnist(tmp_path)
    data = open_data("mnist", root=tmp_path, size=(16, 24), fit="squash", memory=memory)
    digit = Image.fromarray(files.noise(30, 28, 28, seed=0)[5])
    for height, width in ((16, 24), (32, 32), (28, 28)):
        own = digit.convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
        ours = data.train.pixels(torch.tensor([5]), (height, width))[0]
        np.testing.assert_array_equal(ours.permute(1, 2, 0).numpy(), np.asarray(own))


def test_colour_archives_come_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.cifar(tmp_path, "CIFAR10", monkeypatch)
    data = open_data("cifar10", root=tmp_path, size=(32, 32), fit="crop")
    first = torch.from_numpy(files.noise(20, 3072, seed=0)).view(20, 3, 32, 32)
    assert torch.equal(data.train.pixels(torch.arange(20)), first)
    assert data.train.paths is None
    assert data.counts(data.train) == (10,) * 10
    assert (len(data.train), len(data.val)) == (100, 20)


# ---- the check before the first step


def spoil(photos: Path) -> list[str]:
    (photos / "train" / "cat" / "1.png").write_bytes(b"")
    (photos / "val" / "owl" / "0.png").write_bytes(b"\x89PNG no image")
    whole = (photos / "train" / "owl" / "1.png").read_bytes()
    (photos / "train" / "owl" / "1.png").write_bytes(whole[: len(whole) // 2])
    return ["train/cat/1.png", "train/owl/1.png", "val/owl/0.png"]


@pytest.mark.parametrize("memory", [0, 2**30])
def test_broken_files_are_all_named_and_refused(photos: Path, memory: int) -> None:
    broken = spoil(photos)
    with pytest.raises(DataError, match=r"3 files.*--skip-broken") as caught:
        open_data(photos, size=(8, 8), memory=memory)
    lines = str(caught.value).splitlines()[1:]
    assert [line.strip().split(":")[0] for line in lines] == broken


@pytest.mark.parametrize("memory", [0, 2**30])
def test_broken_files_are_left_out_when_asked(photos: Path, memory: int) -> None:
    whole = open_data(photos, size=(8, 8))
    broken = spoil(photos)
    data = open_data(photos, size=(8, 8), memory=memory, broken="skip")
    assert [line.split(":")[0] for line in data.left_out] == broken
    assert all(name in data.words() for name in ("3 broken files", *broken))
    assert whole.train.paths is not None
    assert data.train.paths is not None
    gone = [index for index, path in enumerate(whole.train.paths) if str(path.relative_to(photos)) in broken]
    kept = torch.tensor([index for index in range(len(whole.train)) if index not in gone])
    assert len(gone) == 2
    assert data.train.paths == tuple(whole.train.paths[index] for index in kept.tolist())
    assert torch.equal(data.train.classes, whole.train.classes[kept])
    assert torch.equal(data.train.pixels(torch.arange(len(data.train))), whole.train.pixels(kept))
    assert data.fingerprint != whole.fingerprint


def test_a_class_that_is_skipped_away_is_refused(photos: Path) -> None:
    for path in (photos / "val" / "dog").iterdir():
        path.write_bytes(b"broken")
    with pytest.raises(DataError, match="every class in val; there are none of dog"):
        open_data(photos, size=(8, 8), broken="skip")
    for path in (photos / "val").rglob("*.png"):
        path.write_bytes(b"broken")
    with pytest.raises(DataError, match="cat, dog, owl"):
        open_data(photos, size=(8, 8), broken="skip")
    one = photos.parent / "one class"
    for side in ("train", "val"):
        shutil.copytree(photos / "train" / "cat", one / side / "all")
    with pytest.raises(DataError, match=r"two classes.*all"):
        open_data(one, size=(8, 8))
    with pytest.raises(DataError, match="refuse or skip"):
        open_data(photos, size=(8, 8), broken="ignore")  # type: ignore[arg-type]


def test_an_archive_without_some_class_is_refused(tmp_path: Path) -> None:
    files.mnist(tmp_path, counts=(30, 7))
    with pytest.raises(DataError, match="in val; there are none of 7, 8, 9"):
        open_data("mnist", root=tmp_path, size=(28, 28))


# ---- what is told


def test_the_words_have_every_class_and_count(photos: Path) -> None:
    data = open_data(photos, size=(8, 8))
    lines = data.words().splitlines()
    assert "3 classes" in lines[0]
    assert "10 images to train on, 7 to validate on" in lines[0]
    assert [line.split() for line in lines[-4:]] == [
        ["class", "train", "val"], ["cat", "3", "2"], ["dog", "5", "2"], ["owl", "2", "3"]
    ]  # fmt: skip
    assert data.name == "pets"
    assert str(photos) not in data.source  # a card must not name somebody's folders


def test_many_classes_are_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.cifar(tmp_path, "CIFAR100", monkeypatch)
    data = open_data("cifar100", root=tmp_path, size=(32, 32))
    assert "100 classes" in data.words()
    assert len(data.words().splitlines()) < 8


def test_progress_is_for_people_who_watch(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_data(photos, size=(8, 8), progress=True)
    assert capsys.readouterr() == ("", "")


def test_the_fingerprint_is_that_of_the_data_not_of_the_place(tmp_path: Path) -> None:
    def made(name: str, **counts: tuple[int, int]) -> Path:
        return files.folder(tmp_path / name / "pets", {"cat": (2, 1), "dog": (2, 1)} | counts)

    first = open_data(made("a"), size=(8, 8)).fingerprint
    assert open_data(made("b"), size=(8, 8)).fingerprint == first
    assert open_data(made("b"), size=(8, 9)).fingerprint != first
    assert open_data(made("b"), size=(8, 8), fit="crop").fingerprint != first
    assert open_data(made("c", dog=(3, 1)), size=(8, 8)).fingerprint != first
    changed = made("d")
    files.photo(changed / "train" / "cat" / "0.png", 30, 30)
    assert open_data(changed, size=(8, 8)).fingerprint != first


def test_archives_have_fingerprints_of_their_pixels(tmp_path: Path) -> None:
    digits = [open_data("mnist", root=files.mnist(tmp_path / place), size=(28, 28)) for place in "ab"]
    assert digits[0].fingerprint == digits[1].fingerprint
    path = tmp_path / "b" / "t10k-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    assert open_data("mnist", root=tmp_path / "b", size=(28, 28)).fingerprint != digits[0].fingerprint


def test_mean_and_std_are_those_of_the_pixels(photos: Path) -> None:
    data = open_data(photos, size=(8, 8))
    pixels = data.train.pixels(torch.arange(10)).numpy() / 255
    mean, std = data.mean_std()
    np.testing.assert_allclose(mean, pixels.mean((0, 2, 3)), atol=1e-4)
    np.testing.assert_allclose(std, pixels.std((0, 2, 3)), atol=1e-4)
    fewer = data.train.pixels(torch.tensor([0, 4, 9])).numpy() / 255
    np.testing.assert_allclose(data.mean_std(most=3)[0], fewer.mean((0, 2, 3)), atol=1e-4)
    flat = Split(torch.zeros(2, dtype=torch.long), None, fitted((8, 8), "squash"), torch.zeros(2, 3, 8, 8).byte())
    assert min(type(data)("", (), (), flat, flat, "", "").mean_std()[1]) > 0


def test_the_saved_preprocessing_says_what_was_done(photos: Path) -> None:
    data = open_data(photos, size=(12, 8), fit="crop")
    assert data.preprocess(MEAN, STD) == Preprocess(
        height=12, width=8, mode="crop", resize=8, mean=MEAN, std=STD, interpolation="bicubic"
    )
