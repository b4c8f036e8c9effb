"""Tiny data and models for tests of training and the processes that these start."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitviz.images.datasets import Samples
from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ViTConfig
from vitviz.model.vit import Pretrained, ViT
from vitviz.training import loop
from vitviz.training.data import Data, Split
from vitviz.training.loop import Outcome, Trainer
from vitviz.training.recipes import Recipe
from vitviz.training.state import find_state

SIDE, CLASSES = 12, 3
LABELS = ("ox", "golf ball", "church")
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


# Settings that use all stateful parts: order, augmentation, dropouts, moments, running mean.
FULL: dict[str, Any] = {
    "flip": True, "crop_padding": 1, "mixup": 0.3, "dropout": 0.1, "path_dropout": 0.3, "patch_dropout": 0.3,
    "smoothing": 0.1, "layer_decay": 0.8,
}  # fmt: skip


def images(count: int, seed: int, height: int = SIDE, width: int = SIDE) -> tuple[Tensor, Tensor]:
    """Return noise with a mark whose shape and color depend on the class: (n, 3, H, W) uint8, (n,)."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(90, 160, (count, 3, height, width), generator=generator, dtype=torch.uint8)
    classes = torch.arange(count) % CLASSES
    for index, label in enumerate(classes.tolist()):
        start = int(torch.randint(2, min(height, width) - 3, (), generator=generator))
        if label == 0:
            pixels[index, 0, start : start + 2] = 250
        elif label == 1:
            pixels[index, 1, :, start : start + 2] = 250
        else:
            pixels[index, 2, start : start + 2, start : start + 2] = 5
    return pixels, classes


def split(pixels: Tensor, classes: Tensor) -> Split:
    """Return a split with images in memory, (n, 3, H, W) uint8, at this size."""
    height, width = pixels.shape[2:]
    squash = Preprocess(height=height, width=width, mode="squash", mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    return Split(Samples(classes, images=pixels), squash, pixels)


def data(train: int = 52, val: int = 23, seed: int = 0) -> Data:
    """Return a data set in memory."""
    splits = [split(*images(count, 2 * seed + number)) for number, count in enumerate((train, val))]
    return Data("stripes", LABELS, LABELS, *splits, source="made by a test", licence="CC0-1.0")


def model(data: Data, seed: int = 0, **changes: Any) -> ViT:
    """Return a new tiny classifier for a data set."""
    sizes: dict[str, Any] = {"image_size": (SIDE, SIDE), "patch_size": 3, "classes": CLASSES}
    sizes |= {"width": 20, "depth": 3, "heads": 2, "mlp_width": 28}
    torch.manual_seed(seed)
    about = Pretrained(name="tiny", preprocess=data.preprocess(MEAN, STD), labels=data.labels, class_ids=data.class_ids)
    return ViT(ViTConfig(**{**sizes, **changes}), about)


def recipe(**changes: Any) -> Recipe:
    """Return a recipe of 3 epochs of 6 steps."""
    settings: dict[str, Any] = {"epochs": 3, "batch": 8, "lr": 3e-3, "warmup": 0.5, "ema": 0.9, "seed": 5}
    return Recipe(**{**settings, **changes})


def run(out: Path, vit: ViT, data: Data, recipe: Recipe, **options: Any) -> Outcome:
    """Train a model on the CPU."""
    return Trainer(vit, data, recipe, out, device="cpu", progress=False, **options).run()


def train(
    out: Path, the_recipe: Recipe | None = None, *, sizes: dict[str, Any] | None = None, **options: Any
) -> Outcome:
    """Train a new model on a new data set on the CPU."""
    dataset = data()
    return run(out, model(dataset, **(sizes or {})), dataset, the_recipe or recipe(), **options)


def normalized(images: Split) -> Tensor:
    """Return all images of a split as the model's input: (n, 3, H, W)."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    return (images.read(torch.arange(len(images))) / 255 - mean) / std


def at_step(number: int, action: Callable[[], object]) -> Callable[[], None]:
    """Call `action` in training step `number` of this session (0: in every step); return a function that stops that."""
    original, steps = loop.training_loss, []

    def training_loss(*args: Any) -> Tensor:
        steps.append(0)
        if number in (0, len(steps)):
            action()
        return original(*args)

    loop.training_loss = training_loss
    return lambda: setattr(loop, "training_loss", original)


def assert_same(outcome: Outcome, expected: Outcome) -> None:
    """Check that losses, weights and predictions are bitwise equal."""
    assert outcome.losses.equal(expected.losses)
    for name, weight in expected.model.state_dict().items():
        assert outcome.model.state_dict()[name].equal(weight), name
    assert np.array_equal(outcome.accuracy.predicted, expected.accuracy.predicted)
    assert [row.top1 for row in outcome.epochs] == [row.top1 for row in expected.epochs]


def step_of(out: Path) -> int:
    """Return the number of steps in the saved state."""
    folder = find_state(out)
    return int(folder.name.removeprefix("step-")) if folder else 0


def weights(vit: ViT) -> dict[str, Tensor]:
    """Return a copy of all weights."""
    return {name: weight.detach().clone() for name, weight in vit.state_dict().items()}
