"""The table of an evaluation: a row for each method and one for chance, the best first."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vitviz.probe import ProbeError
from vitviz.probe.records import Key, Record

CHANCE = "random"
"""The row of random orders."""

COLUMNS = ("deletion", "insertion", "positive", "negative", "gain", "seconds")
ABOUT = {
    "deletion": "area, lower is better",
    "insertion": "area, higher is better",
    "positive": "accuracy, most relevant removed first, lower is better",
    "negative": "accuracy, least relevant removed first, higher is better",
    "gain": "mean area over random, higher is better",
    "seconds": "of the method, for one image",
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method over all images.

    Args:
        method: its name, or "random".
        images: how many.
        means: the mean of each of `COLUMNS`; NaN for the seconds of random orders.
        errors: the standard error of each mean; NaN for a single image.
    """

    method: str
    images: int
    means: Mapping[str, float]
    errors: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What an evaluation found.

    Args:
        rows: one a method and one of random orders, the largest gain first.
        images: how many images.
        settings: what it ran with, as plain data.
        left_out: methods that this model does not admit, and why.
        records: a result for each image and method, as in the file.
    """

    rows: tuple[Row, ...]
    images: int
    settings: Mapping[str, Any]
    left_out: Mapping[str, str] = field(default_factory=dict)
    records: tuple[Record, ...] = field(default=(), repr=False)

    def row(self, method: str) -> Row:
        """The row of a method.

        Raises:
            ProbeError: if there is none.
        """
        for row in self.rows:
            if row.method == method:
                return row
        raise ProbeError(f"Expected one of the rows {', '.join(row.method for row in self.rows)}; got {method!r}.")

    def words(self) -> str:
        """What the table says, in a sentence."""
        best, chance = self.rows[0], self.row(CHANCE)
        if best.method == CHANCE:
            return f"Over {self._many()} no method is better than random orders of the patches."
        sure = best.means["gain"] > 2 * best.errors["gain"]
        return (
            f"Over {self._many()} {best.method} is the most faithful: deletion {best.means['deletion']:.3f} and "
            f"insertion {best.means['insertion']:.3f}, where random orders get {chance.means['deletion']:.3f} for both"
            f"{'' if sure else '; its gain is less than two standard errors, which may be chance'}."
        )

    def markdown(self) -> str:
        """The table for a document: means and standard errors."""
        lines = [f"| method | {' | '.join(COLUMNS)} |", f"|---|{'---:|' * len(COLUMNS)}"]
        lines += [f"| {' | '.join([row.method, *(_both(row, column) for column in COLUMNS)])} |" for row in self.rows]
        lines += ["", *(f"- {column}: {about}" for column, about in ABOUT.items())]
        lines += [f"- not for this model: {name} ({why})" for name, why in self.left_out.items()]
        return "\n".join(lines)

    def table(self) -> str:
        """The table for a terminal."""
        cells = [["method", *COLUMNS], *([row.method, *(_both(row, one) for one in COLUMNS)] for row in self.rows)]
        widths = [max(len(line[index]) for line in cells) for index in range(len(cells[0]))]
        rows = [
            "  ".join(text.ljust(width) if not index else text.rjust(width)
                      for index, (text, width) in enumerate(zip(line, widths, strict=True)))
            for line in cells
        ]  # fmt: skip
        left = [f"Not for this model: {name} ({why})" for name, why in self.left_out.items()]
        return "\n".join([self.words(), "", *rows, *left])

    def csv(self) -> str:
        """The table for a program: a mean and a standard error in columns of their own."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["method", "images", *(name for column in COLUMNS for name in (column, f"{column}_error"))])
        for row in self.rows:
            numbers = (number for column in COLUMNS for number in (row.means[column], row.errors[column]))
            writer.writerow([row.method, row.images, *("" if np.isnan(number) else number for number in numbers)])
        return text.getvalue().removesuffix("\n")

    def _many(self) -> str:
        return "1 image" if self.images == 1 else f"{self.images:,} images"


def evaluation(
    keys: Sequence[str], names: Sequence[str], records: Mapping[Key, Record], settings: Mapping[str, Any]
) -> Evaluation:
    """The table of some images and methods, from the records of each."""
    left_out: dict[str, str] = {}
    rows = []
    for name in [*names, CHANCE]:
        of = [records[key, name] for key in keys]
        if refused := [record["refused"] for record in of if "refused" in record]:
            left_out[name] = refused[0]
        else:
            rows.append(_row(name, of))
    rows.sort(key=lambda row: -row.means["gain"])
    kept = tuple(records[key, row.method] for key in keys for row in rows)
    return Evaluation(rows=tuple(rows), images=len(keys), settings=settings, left_out=left_out, records=kept)


def _row(name: str, records: Sequence[Record]) -> Row:
    """Means and standard errors of one method."""
    means, errors = {}, {}
    for column in COLUMNS:
        numbers = np.array([record[column] for record in records], np.float64)  # None becomes NaN
        means[column] = float(numbers.mean())
        errors[column] = float(numbers.std(ddof=1) / len(numbers) ** 0.5) if len(numbers) > 1 else float("nan")
    return Row(method=name, images=len(records), means=means, errors=errors)


def _both(row: Row, column: str) -> str:
    """A mean and its standard error, as people read them."""
    mean, error = row.means[column], row.errors[column]
    if np.isnan(mean):
        return "-"
    if column == "seconds":
        return f"{mean:.2f}"
    return f"{mean:.3f}" if np.isnan(error) else f"{mean:.3f} ± {error:.3f}"
