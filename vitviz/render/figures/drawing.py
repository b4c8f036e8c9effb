"""The drawing of a model: every shape from pixels to logits, in boxes and arrows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path

from vitviz.model import ViT
from vitviz.render.figures.about import counted, model_of, model_words, photo_words, size_of
from vitviz.render.figures.page import INNER, PANEL, SMALL, Page, line_of, measure, shorten, wrap
from vitviz.render.figures.route import Route, Shape, Stage, route
from vitviz.view import View
from vitviz.viewer.page import percent

Point = tuple[float, float]

# Inches. Rows run from EDGE to INNER - EDGE; what leads from one row to the next runs outside of that.
EDGE, GAP, HIGH = 0.3, 0.17, 0.56
LINE = line_of(SMALL)
PAD = 0.08  # of a box' words, both sides together
SUM = 0.35  # what the sum at the end of a row takes
TURN = 0.12  # how far beside the boxes a line turns
BELOW = LINE + 0.3  # a row's shapes, and the line that leads to the next row


def shapes(source: View | ViT, *, photo: str = "", dark: bool = False) -> Figure:
    """Every shape from (3, H, W) to the logits, with the sizes of this model.

    Args:
        source: a view, for its photograph and predictions, or a model, for the size it is made for.
        photo: the photograph's name, for the caption.
        dark: light words on a dark ground.
    """
    model = model_of(source)
    way = route(model.config, size_of(source))
    wide = _box(way)
    stacked = [len(wrap(stage.words, SMALL, wide - PAD)) * LINE + 0.1 for stage in way.attention.inputs]
    tall = sum(stacked) + 2 * 0.06
    block = line_of(PANEL) + 0.2 + tall + BELOW + 0.12 + HIGH + LINE + 0.12  # the frame around a block's two rows
    y = {"first": 0.0}
    y["block"] = y["first"] + HIGH + BELOW
    y["attention"] = y["block"] + line_of(PANEL) + 0.2
    y["mlp"] = y["attention"] + tall + BELOW + 0.12
    y["last"] = y["block"] + block + 0.32
    config = model.config
    passing = f"{counted(way.norm.shape[0], 'token')} of {config.width} channels"
    caption = (
        f"Shapes of one image: {passing} pass the blocks; inside attention they are (heads, tokens, channels of a "
        f"head). ⊕ adds what came in. {photo_words(source, photo)} {model_words(source)}"
    )
    end = f"{config.classes:,} logits" if config.classes else f"{way.ending[-1].shape[0]:,} features"
    page = Page(f"From {words_of(way.image)} to {end}", caption, y["last"] + HIGH + LINE, dark=dark)
    pen = Pen(page, wide)
    pen.container(y["block"], block, f"Block × {config.depth}")
    _first(pen, source, way, y["first"])
    pen.turn((pen.end, y["first"] + HIGH / 2), y["block"] - 0.13, y["attention"] + tall / 2)
    _attention(pen, way, y["attention"], stacked)
    pen.turn((pen.end, y["attention"] + tall / 2), y["attention"] + tall + LINE + 0.13, y["mlp"] + HIGH / 2)
    _mlp(pen, way, y["mlp"])
    pen.turn((pen.end, y["mlp"] + HIGH / 2), y["last"] - 0.16, y["last"] + HIGH / 2)
    _last(pen, source, way, y["last"])
    return page.figure


def words_of(shape: Shape) -> str:
    """(6, 257, 64), as it is printed."""
    return f"({', '.join(map(str, shape))})"


def _box(way: Route) -> float:
    """How wide the boxes are, so that the longest row fits: the image's, or attention's with its sum."""
    room = INNER - 2 * EDGE
    first = 1 + len(way.embedding)
    return min((room - (first - 1) * GAP) / first, (room - SUM - 4 * GAP) / 5, 0.9)


class Pen:
    """Draws on one page boxes of one width; `end` is the right edge of what was drawn last."""

    def __init__(self, page: Page, wide: float) -> None:
        self.page, self.look, self.wide, self.end = page, page.look, wide, EDGE
        self.axes = page.axes("drawing", 0, 0, INNER, page.height, frame=False)
        self.axes.set_xlim(0, INNER)
        self.axes.set_ylim(page.height, 0)

    def box(self, left: float, top: float, high: float, stage: Stage) -> None:
        """A box with its words in it."""
        colour = self.look.accents[stage.kind]
        self._rounded(left, top, self.wide, high, colour, 0.16)
        lines = wrap(stage.words, SMALL, self.wide - PAD)
        for number, text in enumerate(lines):
            at = top + high / 2 + (number - (len(lines) - 1) / 2) * LINE
            self.page.words(left + self.wide / 2, at, text, across="center", down="center_baseline")
        self.end = left + self.wide

    def _rounded(self, left: float, top: float, wide: float, high: float, colour: str, fill: float) -> None:
        style = "round,pad=0,rounding_size=0.05"
        inner: dict[str, Any] = {"fc": colour, "ec": "none", "alpha": fill}
        edge: dict[str, Any] = {"fc": "none", "ec": colour, "lw": 0.8}
        for options in (inner, edge):
            self.axes.add_patch(FancyBboxPatch((left, top), wide, high, boxstyle=style, clip_on=False, **options))

    def shape(self, centre: float, top: float, shape: Shape) -> None:
        """A shape under what it comes out of."""
        self.page.words(centre, top + 0.03, words_of(shape), across="center")

    def line(self, *points: Point, arrow: bool = True) -> None:
        """A line through points, with an arrow's head at the last."""
        self.axes.add_patch(
            FancyArrowPatch(
                path=Path(points),
                arrowstyle="-|>" if arrow else "-",
                mutation_scale=5,
                lw=0.8,
                color=self.look.muted,
                shrinkA=0,
                shrinkB=0,
                joinstyle="miter",
                clip_on=False,
            )
        )

    def turn(self, start: Point, between: float, end: float) -> None:
        """From the end of a row to the beginning of the next, between the two."""
        right, left = INNER - TURN, TURN
        self.line(start, (right, start[1]), (right, between), (left, between), (left, end), (EDGE, end))

    def row(self, left: float, top: float, stages: Sequence[Stage]) -> None:
        """Boxes of one height from left to right, their shapes below; an arrow leads to all but the first."""
        for number, stage in enumerate(stages):
            at = left + number * (self.wide + GAP)
            if number:
                self.line((at - GAP, top + HIGH / 2), (at, top + HIGH / 2))
            self.box(at, top, HIGH, stage)
            self.shape(at + self.wide / 2, top + HIGH, stage.shape)

    def add(self, at: Point, above: float) -> None:
        """The sum at `at`, and the skip connection that comes from the row's beginning over its boxes."""
        colour, radius = self.look.muted, 0.085
        self.line((self.end, at[1]), (at[0] - radius, at[1]))
        begin = TURN + (EDGE - TURN) * 0.35
        self.line((begin, at[1]), (begin, above), (at[0], above), (at[0], at[1] - radius))
        self.axes.add_patch(Circle(at, radius, fc=self.look.ground, ec=colour, lw=0.8))
        for x, y in ((radius, 0.0), (0.0, radius)):
            self.axes.plot([at[0] - 0.6 * x, at[0] + 0.6 * x], [at[1] - 0.6 * y, at[1] + 0.6 * y], color=colour, lw=0.8)
        self.end = at[0] + radius

    def container(self, top: float, high: float, words: str) -> None:
        """The frame of a block."""
        self._rounded(0, top, INNER, high, self.look.accents["norm"], 0.07)
        self.page.words(EDGE, top + 0.06, words, size=PANEL, bold=True)


def _first(pen: Pen, source: View | ViT, way: Route, top: float) -> None:
    """The image and what makes it tokens."""
    _, height, width = way.image
    if isinstance(source, View):
        wide = min(pen.wide, HIGH * width / height)
        high = wide * height / width
        seen = pen.page.axes("image", EDGE + (pen.wide - wide) / 2, top + (HIGH - high) / 2, wide, high)
        pen.page.picture(seen, np.asarray(source.seen()))
        pen.end = EDGE + (pen.wide + wide) / 2
    else:
        pen.box(EDGE, top, HIGH, Stage("Image", way.image, "norm"))
    pen.shape(EDGE + pen.wide / 2, top + HIGH, way.image)
    pen.line((pen.end, top + HIGH / 2), (EDGE + pen.wide + GAP, top + HIGH / 2))
    pen.row(EDGE + pen.wide + GAP, top, way.embedding)


def _attention(pen: Pen, way: Route, top: float, stacked: Sequence[float]) -> None:
    """A block's first half: norm, queries, keys and values, weights, mixture, output, sum."""
    inside, step = way.attention, pen.wide + GAP
    tall = sum(stacked) + 2 * 0.06
    middle = top + tall / 2
    pen.box(EDGE, middle - HIGH / 2, HIGH, way.norm)
    pen.shape(EDGE + pen.wide / 2, middle + HIGH / 2, way.norm.shape)
    left, at, centres = EDGE + step, top, []
    for stage, high in zip(inside.inputs, stacked, strict=True):
        pen.box(left, at, high, stage)
        centres.append(at + high / 2)
        pen.line((left - GAP, middle), (left - GAP / 2, middle), (left - GAP / 2, centres[-1]), (left, centres[-1]))
        at += high + 0.06
    pen.page.words(left + pen.wide / 2, top + tall + 0.03, f"each {words_of(inside.inputs[0].shape)}", across="center")
    lower = centres[1] + stacked[1] / 2
    between, weights, mixed = (top + lower) / 2, left + step, left + 2 * step
    for centre in centres[:2]:
        pen.line((weights - GAP, centre), (weights, centre))
    pen.box(weights, top, lower - top, inside.weights)
    pen.shape(weights + pen.wide / 2, lower - 0.01, inside.weights.shape)
    pen.line((pen.end, between), (mixed, between))
    pen.line((weights - GAP, centres[2]), (mixed, centres[2]))
    pen.box(mixed, top, tall, inside.mixed)
    pen.shape(mixed + pen.wide / 2, top + tall, inside.mixed.shape)
    out = mixed + step
    pen.line((mixed + pen.wide, middle), (out, middle))
    pen.box(out, middle - HIGH / 2, HIGH, inside.output)
    pen.shape(out + pen.wide / 2, middle + HIGH / 2, inside.output.shape)
    pen.add((INNER - EDGE - 0.085, middle), top - 0.1)


def _mlp(pen: Pen, way: Route, top: float) -> None:
    """A block's second half."""
    pen.row(EDGE, top, way.mlp)
    pen.add((INNER - EDGE - 0.085, top + HIGH / 2), top - 0.1)


def _last(pen: Pen, source: View | ViT, way: Route, top: float) -> None:
    """From the last block's tokens to the answer."""
    pen.row(EDGE, top, way.ending)
    if not (isinstance(source, View) and source.names_classes):
        return
    best = source.predictions(3)
    left = pen.end + GAP + 0.08
    pen.line((pen.end, top + HIGH / 2), (left - 0.06, top + HIGH / 2))
    pen.page.words(left, top - 0.05, "softmax, the most probable", colour=pen.look.muted)
    room = min(2.0, INNER - EDGE - left)
    for number, (label, probability) in enumerate(best):
        at = top + 0.11 + number * (LINE + 0.02)
        share = percent(probability)
        pen.page.words(left, at, shorten(label, SMALL, room - measure("> 99.9 %", SMALL) - 0.1))
        pen.page.words(left + room, at, share, across="right")
