"""Attribute a class's score to tokens by gradients through the attention of the blocks.

The gradient is propagated from the last block to the first, and each block runs again from its stored input
(`Trace.stream`), so only one block's probabilities are in memory. No hooks are used, and weights get no gradient.

In their papers, rollouts and Grad-CAM of attention read the row of the class token. Here they read the rows that the
classifier uses: the class token's (half each with the distillation token's), the mean over all patches, or half each
for class token and mean. Attention pooling is an additional attention with one row, and class attention several (see
`vitviz.attribution.attention.pooled`).

Shapes: B images, H heads, N tokens = P prefix tokens followed by gh x gw patches, D width.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor

from vitviz.attribution.attention import discard_weakest, divide, mix, pooled
from vitviz.attribution.inputs import Case, Method
from vitviz.attribution.targets import ExplainError
from vitviz.model.ops import Explicit
from vitviz.model.trace import AttentionTrace
from vitviz.progress import advance

Pooling = Literal["model", "tokens"]


@dataclass(frozen=True, eq=False)
class Step:
    """One attention matrix and its gradient, both (B, H, N, N).

    For attention pooling, they are (B, H, 1, N), or (B, H, 1, 1 + N) if the query is the first key (class attention).
    In windowed models, the windows are the images of a batch: (B * W, H, M, M).
    """

    attention: Tensor
    gradient: Tensor
    block: int = -1


def backward(case: Case, stop: int = 0) -> Iterator[Step]:
    """Yield each attention with the score's gradient: those of the pooling first, then from the last block on.

    Args:
        case: images, model and target.
        stop: the first block of the model to reach, from 0.
    """
    model, trace, flow = case.model, case.trace, None
    angles = model.angles(trace.grid)
    for index in range(trace.depth - 1, stop - 1, -1):
        entering = trace.stream(index).detach().requires_grad_()
        ops = Explicit()
        with torch.enable_grad():
            out = ops.block(index, model.blocks[index], entering, angles)
            advance(entering, 1 / trace.depth)
            if flow is None:  # after the last block, continue to the score
                out = case.score(model.finish(out, angles=angles), ops).sum()
        matrices = [attended.probabilities for attended in ops.seen]
        ops.seen.clear()  # `seen` also holds the logits
        gradients = torch.autograd.grad(out, matrices + [entering] * (index > stop), flow)
        flow = gradients[-1] if index > stop else None
        gradients = (trace.attendable(index, gradients[0]), *gradients[1:])
        matrices = [trace.attendable(index, matrices[0].detach()), *matrices[1:]]
        steps = [Step(matrix.detach(), gradients[place], index) for place, matrix in enumerate(matrices)]
        del out, matrices, gradients  # free them before the next block
        while steps:
            yield steps.pop()


def carry(trace: AttentionTrace, step: Step, function: Callable[..., Any], *rows: Tensor) -> Any:
    """Carry rows (B, N) through one attention by a function of the step and of rows, to the block's input tokens."""
    results = trace.within(step.block, partial(function, step), *rows)
    return tuple(trace.entering(step.block, row) for row in results)


def fuse(step: Step, clamp: bool = False) -> Tensor:
    """Return the mean over heads of A * dA: (B, N, N), or (B, 1, N), computed head by head to save memory.

    Args:
        step: attention and gradient.
        clamp: whether to clamp each head at 0.
    """
    fused = torch.zeros_like(step.attention[:, 0])
    for attention, gradient in zip(step.attention.unbind(1), step.gradient.unbind(1), strict=True):
        product = attention * gradient
        fused += product.clamp_min_(0) if clamp else product
    return fused / step.attention.shape[1]


def gradient_rollout(case: Case, *, discard: float = 0.0, residual: float = 0.5) -> Tensor:
    """Roll out attention weighted by its gradient (Gildenblat 2020).

    In each block, F = relu(mean over heads of A * dA); rows of (1 - residual) F + residual I are rescaled to sum to 1.
    The path from a classified token to itself through skip connections only is excluded: it involves no attention.

    Args:
        case: images, model and target.
        discard: fraction of the weakest entries of F to discard in each block, per image or window, except columns of
            prefix tokens and each row's strongest entry.
        residual: weight of the skip connection, 0..1.
    """
    for name, value, fits in (("discard", discard, 0 <= discard < 1), ("residual", residual, 0 <= residual <= 1)):
        if not fits:
            raise ExplainError(f"Expected {name} in 0..1 (discard below 1), got {value}. Choose a share.")
    skipped, steps = case.read_rows(), backward(case)  # (B, N), through skip connections only
    of_pooling = islice(steps, case.model.config.pool_attentions)
    attended = pooled(skipped, (fuse(step).clamp_min_(0) for step in of_pooling), residual)
    for step in steps:
        function = partial(gradient_rollout_step, discard=discard, residual=residual, prefix=len(case.trace.prefix))
        skipped, attended = carry(case.trace, step, function, skipped, attended)
        del step  # free the matrices before the next block
    return attended


def gradient_rollout_step(
    step: Step, skipped: Tensor, attended: Tensor, discard: float = 0.0, residual: float = 0.5, prefix: int = 0
) -> tuple[Tensor, Tensor]:
    """Carry the rows of `gradient_rollout` through one attention: both (B, N) -> (B, N)."""
    fused = fuse(step).clamp_min_(0)
    if discard:
        fused = discard_weakest(fused, discard, prefix)
    total = (1 - residual) * fused.sum(-1) + residual  # (B, N), of each row
    skipped, attended = divide(skipped, total), divide(attended, total)
    return residual * skipped, residual * attended + (1 - residual) * mix(skipped + attended, fused)


def gae(case: Case) -> Tensor:
    """Explain by generic attention explainability (Chefer, Gur and Wolf 2021, ICCV, equations 5 and 6).

    R starts as the identity, and each block adds (mean over heads of relu(A * dA)) @ R. The result is the row that the
    classifier reads, without the identity. Carrying one row from the last block to the first gives the same numbers as
    the matrix product, in N² steps instead of N³.
    """
    skipped, steps = case.read_rows(), backward(case)  # (B, N)
    of_pooling = islice(steps, case.model.config.pool_attentions)
    attended = pooled(skipped, (fuse(step, clamp=True) for step in of_pooling))
    for step in steps:
        skipped, attended = carry(case.trace, step, _gae_rows, skipped, attended)
        del step  # free the matrices before the next block
    return attended


def gae_step(step: Step, skipped: Tensor, attended: Tensor) -> Tensor:
    """Return `attended` after one attention of `gae`: both (B, N) -> (B, N)."""
    return attended + mix(skipped + attended, fuse(step, clamp=True))


def _gae_rows(step: Step, skipped: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
    return skipped, gae_step(step, skipped, attended)


def attention_gradcam(case: Case, *, block: int = -1) -> Tensor:
    """Apply Grad-CAM to attention (the baseline of Chefer, Gur and Wolf 2021, CVPR).

    Each head's row of one block is weighted by its gradient's mean over the patches; the result is the mean over heads,
    clamped at 0.

    Args:
        case: images, model and target.
        block: index from 0; negative from the last.
    """
    index = _index(case, block)
    rows = case.read_rows()  # (B, N)
    if case.model.config.pool_attentions:
        rows = rows + pooled(rows, (matrix.mean(1) for matrix in reversed(_pooling(case))), 0.5)
    step = deque(backward(case, index), maxlen=1).pop()  # frees the steps before it
    for later in range(case.trace.depth - 1, index, -1):  # to tokens of the block's stage
        rows = case.trace.entering(later, rows)
    attention, gradient = (
        case.trace.within(index, partial(_rows_of_heads, matrix), rows).mT for matrix in (step.attention, step.gradient)
    )  # (B, N, H) -> (B, H, N) each
    return weigh_heads(attention, gradient, len(case.trace.prefix))


def _pooling(case: Case) -> list[Tensor]:
    """Return the matrices of attention pooling, in order: (B, H, 1, N or 1 + N) each."""
    assert case.model.attn_pool is not None
    with torch.no_grad():
        case.model.attn_pool(case.trace.tokens, ops := Explicit())
    return [attended.probabilities for attended in ops.seen]


def _rows_of_heads(matrix: Tensor, rows: Tensor) -> Tensor:
    """Return the weighted sum of each head's rows: (B, H, N, N), (B, N) -> (B, N, H)."""
    return mix(rows[:, None], matrix).mT


def gradcam(step: Step, rows: Tensor, prefix: int) -> Tensor:
    """Weight each head's attention from `rows` (B, N) by its gradient's mean over the patches: (B, N)."""
    attention, gradient = (_rows_of_heads(matrix, rows).mT for matrix in (step.attention, step.gradient))  # (B, H, N)
    return weigh_heads(attention, gradient, prefix)


def weigh_heads(attention: Tensor, gradient: Tensor, prefix: int) -> Tensor:
    """Weight each head's row of attention (B, H, N) by the mean of its gradient over the patches: (B, N)."""
    weights = gradient[:, :, prefix:].mean(-1, keepdim=True)  # (B, H, 1)
    return (attention * weights).mean(1).clamp_min(0)


def token_gradcam(case: Case, *, block: int | None = None) -> Tensor:
    """Apply Grad-CAM (Selvaraju et al. 2017, equations 1 and 2) to the output tokens of a block.

    Channels are weighted by the mean of their gradient over the patches and summed; the result is clamped at 0.

    Args:
        case: images, model and target.
        block: index from 0; negative from the last. By default, the last block on whose patches the score depends: the
            second to last if the classifier reads only prefix tokens.
    """
    model, trace = case.model, case.trace
    last = trace.depth - 1
    index = last - (model.config.pooling == "cls") if block is None else _index(case, block)
    angles = model.angles(trace.grid)
    if index < last:
        tokens = trace.stream(index + 1).detach()
    else:
        with torch.no_grad():
            tokens = model.blocks[last](trace.stream(last), angles)
    with torch.enable_grad():
        tokens.requires_grad_()
        encoded = model.encode(tokens, angles, start=index + 1) if index < last else model.finish(tokens, angles=angles)
        score = case.score(encoded)
        gradient = torch.autograd.grad(score.sum(), tokens)[0]  # (B, N, D)
    return weigh_channels(tokens.detach(), gradient, len(trace.prefix))


def weigh_channels(tokens: Tensor, gradient: Tensor, prefix: int) -> Tensor:
    """Sum channels weighted by the mean of their gradient over the patches: (B, N, D) each -> (B, N)."""
    weights = gradient[:, prefix:].mean(1)  # (B, D)
    return (tokens @ weights[:, :, None]).squeeze(2).clamp_min(0)  # (B, N, D) @ (B, D, 1) -> (B, N)


def legrad(case: Case, *, start: int = 0, pooling: Pooling = "model") -> Tensor:
    """Sum the score's sensitivity to each block's attention: LeGrad (Bousselham et al. 2025).

    The score is computed from the output tokens of each block as if it were the last: final norm, the model's pooling,
    classifier. Its gradient with respect to that block's attention is clamped at 0, averaged over heads and rows (only
    rows that are read have a gradient), and summed over blocks. With attention pooling, the gradient is taken in the
    pooling's attention over the block's output tokens. Class attention has several, whose sensitivities are added,
    without that to the class token itself.

    Args:
        case: images, model and target.
        start: the first block, from 0; negative from the last.
        pooling: "model", the tokens that the classifier reads, which give the explained score; or "tokens", the mean
            over all tokens, as in the authors' program.

    Raises:
        ExplainError: for "tokens" with attention pooling.
    """
    trace, model = case.trace, case.model
    first = _first_readable(case, _index(case, start))
    if pooling == "tokens" and model.attn_pool is not None:
        raise ExplainError("Expected pooling='model' for a model with attention pooling, got 'tokens'. Use 'model'.")
    angles = model.angles(trace.grid)
    total = torch.zeros_like(trace.tokens[:, :, 0])  # (B, N)
    for index in range(first, trace.depth):
        ops = Explicit()
        with torch.enable_grad():
            if model.attn_pool is None:
                tokens = ops.block(index, model.blocks[index], trace.stream(index).detach(), angles)
                tokens = model.finish(model.leave(index, tokens, angles), angles=angles)
                if pooling == "tokens":  # the classifier then reads the mean
                    tokens = tokens.mean(1, keepdim=True).expand_as(tokens)  # (B, N, D)
            elif index < trace.depth - 1:
                tokens = model.finish(trace.stream(index + 1).detach())
            else:
                tokens = trace.tokens.detach()
            score = case.score(tokens, ops)
            probabilities = [attended.probabilities for attended in ops.seen]
            ops.seen.clear()  # `seen` also holds the logits
            gradients = torch.autograd.grad(score.sum(), probabilities)  # shapes as in `Step`
        share = total.new_full(total.shape, 1 / total.shape[1])  # of each row in the mean over all rows
        for gradient in gradients:
            total += trace.within(index, partial(_sensitive, trace.attendable(index, gradient)), share)
        advance(trace.stream(index), 2 / trace.depth)
        del ops, tokens, score, probabilities, gradients, gradient  # free them before the next block
    return total


def _first_readable(case: Case, first: int) -> int:
    """Return the first block from `first` on whose tokens the classifier can read: all, or those of the last stage."""
    trace = case.trace
    last_stage = next(block for block in range(trace.depth) if trace.grid_in(block) == trace.grid_in(-1))
    if last_stage > first:
        case.notes.append(f"Layers {last_stage + 1} to {trace.depth} only, whose tokens the classifier can read.")
    return max(first, last_stage)


def _sensitive(gradient: Tensor, rows: Tensor) -> Tensor:
    """Return `sensitivity`, times the share (B, N) of the rows: a matrix has only some of them, and perhaps padding."""
    gradient = gradient[..., -rows.shape[1] :]  # without the class token of class attention
    padded = rows.shape[1] / rows.ne(0).sum(1, keepdim=True)
    return sensitivity(gradient) * rows.sum(1, keepdim=True) * padded


def sensitivity(gradient: Tensor) -> Tensor:
    """Return the mean of the positive gradient over heads and rows: (B, H, n, N), overwritten -> (B, N)."""
    return gradient.clamp_min_(0).mean((1, 2))


def _index(case: Case, block: int) -> int:
    """Return a block index from 0."""
    depth = case.trace.depth
    if not -depth <= block < depth:
        raise ExplainError(f"Expected a block among 0..{depth - 1} (or -{depth}..-1), got {block!r}. Choose one.")
    return block % depth


METHODS = (
    Method(
        function=gradient_rollout,
        title="Gradient rollout",
        paper="Gildenblat 2020, Exploring Explainability for Vision Transformers (vit-explain)",
        about="Attention that supports the class, combined over all layers.",
        cost=3.3,
        matrices=3.0,
    ),
    Method(
        function=attention_gradcam,
        title="Grad-CAM of attention",
        paper="Chefer, Gur and Wolf 2021, Transformer Interpretability Beyond Attention Visualization, CVPR (baseline)",
        about="The attention of one layer, each head weighted by the gradient of the class score.",
        cost=1.2,
        matrices=2.0,
    ),
    Method(
        function=token_gradcam,
        title="Grad-CAM of tokens",
        paper="Selvaraju et al. 2017, Grad-CAM: Visual Explanations from Deep Networks via Gradient-based "
        "Localization, ICCV",
        about="The output tokens of one layer, each channel weighted by the gradient of the class score.",
        cost=1.2,
    ),
    Method(
        function=gae,
        title="Generic attention explainability (GAE)",
        paper="Chefer, Gur and Wolf 2021, Generic Attention-model Explainability for Interpreting Bi-Modal and "
        "Encoder-Decoder Transformers, ICCV",
        about="Attention that supports the class, accumulated layer by layer.",
        cost=3.3,
        matrices=3.0,
    ),
    Method(
        function=legrad,
        title="LeGrad",
        paper="Bousselham et al. 2025, LeGrad: An Explainability Method for Vision Transformers via Feature Formation "
        "Sensitivity, ICCV",
        about="How much the class score after each layer would rise if that layer attended more to a patch. The score "
        "is read from the tokens that the classifier uses, or from all with pooling=tokens, as in the authors' code.",
        cost=3.0,
        matrices=2.0,
    ),
)
