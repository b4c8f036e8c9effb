"""The Vision Transformer, written out.

Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words" (the model and its initialisation); Touvron et al. 2021,
"Training data-efficient image transformers" (the distillation token) and "Going deeper with Image Transformers" (layer
scale); Darcet et al. 2024, "Vision Transformers Need Registers".

Shapes: B images, H heads, N tokens = P prefix tokens followed by gh x gw patches, D width, d head width, C classes.
Parameter names follow timm's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitviz.config import ModelError, ViTConfig
from vitviz.preprocess import Preprocess
from vitviz.trace import BlockTrace, Trace


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """What travels with weights beside the numbers: how to feed them, what their outputs mean, whose they are.

    Args:
        name: short name for people and menus.
        preprocess: from a photograph to the model's pixels.
        labels: one word or more for each class, in the order of the logits; empty without a classifier.
        class_ids: names of the class folders in the training data (such as WordNet ids), in the same order.
        licence: SPDX name or a sentence.
        source: where the weights come from.
    """

    name: str
    preprocess: Preprocess
    labels: tuple[str, ...] = ()
    class_ids: tuple[str, ...] = ()
    licence: str = "unknown"
    source: str = ""


class PatchEmbed(nn.Module):
    """Cut the image into patches and project each to a token: one strided convolution."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.proj = nn.Conv2d(config.channels, config.width, kernel_size=config.patch_size, stride=config.patch_size)

    def forward(self, images: Tensor) -> Tensor:
        """(B, channels, H, W) -> (B, gh * gw, D)."""
        features = self.proj(images)  # (B, D, gh, gw)
        tokens: Tensor = features.flatten(2).transpose(1, 2)  # (B, D, gh * gw) -> (B, gh * gw, D)
        return tokens


class Attention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads, self.head_width = config.heads, config.head_size
        inner = self.heads * self.head_width
        self.qkv = nn.Linear(config.width, 3 * inner, bias=config.qkv_bias)
        self.proj = nn.Linear(inner, config.width)
        self.attention_dropout = config.attention_dropout
        self.dropout = nn.Dropout(config.dropout)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, N, D) -> queries, keys, values, each (B, H, N, d); the queries carry the scale d ** -0.5."""
        batch, tokens, _ = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, self.head_width)  # (B, N, 3 * H * d) -> (B, N, 3, H, d)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # -> 3 x (B, H, N, d)
        return q * self.head_width**-0.5, k, v

    def merge(self, mixed: Tensor) -> Tensor:
        """Heads side by side, then the output projection: (B, H, N, d) -> (B, N, D)."""
        out: Tensor = self.dropout(self.proj(mixed.transpose(1, 2).flatten(2)))  # (B, N, H * d) -> (B, N, D)
        return out

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D), by PyTorch's fused attention."""
        q, k, v = self.project(x)
        rate = self.attention_dropout if self.training else 0.0
        return self.merge(F.scaled_dot_product_attention(q, k, v, dropout_p=rate, scale=1.0))

    def trace(self, x: Tensor, grad: bool) -> tuple[Tensor, BlockTrace]:
        """As `forward`, and what it attended to. With `grad` the probabilities are explicit and differentiable."""
        q, k, v = self.project(x)
        if grad:
            logits = q @ k.mT  # (B, H, N, d) @ (B, H, d, N) -> (B, H, N, N)
            probabilities = logits.softmax(dim=-1)
            if not probabilities.requires_grad:
                probabilities.requires_grad_()  # frozen weights: the graph starts here
            mixed = probabilities @ v  # (B, H, N, N) @ (B, H, N, d) -> (B, H, N, d)
            return self.merge(mixed), BlockTrace(q, k, logits.detach().float().logsumexp(-1), probabilities)
        mixed, lse = fused_attention(q, k, v)
        # The keys are a view into the block's qkv buffer: a copy lets the rest of that buffer go.
        return self.merge(mixed), BlockTrace(q, k.contiguous(), lse)


def fused_attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(q @ k.T) @ v and the log-sum-exp of each row of q @ k.T, without an N x N matrix.

    Args:
        q, k, v: (B, H, N, d), the scale already in `q`.

    Returns:
        (B, H, N, d) in the input's precision, and (B, H, N) in float32.
    """
    if q.device.type == "cpu":
        # The CPU kernel behind scaled_dot_product_attention; it has the row sums at hand, so keeping them is free.
        mixed, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, scale=1.0)
        return mixed, lse.float()  # float64 for a float64 model
    mixed = F.scaled_dot_product_attention(q, k, v, scale=1.0)
    # Elsewhere which kernel runs depends on the device and on d, so the row sums are computed in pieces beside it.
    blank = torch.zeros(q.shape[:-1], device=q.device, dtype=torch.float32)
    pieces = BlockTrace(q, k, blank)
    lse = torch.cat(
        [(q[:, :, start:stop].float() @ k.float().mT).logsumexp(-1) for start, stop in pieces.chunks()], dim=2
    )
    return mixed, lse


class MLP(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.width, config.hidden)
        self.fc2 = nn.Linear(config.hidden, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        out: Tensor = self.dropout(self.fc2(self.dropout(F.gelu(self.fc1(x)))))
        return out


class LayerScale(nn.Module):
    """A learned scale for each channel (Touvron et al. 2021, "Going deeper with Image Transformers")."""

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), start))

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        return x * self.gamma


class DropPath(nn.Module):
    """Stochastic depth: drop a whole residual branch for some images (Huang et al. 2016)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D); kept branches grow by 1 / (1 - rate), so that the mean stays."""
        if not self.training or self.rate == 0.0:
            return x
        keep = torch.rand(x.shape[0], 1, 1, device=x.device) >= self.rate  # (B, 1, 1)
        return x * keep / (1.0 - self.rate)


class Block(nn.Module):
    """A pre-norm Transformer block: attention and MLP, each added to the stream that passes by."""

    def __init__(self, config: ViTConfig, path_dropout: float) -> None:
        super().__init__()
        scale = config.layer_scale
        self.norm1 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.attn = Attention(config)
        self.ls1 = nn.Identity() if scale is None else LayerScale(config.width, scale)
        self.norm2 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.mlp = MLP(config)
        self.ls2 = nn.Identity() if scale is None else LayerScale(config.width, scale)
        self.drop_path = DropPath(path_dropout)

    def add(self, x: Tensor, attended: Tensor) -> Tensor:
        """The two residual sums, given what attention returned."""
        x = x + self.drop_path(self.ls1(attended))
        out: Tensor = x + self.drop_path(self.ls2(self.mlp(self.norm2(x))))
        return out

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        return self.add(x, self.attn(self.norm1(x)))

    def trace(self, x: Tensor, grad: bool) -> tuple[Tensor, BlockTrace]:
        """As `forward`, and what was attended to."""
        attended, kept = self.attn.trace(self.norm1(x), grad)
        return self.add(x, attended), kept


class ViT(nn.Module):
    """A Vision Transformer that can be looked into.

    >>> from vitviz.config import preset
    >>> model = ViT(preset("tiny", image_size=(32, 48), patch_size=16, classes=10)).eval()
    >>> images = torch.zeros(2, 3, 32, 48)
    >>> model(images).shape
    torch.Size([2, 10])
    >>> model.trace(images).attentions[11].shape      # 1 class token and 2 x 3 patches
    torch.Size([2, 3, 7, 7])

    `pretrained` says how to feed the weights and what their outputs mean; it is `None` for a model made from a config.
    """

    def __init__(self, config: ViTConfig, pretrained: Pretrained | None = None) -> None:
        super().__init__()
        if pretrained and pretrained.labels and len(pretrained.labels) != config.classes:
            raise ModelError(f"Expected {config.classes} labels, one for each class, got {len(pretrained.labels)}.")
        self.config, self.pretrained = config, pretrained
        width = config.width
        self.patch_embed = PatchEmbed(config)
        # A prefix token never moves, so its position embedding would only add to its start value: it has none.
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width)) if config.class_token else None
        self.dist_token = nn.Parameter(torch.zeros(1, 1, width)) if config.distillation_token else None
        self.reg_token = nn.Parameter(torch.zeros(1, config.registers, width)) if config.registers else None
        rows, columns = config.learned_grid
        learned = config.positions == "learned"
        self.pos_embed = nn.Parameter(torch.zeros(1, rows * columns, width)) if learned else None
        self.dropout = nn.Dropout(config.dropout)
        # Plain numbers, not torch.linspace: a model can then be made on the meta device, where tensors hold none.
        rates = (config.path_dropout * index / max(1, config.depth - 1) for index in range(config.depth))
        self.blocks = nn.ModuleList(Block(config, rate) for rate in rates)
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        pooled = 2 * width if config.pooling == "cls+mean" else width
        self.head = nn.Linear(pooled, config.classes) if config.classes else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """The paper's initialisation (its JAX code): Xavier for attention and MLP, LeCun for patches, a zero head."""
        for name, parameter in self.named_parameters():
            if name.endswith(("cls_token", "head.weight", "head.bias")):
                nn.init.zeros_(parameter)
            elif name.endswith(("pos_embed", "reg_token", "dist_token")):
                nn.init.normal_(parameter, std=0.02)
            elif name == "patch_embed.proj.weight":
                fan_in = parameter[0].numel()
                # A normal cut at two deviations has 0.8796 of the deviation asked for.
                deviation = fan_in**-0.5 / 0.87962566103423978
                nn.init.trunc_normal_(parameter, std=deviation, a=-2 * deviation, b=2 * deviation)
            elif name.endswith("attn.qkv.weight"):
                # Queries, keys and values are three matrices in one: the fan-out is that of one of them.
                bound = math.sqrt(6.0 / (parameter.shape[0] // 3 + parameter.shape[1]))
                nn.init.uniform_(parameter, -bound, bound)
            elif name.endswith(("attn.proj.weight", "fc1.weight", "fc2.weight")):
                nn.init.xavier_uniform_(parameter)
            elif name.endswith(("fc1.bias", "fc2.bias")):
                nn.init.normal_(parameter, std=1e-6)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def embed(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Images to the tokens that enter the first block, and their grid: (B, 3, H, W) -> (B, N, D), (gh, gw)."""
        grid = self.check(images)
        patches = self.patch_embed(images)  # (B, gh * gw, D)
        if (positions := self.positions(grid)) is not None:
            patches = patches + positions
        prefix = [token for token in (self.cls_token, self.dist_token, self.reg_token) if token is not None]
        tokens = torch.cat([*(token.expand(len(images), -1, -1) for token in prefix), patches], dim=1)  # (B, N, D)
        return self.dropout(tokens), grid

    def check(self, images: Tensor) -> tuple[int, int]:
        """The grid (gh, gw) of these images; a `ModelError` if the model cannot take them."""
        channels = self.config.channels
        if images.ndim != 4 or images.shape[1] != channels:
            raise ModelError(
                f"Expected images of shape (batch, {channels}, height, width), got {tuple(images.shape)}. "
                "A single image needs a batch axis in front: image[None]."
            )
        if not images.is_floating_point():
            raise ModelError(f"Expected normalised floating-point images, got {images.dtype}. Preprocess them first.")
        return self.config.grid_of(*images.shape[2:])

    def positions(self, grid: tuple[int, int]) -> Tensor | None:
        """Position embeddings for a grid of patches: (1, gh * gw, D), or `None` for a model without."""
        if self.config.positions == "sincos":
            return sincos_positions(grid, self.config.width).to(self.norm.weight)
        if self.pos_embed is None or grid == self.config.learned_grid:
            return self.pos_embed
        return resize_positions(self.pos_embed, self.config.learned_grid, grid, self.config.position_antialias)

    def read_out(self, tokens: Tensor) -> Tensor:
        """What the classifier reads from normalised tokens: (B, N, D) -> (B, D), or (B, 2 D) for cls+mean."""
        cls, patches = tokens[:, 0], tokens[:, len(self.config.prefix) :]
        if self.config.pooling == "cls":
            return cls
        mean = patches.mean(dim=1)
        return mean if self.config.pooling == "mean" else torch.cat([cls, mean], dim=1)

    def classify(self, tokens: Tensor) -> Tensor:
        """Logits (B, C) from normalised tokens; what the classifier would read, (B, D), where there is none."""
        pooled = self.read_out(tokens)
        return pooled if self.head is None else self.head(pooled)

    def forward(self, images: Tensor) -> Tensor:
        """(B, channels, H, W) normalised pixels -> logits (B, C), or features (B, D) without a classifier."""
        tokens, _ = self.embed(images)
        for block in self.blocks:
            tokens = block(tokens)
        return self.classify(self.norm(tokens))

    def trace(self, images: Tensor, *, blocks: Iterable[int] | None = None, grad: bool = False) -> Trace:
        """Run once and keep what is needed to answer questions about attention.

        Args:
            images: (B, channels, H, W) normalised pixels.
            blocks: which blocks to keep, counted from 0, negative from the end; all by default.
            grad: keep probabilities (B, H, N, N) in the autograd graph, for gradient methods.

        Raises:
            ModelError: if the images do not fit, a block does not exist, or dropout is active.
        """
        chosen = self._chosen(blocks)
        if self.training and (self.config.dropout or self.config.attention_dropout or self.config.path_dropout):
            raise ModelError("A trace shows how the model predicts, without dropout: call model.eval() first.")
        with torch.set_grad_enabled(grad):
            tokens, grid = self.embed(images)
            kept: list[BlockTrace] = []
            for index, block in enumerate(self.blocks):
                if index in chosen:
                    assert isinstance(block, Block)  # for the type checker: a ModuleList holds any module
                    tokens, passed = block.trace(tokens, grad)
                    kept.append(passed)
                else:
                    tokens = block(tokens)
            tokens = self.norm(tokens)
            logits = None if self.head is None else self.classify(tokens)
        return Trace(logits, tokens, grid, self.config.prefix, chosen, tuple(kept), self.config.depth)

    def _chosen(self, blocks: Iterable[int] | None) -> tuple[int, ...]:
        depth = self.config.depth
        wanted = list(range(depth)) if blocks is None else list(blocks)
        if not wanted or any(not -depth <= block < depth for block in wanted):
            raise ModelError(f"Expected at least one block among 0..{depth - 1} (or -{depth}..-1), got {wanted}.")
        return tuple(sorted({block % depth for block in wanted}))


def sincos_positions(grid: tuple[int, int], width: int, temperature: float = 10_000.0) -> Tensor:
    """Fixed two-dimensional sine-cosine positions, (1, gh * gw, D): a quarter each of sin x, cos x, sin y, cos y.

    As in Chen et al. 2021 (MoCo v3) and Beyer et al. 2022, "Better plain ViT baselines for ImageNet-1k".
    """
    y, x = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")  # (gh, gw)
    quarter = width // 4
    frequency = temperature ** (-torch.arange(quarter) / max(1, quarter - 1))  # (D / 4,)
    y, x = (axis.flatten()[:, None].float() * frequency for axis in (y, x))  # (gh * gw, D / 4)
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1)[None]


def resize_positions(table: Tensor, old: tuple[int, int], new: tuple[int, int], antialias: bool) -> Tensor:
    """Interpolate learned positions to another grid, bicubic: (1, oh * ow, D) -> (1, nh * nw, D)."""
    image = table.float().reshape(1, *old, -1).permute(0, 3, 1, 2)  # (1, D, oh, ow)
    image = F.interpolate(image, size=new, mode="bicubic", antialias=antialias)  # (1, D, nh, nw)
    return image.flatten(2).transpose(1, 2).to(table.dtype)  # (1, nh * nw, D)
