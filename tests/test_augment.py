"""Augmentation: what each step does to an image, and that nothing but the seeds decides it."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vitviz.compat import import_torchvision
from vitviz.training import TrainingError
from vitviz.training import augment as module
from vitviz.training.augment import Augment, augment, group_seeds

pytestmark = pytest.mark.usefixtures("one_thread")

C = 5
EVERYTHING = Augment(crop_padding=2, flip=True, policy="trivial", erase=0.5, mixup=0.4, cutmix=1.0, group=4)
SETTINGS = [
    Augment(crop_padding=3, group=4),
    Augment(flip=True, group=4),
    Augment(resized_crop=(0.3, 1.0), group=4),
    Augment(policy="trivial", group=4),
    Augment(policy="rand", group=4),
    Augment(erase=0.7, group=4),
    Augment(mixup=0.8, group=4),
    Augment(cutmix=1.0, group=4),
    EVERYTHING,
]


def batch(k: int, height: int = 11, width: int = 13, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (k, 3, height, width), generator=generator, dtype=torch.uint8)
    return pixels, torch.randint(0, C, (k,), generator=generator)


def run(k: int, settings: Augment, seed: int = 0, **shape: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and classes, and what became of them."""
    pixels, classes = batch(k, **shape)
    seeds = group_seeds(seed, 0, 0, range(-(-k // settings.group)))
    return pixels, classes, *augment(pixels, classes, C, settings, seeds)


# ---- randomness


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_group_depends_on_its_seed_alone(settings: Augment) -> None:
    """So that a batch is the same on one process and on three, and after a resume."""
    pixels, classes = batch(22)
    seeds = group_seeds(7, 3, 11, range(6))
    whole, targets = augment(pixels, classes, C, settings, seeds)
    torch.manual_seed(5)  # what ran before does not count
    np.random.default_rng(5).random()
    parts = [
        augment(pixels[low:high], classes[low:high], C, settings, group_seeds(7, 3, 11, range(low // 4, -(-high // 4))))
        for low, high in ((0, 8), (8, 12), (12, 22))
    ]
    assert torch.equal(torch.cat([part for part, _ in parts]), whole)
    assert torch.equal(torch.cat([part for _, part in parts]), targets)
    assert torch.equal(augment(pixels, classes, C, settings, torch.tensor(seeds))[0], whole)


@pytest.mark.parametrize("settings", SETTINGS)
def test_nothing_is_drawn_from_anyone_elses_numbers_or_changed_in_place(settings: Augment) -> None:
    pixels, classes = batch(12)
    before, own, numpys = pixels.clone(), torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    augment(pixels, classes, C, settings, group_seeds(0, 0, 0, range(3)))
    assert torch.equal(torch.get_rng_state(), own)
    assert (np.random.get_state()[1] == numpys).all()  # noqa: NPY002
    assert torch.equal(pixels, before)


@pytest.mark.parametrize("settings", SETTINGS)
def test_another_seed_is_another_batch(settings: Augment) -> None:
    one, other = run(40, settings, seed=0), run(40, settings, seed=1)
    assert (one[2] != other[2]).flatten(1).any(1).float().mean() > 0.3


def test_threads_do_not_disturb_one_another() -> None:
    expected, found = run(32, EVERYTHING)[2], []
    threads = [threading.Thread(target=lambda: found.append(run(32, EVERYTHING)[2])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [torch.equal(one, expected) for one in found] == [True] * 4


@given(st.tuples(*[st.integers(0, 2**40)] * 3), st.integers(0, 1000), st.integers(1, 8))
def test_seeds_are_all_different_and_only_theirs(run: tuple[int, int, int], first: int, count: int) -> None:
    seeds = group_seeds(*run, range(first, first + count))
    assert seeds == tuple(group_seeds(*run, range(group, group + 1))[0] for group in range(first, first + count))
    a, b, c = run
    others = group_seeds(a + 1, b, c, range(first, first + count)) + group_seeds(a, b + 1, c, range(first, first + 1))
    others += group_seeds(a, b, c + 1, range(first, first + 1))
    assert len({*seeds, *others}) == 2 * count + 2
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_settings_do_not_change_one_anothers_draws() -> None:
    """A recipe with one more step still crops the same places."""
    crop = Augment(crop_padding=3, flip=True)
    cropped = run(32, crop)[2]
    erased = run(32, dataclasses.replace(crop, erase=0.5))[2]
    assert (erased == cropped).flatten(1).all(1).float().mean() > 0.3  # those that were not chosen


# ---- crop and flip


def windows(image: Tensor, padding: int, flip: bool) -> dict[bytes, tuple[int, int, bool]]:
    """Every picture that a crop may give -> where it is."""
    height, width = image.shape[1:]
    padded = np.zeros((3, height + 2 * padding, width + 2 * padding), np.uint8)
    padded[:, padding : padding + height, padding : padding + width] = image.numpy()
    found = {}
    for y in range(2 * padding + 1):
        for x in range(2 * padding + 1):
            part = padded[:, y : y + height, x : x + width]
            found[part.tobytes()] = (y, x, False)
            if flip:
                found[part[:, :, ::-1].tobytes()] = (y, x, True)
    return found


@pytest.mark.parametrize(("padding", "flip"), [(2, False), (2, True), (0, True), (4, True)])
def test_every_crop_is_a_window_and_every_window_comes(padding: int, flip: bool) -> None:
    pixels, _, result, _ = run(1600, Augment(crop_padding=padding, flip=flip), height=5, width=7)
    places = [windows(one, padding, flip)[other.numpy().tobytes()] for one, other in zip(pixels, result, strict=True)]
    counts = np.zeros((2 * padding + 1, 2 * padding + 1, 2))
    for y, x, turned in places:
        counts[y, x, int(turned)] += 1
    for axes in ((1, 2), (0, 2), (0, 1)):  # each row, each column, and both directions as often
        number = counts.sum(axes)
        expected = 1600 / len(number)
        if flip or axes != (0, 1):
            assert (abs(number - expected) < 5 * expected**0.5).all()
    assert flip or not counts[..., 1].any()


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 4), st.integers(1, 6), st.integers(0, 2**32))
def test_the_two_ways_of_cropping_agree(height: int, width: int, padding: int, k: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    padded = torch.from_numpy(
        random.integers(0, 256, (k, 3, height + 2 * padding, width + 2 * padding), dtype=np.uint8)
    )
    top, left = random.integers(0, 2 * padding + 1, (2, k))
    turned = random.random(k) < 0.5
    gathered = module._gather(padded, padding, *map(torch.from_numpy, (top, left, turned)))
    np.testing.assert_array_equal(gathered.numpy(), module._slices(padded.numpy(), top, left, turned, padding))


def test_a_resized_crop_is_torchvisions(monkeypatch: pytest.MonkeyPatch) -> None:
    functional = import_torchvision().transforms.functional  # its first version: not what is called here
    boxes: list[Any] = []
    rectangles = module._rectangles
    monkeypatch.setattr(module, "_rectangles", lambda *a: boxes.append(rectangles(*a)) or boxes[-1])
    pixels, _, result, _ = run(300, Augment(resized_crop=(0.2, 0.6)), height=24, width=20)
    for index, (top, left, tall, wide) in enumerate(zip(*boxes[0], strict=True)):
        assert 0 <= top <= 24 - tall
        assert 0 <= left <= 20 - wide
        assert 0.15 < tall * wide / 480 < 0.65
        assert 0.65 < wide / tall < 1.5
        if index < 20:
            theirs = functional.resized_crop(pixels[index], top, left, tall, wide, [24, 20], antialias=True)
            torch.testing.assert_close(result[index], theirs, atol=1, rtol=0)
    areas = boxes[0][2] * boxes[0][3] / 480
    assert abs(areas.mean() - 0.4) < 0.03  # as likely as one another, not mostly small ones
    assert torch.equal(run(4, Augment(resized_crop=(1.0, 1.0)), height=8, width=40)[2], batch(4, 8, 40)[0])  # none fits


# ---- erasing


def test_erasing_is_a_rectangle_of_noise() -> None:
    pixels, _, result, _ = run(2000, Augment(erase=0.25), height=30, width=40)
    changed = (pixels != result).any(1)  # (k, H, W)
    erased = changed.flatten(1).any(1)
    assert abs(erased.float().mean() - 0.25) < 0.04
    noise = []
    for mask, image in zip(changed[erased], result[erased], strict=True):
        rows, columns = mask.any(1).nonzero().flatten(), mask.any(0).nonzero().flatten()
        tall, wide = int(rows[-1] - rows[0] + 1), int(columns[-1] - columns[0] + 1)
        assert mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].float().mean() > 0.9
        assert 0.01 < tall * wide / 1200 < 0.36
        assert 0.25 < wide / tall < 4
        noise.append(image[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].flatten())
    values = torch.cat(noise).bincount(minlength=256).double()
    assert values.std() < 2 * values.mean() ** 0.5  # each byte as often
    assert torch.equal(run(4, Augment(erase=1.0), height=1, width=999)[2], batch(4, 1, 999)[0])  # none fits: nothing


# ---- mixing


def before(k: int, group: int) -> list[int]:
    """The image before each one in its group, and for the first one the last."""
    return [index - 1 if index % group else min(index + group, k) - 1 for index in range(k)]


@pytest.mark.parametrize(("k", "group"), [(12, 4), (11, 4), (9, 4), (5, 8), (6, 1)])
def test_mixup_is_the_papers_formula(k: int, group: int) -> None:
    pixels, classes, result, targets = run(k, Augment(mixup=0.8, group=group))
    own, one_hot = torch.zeros(k), F.one_hot(classes, C).float()
    for index, other in enumerate(before(k, group)):
        a, b, mixed = (image.double().flatten() for image in (pixels[index], pixels[other], result[index]))
        share = float((mixed - b) @ (a - b) / max(float((a - b) @ (a - b)), 1.0)) if index != other else 1.0
        torch.testing.assert_close(mixed, (share * a + (1 - share) * b), atol=0.6, rtol=0)
        own[index] = share
        expected = share * one_hot[index] + (1 - share) * one_hot[other]
        torch.testing.assert_close(targets[index].double(), expected.double(), atol=0.01, rtol=0)
    assert group == 1 or len(own.unique()) == k  # each its own share


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_shares_have_the_beta_distribution(alpha: float) -> None:
    """Mean 1/2 and variance 1 / (4 (2 alpha + 1))."""
    pixels = torch.zeros(4000, 3, 1, 1, dtype=torch.uint8)
    classes = torch.arange(4000) % 2
    _, targets = augment(pixels, classes, 2, Augment(mixup=alpha), group_seeds(1, 0, 0, range(500)))
    share = targets[torch.arange(4000), classes].double()
    assert abs(share.mean() - 0.5) < 0.03
    assert abs(share.var() / (1 / (4 * (2 * alpha + 1))) - 1) < 0.1


def test_cutmix_pastes_a_rectangle_and_counts_it() -> None:
    pixels, classes, result, targets = run(800, Augment(cutmix=1.0, group=4), height=20, width=30)
    one_hot, shares = F.one_hot(classes, C).float(), []
    for index, other in enumerate(before(800, 4)):
        pasted = (result[index] != pixels[index]).any(0)
        rows, columns = pasted.any(1).nonzero().flatten(), pasted.any(0).nonzero().flatten()
        mask = torch.zeros(20, 30, dtype=torch.bool)
        if len(rows):
            mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] = True
        assert torch.equal(result[index], torch.where(mask, pixels[other], pixels[index]))
        own = 1 - float(mask.sum()) / 600
        torch.testing.assert_close(targets[index], own * one_hot[index] + (1 - own) * one_hot[other])
        shares.append(own)
    # More than 1/2 of the image stays, because rectangles are cut off at the edge.
    random = np.random.default_rng(0)
    cut = np.sqrt(1 - random.random(20000)) / 2
    sides = [(np.clip(c + cut, 0, 1) - np.clip(c - cut, 0, 1)) for c in random.random((2, 20000))]
    assert abs(np.mean(shares) - (1 - sides[0] * sides[1]).mean()) < 0.03


def test_with_both_each_image_gets_the_one_or_the_other() -> None:
    both = run(400, Augment(mixup=1.0, cutmix=1.0))
    mixed, cut = run(400, Augment(mixup=1.0)), run(400, Augment(cutmix=1.0))
    as_mixup = (both[2] == mixed[2]).flatten(1).all(1) & (both[3] == mixed[3]).all(1)
    as_cutmix = (both[2] == cut[2]).flatten(1).all(1) & (both[3] == cut[3]).all(1)
    assert bool((as_mixup | as_cutmix).all())
    assert 120 < int((as_mixup & ~as_cutmix).sum()) < 280


@given(st.integers(0, 17), st.integers(1, 9), st.sampled_from(SETTINGS), st.integers(0, 2**62))
def test_a_batch_stays_a_batch(k: int, group: int, settings: Augment, seed: int) -> None:
    settings = dataclasses.replace(settings, group=group)
    pixels, classes = batch(k, 4, 6)
    result, targets = augment(pixels, classes, C, settings, [seed + index for index in range(-(-k // group))])
    assert result.shape == pixels.shape
    assert result.dtype == torch.uint8
    assert targets.shape == (k, C)
    assert bool((targets >= 0).all())
    torch.testing.assert_close(targets.sum(1), torch.ones(k))
    if not settings.mixes:
        assert torch.equal(targets, F.one_hot(classes, C).float())


def test_nothing_is_done_by_default() -> None:
    pixels, classes, result, targets = run(9, Augment())
    assert torch.equal(result, pixels)
    assert torch.equal(targets.argmax(1), classes)


# ---- refusals


@pytest.mark.parametrize(
    "wrong",
    [
        {"crop_padding": -1}, {"crop_padding": 1.5}, {"crop_padding": True}, {"group": 0}, {"policy": "auto"},
        {"erase": 1.1}, {"erase": -0.1}, {"mixup": -1}, {"cutmix": float("nan")}, {"cutmix": float("inf")},
        {"mixup": "0.2"}, {"resized_crop": (0, 1)}, {"resized_crop": (0.8, 0.5)}, {"resized_crop": (0.5, 1.2)},
        {"resized_crop": (0.5,)}, {"resized_crop": (0.5, 1.0), "crop_padding": 4},
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TrainingError, match=next(iter(wrong))):
        Augment(**wrong)


def test_batches_that_are_none_are_refused() -> None:
    pixels, classes = batch(9)
    for bad in (pixels.float(), pixels[:, :1], pixels[0]):
        with pytest.raises(TrainingError, match=r"\(k, 3, H, W\) uint8"):
            augment(bad, classes, C, Augment(), [0, 1])
    for seeds, labels in (([0], classes), ([0, 1, 2], classes), ([0, 1], classes[:8])):
        with pytest.raises(TrainingError, match="2 seeds"):
            augment(pixels, labels, C, Augment(), seeds)
