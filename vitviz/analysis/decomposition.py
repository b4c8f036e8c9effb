"""Decompose a score that is linear in the final tokens into contributions of heads, tokens and MLPs.

Direct logit attribution: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"; for texts in CLIP:
Gandelsman et al. 2024, "Interpreting CLIP's Image Representation via Text-Based Decomposition". The residual stream is
a sum, the classifier is linear, and a norm is linear for a fixed standard deviation, so the score is a sum too. In
attention pooling, the probabilities are fixed as well. Only direct effects count, not contributions that later blocks
read.

Shapes: L blocks, H heads, N tokens, D width, d head width.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitviz.analysis import AnalysisError
from vitviz.analysis.captured_terms import Terms, captured_terms
from vitviz.analysis.logit_lens import check_one_image
from vitviz.analysis.tokens import block_outputs
from vitviz.attribution.attention import used_rows
from vitviz.attribution.attn_lrp import KINDS, AttnLRP
from vitviz.attribution.target_specs import Contrast, TargetOf, resolve_target
from vitviz.attribution.targets import Target
from vitviz.formatting import short_repr
from vitviz.model.devices import double, double_module
from vitviz.model.layers import Attention, LayerScale
from vitviz.model.ops import PLAIN, Ops
from vitviz.model.trace import AttentionTrace
from vitviz.model.tracing import project_part
from vitviz.model.vit import ViT
from vitviz.outputs import SINGLE
from vitviz.weights.captured import Captured
from vitviz.weights.captured_vit import CapturedViT

Floats = NDArray[np.float64]

RANK_TOLERANCE = 1e-9  # relative to the size of the direct effect, in float64


@dataclass(frozen=True, eq=False, kw_only=True)
class Decomposition:
    """Contributions to a target: a class's logit minus the mean of all logits, or the score itself without a softmax.

    `start`, `heads`, `mlps`, `biases` and `constant` sum to `total`.

    Args:
        blocks: the L block indices, from 0.
        heads: (L, H), contributions of the heads.
        tokens: (L, H, N), `heads` split by the attended token, prefix tokens first; the sum over tokens is `heads`. In
            windowed models, H and N are those of the largest block, and other blocks are padded with zeros.
        mlps: (L,), contributions of the MLPs, and of the constants that are added between blocks.
        biases: (L,), contributions of the output biases of attention.
        start: contribution of the first block's input tokens.
        constant: contribution of the biases of final norm and classifier, and of an MLP in the pooling.
        total: the sum of all contributions, equal to the logit minus the mean of the logits, or to the score.
        target: index of the class; -1 for other targets. `name` is its display name.
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


@dataclass(frozen=True, eq=False, kw_only=True)
class Reading:
    """How a target's score reads the output of the last block directly.

    Args:
        target: the target.
        score: the score. That of a class is its logit minus the mean of all logits if the classes share a softmax.
        slope: (N, D), direct effect of the tokens on the score, float64.
        weights, directions: (r, N) and (r, D), factors of the slope, see `factors`.
        contribution: sum of the products of tokens and slope.
    """

    target: Target
    score: float
    slope: Tensor
    weights: Tensor
    directions: Tensor
    contribution: float

    __repr__ = short_repr


class Direct(AttnLRP):
    """Operations whose gradient is the direct effect: norms are linear, attention and MLPs are constant.

    Args:
        model: the model whose layers it runs.
    """

    def __init__(self, model: ViT) -> None:
        super().__init__(model, dict.fromkeys(KINDS.values(), 0.0), 0.0, "constant", conserve=False)

    def linear(self, layer: nn.Linear, x: Tensor) -> Tensor:
        """Apply a linear layer."""
        y: Tensor = layer(x)
        return y

    def activation(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Apply a non-linearity, without a gradient."""
        return function(x).detach()

    def product(
        self,
        function: Callable[[Tensor, Tensor], Tensor],
        a: Tensor,
        b: Tensor,
        *,
        constant: bool = False,  # noqa: ARG002
    ) -> Tensor:
        """Multiply, without a gradient."""
        return function(a, b).detach()


@torch.no_grad()
def decompose(
    model: ViT, trace: AttentionTrace, target: TargetOf | None = None, *, contrast: Contrast | None = None
) -> Decomposition:
    """Compute the contribution of each head, token and MLP to a class's logit minus the mean of all logits.

    The mean is subtracted because a constant added to all logits does not change a softmax. For several labels and for
    values, which have no softmax, the output itself is decomposed, and for other targets their score. In a cosine, the
    length of the features is held constant, like the standard deviation of the final norm.

    Args:
        model: the model of the trace.
        trace: trace of one image with all blocks, without edits.
        target: a class, as index or label, an `Output`, or a target of the features; by default the predicted class.
        contrast: (A, B), the difference of two logits; instead of `target`.

    Raises:
        AnalysisError: without a classifier and a target, for a group of classes, or if a block was not kept.
        ExplainError: if the class does not exist.
    """
    if isinstance(model, CapturedViT):
        resolved = linear_target(model, trace, target, contrast)
        assert isinstance(trace, Captured)
        terms = captured_terms(model, trace, resolved, centered_scores)
        return _decomposition(trace.blocks, terms, resolved)
    reading = target_reading(model, trace, target, contrast)
    start, after = 0.0, reading.contribution
    slope, effect = reading.slope, (reading.weights, reading.directions)
    tokens, biases, mlps = [], [], []
    for index in range(trace.depth - 1, -1, -1):
        entering = trace.stream(index)[0]
        entered = _product(slope, entering)
        of_tokens, of_bias = _attention_part(model, trace, index, entering, effect)
        tokens.append(of_tokens)
        biases.append(float(of_bias))
        mlps.append(after - entered - float(of_tokens.sum()) - biases[-1])
        after = start = entered
    terms = Terms(tokens[::-1], biases[::-1], mlps[::-1], start, reading.score - reading.contribution)
    return _decomposition(trace.blocks, terms, reading.target)


def _decomposition(blocks: tuple[int, ...], terms: Terms, target: Target) -> Decomposition:
    heads, count = (max(sizes) for sizes in zip(*(part.shape for part in terms.tokens), strict=True))
    padded = [F.pad(part, (0, count - part.shape[1], 0, heads - part.shape[0])) for part in terms.tokens]
    by_token = torch.stack(padded)  # (L, H, N)
    return Decomposition(
        blocks=blocks,
        heads=by_token.sum(-1).cpu().numpy(),
        tokens=by_token.cpu().numpy(),
        mlps=np.array(terms.mlps),
        biases=np.array(terms.biases),
        start=terms.start,
        constant=terms.constant,
        total=terms.start + terms.constant + sum(terms.biases) + sum(terms.mlps) + float(by_token.sum()),
        target=int(target.points) if target.points.shape[1] == 1 and not target.features else -1,
        name=target.names[0],
        scale=target.score_scale,
    )


def target_reading(
    model: ViT, trace: AttentionTrace, target: TargetOf | None = None, contrast: Contrast | None = None
) -> Reading:
    """Return how a target whose score is linear in the final tokens reads them; arguments as in `decompose`.

    Raises:
        AnalysisError: as `decompose`.
        ExplainError: if the class does not exist.
    """
    resolved = linear_target(model, trace, target, contrast)
    # Only the final norm and the classifier are needed in double precision.
    parts = model.blocks, model.patch_embed, model.pos_embed, model.position_means
    whole = double_module(model, {id(part): nn.Identity() if isinstance(part, nn.Module) else None for part in parts})
    ops, ((_, last),) = Direct(whole), block_outputs(model, trace, trace.depth - 1)
    with torch.enable_grad():
        tokens = double(last).detach().requires_grad_()  # (1, N, D)
        outputs = resolved.read(whole, whole.finish(tokens, ops, model.angles(trace.grid)), ops)
        score = centered_scores(resolved, outputs, ops).sum()
        (slope,) = torch.autograd.grad(score, tokens)
    weights, directions = factors(slope[0])
    return Reading(
        target=resolved,
        score=float(score.detach()),
        slope=slope[0],
        weights=weights,
        directions=directions,
        contribution=_product(slope[0], tokens.detach()[0]),
    )


def linear_target(
    model: ViT, trace: AttentionTrace, target: TargetOf | None = None, contrast: Contrast | None = None
) -> Target:
    """Return the target, whose score must be linear in logits or features; arguments and errors as in `decompose`."""
    check_one_image(trace, windows=True)
    if trace.blocks != tuple(range(trace.depth)):
        raise AnalysisError(f"Expected a trace with all blocks, got {list(trace.blocks)}. Omit blocks=.")
    resolved = resolve_target(model, trace.logits, target, contrast, batch=1)
    if resolved is None:
        raise AnalysisError(
            "Expected a target for a model without a classifier, got none. Name one of the features, such as Unit(0)."
        )
    if resolved.kind == "group":
        raise AnalysisError(
            f"Expected a target whose score is a sum, got {resolved.names[0]}, a group, whose score is the logarithm "
            "of a sum. Choose one of its classes, or Output(class) for the logit itself."
        )
    return resolved


def centered_scores(target: Target, outputs: Tensor, ops: Ops = PLAIN) -> Tensor:
    """Return scores of outputs, (B, C) or (B, F) -> (B,), minus the mean of all logits if classes share a softmax."""
    scores = target.score(outputs, ops)
    return scores - outputs.mean(1) if target.kind == "class" and target.problem_type == SINGLE else scores


def _product(slope: Tensor, tokens: Tensor) -> float:
    """Return the sum of products of a slope and tokens, (N, D) each."""
    return float(torch.dot(slope.flatten(), double(tokens).flatten()))


def factors(slope: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights (r, N) and directions (r, D) whose products sum to the direct effect (N, D), float64.

    The rank r is the number of different vectors that read the tokens: 1 for a class token or for a mean, H for
    attention pooling. Adaptive cross approximation: Bebendorf 2000.
    """
    rest, least = slope.clone(), RANK_TOLERANCE * slope.norm()
    weights, directions = [], []
    while (norms := rest.norm(dim=1)).max() > least:
        directions.append(rest[norms.argmax()] / norms.max())
        weights.append(rest @ directions[-1])
        rest -= weights[-1][:, None] * directions[-1]
    if not weights:
        return slope.new_zeros(0, len(slope)), slope.new_zeros(0, slope.shape[1])
    return torch.stack(weights), torch.stack(directions)


def head_effects(
    model: ViT, trace: AttentionTrace, index: int, entered: Tensor, effect: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the direct effects of the outputs of a block's heads as products, and those of its constants.

    Args:
        model, trace: the model and a trace of one image.
        index: number of the block.
        entered: (1, N, D), the input of attention.
        effect: `factors` of the direct effect of the block's output.

    Returns:
        Weights of the queries (1, r, N), and directions (r, H, d) in the heads' outputs before the output projection;
        the contribution of the biases that are added to the heads' outputs.
    """
    block, attn = model.blocks[index], model.blocks[index].attn
    weights, directions = effect[0][None], effect[1]  # (1, r, N), (r, D)
    constant = weights.new_zeros(())
    if isinstance(block.ls1, LayerScale):
        directions = directions * double(block.ls1.gamma)
    joined = attended = None
    if block.post or not isinstance(attn.norm, nn.Identity):  # their deviations depend on the heads' outputs
        values = project_part(attn, entered, parts=slice(2, 3))[0]  # (1, H, N, d)
        rows = (trace.block(index).rows(*chunk).to(values.dtype) for chunk in trace.block(index).chunks())
        mixed = torch.cat([attn.talk(part) @ values for part in rows], dim=2)
        joined, attended = mixed.transpose(1, 2).flatten(2), attn.merge(mixed)  # (1, N, H * d), (1, N, D)
    if block.post:
        weights, directions, added = _through_norm(block.norm1, attended, weights, directions)
        constant += added
    if attn.proj.bias is not None:
        constant += weights.sum((0, 2)) @ (directions @ double(attn.proj.bias))
    directions = directions @ double(attn.proj.weight)  # (r, H * d)
    weights, directions, added = _through_norm(attn.norm, joined, weights, directions)
    return weights, directions.unflatten(1, (attn.heads, -1)), constant + added


def _through_norm(
    norm: nn.Module, x: Tensor | None, weights: Tensor, directions: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Express a weighted sum of a norm's outputs as a weighted sum of its inputs and a constant.

    Args:
        norm: the norm; the scale of each token is treated as a constant.
        x: its inputs, (1, N, D).
        weights: of the outputs, (1, r, N).
        directions: projections of the outputs, (r, D).

    Returns:
        Weights and directions for the inputs, of the same shapes, and the contribution of the norm's bias, ().
    """
    constant = weights.new_zeros(())
    if x is None or not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        return weights, directions, constant
    x = double(x)
    if isinstance(norm, nn.LayerNorm):
        constant = weights.sum((0, 2)) @ (directions @ double(norm.bias))
        x = x - x.mean(-1, keepdim=True)
    directions = directions * double(norm.weight)
    if isinstance(norm, nn.LayerNorm):
        directions = directions - directions.mean(-1, keepdim=True)
    deviation = (x.square().mean(-1) + (norm.eps or 0.0)).sqrt()  # (1, N)
    return weights / deviation[:, None], directions, constant


def _attention_part(
    model: ViT, trace: AttentionTrace, index: int, entering: Tensor, effect: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the contributions of a block's heads by attended token, (H, N), and of the biases of its attention."""
    block, block_trace = model.blocks[index], trace.block(index)
    entered = block.enter(entering[None].to(block.attn.qkv.weight))  # (1, N, D)
    weights, directions, constant = head_effects(model, trace, index, entered, effect)
    writes = value_effects(block.attn, entered, directions)  # (1, r, H, N)
    total = writes.new_zeros(len(writes), *writes.shape[2:])  # (1, H, N)
    for start, stop in used_rows(block_trace, weights.any(1)):
        rows = block.attn.talk(block_trace.rows(start, stop))  # (1, H, n, N)
        read = weights[:, None, :, start:stop].to(rows) @ rows  # (1, 1, r, n) @ (1, H, n, N) -> (1, H, r, N)
        total += (double(read).transpose(1, 2) * writes).sum(1)
    return total[0], constant


def value_effects(attn: Attention, entered: Tensor, directions: Tensor) -> Tensor:
    """Return the dot products of each token's value with directions: (r, H, d) -> (1, r, H, N), float64.

    The directions are multiplied by the value matrix first, then by the input of attention (1, N, D), which is cheaper
    than computing all values.
    """
    _, _, weight = attn.qkv.weight.unflatten(0, (3, attn.heads, -1))  # (H, d, D)
    directions = directions.to(weight)
    reads = (directions[:, :, None] @ weight).squeeze(2)  # (r, H, 1, d) @ (H, d, D) -> (r, H, D)
    effects = double(reads @ entered.mT[:, None])  # (r, H, D) @ (1, 1, D, N) -> (1, r, H, N)
    bias: Tensor | None = attn.qkv.bias
    if bias is None:
        return effects
    of_values = bias.unflatten(0, (3, attn.heads, -1))[2]  # (H, d)
    return effects + double((directions * of_values).sum(-1, keepdim=True))
