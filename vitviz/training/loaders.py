"""Load and augment the images of each step in worker processes, while the previous step runs.

The images of a step and their augmentation depend only on the seed and the step number, so a training run that is
resumed within an epoch sees the same images.

Shapes: n training images, k images per part of a step, H x W pixels, C classes.
"""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from vitviz.images.preprocess import Preprocess
from vitviz.images.torchvision_import import import_torchvision
from vitviz.training import TrainingError
from vitviz.training.data import Split, cores
from vitviz.training.recipes import Recipe

Key = tuple[int, Tensor]
"""A seed for augmentation, and the indices (k,) of the images to read."""
Loaded = tuple[Tensor, Tensor]
"""Pixels (k, 3, H, W) uint8 or cached features (k, ...), and classes (k,)."""
_LEAST = 32  # minimum batch size in validation, which needs no gradients


class Images(Dataset[Loaded]):
    """Split of a data set that is read in batches.

    Args:
        split: the images and their classes.
        features: a `FeatureCache` to read instead of pixels.
        transform: augmentation of images (k, 3, H, W) uint8 that draws its random numbers once.
        together: number of images of a batch in each call of `transform`.
    """

    def __init__(
        self, split: Split, features: Any = None, transform: Callable[[Tensor], Tensor] | None = None, together: int = 1
    ) -> None:
        self.split, self.source, self.transform, self.together = split, features or split, transform, together
        decodes = features is None and split.images is None
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # processes of torchrun on this machine
        self.workers = min(8, max(1, cores() // local)) if transform or decodes else 0

    def __getitem__(self, key: Key) -> Loaded:
        """Return the images of one key."""
        seed, indices = key
        inputs = self.source.read(indices)
        if self.transform is not None:
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(seed)
                inputs = torch.cat([self.transform(images) for images in inputs.split(self.together)])
        return inputs, self.split.classes[indices]

    def load(self, keys: Sampler[Key] | Sequence[Key], device: torch.device) -> DataLoader[Loaded]:
        """Return a loader in which each key yields a whole batch."""
        return DataLoader(
            self,
            batch_size=None,
            sampler=keys,
            num_workers=self.workers,
            worker_init_fn=_ignore_interrupts,
            pin_memory=device.type == "cuda",
            generator=torch.Generator(),  # draws the workers' (unused) seeds instead of the global generator
        )


def _ignore_interrupts(_worker: int) -> None:
    """Ignore Ctrl-C in workers; the main process finishes its step and saves."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class StepSampler(Sampler[Key]):
    """Sampler of each part of each step for one process.

    Args:
        recipe: batch, accumulate, balance, epochs and seed are used.
        classes: (n,), classes of the training images.
        start: the first step to yield, from 0 over all epochs.
        rank, processes: rank of this process, and number of processes.

    Raises:
        TrainingError: if the batch is larger than the data, or is not divisible by the number of processes.
    """

    def __init__(self, recipe: Recipe, classes: Tensor, start: int = 0, rank: int = 0, processes: int = 1) -> None:
        self.recipe, self.classes, self.start, self.rank, self.processes = recipe, classes, start, rank, processes
        if recipe.batch > len(classes):
            raise TrainingError(f"Expected a batch of at most all {len(classes)} images, got {recipe.batch}. Lower it.")
        if recipe.batch % (processes * recipe.accumulate):
            raise TrainingError(
                f"Expected a batch divisible by {processes} processes x {recipe.accumulate} parts, got {recipe.batch}. "
                "Choose another."
            )
        self.steps = len(classes) // recipe.batch
        """Steps per epoch. An incomplete last step is dropped, with different images in each epoch."""

    def __len__(self) -> int:
        return (self.recipe.epochs * self.steps - self.start) * self.recipe.accumulate

    def __iter__(self) -> Iterator[Key]:
        for number in range(self.start, self.recipe.epochs * self.steps):
            epoch, step = divmod(number, self.steps)
            if number == self.start or step == 0:
                order = self.order(epoch)
            batch = order[step * self.recipe.batch : (step + 1) * self.recipe.batch]
            for part, indices in enumerate(batch.chunk(self.processes)[self.rank].chunk(self.recipe.accumulate)):
                yield seed_of(self.recipe.seed, number, self.rank, part), indices

    def order(self, epoch: int) -> Tensor:
        """Return the image indices of an epoch in order: (n,)."""
        generator = torch.Generator().manual_seed(seed_of(self.recipe.seed, epoch))
        if not self.recipe.balance:
            return torch.randperm(len(self.classes), generator=generator)
        weights = self.classes.bincount().double().pow(-self.recipe.balance)[self.classes]  # (n,)
        return torch.multinomial(weights, len(self.classes), replacement=True, generator=generator)


def seed_of(*numbers: int) -> int:
    """Hash numbers to a 63-bit seed, so that neighboring numbers give unrelated seeds."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) >> 1


def validation_keys(count: int, recipe: Recipe, rank: int, processes: int) -> list[Key]:
    """Return the validation keys of one process, with an equal number of batches for all."""
    size = max(_LEAST, recipe.batch // (processes * recipe.accumulate))
    mine = torch.arange(count).tensor_split(processes)[rank]
    return [(0, indices) for indices in mine.tensor_split(-(-count // (processes * size)))]


def normalize(images: Tensor, preprocess: Preprocess) -> Tensor:
    """Normalize images (k, 3, H, W) in 0..1 for the model."""
    mean, std = (images.new_tensor(values)[:, None, None] for values in (preprocess.mean, preprocess.std))
    return (images - mean).div_(std)


# ---- augmentation


def augmentation(recipe: Recipe, size: tuple[int, int]) -> Callable[[Tensor], Tensor] | None:
    """Return the recipe's augmentation of images (k, 3, H, W) uint8, or `None`."""
    import_torchvision()
    from torchvision.transforms import InterpolationMode, v2

    steps: list[Any] = []
    if recipe.low_resolution:
        shares = [4 ** (-index / 8) for index in range(1, 9)]  # 0.84 to 0.25, evenly on a log scale
        back = v2.Resize(size, interpolation=InterpolationMode.BICUBIC, antialias=True)
        coarse = [v2.Compose([v2.Resize(max(1, round(share * min(size)))), back]) for share in shares]
        steps.append(v2.RandomApply([v2.RandomChoice(coarse)], p=recipe.low_resolution))
    if recipe.resized_crop is not None:
        steps.append(v2.RandomResizedCrop(size, scale=recipe.resized_crop))
    if recipe.crop_padding:
        steps.append(v2.RandomCrop(size, padding=recipe.crop_padding))
    if recipe.flip:
        steps.append(v2.RandomHorizontalFlip())
    if recipe.policy != "none":
        steps.append(v2.TrivialAugmentWide() if recipe.policy == "trivial" else v2.RandAugment())
    if recipe.erase:
        steps.append(v2.RandomErasing(recipe.erase))
    return v2.Compose(steps) if steps else None


def mixing(recipe: Recipe, classes: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return MixUp, CutMix, a random choice of both, or neither: images, classes (k,) -> images, targets (k, C)."""
    import_torchvision()
    from torchvision.transforms import v2

    parts: list[Any] = [v2.MixUp(alpha=recipe.mixup, num_classes=classes)] if recipe.mixup else []
    parts += [v2.CutMix(alpha=recipe.cutmix, num_classes=classes)] if recipe.cutmix else []
    if not parts:
        return lambda images, labels: (images, F.one_hot(labels, classes).float())
    mix: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = v2.RandomChoice(parts) if len(parts) > 1 else parts[0]
    return mix
