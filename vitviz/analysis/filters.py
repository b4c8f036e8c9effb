"""Analyse learned weights without an image: position embeddings and filters of the patch embedding.

Dosovitskiy et al. 2021, figure 7, left and centre. Shapes: gh x gw patches, D width, p patch size.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from vitviz.analysis import AnalysisError
from vitviz.analysis.tokens import point_up, principal_components
from vitviz.formatting import short_repr
from vitviz.model.vit import ViT

Floats = NDArray[np.float32]


@torch.no_grad()
def position_similarity(model: ViT, grid: tuple[int, int] | None = None) -> Floats:
    """Return the cosine similarity between the position embeddings of all patches: (gh, gw, gh, gw), -1..1.

    Args:
        model: with learned or sine-cosine positions.
        grid: (gh, gw) for interpolating learned positions; by default the grid of the native image size.

    Raises:
        AnalysisError: if the model does not add positions to its tokens, or the grid is empty.
    """
    chosen = model.config.grid if grid is None else grid
    if min(chosen) < 1:
        raise AnalysisError(f"Expected a grid of at least 1 x 1 patches, got {chosen}. Choose a larger one.")
    positions = model.positions(chosen)  # (1, gh * gw, D)
    if positions is None:
        raise AnalysisError(
            f"Expected a model with learned or sine-cosine positions, got {model.config.positions!r}, which adds "
            "nothing to tokens. Choose another model."
        )
    unit = F.normalize(positions[0].float(), dim=-1)  # (gh * gw, D)
    cosines: Floats = (unit @ unit.T).clamp(-1.0, 1.0).cpu().numpy()
    return cosines.reshape(*chosen, *chosen)


@dataclass(frozen=True, eq=False, kw_only=True)
class PatchFilters:
    """Principal components of the D filters of the patch embedding.

    Args:
        components: (K, channels, p, p), unit vectors, strongest first.
        pictures: (K, p, p, 3), the components as RGB, see `filter_pictures`.
        explained: (K,), fraction of the filters' variance that each explains.
    """

    components: Floats
    pictures: Floats
    explained: Floats

    __repr__ = short_repr


@torch.no_grad()
def patch_filters(model: ViT, count: int = 28) -> PatchFilters:
    """Return at most `count` principal components of the filters of the patch embedding.

    Raises:
        AnalysisError: if `count` is below 1, or the channels are not 3 (colors) or 1 (shown in grey).
    """
    weights = model.patch_embed.proj.weight.detach().cpu().double()  # (D, channels, p, p)
    if weights.shape[1] not in (1, 3) or count < 1:
        raise AnalysisError(
            f"Expected 1 or 3 channels and at least one component, got {weights.shape[1]} and {count}. Change them."
        )
    samples = weights.flatten(1)  # (D, channels * p * p)
    axes, explained = principal_components(samples, min(count, *samples.shape))
    components: Floats = point_up(axes).unflatten(1, weights.shape[1:]).float().numpy()  # (K, channels, p, p)
    return PatchFilters(
        components=components, pictures=filter_pictures(components), explained=explained.float().numpy()
    )


def filter_pictures(filters: Floats) -> Floats:
    """Convert filters (K, 3 or 1, p, p) to RGB (K, p, p, 3): 0.5 is zero, 0 or 1 a filter's largest weight."""
    largest = np.abs(filters).max((1, 2, 3), keepdims=True).clip(np.finfo(np.float32).tiny)
    colors: Floats = 0.5 + np.float32(0.5) * filters / largest
    return np.broadcast_to(colors, (len(colors), 3, *colors.shape[2:])).transpose(0, 2, 3, 1)
