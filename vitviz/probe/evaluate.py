"""Which method tells the truth? Faithfulness of every method over a folder of photographs, as one table.

It may be stopped at any time and goes on where it was; torchrun shares the images among processes and machines.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from vitviz.explain.case import Target
from vitviz.explain.methods import METHODS, attribute, check_options, method_named
from vitviz.explain.scores import ExplainError, TokenScores
from vitviz.folders import batches, find_classes, show, spread
from vitviz.model import Pretrained, ViT
from vitviz.probe import ProbeError
from vitviz.probe.faithfulness import RANDOM, Faithfulness, faithfulness
from vitviz.probe.intervene import Drop
from vitviz.probe.records import Journal, Key, Record, known, part, processes, together, write
from vitviz.probe.table import CHANCE, Evaluation, evaluation
from vitviz.weights.checkpoint import fingerprint

Aim = Literal["true", "predicted"]


def evaluate(
    model: ViT,
    folder: str | os.PathLike[str],
    methods: str | Sequence[str] = "all",
    *,
    limit: int | None = None,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    target: Aim = "true",
    baseline: Drop = "remove",
    steps: int | Sequence[float] = 10,
    random: int = RANDOM,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    progress: bool = True,
) -> Evaluation:
    """Faithfulness of methods over a folder of photographs.

    Every image is run by itself, and its random orders depend on its name and the seed alone: neither the other images,
    nor the other methods, nor the number of processes change a result. So a file that was begun may be gone on with
    for more images or more methods too.

    Under torchrun (RANK, WORLD_SIZE) image i belongs to process i % world. Each writes a file of its own beside `out`;
    at the end all results are shared, the first process writes `out`, and every process returns the same.

    Args:
        model: a classifier with `pretrained`. It runs where it is, in eval mode.
        folder: FOLDER/CLASS/image, as for `vitviz.validate`.
        methods: names, or "all"; then those that this model does not admit are left out, and said to be.
        limit: at most so many images, spread evenly over the classes.
        seed: of the random orders.
        out: a file of JSON lines, one for each image and method, written as they come. Results that are there already
            are not made again.
        target: what is explained and scored: the class of the folder, or the one that the model predicts.
        baseline, steps, random: as for `faithfulness`.
        options: of methods, by name: {"rollout": {"fuse": "max"}}.
        progress: write a line that counts up to standard error, when that is a terminal.

    Raises:
        ProbeError: if the model has no classes, or `out` is a file of other settings or of something else.
        FolderError: for a folder without images or with broken ones.
        ExplainError: if there is no such method, or a named one does not admit this model.
    """
    about = _about(model, target, limit)
    names = _names(methods)
    settings = _settings(model, about, seed, target, baseline, steps, random, options or {})
    found = spread(find_classes(Path(folder), about), limit)
    rank, world = processes()
    strict = methods != "all"
    there: dict[Key, Record] = {}
    journal = None
    if out is not None:
        there = known(Path(out), settings)
        journal = Journal(part(Path(out), rank) if world > 1 else Path(out), settings)
    if strict:  # what was left out of all methods was not asked for by name
        there = {key: record for key, record in there.items() if "refused" not in record}
    wanted = [*names, CHANCE]
    keys = [path.relative_to(folder).as_posix() for path, _ in found]  # the same wherever the folder lies
    mine = range(rank, len(found), world)
    todo = [index for index in mine if any((keys[index], name) not in there for name in wanted)]
    job = _Job(model, settings, options or {}, strict)
    made: dict[Key, Record] = {}
    training, began = model.training, time.perf_counter()
    model.eval()
    try:
        for done, batch in enumerate(batches([(found[index][0], index) for index in todo], about.preprocess, 1), 1):
            index = int(batch.classes)
            lacking = [name for name in wanted if (keys[index], name) not in there]
            records = job.image(batch.images, keys[index], found[index][1], lacking)
            made |= {(record["image"], record["method"]): record for record in records}
            if journal is not None:
                journal.add(records)
            if progress and rank == 0:
                left = (time.perf_counter() - began) / done * (len(todo) - done)
                show(f"\r{done:,} of {len(todo):,} images, about {left / 60:.0f} min to go ")
    finally:
        model.train(training)
        if progress and rank == 0 and todo:
            show("\n")
    everything = {**there, **made}
    with together(world) as gather:
        shared = gather([everything[keys[index], name] for index in mine for name in wanted])
        everything |= {(record["image"], record["method"]): record for record in shared}
        if journal is not None and out is not None:
            if rank == 0:
                write(Path(out), settings, everything.values())
            gather([])  # until it is there
            if journal.path != Path(out) and Path(out).exists():  # other machines may have disks of their own
                journal.path.unlink(missing_ok=True)
    return evaluation(keys, names, everything, settings)


class _Job:
    """What is done for every image."""

    def __init__(
        self, model: ViT, settings: Mapping[str, Any], options: Mapping[str, Mapping[str, Any]], strict: bool
    ) -> None:
        self.model, self.settings, self.options, self.strict = model, settings, options, strict
        self.weight = next(model.parameters())

    def image(self, images: Tensor, key: str, truth: int, names: Sequence[str]) -> list[Record]:
        """The results of one image (1, channels, H, W), for methods and, if it is among the names, for chance."""
        images = images.to(self.weight.device, self.weight.dtype)
        chosen = truth
        if self.settings["target"] == "predicted":
            with torch.no_grad():
                chosen = int(self.model(images).argmax(1))
        base: dict[str, Any] = {"image": key, "class": truth, "target": chosen}
        maps: list[TokenScores] = []
        seconds: list[float] = []
        records: list[Record] = []
        for name in names:
            if name == CHANCE:
                continue
            try:
                scores, took = self._map(images, chosen, name)
            except ExplainError as error:
                if self.strict or self.options.get(name):  # it was asked for, or asked for so
                    raise
                records.append({**base, "method": name, "refused": str(error)})
                continue
            maps.append(scores)
            seconds.append(took)
        if maps or CHANCE in names:
            results = self._curves(images, chosen, key, maps)
            for scores, result, took in zip(maps, results, seconds, strict=False):
                records.append({**base, "method": scores.method, **_numbers(result), "seconds": took})
            if CHANCE in names:
                records.append({**base, "method": CHANCE, **_chance(results[0])})
        return records

    def _curves(self, images: Tensor, chosen: int, key: str, maps: list[TokenScores]) -> tuple[Faithfulness, ...]:
        """The curves of each map. Without one there is still chance: any order brings the random ones with it."""
        return faithfulness(
            self.model,
            images,
            maps or torch.zeros(1, *self.model.check(images)),
            Target(torch.tensor([chosen])),
            baseline=self.settings["baseline"],
            steps=self.settings["steps"],
            random=self.settings["random"],
            seed=zlib.crc32(f"{self.settings['seed']} {key}".encode(errors="surrogateescape")),
        )

    def _map(self, images: Tensor, chosen: int, name: str) -> tuple[TokenScores, float]:
        """One method's map, and how long it took."""
        began = time.perf_counter()
        scores = attribute(self.model, images, chosen, name, **self.options.get(name, {}))
        if self.weight.is_cuda:
            torch.cuda.synchronize(self.weight.device)
        return scores, time.perf_counter() - began


def _numbers(result: Faithfulness) -> dict[str, float]:
    """What a line holds of one map."""
    numbers = {"deletion": result.deletion.area, "insertion": result.insertion.area}
    numbers |= {"positive": result.positive, "negative": result.negative, "gain": result.gain}
    return numbers | {"whole": float(result.deletion.probabilities[0])}


def _chance(result: Faithfulness) -> dict[str, float | None]:
    """What a line holds of the random orders: the same for both curves, so that their gain is nothing."""
    deletion, insertion = result.deletion, result.insertion
    low, high = float(deletion.random_areas.min()), float(deletion.random_areas.max())
    numbers = {"deletion": deletion.random_area, "insertion": insertion.random_area, "gain": 0.0}
    numbers |= {"positive": deletion.random_accuracy, "negative": insertion.random_accuracy}
    return {**numbers, "whole": float(deletion.probabilities[0]), "low": low, "high": high, "seconds": None}


def _about(model: ViT, target: str, limit: int | None) -> Pretrained:
    """The model's classes and preprocessing."""
    about = model.pretrained
    if about is None or not about.labels:
        raise ProbeError("Expected a model with a classifier and labels for its classes, got one without.")
    if target not in get_args(Aim):
        raise ProbeError(f"target: expected true (the folder's class) or predicted, got {target!r}.")
    if limit is not None and limit < 1:
        raise ProbeError(f"limit: expected a whole number of at least 1, got {limit}.")
    return about


def _names(methods: str | Sequence[str]) -> list[str]:
    """The methods' names, each once."""
    if methods == "all":
        return list(METHODS)
    names = list(dict.fromkeys([methods] if isinstance(methods, str) else methods))
    for name in names:
        method_named(name)
    return names


def _settings(
    model: ViT,
    about: Pretrained,
    seed: int,
    target: Aim,
    baseline: Drop,
    steps: int | Sequence[float],
    random: int,
    options: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Everything that a result depends on, as plain data."""
    for name, changes in options.items():
        check_options(name, changes)
    settings = {
        "model": about.name,
        "weights": fingerprint(model),
        "preprocess": about.preprocess.to_dict(),
        "target": target,
        "baseline": baseline,
        "steps": steps if isinstance(steps, int) else [float(step) for step in steps],
        "random": random,
        "seed": seed,
        "options": {name: dict(options[name]) for name in sorted(options)},
    }
    try:
        json.dumps(settings)
    except (TypeError, ValueError) as error:
        raise ProbeError(
            f"options: expected numbers, strings, lists and the like, which fit in a file: {error}."
        ) from None
    return settings
