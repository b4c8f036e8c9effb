"""Statistics of heads over a folder of photographs.

Shapes: n images of one size, L blocks, H heads.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import torch

from vitviz.explain.case import Named
from vitviz.folders import Batch, batches, find_classes, find_images, show, spread
from vitviz.model import Pretrained, ViT
from vitviz.probe import ProbeError
from vitviz.probe.heads import CHEAP, RANK_TOKENS, HeadStatistics, Running, per_image
from vitviz.probe.importance import Of
from vitviz.trace import Query


def folder_statistics(
    model: ViT,
    folder: str | os.PathLike[str],
    *,
    names: Collection[str] = CHEAP,
    query: Query | None = None,
    target: Named | None = None,
    labelled: bool = False,
    of: Of = "logit",
    rank_tokens: int = RANK_TOKENS,
    batch_size: int = 8,
    limit: int | None = None,
    progress: bool = True,
) -> HeadStatistics:
    """Mean and deviation of the statistics of every head over the images of a folder.

    Every image goes through `decode` and the model's own `Preprocess`, and its pixels are those of its own photograph.

    Args:
        model: with `pretrained`; runs where it is, in eval mode.
        folder: images in it and anywhere below.
        names, query, of, rank_tokens: as in `head_statistics`.
        target: the class that importances are about; by default the one that is predicted for each image.
        labelled: FOLDER/CLASS/image, and importances are about each image's own class. With `of="loss"` the gradients
            are those of Michel et al. 2019.
        batch_size: images at once; images of other sizes than their neighbours wait for their like.
        limit: at most so many images, spread evenly over the subfolders.
        progress: write a line that counts up to standard error, when that is a terminal.

    Raises:
        ProbeError: if the model has no preprocessing, the options contradict each other, or no statistic has that name.
        FolderError: if there are no images, files cannot be decoded, or a subfolder is no class (`labelled`).
    """
    about = _check(model, target, labelled, batch_size, limit)
    found = spread((find_classes(Path(folder), about) if labelled else find_images(Path(folder))), limit)
    running = Running(model.config.depth, model.config.heads)
    training = model.training
    model.eval()
    words = ""
    try:
        for batch in batches(found, about.preprocess, batch_size):
            chosen = batch.classes if labelled else target
            trace = model.trace(_pixels(model, batch))
            each, missing, words = per_image(
                model, trace, batch.geometries, names, query, chosen, None, of, rank_tokens
            )  # name -> (n, L, H)
            running.add(each, missing, len(batch.paths))
            if progress:
                show(f"\r{running.images:,} of {len(found):,} images ")
    finally:
        model.train(training)
        if progress:
            show("\n")
    if words and target is None:
        words = "each image's own class" if labelled else "each image's predicted class"
    return running.result(tuple(range(model.config.depth)), query, words)


def _check(model: ViT, target: Named | None, labelled: bool, batch_size: int, limit: int | None) -> Pretrained:
    if model.pretrained is None:
        raise ProbeError("Expected a model that knows how to feed photographs (`pretrained`), got one without.")
    if labelled and target is not None:
        raise ProbeError(f"Expected a target or labelled=True, got both: {target!r}. Leave one out.")
    for name, value in (("batch_size", batch_size), ("limit", limit)):
        if value is not None and value < 1:
            raise ProbeError(f"{name}: expected a whole number of at least 1, got {value}.")
    return model.pretrained


def _pixels(model: ViT, batch: Batch) -> torch.Tensor:
    """The images (n, 3, H, W) where the model is, in its precision."""
    weight = next(model.parameters())
    return batch.images.to(weight.device, weight.dtype)
