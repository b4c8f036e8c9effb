"""A heatmap keeps its numbers, knows its place in the photograph, and survives a trip to a file."""

import copy
import dataclasses
import doctest
import io
import pickle
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from PIL import Image

import vitviz.heatmap
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


def test_raw_values_survive_and_belong_to_the_heatmap_alone():
    values = np.random.default_rng(0).random((GH, GW)).astype(np.float32)
    made = heatmap(values)
    assert made.values.dtype == np.float32
    assert np.array_equal(made.values, values)
    values[0, 0] = 99.0
    assert made.values[0, 0] != 99.0
    with pytest.raises(ValueError, match="read-only"):
        made.values[0, 0] = 1.0
    before = made.values.copy()
    made.overlay(smooth=True, gamma=0.5, scale=(0, 0.01))
    assert np.array_equal(made.values, before)


def test_it_is_frozen_through_and_through():
    masses = {"CLS": 0.25}
    made = heatmap(prefix_mass=masses)
    masses["CLS"] = 0.9
    assert dict(made.prefix_mass) == {"CLS": 0.25}
    with pytest.raises(TypeError):
        made.prefix_mass["CLS"] = 0.5
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.title = "other"


def test_numpy_and_matplotlib_take_it_as_its_values():
    made = heatmap()
    array = np.asarray(made)
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, made.values)
    np.testing.assert_array_equal(np.asarray(made, np.float64), made.values.astype(np.float64))
    own = np.array(made)
    own[0, 0] = 99.0
    assert made.values[0, 0] != 99.0
    np.testing.assert_array_equal(Figure().subplots().imshow(made).get_array(), made.values)
    assert Scale.over([made, heatmap(np.ones((GH, GW)))]) == Scale(float(made.values.min()), 1.0, "shared")


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))])
def test_it_is_copied_and_pickled(again):
    made = heatmap(title="Layer 1", signed=True, prefix_mass={"CLS": 0.25}, query=(2, 4), classes=(7, 3))
    back = again(made)
    for one in dataclasses.fields(made):
        if one.name not in ("values", "photo"):
            assert getattr(back, one.name) == getattr(made, one.name)
    assert back.overlay().tobytes() == made.overlay().tobytes()
    with pytest.raises(ValueError, match="read-only"):
        back.values[0, 0] = 1.0


def test_a_notebook_shows_it_as_a_picture():
    plain, other = (Image.open(io.BytesIO(one._repr_png_())) for one in (heatmap(), heatmap(np.eye(GH, GW))))
    assert plain.format == "PNG"
    assert plain.height > plain.width * PHOTO.height / PHOTO.width  # words and a color bar stand below the photograph
    assert plain.tobytes() != other.tobytes()


def test_it_is_told_in_one_line():
    told = repr(heatmap(title="Layer 12, head 4", prefix_mass={"CLS": 0.25}))
    assert told.startswith("Heatmap(values=float32[3, 7], ")
    assert "title='Layer 12, head 4'" in told
    assert "{'CLS': 0.25}" in told
    assert "\n" not in told


def test_the_photograph_is_shared_and_not_copied():
    assert heatmap().photo is PHOTO


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"values": np.ones(21)}, r"shape \(gh, gw\)"),
        ({"values": np.ones((2, GH, GW))}, r"\(2, 3, 7\)"),
        ({"values": np.full((GH, GW), np.nan)}, "21 NaN or infinite"),
        ({"photo": Image.new("RGB", (83, 149))}, "149 x 83 pixels.*got 83 x 149"),
        ({"prefix_mass": {"CLS": 12.0}}, "'CLS' as a share from 0 to 1, got 12.0"),
        ({"prefix_mass": {"CLS": float("nan")}}, "a share from 0 to 1"),
        ({"query": (GH, 0)}, "inside 3 x 7"),
        ({"query": (0, GW)}, "inside 3 x 7"),
    ],
)
def test_what_does_not_belong_together_is_refused_in_words(change, words):
    with pytest.raises(HeatmapError, match=words):
        heatmap(**change)


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


def test_scale_each_signed_and_fixed():
    values = np.linspace(-1, 3, GH * GW).reshape(GH, GW)
    assert heatmap(values).scale() == Scale(-1, 3, "each")
    assert heatmap(values).scale("signed") == Scale(-3, 3, "signed", signed=True)
    assert heatmap(values).scale((0, 2)) == Scale(0, 2)
    assert heatmap(values).scale(Scale(0, 9, "shared")) == Scale(0, 9, "shared")
    assert heatmap(values, signed=True).scale("each") == Scale(-3, 3, "each", signed=True)
    with pytest.raises(HeatmapError, match="got 'shared'"):
        heatmap(values).scale("shared")
    with pytest.raises(HeatmapError, match="symmetric"):
        heatmap(values, signed=True).scale((0, 2))


def test_overlay_draws_the_map_with_its_query_and_range():
    made = heatmap(query=(2, 4))
    options = {"grid": True, "smooth": True, "alpha": 0.7, "cmap": "magma", "gamma": 0.6}
    expected = overlay(PHOTO, made.values, GEOMETRY, query=(2, 4), scale=made.scale(), **options)
    assert made.overlay(**options).tobytes() == expected.tobytes()
    signed = heatmap(made.values - 0.05, signed=True)
    assert signed.overlay().tobytes() == overlay(PHOTO, signed.values, GEOMETRY, signed=True).tobytes()


def test_frames_on_one_scale_do_not_flicker():
    frames = [heatmap(np.full((GH, GW), 0.1)), heatmap(np.full((GH, GW), 0.1))]
    other = np.full((GH, GW), 0.1)
    other[2, 6] = 0.9
    frames.append(heatmap(other))
    scale = Scale.over([f.values for f in frames])
    first, second, third = (np.asarray(f.overlay(scale=scale)) for f in frames)
    assert np.array_equal(first, second)
    top = GEOMETRY.patch_box(2, 6, (GH, GW))[1]
    assert np.array_equal(first[: int(top)], third[: int(top)])
    assert not np.array_equal(first, third)


def test_the_colour_bar_belongs_to_the_overlay():
    made = heatmap(np.linspace(-1, 3, GH * GW).reshape(GH, GW), signed=True, unit="relevance")
    expected = colorbar(Scale(-3, 3, signed=True), None, "relevance", size=(400, 50), dark=True)
    assert made.colorbar(size=(400, 50), dark=True).tobytes() == expected.tobytes()


def test_top_orders_patches_by_strength():
    values = np.zeros((GH, GW))
    values[0, 6], values[2, 1], values[1, 0] = 0.5, 0.9, -2.0
    assert [patch for patch, _ in heatmap(values).top(2)] == [(2, 1), (0, 6)]
    assert [patch for patch, _ in heatmap(values, signed=True).top(2)] == [(1, 0), (2, 1)]
    assert heatmap(np.ones((GH, GW))).top(3) == [((0, 0), 1.0), ((0, 1), 1.0), ((0, 2), 1.0)]  # ties in reading order
    assert len(heatmap(values).top(99)) == GH * GW
    assert heatmap(values).top(0) == []
    with pytest.raises(HeatmapError, match="0 or more"):
        heatmap(values).top(-1)


@given(st.data())
def test_top_agrees_with_sorting(data):
    numbers = data.draw(st.lists(st.floats(-5, 5, width=32), min_size=GH * GW, max_size=GH * GW))
    made = heatmap(np.array(numbers).reshape(GH, GW))
    got = made.top(5)
    assert [v for _, v in got] == sorted(numbers, reverse=True)[:5]
    assert all(made.values[patch] == value for patch, value in got)


def test_a_saved_heatmap_comes_back_to_the_last_bit(tmp_path):
    made = heatmap(
        np.random.default_rng(5).normal(size=(GH, GW)),
        title="Layer 12, head 4: 看",
        unit="relevance",
        signed=True,
        prefix_mass={"CLS": 0.1, "registers": 0.25},
        query=(2, 5),
        classes=(7, 3),
    )
    path = made.save(tmp_path / "map.npz")
    back = Heatmap.load(path, PHOTO)
    assert np.array_equal(back.values, made.values)
    assert back.geometry == made.geometry
    for name in ("title", "unit", "signed", "query", "classes"):
        assert getattr(back, name) == getattr(made, name)
    assert dict(back.prefix_mass) == dict(made.prefix_mass)
    assert back.overlay().tobytes() == made.overlay().tobytes()
    plain = heatmap().save(tmp_path / "plain.npz")
    assert Heatmap.load(plain, PHOTO).query is None


def test_files_hold_no_pickle_and_other_files_are_refused(tmp_path):
    path = heatmap(title="a", prefix_mass={"CLS": 0.1}).save(tmp_path / "map.npz")
    with np.load(path, allow_pickle=False) as saved:
        assert {"values", "frame", "image", "input", "title", "prefix_mass"} <= set(saved.files)
        assert all(saved[name].dtype != object for name in saved.files)
    assert zipfile.is_zipfile(path)
    with pytest.raises(HeatmapError, match=r"ends in \.npz"):
        heatmap().save(tmp_path / "map.png")
    np.savez(tmp_path / "other.npz", values=np.ones((GH, GW)))
    with pytest.raises(HeatmapError, match=r"Heatmap\.save.*without.*frame"):
        Heatmap.load(tmp_path / "other.npz", PHOTO)
    np.save(tmp_path / "array.npy", np.ones((GH, GW)))
    for name in ("array.npy", "missing.npz"):
        with pytest.raises(HeatmapError, match=name):
            Heatmap.load(tmp_path / name, PHOTO)
    with pytest.raises(HeatmapError, match="upright original"):
        Heatmap.load(path, Image.new("RGB", (20, 20)))


def test_float_noise_in_a_mass_is_no_error():
    made = heatmap(prefix_mass={"CLS": 1.0000001, "registers": -1e-8})
    assert set(made.prefix_mass) == {"CLS", "registers"}


def test_the_example_in_the_docstring_runs():
    result = doctest.testmod(vitviz.heatmap)
    assert result.attempted > 5
    assert result.failed == 0


def test_geometry_may_reach_outside_the_photograph():
    padded = Geometry(image=PHOTO.size, input=(112, 112), frame=(0.0, -33.0, 149.0, 116.0))
    got = Heatmap(np.eye(7), padded, PHOTO, query=(0, 0)).overlay(grid=True)
    assert got.size == PHOTO.size


def test_a_note_says_what_colors_do_not() -> None:
    photo = Image.new("RGB", (40, 40))
    geometry = Preprocess(height=32, width=32, mode="squash")(photo).geometry
    blank = Heatmap(np.zeros((2, 2)), geometry, photo, unit="score")
    assert "Blank" in blank.note
    full = Heatmap(np.eye(2) / 4, geometry, photo, unit="attention", prefix_mass={"CLS": 0.5})
    assert "50.0 % on CLS" in full.note
    assert "Blank" not in full.note
    assert Heatmap(np.eye(2), geometry, photo).note == ""
