"""Do the numbers of a map mean what they say? Sums of scores against what the answer really lost.

Ancona et al. 2018, "Towards better understanding of gradient-based attribution methods for Deep Neural Networks"
(sensitivity-n, section 4); Yeh et al. 2019, "On the (In)fidelity and Sensitivity of Explanations" (infidelity and
max-sensitivity, which captum computes).

Unlike insertion and deletion, which read the order of the patches alone, these read the scores.

Shapes: B images, n = gh x gw patches, C classes, M maps, Z sizes of sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitviz.explain.case import Named, Target
from vitviz.explain.methods import attribute, untouched
from vitviz.model import ViT
from vitviz.probe import ProbeError
from vitviz.probe.curves import Floats, Parts, Progress, shuffled
from vitviz.probe.faithfulness import Maps, asked, predicted, stacked
from vitviz.probe.intervene import Drop

SIZES = 6
TOGETHER = 4  # images at once for max-sensitivity: a gradient method holds all attention of each


@dataclass(frozen=True, eq=False, kw_only=True)
class SensitivityN:
    """How well sums of scores go with what the target's score lost when those patches were taken away.

    Args:
        sizes: (Z,), how many patches were taken away at once.
        correlations: (Z,), Pearson's, over the random sets of each size; NaN where a map gives all sets the same sum.
        samples: how many sets of each size.
        baseline: what stands in the place of a removed patch.
    """

    sizes: tuple[int, ...]
    correlations: Floats
    samples: int
    baseline: Drop

    @property
    def mean(self) -> float:
        """The mean over the sizes, -1..1."""
        return float(self.correlations.mean())


def sensitivity_n(
    model: ViT,
    images: Tensor,
    maps: Maps,
    target: Named | Sequence[Named] | Tensor | Target | None = None,
    *,
    contrast: tuple[Named, Named] | None = None,
    sizes: Sequence[int] | None = None,
    samples: int = 32,
    baseline: Drop = "remove",
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[SensitivityN, ...]:
    """Correlation of the sum of a set's scores with the loss of the target's logit without it (Ancona et al. 2018).

    Args:
        model, images, maps, target, contrast, baseline: as for `faithfulness`.
        sizes: of the sets, in patches; by default six from 1 to 80 % of the patches, evenly by their logarithm.
        samples: random sets of each size, at least 2; the same for all maps.
        seed: of the sets.
        progress: called with (parts of images that were run, all of them).

    Raises:
        ProbeError: as `faithfulness`, or for sizes that leave nothing to show.
    """
    parts = Parts(model, images, baseline)
    scores, image, _ = stacked(maps, parts)  # (M, n), (M,)
    chosen = _sizes(sizes, parts)
    if samples < 2:
        raise ProbeError(f"samples: expected at least 2 sets of each size, for a correlation; got {samples}.")
    gone = torch.cat([subsets(parts.patches, size, samples, seed + size) for size in chosen])  # (Z * samples, n)
    batch = len(parts.images)
    whole = parts.whole()  # (B, C)
    goal = asked(model, whole, target, contrast)
    of = torch.arange(batch).repeat_interleave(len(gone))
    logits = parts.logits(~gone.repeat(batch, 1), of, progress)  # (B * Z * samples, C)
    lost = goal.score(whole)[of] - goal.repeat(len(gone)).score(logits)
    lost = lost.unflatten(0, (batch, len(chosen), samples))  # (B, Z, samples)
    sums = (scores @ gone.double().T).unflatten(1, (len(chosen), samples))  # (M, n) @ (n, ...) -> (M, Z, samples)
    return tuple(
        SensitivityN(sizes=chosen, correlations=pearson(sums[one], lost[of]), samples=samples, baseline=baseline)
        for one, of in enumerate(image.tolist())
    )


def infidelity(
    model: ViT,
    images: Tensor,
    maps: Maps,
    target: Named | Sequence[Named] | Tensor | Target | None = None,
    *,
    contrast: tuple[Named, Named] | None = None,
    share: float = 0.1,
    samples: int = 32,
    normalize: bool = True,
    baseline: Drop = "remove",
    seed: int = 0,
) -> Floats:
    """How far the sum of the scores of a random set of patches is from what the target's logit loses without it.

    The mean of (sum of scores - loss)² over the sets, by `captum.metrics.infidelity` (Yeh et al. 2019, definition 2.1,
    with sets of patches as the perturbation). 0 is perfect; the unit is that of logits, squared.

    Args:
        model, images, maps, target, contrast, baseline: as for `faithfulness`.
        share: of the patches that are in a set, above 0 and below 1.
        samples: how many sets.
        normalize: scale each map by the factor that serves it best: only a map whose scores sum to a logit can do
            without.
        seed: of the sets; they are the same for all maps.

    Returns:
        (M,), one number a map.

    Raises:
        ProbeError: as `faithfulness`, or for a share or number of samples that makes no set.
    """
    from captum.metrics import infidelity as measure

    parts = Parts(model, images, baseline)
    scores, image, _ = stacked(maps, parts)  # (M, n), (M,)
    if not 0.0 < share < 1.0:
        raise ProbeError(f"share: expected a part of the patches between 0 and 1, got {share}.")
    if samples < 1:
        raise ProbeError(f"samples: expected at least 1 set of patches, got {samples}.")
    (size,) = _sizes([max(1, round(share * parts.patches))], parts)
    gone = subsets(parts.patches, size, samples, seed).double()  # (samples, n)
    goal = asked(model, parts.whole(), target, contrast)

    def answer(shown: Tensor, of: Tensor) -> Tensor:
        """The target's score of parts: (R, n), the image of each (R,) -> (R,)."""
        against = None if goal.against is None else goal.against[of]
        return Target(goal.classes[of], against).score(parts.logits(shown > 0.5, of))

    def perturb(shown: Tensor) -> tuple[Tensor, Tensor]:
        """What is taken away, and what is left: (M * samples, n) each; captum repeats each map's row in turn."""
        sets = gone.repeat(len(shown) // samples, 1)
        return sets, shown - sets

    every = torch.ones_like(scores)  # (M, n): all patches are shown
    found: Tensor = measure(
        answer, perturb, every, scores, additional_forward_args=image, n_perturb_samples=samples, normalize=normalize
    )
    return np.asarray(found.numpy(), np.float64)


def max_sensitivity(
    model: ViT,
    images: Tensor,
    target: Named | Sequence[Named] | Tensor | None = None,
    method: str = "gae",
    *,
    radius: float = 0.02,
    samples: int = 10,
    seed: int = 0,
    **options: Any,
) -> Floats:
    """How much a method's map can change when the pixels hardly do, by `captum.metrics.sensitivity_max`.

    The largest of |map(x + noise) - map(x)| / |map(x)| over random noise (Yeh et al. 2019, definition 3.1). It speaks
    of the method and not of one map, and a map that is always the same gets a perfect 0.

    Args:
        model: in eval mode.
        images: (B, channels, H, W) normalised pixels.
        target: the class, by index or label; by default the one that is predicted without noise.
        method: its name; `options` are the method's.
        radius: the noise is uniform in -radius..radius, in normalised pixels.
        samples: how often.
        seed: of the noise.

    Returns:
        (B,), one number an image.

    Raises:
        ExplainError: if there is no such method, class or option.
        ProbeError: for a radius or number of samples that makes no noise.
    """
    from captum.metrics import sensitivity_max as measure

    if not radius > 0 or samples < 1:
        raise ProbeError(f"Expected a radius above 0 and at least 1 sample, got {radius} and {samples}.")
    images = images.to(next(model.parameters()).device)
    fixed = predicted(model, images, target)  # (B,)

    def explain(inputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor]:
        """Maps (b, gh, gw). captum repeats each image in turn, and would take a tensor for a tuple of its rows."""
        pixels = (inputs if isinstance(inputs, Tensor) else inputs[0]).to(images.dtype)  # the noise is in float32
        classes = None if fixed is None else fixed.repeat_interleave(len(pixels) // len(images))
        return (attribute(model, pixels, classes, method, **options).patches,)

    most = min(TOGETHER, samples) * len(images)
    with untouched(images.device):
        torch.manual_seed(seed)
        found: Tensor = measure(
            explain, images, perturb_radius=radius, n_perturb_samples=samples, max_examples_per_batch=most
        )
    return np.asarray(found.detach().cpu().double().numpy())


def subsets(patches: int, size: int, count: int, seed: int) -> Tensor:
    """Random sets of `size` of the patches: (count, n) bools."""
    place = shuffled(patches, count, seed, salt=1).argsort(dim=1)  # (count, n)
    return place < size


def pearson(first: Tensor, second: Tensor) -> Floats:
    """The correlation of two rows of numbers (..., S), float64; NaN where one of them is constant."""
    x, y = (row - row.mean(-1, keepdim=True) for row in (first.double(), second.double()))
    # What rounding leaves of a constant row is not a variation.
    flat = [moved.norm(dim=-1) <= 1e-12 * row.double().norm(dim=-1) for moved, row in ((x, first), (y, second))]
    found = (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1))
    return np.asarray(found.masked_fill(flat[0] | flat[1], float("nan")).numpy())


def _sizes(sizes: Sequence[int] | None, parts: Parts) -> tuple[int, ...]:
    """Sizes of sets that can be taken away, rising and each once."""
    most = parts.patches - parts.least
    if sizes is None:
        highest = max(1, min(most, round(0.8 * parts.patches)))
        sizes = np.unique(np.geomspace(1, highest, SIZES).round().astype(int)).tolist()
    chosen = tuple(sorted(set(sizes)))
    if not chosen or not 1 <= chosen[0] <= chosen[-1] <= most:
        raise ProbeError(f"Expected sizes of sets from 1 to {most} patches for this image and model, got {sizes}.")
    return chosen
