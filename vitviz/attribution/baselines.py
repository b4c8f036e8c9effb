"""Compute baseline pixels for hidden patches.

Shapes: B images, gh x gw patches of p x p pixels. Pixels are the model's input: (B, channels, H, W), normalised.
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from vitviz.attribution.targets import ExplainError
from vitviz.model.vit import ViT

Baseline = Literal["blur", "mean", "zero", "black"]

BLUR = 1.0
"""Standard deviation of the blur in patches: it removes detail finer than a patch, but keeps colors."""


def baseline_images(model: ViT, images: Tensor, kind: Baseline = "blur", patch_size: int | None = None) -> Tensor:
    """Return baseline images: (B, channels, H, W).

    Args:
        model: model that gives patch size and preprocessing.
        images: (B, channels, H, W) normalised pixels.
        kind: "blur", a Gaussian blur of `BLUR` patches (weights rescaled at the border); "mean", the image's own mean
            color; "zero", zero in normalised pixels, the mean color of the training data; "black".
        patch_size: side of the hidden patches in pixels; by default the model's.

    Raises:
        ExplainError: for an unknown kind, or "black" with a model without preprocessing.
    """
    if kind == "blur":
        sigma = BLUR * (patch_size or model.config.patch_size)
        down, across = (gaussian(extent, sigma).to(images) for extent in images.shape[2:])
        return down @ images @ across.T  # (H, H) @ (B, channels, H, W) @ (W, W)
    if kind == "mean":
        return images.mean(dim=(2, 3), keepdim=True).expand_as(images)
    if kind == "zero":
        return torch.zeros_like(images)
    if kind != "black":
        raise ExplainError(f"Expected one of {', '.join(get_args(Baseline))}, got {kind!r}. Choose one of these.")
    if model.pretrained is None:
        raise ExplainError("Expected mean and std of the preprocessing for black, got none. Use blur, mean or zero.")
    preprocess = model.pretrained.preprocess
    black = [-mean / std for mean, std in zip(preprocess.mean, preprocess.std, strict=True)]  # (0 - mean) / std
    return images.new_tensor(black)[:, None, None].expand_as(images)


def pixel_mask(mask: Tensor, patch_size: int) -> Tensor:
    """Expand a mask over patches to pixels: (B, gh, gw) -> (B, 1, gh * p, gw * p)."""
    return mask.repeat_interleave(patch_size, 1).repeat_interleave(patch_size, 2)[:, None]


def gaussian(extent: int, sigma: float) -> Tensor:
    """Return a Gaussian blur of one axis as a matrix whose rows sum to 1: (extent, extent), float64."""
    at = torch.arange(extent, dtype=torch.float64)
    weights = (-0.5 * ((at[:, None] - at) / sigma) ** 2).exp()
    return weights / weights.sum(dim=1, keepdim=True)
