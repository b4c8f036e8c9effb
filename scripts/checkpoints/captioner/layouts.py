"""Photographs and mosaics of photographs with the nouns that describe them: which to make, and how to draw them.

A mosaic has two to four photographs, each in a half or a quarter of the picture. Boxes are (left, top, right, bottom)
in halves of the picture, so that the whole picture is (0, 0, 2, 2) and the quarter at the top left (0, 0, 1, 1).
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from vitviz.images.datasets import IMAGENETTE
from vitviz.images.decoding import decode
from vitviz.images.folders import is_image

Box = tuple[int, int, int, int]
WHOLE: Box = (0, 0, 2, 2)
LEFT, RIGHT, TOP, BOTTOM = (0, 0, 1, 2), (1, 0, 2, 2), (0, 0, 2, 1), (0, 1, 2, 2)
TOP_LEFT, TOP_RIGHT, BOTTOM_LEFT, BOTTOM_RIGHT = QUARTERS = (0, 0, 1, 1), (1, 0, 2, 1), (0, 1, 1, 2), (1, 1, 2, 2)
LAYOUTS: Mapping[tuple[Box, ...], float] = {
    (LEFT, RIGHT): 0.1,
    (TOP, BOTTOM): 0.1,
    (TOP_LEFT, TOP_RIGHT, BOTTOM): 0.1,
    (TOP, BOTTOM_LEFT, BOTTOM_RIGHT): 0.1,
    (LEFT, TOP_RIGHT, BOTTOM_RIGHT): 0.1,
    (TOP_LEFT, BOTTOM_LEFT, RIGHT): 0.1,
    QUARTERS: 0.4,
}
"""The layouts of mosaics, and how often each is drawn."""

SIDE = 224  # pixels
LEFT_OUT, UNKNOWN = "left out", "unknown"
UNCLEAR = "X"
"""First letter of the names of files whose origin is unclear, which are not used."""


@dataclass(frozen=True)
class Photo:
    """A photograph: its path below the folder of photographs, and the right nouns, the most specific first."""

    path: str
    nouns: tuple[str, ...]


@dataclass(frozen=True)
class Region:
    """A photograph in a box of a picture."""

    photo: Photo
    box: Box

    @property
    def noun(self) -> str:
        """Return the noun that captions use."""
        return self.photo.nouns[0]

    @property
    def quarters(self) -> frozenset[int]:
        """Return the quarters that the box covers, as indices into `QUARTERS`."""
        left, top, right, bottom = self.box
        return frozenset(i for i, (x, y, _, _) in enumerate(QUARTERS) if left <= x < right and top <= y < bottom)


@dataclass(frozen=True)
class Picture:
    """A picture of one or more regions. `seed` decides the random crops; without it, crops are central."""

    split: str
    regions: tuple[Region, ...]
    seed: int | None = None

    @property
    def boxes(self) -> tuple[Box, ...]:
        """Return the boxes of the regions."""
        return tuple(region.box for region in self.regions)


# ---- which pictures


def read_answers(tables: Path) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Return the class of each folder that trains one, and the right nouns of each folder, the class first."""
    with (tables / "classes.csv").open(encoding="utf-8", newline="") as file:
        classes = {row["folder"]: row["class"] for row in csv.DictReader(file)}
    classes = {folder: name for folder, name in classes.items() if name not in (LEFT_OUT, UNKNOWN)}
    nouns = {folder: (name,) for folder, name in classes.items()}
    for table in ("wild_labels.csv", "own_labels.csv"):
        with (tables / table).open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if row["answers"] != UNKNOWN:
                    nouns[row["folder"]] = tuple(dict.fromkeys(row["answers"].split("|")))
    return classes, nouns


def find_photos(root: Path, parts: Iterable[str], nouns: Mapping[str, tuple[str, ...]]) -> list[Photo]:
    """Return the photographs in ROOT/PART/FOLDER whose folder has a noun, in the order of their paths."""
    photos = []
    for part in parts:
        for folder in sorted((root / part).iterdir()):
            name = IMAGENETTE.get(folder.name, folder.name)
            if name in nouns:
                files = sorted(file.name for file in folder.iterdir() if is_image(file.name))
                photos += [
                    Photo(f"{part}/{folder.name}/{file}", nouns[name]) for file in files if not file.startswith(UNCLEAR)
                ]
    return photos


def by_noun(photos: Iterable[Photo]) -> dict[str, list[Photo]]:
    """Group photographs by their first noun."""
    groups: dict[str, list[Photo]] = {}
    for photo in photos:
        groups.setdefault(photo.nouns[0], []).append(photo)
    return groups


def single_pictures(split: str, photos: Sequence[Photo], limit: int, rng: random.Random) -> list[Picture]:
    """Return at most `limit` pictures of one photograph for each noun."""
    chosen = [photo for group in by_noun(photos).values() for photo in rng.sample(group, min(limit, len(group)))]
    return [Picture(split, (Region(photo, WHOLE),), _seed(split, rng)) for photo in chosen]


def mosaics(split: str, photos: Sequence[Photo], count: int, rng: random.Random) -> list[Picture]:
    """Return mosaics in which no noun is right for two photographs; every noun is drawn equally often."""
    groups = by_noun(photos)
    rounds = {noun: _endless(group, rng) for noun, group in groups.items()}
    names = _endless(sorted(groups), rng)
    pictures = []
    for _ in range(count):
        [boxes] = rng.choices([*LAYOUTS], [*LAYOUTS.values()])
        regions: list[Region] = []
        while len(regions) < len(boxes):
            photo = next(rounds[next(names)])
            if all({*photo.nouns}.isdisjoint(region.photo.nouns) for region in regions):
                regions.append(Region(photo, boxes[len(regions)]))
        pictures.append(Picture(split, tuple(regions), _seed(split, rng)))
    return pictures


def _endless(items: Sequence, rng: random.Random) -> Iterator:
    """Yield all items in random order, again and again."""
    while True:
        yield from rng.sample(items, len(items))


def _seed(split: str, rng: random.Random) -> int | None:
    """Return a seed for the crops of training pictures."""
    return rng.getrandbits(32) if split == "train" else None


# ---- how to draw one


def draw(picture: Picture, root: Path) -> Image.Image:
    """Return a picture of `SIDE` x `SIDE` pixels.

    A single photograph is squashed to a square. In mosaics, photographs are half cropped, half squashed to their box.
    """
    canvas, half = Image.new("RGB", (SIDE, SIDE)), SIDE // 2
    rng = None if picture.seed is None else random.Random(picture.seed)
    for region in picture.regions:
        left, top, right, bottom = (half * edge for edge in region.box)
        photo = decode(root / region.photo.path)
        shape = None if region.box == WHOLE else (right - left) / (bottom - top)
        photo = photo.crop(crop_box(photo.size, shape, rng))
        if rng is not None and rng.random() < 0.5:
            photo = photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        canvas.paste(photo.resize((right - left, bottom - top), Image.Resampling.BICUBIC), (left, top))
    return canvas


def crop_box(size: tuple[int, int], shape: float | None, rng: random.Random | None) -> tuple[int, int, int, int]:
    """Return the box in pixels to cut from a photograph of `size` (width, height): the largest central one, or random.

    Args:
        shape: width / height of the box that it is for; without it, the photograph's. The result's shape is the
            geometric mean of both.
        rng: draws the place, 70 to 100 % of the area, and a shape that differs by up to a third.
    """
    width, height = size
    ratio = width / height if shape is None else math.sqrt(shape * width / height)
    share = 1.0
    if rng is not None:
        ratio *= math.exp(rng.uniform(-0.3, 0.3))
        share = math.sqrt(rng.uniform(0.7, 1.0))
    w, h = (width, width / ratio) if width / height < ratio else (height * ratio, height)
    w, h = max(1, round(w * share)), max(1, round(h * share))
    x, y = (0.5, 0.5) if rng is None else (rng.random(), rng.random())
    left, top = round(x * (width - w)), round(y * (height - h))
    return left, top, left + w, top + h
