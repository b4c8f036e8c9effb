"""Measure the faithfulness of maps: insertion and deletion curves against two baselines, without retraining.

The baselines are random orders of the patches, and a map of the distance to the picture's centre, where photographers
put their subjects.

Petsiuk et al. 2018, "RISE: Randomized Input Sampling for Explanation of Black-box Models" (insertion and deletion);
Chefer, Gur and Wolf 2021, "Transformer Interpretability Beyond Attention Visualization" (positive and negative
perturbation). Patches are removed from the sequence instead of being replaced by grey squares, which the model has
never seen.

Shapes: B images, n = gh x gw patches, C classes, M maps, O orders, S steps, R random orders.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from vitviz.analysis.interventions import Drop
from vitviz.attribution.target_specs import Contrast, TargetLike, TargetOf, reads_features, resolve_target
from vitviz.attribution.targets import ExplainError, Scale, Target
from vitviz.evaluation import EvaluationError
from vitviz.evaluation.masking import MaskedModel, Progress, usual_baseline
from vitviz.fields import check_arguments
from vitviz.formatting import data_frame, percent, plain, short_repr
from vitviz.heatmap import Heatmap
from vitviz.model.vit import ViT
from vitviz.outputs import SEVERAL
from vitviz.phrases import Phrase, sentences

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Maps = Tensor | NDArray[np.floating[Any]] | Heatmap | Sequence[Heatmap | NDArray[np.floating[Any]]]
"""Scores of patches, (M, gh, gw) or a sequence of (gh, gw), or maps returned by attribution methods."""

RANDOM = 6
"""Default number of random orders. Each costs as much as one curve of a map."""
STEPS = 10
"""Default number of equal steps."""
DRAWN = 2**14
"""Number of patches of which orders are drawn; more patches get orders of their own."""
SEED = 0
"""Default seed of random orders and of the order of equal scores."""

RESULT = (
    "{0} the patches that this map ranks highest lowers the score of {1} faster than {2}; showing them first raises it "
    "faster than {3}."
)
CERTAIN = 0.05
"""Largest probability of passing by chance for which a map is called better than chance."""
BOTH = 0.05
"""Upper bound, as measured, of the probability that a random map beats `RANDOM` random orders in both curves
(docs/faithfulness.md)."""
BETTER = "This is better than chance: a random map beats {0} in both comparisons in about {1} of the tests."
BETTER_IN_ONE = "{0} is better than chance: a random map beats {1} in this comparison in {2} of the tests."
UNCERTAIN = (
    "This does not show that the map is better than chance: a random map beats {0} in one comparison in {1} of the "
    "tests, and in both in about {2}."
)
AT_CENTER = "A map of the distance to the picture's centre has the areas {0} and {1}."
UNLIKELY = 0.1  # below this probability of the whole image, deletion is not informative
DOUBT = "For the whole image, the probability of {0} is only {1}, so it cannot fall much."
NEGLIGIBLE = 1e-4  # below this probability of the whole image, the areas are zero in two decimals
NO_TEST = (
    "This test cannot judge the map: for the whole image, the probability of {0} is {1}, so removing patches cannot "
    "lower it noticeably. Choose a more probable class, or explain this class rather than another."
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Curve:
    """Probability of the target as patches are removed or shown in the order of a map.

    Args:
        kind: "deletion": patches with the highest scores are removed first. "insertion": they are shown first.
        fractions: (S,), increasing share of removed (deletion) or visible (insertion) patches.
        probabilities: (S,), probabilities of the target, or its readings on another scale.
        correct: (S,) bools, whether the target is predicted; false on another scale.
        random: (R, S), the probabilities for R random orders.
        center: (S,), the probabilities for the map of the picture's centre.
        random_correct: (R, S) bools.
        scale: scale of `probabilities`: probability, logit, cosine or value.
    """

    kind: Literal["deletion", "insertion"]
    fractions: Floats
    probabilities: Floats
    correct: NDArray[np.bool_]
    random: Floats
    center: Floats
    random_correct: NDArray[np.bool_]
    scale: Scale = "probability"

    __repr__ = short_repr

    @property
    def area(self) -> float:
        """Return the area under the probabilities, 0..1, or under the readings on another scale.

        Lower is better for deletion, higher for insertion.
        """
        return float(area(self.fractions, self.probabilities))

    @property
    def accuracy(self) -> float:
        """Return the area under `correct`, 0..1; NaN on another scale than probability."""
        return float(area(self.fractions, self.correct)) if self.scale == "probability" else math.nan

    @property
    def random_areas(self) -> Floats:
        """Return the areas of the random orders, (R,)."""
        return area(self.fractions, self.random)

    @property
    def random_area(self) -> float:
        """Return the mean area of the random orders."""
        return float(self.random_areas.mean())

    @property
    def random_accuracy(self) -> float:
        """Return the mean area under `random_correct`; NaN on another scale than probability."""
        return float(area(self.fractions, self.random_correct).mean()) if self.scale == "probability" else math.nan

    @property
    def center_area(self) -> float:
        """Return the area of the map of the picture's centre."""
        return float(area(self.fractions, self.center))

    @property
    def band(self) -> tuple[Floats, Floats]:
        """Return the lowest and the highest probability of the random orders at each step: 2 x (S,)."""
        return self.random.min(axis=0), self.random.max(axis=0)

    @property
    def gain(self) -> float:
        """Return the gain in area over random orders; positive is better for both kinds."""
        better = self.random_area - self.area
        return better if self.kind == "deletion" else -better

    @property
    def beaten(self) -> int:
        """Return the number of random orders that the map beats."""
        worse = self.random_areas > self.area if self.kind == "deletion" else self.random_areas < self.area
        return int(worse.sum())

    @property
    def beats_all(self) -> bool:
        """Return whether the map beats all random orders."""
        return self.beaten == len(self.random)

    def describe(self) -> str:
        """Return the areas as a phrase: "area 0.31 against 0.52 (0.47-0.58)", or "cosine area 0.31 ..."."""
        low, high = self.random_areas.min(), self.random_areas.max()
        area, chance, least, most = map(self.number, (self.area, self.random_area, low, high))
        kind = "area" if self.scale == "probability" else f"{self.scale}-area"
        return Phrase(kind, kind.replace("-", " ") + " {0} against {1} ({2}-{3})", area, chance, least, most)

    def number(self, area: float) -> str:
        """Format an area; two decimals for probabilities and cosines."""
        return f"{area:.2f}" if self.scale in ("probability", "cosine") else plain(area)


@dataclass(frozen=True, eq=False, kw_only=True)
class Faithfulness:
    """Insertion and deletion curves of one map, compared with random orders and with a map of the picture's centre.

    The same runs give positive and negative perturbation. Removing the most relevant patches first is deletion;
    removing the least relevant first uses the masks of insertion in reverse, so the areas are equal. A random order has
    the same area for insertion as its reverse for deletion, so `gain` is half the difference of the map's two areas.

    Args:
        deletion, insertion: the curves.
        baseline: replacement of removed patches; "remove" means none.
        target: display name of the target.
    """

    deletion: Curve
    insertion: Curve
    baseline: Drop
    target: str

    @property
    def scale(self) -> Scale:
        """Return the scale of the curves: probability, logit, cosine or value."""
        return self.deletion.scale

    def to_pandas(self) -> "pd.DataFrame":
        """Return both curves as a table with one row per step: kind, fraction, reading, correct, random, center.

        The column of the readings is named after their scale: probability, logit, cosine or value. "random" is the mean
        of the random orders, "center" the map of the picture's centre.

        Raises:
            MissingExtraError: if pandas is not installed.
        """
        curves = (self.deletion, self.insertion)
        return data_frame(
            {
                "kind": np.repeat([curve.kind for curve in curves], [len(curve.fractions) for curve in curves]),
                "fraction": np.concatenate([curve.fractions for curve in curves]),
                self.scale: np.concatenate([curve.probabilities for curve in curves]),
                "correct": np.concatenate([curve.correct for curve in curves]),
                "random": np.concatenate([curve.random.mean(axis=0) for curve in curves]),
                "center": np.concatenate([curve.center for curve in curves]),
            }
        )

    @property
    def n(self) -> int:
        """Return the number of random orders."""
        return len(self.deletion.random)

    @property
    def positive(self) -> float:
        """Return the area of accuracy, most relevant patches removed first, 0..1; lower is better (Chefer et al.)."""
        return self.deletion.accuracy

    @property
    def negative(self) -> float:
        """Return the area of accuracy, least relevant patches removed first, 0..1; higher is better."""
        return self.insertion.accuracy

    @property
    def gain(self) -> float:
        """Return the mean gain of deletion and insertion over random orders; 0 is chance level."""
        return (self.deletion.gain + self.insertion.gain) / 2

    @property
    def negligible(self) -> bool:
        """Return whether the probability of the whole image is too small for the test."""
        return self.scale == "probability" and float(self.deletion.probabilities[0]) < NEGLIGIBLE

    @property
    def verdict(self) -> "Verdict":
        """Return whether the map is better than chance, in a sentence with the probability of passing by chance."""
        if self.negligible:
            start = percent(float(self.deletion.probabilities[0]))
            return Verdict(False, Phrase("no-test", NO_TEST, self.target, start))
        return verdict(self.deletion.beats_all, self.insertion.beats_all, self.n)

    def describe(self) -> str:
        """Return the result in sentences: areas, what chance reaches, and what a map of the centre reaches.

        The last sentence says if the whole image has a low probability. If this probability is negligible, return only
        the reason why the test cannot judge the map.
        """
        if self.negligible:
            return self.verdict.words
        deletion, insertion, start = self.deletion, self.insertion, float(self.deletion.probabilities[0])
        removed = self.baseline == "remove"
        removing = Phrase("removing", "Removing") if removed else Phrase("covering", "Covering")
        curves = (
            Phrase("beaten-and-area", "{0}: {1}", _of(curve.beaten, self.n), curve.describe())
            for curve in (deletion, insertion)
        )
        centers = (curve.number(curve.center_area) for curve in (deletion, insertion))
        doubtful = self.scale == "probability" and start < UNLIKELY
        return sentences(
            Phrase("test-result", RESULT, removing, self.target, *curves),
            self.verdict.words,
            Phrase("test-center", AT_CENTER, *centers),
            Phrase("test-doubt", DOUBT, self.target, percent(start)) if doubtful else "",
        )


class Verdict(NamedTuple):
    """Result of comparing a map with random orders.

    Args:
        better: whether the map is better than chance in both curves together.
        words: sentence with the probabilities.
    """

    better: bool
    words: str


def chance_in_one(orders: int) -> float:
    """Return the probability that a random map beats all random orders in one of the two curves, chosen beforehand.

    The map and the orders are equally likely to have the best area.
    """
    return 1 / (orders + 1)


def chance_in_both(orders: int) -> float:
    """Return an upper bound of the probability that a random map beats all random orders in both curves.

    With u and v the ranks of the map's two areas in 0..1, the probability is the mean of max(u - v, 0) ** orders. It is
    largest, 1 / (2 (orders + 1)), if one area determines the other: v = 1 - u. From `RANDOM` orders, the measured
    probability is returned if it is smaller, because the probability falls with the number of orders.
    """
    bound = chance_in_one(orders) / 2
    return min(bound, BOTH) if orders >= RANDOM else bound


def verdict(deletion: bool, insertion: bool, orders: int) -> Verdict:
    """Return whether a map is better than chance: at most `CERTAIN` of random maps reach the same result.

    Args:
        deletion, insertion: whether the map beats all random orders in these curves.
        orders: number of random orders.
    """
    everyone, one, both = _of(orders, orders), chance_in_one(orders), chance_in_both(orders)
    in_one, in_both = f"{100 * one:.2g} %", f"{100 * both:.2g} %"
    if deletion and insertion and both <= CERTAIN:
        return Verdict(True, Phrase("better", BETTER, everyone, in_both))
    if deletion != insertion and one <= CERTAIN:
        kind = "Deletion" if deletion else "Insertion"
        return Verdict(False, Phrase("better-in-one", BETTER_IN_ONE, kind, everyone, in_one))
    return Verdict(False, Phrase("uncertain", UNCERTAIN, everyone, in_one, in_both))


@check_arguments(EvaluationError)
def faithfulness(
    model: ViT,
    images: Tensor,
    maps: Maps,
    target: TargetLike = None,
    *,
    contrast: Contrast | None = None,
    baseline: Drop | None = None,
    steps: int | Sequence[float] = STEPS,
    random: int = RANDOM,
    seed: int = SEED,
    progress: Progress | None = None,
) -> tuple[Faithfulness, ...]:
    """Compute insertion and deletion curves of maps, of random orders and of a map of the centre, in one batch.

    The curves show the target's probability, logit, cosine or value (see `Target.reading`), even if another class
    becomes more probable. With ten steps, a curve costs 4.5 forward passes if patches are removed, and 9 if they are
    painted over.

    Args:
        model: model in eval mode; not changed.
        images: (B, channels, H, W) normalised pixels.
        maps: patch scores (M, gh, gw) or the result of `attribute`: one map per image, or several maps of one image,
            which share the random orders.
        target: a class, as index or label, or another target (see `resolve_target`): one for all images, or one per
            image. By default, the target that the maps explain, or the predicted class if they explain none.
        contrast: (A, B) instead of `target`: the probability of A among the two, or for values (regression) their
            difference.
        baseline: "remove" removes patches from the sequence; "blur", "mean", "zero" and "black" paint over them. The
            default is "remove", or "blur" for windowed models.
        steps: number of equal steps, or the visible share of patches at each step. If a model pools only patches, one
            patch always stays visible.
        random: number of random orders, at least one.
        seed: seed of the random orders and of the order of equal scores (see `rank_patches`).
        progress: called with (completed, total) masked images.

    Returns:
        One result per map, in order.

    Raises:
        EvaluationError: if maps do not fit the images, maps or logits are not finite, or for a contrast in a model with
            several labels per image.
        AnalysisError: as for `MaskedModel`.
        ExplainError: if a target does not exist, or the maps explain different targets and there is no target.
    """
    if random < 1:
        raise EvaluationError(f"Expected at least one random order to compare with, got {random}. Try {RANDOM}.")
    if target is None and contrast is None:
        target, contrast = _explained(maps, len(images))
    features = reads_features(model, target)
    baseline = baseline or usual_baseline(model)
    masked = MaskedModel(model, images, baseline, features=features)
    scores, image = flat_maps(maps, masked)  # (M, n), (M,)
    counts = visible_counts(masked.patches, steps, masked.least)  # S decreasing numbers
    order = rank_patches(scores, seed)
    center = rank_patches(center_map(masked.grid).reshape(1, -1), seed)  # (1, n)
    batch, many, shared = len(masked.images), len(scores), random + 2
    # Insertion shows the first patches of the order; deletion shows the first of the reversed order.
    chance = torch.cat([random_orders(masked.patches, random, seed), center, center.flip(1)])  # (R + 2, n)
    orders = torch.cat([order, order.flip(1), chance.repeat(batch, 1)])
    image_of = torch.cat([image, image, torch.arange(batch).repeat_interleave(shared)])  # (2 M + B (R + 2),)
    visible = first_patches(orders, counts).flatten(0, 1)  # (2 M + B (R + 2), S, n) -> (rows, n)
    outputs = masked.outputs(visible, image_of.repeat_interleave(len(counts)), progress)  # (rows, C) or (rows, F)
    first_rows = [int((image_of == index).nonzero()[0]) * len(counts) for index in range(batch)]
    whole = None if features else outputs[first_rows]  # logits of the whole images: (B, C)
    targets = resolve_target(model, whole, target, contrast, batch)
    assert targets is not None  # MaskedModel checked that there is a classifier
    if targets.kind == "contrast" and model.problem_type == SEVERAL:
        raise EvaluationError(
            "Expected one label to test with a model of several labels, got a contrast of two. Test each separately."
        )
    row_targets, scale = targets.select(image_of).repeat(len(counts)), targets.reading_scale
    steps_shape = (-1, len(counts))
    probabilities = row_targets.reading(outputs).unflatten(0, steps_shape).numpy()  # (2 M + B (R + 2), S)
    correct = row_targets.predicted(outputs).unflatten(0, steps_shape).numpy()  # (2 M + B (R + 2), S)
    shares = np.array(counts) / masked.patches
    results = []
    for inserted, index in enumerate(image.tolist()):
        start = 2 * many + index * shared
        deleted, drawn, (shown, hidden) = (
            many + inserted,
            slice(start, start + random),
            (start + random, start + random + 1),
        )
        deletion = Curve(
            kind="deletion", fractions=1.0 - shares, probabilities=probabilities[deleted], correct=correct[deleted],
            random=probabilities[drawn], random_correct=correct[drawn], center=probabilities[hidden], scale=scale,
        )  # fmt: skip
        insertion = Curve(
            kind="insertion", fractions=shares[::-1], probabilities=probabilities[inserted, ::-1],
            correct=correct[inserted, ::-1], random=probabilities[drawn, ::-1],
            random_correct=correct[drawn, ::-1], center=probabilities[shown, ::-1], scale=scale,
        )  # fmt: skip
        name = targets.names[index]
        results.append(Faithfulness(deletion=deletion, insertion=insertion, baseline=baseline, target=name))
    return tuple(results)


def curve_passes(
    maps: int,
    patches: int,
    *,
    baseline: Drop = "remove",
    steps: int | Sequence[float] = STEPS,
    random: int = RANDOM,
    **others: Any,
) -> float:
    """Estimate the forward passes of `faithfulness` for one image with these options."""
    counts = visible_counts(patches, steps, 0)
    passes_per_curve = sum(counts[1:-1]) / patches if baseline == "remove" else len(counts) - 2
    return (2 * maps + random + 2) * passes_per_curve + 1


def _explained(maps: Maps, images: int) -> tuple[TargetLike, Contrast | None]:
    """Return the target of the maps (or one for each image), and their contrast; one or both are `None`."""
    sequence: Iterable[Any] = [maps] if isinstance(maps, Heatmap) else maps
    explained = [heatmap.explained for heatmap in sequence if isinstance(heatmap, Heatmap)]
    different = [*dict.fromkeys(target for target in explained if target is not None)]
    if len(different) > 1:
        if images > 1 and not any(target is None or isinstance(target, tuple) for target in explained):
            return cast(list[TargetOf], explained), None
        named = ", ".join(f"{target!s:.60}" for target in different)
        raise ExplainError(f"Expected maps of one target, got different ones: {named}. Test each, or pass a target.")
    for target in different:
        return (None, target) if isinstance(target, tuple) else (target, None)
    return None, None


def flat_maps(maps: Maps, masked: MaskedModel) -> tuple[Tensor, Tensor]:
    """Return maps (M, gh, gw) as scores (M, n), float64 on the CPU, and the image of each (M,).

    In windowed models, a map of an earlier stage is averaged over each patch of the last one; tensors are
    not.

    Raises:
        EvaluationError: if maps do not fit the images or are not finite.
    """
    if isinstance(maps, Tensor):
        scores = maps.detach().cpu().double()
    else:
        sequence: Iterable[Any] = [maps] if isinstance(maps, Heatmap) else maps
        arrays = [_averaged(np.asarray(patch_scores, np.float64), masked.grid) for patch_scores in sequence]
        scores = torch.from_numpy(np.stack(arrays)) if len({array.shape for array in arrays}) == 1 else torch.empty(0)
    batch = len(masked.images)
    if scores.ndim != 3 or scores.shape[1:] != masked.grid or not len(scores) or batch not in (1, len(scores)):
        raise EvaluationError(
            f"Expected maps of shape (maps, {masked.grid[0]}, {masked.grid[1]}), one for each of the {batch} images or "
            f"several of one image, got {tuple(scores.shape)}. Test such images separately."
        )
    if not bool(scores.isfinite().all()):
        raise EvaluationError("Expected finite scores to order patches by, got NaN or infinity. Check the method.")
    image = torch.arange(len(scores)) if batch > 1 else torch.zeros(len(scores), dtype=torch.long)
    return scores.flatten(1), image  # (M, gh, gw) -> (M, n)


def _averaged(scores: Floats, grid: tuple[int, int]) -> Floats:
    """Return the mean of patch scores (gh, gw) in each patch of a coarser grid, if its patches consist of theirs."""
    if scores.ndim != 2 or scores.shape[0] % grid[0] or scores.shape[1] % grid[1]:
        return scores
    return np.asarray(scores.reshape(grid[0], scores.shape[0] // grid[0], grid[1], -1).mean(axis=(1, 3)))


def target_of_images(model: ViT, images: Tensor, target: TargetLike) -> Target | None:
    """Return the given target or each image's predicted class; `None` with neither a target nor a classifier."""
    with torch.no_grad():
        predicted = target is None and model.head is not None
        return resolve_target(model, model(images) if predicted else None, target, batch=len(images))


def _of(beaten: int, count: int) -> str:
    """Return the number of beaten random orders as text."""
    orders = "random order" if count == 1 else "random orders"
    if beaten == count:
        return f"the {orders}" if count == 1 else Phrase("all-random-orders", "all {0} random orders", count)
    some = beaten or Phrase("none", "none")
    return Phrase("some-random-orders", f"{{0}} of {{1}} {orders}", some, count)


def rank_patches(scores: Tensor, seed: int = 0) -> Tensor:
    """Return patch indices by decreasing score: (M, n) -> (M, n). Signed maps end with the opposing patches.

    Equal scores get a random order that depends only on `seed`, so a constant map is at chance level.
    """
    ties = tie_order(scores.shape[1], seed)  # (n,)
    return ties[scores[:, ties].argsort(dim=1, descending=True, stable=True)]


def tie_order(patches: int, seed: int) -> Tensor:
    """Return the random order of equal scores, (n,)."""
    return random_orders(patches, 1, seed, salt=1)[0]


def random_orders(patches: int, count: int, seed: int, salt: int = 0) -> Tensor:
    """Return random orders of the patches, (count, n), reproducible on every machine.

    Orders of fewer patches are the same ones without the other patches, which a static site does instead of drawing.
    """
    generator = torch.Generator().manual_seed((2 * seed + salt) % 2**63)
    drawn = torch.stack([torch.randperm(max(patches, DRAWN), generator=generator) for _ in range(count)])
    return drawn[drawn < patches].reshape(count, patches)


def center_map(grid: tuple[int, int]) -> Tensor:
    """Return minus four times the squared distance of each patch to the picture's centre, in patches: (gh, gw)."""
    rows, columns = (2.0 * torch.arange(side, dtype=torch.float64) + 1.0 - side for side in grid)
    return -(rows[:, None] ** 2 + columns**2)


def visible_counts(patches: int, steps: int | Sequence[float], least: int) -> list[int]:
    """Return the number of visible patches at each step, decreasing from n to `least`.

    Args:
        patches, least: largest and smallest number.
        steps: number of equal steps, or shares of visible patches, 0..1. Both ends are always included.
    """
    shares = list(steps) if not isinstance(steps, int) else [index / steps for index in range(steps + 1) if steps > 0]
    if not shares or not all(0.0 <= share <= 1.0 for share in shares):  # also rejects NaN
        raise EvaluationError(f"Expected steps as a number of at least 1 or as shares 0..1, got {steps!r}. Try 10.")
    counts = {max(least, round(share * patches)) for share in [0.0, 1.0, *shares]}
    return sorted(counts, reverse=True)


def first_patches(orders: Tensor, counts: Sequence[int]) -> Tensor:
    """Return masks of the first patches of each order for each count: (O, n), S counts -> (O, S, n) bools."""
    place = orders.argsort(dim=1)  # (O, n): position of each patch in the order
    return place[:, None] < torch.tensor(counts)[None, :, None]  # (O, 1, n) < (1, S, 1)


def area(fractions: Floats, values: ArrayLike) -> Floats:
    """Return the mean height of curves, by the trapezoid rule over the range of x: (..., S) -> (...)."""
    y = np.asarray(values, np.float64)
    width = fractions[-1] - fractions[0]
    if width == 0:  # a single patch, which cannot be removed: the curve is a point
        return np.asarray(y[..., 0])
    return np.asarray(((y[..., 1:] + y[..., :-1]) / 2 * np.diff(fractions)).sum(-1) / width)
