"""Compare the patches of two photographs: cosine similarities, mutual nearest neighbours, and parts of the similarity.

Keys as descriptors: Amir et al. 2022, "Deep ViT Features as Dense Visual Descriptors". To explain a similarity, use
`Similarity(view)` as the target of any attribution method (`vitviz.attribution.target_specs`).

Shapes: n and m patches of the first and the second photograph; D width, H heads, d head width, F features.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitviz.analysis import AnalysisError
from vitviz.analysis.logit_lens import check_one_image
from vitviz.fields import check_arguments
from vitviz.formatting import short_repr
from vitviz.model.devices import double
from vitviz.model.trace import AttentionTrace
from vitviz.model.tracing import project_part
from vitviz.model.vit import ViT

Floats = NDArray[np.float32]
Descriptor = Literal["tokens", "queries", "keys", "values"]
"""Vectors that describe patches: a block's output tokens after the final norm, or its queries, keys or values."""
DESCRIPTORS: tuple[Descriptor, ...] = get_args(Descriptor)
DESCRIPTOR: Descriptor = "values"
"""With `BLOCK`, the descriptor that finds most patches in mirror images (default model; benchmarks/README.md)."""
BLOCK = -2
"""The next to last block; of a model with one block, the last."""
Patch = tuple[int, int]


@torch.no_grad()
def patch_descriptors(model: ViT, trace: AttentionTrace, descriptor: Descriptor = "tokens", block: int = -1) -> Tensor:
    """Return the descriptor of each patch: (n, D), or (n, H * d) for queries, keys and values of all heads.

    Queries and keys do not contain rotary positions or relative position biases.

    Args:
        model: the model of the trace.
        trace: trace of one image.
        descriptor: what describes a patch.
        block: index from 0; negative from the last; `BLOCK` also stands for the only block.

    Raises:
        AnalysisError: for several images, an unknown descriptor, or a block whose output was not kept.
        TraceError: if the block does not exist.
    """
    check_one_image(trace)
    if descriptor not in DESCRIPTORS:
        raise AnalysisError(f"Expected one of {', '.join(DESCRIPTORS)}, got {descriptor!r}. Choose one.")
    block = -1 if (block, trace.depth) == (BLOCK, 1) else block
    stream, prefix = trace.stream(block), len(trace.prefix)  # checks the block
    if descriptor == "tokens":
        return _normed_output(model, trace, block % trace.depth)[prefix:]
    part, layer = ("queries", "keys", "values").index(descriptor), model.blocks[block]
    vectors = project_part(layer.attn, layer.enter(stream), parts=slice(part, part + 1))[0, 0]  # (H, N, d)
    norm = {"queries": layer.attn.q_norm, "keys": layer.attn.k_norm}.get(descriptor)
    vectors = vectors if norm is None else norm(vectors)
    return vectors[:, prefix:].transpose(0, 1).flatten(1)  # (H, n, d) -> (n, H * d)


def _normed_output(model: ViT, trace: AttentionTrace, block: int) -> Tensor:
    """Return a block's output after the final norm: (N, D)."""
    if block == trace.depth - 1:
        final = trace.tokens[0].detach()
        return model.norm(final) if model.config.norms.pooled else final
    if block + 1 not in trace.blocks:
        raise AnalysisError(
            f"Expected a trace with block {block + 1}, whose input is the output of block {block}, got blocks "
            f"{list(trace.blocks)}. Omit blocks=."
        )
    normed: Tensor = model.norm(trace.stream(block + 1)[0].detach())
    return normed


@dataclass(frozen=True)
class Match:
    """Two patches (row, column) that are mutual nearest neighbours, and their cosine similarity."""

    first: Patch
    second: Patch
    cosine: float


@dataclass(frozen=True, eq=False)
class PatchSimilarity:
    """Cosine similarity of the patches of two photographs.

    Args:
        cosines: (gh, gw, gh', gw'), -1..1.
        descriptor, block: what was compared; the block counts from 0.
    """

    cosines: Floats
    descriptor: Descriptor
    block: int

    __repr__ = short_repr

    def mutual(self, count: int | None = None) -> tuple[Match, ...]:
        """Return all mutual nearest neighbours, or the `count` most similar ones, by decreasing similarity.

        Raises:
            AnalysisError: for a negative count.
        """
        if count is not None and count < 0:
            raise AnalysisError(f"Expected a number of matches of at least 0, got {count}. Pass None for all.")
        first_grid, second_grid = self.cosines.shape[:2], self.cosines.shape[2:]
        table = self.cosines.reshape(first_grid[0] * first_grid[1], -1)  # (n, m)
        nearest_second, nearest_first = table.argmax(1), table.argmax(0)  # (n,), (m,)
        firsts = np.flatnonzero(nearest_first[nearest_second] == np.arange(len(table)))
        seconds = nearest_second[firsts]
        cosines = table[firsts, seconds]
        return tuple(
            Match(
                divmod(int(firsts[index]), first_grid[1]),
                divmod(int(seconds[index]), second_grid[1]),
                float(cosines[index]),
            )
            for index in np.argsort(-cosines, kind="stable")[:count]
        )


@check_arguments(AnalysisError)
def compare_patches(
    model: ViT, first: AttentionTrace, second: AttentionTrace, descriptor: Descriptor = DESCRIPTOR, block: int = BLOCK
) -> PatchSimilarity:
    """Return the cosine similarity of each patch of one photograph to each patch of another.

    Args:
        model: the model of both traces.
        first, second: traces of one image each; their grids may differ.
        descriptor, block: as for `patch_descriptors`.
    """
    vectors = (patch_descriptors(model, trace, descriptor, block) for trace in (first, second))
    one, other = (F.normalize(each.float(), dim=-1) for each in vectors)  # (n, D), (m, D)
    cosines = (one @ other.T).clamp(-1.0, 1.0).unflatten(1, second.grid).unflatten(0, first.grid)
    return PatchSimilarity(cosines.cpu().numpy(), descriptor, block % first.depth)


@torch.no_grad()
def similarity_parts(model: ViT, first: AttentionTrace, second: AttentionTrace) -> NDArray[np.float64]:
    """Split the cosine of two photographs' features over pairs of patches: (gh, gw, gh', gw'), whose sum is the cosine.

    With pooling by the mean, the features are a mean over patches, and their dot product a sum over pairs of patches.
    If the norm follows the pooling, its standard deviation is held constant for each photograph, so it is linear.

    Args:
        model: the model of both traces, which pools by the mean.
        first, second: traces of one image each.

    Raises:
        AnalysisError: for several images, or another pooling.
    """
    if model.config.pooling != "mean":
        raise AnalysisError(
            f"Expected a model that pools by the mean over patches, got pooling {model.config.pooling!r}. Explain the "
            "similarity with an attribution method: target=Similarity(view)."
        )
    one, other = (_patch_features(model, trace) for trace in (first, second))
    lengths = [each.sum(0).norm() for each in (one, other)]
    parts = (one @ other.T) / (lengths[0] * lengths[1])  # (n, F) @ (F, m) -> (n, m)
    split: NDArray[np.float64] = parts.unflatten(1, second.grid).unflatten(0, first.grid).cpu().numpy()
    return split


def _patch_features(model: ViT, trace: AttentionTrace) -> Tensor:
    """Return the contribution of each patch to the features, (n, F), float64; the sum over patches is the features."""
    check_one_image(trace)
    patches = double(trace.tokens[0, len(trace.prefix) :])  # (n, D)
    norm = model.norm
    if model.config.norms.pooled and isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        if isinstance(norm, nn.LayerNorm):  # it subtracts the mean of the channels, and adds a bias
            patches = patches - patches.mean(1, keepdim=True)
        deviation = (patches.mean(0).square().mean() + (norm.eps or 0.0)).sqrt()
        patches = patches / deviation * double(norm.weight)
        patches = patches + double(norm.bias) if isinstance(norm, nn.LayerNorm) else patches
    return patches / len(patches)
