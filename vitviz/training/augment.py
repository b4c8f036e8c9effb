"""Augmentation of a batch of uint8 images: crop, flip, a policy, erasing, mixing.

Every draw is a hash of the seeds that are given: nothing touches torch's or numpy's own random numbers, so that a batch
comes out the same whatever ran before it, in which thread, and on how many processes. Each image has choices of its
own, and yet the work is done for the batch at once.

Shapes: k images of H x W pixels, C classes; g groups of `group` images, the last one maybe smaller, one seed each.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from vitviz.compat import import_torchvision
from vitviz.training import TrainingError
from vitviz.training.policy import apply_policy

__all__ = ["Augment", "Policy", "augment", "group_seeds"]

Policy = Literal["none", "trivial", "rand"]
Words = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # SplitMix64's step: 2^64 divided by the golden ratio
_CHUNK = 32  # images that are floats at once: more would not fit into a core's cache
_TRIES = 10  # torchvision's: so often a rectangle is drawn before it gives up
_CROP_RATIO, _ERASE_RATIO, _ERASE_AREA = (3 / 4, 4 / 3), (0.3, 3.3), (0.02, 0.33)  # torchvision's as well


@dataclass(frozen=True, kw_only=True)
class Augment:
    """What is done to training images, in this order; nothing by default.

    Args:
        resized_crop: (least, most) share of the area that is cut out and resized (RandomResizedCrop of Szegedy et al.
            2015, ratios 3/4 to 4/3).
        crop_padding: pixels of black around the image before a window of its own size is cut out.
        flip: left and right are changed for half the images.
        policy: "trivial" (TrivialAugment Wide, Müller and Hutter 2021) or "rand" (RandAugment, Cubuk et al. 2020, two
            operations of magnitude 9), as torchvision defines them.
        erase: the share of the images in which a rectangle becomes noise (random erasing, Zhong et al. 2020).
        mixup, cutmix: the alpha of the Beta distribution that says how much of another image comes in (Zhang et al.
            2018; Yun et al. 2019); 0 for none. With both, each image gets the one or the other.
        group: images that are mixed with one another. A process works on whole groups.

    Raises:
        TrainingError: for settings that make no sense.
    """

    crop_padding: int = 0
    flip: bool = False
    resized_crop: tuple[float, float] | None = None
    policy: Policy = "none"
    erase: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    group: int = 8

    def __post_init__(self) -> None:
        for name, least in (("crop_padding", 0), ("group", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise TrainingError(f"{name}: expected a whole number of at least {least}, got {value!r}.")
        for name, most in (("erase", 1.0), ("mixup", math.inf), ("cutmix", math.inf)):
            if not _is_number(value := getattr(self, name)) or not 0 <= value <= most:
                raise TrainingError(f"{name}: expected a number from 0{' to 1' if most == 1 else ''}, got {value!r}.")
        if self.policy not in get_args(Policy):
            raise TrainingError(f"policy: expected one of {', '.join(get_args(Policy))}, got {self.policy!r}.")
        if (crop := self.resized_crop) is not None:
            if len(crop) != 2 or not all(map(_is_number, crop)) or not 0 < crop[0] <= crop[1] <= 1:
                raise TrainingError(f"resized_crop: expected two shares, 0 < least <= most <= 1, got {crop!r}.")
            if self.crop_padding:
                raise TrainingError("Expected crop_padding or resized_crop, and both came. Leave one out.")

    @property
    def mixes(self) -> bool:
        """Whether an image may hold some of another, so that its target is more than one class."""
        return self.mixup > 0 or self.cutmix > 0


def augment(
    pixels: Tensor, classes: Tensor, count: int, settings: Augment, seeds: Tensor | Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Augment a batch. It runs on whichever device `pixels` are; nothing is changed in place.

    Args:
        pixels: (k, 3, H, W) uint8.
        classes: (k,) int64.
        count: C, how many classes there are.
        settings: what to do.
        seeds: one for each group, g = k / group rounded up; see `group_seeds`.

    Returns:
        (k, 3, H, W) uint8, and soft targets (k, C) float32 whose rows sum to 1.

    Raises:
        TrainingError: if the number of seeds is another, or the pixels are no such images.
    """
    k, group = len(pixels), settings.group
    if pixels.dtype != torch.uint8 or pixels.ndim != 4 or pixels.shape[1] != 3:
        raise TrainingError(f"Expected pixels (k, 3, H, W) uint8; {tuple(pixels.shape)} {pixels.dtype} came.")
    if len(seeds) != -(-k // group) or len(classes) != k:
        raise TrainingError(
            f"Expected {-(-k // group)} seeds (one for {group} images) and {k} classes for {k} images; {len(seeds)} "
            f"and {len(classes)} came."
        )
    targets = F.one_hot(classes, count).float()  # (k,) -> (k, C)
    if not k:
        return pixels, targets
    of_groups = _words(seeds)
    draw = _Draws(of_groups, k, group)
    if settings.resized_crop is not None:
        pixels = _resized_crop(pixels, settings.resized_crop, draw)
    if settings.crop_padding or settings.flip:
        pixels = _crop_and_flip(pixels, settings.crop_padding, settings.flip, draw)
    for turn in range({"none": 0, "trivial": 1, "rand": 2}[settings.policy]):
        choices = (draw(name, turn) for name in ("operation", "magnitude", "sign"))
        pixels = apply_policy(pixels, settings.policy, *choices)
    if settings.erase:
        pixels = _erase(pixels, settings.erase, draw)
    if settings.mixes:
        pixels, targets = _mix(pixels, targets, settings, draw)
    return pixels, targets


def group_seeds(seed: int, epoch: int, step: int, groups: range) -> tuple[int, ...]:
    """Seeds of some groups of a global batch.

    Args:
        seed, epoch, step: of the run, and where it stands.
        groups: their numbers in the global batch, so that each process takes those of its own slice.
    """
    return tuple((_hash(seed, epoch, step, np.array(groups, np.uint64)) >> np.uint64(1)).tolist())


class _Draws:
    """Numbers for each image of a batch, by name: each is a hash of the image's seed, the name and the turn."""

    def __init__(self, seeds: Words, count: int, group: int) -> None:
        self.seeds, self.group = seeds, group
        place = np.arange(count, dtype=np.uint64)
        self.images: Words = _scramble(seeds.repeat(group)[:count] + (place % np.uint64(group) + np.uint64(1)) * _GAMMA)

    def __call__(self, name: str, turn: int = 0) -> Numbers:
        """(k,) numbers from 0 (inclusive) to 1 (exclusive)."""
        return (self._words(name, turn) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def _words(self, name: str, turn: int) -> Words:
        stream = np.uint64((zlib.crc32(name.encode()) << 32) + turn)
        return _scramble(self.images ^ _scramble(np.full(1, stream)))

    def tries(self, name: str) -> Numbers:
        """(tries, k)."""
        return np.stack([self(name, turn) for turn in range(_TRIES)])

    def noise(self, which: npt.NDArray[np.intp], count: int) -> Bytes:
        """(images, count) bytes, each as likely as any other, for some of the images."""
        steps = np.arange(1, -(-count // 8) + 1, dtype=np.uint64) * _GAMMA
        words = _scramble(self._words("noise", 0)[which][:, None] + steps)  # (images, words)
        return words.astype("<u8").view(np.uint8)[:, :count]

    def beta(self, name: str, alpha: float) -> Numbers:
        """(k,) numbers of Beta(alpha, alpha)."""
        key = zlib.crc32(name.encode())
        random = (np.random.Generator(np.random.Philox(key=[int(seed), key])) for seed in self.seeds)
        return np.concatenate([one.beta(alpha, alpha, self.group) for one in random])[: len(self.images)]


def _scramble(words: Words) -> Words:
    """SplitMix64's last step (Steele, Lea, Flood 2014): each bit of the result depends on all of a word."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Words = words ^ (words >> np.uint64(31))
    return mixed


def _hash(*numbers: int | Words) -> Words:
    """One word that depends on all of these and on their order, the same in every run."""
    state = np.zeros(1, np.uint64)
    for number in numbers:
        state = _scramble(state + _GAMMA + (np.uint64(number % 2**64) if isinstance(number, int) else number))
    return state


def _words(seeds: Tensor | Sequence[int]) -> Words:
    numbers = seeds.tolist() if isinstance(seeds, Tensor) else seeds
    return np.array([number % 2**64 for number in numbers], np.uint64)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# ---- geometry


def _crop_and_flip(pixels: Tensor, padding: int, flip: bool, draw: _Draws) -> Tensor:
    """A window of each padded image, some of them from right to left."""
    window = 2 * padding + 1  # places along a side
    top, left = ((draw(name) * window).astype(np.int64) for name in ("top", "left"))
    turned = draw("flip") < (0.5 if flip else 0.0)
    padded = F.pad(pixels, (padding,) * 4)
    if pixels.device.type == "cpu":
        return torch.from_numpy(_slices(padded.numpy(), top, left, turned, padding))
    places = (torch.from_numpy(one).to(pixels.device) for one in (top, left, turned))
    return _gather(padded, padding, *places)


def _slices(padded: Bytes, top: Places, left: Places, turned: npt.NDArray[np.bool_], padding: int) -> Bytes:
    """The windows one after the other: on a CPU copying rows is cheaper than gathering pixels."""
    k, channels, height, width = padded.shape
    height, width = height - 2 * padding, width - 2 * padding
    result = np.empty((k, channels, height, width), np.uint8)
    for index, (y, x, turn) in enumerate(zip(top.tolist(), left.tolist(), turned.tolist(), strict=True)):
        part = padded[index, :, y : y + height, x : x + width]
        result[index] = part[:, :, ::-1] if turn else part
    return result


def _gather(padded: Tensor, padding: int, top: Tensor, left: Tensor, turned: Tensor) -> Tensor:
    """The same in one step for all images, for devices where each step has its price."""
    height, width = (side - 2 * padding for side in padded.shape[2:])
    columns = torch.arange(width, device=padded.device)
    columns = torch.where(turned[:, None], width - 1 - columns, columns) + left[:, None]  # (k, W)
    rows = torch.arange(height, device=padded.device) + top[:, None]  # (k, H)
    index = rows[:, :, None] * padded.shape[3] + columns[:, None, :]  # (k, H, W)
    index = index.flatten(1)[:, None].expand(-1, 3, -1)  # (k, 3, H W)
    return padded.flatten(2).gather(2, index).view(-1, 3, height, width)


def _resized_crop(pixels: Tensor, scale: tuple[float, float], draw: _Draws) -> Tensor:
    """A part of each image at the image's size: bilinear with antialiasing, as torchvision's."""
    import_torchvision()
    from torchvision.transforms.v2 import functional

    height, width = pixels.shape[2:]
    top, left, tall, wide = _rectangles(draw, "crop", scale, _CROP_RATIO, height, width)
    box = top, left, np.where(tall == 0, height, tall), np.where(wide == 0, width, wide)  # where none fits, all of it
    parts = zip(pixels, *(side.tolist() for side in box), strict=True)
    result: list[Any] = [functional.resized_crop(image, *sides, [height, width]) for image, *sides in parts]
    return torch.stack(result)


def _rectangles(
    draw: _Draws, name: str, area: tuple[float, float], ratio: tuple[float, float], height: int, width: int
) -> tuple[Places, ...]:
    """(top, left, height, width), each (k,): the first of ten draws that fits into the image, else zeros."""
    areas = height * width * (area[0] + (area[1] - area[0]) * draw.tries(f"{name} area"))  # (tries, k)
    low, high = math.log(ratio[0]), math.log(ratio[1])
    ratios = np.exp(low + (high - low) * draw.tries(f"{name} ratio"))
    wide, tall = np.rint(np.sqrt(areas * ratios)), np.rint(np.sqrt(areas / ratios))
    fits = (wide >= 1) & (wide <= width) & (tall >= 1) & (tall <= height)
    first, images = fits.argmax(0), np.arange(fits.shape[1])
    tall, wide = (np.where(fits.any(0), side[first, images], 0).astype(np.int64) for side in (tall, wide))
    places = ((draw(f"{name} top"), height - tall), (draw(f"{name} left"), width - wide))
    top, left = (((u * (room + 1)).astype(np.int64) * fits.any(0)) for u, room in places)
    return top, left, tall, wide


def _inside(box: Sequence[Places], height: int, width: int) -> Tensor:
    """Which pixels of each image lie in its rectangle (top, left, height, width), each (k,): (k, 1, H, W) bool."""
    top, left, tall, wide = (torch.from_numpy(side)[:, None] for side in box)
    rows, columns = torch.arange(height), torch.arange(width)
    down = (rows >= top) & (rows < top + tall)  # (k, H)
    across = (columns >= left) & (columns < left + wide)  # (k, W)
    return down[:, None, :, None] & across[:, None, None, :]


# ---- erasing and mixing


def _erase(pixels: Tensor, share: float, draw: _Draws) -> Tensor:
    """A rectangle of noise in some of the images."""
    _, channels, height, width = pixels.shape
    chosen = np.flatnonzero(draw("erase") < share)
    box = [side[chosen] for side in _rectangles(draw, "erase", _ERASE_AREA, _ERASE_RATIO, height, width)]
    mask = _inside(box, height, width).to(pixels.device)  # (e, 1, H, W)
    noise = torch.from_numpy(draw.noise(chosen, channels * height * width)).to(pixels.device)
    noise = noise.view(-1, channels, height, width)  # (e, 3 H W) -> (e, 3, H, W)
    which = torch.from_numpy(chosen).to(pixels.device)
    return _replace(pixels, which, [torch.where(mask, noise, pixels.index_select(0, which))])


def _replace(pixels: Tensor, which: Tensor, parts: list[Tensor]) -> Tensor:
    """The batch with `parts`, one after the other, in place of the images at `which`; index_copy takes 10 times it."""
    order = torch.arange(len(pixels), device=pixels.device)
    order[which] = len(pixels) + torch.arange(len(which), device=pixels.device)
    return torch.cat([pixels, *parts]).index_select(0, order)


def _mix(pixels: Tensor, targets: Tensor, settings: Augment, draw: _Draws) -> tuple[Tensor, Tensor]:
    """Each image with the one before it in its group, which goes around: mixup, or a rectangle of it (cutmix)."""
    k, _, height, width = pixels.shape
    place = torch.arange(k)
    start = place - place % settings.group
    length = (k - start).clamp_max(settings.group)
    other = (start + (place - start - 1) % length).to(pixels.device)
    blend = settings.mixup > 0 and (draw("which") < 0.5 if settings.cutmix > 0 else np.ones(k, bool))
    share = np.ones(k)  # how much of the image itself stays
    result, partner = pixels, pixels.index_select(0, other)
    if settings.cutmix > 0:
        box = _cut(draw, settings.cutmix, height, width)
        box[2] = np.where(blend, 0, box[2])
        result = torch.where(_inside(box, height, width).to(pixels.device), partner, pixels)
        share = 1 - box[2] * box[3] / (height * width)
    if settings.mixup > 0:
        share = np.where(blend, draw.beta("mixup", settings.mixup), share)
        weight = torch.from_numpy(share).float().to(pixels.device)[:, None, None, None]
        which = torch.from_numpy(np.flatnonzero(blend)).to(pixels.device)
        parts: list[Tensor] = []
        for some in which.split(_CHUNK):
            one, two = (side.index_select(0, some).float() for side in (partner, pixels))
            parts.append(torch.lerp(one, two, weight[some]).round_().to(torch.uint8))
        result = _replace(result, which, parts)
    own = torch.from_numpy(share).float().to(targets.device)[:, None]
    return result, targets * own + targets[other.to(targets.device)] * (1 - own)


def _cut(draw: _Draws, alpha: float, height: int, width: int) -> list[Places]:
    """Cutmix's rectangles (top, left, height, width), each (k,): centred anywhere, cut off at the image's edge."""
    side = np.sqrt(1 - draw.beta("cutmix", alpha)) / 2
    ends: list[tuple[Places, Places]] = []
    for name, length in (("row", height), ("column", width)):
        centre, half = np.floor(draw(name) * length), np.floor(side * length)
        low, high = (np.clip(end, 0, length).astype(np.int64) for end in (centre - half, centre + half))
        ends.append((low, high))
    (top, bottom), (left, right) = ends
    return [top, left, bottom - top, right - left]
