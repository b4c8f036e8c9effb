"""Measure the faithfulness of attribution methods over a data set, as one table.

A run can be interrupted and continued; torchrun distributes the images over processes and machines.
"""

import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitviz.analysis.interventions import Drop
from vitviz.attribution.registry import METHODS, methods_named
from vitviz.evaluation import EvaluationError
from vitviz.evaluation.faithfulness import RANDOM, SEED, STEPS, faithfulness
from vitviz.evaluation.photographs import Aim, open_photographs
from vitviz.evaluation.records import Record
from vitviz.evaluation.runs import CHANCE, Maps, Measure, Subject, run
from vitviz.evaluation.table import REMOVAL, Evaluation, tabulate
from vitviz.fields import check_arguments
from vitviz.model.vit import ViT


@check_arguments(EvaluationError)
def evaluate(
    model: ViT,
    folder: str | os.PathLike[str],
    methods: str | Sequence[str] = "all",
    *,
    limit: int | None = None,
    seed: int = SEED,
    out: str | os.PathLike[str] | None = None,
    target: Aim | None = None,
    baseline: Drop | None = None,
    steps: int | Sequence[float] = STEPS,
    random: int = RANDOM,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    progress: bool = True,
) -> Evaluation:
    """Measure the faithfulness of methods over a folder of photographs.

    Each image runs separately, and its random orders depend only on its name and the seed. Results do not depend on
    other images, other methods or the number of processes, so a file can be continued with more images or methods.

    Under torchrun (RANK, WORLD_SIZE), process i % world evaluates image i. Finally all records are gathered, the first
    process writes `out`, and every process returns the same result.

    Args:
        model: a classifier with `pretrained`; runs on its device in eval mode.
        folder: FOLDER/CLASS/image, or a folder of photographs without labels.
        methods: names, or "all", which lists methods that do not support this model as left out.
        limit: maximum number of images, spread evenly over the classes.
        seed: seed of the random orders.
        out: JSON lines file, one line per image and method, appended immediately. Existing records are reused. A second
            run with this file is refused until the first one has ended.
        target: the explained class: "true" (the class of the folder) or "predicted", which needs no labels. By default
            "true" if there are photographs in subfolders.
        baseline, steps, random: as for `faithfulness`.
        options: options of methods by name: {"rollout": {"fuse": "max"}}.
        progress: show progress on standard error.

    Raises:
        EvaluationError: if the model has no classes, or `out` has other settings or another format, or another run
            writes it.
        WritingError: if the disk is full.
        DataError: for a folder without images or with broken images.
        ExplainError: if a method does not exist, or a named method does not support this model.
    """
    strict = methods != "all"
    names = methods_named(methods if strict else METHODS)
    found = open_photographs(model, Path(folder), target, baseline, options, steps=steps, random=random, seed=seed)
    photos = found.first(limit)
    stage = photos.stage([removal(photos.settings)])
    records = run(model, [stage], names, photos.settings, out=out, strict=strict, progress=progress)
    return tabulate(stage.keys, names, records, photos.settings)


def removal(settings: Mapping[str, Any]) -> Measure:
    """Return the measure of deletion and insertion, with a row for random orders."""

    def rows(subject: Subject, maps: Maps, others: Sequence[str]) -> list[Record]:
        results = faithfulness(
            subject.model,
            subject.images,
            [*maps.values()]
            or [np.zeros(subject.model.check(subject.images))],  # without maps, any map serves to measure random orders
            subject.target,
            baseline=settings["baseline"],
            steps=settings["steps"],
            random=settings["random"],
            seed=zlib.crc32(f"{settings['seed']} {subject.key}".encode(errors="surrogateescape")),
        )
        deletion, insertion = results[0].deletion, results[0].insertion
        whole = {"whole": float(deletion.probabilities[0])}
        records: list[Record] = []
        for name, result in zip(maps, results[: len(maps)], strict=True):  # without maps, `results` has that of zeros
            measures = {"deletion": result.deletion.area, "insertion": result.insertion.area, "gain": result.gain}
            measures |= {"positive": result.positive, "negative": result.negative, "seconds": subject.seconds[name]}
            records.append({"method": name, **whole, **measures})
        for name in others:  # on average, both curves of random orders have the same area, so the gain is 0
            areas = deletion.random_areas
            chance = {"deletion": deletion.random_area, "insertion": insertion.random_area, "gain": 0.0}
            chance |= {"positive": deletion.random_accuracy, "negative": insertion.random_accuracy}
            chance |= {"low": float(areas.min()), "high": float(areas.max())}
            records.append({"method": name, **whole, **chance, "seconds": None})
        return records

    return Measure(task=REMOVAL, rows=rows, others=(CHANCE,))
