"""Which pixels of the photograph each patch saw."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pictures import photograph
from PIL import Image

from vitviz.images.decoding import ImageError
from vitviz.images.geometry import Geometry
from vitviz.images.preprocess import Preprocess

MODES = ("crop", "squash", "pad", "native")
PATCH = 8
SMALL = Preprocess(height=4 * PATCH, width=6 * PATCH, multiple=PATCH)
sides = st.integers(1, 400)
modes = st.sampled_from(MODES)


def grid_of(geometry: Geometry) -> tuple[int, int]:
    return geometry.input[0] // PATCH, geometry.input[1] // PATCH


def levels(preprocess: Preprocess, image: Image.Image) -> np.ndarray:
    """The prepared picture as 8-bit levels (H, W, 3)."""
    return np.asarray(preprocess.restore(preprocess(image).pixels)).astype(int)


def coverage(width: int, height: int, box: tuple[float, float, float, float]) -> np.ndarray:
    """(H, W): the share of every pixel that the box covers."""
    x, y = np.arange(width), np.arange(height)
    across = (np.minimum(x + 1, box[2]) - np.maximum(x, box[0])).clip(0)
    down = (np.minimum(y + 1, box[3]) - np.maximum(y, box[1])).clip(0)
    return down[:, None] * across[None, :]


@settings(max_examples=250)
@given(
    w=st.integers(40, 300),
    h=st.integers(40, 300),
    mode=modes,
    interpolation=st.sampled_from(["bilinear", "bicubic"]),
    data=st.data(),
)
def test_a_marker_lights_up_the_patch_that_saw_it(
    w: int, h: int, mode: str, interpolation: str, data: st.DataObject
) -> None:
    """Paint patch_box(row, col) white on a black photograph: that patch of the prepared pixels lights up, alone."""
    preprocess = replace(SMALL, mode=mode, interpolation=interpolation)
    geometry = preprocess(Image.new("RGB", (w, h))).geometry
    gh, gw = grid_of(geometry)
    row, col = data.draw(st.integers(0, gh - 1)), data.draw(st.integers(0, gw - 1))
    box = geometry.patch_box(row, col, (gh, gw))
    share = coverage(w, h, box)
    inside = share.sum() / ((box[2] - box[0]) * (box[3] - box[1]))  # of the patch, how much is photograph
    marked = Image.fromarray(np.rint(share * 255).astype(np.uint8)).convert("RGB")
    light = levels(preprocess, marked)[..., 0].reshape(gh, PATCH, gw, PATCH).mean(axis=(1, 3)) / 255
    if mode == "pad":  # margins are grey: look only where there is photograph
        empty = levels(preprocess, Image.new("RGB", (w, h)))[..., 0].reshape(gh, PATCH, gw, PATCH).mean(axis=(1, 3))
        light = light - empty / 255
    assert light[row, col] == pytest.approx(inside, abs=0.2)
    light[row, col] -= inside
    if inside > 0.5:
        assert light.max() < 0.3


@settings(max_examples=250)
@given(w=st.integers(2, 256), h=st.integers(2, 256), mode=modes)
@example(w=3, h=256, mode="crop")
@example(w=3, h=256, mode="pad")
@example(w=256, h=3, mode="native")
def test_every_patch_reads_its_own_place(w: int, h: int, mode: str) -> None:
    """Photographs whose brightness is x, then y: each patch's mean is its box's centre, to a fraction of a pixel."""
    preprocess = replace(SMALL, mode=mode, interpolation="bilinear")
    geometry = preprocess(Image.new("RGB", (w, h))).geometry
    gh, gw = grid_of(geometry)
    x, y = np.meshgrid(np.arange(w), np.arange(h))
    ramps = np.stack([x, y, np.full_like(x, 255)], axis=-1).astype(np.uint8)
    prepared = levels(preprocess, Image.fromarray(ramps)).reshape(gh, PATCH, gw, PATCH, 3).mean(axis=(1, 3))
    reach = [max(1.0, (geometry.frame[i + 2] - geometry.frame[i]) / geometry.input[1 - i]) for i in (0, 1)]
    for row in range(gh):
        for col in range(gw):
            left, top, right, bottom = geometry.patch_box(row, col, (gh, gw))
            # Where the filter sees the edge of the photograph or a margin, the mean is another one.
            if left - reach[0] >= 0 and right + reach[0] <= w and top >= 0 and bottom <= h:
                assert prepared[row, col, 0] + 0.5 == pytest.approx((left + right) / 2, abs=0.6)
            if top - reach[1] >= 0 and bottom + reach[1] <= h and left >= 0 and right <= w:
                assert prepared[row, col, 1] + 0.5 == pytest.approx((top + bottom) / 2, abs=0.6)


@given(w=sides, h=sides, mode=modes, gh=st.integers(1, 17), gw=st.integers(1, 13))
def test_patch_boxes_tile_the_frame_exactly(w: int, h: int, mode: str, gh: int, gw: int) -> None:
    geometry = replace(SMALL, mode=mode)(Image.new("RGB", (w, h))).geometry
    boxes = [[geometry.patch_box(row, col, (gh, gw)) for col in range(gw)] for row in range(gh)]
    assert (*boxes[0][0][:2], *boxes[-1][-1][2:]) == geometry.frame
    for row in range(gh):
        for col in range(gw):
            left, top, right, bottom = boxes[row][col]
            assert left < right
            assert top < bottom
            assert col + 1 == gw or boxes[row][col + 1][0] == right
            assert row + 1 == gh or boxes[row + 1][col][1] == bottom
            assert (left, right) == (boxes[0][col][0], boxes[0][col][2])
            assert (top, bottom) == (boxes[row][0][1], boxes[row][0][3])


@given(w=sides, h=sides, mode=modes, gh=st.integers(1, 17), gw=st.integers(1, 13))
def test_patch_at_inverts_patch_box(w: int, h: int, mode: str, gh: int, gw: int) -> None:
    geometry = replace(SMALL, mode=mode)(Image.new("RGB", (w, h))).geometry
    seen = geometry.seen
    for row in range(gh):
        for col in range(gw):
            left, top, right, bottom = geometry.patch_box(row, col, (gh, gw))
            points = [(left, top), ((left + right) / 2, (top + bottom) / 2), (np.nextafter(right, left), top)]
            for x, y in points:
                inside = seen[0] <= x < seen[2] and seen[1] <= y < seen[3]
                assert geometry.patch_at(x, y, (gh, gw)) == ((row, col) if inside else None)


@given(w=sides, h=sides, mode=modes, x=st.floats(-500, 900), y=st.floats(-500, 900))
def test_patch_at_answers_only_what_was_seen(w: int, h: int, mode: str, x: float, y: float) -> None:
    geometry = replace(SMALL, mode=mode)(Image.new("RGB", (w, h))).geometry
    left, top, right, bottom = geometry.seen
    assert 0 <= left < right <= w
    assert 0 <= top < bottom <= h
    patch = geometry.patch_at(x, y, (5, 7))
    if not (left <= x < right and top <= y < bottom):
        assert patch is None
    else:
        assert patch is not None
        box = geometry.patch_box(*patch, (5, 7))
        assert box[0] <= x < box[2]
        assert box[1] <= y < box[3]


def test_margins_are_no_patch() -> None:
    padded = Preprocess(height=32, width=32, mode="pad")(photograph(100, 50)).geometry
    assert padded.frame == (0, -25, 100, 75)
    assert padded.patch_at(50, -0.01, (4, 4)) is None
    assert padded.patch_at(50, 50, (4, 4)) is None  # the box ends where the photograph ends
    assert padded.patch_at(50, 0, (4, 4)) == (1, 2)
    cropped = Preprocess(height=32, width=32, resize=32)(photograph(100, 50)).geometry
    assert cropped.frame == (25, 0, 75, 50)
    assert cropped.patch_at(24.9, 20, (4, 4)) is None
    assert cropped.patch_at(25, 20, (4, 4)) == (1, 0)
    assert cropped.patch_at(75, 20, (4, 4)) is None
    assert cropped.patch_at(math.nan, 20, (4, 4)) is None


def test_rows_and_columns_are_not_swapped() -> None:
    geometry = Geometry(image=(70, 30), input=(30, 70), frame=(0, 0, 70, 30))
    assert geometry.patch_box(2, 5, (3, 7)) == (50, 20, 60, 30)
    assert geometry.patch_at(55, 21, (3, 7)) == (2, 5)


@pytest.mark.parametrize("patch", [(-1, 0), (0, -1), (3, 0), (0, 7)])
def test_patches_outside_the_grid_are_refused(patch: tuple[int, int]) -> None:
    geometry = Geometry(image=(70, 30), input=(30, 70), frame=(0, 0, 70, 30))
    with pytest.raises(ImageError, match="3 rows and 7 columns"):
        geometry.patch_box(*patch, (3, 7))
    with pytest.raises(ImageError, match="at least 1 x 1"):
        geometry.patch_at(1, 1, (0, 7))


@pytest.mark.parametrize("frame", [(5, 0, 5, 9), (0, 9, 5, 0), (0, 0, math.nan, 9)])
def test_geometry_refuses_empty_frames(frame: tuple[float, float, float, float]) -> None:
    with pytest.raises(ImageError, match="left, top, right, bottom"):
        Geometry(image=(9, 9), input=(9, 9), frame=frame)
