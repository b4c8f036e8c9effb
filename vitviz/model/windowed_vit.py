"""Define Vision Transformers with attention in windows: Swin, versions 1 and 2, and the encoders of SAM and ViTDet.

Liu et al. 2021, "Swin Transformer"; Liu et al. 2022, "Swin Transformer V2: Scaling Up Capacity and Resolution"; Li et
al. 2022, "Exploring Plain Vision Transformer Backbones for Object Detection" (ViTDet); Kirillov et al. 2023, "Segment
Anything" (SAM).

The attention of such a block is that of a plain block whose batch holds the windows of all images. Relative position
biases of Swin v2 are stored as the table that its network of log-spaced coordinates computes. Shapes: see `windows.py`.
"""

# ruff: noqa: ARG002 - some methods need fewer arguments than the plain ones

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitviz.model.config import ModelError, ViTConfig
from vitviz.model.layers import Attention, Block
from vitviz.model.ops import PLAIN, Explicit, Ops
from vitviz.model.positions import Angles, wide
from vitviz.model.trace import BlockState, BlockTrace
from vitviz.model.tracing import Recall, Recorder, Tracer
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
        padded: whether zeros fill the windows at the border, and no block shifts its windows (SAM), instead of every
            second block (Swin).
        global_blocks: indices of blocks whose window is the whole grid.
        window_bias: relative position bias: a number of each head ("table"), or products of queries with a vector of
            the difference of rows and a vector of the difference of columns ("decomposed", SAM).
        neck: output width of SAM's convolutions after the last block; 0 for only their last norm, `None` for no neck.
    """

    class_token: bool = False
    pooling: Literal["cls", "mean", "cls+mean", "attention"] = "mean"
    positions: Literal["learned", "sincos", "sincos1d", "rotary", "learned+rotary", "none"] = "none"
    norm_patch: bool = True
    depths: tuple[int, ...]
    stage_heads: tuple[int, ...]
    windows: tuple[int, ...]
    cosine_attention: bool = False
    padded: bool = False
    global_blocks: tuple[int, ...] = ()
    window_bias: Literal["table", "decomposed", "none"] = "table"
    neck: int | None = None

    def _check_combinations(self) -> None:
        sizes = (self.depths, self.stage_heads, self.windows)
        if len({len(size) for size in sizes}) != 1 or min(map(min, sizes), default=0) < 1:
            names = "depths, stage_heads and windows"
            raise ModelError(f"Expected {names} with a number of at least 1 per stage, got {sizes}. Give one each.")
        object.__setattr__(self, "depth", sum(self.depths))
        object.__setattr__(self, "heads", self.stage_heads[0])
        plain = not self.prefix and (self.pooling, self.relative_bias) == ("mean", False)
        if not plain or self.positions not in ("none", "learned"):
            raise ModelError("Expected patches alone, learned or no positions, and their mean, got others. Omit them.")
        if not all(0 <= block < self.depth for block in self.global_blocks):
            raise ModelError(f"Expected global_blocks in 0..{self.depth - 1}, got {self.global_blocks}. Correct them.")
        super()._check_combinations()
        for stage in range(len(self.depths)):
            self.stage_config(stage)  # checks widths and heads

    @property
    def final_width(self) -> int:
        """Return the width of the last stage, or of the neck."""
        return self.neck or self.width << (len(self.depths) - 1)

    @property
    def size_multiple(self) -> int:
        """Return the number of pixels of which sides must be multiples, so that windows divide every stage."""
        windows = (1,) * len(self.windows) if self.padded else self.windows
        return math.lcm(*(self.patch_size * 2**stage * window for stage, window in enumerate(windows)))

    def query_width(self, tokens: int) -> int:
        """Return the width of a head's queries and keys, with the channels of the bias in the largest window."""
        side = math.ceil(tokens**0.5) if self.global_blocks else max(self.windows)
        return self.head_size + {"table": side**2, "decomposed": 2 * side, "none": 0}[self.window_bias]

    def pairs(self, tokens: int) -> int:
        """Return the number of query-key pairs of a head: within windows, or all pairs if a block is global."""
        return tokens * (tokens if self.global_blocks else min(tokens, self.windows[0] ** 2))

    def stage_config(self, stage: int) -> ViTConfig:
        """Return the config of one block of a stage, whose images are windows and whose patches are their tokens."""
        same = {field.name: getattr(self, field.name) for field in dataclasses.fields(ViTConfig)}
        factor, window = 2**stage, self.windows[stage]
        sizes = {"width": self.width * factor, "mlp_width": self.hidden * factor, "heads": self.stage_heads[stage]}
        one = {"image_size": (window, window), "patch_size": 1, "depth": 1, "classes": 0, "positions": "none"}
        return ViTConfig(**same | sizes | one | {"relative_bias": self.window_bias == "table"})

    def window_of(self, block: int, stage: int, grid: tuple[int, int]) -> tuple[int, int]:
        """Return rows and columns of tokens in a window of a block, for the grid of its stage."""
        return grid if block in self.global_blocks else (self.windows[stage],) * 2


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


class DecomposedAttention(Attention):
    """Attention with a relative position bias of products with queries (Li et al. 2022, "MViTv2", section 4.1).

    The bias of a row, and of a column, becomes one more channel: a query's is its product with the vector of the
    difference, and a key's is 1 in its own row and column and 0 elsewhere.
    """

    def __init__(self, config: ViTConfig, grid: tuple[int, int]) -> None:
        super().__init__(config)
        self.rel_pos_h, self.rel_pos_w = (nn.Parameter(torch.zeros(2 * side - 1, self.head_width)) for side in grid)

    def place(
        self, q: Tensor, k: Tensor, angles: Angles | None, ops: Ops = PLAIN, heads: slice = slice(None)
    ) -> tuple[Tensor, Tensor]:
        """Apply norm and bias to queries and keys, (B, H, M, d) each; `angles` holds the place of each token."""
        q, k = super().place(q, k, None, ops, heads)
        assert angles is not None
        places = angles.places
        assert places is not None
        grid = tuple((places[-1] + 1).tolist())
        squares = q.unflatten(2, grid)  # (B, H, rows, columns, d)
        channels = [
            torch.einsum(f"bhrcd,{axis}kd->bhrck", squares, _by_difference(table, side).to(q)).flatten(2, 3)
            for axis, table, side in zip("rc", (self.rel_pos_h, self.rel_pos_w), grid, strict=True)
        ]  # (B, H, M, rows) and (B, H, M, columns)
        of_keys = [F.one_hot(place, side) for place, side in zip(places.T, grid, strict=True)]
        return ops.append(q, torch.cat(channels, dim=-1) / self.scale), ops.append(k, torch.cat(of_keys, dim=-1))


def _by_difference(table: Tensor, side: int) -> Tensor:
    """Return the vector of each pair of rows, query first, from a table (R, d), interpolated: (side, side, d)."""
    if len(table) != 2 * side - 1:
        table = F.interpolate(wide(table).T[None], 2 * side - 1, mode="linear")[0].T
    place = torch.arange(side, device=table.device)
    return table[place[:, None] - place + side - 1]


NECK_EPS = 1e-6
"""Epsilon of the norms in SAM's neck, also where the blocks have another."""


class Neck(nn.Module):
    """Convolutions after the last block, 1 x 1 and 3 x 3 with a norm after each, or the last norm alone (SAM)."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, 1, bias=False) if out else None
        self.norm1 = nn.LayerNorm(out, eps=NECK_EPS) if out else None
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False) if out else None
        self.norm2 = nn.LayerNorm(out or width, eps=NECK_EPS)

    def forward(self, x: Tensor, grid: tuple[int, int], ops: Ops = PLAIN) -> Tensor:
        """Transform tokens: (B, n, D) -> (B, n, D')."""
        for conv, norm in ((self.conv1, self.norm1), (self.conv2, self.norm2)):
            x = x if conv is None else conv(x.mT.unflatten(2, grid)).flatten(2).mT  # (B, D, gh, gw) inside
            x = x if norm is None else ops.norm(norm, x)
        return x


class WindowBlock(Block):
    """Block whose tokens attend to the tokens of their window, after merging tokens at the start of a stage.

    Args:
        config: of all windowed models.
        stage, index: number of its stage, and its own number.
        path_dropout: probability of stochastic depth.
        merges: whether it is the first block of a later stage.
    """

    def __init__(self, config: WindowedConfig, stage: int, index: int, path_dropout: float, merges: bool) -> None:
        own = config.stage_config(stage)
        super().__init__(own, path_dropout)
        self.index, self.biased = index, config.window_bias != "none"
        self.merge = PatchMerging(own.width // 2, own.norm_eps, own.norm_post) if merges else None
        if config.window_bias == "decomposed":
            rows, columns = config.grid
            self.attn = DecomposedAttention(own, config.window_of(index, stage, (rows >> stage, columns >> stage)))
        if config.cosine_attention:
            self.attn.q_norm, self.attn.k_norm = UnitVectors(own.heads), UnitVectors()
            self.attn.scale = 1.0

    def forward(self, x: Tensor, angles: Angles | None = None, ops: Ops = PLAIN, first: int | None = None) -> Tensor:
        """Run the block: (B, n, D) -> (B, n, D), or (B, 4 n, D / 2) -> (B, n, D) if it merges tokens."""
        assert angles is not None
        windows = angles.windows[self.index]
        x = x if self.merge is None else self.merge(x, windows.grid, ops)
        placed = Angles(places=windows.places, mask=windows.mask) if self.biased else None
        entered = self.enter(x, ops)
        attended = windows.join(self.attn(windows.split(entered), placed, ops))
        return self.finish(x, attended, ops, entered)


class WindowTracer(Tracer):
    """Operations that record the probabilities in the windows of some blocks, or queries and keys if they are smaller.

    They are smaller in SAM's blocks with one window. With `grad=True`, all are probabilities.
    """

    def __init__(self, blocks: tuple[int, ...], grad: bool) -> None:
        super().__init__(blocks, grad=True)
        self.probabilities = grad

    def block(self, index: int, block: Block, x: Tensor, angles: Angles | None) -> Tensor:
        """Run a block, and record its attention if it is one of `blocks`: (B, n, D) -> (B, n, D)."""
        assert angles is not None
        windows = angles.windows[index]
        width = 2 * (block.attn.head_width + int(windows.places[-1].sum()) + 2)  # of a query and a key
        decomposed = isinstance(block.attn, DecomposedAttention)
        if index not in self.blocks or self.probabilities or not decomposed or width > len(windows.places):
            return super().block(index, block, x, angles)
        out: Tensor = block(x, angles, recorder := Recorder())
        lse = recorder.attention.lse
        self.states.append(BlockState(x, lse, Recall(block, x), angles, recorder.attention))
        return out

    def _explicit_trace(self, explicit: Explicit) -> tuple[Tensor, BlockTrace | None]:
        q, _, logits, probabilities = explicit.seen.pop()
        lse, empty = logits.detach().float().logsumexp(-1), q.new_empty(*q.shape[:-1], 0)
        return lse, BlockTrace(empty, empty, lse, probabilities, cut=True)


class WindowedViT(ViT):
    """Vision Transformer with attention in windows, whose attention can be traced; see `ViT`."""

    config: WindowedConfig
    tracing = WindowTracer
    removes_patches = False

    def __init__(self, config: WindowedConfig, pretrained: Pretrained | None = None) -> None:
        super().__init__(config, pretrained)
        self.neck = None if config.neck is None else Neck(config.width, config.neck)

    def make_blocks(self, rates: Sequence[float]) -> Iterator[Block]:
        """Yield the blocks of all stages."""
        stages = [stage for stage, depth in enumerate(self.config.depths) for _ in range(depth)]
        for index, (stage, rate) in enumerate(zip(stages, rates, strict=True)):
            yield WindowBlock(self.config, stage, index, rate, merges=index > 0 and stages[index - 1] < stage)

    def finish(self, tokens: Tensor, ops: Ops = PLAIN, angles: Angles | None = None) -> Tensor:
        """Apply the neck and the final norm, if any: (B, n, D) -> (B, n, D')."""
        if self.neck is not None:
            assert angles is not None
            tokens = self.neck(tokens, angles.windows[-1].grid, ops)
        return super().finish(tokens, ops)

    def layouts(self, grid: tuple[int, int]) -> tuple[Windows, ...]:
        """Return the windows of each block for a grid of patches; `angles` holds them."""
        return _layouts(self.config, grid, self.patch_embed.proj.weight.device)


@lru_cache(maxsize=8)
def _layouts(config: WindowedConfig, grid: tuple[int, int], device: torch.device) -> tuple[Windows, ...]:
    layouts: list[Windows] = []
    with torch.inference_mode(False):  # gradients may use the cached tensors later
        for stage, depth in enumerate(config.depths):
            of_stage = grid[0] // 2**stage, grid[1] // 2**stage
            for index in range(depth):
                window = config.window_of(len(layouts), stage, of_stage)
                shifts, merges = not config.padded and index % 2 == 1, stage > 0 and index == 0
                layouts.append(partition(stage, of_stage, window, device, shifts=shifts, merges=merges))
    return tuple(layouts)


def build(config: ViTConfig, pretrained: Pretrained | None = None) -> ViT:
    """Return a new model for a config of either kind."""
    return WindowedViT(config, pretrained) if isinstance(config, WindowedConfig) else ViT(config, pretrained)
