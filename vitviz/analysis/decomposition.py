"""Decompose a class's logit, or the score of a target of the features, into contributions of heads, tokens and MLPs.

Direct logit attribution: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; for texts in CLIP:
Gandelsman et al. 2024, "Interpreting CLIP's Image Representation via Text-Based Decomposition". The residual stream is
a sum, the classifier is linear, and the final norm is linear for a fixed standard deviation, so the logit is a sum too.
Only direct effects count, not contributions that later blocks read.

Shapes: L blocks, H heads, N tokens, D width, d head width.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitviz.analysis import AnalysisError
from vitviz.analysis.logit_lens import check_one_image
from vitviz.analysis.tokens import block_outputs
from vitviz.attribution.target_specs import TargetOf, resolve_target
from vitviz.attribution.targets import Target
from vitviz.formatting import short_repr
from vitviz.model.devices import double
from vitviz.model.layers import LayerScale
from vitviz.model.trace import Trace
from vitviz.model.tracing import project_part
from vitviz.model.vit import ViT
from vitviz.outputs import SINGLE

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Decomposition:
    """Contributions to a target: a class's logit minus the mean of all logits, or the score itself without a softmax.

    Args:
        blocks: the L block indices, from 0.
        heads: (L, H), contributions of the heads.
        tokens: (L, H, N), `heads` split by the attended token, prefix tokens first; the sum over tokens is `heads`.
        mlps: (L,), contributions of the MLPs.
        biases: (L,), contributions of the output biases of attention.
        start: contribution of the first block's input tokens.
        constant: contribution of the biases of final norm and classifier.
        total: the sum of all contributions, equal to the logit minus the mean of the logits, or to the score.
        target: index of the class; -1 for a target of the features. `name` is its display name.
        scale: scale of the contributions: logit, value or cosine.
    """

    blocks: tuple[int, ...]
    heads: Floats
    tokens: Floats
    mlps: Floats
    biases: Floats
    start: float
    constant: float
    total: float
    target: int
    name: str
    scale: str

    __repr__ = short_repr


@torch.no_grad()
def decompose(model: ViT, trace: Trace, target: TargetOf | None = None) -> Decomposition:
    """Compute the contribution of each head, token and MLP to a class's logit minus the mean of all logits.

    The mean is subtracted because a constant added to all logits does not change a softmax. For several labels and for
    values, which have no softmax, the output itself is decomposed, and for a target of the features its score. In a
    cosine, the length of the features is held constant, like the standard deviation of the final norm.

    Args:
        model: the model of the trace.
        trace: trace of one image with all blocks.
        target: a class, as index or label, or a target of the features; by default the predicted class.

    Raises:
        AnalysisError: without a classifier and a target, for other kinds of targets, if the pooling is not linear, for
            talking heads, if a norm follows attention, or if a block was not kept.
        ExplainError: if the class does not exist.
    """
    check_one_image(trace)
    if trace.logits is None and target is None:
        raise AnalysisError("Expected a model with a classifier, got one without. Try token_pca instead.")
    if model.config.pooling == "attention":
        raise AnalysisError(
            "Expected pooling by CLS or mean, which is linear, got attention. Use an attribution method."
        )
    if model.config.talking_heads:
        raise AnalysisError(
            "Expected heads that each write to the residual stream, got talking heads, which mix their probabilities "
            "first. Use an attribution method."
        )
    if model.config.norm_attention or model.config.norm_post:
        raise AnalysisError(
            "Expected attention whose output is added to the residual stream directly, got a norm before the sum, so "
            "the contributions of heads do not add up. Use an attribution method."
        )
    if trace.blocks != tuple(range(trace.depth)):
        raise AnalysisError(f"Expected a trace with all blocks, got {list(trace.blocks)}. Omit blocks=.")
    resolved = resolve_target(model, trace.logits, target, batch=1)
    if resolved is None or resolved.kind not in ("class", "direction", "similarity"):
        raise AnalysisError(f"Expected a class or a target of the features, got {target!s:.60}. Name one.")
    outputs = [double(tokens[0]) for _, tokens in block_outputs(model, trace)]  # L x (N, D)
    slope, constant = _slope(model, trace, resolved, outputs[-1])
    tokens, biases, mlps = [], [], []
    for block, after in enumerate(outputs):
        before = double(trace.stream(block)[0])
        of_tokens, of_bias = _attention_part(model, trace, block, slope)
        tokens.append(of_tokens)
        biases.append(of_bias)
        mlps.append((slope * (after - before)).sum() - of_tokens.sum() - of_bias)
    start = (slope * double(trace.stream(0)[0])).sum()
    by_token = torch.stack(tokens)  # (L, H, N)
    total = start + constant + torch.stack([*biases, *mlps]).sum() + by_token.sum()
    return Decomposition(
        blocks=trace.blocks,
        heads=by_token.sum(-1).cpu().numpy(),
        tokens=by_token.cpu().numpy(),
        mlps=torch.stack(mlps).cpu().numpy(),
        biases=torch.stack(biases).cpu().numpy(),
        start=float(start),
        constant=float(constant),
        total=float(total),
        target=-1 if resolved.features else int(resolved.points),
        name=resolved.names[0],
        scale=resolved.score_scale,
    )


def _readers(model: ViT, trace: Trace, target: Target) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """Return the tokens that a target reads, as pairs of weights (N,) and direction (D,), and the classifier's bias."""
    prefix, kind = len(trace.prefix), model.config.pooling
    count = trace.tokens.shape[1]
    rows, bias = _feature_direction(model, trace, target) if target.features else _class_rows(model, trace, target)
    first, mean = rows[0].new_zeros(2, count)
    first[0], mean[prefix:] = 1.0, 1.0 / (count - prefix)
    width = model.config.width
    readers = [(first if kind == "cls" else mean, rows[0])]
    if kind == "cls+mean":
        readers = [(first, rows[0][:width]), (mean, rows[0][width:])]
    if len(rows) > 1:  # the distillation token has its own classifier
        dist = torch.zeros_like(first)
        dist[model.config.distillation_at] = 1.0
        readers.append((dist, rows[1]))
    return readers, bias


def _class_rows(model: ViT, trace: Trace, target: Target) -> tuple[list[Tensor], Tensor]:
    """Return the direction of a class in the features, (F,), for each classifier, and the bias."""
    assert model.head is not None  # the target is a class
    heads = [model.head] if model.head_dist is None else [model.head, model.head_dist]
    index, centering = int(target.points), float(model.problem_type == SINGLE)  # the mean of all logits, or zero
    weights = [double(head.weight) for head in heads]
    rows = [(weight[index] - centering * weight.mean(0)) / len(heads) for weight in weights]
    offsets = [double(head.bias) for head in heads if head.bias is not None]
    biases = [(offset[index] - centering * offset.mean()) / len(heads) for offset in offsets]
    matrix = None if model.projection is None else model.projection.weight
    return [_before_projection(model, trace, row, matrix, model.config.cosine) for row in rows], sum(
        biases, rows[0].new_zeros(())
    )


def _feature_direction(model: ViT, trace: Trace, target: Target) -> tuple[list[Tensor], Tensor]:
    """Return the direction of a target in the features, [(F,)], and a bias of zero."""
    vector = double(target.points[0].to(trace.tokens.device))
    cosine = target.kind == "similarity"
    return [_before_projection(model, trace, vector, target.projection, cosine)], vector.new_zeros(())


def _before_projection(model: ViT, trace: Trace, vector: Tensor, matrix: Tensor | None, cosine: bool) -> Tensor:
    """Map a vector in the embedding (E,) to the direction in the features (F,) that has the same dot product.

    With `cosine`, the direction is divided by the length of the embedding, which is held constant.
    """
    features = double(model.read_out(trace.tokens)[0])  # (F,)
    if matrix is not None:
        matrix = double(matrix.to(features.device))  # (E, F)
        features, direction = matrix @ features, vector @ matrix
    else:
        direction = vector
    return direction / features.norm() if cosine else direction


def _slope(model: ViT, trace: Trace, target: Target, last: Tensor) -> tuple[Tensor, Tensor]:
    """Return the score's gradient in the residual stream (N, D) for a fixed deviation of the norm, and the constant.

    `last` is the output (N, D) of the last block.
    """
    norm, slope = model.norm, torch.zeros_like(last)
    readers, constant = _readers(model, trace, target)
    for weights, direction in readers:
        if isinstance(norm, nn.Identity):
            slope += weights[:, None] * direction
            continue
        assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
        aim = double(norm.weight) * direction
        read = (weights @ last)[None] if model.config.norm_pooled else last  # input of the norm: (1, D) or (N, D)
        if isinstance(norm, nn.LayerNorm):  # it subtracts the mean of the channels, and adds a bias
            aim, read = aim - aim.mean(), read - read.mean(-1, keepdim=True)
            constant = constant + double(norm.bias) @ direction
        deviation = (read.square().mean(-1) + (norm.eps or 0.0)).sqrt()  # (1,) or (N,)
        slope += (weights / deviation)[:, None] * aim
    return slope, constant


def _attention_part(model: ViT, trace: Trace, block: int, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Return the contributions of the tokens that a block's heads attend to, (H, N), and of its output bias."""
    layer, block_trace = model.blocks[block], trace.block(block)
    scale = double(layer.ls1.gamma) if isinstance(layer.ls1, LayerScale) else 1.0
    aims = slope * scale  # (N, D)
    values = double(project_part(layer.attn, layer.enter(trace.stream(block)), parts=slice(2, 3))[0][0])  # (H, N, d)
    joined = (aims @ double(layer.attn.proj.weight)).unflatten(1, (layer.attn.heads, -1))  # (N, H * d) -> (N, H, d)
    total = values.new_zeros(values.shape[:2])  # (H, N)
    for start, stop in block_trace.chunks():
        aim = joined[start:stop]  # (n, H, d)
        if not aim.any():
            continue
        moved = aim.transpose(0, 1) @ values.mT  # (H, n, d) @ (H, d, N) -> (H, n, N)
        total += (double(block_trace.rows(start, stop)[0]) * moved).sum(1)
    bias = layer.attn.proj.bias
    return total, total.new_zeros(()) if bias is None else (aims @ double(bias)).sum()
