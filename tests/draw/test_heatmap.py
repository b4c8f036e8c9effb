"""Test heatmaps, their files and scales, and that overlays color exactly the pixels of each patch."""

import copy
import dataclasses
import io
import pickle
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import colormaps
from matplotlib.figure import Figure
from pairwise import pairs
from pictures import GH, GW, flat, inside, photograph, pixels, whole
from PIL import Image
from scipy.ndimage import map_coordinates

from vitviz.draw.colorbar import colorbar, describe_range
from vitviz.draw.colors import DrawError, lut
from vitviz.draw.overlay import overlay, patch_edges
from vitviz.heatmap import Heatmap, HeatmapError, Scale
from vitviz.images.geometry import Geometry
from vitviz.images.preprocess import Preprocess

PHOTO = photograph(149, 83)
GEOMETRY = Preprocess(height=48, width=112, mode="crop")(PHOTO).geometry


def heatmap(values=None, **more) -> Heatmap:
    values = np.random.default_rng(1).random((GH, GW)) / 10 if values is None else values
    return Heatmap(**{"values": values, "geometry": GEOMETRY, "photo": PHOTO, "unit": "attention", **more})


def test_values_are_a_read_only_copy():
    values, masses = np.random.default_rng(0).random((GH, GW)).astype(np.float32), {"CLS": 0.25}
    original = heatmap(values, prefix_mass=masses)
    assert (original.values.dtype, original.grid) == (np.float32, (GH, GW))
    assert np.array_equal(original.values, values)
    assert original.photo is PHOTO  # shared, not copied
    values[0, 0], masses["CLS"] = 99.0, 0.9
    assert original.values[0, 0] != 99.0
    assert dict(original.prefix_mass) == {"CLS": 0.25}
    with pytest.raises(ValueError, match="read-only"):
        original.values[0, 0] = 1.0
    with pytest.raises(TypeError):
        original.prefix_mass["CLS"] = 0.5
    with pytest.raises(dataclasses.FrozenInstanceError):
        original.title = "other"


def test_heatmap_converts_to_an_array():
    original = heatmap()
    for dtype in (np.float32, np.float64):
        np.testing.assert_array_equal(np.asarray(original, dtype), original.values.astype(dtype), strict=True)
    copied = np.array(original)
    assert copied.dtype == np.float32
    copied[0, 0] = 99.0
    assert original.values[0, 0] != 99.0
    np.testing.assert_array_equal(Figure().subplots().imshow(original).get_array(), original.values)
    assert Scale.over([original, heatmap(np.ones((GH, GW)))]) == Scale(float(original.values.min()), 1.0, "shared")


def test_over_a_resized_photograph_keeps_the_patches_in_place():
    original = heatmap()
    resized = original.over(PHOTO.resize((298, 166)))
    assert resized.geometry == GEOMETRY.rescaled((298, 166))
    np.testing.assert_allclose(resized.geometry.frame, 2 * np.array(GEOMETRY.frame))
    assert (resized.geometry.input, resized.photo.size) == (GEOMETRY.input, (298, 166))


FULL = {"title": "Layer 12, head 4: 看", "signed": True, "query": (2, 5), "classes": (7, 3), "unit": "relevance"}


@pytest.mark.parametrize("way", ["copy", "deepcopy", "pickle", "file"])
def test_copy_pickle_and_file_keep_everything(way, tmp_path):
    masses = {"CLS": 0.1, "registers": 0.25}
    original = heatmap(np.random.default_rng(5).normal(size=(GH, GW)), prefix_mass=masses, **FULL)
    restored = {
        "copy": copy.copy,
        "deepcopy": copy.deepcopy,
        "pickle": lambda value: pickle.loads(pickle.dumps(value)),
        "file": lambda value: Heatmap.load(value.save(tmp_path / "map.npz"), PHOTO),
    }[way](original)
    assert np.array_equal(restored.values, original.values)
    assert restored.geometry == original.geometry
    assert dict(restored.prefix_mass) == masses
    assert {name: getattr(restored, name) for name in FULL} == FULL
    assert restored.overlay().tobytes() == original.overlay().tobytes()
    with pytest.raises(ValueError, match="read-only"):
        restored.values[0, 0] = 1.0
    assert Heatmap.load(heatmap().save(tmp_path / "plain.npz"), PHOTO).query is None


def test_files_contain_no_pickle_and_other_files_are_refused(tmp_path):
    path = heatmap(title="a", prefix_mass={"CLS": 0.1}).save(tmp_path / "map.npz")
    with np.load(path, allow_pickle=False) as saved:
        assert {"values", "frame", "image", "input", "title", "prefix_mass"} <= set(saved.files)
        assert all(saved[name].dtype != object for name in saved.files)
    assert zipfile.is_zipfile(path)
    np.savez(tmp_path / "other.npz", values=np.ones((GH, GW)))
    np.save(tmp_path / "array.npy", np.ones((GH, GW)))
    for name, photo, words in (
        ("other.npz", PHOTO, "other.npz"),
        ("array.npy", PHOTO, "array.npy"),
        ("missing.npz", PHOTO, "missing.npz"),
        ("map.npz", Image.new("RGB", (20, 20)), "upright original"),
    ):
        with pytest.raises(HeatmapError, match=words):
            Heatmap.load(tmp_path / name, photo)
    with pytest.raises(HeatmapError, match=r"ends in \.npz"):
        heatmap().save(tmp_path / "map.png")


def test_notebooks_display_a_picture_and_repr_is_one_line():
    plain, other = (Image.open(io.BytesIO(value._repr_png_())) for value in (heatmap(), heatmap(np.eye(GH, GW))))
    assert plain.format == "PNG"
    assert plain.height > plain.width * PHOTO.height / PHOTO.width  # text and a color bar below the photograph
    assert plain.tobytes() != other.tobytes()
    line = repr(heatmap(title="Layer 12, head 4", prefix_mass={"CLS": 0.25}))
    assert line.startswith("Heatmap(values=float32[3, 7], ")
    assert all(part in line for part in ("title='Layer 12, head 4'", "{'CLS': 0.25}"))
    assert "\n" not in line


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"values": np.ones((2, GH, GW))}, r"\(2, 3, 7\)"),
        ({"photo": Image.new("RGB", (83, 149))}, "149 x 83 pixels.*got 83 x 149"),
        ({"prefix_mass": {"CLS": 12.0}}, "'CLS' as a share from 0 to 1, got 12.0"),
        ({"prefix_mass": {"CLS": float("nan")}}, "a share from 0 to 1"),
        ({"query": (GH, 0)}, "inside 3 x 7"),
    ],
)
def test_inconsistent_heatmaps_are_refused(change, words):
    with pytest.raises(HeatmapError, match=words):
        heatmap(**change)
    heatmap(prefix_mass={"CLS": 1.0000001, "registers": -1e-8})  # rounding errors are tolerated


def test_scale_of_one_heatmap_covers_its_values():
    values = np.linspace(-1, 3, GH * GW).reshape(GH, GW)
    assert heatmap(values).scale() == Scale(-1, 3, "each")
    assert heatmap(values).scale("signed") == Scale(-3, 3, "signed", signed=True)
    assert heatmap(values, signed=True).scale("each") == Scale(-3, 3, "each", signed=True)
    with pytest.raises(HeatmapError, match="got 'shared'"):
        heatmap(values).scale("shared")
    with pytest.raises(HeatmapError, match="symmetric"):
        heatmap(values, signed=True).scale((0, 2))


@settings(max_examples=25)
@given(st.lists(st.integers(-2, 2), min_size=GH * GW, max_size=GH * GW), st.integers(0, 30), st.booleans())
def test_top_orders_patches_by_strength_and_ties_in_reading_order(numbers, count, signed):
    integers = heatmap(np.array(numbers).reshape(GH, GW), signed=signed)
    order = sorted(range(GH * GW), key=lambda at: -abs(numbers[at]) if signed else -numbers[at])
    assert integers.top(count) == [(divmod(at, GW), numbers[at]) for at in order[:count]]
    with pytest.raises(HeatmapError, match="0 or more"):
        integers.top(-1)


def test_overlay_and_colorbar_use_query_and_scale():
    unsigned = heatmap(query=(2, 4))
    options = {"grid": True, "smooth": True, "alpha": 0.7, "cmap": "magma", "gamma": 0.6}
    expected = overlay(PHOTO, unsigned.values, GEOMETRY, query=(2, 4), scale=unsigned.scale(), **options)
    assert unsigned.overlay(**options).tobytes() == expected.tobytes()
    signed = heatmap(np.linspace(-1, 3, GH * GW).reshape(GH, GW), signed=True, unit="relevance")
    assert signed.overlay().tobytes() == overlay(PHOTO, signed.values, GEOMETRY, signed=True).tobytes()
    expected = colorbar(Scale(-3, 3, signed=True), None, "relevance", size=(400, 50), dark=True)
    assert signed.colorbar(size=(400, 50), dark=True).tobytes() == expected.tobytes()


def test_note_describes_prefix_mass_and_blank_maps():
    assert "Blank" in heatmap(np.zeros((GH, GW)), unit="score").note
    note = heatmap(prefix_mass={"CLS": 0.5}).note
    assert ("50.0 % on CLS" in note, "Blank" in note) == (True, False)
    assert heatmap(np.eye(GH, GW)).note == ""


def test_own_scale_clips_and_marks_outliers():
    values = np.linspace(0, 1, GH * GW).reshape(GH, GW)
    assert Scale.own(values) == Scale(0, 1, "each")
    values[1, 2] = 20.0
    scale = Scale.own(values)
    assert (scale.vmin, scale.vmax, scale.clipped) == (0.0, 1.0, 1)
    photo, geometry = flat(140, 90, 50), whole(140, 90)
    dotted, plain = (pixels(overlay(photo, values, geometry, scale=choice)) for choice in ("each", (0.0, 1.0)))
    marked = (dotted != plain).any(-1)  # the dot is inside its patch
    box = np.s_[30:60, 40:60]
    assert marked[box].any()
    assert marked.sum() == marked[box].sum()
    assert Scale.own(-values, signed=True) == Scale(-1, 1, "each", True, 1)
    assert Scale.choose("full", [values], signed=False).vmax == 20
    one_hot = np.zeros((GH, GW))
    one_hot[0, 0] = 1
    assert Scale.own(one_hot).clipped == 0  # all other patches are equal
    bars = [np.asarray(colorbar(each)) for each in (scale, Scale(0, 1))]
    assert (bars[0] != bars[1]).any()  # an arrow
    assert describe_range(scale) == "0 to 1 and more"


def test_spotlight_opacity_follows_the_value():
    values = np.linspace(-1, 1, GH * GW).reshape(GH, GW)
    photo, geometry = flat(140, 90, 50), whole(140, 90)
    for signed, clear in ((False, (0, 0)), (True, (GH // 2, GW // 2))):
        options = {"signed": signed, "alpha": 1.0}
        even, spot = (pixels(overlay(photo, values, geometry, spotlight=on, **options)) for on in (False, True))
        row, col = (30 * clear[0] + 15, 20 * clear[1] + 10)
        assert np.abs(spot[row, col].astype(int) - 50).max() <= 40 * signed
        assert np.array_equal(spot[-1, -1], even[-1, -1])


@pytest.mark.parametrize("value", [0.0, -3.5, 1e-30, 1e30])
@pytest.mark.parametrize("signed", [False, True])
def test_constant_maps_have_one_color(value, signed):
    with np.errstate(all="raise"):
        got = pixels(overlay(flat(140, 90, 0), np.full((GH, GW), value), whole(140, 90), signed=signed, alpha=1.0))
    assert len(np.unique(got.reshape(-1, 3), axis=0)) == 1
    if signed and value == 0:
        assert got.min() > 240  # zero has the middle colour


def test_zero_has_the_middle_color_of_signed_maps():
    values = np.array([[-0.2, 0.0, 0.8]])
    scale = Scale.over([values], "signed")
    assert (scale.vmin, scale.vmax, scale.signed) == (np.float32(-0.8), np.float32(0.8), True)
    assert scale.indices(values).tolist() == [[96, 128, 255]]
    left, middle, right = pixels(overlay(flat(3, 1, 0), values, whole(3, 1), signed=True, alpha=1.0))[0]
    assert middle.min() > 240
    assert left[2] > left[0]
    assert right[0] > right[2]
    own = overlay(flat(3, 1, 0), values, whole(3, 1), signed=True)
    assert own.tobytes() == overlay(flat(3, 1, 0), values, whole(3, 1), scale=scale).tobytes()


def test_indices_clip_values_and_apply_gamma():
    assert Scale(0.0, 1.0).indices([[-5.0, 0.0, 0.5, 1.0, 9.0]]).tolist() == [[0, 0, 128, 255, 255]]
    assert Scale(0, 1).indices([[0.0, 0.25, 1.0]], gamma=0.5).tolist() == [[0, 128, 255]]
    signed = Scale(-1, 1, signed=True).indices([[-0.25, 0.0, 0.25]], gamma=0.5)
    assert signed.tolist() == [[64, 128, 191]]
    with pytest.raises(HeatmapError, match="gamma"):
        Scale(0, 1).indices([[0.5]], gamma=0.0)


def test_choose_returns_each_kind_of_scale():
    maps = [np.array([[0.0, 2.0]], np.float32), np.array([[-1.0, 1.0]], np.float32)]
    assert Scale.choose("shared", maps, signed=False) == Scale(-1, 2, "shared")
    assert Scale.choose("signed", maps, signed=False) == Scale(-2, 2, "signed", signed=True)
    assert Scale.choose((0, 5), maps, signed=False) == Scale(0, 5, "fixed")
    assert Scale.choose(Scale(0, 9), maps, signed=False) == Scale(0, 9)
    for invalid in ("global", (1, 2, 3)):
        with pytest.raises(HeatmapError, match="Expected scale as"):
            Scale.choose(invalid, maps, signed=False)


# ---- overlays


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


@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
def test_each_pixel_has_the_color_of_its_patch(geometry):
    values = np.random.default_rng(1).random((GH, GW)).astype(np.float32)
    photo = photograph(*geometry.image)
    x, y = np.meshgrid(np.arange(photo.width) + 0.5, np.arange(photo.height) + 0.5)
    patches = [geometry.patch_at(*center, (GH, GW)) or (-1, -1) for center in zip(x.flat, y.flat, strict=True)]
    seen_by = np.array(patches).reshape(photo.height, photo.width, 2)
    table = np.round(np.array(colormaps["viridis"].colors) * 255)
    indices = np.round(255 * (values - values.min()) / (values.max() - values.min())).astype(int)
    colors = table[indices][seen_by[..., 0], seen_by[..., 1]]  # (height, width, 3)
    expected = np.where(seen_by[..., :1] >= 0, colors, pixels(photo))
    got = pixels(overlay(photo, values, geometry, alpha=1.0, unseen=False))
    assert np.abs(got - expected).max() <= 1  # matplotlib truncates 8-bit colours; this test rounds
    cold = overlay(photo, np.zeros((GH, GW)), geometry, scale=(0, 1))
    for patch in ((0, 0), (1, 4), (GH - 1, GW - 1)):  # a patch changes only its own box
        hot = np.zeros((GH, GW))
        hot[patch] = 1.0
        changed = (pixels(cold) != pixels(overlay(photo, hot, geometry, scale=(0, 1)))).any(axis=-1)
        left, top, right, bottom = geometry.patch_box(*patch, (GH, GW))
        assert np.array_equal(changed, (left <= x) & (x < right) & (top <= y) & (y < bottom))


def test_alpha_blends_photograph_and_map():
    photo, values, geometry = photograph(120, 90), np.random.default_rng(0).random((GH, GW)), whole(120, 90)
    for smooth in (False, True):
        none, half, full = (overlay(photo, values, geometry, alpha=alpha, smooth=smooth) for alpha in (0.0, 0.5, 1.0))
        assert none.tobytes() == photo.tobytes()
        assert np.abs(pixels(half) - (pixels(photo) + pixels(full)) / 2).max() <= 1
        other = overlay(photograph(120, 90, seed=9), values, geometry, alpha=1.0, smooth=smooth)
        assert full.tobytes() == other.tobytes()
    gray = overlay(photo, values, geometry, gray=True)  # removes the color from the photograph only
    assert gray.tobytes() == overlay(photo.convert("L").convert("RGB"), values, geometry).tobytes()


@pytest.mark.parametrize("name", [name for name in GEOMETRIES if "below" not in name])
def test_smooth_interpolates_bilinearly_between_patch_centers(name):
    geometry, values = GEOMETRIES[name], np.random.default_rng(2).random((GH, GW)).round(2)
    photo = flat(*geometry.image, 0)
    got = pixels(overlay(photo, values, geometry, cmap="gray", alpha=1.0, smooth=True, unseen=False, scale=(0, 1)))
    left, top, right, bottom = geometry.frame
    row = (np.arange(photo.height)[:, None] + 0.5 - top) / (bottom - top) * GH
    col = (np.arange(photo.width)[None] + 0.5 - left) / (right - left) * GW
    seen = (row >= 0) & (row < GH) & (col >= 0) & (col < GW)
    expected = map_coordinates(values, np.broadcast_arrays(row - 0.5, col - 0.5), order=1, mode="nearest")
    assert np.abs(got[..., 0] - 255 * expected)[seen].max() <= 2.5  # tolerance for four roundings
    assert not got[~seen].any()


def test_unseen_pixels_are_hatched_without_color():
    geometry = inside()
    xs, ys = patch_edges(geometry, (GH, GW))
    unseen = np.ones((90, 120), bool)
    unseen[ys[0] : ys[-1], xs[0] : xs[-1]] = False
    for level in (0, 40, 128, 220, 255):  # visible on any photograph
        photo = flat(120, 90, level)
        first = pixels(overlay(photo, np.random.default_rng(0).random((GH, GW)), geometry))[unseen]
        second = pixels(overlay(photo, np.ones((GH, GW)), geometry, cmap="magma", alpha=0.9, smooth=True))[unseen]
        assert np.array_equal(first, second)  # independent of the map
        assert np.ptp(first, axis=-1).max() == 0  # grey
        assert np.ptp(first[:, 0]) >= 12  # lines are visible
    red = Image.new("RGB", (120, 90), (200, 40, 40))
    faded = pixels(overlay(red, np.ones((GH, GW)), geometry))[unseen]
    assert (faded[:, 0] - faded[:, 1]).max() < 0.5 * 160
    assert (faded[:, 0] > faded[:, 1]).all()
    plain = pixels(overlay(red, np.ones((GH, GW)), geometry, unseen=False))[unseen]
    assert (plain == [200, 40, 40]).all()


def test_hatching_is_continuous_over_unseen_pixels():
    geometry = Geometry(image=(40, 30), input=(48, 112), frame=(100.0, 100.0, 140.0, 130.0))
    got = overlay(photograph(40, 30), np.ones((GH, GW)), geometry, grid=True, smooth=True, query=(1, 1))
    assert got.size == (40, 30)
    assert (pixels(got) != pixels(photograph(40, 30))).any(axis=-1).mean() > 0.9
    geometry = Geometry(image=(390, 300), input=(48, 112), frame=(380.0, 290.0, 400.0, 310.0))
    got = pixels(overlay(flat(390, 300, 128), np.ones((GH, GW)), geometry))[..., 0]
    assert np.array_equal(got[1:289, :378], got[:288, 1:379])  # lines at 45 degrees over strips and bands


@pytest.mark.parametrize("level", [0, 128, 255])
def test_grid_lines_are_on_patch_edges_and_always_visible(level):
    photo, geometry = flat(140, 90, level), whole(140, 90)
    got = pixels(overlay(photo, np.ones((GH, GW)), geometry, alpha=0.0, grid=True))[..., 0]
    columns = np.nonzero((got != level).all(axis=0))[0]
    rows = np.nonzero((got != level).all(axis=1))[0]
    assert set(columns) <= {x + d for x in range(20, 140, 20) for d in (-1, 0)}
    assert set(rows) <= {y + d for y in (30, 60) for d in (-1, 0)}
    for x in range(20, 140, 20):
        assert np.abs(got[10, x - 1 : x + 1] - level).max() >= 50  # visible on black and on white

    if level == 0:
        assert got.max() == got[30, 5]  # crossings are not tinted twice


@pytest.mark.parametrize(("query", "level"), pairs([(0, 0), (1, 3), (GH - 1, GW - 1)], [0, 128, 255]))
def test_query_patch_has_a_visible_outline(query, level):
    got = pixels(overlay(flat(420, 270, level), np.ones((GH, GW)), whole(420, 270), alpha=0.0, query=query))
    changed, (row, col) = (got != level).any(axis=-1), query
    for places, start, length in zip(np.nonzero(changed), (90 * row, 60 * col), (90, 60), strict=True):
        assert abs(places.min() - start) <= 6
        assert abs(places.max() - start - length) <= 6
    assert not changed[90 * row + 8 : 90 * row + 82, 60 * col + 8 : 60 * col + 52].any()  # inside the patch
    across = got[90 * row + 45, max(0, 60 * col - 8) : 60 * col + 30, 0]
    bands = [int(shade) for shade, before in zip(across, [-1, *across[:-1]], strict=True) if shade != before]
    if level == 128 and col > 0:
        assert bands == [128, 12, 255, 12, 128]  # a white line with dark borders
    assert {12, 255} <= set(bands)


def test_patch_of_padding_has_no_outline():
    photo, values = photograph(30, 90), np.ones((7, 7))
    geometry = Preprocess(height=112, width=112, mode="pad")(photo).geometry
    plain, padding, seen = (overlay(photo, values, geometry, query=query).tobytes() for query in (None, (3, 0), (3, 3)))
    assert plain == padding != seen


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"values": np.full((GH, GW), np.nan)}, "21 NaN or infinite of 21"),
        ({"values": np.full((GH, GW), 1e300)}, "finite"),
        ({"values": np.ones(21)}, r"shape \(gh, gw\).*\(21,\)"),
        ({"values": np.array([["a"]])}, "real numbers"),
        ({"photo": flat(90, 140, 0)}, "140 x 90 pixels, got 90 x 140"),
        ({"alpha": 1.2}, "alpha"),
        ({"cmap": "no such map"}, "viridis, magma"),
        ({"query": (GH, 0)}, "inside 3 x 7"),
        ({"scale": (2.0, 1.0)}, "lower number first"),
        ({"scale": (-1.0, 2.0), "signed": True}, r"symmetric about zero.*Pass \(-2.0, 2.0\)"),
    ],
)
def test_invalid_overlay_arguments_are_refused(change, words):
    arguments = {"photo": flat(140, 90, 0), "values": np.ones((GH, GW)), "geometry": whole(140, 90), **change}
    with pytest.raises((DrawError, HeatmapError), match=words):
        overlay(**arguments)


def test_overlay_does_not_change_its_inputs():
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
def test_overlay_has_the_photographs_size_for_any_geometry(size, frame, grid, alpha, flags, data):
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
