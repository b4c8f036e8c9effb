"""Define the tasks of the arena: images whose evidence is known, and measures of maps.

Shapes: H x W pixels of the model's input, gh x gw patches.
"""

import copy
import zlib
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitviz.attribution.registry import METHODS
from vitviz.evaluation import EvaluationError
from vitviz.evaluation.best_order import best_maps
from vitviz.evaluation.evaluate import removal
from vitviz.evaluation.faithfulness import faithfulness
from vitviz.evaluation.hand_set import hand_set, picture
from vitviz.evaluation.localization import mass, pointing_game
from vitviz.evaluation.photographs import Photographs, predicted
from vitviz.evaluation.records import Record
from vitviz.evaluation.runs import CHANCE, Floats, Maps, Measure, Stage, Subject
from vitviz.evaluation.sanity import model_parts, randomize
from vitviz.evaluation.sensitivity import order_consistency, spearman
from vitviz.evaluation.shortcuts import MARKS, features_of, fit, mark, with_head
from vitviz.images.geometry import Geometry
from vitviz.model.vit import ViT

MOSAICS, HAND_SET, BEST, CONSISTENCY, CHECKS = "mosaics", "hand-set", "best", "consistency", "checks"
LOCATED = (MOSAICS, *MARKS, HAND_SET)
"""Tasks whose evidence is known."""
GREEDY = "greedy"
"""Name of the rows of the best orders found by removing greedily."""
SEEN = 0.01
"""Smallest probability of the class of a mosaic."""
FITTED = 96
"""Maximum number of photographs on which a linear head is fitted."""
DRAWN = 20
"""Number of pictures of the ViT whose weights are set by hand."""


def drawing(seed: int, *words: str) -> np.random.Generator:
    """Return a random number generator that depends only on a seed and words."""
    return np.random.default_rng([seed, *(zlib.crc32(word.encode(errors="surrogateescape")) for word in words)])


def photographs(photos: Photographs, heads: "Heads | None") -> Stage:
    """Return the stage of photographs as they are; without `heads`, no models are changed."""
    measures = [removal(photos.settings), _best(photos), _consistency(photos)]
    return photos.stage(measures if heads is None else [*measures, _checks(photos, heads)])


def mosaics(photos: Photographs, classes: Sequence[int]) -> Stage:
    """Return the stage of 2 x 2 mosaics: one photograph in a quarter, and one of another class in the other three.

    A mosaic is kept if the model sees the first class in it (a probability of at least `SEEN`), and replacing its
    quarter by the other photograph at least halves this probability.

    Args:
        photos: photographs.
        classes: class of each photograph.

    Raises:
        EvaluationError: if all photographs are of one class.
    """
    model, seed = photos.model, photos.settings["seed"]
    if len({*classes}) < 2:
        raise EvaluationError("Expected photographs of two classes for mosaics, got one class. Add photographs.")
    class_of = dict(zip(photos.keys, classes, strict=True))
    pairs = {}
    for key, own in class_of.items():
        others = [other for other in class_of if class_of[other] != own]
        other = others[drawing(seed, MOSAICS, key).integers(len(others))]
        pairs[f"{key} | {other}"] = key, other

    def subjects(keys: Sequence[str]) -> Iterator[Subject]:
        for key in keys:
            (first, _), (second, _) = photos.pixels(pairs[key])
            quarter = int(drawing(seed, MOSAICS, key).integers(4))
            target = class_of[pairs[key][0]]
            images, evidence = compose(model, first, second, quarter)
            without, _ = compose(model, second, second, quarter)
            shown, hidden = (_probability(model, each, target) for each in (images, without))
            kept, options = shown >= SEEN and hidden <= shown / 2, photos.settings["options"]
            yield Subject(
                key=key, model=model, images=images, target=target, evidence=evidence, kept=kept, options=options
            )

    return Stage(keys=[*pairs], subjects=subjects, measures=[_located(MOSAICS)])


def compose(model: ViT, first: Tensor, second: Tensor, quarter: int) -> tuple[Tensor, NDArray[np.bool_]]:
    """Return a mosaic of two photographs (1, C, H, W), and the pixels of the quarter with the first one (H, W).

    The quarters meet at the edge of a patch near the middle.
    """
    height, width = first.shape[2:]
    rows, columns = model.check(first)
    down, across = rows // 2 * height // rows, columns // 2 * width // columns
    mosaic, pixels = torch.empty_like(first), np.zeros((height, width), bool)
    for index in range(4):
        y, x = ((slice(0, down), slice(down, height))[index // 2], (slice(0, across), slice(across, width))[index % 2])
        size = y.stop - y.start, x.stop - x.start
        of = first if index == quarter else second
        mosaic[:, :, y, x] = F.interpolate(of, size, mode="bilinear", antialias=True)
        pixels[y, x] = index == quarter
    return mosaic, pixels


class Heads:
    """Linear heads on the model's frozen features; the features of photographs are computed once.

    The photographs are drawn from all of the folder. Heads are fitted on the first half of them, at most `FITTED`, and
    the others are measured.

    Args:
        photos: all photographs of the folder.

    Attributes:
        others: names of the photographs on which no head is fitted.
    """

    def __init__(self, photos: Photographs) -> None:
        self.photos, self.seed = photos, photos.settings["seed"]
        keys = [photos.keys[index] for index in drawing(self.seed, "heads").permutation(len(photos.keys))]
        count = min(FITTED, len(keys) // 2)
        self.fitted, self.others = keys[:count], keys[count:]
        if count < 2:
            raise EvaluationError(
                f"Expected at least 4 photographs to fit a linear head, got {len(keys)}. Add photographs."
            )
        self.mark = cache(self._mark)
        self.shuffled = cache(self._shuffled)
        self._plain = cache(lambda: features_of(photos.model, (images for images, _ in photos.pixels(self.fitted))))

    def marked(self, kind: str, key: str, images: Tensor) -> tuple[Tensor, NDArray[np.bool_]]:
        """Return a photograph with a mark, and the marked pixels (H, W)."""
        return mark(kind, images, self.photos.model.config.patch_size, drawing(self.seed, kind, key))

    def _mark(self, kind: str) -> ViT:
        """Return the model with a head that tells photographs with a mark from those without."""
        marked, count = self.fitted[::2], len(self.fitted)
        pixels = zip(marked, self.photos.pixels(marked), strict=True)
        with_mark = features_of(self.photos.model, (self.marked(kind, key, images)[0] for key, (images, _) in pixels))
        features = torch.cat([with_mark, self._plain()[1::2]])
        classes = torch.arange(count) < len(marked)
        return with_head(self.photos.model, *fit(features, classes.long()))

    def _shuffled(self) -> ViT:
        """Return the model with a head that was fitted on random labels."""
        classes = torch.from_numpy(drawing(self.seed, "labels").permutation(len(self.fitted)) % 2)
        return with_head(self.photos.model, *fit(self._plain(), classes))


def planted(heads: Heads, kind: str, limit: int) -> Stage:
    """Return the stage of photographs with a mark, for a model with a head that answers by this mark.

    A photograph is kept if the head finds the mark, and removing the mark changes the answer.
    """
    photos, keys = heads.photos, heads.others[:limit]

    def subjects(keys: Sequence[str]) -> Iterator[Subject]:
        model = heads.mark(kind)
        for key, (images, _) in zip(keys, photos.pixels(keys), strict=True):
            pixels, evidence = heads.marked(kind, key, images)
            kept = predicted(model, pixels) == 1 and predicted(model, images) == 0
            options = photos.settings["options"]
            yield Subject(key=key, model=model, images=pixels, target=1, evidence=evidence, kept=kept, options=options)

    return Stage(keys=keys, subjects=subjects, measures=[_located(kind)])


def drawn(photos: Photographs) -> Stage:
    """Return the stage of pictures for the ViT whose weights are set by hand, which does not read photographs."""
    model, seed = hand_set(), photos.settings["seed"]

    def subjects(keys: Sequence[str]) -> Iterator[Subject]:
        for key in keys:
            images, evidence = picture(drawing(seed, HAND_SET, key))
            yield Subject(
                key=key, model=model, images=images, target=0, evidence=evidence, options=photos.settings["options"]
            )

    return Stage(keys=[str(index) for index in range(DRAWN)], subjects=subjects, measures=[_located(HAND_SET)])


def _located(task: str) -> Measure:
    """Return the measure of how much of a map lies on the known evidence."""

    def rows(subject: Subject, maps: Maps, others: Sequence[str]) -> Iterator[Record]:
        assert subject.evidence is not None
        height, width = subject.evidence.shape
        geometry = Geometry((width, height), (height, width), (0.0, 0.0, float(width), float(height)))
        for name, values in maps.items():
            points = pointing_game(values, geometry, subject.evidence)
            yield {"method": name, "mass": mass(values, geometry, subject.evidence), "pointing": float(points)}
        share = float(subject.evidence.mean())
        yield from ({"method": name, "mass": share, "pointing": share, "kept": subject.kept} for name in others)

    return Measure(task=task, rows=rows, others=(CHANCE,))


def _best(photos: Photographs) -> Measure:
    """Return the areas of the best orders found by removing greedily."""
    settings = photos.settings

    def rows(subject: Subject, _: Maps, others: Sequence[str]) -> Iterator[Record]:
        model, images, target = subject.model, subject.images, subject.target
        baseline = settings["baseline"]
        maps = best_maps(model, images, target, baseline)
        first, second = faithfulness(model, images, maps, target, baseline=baseline, steps=settings["steps"], random=1)
        for name in others:
            yield {"method": name, "deletion": first.deletion.area, "insertion": second.insertion.area}

    return Measure(task=BEST, rows=rows, others=(GREEDY,), of_methods=False)


def _consistency(photos: Photographs) -> Measure:
    def rows(subject: Subject, maps: Maps, _: Sequence[str]) -> Iterator[Record]:
        baseline = photos.settings["baseline"]
        numbers = order_consistency(subject.model, subject.images, [*maps.values()], subject.target, baseline=baseline)
        yield from ({"method": name, "consistency": value} for name, value in zip(maps, numbers.tolist(), strict=True))

    return Measure(task=CONSISTENCY, rows=rows)


def _checks(photos: Photographs, heads: Heads) -> Measure:
    """Return rank correlations of maps with those of random weights, of random labels, and of another seed."""
    seed = photos.settings["seed"]
    random_weights = cache(lambda: _randomized(photos.model, seed))

    def rows(subject: Subject, maps: Maps, _: Sequence[str]) -> Iterator[Record]:
        for name, values in maps.items():
            others = {
                "weights": subject.map_of(random_weights(), name),
                "labels": subject.map_of(heads.shuffled(), name, 1),
            }
            if "seed" in METHODS[name].options:
                others["seeds"] = subject.map_of(subject.model, name, seed=METHODS[name].options["seed"] + 1)
            yield {"method": name, **{kind: _correlation(values, other) for kind, other in others.items()}}

    return Measure(task=CHECKS, rows=rows)


def _randomized(model: ViT, seed: int) -> ViT:
    """Return a copy of the model with random weights."""
    changed = copy.deepcopy(model)
    for index, weights in enumerate(model_parts(changed).values()):
        randomize(weights, seed + index)
    return changed


def _correlation(first: Floats, second: Floats) -> float | None:
    """Return the rank correlation of two maps; `None` if one is constant."""
    value = float(spearman(*(torch.from_numpy(each).reshape(1, -1) for each in (first, second))))
    return value if np.isfinite(value) else None


@torch.no_grad()
def _probability(model: ViT, images: Tensor, target: int) -> float:
    return float(model(images.to(next(model.parameters()))).softmax(1)[0, target])
