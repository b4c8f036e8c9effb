"""Test contact sheets, color bars and pictures of predictions."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colorbar import Colorbar
from pairwise import pairs
from pictures import GH, GW, flat, has, inside, photograph, pixels, whole
from PIL import Image, ImageColor, ImageDraw

from vitviz.draw.colorbar import colorbar, describe_range
from vitviz.draw.colors import DrawError, Theme, lut
from vitviz.draw.predictions import CROSS, TICK, Prediction, draw_map, prediction_picture, prediction_sheet
from vitviz.draw.sheet import Cell, arrange, best_columns, captions, fit_photo, sheet
from vitviz.draw.text import font, shorten, wrap
from vitviz.heatmap import Heatmap, HeatmapError, Scale
from vitviz.images.geometry import Geometry


def test_described_ranges_have_distinguishable_ends():
    assert describe_range(Scale(0.00002, 0.034), "attention") == "0 to 3.4 %"
    assert describe_range(Scale(0.5001, 0.5002), "") == "0.5001 to 0.5002"
    assert describe_range(Scale(0.2, 0.2), "attention") == "20 % everywhere"


@pytest.mark.parametrize(
    ("ends", "unit", "expected"),
    [
        ((0.0, 0.0631), "attention", ["0 %", "2 %", "4 %", "6 %"]),
        ((-0.3, 0.3), "score", ["−0.2", "0", "0.2"]),
        ((0.07, 0.93), "", ["0.2", "0.4", "0.6", "0.8"]),
        ((0.2, 0.2), "attention", ["20 %"]),
    ],
)
def test_colorbars_have_round_numbers_within_their_ends(monkeypatch, ends, unit, expected):
    labels = []
    set_ticks = Colorbar.set_ticks
    monkeypatch.setattr(
        Colorbar, "set_ticks", lambda bar, ticks, **o: labels.append(o["labels"]) or set_ticks(bar, ticks, **o)
    )
    colorbar(Scale(*ends), unit=unit)
    assert labels == [expected]


def test_colorbar_has_the_colors_of_the_map():
    table = [tuple(color) for color in lut("magma").tolist()]
    bar = colorbar(Scale(0.0, 0.04), "magma", "attention", size=(400, 44))
    indices = [table.index(pixel) for x in range(400) if (pixel := bar.getpixel((x, 8))) in table]
    assert len(indices) > 250
    assert indices == sorted(indices)
    assert indices[0] <= 1  # the outline covers the ends
    assert indices[-1] >= 254


def test_colorbars_have_the_requested_size_and_contrast():
    for size in ((120, 24), (360, 44), (700, 60)):
        for dark in (False, True):
            bar, ground = colorbar(Scale(0, 1), unit="attention", size=size, dark=dark), Theme.of(dark).ground
            assert bar.size == size
            assert bar.getpixel((0, size[1] - 1)) == ImageColor.getrgb(ground)
            below = pixels(bar)[size[1] // 2 :]
            assert np.abs(below - np.array(ImageColor.getrgb(ground))).max() > 180  # text has full contrast
    for low, high in ((0.2, 0.2), (-3e20, 3e38), (0.5000001, 0.5000004), (0.0, 1e-310)):
        assert colorbar(Scale(low, high), unit="relevance").size == (360, 44)
    with pytest.raises(DrawError, match="at least"):
        colorbar(Scale(0, 1), size=(50, 10))


def test_wrap_breaks_between_words_and_shortens_long_ones():
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


def test_captions_have_the_same_form_in_all_cells():
    masses = lines([heatmap(m) for m in (0.03, 0.12, 0.5, 0.871)])
    assert masses == [("CLS 3.0 %",), ("CLS 12 %",), ("CLS 50 %",), ("CLS 87 %",)]
    crowded = heatmap(0.2, prefix_mass={"CLS": 0.2, "distillation": 0.1, "registers": 0.3})
    roomy = heatmap(0.2, prefix_mass={"CLS": 0.2, "reg": 0.3})
    assert lines([crowded], width=100) == [("CLS 20 %", "distillation 10 %", "registers 30 %")]
    assert lines([roomy]) == [("CLS 20 % \N{MIDDLE DOT} reg 30 %",)]
    assert [len(caption) for caption in lines([roomy, crowded])] == [2, 3]
    assert lines([heatmap(0.1, unit="score", prefix_mass={"CLS": 4.1})]) == [("CLS 4.1",)]  # not a share


def written(monkeypatch, maps, **options):
    """Draw a sheet, and return its texts."""
    texts = []
    draw_text = ImageDraw.ImageDraw.text
    monkeypatch.setattr(
        ImageDraw.ImageDraw,
        "text",
        lambda self, at, text, *a, **o: texts.append(text) or draw_text(self, at, text, *a, **o),
    )
    sheet(maps, thumb=300, **options)
    return " ".join(texts)


def test_sheets_describe_their_scale(monkeypatch):
    low, high = (np.linspace(0, most, GH * GW).reshape(GH, GW) for most in (0.02, 0.4))
    maps = [heatmap(0.1, low), heatmap(0.1, high)]
    assert "One shared scale, 0 to 40 %: equal colours are equal numbers." in written(monkeypatch, maps)
    each, fixed = written(monkeypatch, maps, scale="each"), written(monkeypatch, maps, scale=(0.0, 0.1))
    assert all(words in each for words in ("its own scale", "0 to 2 %", "0 to 40 %"))
    assert all(words in fixed for words in ("Fixed scale, 0 to 10 %", "beyond"))
    assert "beyond" not in written(monkeypatch, maps, scale=(0.0, 0.5))
    signed = [heatmap(0.1, high - 0.1, unit="relevance", signed=True)]
    assert "zero has the middle colour" in written(monkeypatch, signed)


def test_sheets_fill_their_width_with_every_scale():
    maps = [heatmap(0.1, np.linspace(0, 0.02 * most, GH * GW).reshape(GH, GW)) for most in (1, 2, 5, 7)]
    photo = fit_photo(maps[0].photo, 200)
    for scale in ("shared", "each", "both"):
        drawn = sheet(maps, scale=scale, width=1000, plain=True, title="A title")
        assert drawn.width == 1000
        columns = np.flatnonzero((pixels(drawn) != 255).any(-1).any(0))
        assert columns[-1] > 900  # filled
    small = sheet(maps, thumb=200, plain=True)
    assert find(pixels(small), pixels(photo))  # the photograph without a map
    shared = Scale.over(maps)
    for options in ({}, {"gray": False, "alpha": 0.7, "spotlight": False}):
        both = pixels(sheet(maps, scale="both", thumb=200, **options))
        style = {"gray": True, "alpha": 0.85, "spotlight": True, **options}
        for scale in (shared, maps[3].scale()):
            assert find(both, pixels(maps[3].over(photo).overlay(scale=scale, **style)))
    maps[2] = heatmap(0.1, np.where(np.arange(GH * GW).reshape(GH, GW) == 4, 0.9, maps[2].values))
    assert sheet(maps).tobytes() != sheet(maps, scale=Scale.over(maps)).tobytes()  # clips the outlier


def test_invalid_sheets_are_refused():
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
def test_cells_are_arranged_in_reading_order(count, columns, size, dark):
    colors = [(200, 10 + index, 90) for index in range(count)]
    texts = (("some words below", Theme.of(dark).text, False),)
    cells = [Cell((Image.new("RGB", size, color),), (texts, texts)) for color in colors]
    drawn = pixels(arrange(cells, 96, 12, columns=columns, title="What CLS attends to", note="words", dark=dark))
    corners = []
    for color in colors:
        rows, across = np.nonzero((drawn == color).all(-1))
        assert len(rows) == size[0] * size[1]  # nothing covers a picture
        corners.append((rows.min(), across.min()))
        assert drawn.shape[0] - rows.max() > 40  # room for two lines and a margin
    assert corners == sorted(corners)
    assert columns in (None, len({left for _, left in corners}))


def find(picture, part):
    """Return whether a picture contains another picture."""
    high, wide = part.shape[:2]
    places = np.argwhere((picture[: -high + 1, : -wide + 1] == part[0, 0]).all(-1))
    return any(np.array_equal(picture[y : y + high, x : x + wide], part) for y, x in places)


def test_sheets_take_photographs_of_different_shapes():
    assert [best_columns(count, 100, 100) for count in (1, 12)] == [1, 4]
    assert all(1 <= best_columns(count, 190, 150) <= count for count in range(1, 150))
    maps = [Heatmap(np.ones((GH, GW)), whole(*size), flat(*size, 90)) for size in ((120, 90), (60, 140), (100, 100))]
    drawn = pixels(sheet(maps, columns=3, alpha=0.0))
    assert (drawn == 90).all(-1).sum() == 176 * 132 + 75 * 176 + 176 * 176


# ---- predictions


@settings(max_examples=30)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(48, 200))
def test_fit_photo_fits_and_keeps_the_aspect_ratio(width: int, height: int, side: int) -> None:
    photo = photograph(width, height)
    picture = fit_photo(photo, side)
    assert max(picture.size) <= side
    assert max(picture.size) > side // 2
    assert abs(min(picture.size) - max(picture.size) * min(width, height) / max(width, height)) <= 1
    if 2 * max(width, height) <= side:  # enlarged by an integer factor
        factor = side // max(width, height)
        assert np.array_equal(np.asarray(picture), np.asarray(photo).repeat(factor, 0).repeat(factor, 1))


VALUES = np.random.default_rng(1).random((4, 8)).astype(np.float32)
HEATMAP = Heatmap(VALUES, Geometry((32, 16), (16, 32), (0.0, 0.0, 32.0, 16.0)), Image.new("RGB", (32, 16)))


def test_draw_map_colors_the_patches() -> None:
    picture = np.asarray(draw_map(HEATMAP, 128, alpha=1.0))
    colors = lut("magma")[Scale.over([VALUES]).indices(VALUES)]  # (4, 8, 3)
    assert np.array_equal(picture, colors.repeat(16, 0).repeat(16, 1))


def predictions(*right: bool | None, label: str = "golf ball", truth: str = "church") -> list[Prediction]:
    picture = Image.new("RGB", (64, 64), (90, 90, 90))
    return [
        Prediction((picture, picture), label, 0.87, None if outcome is None else truth, outcome) for outcome in right
    ]


@pytest.mark.parametrize("dark", [False, True])
def test_right_and_wrong_predictions_differ_in_color_and_mark(dark: bool) -> None:
    theme = Theme.of(dark)
    for right, mark, color in ((True, TICK, theme.right), (False, CROSS, theme.wrong), (None, "", theme.text)):
        (prediction,) = predictions(right)
        first, *_ = prediction.lines(300, 12, dark)
        assert first == ((f"{mark} golf ball".strip(), color, True), (" 87 %", color, False))
        sheet = prediction_sheet([prediction], dark=dark, side=64)
        assert [has(sheet, theme.right), has(sheet, theme.wrong)] == [right is True, right is False]


def test_prediction_sheets_shorten_labels_to_their_column() -> None:
    long = [*predictions(True, label="x" * 200), *predictions(*[True] * 6, False)]
    before, after = (
        np.asarray(prediction_sheet(entries, columns=4, side=64), np.int16)
        for entries in (predictions(*[True] * 7, False), long)
    )
    assert before.shape == after.shape
    gray = (before == 90).all(-1)  # 8 predictions of two pictures in 2 rows
    assert gray.sum() == 16 * 64 * 64
    assert gray.any(1).sum() == 2 * 64
    changed = np.flatnonzero((before != after).any((0, 2)))  # columns of pixels
    starts = np.flatnonzero(np.diff(np.r_[False, gray.any(0)].astype(int)) == 1)
    assert changed.max() < starts[2]  # start of the second prediction


@pytest.mark.parametrize("dark", [False, True])
def test_prediction_picture_has_bars_of_the_probabilities(dark: bool) -> None:
    ranked = [("a label that is far too long to be written in full" * 2, 0.8), ("b", 0.2), ("c", 1e-6)]
    drawn = np.asarray(prediction_picture(HEATMAP, ranked, title="dog.jpg", side=128, dark=dark))
    theme = Theme.of(dark)
    filled, rest = ((drawn == ImageColor.getrgb(color)).all(-1).sum(1) for color in (theme.muted, theme.line))
    bars = filled + rest > 0.3 * drawn.shape[1]  # rows of pixels that a bar runs through
    assert {round(float(share), 1) for share in (filled / np.maximum(1, filled + rest))[bars]} == {0.8, 0.2, 0.0}


def test_prediction_picture_explains_dots_on_its_map() -> None:
    values = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
    maps = [replace(HEATMAP, values=array, title="Layer 1") for array in (values, np.where(values == 1, 9, values))]
    plain, dotted = (prediction_picture(heatmap, [("a", 1.0)], side=256) for heatmap in maps)
    assert dotted.height > plain.height  # one more sentence
