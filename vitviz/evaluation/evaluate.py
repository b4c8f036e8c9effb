"""Measure the faithfulness of attribution methods over a data set, as one table.

A run can be interrupted and continued; torchrun distributes the images over processes and machines.
"""

import json
import os
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from vitviz.analysis.interventions import Drop
from vitviz.attribution.registry import METHODS, check_options, method_named, score_patches
from vitviz.attribution.targets import ExplainError
from vitviz.evaluation import EvaluationError, check_classifies
from vitviz.evaluation.faithfulness import RANDOM, SEED, STEPS, Floats, faithfulness
from vitviz.evaluation.masking import usual_baseline
from vitviz.evaluation.records import Record, append, gather, opened, processes, rewrite
from vitviz.evaluation.table import CHANCE, Evaluation, tabulate
from vitviz.images.folders import DataError, batches, class_names, find_classes, find_images, spread
from vitviz.model.vit import Pretrained, ViT, eval_mode
from vitviz.progress import bar
from vitviz.weights.checkpoint import fingerprint

Aim = Literal["true", "predicted"]


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
    if target not in (None, *get_args(Aim)) or (limit is not None and limit < 1):
        raise EvaluationError(
            f"Expected target as true or predicted and a limit of at least 1, got {target!r} and {limit}. Change them."
        )
    about = check_classifies(model)
    steps = steps if isinstance(steps, int) else [float(step) for step in steps]
    files, target = _find(Path(folder), about, target)
    run = {"target": target, "baseline": baseline or usual_baseline(model), "steps": steps, "random": random}
    settings = _settings(model, {**run, "seed": seed}, options or {})
    strict = methods != "all"
    names = list(METHODS) if not strict else list(dict.fromkeys([methods] if isinstance(methods, str) else methods))
    for name in names:
        method_named(name)
    photos = spread(files, limit)
    keys = [path.relative_to(folder).as_posix() for path, _ in photos]  # independent of the folder's path
    rank, world = processes()
    own = range(rank, len(photos), world)  # photographs of this process
    with ExitStack() as stack:
        path = None if out is None else Path(out)
        records = {} if path is None else stack.enter_context(opened(path, settings))
        if strict:  # with "all", unsupported methods are only listed
            records = {key: record for key, record in records.items() if "refused" not in record}
        missing = {index: [name for name in [*names, CHANCE] if (keys[index], name) not in records] for index in own}
        todo = [index for index in own if missing[index]]
        loaded = batches([(photos[index][0], index) for index in todo], about.preprocess, 1)
        counted = stack.enter_context(bar(len(todo), iterable=loaded, show=progress and rank == 0))
        stack.enter_context(eval_mode(model))
        for batch in counted:
            index = int(batch.classes)
            label = photos[index][1] if target == "true" else None
            new = _image_records(model, batch.images, keys[index], label, missing[index], settings, strict)
            records |= {(record["image"], record["method"]): record for record in new}
            if path is not None:
                append(path, new)
        gathered = gather([records[keys[index], name] for index in own for name in [*names, CHANCE]])
        records |= {(record["image"], record["method"]): record for record in gathered}
        if path is not None and rank == 0:
            rewrite(path, settings, records.values())
    return tabulate(keys, names, records, settings)


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


def _settings(model: ViT, run: Mapping[str, Any], options: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return all settings that records depend on as plain data."""
    about = check_classifies(model)
    for name, changes in options.items():
        check_options(name, changes)
    settings = {
        "model": about.name,
        "weights": fingerprint(model),
        "preprocess": about.preprocess.to_dict(),
        **run,
        "options": {name: dict(options[name]) for name in sorted(options)},
    }
    try:
        json.dumps(settings)
    except (TypeError, ValueError) as error:
        raise EvaluationError(
            f"Expected options as numbers, strings and lists, which fit in a file, got: {error}. Change them."
        ) from None
    return settings


def _image_records(
    model: ViT,
    images: Tensor,
    image: str,
    label: int | None,
    names: Sequence[str],
    settings: Mapping[str, Any],
    strict: bool,
) -> list[Record]:
    """Return the records of one image (1, channels, H, W) for methods, and for random orders if requested.

    The explained class is `label`, by default the predicted one.
    """
    weight = next(model.parameters())
    images = images.to(weight.device, weight.dtype)
    with torch.no_grad():
        target = int(model(images).argmax(1)) if label is None else label
    base: dict[str, Any] = {"image": image, "target": target}
    maps: dict[str, Floats] = {}  # (gh, gw) each
    seconds: dict[str, float] = {}
    records: list[Record] = []
    for name in names:
        if name == CHANCE:
            continue
        options = settings["options"].get(name, {})
        began = time.perf_counter()
        try:
            maps[name] = score_patches(model, images, target, name, **options)[0].double().cpu().numpy()
        except ExplainError as error:
            if strict or options:  # the method was requested by name or has options
                raise
            records.append({**base, "method": name, "refused": str(error)})
            continue
        if weight.is_cuda:
            torch.cuda.synchronize(weight.device)
        seconds[name] = time.perf_counter() - began
    if not maps and CHANCE not in names:
        return records
    results = faithfulness(
        model,
        images,
        [*maps.values()] or [np.zeros(model.check(images))],  # any map gives the random orders
        target,
        baseline=settings["baseline"],
        steps=settings["steps"],
        random=settings["random"],
        seed=zlib.crc32(f"{settings['seed']} {image}".encode(errors="surrogateescape")),
    )
    deletion, insertion = results[0].deletion, results[0].insertion
    base["whole"] = float(deletion.probabilities[0])
    for (name, duration), result in zip(seconds.items(), results[: len(seconds)], strict=True):
        measures = {"deletion": result.deletion.area, "insertion": result.insertion.area, "gain": result.gain}
        measures |= {"positive": result.positive, "negative": result.negative, "seconds": duration}
        records.append({**base, "method": name, **measures})
    if CHANCE in names:  # both curves have the same area, so the gain is 0
        areas = deletion.random_areas
        chance = {"deletion": deletion.random_area, "insertion": insertion.random_area, "gain": 0.0}
        chance |= {"positive": deletion.random_accuracy, "negative": insertion.random_accuracy}
        chance |= {"low": float(areas.min()), "high": float(areas.max())}
        records.append({**base, "method": CHANCE, **chance, "seconds": None})
    return records
