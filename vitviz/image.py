"""From what people upload to one upright 8-bit RGB picture, or to words that say why not.

Everything that comes from outside goes through ``decode``: files, bytes, PIL images and arrays.
"""

from __future__ import annotations

import io
import math
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageCms, UnidentifiedImageError, features

__all__ = ["MAX_PIXELS", "ImageError", "decode"]

MAX_PIXELS = 50_000_000
"""The largest picture that is decoded, in pixels: beyond any phone camera's default, and 200 MB as Pillow holds it."""

# A closed list, because Pillow's other plugins are seldom needed and some are dangerous: EPS starts Ghostscript,
# and an ICO may hide a picture far larger than its header says. MPO (two-lens photographs) comes with JPEG.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "PPM")

_WANTED = "Expected a photograph as JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF"

# What Pillow's decoders are known to raise on damaged or hostile files; the original is always chained.
_DECODER_ERRORS = (
    OSError, SyntaxError, ValueError, TypeError, AttributeError, ArithmeticError, LookupError, EOFError, RuntimeError,
    MemoryError, AssertionError, struct.error, zlib.error,
)  # fmt: skip

_MAGIC = {
    b"%PDF": "a PDF document",
    b"%!PS": "a PostScript drawing",
    b"\xc5\xd0\xd3\xc6": "a PostScript drawing",
    b"8BPS": "a Photoshop document",
    b"PK\x03\x04": "a ZIP archive or an office document",
    b"\x00\x00\x00\x0cJXL ": "a JPEG XL image",
    b"\xff\x0a": "a JPEG XL image",
    b"\x00\x00\x01\x00": "an icon (ICO)",
    b"\xff\xd8": "a damaged JPEG",
    b"\x89PNG": "a damaged PNG",
    b"RIFF": "a damaged WebP image, or a sound or video",
    b"GIF8": "a damaged GIF",
    b"II*\x00": "a damaged TIFF or a camera's raw file",
    b"MM\x00*": "a damaged TIFF or a camera's raw file",
}
"""The first bytes of files that people take for images -> what to call them."""

_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1")

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation -> the turn that makes the picture upright (EXIF 2.32, tag 0x0112). 1 needs none."""


class ImageError(ValueError):
    """An image, or a wish about images, that cannot be met. Its text says what was expected, what came, what to do."""


def decode(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview | Image.Image | npt.NDArray[Any],
) -> Image.Image:
    """Read a picture from wherever it comes, as one upright RGB image that shares nothing with its source.

    source: the path of a file; the bytes of a file; a PIL image of any mode (at the frame where it stands); or an array
        (H, W), (H, W, 1), (H, W, 3) or (H, W, 4) of uint8, uint16 (0..65535) or floats (0..1).

    EXIF orientation is applied, an embedded colour profile is converted to sRGB, what is transparent is laid over
    white, of an animation file the first frame is taken. 16-bit greys are divided by 257. Integers (mode I) are taken
    as 8-bit if they fit 0..255, else as 16-bit if they fit 0..65535; floats (mode F) as 0..1, else as 0..255; values
    that fit neither are stretched, lowest to black, highest to white. No metadata is kept: no EXIF, no GPS position.

    Raises ImageError when the source is no such picture, is damaged, or has more than MAX_PIXELS pixels. The size is
    checked from the header, before any pixel is decoded.
    """
    if isinstance(source, Image.Image):
        with _reading("this PIL image"):
            return _upright_rgb(source, "this PIL image")
    if isinstance(source, np.ndarray):
        return _from_array(source)
    if isinstance(source, bytes | bytearray | memoryview):
        with io.BytesIO(source) as stream:
            return _from_stream(stream, "this file")
    if isinstance(source, str | os.PathLike):
        with _open_file(os.fsdecode(source)) as file:
            return _from_stream(file, os.path.basename(os.fsdecode(source)))
    raise ImageError(
        "Expected an image: a path, the bytes of a file, a PIL image or a NumPy array; "
        f"{'nothing' if source is None else type(source).__qualname__} came. "
        "Choose an image, or convert it first, for example with numpy.asarray."
    )


def _open_file(path: str) -> BinaryIO:
    """Open a regular file. Pipes and devices are refused: reading them could wait for ever."""
    shown = path if len(path) <= 200 else path[:197] + "..."
    if "://" in path or path.startswith("data:"):
        raise ImageError(f"Expected the path of a file, and an address came: {shown}. Download the image first.")
    if os.path.isdir(path):
        raise ImageError(f"Expected an image file, and {shown} is a folder. Name a file in it.")
    if os.path.exists(path) and not os.path.isfile(path):
        raise ImageError(f"Expected an image file, and {shown} is a pipe or a device. Save the image to a file first.")
    try:
        return open(path, "rb")
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ImageError(f"Expected an image file, and {shown} cannot be opened ({reason}). Check the path.") from error


def _from_stream(stream: io.BytesIO | BinaryIO, name: str) -> Image.Image:
    head = stream.read(1024)
    if not head:
        raise ImageError(f"{_WANTED}; {name} is empty. Save or upload it again.")
    Image.init()  # AVIF is missing from OPEN in some Pillow builds, and an unknown name would be a KeyError
    with _reading(name, head), Image.open(stream, formats=[f for f in _FORMATS if f in Image.OPEN]) as image:
        return _upright_rgb(image, name)


@contextmanager
def _reading(name: str, head: bytes = b"") -> Iterator[None]:
    """Turn whatever Pillow raises while it reads into an ImageError that a visitor understands."""
    try:
        yield
    except ImageError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:  # the warning: under -W error
        raise ImageError(
            f"Expected an image of at most {MAX_PIXELS / 1e6:g} megapixels; {name} is far larger. Make it smaller."
        ) from error
    except UnidentifiedImageError as error:
        raise ImageError(f"{_WANTED}; {name} is {_kind(head)}. Save or export it as JPEG or PNG instead.") from error
    except _DECODER_ERRORS as error:
        reason = str(error) or type(error).__name__
        raise ImageError(
            f"{_WANTED}, complete and undamaged; {name} cannot be decoded ({reason}). "
            "Save it again as JPEG or PNG, or upload it again."
        ) from error


def _kind(head: bytes) -> str:
    """Say what a refused file seems to be, from its first bytes."""
    if head[4:8] == b"ftyp":
        if head[8:12] in _HEIC_BRANDS:
            return "a HEIC/HEIF photo (the format of many phones), which is not supported"
        if head[8:12] in (b"avif", b"avis"):
            return "a damaged AVIF image, or this installation of Pillow cannot decode AVIF"
        return "a video or something like it"
    if b"<svg" in head.lower():
        return "an SVG drawing, which has no pixels"
    for magic, words in _MAGIC.items():
        if head.startswith(magic):
            return words
    if head.isascii() and all(byte >= 32 or byte in b"\t\r\n\f" for byte in head):
        return "text, whatever its name says"
    return f"no image that is known here (it begins with the bytes {head[:8].hex(' ')})"


def check_size(width: int, height: int, name: str) -> None:
    """Refuse, before anything is decoded or resized, what has no pixels or more than MAX_PIXELS."""
    if width < 1 or height < 1:
        raise ImageError(f"Expected an image with pixels; {name} is {width} x {height}. Choose another one.")
    if width * height > MAX_PIXELS:
        raise ImageError(
            f"Expected an image of at most {MAX_PIXELS / 1e6:g} megapixels; {name} is {width} x {height} "
            f"({width * height / 1e6:.1f} megapixels). Make it smaller and try again."
        )


def _upright_rgb(image: Image.Image, name: str) -> Image.Image:
    """The core of decode. ``image`` may be the caller's: it is read, never changed."""
    check_size(*image.size, name)
    image.load()
    turn = _TURNS.get(_orientation(image))  # only now: TIFFs turn themselves on loading, PNGs may end with their EXIF
    picture = _over_white(_to_srgb(_eight_bit(image), image.info.get("icc_profile")))
    if turn is not None:
        picture = picture.transpose(turn)
    elif picture is image:
        picture = picture.copy()
    picture.info = {}
    return picture


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 (upright) when there is none or when the EXIF block is damaged, as browsers take it."""
    try:
        value = image.getexif().get(ExifTags.Base.Orientation, 1)
    except _DECODER_ERRORS:
        return 1
    return value if isinstance(value, int) else 1


def _eight_bit(image: Image.Image) -> Image.Image:
    """The picture in mode L, RGB, RGBA or CMYK, still in its own colour space."""
    if image.mode[0] in "IF":
        return _deep_grey(image)
    if image.mode == "La":  # alpha already multiplied in: Pillow has only this way out of it
        return image.convert("LA").convert("RGBA")
    palette_alpha = image.palette is not None and image.palette.mode == "RGBA"
    if image.mode in ("LA", "PA", "RGBA", "RGBa") or palette_alpha or "transparency" in image.info:
        own = image.copy() if image.mode == "P" else image  # Pillow writes the transparency into the palette in place
        return own.convert("RGBA") if own.mode != "RGBA" else own
    return image if image.mode in ("L", "RGB", "CMYK") else image.convert("RGB")


def _deep_grey(image: Image.Image) -> Image.Image:
    """Modes I, F and the I;16 family, scaled to 8 bits; Pillow's own conversion would clip at 255."""
    values = np.asarray(image)  # (H, W)
    low, high = float(values.min()), float(values.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ImageError("Expected an image of finite numbers; NaN or infinity came. Replace them first.")
    limits = {"I": (255.0, 65535.0), "F": (1.0, 255.0)}.get(image.mode, (65535.0,))
    if image.mode == "I" and image.format in ("PNG", "PPM"):  # how Pillow reads their 16 bits: a fact, not a guess
        limits = (65535.0,)
    fitting = [limit for limit in limits if low >= 0 and high <= limit]
    black, white = (0.0, fitting[0]) if fitting else (low, high)
    grey = _to_uint8(values, black, white)
    if (clear := image.info.get("transparency")) is not None:  # one grey level that stands for "nothing here"
        grey[values == clear] = 255
    return Image.fromarray(grey)


def _to_srgb(image: Image.Image, profile: object) -> Image.Image:
    """Convert from the embedded ICC profile to sRGB; without a usable profile the numbers are taken as sRGB already."""
    if not isinstance(profile, bytes) or not profile or not features.check("littlecms2"):
        return image
    try:
        source = ImageCms.getOpenProfile(io.BytesIO(profile))
        space = source.profile.xcolor_space.strip()
        if (space, image.mode) not in {("RGB", "RGB"), ("RGB", "RGBA"), ("GRAY", "L"), ("CMYK", "CMYK")}:
            return image
        colours = image.convert("RGB") if image.mode == "RGBA" else image
        transform = ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), colours.mode, "RGB")
        if space == "RGB" and _changes_little(transform):
            return image
        converted = ImageCms.applyTransform(colours, transform)
    except ImageCms.PyCMSError:  # a damaged profile is no reason to refuse the photograph
        return image
    if converted is None:  # only with inPlace=True, which is not asked for
        return image
    if image.mode == "RGBA":
        converted.putalpha(image.getchannel("A"))
    return converted


def _changes_little(transform: ImageCms.ImageCmsTransform) -> bool:
    """Whether a profile is sRGB by another name: then the pixels stay as libraries that ignore profiles read them."""
    steps = np.linspace(0, 255, 9).astype(np.uint8)
    cube = np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(27, 27, 3)
    after = ImageCms.applyTransform(Image.fromarray(cube), transform)
    return after is not None and int(np.abs(np.asarray(after).astype(int) - cube).max()) <= 2


def _over_white(image: Image.Image) -> Image.Image:
    if image.mode != "RGBA":
        return image if image.mode == "RGB" else image.convert("RGB")
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image.getchannel("A"))
    return white


def _from_array(array: npt.NDArray[Any]) -> Image.Image:
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        first = array.ndim == 3 and array.shape[0] in (1, 3, 4)
        hint = "Use array.transpose(1, 2, 0)." if first else "Choose one image, with its channels last."
        raise ImageError(f"Expected an array (H, W), (H, W, 1), (H, W, 3) or (H, W, 4); {array.shape} came. {hint}")
    check_size(array.shape[1], array.shape[0], "this array")
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.dtype.kind == "u" and array.dtype.itemsize == 2:  # in either byte order
        array = _to_uint8(array, 0.0, 65535.0)
    elif array.dtype.kind == "f":
        low, high = float(array.min()), float(array.max())
        if not (low >= -1e-6 and high <= 1 + 1e-6):  # so written that NaN is refused
            raise ImageError(
                f"Expected floats from 0 to 1 without NaN; {low:g} to {high:g} came. Divide by the white level or clip."
            )
        array = _to_uint8(array, 0.0, 1.0)
    elif array.dtype != np.uint8:
        raise ImageError(
            f"Expected an array of uint8, uint16, or floats from 0 to 1; {array.dtype} came. Convert it with astype."
        )
    return _over_white(Image.fromarray(np.ascontiguousarray(array)))


def _to_uint8(values: npt.NDArray[Any], black: float, white: float) -> npt.NDArray[np.uint8]:
    """Scale black..white to 0..255, rounded, some rows at a time so that no large float copy is made."""
    result = np.empty(values.shape, np.uint8)
    scale = 255.0 / (white - black) if white > black else 0.0
    rows = max(1, 1_000_000 // max(1, values[0].size))
    for top in range(0, len(values), rows):
        part = (values[top : top + rows].astype(np.float64) - black) * scale
        result[top : top + rows] = np.rint(part).clip(0, 255)
    return result
