"""Test training data: opened data sets, duplicates, the images of each step, and augmentation."""

import shutil
from pathlib import Path
from typing import Any

import data_files as files
import numpy as np
import pytest
import torch
import training_cases as cases
from PIL import ExifTags, Image, ImageEnhance, ImageOps
from torch import Tensor

from vitviz.images.decoding import decode
from vitviz.images.folders import DataError
from vitviz.resources import resource_folder
from vitviz.training import TrainingError
from vitviz.training.data import Fit, open_data
from vitviz.training.duplicates import NEAR_LEVELS, Print, find_duplicates, fingerprints
from vitviz.training.loaders import Images, StepSampler, augmentation, mixing, validation_keys
from vitviz.training.recipes import AUGMENTATION, Recipe

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a folder with three classes of photographs of several shapes, one with an EXIF rotation."""
    root = files.folder(tmp_path / "pets", {"cat": (3, 2), "dog": (4, 2), "owl": (2, 3)})
    for index, (width, height) in enumerate([(31, 17), (12, 40), (8, 11)]):
        files.photo(root / "train" / "cat" / f"{index}.png", width, height, seed=index)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.fromarray(files.noise(10, 16, 3)).save(root / "train" / "dog" / "0.jpg", exif=exif)
    return root


@pytest.mark.parametrize(
    ("fit", "size", "frame"),
    [
        ("squash", (8, 11), (0, 0, 20, 10)),
        ("squash", (16, 16), (0, 0, 20, 10)),
        ("crop", (6, 6), (5, 0, 15, 10)),
        ("crop", (4, 16), (0, 2.5, 20, 7.5)),
    ],
)
def test_training_pixels_match_the_models_preprocessing(
    photos: Path, fit: Fit, size: tuple[int, int], frame: tuple[float, ...]
) -> None:
    data = open_data(photos, size=size, fit=fit)
    preprocess = data.preprocess(MEAN, STD)
    pixels = data.train.read(torch.arange(len(data.train)))
    assert (pixels.shape, pixels.dtype) == ((10, 3, *size), torch.uint8)
    mean, std = (torch.tensor(value)[:, None, None] for value in (MEAN, STD))
    expected = [torch.from_numpy(preprocess(decode(path)).pixels) for path in data.train.samples.paths]
    assert torch.equal(pixels.float().div_(255).sub_(mean).div_(std), torch.stack(expected))
    assert data.train.preprocess(Image.fromarray(files.noise(10, 20, 3))).geometry.frame == frame
    with pytest.raises(DataError, match="crop, squash"):
        open_data(photos, size=(5, 5), fit="pad")


@pytest.mark.parametrize("fit", ["squash", "crop"])
def test_pixels_in_memory_match_decoded_files(photos: Path, fit: Fit) -> None:
    needed = 10 * 3 * 9 * 7  # bytes of the training images
    both, val, train = (open_data(photos, size=(9, 7), fit=fit, memory=most) for most in (2**30, needed - 1, needed))
    in_memory = [[split.images is not None for split in (data.train, data.val)] for data in (both, val, train)]
    assert in_memory == [[True, True], [False, True], [True, False]]
    indices = torch.tensor([7, 0, 9, 9])
    for other in (val, train):
        other.train.read(indices).zero_()  # a copy
        assert torch.equal(both.train.read(indices), other.train.read(indices))
        assert torch.equal(both.val.read(indices[1:2]), other.val.read(indices[1:2]))
    assert both.fingerprint == val.fingerprint


def test_grey_archives_become_rgb_and_are_resized(tmp_path: Path) -> None:
    files.mnist(tmp_path)
    data = open_data("mnist", root=tmp_path, size=(28, 28), fit="squash")
    digits = torch.from_numpy(files.noise(30, 28, 28, seed=0))
    pixels = data.train.read(torch.tensor([4, 29]))
    assert torch.equal(pixels, digits[[4, 29], None].expand(-1, 3, -1, -1))
    pixels[0, 0] = 0  # channels do not share memory
    assert torch.equal(pixels[0, 1], digits[4])
    for memory in (0, 2**30):
        data = open_data("mnist", root=tmp_path, size=(16, 24), fit="squash", memory=memory)
        expected = Image.fromarray(digits[5].numpy()).convert("RGB").resize((24, 16), Image.Resampling.BICUBIC)
        np.testing.assert_array_equal(data.train.read(torch.tensor([5]))[0].permute(1, 2, 0), np.asarray(expected))


@pytest.mark.parametrize("memory", [0, 2**30])
def test_broken_files_are_refused_or_skipped(photos: Path, memory: int) -> None:
    complete = open_data(photos, size=(8, 8))
    broken = ["train/cat/1.png", "train/owl/1.png", "val/owl/0.png"]
    (photos / broken[0]).write_bytes(b"")
    (photos / broken[1]).write_bytes((photos / broken[1]).read_bytes()[:-50])
    (photos / broken[2]).write_bytes(b"\x89PNG no image")
    with pytest.raises(DataError, match=r"3 unreadable files.*--skip-broken") as caught:
        open_data(photos, size=(8, 8), memory=memory)
    assert [line.strip().split(":")[0] for line in str(caught.value).splitlines()[1:]] == broken
    data = open_data(photos, size=(8, 8), memory=memory, skip_broken=True)
    assert [line.split(":")[0] for line in data.left_out] == broken
    assert all(name in data.describe() for name in ("3 broken files", *broken))
    paths = complete.train.samples.paths
    readable = torch.tensor([index for index, path in enumerate(paths) if str(path.relative_to(photos)) not in broken])
    assert len(readable) == len(paths) - 2
    assert data.train.samples.paths == tuple(paths[index] for index in readable.tolist())
    assert torch.equal(data.train.classes, complete.train.classes[readable])
    assert torch.equal(data.train.read(torch.arange(len(data.train))), complete.train.read(readable))
    assert data.fingerprint != complete.fingerprint


def test_classes_without_images_are_refused(photos: Path, tmp_path: Path) -> None:
    for broken, message in (("dog/*", "every class in val, got none of dog"), ("*/*.png", "cat, dog, owl")):
        for path in (photos / "val").glob(broken):
            path.write_bytes(b"broken")
        with pytest.raises(DataError, match=message):
            open_data(photos, size=(8, 8), skip_broken=True)
    for side in ("train", "val"):
        shutil.copytree(photos / "train" / "cat", tmp_path / "one class" / side / "all")
    with pytest.raises(DataError, match=r"two classes.*all"):
        open_data(tmp_path / "one class", size=(8, 8))
    files.mnist(tmp_path / "mnist", counts=(30, 7))
    with pytest.raises(DataError, match="in val, got none of 7, 8, 9"):
        open_data("mnist", root=tmp_path / "mnist", size=(28, 28))


def test_description_lists_classes_and_counts(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = open_data(photos, size=(8, 8), progress=True)
    assert capsys.readouterr() == ("", "")  # progress is shown only in terminals
    lines = data.describe().splitlines()
    assert "3 classes, 10 training images, 7 validation images" in lines[0]
    counts = [["class", "train", "val"], ["cat", "3", "2"], ["dog", "5", "2"], ["owl", "2", "3"]]
    assert [line.split() for line in lines[-4:]] == counts
    assert data.name == "pets"
    assert str(photos) not in data.source  # model cards contain no paths
    files.cifar(tmp_path, "CIFAR100", monkeypatch)
    many = open_data("cifar100", root=tmp_path, size=(32, 32)).describe().splitlines()
    assert "100 classes" in many[0]
    assert len(many) < 8


def test_fingerprint_depends_on_data_not_on_paths(tmp_path: Path) -> None:
    def folder(name: str, **counts: tuple[int, int]) -> Path:
        return files.folder(tmp_path / name / "pets", {"cat": (2, 1), "dog": (2, 1)} | counts)

    def fingerprint(source: Path | str, size: tuple[int, int] = (8, 8), **options: Any) -> str:
        return open_data(source, size=size, **options).fingerprint

    first, same = fingerprint(folder("a")), folder("b")
    assert fingerprint(same) == first
    changed = folder("d")
    files.photo(changed / "train" / "cat" / "0.png", 30, 30)
    others = [fingerprint(same, (8, 9)), fingerprint(same, fit="crop"), fingerprint(folder("c", dog=(3, 1)))]
    assert first not in [*others, fingerprint(changed)]
    digits = files.mnist(tmp_path / "mnist")
    before = fingerprint("mnist", (28, 28), root=digits)
    path = digits / "t10k-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    assert fingerprint("mnist", (28, 28), root=digits) != before


def test_mean_std_match_the_pixels(photos: Path) -> None:
    data = open_data(photos, size=(8, 8))
    pixels = data.train.read(torch.arange(10)).numpy() / 255
    mean, std = data.mean_std()
    np.testing.assert_allclose(mean, pixels.mean((0, 2, 3)), atol=1e-4)
    np.testing.assert_allclose(std, pixels.std((0, 2, 3)), atol=1e-4)
    fewer = data.train.read(torch.tensor([0, 4, 9])).numpy() / 255
    np.testing.assert_allclose(data.mean_std(most=3)[0], fewer.mean((0, 2, 3)), atol=1e-4)
    flat = cases.split(torch.zeros(2, 3, 8, 8).byte(), torch.zeros(2, dtype=torch.long))
    assert min(type(data)("", (), (), flat, flat, "", "").mean_std()[1]) > 0


# ---- duplicates


EXAMPLES = resource_folder("examples")


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Return a folder with two classes of photographs without duplicates."""
    names = {"train/cat": ["cat", "koala"], "train/dog": ["dog", "panda"], "val/cat": ["lizard"], "val/dog": ["church"]}
    for place, photos in names.items():
        (tmp_path / "pets" / place).mkdir(parents=True)
        for photo in photos:
            shutil.copy(EXAMPLES / f"{photo}.jpg", tmp_path / "pets" / place)
    return tmp_path / "pets"


def test_duplicates_are_refused_or_allowed(pets: Path, tmp_path: Path) -> None:
    assert open_data(pets, size=(16, 16)).duplicates == ()
    with Image.open(pets / "train" / "dog" / "dog.jpg") as dog, Image.open(pets / "train" / "cat" / "cat.jpg") as cat:
        dog.save(pets / "val" / "dog" / "same.png")  # different bytes, same pixels
        dog.resize((dog.width // 2, dog.height // 2)).save(pets / "train" / "cat" / "small.jpg", quality=50)
        cat.save(pets / "train" / "cat" / "again.png")  # allowed within one class of one split
    with pytest.raises(DataError, match=r"got 2.*--allow-duplicates") as caught:
        open_data(pets, size=(16, 16))
    assert "cat/small.jpg and train/dog/dog.jpg: near duplicates" in str(caught.value)
    assert "val/dog/same.png (train and val)" in str(caught.value)
    data = open_data(pets, size=(16, 16), allow_duplicates=True)
    assert len(data.duplicates) == 2
    assert all(line in data.describe() for line in data.duplicates)
    root = files.mnist(tmp_path / "mnist")
    for kind in ("images-idx3", "labels-idx1"):  # named data sets are not checked
        shutil.copy(root / f"train-{kind}-ubyte", root / f"t10k-{kind}-ubyte")
    assert open_data("mnist", root=root, size=(28, 28)).duplicates == ()


def test_resized_brightened_and_reencoded_copies_are_found() -> None:
    photos = [Image.open(path).convert("RGB") for path in sorted(EXAMPLES.glob("*.jpg"))]
    prints = []
    for photo in photos:
        resized = (photo.resize((100, 80)), photo.resize((photo.width * 2, photo.height * 2)))
        brighter = ImageEnhance.Brightness(photo).enhance(1.1)
        prints += [fingerprints(version) for version in (photo, *resized, brighter)]
    duplicates = find_duplicates(prints, range(len(prints)))
    assert {copy for _, copy, _ in duplicates} == {index for index in range(len(prints)) if index % 4}
    assert all(first // 4 == copy // 4 for first, copy, _ in duplicates)
    mirrored = [fingerprints(ImageOps.mirror(photo)) for photo in photos]
    assert find_duplicates([*prints[::4], *mirrored], range(2 * len(photos))) == []
    # Colors of equal luma have equal hashes: 0.299 of red is 0.587 of green.
    grey = photos[0].convert("L").resize((64, 64))
    black = Image.new("L", grey.size)
    red = Image.merge("RGB", (grey, black, black))
    green = Image.merge("RGB", (black, grey.point(lambda level: round(level * 0.299 / 0.587)), black))
    red_print, green_print = fingerprints(red), fingerprints(green)
    assert np.abs(red_print.thumbnail - green_print.thumbnail).mean() > NEAR_LEVELS
    assert find_duplicates([red_print, green_print], "ab") == []


def test_duplicates_match_pairwise_comparison_and_scale() -> None:
    rng = np.random.default_rng(0)
    flat = np.zeros(192, np.float32)
    prints, groups = [], rng.integers(0, 3, 120).tolist()
    for index in range(120):
        bits = rng.integers(0, 2, 256).astype(bool)
        if index >= 60:  # a copy of an earlier print with up to 15 different bits
            bits = np.unpackbits(prints[index - 60].bands.view(np.uint8)).astype(bool)
            bits[rng.choice(256, rng.integers(0, 16), replace=False)] ^= True
        prints.append(Print(bytes([index]), np.packbits(bits).view(np.uint16), flat))
    bits, pairs = np.array([np.unpackbits(each.bands.view(np.uint8)) for each in prints]).astype(int), []
    for copy in range(120):  # each photograph with the first similar photograph of another group
        near = [i for i in range(copy) if groups[i] != groups[copy] and (bits[i] != bits[copy]).sum() <= 15]
        pairs += [(near[0], copy)] if near else []
    assert [pair[:2] for pair in find_duplicates(prints, groups)] == pairs
    assert len(pairs) > 20
    blank = fingerprints(Image.new("RGB", (8, 8)))
    duplicates = find_duplicates([blank] * 50_000, [index % 7 for index in range(50_000)])  # too many for all pairs
    assert len(duplicates) == 50_000 - 1  # all except the first


# ---- images of a step, and augmentation

CLASSES = torch.arange(52) % 3


def indices(sampler: StepSampler) -> list[list[int]]:
    return [indices.tolist() for _, indices in sampler]


def test_epochs_have_each_image_once_in_a_new_order() -> None:
    steps = indices(StepSampler(cases.recipe(), CLASSES))
    assert [len(step) for step in steps] == [8] * 18
    epochs = [[index for step in steps[start : start + 6] for index in step] for start in (0, 6, 12)]
    assert all(len(set(epoch)) == 48 for epoch in epochs)  # the incomplete last batch of 52 images is dropped
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert indices(StepSampler(cases.recipe(), CLASSES)) == steps
    assert indices(StepSampler(cases.recipe(seed=6), CLASSES)) != steps
    recipe = cases.recipe(accumulate=2)
    parts = [(seed, batch.tolist()) for seed, batch in StepSampler(recipe, CLASSES)]
    assert len({seed for seed, _ in parts}) == len(parts)
    for start in (5, 6, 17):  # a step does not depend on earlier ones
        sampler = StepSampler(recipe, CLASSES, start)
        assert [(seed, batch.tolist()) for seed, batch in sampler] == parts[2 * start :]
        assert len(sampler) == len(parts) - 2 * start


def test_processes_and_parts_divide_batches() -> None:
    batches = indices(StepSampler(cases.recipe(), CLASSES))
    parts = [indices(StepSampler(cases.recipe(accumulate=2), CLASSES, 0, rank, 2)) for rank in range(2)]
    for step, batch in enumerate(batches):
        assert batch == [index for rank in range(2) for part in range(2) for index in parts[rank][2 * step + part]]
    for count, processes in ((23, 2), (7, 3), (100, 1), (129, 2)):
        keys = [validation_keys(count, cases.recipe(), rank, processes) for rank in range(processes)]
        assert [index for part in keys for _, batch in part for index in batch.tolist()] == list(range(count))
        assert len({len(part) for part in keys}) == 1
    for changes, processes, message in (({"batch": 53}, 1, "52"), ({}, 3, "3 processes"), ({"accumulate": 8}, 2, "8")):
        with pytest.raises(TrainingError, match=message):
            StepSampler(cases.recipe(**changes), CLASSES, 0, 0, processes)


@pytest.mark.parametrize(("balance", "shares"), [(0.5, (0.104, 0.208, 0.688)), (1.0, (1 / 3, 1 / 3, 1 / 3))])
def test_balance_changes_the_shares_of_classes(balance: float, shares: tuple[float, ...]) -> None:
    classes = torch.repeat_interleave(torch.arange(3), torch.tensor([20, 80, 900]))
    sampler = StepSampler(Recipe(balance=balance, batch=100), classes)
    orders = [sampler.order(epoch) for epoch in range(5)]
    assert all(len(order) == 1000 for order in orders)
    frequencies = classes[torch.cat(orders)].bincount() / 5000
    assert frequencies.tolist() == pytest.approx(shares, abs=0.03)
    assert not orders[0].equal(orders[1])


@pytest.mark.parametrize("memory", [0, 2**30])
def test_loading_does_not_depend_on_workers(tmp_path: Path, memory: int) -> None:
    root = files.folder(tmp_path / "pets", {"cat": (6, 1), "dog": (6, 1)})
    data = open_data(root, size=(12, 8), memory=memory)
    recipe = Recipe(batch=4, epochs=2, flip=True, policy="rand", erase=0.5, low_resolution=0.5)
    loaded = []
    for workers in (0, 2):
        loader = Images(data.train, transform=augmentation(recipe, (12, 8)))
        assert loader.workers > 0
        loader.workers = workers
        before = torch.get_rng_state()
        loaded.append([*loader.load(StepSampler(recipe, data.train.classes), torch.device("cpu"))])
        assert torch.get_rng_state().equal(before)
    assert len(loaded[0]) == 6
    for (images, targets), (others, same_targets) in zip(*loaded, strict=True):
        assert images.dtype == torch.uint8
        assert images.equal(others)
        assert targets.equal(same_targets)
    assert (Images(data.train).workers == 0) == bool(memory)


def augmented(pixels: Tensor, **changes: object) -> Tensor:
    transform = augmentation(Recipe(**changes), tuple(pixels.shape[2:]))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.stack([transform(image) for image in pixels])


def stripes(count: int = 40) -> Tensor:
    return cases.images(count, 3, 24, 16)[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"low_resolution": 1.0}, {"resized_crop": (0.3, 0.9)}, {"crop_padding": 3}, {"flip": True}, {"policy": "rand"},
        {"policy": "trivial"}, {"erase": 1.0},
    ],
)  # fmt: skip
def test_each_augmentation_changes_images_at_random(changes: dict) -> None:
    assert Recipe(**changes).augments
    pixels = stripes()
    result = augmented(pixels, **changes)
    assert (result.shape, result.dtype) == (pixels.shape, torch.uint8)
    assert not result.equal(pixels)
    same = stripes(1).expand(40, -1, -1, -1)
    assert len({image.numpy().tobytes() for image in augmented(same, **changes)}) > 1


def test_images_augmented_together_are_cropped_and_mirrored_alike(photos: Path) -> None:
    data = open_data(photos, size=(24, 16), memory=2**30)
    transform = augmentation(Recipe(crop_padding=8, flip=True), (24, 16))
    same = torch.zeros(40, dtype=torch.long)
    images, _ = Images(data.train, transform=transform, together=10)[1, same]
    groups = images.split(10)
    assert all(group.equal(group[:1].expand_as(group)) for group in groups)
    assert len({group[0].numpy().tobytes() for group in groups}) > 1


def test_default_changes_nothing_and_flip_and_crop_match_their_definition() -> None:
    assert augmentation(Recipe(), (8, 8)) is None
    assert not Recipe().augments
    assert set(AUGMENTATION) < set(vars(Recipe()))
    pixels = stripes()
    images, targets = mixing(Recipe(), 3)(pixels[:4], CLASSES[:4])
    assert images.equal(pixels[:4])
    assert targets.equal(torch.eye(3)[CLASSES[:4]])
    for image, flipped in zip(pixels, augmented(pixels, flip=True), strict=True):
        assert flipped.equal(image) or flipped.equal(image.flip(-1))
    padded = torch.nn.functional.pad(pixels, (2,) * 4)
    for image, window in zip(padded, augmented(pixels, crop_padding=2), strict=True):
        assert any(window.equal(image[:, y : y + 24, x : x + 16]) for y in range(5) for x in range(5))


def test_low_resolution_removes_fine_detail() -> None:
    fine = torch.full((40, 3, 96, 80), 128, dtype=torch.uint8)
    fine[..., ::2], fine[..., 1::2] = 78, 178  # stripes of one pixel
    fine[:, 0] = 200  # a flat channel
    result = augmented(fine, low_resolution=1.0)
    assert torch.equal(result[:, 0], fine[:, 0])
    contrast = result[:, 1].float().std(dim=(1, 2))
    assert contrast.max() < 45 < fine[:, 1].float().std()
    assert len(contrast.unique()) > 4  # many resolutions
    changed = (augmented(fine, low_resolution=0.5) != fine).flatten(1).any(1)
    assert 10 < changed.sum() < 30


@pytest.mark.parametrize("changes", [{"mixup": 0.5}, {"cutmix": 1.0}, {"mixup": 0.5, "cutmix": 1.0}])
def test_mixed_images_have_mixed_targets(changes: dict) -> None:
    assert Recipe(**changes).augments
    assert augmentation(Recipe(**changes), (24, 16)) is None  # whole batches are mixed
    pixels, classes = stripes(12).float(), CLASSES[:12]
    torch.manual_seed(1)
    mix = mixing(Recipe(**changes), 3)
    images, targets = mix(pixels, classes)
    assert images.shape == pixels.shape
    torch.testing.assert_close(targets.sum(1), torch.ones(12))
    assert (targets.max(1).values < 1).any()
    partner = pixels.roll(1, 0)
    if "cutmix" not in changes:
        share = targets[torch.arange(12), classes][:, None, None, None]
        torch.testing.assert_close(images, share * pixels + (1 - share) * partner)
    elif "mixup" not in changes:
        assert ((images == pixels) | (images == partner)).all()
