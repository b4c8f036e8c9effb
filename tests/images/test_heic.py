"""HEIC, as phones save photographs: decoded within bounds where pillow-heif is installed, named where it is not."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pillow_heif
import pytest
from image_files import random_rgb
from PIL import ExifTags, Image
from test_image_memory import measured

from vitviz.images import heif
from vitviz.images.decoding import ImageError, decode
from vitviz.server import uploads


def heic(image: Image.Image, orientation: int = 1, quality: int = -1) -> bytes:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    out = io.BytesIO()
    how = {"chroma": 444} if quality == -1 else {"chroma": 420, "enc_params": {"preset": "ultrafast"}}
    pillow_heif.from_pillow(image).save(out, quality=quality, exif=exif.tobytes(), **how)
    return out.getvalue()


def photo() -> Image.Image:
    """A picture whose corners differ, without the noise that a lossy format would change."""
    small = Image.fromarray(random_rgb(3, 5))
    return small.resize((100, 60), Image.Resampling.BICUBIC)


def test_a_photograph_of_a_phone_is_decoded() -> None:
    decoded = decode(heic(photo()))
    assert decoded.size == (100, 60)
    assert np.abs(np.asarray(decoded, int) - np.asarray(photo(), int)).max() <= 6


def test_it_stands_upright() -> None:
    """The decoder turns the picture, and says so: it must not be turned twice."""
    decoded = decode(heic(photo(), orientation=6))
    expected = photo().transpose(Image.Transpose.ROTATE_270)
    assert decoded.size == expected.size == (60, 100)
    assert np.abs(np.asarray(decoded, int) - np.asarray(expected, int)).max() <= 6


@pytest.mark.parametrize("brand", [b"heic", b"mif1"])
def test_a_damaged_one_is_refused(brand: bytes) -> None:
    for data in (heic(photo())[:-200], b"\0\0\0\x18ftyp" + brand + b"\0\0\0\0mif1heic" + bytes(99)):
        with pytest.raises(ImageError, match=r"Expected a complete photograph .* cannot be decoded"):
            decode(data)


def test_the_largest_that_phones_make_by_default(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(heic(Image.new("RGB", (5712, 4284), "teal"), quality=10))
    megabytes, said = measured(tmp_path / "large")
    assert said == [5712, 4284]
    assert megabytes < 300


def test_one_that_says_that_it_is_larger_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    data, size = heic(photo().resize((128, 64))), struct.Struct(">4sLLL")
    told = size.pack(b"ispe", 0, 128, 64)  # the box of ISO 23008-12, section 6.5.3
    assert data.count(told) == 1
    (tmp_path / "lying").write_bytes(data.replace(told, size.pack(b"ispe", 0, 8000, 6000)))
    megabytes, said = measured(tmp_path / "lying")
    assert "at most 25 megapixels" in str(said)
    assert megabytes < 60


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(heif, "find_spec", lambda _: None)
    (tmp_path / "photo.heic").write_bytes(heic(photo()))
    with pytest.raises(ImageError, match=r"HEIC photo .* in photo\.heic\. Run pip install 'vitviz\[heic\]'"):
        decode(tmp_path / "photo.heic")


def test_a_page_takes_it_as_an_upload_and_still_refuses_a_video() -> None:
    uploads.check_type(io.BytesIO(heic(photo())), "photo.heic", False)
    with pytest.raises(uploads.UploadError):
        uploads.check_type(io.BytesIO(b"\0\0\0\x18ftypisom\0\0\0\0isomavc1" + bytes(99)), "photo.heic", False)
