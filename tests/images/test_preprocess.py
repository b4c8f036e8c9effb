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
from pictures import photograph
from PIL import Image

from vitviz.images.decoding import ImageError
from vitviz.images.preprocess import Preprocess

MODES = ("crop", "squash", "pad", "native")
PATCH = 8
SMALL = Preprocess(height=4 * PATCH, width=6 * PATCH, multiple=PATCH)
sides = st.integers(1, 400)
modes = st.sampled_from(MODES)


# ---- equal to torchvision


def torchvision_pixels(image: Image.Image, preprocess: Preprocess, *steps: Any) -> np.ndarray:
    from torchvision import transforms as T

    normalise = T.Normalize(preprocess.mean, preprocess.std)
    return T.Compose([*steps, T.ToTensor(), normalise])(image).numpy()  # (3, H, W)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos", "nearest"])
@pytest.mark.parametrize(("crop", "resize"), [(224, 256), (224, 224), (97, 101), (64, 300)])
@pytest.mark.parametrize("size", [(640, 480), (480, 641), (333, 333), (50, 31), (7, 200), (256, 300), (1, 3)])
def test_crop_is_torchvisions(size: tuple[int, int], crop: int, resize: int, interpolation: str) -> None:
    from torchvision import transforms as T

    ours = Preprocess(height=crop, width=crop, resize=resize, interpolation=interpolation)
    how = T.InterpolationMode(interpolation)
    want = torchvision_pixels(photograph(*size), ours, T.Resize(resize, interpolation=how), T.CenterCrop(crop))
    got = ours(photograph(*size)).pixels
    assert got.dtype == np.float32
    assert got.flags.c_contiguous
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= 1e-6  # equal to the pixel: one level would be 0.017


@settings(max_examples=60)
@given(w=sides, h=sides, height=st.integers(1, 80), width=st.integers(1, 80), extra=st.integers(0, 40))
@example(w=111, h=100, height=40, width=50, extra=4)
def test_crop_of_any_shape_is_torchvisions_where_it_adds_no_margin(
    w: int, h: int, height: int, width: int, extra: int
) -> None:
    from torchvision import transforms as T

    resize = min(height, width) + extra
    ours = Preprocess(height=height, width=width, resize=resize)
    resized = T.Resize(resize, interpolation=T.InterpolationMode.BICUBIC)(photograph(w, h))
    prepared = ours(photograph(w, h))
    assert prepared.pixels.shape == (3, height, width)
    if resized.width >= width and resized.height >= height:
        assert np.abs(prepared.pixels - torchvision_pixels(resized, ours, T.CenterCrop((height, width)))).max() <= 1e-6
    left, top, right, bottom = prepared.geometry.frame  # and never a margin
    assert min(left, top) >= 0
    assert right <= w + 1e-9
    assert bottom <= h + 1e-9


def test_squash_is_torchvisions_resize() -> None:
    from torchvision import transforms as T

    ours = Preprocess(height=60, width=91, mode="squash")
    step = T.Resize((60, 91), interpolation=T.InterpolationMode.BICUBIC)
    assert np.abs(ours(photograph(201, 33)).pixels - torchvision_pixels(photograph(201, 33), ours, step)).max() <= 1e-6


# ---- each mode


def test_default_resize_is_the_fields() -> None:
    """224 of 256, as ImageNet models are tested: the default leaves out 1/8 of the shorter side."""
    assert Preprocess()(photograph(256, 256)).geometry.frame == (16, 16, 240, 240)
    assert Preprocess(height=384, width=384)(photograph(439, 439)).geometry.frame == (
        28,
        28,
        412,
        412,
    )  # round(384 / 0.875) = 439


def test_crop_frame_in_numbers() -> None:
    """640 x 480 -> 341 x 256 (341.33 cut off) -> 224 x 224 from (round(58.5) = 58, 16)."""
    geometry = Preprocess()(photograph(640, 480)).geometry
    assert (geometry.image, geometry.input) == ((640, 480), (224, 224))
    assert geometry.frame == pytest.approx((58 * 640 / 341, 16 * 1.875, 282 * 640 / 341, 240 * 1.875))
    assert geometry.seen == geometry.frame


def test_pad_fills_with_the_mean_and_centres() -> None:
    prepared = Preprocess(height=50, width=50, mode="pad")(Image.new("RGB", (100, 41), "white"))
    rows = np.flatnonzero(prepared.pixels.any(axis=(0, 2)))  # 41 * 0.5 = 20.5 rows, rounded to 20
    assert (rows[0], rows[-1]) == (15, 34)
    assert (prepared.pixels[:, :15] == 0).all()  # zero after the normalisation is the mean
    assert prepared.geometry.frame == pytest.approx((0, -15 * 41 / 20, 100, 35 * 41 / 20))
    assert prepared.geometry.seen == (0, 0, 100, 41)


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


def test_native_is_the_whole_image() -> None:
    prepared = replace(SMALL, mode="native")(photograph(123, 77))
    assert prepared.geometry.frame == (0, 0, 123, 77)
    assert prepared.pixels.shape == (3, *prepared.geometry.input) == (3, 32, 48)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [(1, 1000), (1000, 1), (1, 1), (3, 300)])
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


def test_no_step_holds_more_than_the_limit() -> None:
    """Pillow resizes rows before columns: a tall picture would be held as wide as the input."""
    with pytest.raises(ImageError, match="nearer to a square"):
        Preprocess(height=1500, width=1500, mode="squash")(Image.new("RGB", (300, 30_000)))
    assert (
        Preprocess(height=1500, width=1500, mode="squash")(Image.new("RGB", (30_000, 300))).pixels.size == 3 * 1500**2
    )
    with pytest.raises(ImageError, match="sides of at most"):
        Preprocess(mode="squash")(Image.new("RGB", (10, 400_000)))


def test_large_photographs_work() -> None:
    picture = Image.new("RGB", (7000, 7000), (124, 116, 104))
    for mode in MODES:
        assert np.abs(Preprocess(mode=mode)(picture).pixels).max() < 0.02


# ---- settings


def test_restore_shows_what_the_model_saw() -> None:
    preprocess = Preprocess(height=20, width=30, mode="squash", mean=(0.5, 0.4, 0.3), std=(0.1, 0.2, 0.3))
    picture = photograph(30, 20)
    assert (np.asarray(preprocess.restore(preprocess(picture).pixels)) == np.asarray(picture)).all()
    assert preprocess.restore(np.full((3, 2, 2), 99.0)).getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize(
    "bad", [np.zeros((1, 3, 4, 4)), np.zeros((4, 4, 3)), np.full((3, 2, 2), np.nan), np.zeros((3, 0, 2))]
)
def test_restore_refuses_other_shapes(bad: np.ndarray) -> None:
    with pytest.raises(ImageError, match=r"\(3, H, W\)"):
        Preprocess().restore(bad)


@pytest.mark.parametrize(
    "got", [Image.new("L", (9, 9)), Image.new("RGBA", (9, 9)), np.zeros((9, 9, 3), np.uint8), "a.png"]
)
def test_only_decoded_images_are_prepared(got: Any) -> None:
    with pytest.raises(ImageError, match="Call decode"):
        Preprocess()(got)


def test_preparing_changes_nothing() -> None:
    picture = photograph(50, 40)
    before = picture.tobytes()
    for mode in MODES:
        first, second = (replace(SMALL, mode=mode)(picture) for _ in range(2))
        assert (first.pixels == second.pixels).all()
        assert first.geometry == second.geometry
    assert picture.tobytes() == before


@given(
    height=st.integers(1, 999),
    width=st.integers(1, 999),
    mode=modes,
    multiple=st.just(1),
    interpolation=st.sampled_from(["bilinear", "bicubic", "lanczos", "nearest"]),
    resize=st.none() | st.integers(999, 2000),
    mean=st.tuples(*[st.floats(0, 1)] * 3),
    std=st.tuples(*[st.floats(0.01, 1)] * 3),
)
def test_settings_survive_json(**settings_: Any) -> None:
    preprocess = Preprocess(**settings_)
    again = Preprocess.from_dict(json.loads(json.dumps(preprocess.to_dict())))
    assert again == preprocess
    assert hash(again) == hash(preprocess)


def test_settings_are_frozen() -> None:
    settings_: Any = Preprocess()
    with pytest.raises(FrozenInstanceError):
        settings_.height = 5


@pytest.mark.parametrize("key", list(Preprocess().to_dict()))
def test_every_setting_is_needed(key: str) -> None:
    """A lost mean must not become ImageNet's."""
    known = Preprocess().to_dict()
    with pytest.raises(ImageError, match=rf"missing: \['{key}'\]"):
        Preprocess.from_dict({k: v for k, v in known.items() if k != key})
    with pytest.raises(ImageError, match=rf"unknown: \['{key}s'\]"):
        Preprocess.from_dict(known | {key + "s": 1})


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"height": 0}, "height"),
        ({"width": -3}, "width"),
        ({"height": 224.0}, "height"),
        ({"height": "224"}, "height"),
        ({"width": True}, "width"),
        ({"width": None}, "width"),
        ({"resize": 0}, "resize"),
        ({"resize": 223}, r"at least the shorter side of the 224 x 224 input, got 223"),
        ({"height": 10_000, "width": 10_000}, "at most 50000000 pixels"),
        ({"multiple": 0}, "multiple"),
        ({"mode": "native", "height": 15, "width": 17}, "one patch of 16 x 16"),
        ({"mode": "stretch"}, "'crop', 'squash', 'pad', 'native', got 'stretch'"),
        ({"mode": None}, "mode"),
        ({"mode": ["crop"]}, "mode"),
        ({"interpolation": "hamming"}, "interpolation"),
        ({"mean": (0.5, 0.5)}, "mean"),
        ({"mean": "abc"}, "mean"),
        ({"mean": 0.5}, "mean"),
        ({"mean": (0.5, 0.5, math.nan)}, "mean"),
        ({"mean": (0.5, 0.5, "0.5")}, "mean"),
        ({"std": (0.5, 0.0, 0.5)}, "std to be .* from 1e-06"),
        ({"std": None}, "std"),
    ],
)
def test_settings_that_make_no_sense_are_refused(bad: dict[str, Any], words: str) -> None:
    with pytest.raises(ImageError, match=words):
        Preprocess(**bad)
    with pytest.raises(ImageError, match=words):
        Preprocess.from_dict(Preprocess().to_dict() | bad)


@pytest.mark.parametrize("got", [None, [1, 2], "crop"])
def test_settings_come_as_a_mapping(got: Any) -> None:
    with pytest.raises(ImageError, match="mapping"):
        Preprocess.from_dict(got)


def test_numpy_numbers_are_numbers() -> None:
    assert json.dumps(Preprocess(height=np.int64(32), width=np.int64(32), mean=[0, 0, 0], std=[1, 1, 1]).to_dict())
