"""Define Vision Transformers with attention in windows and stages of merged tokens: Swin, versions 1 and 2.

Liu et al. 2021, "Swin Transformer"; Liu et al. 2022, "Swin Transformer V2: Scaling Up Capacity and Resolution".

A block of these models is a plain block whose batch holds the windows of all images. Relative position biases of
version 2 are stored as the table that its network of log-spaced coordinates computes. Shapes: see `windows.py`.
"""

# ruff: noqa: ARG002 - some methods need fewer arguments than the plain ones

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitviz.model.config import ModelError, ViTConfig
from vitviz.model.layers import Block
from vitviz.model.ops import PLAIN, Explicit, Ops
from vitviz.model.positions import Angles
from vitviz.model.trace import BlockTrace
from vitviz.model.tracing import Tracer
from vitviz.model.vit import Pretrained, ViT
from vitviz.model.windows import Windows, partition


@dataclass(frozen=True, kw_only=True)
class WindowedConfig(ViTConfig):
    """Configuration of a windowed Vision Transformer. Sizes per stage are tuples, first stage first.

    Args:
        width, mlp_width: of the first stage; each later stage has twice the width of the stage before.
        depths, stage_heads: number of blocks, and heads of a block, of each stage; they set `depth` and `heads`.
        windows: rows, and columns, of tokens in a window of each stage.
        cosine_attention: whether logits are cosines of queries and keys, times a learned factor per head (version 2).
    """

    class_token: bool = False
    pooling: Literal["cls", "mean", "cls+mean", "attention"] = "mean"
    positions: Literal["learned", "sincos", "sincos1d", "rotary", "learned+rotary", "none"] = "none"
    norm_patch: bool = True
    depths: tuple[int, ...]
    stage_heads: tuple[int, ...]
    windows: tuple[int, ...]
    cosine_attention: bool = False

    def _check_combinations(self) -> None:
        sizes = (self.depths, self.stage_heads, self.windows)
        if len({len(size) for size in sizes}) != 1 or min(map(min, sizes), default=0) < 1:
            names = "depths, stage_heads and windows"
            raise ModelError(f"Expected {names} with a number of at least 1 per stage, got {sizes}. Give one each.")
        object.__setattr__(self, "depth", sum(self.depths))
        object.__setattr__(self, "heads", self.stage_heads[0])
        if self.prefix or (self.pooling, self.positions, self.relative_bias) != ("mean", "none", False):
            raise ModelError("Expected patches alone, without positions, and their mean, got other parts. Omit them.")
        super()._check_combinations()
        for stage in range(len(self.depths)):
            self.stage_config(stage)  # checks widths and heads

    @property
    def final_width(self) -> int:
        """Return the width of the last stage."""
        return self.width << (len(self.depths) - 1)

    @property
    def size_multiple(self) -> int:
        """Return the number of pixels of which sides must be multiples, so that windows divide every stage."""
        return math.lcm(*(self.patch_size * 2**stage * window for stage, window in enumerate(self.windows)))

    def query_width(self, tokens: int) -> int:
        """Return the width of a head's queries and keys, with a channel for each token of the largest window."""
        return self.head_size + max(self.windows) ** 2

    def stage_config(self, stage: int) -> ViTConfig:
        """Return the config of one block of a stage, whose images are windows and whose patches are their tokens."""
        same = {field.name: getattr(self, field.name) for field in dataclasses.fields(ViTConfig)}
        factor, window = 2**stage, self.windows[stage]
        sizes = {"width": self.width * factor, "mlp_width": self.hidden * factor, "heads": self.stage_heads[stage]}
        one = {"image_size": (window, window), "patch_size": 1, "depth": 1, "classes": 0, "relative_bias": True}
        return ViTConfig(**same | sizes | one)


class UnitVectors(nn.Module):
    """Divide vectors by their length, and multiply them by a learned factor of their head, if any."""

    def __init__(self, heads: int | None = None) -> None:
        super().__init__()
        self.factor = None if heads is None else nn.Parameter(torch.full((heads, 1, 1), 10.0))

    def forward(self, x: Tensor) -> Tensor:
        """Scale vectors: (B, H, N, d) -> (B, H, N, d)."""
        return F.normalize(x, dim=-1) * (1.0 if self.factor is None else self.factor)


class PatchMerging(nn.Module):
    """Concatenate 2 x 2 tokens and map them to a token of twice the width (Liu et al. 2021, section 3.1)."""

    def __init__(self, width: int, eps: float, norm_post: bool) -> None:
        super().__init__()
        self.post = norm_post
        self.norm = nn.LayerNorm((2 if norm_post else 4) * width, eps=eps)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor, grid: tuple[int, int], ops: Ops = PLAIN) -> Tensor:
        """Merge tokens to this grid: (B, 4 n, D) -> (B, n, 2 D)."""
        squares = x.unflatten(1, (grid[0], 2, grid[1], 2))  # (B, gh, 2, gw, 2, D)
        parts = squares.permute(0, 1, 3, 4, 2, 5).flatten(3).flatten(1, 2)  # (B, gh, gw, 2, 2, D) -> (B, n, 4 D)
        if self.post:
            return ops.norm(self.norm, ops.linear(self.reduction, parts))
        return ops.linear(self.reduction, ops.norm(self.norm, parts))


class WindowBlock(Block):
    """Block whose tokens attend to the tokens of their window, after merging tokens at the start of a stage."""

    def __init__(self, config: ViTConfig, path_dropout: float, index: int, cosine: bool, merges: bool) -> None:
        super().__init__(config, path_dropout)
        self.index = index
        self.merge = PatchMerging(config.width // 2, config.norm_eps, config.norm_post) if merges else None
        if cosine:
            self.attn.q_norm, self.attn.k_norm = UnitVectors(config.heads), UnitVectors()
            self.attn.scale = 1.0

    def forward(self, x: Tensor, angles: Angles | None = None, ops: Ops = PLAIN, first: int | None = None) -> Tensor:
        """Run the block: (B, n, D) -> (B, n, D), or (B, 4 n, D / 2) -> (B, n, D) if it merges tokens."""
        windows = cast("tuple[Windows, ...]", angles)[self.index]
        x = x if self.merge is None else self.merge(x, windows.grid, ops)
        placed = (windows.places,) if windows.mask is None else (windows.places, windows.mask)
        return windows.join(super().forward(windows.split(x), placed, ops))


class WindowTracer(Tracer):
    """Operations that record the probabilities in the windows of some blocks, instead of queries and keys."""

    def __init__(self, blocks: tuple[int, ...], grad: bool) -> None:
        super().__init__(blocks, grad=True)

    def _explicit_trace(self, explicit: Explicit) -> tuple[Tensor, BlockTrace | None]:
        q, _, logits, probabilities = explicit.seen.pop()
        lse, empty = logits.detach().float().logsumexp(-1), q.new_empty(*q.shape[:-1], 0)
        return lse, BlockTrace(empty, empty, lse, probabilities, cut=True)


class WindowedViT(ViT):
    """Vision Transformer with attention in windows, whose attention can be traced; see `ViT`."""

    config: WindowedConfig
    tracing = WindowTracer

    def make_blocks(self, rates: Sequence[float]) -> Iterator[Block]:
        """Yield the blocks of all stages."""
        stages = [stage for stage, depth in enumerate(self.config.depths) for _ in range(depth)]
        for index, (stage, rate) in enumerate(zip(stages, rates, strict=True)):
            merges = index > 0 and stages[index - 1] < stage
            yield WindowBlock(self.config.stage_config(stage), rate, index, self.config.cosine_attention, merges)

    def layouts(self, grid: tuple[int, int]) -> tuple[Windows, ...]:
        """Return the windows of each block for a grid of patches; `angles` returns the same."""
        return _layouts(self.config, grid, self.patch_embed.proj.weight.device)


@lru_cache(maxsize=8)
def _layouts(config: WindowedConfig, grid: tuple[int, int], device: torch.device) -> tuple[Windows, ...]:
    return tuple(
        partition(stage, (grid[0] // 2**stage, grid[1] // 2**stage), config.windows[stage], index, device)
        for stage, depth in enumerate(config.depths)
        for index in range(depth)
    )


def build(config: ViTConfig, pretrained: Pretrained | None = None) -> ViT:
    """Return a new model for a config of either kind."""
    return (WindowedViT if isinstance(config, WindowedConfig) else ViT)(config, pretrained)
