"""The stream of tokens, block by block: its principal components in colours, its norms and outliers, its likenesses.

Shapes: L blocks, N tokens = P prefix tokens followed by gh x gw patches, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitviz.model import ViT
from vitviz.probe import ProbeError
from vitviz.probe.lens import one_image
from vitviz.trace import Query, Trace

Floats = NDArray[np.float32]

PERCENTILES = (1.0, 99.0)
"""Of the scores of a component: they become 0 and 1 of its colour."""

OUTLIER_RATIO, OUTLIER_DEVIATIONS = 2.0, 6.0


@torch.no_grad()
def streams(model: ViT, trace: Trace) -> Iterator[tuple[int, Tensor]]:
    """What each block left in the stream, before any norm: block and (B, N, D).

    A trace keeps the stream after the last block only normed, so the last block is run again: no edits are in it.
    """
    for block in range(trace.depth):
        if block + 1 in trace.blocks:
            yield block, trace.stream(block + 1).detach()
        elif block == trace.depth - 1 and block in trace.blocks:
            yield block, model.blocks[block](trace.stream(block).detach(), model.angles(trace.grid))


def _normed(model: ViT, trace: Trace) -> Iterator[tuple[int, Tensor]]:
    """The same after the final norm, as the read-out sees it: comparable between blocks, no channel too large."""
    for block, tokens in streams(model, trace):
        yield block, model.norm(tokens)


# ---- principal components


@dataclass(frozen=True, eq=False, kw_only=True)
class TokenPCA:
    """The patches of each block in the colours of three principal components.

    Args:
        blocks: the L blocks, counted from 0.
        colours: (L, gh, gw, 3), red, green and blue in 0..1: the first, second and third component.
        components: (L, 3, D), unit vectors; all L alike where they are joint.
        explained: (L, 3), share of the patches' variance in each; 0 where there are fewer than three.
        joint: whether the components are those of all blocks together.
    """

    blocks: tuple[int, ...]
    colours: Floats
    components: Floats
    explained: Floats
    joint: bool


@torch.no_grad()
def token_pca(model: ViT, trace: Trace, *, joint: bool = False) -> TokenPCA:
    """Three principal components of the patches after each block, as colours (Oquab et al. 2024, DINOv2, figure 1).

    Tokens are taken after the final norm, without prefix tokens. A component's sign is free: in the first block the
    cubes of its entries sum to more than 0 (its strongest channels point up), in every other block it correlates with
    that of the block before over the patches. Outliers in norm (see `token_norms`) take no part in finding components
    and scale; the scale runs from the 1st to the 99th percentile of the rest.

    Args:
        model: that made the trace.
        trace: of one image.
        joint: find the components in all blocks together, with one scale: the same colour is then the same direction
            in every block. By default each block has its own, and colours show its own structure.

    Raises:
        ProbeError: if there are several images, or no block that can be read.
    """
    one_image(trace)
    first = len(trace.prefix)
    found = [(block, tokens[0, first:].cpu().double()) for block, tokens in _normed(model, trace)]
    blocks, patches = [block for block, _ in found], [tokens for _, tokens in found]
    usual = ~torch.from_numpy(token_norms(model, trace).outliers)[:, first:]  # (L, gh * gw)
    if joint:
        every = torch.cat(patches)  # (L * gh * gw, D)
        axes, explained = principal(every[usual.flatten()])
        scores = (every @ _signed(axes).T).unflatten(0, (len(blocks), -1))  # (L, gh * gw, 3)
        low, high = _range(scores[usual])
        made = [(_signed(axes), explained)] * len(blocks)
        colours = _scaled(scores, low, high)
    else:
        made, parts, before = [], [], None
        for tokens, some in zip(patches, usual, strict=True):
            axes, explained = principal(tokens[some])
            axes = _aligned(_signed(axes), tokens, before)
            before = tokens @ axes.T  # (gh * gw, 3)
            made.append((axes, explained))
            parts.append(_scaled(before, *_range(before[some])))
        colours = torch.stack(parts)
    return TokenPCA(
        blocks=tuple(blocks),
        colours=colours.unflatten(1, trace.grid).float().numpy(),  # (L, gh * gw, 3) -> (L, gh, gw, 3)
        components=torch.stack([axes for axes, _ in made]).float().numpy(),
        explained=torch.stack([explained for _, explained in made]).float().numpy(),
        joint=joint,
    )


def principal(samples: Tensor, count: int = 3) -> tuple[Tensor, Tensor]:
    """The first principal components of samples (n, D): unit vectors (count, D), and their shares of the variance.

    Where the samples have fewer dimensions the rest is 0.
    """
    centred = samples - samples.mean(0)  # (n, D)
    wide = len(centred) < centred.shape[1]
    # Eigenvectors of the smaller square: (n, n) for few samples, else (D, D).
    variance, vectors = torch.linalg.eigh(centred @ centred.T if wide else centred.T @ centred)
    variance, vectors = variance.flip(0)[:count].clamp_min(0.0), vectors.flip(1)[:, :count]  # largest first
    axes = (centred.T @ vectors).T if wide else vectors.T  # (m, D), m = min(count, n, D)
    total = centred.square().sum()
    there = variance > total * max(samples.shape) * torch.finfo(samples.dtype).eps  # the rest is rounding
    axes = torch.where(there[:, None], F.normalize(axes, dim=1), 0.0)
    share = torch.where(there, variance / torch.where(total > 0, total, 1.0), 0.0)
    more = count - len(axes)
    return F.pad(axes, (0, 0, 0, more)), F.pad(share, (0, more))


def _signed(axes: Tensor) -> Tensor:
    """Each vector (..., D) with the sign for which the cubes of its entries sum to more than 0."""
    up = (axes**3).sum(-1, keepdim=True)
    return torch.where(up < 0, -axes, axes)


def _aligned(axes: Tensor, tokens: Tensor, before: Tensor | None) -> Tensor:
    """Axes (3, D) turned so that their scores correlate with those of the block before (gh * gw, 3)."""
    if before is None:
        return axes
    scores = tokens @ axes.T  # (gh * gw, 3)
    correlation = ((scores - scores.mean(0)) * (before - before.mean(0))).sum(0)  # (3,), up to its scale
    return torch.where(correlation[:, None] < 0, -axes, axes)


def _range(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The percentiles of each component's scores (n, 3): (3,) each."""
    low, high = (np.percentile(scores.numpy(), share, axis=0) for share in PERCENTILES)
    return torch.from_numpy(low), torch.from_numpy(high)


def _scaled(scores: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Scores (..., 3) as colours in 0..1; the middle where a component says nothing."""
    flat = high - low <= 1e-9 * torch.maximum(low.abs(), high.abs())
    share = ((scores - low) / torch.where(flat, 1.0, high - low)).clamp(0.0, 1.0)
    return torch.where(flat, 0.5, share)


# ---- norms


@dataclass(frozen=True, eq=False, kw_only=True)
class TokenNorms:
    """How long each token is after each block.

    Args:
        blocks: the L blocks, counted from 0.
        norms: (L, N), Euclidean length in the stream, before the final norm; prefix tokens first.
        outliers: (L, N), which patches are outliers. Prefix tokens never are: they are meant to be different.
        thresholds: (L,), the norm above which a patch is an outlier.
        prefix: names of the P prefix tokens.
        grid: (gh, gw).
    """

    blocks: tuple[int, ...]
    norms: Floats
    outliers: NDArray[np.bool_]
    thresholds: Floats
    prefix: tuple[str, ...]
    grid: tuple[int, int]

    @property
    def patches(self) -> Floats:
        """(L, gh, gw), the norms of the patches."""
        return self.norms[:, len(self.prefix) :].reshape(-1, *self.grid)


@torch.no_grad()
def token_norms(
    model: ViT, trace: Trace, *, ratio: float = OUTLIER_RATIO, deviations: float = OUTLIER_DEVIATIONS
) -> TokenNorms:
    """The norm of every token after each block, and which patches are outliers.

    Large models without registers keep global information in a few patches of little content, whose norm is several
    times that of the others (Darcet et al. 2024, "Vision Transformers Need Registers", who cut by eye at 150 for one
    model). Here a patch is an outlier if its norm is above `ratio` times the median of the patches of its block, and
    also above that median by `deviations` robust standard deviations (1.4826 times the median distance from it).

    Raises:
        ProbeError: if there are several images, or no block that can be read.
    """
    one_image(trace)
    found = [(block, tokens[0].cpu().double().norm(dim=-1).numpy()) for block, tokens in streams(model, trace)]
    if not found:
        raise ProbeError("Expected a trace that kept a block after another, or the last one; this one kept neither.")
    norms = np.stack([lengths for _, lengths in found])  # (L, N)
    patches = norms[:, len(trace.prefix) :]
    middle = np.median(patches, axis=1, keepdims=True)  # (L, 1)
    spread = 1.4826 * np.median(np.abs(patches - middle), axis=1, keepdims=True)
    threshold = np.maximum(ratio * middle, middle + deviations * spread)
    outliers = norms > threshold
    outliers[:, : len(trace.prefix)] = False
    return TokenNorms(
        blocks=tuple(block for block, _ in found),
        norms=norms.astype(np.float32),
        outliers=outliers,
        thresholds=threshold[:, 0].astype(np.float32),
        prefix=trace.prefix,
        grid=trace.grid,
    )


# ---- likeness


@dataclass(frozen=True, eq=False, kw_only=True)
class TokenSimilarity:
    """How alike one token is to all others, after each block.

    Args:
        blocks: the L blocks, counted from 0.
        tokens: (L, N), cosine in -1..1; prefix tokens first.
        query: the index of the token.
        prefix: names of the P prefix tokens.
        grid: (gh, gw).
    """

    blocks: tuple[int, ...]
    tokens: Floats
    query: int
    prefix: tuple[str, ...]
    grid: tuple[int, int]

    @property
    def patches(self) -> Floats:
        """(L, gh, gw), the cosine with each patch."""
        return self.tokens[:, len(self.prefix) :].reshape(-1, *self.grid)


@torch.no_grad()
def token_similarity(model: ViT, trace: Trace, query: Query) -> TokenSimilarity:
    """The cosine of one token with every token after each block, all after the final norm.

    Args:
        model: that made the trace.
        trace: of one image.
        query: "cls", a prefix token's name, a patch (row, column) or a token index.

    Raises:
        ProbeError: if there are several images, no block that can be read, or the query is a mean.
        TraceError: if there is no such token.
    """
    one_image(trace)
    if query == "mean":
        raise ProbeError("Expected one token as the query; got 'mean'. Choose a patch (row, column).")
    index, blocks, found = trace.token(query), [], []
    for block, tokens in _normed(model, trace):
        unit = F.normalize(tokens[0].float(), dim=-1)  # (N, D)
        blocks.append(block)
        found.append((unit @ unit[index]).clamp(-1.0, 1.0))  # (N,)
    if not blocks:
        raise ProbeError("Expected a trace that kept a block after another, or the last one; this one kept neither.")
    cosines = torch.stack(found).cpu().numpy()  # (L, N)
    return TokenSimilarity(blocks=tuple(blocks), tokens=cosines, query=index, prefix=trace.prefix, grid=trace.grid)
