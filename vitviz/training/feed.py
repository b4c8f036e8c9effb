"""Batches: which images a step sees, augmented and normalised in a thread while the step before it runs.

Everything is a function of (seed, epoch, step), and of nothing that ran before: a training that is resumed in the
middle of an epoch sees the same numbers as one that was never stopped, and so do several processes together.

Shapes: n images to train on, G of them in a step, k of these in this process, C classes.
"""

from __future__ import annotations

import hashlib
import struct
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from vitviz.preprocess import Preprocess
from vitviz.training import TrainingError
from vitviz.training.augment import augment, group_seeds
from vitviz.training.cache import Rows
from vitviz.training.data import Data
from vitviz.training.losses import one_hot
from vitviz.training.parallel import World
from vitviz.training.recipes import Recipe

_AHEAD = 2  # batches that are made before they are wanted
_LEAST = 32  # images at once in validation, which needs no memory for gradients

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


@dataclass(frozen=True, eq=False)
class Batch:
    """What one process has of a step.

    Args:
        inputs: what the network takes: normalised images (k, 3, H, W), or a trunk's rows (k, ...), float32.
        targets: (k, C), each row summing to 1.
        pixels: (k, 3, H, W) from 0 to 255, where a teacher looks at them.
        answers: (k, C), a teacher's logits, where they were computed before.
    """

    inputs: Tensor
    targets: Tensor
    pixels: Tensor | None = None
    answers: Tensor | None = None

    def __len__(self) -> int:
        return len(self.targets)

    def part(self, some: slice) -> Batch:
        """Some of the images."""
        return Batch(*(None if one is None else one[some] for one in self._tensors()))  # type: ignore[arg-type]

    def to(self, device: torch.device) -> Batch:
        """On another device; nothing waits for the copy."""
        moved = (None if one is None else one.to(device, non_blocking=True) for one in self._tensors())
        return Batch(*moved)  # type: ignore[arg-type]

    def pinned(self) -> Batch:
        """In memory from which a GPU copies by itself."""
        return Batch(*(None if one is None else one.pin_memory() for one in self._tensors()))  # type: ignore[arg-type]

    def _tensors(self) -> tuple[Tensor | None, ...]:
        return self.inputs, self.targets, self.pixels, self.answers


class Feed:
    """All batches of a training, for one process.

    Args:
        data: images and classes.
        recipe: batch, seed, augmentation.
        preprocess: mean and std are read.
        device: where the batches are wanted.
        world: this process among others.
        rows: of a frozen trunk for both sides; the network then takes these, not images.
        answers: of a teacher for the training images.
        asks: whether a teacher will look at the pixels of each batch.

    Raises:
        TrainingError: if the batch is larger than the data, or does not divide among processes.
    """

    def __init__(
        self,
        data: Data,
        recipe: Recipe,
        preprocess: Preprocess,
        device: torch.device,
        world: World,
        *,
        rows: tuple[Rows, Rows] | None = None,
        answers: Rows | None = None,
        asks: bool = False,
    ) -> None:
        check_batch(recipe, len(data.train), world)
        self.data, self.recipe, self.device, self.world = data, recipe, device, world
        self.rows, self.answers, self.asks = rows, answers, asks
        self.classes = len(data.labels)
        self.steps = len(data.train) // recipe.batch
        """Steps of an epoch; images that do not fill the last one are left out, others in each epoch."""
        self._shuffled: tuple[int, Tensor] | None = None  # the epoch that is read now, and its order
        self.left_over = len(data.train) % recipe.batch
        self._mean, self._std = (
            torch.tensor(value, device=device)[:, None, None] for value in (preprocess.mean, preprocess.std)
        )

    def train(self, start: int) -> Generator[Batch]:
        """From step `start`, counted from 0 through all epochs, to the last one; on the device."""
        for batch in ahead(self._train, range(start, self.recipe.epochs * self.steps)):
            yield self._arrive(batch)

    def val(self) -> Iterator[Batch]:
        """The validation images that this process looks at, in order; the last batch may be smaller."""
        whole = torch.arange(len(self.data.val))[self.world.slice(len(self.data.val))]
        size = max(_LEAST, self.recipe.batch // (self.world.size * self.recipe.accumulate))
        for batch in ahead(self._val, whole.split(size) if len(whole) else ()):
            yield self._arrive(batch)

    def order(self, epoch: int) -> Tensor:
        """The images of an epoch in the order in which they are seen: (n,)."""
        generator = torch.Generator().manual_seed(seed_of(self.recipe.seed, epoch))
        return torch.randperm(len(self.data.train), generator=generator)

    def _train(self, number: int) -> Batch:
        epoch, step = divmod(number, self.steps)
        size = self.recipe.batch
        mine = self.world.slice(size)
        if self._shuffled is None or self._shuffled[0] != epoch:
            self._shuffled = epoch, self.order(epoch)
        indices = self._shuffled[1][step * size : (step + 1) * size][mine]
        classes = self.data.train.classes[indices]
        answers = None if self.answers is None else self.answers.read(indices)
        if self.rows is not None:
            return self._ready(Batch(self.rows[0].read(indices), one_hot(classes, self.classes), None, answers))
        pixels, settings = self.data.train.pixels(indices), self.recipe.augment
        if not self.recipe.augments:
            return self._ready(Batch(pixels, one_hot(classes, self.classes), None, answers))
        groups = range(mine.start // settings.group, -(-mine.stop // settings.group))
        seeds = group_seeds(self.recipe.seed, epoch, step, groups)
        return self._ready(Batch(*augment(pixels, classes, self.classes, settings, seeds), None, answers))

    def _val(self, indices: Tensor) -> Batch:
        inputs = self.data.val.pixels(indices) if self.rows is None else self.rows[1].read(indices)
        return self._ready(Batch(inputs, one_hot(self.data.val.classes[indices], self.classes)))

    def _ready(self, batch: Batch) -> Batch:
        """The end of what the thread does: for the CPU everything, for a GPU as few bytes as can be."""
        if self.device.type == "cpu":
            return self._normalised(batch)
        return batch.pinned() if self.device.type == "cuda" else batch

    def _arrive(self, batch: Batch) -> Batch:
        return batch if self.device.type == "cpu" else self._normalised(batch.to(self.device))

    def _normalised(self, batch: Batch) -> Batch:
        if self.rows is not None:
            return batch
        pixels = batch.inputs
        images = pixels.float() if not pixels.is_floating_point() else pixels.clone()
        images.div_(255).sub_(self._mean).div_(self._std)  # Preprocess's steps, each in place
        return Batch(images, batch.targets, pixels if self.asks else None, batch.answers)


def ahead(make: Callable[[_Item], _Made], items: Iterable[_Item]) -> Iterator[_Made]:
    """`make` of each item in order, the next ones in a thread while the present one is used.

    The thread uses one core: the step that runs meanwhile has the others.
    """
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,))
    waiting: deque[Future[_Made]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(make, item))
            if len(waiting) == 1:
                torch.set_num_threads(threads)  # what a thread sets for itself is also what new ones begin with
            if len(waiting) > _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def seed_of(*numbers: int) -> int:
    """A seed that has nothing in common with those of neighbouring numbers: 63 bits of their hash."""
    digest = hashlib.blake2b(struct.pack(f"<{len(numbers)}q", *numbers), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def check_batch(recipe: Recipe, images: int, world: World) -> None:
    """Refuse a batch that so many images, processes and parts do not divide.

    Raises:
        TrainingError: saying what would.
    """
    batch, group = recipe.batch, recipe.augment.group
    if batch > images:
        raise TrainingError(f"batch: expected at most the {images} images there are to train on, got {batch}.")
    if batch % (world.size * recipe.accumulate):
        raise TrainingError(
            f"batch: expected a multiple of {world.size} processes x {recipe.accumulate} parts, got {batch}."
        )
    if world.size > 1 and recipe.augments and batch % (world.size * group):
        raise TrainingError(
            f"batch: images are augmented in groups of {group}, so {world.size} processes want a multiple of "
            f"{world.size * group}, got {batch}."
        )
