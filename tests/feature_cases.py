"""Tiny models and images for the tests of a trunk's rows."""

from pathlib import Path

import tiny
import torch
from torch import Tensor

from vitviz.model import Pretrained, ViT
from vitviz.preprocess import Preprocess
from vitviz.training.cache import Rows
from vitviz.training.data import Split, fitted
from vitviz.training.features import normalised, open_features

GRID, PATCH = (2, 3), 5
SIZE = (GRID[0] * PATCH, GRID[1] * PATCH)
DEPTH, COUNT = 3, 11


def model(seed: int = 0, **changes: object) -> ViT:
    made = tiny.model(seed, grid=GRID, patch=PATCH, depth=DEPTH, classes=5, **changes)
    feed = Preprocess(height=SIZE[0], width=SIZE[1], mode="squash")
    made.pretrained = Pretrained(name="tiny", preprocess=feed, labels=tuple("abcde"))
    return made


def split(seed: int = 0, count: int = COUNT) -> Split:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 3, *SIZE), generator=generator, dtype=torch.uint8)
    return Split(torch.arange(count) % 5, None, fitted(SIZE, "squash"), images)


def inputs(one: Split, of: ViT) -> Tensor:
    assert of.pretrained is not None
    return normalised(one.pixels(torch.arange(len(one)), SIZE), of.pretrained.preprocess)


def rows(of: ViT, folder: Path, last: int, seed: int = 0, **settings: object) -> Rows:
    settings = {"batch": 4, "dtype": torch.float32} | settings
    return open_features(of, split(seed), SIZE, folder, name="train", unfreeze_last=last, **settings)


def everything(one: Rows) -> Tensor:
    return one.read(torch.arange(len(one)))
