"""Figures of the path that a picture takes through a model, for papers, lectures and reports.

>>> import numpy as np, vitviz
>>> from vitviz.render.figures import draw, encode
>>> model = vitviz.ViT(vitviz.preset("tiny", image_size=(64, 64), depth=1, classes=10))
>>> view = vitviz.Explorer(model).open(np.zeros((48, 64, 3), np.uint8))
>>> figures = draw(view, ["shapes", "parameters"], dark=True)
>>> encode(figures["shapes"], "svg")[:5]
b'<?xml'

- `tokens`: `patches`, `features`, `embedding`, from pixels to tokens.
- `places`: `positions`, where a patch lies.
- `drawing`: `shapes`, every shape from pixels to logits; `route` holds them as data.
- `counts`: `parameters` by module.

Each of them takes a `View` (the last three also a `ViT`) and returns a matplotlib `Figure` that is ready to be saved.
matplotlib is imported when the first figure is drawn.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitviz.render.figures.about import FigureError
from vitviz.view import View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = ("patches", "features", "embedding", "positions", "shapes", "parameters")
FORMATS = ("png", "svg", "pdf")


def draw(
    view: View, only: Collection[str] = NAMES, *, photo: str = "", dark: bool = False, filters: int = 24
) -> dict[str, Figure]:
    """Figures by name, in the order of `NAMES`.

    Args:
        view: of `Explorer.open`.
        only: some of `NAMES`.
        photo: the photograph's name, for the captions.
        dark: light words on a dark ground.
        filters: how many filters of the patch embedding are shown; fewer where the model has fewer.

    Raises:
        FigureError: if there is no such figure, or fewer than one filter is asked for.
    """
    if unknown := [name for name in only if name not in NAMES]:
        raise FigureError(f"Expected figures among {', '.join(NAMES)}; got {', '.join(map(repr, unknown))}.")
    from vitviz.render.figures import counts, drawing, places, tokens

    if filters < 1:
        raise FigureError(f"filters: expected at least 1, got {filters}.")
    options: dict[str, Any] = {"photo": photo, "dark": dark}
    made: dict[str, Callable[[], Figure]] = {
        "patches": lambda: tokens.patches(view, **options),
        "features": lambda: tokens.features(view, count=min(filters, view.model.config.width), **options),
        "embedding": lambda: tokens.embedding(view, **options),
        "positions": lambda: places.positions(view, **options),
        "shapes": lambda: drawing.shapes(view, **options),
        "parameters": lambda: counts.parameters(view, **options),
    }
    return {name: made[name]() for name in NAMES if name in only}


def encode(figure: Figure, format: str) -> bytes:
    """A figure as a PNG, SVG or PDF file. Equal figures are equal bytes; in SVG and PDF, words are words.

    Raises:
        FigureError: if `format` is another one.
    """
    if format not in FORMATS:
        raise FigureError(f"Expected the format {', '.join(FORMATS)}; got {format!r}.")
    from vitviz.render.figures.files import encoded

    return encoded(figure, format)


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure to a file whose name ends in .png, .svg or .pdf.

    Raises:
        FigureError: if it ends otherwise.
    """
    path = Path(path)
    path.write_bytes(encode(figure, path.suffix.lower().removeprefix(".")))
