"""A Vision Transformer in NumPy and float64, written from the paper, not from vitviz: what tests compare with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

from vitviz.config import ViTConfig
from vitviz.model import ViT

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Numbers:
    logits: Array  # (B, C), or what the classifier would read
    tokens: Array  # (B, N, D) after the final norm
    attentions: list[Array]  # L x (B, H, N, N)


def parameters(model: ViT) -> dict[str, Array]:
    return {name: value.double().numpy() for name, value in model.state_dict().items()}


def forward(p: dict[str, Array], config: ViTConfig, images: Array, nudge: Mapping[int, Array] | None = None) -> Numbers:
    """Everything at once; `nudge` is added to the probabilities of a block, for finite differences."""
    patch, (batch, channels, height, width) = config.patch_size, images.shape
    rows, columns = height // patch, width // patch
    cut = images.reshape(batch, channels, rows, patch, columns, patch).transpose(0, 2, 4, 1, 3, 5)
    cut = cut.reshape(batch, rows * columns, channels * patch * patch)
    x = cut @ p["patch_embed.proj.weight"].reshape(config.width, -1).T + p["patch_embed.proj.bias"]
    if config.positions == "learned":
        x = x + p["pos_embed"]
    elif config.positions == "sincos":
        x = x + _sincos(rows, columns, config.width)
    front = [p[name] for name in ("cls_token", "dist_token", "reg_token") if name in p]
    x = np.concatenate([*(np.repeat(token, batch, axis=0) for token in front), x], axis=1)
    prefix = x.shape[1] - rows * columns
    attentions = []
    for block in range(config.depth):
        mine = {k.removeprefix(f"blocks.{block}."): v for k, v in p.items() if k.startswith(f"blocks.{block}.")}
        attended, attention = _attend(mine, config, _norm(mine, "norm1", x, config.norm_eps), (nudge or {}).get(block))
        x = x + attended * mine.get("ls1.gamma", 1.0)
        hidden = _norm(mine, "norm2", x, config.norm_eps) @ mine["mlp.fc1.weight"].T + mine["mlp.fc1.bias"]
        hidden = 0.5 * hidden * (1.0 + erf(hidden / np.sqrt(2.0)))  # GELU by its definition
        x = x + (hidden @ mine["mlp.fc2.weight"].T + mine["mlp.fc2.bias"]) * mine.get("ls2.gamma", 1.0)
        attentions.append(attention)
    x = _norm(p, "norm", x, config.norm_eps)
    mean = x[:, prefix:].sum(axis=1) / (rows * columns)
    pooled = {"cls": x[:, 0], "mean": mean, "cls+mean": np.concatenate([x[:, 0], mean], axis=1)}[config.pooling]
    logits = pooled @ p["head.weight"].T + p["head.bias"] if config.classes else pooled
    return Numbers(logits, x, attentions)


def _attend(p: dict[str, Array], config: ViTConfig, x: Array, nudge: Array | None) -> tuple[Array, Array]:
    """One head after the other, as the paper tells it."""
    wide = config.heads * (config.head_width or config.width // config.heads)
    projected = x @ p["attn.qkv.weight"].T + p.get("attn.qkv.bias", 0.0)
    q, k, v = projected[..., :wide], projected[..., wide : 2 * wide], projected[..., 2 * wide :]
    width = wide // config.heads
    mixed, seen = [], []
    for head in range(config.heads):
        mine = slice(head * width, (head + 1) * width)
        logits = q[..., mine] @ k[..., mine].swapaxes(1, 2) / np.sqrt(width)
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        if nudge is not None:
            weights = weights + nudge[:, head]
        mixed.append(weights @ v[..., mine])
        seen.append(weights)
    out = np.concatenate(mixed, axis=-1) @ p["attn.proj.weight"].T + p["attn.proj.bias"]
    return out, np.stack(seen, axis=1)


def _norm(p: dict[str, Array], name: str, x: Array, eps: float) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps) * p[f"{name}.weight"] + p[f"{name}.bias"]


def _sincos(rows: int, columns: int, width: int) -> Array:
    """Beyer et al. 2022: x is the column, and its sines and cosines come first."""
    y, x = np.mgrid[:rows, :columns].reshape(2, -1, 1).astype(float)
    frequency = 10_000.0 ** -np.linspace(0.0, 1.0, width // 4)
    return np.concatenate(
        [np.sin(x * frequency), np.cos(x * frequency), np.sin(y * frequency), np.cos(y * frequency)], 1
    )
