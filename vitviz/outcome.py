"""What a training leaves behind: a folder that `vitviz.load` and the page open, with a card and pictures.

| file | what it is |
|---|---|
| `config.json`, `model.safetensors` | the model: sizes, preprocessing, labels, licence; weights |
| `README.md` | the model card |
| `confusion.png` | what is taken for what on the validation images |
| `sheet.png` | 30 validation images, where the model looks, what it says and what is true |
| `before-after.png` | of a model that started from another: where the two look |

The engine leaves curves and its state in the same folder (`vitviz.training.engine`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image

from vitviz import __version__
from vitviz.card import Facts, card
from vitviz.explorer import Explorer
from vitviz.heatmap import Heatmap
from vitviz.model import ViT
from vitviz.render.answers import Answer, answer_sheet, fitted, mapped
from vitviz.render.confusion import confusion_picture
from vitviz.trace import Query
from vitviz.training.data import Data, Split
from vitviz.training.engine import Outcome
from vitviz.view import View
from vitviz.weights.checkpoint import WEIGHTS, save

ROWS, COLUMNS = 5, 6
COMPARED = 24
SIDE = 128  # pixels of a picture on a sheet; 32 x 32 and 64 x 64 fit in as whole multiples
CARD = "README.md"


def leave(
    outcome: Outcome,
    data: Data,
    folder: Path,
    *,
    command: str = "",
    base: str = "",
    before: ViT | None = None,
) -> list[str]:
    """Write the model, its card and its pictures.

    Args:
        outcome: what training came to; its model has `pretrained`.
        data: what it was trained on, the classes in the order of the model's outputs.
        folder: made where it is missing; files of the same names are replaced.
        command: what trains the model again, for the card.
        base: what it started from, as `vitviz.load` takes it, for the card.
        before: the model that it started from, for a sheet of both.

    Returns:
        The names of the files, in the order of the table above.

    Raises:
        CheckpointError: if the model cannot be saved.
    """
    model = outcome.model.eval()
    save(model, folder)
    name = model.pretrained.name if model.pretrained else folder.name
    pictures: dict[str, str] = {}
    chosen = sample(data.val, ROWS * COLUMNS, outcome.recipe.seed)
    model_sheet(model, data, chosen, name).save(folder / "sheet.png")
    pictures["sheet.png"] = f"{len(chosen)} validation images, where the model looks, and what it says"
    if before is not None:
        some = sample(data.val, COMPARED, outcome.recipe.seed)
        before_after(before, model, data, some, name).save(folder / "before-after.png")
        pictures["before-after.png"] = f"{len(some)} validation images, where the model looked before and after"
    confusion_picture(outcome.confusion.cpu().numpy(), data.labels, title=name).save(folder / "confusion.png")
    pictures["confusion.png"] = "Confusion matrix of the validation images"
    if (folder / "curves.png").is_file():
        pictures["curves.png"] = "Loss and accuracy by epoch"
    size = (folder / WEIGHTS).stat().st_size
    facts = Facts(version=__version__, command=command, size=size, base=base, pictures=pictures)
    (folder / CARD).write_text(card(outcome, data, facts), encoding="utf-8")
    return ["config.json", WEIGHTS, CARD, *pictures]


def sample(split: Split, count: int, seed: int) -> list[int]:
    """Chosen by chance, evenly over the classes and in their order: the same ones for the same seed.

    >>> import torch
    >>> from types import SimpleNamespace
    >>> sample(SimpleNamespace(classes=torch.tensor([0, 0, 0, 0, 1, 1])), 4, seed=0)[2:]
    [4, 5]
    """
    order = torch.randperm(len(split.classes), generator=torch.Generator().manual_seed(seed)).tolist()
    classes = split.classes.tolist()
    turns: dict[int, int] = {}
    ranked = []
    for index in order:
        turn = turns[classes[index]] = turns.get(classes[index], -1) + 1
        ranked.append((turn, index))
    return sorted((index for _, index in sorted(ranked, key=lambda one: one[0])[:count]), key=lambda i: (classes[i], i))


def look(view: View, query: Query) -> Heatmap:
    """Where a model looks: attention of the last layer, mean of its heads."""
    return view.attention(-1, "mean", query)


def asker(model: ViT) -> Query:
    """The token whose attention is shown: the one that the classifier reads, or all patches."""
    return "cls" if "cls" in model.config.pooling else "mean"


def _words(model: ViT) -> str:
    start = "CLS" if asker(model) == "cls" else "all patches"
    return f"the attention of the last layer from {start} (mean of {model.config.heads} heads)"


def model_sheet(model: ViT, data: Data, chosen: list[int], name: str) -> Image.Image:
    """Validation images, where the model looks in each, what it says, and whether that is right."""
    answers = []
    for index, view in _views(model, data.val, chosen):
        heatmap = look(view, asker(model))
        answers.append(_answer((fitted(heatmap.photo, SIDE), mapped(heatmap, SIDE)), view, data, index))
    right = sum(bool(answer.right) for answer in answers)
    title = f"{name}: {len(answers)} validation images, {right} right"
    words = (
        f"Beside each photograph {_words(model)}; each map has its own scale. Drawn by lot, evenly over the classes."
    )
    return answer_sheet(answers, title=title, words=words, columns=COLUMNS, side=SIDE)


def before_after(before: ViT, after: ViT, data: Data, chosen: list[int], name: str) -> Image.Image:
    """Validation images with the attention of two models: what fine-tuning did to where it looks."""
    query = asker(after)
    old = [mapped(look(view, query), SIDE) for _, view in _views(before, data.val, chosen)]
    answers = []
    for (index, view), was in zip(_views(after, data.val, chosen), old, strict=True):
        heatmap = look(view, query)
        answers.append(_answer((fitted(heatmap.photo, SIDE), was, mapped(heatmap, SIDE)), view, data, index))
    words = f"Each photograph, then {_words(after)} before training and after it; each map has its own scale."
    return answer_sheet(answers, title=f"{name}: before and after", words=words, columns=4, side=SIDE)


def _views(model: ViT, split: Split, chosen: list[int]) -> Iterator[tuple[int, View]]:
    explorer = Explorer(model)
    for index in chosen:
        yield index, explorer.open(split.picture(index))


def _answer(pictures: tuple[Image.Image, ...], view: View, data: Data, index: int) -> Answer:
    ((label, probability),) = view.predictions(1)
    truth = int(data.val.classes[index])
    return Answer(pictures, label, probability, data.labels[truth], view.best(1)[0] == truth)
