"""Define the parts of a Vision Transformer: patch embedding, attention, MLP, block, attention pooling.

Each part calls the operations of an `Ops` object, which implements them: see `vitviz.model.ops`.

Shapes: B images, H heads, N tokens, D width, d head width. Parameter names follow timm's.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitviz.model.config import PositionTable, Rotary, ViTConfig
from vitviz.model.ops import PLAIN, Ops
from vitviz.model.positions import Angles, relative_bias, rotary_angles, rotary_rates, rotate, wide


class PatchEmbed(nn.Module):
    """Patch embedding by one strided convolution."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        side = config.patch_size
        self.proj = nn.Conv2d(config.channels, config.width, kernel_size=side, stride=side, bias=config.patch_bias)
        self.norm = make_norm(config, config.width) if config.norms.patch else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """Return the tokens of all patches: (B, channels, H, W) -> (B, gh * gw, D)."""
        features = self.proj(images)  # (B, D, gh, gw)
        tokens: Tensor = self.norm(features.flatten(2).transpose(1, 2))  # (B, D, gh * gw) -> (B, gh * gw, D)
        return tokens


def make_norm(config: ViTConfig, width: int, eps: float | None = None) -> nn.Module:
    """Return the model's norm layer for vectors of this width, with its epsilon or another."""
    return (nn.RMSNorm if config.norms.kind == "rms" else nn.LayerNorm)(width, eps=eps or config.norms.eps)


class Attention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads, self.head_width = config.heads, config.head_size
        self.scale = self.head_width**-0.5  # factor of the logits
        inner = self.heads * self.head_width
        self.qkv = nn.Linear(config.width, 3 * inner, bias=config.qkv_bias)
        self.q_norm, self.k_norm = (
            make_norm(config, self.head_width) if config.norms.qk else nn.Identity() for _ in range(2)
        )
        self.norm = make_norm(config, inner) if config.norms.attention else nn.Identity()
        self.proj = nn.Linear(inner, config.width)
        self.placed, self.rates = config.rotates or config.relative_bias, None
        if config.rotary.learned:
            self.rates = nn.Parameter(rotary_rates(self.head_width, config.rotary.base).repeat(1, self.heads, 1))
        self.class_angle = nn.Parameter(torch.zeros(self.head_width // 2)) if config.rotary.class_token else None
        self.bias_grid = config.learned_grid
        self.bias_table = None
        if config.relative_bias:
            entries = math.prod(2 * side - 1 for side in self.bias_grid)
            entries += 3 * bool(config.prefix)  # prefix to patch, patch to prefix, prefix to prefix
            self.bias_table = nn.Parameter(torch.zeros(entries, self.heads))
        # Talking heads: mixes of logits and of probabilities. The softmax would cancel a bias of the logits.
        self.proj_l = nn.Linear(self.heads, self.heads, bias=False) if config.talking_heads else None
        self.proj_w = nn.Linear(self.heads, self.heads) if config.talking_heads else None
        self.attention_dropout = config.attention_dropout
        self.dropout = nn.Dropout(config.dropout)

    def project(self, x: Tensor, angles: Angles | None, ops: Ops = PLAIN) -> tuple[Tensor, Tensor, Tensor]:
        """Return unscaled queries, keys and values: (B, N, D) -> 3 x (B, H, N, d)."""
        qkv = ops.linear(self.qkv, x).unflatten(-1, (3, self.heads, self.head_width))  # (B, N, 3, H, d)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # -> 3 x (B, H, N, d)
        return *self.place(q, k, angles, ops), v

    def place(
        self, q: Tensor, k: Tensor, angles: Angles | None, ops: Ops = PLAIN, heads: slice = slice(None)
    ) -> tuple[Tensor, Tensor]:
        """Apply norm and positions to queries and keys of `heads`, (B, H, N, d) each.

        A relative position bias becomes N more channels: those of a query hold its row of the bias, and those of key m
        are 1 at m and 0 elsewhere. The logits therefore depend only on queries and keys, also in the browser. A talking
        head has the queries of all heads side by side, times its weights in the mix of logits, and the keys of all.
        """
        q, k = ops.norm(self.q_norm, q), ops.norm(self.k_norm, k)
        if self.proj_l is not None:
            q = ops.fixed(partial(_mix_heads, weight=self.proj_l.weight), q)
            return q, k.transpose(1, 2).flatten(2)[:, None].expand_as(q)  # (B, H, N, H * d) each
        if angles is None or not self.placed:
            return q, k
        if self.bias_table is not None:
            assert angles.places is not None
            tokens, patches = q.shape[2], angles.places.shape[-2]
            bias = relative_bias(self.bias_table[:, heads], self.bias_grid, angles.places, tokens - patches)
            index = torch.arange(tokens, device=q.device)
            return ops.append(q, bias / self.scale), ops.append(k, index[:, None] == index)
        rotation = angles.rotation
        if self.rates is not None:
            assert angles.places is not None
            rotation = rotary_angles(angles.places, wide(self.rates[:, heads]))
        assert rotation is not None
        turn = partial(rotate, rotation=rotation, class_angle=self.class_angle)
        return ops.fixed(turn, q), ops.fixed(turn, k)

    def merge(self, mixed: Tensor, ops: Ops = PLAIN) -> Tensor:
        """Concatenate the heads and project them: (B, H, N, d) -> (B, N, D)."""
        joined = ops.norm(self.norm, mixed.transpose(1, 2).flatten(2))  # (B, N, H * d)
        out: Tensor = self.dropout(ops.linear(self.proj, joined))
        return out

    def forward(self, x: Tensor, angles: Angles | None = None, ops: Ops = PLAIN, first: int | None = None) -> Tensor:
        """Attend: (B, N, D) -> (B, N, D), or (B, first, D) to compute only the first tokens."""
        q, k, v = self.project(x, angles, ops)
        rate = self.attention_dropout if self.training else 0.0
        if self.proj_w is None:
            return self.merge(ops.edit_heads(ops.attend(q[:, :, :first], k, v, self.scale, dropout=rate)), ops)
        # The second mix is linear, so it may mix values instead of probabilities.
        values = ops.fixed(partial(_mix_heads, weight=self.proj_w.weight.T), v)  # (B, H, N, H * d)
        mixed = ops.edit_heads(ops.attend(q[:, :, :first], k, values, self.scale, dropout=rate))
        summed = ops.fixed(_sum_heads, mixed).unflatten(2, (self.heads, -1)).transpose(1, 2)  # (B, H, n, d)
        uniform = ops.fixed(partial(_times_sum, factors=self.proj_w.bias), v)  # (B, H, 1, d)
        return self.merge(ops.add(summed, uniform.expand_as(summed)), ops)

    def talk(self, probabilities: Tensor) -> Tensor:
        """Return the factors of the heads' values, (B, H, n, N): mixed `probabilities`, which are those of a trace.

        They may be negative, and rows need not sum to 1. Without talking heads, they are the probabilities.
        """
        if self.proj_w is None:
            return probabilities
        factors: Tensor = self.proj_w(probabilities.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return factors


def _mix_heads(x: Tensor, weight: Tensor) -> Tensor:
    """Return the channels of all heads side by side, times a row of weights: (B, H, N, d) -> (B, H, N, H * d)."""
    return (weight[:, None, :, None] * x.transpose(1, 2)[:, None]).flatten(3)  # (H, 1, H, 1) * (B, 1, N, H, d)


def _sum_heads(x: Tensor) -> Tensor:
    return x.sum(1)


def _times_sum(x: Tensor, factors: Tensor) -> Tensor:
    """Sum over tokens, and scale each head's sum by its factor: (B, H, N, d) -> (B, H, 1, d)."""
    return x.sum(2, keepdim=True) * factors[:, None, None]


def quick_gelu(x: Tensor) -> Tensor:
    """Apply the sigmoid approximation of GELU used by OpenAI's CLIP."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": quick_gelu,
}

GATES: dict[str, Callable[[Tensor], Tensor]] = {"swiglu": F.silu, "reglu": F.relu}
"""Gates of `ViTConfig.mlp` other than `ViTConfig.activation`."""


class MLP(nn.Module):
    """Two linear layers with a non-linearity, or a gated MLP (Shazeer 2020).

    The gate and its factor are the two halves of `fc1`.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.gated = config.gated
        self.fc1 = nn.Linear(config.width, 2 * config.hidden if self.gated else config.hidden, bias=config.mlp_bias)
        self.norm = make_norm(config, config.hidden) if config.norms.mlp else nn.Identity()
        self.fc2 = nn.Linear(config.hidden, config.width, bias=config.mlp_bias)
        self.activation = GATES.get(config.mlp, ACTIVATIONS[config.activation])
        self.dropout = nn.Dropout(config.dropout)
        self.move: Callable[[Tensor], Tensor] | None = None  # moves activations to registers, see `move_neurons`

    def forward(self, x: Tensor, ops: Ops = PLAIN) -> Tensor:
        """Transform each token: (B, N, D) -> (B, N, D)."""
        return ops.edit_mlp(self.dropout(ops.linear(self.fc2, self.hidden(x, ops))))

    def hidden(self, x: Tensor, ops: Ops = PLAIN, *, moves: bool = True) -> Tensor:
        """Return the activations, the input of the last linear map: (B, N, D) -> (B, N, F).

        With `moves=False`, no activations move to registers.
        """
        hidden = ops.linear(self.fc1, x)
        if self.gated:
            gate, value = hidden.chunk(2, dim=-1)
            hidden = ops.product(torch.mul, ops.activation(self.activation, gate), value)
        else:
            hidden = ops.activation(self.activation, hidden)
        if self.move is not None and moves:
            hidden = ops.fixed(self.move, hidden)
        return ops.norm(self.norm, self.dropout(hidden))


def move_neurons(hidden: Tensor, neurons: Sequence[int], registers: tuple[int, int]) -> Tensor:
    """Move the largest activations of some neurons to the registers first..last-1, and set the others to zero.

    Of each neuron, register i gets the activation of (B, N, F) with the i-th largest absolute value over tokens. Jiang
    et al. 2025, "Vision Transformers Don't Need Trained Registers", section 4.
    """
    index = torch.tensor(neurons, device=hidden.device)
    places = F.one_hot(index, hidden.shape[-1]).to(hidden)  # (m, F)
    return hidden * (1 - places.sum(0)) + largest_in_registers(hidden[..., index], registers) @ places


def largest_in_registers(x: Tensor, registers: tuple[int, int]) -> Tensor:
    """Return zeros (B, N, m), with the largest numbers of each channel of x, by absolute value, in the registers."""
    first, last = registers
    largest = x.gather(1, x.abs().topk(last - first, dim=1).indices)  # (B, r, m)
    return F.pad(largest, (0, 0, first, x.shape[1] - last))


class LayerScale(nn.Module):
    """Learned scale of each channel (Touvron et al. 2021, "Going deeper with Image Transformers")."""

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), start))

    def forward(self, x: Tensor) -> Tensor:
        """Scale the channels: (B, N, D) -> (B, N, D)."""
        return x * self.gamma


class DropPath(nn.Module):
    """Stochastic depth: drops residual branches for some images (Huang et al. 2016)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Drop the branch of some images and scale the others by 1 / (1 - rate): (B, N, D) -> (B, N, D)."""
        if not self.training or self.rate == 0.0:
            return x
        keep = torch.rand(x.shape[0], 1, 1, device=x.device) >= self.rate  # (B, 1, 1)
        return x * keep / (1.0 - self.rate)


class Block(nn.Module):
    """Transformer block: attention and MLP, added to the residual stream one after the other or in parallel."""

    def __init__(self, config: ViTConfig, path_dropout: float) -> None:
        super().__init__()
        scale = config.layer_scale
        self.post, self.parallel = config.norms.post, config.parallel
        self.norm1 = make_norm(config, config.width)
        self.attn = Attention(config)
        self.ls1 = nn.Identity() if scale is None else LayerScale(config.width, scale)
        self.norm2 = nn.Identity() if self.parallel else make_norm(config, config.width)
        self.mlp = MLP(config)
        self.ls2 = nn.Identity() if scale is None or self.parallel else LayerScale(config.width, scale)
        self.drop_path = DropPath(path_dropout)

    def forward(self, x: Tensor, angles: Angles | None = None, ops: Ops = PLAIN, first: int | None = None) -> Tensor:
        """Run the block: (B, N, D) -> (B, N, D), or (B, first, D) to compute only the first tokens."""
        entered = self.enter(x, ops)
        return self.finish(x[:, :first], self.attn(entered, angles, ops, first), ops, entered[:, :first])

    def enter(self, x: Tensor, ops: Ops = PLAIN) -> Tensor:
        """Return the input of attention: (B, N, D) -> (B, N, D)."""
        return x if self.post else ops.norm(self.norm1, x)

    def finish(self, x: Tensor, attended: Tensor, ops: Ops = PLAIN, entered: Tensor | None = None) -> Tensor:
        """Add the attention output (B, N, D) to the stream (B, N, D), then the MLP's output.

        `entered` is the result of `enter`; without it, a parallel block computes it again.
        """
        if self.parallel:
            both = ops.add(attended, self.mlp(self.enter(x, ops) if entered is None else entered, ops))
            return ops.add(x, self.drop_path(ops.scale(self.ls1, both)))
        attended = ops.norm(self.norm1, attended) if self.post else attended
        x = ops.add(x, self.drop_path(ops.scale(self.ls1, attended)))
        branch = self.mlp(x if self.post else ops.norm(self.norm2, x), ops)
        branch = ops.norm(self.norm2, branch) if self.post else branch
        return ops.add(x, self.drop_path(ops.scale(self.ls2, branch)))


SKIPPED = 1e3  # decrease of the logits of tokens that pooling leaves out: exp(-1000) is 0 in float32


class AttentionPool(nn.Module):
    """Pooling by one learned query that attends to all tokens, usually with an MLP (Zhai et al. 2022; SigLIP)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        width, self.heads = config.width, config.pool.heads or config.heads
        self.skipped = 0 if config.pool.prefix else len(config.prefix)
        self.latent = nn.Parameter(torch.zeros(1, 1, width))
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)
        self.proj = nn.Linear(width, width)
        hidden = config.hidden if config.pool.mlp_width is None else config.pool.mlp_width
        self.norm = make_norm(config, width) if hidden else None
        self.mlp = MLP(replace(config, mlp_width=hidden)) if hidden else None

    def forward(self, x: Tensor, ops: Ops = PLAIN) -> Tensor:
        """Pool the tokens: (B, N, D) -> (B, D)."""
        latent = self.latent.expand(x.shape[0], -1, -1)  # not len(x), which would be a constant in an exported graph
        q = self.q(latent).unflatten(2, (self.heads, -1)).transpose(1, 2)  # (B, H, 1, d)
        k, v = ops.linear(self.kv, x).unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)  # 2 x (B, H, N, d)
        scale = q.shape[-1] ** -0.5
        if self.skipped:  # one more channel lowers the logits of prefix tokens, whose probability becomes 0
            first = torch.arange(x.shape[1], device=x.device)[:, None] < self.skipped  # (N, 1)
            q, k = F.pad(q, (0, 1), value=1.0), ops.append(k, first * (-SKIPPED / scale))
        mixed = ops.attend(q, k, v, scale, learned_query=True)  # (B, H, 1, d)
        pooled = ops.linear(self.proj, mixed.transpose(1, 2).flatten(2))  # (B, 1, D)
        if self.mlp is not None and self.norm is not None:
            pooled = ops.add(pooled, self.mlp(ops.norm(self.norm, pooled), ops))
        return pooled.squeeze(1)


class ClassAttention(nn.Module):
    """Pooling by blocks that update only a class token, which attends to itself and all tokens (CaiT, section 3)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        hidden = config.hidden if config.pool.mlp_width is None else config.pool.mlp_width
        own = replace(
            config, heads=config.pool.heads or config.heads, mlp_width=hidden, talking_heads=False, positions="none",
            table=PositionTable(), rotary=Rotary(), relative_bias=False,
        )  # fmt: skip
        self.latent = nn.Parameter(torch.zeros(1, 1, config.width))
        self.blocks = nn.ModuleList(Block(own, 0.0) for _ in range(config.pool.blocks))

    def forward(self, x: Tensor, ops: Ops = PLAIN) -> Tensor:
        """Pool the tokens: (B, N, D) -> (B, D)."""
        token = ops.shift(torch.zeros_like(x[:, :1]), self.latent)
        for block in self.blocks:
            token = block(torch.cat([token, x], dim=1), None, ops, first=1)  # (B, 1 + N, D) -> (B, 1, D)
        return token.squeeze(1)
