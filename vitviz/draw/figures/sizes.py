"""Draw the accuracy of a model against its input size."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from vitviz.draw.figures import page
from vitviz.evaluation.accuracy import Accuracy


@page.styled
def accuracy_by_size(accuracies: Mapping[int, Accuracy], *, own: int) -> Figure:
    """Draw top-1 accuracy by input size, with its standard error.

    Args:
        accuracies: input size in pixels -> accuracy on the same images.
        own: the model's native size.
    """
    sizes, results = [*accuracies], [*accuracies.values()]
    count, top1 = results[0].images, np.array([accuracy.top1 for accuracy in results])
    errors = np.sqrt(top1 * (1 - top1) / count)
    caption = (
        f"{results[0].model}, {count:,} validation images. The same weights at every size: positions are interpolated "
        "to the grid or computed for it, without further training. Bars: one standard error."
    )
    figure = page.new_page("Accuracy against the size of the input", caption, 2.6)
    axes = figure.subplots()
    color = page.ACCENTS[False]["attention"]
    axes.axvline(own, linestyle=":", linewidth=0.8, color="0.5")
    axes.errorbar(sizes, 100 * top1, yerr=100 * errors, marker="o", markersize=3.5, capsize=2, color=color)
    place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "ha": "right"}
    axes.annotate("its own size", (own, 1), xytext=(-3, -8), **place)
    axes.set(xlabel="side of the input, pixels", ylabel="top-1 accuracy in %", xticks=sizes)
    axes.grid(alpha=0.3)
    return figure
