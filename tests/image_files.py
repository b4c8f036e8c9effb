"""Write small image files that no library writes, for the tests of decoding."""

import io
import struct
import zlib

import numpy as np
from PIL import ExifTags, Image

# The colours of a profile's three primaries as XYZ under D50, one row per primary (ICC tables of the two standards).
SRGB_D50 = np.array([[0.43607, 0.22249, 0.01392], [0.38515, 0.71687, 0.09708], [0.14307, 0.06061, 0.71410]])
ADOBE_D50 = np.array([[0.60974, 0.31111, 0.01947], [0.20528, 0.62567, 0.06087], [0.14919, 0.06322, 0.74457]])


def saved(image: Image.Image, format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def random_rgb(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def stored_as(upright: np.ndarray, orientation: int) -> np.ndarray:
    """Return an upright (H, W, 3) picture as stored by a camera; comments name row 0 and column 0 (EXIF 2.32)."""
    turned = upright.transpose(1, 0, 2)
    return {
        1: upright,  # row 0 top, column 0 left
        2: upright[:, ::-1],  # top, right
        3: upright[::-1, ::-1],  # bottom, right
        4: upright[::-1],  # bottom, left
        5: turned,  # left, top
        6: turned[::-1],  # right, top
        7: turned[::-1, ::-1],  # right, bottom
        8: turned[:, ::-1],  # left, bottom
    }[orientation]


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of(width: int, height: int, colour: int, pixels: bytes, chunks: bytes = b"") -> bytes:
    """Return a PNG of 8 bits with compressed `pixels`; `colour` is 0 for grey, 2 for RGB, 6 for RGBA."""
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    parts = [png_chunk(b"IHDR", header), chunks, png_chunk(b"IDAT", pixels), png_chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def png_header_only(width: int, height: int) -> bytes:
    """Return a PNG whose header claims width x height pixels of RGB, with almost no data."""
    return png_of(width, height, 2, zlib.compress(bytes(100)))


def png_text_bomb() -> bytes:
    png = saved(Image.new("RGB", (4, 4)), "PNG")
    text = png_chunk(b"zTXt", b"Comment\x00\x00" + zlib.compress(bytes(64_000_000), 9))
    return png[:33] + text + png[33:]  # after the signature (8) and IHDR (25)


def icc_profile(space: str, gamma: float | None, primaries: np.ndarray | None = None) -> bytes:
    """Return a minimal ICC version 2 profile (ICC.1:2001-04, section 6): RGB by matrix and gamma, or GRAY by gamma.

    Without a gamma, the profile has sRGB's curve as a table of 1,024 entries, like most photographs.
    """

    def xyz(values: np.ndarray) -> bytes:
        return b"XYZ \0\0\0\0" + b"".join(struct.pack(">i", round(float(v) * 65536)) for v in values)

    if gamma is None:
        level = np.linspace(0, 1, 1024)
        light = np.where(level <= 0.04045, level / 12.92, ((level + 0.055) / 1.055) ** 2.4)
        entries = np.rint(light * 65535).astype(">u2").tobytes()
    else:
        entries = struct.pack(">H", round(gamma * 256))  # one entry means an exponent in 8.8 fixed point
    curve = b"curv\0\0\0\0" + struct.pack(">I", len(entries) // 2) + entries
    tags = {b"wtpt": xyz(np.array([0.9642, 1.0, 0.8249]))}
    if primaries is None:
        tags[b"kTRC"] = curve
    else:
        for letter, row in zip((b"r", b"g", b"b"), primaries, strict=True):
            tags |= {letter + b"XYZ": xyz(row), letter + b"TRC": curve}
    table, body, offset = struct.pack(">I", len(tags)), b"", 128 + 4 + 12 * len(tags)
    for tag, data in tags.items():
        table += tag + struct.pack(">II", offset + len(body), len(data))
        body += data + bytes(-len(data) % 4)
    size = offset + len(body)
    white = struct.pack(">iii", 63190, 65536, 54061)  # D50 in 16.16 fixed point
    head = struct.pack(">I4sI", size, b"\0\0\0\0", 0x02100000) + b"mntr" + space.encode().ljust(4) + b"XYZ "
    return (head + bytes(12) + b"acsp" + bytes(28) + white).ljust(128, b"\0") + table + body


def srgb_encode(linear: np.ndarray) -> np.ndarray:
    """Convert linear light 0..1 to sRGB levels 0..255 (IEC 61966-2-1)."""
    linear = linear.clip(0, 1)
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055) * 255


def heic(image: Image.Image, orientation: int = 1) -> bytes:
    import pillow_heif

    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    buffer = io.BytesIO()
    pillow_heif.from_pillow(image).save(buffer, quality=-1, exif=exif.tobytes(), chroma=444)  # -1: lossless
    return buffer.getvalue()


def heic_photo() -> Image.Image:
    """Return a smooth picture with different corners, which lossy formats hardly change."""
    return Image.fromarray(random_rgb(3, 5)).resize((100, 60), Image.Resampling.BICUBIC)
