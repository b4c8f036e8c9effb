"""Draw a model: every shape from pixels to logits, in boxes and arrows.

The shapes are recorded by running the model on the meta device, for one image: (channels, height,
width), (tokens, channels), (heads, tokens, channels).
"""

from __future__ import annotations

from collections.abc import Sequence
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

# Inches. Rows extend from EDGE to page.inner() - EDGE; lines between rows run outside this range.
EDGE, GAP, HIGH = 0.3, 0.17, 0.56
LINE = page.line_of(page.SMALL)
PAD = 0.08  # padding of a box's text, sum of both sides
SUM, RADIUS = 0.35, 0.085  # room for the sum at the end of a row, and its circle
UPRIGHT = 5.2  # below this width, the steps are stacked vertically
BEND = 0.12  # from the page's edge to a line that leads to the next row
BELOW = LINE + 0.3  # height of a row's shapes and of the line to the next row


@page.styled
def shapes(view: View, *, photo: str = "", dark: bool = False) -> Figure:
    """Draw every shape from (3, H, W) to the logits, with the sizes of this model, and the view's predictions."""
    config = view.model.config
    way = route(config, view.size)
    passing = f"{counted(way.norm.shape[0], 'token')} of {config.width} channels"
    caption = (
        f"Shapes for one image: {passing} pass through the blocks; inside attention the shape is (heads, tokens, "
        f"channels per head). ⊕ adds the input of the branch. {BESIDE * config.parallel}{page.describe(view, photo)}"
    )
    end = f"{config.classes:,} logits" if config.classes else f"{way.ending[-1].shape[0]:,} features"
    heading = f"From {format_shape(way.image)} to {end}"
    if page.inner() < UPRIGHT:
        return _draw_upright(view, way, heading, caption, dark)
    wide = _box_width(way)
    stacked = [len(page.wrap(stage.caption, page.SMALL, wide - PAD)) * LINE + 0.1 for stage in way.inputs]
    tall = sum(stacked) + 2 * 0.06
    title = page.line_of(page.PANEL) + 0.2
    block = title + tall + BELOW + 0.12 + HIGH + LINE + 0.12  # the frame around a block's two rows
    block_top = HIGH + BELOW
    attention = block_top + title
    mlp = attention + tall + BELOW + 0.12
    last = block_top + block + 0.32
    height = last + HIGH + LINE
    figure = page.new_page(heading, caption, height, pad=0)
    pen = Pen(figure, height, wide, dark)
    pen.container(block_top, block, f"Block × {config.depth}")
    _draw_embedding(pen, view, way)
    pen.next_row(HIGH / 2, block_top - 0.13, attention + tall / 2)
    _draw_attention(pen, way, attention, stacked)
    pen.next_row(attention + tall / 2, attention + tall + LINE + 0.13, mlp + HIGH / 2)
    pen.row(EDGE, mlp, way.mlp)
    pen.add(mlp + HIGH / 2, mlp - 0.1)
    pen.next_row(mlp + HIGH / 2, last - 0.16, last + HIGH / 2)
    pen.row(EDGE, last, way.ending)
    if view.names_classes:
        left = pen.end + GAP + 0.08
        pen.line((pen.end, last + HIGH / 2), (left - 0.06, last + HIGH / 2))
        _draw_predictions(pen, view, left, last - 0.05)
    return figure


def _draw_upright(view: View, way: Route, title: str, caption: str, dark: bool) -> Figure:
    """Draw the steps stacked vertically with their shapes, for a narrow column."""
    boxes = (*way.embedding, way.norm, *way.inputs, way.weights, way.mixed, way.output, *way.mlp, *way.ending)
    wide = page.inner() - EDGE - max(page.measure(format_shape(stage.shape)) for stage in boxes) - 0.12
    third = (wide - 2 * GAP / 2) / 3  # queries, keys and values are side by side
    pair = 2 * third + GAP / 2

    def high(stage: Stage, width: float = wide) -> float:
        return len(page.wrap(stage.caption, page.SMALL, width - PAD)) * LINE + 0.1

    _, down, across = way.image
    scale = min(0.8 / down, wide / across)
    tall, sums = max(high(stage, third) for stage in way.inputs), 2 * RADIUS
    attention = [high(way.norm), tall, high(way.weights, pair), high(way.mixed), high(way.output), sums]
    first = [scale * down, *map(high, way.embedding)]
    block, last = [*attention, *map(high, way.mlp), sums], [*map(high, way.ending)]
    heading = page.line_of(page.PANEL) + 0.08
    named = (GAP + 4 * (LINE + 0.02)) * view.names_classes
    steps = [*first, *block, *last]
    height = sum(steps) + len(steps) * GAP + heading + 2 * GAP + named
    figure = page.new_page(title, caption, height, pad=0)
    pen = Pen(figure, height, wide, dark)
    middle, y = EDGE + wide / 2, scale * down
    left = middle - scale * across / 2
    pen.picture(view, (left, left + scale * across, y, 0.0))
    pen.beside(0, y, way.image)

    def step(stage: Stage, size: float) -> None:
        nonlocal y
        pen.line((middle, y), (middle, y + GAP))
        pen.box(EDGE, y + GAP, size, stage, shape=False)
        pen.beside(y + GAP, size, stage.shape)
        y += GAP + size

    def add(begin: float) -> None:
        nonlocal y
        pen.line((middle, y), (middle, y + GAP))
        y += GAP + RADIUS
        pen.line((middle, begin), (BEND, begin), (BEND, y), (middle - RADIUS, y))
        pen.plus(middle, y)
        y += RADIUS

    for stage, size in zip(way.embedding, first[1:], strict=True):
        step(stage, size)
    pen.line((middle, y), (middle, y + GAP + heading), style="-")
    pen.container(y + GAP, sum(block) + len(block) * GAP + heading + GAP / 2, f"Block × {view.model.config.depth}")
    y += heading + GAP
    begin = y + GAP * 0.4
    step(way.norm, block[0])
    top = y + GAP
    for at, stage in enumerate(way.inputs):
        left = EDGE + at * (third + GAP / 2)
        x = left + third / 2
        pen.line((middle, y), (middle, y + GAP / 2), (x, y + GAP / 2), (x, top))
        pen.box(left, top, tall, stage, shape=False, wide=third)
        below = top + tall + GAP + (0 if at < 2 else block[2] + GAP)
        pen.line((x, top + tall), (x, below))
    pen.beside(top, tall, way.inputs[0].shape)
    y = top + tall + GAP
    pen.box(EDGE, y, block[2], way.weights, shape=False, wide=pair)
    pen.beside(y, block[2], way.weights.shape)
    y += block[2]
    pen.line((EDGE + pair / 2, y), (EDGE + pair / 2, y + GAP))
    pen.box(EDGE, y + GAP, block[3], way.mixed, shape=False)
    pen.beside(y + GAP, block[3], way.mixed.shape)
    y += GAP + block[3]
    step(way.output, block[4])
    add(begin)
    begin = y + GAP * 0.4
    for stage, size in zip(way.mlp, block[6:-1], strict=True):
        step(stage, size)
    add(begin)
    pen.line((middle, y), (middle, y + GAP), style="-")
    y += GAP
    for stage, size in zip(way.ending, last, strict=True):
        step(stage, size)
    if named:
        pen.line((middle, y), (middle, y + GAP))
        _draw_predictions(pen, view, EDGE, y + GAP + 0.04)
    return figure


def format_shape(shape: Shape) -> str:
    """Format a shape as "(6, 257, 64)"."""
    return f"({', '.join(map(str, shape))})"


def _box_width(way: Route) -> float:
    """Return the width of boxes for which the longest row fits."""
    inner = page.inner() - 2 * EDGE
    first = 1 + len(way.embedding)
    return min((inner - (first - 1) * GAP) / first, (inner - SUM - 4 * GAP) / 5, 0.9)


class Pen:
    """Pen for boxes of equal width in axes of inches; `end` is the right edge of the last element."""

    def __init__(self, figure: Figure, height: float, wide: float, dark: bool) -> None:
        self.wide, self.end, self.accents, self.theme = wide, EDGE, page.ACCENTS[dark], Theme.of(dark)
        self.axes = figure.subplots()
        self.axes.set(label="drawing", xlim=(0, page.inner()), ylim=(height, 0), xticks=[], yticks=[], frame_on=False)

    def box(
        self, left: float, top: float, high: float, stage: Stage, shape: bool = True, wide: float | None = None
    ) -> None:
        """Draw a box with text, and its shape below."""
        wide = self.wide if wide is None else wide
        self._rounded(left, top, wide, high, self.accents[stage.kind], 0.16)
        lines, middle = page.wrap(stage.caption, page.SMALL, wide - PAD), left + wide / 2
        for index, text in enumerate(lines):
            y = top + high / 2 + (index - (len(lines) - 1) / 2) * LINE
            self.axes.text(middle, y, text, ha="center", va="center_baseline")
        if shape:
            self.below(middle, top + high, format_shape(stage.shape))
        self.end = left + wide

    def beside(self, top: float, high: float, shape: Shape) -> None:
        """Write a shape at the right edge of the page, beside a box."""
        self.axes.text(page.inner() - 0.04, top + high / 2, format_shape(shape), ha="right", va="center_baseline")

    def picture(self, view: View, extent: tuple[float, float, float, float]) -> None:
        """Draw the model's input; `extent` is left, right, bottom and top."""
        limits = self.axes.get_ylim()
        self.axes.imshow(np.asarray(view.seen()), extent=extent)
        self.axes.set(xlim=(0, page.inner()), ylim=limits)

    def below(self, center: float, top: float, words: str) -> None:
        """Write text below a box."""
        self.axes.text(center, top + 0.03, words, ha="center", va="top")

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

    def next_row(self, start: float, between: float, end: float) -> None:
        """Draw a line at these heights from the end of a row to the start of the next row."""
        right, left = page.inner() - BEND, BEND
        self.line((self.end, start), (right, start), (right, between), (left, between), (left, end), (EDGE, end))

    def row(self, left: float, top: float, stages: Sequence[Stage]) -> None:
        """Draw boxes of equal height from left to right, connected by arrows."""
        for index, stage in enumerate(stages):
            at = left + index * (self.wide + GAP)
            if index:
                self.line((at - GAP, top + HIGH / 2), (at, top + HIGH / 2))
            self.box(at, top, HIGH, stage)

    def add(self, y: float, above: float) -> None:
        """Draw the sum at the end of a row, and the skip connection over the row's boxes."""
        x = page.inner() - EDGE - RADIUS
        self.line((self.end, y), (x - RADIUS, y))
        begin = BEND + (EDGE - BEND) * 0.35
        self.line((begin, y), (begin, above), (x, above), (x, y - RADIUS))
        self.plus(x, y)
        self.end = x + RADIUS

    def plus(self, x: float, y: float) -> None:
        """Draw a plus sign."""
        color = self.theme.muted
        self.axes.add_patch(Circle((x, y), RADIUS, fc=self.theme.ground, ec=color, lw=0.8))
        for dx, dy in ((0.6 * RADIUS, 0.0), (0.0, 0.6 * RADIUS)):
            self.axes.plot([x - dx, x + dx], [y - dy, y + dy], color=color, lw=0.8)

    def container(self, top: float, high: float, words: str) -> None:
        """Draw the frame of a block."""
        self._rounded(0, top, page.inner(), high, self.accents["norm"], 0.07)
        self.axes.text(EDGE, top + 0.06, words, fontsize=page.PANEL, fontweight="bold", va="top")


def _draw_embedding(pen: Pen, view: View, way: Route) -> None:
    """Draw the image and the patch embedding, at the top of the page."""
    (_, height, width), middle = way.image, HIGH / 2
    wide = min(pen.wide, HIGH * width / height)
    high = wide * height / width
    left = EDGE + (pen.wide - wide) / 2
    pen.picture(view, (left, left + wide, middle + high / 2, middle - high / 2))
    pen.below(EDGE + pen.wide / 2, HIGH, format_shape(way.image))
    pen.line((left + wide, middle), (EDGE + pen.wide + GAP, middle))
    pen.row(EDGE + pen.wide + GAP, 0.0, way.embedding)


def _draw_attention(pen: Pen, way: Route, top: float, stacked: Sequence[float]) -> None:
    """Draw a block's first half: norm, queries, keys and values, weights, mixture, output, sum."""
    step = pen.wide + GAP
    tall = sum(stacked) + 2 * 0.06
    middle = top + tall / 2
    pen.box(EDGE, middle - HIGH / 2, HIGH, way.norm)
    left, at, centers = EDGE + step, top, []
    for stage, high in zip(way.inputs, stacked, strict=True):
        pen.box(left, at, high, stage, shape=False)
        centers.append(at + high / 2)
        pen.line((left - GAP, middle), (left - GAP / 2, middle), (left - GAP / 2, centers[-1]), (left, centers[-1]))
        at += high + 0.06
    pen.below(left + pen.wide / 2, top + tall, f"each {format_shape(way.inputs[0].shape)}")
    lower = centers[1] + stacked[1] / 2
    between, weights, mixed = (top + lower) / 2, left + step, left + 2 * step
    for center in centers[:2]:
        pen.line((weights - GAP, center), (weights, center))
    pen.box(weights, top, lower - top, way.weights)
    pen.line((pen.end, between), (mixed, between))
    pen.line((weights - GAP, centers[2]), (mixed, centers[2]))
    pen.box(mixed, top, tall, way.mixed)
    pen.line((pen.end, middle), (mixed + step, middle))
    pen.box(mixed + step, middle - HIGH / 2, HIGH, way.output)
    pen.add(middle, top - 0.1)


HEADINGS = {SINGLE: "softmax, the most probable", SEVERAL: "sigmoid, the most probable", REGRESSION: "values"}


def _draw_predictions(pen: Pen, view: View, left: float, top: float) -> None:
    """Write the most probable classes below and to the right of a point."""
    pen.axes.text(left, top, HEADINGS[view.model.problem_type], color=pen.theme.muted, va="top")
    width = min(2.0, page.inner() - EDGE - left)
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
