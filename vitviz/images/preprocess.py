"""Preprocess an upright photograph into a model's input, with the geometry of its pixels."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from vitviz.fields import check_fields, check_names, is_whole
from vitviz.images.bands import RGB, Bands, band_names, planes_of_photo, to_picture
from vitviz.images.geometry import Geometry
from vitviz.images.limits import MAX_PIXELS, ImageError, check_size

Mode = Literal["crop", "squash", "pad", "native"]
Interpolation = Literal["bilinear", "bicubic", "lanczos", "nearest"]

_RANGES = {
    **dict.fromkeys(("height", "width", "multiple", "resize"), (1, math.inf)),
    "mean": (-1e6, 1e6),
    "std": (1e-6, 1e6),  # smaller values would overflow float32
}
_MEANS = {0.485: "ImageNet's", 0.48145466: "CLIP's", 0.5: "0.5 as"}  # keyed by the mean of the first channel
_RESIZE = 8192  # the default for the largest input, rounded up
_RESIZED_PIXELS = 40_000_000  # 160 MB, after the rows and after the columns are resized


@dataclass(frozen=True, eq=False)
class Prepared:
    """Input of a model: normalized pixels (channels, H, W), float32, and their geometry."""

    pixels: npt.NDArray[np.float32]
    geometry: Geometry


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """Preprocessing settings, saved with the weights.

    Args:
        height, width: input size in pixels; mode "native" uses only their product as the pixel budget.
        mode: "crop" resizes the shorter side to `resize` and crops the centre, like torchvision's Resize and CenterCrop
            on PIL images, except that it enlarges the picture instead of adding black margins. "squash" stretches the
            whole picture, to `resize` if it is given, and then crops the centre. "pad" keeps the aspect ratio and pads
            with the mean color. "native" keeps the aspect ratio up to multiples of `multiple`; the input size varies.
        resize: for "crop", in pixels; by default the shorter side of the input / 0.875. A pair (height, width) resizes
            the picture to cover this size, as timm does for inputs that are not square. For "squash", a pair.
        multiple: for "native", the patch size in pixels.
        interpolation: name of Pillow's filter.
        mean, std: per channel, for pixels from 0 to 1; by default ImageNet's. Use the values from training.
        bands: names of the channels, in the model's order; by default red, green and blue. A model with a single band
            of another name reads a photograph's brightness.
        shown: one band, or three, which the picture shows as red, green and blue; by default the bands with these
            names, or the first band.

    Raises:
        ImageError: for invalid settings, and when called with an image too elongated to resize.
    """

    height: int = 224
    width: int = 224
    mode: Mode = "crop"
    resize: int | tuple[int, int] | None = None
    multiple: int = 16
    interpolation: Interpolation = "bicubic"
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    bands: tuple[str, ...] = RGB
    shown: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self, ImageError, _RANGES)
        counts = {len(self.mean), len(self.std), len(self.bands)}
        if len(counts) > 1 or not self.bands or len({*self.bands}) < len(self.bands):
            raise ImageError(
                f"Expected a mean, a standard deviation and a different name for each band, got {len(self.mean)}, "
                f"{len(self.std)} and {', '.join(self.bands)!r:.120}. Give as many of each."
            )
        if not self.shown:
            object.__setattr__(self, "shown", RGB if {*RGB} <= {*self.bands} else self.bands[:1])
        if len(self.shown) not in (1, 3) or not {*self.shown} <= {*self.bands}:
            raise ImageError(
                f"Expected one or three of the bands {', '.join(self.bands)} to show, got {', '.join(self.shown)}. "
                "Choose from these."
            )
        size = f"{self.height} x {self.width}"
        if self.height * self.width > MAX_PIXELS:
            raise ImageError(f"Expected an input of at most {MAX_PIXELS} pixels, got {size}. Choose a smaller one.")
        pair = isinstance(self.resize, tuple)
        minimums = (self.height, self.width) if pair else (min(self.height, self.width),)
        crops = self.mode == "crop" or (self.mode == "squash" and pair)
        if crops and any(side < minimum for side, minimum in zip(self._resize, minimums, strict=True)):
            raise ImageError(
                f"Expected resize of at least {'both sides' if pair else 'the shorter side'} of the {size} input, got "
                f"{self.resize}. "
                "Raise resize, or use mode='pad'."
            )
        if crops and max(self._resize) > _RESIZE:
            raise ImageError(f"Expected resize to be at most {_RESIZE} pixels, got {max(self._resize)}. Lower resize.")
        if self.mode == "native" and self.height * self.width < self.multiple**2:
            raise ImageError(
                f"Expected room for one patch of {self.multiple} x {self.multiple}, got a budget of {size} pixels. "
                "Raise height and width, or lower multiple."
            )

    @property
    def _resize(self) -> tuple[int, ...]:
        """Return the resized shorter side, or the (height, width) that the resized picture covers."""
        if isinstance(self.resize, tuple):
            return self.resize
        return (self.resize if self.resize is not None else round(min(self.height, self.width) / 0.875),)

    def __call__(self, image: Image.Image | Bands) -> Prepared:
        """Prepare an RGB image from `decode`, or bands: float32 pixels (channels, H, W) and their geometry."""
        if not isinstance(image, Bands) and (not isinstance(image, Image.Image) or image.mode != "RGB"):
            got = f"mode {image.mode}" if isinstance(image, Image.Image) else type(image).__name__
            raise ImageError(f"Expected an upright PIL image of mode RGB, got {got}. Call decode(image) first.")
        check_size(*image.size, "this image")
        (rw, rh), (left, top), (height, width) = self.plan(*image.size)
        # Pillow resizes rows first, to rw x image.height. Large inputs have a higher limit.
        if rw * (rh + image.height) > max(_RESIZED_PIXELS, 3 * max(height, width, *self._resize) ** 2):
            raise ImageError(
                f"Expected a less elongated image, got {image.width} x {image.height}, which would be resized to "
                f"{rw} x {rh}. Crop it to the part that matters, or use mode='pad'."
            )
        planes = image.planes(self.bands) if isinstance(image, Bands) else planes_of_photo(image, self.bands)
        resized = (plane.resize((rw, rh), Image.Resampling[self.interpolation.upper()]) for plane in planes)
        box = max(0, -left), max(0, -top), min(rw, width - left), min(rh, height - top)
        parts = [plane.crop(box) for plane in resized]
        pixels = np.zeros((len(self.bands), height, width), np.float32)  # zero is the mean color, used for padding
        x, y = max(0, left), max(0, top)
        pixels[:, y : y + parts[0].height, x : x + parts[0].width] = self._normalize(parts)
        sx, sy = image.width / rw, image.height / rh  # pixels of the photograph in one pixel of the resized picture
        frame = (-left * sx, -top * sy, (width - left) * sx, (height - top) * sy)
        return Prepared(pixels, Geometry(image.size, (height, width), frame))

    def input_size(self, width: int, height: int) -> tuple[int, int]:
        """Return the input's (height, width) for a photograph of width x height pixels."""
        return self.plan(width, height)[2]

    @property
    def side(self) -> float:
        """Return the input size of this preprocessing in pixels, as `at` takes it."""
        return math.sqrt(self.height * self.width) if self.mode == "native" else max(self.height, self.width)

    def at(self, size: int, multiple: int) -> "Preprocess":
        """Return this preprocessing for another input size.

        Args:
            size: longer side of the input in pixels; the shorter side keeps its proportion. For mode "native", the side
                of a square with the pixel budget.
            multiple: patch size in pixels; both sides are rounded to multiples of it.

        Raises:
            ImageError: if the size is below one patch, or above MAX_PIXELS pixels.
        """
        shorter, longer = sorted((self.height, self.width))
        shape = 1.0 if self.mode == "native" else shorter / longer
        # Slightly below the square root of the limit, because each side may be rounded up by half a patch.
        largest = int(math.sqrt(MAX_PIXELS / shape) - multiple * (1 + 1 / shape) / 4) // multiple * multiple
        if not (is_whole(size) and multiple <= size <= largest):
            raise ImageError(
                f"Expected a size of at least one patch, {multiple} pixels, and at most {largest}, got {size}. "
                f"Choose a size in between; the model's native size is {longer}."
            )
        if self.mode == "native":
            return replace(self, height=size, width=size, multiple=math.lcm(self.multiple, multiple))
        height, width = (max(1, round(s * size / longer / multiple)) * multiple for s in (self.height, self.width))
        return self.shaped(height, width)

    def shaped(self, height: int, width: int) -> "Preprocess":
        """Return this preprocessing for another input height and width in pixels.

        `resize` scales in proportion, so the crop covers the same part of the picture.
        """
        resize: int | tuple[int, int] | None = self.resize
        if isinstance(resize, tuple):
            resize = round(resize[0] * height / self.height), round(resize[1] * width / self.width)
        elif resize is not None:
            resize = round(resize * min(height, width) / min(self.height, self.width))
        return replace(self, height=height, width=width, resize=resize)

    def plan(self, w: int, h: int) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Return the resized (width, height), the (left, top) in the input, and (height, width), for an image w x h."""
        height, width = self.height, self.width
        if self.mode == "native":
            rw, rh = self._native(w, h)
            return (rw, rh), (0, 0), (rh, rw)
        if self.mode == "pad":
            scale = min(width / w, height / h)
            rw, rh = max(1, round(w * scale)), max(1, round(h * scale))
            return (rw, rh), ((width - rw) // 2, (height - rh) // 2), (height, width)
        if self.mode == "squash":
            rh, rw = self.resize if isinstance(self.resize, tuple) else (height, width)
        elif isinstance(self.resize, tuple):  # timm's ResizeKeepRatio
            ratio = min(h / self.resize[0], w / self.resize[1])
            rw, rh = round(w / ratio), round(h / ratio)
        else:
            (resize,) = self._resize
            rw, rh = (resize, int(resize * h / w)) if w <= h else (int(resize * w / h), resize)
            if rw < width or rh < height:  # enlarge the picture, where torchvision would pad with black
                rw, rh = (width, width * h // w) if width * h >= height * w else (height * w // h, height)
        # The expressions of torchvision, including float division: other rounding would change the image.
        return (rw, rh), (-round((rw - width) / 2.0), -round((rh - height) / 2.0)), (height, width)

    def _native(self, w: int, h: int) -> tuple[int, int]:
        """Return the (width, height) in multiples closest to the image's shape, with about height * width pixels.

        A very elongated image becomes one patch thick and at most as long as the budget allows.
        """
        patches = self.height * self.width / self.multiple**2
        across, down = math.sqrt(patches * w / h), math.sqrt(patches * h / w)
        across, down = (max(1, min(round(side), int(patches))) for side in (across, down))
        return across * self.multiple, down * self.multiple

    def _normalize(self, planes: list[Image.Image]) -> npt.NDArray[np.float32]:
        """Normalize pictures to float32 (channels, h, w), with the steps of torchvision's ToTensor and Normalize."""
        arrays = [np.atleast_3d(np.array(plane, np.float32)) for plane in planes]
        pixels = (arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=2)).transpose(2, 0, 1)
        mean, std = (np.array(v, np.float32)[:, None, None] for v in (self.mean, self.std))
        if planes[0].mode != "F":
            pixels /= np.float32(255)  # in place, to avoid four copies of a large input
        pixels -= mean
        pixels /= std
        return pixels

    def restore(self, pixels: npt.NDArray[np.floating[Any]]) -> Image.Image:
        """Return the picture of normalized pixels (channels, H, W), rounded; see `shown`."""
        pixels, count = np.asarray(pixels), len(self.bands)
        if pixels.ndim != 3 or pixels.shape[0] != count or pixels.size == 0 or not np.isfinite(pixels).all():
            raise ImageError(
                f"Expected finite pixels ({count}, H, W), got shape {pixels.shape} or NaN. Choose one image."
            )
        mean, std = (np.array(v, np.float64)[:, None, None] for v in (self.mean, self.std))
        values = (pixels * std + mean)[[self.bands.index(name) for name in self.shown]]
        values = values.clip(0, 1) if self.bands == RGB else values
        return to_picture(values.transpose(1, 2, 0))  # (1 or 3, H, W) -> (H, W, 1 or 3)

    def picture(self, image: Image.Image | Bands) -> Image.Image:
        """Return the RGB picture that shows an image: the photograph, or the `shown` bands."""
        return image.picture(self.shown) if isinstance(image, Bands) else image

    def with_channels(self, count: int) -> "Preprocess":
        """Return this preprocessing for a model with `count` channels.

        If their number differs, all have the average mean and standard deviation and are called grey, or band 1, band 2
        and so on.
        """
        if count == len(self.bands):
            return self
        mean, std = ((sum(values) / len(values),) * count for values in (self.mean, self.std))
        return replace(self, mean=mean, std=std, bands=band_names(count), shown=())

    def describe(self) -> str:
        """Return the settings as text: "ImageNet's mean and standard deviation, 224 x 224 pixels, squashed ..."."""
        colors = f"{_MEANS.get(self.mean[0], 'own')} mean and standard deviation"
        squashed = f"cut from a picture squashed to {self._sides}" if isinstance(self.resize, tuple) else "squashed"
        forms = {"crop": f"cut from {self._describe_resize()}", "squash": squashed, "pad": "padded"}
        form = forms.get(self.mode, "in the photograph's own shape")
        bands = "" if self.bands == RGB else f", of {', '.join(self.bands)}"
        return f"{colors}{bands}, {self.height} x {self.width} pixels, {form} ({self.interpolation})"

    def _describe_resize(self) -> str:
        covers = "a picture that covers" if isinstance(self.resize, tuple) else "a shorter side of"
        return f"{covers} {self._sides}"

    @property
    def _sides(self) -> str:
        return " x ".join(map(str, self._resize))

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as numbers, strings and lists, ready for JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        lists = {name: list(values.pop(name)) for name in ("mean", "std", "bands", "shown")}
        return values | {name: lists[name] for name in (("mean", "std") if self.bands == RGB else lists)}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> "Preprocess":
        """Build from the result of `to_dict`; all keys but those of bands are required: a default could be wrong."""
        known = {field.name for field in fields(cls)}
        own = settings.keys() if isinstance(settings, Mapping) else ()
        check_names(settings, sorted(known - ({"bands", "shown"} - {*own})), ImageError, complete=True)
        return cls(**settings)
