"""Train a model with one call."""

import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from vitviz.model.vit import ViT
from vitviz.training import TrainingError
from vitviz.training.data import Data, open_data
from vitviz.training.loop import Outcome, Trainer
from vitviz.training.recipes import RECIPES, Recipe
from vitviz.training.transfer import start_on


def train(
    model: ViT,
    data: Data | str | os.PathLike[str],
    recipe: Recipe | str,
    out: str | os.PathLike[str] | None = None,
    *,
    device: torch.device | str | None = None,
    progress: bool = True,
    **more: Any,
) -> Outcome:
    """Train a model on data with a recipe, and return the result with the trained model.

    Args:
        model: a new model without `pretrained` and with the data's number of classes, which is trained in place; or a
            model with `pretrained`; a copy of it is trained, with a new classifier if the classes differ.
        data: from `vitviz.training.data.open_data`, or its first argument, opened at the model's size.
        recipe: a `vitviz.training.recipes.Recipe`, or the name of a recipe.
        out: folder for state, log and features; by default a temporary folder.
        device: device to train on; by default the best one.
        progress: show a bar on terminals, or one line per epoch elsewhere, on standard error.
        more: further arguments of `vitviz.training.loop.Trainer`, such as teacher or resume.

    Raises:
        DataError: if the data cannot be used.
        TrainingError: if model, data and recipe do not fit together.
        Stopped: after Ctrl-C, with the state saved in `out`.

    Example:
        >>> import vitviz
        >>> from vitviz.training.recipes import Recipe
        >>> sizes = {"image_size": (28, 28), "patch_size": 4, "width": 16, "depth": 2, "heads": 2}
        >>> model = vitviz.ViT(vitviz.ViTConfig(**sizes, classes=10))
        >>> trained = vitviz.train(model, "fashion-mnist", Recipe(epochs=1))  # doctest: +SKIP
        >>> trained.accuracy.top1  # doctest: +SKIP
        0.84
    """
    if isinstance(recipe, str):
        if recipe not in RECIPES:
            raise TrainingError(f"Expected a recipe among {', '.join(RECIPES)}, got {recipe!r}. Choose one.")
        recipe = RECIPES[recipe].recipe
    if not isinstance(data, Data):
        data = open_data(data, size=model.config.image_size, seed=recipe.seed, progress=progress)
    fitted = _fit(model, data, recipe.seed)
    with tempfile.TemporaryDirectory(prefix="vitviz-train-", ignore_cleanup_errors=True) as folder:
        trainer = Trainer(fitted, data, recipe, Path(out or folder), device=device, progress=progress, **more)
        return trainer.run()


def _fit(model: ViT, data: Data, seed: int) -> ViT:
    """Return the model with the data's classes and preprocessing."""
    about = model.pretrained
    if about is None:
        if model.config.classes != len(data.labels):
            raise TrainingError(
                f"Expected a model for the data's {len(data.labels)} classes, got one for {model.config.classes}. Set "
                "classes in its config."
            )
        model.pretrained = data.record(f"ViT · {data.name}")
        return model
    same = about.labels == data.labels
    return start_on(model, data, name=about.name, image_size=data.train.size, keep_head=same, seed=seed)
