"""Bounds on what a file may claim, checked before it is decoded, so that no process takes over 300 MB to open it.

TIFF, JPEG 2000, AVIF and HEIC are decoded in a process of their own (`vitviz.images.worker`). A HEIC photograph of 24
megapixels takes 200 MB there, and then 170 MB in the process that asked for it: 3 bytes per pixel as they arrive and 4
in Pillow's picture. The two peaks do not coincide.

Pillow allocates what a header asks for, and a few bytes can ask for gigabytes: by their sides, by tiles larger than the
picture, by metadata whose entries all point to the same bytes.
"""

import io
import math
import re
import struct
from collections.abc import Callable, Iterator
from typing import IO, BinaryIO, Literal, NamedTuple

from PIL import Image, Jpeg2KImagePlugin, JpegImagePlugin

from vitviz.errors import VitvizError

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
    "HEIF": 25,
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

# Of all formats, before the picture itself. Decoders keep a record of each part, and some join parts one by one.
_MAX_PARTS = 4096
_MAX_SCANS = 64  # of a JPEG: each goes over the whole picture; encoders write about ten
_MAX_GIF_DATA = 2**18  # bytes of extensions: Pillow joins comments in quadratic time
_MAX_PPM_HEADER = 2**16  # bytes: Pillow reads comments byte by byte
_MAX_PPM_TEXT = 2**23  # bytes: pixels that are written as decimal numbers
_LEAST_IDAT = 1024  # bytes of a PNG for each of its chunks of pixels, beyond the first ones

_SCAN_END = re.compile(rb"\xff+[\x01-\xcf\xd8-\xfe]")  # a marker that is neither a stuffed byte nor a restart
_NO_LENGTH = (0x01, *range(0xD0, 0xDA))  # markers without a segment (ISO 10918-1, table B.1)
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


Kind = Literal["AVIF", "HEIC"]

_BRANDS: dict[Kind, tuple[bytes, ...]] = {
    "AVIF": (b"avif", b"avis"),
    "HEIC": (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"),
}


def kind_of(head: bytes) -> Kind | None:
    """Return what a file that begins with `head` calls itself (its brands, ISO 14496-12, section 4.3)."""
    if head[4:8] != b"ftyp":
        return None
    listed = head[8 : min(int.from_bytes(head[:4], "big"), 256)]
    brands = {listed[at : at + 4] for at in range(0, len(listed), 4)}
    return next((kind for kind, known in _BRANDS.items() if brands.intersection(known)), None)


def format_of(head: bytes) -> str | None:
    """Return Pillow's name of the format of a file that begins with `head`, by that alone; `None` for none of ours."""
    if (kind := kind_of(head)) is not None:
        return "HEIF" if kind == "HEIC" else kind
    return next((name for pattern, name in _FORMATS if pattern.match(head)), None)


def check_metadata(file: BinaryIO, name: str) -> BinaryIO:
    """Check what a decoder reads as soon as it opens a file: its parts before, beside and between the pixels.

    Pillow copies every value at once and joins blocks, so that 0.5 MB of file can ask for gigabytes, and libjpeg goes
    over the whole picture for each scan. Return the file at its start; a JPEG without further EXIF blocks.

    Raises:
        ImageError: for more parts than photographs have, or larger ones.
    """
    file.seek(0)
    data = file.read()
    check = _CHECKS.get(format_of(data[:512]) or "")
    changed = None if check is None else check(data, name)
    file = file if changed is None else io.BytesIO(changed)
    file.seek(0)
    return file


def _too_much(name: str, what: str = "metadata") -> ImageError:
    return ImageError(
        f"Expected {what} as photographs have, got far more in {name}. "
        "Save it without layers and metadata, or as JPEG or PNG."
    )


def _check_tiff(data: bytes, name: str) -> None:
    _check_directories(io.BytesIO(data), name)


def _check_jpeg_segments(data: bytes, name: str) -> bytes | None:
    """Check the segments and scans up to the end of the first picture; return the file with one EXIF block."""
    at, parts, size, scans = 2, 0, 0, 0
    blocks: list[int] = []  # where EXIF blocks begin
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            at += 1
            parts += 1
        elif data[at + 1] == 0xFF or data[at + 1] == 0 or data[at + 1] in _NO_LENGTH:
            if data[at + 1] == _EOI:
                break
            at += 1 if data[at + 1] == 0xFF else 2
            parts += 1
        else:
            length = 2 + int.from_bytes(data[at + 2 : at + 4], "big")
            scans += data[at + 1] == _SOS
            if data[at + 1] == _SOS:
                end = _SCAN_END.search(data, at + length)
                at = len(data) if end is None else end.end() - 2
            else:
                if data[at + 1] == _APP1 and data.startswith(_EXIF, at + 4):
                    blocks.append(at + 4)
                size += length
                at += length
            parts += 1
        if parts > _MAX_PARTS or size > _MAX_DATA:
            raise _too_much(name)
        if scans > _MAX_SCANS:
            raise _too_much(name, "scans of a progressive JPEG")
    if not blocks:
        return None
    _check_directories(io.BytesIO(data[blocks[0] + len(_EXIF) : blocks[0] + 2**16]), name)
    if len(blocks) == 1:
        return None
    changed = bytearray(data)
    for block in blocks[1:]:
        changed[block : block + len(_EXIF)] = b"------"
    return bytes(changed)


def _check_png(data: bytes, name: str) -> None:
    at, parts, size = 8, 0, 0
    while at + 8 <= len(data):
        length, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        parts += 1
        size += 0 if kind in (b"IDAT", b"fdAT") else length
        if parts > _MAX_PARTS + len(data) // _LEAST_IDAT or size > _MAX_DATA:
            raise _too_much(name)
        if kind == b"IEND":
            return
        at += 12 + length


def _webp_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height of a WebP picture: of its canvas or its only frame (RFC 9649, section 2)."""
    if data[12:16] == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if data[12:16] == b"VP8L":
        sides = int.from_bytes(data[21:25], "little")  # 14 bits each
        return 1 + (sides & 0x3FFF), 1 + (sides >> 14 & 0x3FFF)
    if data[12:16] == b"VP8 ":
        return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
    return None


def _check_webp(data: bytes, name: str) -> None:
    canvas = _webp_size(data)
    if canvas is not None and all(canvas):  # Pillow makes room for the canvas as soon as it opens a file
        check_size(*canvas, name, MEGAPIXELS["WEBP"])
    at, parts, size = 12, 0, 0
    end = min(len(data), 8 + int.from_bytes(data[4:8], "little"))
    while at + 8 <= end:
        length, kind = int.from_bytes(data[at + 4 : at + 8], "little"), data[at : at + 4]
        parts += 1
        size += 0 if kind in (b"VP8 ", b"VP8L", b"ALPH", b"ANMF") else length
        if parts > _MAX_PARTS or size > _MAX_DATA:
            raise _too_much(name)
        at += 8 + length + length % 2


def _check_gif(data: bytes, name: str) -> None:
    """Check the extensions before the first picture (GIF89a, sections 18 to 26)."""
    at, parts, size = 13, 0, 0
    if len(data) > 10 and data[10] & 0x80:  # a global colour table
        at += 3 * 2 ** ((data[10] & 7) + 1)
    while at + 2 < len(data) and data[at : at + 1] != b",":
        if data[at] != 0x21:  # neither a picture nor an extension: Pillow skips the byte
            at, parts = at + 1, parts + 1
        else:
            at += 2
            while at < len(data) and data[at] and parts <= _MAX_PARTS:
                size, parts, at = size + data[at], parts + 1, at + 1 + data[at]
            at, parts = at + 1, parts + 1
        if parts > _MAX_PARTS or size > _MAX_GIF_DATA:
            raise _too_much(name)


def _check_ppm(data: bytes, name: str) -> None:
    if not _PPM_HEADER.match(data[:_MAX_PPM_HEADER]):
        raise _too_much(name, "a header")
    if data[1:2] in b"123" and len(data) > _MAX_PPM_TEXT:
        raise ImageError(
            f"Expected a picture in text of at most {_MAX_PPM_TEXT // 2**20} MB, got {len(data) // 2**20} MB in "
            f"{name}. Save it as PNG."
        )


def _check_boxes(data: bytes, name: str) -> None:
    """Check the boxes of a JPEG 2000 (ISO 15444-1, annex I), those within the header among them."""
    pending, parts = [(0, len(data))], 0
    while pending:
        at, end = pending.pop()
        while at + 8 <= end:
            length, kind, head = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8], 8
            if length == 1:
                length, head = int.from_bytes(data[at + 8 : at + 16], "big"), 16
            parts += 1
            if parts > _MAX_PARTS:
                raise _too_much(name)
            if length == 0 or kind == b"jp2c":
                break
            if kind in (b"jp2h", b"res "):
                pending.append((at + head, min(end, at + length)))
            at += max(length, head)


_CHECKS: dict[str, Callable[[bytes, str], bytes | None]] = {
    "JPEG": _check_jpeg_segments,
    "PNG": _check_png,
    "WEBP": _check_webp,
    "GIF": _check_gif,
    "PPM": _check_ppm,
    "TIFF": _check_tiff,
    "JPEG2000": _check_boxes,
}


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
