"""Fit one basis of principal components to the patches of several photographs, so that colors mean the same in all.

Oquab et al. 2024, "DINOv2: Learning Robust Visual Features without Supervision", figure 1: the first component
separates foreground and background.

Shapes: n patches of all photographs, D width, K components.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from vitviz.analysis import AnalysisError
from vitviz.analysis.pairs import BLOCK, Descriptor, patch_descriptors
from vitviz.analysis.tokens import PERCENTILES, point_up, principal_components
from vitviz.fields import check_arguments
from vitviz.formatting import short_repr
from vitviz.model.trace import AttentionTrace
from vitviz.model.vit import ViT
from vitviz.writing import read_arrays, write_arrays

Floats = NDArray[np.float32]
DESCRIPTOR: Descriptor = "keys"
"""With `pairs.BLOCK`, the descriptor whose masks change least in pairs (default model; benchmarks/README.md)."""
BINS = 256  # number of bins of the histogram for the threshold of the foreground


@dataclass(frozen=True, eq=False, kw_only=True)
class PCABasis:
    """Principal components of the patches of several photographs.

    Args:
        components: (K, D), unit vectors.
        explained: (K,), fraction of the variance that each explains.
        low, high: (K,), scores that become colors 0 and 1.
        threshold: patches whose score on the first component is above it belong to the foreground.
        descriptor, block: what describes a patch, see `patch_descriptors`.
    """

    components: Floats
    explained: Floats
    low: Floats
    high: Floats
    threshold: float
    descriptor: Descriptor
    block: int

    __repr__ = short_repr

    def scores(self, model: ViT, trace: AttentionTrace) -> Floats:
        """Return the scores of a photograph's patches: (gh, gw, K).

        Raises:
            AnalysisError: if the model's descriptors have another width.
        """
        vectors = _unit_descriptors(model, trace, self.descriptor, self.block).float().numpy()  # (n, D)
        if vectors.shape[1] != self.components.shape[1]:
            raise AnalysisError(
                f"Expected descriptors of {self.components.shape[1]} numbers, as in the basis, got {vectors.shape[1]}. "
                "Use the model of the basis."
            )
        scores: Floats = (vectors @ self.components.T).reshape(*trace.grid, -1)
        return scores

    def colors(self, model: ViT, trace: AttentionTrace) -> Floats:
        """Return the first three scores of a photograph's patches as red, green and blue: (gh, gw, 3), 0..1."""
        spread = np.where(self.high > self.low, self.high - self.low, 1.0)
        colors: Floats = ((self.scores(model, trace) - self.low) / spread).clip(0.0, 1.0).astype(np.float32)
        return colors[..., :3]

    def foreground(self, model: ViT, trace: AttentionTrace) -> NDArray[np.bool_]:
        """Return the mask of the foreground, computed from the first component: (gh, gw)."""
        mask: NDArray[np.bool_] = self.scores(model, trace)[..., 0] > self.threshold
        return mask

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the basis to a .npz file without pickle."""
        target = Path(path)
        if target.suffix.lower() != ".npz":
            raise AnalysisError(f"Expected a name that ends in .npz, got {target.name!r}. Rename it.")
        write_arrays(target, {name: getattr(self, name) for name in SAVED})
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "PCABasis":
        """Read a basis that `save` wrote.

        Raises:
            AnalysisError: if the file is damaged or has another format.
        """
        saved = read_arrays(path, SAVED, AnalysisError)
        plain = {name: saved[name].item() for name in ("threshold", "descriptor", "block")}
        return cls(**saved | plain)


SAVED = tuple(field.name for field in fields(PCABasis))


@check_arguments(AnalysisError)
def fit_pca(
    model: ViT,
    traces: Sequence[AttentionTrace],
    descriptor: Descriptor = DESCRIPTOR,
    block: int = BLOCK,
    *,
    count: int = 3,
) -> PCABasis:
    """Fit principal components to the patches of several photographs, from descriptors divided by their lengths.

    The sign of the first component is chosen so that patches at the borders of the photographs, which are mostly
    background, score lower than the rest. The threshold of the foreground follows Otsu (1979): it maximizes the
    variance between the two groups of patches.

    Args:
        model: the model of the traces.
        traces: traces of one image each.
        descriptor, block: as for `patch_descriptors`.
        count: K, the number of components.

    Raises:
        AnalysisError: without traces, or for fewer than three components.
    """
    if not traces or count < 3:
        raise AnalysisError(
            f"Expected at least one trace and three components, got {len(traces)} and {count}. Pass more."
        )
    samples = torch.cat([_unit_descriptors(model, trace, descriptor, block) for trace in traces])  # (n, D)
    components, explained = principal_components(samples, count)
    components = point_up(components)
    first = samples @ components[0]
    border = torch.cat([_border(trace.grid) for trace in traces])
    if bool(border.any()) and bool((~border).any()) and first[border].mean() > first[~border].mean():
        components[0], first = -components[0], -first
    low, high = np.percentile((samples @ components.T).numpy(), PERCENTILES, axis=0)
    return PCABasis(
        components=components.float().numpy(),
        explained=explained.float().numpy(),
        low=low.astype(np.float32),
        high=high.astype(np.float32),
        threshold=_otsu(first.numpy()),
        descriptor=descriptor,
        block=block % traces[0].depth,
    )


def _unit_descriptors(model: ViT, trace: AttentionTrace, descriptor: Descriptor, block: int) -> torch.Tensor:
    """Return the descriptors of a photograph's patches, divided by their lengths: (n, D), float64."""
    return F.normalize(patch_descriptors(model, trace, descriptor, block).cpu().double(), dim=1)


def _border(grid: tuple[int, int]) -> torch.Tensor:
    """Return which patches lie at the border of a grid: (gh * gw,) bools."""
    border = torch.ones(grid, dtype=torch.bool)
    border[1:-1, 1:-1] = False
    return border.flatten()


def _otsu(values: NDArray[np.float64]) -> float:
    """Return the threshold that maximizes the between-class variance of the values above and below it (Otsu 1979)."""
    counts, edges = np.histogram(values, BINS)
    middles, below = (edges[:-1] + edges[1:]) / 2, counts.cumsum()
    sums, above = (counts * middles).cumsum(), len(values) - below
    with np.errstate(divide="ignore", invalid="ignore"):
        means = sums / below - (sums[-1] - sums) / above
        between = np.nan_to_num(below * above * means**2)
    return float(edges[1:][between.argmax()])
