"""Write what a page shows before its script runs: a photograph, its map, the prediction and where the model looks."""

from __future__ import annotations

import base64
import html
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitviz.draw.colors import shades
from vitviz.formatting import HEADINGS, certainty, output, percent
from vitviz.heatmap import Heatmap
from vitviz.outputs import REGRESSION, SINGLE
from vitviz.web import bundle
from vitviz.web.scene import Scene

# The scripts read these from core/constants.json.
MAJORITY = 0.5  # share of the attention that makes "mostly"
EVEN = 0.95  # spread (entropy as a share of its maximum) above which attention is even
CLAIMS = ("looks-at-one-place", "looks-at-two-places", "looks-at-three-places")
PLACES = (
    *("upper-left", "upper-middle", "upper-right"),
    *("place-left", "place-middle", "place-right"),
    *("lower-left", "lower-middle", "lower-right"),
)  # ninths of a picture, in reading order
OPACITY = 0.75  # of the map over the photograph, until a visitor changes it


def first_view(scene: Scene, photo: str) -> dict[str, str]:
    """Return the content for the marks of `web/app.html`; `bundle.template` takes it.

    Args:
        scene: an open photograph.
        photo: address of the scene's picture.
    """
    heatmap = scene.view.attention()
    picture, geometry = scene.picture
    width, height = picture.size
    left, top, right, bottom = geometry.frame
    place = (
        f"left: {100 * left / width:.3f}%; top: {100 * top / height:.3f}%; "
        f"width: {100 * (right - left) / width:.3f}%; height: {100 * (bottom - top) / height:.3f}%; opacity: {OPACITY}"
    )
    shape = f"{width / height:.4f}"
    return {
        "picture": f'<div class="vv-picture"><div class="vv-held" style="--shape: {shape}"><div class="vv-first">'
        f'<img src="{photo}" alt="" fetchpriority="high"><div class="vv-early"><img src="{shade(heatmap)}" alt="" '
        f'style="{place}"></div></div></div></div><figcaption></figcaption>',
        "heading": html.escape(_heading(scene)),
        "predictions": "".join(_row(scene, *best) for best in scene.predictions),
        "sentence": f'<span class="vv-early">{html.escape(sentence(*_row_of(heatmap)))}</span>',
    }


def shade(heatmap: Heatmap) -> str:
    """Return the shades that dim a photograph where a map is low, one pixel for each patch, as the URL of a PNG."""
    scale = heatmap.scale()
    share = (heatmap.values - scale.vmin) / ((scale.vmax - scale.vmin) or 1.0)
    index = np.rint(255 * share.clip(0, 1)).astype(np.uint8)  # (gh, gw)
    buffer = io.BytesIO()
    Image.fromarray(shades(index)[index]).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def sentence(row: NDArray[np.floating[Any]], prefix: int, grid: tuple[int, int]) -> str:
    """Return where a token without a place looks, in a visitor's words: `sentence` of compute/sentence.js.

    Args:
        row: (N) attention, which adds up to 1.
        prefix: number of prefix tokens.
        grid: rows and columns of patches.
    """
    patches = row[prefix:].reshape(grid)
    positive = row[row > 0]
    spread = -(positive * np.log(positive)).sum() / np.log(len(row))
    if patches.sum() < MAJORITY:
        return _text("looks-outside")
    if spread > EVEN:
        return _text("looks-evenly")
    above = np.maximum(0, patches - patches.sum() / patches.size)
    rows, columns = (3 * np.arange(count) // count for count in grid)
    shares = np.array([above[np.ix_(rows == y, columns == x)].sum() for y in range(3) for x in range(3)])
    order = np.argsort(-shares, kind="stable")
    half = MAJORITY * shares.sum()
    count = int((np.cumsum(shares[order]) <= half).sum()) + 1
    if count > len(CLAIMS):
        return _text("looks-at-many-places")
    return _text(CLAIMS[count - 1], *(_text(PLACES[ninth]) for ninth in sorted(order[:count])))


def _row_of(heatmap: Heatmap) -> tuple[NDArray[np.floating[Any]], int, tuple[int, int]]:
    """Return the arguments of `sentence` of a map."""
    outside = list(heatmap.prefix_mass.values())
    rows, columns = heatmap.values.shape
    return np.concatenate([outside, heatmap.values.ravel()]), len(outside), (rows, columns)


def _heading(scene: Scene) -> str:
    """Return the words above the predictions, as in panels/predictions.js."""
    if not scene.predictions:
        return ""
    view = scene.view
    if view.model.problem_type != SINGLE:
        return scene.summary
    group = view.group()
    sure = certainty(scene.predictions[0][1], view.sure_above, group, view.known is not False)
    return HEADINGS[sure].format(*(group[0], percent(group[1])) if group else ())


def _row(scene: Scene, label: str, share: float, _index: int) -> str:
    """Return a prediction, as in panels/predictions.js."""
    problem = scene.view.model.problem_type
    hidden = " hidden" if problem == REGRESSION else ""
    bar = f'<i{hidden} style="--share: {share:.4f}"></i>'
    number = output(share, problem)
    return f'<li class="vv-early"><span class="vv-name">{html.escape(label)}</span>{bar}<span>{number}</span></li>'


def _text(key: str, *values: str) -> str:
    """Return an English text of the page."""
    return bundle.texts()[key].format(*values)
