"""From an upright photograph to what the model reads, and the way back to its pixels.

``Preprocess`` makes the model's input. ``Geometry`` remembers which pixels of the photograph each patch saw.

Boxes are (left, top, right, bottom) in pixels of the upright photograph: x runs right, y runs down, and pixel (0, 0)
covers the square from (0, 0) to (1, 1). Positions in the patch grid are (row, column) from the top left.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from PIL import Image

from vitviz.image import MAX_PIXELS, ImageError, check_size

__all__ = ["Geometry", "Prepared", "Preprocess"]

Mode = Literal["crop", "squash", "pad", "native"]
Interpolation = Literal["bilinear", "bicubic", "lanczos", "nearest"]
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Geometry:
    """Where the model looked: the way from patches back to the pixels of the upright photograph.

    image: (width, height) of the photograph in pixels. input: (height, width) of the model's input in pixels.
    frame: the box of the photograph that the whole input shows; it reaches outside the photograph where it was padded.
    """

    image: tuple[int, int]
    input: tuple[int, int]
    frame: Box

    def __post_init__(self) -> None:
        left, top, right, bottom = self.frame
        if min(*self.image, *self.input) < 1 or not (left < right and top < bottom):
            raise ImageError(f"Expected positive sizes and a frame (left, top, right, bottom); {self} came.")

    @property
    def seen(self) -> Box:
        """The box of the photograph that the model saw: the frame without what lies outside the photograph."""
        left, top, right, bottom = self.frame
        return max(left, 0.0), max(top, 0.0), min(right, float(self.image[0])), min(bottom, float(self.image[1]))

    def patch_box(self, row: int, col: int, grid: tuple[int, int]) -> Box:
        """The box that patch (row, col) of a grid (gh, gw) saw. Neighbours touch; it may reach outside the image."""
        gh, gw = _check_grid(grid)
        if not (0 <= row < gh and 0 <= col < gw):
            raise ImageError(f"Expected a patch inside the grid of {gh} rows and {gw} columns; ({row}, {col}) came.")
        left, top, right, bottom = self.frame
        return (
            _edge(left, right, col, gw),
            _edge(top, bottom, row, gh),
            _edge(left, right, col + 1, gw),
            _edge(top, bottom, row + 1, gh),
        )

    def patch_at(self, x: float, y: float, grid: tuple[int, int]) -> tuple[int, int] | None:
        """The patch (row, col) that saw the point (x, y) of the photograph, or None where the model saw nothing."""
        gh, gw = _check_grid(grid)
        left, top, right, bottom = self.seen
        if not (left <= x < right and top <= y < bottom):
            return None
        # A search over the same edges as patch_box's, so that the two agree to the last bit.
        row = bisect_right(range(gh), y, key=lambda i: _edge(self.frame[1], self.frame[3], i, gh)) - 1
        col = bisect_right(range(gw), x, key=lambda i: _edge(self.frame[0], self.frame[2], i, gw)) - 1
        return row, col


def _edge(start: float, end: float, index: int, count: int) -> float:
    """The index-th of count + 1 edges from start to end, both met exactly."""
    return end if index == count else start + (end - start) * index / count


def _check_grid(grid: tuple[int, int]) -> tuple[int, int]:
    gh, gw = grid
    if gh < 1 or gw < 1:
        raise ImageError(f"Expected a patch grid (rows, columns) of at least 1 x 1; {grid} came.")
    return gh, gw


# ---- preprocessing


@dataclass(frozen=True, eq=False)
class Prepared:
    """What the model reads: normalised pixels (3, H, W), float32, and where they come from."""

    pixels: npt.NDArray[np.float32]
    geometry: Geometry


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """How a photograph becomes the model's input. Small, frozen, saved with the weights.

    height, width: the input's size in pixels; for mode "native" only their product counts, as the budget of pixels.
    mode: "crop" resizes the shorter side to ``resize`` and cuts out the centre, equal to torchvision's Resize and
        CenterCrop on PIL images; only where those would add black margins is the picture enlarged to cover the input.
        "squash" stretches the whole picture to the input. "pad" keeps its shape and fills with the mean colour.
        "native" keeps its shape as nearly as sides that are multiples of ``multiple`` allow; the input's size varies.
    resize: crop only, in pixels; by default the shorter input side / 0.875.
    multiple: native only, in pixels: the patch size.
    mean, std: per channel, for pixels from 0 to 1. ImageNet's by default; use those the weights were trained with.

    Raises ImageError for settings that make no sense, and when called with an image so elongated that resizing it
    would take more than MAX_PIXELS pixels.
    """

    height: int = 224
    width: int = 224
    mode: Mode = "crop"
    resize: int | None = None
    multiple: int = 16
    interpolation: Interpolation = "bicubic"
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        for name in ("height", "width", "multiple") + (() if self.resize is None else ("resize",)):
            object.__setattr__(self, name, _positive(name, getattr(self, name)))
        for name in ("mean", "std"):
            object.__setattr__(self, name, _three(name, getattr(self, name)))
        for name, allowed in (("mode", get_args(Mode)), ("interpolation", get_args(Interpolation))):
            if getattr(self, name) not in allowed:
                raise ImageError(f"Expected {name} to be one of {', '.join(allowed)}; {getattr(self, name)!r} came.")
        if min(self.std) <= 0:
            raise ImageError(f"Expected std above 0 in every channel; {self.std} came. Use 1 where nothing is divided.")
        if self.height * self.width > MAX_PIXELS:
            raise ImageError(f"Expected an input of at most {MAX_PIXELS} pixels; {self.height} x {self.width} came.")
        if self.mode == "crop" and self._shorter < min(self.height, self.width):
            raise ImageError(
                f"Expected resize to be at least the shorter side of the {self.height} x {self.width} input; "
                f"{self.resize} came. Raise resize, or use mode='pad'."
            )
        if self.mode == "native" and self.height * self.width < self.multiple**2:
            raise ImageError(
                f"Expected room for one patch of {self.multiple} x {self.multiple}; the budget is "
                f"{self.height} x {self.width} pixels. Raise height and width, or lower multiple."
            )

    @property
    def _shorter(self) -> int:
        return self.resize if self.resize is not None else round(min(self.height, self.width) / 0.875)

    def __call__(self, image: Image.Image) -> Prepared:
        """Prepare an RGB image, as ``decode`` returns it: float32 pixels (3, H, W) and their geometry."""
        if not isinstance(image, Image.Image) or image.mode != "RGB":
            came = f"mode {image.mode}" if isinstance(image, Image.Image) else type(image).__name__
            raise ImageError(f"Expected an upright PIL image of mode RGB; {came} came. Call decode(image) first.")
        check_size(*image.size, "this image")
        (rw, rh), (left, top), (height, width) = self._plan(*image.size)
        if rw * max(rh, image.height) > MAX_PIXELS:  # Pillow resizes the rows first, and holds rw x image.height
            raise ImageError(
                f"Expected an image nearer to a square; {image.width} x {image.height} would become {rw} x {rh} on "
                f"the way to the model. Cut out the part that matters, or use mode='pad'."
            )
        resized = image.resize((rw, rh), Image.Resampling[self.interpolation.upper()])
        part = resized.crop((max(0, -left), max(0, -top), min(rw, width - left), min(rh, height - top)))
        pixels = np.zeros((3, height, width), np.float32)  # zero is the mean colour: the padding, exactly
        x, y = max(0, left), max(0, top)
        pixels[:, y : y + part.height, x : x + part.width] = self._normalise(part)
        sx, sy = image.width / rw, image.height / rh  # pixels of the photograph in one pixel of the resized picture
        frame = (-left * sx, -top * sy, (width - left) * sx, (height - top) * sy)
        return Prepared(pixels, Geometry(image.size, (height, width), frame))

    def input_size(self, width: int, height: int) -> tuple[int, int]:
        """The (height, width) of the model's input for a photograph of width x height pixels, before any work."""
        return self._plan(width, height)[2]

    def at(self, side: int, multiple: int) -> Preprocess:
        """The same preprocessing for an input of another size.

        Args:
            side: in pixels. Mode "native" takes it as the side of a square with as many pixels as the input may have;
                in the others it is the input's longer side, and the shorter one keeps its proportion.
            multiple: what both sides are rounded to multiples of, in pixels: the patch size.

        Raises:
            ImageError: if that is less than one patch, or more than MAX_PIXELS pixels.
        """
        side, multiple = _positive("size", side), _positive("multiple", multiple)
        shorter, longer = sorted((self.height, self.width))
        shape = 1.0 if self.mode == "native" else shorter / longer
        # A little less than the root, because each side may be rounded up by half a patch.
        most = int(math.sqrt(MAX_PIXELS / shape) - multiple * (1 + 1 / shape) / 4) // multiple * multiple
        if not multiple <= side <= most:
            raise ImageError(
                f"Expected a size of at least one patch, {multiple} pixels, and at most {most}; {side} came. "
                f"Choose a size in between; this model's own is {longer}."
            )
        if self.mode == "native":
            return replace(self, height=side, width=side, multiple=math.lcm(self.multiple, multiple))
        height, width = (max(1, round(s * side / longer / multiple)) * multiple for s in (self.height, self.width))
        # In proportion to the shorter side as it came out, so that the same part of the picture is cut out.
        resize = None if self.resize is None else round(self.resize * min(height, width) / shorter)
        return replace(self, height=height, width=width, resize=resize)

    def _plan(self, w: int, h: int) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """For an image w x h: its resized (width, height), its (left, top) in the input, the input (height, width)."""
        height, width = self.height, self.width
        if self.mode == "squash":
            return (width, height), (0, 0), (height, width)
        if self.mode == "native":
            rw, rh = self._native(w, h)
            return (rw, rh), (0, 0), (rh, rw)
        if self.mode == "pad":
            scale = min(width / w, height / h)
            rw, rh = max(1, round(w * scale)), max(1, round(h * scale))
            return (rw, rh), ((width - rw) // 2, (height - rh) // 2), (height, width)
        # The expressions are torchvision's own, float division included: another rounding would be another image.
        short = self._shorter
        rw, rh = (short, int(short * h / w)) if w <= h else (int(short * w / h), short)
        if rw < width or rh < height:  # torchvision would pad with black; cover the input instead
            rw, rh = (width, width * h // w) if width * h >= height * w else (height * w // h, height)
        return (rw, rh), (-round((rw - width) / 2.0), -round((rh - height) / 2.0)), (height, width)

    def _native(self, w: int, h: int) -> tuple[int, int]:
        """The size nearest to the image's shape with about height * width pixels and sides in multiples.

        An image too elongated for that is one patch thick, and then no longer than the budget, so that it cannot
        cost more than others.
        """
        patches = self.height * self.width / self.multiple**2
        across, down = math.sqrt(patches * w / h), math.sqrt(patches * h / w)
        across, down = (max(1, min(round(side), int(patches))) for side in (across, down))
        return across * self.multiple, down * self.multiple

    def _normalise(self, image: Image.Image) -> npt.NDArray[np.float32]:
        """RGB picture -> float32 (3, h, w), by the same float32 steps as torchvision's ToTensor and Normalize."""
        pixels = np.array(image, np.float32).transpose(2, 0, 1)  # (h, w, 3) -> (3, h, w)
        mean, std = (np.array(v, np.float32)[:, None, None] for v in (self.mean, self.std))
        pixels /= np.float32(255)  # each in place: a large input would else stand in memory four times
        pixels -= mean
        pixels /= std
        return pixels

    def restore(self, pixels: npt.NDArray[np.floating[Any]]) -> Image.Image:
        """Show normalised pixels (3, H, W) as the picture the model saw: the inverse of the normalisation, rounded."""
        pixels = np.asarray(pixels)
        if pixels.ndim != 3 or pixels.shape[0] != 3 or pixels.size == 0 or not np.isfinite(pixels).all():
            raise ImageError(f"Expected finite pixels (3, H, W); shape {pixels.shape} came, or NaN. Choose one image.")
        mean, std = (np.array(v, np.float64)[:, None, None] for v in (self.mean, self.std))
        levels = np.rint((pixels * std + mean) * 255).clip(0, 255).astype(np.uint8)
        return Image.fromarray(np.ascontiguousarray(levels.transpose(1, 2, 0)))  # (3, H, W) -> (H, W, 3)

    def to_dict(self) -> dict[str, Any]:
        """The settings as numbers, strings and lists, ready for JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Preprocess:
        """Rebuild from ``to_dict``'s result. All keys are needed: a default in place of a lost mean would be wrong."""
        if not isinstance(settings, Mapping):
            raise ImageError(f"Expected the settings as a mapping; {type(settings).__name__} came. Use to_dict().")
        wanted, came = {field.name for field in fields(cls)}, set(settings)
        if wanted != came:
            raise ImageError(
                f"Expected the settings {', '.join(sorted(wanted))}; missing: {sorted(wanted - came) or 'none'}, "
                f"unknown: {sorted(map(str, came - wanted)) or 'none'}. Use to_dict's result."
            )
        return cls(**settings)


def _positive(name: str, value: object) -> int:
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = 0
    if number < 1:
        raise ImageError(f"Expected {name} as a whole number of pixels above 0; {value!r} came.")
    return number


def _three(name: str, values: object) -> tuple[float, float, float]:
    if isinstance(values, tuple | list) and len(values) == 3:
        numbers = [float(v) if isinstance(v, int | float) and not isinstance(v, bool) else math.nan for v in values]
        if all(map(math.isfinite, numbers)):
            return numbers[0], numbers[1], numbers[2]
    raise ImageError(f"Expected {name} as three finite numbers, one a channel; {values!r} came.")
