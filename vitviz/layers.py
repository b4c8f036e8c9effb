"""The parts of a Vision Transformer: patch embedding, attention, MLP, block.

Shapes: B images, H heads, N tokens, D width, d head width. Parameter names follow timm's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitviz.config import ViTConfig
from vitviz.positions import rotate
from vitviz.trace import BlockTrace

Angles = tuple[Tensor, Tensor]


class PatchEmbed(nn.Module):
    """Cut the image into patches and project each to a token: one strided convolution."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        side = config.patch_size
        self.proj = nn.Conv2d(config.channels, config.width, kernel_size=side, stride=side, bias=config.patch_bias)

    def forward(self, images: Tensor) -> Tensor:
        """(B, channels, H, W) -> (B, gh * gw, D)."""
        features = self.proj(images)  # (B, D, gh, gw)
        tokens: Tensor = features.flatten(2).transpose(1, 2)  # (B, D, gh * gw) -> (B, gh * gw, D)
        return tokens


class Attention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads, self.head_width = config.heads, config.head_size
        inner = self.heads * self.head_width
        self.qkv = nn.Linear(config.width, 3 * inner, bias=config.qkv_bias)
        self.q_norm = nn.LayerNorm(self.head_width, eps=config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(self.head_width, eps=config.norm_eps) if config.qk_norm else nn.Identity()
        self.proj = nn.Linear(inner, config.width)
        self.attention_dropout = config.attention_dropout
        self.dropout = nn.Dropout(config.dropout)

    def project(self, x: Tensor, angles: Angles | None) -> tuple[Tensor, Tensor, Tensor]:
        """(B, N, D) -> queries, keys, values, each (B, H, N, d); the queries carry the scale d ** -0.5."""
        batch, tokens, _ = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.heads, self.head_width)  # (B, N, 3 * H * d) -> (B, N, 3, H, d)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # -> 3 x (B, H, N, d)
        q, k = self.q_norm(q), self.k_norm(k)
        if angles is not None:
            q, k = rotate(q, angles), rotate(k, angles)
        return q * self.head_width**-0.5, k, v

    def merge(self, mixed: Tensor) -> Tensor:
        """Heads side by side, then the output projection: (B, H, N, d) -> (B, N, D)."""
        out: Tensor = self.dropout(self.proj(mixed.transpose(1, 2).flatten(2)))  # (B, N, H * d) -> (B, N, D)
        return out

    def forward(self, x: Tensor, angles: Angles | None = None) -> Tensor:
        """(B, N, D) -> (B, N, D), by PyTorch's fused attention; `angles` turn queries and keys (rotary positions)."""
        q, k, v = self.project(x, angles)
        rate = self.attention_dropout if self.training else 0.0
        return self.merge(F.scaled_dot_product_attention(q, k, v, dropout_p=rate, scale=1.0))

    def trace(self, x: Tensor, angles: Angles | None, grad: bool) -> tuple[Tensor, BlockTrace]:
        """As `forward`, and what it attended to. With `grad` the probabilities are explicit and differentiable."""
        q, k, v = self.project(x, angles)
        if grad:
            logits = q @ k.mT  # (B, H, N, d) @ (B, H, d, N) -> (B, H, N, N)
            probabilities = logits.softmax(dim=-1)
            if not probabilities.requires_grad:
                probabilities.requires_grad_()  # frozen weights: the graph starts here
            mixed = probabilities @ v  # (B, H, N, N) @ (B, H, N, d) -> (B, H, N, d)
            return self.merge(mixed), BlockTrace(q, k, logits.detach().float().logsumexp(-1), probabilities)
        mixed, lse = fused_attention(q, k, v)
        # The keys are a view into the block's qkv buffer: a copy lets the rest of that buffer go.
        return self.merge(mixed), BlockTrace(q, k.contiguous(), lse)


def fused_attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(q @ k.T) @ v and the log-sum-exp of each row of q @ k.T, without an N x N matrix.

    Args:
        q, k, v: (B, H, N, d), the scale already in `q`.

    Returns:
        (B, H, N, d) in the input's precision, and (B, H, N) in float32.
    """
    if q.device.type == "cpu":
        # The CPU kernel behind scaled_dot_product_attention; it has the row sums at hand, so keeping them is free.
        mixed, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, scale=1.0)
        return mixed, lse.float()  # float64 for a float64 model
    mixed = F.scaled_dot_product_attention(q, k, v, scale=1.0)
    # Elsewhere which kernel runs depends on the device and on d, so the row sums are computed in pieces beside it.
    blank = torch.zeros(q.shape[:-1], device=q.device, dtype=torch.float32)
    pieces = BlockTrace(q, k, blank)
    lse = torch.cat(
        [(q[:, :, start:stop].float() @ k.float().mT).logsumexp(-1) for start, stop in pieces.chunks()], dim=2
    )
    return mixed, lse


def quick_gelu(x: Tensor) -> Tensor:
    """The sigmoid approximation of GELU that OpenAI's CLIP was trained with."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": quick_gelu,
}


class MLP(nn.Module):
    """Two linear layers with a non-linearity between them; for "swiglu" a gated one (Shazeer 2020).

    The gate and what it gates are the two halves of `fc1`.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.gated = config.mlp == "swiglu"
        self.fc1 = nn.Linear(config.width, 2 * config.hidden if self.gated else config.hidden, bias=config.mlp_bias)
        self.fc2 = nn.Linear(config.hidden, config.width, bias=config.mlp_bias)
        self.activation = F.silu if self.gated else ACTIVATIONS[config.activation]
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        hidden = self.fc1(x)
        if self.gated:
            gate, passed = hidden.chunk(2, dim=-1)
            hidden = self.activation(gate) * passed
        else:
            hidden = self.activation(hidden)
        out: Tensor = self.dropout(self.fc2(self.dropout(hidden)))
        return out


class LayerScale(nn.Module):
    """A learned scale for each channel (Touvron et al. 2021, "Going deeper with Image Transformers")."""

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), start))

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        return x * self.gamma


class DropPath(nn.Module):
    """Stochastic depth: drop a whole residual branch for some images (Huang et al. 2016)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, D); kept branches grow by 1 / (1 - rate), so that the mean stays."""
        if not self.training or self.rate == 0.0:
            return x
        keep = torch.rand(x.shape[0], 1, 1, device=x.device) >= self.rate  # (B, 1, 1)
        return x * keep / (1.0 - self.rate)


class Block(nn.Module):
    """A pre-norm Transformer block: attention and MLP, each added to the stream that passes by."""

    def __init__(self, config: ViTConfig, path_dropout: float) -> None:
        super().__init__()
        scale = config.layer_scale
        self.norm1 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.attn = Attention(config)
        self.ls1 = nn.Identity() if scale is None else LayerScale(config.width, scale)
        self.norm2 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.mlp = MLP(config)
        self.ls2 = nn.Identity() if scale is None else LayerScale(config.width, scale)
        self.drop_path = DropPath(path_dropout)

    def add(self, x: Tensor, attended: Tensor) -> Tensor:
        """The two residual sums, given what attention returned."""
        x = x + self.drop_path(self.ls1(attended))
        out: Tensor = x + self.drop_path(self.ls2(self.mlp(self.norm2(x))))
        return out

    def forward(self, x: Tensor, angles: Angles | None = None) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        return self.add(x, self.attn(self.norm1(x), angles))

    def trace(self, x: Tensor, angles: Angles | None, grad: bool) -> tuple[Tensor, BlockTrace]:
        """As `forward`, and what was attended to."""
        attended, kept = self.attn.trace(self.norm1(x), angles, grad)
        return self.add(x, attended), kept


class AttentionPool(nn.Module):
    """Pooling by one learned query that attends to all tokens, and an MLP (Zhai et al. 2022; SigLIP)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        width, self.heads = config.width, config.heads
        self.latent = nn.Parameter(torch.zeros(1, 1, width))
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)
        self.proj = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) -> (B, D)."""
        q = self.q(self.latent.expand(len(x), -1, -1)).unflatten(2, (self.heads, -1)).transpose(1, 2)  # (B, H, 1, d)
        k, v = self.kv(x).unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)  # 2 x (B, H, N, d)
        mixed = F.scaled_dot_product_attention(q, k, v)  # (B, H, 1, d)
        pooled = self.proj(mixed.transpose(1, 2).flatten(2))  # (B, 1, H * d) -> (B, 1, D)
        out: Tensor = (pooled + self.mlp(self.norm(pooled))).squeeze(1)
        return out
