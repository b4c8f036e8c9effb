"""How often a classifier is right on a folder or a data set, each image fed exactly as a visitor's photograph is."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitviz.folders import FolderError, batches, class_names, find_classes, show, spread
from vitviz.image import decode
from vitviz.model import Pretrained, ViT
from vitviz.preprocess import Preprocess
from vitviz.training.sources import NAMES, Found, Side, find

ValidationError = FolderError
"""A model or a folder that cannot be validated; the text says what was expected, what came and what to do."""


@dataclass(frozen=True, kw_only=True)
class Validation:
    """What a validation found.

    Args:
        model: the model's name.
        labels: the classes that occur in the data, in the order of the model's outputs.
        counts, right, right5: for each of these, how many images there are, how many have it as the most probable
            class, and how many among the five most probable.
        seconds: how long reading and predicting took.
        every: all classes that the model knows.
        answers: how many images of one class, by its index in `every`, were taken for another or itself.
    """

    model: str
    labels: tuple[str, ...]
    counts: tuple[int, ...]
    right: tuple[int, ...]
    right5: tuple[int, ...]
    seconds: float
    every: tuple[str, ...] = field(default=(), repr=False)
    answers: Mapping[tuple[int, int], int] = field(default_factory=dict, repr=False)

    @property
    def images(self) -> int:
        """How many images were looked at."""
        return sum(self.counts)

    @property
    def top1(self) -> float:
        """Share of the images whose most probable class is the right one, 0..1."""
        return sum(self.right) / self.images

    @property
    def top5(self) -> float:
        """Share of the images whose class is among the five most probable (all, where there are fewer), 0..1."""
        return sum(self.right5) / self.images

    @property
    def per_class(self) -> tuple[tuple[str, int, float], ...]:
        """For each class that occurs: its label, its images, and the share whose most probable class it is, 0..1."""
        rows = zip(self.labels, self.counts, self.right, strict=True)
        return tuple((label, count, right / count) for label, count, right in rows)

    def confusion(self) -> tuple[tuple[str, ...], NDArray[np.int64]]:
        """The labels of the K classes that occur, as truth or as an answer, and what was taken for what.

        Returns:
            The labels, and counts (K, K): row i, column j, how many images of class i were taken for class j.
        """
        there = sorted({index for pair in self.answers for index in pair})
        place = {index: at for at, index in enumerate(there)}
        counts = np.zeros((len(there), len(there)), np.int64)
        for (true, said), count in self.answers.items():
            counts[place[true], place[said]] = count
        return tuple(self.every[index] for index in there), counts

    def mistakes(self, most: int = 10) -> list[tuple[str, str, int]]:
        """What is taken for what most often: (true label, answered label, how many images), the most frequent first."""
        wrong = [(count, true, said) for (true, said), count in self.answers.items() if true != said]
        ranked = sorted(wrong, key=lambda one: (-one[0], one[1], one[2]))[:most]
        return [(self.every[true], self.every[said], count) for count, true, said in ranked]

    def table(self) -> str:
        """The result as lines for a terminal."""
        width = max(len("all"), *map(len, self.labels))
        lines = [f"{self.model}: {self.images:,} images in {self.seconds:.1f} s", ""]
        lines.append(f"{'class':<{width}}  {'images':>7}  {'top-1':>8}  {'top-5':>8}")
        rows = [*zip(self.labels, self.counts, self.right, self.right5, strict=True)]
        for label, count, right, right5 in [*rows, ("all", self.images, sum(self.right), sum(self.right5))]:
            lines.append(f"{label:<{width}}  {count:>7,}  {right / count:>8.2%}  {right5 / count:>8.2%}")
        return "\n".join(lines)


@torch.inference_mode()
def validate(
    model: ViT,
    data: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    batch_size: int = 32,
    limit: int | None = None,
    progress: bool = True,
) -> Validation:
    """Count the right answers on a folder with one subfolder of images for each class, or on a data set.

    Every image goes through `decode` and the model's own `Preprocess`. The model runs where it is, in eval mode.

    Args:
        model: a classifier with `pretrained`; its labels or class ids are the names of the subfolders.
        data: FOLDER/CLASS/image; classes may be missing, unknown subfolders are refused. Of a folder with train/ and
            val/ (or test/) it is the latter. Or a name in `vitviz.training.sources.NAMES`, such as "cifar10".
        root: where a named data set lies; by default the user's cache.
        batch_size: images at once; images of other sizes than their neighbours wait for their like.
        limit: at most so many images, spread evenly over the classes.
        progress: write a line that counts up to standard error, when that is a terminal.

    Raises:
        ValidationError: if the model has no classifier, a subfolder is no class of it, there are no images, files
            cannot be decoded (all are named), or the model answers with NaN.
        DataError: if there is no such data set.
    """
    about = model.pretrained
    if about is None or not about.labels:
        raise ValidationError("Expected a model with a classifier and labels for its classes, got one without.")
    for name, value in (("batch_size", batch_size), ("limit", limit)):
        if value is not None and value < 1:
            raise ValidationError(f"{name}: expected a whole number of at least 1, got {value}.")
    total, source = _images(data, root, about, batch_size, limit)
    began, classes = time.perf_counter(), len(about.labels)
    counts, right5 = (torch.zeros(classes, dtype=torch.long) for _ in range(2))
    answers: Counter[tuple[int, int]] = Counter()
    training = model.training
    model.eval()
    try:
        for images, truth in source:
            best = _ranking(model, images)  # (n, 5), (n,)
            counts += truth.bincount(minlength=classes)
            right5 += truth[(best == truth[:, None]).any(1)].bincount(minlength=classes)
            answers.update(zip(truth.tolist(), best[:, 0].tolist(), strict=True))
            if progress:
                done, right = int(counts.sum()), sum(answers[index, index] for index in range(classes))
                show(f"\r{done:,} of {total:,} images, top-1 {right / done:.2%} ")
    finally:
        model.train(training)
        if progress:
            show("\n")
    there = counts.nonzero().flatten().tolist()
    return Validation(
        model=about.name,
        labels=tuple(about.labels[index] for index in there),
        counts=tuple(counts[there].tolist()),
        right=tuple(answers[index, index] for index in there),
        right5=tuple(right5[there].tolist()),
        seconds=time.perf_counter() - began,
        every=about.labels,
        answers={pair: count for pair, count in answers.items() if count},
    )


Batches = Iterator[tuple[Tensor, Tensor]]


def _images(
    data: str | os.PathLike[str], root: str | os.PathLike[str] | None, about: Pretrained, size: int, limit: int | None
) -> tuple[int, Batches]:
    """How many images there are to look at, and these, ready for the model: (n, 3, H, W) and their classes (n,)."""
    folder, known = Path(data), class_names(about)
    if not (isinstance(data, str) and data in NAMES) and ("train" in known or not (folder / "train").is_dir()):
        if root is not None:
            raise ValidationError(f"root is for data sets with a name ({', '.join(NAMES)}); {str(folder)!r} is none.")
        found = spread(find_classes(folder, about), limit)
        return len(found), ((batch.images, batch.classes) for batch in batches(found, about.preprocess, size))
    source = find(data, root)
    by_class = _by_class(source, _places(source, known))
    chosen = spread(by_class, limit)  # places in the data set, with the model's classes
    if source.val.paths is not None:
        files = [(source.val.paths[at], index) for at, index in chosen]
        return len(files), ((batch.images, batch.classes) for batch in batches(files, about.preprocess, size))
    return len(chosen), _from_memory(source.val, chosen, about.preprocess, size)


def _places(source: Found, known: Mapping[str, int]) -> list[int]:
    """Where each class of a data set is among the model's outputs."""
    pairs = zip(source.class_ids, source.labels, strict=True)
    places = [known.get(class_id, known.get(label)) for class_id, label in pairs]
    if missing := [label for label, place in zip(source.labels, places, strict=True) if place is None]:
        raise ValidationError(
            f"Expected a model that knows the {len(places)} classes of {source.name}; it lacks "
            f"{', '.join(missing[:5])}{' and more' if len(missing) > 5 else ''}. It knows {', '.join([*known][:8])}."
        )
    return [place for place in places if place is not None]


def _by_class(source: Found, places: Sequence[int]) -> dict[int, list[int]]:
    """The images of the validation side, by their place in it, under the model's class."""
    found: dict[int, list[int]] = {place: [] for place in places}
    for at, index in enumerate(source.val.classes.tolist()):
        found[places[index]].append(at)
    return found


def _from_memory(side: Side, chosen: Sequence[tuple[int, int]], preprocess: Preprocess, size: int) -> Batches:
    """Images of an archive; they have one size, and so have the model's."""
    assert side.images is not None  # a side has files, or images in memory
    for start in range(0, len(chosen), size):
        some = chosen[start : start + size]
        photos = [decode(side.images[at].permute(1, 2, 0).numpy()) for at, _ in some]  # (c, h, w) -> (h, w, c)
        pixels = [torch.from_numpy(preprocess(photo).pixels) for photo in photos]
        yield torch.stack(pixels), torch.tensor([index for _, index in some])


def _ranking(model: ViT, images: Tensor) -> Tensor:
    """The five most probable classes, best first: (n, 3, H, W) -> (n, 5), or fewer columns for fewer classes."""
    weight = next(model.parameters())
    logits = model(images.to(weight.device, weight.dtype)).float().cpu()  # (n, C)
    if not bool(logits.isfinite().all()):
        raise ValidationError("The model answers with NaN or infinity: its weights or its precision are at fault.")
    best: Tensor = logits.topk(min(5, logits.shape[1])).indices
    return best
