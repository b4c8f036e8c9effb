"""Attribute by the norm of the value-weighted attention.

Kobayashi et al. 2020, "Attention is Not Only a Weight: Analyzing Transformers with Vector Norms", EMNLP. A token with
high attention may contribute little, because the residual stream receives attention times the transformed value.

Shapes: B images, H heads, N tokens, D width, d head width.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from vitviz.attribution.attention import used_rows
from vitviz.attribution.inputs import Case, Method
from vitviz.attribution.targets import ExplainError
from vitviz.model.devices import double
from vitviz.model.layers import Block, LayerScale
from vitviz.model.trace import Query
from vitviz.model.tracing import project_part


@torch.no_grad()
def value_attention(
    case: Case, *, block: int = -1, head: int | Literal["sum", "mean"] = "sum", query: Query | None = None
) -> Tensor:
    """Return each token's contribution to `query` in one block: the norm of a_ij f(x_j), f(x) = (x W_V + b_V) W_O.

    W_O includes the layer scale, if any. As in the authors' code, the bias of the output projection is excluded. If the
    outputs of the heads or of attention are normalised, W_O includes this norm except for the division by the standard
    deviation, which is the same for all tokens j. W_O of talking heads includes the mix of probabilities, but not its
    bias.

    Args:
        case: images and model.
        block: index from 0; negative from the last.
        head: index from 0, for the norm of its contribution (section 3 of the paper); "sum", the norm of the sum over
            heads (section 5); "mean", the mean of the norms over heads.
        query: "cls", a prefix token's name, a patch (row, column), "mean" for the mean of the norms over the patches,
            or a token index; the class token by default, or the mean without one.

    Returns:
        (B, N), non-negative, not normalised.
    """
    trace = case.trace
    if isinstance(head, int) and not 0 <= head < trace.heads:
        raise ExplainError(f"Expected a head among 0..{trace.heads - 1}, 'sum' or 'mean', got {head!r}. Choose one.")
    query = trace.default_query if query is None else query
    stream = trace.stream(block)  # (B, N, D), checks `block`
    products = head_products(case.model.blocks[block], stream)  # (B, N, H, H)
    if head == "sum":
        return _norms_of_sums(case, block, query, products).to(stream)
    norms = products.diagonal(dim1=2, dim2=3).clamp_min(0).sqrt().transpose(1, 2)  # (B, N, H) -> (B, H, N)
    added = double(trace.row(block, query)) * norms  # the norm is linear in the non-negative attention
    return (added.mean(1) if isinstance(head, str) else added[:, head]).to(stream)


def head_products(block: Block, stream: Tensor) -> Tensor:
    """Return f_h(x_j) . f_g(x_j) for all pairs of heads: (B, N, D) -> (B, N, H, H), in float64.

    Norms of sums over heads need only these products, not a vector of width D for each query and key. Differences of
    squares lose half of the digits, hence double precision.
    """
    attn = block.attn
    values = project_part(attn, block.enter(stream), parts=slice(2, 3))[0]  # (B, H, N, d)
    values = double(values).transpose(1, 2)  # (B, N, H, d)
    out = output_map(block)  # (D, H * d)
    between = (out.T @ out).unflatten(0, (attn.heads, -1))  # (H * d, D) @ (D, H * d) -> (H, d, H * d)
    products = [
        ((values[:, :, head] @ between[head]).unflatten(2, (attn.heads, -1)) * values).sum(3)  # (B, N, H)
        for head in range(attn.heads)
    ]
    stacked = torch.stack(products, dim=2)
    if attn.proj_w is None:
        return stacked
    weight = double(attn.proj_w.weight)  # (H, H), columns for the heads of the softmax
    return weight.T @ stacked @ weight


def output_map(block: Block) -> Tensor:
    """Return the linear map from the heads' outputs to the residual stream, (D, H * d), in float64."""
    out, inner, outer = double(block.attn.proj.weight), block.attn.norm, block.norm1
    if isinstance(inner, nn.LayerNorm | nn.RMSNorm):
        out = out * double(inner.weight)
        out = out - out.mean(1, keepdim=True) if isinstance(inner, nn.LayerNorm) else out
    if block.post and isinstance(outer, nn.LayerNorm | nn.RMSNorm):
        out = out - out.mean(0) if isinstance(outer, nn.LayerNorm) else out
        out = double(outer.weight)[:, None] * out
    return double(block.ls1.gamma)[:, None] * out if isinstance(block.ls1, LayerScale) else out


def _norms_of_sums(case: Case, block: int, query: Query, products: Tensor) -> Tensor:
    """Return the norms of the sums over heads for a query: (B, N, H, H) -> (B, N)."""
    block_trace, weights = case.trace.block(block), case.trace.weights(query)  # (B, N)
    total = products.new_zeros(weights.shape)
    for start, stop in used_rows(block_trace, weights):
        total += norms_of_rows(block_trace.rows(start, stop), products, weights[:, start:stop])
    return total


def norms_of_rows(rows: Tensor, products: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum of norms over queries: (B, H, n, N), (B, N, H, H), (B, n) -> (B, N), in float64."""
    rows = double(rows).permute(0, 3, 2, 1)  # (B, H, n, N) -> (B, N, n, H)
    squares = ((rows @ products) * rows).sum(3)  # (B, N, n, H) @ (B, N, H, H) -> (B, N, n)
    norms = squares.clamp_min_(0).sqrt_()
    return (norms @ double(weights[:, :, None])).squeeze(2)  # (B, N, n) @ (B, n, 1)


METHODS = (
    Method(
        function=value_attention,
        title="Value-weighted attention",
        paper="Kobayashi et al. 2020, Attention is Not Only a Weight: Analyzing Transformers with Vector Norms, EMNLP",
        about="How much each token adds to the query token: the norm of attention times value.",
        class_specific=False,
        not_captured="it needs the values of the tokens, which are not observed",
        cost=1.1,
    ),
)
