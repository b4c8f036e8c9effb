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
from vitviz.attribution.target_specs import Contrast, Named, TargetOf, class_index, class_name, resolve_target
from vitviz.attribution.targets import Scale, Target
from vitviz.formatting import data_frame, short_repr
from vitviz.model.trace import AttentionTrace
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
        logits, probabilities: (L, C), for the image; for regression, values replace probabilities. Without a
            classifier, C is 0.
        classes: indices of the K chosen classes; empty if the target is not a class.
        names: their display names, or the target's (K = 1).
        scale: scale of the readings.
        readings: (L, K), the probability of each chosen class, or the target's probability, value or cosine.
        patches: (L, gh, gw, K), the same for each patch.
        best: (L, gh, gw), the most probable class of each patch; -1 without a classifier.
        best_probability: (L, gh, gw), its probability; NaN without a classifier.
    """

    blocks: tuple[int, ...]
    logits: Floats
    probabilities: Floats
    classes: tuple[int, ...]
    names: tuple[str, ...]
    scale: Scale
    readings: Floats
    patches: Floats
    best: NDArray[np.int64]
    best_probability: Floats

    __repr__ = short_repr

    def to_pandas(self) -> "pd.DataFrame":
        """Return the image's readings after each block, with one column for each chosen class or one for the target.

        Raises:
            MissingExtraError: if pandas is not installed.
        """
        return data_frame({"block": self.blocks, **dict(zip(self.names, self.readings.T, strict=True))})


@torch.no_grad()
def logit_lens(
    model: ViT,
    trace: AttentionTrace,
    classes: Sequence[Named] | None = None,
    *,
    target: TargetOf | None = None,
    contrast: Contrast | None = None,
) -> LogitLens:
    """Apply final norm and classifier to the tokens after each block, or read a target from them.

    The image uses the model's pooling; a patch is read as if it were the only token (see `each_alone`). The classifier
    was not trained on the tokens of early blocks, so its reading does not show all their information.

    Args:
        model: the model of the trace.
        trace: trace of one image. Blocks whose successor was not kept are left out.
        classes: classes to read from the patches, as index or label; by default the most probable ones.
        target, contrast: a target to read instead, see `resolve_target`.

    Raises:
        AnalysisError: if the target needs a classifier and the model has none, or for several images.
        ExplainError: if a class or target does not exist.
    """
    check_one_image(trace)
    targets, count = _targets(model, trace, classes, target, contrast), trace.grid[0] * trace.grid[1]
    blocks, logits, readings, patches, best = [], [], [], [], []
    for block, tokens in _final_tokens(model, trace):
        blocks.append(block)
        of_image = tokens.new_zeros(1, 0) if model.head is None else model.classify(tokens).float()  # (1, C)
        alone = each_alone(model, tokens)
        of_patches = tokens.new_zeros(count, 0) if model.head is None else model.classify(alone).float()
        logits.append(of_image[0])
        best.append(_best(model, of_patches, trace.grid))
        if targets and targets[0].features:
            of_image, of_patches = (model.read_out(each).float() for each in (tokens, alone))  # (1, F), (gh * gw, F)
        readings.append(_read(targets, of_image)[0])  # (K,)
        patches.append(_read(targets, of_patches).unflatten(0, trace.grid))  # (gh, gw, K)
    stacked = torch.stack(logits)  # (L, C)
    return LogitLens(
        blocks=tuple(blocks),
        logits=stacked.cpu().numpy(),
        probabilities=activate(stacked, model.problem_type).cpu().numpy(),
        classes=tuple(int(each.points) for each in targets if each.kind == "class"),
        names=tuple(each.names[0] for each in targets),
        scale=targets[0].reading_scale if targets else "probability",
        readings=torch.stack(readings).cpu().numpy(),
        patches=torch.stack(patches).cpu().numpy(),
        best=torch.stack([indices for indices, _ in best]).cpu().numpy(),
        best_probability=torch.stack([values for _, values in best]).cpu().numpy(),
    )


def _targets(
    model: ViT,
    trace: AttentionTrace,
    classes: Sequence[Named] | None,
    target: TargetOf | None,
    contrast: Contrast | None,
) -> list[Target]:
    """Return the targets to read, with one image each: one for each class, or the given target."""
    if target is not None or contrast is not None:
        if classes is not None:
            raise AnalysisError(f"Expected classes or one target, got both: {list(classes)!r:.80}. Leave one out.")
        resolved = resolve_target(model, trace.logits, target, contrast)
        assert resolved is not None  # a target is given
        return [resolved]
    if trace.logits is None:
        raise AnalysisError(
            "Expected a model with a classifier, got one without. Choose a target of the features, such as "
            "target=Similarity(view), or try token_pca instead."
        )
    if classes is None:
        classes = rank(trace.logits[0], model.problem_type)[:CLASSES].tolist()
    indices = [class_index(model, named) for named in classes]
    return [
        Target(torch.tensor([[index]]), "class", (class_name(model, index),), model.problem_type) for index in indices
    ]


def _read(targets: Sequence[Target], outputs: Tensor) -> Tensor:
    """Return the readings of K targets from n rows: logits (n, C) or features (n, F) -> (n, K)."""
    if targets and all(each.kind == "class" for each in targets):  # one softmax for all classes
        return activate(outputs, targets[0].problem_type)[:, [int(each.points) for each in targets]]
    columns = [each.repeat(len(outputs)).reading(outputs) for each in targets]
    return torch.stack(columns, dim=1) if columns else outputs[:, :0]


def _best(model: ViT, logits: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the most probable class of each patch and its probability: (n, C) -> (gh, gw) each."""
    if not logits.shape[1]:
        return torch.full(grid, -1), torch.full(grid, torch.nan)
    top = activate(logits, model.problem_type).max(-1)
    return top.indices.unflatten(0, grid), top.values.unflatten(0, grid)


def each_alone(model: ViT, tokens: Tensor) -> Tensor:
    """Return a batch with one image for each patch, whose only patch it is: (1, N, D) -> (gh * gw, P + 1, D).

    The tokens are final tokens, for `ViT.classify` and `ViT.read_out`.

    The patch also replaces the class token and the other prefix tokens, except in models that pool the class token
    beside the mean. In attention pooling, all keys are then this patch. For "mean" and "cls+mean" with the norm before
    pooling, the image's logits are the mean of the patches' logits.
    """
    prefix, patches = tokens[0].tensor_split([len(model.config.prefix)])  # (P, D), (gh * gw, D)
    alone = patches[:, None].repeat(1, len(prefix) + 1, 1)
    if model.config.pooling == "cls+mean":
        alone[:, :-1] = prefix
    return alone


def _final_tokens(model: ViT, trace: AttentionTrace) -> Iterator[tuple[int, Tensor]]:
    """Yield each block with its normed output for the classifier: (1, N, D)."""
    for block in range(trace.depth - 1):
        if block + 1 in trace.blocks:
            yield block, model.finish(trace.stream(block + 1).detach(), angles=model.angles(trace.grid))
    yield trace.depth - 1, trace.tokens.detach()


def check_one_image(trace: AttentionTrace, *, windows: bool = False) -> None:
    """Raise an error unless the trace has one image, with attention over all its tokens if `windows` is false."""
    if trace.windowed and not windows:
        raise AnalysisError(
            "Expected a model with attention over all tokens, got one with windows (Swin, SAM). Use view.attention, "
            "view.rollout, view.heads, view.explain or view.decompose."
        )
    if trace.batch != 1:
        raise AnalysisError(f"Expected the trace of one image, got {trace.batch}. Choose one: trace.image(0).")
