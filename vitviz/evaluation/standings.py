"""Rank methods from the rows of an arena: scores with bootstrap confidence intervals, a table and a summary.

Shapes: M methods, n images of a task, R bootstrap samples.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vitviz.analysis.bootstrap import interval, resample
from vitviz.attribution.registry import METHODS
from vitviz.evaluation import EvaluationError
from vitviz.evaluation.records import Key, Record
from vitviz.evaluation.runs import CHANCE, Floats
from vitviz.evaluation.shortcuts import MARKS
from vitviz.evaluation.table import ENOUGH, REMOVAL, explained, notes_of
from vitviz.evaluation.tasks import BEST, CHECKS, CONSISTENCY, GREEDY, HAND_SET, LOCATED, MOSAICS
from vitviz.formatting import counted, markdown_table
from vitviz.writing import csv_text, write

FORMAT = "vitviz arena 1"
FASTER = 1.5
"""Minimum ratio of the computing times of two methods for which the summary calls one of them faster."""
MIN_COMPARED = 6
"""Minimum number of photographs for naming the best method: with five, one of two equally good methods is better on all
photographs in 2 x 0.5^5 = 6 % of the cases."""
MIN_IMAGES = 3
"""Minimum number of images for a task to count in the score."""

REFERENCES = ((BEST, GREEDY), (REMOVAL, CHANCE))  # tasks and names of the rows that are 1 and 0 in the part "removal"
PARTS = {
    "located": "localization: mean of mass and pointing game over mosaics and marks; -1: never on the evidence, 0: as "
    "often as by chance, 1: always",
    "removal": "mean of deletion and insertion AUC; 0: random orders, 1: the best orders of a greedy search, which a "
    "map can exceed",
    "consistency": "order consistency (SaCo), from -1 to 1",
}
"""Parts of the score, with their explanations."""
COLUMNS = {
    "score": "mean of the next three columns, with the 95 % bootstrap confidence interval over the images",
    **PARTS,
    **dict.fromkeys((MOSAICS, *MARKS, HAND_SET), ""),
    "weights": "sanity check: rank correlation with the map for random weights; near 0 for a method that depends on "
    "the weights",
    "labels": "sanity check: rank correlation with the map for a linear probe that was fitted to random labels; near 1 "
    "for a method that does not depend on the class",
    "seeds": "rank correlation of the maps for two seeds; - for methods without random numbers",
    "passes": "computing time in forward passes",
    "seconds": "computing time for one photograph",
}
MEANS = (
    "**What this table means.** It ranks attribution methods by how well they locate known evidence, and how "
    "well they order patches for deletion and insertion. **What it does not mean.** The evidence in mosaics and marks "
    "is artificial; in ordinary photographs, it may be distributed differently. A method that is good on average can "
    "be wrong for one photograph. A small difference between two methods may be due to chance: compare the intervals."
)


@dataclass(frozen=True)
class Standing:
    """Results of one method.

    Args:
        method: its name.
        numbers: values of the `COLUMNS` that were measured.
        low, high: 95 % bootstrap confidence interval of the score.
        behind: 95 % bootstrap confidence interval of the best score minus this one, from the same samples.
    """

    method: str
    numbers: Mapping[str, float]
    low: float
    high: float
    behind: tuple[float, float]

    @property
    def as_good(self) -> bool:
        """Return whether the score is not significantly lower than the best one: whether `behind` includes 0."""
        return self.behind[0] <= 0


@dataclass(frozen=True, kw_only=True)
class Standings:
    """Ranking of attribution methods for one model.

    Args:
        rows: one per method, best first.
        photographs: number of photographs.
        kept: (images with confirmed evidence, all images) of each localization task.
        agreement: mean rank correlation (Kendall's tau) between the ranking and the rankings of bootstrap samples.
        settings: settings of the run as plain data, with the fingerprint of the weights.
        left_out: reason for each method or task that is missing.
        records: the rows.
    """

    rows: tuple[Standing, ...]
    photographs: int
    kept: Mapping[str, tuple[int, int]]
    agreement: float
    settings: Mapping[str, Any]
    left_out: Mapping[str, str]
    records: tuple[Record, ...] = field(default=(), repr=False)

    @property
    def method(self) -> str:
        """Return the method with the highest score."""
        return self.rows[0].method

    def describe(self) -> str:
        """Return a summary: the best method, and which others are not significantly worse."""
        best, *others = self.rows
        photographs = counted(self.photographs, "photograph")
        if self.photographs < MIN_COMPARED:
            return f"On {photographs}, no method can be named the best. Take at least {MIN_COMPARED}."
        equal = [row for row in others if row.as_good]
        cost = best.numbers.get("passes", np.nan)
        faster = [row for row in equal if cost >= FASTER * row.numbers.get("passes", np.inf)]
        text = f"Best method for this model on {photographs}: {best.method}."
        if faster:
            row = min(faster, key=lambda row: row.numbers["passes"])
            ratio = cost / row.numbers["passes"]
            text += f" {row.method} is not significantly worse and {ratio:.1f} times faster."
        elif equal:
            text += f" Not significantly worse: {', '.join(row.method for row in equal)}."
        elif others:
            text += " All other methods are significantly worse."
        few = (
            f" Confidence intervals of fewer than {ENOUGH} photographs are unreliable."
            if self.photographs < ENOUGH
            else ""
        )
        return f"{text}{few}"

    @property
    def columns(self) -> list[str]:
        """Return the names of the columns that have values."""
        return [name for name in COLUMNS if any(name in row.numbers for row in self.rows)]

    def markdown(self) -> str:
        """Return four paragraphs of Markdown: what the table means, the table, its columns, and the summary."""
        notes = "\n".join(f"- {note}" for note in self._notes())
        agreement = f"Mean Kendall's tau between this ranking and those of bootstrap samples: {self.agreement:.2f}."
        return "\n\n".join([MEANS, markdown_table(self._cells()), notes, f"**{self.describe()}** {agreement}"])

    def table(self) -> str:
        """Return the explanation, the table and the summary, for a terminal."""
        return explained(MEANS, self._notes(), self._cells(), self.describe())

    def _notes(self) -> list[str]:
        return notes_of({column: self._about(column) for column in self.columns}, self.left_out)

    def csv(self) -> str:
        """Return the table as CSV."""
        rows = (
            [row.method, row.low, row.high, *(row.numbers.get(name, "") for name in self.columns)] for row in self.rows
        )
        return csv_text([["method", "low", "high", *self.columns], *rows]).removesuffix("\n")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result without its records as JSON; in a model's folder, it sets the model's default method."""
        data = {name: value for name, value in asdict(self).items() if name != "records"}
        data = {"format": FORMAT, "method": self.method, "sentence": self.describe(), **data}
        write(Path(path), json.dumps(data, indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Standings":
        """Load a file of `save`; the result has no records.

        Raises:
            EvaluationError: for another file.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            names = ("photographs", "kept", "agreement", "settings", "left_out")
            rows = (Standing(**{**row, "behind": tuple(row["behind"])}) for row in data["rows"])
            return cls(rows=tuple(rows), **{name: data[name] for name in names})
        except (ValueError, TypeError, KeyError) as error:
            raise EvaluationError(
                f"Expected a file of `vitviz arena`, got {str(path)!r}: {error}. Name another."
            ) from None

    def _about(self, column: str) -> str:
        """Return what a column means."""
        if column == HAND_SET:
            return "mass on the evidence of a ViT whose weights are set by hand; the same for all models, not ranked"
        if column not in self.kept:
            return COLUMNS[column]
        kept, made = self.kept[column]
        return f"mass, the share of the positive scores on the evidence; {kept} of {made} images had confirmed evidence"

    def _cells(self) -> list[list[str]]:
        cells = [[row.method, *(_cell(row, name) for name in self.columns)] for row in self.rows]
        return [["method", *self.columns], *cells]


def _cell(row: Standing, column: str) -> str:
    """Return the value of a column as text."""
    if column not in row.numbers:
        return "-"
    value = row.numbers[column]
    if column == "score":
        return f"{value:.3f} ({row.low:.3f} to {row.high:.3f})"
    return f"{value:.1f}" if column == "passes" else f"{value:.2f}"


def standings(
    methods: Sequence[str],
    images: Mapping[str, Sequence[str]],
    records: Mapping[Key, Record],
    settings: Mapping[str, Any],
    left_out: Mapping[str, str],
) -> Standings:
    """Rank methods by their records.

    Args:
        methods: names of methods.
        images: keys of the images of each task.
        records: a row for each task, image and method, see `vitviz.evaluation.runs`.
        settings: settings of the run.
        left_out: reason for each method or task that was not run.

    Raises:
        EvaluationError: if no method was measured.
    """
    left_out = dict(left_out)
    kept = {
        task: [key for key in keys if records.get((task, key, CHANCE), {}).get("kept", True)]
        for task, keys in images.items()
    }
    ranked = []
    for name in methods:
        rows = [records[task, key, name] for task, keys in kept.items() if task != BEST for key in keys]
        if refused := [row["refused"] for row in rows if "refused" in row]:
            left_out[name] = refused[0]
        else:
            ranked.append(name)
    for task in (MOSAICS, *MARKS):
        if task in kept and len(kept[task]) < MIN_IMAGES:
            left_out[task] = f"only {len(kept[task])} of {len(images[task])} images had confirmed evidence"
            del kept[task]
    if not ranked:
        raise EvaluationError("Expected a method that supports this model, got none. Choose other methods.")

    def column(task: str, number: str, names: Sequence[str] = ranked) -> Floats:
        """Return one number of each image and method of a task, (M, n)."""
        return np.array([[records[task, key, name][number] for key in kept[task]] for name in names], float)

    numbers = {name: _numbers(name, kept, records) for name in ranked}
    parts = _parts(column, kept, np.random.default_rng(settings["seed"]))  # (M, 1 + R) each
    scores = np.mean([*parts.values()], axis=0)  # (M, 1 + R): all images, then bootstrap samples
    order = np.argsort(-scores[:, 0], kind="stable")
    behind = scores[order[0], 1:] - scores[:, 1:]
    ranking = []
    for index in order:
        own = {"score": scores[index, 0], **{part: values[index, 0] for part, values in parts.items()}}
        low, high = interval(scores[index, 1:])
        own = {name: float(value) for name, value in {**own, **numbers[ranked[index]]}.items() if np.isfinite(value)}
        ranking.append(Standing(ranked[index], own, low, high, interval(behind[index])))
    return Standings(
        rows=tuple(ranking),
        photographs=len(kept[REMOVAL]),
        kept={task: (len(kept[task]), len(images[task])) for task in LOCATED if task in kept},
        agreement=float(np.mean([kendall(scores[:, 0], sample) for sample in scores[:, 1:].T])),
        settings=settings,
        left_out=left_out,
        records=tuple(records.values()),
    )


def kendall(first: Floats, second: Floats) -> float:
    """Return Kendall's rank correlation (tau-a) of two sequences of numbers; 1 for a single number."""
    above, below = np.triu_indices(len(first), k=1)
    agree = np.sign(first[above] - first[below]) * np.sign(second[above] - second[below])
    return float(agree.mean()) if len(agree) else 1.0


def _parts(column: Any, kept: Mapping[str, Sequence[str]], random: np.random.Generator) -> dict[str, Floats]:
    """Return the parts of the score, (M, 1 + R) each: for all images, then for each bootstrap sample of them."""

    def samples(count: int) -> Any:
        """Return indices of all images, then of each bootstrap sample: (1 + R, n)."""
        return np.concatenate([np.arange(count)[None], resample(count, random)])

    located = []
    for task in (MOSAICS, *MARKS):
        if task in kept:
            drawn = samples(len(kept[task]))
            share = column(task, "mass", [CHANCE])[:, drawn].mean(-1)  # (1, 1 + R)
            values = [column(task, number)[:, drawn].mean(-1) for number in ("mass", "pointing")]  # (M, 1 + R) each
            located += [np.where(value > share, (value - share) / (1 - share), value / share - 1) for value in values]
    parts = {"located": np.mean(located, axis=0)} if located else {}
    drawn = samples(len(kept[REMOVAL]))
    areas = (
        column(task, "insertion", [name]) - column(task, "deletion", [name]) for task, name in REFERENCES
    )  # (1, n) each
    highest, lowest = (values[:, drawn].mean(-1) / 2 for values in areas)  # (1, 1 + R) each
    gain = column(REMOVAL, "gain")[:, drawn].mean(-1)  # (M, 1 + R)
    parts["removal"] = gain / np.maximum(highest - lowest, 1e-6)
    parts["consistency"] = column(CONSISTENCY, "consistency")[:, drawn].mean(-1)
    return parts


def _numbers(name: str, kept: Mapping[str, Sequence[str]], records: Mapping[Key, Record]) -> dict[str, float]:
    """Return the columns of a method that are not parts of the score; NaN for missing ones."""

    def mean(task: str, number: str) -> float:
        values = [records[task, key, name].get(number) for key in kept.get(task, ())]
        present = [value for value in values if value is not None]
        return float(np.mean(present)) if present else np.nan

    numbers = {task: mean(task, "mass") for task in LOCATED}
    numbers |= {number: mean(CHECKS, number) for number in ("weights", "labels", "seeds")}
    cost = METHODS[name].cost if name in METHODS else None
    return numbers | {"passes": np.nan if cost is None else cost, "seconds": mean(REMOVAL, "seconds")}
