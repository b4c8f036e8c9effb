"""Draw photographs with predictions, singly or on a sheet that marks right and wrong ones.

Marks complement colors: a right prediction has a tick; a wrong one has a cross, with the true class below.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from vitviz.draw.colorbar import describe_clipped
from vitviz.draw.colors import Theme
from vitviz.draw.sheet import Cell, Line, arrange, fit_photo
from vitviz.draw.text import font, shorten, wrap
from vitviz.formatting import output
from vitviz.heatmap import Heatmap
from vitviz.outputs import REGRESSION, SINGLE, ProblemType

TICK, CROSS = "\N{CHECK MARK}", "\N{BALLOT X}"


@dataclass(frozen=True, eq=False)
class Prediction:
    """Prediction for one photograph.

    Args:
        pictures: pictures side by side, such as the photograph and a map over it.
        label: the most probable class.
        probability: its probability, 0..1, or value (regression); `None` to omit it.
        truth: the true class, if known.
        right: whether the prediction is right; `None` if unknown.
        problem_type: meaning of the outputs.
    """

    pictures: tuple[Image.Image, ...]
    label: str
    probability: float | None = None
    truth: str | None = None
    right: bool | None = None
    problem_type: ProblemType = SINGLE

    def lines(self, width: int, size: int, dark: bool) -> tuple[Line, ...]:
        """Return the label with its probability, and the truth of a wrong prediction, within `width` pixels.

        Long labels are shortened; probabilities are not.
        """
        face, theme = font(size), Theme.of(dark)
        colors = {None: ("", theme.text), True: (f"{TICK} ", theme.right), False: (f"{CROSS} ", theme.wrong)}
        mark, color = colors[self.right]
        share = "" if self.probability is None else f" {output(self.probability, self.problem_type, 2)}"
        label = shorten(mark + self.label, width - face.getlength(share), font(size, bold=True).getlength)
        prediction: Line = ((label, color, True), (share, color, False))
        if self.truth is None:
            return (prediction,)
        truth = "" if self.right else shorten(f"it is {self.truth}", width, face.getlength)
        return prediction, ((truth, theme.text, False),)


def draw_map(heatmap: Heatmap, side: int, *, alpha: float = 0.55, cmap: str = "magma") -> Image.Image:
    """Draw a map over its photograph, resized by `fit_photo`, with sharp patch edges.

    The default color map, magma, is dark at small values, where the photograph keeps its colors.
    """
    return heatmap.over(fit_photo(heatmap.photo, side)).overlay(alpha, cmap)


def prediction_sheet(
    predictions: Sequence[Prediction],
    *,
    title: str = "",
    note: str = "",
    columns: int = 6,
    side: int = 128,
    dark: bool = False,
) -> Image.Image:
    """Draw predictions in reading order as one RGB picture.

    Args:
        predictions: at least one, with equal numbers of pictures of at most `side` pixels per side.
        title, note: text above; long lines wrap.
        columns: predictions per row.
        side: size of a picture in pixels; the font size follows.
        dark: light text on a dark background.
    """
    size = max(12, round(side / 15))
    width = len(predictions[0].pictures) * (side + round(0.3 * size)) - round(0.3 * size)
    cells = [Cell(prediction.pictures, prediction.lines(width, size, dark)) for prediction in predictions]
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
    """Draw one photograph, a map over it, and bars of the most probable classes, as one RGB picture.

    Args:
        heatmap: the map with its photograph and title.
        ranked: labels with probabilities 0..1, best first, or values (regression); at least one.
        title: text above, such as the file name.
        side: longer side of each picture in pixels.
        dark: light text on a dark background.
        problem_type: meaning of the outputs. Values have no bars.
    """
    size, theme = max(11, round(side / 28)), Theme.of(dark)
    beyond = describe_clipped(heatmap.scale(), heatmap.unit, float(np.abs(heatmap.values).max()))
    words = f"{heatmap.title}. {beyond}" if beyond else heatmap.title
    pictures = (("the photograph", fit_photo(heatmap.photo, side)), (words, draw_map(heatmap, side)))
    slot = max(pictures[0][1].width, 14 * size)  # room for text below a narrow photograph
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
    """Return one row per class: label, bar from 0 to 100 % and probability; for values, no bar."""
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
