"""Choose the photographs of a folder on which methods are measured, and collect the settings of a run."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from vitviz.analysis.interventions import Drop
from vitviz.attribution.registry import check_options
from vitviz.evaluation import EvaluationError, check_classifies
from vitviz.evaluation.masking import usual_baseline
from vitviz.evaluation.runs import Measure, Stage, Subject
from vitviz.images.folders import DataError, Labeled, batches, class_names, find_classes, find_images, spread
from vitviz.model.vit import Pretrained, ViT
from vitviz.weights.checkpoint import fingerprint

Aim = Literal["true", "predicted"]


@dataclass(frozen=True)
class Photographs:
    """Photographs of a folder, and the settings of a run that measures methods on them.

    Args:
        model: the model.
        folder: the folder.
        files: path and class of each photograph.
        target: the class to explain: that of the folder ("true") or the predicted one.
        settings: all settings on which rows depend, as plain data.
    """

    model: ViT
    folder: Path
    files: Sequence[Labeled]
    target: Aim
    settings: Mapping[str, Any]

    @cached_property
    def keys(self) -> list[str]:
        """Return the paths relative to the folder."""
        return [path.relative_to(self.folder).as_posix() for path, _ in self.files]

    def pixels(self, keys: Iterable[str]) -> Iterator[tuple[Tensor, int]]:
        """Yield the normalised pixels (1, channels, H, W) and the class of photographs, in order."""
        index = {key: number for number, key in enumerate(self.keys)}
        chosen = [self.files[index[key]] for key in keys]
        for batch in batches(chosen, check_classifies(self.model).preprocess, 1):
            yield batch.images, int(batch.classes)

    def first(self, limit: int | None) -> "Photographs":
        """Choose at most `limit` photographs, evenly from all classes; without a limit, return all.

        Raises:
            EvaluationError: for a limit below 1.
        """
        if limit is not None and limit < 1:
            raise EvaluationError(f"Expected a limit of at least 1, got {limit}. Change it.")
        by_class: dict[int, list[Path]] = {}
        for path, label in self.files:
            by_class.setdefault(label, []).append(path)
        return replace(self, files=spread(by_class, limit))

    def subject(self, key: str, images: Tensor, target: int, **facts: Any) -> Subject:
        """Return an image of this run; `facts` are further fields of `Subject`, by default of the same model."""
        facts = {"model": self.model, "options": self.settings["options"], **facts}
        return Subject(key=key, images=images, target=target, **facts)

    def stage(self, measures: Sequence[Measure]) -> Stage:
        """Return the stage of these photographs."""

        def subjects(keys: Sequence[str]) -> Iterator[Subject]:
            for key, (images, label) in zip(keys, self.pixels(keys), strict=True):
                target = label if self.target == "true" else predicted(self.model, images)
                yield self.subject(key, images, target)

        return Stage(keys=self.keys, subjects=subjects, measures=measures)


@torch.no_grad()
def predicted(model: ViT, images: Tensor) -> int:
    """Return the class that the model predicts for one image, (1, channels, H, W)."""
    return int(model(images.to(next(model.parameters()))).argmax(1))


def open_photographs(
    model: ViT,
    folder: Path,
    target: Aim | None,
    baseline: Drop | None,
    options: Mapping[str, Mapping[str, Any]] | None,
    *,
    steps: int | Sequence[float],
    random: int,
    seed: int,
) -> Photographs:
    """Find all photographs of a folder, and collect the settings of a run.

    Args:
        model: a classifier with `pretrained`.
        folder: FOLDER/CLASS/image, or a folder of photographs without labels.
        target: the class to explain; by default "true" if there are photographs in subfolders.
        baseline: replacement of removed patches; by default the usual one of the model.
        options: options of methods by name.
        steps, random, seed: further settings on which rows depend.

    Raises:
        EvaluationError: if the model has no classes, the seed is invalid, or a setting cannot be written to a file.
        DataError: for a folder without images.
        ExplainError: if a method or an option does not exist.
    """
    if target not in (None, *get_args(Aim)):
        raise EvaluationError(f"Expected target as true or predicted, got {target!r}. Choose one.")
    files, target = _find(folder, check_classifies(model), target)
    if not 0 <= seed < 2**32:
        raise EvaluationError(f"Expected a seed from 0 to {2**32 - 1}, got {seed}. Change it.")
    shares = steps if isinstance(steps, int) else [*map(float, steps)]
    choice: dict[str, Any] = {"target": target, "baseline": baseline or usual_baseline(model)}
    choice |= {"steps": shares, "random": random, "seed": seed}
    return Photographs(model, folder, spread(files, None), target, _settings(model, choice, options or {}))


def _find(folder: Path, about: Pretrained, target: Aim | None) -> tuple[dict[int, list[Path]], Aim]:
    """List the photographs by class or, without labels, by subfolder; return them with the explained class."""
    by_folder = find_images(folder)
    labeled = any(path.parent != folder for paths in by_folder.values() for path in paths)
    if target == "predicted" or (target is None and not labeled):
        return by_folder, "predicted"
    try:
        return find_classes(folder, class_names(about.labels, about.class_ids)), "true"
    except DataError as error:
        raise DataError(
            f"Expected photographs with labels, got: {error} Or explain the predicted class (--aim predicted)."
        ) from None


def _settings(model: ViT, choice: Mapping[str, Any], options: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return all settings on which records depend, as plain data."""
    about = check_classifies(model)
    for name, changes in options.items():
        check_options(name, changes)
    settings = {
        "model": about.name,
        "weights": fingerprint(model),
        "preprocess": about.preprocess.to_dict(),
        **choice,
        "options": {name: dict(options[name]) for name in sorted(options)},
    }
    try:
        json.dumps(settings)
    except (TypeError, ValueError) as error:
        raise EvaluationError(
            f"Expected options as numbers, strings and lists, which fit in a file, got: {error}. Change them."
        ) from None
    return settings
