"""Contact sheets and colour bars print the right numbers, say which scale they have, and keep their places."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import GH, GW, inside, photograph, pixels
from PIL import Image

from vitviz.heatmap import Heatmap
from vitviz.preprocess import Geometry
from vitviz.render.colorbar import DARK, LIGHT, colorbar, number, span, ticks
from vitviz.render.colors import OverlayError, Scale, lut
from vitviz.render.overlay import font, overlay
from vitviz.render.sheet import best_columns, plan, sheet

# ---- numbers and colour bars ----


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.12, "attention", "12 %"),
        (0.034, "attention", "3.4 %"),
        (0.00052, "attention", "0.052 %"),
        (1.0, "attention", "100 %"),
        (0.0, "attention", "0 %"),
        (0.999, "attention", "100 %"),
        (0.12, "", "0.12"),
        (-1.5, "relevance", "\N{MINUS SIGN}1.5"),
        (1234.0, "", "1234"),
        (1.2e-7, "", "1.2e\N{MINUS SIGN}07"),
        (3e38, "", "3e+38"),
    ],
)
def test_numbers_are_printed_for_people(value, unit, text):
    assert number(value, unit) == text


def test_a_range_is_printed_with_the_digits_that_tell_its_ends_apart():
    assert span(Scale(0.00002, 0.034), "attention") == "0 to 3.4 %"
    assert span(Scale(0.5001, 0.5002), "") == "0.5001 to 0.5002"
    assert span(Scale(0.2, 0.2), "attention") == "20 % everywhere"
    assert span(Scale(-0.000001, 1.0), "") == "0 to 1"  # and never "-0"


@settings(max_examples=100)
@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(1, 8))
def test_ticks_are_round_and_inside(low, width, count):
    got = ticks(low, low + width, count)
    assert len(got) <= count + 1
    assert all(low - 1e-6 * width - 1e-6 <= t <= low + width + 1e-6 * width + 1e-6 for t in got)
    steps = np.diff(got)
    if len(steps):
        mantissa = steps[0] / 10 ** math.floor(math.log10(steps[0]) + 1e-6)
        assert min(abs(mantissa / m - 1) for m in (1, 2, 2.5, 5, 10)) < 0.01  # 10: a step of 1 that was rounded down


def test_the_bar_shows_the_colours_of_the_map():
    bar = pixels(colorbar("magma", 0.0, 0.04, "attention", (400, 44)))
    strip = bar[8]
    inside_bar = np.nonzero((strip != LIGHT.ground).any(axis=-1) & (strip != LIGHT.line).any(axis=-1))[0]
    start = int(inside_bar[0])
    assert strip[start].tolist() == lut("magma")[0].tolist()
    run = strip[start : start + 200]
    table = lut("magma").astype(int)
    assert all((table == pixel).all(axis=-1).any() for pixel in run)
    order = [int(np.argmax((table == p).all(axis=-1))) for p in run]
    assert order == sorted(order)


def test_bars_have_the_size_asked_for_and_legible_words_in_both_themes():
    for size in ((120, 24), (360, 44), (700, 60)):
        for dark, theme in ((False, LIGHT), (True, DARK)):
            bar = colorbar("viridis", 0.0, 1.0, "attention", size, dark)
            assert bar.size == size
            assert bar.getpixel((0, size[1] - 1)) == theme.ground
            below = pixels(bar)[size[1] // 2 :]
            assert np.abs(below - np.array(theme.ground)).max() > 180  # text in full contrast
    with pytest.raises(OverlayError, match="at least"):
        colorbar("viridis", 0, 1, size=(50, 10))


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (-3e20, 3e38), (0.5000001, 0.5000004), (0.0, 1e-310)])
def test_awkward_ranges_still_get_a_bar(low, high):
    assert colorbar("viridis", low, high, "relevance").size == (360, 44)


def test_a_missing_typeface_is_refused_in_words():
    with pytest.raises(OverlayError, match="TrueType"):
        font(12, path="no-such-font.ttf")


# ---- contact sheets ----


def heatmap(mass, values=None, size=(120, 90), title="Head 1", unit="attention", signed=False, **more):
    values = np.random.default_rng(int(1000 * mass)).random((GH, GW)) * (1 - mass) / 10 if values is None else values
    geometry = inside(*size)
    return Heatmap(values, geometry, photograph(*size), title, unit, signed, {"CLS": mass}, **more)


def test_every_cell_says_its_own_mass():
    masses = [0.03, 0.12, 0.5, 0.871]
    design = plan([heatmap(m, title=f"Head {i}") for i, m in enumerate(masses)])
    assert [c.captions for c in design.cells] == [("CLS 3 %",), ("CLS 12 %",), ("CLS 50 %",), ("CLS 87 %",)]
    assert [c.label for c in design.cells] == [("Head 0",), ("Head 1",), ("Head 2",), ("Head 3",)]


def test_no_mass_is_left_out_where_there_is_little_room():
    crowded = Heatmap(
        np.ones((GH, GW)),
        inside(),
        photograph(120, 90),
        prefix_mass={"CLS": 0.2, "distillation": 0.1, "registers": 0.3},
    )
    (cell,) = plan([crowded], thumb=100).cells
    assert cell.captions == ("CLS 20 %", "distillation 10 %", "registers 30 %")
    roomy = Heatmap(np.ones((GH, GW)), inside(), photograph(120, 90), prefix_mass={"CLS": 0.2, "reg": 0.3})
    (cell,) = plan([roomy]).cells
    assert cell.captions == ("CLS 20 % \N{MIDDLE DOT} reg 30 %",)
    both = plan([roomy, crowded]).cells  # one form for the whole sheet
    assert [len(c.captions) for c in both] == [2, 3]


def test_what_is_no_share_is_not_printed_as_one():
    score = Heatmap(np.ones((GH, GW)), inside(), photograph(120, 90), unit="score", prefix_mass={"CLS": 4.1})
    assert plan([score]).cells[0].captions == ("CLS 4.1",)


def test_the_sheet_says_which_scale_it_has():
    low, high = np.zeros((GH, GW)), np.zeros((GH, GW))
    low[0, 0], high[0, 0] = 0.02, 0.4
    maps = [heatmap(0.1, low), heatmap(0.1, high)]

    def said(scale, maps=maps):
        design = plan(maps, scale=scale, thumb=300)
        return " ".join(design.words), [c.scale.vmax for c in design.cells], [c.captions[-1] for c in design.cells]

    words, tops, _ = said("shared")
    assert words == "One shared scale, 0 to 40 %: equal colours are equal numbers."
    assert tops == [np.float32(0.4)] * 2
    words, tops, last = said("each")
    assert "its own scale" in words
    assert tops == [np.float32(0.02), np.float32(0.4)]
    assert last == ["0 to 2 %", "0 to 40 %"]
    words, tops, _ = said((0.0, 0.1))
    assert "Fixed scale, 0 to 10 %" in words
    assert "beyond" in words
    assert tops == [0.1] * 2
    assert "beyond" not in said((0.0, 0.5))[0]
    signed = [heatmap(0.1, high - 0.1, unit="relevance", signed=True)]
    assert "zero has the middle colour" in said("shared", signed)[0]


def test_maps_that_cannot_share_a_scale_are_refused():
    mixed = [heatmap(0.1), heatmap(0.2, unit="relevance")]
    with pytest.raises(OverlayError, match="scale='each'"):
        plan(mixed)
    assert len(plan(mixed, scale="each").cells) == 2
    with pytest.raises(OverlayError, match="at least one map"):
        plan([])
    with pytest.raises(OverlayError, match="one for each of 2"):
        plan(mixed, scale="each", labels=["a"])
    with pytest.raises(OverlayError, match="at least 48"):
        plan(mixed, scale="each", thumb=10)


@pytest.mark.parametrize("count", [1, 2, 7, 13, 24, 72])
@pytest.mark.parametrize("size", [(120, 90), (60, 140)])
def test_cells_lie_side_by_side_inside_the_page(count, size):
    maps = [heatmap(0.1, size=size)] * count
    design = plan(maps, title="What CLS attends to in layer 12", columns=12 if count == 72 else None, thumb=96)
    boxes = np.array([c.box for c in design.cells])
    assert (boxes[:, :2] >= design.margin).all()
    assert (boxes[:, 2:] <= np.array(design.size) - design.margin).all()
    for i in range(count):
        for j in range(i):
            a, b = boxes[i], boxes[j]
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
    reading = sorted(range(count), key=lambda i: (boxes[i][1], boxes[i][0]))
    assert reading == list(range(count))
    under = [c.words_at[1] + round(1.35 * design.type_size) * len((*c.label, *c.captions)) for c in design.cells]
    for c, end in zip(design.cells, under, strict=True):
        assert end <= min((b[1] for b in boxes if b[1] > c.box[1]), default=design.size[1])
    for dark in (False, True):
        assert (
            sheet(maps, title="What CLS attends to in layer 12", columns=design.columns, thumb=96, dark=dark).size
            == design.size
        )


def test_a_cell_shows_the_overlay_at_its_own_size():
    maps = [heatmap(0.1), heatmap(0.4)]
    design, drawn = plan(maps), sheet(maps, grey=False, alpha=0.7)
    for m, cell in zip(maps, design.cells, strict=True):
        size = (cell.box[2] - cell.box[0], cell.box[3] - cell.box[1])
        k = size[0] / 120
        small = Geometry(image=size, input=(48, 112), frame=tuple(k * e for e in m.geometry.frame))
        photo = m.photo.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)
        s = cell.scale
        expected = overlay(photo, m.values, small, alpha=0.7, vmin=s.vmin, vmax=s.vmax)
        assert drawn.crop(cell.box).tobytes() == expected.tobytes()


def test_photographs_of_different_shapes_share_a_sheet():
    maps = [heatmap(0.1, size=(120, 90)), heatmap(0.2, size=(60, 140)), heatmap(0.3, size=(100, 100))]
    design = plan(maps, columns=3)
    shapes = [(c.box[2] - c.box[0], c.box[3] - c.box[1]) for c in design.cells]
    assert shapes == [(176, 132), (75, 176), (176, 176)]
    assert len({c.words_at[1] for c in design.cells}) == 1
    assert sheet(maps, columns=3).size == design.size


def test_columns_make_a_wide_sheet_without_holes():
    assert best_columns(12, 100, 100) == 4
    assert best_columns(1, 100, 100) == 1
    assert all(1 <= best_columns(n, 190, 150) <= n for n in range(1, 150))


def test_a_sheet_leaves_its_maps_as_they_were():
    made = heatmap(0.1)
    before, numbers = made.photo.tobytes(), made.values.copy()
    sheet([made, made], smooth=True, gamma=0.5)
    assert made.photo.tobytes() == before
    assert np.array_equal(made.values, numbers)
