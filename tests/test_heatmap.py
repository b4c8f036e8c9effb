"""A heatmap keeps its numbers, knows its place in the photograph, and survives a trip to a file."""

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
from PIL import Image

from vitviz.draw.colorbar import colorbar
from vitviz.draw.overlay import overlay
from vitviz.heatmap import Heatmap, HeatmapError, Scale
from vitviz.images.geometry import Geometry
from vitviz.images.preprocess import Preprocess

GH, GW = 3, 7  # different primes: a swapped axis cannot hide
PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 256, (83, 149, 3), dtype=np.uint8))
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
