"""Draw maps over a photograph: one map, all heads of all layers, the layers, one matrix, or several methods.

Each map has its own scale, but all heads share one scale, which clips one number in 200, so that outliers do not darken
the other maps. Dots mark clipped patches, and the color bar ends in an arrow.
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

from vitviz.attribution.attention import Fusion
from vitviz.attribution.target_specs import TargetOf
from vitviz.draw.colors import SEQUENTIAL, DrawError
from vitviz.draw.figures import page
from vitviz.draw.overlay import OVER_GRAY
from vitviz.draw.sheet import fit_photo
from vitviz.formatting import MINUS, counted, number, percent
from vitviz.heatmap import Heatmap, Scale
from vitviz.model.trace import Query, describe_query
from vitviz.view import View

PRINTED = 1_000  # longer side of a photograph in pixels
BEYOND = 99.5  # percentile at the end of the scale of all heads
BAR: dict[str, Any] = {"shrink": 0.8, "aspect": 28}  # layout of color bars
MAX_TOKENS = 2_500  # maximum tokens of a drawn matrix
METHODS = ("rollout", "gae", "legrad", "attn_lrp")
TALLEST = 7.2  # maximum height of a grid of maps in inches
DOTS = "A dot marks patches beyond the end of the scale."


@dataclass(frozen=True, kw_only=True)
class FigureOptions:
    """Options of figures.

    Args:
        block, head, query: which attention to show; see `View.attention`.
        method: for `overlay` and `curves`, an attribution method, or "attention" for the head and query above.
        target: target of methods and curves, class of the decomposition; by default the predicted class.
        methods: methods to compare.
    """

    block: int = -1
    head: int | Fusion = "mean"
    query: Query | None = None
    method: str = "attention"
    target: TargetOf | None = None
    methods: Sequence[str] = METHODS

    def heatmap(self, view: View) -> Heatmap:
        """Return the map of the method."""
        if self.method == "attention":
            return view.attention(self.block, self.head, self.query)
        return view.rollout(self.query) if self.method == "rollout" else view.explain(self.method, self.target)


@page.styled
def overlay(view: View, options: FigureOptions, *, photo: str = "", dark: bool = False) -> Figure:
    """Draw one map over the photograph, with its color bar and the mass outside the picture."""
    heatmap = options.heatmap(view)
    scale = heatmap.scale()
    height = min(TALLEST, (page.inner() - 0.9) * heatmap.photo.height / heatmap.photo.width)
    caption = f"{_describe_colors(scale, heatmap.unit)} {heatmap.note} {page.describe(view, photo)}"
    figure = page.new_page(heatmap.title, caption, height)
    axes = figure.subplots()
    _show(axes, heatmap, PRINTED)
    axes.set_label("overlay")
    cmap = page.DIVERGING[False] if scale.signed else colormaps[SEQUENTIAL]
    end = scale.vmax if scale.vmax > scale.vmin else scale.vmin + 1.0
    mappable = ScalarMappable(Normalize(scale.vmin, end), cmap)
    page.bar(mappable, axes, heatmap.unit or "score", [heatmap.values], unit=heatmap.unit, **BAR)
    return figure


@page.styled
def heads(view: View, options: FigureOptions, *, photo: str = "", dark: bool = False) -> Figure:
    """Draw the attention of every head of every layer: layers as rows, heads as columns."""
    (gh, gw), blocks, count = view.trace.grid, view.trace.blocks, view.trace.heads
    values = np.array([view.head_maps(block, options.query) for block in blocks])  # (L, H, gh, gw)
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
    page.bar(image, axes, "attention", [values], unit="attention", **BAR)
    return figure


@page.styled
def layers(view: View, options: FigureOptions, *, photo: str = "", dark: bool = False) -> Figure:
    """Draw the attention of each layer over the photograph, with fused heads."""
    head = options.head if isinstance(options.head, str) else "mean"
    maps = view.layer_maps(head, options.query)
    query = describe_query(view._query(options.query))
    return _side_by_side(
        maps,
        [
            f"layer {block + 1}: to {percent(heatmap.scale().vmax, 2)}"
            for block, heatmap in zip(view.trace.blocks, maps, strict=True)
        ],
        title=f"Attention layer by layer, from {query}",
        caption=(
            f"The {head} of the {view.trace.heads} heads of each layer. Each layer has its own scale; the number above "
            f"it is the upper end, in attention per patch.{_about_dots(maps)} {page.describe(view, photo)}"
        ),
        columns=page.fitting(0.94, min(6, len(maps))),
    )


@page.styled
def components(view: View, options: FigureOptions, *, photo: str = "", dark: bool = False) -> Figure:
    """Draw the patches of each layer in the colors of their first three principal components."""
    colors = view.token_pca().colors  # one map (gh, gw, 3) per block
    columns = page.fitting(0.7, min(6, len(colors)))
    rows, (gh, gw) = -(-len(colors) // columns), view.trace.grid
    caption = (
        "The patches after each layer. Red, green and blue are the first three principal components of that layer, "
        "each on its own scale; signs follow the layer before. Patches of the same colour are similar in that layer. "
        f"{page.describe(view, photo)}"
    )
    height = min(TALLEST, rows * ((page.inner() / columns - 0.1) * gh / gw + 0.28))
    figure = page.new_page("Principal components of the patches", caption, height)
    panels = page.panels(figure, len(colors), columns)
    for block, (panel, block_colors) in enumerate(zip(panels, colors, strict=True)):
        panel.imshow(block_colors, interpolation="nearest", aspect="equal")
        page.hide_axes(panel)
        page.entitle(panel, f"layer {block + 1}", page.inner() / columns, plain=True)
        panel.set_label(f"layer {block + 1}")
    return figure


@page.styled
def matrix(view: View, options: FigureOptions, *, photo: str = "", dark: bool = False) -> Figure:
    """Draw the full attention matrix of one head, or of fused heads, on a logarithmic scale."""
    trace, block = view.trace, options.block % view.trace.depth
    tokens, prefix = trace.tokens.shape[1], len(trace.prefix)
    if tokens > MAX_TOKENS:
        raise DrawError(
            f"Expected at most {MAX_TOKENS:,} tokens for a matrix, got {tokens:,}. Open it at a smaller size: size=."
        )
    rows = trace.attention(block)[0]  # (H, N, N)
    fusions: dict[str, Callable[..., torch.Tensor]] = {"mean": torch.mean, "max": torch.amax, "min": torch.amin}
    values = page.array(rows[options.head] if isinstance(options.head, int) else fusions[options.head](rows, 0))
    which = f"head {options.head + 1}" if isinstance(options.head, int) else f"{options.head} of {trace.heads} heads"
    least = max(float(np.percentile(values, 1)), 1e-8)
    most = max(float(values.max()), 2 * least)
    caption = (
        f"Each row shows what one token attends to and adds up to 100 %: {counted(prefix, 'prefix token')} first, "
        f"then the {trace.grid[0]} × {trace.grid[1]} patches in reading order. Logarithmic scale, {percent(least)} to "
        f"{percent(most)}. {page.describe(view, photo)}"
    )
    height = min(5.2, page.inner() - 0.6)
    figure = page.new_page(f"Attention matrix of layer {block + 1}, {which}", caption, height)
    axes = figure.subplots()
    extent = (0.5 - prefix, tokens - prefix + 0.5, tokens - prefix + 0.5, 0.5 - prefix)
    norm = LogNorm(least, most)
    image = axes.imshow(np.maximum(values, 1e-12), cmap=SEQUENTIAL, norm=norm, aspect="equal", extent=extent)
    if prefix:
        line: dict[str, Any] = {"color": "white", "linewidth": 0.6}
        axes.axhline(0.5, **line)
        axes.axvline(0.5, **line)
    axes.set(xlabel="to the patch (prefix tokens before the line)", ylabel="from the patch", label="matrix")
    page.bar(image, axes, "attention", [values], unit="attention", **BAR)
    return figure


@page.styled
def methods(view: View, options: FigureOptions, *, photo: str = "", dark: bool = False) -> Figure:
    """Draw the maps of several methods for one class, each with its gain over random orders of patches."""
    target = options.target if options.target is not None or not view.best(1) else view.best(1)[0]
    maps = [view.explain(name, target) for name in options.methods]
    tests = () if target is None else view.faithfulness(maps, target)
    titles = [heatmap.title.partition(", for ")[0] for heatmap in maps]
    labels = titles
    if tests:
        gains = [f"{test.gain:+.2f}".replace("-", MINUS) for test in tests]
        labels = [f"{title}: {gain}" for title, gain in zip(titles, gains, strict=True)]
    about_gains = (
        f"The number is the area by which deleting and inserting patches in the map's order beats random orders, for "
        f"{tests[0].target}; 0 is chance. "
        if tests
        else ""
    )
    signs = " In maps with two signs, red is evidence for the class and blue evidence against it." * any(
        heatmap.signed for heatmap in maps
    )
    return _side_by_side(
        maps,
        labels,
        title="Attribution methods side by side",
        caption=(
            f"{about_gains}Each map has its own scale: compare shapes, not brightness.{_about_dots(maps)}{signs} "
            f"{page.describe(view, photo)}"
        ),
        columns=page.fitting(1.9, min(2 if len(maps) == 4 else 3, len(maps))),
    )


# ---- parts


def _describe_colors(scale: Scale, unit: str) -> str:
    """Return the range of the colors for a caption."""
    form = percent if unit == "attention" else number
    beyond = f" {DOTS}" if scale.clipped else ""
    return f"Colours run from {form(scale.vmin)} to {form(scale.vmax)} of {unit or 'score'} per patch.{beyond}"


def _about_dots(maps: Sequence[Heatmap]) -> str:
    """Return a sentence about the dots for a caption if maps have dots, else ""."""
    return f" {DOTS}" * any(heatmap.scale().clipped > 0 for heatmap in maps)


def _show(axes: Axes, heatmap: Heatmap, side: int) -> None:
    """Draw a map over its grey photograph."""
    small = heatmap.photo if max(heatmap.photo.size) <= side else fit_photo(heatmap.photo, side)
    axes.imshow(np.asarray(heatmap.over(small).overlay(**OVER_GRAY)), aspect="equal", interpolation="antialiased")
    page.hide_axes(axes)


def _side_by_side(maps: Sequence[Heatmap], labels: Sequence[str], *, title: str, caption: str, columns: int) -> Figure:
    """Draw maps side by side, each on its own scale."""
    rows = -(-len(maps) // columns)
    side = (page.inner() - 0.8) / columns
    height = min(TALLEST + 0.6, rows * (side * maps[0].photo.height / maps[0].photo.width + 0.28))
    figure = page.new_page(title, caption, height)
    panels = page.panels(figure, len(maps), columns)
    for panel, heatmap, label in zip(panels, maps, labels, strict=True):
        _show(panel, heatmap, max(200, PRINTED // columns))
        page.entitle(panel, label, page.inner() / columns - 0.1, plain=True)
        panel.set_label(label)
    return figure
