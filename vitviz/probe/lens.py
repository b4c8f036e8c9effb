"""The logit lens: which class the model would name if it stopped after a block, read from the image and each patch.

nostalgebraist 2020, "interpreting GPT: the logit lens"; on Vision Transformers: Vilas et al. 2023, "Analyzing Vision
Transformers for Image Classification in Class Embedding Space".

Shapes: L blocks, N tokens = P prefix tokens followed by gh x gw patches, D width, C classes, K of them chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitviz.explain.case import Named, class_index, class_name
from vitviz.model import ViT
from vitviz.probe import ProbeError
from vitviz.trace import Trace

Floats = NDArray[np.float32]
Whole = NDArray[np.int64]

SHOWN = 5
"""So many classes are read from the patches where none is named: the most probable ones."""


@dataclass(frozen=True, eq=False, kw_only=True)
class LogitLens:
    """What the classifier reads after each block.

    Args:
        blocks: the L blocks, counted from 0; after the last one the model itself reads.
        logits, probabilities: (L, C), read as the model reads its answer.
        classes: the K classes that were chosen, by index.
        names: what people call them.
        patches: (L, gh, gw, K), the probability of these among all C, read from each patch.
        best: (L, gh, gw), the most probable class of each patch.
        best_probability: (L, gh, gw), and its probability.
    """

    blocks: tuple[int, ...]
    logits: Floats
    probabilities: Floats
    classes: tuple[int, ...]
    names: tuple[str, ...]
    patches: Floats
    best: Whole
    best_probability: Floats


@torch.no_grad()
def logit_lens(model: ViT, trace: Trace, classes: Sequence[Named] | None = None) -> LogitLens:
    """Read the class after each block: final norm and classifier on the tokens as they are there.

    The image is read as the model reads it, whatever its pooling. A patch is read as if it had been pooled alone (see
    `classify_patches`). In early blocks the classifier reads what it was not trained on: the numbers are what it says,
    not what the block knows.

    Args:
        model: that made the trace.
        trace: of one image. A block whose successor was not kept is left out.
        classes: those to read from the patches, by index or label; the most probable ones by default.

    Raises:
        ProbeError: if there is no classifier, or several images.
        ExplainError: if there is no such class.
    """
    one_image(trace)
    if trace.logits is None:
        raise ProbeError("The logit lens reads classes, and this model has no classifier. Try token_pca instead.")
    if classes is None:
        chosen: list[int] = trace.logits[0].topk(min(SHOWN, trace.logits.shape[1])).indices.tolist()
    else:
        chosen = [class_index(model, name) for name in classes]
    blocks, logits, patches, best = [], [], [], []
    for block, tokens in _finished(model, trace):
        blocks.append(block)
        logits.append(model.classify(tokens)[0].float())  # (C,)
        each = classify_patches(model, tokens)[0].float().softmax(-1)  # (gh * gw, C)
        patches.append(each[:, chosen].unflatten(0, trace.grid))  # (gh * gw, K) -> (gh, gw, K)
        best.append(each.max(-1))
    stacked = torch.stack(logits)  # (L, C)
    peaks, classes_there = (torch.stack(of).unflatten(1, trace.grid) for of in zip(*best, strict=True))  # (L, gh, gw)
    return LogitLens(
        blocks=tuple(blocks),
        logits=stacked.cpu().numpy(),
        probabilities=stacked.softmax(1).cpu().numpy(),
        classes=tuple(chosen),
        names=tuple(class_name(model, index) for index in chosen),
        patches=torch.stack(patches).cpu().numpy(),
        best=classes_there.cpu().numpy(),
        best_probability=peaks.cpu().numpy(),
    )


def classify_patches(model: ViT, tokens: Tensor) -> Tensor:
    """The logits of each patch, read as if it had been pooled alone: final tokens (B, N, D) -> (B, gh * gw, C).

    By pooling: "cls": the patch stands in for the class token. "mean": it is the only patch. "cls+mean": it is the
    only patch, and the class token stays. "attention": the pool's query has this one token to attend to. Where the
    distillation token has a classifier, the patch stands in for both tokens. For "mean" and "cls+mean" with the norm
    before the pooling, the logits of the patches have the logits of the image as their mean.

    Args:
        model: with a classifier.
        tokens: what `ViT.classify` takes: after the final norm, where the model has it before pooling.
    """
    assert model.head is not None  # the callers looked
    patches = tokens[:, len(model.config.prefix) :]  # (B, gh * gw, D)
    pooled = patches
    if model.attn_pool is not None:
        pooled = model.attn_pool(patches.flatten(0, 1)[:, None]).unflatten(0, patches.shape[:2])  # (B * gh * gw, 1, D)
    if model.config.norm_pooled:
        pooled = model.norm(pooled)
    if model.config.pooling == "cls+mean":
        pooled = torch.cat([tokens[:, :1].expand_as(patches), pooled], dim=2)  # (B, gh * gw, 2 D)
    logits: Tensor = model.head(pooled)
    if model.head_dist is not None:
        logits = (logits + model.head_dist(patches)) / 2
    return logits


def _finished(model: ViT, trace: Trace) -> Iterator[tuple[int, Tensor]]:
    """What the read-out would get after each block: (1, N, D); after the last one what it did get."""
    for block in range(trace.depth - 1):
        if block + 1 in trace.blocks:
            yield block, model.finish(trace.stream(block + 1).detach())
    yield trace.depth - 1, trace.tokens.detach()


def one_image(trace: Trace) -> None:
    """Raise a `ProbeError` unless the trace is of one image."""
    if len(trace.tokens) != 1:
        raise ProbeError(f"Expected the trace of one image, got {len(trace.tokens)}. Choose one: trace.image(0).")
