"""From a photograph to tokens: the patches, what the filters of the patch embedding answer, the table of tokens.

Dosovitskiy et al. 2021, section 3.1. Shapes: gh x gw patches of p x p pixels, P prefix tokens, N = P + gh * gw tokens,
D width.
"""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from vitviz.render.figures.about import FigureError, Floats, array, counted, model_words, photo_words
from vitviz.render.figures.page import INNER, PANEL, SMALL, Page, line_of, measure, reach_of
from vitviz.view import View

HEAD = line_of(PANEL) + 0.03  # what a panel's title takes
FOOT = 2 * line_of(SMALL) + 0.08  # ticks and the axis' name below a panel
SIDE = 0.42  # ticks and the axis' name beside a panel

# --- 1: the patches --------------------------------------------------------------------------------------------------


def patches(view: View, *, row: int | None = None, photo: str = "", dark: bool = False) -> Figure:
    """The photograph as the model sees it, cut into its patches, and one row of them as the model reads it.

    Args:
        view: of `Explorer.open`.
        row: which row of patches, counted from 0; the middle one by default.
        photo: the photograph's name, for the caption.
        dark: light words on a dark ground.

    Raises:
        FigureError: if there is no such row.
    """
    (gh, gw), (height, width), p = view.trace.grid, view.size, view.model.config.patch_size
    row = gh // 2 if row is None else row
    if not 0 <= row < gh:
        raise FigureError(f"row: expected 0 to {gh - 1}, got {row}; rows are counted from 0.")
    pixels = np.asarray(view.seen())  # (H, W, 3)
    stacked = width > 1.8 * height  # a panorama: one below the other
    wide = INNER - SIDE if stacked else (INNER - 0.25) / 2 - SIDE
    high = wide * height / width
    if high > 4.2:
        wide, high = 4.2 * width / height, 4.2
    side = min(0.7, (INNER - SIDE) / (gw + (gw - 1) / 8))  # of a patch in the row, in inches
    strip = side * (gw + (gw - 1) / 8)
    panel = HEAD + high + FOOT + 0.08
    below = panel * (2 if stacked else 1)
    caption = (
        f"The patches are read from left to right and from top to bottom: {gh} × {gw} = {counted(gh * gw, 'token')}. "
        f"{photo_words(view, photo)} {model_words(view)}"
    )
    page = Page("From a photograph to patches", caption, below + HEAD + side + FOOT, dark=dark)

    page.heading(SIDE, HEAD, "As the model sees it")
    seen = page.axes("seen", SIDE, HEAD, wide, high)
    page.picture(seen, pixels, extent=(0, width, height, 0))
    for axis, count in (("x", width), ("y", height)):
        page.ticks(seen, axis, (0, count), ("0", str(count)))
    page.name_axes(seen, "pixels from the left", "pixels from the top")

    left, top = (SIDE, HEAD + panel) if stacked else (INNER / 2 + 0.125 + SIDE, HEAD)
    page.heading(left, top, f"{gh} × {gw} patches of {p} × {p} pixels")
    grid = page.axes("grid", left, top, wide, high, frame=False)
    _apart(page, grid, pixels, p)
    page.counted(grid, "x", gw)
    page.counted(grid, "y", gh)
    page.name_axes(grid, "column", "row")
    grid.add_patch(
        Rectangle((-0.5, row - 0.5), gw, 1, fill=False, lw=1.2, ec=page.look.accents["attention"], clip_on=False)
    )

    page.heading(SIDE, below + HEAD, f"Row {row + 1}: patches {row * gw + 1} to {(row + 1) * gw} of the sequence")
    line = page.axes("row", SIDE, below + HEAD, strip, side, frame=False)
    _apart(page, line, pixels[row * p : (row + 1) * p], p)
    page.counted(line, "x", gw, first=row * gw + 1)
    page.name_axes(line, "number of the patch, in reading order")
    return page.figure


def _apart(page: Page, axes: Axes, pixels: NDArray[np.uint8], p: int) -> None:
    """Patches with a gap of an eighth between them, at whole numbers (column, row); pixels (gh * p, gw * p, 3)."""
    gh, gw = pixels.shape[0] // p, pixels.shape[1] // p
    many = -(-16 // p)  # a small patch is drawn with several pixels for one, so that an eighth is a whole number
    size = p * many
    gap = max(1, size // 8)
    spread = np.zeros((gh, size + gap, gw, size + gap, 4), np.uint8)
    enlarged = pixels.repeat(many, 0).repeat(many, 1).reshape(gh, size, gw, size, 3)
    spread[:, :size, :, :size, :3], spread[:, :size, :, :size, 3] = enlarged, 255
    drawn = spread.reshape(gh * (size + gap), gw * (size + gap), 4)[:-gap, :-gap]
    half = size / (size + gap) / 2
    page.picture(axes, drawn, extent=(-half, gw - 1 + half, gh - 1 + half, -half))


# --- 2: the filters of the patch embedding ---------------------------------------------------------------------------


@torch.no_grad()
def features(view: View, *, count: int = 24, photo: str = "", dark: bool = False) -> Figure:
    """Filters of the patch embedding and what they answer on the photograph: those whose answers vary most over it.

    Args:
        view: of `Explorer.open`.
        count: how many of the D filters.
        photo: the photograph's name, for the caption.
        dark: light words on a dark ground.

    Raises:
        FigureError: if there are not as many filters.
    """
    model, (gh, gw), p = view.model, view.trace.grid, view.model.config.patch_size
    width = model.config.width
    if not 1 <= count <= width:
        raise FigureError(f"Expected to be asked for 1 to {width} filters, as many as the model has; got {count}.")
    answers = array(model.patch_embed(view.images)[0]).T.reshape(width, gh, gw)  # (gh * gw, D) -> (D, gh, gw)
    weights = array(model.patch_embed.proj.weight)  # (D, 3, p, p)
    chosen = np.argsort(-answers.std((1, 2)), kind="stable")[:count]
    reach = reach_of(answers[chosen])
    columns = min(8, count)
    gap, side = 0.1, 0.2
    wide = min(1.0, (INNER - side - (columns - 1) * gap) / columns)
    high = min(max(wide * gh / gw, 0.2), 2.0)
    step = line_of(SMALL) + wide + 0.04 + high + 0.12
    rows = -(-count // columns)
    caption = (
        f"The patch embedding is a convolution with stride {p}: each of its {width} filters of {p} × {p} pixels "
        f"answers with one number a patch. Shown are the {count} whose answers vary most over this photograph. Filters "
        "are drawn each on its own scale, a weight of zero in grey; the answers share one scale, with the bias in "
        f"them. {photo_words(view, photo)} {model_words(view)}"
    )
    page = Page("Feature maps of the patch embedding", caption, rows * step + 0.15 + FOOT, dark=dark)
    for place, number in enumerate(chosen.tolist()):
        left, top = side + place % columns * (wide + gap), place // columns * step
        page.words(left + wide / 2, top, f"filter {number + 1}", across="center")
        kernel = page.axes(f"filter {number}", left, top + line_of(SMALL), wide, wide)
        page.picture(kernel, picture(weights[number]), sharp=True)
        below = top + line_of(SMALL) + wide + 0.04
        image = page.heat(page.axes(f"answer {number}", left, below, wide, high), answers[number], reach)
        if place % columns == 0:
            for name, at, room in (("weights", below - 0.04 - wide / 2, wide), ("answer", below + high / 2, high)):
                if measure(name, SMALL) < room + 0.04:
                    page.words(
                        side - 0.05, at, name, colour=page.look.muted, across="center", down="bottom", rotation=90
                    )
    page.bar(image, "scale", (side, rows * step + 0.08, 2.4, 0.09), "the filter's answer", [answers[chosen]])
    return page.figure


def picture(weights: Floats) -> Floats:
    """A filter (channels, p, p) as a picture (p, p, 3): 0.5 is a weight of zero, 0 or 1 its largest."""
    largest = max(float(np.abs(weights).max()), float(np.finfo(np.float32).tiny))
    shown = np.broadcast_to(weights, (3, *weights.shape[1:])) if len(weights) == 1 else weights
    found: Floats = 0.5 + 0.5 * shown.transpose(1, 2, 0) / np.float32(largest)
    return found


# --- 3: the table of tokens ------------------------------------------------------------------------------------------


@torch.no_grad()
def embedding(view: View, *, photo: str = "", dark: bool = False) -> Figure:
    """The flattened embedding as an image: a row a patch, a column a channel; as the convolution makes it, and as it
    enters the first block.

    Args:
        view: of `Explorer.open`.
        photo: the photograph's name, for the caption.
        dark: light words on a dark ground.
    """
    model, config = view.model, view.model.config
    flat = array(model.patch_embed(view.images)[0])  # (gh * gw, D)
    tokens = array(model.embed(view.images)[0][0])  # (N, D)
    prefix = config.prefix
    reach = reach_of(flat, tokens)
    room = max((measure(name, SMALL) for name in prefix), default=0.0)
    wide, high, each = (INNER - 2 * SIDE - max(0.25, room - SIDE + 0.35)) / 2, 3.2, 0.13
    head = HEAD + len(prefix) * each + (0.06 if prefix else 0)
    added = {"learned": "learned positions added", "sincos": "sinusoidal positions added"}.get(config.positions)
    steps = [added, "layer norm" if config.norm_pre else None]
    words = ", ".join(step for step in steps if step) or "no positions added: " + config.positions
    gh, gw = view.trace.grid
    caption = (
        f"Left: the answers of the {config.width} filters on the {gh} × {gw} patches, flattened to a table of "
        f"{len(flat)} × {config.width}. Right: the {len(tokens)} tokens that enter the first block ({words}"
        f"{'; prefix tokens above' if prefix else ''}). One scale for both, which ends where one value in 200 lies "
        f"beyond. {photo_words(view, photo)} {model_words(view)}"
    )
    page = Page("From patches to tokens", caption, head + high + FOOT + 0.2 + FOOT, dark=dark)
    second = INNER - wide
    page.heading(SIDE, head, f"Flattened: {len(flat)} × {config.width}")
    page.heading(second, HEAD, f"Entering block 1: {len(tokens)} × {config.width}")
    if prefix:
        strip = page.axes("prefix", second, HEAD, wide, len(prefix) * each)
        page.heat(strip, tokens[: len(prefix)], reach)
        page.ticks(strip, "y", range(len(prefix)), prefix)
    for name, left, values in (("flat", SIDE, flat), ("tokens", second, tokens[len(prefix) :])):
        axes = page.axes(name, left, head, wide, high)
        image = page.heat(axes, values, reach)
        page.counted(axes, "x", values.shape[1])
        page.counted(axes, "y", len(values), air=2)
        page.name_axes(axes, "channel", "patch, in reading order")
    page.bar(image, "scale", (SIDE, head + high + FOOT + 0.12, 2.4, 0.09), "value", [flat, tokens])
    return page.figure
