"""Measure methods on images: compute a row for each task, image and method, in a file that a later run can continue."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitviz.attribution.registry import score_patches
from vitviz.attribution.targets import ExplainError
from vitviz.evaluation.records import Key, Record, append, gather, key_of, opened, processes, rewrite
from vitviz.model.vit import ViT, eval_mode
from vitviz.progress import bar

CHANCE = "random"
"""Name of the rows of random orders."""

Floats = NDArray[np.float64]
Maps = dict[str, Floats]
"""Patch scores (gh, gw) by method."""


@dataclass(eq=False, kw_only=True)
class Subject:
    """An image and the class to explain; maps are computed on first use and kept.

    Args:
        key: name of the image in its rows.
        model: the model to explain, in eval mode.
        images: (1, channels, H, W) normalised pixels.
        target: index of the explained class.
        evidence: (H, W) bools, the pixels that are known to be the evidence for the class; `None` if unknown.
        kept: whether the evidence was confirmed. If not, no method is measured on this image.
        options: options of methods by name.

    Attributes:
        seconds: computing time of each map so far.
    """

    key: str
    model: ViT
    images: Tensor
    target: int
    evidence: NDArray[np.bool_] | None = None
    kept: bool = True
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    _maps: Maps = field(default_factory=dict)

    def __post_init__(self) -> None:
        weight = next(self.model.parameters())
        self.images = self.images.to(weight.device, weight.dtype)

    def map(self, method: str) -> Floats:
        """Return the map of a method, (gh, gw).

        Raises:
            ExplainError: if the method does not support the model.
        """
        if method not in self._maps:
            began = time.perf_counter()
            self._maps[method] = self.map_of(self.model, method)
            self.seconds[method] = time.perf_counter() - began
        return self._maps[method]

    def map_of(self, model: ViT, method: str, target: int | None = None, **options: Any) -> Floats:
        """Compute the map of any model, target and options for this image, (gh, gw)."""
        options = {**self.options.get(method, {}), **options}
        target = self.target if target is None else target
        scores = score_patches(model, self.images, target, method, **options)[0]
        return np.asarray(scores.double().cpu())  # waits for the device


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A measure of attribution maps, such as the deletion AUC.

    Args:
        task: name of its rows.
        rows: `rows(subject, maps, others)` returns a row for each map and for each name in `others`; the task, the
            image and the target are added later.
        others: names of rows beside those of methods, such as random orders.
        of_methods: whether methods have rows.
    """

    task: str
    rows: Callable[[Subject, Maps, Sequence[str]], Iterable[Record]]
    others: tuple[str, ...] = ()
    of_methods: bool = True

    def names(self, methods: Sequence[str]) -> list[str]:
        """Return the names of all rows of an image."""
        return [*(methods if self.of_methods else ()), *self.others]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Images and the measures to compute for each.

    Args:
        keys: names of the images in their rows.
        subjects: `subjects(keys)` yields the images with these names, in this order.
        measures: the measures.
    """

    keys: Sequence[str]
    subjects: Callable[[Sequence[str]], Iterator[Subject]]
    measures: Sequence[Measure]

    def missing(
        self, key: str, methods: Sequence[str], records: Mapping[Key, Record]
    ) -> list[tuple[Measure, list[str]]]:
        """Return the measures of an image whose rows are not all in `records`, with the names of the missing rows."""
        missing = []
        for measure in self.measures:
            if not records.get((measure.task, key, CHANCE), {}).get("kept", True):
                continue
            if names := [name for name in measure.names(methods) if (measure.task, key, name) not in records]:
                missing.append((measure, names))
        return missing


def run(
    model: ViT,
    stages: Sequence[Stage],
    methods: Sequence[str],
    settings: Mapping[str, Any],
    *,
    out: str | os.PathLike[str] | None,
    strict: bool,
    progress: bool,
) -> dict[Key, Record]:
    """Compute the missing rows of all stages, append each to the file immediately, and return all rows.

    Each image runs separately. Under torchrun, process i % world measures image i of each stage. Finally, all rows are
    gathered, and the first process writes the file.

    Args:
        model: the model, which is in eval mode during the run.
        stages: images and measures.
        methods: names of methods.
        settings: all settings on which the rows depend; the first line of the file.
        out: JSON lines file; `None` for none.
        strict: raise an error if a method does not support the model, instead of writing a row with the reason.
        progress: show progress on standard error.

    Raises:
        EvaluationError: if the file has other settings or another format, or another run writes it.
        WritingError: if the disk is full.
        ExplainError: with `strict`, or for a method with options.
    """
    rank, world = processes()
    with ExitStack() as stack:
        path = None if out is None else Path(out)
        records = {} if path is None else stack.enter_context(opened(path, settings))
        if strict:  # run unsupported methods again, so that they raise their error
            records = {key: record for key, record in records.items() if "refused" not in record}
        own = [stage.keys[rank::world] for stage in stages]
        todo = [
            [key for key in keys if stage.missing(key, methods, records)]
            for stage, keys in zip(stages, own, strict=True)
        ]
        stack.enter_context(eval_mode(model))
        pairs = (
            (stage, each) for stage, keys in zip(stages, todo, strict=True) if keys for each in stage.subjects(keys)
        )
        total = sum(map(len, todo))
        counted = stack.enter_context(bar(total, iterable=pairs, show=progress and rank == 0))
        for stage, subject in counted:
            new = [
                row
                for measure, names in stage.missing(subject.key, methods, records)
                for row in _measured(subject, measure, names, strict)
            ]
            records |= {key_of(row): row for row in new}
            if path is not None:
                append(path, new)
        rows = {
            (measure.task, key, name)
            for stage, keys in zip(stages, own, strict=True)
            for key in keys
            for measure in stage.measures
            for name in measure.names(methods)
        }
        records |= {key_of(row): row for row in gather([records[key] for key in sorted(rows) if key in records])}
        if path is not None and rank == 0:
            rewrite(path, settings, records.values())
    return records


def _measured(subject: Subject, measure: Measure, names: Sequence[str], strict: bool) -> list[Record]:
    """Compute the rows of an image and a measure that have these names."""
    base = {"task": measure.task, "image": subject.key, "target": subject.target}
    maps: Maps = {}
    rows: list[Record] = []
    for name in names:
        if name in measure.others or not subject.kept:
            continue
        try:
            maps[name] = subject.map(name)
        except ExplainError as error:
            if strict or subject.options.get(name):  # the method was requested by name or has options
                raise
            rows.append({**base, "method": name, "refused": str(error)})
    others = [name for name in names if name in measure.others]
    if maps or others:
        with torch.no_grad():
            rows += [{**base, **row} for row in measure.rows(subject, maps, others)]
    return rows
