"""Decompose a score of a module that runs as it is into direct contributions (direct logit attribution).

In one forward and backward pass, attention probabilities, scales of norms and outputs of MLPs are constants, so that
gradients contain only direct effects. The values of each attention, the tokens between blocks, and the biases are
leaves of the graph. The contribution of a leaf is its product with its gradient.

Shapes: L blocks, H heads, N tokens, D width, d head width; W windows of M tokens, else W = 1, M = N.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitviz.analysis import AnalysisError
from vitviz.attribution.targets import Target
from vitviz.model.devices import double
from vitviz.weights.capture import MULTI_HEAD, Attention
from vitviz.weights.captured import Captured
from vitviz.weights.captured_vit import CapturedViT
from vitviz.weights.layouts import SOFTMAX

_PRODUCTS = {torch.matmul, torch.bmm, Tensor.matmul, Tensor.__matmul__, Tensor.bmm}
_MLPS = ("mlp", "intermediate")  # attributes of blocks


class Terms(NamedTuple):
    """Contributions to a score; they sum to it.

    Args:
        tokens: by block, contributions of its heads by attended token, (H, N).
        biases: by block, contribution of the biases of its attention.
        mlps: by block, contribution of its MLP.
        start: contribution of the tokens that enter the first block.
        constant: contribution that depends on no token, such as the classifier's bias.
    """

    tokens: list[Tensor]
    biases: list[float]
    mlps: list[float]
    start: float
    constant: float


class _Direct(TorchFunctionMode):
    """Replace attention, norms and linear maps while a module runs, so that gradients contain only direct effects.

    Attributes `values` and `biases` collect leaves of the graph, and `scales` the standard deviations of norms.

    Args:
        depth: L.
        points: the tokens at the points that the run has passed, see `vitviz.weights.parts`.
        scales: the standard deviations of another run, which this run takes instead of its own.
    """

    def __init__(self, depth: int, points: list[Tensor], scales: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self.points, self.values = points, list[Tensor]()
        self.biases: list[tuple[int, bool, Tensor]] = []  # block, whether it comes before its attention, bias
        self.scales, self._given = list[Tensor](), list(scales)
        self._depth, self._probabilities = depth, torch.empty(0)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of PyTorch, or its replacement."""
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            call = Attention(*args, **kwargs)
            with torch.no_grad():
                probabilities = call.probabilities()
            return probabilities @ self._leaf(call.value)
        if func in SOFTMAX:
            self._probabilities = func(*args, **kwargs).detach()
            return self._probabilities
        if func in _PRODUCTS and args[0].data_ptr() == self._probabilities.data_ptr() and args[0].ndim > 2:
            return func(args[0], self._leaf(args[1]))
        if func is F.layer_norm:
            return self._norm(*args, **kwargs)
        if func is F.linear:
            return self._linear(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            with self:
                return MULTI_HEAD(*args, **kwargs)
        return func(*args, **kwargs)

    def _leaf(self, value: Tensor) -> Tensor:
        """Return the values of an attention, (..., M, d), as a new leaf, and collect it."""
        if len(self.values) == self._depth:
            raise AnalysisError("Expected one attention in each block, got more. Use an attribution method instead.")
        self.values.append(value.detach().requires_grad_())
        return self.values[-1]

    def _norm(
        self, x: Tensor, normalized_shape: Any, weight: Any = None, bias: Tensor | None = None, eps: float = 1e-5
    ) -> Tensor:
        del normalized_shape  # the last axis
        centered = x - x.mean(-1, keepdim=True)
        own = (x.detach().var(-1, correction=0, keepdim=True) + eps).sqrt()
        self.scales.append(self._given[len(self.scales)] if self._given else own)
        out = centered / self.scales[-1]
        return self._shift(x, out if weight is None else out * weight.detach(), bias)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return self._shift(x, F.linear(x, weight.detach()), bias)

    def _shift(self, x: Tensor, out: Tensor, bias: Tensor | None) -> Tensor:
        """Add a bias, as a new leaf if the input depends on leaves."""
        if bias is None or not x.requires_grad:
            return out if bias is None else out + bias.detach()
        leaf = bias.detach().requires_grad_()
        block = len(self.points) - 1
        if block < self._depth:
            self.biases.append((block, len(self.values) == block, leaf))
        return out + leaf


def captured_terms(model: CapturedViT, trace: Captured, target: Target, score: Any) -> Terms:
    """Return the contributions to a target's score.

    Args:
        model: the model of the trace.
        trace: trace of one image.
        target: the target.
        score: function of the target and of the logits (1, C) or features (1, F) that returns the score (1,).

    Raises:
        AnalysisError: for a model with other norms, attention pooling, or blocks without a known MLP, or if the score
            is not linear in the last block's output.
    """
    parts, depth = model.parts, trace.depth
    mlps = [
        next((part for name in _MLPS if (part := getattr(block, name, None)) is not None), None)
        for block in parts.blocks
    ]
    norms = [part for part in model.module.modules() if "norm" in type(part).__name__.lower()]
    if model.config.pools or None in mlps or not all(isinstance(norm, nn.LayerNorm) for norm in norms):
        raise AnalysisError(
            "Expected a captured module with layer norms, known MLPs and no attention pooling, got another. Explain "
            "the target with an attribution method."
        )
    _check_linear(model, trace, target, score)
    with ExitStack() as stack:
        for mlp in mlps:
            assert mlp is not None
            stack.callback(mlp.register_forward_pre_hook(lambda _mlp, inputs: (inputs[0].detach(), *inputs[1:])).remove)
        points = stack.enter_context(parts.recorded(replace=True))
        direct = stack.enter_context(_Direct(depth, points))
        stack.enter_context(torch.enable_grad())
        start = trace.stream(0).detach().requires_grad_()
        outputs = model.run_from_start(start, model.angles(trace.grid), features=target.features)
        total = score(target, outputs).sum()
        leaves = [start, *points[1 : depth + 1], *direct.values, *(leaf for _, _, leaf in direct.biases)]
        gradients = torch.autograd.grad(total, leaves, allow_unused=True)
    products = [
        torch.zeros_like(leaf) if slope is None else double(leaf.detach()) * double(slope)
        for leaf, slope in zip(leaves, gradients, strict=True)
    ]
    after = [float(product.sum()) for product in products[: depth + 1]]
    added = torch.zeros(depth, 2, dtype=torch.float64)  # biases before and after each attention
    for (block, before, _), product in zip(direct.biases, products[2 * depth + 1 :], strict=True):
        added[block, 0 if before else 1] += product.sum().cpu()
    tokens = [_by_token(trace, block, product) for block, product in enumerate(products[depth + 1 : 2 * depth + 1])]
    biases = [
        float(added[block, 1] + products[depth + 1 + block].sum() - tokens[block].sum()) for block in range(depth)
    ]
    mlps_added = [
        after[block + 1] - after[block] - float(added[block, 0]) - float(tokens[block].sum()) - biases[block]
        + (float(added[block + 1, 0]) if block + 1 < depth else 0.0)
        for block in range(depth)
    ]  # fmt: skip
    constant = float(total.detach()) - after[depth]
    return Terms(tokens, biases, mlps_added, after[0] + float(added[0, 0]), constant)


def _check_linear(model: CapturedViT, trace: Captured, target: Target, score: Any) -> None:
    """Raise an error if the part of a linear score that depends on no token differs for the negative tokens.

    The tokens are the output of the last block, and scales of norms are constants.
    """
    angles, last = model.angles(trace.grid), trace.depth - 1
    with torch.no_grad():
        tokens = model.blocks[last](trace.stream(last), angles)
    constants, size, resolution = list[float](), 0.0, float(torch.finfo(tokens.dtype).eps)
    scales: list[Tensor] = []
    for each in (tokens, -tokens):
        leaf = each.detach().requires_grad_()
        with _Direct(trace.depth, [leaf] * (trace.depth + 2), scales) as direct, torch.enable_grad():
            final = model.finish(leaf, angles=angles)
            total = score(target, model.read_out(final) if target.features else model.classify(final)).sum()
            slope = torch.autograd.grad(total, leaf)[0] if total.requires_grad else torch.zeros_like(leaf)
        scales = direct.scales
        products = double(leaf.detach()) * double(slope)
        constants.append(float(total.detach()) - float(products.sum()))
        size = max(size, abs(constants[-1]), float(products.abs().sum()))
    if not abs(constants[0] - constants[1]) <= 100 * resolution * size:
        raise AnalysisError(
            "Expected a score that is linear in the last block's output, got a classifier with hidden layers or "
            "probabilities. Explain the target with an attribution method."
        )


def _by_token(trace: Captured, block: int, products: Tensor) -> Tensor:
    """Sum products of values and gradients over channels, for each token of the image: (W, H, M, d) -> (H, N)."""
    shape = trace.calls[trace.between[block]].shape
    of_windows = products.sum(-1).reshape(-1, *shape[1:2], shape[3])  # (W, H, M)
    if not trace.layouts:
        return of_windows[0]
    layout = trace.layouts[block]
    of_windows = layout.arranged(of_windows[..., None], 1, rows=False).squeeze(3)
    return layout.join(of_windows.mT)[0].T  # (W, M, H) -> (1, N, H) -> (H, N)
