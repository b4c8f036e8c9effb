"""Raw attention and attention rollout (Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers").

Everything here reads a `Trace`; nothing runs the model again. Attention says where information was taken from, not
why the answer came out: rollout follows it through all blocks, still without knowing which class was asked for.

Shapes: B images, H heads, N tokens, P prefix tokens, gh x gw patches.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from vitviz.explain.scores import ExplainError, TokenScores
from vitviz.trace import BlockTrace, Query, Trace

Fusion = Literal["mean", "max", "min"]


def attention(trace: Trace, block: int = -1, head: int | Fusion = "mean", query: Query | None = None) -> TokenScores:
    """Where a token looks in one block.

    Args:
        trace: what the model left behind.
        block: counted from 0; negative from the last.
        head: one head, counted from 0, or how heads are fused: "mean", "max" or "min" (then rows are rescaled to
            sum to 1).
        query: "cls", a prefix token's name, a patch (row, column), "mean" over the patches, or a token index;
            the class token by default, the mean where there is none.

    Returns:
        Scores of a row of attention: over patches and prefix tokens they sum to 1.
    """
    query = trace.default_query if query is None else query
    kept = trace.block(block)
    options: dict[str, Any] = {"block": block, "head": head, "query": query}
    if isinstance(head, int):
        if not 0 <= head < trace.heads:
            raise ExplainError(f"Expected a head among 0..{trace.heads - 1} or mean, max, min; got {head}.")
        return TokenScores.of(trace.row(block, query)[:, head], trace, "attention", **options)
    _check_fusion(head)
    if head == "mean":
        return TokenScores.of(trace.row(block, query).mean(1), trace, "attention", **options)
    weights = trace.weights(query)  # (B, N)
    total = torch.zeros_like(weights)
    for start, stop in _needed(kept, weights):
        fused = fuse_heads(kept, head, start, stop)  # (B, n, N)
        total += torch.einsum("bn,bnm->bm", weights[:, start:stop], fused)
    return TokenScores.of(total, trace, "attention", **options)


def rollout(
    trace: Trace,
    query: Query | None = None,
    *,
    fuse: Fusion = "mean",
    discard: float = 0.0,
    residual: float = 0.5,
    start: int = 0,
) -> TokenScores:
    """Attention rollout: where the information that ends in `query` came from, through all blocks.

    One row of the product A_L ... A_start, where A = (1 - residual) x fused attention + residual x identity.
    The row is carried as a vector from the last block to the first: O(L N²) time; for mean fusion without discard no
    N x N matrix is held, otherwise one (N x N) for one image at a time.

    Args:
        trace: what the model left behind; all blocks from `start` on must have been kept.
        query: as for `attention`.
        fuse: how heads become one: "mean" (the paper), "max" or "min" (Gildenblat 2020).
        discard: share of the weakest attention entries to drop in each block, per image (Gildenblat 2020). Attention
            to prefix tokens and each row's strongest entry are never dropped.
        residual: weight of the skip connection, 0..1; 0.5 in the paper.
        start: first block to include, counted from 0.

    Returns:
        Scores that sum to 1 over patches and prefix tokens, whatever the options.
    """
    _check_rollout(trace, fuse, discard, residual, start)
    query = trace.default_query if query is None else query
    flow = trace.weights(query)  # (B, N)
    for block in range(trace.depth - 1, start - 1, -1):
        kept = trace.block(block)
        if fuse == "mean" and discard == 0.0:
            step = _step_mean(kept, flow)
        else:
            step = _step_matrix(kept, flow, fuse, discard, len(trace.prefix))
        flow = (1.0 - residual) * step + residual * flow
    options: dict[str, Any] = {"query": query, "fuse": fuse, "discard": discard, "residual": residual, "start": start}
    return TokenScores.of(flow, trace, "rollout", **options)


def rollout_matrix(
    trace: Trace, *, fuse: Fusion = "mean", discard: float = 0.0, residual: float = 0.5, start: int = 0
) -> Tensor:
    """Rollout from every token to every token: (B, N, N), rows sum to 1. O(L N³) time: for small N."""
    _check_rollout(trace, fuse, discard, residual, start)
    batch, tokens = trace.tokens.shape[:2]
    eye = torch.eye(tokens, device=trace.tokens.device)
    product = eye.expand(batch, -1, -1)
    for block in range(start, trace.depth):
        fused = fused_matrix(trace.block(block), fuse, discard, len(trace.prefix))
        product = ((1.0 - residual) * fused + residual * eye) @ product  # (B, N, N) @ (B, N, N)
    return product


def fuse_heads(kept: BlockTrace, fuse: Fusion, start: int, stop: int) -> Tensor:
    """Attention rows start..stop-1 with the heads made one: (B, n, N), each row sums to 1."""
    if fuse == "mean":
        return kept.rows(start, stop).mean(1)  # (B, H, n, N) -> (B, n, N)
    # In logarithms: where heads disagree everywhere their minimum would underflow, and the row would be empty.
    rows = kept.log_rows(start, stop)
    return (rows.amax(1) if fuse == "max" else rows.amin(1)).softmax(dim=-1)


def fused_matrix(kept: BlockTrace, fuse: Fusion, discard: float, prefix: int) -> Tensor:
    """One block's attention with its heads made one and weak entries dropped: (B, N, N), each row sums to 1."""
    fused = torch.cat([fuse_heads(kept, fuse, start, stop) for start, stop in kept.chunks()], dim=1)  # (B, N, N)
    if discard:
        fused = discard_weakest(fused, discard, prefix)
        # keepdim: dividing by the sum of the wrong axis is the classic fault of rollout code.
        fused = fused / fused.sum(dim=-1, keepdim=True)
    return fused


def discard_weakest(fused: Tensor, share: float, prefix: int) -> Tensor:
    """Zero the weakest `share` of the entries of (B, N, N), for each image by itself.

    Columns of prefix tokens and the strongest entry of each row stay, so that no row becomes empty and the class
    token is never cut off.
    """
    protected = torch.zeros_like(fused, dtype=torch.bool)
    protected[..., :prefix] = True
    protected.scatter_(2, fused.argmax(dim=2, keepdim=True), True)
    count = int(share * fused[0].numel())
    if count == 0:
        return fused
    # kthvalue, not quantile: torch.quantile refuses more than 16 million entries, and 4,097 tokens have more.
    # The smallest entry that stays. Its equals stay too: dropping ties would drop more than was asked for.
    threshold = fused.flatten(1).kthvalue(count + 1, dim=1).values  # (B,)
    return fused.masked_fill((fused < threshold[:, None, None]) & ~protected, 0.0)


def _step_mean(kept: BlockTrace, flow: Tensor) -> Tensor:
    """`flow @ mean over heads of A`: (B, N) -> (B, N)."""
    chosen = flow[0].nonzero().flatten()
    if len(chosen) == 1 and len(flow) == 1:
        index = int(chosen)  # the first step starts from one token: one row is enough
        return flow[:, index, None] * kept.rows(index, index + 1).squeeze(2).mean(1)
    return kept.propagate(flow).mean(1)  # (B, H, N) -> (B, N)


def _step_matrix(kept: BlockTrace, flow: Tensor, fuse: Fusion, discard: float, prefix: int) -> Tensor:
    """`flow @ fused`, with the fused matrix (N, N) of one image at a time: (B, N) -> (B, N)."""
    steps = []
    for index in range(len(flow)):
        one = slice(index, index + 1)
        matrix = fused_matrix(kept.image(index), fuse, discard, prefix)  # (1, N, N)
        steps.append(torch.einsum("bn,bnm->bm", flow[one], matrix))
    return torch.cat(steps)


def _needed(kept: BlockTrace, weights: Tensor) -> list[tuple[int, int]]:
    """The row chunks in which some weight is not zero; a single row where only one is."""
    chosen = weights[0].nonzero().flatten()
    if len(chosen) == 1:
        return [(int(chosen), int(chosen) + 1)]
    return list(kept.chunks())


def _check_fusion(fuse: str) -> None:
    if fuse not in get_args(Fusion):
        raise ExplainError(f"Expected heads fused by mean, max or min, or a head's number; got {fuse!r}.")


def _check_rollout(trace: Trace, fuse: str, discard: float, residual: float, start: int) -> None:
    _check_fusion(fuse)
    if not 0.0 <= discard < 1.0:
        raise ExplainError(f"discard is the share of entries to drop: expected 0 <= discard < 1, got {discard}.")
    if not 0.0 <= residual <= 1.0:
        raise ExplainError(f"residual is the weight of the skip connection: expected 0..1, got {residual}.")
    if not 0 <= start < trace.depth:
        raise ExplainError(f"start is the first block to include: expected 0..{trace.depth - 1}, got {start}.")
    if missing := sorted(set(range(start, trace.depth)) - set(trace.blocks)):
        raise ExplainError(f"Rollout needs every block from {start} on; this trace did not keep {missing}.")
