"""Raw attention and attention rollout (Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers").

Everything here reads a `Trace`; nothing runs the model again. Attention says where information was taken from, not
why the answer came out: rollout follows it through all blocks, still without knowing which class was asked for.

Shapes: B images, H heads, N tokens, P prefix tokens, gh x gw patches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial, reduce
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from vitviz.explain.case import Case, Method
from vitviz.explain.scores import ExplainError, TokenScores
from vitviz.trace import BlockTrace, Query, Trace

Fusion = Literal["mean", "max", "min"]

# The most that one step of rollout holds of N x N matrices at once, in bytes, whatever the number of tokens: fused
# attention up to half of it, the rest for the pieces at work (`trace.CHUNK_BYTES` each).
WORK_BYTES = 64 * 2**20


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
    options: dict[str, Any] = {"block": block, "head": head, "query": query}
    if isinstance(head, int):
        check_head(trace, head)
        return TokenScores.of(trace.row(block, query)[:, head], trace, "attention", **options)
    _check_fusion(head)
    if head == "mean":
        return TokenScores.of(trace.row(block, query).mean(1), trace, "attention", **options)
    return TokenScores.of(_step_fused(trace.block(block), trace.weights(query), head), trace, "attention", **options)


def attention_heads(trace: Trace, block: int = -1, query: Query | None = None) -> tuple[TokenScores, ...]:
    """Where a token looks in one block, for every head by itself, in order: `attention` of each, at the cost of one."""
    query = trace.default_query if query is None else query
    row = trace.row(block, query)  # (B, H, N)
    return tuple(
        TokenScores.of(row[:, head], trace, "attention", block=block, head=head, query=query)
        for head in range(trace.heads)
    )


def check_head(trace: Trace, head: int) -> None:
    """Raise an `ExplainError` unless the model has such a head."""
    if not 0 <= head < trace.heads:
        raise ExplainError(f"Expected a head among 0..{trace.heads - 1} or mean, max, min; got {head}.")


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
    The row is carried as a vector from the last block to the first: O(L N²) time, three times that with
    discard above a few thousand tokens. Never more than `WORK_BYTES` of N x N matrices are held at once.

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
        if count := int(discard * flow.shape[1] ** 2):
            step = _step_discard(kept, flow, fuse, count, len(trace.prefix))
        elif fuse == "mean":
            step = _step_mean(kept, flow)
        else:
            step = _step_fused(kept, flow, fuse)
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
        with torch.autocast(eye.device.type, enabled=False):
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
    count = int(share * fused[0].numel())
    if count == 0:
        return fused
    return drop_below(fused, entry_in_order(lambda: fused.split(256, dim=1), count), prefix)


def drop_below(rows: Tensor, least: Tensor, prefix: int) -> Tensor:
    """Zero the entries of rows (B, n, N) below `least` (B,), but for the prefix's columns and each row's strongest.

    Entries equal to `least` stay: where many are equal, dropping them would drop more than was asked for.
    """
    weak = rows < least[:, None, None]
    weak[..., :prefix] = False
    weak.scatter_(2, rows.argmax(dim=2, keepdim=True), False)
    return rows.masked_fill(weak, 0.0)


def entry_in_order(pieces: Callable[[], Iterable[Tensor]], position: int) -> Tensor:
    """The entry at a position, counted from 0, of all entries in ascending order, for each image: (B,), exact.

    Floats that are not negative have the order of their bits. So counting twice (the upper bits of all entries, then
    the lower bits of those that share the upper ones) takes the place of sorting N² entries, and needs no more than
    one piece of them at a time.

    Args:
        pieces: returns the same pieces (B, n, m) each time it is called; float32, none below 0.
        position: the same for each image.
    """

    def bits() -> Iterator[Tensor]:
        return (piece.detach().view(torch.int32).flatten(1) for piece in pieces())  # (B, n * m)

    counts = reduce(torch.add, (_count(part >> LOWER, 2 ** (31 - LOWER)) for part in bits()))
    upper, position_in = _find(counts, torch.full_like(counts[:, 0], position))
    counts = reduce(torch.add, (_count(_lower(part, upper), 2**LOWER) for part in bits()))
    lower, _ = _find(counts, position_in)
    return (upper << LOWER | lower).int().view(torch.float32)


LOWER = 15  # bits counted second; 31 of a float that is not negative say something


def _lower(bits: Tensor, upper: Tensor) -> list[Tensor]:
    """Of each image the lower bits of those entries (B, m) that have the upper bits `upper` (B,)."""
    return [image[image >> LOWER == top] & 2**LOWER - 1 for image, top in zip(bits, upper, strict=True)]


def _count(digits: Iterable[Tensor], bins: int) -> Tensor:
    """How often each digit occurs in each image: (B, bins)."""
    return torch.stack([torch.bincount(image, minlength=bins) for image in digits])


def _find(counts: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
    """The bin (B,) in which the entry at `position` (B,) lies, and its position inside that bin (B,)."""
    until = counts.cumsum(1)
    found = torch.searchsorted(until, position[:, None], right=True)  # (B, 1), the first bin that ends after it
    return found[:, 0], position - (until - counts).gather(1, found)[:, 0]


def _step_mean(kept: BlockTrace, flow: Tensor) -> Tensor:
    """`flow @ mean over heads of A`: (B, N) -> (B, N)."""
    used = _used(flow)
    if len(used) == 1:  # the first step starts from one token: one row is enough
        return flow[:, used] * kept.rows(used[0], used[0] + 1).squeeze(2).mean(1)
    return kept.propagate(flow).mean(1)  # (B, H, N) -> (B, N)


def _step_fused(kept: BlockTrace, flow: Tensor, fuse: Fusion) -> Tensor:
    """`flow @ fused attention`, some rows at a time: (B, N) -> (B, N)."""
    used = _used(flow)
    total = torch.zeros_like(flow)
    for start, stop in [(used[0], used[0] + 1)] if len(used) == 1 else kept.chunks():
        total += _mix(flow[:, start:stop], fuse_heads(kept, fuse, start, stop))
    return total


def _step_discard(kept: BlockTrace, flow: Tensor, fuse: Fusion, count: int, prefix: int) -> Tensor:
    """`flow @ fused attention` without its `count` weakest entries, some rows at a time: (B, N) -> (B, N)."""
    make = partial(fuse_heads, kept, fuse)
    # Each piece is made once where all together are not too much, else three times.
    rows = cache(make) if 4 * len(flow) * flow.shape[1] ** 2 <= WORK_BYTES // 2 else make
    chunks = list(kept.chunks())
    least = entry_in_order(lambda: (rows(start, stop) for start, stop in chunks), count)  # (B,)
    used, total = set(_used(flow)), torch.zeros_like(flow)
    for start, stop in chunks:
        # Whole pieces, though one row may be enough: only the same product gives the same last bit as was counted.
        if used.isdisjoint(range(start, stop)):
            continue
        fused = drop_below(rows(start, stop), least, prefix)  # (B, n, N)
        weights = flow[:, start:stop] / fused.sum(dim=-1)  # (B, n): each row sums to 1 again
        total += _mix(weights, fused)
    return total


def _mix(weights: Tensor, rows: Tensor) -> Tensor:
    """The weighted sum of rows, in float32 also under autocast: (B, n), (B, n, N) -> (B, N)."""
    with torch.autocast(rows.device.type, enabled=False):
        return (weights[:, None] @ rows).squeeze(1)  # (B, 1, n) @ (B, n, N)


def _used(flow: Tensor) -> list[int]:
    """The tokens from which something flows in any image."""
    used: list[int] = flow.ne(0).any(dim=0).nonzero().flatten().tolist()
    return used


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


def _of_trace(ask: Callable[..., TokenScores], case: Case, **options: Any) -> Tensor:
    scores = ask(case.trace, **options)
    return torch.cat([scores.prefix, scores.patches.flatten(1)], dim=1)  # (B, P), (B, gh, gw) -> (B, N)


METHODS = (
    Method(
        name="attention",
        title="Attention",
        paper="Vaswani et al. 2017, Attention Is All You Need, NeurIPS",
        family="attention",
        function=partial(_of_trace, attention),
        about="Where a token looks in one block. It says where information was taken from, not what it was used for.",
        class_specific=False,
        signed=False,
        cost=1.0,
        options={"block": -1, "head": "mean", "query": None},
    ),
    Method(
        name="rollout",
        title="Attention rollout",
        paper="Abnar and Zuidema 2020, Quantifying Attention Flow in Transformers, ACL",
        family="attention",
        function=partial(_of_trace, rollout),
        about="Attention followed through all blocks. It is the same for every class.",
        class_specific=False,
        signed=False,
        cost=1.1,
        options={"query": None, "fuse": "mean", "discard": 0.0, "residual": 0.5, "start": 0},
    ),
)
