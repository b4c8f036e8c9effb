"""Layer-wise relevance propagation, written out: every operation hands relevance itself from its output to its inputs.

What tests compare vitviz with. It follows the papers and the style of the first authors' program (each rule from an
operation's values and autograd's product with its Jacobian), in float64 and with nothing merged or simplified; vitviz
works with relevance divided by values, and with closed forms. One image at a time, B = 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from vitviz.model.config import ViTConfig
from vitviz.model.vit import ViT

Back = Callable[[Tensor], tuple[Tensor, ...]]
Weights = dict[str, Tensor]


@dataclass(eq=False)
class Value:
    tensor: Tensor
    relevance: Tensor | None = None


@dataclass(eq=False)
class Tape(ABC):
    """Operations in order, and the relevance that reached no input."""

    steps: list[tuple[Value, tuple[Value, ...], Back]] = field(default_factory=list)
    booked: float = 0.0

    def record(self, tensor: Tensor, inputs: tuple[Value, ...], back: Back) -> Value:
        out = Value(tensor)
        self.steps.append((out, inputs, back))
        return out

    def rewind(self, out: Value, relevance: Tensor) -> None:
        out.relevance = relevance
        for value, inputs, back in reversed(self.steps):
            if value.relevance is not None:
                for one, share in zip(inputs, back(value.relevance), strict=True):
                    one.relevance = share if one.relevance is None else one.relevance + share

    def move(self, change: Callable[[Tensor], Tensor], x: Value) -> Value:
        """Values that only change their place."""
        return self.record(change(x.tensor), (x,), lambda r: pull(change, (x.tensor,), r))

    def same(self, change: Callable[[Tensor], Tensor], x: Value) -> Value:
        """One value in, one out: all of it goes on."""
        return self.record(change(x.tensor), (x,), lambda r: (r,))

    def proportional(self, change: Callable[[Tensor], Tensor], x: Value) -> Value:
        """A sum of inputs with fixed weights."""
        out = change(x.tensor)
        return self.record(out, (x,), lambda r: (x.tensor * pull(change, (x.tensor,), self.divide(r, out))[0],))

    def product(self, change: Callable[..., Tensor], a: Value, b: Value, fixed: bool = False) -> Value:
        """Linear in a and in b: half to each; all to b where a is `fixed`."""
        out = change(a.tensor, b.tensor)

        def back(r: Tensor) -> tuple[Tensor, ...]:
            into = pull(change, (a.tensor, b.tensor), self.divide(r, out))
            share = (0.0, 1.0) if fixed else (0.5, 0.5)
            return share[0] * a.tensor * into[0], share[1] * b.tensor * into[1]

        return self.record(out, (a, b), back)

    @abstractmethod
    def divide(self, a: Tensor, b: Tensor) -> Tensor: ...

    @abstractmethod
    def clone(self, x: Value, times: int = 2) -> list[Value]: ...

    @abstractmethod
    def add(self, a: Value, b: Value) -> Value: ...

    @abstractmethod
    def linear(self, x: Value, weight: Tensor, bias: Tensor | None, kind: str) -> Value: ...

    @abstractmethod
    def norm(self, x: Value, weight: Tensor, bias: Tensor, eps: float) -> Value: ...

    @abstractmethod
    def softmax(self, x: Value) -> Value: ...


def pull(change: Callable[..., Tensor], inputs: tuple[Tensor, ...], grad: Tensor) -> tuple[Tensor, ...]:
    """The product of `grad` with the Jacobian of `change`."""
    fresh = tuple(one.detach().requires_grad_() for one in inputs)
    with torch.enable_grad():
        return torch.autograd.grad(change(*fresh), fresh, grad)


class CheferTape(Tape):
    """Chefer, Gur & Wolf 2021 (CVPR) as their program has it, alpha = 1."""

    def divide(self, a: Tensor, b: Tensor) -> Tensor:
        below = b.clamp(min=1e-9) + b.clamp(max=1e-9)
        below = below + (below == 0).double() * 1e-9
        return a / below * (b != 0).double()

    def clone(self, x: Value, times: int = 2) -> list[Value]:
        copies = [Value(x.tensor) for _ in range(times)]

        def back(_: Tensor) -> tuple[Tensor, ...]:
            came = [one.relevance for one in copies if one.relevance is not None]
            return (x.tensor * sum(self.divide(one, x.tensor) for one in came),)

        # A step whose output stands for all copies: it runs once the copies have theirs.
        self.steps.append((Value(x.tensor, x.tensor), (x,), back))
        return copies

    def add(self, a: Value, b: Value) -> Value:
        out = a.tensor + b.tensor

        def back(r: Tensor) -> tuple[Tensor, ...]:
            one, two = a.tensor * self.divide(r, out), b.tensor * self.divide(r, out)
            sizes = one.sum().abs(), two.sum().abs()
            wanted = [self.divide(size, sizes[0] + sizes[1]) * r.sum() for size in sizes]
            return one * self.divide(wanted[0], one.sum()), two * self.divide(wanted[1], two.sum())

        return self.record(out, (a, b), back)

    def linear(self, x: Value, weight: Tensor, bias: Tensor | None, kind: str) -> Value:
        def back(r: Tensor) -> tuple[Tensor, ...]:
            above, below = x.tensor.clamp(min=0), x.tensor.clamp(max=0)
            z = F.linear(above, weight.clamp(min=0)) + F.linear(below, weight.clamp(max=0))
            s = self.divide(r, z)
            return (above * (s @ weight.clamp(min=0)) + below * (s @ weight.clamp(max=0)),)

        return self.record(F.linear(x.tensor, weight, bias), (x,), back)

    def norm(self, x: Value, weight: Tensor, bias: Tensor, eps: float) -> Value:
        return self.same(lambda t: F.layer_norm(t, t.shape[-1:], weight, bias, eps), x)

    def softmax(self, x: Value) -> Value:
        return self.same(lambda t: t.softmax(-1), x)


@dataclass(eq=False)
class AttnTape(Tape):
    """Achtibat et al. 2024 with a gamma for each kind of linear map; what goes nowhere is booked."""

    gammas: dict[str, float] = field(default_factory=dict)
    passing: bool = False  # the classifier's bias passes its relevance on to the inputs

    def divide(self, a: Tensor, b: Tensor) -> Tensor:
        return a / b

    def clone(self, x: Value, times: int = 2) -> list[Value]:
        return [x] * times

    def add(self, a: Value, b: Value) -> Value:
        out = a.tensor + b.tensor
        return self.record(out, (a, b), lambda r: (a.tensor / out * r, b.tensor / out * r))

    def linear(self, x: Value, weight: Tensor, bias: Tensor | None, kind: str) -> Value:
        out = F.linear(x.tensor, weight, bias)
        gamma = self.gammas.get(kind, 0.0)

        def back(r: Tensor) -> tuple[Tensor, ...]:
            each = x.tensor[..., None, :] * weight  # (..., D', D): the contribution of input i to output j
            fixed = torch.zeros_like(out) if bias is None else bias.expand_as(out)

            def favoured(z: Tensor, sign: Tensor) -> Tensor:
                return z + gamma * torch.where(sign > 0, z.clamp(min=0), z.clamp(max=0))

            some, other = favoured(each, out[..., None]), favoured(fixed, out)
            parts = r / (some.sum(-1) + other)  # (..., D')
            into = (some * parts[..., None]).sum(-2)
            if kind == "head" and self.passing:
                weights = each.abs() / each.abs().sum(-1, keepdim=True)
                return (into + (weights * (other * parts)[..., None]).sum(-2),)
            self.keep(other * parts)
            return (into,)

        return self.record(out, (x,), back)

    def norm(self, x: Value, weight: Tensor, bias: Tensor, eps: float) -> Value:
        width = x.tensor.shape[-1]
        deviation = (x.tensor.var(-1, unbiased=False, keepdim=True) + eps).sqrt()
        centre = torch.eye(width).double() - 1.0 / width
        each = x.tensor[..., None, :] * centre * weight[:, None] / deviation[..., None]  # (..., D, D)
        out = each.sum(-1) + bias

        def back(r: Tensor) -> tuple[Tensor, ...]:
            self.keep(bias * r / out)
            return ((each * (r / out)[..., None]).sum(-2),)

        return self.record(out, (x,), back)

    def softmax(self, x: Value) -> Value:
        out = x.tensor.softmax(-1)

        def back(r: Tensor) -> tuple[Tensor, ...]:
            into = x.tensor * (r - out * r.sum(-1, keepdim=True))  # proposition 3.1
            self.keep(r - into)
            return (into,)

        return self.record(out, (x,), back)

    def keep(self, lost: Tensor) -> None:
        self.booked += lost.sum().item()


@dataclass(eq=False)
class Walked:
    tokens: Value  # (1, N, D), what enters the first block
    attentions: list[Value]  # of every block, then of attention pooling
    logits: Value  # (1, C)


def walk(tape: Tape, model: ViT, image: Tensor) -> Walked:
    """The model on a tape: image (1, channels, H, W)."""
    c, prefix = model.config, len(model.config.prefix)
    p = {name: value.detach().double() for name, value in model.state_dict().items()}
    embedded, grid = model.embed(image)
    x = first = Value(embedded.detach())
    attentions = []
    for index in range(c.depth):
        name = f"blocks.{index}."
        stay, branch = tape.clone(x)
        branch = tape.norm(branch, p[name + "norm1.weight"], p[name + "norm1.bias"], c.norm_eps)
        branch, seen = _attend(tape, p, name + "attn.", c, branch, model.angles(grid))
        attentions.append(seen)
        x = tape.add(stay, _scaled(tape, p.get(name + "ls1.gamma"), branch))
        stay, branch = tape.clone(x)
        branch = tape.norm(branch, p[name + "norm2.weight"], p[name + "norm2.bias"], c.norm_eps)
        x = tape.add(stay, _scaled(tape, p.get(name + "ls2.gamma"), _mlp(tape, p, name + "mlp.", c, branch)))
    if not c.norm_pooled:
        x = tape.norm(x, p["norm.weight"], p["norm.bias"], c.norm_eps)
    x, side = tape.clone(x) if "head_dist.weight" in p else (x, x)
    if c.pooling == "attention":
        pooled, seen = _attention_pool(tape, p, c, x)
        attentions.append(seen)
    else:
        rows = {"cls": [slice(0, 1)], "mean": [slice(prefix, None)], "cls+mean": [slice(0, 1), slice(prefix, None)]}
        pooled = tape.proportional(lambda t: torch.cat([t[:, part].mean(1) for part in rows[c.pooling]], 1), x)
    if c.norm_pooled:
        pooled = tape.norm(pooled, p["norm.weight"], p["norm.bias"], c.norm_eps)
    logits = tape.linear(pooled, p["head.weight"], p["head.bias"], "head")
    if "head_dist.weight" in p:
        second = tape.proportional(lambda t: t[:, c.prefix.index("distillation")], side)
        second = tape.linear(second, p["head_dist.weight"], p["head_dist.bias"], "head")
        logits = tape.add(*(tape.same(lambda t: t / 2, one) for one in (logits, second)))
    return Walked(first, attentions, logits)


def _scaled(tape: Tape, scale: Tensor | None, x: Value) -> Value:
    return x if scale is None else tape.same(lambda t: t * scale, x)


def _attend(
    tape: Tape, p: Weights, name: str, c: ViTConfig, x: Value, angles: tuple[Tensor, Tensor] | None
) -> tuple[Value, Value]:
    qkv = tape.linear(x, p[name + "qkv.weight"], p.get(name + "qkv.bias"), "qkv")
    q, k, v = (
        tape.move(lambda t, i=i: t.unflatten(-1, (3, c.heads, -1)).permute(2, 0, 3, 1, 4)[i], qkv) for i in range(3)
    )
    if c.qk_norm:
        q = tape.norm(q, p[name + "q_norm.weight"], p[name + "q_norm.bias"], c.norm_eps)
        k = tape.norm(k, p[name + "k_norm.weight"], p[name + "k_norm.bias"], c.norm_eps)
    if angles is not None:
        q, k = (tape.proportional(lambda t: _turn(t, angles), one) for one in (q, k))
    mixed, seen = _mix(tape, q, k, v, c.head_size)
    return tape.linear(mixed, p[name + "proj.weight"], p[name + "proj.bias"], "proj"), seen


def _turn(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = (angle.double() for angle in angles)
    front, patches = x[:, :, : -len(cos)], x[:, :, -len(cos) :]
    half = x.shape[-1] // 2
    a, b = patches[..., :half], patches[..., half:]
    cos, sin = cos[:, :half], sin[:, :half]
    return torch.cat([front, torch.cat([a * cos - b * sin, b * cos + a * sin], -1)], 2)


def _mix(tape: Tape, q: Value, k: Value, v: Value, width: int, fixed: bool = False) -> tuple[Value, Value]:
    logits = tape.product(lambda a, b: torch.einsum("bhid,bhjd->bhij", a, b), q, k, fixed)
    seen = tape.softmax(tape.same(lambda t: t * width**-0.5, logits))
    if not seen.tensor.requires_grad:
        seen.tensor.requires_grad_()
    mixed = tape.product(lambda a, b: torch.einsum("bhij,bhjd->bhid", a, b), seen, v)
    return tape.move(lambda t: t.transpose(1, 2).flatten(2), mixed), seen


def _mlp(tape: Tape, p: Weights, name: str, c: ViTConfig, x: Value) -> Value:
    hidden = tape.linear(x, p[name + "fc1.weight"], p.get(name + "fc1.bias"), "mlp")
    if c.mlp == "swiglu":
        gate, passed = (tape.move(lambda t, i=i: t.chunk(2, -1)[i], hidden) for i in range(2))
        hidden = tape.product(torch.mul, tape.same(F.silu, gate), passed)
    else:
        kinds = {"gelu": F.gelu, "quick_gelu": lambda t: t * torch.sigmoid(1.702 * t)}
        hidden = tape.same(kinds[c.activation], hidden)
    return tape.linear(hidden, p[name + "fc2.weight"], p.get(name + "fc2.bias"), "mlp")


def _attention_pool(tape: Tape, p: Weights, c: ViTConfig, x: Value) -> tuple[Value, Value]:
    q = F.linear(p["attn_pool.latent"], p["attn_pool.q.weight"], p["attn_pool.q.bias"])
    q = Value(q.unflatten(2, (c.heads, -1)).transpose(1, 2))
    kv = tape.linear(x, p["attn_pool.kv.weight"], p["attn_pool.kv.bias"], "qkv")
    k, v = (tape.move(lambda t, i=i: t.unflatten(2, (2, c.heads, -1)).permute(2, 0, 3, 1, 4)[i], kv) for i in range(2))
    mixed, seen = _mix(tape, q, k, v, c.width // c.heads, fixed=True)
    pooled = tape.linear(mixed, p["attn_pool.proj.weight"], p["attn_pool.proj.bias"], "proj")
    stay, branch = tape.clone(pooled)
    branch = tape.norm(branch, p["attn_pool.norm.weight"], p["attn_pool.norm.bias"], c.norm_eps)
    pooled = tape.add(stay, _mlp(tape, p, "attn_pool.mlp.", c, branch))
    return tape.move(lambda t: t.squeeze(1), pooled), seen
