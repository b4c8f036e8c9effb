"""Test preprocessing at any size against torchvision, and the pixels of each patch."""

import json
import math
from dataclasses import FrozenInstanceError, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from allocations import Allocations
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pairwise import pairs
from pictures import photograph
from PIL import Image
from torchvision import transforms as T

from vitviz.cli.main import main
from vitviz.explorer import Explorer
from vitviz.images.decoding import MAX_PIXELS, ImageError
from vitviz.images.geometry import Geometry
from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ViTConfig
from vitviz.model.vit import Pretrained, ViT

pytestmark = pytest.mark.usefixtures("one_thread")

MODES = ("crop", "squash", "pad", "native")
PATCH = 8
CHURCH = Path(__file__).parents[2] / "examples" / "church.jpg"
SMALL = Preprocess(height=4 * PATCH, width=6 * PATCH, multiple=PATCH)
sides = st.integers(1, 400)
modes = st.sampled_from(MODES)


def assert_torchvisions(ours: Preprocess, image: Image.Image, *steps: Any) -> None:
    prepared = ours(image).pixels
    expected = T.Compose([*steps, T.ToTensor(), T.Normalize(ours.mean, ours.std)])(image).numpy()  # (3, H, W)
    assert (prepared.dtype, prepared.shape) == (np.float32, expected.shape)
    assert prepared.flags.c_contiguous
    assert np.abs(prepared - expected).max() <= 1e-6  # equal in every pixel: one level is 0.017


@pytest.mark.parametrize(
    ("size", "sides", "interpolation"),
    pairs(
        [(640, 480), (480, 641), (333, 333), (50, 31), (7, 200), (256, 300), (1, 3)],
        [(224, 256), (224, 224), (97, 101), (64, 300)],
        ["bilinear", "bicubic", "lanczos", "nearest"],
    ),
)
def test_crop_and_squash_match_torchvision(size: tuple[int, int], sides: tuple[int, int], interpolation: str) -> None:
    crop, resize = sides
    mode = T.InterpolationMode(interpolation)
    ours = Preprocess(height=crop, width=crop, resize=resize, interpolation=interpolation)
    assert_torchvisions(ours, photograph(*size), T.Resize(resize, interpolation=mode), T.CenterCrop(crop))
    squash = Preprocess(height=60, width=91, mode="squash", interpolation=interpolation)
    assert_torchvisions(squash, photograph(*size), T.Resize((60, 91), interpolation=mode))
    cut = replace(squash, resize=(67, 100))
    assert_torchvisions(cut, photograph(*size), T.Resize((67, 100), interpolation=mode), T.CenterCrop((60, 91)))


@settings(max_examples=40)
@given(w=sides, h=sides, height=st.integers(1, 80), width=st.integers(1, 80), extra=st.integers(0, 40))
@example(w=111, h=100, height=40, width=50, extra=4)
def test_crop_of_any_shape_matches_torchvision_without_margins(
    w: int, h: int, height: int, width: int, extra: int
) -> None:
    resize = min(height, width) + extra
    ours = Preprocess(height=height, width=width, resize=resize)
    resizing = T.Resize(resize, interpolation=T.InterpolationMode.BICUBIC)
    resized, prepared = resizing(photograph(w, h)), ours(photograph(w, h))
    assert prepared.pixels.shape == (3, height, width)
    if resized.width >= width and resized.height >= height:
        assert_torchvisions(ours, photograph(w, h), resizing, T.CenterCrop((height, width)))
    left, top, right, bottom = prepared.geometry.frame  # without margins
    assert min(left, top) >= 0
    assert right <= w + 1e-9
    assert bottom <= h + 1e-9


def test_frames_of_crop_native_and_pad_match_numbers_by_hand() -> None:
    """640 x 480 -> 341 x 256 (341.33 cut off) -> 224 x 224 from (round(58.5) = 58, 16).

    The crop is 224 of 256 pixels, as in ImageNet evaluation: the default omits 1/8 of the shorter side.
    """
    geometry = Preprocess()(photograph(640, 480)).geometry
    assert (geometry.image, geometry.input) == ((640, 480), (224, 224))
    assert geometry.frame == pytest.approx((58 * 640 / 341, 16 * 1.875, 282 * 640 / 341, 240 * 1.875))
    assert geometry.seen == geometry.frame
    large = Preprocess(height=384, width=384)(photograph(439, 439))  # round(384 / 0.875) = 439
    assert large.geometry.frame == (28, 28, 412, 412)
    native = replace(SMALL, mode="native")(photograph(123, 77))
    assert native.geometry.frame == (0, 0, 123, 77)
    assert native.pixels.shape == (3, *native.geometry.input) == (3, 32, 48)
    prepared = Preprocess(height=50, width=50, mode="pad")(Image.new("RGB", (100, 41), "white"))
    rows = np.flatnonzero(prepared.pixels.any(axis=(0, 2)))  # 41 * 0.5 = 20.5 rows, rounded to 20
    assert (rows[0], rows[-1]) == (15, 34)
    assert (prepared.pixels[:, :15] == 0).all()  # after normalisation, zero is the mean
    assert prepared.geometry.frame == pytest.approx((0, -15 * 41 / 20, 100, 35 * 41 / 20))
    assert prepared.geometry.seen == (0, 0, 100, 41)


@settings(max_examples=60)
@given(w=st.integers(1, 2000), h=st.integers(1, 2000), multiple=st.sampled_from([1, 7, 14, 16]))
@example(w=1, h=2000, multiple=16)
def test_native_keeps_shape_and_budget(w: int, h: int, multiple: int) -> None:
    preprocess = Preprocess(height=112, width=100, mode="native", multiple=multiple)
    (rw, rh), offset, (height, width) = preprocess.plan(w, h)
    assert (rh, rw, 0, 0) == (height, width, *offset)
    across, down, budget = rw / multiple, rh / multiple, 112 * 100 / multiple**2
    assert across == int(across) >= 1
    assert down == int(down) >= 1
    assert across * down <= 1.34 * budget + 2
    exact = math.sqrt(budget * w / h), math.sqrt(budget * h / w)
    if min(exact) >= 1:  # more elongated images change their shape
        # The nearest whole number, or the budget for a single row or column.
        assert abs(across - exact[0]) <= 0.5 or across == int(budget)
        assert abs(down - exact[1]) <= 0.5 or down == int(budget)


@pytest.mark.parametrize(("mode", "size"), pairs(MODES, [(1, 1000), (1000, 1), (1, 1), (3, 300)]))
def test_elongated_and_tiny_images_work_or_raise(mode: str, size: tuple[int, int]) -> None:
    preprocess = Preprocess(mode=mode)
    if mode == "crop" and 1000 in size:
        with pytest.raises(ImageError, match=r"1000.*mode='pad'"):
            preprocess(photograph(*size))
        return
    prepared = preprocess(photograph(*size))
    assert prepared.pixels.shape == (3, *prepared.geometry.input)
    assert np.isfinite(prepared.pixels).all()
    assert prepared.pixels.size <= 3 * 224 * 224 * 1.1


def test_resizing_large_photographs_is_bounded() -> None:
    """Pillow resizes rows before columns, so a tall picture is first as wide as the input."""
    for mode in MODES:
        mean_colour = Image.new("RGB", (5000, 5000), (124, 116, 104))
        assert np.abs(Preprocess(mode=mode)(mean_colour).pixels).max() < 0.02
    large = Preprocess(height=1500, width=1500, mode="squash")
    with pytest.raises(ImageError, match="less elongated"):
        large(Image.new("RGB", (300, 30_000)))
    assert large(Image.new("RGB", (30_000, 300))).pixels.size == 3 * 1500**2
    with pytest.raises(ImageError, match="sides of at most"):
        Preprocess(mode="squash")(Image.new("RGB", (10, 400_000)))


def test_restore_inverts_preparation_which_changes_nothing() -> None:
    preprocess = Preprocess(height=20, width=30, mode="squash", mean=(0.5, 0.4, 0.3), std=(0.1, 0.2, 0.3))
    picture = photograph(30, 20)
    before = picture.tobytes()
    for mode in MODES:
        first, second = (replace(preprocess, mode=mode)(picture) for _ in range(2))
        assert (first.pixels == second.pixels).all()
        assert first.geometry == second.geometry
    assert picture.tobytes() == before
    assert (np.asarray(preprocess.restore(preprocess(picture).pixels)) == np.asarray(picture)).all()
    assert preprocess.restore(np.full((3, 2, 2), 99.0)).getpixel((0, 0)) == (255, 255, 255)
    for bad in (np.zeros((1, 3, 4, 4)), np.zeros((4, 4, 3)), np.full((3, 2, 2), np.nan), np.zeros((3, 0, 2))):
        with pytest.raises(ImageError, match=r"\(3, H, W\)"):
            Preprocess().restore(bad)
    source: Any
    for source in (Image.new("L", (9, 9)), Image.new("RGBA", (9, 9)), np.zeros((9, 9, 3), np.uint8), "a.png"):
        with pytest.raises(ImageError, match="Call decode"):
            Preprocess()(source)


def test_settings_round_trip_json_and_all_are_required() -> None:
    """Check that a missing mean must not become ImageNet's."""
    known = Preprocess().to_dict()
    for preprocess in (
        Preprocess(),
        Preprocess(height=13, width=7, mode="squash", interpolation="nearest", mean=(0.1, 0.2, 0.3), std=(0.4, 1, 0.6)),
        Preprocess(height=13, width=7, resize=31, interpolation="lanczos", multiple=1),
        Preprocess(height=192, width=320, resize=(213, 355)),
        Preprocess(mode="native", multiple=7),
    ):
        again: Any = Preprocess.from_dict(json.loads(json.dumps(preprocess.to_dict())))
        assert again == preprocess
        assert hash(again) == hash(preprocess)
        with pytest.raises(FrozenInstanceError):
            again.height = 5
    for key in known:
        with pytest.raises(ImageError, match=rf"missing: \['{key}'\]"):
            Preprocess.from_dict({k: v for k, v in known.items() if k != key})
        with pytest.raises(ImageError, match=rf"unknown: \['{key}s'\]"):
            Preprocess.from_dict(known | {key + "s": 1})
    for data in (None, [1, 2], "crop"):
        with pytest.raises(ImageError, match="mapping"):
            Preprocess.from_dict(data)
    assert json.dumps(Preprocess(height=np.int64(32), width=np.int64(32), mean=[0, 0, 0], std=[1, 1, 1]).to_dict())


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        *(
            ({name: value}, name)
            for name, value in (
                ("height", 0), ("height", 224.0), ("width", True), ("width", None), ("resize", 0), ("multiple", 0),
                ("mode", ["crop"]), ("interpolation", "hamming"), ("mean", (0.5, 0.5)), ("mean", "abc"),
                ("mean", (0.5, 0.5, math.nan)),
            )
        ),
        ({"resize": 223}, r"at least the shorter side of the 224 x 224 input, got 223"),
        ({"height": 192, "width": 320, "resize": (192, 319)}, "at least both sides of the 192 x 320 input"),
        ({"mode": "squash", "resize": (224, 223)}, "at least both sides of the 224 x 224 input"),
        ({"height": 10_000, "width": 10_000}, "at most 50000000 pixels"),
        ({"mode": "native", "height": 15, "width": 17}, "one patch of 16 x 16"),
        ({"mode": "stretch"}, "'crop', 'squash', 'pad', 'native', got 'stretch'"),
        ({"std": (0.5, 0.0, 0.5)}, "std to be .* from 1e-06"),
    ],
)  # fmt: skip
def test_invalid_settings_raise(bad: dict[str, Any], words: str) -> None:
    with pytest.raises(ImageError, match=words):
        Preprocess(**bad)
    with pytest.raises(ImageError, match=words):
        Preprocess.from_dict(Preprocess().to_dict() | bad)


# ---- pixels of each patch


@settings(max_examples=80)
@given(w=st.integers(2, 256), h=st.integers(2, 256), mode=modes)
@example(w=3, h=256, mode="crop")
@example(w=3, h=256, mode="pad")
@example(w=256, h=3, mode="native")
def test_patch_boxes_match_the_pixels_of_each_patch(w: int, h: int, mode: str) -> None:
    """Check that in photographs whose brightness is x or y, each patch's mean is the centre of its box."""
    preprocess = replace(SMALL, mode=mode, interpolation="bilinear")
    geometry = preprocess(Image.new("RGB", (w, h))).geometry
    gh, gw = (length // PATCH for length in geometry.input)
    x, y = np.meshgrid(np.arange(w), np.arange(h))
    ramps = np.stack([x, y, np.full_like(x, 255)], axis=-1).astype(np.uint8)
    restored = preprocess.restore(preprocess(Image.fromarray(ramps)).pixels)
    prepared = np.asarray(restored).astype(int).reshape(gh, PATCH, gw, PATCH, 3).mean(axis=(1, 3))
    reach = [max(1.0, (geometry.frame[i + 2] - geometry.frame[i]) / geometry.input[1 - i]) for i in (0, 1)]
    for row, col in product(range(gh), range(gw)):
        left, top, right, bottom = geometry.patch_box(row, col, (gh, gw))
        # Near edges of the photograph and margins, the filter changes the mean.
        if left - reach[0] >= 0 and right + reach[0] <= w and top >= 0 and bottom <= h:
            assert prepared[row, col, 0] + 0.5 == pytest.approx((left + right) / 2, abs=0.6)
        if top - reach[1] >= 0 and bottom + reach[1] <= h and left >= 0 and right <= w:
            assert prepared[row, col, 1] + 0.5 == pytest.approx((top + bottom) / 2, abs=0.6)


@settings(max_examples=60)
@given(
    w=sides, h=sides, mode=modes, gh=st.integers(1, 17), gw=st.integers(1, 13),
    x=st.floats(-500, 900), y=st.floats(-500, 900),
)  # fmt: skip
def test_patch_boxes_tile_the_frame_and_patch_at_inverts_them(
    w: int, h: int, mode: str, gh: int, gw: int, x: float, y: float
) -> None:
    geometry = replace(SMALL, mode=mode)(Image.new("RGB", (w, h))).geometry
    boxes = [[geometry.patch_box(row, col, (gh, gw)) for col in range(gw)] for row in range(gh)]
    assert (*boxes[0][0][:2], *boxes[-1][-1][2:]) == geometry.frame
    left, top, right, bottom = geometry.seen
    assert 0 <= left < right <= w
    assert 0 <= top < bottom <= h
    points = [(x, y, geometry.patch_at(x, y, (gh, gw)))]
    for row, col in product(range(gh), range(gw)):
        box = boxes[row][col]
        assert box[0] < box[2]
        assert box[1] < box[3]
        assert col + 1 == gw or boxes[row][col + 1][0] == box[2]
        assert row + 1 == gh or boxes[row + 1][col][1] == box[3]
        assert box == (boxes[0][col][0], boxes[row][0][1], boxes[0][col][2], boxes[row][0][3])
        middle = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
        points += [(*point, (row, col)) for point in (box[:2], middle, (np.nextafter(box[2], box[0]), box[1]))]
    for x, y, patch in points:
        inside = left <= x < right and top <= y < bottom
        assert geometry.patch_at(x, y, (gh, gw)) == (patch if inside else None)
    if (patch := points[0][2]) is not None:
        box = boxes[patch[0]][patch[1]]
        assert box[0] <= points[0][0] < box[2]
        assert box[1] <= points[0][1] < box[3]


def test_geometry_matches_a_known_case_and_refuses_invalid_arguments() -> None:
    geometry = Geometry(image=(70, 30), input=(30, 70), frame=(0, 0, 70, 30))
    assert geometry.patch_box(2, 5, (3, 7)) == (50, 20, 60, 30)
    assert geometry.patch_at(55, 21, (3, 7)) == (2, 5)
    assert geometry.patch_at(math.nan, 21, (3, 7)) is None
    for patch in ((-1, 0), (0, -1), (3, 0), (0, 7)):
        with pytest.raises(ImageError, match="3 rows and 7 columns"):
            geometry.patch_box(*patch, (3, 7))
    with pytest.raises(ImageError, match="at least 1 x 1"):
        geometry.patch_at(1, 1, (0, 7))
    for frame in ((5, 0, 5, 9), (0, 9, 5, 0), (0, 0, math.nan, 9)):
        with pytest.raises(ImageError, match="left, top, right, bottom"):
            Geometry(image=(9, 9), input=(9, 9), frame=frame)


# ---- other input sizes


@settings(max_examples=40)
@given(
    mode=modes, patch=st.sampled_from([7, 8, 14, 16]), rows=st.integers(1, 9), columns=st.integers(1, 9),
    extra=st.none() | st.integers(0, 40),
    w=st.integers(1, 120), h=st.integers(1, 120), data=st.data(),
)  # fmt: skip
def test_at_gives_whole_patches_and_keeps_the_native_size(
    mode: str, patch: int, rows: int, columns: int, extra: int | None, w: int, h: int, data: st.DataObject
) -> None:
    height, width = rows * patch, columns * patch
    resize = None if extra is None else min(height, width) + extra
    native = Preprocess(height=height, width=width, mode=mode, resize=resize, multiple=patch, mean=(0.1, 0.2, 0.3))
    side = data.draw(st.integers(patch, 12 * patch))
    scaled = native.at(side, patch)
    assert (scaled.mode, scaled.mean, scaled.std) == (native.mode, native.mean, native.std)
    prepared = scaled(photograph(w, h))
    geometry = prepared.geometry
    assert geometry.input == scaled.input_size(w, h) == prepared.pixels.shape[1:]
    assert all(length % patch == 0 for length in geometry.input)
    gh, gw = (length // patch for length in geometry.input)
    if mode == "native":
        assert gh * gw <= 1.34 * (side / patch) ** 2 + 2
        native = replace(native, width=height)  # a budget of pixels has no shape
    else:
        assert abs(max(geometry.input) - side) <= patch / 2
        exact = min(height, width) * side / max(height, width)
        assert abs(min(geometry.input) - exact) <= patch / 2 or min(geometry.input) == patch
    assert native.at(max(native.height, native.width), patch) == native


def test_at_keeps_the_visible_part() -> None:
    for native in (Preprocess(), Preprocess(resize=256), Preprocess(height=112, resize=150), Preprocess(resize=224)):
        small, large = native(photograph(700, 600)).geometry, native.at(448, 14)(photograph(700, 600)).geometry
        assert (large.input[0], large.input[1]) == (2 * small.input[0], 2 * small.input[1])
        assert large.frame == pytest.approx(small.frame, abs=700 / min(small.input) / 2)  # half a pixel of rounding
    geometry = Preprocess(height=224, width=320, resize=256).at(500, 16)(photograph(900, 800)).geometry
    left, top, right, bottom = geometry.frame
    assert (right - left) / (bottom - top) == pytest.approx(geometry.input[1] / geometry.input[0], rel=0.01)
    assert ((left + right) / 2, (top + bottom) / 2) == pytest.approx((450, 400), abs=2)
    native = Preprocess(height=192, width=320, resize=(213, 355))  # a pair covers both sides
    half = native.at(160, 16)
    assert (half.height, half.width, half.resize) == (96, 160, (106, 178))
    assert "covers 213 x 355" in native.describe()
    assert np.isfinite(native(photograph(300, 400)).pixels).all()
    for resize, height, width, expected in ((256, 112, 112, 128), (224, 99, 131, 99), (None, 28, 42, None)):
        expected_settings = Preprocess(height=height, width=width, resize=expected)
        assert Preprocess(resize=resize).shaped(height, width) == expected_settings
    # A common multiple of the patch size and the multiple that the weights require.
    for multiple, expected in ((28, 28), (16, 112), (1, 14)):
        assert Preprocess(mode="native", multiple=multiple).at(448, 14).multiple == expected


@pytest.mark.parametrize(("mode", "shape"), pairs(MODES, [(224, 224), (160, 320), (480, 16)]))
def test_at_raises_for_invalid_sizes_and_names_the_largest(mode: str, shape: tuple[int, int]) -> None:
    native = Preprocess(height=shape[0], width=shape[1], mode=mode)
    side: Any
    for side in (15, 0, -3, 2**70, 20_000, 1.5, True, "224"):
        with pytest.raises(ImageError, match=str(side)):
            Preprocess(mode=mode).at(side, 16)
    with pytest.raises(ImageError, match="at most") as refusal:
        native.at(10**9, 16)
    limit = int(str(refusal.value).split("at most ")[1].split(",")[0])
    largest = native.at(limit, 16)
    assert 0.98 * MAX_PIXELS < largest.height * largest.width <= MAX_PIXELS
    with pytest.raises(ImageError, match=f"at most {limit}, got"):
        native.at(limit + 1, 16)


@pytest.mark.parametrize(("positions", "mode"), pairs(["learned", "sincos", "rotary", "none"], [*MODES, None]))
def test_models_with_any_positions_run_at_any_size(positions: str, mode: str | None) -> None:
    model = tiny.model(positions=positions, width=20, heads=5, head_width=8, registers=2)
    height, width = model.config.image_size
    if mode is not None:
        preprocess = Preprocess(height=height, width=width, mode=mode, multiple=tiny.PATCH)
        model.pretrained = Pretrained(name="tiny", preprocess=preprocess)
    explorer = Explorer(model)
    for size in (tiny.PATCH, 100, 250):
        view = explorer.open(photograph(163, 127), size=size)
        prepared = explorer.preprocess.at(size, tiny.PATCH)(photograph(163, 127))
        torch.testing.assert_close(view.trace.logits, model(torch.from_numpy(prepared.pixels)[None]).detach())
        assert view.size == prepared.geometry.input == view.geometry.input
        assert view.trace.grid == model.config.grid_of(*view.size)
    # Earlier sizes have no effect.
    assert explorer.open(photograph(163, 127)).size == explorer.preprocess.input_size(163, 127)
    explorer.model.register_forward_hook(lambda *_: pytest.fail("it ran"))
    for size in (tiny.PATCH - 1, 10**7):
        with pytest.raises(ImageError, match=str(size)):
            explorer.open(photograph(20, 20), size=size)


@pytest.mark.tier("all")
def test_queries_at_1536_pixels_take_bounded_memory() -> None:
    """At 9,217 tokens the attention matrix of one head takes 340 MB."""
    torch.manual_seed(0)
    explorer = Explorer(ViT(ViTConfig(patch_size=16, width=16, depth=2, heads=2, mlp_width=16, classes=5)))
    with Allocations() as allocations:
        view = explorer.open(photograph(1536, 1536), size=1536)
        maps = (*view.head_maps(0, (70, 27)), *view.head_maps(1), *view.layer_maps("max"), view.rollout())
    assert view.trace.grid == (96, 96)
    for heatmap in maps:
        assert heatmap.values.sum() + heatmap.prefix_mass["CLS"] == pytest.approx(1.0, abs=1e-4)
    assert allocations.most < 150e6


def test_size_option_of_the_command_line_matches_open(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["predict", str(CHURCH), "--model", "vit-cifar10", "--device", "cpu", "--size"]
    label, probability = Explorer("vit-cifar10").open(CHURCH, size=48).predictions(1)[0]
    assert main([*options, "48", "--json"]) == 0
    predicted = json.loads(capsys.readouterr().out)["images"][0]["predictions"][0]
    assert predicted == {"label": label, "probability": pytest.approx(probability)}
    assert main([*options, "3"]) == 2
    assert "got 3" in capsys.readouterr().err
