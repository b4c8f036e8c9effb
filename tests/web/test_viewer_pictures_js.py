"""The explorer's geometry, colours and picture under Node, held to Python's: edges to the bit, pixels to 1/255."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image
from viewer_js import Answer, Script, empty, once

from vitviz.draw.colors import lut
from vitviz.draw.overlay import overlay, patch_edges
from vitviz.heatmap import Scale
from vitviz.images.geometry import Geometry
from vitviz.images.preprocess import Preprocess
from vitviz.web.scene import fitted

GRID = (3, 7)  # different primes: a swapped axis cannot hide


def photograph(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def prepared(width: int, height: int, **settings: Any) -> Geometry:
    return Preprocess(**{"height": 48, "width": 112, **settings})(photograph(width, height)).geometry


GEOMETRIES = {
    "crop, wide": prepared(131, 67, mode="crop"),
    "crop, high": prepared(67, 131, mode="crop"),
    "squash": prepared(101, 83, mode="squash"),
    "pad": prepared(59, 97, mode="pad"),
    "native": prepared(113, 71, mode="native", multiple=16),
    "between pixels": Geometry((120, 90), (48, 112), (20.3, 11.7, 101.8, 80.6)),
    "edges on pixel centres": Geometry((30, 9), (48, 112), (1.5, 0.5, 22.5, 6.5)),
    "patches below a pixel": Geometry((5, 2), (48, 112), (-1.0, 0.2, 4.4, 1.9)),
    "nothing seen": Geometry((40, 30), (48, 112), (50.0, 40.0, 90.0, 60.0)),
    "an end that rounding misses": Geometry((130, 140), (48, 112), (20.1, 20.1, 114.7, 114.7)),
    "large": Geometry((1310, 670), (48, 112), (93.4, 55.5, 1212.6, 610.1)),
}


def plain(geometry: Geometry) -> dict[str, Any]:
    """A geometry as the page has it."""
    return {"image": list(geometry.image), "frame": list(geometry.frame)}


# ---- geometry ----


@pytest.mark.parametrize("name", GEOMETRIES)
def test_patches_have_the_same_boxes_to_the_last_bit(name: str) -> None:
    geometry, script = GEOMETRIES[name], Script()
    rows, columns = np.indices(GRID).reshape(2, -1).tolist()
    boxes = [
        script.call("compute/geometry", "patchBox", plain(geometry), r, c, GRID)
        for r, c in zip(rows, columns, strict=True)
    ]
    edges = script.call("compute/geometry", "patchEdges", plain(geometry), GRID)
    seen = script.call("compute/geometry", "seenBox", plain(geometry))
    script.run()
    for row, column, box in zip(rows, columns, boxes, strict=True):
        assert tuple(box.value) == geometry.patch_box(row, column, GRID)
    assert tuple(seen.value) == geometry.seen
    xs, ys = patch_edges(geometry, GRID)
    assert np.array_equal(edges.value["xs"], xs)
    assert np.array_equal(edges.value["ys"], ys)


@pytest.mark.parametrize("mode", ["crop", "pad", "squash"])
def test_two_models_are_asked_at_one_place_of_the_photograph(mode: str) -> None:
    whole, part = prepared(150, 70, mode="native", multiple=10), prepared(150, 70, mode=mode)
    grid, script = (7, 15), Script()
    sides = {"geometry": plain(whole), "grid": list(grid)}, {"geometry": plain(part), "grid": GRID}
    patches = np.argwhere(np.ones(grid)).tolist()
    there = [script.call("compute/geometry", "samePlace", patch, *sides) for patch in patches]
    back = script.call("compute/geometry", "samePlace", [3, 9], sides[0], sides[0])
    script.run()
    assert back.value == [3, 9]
    left, top, right, bottom = part.seen
    for (row, column), found in zip(patches, there, strict=True):
        box = whole.patch_box(row, column, grid)
        x = min(max((box[0] + box[2]) / 2, left), right - 1e-3)
        y = min(max((box[1] + box[3]) / 2, top), bottom - 1e-3)
        assert tuple(found.value) == part.patch_at(x, y, GRID)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_points_lie_in_the_same_patches(name: str) -> None:
    """On every edge, one float beside it, at pixel corners and centres, and outside."""
    geometry, script = GEOMETRIES[name], Script()
    random = np.random.default_rng(3)
    on = [geometry.patch_box(r, c, GRID)[:2] for r in range(GRID[0]) for c in range(GRID[1])]
    beside = [(np.nextafter(x, -9e9), np.nextafter(y, 9e9)) for x, y in on]
    width, height = geometry.image
    spread = random.uniform((-9, -9), (width + 9, height + 9), (60, 2)).tolist()
    (x0, y0, x1, y1), (xm, ym) = geometry.seen, (width / 2, height / 2)
    ends = [(x0, ym), (x1, ym), (xm, y0), (xm, y1)]
    corners = [(0, 0), (width, height), (width - 1, height - 1), (0.5, 0.5), geometry.seen[:2], geometry.seen[2:]]
    points = [(float(x), float(y)) for x, y in [*on, *beside, *spread, *corners, *ends]]
    found = [script.call("compute/geometry", "patchAt", plain(geometry), x, y, GRID) for x, y in points]
    script.run()
    for (x, y), answer in zip(points, found, strict=True):
        expected = geometry.patch_at(x, y, GRID)
        assert answer.value == (None if expected is None else list(expected))


def test_a_smaller_copy_has_the_frame_that_the_page_gives_it() -> None:
    geometry = GEOMETRIES["between pixels"]
    small, expected = fitted(photograph(*geometry.image), geometry, 47)
    got = once("compute/geometry", "scaled", plain(geometry), *small.size).value
    assert tuple(got["image"]) == expected.image
    assert tuple(got["frame"]) == expected.frame


@pytest.mark.parametrize("box", [(10, 20, 410, 220), (0, 0, 100, 900)])
def test_the_photograph_fills_its_place_on_the_screen(box: tuple[int, ...]) -> None:
    script, image = Script(), (300, 200)
    place = script.call("compute/geometry", "fit", image, box)
    corners = [script.call("compute/geometry", "toScreen", place.part(), *corner) for corner in ((0, 0), image)]
    back = script.call("compute/geometry", "toPhoto", place.part(), 60.5, 123.25)
    forth = script.call("compute/geometry", "toScreen", place.part(), *(0, 0))
    again = [script.call("compute/geometry", "toScreen", place.part(), 17.5, 3.25)]
    script.run()
    left, top, right, bottom = box
    (x0, y0), (x1, y1) = (corner.value for corner in corners)
    assert (x1 - x0) / (y1 - y0) == pytest.approx(300 / 200)
    assert (x1 - x0 == pytest.approx(right - left)) or (y1 - y0 == pytest.approx(bottom - top))
    assert (x0 - left, y0 - top) == pytest.approx((right - x1, bottom - y1))  # in the middle
    scale = place.value["scale"]
    assert back.value == pytest.approx([(60.5 - x0) / scale, (123.25 - y0) / scale])
    assert again[0].value == pytest.approx([x0 + 17.5 * scale, y0 + 3.25 * scale])
    assert forth.value == [x0, y0]


def test_queries_are_the_tokens_that_python_says() -> None:
    names, script = ["CLS", "distillation", "register 1", "register 2"], Script()
    cases = {
        "cls": 0,
        "register 2": 3,
        "mean": -1,
        "register 3": -1,
        (0, 0): 4,
        (2, 6): 24,
        (1, 2): 13,
        (3, 0): -1,
        (0, 7): -1,
    }
    found = [script.call("compute/geometry", "tokenOf", query, names, GRID) for query in cases]
    script.run()
    assert [answer.value for answer in found] == list(cases.values())


# ---- colours ----


def test_colour_indices_are_pythons() -> None:
    random, script, asked = np.random.default_rng(5), Script(), []
    values = np.concatenate([random.normal(size=400), np.linspace(-1, 1, 511), [-9, 9, 0]]).astype(np.float32)
    for signed, gamma, limits in [
        (False, 1.0, (-0.7, 1.3)), (False, 0.4, (-0.7, 1.3)), (False, 2.0, (0.0, 1.0)), (True, 1.0, (-1.0, 1.0)),
        (True, 0.5, (-1.3, 1.3)), (False, 1.0, (0.2, 0.2)), (True, 0.3, (0.0, 0.0)), (False, 1.0, (-1.0, 1.0)),
    ]:  # fmt: skip
        scale = {"vmin": limits[0], "vmax": limits[1], "signed": signed}
        call = script.call("draw/color", "indices", values, scale, gamma, empty(len(values), "uint8"), give=(3,))
        asked.append((Scale(*limits, "fixed", signed).indices(values, gamma), call))
    halves = np.arange(255, dtype=np.float32) + 0.5  # exactly between two colours: to the even one
    bounds = {"vmin": 0, "vmax": 255, "signed": False}
    call = script.call("draw/color", "indices", halves, bounds, 1, empty(255, "uint8"), give=(3,))
    asked.append((Scale(0.0, 255.0).indices(halves), call))
    script.run()
    for expected, call in asked:
        assert np.array_equal(call.given[0], expected)


def test_indices_are_taken_from_the_head_that_is_asked_for() -> None:
    wall = np.arange(30, dtype=np.float32)
    call = once(
        "draw/color", "indices", wall, {"vmin": 0, "vmax": 29, "signed": False}, 1, empty(10, "uint8"), 20, give=(3,)
    )
    assert np.array_equal(call.given[0], Scale(0, 29).indices(wall[20:]))


def test_scales_are_pythons() -> None:
    maps = [np.array([0.1, -0.4, 0.2], np.float32), np.array([0.3, 0.0], np.float32)]
    script = Script()
    answers = [
        (script.call("draw/color", "scaleOver", maps, signed), Scale.over([m[None] for m in maps], "shared", signed))
        for signed in (False, True)
    ]
    refused = [script.call("draw/color", "scaleOver", bad) for bad in ([], [np.array([np.inf, 0], np.float32)])]
    script.run()
    for answer, scale in answers:
        assert answer.value == {"vmin": scale.vmin, "vmax": scale.vmax, "signed": scale.signed}
    assert all("finite" in answer.error for answer in refused)


def test_a_grid_of_pixels_has_the_tables_colours() -> None:
    table, index, script = lut("magma"), np.array([0, 255, 128, 3], np.uint8), Script()
    packed = script.call("draw/color", "packed", table.ravel())
    grid = script.call("draw/color", "colorGrid", index, packed.part(), empty(4, "uint32"), give=(2,))
    short = script.call("draw/color", "packed", table.ravel()[:99])
    script.run()
    rgba = grid.given[0].view(np.uint8).reshape(4, 4)
    assert np.array_equal(rgba[:, :3], table[index])
    assert (rgba[:, 3] == 255).all()
    assert "256 x 3" in short.error


# ---- the whole picture ----

LOOKS: dict[str, dict[str, Any]] = {
    "blocks": {"unseen": False},
    "smooth": {"unseen": False, "smooth": True},
    "hatched": {"alpha": 0.3},
    "with a grid": {"grid": True, "alpha": 0.8},
    "smooth, grey, with everything": {"smooth": True, "gray": True, "grid": True, "query": (1, 4), "gamma": 0.6},
    "a query in the corner": {"query": (0, 0), "alpha": 0.0},
    "signed": {"signed": True, "cmap": "RdBu_r", "alpha": 1.0, "smooth": True},
    "one patch outshines all": {"beyond": 9.0},
    "one patch outshines all, for and against": {"beyond": -9.0, "signed": True, "cmap": "RdBu_r"},
    "a given scale": {"scale": Scale(0.2, 0.6), "cmap": "magma"},
}


def drawn(script: Script, geometry: Geometry, photo: Image.Image, values: np.ndarray, look: dict[str, Any]) -> Answer:
    """The same picture asked of JavaScript."""
    options = {key: look[key] for key in look if key not in ("cmap", "scale")}
    if "scale" in look:
        options["scale"] = {"vmin": look["scale"].vmin, "vmax": look["scale"].vmax, "signed": False}
    pixels = np.asarray(photo.convert("RGBA")).ravel()
    table = lut(look.get("cmap", "viridis")).ravel()
    return script.call("draw/overlay", "overlay", pixels, values.ravel(), values.shape, plain(geometry), table, options)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_pictures_equal_pythons(name: str) -> None:
    geometry, script, asked = GEOMETRIES[name], Script(), []
    photo = photograph(*geometry.image)
    for look in LOOKS.values():
        values = np.random.default_rng(2).random(GRID).astype(np.float32) - (0.5 if look.get("signed") else 0.0)
        look = dict(look)
        values[1, 3] = look.pop("beyond", values[1, 3])
        asked.append((overlay(photo, values, geometry, **look), drawn(script, geometry, photo, values, look)))
    script.run()
    for look, (expected, answer) in zip(LOOKS, asked, strict=True):
        got = answer.value.reshape(*np.asarray(expected).shape[:2], 4)
        assert (got[..., 3] == 255).all()
        assert np.abs(got[..., :3].astype(int) - np.asarray(expected).astype(int)).max() <= 1, look


@pytest.mark.parametrize("grid", [(1, 1), (16, 16), (37, 50)])
def test_pictures_of_other_grids_equal_pythons(grid: tuple[int, int]) -> None:
    geometry, script = GEOMETRIES["crop, wide"], Script()
    photo = photograph(*geometry.image)
    values = np.random.default_rng(4).random(grid).astype(np.float32)
    look = {"smooth": True, "grid": True, "query": (0, 0)}
    answer = drawn(script, geometry, photo, values, look)
    script.run()
    expected = np.asarray(overlay(photo, values, geometry, **look)).astype(int)
    assert np.abs(answer.value.reshape(*expected.shape[:2], 4)[..., :3] - expected).max() <= 1


def test_a_layer_of_heat_colours_what_was_seen_and_leaves_the_rest() -> None:
    """What the page draws live: the same pixels as the picture at full opacity, nothing outside."""
    geometry, script, asked = GEOMETRIES["between pixels"], Script(), []
    width, height = geometry.image
    index = np.random.default_rng(6).integers(0, 256, GRID).astype(np.uint8)
    table = script.call("draw/color", "packed", lut("viridis").ravel())
    heat = script.call("draw/heat", "new Heat", plain(geometry), GRID, give=None)
    for smooth in (False, True, False):  # one heat draws many maps
        out = np.zeros(width * height, np.uint32)
        asked.append(script.call("draw/heat", ".paint", heat, index.ravel(), table.part(), smooth, out, give=(4,)))
    script.run()
    xs, ys = patch_edges(geometry, GRID)
    for smooth, answer in zip((False, True, False), asked, strict=True):
        got = answer.given[0].view(np.uint8).reshape(height, width, 4)
        picture = overlay(
            photograph(width, height), index, geometry, alpha=1.0, smooth=smooth, unseen=False, scale=(0, 255)
        )
        seen = np.zeros((height, width), bool)
        seen[ys[0] : ys[-1], xs[0] : xs[-1]] = True
        assert np.array_equal(got[seen][:, :3], np.asarray(picture)[seen])
        assert (got[seen][:, 3] == 255).all()
        assert (got[~seen] == 0).all()


def test_the_photograph_is_left_as_it_is_and_must_have_its_size() -> None:
    geometry, script = GEOMETRIES["pad"], Script()
    photo = photograph(*geometry.image)
    pixels = np.asarray(photo.convert("RGBA")).ravel()
    values, table = np.zeros(21, np.float32), lut("viridis").ravel()
    kept = script.call(
        "draw/overlay", "overlay", pixels, values, GRID, plain(geometry), table, {"grid": True}, give=(0,)
    )
    short = script.call("draw/overlay", "overlay", pixels[:-4], values, GRID, plain(geometry), table)
    script.run()
    assert np.array_equal(kept.given[0], pixels)
    assert "59 x 97" in short.error


# ---- all thumbnails of a wall on one sheet ----


@pytest.mark.parametrize("size", [(35, 19), (28, 12), (7, 3), (5, 2)])  # wide, high: also coarser than the grid
@pytest.mark.parametrize("fine", [1, 2])
def test_a_thumbnail_on_the_sheet_is_its_map_enlarged(size: tuple[int, int], fine: int) -> None:
    (wide, high), table, script = size, lut("viridis"), Script()
    corners, width, height = [[1, 0], [42, 3], [2, 25]], 80, 47
    index = np.random.default_rng(8).integers(0, 256, (3, *GRID)).astype(np.uint8)
    packed = script.call("draw/color", "packed", table.ravel())
    places = script.call("draw/sheet", "placed", GRID, [wide, high], corners, width, fine)
    first = script.call(
        "draw/sheet", "stamp", places.part(), 0, index[0].ravel(), packed.part(), np.zeros(width * height, np.uint32)
    )
    last = script.call(
        "draw/sheet", "stamp", places.part(), 2, index[2].ravel(), packed.part(), first.argument(4), give=(4,)
    )
    script.run()
    out = last.given[0]  # the one in the middle was not asked for
    got = out.view(np.uint8).reshape(height, width, 4)
    rows, columns = (
        np.floor((np.arange(n) + 0.5) * count / n).astype(int) for n, count in ((high, GRID[0]), (wide, GRID[1]))
    )
    free = np.ones((height, width), bool)
    for which in (0, 2):
        left, top = corners[which]
        part = got[top : top + high, left : left + wide]
        expected = table[index[which][np.ix_(rows, columns)]]
        shown = part[..., 3] > 0
        assert np.array_equal(part[shown][:, :3], expected[shown])
        cut = part[..., 3] < 255
        reach = 3 * fine
        assert cut[[0, 0, -1, -1], [0, -1, 0, -1]].all()
        assert not cut[reach : high - reach].any()  # corners, and nothing else
        assert not cut[:, reach : wide - reach].any()
        assert np.array_equal(part[..., 3], part[::-1, ::-1, 3])
        free[top : top + high, left : left + wide] = False
    assert (got[free] == 0).all()


def test_a_faded_colour_is_nearer_to_grey() -> None:
    table, script = lut("viridis"), Script()
    packed = script.call("draw/color", "packed", table.ravel())
    faded = script.call("draw/color", "faded", packed.part())
    script.run()
    got = faded.value.view(np.uint8).reshape(256, 4)
    level = (table @ [0.2126, 0.7152, 0.0722])[:, None]  # (256, 1), as grayscale() of CSS has it
    assert (got[:, 3] == 255).all()
    assert np.abs(got[:, :3] - (table + 0.6 * (level - table))).max() <= 0.5 + 1e-9
