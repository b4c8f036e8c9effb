"""Compare two models over a folder: predictions that changed, heads that changed, and differences of maps.

Examples are a model before and after fine-tuning, a teacher and its student, and a model with and without an adapter.

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
LISTED = 20  # number of heads in tables
COLUMNS = ("layer", "head", "change on same tokens", "change on own tokens", "distance before", "distance after")
MEANS = (
    "The heads that changed most. The change is 1 minus the linear CKA (centered kernel alignment, Kornblith et al. "
    "2019) between what a head adds to the tokens in the first model and in the second, over all tokens of all "
    "photographs; it is 0 if both are equal up to rotation and scale. On same tokens: both heads read the tokens of "
    "the first model, so that changes of earlier layers do not count. On own tokens: each head reads the tokens of its "
    "own model, so that they do count. Distance is the mean attention distance, in patches."
)
MEANS_NOT = (
    "A changed head need not affect any prediction, and predictions can also change because of MLPs or the classifier."
)


@dataclass(frozen=True, eq=False, kw_only=True)
class PhotoChange:
    """Predictions and maps of both models for one photograph.

    Args:
        image: path below the folder.
        answers: classes that the first and the second model predict.
        confidences: their probabilities.
        difference: (gh, gw), the second map minus the first one, each divided by its mean over the patches.
    """

    image: str
    answers: tuple[str, str]
    confidences: tuple[float, float]
    difference: Floats = field(repr=False)

    @property
    def flipped(self) -> bool:
        """Return whether the prediction changed."""
        return self.answers[0] != self.answers[1]


@dataclass(frozen=True, kw_only=True)
class HeadChange:
    """Change of a head, see `MEANS`; NaN where the models' tokens cannot be compared.

    Args:
        block, head: from 0.
        own: change on the tokens of the first model.
        run: change on each model's own tokens.
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
        photographs: one for each photograph.
        heads: all heads, the most changed first; empty if they cannot be compared.
        incomparable: why the heads cannot be compared; empty if they can.
    """

    names: tuple[str, str]
    folder: str
    method: str
    photographs: tuple[PhotoChange, ...] = field(repr=False)
    heads: tuple[HeadChange, ...] = field(repr=False)
    incomparable: str = ""

    @property
    def flips(self) -> tuple[tuple[str, str, int], ...]:
        """Return the changed predictions, most frequent first: class before, class after, number of photographs."""
        counts = Counter(photo.answers for photo in self.photographs if photo.flipped)
        return tuple((before, after, count) for (before, after), count in counts.most_common())

    @property
    def scale(self) -> float:
        """Return the difference at the end of the color scale of all maps: the 99th percentile of absolute values."""
        sizes = np.concatenate([np.abs(photo.difference).ravel() for photo in self.photographs])
        return float(np.quantile(sizes, 0.99)) or 1.0

    def describe(self) -> str:
        """Return a summary: how many predictions changed, and which heads changed most."""
        flipped, total = sum(photo.flipped for photo in self.photographs), counted(len(self.photographs), "photograph")
        words = [f"The prediction changed for {flipped} of {total}."]
        if self.incomparable:
            words.append(f"Heads are not compared: {self.incomparable}.")
        elif changed := self.heads[:3]:
            named = ", ".join(f"{head.block + 1}.{head.head + 1}" for head in changed)
            words.append(f"The heads that changed most (layer.head): {named}.")
        return " ".join(words)

    def cells(self, listed: int | None = LISTED) -> list[list[str]]:
        """Return a table of the most changed heads as text, header first; layers and heads count from 1."""
        rows = [
            [str(head.block + 1), str(head.head + 1), *map(number, (head.own, head.run, *head.distances))]
            for head in self.heads[:listed]
        ]
        return [[*COLUMNS], *rows]

    def table(self) -> str:
        """Return the summary, the tables and their explanation, for a terminal."""
        flips = [
            ["before", "after", "photographs"],
            *([before, after, str(count)] for before, after, count in self.flips),
        ]
        parts = [self.describe(), *(["", text_table(flips, left=2)] if self.flips else [])]
        parts += [] if self.incomparable else ["", MEANS, MEANS_NOT, "", text_table(self.cells(), left=0)]
        return "\n".join(parts)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all heads as CSV; layers and heads count from 1."""
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

    Both maps explain the class that the first model predicts. If the second model has no class of this name, its map
    explains its own prediction.

    Args:
        first, second: converted classifiers with `pretrained`, such as before and after fine-tuning.
        folder: folder of photographs, searched recursively.
        method: attribution method of the maps.
        limit: maximum number of photographs, spread evenly over the subfolders.
        progress: show progress on standard error.

    Raises:
        EvaluationError: if a model has no classes, has windows or is captured, or for a limit below 1.
        DataError: for a folder without images.
        ImageError: if a photograph cannot be read.
    """
    abouts = check_classifies(first), check_classifies(second)
    if not (first.removes_patches and second.removes_patches):
        raise EvaluationError(
            "Expected two converted models without windows, got one with windows or a captured module. Compare them "
            "in the two panes of the page."
        )
    if limit is not None and limit < 1:
        raise EvaluationError(f"Expected a limit of at least 1, got {limit}. Change it.")
    root, incomparable = Path(folder), _incomparable(first, second)
    photos = [path for path, _ in spread(find_images(root), limit)]
    heads, records = None if incomparable else _HeadSums(first, second), list[PhotoChange]()
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
        heads=() if heads is None else heads.changes(), incomparable=incomparable,
    )  # fmt: skip


def _incomparable(first: ViT, second: ViT) -> str:
    """Return why the heads of two models have no counterparts in each other, or an empty text."""
    sizes = [f"{model.config.depth} layers of {model.config.heads} heads" for model in (first, second)]
    return "" if sizes[0] == sizes[1] else f"one model has {sizes[0]}, the other {sizes[1]}"


def _pixels(model: ViT, pixels: Any) -> Tensor:
    weight = next(model.parameters())
    return torch.from_numpy(pixels)[None].to(weight.device, weight.dtype)


def _photograph(
    models: tuple[ViT, ViT], pixels: Sequence[Tensor], traces: Sequence[Trace], method: str, image: str
) -> PhotoChange:
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
    return PhotoChange(
        image=image, answers=(answers[0], answers[1]), confidences=(confidences[0], confidences[1]),
        difference=difference.numpy().astype(np.float32),
    )  # fmt: skip


class _HeadSums:
    """Accumulate sums over photographs, from which the linear CKA of heads is computed in constant memory.

    The outputs are named "a" for the first model, "b" for the second, and "c" for the second on the first one's tokens.

    Args:
        first, second: models with the same number of layers and heads.
    """

    def __init__(self, first: ViT, second: ViT) -> None:
        self.models, self.tokens, self.photographs = (first, second), 0, 0
        self.exchangeable = first.config.width == second.config.width and first.config.prefix == second.config.prefix
        self.sums: dict[str, Tensor] = {}  # (L, H, d, d) products, or (L, H, d) sums
        self.distances = [torch.zeros(first.config.depth, first.config.heads, dtype=torch.float64) for _ in range(2)]

    @torch.no_grad()
    def add(self, traces: Sequence[Trace]) -> None:
        """Add a photograph, given the traces of both models."""
        outputs = {name: _outputs(model, trace) for name, model, trace in zip("ab", self.models, traces, strict=True)}
        if self.exchangeable and traces[0].grid == traces[1].grid:
            outputs["c"] = _outputs(self.models[1], traces[0])
        if outputs["a"].shape[2] == outputs["b"].shape[2]:  # otherwise, tokens have no counterparts
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
        """Return all heads, the most changed first: by the change on same tokens or, if it is NaN, on own tokens."""
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
        """Return 1 minus the linear CKA between outputs "a" and other outputs: (L, H); NaN if there are none."""
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
