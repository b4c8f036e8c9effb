"""How often a classifier is right on a folder of photographs, fed exactly as a visitor's photograph is."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from vitviz.image import ImageError, decode
from vitviz.model import Pretrained, ViT
from vitviz.preprocess import Preprocess

SUFFIXES = (
    ".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".jp2", ".ppm", ".pgm"
)  # fmt: skip
"""Files that count as images, in lower case. One that then cannot be decoded is an error, not left out."""

Labelled = tuple[Path, int]


class ValidationError(ValueError):
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
    found = _spread(_find_images(Path(folder), about), limit)
    began, classes = time.perf_counter(), len(about.labels)
    counts, right, right5 = (torch.zeros(classes, dtype=torch.long) for _ in range(3))
    training = model.training
    model.eval()
    try:
        for images, truth in _batches(found, about.preprocess, batch_size):
            best = _ranking(model, images)  # (n, 5)
            counts += truth.bincount(minlength=classes)
            right += truth[best[:, 0] == truth].bincount(minlength=classes)
            right5 += truth[(best == truth[:, None]).any(1)].bincount(minlength=classes)
            if progress:
                done, at = int(counts.sum()), int(right.sum()) / int(counts.sum())
                _show(f"\r{done:,} of {len(found):,} images, top-1 {at:.2%} ")
    finally:
        model.train(training)
        if progress:
            _show("\n")
    there = counts.nonzero().flatten().tolist()
    return Validation(
        model=about.name,
        labels=tuple(about.labels[index] for index in there),
        counts=tuple(counts[there].tolist()),
        right=tuple(right[there].tolist()),
        right5=tuple(right5[there].tolist()),
        seconds=time.perf_counter() - began,
    )


def _show(text: str) -> None:
    """Progress is for people who watch, not for log files."""
    if sys.stderr.isatty():
        sys.stderr.write(text)
        sys.stderr.flush()


def _ranking(model: ViT, images: Tensor) -> Tensor:
    """The five most probable classes, best first: (n, 3, H, W) -> (n, 5), or fewer columns for fewer classes."""
    logits = model(images.to(next(model.parameters()).device)).cpu()  # (n, C)
    if not bool(logits.isfinite().all()):
        raise ValidationError("The model answers with NaN or infinity: its weights or its precision are at fault.")
    best: Tensor = logits.topk(min(5, logits.shape[1])).indices
    return best


def _find_images(folder: Path, about: Pretrained) -> dict[int, list[Path]]:
    """Image files by the index of their class."""
    if not folder.is_dir():
        raise ValidationError(f"Expected a folder with one subfolder for each class, but {str(folder)!r} is none.")
    classes = _class_names(about)
    inside = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    known = ", ".join((about.class_ids or about.labels)[:12])
    if unknown := [path.name for path in inside if path.name not in classes]:
        raise ValidationError(
            f"{str(folder)!r} has subfolders that are no classes of this model: {_some(unknown)}. "
            f"Expected its labels or class ids: {known}."
        )
    found: dict[int, list[Path]] = {}
    for path in inside:
        images = sorted(file for file in path.iterdir() if _is_image(file))
        if images:
            found.setdefault(classes[path.name], []).extend(images)
    if not found:
        raise ValidationError(
            f"Expected {str(folder)!r} to hold images in one subfolder for each class, found none. "
            f"The subfolders are named after labels or class ids: {known}."
        )
    return found


def _class_names(about: Pretrained) -> dict[str, int]:
    """Names of class folders -> index. Labels that two classes share (ImageNet has two cranes) are left out."""
    once = {label: index for index, label in enumerate(about.labels) if about.labels.count(label) == 1}
    return once | {wnid: index for index, wnid in enumerate(about.class_ids)}


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in SUFFIXES and not file.name.startswith(".")


def _spread(found: dict[int, list[Path]], limit: int | None) -> list[Labelled]:
    """All images, or `limit` of them: the first of each class, then the second of each, and so on."""
    if limit is None:
        return [(path, index) for index, paths in found.items() for path in paths]
    turns = [(turn, index, path) for index, paths in found.items() for turn, path in enumerate(paths)]
    return [(path, index) for _, index, path in sorted(turns)[:limit]]


def _batches(found: list[Labelled], preprocess: Preprocess, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(images (n, 3, H, W), classes (n,)), one image size a batch and not many images in waiting."""
    waiting: dict[tuple[int, ...], list[tuple[Tensor, int]]] = {}
    for position, (path, index) in enumerate(found):
        try:
            pixels = torch.from_numpy(preprocess(decode(path)).pixels)
        except ImageError as error:
            _refuse_broken(error, found[position:], preprocess)
        same = waiting.setdefault(tuple(pixels.shape), [])
        same.append((pixels, index))
        if len(same) == size or sum(map(len, waiting.values())) >= 4 * size:
            yield _stack(waiting.pop(max(waiting, key=lambda shape: len(waiting[shape]))))
    for same in waiting.values():
        yield _stack(same)


def _stack(same: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    return torch.stack([pixels for pixels, _ in same]), torch.tensor([index for _, index in same])


def _refuse_broken(first: ImageError, rest: list[Labelled], preprocess: Preprocess) -> NoReturn:
    """Name every file from the first broken one on that cannot be read: predicting has stopped, decoding is quick."""
    broken = [f"{path.parent.name}/{path.name}" for path, _ in rest if _is_broken(path, preprocess)]
    raise ValidationError(
        f"{len(broken)} files cannot be read as images: {_some(broken)}. Mend or remove them. The first: {first}"
    ) from first


def _is_broken(path: Path, preprocess: Preprocess) -> bool:
    try:
        preprocess(decode(path))
    except ImageError:
        return True
    return False


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
