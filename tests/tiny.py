"""Tiny random models. Every size is another prime, so that a swapped axis cannot hide."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vitviz.model.config import ViTConfig
from vitviz.model.trace import Trace
from vitviz.model.vit import ViT

BATCH, CHANNELS, DEPTH, HEADS = 2, 3, 3, 5
GRID, PATCH = (7, 11), 13
HEAD_WIDTH, WIDTH, MLP_WIDTH, CLASSES = 17, 19, 23, 29


def config(grid: tuple[int, int] = GRID, patch: int = PATCH, **changes: Any) -> ViTConfig:
    """A config with all sizes prime; `changes` are fields of `ViTConfig`."""
    sizes = {
        "image_size": (grid[0] * patch, grid[1] * patch),
        "patch_size": patch,
        "channels": CHANNELS,
        "width": WIDTH,
        "depth": DEPTH,
        "heads": HEADS,
        "head_width": HEAD_WIDTH,
        "mlp_width": MLP_WIDTH,
        "classes": CLASSES,
    }
    return ViTConfig(**{**sizes, **changes})


def model(seed: int = 0, **changes: Any) -> ViT:
    """A model in eval mode whose every parameter is random: no zero head, no unit norm, attention far from uniform."""
    made = ViT(config(**changes)).eval()
    randomise(made, seed)
    return made


@torch.no_grad()
def randomise(module: torch.nn.Module, seed: int) -> None:
    """Fill all parameters with random numbers that keep the stream of tokens near unit size."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim == 1:  # biases, norms and layer scale
            around_one = name.endswith(("weight", "gamma"))
            parameter.copy_(1.0 + 0.3 * noise if around_one else 0.3 * noise)
        elif parameter.ndim == 3:  # prefix tokens and positions
            parameter.copy_(noise)
        else:
            gain = 1.7 if "qkv" in name else 1.0
            parameter.copy_(gain * noise * parameter[0].numel() ** -0.5)


def images(batch: int = BATCH, seed: int = 1, grid: tuple[int, int] = GRID, patch: int = PATCH) -> Tensor:
    """Random normalised pixels (B, channels, H, W), every image another."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, CHANNELS, grid[0] * patch, grid[1] * patch, generator=generator)


def trace(batch: int = BATCH, seed: int = 0, grad: bool = False, **changes: Any) -> Trace:
    """The trace of random images by a random model; images and model have the same grid."""
    sizes = {"grid": changes.get("grid", GRID), "patch": changes.get("patch", PATCH)}
    return model(seed, **changes).trace(images(batch, seed + 1, **sizes), grad=grad)


def dense(trace: Trace, block: int) -> Tensor:
    """softmax(q @ k.T) written out in float64: (B, H, N, N)."""
    kept = trace.block(block)
    return (kept.queries.double() @ kept.keys.double().transpose(2, 3)).softmax(dim=-1).detach()
