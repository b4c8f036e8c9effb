"""Make tables of cases: every pair of values instead of every combination, and half of them per tier."""

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest


def pairs(*axes: Any) -> list[tuple[Any, ...]]:
    """Return rows with one value of each axis, so that any two values of two axes occur together in a row.

    The rows are few, though not always the minimum, and deterministic: each row is the combination with the most pairs
    that no earlier row contains.

    Args:
        axes: lists of values; with one axis, the rows are its values.
    """
    places = [range(len(axis)) for axis in axes]
    combinations_left = list(product(*places))
    if len(axes) == 1:
        return [(value,) for value in axes[0]]
    missing = {pair for row in combinations_left for pair in _pairs_of(row)}
    rows = []
    while missing:
        best = max(combinations_left, key=lambda row: len(missing & _pairs_of(row)))
        missing -= _pairs_of(best)
        rows.append(tuple(axis[place] for axis, place in zip(axes, best, strict=True)))
    return rows


def alternate(values: Sequence[Any]) -> list[Any]:
    """Return every second value unchanged, and mark the other values for `make test-all`."""
    return [pytest.param(value, marks=pytest.mark.tier("all")) if at % 2 else value for at, value in enumerate(values)]


def _pairs_of(row: tuple[int, ...]) -> set[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the pairs of a row, each value named by its axis and its index."""
    return set(combinations(enumerate(row), 2))
