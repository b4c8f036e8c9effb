"""Rank attribution methods for one model: on tasks whose evidence is known, and by removing patches of photographs."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitviz.analysis.interventions import Drop
from vitviz.attribution.inputs import SLOW
from vitviz.attribution.registry import METHODS, method_named
from vitviz.evaluation import EvaluationError
from vitviz.evaluation.faithfulness import RANDOM, SEED, STEPS
from vitviz.evaluation.photographs import Aim, Photographs, open_photographs, predicted
from vitviz.evaluation.runs import Stage, run
from vitviz.evaluation.shortcuts import MARKS
from vitviz.evaluation.standings import Standings, standings
from vitviz.evaluation.tasks import CHECKS, MOSAICS, Heads, drawn, mosaics, photographs, planted
from vitviz.model.vit import ViT
from vitviz.weights.captured_vit import CapturedViT

LIMIT = 30
"""Default number of photographs; half as many have each mark."""
NO_FEATURES = "the features of a module that runs as it is are unknown, so no head can be fitted on them"
TOO_SLOW = "it takes more than {0:.0f} forward passes; name it to include it"


def arena(
    model: ViT,
    folder: str | os.PathLike[str],
    methods: Sequence[str] | None = None,
    *,
    limit: int = LIMIT,
    seed: int = SEED,
    out: str | os.PathLike[str] | None = None,
    target: Aim | None = None,
    baseline: Drop | None = None,
    steps: int | Sequence[float] = STEPS,
    random: int = RANDOM,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    progress: bool = True,
) -> Standings:
    """Measure methods on tasks with known evidence and on photographs, and rank them.

    | task | what is measured |
    |---|---|
    | mosaics | mass on the quarter with the only photograph of the class; another class fills the other quarters |
    | tag, border, color, background | mass on a mark, for a linear head on the model's features that finds it |
    | hand-set | mass on the evidence of a small ViT whose weights are set by hand; the same for all models |
    | removal | deletion and insertion, between random orders and the best found by removing greedily |
    | consistency | whether patches with higher scores matter more (SaCo) |
    | checks | whether maps change with random weights and with random labels; reported, not ranked |

    The rows have the format of `evaluate`, which continues them, and each is written as soon as it is computed.

    Args:
        model: a classifier with `pretrained`; runs on its device in eval mode.
        folder: FOLDER/CLASS/image, or a folder of photographs without labels.
        methods: names; by default all that are not slow (`Method.slow`), without those that do not support the model.
        limit: number of photographs, spread evenly over the classes.
        seed: seed of everything that is drawn.
        out: JSON lines file of the rows, see `evaluate`.
        target: the explained class of photographs: that of the folder ("true") or the predicted one.
        baseline, steps, random: as for `faithfulness`.
        options: options of methods by name.
        progress: show progress on standard error.

    Raises:
        EvaluationError, WritingError, DataError, ExplainError: as for `evaluate`.
    """
    strict = methods is not None
    names = (
        [name for name, method in METHODS.items() if not method.slow] if methods is None else [*dict.fromkeys(methods)]
    )
    for name in names:
        method_named(name)
    settings = {"steps": steps if isinstance(steps, int) else [float(step) for step in steps], "random": random}
    every = open_photographs(model, Path(folder), target, baseline, options, **settings, seed=seed)
    photos = every.first(limit)
    stages, left_out = _stages(every, photos, limit)
    if not strict:
        left_out |= {name: TOO_SLOW.format(SLOW) for name, method in METHODS.items() if method.slow}
    records = run(model, stages, names, photos.settings, out=out, strict=strict, progress=progress)
    made = {measure.task: [*stage.keys] for stage in stages for measure in stage.measures}
    return standings(names, made, records, photos.settings, left_out)


def _stages(every: Photographs, photos: Photographs, limit: int) -> tuple[list[Stage], dict[str, str]]:
    """Return the stages of a run, and why tasks are left out."""
    model, left_out, heads = photos.model, dict[str, str](), None
    if isinstance(model, CapturedViT):
        left_out = dict.fromkeys((*MARKS, CHECKS), NO_FEATURES)
    else:
        try:
            heads = Heads(every)
        except EvaluationError as error:
            left_out = dict.fromkeys((*MARKS, CHECKS), str(error))
    stages = [photographs(photos, heads)]
    labels = [label for _, label in photos.files]
    if photos.target == "predicted":
        labels = [predicted(model, images) for images, _ in photos.pixels(photos.keys)]
    try:
        stages.append(mosaics(photos, labels))
    except EvaluationError as error:
        left_out[MOSAICS] = str(error)
    if heads is not None:
        stages += [planted(heads, kind, -(-limit // 2)) for kind in MARKS]
    return [*stages, drawn(photos)], left_out
