"""Every shape on the way from pixels to logits: what is done, and what comes out of it.

Shapes are those of one image: (channels, height, width), (tokens, channels), (heads, tokens, channels).
"""

from __future__ import annotations

from dataclasses import dataclass

from vitviz.config import ViTConfig

Shape = tuple[int, ...]

NBSP = "\N{NO-BREAK SPACE}"
ACTIVATION = {"gelu": "GELU", "gelu_tanh": "GELU (tanh)", "quick_gelu": "quick GELU"}


@dataclass(frozen=True)
class Stage:
    """One step: what is done, the shape that comes out, and the kind of module, which has a colour."""

    words: str
    shape: Shape
    kind: str


@dataclass(frozen=True)
class Attention:
    """The middle of a block's first half: what makes queries, keys and values, then weights, mixture, output."""

    inputs: tuple[Stage, Stage, Stage]
    weights: Stage
    mixed: Stage
    output: Stage


@dataclass(frozen=True)
class Route:
    """The whole way of an image of `size` (height, width) through a model."""

    image: Shape
    embedding: tuple[Stage, ...]
    norm: Stage
    attention: Attention
    mlp: tuple[Stage, ...]
    ending: tuple[Stage, ...]

    @property
    def stages(self) -> tuple[Stage, ...]:
        """All of them in order; those of a block once."""
        a = self.attention
        return (*self.embedding, self.norm, *a.inputs, a.weights, a.mixed, a.output, *self.mlp, *self.ending)


def route(config: ViTConfig, size: tuple[int, int]) -> Route:
    """What happens to one image of `size` (height, width) in pixels.

    Raises:
        ModelError: if the size does not divide into patches.
    """
    rows, columns = config.grid_of(*size)
    tokens = len(config.prefix) + rows * columns
    return Route(
        image=(config.channels, *size),
        embedding=_embedding(config, (rows, columns)),
        norm=Stage("LayerNorm", (tokens, config.width), "norm"),
        attention=_attention(config, tokens),
        mlp=_mlp(config, tokens),
        ending=_ending(config, tokens, rows * columns),
    )


def _embedding(config: ViTConfig, grid: tuple[int, int]) -> tuple[Stage, ...]:
    """From pixels to what enters the first block."""
    (gh, gw), width, p = grid, config.width, config.patch_size
    flat, tokens = (gh * gw, width), (len(config.prefix) + gh * gw, width)
    found = [
        Stage(f"Convolution {p} × {p}, stride{NBSP}{p}", (width, gh, gw), "embedding"),
        Stage("Flatten, transpose", flat, "embedding"),
    ]
    if config.positions in ("learned", "sincos"):
        kind = "learned" if config.positions == "learned" else "sinusoidal"
        brought = kind == "learned" and config.learned_grid != grid
        words = "interpolated positions" if brought else f"{kind} positions"
        found.append(Stage(f"Add {words}", flat, "embedding"))
    if config.prefix:
        names = ["CLS"] * config.class_token + ["distillation"] * config.distillation_token
        names += [f"{config.registers} register{'s' * (config.registers > 1)}"] if config.registers else []
        found.append(Stage(f"Prepend {', '.join(names)}", tokens, "embedding"))
    if config.norm_pre:
        found.append(Stage("LayerNorm", tokens, "norm"))
    return tuple(found)


def _attention(config: ViTConfig, tokens: int) -> Attention:
    heads, d = config.heads, config.head_size
    more = (", norm" if config.qk_norm else "") + (", rotate" if config.positions == "rotary" else "")
    scaled = ", scale" if config.layer_scale is not None else ""
    queries, keys, values = (
        Stage(words, (heads, tokens, d), "attention")
        for words in (f"Queries: linear{more}", f"Keys: linear{more}", "Values: linear")
    )
    return Attention(
        (queries, keys, values),
        Stage(f"Softmax of q{NBSP}kᵀ{NBSP}/{NBSP}√{d}", (heads, tokens, tokens), "attention"),
        Stage("Weights × values", (heads, tokens, d), "attention"),
        Stage(f"Side by side ({heads * d}), linear{scaled}", (tokens, config.width), "attention"),
    )


def _mlp(config: ViTConfig, tokens: int) -> tuple[Stage, ...]:
    """A block's second half."""
    hidden, out = (tokens, config.hidden), (tokens, config.width)
    scaled = ", scale" if config.layer_scale is not None else ""
    if config.mlp == "swiglu":
        first, between = (tokens, 2 * config.hidden), "SiLU of one half times the other"
    else:
        first, between = hidden, ACTIVATION[config.activation]
    return (
        Stage("LayerNorm", out, "norm"),
        Stage("Linear", first, "mlp"),
        Stage(between, hidden, "mlp"),
        Stage(f"Linear{scaled}", out, "mlp"),
    )


def _ending(config: ViTConfig, tokens: int, patches: int) -> tuple[Stage, ...]:
    """From the last block to the logits, or to features without a classifier."""
    width = config.width
    norm = Stage("LayerNorm", (width,) if config.norm_pooled else (tokens, width), "norm")
    words = {
        "cls": "Take CLS",
        "mean": f"Mean of {patches} patches",
        "cls+mean": "CLS beside the mean of patches",
        "attention": f"Attention pooling, {config.heads} head{'s' * (config.heads > 1)}, MLP",
    }[config.pooling]
    pooled = Stage(words, (2 * width if config.pooling == "cls+mean" else width,), "head")
    found = [pooled, norm] if config.norm_pooled else [norm, pooled]
    if config.classes:
        both = "Two linear, their mean" if config.distillation_token else "Linear"
        found.append(Stage(both, (config.classes,), "head"))
    return tuple(found)
