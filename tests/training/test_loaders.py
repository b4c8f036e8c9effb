"""Which images a step sees, and what augmentation does to them."""

from pathlib import Path

import data_files as files
import pytest
import torch
import training_cases as cases
from torch import Tensor

from vitviz.training import TrainingError
from vitviz.training.data import open_data
from vitviz.training.loaders import Images, StepSampler, augmentation, mixing, validation_keys
from vitviz.training.recipes import AUGMENTATION, Recipe

CLASSES = torch.arange(52) % 3


def indices(sampler: StepSampler) -> list[list[int]]:
    return [indices.tolist() for _, indices in sampler]


def test_an_epoch_shows_every_image_once_in_an_order_of_its_own() -> None:
    steps = indices(StepSampler(cases.recipe(), CLASSES))
    assert [len(step) for step in steps] == [8] * 18
    epochs = [[index for step in steps[start : start + 6] for index in step] for start in (0, 6, 12)]
    assert all(len(set(epoch)) == 48 for epoch in epochs)  # four of 52 are left out
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert indices(StepSampler(cases.recipe(), CLASSES)) == steps
    assert indices(StepSampler(cases.recipe(seed=6), CLASSES)) != steps


def test_a_step_sees_the_same_whatever_ran_before() -> None:
    recipe = cases.recipe(accumulate=2)
    every = [(seed, some.tolist()) for seed, some in StepSampler(recipe, CLASSES)]
    assert len({seed for seed, _ in every}) == len(every)
    for start in (5, 6, 17):
        sampler = StepSampler(recipe, CLASSES, start)
        assert [(seed, some.tolist()) for seed, some in sampler] == every[2 * start :]
        assert len(sampler) == len(every) - 2 * start


def test_processes_and_parts_share_the_batch_of_one() -> None:
    whole = indices(StepSampler(cases.recipe(), CLASSES))
    parts = [indices(StepSampler(cases.recipe(accumulate=2), CLASSES, 0, rank, 2)) for rank in range(2)]
    for step, batch in enumerate(whole):
        assert batch == [index for rank in range(2) for part in range(2) for index in parts[rank][2 * step + part]]
    for count, processes in ((23, 2), (7, 3), (100, 1), (129, 2)):
        keys = [validation_keys(count, cases.recipe(), rank, processes) for rank in range(processes)]
        assert [index for part in keys for _, some in part for index in some.tolist()] == list(range(count))
        assert len({len(part) for part in keys}) == 1
    for changes, processes, named in (({"batch": 53}, 1, "52"), ({}, 3, "3 processes"), ({"accumulate": 8}, 2, "8")):
        with pytest.raises(TrainingError, match=named):
            StepSampler(cases.recipe(**changes), CLASSES, 0, 0, processes)


@pytest.mark.parametrize(("balance", "shares"), [(0.5, (0.104, 0.208, 0.688)), (1.0, (1 / 3, 1 / 3, 1 / 3))])
def test_balanced_sampling_evens_out_the_classes(balance: float, shares: tuple[float, ...]) -> None:
    classes = torch.repeat_interleave(torch.arange(3), torch.tensor([20, 80, 900]))
    sampler = StepSampler(Recipe(balance=balance, batch=100), classes)
    orders = [sampler.order(epoch) for epoch in range(5)]
    assert all(len(order) == 1000 for order in orders)
    seen = classes[torch.cat(orders)].bincount() / 5000
    assert seen.tolist() == pytest.approx(shares, abs=0.03)
    assert not orders[0].equal(orders[1])


@pytest.mark.parametrize("memory", [0, 2**30])
def test_workers_change_nothing(tmp_path: Path, memory: int) -> None:
    root = files.folder(tmp_path / "pets", {"cat": (6, 1), "dog": (6, 1)})
    data = open_data(root, size=(12, 8), memory=memory)
    recipe = Recipe(batch=4, epochs=2, flip=True, policy="rand", erase=0.5, low_resolution=0.5)
    loaded = []
    for workers in (0, 2):
        images = Images(data.train, transform=augmentation(recipe, (12, 8)))
        assert images.workers > 0
        images.workers = workers
        before = torch.get_rng_state()
        loaded.append([*images.load(StepSampler(recipe, data.train.classes), torch.device("cpu"))])
        assert torch.get_rng_state().equal(before)
    assert len(loaded[0]) == 6
    for one, other in zip(*loaded, strict=True):
        assert one[0].dtype == torch.uint8
        assert one[0].equal(other[0])
        assert one[1].equal(other[1])
    assert Images(data.train).workers == (0 if memory else images.workers or Images(data.train).workers)


def augmented(pixels: Tensor, **changes: object) -> Tensor:
    transform = augmentation(Recipe(**changes), tuple(pixels.shape[2:]))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.stack([transform(image) for image in pixels])


def noise(count: int = 40, height: int = 24, width: int = 16) -> Tensor:
    return cases.images(count, 3, height, width)[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"low_resolution": 1.0}, {"resized_crop": (0.3, 0.9)}, {"crop_padding": 3}, {"flip": True}, {"policy": "rand"},
        {"policy": "trivial"}, {"erase": 1.0},
    ],
)  # fmt: skip
def test_each_setting_changes_images_of_their_own_way(changes: dict) -> None:
    assert Recipe(**changes).augments
    pixels = noise()
    result = augmented(pixels, **changes)
    assert (result.shape, result.dtype) == (pixels.shape, torch.uint8)
    assert not result.equal(pixels)
    same = noise(1).expand(40, -1, -1, -1)
    assert len({image.numpy().tobytes() for image in augmented(same, **changes)}) > 1


def test_nothing_is_done_by_default() -> None:
    assert augmentation(Recipe(), (8, 8)) is None
    assert not Recipe().augments
    assert set(AUGMENTATION) < set(vars(Recipe()))
    images, targets = mixing(Recipe(), 3)(noise(4), CLASSES[:4])
    assert images.equal(noise(4))
    assert targets.equal(torch.eye(3)[CLASSES[:4]])


def test_flips_and_windows_are_of_the_image() -> None:
    pixels = noise()
    for image, flipped in zip(pixels, augmented(pixels, flip=True), strict=True):
        assert flipped.equal(image) or flipped.equal(image.flip(-1))
    padded = torch.nn.functional.pad(pixels, (2,) * 4)
    for image, window in zip(padded, augmented(pixels, crop_padding=2), strict=True):
        assert any(window.equal(image[:, y : y + 24, x : x + 16]) for y in range(5) for x in range(5))


def test_low_resolution_keeps_what_is_coarse_and_loses_what_is_fine() -> None:
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
    pixels, classes = noise(12).float(), CLASSES[:12]
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
