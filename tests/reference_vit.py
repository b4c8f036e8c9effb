"""Implement a Vision Transformer in float64 from the papers, as a reference for vitviz.

It takes only parameters and `ViTConfig` from vitviz. `run` puts every operation on a tape. The plain `Tape` computes
values, in one autograd graph, for a batch; the other tapes also propagate relevance from an operation's output to its
inputs, for one image, like the first authors' programs: each rule uses an operation's values and autograd's product
with its Jacobian. vitviz works with relevance divided by values, and with closed forms.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from vitviz.model.config import ViTConfig
from vitviz.model.vit import ViT

Parameters = dict[str, Tensor]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda t: 0.5 * t * (1 + torch.erf(t / 2**0.5)),  # by its definition
    "gelu_tanh": lambda t: 0.5 * t * (1 + torch.tanh((2 / math.pi) ** 0.5 * (t + 0.044715 * t**3))),
    "quick_gelu": lambda t: t / (1 + torch.exp(-1.702 * t)),
    "silu": lambda t: t / (1 + torch.exp(-t)),
}


@dataclass(eq=False)
class Value:
    tensor: Tensor
    relevance: Tensor | None = None


@dataclass(eq=False)
class Tape:
    """Record of operations in order. This class has no rules for relevance."""

    constant = False  # whether attention is constant, so that the values get all relevance
    steps: list[tuple[Value, tuple[Value, ...], Callable[[Tensor], tuple[Tensor, ...]]]] = field(default_factory=list)

    def record(self, tensor: Tensor, inputs: tuple[Value, ...], back: Callable[[Tensor], tuple[Tensor, ...]]) -> Value:
        out = Value(tensor)
        self.steps.append((out, inputs, back))
        return out

    def rewind(self, out: Value, relevance: Tensor) -> None:
        """Propagate `relevance` from `out` to all earlier values."""
        out.relevance = relevance
        for value, inputs, back in reversed(self.steps):
            if value.relevance is not None:
                for source, share in zip(inputs, back(value.relevance), strict=True):
                    source.relevance = share if source.relevance is None else source.relevance + share

    def move(self, change: Callable[[Tensor], Tensor], x: Value) -> Value:
        """Rearrange values."""
        return self.record(change(x.tensor), (x,), lambda r: pull(change, (x.tensor,), r))

    def same(self, change: Callable[[Tensor], Tensor], x: Value) -> Value:
        """Apply an elementwise function; relevance passes unchanged."""
        return self.record(change(x.tensor), (x,), lambda r: (r,))

    def proportional(self, change: Callable[[Tensor], Tensor], x: Value) -> Value:
        """Apply a fixed linear map; relevance is split in proportion to the terms."""
        out = change(x.tensor)
        return self.record(out, (x,), lambda r: (x.tensor * pull(change, (x.tensor,), self.divide(r, out))[0],))

    def product(self, change: Callable[..., Tensor], a: Value, b: Value, fixed: bool = False) -> Value:
        """Apply a bilinear map; each factor gets half of the relevance, or b all of it if a is `fixed`."""
        out = change(a.tensor, b.tensor)

        def back(r: Tensor) -> tuple[Tensor, ...]:
            into = pull(change, (a.tensor, b.tensor), self.divide(r, out))
            share = (0.0, 1.0) if fixed else (0.5, 0.5)
            return share[0] * a.tensor * into[0], share[1] * b.tensor * into[1]

        return self.record(out, (a, b), back)

    def clone(self, x: Value) -> list[Value]:
        return [x, x]

    def add(self, a: Value, b: Value) -> Value:
        out = a.tensor + b.tensor
        return self.record(out, (a, b), lambda r: self.add_rule(r, a.tensor, b.tensor))

    def linear(self, x: Value, weight: Tensor, bias: Tensor | None, kind: str) -> Value:
        bias = torch.zeros(len(weight)).double() if bias is None else bias
        out = x.tensor @ weight.T + bias
        return self.record(out, (x,), lambda r: (self.linear_rule(r, x.tensor, out, weight, bias, kind),))

    def norm(self, x: Value, p: Parameters, name: str, eps: float) -> Value:
        """Apply a layer norm, or without a bias the norm by the root mean square; without a weight, nothing."""
        if f"{name}.weight" not in p:
            return x
        weight, bias = p[f"{name}.weight"], p.get(f"{name}.bias", torch.zeros(()).double())
        centred = x.tensor - x.tensor.mean(-1, keepdim=True) if f"{name}.bias" in p else x.tensor
        deviation = (centred.square().mean(-1, keepdim=True) + eps).sqrt()
        out = centred / deviation * weight + bias
        return self.record(out, (x,), lambda r: (self.norm_rule(r, x.tensor, out, weight / deviation, bias),))

    def shift(self, x: Value, constant: Tensor) -> Value:
        """Add a constant; the input gets relevance in proportion, and the constant absorbs the rest."""
        out = x.tensor + constant
        return self.record(out, (x,), lambda r: (self.shift_rule(r, x.tensor, out),))

    def softmax(self, x: Value, allowed: Tensor | None = None) -> Value:
        power = (x.tensor - x.tensor.amax(-1, keepdim=True)).exp() * (1.0 if allowed is None else allowed)
        out = power / power.sum(-1, keepdim=True)
        return self.record(out, (x,), lambda r: (self.softmax_rule(r, x.tensor, out),))


def pull(change: Callable[..., Tensor], inputs: tuple[Tensor, ...], grad: Tensor) -> tuple[Tensor, ...]:
    """Return the product of `grad` with the Jacobian of `change`."""
    fresh = tuple(value.detach().requires_grad_() for value in inputs)
    with torch.enable_grad():
        return torch.autograd.grad(change(*fresh), fresh, grad)


class CheferTape(Tape):
    """Rules of the program of Chefer, Gur & Wolf 2021 (CVPR), with alpha = 1."""

    def divide(self, a: Tensor, b: Tensor) -> Tensor:
        below = b.clamp(min=1e-9) + b.clamp(max=1e-9)
        below = below + (below == 0).double() * 1e-9
        return a / below * (b != 0).double()

    def clone(self, x: Value) -> list[Value]:
        copies = [Value(x.tensor), Value(x.tensor)]

        def back(_: Tensor) -> tuple[Tensor, ...]:
            came = [copy.relevance for copy in copies if copy.relevance is not None]
            return (x.tensor * sum(self.divide(relevance, x.tensor) for relevance in came),)

        # A step whose output represents both copies; it runs after both have received their relevance.
        self.steps.append((Value(x.tensor, x.tensor), (x,), back))
        return copies

    def add_rule(self, r: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        first, second = a * self.divide(r, a + b), b * self.divide(r, a + b)
        sizes = first.sum().abs(), second.sum().abs()
        totals = [self.divide(size, sizes[0] + sizes[1]) * r.sum() for size in sizes]
        return first * self.divide(totals[0], first.sum()), second * self.divide(totals[1], second.sum())

    def linear_rule(self, r: Tensor, x: Tensor, out: Tensor, weight: Tensor, bias: Tensor, kind: str) -> Tensor:
        above, below = x.clamp(min=0), x.clamp(max=0)
        z = F.linear(above, weight.clamp(min=0)) + F.linear(below, weight.clamp(max=0))
        s = self.divide(r, z)
        return above * (s @ weight.clamp(min=0)) + below * (s @ weight.clamp(max=0))

    def norm_rule(self, r: Tensor, *_: Tensor) -> Tensor:
        return r

    softmax_rule = norm_rule

    def shift_rule(self, r: Tensor, x: Tensor, out: Tensor) -> Tensor:
        return x * self.divide(r, out)


@dataclass(eq=False)
class AttnTape(Tape):
    """Rules of Achtibat et al. 2024 with a gamma for each kind of linear map; `booked` sums the absorbed relevance."""

    gammas: dict[str, float] = field(default_factory=dict)
    passing: bool = False  # the classifier's bias passes its relevance on to the inputs
    constant: bool = False
    booked: float = 0.0

    def book(self, lost: Tensor) -> None:
        self.booked += lost.sum().item()

    def divide(self, a: Tensor, b: Tensor) -> Tensor:
        return a / b

    def add_rule(self, r: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return a / (a + b) * r, b / (a + b) * r

    def linear_rule(self, r: Tensor, x: Tensor, out: Tensor, weight: Tensor, bias: Tensor, kind: str) -> Tensor:
        contributions = x[..., None, :] * weight  # (..., D', D): the contribution of input i to output j
        gamma = self.gammas.get(kind, 0.0)

        def favoured(z: Tensor, sign: Tensor) -> Tensor:
            return z + gamma * torch.where(sign > 0, z.clamp(min=0), z.clamp(max=0))

        inputs, rest = favoured(contributions, out[..., None]), favoured(bias.expand_as(out), out)
        parts = r / (inputs.sum(-1) + rest)  # (..., D')
        into = (inputs * parts[..., None]).sum(-2)
        if kind == "head" and self.passing:
            weights = contributions.abs() / contributions.abs().sum(-1, keepdim=True)
            return into + (weights * (rest * parts)[..., None]).sum(-2)
        self.book(rest * parts)
        return into

    def norm_rule(self, r: Tensor, x: Tensor, out: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        centre = torch.eye(x.shape[-1]).double() - (1.0 / x.shape[-1] if bias.ndim else 0.0)
        contributions = x[..., None, :] * centre * scale[..., None]  # (..., D, D)
        self.book(bias * r / out)
        return (contributions * (r / out)[..., None]).sum(-2)

    def shift_rule(self, r: Tensor, x: Tensor, out: Tensor) -> Tensor:
        self.book(r - x / out * r)
        return x / out * r

    def softmax_rule(self, r: Tensor, x: Tensor, out: Tensor) -> Tensor:
        into = x * (r - out * r.sum(-1, keepdim=True))  # proposition 3.1
        self.book(r - into)
        return into


@dataclass(eq=False)
class Run:
    """Results of one run; N tokens, prefix first."""

    tokens: Value  # (B, N, D), input of the first block
    attentions: list[Value] = field(default_factory=list)  # L x (B, H, N, N)
    values: list[Tensor] = field(default_factory=list)  # L x (B, H, N, d)
    leaving: list[Tensor] = field(default_factory=list)  # L x (B, N, D), output of each block
    final: Value | None = None  # (B, N, D), after the final norm if that comes before pooling
    pools: list[Value] = field(default_factory=list)  # (B, H, n, N) or (B, H, n, 1 + N): the first row is the query's
    logits: Value | None = None  # (B, C), or the pooled features without a classifier


@dataclass(eq=False)
class Changes:
    """Changes inside a run, without rules for relevance."""

    allowed: dict[int, Tensor] = field(default_factory=dict)  # block -> (H, N, N), 1 where attention is allowed
    heads: dict[tuple[int, int], str] = field(default_factory=dict)  # (block, head) -> "zero" or "mean"
    keep: list[int] | None = None  # the patches that stay, in reading order


def run(
    model: ViT, images: Tensor, tape: Tape | None = None, changes: Changes | None = None, depth: int = 10**6
) -> Run:
    """Run the model on images (B, channels, H, W); blocks after the first `depth` are left out."""
    tape, c, p, changes = tape or Tape(), model.config, parameters(model), changes or Changes()
    grid = (images.shape[2] // c.patch_size, images.shape[3] // c.patch_size)
    x, prefix = Value(_embed(tape, c, p, images.double(), grid)), len(c.prefix)
    if changes.keep is not None:
        stay = [*range(prefix), *(prefix + patch for patch in changes.keep)]
        x, cut = Value(x.tensor[:, stay]), {block: a[:, stay][:, :, stay] for block, a in changes.allowed.items()}
        changes = Changes(cut, changes.heads, changes.keep)
    result = Run(x)
    for index in range(min(depth, c.depth)):
        x, attention, values = _block(tape, p, f"blocks.{index}.", c, x, grid, changes)
        if c.table.between and index + 1 < c.depth:
            front, back = p["mid_pos_embed"][index].tensor_split([prefix])
            back = _resized(c, back, grid)[slice(None) if changes.keep is None else changes.keep]
            x = tape.shift(x, torch.cat([front, back]))
        result.attentions.append(attention)
        result.values.append(values.tensor)
        result.leaving.append(x.tensor)
    result.final, result.pools, result.logits = read(tape, model, x)
    return result


def _block(
    tape: Tape, p: Parameters, name: str, c: ViTConfig, x: Value, grid: tuple[int, int], changes: Changes
) -> tuple[Value, Value, Value]:
    """Return the output of a block, its attention and its values."""
    stay, branch = tape.clone(x)
    stay, beside = tape.clone(stay) if c.parallel else (stay, stay)
    branch = branch if c.norms.post else tape.norm(branch, p, name + "norm1", c.norms.eps)
    branch, attention, values = _attend(tape, p, name + "attn.", c, branch, grid, changes)
    branch = tape.norm(branch, p, name + "norm1", c.norms.eps) if c.norms.post else branch
    if c.parallel:
        beside = _mlp(tape, p, name + "mlp.", c, tape.norm(beside, p, name + "norm1", c.norms.eps))
        branch = tape.add(branch, beside)
    x = tape.add(stay, _scaled(tape, p.get(name + "ls1.gamma"), branch))
    if not c.parallel:
        stay, branch = tape.clone(x)
        branch = branch if c.norms.post else tape.norm(branch, p, name + "norm2", c.norms.eps)
        branch = _mlp(tape, p, name + "mlp.", c, branch)
        branch = tape.norm(branch, p, name + "norm2", c.norms.eps) if c.norms.post else branch
        x = tape.add(stay, _scaled(tape, p.get(name + "ls2.gamma"), branch))
    return x, attention, values


def parameters(model: ViT) -> Parameters:
    return {name: value.detach().double() for name, value in model.state_dict().items()}


def read(tape: Tape, model: ViT, x: Value) -> tuple[Value, list[Value], Value]:
    """Return normed tokens, attentions of the pooling, and logits, from tokens (B, N, D) after a block."""
    c, p, prefix, pools = model.config, parameters(model), len(model.config.prefix), []
    final = x = x if c.norms.pooled else tape.norm(x, p, "norm", c.norms.eps)
    x, side = tape.clone(x) if "head_dist.weight" in p else (x, x)
    if c.pool.blocks:
        pooled, pools = _class_attention(tape, p, c, x)
    elif c.pooling == "attention":
        pooled, pool = _attention_pool(tape, p, c, x)
        pools = [pool]
    else:
        rows = {"cls": [slice(0, 1)], "mean": [slice(prefix, None)], "cls+mean": [slice(0, 1), slice(prefix, None)]}
        pooled = tape.proportional(lambda t: torch.cat([t[:, part].mean(1) for part in rows[c.pooling]], 1), x)
    if c.norms.pooled:
        pooled = tape.norm(pooled, p, "norm", c.norms.eps)
    logits = tape.linear(pooled, p["head.weight"], p["head.bias"], "head") if c.classes else pooled
    if "head_dist.weight" in p:  # DeiT: the mean of two classifiers, each on its own token
        second = tape.proportional(lambda t: t[:, c.prefix.index("distillation")], side)
        second = tape.linear(second, p["head_dist.weight"], p["head_dist.bias"], "head")
        logits = tape.add(*(tape.same(lambda t: t / 2, answer) for answer in (logits, second)))
    return final, pools, logits


def _embed(tape: Tape, c: ViTConfig, p: Parameters, images: Tensor, grid: tuple[int, int]) -> Tensor:
    batch, (rows, columns), side = len(images), grid, c.patch_size
    pixels = images.reshape(batch, c.channels, rows, side, columns, side).permute(0, 2, 4, 1, 3, 5)
    x = pixels.reshape(batch, rows * columns, -1) @ p["patch_embed.proj.weight"].flatten(1).T
    x = tape.norm(Value(x + p.get("patch_embed.proj.bias", 0.0)), p, "patch_embed.norm", c.norms.eps).tensor
    if c.learned:
        x = x + _resized(c, p["pos_embed"], grid)
    elif c.positions in ("sincos", "sincos1d"):
        x = x + torch.tensor({"sincos": sincos, "sincos1d": sincos1d}[c.positions](rows, columns, c.width)).double()
    front = [p[name].expand(batch, -1, -1) for name in ("cls_token", "dist_token", "reg_token") if name in p]
    x = torch.cat([*front, x], 1)
    return tape.norm(Value(x), p, "norm_pre", c.norms.eps).tensor if c.norms.pre else x


def _resized(c: ViTConfig, table: Tensor, grid: tuple[int, int]) -> Tensor:
    """Interpolate learned positions to a grid: (..., rows * columns, D) -> (rows' * columns', D)."""
    table = table.reshape(1, *c.learned_grid, -1).permute(0, 3, 1, 2)
    if grid != c.learned_grid:
        table = F.interpolate(table, grid, mode="bicubic", antialias=c.table.antialias)
    return table[0].permute(1, 2, 0).flatten(0, 1)


def sincos(rows: int, columns: int, width: int) -> list[list[float]]:
    """Beyer et al. 2022: x is the column, and its sines and cosines come first."""
    steps = [10_000.0 ** (-i / (width // 4 - 1)) for i in range(width // 4)]
    return [
        [turn(place * step) for place in (column, row) for turn in (math.sin, math.cos) for step in steps]
        for row in range(rows)
        for column in range(columns)
    ]


def sincos1d(rows: int, columns: int, width: int) -> list[list[float]]:
    """Vaswani et al. 2017, section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i / D)), PE(pos, 2i + 1) its cosine."""
    return [
        [turn(place / 10_000 ** (2 * i / width)) for i in range(width // 2) for turn in (math.sin, math.cos)]
        for place in range(rows * columns)
    ]


def rotations(c: ViTConfig, rows: int, columns: int, rates: Tensor | None) -> Tensor:
    """Siméoni et al. 2025, Heo et al. 2024: angles of patches and pairs of channels, (..., rows * columns, d / 2)."""
    places = [(2 * (y + 0.5) / rows - 1, 2 * (x + 0.5) / columns - 1) for y in range(rows) for x in range(columns)]
    if c.rotary.places == "index":
        up, along = (
            (own / count) for own, count in zip(c.rotary.grid or (rows, columns), (rows, columns), strict=True)
        )
        first = c.rotary.offset
        places = [((y + first) * up, (x + first) * along) for y in range(rows) for x in range(columns)]
    if rates is not None:  # (2, H, d / 2)
        return torch.stack([y * rates[0] + x * rates[1] for y, x in places], 1)
    quarter, turn = c.head_size // 4, 1.0 if c.rotary.places == "index" else 2 * math.pi
    steps = [turn / c.rotary.base ** (4 * i / c.head_size) for i in range(quarter)]
    return torch.tensor([[at * step for at in place for step in steps] for place in places]).double()


def _scaled(tape: Tape, scale: Tensor | None, x: Value) -> Value:
    return x if scale is None else tape.same(lambda t: t * scale, x)


def _heads(tape: Tape, x: Value, start: int, heads: int, width: int) -> Value:
    """Split consecutive channels from `start` on into heads: (B, N, ...) -> (B, H, N, d)."""
    return tape.move(lambda t: torch.stack([t[..., start + h * width :][..., :width] for h in range(heads)], 1), x)


def _attend(
    tape: Tape, p: Parameters, name: str, c: ViTConfig, x: Value, grid: tuple[int, int], changes: Changes
) -> tuple[Value, Value, Value]:
    wide, block = c.heads * c.head_size, int(name.split(".")[1]) if name.startswith("blocks.") else None
    qkv = tape.linear(x, p[name + "qkv.weight"], p.get(name + "qkv.bias"), "qkv")
    q, k, v = (_heads(tape, qkv, part * wide, c.heads, c.head_size) for part in range(3))
    if c.norms.qk:
        q = tape.norm(q, p, name + "q_norm", c.norms.eps)
        k = tape.norm(k, p, name + "k_norm", c.norms.eps)
    if c.rotates:
        angles = rotations(c, *grid, p.get(name + "rates"))
        angles = angles if changes.keep is None else angles[..., changes.keep, :]
        if c.rotary.class_token:  # the other prefix tokens have an angle of 0
            turned = torch.zeros(len(c.prefix), c.head_size // 2).double()
            turned[0] = p[name + "class_angle"]
            angles = torch.cat([turned.expand(*angles.shape[:-2], -1, -1), angles], dim=-2)
        q, k = (tape.proportional(lambda t: _turn(t, angles), part) for part in (q, k))
    bias = _bias(c, p[name + "bias_table"], grid, changes.keep) if c.relative_bias else None
    values = v
    if c.talking_heads:  # the mix before the softmax of H heads of queries, whose logits _mix divides by sqrt(H d)
        before, after = p[name + "proj_l.weight"] * c.heads**0.5, p[name + "proj_w.weight"].T
        q, values = (_talk(tape, part, weight) for part, weight in ((q, before), (v, after)))
        k = tape.move(lambda t: torch.cat(t.unbind(1), -1)[:, None].expand(-1, c.heads, -1, -1), k)
    mixed, attention = _mix(tape, q, k, values, allowed=changes.allowed.get(block), bias=bias)
    for head in range(c.heads):
        if mode := changes.heads.get((block, head)):
            parts = list(mixed.tensor.chunk(c.heads, -1))
            parts[head] = parts[head].mean(1, keepdim=True).expand_as(parts[head]) * (mode == "mean")
            mixed = Value(torch.cat(parts, -1))
    if c.talking_heads:
        bias, count = p[name + "proj_w.bias"].repeat_interleave(c.head_size), x.tensor.shape[1]
        joined = tape.move(lambda t: torch.cat(t.unbind(1), -1), v)
        uniform = tape.proportional(lambda t: bias * t.sum(1, keepdim=True).expand(-1, count, -1), joined)
        mixed = tape.proportional(lambda t: torch.stack(t.chunk(c.heads, -1)).sum(0), mixed)
        mixed = tape.add(mixed, uniform)
    mixed = tape.norm(mixed, p, name + "norm", c.norms.eps)
    return tape.linear(mixed, p[name + "proj.weight"], p[name + "proj.bias"], "proj"), attention, v


def _talk(tape: Tape, x: Value, weight: Tensor) -> Value:
    """Shazeer et al. 2020: each head gets the channels of all heads, times its row of weights."""
    return tape.proportional(lambda t: torch.einsum("hg,bgnd->bhngd", weight, t).flatten(3), x)


def _turn(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate pairs of channels (i, i + d / 2) of the patches in x (B, H, N, d)."""
    front, patches = x[:, :, : -angles.shape[-2]], x[:, :, -angles.shape[-2] :]
    a, b = patches.split(x.shape[-1] // 2, -1)
    turned = torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)
    return torch.cat([front, turned], 2)


def _bias(c: ViTConfig, table: Tensor, grid: tuple[int, int], keep: list[int] | None) -> Tensor:
    """Bao et al. 2022: one number for each head and each difference of rows and columns, (H, N, N)."""
    rows, columns = (2 * side - 1 for side in c.learned_grid)
    between = table[: rows * columns].reshape(rows, columns, c.heads)
    shown = [(n // grid[1], n % grid[1]) for n in (range(grid[0] * grid[1]) if keep is None else keep)]
    tokens = [None] * len(c.prefix) + shown
    out = torch.zeros(c.heads, len(tokens), len(tokens)).double()
    for query, at in enumerate(tokens):
        for key, other in enumerate(tokens):
            if at and other:
                out[:, query, key] = between[at[0] - other[0] + rows // 2, at[1] - other[1] + columns // 2]
            else:
                out[:, query, key] = table[rows * columns + (0 if other else 1 if at else 2)]
    return out


def _mix(
    tape: Tape, q: Value, k: Value, v: Value, fixed: bool = False, allowed: Tensor | None = None,
    bias: Tensor | None = None,
) -> tuple[Value, Value]:  # fmt: skip
    logits = tape.product(lambda a, b: a @ b.mT, q, k, fixed)
    logits = tape.same(lambda t: t / q.tensor.shape[-1] ** 0.5, logits)
    attention = tape.softmax(logits if bias is None else tape.shift(logits, bias), allowed)
    if not attention.tensor.requires_grad:
        attention.tensor.requires_grad_()
    mixed = tape.product(lambda a, b: a @ b, attention, v, fixed=tape.constant)
    return tape.move(lambda t: torch.cat(t.unbind(1), -1), mixed), attention


def _mlp(tape: Tape, p: Parameters, name: str, c: ViTConfig, x: Value) -> Value:
    hidden = tape.linear(x, p[name + "fc1.weight"], p.get(name + "fc1.bias"), "mlp")
    if c.gated:
        gate, passed = (tape.move(lambda t, i=i: t.split(c.hidden, -1)[i], hidden) for i in range(2))
        hidden = tape.product(
            torch.mul, tape.same(ACTIVATIONS["silu" if c.mlp == "swiglu" else c.activation], gate), passed
        )
    else:
        hidden = tape.same(ACTIVATIONS[c.activation], hidden)
    hidden = tape.norm(hidden, p, name + "norm", c.norms.eps)
    return tape.linear(hidden, p[name + "fc2.weight"], p.get(name + "fc2.bias"), "mlp")


def _class_attention(tape: Tape, p: Parameters, c: ViTConfig, x: Value) -> tuple[Value, list[Value]]:
    """Touvron et al. 2021, section 3: blocks over a class token and all tokens, which change only the class token."""
    own = replace(c, heads=c.pool.heads or c.heads, mlp_width=c.pool.mlp_width, talking_heads=False, depth=1)
    token, pools = tape.shift(Value(torch.zeros_like(x.tensor[:, :1])), p["attn_pool.latent"]), []
    for index in range(c.pool.blocks):
        both = torch.cat([token.tensor, x.tensor], 1)
        joined = tape.record(both, (token, x), lambda r: (r[:, :1], r[:, 1:]))
        out, attention, _ = _block(tape, p, f"attn_pool.blocks.{index}.", own, joined, (0, 0), Changes())
        token = tape.move(lambda t: t[:, :1], out)
        pools.append(attention)
    return tape.move(lambda t: t.squeeze(1), token), pools


def _attention_pool(tape: Tape, p: Parameters, c: ViTConfig, x: Value) -> tuple[Value, Value]:
    """Pool by one learned query, followed by an MLP with a residual connection."""
    q = Value(p["attn_pool.latent"] @ p["attn_pool.q.weight"].T + p["attn_pool.q.bias"])
    kv = tape.linear(x, p["attn_pool.kv.weight"], p["attn_pool.kv.bias"], "qkv")
    heads = [(q, 0), (kv, 0), (kv, c.width)]
    count = c.pool.heads or c.heads
    q, k, v = (_heads(tape, value, start, count, c.width // count) for value, start in heads)
    left_out = torch.arange(x.tensor.shape[1]) < len(c.prefix)  # probability 0
    bias = None if c.pool.prefix else -1e3 * left_out.double()
    mixed, attention = _mix(tape, q, k, v, fixed=True, bias=bias)
    pooled = tape.linear(mixed, p["attn_pool.proj.weight"], p["attn_pool.proj.bias"], "proj")
    stay, branch = tape.clone(pooled)
    branch = tape.norm(branch, p, "attn_pool.norm", c.norms.eps)
    pooled = tape.add(stay, _mlp(tape, p, "attn_pool.mlp.", c, branch))
    return tape.move(lambda t: t.squeeze(1), pooled), attention
