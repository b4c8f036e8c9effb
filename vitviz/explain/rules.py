"""The rules of AttnLRP (Achtibat et al. 2024), as a forward pass whose gradient times input is the relevance.

Every value z of the network carries a relevance R = z * g. The paper's rules say what of R goes to each input; divided
by the input that is a gradient, so the functions here have an ordinary forward pass and a backward pass of their own:

- linear map: the epsilon or the gamma rule (paper, eq. 8; Montavon et al. 2019).
- softmax: its Taylor expansion at the logits (proposition 3.1). Bilinear product: half to each factor (3.2, 3.3); a
  factor that is the same for every image takes nothing, and the other takes all.
- layer norm: linear, its deviation a constant (3.4). Activation f: the slope f(x) / x (eq. 9). Residual sum and layer
  scale: the ordinary gradient.

Biases, the constant of the softmax's expansion and epsilon take relevance that reaches no input. Each rule says how
much: it is the gradient of `book`. The classifier's bias takes none: its relevance goes to the inputs in proportion to
|w_ij x_i|, and nowhere where all weights are zero.

Shapes: B images, H heads, N tokens, D width, d head width, C classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from vitviz.layers import MLP, Attention, AttentionPool, Block, LayerScale
from vitviz.model import ViT
from vitviz.positions import rotate
from vitviz.trace import CHUNK_BYTES

Angles = tuple[Tensor, Tensor]
Softmax = Literal["taylor", "constant"]
Context = Any
"""What autograd passes to a function's forward and backward."""


@dataclass(frozen=True)
class Rules:
    """How relevance is handed on.

    Args:
        gamma_qkv, gamma_proj, gamma_mlp, gamma_head: how much more the contributions of the output's own sign count in
            each kind of linear map; 0 is the epsilon rule.
        epsilon: added to denominators, with their sign; it takes a share of the relevance.
        softmax: by its Taylor expansion, or attention taken as a constant, as in CP-LRP (Ali et al. 2022).
    """

    gamma_qkv: float
    gamma_proj: float
    gamma_mlp: float
    gamma_head: float
    epsilon: float
    softmax: Softmax

    def linear(self, x: Tensor, layer: nn.Linear, gamma: float, book: Tensor | None) -> Tensor:
        """(..., D) -> (..., D'). Without a book (B, 1) the bias's relevance goes on to the inputs."""
        bias = None if layer.bias is None else layer.bias.detach()
        out = _Linear.apply(x, layer.weight.detach(), bias, book, gamma, self.epsilon)  # type: ignore[no-untyped-call]
        return cast(Tensor, out)

    def norm(self, x: Tensor, layer: nn.Module, book: Tensor) -> Tensor:
        """(..., D) -> (..., D); an identity stays one."""
        if not isinstance(layer, nn.LayerNorm):
            return x
        weight, bias = layer.weight.detach(), layer.bias.detach()
        return cast(Tensor, _Norm.apply(x, weight, bias, book, layer.eps))  # type: ignore[no-untyped-call]

    def mix(self, q: Tensor, k: Tensor, v: Tensor, book: Tensor) -> Tensor:
        """softmax(q @ k.T) @ v: (B, H, n, d), (B, H, N, d), (B, H, N, d) -> (B, H, n, d)."""
        if self.softmax == "constant":
            q, k = q.detach(), k.detach()
        return cast(Tensor, _Mix.apply(q, k, v, book))  # type: ignore[no-untyped-call]


class _Linear(torch.autograd.Function):
    """The gamma rule; with gamma = 0 the epsilon rule."""

    @staticmethod
    def forward(
        ctx: Context, x: Tensor, weight: Tensor, bias: Tensor | None, book: Tensor | None, gamma: float, epsilon: float
    ) -> Tensor:
        z = F.linear(x, weight, bias)
        # Sum over inputs of |w_ij x_i|: with the plain sum it gives the positive and the negative part of each.
        sizes = F.linear(x.abs(), weight.abs()) if gamma or book is None else None
        ctx.save_for_backward(x, weight, bias, z, sizes)
        ctx.gamma, ctx.epsilon, ctx.booked = gamma, epsilon, book is not None
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, z, sizes = ctx.saved_tensors
        gamma, sign = ctx.gamma, z.sign()
        own = z.new_zeros(()) if bias is None else bias + gamma * bias * (bias * sign > 0)  # what the bias counts for
        kept = own + ctx.epsilon * sign
        share = grad
        if gamma or ctx.epsilon:
            plain = z if bias is None else z - bias
            some = plain + gamma / 2 * (plain + sign * sizes) if gamma else plain
            share = grad * _divide(z, some + kept)  # R / total, where R = z * grad; the total has the sign of z
        into = (1.0 + gamma / 2) * share @ weight
        if sizes is not None:
            extra = gamma / 2 * sign
            if bias is not None and not ctx.booked:
                extra = extra + _divide(own, sizes)  # in proportion to |w_ij x_i|
            into += x.sign() * ((extra * share) @ weight.abs())  # |x_i| / x_i
        return into, None, None, _total(kept * share) if ctx.booked else None, None, None


class _Norm(torch.autograd.Function):
    """Layer norm whose deviation is a constant."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, weight: Tensor, bias: Tensor, _book: Tensor, eps: float) -> Tensor:
        out, _, scale = torch.native_layer_norm(x, x.shape[-1:], weight, bias, eps)  # scale (..., 1): 1 / deviation
        ctx.save_for_backward(weight, bias, scale)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, bias, scale = ctx.saved_tensors
        each = grad * weight * scale
        into = each - each.mean(-1, keepdim=True)
        return into, None, None, _total(bias * grad), None


class _Mix(torch.autograd.Function):
    """Attention. Nothing of the size N x N is kept: the way back makes it again, some rows at a time."""

    @staticmethod
    def forward(ctx: Context, q: Tensor, k: Tensor, v: Tensor, _book: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v)
        return F.scaled_dot_product_attention(q, k, v, scale=1.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v = ctx.saved_tensors
        by_query, by_key = ctx.needs_input_grad[:2]
        into_q, into_k, into_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        left = q.new_zeros(len(q), 1)
        rows = max(1, CHUNK_BYTES // (q.element_size() * q.shape[0] * q.shape[1] * k.shape[2]))
        for start in range(0, q.shape[2], rows):
            some = slice(start, start + rows)
            ask, answer = q[:, :, some], grad[:, :, some]
            logits = ask @ k.mT  # (B, H, n, d) @ (B, H, d, N) -> (B, H, n, N)
            seen = logits.softmax(dim=-1)
            if not by_key:  # attention is a constant: all to the values
                into_v += seen.mT @ answer  # (B, H, N, n) @ (B, H, n, d)
                continue
            half = seen / 2
            into_v += half.mT @ answer
            slope = half * (answer @ v.mT)  # (B, H, n, d) @ (B, H, d, N) -> (B, H, n, N), times the probabilities
            total = slope.sum(-1, keepdim=True)
            slope -= seen * total
            left += _total(total) - _total(slope * logits)
            if by_query:
                slope /= 2
                into_q[:, :, some] = slope @ k  # (B, H, n, N) @ (B, H, N, d)
            into_k += slope.mT @ ask  # (B, H, N, n) @ (B, H, n, d)
        return into_q if by_query else None, into_k if by_key else None, into_v, left


def _total(x: Tensor) -> Tensor:
    """The sum over each image: (B, ...) -> (B, 1)."""
    return x.flatten(1).sum(1, keepdim=True)


def _divide(a: Tensor, b: Tensor) -> Tensor:
    """The quotient a / b, and 0 where b is 0: there was nothing to divide."""
    return torch.where(b == 0, 0.0, a / b)


def run(model: ViT, tokens: Tensor, book: Tensor, angles: Angles | None, rules: Rules) -> Tensor:
    """The logits (B, C): the model's values, the rules' gradient.

    Args:
        tokens: (B, N, D), what enters the first block.
        book: (B, 1), zeros; its gradient is the relevance that reaches no token.
        angles: the rotations of the patches.
    """
    for block in model.blocks:
        assert isinstance(block, Block)  # for the type checker: a ModuleList holds any module
        normed = rules.norm(tokens, block.norm1, book)
        tokens = tokens + _scaled(_attend(block.attn, normed, book, angles, rules), block.ls1)
        normed = rules.norm(tokens, block.norm2, book)
        tokens = tokens + _scaled(_mlp(block.mlp, normed, book, rules), block.ls2)
    if not model.config.norm_pooled:
        tokens = rules.norm(tokens, model.norm, book)
    pooled = _pool(model, tokens, book, rules)
    if model.config.norm_pooled:
        pooled = rules.norm(pooled, model.norm, book)
    assert model.head is not None  # there is a target, so there is a classifier
    logits = rules.linear(pooled, model.head, rules.gamma_head, None)
    if model.head_dist is not None:
        token = tokens[:, model.config.distillation_at]
        logits = (logits + rules.linear(token, model.head_dist, rules.gamma_head, None)) / 2
    return logits


def _attend(attn: Attention, x: Tensor, book: Tensor, angles: Angles | None, rules: Rules) -> Tensor:
    """(B, N, D) -> (B, N, D)."""
    qkv = rules.linear(x, attn.qkv, rules.gamma_qkv, book).unflatten(-1, (3, attn.heads, attn.head_width))
    q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, N, 3, H, d) -> 3 x (B, H, N, d)
    q, k = rules.norm(q, attn.q_norm, book), rules.norm(k, attn.k_norm, book)
    if angles is not None:
        q, k = rotate(q, angles), rotate(k, angles)
    mixed = rules.mix(q * attn.scale, k, v, book)
    return rules.linear(mixed.transpose(1, 2).flatten(2), attn.proj, rules.gamma_proj, book)  # -> (B, N, D)


def _mlp(mlp: MLP, x: Tensor, book: Tensor, rules: Rules) -> Tensor:
    """(..., D) -> (..., D)."""
    hidden = rules.linear(x, mlp.fc1, rules.gamma_mlp, book)
    if mlp.gated:
        gate, passed = hidden.chunk(2, dim=-1)
        gate = gate * _slope(mlp, gate)
        hidden = (gate * passed.detach() + gate.detach() * passed) / 2  # the product; half of the relevance to each
    else:
        hidden = hidden * _slope(mlp, hidden)
    return rules.linear(hidden, mlp.fc2, rules.gamma_mlp, book)


def _slope(mlp: MLP, x: Tensor) -> Tensor:
    """f(x) / x of the activation, a constant. Every f here is x times a gate that is 1/2 at 0."""
    x = x.detach()
    return torch.where(x == 0, 0.5, mlp.activation(x) / x)


def _scaled(x: Tensor, scale: nn.Module) -> Tensor:
    return x * scale.gamma.detach() if isinstance(scale, LayerScale) else x


def _pool(model: ViT, tokens: Tensor, book: Tensor, rules: Rules) -> Tensor:
    """What the classifier reads: (B, N, D) -> (B, D), or (B, 2 D) for cls+mean."""
    if model.attn_pool is not None:
        return _attention_pool(model.attn_pool, tokens, book, rules)
    parts = []
    if "cls" in model.config.pooling:
        parts.append(tokens[:, 0])
    if "mean" in model.config.pooling:
        parts.append(tokens[:, len(model.config.prefix) :].mean(dim=1))
    return torch.cat(parts, dim=1)


def _attention_pool(pool: AttentionPool, tokens: Tensor, book: Tensor, rules: Rules) -> Tensor:
    """(B, N, D) -> (B, D). The learned query is the same for every image: relevance goes to what it looks at."""
    q = pool.q(pool.latent).detach().expand(len(tokens), -1, -1).unflatten(2, (pool.heads, -1)).transpose(1, 2)
    kv = rules.linear(tokens, pool.kv, rules.gamma_qkv, book).unflatten(2, (2, pool.heads, -1))
    k, v = kv.permute(2, 0, 3, 1, 4)  # (B, N, 2, H, d) -> 2 x (B, H, N, d)
    mixed = rules.mix(q * q.shape[-1] ** -0.5, k, v, book).transpose(1, 2).flatten(1)  # (B, H, 1, d) -> (B, H * d)
    pooled = rules.linear(mixed, pool.proj, rules.gamma_proj, book)  # (B, D)
    return pooled + _mlp(pool.mlp, rules.norm(pooled, pool.norm, book), book, rules)
