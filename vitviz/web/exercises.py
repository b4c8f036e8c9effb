"""Compute the answers to the lecture's exercises from the numbers that the steps show.

`compute/exercises.js` does the same in the browser; `tests/web/test_lecture.py` compares all answers. Exercises about
one patch use the patch in the middle.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from vitviz.formatting import number
from vitviz.model.positions import sincos_positions
from vitviz.view import View
from vitviz.web.exercise_texts import CHOICES, TOLERANCES, exercise_texts
from vitviz.web.lecture_numbers import lecture_bytes
from vitviz.web.responses import LECTURE, rounded

Value = str | float
FAR = 0.05  # relative difference of two mean distances below which they are about equal
TOP = 10  # one patch in ten belongs to the highest


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """Exercise about a photograph.

    Args:
        step: name of the step of the lecture.
        kind: kind of the answer, one of `vitviz.web.exercise_texts.KINDS`.
        values: numbers and names for the placeholders of the texts.
        answer: the number, the index of the choice, or the index of the patch, row by row.
        accepted: indices of all patches that count as right.
        scores: (gh, gw), one number per patch; the answer is the patch with the largest.
    """

    step: str
    kind: str
    values: tuple[Value, ...]
    answer: float
    accepted: tuple[int, ...] = field(default=(), repr=False)
    scores: NDArray[Any] | None = field(default=None, repr=False, compare=False)

    @property
    def tolerance(self) -> float:
        """Return the largest error of a number that counts as right."""
        ending = "Whole" if float(self.answer).is_integer() else ""
        return max(TOLERANCES[f"relative{ending}"] * abs(self.answer), TOLERANCES[f"least{ending}"])

    def texts(self, language: str) -> dict[str, Any]:
        """Return the exercise's texts with its numbers: {"ask", "choices", "solution"}."""
        texts, said = exercise_texts(language)[self.step][self.kind], [_say(value) for value in self.values]
        return texts | {name: texts[name].format(*said) for name in ("ask", "solution")}


@dataclass(frozen=True)
class Photo:
    """Numbers of a photograph that several exercises use.

    Args:
        view: the photograph and its model.
        arrays: see `vitviz.web.lecture_numbers`.
    """

    view: View
    arrays: dict[str, NDArray[Any]]

    @property
    def middle(self) -> tuple[int, int]:
        """Return the patch in the middle."""
        rows, columns = self.view.trace.grid
        return rows // 2, columns // 2

    @property
    def spot(self) -> tuple[int, int]:
        """Return row and column of the patch in the middle, from 1."""
        row, column = self.middle
        return row + 1, column + 1

    def patches(self, picture: NDArray[Any]) -> NDArray[Any]:
        """Cut a picture into patches: (3, H, W) -> (gh * gw, 3 * p * p)."""
        (rows, columns), side = self.view.trace.grid, self.view.model.config.patch_size
        cut = picture.reshape(3, rows, side, columns, side).transpose(1, 3, 0, 2, 4)  # (gh, gw, 3, p, p)
        return cut.reshape(rows * columns, -1)


def exercises(view: View) -> list[Exercise]:
    """Return the exercises about a photograph, step by step.

    Exercises that the model does not support are missing, such as those about classes without a classifier.

    Raises:
        LectureError: for models without a lecture, see `vitviz.web.lecture_numbers.lecture_bytes`.
    """
    photo = Photo(view, load(lecture_bytes(view)))
    return [exercise for compute in STEPS.values() for exercise in compute(photo)]


def _pixels(photo: Photo) -> list[Exercise]:
    levels, side = photo.arrays["levels"], photo.view.model.config.patch_size
    down, across = (place * side + side // 2 for place in photo.middle)
    level, own = int(levels[0, down, across]), photo.view.preprocess
    answer = (level / 255 - own.mean[0]) / own.std[0]
    return [
        _number("pixels", *photo.spot, level, own.mean[0], own.std[0], answer=answer),
        _choice("pixels"),
        _patch("pixels", photo, photo.patches(levels).astype(float).mean(1)),
    ]


def _patches(photo: Photo) -> list[Exercise]:
    (rows, columns), side = photo.view.trace.grid, photo.view.model.config.patch_size
    place = 2 * rows * columns // 5
    sought = np.arange(rows * columns) == place
    return [
        _number("patches", side, answer=3 * side**2),
        _choice("patches"),
        _patch("patches", photo, sought.astype(float), place + 1, columns, said=False),
    ]


def _embedding(photo: Photo) -> list[Exercise]:
    config, arrays = photo.view.model.config, photo.arrays
    size, pixels = 3 * config.patch_size**2, photo.patches(photo.view.images[0].double().cpu().numpy())
    filters = arrays["filters"].reshape(len(arrays["filters"]), -1).astype(float)  # (K, 3 * p * p)
    row, column = photo.middle
    own = filters @ pixels[row * photo.view.trace.grid[1] + column]  # (K,)
    chosen = int(np.abs(own).argmax())
    return [
        _number("embedding", size, config.width, answer=size * config.width),
        _choice("embedding", size, config.width, answer=0 if config.width < size else 1),
        _patch(
            "embedding",
            photo,
            pixels @ filters[chosen] + arrays["bias"][chosen],
            int(arrays["channels"][chosen]) + 1,
            *photo.spot,
        ),
    ]


def _positions(photo: Photo) -> list[Exercise]:
    (rows, columns), prefix = photo.view.trace.grid, len(photo.view.trace.prefix)
    counted = [
        _number("positions", rows, columns, prefix, answer=rows * columns + prefix),
        _choice("positions"),
    ]
    table = photo.arrays.get("positions")
    if table is None:
        table = sincos_positions((rows, columns), photo.view.model.config.width)[0].numpy()
    row, column = photo.middle
    table = table.astype(float)
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    similar = (unit @ unit[row * columns + column]).reshape(rows, columns)
    similar[max(0, row - 1) : row + 2, max(0, column - 1) : column + 2] = np.nan  # itself and its neighbours
    if np.isnan(similar).all():
        return counted
    return [*counted, _patch("positions", photo, similar.ravel(), *photo.spot)]


def _attention(photo: Photo) -> list[Exercise]:
    trace, (row, column) = photo.view.trace, photo.middle
    token = len(trace.prefix) + row * trace.grid[1] + column
    block = trace.block(0)
    scaled = (block.keys[0, 0].double() @ block.queries[0, 0, token].double()).cpu().numpy()  # (N, d) @ (d,) -> (N,)
    weights = np.exp(scaled - scaled.max())
    weights = 100 * weights / weights.sum()
    best, width = float(scaled.max()), trace.head_width
    return [
        _number("attention", 1, 1, *photo.spot, best * math.sqrt(width), width, answer=best),
        _choice("attention"),
        _patch("attention", photo, weights[len(trace.prefix) :], 1, 1, *photo.spot),
    ]


def _heads(photo: Photo) -> list[Exercise]:
    view, trace = photo.view, photo.view.trace
    depth, heads, tokens = trace.depth, trace.heads, trace.tokens.shape[1]
    rows, columns = np.indices(trace.grid)
    distance = np.hypot(rows - photo.middle[0], columns - photo.middle[1])  # (gh, gw)
    first, last = (
        float(np.mean([_mean(distance, head.values) for head in maps]))
        for maps in (view.head_maps(0, photo.middle), view.head_maps(-1, photo.middle))
    )
    equal = abs(first - last) <= FAR * max(first, last)
    mean = view.attention(-1, "mean", photo.middle).values
    return [
        _number("heads", depth, heads, tokens, answer=depth * heads * tokens**2),
        _choice("heads", first, last, answer=2 if equal else 0 if first > last else 1),
        _patch("heads", photo, 100.0 * mean.ravel(), depth, *photo.spot),
    ]


def _prediction(photo: Photo) -> list[Exercise]:
    view = photo.view
    if not view.names_classes:
        return [_choice("prediction")]
    numbers = []
    if len(view.labels) > 1:
        (first, p), (second, q) = view.predictions(2)
        if q > 0:
            numbers = [_number("prediction", first, 100 * p, second, 100 * q, answer=math.log(p / q))]
    lens = view.lens(view.best(1))
    own = np.rint(255 * lens.patches[-1, :, :, 0].astype(float)) / 2.55  # the page receives bytes
    return [*numbers, _choice("prediction"), _patch("prediction", photo, own.ravel(), lens.names[0])]


def _explanation(photo: Photo) -> list[Exercise]:
    view = photo.view
    if not view.names_classes:
        return [_choice("explanation")]
    maps = [view.explain(LECTURE[0]), view.explain(LECTURE[1], view.best(1)[0])]
    rollout, gae = (np.array([rounded(value) for value in heatmap.values.ravel().tolist()]) for heatmap in maps)
    count = len(rollout)
    top = max(1, count // TOP)
    shared = {*np.argsort(-rollout, kind="stable")[:top]} & {*np.argsort(-gae, kind="stable")[:top]}
    best = int(rollout.argmax())
    above, equal = int((gae > gae[best]).sum()), int((gae == gae[best]).sum())
    rank = math.floor(above + (1 + equal) / 2 + 0.5)
    return [
        _number("explanation", top, count, answer=top * top / count, more=(len(shared),)),
        _choice("explanation"),
        _patch("explanation", photo, rollout, said=False, more=(rank, count)),
    ]


STEPS: dict[str, Callable[[Photo], list[Exercise]]] = {
    "pixels": _pixels, "patches": _patches, "embedding": _embedding, "positions": _positions,
    "attention": _attention, "heads": _heads, "prediction": _prediction, "explanation": _explanation,
}  # fmt: skip
"""The functions that compute the exercises, by the name of the step."""


def _number(step: str, *values: Value, answer: float, more: tuple[Value, ...] = ()) -> Exercise:
    return Exercise(step=step, kind="number", values=(*values, answer, *more), answer=answer)


def _choice(step: str, *values: Value, answer: int | None = None) -> Exercise:
    return Exercise(step=step, kind="choice", values=values, answer=CHOICES[step] if answer is None else answer)


def _patch(
    step: str, photo: Photo, scores: NDArray[Any], *values: Value, said: bool = True, more: tuple[Value, ...] = ()
) -> Exercise:
    """Return the exercise to find the patch with the largest score; patches with `nan` are excluded.

    The texts get the patch's row and column and, if `said`, its score.
    """
    best, range_ = int(np.nanargmax(scores)), float(np.nanmax(scores) - np.nanmin(scores))
    row, column = divmod(best, photo.view.trace.grid[1])
    accepted = np.flatnonzero(scores >= scores[best] - TOLERANCES["patch"] * range_)
    return Exercise(
        step=step,
        kind="patch",
        values=(*values, row + 1, column + 1, *((float(scores[best]),) if said else ()), *more),
        answer=best,
        accepted=tuple(accepted.tolist()),
        scores=scores.reshape(photo.view.trace.grid),
    )


def _mean(distance: NDArray[Any], shares: NDArray[Any]) -> float:
    """Return the mean distance, weighted by shares; `nan` without any share."""
    total = float(shares.sum(dtype=np.float64))
    return float((distance * shares).sum()) / total if total > 0 else math.nan


def _say(value: Value) -> str:
    if isinstance(value, str):
        return value
    return f"{int(value):,}".replace("-", "\N{MINUS SIGN}") if float(value).is_integer() else number(value)
