"""Describe what there is to choose from on a page: methods and statistics."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from vitviz.analysis.heads import STATISTICS
from vitviz.attribution.registry import METHODS

SLOW = 20.0  # forward passes; methods that take more give way to all others


def methods(names: Collection[str] = tuple(METHODS)) -> list[dict[str, Any]]:
    """Return the attribution methods of these names for the page."""
    same = ("name", "title", "paper", "about", "signed", "cost")
    chosen = [one for one in METHODS.values() if one.name in names]
    return [
        {**{name: getattr(one, name) for name in same}, "specific": one.class_specific, "slow": one.cost > SLOW}
        for one in chosen
    ]


def statistics(names: Collection[str] = tuple(STATISTICS)) -> list[dict[str, Any]]:
    """Return the statistics of heads of these names for the page."""
    same = ("name", "title", "unit", "about", "low", "high")
    chosen = [one for one in STATISTICS.values() if one.name in names]
    return [{**{name: getattr(one, name) for name in same}, "slow": one.reads != "rows"} for one in chosen]
