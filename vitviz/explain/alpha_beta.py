"""The relevance of Chefer, Gur & Wolf 2021 (CVPR), "Transformer Interpretability Beyond Attention Visualization".

A forward pass that keeps what every layer saw, and the way back through it, layer by layer, by the rules of the
authors' program: alpha-beta with alpha = 1 on linear maps (biases take nothing); each input's share of a product, half
of it for each factor; sums split in proportion, then scaled by the size of each branch; and unchanged through norms,
softmax, activations and layer scale. What that program has no rule for (rotations, gated MLPs, the mean over patches,
attention pooling, two classifiers) follows the same rules.

Shapes: B images, H heads, N tokens, D width, d head width, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitviz.layers import MLP, Attention, AttentionPool, Block
from vitviz.model import ViT
from vitviz.positions import rotate

Angles = tuple[Tensor, Tensor]
TINY = 1e-9  # of the authors' program


@dataclass(frozen=True, eq=False)
class SeenMLP:
    """Of an MLP: its input, what the first layer made of it, what the second one got, and the result."""

    x: Tensor
    wide: Tensor
    active: Tensor
    out: Tensor


@dataclass(frozen=True, eq=False)
class SeenAttention:
    """Of attention: its input (B, N, D), qkv, the turned q and k and the v (B, H, N, d), the probabilities
    (B, H, N, N), what the projection got (B, N, H * d), and the result.

    In attention pooling `qkv` is of keys and values, and `q` (B, H, 1, d) is the same for every image.
    """

    x: Tensor
    qkv: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    probabilities: Tensor
    mixed: Tensor
    out: Tensor


@dataclass(frozen=True, eq=False)
class SeenBlock:
    """Of a block: the stream before it (B, N, D), after attention, and its two branches, with what was added."""

    x: Tensor
    attention: SeenAttention
    attended: Tensor
    middle: Tensor
    mlp: SeenMLP
    added: Tensor


@dataclass(frozen=True, eq=False)
class Seen:
    """Of a forward pass: all blocks, the tokens that are pooled, what was pooled, the pooling, and the classifiers."""

    blocks: tuple[SeenBlock, ...]
    tokens: Tensor
    pool: tuple[SeenAttention, SeenMLP] | None
    pooled: Tensor
    read: Tensor
    heads: tuple[Tensor, ...]

    @property
    def logits(self) -> Tensor:
        """(B, C)."""
        return sum(self.heads[1:], self.heads[0]) / len(self.heads)

    @property
    def probabilities(self) -> list[Tensor]:
        """Of every block (B, H, N, N), and of attention pooling (B, H, 1, N) after them."""
        blocks = [block.attention.probabilities for block in self.blocks]
        return blocks if self.pool is None else [*blocks, self.pool[0].probabilities]


# Forward: the model's own layers, with a graph from the first probabilities on.


def watch(model: ViT, tokens: Tensor, angles: Angles | None) -> Seen:
    """Run the model on the tokens (B, N, D) that enter its first block, and keep what every layer saw."""
    blocks = []
    for block in model.blocks:
        assert isinstance(block, Block)  # for the type checker: a ModuleList holds any module
        blocks.append(_watch_block(block, tokens, angles))
        tokens = blocks[-1].middle + blocks[-1].added
    tokens = model.finish(tokens)
    pool = None
    if model.attn_pool is not None:
        pool = _watch_pool(model.attn_pool, tokens)
        pooled = (pool[0].out + pool[1].out).squeeze(1)  # (B, 1, D) -> (B, D)
    else:
        pooled = torch.cat([tokens[:, rows].mean(1) for rows in _read_rows(model)], dim=1)  # (B, D) or (B, 2 D)
    read = model.norm(pooled) if model.config.norm_pooled else pooled
    assert model.head is not None  # there is a target, so there is a classifier
    heads = [model.head(read)]
    if model.head_dist is not None:
        heads.append(model.head_dist(tokens[:, model.config.distillation_at]))
    return Seen(tuple(blocks), tokens, pool, pooled, read, tuple(heads))


def _read_rows(model: ViT) -> list[slice]:
    """The tokens whose mean is pooled, for each part of what the classifier reads."""
    first, patches = slice(0, 1), slice(len(model.config.prefix), None)
    return {"cls": [first], "mean": [patches], "cls+mean": [first, patches]}[model.config.pooling]


def _watch_block(block: Block, x: Tensor, angles: Angles | None) -> SeenBlock:
    attention = _watch_attention(block.attn, block.norm1(x), angles)
    attended = block.ls1(attention.out)
    middle = x + attended
    mlp = _watch_mlp(block.mlp, block.norm2(middle))
    return SeenBlock(x, attention, attended, middle, mlp, block.ls2(mlp.out))


def _watch_attention(attn: Attention, x: Tensor, angles: Angles | None) -> SeenAttention:
    qkv = attn.qkv(x)
    q, k, v = _heads(qkv, 3, attn.heads)  # 3 x (B, H, N, d)
    q, k = attn.q_norm(q), attn.k_norm(k)
    if angles is not None:
        q, k = rotate(q, angles), rotate(k, angles)
    return _watch_mix(x, qkv, q, k, v, attn.scale, attn.proj)


def _watch_pool(pool: AttentionPool, x: Tensor) -> tuple[SeenAttention, SeenMLP]:
    kv = pool.kv(x)
    k, v = _heads(kv, 2, pool.heads)
    q = pool.q(pool.latent.expand(len(x), -1, -1)).unflatten(2, (pool.heads, -1)).transpose(1, 2)  # (B, H, 1, d)
    attention = _watch_mix(x, kv, q, k, v, q.shape[-1] ** -0.5, pool.proj)
    return attention, _watch_mlp(pool.mlp, pool.norm(attention.out))


def _watch_mix(x: Tensor, qkv: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float, proj: nn.Module) -> SeenAttention:
    probabilities = (q @ k.mT * scale).softmax(dim=-1)  # (B, H, n, d) @ (B, H, d, N) -> (B, H, n, N)
    if not probabilities.requires_grad:
        probabilities.requires_grad_()  # frozen weights: the graph starts here
    mixed = (probabilities @ v).transpose(1, 2).flatten(2)  # (B, H, n, d) -> (B, n, H * d)
    return SeenAttention(x, qkv, q, k, v, probabilities, mixed, proj(mixed))


def _watch_mlp(mlp: MLP, x: Tensor) -> SeenMLP:
    wide = mlp.fc1(x)
    if mlp.gated:
        gate, passed = wide.chunk(2, dim=-1)
        active = mlp.activation(gate) * passed
    else:
        active = mlp.activation(wide)
    return SeenMLP(x, wide, active, mlp.fc2(active))


def _heads(joined: Tensor, parts: int, heads: int) -> Tensor:
    """(B, N, parts * H * d) -> parts x (B, H, N, d)."""
    split: Tensor = joined.unflatten(-1, (parts, heads, -1)).permute(2, 0, 3, 1, 4)
    return split


# Backward: relevance (of the shape of a layer's output) to relevance (of the shape of its input).


@torch.no_grad()
def attention_relevance(model: ViT, seen: Seen, relevance: Tensor, angles: Angles | None, start: int) -> list[Tensor]:
    """The relevance of attention probabilities, from that of the logits (B, C).

    Returns:
        (B, H, N, N) for each block from `start` on, in order; then (B, H, 1, N) of attention pooling, where there is.
    """
    cams = []
    relevance, pool = _from_logits(model, seen, relevance)
    for index in range(model.config.depth - 1, start - 1, -1):
        block = model.blocks[index]
        assert isinstance(block, Block)  # for the type checker
        relevance, cam = _through_block(block, seen.blocks[index], relevance, angles, last=index == start)
        cams.append(cam)
    return [*reversed(cams), *([] if pool is None else [pool])]


def _from_logits(model: ViT, seen: Seen, relevance: Tensor) -> tuple[Tensor, Tensor | None]:
    """From the logits (B, C) to the tokens after the last block (B, N, D), and to attention pooling's probabilities."""
    assert model.head is not None
    side, at = None, model.config.distillation_at
    if model.head_dist is not None:
        relevance, side = split_sum(seen.heads[0] / 2, seen.heads[1] / 2, relevance)
        side = _linear(model.head_dist, seen.tokens[:, at], seen.heads[1], side)
    relevance = _linear(model.head, seen.read, seen.heads[0], relevance)
    cam = None
    if seen.pool is not None:
        assert model.attn_pool is not None
        tokens, cam = _through_pool(model.attn_pool, *seen.pool, relevance[:, None])  # (B, D) -> (B, 1, D)
    else:
        tokens = torch.zeros_like(seen.tokens)
        rows = _read_rows(model)
        for part, mean, some in zip(relevance.chunk(len(rows), 1), seen.pooled.chunk(len(rows), 1), rows, strict=True):
            values = seen.tokens[:, some]
            tokens[:, some] += values * safe_divide(part, mean)[:, None] / values.shape[1]
    if side is not None:
        tokens[:, at] += side
    return tokens, cam


def _through_pool(pool: AttentionPool, seen: SeenAttention, mlp: SeenMLP, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """From the pooled token (B, 1, D) to all tokens (B, N, D), and to the probabilities (B, H, 1, N)."""
    stay, branch = split_sum(seen.out, mlp.out, relevance)
    relevance = join(seen.out, stay, _through_mlp(pool.mlp, mlp, branch))
    cam, values = _through_mix(seen, pool.proj, relevance)
    share = safe_divide(cam, seen.q @ seen.k.mT)  # (B, H, 1, N)
    keys = seen.k * (share.mT @ seen.q)  # all of it: the query is the same for every image
    joined = torch.stack([keys, values]).permute(1, 3, 0, 2, 4).flatten(2)  # 2 x (B, H, N, d) -> (B, N, 2 * H * d)
    return _linear(pool.kv, seen.x, seen.qkv, joined), cam


def _through_block(
    block: Block, seen: SeenBlock, relevance: Tensor, angles: Angles | None, last: bool
) -> tuple[Tensor, Tensor]:
    """From after a block to before it (B, N, D), and to its probabilities; the `last` one only to those."""
    stay, branch = split_sum(seen.middle, seen.added, relevance)
    relevance = join(seen.middle, stay, _through_mlp(block.mlp, seen.mlp, branch))
    stay, branch = split_sum(seen.x, seen.attended, relevance)
    cam, values = _through_mix(seen.attention, block.attn.proj, branch)
    if last:
        return stay, cam
    branch = _through_logits(block.attn, seen.attention, cam, values, angles)
    return join(seen.x, stay, branch), cam


def _through_mix(seen: SeenAttention, proj: nn.Linear, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """From attention's output (B, n, D) to its probabilities (B, H, n, N) and values (B, H, N, d)."""
    relevance = _linear(proj, seen.mixed, seen.out, relevance)
    share = safe_divide(relevance, seen.mixed).unflatten(2, (seen.q.shape[1], -1)).transpose(1, 2)  # (B, H, n, d)
    cam = seen.probabilities * (share @ seen.v.mT) / 2
    return cam, seen.v * (seen.probabilities.mT @ share) / 2


def _through_logits(attn: Attention, seen: SeenAttention, cam: Tensor, values: Tensor, angles: Angles | None) -> Tensor:
    """From probabilities (B, H, N, N) and values (B, H, N, d) to the input of attention (B, N, D)."""
    share = safe_divide(cam, seen.q @ seen.k.mT)  # (B, H, N, N); the softmax hands relevance on unchanged
    into_q, into_k = share @ seen.k / 2, share.mT @ seen.q / 2  # relevance of q and k, divided by them
    q, k = seen.q, seen.k
    if angles is not None:
        back = angles[0], -angles[1]
        q, k, into_q, into_k = (rotate(each, back) for each in (q, k, into_q, into_k))
    joined = torch.stack([q * into_q, k * into_k, values])  # 3 x (B, H, N, d)
    joined = joined.permute(1, 3, 0, 2, 4).flatten(2)  # -> (B, N, 3 * H * d)
    return _linear(attn.qkv, seen.x, seen.qkv, joined)


def _through_mlp(mlp: MLP, seen: SeenMLP, relevance: Tensor) -> Tensor:
    relevance = _linear(mlp.fc2, seen.active, seen.out, relevance)
    if mlp.gated:
        relevance = torch.cat([relevance / 2, relevance / 2], dim=-1)  # a product: half to the gate
    return _linear(mlp.fc1, seen.x, seen.wide, relevance)


def _linear(layer: nn.Linear, x: Tensor, out: Tensor, relevance: Tensor) -> Tensor:
    """The alpha-beta rule with alpha = 1: only positive contributions w_ij x_i count.

    max(0, w x) = (w x + |w x|) / 2, and the sum over w x is at hand: three products instead of four.
    """
    weight, sizes = layer.weight, layer.weight.abs()
    plain = out if layer.bias is None else out - layer.bias
    share = safe_divide(relevance, (plain + F.linear(x.abs(), sizes)) / 2)
    return (x * (share @ weight) + x.abs() * (share @ sizes)) / 2


def split_sum(a: Tensor, b: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """From a sum to its two terms: in proportion, then scaled so that each image's total stays.

    The total alone: where two terms nearly cancel, their shares are large and of opposite signs, and what is rounded
    off decides about them. The authors' program does the same, and so this method's maps are less steady than others'.
    """
    share = safe_divide(relevance, a + b)
    a, b = a * share, b * share
    sums = [_total(each) for each in (a, b, relevance)]
    both = sums[0].abs() + sums[1].abs()
    scaled = [
        each * safe_divide(safe_divide(own.abs(), both) * sums[2], own)
        for each, own in zip((a, b), sums[:2], strict=True)
    ]
    return scaled[0], scaled[1]


def join(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The relevance of a value that went two ways."""
    return x * (safe_divide(a, x) + safe_divide(b, x))


def safe_divide(a: Tensor, b: Tensor) -> Tensor:
    """The quotient a / b, 0 where b is 0 and finite elsewhere, with the small number of the authors' program."""
    below = b + TINY
    below = torch.where(below == 0, TINY, below)
    return torch.where(b == 0, 0.0, a / below)


def _total(x: Tensor) -> Tensor:
    """The sum over each image, with the axes kept: (B, ...) -> (B, 1, ...)."""
    return x.sum(dim=tuple(range(1, x.ndim)), keepdim=True)
