"""Attribute a class's score to tokens by layer-wise relevance propagation.

Both methods run the model's own forward pass with operations whose backward pass propagates relevance
(`vitviz.attribution.alpha_beta`, `vitviz.attribution.attn_lrp`), without hooks.

Shapes: B images, H heads, N tokens = P prefix tokens followed by gh x gw patches, D width, C classes.
"""

import math
from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor, nn

from vitviz.attribution.alpha_beta import AlphaBeta
from vitviz.attribution.attention import pooled
from vitviz.attribution.attn_lrp import AttnLRP, Softmax
from vitviz.attribution.inputs import Case, Method
from vitviz.attribution.targets import ExplainError
from vitviz.model.devices import double, double_module
from vitviz.model.positions import Angles
from vitviz.model.vit import ViT
from vitviz.progress import advance


def transformer_lrp(case: Case, *, start: int = 0) -> Tensor:
    """Roll out relevance times gradient: transformer attribution (Chefer, Gur & Wolf 2021, CVPR, section 3).

    Each block's matrix is the mean over heads of max(0, gradient x relevance of the probabilities), plus the identity.
    The result is taken from the product of all blocks, at the rows that the classifiers read (`Case.read_rows`). As in
    the authors' program, rows are not rescaled, and the relevance of the class starts from 1.

    Where the two terms of a residual sum nearly cancel, their shares are large with opposite signs. Single precision
    would determine their split by rounding: the order of the patches then differs (rank correlation 0.9 for the default
    model). The whole method, including a forward pass, therefore runs in float64, whatever the model's precision, and
    on the CPU if the device has no float64 (Apple's MPS). Small changes of the image can still change the map:
    `vitviz.evaluation.sensitivity.max_sensitivity` measures this.

    Attention pooling is an additional block with one row, class attention several. A token's path to itself through the
    residual stream only is excluded, because it is the same for every class. `Target.relevance` defines where the
    relevance starts, such as at the first class of a contrast. The gradient is that of the score.

    Args:
        case: model, images and target.
        start: first block to include, from 0.

    Returns:
        (B, N), non-negative, on the model's device, in float32 or the model's precision if that is higher.

    Raises:
        ExplainError: if the block does not exist, or without a classifier.
    """
    model = case.model
    if not 0 <= start < model.config.depth:
        raise ExplainError(f"Expected a first block among 0..{model.config.depth - 1}, got start={start}. Choose one.")
    device, dtype = case.images.device, torch.promote_types(case.images.dtype, torch.float32)
    row, steps = double(case.read_rows(dtype))[:, None], _steps(case, start)  # (B, 1, N)
    # The product of all (step + identity) minus the identity, carried separately because it can be far below 1.
    attended = pooled(row[:, 0], islice(steps, model.config.pool_attentions))[:, None]
    for step in steps:
        rows = (row + attended)[:, :, : step.shape[1]]  # (B, 1, n), the rows that the last block computes
        attended = attended + rows @ step  # (B, 1, n) @ (B, n, N)
    return attended.squeeze(1).to(device, dtype)


def _steps(case: Case, start: int) -> Iterator[Tensor]:
    """Yield the mean over heads of max(0, gradient x relevance): (B, N, N) from the last block to the first.

    Those of the pooling, if any, come first, as `pooled` takes them. Each block runs again from its stored input, so
    only one block's matrices, and one block's weights in double precision, are in memory.
    """
    target, blocks, flows = case.target, case.model.blocks, None
    model, streams, angles = _run_in_double(case)
    for index in range(len(blocks) - 1, start - 1, -1):
        ops = AlphaBeta(model.config)
        entering = streams.pop().requires_grad_()
        with torch.enable_grad():
            out = model.leave(index, ops.block(index, double_module(blocks[index]), entering, angles), angles, ops)
            advance(entering, 1 / len(blocks))
            if flows is None:  # after the last block, continue to the outputs: (B, C) or (B, F)
                out = target.read(model, model.finish(out, ops), ops)
                outputs = out.detach().requires_grad_()
                (slope,) = torch.autograd.grad(target.score(outputs).sum(), outputs)
                flows = slope, target.relevance(outputs.detach())
        inputs = [attended.probabilities for attended in ops.seen] + [entering] * (index > start)
        gradients = torch.autograd.grad(out, inputs, flows[0], retain_graph=True)
        ops.relevance = True
        relevances = torch.autograd.grad(out, inputs, flows[1])
        flows = gradients[-1], relevances[-1]
        steps = list(zip(gradients, relevances, strict=True))[: len(ops.seen)]
        ops.seen.clear()  # breaks a reference cycle, so that the tensors are freed at once
        del ops, out, inputs, gradients, relevances  # free them before the next block
        while steps:
            gradient, relevance = steps.pop()
            product = gradient.mul_(relevance).clamp_(min=0)  # (B, H, n, N)
            del gradient, relevance
            yield product.mean(1)  # (B, n, N)
            del product


@torch.no_grad()
def _run_in_double(case: Case) -> tuple[ViT, list[Tensor], Angles | None]:
    """Run the model in double precision.

    Returns:
        The model in double precision without its blocks, the input of each block (B, N, D), and the angles.
    """
    blocks = case.model.blocks
    model = double_module(case.model, {id(blocks): nn.ModuleList()})
    tokens, grid = model.embed(double(case.images))
    streams, angles = [tokens], model.angles(grid)
    for index, block in enumerate(blocks[:-1]):
        advance(tokens, 1 / len(blocks))
        tokens = model.leave(index, double_module(block)(tokens, angles), angles)
        streams.append(tokens)
    return model, streams, angles


def attn_lrp(
    case: Case,
    *,
    gamma_qkv: float = 0.0,
    gamma_proj: float = 0.0,
    gamma_mlp: float = 0.0,
    gamma_head: float = 0.0,
    epsilon: float = 0.0,
    softmax: Softmax = "taylor",
    conserve: bool = True,
) -> Tensor:
    """Distribute the target's score over the tokens: AttnLRP (Achtibat et al. 2024, ICML).

    The score of a token is the relevance of the first block's input, a patch with its position embedding. Patches do
    not overlap, so the rule of the patch embedding would only move relevance inside a patch.

    Biases and the softmax absorb relevance, which the paper discards; passing it to the inputs of each layer would make
    the maps less faithful. With `conserve`, the absorbed relevance is divided equally between the prefix tokens
    (or all patches if there are none, which keeps their order). All scores then sum to the target's score. In a
    cosine, the length of the features is held constant, like the standard deviation in a norm.

    Args:
        case: model, images and target.
        gamma_qkv, gamma_proj, gamma_mlp, gamma_head: extra weight of contributions with the output's sign in the linear
            maps into and out of attention, of the MLPs, and of the classifier (Montavon et al. 2019, for inputs of both
            signs). 0 is the epsilon rule. Above 0, maps are less noisy but take up to twice the time.
        epsilon: added to the denominators of linear maps, with their sign. At 0 they cancel.
        softmax: "taylor", the paper's rule; or "constant", where all relevance goes to the values: CP-LRP (Ali et al.
            2022), used by the authors' program for ViTs.
        conserve: whether all scores sum to the target's score; `False` gives the paper's numbers, in which every bias
            absorbs relevance.

    Returns:
        (B, N), signed.

    Raises:
        ExplainError: if an option is out of range, or without a classifier.
    """
    model, target = case.model, case.target
    gammas = {"qkv": gamma_qkv, "proj": gamma_proj, "mlp": gamma_mlp, "head": gamma_head}
    for name, value in {**{f"gamma_{kind}": gamma for kind, gamma in gammas.items()}, "epsilon": epsilon}.items():
        if not 0.0 <= value < math.inf:
            raise ExplainError(f"Expected {name} to be at least 0, got {value}. Use 0 for the plain rule.")
    with torch.no_grad():
        tokens, grid = model.embed(case.images)  # (B, N, D)
    tokens = tokens.detach().requires_grad_()
    with torch.enable_grad():
        ops = AttnLRP(model, gammas, epsilon, softmax, conserve)
        outputs = target.read(model, model.encode(tokens, model.angles(grid), ops=ops), ops)  # (B, C) or (B, F)
        score = target.score(outputs, ops)
        (slope,) = torch.autograd.grad(score.sum(), tokens)  # (B, N, D)
    scores = (tokens.detach() * slope).sum(-1)  # (B, N, D) -> (B, N)
    return divide_rest(scores, score.detach(), len(model.config.prefix)) if conserve else scores


def divide_rest(scores: Tensor, total: Tensor, prefix: int) -> Tensor:
    """Divide the absorbed relevance, total (B,) minus the scores' sum, between prefix tokens: (B, N) -> (B, N).

    Each gets an equal share; without prefix tokens, all tokens do.
    """
    rest, takers = (total - scores.sum(1))[:, None], scores[:, : prefix or None]
    return torch.cat([takers + rest / takers.shape[1], scores[:, takers.shape[1] :]], dim=1)


METHODS = (
    Method(
        function=transformer_lrp,
        not_captured="it needs the operations inside the blocks",
        not_in_browser="its rules need double precision, which the graphs do not have",
        title="Transformer attribution",
        paper="Chefer, Gur and Wolf 2021, Transformer Interpretability Beyond Attention Visualization, CVPR",
        about="Relevance of the attention times its gradient, combined over all layers. It shows only evidence for a "
        "class; tiny changes of the photograph can change it noticeably. It is computed in double precision, which "
        "takes longer, and on an Apple device therefore on the CPU.",
        cost=14.0,
        matrices=8.0,
        double=True,
    ),
    Method(
        function=attn_lrp,
        not_captured="it needs the operations inside the blocks",
        title="AttnLRP",
        paper="Achtibat et al. 2024, AttnLRP: Attention-Aware Layer-Wise Relevance Propagation for Transformers, ICML",
        about="The class score distributed over the tokens, layer by layer; all values add up to it.",
        signed=True,
        cost=3.6,
        activations=9.0,
    ),
)
