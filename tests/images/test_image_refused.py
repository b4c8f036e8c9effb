"""vitviz.images.decoding: what is no photograph, or would be too large as one, is refused in words and in time."""

from __future__ import annotations

import os
import warnings
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from image_files import (
    png_header_only,
    png_text_bomb,
    random_rgb,
    saved,
)
from PIL import EpsImagePlugin, Image, ImageFile

from vitviz.images import limits
from vitviz.images.decoding import ImageError, decode

# ---- files that are refused


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"hello, I am a photograph\n", "got text in"),
        ("Grüße".encode() * 9, "an unknown format"),
        (bytes(range(200, 256)), "first bytes c8 c9"),
        (b"\0\0\0\x18ftypavif\0\0\0\0mif1avif" + bytes(99), "AVIF"),
        (b"\0\0\0\x18ftypisom\0\0\0\0isomavc1" + bytes(99), "video"),
        (b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>', "SVG.*JPEG or PNG"),
        (b"%PDF-1.7\n", "PDF"),
        (b"8BPS" + bytes(40), "Photoshop"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "damaged PNG|cannot be decoded"),
        (b"\xff\xd8\xff\xe0", "damaged JPEG|cannot be decoded"),
        (saved(Image.new("RGB", (16, 16)), "ICO"), "icon"),
        (saved(Image.new("RGB", (16, 16)), "TGA"), "JPEG or PNG"),
    ],
)
def test_bogus_files_are_refused_in_words(data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(data)
    for source, name in ((data, "this file"), (tmp_path / "photo.jpg", "photo.jpg")):
        with pytest.raises(ImageError, match=words) as refusal:
            decode(source)
        assert str(refusal.value).startswith("Expected")
        assert name in str(refusal.value)
        assert str(tmp_path) not in str(refusal.value)
        assert not data or refusal.value.__cause__ is not None


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_truncated_files_are_refused(format: str) -> None:
    data = saved(Image.fromarray(random_rgb(64, 64)), format)
    for part in (0.1, 0.5, 0.9):
        with pytest.raises(ImageError, match=r"Expected a (complete )?photograph") as refusal:
            decode(data[: int(len(data) * part)])
        assert refusal.value.__cause__ is not None


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
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
    ):
        with pytest.raises(ImageError, match=words) as refusal:
            decode(path)
        assert len(str(refusal.value)) < 250
        assert str(tmp_path.parent) not in str(refusal.value)  # a visitor need not see the server's folders


def test_postscript_never_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def ghostscript(*_: object, **__: object) -> None:
        raise AssertionError("a decoder that runs programs was reached")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", ghostscript)
    data = saved(Image.new("RGB", (4, 4)), "EPS")
    with pytest.raises(ImageError, match="PostScript"):
        decode(data)


def test_closed_pil_image_is_refused_in_words() -> None:
    source = Image.new("RGB", (4, 4))
    source.close()
    with pytest.raises(ImageError, match="cannot be decoded"):
        decode(source)


def test_empty_pil_image_is_refused() -> None:
    with pytest.raises(ImageError, match="0 x 5"):
        decode(Image.new("RGB", (0, 5)))


# ---- bombs


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [7072, 10_000, 20_000])  # over our limit, over Pillow's warning, over Pillow's error
def test_bombs_are_refused_from_the_header(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_: object) -> None:
        raise AssertionError("pixels were decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    limit, filters = Image.MAX_IMAGE_PIXELS, list(warnings.filters)
    with pytest.raises(ImageError, match=r"at most (26|50) megapixels.*Make it smaller"):
        decode(png_header_only(side, side))
    assert (Image.MAX_IMAGE_PIXELS, list(warnings.filters)) == (limit, filters)


def test_bombs_are_refused_where_warnings_are_errors_or_pillow_is_unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ImageError, match="at most 50 megapixels"):
            decode(png_header_only(10_000, 10_000))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with pytest.raises(ImageError, match=r"20000 x 20000 \(400\.0 megapixels"):
        decode(png_header_only(20_000, 20_000))


def test_the_limit_is_met_exactly() -> None:
    for width, height in ((5200, 5001), (32_769, 400), (32_000, 319)):  # too many pixels, too long, too elongated
        with pytest.raises(ImageError, match=f"got {width} x {height}"):
            decode(png_header_only(width, height))
    for width, height in ((5200, 5000), (32_768, 400), (32_000, 320), (1024, 1)):
        with pytest.raises(ImageError, match="cannot be decoded"):  # the size passes; that pixels are missing does not
            decode(png_header_only(width, height))


def test_large_pil_images_are_refused_without_loading() -> None:
    with pytest.raises(ImageError, match=r"64\.0 megapixels"):
        decode(Image.new("1", (8000, 8000)))


def test_text_bombs_are_refused() -> None:
    data = png_text_bomb()
    assert len(data) < 100_000
    with pytest.raises(ImageError, match="cannot be decoded"):
        decode(data)


def test_only_the_first_frame_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [Image.fromarray(random_rgb(8, 8, seed=i)) for i in range(50)]
    data = saved(frames[0], "TIFF", save_all=True, append_images=frames[1:])
    loads: list[int] = []
    plain = ImageFile.ImageFile.load
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: (loads.append(self.tell()), plain(self))[1])
    decode(data)
    assert set(loads) == {0}


SAMPLES = [
    saved(Image.fromarray(random_rgb(9, 11)).convert(mode), kind)
    for kind, mode in (
        ("JPEG", "RGB"), ("JPEG", "CMYK"), ("PNG", "RGBA"), ("PNG", "P"), ("GIF", "P"), ("WEBP", "RGBA"),
        ("BMP", "RGB"),
        ("TIFF", "RGB"), ("TIFF", "I"), ("JPEG2000", "RGB"), ("PPM", "RGB"), ("AVIF", "RGB"),
    )
]  # fmt: skip


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_give_a_picture_or_a_refusal(data: st.DataObject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever bytes are broken: an RGB picture or an ImageError, never another exception."""
    monkeypatch.setattr(
        limits, "MEGAPIXELS", dict.fromkeys(limits.MEGAPIXELS, 1)
    )  # keeps those that claim to be large cheap
    broken = bytearray(data.draw(st.sampled_from(SAMPLES)))
    for _ in range(data.draw(st.integers(1, 6))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with suppress(ImageError):
            assert decode(bytes(broken[: data.draw(st.integers(1, len(broken)))])).mode == "RGB"
