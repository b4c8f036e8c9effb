"""vitviz.images.decoding, the decoding half: what people really upload is read rightly or refused in words."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_files import (
    ADOBE_D50,
    SRGB_D50,
    icc_profile,
    random_rgb,
    saved,
    srgb_encode,
    stored_as,
)
from PIL import ExifTags, Image, ImageCms, features

from vitviz.images.decoding import ImageError, decode


def pixels(source: Any) -> np.ndarray:
    """Decode, check what holds for every picture, and return (H, W, 3)."""
    picture = decode(source)
    assert (type(picture), picture.mode) == (Image.Image, "RGB")
    assert (picture.info, dict(picture.getexif())) == ({}, {})
    return np.asarray(picture).astype(int)


# ---- where pictures come from


def test_path_bytes_and_pil_are_the_same_picture(tmp_path: Path) -> None:
    rgb = random_rgb(5, 7)
    data = saved(Image.fromarray(rgb), "PNG")
    (tmp_path / "bäume 🌳.png").write_bytes(data)
    for source in (
        tmp_path / "bäume 🌳.png",
        str(tmp_path / "bäume 🌳.png"),
        data,
        bytearray(data),
        memoryview(data),
        Image.fromarray(rgb),
    ):
        assert (pixels(source) == rgb).all()


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "PPM", "WEBP", "GIF", "JPEG", "JPEG2000", "AVIF"])
def test_formats(format: str) -> None:
    if format == "AVIF":
        assert features.check("avif"), "the pinned Pillow decodes AVIF"
    rgb = np.full((16, 24, 3), (200, 40, 90), np.uint8)
    options = {"WEBP": {"lossless": True}, "JPEG": {"quality": 100, "subsampling": 0}}.get(format, {})
    assert np.abs(pixels(saved(Image.fromarray(rgb), format, **options)) - rgb).max() <= 4


def test_the_content_counts_not_the_name(tmp_path: Path) -> None:
    rgb = random_rgb(4, 4)
    (tmp_path / "photo.jpg").write_bytes(saved(Image.fromarray(rgb), "PNG"))
    assert (pixels(tmp_path / "photo.jpg") == rgb).all()


@pytest.mark.parametrize(("shape", "expand"), [((4, 6), True), ((4, 6, 1), True), ((4, 6, 3), False)])
@pytest.mark.parametrize("dtype", ["uint8", "<u2", ">u2", "f2", "f4", "f8"])
def test_arrays(shape: tuple[int, ...], expand: bool, dtype: str) -> None:
    levels = np.random.default_rng(1).integers(0, 256, shape)
    white = {"u1": 255, "u2": 65535}.get(np.dtype(dtype).str[1:], 1)
    got = pixels((levels * (white / 255)).astype(dtype))
    want = np.broadcast_to(levels.reshape(4, 6, -1), (4, 6, 3)) if expand else levels
    assert (got == want).all()


def test_array_with_alpha_lies_over_white() -> None:
    rgba = np.random.default_rng(2).integers(0, 256, (5, 6, 4), dtype=np.uint8)
    alpha = rgba[..., 3:] / 255
    want = rgba[..., :3] * alpha + 255 * (1 - alpha)
    assert np.abs(pixels(rgba) - want).max() <= 0.51


def test_array_views_are_read_in_their_own_order() -> None:
    rgb = random_rgb(6, 8)
    assert (pixels(rgb[::-2, ::2]) == rgb[::-2, ::2]).all()
    assert (pixels(rgb.transpose(1, 0, 2)) == rgb.transpose(1, 0, 2)).all()


def test_many_rows_are_scaled_alike() -> None:
    """16-bit values are scaled some rows at a time: no seam, and every level goes to the nearest of 256."""
    deep = np.arange(65536, dtype=np.uint16).reshape(64, 1024).repeat(20, axis=0)
    want = np.floor(deep.astype(np.float64) * 255 / 65535 + 0.5)
    assert (pixels(deep)[..., 0] == want).all()


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((3, 8, 9), np.uint8), r"transpose\(1, 2, 0\)"),
        (np.zeros((2, 8, 9, 3), np.uint8), "one image"),
        (np.zeros(7, np.uint8), "one image"),
        (np.zeros((), np.uint8), "one image"),
        (np.zeros((8, 9, 2), np.uint8), r"\(8, 9, 2\)"),
        (np.zeros((8, 9, 5), np.uint8), r"\(8, 9, 5\)"),
        (np.zeros((0, 5, 3), np.uint8), "5 x 0"),
        (np.zeros((5, 0), np.float32), "0 x 5"),
        (np.full((4, 4), np.nan), "NaN"),
        (np.array([[0.0, np.nan], [0.5, 1.0]]), "NaN"),
        (np.array([[0.0, np.inf]]), "inf"),
        (np.array([[0.0, 255.0]]), "got 0 to 255"),
        (np.array([[-1.0, 1.0]]), "got -1 to 1"),
        (np.zeros((4, 4), np.int64), "int64"),
        (np.zeros((4, 4), bool), "bool"),
        (np.zeros((4, 4), complex), "complex"),
        (np.full((4, 4), None), "object"),
        (np.broadcast_to(np.uint8(0), (10_000, 10_000)), "100.0 megapixels"),
    ],
)
def test_arrays_refused(array: np.ndarray, words: str) -> None:
    with pytest.raises(ImageError, match=words):
        decode(array)


@pytest.mark.parametrize(
    ("source", "words"), [(None, "got nothing. Choose an image"), (3, "got int"), ([1, 2], "got list")]
)
def test_other_types_refused(source: Any, words: str) -> None:
    with pytest.raises(ImageError, match=words):
        decode(source)


# ---- orientation, frames, privacy


@pytest.mark.parametrize("format", ["PNG", "TIFF", "WEBP", "JPEG"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(format: str, orientation: int) -> None:
    upright = np.kron(random_rgb(2, 3, seed=4), np.ones((16, 16, 1), np.uint8))  # blocks survive JPEG
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    exif.get_ifd(ExifTags.IFD.GPSInfo)[ExifTags.GPS.GPSLatitude] = (52.0, 31.0, 12.0)
    options = {"WEBP": {"lossless": True}, "JPEG": {"quality": 100, "subsampling": 0}}.get(format, {})
    data = saved(Image.fromarray(stored_as(upright, orientation).copy()), format, exif=exif, **options)
    assert np.abs(pixels(data) - upright).max() <= 3
    with Image.open(io.BytesIO(data)) as lazy:
        assert np.abs(pixels(lazy) - upright).max() <= 3


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_unknown_orientation_is_upright(value: int) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = value
    rgb = random_rgb(3, 5)
    assert (pixels(saved(Image.fromarray(rgb), "PNG", exif=exif)) == rgb).all()


def test_damaged_exif_does_not_refuse_the_photograph() -> None:
    rgb = random_rgb(3, 5)
    assert (pixels(saved(Image.fromarray(rgb), "PNG", exif=b"Exif\0\0this is no TIFF header at all")) == rgb).all()


@pytest.mark.parametrize(("format", "options"), [("GIF", {}), ("WEBP", {"lossless": True}), ("PNG", {}), ("TIFF", {})])
def test_first_frame_of_animations(format: str, options: dict[str, object]) -> None:
    frames = [Image.new("RGB", (9, 6), colour) for colour in ("red", "lime", "blue")]
    data = saved(frames[0], format, save_all=True, append_images=frames[1:], **options)
    assert (pixels(data) == (255, 0, 0)).all()


def test_two_lens_photographs_are_jpegs() -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("white", "black")]
    assert (pixels(saved(frames[0], "MPO", save_all=True, append_images=frames[1:])) == 255).all()


def test_pil_image_keeps_the_frame_where_it_stands(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (9, 6), colour) for colour in ("red", "lime", "blue")]
    (tmp_path / "a.gif").write_bytes(saved(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    with Image.open(tmp_path / "a.gif") as animation:
        animation.seek(2)
        assert (pixels(animation) == (0, 0, 255)).all()
        assert animation.tell() == 2


# ---- modes


def test_palette_with_and_without_transparency() -> None:
    indexed = Image.fromarray(np.array([[0, 1, 2], [2, 1, 0]], np.uint8), "P")
    indexed.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    red, green, blue, white = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
    assert (pixels(saved(indexed, "PNG")) == [[red, green, blue], [blue, green, red]]).all()
    for kind in ("PNG", "GIF"):
        got = pixels(saved(indexed, kind, transparency=1))
        assert (got == [[red, white, blue], [blue, white, red]]).all()
    graded = pixels(saved(indexed, "PNG", transparency=bytes([255, 128, 0])))
    assert graded[0].tolist() == [[255, 0, 0], [127, 255, 127], [255, 255, 255]]


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB"])
def test_one_transparent_colour(mode: str) -> None:
    picture = Image.new(mode, (2, 1), 0 if mode != "RGB" else (0, 0, 0))
    if mode == "P":
        picture.putpalette([0, 0, 0, 9, 9, 9])
    picture.putpixel((1, 0), {"1": 255, "L": 9, "P": 1, "RGB": (9, 9, 9)}[mode])
    got = pixels(saved(picture, "PNG", transparency=(0, 0, 0) if mode == "RGB" else 0))
    assert got[0].tolist() == [[255] * 3, [255 if mode == "1" else 9] * 3]


def test_grey_and_bits() -> None:
    grey = np.random.default_rng(5).integers(0, 256, (4, 5), dtype=np.uint8)
    assert (pixels(saved(Image.fromarray(grey), "PNG")) == grey[..., None]).all()
    bits = grey > 127
    for kind in ("PNG", "TIFF", "BMP"):
        assert (pixels(saved(Image.fromarray(bits), kind)) == 255 * bits[..., None]).all()


@pytest.mark.parametrize("mode", ["LA", "La", "PA", "RGBA", "RGBa"])
def test_alpha_lies_over_white(mode: str) -> None:
    rgba = np.random.default_rng(6).integers(0, 256, (8, 9, 4), dtype=np.uint8)
    rgba[0, :, 3], rgba[1, :, 3] = 0, 255
    source = Image.fromarray(rgba)
    if mode in ("LA", "La"):
        source = source.convert("LA").convert(mode)
    elif mode == "PA":
        source = Image.merge("PA", (Image.fromarray(rgba[..., 0]), source.getchannel("A")))
        source.putpalette(bytes(v for v in range(256) for _ in range(3)))
        rgba[..., :3] = rgba[..., :1]
    else:
        source = source.convert(mode)
    if mode in ("LA", "La"):
        rgba = np.asarray(Image.fromarray(rgba).convert("LA").convert("RGBA"))
    alpha = rgba[..., 3:] / 255
    want = rgba[..., :3] * alpha + 255 * (1 - alpha)
    assert np.abs(pixels(source) - want).max() <= 2  # modes with alpha multiplied in round twice


@pytest.mark.parametrize(("mode", "dtype"), [("I;16", "<u2"), ("I;16L", "<u2"), ("I;16B", ">u2"), ("I;16N", "=u2")])
def test_sixteen_bit_grey_in_every_byte_order(mode: str, dtype: str) -> None:
    deep = np.array([[0, 257, 1000], [128, 129, 65535]], np.uint16)
    picture = Image.frombytes(mode, (3, 2), deep.astype(dtype).tobytes())
    assert pixels(picture)[..., 1].tolist() == [[0, 1, 4], [0, 1, 255]]


@pytest.mark.parametrize("format", ["PNG", "TIFF", "PPM"])
def test_sixteen_bit_files_stay_dark_where_they_are_dark(format: str) -> None:
    deep = np.array([[0, 200, 255]], np.uint16)  # fits 8 bits by chance, and yet is almost black
    assert pixels(saved(Image.fromarray(deep), format))[0, :, 0].tolist() == [0, 1, 1]


def test_sixteen_bit_grey_with_a_transparent_level() -> None:
    deep = np.array([[0, 257, 514]], np.uint16)
    assert pixels(saved(Image.fromarray(deep), "PNG", transparency=257))[0, :, 0].tolist() == [0, 255, 2]


@pytest.mark.parametrize(
    ("values", "want"),
    [
        (np.array([[0, 7, 255]], np.int32), [0, 7, 255]),
        (np.array([[0, 257, 65535]], np.int32), [0, 1, 255]),
        (np.array([[-100, -60, 100]], np.int32), [0, 51, 255]),
        (np.array([[0, 20_000, 100_000]], np.int32), [0, 51, 255]),
        (np.array([[0.0, 0.2, 1.0]], np.float32), [0, 51, 255]),
        (np.array([[0.0, 51.0, 255.0]], np.float32), [0, 51, 255]),
        (np.array([[300.0, 340.0, 500.0]], np.float32), [0, 51, 255]),
        (np.array([[-2.0, -2.0, -2.0]], np.float32), [0, 0, 0]),
    ],
)
def test_integers_and_floats_in_files(values: np.ndarray, want: list[int]) -> None:
    picture = Image.fromarray(values)
    assert picture.mode in "IF"
    for source in (picture, saved(picture, "TIFF")):
        assert pixels(source)[0, :, 2].tolist() == want


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_float_files_with_holes_are_refused(bad: float) -> None:
    with pytest.raises(ImageError, match="finite"):
        decode(Image.fromarray(np.array([[0.0, bad, 1.0]], np.float32)))


def test_cmyk() -> None:
    """Ink on white, also as Adobe stores it in JPEG (inverted): what Pillow gives back is ink again."""
    cmyk = np.zeros((16, 16, 4), np.uint8)
    cmyk[:, 8:] = (0, 255, 255, 0)  # no cyan, full magenta and yellow: red
    picture = Image.fromarray(cmyk, "CMYK")
    adobe = saved(picture, "JPEG", quality=100, subsampling=0)
    assert b"Adobe" in adobe
    for source in (picture, saved(picture, "TIFF"), adobe):
        got = pixels(source)
        want = np.where(np.arange(16)[:, None] < 8, (255, 255, 255), (255, 0, 0))
        assert np.abs(got - want).max() <= 4


@pytest.mark.parametrize("mode", ["YCbCr", "HSV", "LAB", "RGBX"])
def test_other_colour_spaces(mode: str) -> None:
    rgb = Image.fromarray(np.full((4, 4, 3), (150, 120, 90), np.uint8))
    if mode == "LAB":
        profiles = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
        source = ImageCms.applyTransform(rgb, ImageCms.buildTransform(*profiles, "RGB", "LAB"))
        assert source is not None
    else:
        source = rgb.convert(mode)
    assert np.abs(pixels(source) - (150, 120, 90)).max() <= 3


# ---- colour profiles


def test_wide_gamut_photographs_become_srgb() -> None:
    rgb = random_rgb(16, 16, seed=7)
    profile = icc_profile("RGB", 2.19921875, ADOBE_D50)
    linear = (rgb / 255) ** 2.19921875
    want = srgb_encode(linear @ ADOBE_D50 @ np.linalg.inv(SRGB_D50))  # (H, W, 3) rows of light @ (3, 3) primaries
    got = pixels(saved(Image.fromarray(rgb), "PNG", icc_profile=profile))
    assert np.abs(got - want).max() <= 2
    assert np.abs(got - rgb).max() > 20  # the profile matters


def test_profile_and_alpha_together() -> None:
    rgba = np.dstack([random_rgb(8, 8, seed=8), np.full((8, 8), 255, np.uint8)])
    profile = icc_profile("RGB", 2.19921875, ADOBE_D50)
    opaque = pixels(saved(Image.fromarray(rgba[..., :3].copy()), "PNG", icc_profile=profile))
    assert (pixels(saved(Image.fromarray(rgba), "PNG", icc_profile=profile)) == opaque).all()
    rgba[..., 3] = 0
    assert (pixels(saved(Image.fromarray(rgba), "PNG", icc_profile=profile)) == 255).all()


def test_grey_profile() -> None:
    grey = np.arange(256, dtype=np.uint8).reshape(16, 16)
    got = pixels(saved(Image.fromarray(grey), "PNG", icc_profile=icc_profile("GRAY", 1.8)))
    assert np.abs(got[..., 0] - srgb_encode((grey / 255) ** 1.8)).max() <= 3
    assert np.abs(got[..., 0] - grey).max() > 9  # the profile matters


def test_srgb_by_another_name_changes_nothing() -> None:
    """The profile most photographs carry: a conversion would move some pixels by one level."""
    rgb = random_rgb(64, 64, seed=9)
    profile = icc_profile("RGB", None, SRGB_D50)
    assert (pixels(saved(Image.fromarray(rgb), "PNG", icc_profile=profile)) == rgb).all()


@pytest.mark.parametrize("profile", [b"no profile", icc_profile("RGB", 2.2, ADOBE_D50)[:200], icc_profile("GRAY", 1.0)])
def test_unusable_profiles_are_passed_over(profile: bytes) -> None:
    rgb = random_rgb(6, 6)
    assert (pixels(saved(Image.fromarray(rgb), "PNG", icc_profile=profile)) == rgb).all()


# ---- the caller's image is not ours


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "I", "F"])
def test_the_callers_image_is_never_changed(mode: str) -> None:
    source = Image.new(mode, (4, 3)) if mode in ("I;16", "LA") else Image.fromarray(random_rgb(3, 4)).convert(mode)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    source.info = {"exif": exif.tobytes(), "icc_profile": icc_profile("RGB", 1.0, ADOBE_D50), "comment": b"mine"}
    if mode == "P":
        source.info["transparency"] = bytes([0, 128, 255])

    def state() -> tuple[object, ...]:
        palette = source.im.getpalette("RGBA", "RGBA") if mode == "P" else None
        return source.mode, source.size, source.tobytes(), dict(source.info), palette

    before = state()
    picture = decode(source)
    assert picture.size == (3, 4)
    assert state() == before
    picture.paste("red", (0, 0, *picture.size))
    assert state() == before


def test_the_result_shares_no_memory_with_its_source() -> None:
    source = Image.new("RGB", (4, 3))
    picture = decode(source)
    source.putpixel((0, 0), (9, 9, 9))
    assert picture.getpixel((0, 0)) == (0, 0, 0)
    array = np.zeros((3, 4, 3), np.uint8)
    picture = decode(array)
    array[:] = 9
    assert picture.getpixel((0, 0)) == (0, 0, 0)
