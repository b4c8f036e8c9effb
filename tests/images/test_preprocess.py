"""What the model reads of a photograph: equal to torchvision, in every mode, by settings that cannot be wrong."""

from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pairwise import pairs
from pictures import photograph
from PIL import Image
from torchvision import transforms as T

from vitviz.images.decoding import ImageError
from vitviz.images.preprocess import Preprocess

MODES = ("crop", "squash", "pad", "native")
PATCH = 8
SMALL = Preprocess(height=4 * PATCH, width=6 * PATCH, multiple=PATCH)
sides = st.integers(1, 400)
modes = st.sampled_from(MODES)


# ---- equal to torchvision


def assert_torchvisions(ours: Preprocess, image: Image.Image, *steps: Any) -> None:
    prepared = ours(image).pixels
    expected = T.Compose([*steps, T.ToTensor(), T.Normalize(ours.mean, ours.std)])(image).numpy()  # (3, H, W)
    assert (prepared.dtype, prepared.shape) == (np.float32, expected.shape)
    assert prepared.flags.c_contiguous
    assert np.abs(prepared - expected).max() <= 1e-6  # equal to the pixel: one level would be 0.017


@pytest.mark.parametrize(
    ("size", "sides", "interpolation"),
    pairs(
        [(640, 480), (480, 641), (333, 333), (50, 31), (7, 200), (256, 300), (1, 3)],
        [(224, 256), (224, 224), (97, 101), (64, 300)],
        ["bilinear", "bicubic", "lanczos", "nearest"],
    ),
)
def test_crop_and_squash_are_torchvisions(size: tuple[int, int], sides: tuple[int, int], interpolation: str) -> None:
    crop, resize = sides
    how = T.InterpolationMode(interpolation)
    ours = Preprocess(height=crop, width=crop, resize=resize, interpolation=interpolation)
    assert_torchvisions(ours, photograph(*size), T.Resize(resize, interpolation=how), T.CenterCrop(crop))
    squash = Preprocess(height=60, width=91, mode="squash", interpolation=interpolation)
    assert_torchvisions(squash, photograph(*size), T.Resize((60, 91), interpolation=how))


@settings(max_examples=40)
@given(w=sides, h=sides, height=st.integers(1, 80), width=st.integers(1, 80), extra=st.integers(0, 40))
@example(w=111, h=100, height=40, width=50, extra=4)
def test_crop_of_any_shape_is_torchvisions_where_it_adds_no_margin(
    w: int, h: int, height: int, width: int, extra: int
) -> None:
    resize = min(height, width) + extra
    ours = Preprocess(height=height, width=width, resize=resize)
    resizing = T.Resize(resize, interpolation=T.InterpolationMode.BICUBIC)
    resized, prepared = resizing(photograph(w, h)), ours(photograph(w, h))
    assert prepared.pixels.shape == (3, height, width)
    if resized.width >= width and resized.height >= height:
        assert_torchvisions(ours, photograph(w, h), resizing, T.CenterCrop((height, width)))
    left, top, right, bottom = prepared.geometry.frame  # and never a margin
    assert min(left, top) >= 0
    assert right <= w + 1e-9
    assert bottom <= h + 1e-9


# ---- each mode


def test_frames_of_crop_and_native_in_numbers() -> None:
    """640 x 480 -> 341 x 256 (341.33 cut off) -> 224 x 224 from (round(58.5) = 58, 16).

    224 of 256, as ImageNet models are tested: the default leaves out 1/8 of the shorter side.
    """
    geometry = Preprocess()(photograph(640, 480)).geometry
    assert (geometry.image, geometry.input) == ((640, 480), (224, 224))
    assert geometry.frame == pytest.approx((58 * 640 / 341, 16 * 1.875, 282 * 640 / 341, 240 * 1.875))
    assert geometry.seen == geometry.frame
    large = Preprocess(height=384, width=384)(photograph(439, 439))  # round(384 / 0.875) = 439
    assert large.geometry.frame == (28, 28, 412, 412)
    whole = replace(SMALL, mode="native")(photograph(123, 77))
    assert whole.geometry.frame == (0, 0, 123, 77)
    assert whole.pixels.shape == (3, *whole.geometry.input) == (3, 32, 48)


def test_pad_fills_with_the_mean_and_centres() -> None:
    prepared = Preprocess(height=50, width=50, mode="pad")(Image.new("RGB", (100, 41), "white"))
    rows = np.flatnonzero(prepared.pixels.any(axis=(0, 2)))  # 41 * 0.5 = 20.5 rows, rounded to 20
    assert (rows[0], rows[-1]) == (15, 34)
    assert (prepared.pixels[:, :15] == 0).all()  # zero after the normalisation is the mean
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
    if min(exact) >= 1:  # otherwise the image is too elongated to keep its shape
        # The nearest whole number, or what the budget leaves beside a single row or column.
        assert abs(across - exact[0]) <= 0.5 or across == int(budget)
        assert abs(down - exact[1]) <= 0.5 or down == int(budget)


@pytest.mark.parametrize(("mode", "size"), pairs(MODES, [(1, 1000), (1000, 1), (1, 1), (3, 300)]))
def test_elongated_and_tiny_images_work_or_are_refused_in_words(mode: str, size: tuple[int, int]) -> None:
    preprocess = Preprocess(mode=mode)
    if mode == "crop" and 1000 in size:
        with pytest.raises(ImageError, match=r"nearer to a square, got .*1000.* would become .* mode='pad'"):
            preprocess(photograph(*size))
        return
    prepared = preprocess(photograph(*size))
    assert prepared.pixels.shape == (3, *prepared.geometry.input)
    assert np.isfinite(prepared.pixels).all()
    assert prepared.pixels.size <= 3 * 224 * 224 * 1.1


def test_large_photographs_work_and_no_step_holds_more_than_the_limit() -> None:
    """Pillow resizes rows before columns: a tall picture would be held as wide as the input."""
    for mode in MODES:
        mean_colour = Image.new("RGB", (5000, 5000), (124, 116, 104))
        assert np.abs(Preprocess(mode=mode)(mean_colour).pixels).max() < 0.02
    large = Preprocess(height=1500, width=1500, mode="squash")
    with pytest.raises(ImageError, match="nearer to a square"):
        large(Image.new("RGB", (300, 30_000)))
    assert large(Image.new("RGB", (30_000, 300))).pixels.size == 3 * 1500**2
    with pytest.raises(ImageError, match="sides of at most"):
        Preprocess(mode="squash")(Image.new("RGB", (10, 400_000)))


# ---- settings


def test_restore_shows_what_the_model_saw_and_preparing_changes_nothing() -> None:
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


def test_other_arrays_and_images_are_refused() -> None:
    for bad in (np.zeros((1, 3, 4, 4)), np.zeros((4, 4, 3)), np.full((3, 2, 2), np.nan), np.zeros((3, 0, 2))):
        with pytest.raises(ImageError, match=r"\(3, H, W\)"):
            Preprocess().restore(bad)
    got: Any
    for got in (Image.new("L", (9, 9)), Image.new("RGBA", (9, 9)), np.zeros((9, 9, 3), np.uint8), "a.png"):
        with pytest.raises(ImageError, match="Call decode"):
            Preprocess()(got)


def test_settings_survive_json_where_each_is_needed() -> None:
    """A lost mean must not become ImageNet's."""
    known = Preprocess().to_dict()
    for preprocess in (
        Preprocess(),
        Preprocess(height=13, width=7, mode="squash", interpolation="nearest", mean=(0.1, 0.2, 0.3), std=(0.4, 1, 0.6)),
        Preprocess(height=13, width=7, resize=31, interpolation="lanczos", multiple=1),
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
    got: Any
    for got in (None, [1, 2], "crop"):
        with pytest.raises(ImageError, match="mapping"):
            Preprocess.from_dict(got)
    assert json.dumps(Preprocess(height=np.int64(32), width=np.int64(32), mean=[0, 0, 0], std=[1, 1, 1]).to_dict())


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"height": 0}, "height"),
        ({"height": 224.0}, "height"),
        ({"width": True}, "width"),
        ({"width": None}, "width"),
        ({"resize": 0}, "resize"),
        ({"resize": 223}, r"at least the shorter side of the 224 x 224 input, got 223"),
        ({"height": 10_000, "width": 10_000}, "at most 50000000 pixels"),
        ({"multiple": 0}, "multiple"),
        ({"mode": "native", "height": 15, "width": 17}, "one patch of 16 x 16"),
        ({"mode": "stretch"}, "'crop', 'squash', 'pad', 'native', got 'stretch'"),
        ({"mode": ["crop"]}, "mode"),
        ({"interpolation": "hamming"}, "interpolation"),
        ({"mean": (0.5, 0.5)}, "mean"),
        ({"mean": "abc"}, "mean"),
        ({"mean": (0.5, 0.5, math.nan)}, "mean"),
        ({"std": (0.5, 0.0, 0.5)}, "std to be .* from 1e-06"),
    ],
)
def test_settings_that_make_no_sense_are_refused(bad: dict[str, Any], words: str) -> None:
    with pytest.raises(ImageError, match=words):
        Preprocess(**bad)
    with pytest.raises(ImageError, match=words):
        Preprocess.from_dict(Preprocess().to_dict() | bad)
