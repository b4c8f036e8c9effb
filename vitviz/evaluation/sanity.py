"""Run the sanity check: the map of a model with random weights should not resemble the original map.

Adebayo et al. 2018, "Sanity Checks for Saliency Maps" (cascading model parameter randomization, section 3). If the map
stays the same, it depends on the image, not on the model.

Shapes: B images, n = gh x gw patches, S stages.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitviz.attribution.registry import DEFAULT, method_named, score_patches
from vitviz.attribution.target_specs import TargetLike
from vitviz.evaluation.faithfulness import Floats, target_of_images
from vitviz.model.correlation import spearman
from vitviz.model.vit import ViT

HEAD = {"neck", "norm", "attn_pool", "projection", "head", "head_dist"}  # randomized first, as one part


@dataclass(frozen=True, eq=False, kw_only=True)
class Sanity:
    """Similarity of the maps of randomized models with the original map.

    Args:
        parts: the S parts of the model, from last to first: "head", "block 11", ..., "embedding" (blocks from 0). At
            each stage, the part and all earlier parts in the list are random.
        ranks: (S, B), Spearman's correlation with the original map; NaN if a map is constant.
        method: method of the maps.
    """

    parts: tuple[str, ...]
    ranks: Floats
    method: str

    def describe(self) -> str:
        """Return the correlation for all-random weights as a sentence."""
        title, correlation = method_named(self.method).title, self.ranks[-1].mean()
        if not np.isfinite(correlation):
            return f"{title}, with all weights random, gives a map without any order."
        return (
            f"{title}, with all weights random, gives a map whose order correlates with the original one at "
            f"{correlation:.2f} (0 means no correlation)."
        )


def sanity(
    model: ViT, images: Tensor, target: TargetLike = None, method: str = DEFAULT, *, seed: int = 0, **options: Any
) -> Sanity:
    """Randomize the weights of a copy, part by part from the head down to the embedding, and compare the maps.

    Each weight tensor is redrawn from a normal distribution with its own mean and deviation, so tokens and attention
    keep their scale.

    Args:
        model: model in eval mode; not changed.
        images: (B, channels, H, W) normalised pixels.
        target: see `resolve_target`; by default the class predicted by the original model.
        method: name of the method; `options` are its options.
        seed: seed of the random weights.

    Raises:
        ExplainError: if the method, class or an option does not exist.
    """
    images = images.to(next(model.parameters()).device)
    resolved = target_of_images(model, images, target)

    def maps(network: ViT) -> Tensor:
        return score_patches(network, images, resolved, method, **options).flatten(1).cpu().double()  # (B, n)

    original, changed = maps(model), copy.deepcopy(model)
    parts, ranks = model_parts(changed), []
    for index, weights in enumerate(parts.values()):
        randomize(weights, seed + index)
        ranks.append(spearman(original, maps(changed)))
    return Sanity(parts=tuple(parts), ranks=torch.stack(ranks).numpy(), method=method)


def model_parts(model: ViT) -> dict[str, list[nn.Parameter]]:
    """Return the weights of a model by part, from the head (final norm, pooling, classifier) to the embedding."""
    blocks = [f"block {index}" for index in reversed(range(model.config.depth))]
    parts: dict[str, list[nn.Parameter]] = {name: [] for name in ("head", *blocks, "embedding")}
    for name, weight in model.named_parameters():
        first, *rest = name.split(".")
        part = f"block {rest[0]}" if first == "blocks" else "head" if first in HEAD else "embedding"
        parts[part].append(weight)
    return parts


@torch.no_grad()
def randomize(weights: Sequence[nn.Parameter], seed: int) -> None:
    """Redraw weights in place, each tensor with its own mean and deviation."""
    generator = torch.Generator().manual_seed(seed)
    for weight in weights:
        noise = torch.randn(weight.shape, generator=generator)  # on the CPU, for the same numbers on every device
        weight.copy_(weight.mean() + weight.std(correction=0) * noise.to(weight))
