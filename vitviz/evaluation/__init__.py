"""Evaluate classifiers and explanations: accuracy, faithfulness, sanity checks, localization."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitviz.errors import VitvizError
from vitviz.outputs import SINGLE

if TYPE_CHECKING:
    from vitviz.model.vit import Pretrained, ViT


class EvaluationError(VitvizError):
    """Raised if an evaluation is not possible."""


def check_classifies(model: ViT) -> Pretrained:
    """Return the metadata of a model that chooses one of several named classes.

    Raises:
        EvaluationError: for a model without labels, with several labels per image, or with values (regression).
    """
    about = model.pretrained
    if about is None or not about.labels:
        raise EvaluationError(
            "Expected a classifier with labels, got a model without. Name the classes: load(..., labels=[...])."
        )
    if model.problem_type != SINGLE:
        raise EvaluationError(
            f"Expected a model that chooses one class of several, got one of {model.problem_type}: class folders "
            "do not state its correct output. Explain single photographs."
        )
    return about
