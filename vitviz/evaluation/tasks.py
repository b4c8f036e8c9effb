"""Define the tasks of the arena: images whose evidence is known, and measures of attribution maps.

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
from vitviz.evaluation.sensitivity import order_consistency
from vitviz.evaluation.shortcuts import MARKS, features_of, fit, mark, with_head
from vitviz.images.geometry import Geometry
from vitviz.model.correlation import spearman
from vitviz.model.vit import ViT

MOSAICS = "mosaics"
"""Task: localization in 2 x 2 mosaics of photographs."""
HAND_SET = "hand-set"
"""Task: localization for the ViT whose weights are set by hand."""
BEST = "best"
"""Task: deletion and insertion AUC of the best orders that a greedy search finds."""
CONSISTENCY = "consistency"
"""Task: order consistency (SaCo)."""
CHECKS = "checks"
"""Task: sanity checks with random weights, random labels and another seed."""
LOCATED = (MOSAICS, *MARKS, HAND_SET)
"""Localization tasks, whose evidence is known; the marks are those of `vitviz.evaluation.shortcuts`."""
GREEDY = "greedy"
"""Name of the rows of the greedy search, in place of a method."""
MIN_PROBABILITY = 0.01
"""Minimum probability of the class in a mosaic that is used."""
MAX_FITTED = 96
"""Maximum number of photographs to which a linear probe is fitted."""
HAND_SET_PICTURES = 20
"""Number of pictures for the ViT whose weights are set by hand."""


def seeded(seed: int, *names: str) -> np.random.Generator:
    """Return a random number generator that is seeded with a number and names, such as those of a task and an image."""
    return np.random.default_rng([seed, *(zlib.crc32(name.encode(errors="surrogateescape")) for name in names)])


def plain_photographs(photos: Photographs, probes: "LinearProbes | None") -> Stage:
    """Return the stage of unchanged photographs; without `probes`, there are no sanity checks."""
    measures = [removal(photos.settings), _best(photos), _consistency(photos)]
    return photos.stage(measures if probes is None else [*measures, _checks(photos, probes)])


def mosaics(photos: Photographs, classes: Sequence[int]) -> Stage:
    """Return the stage of 2 x 2 mosaics: a photograph in one quarter, and one of another class in the other three.

    A mosaic is used only if the first class has a probability of at least `MIN_PROBABILITY`, and replacing its quarter
    by the other photograph at least halves this probability.

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
        other = others[seeded(seed, MOSAICS, key).integers(len(others))]
        pairs[f"{key} | {other}"] = key, other

    def subjects(keys: Sequence[str]) -> Iterator[Subject]:
        for key in keys:
            (first, _), (second, _) = photos.pixels(pairs[key])
            quarter = int(seeded(seed, MOSAICS, key).integers(4))
            target = class_of[pairs[key][0]]
            images, evidence = compose(model, first, second, quarter)
            without, _ = compose(model, second, second, quarter)
            shown, hidden = (_probability(model, each, target) for each in (images, without))
            kept = shown >= MIN_PROBABILITY and hidden <= shown / 2
            yield photos.subject(key, images, target, evidence=evidence, kept=kept)

    return Stage(keys=[*pairs], subjects=subjects, measures=[_localization(MOSAICS)])


def compose(model: ViT, first: Tensor, second: Tensor, quarter: int) -> tuple[Tensor, NDArray[np.bool_]]:
    """Return a mosaic of two photographs, (1, C, H, W), and which pixels show the first one, (H, W).

    The quarters meet near the middle, at the edge of a patch.

    Args:
        model: the model that reads the mosaic.
        first, second: (1, C, H, W) normalised pixels.
        quarter: place of the first photograph, 0 to 3 in reading order.
    """
    height, width = first.shape[2:]
    rows, columns = model.check(first)
    down, across = rows // 2 * height // rows, columns // 2 * width // columns
    mosaic, pixels = torch.empty_like(first), np.zeros((height, width), bool)
    for index in range(4):
        y, x = ((slice(0, down), slice(down, height))[index // 2], (slice(0, across), slice(across, width))[index % 2])
        size = y.stop - y.start, x.stop - x.start
        source = first if index == quarter else second
        mosaic[:, :, y, x] = F.interpolate(source, size, mode="bilinear", antialias=True)
        pixels[y, x] = index == quarter
    return mosaic, pixels


class LinearProbes:
    """Linear probes on the model's frozen features, each fitted on first use.

    Half of the photographs, at most `MAX_FITTED`, are chosen at random to fit the probes; the others are for tests.

    Args:
        photos: all photographs of the folder.

    Attributes:
        fitted: keys of the photographs to which probes are fitted.
        others: keys of all other photographs.
    """

    def __init__(self, photos: Photographs) -> None:
        self.photos, self.seed = photos, photos.settings["seed"]
        keys = [photos.keys[index] for index in seeded(self.seed, "heads").permutation(len(photos.keys))]
        count = min(MAX_FITTED, len(keys) // 2)
        self.fitted, self.others = keys[:count], keys[count:]
        if count < 2:
            raise EvaluationError(
                f"Expected at least 4 photographs to fit a linear probe, got {len(keys)}. Add photographs."
            )
        self.mark = cache(self._mark)
        self.shuffled = cache(self._shuffled)
        self._plain = cache(lambda: features_of(photos.model, (images for images, _ in photos.pixels(self.fitted))))

    def marked(self, kind: str, key: str, images: Tensor) -> tuple[Tensor, NDArray[np.bool_]]:
        """Add a mark to the photograph `key`, (1, C, H, W); return the result and which pixels are marked, (H, W)."""
        return mark(kind, images, self.photos.model.config.patch_size, seeded(self.seed, kind, key))

    def _mark(self, kind: str) -> ViT:
        """Return the model with a probe that tells photographs with a mark (class 1) from those without (class 0)."""
        marked, count = self.fitted[::2], len(self.fitted)
        pixels = zip(marked, self.photos.pixels(marked), strict=True)
        with_mark = features_of(self.photos.model, (self.marked(kind, key, images)[0] for key, (images, _) in pixels))
        features = torch.cat([with_mark, self._plain()[1::2]])
        classes = torch.arange(count) < len(marked)
        return with_head(self.photos.model, *fit(features, classes.long()))

    def _shuffled(self) -> ViT:
        """Return the model with a probe that is fitted to random labels."""
        classes = torch.from_numpy(seeded(self.seed, "labels").permutation(len(self.fitted)) % 2)
        return with_head(self.photos.model, *fit(self._plain(), classes))


def marked_photographs(probes: LinearProbes, kind: str, limit: int) -> Stage:
    """Return the stage of photographs with a mark, for the model with a probe that detects this mark.

    A photograph is used only if the probe detects the mark, and does not detect one in the photograph without it.
    """
    photos, keys = probes.photos, probes.others[:limit]

    def subjects(keys: Sequence[str]) -> Iterator[Subject]:
        model = probes.mark(kind)
        for key, (images, _) in zip(keys, photos.pixels(keys), strict=True):
            pixels, evidence = probes.marked(kind, key, images)
            kept = predicted(model, pixels) == 1 and predicted(model, images) == 0
            yield photos.subject(key, pixels, 1, model=model, evidence=evidence, kept=kept)

    return Stage(keys=keys, subjects=subjects, measures=[_localization(kind)])


def hand_set_pictures(photos: Photographs) -> Stage:
    """Return the stage of generated pictures for the ViT whose weights are set by hand."""
    model, seed = hand_set(), photos.settings["seed"]

    def subjects(keys: Sequence[str]) -> Iterator[Subject]:
        for key in keys:
            images, evidence = picture(seeded(seed, HAND_SET, key))
            yield photos.subject(key, images, 0, model=model, evidence=evidence)

    keys = [*map(str, range(HAND_SET_PICTURES))]
    return Stage(keys=keys, subjects=subjects, measures=[_localization(HAND_SET)])


def _localization(task: str) -> Measure:
    """Return the measure of localization: the mass of a map on the known evidence, and the pointing game."""

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
    """Return the measure of the deletion and insertion AUC of greedy orders."""
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
    """Return the measure of order consistency (SaCo)."""

    def rows(subject: Subject, maps: Maps, _: Sequence[str]) -> Iterator[Record]:
        baseline = photos.settings["baseline"]
        numbers = order_consistency(subject.model, subject.images, [*maps.values()], subject.target, baseline=baseline)
        yield from ({"method": name, "consistency": value} for name, value in zip(maps, numbers.tolist(), strict=True))

    return Measure(task=CONSISTENCY, rows=rows)


def _checks(photos: Photographs, probes: LinearProbes) -> Measure:
    """Return the measure of rank correlations of maps with those of random weights, random labels and another seed."""
    seed = photos.settings["seed"]
    random_weights = cache(lambda: _randomized(photos.model, seed))

    def rows(subject: Subject, maps: Maps, _: Sequence[str]) -> Iterator[Record]:
        for name, values in maps.items():
            others = {
                "weights": subject.map_of(random_weights(), name),
                "labels": subject.map_of(probes.shuffled(), name, 1),
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
    """Return Spearman's rank correlation of two maps; `None` if one is constant."""
    value = float(spearman(*(torch.from_numpy(each).reshape(1, -1) for each in (first, second))))
    return value if np.isfinite(value) else None


@torch.no_grad()
def _probability(model: ViT, images: Tensor, target: int) -> float:
    return float(model(images.to(next(model.parameters()))).softmax(1)[0, target])
