"""Figures of a prediction: insertion and deletion curves, the logit lens, and the decomposition of a logit."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from numpy.typing import NDArray

from vitviz.analysis.decomposition import decompose
from vitviz.draw.figures import page
from vitviz.draw.figures.maps import Asked
from vitviz.evaluation.faithfulness import Curve
from vitviz.formatting import number, output
from vitviz.outputs import REGRESSION, SINGLE
from vitviz.view import View

LEAST = 0.01  # percent: where the axis of small probabilities begins
LINES = ("solid", "dashed", "dashdot", "dotted", (0, (5, 1, 1, 1, 1, 1)))  # print in grey still tells them apart
CLASSES = 5


@page.styled
def curves(view: View, asked: Asked, *, photo: str = "", dark: bool = False) -> Figure:
    """Draw the probability of the class while patches are deleted and inserted in a map's order, beside random ones."""
    found = asked.heatmap(view)
    test = view.faithfulness(found, asked.target if not found.classes else None)[0]
    caption = (
        f"{test.describe()} The grey band holds {test.n} random orders, the dashed line their mean. "
        f"{page.describe(view, photo)}"
    )
    figure = page.new_page(f"Deletion and insertion: {found.title}", caption, 2.6)
    left, right = figure.subplots(1, 2, sharey=True)
    color = page.ACCENTS[dark]["attention"]
    for axes, curve, words in (
        (left, test.deletion, "strongest patches deleted first"),
        (right, test.insertion, "strongest patches inserted first"),
    ):
        _curve(axes, curve, color)
        axes.set_title(f"{words}: area {curve.number(curve.area)}", fontsize=page.SMALL, fontweight="normal")
        axes.set(xlabel=f"share of the patches {'deleted' if curve.kind == 'deletion' else 'shown'} (%)", xlim=(0, 100))
        axes.set_label(curve.kind)
    if view.model.problem_type == REGRESSION:
        left.set(ylabel=test.target)
    else:
        top = _top(test.deletion.band[1], test.insertion.band[1])
        left.set(ylabel=f"probability of {test.target} (%)", ylim=(0, top))
    _key(figure, right)
    return figure


def _key(figure: Figure, axes: Axes) -> None:
    """Name the lines of axes below all axes, where no line is."""
    handles, names = axes.get_legend_handles_labels()
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)  # of `page.new_page`; its rectangle lies above the caption
    left, bottom, width, height = engine.get()["rect"]
    high = (-(-len(names) // 3) * page.line_of(page.SMALL) * 1.1 + 0.1) / figure.get_figheight()
    engine.set(rect=(left, bottom + high, width, height - high))
    place = (left, bottom, width, high)
    figure.legend(handles, names, frameon=False, loc="center", ncols=3, bbox_to_anchor=place, borderaxespad=0)


def _curve(axes: Axes, curve: Curve, color: str) -> None:
    """Draw one curve with the band of random orders, in percent or in the model's own unit (regression)."""
    unit = 1 if curve.problem_type == REGRESSION else 100
    low, high = curve.band
    across = 100 * curve.fractions
    axes.fill_between(across, unit * low, unit * high, color="#999999", alpha=0.35, linewidth=0)
    mean = unit * curve.random.mean(axis=0)
    axes.plot(across, mean, color="#777777", linestyle="dashed", linewidth=1.0, label="random, mean")
    axes.plot(across, unit * curve.probabilities, color=color, linewidth=1.6, label="this map")


def _top(*shares: NDArray[Any]) -> float:
    """Return where an axis of percent ends: with room for a legend above the highest of some shares, at most 100."""
    return min(100.0, 140.0 * max(float(values.max()) for values in shares) or 100.0)


@page.styled
def lens(view: View, asked: Asked, *, photo: str = "", dark: bool = False) -> Figure:
    """Draw the probability of the most probable classes after each layer (logit lens)."""
    found = view.lens(view.best(CLASSES) if asked.target is None else [asked.target])
    caption = (
        "The final norm and the classifier, applied to the tokens after each layer (logit lens). In early layers the "
        f"classifier reads tokens unlike those that it was trained on. {page.describe(view, photo)}"
    )
    figure = page.new_page("The prediction after each layer", caption, 2.9)
    axes = figure.subplots()
    colors = list(page.ACCENTS[dark].values())
    across = [block + 1 for block in found.blocks]
    problem_type = view.model.problem_type
    unit = 1 if problem_type == REGRESSION else 100
    for place, (index, name) in enumerate(zip(found.classes, found.names, strict=True)):
        y = unit * found.probabilities[:, index]
        y = y if problem_type == REGRESSION else np.maximum(y, LEAST)
        last = output(float(found.probabilities[-1, index]), problem_type)
        style: dict[str, Any] = {"color": colors[place % len(colors)], "linestyle": LINES[place % len(LINES)]}
        axes.plot(across, y, marker="o", markersize=2.5, linewidth=1.4, label=f"{name} {last}", **style)
    axes.set(xlabel="layer", ylabel="value", label="lens")
    page.count(axes)
    if problem_type != REGRESSION:
        axes.set(ylabel="probability (%), logarithmic", yscale="log", ylim=(LEAST, 100))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    _key(figure, axes)
    return figure


@page.styled
def decomposition(view: View, asked: Asked, *, photo: str = "", dark: bool = False) -> Figure:
    """Draw what each head and each MLP adds to the logit of a class: direct logit attribution."""
    found = decompose(view.model, view.trace, asked.target)
    layers, count = found.heads.shape
    table = np.concatenate([found.heads, found.mlps[:, None]], axis=1)  # (L, H + 1)
    rest = found.start + found.constant + found.biases.sum()
    above = ", above the mean of all logits" if view.model.problem_type == SINGLE else ""
    caption = (
        f"What each head and each MLP adds directly to the logit of {found.name}{above}: heads "
        f"{number(found.heads.sum())}, MLPs {number(found.mlps.sum())}, all else (embedding, biases) {number(rest)}, "
        f"together {number(found.total)}. The deviation of the final norm is held; what a block adds for later ones to "
        f"read is counted there. {page.describe(view, photo)}"
    )
    high = min(5.6, 0.24 * layers + 0.5)
    figure = page.new_page(f"The logit of {found.name} in parts", caption, high)
    left, right = figure.subplots(1, 2, width_ratios=[3.2, 1], sharey=True)
    reach = float(np.abs(table).max()) or 1.0
    image = left.imshow(table, cmap=page.DIVERGING[dark], vmin=-reach, vmax=reach, interpolation="nearest")
    left.set_xticks(range(count + 1), [*(str(head + 1) for head in range(count)), "MLP"])
    left.set_yticks(range(layers), [str(block + 1) for block in found.blocks])
    left.set(xlabel="head", ylabel="layer", label="parts")
    left.axvline(count - 0.5, color="black" if not dark else "white", linewidth=0.6)
    if count <= 16:
        for (row, column), value in np.ndenumerate(table):
            ink = "white" if abs(value) > 0.6 * reach else "black" if not dark else "#eceef2"
            left.text(
                column,
                row,
                f"{round(value, 2) + 0.0:.2f}".replace("-", "−"),
                ha="center",
                va="center",
                fontsize=5,
                color=ink,
            )
    page.bar(image, left, "added to the logit", [table])
    rows = np.arange(layers)  # as the table has them
    right.barh(rows - 0.19, found.heads.sum(1), 0.38, color=page.ACCENTS[dark]["attention"], label="heads")
    right.barh(rows + 0.19, found.mlps, 0.38, color=page.ACCENTS[dark]["mlp"], label="MLP", hatch="////")
    right.set_ylim(layers - 0.5, -0.5)
    right.axvline(0, color="#777777", linewidth=0.6)
    right.set(xlabel="sum of the layer", label="sums")
    _key(figure, right)
    return figure
