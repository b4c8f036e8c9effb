"""Photographs that occur twice are found: copies, resized and saved again; others are not."""

from __future__ import annotations

import shutil
from pathlib import Path

import data_files as files
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from vitviz.images.folders import DataError
from vitviz.resources import resource_folder
from vitviz.training.data import open_data
from vitviz.training.duplicates import NEAR_LEVELS, Print, find_duplicates, fingerprints

EXAMPLES = resource_folder("examples")


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Two classes of photographs, none of them twice."""
    names = {"train/cat": ["cat", "koala"], "train/dog": ["dog", "panda"], "val/cat": ["lizard"], "val/dog": ["church"]}
    for place, photos in names.items():
        (tmp_path / "pets" / place).mkdir(parents=True)
        for photo in photos:
            shutil.copy(EXAMPLES / f"{photo}.jpg", tmp_path / "pets" / place)
    return tmp_path / "pets"


def test_copies_are_refused_by_name_or_taken_when_asked(pets: Path, tmp_path: Path) -> None:
    assert open_data(pets, size=(16, 16)).duplicates == ()
    with Image.open(pets / "train" / "dog" / "dog.jpg") as dog, Image.open(pets / "train" / "cat" / "cat.jpg") as cat:
        dog.save(pets / "val" / "dog" / "same.png")  # other bytes, the same pixels
        dog.resize((dog.width // 2, dog.height // 2)).save(pets / "train" / "cat" / "small.jpg", quality=50)
        cat.save(pets / "train" / "cat" / "again.png")  # within one class of one split it does no harm
    with pytest.raises(DataError, match=r"got 2 that.*--allow-duplicates") as caught:
        open_data(pets, size=(16, 16))
    assert "cat/small.jpg and train/dog/dog.jpg: near duplicates" in str(caught.value)
    assert "val/dog/same.png (train and val)" in str(caught.value)
    data = open_data(pets, size=(16, 16), allow_duplicates=True)
    assert len(data.duplicates) == 2
    assert all(line in data.describe() for line in data.duplicates)
    root = files.mnist(tmp_path / "mnist")
    for kind in ("images-idx3", "labels-idx1"):  # the training images once more: a named data set is its authors'
        shutil.copy(root / f"train-{kind}-ubyte", root / f"t10k-{kind}-ubyte")
    assert open_data("mnist", root=root, size=(28, 28)).duplicates == ()


def test_a_print_stands_being_saved_resized_and_lit_but_not_another_photograph() -> None:
    photos = [Image.open(path).convert("RGB") for path in sorted(EXAMPLES.glob("*.jpg"))]
    prints = []
    for photo in photos:
        changed = (photo.resize((100, 80)), photo.resize((photo.width * 2, photo.height * 2)))
        brighter = ImageEnhance.Brightness(photo).enhance(1.1)
        prints += [fingerprints(version) for version in (photo, *changed, brighter)]
    found = find_duplicates(prints, range(len(prints)))
    assert {other for _, other, _ in found} == {index for index in range(len(prints)) if index % 4}
    assert all(one // 4 == other // 4 for one, other, _ in found)
    mirrored = [fingerprints(ImageOps.mirror(photo)) for photo in photos]
    assert find_duplicates([*prints[::4], *mirrored], range(2 * len(photos))) == []


def test_the_same_shape_in_another_color_is_another_picture() -> None:
    grey = Image.open(EXAMPLES / "dog.jpg").convert("L").resize((64, 64))
    black = Image.new("L", grey.size)
    # Equal luma, so equal hashes: 0.299 of red is 0.587 of green.
    red = Image.merge("RGB", (grey, black, black))
    green = Image.merge("RGB", (black, grey.point(lambda level: round(level * 0.299 / 0.587)), black))
    one, other = fingerprints(red), fingerprints(green)
    assert np.abs(one.thumbnail - other.thumbnail).mean() > NEAR_LEVELS
    assert find_duplicates([one, other], "ab") == []


def naive(prints: list[Print], groups: list[int]) -> list[tuple[int, int]]:
    """Every pair in turn: each photograph with the first of another group that it is near."""
    bits = np.array([np.unpackbits(one.bands.view(np.uint8)) for one in prints]).astype(int)
    pairs = []
    for other in range(len(prints)):
        near = [i for i in range(other) if groups[i] != groups[other] and (bits[i] != bits[other]).sum() <= 15]
        pairs += [(near[0], other)] if near else []
    return pairs


def test_all_pairs_up_to_15_bits_are_found() -> None:
    rng = np.random.default_rng(0)
    flat = np.zeros(192, np.float32)
    prints, groups = [], rng.integers(0, 3, 120).tolist()
    for index in range(120):
        bits = rng.integers(0, 2, 256).astype(bool)
        if index >= 60:  # a copy of an earlier one, in up to 15 bits another
            bits = np.unpackbits(prints[index - 60].bands.view(np.uint8)).astype(bool)
            bits[rng.choice(256, rng.integers(0, 16), replace=False)] ^= True
        prints.append(Print(bytes([index]), np.packbits(bits).view(np.uint16), flat))
    found = find_duplicates(prints, groups)
    assert [pair[:2] for pair in found] == naive(prints, groups)
    assert len(found) > 20


def test_many_copies_of_one_picture_are_not_compared_pair_by_pair() -> None:
    blank = fingerprints(Image.new("RGB", (8, 8)))
    found = find_duplicates([blank] * 50_000, [index % 7 for index in range(50_000)])  # pair by pair this would not end
    assert len(found) == 50_000 - 1  # all but the first: another group has the first of the same pixels
