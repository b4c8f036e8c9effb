"""Draw maps over a photograph: one map, all heads of all layers, the layers, one matrix, methods side by side.

A single map has its own scale. Maps side by side share a scale that clips one number in 200, so that outliers do not
darken the others. Dots mark clipped patches, and the color bar ends in an arrow.
"""

# ruff: noqa: ARG001 - `page.styled` reads `dark`

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize, PowerNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from vitviz.attribution.attention import Fusion
from vitviz.attribution.inputs import Named
from vitviz.draw.colors import SEQUENTIAL, DrawError
from vitviz.draw.figures import page
from vitviz.draw.overlay import OVER_GRAY
from vitviz.draw.overlay import overlay as lay
from vitviz.draw.sheet import fit_photo, rescale
from vitviz.formatting import number, percent
from vitviz.heatmap import Heatmap, Scale
from vitviz.model.trace import Query, describe_query
from vitviz.view import View

PRINTED = 1_000  # longer side of a photograph in pixels
BEYOND = 99.5  # percentile at the end of a shared scale
MOST_TOKENS = 2_500  # maximum tokens of a drawn matrix
METHODS = ("rollout", "gae", "legrad", "attn_lrp")
TALLEST = 7.2  # maximum height of a grid of maps in inches
DOTS = "A dot marks patches beyond the end of the scale."


@dataclass(frozen=True, kw_only=True)
class FigureOptions:
    """Options of figures.

    Args:
        block, head, query: attention to show; see `View.attention`.
        method: for `overlay` and `curves`, an attribution method, or "attention" for the head and query above.
        target: class for methods, curves and the decomposition; by default the predicted class.
        methods: methods to compare.
    """

    block: int = -1
    head: int | Fusion = "mean"
    query: Query | None = None
    method: str = "attention"
    target: Named | None = None
    methods: Sequence[str] = METHODS

    def heatmap(self, view: View) -> Heatmap:
        """Return the map of the method."""
        if self.method == "attention":
            return view.attention(self.block, self.head, self.query)
        return view.rollout(self.query) if self.method == "rollout" else view.explain(self.method, self.target)


@page.styled
def overlay(view: View, options: FigureOptions, *, photo: str = "", dark: bool = False) -> Figure:
    """Draw one map over the photograph, with its color bar and the mass outside the picture."""
    found = options.heatmap(view)
    scale, mappable = _scale([found])
    height = min(TALLEST, (page.inner() - 0.9) * found.photo.height / found.photo.width)
    caption = f"{_scale_words(scale, found.unit)} {found.note} {page.describe(view, photo)}"
    figure = page.new_page(found.title, caption, height)
    axes = figure.subplots()
    _show(axes, found, scale, PRINTED)
    axes.set_label("overlay")
    _bar(figure, mappable, axes, found.unit, [found.values])
    return figure


@page.styled
def heads(view: View, options: FigureOptions, *, photo: str = "", dark: bool = False) -> Figure:
    """Draw the attention of every head of every layer: layers down, heads across."""
    (gh, gw), blocks, count = view.trace.grid, view.trace.blocks, view.trace.heads
    maps = [[one.values for one in view.head_maps(block, options.query)] for block in blocks]
    values = np.array(maps)  # (L, H, gh, gw)
    gap = max(1, round(0.08 * max(gh, gw)))
    spaced = np.full((len(blocks), count, gh + gap, gw + gap), np.nan, np.float32)
    spaced[:, :, :gh, :gw] = values
    table = spaced.transpose(0, 2, 1, 3).reshape(len(blocks) * (gh + gap), count * (gw + gap))[:-gap, :-gap]
    norm = PowerNorm(0.5, 0.0, float(np.percentile(values, BEYOND)) or 1.0)
    query = describe_query(view._query(options.query))
    caption = (
        f"Layers down, heads across; each small map is the attention from {query} to the {gh} × {gw} patches. All "
        f"maps share one scale, 0 to {percent(norm.vmax or 0)} per patch; brightness follows the square root. "
        f"{page.describe(view, photo)}"
    )
    height = min(TALLEST, (page.inner() - 1.0) * table.shape[0] / table.shape[1] + 0.3)
    figure = page.new_page(f"All heads of all layers, from {query}", caption, height)
    axes = figure.subplots()
    image = axes.imshow(table, cmap=SEQUENTIAL, norm=norm, aspect="equal", interpolation="nearest")
    axes.set_label("heads")
    middles = [[at * (side + gap) + (side - 1) / 2 for at in range(n)] for side, n in ((gh, len(blocks)), (gw, count))]
    cell = (height - 0.3) / len(blocks)  # inches
    page.number_axis(axes.yaxis, middles[0], [str(block + 1) for block in blocks], cell)
    page.number_axis(axes.xaxis, middles[1], [str(head + 1) for head in range(count)], cell * (gw + gap) / (gh + gap))
    axes.set(xlabel="head", ylabel="layer")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    _bar(figure, image, axes, "attention", [values])
    return figure


@page.styled
def layers(view: View, options: FigureOptions, *, photo: str = "", dark: bool = False) -> Figure:
    """Draw the attention of each layer over the photograph, with fused heads."""
    head = options.head if isinstance(options.head, str) else "mean"
    maps = view.layer_maps(head, options.query)
    query = describe_query(view._query(options.query))
    dots = f" {DOTS}" * any(one.scale().clipped > 0 for one in maps)
    return _beside(
        maps,
        [
            f"layer {block + 1}: to {percent(one.scale().vmax, 2)}"
            for block, one in zip(view.trace.blocks, maps, strict=True)
        ],
        title=f"Attention layer by layer, from {query}",
        caption=(
            f"The {head} of the {view.trace.heads} heads of each layer. Each layer has its own scale; the number above "
            f"it is the upper end, in attention per patch.{dots} {page.describe(view, photo)}"
        ),
        columns=page.fitting(0.94, min(6, len(maps))),
        shared=False,
    )


@page.styled
def components(view: View, options: FigureOptions, *, photo: str = "", dark: bool = False) -> Figure:
    """Draw the patches of each layer in the colors of their first three principal components."""
    found = view.token_pca()
    columns = page.fitting(0.7, min(6, len(found.colors)))
    rows, (gh, gw) = -(-len(found.colors) // columns), view.trace.grid
    caption = (
        "The patches after each layer. Red, green and blue are the first three principal components of that layer, "
        "each on its own scale; signs follow the layer before. Patches of the same colour are similar in that layer. "
        f"{page.describe(view, photo)}"
    )
    height = min(TALLEST, rows * ((page.inner() / columns - 0.1) * gh / gw + 0.28))
    figure = page.new_page("Principal components of the patches", caption, height)
    axes = figure.subplots(rows, columns, squeeze=False)
    for panel in axes.flat[len(found.colors) :]:
        panel.remove()
    for block, (panel, colors) in enumerate(zip(axes.flat[: len(found.colors)], found.colors, strict=True)):
        panel.imshow(colors, interpolation="nearest", aspect="equal")
        page.hide_axes(panel)
        page.entitle(panel, f"layer {block + 1}", page.inner() / columns, plain=True)
        panel.set_label(f"layer {block + 1}")
    return figure


@page.styled
def matrix(view: View, options: FigureOptions, *, photo: str = "", dark: bool = False) -> Figure:
    """Draw the full attention matrix of one head, or of fused heads, on a logarithmic scale."""
    trace, block = view.trace, options.block % view.trace.depth
    tokens, prefix = trace.tokens.shape[1], len(trace.prefix)
    if tokens > MOST_TOKENS:
        raise DrawError(
            f"Expected at most {MOST_TOKENS:,} tokens for a matrix, got {tokens:,}. Open the photograph smaller: size=."
        )
    rows = trace.attention(block)[0]  # (H, N, N)
    fusions: dict[str, Callable[..., torch.Tensor]] = {"mean": torch.mean, "max": torch.amax, "min": torch.amin}
    values = page.array(rows[options.head] if isinstance(options.head, int) else fusions[options.head](rows, 0))
    which = f"head {options.head + 1}" if isinstance(options.head, int) else f"{options.head} of {trace.heads} heads"
    low = max(float(np.percentile(values, 1)), 1e-8)
    high = max(float(values.max()), 2 * low)
    caption = (
        f"Each row shows what one token attends to and adds up to 100 %: {page.counted(prefix, 'prefix token')} first, "
        f"then the {trace.grid[0]} × {trace.grid[1]} patches in reading order. Logarithmic scale, {percent(low)} to "
        f"{percent(high)}. {page.describe(view, photo)}"
    )
    high = min(5.2, page.inner() - 0.6)
    figure = page.new_page(f"Attention matrix of layer {block + 1}, {which}", caption, high)
    axes = figure.subplots()
    extent = (0.5 - prefix, tokens - prefix + 0.5, tokens - prefix + 0.5, 0.5 - prefix)
    norm = LogNorm(low, high)
    image = axes.imshow(np.maximum(values, 1e-12), cmap=SEQUENTIAL, norm=norm, aspect="equal", extent=extent)
    if prefix:
        line: dict[str, Any] = {"color": "white", "linewidth": 0.6}
        axes.axhline(0.5, **line)
        axes.axvline(0.5, **line)
    axes.set(xlabel="to the patch (prefix tokens before the line)", ylabel="from the patch", label="matrix")
    _bar(figure, image, axes, "attention", [values])
    return figure


@page.styled
def methods(view: View, options: FigureOptions, *, photo: str = "", dark: bool = False) -> Figure:
    """Draw the maps of several methods for one class, each with its gain over random orders of patches."""
    target = options.target if options.target is not None or not view.best(1) else view.best(1)[0]
    maps = [view.explain(name, target) for name in options.methods]
    tests = view.faithfulness(maps, target) if view.best(1) else ()
    names = [one.title.partition(", for ")[0] for one in maps]
    words = [f"{name}: {test.gain:+.2f}".replace("-", "−") for name, test in zip(names, tests, strict=True)] or names
    said = (
        f"The number is the area by which deleting and inserting patches in the map's order beats random orders, for "
        f"{tests[0].target}; 0 is chance. "
        if tests
        else ""
    )
    signs = " In maps with two signs, red is evidence for the class and blue evidence against it." * any(
        one.signed for one in maps
    )
    dots = f" {DOTS}" * any(one.scale().clipped > 0 for one in maps)
    return _beside(
        maps,
        words,
        title="Attribution methods side by side",
        caption=(
            f"{said}Each map has its own scale: compare shapes, not brightness.{dots}{signs} "
            f"{page.describe(view, photo)}"
        ),
        columns=page.fitting(1.9, min(2 if len(maps) == 4 else 3, len(maps))),
        shared=False,
    )


# ---- parts


def _scale(maps: Sequence[Heatmap]) -> tuple[Scale, ScalarMappable]:
    """Return the scale of all maps and its colors: a single map's own, or one that clips one number in 200."""
    values = np.concatenate([one.values.ravel() for one in maps])
    signed = any(one.signed for one in maps)
    sizes = np.abs(values) if signed else values
    if len(maps) == 1:
        scale = maps[0].scale()
    else:
        end = float(np.percentile(sizes, BEYOND))
        scale = Scale(-end if signed else float(values.min()), end, "shared", signed, int((sizes > end).sum()))
    cmap = page.DIVERGING[False] if signed else colormaps[SEQUENTIAL]
    top = scale.vmax if scale.vmax > scale.vmin else scale.vmin + 1.0
    return scale, ScalarMappable(Normalize(scale.vmin, top), cmap)


def _scale_words(scale: Scale, unit: str) -> str:
    """Return the range of the colors for a caption."""
    form = percent if unit == "attention" else number
    what = unit if unit else "score"
    beyond = f" {DOTS}" if scale.clipped else ""
    return f"Colours run from {form(scale.vmin)} to {form(scale.vmax)} of {what} per patch.{beyond}"


def _show(axes: Axes, heatmap: Heatmap, scale: Scale, side: int) -> None:
    """Draw a map over its grey photograph."""
    small = heatmap.photo if max(heatmap.photo.size) <= side else fit_photo(heatmap.photo, side)
    geometry = rescale(heatmap.geometry, small.size)
    picture = lay(small, heatmap.values, geometry, scale=scale, query=heatmap.query, **OVER_GRAY)
    axes.imshow(np.asarray(picture), aspect="equal", interpolation="antialiased")
    page.hide_axes(axes)


def _beside(
    maps: Sequence[Heatmap], labels: Sequence[str], *, title: str, caption: str, columns: int, shared: bool = True
) -> Figure:
    """Draw maps side by side, each on its own scale or on a shared one, which replaces `{scale}` in the caption."""
    scale, mappable = _scale(maps)
    rows = -(-len(maps) // columns)
    side = (page.inner() - 0.8) / columns
    height = min(TALLEST + 0.6, rows * (side * maps[0].photo.height / maps[0].photo.width + 0.28))
    figure = page.new_page(title, caption.replace("{scale}", _scale_words(scale, maps[0].unit)), height)
    axes = figure.subplots(rows, columns, squeeze=False)
    for place, panel in enumerate(axes.flat):
        if place >= len(maps):
            panel.remove()
            continue
        _show(panel, maps[place], scale if shared else maps[place].scale(), max(200, PRINTED // columns))
        page.entitle(panel, labels[place], page.inner() / columns - 0.1, plain=True)
        panel.set_label(labels[place])
    if shared:
        _bar(figure, mappable, figure.axes, maps[0].unit, [one.values for one in maps])
    return figure


def _bar(
    figure: Figure, mappable: ScalarMappable, axes: Axes | Sequence[Axes], unit: str, shown: Sequence[NDArray[Any]]
) -> None:
    """Draw a color bar, in percent for shares, with arrows for clipped values."""
    low, high = mappable.get_clim()
    values = np.concatenate([one.ravel() for one in shown])
    below = low is not None and values.min() < low - 1e-6 * abs(low)
    above = high is not None and values.max() > high + 1e-6 * abs(high)
    extend = "both" if below and above else "min" if below else "max" if above else "neither"
    form = (lambda value, _: percent(value, 2)) if unit == "attention" else (lambda value, _: number(value))
    drawn = figure.colorbar(
        mappable, ax=axes, location="right", extend=extend, format=form, label=unit or "score", shrink=0.8, aspect=28
    )
    drawn.minorticks_off()
    drawn.outline.set_linewidth(0.5)
