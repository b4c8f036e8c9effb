"""Propagate relevance by the rules of Chefer, Gur & Wolf 2021 (CVPR), "Transformer Interpretability Beyond Attention
Visualization".

The rules of the authors' program: alpha-beta with alpha = 1 on linear maps (biases receive none); products split half
and half between their factors; sums split in proportion, then scaled by the size of each branch; norms, softmax,
activations and layer scale pass relevance unchanged. The same rules apply to operations that the program does not have
(rotations, gated MLPs, the mean over patches, attention pooling, two classifiers).

Shapes: B images, D width.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from vitviz.model.config import ViTConfig
from vitviz.model.ops import Explicit, ReadTokens

TINY = 1e-9  # epsilon of the authors' program

Rule = Callable[..., tuple[Tensor | None, ...]]
"""(relevance of the output, output, *inputs) -> relevance of each input, or `None`."""


class AlphaBeta(ReadTokens, Explicit):
    """Plain forward pass whose backward pass propagates gradients or relevance.

    `relevance` selects what `torch.autograd.grad` returns; one graph gives both.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        self.relevance = False

    def linear(self, layer: nn.Linear, x: Tensor) -> Tensor:
        """Apply a linear layer; relevance by the alpha-beta rule."""
        return self._apply(layer, partial(_linear, layer), x)

    def norm(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Apply a norm; relevance passes unchanged."""
        return self._apply(layer, _unchanged, x)

    def unit(self, x: Tensor) -> Tensor:
        """Divide each vector by its length; relevance passes unchanged."""
        return self._apply(super().unit, _unchanged, x)

    def activation(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Apply an activation; relevance passes unchanged."""
        return self._apply(function, _unchanged, x)

    def scale(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Apply a scale; relevance passes unchanged."""
        return self._apply(function, _unchanged, x)

    def softmax(self, logits: Tensor) -> Tensor:
        """Apply softmax; relevance passes unchanged."""
        return self._apply(super().softmax, _unchanged, logits)

    def fixed(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Apply a fixed linear map; relevance goes to the inputs in proportion to their contributions."""
        return self._apply(function, _proportional, x)

    def product(
        self, function: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor, *, constant: bool = False
    ) -> Tensor:
        """Multiply; each factor gets half of the relevance, or `b` all of it if `a` is constant."""
        return self._apply(function, _second if constant else _halves, a, b)

    def add(self, x: Tensor, branch: Tensor) -> Tensor:
        """Add; relevance is split by `split_sum`."""
        return self._apply(torch.add, _sum, x, branch)

    def _apply(self, function: Callable[..., Tensor], rule: Rule, *inputs: Tensor) -> Tensor:
        if isinstance(function, nn.Identity):
            return inputs[0]
        return cast(Callable[..., Tensor], _Operation.apply)(self, function, rule, *inputs)


class _Operation(torch.autograd.Function):
    """Function with a gradient or, while `ops.relevance` is set, a relevance.

    The function runs in its own autograd graph, which both passes use.
    """

    @staticmethod
    def forward(ctx: Any, ops: AlphaBeta, function: Callable[..., Tensor], rule: Rule, *inputs: Tensor) -> Tensor:
        with torch.enable_grad():
            ctx.inputs = [tensor.detach().requires_grad_() for tensor in inputs]
            ctx.out = function(*ctx.inputs)
        ctx.ops, ctx.rule = ops, rule
        return cast(Tensor, ctx.out.detach())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, flow: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.ops.relevance:
            return None, None, None, *ctx.rule(flow, ctx.out, *ctx.inputs)
        return None, None, None, *torch.autograd.grad(ctx.out, ctx.inputs, flow, retain_graph=True)


def _unchanged(relevance: Tensor, _out: Tensor, _x: Tensor) -> tuple[Tensor]:
    return (relevance,)


def _proportional(relevance: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    (share,) = torch.autograd.grad(out, x, safe_divide(relevance, out))
    return (x * share,)


def _halves(relevance: Tensor, out: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    into_a, into_b = torch.autograd.grad(out, (a, b), safe_divide(relevance / 2, out))
    return into_a.mul_(a), into_b.mul_(b)


def _second(relevance: Tensor, out: Tensor, _a: Tensor, b: Tensor) -> tuple[None, Tensor]:
    return None, *_proportional(relevance, out, b)


def _linear(layer: nn.Linear, relevance: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    """Apply the alpha-beta rule with alpha = 1: only positive contributions w_ij x_i count.

    max(0, w x) = (w x + |w x|) / 2 with a known sum over w x needs three products instead of four.
    """
    weight, magnitudes, sizes = layer.weight, x.abs(), layer.weight.abs()
    plain = out if layer.bias is None else out - layer.bias
    share = safe_divide(relevance, F.linear(magnitudes, sizes).add_(plain), 2 * TINY)  # half of the share
    return ((share @ weight).mul_(x).addcmul_(magnitudes, share @ sizes),)


def _sum(relevance: Tensor, _out: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return split_sum(a, b, relevance)


def split_sum(a: Tensor, b: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """Split the relevance of a sum between its terms in proportion, scaled to conserve each image's total.

    Only the total is conserved: where two terms nearly cancel, their shares are large with opposite signs and depend on
    rounding. The authors' program does the same, which makes this method's maps less stable than other methods'.
    """
    share = safe_divide(relevance, a + b)
    a, b = a * share, b * share
    sums = [_total(each) for each in (a, b, relevance)]
    both = sums[0].abs() + sums[1].abs()
    for each, own in zip((a, b), sums[:2], strict=True):
        each *= safe_divide(safe_divide(own.abs(), both) * sums[2], own)
    return a, b


def safe_divide(a: Tensor, b: Tensor, tiny: float = TINY) -> Tensor:
    """Return a / (b + tiny) as in the authors' program, and 0 where b is 0.

    On a CPU, PyTorch writes comparisons as numbers four times as fast as masks of bytes.
    """
    out = torch.ne(b, 0, out=torch.empty_like(b))
    return out.mul_(a).div_(b + max(tiny, torch.finfo(b.dtype).tiny))


def _total(x: Tensor) -> Tensor:
    """Return the sum over each image: (B, ...) -> (B, 1, ...)."""
    return x.sum(dim=tuple(range(1, x.ndim)), keepdim=True)
