"""Test decoding: pictures are read correctly, and other files raise an error before they take memory."""

import io
import os
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from image_files import (
    ADOBE_D50,
    SRGB_D50,
    heic,
    heic_photo,
    icc_profile,
    png_header_only,
    png_text_bomb,
    random_rgb,
    saved,
    srgb_encode,
    stored_as,
)
from pairwise import pairs
from PIL import EpsImagePlugin, ExifTags, Image, ImageCms, ImageFile

from vitviz.images import heif
from vitviz.images.decoding import ImageError, decode
from vitviz.images.limits import check_file

LOSSLESS: dict[str, dict[str, Any]] = {"WEBP": {"lossless": True}, "JPEG": {"quality": 100, "subsampling": 0}}


def pixels(source: Any) -> np.ndarray:
    """Decode, check mode and metadata, and return the pixels (H, W, 3)."""
    picture = decode(source)
    assert (type(picture), picture.mode) == (Image.Image, "RGB")
    assert not {*picture.info} - {"range"}
    assert not dict(picture.getexif())
    return np.asarray(picture).astype(int)


def png(array: np.ndarray, **options: Any) -> bytes:
    return saved(Image.fromarray(array), "PNG", **options)


def exif_of(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    exif.get_ifd(ExifTags.IFD.GPSInfo)[ExifTags.GPS.GPSLatitude] = (52.0, 31.0, 12.0)
    return exif


def test_path_bytes_and_pil_sources_agree(tmp_path: Path) -> None:
    rgb = random_rgb(5, 7)
    data, path = png(rgb), tmp_path / "bäume 🌳.jpg"  # the suffix does not matter
    path.write_bytes(data)
    for source in (path, str(path), data, bytearray(data), memoryview(data), Image.fromarray(rgb)):
        assert (pixels(source) == rgb).all()
    for exif in (exif_of(0), exif_of(9), exif_of(65535), b"Exif\0\0this is no TIFF header at all"):
        assert (pixels(png(rgb, exif=exif)) == rgb).all()  # unknown orientations


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "PPM", "WEBP", "GIF", "JPEG", "JPEG2000", "AVIF", "MPO"])
def test_each_format_is_read_with_the_first_frame_of_animations(format: str) -> None:
    colour = (200, 40, 90)
    frames = [Image.new("RGB", (24, 16), name) for name in (colour, "lime", "blue")]
    options = LOSSLESS.get(format, {})
    assert np.abs(pixels(saved(frames[0], format, **options)) - colour).max() <= 4
    if format in ("GIF", "WEBP", "PNG", "TIFF", "MPO"):  # MPO: two-lens photographs
        data = saved(frames[0], format, save_all=True, append_images=frames[1:], **options)
        assert np.abs(pixels(data) - colour).max() <= (4 if format == "MPO" else 0)
        with Image.open(io.BytesIO(data)) as animation:  # a PIL image stays at its current frame
            animation.seek(1)
            assert np.abs(pixels(animation) - (0, 255, 0)).max() <= (4 if format == "MPO" else 0)
            assert animation.tell() == 1


@pytest.mark.parametrize("dtype", ["uint8", "<u2", ">u2", "f2", "f4", "f8"])
def test_arrays_of_each_dtype_become_8_bit_rgb(dtype: str) -> None:
    white = {"u1": 255, "u2": 65535}.get(np.dtype(dtype).str[1:], 1)
    for shape in ((4, 6), (4, 6, 1), (4, 6, 3)):
        levels = np.random.default_rng(1).integers(0, 256, shape)
        expected = np.broadcast_to(levels.reshape(4, 6, -1), (4, 6, 3))
        array = (levels * (white / 255)).astype(dtype)
        assert (pixels(array) == expected).all()
        assert (pixels(array[::-2, ::2]) == expected[::-2, ::2]).all()
    # 16-bit values are scaled in chunks of rows: every level is rounded to the nearest of 256, without seams.
    deep = np.arange(65536, dtype=np.uint16).reshape(64, 1024).repeat(20, axis=0)
    assert (pixels(deep)[..., 0] == np.floor(deep.astype(np.float64) * 255 / 65535 + 0.5)).all()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (np.zeros((3, 8, 9), np.uint8), r"transpose\(1, 2, 0\)"),
        *((np.zeros(shape, np.uint8), "one image") for shape in ((2, 8, 9, 3), 7)),
        (np.zeros((8, 9, 2), np.uint8), r"\(8, 9, 2\)"),
        (np.zeros((0, 5, 3), np.uint8), "5 x 0"),
        (np.zeros((5, 0), np.float32), "0 x 5"),
        *((np.array([[0.0, value]]), words) for value, words in ((np.nan, "NaN"), (np.inf, "inf"), (255, "0 to 255"))),
        (np.array([[-1.0, 1.0]]), "got -1 to 1"),
        *((np.zeros((4, 4), dtype), dtype) for dtype in ("int64", "bool", "object")),
        (np.broadcast_to(np.uint8(0), (10_000, 10_000)), "100.0 megapixels"),
        (None, "got nothing. Choose an image"),
        ([1, 2], "got list"),
        *[(Image.fromarray(np.array([[0.0, bad, 1.0]], np.float32)), "finite") for bad in (np.nan, np.inf, -np.inf)],
    ],
)
def test_invalid_arrays_and_objects_raise(source: Any, words: str) -> None:
    with pytest.raises(ImageError, match=words):
        decode(source)


@pytest.mark.parametrize(("format", "orientation"), pairs(["PNG", "TIFF", "WEBP", "JPEG"], range(1, 9)))
def test_exif_orientation_is_applied(format: str, orientation: int) -> None:
    # Blocks of 16 x 16 survive JPEG compression.
    upright = np.kron(random_rgb(2, 3, seed=4), np.ones((16, 16, 1), np.uint8))
    stored = Image.fromarray(stored_as(upright, orientation).copy())
    data = saved(stored, format, exif=exif_of(orientation), **LOSSLESS.get(format, {}))
    assert np.abs(pixels(data) - upright).max() <= 3
    with Image.open(io.BytesIO(data)) as lazy:
        assert np.abs(pixels(lazy) - upright).max() <= 3


# ---- modes

WHITE, RED, GREEN, BLUE = (255,) * 3, (255, 0, 0), (0, 255, 0), (0, 0, 255)


def indexed(image_mode: str = "P") -> Image.Image:
    """Return a picture of the levels 0, 1, 2, 2, 1, 0, or of red, green and blue from a palette."""
    picture = Image.fromarray(np.array([[0, 1, 2], [2, 1, 0]], np.uint8), image_mode)
    if image_mode == "P":
        picture.putpalette([*RED, *GREEN, *BLUE])
    return picture


def test_transparent_colors_become_white() -> None:
    assert (pixels(saved(indexed(), "PNG")) == [[RED, GREEN, BLUE], [BLUE, GREEN, RED]]).all()
    for kind in ("PNG", "GIF"):
        decoded = pixels(saved(indexed(), kind, transparency=1))
        assert (decoded == [[RED, WHITE, BLUE], [BLUE, WHITE, RED]]).all()
    graded = pixels(saved(indexed(), "PNG", transparency=bytes([255, 128, 0])))
    assert graded[0].tolist() == [[255, 0, 0], [127, 255, 127], [255, 255, 255]]
    for mode, clear in (("L", 1), ("RGB", (1, 1, 1))):
        decoded = pixels(saved(indexed("L").convert(mode), "PNG", transparency=clear))
        assert decoded[..., 0].tolist() == [[0, 255, 2], [2, 255, 0]]
    assert (pixels(saved(Image.new("1", (2, 1)), "PNG", transparency=0)) == 255).all()
    deep = png(np.array([[0, 257, 514]], np.uint16), transparency=257)
    assert pixels(deep)[0, :, 0].tolist() == [0, 255, 128]


def test_grey_bilevel_cmyk_and_other_color_spaces_become_rgb() -> None:
    grey = np.random.default_rng(5).integers(0, 256, (4, 5), dtype=np.uint8)
    assert (pixels(png(grey)) == grey[..., None]).all()
    bits = grey > 127
    for kind in ("PNG", "TIFF", "BMP"):
        assert (pixels(saved(Image.fromarray(bits), kind)) == 255 * bits[..., None]).all()
    ink = Image.merge("CMYK", [Image.new("L", (16, 16), level) for level in (0, 255, 255, 0)])
    ink.paste((0, 0, 0, 0), (0, 0, 16, 8))
    adobe = saved(ink, "JPEG", quality=100, subsampling=0)  # stored inverted; Pillow inverts it back
    assert b"Adobe" in adobe
    for source in (ink, saved(ink, "TIFF"), adobe):
        assert np.abs(pixels(source) - np.repeat([[WHITE], [RED]], 8, axis=0)).max() <= 4
    rgb = Image.new("RGB", (4, 4), (150, 120, 90))
    profiles = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
    lab = ImageCms.applyTransform(rgb, ImageCms.buildTransform(*profiles, "RGB", "LAB"))
    for source in (lab, *(rgb.convert(mode) for mode in ("YCbCr", "HSV", "RGBX"))):
        assert np.abs(pixels(source) - (150, 120, 90)).max() <= 3


@pytest.mark.parametrize("mode", ["LA", "La", "PA", "RGBA", "RGBa"])
def test_alpha_is_composed_over_white(mode: str) -> None:
    rgba = np.random.default_rng(6).integers(0, 256, (8, 9, 4), dtype=np.uint8)
    rgba[0, :, 3], rgba[1, :, 3] = 0, 255
    source = Image.fromarray(rgba)
    if mode in ("LA", "La"):
        source = source.convert("LA").convert(mode)
        rgba = np.asarray(Image.fromarray(rgba).convert("LA").convert("RGBA"))
    elif mode == "PA":
        source = Image.merge("PA", (Image.fromarray(rgba[..., 0]), source.getchannel("A")))
        source.putpalette(bytes(v for v in range(256) for _ in range(3)))
        rgba[..., :3] = rgba[..., :1]
    else:
        source = source.convert(mode)
    expected = rgba[..., :3] * (rgba[..., 3:] / 255) + 255 - rgba[..., 3:]
    assert np.abs(pixels(source) - expected).max() <= 2  # premultiplied modes round twice
    if mode == "RGBA":
        assert np.abs(pixels(rgba) - expected).max() <= 0.51


def test_sixteen_bit_pictures_of_every_byte_order_become_8_bit() -> None:
    deep = np.array([[0, 257, 1000], [128, 129, 65535]], np.uint16)
    for mode, dtype in (("I;16", "<u2"), ("I;16L", "<u2"), ("I;16B", ">u2"), ("I;16N", "=u2")):
        picture = Image.frombytes(mode, (3, 2), deep.astype(dtype).tobytes())
        assert pixels(picture)[..., 1].tolist() == [[0, 1, 4], [0, 1, 255]]


@pytest.mark.parametrize(
    ("values", "white"),
    [
        ([0, 200, 255], 255),
        ([0, 256, 900], 1023),
        ([5, 2048, 4080], 4095),
        ([0, 9000, 16383], 16383),
        ([0, 20000], 65535),
    ],
)
def test_white_is_the_largest_value_of_the_smallest_depth(values: list[int], white: int) -> None:
    deep = np.array([values], np.uint16)
    for source in (
        deep,
        Image.fromarray(deep),
        *(saved(Image.fromarray(deep), kind) for kind in ("PNG", "TIFF", "PPM")),
    ):
        picture = decode(source)
        np.testing.assert_allclose(np.asarray(picture)[0, :, 0], np.array(values) * 255 / white, atol=0.51)
        about = picture.info.get("range", "")
        assert about == (
            "" if white == 65535 else f"The picture's values, up to {max(values)}, are shown with {white} as white."
        )


def tiff(array: np.ndarray, **options: Any) -> bytes:
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, array, **options)
    return buffer.getvalue()


def test_unusual_tiffs_are_read_exactly_or_refused() -> None:
    grey = np.add.outer(np.arange(24) * 3, np.arange(32) * 7) % 256
    rgb = np.stack([grey, grey[::-1], grey[:, ::-1]], axis=-1)
    deep = (rgb * 257).astype(np.uint16)
    for data, expected in (
        (tiff((65535 - grey * 257).astype(np.uint16), photometric="miniswhite"), grey),
        (tiff((1 - grey / 255).astype(np.float32), photometric="miniswhite"), grey),
        (tiff((grey.astype(np.uint64) * 16843009).astype(np.uint32)), grey),
        (tiff((grey * 16).astype(np.uint16), byteorder=">"), grey * 16 * 255 / 4095),
        (tiff(deep), rgb),
        (tiff(deep, byteorder=">", compression="zlib", predictor=True), rgb),
    ):
        assert np.abs(pixels(data) - (expected if expected.ndim == 3 else expected[..., None])).max() <= 0.51
    for data, words in (
        (tiff((grey - 128).astype(np.int8)), "signed numbers of 8 bits"),
        (tiff(deep.transpose(2, 0, 1).copy(), planarconfig="separate", photometric="rgb"), "in separate planes"),
        (tiff((rgb * 16).astype(np.uint16)), "16 bits that use fewer than 14"),
    ):
        with pytest.raises(ImageError, match=words):
            decode(data)


def test_dicom_is_named() -> None:
    with pytest.raises(ImageError, match=r"a medical image \(DICOM\)"):
        decode(bytes(128) + b"DICM" + bytes(64))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 7, 255], [0, 7, 255]),
        ([0, 257, 65535], [0, 1, 255]),
        ([-100, -60, 100], [0, 51, 255]),
        ([0, 20_000, 100_000], [0, 51, 255]),
        ([0.0, 0.2, 1.0], [0, 51, 255]),
        ([0.0, 51.0, 255.0], [0, 51, 255]),
        ([300.0, 340.0, 500.0], [75, 85, 125]),
        ([3e5, 3.4e5, 5e5], [0, 51, 255]),
        ([-2.0, -2.0, -2.0], [0, 0, 0]),
    ],
)
def test_integers_and_floats_in_files_become_8_bit(values: list[float], expected: list[int]) -> None:
    picture = Image.fromarray(np.array([values], np.float32 if isinstance(values[0], float) else np.int32))
    assert picture.mode in "IF"
    for source in (picture, saved(picture, "TIFF")):
        assert pixels(source)[0, :, 2].tolist() == expected


WIDE = icc_profile("RGB", 2.19921875, ADOBE_D50)


def test_color_profiles_are_converted_to_srgb() -> None:
    rgb = random_rgb(16, 16, seed=7)
    linear = (rgb / 255) ** 2.19921875
    expected = srgb_encode(linear @ ADOBE_D50 @ np.linalg.inv(SRGB_D50))  # (H, W, 3) rows of light @ (3, 3) primaries
    converted = pixels(png(rgb, icc_profile=WIDE))
    assert np.abs(converted - expected).max() <= 2
    assert np.abs(converted - rgb).max() > 20  # the profile has an effect
    opaque, clear = (np.dstack([rgb, np.full((16, 16), alpha, np.uint8)]) for alpha in (255, 0))
    assert (pixels(png(opaque, icc_profile=WIDE)) == converted).all()
    assert (pixels(png(clear, icc_profile=WIDE)) == 255).all()
    grey = np.arange(256, dtype=np.uint8).reshape(16, 16)
    converted = pixels(png(grey, icc_profile=icc_profile("GRAY", 1.8)))[..., 0]
    assert np.abs(converted - srgb_encode((grey / 255) ** 1.8)).max() <= 3
    assert np.abs(converted - grey).max() > 9
    # Most photographs have sRGB profiles: converting would change some pixels by one level.
    rgb = random_rgb(64, 64, seed=9)
    for profile in (icc_profile("RGB", None, SRGB_D50), b"no profile", WIDE[:200], icc_profile("GRAY", 1.0)):
        assert (pixels(png(rgb, icc_profile=profile)) == rgb).all()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "I", "F"])
def test_the_callers_image_is_never_changed(mode: str) -> None:
    source = Image.new(mode, (4, 3)) if mode in ("I;16", "LA") else Image.fromarray(random_rgb(3, 4)).convert(mode)
    source.info = {"exif": exif_of(6).tobytes(), "icc_profile": WIDE, "comment": b"mine"}
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
    array = np.zeros((3, 4, 3), np.uint8)
    picture = decode(array)
    array[:] = 9
    assert picture.getpixel((0, 0)) == (0, 0, 0)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"hello, I am a photograph\n", "got text in"),
        (bytes(range(200, 256)), "first bytes c8 c9"),
        (b"\0\0\0\x18ftypavif\0\0\0\0mif1avif" + bytes(99), "AVIF"),
        (b"\0\0\0\x18ftypisom\0\0\0\0isomavc1" + bytes(99), "video"),
        (b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>', "SVG.*JPEG or PNG"),
        (b"%PDF-1.7\n", "PDF"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "damaged PNG|cannot be decoded"),
        (b"\xff\xd8\xff\xe0", "damaged JPEG|cannot be decoded"),
        (saved(Image.new("RGB", (16, 16)), "ICO"), "icon"),
        (saved(Image.new("RGB", (16, 16)), "TGA"), "JPEG or PNG"),
        (saved(Image.new("RGB", (4, 4)), "EPS"), "PostScript"),
        (png_text_bomb(), "cannot be decoded"),  # a small file with a text of 64 MB
    ],
)
def test_other_files_raise_with_their_kind(
    data: bytes, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("a program was run"))
    (tmp_path / "photo.jpg").write_bytes(data)
    for source, name in ((data, "this file"), (tmp_path / "photo.jpg", "photo.jpg")):
        with pytest.raises(ImageError, match=words) as refusal:
            decode(source)
        assert str(refusal.value).startswith("Expected")
        assert name in str(refusal.value)
        assert str(tmp_path) not in str(refusal.value)
        assert not data or refusal.value.__cause__ is not None


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_truncated_files_raise(format: str) -> None:
    data = saved(Image.fromarray(random_rgb(64, 64)), format)
    for share in (0.1, 0.5, 0.9):
        with pytest.raises(ImageError, match=r"Expected a (complete )?photograph") as refusal:
            decode(data[: int(len(data) * share)])
        assert refusal.value.__cause__ is not None


def test_invalid_paths_and_empty_pictures_raise(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    closed = Image.new("RGB", (4, 4))
    closed.close()
    for path, words in (
        (tmp_path / "missing.png", "cannot be opened.*Check the path"),
        (tmp_path, "got the folder"),
        (tmp_path / "pipe", "pipe or a device"),
        ("/dev/zero", "pipe or a device"),
        ("https://example.org/cat.jpg", r"address: cat\.jpg\. Download"),
        ("data:image/png;base64," + "A" * 5000, "Download"),
        ("nul\0l.png", "cannot be opened"),
        ("x" * 100_000, r"x{40}\.\.\.x{17}, which cannot be opened"),
        ("folder/" * 50 + "\x1b[2Jphoto\n.png", r"got \?\[2Jphoto\?\.png, which cannot be opened"),
        ("", "cannot be opened"),
        (closed, "cannot be decoded"),
        (Image.new("RGB", (0, 5)), "0 x 5"),
        (Image.new("1", (8000, 8000)), r"64\.0 megapixels"),
    ):
        with pytest.raises(ImageError, match=words) as refusal:
            decode(path)
        assert len(str(refusal.value)) < 250
        assert str(tmp_path.parent) not in str(refusal.value)  # messages do not contain the server's folders


@pytest.mark.parametrize("side", [7072, 10_000, 20_000])  # above our limit, Pillow's warning, and Pillow's error
def test_decompression_bombs_raise_before_decoding(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("pixels were decoded"))
    limit, filters = Image.MAX_IMAGE_PIXELS, list(warnings.filters)
    size = f"got {side} x {side} "
    words = rf"at most (26|50) megapixels.*({size}|got far more in).*Make it smaller"
    for action in ("ignore", "error"):
        with warnings.catch_warnings():
            warnings.simplefilter(action, Image.DecompressionBombWarning)
            with pytest.raises(ImageError, match=words):
                decode(png_header_only(side, side))
    assert (Image.MAX_IMAGE_PIXELS, list(warnings.filters)) == (limit, filters)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with pytest.raises(ImageError, match=size):
        decode(png_header_only(side, side))


def test_size_limits_are_exact() -> None:
    for width, height in ((5200, 5001), (32_769, 400), (32_000, 319)):  # too many pixels, too long, too elongated
        with pytest.raises(ImageError, match=f"got {width} x {height}"):
            decode(png_header_only(width, height))
    for width, height in ((5200, 5000), (32_768, 400), (32_000, 320), (1024, 1)):
        with pytest.raises(ImageError, match="cannot be decoded"):  # the size is accepted; the missing pixels raise
            decode(png_header_only(width, height))


@pytest.mark.parametrize(
    ("subsampling", "width", "height", "scale"),
    [(0, 5200, 5000, 1), (0, 5200, 5004, 2), (0, 7000, 5500, 2), (0, 7000, 5600, None), (2, 10_000, 5000, 2)],
)
def test_large_jpegs_are_decoded_at_half_size(subsampling: int, width: int, height: int, scale: int | None) -> None:
    data = bytearray(saved(Image.new("RGB", (8, 8)), "JPEG", subsampling=subsampling))
    struct.pack_into(">HH", data, data.index(b"\xff\xc0") + 5, height, width)  # size in SOF0
    image = Image.open(io.BytesIO(data))
    if scale is None:
        with pytest.raises(ImageError, match=r"38 megapixels, got 39\.2"):
            check_file(image, "this file")
    else:
        check_file(image, "this file")
        assert image.size == (width // scale, height // scale)


# ---- HEIC, the format of many phones


def test_heic_is_decoded_upright_and_damaged_heic_raises() -> None:
    """The decoder applies the orientation itself, so it must not be applied twice."""
    photo = heic_photo()
    for orientation, expected in ((1, photo), (6, photo.transpose(Image.Transpose.ROTATE_270))):
        decoded = pixels(heic(photo, orientation))
        assert decoded.shape == np.asarray(expected).shape
        assert np.abs(decoded - np.asarray(expected)).max() <= 6
    begun = [b"\0\0\0\x18ftyp" + brand + b"\0\0\0\0mif1heic" + bytes(99) for brand in (b"heic", b"mif1")]
    for data in (heic(photo)[:-200], *begun):
        with pytest.raises(ImageError, match="complete"):
            decode(data)


def test_heic_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(heif, "find_spec", lambda _: None)
    (tmp_path / "photo.heic").write_bytes(heic(heic_photo()))
    with pytest.raises(ImageError, match=r"photo\.heic.*vitviz\[heic\]"):
        decode(tmp_path / "photo.heic")
