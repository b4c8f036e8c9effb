"""Summarise an audit: one row per photograph, and one row per answer with intervals and a verdict."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitviz.analysis.circuits import RESAMPLES, Estimate
from vitviz.evaluation import EvaluationError
from vitviz.evaluation.records import Record
from vitviz.formatting import counted, data_frame, percent, text_table
from vitviz.writing import write, write_table

if TYPE_CHECKING:
    import pandas as pd

ENOUGH = 8
"""Minimum number of photographs with a usable mask for a verdict about an answer."""
COST = 0.1
"""Share of answers by which hiding the object may exceed hiding random patches, for the verdict "background"."""
Z = 1.959964  # 97.5 % quantile of the normal distribution

BACKGROUND, OBJECT, OPEN = "background", "object", "not decided"
VERDICTS = {
    BACKGROUND: "the background alone keeps the answer for most photographs, and hiding the object changes hardly more "
    "answers than hiding random patches does; or the object alone keeps fewer answers than random patches do; or the "
    "relevance avoids the object (inside below covered)",
    OBJECT: "hiding the object changes more answers than hiding random patches does, and the relevance lies on it",
    OPEN: "neither holds for certain, or there are too few photographs with a usable mask, or no random sets",
}
MEANS = (
    "Each row is one answer of the model, over the photographs to which it gave this answer. Foreground and background "
    "are the share of photographs that keep the answer if the model sees the tokens of only this part, with a 95 % "
    "interval; in brackets, the same for random sets of the same size and outline. Inside is the share of the map's "
    "positive relevance that lies in the mask; covered, the share of the patches that do."
)
MEANS_NOT = (
    "A verdict is about this model, these photographs and these masks. It does not say that a background is wrong: sky "
    "may be a good reason for a parachute. It cannot see a cue that lies only on the object. Where masks miss the "
    "object, a verdict means nothing: look at the outlines in the contact sheet."
)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What an answer of the model rests on, over the photographs to which it gave this answer.

    Args:
        label: the class.
        photographs: number of photographs with this answer.
        usable: number of them with a usable mask, on which all that follows rests.
        correct: number of photographs whose folder is this class; `None` if no folder is a class.
        covered: mean share of patches in the mask.
        inside: mean share of relevance in the mask, of the first method.
        foreground, background: share that keeps the answer from this part alone.
        random_foreground, random_background: the same for random sets, mean over sets; NaN without sets.
        verdict: one of `VERDICTS`.
    """

    label: str
    photographs: int
    usable: int
    correct: int | None
    covered: float
    inside: Estimate
    foreground: Estimate
    background: Estimate
    random_foreground: float
    random_background: float
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
        """Return one row per answer: those that rest on the background first, then by the share that it keeps."""
        by_answer: dict[int, list[Record]] = {}
        for record in self.records:
            by_answer.setdefault(record["answer"], []).append(record)
        rows = [_answer(self.labels[answer], records, self._inside) for answer, records in by_answer.items()]
        order = (BACKGROUND, OPEN, OBJECT)
        return tuple(sorted(rows, key=lambda row: (order.index(row.verdict), -np.nan_to_num(row.background.value))))

    @property
    def _inside(self) -> str:
        return f"inside_{self.settings['methods'][0]}"

    def describe(self) -> str:
        """Return the result as sentences: what rests on the background, and what is not decided."""
        answers, images = self.answers, counted(len(self.records), "photograph")
        named = {verdict: [row.label for row in answers if row.verdict == verdict] for verdict in VERDICTS}
        words = [f"{images}, {counted(len(answers), 'answer')}."]
        if named[BACKGROUND]:
            words.append(f"The background alone keeps {', '.join(named[BACKGROUND])}.")
        if named[OBJECT]:
            words.append(f"The object is needed for {', '.join(named[OBJECT])}.")
        if named[OPEN]:
            words.append(f"Not decided: {', '.join(named[OPEN])}.")
        if unusable := sum("foreground" not in record for record in self.records):
            words.append(f"No usable mask: {counted(unusable, 'photograph')}.")
        return " ".join(words)

    def cells(self) -> list[list[str]]:
        """Return the table of `answers` as text, header first."""
        header = ["answer", "photographs", "usable", "inside", "covered", "foreground", "background", "verdict"]
        rows = [
            [
                row.label, str(row.photographs), str(row.usable), _interval(row.inside), percent(row.covered, 2),
                f"{_interval(row.foreground)} [{percent(row.random_foreground, 2)}]",
                f"{_interval(row.background)} [{percent(row.random_background, 2)}]", row.verdict,
            ]
            for row in self.answers
        ]  # fmt: skip
        return [header, *rows]

    def table(self) -> str:
        """Return the table for a terminal, under what it means and what it does not."""
        return "\n".join([self.describe(), "", MEANS, MEANS_NOT, "", text_table(self.cells())])

    def columns(self) -> dict[str, list[Any]]:
        """Return one column per measure of a photograph, without maps and masks; `None` where there is none."""
        parts = ("foreground", "background")
        columns: dict[str, list[Any]] = {
            "image": [record["image"] for record in self.records],
            "answer": [self.labels[record["answer"]] for record in self.records],
            "label": [None if record["label"] is None else self.labels[record["label"]] for record in self.records],
        }
        names = ["confidence", "known", *(f"inside_{name}" for name in self.settings["methods"]), "covered"]
        columns |= {name: [record[name] for record in self.records] for name in [*names, "disagreement"]}
        for part in parts:
            columns[part] = [record.get(part) for record in self.records]
            columns[f"{part}_keeps"] = [keeps(record, part) for record in self.records]
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
    """Return whether a part alone keeps the answer; `None` without a usable mask."""
    return None if part not in record else record[f"{part}_answer"] == record["answer"]


def random_keeps(record: Record, part: str) -> float | None:
    """Return the share of random sets that keep the answer; `None` without sets."""
    answers = record.get(f"random_{part}_answers")
    return _mean([answer == record["answer"] for answer in answers]) if answers else None


def wilson(count: int, total: int) -> Estimate:
    """Return the share of `count` in `total`, with the interval of Wilson 1927, which also holds near 0 and 1."""
    if not total:
        return Estimate(np.nan, np.nan, np.nan)
    share, spread = count / total, Z**2 / total
    half = Z * np.sqrt(share * (1 - share) / total + spread / total / 4)
    low, high = ((share + spread / 2 + side * half) / (1 + spread) for side in (-1, 1))
    return Estimate(share, *(min(1.0, max(0.0, round(float(bound), 12))) for bound in (low, high)))


def estimate(values: Sequence[float] | NDArray[np.float64], seed: int = 0) -> Estimate:
    """Return the mean of values, one for each photograph, with its bootstrap interval."""
    if not len(values):
        return Estimate(np.nan, np.nan, np.nan)
    array = np.array(values, float)
    drawn = array[np.random.default_rng(seed).integers(len(array), size=(RESAMPLES, len(array)))].mean(1)
    low, high = np.percentile(drawn, (2.5, 97.5))
    return Estimate(float(array.mean()), float(low), float(high))


def _answer(label: str, records: Sequence[Record], inside: str) -> Answer:
    usable = [record for record in records if "foreground" in record]
    labelled = [record["label"] == record["answer"] for record in records if record["label"] is not None]
    shares = [record[inside] for record in usable if record[inside] is not None]
    kept = {part: [bool(keeps(record, part)) for record in usable] for part in ("foreground", "background")}
    random = {part: [random_keeps(record, part) for record in usable] for part in kept}
    return Answer(
        label=label,
        photographs=len(records),
        usable=len(usable),
        correct=sum(labelled) if labelled else None,
        covered=float(np.mean([record["covered"] for record in usable])) if usable else np.nan,
        inside=estimate(shares),
        foreground=wilson(sum(kept["foreground"]), len(usable)),
        background=wilson(sum(kept["background"]), len(usable)),
        random_foreground=_nan_mean(random["foreground"]),
        random_background=_nan_mean(random["background"]),
        verdict=_verdict(usable, inside),
    )


def _verdict(records: Sequence[Record], inside: str) -> str:
    """Return the verdict about photographs with usable masks; `inside` names the share of relevance in the mask."""
    parts = ("foreground", "background")
    kept = {part: np.array([keeps(record, part) for record in records], float) for part in parts}
    random = {part: np.array([random_keeps(record, part) for record in records], float) for part in parts}  # None: NaN
    if len(records) < ENOUGH or np.isnan(random["background"]).any():
        return OPEN
    cost = estimate(random["background"] - kept["background"])  # answers that hiding the object changes beyond chance
    loss = estimate(random["foreground"] - kept["foreground"])  # answers that the object alone loses beyond chance
    excess = estimate([record[inside] - record["covered"] for record in records if record[inside] is not None])
    sufficient = wilson(int(kept["background"].sum()), len(records)).low > 0.5 and cost.value <= COST
    if sufficient or loss.low > 0.0 or excess.high < 0.0:
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
