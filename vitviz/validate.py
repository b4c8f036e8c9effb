"""How often a classifier is right on a folder of photographs, fed exactly as a visitor's photograph is."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vitviz.folders import FolderError, batches, find_classes, show, spread
from vitviz.model import ViT

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
    """

    model: str
    labels: tuple[str, ...]
    counts: tuple[int, ...]
    right: tuple[int, ...]
    right5: tuple[int, ...]
    seconds: float

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
    folder: str | os.PathLike[str],
    *,
    batch_size: int = 32,
    limit: int | None = None,
    progress: bool = True,
) -> Validation:
    """Count the right answers on a folder with one subfolder of images for each class.

    Every image goes through `decode` and the model's own `Preprocess`. The model runs where it is, in eval mode.

    Args:
        model: a classifier with `pretrained`; its labels or class ids are the names of the subfolders.
        folder: FOLDER/CLASS/image. Classes may be missing; unknown subfolders are refused.
        batch_size: images at once; images of other sizes than their neighbours wait for their like.
        limit: at most so many images, spread evenly over the classes.
        progress: write a line that counts up to standard error, when that is a terminal.

    Raises:
        ValidationError: if the model has no classifier, a subfolder is no class of it, there are no images, files
            cannot be decoded (all are named), or the model answers with NaN.
    """
    about = model.pretrained
    if about is None or not about.labels:
        raise ValidationError("Expected a model with a classifier and labels for its classes, got one without.")
    for name, value in (("batch_size", batch_size), ("limit", limit)):
        if value is not None and value < 1:
            raise ValidationError(f"{name}: expected a whole number of at least 1, got {value}.")
    found = spread(find_classes(Path(folder), about), limit)
    began, classes = time.perf_counter(), len(about.labels)
    counts, right, right5 = (torch.zeros(classes, dtype=torch.long) for _ in range(3))
    training = model.training
    model.eval()
    try:
        for batch in batches(found, about.preprocess, batch_size):
            best, truth = _ranking(model, batch.images), batch.classes  # (n, 5), (n,)
            counts += truth.bincount(minlength=classes)
            right += truth[best[:, 0] == truth].bincount(minlength=classes)
            right5 += truth[(best == truth[:, None]).any(1)].bincount(minlength=classes)
            if progress:
                done, at = int(counts.sum()), int(right.sum()) / int(counts.sum())
                show(f"\r{done:,} of {len(found):,} images, top-1 {at:.2%} ")
    finally:
        model.train(training)
        if progress:
            show("\n")
    there = counts.nonzero().flatten().tolist()
    return Validation(
        model=about.name,
        labels=tuple(about.labels[index] for index in there),
        counts=tuple(counts[there].tolist()),
        right=tuple(right[there].tolist()),
        right5=tuple(right5[there].tolist()),
        seconds=time.perf_counter() - began,
    )


def _ranking(model: ViT, images: Tensor) -> Tensor:
    """The five most probable classes, best first: (n, 3, H, W) -> (n, 5), or fewer columns for fewer classes."""
    logits = model(images.to(next(model.parameters()).device)).cpu()  # (n, C)
    if not bool(logits.isfinite().all()):
        raise ValidationError("The model answers with NaN or infinity: its weights or its precision are at fault.")
    best: Tensor = logits.topk(min(5, logits.shape[1])).indices
    return best
