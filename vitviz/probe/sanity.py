"""Does a map depend on what the model has learned? Its weights are made random, and the map should not survive.

Adebayo et al. 2018, "Sanity Checks for Saliency Maps" (model parameter randomisation, section 3). A method whose map
stays the same shows the image, not the model.

Shapes: B images, n = gh x gw patches, S stages.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from vitviz.explain.case import Named
from vitviz.explain.methods import attribute, method_named
from vitviz.model import ViT
from vitviz.probe import ProbeError
from vitviz.probe.curves import Floats, Progress, ranked
from vitviz.probe.faithfulness import predicted

Order = Literal["cascading", "independent"]

TOP = 0.1
"""The share of the patches that counts as the top of a map."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Sanity:
    """How much of a map is left when parts of the model are random.

    Args:
        parts: the S parts of the model, from the last to the first: "read-out", "block 11", ..., "embedding" (blocks
            counted from 0).
        ranks: (S, B), Spearman's correlation of the map with the original's; 1 is the same order, 0 none. NaN where a
            map is the same everywhere and has no order.
        sizes: (S, B), the same of the scores' magnitudes; equal to `ranks` for a map that is never negative.
        tops: (S, B), the share of the top tenth of the patches that is the same; chance is a tenth.
        order: "cascading": a stage has the named part and all before it in the list random. "independent": it alone.
        method: of the maps.
        seconds: how long it took.
    """

    parts: tuple[str, ...]
    ranks: Floats
    sizes: Floats
    tops: Floats
    order: Order
    method: str
    seconds: float

    def words(self) -> str:
        """What is left when all weights are random, or what the parts leave at most, in a sentence."""
        title = method_named(self.method).title
        means = self.ranks.mean(axis=1)  # (S,)
        if self.order == "cascading":
            left, what = means[-1], "with all weights random"
        else:
            known = np.isfinite(means)
            left = means[known][np.abs(means[known]).argmax()] if known.any() else np.nan
            what = "with the weights of one part random, at most"
        if not np.isfinite(left):
            return f"{title}, {what}, gives a map without any order."
        return f"{title}, {what}, gives a map whose order correlates with the first one's at {left:.2f} (0 is none)."


def sanity(
    model: ViT,
    images: Tensor,
    target: Named | Sequence[Named] | Tensor | None = None,
    method: str = "gae",
    *,
    order: Order = "cascading",
    seed: int = 0,
    progress: Progress | None = None,
    **options: Any,
) -> Sanity:
    """Make a copy's weights random, part by part, and compare the maps.

    Every tensor of weights is drawn anew from a normal distribution with its own mean and deviation: what was learned
    is gone, while tokens and attention keep their scale.

    Args:
        model: in eval mode. It stays as it is.
        images: (B, channels, H, W) normalised pixels.
        target: the class, by index or label; by default the one that the model itself predicts, at all stages.
        method: its name; `options` are the method's.
        order: "cascading" from the read-out down to the embedding, or "independent", each part alone.
        seed: of the random weights.
        progress: called with (stages that are done, all of them).

    Raises:
        ProbeError: for an unknown order.
        ExplainError: if there is no such method, class or option.
    """
    began = time.perf_counter()
    if order not in get_args(Order):
        raise ProbeError(f"Expected the order cascading or independent, got {order!r}.")
    images = images.to(next(model.parameters()).device)
    classes = predicted(model, images, target)  # (B,)

    def maps(of: ViT) -> npt.NDArray[np.float64]:
        scores = attribute(of, images, classes, method, **options).patches.flatten(1)  # (B, gh, gw) -> (B, n)
        return np.asarray(scores.cpu().double().numpy())

    original = maps(model)
    changed = copy.deepcopy(model)
    stages = parts_of(changed)
    ranks, sizes, tops = (np.empty((len(stages), len(images))) for _ in range(3))
    for index, tensors in enumerate(stages.values()):
        with spared(tensors) if order == "independent" else nullcontext():
            randomise(tensors, seed + index)
            now = maps(changed)
        ranks[index] = spearman(original, now)
        sizes[index] = spearman(np.abs(original), np.abs(now))
        tops[index] = overlap(original, now)
        if progress is not None:
            progress(index + 1, len(stages))
    seconds = time.perf_counter() - began
    return Sanity(parts=tuple(stages), ranks=ranks, sizes=sizes, tops=tops, order=order, method=method, seconds=seconds)


def parts_of(model: ViT) -> dict[str, list[nn.Parameter]]:
    """All weights of a model by its parts, from the read-out (final norm, pooling, classifier) to the embedding."""
    blocks = [f"block {index}" for index in reversed(range(model.config.depth))]
    parts: dict[str, list[nn.Parameter]] = {name: [] for name in ("read-out", *blocks, "embedding")}
    for name, weights in model.named_parameters():
        first, *rest = name.split(".")
        if first == "blocks":
            parts[f"block {rest[0]}"].append(weights)
        else:
            parts["read-out" if first in READ_OUT else "embedding"].append(weights)
    return parts


READ_OUT = {"norm", "attn_pool", "head", "head_dist"}


@torch.no_grad()
def randomise(tensors: Sequence[nn.Parameter], seed: int) -> None:
    """Draw weights anew, in place, each tensor with its own mean and deviation."""
    generator = torch.Generator().manual_seed(seed)
    for weights in tensors:
        noise = torch.randn(weights.shape, generator=generator)  # on the CPU: the same numbers for every device
        weights.copy_(weights.mean() + weights.std(correction=0) * noise.to(weights))


@contextmanager
def spared(tensors: Sequence[nn.Parameter]) -> Iterator[None]:
    """These weights are afterwards as they were before."""
    saved = [weights.detach().clone() for weights in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for weights, before in zip(tensors, saved, strict=True):
                weights.copy_(before)


def spearman(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> Floats:
    """Correlation of the ranks of two maps, equal scores sharing their mean rank: (B, n) each -> (B,).

    NaN where a map is the same everywhere.
    """
    x, y = (np.stack([_ranks(row) for row in rows]) for rows in (first, second))
    x, y = (ranks - ranks.mean(axis=1, keepdims=True) for ranks in (x, y))
    spread = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    both = (x * y).sum(axis=1)
    known = spread > 0
    return np.where(known, both / np.where(known, spread, 1.0), np.nan)


def _ranks(row: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Ranks from 0, rising; equal numbers share the mean of theirs: (n,) -> (n,)."""
    _, which, counts = np.unique(row, return_inverse=True, return_counts=True)
    mean = counts.cumsum() - (counts + 1) / 2
    return np.asarray(mean[which], np.float64)


def overlap(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> Floats:
    """The share of the top tenth of the patches that two maps have in common: (B, n) each -> (B,).

    Where equal scores lie on both sides of the cut, each map chooses among its own by lot: patches that neither map
    tells apart are not agreement.
    """
    count = max(1, round(TOP * first.shape[1]))
    maps = (torch.from_numpy(rows) for rows in (first, second))
    tops = [ranked(one, seed)[:, :count].numpy() for seed, one in enumerate(maps)]  # (B, k) each
    return np.array([len(np.intersect1d(one, other)) / count for one, other in zip(*tops, strict=True)])
