"""Measure localization: compare a map with a mask of the object in pixels of the photograph.

Zhang et al. 2018, "Top-down Neural Attention by Excitation Backprop" (the pointing game); Chefer, Gur and Wolf 2021,
"Transformer Interpretability Beyond Attention Visualization" (segmentation by a threshold at the map's mean).

A map on the object does not prove that the model used it: these measures compare with human expectations.

Shapes: gh x gw patches, H x W pixels of the upright photograph, n pixels seen by the model.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitviz.evaluation import EvaluationError
from vitviz.images.geometry import Geometry

Mask = NDArray[np.bool_]
Scores = NDArray[np.floating[Any]]
Places = tuple[NDArray[np.intp], NDArray[np.intp]]
"""Pixels along one axis, and the patch of each."""


@dataclass(frozen=True, kw_only=True)
class Segmentation:
    """Agreement of thresholded patches with a mask, over the pixels seen by the model.

    Args:
        iou: intersection over union of the mask and the patches above the map's mean.
        background_iou: the same for the complements; the mean of both is the mIoU of the literature.
        accuracy: share of pixels on which both agree.
        average_precision: area under the precision-recall curve as a sum of steps; equal scores form one step.
        share: share of pixels in the mask, the average precision at chance level.
    """

    iou: float
    background_iou: float
    accuracy: float
    average_precision: float
    share: float


def pointing_game(values: Scores, geometry: Geometry, mask: Mask, tolerance: float = 0.0) -> bool:
    """Return whether the centre of the strongest patch lies on the mask.

    Args:
        values: (gh, gw), patch scores; among equal maxima, the first in reading order counts.
        geometry: geometry of the patches in the photograph.
        mask: (H, W) bools, the object in the upright photograph.
        tolerance: allowed distance from the mask in pixels of the photograph; 15 in the paper.

    Raises:
        EvaluationError: if values or mask do not fit.
    """
    values, mask = _checked(values, geometry, mask)
    row, col = divmod(int(values.argmax()), values.shape[1])
    box, seen = np.array(geometry.patch_box(row, col, (values.shape[0], values.shape[1]))), np.array(geometry.seen)
    low, high = np.maximum(box[:2], seen[:2]), np.minimum(box[2:], seen[2:])  # (x, y) each
    if (low >= high).any():
        return False  # the strongest patch contains only padding
    x, y = ((low + high) / 2).astype(int)
    rows, cols = mask.nonzero()
    return bool((np.hypot(rows - y, cols - x) <= tolerance).any())


def mass(values: Scores, geometry: Geometry, mask: Mask) -> float:
    """Return the share of the positive scores that lies on the mask, 0..1 (relevance mass accuracy, Arras et al. 2022).

    A map without positive scores gets the share of the pixels in the mask, as a constant map does. Only pixels seen by
    the model count; a pixel belongs to the patch that contains its centre.

    Args:
        values, geometry, mask: as for `pointing_game`.

    Raises:
        EvaluationError: if values or mask do not fit.
    """
    values, mask = _checked(values, geometry, mask)
    (y, rows), (x, cols) = _seen(geometry, values.shape, mask.shape)
    scores, inside = values[np.ix_(rows, cols)].clip(0), mask[np.ix_(y, x)]
    return float(scores[inside].sum() / scores.sum()) if scores.any() else float(inside.mean())


def segmentation(values: Scores, geometry: Geometry, mask: Mask) -> Segmentation:
    """Evaluate the map as a segmentation, at its mean and over all thresholds.

    A pixel belongs to the patch that contains its centre; pixels not seen by the model are excluded.

    Args:
        values, geometry, mask: as for `pointing_game`.

    Raises:
        EvaluationError: if values or mask do not fit, or the mask contains none or all of the pixels seen by the model.
    """
    values, mask = _checked(values, geometry, mask)
    (y, rows), (x, cols) = _seen(geometry, values.shape, mask.shape)
    scores, inside = values[np.ix_(rows, cols)].ravel(), mask[np.ix_(y, x)].ravel()  # (n,) each
    if not 0 < (count := int(inside.sum())) < inside.size:
        raise EvaluationError(
            f"Expected a mask of some of the pixels the model saw, got {count:,} of {inside.size:,}. Pass another mask."
        )
    # The rounded mean must not be below a constant map.
    above = scores > np.clip(scores.mean(), values.min(), values.max())
    # All thresholds at once: pixels by decreasing score, grouped by equal scores.
    _, group = np.unique(-scores, return_inverse=True)
    hits, selected = np.bincount(group, weights=inside).cumsum(), np.bincount(group).cumsum()
    return Segmentation(
        iou=float((above & inside).sum() / (above | inside).sum()),
        background_iou=float((~above & ~inside).sum() / (~above | ~inside).sum()),
        accuracy=float((above == inside).mean()),
        average_precision=float((np.diff(hits, prepend=0.0) / count * hits / selected).sum()),
        share=float(inside.mean()),
    )


def _seen(geometry: Geometry, grid: tuple[int, ...], shape: tuple[int, ...]) -> tuple[Places, Places]:
    """Return the pixel rows and the pixel columns that the model saw, each with the index of their patches."""
    gh, gw = grid
    boxes = [geometry.patch_box(row, 0, (gh, gw)) for row in range(gh)]
    rows = _pixels([*(top for _, top, _, _ in boxes), boxes[-1][3]], shape[0])
    boxes = [geometry.patch_box(0, col, (gh, gw)) for col in range(gw)]
    return rows, _pixels([*(left for left, _, _, _ in boxes), boxes[-1][2]], shape[1])


def _pixels(edges: list[float], count: int) -> Places:
    """Return pixels 0..count-1 with centres between patch edges, and the patch of each, along one axis."""
    patch = np.searchsorted(edges, np.arange(count) + 0.5, side="right") - 1
    (pixels,) = ((patch >= 0) & (patch < len(edges) - 1)).nonzero()
    return pixels, patch[pixels]


def _checked(values: Any, geometry: Geometry, mask: Any) -> tuple[NDArray[np.float64], Mask]:
    """Check scores and mask, and return them as arrays."""
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
