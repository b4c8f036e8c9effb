"""Rank methods from the rows of an arena: scores with bootstrap intervals, a table and a sentence.

Shapes: M methods, n images of a task, R bootstrap samples.
"""

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vitviz.attribution.registry import METHODS
from vitviz.evaluation import EvaluationError
from vitviz.evaluation.records import Key, Record
from vitviz.evaluation.runs import CHANCE, Floats
from vitviz.evaluation.shortcuts import MARKS
from vitviz.evaluation.table import ENOUGH, REMOVAL
from vitviz.evaluation.tasks import BEST, CHECKS, CONSISTENCY, GREEDY, HAND_SET, LOCATED, MOSAICS
from vitviz.formatting import counted, text_table
from vitviz.writing import write

FORMAT = "vitviz arena 1"
RESAMPLES = 2000
"""Number of bootstrap samples."""
LEVEL = (2.5, 97.5)
"""Ends of the intervals, in percent of the bootstrap samples."""
CHEAPER = 1.5
"""Smallest ratio of the costs of two methods for which the sentence calls one of them cheaper."""
LEAST = 3
"""Smallest number of images with which a task counts in the score."""

ENDS = ((BEST, GREEDY), (REMOVAL, CHANCE))  # rows whose areas are 1 and 0 in the part "removal"
PARTS = {
    "located": "mean over mosaics and marks of mass and pointing game: -1 never on the evidence, 0 as much as its "
    "area, 1 always",
    "removal": "mean of deletion and insertion, from random orders (0) to the best orders found by removing greedily "
    "(1, which a map can exceed)",
    "consistency": "order consistency (SaCo), from -1 to 1",
}
"""Parts of the score, and what they mean."""
COLUMNS = {
    "score": "mean of the next three columns, with the interval of 95 % of the bootstrap samples of the images",
    **PARTS,
    **dict.fromkeys((MOSAICS, *MARKS, HAND_SET), ""),
    "weights": "rank correlation with the map of random weights; a method that explains the model is near 0",
    "labels": "rank correlation with the map of a head that was fitted on random labels; near 1 means that the method "
    "does not depend on the class",
    "seeds": "rank correlation of the maps of two seeds; - for methods that draw nothing",
    "passes": "computing time in forward passes",
    "seconds": "computing time for one photograph",
}
MEANS = (
    "**What this table means.** Which method shows best what this model uses, on tasks whose evidence is known and by "
    "removing patches. **What it does not mean.** The evidence of mosaics and marks is known because it was planted: "
    "evidence in plain photographs may be spread differently. A method that is good on average can be wrong for one "
    "photograph, and a small difference between two methods may be chance: compare the intervals."
)


@dataclass(frozen=True)
class Standing:
    """Results of one method.

    Args:
        method: its name.
        numbers: `COLUMNS` that were measured.
        low, high: ends of the interval of the score.
        behind: ends of the interval of the difference between the best score and this one, from the same bootstrap
            samples.
    """

    method: str
    numbers: Mapping[str, float]
    low: float
    high: float
    behind: tuple[float, float]

    @property
    def as_good(self) -> bool:
        """Return whether the interval does not show that the best method is better."""
        return self.behind[0] <= 0


@dataclass(frozen=True, kw_only=True)
class Standings:
    """Ranking of attribution methods for one model.

    Args:
        rows: one per method, best first.
        photographs: number of photographs.
        kept: for each task, the numbers of images with which it was measured, and of those that were made.
        agreement: mean rank correlation (Kendall's tau) of the ranking with those of the bootstrap samples.
        settings: settings of the run as plain data, with the fingerprint of the weights.
        left_out: methods and tasks that are missing, and why.
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
        """Return the result as sentences."""
        best, *others = self.rows
        equal = [row for row in others if row.as_good]
        cost = best.numbers.get("passes", np.nan)
        cheaper = [row for row in equal if cost >= CHEAPER * row.numbers.get("passes", np.inf)]
        text = f"For this model, {best.method}"
        if cheaper:
            row = min(cheaper, key=lambda row: row.numbers["passes"])
            ratio = cost / row.numbers["passes"]
            text += f"; {row.method} is as good within the interval and {ratio:.1f} times cheaper."
        elif equal:
            names = " and ".join(row.method for row in equal)
            text += f"; the interval does not decide between it and {names}."
        else:
            text += "; no other method is as good within the interval."
        few = f" Fewer than {ENOUGH} photographs give rough intervals." if self.photographs < ENOUGH else ""
        return f"{text} ({counted(self.photographs, 'photograph')}.){few}"

    @property
    def columns(self) -> list[str]:
        """Return the columns that have numbers."""
        return [name for name in COLUMNS if any(name in row.numbers for row in self.rows)]

    def markdown(self) -> str:
        """Return what the table means, the table, its columns and the result as Markdown, in four paragraphs."""
        header, *rows = self._cells()
        lines = [f"| {' | '.join(header)} |", f"|---|{'---:|' * len(self.columns)}"]
        lines += [f"| {' | '.join(row)} |" for row in rows]
        about = [f"- {column}: {self._about(column)}" for column in self.columns]
        about += [f"- left out: {name} ({why})" for name, why in self.left_out.items()]
        agreement = f"Kendall's tau of this ranking with those of the bootstrap samples: {self.agreement:.2f}."
        return "\n\n".join([MEANS, "\n".join(lines), "\n".join(about), f"**{self.describe()}** {agreement}"])

    def table(self) -> str:
        """Return the table for a terminal, with what it means above and the result below."""
        left = [f"Left out: {name} ({why})" for name, why in self.left_out.items()]
        return "\n".join([MEANS.replace("**", ""), "", text_table(self._cells()), *left, "", self.describe()])

    def csv(self) -> str:
        """Return the table as CSV."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["method", "low", "high", *self.columns])
        for row in self.rows:
            writer.writerow([row.method, row.low, row.high, *(row.numbers.get(name, "") for name in self.columns)])
        return text.getvalue().removesuffix("\n")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result, without the rows of images, as JSON; beside weights, it names the page's first method."""
        data = {name: value for name, value in asdict(self).items() if name != "records"}
        data = {"format": FORMAT, "method": self.method, "sentence": self.describe(), **data}
        write(Path(path), json.dumps(data, indent=1, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Standings":
        """Read what `save` has written.

        Raises:
            EvaluationError: for another file.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            names = ("photographs", "kept", "agreement", "settings", "left_out")
            rows = (Standing(**{**row, "behind": tuple(row["behind"])}) for row in data["rows"])
            return cls(rows=tuple(rows), **{name: data[name] for name in names})
        except (ValueError, TypeError, KeyError) as error:
            raise EvaluationError(f"Expected a file of an arena, got {str(path)!r}: {error}. Name another.") from None

    def _about(self, column: str) -> str:
        """Return what a column means."""
        if column == HAND_SET:
            return (
                "mass on the evidence of a ViT whose weights are set by hand; it is the same for all models, not ranked"
            )
        if column not in self.kept:
            return COLUMNS[column]
        kept, made = self.kept[column]
        return f"mass, the share of the positive scores on the evidence, which was confirmed in {kept} of {made} images"

    def _cells(self) -> list[list[str]]:
        cells = [[row.method, *(_cell(row, name) for name in self.columns)] for row in self.rows]
        return [["method", *self.columns], *cells]


def _cell(row: Standing, column: str) -> str:
    """Return a number as text."""
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
    """Rank methods from rows.

    Args:
        methods: names of methods.
        images: names of the images of each task.
        records: rows, see `vitviz.evaluation.runs`.
        settings: settings of the run.
        left_out: methods and tasks that were not run, and why.

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
        if task in kept and len(kept[task]) < LEAST:
            left_out[task] = f"the evidence was confirmed in {len(kept[task])} of {len(images[task])} images"
            del kept[task]
    if not ranked:
        raise EvaluationError("Expected a method that supports this model, got none. Choose other methods.")

    def column(task: str, number: str, names: Sequence[str] = ranked) -> Floats:
        """Return numbers of a task, (M, n)."""
        return np.array([[records[task, key, name][number] for key in kept[task]] for name in names], float)

    numbers = {name: _numbers(name, kept, records) for name in ranked}
    parts = _parts(column, kept, np.random.default_rng(settings["seed"]))  # (M, 1 + R) each
    scores = np.mean([*parts.values()], axis=0)  # (M, 1 + R); the first column is the result, the others are samples
    order = np.argsort(-scores[:, 0], kind="stable")
    behind = scores[order[0], 1:] - scores[:, 1:]
    ranking = []
    for index in order:
        own = {"score": scores[index, 0], **{part: values[index, 0] for part, values in parts.items()}}
        low, high = np.percentile(scores[index, 1:], LEVEL)
        first, last = np.percentile(behind[index], LEVEL)
        own = {name: float(value) for name, value in {**own, **numbers[ranked[index]]}.items() if np.isfinite(value)}
        ends = float(low), float(high), (float(first), float(last))
        ranking.append(Standing(ranked[index], own, *ends))
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
    """Return the parts of the score for all images and for bootstrap samples of them: (M, 1 + R) each."""

    def samples(count: int) -> Any:
        """Return indices of all images, then of each bootstrap sample: (1 + R, n)."""
        return np.concatenate([np.arange(count)[None], random.integers(count, size=(RESAMPLES, count))])

    located = []
    for task in (MOSAICS, *MARKS):
        if task in kept:
            drawn = samples(len(kept[task]))
            share = column(task, "mass", [CHANCE])[:, drawn].mean(-1)  # (1, 1 + R)
            values = [column(task, number)[:, drawn].mean(-1) for number in ("mass", "pointing")]  # (M, 1 + R) each
            located += [np.where(value > share, (value - share) / (1 - share), value / share - 1) for value in values]
    parts = {"located": np.mean(located, axis=0)} if located else {}
    drawn = samples(len(kept[REMOVAL]))
    areas = (column(task, "insertion", [name]) - column(task, "deletion", [name]) for task, name in ENDS)  # (1, n) each
    highest, lowest = (values[:, drawn].mean(-1) / 2 for values in areas)  # (1, 1 + R) each
    gain = column(REMOVAL, "gain")[:, drawn].mean(-1)  # (M, 1 + R)
    parts["removal"] = gain / np.maximum(highest - lowest, 1e-6)
    parts["consistency"] = column(CONSISTENCY, "consistency")[:, drawn].mean(-1)
    return parts


def _numbers(name: str, kept: Mapping[str, Sequence[str]], records: Mapping[Key, Record]) -> dict[str, float]:
    """Return the other columns of a method; NaN for those that it does not have."""

    def mean(task: str, number: str) -> float:
        values = [records[task, key, name].get(number) for key in kept.get(task, ())]
        present = [value for value in values if value is not None]
        return float(np.mean(present)) if present else np.nan

    numbers = {task: mean(task, "mass") for task in LOCATED}
    numbers |= {number: mean(CHECKS, number) for number in ("weights", "labels", "seeds")}
    cost = METHODS[name].cost if name in METHODS else None
    return numbers | {"passes": np.nan if cost is None else cost, "seconds": mean(REMOVAL, "seconds")}
