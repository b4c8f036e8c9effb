"""Summarise an audit: a row per photograph, and a row per predicted class with confidence intervals and a verdict."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from vitviz.analysis.bootstrap import LEVEL, Estimate, bootstrap_mean
from vitviz.evaluation import EvaluationError
from vitviz.evaluation.records import Record
from vitviz.formatting import counted, data_frame, percent, text_table
from vitviz.writing import write, write_table

if TYPE_CHECKING:
    import pandas as pd

ENOUGH = 8
"""Minimum number of photographs with a usable mask for a verdict about a predicted class."""
MARGIN = 0.1
"""For the verdict "background": maximum share of predictions that hiding the object changes beyond random patches."""
Z = NormalDist().inv_cdf((1 + LEVEL) / 2)  # quantile of the normal distribution

MIN_COVERED, MAX_COVERED = 0.05, 0.9  # a usable mask has a share of the patches between these
GRAY = "gray"
PARTS = ("foreground", "background", "trimmed", GRAY)
"""What the model sees of a photograph: see `MEANS`."""
COLORS, BACKGROUND, OBJECT, OPEN = "colors", "background", "object", "not decided"
VERDICTS = {
    COLORS: "without its colors, most photographs have another prediction",
    BACKGROUND: "with the background alone, most predictions stay the same, and hiding the object changes at most "
    f"{percent(MARGIN, 2)} more of the predictions than hiding random patches does; or the object alone keeps fewer "
    "predictions than random patches do; or hiding the most relevant patches of the background changes more "
    "predictions than hiding random patches of it does; or the map puts less relevance on the object than a map "
    "without information (inside below covered)",
    OBJECT: "hiding the object changes more predictions than hiding random patches does, and the map puts more "
    "relevance on it than a map without information (inside above covered)",
    OPEN: f"the confidence intervals show neither, or fewer than {ENOUGH} photographs have a usable mask, or there are "
    "no random sets",
}
MEANS = (
    "Each row is one predicted class, over the photographs with this prediction. Foreground and background: the share "
    "of photographs whose prediction stays the same if the model sees the tokens of only this part, with the 95 % "
    "Wilson interval; in brackets, the same share for random sets of patches of the same size and similar outline. "
    "Trimmed: the same without the most relevant patches of the background, a fifth of all patches. Gray: the same for "
    "the whole photograph in shades of gray. Inside: "
    "the share of the map's positive relevance in the mask, with the 95 % bootstrap confidence interval. Covered: the "
    "share of the patches in the mask, which is what “inside” would be for a map without information. Usable: the "
    f"number of photographs whose mask covers {percent(MIN_COVERED, 2)} to {percent(MAX_COVERED, 2)} of the patches."
)
MEANS_NOT = (
    "A verdict holds for this model, these photographs and these masks. It does not say that using the background or "
    "colors is wrong: sky may be a good reason for a parachute, and orange for an orange. Apart from colors, the test "
    "cannot detect a shortcut that lies only on the object. Where masks miss the object, a verdict means nothing: "
    "check the outlines in the contact sheet."
)
TEXTS = (MEANS, "Verdict: " + " ".join(f"“{name}” means: {text}." for name, text in VERDICTS.items()), MEANS_NOT)
"""Paragraphs that explain the table, printed above it."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Row of the table: what the predictions of one class rest on.

    Args:
        label: the predicted class.
        photographs: number of photographs with this prediction.
        usable: number of them with a usable mask. All shares and the verdict are about these.
        correct: number of photographs whose folder is named after this class; `None` if no folder is a class.
        covered: mean share of patches in the mask.
        inside: mean share of the first method's positive relevance in the mask.
        keeps: for each of `PARTS`, the share of photographs with the same prediction.
        random: the same for random sets, mean over the sets; NaN without sets.
        verdict: one of `VERDICTS`.
    """

    label: str
    photographs: int
    usable: int
    correct: int | None
    covered: float
    inside: Estimate
    keeps: Mapping[str, Estimate]
    random: Mapping[str, float]
    verdict: str


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Result of `vitviz.audit`.

    Args:
        records: one per photograph, as in the file of records.
        labels: the model's classes.
        settings: settings of the run as plain data.
        folder: the folder of the photographs.
    """

    records: tuple[Record, ...] = field(repr=False)
    labels: tuple[str, ...] = field(repr=False)
    settings: Mapping[str, Any]
    folder: str

    @property
    def answers(self) -> tuple[Answer, ...]:
        """Return one row per predicted class, ordered by verdict ("object" last), then by `background`, falling."""
        by_answer: dict[int, list[Record]] = {}
        for record in self.records:
            by_answer.setdefault(record["target"], []).append(record)
        rows = [_answer(self.labels[answer], records, self._inside) for answer, records in by_answer.items()]
        order = (COLORS, BACKGROUND, OPEN, OBJECT)
        share = {row.label: float(np.nan_to_num(row.keeps["background"].value)) for row in rows}
        return tuple(sorted(rows, key=lambda row: (order.index(row.verdict), -share[row.label])))

    @property
    def _inside(self) -> str:
        return f"inside_{self.settings['methods'][0]}"

    def describe(self) -> str:
        """Return a summary: the classes with each verdict, and the number of photographs without a usable mask."""
        answers, images = self.answers, counted(len(self.records), "photograph")
        named = {verdict: [row.label for row in answers if row.verdict == verdict] for verdict in VERDICTS}
        words = [f"{images}, {counted(len(answers), 'different prediction')}."]
        start = {COLORS: "Rest on colors", BACKGROUND: "Rest on the background", OBJECT: "Rest on the object"}
        for verdict, labels in named.items():
            if labels:
                words.append(f"{start.get(verdict, 'Not decided')}: {', '.join(labels)}.")
        if unusable := sum("foreground" not in record for record in self.records):
            words.append(f"No usable mask: {counted(unusable, 'photograph')}.")
        return " ".join(words)

    def cells(self) -> list[list[str]]:
        """Return the table of `answers` as text, header first."""
        header = ["predicted class", "verdict", "photographs", "usable", "inside", "covered", *PARTS]
        rows = [
            [
                row.label, row.verdict, str(row.photographs), str(row.usable),
                _interval(row.inside), percent(row.covered, 2),
                *(f"{_interval(row.keeps[part])} [{percent(row.random[part], 2)}]" for part in PARTS if part != GRAY),
                _interval(row.keeps[GRAY]),
            ]
            for row in self.answers
        ]  # fmt: skip
        return [header, *rows]

    def table(self) -> str:
        """Return the summary, the explanation of the table, and the table, for a terminal."""
        return "\n".join([self.describe(), "", *TEXTS, "", text_table(self.cells(), left=2)])

    def columns(self) -> dict[str, list[Any]]:
        """Return columns with a value for each photograph, without maps and masks; `None` for missing values."""
        columns: dict[str, list[Any]] = {
            "image": [record["image"] for record in self.records],
            "answer": [self.labels[record["target"]] for record in self.records],
            "label": [None if record["label"] is None else self.labels[record["label"]] for record in self.records],
        }
        names = ["confidence", "known", *(f"inside_{name}" for name in self.settings["methods"]), "covered"]
        columns |= {name: [record[name] for record in self.records] for name in [*names, "disagreement"]}
        for part in PARTS:
            columns[part] = [record.get(part) for record in self.records]
            columns[f"{part}_keeps"] = [keeps(record, part) for record in self.records]
            if part == GRAY:
                continue
            columns[f"random_{part}"] = [_mean(record.get(f"random_{part}")) for record in self.records]
            columns[f"random_{part}_keeps"] = [random_keeps(record, part) for record in self.records]
        return columns

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per photograph, with the columns of `columns`.

        Raises:
            MissingExtraError: if pandas is not installed.
        """
        return data_frame(self.columns())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one row per photograph: as .csv, or as .parquet with pandas and pyarrow.

        Raises:
            EvaluationError: for another suffix.
            MissingExtraError: for .parquet without these packages.
        """
        suffix = Path(path).suffix.lower()
        if suffix == ".parquet":
            write(path, self.to_pandas().to_parquet)
        elif suffix == ".csv":
            columns = self.columns()
            rows = zip(*columns.values(), strict=True)
            write_table(path, [[*columns], *(["" if value is None else value for value in row] for row in rows)])
        else:
            raise EvaluationError(f"Expected a name that ends in .csv or .parquet, got {Path(path).name!r}. Rename it.")


def keeps(record: Record, part: str) -> bool | None:
    """Return whether the prediction from one of `PARTS` is the same; `None` without a usable mask."""
    return None if part not in record else record[f"{part}_answer"] == record["target"]


def random_keeps(record: Record, part: str) -> float | None:
    """Return the share of random sets from which the prediction is the same; `None` without sets."""
    answers = record.get(f"random_{part}_answers")
    return _mean([answer == record["target"] for answer in answers]) if answers else None


def wilson(count: int, total: int) -> Estimate:
    """Return `count / total` with its 95 % Wilson score interval (Wilson 1927), which is also valid near 0 and 1."""
    if not total:
        return Estimate(np.nan, np.nan, np.nan)
    share, spread = count / total, Z**2 / total
    half = Z * np.sqrt(share * (1 - share) / total + spread / total / 4)
    low, high = ((share + spread / 2 + side * half) / (1 + spread) for side in (-1, 1))
    return Estimate(share, *(min(1.0, max(0.0, round(float(bound), 12))) for bound in (low, high)))


def _answer(label: str, records: Sequence[Record], inside: str) -> Answer:
    usable = [record for record in records if "foreground" in record]
    is_correct = [record["label"] == record["target"] for record in records if record["label"] is not None]
    shares = [record[inside] for record in usable if record[inside] is not None]
    return Answer(
        label=label,
        photographs=len(records),
        usable=len(usable),
        correct=sum(is_correct) if is_correct else None,
        covered=float(np.mean([record["covered"] for record in usable])) if usable else np.nan,
        inside=bootstrap_mean(shares),
        keeps={part: _kept(usable, part) for part in PARTS},
        random={part: _nan_mean([random_keeps(record, part) for record in usable]) for part in PARTS},
        verdict=_verdict(usable, inside),
    )


def _kept(records: Sequence[Record], part: str) -> Estimate:
    """Return the share of photographs with the same prediction from one of `PARTS`."""
    return wilson(sum(bool(keeps(record, part)) for record in records), len(records))


def _verdict(records: Sequence[Record], inside: str) -> str:
    """Decide whether predictions rest on the object, on the background or on colors.

    Args:
        records: of photographs with usable masks.
        inside: key of the share of the relevance that lies inside the mask.
    """
    if len(records) < ENOUGH or any(random_keeps(record, "background") is None for record in records):
        return OPEN
    if _kept(records, GRAY).high < 0.5:
        return COLORS

    def change(part: str) -> Estimate:
        """Return the share of predictions that a part changes beyond random patches."""
        return bootstrap_mean([(random_keeps(record, part) or 0.0) - bool(keeps(record, part)) for record in records])

    cost = change("background")
    excess = bootstrap_mean([record[inside] - record["covered"] for record in records if record[inside] is not None])
    sufficient = _kept(records, "background").low > 0.5 and cost.value <= MARGIN
    if sufficient or change("foreground").low > 0.0 or change("trimmed").low > 0.0 or excess.high < 0.0:
        return BACKGROUND
    return OBJECT if cost.low > 0.0 and excess.low > 0.0 else OPEN


def _mean(values: Sequence[float] | None) -> float | None:
    return float(np.mean(values)) if values else None


def _nan_mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else np.nan


def _interval(estimate: Estimate) -> str:
    """Return a share and its interval as text: "93 % (81 % to 98 %)"."""
    value, low, high = (percent(share, 2) for share in (estimate.value, estimate.low, estimate.high))
    return value if np.isnan(estimate.value) else f"{value} ({low} to {high})"
