"""Interpret the outputs of a classifier: one class of several, several labels at once, or values (regression)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # `vitviz --help` reads the names below without importing PyTorch
    from torch import Tensor

ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]
"""Problem types, with the names that transformers uses."""

SINGLE: ProblemType = "single_label_classification"
SEVERAL: ProblemType = "multi_label_classification"
REGRESSION: ProblemType = "regression"


def activate(logits: Tensor, problem_type: ProblemType) -> Tensor:
    """Convert raw outputs (..., C): softmax, a sigmoid per label, or unchanged values."""
    if problem_type == SINGLE:
        return logits.softmax(-1)
    return logits.sigmoid() if problem_type == SEVERAL else logits


def rank(logits: Tensor, problem_type: ProblemType) -> Tensor:
    """Return output indices by decreasing probability, or in order for values: (..., C) -> (..., C)."""
    if problem_type == REGRESSION:
        return logits.new_ones(logits.shape).cumsum(-1).long() - 1
    return logits.argsort(dim=-1, descending=True, stable=True)
