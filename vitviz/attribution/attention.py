"""Attribute by raw attention and by attention rollout (Abnar & Zuidema 2020, "Quantifying Attention Flow in
Transformers").

Both read the trace of a `ViT`, or a captured module, without running the model again. Attention shows where information
comes from, not why a class is predicted. Rollout combines the attention of all blocks and is the same for every class.

Shapes: B images, H heads, N tokens, P prefix tokens, gh x gw patches.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial, reduce, wraps
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from vitviz.attribution.inputs import Case, Method
from vitviz.attribution.targets import ExplainError
from vitviz.fields import check_arguments
from vitviz.heatmap import Heatmap
from vitviz.model.trace import AttentionTrace, BlockTrace, Query, describe_query

Fusion = Literal["mean", "max", "min"]
Rescale = Literal["attention", "sum"]
# Defaults of rollout, from the paper, also for the page and the command line.
FUSE: Fusion = "mean"
DISCARD, RESIDUAL, START = 0.0, 0.5, 0

# Maximum memory of N x N matrices in one step of rollout, in bytes, for any number of tokens: up to half for fused
# attention, the rest for temporary chunks (`trace.chunk_bytes` each).
WORK_BYTES = 64 * 2**20


@check_arguments(ExplainError)
def attention(
    trace: AttentionTrace, block: int = -1, head: int | Fusion = "mean", query: Query | None = None
) -> list[Heatmap]:
    """Return the attention of a token in one block: one map per image, as `View.attention` returns it.

    Args:
        trace: trace of the model, or a captured module.
        block: index from 0; negative from the last.
        head: index from 0, or how to fuse heads: "mean", "max" or "min" (rows are then rescaled to sum to 1).
        query: "cls", a prefix token's name, a patch (row, column), "mean" over the patches, or a token index;
            the class token by default, or the mean without one.

    Returns:
        Rows of attention: maps that sum to 1 over patches and prefix tokens.
    """
    options: dict[str, Any] = {"block": block, "head": head, "query": query}
    return ATTENTION.heatmaps(attention_scores(trace, **options), trace, options)


def attention_heads(trace: AttentionTrace, block: int = -1, query: Query | None = None) -> list[list[Heatmap]]:
    """Return the attention of a token in one block for each head, at the cost of one call of `attention`."""
    rows = trace.row(block, trace.default_query if query is None else query).unbind(1)  # H of the block x (B, N)
    return [
        ATTENTION.heatmaps(row, trace, {"block": block, "head": head, "query": query}) for head, row in enumerate(rows)
    ]


def attention_scores(
    trace: AttentionTrace, block: int = -1, head: int | Fusion = "mean", query: Query | None = None
) -> Tensor:
    """Return the token scores from which `attention` makes maps: (B, N)."""
    query = trace.default_query if query is None else query
    if isinstance(head, int):
        check_head(trace, head, block)
        return trace.row(block, query)[:, head]
    _check_fusion(head)
    scores: Tensor = trace.within(block, partial(_step, trace.block(block), fuse=head), trace.weights(query, block))
    return scores


def check_head(trace: AttentionTrace, head: int, block: int = -1) -> None:
    """Raise `ExplainError` if the head does not exist in a block."""
    heads = trace.heads_in(block)
    if not 0 <= head < heads:
        raise ExplainError(f"Expected a head among 0..{heads - 1} or mean, max, min, got {head}. Choose one.")


@check_arguments(ExplainError)
def rollout(
    trace: AttentionTrace,
    query: Query | None = None,
    *,
    fuse: Fusion = FUSE,
    discard: float = DISCARD,
    residual: float = RESIDUAL,
    start: int = START,
    rescale: Rescale = "attention",
) -> list[Heatmap]:
    """Compute attention rollout, one row of the product of all blocks' attention: one map per image.

    The product is A_L ... A_start, where A = (1 - residual) x fused attention + residual x identity. The row is carried
    as a vector from the last block to the first: O(L N²) time, tripled by `discard` above a few thousand
    tokens. N x N matrices take at most `WORK_BYTES`. In a windowed model, the query is a patch of the last stage, the
    map has the patches that enter block `start`, and merged tokens count as the mean of 2 x 2 tokens.

    Args:
        trace: trace of the model with all blocks from `start` on.
        query: as for `attention`.
        fuse: how to fuse heads: "mean" (the paper), "max" or "min" (Gildenblat 2020).
        discard: fraction of the weakest attention entries to discard in each block, per image or window (Gildenblat
            2020), except attention to prefix tokens and each row's strongest entry.
        residual: weight of the residual connection, 0..1; 0.5 in the paper.
        start: first block to include, from 0.
        rescale: what to rescale to a row sum of 1 after "max", "min" or discard. "attention": the fused attention,
            before adding the identity, so `residual` is the share of the skip connection in every row. "sum": attention
            plus identity, as in Gildenblat's program (2020), where rows that lost attention keep more on themselves.

    Returns:
        Maps that sum to 1 over patches and prefix tokens, for any options.
    """
    options: dict[str, Any] = {"query": query, "fuse": fuse, "discard": discard, "residual": residual, "start": start}
    options["rescale"] = rescale
    return ROLLOUT.heatmaps(rollout_scores(trace, **options), trace, options)


def rollout_scores(
    trace: AttentionTrace,
    query: Query | None = None,
    *,
    fuse: Fusion = FUSE,
    discard: float = DISCARD,
    residual: float = RESIDUAL,
    start: int = START,
    rescale: Rescale = "attention",
) -> Tensor:
    """Return the token scores from which `rollout` makes maps: (B, N)."""
    _check_rollout(trace, fuse, discard, residual, start)
    flow = trace.weights(trace.default_query if query is None else query)  # (B, N)
    for block in range(trace.depth - 1, start - 1, -1):
        step = partial(
            _rollout_step, trace.block(block), fuse=fuse, discard=discard, prefix=len(trace.prefix),
            residual=residual, rescale=rescale,
        )  # fmt: skip
        flow = trace.entering(block, trace.within(block, step, flow))
    return flow


def _rollout_step(
    block_trace: BlockTrace,
    flow: Tensor,
    *,
    fuse: Fusion,
    discard: float,
    prefix: int,
    residual: float,
    rescale: Rescale,
) -> Tensor:
    """Carry rows of `rollout` through one block: (B, N) -> (B, N)."""
    if (count := int(discard * flow.shape[1] ** 2)) or rescale == "sum":
        return _step_rescaled(block_trace, flow, fuse, count, prefix, residual, rescale)
    return (1.0 - residual) * _step(block_trace, flow, fuse) + residual * flow


def rollout_matrix(
    trace: AttentionTrace,
    *,
    fuse: Fusion = FUSE,
    discard: float = DISCARD,
    residual: float = RESIDUAL,
    start: int = START,
) -> Tensor:
    """Return the rollout from every token to every token: (B, N, N), rows sum to 1. O(L N³) time: for small N.

    In a windowed model, rows are the patches of the last stage, and columns those that enter block `start`.
    """
    _check_rollout(trace, fuse, discard, residual, start)
    if trace.windowed:  # a sparse product: one flow per patch of the last stage
        options: dict[str, Any] = {"fuse": fuse, "discard": discard, "residual": residual, "start": start}
        rows = [rollout_scores(trace, token, **options) for token in range(trace.count)]
        return torch.stack(rows, dim=1)
    eye = torch.eye(trace.count, device=trace.device)
    product = eye.expand(trace.batch, -1, -1)
    for block in range(start, trace.depth):
        fused = fused_matrix(trace.block(block), fuse, discard, len(trace.prefix))
        with torch.autocast(eye.device.type, enabled=False):
            product = ((1.0 - residual) * fused + residual * eye) @ product  # (B, N, N) @ (B, N, N)
    return product


def entered_count(trace: AttentionTrace) -> int:
    """Return the number of tokens that enter the first block."""
    return len(trace.prefix) + math.prod(trace.entered_grid(0))


def fuse_heads(block_trace: BlockTrace, fuse: Fusion, start: int, stop: int, rescale: bool = True) -> Tensor:
    """Return attention rows start..stop-1 with fused heads: (B, n, N); rows sum to 1."""
    if fuse == "mean":
        return block_trace.rows(start, stop).mean(1)  # (B, H, n, N) -> (B, n, N)
    # Compute in logarithms, because the minimum over heads could underflow and leave an empty row.
    rows = block_trace.log_rows(start, stop)
    fused = rows.amax(1) if fuse == "max" else rows.amin(1)
    return fused.softmax(dim=-1) if rescale else fused.exp()


def fused_matrix(block_trace: BlockTrace, fuse: Fusion, discard: float, prefix: int) -> Tensor:
    """Return one block's attention with fused heads and without weak entries: (B, N, N); rows sum to 1."""
    fused = torch.cat([fuse_heads(block_trace, fuse, *chunk) for chunk in block_trace.chunks()], dim=1)  # (B, N, N)
    if discard:
        fused = discard_weakest(fused, discard, prefix)
        # keepdim: divide by the sum of each row, not of each column
        fused = fused / fused.sum(dim=-1, keepdim=True)
    return fused


def discard_weakest(fused: Tensor, share: float, prefix: int) -> Tensor:
    """Set the weakest `share` of the entries of (B, N, N) to 0, per image.

    Columns of prefix tokens and the strongest entry of each row stay, so no row becomes empty.
    """
    count = int(share * fused[0].numel())
    if count == 0:
        return fused
    return drop_below(fused, fused.flatten(1).kthvalue(count + 1).values, prefix)


def drop_below(rows: Tensor, threshold: Tensor, prefix: int) -> Tensor:
    """Set entries of rows (B, n, N) below `threshold` (B,) to 0, except prefix columns and each row's strongest entry.

    Entries equal to `threshold` stay: discarding many equal entries could exceed the share.
    """
    weak = rows < threshold[:, None, None]
    weak[..., :prefix] = False
    weak.scatter_(2, rows.argmax(dim=2, keepdim=True), False)
    return rows.masked_fill(weak, 0.0)


def entry_in_order(pieces: Callable[[], Iterable[Tensor]], position: int) -> Tensor:
    """Return the entry at an index of all entries in ascending order, for each image: (B,), exact.

    Non-negative floats are ordered like their bits. Two counts (of the upper bits of all entries, then of the lower
    bits of entries with the upper bits found) replace sorting N² entries, and need only one piece of them at a time.

    Args:
        pieces: returns the same pieces (B, n, m) on each call; float32, non-negative.
        position: index from 0, the same for each image.
    """

    def bits() -> Iterator[Tensor]:
        return (piece.detach().view(torch.int32).flatten(1) for piece in pieces())  # (B, n * m)

    counts = reduce(torch.add, (_count(part >> LOWER, 2 ** (31 - LOWER)) for part in bits()))
    upper, position_in = _find(counts, torch.full_like(counts[:, 0], position))
    counts = reduce(torch.add, (_count(_lower(part, upper), 2**LOWER) for part in bits()))
    lower, _ = _find(counts, position_in)
    return (upper << LOWER | lower).int().view(torch.float32)


LOWER = 15  # bits of the second count, of the 31 that vary among non-negative floats


def _lower(bits: Tensor, upper: Tensor) -> list[Tensor]:
    """Return, per image, the lower bits of the entries (B, m) whose upper bits are `upper` (B,)."""
    return [image[image >> LOWER == top] & 2**LOWER - 1 for image, top in zip(bits, upper, strict=True)]


def _count(digits: Iterable[Tensor], bins: int) -> Tensor:
    """Count the occurrences of each digit per image: (B, bins)."""
    return torch.stack([torch.bincount(image, minlength=bins) for image in digits])


def _find(counts: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bin (B,) of the entry at `position` (B,), and its position inside that bin (B,)."""
    until = counts.cumsum(1)
    bins = torch.searchsorted(until, position[:, None], right=True)  # (B, 1), the first bin that ends after it
    return bins[:, 0], position - (until - counts).gather(1, bins)[:, 0]


def _step(block_trace: BlockTrace, flow: Tensor, fuse: Fusion) -> Tensor:
    """Return `flow @ fused attention`, in chunks of rows: (B, N) -> (B, N)."""
    chunks = used_rows(block_trace, flow)
    if fuse == "mean" and len(chunks) > 1:
        return block_trace.propagate(flow).mean(1)  # (B, H, N) -> (B, N)
    total = torch.zeros_like(flow)
    for start, stop in chunks:
        total += mix(flow[:, start:stop], fuse_heads(block_trace, fuse, start, stop))
    return total


def _step_rescaled(
    block_trace: BlockTrace, flow: Tensor, fuse: Fusion, count: int, prefix: int, residual: float, rescale: Rescale
) -> Tensor:
    """Return `flow @ ((1 - residual) * attention + residual * identity)`, in chunks of rows: (B, N) -> (B, N).

    The attention lacks its `count` weakest entries; for `rescale`, see `rollout`.
    """
    make = partial(fuse_heads, block_trace, fuse, rescale=rescale == "attention")
    # Chunks are computed once if all of them fit in memory, else three times.
    rows = cache(make) if 4 * len(flow) * flow.shape[1] ** 2 <= WORK_BYTES // 2 else make
    chunks = list(block_trace.chunks())
    threshold = entry_in_order(lambda: (rows(*chunk) for chunk in chunks), count) if count else None  # (B,)
    used, total = flow.ne(0).any(dim=0), torch.zeros_like(flow)  # (N,)
    for start, stop in chunks:
        # Use whole chunks, because only the identical matrix product reproduces the counted bits.
        if not used[start:stop].any():
            continue
        fused, skipped = rows(start, stop), flow[:, start:stop]  # (B, n, N), (B, n)
        if threshold is not None:
            fused = drop_below(fused, threshold, prefix)
        weights = skipped / fused.sum(dim=-1)  # (B, n), to rescale rows to sum to 1
        if rescale == "sum":
            weights = skipped = skipped / ((1.0 - residual) * fused.sum(dim=-1) + residual)
        total += (1.0 - residual) * mix(weights, fused)
        total[:, start:stop] += residual * skipped
    return total


def used_rows(block_trace: BlockTrace, weights: Tensor) -> list[tuple[int, int]]:
    """Return ranges (start, stop) of the rows with non-zero weights (B, N)."""
    used = weights.ne(0).any(dim=0).nonzero().flatten().tolist()
    return [(used[0], used[0] + 1)] if len(used) == 1 else list(block_trace.chunks())


def mix(weights: Tensor, rows: Tensor) -> Tensor:
    """Return the weighted sum of rows in full precision: (..., n), (..., n, N) -> (..., N)."""
    with torch.autocast(rows.device.type, enabled=False):
        return (weights[..., None, :] @ rows.to(weights.dtype)).squeeze(-2)  # (..., 1, n) @ (..., n, N)


def pooled(rows: Tensor, fused: Iterable[Tensor], residual: float | None = None) -> Tensor:
    """Return the weight of each token in what attention pooling reads: (B, N), zeros without attention pooling.

    Pooling is a block with one row, that of its query. In class attention, the query is also a key: this share goes to
    the block before, and what is left before the first is dropped, because the query is no token of the trace.

    Args:
        rows: (B, N), weights of the tokens that the outputs read directly; the query has the rest, up to a sum of 1.
        fused: a matrix of each attention in the pooling, from the last on: (B, 1, N), or (B, 1, 1 + N) with the query
            as first key.
        residual: weight of the skip connection, 0..1. Rows are then rescaled to sum to 1, and so is the result, to the
            query's weight. With `None`, the matrix is added to the identity.
    """
    query = rest = 1 - rows.sum(1, keepdim=True)  # (B, 1)
    total = torch.zeros_like(rows)
    for matrix in fused:
        row = matrix[:, 0] if residual is None else (1 - residual) * matrix[:, 0]
        own = row[:, :1] if row.shape[1] > rows.shape[1] else torch.zeros_like(query)
        own, row = own + (1.0 if residual is None else residual), row[:, -rows.shape[1] :]
        if residual is not None:
            by = own + row.sum(1, keepdim=True)
            own, row = divide(own, by), divide(row, by)
        rest, total = rest * own, total + rest * row
    return total if residual is None else divide(query * total, total.sum(1, keepdim=True))


def divide(values: Tensor, by: Tensor) -> Tensor:
    """Return `values / by`, or 0 where `by` is 0."""
    return torch.where(by == 0, 0.0, values / by)


def _check_fusion(fuse: str) -> None:
    if fuse not in get_args(Fusion):
        raise ExplainError(f"Expected mean, max, min or a head's number to fuse heads, got {fuse!r}. Choose one.")


def _check_rollout(trace: AttentionTrace, fuse: str, discard: float, residual: float, start: int) -> None:
    _check_fusion(fuse)
    if not 0.0 <= discard < 1.0:
        raise ExplainError(f"Expected a share 0 <= discard < 1 of entries to drop, got {discard}. Choose another.")
    if not 0.0 <= residual <= 1.0:
        raise ExplainError(f"Expected a weight 0..1 of the residual connection, got {residual}. Choose another.")
    if not 0 <= start < trace.depth:
        raise ExplainError(f"Expected a first block among 0..{trace.depth - 1}, got start={start}. Choose one.")
    if missing := sorted(set(range(start, trace.depth)) - set(trace.blocks)):
        raise ExplainError(
            f"Expected a trace with every block from {start} on, got one without {missing}. Trace all of them."
        )


def _describe_attention(trace: AttentionTrace, options: Mapping[str, Any]) -> str:
    head, block = options["head"], options["block"]
    which = f"head {head + 1}" if isinstance(head, int) else f"{head} of {trace.heads_in(block)} heads"
    return f"{trace.name_of(block)}, {which}, from {describe_query(options['query'])}"


def _describe_rollout(trace: AttentionTrace, options: Mapping[str, Any]) -> str:
    layers, query = f"layers {options['start'] + 1} to {trace.depth}", describe_query(options["query"])
    return f"Rollout of {layers}, {options['fuse']} of heads, from {query}{trace.stage_name(-1)}"


def _of_case(public: Callable[..., Any], scores: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a method's function, with the name and options of a public one, from a function of a trace."""

    @wraps(public)
    def score(case: Case, **options: Any) -> Tensor:
        return scores(case.trace, **options)

    return score


ATTENTION = Method(
    function=_of_case(attention, attention_scores),
    title="Attention",
    paper="Vaswani et al. 2017, Attention Is All You Need, NeurIPS",
    about="The attention of one token in one layer. It shows where information comes from, not what it is used for.",
    class_specific=False,
    unit="attention",
    cost=1.0,
    describe=_describe_attention,
)
ROLLOUT = Method(
    function=_of_case(rollout, rollout_scores),
    title="Attention rollout",
    paper="Abnar and Zuidema 2020, Quantifying Attention Flow in Transformers, ACL",
    about="Attention followed through all layers. It is the same for every class.",
    class_specific=False,
    unit="attention",
    cost=1.1,
    describe=_describe_rollout,
)
METHODS = (ATTENTION, ROLLOUT)
