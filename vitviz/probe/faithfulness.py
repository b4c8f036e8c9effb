"""Is a heatmap true? Take away the patches that it names, and see whether the answer goes.

Petsiuk et al. 2018, "RISE: Randomized Input Sampling for Explanation of Black-box Models" (insertion and deletion);
Chefer, Gur and Wolf 2021, "Transformer Interpretability Beyond Attention Visualization" (positive and negative
perturbation). A patch can really be taken away from a Vision Transformer: the sequence gets shorter, and no black or
grey square is shown that the model has never seen.

Shapes: B images, n = gh x gw patches, C classes, M maps, S steps, R random orders.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitviz.explain.case import Named, Target, class_name, resolve_target
from vitviz.explain.scores import TokenScores
from vitviz.model import ViT
from vitviz.probe import ProbeError
from vitviz.probe.curves import Curve, Parts, Progress, counts_of, firsts, is_right, probabilities, ranked, shuffled
from vitviz.probe.intervene import Drop

Maps = Tensor | np.ndarray[Any, Any] | TokenScores | Sequence[TokenScores]

RANDOM = 6
"""How many random orders a map is held against. Each costs as much as one curve of the map itself."""

UNLIKELY = 0.1  # below this probability of the whole image there is hardly anything to take away


@dataclass(frozen=True, eq=False, kw_only=True)
class Faithfulness:
    """Both curves of one map, and how they compare with chance.

    The same passes answer for positive and negative perturbation. Removing the most relevant patches first is deletion;
    removing the least relevant first shows, step by step, the same parts as insertion, read backwards, so that the
    areas are the same. And what a random order does to insertion its reverse does to deletion: the areas of the random
    orders are the same for both, and what is left of `gain` is half the distance between the map's two areas.

    Args:
        deletion, insertion: the curves.
        baseline: what stands in the place of a removed patch; "remove" is nothing.
        seed: of the random orders and of the order of equal scores.
        target: what was scored, in words.
        method: the name of the method that made the map; may be empty.
        seconds: how long it took, all maps of the call together.
    """

    deletion: Curve
    insertion: Curve
    baseline: Drop
    seed: int
    target: str
    method: str
    seconds: float

    @property
    def n(self) -> int:
        """How many random orders the map was held against."""
        return len(self.deletion.random)

    @property
    def positive(self) -> float:
        """Area of accuracy while the most relevant patches are removed first, 0..1: low is good (Chefer et al.)."""
        return self.deletion.accuracy

    @property
    def negative(self) -> float:
        """Area of accuracy while the least relevant patches are removed first, 0..1: high is good."""
        return self.insertion.accuracy

    @property
    def gain(self) -> float:
        """The mean of what deletion and insertion are better than random by: 0 is chance, below is worse."""
        return (self.deletion.over_random + self.insertion.over_random) / 2

    def words(self) -> str:
        """What the curves say, in a sentence; two where the model did not see the target in the first place."""
        deletion, insertion = self.deletion, self.insertion
        removing = "Removing" if self.baseline == "remove" else "Covering"
        sentence = (
            f"{removing} the patches that this map names first brings {self.target} down faster than "
            f"{_of(deletion.beaten, self.n)}: {deletion.compared()}; showing them first brings it up faster than "
            f"{_of(insertion.beaten, self.n)}: {insertion.compared()}."
        )
        if (start := float(deletion.probabilities[0])) < UNLIKELY:
            sentence += f" The whole image is {self.target} with only {start:.1%}: there is little to take away."
        return sentence


def faithfulness(
    model: ViT,
    images: Tensor,
    maps: Maps,
    target: Named | Sequence[Named] | Tensor | Target | None = None,
    *,
    contrast: tuple[Named, Named] | None = None,
    baseline: Drop = "remove",
    steps: int | Sequence[float] = 10,
    random: int = RANDOM,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[Faithfulness, ...]:
    """Insertion and deletion curves of maps, with those of random orders, in one batch.

    The class that is scored is the target, not whatever comes out on top along the way. With ten steps a curve costs
    4.5 forward passes if patches are removed, and 9 if they are painted over.

    Args:
        model: in eval mode, with a classifier. It stays as it is.
        images: (B, channels, H, W) normalised pixels.
        maps: the scores of patches (M, gh, gw), a map for each image; or any number of maps of one image, which share
            the random orders. `TokenScores` bring the names of their methods.
        target: the class, by index or label, for all images or one for each; by default the one that is predicted.
        contrast: (A, B) in place of `target`: the probability is then that of A among the two.
        baseline: "remove" takes patches out of the sequence; "blur", "mean", "zero" and "black" paint over them.
        steps: a number of equal steps, or the shares of patches that are shown at each. Where a model reads its answer
            from the patches alone, one stays.
        random: how many random orders, at least one.
        seed: of these, and of the order of equal scores (see `ranked`).
        progress: called with (parts of images that were run, all of them).

    Returns:
        One result a map, in order.

    Raises:
        ProbeError: if maps do not fit the images or are not finite, or for what `Parts` refuses.
        ExplainError: if there is no such class.
    """
    began = time.perf_counter()
    if random < 1:
        raise ProbeError(f"random: expected at least one random order to compare with, got {random}.")
    parts = Parts(model, images, baseline)
    scores, image, methods = stacked(maps, parts)  # (M, n), (M,)
    counts = counts_of(parts.patches, steps, parts.least)
    order = ranked(scores, seed)
    chance = shuffled(parts.patches, random, seed)  # (R, n)
    batch, many = len(parts.images), len(scores)
    # Whatever the curve, a part of an image is what comes first in some order: for deletion, in the reverse.
    orders = torch.cat([order, order.flip(1), chance.repeat(batch, 1)])  # (2 M + B R, n)
    of = torch.cat([image, image, torch.arange(batch).repeat_interleave(random)])  # (2 M + B R,)
    shown = firsts(orders, counts).flatten(0, 1)  # (2 M + B R, S, n) -> (rows, n)
    logits = parts.logits(shown, of.repeat_interleave(len(counts)), progress).unflatten(0, (-1, len(counts)))
    targets = asked(model, logits[[int((of == one).nonzero()[0]) for one in range(batch)], 0], target, contrast)
    shares = np.array(counts) / parts.patches  # (S,), falling
    results = []
    for index in range(many):
        one = only(model, targets, int(image[index]))
        begin = 2 * many + int(image[index]) * random
        by_chance = logits[begin : begin + random]  # (R, S, C)
        kinds = {"insertion": logits[index].flip(0), "deletion": logits[many + index]}  # (S, C) each
        curves = {kind: _curve(kind, shares, answers, by_chance, one) for kind, answers in kinds.items()}
        results.append((curves, one.words, methods[index]))
    seconds = time.perf_counter() - began
    return tuple(
        Faithfulness(**curves, baseline=baseline, seed=seed, target=words, method=method, seconds=seconds)
        for curves, words, method in results
    )


def _curve(kind: Any, shares: Any, logits: Tensor, by_chance: Tensor, target: Target) -> Curve:
    """A curve from the answers along it (S, C), and those of random orders (R, S, C), which fall with `shares`."""
    insertion = kind == "insertion"
    chance = by_chance.flip(1) if insertion else by_chance
    many = target.repeat(chance.shape[0] * chance.shape[1])
    along = target.repeat(len(logits))
    return Curve(
        kind=kind,
        fractions=shares[::-1].copy() if insertion else 1.0 - shares,
        probabilities=probabilities(along, logits).numpy(),
        logits=along.score(logits).numpy(),
        right=is_right(along, logits).numpy(),
        random=probabilities(many, chance.flatten(0, 1)).unflatten(0, chance.shape[:2]).numpy(),
        random_right=is_right(many, chance.flatten(0, 1)).unflatten(0, chance.shape[:2]).numpy(),
    )


def stacked(maps: Maps, parts: Parts) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Maps of any kind as scores (M, n), float64 on the CPU, the image of each (M,), and their methods' names.

    Raises:
        ProbeError: if they do not fit the images, or are not finite.
    """
    names: tuple[str, ...] = ()
    if isinstance(maps, TokenScores):
        maps = [maps]
    if not isinstance(maps, Tensor | np.ndarray):
        names = tuple(one.method for one in maps for _ in range(len(one.patches)))
        scores = torch.cat([one.patches.detach().cpu().double() for one in maps]) if names else torch.zeros(0)
    else:
        scores = torch.as_tensor(maps).detach().cpu().double()
    batch = len(parts.images)
    if scores.ndim != 3 or scores.shape[1:] != parts.grid or not len(scores) or batch not in (1, len(scores)):
        raise ProbeError(
            f"Expected maps of shape (maps, {parts.grid[0]}, {parts.grid[1]}), one for each of the {batch} images or "
            f"several of one image; got {tuple(scores.shape)}."
        )
    if not bool(scores.isfinite().all()):
        raise ProbeError("Expected finite scores, got NaN or infinity: patches cannot be put in order by them.")
    image = torch.arange(len(scores)) if batch > 1 else torch.zeros(len(scores), dtype=torch.long)
    return scores.flatten(1), image, names or ("",) * len(scores)  # (M, gh, gw) -> (M, n)


def asked(model: ViT, logits: Tensor, target: Any, contrast: tuple[Named, Named] | None) -> Target:
    """The target that a person named, or that was resolved already, for images with these logits (B, C)."""
    if isinstance(target, Target):
        if contrast is not None or len(target.classes) != len(logits):
            raise ProbeError(f"Expected one target for each of the {len(logits)} images, and no contrast beside it.")
        return target
    found = resolve_target(model, logits, target, contrast)
    assert found is not None  # there is a classifier: Parts looked
    return found


def predicted(model: ViT, images: Tensor, target: Named | Sequence[Named] | Tensor | None) -> Tensor | None:
    """The class of each image (B,) that is asked about: the named ones, else those that the model predicts.

    `None` for a model without a classifier.
    """
    with torch.no_grad():
        found = resolve_target(model, None if model.head is None else model(images), target)
    return None if found is None else found.classes


def only(model: ViT, target: Target, index: int) -> Target:
    """The target of one image, as a batch of one."""
    one = slice(index, index + 1)
    if target.against is not None:
        return Target(target.classes[one], target.against[one], target.words)
    return Target(target.classes[one], words=class_name(model, int(target.classes[index])))


def _of(beaten: int, count: int) -> str:
    """How many of the random orders, in words."""
    orders = "random order" if count == 1 else "random orders"
    if beaten == count:
        return f"the {orders}" if count == 1 else f"all {count} {orders}"
    return f"{'none' if beaten == 0 else beaten} of {count} {orders}"
