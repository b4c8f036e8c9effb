"""Check limits of image files before decoding, so that no process takes more than 300 MB.

Pillow allocates the memory that a header requests, and a few bytes can request gigabytes, through large sides or
metadata entries that all point to the same bytes. TIFF, JPEG 2000, AVIF and HEIC are decoded only in a worker process
with limits of memory and time (`vitviz.images.worker`), so only their size is checked here. A HEIC photograph of 24
megapixels takes 200 MB there, and then 170 MB in the calling process: 3 bytes per received pixel and 4 in Pillow's
picture. The two peaks do not coincide.
"""

import io
import re
import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import BinaryIO, Literal, NamedTuple

from PIL import Image, JpegImagePlugin

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

# EXIF directories: numbers become Python objects, which take 30 times as much memory as the file.
_VALUE_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}  # by type
_BYTES_AND_TEXT = (1, 2, 7)
_INTEGERS = (3, 4, 13)  # SHORT, LONG, IFD
_MAX_ENTRIES = 4096
_MAX_NUMBERS = 2**19  # bytes
_MAX_DATA = 2**24  # bytes: profiles, XMP, previews
_DIRECTORIES = (34665, 34853, 40965)  # tags that point to further ones: Exif, GPS, Interoperability
_EXIF = b"Exif\0\0"

# Limits for parts before the picture, in all formats: decoders record each part, and some join parts one by one.
_MAX_PARTS = 4096
_MAX_SCANS = 64  # JPEG: each scan covers the whole picture; encoders write about ten
_MAX_GIF_DATA = 2**18  # bytes of extensions: Pillow joins comments in quadratic time
_MAX_PPM_HEADER = 2**16  # bytes: Pillow reads comments byte by byte
_MAX_PPM_TEXT = 2**23  # bytes of pixels written as decimal numbers
_LEAST_IDAT = 1024  # bytes; larger pixel chunks of a PNG do not count as parts

_SCAN_END = re.compile(rb"\xff+[\x01-\xcf\xd8-\xfe]")  # a marker that is neither a stuffed byte nor a restart
_NO_LENGTH = (0x00, 0x01, *range(0xD0, 0xDA), 0xFF)  # no marker, or one without a segment (ISO 10918-1, table B.1)
_SOS, _EOI, _APP1 = 0xDA, 0xD9, 0xE1
_PPM_HEADER = re.compile(rb"P[0-6fy](?:\s*(?:#[^\r\n]*[\r\n]\s*)*[\d.+-]+){2}")

_SIGNATURES = (
    (rb"\xff\xd8\xff", "JPEG"),
    (rb"\x89PNG\r\n\x1a\n", "PNG"),
    (rb"RIFF....WEBP", "WEBP"),
    (rb"GIF8[79]a", "GIF"),
    (rb"BM", "BMP"),
    (rb"II\*\0|MM\0\*|MM\*\0|II\0\*|MM\0\+|II\+\0", "TIFF"),
    (rb"\xff\x4f\xff\x51|\0\0\0\x0cjP  \r\n\x87\n", "JPEG2000"),
    (rb"P[0-6fy]", "PPM"),
)
_FORMATS = tuple((re.compile(pattern, re.DOTALL), name) for pattern, name in _SIGNATURES)


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
    return next((name for pattern, name in _FORMATS if pattern.match(head)), None)


def check_metadata(file: BinaryIO, name: str) -> BinaryIO:
    """Check the parts of a file other than pixels, which decoders read on opening.

    Pillow copies and joins values, so a file of 0.5 MB can request gigabytes, and libjpeg processes the whole picture
    for each scan. Return the file at its start, for JPEG with a single EXIF block.

    Raises:
        ImageError: for too many or too large parts.
    """
    file.seek(0)
    data = file.read()
    kind = format_of(data[:512])
    if kind in _PARTS:
        _check_parts(_PARTS[kind](data), name, _MAX_GIF_DATA if kind == "GIF" else _MAX_DATA)
    if kind == "JPEG":
        file = _with_one_exif(data, name) or file
    elif kind == "WEBP":
        canvas = _webp_size(data)
        if canvas is not None and all(canvas):  # Pillow allocates the canvas on opening
            check_size(*canvas, name, MEGAPIXELS["WEBP"])
    elif kind == "PPM":
        _check_ppm(data, name)
    file.seek(0)
    return file


def _too_much(name: str, what: str = "metadata") -> ImageError:
    return ImageError(
        f"Expected the usual amount of {what}, got far more in {name}. "
        "Save it without layers and metadata, or as JPEG or PNG."
    )


def _check_parts(sizes: Iterable[int], name: str, most: int) -> None:
    """Check the number of parts, and the sum of their sizes in bytes."""
    listed = list(islice(sizes, _MAX_PARTS + 1))
    if len(listed) > _MAX_PARTS or sum(listed) > most:
        raise _too_much(name)


class _Segment(NamedTuple):
    """Segment of a JPEG: marker (0 for other bytes), offset of its content, and bytes of metadata."""

    marker: int
    start: int
    size: int = 0


def _jpeg_segments(data: bytes) -> Iterator[_Segment]:
    """Yield the segments of the first picture, and each byte outside any segment."""
    at = 2
    while at + 4 <= len(data):
        marker = data[at + 1] if data[at] == 0xFF else 0xFF
        if marker == _EOI:
            return
        if marker in _NO_LENGTH:
            at += 1 if marker == 0xFF else 2
            yield _Segment(0, at)
            continue
        start, length = at + 4, 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        at += length
        if marker == _SOS:
            end = _SCAN_END.search(data, at)
            at = len(data) if end is None else end.end() - 2
        yield _Segment(marker, start, 0 if marker == _SOS else length)


def _with_one_exif(data: bytes, name: str) -> BinaryIO | None:
    """Check segments and scans of a JPEG; return it with only its first EXIF block if it has several."""
    segments = list(islice(_jpeg_segments(data), _MAX_PARTS + 1))
    _check_parts((segment.size for segment in segments), name, _MAX_DATA)
    if sum(segment.marker == _SOS for segment in segments) > _MAX_SCANS:
        raise _too_much(name, "progressive JPEG scans")
    blocks = [start for marker, start, _ in segments if marker == _APP1 and data.startswith(_EXIF, start)]
    if blocks:
        _check_exif(data[blocks[0] + len(_EXIF) : blocks[0] + 2**16], name)
    if len(blocks) < 2:
        return None
    changed = bytearray(data)
    for block in blocks[1:]:
        changed[block : block + len(_EXIF)] = b"------"
    return io.BytesIO(changed)


def _png_chunks(data: bytes) -> Iterator[int]:
    """Yield chunk sizes; small pixel chunks count as 0, and large pixel chunks are left out."""
    at, kind = 8, b""
    while at + 8 <= len(data) and kind != b"IEND":
        length, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        if kind not in (b"IDAT", b"fdAT"):
            yield length
        elif length < _LEAST_IDAT:
            yield 0
        at += 12 + length


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


def _webp_chunks(data: bytes) -> Iterator[int]:
    """Yield the size of each chunk, 0 for pixels."""
    at, end = 12, min(len(data), 8 + int.from_bytes(data[4:8], "little"))
    while at + 8 <= end:
        length, kind = int.from_bytes(data[at + 4 : at + 8], "little"), data[at : at + 4]
        yield 0 if kind in (b"VP8 ", b"VP8L", b"ALPH", b"ANMF") else length
        at += 8 + length + length % 2


def _gif_blocks(data: bytes) -> Iterator[int]:
    """Yield the sizes of the extensions' blocks before the first picture (GIF89a, sections 18 to 26)."""
    at = 13
    if len(data) > 10 and data[10] & 0x80:  # a global colour table
        at += 3 * 2 ** ((data[10] & 7) + 1)
    while at + 2 < len(data) and data[at : at + 1] != b",":
        if data[at] == 0x21:
            at += 2
            while at < len(data) and data[at]:
                yield data[at]
                at += 1 + data[at]
        at += 1  # Pillow skips bytes that start neither a picture nor an extension
        yield 0


def _check_ppm(data: bytes, name: str) -> None:
    if not _PPM_HEADER.match(data[:_MAX_PPM_HEADER]):
        raise _too_much(name, "header text")
    if data[1:2] in b"123" and len(data) > _MAX_PPM_TEXT:
        raise ImageError(
            f"Expected a PPM as text of at most {_MAX_PPM_TEXT // 2**20} MB, got {len(data) // 2**20} MB in "
            f"{name}. Save it as PNG."
        )


_PARTS = {"PNG": _png_chunks, "WEBP": _webp_chunks, "GIF": _gif_blocks}
"""Functions that yield the sizes in bytes of a file's parts without pixels, by format."""


def check_file(image: Image.Image, name: str) -> None:
    """Check an opened file's size by format before decoding; reduce a large JPEG to half its sides.

    Raises:
        ImageError: if decoding could take more than 300 MB.
    """
    if isinstance(image, JpegImagePlugin.JpegImageFile):  # includes MPO (two-lens photographs)
        _check_jpeg(image, name)
    else:
        check_size(*image.size, name, MEGAPIXELS[str(image.format)])


class DirectoryEntry(NamedTuple):
    """Entry of an EXIF directory: type and number of values, and the value of a single integer."""

    tag: int
    kind: int
    values: int
    number: int | None


def entries(exif: bytes, offset: int | None = None) -> Iterator[DirectoryEntry]:
    """Yield the entries of an EXIF directory (TIFF revision 6.0, section 2), without values.

    Args:
        exif: the block without its name; reading stops at damaged data.
        offset: offset of the directory; by default the first one.
    """
    big = exif[:2] == b"MM"
    order = ">" if big else "<"
    try:
        if offset is None:
            (offset,) = struct.unpack_from(order + "L", exif, 4)
        (count,) = struct.unpack_from(order + "H", exif, offset)
        for index in range(count):
            tag, kind, values, value = struct.unpack_from(order + "HHL4s", exif, offset + 2 + 12 * index)
            width = _VALUE_BYTES[kind] if kind in _INTEGERS and values == 1 else 0
            number = int.from_bytes(value[:width], "big" if big else "little")
            yield DirectoryEntry(tag, kind, values, number if width else None)
    except struct.error:
        return


def _check_exif(exif: bytes, name: str) -> None:
    pending: list[int | None] = [None]
    numbers = data = total = 0
    for offset in pending:
        for entry in entries(exif, offset):
            total += 1
            size = entry.values * _VALUE_BYTES.get(entry.kind, 0)
            if entry.kind in _BYTES_AND_TEXT:
                data += size
            else:
                numbers += size
            if entry.tag in _DIRECTORIES and entry.number is not None:
                pending.append(entry.number)
            if total > _MAX_ENTRIES or numbers > _MAX_NUMBERS or data > _MAX_DATA:
                raise _too_much(name)


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
