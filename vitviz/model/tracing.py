"""Run blocks and record a `Trace`, in memory that grows with the number of tokens N.

Shapes: B images, H heads, N tokens, n tokens in a piece, D width, d head width.
"""

# ruff: noqa: ARG002 - arguments of `Ops`

import torch
import torch.nn.functional as F
from torch import Tensor

from vitviz.model.edits import BlockEdit
from vitviz.model.layers import Attention, Block
from vitviz.model.ops import Explicit, Ops, attention_and_lse
from vitviz.model.positions import Angles
from vitviz.model.trace import BlockState, BlockTrace, TraceError, keeps_queries

# A trace runs an MLP in pieces of tokens, so its hidden layer takes this many bytes instead of 4 to 8 times (N, D). On
# a GPU, every piece costs several kernel launches.
PIECE_BYTES, GPU_PIECE_BYTES = 2 * 2**20, 32 * 2**20
PIECE_TOKENS = 256  # in smaller pieces, reading the weights again costs more than the smaller hidden layer saves


class Tracer(Ops):
    """Operations that record the attention of some blocks.

    Args:
        blocks: indices from 0.
        grad: compute probabilities (B, H, N, N) explicitly, in the autograd graph.

    `states` lists the recorded states of these blocks, in order.
    """

    def __init__(self, blocks: tuple[int, ...], grad: bool, edit: BlockEdit | None = None) -> None:
        super().__init__(edit)
        self.blocks, self.grad = blocks, grad
        self.states: list[BlockState] = []

    def block(self, index: int, block: Block, x: Tensor, angles: Angles | None) -> Tensor:
        """Run a block, and record its attention if it is one of `blocks`: (B, N, D) -> (B, N, D)."""
        if index not in self.blocks:
            return super().block(index, block, x, angles)
        if self.grad or (self.edit is not None and self.edit.mask is not None):
            with torch.set_grad_enabled(self.grad and torch.is_grad_enabled()):
                out: Tensor = block(x, angles, explicit := Explicit(self.edit))
            lse, attention = self._explicit_trace(explicit)
        elif block.attn.proj_w is not None:
            with torch.no_grad():
                out = block(x, angles, recorder := Recorder(self.edit))
            lse, attention = recorder.attention.lse, self._kept(recorder.attention)
        else:
            with torch.no_grad():
                mixed, lse, attention = self._attend(block, x, angles)
                out = _finish(block, x, self.edit_heads(mixed))
        self.states.append(BlockState(x, lse, Recall(block, x), angles, attention))
        return out

    def _attend(self, block: Block, x: Tensor, angles: Angles | None) -> tuple[Tensor, Tensor, BlockTrace | None]:
        """Return the heads' outputs (B, H, N, d), log-sum-exps (B, H, N), and the attention if it is kept."""
        attn = block.attn
        channels = attn.heads * (attn.head_width + (0 if attn.bias_table is None else x.shape[1]))
        kept = keeps_queries(2 * len(self.blocks) * x[..., 0].numel() * channels * x.element_size())
        if not kept and (x.device.type == "cpu" or attn.bias_table is not None):
            return *_attend_by_head(block, x, angles), None
        q, k, v = attn.project(block.enter(x), angles)
        if not kept:  # head by head, a GPU would spend most of the time on launching kernels
            return *attention_and_lse(q, k, v, attn.scale), None
        q = q * attn.scale
        mixed, lse = attention_and_lse(q, k, v)
        # The keys are a view of the qkv buffer; copying them frees the rest.
        return mixed, lse, BlockTrace(q, k.contiguous(), lse)

    def _kept(self, attention: BlockTrace) -> BlockTrace | None:
        nbytes = attention.queries.nbytes + attention.keys.nbytes
        return attention if keeps_queries(len(self.blocks) * nbytes) else None

    def _explicit_trace(self, explicit: Explicit) -> tuple[Tensor, BlockTrace | None]:
        q, k, logits, probabilities = explicit.seen.pop()
        lse = logits.detach().float().logsumexp(-1)
        return lse, BlockTrace(q, k, lse, probabilities, cut=self.edit is not None and self.edit.mask is not None)


class Recorder(Ops):
    """Compute attention as usual, and keep its queries and keys."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, *, dropout: float = 0.0, learned_query: bool = False
    ) -> Tensor:
        """Return softmax(scale * q @ k.T) @ v; see `Ops.attend`."""
        mixed, lse = attention_and_lse(q * scale, k, v)
        self.attention = BlockTrace(q * scale, k, lse)
        return mixed


class Recall:
    """Function that recomputes a block's queries and keys from its input.

    Args:
        block: the block.
        x: (B, N, D), its input.
    """

    def __init__(self, block: Block, x: Tensor) -> None:
        self._block, self._device = block, x.device.type
        self._cast = torch.get_autocast_dtype(self._device) if torch.is_autocast_enabled(self._device) else None
        self._weights = self._versions()

    def __call__(self, x: Tensor, angles: Angles | None) -> tuple[Tensor, Tensor]:
        """Return scaled queries and keys: (B, N, D) -> (B, H, N, d) each.

        Raises:
            TraceError: if the block's weights have changed.
        """
        if self._versions() != self._weights:
            raise TraceError(
                "Expected the weights of the traced run, to recompute queries and keys too large to keep, got changed "
                "weights. Trace the images again."
            )
        attn = self._block.attn
        with torch.no_grad(), torch.autocast(self._device, self._cast, enabled=self._cast is not None):
            q, k = project_part(attn, self._block.enter(x), parts=slice(0, 2))
            q, k = attn.place(q, k, angles)
        # In half precision, a scaled query would be rounded again, and its row would not sum to 1.
        return q.to(torch.promote_types(q.dtype, torch.float32)) * attn.scale, k

    def _versions(self) -> list[tuple[int, int]]:
        """Return the address and version counter of each weight."""
        parts = (self._block.norm1, self._block.attn)
        return [(weight.data_ptr(), weight._version) for part in parts for weight in part.parameters()]


def tokens_per_piece(batch: int, tokens: int, hidden: int, on_cpu: bool = True) -> int:
    """Return the number of tokens per image for each piece of about PIECE_BYTES, or GPU_PIECE_BYTES, in an MLP.

    `hidden` is the size in bytes of one token in the MLP's hidden layer.
    """
    limit = max(PIECE_BYTES if on_cpu else GPU_PIECE_BYTES, PIECE_TOKENS * hidden)
    # Pieces of equal size: a last piece of two tokens would read all weights for only two tokens.
    count = max(1, round(batch * tokens * hidden / limit))
    return -(-tokens // count)


def _step(block: Block, x: Tensor) -> int:
    if block.mlp.move is not None:  # activations move between tokens
        return x.shape[1]
    hidden = block.mlp.fc1.out_features * x.element_size()
    return tokens_per_piece(x.shape[0], x.shape[1], hidden, on_cpu=x.device.type == "cpu")


def _finish(block: Block, x: Tensor, mixed: Tensor) -> Tensor:
    """Run the second half of a block in pieces of tokens: (B, N, D), (B, H, N, d) -> (B, N, D).

    It needs memory for at most about 5 tensors (B, N, D) in addition to the result.
    """
    out, step = torch.empty_like(x), _step(block, x)
    # Views (B, n, D) and (B, H, n, d) of independent tokens.
    for into, stream, heads_piece in zip(*(t.split(step, -2) for t in (out, x, mixed)), strict=True):
        into.copy_(block.finish(stream, block.attn.merge(heads_piece)))
    return out


def _attend_by_head(block: Block, x: Tensor, angles: Angles | None) -> tuple[Tensor, Tensor]:
    """Return the heads' outputs (B, H, N, d) and log-sum-exps (B, H, N), computed head by head.

    Queries, keys, values and the normed input of all heads would take as much memory as four blocks of a trace.
    Instead, the norm is applied to pieces of x (B, N, D), once per head.
    """
    attn, step = block.attn, _step(block, x)
    mixed, sums = x.new_empty(*x.shape[:2], attn.heads, attn.head_width), []
    for head in range(attn.heads):
        pieces = [project_part(attn, block.enter(piece), heads=slice(head, head + 1)) for piece in x.split(step, dim=1)]
        q, k, v = torch.cat(pieces, dim=3)  # 3 x (B, 1, N, d)
        q, k = attn.place(q, k, angles, heads=slice(head, head + 1))
        mixed_head, lse = attention_and_lse(q, k, v, attn.scale)
        mixed[:, :, head] = mixed_head[:, 0]  # (B, N, d)
        sums.append(lse)
    return mixed.transpose(1, 2), torch.cat(sums, dim=1)


def project_part(attn: Attention, x: Tensor, parts: slice = slice(None), heads: slice = slice(None)) -> Tensor:
    """Return `parts` of queries, keys and values of some heads, unrotated: (B, N, D) -> (parts, B, h, N, d)."""
    weight, bias = (
        None if t is None else t.unflatten(0, (3, attn.heads, -1))[parts, heads]
        for t in (attn.qkv.weight, attn.qkv.bias)
    )
    projected = F.linear(x, weight.flatten(0, 2), None if bias is None else bias.flatten())
    split: Tensor = projected.unflatten(-1, weight.shape[:3])  # (B, N, parts, h, d)
    return split.permute(2, 0, 3, 1, 4)
