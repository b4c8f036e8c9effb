"""Measure accuracy: loss, top-1, top-5 and confusion over batches, a folder or a named data set.

Shapes: n images, k per batch, C classes, K classes that occur in the data or predictions.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitviz.evaluation import EvaluationError, check_classifies
from vitviz.formatting import abbreviate, percent, short_repr, text_table
from vitviz.images.datasets import NAMES, Dataset, Samples, find_dataset
from vitviz.images.decoding import decode
from vitviz.images.folders import batches, class_names, find_classes, spread
from vitviz.images.preprocess import Preprocess
from vitviz.model.vit import Pretrained, ViT, eval_mode
from vitviz.progress import bar

Batches = Iterable[tuple[Tensor, Tensor]]
Gather = Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]


@dataclass(frozen=True, eq=False, kw_only=True)
class Accuracy:
    """Predictions of a classifier for labelled images, with derived measures.

    Args:
        labels: the C classes, in the order of the model's outputs.
        true, predicted: (n,) int64, true and most probable class of each image.
        in_top5: (n,) bools, whether the true class is among the five most probable.
        losses: (n,), cross-entropy.
        model: name of the model.
        seconds: run time, including reading the images.
    """

    labels: tuple[str, ...]
    true: NDArray[np.int64]
    predicted: NDArray[np.int64]
    in_top5: NDArray[np.bool_]
    losses: NDArray[np.float64]
    model: str = ""
    seconds: float = 0.0

    __repr__ = short_repr

    @property
    def images(self) -> int:
        """Return the number of images."""
        return len(self.true)

    @property
    def loss(self) -> float:
        """Return the mean cross-entropy."""
        return float(self.losses.mean())

    @property
    def top1(self) -> float:
        """Return the top-1 accuracy, 0..1."""
        return float((self.true == self.predicted).mean())

    @property
    def top5(self) -> float:
        """Return the top-5 accuracy, 0..1."""
        return float(self.in_top5.mean())

    @property
    def per_class(self) -> tuple[tuple[str, int, float, float], ...]:
        """Return label, number of images, top-1 and top-5 accuracy of each class that occurs."""
        counts, top1, top5 = (
            np.bincount(self.true, weights=weights, minlength=len(self.labels))
            for weights in (None, self.true == self.predicted, self.in_top5)
        )
        return tuple(
            (self.labels[index], int(counts[index]), float(top1[index] / count), float(top5[index] / count))
            for index, count in enumerate(counts)
            if count
        )

    def confusion(self) -> tuple[tuple[str, ...], NDArray[np.int64]]:
        """Return the labels of the K classes that occur, true or predicted, and the confusion matrix.

        Returns:
            The labels, and counts (K, K): entry (i, j) counts images of class i predicted as class j.
        """
        classes, places = np.unique(np.concatenate([self.true, self.predicted]), return_inverse=True)
        counts = np.zeros((len(classes), len(classes)), np.int64)
        np.add.at(counts, (places[: self.images], places[self.images :]), 1)
        return tuple(self.labels[index] for index in classes), counts

    def mistakes(self, most: int = 10) -> list[tuple[str, str, int]]:
        """Return the most frequent confusions: (true label, predicted label, number of images)."""
        wrong = self.true != self.predicted
        pairs, counts = np.unique(np.stack([self.true, self.predicted])[:, wrong], axis=1, return_counts=True)
        order = np.argsort(-counts, kind="stable")[:most]
        return [(self.labels[pairs[0, index]], self.labels[pairs[1, index]], int(counts[index])) for index in order]

    def table(self) -> str:
        """Return the accuracy of each class and of all classes as text for a terminal."""
        rows = [*self.per_class, ("all", self.images, self.top1, self.top5)]
        cells = [[label, f"{count:,}", percent(top1, 4), percent(top5, 4)] for label, count, top1, top5 in rows]
        title = f"{self.model}: {self.images:,} images in {self.seconds:.1f} s"
        return "\n".join([title, "", text_table([["class", "images", "top-1", "top-5"], *cells])])


@torch.no_grad()
def measure_accuracy(
    network: nn.Module,
    data: Batches,
    labels: Sequence[str],
    *,
    gather: Gather = tuple,
    progress: Callable[[int, float], object] | None = None,
    model: str = "",
) -> Accuracy:
    """Measure a classifier on batches of labelled images.

    Args:
        network: inputs -> logits (k, C); put into eval mode temporarily.
        data: batches of inputs and their classes (k,), on the network's device.
        labels: labels of the C classes.
        gather: concatenates tensors (k,) of all processes, e.g. `accelerate.Accelerator.gather_for_metrics`.
        progress: called after each batch with the number of images and their top-1 accuracy.
        model: name of the model.

    Raises:
        EvaluationError: if there are no images, or logits are NaN or infinite.
    """
    began = time.perf_counter()
    results: list[tuple[Tensor, ...]] = []  # true, predicted, in the top 5, loss: (k,) each
    done = correct = 0
    with eval_mode(network):
        for inputs, true in data:
            logits = network(inputs).float()  # (k, C)
            if not bool(logits.isfinite().all()):
                raise EvaluationError("Expected finite logits, got NaN or infinity. Check the weights and precision.")
            best = logits.topk(min(5, logits.shape[1])).indices  # (k, 5)
            losses = F.cross_entropy(logits, true, reduction="none")  # (k,)
            gathered = gather((true, best[:, 0], (best == true[:, None]).any(1), losses))
            results.append(tuple(tensor.cpu() for tensor in gathered))
            done, correct = done + len(gathered[0]), correct + int((gathered[0] == gathered[1]).sum())
            if progress is not None:
                progress(done, correct / done)
    if not results:
        raise EvaluationError("Expected at least one batch of images, got none. Check the data.")
    all_true, predicted, in_top5, all_losses = (torch.cat(parts).numpy() for parts in zip(*results, strict=True))
    return Accuracy(
        labels=tuple(labels),
        true=all_true,
        predicted=predicted,
        in_top5=in_top5,
        losses=all_losses.astype(np.float64),
        model=model,
        seconds=time.perf_counter() - began,
    )


def validate(
    model: ViT,
    data: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    size: int | None = None,
    batch_size: int = 32,
    limit: int | None = None,
    progress: bool = True,
) -> Accuracy:
    """Measure accuracy on a folder with one subfolder per class, or on a named data set.

    Each image goes through `decode` and the model's `Preprocess`. The model runs on its device in eval mode.

    Args:
        model: a classifier with `pretrained`, whose labels or class ids name the subfolders.
        data: FOLDER/CLASS/image, where classes may be missing; a folder with train/ and val/ (or test/), where
            train/ is ignored; or a name in `vitviz.images.datasets.NAMES`, such as "cifar10".
        root: folder of a named data set; by default the user's cache.
        size: input size in pixels, see `Preprocess.at`; by default, the model's own size. Learned positions are
            interpolated.
        batch_size: images per batch; only images of equal size run together.
        limit: maximum number of images, spread evenly over the classes.
        progress: show progress on standard error.

    Raises:
        EvaluationError: if the model has no classifier, lacks classes of the data set, or returns logits that are not
            finite.
        ImageError: if the size is below one patch or too large.
        DataError: if a subfolder is not a class of the model, there are no images, files cannot be decoded (the message
            lists all of them), or the data set does not exist.
    """
    about = check_classifies(model)
    if min(batch_size, 1 if limit is None else limit) < 1:
        raise EvaluationError(f"Expected batch_size and limit of at least 1, got {batch_size} and {limit}. Raise them.")
    if size is not None:
        about = replace(about, preprocess=about.preprocess.at(size, model.config.size_multiple))
    total, source = _images(data, root, about, batch_size, limit)
    weight = next(model.parameters())
    moved = ((images.to(weight.device, weight.dtype), true.to(weight.device)) for images, true in source)
    with bar(total, show=progress) as counted:

        def count_up(done: int, top1: float) -> None:
            counted.set_postfix_str(f"top-1 {percent(top1, 4)}", refresh=False)
            counted.update(done - counted.n)

        return measure_accuracy(model, moved, about.labels, progress=count_up, model=about.name)


def _images(
    data: str | os.PathLike[str], root: str | os.PathLike[str] | None, about: Pretrained, size: int, limit: int | None
) -> tuple[int, Iterator[tuple[Tensor, Tensor]]]:
    """Return the number of images, and their batches: images (k, 3, H, W) and classes (k,)."""
    folder, known = Path(data), class_names(about.labels, about.class_ids)
    if (isinstance(data, str) and data in NAMES) or ("train" not in known and (folder / "train").is_dir()):
        source = find_dataset(data, root)
        places = _places(source, known)
        by_class: dict[int, list[int]] = {place: [] for place in places}
        for image, index in enumerate(source.val.classes.tolist()):
            by_class[places[index]].append(image)
        chosen = spread(by_class, limit)  # indices of images, with the model's classes
        if source.val.paths is None:
            return len(chosen), _from_memory(source.val, chosen, about.preprocess, size)
        files = [(source.val.paths[image], index) for image, index in chosen]
    elif root is None:
        files = spread(find_classes(folder, known), limit)
    else:
        raise EvaluationError(
            f"Expected a named data set ({', '.join(NAMES)}) with root, got {str(folder)!r}. Leave root out."
        )
    return len(files), ((batch.images, batch.classes) for batch in batches(files, about.preprocess, size))


def _places(source: Dataset[Samples], known: Mapping[str, int]) -> list[int]:
    """Return the model's output index of each class of a data set."""
    pairs = zip(source.class_ids, source.labels, strict=True)
    places = [known.get(class_id, known.get(label)) for class_id, label in pairs]
    if missing := [label for label, place in zip(source.labels, places, strict=True) if place is None]:
        raise EvaluationError(
            f"Expected a model that knows the {len(places)} classes of {source.name}, got one that lacks "
            f"{abbreviate(missing, 5)}. It has {abbreviate(known, 8)}."
        )
    return [place for place in places if place is not None]


def _from_memory(
    samples: Samples, chosen: Sequence[tuple[int, int]], preprocess: Preprocess, size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of in-memory images, which have equal size."""
    assert samples.images is not None  # a split has either files or images in memory
    for start in range(0, len(chosen), size):
        batch = chosen[start : start + size]
        photos = [decode(samples.images[at].permute(1, 2, 0).numpy()) for at, _ in batch]  # (c, h, w) -> (h, w, c)
        pixels = [torch.from_numpy(preprocess(photo).pixels) for photo in photos]
        yield torch.stack(pixels), torch.tensor([index for _, index in batch])
