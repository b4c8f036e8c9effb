"""Define the Vision Transformer.

Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words" (the model and its initialisation); Touvron et al. 2021,
"Training data-efficient image transformers" (the distillation token) and "Going deeper with Image Transformers" (layer
scale); Darcet et al. 2024, "Vision Transformers Need Registers"; Siméoni et al. 2025, "DINOv3" (rotary positions).

Shapes: B images, H heads, N tokens = P prefix tokens followed by gh x gw patches, D width, d head width, C classes.
Parameter names follow timm's.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from vitviz.fields import check_fields
from vitviz.formatting import UNKNOWN_BELOW
from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ModelError, ViTConfig
from vitviz.model.edits import BlockEdit, EditError, Edits
from vitviz.model.layers import AttentionPool, Block, ClassAttention, PatchEmbed, make_norm, move_neurons
from vitviz.model.ops import PLAIN, Ops
from vitviz.model.positions import (
    FIXED,
    Angles,
    image_places,
    index_places,
    relative_places,
    resize_positions,
    rotary_angles,
    rotary_rates,
)
from vitviz.model.registers import with_registers
from vitviz.model.trace import Trace
from vitviz.model.tracing import Tracer
from vitviz.outputs import REGRESSION, SINGLE, ProblemType
from vitviz.progress import advance


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """Metadata of weights: preprocessing, meaning of the outputs, and origin.

    Args:
        name: short display name.
        preprocess: settings that convert a photograph to normalised pixels.
        labels: the classes' names in the order of the logits; empty without a classifier.
        class_ids: names of the class folders in the training data (such as WordNet ids), in the same order.
        licence: SPDX name or a sentence.
        source: where the weights come from.
        sure_above: probability of the top class at and above which at least 90 % of validation images are classified
            correctly; `None` if not measured.
        known_above: log-sum-exp of the logits (negative energy, Liu et al. 2020) below which a photograph counts as
            outside the classes if no class has 30 %; `None` if not measured.
        groups: named sets of classes; each tuple holds a name, then two or more labels. A group's probability is the
            sum of its classes' probabilities.
        assumed: settings that neither weights nor configuration specify, as text: "norm epsilon 1e-06". Entries about
            preprocessing and labels start with these words: "preprocessing: ImageNet's mean ...".
        problem_type: meaning of the outputs, see `vitviz.outputs`; `None` means classes. A single output is a value,
            as in transformers, unless `problem_type` says otherwise.
        method: attribution method that `vitviz arena` ranked first for these weights; empty if it was not measured.
    """

    name: str
    preprocess: Preprocess
    labels: tuple[str, ...] = ()
    class_ids: tuple[str, ...] = ()
    licence: str = "unknown"
    source: str = ""
    sure_above: float | None = None
    known_above: float | None = None
    groups: tuple[tuple[str, ...], ...] = ()
    assumed: tuple[str, ...] = ()
    problem_type: ProblemType | None = None
    method: str = ""

    def __post_init__(self) -> None:
        check_fields(self, ModelError)
        object.__setattr__(self, "groups", tuple(map(tuple, self.groups)))  # JSON has no tuples

    @property
    def group_above(self) -> float:
        """Return the minimum probability for naming a group: `sure_above`, or 0.5 without it."""
        return 0.5 if self.sure_above is None else self.sure_above

    def knows(self, logits: Tensor) -> bool | None:
        """Return whether a photograph with these logits (C,) probably shows one of the classes.

        Returns `None` if `known_above` is not set.
        """
        if self.known_above is None:
            return None
        logits = logits.float()
        return float(logits.logsumexp(-1)) >= self.known_above or float(logits.softmax(-1).amax()) >= UNKNOWN_BELOW


class ViT(nn.Module):
    """Vision Transformer whose attention can be traced.

    >>> from vitviz.model.config import preset
    >>> model = ViT(preset("tiny", image_size=(32, 48), patch_size=16, classes=10)).eval()
    >>> images = torch.zeros(2, 3, 32, 48)
    >>> model(images).shape
    torch.Size([2, 10])
    >>> model.trace(images).attentions[11].shape      # 1 class token and 2 x 3 patches
    torch.Size([2, 3, 7, 7])

    Args:
        config: the configuration.
        pretrained: metadata of the weights; `None` for new weights.
    """

    removes_patches = True  # whether the model can run without some patches

    def __init__(self, config: ViTConfig, pretrained: Pretrained | None = None) -> None:
        super().__init__()
        if pretrained and pretrained.labels and len(pretrained.labels) != config.classes:
            raise ModelError(
                f"Expected {config.classes} labels, one for each class, got {len(pretrained.labels)}. Name every class."
            )
        self.config, self.pretrained = config, pretrained
        self.text_source = ""  # folder or hf: name from which the text tower can be loaded
        # (L, N, D), mean input of each block at each position of the model's own grid, see vitviz.analysis.edges
        self.position_means: Tensor | None = None
        width = config.width
        self.patch_embed = PatchEmbed(config)
        # Prefix tokens have no position embedding: it would only add to their initial value.
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width)) if config.class_token else None
        self.dist_token = nn.Parameter(torch.zeros(1, 1, width)) if config.distillation_token else None
        self.reg_token = nn.Parameter(torch.zeros(1, config.registers, width)) if config.registers else None
        rows, columns = config.learned_grid
        self.pos_embed = nn.Parameter(torch.zeros(1, rows * columns, width)) if config.learned else None
        self.mid_pos_embed = None
        if config.table.between:  # with those of prefix tokens
            count = len(config.prefix) + rows * columns
            self.mid_pos_embed = nn.Parameter(torch.zeros(config.depth - 1, count, width))
        self.dropout = nn.Dropout(config.dropout)
        # Plain numbers instead of torch.linspace, whose tensors have no values on the meta device.
        rates = (config.path_dropout * index / max(1, config.depth - 1) for index in range(config.depth))
        self.blocks = cast("Sequence[Block]", nn.ModuleList(Block(config, rate) for rate in rates))
        for block in {block for block, _ in config.register_neurons}:
            neurons = [index for of, index in config.register_neurons if of == block]
            self.blocks[block].mlp.move = partial(move_neurons, neurons=neurons, registers=config.register_places)
        self.norm_pre = make_norm(config, width) if config.norms.pre else nn.Identity()
        final_eps = config.norms.final_eps
        self.norm = make_norm(config, width, final_eps) if config.norms.final != "none" else nn.Identity()
        pool = ClassAttention if config.pool.blocks else AttentionPool
        self.attn_pool = pool(config) if config.pooling == "attention" else None
        joint = config.projection or config.feature_width
        projects = config.projection is not None and config.classes > 0
        self.projection = nn.Linear(config.feature_width, joint, bias=False) if projects else None
        self.head = nn.Linear(joint, config.classes) if config.classes else None
        # DeiT: the distillation token has its own classifier; the prediction is the mean of the two.
        distilled = config.distillation_token and config.classes > 0
        self.head_dist = nn.Linear(width, config.classes) if distilled else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise like the paper's JAX code: Xavier for attention and MLP, LeCun for patches, zeros for the head."""
        if self.patch_embed.proj.weight.is_meta:
            return  # the meta device stores no values, and nn.init would import PyTorch's compiler, which takes seconds
        for name, parameter in self.named_parameters():
            if name.endswith(("cls_token", "head.weight", "head.bias", "head_dist.weight", "head_dist.bias")):
                nn.init.zeros_(parameter)
            elif name.endswith(("pos_embed", "reg_token", "dist_token", "latent")):
                nn.init.normal_(parameter, std=0.02)
            elif name == "patch_embed.proj.weight":
                fan_in = parameter[0].numel()
                # Truncation at two deviations reduces the deviation of a normal distribution to 0.8796.
                deviation = fan_in**-0.5 / 0.87962566103423978
                nn.init.trunc_normal_(parameter, std=deviation, a=-2 * deviation, b=2 * deviation)
            elif name.endswith(("attn.qkv.weight", "kv.weight")):
                # These weights stack two or three matrices; the fan-out is the number of rows of one matrix.
                parts = 3 if name.endswith("qkv.weight") else 2
                bound = math.sqrt(6.0 / (parameter.shape[0] // parts + parameter.shape[1]))
                nn.init.uniform_(parameter, -bound, bound)
            elif name.endswith(("proj.weight", "q.weight", "fc1.weight", "fc2.weight", "projection.weight")):
                nn.init.xavier_uniform_(parameter)
            elif name.endswith(("fc1.bias", "fc2.bias")):
                nn.init.normal_(parameter, std=1e-6)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def embed(self, images: Tensor, *, positions: bool = True) -> tuple[Tensor, tuple[int, int]]:
        """Return the input tokens of the first block and their grid: (B, channels, H, W) -> (B, N, D), (gh, gw).

        With `positions=False`, every patch gets the mean of all position embeddings.
        """
        grid = self.check(images)
        patches = self.patch_embed(images)  # (B, gh * gw, D)
        if (added := self.positions(grid)) is not None:
            patches = patches + (added if positions else added.mean(dim=1, keepdim=True))
        prefix = [token for token in (self.cls_token, self.dist_token, self.reg_token) if token is not None]
        tokens = torch.cat([*(token.expand(len(images), -1, -1) for token in prefix), patches], dim=1)  # (B, N, D)
        out: Tensor = self.norm_pre(self.dropout(tokens))
        return out, grid

    def angles(self, grid: tuple[int, int]) -> Angles | None:
        """Return the `Angles` of a grid of patches; `None` if the blocks use no positions."""
        config, weight = self.config, self.patch_embed.proj.weight
        if self.mid_pos_embed is not None:
            return Angles(tables=self.resized(self.mid_pos_embed[:, len(config.prefix) :], grid).unbind())
        if config.relative_bias:
            return Angles(places=relative_places(grid, config.learned_grid).to(weight.device))
        if not config.rotates:
            return None
        if config.rotary.places == "image":
            places = 2 * math.pi * image_places(grid)
        else:
            places = index_places(grid, config.rotary.grid, config.rotary.offset)
        if config.rotary.learned:
            return Angles(places=places.to(weight.device))
        rates = rotary_rates(config.head_size, config.rotary.base)
        cos, sin = (values[0].to(weight) for values in rotary_angles(places, rates))
        return Angles(cos, sin)

    def check_converted(self) -> None:
        """Do nothing. Subclasses for modules that are not converted raise an error."""

    def last_grid(self, grid: tuple[int, int]) -> tuple[int, int]:
        """Return the rows and columns of patches in the last block, for a grid of patches."""
        return grid

    def check(self, images: Tensor) -> tuple[int, int]:
        """Return the grid (gh, gw) of these images.

        Raises:
            ModelError: if the images do not fit.
        """
        channels = self.config.channels
        if images.ndim != 4 or images.shape[1] != channels:
            raise ModelError(
                f"Expected images of shape (batch, {channels}, height, width), got {tuple(images.shape)}. "
                "Give a single image a batch axis in front: image[None]."
            )
        if not images.is_floating_point():
            raise ModelError(f"Expected normalised floating-point images, got {images.dtype}. Preprocess them first.")
        return self.config.grid_of(*images.shape[2:])

    def positions(self, grid: tuple[int, int]) -> Tensor | None:
        """Return the position embeddings of a grid of patches, (1, gh * gw, D), or `None`."""
        if fixed := FIXED.get(self.config.positions):
            return fixed(grid, self.config.width).to(self.patch_embed.proj.weight)
        return None if self.pos_embed is None else self.resized(self.pos_embed, grid)

    def resized(self, tables: Tensor, grid: tuple[int, int]) -> Tensor:
        """Interpolate learned positions of patches to a grid: (L, oh * ow, D) -> (L, gh * gw, D)."""
        config = self.config
        if grid == config.learned_grid:
            return tables
        return resize_positions(tables, config.learned_grid, grid, config.table)

    def with_registers(self, registers: int = 1, neurons: Sequence[tuple[int, int]] | None = None) -> "ViT":
        """Return this model with test-time registers, which take the activations of the neurons that write outliers.

        See `vitviz.model.registers.with_registers`.
        """
        return with_registers(self, registers, neurons)

    def forward(self, images: Tensor, edits: Edits | None = None) -> Tensor:
        """Classify normalised pixels: (B, channels, H, W) -> logits (B, C), or features (B, D) without a classifier.

        `edits` change only this forward pass: see `vitviz.model.edits`.
        """
        tokens, grid = self.embed(images)
        return self.run(tokens, self.angles(grid), edits)

    def features(self, images: Tensor) -> Tensor:
        """Return the features, the classifier's input: (B, channels, H, W) -> (B, F)."""
        tokens, grid = self.embed(images)
        return self.read_out(self.encode(tokens, self.angles(grid)))

    def run(
        self, tokens: Tensor, angles: Angles | None, edits: Edits | None = None, *, ops: Ops = PLAIN, start: int = 0
    ) -> Tensor:
        """Classify embedded tokens; arguments as in `encode`, result as in `forward`."""
        return self.classify(self.encode(tokens, angles, edits, ops=ops, start=start), ops)

    def encode(
        self, tokens: Tensor, angles: Angles | None, edits: Edits | None = None, *, ops: Ops = PLAIN, start: int = 0
    ) -> Tensor:
        """Run the blocks and the final norm, whose output `classify` reads: (B, N, D) -> (B, N, D).

        Args:
            tokens: (B, N, D), from `embed`, or the input of block `start`, such as `trace.stream(start)`.
            angles: from `angles(grid)`.
            edits: changes of the forward pass; `keep` removes patches from `tokens` here.
            ops: implementation of the operations: see `vitviz.model.ops`.
            start: the first block to run, from 0; edits of earlier blocks raise an error.

        Raises:
            ModelError: if the block does not exist, or the edits do not fit the model, the tokens or `start`.
        """
        if not 0 <= start < self.config.depth:
            raise ModelError(f"Expected a first block among 0..{self.config.depth - 1}, got {start}. Choose one.")
        changes: dict[int, BlockEdit] = {}
        if edits:
            changes = edits.by_block(self.config, len(tokens), tokens.shape[1], tokens.device)
            tokens, angles = edits.gather(tokens, angles, self.config)
        if early := [index for index in changes if index < start]:
            raise EditError(f"Expected edits of blocks from {start} on, got edits of {early}. Remove them.")
        for index in range(start, self.config.depth):
            block_ops = ops.edited(changes[index]) if index in changes else ops
            entering, tokens = tokens, block_ops.block(index, self.blocks[index], tokens, angles)
            tokens = self.leave(index, tokens, angles, ops)
            advance(entering, 1 / self.config.depth)
        return self.finish(tokens, ops, angles)

    def leave(self, index: int, tokens: Tensor, angles: Angles | None, ops: Ops = PLAIN) -> Tensor:
        """Add the positions between block `index` and the next, if the model has them: (B, N, D) -> (B, N, D).

        Without `angles`, every patch gets the mean of the positions.
        """
        if self.mid_pos_embed is None or index + 1 == self.config.depth:
            return tokens
        prefix, table = self.mid_pos_embed[index].tensor_split([len(self.config.prefix)])  # (P, D), (oh * ow, D)
        patches = table.mean(0, keepdim=True) if angles is None else angles.tables[index]
        patches = patches.reshape(-1, *patches.shape[-2:]).expand(-1, tokens.shape[1] - len(prefix), -1)
        return ops.shift(tokens, torch.cat([prefix.expand(len(patches), -1, -1), patches], dim=1))

    def finish(self, tokens: Tensor, ops: Ops = PLAIN, angles: Angles | None = None) -> Tensor:  # noqa: ARG002
        """Apply the final norm, in models that have it before pooling: (B, N, D) -> (B, N, D).

        Models with convolutions after the blocks need `angles`, see `encode`.
        """
        return tokens if self.config.norms.pooled else ops.norm(self.norm, tokens)

    def read_out(self, tokens: Tensor, ops: Ops = PLAIN) -> Tensor:
        """Return the features from final tokens: (B, N, D) -> (B, D), or (B, 2 D) for cls+mean."""
        if self.attn_pool is not None:
            pooled: Tensor = self.attn_pool(tokens, ops)
        else:
            parts = [tokens[:, 0]] if "cls" in self.config.pooling else []
            if "mean" in self.config.pooling:
                parts.append(ops.fixed(_mean, tokens[:, len(self.config.prefix) :]))
            pooled = torch.cat(parts, dim=1)
        return ops.norm(self.norm, pooled) if self.config.norms.pooled else pooled

    def project(self, features: Tensor, ops: Ops = PLAIN) -> Tensor:
        """Return the classifier's input from features (..., F): projected and divided by its length, as configured."""
        if self.projection is not None:
            features = ops.linear(self.projection, features)
        return ops.unit(features) if self.config.cosine else features

    def classify(self, tokens: Tensor, ops: Ops = PLAIN) -> Tensor:
        """Return the logits (B, C) of final tokens, or the pooled features (B, D) without a classifier."""
        if self.head is None:
            return self.read_out(tokens, ops)
        logits = self.classifier_logits(tokens, ops)
        return logits[0] if len(logits) == 1 else ops.add(*(ops.scale(_half, each) for each in logits))

    def classifier_logits(self, tokens: Tensor, ops: Ops = PLAIN) -> tuple[Tensor, ...]:
        """Return the logits of each classifier separately: (B, N, D) final tokens -> one or two of (B, C).

        The first reads the pooled tokens; the second, if any, reads the distillation token (DeiT).
        `classify` returns their mean.

        Raises:
            ModelError: without a classifier.
        """
        if self.head is None:
            raise ModelError("Expected a model with a classifier, got one without. Create it with classes > 0.")
        logits = ops.linear(self.head, self.project(self.read_out(tokens, ops), ops))
        if self.head_dist is None:
            return (logits,)
        return logits, ops.linear(self.head_dist, tokens[:, self.config.distillation_at])

    @property
    def problem_type(self) -> ProblemType:
        """Return the meaning of the outputs; see `Pretrained.problem_type`."""
        stated = (self.pretrained.problem_type if self.pretrained else None) or SINGLE
        single_output = stated == SINGLE and self.config.classes == 1  # a softmax of one output is always 1
        return REGRESSION if single_output else stated

    @property
    def distilled(self) -> bool:
        """Return whether the logits depend on the distillation token through non-zero weights."""
        return self.head_dist is not None and bool(self.head_dist.weight.any())

    def trace(
        self, images: Tensor, *, blocks: Iterable[int] | None = None, grad: bool = False, edits: Edits | None = None
    ) -> Trace:
        """Run the model and return the trace of its attention.

        Args:
            images: (B, channels, H, W) normalised pixels.
            blocks: the blocks to keep, from 0, negative from the end; all by default.
            grad: keep probabilities (B, H, N, N) in the autograd graph, for gradient methods.
            edits: changes of the forward pass. The trace contains the edited attention; if edges are cut, it keeps
                the probabilities (B, H, N, N). The remaining patches must form a rectangle, the trace's grid.

        Raises:
            ModelError: if images or edits do not fit, a block does not exist, or dropout is active.
        """
        chosen = self._chosen(blocks)
        if self.training and (self.config.dropout or self.config.attention_dropout or self.config.path_dropout):
            raise ModelError("Expected a model in eval mode, got active dropout. Call model.eval().")
        tracer = Tracer(chosen, grad)
        with torch.set_grad_enabled(grad):
            tokens, grid = self.embed(images)
            angles = self.angles(grid)
            grid = edits.grid(grid) if edits else grid
            tokens = self.encode(tokens, angles, edits, ops=tracer)
            logits = None if self.head is None else self.classify(tokens)
        return Trace(
            logits, tokens, grid, self.config.prefix, chosen, tuple(tracer.states), self.config.depth,
            self.config.patch_size,
        )  # fmt: skip

    def _chosen(self, blocks: Iterable[int] | None) -> tuple[int, ...]:
        depth = self.config.depth
        chosen = list(range(depth)) if blocks is None else list(blocks)
        if not chosen or any(not -depth <= block < depth for block in chosen):
            raise ModelError(
                f"Expected at least one block among 0..{depth - 1} (or -{depth}..-1), got {chosen}. Choose from these."
            )
        return tuple(sorted({block % depth for block in chosen}))


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Put a module into eval mode, and restore its mode afterwards."""
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


def _mean(tokens: Tensor) -> Tensor:
    """Average over tokens: (B, N, D) -> (B, D)."""
    return tokens.mean(dim=1)


def _half(x: Tensor) -> Tensor:
    return x / 2
