"""Draw learning curves: loss and accuracy of training and validation over epochs."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from vitviz.draw.figures import encode, page
from vitviz.training.log import Epoch
from vitviz.writing import write


@page.styled
def learning_curves(rows: Sequence[Epoch]) -> Figure:
    """Draw loss and accuracy of training and validation over the epochs."""
    epochs, colors, across = [row.epoch for row in rows], page.ACCENTS[False], page.fitting(2.6, 2)
    caption = "Training: mean over the epoch, on augmented images. Validation: after the epoch."
    figure = page.new_page("Learning curves", caption, 2.4 if across == 2 else 4.2)
    left, right = figure.subplots(2 // across, across)
    marks = {"marker": "o", "markersize": 2.5} if len(rows) < 20 else {}
    training = {"linestyle": "dashed", "color": colors["norm"], "label": "training", **marks}
    validation = {"color": colors["embedding"], "label": "validation", **marks}
    left.plot(epochs, [row.loss for row in rows], **training)
    left.plot(epochs, [row.val_loss for row in rows], **validation)
    right.plot(epochs, [100 * row.accuracy for row in rows], **training)
    right.plot(epochs, [100 * row.top1 for row in rows], **validation)
    for axes, words in ((left, "loss"), (right, "top-1 accuracy (%)")):
        axes.set(xlabel="epoch", ylabel=words)
        axes.xaxis.get_major_locator().set_params(integer=True)
    page.key(figure, left)
    return figure


def save_curves(rows: Sequence[Epoch], path: Path) -> None:
    """Write the learning curves as a PNG file."""
    write(path, encode(learning_curves(rows), "png"))
