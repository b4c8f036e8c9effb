"""Pictures of predictions: right and wrong ones told apart, labels that stay in their places."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import has, photograph
from PIL import Image, ImageColor

import vitviz
from vitviz.draw.colors import DrawError, Theme, lut
from vitviz.draw.predictions import CROSS, TICK, Prediction, draw_map, prediction_picture, prediction_sheet
from vitviz.draw.sheet import fit_photo
from vitviz.heatmap import Scale
from vitviz.images.geometry import Geometry


@settings(max_examples=30)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(48, 200))
def test_a_picture_fits_and_keeps_its_shape(width: int, height: int, side: int) -> None:
    photo = photograph(width, height)
    picture = fit_photo(photo, side)
    assert max(picture.size) <= side
    assert max(picture.size) > side // 2
    assert abs(min(picture.size) - max(picture.size) * min(width, height) / max(width, height)) <= 1
    if 2 * max(width, height) <= side:  # a small one is enlarged pixel by pixel
        factor = side // max(width, height)
        assert np.array_equal(np.asarray(picture), np.asarray(photo).repeat(factor, 0).repeat(factor, 1))


VALUES = np.random.default_rng(1).random((4, 8)).astype(np.float32)
HEATMAP = vitviz.Heatmap(VALUES, Geometry((32, 16), (16, 32), (0.0, 0.0, 32.0, 16.0)), Image.new("RGB", (32, 16)))


def test_a_map_lies_where_its_patches_are() -> None:
    picture = np.asarray(draw_map(HEATMAP, 128, alpha=1.0))
    colors = lut("magma")[Scale.over([VALUES]).indices(VALUES)]  # (4, 8, 3)
    assert np.array_equal(picture, colors.repeat(16, 0).repeat(16, 1))


def predictions(*right: bool | None, label: str = "golf ball", truth: str = "church") -> list[Prediction]:
    picture = Image.new("RGB", (64, 64), (90, 90, 90))
    return [Prediction((picture, picture), label, 0.87, None if one is None else truth, one) for one in right]


@pytest.mark.parametrize("dark", [False, True])
def test_right_and_wrong_differ_in_color_and_in_a_mark(dark: bool) -> None:
    theme = Theme.of(dark)
    for right, mark, color in ((True, TICK, theme.right), (False, CROSS, theme.wrong), (None, "", theme.text)):
        (prediction,) = predictions(right)
        first, *_ = prediction.lines(300, 12, dark)
        assert first == ((f"{mark} golf ball".strip(), color, True), (" 87 %", color, False))
        sheet = prediction_sheet([prediction], dark=dark, side=64)
        assert [has(sheet, theme.right), has(sheet, theme.wrong)] == [right is True, right is False]


def test_a_sheet_has_its_rows_and_columns_and_long_labels_stay_in_theirs() -> None:
    long = [*predictions(True, label="x" * 200), *predictions(*[True] * 6, False)]
    before, after = (
        np.asarray(prediction_sheet(some, columns=4, side=64), np.int16)
        for some in (predictions(*[True] * 7, False), long)
    )
    assert before.shape == after.shape
    gray = (before == 90).all(-1)  # 8 predictions of two pictures in 2 rows
    assert gray.sum() == 16 * 64 * 64
    assert gray.any(1).sum() == 2 * 64
    changed = np.flatnonzero((before != after).any((0, 2)))  # columns of pixels
    starts = np.flatnonzero(np.diff(np.r_[False, gray.any(0)].astype(int)) == 1)
    assert changed.max() < starts[2]  # where the second prediction begins


def test_sheets_that_cannot_be_drawn_are_refused() -> None:
    with pytest.raises(DrawError, match="at least one prediction"):
        prediction_sheet([])
    with pytest.raises(DrawError, match="as many pictures"):
        prediction_sheet([*predictions(True), Prediction((Image.new("RGB", (64, 64)),), "a", 0.5)], side=64)
    with pytest.raises(DrawError, match="at most 50 pixels, got 64"):
        prediction_sheet(predictions(True), side=50)
    with pytest.raises(DrawError, match="at least one class"):
        prediction_picture(HEATMAP, [])


@pytest.mark.parametrize("dark", [False, True])
def test_a_picture_has_the_photograph_the_map_and_bars(dark: bool) -> None:
    ranked = [("a label that is far too long to be written in full" * 2, 0.8), ("b", 0.2), ("c", 1e-6)]
    drawn = np.asarray(prediction_picture(HEATMAP, ranked, title="dog.jpg", side=128, dark=dark))
    theme = Theme.of(dark)
    filled, rest = ((drawn == ImageColor.getrgb(color)).all(-1).sum(1) for color in (theme.muted, theme.line))
    bars = filled + rest > 0.3 * drawn.shape[1]  # rows of pixels that a bar runs through
    assert {round(float(share), 1) for share in (filled / np.maximum(1, filled + rest))[bars]} == {0.8, 0.2, 0.0}


def test_a_picture_explains_the_dots_on_its_map() -> None:
    values = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
    maps = [replace(HEATMAP, values=one, title="Layer 1") for one in (values, np.where(values == 1, 9, values))]
    heights = [prediction_picture(one, [("a", 1.0)], side=256).height for one in maps]
    assert heights[1] > heights[0]  # a sentence more
