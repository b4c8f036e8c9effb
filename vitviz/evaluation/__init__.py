"""Evaluation of classifiers and explanations: accuracy, faithfulness, sanity checks, localization."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitviz.errors import VitvizError
from vitviz.outputs import SINGLE

if TYPE_CHECKING:
    from vitviz.model.vit import Pretrained, ViT


class EvaluationError(VitvizError):
    """Evaluation that cannot be made; the text says what was expected, what came and what to do."""


def check_classifies(model: ViT) -> Pretrained:
    """Return what travels with a model whose outputs are named classes, of which each photograph has one.

    Raises:
        EvaluationError: for a model without labels, of several labels at once, or of values (regression).
    """
    about = model.pretrained
    if about is None or not about.labels:
        raise EvaluationError(
            "Expected a classifier with labels, got a model without. Name them: load(..., labels=[...])."
        )
    if model.problem_type != SINGLE:
        raise EvaluationError(
            f"Expected a model that chooses one class of several, got one of {model.problem_type}: a folder a class "
            "does not say what is right for it. Explain single photographs."
        )
    return about
