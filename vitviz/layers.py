"""The parts of a Vision Transformer: patch embedding, attention, MLP, block.

Shapes: B images, H heads, N tokens, D width, d head width. Parameter names follow timm's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitviz.config import ViTConfig
from vitviz.edits import Angles, BlockEdit, CutTrace
from vitviz.positions import rotate
from vitviz.trace import BlockTrace, Kept, TraceError

# A trace runs an MLP on some tokens at a time: its wide middle then takes so many bytes at once, not 4 to 8 (N, D).
PIECE_BYTES = 2 * 2**20
PIECE_TOKENS = 256  # below so many, reading the weights anew costs more than the smaller middle saves
EXPLICIT_TOKENS = 1_024  # the most whose N x N probabilities are kept for a backward pass, see `mix`


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
        self.scale = self.head_width**-0.5  # of the logits
        inner = self.heads * self.head_width
        self.qkv = nn.Linear(config.width, 3 * inner, bias=config.qkv_bias)
        self.q_norm = nn.LayerNorm(self.head_width, eps=config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(self.head_width, eps=config.norm_eps) if config.qk_norm else nn.Identity()
        self.proj = nn.Linear(inner, config.width)
        self.attention_dropout = config.attention_dropout
        self.dropout = nn.Dropout(config.dropout)

    def project(self, x: Tensor, angles: Angles | None) -> tuple[Tensor, Tensor, Tensor]:
        """(B, N, D) -> queries, keys, values, each (B, H, N, d), before the scale of the logits."""
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, self.head_width))  # (B, N, 3 * H * d) -> (B, N, 3, H, d)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # -> 3 x (B, H, N, d)
        return *self._turn(q, k, angles), v

    def recall(self, x: Tensor, angles: Angles | None) -> tuple[Tensor, Tensor]:
        """Queries, with the scale, and keys: what `attend` reports, without the work for values and output."""
        inner = 2 * self.heads * self.head_width  # the rows of the weight for queries and keys
        bias = None if self.qkv.bias is None else self.qkv.bias[:inner]
        qk = F.linear(x, self.qkv.weight[:inner], bias).unflatten(-1, (2, self.heads, self.head_width))
        q, k = qk.permute(2, 0, 3, 1, 4)  # (B, N, 2, H, d) -> 2 x (B, H, N, d)
        q, k = self._turn(q, k, angles)
        return q.float() * self.scale, k  # in half precision a scaled query would be rounded again, and fit no row sum

    def _turn(self, q: Tensor, k: Tensor, angles: Angles | None) -> tuple[Tensor, Tensor]:
        """Norm and rotation of queries and keys, each (B, H, N, d)."""
        q, k = self.q_norm(q), self.k_norm(k)
        return (q, k) if angles is None else (rotate(q, angles), rotate(k, angles))

    def merge(self, mixed: Tensor) -> Tensor:
        """Heads side by side, then the output projection: (B, H, N, d) -> (B, N, D)."""
        out: Tensor = self.dropout(self.proj(mixed.transpose(1, 2).flatten(2)))  # (B, N, H * d) -> (B, N, D)
        return out

    def forward(self, x: Tensor, angles: Angles | None = None, edit: BlockEdit | None = None) -> Tensor:
        """(B, N, D) -> (B, N, D), by PyTorch's fused attention; `angles` turn queries and keys (rotary positions)."""
        q, k, v = self.project(x, angles)
        rate = self.attention_dropout if self.training else 0.0
        mask = None if edit is None else edit.mask
        mixed = mix(q, k, v, self.scale, dropout=rate, mask=mask)
        return self.merge(mixed if edit is None else edit.heads(mixed))

    def attend(self, x: Tensor, angles: Angles | None) -> tuple[Tensor, BlockTrace]:
        """What `merge` takes (B, H, N, d), and the queries and keys that it came from."""
        q, k, v = self.project(x, angles)
        q = q * self.scale
        mixed, lse = fused_attention(q, k, v)
        # The keys are a view into the block's qkv buffer: a copy lets the rest of that buffer go.
        return mixed, BlockTrace(q, k.contiguous(), lse)

    def attend_by_head(self, x: Tensor, norm: nn.Module, step: int, angles: Angles | None) -> tuple[Tensor, Tensor]:
        """What `merge` takes (B, H, N, d), and the log-sum-exp of each row (B, H, N), one head after the other.

        Queries, keys, values and the normed input of all heads would take as much as four blocks of a trace keep:
        `norm` is applied to `step` tokens of x (B, N, D) at a time, anew for each head.
        """
        weight = self.qkv.weight.unflatten(0, (3, self.heads, -1))  # (3 * H * d, D) -> (3, H, d, D)
        bias = None if self.qkv.bias is None else self.qkv.bias.unflatten(0, (3, self.heads, -1))
        batch, tokens = x.shape[:2]
        mixed, sums = x.new_empty(batch, tokens, self.heads, self.head_width), []
        for head in range(self.heads):
            w, b = weight[:, head].flatten(0, 1), None if bias is None else bias[:, head].flatten()
            qkv = torch.cat([F.linear(norm(piece), w, b) for piece in x.split(step, dim=1)], dim=1)  # (B, N, 3 * d)
            q, k, v = qkv[:, None].chunk(3, dim=-1)  # 3 x (B, 1, N, d)
            q, k = self._turn(q, k, angles)
            one, lse = fused_attention(q, k, v, self.scale)
            mixed[:, :, head] = one[:, 0]  # (B, N, d)
            sums.append(lse)
        return mixed.transpose(1, 2), torch.cat(sums, dim=1)

    def attend_explicitly(
        self, x: Tensor, angles: Angles | None, mask: Tensor | None = None
    ) -> tuple[Tensor, BlockTrace]:
        """What `merge` takes (B, H, N, d), computed from probabilities that are kept, and through which gradients flow.

        Where `mask` (1 or B, 1 or H, N, N) is false, an edge is cut.
        """
        q, k, v = self.project(x, angles)
        q = q * self.scale
        logits = q @ k.mT  # (B, H, N, d) @ (B, H, d, N) -> (B, H, N, N)
        if mask is not None:
            logits = logits.masked_fill(~mask, -torch.inf)
        probabilities = logits.softmax(dim=-1)
        if torch.is_grad_enabled() and not probabilities.requires_grad:
            probabilities.requires_grad_()  # frozen weights: the graph starts here
        made = BlockTrace if mask is None else CutTrace
        seen = made(q, k, logits.detach().float().logsumexp(-1), probabilities)
        return probabilities @ v, seen  # (B, H, N, N) @ (B, H, N, d) -> (B, H, N, d)


def mix(q: Tensor, k: Tensor, v: Tensor, scale: float, *, dropout: float = 0.0, mask: Tensor | None = None) -> Tensor:
    """softmax(scale * q @ k.T) @ v: by PyTorch's fused attention, except where that is slow to learn from.

    On the CPU its backward pass in bfloat16 takes ten times as long as plain matrix products at 32 tokens and 1.7 times
    at 1,025 (torch 2.13; see benchmarks/README.md), in float16 no longer than they. The products keep the N x N
    probabilities meanwhile.

    Args:
        q: (B, H, n, d).
        k, v: (B, H, N, d).
        scale: what the logits are multiplied by.
        dropout: the share of the probabilities that become 0.
        mask: (1 or B, 1 or H, n, N); false where an edge is cut.

    Returns:
        (B, H, n, d).
    """
    learns = torch.is_grad_enabled() and v.requires_grad and mask is None
    if learns and v.device.type == "cpu" and v.dtype == torch.bfloat16 and v.shape[2] <= EXPLICIT_TOKENS:
        probabilities = ((q * scale) @ k.mT).softmax(dim=-1)  # (B, H, n, d) @ (B, H, d, N) -> (B, H, n, N)
        return F.dropout(probabilities, dropout) @ v  # (B, H, n, N) @ (B, H, N, d) -> (B, H, n, d)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)


def fused_attention(q: Tensor, k: Tensor, v: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """softmax(scale * q @ k.T) @ v and the log-sum-exp of each row of scale * q @ k.T, without an N x N matrix.

    Args:
        q, k, v: (B, H, N, d).
        scale: what the logits are multiplied by.

    Returns:
        (B, H, N, d) in the input's precision, and (B, H, N) in float32.
    """
    if q.device.type == "cpu":
        # The CPU kernel behind scaled_dot_product_attention; it has the row sums at hand, so keeping them is free.
        mixed, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, scale=scale)
        return mixed, lse.float()  # float64 for a float64 model
    mixed = F.scaled_dot_product_attention(q, k, v, scale=scale)
    # Elsewhere which kernel runs depends on the device and on d, so the row sums are computed in pieces beside it.
    blank = torch.zeros(q.shape[:-1], device=q.device, dtype=torch.float32)
    pieces = BlockTrace(
        q.float() * scale, k, blank
    )  # its logits are those that rows will be made of, also under autocast
    return mixed, torch.cat([pieces.log_rows(*piece).logsumexp(-1) for piece in pieces.chunks()], dim=2)


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


def pieces_of(batch: int, tokens: int, middle: int) -> int:
    """How many tokens of each image go through an MLP at a time: pieces of one length, of about PIECE_BYTES.

    Args:
        batch, tokens: B and N.
        middle: bytes that one token takes in the middle of the MLP.
    """
    most = max(PIECE_BYTES, PIECE_TOKENS * middle)
    # Rounded to the nearest count and shared out evenly: a last piece of two tokens would read all weights for them.
    count = max(1, round(batch * tokens * middle / most))
    return -(-tokens // count)


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

    def forward(self, x: Tensor, angles: Angles | None = None, edit: BlockEdit | None = None) -> Tensor:
        """(B, N, D) -> (B, N, D)."""
        return self._add_mlp(self._add(x, self.attn(self.norm1(x), angles, edit)))

    def trace(self, x: Tensor, angles: Angles | None, keep: bool, edit: BlockEdit | None = None) -> tuple[Tensor, Kept]:
        """As `forward`, without a gradient, and what was attended to.

        `keep` says whether queries and keys stay or are made again. No more than about 5 (B, N, D) are held at once
        beside the result, which is why the branches are not `forward`'s; where edges are cut, (B, H, N, N) too.
        """
        step = pieces_of(x.shape[0], x.shape[1], self.mlp.fc1.out_features * x.element_size())
        made: BlockTrace | None = None
        if edit is not None and edit.mask is not None:
            mixed, made = self.attn.attend_explicitly(self.norm1(x), angles, edit.mask)
            lse = made.lse
        elif keep:
            mixed, made = self.attn.attend(self.norm1(x), angles)
            lse = made.lse
        else:
            mixed, lse = self.attn.attend_by_head(x, self.norm1, step, angles)
        if edit is not None:
            mixed = edit.heads(mixed)
        out = torch.empty_like(x)
        # Views (B, n, D) and (B, H, n, d) of some tokens: from here on none needs another.
        for into, passed, some in zip(*(t.split(step, -2) for t in (out, x, mixed)), strict=True):
            into.copy_(self._add_mlp(self._add(passed, self.attn.merge(some))))
        return out, Kept(x, lse, Recall(self, angles, x), made)

    def trace_grad(self, x: Tensor, angles: Angles | None, edit: BlockEdit | None = None) -> tuple[Tensor, Kept]:
        """As `forward`, with the probabilities in the graph."""
        mixed, seen = self.attn.attend_explicitly(self.norm1(x), angles, None if edit is None else edit.mask)
        kept = Kept(x, seen.lse, Recall(self, angles, x), seen)
        return self._add_mlp(self._add(x, self.attn.merge(mixed if edit is None else edit.heads(mixed)))), kept

    def _add(self, x: Tensor, attended: Tensor) -> Tensor:
        out: Tensor = x + self.drop_path(self.ls1(attended))
        return out

    def _add_mlp(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.drop_path(self.ls2(self.mlp(self.norm2(x))))
        return out


class Recall:
    """Makes a block's queries and keys again from what entered it, as the block did then: (B, N, D) -> q, k."""

    def __init__(self, block: Block, angles: Angles | None, x: Tensor) -> None:
        self._block, self._angles = block, angles
        self._device = x.device.type
        self._cast = torch.get_autocast_dtype(self._device) if torch.is_autocast_enabled(self._device) else None
        self._weights = self._versions()

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, N, D) -> queries, keys, each (B, H, N, d), the queries with the scale."""
        if self._versions() != self._weights:
            raise TraceError(
                "The model's weights were changed after this trace was taken, and at this size queries and keys are "
                "made from them. Take the trace again."
            )
        with torch.no_grad(), torch.autocast(self._device, self._cast, enabled=self._cast is not None):
            return self._block.attn.recall(self._block.norm1(x), self._angles)

    def image(self, index: int) -> Recall:
        """The same for one image of the batch: where each has patches of its own, so are their rotations."""
        one = copy.copy(self)
        if self._angles is not None and self._angles[0].ndim == 4:  # (B, 1, K, d), see `vitviz.positions.rotate`
            cos, sin = self._angles
            one._angles = cos[index : index + 1], sin[index : index + 1]
        return one

    def _versions(self) -> list[tuple[int, int]]:
        """Where each weight lies and how often it was written to."""
        parts = (self._block.norm1, self._block.attn)
        return [(weight.data_ptr(), weight._version) for part in parts for weight in part.parameters()]


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
        q, k, v = self._project(x)
        return self._finish(mix(q, k, v, q.shape[-1] ** -0.5))  # (B, H, 1, d)

    def attend(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """As `forward`, with the probabilities in the graph: (B, N, D) -> (B, H, 1, N) and what is pooled (B, D)."""
        q, k, v = self._project(x)
        probabilities = (q @ k.mT * q.shape[-1] ** -0.5).softmax(dim=-1)  # (B, H, 1, d) @ (B, H, d, N)
        if torch.is_grad_enabled() and not probabilities.requires_grad:
            probabilities.requires_grad_()  # frozen weights: the graph starts here
        return probabilities, self._finish(probabilities @ v)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The query (B, H, 1, d), keys and values (B, H, N, d)."""
        q = self.q(self.latent.expand(len(x), -1, -1)).unflatten(2, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(x).unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)  # 2 x (B, H, N, d)
        return q, k, v

    def _finish(self, mixed: Tensor) -> Tensor:
        pooled = self.proj(mixed.transpose(1, 2).flatten(2))  # (B, H, 1, d) -> (B, 1, D)
        out: Tensor = (pooled + self.mlp(self.norm(pooled))).squeeze(1)
        return out
