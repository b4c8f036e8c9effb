"""Decode untrusted pictures into upright 8-bit RGB, or raise an error with the reason.

All external input goes through ``decode``: files, bytes, PIL images and arrays.
"""

import io
import math
import os
import struct
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageCms, UnidentifiedImageError, features

from vitviz.images.heif import check_installed
from vitviz.images.limits import (
    MAX_PIXELS,
    ImageError,
    check_file,
    check_size,
    format_of,
    kind_of,
    prepared,
)
from vitviz.images.worker import LIMITS_MEMORY, workers
from vitviz.phrases import Phrase

__all__ = ["MAX_PIXELS", "ImageError", "decode", "display_name"]

# An explicit list, because some other plugins of Pillow are unsafe: EPS starts Ghostscript, and an ICO may contain a
# picture far larger than its header states. MPO (two-lens photographs) is read as JPEG.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "PPM")

# The memory of these decoders cannot be predicted (tiles, metadata, nested pictures), so they run in a limited process.
_APART = ("TIFF", "JPEG2000", "AVIF", "HEIF")

_ACCEPTED = "JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF"

# Errors that Pillow's decoders raise on damaged or hostile files; the original is always chained.
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
"""First bytes of files that are mistaken for images -> description."""

_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation -> operation that makes the picture upright (EXIF 2.32, tag 0x0112); 1 needs none."""
_ORIENTATION = 0x0112
_WHOLE = {3: "H", 4: "L"}  # types SHORT and LONG of an entry


def decode(source: Any) -> Image.Image:
    """Decode a picture into a new upright RGB image.

    EXIF orientation is applied, an embedded colour profile is converted to sRGB, transparency is composed over white,
    and animations yield their first frame. Values of more than 8 bits follow one rule, see `value_range`, and
    `info["range"]` of the result says which range was taken. No metadata is kept, such as EXIF or GPS positions.

    Decoding takes at most 300 MB of memory besides the file: the size is checked from the header before decoding, with
    limits by format (50 megapixels for most JPEGs, 10 to 26 for others). A JPEG above 26 megapixels is decoded at half
    its width and height, and coordinates refer to the decoded picture.

    Args:
        source: a path; the bytes of a file; a binary file object, read from its current position; a PIL image of any
            mode (its current frame); an array (H, W), (H, W, 1), (H, W, 3) or (H, W, 4) of uint8, uint16 or floats
            (0..1); or a PyTorch tensor of such numbers, (H, W) or channels first, not normalised.

    Raises:
        ImageError: if the source is not a picture, or is damaged or too large. The message contains only the
            shortened last part of a path.
    """
    if isinstance(source, Image.Image):
        with _reading("this PIL image"):
            check_size(*source.size, "this PIL image")
            return _upright_rgb(source)
    if isinstance(source, np.ndarray):
        return _from_array(source)
    if isinstance(source, bytes | bytearray | memoryview):
        with io.BytesIO(source) as stream:
            return _from_stream(stream, "this file")
    if isinstance(source, str | os.PathLike):
        path = os.fsdecode(source)
        with _open_file(path) as file:
            return _from_stream(file, display_name(path))
    if callable(getattr(source, "read", None)):
        return _from_file(source)
    torch = sys.modules.get("torch")  # already imported if the source is a tensor
    if torch is not None and isinstance(source, torch.Tensor):
        return _from_tensor(source)
    raise ImageError(
        "Expected an image: a path, the bytes of a file, an open file, a PIL image, a NumPy array or a tensor; "
        f"got {'nothing' if source is None else type(source).__qualname__}. "
        "Choose an image, or convert it first, for example with numpy.asarray."
    )


def display_name(path: str) -> str:
    """Return the last part of a path for messages, printable and at most 60 characters long."""
    name = "".join(character if character.isprintable() else "?" for character in os.path.basename(path)[-2000:])
    return name if len(name) <= 60 else f"{name[:40]}...{name[-17:]}"


def _open_file(path: str) -> BinaryIO:
    """Open a regular file; pipes and devices, which could block forever, raise an error."""
    name = display_name(path) or "an empty name"
    if "://" in path[:100] or path.startswith("data:"):
        raise ImageError(f"Expected the path of a file, got an address: {name}. Download the image first.")
    if os.path.isdir(path):
        raise ImageError(f"Expected an image file, got the folder {name}. Choose a file in it.")
    if os.path.exists(path) and not os.path.isfile(path):
        raise ImageError(f"Expected an image file, got {name}, a pipe or a device. Save the image to a file first.")
    try:
        return open(path, "rb")
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise ImageError(
            f"Expected an image file, got {name}, which cannot be opened ({_reason(error)}). Check the path."
        ) from error


def decode_apart(
    data: bytes, name: str = "this file", check: Callable[[], None] = lambda: None, *, trusted: bool = True
) -> Image.Image:
    """Decode the bytes of a file like `decode`, in a process with limited memory and time.

    Args:
        data: bytes of the file.
        name: name for messages.
        check: called about ten times a second; an exception from it stops the decoding.
        trusted: whether to read formats whose decoders need limited memory on systems that cannot limit it, too.

    Raises:
        ImageError: see `decode`.
    """
    if not data:
        empty = "Expected a photograph as {0}, got {1}, which is empty. Save or upload it again."
        raise ImageError(Phrase("photograph-empty", empty, _ACCEPTED, name))
    if not (trusted or LIMITS_MEMORY) and (kind := format_of(data[:1024])) in _APART:
        raise ImageError(
            f"Expected a photograph as {', '.join(_FORMATS)}, because this server's system cannot limit the memory of "
            f"other decoders; got {kind} in {name}. Save it as JPEG or PNG."
        )
    check_installed(data[:1024], name)
    return workers().decode(data, name, check)


def decode_here(stream: BinaryIO, name: str, formats: Sequence[str] = _FORMATS) -> Image.Image:
    """Decode a file in this process.

    Args:
        stream: the file, at its start.
        name: name for messages.
        formats: accepted formats; `_APART` formats only in a limited process of `vitviz.images.worker`.

    Raises:
        ImageError: see `decode`.
    """
    head = stream.read(1024)
    with _reading(name, head):
        return _upright_rgb(_opened(prepared(stream, name), name, formats))  # no variable here keeps the file


def _opened(stream: BinaryIO, name: str, formats: Sequence[str]) -> Image.Image:
    image = Image.open(stream, formats=tuple(formats))
    check_file(image, name)
    return image


def all_formats() -> tuple[str, ...]:
    """Return the formats that a worker process reads."""
    return *_FORMATS, *(name for name in _APART if name in Image.OPEN)


def _from_stream(stream: BinaryIO, name: str) -> Image.Image:
    head = stream.read(1024)
    stream.seek(0)
    return decode_apart(stream.read(), name) if not head or format_of(head) in _APART else decode_here(stream, name)


@contextmanager
def _reading(name: str, head: bytes = b"") -> Iterator[None]:
    """Convert Pillow's errors while reading into an ImageError."""
    try:
        yield
    except ImageError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:  # a warning under -W error
        raise ImageError(
            Phrase(
                "photograph-far-too-large",
                "Expected an image of at most {0} megapixels, got far more in {1}. Make it smaller.",
                *(f"{MAX_PIXELS / 1e6:g}", name),
            )
        ) from error
    except UnidentifiedImageError as error:
        if kind_of(head) is not None:
            raise _damaged(name, ValueError("no picture in it")) from error
        raise ImageError(
            Phrase(
                "photograph-of-another-kind",
                "Expected a photograph as {0}, got {1} in {2}. Save or export it as JPEG or PNG.",
                *(_ACCEPTED, _kind(head), name),
            )
        ) from error
    except _DECODER_ERRORS as error:
        raise _damaged(name, error) from error


def _damaged(name: str, error: BaseException) -> ImageError:
    return ImageError(
        Phrase(
            "photograph-damaged",
            "Expected a complete photograph as {0}, got {1}, which cannot be decoded ({2}). Save it again as JPEG or "
            "PNG, or upload it again.",
            *(_ACCEPTED, name, _reason(error)),
        )
    )


def _reason(error: BaseException) -> str:
    """Return an error's text without a path, printable and short."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return "".join(character for character in text[:120] if character.isprintable()) or type(error).__name__


def _kind(head: bytes) -> str:
    """Describe a rejected file by its first bytes."""
    if head[4:8] == b"ftyp":
        return "a video or a similar file"
    if head[128:132] == b"DICM":
        return "a medical image (DICOM)"
    if b"<svg" in head.lower():
        return "an SVG drawing, which has no pixels,"
    for magic, kind in _MAGIC.items():
        if head.startswith(magic):
            return kind
    if head.isascii() and all(byte >= 32 or byte in b"\t\r\n\f" for byte in head):
        return "text"
    return Phrase("unknown-format", "an unknown format (first bytes {0})", head[:8].hex(" "))


def _upright_rgb(image: Image.Image) -> Image.Image:
    """Return a new picture in upright sRGB without changing ``image``.

    All steps reuse one variable, so each picture is freed as soon as the next one exists.
    """
    original_id = id(image)
    deep = any("16" in str(tile[3]) for tile in getattr(image, "tile", ()))  # empty after loading
    image.load()
    _check_colors(image, deep)
    # Read after loading, because Pillow then rotates TIFFs itself, and PNGs may have EXIF at the end.
    transpose = _TRANSPOSE.get(_orientation(image.info.get("exif")))
    profile = image.info.get("icc_profile")
    image = _eight_bit(image)
    about = image.info.get("range", "")
    image = _to_srgb(image, profile)
    image = _over_white(image)
    if transpose is not None:
        image = image.transpose(transpose)
    elif id(image) == original_id:
        image = image.copy()
    image.info = {"range": about} if about and id(image) != original_id else {}
    return image


def _orientation(exif: object) -> int:
    """Return the EXIF orientation (TIFF revision 6.0, section 2); 1 (upright) if EXIF is missing or damaged.

    Pillow would copy the values of all entries.
    """
    if not isinstance(exif, bytes):
        return 1
    exif = exif.removeprefix(b"Exif\0\0")
    order = ">" if exif[:2] == b"MM" else "<"
    with suppress(struct.error):  # damaged data
        (start,) = struct.unpack_from(order + "L", exif, 4)
        (count,) = struct.unpack_from(order + "H", exif, start)
        for place in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind, values = struct.unpack_from(order + "HHL", exif, place)
            if tag == _ORIENTATION and values == 1 and kind in _WHOLE:
                (number,) = struct.unpack_from(order + _WHOLE[kind], exif, place + 8)
                return int(number)
    return 1


def _eight_bit(image: Image.Image) -> Image.Image:
    """Return the picture in mode L, RGB, RGBA or CMYK, still in its original colour space."""
    if image.mode[0] in "IF":
        return _deep_grey(image)
    if image.mode == "La":  # premultiplied alpha: Pillow supports only this conversion
        return image.convert("LA").convert("RGBA")
    palette_alpha = image.palette is not None and image.palette.mode == "RGBA"
    if image.mode in ("LA", "PA", "RGBA", "RGBa") or palette_alpha or "transparency" in image.info:
        unshared = image.copy() if image.mode == "P" else image  # Pillow changes the palette in place
        return unshared.convert("RGBA") if unshared.mode != "RGBA" else unshared
    return image if image.mode in ("L", "RGB", "CMYK") else image.convert("RGB")


def value_range(low: float, high: float, *, whole: bool) -> tuple[float, float, str]:
    """Return the values shown as black and as white for values of more than 8 bits, and a sentence about them.

    White is the largest value of the smallest depth (8, 10, 12, 14 or 16 bits) that holds all values: 12 bits in a file
    of 16 have white at 4,095. For floats up to 1, it is 1. Other ranges are stretched from the lowest to the highest
    value. The sentence is empty for 16 bits and for floats up to 1.

    Raises:
        ImageError: for NaN or infinity.
    """
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ImageError("Expected an image of finite numbers, got NaN or infinity. Replace them first.")
    white = next((limit for limit in ((1.0,) if not whole else ()) + DEPTHS if low >= 0 and high <= limit), None)
    if white is None:
        stretched = "The picture's values, from {0} to {1}, are stretched from black to white."
        return low, high, Phrase("values-stretched", stretched, f"{low:g}", f"{high:g}")
    usual = DEPTHS[-1] if whole else 1.0
    words = Phrase(
        "values-white", "The picture's values, up to {0}, are shown with {1} as white.", f"{high:g}", f"{white:g}"
    )
    return 0.0, white, "" if white == usual else words


DEPTHS = tuple(float(2**bits - 1) for bits in (8, 10, 12, 14, 16))


def _deep_grey(image: Image.Image) -> Image.Image:
    """Scale modes I, F and the I;16 family to 8 bits by `value_range`; Pillow's own conversion would clip at 255."""
    rows = max(1, 1_000_000 // image.width)  # in chunks, to avoid a large array
    tops = range(0, image.height, rows)
    unsigned = image.mode == "I" and _tag(image, _BITS) == 32 and _tag(image, _SAMPLE_FORMAT) in (None, 1)

    def strip(top: int) -> npt.NDArray[Any]:  # (rows, W)
        part = np.asarray(image.crop((0, top, image.width, min(top + rows, image.height))))
        return part.view(np.uint32) if unsigned else part  # Pillow reads them with a sign

    extremes = np.array([(part.min(), part.max()) for part in map(strip, tops)], np.float64)
    low, high = float(extremes[:, 0].min()), float(extremes[:, 1].max())
    black, white, about = value_range(low, high, whole=image.mode != "F")
    transparent = image.info.get("transparency")  # a single grey level
    inverted = _tag(image, _PHOTOMETRIC) == 0  # white is 0; Pillow inverts only 8 bits
    grey = Image.new("L", image.size)
    for top in tops:
        part = strip(top)
        levels = _to_uint8(part, black, white)
        if inverted:
            levels = 255 - levels
        if transparent is not None:
            levels[part == transparent] = 255
        grey.paste(Image.fromarray(levels), (0, top))
    grey.info["range"] = about
    return grey


_BITS, _PHOTOMETRIC, _PLANAR, _SAMPLE_FORMAT = 258, 262, 284, 339  # TIFF 6.0, section 8


def _tag(image: Image.Image, number: int) -> Any:
    """Return the first value of a TIFF's tag; `None` for other formats and missing tags."""
    value = getattr(image, "tag_v2", {}).get(number)
    return value[0] if isinstance(value, tuple) and value else value


def _check_colors(image: Image.Image, deep: bool) -> None:
    """Refuse layouts that Pillow decodes to wrong values.

    Pillow keeps the upper 8 bits of colors of 16 bits (`deep`), so 12 bits in 16 would be nearly black.

    Raises:
        ImageError: for colors of 16 bits in separate planes, and for signed bytes.
    """
    if image.mode[0] in "IF":
        return
    if _tag(image, _SAMPLE_FORMAT) == 2:
        kind = "signed numbers of 8 bits"
    elif _tag(image, _PLANAR) == 2 and (_tag(image, _BITS) or 8) > 8:
        kind = "colors of more than 8 bits in separate planes"
    elif deep and max(top for _, top in _extremes(image)) < 64:
        kind = "colors of 16 bits that use fewer than 14"
    else:
        return
    raise ImageError(
        f"Expected colors of 8 or all 16 bits, got {kind}, which cannot be read exactly. Scale them, and save 8 bits."
    )


def _extremes(image: Image.Image) -> list[tuple[float, float]]:
    extremes: Any = image.getextrema()
    return list(extremes) if isinstance(extremes[0], tuple) else [extremes]


def _to_srgb(image: Image.Image, profile: object) -> Image.Image:
    """Convert from the embedded ICC profile to sRGB; without a usable profile, assume sRGB."""
    if not isinstance(profile, bytes) or not profile or not features.check("littlecms2"):
        return image
    try:
        source = ImageCms.getOpenProfile(io.BytesIO(profile))
        space = source.profile.xcolor_space.strip()
        if (space, image.mode) not in {("RGB", "RGB"), ("RGB", "RGBA"), ("GRAY", "L"), ("CMYK", "CMYK")}:
            return image
        target = ImageCms.createProfile("sRGB")
        if space == "RGB" and _changes_little(ImageCms.buildTransform(source, target, "RGB", "RGB")):
            return image
        mode = "RGBA" if image.mode == "RGBA" else "RGB"  # alpha is copied
        converted = ImageCms.applyTransform(image, ImageCms.buildTransform(source, target, image.mode, mode))
    except ImageCms.PyCMSError:  # ignore a damaged profile
        return image
    return image if converted is None else converted  # None only with inPlace=True


def _changes_little(transform: ImageCms.ImageCmsTransform) -> bool:
    """Return whether a profile is equivalent to sRGB, so that pixels can stay unchanged."""
    steps = np.linspace(0, 255, 9).astype(np.uint8)
    cube = np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(27, 27, 3)
    after = ImageCms.applyTransform(Image.fromarray(cube), transform)
    return after is not None and int(np.abs(np.asarray(after).astype(int) - cube).max()) <= 2


def _over_white(image: Image.Image) -> Image.Image:
    """Convert to RGB, with transparency composed over white."""
    if image.mode != "RGBA":
        return image if image.mode == "RGB" else image.convert("RGB")
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image)
    return white


def _from_file(file: Any) -> Image.Image:
    """Decode a file opened by the caller, without closing it."""
    named = getattr(file, "name", None)
    name = display_name(named) if isinstance(named, str) else "this file"
    content = file.read()
    if not isinstance(content, bytes):
        raise ImageError(
            f"Expected a file opened for reading bytes, got {name} opened as text. Open it with mode 'rb'."
        )
    with io.BytesIO(content) as stream:
        return _from_stream(stream, name)


def _from_tensor(tensor: Any) -> Image.Image:
    """Decode a PyTorch tensor (H, W) or (C, H, W)."""
    if tensor.ndim not in (2, 3) or (tensor.ndim == 3 and tensor.shape[0] not in (1, 3, 4)):
        last = tensor.ndim == 3 and tensor.shape[2] in (1, 3, 4)
        hint = "Use tensor.permute(2, 0, 1)." if last else "Choose one image, with its channels first."
        raise ImageError(
            f"Expected a tensor (H, W), (1, H, W), (3, H, W) or (4, H, W), got {tuple(tensor.shape)}. {hint}"
        )
    values = tensor.detach().cpu()
    values = values.float() if values.is_floating_point() else values  # NumPy has no bfloat16
    return _from_array((values if tensor.ndim == 2 else values.permute(1, 2, 0)).numpy())  # (C, H, W) -> (H, W, C)


def _from_array(array: npt.NDArray[Any]) -> Image.Image:
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        first = array.ndim == 3 and array.shape[0] in (1, 3, 4)
        hint = "Use array.transpose(1, 2, 0)." if first else "Choose one image, with its channels last."
        raise ImageError(f"Expected an array (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), got {array.shape}. {hint}")
    check_size(array.shape[1], array.shape[0], "this array")
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    about = ""
    if array.dtype.kind == "u" and array.dtype.itemsize == 2:  # in either byte order
        black, white, about = value_range(float(array.min()), float(array.max()), whole=True)
        array = _to_uint8(array, black, white)
    elif array.dtype.kind == "f":
        low, high = float(array.min()), float(array.max())
        if not (low >= -1e-6 and high <= 1 + 1e-6):  # also rejects NaN
            raise ImageError(
                f"Expected floats from 0 to 1 without NaN, got {low:g} to {high:g}. Divide by the white level or clip; "
                "pass pixels that a model's preprocessing has not normalized."
            )
        array = _to_uint8(array, 0.0, 1.0)
    elif array.dtype != np.uint8:
        raise ImageError(
            f"Expected an array of uint8, uint16, or floats from 0 to 1, got {array.dtype}. Convert it with astype."
        )
    picture = _over_white(Image.fromarray(np.ascontiguousarray(array)))
    picture.info = {"range": about} if about else {}
    return picture


def _to_uint8(values: npt.NDArray[Any], black: float, white: float) -> npt.NDArray[np.uint8]:
    """Scale black..white to 0..255 and round, in chunks of rows to avoid a large float copy."""
    result = np.empty(values.shape, np.uint8)
    scale = 255.0 / (white - black) if white > black else 0.0
    rows = max(1, 1_000_000 // max(1, values[0].size))
    for top in range(0, len(values), rows):
        part = (values[top : top + rows].astype(np.float64) - black) * scale
        result[top : top + rows] = np.rint(part).clip(0, 255)
    return result
