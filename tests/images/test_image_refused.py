"""vitviz.images.decoding: what is no photograph, or would be too large as one, is refused in words and in time."""

from __future__ import annotations

import io
import os
import warnings
from pathlib import Path

import pytest
from image_files import png_header_only, png_text_bomb, random_rgb, saved
from PIL import EpsImagePlugin, Image, ImageFile

from vitviz.images.decoding import ImageError, decode, decode_here

# ---- files that are refused


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
def test_bogus_files_are_refused_in_words(
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
def test_truncated_files_are_refused(format: str) -> None:
    data = saved(Image.fromarray(random_rgb(64, 64)), format)
    for part in (0.1, 0.5, 0.9):
        with pytest.raises(ImageError, match=r"Expected a (complete )?photograph") as refusal:
            decode(data[: int(len(data) * part)])
        assert refusal.value.__cause__ is not None


def test_paths_that_are_no_files_and_pictures_that_are_none(tmp_path: Path) -> None:
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
        assert str(tmp_path.parent) not in str(refusal.value)  # a visitor need not see the server's folders


# ---- bombs


@pytest.mark.parametrize("side", [7072, 10_000, 20_000])  # over our limit, over Pillow's warning, over Pillow's error
def test_bombs_are_refused_from_the_header(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_limit_is_met_exactly() -> None:
    for width, height in ((5200, 5001), (32_769, 400), (32_000, 319)):  # too many pixels, too long, too elongated
        with pytest.raises(ImageError, match=f"got {width} x {height}"):
            decode(png_header_only(width, height))
    for width, height in ((5200, 5000), (32_768, 400), (32_000, 320), (1024, 1)):
        with pytest.raises(ImageError, match="cannot be decoded"):  # the size passes; that pixels are missing does not
            decode(png_header_only(width, height))


def test_only_the_first_frame_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [Image.fromarray(random_rgb(8, 8, seed=i)) for i in range(50)]
    data = saved(frames[0], "TIFF", save_all=True, append_images=frames[1:])
    loads: list[int] = []
    plain = ImageFile.ImageFile.load
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: (loads.append(self.tell()), plain(self))[1])
    decode_here(io.BytesIO(data), "this file", ["TIFF"])
    assert set(loads) == {0}
