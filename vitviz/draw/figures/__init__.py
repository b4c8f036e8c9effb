"""Draw figures of a picture's path through a model, for papers, lectures and reports.

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
- `vitviz.paper.figures`: `rollout_sheet`, photographs beside their rollout, and `inside`, filters, positions and
  attention distance: figures 6 and 7 of Dosovitskiy et al. 2021.
- `maps`: `overlay`, `heads`, `layers`, `components`, `matrix`, `methods`, maps over the photograph.
- `charts`: `prediction`, `curves`, `lens`, `decomposition`, `statistics`, charts of the prediction and of every head.
- `confusion`: the confusion matrix of a classifier. `curves`: loss and accuracy of a training run.

Figures of a `View` take `photo`, the photograph's name for the caption, and `dark` for light text on a dark background.
They return a matplotlib `Figure`, which notebooks display. Inside `with layout("column", bare=True):` figures are as
wide as a column, without title and caption. matplotlib is imported when the first figure is drawn.
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
from vitviz.writing import write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = ("patches", "features", "flattened", "embedding", "positions", "shapes", "parameters")
MAPS = ("overlay", "heads", "layers", "components", "matrix", "methods")
CHARTS = ("prediction", "curves", "lens", "decomposition", "statistics")
KINDS = (*MAPS, *CHARTS)  # figures with `FigureOptions`
PAPER = ("rollout-sheet", "inside")  # figures of several photographs or of a model, in the room `vitviz.paper`
ALL_KINDS = ("path", *KINDS, *PAPER)  # names in `vitviz figures`; "path" means all of `NAMES`
FORMATS = ("png", "svg", "pdf")
# Without these settings, files contain the date and matplotlib's version.
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
    """Draw figures by name, in the order of `NAMES` and `KINDS`.

    Args:
        view: view from `Explorer.open`.
        only: a subset of `NAMES` and `KINDS`.
        photo: name of the photograph for captions.
        dark: light text on a dark background.
        filters: number of filters of the patch embedding (those that vary most), or indices from 0. The feature map of
            the first filter is flattened.
        width: width in inches, "page" or "column"; the font size is constant.
        bare: omit title and caption.
        options: for `KINDS`, the fields of `maps.FigureOptions`: block, head, query, method, target, methods.

    Raises:
        DrawError: if a figure, filter or width does not exist.
    """
    if unknown := [name for name in only if name not in (*NAMES, *KINDS)]:
        raise DrawError(
            f"Expected figures among {', '.join((*NAMES, *KINDS))}, got {', '.join(unknown)}. Choose some of them."
        )
    if view.trace.windowed:
        view.model.check_converted()
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
    """Encode a figure as PNG, SVG or PDF, reproducibly; text in SVG and PDF stays text.

    Raises:
        DrawError: for an unknown `format`.
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
        DrawError: for a different suffix.
    """
    path = Path(path)
    write(path, encode(figure, path.suffix.lower().removeprefix(".")))
