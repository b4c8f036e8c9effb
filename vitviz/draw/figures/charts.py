"""Draw predictions, deletion and insertion, the logit lens, the decomposition, and statistics of heads."""

# ruff: noqa: ARG001 - `page.styled` reads `dark`

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from vitviz.analysis.head_statistics import STATISTICS
from vitviz.draw.colors import SEQUENTIAL
from vitviz.draw.figures import page
from vitviz.draw.figures.maps import PRINTED, FigureOptions
from vitviz.draw.sheet import fit_photo
from vitviz.evaluation.faithfulness import Curve
from vitviz.formatting import MINUS, output
from vitviz.outputs import REGRESSION, SEVERAL, SINGLE
from vitviz.view import View

LEAST = 0.01  # lower end of a logarithmic axis in percent
LINES = ("solid", "dashed", "dashdot", "dotted", (0, (5, 1, 1, 1, 1, 1)))  # distinguishable in grey
CLASSES = 5
SHOWN = ("distance", "entropy_share", "mass_cls")  # statistics of heads
HEADINGS = {SINGLE: "The most probable classes", SEVERAL: "The most probable labels", REGRESSION: "Values"}


@page.styled
def prediction(view: View, options: FigureOptions, *, photo: str = "", dark: bool = False) -> Figure:
    """Draw the photograph with its prediction above, and the next classes in the caption."""
    ranked = view.predictions(CLASSES)
    problem_type = view.model.problem_type
    listed = ", ".join(f"{label} {output(value, problem_type)}" for label, value in ranked)
    caption = f"{HEADINGS[problem_type]}: {listed}. {page.describe(view, photo)}"
    shape = view.photo.height / view.photo.width
    words = page.wrap(view.describe(), page.PANEL, page.inner(), bold=True)
    high = min(5.0, page.inner() * shape) + len(words) * page.line_of(page.PANEL)
    figure = page.new_page("The photograph and its prediction", caption, high)
    axes = figure.subplots()
    axes.imshow(np.asarray(fit_photo(view.photo, PRINTED)), aspect="equal", interpolation="antialiased")
    page.hide_axes(axes)
    axes.set(title="\n".join(words), label="photograph", anchor="W")
    return figure


@page.styled
def statistics(view: View, options: FigureOptions, *, photo: str = "", dark: bool = False) -> Figure:
    """Draw statistics of every head: distance, relative entropy, and share on the class token."""
    head_statistics = view.heads(SHOWN, query=options.query)
    names = head_statistics.present
    columns = page.fitting(1.8, len(names))
    rows, (layers, count) = -(-len(names) // columns), head_statistics[names[0]].shape
    side = page.inner() / columns - 1.0  # without a layer's numbers and the color bar
    about = " ".join(f"{STATISTICS[name].title}: {STATISTICS[name].about}" for name in names)
    query = "patches" if head_statistics.query == "patches" else head_statistics.query.upper()
    high = max(1.2, min(2.6, (0.18 if rows == 1 else 0.13) * layers))
    title = f"Statistics of every head, from {query}"
    figure = page.new_page(title, f"{about} {page.describe(view, photo)}", rows * (high + 0.55))
    for panel, name in zip(page.panels(figure, len(names), columns), names, strict=True):
        extent = (0.5, count + 0.5, layers + 0.5, 0.5)
        image = panel.imshow(head_statistics[name], cmap=SEQUENTIAL, interpolation="nearest", extent=extent)
        numbers = [str(block + 1) for block in head_statistics.blocks]
        page.number_axis(panel.xaxis, range(1, count + 1), [str(head + 1) for head in range(count)], side / count)
        page.number_axis(panel.yaxis, range(1, layers + 1), numbers, high / layers)
        page.entitle(panel, STATISTICS[name].title, page.inner() / columns - 0.4)
        panel.set(xlabel="head", ylabel="layer", label=name)
        page.bar(image, panel, STATISTICS[name].unit)
    return figure


@page.styled
def curves(view: View, options: FigureOptions, *, photo: str = "", dark: bool = False) -> Figure:
    """Draw the class's probability while patches are deleted and inserted in a map's order, and in random orders."""
    heatmap = options.heatmap(view)
    test = view.faithfulness(heatmap, options.target if heatmap.explained is None else None)[0]
    caption = (
        f"{test.describe()} The grey band spans {test.n} random orders; the dashed line is their mean, and the dotted "
        f"line a map of the picture's centre. {page.describe(view, photo)}"
    )
    across = page.fitting(2.6, 2)
    figure = page.new_page(f"Deletion and insertion: {heatmap.title}", caption, 2.6 if across == 2 else 4.2)
    left, right = figure.subplots(2 // across, across, sharey=True)
    color = page.ACCENTS[dark]["attention"]
    in_percent = test.scale == "probability"
    ylabel = f"probability of {test.target} (%)" if in_percent else f"{test.target} ({test.scale})"
    for axes, curve, title in (
        (left, test.deletion, "strongest patches deleted first"),
        (right, test.insertion, "strongest patches inserted first"),
    ):
        _curve(axes, curve, color)
        page.entitle(axes, f"{title}: area {curve.number(curve.area)}", page.inner() / across - 0.4, plain=True)
        axes.set_ylabel(ylabel if axes is left or across == 1 else "")
        axes.set(xlabel=f"share of the patches {'deleted' if curve.kind == 'deletion' else 'shown'} (%)", xlim=(0, 100))
        axes.set_label(curve.kind)
    if in_percent:
        top = _top(test.deletion.band[1], test.insertion.band[1])
        left.set_ylim(-0.02 * top, 1.02 * top)  # leaves room for lines at 0 and 100 %
    page.key(figure, right)
    return figure


def _curve(axes: Axes, curve: Curve, color: str) -> None:
    """Draw one curve with the band of random orders, in percent or on the target's own scale."""
    unit = 100 if curve.scale == "probability" else 1
    low, high = curve.band
    across = 100 * curve.fractions
    axes.fill_between(across, unit * low, unit * high, color="#999999", alpha=0.35, linewidth=0)
    mean = unit * curve.random.mean(axis=0)
    axes.plot(across, mean, color="#777777", linestyle="dashed", linewidth=1.0, label="random, mean")
    axes.plot(across, unit * curve.center, color="#777777", linestyle="dotted", linewidth=1.2, label="picture's centre")
    axes.plot(across, unit * curve.probabilities, color=color, linewidth=1.6, label="this map")


def _top(*shares: NDArray[Any]) -> float:
    """Return the end of a percent axis, with room for a legend above the highest share, at most 100."""
    return min(100.0, 140.0 * max(float(values.max()) for values in shares) or 100.0)


@page.styled
def lens(view: View, options: FigureOptions, *, photo: str = "", dark: bool = False) -> Figure:
    """Draw the probability of the most probable classes after each layer (logit lens)."""
    outputs = view.lens(view.best(CLASSES) if options.target is None else None, target=options.target)
    in_percent = outputs.scale == "probability"
    low = bool((outputs.readings < LEAST / 100).any()) and in_percent
    below = f"Smaller probabilities are drawn at {LEAST:g} %. " if low else ""
    caption = (
        "The final norm and the classifier, applied to the tokens after each layer (logit lens). Tokens of early "
        f"layers differ from those that the classifier was trained on. {below}{page.describe(view, photo)}"
    )
    named = "The prediction" if options.target is None else outputs.names[0][0].upper() + outputs.names[0][1:]
    figure = page.new_page(f"{named} after each layer", caption, 2.9)
    axes = figure.subplots()
    colors = list(page.ACCENTS[dark].values())
    across = [block + 1 for block in outputs.blocks]
    for place, (name, readings) in enumerate(zip(outputs.names, outputs.readings.T, strict=True)):
        y = np.maximum(100 * readings, LEAST) if in_percent else readings
        last = output(float(readings[-1]), SINGLE if in_percent else REGRESSION)
        style: dict[str, Any] = {"color": colors[place % len(colors)], "linestyle": LINES[place % len(LINES)]}
        axes.plot(across, y, marker="o", markersize=2.5, linewidth=1.4, clip_on=False, label=f"{name} {last}", **style)
    axes.set(xlabel="layer", ylabel=outputs.scale, label="lens")
    page.count(axes)
    if in_percent:
        axes.set(ylabel="probability (%), logarithmic", yscale="log", ylim=(LEAST, 100))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    page.key(figure, axes)
    return figure


@page.styled
def decomposition(view: View, options: FigureOptions, *, photo: str = "", dark: bool = False) -> Figure:
    """Draw the contributions of heads and MLPs to the logit of a class: direct logit attribution."""
    parts = view.decompose(options.target)
    layers, count = parts.heads.shape
    table = np.concatenate([parts.heads, parts.mlps[:, None]], axis=1)  # (L, H + 1)
    rest = parts.start + parts.constant + parts.biases.sum()
    above = ", above the mean of all logits" if parts.scale == "logit" and view.model.problem_type == SINGLE else ""
    explained = f"the logit of {parts.name}" if parts.scale == "logit" else f"{parts.name} ({parts.scale})"
    caption = (
        f"Direct contribution of each head and MLP to {explained}{above}: heads "
        f"{_hundredths(parts.heads.sum())}, MLPs {_hundredths(parts.mlps.sum())}, everything else (embedding, biases) "
        f"{_hundredths(rest)}, total {_hundredths(parts.total)}. The standard deviation in the final norm is held "
        f"fixed. Indirect effects through later blocks are attributed to those blocks. {page.describe(view, photo)}"
    )
    high = min(5.6, 0.24 * layers + 1.0)
    figure = page.new_page(f"{explained[0].upper()}{explained[1:]} in parts", caption, high)
    left, right = figure.subplots(1, 2, width_ratios=[3.2 if page.fitting(2.6, 2) == 2 else 2.2, 1], sharey=True)
    cell = (0.7 * page.inner() - 0.5) / (count + 1)  # inches
    reach = float(np.abs(table).max()) or 1.0
    image = left.imshow(table, cmap=page.DIVERGING[dark], vmin=-reach, vmax=reach, interpolation="nearest")
    page.number_axis(left.xaxis, range(count), [str(head + 1) for head in range(count)], cell)
    left.set_xticks([*left.get_xticks(), count], [*(label.get_text() for label in left.get_xticklabels()), "MLP"])
    page.number_axis(left.yaxis, range(layers), [str(block + 1) for block in parts.blocks], (high - 1.0) / layers)
    left.set(xlabel="head", ylabel="layer", label="parts")
    left.axvline(count - 0.5, color="black" if not dark else "white", linewidth=0.6)
    if cell >= 0.27:
        for (row, column), value in np.ndenumerate(table):
            ink = "white" if abs(value) > 0.6 * reach else "black" if not dark else "#eceef2"
            left.text(column, row, _hundredths(value), ha="center", va="center", fontsize=5, color=ink)
    page.bar(image, left, f"added to the {parts.scale}", [table], "bottom", aspect=30)
    rows = np.arange(layers)  # in the order of the table
    right.barh(rows - 0.19, parts.heads.sum(1), 0.38, color=page.ACCENTS[dark]["attention"], label="heads")
    right.barh(rows + 0.19, parts.mlps, 0.38, color=page.ACCENTS[dark]["mlp"], label="MLP", hatch="////")
    right.set_ylim(layers - 0.5, -0.5)
    right.axvline(0, color="#777777", linewidth=0.6)
    right.set(xlabel="\n".join(page.wrap("sum of the layer", page.SMALL, 0.2 * page.inner())), label="sums")
    page.key(figure, right)
    return figure


def _hundredths(value: float) -> str:
    """Format a number with two decimals, without minus zero."""
    return f"{round(value, 2) + 0.0:.2f}".replace("-", MINUS)
