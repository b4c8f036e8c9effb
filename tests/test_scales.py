"""Scales of colours mean what they say: shared, fixed, signed, bent."""

import numpy as np
import pytest
from pictures import GH, GW, flat, pixels, whole

from vitviz.draw.colorbar import colorbar, describe_range
from vitviz.draw.overlay import overlay
from vitviz.heatmap import HeatmapError, Scale


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
