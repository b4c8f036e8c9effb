"""Figures of the path that a picture takes through a model, for papers, lectures and reports.

>>> import numpy as np, vitviz
>>> from vitviz.draw.figures import draw, encode
>>> model = vitviz.ViT(vitviz.preset("tiny", image_size=(64, 64), depth=1, classes=10))
>>> view = vitviz.Explorer(model).open(np.zeros((48, 64, 3), np.uint8))
>>> figures = draw(view, ["shapes", "parameters"], dark=True)
>>> encode(figures["shapes"], "svg")[:5]
b'<?xml'

- `tokens`: `patches`, `features`, `embedding`, from pixels to tokens.
- `places`: `positions`, position embeddings and their similarity.
- `drawing`: `shapes`, every shape from pixels to logits; `route` returns them as data.
- `counts`: `parameters` by module.
- `confusion`: the confusion matrix of a classifier. `curves`: loss and accuracy of a training.

A figure of a `View` takes `photo`, the photograph's name for the caption, and `dark`, light words on a dark ground; it
returns a matplotlib `Figure`. matplotlib is imported when the first figure is drawn.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vitviz.draw.colors import DrawError
from vitviz.view import View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = ("patches", "features", "embedding", "positions", "shapes", "parameters")
FORMATS = ("png", "svg", "pdf")
# Without these, a file says when it was written, and by which version of matplotlib.
METADATA: dict[str, dict[str, str | None]] = {
    "png": {"Software": "vitviz"},
    "svg": {"Date": None, "Creator": "vitviz"},
    "pdf": {"CreationDate": None, "Creator": "vitviz", "Producer": "vitviz"},
}


def draw(
    view: View, only: Collection[str] = NAMES, *, photo: str = "", dark: bool = False, filters: int = 24
) -> dict[str, Figure]:
    """Return figures by name, in the order of `NAMES`.

    Args:
        view: of `Explorer.open`.
        only: some of `NAMES`.
        photo: the photograph's name, for the captions.
        dark: light words on a dark ground.
        filters: how many filters of the patch embedding are shown; fewer where the model has fewer.

    Raises:
        DrawError: if there is no such figure, or fewer than one filter is asked for.
    """
    if unknown := [name for name in only if name not in NAMES]:
        raise DrawError(f"Expected figures among {', '.join(NAMES)}, got {', '.join(unknown)}. Choose some of them.")
    from vitviz.draw.figures import counts, drawing, places, tokens

    figures: dict[str, Callable[..., Figure]] = {
        "patches": tokens.patches,
        "features": partial(tokens.features, filters=filters),
        "embedding": tokens.embedding,
        "positions": places.positions,
        "shapes": drawing.shapes,
        "parameters": counts.parameters,
    }
    return {name: figures[name](view, photo=photo, dark=dark) for name in NAMES if name in only}


def encode(figure: Figure, format: str) -> bytes:
    """Return a figure as a PNG, SVG or PDF file. Equal figures are equal bytes; in SVG and PDF, text is text.

    Raises:
        DrawError: if `format` is another one.
    """
    if format not in FORMATS:
        raise DrawError(f"Expected the format {', '.join(FORMATS)}, got {format!r}. Choose one of them.")
    from vitviz.draw.figures.page import settings

    buffer = io.BytesIO()
    with settings():
        figure.savefig(buffer, format=format, metadata=METADATA[format])
    return buffer.getvalue()


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure to a file whose name ends in .png, .svg or .pdf.

    Raises:
        DrawError: if it ends otherwise.
    """
    path = Path(path)
    path.write_bytes(encode(figure, path.suffix.lower().removeprefix(".")))
