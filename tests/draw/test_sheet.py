"""Contact sheets, color bars and predictions print the right numbers, say their scale, and keep their places."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pairwise import pairs
from pictures import GH, GW, flat, has, inside, photograph, pixels, whole
from PIL import Image, ImageColor, ImageDraw

from vitviz.draw.colorbar import colorbar, describe_range, ticks
from vitviz.draw.colors import DrawError, Theme, lut
from vitviz.draw.overlay import overlay
from vitviz.draw.predictions import CROSS, TICK, Prediction, draw_map, prediction_picture, prediction_sheet
from vitviz.draw.sheet import Cell, arrange, best_columns, captions, fit_photo, sheet
from vitviz.draw.text import font, shorten, wrap
from vitviz.heatmap import Heatmap, HeatmapError, Scale
from vitviz.images.geometry import Geometry


def test_a_range_is_printed_with_the_digits_that_tell_its_ends_apart():
    assert describe_range(Scale(0.00002, 0.034), "attention") == "0 to 3.4 %"
    assert describe_range(Scale(0.5001, 0.5002), "") == "0.5001 to 0.5002"
    assert describe_range(Scale(0.2, 0.2), "attention") == "20 % everywhere"


@settings(max_examples=30)
@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(1, 8))
def test_ticks_are_round_and_inside(low, width, count):
    got = ticks(low, low + width, count)
    assert len(got) <= count + 1
    assert all(low - 1e-6 * width - 1e-6 <= t <= low + width + 1e-6 * width + 1e-6 for t in got)
    steps = np.diff(got)
    if len(steps):
        mantissa = steps[0] / 10 ** math.floor(math.log10(steps[0]) + 1e-6)
        assert min(abs(mantissa / m - 1) for m in (1, 2, 2.5, 5, 10)) < 0.01  # 10: a step of 1 that was rounded down


def test_the_bar_shows_the_colors_of_the_map():
    bar = pixels(colorbar(Scale(0.0, 0.04), "magma", "attention", size=(400, 44)))
    ground, line = (ImageColor.getrgb(color) for color in (Theme.of(False).ground, Theme.of(False).line))
    strip = bar[8]
    start = int(np.nonzero((strip != ground).any(axis=-1) & (strip != line).any(axis=-1))[0][0])
    table = [tuple(color) for color in lut("magma").tolist()]
    order = [table.index(tuple(pixel)) for pixel in strip[start : start + 200].tolist()]
    assert order[0] == 0
    assert order == sorted(order)


def test_bars_have_the_size_asked_for_and_legible_words_in_both_themes():
    for size in ((120, 24), (360, 44), (700, 60)):
        for dark in (False, True):
            bar, ground = colorbar(Scale(0, 1), unit="attention", size=size, dark=dark), Theme.of(dark).ground
            assert bar.size == size
            assert bar.getpixel((0, size[1] - 1)) == ImageColor.getrgb(ground)
            below = pixels(bar)[size[1] // 2 :]
            assert np.abs(below - np.array(ImageColor.getrgb(ground))).max() > 180  # text in full contrast
    for low, high in ((0.2, 0.2), (-3e20, 3e38), (0.5000001, 0.5000004), (0.0, 1e-310)):  # awkward ranges
        assert colorbar(Scale(low, high), unit="relevance").size == (360, 44)
    with pytest.raises(DrawError, match="at least"):
        colorbar(Scale(0, 1), size=(50, 10))


def test_lines_are_broken_between_words_and_shortened_where_they_must():
    assert wrap("a picture of 16 × 16 patches", 13, len) == ("a picture of", "16 × 16", "patches")
    assert wrap("colours end at 8.3 %", 18, len) == ("colours end at", "8.3 %")
    assert wrap("a " + "x" * 50, 10, len) == ("a", "xxxxxxxxx…")
    assert shorten("short", 10, len) == "short"
    assert wrap("", 10, len) == ()


# ---- contact sheets


def heatmap(mass, values=None, size=(120, 90), title="Head 1", unit="attention", signed=False, **more):
    values = np.random.default_rng(int(1000 * mass)).random((GH, GW)) * (1 - mass) / 10 if values is None else values
    geometry = inside(*size)
    return Heatmap(values, geometry, photograph(*size), title, unit, signed, **{"prefix_mass": {"CLS": mass}, **more})


def lines(maps, scales=None, width=176):
    return captions(maps, scales, width, font(14).getlength)


def test_every_cell_says_its_own_mass_in_one_form_for_the_sheet():
    masses = lines([heatmap(m) for m in (0.03, 0.12, 0.5, 0.871)])
    assert masses == [("CLS 3.0 %",), ("CLS 12 %",), ("CLS 50 %",), ("CLS 87 %",)]
    crowded = heatmap(0.2, prefix_mass={"CLS": 0.2, "distillation": 0.1, "registers": 0.3})
    roomy = heatmap(0.2, prefix_mass={"CLS": 0.2, "reg": 0.3})
    assert lines([crowded], width=100) == [("CLS 20 %", "distillation 10 %", "registers 30 %")]
    assert lines([roomy]) == [("CLS 20 % \N{MIDDLE DOT} reg 30 %",)]
    assert [len(one) for one in lines([roomy, crowded])] == [2, 3]
    assert lines([heatmap(0.1, unit="score", prefix_mass={"CLS": 4.1})]) == [("CLS 4.1",)]  # no share


def written(monkeypatch, maps, **options):
    """The texts of a sheet."""
    texts = []
    real = ImageDraw.ImageDraw.text
    note = lambda self, at, text, *a, **o: texts.append(text) or real(self, at, text, *a, **o)  # noqa: E731
    monkeypatch.setattr(ImageDraw.ImageDraw, "text", note)
    sheet(maps, thumb=300, **options)
    return " ".join(texts)


def test_the_sheet_says_which_scale_it_has(monkeypatch):
    low, high = (np.linspace(0, most, GH * GW).reshape(GH, GW) for most in (0.02, 0.4))
    maps = [heatmap(0.1, low), heatmap(0.1, high)]
    assert "One shared scale, 0 to 40 %: equal colours are equal numbers." in written(monkeypatch, maps)
    each, fixed = written(monkeypatch, maps, scale="each"), written(monkeypatch, maps, scale=(0.0, 0.1))
    assert all(words in each for words in ("its own scale", "0 to 2 %", "0 to 40 %"))
    assert all(words in fixed for words in ("Fixed scale, 0 to 10 %", "beyond"))
    assert "beyond" not in written(monkeypatch, maps, scale=(0.0, 0.5))
    signed = [heatmap(0.1, high - 0.1, unit="relevance", signed=True)]
    assert "zero has the middle colour" in written(monkeypatch, signed)


def test_a_sheet_for_a_slide():
    maps = [heatmap(0.1, np.linspace(0, 0.02 * most, GH * GW).reshape(GH, GW)) for most in (1, 2, 5, 7)]
    photo = fit_photo(maps[0].photo, 200)
    for scale in ("shared", "each", "both"):
        drawn = sheet(maps, scale=scale, width=1000, plain=True, title="A title")
        assert drawn.width == 1000
        left = np.flatnonzero((pixels(drawn) != 255).any(-1).any(0))
        assert left[-1] > 900  # filled
    small = sheet(maps, thumb=200, plain=True)
    assert find(pixels(small), pixels(photo))  # the photograph as it is
    frame = tuple(200 / 120 * edge for edge in maps[3].geometry.frame)
    geometry, shared = Geometry((200, 150), (48, 112), frame), Scale.over([drawn.values for drawn in maps])
    for options in ({}, {"gray": False, "alpha": 0.7, "spotlight": False}):
        both = pixels(sheet(maps, scale="both", thumb=200, **options))
        shown = {"gray": True, "alpha": 0.85, "spotlight": True, **options}
        for scale in (shared, maps[3].scale()):
            assert find(both, pixels(overlay(photo, maps[3].values, geometry, scale=scale, **shown)))
    maps[2] = heatmap(0.1, np.where(np.arange(GH * GW).reshape(GH, GW) == 4, 0.9, maps[2].values))
    full = Scale.over([drawn.values for drawn in maps])
    assert sheet(maps).tobytes() != sheet(maps, scale=full).tobytes()


def test_maps_that_cannot_share_a_scale_are_refused():
    mixed = [heatmap(0.1), heatmap(0.2, unit="relevance")]
    with pytest.raises(HeatmapError, match="scale='each'"):
        sheet(mixed)
    assert sheet(mixed, scale="each")
    with pytest.raises(HeatmapError, match="at least one map"):
        sheet([])
    with pytest.raises(DrawError, match="one label for each of 2"):
        sheet(mixed, scale="each", labels=["a"])
    with pytest.raises(DrawError, match="at least 48"):
        sheet(mixed, scale="each", thumb=10)


@pytest.mark.parametrize(
    ("count", "columns", "size", "dark"),
    [(*row[0], *row[1:]) for row in pairs([(1, None), (7, None), (13, 5), (24, 12)], [(96, 72), (40, 96)], [0, 1])],
)
def test_cells_lie_side_by_side_in_reading_order(count, columns, size, dark):
    colors = [(200, 10 + index, 90) for index in range(count)]
    texts = (("some words below", Theme.of(dark).text, False),)
    cells = [Cell((Image.new("RGB", size, color),), (texts, texts)) for color in colors]
    drawn = pixels(arrange(cells, 96, 12, columns=columns, title="What CLS attends to", note="words", dark=dark))
    corners = []
    for color in colors:
        rows, across = np.nonzero((drawn == color).all(-1))
        assert len(rows) == size[0] * size[1]  # nothing lies over a picture
        corners.append((rows.min(), across.min()))
        assert drawn.shape[0] - rows.max() > 40  # room for two lines and a margin
    assert corners == sorted(corners)
    assert columns in (None, len({left for _, left in corners}))


def find(picture, part):
    """Whether a picture holds another one."""
    high, wide = part.shape[:2]
    places = np.argwhere((picture[: -high + 1, : -wide + 1] == part[0, 0]).all(-1))
    return any(np.array_equal(picture[y : y + high, x : x + wide], part) for y, x in places)


def test_photographs_of_different_shapes_share_a_sheet():
    assert [best_columns(count, 100, 100) for count in (1, 12)] == [1, 4]
    assert all(1 <= best_columns(count, 190, 150) <= count for count in range(1, 150))
    maps = [Heatmap(np.ones((GH, GW)), whole(*size), flat(*size, 90)) for size in ((120, 90), (60, 140), (100, 100))]
    drawn = pixels(sheet(maps, columns=3, alpha=0.0))
    assert (drawn == 90).all(-1).sum() == 176 * 132 + 75 * 176 + 176 * 176


# ---- predictions


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
HEATMAP = Heatmap(VALUES, Geometry((32, 16), (16, 32), (0.0, 0.0, 32.0, 16.0)), Image.new("RGB", (32, 16)))


def test_a_map_lies_where_its_patches_are() -> None:
    picture = np.asarray(draw_map(HEATMAP, 128, alpha=1.0))
    colors = lut("magma")[Scale.over([VALUES]).indices(VALUES)]  # (4, 8, 3)
    assert np.array_equal(picture, colors.repeat(16, 0).repeat(16, 1))


def predictions(*right: bool | None, label: str = "golf ball", truth: str = "church") -> list[Prediction]:
    picture = Image.new("RGB", (64, 64), (90, 90, 90))
    return [
        Prediction((picture, picture), label, 0.87, None if outcome is None else truth, outcome) for outcome in right
    ]


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
    maps = [replace(HEATMAP, values=array, title="Layer 1") for array in (values, np.where(values == 1, 9, values))]
    plain, dotted = (prediction_picture(heatmap, [("a", 1.0)], side=256) for heatmap in maps)
    assert dotted.height > plain.height  # a sentence more
