"""Analyse tokens per block: principal components as colors, norms and outliers, cosine similarity.

Shapes: L blocks, N tokens = P prefix tokens followed by gh x gw patches, D width.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vitviz.analysis import AnalysisError
from vitviz.analysis.logit_lens import check_one_image
from vitviz.formatting import short_repr
from vitviz.model.registers import norm_outliers
from vitviz.model.trace import AttentionTrace, Query
from vitviz.model.vit import ViT

Floats = NDArray[np.float32]

PERCENTILES = (1.0, 99.0)  # percentiles of a component's scores that map to colors 0 and 1


@torch.no_grad()
def block_outputs(model: ViT, trace: AttentionTrace, first: int = 0) -> Iterator[tuple[int, Tensor]]:
    """Yield each block from `first` on with its output tokens (B, N, D), before the final norm.

    A trace keeps only the normed tokens after the last block, so the last block runs again, without edits.
    """
    for block in range(first, trace.depth):
        if block + 1 in trace.blocks:
            yield block, trace.stream(block + 1).detach()
        elif block == trace.depth - 1 and block in trace.blocks:
            yield block, model.blocks[block](trace.stream(block).detach(), model.angles(trace.grid))


def _outputs(model: ViT, trace: AttentionTrace) -> tuple[tuple[int, ...], list[Tensor]]:
    """Return the blocks with known outputs, and the outputs (N, D), for a trace of one image."""
    check_one_image(trace)
    outputs = [(block, tokens[0]) for block, tokens in block_outputs(model, trace)]
    if not outputs:
        raise AnalysisError(
            f"Expected a trace of the last block or two successive ones, got blocks {list(trace.blocks)}. Keep more."
        )
    return tuple(block for block, _ in outputs), [tokens for _, tokens in outputs]


# ---- principal components


@dataclass(frozen=True, eq=False, kw_only=True)
class TokenPCA:
    """Three principal components of the patches of all blocks, as colors of each block.

    Args:
        blocks: the L block indices, from 0.
        colors: (L, gh, gw, 3), red, green and blue in 0..1: the first, second and third component.
        components: (3, D), unit vectors; 0 for missing components.
        explained: (L, 3), fraction of the variance of a block's patches that each explains.
    """

    blocks: tuple[int, ...]
    colors: Floats
    components: Floats
    explained: Floats

    __repr__ = short_repr


@torch.no_grad()
def token_pca(model: ViT, trace: AttentionTrace) -> TokenPCA:
    """Compute three principal components of the patches of all blocks, in one basis (Oquab et al. 2024, figure 1).

    It uses patch tokens after the final norm. Within each block they are centered and scaled to a mean squared length
    of 1, so that every block has the same weight, and a patch keeps its color from block to block unless the model
    changes it. Outliers (see `token_norms`) are excluded from components and scale; the scale of a block runs from the
    1st to the 99th percentile of the rest.

    Raises:
        AnalysisError: for several images, or without a readable block.
    """
    blocks, outputs = _outputs(model, trace)
    first = len(trace.prefix)
    usual = ~torch.from_numpy(token_norms(model, trace).outliers)[:, first:]  # (L, gh * gw)

    def layers() -> Iterator[tuple[Tensor, Tensor]]:
        for output, usual_patches in zip(outputs, usual, strict=True):
            tokens = model.norm(output)[first:].cpu().double()  # (gh * gw, D)
            centered = tokens - tokens[usual_patches].mean(0)
            length = centered[usual_patches].square().sum(1).mean().sqrt()
            yield centered / torch.where(length > 0, length, 1.0), usual_patches

    scatter = sum((tokens[kept].T @ tokens[kept] for tokens, kept in layers()), torch.zeros(()))  # (D, D)
    axes = point_up(_largest(scatter, 3, int(usual.sum()))[0])  # (3, D)
    scores = [(tokens @ axes.T, kept) for tokens, kept in layers()]  # (gh * gw, 3) each
    return TokenPCA(
        blocks=blocks,
        colors=torch.stack([_as_colors(each, each[kept]) for each, kept in scores])
        .unflatten(1, trace.grid)
        .float()
        .numpy(),  # (L, gh * gw, 3) -> (L, gh, gw, 3)
        components=axes.float().numpy(),
        explained=torch.stack([each[kept].square().sum(0) / kept.sum() for each, kept in scores]).float().numpy(),
    )


def principal_components(samples: Tensor, count: int = 3) -> tuple[Tensor, Tensor]:
    """Return the principal components of samples (n, D), unit vectors (count, D), and their shares of the variance.

    Missing dimensions are 0.
    """
    centered = samples - samples.mean(0)  # (n, D)
    if len(centered) >= centered.shape[1]:
        return _largest(centered.T @ centered, count, len(centered))
    # Eigenvectors of the smaller Gram matrix, (n, n) or (D, D), take a third of the time of an SVD.
    vectors, share = _largest(centered @ centered.T, count, centered.shape[1])
    return F.normalize(vectors @ centered, dim=1), share


def _largest(gram: Tensor, count: int, other: int) -> tuple[Tensor, Tensor]:
    """Return the eigenvectors (count, n) with the largest eigenvalues, and their shares of the sum.

    Args:
        gram: (n, n), A A^T.
        count: number of vectors; missing ones are 0.
        other: columns of A.
    """
    variance, vectors = torch.linalg.eigh(gram)
    variance, vectors = variance.flip(0)[:count].clamp_min(0.0), vectors.T.flip(0)[:count]  # largest first
    total = gram.diagonal().sum()
    present = variance > total * max(len(gram), other) * torch.finfo(gram.dtype).eps  # the rest is rounding
    share = torch.where(present, variance / torch.where(total > 0, total, 1.0), 0.0)
    missing = count - len(vectors)
    return F.pad(torch.where(present[:, None], vectors, 0.0), (0, 0, 0, missing)), F.pad(share, (0, missing))


def point_up(axes: Tensor) -> Tensor:
    """Flip each vector (..., D) so that the sum of the cubes of its entries is positive."""
    return torch.where((axes**3).sum(-1, keepdim=True) < 0, -axes, axes)


def _as_colors(scores: Tensor, usual: Tensor) -> Tensor:
    """Scale scores (..., 3) to 0..1 by the percentiles of `usual` (n, 3); constant components become 0.5."""
    low, high = (torch.from_numpy(np.percentile(usual.numpy(), share, axis=0)) for share in PERCENTILES)  # (3,) each
    flat = high - low <= 1e-9 * torch.maximum(low.abs(), high.abs())
    return torch.where(flat, 0.5, ((scores - low) / torch.where(flat, 1.0, high - low)).clamp(0.0, 1.0))


# ---- norms


@dataclass(frozen=True, eq=False, kw_only=True)
class TokenNorms:
    """Norms of the tokens after each block, and the outliers among them.

    Args:
        blocks: the L block indices, from 0.
        norms: (L, N), Euclidean norm, before the final norm; prefix tokens first.
        outliers: (L, N) bools; false for prefix tokens.
        thresholds: (L,), norms above which a patch is an outlier.
    """

    blocks: tuple[int, ...]
    norms: Floats
    outliers: NDArray[np.bool_]
    thresholds: Floats

    __repr__ = short_repr


@torch.no_grad()
def token_norms(model: ViT, trace: AttentionTrace) -> TokenNorms:
    """Compute the norm of every token after each block, and find outlier patches.

    Large models without registers store global information in a few patches with little content, whose norm is several
    times the norm of other patches (Darcet et al. 2024, "Vision Transformers Need Registers", with a threshold of 150
    for one model). `vitviz.model.registers.norm_outliers` defines outliers here.

    Raises:
        AnalysisError: for several images, or without a readable block.
    """
    blocks, outputs = _outputs(model, trace)
    norms = np.stack([tokens.cpu().double().norm(dim=-1).numpy() for tokens in outputs])  # (L, N)
    outliers, threshold = norm_outliers(norms, len(trace.prefix))
    return TokenNorms(
        blocks=blocks, norms=norms.astype(np.float32), outliers=outliers, thresholds=threshold[:, 0].astype(np.float32)
    )


# ---- similarity


@torch.no_grad()
def token_similarity(model: ViT, trace: AttentionTrace, query: Query) -> Floats:
    """Return the cosine similarity of one token to all tokens after each block and the final norm: (L, N), -1..1.

    Args:
        model: the model of the trace.
        trace: trace of one image.
        query: "cls", a prefix token's name, a patch (row, column) or a token index.

    Raises:
        AnalysisError: for several images, without a readable block, or if the query is a mean.
        TraceError: if the token does not exist.
    """
    if query == "mean":
        raise AnalysisError("Expected one token as the query, got 'mean'. Choose a patch (row, column).")
    _, outputs = _outputs(model, trace)
    unit = F.normalize(model.norm(torch.stack(outputs)).float(), dim=-1)  # (L, N, D)
    cosines = (unit @ unit[:, trace.token(query), :, None]).squeeze(2)  # (L, N, D) @ (L, D, 1) -> (L, N)
    similarity: Floats = cosines.clamp(-1.0, 1.0).cpu().numpy()
    return similarity
