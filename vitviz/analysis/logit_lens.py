"""Apply the logit lens: the classifier on the tokens after each block, for the image and for each patch.

nostalgebraist 2020, "interpreting GPT: the logit lens"; on Vision Transformers: Vilas et al. 2023, "Analyzing Vision
Transformers for Image Classification in Class Embedding Space".

Shapes: L blocks, N tokens = P prefix tokens followed by gh x gw patches, D width, C classes, K chosen classes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitviz.analysis import AnalysisError
from vitviz.attribution.inputs import Named, class_index, class_name
from vitviz.formatting import data_frame, short_repr
from vitviz.model.trace import Trace
from vitviz.model.vit import ViT
from vitviz.outputs import activate, rank

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float32]

CLASSES = 5  # number of most probable classes read from the patches by default


@dataclass(frozen=True, eq=False, kw_only=True)
class LogitLens:
    """Readings of the classifier after each block.

    Args:
        blocks: the L block indices, from 0; the reading after the last block is the model's prediction.
        logits, probabilities: (L, C), for the image; for regression, values replace probabilities.
        classes: indices of the K chosen classes.
        names: their display names.
        patches: (L, gh, gw, K), their probability among all C classes, for each patch.
        best: (L, gh, gw), the most probable class of each patch.
        best_probability: (L, gh, gw), its probability.
    """

    blocks: tuple[int, ...]
    logits: Floats
    probabilities: Floats
    classes: tuple[int, ...]
    names: tuple[str, ...]
    patches: Floats
    best: NDArray[np.int64]
    best_probability: Floats

    __repr__ = short_repr

    def to_pandas(self) -> "pd.DataFrame":
        """Return the image's probability of each chosen class after each block, one column per class.

        Raises:
            MissingExtraError: if pandas is not installed.
        """
        chosen = self.probabilities[:, list(self.classes)].T  # (L, C) -> (K, L)
        return data_frame({"block": self.blocks, **dict(zip(self.names, chosen, strict=True))})


@torch.no_grad()
def logit_lens(model: ViT, trace: Trace, classes: Sequence[Named] | None = None) -> LogitLens:
    """Apply final norm and classifier to the tokens after each block.

    The image uses the model's pooling; a patch is classified as if it were pooled alone (see `classify_patches`). The
    classifier was not trained on the tokens of early blocks, so its reading does not show all their information.

    Args:
        model: the model of the trace.
        trace: trace of one image. Blocks whose successor was not kept are left out.
        classes: classes to read from the patches, as index or label; by default the most probable ones.

    Raises:
        AnalysisError: without a classifier, or for several images.
        ExplainError: if a class does not exist.
    """
    check_one_image(trace)
    if trace.logits is None:
        raise AnalysisError("Expected a model with a classifier, got one without. Try token_pca instead.")
    if classes is None:
        chosen: list[int] = rank(trace.logits[0], model.problem_type)[:CLASSES].tolist()
    else:
        chosen = [class_index(model, name) for name in classes]
    blocks, logits, patches, best = [], [], [], []
    for block, tokens in _final_tokens(model, trace):
        blocks.append(block)
        logits.append(model.classify(tokens)[0].float())  # (C,)
        of_patches = classify_patches(model, tokens)[0].float()  # (gh * gw, C)
        probabilities = activate(of_patches, model.problem_type).unflatten(0, trace.grid)  # (gh, gw, C)
        patches.append(probabilities[..., chosen])  # (gh, gw, K)
        best.append(probabilities.max(-1))
    stacked = torch.stack(logits)  # (L, C)
    return LogitLens(
        blocks=tuple(blocks),
        logits=stacked.cpu().numpy(),
        probabilities=activate(stacked, model.problem_type).cpu().numpy(),
        classes=tuple(chosen),
        names=tuple(class_name(model, index) for index in chosen),
        patches=torch.stack(patches).cpu().numpy(),
        best=torch.stack([top.indices for top in best]).cpu().numpy(),
        best_probability=torch.stack([top.values for top in best]).cpu().numpy(),
    )


def classify_patches(model: ViT, tokens: Tensor) -> Tensor:
    """Return the logits of each patch pooled alone: final tokens (B, N, D) -> (B, gh * gw, C).

    By pooling: "cls": the patch replaces the class token. "mean": it is the only patch. "cls+mean": it is the only
    patch, with the class token. "attention": the pool's query attends only to this token. If the distillation token has
    a classifier, the patch replaces both tokens. For "mean" and "cls+mean" with the norm before pooling, the image's
    logits are the mean of the patches' logits. `tokens` are as for `ViT.classify`.
    """
    assert model.head is not None  # checked by the callers
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


def _final_tokens(model: ViT, trace: Trace) -> Iterator[tuple[int, Tensor]]:
    """Yield each block with its normed output for the classifier: (1, N, D)."""
    for block in range(trace.depth - 1):
        if block + 1 in trace.blocks:
            yield block, model.finish(trace.stream(block + 1).detach())
    yield trace.depth - 1, trace.tokens.detach()


def check_one_image(trace: Trace) -> None:
    """Raise `AnalysisError` unless the trace has one image."""
    if len(trace.tokens) != 1:
        raise AnalysisError(f"Expected the trace of one image, got {len(trace.tokens)}. Choose one: trace.image(0).")
