"""The Vision Transformer, written out.

Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words" (the model and its initialisation); Touvron et al. 2021,
"Training data-efficient image transformers" (the distillation token) and "Going deeper with Image Transformers" (layer
scale); Darcet et al. 2024, "Vision Transformers Need Registers"; Siméoni et al. 2025, "DINOv3" (rotary positions).

Shapes: B images, H heads, N tokens = P prefix tokens followed by gh x gw patches, D width, d head width, C classes.
Parameter names follow timm's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitviz.config import ModelError, ViTConfig
from vitviz.edits import Angles, BlockEdit, EditError, Edits
from vitviz.layers import AttentionPool, Block, PatchEmbed
from vitviz.positions import resize_positions, rotary_angles, sincos_positions
from vitviz.preprocess import Preprocess
from vitviz.trace import Kept, Trace, stays


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
        self.norm_pre = nn.LayerNorm(width, eps=config.norm_eps) if config.norm_pre else nn.Identity()
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.attn_pool = AttentionPool(config) if config.pooling == "attention" else None
        pooled = 2 * width if config.pooling == "cls+mean" else width
        self.head = nn.Linear(pooled, config.classes) if config.classes else None
        # DeiT: the distillation token has a classifier of its own; the prediction is the mean of the two.
        both = config.distillation_token and config.classes > 0
        self.head_dist = nn.Linear(width, config.classes) if both else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """The paper's initialisation (its JAX code): Xavier for attention and MLP, LeCun for patches, a zero head."""
        for name, parameter in self.named_parameters():
            if name.endswith(("cls_token", "head.weight", "head.bias", "head_dist.weight", "head_dist.bias")):
                nn.init.zeros_(parameter)
            elif name.endswith(("pos_embed", "reg_token", "dist_token", "latent")):
                nn.init.normal_(parameter, std=0.02)
            elif name == "patch_embed.proj.weight":
                fan_in = parameter[0].numel()
                # A normal cut at two deviations has 0.8796 of the deviation asked for.
                deviation = fan_in**-0.5 / 0.87962566103423978
                nn.init.trunc_normal_(parameter, std=deviation, a=-2 * deviation, b=2 * deviation)
            elif name.endswith(("attn.qkv.weight", "kv.weight")):
                # Queries, keys and values are several matrices in one: the fan-out is that of one of them.
                parts = 3 if name.endswith("qkv.weight") else 2
                bound = math.sqrt(6.0 / (parameter.shape[0] // parts + parameter.shape[1]))
                nn.init.uniform_(parameter, -bound, bound)
            elif name.endswith(("proj.weight", "q.weight", "fc1.weight", "fc2.weight")):
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
        out: Tensor = self.norm_pre(self.dropout(tokens))
        return out, grid

    def angles(self, grid: tuple[int, int]) -> Angles | None:
        """The rotations of rotary positions for a grid of patches; `None` for models with others."""
        if self.config.positions != "rotary":
            return None
        cos, sin = rotary_angles(grid, self.config.head_size, self.config.rotary_base)
        return cos.to(self.norm.weight), sin.to(self.norm.weight)

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
        """What the classifier reads from final tokens: (B, N, D) -> (B, D), or (B, 2 D) for cls+mean."""
        pooled = self.attn_pool(tokens) if self.attn_pool is not None else self._pool(tokens)
        out: Tensor = self.norm(pooled) if self.config.norm_pooled else pooled
        return out

    def _pool(self, tokens: Tensor) -> Tensor:
        cls, patches = tokens[:, 0], tokens[:, len(self.config.prefix) :]
        if self.config.pooling == "cls":
            return cls
        mean = patches.mean(dim=1)
        return mean if self.config.pooling == "mean" else torch.cat([cls, mean], dim=1)

    def classify(self, tokens: Tensor) -> Tensor:
        """Logits (B, C) from final tokens; what the classifier would read, (B, D), where there is none."""
        if self.head is None:
            return self.read_out(tokens)
        logits = self.heads_logits(tokens)
        return logits[0] if len(logits) == 1 else (logits[0] + logits[1]) / 2

    @property
    def distilled(self) -> bool:
        """Whether the logits read the distillation token: there is a classifier of its own, and it says something."""
        return self.head_dist is not None and bool(self.head_dist.weight.any())

    def heads_logits(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """Logits of each classifier by itself, for training: (B, N, D) final tokens -> one or two of (B, C).

        The first reads what is pooled; the second, where there is a distillation token, reads that token (DeiT).
        `classify` gives their mean.

        Raises:
            ModelError: if there is no classifier.
        """
        if self.head is None:
            raise ModelError("Expected a model with a classifier, got one without. Make it with classes > 0.")
        logits: Tensor = self.head(self.read_out(tokens))
        return (logits,) if self.head_dist is None else (logits, self.head_dist(tokens[:, self.config.distillation_at]))

    def finish(self, tokens: Tensor) -> Tensor:
        """The final norm, for models that have it before pooling: (B, N, D) -> (B, N, D)."""
        return tokens if self.config.norm_pooled else self.norm(tokens)

    def forward(self, images: Tensor, edits: Edits | None = None) -> Tensor:
        """(B, channels, H, W) normalised pixels -> logits (B, C), or features (B, D) without a classifier.

        `edits` change what happens inside this run alone: see `vitviz.edits`.
        """
        tokens, grid = self.embed(images)
        return self.run(tokens, self.angles(grid), edits)

    def run(self, tokens: Tensor, angles: Angles | None, edits: Edits | None = None, *, start: int = 0) -> Tensor:
        """From embedded tokens to the answer, for who embeds once and asks often.

        Args:
            tokens: (B, N, D), of `embed`; or what enters block `start`, such as `trace.stream(start)`.
            angles: of `angles(grid)`.
            edits: what to change; with `keep`, the patches are taken out of `tokens` here.
            start: the first block to run, counted from 0; the edits of earlier ones are refused.

        Returns:
            Logits (B, C), or features without a classifier.

        Raises:
            EditError: if the edits do not fit the model, the tokens or `start`.
        """
        return self.classify(self.encode(tokens, angles, edits, start=start))

    def encode(self, tokens: Tensor, angles: Angles | None, edits: Edits | None = None, *, start: int = 0) -> Tensor:
        """As `run`, as far as the final tokens, normed as `classify` takes them: (B, N, D) -> (B, N, D)."""
        if not 0 <= start < self.config.depth:
            raise ModelError(f"Expected a first block among 0..{self.config.depth - 1}, got {start}.")
        tokens, angles, changes = self._edited(tokens, angles, edits)
        if early := [index for index in changes if index < start]:
            raise EditError(f"Expected edits of the blocks that run, from {start} on; got some of the blocks {early}.")
        for index in range(start, self.config.depth):
            tokens = self.blocks[index](tokens, angles, changes.get(index))
        return self.finish(tokens)

    def _edited(
        self, tokens: Tensor, angles: Angles | None, edits: Edits | None
    ) -> tuple[Tensor, Angles | None, dict[int, BlockEdit]]:
        """The tokens that stay, their rotations, and what changes in which block."""
        if not edits:
            return tokens, angles, {}
        batch, count = tokens.shape[:2]
        changes = edits.by_block(self.config, batch, count, tokens.device)
        return *edits.gather(tokens, angles, self.config), changes

    def trace(
        self, images: Tensor, *, blocks: Iterable[int] | None = None, grad: bool = False, edits: Edits | None = None
    ) -> Trace:
        """Run once and keep what is needed to answer questions about attention.

        Args:
            images: (B, channels, H, W) normalised pixels.
            blocks: which blocks to keep, counted from 0, negative from the end; all by default.
            grad: keep probabilities (B, H, N, N) in the autograd graph, for gradient methods.
            edits: what to change. The attention of the trace is the one that was used; where edges are cut its
                probabilities (B, H, N, N) are kept. The patches that stay must be a rectangle: the trace's grid.

        Raises:
            ModelError: if the images do not fit, a block does not exist, dropout is active, or the edits do not fit.
        """
        chosen = self._chosen(blocks)
        if self.training and (self.config.dropout or self.config.attention_dropout or self.config.path_dropout):
            raise ModelError("A trace shows how the model predicts, without dropout: call model.eval() first.")
        with torch.set_grad_enabled(grad):
            tokens, grid = self.embed(images)
            tokens, angles, changes = self._edited(tokens, self.angles(grid), edits)
            grid = edits.grid(grid) if edits else grid
            inner = self.config.heads * self.config.head_size
            keep = stays(2 * len(chosen) * tokens.shape[0] * tokens.shape[1] * inner * tokens.element_size())
            kept: list[Kept] = []
            for index, block in enumerate(self.blocks):
                edit = changes.get(index)
                if index in chosen:
                    assert isinstance(block, Block)  # for the type checker: a ModuleList holds any module
                    seen = block.trace_grad(tokens, angles, edit) if grad else block.trace(tokens, angles, keep, edit)
                    tokens, passed = seen
                    kept.append(passed)
                else:
                    tokens = block(tokens, angles, edit)
            tokens = self.finish(tokens)
            logits = None if self.head is None else self.classify(tokens)
        return Trace(logits, tokens, grid, self.config.prefix, chosen, tuple(kept), self.config.depth)

    def _chosen(self, blocks: Iterable[int] | None) -> tuple[int, ...]:
        depth = self.config.depth
        wanted = list(range(depth)) if blocks is None else list(blocks)
        if not wanted or any(not -depth <= block < depth for block in wanted):
            raise ModelError(f"Expected at least one block among 0..{depth - 1} (or -{depth}..-1), got {wanted}.")
        return tuple(sorted({block % depth for block in wanted}))
