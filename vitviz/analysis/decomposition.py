"""Decompose a class's logit into contributions of heads and MLPs: direct logit attribution.

Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; on CLIP: Gandelsman et al. 2024, "Interpreting
CLIP's Image Representation via Text-Based Decomposition". The residual stream is a sum, the classifier is
linear, and the final norm is linear for a fixed standard deviation, so the logit is a sum too. Only direct effects
count, not contributions that later blocks read.

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
from vitviz.attribution.inputs import Named, class_index, class_name
from vitviz.formatting import short_repr
from vitviz.model.devices import double
from vitviz.model.layers import LayerScale
from vitviz.model.trace import Trace
from vitviz.model.tracing import project_part
from vitviz.model.vit import ViT
from vitviz.outputs import SINGLE, rank

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Decomposition:
    """Contributions to a class's logit minus the mean of all logits, or to the output itself without a softmax.

    Args:
        blocks: the L block indices, from 0.
        heads: (L, H), contributions of the heads.
        mlps: (L,), contributions of the MLPs.
        biases: (L,), contributions of the output biases of attention.
        start: contribution of the first block's input tokens.
        constant: contribution of the biases of final norm and classifier.
        total: the sum of all contributions, equal to the logit minus the mean of the logits.
        target: index of the class; `name` is its display name.
    """

    blocks: tuple[int, ...]
    heads: Floats
    mlps: Floats
    biases: Floats
    start: float
    constant: float
    total: float
    target: int
    name: str

    __repr__ = short_repr


@torch.no_grad()
def decompose(model: ViT, trace: Trace, target: Named | None = None) -> Decomposition:
    """Compute the contribution of each head and MLP to a class's logit minus the mean of all logits.

    The mean is subtracted because a constant added to all logits does not change a softmax. For several labels and for
    values, which have no softmax, the output itself is decomposed.

    Args:
        model: the model of the trace.
        trace: trace of one image with all blocks.
        target: the class, as index or label; by default the predicted class.

    Raises:
        AnalysisError: without a classifier, or if its pooling is not linear or a block was not kept.
        ExplainError: if the class does not exist.
    """
    check_one_image(trace)
    if trace.logits is None:
        raise AnalysisError("Expected a model with a classifier, got one without. Try token_pca instead.")
    if model.config.pooling == "attention":
        raise AnalysisError(
            "Expected pooling by CLS or mean, which is linear, got attention. Use an attribution method."
        )
    if model.config.norm_attention or model.config.norm_post:
        raise AnalysisError(
            "Expected attention whose output is added as it is, got a norm after it, so that the shares of heads do "
            "not add up. Use an attribution method."
        )
    if trace.blocks != tuple(range(trace.depth)):
        raise AnalysisError(f"Expected a trace with all blocks, got {list(trace.blocks)}. Omit blocks=.")
    index = int(rank(trace.logits[0], model.problem_type)[0]) if target is None else class_index(model, target)
    outputs = [double(tokens[0]) for _, tokens in block_outputs(model, trace)]  # L x (N, D)
    slope, constant = _slope(model, trace, index, outputs[-1])
    heads, biases, mlps = [], [], []
    for block, after in enumerate(outputs):
        before = double(trace.stream(block)[0])
        of_heads, of_bias = _attention_part(model, trace, block, slope)
        heads.append(of_heads)
        biases.append(of_bias)
        mlps.append((slope * (after - before)).sum() - of_heads.sum() - of_bias)
    start = (slope * double(trace.stream(0)[0])).sum()
    total = start + constant + torch.stack([*biases, *mlps]).sum() + torch.stack(heads).sum()
    return Decomposition(
        blocks=trace.blocks,
        heads=torch.stack(heads).cpu().numpy(),
        mlps=torch.stack(mlps).cpu().numpy(),
        biases=torch.stack(biases).cpu().numpy(),
        start=float(start),
        constant=float(constant),
        total=float(total),
        target=index,
        name=class_name(model, index),
    )


def _readers(model: ViT, trace: Trace, index: int) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """Return the tokens that a logit reads, as pairs of weights (N,) and direction (D,), and the classifier's bias."""
    assert model.head is not None  # checked by the caller
    prefix, kind = len(trace.prefix), model.config.pooling
    count = trace.tokens.shape[1]
    heads = [model.head] if model.head_dist is None else [model.head, model.head_dist]
    centering = float(model.problem_type == SINGLE)  # the mean of all logits, or zero
    rows = [double(head.weight[index] - centering * head.weight.mean(0)) / len(heads) for head in heads]
    bias = sum(
        (
            double(head.bias[index] - centering * head.bias.mean()) / len(heads)
            for head in heads
            if head.bias is not None
        ),
        rows[0].new_zeros(()),
    )
    first, mean = rows[0].new_zeros(2, count)
    first[0], mean[prefix:] = 1.0, 1.0 / (count - prefix)
    width = model.config.width
    readers = [(first if kind == "cls" else mean, rows[0])]
    if kind == "cls+mean":
        readers = [(first, rows[0][:width]), (mean, rows[0][width:])]
    if model.head_dist is not None:
        dist = torch.zeros_like(first)
        dist[model.config.distillation_at] = 1.0
        readers.append((dist, rows[1]))
    return readers, torch.as_tensor(bias)


def _slope(model: ViT, trace: Trace, index: int, last: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logit's gradient in the residual stream (N, D) for a fixed deviation of the norm, and the constant.

    `last` is the output (N, D) of the last block.
    """
    norm, slope = model.norm, torch.zeros_like(last)
    readers, constant = _readers(model, trace, index)
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
    """Return the contributions of a block's heads, (H,), and of its output bias."""
    layer, block_trace = model.blocks[block], trace.block(block)
    scale = double(layer.ls1.gamma) if isinstance(layer.ls1, LayerScale) else 1.0
    aims = slope * scale  # (N, D)
    values = double(project_part(layer.attn, layer.enter(trace.stream(block)), parts=slice(2, 3))[0][0])  # (H, N, d)
    joined = (aims @ double(layer.attn.proj.weight)).unflatten(1, (layer.attn.heads, -1))  # (N, H * d) -> (N, H, d)
    total = values.new_zeros(layer.attn.heads)
    for start, stop in block_trace.chunks():
        aim = joined[start:stop]  # (n, H, d)
        if not aim.any():
            continue
        mixed = double(block_trace.rows(start, stop)[0]) @ values  # (H, n, N) @ (H, N, d) -> (H, n, d)
        total += (mixed * aim.transpose(0, 1)).sum((1, 2))
    bias = layer.attn.proj.bias
    return total, total.new_zeros(()) if bias is None else (aims @ double(bias)).sum()
