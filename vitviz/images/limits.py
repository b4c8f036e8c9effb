"""Check the size of image files before decoding, so that no process takes more than 300 MB.

Pillow allocates the memory that a header requests, and a few bytes can request gigabytes. What a file holds besides its
pixels is not checked: `vitviz.images.worker` limits the memory and time of the process that decodes visitors' files.
TIFF, JPEG 2000, AVIF and HEIC are decoded only there. A HEIC photograph of 24 megapixels takes 200 MB there, and then
170 MB in the calling process: 3 bytes per received pixel and 4 in Pillow's picture. The two peaks do not coincide.
"""

import io
import re
from typing import BinaryIO, Literal

from PIL import Image, Jpeg2KImagePlugin, JpegImagePlugin, TiffImagePlugin, WebPImagePlugin  # noqa: F401

from vitviz.errors import VitvizError
from vitviz.phrases import Phrase

MAX_PIXELS = 50_000_000
"""Maximum pixels of a picture: beyond any phone camera's default."""
MAX_SIDE = 32_768
"""Maximum side in pixels: resizing tables take up to 48 bytes per pixel of a side."""
MAX_RATIO = 100
"""Maximum ratio of the sides, for sides above 1,024 pixels."""
MEGAPIXELS = {
    "PNG": 26,
    "GIF": 26,
    "BMP": 26,
    "PPM": 26,
    "TIFF": 22,
    "WEBP": 16,
    "AVIF": 16,
    "HEIF": 25,
    "JPEG2000": 10,
}
"""Limits by Pillow's name of the format. Bytes per pixel at the peak, measured: PNG 9, HEIC 10, TIFF 12, WebP and
AVIF 16, JPEG 2000 24. For JPEG, see `_check_jpeg`."""

_JPEG_BYTES = 270_000_000
_JPEG_WHOLE = 26_000_000  # pixels; libjpeg decodes larger pictures at half width and height

_EXIF_SEGMENT = re.compile(rb"\xff\xe1..(?=Exif\0\0)", re.DOTALL)

Image.preinit()
# Pillow's tests of a file's first bytes; the other plugins are imported above.
_ACCEPTS = {name: Image.OPEN[name][1] for name in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "JPEG2000", "PPM")}


class ImageError(VitvizError):
    """Raised for images that cannot be read, and for invalid settings."""


def check_size(width: int, height: int, name: str, megapixels: float = MAX_PIXELS / 1e6) -> None:
    """Raise an error for pictures without pixels, above `megapixels`, or with a side too long."""
    if width < 1 or height < 1:
        text = "Expected an image with pixels, got {0} in {1}. Choose another one."
        raise ImageError(Phrase("photograph-without-pixels", text, f"{width} x {height}", name))
    if width * height > megapixels * 1e6:
        raise ImageError(
            Phrase(
                "photograph-too-large",
                "Expected an image of at most {0} megapixels, got {1} ({2} megapixels) in {3}. Make it smaller and try "
                "again.",
                *(f"{megapixels:g}", f"{width} x {height}", f"{width * height / 1e6:.1f}", name),
            )
        )
    if max(width, height) > MAX_SIDE or max(width, height) > max(1024, MAX_RATIO * min(width, height)):
        raise ImageError(
            Phrase(
                "photograph-too-long",
                "Expected sides of at most {0} pixels and an aspect ratio of at most {1}, got {2} in {3}. Crop it to "
                "the part that matters.",
                *(f"{MAX_SIDE:,}", MAX_RATIO, f"{width} x {height}", name),
            )
        )


Kind = Literal["AVIF", "HEIC"]

_BRANDS: dict[Kind, tuple[bytes, ...]] = {
    "AVIF": (b"avif", b"avis"),
    "HEIC": (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"),
}


def kind_of(head: bytes) -> Kind | None:
    """Return the kind of a file starting with `head`, from its brands (ISO 14496-12, section 4.3)."""
    if head[4:8] != b"ftyp":
        return None
    listed = head[8 : min(int.from_bytes(head[:4], "big"), 256)]
    brands = {listed[at : at + 4] for at in range(0, len(listed), 4)}
    return next((kind for kind, known in _BRANDS.items() if brands.intersection(known)), None)


def format_of(head: bytes) -> str | None:
    """Return Pillow's format name of a file starting with `head`; `None` for unsupported formats."""
    if (kind := kind_of(head)) is not None:
        return "HEIF" if kind == "HEIC" else kind
    return next((name for name, accept in _ACCEPTS.items() if accept and accept(head[:16])), None)


def prepared(file: BinaryIO, name: str) -> BinaryIO:
    """Return a file at its start, for JPEG with its first EXIF segment only.

    Pillow joins EXIF segments, and then copies the values of their entries, which may all point to the same bytes: 0.5
    MB of segments would take a gigabyte. One segment has at most 64 kB. On opening a WebP, it allocates the picture.

    Raises:
        ImageError: for a WebP that is too large.
    """
    file.seek(0)
    data = file.read()
    file.seek(0)
    kind = format_of(data[:512])
    if kind == "WEBP" and (size := _webp_size(data)) is not None and all(size):
        check_size(*size, name, MEGAPIXELS["WEBP"])
    more = [segment.end() for segment in _EXIF_SEGMENT.finditer(data)][1:] if kind == "JPEG" else []
    if not more:
        return file
    changed = bytearray(data)
    for place in more:
        changed[place : place + 4] = b"----"
    return io.BytesIO(changed)


def _webp_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height of a WebP canvas or single frame (RFC 9649, section 2)."""
    if data[12:16] == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if data[12:16] == b"VP8L":
        sides = int.from_bytes(data[21:25], "little")  # 14 bits each
        return 1 + (sides & 0x3FFF), 1 + (sides >> 14 & 0x3FFF)
    if data[12:16] == b"VP8 ":
        return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
    return None


def check_file(image: Image.Image, name: str) -> None:
    """Check an opened file's size by format before decoding; reduce a large JPEG to half its sides.

    Raises:
        ImageError: if decoding could take more than 300 MB.
    """
    if isinstance(image, JpegImagePlugin.JpegImageFile):  # includes MPO (two-lens photographs)
        _check_jpeg(image, name)
    else:
        check_size(*image.size, name, MEGAPIXELS[str(image.format)])


def _check_jpeg(image: JpegImagePlugin.JpegImageFile, name: str) -> None:
    """Check the memory of progressive JPEG, which also stores coefficients (2 bytes per sample)."""
    check_size(*image.size, name)
    pixels = image.width * image.height
    largest = max((across * down for _, across, down, _ in image.layer), default=1)
    samples = sum(across * down / largest for _, across, down, _ in image.layer)  # per pixel
    for scale in (1, 2):
        decoded = pixels / scale**2
        if decoded <= _JPEG_WHOLE and 2 * samples * pixels + 4 * decoded <= _JPEG_BYTES:
            if scale > 1:
                image.draft(None, (image.width // scale, image.height // scale))
            return
    megapixels = int(_JPEG_BYTES / (2 * samples + 1) / 1e6)
    raise ImageError(
        f"Expected a JPEG with this color sampling of at most {megapixels} megapixels, got {pixels / 1e6:.1f} in "
        f"{name}. Make it smaller and try again."
    )
