"""Compute the answers to the lecture's exercises from the numbers that the steps show.

`compute/exercises.js` does the same in the browser; `tests/web/test_lecture.py` compares all answers. Exercises about
one patch use the patch in the middle.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from vitviz.attribution.attention import Fusion
from vitviz.formatting import number
from vitviz.model.positions import sincos_positions
from vitviz.model.trace import Query
from vitviz.view import View
from vitviz.web.exercise_texts import CHOICES, KINDS, TOLERANCES, exercise_texts
from vitviz.web.lecture_numbers import lecture_bytes, token_bytes
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

    step: str = ""
    kind: str
    values: tuple[Value, ...] = ()
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

    @property
    def prefix(self) -> int:
        """Return P, the number of prefix tokens."""
        return len(self.view.trace.prefix)

    @property
    def tokens(self) -> int:
        """Return N, the number of tokens."""
        return int(self.view.trace.tokens.shape[1])

    @property
    def token(self) -> int:
        """Return the index of the token of the patch in the middle."""
        return self.view.trace.token(self.middle)

    @property
    def block(self) -> int:
        """Return the block in the middle."""
        return self.view.trace.depth // 2

    @property
    def layer_weights(self) -> tuple[int, int, int]:
        """Return the numbers of weights of a block without biases: of attention and the MLP; matrices of the MLP."""
        config = self.view.model.config
        matrices = 3 if config.gated else 2
        inner = config.heads * config.head_size
        return 4 * config.width * inner, matrices * config.width * config.hidden, matrices

    @cached_property
    def parts(self) -> dict[str, NDArray[Any]] | None:
        """Return the numbers of the middle token in the middle block; `None` if the lecture cannot show such blocks."""
        model, trace = self.view.model, self.view.trace
        return load(token_bytes(model, trace, self.block, self.token)) if model.config.plain_blocks else None

    def attention(self, block: int, head: int | Fusion, query: Query) -> NDArray[Any]:
        """Return the attention to each patch in percent: (gh * gw)."""
        return 100.0 * self.view.attention(block, head, query).values.ravel()

    def outside(self, scores: NDArray[Any]) -> NDArray[Any]:
        """Replace the scores (gh * gw) of the middle patch and its eight neighbors by `nan`."""
        (rows, columns), (row, column) = self.view.trace.grid, self.middle
        far = scores.reshape(rows, columns).astype(float)
        far[max(0, row - 1) : row + 2, max(0, column - 1) : column + 2] = np.nan
        return far.ravel()

    def patches(self, picture: NDArray[Any]) -> NDArray[Any]:
        """Cut a picture into patches: (3, H, W) -> (gh * gw, 3 * p * p)."""
        (rows, columns), side = self.view.trace.grid, self.view.model.config.patch_size
        cut = picture.reshape(3, rows, side, columns, side).transpose(1, 3, 0, 2, 4)  # (gh, gw, 3, p, p)
        return cut.reshape(rows * columns, -1)


Computed = list[Exercise | None]
"""Exercises of a step without its name; `None` for those that the model does not support."""


def exercises(view: View) -> list[Exercise]:
    """Return the exercises about a photograph, step by step.

    Exercises that the model does not support are missing, such as those about classes without a classifier.

    Raises:
        LectureError: for models without a lecture, see `vitviz.web.lecture_numbers.lecture_bytes`.
    """
    photo = Photo(view, load(lecture_bytes(view)))
    return [exercise for step in STEPS for exercise in _of_step(step, photo)]


def _of_step(step: str, photo: Photo) -> list[Exercise]:
    by_kind = {exercise.kind: replace(exercise, step=step) for exercise in STEPS[step](photo) if exercise}
    if step in CHOICES:
        by_kind["choice"] = Exercise(step=step, kind="choice", answer=CHOICES[step])
    return [by_kind[kind] for kind in KINDS if kind in by_kind]


def _question(photo: Photo) -> Computed:
    (rows, columns), (row, column) = photo.view.trace.grid, photo.middle
    return [
        _number(*photo.spot, rows, columns, answer=max(row, rows - 1 - row, column, columns - 1 - column)),
        _patch(photo, photo.outside(photo.attention(0, "mean", photo.middle)), *photo.spot),
    ]


def _pixels(photo: Photo) -> Computed:
    levels, side = photo.arrays["levels"], photo.view.model.config.patch_size
    down, across = (place * side + side // 2 for place in photo.middle)
    level, own = int(levels[0, down, across]), photo.view.preprocess
    answer = (level / 255 - own.mean[0]) / own.std[0]
    return [
        _number(*photo.spot, level, own.mean[0], own.std[0], answer=answer),
        _patch(photo, photo.patches(levels).astype(float).mean(1)),
    ]


def _patches(photo: Photo) -> Computed:
    (rows, columns), side = photo.view.trace.grid, photo.view.model.config.patch_size
    place = 2 * rows * columns // 5
    sought = np.arange(rows * columns) == place
    return [
        _number(side, answer=3 * side**2),
        _patch(photo, sought.astype(float), place + 1, columns, said=False),
    ]


def _embedding(photo: Photo) -> Computed:
    config, arrays = photo.view.model.config, photo.arrays
    size, pixels = 3 * config.patch_size**2, photo.patches(photo.view.images[0].double().cpu().numpy())
    filters = arrays["filters"].reshape(len(arrays["filters"]), -1).astype(float)  # (K, 3 * p * p)
    own = filters @ pixels[photo.token - photo.prefix]  # (K,)
    chosen = int(np.abs(own).argmax())
    responses = pixels @ filters[chosen] + arrays["bias"][chosen]
    return [
        _number(size, config.width, answer=size * config.width),
        _choice(size, config.width, answer=0 if config.width < size else 1),
        _patch(photo, responses, int(arrays["channels"][chosen]) + 1, *photo.spot),
    ]


def _positions(photo: Photo) -> Computed:
    rows, columns = photo.view.trace.grid
    table = photo.arrays.get("positions")
    if table is None:
        table = sincos_positions((rows, columns), photo.view.model.config.width)[0].numpy()
    table = table.astype(float)
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    return [
        _number(rows, columns, photo.prefix, answer=photo.tokens),
        _patch(photo, photo.outside(unit @ unit[photo.token - photo.prefix]), *photo.spot),
    ]


def _cls(photo: Photo) -> Computed:
    trace, tokens = photo.view.trace, photo.tokens
    if "CLS" not in trace.prefix:
        return []
    row = 100.0 * trace.row(trace.depth - 1, "cls")[0].double().mean(0).cpu().numpy()  # (N,)
    return [
        _number(tokens, answer=100 / tokens, more=(trace.depth, float(row[trace.token("cls")]))),
        _patch(photo, row[photo.prefix :], trace.depth),
    ]


def _residual(photo: Photo) -> Computed:
    depth = photo.view.trace.depth
    if depth == 1:
        return []
    lengths = photo.arrays["lengths"][:2, photo.token].tolist()
    added = float(photo.arrays["added"][0, photo.token])
    return [
        _number(*photo.spot, lengths[0], added, answer=lengths[0] + added, more=(lengths[1],)),
        _patch(photo, photo.arrays["start"][-1, photo.prefix :], depth),
    ]


def _norm(photo: Photo) -> Computed:
    longest = _patch(photo, photo.arrays["lengths"][photo.block, photo.prefix :], photo.block + 1)
    if photo.parts is None:
        return [longest]
    stream = photo.parts["stream"].astype(float)
    place, mean = int(np.abs(stream).argmax()), float(stream.mean())
    value, spread = float(stream[place]), math.sqrt(stream.var() + photo.view.model.config.norm_eps)
    values = (photo.block + 1, *photo.spot, place + 1, value, mean, spread)
    return [_number(*values, answer=(value - mean) / spread), longest]


def _attention(photo: Photo) -> Computed:
    trace = photo.view.trace
    if not photo.view.model.config.plain_attention:
        return []
    block = trace.block(0)
    query = block.queries[0, 0, photo.token].double()
    scaled = (block.keys[0, 0].double() @ query).cpu().numpy()  # (N, d) @ (d,) -> (N,)
    weights = np.exp(scaled - scaled.max())
    weights = 100 * weights / weights.sum()
    best, width = float(scaled.max()), trace.head_width
    return [
        _number(1, 1, *photo.spot, best * math.sqrt(width), width, answer=best),
        _patch(photo, weights[photo.prefix :], 1, 1, *photo.spot),
    ]


def _projection(photo: Photo) -> Computed:
    config = photo.view.model.config
    count, size, width = config.heads, config.head_size, config.width
    matrix = _number(count, size, width, answer=count * size * width)
    if photo.parts is None:
        return [matrix]
    head = int(np.linalg.norm(photo.parts["heads"].astype(float), axis=1).argmax())
    weights = photo.attention(photo.block, head, photo.middle)
    return [matrix, _patch(photo, weights, photo.block + 1, head + 1, *photo.spot)]


def _mlp(photo: Photo) -> Computed:
    config, (attention, mlp, matrices) = photo.view.model.config, photo.layer_weights
    weights = _number(matrices, config.width, config.hidden, answer=mlp, more=(attention,))
    block, added = min(photo.block, photo.view.trace.depth - 2), photo.arrays["added"]
    return [weights, _patch(photo, added[block, photo.prefix :], block + 1) if len(added) else None]


def _heads(photo: Photo) -> Computed:
    view, trace, tokens = photo.view, photo.view.trace, photo.tokens
    rows, columns = np.indices(trace.grid)
    distance = np.hypot(rows - photo.middle[0], columns - photo.middle[1])  # (gh, gw)
    first, last = (
        float(np.mean([_mean(distance, head.values) for head in maps]))
        for maps in (view.head_maps(0, photo.middle), view.head_maps(-1, photo.middle))
    )
    equal = abs(first - last) <= FAR * max(first, last)
    return [
        _number(trace.depth, trace.heads, tokens, answer=trace.depth * trace.heads * tokens**2),
        _choice(first, last, answer=2 if equal else 0 if first > last else 1),
        _patch(photo, photo.attention(-1, "mean", photo.middle), trace.depth, *photo.spot),
    ]


def _cost(photo: Photo) -> Computed:
    trace, tokens, each = photo.view.trace, photo.tokens, sum(photo.layer_weights[:2])
    larger, of_pair = 4 * (tokens - photo.prefix) + photo.prefix, 2 * trace.heads * trace.head_width
    pairs, rest = trace.depth * of_pair * tokens**2, trace.depth * each * tokens
    return [
        _number(tokens - photo.prefix, photo.prefix, answer=larger**2, more=(larger**2 / tokens**2,)),
        _choice(pairs / 1e9, rest / 1e9, each / of_pair, answer=0 if pairs > rest else 1),
        _patch(photo, photo.attention(-1, 0, "mean"), trace.depth),
    ]


def _prediction(photo: Photo) -> Computed:
    view = photo.view
    if not view.names_classes:
        return []
    difference = None
    if len(view.labels) > 1:
        (first, p), (second, q) = view.predictions(2)
        if q > 0:
            difference = _number(first, 100 * p, second, 100 * q, answer=math.log(p / q))
    lens = view.lens(view.best(1))
    own = np.rint(255 * lens.patches[-1, :, :, 0].astype(float)) / 2.55  # the page receives bytes
    return [difference, _patch(photo, own.ravel(), lens.names[0])]


def _training(photo: Photo) -> Computed:
    view = photo.view
    if not view.names_classes:
        return []
    name, p = view.predictions(1)[0]
    return [_number(len(view.labels), answer=math.log(len(view.labels)), more=(name, math.log(1 / p)))]


def _explanation(photo: Photo) -> Computed:
    view = photo.view
    if not view.names_classes:
        return []
    maps = [view.explain(LECTURE[0]), view.explain(LECTURE[1], view.best(1)[0])]
    rollout, gae = (np.array([rounded(value) for value in heatmap.values.ravel().tolist()]) for heatmap in maps)
    count = len(rollout)
    top = max(1, count // TOP)
    shared = {*np.argsort(-rollout, kind="stable")[:top]} & {*np.argsort(-gae, kind="stable")[:top]}
    best = int(rollout.argmax())
    above, equal = int((gae > gae[best]).sum()), int((gae == gae[best]).sum())
    rank = math.floor(above + (1 + equal) / 2 + 0.5)
    return [
        _number(top, count, answer=top * top / count, more=(len(shared),)),
        _patch(photo, rollout, said=False, more=(rank, count)),
    ]


def _closing(photo: Photo) -> Computed:
    tokens, width = photo.tokens, photo.view.model.config.width
    return [_number(tokens, width, answer=tokens * width, more=(photo.arrays["levels"].size,))]


STEPS: dict[str, Callable[[Photo], Computed]] = {
    "question": _question, "pixels": _pixels, "patches": _patches, "embedding": _embedding, "positions": _positions,
    "cls": _cls, "residual": _residual, "norm": _norm, "attention": _attention, "projection": _projection,
    "mlp": _mlp, "heads": _heads, "cost": _cost, "prediction": _prediction, "training": _training,
    "explanation": _explanation, "closing": _closing,
}  # fmt: skip
"""The functions that compute the exercises of each step, without choices whose answer is in `CHOICES`."""


def _number(*values: Value, answer: float, more: tuple[Value, ...] = ()) -> Exercise:
    return Exercise(kind="number", values=(*values, answer, *more), answer=answer)


def _choice(*values: Value, answer: int) -> Exercise:
    return Exercise(kind="choice", values=values, answer=answer)


def _patch(
    photo: Photo, scores: NDArray[Any], *values: Value, said: bool = True, more: tuple[Value, ...] = ()
) -> Exercise | None:
    """Return the exercise to find the patch with the largest score; patches with `nan` are excluded.

    The texts get the patch's row and column and, if `said`, its score. Return `None` if all patches are excluded.
    """
    if np.isnan(scores).all():
        return None
    scores = scores.astype(float)
    best, range_ = int(np.nanargmax(scores)), float(np.nanmax(scores) - np.nanmin(scores))
    row, column = divmod(best, photo.view.trace.grid[1])
    accepted = np.flatnonzero(scores >= scores[best] - TOLERANCES["patch"] * range_)
    return Exercise(
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
