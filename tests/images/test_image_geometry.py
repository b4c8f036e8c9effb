"""Which pixels of the photograph each patch saw."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from vitviz.images.decoding import ImageError
from vitviz.images.geometry import Geometry
from vitviz.images.preprocess import Preprocess

MODES = ("crop", "squash", "pad", "native")
PATCH = 8
SMALL = Preprocess(height=4 * PATCH, width=6 * PATCH, multiple=PATCH)
sides = st.integers(1, 400)
modes = st.sampled_from(MODES)


@settings(max_examples=80)
@given(w=st.integers(2, 256), h=st.integers(2, 256), mode=modes)
@example(w=3, h=256, mode="crop")
@example(w=3, h=256, mode="pad")
@example(w=256, h=3, mode="native")
def test_every_patch_reads_its_own_place(w: int, h: int, mode: str) -> None:
    """Photographs whose brightness is x, then y: each patch's mean is its box's centre, to a fraction of a pixel."""
    preprocess = replace(SMALL, mode=mode, interpolation="bilinear")
    geometry = preprocess(Image.new("RGB", (w, h))).geometry
    gh, gw = (length // PATCH for length in geometry.input)
    x, y = np.meshgrid(np.arange(w), np.arange(h))
    ramps = np.stack([x, y, np.full_like(x, 255)], axis=-1).astype(np.uint8)
    restored = preprocess.restore(preprocess(Image.fromarray(ramps)).pixels)
    prepared = np.asarray(restored).astype(int).reshape(gh, PATCH, gw, PATCH, 3).mean(axis=(1, 3))
    reach = [max(1.0, (geometry.frame[i + 2] - geometry.frame[i]) / geometry.input[1 - i]) for i in (0, 1)]
    for row, col in product(range(gh), range(gw)):
        left, top, right, bottom = geometry.patch_box(row, col, (gh, gw))
        # Where the filter sees the edge of the photograph or a margin, the mean is another one.
        if left - reach[0] >= 0 and right + reach[0] <= w and top >= 0 and bottom <= h:
            assert prepared[row, col, 0] + 0.5 == pytest.approx((left + right) / 2, abs=0.6)
        if top - reach[1] >= 0 and bottom + reach[1] <= h and left >= 0 and right <= w:
            assert prepared[row, col, 1] + 0.5 == pytest.approx((top + bottom) / 2, abs=0.6)


@settings(max_examples=60)
@given(
    w=sides, h=sides, mode=modes, gh=st.integers(1, 17), gw=st.integers(1, 13),
    x=st.floats(-500, 900), y=st.floats(-500, 900),
)  # fmt: skip
def test_patch_boxes_tile_the_frame_and_patch_at_inverts_them(
    w: int, h: int, mode: str, gh: int, gw: int, x: float, y: float
) -> None:
    geometry = replace(SMALL, mode=mode)(Image.new("RGB", (w, h))).geometry
    boxes = [[geometry.patch_box(row, col, (gh, gw)) for col in range(gw)] for row in range(gh)]
    assert (*boxes[0][0][:2], *boxes[-1][-1][2:]) == geometry.frame
    left, top, right, bottom = geometry.seen
    assert 0 <= left < right <= w
    assert 0 <= top < bottom <= h
    points = [(x, y, geometry.patch_at(x, y, (gh, gw)))]
    for row, col in product(range(gh), range(gw)):
        box = boxes[row][col]
        assert box[0] < box[2]
        assert box[1] < box[3]
        assert col + 1 == gw or boxes[row][col + 1][0] == box[2]
        assert row + 1 == gh or boxes[row + 1][col][1] == box[3]
        assert box == (boxes[0][col][0], boxes[row][0][1], boxes[0][col][2], boxes[row][0][3])
        middle = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
        points += [(*point, (row, col)) for point in (box[:2], middle, (np.nextafter(box[2], box[0]), box[1]))]
    for x, y, patch in points:
        inside = left <= x < right and top <= y < bottom
        assert geometry.patch_at(x, y, (gh, gw)) == (patch if inside else None)
    if (patch := points[0][2]) is not None:
        box = boxes[patch[0]][patch[1]]
        assert box[0] <= points[0][0] < box[2]
        assert box[1] <= points[0][1] < box[3]


def test_rows_and_columns_are_not_swapped_and_others_are_refused() -> None:
    geometry = Geometry(image=(70, 30), input=(30, 70), frame=(0, 0, 70, 30))
    assert geometry.patch_box(2, 5, (3, 7)) == (50, 20, 60, 30)
    assert geometry.patch_at(55, 21, (3, 7)) == (2, 5)
    assert geometry.patch_at(math.nan, 21, (3, 7)) is None
    for patch in ((-1, 0), (0, -1), (3, 0), (0, 7)):
        with pytest.raises(ImageError, match="3 rows and 7 columns"):
            geometry.patch_box(*patch, (3, 7))
    with pytest.raises(ImageError, match="at least 1 x 1"):
        geometry.patch_at(1, 1, (0, 7))
    for frame in ((5, 0, 5, 9), (0, 9, 5, 0), (0, 0, math.nan, 9)):
        with pytest.raises(ImageError, match="left, top, right, bottom"):
            Geometry(image=(9, 9), input=(9, 9), frame=frame)
