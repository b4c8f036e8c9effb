"""Tiny data and models for tests of training; also imported by the processes that these start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitviz.config import ViTConfig
from vitviz.model import Pretrained, ViT
from vitviz.training.data import Data, Split, fitted
from vitviz.training.engine import Outcome, Trainer
from vitviz.training.recipes import Recipe

SIDE, CLASSES = 12, 3
LABELS = ("ox", "golf ball", "church")
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def images(count: int, seed: int, height: int = SIDE, width: int = SIDE) -> tuple[Tensor, Tensor]:
    """Noise with a stripe whose direction and colour are the class's: (n, 3, H, W) uint8, (n,)."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(90, 160, (count, 3, height, width), generator=generator, dtype=torch.uint8)
    classes = torch.arange(count) % CLASSES
    for index, one in enumerate(classes.tolist()):
        at = int(torch.randint(2, min(height, width) - 3, (), generator=generator))
        if one == 0:
            pixels[index, 0, at : at + 2] = 250
        elif one == 1:
            pixels[index, 1, :, at : at + 2] = 250
        else:
            pixels[index, 2, at : at + 2, at : at + 2] = 5
    return pixels, classes


def data(train: int = 52, val: int = 23, seed: int = 0) -> Data:
    """A data set in memory."""
    preprocess = fitted((SIDE, SIDE), "squash")
    sides = []
    for number, count in enumerate((train, val)):
        pixels, classes = images(count, 2 * seed + number)
        sides.append(Split(classes, None, preprocess, pixels))
    return Data("stripes", LABELS, LABELS, *sides, source="made by a test", licence="CC0-1.0")


def model(data: Data, seed: int = 0, **changes: Any) -> ViT:
    """A new tiny classifier for these data."""
    sizes: dict[str, Any] = {
        "image_size": (SIDE, SIDE),
        "patch_size": 3,
        "width": 20,
        "depth": 3,
        "heads": 2,
        "mlp_width": 28,
        "classes": CLASSES,
    }
    torch.manual_seed(seed)
    about = Pretrained(name="tiny", preprocess=data.preprocess(MEAN, STD), labels=data.labels, class_ids=data.class_ids)
    return ViT(ViTConfig(**{**sizes, **changes}), about)


def recipe(**changes: Any) -> Recipe:
    """A quick one: 3 epochs of 6 steps."""
    settings: dict[str, Any] = {"epochs": 3, "batch": 8, "lr": 3e-3, "warmup": 0.5, "ema": 0.9, "seed": 5}
    return Recipe(**{**settings, **changes})


def train(out: Path, the_recipe: Recipe | None = None, *, sizes: dict[str, Any] | None = None, **asked: Any) -> Outcome:
    """A whole training on the CPU."""
    those = data()
    settings = {"device": "cpu", "progress": False, **asked}
    return Trainer(model(those, **(sizes or {})), those, the_recipe or recipe(), out, **settings).run()


def weights(vit: ViT) -> dict[str, Tensor]:
    """A copy of all weights."""
    return {name: one.detach().clone() for name, one in vit.state_dict().items()}
