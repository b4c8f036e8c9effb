"""Propagate relevance by the rules of AttnLRP (Achtibat et al. 2024): gradient times input is the relevance.

Every value z of the network has a relevance R = z * g. The paper's rules distribute R to the inputs. Divided by the
input, relevance is a gradient, so the operations here have the ordinary forward pass and a modified backward pass:

- linear map: the epsilon or the gamma rule (paper, eq. 8; Montavon et al. 2019).
- softmax: its Taylor expansion at the logits (proposition 3.1). Bilinear product: half to each factor (3.2, 3.3); a
  constant factor receives nothing, and the other factor all.
- layer norm: linear, with a constant deviation (3.4). Activation f: the slope f(x) / x (eq. 9). Residual sum and layer
  scale: the ordinary gradient.

Biases, the constant of the softmax's expansion and epsilon absorb relevance. With `conserve`, the classifier's bias
absorbs none: its relevance goes to the inputs in proportion to |w_ij x_i|.

Shapes: B images, H heads, N keys, n queries, D width, d head width.
"""

# ruff: noqa: ARG002 - arguments of `Ops`

from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from vitviz.attribution.attention import divide
from vitviz.model.ops import ReadTokens
from vitviz.model.vit import ViT

Softmax = Literal["taylor", "constant"]

KINDS = {"qkv": "qkv", "kv": "qkv", "proj": "proj", "fc1": "mlp", "fc2": "mlp"}
KINDS |= dict.fromkeys(("projection", "head", "head_dist"), "head")
"""Kind of a linear map by the last part of its name."""


class AttnLRP(ReadTokens):
    """Operations of the plain forward pass whose gradient follows the rules.

    Args:
        model: the model.
        gammas: extra weight of contributions with the output's sign, for each kind of linear map ("qkv", "proj",
            "mlp", "head"); 0 is the epsilon rule.
        epsilon: added to denominators with their sign; absorbs a share of the relevance.
        softmax: Taylor expansion, or constant attention as in CP-LRP (Ali et al. 2022).
        conserve: whether the classifier's bias passes its relevance to the inputs instead of absorbing it.
    """

    def __init__(
        self, model: ViT, gammas: Mapping[str, float], epsilon: float, softmax: Softmax, conserve: bool = True
    ) -> None:
        super().__init__(model.config)
        self.epsilon, self.softmax = epsilon, softmax
        self.passing = (model.head, model.head_dist) if conserve else ()
        names = ((module, name.rpartition(".")[2]) for name, module in model.named_modules())
        self.gammas = {module: gammas[KINDS[name]] for module, name in names if name in KINDS}

    def linear(self, layer: nn.Linear, x: Tensor) -> Tensor:
        """Apply a linear layer with the gamma rule; a classifier's bias may pass its relevance to the inputs."""
        weight, bias = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
        numbers = self.gammas[layer], self.epsilon, layer in self.passing
        if not any(numbers):
            return F.linear(x, weight, bias)  # the epsilon rule without epsilon is the ordinary gradient
        return cast(Callable[..., Tensor], _Linear.apply)(x, weight, bias, *numbers)

    def norm(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Apply a norm, with its standard deviation or root mean square held constant.

        Raises:
            TypeError: for norms that have no rule here.
        """
        if isinstance(layer, nn.Identity):
            return x
        if isinstance(layer, nn.RMSNorm):
            assert layer.eps is not None
            scale = (x.detach().square().mean(-1, keepdim=True) + layer.eps).rsqrt()
            return x * scale * layer.weight.detach()
        if not isinstance(layer, nn.LayerNorm):
            raise TypeError(f"Expected a LayerNorm or RMSNorm, got {type(layer).__name__}. Write a rule for it.")
        return cast(Callable[..., Tensor], _Norm.apply)(x, layer.weight.detach(), layer.bias.detach(), layer.eps)

    def unit(self, x: Tensor) -> Tensor:
        """Divide each vector by its length, held constant like the standard deviation of a norm."""
        unit: Tensor = x / x.detach().norm(dim=-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
        return unit

    def activation(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Multiply by the constant slope f(x) / x. Every f here is x times a gate with value 1/2 at 0."""
        fixed = x.detach()
        return x * torch.where(fixed == 0, 0.5, function(fixed) / fixed)

    def product(
        self, function: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor, *, constant: bool = False
    ) -> Tensor:
        """Multiply; each factor gets half of the relevance, or `b` all of it if `a` is constant."""
        return function(a.detach(), b) if constant else function(_share(a, 0.5), _share(b, 0.5))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, *, dropout: float = 0.0, learned_query: bool = False
    ) -> Tensor:
        """Return softmax(scale * q @ k.T) @ v; see `Ops.attend`.

        Probabilities and values get half of the relevance each, then queries and keys a quarter each. A constant factor
        gets none, and the other factor all.
        """
        if self.softmax == "constant":
            q, k = q.detach(), k.detach()
        else:
            v = _share(v, 0.5)
            q, k = (q.detach(), _share(k, 0.5)) if learned_query else (_share(q, 0.25), _share(k, 0.25))
        return super().attend(q, k, v, scale)


class _Linear(torch.autograd.Function):
    """Linear map with the gamma rule; with gamma = 0 the epsilon rule. The bias absorbs relevance unless `passes`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, gamma: float, epsilon: float, passes: bool
    ) -> Tensor:
        z = F.linear(x, weight, bias)
        # With the plain sum, the sum over inputs of |w_ij x_i| gives the positive and the negative part.
        sizes = F.linear(x.abs(), weight.abs()) if gamma or passes else None
        ctx.save_for_backward(x, weight, bias, z, sizes)
        ctx.gamma, ctx.epsilon, ctx.passes = gamma, epsilon, passes
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, z, sizes = ctx.saved_tensors
        gamma, sign = ctx.gamma, z.sign()
        bias_share = z.new_zeros(()) if bias is None else bias + gamma * bias * (bias * sign > 0)  # weighted bias
        share = grad
        if gamma or ctx.epsilon:
            plain = z if bias is None else z - bias
            weighted = plain + gamma / 2 * (plain + sign * sizes) if gamma else plain
            # R / total, R = z * grad; the total has the sign of z
            share = grad * divide(z, weighted + bias_share + ctx.epsilon * sign)
        into = (1.0 + gamma / 2) * share @ weight
        if sizes is not None:
            extra = gamma / 2 * sign
            if bias is not None and ctx.passes:
                extra = extra + divide(bias_share, sizes)  # in proportion to |w_ij x_i|
            into += x.sign() * ((extra * share) @ weight.abs())  # |x_i| / x_i
        return into, None, None, None, None, None


class _Norm(torch.autograd.Function):
    """Layer norm with a constant deviation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        out, _, scale = torch.native_layer_norm(x, x.shape[-1:], weight, bias, eps)  # scale (..., 1): 1 / deviation
        ctx.save_for_backward(weight, scale)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, scale = ctx.saved_tensors
        each = grad * weight * scale
        return each - each.mean(-1, keepdim=True), None, None, None


class _Share(torch.autograd.Function):
    """Identity whose backward pass multiplies the gradient by `share`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, share: float) -> Tensor:
        ctx.share = share
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad * ctx.share, None


def _share(x: Tensor, share: float) -> Tensor:
    return cast(Callable[..., Tensor], _Share.apply)(x, share)
