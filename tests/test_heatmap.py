"""Heatmaps keep their numbers and their place, also in a file; their scales mean what they say."""

import copy
import dataclasses
import io
import pickle
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from pictures import GH, GW, flat, photograph, pixels, whole
from PIL import Image

from vitviz.draw.colorbar import colorbar, describe_range
from vitviz.draw.overlay import overlay
from vitviz.heatmap import Heatmap, HeatmapError, Scale
from vitviz.images.geometry import Geometry
from vitviz.images.preprocess import Preprocess

PHOTO = photograph(149, 83)
GEOMETRY = Preprocess(height=48, width=112, mode="crop")(PHOTO).geometry


def heatmap(values=None, **more) -> Heatmap:
    values = np.random.default_rng(1).random((GH, GW)) / 10 if values is None else values
    return Heatmap(**{"values": values, "geometry": GEOMETRY, "photo": PHOTO, "unit": "attention", **more})


def test_values_are_frozen_and_belong_to_the_heatmap_alone():
    values, masses = np.random.default_rng(0).random((GH, GW)).astype(np.float32), {"CLS": 0.25}
    made = heatmap(values, prefix_mass=masses)
    assert made.values.dtype == np.float32
    assert np.array_equal(made.values, values)
    values[0, 0], masses["CLS"] = 99.0, 0.9
    assert made.values[0, 0] != 99.0
    assert dict(made.prefix_mass) == {"CLS": 0.25}
    with pytest.raises(ValueError, match="read-only"):
        made.values[0, 0] = 1.0
    with pytest.raises(TypeError):
        made.prefix_mass["CLS"] = 0.5
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.title = "other"
    before = made.values.copy()
    made.overlay(smooth=True, gamma=0.5, scale=(0, 0.01))
    assert np.array_equal(made.values, before)
    assert made.photo is PHOTO  # shared, not copied


def test_numpy_and_matplotlib_take_it_as_its_values():
    made = heatmap()
    assert np.asarray(made).dtype == np.float32
    np.testing.assert_array_equal(np.asarray(made), made.values)
    np.testing.assert_array_equal(np.asarray(made, np.float64), made.values.astype(np.float64))
    own = np.array(made)
    own[0, 0] = 99.0
    assert made.values[0, 0] != 99.0
    np.testing.assert_array_equal(Figure().subplots().imshow(made).get_array(), made.values)
    assert Scale.over([made, heatmap(np.ones((GH, GW)))]) == Scale(float(made.values.min()), 1.0, "shared")


FULL = {"title": "Layer 12, head 4: 看", "signed": True, "query": (2, 5), "classes": (7, 3), "unit": "relevance"}


@pytest.mark.parametrize("way", ["copy", "deepcopy", "pickle", "file"])
def test_it_is_copied_pickled_and_saved_to_the_last_bit(way, tmp_path):
    masses = {"CLS": 0.1, "registers": 0.25}
    made = heatmap(np.random.default_rng(5).normal(size=(GH, GW)), prefix_mass=masses, **FULL)
    back = {
        "copy": copy.copy,
        "deepcopy": copy.deepcopy,
        "pickle": lambda made: pickle.loads(pickle.dumps(made)),
        "file": lambda made: Heatmap.load(made.save(tmp_path / "map.npz"), PHOTO),
    }[way](made)
    assert np.array_equal(back.values, made.values)
    assert back.geometry == made.geometry
    assert dict(back.prefix_mass) == masses
    assert {name: getattr(back, name) for name in FULL} == FULL
    assert back.overlay().tobytes() == made.overlay().tobytes()
    with pytest.raises(ValueError, match="read-only"):
        back.values[0, 0] = 1.0
    assert Heatmap.load(heatmap().save(tmp_path / "plain.npz"), PHOTO).query is None


def test_files_hold_no_pickle_and_other_files_are_refused(tmp_path):
    path = heatmap(title="a", prefix_mass={"CLS": 0.1}).save(tmp_path / "map.npz")
    with np.load(path, allow_pickle=False) as saved:
        assert {"values", "frame", "image", "input", "title", "prefix_mass"} <= set(saved.files)
        assert all(saved[name].dtype != object for name in saved.files)
    assert zipfile.is_zipfile(path)
    np.savez(tmp_path / "other.npz", values=np.ones((GH, GW)))
    np.save(tmp_path / "array.npy", np.ones((GH, GW)))
    for name, photo, words in (
        ("other.npz", PHOTO, r"Heatmap\.save.*without.*frame"),
        ("array.npy", PHOTO, "array.npy"),
        ("missing.npz", PHOTO, "missing.npz"),
        ("map.npz", Image.new("RGB", (20, 20)), "upright original"),
    ):
        with pytest.raises(HeatmapError, match=words):
            Heatmap.load(tmp_path / name, photo)
    with pytest.raises(HeatmapError, match=r"ends in \.npz"):
        heatmap().save(tmp_path / "map.png")


def test_a_notebook_shows_a_picture_and_one_line():
    plain, other = (Image.open(io.BytesIO(made._repr_png_())) for made in (heatmap(), heatmap(np.eye(GH, GW))))
    assert plain.format == "PNG"
    assert plain.height > plain.width * PHOTO.height / PHOTO.width  # words and a color bar stand below the photograph
    assert plain.tobytes() != other.tobytes()
    told = repr(heatmap(title="Layer 12, head 4", prefix_mass={"CLS": 0.25}))
    assert told.startswith("Heatmap(values=float32[3, 7], ")
    assert "title='Layer 12, head 4'" in told
    assert "{'CLS': 0.25}" in told
    assert "\n" not in told


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"values": np.ones((2, GH, GW))}, r"\(2, 3, 7\)"),
        ({"values": np.full((GH, GW), np.nan)}, "21 NaN or infinite"),
        ({"photo": Image.new("RGB", (83, 149))}, "149 x 83 pixels.*got 83 x 149"),
        ({"prefix_mass": {"CLS": 12.0}}, "'CLS' as a share from 0 to 1, got 12.0"),
        ({"prefix_mass": {"CLS": float("nan")}}, "a share from 0 to 1"),
        ({"query": (GH, 0)}, "inside 3 x 7"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(change, words):
    with pytest.raises(HeatmapError, match=words):
        heatmap(**change)
    heatmap(prefix_mass={"CLS": 1.0000001, "registers": -1e-8})  # noise of floating point is no error


def test_rows_are_down_and_columns_across():
    values = np.zeros((GH, GW))
    values[1, 5] = 1.0
    made = heatmap(values)
    assert made.grid == (GH, GW)
    assert made.top(1) == [((1, 5), 1.0)]
    cold = np.asarray(heatmap(np.zeros((GH, GW))).overlay(scale=(0, 1)))
    ys, xs = np.nonzero((np.asarray(made.overlay(scale=(0, 1))) != cold).any(axis=-1))
    left, top, right, bottom = GEOMETRY.patch_box(1, 5, (GH, GW))
    assert (xs.min(), xs.max() + 1) == pytest.approx((left, right), abs=0.5)
    assert (ys.min(), ys.max() + 1) == pytest.approx((top, bottom), abs=0.5)
    padded = Geometry(image=PHOTO.size, input=(112, 112), frame=(0.0, -33.0, 149.0, 116.0))
    assert Heatmap(np.eye(7), padded, PHOTO, query=(0, 0)).overlay(grid=True).size == PHOTO.size


def test_a_heatmap_has_a_scale_of_its_own():
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
    made = heatmap(np.array(numbers).reshape(GH, GW), signed=signed)
    order = sorted(range(GH * GW), key=lambda at: -abs(numbers[at]) if signed else -numbers[at])
    assert made.top(count) == [(divmod(at, GW), numbers[at]) for at in order[:count]]
    with pytest.raises(HeatmapError, match="0 or more"):
        made.top(-1)


def test_overlay_and_color_bar_show_the_map_with_its_query_and_range():
    made = heatmap(query=(2, 4))
    options = {"grid": True, "smooth": True, "alpha": 0.7, "cmap": "magma", "gamma": 0.6}
    expected = overlay(PHOTO, made.values, GEOMETRY, query=(2, 4), scale=made.scale(), **options)
    assert made.overlay(**options).tobytes() == expected.tobytes()
    signed = heatmap(np.linspace(-1, 3, GH * GW).reshape(GH, GW), signed=True, unit="relevance")
    assert signed.overlay().tobytes() == overlay(PHOTO, signed.values, GEOMETRY, signed=True).tobytes()
    expected = colorbar(Scale(-3, 3, signed=True), None, "relevance", size=(400, 50), dark=True)
    assert signed.colorbar(size=(400, 50), dark=True).tobytes() == expected.tobytes()


def test_a_note_says_what_colors_do_not():
    assert "Blank" in heatmap(np.zeros((GH, GW)), unit="score").note
    full = heatmap(prefix_mass={"CLS": 0.5})
    assert "50.0 % on CLS" in full.note
    assert "Blank" not in full.note
    assert heatmap(np.eye(GH, GW)).note == ""


# ---- scales


def test_a_shared_scale_gives_equal_colours_to_equal_numbers():
    strong, weak = np.linspace(0, 1, GH * GW).reshape(GH, GW), np.linspace(0, 0.1, GH * GW).reshape(GH, GW)
    weak[2, 3] = strong[2, 3]
    shared = Scale.over([strong, weak])
    assert (shared.vmin, shared.vmax, shared.kind) == (0.0, 1.0, "shared")
    photo, geometry = flat(140, 90, 0), whole(140, 90)
    both = [pixels(overlay(photo, v, geometry, scale=shared)) for v in (strong, weak)]
    box = np.s_[60:90, 60:80]
    assert np.array_equal(both[0][box], both[1][box])
    each = [overlay(photo, v, geometry).tobytes() for v in (strong, 0.25 * strong)]
    common = [overlay(photo, v, geometry, scale=shared).tobytes() for v in (strong, 0.25 * strong)]
    assert each[0] == each[1] == common[0] != common[1]  # a scale each hides strength


def test_one_patch_does_not_take_the_colors_of_all_others():
    values = np.linspace(0, 1, GH * GW).reshape(GH, GW)
    assert Scale.own(values) == Scale(0, 1, "each")
    values[1, 2] = 20.0
    scale = Scale.own(values)
    assert (scale.vmin, scale.vmax, scale.clipped) == (0.0, 1.0, 1)
    photo, geometry = flat(140, 90, 50), whole(140, 90)
    drawn, plain = (pixels(overlay(photo, values, geometry, scale=one)) for one in ("each", (0.0, 1.0)))
    marked = (drawn != plain).any(-1)  # the dot, inside of its patch
    box = np.s_[30:60, 40:60]
    assert marked[box].any()
    assert marked.sum() == marked[box].sum()
    assert Scale.own(-values, signed=True) == Scale(-1, 1, "each", True, 1)
    assert Scale.choose("full", [values], signed=False).vmax == 20
    one_hot = np.zeros((GH, GW))
    one_hot[0, 0] = 1
    assert Scale.own(one_hot).clipped == 0  # there is nothing else to see
    bars = [np.asarray(colorbar(one)) for one in (scale, Scale(0, 1))]
    assert (bars[0] != bars[1]).any()  # an arrow
    assert describe_range(scale) == "0 to 1 and more"


def test_opacity_follows_the_value():
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
def test_a_constant_map_is_drawn_in_one_colour(value, signed):
    with np.errstate(all="raise"):
        got = pixels(overlay(flat(140, 90, 0), np.full((GH, GW), value), whole(140, 90), signed=signed, alpha=1.0))
    assert len(np.unique(got.reshape(-1, 3), axis=0)) == 1
    if signed and value == 0:
        assert got.min() > 240  # zero has the middle colour


def test_signed_maps_keep_zero_in_the_middle():
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


def test_values_beyond_the_range_take_its_ends_and_gamma_bends_values_or_magnitudes():
    assert Scale(0.0, 1.0).indices([[-5.0, 0.0, 0.5, 1.0, 9.0]]).tolist() == [[0, 0, 128, 255, 255]]
    assert Scale(0, 1).indices([[0.0, 0.25, 1.0]], gamma=0.5).tolist() == [[0, 128, 255]]
    signed = Scale(-1, 1, signed=True).indices([[-0.25, 0.0, 0.25]], gamma=0.5)
    assert signed.tolist() == [[64, 128, 191]]
    with pytest.raises(HeatmapError, match="gamma"):
        Scale(0, 1).indices([[0.5]], gamma=0.0)


def test_choose_knows_every_choice_and_refuses_others():
    maps = [np.array([[0.0, 2.0]], np.float32), np.array([[-1.0, 1.0]], np.float32)]
    assert Scale.choose("shared", maps, signed=False) == Scale(-1, 2, "shared")
    assert Scale.choose("signed", maps, signed=False) == Scale(-2, 2, "signed", signed=True)
    assert Scale.choose((0, 5), maps, signed=False) == Scale(0, 5, "fixed")
    assert Scale.choose(Scale(0, 9), maps, signed=False) == Scale(0, 9)
    for wrong in ("global", (1, 2, 3)):
        with pytest.raises(HeatmapError, match="Expected scale as"):
            Scale.choose(wrong, maps, signed=False)
