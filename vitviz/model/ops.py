"""Define the operations of a forward pass, which variants override.

`layers.py` and `vit.py` contain the model's arithmetic once, as calls of an `Ops` object: `ops.linear(layer, x)`,
`ops.add(x, branch)`. `Ops` is the plain forward pass. Subclasses override operations: `Explicit` computes attention
with matrix products, `ReadTokens` shortens the last block, `tracing.Tracer` records a `Trace`, and the LRP rules of
`vitviz.attribution` replace the backward pass.

Shapes: B images, H heads, N keys, n queries, D width, d head width.
"""

# ruff: noqa: ARG002 - variants use arguments that the plain operations ignore

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitviz.model.config import ModelError, ViTConfig
from vitviz.model.edits import BlockEdit
from vitviz.model.positions import Angles
from vitviz.model.trace import BlockTrace

EXPLICIT_TOKENS = 1_024  # maximum N for keeping N x N probabilities for a backward pass, see `attention`


class Ops:
    """Operations of the plain forward pass.

    Args:
        edit: edit of the attention of the current block.
    """

    def __init__(self, edit: BlockEdit | None = None) -> None:
        self.edit = edit

    def edited(self, edit: BlockEdit) -> "Ops":
        """Return the same operations with another edit."""
        changed = copy.copy(self)
        changed.edit = edit
        return changed

    def block(self, index: int, block: Any, x: Tensor, angles: Angles | None) -> Tensor:
        """Run block number `index`, a `vitviz.model.layers.Block`: (B, N, D) -> (B, N, D)."""
        y: Tensor = block(x, angles, self)
        return y

    def linear(self, layer: nn.Linear, x: Tensor) -> Tensor:
        """Apply a linear layer: (..., D) -> (..., D')."""
        y: Tensor = layer(x)
        return y

    def norm(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Apply a norm, or the identity if the model has none: (..., D) -> (..., D)."""
        y: Tensor = layer(x)
        return y

    def activation(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Apply a non-linearity to each number."""
        return function(x)

    def scale(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Multiply each channel by a number: layer scale, or a constant."""
        return function(x)

    def fixed(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Apply a linear map without parameters: a rotation, a mean over tokens."""
        return function(x)

    def append(self, x: Tensor, channels: Tensor) -> Tensor:
        """Append channels that do not depend on the input: (..., d), broadcastable to (..., m) -> (..., d + m)."""
        return self.fixed(partial(_append, channels=channels), x)

    def shift(self, x: Tensor, constant: Tensor) -> Tensor:
        """Add numbers that do not depend on the input, broadcastable to (B, N, D): (B, N, D) -> (B, N, D)."""
        return self.fixed(partial(torch.add, other=constant), x)

    def product(
        self, function: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor, *, constant: bool = False
    ) -> Tensor:
        """Apply a function that is linear in `a` and in `b`; with `constant`, `a` is the same for every image."""
        return function(a, b)

    def add(self, x: Tensor, branch: Tensor) -> Tensor:
        """Add a branch to the residual stream."""
        return x + branch

    def unit(self, x: Tensor) -> Tensor:
        """Divide each vector by its length: (..., F) -> (..., F)."""
        return F.normalize(x, dim=-1)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, *, dropout: float = 0.0, learned_query: bool = False
    ) -> Tensor:
        """Return softmax(scale * q @ k.T) @ v.

        Args:
            q: (B, H, n, d).
            k, v: (B, H, N, d).
            scale: factor of the logits.
            dropout: fraction of the probabilities to set to 0.
            learned_query: whether the queries are parameters.

        Returns:
            (B, H, n, d).
        """
        return attention(q, k, v, scale, dropout=dropout, mask=None if self.edit is None else self.edit.mask)

    def edit_heads(self, mixed: Tensor) -> Tensor:
        """Edit the outputs of the heads before the output projection: (B, H, n, d) -> (B, H, n, d)."""
        return mixed if self.edit is None else self.edit.apply(mixed)

    def edit_mlp(self, out: Tensor) -> Tensor:
        """Edit the output of the MLP: (B, N, D) -> (B, N, D)."""
        return out if self.edit is None or self.edit.mlp is None else self.edit.mlp.apply(out)


def _append(x: Tensor, channels: Tensor) -> Tensor:
    return torch.cat([x, channels.to(x).expand(*x.shape[:-1], channels.shape[-1])], dim=-1)


PLAIN = Ops()


class Record(Ops):
    """Operations that keep the outputs of heads, (B, H, N, d), and of MLPs, (B, N, D), in order of execution."""

    def __init__(self) -> None:
        super().__init__()
        self.heads: list[Tensor] = []
        self.mlps: list[Tensor] = []

    def edit_heads(self, mixed: Tensor) -> Tensor:
        """Record the outputs of the heads."""
        self.heads.append(mixed)
        return mixed

    def edit_mlp(self, out: Tensor) -> Tensor:
        """Record the output of the MLP."""
        self.mlps.append(out)
        return out


class ReadTokens(Ops):
    """Operations that compute only the tokens read by the classifiers in the last block.

    If the classifier reads the class token, the last block needs keys and values of all tokens, but applies the output
    projection and MLP to only one or two. Logits and gradients equal those of the plain pass up to rounding; the
    patches' final tokens are not computed.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.last = config.depth - 1
        # Number of first tokens; None for all.
        self.count = 1 + config.distillation_token if config.pooling == "cls" else None

    def block(self, index: int, block: Any, x: Tensor, angles: Angles | None) -> Tensor:
        """Run a block, the last one only for the first tokens: (B, N, D) -> (B, n, D)."""
        y: Tensor = block(x, angles, self, self.count if index == self.last else None)
        return y


class Attended(NamedTuple):
    """Scaled queries (B, H, n, d), keys (B, H, N, d), logits and probabilities (B, H, n, N) of one attention."""

    queries: Tensor
    keys: Tensor
    logits: Tensor
    probabilities: Tensor


class Explicit(Ops):
    """Operations that compute attention with differentiable matrix products.

    `seen` lists the inputs and probabilities of each attention, in order of execution.
    """

    def __init__(self, edit: BlockEdit | None = None) -> None:
        super().__init__(edit)
        self.seen: list[Attended] = []

    def softmax(self, logits: Tensor) -> Tensor:
        """Turn logits into probabilities over the last axis."""
        return logits.softmax(dim=-1)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, *, dropout: float = 0.0, learned_query: bool = False
    ) -> Tensor:
        """Return softmax(scale * q @ k.T) @ v; see `Ops.attend`. Active dropout raises an error."""
        if dropout:
            raise ModelError(f"Expected no dropout in explicit attention, got {dropout}. Call model.eval().")
        q = self.scale(lambda x: x * scale, q)
        logits = self.product(torch.matmul, q, k.mT, constant=learned_query)  # (B, H, n, d) @ (B, H, d, N)
        if self.edit is not None and self.edit.mask is not None:
            logits = logits.masked_fill(~self.edit.mask, -torch.inf)
        probabilities = self.softmax(logits)
        if torch.is_grad_enabled() and not probabilities.requires_grad:
            probabilities.requires_grad_()  # frozen weights: the graph starts here
        self.seen.append(Attended(q, k, logits, probabilities))
        return self.product(torch.matmul, probabilities, v)  # (B, H, n, N) @ (B, H, N, d) -> (B, H, n, d)


def attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, *, dropout: float = 0.0, mask: Tensor | None = None
) -> Tensor:
    """Compute `Ops.attend` with PyTorch's fused attention, except where its backward pass is slow.

    On the CPU, its backward pass in bfloat16 takes ten times as long as matrix products at 32 tokens and 1.7 times as
    long at 1,025 (torch 2.13; see benchmarks/README.md); float16 is not affected. Matrix products keep the N x N
    probabilities for the backward pass. `mask` (1 or B, 1 or H, n, N) is false where an edge is cut.
    """
    trains = torch.is_grad_enabled() and v.requires_grad and mask is None
    if trains and v.device.type == "cpu" and v.dtype == torch.bfloat16 and v.shape[2] <= EXPLICIT_TOKENS:
        probabilities = ((q * scale) @ k.mT).softmax(dim=-1)  # (B, H, n, d) @ (B, H, d, N) -> (B, H, n, N)
        return F.dropout(probabilities, dropout) @ v  # (B, H, n, N) @ (B, H, N, d) -> (B, H, n, d)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)


def attention_and_lse(q: Tensor, k: Tensor, v: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return softmax(scale * q @ k.T) @ v and the log-sum-exp of each row of logits, without an N x N matrix.

    The first is (B, H, N, d), in the input's precision; the second is (B, H, N), in float32, or float64 for float64.
    """
    if q.device.type == "cpu":
        # The CPU kernel behind scaled_dot_product_attention computes the row sums anyway.
        padded = F.pad(v, (0, q.shape[-1] - v.shape[-1]))  # the kernel requires values of the queries' width
        mixed, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, padded, scale=scale)
        return mixed[..., : v.shape[-1]], lse
    if q.device.type == "cuda" and q.dtype != torch.float64 and not (q.shape[-1] | v.shape[-1]) % 8:
        # This kernel of GPUs returns the row sums too, for widths that are multiples of 8.
        mixed, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True, scale=scale)
        return mixed, lse[..., : q.shape[2]]
    mixed = F.scaled_dot_product_attention(q, k, v, scale=scale)
    # Elsewhere the kernel depends on the device and on d. The row sums are therefore computed separately, in chunks,
    # from the logits that `BlockTrace.rows` uses, even under autocast.
    zeros = torch.zeros(q.shape[:-1], device=q.device)
    rows = BlockTrace(q.to(torch.promote_types(q.dtype, torch.float32)) * scale, k, zeros)
    return mixed, torch.cat([rows.logits(*chunk).logsumexp(-1) for chunk in rows.chunks()], dim=2)
