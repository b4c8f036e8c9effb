"""Images with other bands than red, green and blue, such as those of satellites and microscopes."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from vitviz.images.limits import ImageError, check_size

RGB = ("red", "green", "blue")
SUFFIX = ".npy"
MAX_BANDS = 1_000  # in settings of a file, which may be untrusted


def stack_frames(frames: npt.NDArray[Any], channels: int) -> npt.NDArray[Any]:
    """Return a video as one array of bands, for a model such as VideoMAE: (T, H, W, C) -> (T' H, W, channels).

    The frames of a tube become the bands of a picture, and the T' = T C / channels pictures follow below one another.

    Raises:
        ImageError: for frames that do not fill whole tubes.
    """
    frames = np.asarray(frames)
    if frames.ndim != 4 or channels % frames.shape[3] or frames.shape[0] % (channels // frames.shape[3]):
        raise ImageError(
            f"Expected frames (T, height, width, C) that fill tubes of {channels} channels, got {frames.shape}. Choose "
            "other frames."
        )
    height, width, colors = frames.shape[1:]
    tubes = frames.reshape(-1, channels // colors, height, width, colors).transpose(0, 2, 3, 1, 4)
    return tubes.reshape(-1, width, channels)  # (T', H, W, tube, C) -> (T' H, W, channels)


def band_names(count: int) -> tuple[str, ...]:
    """Return names for channels without names."""
    return {1: ("grey",), 3: RGB}.get(count, tuple(f"band {index + 1}" for index in range(count)))


@dataclass(frozen=True, eq=False)
class Bands:
    """Image with named bands.

    Args:
        values: (H, W, C), uint8 (divided by 255), uint16 (divided by 65,535), or finite floats in the model's units.
        names: C different names, in the array's order.

    Raises:
        ImageError: for other arrays or names.
    """

    values: npt.NDArray[Any]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        values = np.asarray(self.values)
        values = values[:, :, None] if values.ndim == 2 else values
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "names", tuple(self.names))
        if values.ndim != 3 or values.shape[2] != len(self.names) or len({*self.names}) != len(self.names):
            raise ImageError(
                f"Expected an array (H, W, {len(self.names)}) with the different bands {', '.join(self.names)}, got "
                f"{values.shape}. Choose one image, with its bands last."
            )
        check_size(values.shape[1], values.shape[0], "this array")
        whole = values.dtype in (np.uint8, np.uint16)
        if not whole and (values.dtype.kind != "f" or not np.isfinite(values).all()):
            raise ImageError(
                f"Expected bands of uint8, uint16 or finite floats, got {values.dtype}. Convert them with astype, and "
                "replace NaN."
            )

    @property
    def width(self) -> int:
        """Return the width in pixels."""
        return int(self.values.shape[1])

    @property
    def height(self) -> int:
        """Return the height in pixels."""
        return int(self.values.shape[0])

    @property
    def size(self) -> tuple[int, int]:
        """Return (width, height) in pixels."""
        return self.width, self.height

    def planes(self, names: Sequence[str]) -> list[Image.Image]:
        """Return bands as pictures of 32-bit floats (mode F), scaled as the model expects them.

        Raises:
            ImageError: if the image lacks a band.
        """
        if missing := [name for name in names if name not in self.names]:
            raise ImageError(
                f"Expected the bands {', '.join(names)}, got an image without {', '.join(missing)}; it has "
                f"{', '.join(self.names)}. Choose another image."
            )
        white = np.iinfo(self.values.dtype).max if self.values.dtype.kind == "u" else 1
        planes = (self.values[:, :, self.names.index(name)].astype(np.float32) / np.float32(white) for name in names)
        return [Image.fromarray(plane) for plane in planes]

    def picture(self, names: Sequence[str]) -> Image.Image:
        """Return one band in grey, or three as red, green and blue."""
        return to_picture(np.stack([np.asarray(plane) for plane in self.planes(names)], axis=2))


def to_picture(values: npt.NDArray[Any]) -> Image.Image:
    """Return the RGB picture of one or three bands (H, W, 1 or 3): 0..1 as they are, other ranges stretched."""
    low, high = float(values.min()), float(values.max())
    if not (low >= -1e-6 and high <= 1 + 1e-6):
        values = (values - low) / max(high - low, 1e-30)
    levels = np.rint(values * 255).clip(0, 255).astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(levels.repeat(3 // levels.shape[2], axis=2)))


def read_bands(source: Any, names: tuple[str, ...]) -> Any:
    """Return an array of bands, or a `.npy` file with one, as `Bands`; other sources unchanged.

    Args:
        source: an argument of `decode`, or `Bands`.
        names: names of the bands that a model expects.

    Raises:
        ImageError: if the file has no array, or the array has another number of bands.
    """
    if isinstance(source, str | os.PathLike) and os.fsdecode(source).lower().endswith(SUFFIX):
        try:
            source = np.load(Path(source), mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            name = os.path.basename(os.fsdecode(source))
            raise ImageError(
                f"Expected an array in {name!r:.80}, got something else: {error}. Save it again."
            ) from error
    if not isinstance(source, np.ndarray) or names == RGB or (len(names) == 1 and source.shape[2:] in ((3,), (4,))):
        return source  # also colors for a model of one band, which reads their brightness
    return Bands(source, names)


def planes_of_photo(photo: Image.Image, names: tuple[str, ...]) -> list[Image.Image]:
    """Return the channels of an RGB photograph by name; its brightness for a single band of another name.

    Raises:
        ImageError: if the photograph lacks a band.
    """
    if names == RGB:
        return [photo]
    if len(names) == 1 and names[0] not in RGB:
        return [photo.convert("L")]
    if not {*names} <= {*RGB}:
        raise ImageError(
            f"Expected an array (H, W, {len(names)}) with the bands {', '.join(names)}, got a photograph with red, "
            "green and blue. Open the array in Python, or a .npy file with it on the command line."
        )
    return [photo.getchannel(RGB.index(name)) for name in names]
