"""A confusion matrix as a picture: which classes are taken for which others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageFont

from vitviz.render.colorbar import DARK, LIGHT, Theme, colorbar
from vitviz.render.colors import Bytes, OverlayError, Scale, lut
from vitviz.render.overlay import font
from vitviz.render.sheet import shorten, wrap

CMAP = {False: "Blues", True: "cividis"}  # nothing has the colour of the ground, or nearly
GAMMA = 0.5  # mistakes are few beside right answers: their colours are spread, in the cells and on the bar
READABLE = 11  # pixels: smaller type than this is not drawn
CELLS = ((5, 64), (12, 52), (20, 40), (50, 18), (100, 12))  # up to so many classes, pixels
SMALL, LARGE, MARGIN, BAR = 15, 20, 28, (360, 44)
_WHITE, _BLACK = (255, 255, 255), (24, 26, 31)


@dataclass(frozen=True)
class _Plan:
    """Where things are, in pixels: the matrix's top left corner, the side of a cell, room for labels before it."""

    at: tuple[int, int]
    cell: int
    room: int
    size: tuple[int, int]
    heading: tuple[str, ...]
    words: tuple[str, ...]
    totals: bool


def confusion_picture(
    counts: ArrayLike, labels: Sequence[str], *, title: str = "Confusion", dark: bool = False
) -> Image.Image:
    """Rows are the true classes, columns the predicted ones, a colour the share of its row; an RGB picture.

    Counts, labels and the share of right answers in each row are written where there is room for them: up to about 20,
    100 and 50 classes.

    Args:
        counts: (C, C) whole numbers; row i, column j: how many images of class i were taken for class j.
        labels: one for each class.
        title: stands above, with the number of images and the share of right answers.
        dark: light words on a dark ground.

    Raises:
        OverlayError: for counts that are no square matrix of whole numbers from 0, or do not fit the labels.
    """
    matrix, theme = _checked(counts, labels), DARK if dark else LIGHT
    plan = _plan(matrix, labels, title)
    (left, top), side = plan.at, plan.cell * len(labels)
    out = Image.new("RGB", plan.size, theme.ground)
    draw = ImageDraw.Draw(out)
    for index, text in enumerate(plan.heading):
        draw.text((MARGIN, MARGIN + 30 * index), text, theme.text, font(LARGE, bold=True), anchor="la")
    for index, text in enumerate(plan.words):
        at = (MARGIN, MARGIN + 30 * len(plan.heading) + 22 * index)
        draw.text(at, text, theme.muted, font(SMALL), anchor="la")
    rows = matrix / np.maximum(1, matrix.sum(1, keepdims=True))  # (C, C) / (C, 1): shares of each row
    colours = lut(CMAP[dark])[Scale(0.0, 1.0).indices(rows, GAMMA)]  # (C, C, 3)
    out.paste(Image.fromarray(colours).resize((side, side), Image.Resampling.NEAREST), plan.at)
    draw.rectangle((left - 1, top - 1, left + side, top + side), outline=theme.line)
    if plan.room:
        _name(out, labels, plan, theme)
    if plan.totals:
        _totals(draw, matrix, plan, theme)
    _numbers(draw, matrix, colours, plan)
    out.paste(colorbar(CMAP[dark], 0.0, 1.0, "of the row", BAR, dark, gamma=GAMMA), (MARGIN, top + side + 20))
    return out


def _checked(counts: ArrayLike, labels: Sequence[str]) -> NDArray[np.int64]:
    matrix = np.asarray(counts)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.size == 0 or matrix.dtype.kind not in "iu":
        raise OverlayError(
            f"counts: expected whole numbers (classes, classes), got {matrix.dtype} of shape {matrix.shape}."
        )
    if len(labels) != len(matrix):
        raise OverlayError(f"labels: expected one for each of {len(matrix)} classes, got {len(labels)}.")
    if int(matrix.min()) < 0:
        raise OverlayError(f"counts: expected numbers from 0, got {int(matrix.min())}.")
    return matrix.astype(np.int64)


def _plan(matrix: NDArray[np.int64], labels: Sequence[str], title: str) -> _Plan:
    classes = len(labels)
    cell = next(
        size for most, size in ((5, 64), (12, 52), (20, 40), (50, 18), (100, 12), (10**9, 0)) if classes <= most
    )
    cell = cell or max(1, 1200 // classes)
    face = _face(cell)
    room = min(220, max(math.ceil(face.getlength(label)) for label in labels)) + 12 if cell >= READABLE else 0
    totals = cell >= 16
    after = round(face.getlength("100.0 %")) + 16 if totals else 0
    inner = max(room + cell * classes + after, 480)
    images, right = int(matrix.sum()), int(matrix.trace())
    heading = f"{title}: {images:,} images, {100 * right / max(1, images):.2f} % right"
    words = "Down: what it is. Across: what the model says. Colour: share of the row."
    words += " At the end of a row: how many of it are right." if totals else ""
    above = wrap(heading, font(LARGE, bold=True), inner), wrap(words, font(SMALL), inner)
    top = MARGIN + 30 * len(above[0]) + 22 * len(above[1]) + 14 + room  # the columns' labels stand on end
    size = (inner + 2 * MARGIN, top + cell * classes + 20 + BAR[1] + MARGIN)
    return _Plan((MARGIN + room, top), cell, room, size, *above, totals)


def _face(cell: int) -> ImageFont.FreeTypeFont:
    return font(max(READABLE, min(SMALL, round(0.8 * cell))))


def _name(out: Image.Image, labels: Sequence[str], plan: _Plan, theme: Theme) -> None:
    """Labels before the rows, and on end above the columns."""
    face, (left, top), draw = _face(plan.cell), plan.at, ImageDraw.Draw(out)
    for index, label in enumerate(labels):
        text, middle = shorten(label, face, plan.room - 12), round((index + 0.5) * plan.cell)
        draw.text((left - 8, top + middle), text, theme.text, face, anchor="rm")
        strip = Image.new("RGB", (plan.room, max(plan.cell, READABLE + 2)), theme.ground)
        ImageDraw.Draw(strip).text((8, strip.height // 2), text, theme.text, face, anchor="lm")
        standing = strip.transpose(Image.Transpose.ROTATE_90)
        out.paste(standing, (left + middle - standing.width // 2, top - 1 - plan.room))


def _totals(draw: ImageDraw.ImageDraw, matrix: NDArray[np.int64], plan: _Plan, theme: Theme) -> None:
    """The share of right answers at the end of each row; a dash where there are no images."""
    face, x = _face(plan.cell), plan.at[0] + plan.cell * len(matrix) + 12
    for index, (row, right) in enumerate(zip(matrix.sum(1).tolist(), matrix.diagonal().tolist(), strict=True)):
        text = f"{100 * right / row:.1f} %" if row else "\N{EN DASH}"
        draw.text((x, plan.at[1] + (index + 0.5) * plan.cell), text, theme.text, face, anchor="lm")


def _numbers(draw: ImageDraw.ImageDraw, matrix: NDArray[np.int64], colours: Bytes, plan: _Plan) -> None:
    """Counts in the cells, where the longest fits; zeros are left out, so that mistakes stand out."""
    face = _face(plan.cell)
    if face.getlength(str(int(matrix.max()))) > plan.cell - 6:
        return
    for row, column in np.argwhere(matrix > 0).tolist():
        dark = _luminance(colours[row, column]) < 0.179  # below it white has more contrast than black (WCAG 2)
        x, y = plan.at[0] + (column + 0.5) * plan.cell, plan.at[1] + (row + 0.5) * plan.cell
        draw.text((x, y), str(matrix[row, column]), _WHITE if dark else _BLACK, face, anchor="mm")


def _luminance(colour: Bytes) -> float:
    """How light a colour is, 0..1: WCAG 2's relative luminance, with one power for sRGB's curve."""
    return float((colour / 255.0) ** 2.2 @ np.array([0.2126, 0.7152, 0.0722]))
