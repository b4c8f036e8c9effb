"""Tabulate an evaluation: one row per method and one for random orders, best first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vitviz.evaluation import EvaluationError
from vitviz.evaluation.records import Key, Record
from vitviz.evaluation.runs import CHANCE
from vitviz.formatting import counted, markdown_table, text_table
from vitviz.writing import csv_text

REMOVAL = "removal"
"""Task of the rows of deletion and insertion."""
ENOUGH = 30
"""Minimum number of images for naming the best method: the relative uncertainty of a standard error is
1 / sqrt(2 (n - 1)), 71 % for two images and 13 % for thirty."""

MEANS = (
    "**What this table means.** It ranks attribution methods by how fast the probability of the class falls if the "
    "patches with the highest scores are removed first, and how fast it rises if they are shown first. **What it does "
    "not mean.** It does not say whether the model is right for the right reasons, or whether a map helps a person. A "
    "method that is good on average can be wrong for one photograph."
)
COLUMNS = {
    "deletion": "area, lower is better",
    "insertion": "area, higher is better",
    "positive": "accuracy, most relevant removed first, lower is better",
    "negative": "accuracy, least relevant removed first, higher is better",
    "gain": "mean area over random, higher is better",
    "seconds": "of the method, for one image",
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """Results of one method over all images.

    Args:
        method: name of the method, or "random".
        images: number of images.
        means: the mean of each of `COLUMNS`; NaN for the seconds of random orders.
        errors: the standard error of each mean; NaN for a single image.
    """

    method: str
    images: int
    means: Mapping[str, float]
    errors: Mapping[str, float]

    def cell(self, column: str) -> str:
        """Return a mean and its standard error as text."""
        mean, error = self.means[column], self.errors[column]
        if np.isnan(mean):
            return "-"
        if column == "seconds":
            return f"{mean:.2f}"
        return f"{mean:.3f}" if np.isnan(error) else f"{mean:.3f} ± {error:.3f}"


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Results of an evaluation.

    Args:
        rows: one per method and one for random orders, largest gain first.
        images: number of images.
        settings: settings of the run as plain data.
        left_out: methods that do not support this model, and why.
        records: one row per image and method, as in the file.
    """

    rows: tuple[Row, ...]
    images: int
    settings: Mapping[str, Any]
    left_out: Mapping[str, str] = field(default_factory=dict)
    records: tuple[Record, ...] = field(default=(), repr=False)

    def row(self, method: str) -> Row:
        """Return the row of a method.

        Raises:
            EvaluationError: if the method has no row.
        """
        rows = {row.method: row for row in self.rows}
        if method not in rows:
            raise EvaluationError(f"Expected one of the rows {', '.join(rows)}, got {method!r}. Choose one of these.")
        return rows[method]

    def describe(self) -> str:
        """Return the result as a sentence."""
        best, chance = self.rows[0], self.row(CHANCE)
        images = counted(self.images, "image")
        if self.settings.get("target") == "predicted":
            images += ", explained for the class that the model predicts"
        if self.images < ENOUGH:
            return (
                f"On {images}, no method can be named the most faithful: standard errors from fewer than {ENOUGH} "
                "images are too uncertain. Add images."
            )
        if best.method == CHANCE:
            return f"On {images}, no method is better than random orders of the patches."
        sure = best.means["gain"] > 2 * best.errors["gain"]
        return (
            f"On {images}, {best.method} is the most faithful: deletion {best.means['deletion']:.3f} and "
            f"insertion {best.means['insertion']:.3f}, where random orders get {chance.means['deletion']:.3f} for both"
            f"{'' if sure else '; its gain is less than two standard errors, which may be chance'}."
        )

    def markdown(self) -> str:
        """Return what the table means, means and standard errors as a Markdown table, and its columns."""
        notes = (f"- {note}" for note in self._notes())
        return "\n".join([MEANS, "", markdown_table(self._cells()), "", *notes])

    def table(self) -> str:
        """Return the explanation, the table and the description, for a terminal."""
        return explained(MEANS, self._notes(), self._cells(), self.describe())

    def _notes(self) -> list[str]:
        return notes_of(COLUMNS, self.left_out)

    def _cells(self) -> list[list[str]]:
        return [["method", *COLUMNS], *([row.method, *map(row.cell, COLUMNS)] for row in self.rows)]

    def csv(self) -> str:
        """Return the table as CSV, with separate columns for means and standard errors."""
        lines: list[list[Any]] = [
            ["method", "images", *(name for column in COLUMNS for name in (column, f"{column}_error"))]
        ]
        for row in self.rows:
            numbers = (number for column in COLUMNS for number in (row.means[column], row.errors[column]))
            lines.append([row.method, row.images, *("" if np.isnan(number) else number for number in numbers)])
        return csv_text(lines).removesuffix("\n")


def tabulate(
    keys: Sequence[str], names: Sequence[str], records: Mapping[Key, Record], settings: Mapping[str, Any]
) -> Evaluation:
    """Compute the table from the rows of images and methods."""
    left_out: dict[str, str] = {}
    rows = []
    for name in [*names, CHANCE]:
        of_method = [records[REMOVAL, key, name] for key in keys]
        if refused := [record["refused"] for record in of_method if "refused" in record]:
            left_out[name] = refused[0]
            continue
        columns = {column: np.array([record[column] for record in of_method], float) for column in COLUMNS}  # None: NaN
        count = len(of_method)
        errors = {
            column: float(values.std(ddof=1) / count**0.5) if count > 1 else np.nan
            for column, values in columns.items()
        }
        means = {column: float(values.mean()) for column, values in columns.items()}
        rows.append(Row(method=name, images=count, means=means, errors=errors))
    rows.sort(key=lambda row: -row.means["gain"])
    tabulated = tuple(records[REMOVAL, key, row.method] for key in keys for row in rows)
    return Evaluation(rows=tuple(rows), images=len(keys), settings=settings, left_out=left_out, records=tabulated)


def notes_of(columns: Mapping[str, str], left_out: Mapping[str, str]) -> list[str]:
    """Return lines that say what each column of a table means, and which methods or tasks are left out, and why."""
    about = [f"{column}: {meaning}" for column, meaning in columns.items()]
    return [*about, *(f"left out: {name} ({why})" for name, why in left_out.items())]


def explained(means: str, notes: Sequence[str], cells: Sequence[Sequence[str]], summary: str) -> str:
    """Return a table for a terminal, below what it means (Markdown) and its notes, and above its summary."""
    return "\n".join([means.replace("**", ""), "", *notes, "", text_table(cells), "", summary])
