"""What the model learned about places and pixels: position embeddings and the filters that make patches into tokens.

Dosovitskiy et al. 2021, figure 7, left and centre. Neither needs an image.

Shapes: gh x gw patches, D width, p patch size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from vitviz.model import ViT
from vitviz.probe import ProbeError
from vitviz.probe.tokens import principal

Floats = NDArray[np.float32]

SHOWN = 28
"""Principal components of the filters: as many as in the paper's figure."""


@torch.no_grad()
def position_similarity(model: ViT, grid: tuple[int, int] | None = None) -> Floats:
    """Cosine of the position embedding of every patch with that of every other: (gh, gw, gh, gw), in -1..1.

    `found[2, 3]` is the map for the patch in row 2 and column 3. It holds (gh * gw)² numbers.

    Args:
        model: with learned or sine-cosine positions.
        grid: (gh, gw); by default that of the model's native image size. Learned positions are interpolated as they
            are when the model runs.

    Raises:
        ProbeError: if the model adds no positions to its tokens, or the grid is none.
    """
    chosen = model.config.grid if grid is None else grid
    if min(chosen) < 1:
        raise ProbeError(f"Expected a grid of at least 1 x 1 patches, got {chosen}.")
    positions = model.positions(chosen)  # (1, gh * gw, D)
    if positions is None:
        turned = "turns queries and keys instead" if model.config.positions == "rotary" else "has none"
        raise ProbeError(f"Expected a model that adds learned or sine-cosine positions; this one {turned}.")
    unit = F.normalize(positions[0].float(), dim=-1)  # (gh * gw, D)
    cosines: Floats = (unit @ unit.T).clamp(-1.0, 1.0).cpu().numpy()
    return cosines.reshape(*chosen, *chosen)


@dataclass(frozen=True, eq=False, kw_only=True)
class PatchFilters:
    """The filters of the patch embedding, and what they have in common.

    Args:
        filters: (D, channels, p, p), the weights as they are.
        components: (K, channels, p, p), their principal components: unit vectors, the strongest first.
        pictures: (K, p, p, 3), the same as RGB in 0..1: 0.5 is a weight of zero, and the largest weight of a component
            is 0 or 1.
        explained: (K,), share of the filters' variance in each.
    """

    filters: Floats
    components: Floats
    pictures: Floats
    explained: Floats


@torch.no_grad()
def patch_filters(model: ViT, count: int = SHOWN) -> PatchFilters:
    """The filters of the patch embedding and their first principal components.

    The D filters are the samples. They act on normalised pixels, so a colour is a direction, not a brightness. A
    component's sign is free: the cubes of its weights sum to more than 0.

    Args:
        model: for images with 3 channels, or 1, which is shown in grey.
        count: how many components; fewer where the filters have fewer dimensions.

    Raises:
        ProbeError: if `count` is below 1, or the channels are no colours.
    """
    weights = model.patch_embed.proj.weight.detach().cpu().double()  # (D, channels, p, p)
    channels = weights.shape[1]
    if channels not in (1, 3):
        raise ProbeError(f"Expected a model for images with 1 or 3 channels, which can be shown; got {channels}.")
    if count < 1:
        raise ProbeError(f"Expected at least one component, got {count}.")
    samples = weights.flatten(1)  # (D, channels * p * p)
    axes, explained = principal(samples, min(count, *samples.shape))
    up = (axes**3).sum(1, keepdim=True)
    components = torch.where(up < 0, -axes, axes).unflatten(1, weights.shape[1:])  # (K, channels, p, p)
    largest = components.abs().amax((1, 2, 3), keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    pictures = (0.5 + 0.5 * components / largest).expand(-1, 3, -1, -1).permute(0, 2, 3, 1)  # (K, p, p, 3)
    return PatchFilters(
        filters=weights.float().numpy(),
        components=components.float().numpy(),
        pictures=pictures.float().contiguous().numpy(),
        explained=explained.float().numpy(),
    )
