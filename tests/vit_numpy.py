"""A Vision Transformer in NumPy and float64, written from the paper, not from vitviz: what tests compare with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

from vitviz.model.config import ViTConfig
from vitviz.model.vit import ViT

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
    x = cut @ p["patch_embed.proj.weight"].reshape(config.width, -1).T + p.get("patch_embed.proj.bias", 0.0)
    if config.positions == "learned":
        x = x + p["pos_embed"]
    elif config.positions == "sincos":
        x = x + _sincos(rows, columns, config.width)
    elif config.positions == "sincos1d":
        x = x + _sincos1d(rows * columns, config.width)
    front = [p[name] for name in ("cls_token", "dist_token", "reg_token") if name in p]
    x = np.concatenate([*(np.repeat(token, batch, axis=0) for token in front), x], axis=1)
    prefix = x.shape[1] - rows * columns
    if config.norm_pre:
        x = _norm(p, "norm_pre", x, config.norm_eps)
    attentions = []
    for block in range(config.depth):
        mine = {k.removeprefix(f"blocks.{block}."): v for k, v in p.items() if k.startswith(f"blocks.{block}.")}
        normed = _norm(mine, "norm1", x, config.norm_eps)
        attended, attention = _attend(mine, config, normed, (nudge or {}).get(block), (rows, columns))
        x = x + attended * mine.get("ls1.gamma", 1.0)
        x = x + _mlp(mine, config, _norm(mine, "norm2", x, config.norm_eps)) * mine.get("ls2.gamma", 1.0)
        attentions.append(attention)
    if not config.norm_pooled:
        x = _norm(p, "norm", x, config.norm_eps)
    mean = x[:, prefix:].sum(axis=1) / (rows * columns)
    if config.pooling == "attention":
        pooled = _pool(p, config, x)
    else:
        pooled = {"cls": x[:, 0], "mean": mean, "cls+mean": np.concatenate([x[:, 0], mean], axis=1)}[config.pooling]
    if config.norm_pooled:
        pooled = _norm(p, "norm", pooled, config.norm_eps)
    logits = pooled @ p["head.weight"].T + p["head.bias"] if config.classes else pooled
    if "head_dist.weight" in p:  # DeiT: the mean of two classifiers, each on its own token
        token = x[:, config.prefix.index("distillation")]
        logits = 0.5 * logits + 0.5 * (token @ p["head_dist.weight"].T + p["head_dist.bias"])
    return Numbers(logits, x, attentions)


def _mlp(p: dict[str, Array], config: ViTConfig, x: Array) -> Array:
    hidden = x @ p["mlp.fc1.weight"].T + p.get("mlp.fc1.bias", 0.0)
    if config.mlp == "swiglu":
        gate, passed = hidden[..., : config.hidden], hidden[..., config.hidden :]
        hidden = gate / (1.0 + np.exp(-gate)) * passed
    elif config.activation == "gelu":
        hidden = 0.5 * hidden * (1.0 + erf(hidden / np.sqrt(2.0)))  # by its definition
    elif config.activation == "gelu_tanh":
        hidden = 0.5 * hidden * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (hidden + 0.044715 * hidden**3)))
    else:
        hidden = hidden / (1.0 + np.exp(-1.702 * hidden))
    return hidden @ p["mlp.fc2.weight"].T + p.get("mlp.fc2.bias", 0.0)


def _pool(p: dict[str, Array], config: ViTConfig, x: Array) -> Array:
    """One learned query looks at all tokens, head by head; then an MLP beside the stream."""
    q = (p["attn_pool.latent"][:, 0] @ p["attn_pool.q.weight"].T + p["attn_pool.q.bias"])[0]
    kv = x @ p["attn_pool.kv.weight"].T + p["attn_pool.kv.bias"]
    k, v = kv[..., : config.width], kv[..., config.width :]
    width, mixed = config.width // config.heads, []
    for head in range(config.heads):
        mine = slice(head * width, (head + 1) * width)
        weights = np.exp(k[..., mine] @ q[mine] / np.sqrt(width))  # (B, N)
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed.append(np.einsum("bn,bnd->bd", weights, v[..., mine]))
    pooled = np.concatenate(mixed, axis=-1) @ p["attn_pool.proj.weight"].T + p["attn_pool.proj.bias"]
    mine = {name.removeprefix("attn_pool."): value for name, value in p.items() if name.startswith("attn_pool.")}
    return pooled + _mlp(mine, config, _norm(p, "attn_pool.norm", pooled, config.norm_eps))


def _turn(x: Array, rows: int, columns: int, base: float) -> Array:
    """Rotary positions, one patch and one pair of channels at a time: x (B, N, d)."""
    out, width, prefix = x.copy(), x.shape[-1], x.shape[1] - rows * columns
    for row in range(rows):
        for column in range(columns):
            token = prefix + row * columns + column
            places = (2 * (row + 0.5) / rows - 1, 2 * (column + 0.5) / columns - 1)
            for pair in range(width // 2):
                place, step = places[pair // (width // 4)], pair % (width // 4)
                angle = 2 * np.pi * place / base ** (4 * step / width)
                a, b = x[:, token, pair], x[:, token, pair + width // 2]
                out[:, token, pair] = a * np.cos(angle) - b * np.sin(angle)
                out[:, token, pair + width // 2] = b * np.cos(angle) + a * np.sin(angle)
    return out


def _attend(
    p: dict[str, Array], config: ViTConfig, x: Array, nudge: Array | None, grid: tuple[int, int]
) -> tuple[Array, Array]:
    """One head after the other, as the paper tells it."""
    wide = config.heads * (config.head_width or config.width // config.heads)
    projected = x @ p["attn.qkv.weight"].T + p.get("attn.qkv.bias", 0.0)
    q, k, v = projected[..., :wide], projected[..., wide : 2 * wide], projected[..., 2 * wide :]
    width = wide // config.heads
    mixed, seen = [], []
    for head in range(config.heads):
        mine = slice(head * width, (head + 1) * width)
        asks, answers = q[..., mine], k[..., mine]
        if config.qk_norm:
            asks = _norm(p, "attn.q_norm", asks, config.norm_eps)
            answers = _norm(p, "attn.k_norm", answers, config.norm_eps)
        if config.positions == "rotary":
            asks, answers = (_turn(one, *grid, config.rotary_base) for one in (asks, answers))
        logits = asks @ answers.swapaxes(1, 2) / np.sqrt(width)
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


def _sincos1d(count: int, width: int) -> Array:
    """Vaswani et al. 2017, section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i / D)), PE(pos, 2i + 1) its cosine."""
    table = np.zeros((count, width))
    for place in range(count):
        for i in range(width // 2):
            angle = place / 10_000 ** (2 * i / width)
            table[place, 2 * i], table[place, 2 * i + 1] = np.sin(angle), np.cos(angle)
    return table
