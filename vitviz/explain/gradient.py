"""Gradients of a class through the attention of the blocks.

The gradient is handed from the last block to the first, and each block is run once more from what had entered it
(`Trace.stream`): the probabilities of one block are in memory at a time, not those of all. There are no hooks, and
weights get no gradient.

What is read: rollouts and Grad-CAM of attention read the row of the class token in their papers. Here they read the
rows that the classifier reads: the class token's (and the distillation token's, half each), the mean over the rows of
all patches, or, for class token and mean together, half each. Attention pooling is one attention more, with one row.

Shapes: B images, H heads, N tokens = P prefix tokens followed by gh x gw patches, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from vitviz.edits import Angles
from vitviz.explain.attention import discard_weakest
from vitviz.explain.case import Case, Method
from vitviz.explain.scores import ExplainError
from vitviz.layers import Block


@dataclass(frozen=True, eq=False)
class Seen:
    """One attention of the model and how the score depends on it, both (B, H, N, N), or (B, H, 1, N) of the pooling."""

    attention: Tensor
    gradient: Tensor
    pooling: bool = False

    def weighted(self) -> Tensor:
        """The mean over heads of attention times gradient: (B, N, N)."""
        return (self.attention * self.gradient).mean(1)


def backward(case: Case, stop: int = 0) -> Iterator[Seen]:
    """Every attention and the gradient of the score in it: of the pooling, if it has one, then from the last block on.

    Args:
        case: images, model and target.
        stop: the last block to come, counted from 0.
    """
    trace, flow = case.trace, None
    angles = case.model.angles(trace.grid)
    for index in range(trace.depth - 1, stop - 1, -1):
        entering = trace.stream(index).detach().requires_grad_()
        with torch.enable_grad():
            leaving, probabilities = _run(case, index, entering, angles)
            wanted = [probabilities, entering][: 2 if index > stop else 1]
            if flow is None:  # the last block
                score, pooled = _answer(case, case.model.finish(leaving))
                gradients = torch.autograd.grad(score.sum(), wanted + ([] if pooled is None else [pooled]))
                if pooled is not None:
                    yield Seen(pooled.detach(), gradients[-1], pooling=True)
            else:
                gradients = torch.autograd.grad(leaving, wanted, flow)
        flow = gradients[1] if index > stop else None
        yield Seen(probabilities.detach(), gradients[0])


def _run(case: Case, index: int, entering: Tensor, angles: Angles | None) -> tuple[Tensor, Tensor]:
    """One block with its probabilities in the graph: what enters (B, N, D) -> what leaves, and (B, H, N, N)."""
    leaving, kept = _block(case, index).trace_grad(entering, angles)
    assert kept.made is not None  # with gradients, probabilities are kept
    assert kept.made.probabilities is not None
    return leaving, kept.made.probabilities


def _block(case: Case, index: int) -> Block:
    block = case.model.blocks[index]
    assert isinstance(block, Block)  # for the type checker: a ModuleList holds any module
    return block


def _answer(case: Case, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
    """The score (B,) of final tokens (B, N, D), and the attention (B, H, 1, N) of the pooling where it is one."""
    model = case.model
    if model.attn_pool is None:
        return case.target.score(model.classify(tokens)), None
    probabilities, pooled = model.attn_pool.attend(tokens)
    assert model.head is not None  # there is a target, so there is a classifier
    logits = model.head(model.norm(pooled) if model.config.norm_pooled else pooled)
    if model.head_dist is not None:
        logits = (logits + model.head_dist(tokens[:, model.config.distillation_at])) / 2
    return case.target.score(logits), probabilities


def _rows_read(case: Case) -> Tensor:
    """How much of each token's row the classifier reads: (B, N), summing to 1 but for what an attention pools."""
    trace, model = case.trace, case.model
    named = {"cls": ["cls"], "mean": ["mean"], "cls+mean": ["cls", "mean"], "attention": []}[model.config.pooling]
    rows = torch.zeros_like(trace.tokens[:, :, 0])  # (B, N)
    for name in named:
        rows += trace.weights(name).to(rows) / len(named)
    return (rows + trace.weights("distillation").to(rows)) / 2 if model.distilled else rows


def gradient_rollout(case: Case, *, discard: float = 0.0, residual: float = 0.5) -> Tensor:
    """Rollout of attention weighted by its gradient (Gildenblat 2020).

    In each block F = relu(mean over heads of A * dA), then a row of (1 - residual) F + residual I, rescaled to sum to
    1. What a read token keeps of itself by skip connections alone is left out: no attention has carried it.

    Args:
        case: images, model and target.
        discard: share of the weakest entries of F to drop in each block, for each image by itself. Columns of prefix
            tokens and each row's strongest entry stay.
        residual: weight of the skip connection, 0..1.
    """
    for name, value, fits in (("discard", discard, 0 <= discard < 1), ("residual", residual, 0 <= residual <= 1)):
        if not fits:
            raise ExplainError(f"Expected {name} in 0..1 (discard below 1), got {value}.")
    held = _rows_read(case)  # (B, N): what came by skip connections alone; `moved` passed some attention
    moved = torch.zeros_like(held)
    for seen in backward(case):
        fused = seen.weighted().clamp_min(0)  # (B, N, N), or (B, 1, N)
        if seen.pooling:
            moved = moved + (1 - held.sum(1, keepdim=True)) * _to_one(fused[:, 0])
            continue
        if discard:  # the order of floats is that of their bits in single precision
            fused = fused.masked_fill(discard_weakest(fused.float(), discard, len(case.trace.prefix)) == 0, 0.0)
        total = (1 - residual) * fused.sum(-1) + residual  # (B, N), of each row
        held, moved = _divide(held, total), _divide(moved, total)
        moved = residual * moved + (1 - residual) * _mix(held + moved, fused)
        held = residual * held
    return moved


def gae(case: Case) -> Tensor:
    """Generic attention explainability (Chefer, Gur and Wolf 2021, ICCV, equations 5 and 6).

    R starts as the identity, and every block adds mean over heads of relu(A * dA) @ R. Returned is the row that is
    read, without the identity: that says only that a token is itself. One row is carried from the last block to the
    first, which gives the same numbers as the product of matrices in N² steps instead of N³.
    """
    held = _rows_read(case)  # (B, N)
    moved = torch.zeros_like(held)
    for seen in backward(case):
        fused = (seen.attention * seen.gradient).clamp_min_(0).mean(1)  # (B, N, N), or (B, 1, N)
        moved = moved + (fused[:, 0] if seen.pooling else _mix(held + moved, fused))
    return moved


def attention_gradcam(case: Case, *, block: int = -1) -> Tensor:
    """Grad-CAM on attention (the baseline of Chefer, Gur and Wolf 2021, CVPR).

    The row that is read of each head of one block, times the mean of its gradient over the patches; the mean over
    heads, without what is negative.

    Args:
        case: images, model and target.
        block: counted from 0; negative from the last.
    """
    index = _index(case, block)
    rows = _rows_read(case)  # (B, N)
    if case.model.attn_pool is not None:
        with torch.no_grad():
            pooling = case.model.attn_pool.attend(case.trace.tokens)[0].mean((1, 2))  # (B, H, 1, N) -> (B, N)
        rows = rows + (1 - rows.sum(1, keepdim=True)) * pooling
    *_, seen = backward(case, index)
    attention, gradient = (_mix(rows[:, None], one) for one in (seen.attention, seen.gradient))  # (B, H, N) each
    weights = gradient[:, :, len(case.trace.prefix) :].mean(-1, keepdim=True)  # (B, H, 1)
    return (attention * weights).mean(1).clamp_min(0)


def token_gradcam(case: Case, *, block: int | None = None) -> Tensor:
    """Grad-CAM (Selvaraju et al. 2017, equations 1 and 2) with the tokens that leave a block as the feature map.

    Channels are weighted by the mean of their gradient over the patches and added up, without what is negative.

    Args:
        case: images, model and target.
        block: counted from 0; negative from the last. By default the last one on whose patches the score depends: the
            last but one where the classifier reads prefix tokens only.
    """
    model, trace = case.model, case.trace
    last = trace.depth - 1
    index = last - (model.config.pooling == "cls") if block is None else _index(case, block)
    angles = model.angles(trace.grid)
    if index < last:
        tokens = trace.stream(index + 1).detach()
    else:
        with torch.no_grad():
            tokens = _block(case, last)(trace.stream(last), angles)
    with torch.enable_grad():
        tokens.requires_grad_()
        logits = model.run(tokens, angles, start=index + 1) if index < last else model.classify(model.finish(tokens))
        score = case.target.score(logits)
        gradient = torch.autograd.grad(score.sum(), tokens)[0]  # (B, N, D)
    weights = gradient[:, len(trace.prefix) :].mean(1)  # (B, D)
    return (tokens.detach() @ weights[:, :, None]).squeeze(2).clamp_min(0)  # (B, N, D) @ (B, D, 1) -> (B, N)


def legrad(case: Case, *, start: int = 0) -> Tensor:
    """LeGrad (Bousselham et al. 2025): how sensitive the class is to each block's attention, over all blocks.

    The score is computed from the tokens that leave a block as if it were the last: final norm, the model's own
    pooling, classifier. Its gradient in that block's attention, without what is negative, is averaged over heads and
    rows (only rows that are read have one), and added up over the blocks. With attention pooling the gradient is that
    in the attention of the pooling when it reads the tokens that leave the block. (The authors' code takes the score
    of CLIP's intermediate tokens from the mean over all of them, though the model reads its class token.)

    Args:
        case: images, model and target.
        start: the first block, counted from 0; negative from the last.
    """
    trace, model = case.trace, case.model
    angles = model.angles(trace.grid)
    total = torch.zeros_like(trace.tokens[:, :, 0])  # (B, N)
    for index in range(_index(case, start), trace.depth):
        with torch.enable_grad():
            if model.attn_pool is None:
                leaving, inside = _run(case, index, trace.stream(index).detach(), angles)  # (B, H, N, N)
                score, _ = _answer(case, model.finish(leaving))
            else:
                last = index == trace.depth - 1
                tokens = trace.tokens if last else model.finish(trace.stream(index + 1))
                score, pooled = _answer(case, tokens.detach())
                inside = cast(Tensor, pooled)  # (B, H, 1, N)
            gradient = torch.autograd.grad(score.sum(), inside)[0]
        total += gradient.clamp_min_(0).mean((1, 2))
    return total


def _index(case: Case, block: int) -> int:
    """A block counted from 0."""
    depth = case.trace.depth
    if isinstance(block, bool) or not isinstance(block, int) or not -depth <= block < depth:
        raise ExplainError(f"Expected a block among 0..{depth - 1} (or -{depth}..-1), got {block!r}.")
    return block % depth


def _mix(weights: Tensor, rows: Tensor) -> Tensor:
    """The weighted sum of rows: (..., N), (..., N, N) -> (..., N)."""
    return (weights[..., None, :] @ rows).squeeze(-2)  # (..., 1, N) @ (..., N, N)


def _divide(values: Tensor, by: Tensor) -> Tensor:
    """Values over totals that are not negative; nothing where the total is nothing."""
    return torch.where(by > 0, values / by, 0.0)


def _to_one(row: Tensor) -> Tensor:
    """Rows (B, N) rescaled to sum to 1; those of zeros stay."""
    return _divide(row, row.sum(1, keepdim=True))


METHODS = (
    Method(
        name="gradient_rollout",
        title="Gradient rollout",
        paper="Gildenblat 2020, Exploring Explainability for Vision Transformers (vit-explain)",
        family="gradient",
        function=gradient_rollout,
        about="Attention that speaks for the class, followed through all blocks.",
        class_specific=True,
        signed=False,
        cost=3.3,
        options={"discard": 0.0, "residual": 0.5},
    ),
    Method(
        name="attention_gradcam",
        title="Grad-CAM of attention",
        paper="Chefer, Gur and Wolf 2021, Transformer Interpretability Beyond Attention Visualization, CVPR (baseline)",
        family="gradient",
        function=attention_gradcam,
        about="The attention of one block, each head weighted by how much the class gains from it.",
        class_specific=True,
        signed=False,
        cost=1.2,
        options={"block": -1},
    ),
    Method(
        name="token_gradcam",
        title="Grad-CAM of tokens",
        paper="Selvaraju et al. 2017, Grad-CAM: Visual Explanations from Deep Networks via Gradient-based "
        "Localization, ICCV",
        family="gradient",
        function=token_gradcam,
        about="The tokens that leave one block, their channels weighted by how much the class gains from them.",
        class_specific=True,
        signed=False,
        cost=1.2,
        options={"block": None},
    ),
    Method(
        name="gae",
        title="Generic attention explainability",
        paper="Chefer, Gur and Wolf 2021, Generic Attention-model Explainability for Interpreting Bi-Modal and "
        "Encoder-Decoder Transformers, ICCV",
        family="gradient",
        function=gae,
        about="Attention that speaks for the class, added up block by block over what came before it.",
        class_specific=True,
        signed=False,
        cost=3.3,
    ),
    Method(
        name="legrad",
        title="LeGrad",
        paper="Bousselham et al. 2025, LeGrad: An Explainability Method for Vision Transformers via Feature Formation "
        "Sensitivity, ICCV",
        family="gradient",
        function=legrad,
        about="How much the class, read out after each block, would gain if that block looked more at a patch.",
        class_specific=True,
        signed=False,
        cost=3.0,
        options={"start": 0},
    ),
)
