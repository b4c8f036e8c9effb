"""Small files that ask a decoder for much memory, written byte by byte."""

from __future__ import annotations

import base64
import struct
import zlib

from image_files import png_of, saved
from PIL import Image


def strip_png(width: int = 50_000_000) -> bytes:
    """A grey PNG of one row."""
    return png_of(width, 1, 0, zlib.compress(bytes(width + 1), 9))


def webp(width: int, height: int) -> bytes:
    """A valid lossless WebP of 34 bytes: five prefix codes of one symbol each, so that pixels take no bits at all."""
    bits, at = 0, 0
    for value, count in ((0x2F, 8), (width - 1, 14), (height - 1, 14), (0, 4), (0, 3), *[(1, 4)] * 5):
        bits |= value << at
        at += count
    payload = bits.to_bytes(14, "little")
    return b"RIFF" + struct.pack("<I", 12 + len(payload)) + b"WEBPVP8L" + struct.pack("<I", len(payload)) + payload


def tiled_jpeg2000() -> bytes:
    """A JPEG 2000 of 255 x 256 tiles of one pixel, of which the first begins."""
    data = bytearray(saved(Image.new("RGB", (8, 8)), "JPEG2000", no_jp2=True, num_resolutions=1))
    struct.pack_into(">8I", data, 8, 255, 256, 0, 0, 1, 1, 0, 0)  # behind SOC, SIZ, its length and capabilities
    return bytes(data)


def directory(tags: list[tuple[int, int, int, int]], data: bytes) -> bytes:
    """A TIFF directory of (tag, type, count, value); the value -1 stands for where the data lie."""
    at = 8 + 2 + 12 * len(tags) + 4
    rows = [struct.pack("<HHII", tag, kind, count, at if value == -1 else value) for tag, kind, count, value in tags]
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + b"".join(rows) + bytes(4) + data


def exif_bomb(entries: int = 2000, size: int = 500_000) -> bytes:
    """An EXIF block whose entries share their data."""
    return directory([(1000 + number, 7, size, -1) for number in range(entries)], bytes(size))


def exif_jpeg() -> bytes:
    """A JPEG with the bomb in many segments, which Pillow joins, and without the JFIF block that would spare it."""
    plain, body = saved(Image.new("RGB", (64, 64)), "JPEG"), exif_bomb()
    parts = [b"Exif\0\0" + body[at : at + 65_000] for at in range(0, len(body), 65_000)]
    segments = [b"\xff\xe1" + struct.pack(">H", len(part) + 2) + part for part in parts]
    return plain[:2] + b"".join(segments) + plain[20:]


def tiff(size: int, *more: tuple[int, int, int, int], compression: int = 1, data: bytes = b"") -> bytes:
    """A TIFF of size x size grey pixels."""
    tags = [(256, 4, 1, size), (257, 4, 1, size), (258, 3, 1, 8), (259, 3, 1, compression), (262, 3, 1, 1)]
    return directory(sorted([*tags, (277, 3, 1, 1), *more]), data)


def tiff_tags() -> bytes:
    """A TIFF with the entries of the EXIF bomb."""
    entries = [(40_966 + number, 7, 500_000, -1) for number in range(2000)]
    return tiff(100, (273, 4, 1, -1), *entries, data=bytes(500_000))


def tiff_strips(count: int = 1_500_000) -> bytes:
    """A TIFF with one strip for a row, and many more than rows."""
    return tiff(100, (273, 4, count, -1), (278, 4, 1, 1), data=struct.pack("<I", 200) * count)


def tiff_tile(side: int = 20_000) -> bytes:
    """A TIFF with one tile far larger than the picture."""
    data = zlib.compress(bytes(side * side), 9)
    tile = [(322, 4, 1, side), (323, 4, 1, side), (324, 4, 1, -1), (325, 4, 1, len(data))]
    return tiff(100, *tile, compression=8, data=data)


def lying_avif() -> bytes:
    """An AVIF of 16,384 x 16,384 grey pixels in 2,247 bytes; its header says 100 x 50."""
    return zlib.decompress(base64.b85decode(_AVIF))


def exif_in(format: str) -> bytes:
    """A PNG or WebP with the EXIF bomb."""
    return saved(Image.new("RGB", (64, 64)), format, exif=exif_bomb())


_AVIF = (
    "c-muNV30{GsVqn=%S>Yc0uY^>nP!-qnF!*)%uOvxWPkw0jFg-rD4U@mGr5ET4e%9YmgIt2j6f`xnUkLk;<$kLj1W;qUIqsCT|l-*"
    "W@cU*T&)z4lgb3;C6*Z&I_Kx)gYC-5EGQ}f(w><G$@xH9B(u066>47!5F0`4t;hsx<^U2riDib)jq)-e0paBQoT9wsoC=`1ybNp&"
    "Kq2wWf?Sx7fX-rJWNKysy6I4EN@9r+0~fda_xk_;|1M*a;&m`u!7m|bIMbo25~#xJ{JFpn{AavAhE?VzU%ADRKVe^EmA-FTcbSN3"
    "tn!Cj3;}z6Rr1ZOU%9636n>`0E07Z7{$Q5t!q`V<6Rgjli>L|i^3e#gH1OFL{pQSyYYz;M_J4VL_Qd2Ohf|8`*F;-`4j86~hAQvj"
    "OZ;FruQv5)PH>16*ThpxCXZ?!)jX<sRP(6jQO(0zGbMTftJ3RF"
)
