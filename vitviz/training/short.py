"""The same logits for less work: of the last block only those tokens are made that the classifiers read.

A model that is read at its class token throws the patches' final tokens away. Its last block needs keys and values of
all tokens, but the query, the output and the MLP of the prefix alone: five sixths of its matrix products fall away,
forward and backward. Numbers differ by rounding only.

Shapes: B images, N tokens, D width, n tokens that are read, H heads, d head width.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from vitviz.config import ViTConfig
from vitviz.edits import Angles
from vitviz.layers import Attention, Block, mix
from vitviz.model import ViT
from vitviz.positions import rotate
from vitviz.training.features import Tail, Whole
from vitviz.training.thinning import Thinning


def tokens_read(config: ViTConfig) -> int | None:
    """How many tokens, from the first on, the classifiers read; `None` for all."""
    return 1 + config.distillation_token if config.pooling == "cls" else None


def encode(model: ViT, tokens: Tensor, angles: Angles | None, start: int = 0) -> Tensor:
    """As `ViT.encode` for who reads the logits alone: (B, N, D) -> final tokens (B, n, D), all where all are read."""
    count = tokens_read(model.config)
    if count is None:
        return model.encode(tokens, angles, start=start)
    *blocks, last = list(model.blocks)[start:]
    for block in blocks:
        tokens = block(tokens, angles)
    assert isinstance(last, Block)  # for the type checker: a ModuleList holds any module
    return model.finish(first_tokens(last, tokens, angles, count))


def first_tokens(block: Block, x: Tensor, angles: Angles | None, count: int) -> Tensor:
    """What a block makes of its first tokens, which are no patches: (B, N, D) -> (B, count, D)."""
    kept = x[:, :count] + block.drop_path(block.ls1(_attend(block.attn, block.norm1(x), angles, count)))
    out: Tensor = kept + block.drop_path(block.ls2(block.mlp(block.norm2(kept))))
    return out


def _attend(attention: Attention, x: Tensor, angles: Angles | None, count: int) -> Tensor:
    """(B, N, D) -> (B, count, D)."""
    inner, weight, bias = attention.heads * attention.head_width, attention.qkv.weight, attention.qkv.bias
    of_q, of_kv = (None, None) if bias is None else (bias[:inner], bias[inner:])
    q = F.linear(x[:, :count], weight[:inner], of_q).unflatten(-1, (attention.heads, -1))  # (B, count, H, d)
    kv = F.linear(x, weight[inner:], of_kv).unflatten(-1, (2, attention.heads, -1))  # (B, N, 2, H, d)
    k, v = kv.permute(2, 0, 3, 1, 4)  # -> 2 x (B, H, N, d)
    q, k = attention.q_norm(q.transpose(1, 2)), attention.k_norm(k)  # q: (B, H, count, d)
    if angles is not None:
        k = rotate(k, angles)  # prefix tokens have no position: the query is not turned
    rate = attention.attention_dropout if attention.training else 0.0
    return attention.merge(mix(q, k, v, attention.scale, dropout=rate))


class ShortWhole(Whole):
    """`Whole`, with a short last block, and in training without the patches that `thinning` leaves out."""

    def __init__(self, model: ViT, thinning: Thinning | None = None) -> None:
        super().__init__(model)
        self.thinning = thinning

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """(B, 3, H, W) -> one or two of (B, C): see `ViT.heads_logits`."""
        tokens, grid = self.model.embed(images)
        angles = self.model.angles(grid)
        if self.training and self.thinning is not None:
            tokens, angles = self.thinning(tokens, angles, self.model.config)
        return self.model.heads_logits(encode(self.model, tokens, angles))


class ShortTail(Tail):
    """`Tail`, with a short last block where blocks learn."""

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        """(B, N, D) or (B, R), of `trunk` -> one or two of (B, C): see `ViT.heads_logits`."""
        (model,) = self._whole
        if self.start == model.config.depth:
            return super().forward(rows)
        return model.heads_logits(encode(model, rows, model.angles(self.grid), self.start))


def network(
    model: ViT, unfreeze_last: int | None, grid: tuple[int, int] | None, thinning: Thinning | None = None
) -> nn.Module:
    """What is trained: the model on images, or, with a `grid` of patches, its tail on a frozen trunk's rows."""
    if grid is None or unfreeze_last is None:
        return ShortWhole(model, thinning)
    return ShortTail(model, unfreeze_last, grid)
