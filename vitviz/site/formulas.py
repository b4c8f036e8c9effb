"""Trace the formulas that Python applies to tensors of a forward or backward pass, as graphs without weights.

The browser passes the outputs of the graphs of `vitviz.site.onnx` to these graphs. Each formula is a function of
`vitviz.attribution` or `vitviz.analysis`, so a change there changes the static site.

| graph | inputs | outputs |
|---|---|---|
| fuse_mean, fuse_max, fuse_min | queries, keys (H, N, d) | attention with fused heads (N, N) |
| roll_out | matrix (N, N), flows (F, N), least (1), residual (1) | flows through one block (F, N) |
| statistics | queries, keys, columns of the grid (1), pixels of a patch (2) | one output per statistic of rows (H) |
| gae | attention, slope (H, N, N), skipped, attended (N) | attended |
| gradient_rollout | as for gae | skipped, attended |
| attention_gradcam | attention, slope (H, N, N), rows (N) | scores (N) |
| token_gradcam | tokens, slope (1, N, D) | scores (N) |
| legrad | slope (H, n, N) | scores (N) |
| attn_lrp | tokens, slope (1, N, D), score (1) | scores (N) |

With attention pooling, gae_pooling, gradient_rollout_pooling and pooled_rows take the pooling's attention (H, 1, N).
`least`: entries of the matrix below it are discarded.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor

from vitviz.analysis.attention_statistics import QueryRange, Rows
from vitviz.analysis.head_statistics import STATISTICS
from vitviz.attribution.attention import RESIDUAL, Fusion, drop_below, fuse_heads, mix, pooled
from vitviz.attribution.gradient import (
    Step,
    fuse,
    gae_step,
    gradcam,
    gradient_rollout_step,
    sensitivity,
    weigh_channels,
)
from vitviz.attribution.relevance import divide_rest
from vitviz.model.trace import BlockTrace
from vitviz.model.vit import ViT

ROWS = tuple(
    name for name, statistic in STATISTICS.items() if statistic.reads == "rows" and not statistic.not_in_browser
)


@dataclass(frozen=True, eq=False)
class Formula:
    """A formula and the names for its graph.

    Args:
        name: name of the graph.
        function: takes and returns tensors.
        signature: names of inputs and outputs, for example "queries keys -> matrix".
    """

    name: str
    function: Callable[..., tuple[Tensor, ...]]
    signature: str


def formulas(model: ViT) -> Iterator[Formula]:
    """Yield the formulas for the layout of a model's tokens."""
    prefix = len(model.config.prefix)
    for how in get_args(Fusion):
        yield Formula(f"fuse_{how}", partial(_fuse, how), "queries keys -> matrix")
    yield Formula("roll_out", partial(_roll_out, prefix), "matrix flows least residual -> flows_out")
    present = " ".join(name for name in ROWS if name not in missing_statistics(model.config.prefix))
    statistics = partial(_statistics, model.config.prefix, present.split())
    yield Formula("statistics", statistics, f"queries keys columns patch_pixels -> {present}")
    kinds = [("", False), ("_pooling", True)] if model.attn_pool is not None else [("", False)]
    for ending, pooling in kinds:
        inputs = ("pooling pooling_slope" if pooling else "attention slope") + " skipped attended"
        yield Formula(f"gae{ending}", partial(_gae, pooling), f"{inputs} -> attended_out")
        # With attention pooling, the skipped rows do not change.
        outputs = "attended_out" if pooling else "skipped_out attended_out"
        yield Formula(f"gradient_rollout{ending}", partial(_gradient_rollout, pooling), f"{inputs} -> {outputs}")
    if model.attn_pool is not None:
        yield Formula("pooled_rows", _pooled_rows, "pooling rows -> rows_out")
    yield Formula("attention_gradcam", partial(_attention_gradcam, prefix), "attention slope rows -> scores")
    yield Formula("token_gradcam", partial(_token_gradcam, prefix), "tokens flow -> scores")
    yield Formula("legrad", _legrad, "pooling_slope -> scores" if model.attn_pool is not None else "slope -> scores")
    yield Formula("attn_lrp", partial(_attn_lrp, prefix), "tokens flow score -> scores")


def missing_statistics(prefix: tuple[str, ...]) -> dict[str, str]:
    """Return why statistics of rows are missing for models with these prefix tokens."""
    tokens = len(prefix) + 4
    rows = _rows(torch.zeros(1, tokens, 1), torch.zeros(1, tokens, 1), prefix, torch.ones(1), torch.ones(2))
    reasons = {name: STATISTICS[name].function(rows) for name in ROWS}
    return {name: reason for name, reason in reasons.items() if isinstance(reason, str)}


def _block(queries: Tensor, keys: Tensor) -> BlockTrace:
    return BlockTrace(queries[None], keys[None], queries[None, ..., 0])  # log_rows ignores the last


def _rows(queries: Tensor, keys: Tensor, prefix: tuple[str, ...], columns: Tensor, patch_pixels: Tensor) -> Rows:
    """Return the rows of all patches."""
    first, last = len(prefix), queries.shape[1]
    grid: Any = (0, columns.long())  # a tensor is traced; only the number of columns is used
    sizes: Any = patch_pixels[None]
    query_range = QueryRange(first, last, prefix, grid, sizes)
    return Rows(_block(queries, keys).log_rows(first, last), first, query_range)


def _fuse(how: Fusion, queries: Tensor, keys: Tensor) -> tuple[Tensor, ...]:
    return (fuse_heads(_block(queries, keys), how, 0, queries.shape[1])[0],)


def _roll_out(prefix: int, matrix: Tensor, flows: Tensor, least: Tensor, residual: Tensor) -> tuple[Tensor, ...]:
    fused = drop_below(matrix[None], least, prefix)[0]
    fused = fused / fused.sum(dim=-1, keepdim=True)
    return ((1.0 - residual) * mix(flows, fused) + residual * flows,)


def _statistics(
    prefix: tuple[str, ...], names: list[str], queries: Tensor, keys: Tensor, columns: Tensor, patch_pixels: Tensor
) -> tuple[Tensor, ...]:
    rows = _rows(queries, keys, prefix, columns, patch_pixels)
    measured: Iterator[Any] = (STATISTICS[name].function(rows) for name in names)
    return tuple(values[0].mean(1) for values in measured)  # (1, H, n) -> (H)


def _gae(pooling: bool, attention: Tensor, slope: Tensor, skipped: Tensor, attended: Tensor) -> tuple[Tensor, ...]:
    step = Step(attention[None], slope[None])
    if pooling:
        return ((attended + pooled(skipped[None], [fuse(step, clamp=True)]))[0],)
    return (gae_step(step, skipped[None], attended[None])[0],)


def _gradient_rollout(
    pooling: bool, attention: Tensor, slope: Tensor, skipped: Tensor, attended: Tensor
) -> tuple[Tensor, ...]:
    step = Step(attention[None], slope[None])
    if pooling:
        return ((attended + pooled(skipped[None], [fuse(step).clamp_min_(0)], RESIDUAL))[0],)
    return tuple(row[0] for row in gradient_rollout_step(step, skipped[None], attended[None]))


def _pooled_rows(pooling: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
    return ((rows + pooled(rows[None], [pooling[None].mean(1)], RESIDUAL))[0],)


def _attention_gradcam(prefix: int, attention: Tensor, slope: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
    return (gradcam(Step(attention[None], slope[None]), rows[None], prefix)[0],)


def _token_gradcam(prefix: int, tokens: Tensor, flow: Tensor) -> tuple[Tensor, ...]:
    return (weigh_channels(tokens, flow, prefix)[0],)


def _legrad(slope: Tensor) -> tuple[Tensor, ...]:
    return (sensitivity(slope[None].clone())[0],)


def _attn_lrp(prefix: int, tokens: Tensor, flow: Tensor, score: Tensor) -> tuple[Tensor, ...]:
    scores = (tokens * flow).sum(-1)  # (1, N, D) -> (1, N)
    return (divide_rest(scores, score, prefix)[0],)
