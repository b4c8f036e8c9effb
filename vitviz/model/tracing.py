"""Run blocks and keep what a `Trace` needs of each, in memory that grows with the number of tokens N.

Shapes: B images, H heads, N tokens, n of them, D width, d head width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitviz.model.edits import BlockEdit
from vitviz.model.layers import Attention, Block
from vitviz.model.ops import Explicit, Ops, attention_and_lse
from vitviz.model.positions import Angles
from vitviz.model.trace import BlockTrace, Kept, TraceError, keeps_queries

# A trace runs an MLP on some tokens at a time: its hidden layer then takes so many bytes at once, not 4 to 8 (N, D).
PIECE_BYTES = 2 * 2**20
PIECE_TOKENS = 256  # below so many, reading the weights anew costs more than the smaller hidden layer saves


class Tracer(Ops):
    """Operations that keep the attention of some blocks.

    Args:
        blocks: which ones, counted from 0.
        grad: compute probabilities (B, H, N, N) explicitly, in the autograd graph.

    `kept` lists what was kept of each of them, in order.
    """

    def __init__(self, blocks: tuple[int, ...], grad: bool, edit: BlockEdit | None = None) -> None:
        super().__init__(edit)
        self.blocks, self.grad = blocks, grad
        self.kept: list[Kept] = []

    def block(self, index: int, block: Block, x: Tensor, angles: Angles | None) -> Tensor:
        """Run a block, and keep its attention if it is one of `blocks`: (B, N, D) -> (B, N, D)."""
        if index not in self.blocks:
            return super().block(index, block, x, angles)
        if self.grad:
            explicit = Explicit(self.edit)
            out: Tensor = block(x, angles, explicit)
            lse, attention = self._explicit_trace(explicit)
        else:
            with torch.no_grad():
                mixed, lse, attention = self._attend(block, x, angles)
                out = _finish(block, x, self.heads(mixed))
        self.kept.append(Kept(x, lse, Recall(block, x), angles, attention))
        return out

    def _attend(self, block: Block, x: Tensor, angles: Angles | None) -> tuple[Tensor, Tensor, BlockTrace | None]:
        """Return the heads' outputs (B, H, N, d), log-sum-exps (B, H, N), and the attention where it is kept."""
        attn = block.attn
        if self.edit is not None and self.edit.mask is not None:
            explicit = Explicit(self.edit)
            mixed = explicit.attend(*attn.project(block.norm1(x), angles), attn.scale)
            return mixed, *self._explicit_trace(explicit)
        if not keeps_queries(2 * len(self.blocks) * x[..., 0].numel() * attn.proj.in_features * x.element_size()):
            return *_attend_by_head(block, x, angles), None
        q, k, v = attn.project(block.norm1(x), angles)
        q = q * attn.scale
        mixed, lse = attention_and_lse(q, k, v)
        # The keys are a view of the block's qkv buffer: a copy frees the rest of it.
        return mixed, lse, BlockTrace(q, k.contiguous(), lse)

    def _explicit_trace(self, explicit: Explicit) -> tuple[Tensor, BlockTrace | None]:
        q, k, logits, probabilities = explicit.seen.pop()
        lse = logits.detach().float().logsumexp(-1)
        return lse, BlockTrace(q, k, lse, probabilities, cut=self.edit is not None and self.edit.mask is not None)


class Recall:
    """Function that computes a block's queries and keys again from what entered it, as the block did in this run.

    Args:
        block: which ran.
        x: (B, N, D), what entered it.
    """

    def __init__(self, block: Block, x: Tensor) -> None:
        self._block, self._device = block, x.device.type
        self._cast = torch.get_autocast_dtype(self._device) if torch.is_autocast_enabled(self._device) else None
        self._weights = self._versions()

    def __call__(self, x: Tensor, angles: Angles | None) -> tuple[Tensor, Tensor]:
        """Return queries with the scale, and keys: (B, N, D) -> (B, H, N, d) each.

        Raises:
            TraceError: if the block's weights were changed.
        """
        if self._versions() != self._weights:
            raise TraceError(
                "Expected the weights that the trace was taken with, got changed ones; at this size queries and keys "
                "are computed from them again. Take the trace again."
            )
        attn = self._block.attn
        with torch.no_grad(), torch.autocast(self._device, self._cast, enabled=self._cast is not None):
            q, k = project_part(attn, self._block.norm1(x), parts=slice(0, 2))
            q, k = attn.place(q, k, angles)
        # In half precision a scaled query would be rounded again, and its row would not sum to 1.
        return q.to(torch.promote_types(q.dtype, torch.float32)) * attn.scale, k

    def _versions(self) -> list[tuple[int, int]]:
        """Return where each weight lies in memory, and how often it was written to."""
        parts = (self._block.norm1, self._block.attn)
        return [(weight.data_ptr(), weight._version) for part in parts for weight in part.parameters()]


def tokens_per_piece(batch: int, tokens: int, hidden: int) -> int:
    """Return how many of N tokens of each of B images go through an MLP at a time: pieces of about PIECE_BYTES.

    `hidden` are the bytes that one token takes in the hidden layer of the MLP.
    """
    most = max(PIECE_BYTES, PIECE_TOKENS * hidden)
    # Rounded to the nearest count and divided evenly: a last piece of two tokens would read all weights for them.
    count = max(1, round(batch * tokens * hidden / most))
    return -(-tokens // count)


def _step(block: Block, x: Tensor) -> int:
    return tokens_per_piece(x.shape[0], x.shape[1], block.mlp.fc1.out_features * x.element_size())


def _finish(block: Block, x: Tensor, mixed: Tensor) -> Tensor:
    """Run the second half of a block, some tokens at a time: (B, N, D), (B, H, N, d) -> (B, N, D).

    No more than about 5 (B, N, D) are held at once beside the result.
    """
    out, step = torch.empty_like(x), _step(block, x)
    # Views (B, n, D) and (B, H, n, d) of some tokens: none needs another one.
    for into, stream, some in zip(*(t.split(step, -2) for t in (out, x, mixed)), strict=True):
        into.copy_(block.finish(stream, block.attn.merge(some)))
    return out


def _attend_by_head(block: Block, x: Tensor, angles: Angles | None) -> tuple[Tensor, Tensor]:
    """Return the heads' outputs (B, H, N, d) and log-sum-exps (B, H, N), one head after the other.

    Queries, keys, values and the normed input of all heads would take as much as four blocks of a trace keep: the norm
    is applied to some tokens of x (B, N, D) at a time, anew for each head.
    """
    attn, step = block.attn, _step(block, x)
    mixed, sums = x.new_empty(*x.shape[:2], attn.heads, attn.head_width), []
    for head in range(attn.heads):
        pieces = [project_part(attn, block.norm1(some), heads=slice(head, head + 1)) for some in x.split(step, dim=1)]
        q, k, v = torch.cat(pieces, dim=3)  # 3 x (B, 1, N, d)
        q, k = attn.place(q, k, angles)
        one, lse = attention_and_lse(q, k, v, attn.scale)
        mixed[:, :, head] = one[:, 0]  # (B, N, d)
        sums.append(lse)
    return mixed.transpose(1, 2), torch.cat(sums, dim=1)


def project_part(attn: Attention, x: Tensor, parts: slice = slice(None), heads: slice = slice(None)) -> Tensor:
    """Return some of queries, keys and values of some heads, not placed yet: (B, N, D) -> (parts, B, h, N, d)."""
    weight, bias = (
        None if t is None else t.unflatten(0, (3, attn.heads, -1))[parts, heads]
        for t in (attn.qkv.weight, attn.qkv.bias)
    )
    made = F.linear(x, weight.flatten(0, 2), None if bias is None else bias.flatten())
    split: Tensor = made.unflatten(-1, weight.shape[:3])  # (B, N, parts, h, d)
    return split.permute(2, 0, 3, 1, 4)
