"""Photographs with a model's predictions: one by itself, or many on a sheet with right and wrong told apart.

Nothing is told by color alone: a right prediction has a tick, a wrong one a cross and the true class below it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from vitviz.draw.colorbar import describe_clipped
from vitviz.draw.colors import DrawError, Theme
from vitviz.draw.overlay import overlay
from vitviz.draw.sheet import Cell, Line, arrange, fit_photo, rescale
from vitviz.draw.text import font, shorten, wrap
from vitviz.formatting import output
from vitviz.heatmap import Heatmap
from vitviz.outputs import REGRESSION, SINGLE, ProblemType

TICK, CROSS = "\N{CHECK MARK}", "\N{BALLOT X}"


@dataclass(frozen=True, eq=False)
class Prediction:
    """The best class of one photograph.

    Args:
        pictures: what a sheet shows, side by side: the photograph, a map over it, or several.
        label: the most probable class.
        probability: of that class, 0..1, or its value (regression); `None` leaves it out.
        truth: the true class, where it is known.
        right: whether the label's class is the true one; `None` where that is not known.
        problem_type: what the outputs mean.
    """

    pictures: tuple[Image.Image, ...]
    label: str
    probability: float | None = None
    truth: str | None = None
    right: bool | None = None
    problem_type: ProblemType = SINGLE

    def lines(self, width: int, size: int, dark: bool) -> tuple[Line, ...]:
        """Return the label with its probability, and the truth of a wrong one, each within `width` pixels.

        A long label loses its end, not its probability.
        """
        face, theme = font(size), Theme.of(dark)
        colors = {None: ("", theme.text), True: (f"{TICK} ", theme.right), False: (f"{CROSS} ", theme.wrong)}
        mark, color = colors[self.right]
        share = "" if self.probability is None else f" {output(self.probability, self.problem_type, 2)}"
        label = shorten(mark + self.label, width - face.getlength(share), font(size, bold=True).getlength)
        said: Line = ((label, color, True), (share, color, False))
        if self.truth is None:
            return (said,)
        truth = "" if self.right else shorten(f"it is {self.truth}", width, face.getlength)
        return said, ((truth, theme.text, False),)


def draw_map(heatmap: Heatmap, side: int, *, alpha: float = 0.55, cmap: str = "magma") -> Image.Image:
    """Return a map over its photograph at the size of `fit_photo`, so that the edges of patches stay sharp.

    By default in magma, which is dark where values are small: the photograph keeps its colors there.
    """
    photo = fit_photo(heatmap.photo, side)
    geometry = rescale(heatmap.geometry, photo.size)
    return overlay(photo, heatmap.values, geometry, alpha=alpha, cmap=cmap, signed=heatmap.signed)


def prediction_sheet(
    predictions: Sequence[Prediction],
    *,
    title: str = "",
    note: str = "",
    columns: int = 6,
    side: int = 128,
    dark: bool = False,
) -> Image.Image:
    """Return many predictions in reading order, as one RGB picture.

    Args:
        predictions: all with the same number of pictures, none longer than `side`.
        title, note: above them; long ones wrap.
        columns: predictions in a row.
        side: room for a picture, in pixels; the type follows.
        dark: light words on a dark ground.

    Raises:
        DrawError: for no predictions, or pictures that do not fit.
    """
    if not predictions:
        raise DrawError("Expected at least one prediction, got none. Pass some.")
    if columns < 1 or side < 48:
        raise DrawError(f"Expected at least 1 column of 48 pixels, got {columns} of {side}. Use more.")
    counts = {len(one.pictures) for one in predictions}
    if len(counts) > 1 or 0 in counts:
        raise DrawError(f"Expected as many pictures in each prediction, got {sorted(counts)}. Add the others.")
    largest = max(max(picture.size) for one in predictions for picture in one.pictures)
    if largest > side:
        raise DrawError(f"Expected pictures of at most {side} pixels, got {largest}. Use fit_photo.")
    size = max(12, round(side / 15))
    width = counts.pop() * (side + round(0.3 * size)) - round(0.3 * size)
    cells = [Cell(one.pictures, one.lines(width, size, dark)) for one in predictions]
    return arrange(cells, side, size, columns=columns, title=title, note=note, dark=dark)


def prediction_picture(
    heatmap: Heatmap,
    ranked: Sequence[tuple[str, float]],
    *,
    title: str = "",
    side: int = 448,
    dark: bool = False,
    problem_type: ProblemType = SINGLE,
) -> Image.Image:
    """Return one photograph, a map over it, and the most probable classes as bars, as one RGB picture.

    Args:
        heatmap: the map and its photograph; its title stands below it.
        ranked: labels and their probabilities 0..1, the best first, or their values (regression); at least one.
        title: stands above, such as the file's name.
        side: the longer side of each of the two pictures, in pixels.
        dark: light words on a dark ground.
        problem_type: what the outputs mean. Values have no bars.
    """
    if not ranked:
        raise DrawError("Expected at least one class and its probability, got none. Ask for one or more.")
    size, theme = max(11, round(side / 28)), Theme.of(dark)
    beyond = describe_clipped(heatmap.scale(), heatmap.unit, float(np.abs(heatmap.values).max()))
    words = f"{heatmap.title}. {beyond}" if beyond else heatmap.title
    pictures = (("the photograph", fit_photo(heatmap.photo, side)), (words, draw_map(heatmap, side)))
    slot = max(pictures[0][1].width, 14 * size)  # words need room below a narrow photograph
    cells = []
    for text, picture in pictures:
        lines = tuple(((line, theme.muted, False),) for line in wrap(text, slot, font(size).getlength))
        cells.append(Cell((picture,), lines))
    return arrange(
        cells,
        slot,
        size,
        columns=2,
        title=title,
        dark=dark,
        footer=lambda width: _bars(ranked, width, size, dark, problem_type),
    )


def _bars(
    ranked: Sequence[tuple[str, float]], width: int, size: int, dark: bool, problem_type: ProblemType
) -> Image.Image:
    """Return a row for each class: its label, a bar from 0 to 100 % and its probability, or its value without a bar."""
    theme, step = Theme.of(dark), round(1.9 * size)
    out = Image.new("RGB", (width, step * len(ranked) - step // 3), theme.ground)
    draw, before = ImageDraw.Draw(out), round(0.38 * width)
    widest = max(font(size, bold=True).getlength(output(share, problem_type)) for _, share in ranked)
    start, end = before + size, width - size - math.ceil(widest)
    for index, (label, share) in enumerate(ranked):
        face, y = font(size, bold=index == 0), index * step
        draw.text((0, y + size // 2), shorten(label, before, face.getlength), theme.text, face, anchor="lm")
        if problem_type != REGRESSION:
            draw.rectangle((start, y, end, y + size), fill=theme.line)
        if problem_type != REGRESSION and (reach := round((end - start) * share)) > 0:
            draw.rectangle((start, y, start + reach, y + size), fill=theme.muted)
        draw.text((width, y + size // 2), output(share, problem_type), theme.text, face, anchor="rm")
    return out
