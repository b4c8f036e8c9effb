"""Define the configuration of a Vision Transformer, and published presets.

Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", table 1; Touvron et al. 2021, "Training data-efficient image
transformers", table 1.
"""

import dataclasses
import math
import typing
from dataclasses import dataclass
from typing import Any, Literal

from vitviz.errors import VitvizError
from vitviz.fields import check_arguments, check_fields, check_names, field_types
from vitviz.images.limits import MAX_PIXELS


class ModelError(VitvizError):
    """Raised for sizes or inputs that do not fit the model."""


RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("image_size", "table.grid", "rotary.grid", "patch_size", "channels", "frames"), (1, math.inf)),
    **dict.fromkeys(("width", "depth", "heads", "head_width", "mlp_width", "projection", "pool.heads"), (1, math.inf)),
    **dict.fromkeys(("classes", "registers", "test_registers", "pool.blocks", "pool.mlp_width"), (0, math.inf)),
    **dict.fromkeys(("dropout", "attention_dropout", "path_dropout"), (0.0, 0.999)),
    **dict.fromkeys(("norms.eps", "norms.final_eps"), (1e-30, 1.0)),  # with 0, a layer norm could divide by zero
    "rotary.base": (1.0, 1e12),  # ratio of periods, in float32
    "rotary.offset": (-1e6, 1e6),
    "layer_scale": (0.0, 1e6),
}
"""Inclusive range of every number in `ViTConfig` and its parts."""


@dataclass(frozen=True, kw_only=True)
class PositionTable:
    """Settings of learned positions, and how they are interpolated to other grids.

    Args:
        grid: (rows, columns) of the learned positions; `None` for the grid of `image_size`.
        antialias: whether to low-pass filter when interpolating to fewer patches.
        mode: interpolation.
        crop: whether positions are interpolated to a square of the longer side and cropped (RADIO).
        corners: whether interpolation aligns the centers of the corner patches (C-RADIOv3).
        between: whether other learned positions are added to all tokens between two blocks (YOLOS).
    """

    grid: tuple[int, int] | None = None
    antialias: bool = True
    mode: Literal["bicubic", "bilinear"] = "bicubic"
    crop: bool = False
    corners: bool = False
    between: bool = False

    def __post_init__(self) -> None:
        check_fields(self, ModelError, RANGES, "table.")


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Settings of rotary positions.

    Args:
        base: of n = head width / 4 rotations, the slowest has a period of base^(1 - 1/n) times the fastest's.
        places: coordinates that determine the rotations: row and column numbers ("index"), or coordinates relative to
            the image, -1..1 ("image", DINOv3).
        grid: (rows, columns) of the training grid, to which "index" scales every grid; `None` for no scaling.
        offset: number of the first row and column for "index".
        learned: whether each head of each block has learned rotation rates (frequencies), instead of those of `base`.
        class_token: whether the class token is rotated too, by learned angles (MLCD).
    """

    base: float = 100.0
    places: Literal["image", "index"] = "image"
    grid: tuple[int, int] | None = None
    offset: float = 0.0
    learned: bool = False
    class_token: bool = False

    def __post_init__(self) -> None:
        check_fields(self, ModelError, RANGES, "rotary.")


@dataclass(frozen=True, kw_only=True)
class Norms:
    """The norms of a model: their kind, their epsilon, and where they are.

    Args:
        kind: layer norm ("layer"), or RMS norm, which divides by the root mean square and has no bias ("rms").
        eps: epsilon of every norm.
        patch: whether to apply a norm to the patch embeddings, before positions are added (AIMv2).
        pre: whether to apply a norm before the first block (CLIP).
        post: whether blocks normalise the outputs of attention and MLP instead of their inputs.
        qk: whether to apply a norm to queries and keys of each head.
        attention, mlp: whether to apply a norm before the last linear map of attention and MLP (EVA-02).
        final: whether the norm after the last block is applied to every token, to the pooled token, or missing.
        final_eps: epsilon of the final norm; `None` for the same.
    """

    kind: Literal["layer", "rms"] = "layer"
    eps: float = 1e-6
    patch: bool = False
    pre: bool = False
    post: bool = False
    qk: bool = False
    attention: bool = False
    mlp: bool = False
    final: Literal["tokens", "pooled", "none"] = "tokens"
    final_eps: float | None = None

    def __post_init__(self) -> None:
        check_fields(self, ModelError, RANGES, "norms.")

    @property
    def pooled(self) -> bool:
        """Return whether the final norm is applied after pooling instead of to every token."""
        return self.final == "pooled"


@dataclass(frozen=True, kw_only=True)
class AttentionPooling:
    """Settings of pooling by attention with a learned query.

    Args:
        blocks: number of class attention blocks that pool instead of one attention (CaiT). Their query, a class token,
            is also a key.
        heads: number of heads; `None` for as many as in a block.
        prefix: whether it reads prefix tokens too.
        mlp_width: hidden width of its MLP; `None` for the width of the blocks' MLPs, 0 for no norm and no MLP.
    """

    blocks: int = 0
    heads: int | None = None
    prefix: bool = True
    mlp_width: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, ModelError, RANGES, "pool.")


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """Configuration of a Vision Transformer, saved with the weights.

    Args:
        image_size: native (height, width) in pixels; other multiples of the patch size work too.
        patch_size: side length of a square patch in pixels.
        channels: color channels of the image.
        width: D, length of a token.
        depth: number of blocks.
        heads: H, heads in each block.
        head_width: d; `None` means width // heads.
        mlp_width: hidden width of the MLP; `None` means 4 x width.
        frames: pictures below one another in the input, each of the frames of a tube as its channels (VideoMAE). With
            more than 1, the input size is fixed, because positions count tubes, rows and columns.
        classes: C; 0 for a model without a classifier.
        class_token, distillation_token: whether the model has these prefix tokens.
        registers: number of register tokens.
        test_registers: number of the last registers that were added to a trained model; they take the activations of
            `register_neurons`, see `vitviz.model.registers`.
        register_neurons: (block, index) of neurons, the inputs of the last linear map of the block's MLP.
        pooling: input of the classifier: the class token, the mean over patches, both concatenated, or attention
            pooling with a learned query.
        pool: settings of attention pooling.
        positions: learned; fixed sine and cosine of row and column (sincos) or of reading order (sincos1d); rotary
            (rotates queries and keys); learned and rotary together; or none.
        table: settings of learned positions.
        rotary: settings of rotary positions.
        layer_scale: initial per-channel scale after attention and MLP; `None` for none.
        relative_bias: whether each head adds a learned relative position bias to the attention logits, which depends on
            the difference of rows and columns (BEiT); learned for the same grid as learned positions.
        qkv_bias, patch_bias, mlp_bias: whether these linear maps have a bias.
        mlp: two layers with `activation`, or gated by SiLU ("swiglu"), by `activation` ("geglu") or by ReLU ("reglu").
        norms: their kind and where they are.
        projection: output width of a linear map without bias between the features and the classifier; `None` for none.
        cosine: whether the classifier's input is divided by its length (CLIP with texts as classes).
        parallel: whether attention and MLP of a block read the same normalised tokens, and their outputs are summed.
        talking_heads: whether linear maps mix the heads' logits, and their probabilities (Shazeer et al. 2020; CaiT).
        dropout, attention_dropout, path_dropout: probabilities in training; path_dropout increases linearly with depth.
    """

    image_size: tuple[int, int] = (224, 224)
    patch_size: int = 16
    channels: int = 3
    frames: int = 1
    width: int = 384
    depth: int = 12
    heads: int = 6
    head_width: int | None = None
    mlp_width: int | None = None
    classes: int = 1000
    class_token: bool = True
    distillation_token: bool = False
    registers: int = 0
    test_registers: int = 0
    register_neurons: tuple[tuple[int, int], ...] = ()
    pooling: Literal["cls", "mean", "cls+mean", "attention"] = "cls"
    pool: AttentionPooling = AttentionPooling()
    positions: Literal["learned", "sincos", "sincos1d", "rotary", "learned+rotary", "none"] = "learned"
    table: PositionTable = PositionTable()
    rotary: Rotary = Rotary()
    relative_bias: bool = False
    layer_scale: float | None = None
    qkv_bias: bool = True
    patch_bias: bool = True
    mlp_bias: bool = True
    mlp: Literal["mlp", "swiglu", "geglu", "reglu"] = "mlp"
    activation: Literal["gelu", "gelu_tanh", "quick_gelu"] = "gelu"
    norms: Norms = Norms()
    projection: int | None = None
    cosine: bool = False
    parallel: bool = False
    talking_heads: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0
    path_dropout: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self, ModelError, RANGES)
        object.__setattr__(self, "register_neurons", tuple(map(tuple, self.register_neurons)))  # JSON has no tuples
        self._check_registers()
        self._check_combinations()

    def _check_registers(self) -> None:
        """Check that neurons have registers to which their activations can move."""
        last = self.depth - 1
        exist = all(0 <= block < last and 0 <= index < self.hidden for block, index in self.register_neurons)
        if self.test_registers > self.registers or not exist or (self.register_neurons and not self.test_registers):
            raise ModelError(
                f"Expected at most {self.registers} test_registers, and register_neurons as (block, index) below "
                f"({last}, {self.hidden}) with at least one of them, got {self.test_registers} and "
                f"{self.register_neurons!r:.80}. Use model.with_registers."
            )

    def _check_combinations(self) -> None:
        """Check combinations of fields."""
        if self.head_width is None and self.width % self.heads:
            raise ModelError(
                f"Expected a width that is a multiple of {self.heads} heads, got {self.width}. "
                f"Try width {self.width - self.width % self.heads or self.heads}, or set head_width."
            )
        if self.distillation_token and (self.projection or self.cosine):
            raise ModelError("Expected no distillation token with a projection or cosine, got one. Leave it out.")
        if "cls" in self.pooling and not self.class_token:
            raise ModelError(f"Expected a class token for pooling={self.pooling!r}, got none. Use pooling='mean'.")
        if self.positions == "sincos" and self.width % 4:
            raise ModelError(f"Expected a width divisible by 4 for positions='sincos', got {self.width}. Change width.")
        if self.positions == "sincos1d" and self.width % 2:
            raise ModelError(f"Expected an even width for positions='sincos1d', got {self.width}. Change width.")
        if self.rotates and self.head_size % 4:
            size = self.head_size
            raise ModelError(f"Expected a head width divisible by 4 for rotary positions, got {size}. Set head_width.")
        if self.rotary.class_token and not (self.rotates and self.class_token):
            raise ModelError(
                "Expected rotary positions and a class token for rotary.class_token, got none. Change them."
            )
        if self.table.between and (self.positions != "learned" or self.relative_bias):
            raise ModelError("Expected only learned positions for table.between, got others. Change them.")
        if self.rotates and self.relative_bias:
            raise ModelError("Expected rotary positions or relative_bias, got both. Choose one of them.")
        if self.talking_heads and (self.rotates or self.relative_bias):
            raise ModelError("Expected no rotations or relative_bias with talking_heads, got some. Remove one of them.")
        if self.norms.pooled and self.pooling == "cls+mean":
            raise ModelError("Expected pooling of one token for norms.final='pooled', got 'cls+mean'. Change pooling.")
        if self.norms.post and self.parallel:
            raise ModelError("Expected norms.post or parallel, got both. Choose one of them.")
        if self.pooling == "attention" and self.width % (heads := self.pool.heads or self.heads):
            raise ModelError(f"Expected a width divisible by {heads} heads to pool, got {self.width}. Change it.")
        if self.grid_of(*self.image_size)[0] % self.frames:
            raise ModelError(
                f"Expected the height of {self.frames} pictures of patches, got {self.image_size[0]}. Change frames."
            )
        if self.image_size[0] * self.image_size[1] > MAX_PIXELS:
            raise ModelError(
                f"Expected an image_size of at most {MAX_PIXELS:,} pixels, got {self.image_size[0]} x "
                f"{self.image_size[1]}. Choose a smaller size."
            )

    @property
    def head_size(self) -> int:
        """Return d, the width of one head."""
        return self.head_width if self.head_width is not None else self.width // self.heads

    def query_width(self, tokens: int) -> int:
        """Return the width of a head's queries and keys for N tokens.

        A relative position bias adds N channels, and a talking head has the channels of all heads.
        """
        return self.head_size * (self.heads if self.talking_heads else 1) + (tokens if self.relative_bias else 0)

    def pairs(self, tokens: int) -> int:
        """Return the number of query-key pairs of a head in the first block, for N tokens."""
        return tokens**2

    @property
    def plain_blocks(self) -> bool:
        """Return whether each block is x + attention(norm(x)), then x + MLP(norm(x)).

        All norms are layer norms, and attention is plain.
        """
        more = self.norms.post or self.norms.attention or self.norms.mlp
        return self.plain_attention and not (more or self.parallel or self.norms.kind != "layer")

    @property
    def register_places(self) -> tuple[int, int]:
        """Return the first of the `test_registers` among all tokens, and the end of these registers."""
        return len(self.prefix) - self.test_registers, len(self.prefix)

    @property
    def plain_attention(self) -> bool:
        """Return whether logits are products of a head's queries and keys: without relative bias and talking heads."""
        return not (self.relative_bias or self.talking_heads)

    @property
    def pool_attentions(self) -> int:
        """Return the number of attentions in the pooling before the classifier."""
        return (self.pool.blocks or 1) if self.pooling == "attention" else 0

    @property
    def size_multiple(self) -> int:
        """Return the number of pixels of which the sides of an image must be multiples."""
        return self.patch_size

    @property
    def feature_width(self) -> int:
        """Return F, the number of features, which are the pooled tokens."""
        return 2 * self.width if self.pooling == "cls+mean" else self.width

    @property
    def hidden(self) -> int:
        """Return the hidden width of the MLP."""
        return self.mlp_width if self.mlp_width is not None else 4 * self.width

    @property
    def gated(self) -> bool:
        """Return whether the MLP is gated."""
        return self.mlp != "mlp"

    @property
    def rotates(self) -> bool:
        """Return whether queries and keys are rotated."""
        return "rotary" in self.positions

    @property
    def learned(self) -> bool:
        """Return whether learned position embeddings are added to the tokens."""
        return "learned" in self.positions

    @property
    def position_kind(self) -> str:
        """Return the kind of positions: `positions`, or "relative" if the model has only a relative position bias."""
        return "relative" if self.relative_bias and self.positions == "none" else self.positions

    @property
    def grid(self) -> tuple[int, int]:
        """Return (gh, gw) patches at the native image size."""
        return self.grid_of(*self.image_size)

    @property
    def learned_grid(self) -> tuple[int, int]:
        """Return (rows, columns) of the learned position table."""
        return self.table.grid or self.grid

    @property
    def prefix(self) -> tuple[str, ...]:
        """Return the names of the P tokens in front of the patches, in order."""
        first = ("CLS",) * self.class_token + ("distillation",) * self.distillation_token
        return first + tuple(f"register {i + 1}" for i in range(self.registers))

    @property
    def distillation_at(self) -> int:
        """Return the index of the distillation token, which follows the class token, if any."""
        return int(self.class_token)

    def grid_of(self, height: int, width: int) -> tuple[int, int]:
        """Return (gh, gw) for an image of height x width pixels.

        Raises:
            ModelError: if a side is not a positive multiple of `size_multiple`.
        """
        patch, least = self.patch_size, self.size_multiple
        if self.frames > 1 and (height, width) != self.image_size:
            own = " x ".join(map(str, self.image_size))
            raise ModelError(
                f"Expected {self.frames} pictures of a video below one another, {own} pixels, got {height} x {width}. "
                "Stack them with stack_frames."
            )
        if height < least or width < least or height % least or width % least:
            near = " x ".join(str(max(least, round(side / least) * least)) for side in (height, width))
            kind = "patches" if least == patch else "windows of every stage, multiples"
            raise ModelError(
                f"Expected an image that divides into {kind} of {least} x {least}, got {height} x {width} pixels. "
                f"Resize it, for instance to {near}."
            )
        return height // patch, width // patch

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "ViTConfig":
        """Return the config written by `to_dict`; raise `ModelError` for unknown names."""
        check_names(data, [field.name for field in dataclasses.fields(cls)], ModelError, complete=False)
        return cls(**data)


CHOICES: dict[str, tuple[str, ...]] = {
    name: typing.get_args(hint) for name, hint in field_types(ViTConfig).items() if typing.get_origin(hint) is Literal
}


# Table 1 of the ViT paper (base, large, huge) and table 1 of the DeiT paper (tiny, small).
PRESETS: dict[str, dict[str, int]] = {
    "tiny": {"width": 192, "depth": 12, "heads": 3, "mlp_width": 768},
    "small": {"width": 384, "depth": 12, "heads": 6, "mlp_width": 1536},
    "base": {"width": 768, "depth": 12, "heads": 12, "mlp_width": 3072},
    "large": {"width": 1024, "depth": 24, "heads": 16, "mlp_width": 4096},
    "huge": {"width": 1280, "depth": 32, "heads": 16, "mlp_width": 5120, "patch_size": 14},
}


@check_arguments(ModelError)
def preset(name: str, **changes: Any) -> ViTConfig:
    """Return the config of a published size: tiny, small, base, large or huge, with `changes` to its fields.

    >>> preset("base", patch_size=32).grid
    (7, 7)
    """
    if name not in PRESETS:
        raise ModelError(f"Expected one of the presets {', '.join(PRESETS)}, got {name!r}. Choose one of them.")
    return ViTConfig(**{**PRESETS[name], **changes})
