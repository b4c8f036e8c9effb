"""Compare two models over a folder: predictions that changed, heads that changed, and differences of maps.

Examples are a model before and after fine-tuning, a teacher and its student, and a model with and without an adapter.

Shapes: L blocks, H heads, N tokens, d head width, D width, gh x gw patches.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitviz.analysis.head_statistics import head_statistics
from vitviz.attribution.registry import DEFAULT, attribute
from vitviz.attribution.values import output_map
from vitviz.evaluation import EvaluationError, check_classifies
from vitviz.evaluation.records import Record as Row
from vitviz.evaluation.runs import Maps, Measure, Stage, Subject, run
from vitviz.fields import check_arguments
from vitviz.formatting import counted, number, text_table
from vitviz.images.folders import batches, find_images, spread
from vitviz.model.ops import Record
from vitviz.model.trace import Trace
from vitviz.model.vit import ViT, eval_mode
from vitviz.weights.checkpoint import fingerprint
from vitviz.writing import write_table

Floats = NDArray[np.float32]
KIND = "compare"
"""Task of the records."""
LISTED = 20  # number of heads in tables
MIN_TOKENS = 3  # more are needed for an unbiased alignment
FLIPS = (
    "Photographs for which the two models predict different classes. The table does not say which prediction is right, "
    "or why it changed: open the photographs."
)
COLUMNS = ("layer", "head", "change on same tokens", "change on own tokens", "distance before", "distance after")
MEANS = (
    "The heads that changed most. The change is 1 minus the linear CKA (centered kernel alignment, Kornblith et al. "
    "2019) between what a head adds to the tokens of a photograph in the first model and in the second; it is 0 if "
    "both are equal up to rotation and scale. The alignments are unbiased, and averaged over the photographs before "
    "they are divided (Nguyen et al. 2021). On same tokens: both heads read the tokens of the first model, so that "
    "changes of earlier layers do not count. On own tokens: each head reads the tokens of its "
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

    @property
    def change(self) -> float:
        """Return the change on the first model's tokens or, if it is NaN, on each model's own tokens."""
        return self.run if np.isnan(self.own) else self.own


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
        elif np.isnan(self.heads[0].run):
            words.append("The changes of heads are unknown, because the models have different numbers of tokens.")
        elif changed := [head for head in self.heads[:3] if head.change > 0]:
            named = ", ".join(f"{head.block + 1}.{head.head + 1}" for head in changed)
            words.append(f"The heads that changed most (layer.head): {named}.")
        else:
            words.append("No head changed.")
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
        parts = [self.describe(), *(["", FLIPS, "", text_table(flips, left=2)] if self.flips else [])]
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
    out: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Comparison:
    """Compare two classifiers on the photographs of a folder, each with its own preprocessing.

    Both maps explain the class that the first model predicts. If the second model has no class of this name, its map
    explains its own prediction. Under torchrun, the photographs are distributed over the processes.

    Args:
        first, second: converted classifiers with `pretrained`, such as before and after fine-tuning.
        folder: folder of photographs, searched recursively.
        method: attribution method of the maps.
        limit: maximum number of photographs, spread evenly over the subfolders.
        out: JSON lines file with one line per photograph, appended immediately. Existing records are reused.
        progress: show progress on standard error.

    Raises:
        EvaluationError: if a model has no classes, has windows or is captured, for a limit below 1, or if `out` has
            other settings.
        DataError: for a folder without images or with broken images.
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
    keys = [path.relative_to(root).as_posix() for path, _ in spread(find_images(root), limit)]
    settings = {
        "kind": KIND, "models": [about.name for about in abouts],
        "weights": [fingerprint(model) for model in (first, second)],
        "preprocess": [about.preprocess.to_dict() for about in abouts], "method": method,
    }  # fmt: skip

    def rows(photo: Subject, _maps: Maps, _others: Sequence[str]) -> list[Row]:
        assert isinstance(photo, _Pair)
        heads = {} if incomparable else _heads(photo.models, photo.traces)
        return [{"method": method, **_photograph(photo, method), **heads}]

    stage = Stage(
        keys=keys,
        subjects=lambda todo: _pairs((first, second), root, todo),
        measures=[Measure(task=KIND, rows=rows, others=(method,), of_methods=False)],
    )
    with eval_mode(second):
        found = run(first, [stage], (), settings, out=out, strict=True, progress=progress)
    records = [found[KIND, key, method] for key in keys]
    return Comparison(
        names=(abouts[0].name, abouts[1].name), folder=str(root), method=method,
        photographs=tuple(map(_change, records)), heads=() if incomparable else _changes(records),
        incomparable=incomparable,
    )  # fmt: skip


@dataclass(eq=False, kw_only=True)
class _Pair(Subject):
    """A photograph for two models; the target is the prediction of the first.

    Args:
        models: the two models.
        pixels: (1, channels, H, W) for each.
        traces: their traces.
    """

    models: tuple[ViT, ViT]
    pixels: Sequence[Tensor]
    traces: Sequence[Trace]


def _pairs(models: tuple[ViT, ViT], root: Path, keys: Sequence[str]) -> Iterator[_Pair]:
    files = [(root / key, 0) for key in keys]
    loaded = (batches(files, check_classifies(model).preprocess, 1) for model in models)
    for key, *both in zip(keys, *loaded, strict=True):
        pixels = [batch.images.to(next(model.parameters())) for model, batch in zip(models, both, strict=True)]
        with torch.no_grad():
            traces = [model.trace(each) for model, each in zip(models, pixels, strict=True)]
        assert traces[0].logits is not None  # checked: a classifier
        target = int(traces[0].logits[0].argmax())
        yield _Pair(
            key=key, model=models[0], images=pixels[0], target=target, models=models, pixels=pixels, traces=traces
        )


def _incomparable(first: ViT, second: ViT) -> str:
    """Return why the heads of two models have no counterparts in each other, or an empty text."""
    sizes = [f"{model.config.depth} layers of {model.config.heads} heads" for model in (first, second)]
    return "" if sizes[0] == sizes[1] else f"one model has {sizes[0]}, the other {sizes[1]}"


def _photograph(photo: _Pair, method: str) -> Row:
    """Return the predictions of both models, and the difference of their maps."""
    answers, confidences, maps = list[str](), list[float](), list[Tensor]()
    for model, given, trace in zip(photo.models, photo.pixels, photo.traces, strict=True):
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
    return {"answers": answers, "confidences": confidences, "difference": difference.tolist()}


def _change(record: Row) -> PhotoChange:
    before, after = zip(record["answers"], record["confidences"], strict=True)
    return PhotoChange(
        image=record["image"], answers=(before[0], after[0]), confidences=(before[1], after[1]),
        difference=np.array(record["difference"], np.float32),
    )  # fmt: skip


@torch.no_grad()
def _heads(models: tuple[ViT, ViT], traces: Sequence[Trace]) -> Row:
    """Return the alignments between outputs of heads on one photograph, (L, H) each, and the mean attention distances.

    The outputs are named "a" for the first model, "b" for the second, and "c" for the second on the first one's tokens.
    An alignment, such as "ab", is missing if the models' tokens have no counterparts.
    """
    outputs = {name: _outputs(model, trace) for name, model, trace in zip("ab", models, traces, strict=True)}
    first, second = (model.config for model in models)
    if first.width == second.width and first.prefix == second.prefix and traces[0].grid == traces[1].grid:
        outputs["c"] = _outputs(models[1], traces[0])
    is_comparable = outputs["a"].shape[2] == outputs["b"].shape[2] > MIN_TOKENS
    pairs = [pair for pair in ("aa", "ab", "bb", "ac", "cc") if is_comparable and {*pair} <= {*outputs}]
    distances = [
        head_statistics(model, trace, names=["distance"])["distance"].tolist()
        for model, trace in zip(models, traces, strict=True)
    ]
    alignments = {pair: _alignment(outputs[pair[0]], outputs[pair[1]]).tolist() for pair in pairs}
    return {"alignments": alignments, "distances": distances}


def _alignment(x: Tensor, y: Tensor) -> Tensor:
    """Return the unbiased linear alignment (HSIC) of values over N tokens: two (L, H, N, d) -> (L, H).

    Song et al. 2012, "Feature Selection via Dependence Maximization", equation 5, for the kernels x x' and y y'.
    """
    count = x.shape[2]
    norms = [values.square().sum(-1) for values in (x, y)]  # (L, H, N), the diagonals, which do not count
    rows = [
        (values @ values.sum(2)[..., None])[..., 0] - norm for values, norm in zip((x, y), norms, strict=True)
    ]  # (L, H, N), the sums of the rows of both kernels
    both = (x.mT @ y).square().sum((-2, -1)) - (norms[0] * norms[1]).sum(-1)
    sums = rows[0].sum(-1) * rows[1].sum(-1) / (count - 1) / (count - 2)
    return (both + sums - 2 / (count - 2) * (rows[0] * rows[1]).sum(-1)) / (count * (count - 3))


def _changes(records: Sequence[Row]) -> tuple[HeadChange, ...]:
    """Return all heads, the most changed first."""
    distances = np.mean([record["distances"] for record in records], axis=0)  # (2, L, H)
    run, own = (_mean_change(records, other, distances.shape[1:]) for other in "bc")
    heads = [
        HeadChange(
            block=block, head=head, own=float(own[block, head]), run=float(run[block, head]),
            distances=(float(distances[0, block, head]), float(distances[1, block, head])),
        )
        for block, head in np.ndindex(run.shape)
    ]  # fmt: skip
    return tuple(sorted(heads, key=lambda head: -head.change))


def _mean_change(records: Sequence[Row], other: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return 1 minus the linear CKA between outputs "a" and other outputs: (L, H); NaN if no photograph has both."""
    found = [record["alignments"] for record in records if f"a{other}" in record["alignments"]]
    if not found:
        return np.full(shape, np.nan)
    both, first, second = (np.mean([each[pair] for each in found], axis=0) for pair in (f"a{other}", "aa", other * 2))
    changes = 1.0 - both / np.sqrt(np.maximum(first * second, 1e-300))
    return np.asarray(changes.round(12)) + 0.0  # rounding errors are no change; + 0.0 turns -0.0 into 0.0


def _outputs(model: ViT, trace: Trace) -> Tensor:
    """Return what the heads that read the tokens of a trace add to them, up to rotation: (L, H, N, d), float64."""
    record, angles = Record(), model.angles(trace.grid)
    for index, block in enumerate(model.blocks):
        record.block(index, block, trace.stream(index), angles)
    return torch.stack([heads[0] for heads in record.heads]).cpu().double() @ _added(model)


def _added(model: ViT) -> Tensor:
    """Return a root R of the Gram matrix R R' of each head's part of the output projection: (L, H, d, d), float64.

    Values times R have the same scalar products as what the head adds to the tokens, in d dimensions instead of D.
    """
    roots = []
    for block in model.blocks:
        parts = output_map(block).detach().cpu().unflatten(1, (model.config.heads, -1)).permute(1, 0, 2)  # (H, D, d)
        roots.append(torch.linalg.qr(parts).R.mT)
    return torch.stack(roots)
