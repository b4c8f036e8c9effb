"""Measure the faithfulness of attribution methods over a data set, as one table.

A run can be interrupted and continued; torchrun distributes the images over processes and machines.
"""

import json
import os
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from vitviz.analysis.interventions import Drop
from vitviz.attribution.registry import METHODS, check_options, method_named, score_patches
from vitviz.attribution.targets import ExplainError
from vitviz.evaluation import EvaluationError, check_classifies
from vitviz.evaluation.faithfulness import RANDOM, SEED, STEPS, Floats, faithfulness
from vitviz.evaluation.masking import usual_baseline
from vitviz.evaluation.records import Journal, Key, Record, gather, processes, rank_file, read_all, write
from vitviz.evaluation.table import CHANCE, Evaluation, tabulate
from vitviz.images.folders import batches, class_names, find_classes, spread
from vitviz.model.vit import ViT, eval_mode
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
    target: Aim = "true",
    baseline: Drop | None = None,
    steps: int | Sequence[float] = STEPS,
    random: int = RANDOM,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    progress: bool = True,
) -> Evaluation:
    """Measure the faithfulness of methods over a folder of photographs.

    Each image runs separately, and its random orders depend only on its name and the seed. Results do not depend on
    other images, other methods or the number of processes, so a file can be continued with more images or methods.

    Under torchrun (RANK, WORLD_SIZE), process i % world evaluates image i and writes its own file beside `out`. Finally
    all records are gathered, the first process writes `out`, and every process returns the same result.

    Args:
        model: a classifier with `pretrained`; runs on its device in eval mode.
        folder: FOLDER/CLASS/image.
        methods: names, or "all", which lists methods that do not support this model as left out.
        limit: maximum number of images, spread evenly over the classes.
        seed: seed of the random orders.
        out: JSON lines file, one line per image and method, appended immediately. Existing records are reused.
        target: the explained class: "true" (the class of the folder) or "predicted".
        baseline, steps, random: as for `faithfulness`.
        options: options of methods by name: {"rollout": {"fuse": "max"}}.
        progress: show progress on standard error if it is a terminal.

    Raises:
        EvaluationError: if the model has no classes, or `out` has other settings or another format.
        DataError: for a folder without images or with broken images.
        ExplainError: if a method does not exist, or a named method does not support this model.
    """
    if target not in get_args(Aim) or (limit is not None and limit < 1):
        raise EvaluationError(
            f"Expected target as true or predicted and a limit of at least 1, got {target!r} and {limit}. Change them."
        )
    steps = steps if isinstance(steps, int) else [float(step) for step in steps]
    baseline = baseline or usual_baseline(model)
    run = {"target": target, "baseline": baseline, "steps": steps, "random": random, "seed": seed}
    settings = _settings(model, run, options or {})
    about, strict = model.pretrained, methods != "all"
    assert about is not None  # `_settings` has checked it
    names = list(METHODS) if not strict else list(dict.fromkeys([methods] if isinstance(methods, str) else methods))
    for name in names:
        method_named(name)
    files = spread(find_classes(Path(folder), class_names(about.labels, about.class_ids)), limit)
    keys = [path.relative_to(folder).as_posix() for path, _ in files]  # independent of the folder's path
    rank, world = processes()
    path = None if out is None else Path(out)
    records: dict[Key, Record] = {}
    journal = None
    if path is not None:
        records = read_all(path, settings)
        journal = Journal(rank_file(path, rank) if world > 1 else path, settings)
    if strict:  # with "all", unsupported methods are only listed
        records = {key: record for key, record in records.items() if "refused" not in record}
    own = range(rank, len(files), world)  # images of this process
    missing = {index: [name for name in [*names, CHANCE] if (keys[index], name) not in records] for index in own}
    todo = [index for index in own if missing[index]]
    loaded = batches([(files[index][0], index) for index in todo], about.preprocess, 1)
    disable = None if progress and rank == 0 else True  # None: hidden unless standard error is a terminal
    with eval_mode(model):
        for batch in tqdm(loaded, total=len(todo), unit=" images", disable=disable):
            index = int(batch.classes)
            base = {"image": keys[index], "class": files[index][1]}
            new = _image_records(model, batch.images, base, missing[index], settings, strict)
            records |= {(record["image"], record["method"]): record for record in new}
            if journal is not None:
                journal.add(new)
    gathered = gather([records[keys[index], name] for index in own for name in [*names, CHANCE]])
    records |= {(record["image"], record["method"]): record for record in gathered}
    if journal is not None and path is not None:
        if rank == 0:
            write(path, settings, records.values())
        gather([])  # wait until the file is written
        if journal.path != path and path.exists():  # other machines may have separate disks
            journal.path.unlink(missing_ok=True)
    return tabulate(keys, names, records, settings)


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
    base: Mapping[str, Any],
    names: Sequence[str],
    settings: Mapping[str, Any],
    strict: bool,
) -> list[Record]:
    """Return the records of one image (1, channels, H, W) for methods, and for random orders if requested."""
    weight = next(model.parameters())
    images = images.to(weight.device, weight.dtype)
    target = int(base["class"])
    if settings["target"] == "predicted":
        with torch.no_grad():
            target = int(model(images).argmax(1))
    base = {**base, "target": target}
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
        seed=zlib.crc32(f"{settings['seed']} {base['image']}".encode(errors="surrogateescape")),
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
