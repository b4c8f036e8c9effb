"""Describe methods, statistics, targets and questions for a page."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from vitviz.analysis import pca_basis
from vitviz.analysis.head_statistics import STATISTICS
from vitviz.analysis.pairs import DESCRIPTOR
from vitviz.analysis.statistic import Statistic
from vitviz.analysis.tokens import PERCENTILES
from vitviz.attribution.inputs import Method
from vitviz.attribution.registry import METHODS
from vitviz.attribution.target_specs import SPELLINGS
from vitviz.web.questions import QUESTIONS, Question


def choices(
    methods: Collection[str] = METHODS,
    statistics: Collection[str] = STATISTICS,
    targets: Collection[str] = tuple(SPELLINGS),
    questions: Collection[str] = QUESTIONS,
) -> dict[str, Any]:
    """Return the named methods, statistics, targets and questions for the page."""
    return {
        "methods": [_method(method) for method in METHODS.values() if method.name in methods],
        "statistics": [_statistic(statistic) for statistic in STATISTICS.values() if statistic.name in statistics],
        "targets": list(targets),  # words before the colon of a spelling
        "similarity": {
            "descriptor": DESCRIPTOR,
            "basis": pca_basis.DESCRIPTOR,
            "percentiles": PERCENTILES,
        },
        "questions": {name: _question(question) for name in questions if (question := QUESTIONS[name]).page},
    }


def in_browser(table: Mapping[str, Method | Statistic | Question]) -> tuple[str, ...]:
    """Return the names of the methods, statistics or questions that static sites support."""
    return tuple(name for name, declared in table.items() if not declared.not_in_browser)


def _method(method: Method) -> dict[str, Any]:
    same = ("name", "title", "paper", "about", "signed", "cost", "slow")
    more = {
        "specific": method.class_specific,
        "captured": not method.not_captured,
    }
    return {**{name: getattr(method, name) for name in same}, **more}


def _statistic(statistic: Statistic) -> dict[str, Any]:
    same = ("name", "title", "unit", "about", "low", "high")
    return {
        **{name: getattr(statistic, name) for name in same},
        "slow": statistic.reads != "rows",
        "specific": statistic.reads == "model",
    }


def _question(question: Question) -> dict[str, Any]:
    return {"waiting": question.waiting, "settle": question.settle}
