"""Find a small set of heads and MLPs that keeps most of a target's score while all others give their mean outputs.

Wang et al. 2023, "Interpretability in the Wild" (mean ablation, faithfulness, completeness); Conmy et al. 2023,
"Towards Automated Circuit Discovery"; Syed et al. 2023, "Attribution Patching Outperforms Automated Circuit Discovery"
(the first-order estimate).

Shapes: B images, L blocks, H heads, N tokens, D width, d head width.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitviz.analysis import AnalysisError
from vitviz.analysis.bootstrap import Estimate, interval, resample
from vitviz.analysis.decomposition import centered_scores
from vitviz.attribution.target_specs import Contrast, TargetOf, resolve_target
from vitviz.attribution.targets import Target
from vitviz.fields import check_arguments
from vitviz.formatting import counted, short_repr
from vitviz.images.folders import batches, find_images, spread
from vitviz.model.edits import BlockEdit, Replacement
from vitviz.model.ops import Ops, Record
from vitviz.model.positions import Angles
from vitviz.model.vit import ViT, eval_mode
from vitviz.progress import bar
from vitviz.writing import write_table

LEAST_IMAGES = 4  # half of them find the circuit, and the other half measure it
PACE = 0.1  # share of the remaining parts that the search tries to remove at once


@dataclass(frozen=True, eq=False, kw_only=True)
class Circuit:
    """Set of heads and MLPs that keeps most of a target's score.

    A share of the score is 0 if all parts give their means, and 1 if none does.

    Args:
        heads: (block, head) of its heads, from 0.
        mlps: blocks of its MLPs.
        parts: number of all heads and MLPs of the model.
        faithfulness: share of the score that the circuit keeps if all other parts give their means.
        completeness: share that remains if only the circuit gives its means; near 0 if nothing else matters.
        random_faithfulness, random_completeness: the same for random sets of this size, means over the sets.
        found: number of images that found the circuit and the means.
        measured: number of other images that measured it.
        target: display name of the target, and `keep`, the share that the search preserved.
    """

    heads: tuple[tuple[int, int], ...]
    mlps: tuple[int, ...]
    parts: int
    faithfulness: Estimate
    completeness: Estimate
    random_faithfulness: Estimate
    random_completeness: Estimate
    found: int
    measured: int
    target: str
    keep: float

    __repr__ = short_repr

    @property
    def size(self) -> int:
        """Return the number of heads and MLPs."""
        return len(self.heads) + len(self.mlps)

    def describe(self) -> str:
        """Return the result in two sentences."""
        return (
            f"{counted(len(self.heads), 'head')} and {counted(len(self.mlps), 'MLP')} of {self.parts} parts keep "
            f"{self.faithfulness} of the score of {self.target} on {self.measured} other photographs; random sets of "
            f"this size keep {self.random_faithfulness}. Without them, {self.completeness} is left; without random "
            f"sets, {self.random_completeness}."
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one row for each part as CSV: layer from 1, and the head from 1 or "MLP"."""
        rows: list[list[object]] = [[block + 1, head + 1] for block, head in self.heads]
        write_table(path, [["layer", "part"], *rows, *([block + 1, "MLP"] for block in self.mlps)])


@check_arguments(AnalysisError)
def circuit(
    model: ViT,
    folder: str | os.PathLike[str],
    target: TargetOf | None = None,
    *,
    contrast: Contrast | None = None,
    keep: float = 0.8,
    limit: int = 40,
    sets: int = 10,
    seed: int = 0,
    batch_size: int = 8,
    progress: bool = True,
) -> Circuit:
    """Find a circuit greedily on half of the photographs of a folder, and measure it on the other half.

    The search starts with all parts. In each step it removes those whose removal changes the mean score least by a
    first-order estimate, as long as the share of the score stays at `keep`. A removed part gives its mean output at
    each token's position over the first half of the photographs, which are stretched to the model's own input size.

    Args:
        model: converted model with `pretrained`.
        folder: folder of images, searched recursively.
        target: a class, as index or label, or another target; by default each photograph's predicted class.
        contrast: (A, B), the difference of two logits; instead of `target`.
        keep: share of the score to keep, between 0 and 1.
        limit: maximum number of photographs, spread over the subfolders.
        sets: number of random sets for comparison.
        seed: seed of the random sets and of the bootstrap.
        batch_size: photographs per forward pass.
        progress: show progress on standard error.

    Raises:
        AnalysisError: for a windowed model, one without preprocessing, numbers out of range or too few images.
        DataError: without images, or if files cannot be decoded.
        ExplainError: if the target does not exist.
    """
    model.check_converted()
    depth, heads = len(model.blocks), model.config.heads
    if (about := model.pretrained) is None:
        raise AnalysisError("Expected a model with preprocessing (`pretrained`), got one without. Load it by name.")
    if not 0 < keep < 1 or sets < 1 or batch_size < 1 or seed < 0:
        raise AnalysisError(
            f"Expected keep between 0 and 1, at least one random set and photograph per batch, and a seed from 0 on, "
            f"got {keep}, {sets}, {batch_size} and {seed}. Correct them."
        )
    height, width = model.config.image_size
    preprocess = replace(about.preprocess, mode="squash", height=height, width=width, resize=None)
    files = spread(find_images(Path(folder)), limit)
    if len(files) < LEAST_IMAGES:
        raise AnalysisError(f"Expected at least {LEAST_IMAGES} photographs, got {len(files)}. Add some.")
    weight = next(model.parameters())
    images = [
        batch.images.to(weight.device, weight.dtype)
        for half in (files[::2], files[1::2])
        for batch in batches(half, preprocess, batch_size)
    ]
    half = -(-len(files[::2]) // batch_size)  # number of batches that find the circuit
    with eval_mode(model), bar(None, show=progress) as done:
        means = mean_outputs(model, images[:half])
        search, test = (Runs(model, part, means, target, contrast) for part in (images[:half], images[half:]))
        chosen = _search(search, keep, done.update)
        found = _measure(test, chosen, sets, np.random.default_rng(seed))
    of_heads, of_mlps = chosen[:, :heads].nonzero().tolist(), chosen[:, heads].nonzero().flatten().tolist()
    return Circuit(
        heads=tuple((block, head) for block, head in of_heads),
        mlps=tuple(of_mlps),
        parts=depth * (heads + 1),
        found=len(files[::2]),
        measured=len(files[1::2]),
        target=search.name if target is not None or contrast is not None else "each photograph's predicted class",
        keep=keep,
        **found,
    )


Means = tuple[Tensor, Tensor]
"""Mean outputs of one block's heads, (1, H, N, d), and of its MLP, (1, N, D)."""


class Runs:
    """Runs over batches of images in which parts of the model give their means.

    Masks are (L, H + 1): 1 for a part that gives its own output and 0 for one that gives its mean, heads first, then
    the MLP.
    """

    def __init__(
        self,
        model: ViT,
        batches: Sequence[Tensor],
        means: Sequence[Means],
        target: TargetOf | None,
        contrast: Contrast | None,
    ) -> None:
        self.model, self.means = model, means
        self.inputs: list[tuple[Tensor, Target]] = []
        for images in batches:
            with torch.no_grad():
                embedded, grid = model.embed(images)
                self.angles = model.angles(grid)
                logits = None if model.head is None else model.run(embedded, self.angles)
            resolved = resolve_target(model, logits, target, contrast, len(images))
            if resolved is None:
                raise AnalysisError(
                    "Expected a target for a model without a classifier, got none. Name one, such as Unit(0)."
                )
            self.inputs.append((embedded, resolved))
        self.name = self.inputs[0][1].description
        self.all = torch.ones(model.config.depth, model.config.heads + 1)
        self.own, self.none = self.scores(self.all), self.scores(torch.zeros_like(self.all))

    def scores(self, mask: Tensor) -> Tensor:
        """Return the score of each image, (B,), float64."""
        with torch.no_grad():
            return torch.cat([self._scores(given, mask).double().cpu() for given in self.inputs])

    def slopes(self, mask: Tensor) -> Tensor:
        """Return the gradient of the mean score in the mask: (L, H + 1)."""
        mask = mask.clone().requires_grad_()
        total = torch.zeros_like(mask)
        for given in self.inputs:
            with torch.enable_grad():
                total += torch.autograd.grad(self._scores(given, mask).sum(), mask)[0]
        return total / len(self.own)

    def share(self, scores: Tensor) -> float:
        """Return the share of the mean score that scores keep."""
        return float((scores - self.none).mean() / (self.own - self.none).mean())

    def _scores(self, given: tuple[Tensor, Target], mask: Tensor) -> Tensor:
        embedded, target = given
        return masked_scores(self.model, embedded, self.angles, target, self.means, mask)


def masked_scores(
    model: ViT, embedded: Tensor, angles: Angles | None, target: Target, means: Sequence[Means], mask: Tensor
) -> Tensor:
    """Return the scores of embedded images, (B, N, D) -> (B,), if some parts give their means.

    `mask` is that of `Runs`, or one for each image, (B, L, H + 1).
    """
    x, mask = embedded, mask.to(embedded)
    for block, (heads, mlp) in enumerate(means):
        of_heads, of_mlp = (
            mask[..., block, :-1, None, None],
            mask[..., block, -1, None, None],
        )  # (B, H, 1, 1), (B, 1, 1)
        edit = BlockEdit(heads=Replacement(heads, of_heads), mlp=Replacement(mlp, of_mlp))
        x = model.leave(block, model.blocks[block](x, angles, Ops(edit)), angles)
    return centered_scores(target, target.read(model, model.finish(x)))


@torch.no_grad()
def mean_outputs(model: ViT, batches: Sequence[Tensor]) -> list[Means]:
    """Return the mean outputs over images of each block's heads, (1, H, N, d), and MLP, (1, N, D)."""
    totals: list[Means] = []
    count = sum(map(len, batches))
    for images in batches:
        embedded, grid = model.embed(images)
        model.encode(embedded, model.angles(grid), ops=(record := Record()))
        sums = [
            (heads.sum(0, keepdim=True) / count, mlp.sum(0, keepdim=True) / count)
            for heads, mlp in zip(record.heads, record.mlps, strict=True)
        ]
        totals = [(a + c, b + d) for (a, b), (c, d) in zip(totals, sums, strict=True)] if totals else sums
    return totals


def _search(runs: Runs, keep: float, done: Callable[[int], object]) -> Tensor:
    """Remove parts as long as the share of the score stays at `keep`; return the mask of those that stay."""
    mask, needed = runs.all.flatten(), torch.zeros(runs.all.numel(), dtype=torch.bool)
    while (open_parts := mask.bool() & ~needed).any():
        order = runs.slopes(mask.view_as(runs.all)).abs().flatten().masked_fill(~open_parts, torch.inf).argsort()
        count = max(1, int(PACE * open_parts.sum()))
        while count:
            tried = mask.clone()
            tried[order[:count]] = 0.0
            done(1)
            if runs.share(runs.scores(tried.view_as(runs.all))) >= keep:
                mask = tried
                break
            count //= 2
        needed[order[0]] |= not count  # even the part that seemed to matter least
    return mask.view_as(runs.all)


def _measure(runs: Runs, mask: Tensor, sets: int, random: np.random.Generator) -> dict[str, Estimate]:
    """Return faithfulness and completeness of a set of parts and of random sets of its size."""
    orders = [torch.from_numpy(random.permutation(mask.numel())) for _ in range(sets)]
    others = [mask.flatten()[order].view_as(mask) for order in orders]
    own, none = runs.own.numpy(), runs.none.numpy()  # (B,)
    samples = resample(len(own), random)

    def estimate(masks: Sequence[Tensor]) -> Estimate:
        scores = np.mean([runs.scores(each).numpy() for each in masks], axis=0)  # (B,)

        def share(rows: NDArray[np.int64]) -> NDArray[np.float64]:
            shares: NDArray[np.float64] = (scores - none)[rows].mean(-1) / (own - none)[rows].mean(-1)
            return shares

        return Estimate(float(share(np.arange(len(own)))), *interval(share(samples)))

    return {
        "faithfulness": estimate([mask]),
        "completeness": estimate([1 - mask]),
        "random_faithfulness": estimate(others),
        "random_completeness": estimate([1 - other for other in others]),
    }
