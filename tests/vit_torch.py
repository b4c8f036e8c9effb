"""A Vision Transformer in PyTorch, written out from its parameters for one image in float64, for gradients of anything.

Not from vitviz: what tests of gradient methods compare with. Without rotary positions and norms of queries and keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vitviz.model.config import ViTConfig
from vitviz.model.vit import ViT

Parameters = dict[str, Tensor]


@dataclass(frozen=True)
class Graph:
    """Everything of one run on one image, all of it in one autograd graph.

    attentions: L x (H, N, N). added: L x (H, N, D), the transformed values of each head. leaving: L x (N, D), what
    leaves each block. pooled: (H, N) of attention pooling. logits: (C,).
    """

    attentions: list[Tensor]
    added: list[Tensor]
    leaving: list[Tensor]
    pooled: Tensor | None
    logits: Tensor


def run(model: ViT, image: Tensor) -> Graph:
    """(channels, H, W) -> everything."""
    p = {name: value.detach().double() for name, value in model.state_dict().items()}
    config, image = model.config, image.double().requires_grad_()
    side = config.patch_size
    kernel = p["patch_embed.proj.weight"]  # (D, channels, side, side)
    patches = [
        (kernel * image[:, top : top + side, left : left + side]).sum((1, 2, 3))
        for top in range(0, image.shape[1], side)
        for left in range(0, image.shape[2], side)
    ]
    x = torch.stack(patches) + p["patch_embed.proj.bias"] + p["pos_embed"][0]
    front = [p[name][0] for name in ("cls_token", "dist_token", "reg_token") if name in p]
    x = torch.cat([*front, x])
    attentions, added, leaving = [], [], []
    for block in range(config.depth):
        mine = {k.removeprefix(f"blocks.{block}."): v for k, v in p.items() if k.startswith(f"blocks.{block}.")}
        probabilities, vectors = _attend(mine, config, _norm(mine, "norm1", x, config))
        handed = torch.stack([a @ v for a, v in zip(probabilities, vectors, strict=True)]).sum(0)
        x = x + handed + mine["attn.proj.bias"] * mine.get("ls1.gamma", 1.0)
        x = x + _mlp(mine, _norm(mine, "norm2", x, config)) * mine.get("ls2.gamma", 1.0)
        attentions.append(probabilities)
        added.append(vectors)
        leaving.append(x)
    return Graph(attentions, added, leaving, *answer(model, x))


def answer(model: ViT, x: Tensor) -> tuple[Tensor | None, Tensor]:
    """From the tokens (N, D) that leave a block: the pooling's attention (H, N), if it has one, and logits (C,)."""
    p = {name: value.detach().double() for name, value in model.state_dict().items()}
    config, pooled = model.config, None
    if not config.norm_pooled:
        x = _norm(p, "norm", x, config)
    patches = x[len(config.prefix) :]
    if config.pooling == "attention":
        width = config.width // config.heads
        q = p["attn_pool.q.weight"] @ p["attn_pool.latent"][0, 0] + p["attn_pool.q.bias"]
        k, v = (x @ p["attn_pool.kv.weight"].T + p["attn_pool.kv.bias"]).split(config.width, dim=1)
        pooled = torch.stack(
            [(a @ b / width**0.5).softmax(0) for a, b in zip(k.split(width, 1), q.split(width), strict=True)]
        )
        mixed = torch.cat([a @ b for a, b in zip(pooled, v.split(width, 1), strict=True)])
        read = p["attn_pool.proj.weight"] @ mixed + p["attn_pool.proj.bias"]
        mine = {name.removeprefix("attn_pool."): value for name, value in p.items() if name.startswith("attn_pool.")}
        read = read + _mlp(mine, _norm(mine, "norm", read, config))
    else:
        parts = {"cls": [x[0]], "mean": [patches.mean(0)], "cls+mean": [x[0], patches.mean(0)]}
        read = torch.cat(parts[config.pooling])
    if config.norm_pooled:
        read = _norm(p, "norm", read, config)
    logits = p["head.weight"] @ read + p["head.bias"]
    if "head_dist.weight" in p:
        logits = (logits + p["head_dist.weight"] @ x[config.prefix.index("distillation")] + p["head_dist.bias"]) / 2
    return pooled, logits


def _attend(p: Parameters, config: ViTConfig, x: Tensor) -> tuple[Tensor, Tensor]:
    """(N, D) -> probabilities (H, N, N) and the values of each head after the output projection (H, N, D)."""
    width = config.head_size
    wide = config.heads * width
    q, k, v = (x @ p["attn.qkv.weight"].T + p["attn.qkv.bias"]).split(wide, dim=1)
    probabilities, vectors = [], []
    for head in range(config.heads):
        mine = slice(head * width, (head + 1) * width)
        probabilities.append((q[:, mine] @ k[:, mine].T / width**0.5).softmax(dim=1))
        vectors.append(v[:, mine] @ p["attn.proj.weight"][:, mine].T * p.get("ls1.gamma", torch.ones(1)))
    return torch.stack(probabilities), torch.stack(vectors)


def _mlp(p: Parameters, x: Tensor) -> Tensor:
    hidden = x @ p["mlp.fc1.weight"].T + p["mlp.fc1.bias"]
    hidden = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
    return hidden @ p["mlp.fc2.weight"].T + p["mlp.fc2.bias"]


def _norm(p: Parameters, name: str, x: Tensor, config: ViTConfig) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    spread = (centred.square().mean(-1, keepdim=True) + config.norm_eps).sqrt()
    return centred / spread * p[f"{name}.weight"] + p[f"{name}.bias"]
