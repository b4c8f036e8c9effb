"""Overlays colour exactly the pixels each patch saw, and mark them."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import colormaps
from pairwise import pairs
from pictures import GH, GW, flat, inside, photograph, pixels, whole
from PIL import Image
from scipy.ndimage import map_coordinates

from vitviz.draw.colors import DrawError, lut
from vitviz.draw.overlay import overlay, patch_edges
from vitviz.heatmap import HeatmapError
from vitviz.images.geometry import Geometry
from vitviz.images.preprocess import Preprocess


def patch_of_every_pixel(geometry: Geometry, grid: tuple[int, int]) -> np.ndarray:
    """(height, width, 2): the patch in which each pixel's centre lies, or (-1, -1), as Geometry tells it."""
    width, height = geometry.image
    found = [[geometry.patch_at(x + 0.5, y + 0.5, grid) or (-1, -1) for x in range(width)] for y in range(height)]
    return np.array(found)


GEOMETRIES = {
    "crop, wide": Preprocess(height=48, width=112, mode="crop")(photograph(131, 67)).geometry,
    "crop, high": Preprocess(height=48, width=112, mode="crop")(photograph(67, 131)).geometry,
    "squash": Preprocess(height=48, width=112, mode="squash")(photograph(101, 83)).geometry,
    "pad": Preprocess(height=48, width=112, mode="pad")(photograph(59, 97)).geometry,
    "native": Preprocess(height=48, width=112, mode="native", multiple=16)(photograph(113, 71)).geometry,
    "between pixels": inside(),
    "edges on pixel centres": Geometry(image=(30, 9), input=(48, 112), frame=(1.5, 0.5, 22.5, 6.5)),
    "patches below a pixel": Geometry(image=(5, 2), input=(48, 112), frame=(-1.0, 0.2, 4.4, 1.9)),
}


# ---- pixels ----


@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
def test_every_pixel_takes_the_colour_of_the_patch_that_saw_it(geometry):
    values = np.random.default_rng(1).random((GH, GW)).astype(np.float32)
    photo, seen_by = photograph(*geometry.image), patch_of_every_pixel(geometry, (GH, GW))
    table = np.round(np.array(colormaps["viridis"].colors) * 255)
    indices = np.round(255 * (values - values.min()) / (values.max() - values.min())).astype(int)
    colors = table[indices][seen_by[..., 0], seen_by[..., 1]]  # (height, width, 3)
    expected = np.where(seen_by[..., :1] >= 0, colors, pixels(photo))
    got = pixels(overlay(photo, values, geometry, alpha=1.0, unseen=False))
    assert np.abs(got - expected).max() <= 1  # matplotlib truncates 8-bit colours where this test rounds
    cold = overlay(photo, np.zeros((GH, GW)), geometry, scale=(0, 1))
    x, y = np.meshgrid(np.arange(photo.width) + 0.5, np.arange(photo.height) + 0.5)
    for patch in ((0, 0), (1, 4), (GH - 1, GW - 1)):  # one changes its own box and nothing else
        hot = np.zeros((GH, GW))
        hot[patch] = 1.0
        changed = (pixels(cold) != pixels(overlay(photo, hot, geometry, scale=(0, 1)))).any(axis=-1)
        left, top, right, bottom = geometry.patch_box(*patch, (GH, GW))
        assert np.array_equal(changed, (left <= x) & (x < right) & (top <= y) & (y < bottom))


def test_alpha_runs_from_the_photograph_to_the_map_alone():
    photo, values = photograph(120, 90), np.random.default_rng(0).random((GH, GW))
    for smooth in (False, True):
        none, half, full = (overlay(photo, values, whole(120, 90), alpha=a, smooth=smooth) for a in (0.0, 0.5, 1.0))
        assert none.tobytes() == photo.tobytes()
        assert np.abs(pixels(half) - (pixels(photo) + pixels(full)) / 2).max() <= 1
        other = overlay(photograph(120, 90, seed=9), values, whole(120, 90), alpha=1.0, smooth=smooth)
        assert full.tobytes() == other.tobytes()


@pytest.mark.parametrize("name", [name for name in GEOMETRIES if "below" not in name])
def test_smooth_is_bilinear_between_patch_centres_and_flat_at_the_edge(name):
    geometry, values = GEOMETRIES[name], np.random.default_rng(2).random((GH, GW)).round(2)
    photo = flat(*geometry.image, 0)
    got = pixels(overlay(photo, values, geometry, cmap="gray", alpha=1.0, smooth=True, unseen=False, scale=(0, 1)))
    left, top, right, bottom = geometry.frame
    row = (np.arange(photo.height)[:, None] + 0.5 - top) / (bottom - top) * GH
    col = (np.arange(photo.width)[None] + 0.5 - left) / (right - left) * GW
    seen = (row >= 0) & (row < GH) & (col >= 0) & (col < GW)
    expected = map_coordinates(values, np.broadcast_arrays(row - 0.5, col - 0.5), order=1, mode="nearest")
    assert np.abs(got[..., 0] - 255 * expected)[seen].max() <= 2.5  # three roundings and one of the table
    assert not got[~seen].any()


def test_unseen_pixels_are_hatched_and_never_coloured():
    geometry = inside()
    xs, ys = patch_edges(geometry, (GH, GW))
    unseen = np.ones((90, 120), bool)
    unseen[ys[0] : ys[-1], xs[0] : xs[-1]] = False
    for level in (0, 40, 128, 220, 255):  # visible on any ground
        photo = flat(120, 90, level)
        first = pixels(overlay(photo, np.random.default_rng(0).random((GH, GW)), geometry))[unseen]
        second = pixels(overlay(photo, np.ones((GH, GW)), geometry, cmap="magma", alpha=0.9, smooth=True))[unseen]
        assert np.array_equal(first, second)  # nothing of the map
        assert np.ptp(first, axis=-1).max() == 0  # no colour
        assert np.ptp(first[:, 0]) >= 12  # lines stand out from what is between them
    red = Image.new("RGB", (120, 90), (200, 40, 40))
    faded = pixels(overlay(red, np.ones((GH, GW)), geometry))[unseen]
    assert (faded[:, 0] - faded[:, 1]).max() < 0.5 * 160
    assert (faded[:, 0] > faded[:, 1]).all()
    plain = pixels(overlay(red, np.ones((GH, GW)), geometry, unseen=False))[unseen]
    assert (plain == [200, 40, 40]).all()


def test_hatching_covers_unseen_pixels_in_unbroken_lines():
    geometry = Geometry(image=(40, 30), input=(48, 112), frame=(100.0, 100.0, 140.0, 130.0))
    got = overlay(photograph(40, 30), np.ones((GH, GW)), geometry, grid=True, smooth=True, query=(1, 1))
    assert got.size == (40, 30)
    assert (pixels(got) != pixels(photograph(40, 30))).any(axis=-1).mean() > 0.9
    geometry = Geometry(image=(390, 300), input=(48, 112), frame=(380.0, 290.0, 400.0, 310.0))
    got = pixels(overlay(flat(390, 300, 128), np.ones((GH, GW)), geometry))[..., 0]
    assert np.array_equal(got[1:289, :378], got[:288, 1:379])  # lines at 45 degrees over strips and bands


def test_grey_takes_the_colour_out_of_the_photograph_only():
    photo, values = photograph(120, 90), np.random.default_rng(0).random((GH, GW))
    assert np.ptp(pixels(overlay(photo, values, whole(120, 90), alpha=0.0, gray=True)), axis=-1).max() == 0
    expected = overlay(photo.convert("L").convert("RGB"), values, whole(120, 90))
    assert overlay(photo, values, whole(120, 90), gray=True).tobytes() == expected.tobytes()


# ---- marks ----


@pytest.mark.parametrize("level", [0, 128, 255])
def test_grid_lines_lie_on_patch_edges_and_show_on_any_ground(level):
    photo, geometry = flat(140, 90, level), whole(140, 90)
    got = pixels(overlay(photo, np.ones((GH, GW)), geometry, alpha=0.0, grid=True))[..., 0]
    columns = np.nonzero((got != level).all(axis=0))[0]
    rows = np.nonzero((got != level).all(axis=1))[0]
    assert set(columns) <= {x + d for x in range(20, 140, 20) for d in (-1, 0)}
    assert set(rows) <= {y + d for y in (30, 60) for d in (-1, 0)}
    for x in range(20, 140, 20):
        assert np.abs(got[10, x - 1 : x + 1] - level).max() >= 50  # on black and on white alike

    if level == 0:
        assert got.max() == got[30, 5]  # crossings are not tinted twice


@pytest.mark.parametrize(("query", "level"), pairs([(0, 0), (1, 3), (GH - 1, GW - 1)], [0, 128, 255]))
def test_the_selected_patch_is_outlined_on_any_ground(query, level):
    got = pixels(overlay(flat(420, 270, level), np.ones((GH, GW)), whole(420, 270), alpha=0.0, query=query))
    changed, (row, col) = (got != level).any(axis=-1), query
    for places, start, length in zip(np.nonzero(changed), (90 * row, 60 * col), (90, 60), strict=True):
        assert abs(places.min() - start) <= 6
        assert abs(places.max() - start - length) <= 6
    assert not changed[90 * row + 8 : 90 * row + 82, 60 * col + 8 : 60 * col + 52].any()  # the patch itself stays free
    across = got[90 * row + 45, max(0, 60 * col - 8) : 60 * col + 30, 0]
    bands = [int(shade) for shade, before in zip(across, [-1, *across[:-1]], strict=True) if shade != before]
    if level == 128 and col > 0:
        assert bands == [128, 12, 255, 12, 128]  # white in a dark casing
    assert {12, 255} <= set(bands)


def test_outline_of_a_patch_that_saw_padding_only_draws_nothing():
    photo, values = photograph(30, 90), np.ones((7, 7))
    geometry = Preprocess(height=112, width=112, mode="pad")(photo).geometry
    plain = overlay(photo, values, geometry)
    assert overlay(photo, values, geometry, query=(3, 0)).tobytes() == plain.tobytes()
    assert overlay(photo, values, geometry, query=(3, 3)).tobytes() != plain.tobytes()


# ---- refusals ----


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"values": np.full((GH, GW), np.nan)}, "21 NaN or infinite of 21"),
        ({"values": np.full((GH, GW), np.inf)}, "finite"),
        ({"values": np.full((GH, GW), 1e300)}, "finite"),
        ({"values": np.ones(21)}, r"shape \(gh, gw\).*\(21,\)"),
        ({"values": np.ones((0, 7))}, "shape"),
        ({"values": np.array([["a"]])}, "real numbers"),
        ({"values": np.ones((GH, GW), complex)}, "real numbers"),
        ({"photo": flat(90, 140, 0)}, "140 x 90 pixels, got 90 x 140"),
        ({"alpha": 1.2}, "alpha"),
        ({"alpha": math.nan}, "alpha"),
        ({"cmap": "no such map"}, "viridis, magma"),
        ({"query": (GH, 0)}, "inside 3 x 7"),
        ({"query": (0, -1)}, "inside 3 x 7"),
        ({"scale": (2.0, 1.0)}, "lower number first"),
        ({"scale": (math.nan, 1.0)}, "finite"),
        ({"scale": (-1.0, 2.0), "signed": True}, r"symmetric about zero.*Pass \(-2.0, 2.0\)"),
    ],
)
def test_wrong_input_is_refused_in_words(change, words):
    arguments = {"photo": flat(140, 90, 0), "values": np.ones((GH, GW)), "geometry": whole(140, 90), **change}
    with pytest.raises((DrawError, HeatmapError), match=words):
        overlay(**arguments)


def test_inputs_stay_as_they_were():
    photo, values = photograph(120, 90), np.random.default_rng(0).random((GH, GW)).astype(np.float32)
    before, numbers = photo.tobytes(), values.copy()
    for smooth in (False, True):
        overlay(photo, values, inside(), smooth=smooth, grid=True, query=(1, 2), gamma=0.5)
    assert photo.tobytes() == before
    assert np.array_equal(values, numbers)
    assert not lut("viridis").flags.writeable


@settings(max_examples=30)
@given(
    size=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    frame=st.tuples(st.floats(-99, 99), st.floats(-99, 99), st.floats(0.01, 200), st.floats(0.01, 200)),
    grid=st.tuples(st.integers(1, 19), st.integers(1, 19)),
    alpha=st.floats(0, 1),
    flags=st.tuples(*[st.booleans()] * 4),
    data=st.data(),
)
def test_any_geometry_draws_a_picture_of_the_photographs_size(size, frame, grid, alpha, flags, data):
    left, top, width, height = frame
    geometry = Geometry(image=size, input=(16 * grid[0], 16 * grid[1]), frame=(left, top, left + width, top + height))
    query = (data.draw(st.integers(0, grid[0] - 1)), data.draw(st.integers(0, grid[1] - 1)))
    photo, values = photograph(*size), np.random.default_rng(3).normal(size=grid)
    smooth, lines, signed, gray = flags
    marks = {"smooth": smooth, "grid": lines, "signed": signed, "gray": gray}
    got = overlay(photo, values, geometry, alpha=alpha, query=query, **marks)
    assert (got.size, got.mode) == (size, "RGB")
    xs, ys = patch_edges(geometry, grid)
    for edges, most in zip((xs, ys), size, strict=True):
        assert (np.diff(edges) >= 0).all()
        assert edges[-1] <= most
