"""Make tiny random models. Sizes are different primes, so that tests notice swapped axes."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ViTConfig
from vitviz.model.trace import Trace
from vitviz.model.vit import Pretrained, ViT

BATCH, CHANNELS, DEPTH, HEADS = 2, 3, 3, 5
GRID, PATCH = (7, 11), 13
HEAD_WIDTH, WIDTH, MLP_WIDTH, CLASSES = 17, 19, 23, 29
LABELS = tuple(f"thing {index}" for index in range(CLASSES))
SMALL: dict[str, Any] = {"grid": (3, 5), "patch": 2}  # also not square
POOLED = {"final": "pooled"}
PREFIXES: dict[str, dict[str, Any]] = {
    "CLS": {},
    "none": {"class_token": False, "pooling": "mean"},
    "CLS, distillation, registers": {"distillation_token": True, "registers": 3},
    "registers without CLS": {"class_token": False, "pooling": "mean", "registers": 2},
}
KINDS: dict[str, dict[str, Any]] = {
    "class token": {},
    "registers, rotary": {"registers": 3, "positions": "rotary", "head_width": 16, "layer_scale": 0.3},
    "distillation and register": {"distillation_token": True, "registers": 1, "activation": "quick_gelu"},
    "distillation, no class token": {
        "distillation_token": True, "class_token": False, "pooling": "mean", "registers": 1
    },
    "mean, no prefix, root-mean-square norms": {
        "class_token": False, "pooling": "mean", "positions": "sincos", "width": 20,
        "norms": {"kind": "rms", "patch": True},
    },
    "mean beside a class token": {"pooling": "mean", "norms": POOLED, "positions": "none"},
    "learned positions and rotations": {
        "positions": "learned+rotary", "head_width": 16,
        "rotary": {"learned": True, "places": "index", "grid": (5, 9), "offset": 1.0},
    },
    "class token and mean": {"pooling": "cls+mean", "norms": {"pre": True, "qk": True}, "qkv_bias": False},
    "registers, parallel": {
        "class_token": False, "registers": 2, "pooling": "mean", "norms": POOLED, "parallel": True,
        "table": {"between": True},
    },
    "attention, gated": {
        "class_token": False, "pooling": "attention", "width": 20, "mlp": "swiglu", "mlp_bias": False,
        "pool": {"heads": 4}, "norms": {"attention": True, "mlp": True},
    },
    "attention, class token, norm after": {
        "pooling": "attention", "width": 20, "norms": POOLED, "registers": 1,
        "pool": {"prefix": False, "mlp_width": 13},
    },
    "relative bias": {"positions": "none", "relative_bias": True, "registers": 1, "norms": {"final": "none"}},
    "attention, distillation, norms after": {
        "pooling": "attention", "width": 20, "distillation_token": True, "norms": {"post": True, "qk": True},
    },
    "talking heads, class attention": {
        "class_token": False, "pooling": "attention", "pool": {"blocks": 2, "mlp_width": 13}, "width": 20,
        "talking_heads": True, "layer_scale": 0.3, "norms": POOLED,
    },
}  # fmt: skip
"""Models that together have every kind of prefix, pooling, position, norm and MLP."""


def config(grid: tuple[int, int] = GRID, patch: int = PATCH, **changes: Any) -> ViTConfig:
    """Return a config with prime sizes; `changes` are fields of `ViTConfig`."""
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
    """Return a model in eval mode with all parameters random, and attention far from uniform."""
    vit = ViT(config(**changes)).eval()
    randomise(vit, seed)
    return vit


def known(seed: int = 0, preprocess: Preprocess | None = None, labels: tuple[str, ...] = LABELS, **changes: Any) -> ViT:
    """Return a model with labels and preprocessing; by default it squashes the whole photograph."""
    vit = model(seed, **changes)
    height, width = vit.config.image_size
    preprocess = preprocess or Preprocess(mode="squash", height=height, width=width)
    vit.pretrained = Pretrained(name="tiny", preprocess=preprocess, labels=labels)
    return vit


@torch.no_grad()
def randomise(module: torch.nn.Module, seed: int) -> None:
    """Fill all parameters with random numbers that keep the stream of tokens near unit size."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim == 1:  # biases, norms and layer scale
            around_one = name.endswith(("weight", "gamma"))
            size = 0.01 if name.endswith("proj_w.bias") else 0.3  # this bias multiplies the sum over all tokens
            parameter.copy_(1.0 + size * noise if around_one else size * noise)
        elif parameter.ndim == 3:  # prefix tokens and positions
            parameter.copy_(noise)
        else:
            gain = 1.7 if "qkv" in name else 1.0
            parameter.copy_(gain * noise * parameter[0].numel() ** -0.5)


def images(batch: int = BATCH, seed: int = 1, grid: tuple[int, int] = GRID, patch: int = PATCH) -> Tensor:
    """Return random normalised pixels (B, channels, H, W)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, CHANNELS, grid[0] * patch, grid[1] * patch, generator=generator)


def trace(batch: int = BATCH, seed: int = 0, grad: bool = False, **changes: Any) -> Trace:
    """Return the trace of random images by a random model with the same grid."""
    sizes = {"grid": changes.get("grid", GRID), "patch": changes.get("patch", PATCH)}
    return model(seed, **changes).trace(images(batch, seed + 1, **sizes), grad=grad)


@torch.no_grad()
def shaken(model: nn.Module, seed: int = 0) -> nn.Module:
    """Add noise to all tensors, half of which are zeros or ones initially, so that each one matters."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model.eval()


def dense(trace: Trace, block: int) -> Tensor:
    """Return softmax(q @ k.T) in float64: (B, H, N, N)."""
    block_trace = trace.block(block)
    return (block_trace.queries.double() @ block_trace.keys.double().transpose(2, 3)).softmax(dim=-1).detach()


def close(ours: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Assert that two arrays have the same shape and equal numbers within an absolute and relative tolerance."""
    a, b = (x.detach().double().numpy() if isinstance(x, Tensor) else np.asarray(x) for x in (ours, expected))
    assert a.shape == b.shape
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
