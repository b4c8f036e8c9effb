"""Write the output folder of a training run: a model for `vitviz.load` and the page, with a card and pictures.

| file | content |
|---|---|
| `config.json`, `model.safetensors` | sizes, preprocessing, labels and licence of the model; its weights |
| `README.md` | the model card |
| `confusion.png` | confusion matrix of the validation images |
| `sheet.png` | 30 validation images with attention, prediction and truth |
| `before-after.png` | attention before and after training, for a fine-tuned model |
| `curves.png` | loss and accuracy by epoch |

The training loop writes its log and state to the same folder (`vitviz.training.loop`).
"""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image

from vitviz.draw.figures import save as save_figure
from vitviz.draw.figures.confusion import confusion
from vitviz.draw.predictions import Prediction, draw_map, prediction_sheet
from vitviz.draw.sheet import fit_photo
from vitviz.explorer import Explorer
from vitviz.images.folders import spread
from vitviz.model.vit import ViT
from vitviz.training.curves import save_curves
from vitviz.training.data import Data, Split
from vitviz.training.loop import Outcome
from vitviz.training.model_card import model_card
from vitviz.weights.checkpoint import save
from vitviz.weights.checks import WEIGHTS
from vitviz.writing import write

ROWS, COLUMNS = 5, 6
COMPARED = 24
SIDE = 128  # pixels per side of a picture on a sheet; a multiple of 32 and 64
CARD = "README.md"
CURVES = "curves.png"


def save_training(
    outcome: Outcome, data: Data, folder: Path, *, command: str = "", base: str = "", before: ViT | None = None
) -> list[str]:
    """Write the model, its card and its pictures.

    Args:
        outcome: the result of the training run; its model has `pretrained`.
        data: the training data, with classes in the order of the model's outputs.
        folder: created if missing; existing files are replaced.
        command: command that reproduces the training run, for the card.
        base: source of the base model, for the card.
        before: the base model, to compare attention before and after training.

    Returns:
        The names of the files, in the order of the table above.

    Raises:
        CheckpointError: if the model cannot be saved.
    """
    model = outcome.model.eval()
    save(model, folder)
    name = model.pretrained.name if model.pretrained else folder.name
    pictures: dict[str, str] = {}
    sheets: list[tuple[str, int, ViT | None, str]] = [
        ("sheet.png", ROWS * COLUMNS, None, "where the model looks, and what it predicts")
    ]
    if before is not None:
        sheets.append(("before-after.png", COMPARED, before, "where the model looked before and after"))
    for file, count, source, text in sheets:
        chosen = sample(data.val, count, outcome.recipe.seed)
        write(folder / file, contact_sheet(model, data, chosen, source).save)
        pictures[file] = f"{len(chosen)} validation images, {text}"
    labels, counts = outcome.accuracy.confusion()
    save_figure(confusion(counts, labels, title=name), folder / "confusion.png")
    pictures["confusion.png"] = "Confusion matrix of the validation images"
    save_curves(outcome.epochs, folder / CURVES)
    pictures[CURVES] = "Loss and accuracy by epoch"
    size = (folder / WEIGHTS).stat().st_size
    card = model_card(outcome, data, command=command, base=base, size=size, pictures=pictures)
    write(folder / CARD, card)
    return ["config.json", WEIGHTS, CARD, *pictures]


def sample(split: Split, count: int, seed: int) -> list[int]:
    """Choose random images, evenly distributed over the classes and sorted by class; reproducible by seed.

    >>> from types import SimpleNamespace
    >>> sample(SimpleNamespace(classes=torch.tensor([0, 0, 0, 0, 1, 1])), 4, seed=0)[2:]
    [4, 5]
    """
    by_class: dict[int, list[int]] = {}
    for index in torch.randperm(len(split.classes), generator=torch.Generator().manual_seed(seed)).tolist():
        by_class.setdefault(int(split.classes[index]), []).append(index)
    return [index for index, _ in sorted(spread(by_class, count), key=lambda pair: (pair[1], pair[0]))]


def contact_sheet(model: ViT, data: Data, chosen: list[int], before: ViT | None = None) -> Image.Image:
    """Draw validation images with attention, prediction and whether the prediction is right.

    Args:
        model: the trained model.
        data: its data set.
        chosen: indices of validation images.
        before: the base model, whose attention is drawn too.
    """
    query = "cls" if "cls" in model.config.pooling else "mean"  # the token read by the classifier, or all patches
    predictions = []
    for index in chosen:
        photo = data.val.picture(index)
        views = [Explorer(each).open(photo) for each in (before, model) if each is not None]
        heatmaps = [view.attention(-1, "mean", query) for view in views]  # last layer, mean over its heads
        ((label, probability),) = views[-1].predictions(1)
        truth = int(data.val.classes[index])
        pictures = (fit_photo(heatmaps[-1].photo, SIDE), *(draw_map(heatmap, SIDE) for heatmap in heatmaps))
        right = views[-1].best(1)[0] == truth
        predictions.append(Prediction(pictures, label, probability, data.labels[truth], right))
    name = model.pretrained.name if model.pretrained else "Model"
    start = "CLS" if query == "cls" else "all patches"
    text = f"the attention of the last layer from {start} (mean of {model.config.heads} heads)"
    if before is not None:
        text = f"Each photograph, then {text} before training and after it; each map has its own scale."
        return prediction_sheet(predictions, title=f"{name}: before and after", note=text, columns=4, side=SIDE)
    count = sum(bool(prediction.right) for prediction in predictions)
    title = f"{name}: {len(predictions)} validation images, {count} right"
    text = f"Next to each photograph: {text}; each map has its own scale. Random images, evenly over classes."
    return prediction_sheet(predictions, title=title, note=text, columns=COLUMNS, side=SIDE)
