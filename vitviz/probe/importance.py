"""How much the answer rests on each head: by gradient (Michel et al. 2019), and by taking the head out.

Both start from what a trace kept of every block, so nothing runs twice that is known already.

Shapes: B images, L blocks, H heads, N tokens, D width, d head width, C classes.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from vitviz.edits import Angles, BlockEdit
from vitviz.explain.case import Target
from vitviz.layers import Block
from vitviz.model import ViT
from vitviz.probe import ProbeError
from vitviz.trace import Trace

Of = Literal["loss", "logit"]

# Copies of the image, each with another head out, run together while the widest tensor of a block stays below this.
TOGETHER_BYTES = 32 * 2**20


def head_gradients(model: ViT, trace: Trace, target: Target, of: Of = "logit") -> Tensor:
    """Importance of each head by gradient: (B, L, H), float64, at least 0, for the blocks of the trace.

    |dS / dm| where m scales the head's output and is 1: Michel et al. 2019, "Are Sixteen Heads Really Better than
    One?", equation 2. It equals |sum of A * dS / dA| over the head's attention A, but needs no N x N matrix.

    Args:
        model: that made the trace, in eval mode.
        trace: without edits; with every block from its first one to the last.
        target: the classes; see `vitviz.explain.case.resolve_target`.
        of: what S is. "logit" is the target's logit, or for a contrast the difference of the two. "loss" is the
            paper's, made for many labelled images: the cross-entropy of the target class, for a contrast that between
            the two classes alone. On one image that the model is sure of it is near 0 for every head.

    Raises:
        ProbeError: if `of` is neither, or dropout is active.
        TraceError: if the trace lacks a block.
    """
    if of not in get_args(Of):
        raise ProbeError(f"Expected the gradient of the loss or the logit, got {of!r}.")
    check_ready(model, trace)
    found: list[Tensor] = []
    above: Tensor | None = None  # dS / d(what entered the block above), (B, N, D)
    # From the last block down, each run again from its own input: the graph of one block is in memory, not of all.
    with torch.inference_mode(False), torch.enable_grad():
        angles = model.angles(trace.grid)
        for index in range(trace.depth - 1, trace.blocks[0] - 1, -1):
            stream = trace.stream(index).detach().clone().requires_grad_()
            scale = stream.new_ones(len(stream), trace.heads, 1, 1).requires_grad_()
            tokens = _scaled(_block(model, index), stream, angles, scale)
            if above is None:
                score = _score(target, model.classify(model.finish(tokens)), of).sum()
                above, slope = torch.autograd.grad(score, (stream, scale))
            else:
                above, slope = torch.autograd.grad(tokens, (stream, scale), above)
            if index in trace.blocks:
                found.append(slope.abs().flatten(1).cpu().double())  # (B, H, 1, 1) -> (B, H)
    return torch.stack(found[::-1], dim=1)  # L x (B, H) -> (B, L, H)


def _scaled(block: Block, x: Tensor, angles: Angles | None, scale: Tensor) -> Tensor:
    """The block with the output of each head multiplied by `scale` (B, H, 1, 1): (B, N, D) -> (B, N, D)."""
    q, k, v = block.attn.project(block.norm1(x), angles)  # (B, H, N, d) each
    mixed = F.scaled_dot_product_attention(q, k, v, scale=block.attn.scale)
    x = x + block.ls1(block.attn.merge(mixed * scale))
    out: Tensor = x + block.ls2(block.mlp(block.norm2(x)))
    return out


def _score(target: Target, logits: Tensor, of: Of) -> Tensor:
    """(B, C) -> (B,)."""
    logits = logits.float()
    if of == "logit":
        return target.score(logits)
    if target.against is None:
        return -target.score(logits.log_softmax(1))
    return -F.logsigmoid(target.score(logits))  # cross-entropy between the two: softmax of two is a sigmoid


@torch.no_grad()
def head_ablations(
    model: ViT, trace: Trace, target: Target, how: Literal["zero", "mean"] = "zero"
) -> tuple[Tensor, Tensor]:
    """What the target loses when a head is taken out: exact, for each head by itself.

    The blocks up to the head's are those of the trace; only the rest runs, with several heads out side by side.

    Args:
        model: that made the trace, in eval mode.
        trace: without edits.
        target: the classes.
        how: the head's output becomes zero, or its mean over the tokens; as in `vitviz.edits.Edits`.

    Returns:
        How much the target's probability falls, and how much its logit: (B, L, H) each, float64, for the blocks of the
        trace. Negative where the target gains. For a contrast the difference of the two classes.

    Raises:
        ProbeError: if dropout is active, or `how` is neither.
    """
    if how not in ("zero", "mean"):
        raise ProbeError(f"Expected heads to be replaced by 'zero' or their 'mean', got {how!r}.")
    whole = check_ready(model, trace)
    angles = model.angles(trace.grid)
    found = torch.empty(2, len(whole), len(trace.blocks), trace.heads, dtype=torch.float64)
    for place, index in enumerate(trace.blocks):
        stream = trace.stream(index)
        for heads in torch.arange(trace.heads).split(_together(model, stream)):
            out = torch.zeros(len(heads), trace.heads, dtype=torch.bool)
            out[range(len(heads)), heads] = True  # copy i is without head heads[i]
            mask = out.repeat(len(stream), 1)[..., None, None].to(stream.device)  # (B * h, H, 1, 1)
            edit = BlockEdit(zero=mask) if how == "zero" else BlockEdit(mean=mask)
            tokens = model.blocks[index](stream.repeat_interleave(len(heads), dim=0), angles, edit)  # (B * h, N, D)
            for block in model.blocks[index + 1 :]:
                tokens = block(tokens, angles)
            logits = model.classify(model.finish(tokens))  # (B * h, C)
            found[:, :, place, heads] = _lost(target, whole, logits)
    return found[0], found[1]


def _lost(target: Target, whole: Tensor, without: Tensor) -> Tensor:
    """Probability and logit that the target lost, from (B, C) to (B * h, C): (2, B, h)."""
    times = len(without) // len(whole)
    before, after = whole.cpu().double(), without.cpu().double()
    each = target.repeat(times)
    lost = []
    for was, now in ((before.softmax(1), after.softmax(1)), (before, after)):
        fall = target.score(was).repeat_interleave(times) - each.score(now)  # (B * h,)
        lost.append(fall.unflatten(0, (-1, times)))  # (B, h)
    return torch.stack(lost)


def _together(model: ViT, stream: Tensor) -> int:
    """How many copies of a batch (B, N, D) run at once."""
    config = model.config
    widest = max(3 * config.heads * config.head_size, config.hidden * (2 if config.mlp == "swiglu" else 1))
    return max(1, TOGETHER_BYTES // (stream.shape[0] * stream.shape[1] * widest * stream.element_size()))


def _block(model: ViT, index: int) -> Block:
    block = model.blocks[index]
    assert isinstance(block, Block)  # for the type checker: a ModuleList holds any module
    return block


def check_ready(model: ViT, trace: Trace) -> Tensor:
    """The logits (B, C) of a trace whose heads can be weighed.

    Raises:
        ProbeError: if there is no classifier, or dropout is active.
    """
    config = model.config
    if trace.logits is None:
        raise ProbeError("This asks for the class, and the model has no classifier. Ask how its heads attend instead.")
    if model.training and (config.dropout or config.attention_dropout or config.path_dropout):
        raise ProbeError("This needs the model as it predicts, without dropout: call model.eval() first.")
    return trace.logits.detach()
