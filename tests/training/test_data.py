"""Opening data: what the model will see, checked before the first step; photographs that occur twice are found."""

import shutil
from pathlib import Path

import data_files as files
import numpy as np
import pytest
import torch
import training_cases as cases
from PIL import ExifTags, Image, ImageEnhance, ImageOps

from vitviz.images.decoding import decode
from vitviz.images.folders import DataError
from vitviz.resources import resource_folder
from vitviz.training.data import Fit, open_data
from vitviz.training.duplicates import NEAR_LEVELS, Print, find_duplicates, fingerprints

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


@pytest.mark.parametrize("fit", ["squash", "crop"])
@pytest.mark.parametrize("size", [(8, 11), (20, 13), (16, 16)])
def test_training_sees_what_the_saved_model_will_see(photos: Path, fit: Fit, size: tuple[int, int]) -> None:
    data = open_data(photos, size=size, fit=fit)
    later = data.preprocess(MEAN, STD)
    pixels = data.train.read(torch.arange(len(data.train)))
    assert pixels.shape == (10, 3, *size)
    assert pixels.dtype == torch.uint8
    mean, std = (torch.tensor(value)[:, None, None] for value in (MEAN, STD))
    seen = [torch.from_numpy(later(decode(path)).pixels) for path in data.train.samples.paths]
    assert torch.equal(pixels.float().div_(255).sub_(mean).div_(std), torch.stack(seen))


def test_fits_show_the_whole_picture_or_its_largest_centre(photos: Path) -> None:
    wide = Image.fromarray(files.noise(10, 20, 3))
    frames = ((5, 5), "squash", (0, 0, 20, 10)), ((6, 6), "crop", (5, 0, 15, 10)), ((4, 16), "crop", (0, 2.5, 20, 7.5))
    for size, fit, frame in frames:
        assert open_data(photos, size=size, fit=fit).train.preprocess(wide).geometry.frame == frame
    with pytest.raises(DataError, match="crop, squash"):
        open_data(photos, size=(5, 5), fit="pad")


@pytest.mark.parametrize("fit", ["squash", "crop"])
def test_memory_changes_nothing_and_pixels_are_copies(photos: Path, fit: Fit) -> None:
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
        other.train.read(some).zero_()
        assert torch.equal(kept.train.read(some), other.train.read(some))
        assert torch.equal(kept.val.read(some[1:2]), other.val.read(some[1:2]))
    assert kept.fingerprint == read.fingerprint


def test_grey_archives_become_rgb_and_are_resized(tmp_path: Path) -> None:
    files.mnist(tmp_path)
    data = open_data("mnist", root=tmp_path, size=(28, 28), fit="squash")
    digits = torch.from_numpy(files.noise(30, 28, 28, seed=0))
    pixels = data.train.read(torch.tensor([4, 29]))
    assert torch.equal(pixels, digits[[4, 29], None].expand(-1, 3, -1, -1))
    pixels[0, 0] = 0  # each channel is its own memory
    assert torch.equal(pixels[0, 1], digits[4])
    for memory in (0, 2**30):
        data = open_data("mnist", root=tmp_path, size=(16, 24), fit="squash", memory=memory)
        own = Image.fromarray(digits[5].numpy()).convert("RGB").resize((24, 16), Image.Resampling.BICUBIC)
        np.testing.assert_array_equal(data.train.read(torch.tensor([5]))[0].permute(1, 2, 0).numpy(), np.asarray(own))


@pytest.mark.parametrize("memory", [0, 2**30])
def test_broken_files_are_refused_or_left_out(photos: Path, memory: int) -> None:
    whole = open_data(photos, size=(8, 8))
    broken = ["train/cat/1.png", "train/owl/1.png", "val/owl/0.png"]
    (photos / broken[0]).write_bytes(b"")
    (photos / broken[1]).write_bytes((photos / broken[1]).read_bytes()[:-50])
    (photos / broken[2]).write_bytes(b"\x89PNG no image")
    with pytest.raises(DataError, match=r"3 files.*--skip-broken") as caught:
        open_data(photos, size=(8, 8), memory=memory)
    assert [line.strip().split(":")[0] for line in str(caught.value).splitlines()[1:]] == broken
    data = open_data(photos, size=(8, 8), memory=memory, skip_broken=True)
    assert [line.split(":")[0] for line in data.left_out] == broken
    assert all(name in data.describe() for name in ("3 broken files", *broken))
    paths = whole.train.samples.paths
    kept = torch.tensor([index for index, path in enumerate(paths) if str(path.relative_to(photos)) not in broken])
    assert len(kept) == len(paths) - 2
    assert data.train.samples.paths == tuple(paths[index] for index in kept.tolist())
    assert torch.equal(data.train.classes, whole.train.classes[kept])
    assert torch.equal(data.train.read(torch.arange(len(data.train))), whole.train.read(kept))
    assert data.fingerprint != whole.fingerprint


def test_classes_without_images_are_refused(photos: Path, tmp_path: Path) -> None:
    for broken, words in (("dog/*", "every class in val, got none of dog"), ("*/*.png", "cat, dog, owl")):
        for path in (photos / "val").glob(broken):
            path.write_bytes(b"broken")
        with pytest.raises(DataError, match=words):
            open_data(photos, size=(8, 8), skip_broken=True)
    for side in ("train", "val"):
        shutil.copytree(photos / "train" / "cat", tmp_path / "one class" / side / "all")
    with pytest.raises(DataError, match=r"two classes.*all"):
        open_data(tmp_path / "one class", size=(8, 8))
    files.mnist(tmp_path / "mnist", counts=(30, 7))
    with pytest.raises(DataError, match="in val, got none of 7, 8, 9"):
        open_data("mnist", root=tmp_path / "mnist", size=(28, 28))


def test_the_description_has_every_class_and_count(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = open_data(photos, size=(8, 8), progress=True)
    assert capsys.readouterr() == ("", "")  # progress is for terminals
    lines = data.describe().splitlines()
    assert "3 classes" in lines[0]
    assert "10 images to train on, 7 to validate on" in lines[0]
    counts = [["class", "train", "val"], ["cat", "3", "2"], ["dog", "5", "2"], ["owl", "2", "3"]]
    assert [line.split() for line in lines[-4:]] == counts
    assert data.name == "pets"
    assert str(photos) not in data.source  # a card must not name somebody's folders
    files.cifar(tmp_path, "CIFAR100", monkeypatch)
    many = open_data("cifar100", root=tmp_path, size=(32, 32)).describe()
    assert "100 classes" in many
    assert len(many.splitlines()) < 8


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
    digits = files.mnist(tmp_path / "mnist")
    before = open_data("mnist", root=digits, size=(28, 28)).fingerprint
    path = digits / "t10k-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    assert open_data("mnist", root=digits, size=(28, 28)).fingerprint != before


def test_mean_and_std_are_those_of_the_pixels(photos: Path) -> None:
    data = open_data(photos, size=(8, 8))
    pixels = data.train.read(torch.arange(10)).numpy() / 255
    mean, std = data.mean_std()
    np.testing.assert_allclose(mean, pixels.mean((0, 2, 3)), atol=1e-4)
    np.testing.assert_allclose(std, pixels.std((0, 2, 3)), atol=1e-4)
    fewer = data.train.read(torch.tensor([0, 4, 9])).numpy() / 255
    np.testing.assert_allclose(data.mean_std(most=3)[0], fewer.mean((0, 2, 3)), atol=1e-4)
    flat = cases.split(torch.zeros(2, 3, 8, 8).byte(), torch.zeros(2, dtype=torch.long))
    assert min(type(data)("", (), (), flat, flat, "", "").mean_std()[1]) > 0


# ---- photographs that occur twice: copies, resized and saved again


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
