"""Localization: a map against a mask of the object, in the pixels of the photograph.

Zhang et al. 2018, "Top-down Neural Attention by Excitation Backprop" (the pointing game); Chefer, Gur and Wolf 2021,
"Transformer Interpretability Beyond Attention Visualization" (segmentation by a threshold at the map's mean).

A map on the object does not prove that the model used the object: these measures compare with what people expect.

Shapes: gh x gw patches, H x W pixels of the upright photograph, n pixels that the model saw.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitviz.evaluation import EvaluationError
from vitviz.images.geometry import Geometry

Mask = NDArray[np.bool_]
Scores = NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True)
class Segmentation:
    """Agreement of the patches above a threshold with a mask, over the pixels that the model saw.

    Args:
        iou: intersection over union of the mask and the patches above the map's mean.
        background_iou: the same of the two complements: the mean of both is the literature's mIoU.
        accuracy: the share of pixels that are inside both or outside both.
        average_precision: area under precision over recall, as a sum of steps, equal scores together.
        share: the part of the pixels in the mask: the average precision of chance.
    """

    iou: float
    background_iou: float
    accuracy: float
    average_precision: float
    share: float


def pointing_game(values: Scores, geometry: Geometry, mask: Mask, tolerance: float = 0.0) -> bool:
    """Return whether the centre of the strongest patch lies on the mask.

    Args:
        values: (gh, gw), the scores of the patches; of equal ones the first in reading order counts.
        geometry: of the patches in the photograph.
        mask: (H, W) bools, the object in the upright photograph.
        tolerance: allowed distance from the mask in pixels of the photograph; the paper allows 15.

    Raises:
        EvaluationError: if values or mask do not fit.
    """
    values, mask = _checked(values, geometry, mask)
    row, col = divmod(int(values.argmax()), values.shape[1])
    box, seen = np.array(geometry.patch_box(row, col, (values.shape[0], values.shape[1]))), np.array(geometry.seen)
    low, high = np.maximum(box[:2], seen[:2]), np.minimum(box[2:], seen[2:])  # (x, y) each
    if (low >= high).any():
        return False  # the strongest patch shows padding alone
    x, y = ((low + high) / 2).astype(int)
    rows, cols = mask.nonzero()
    return bool((np.hypot(rows - y, cols - x) <= tolerance).any())


def segmentation(values: Scores, geometry: Geometry, mask: Mask) -> Segmentation:
    """Measure the map as a segmentation: above its mean, and over all thresholds.

    A pixel belongs to the patch that saw its centre; pixels that the model did not see are left out.

    Args:
        values, geometry, mask: as for `pointing_game`.

    Raises:
        EvaluationError: if values or mask do not fit, or the mask holds none or all of the pixels that the model saw.
    """
    values, mask = _checked(values, geometry, mask)
    gh, gw = values.shape
    boxes = [geometry.patch_box(row, 0, (gh, gw)) for row in range(gh)]
    y, rows = _pixels([*(top for _, top, _, _ in boxes), boxes[-1][3]], mask.shape[0])
    boxes = [geometry.patch_box(0, col, (gh, gw)) for col in range(gw)]
    x, cols = _pixels([*(left for left, _, _, _ in boxes), boxes[-1][2]], mask.shape[1])
    scores, inside = values[np.ix_(rows, cols)].ravel(), mask[np.ix_(y, x)].ravel()  # (n,) each
    if not 0 < (count := int(inside.sum())) < inside.size:
        raise EvaluationError(
            f"Expected a mask of some of the pixels the model saw, got {count:,} of {inside.size:,}. Take another one."
        )
    # Rounding must not put the mean below a constant map.
    above = scores > np.clip(scores.mean(), values.min(), values.max())
    # All thresholds at once: pixels by falling score, those with equal scores together.
    _, which = np.unique(-scores, return_inverse=True)
    found, taken = np.bincount(which, weights=inside).cumsum(), np.bincount(which).cumsum()
    return Segmentation(
        iou=float((above & inside).sum() / (above | inside).sum()),
        background_iou=float((~above & ~inside).sum() / (~above | ~inside).sum()),
        accuracy=float((above == inside).mean()),
        average_precision=float((np.diff(found, prepend=0.0) / count * found / taken).sum()),
        share=float(inside.mean()),
    )


def _pixels(edges: list[float], count: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the pixels 0..count-1 whose centres lie between patch edges, and the patch of each, along one axis."""
    patch = np.searchsorted(edges, np.arange(count) + 0.5, side="right") - 1
    (pixels,) = ((patch >= 0) & (patch < len(edges) - 1)).nonzero()
    return pixels, patch[pixels]


def _checked(values: Any, geometry: Geometry, mask: Any) -> tuple[NDArray[np.float64], Mask]:
    """Return scores and mask as arrays that fit together."""
    scores, mask = np.asarray(values, np.float64), np.asarray(mask)
    if scores.ndim != 2 or not scores.size or not np.isfinite(scores).all():
        raise EvaluationError(f"Expected finite scores (gh, gw), got shape {scores.shape}, or NaN. Take one map.")
    width, height = geometry.image
    if mask.shape != (height, width) or mask.dtype != np.bool_:
        raise EvaluationError(
            f"Expected a mask of bools ({height}, {width}), one for each pixel of the upright photograph, got "
            f"{mask.dtype} {mask.shape}. Turn it upright and compare it: mask > 0."
        )
    return scores, mask
