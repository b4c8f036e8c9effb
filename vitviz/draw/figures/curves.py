"""Learning curves: loss and accuracy over epochs, of training and validation."""

import os
from collections.abc import Sequence
from pathlib import Path

from vitviz.training.log import Epoch


def save_curves(rows: Sequence[Epoch], path: Path) -> None:
    """Draw the epochs of a training as a PNG file, replaced in one step."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), dpi=150, layout="constrained")
    epochs = [row.epoch for row in rows]
    marks = {"marker": "o", "markersize": 3.0} if len(rows) < 20 else {}
    left, right = figure.subplots(1, 2)
    training, validation = {"linestyle": "--", "color": "#555555"}, {"linestyle": "-", "color": "#0b62a4"}
    left.plot(epochs, [row.loss for row in rows], label="training", **training, **marks)
    left.plot(epochs, [row.val_loss for row in rows], label="validation", **validation, **marks)
    left.set(xlabel="epoch", ylabel="loss")
    right.plot(epochs, [100 * row.accuracy for row in rows], label="training", **training, **marks)
    right.plot(epochs, [100 * row.top1 for row in rows], label="validation, top-1", **validation, **marks)
    right.set(xlabel="epoch", ylabel="accuracy in %")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        axes.xaxis.get_major_locator().set_params(integer=True)
    beside = path.with_name(f".{path.name}.new")
    figure.savefig(beside, format="png")
    os.replace(beside, path)
