"""Draw the confusion matrix of a classifier."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from vitviz.draw.figures.layouts import current
from vitviz.draw.figures.page import SMALL, bar, inner, measure, new_page, shorten, styled
from vitviz.formatting import percent

CMAP = {False: "Blues", True: "cividis"}  # color maps that differ from the background
GAMMA = 0.5  # more colors for small shares, because mistakes are rare
CELLS = ((5, 0.44), (12, 0.36), (20, 0.28), (50, 0.125), (100, 0.085))  # (maximum classes, inches per cell)
READABLE, LARGEST = 5.5, 8.3  # minimum font size in points; inches of a matrix with more classes


@styled
def confusion(
    matrix: NDArray[np.int64], labels: Sequence[str], *, title: str = "Confusion", fit: bool = False, dark: bool = False
) -> Figure:
    """Draw a confusion matrix: rows are true classes, columns are predicted classes, colors are shares of the row.

    Counts, labels and row accuracies are shown for up to about 20, 100 and 50 classes.

    Args:
        matrix: (C, C), counts; entry (i, j) counts images of class i predicted as class j.
        labels: one per class.
        title: title, followed by the number of images and the accuracy.
        fit: shrink the cells until the figure has the layout's width; by default the width depends on the classes.
        dark: light text on a dark background.
    """
    cell = next((inches for most, inches in CELLS if len(labels) <= most), LARGEST / len(labels))
    while fit and sum(_columns(cell, labels)) > inner():
        cell *= 0.97
    before, side, after = _columns(cell, labels)
    size, names, totals = _type_size(cell), _names(cell, labels), after > 0
    sums, right = matrix.sum(1), matrix.diagonal()
    accuracy = percent(right.sum() / max(1, matrix.sum()), 4)
    caption = "Down: the true class. Across: the predicted class. Colour: share of the row."
    caption += " At the end of a row: its accuracy." if totals else ""
    width = max(before + side + after, (1.0 if fit else 0.7) * inner()) + 2 * current().margin
    heading = f"{title}: {matrix.sum():,} images, {accuracy} right"
    figure = new_page(heading, caption, before + side + 0.6, width=width)
    axes = figure.subplots()
    cmap = ListedColormap(colormaps[CMAP[dark]](np.linspace(0, 1, 256) ** GAMMA))
    shares = matrix / np.maximum(1, sums)[:, None]  # (C, C) / (C, 1)
    image = axes.imshow(shares, cmap=cmap, vmin=0, vmax=1, interpolation="nearest", aspect="equal")
    axes.set_label("matrix")
    axes.xaxis.tick_top()
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=size)
    axes.set_yticks(range(len(names)), names, fontsize=size)
    axes.tick_params(length=0)
    for row, (whole, hits) in enumerate(zip(sums, right, strict=True) if totals else ()):
        text = percent(hits / whole) if whole else "\N{EN DASH}"
        axes.annotate(text, (len(labels) - 0.5, row), (4, 0), textcoords="offset points", va="center", fontsize=size)
    if measure(str(matrix.max()), size) < cell - 0.04:
        for row, column in np.argwhere(matrix > 0):  # omit zeros to emphasise mistakes
            light = _luminance(cmap(shares[row, column])) > 0.179  # above it, black text has more contrast (WCAG 2)
            style: dict[str, Any] = {"ha": "center", "va": "center", "color": "#181a1f" if light else "#ffffff"}
            axes.text(column, row, str(matrix[row, column]), fontsize=size, **style)
    bar(image, axes, "share of the row", location="bottom", shrink=min(1.0, 2.0 / side), aspect=22, anchor=(0, 1))
    return figure


def _type_size(cell: float) -> float:
    """Return the font size in points for cells of the given size in inches."""
    return max(READABLE, min(SMALL, 0.8 * 72 * cell))


def _names(cell: float, labels: Sequence[str]) -> list[str]:
    """Return the labels in at most 1.5 inches each, or no labels if a cell is lower than a line of text."""
    return [shorten(label, _type_size(cell), 1.5) for label in labels] if 72 * cell >= READABLE else []


def _columns(cell: float, labels: Sequence[str]) -> tuple[float, float, float]:
    """Return the widths in inches of the labels, the cells, and the accuracy at the end of each row."""
    before = max((measure(name, _type_size(cell)) for name in _names(cell, labels)), default=0.0) + 0.06
    return before, cell * len(labels), measure("100.0 %") + 0.1 if cell > 0.11 else 0.0


def _luminance(color: tuple[float, ...]) -> float:
    """Return WCAG 2's relative luminance, 0..1, with sRGB's transfer curve as a single power."""
    return float(np.array(color[:3]) ** 2.2 @ np.array([0.2126, 0.7152, 0.0722]))
