"""Measure sensitivity: compare scores with drops of the target's logit or probability, and maps under noise.

Insertion and deletion use only the order of the patches. These measures use the scores; order consistency uses both.

Shapes: B images, n = gh x gw patches, C classes, M maps, Z set sizes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitviz.analysis.interventions import Drop
from vitviz.attribution.registry import DEFAULT, score_patches, untouched
from vitviz.attribution.target_specs import TargetLike, reads_features, resolve_target
from vitviz.attribution.targets import Target
from vitviz.evaluation import EvaluationError
from vitviz.evaluation.faithfulness import Floats, Maps, flat_maps, random_orders, rank_patches, target_of_images
from vitviz.evaluation.masking import MaskedModel, usual_baseline
from vitviz.extras import extra
from vitviz.model.correlation import pearson
from vitviz.model.vit import ViT

GROUPS = 10
"""Default number of groups of patches, as in the paper of SaCo."""
TOGETHER = 4  # images per batch for max-sensitivity: gradient methods keep the attention of all of them in memory


@dataclass(frozen=True, eq=False, kw_only=True)
class SensitivityN:
    """Correlation of the scores' sum over a set of patches with the drop of the target's score without the set.

    Args:
        sizes: (Z,), numbers of removed patches.
        correlations: (M, Z), Pearson's, over the random sets of each size; NaN if all sums are equal.
    """

    sizes: tuple[int, ...]
    correlations: Floats


def sensitivity_n(
    model: ViT,
    images: Tensor,
    maps: Maps,
    target: TargetLike = None,
    *,
    sizes: Sequence[int] | None = None,
    samples: int = 32,
    baseline: Drop = "remove",
    seed: int = 0,
) -> SensitivityN:
    """Correlate the scores' sum over a set of patches with the drop of the target's logit without the set.

    Ancona et al. 2018, "Towards better understanding of gradient-based attribution methods for Deep Neural Networks",
    section 4 (sensitivity-n).

    Args:
        model, images, maps, target, baseline: as for `faithfulness`.
        sizes: sizes of the sets in patches; by default six from 1 to 80 % of the patches, evenly on a log scale.
        samples: number of random sets of each size, at least 2; the same for all maps.
        seed: seed of the sets.

    Raises:
        EvaluationError, AnalysisError: as for `faithfulness`, or for sizes that leave no patch visible.
    """
    masked, whole, targets = _whole_images(model, images, target, baseline)
    scores, image = flat_maps(maps, masked)  # (M, n), (M,)
    most, batch = masked.patches - masked.least, len(masked.images)
    if sizes is None:
        highest = max(1, min(most, round(0.8 * masked.patches)))
        sizes = np.geomspace(1, highest, 6).round().astype(int).tolist()
    chosen = tuple(sorted(set(sizes)))
    if not chosen or not 1 <= chosen[0] <= chosen[-1] <= most or samples < 2:
        raise EvaluationError(
            f"Expected sizes of sets from 1 to {most} patches and at least 2 samples of each, got {sizes} and "
            f"{samples}. Try the defaults."
        )
    removed = torch.cat([random_sets(masked.patches, size, samples, seed + size) for size in chosen])  # (Z samples, n)
    image_of = torch.arange(batch).repeat_interleave(len(removed))
    outputs = masked.outputs(~removed.repeat(batch, 1), image_of)  # (B * Z * samples, C) or (..., F)
    drops = targets.score(whole)[image_of] - targets.repeat(len(removed)).score(outputs)
    drops = drops.unflatten(0, (batch, len(chosen), samples))  # (B, Z, samples)
    sums = (scores @ removed.double().T).unflatten(1, (len(chosen), samples))  # (M, n) @ (n, ...) -> (M, Z, samples)
    return SensitivityN(sizes=chosen, correlations=pearson(sums, drops[image]).numpy())


def _whole_images(model: ViT, images: Tensor, target: TargetLike, baseline: Drop) -> tuple[MaskedModel, Tensor, Target]:
    """Return the masked model, its outputs for the whole images, (B, C) or (B, F), and the target."""
    features = reads_features(model, target)
    masked = MaskedModel(model, images, baseline, features=features)
    whole = masked.unmasked()
    targets = resolve_target(model, None if features else whole, target, batch=len(masked.images))
    assert targets is not None  # MaskedModel checked that there is a classifier
    return masked, whole, targets


def random_sets(patches: int, size: int, count: int, seed: int) -> Tensor:
    """Return random sets of `size` of the patches: (count, n) bools."""
    return random_orders(patches, count, seed, salt=1).argsort(dim=1) < size


def order_consistency(
    model: ViT,
    images: Tensor,
    maps: Maps,
    target: TargetLike = None,
    *,
    groups: int = GROUPS,
    baseline: Drop | None = None,
    seed: int = 0,
) -> Floats:
    """Return whether removing patches with higher scores lowers the target's probability more (SaCo): (M,), -1..1.

    The patches are sorted by score and split into groups of about equal size, and each group is removed alone. Each
    pair of groups is weighted by the difference of their summed scores. It counts positively if removing the group with
    the higher scores lowers the probability at least as much, otherwise negatively (Wu et al. 2024, "On the
    Faithfulness of Vision Transformer Explanations", algorithm 1). A constant map gets 0.

    Args:
        model, images, maps, target, baseline, seed: as for `faithfulness`.
        groups: number of groups, at least 2 and at most one for each patch.

    Raises:
        EvaluationError, AnalysisError: as for `faithfulness`, or for another number of groups.
    """
    masked, whole, targets = _whole_images(model, images, target, baseline or usual_baseline(model))
    scores, image = flat_maps(maps, masked)  # (M, n), (M,)
    if not 2 <= groups <= masked.patches:
        raise EvaluationError(f"Expected from 2 to {masked.patches} groups, got {groups}. Try {GROUPS}.")
    parts = rank_patches(scores, seed).tensor_split(groups, dim=1)  # groups x (M, patches)
    removed = torch.stack([torch.zeros_like(scores).scatter(1, part, 1.0) for part in parts], dim=1)  # (M, groups, n)
    of = image.repeat_interleave(groups)
    outputs = masked.outputs(~removed.flatten(0, 1).bool(), of)  # (M * groups, C)
    readings = targets.select(of).reading(outputs)
    drops = (targets.reading(whole)[of] - readings).unflatten(0, (-1, groups))  # (M, groups)
    sums = (removed * scores[:, None]).sum(2)  # (M, groups), decreasing
    first, second = torch.triu_indices(groups, groups, offset=1)
    weights = sums[:, first] - sums[:, second]  # (M, pairs)
    agrees = torch.where(drops[:, first] >= drops[:, second], 1.0, -1.0)
    total = weights.abs().sum(1)
    consistency = (weights * agrees).sum(1) / total.where(total > 0, torch.ones_like(total))
    return np.asarray(consistency.double())


def max_sensitivity(
    model: ViT,
    images: Tensor,
    target: TargetLike = None,
    method: str = DEFAULT,
    *,
    radius: float = 0.02,
    samples: int = 10,
    seed: int = 0,
    **options: Any,
) -> Floats:
    """Return the maximum relative change of a method's map under small noise, by `captum.metrics.sensitivity_max`.

    This is the maximum of `|map(x + noise) - map(x)| / |map(x)|` over random noise (Yeh et al. 2019, "On the
    (In)fidelity and Sensitivity of Explanations", definition 3.1). A constant map gets a perfect 0.

    Args:
        model: model in eval mode.
        images: (B, channels, H, W) normalised pixels.
        target: see `resolve_target`; by default the class predicted without noise.
        method: name of the method; `options` are its options.
        radius: range of the uniform noise in normalised pixels, -radius..radius.
        samples: number of noisy images.
        seed: seed of the noise.

    Returns:
        (B,), one number per image.

    Raises:
        ExplainError: if the method, class or an option does not exist.
        EvaluationError: for an invalid radius or number of samples.
    """
    with extra("explain"):
        from captum.metrics import sensitivity_max

    if not radius > 0 or samples < 1:
        raise EvaluationError(
            f"Expected a radius above 0 and at least 1 sample, got {radius} and {samples}. Try the defaults."
        )
    images = images.to(next(model.parameters()).device)
    fixed = target_of_images(model, images, target)

    def explain(inputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor]:
        """Return maps (b, gh, gw) as a tuple, because captum would treat a tensor as a tuple of rows."""
        pixels = (inputs if isinstance(inputs, Tensor) else inputs[0]).to(images.dtype)  # the noise is in float32
        targets = None if fixed is None else fixed.repeat(len(pixels) // len(images))
        return (score_patches(model, pixels, targets, method, **options),)

    most = min(TOGETHER, samples) * len(images)
    with untouched(images.device):
        torch.manual_seed(seed)
        sensitivities: Tensor = sensitivity_max(
            explain, images, perturb_radius=radius, n_perturb_samples=samples, max_examples_per_batch=most
        )
    return np.asarray(sensitivities.detach().cpu().double().numpy())
