"""Compare two models over a folder: answers that changed, heads that changed, and differences of maps.

The models may be one before and after fine-tuning, a teacher and its student, or one with and without adapters.

Shapes: L blocks, H heads, N tokens, d head width, D width, gh x gw patches.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitviz.analysis.head_statistics import head_statistics
from vitviz.attribution.registry import DEFAULT, attribute
from vitviz.evaluation import EvaluationError, check_classifies
from vitviz.fields import check_arguments
from vitviz.formatting import counted, number, text_table
from vitviz.images.decoding import decode
from vitviz.images.folders import find_images, spread
from vitviz.model.ops import Record
from vitviz.model.trace import Trace
from vitviz.model.vit import ViT, eval_mode
from vitviz.progress import bar
from vitviz.writing import write_table

Floats = NDArray[np.float32]
LISTED = 20  # heads in tables
COLUMNS = ("layer", "head", "own change", "change in the run", "distance before", "distance after")
MEANS = (
    "Heads by how much they changed. A change is 1 minus the linear CKA (Kornblith et al. 2019) of what a head adds to "
    "the tokens, over all tokens of all photographs: 0 for the same up to rotation and scale. Own change: the second "
    "model's head reads the tokens of the first model, so that only its own weights count. Change in the run: each "
    "model reads its own tokens, so that changes of earlier layers count, too. Distance is the mean attention "
    "distance, in patches."
)
MEANS_NOT = "A changed head need not matter for any answer, and an answer may change because of MLPs or the classifier."


@dataclass(frozen=True, eq=False, kw_only=True)
class Compared:
    """Answers and maps of both models for a photograph.

    Args:
        image: path below the folder.
        answers: labels that the first and the second model predict.
        confidences: their probabilities.
        difference: (gh, gw), share of the relevance that the second map has more in a patch, in shares of a map without
            information (1 / n).
    """

    image: str
    answers: tuple[str, str]
    confidences: tuple[float, float]
    difference: Floats = field(repr=False)

    @property
    def flipped(self) -> bool:
        """Return whether the answer changed."""
        return self.answers[0] != self.answers[1]


@dataclass(frozen=True, kw_only=True)
class HeadChange:
    """Change of a head, see `MEANS`; NaN if the models' tokens have different widths.

    Args:
        block, head: from 0.
        own: change by its own weights.
        run: change in the run.
        distances: mean attention distance in the first and the second model, in patches.
    """

    block: int
    head: int
    own: float
    run: float
    distances: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Result of `compare`.

    Args:
        names: display names of the models.
        folder: the folder of the photographs.
        method: the method of the maps.
        photographs: one per photograph.
        heads: all heads, the most changed first; empty with `apart`.
        apart: why heads cannot be compared one by one; empty if they can.
    """

    names: tuple[str, str]
    folder: str
    method: str
    photographs: tuple[Compared, ...] = field(repr=False)
    heads: tuple[HeadChange, ...] = field(repr=False)
    apart: str = ""

    @property
    def flips(self) -> tuple[tuple[str, str, int], ...]:
        """Return the changes of answers: from, to, and the number of photographs, the most frequent first."""
        counts = Counter(photo.answers for photo in self.photographs if photo.flipped)
        return tuple((before, after, count) for (before, after), count in counts.most_common())

    @property
    def scale(self) -> float:
        """Return the common scale of all differences: the 99th percentile of their absolute values."""
        sizes = np.concatenate([np.abs(photo.difference).ravel() for photo in self.photographs])
        return float(np.quantile(sizes, 0.99)) or 1.0

    def describe(self) -> str:
        """Return the result as sentences."""
        flipped, total = sum(photo.flipped for photo in self.photographs), counted(len(self.photographs), "photograph")
        words = [f"The answer changed for {flipped} of {total}."]
        if self.apart:
            words.append(f"Heads are not compared: {self.apart}.")
        elif changed := self.heads[:3]:
            named = ", ".join(f"{head.block + 1}.{head.head + 1}" for head in changed)
            words.append(f"The heads that changed most (layer.head): {named}.")
        return " ".join(words)

    def cells(self, listed: int | None = LISTED) -> list[list[str]]:
        """Return the most changed heads as a table of text, header first; layers and heads from 1."""
        rows = [
            [str(head.block + 1), str(head.head + 1), *map(number, (head.own, head.run, *head.distances))]
            for head in self.heads[:listed]
        ]
        return [[*COLUMNS], *rows]

    def table(self) -> str:
        """Return the tables for a terminal, under what they mean and what they do not."""
        flips = [
            ["before", "after", "photographs"],
            *([before, after, str(count)] for before, after, count in self.flips),
        ]
        parts = [self.describe(), *(["", text_table(flips, left=2)] if self.flips else [])]
        parts += [] if self.apart else ["", MEANS, MEANS_NOT, "", text_table(self.cells(), left=0)]
        return "\n".join(parts)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all heads as CSV; layers and heads from 1."""
        rows = [[head.block + 1, head.head + 1, head.own, head.run, *head.distances] for head in self.heads]
        write_table(path, [COLUMNS, *rows])


@check_arguments(EvaluationError)
def compare(
    first: ViT,
    second: ViT,
    folder: str | os.PathLike[str],
    *,
    method: str = DEFAULT,
    limit: int | None = None,
    progress: bool = True,
) -> Comparison:
    """Compare two classifiers on the photographs of a folder, each with its own preprocessing.

    Both maps explain the first model's answer, or each model its own if the second has no class of this name.

    Args:
        first, second: converted classifiers with `pretrained`, such as before and after fine-tuning.
        folder: folder of photographs, searched recursively.
        method: attribution method of the maps.
        limit: maximum number of photographs, spread evenly over the subfolders.
        progress: show progress on standard error.

    Raises:
        EvaluationError: if a model has no classes, or has windows or runs as it is.
        DataError: for a folder without images.
        ImageError: if a photograph cannot be read.
    """
    abouts = check_classifies(first), check_classifies(second)
    if not (first.removes_patches and second.removes_patches) or (limit is not None and limit < 1):
        raise EvaluationError(
            f"Expected two converted models without windows and a limit of at least 1, got other models or {limit}. "
            "Compare them in the two panes of the page."
        )
    root, apart = Path(folder), _apart(first, second)
    photos = [path for path, _ in spread(find_images(root), limit)]
    heads, records = None if apart else _Heads(first, second), list[Compared]()
    with eval_mode(first), eval_mode(second), bar(len(photos), iterable=photos, show=progress) as counting:
        for path in counting:
            image, traces = decode(path), list[Trace]()
            inputs = [about.preprocess(image) for about in abouts]
            pixels = [_pixels(model, given.pixels) for model, given in zip((first, second), inputs, strict=True)]
            with torch.no_grad():
                traces = [model.trace(each) for model, each in zip((first, second), pixels, strict=True)]
            if heads is not None:
                heads.add(traces)
            records.append(_photograph((first, second), pixels, traces, method, path.relative_to(root).as_posix()))
    return Comparison(
        names=(abouts[0].name, abouts[1].name), folder=str(root), method=method, photographs=tuple(records),
        heads=() if heads is None else heads.changes(), apart=apart,
    )  # fmt: skip


def _apart(first: ViT, second: ViT) -> str:
    """Return why the heads of two models cannot be compared one by one, or an empty text."""
    sizes = [f"{model.config.depth} layers of {model.config.heads} heads" for model in (first, second)]
    return "" if sizes[0] == sizes[1] else f"one model has {sizes[0]}, the other {sizes[1]}"


def _pixels(model: ViT, pixels: Any) -> Tensor:
    weight = next(model.parameters())
    return torch.from_numpy(pixels)[None].to(weight.device, weight.dtype)


def _photograph(
    models: tuple[ViT, ViT], pixels: Sequence[Tensor], traces: Sequence[Trace], method: str, image: str
) -> Compared:
    answers, confidences, maps = list[str](), list[float](), list[Tensor]()
    for model, given, trace in zip(models, pixels, traces, strict=True):
        assert trace.logits is not None  # checked: a classifier
        labels, logits = check_classifies(model).labels, trace.logits[0].float()
        answers.append(labels[int(logits.argmax())])
        confidences.append(float(logits.softmax(-1).amax()))
        target = answers[0] if labels.count(answers[0]) == 1 else int(logits.argmax())
        scores = torch.tensor(attribute(model, given, target, method, trace=trace)[0].values).clamp_min(0.0)
        maps.append(scores / scores.sum().clamp_min(1e-30))
    if maps[0].shape != maps[1].shape:
        maps[1] = F.interpolate(maps[1][None, None], maps[0].shape, mode="area")[0, 0]
        maps[1] /= maps[1].sum().clamp_min(1e-30)
    difference = (maps[1] - maps[0]) * maps[0].numel()
    return Compared(
        image=image, answers=(answers[0], answers[1]), confidences=(confidences[0], confidences[1]),
        difference=difference.numpy().astype(np.float32),
    )  # fmt: skip


class _Heads:
    """Sums over photographs from which the changes of heads follow; their size does not grow.

    Args:
        first, second: models with the same number of layers and heads.
    """

    def __init__(self, first: ViT, second: ViT) -> None:
        self.models, self.tokens, self.photographs = (first, second), 0, 0
        self.narrow = first.config.width != second.config.width or first.config.prefix != second.config.prefix
        self.sums: dict[str, Tensor] = {}  # (L, H, d, d) products, or (L, H, d) sums
        self.distances = [torch.zeros(first.config.depth, first.config.heads, dtype=torch.float64) for _ in range(2)]

    @torch.no_grad()
    def add(self, traces: Sequence[Trace]) -> None:
        """Add a photograph by the trace of each model."""
        outputs = {name: _outputs(model, trace) for name, model, trace in zip("ab", self.models, traces, strict=True)}
        if not self.narrow and traces[0].grid == traces[1].grid:
            outputs["c"] = _outputs(self.models[1], traces[0])
        if outputs["a"].shape[2] == outputs["b"].shape[2]:  # else the tokens have no counterparts
            self._products(outputs)
        for total, model, trace in zip(self.distances, self.models, traces, strict=True):
            total += torch.from_numpy(head_statistics(model, trace, names=["distance"])["distance"])
        self.photographs += 1

    def _products(self, outputs: Mapping[str, Tensor]) -> None:
        self.tokens += outputs["a"].shape[2]
        for name, values in outputs.items():
            self._sum(name, values.sum(2))
            for pair in {name + name, f"a{name}"}:
                self._sum(pair, outputs[pair[0]].mT @ values)

    def _sum(self, name: str, values: Tensor) -> None:
        self.sums[name] = self.sums[name] + values if name in self.sums else values

    def changes(self) -> tuple[HeadChange, ...]:
        """Return all heads, the most changed first: by own change, or by the change in the run without it."""
        run, own = self._change("b"), self._change("c")
        distances = [(total / max(1, self.photographs)).tolist() for total in self.distances]
        heads = [
            HeadChange(
                block=block, head=head, own=float(own[block, head]), run=float(run[block, head]),
                distances=(distances[0][block][head], distances[1][block][head]),
            )
            for block in range(len(run)) for head in range(run.shape[1])
        ]  # fmt: skip
        return tuple(sorted(heads, key=lambda head: -(head.run if np.isnan(head.own) else head.own)))

    def _change(self, other: str) -> Tensor:
        """Return 1 minus the linear CKA of the first model's heads and others: (L, H); NaN without products."""
        if other not in self.sums:
            return torch.full_like(self.distances[0], torch.nan)
        added = {name: _added(model) for name, model in zip("abc", (*self.models, self.models[1]), strict=True)}

        def product(x: str, y: str) -> Tensor:  # squared norm of the cross-covariance of what two heads add
            means = self.sums[x][..., :, None] * self.sums[y][..., None, :] / self.tokens
            covariance = self.sums[x + y] - means  # (L, H, d, d')
            # |W X'Y V'|² = tr(W'W X'Y V'V Y'X), so that products of d x d numbers are enough
            return (added[x] @ covariance @ added[y] * covariance).sum((-2, -1))

        return 1.0 - product("a", other) / (product("a", "a") * product(other, other)).clamp_min(1e-300).sqrt()


def _outputs(model: ViT, trace: Trace) -> Tensor:
    """Return the outputs of a model's heads that read the tokens of a trace: (L, H, N, d), float64."""
    record, angles = Record(), model.angles(trace.grid)
    for index, block in enumerate(model.blocks):
        record.block(index, block, trace.stream(index), angles)
    return torch.stack([heads[0] for heads in record.heads]).cpu().double()


def _added(model: ViT) -> Tensor:
    """Return the Gram matrix of each head's part of the output projection: (L, H, d, d), float64."""
    grams = []
    for block in model.blocks:
        weight = block.attn.proj.weight.detach().cpu().double()  # (D, H d)
        scale = getattr(block.ls1, "gamma", None)
        weight = weight if scale is None else weight * scale.detach().cpu().double()[:, None]
        parts = weight.unflatten(1, (model.config.heads, -1)).permute(1, 0, 2)  # (H, D, d)
        grams.append(parts.mT @ parts)
    return torch.stack(grams)
