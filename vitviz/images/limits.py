"""Bounds on what a file may claim, checked before it is decoded, so that opening it takes at most 300 MB of memory.

Pillow allocates what a header asks for, and a few bytes can ask for gigabytes: by their sides, by tiles larger than the
picture, by metadata whose entries all point to the same bytes.
"""

import io
import math
import struct
from collections.abc import Iterator
from typing import IO, BinaryIO, NamedTuple

from PIL import Image, Jpeg2KImagePlugin, JpegImagePlugin

MAX_PIXELS = 50_000_000
"""The largest picture in pixels: beyond any phone camera's default."""
MAX_SIDE = 32_768
"""The longest side in pixels: tables for resizing take up to 48 bytes per pixel of a side."""
MAX_RATIO = 100
"""The longer side over the shorter one, for sides above 1,024 pixels."""
MEGAPIXELS = {
    "PNG": 26,
    "GIF": 26,
    "BMP": 26,
    "PPM": 26,
    "TIFF": 22,
    "WEBP": 16,
    "AVIF": 16,
    "HEIC": 25,
    "JPEG2000": 10,
}
"""Limits by Pillow's name of the format. Bytes per pixel at the peak, measured: PNG 9, HEIC 10, TIFF 12, WebP and
AVIF 16, JPEG 2000 24. JPEG has a rule of its own, see `_check_jpeg`."""

_JPEG_BYTES = 270_000_000
_JPEG_WHOLE = 26_000_000  # pixels; libjpeg decodes larger pictures at half their sides

_TILE_PIXELS = 2048 * 2048  # of a TIFF: a tile is decoded whole, whatever the size of the picture
_TILES = 2_000  # of a JPEG 2000: OpenJPEG takes 11 kB for each before it reads any

# Of TIFF and EXIF directories. Numbers become Python objects, 30 times as large as in the file.
_VALUE_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}  # by type
_BYTES_AND_TEXT = (1, 2, 7)
_INTEGERS = (3, 4, 13, 16)  # SHORT, LONG, IFD, LONG8
_MAX_ENTRIES = 4096
_MAX_NUMBERS = 2**19  # bytes: offsets and lengths of 65,000 strips
_MAX_DATA = 2**24  # bytes: profiles, XMP, previews
_DIRECTORIES = (34665, 34853, 40965)  # tags that point to further ones: Exif, GPS, Interoperability
_EXIF = b"Exif\0\0"


class ImageError(ValueError):
    """An image that cannot be read, or settings for one that make no sense."""


def check_size(width: int, height: int, name: str, megapixels: float = MAX_PIXELS / 1e6) -> None:
    """Refuse a picture without pixels, with more than `megapixels`, or with a side too long; `name` is for messages."""
    if width < 1 or height < 1:
        raise ImageError(f"Expected an image with pixels, got {width} x {height} in {name}. Choose another one.")
    if width * height > megapixels * 1e6:
        raise ImageError(
            f"Expected an image of at most {megapixels:g} megapixels, got {width} x {height} "
            f"({width * height / 1e6:.1f} megapixels) in {name}. Make it smaller and try again."
        )
    if max(width, height) > MAX_SIDE or max(width, height) > max(1024, MAX_RATIO * min(width, height)):
        raise ImageError(
            f"Expected sides of at most {MAX_SIDE:,} pixels and {MAX_RATIO} times each other, got {width} x {height} "
            f"in {name}. Cut out the part that matters."
        )


def check_metadata(file: BinaryIO, name: str) -> BinaryIO:
    """Check what Pillow reads as soon as it opens a file: the directories of a TIFF, the EXIF block of a JPEG.

    Pillow copies every value at once and joins EXIF blocks, so that 0.5 MB of file can ask for gigabytes. Return the
    file at its start; a JPEG without further EXIF blocks.

    Raises:
        ImageError: for more metadata than photographs have, or larger tiles.
    """
    file.seek(0)
    head = file.read(2)
    if head in (b"II", b"MM"):
        _check_directories(file, name)
    elif head == b"\xff\xd8":
        file.seek(0)
        before, mark, after = file.read().partition(_EXIF)
        _check_directories(io.BytesIO(after[: 2**16]), name)
        if _EXIF in after:
            file = io.BytesIO(before + mark + after.replace(_EXIF, b"------"))
    file.seek(0)
    return file


def check_file(image: Image.Image, name: str) -> None:
    """Check an opened file's size by its format, before its pixels are decoded. A large JPEG is set to half its sides.

    Raises:
        ImageError: if decoding would take more than 300 MB.
    """
    if isinstance(image, JpegImagePlugin.JpegImageFile):  # MPO, photographs of two lenses, among them
        _check_jpeg(image, name)
    else:
        check_size(*image.size, name, MEGAPIXELS[str(image.format)])
    if isinstance(image, Jpeg2KImagePlugin.Jpeg2KImageFile) and image.fp is not None:
        _check_jpeg2000(image.fp, name)


class Entry(NamedTuple):
    """One entry of a TIFF or EXIF directory: its type and how many values it has; the value if it is one integer."""

    tag: int
    kind: int
    values: int
    number: int | None


def entries(file: BinaryIO, offset: int | None = None) -> Iterator[Entry]:
    """Yield the entries of a directory of TIFF (revision 6.0, section 2; or BigTIFF) or EXIF, without their values.

    Args:
        file: read from its start. Where it is damaged, the entries end.
        offset: where the directory begins; by default the first one.
    """
    file.seek(0)
    head = file.read(16)
    order, big = ">" if head[:2] == b"MM" else "<", head[2:3] == b"\x2b"
    layout = struct.Struct(order + ("HHQ8s" if big else "HHL4s"))
    try:
        if offset is None:
            (offset,) = struct.unpack_from(order + ("Q" if big else "L"), head, 8 if big else 4)
        file.seek(offset)
        (count,) = struct.unpack(order + ("Q" if big else "H"), file.read(8 if big else 2))
        for _ in range(count):
            tag, kind, values, value = layout.unpack(file.read(layout.size))
            width = _VALUE_BYTES[kind] if kind in _INTEGERS and values == 1 else 0
            number = int.from_bytes(value[:width], "big" if order == ">" else "little") if width else None
            yield Entry(tag, kind, values, number)
    except (struct.error, OSError, OverflowError):
        return


def _check_directories(file: BinaryIO, name: str) -> None:
    pending: list[int | None] = [None]
    numbers = data = total = 0
    tile = {322: 0, 323: 0}  # width and height
    for offset in pending:
        for entry in entries(file, offset):
            total += 1
            size = entry.values * _VALUE_BYTES.get(entry.kind, 0)
            if entry.kind in _BYTES_AND_TEXT:
                data += size
            else:
                numbers += size
            if entry.tag in tile:
                tile[entry.tag] = entry.number or 0
            if entry.tag in _DIRECTORIES and entry.number is not None:
                pending.append(entry.number)
            if total > _MAX_ENTRIES or numbers > _MAX_NUMBERS or data > _MAX_DATA:
                raise ImageError(
                    f"Expected metadata of at most {_MAX_DATA // 2**20} MB, got more in {name}. "
                    "Save it without layers and metadata, or as JPEG or PNG."
                )
    if tile[322] * tile[323] > _TILE_PIXELS:
        raise ImageError(
            f"Expected a TIFF with tiles of at most 2048 x 2048 pixels, got {tile[322]} x {tile[323]} in {name}. "
            "Save it as JPEG or PNG instead."
        )


def _check_jpeg(image: JpegImagePlugin.JpegImageFile, name: str) -> None:
    """Check the memory of progressive JPEG, whose coefficients (2 bytes per sample) are held beside the picture."""
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
    most = int(_JPEG_BYTES / (2 * samples + 1) / 1e6)
    raise ImageError(
        f"Expected a JPEG with such colours of at most {most} megapixels, got {pixels / 1e6:.1f} in {name}. "
        "Make it smaller and try again."
    )


def _check_jpeg2000(file: IO[bytes], name: str) -> None:
    """Check the size in the codestream, which need not be that of the file's header, and the number of tiles."""
    file.seek(0)
    if file.read(4) != b"\xff\x4f\xff\x51":  # a file of boxes (ISO 15444-1, annex I): the codestream is in jp2c
        file.seek(0)
        while len(box := file.read(8)) == 8 and box[4:] != b"jp2c":
            length = int.from_bytes(box[:4], "big")
            length = int.from_bytes(file.read(8), "big") - 8 if length == 1 else length
            file.seek(max(0, length - 8), 1)
        file.read(4)
    header = file.read(38)  # SIZ (annex A.5.1)
    if len(header) < 38:
        return  # no picture: the decoder says so
    right, bottom, left, top, across, down, tile_left, tile_top, channels = struct.unpack_from(">8IH", header, 4)
    check_size(right - left, bottom - top, name, MEGAPIXELS["JPEG2000"])
    tiles = math.ceil((right - tile_left) / max(1, across)) * math.ceil((bottom - tile_top) / max(1, down))
    if tiles > _TILES or channels > 4:
        raise ImageError(
            f"Expected a JPEG 2000 of at most {_TILES:,} tiles and 4 channels, got {tiles:,} and {channels} in {name}. "
            "Save it as JPEG or PNG instead."
        )
