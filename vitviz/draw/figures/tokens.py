"""Draw how a photograph becomes tokens: patches, feature maps of the patch embedding, the table of tokens.

Dosovitskiy et al. 2021, section 3.1. Shapes: gh x gw patches of p x p pixels, P prefix tokens, N = P + gh * gw tokens,
D width.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from vitviz.analysis.filters import filter_pictures
from vitviz.draw.colors import DrawError
from vitviz.draw.figures import page
from vitviz.formatting import counted
from vitviz.view import View

Filters: TypeAlias = int | Sequence[int]  # a number of filters, or their indices from 0


@page.styled
def patches(view: View, *, photo: str = "", dark: bool = False) -> Figure:
    """Draw the model's input, its patches, and the middle row of patches in reading order."""
    (gh, gw), (height, width), p = view.trace.grid, view.size, view.model.config.patch_size
    row = gh // 2
    pixels = np.asarray(view.seen())  # (H, W, 3)
    panorama = width > 1.8 * height
    stacked = panorama or page.fitting(2.4, 2) == 1
    mosaic: list[Any] = [["seen"], ["grid"]] if stacked else [["seen", "grid"]]
    high = min((page.inner() / len(mosaic[0]) - 0.5) * height / width, 4.2)
    side = min(0.7, (page.inner() - 0.5) / (gw * 9 / 8))  # inches of a patch in the row
    caption = (
        f"The patches are read from left to right and from top to bottom: {gh} × {gw} = "
        f"{counted(gh * gw, 'token')}. {page.describe(view, photo)}"
    )
    heights = [*[high] * len(mosaic), side]
    figure = page.new_page("From a photograph to patches", caption, sum(heights) + 0.55 * len(heights))
    axes = figure.subplot_mosaic([*mosaic, ["row"] * len(mosaic[0])], height_ratios=heights)
    axes["seen"].imshow(pixels, extent=(0, width, height, 0), aspect="equal")
    axes["seen"].set(title="Input of the model", xticks=[0, width], yticks=[0, height])
    down = "pixels from the top" if page.measure("pixels from the top") < high else "pixels"
    axes["seen"].set(xlabel="pixels from the left", ylabel=down, anchor="NW")
    _draw_apart(axes["grid"], pixels, p)
    axes["grid"].set_title(f"{gh} × {gw} patches of {p} × {p} pixels")
    axes["grid"].set(xlabel="column", ylabel="row")
    color = page.ACCENTS[dark]["attention"]
    axes["grid"].add_patch(Rectangle((0.5, row + 0.5), gw, 1, fill=False, lw=1.2, ec=color, clip_on=False))
    first = row * gw + 1
    _draw_apart(axes["row"], pixels[row * p : (row + 1) * p], p, first)
    page.entitle(axes["row"], f"Row {row + 1}: patches {first} to {first + gw - 1} of the sequence", page.inner() - 0.5)
    axes["row"].set_yticks([])
    axes["row"].set_xlabel("number of the patch, in reading order", loc="left")
    return figure


def _draw_apart(axes: Axes, pixels: NDArray[np.uint8], p: int, first: int = 1) -> None:
    """Draw patches of pixels (gh * p, gw * p, 3) with gaps of an eighth, the upper left patch at (first, 1)."""
    gh, gw = pixels.shape[0] // p, pixels.shape[1] // p
    factor = -(-16 // p)  # enlarge small patches, so that an eighth is a whole number of pixels
    size = p * factor
    gap = max(1, size // 8)
    spread = np.zeros((gh, size + gap, gw, size + gap, 4), np.uint8)
    enlarged = pixels.repeat(factor, 0).repeat(factor, 1).reshape(gh, size, gw, size, 3)
    spread[:, :size, :, :size, :3], spread[:, :size, :, :size, 3] = enlarged, 255
    drawn = spread.reshape(gh * (size + gap), gw * (size + gap), 4)[:-gap, :-gap]
    half = size / (size + gap) / 2
    axes.imshow(drawn, extent=(first - half, first + gw - 1 + half, gh + half, 1 - half), aspect="equal")
    axes.set_anchor("NW")
    page.count(axes)
    axes.spines[:].set_visible(False)


def _responses(view: View, filters: Filters) -> tuple[page.Floats, list[int], str]:
    """Return the responses of all filters, (D, gh, gw), the shown filters, and how they were chosen, for a caption.

    Raises:
        DrawError: if there are no filters, or a filter does not exist.
    """
    maps = page.array(view.model.patch_embed(view.images)[0]).T.reshape(-1, *view.trace.grid)  # (gh * gw, D)
    width = len(maps)
    if isinstance(filters, int):
        if filters < 1:
            raise DrawError(f"Expected filters of at least 1, got {filters}. Ask for one or more.")
        strongest: list[int] = np.argsort(-maps.std((1, 2)), kind="stable")[:filters].tolist()
        return maps, strongest, f"the {len(strongest)} whose responses vary most over this photograph"
    if not filters or not all(0 <= index < width for index in filters):
        raise DrawError(
            f"Expected filters from 1 to {width}, got {', '.join(str(index + 1) for index in filters) or 'none'}. "
            "Choose some of them."
        )
    return maps, [*filters], counted(len(filters), "chosen filter")


@page.styled
@torch.no_grad()
def features(view: View, *, filters: Filters = 24, photo: str = "", dark: bool = False) -> Figure:
    """Draw filters of the patch embedding and their feature maps: those that vary most, or the given indices from 0."""
    (gh, gw), p, width = view.trace.grid, view.model.config.patch_size, view.model.config.width
    maps, chosen, choice = _responses(view, filters)
    weights, count = page.array(view.model.patch_embed.proj.weight), len(chosen)  # (D, 3, p, p)
    most = page.fitting(0.5, 8)
    columns = min(most, count)
    rows, side = -(-count // columns), page.inner() / most - 0.1
    high = min(max(side * gh / gw, 0.2), 2.0)
    caption = (
        f"The patch embedding is a convolution with stride {p}: each of its {width} filters of {p} × {p} pixels "
        f"responds with one number per patch. Shown: {choice}. "
        "Each filter has its own scale, with a weight of zero in grey. The responses include the bias and share one "
        f"scale. {page.describe(view, photo)}"
    )
    figure = page.new_page("Feature maps of the patch embedding", caption, rows * (side + high + 0.4) + 0.5)
    axes = figure.subplots(2 * rows, columns, height_ratios=[side, high] * rows, squeeze=False)
    for place, number in enumerate(chosen):
        (row, column), title = divmod(place, columns), {"fontsize": page.SMALL, "fontweight": "normal", "loc": "center"}
        kernel, response = axes[2 * row, column], axes[2 * row + 1, column]
        kernel.imshow(filter_pictures(weights[number, None])[0], interpolation="nearest")
        kernel.set_title(f"filter {number + 1}", **title)
        image = page.heat(response, maps[number], page.reach_of(maps[chosen]), dark)
        for panel, name, length in ((kernel, "weights", side), (response, "response", high)):
            panel.set(xticks=[], yticks=[], label=f"{name} {number}")
            panel.set_ylabel(name if column == 0 and page.measure(name) < length else "")
    for panel in axes.flat:
        if not panel.images:
            panel.remove()
    style: dict[str, Any] = {"shrink": 0.4, "aspect": 26, "anchor": (0, 0)}
    page.bar(image, figure.axes, "the filter's response", [maps[chosen]], "bottom", **style)
    return figure


@page.styled
@torch.no_grad()
def flattened(view: View, *, filters: Filters = 1, photo: str = "", dark: bool = False) -> Figure:
    """Draw the feature map of the first filter, and its values as a row in reading order.

    Raises:
        DrawError: as for `features`.
    """
    (gh, gw), width = view.trace.grid, view.model.config.width
    maps, chosen, _ = _responses(view, filters)
    number, values = chosen[0] + 1, maps[chosen[0]]
    reach, row = page.reach_of(values), gh // 2
    caption = (
        f"The response of filter {number} on each patch, and the same numbers row by row. The frame marks row "
        f"{row + 1}, values {row * gw + 1} to {(row + 1) * gw}. The numbers are column {number} of the "
        f"{gh * gw} × {width} table. {page.describe(view, photo)}"
    )
    high = min(2.6, (page.inner() - 0.4) * gh / gw)
    figure = page.new_page(f"Feature map {number}, flattened", caption, high + 1.9)
    axes = figure.subplot_mosaic([["map"], ["row"]], height_ratios=[high, 0.35])
    color = page.ACCENTS[dark]["attention"]
    for name, table, corner in (
        ("map", values, (0.5, row + 0.5)),
        ("row", values.reshape(1, -1), (row * gw + 0.5, 0.5)),
    ):
        image = page.heat(axes[name], table, reach, dark)
        frame: dict[str, Any] = {"fill": False, "lw": 1.2, "ec": color, "clip_on": False}
        axes[name].add_patch(Rectangle(corner, gw, 1, **frame))
    axes["map"].set(title=f"Feature map: {gh} × {gw}", xlabel="column", ylabel="row", aspect="equal", anchor="W")
    axes["row"].set(title=f"Flattened: 1 × {gh * gw}", xlabel="patch, in reading order", yticks=[])
    style: dict[str, Any] = {"shrink": 0.6, "aspect": 26, "anchor": (0, 0)}
    page.bar(image, axes["row"], "the filter's response", [values], "bottom", **style)
    return figure


@page.styled
@torch.no_grad()
def embedding(view: View, *, photo: str = "", dark: bool = False) -> Figure:
    """Draw the tokens as a table with one row per patch: after the convolution, and at the input of block 1."""
    model, config, (gh, gw) = view.model, view.model.config, view.trace.grid
    flat = page.array(model.patch_embed(view.images)[0])  # (gh * gw, D)
    tokens = page.array(model.embed(view.images)[0][0])  # (N, D)
    prefix, reach = config.prefix, page.reach_of(flat, tokens)
    kinds = {"learned": "learned", "learned+rotary": "learned", "sincos": "sinusoidal", "sincos1d": "sinusoidal"}
    added = f"{kinds[config.positions]} positions added" if config.positions in kinds else None
    steps = [added, "layer norm" if config.norms.pre else None]
    preparation = ", ".join(step for step in steps if step) or "no positions added: " + config.position_kind
    caption = (
        f"Flattened: the responses of the {config.width} filters on the {gh} × {gw} patches as a table of "
        f"{len(flat)} × {config.width}. Below: the {len(tokens)} tokens that enter the first block ({preparation}"
        f"{'; prefix tokens above' if prefix else ''}). Both share one scale; one value in 200 lies beyond its end. "
        f"{page.describe(view, photo)}"
    )
    beside = page.fitting(2.4, 2) == 2
    names, heights = (["prefix", "tokens"], [len(prefix) * 0.13, 3.2]) if prefix else (["tokens"], [3.2])
    mosaic: list[Any] = [["flat", name] if name == "tokens" else [".", name] for name in names]
    if not beside:
        mosaic, heights = [["flat"], *([name] for name in names)], [2.4, *heights[:-1], 2.4]
    figure = page.new_page("From patches to tokens", caption, sum(heights) + (1.2 if beside else 1.7))
    axes = figure.subplot_mosaic(mosaic, height_ratios=heights)
    axes["flat"].set_title(f"Flattened: {len(flat)} × {config.width}")
    axes["prefix" if prefix else "tokens"].set_title(f"Entering block 1: {len(tokens)} × {config.width}")
    for name, values in (("flat", flat), ("tokens", tokens[len(prefix) :])):
        image = page.heat(axes[name], values, reach, dark)
        axes[name].set(xlabel="channel", ylabel="patch, in reading order")
    if prefix:
        page.heat(axes["prefix"], tokens[: len(prefix)], reach, dark)
        axes["prefix"].set_xticks([])
        axes["prefix"].set_yticks(range(1, 1 + len(prefix)), prefix)
    page.bar(image, axes["flat"], "value", [flat, tokens], "bottom")
    return figure
