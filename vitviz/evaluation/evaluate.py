"""Faithfulness of attribution methods over a data set of photographs, as one table.

A run may be stopped at any time and continued; torchrun shares the images among processes and machines.
"""

import json
import os
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from tqdm import tqdm

from vitviz.analysis.interventions import Drop
from vitviz.attribution.registry import METHODS, attribute, check_options, method_named
from vitviz.attribution.scores import ExplainError
from vitviz.evaluation import EvaluationError, check_classifies
from vitviz.evaluation.faithfulness import RANDOM, SEED, STEPS, faithfulness
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
    baseline: Drop = "remove",
    steps: int | Sequence[float] = STEPS,
    random: int = RANDOM,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    progress: bool = True,
) -> Evaluation:
    """Measure the faithfulness of methods over a folder of photographs.

    Every image is run by itself, and its random orders depend on its name and the seed alone: neither the other images,
    nor the other methods, nor the number of processes change a result, so a file may be continued with more images or
    methods.

    Under torchrun (RANK, WORLD_SIZE) image i belongs to process i % world. Each writes a file of its own beside `out`;
    at the end all records are shared, the first process writes `out`, and every process returns the same.

    Args:
        model: a classifier with `pretrained`. It runs where it is, in eval mode.
        folder: FOLDER/CLASS/image.
        methods: names, or "all"; then those that do not support this model are left out, and listed as such.
        limit: largest number of images, spread evenly over the classes.
        seed: of the random orders.
        out: a file of JSON lines, one for each image and method, appended at once. Existing records are not made again.
        target: the class that is explained and scored: that of the folder, or the predicted one.
        baseline, steps, random: as for `faithfulness`.
        options: of methods, by name: {"rollout": {"fuse": "max"}}.
        progress: count up on standard error, if that is a terminal.

    Raises:
        EvaluationError: if the model has no classes, or `out` is a file of other settings or of something else.
        DataError: for a folder without images or with broken ones.
        ExplainError: if there is no such method, or a named one does not support this model.
    """
    if target not in get_args(Aim) or (limit is not None and limit < 1):
        raise EvaluationError(
            f"Expected target as true or predicted and a limit of at least 1, got {target!r} and {limit}. Change them."
        )
    steps = steps if isinstance(steps, int) else [float(step) for step in steps]
    run = {"target": target, "baseline": baseline, "steps": steps, "random": random, "seed": seed}
    settings = _settings(model, run, options or {})
    about, strict = model.pretrained, methods != "all"
    assert about is not None  # the settings name it
    names = list(METHODS) if not strict else list(dict.fromkeys([methods] if isinstance(methods, str) else methods))
    for name in names:
        method_named(name)
    files = spread(find_classes(Path(folder), class_names(about.labels, about.class_ids)), limit)
    keys = [path.relative_to(folder).as_posix() for path, _ in files]  # the same wherever the folder lies
    rank, world = processes()
    path = None if out is None else Path(out)
    records: dict[Key, Record] = {}
    journal = None
    if path is not None:
        records = read_all(path, settings)
        journal = Journal(rank_file(path, rank) if world > 1 else path, settings)
    if strict:  # a method that was left out of all methods was not asked for by name
        records = {key: record for key, record in records.items() if "refused" not in record}
    mine = range(rank, len(files), world)
    lacking = {index: [name for name in [*names, CHANCE] if (keys[index], name) not in records] for index in mine}
    todo = [index for index in mine if lacking[index]]
    one_by_one = batches([(files[index][0], index) for index in todo], about.preprocess, 1)
    disable = None if progress and rank == 0 else True  # None: where standard error is no terminal
    with eval_mode(model):
        for batch in tqdm(one_by_one, total=len(todo), unit=" images", disable=disable):
            index = int(batch.classes)
            base = {"image": keys[index], "class": files[index][1]}
            some = _image_records(model, batch.images, base, lacking[index], settings, strict)
            records |= {(record["image"], record["method"]): record for record in some}
            if journal is not None:
                journal.add(some)
    shared = gather([records[keys[index], name] for index in mine for name in [*names, CHANCE]])
    records |= {(record["image"], record["method"]): record for record in shared}
    if journal is not None and path is not None:
        if rank == 0:
            write(path, settings, records.values())
        gather([])  # wait until it is written
        if journal.path != path and path.exists():  # other machines may have disks of their own
            journal.path.unlink(missing_ok=True)
    return tabulate(keys, names, records, settings)


def _settings(model: ViT, run: Mapping[str, Any], options: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return everything that a record depends on as plain data."""
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
    """Return the records of one image (1, channels, H, W), for methods and, if it is named, for chance."""
    weight = next(model.parameters())
    images = images.to(weight.device, weight.dtype)
    chosen = int(base["class"])
    if settings["target"] == "predicted":
        with torch.no_grad():
            chosen = int(model(images).argmax(1))
    base = {**base, "target": chosen}
    maps: dict[str, Tensor] = {}  # (1, gh, gw) each
    seconds: dict[str, float] = {}
    records: list[Record] = []
    for name in names:
        if name == CHANCE:
            continue
        options = settings["options"].get(name, {})
        began = time.perf_counter()
        try:
            maps[name] = attribute(model, images, chosen, name, **options).patches
        except ExplainError as error:
            if strict or options:  # it was asked for, or asked for so
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
        torch.cat([*maps.values()]) if maps else torch.zeros(1, *model.check(images)),  # any brings the random orders
        chosen,
        baseline=settings["baseline"],
        steps=settings["steps"],
        random=settings["random"],
        seed=zlib.crc32(f"{settings['seed']} {base['image']}".encode(errors="surrogateescape")),
    )
    deletion, insertion = results[0].deletion, results[0].insertion
    base["whole"] = float(deletion.probabilities[0])
    for (name, took), result in zip(seconds.items(), results[: len(seconds)], strict=True):
        numbers = {"deletion": result.deletion.area, "insertion": result.insertion.area, "gain": result.gain}
        numbers |= {"positive": result.positive, "negative": result.negative, "seconds": took}
        records.append({**base, "method": name, **numbers})
    if CHANCE in names:  # both curves have one area, so that the gain is 0
        areas = deletion.random_areas
        chance = {"deletion": deletion.random_area, "insertion": insertion.random_area, "gain": 0.0}
        chance |= {"positive": deletion.random_accuracy, "negative": insertion.random_accuracy}
        chance |= {"low": float(areas.min()), "high": float(areas.max())}
        records.append({**base, "method": CHANCE, **chance, "seconds": None})
    return records
