"""Does a map point at the thing? Held against a mask of it, in the pixels of the photograph.

Zhang et al. 2018, "Top-down Neural Attention by Excitation Backprop" (the pointing game); Chefer, Gur and Wolf 2021,
"Transformer Interpretability Beyond Attention Visualization" (segmentation by a threshold at the map's mean).

That a map lies on the thing does not prove that the model used the thing: these tests ask for what people expect.

Shapes: gh x gw patches, H x W pixels of the upright photograph.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vitviz.preprocess import Geometry
from vitviz.probe import ProbeError

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Segmentation:
    """How well the patches above a threshold cover a mask, over the pixels that the model saw.

    Args:
        iou: intersection over union of the mask and the patches above the map's mean.
        background_iou: the same of what lies outside both: the mean of the two is the literature's mIoU.
        accuracy: the share of pixels that are on the same side of both.
        threshold: the mean of the map over the pixels.
        best_iou: at the best of all thresholds. It is chosen by looking at the mask: a bound, not a result.
        best_threshold: the lowest score that is inside there.
        average_precision: area under precision over recall, as a sum of steps, equal scores together.
        share: the part of the pixels that the mask takes: the average precision of chance.
    """

    iou: float
    background_iou: float
    accuracy: float
    threshold: float
    best_iou: float
    best_threshold: float
    average_precision: float
    share: float


def pointing_game(
    values: npt.NDArray[np.floating[Any]], geometry: Geometry, mask: Mask, tolerance: float = 0.0
) -> bool:
    """Whether the middle of the strongest patch lies on the mask.

    Args:
        values: (gh, gw), the scores of the patches; of equal ones the first in reading order counts.
        geometry: where the patches lie in the photograph.
        mask: (H, W) bools, the thing in the upright photograph.
        tolerance: how far beside the mask is near enough, in pixels of the photograph; the paper allows 15.

    Raises:
        ProbeError: if values or mask do not fit.
    """
    values, mask = _checked(values, geometry, mask)
    row, col = divmod(int(values.argmax()), values.shape[1])
    left, top, right, bottom = geometry.patch_box(row, col, (values.shape[0], values.shape[1]))
    seen = geometry.seen
    left, top, right, bottom = max(left, seen[0]), max(top, seen[1]), min(right, seen[2]), min(bottom, seen[3])
    if left >= right or top >= bottom:
        return False  # the strongest patch shows padding alone
    x, y = int((left + right) / 2), int((top + bottom) / 2)
    rows, cols = mask.nonzero()
    return bool((np.hypot(rows - y, cols - x) <= tolerance).any())


def segmentation(values: npt.NDArray[np.floating[Any]], geometry: Geometry, mask: Mask) -> Segmentation:
    """The map as a segmentation: the patches above its mean, above the best threshold, and over all thresholds.

    A pixel belongs to the patch that saw its middle; pixels that the model did not see count for nothing.

    Args:
        values, geometry, mask: as for `pointing_game`.

    Raises:
        ProbeError: if values or mask do not fit, or the model saw nothing of the thing or nothing else.
    """
    values, mask = _checked(values, geometry, mask)
    grid = (values.shape[0], values.shape[1])
    pixels, hits = (_per_patch(one, geometry, grid) for one in (np.ones_like(mask), mask))  # (gh, gw) each
    total, inside = pixels.sum(), hits.sum()
    if not 0 < inside < total:
        what = "nothing of the thing" if not inside else "nothing but the thing"
        raise ProbeError(f"Expected a mask that divides what the model saw, and it saw {what}. Take another image.")
    mean = float((values * pixels).sum() / total)
    mean = min(max(mean, float(values.min())), float(values.max()))  # rounding must not put it below a constant map
    above = values > mean
    both, outside = hits[above].sum(), (pixels - hits)[~above].sum()
    # All thresholds at once: patches by falling score, those with equal scores together.
    levels, which = np.unique(-values, return_inverse=True)
    found, taken = (np.bincount(which.reshape(-1), weights=of.reshape(-1)).cumsum() for of in (hits, pixels))
    some = taken > 0
    levels, found, taken = levels[some], found[some], taken[some]
    overlap = found / (inside + taken - found)  # intersection over union down to each level
    best = int(overlap.argmax())
    return Segmentation(
        iou=float(both / (inside + pixels[above].sum() - both)),
        background_iou=float(outside / (total - both)),  # what is outside both, of all that is outside one
        accuracy=float((both + outside) / total),
        threshold=mean,
        best_iou=float(overlap[best]),
        best_threshold=float(-levels[best]),
        average_precision=float((np.diff(found, prepend=0.0) / inside * found / taken).sum()),
        share=float(inside / total),
    )


def _per_patch(mask: Mask, geometry: Geometry, grid: tuple[int, int]) -> npt.NDArray[np.float64]:
    """How many pixels of the mask each patch saw: (H, W) -> (gh, gw)."""
    boxes = [geometry.patch_box(row, 0, grid) for row in range(grid[0])]
    rows = [_pixels(top, bottom, mask.shape[0]) for _, top, _, bottom in boxes]
    boxes = [geometry.patch_box(0, col, grid) for col in range(grid[1])]
    cols = [_pixels(left, right, mask.shape[1]) for left, _, right, _ in boxes]
    bands = np.stack([mask[some].sum(axis=0, dtype=np.float64) for some in rows])  # (gh, W)
    return np.stack([bands[:, some].sum(axis=1) for some in cols], axis=1)  # (gh, gw)


def _pixels(start: float, end: float, count: int) -> slice:
    """The pixels 0..count-1 whose middles lie from start up to end: as `Geometry.patch_at` shares them out."""
    first, last = (bisect_left(range(count), edge, key=lambda pixel: pixel + 0.5) for edge in (start, end))
    return slice(first, last)


def _checked(values: Any, geometry: Geometry, mask: Any) -> tuple[npt.NDArray[np.float64], Mask]:
    """Scores and mask as arrays that fit together."""
    scores, mask = np.asarray(values, np.float64), np.asarray(mask)
    if scores.ndim != 2 or not scores.size or not np.isfinite(scores).all():
        raise ProbeError(f"Expected finite scores of patches (gh, gw), got shape {scores.shape}, or NaN.")
    width, height = geometry.image
    if mask.shape != (height, width) or mask.dtype != np.bool_:
        raise ProbeError(
            f"Expected a mask of bools ({height}, {width}), one for each pixel of the upright photograph; got "
            f"{mask.dtype} {mask.shape}. Turn it upright and compare it: mask > 0."
        )
    return scores, mask
