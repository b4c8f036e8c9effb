"""Every size of a Vision Transformer, and the published ones by name.

Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", table 1; Touvron et al. 2021, "Training data-efficient image
transformers", table 1.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal


class ModelError(ValueError):
    """Sizes or inputs that do not fit the model; the text says what was expected, what came and what to do."""


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """Every size of a Vision Transformer. Saved beside the weights.

    Args:
        image_size: (height, width) in pixels that the model is made for; other multiples of the patch work too.
        patch_size: side of a square patch in pixels.
        channels: colour channels of the image.
        width: D, length of a token.
        depth: number of blocks.
        heads: H, heads in each block.
        head_width: d; `None` means width // heads.
        mlp_width: hidden width of the MLP; `None` means 4 x width.
        classes: C; 0 for a model without a classifier.
        class_token, distillation_token: whether these prefix tokens are there.
        registers: number of register tokens.
        pooling: what the classifier reads: the class token, the mean over patches, both one after the other, or what
            a learned query attends to.
        positions: learned, fixed two-dimensional sine and cosine, rotary (turning queries and keys), or none.
        position_grid: (rows, columns) the learned positions were trained on; `None` means that of `image_size`.
        position_antialias: whether positions are low-pass filtered when they are interpolated to fewer patches.
        layer_scale: start value of the per-channel scale after attention and MLP; `None` for none.
        rotary_base: of rotary positions; the slowest of n rotations takes rotary_base^(1 - 1/n) times as long as the
            fastest, n = head width / 4.
        qkv_bias, patch_bias, mlp_bias: whether these linear maps have a bias.
        qk_norm: whether queries and keys of each head are layer-normed.
        mlp: two layers, or gated ("swiglu"); `activation` is the non-linearity of the former.
        norm_pre: whether the tokens are layer-normed before the first block (CLIP).
        norm_pooled: whether the final norm acts on what was pooled, not on every token.
        norm_eps: epsilon of every layer norm.
        dropout, attention_dropout, path_dropout: probabilities in training; path_dropout grows linearly with depth.
    """

    image_size: tuple[int, int] = (224, 224)
    patch_size: int = 16
    channels: int = 3
    width: int = 384
    depth: int = 12
    heads: int = 6
    head_width: int | None = None
    mlp_width: int | None = None
    classes: int = 1000
    class_token: bool = True
    distillation_token: bool = False
    registers: int = 0
    pooling: Literal["cls", "mean", "cls+mean", "attention"] = "cls"
    positions: Literal["learned", "sincos", "rotary", "none"] = "learned"
    position_grid: tuple[int, int] | None = None
    position_antialias: bool = True
    rotary_base: float = 100.0
    layer_scale: float | None = None
    qkv_bias: bool = True
    patch_bias: bool = True
    mlp_bias: bool = True
    qk_norm: bool = False
    mlp: Literal["mlp", "swiglu"] = "mlp"
    activation: Literal["gelu", "gelu_tanh", "quick_gelu"] = "gelu"
    norm_pre: bool = False
    norm_pooled: bool = False
    norm_eps: float = 1e-6
    dropout: float = 0.0
    attention_dropout: float = 0.0
    path_dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("patch_size", "channels", "width", "depth", "heads"):
            _require_int(name, getattr(self, name), 1)
        for name in ("classes", "registers"):
            _require_int(name, getattr(self, name), 0)
        for name in ("head_width", "mlp_width"):
            if getattr(self, name) is not None:
                _require_int(name, getattr(self, name), 1)
        # Lists come back from JSON; the config is hashable and compares by value, so it holds tuples.
        object.__setattr__(self, "image_size", _pair("image_size", self.image_size))
        if self.position_grid is not None:
            object.__setattr__(self, "position_grid", _pair("position_grid", self.position_grid))
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ModelError(f"{name}: expected one of {allowed}, got {getattr(self, name)!r}.")
        if self.head_width is None and self.width % self.heads:
            raise ModelError(
                f"width {self.width} does not divide into {self.heads} heads: expected a multiple of the heads. "
                f"Try width {self.width - self.width % self.heads or self.heads}, or set head_width yourself."
            )
        if not self.norm_eps > 0.0:
            raise ModelError(f"norm_eps keeps layer norms from dividing by zero: expected > 0, got {self.norm_eps}.")
        for name in ("dropout", "attention_dropout", "path_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ModelError(f"{name} is a probability: expected 0 <= {name} < 1, got {getattr(self, name)}.")
        if "cls" in self.pooling and not self.class_token:
            raise ModelError(f"pooling={self.pooling!r} reads the class token, but there is none. Use pooling='mean'.")
        if self.positions == "sincos" and self.width % 4:
            raise ModelError(f"positions='sincos' needs a width divisible by 4, got {self.width}.")
        if self.positions == "rotary" and self.head_size % 4:
            raise ModelError(f"positions='rotary' needs a head width divisible by 4, got {self.head_size}.")
        if self.norm_pooled and self.pooling == "cls+mean":
            raise ModelError("norm_pooled=True norms one token, but pooling='cls+mean' makes two. Choose another.")
        if self.pooling == "attention" and self.width % self.heads:
            raise ModelError(f"pooling='attention' needs a width divisible by {self.heads} heads, got {self.width}.")
        self.grid_of(*self.image_size)

    @property
    def head_size(self) -> int:
        """d, the width of one head."""
        return self.head_width if self.head_width is not None else self.width // self.heads

    @property
    def hidden(self) -> int:
        """Hidden width of the MLP."""
        return self.mlp_width if self.mlp_width is not None else 4 * self.width

    @property
    def grid(self) -> tuple[int, int]:
        """(gh, gw) patches at the native image size."""
        return self.grid_of(*self.image_size)

    @property
    def learned_grid(self) -> tuple[int, int]:
        """(rows, columns) of the learned position table."""
        return self.position_grid or self.grid

    @property
    def prefix(self) -> tuple[str, ...]:
        """Names of the P tokens in front of the patches, in order."""
        first = ("CLS",) * self.class_token + ("distillation",) * self.distillation_token
        return first + tuple(f"register {i + 1}" for i in range(self.registers))

    @property
    def distillation_at(self) -> int:
        """Where the distillation token stands, in models that have one: behind the class token, if that is there."""
        return int(self.class_token)

    def grid_of(self, height: int, width: int) -> tuple[int, int]:
        """(gh, gw) for an image of height x width pixels.

        Raises:
            ModelError: if a side is not a positive multiple of the patch size.
        """
        patch = self.patch_size
        if height < patch or width < patch or height % patch or width % patch:
            near = " x ".join(str(max(patch, round(side / patch) * patch)) for side in (height, width))
            raise ModelError(
                f"An image of {height} x {width} pixels does not divide into patches of {patch} x {patch}: expected "
                f"sides that are multiples of {patch}. Resize it, for instance to {near}."
            )
        return height // patch, width // patch

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ViTConfig:
        """The config that `to_dict` wrote. Unknown names are refused."""
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(data) - known):
            raise ModelError(f"Unknown model settings {unknown}: expected only {sorted(known)}.")
        return cls(**data)


CHOICES: dict[str, tuple[str, ...]] = {
    "pooling": ("cls", "mean", "cls+mean", "attention"),
    "positions": ("learned", "sincos", "rotary", "none"),
    "mlp": ("mlp", "swiglu"),
    "activation": ("gelu", "gelu_tanh", "quick_gelu"),
}


def _require_int(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ModelError(f"{name}: expected a whole number of at least {least}, got {value!r}.")


def _pair(name: str, value: object) -> tuple[int, int]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ModelError(f"{name}: expected two whole numbers, (rows, columns) or (height, width), got {value!r}.")
    for side in value:
        _require_int(name, side, 1)
    return value[0], value[1]


# Table 1 of the ViT paper (base, large, huge) and table 1 of the DeiT paper (tiny, small).
PRESETS: dict[str, dict[str, int]] = {
    "tiny": {"width": 192, "depth": 12, "heads": 3, "mlp_width": 768},
    "small": {"width": 384, "depth": 12, "heads": 6, "mlp_width": 1536},
    "base": {"width": 768, "depth": 12, "heads": 12, "mlp_width": 3072},
    "large": {"width": 1024, "depth": 24, "heads": 16, "mlp_width": 4096},
    "huge": {"width": 1280, "depth": 32, "heads": 16, "mlp_width": 5120, "patch_size": 14},
}


def preset(name: str, **changes: Any) -> ViTConfig:
    """The config of a published size: tiny, small, base, large or huge, with any field changed.

    >>> preset("base", patch_size=32).grid
    (7, 7)
    """
    if name not in PRESETS:
        raise ModelError(f"Unknown preset {name!r}: expected one of {', '.join(PRESETS)}.")
    return ViTConfig(**{**PRESETS[name], **changes})
