"""Rank attribution methods for one model, by localization of known evidence and by deletion and insertion."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitviz.analysis.interventions import Drop
from vitviz.attribution.inputs import SLOW
from vitviz.attribution.registry import METHODS, methods_named
from vitviz.evaluation import EvaluationError
from vitviz.evaluation.faithfulness import RANDOM, SEED, STEPS
from vitviz.evaluation.photographs import Aim, Photographs, open_photographs, predicted
from vitviz.evaluation.runs import Stage, run
from vitviz.evaluation.shortcuts import MARKS
from vitviz.evaluation.standings import Standings, standings
from vitviz.evaluation.tasks import (
    CHECKS,
    MOSAICS,
    LinearProbes,
    hand_set_pictures,
    marked_photographs,
    mosaics,
    plain_photographs,
)
from vitviz.fields import check_arguments
from vitviz.model.vit import ViT
from vitviz.weights.captured_vit import CapturedViT

LIMIT = 30
"""Default number of photographs; each kind of mark is tested on half as many."""
NO_FEATURES = "a linear probe needs features, which are unknown for captured modules"
TOO_SLOW = "it takes more than {0:.0f} forward passes; name it among the methods to include it"


@check_arguments(EvaluationError)
def arena(
    model: ViT,
    folder: str | os.PathLike[str],
    methods: str | Sequence[str] | None = None,
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
    """Measure methods on images with known evidence and on plain photographs, and rank them.

    | task | what is measured |
    |---|---|
    | mosaics | mass and pointing game on the only quarter that shows the class; three quarters show another class |
    | tag, border, color, background | the same on an artificial shortcut, for a linear probe that detects it |
    | hand-set | the same on the evidence of a small ViT with weights set by hand; equal for all models, not ranked |
    | removal | deletion and insertion AUC, from random orders (0) to the best orders of a greedy search (1) |
    | consistency | whether patches with higher scores matter more (SaCo) |
    | checks | sanity checks with random weights and random labels (Adebayo et al. 2018); not ranked |

    Mass is the share of the positive scores on the evidence. Each row is written to `out` as soon as it is computed.
    `evaluate` can continue the same file.

    Args:
        model: a classifier with `pretrained`; runs on its device in eval mode.
        folder: FOLDER/CLASS/image, or a folder of photographs without labels.
        methods: names; by default all that support the model and are not slow (`Method.slow`).
        limit: number of photographs, spread evenly over the classes.
        seed: seed of all random choices.
        out: JSON lines file of the rows, see `evaluate`.
        target: the class to explain: that of the folder ("true") or the predicted one ("predicted").
        baseline, steps, random: as for `faithfulness`.
        options: options of methods by name.
        progress: show progress on standard error.

    Raises:
        EvaluationError, WritingError, DataError, ExplainError: as for `evaluate`.
    """
    strict = methods is not None
    slow = [name for name, method in METHODS.items() if method.slow]
    names = methods_named([name for name in METHODS if name not in slow] if methods is None else methods)
    all_photos = open_photographs(model, Path(folder), target, baseline, options, steps=steps, random=random, seed=seed)
    photos = all_photos.first(limit)
    stages, left_out = _stages(all_photos, photos, limit)
    if not strict:
        left_out |= dict.fromkeys(slow, TOO_SLOW.format(SLOW))
    records = run(model, stages, names, photos.settings, out=out, strict=strict, progress=progress)
    images = {measure.task: [*stage.keys] for stage in stages for measure in stage.measures}
    return standings(names, images, records, photos.settings, left_out)


def _stages(all_photos: Photographs, photos: Photographs, limit: int) -> tuple[list[Stage], dict[str, str]]:
    """Return the stages of a run, and the reason for each task that is left out."""
    model, left_out, probes = photos.model, dict[str, str](), None
    if isinstance(model, CapturedViT):
        left_out = dict.fromkeys((*MARKS, CHECKS), NO_FEATURES)
    else:
        try:
            probes = LinearProbes(all_photos)
        except EvaluationError as error:
            left_out = dict.fromkeys((*MARKS, CHECKS), str(error))
    stages = [plain_photographs(photos, probes)]
    labels = [label for _, label in photos.files]
    if photos.target == "predicted":
        labels = [predicted(model, images) for images, _ in photos.pixels(photos.keys)]
    try:
        stages.append(mosaics(photos, labels))
    except EvaluationError as error:
        left_out[MOSAICS] = str(error)
    if probes is not None:
        stages += [marked_photographs(probes, kind, -(-limit // 2)) for kind in MARKS]
    return [*stages, hand_set_pictures(photos)], left_out
