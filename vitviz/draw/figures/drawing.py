"""Draw a model: every shape from pixels to logits, in boxes and arrows.

The shapes are recorded by running the model on the meta device, for one image: (channels, height,
width), (tokens, channels), (heads, tokens, channels).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path

from vitviz.draw.colors import Theme
from vitviz.draw.figures import page
from vitviz.formatting import counted, output
from vitviz.model.config import ViTConfig
from vitviz.model.ops import Explicit
from vitviz.model.summary import run_on_meta
from vitviz.outputs import REGRESSION, SEVERAL, SINGLE
from vitviz.view import View

Point = tuple[float, float]
Shape = tuple[int, ...]

NBSP = "\N{NO-BREAK SPACE}"
BESIDE = (
    "In this model attention and MLP read the same normalised tokens and are added together; they are drawn one after "
    "the other. "
)
NORMS = {"layer": "LayerNorm", "rms": "RMSNorm"}
ACTIVATION = {"gelu": "GELU", "gelu_tanh": "GELU (tanh)", "quick_gelu": "quick GELU"}

# Lengths in inches.
EDGE = 0.3  # from a column's edge to its boxes; skip connections run here
GAP = 0.17  # between two boxes
LINE = page.line_of(page.SMALL)
PAD = 0.08  # padding of a box's text, sum of both sides
RADIUS = 0.085  # of the circle of a sum
COLUMN = 2.4  # minimum width of one of two columns
GUTTER = 0.3  # between two columns; lines run here
WIDEST = 3.4  # maximum width of a column
BEND = 0.12  # from a column's edge to a skip connection


@page.styled
def shapes(view: View, *, photo: str = "", dark: bool = False) -> Figure:
    """Draw the shape of every tensor of this model, from the pixels (3, H, W) to the logits, and the predictions.

    The steps run from top to bottom. On a wide page, the block stands in a second column.
    """
    config = view.model.config
    way = route(config, view.size)
    passing = f"{counted(way.norm.shape[0], 'token')} of {config.width} channels"
    caption = (
        f"Shapes for one image: {passing} pass through the blocks; inside attention the shape is (heads, tokens, "
        f"channels per head). ⊕ adds the input of the branch. {BESIDE * config.parallel}{page.describe(view, photo)}"
    )
    end = f"{config.classes:,} logits" if config.classes else f"{way.ending[-1].shape[0]:,} features"
    beside = page.fitting(COLUMN + GUTTER / 2, 2) == 2
    column = min(WIDEST, (page.inner() - GUTTER) / 2) if beside else page.inner()
    boxes = (*way.embedding, way.norm, *way.inputs, way.weights, way.mixed, way.output, *way.mlp, *way.ending)
    wide = column - EDGE - max(page.measure(format_shape(stage.shape)) for stage in boxes) - 0.12
    _, down, across = way.image
    picture = min(0.8, wide * down / across)  # height
    embedding = picture + sum(GAP + box_height(stage, wide) for stage in way.embedding)
    heading = page.line_of(page.PANEL) + 0.08
    block = heading + _block_height(way, wide)
    named = (GAP + 4 * (LINE + 0.02)) * view.names_classes
    ending = sum(GAP + box_height(stage, wide) for stage in way.ending) + named
    between = 3 * GAP if beside else block + 2 * GAP
    height = max(embedding + between + ending, (block + 2 * GAP) * beside)
    figure = page.new_page(f"From {format_shape(way.image)} to {end}", caption, height, pad=0)
    pen = Pen(figure, height, column, wide, dark)
    pen.picture(view, picture)
    for stage in way.embedding:
        pen.step(stage)
    start, turn = pen.bottom, column + GUTTER / 2
    if beside:
        pen.left = column + GUTTER
        pen.line(start, (start[0], embedding + GAP), (turn, embedding + GAP), (turn, 0), (pen.middle, 0), style="-")
    pen.y = GAP if beside else embedding + GAP
    pen.container(pen.y, block, f"Block × {config.depth}")
    pen.line((pen.middle, pen.y - GAP), (pen.middle, pen.y + heading), style="-")
    pen.y += heading
    _draw_block(pen, way)
    leaving, pen.y = pen.bottom, embedding + between
    if beside:
        low, pen.left = leaving[1] + GAP, 0.0
        pen.line(leaving, (leaving[0], low), (turn, low), (turn, pen.y), pen.bottom, style="-")
    else:
        pen.line(leaving, pen.bottom, style="-")
    for stage in way.ending:
        pen.step(stage)
    if named:
        pen.line(pen.bottom, (pen.middle, pen.y + GAP))
        _draw_predictions(pen, view, pen.y + GAP + 0.04)
    return figure


def format_shape(shape: Shape) -> str:
    """Format a shape as "(6, 257, 64)"."""
    return f"({', '.join(map(str, shape))})"


def box_height(stage: Stage, wide: float) -> float:
    """Return the height of a box of this width."""
    return len(page.wrap(stage.caption, page.SMALL, wide - PAD)) * LINE + 0.1


class Pen:
    """Draws the steps of a figure from top to bottom, in axes whose unit is an inch.

    Args:
        figure: receives the axes.
        height: of the axes.
        column: width of a column.
        wide: width of a box.
        dark: light text on a dark background.

    Attributes:
        left: left edge of the column.
        y: lower end of the last step.
    """

    def __init__(self, figure: Figure, height: float, column: float, wide: float, dark: bool) -> None:
        self.column, self.wide, self.accents, self.theme = column, wide, page.ACCENTS[dark], Theme.of(dark)
        self.left = self.y = 0.0
        self.axes = figure.subplots()
        self.axes.set(label="drawing", xlim=(0, page.inner()), ylim=(height, 0), xticks=[], yticks=[], frame_on=False)

    @property
    def middle(self) -> float:
        """Return the middle of the boxes."""
        return self.left + EDGE + self.wide / 2

    @property
    def bottom(self) -> Point:
        """Return the middle of the lower edge of the last step."""
        return self.middle, self.y

    def picture(self, view: View, high: float) -> None:
        """Draw the preprocessed photograph that the model receives."""
        (height, width), limits = view.size, self.axes.get_ylim()
        half = high * width / height / 2
        self.axes.imshow(np.asarray(view.seen()), extent=(self.middle - half, self.middle + half, high, 0.0))
        self.axes.set(xlim=(0, page.inner()), ylim=limits)
        self._beside(high, (view.model.config.channels, height, width))
        self.y += high

    def step(self, stage: Stage) -> None:
        """Draw an arrow to a box, and the box with its shape."""
        self.line(self.bottom, (self.middle, self.y + GAP))
        self.y += GAP
        self.box(stage)
        self.y += box_height(stage, self.wide)

    def box(self, stage: Stage, indent: float = 0.0, wide: float | None = None, high: float | None = None) -> None:
        """Draw a box below the last step, with its shape at the right edge of the column."""
        wide = self.wide if wide is None else wide
        high = box_height(stage, wide) if high is None else high
        left = self.left + EDGE + indent
        self._rounded(left, self.y, wide, high, self.accents[stage.kind], 0.16)
        lines = page.wrap(stage.caption, page.SMALL, wide - PAD)
        for index, text in enumerate(lines):
            y = self.y + high / 2 + (index - (len(lines) - 1) / 2) * LINE
            self.axes.text(left + wide / 2, y, text, ha="center", va="center_baseline")
        if not indent:
            self._beside(high, stage.shape)

    def _beside(self, high: float, shape: Shape) -> None:
        place = self.left + self.column - 0.04, self.y + high / 2
        self.axes.text(*place, format_shape(shape), ha="right", va="center_baseline")

    def _rounded(self, left: float, top: float, wide: float, high: float, color: str, alpha: float) -> None:
        for face, edge, opacity in ((color, "none", alpha), ("none", color, 1.0)):
            style: dict[str, Any] = {"fc": face, "ec": edge, "alpha": opacity, "lw": 0.8, "clip_on": False}
            shape = "round,pad=0,rounding_size=0.05"
            self.axes.add_patch(FancyBboxPatch((left, top), wide, high, boxstyle=shape, **style))

    def line(self, *points: Point, style: str = "-|>") -> None:
        """Draw a line through points with an arrowhead, or in another of matplotlib's arrow styles."""
        head: dict[str, Any] = {"arrowstyle": style, "mutation_scale": 5, "shrinkA": 0, "shrinkB": 0}
        look: dict[str, Any] = {"lw": 0.8, "color": self.theme.muted, "joinstyle": "miter", "clip_on": False}
        self.axes.add_patch(FancyArrowPatch(path=Path(points), **head, **look))

    def add(self, begin: float) -> None:
        """Draw a sum, and the skip connection that begins at this height."""
        x, skip = self.middle, self.left + BEND
        self.line(self.bottom, (x, self.y + GAP))
        self.y += GAP + RADIUS
        self.line((x, begin), (skip, begin), (skip, self.y), (x - RADIUS, self.y))
        color = self.theme.muted
        self.axes.add_patch(Circle((x, self.y), RADIUS, fc=self.theme.ground, ec=color, lw=0.8))
        for dx, dy in ((0.6 * RADIUS, 0.0), (0.0, 0.6 * RADIUS)):
            self.axes.plot([x - dx, x + dx], [self.y - dy, self.y + dy], color=color, lw=0.8)
        self.y += RADIUS

    def container(self, top: float, high: float, words: str) -> None:
        """Draw the frame of a block."""
        self._rounded(self.left, top, self.column, high, self.accents["norm"], 0.07)
        self.axes.text(self.left + EDGE, top + 0.06, words, fontsize=page.PANEL, fontweight="bold", va="top")


def _third(wide: float) -> float:
    """Return the width of each of three boxes side by side: queries, keys and values."""
    return (wide - GAP) / 3


def _block_height(way: Route, wide: float) -> float:
    """Return the height of a transformer block as `_draw_block` draws it, including half a gap below it."""
    third = _third(wide)
    heights = [box_height(stage, wide) for stage in (way.norm, way.mixed, way.output, *way.mlp)]
    heights += [max(box_height(stage, third) for stage in way.inputs), box_height(way.weights, 2 * third + GAP / 2)]
    heights += [2 * RADIUS] * 2
    return sum(heights) + (len(heights) + 0.5) * GAP


def _draw_block(pen: Pen, way: Route) -> None:
    """Draw the steps of a block: attention and MLP, each followed by the sum with its input."""
    third, begin = _third(pen.wide), pen.y + 0.4 * GAP
    pair = 2 * third + GAP / 2
    tall, high = max(box_height(stage, third) for stage in way.inputs), box_height(way.weights, pair)
    pen.step(way.norm)
    start, bus = pen.bottom, pen.y + GAP / 2
    pen.y += GAP
    for index, stage in enumerate(way.inputs):
        indent = index * (third + GAP / 2)
        x = pen.left + EDGE + indent + third / 2
        pen.line(start, (pen.middle, bus), (x, bus), (x, pen.y))
        pen.box(stage, indent, third, tall)
        below = pen.y + tall + GAP + (high + GAP) * (index == 2)  # values skip the weights
        pen.line((x, pen.y + tall), (x, below))
    pen.y += tall + GAP
    pen.box(way.weights, wide=pair)
    pen.y += high
    pen.line((pen.left + EDGE + pair / 2, pen.y), (pen.left + EDGE + pair / 2, pen.y + GAP))
    pen.y += GAP
    pen.box(way.mixed)
    pen.y += box_height(way.mixed, pen.wide)
    pen.step(way.output)
    pen.add(begin)
    begin = pen.y + 0.4 * GAP
    for stage in way.mlp:
        pen.step(stage)
    pen.add(begin)


HEADINGS = {SINGLE: "softmax, the most probable", SEVERAL: "sigmoid, the most probable", REGRESSION: "values"}


def _draw_predictions(pen: Pen, view: View, top: float) -> None:
    """Write the most probable classes."""
    left, width = pen.left + EDGE, min(2.0, pen.wide)
    pen.axes.text(left, top, HEADINGS[view.model.problem_type], color=pen.theme.muted, va="top")
    for index, (label, probability) in enumerate(view.predictions(3)):
        y = top + 0.16 + index * (LINE + 0.02)
        room = width - page.measure("< 0.01 %") - 0.1
        pen.axes.text(left, y, page.shorten(label, page.SMALL, room), va="top")
        pen.axes.text(left + width, y, output(probability, view.model.problem_type), ha="right", va="top")


@dataclass(frozen=True)
class Stage:
    """One step: caption, output shape, and kind of module, which determines the color."""

    caption: str
    shape: Shape
    kind: str


@dataclass(frozen=True)
class Route:
    """Steps of an image through a model, with one block. `inputs` are queries, keys and values."""

    image: Shape
    embedding: tuple[Stage, ...]
    norm: Stage
    inputs: tuple[Stage, Stage, Stage]
    weights: Stage
    mixed: Stage
    output: Stage
    mlp: tuple[Stage, ...]
    ending: tuple[Stage, ...]


def route(config: ViTConfig, size: tuple[int, int]) -> Route:
    """Return the steps of one image of `size` (height, width) in pixels.

    Raises:
        ModelError: if the size is not divisible by the patch size.
    """
    config, ops = replace(config, depth=1), Explicit()
    rows = {row.name: row for row in run_on_meta(config, size, ops=ops)}
    out = {name: row.shape[1:] for name, row in rows.items()}
    into = {name: row.input[1:] for name, row in rows.items()}
    scaled = ", scale" if config.layer_scale is not None else ""
    norm = NORMS[config.norms.kind]
    before, after = ("no norm", f", {norm}") if config.norms.post else (norm, "")
    inner = {True: f", {norm}", False: ""}
    placed = (", norm" if config.norms.qk else "") + (", rotate" if config.rotates else "")
    attended = ops.seen[0]
    heads, weights = tuple(attended.keys.shape[1:]), tuple(attended.probabilities.shape[1:])
    joined = into["blocks.0.attn.proj"]
    between = {"swiglu": "SiLU", "reglu": "ReLU"}.get(config.mlp, ACTIVATION[config.activation])
    between += " of one half times the other" if config.gated else ""
    return Route(
        image=(config.channels, *size),
        embedding=_embedding(config, out, into),
        norm=Stage(before, out["blocks.0.norm1"], "norm"),
        inputs=(
            Stage(f"Queries: linear{placed}", heads, "attention"),
            Stage(f"Keys: linear{placed}", heads, "attention"),
            Stage("Values: linear", heads, "attention"),
        ),
        weights=Stage(f"Softmax of q{NBSP}kᵀ{NBSP}/{NBSP}√{heads[-1]}", weights, "attention"),
        mixed=Stage("Weights × values", heads, "attention"),
        output=Stage(
            f"Side by side ({joined[-1]}){inner[config.norms.attention]}, linear{after}{scaled}",
            out["blocks.0.attn"],
            "attention",
        ),
        mlp=(
            Stage("the same tokens" if config.parallel else before, out["blocks.0.norm1"], "norm"),
            Stage("Linear", out["blocks.0.mlp.fc1"], "mlp"),
            Stage(between, into["blocks.0.mlp.fc2"], "mlp"),
            Stage(
                f"{f'{norm}, linear' if config.norms.mlp else 'Linear'}{after}{scaled}", out["blocks.0.mlp.fc2"], "mlp"
            ),
        ),
        ending=_ending(config, out, into),
    )


def _embedding(config: ViTConfig, out: dict[str, Shape], into: dict[str, Shape]) -> tuple[Stage, ...]:
    """Return the steps from pixels to the first block."""
    p, (_, gh, gw) = config.patch_size, out["patch_embed.proj"]
    stages = [
        Stage(f"Convolution {p} × {p}, stride{NBSP}{p}", out["patch_embed.proj"], "embedding"),
        Stage("Flatten, transpose", out["patch_embed"], "embedding"),
    ]
    if config.norms.patch:
        stages.append(Stage(NORMS[config.norms.kind], out["patch_embed.norm"], "norm"))
    if config.positions not in ("rotary", "none"):
        kind = "learned" if config.learned else "sinusoidal"
        if kind == "learned" and config.learned_grid != (gh, gw):
            kind = "interpolated"
        stages.append(Stage(f"Add {kind} positions", out["patch_embed"], "embedding"))
    if config.prefix:
        names = ["CLS"] * config.class_token + ["distillation"] * config.distillation_token
        names += [f"{config.registers} register{'s' * (config.registers > 1)}"] if config.registers else []
        stages.append(Stage(f"Prepend {', '.join(names)}", into["norm_pre"], "embedding"))
    if config.norms.pre:
        stages.append(Stage(NORMS[config.norms.kind], out["norm_pre"], "norm"))
    return tuple(stages)


def _ending(config: ViTConfig, out: dict[str, Shape], into: dict[str, Shape]) -> tuple[Stage, ...]:
    """Return the steps from the last block to the logits, or to features without a classifier."""
    patches = out["patch_embed"][0]
    words = {
        "cls": "Take CLS",
        "mean": f"Mean of {patches} patches",
        "cls+mean": "CLS beside the mean of patches",
        "attention": f"Attention pooling, {counted(config.pool.heads or config.heads, 'head')}, MLP",
    }[config.pooling]
    if config.pool.blocks and config.pooling == "attention":
        words = f"Class attention, {counted(config.pool.blocks, 'block')}"
    norm = [Stage(NORMS[config.norms.kind], out["norm"], "norm")] * (config.norms.final != "none")
    pooled = [Stage(words, into["norm"] if config.norms.pooled else into.get("head", out[""]), "head")]
    stages = [*pooled, *norm] if config.norms.pooled else [*norm, *pooled]
    if config.classes:
        caption = "Two linear, their mean" if config.distillation_token else "Linear"
        stages.append(Stage(caption, out["head"], "head"))
    return tuple(stages)
