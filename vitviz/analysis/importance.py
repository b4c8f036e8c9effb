"""Compute the importance of heads by gradient (Michel et al. 2019) and by ablation, from a trace.

Shapes: B images, L blocks, H heads, N tokens, D width, d head width, C classes.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from vitviz.analysis import AnalysisError
from vitviz.analysis.statistic import Statistic
from vitviz.attribution.targets import Target
from vitviz.model.edits import BlockEdit
from vitviz.model.ops import Ops
from vitviz.model.trace import AttentionTrace
from vitviz.model.vit import ViT
from vitviz.outputs import REGRESSION
from vitviz.phrases import Phrase

# Maximum size of a block's widest tensor when copies of an image, each without one head, run together.
TOGETHER_BYTES = 32 * 2**20


@dataclass(frozen=True, eq=False)
class Importance:
    """Inputs of the importances of heads; the ablations are computed once."""

    model: ViT
    trace: AttentionTrace
    target: Target

    @cached_property
    @torch.no_grad()
    def ablations(self) -> tuple[Tensor, Tensor]:
        """Compute the exact drop of the target's reading and score when each head's output is zero.

        Earlier blocks come from the trace, which must have no edits; the rest runs for several heads at once.

        Returns:
            Drops of `Target.reading` and `Target.score`: (B, L, H) each, float64; negative for a gain.

        Raises:
            AnalysisError: if dropout is active.
        """
        model, trace, target = self.model, self.trace, self.target
        before = check_ready(model, trace, target)
        angles = model.angles(trace.grid)
        drops = torch.empty(2, len(before), len(trace.blocks), trace.heads, dtype=torch.float64)
        for place, index in enumerate(trace.blocks):
            stream = trace.stream(index)
            for heads in torch.arange(trace.heads).split(_together(model, stream)):
                silenced = torch.zeros(len(heads), trace.heads, dtype=torch.bool)
                silenced[range(len(heads)), heads] = True  # copy i is without head heads[i]
                mask = silenced.repeat(len(stream), 1)[..., None, None].to(stream.device)  # (B * h, H, 1, 1)
                copies = stream.repeat_interleave(len(heads), dim=0)  # (B * h, N, D)
                tokens = model.blocks[index](copies, angles, Ops(BlockEdit(zero=mask)))
                for later, block in enumerate(model.blocks[index + 1 :], index + 1):
                    tokens = block(model.leave(later - 1, tokens, angles), angles)
                after = target.read(model, model.finish(tokens))  # (B * h, C) or (B * h, F)
                drops[:, :, place, heads] = _lost(target, before, after)
        return drops[0], drops[1]


def ablation_probability(inputs: Importance) -> Tensor | str:
    """Return the drop of the probability: (B, L, H), or the reason why it is missing."""
    if inputs.target.reading_scale == "probability":
        return inputs.ablations[0]
    if inputs.model.problem_type == REGRESSION:
        return Phrase("model-predicts-values", "this model predicts values, not probabilities")
    scale = inputs.target.reading_scale
    return Phrase(f"target-is-a-{scale}", f"this target is a {scale}, not a probability")


def ablation_logit(inputs: Importance) -> Tensor:
    """Return the drop of the score: (B, L, H)."""
    return inputs.ablations[1]


def gradient(inputs: Importance) -> Tensor:
    """Return the importance of each head by gradient: (B, L, H), float64, non-negative.

    |dS / dm| where m = 1 scales the head's output: Michel et al. 2019, "Are Sixteen Heads Really Better than One?",
    equation 2. The paper uses the loss instead of the score S; its gradient is near 0 for a confident prediction of a
    single image.
    """
    return estimated_logit(inputs).abs()


def estimated_logit(inputs: Importance) -> Tensor:
    """Estimate the drop of the score without each head to first order: (B, L, H), float64.

    dS / dm where m = 1 scales the head's output and S is the target's score. It equals the sum of A * dS / dA over the
    head's attention A, but needs no N x N matrix. `ablation_logit` is the exact drop.

    The trace must have no edits, and contain every block from its first one to the last.

    Raises:
        AnalysisError: if dropout is active.
        TraceError: if the trace lacks a block.
    """
    model, trace, target = inputs.model, inputs.trace, inputs.target
    check_ready(model, trace, target)
    gradients: list[Tensor] = []
    upstream: Tensor | None = None  # gradient of the score in the input of the block above: (B, N, D)
    # Run each block again from its stored input, last to first: only one block's graph is in memory.
    with torch.inference_mode(False), torch.enable_grad():
        angles = model.angles(trace.grid)
        for index in range(trace.depth - 1, trace.blocks[0] - 1, -1):
            stream = trace.stream(index).detach().clone().requires_grad_()
            scale = stream.new_ones(len(stream), trace.heads, 1, 1).requires_grad_()
            tokens = model.blocks[index](stream, angles, Ops(BlockEdit(scale=scale)))
            if upstream is None:
                score = target.score(target.read(model, model.finish(tokens)).float()).sum()
                upstream, slope = torch.autograd.grad(score, (stream, scale))
            else:
                upstream, slope = torch.autograd.grad(tokens, (stream, scale), upstream)
            if index in trace.blocks:
                gradients.append(slope.flatten(1).cpu().double())  # (B, H, 1, 1) -> (B, H)
    return torch.stack(gradients[::-1], dim=1)  # L x (B, H) -> (B, L, H)


def _lost(target: Target, before: Tensor, after: Tensor) -> Tensor:
    """Return the drops of the target's reading and score from outputs (B, C) to outputs (B * h, C): (2, B, h)."""
    times = len(after) // len(before)
    repeated = target.repeat(times)
    before, after = before.cpu().double(), after.cpu().double()
    drops = [
        target.reading(before).repeat_interleave(times) - repeated.reading(after),
        target.score(before).repeat_interleave(times) - repeated.score(after),
    ]
    lost: Tensor = torch.stack(drops).unflatten(1, (-1, times))  # (2, B * h) -> (2, B, h)
    return lost


def _together(model: ViT, stream: Tensor) -> int:
    """Return the number of copies of a batch (B, N, D) per run."""
    config = model.config
    widest = max(3 * config.heads * config.head_size, config.hidden * (2 if config.gated else 1))
    return max(1, TOGETHER_BYTES // (stream.shape[0] * stream.shape[1] * widest * stream.element_size()))


def check_ready(model: ViT, trace: AttentionTrace, target: Target) -> Tensor:
    """Return what the target reads from a trace: logits (B, C) or features (B, F).

    Raises:
        AnalysisError: if the target needs a classifier and the model has none, or if dropout is active.
    """
    config = model.config
    if trace.logits is None and not target.features:
        raise AnalysisError(
            "Expected a model with a classifier, got one without. Choose a target of the features, such as Unit(0)."
        )
    if model.training and (config.dropout or config.attention_dropout or config.path_dropout):
        raise AnalysisError("Expected a model in eval mode, got active dropout. Call model.eval() first.")
    outputs = model.read_out(trace.tokens) if trace.logits is None or target.features else trace.logits
    return outputs.detach()


STATISTICS = (
    Statistic(
        gradient, "Importance by gradient", "",
        "Absolute gradient of the target's score with respect to a scale on the head's output (Michel et al. 2019).",
        0.0, None, "model", "the graphs do not compute gradients of heads",
    ),
    Statistic(
        ablation_probability, "Probability drop", "",
        "Exact drop of the target's probability when the head's output is set to zero; negative if it rises.",
        -1.0, 1.0, "model",
    ),
    Statistic(
        estimated_logit, "Estimated score drop", "",
        "First-order estimate of the score drop: gradient of the score with respect to a scale on the head's output.",
        None, None, "model", "the graphs do not compute gradients of heads",
    ),
    Statistic(
        ablation_logit, "Score drop", "",
        "Exact drop of the target's score (logit, value or cosine) when the head's output is set to zero.",
        None, None, "model",
    ),
)  # fmt: skip
