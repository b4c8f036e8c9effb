"""Explain one edge of attention: why a head's query attends to a key, and what the key's value writes.

The logit of an edge, relative to the average key, is a sum over the singular modes of W_q^T W_k: Pan et al. 2024,
"Dissecting Query-Key Interaction in Vision Transformers".

Shapes: L blocks, N tokens = P prefix tokens followed by gh x gw patches, D width, d head width.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitviz.analysis import AnalysisError
from vitviz.analysis.decomposition import Reading, centered_scores, head_effects, target_reading, value_effects
from vitviz.analysis.logit_lens import check_one_image
from vitviz.attribution.attention import check_head
from vitviz.attribution.target_specs import Contrast, TargetOf
from vitviz.formatting import short_repr
from vitviz.images.folders import batches, find_images, spread
from vitviz.model.config import PositionTable
from vitviz.model.devices import double, double_module
from vitviz.model.edits import Cut, Edits
from vitviz.model.layers import Block
from vitviz.model.positions import Angles, resize_positions
from vitviz.model.trace import AttentionTrace, Query, Trace
from vitviz.model.vit import ViT, eval_mode
from vitviz.progress import bar

Parts = Literal["modes", "frequencies", "channels"]
"""What the terms of a logit are: singular modes, pairs of channels that rotate at one frequency, or channels."""

DEFAULT_PHOTOGRAPHS = 100  # number of photographs that `position_means` averages


@dataclass(frozen=True, eq=False, kw_only=True)
class Edge:
    """One head's attention from a query token to a key token, and its reasons.

    Args:
        block, head, query, key: indices from 0; tokens count prefix tokens first.
        attention: the probability.
        logit: the logit, relative to the mean of the query's logits; `terms` and `bias` sum to it.
        parts: what the terms are. With a norm of queries and keys or talking heads, the logit is no sum over modes, so
            the terms are channels. With rotary positions, they are frequencies. A module that is not converted has
            channels, or no terms if only its softmax is observed.
        terms: (m,), in the order of decreasing singular values, of the head's pairs of channels, or of its channels.
        bias: contribution of the biases of queries and keys, and of a relative position bias. If queries and keys have
            a norm, or the module is not converted, the terms include the biases of their linear maps.
        position: the relative logit with each token replaced by the mean over photographs of the tokens at its
            position; `None` without such means, see `position_means`.
        writes: what the key's value adds to the target's score by this edge directly, as in `Decomposition.tokens`.
        cut: exact change of the target's score if the edge is cut and the rest of the row rescaled; `None` unless
            requested.
        target, scale: display name of the target and scale of its score; empty without a target.
    """

    block: int
    head: int
    query: int
    key: int
    attention: float
    logit: float
    parts: Parts
    terms: NDArray[np.float64]
    bias: float
    position: float | None = None
    writes: float | None = None
    cut: float | None = None
    target: str = ""
    scale: str = ""

    __repr__ = short_repr


@torch.no_grad()
def edge(
    model: ViT,
    trace: AttentionTrace,
    block: int,
    head: int,
    query: Query,
    key: Query,
    *,
    target: TargetOf | None = None,
    contrast: Contrast | None = None,
    cut: bool = False,
    means: Tensor | None = None,
    reading: Reading | None = None,
) -> Edge:
    """Explain the attention of one head from one token to another.

    Args:
        model: the model of the trace.
        trace: trace of one image, without edits; of a captured module, only attention and logit are known.
        block: index from 0; negative from the last.
        head: index from 0.
        query, key: tokens: "cls", a prefix token's name, a patch (row, column) or a token index.
        target, contrast: target of `writes` and `cut`, see `decompose`; by default the predicted class.
        cut: whether to run the model again from this block on, without the edge.
        means: `position_means`; by default those that come with the model.
        reading: the result of `target_reading` for this target, if known.

    Raises:
        AnalysisError: for a windowed model, several images, a mean as query or key, or a target that is not linear.
        ExplainError: if the head or the class does not exist.
        TraceError: if the block or a token does not exist.
    """
    check_one_image(trace)
    if "mean" in (query, key):
        raise AnalysisError("Expected one token as query and as key, got 'mean'. Choose a patch (row, column).")
    check_head(trace, head, block)
    block %= trace.depth
    of_query, of_key = trace.token(query), trace.token(key)
    if not isinstance(trace, Trace) and target is None and contrast is None and not cut:
        return _observed(trace, block, head, of_query, of_key)
    entered = model.blocks[block].enter(trace.stream(block))  # (1, N, D)
    angles = model.angles(trace.grid)
    logit, terms, parts = _logit(model.blocks[block], angles, entered, head, of_query, of_key)
    means = model.position_means if means is None else means
    position = None
    if means is not None:
        config = model.config
        expected = config.depth, len(config.prefix) + config.grid[0] * config.grid[1], config.width
        if tuple(means.shape) != expected:
            raise AnalysisError(f"Expected means of shape {expected}, got {tuple(means.shape)}. Use position_means.")
        usual = model.blocks[block].enter(_at_grid(model, means[block], trace).to(entered))
        position = _logit(model.blocks[block], angles, usual, head, of_query, of_key)[0]
    found = Edge(
        block=block,
        head=head,
        query=of_query,
        key=of_key,
        attention=float(trace.block(block).rows(of_query, of_query + 1)[0, head, 0, of_key]),
        logit=logit,
        parts=parts,
        terms=terms.cpu().numpy(),
        bias=logit - float(terms.sum()),
        position=position,
    )
    if reading is None and trace.logits is None and target is None:
        return found
    reading = reading or target_reading(model, trace, target, contrast)
    return replace(
        found,
        writes=_writes(model, trace, entered, found, reading),
        cut=_effect_of_cut(model, trace, found, reading) if cut else None,
        target=reading.target.names[0],
        scale=reading.target.score_scale,
    )


def _observed(trace: AttentionTrace, block: int, head: int, query: int, key: int) -> Edge:
    """Return an edge of a captured module, of which only the attention is known."""
    seen = trace.block(block)
    row = double(seen.log_rows(query, query + 1)[0, head, 0])  # (N,), the logits up to a constant
    terms = row.new_zeros(0)
    if seen.factored:
        keys = double(seen.keys[0, head])  # (N, d)
        terms = double(seen.queries[0, head, query]) * (keys[key] - keys.mean(0))
    logit = float(row[key] - row.mean())
    return Edge(
        block=block,
        head=head,
        query=query,
        key=key,
        attention=float(row[key].exp()),
        logit=logit,
        parts="channels",
        terms=terms.cpu().numpy(),
        bias=logit - float(terms.sum()),
    )


def _logit(
    block: Block, angles: Angles | None, entered: Tensor, head: int, query: int, key: int
) -> tuple[float, Tensor, Parts]:
    """Return a logit relative to the mean over keys, its terms without the biases, and what they are.

    `entered` (1, N, D) is the input of attention. All is computed in float64.
    """
    attn, mixes = block.attn, block.attn.proj_l is not None
    heads = slice(None) if mixes else slice(head, head + 1)
    small = double_module(attn, {id(attn.qkv): nn.Identity(), id(attn.proj): nn.Identity()})
    at, width = head if mixes else 0, attn.head_width * (attn.heads if mixes else 1)
    weight = double(attn.qkv.weight).unflatten(0, (3, attn.heads, -1))[:2, heads]  # (2, h, d, D)
    plain = double(entered)[:, None] @ weight.mT  # (1, 1, N, D) @ (2, h, D, d) -> (2, h, N, d)
    bias = 0.0 if attn.qkv.bias is None else double(attn.qkv.bias).unflatten(0, (3, attn.heads, 1, -1))[:2, heads]

    def channels(projected: Tensor) -> Tensor:
        q, k = (placed[0, at] for placed in small.place(projected[:1], projected[1:], angles, heads=heads))  # (N, d')
        product: Tensor = attn.scale * q[query] * (k[key] - k.mean(0))
        return product

    with_biases = channels(plain + bias)
    normed, rotates = not isinstance(attn.q_norm, nn.Identity), attn.placed and attn.bias_table is None
    terms = (with_biases if normed else channels(plain))[:width]
    parts: Parts = "channels"
    if rotates:
        terms, parts = terms.unflatten(0, (2, -1)).sum(0), "frequencies"
    elif not normed and not mixes:
        terms, parts = attn.scale * _modes(weight[0, 0], weight[1, 0], double(entered[0]), query, key), "modes"
    return float(with_biases.sum()), terms, parts


def _modes(of_queries: Tensor, of_keys: Tensor, tokens: Tensor, query: int, key: int) -> Tensor:
    """Return the terms of x_q^T W_q^T W_k (x_k - mean x) by singular modes, from weights (d, D) and tokens (N, D)."""
    (left, of_left), (right, of_right) = (torch.linalg.qr(weight.T) for weight in (of_queries, of_keys))
    u, values, v = torch.linalg.svd(of_left @ of_right.T)  # (d, d)
    relative = tokens[key] - tokens.mean(0)
    terms: Tensor = values * (tokens[query] @ left @ u) * (v @ (right.T @ relative))
    return terms


def _writes(model: ViT, trace: AttentionTrace, entered: Tensor, found: Edge, reading: Reading) -> float:
    """Return what the key's value adds to the score by an edge; `entered` (1, N, D) is the input of attention."""
    effect = reading.weights, reading.directions
    weights, directions, _ = head_effects(model, trace, found.block, entered, effect)  # (1, r, N), (r, H, d)
    attn, key = model.blocks[found.block].attn, slice(found.key, found.key + 1)
    values = value_effects(attn, entered[:, key], directions)[0, :, found.head, 0]  # (r,)
    factors = attn.talk(trace.block(found.block).rows(found.query, found.query + 1))[0, found.head, 0]  # (N,)
    return float(factors[found.key]) * float(weights[0, :, found.query] @ values)


def _effect_of_cut(model: ViT, trace: AttentionTrace, found: Edge, reading: Reading) -> float:
    """Return the change of the target's score without an edge, by a run from its block on."""
    cut = Cut(block=found.block, head=found.head, queries=(found.query,), keys=(found.key,))
    stream, target = trace.stream(found.block), reading.target
    after = model.encode(stream, model.angles(trace.grid), Edits(cuts=[cut]), start=found.block)
    scores = [centered_scores(target, target.read(model, tokens).double()) for tokens in (trace.tokens, after)]
    return float(scores[1] - scores[0])


def _at_grid(model: ViT, means: Tensor, trace: AttentionTrace) -> Tensor:
    """Return the means of one block at the trace's grid: (P + oh * ow, D) -> (1, N, D)."""
    prefix, patches = means.float().tensor_split([len(trace.prefix)])
    if trace.grid != model.config.grid:
        patches = resize_positions(patches[None], model.config.grid, trace.grid, PositionTable(mode="bilinear"))[0]
    return torch.cat([prefix, patches])[None]


@torch.no_grad()
def position_means(
    model: ViT,
    folder: str | os.PathLike[str],
    *,
    limit: int = DEFAULT_PHOTOGRAPHS,
    batch_size: int = 8,
    progress: bool = True,
) -> Tensor:
    """Return the mean input of each block at each position of the model's own grid over photographs: (L, N, D).

    The photographs are stretched to the model's own input size. `model.position_means = position_means(...)` makes
    them the default of `edge`; `vitviz.weights.checkpoint.save` writes them with the model.

    Args:
        model: converted model with `pretrained`.
        folder: folder of images, searched recursively.
        limit: maximum number of photographs, spread over the subfolders.
        batch_size: photographs per forward pass.
        progress: show progress on standard error.

    Raises:
        AnalysisError: for a windowed model, one without preprocessing, or a limit below 1.
        DataError: without images, or if files cannot be decoded.
    """
    model.check_converted()
    if (about := model.pretrained) is None:
        raise AnalysisError("Expected a model with preprocessing (`pretrained`), got one without. Load it by name.")
    if limit < 1:
        raise AnalysisError(f"Expected a limit of at least 1 photograph, got {limit}. Raise it.")
    height, width = model.config.image_size
    preprocess = replace(about.preprocess, mode="squash", height=height, width=width, resize=None)
    files, weight = spread(find_images(Path(folder)), limit), next(model.parameters())
    total: Tensor | float = 0.0
    with eval_mode(model), bar(len(files), show=progress) as counted:
        for batch in batches(files, preprocess, batch_size):
            trace = model.trace(batch.images.to(weight.device, weight.dtype))
            total = total + torch.stack([double(trace.stream(block)).sum(0).cpu() for block in trace.blocks])
            counted.update(len(batch.images))
    return (cast(Tensor, total) / len(files)).float()
