"""Layer-wise relevance propagation: what a class's score is made of, handed back layer by layer.

Both methods run the model again with passes of their own (`vitviz.explain.alpha_beta`, `vitviz.explain.rules`): pure
functions over the model's layers, without hooks.

Shapes: B images, H heads, N tokens = P prefix tokens followed by gh x gw patches, D width, C classes.
"""

from __future__ import annotations

import math
from typing import get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from vitviz.explain import alpha_beta, rules
from vitviz.explain.case import Case, Method
from vitviz.explain.scores import ExplainError
from vitviz.model import ViT


def transformer_lrp(case: Case, *, start: int = 0) -> Tensor:
    """Transformer attribution (Chefer, Gur & Wolf 2021, CVPR, section 3): relevance times gradient, rolled out.

    In each block max(0, gradient x relevance of the probabilities), the mean over heads, plus the identity; of the
    product of all blocks the row of the token that the classifier reads. As in the authors' program rows are not
    rescaled, and the relevance of the class starts from 1. As there, too, rounding decides where the two terms of a
    skip connection nearly cancel: `vitviz.probe.sensitivity.max_sensitivity` says how far a map rests on that.

    Where the classifier reads more than the class token, the row is the mean of the rows of what it reads (the class
    token, all patches, the distillation token); attention pooling is one more block, whose one row is read. A token's
    path to itself along the residual stream alone is left out: it is the same for every class. With a contrast, the
    relevance is that of the first class, the gradient that of the difference.

    Args:
        case: model, images and target.
        start: first block to include, counted from 0.

    Returns:
        (B, N), none below 0.

    Raises:
        ExplainError: if there is no such block, or the model has no classifier.
    """
    model, target = case.model, case.target
    _check_start(model, start)
    tokens, angles = _embedded(case)
    with torch.enable_grad():
        seen = alpha_beta.watch(model, tokens, angles)
        wanted = seen.probabilities[start:]
        slopes = torch.autograd.grad(target.score(seen.logits).sum(), wanted)
    first = F.one_hot(target.classes, model.config.classes).to(tokens)  # (B, C)
    cams = alpha_beta.attention_relevance(model, seen, first, angles, start)
    # (B, H, n, N) -> (B, n, N), n = N but for attention pooling
    steps = [(slope * cam).clamp(min=0).mean(1) for slope, cam in zip(slopes, cams, strict=True)]
    if model.attn_pool is not None:
        row, moved = torch.zeros_like(steps[-1]), steps.pop()  # (B, 1, N)
    else:
        row = _read_row(model, tokens)
        moved = torch.zeros_like(row)
    # The product of all (step + identity), less the identity: carried along, because it can be far smaller than 1.
    for step in reversed(steps):
        moved = moved + (row + moved) @ step  # (B, 1, N) @ (B, N, N)
    return moved.squeeze(1)


def attn_lrp(
    case: Case,
    *,
    gamma_qkv: float = 0.0,
    gamma_proj: float = 0.0,
    gamma_mlp: float = 0.0,
    gamma_head: float = 0.0,
    epsilon: float = 0.0,
    softmax: rules.Softmax = "taylor",
    conserve: bool = True,
) -> Tensor:
    """AttnLRP (Achtibat et al. 2024, ICML): the logit, or the difference of two, shared out over the tokens.

    The score of a token is the relevance of what enters the first block: of a patch together with its position
    embedding. Patches do not overlap, so the rule of the patch embedding would only move it about inside a patch.

    Biases and the softmax take relevance that reaches no token. In the paper it is lost; handed on to the inputs of
    each layer it would make the maps less faithful. With `conserve` it is added up and, because it belongs to no patch,
    given to the prefix tokens in equal parts (without any, to all patches, which leaves their order): then all scores
    sum to what is explained, up to rounding and to what `epsilon` takes at the classifier.

    Args:
        case: model, images and target.
        gamma_qkv, gamma_proj, gamma_mlp, gamma_head: by how much contributions of the output's own sign are favoured in
            the linear maps into and out of attention, of the MLPs, and of the classifier (Montavon et al. 2019, for
            inputs of both signs). 0 is the epsilon rule. Above 0 the map is less grainy, and up to twice as slow.
        epsilon: what is added to the denominators of linear maps, with their sign. At 0 they cancel.
        softmax: "taylor", the paper's rule; or "constant", attention as a number, all relevance by the values: CP-LRP
            (Ali et al. 2022), which the authors' own program takes for ViTs.
        conserve: whether all scores sum to what is explained; `False` for the paper's numbers.

    Returns:
        (B, N), signed.

    Raises:
        ExplainError: if an option is out of range, or the model has no classifier.
    """
    model, target = case.model, case.target
    for name, value in zip(AMOUNTS, (gamma_qkv, gamma_proj, gamma_mlp, gamma_head, epsilon), strict=True):
        if not isinstance(value, int | float) or not 0.0 <= value < math.inf:
            raise ExplainError(f"{name}: expected a number of at least 0, got {value!r}.")
    if softmax not in get_args(rules.Softmax):
        raise ExplainError(f"softmax: expected one of {', '.join(get_args(rules.Softmax))}; got {softmax!r}.")
    chosen = rules.Rules(gamma_qkv, gamma_proj, gamma_mlp, gamma_head, epsilon, softmax)
    tokens, angles = _embedded(case)
    tokens, book = tokens.detach().requires_grad_(), tokens.new_zeros(len(tokens), 1).requires_grad_()
    with torch.enable_grad():
        score = target.score(rules.run(model, tokens, book, angles, chosen))
        slope, booked = torch.autograd.grad(score.sum(), [tokens, book])  # (B, N, D), (B, 1)
    scores = (tokens.detach() * slope).sum(-1)  # (B, N, D) -> (B, N)
    if conserve:
        rest = slice(0, len(model.config.prefix) or None)
        scores[:, rest] += booked / scores[:, rest].shape[1]
    return scores


AMOUNTS = ("gamma_qkv", "gamma_proj", "gamma_mlp", "gamma_head", "epsilon")


def _embedded(case: Case) -> tuple[Tensor, rules.Angles | None]:
    """The tokens (B, N, D) that enter the first block, without a graph, and the rotations of the patches."""
    with torch.no_grad():
        tokens, grid = case.model.embed(case.images)
        return tokens, case.model.angles(grid)


def _read_row(model: ViT, tokens: Tensor) -> Tensor:
    """Weights (B, 1, N) over the tokens that the classifier reads: the mean of its parts."""
    batch, count = tokens.shape[:2]
    parts = []
    if "cls" in model.config.pooling:
        parts.append([0])
    if "mean" in model.config.pooling:
        parts.append(list(range(len(model.config.prefix), count)))
    if model.distilled:
        parts.append([model.config.distillation_at])
    row = tokens.new_zeros(batch, 1, count)
    for part in parts:
        row[:, :, part] += 1.0 / (len(part) * len(parts))
    return row


def _check_start(model: ViT, start: int) -> None:
    if not 0 <= start < model.config.depth:
        raise ExplainError(f"start is the first block to include: expected 0..{model.config.depth - 1}, got {start}.")


METHODS = (
    Method(
        name="transformer_lrp",
        title="Transformer attribution",
        paper="Chefer, Gur and Wolf 2021, Transformer Interpretability Beyond Attention Visualization, CVPR",
        family="relevance",
        function=transformer_lrp,
        about="Relevance of the attention, times its gradient, followed through all blocks. Evidence for a class only; "
        "in small models rounding may decide much of it.",
        class_specific=True,
        signed=False,
        cost=6.2,
        options={"start": 0},
    ),
    Method(
        name="attn_lrp",
        title="AttnLRP",
        paper="Achtibat et al. 2024, AttnLRP: Attention-Aware Layer-Wise Relevance Propagation for Transformers, ICML",
        family="relevance",
        function=attn_lrp,
        about="The class's score shared out over the tokens, layer by layer; all scores sum to it.",
        class_specific=True,
        signed=True,
        cost=2.6,
        options={**dict.fromkeys(AMOUNTS, 0.0), "softmax": "taylor", "conserve": True},
    ),
)
