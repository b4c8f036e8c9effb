"""Figures of the path that a picture takes through a model, for papers, lectures and reports.

>>> import numpy as np, vitviz
>>> from vitviz.draw.figures import draw, encode
>>> model = vitviz.ViT(vitviz.preset("tiny", image_size=(64, 64), depth=1, classes=10))
>>> view = vitviz.Explorer(model).open(np.zeros((48, 64, 3), np.uint8))
>>> figures = draw(view, ["shapes", "parameters"], dark=True)
>>> encode(figures["shapes"], "svg")[:5]
b'<?xml'

- `tokens`: `patches`, `features`, `flattened`, `embedding`, from pixels to tokens.
- `places`: `positions`, position embeddings and their similarity.
- `drawing`: `shapes`, every shape from pixels to logits; `route` returns them as data.
- `counts`: `parameters` by module.
- `paper`: `rollout_sheet`, photographs beside their rollout, and `inside`, filters, positions and attention distance:
  figures 6 and 7 of Dosovitskiy et al. 2021.
- `maps`: `overlay`, `heads`, `layers`, `components`, `matrix`, `methods`, maps over the photograph.
- `charts`: `prediction`, `curves`, `lens`, `decomposition`, `statistics`, of the prediction and of every head.
- `confusion`: the confusion matrix of a classifier. `curves`: loss and accuracy of a training.

A figure of a `View` takes `photo`, the photograph's name for the caption, and `dark`, light words on a dark ground; it
returns a matplotlib `Figure`, which a notebook shows. Inside `with layout("column", bare=True):` it is as wide as a
column, without title and caption. matplotlib is imported when the first figure is drawn.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitviz.draw.colors import DrawError
from vitviz.draw.figures.layouts import layout
from vitviz.view import View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = ("patches", "features", "flattened", "embedding", "positions", "shapes", "parameters")
MAPS = ("overlay", "heads", "layers", "components", "matrix", "methods")
CHARTS = ("prediction", "curves", "lens", "decomposition", "statistics")
KINDS = (*MAPS, *CHARTS)  # of `FigureOptions`
ALL_KINDS = ("path", *KINDS, "rollout-sheet", "inside")  # of `vitviz figures`; a path is all of `NAMES`
FORMATS = ("png", "svg", "pdf")
# Without these, a file says when it was written, and by which version of matplotlib.
METADATA: dict[str, dict[str, str | None]] = {
    "png": {"Software": "vitviz"},
    "svg": {"Date": None, "Creator": "vitviz"},
    "pdf": {"CreationDate": None, "Creator": "vitviz", "Producer": "vitviz"},
}


def draw(
    view: View,
    only: Collection[str] = NAMES,
    *,
    photo: str = "",
    dark: bool = False,
    filters: int | Sequence[int] = 24,
    width: float | str = "page",
    bare: bool = False,
    **options: Any,
) -> dict[str, Figure]:
    """Return figures by name, in the order of `NAMES` and `KINDS`.

    Args:
        view: of `Explorer.open`.
        only: some of `NAMES` and `KINDS`.
        photo: the photograph's name, for the captions.
        dark: light words on a dark ground.
        filters: filters of the patch embedding that are shown: the so many that vary most, or chosen ones, counted from
            0. The first one's feature map is flattened.
        width: in inches, or "page" or "column"; the type keeps its size.
        bare: leave out title and caption.
        options: for `KINDS`, those of `maps.FigureOptions`: block, head, query, method, target, methods.

    Raises:
        DrawError: if there is no such figure, filter or width.
    """
    if unknown := [name for name in only if name not in (*NAMES, *KINDS)]:
        raise DrawError(
            f"Expected figures among {', '.join((*NAMES, *KINDS))}, got {', '.join(unknown)}. Choose some of them."
        )
    from vitviz.draw.figures import charts, counts, drawing, maps, places, tokens

    chosen = maps.FigureOptions(**options)
    figures: dict[str, Callable[..., Figure]] = {
        "patches": tokens.patches,
        "features": partial(tokens.features, filters=filters),
        "flattened": partial(tokens.flattened, filters=filters),
        "embedding": tokens.embedding,
        "positions": places.positions,
        "shapes": drawing.shapes,
        "parameters": counts.parameters,
        **{name: partial(getattr(maps, name), options=chosen) for name in MAPS},
        **{name: partial(getattr(charts, name), options=chosen) for name in CHARTS},
    }
    with layout(width, bare=bare):
        return {name: figures[name](view, photo=photo, dark=dark) for name in (*NAMES, *KINDS) if name in only}


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
