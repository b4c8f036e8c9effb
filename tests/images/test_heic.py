"""HEIC, as phones save photographs: decoded within bounds where pillow-heif is installed, named where it is not."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pillow_heif
import pytest
from image_files import random_rgb
from PIL import ExifTags, Image

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


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_photograph_of_a_phone_is_decoded_and_stands_upright(orientation: int) -> None:
    """The decoder turns the picture, and says so: it must not be turned twice."""
    decoded = decode(heic(photo(), orientation))
    expected = photo().transpose(Image.Transpose.ROTATE_270) if orientation == 6 else photo()
    assert decoded.size == expected.size
    assert np.abs(np.asarray(decoded, int) - np.asarray(expected, int)).max() <= 6


def test_a_damaged_one_is_refused_and_a_page_takes_a_whole_one() -> None:
    begun = [b"\0\0\0\x18ftyp" + brand + b"\0\0\0\0mif1heic" + bytes(99) for brand in (b"heic", b"mif1")]
    for data in (heic(photo())[:-200], *begun):
        with pytest.raises(ImageError, match=r"Expected a complete photograph .* cannot be decoded"):
            decode(data)
    uploads.check_type(io.BytesIO(heic(photo())), "photo.heic", False)
    with pytest.raises(uploads.UploadError):  # a video
        uploads.check_type(io.BytesIO(b"\0\0\0\x18ftypisom\0\0\0\0isomavc1" + bytes(99)), "photo.heic", False)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(heif, "find_spec", lambda _: None)
    (tmp_path / "photo.heic").write_bytes(heic(photo()))
    with pytest.raises(ImageError, match=r"HEIC photo .* in photo\.heic\. Run pip install 'vitviz\[heic\]'"):
        decode(tmp_path / "photo.heic")
