"""Describe what there is to choose from on a page: methods and statistics."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from vitviz.analysis.heads import STATISTICS, Statistic
from vitviz.attribution.inputs import Method
from vitviz.attribution.registry import DEFAULT, METHODS, WITHOUT_CLASS


def choices(
    methods: Collection[str] = tuple(METHODS), statistics: Collection[str] = tuple(STATISTICS)
) -> dict[str, list[Any]]:
    """Return the attribution methods and head statistics of these names, and the methods that a page begins with."""
    return {
        "methods": [_method(method) for method in METHODS.values() if method.name in methods],
        "defaults": [DEFAULT, WITHOUT_CLASS],  # the first that the model can compute
        "statistics": [_statistic(statistic) for statistic in STATISTICS.values() if statistic.name in statistics],
    }


def _method(method: Method) -> dict[str, Any]:
    same = ("name", "title", "paper", "about", "signed", "cost", "slow")
    return {**{name: getattr(method, name) for name in same}, "specific": method.class_specific}


def _statistic(statistic: Statistic) -> dict[str, Any]:
    same = ("name", "title", "unit", "about", "low", "high")
    return {**{name: getattr(statistic, name) for name in same}, "slow": statistic.reads != "rows"}
