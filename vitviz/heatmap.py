"""Define heatmaps (one score per patch, and the patches' pixels in the photograph) and color scales.

`Heatmap` keeps the raw values; `Scale` records how values become colors. `vitviz.draw` draws the pictures. It depends
on this module, so methods import it when they are called.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from vitviz.errors import VitvizError
from vitviz.fields import check_arguments
from vitviz.formatting import number, percent, short_repr
from vitviz.images.geometry import Geometry
from vitviz.images.picture import Picture
from vitviz.phrases import Phrase, items, sentences
from vitviz.writing import read_arrays, write_arrays

__all__ = ["Heatmap", "HeatmapError", "Scale", "ScaleChoice"]

OWN_QUANTILE, FAR, FEW = 0.99, 1.5, 16
"""For `Scale.own`: quantile at which outliers are clipped, how far an outlier lies beyond it, and minimum patches."""

GEOMETRY, TEXTS = ("image", "input", "frame"), ("title", "unit", "signed")
SAVED = ("values", *GEOMETRY, *TEXTS, "prefix_names", "prefix_mass", "query", "classes")


class HeatmapError(VitvizError):
    """Raised if values, geometry, photograph or scale do not match, or a file is not a heatmap."""


def as_map(values: ArrayLike) -> NDArray[np.float32]:
    """Return `values` as a float32 (gh, gw) array.

    Raises:
        HeatmapError: unless the values are 2-D, not empty, real, and finite in float32.
    """
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise HeatmapError(f"Expected values as real numbers, got dtype {array.dtype}. Convert them to float32.")
    if array.ndim != 2 or array.size == 0:
        raise HeatmapError(
            f"Expected values of shape (gh, gw), one number per patch, got {array.shape}. Choose one image and head."
        )
    with np.errstate(over="ignore"):  # values beyond float32 become inf, checked below
        array = array.astype(np.float32, copy=False)
    if bad := int((~np.isfinite(array)).sum()):
        raise HeatmapError(
            f"Expected values as finite numbers, got {bad} NaN or infinite of {array.size}. "
            "Look for the division or overflow that produced them."
        )
    return array


@dataclass(frozen=True)
class Scale:
    """Range of values for colors: `vmin` has the first color, `vmax` the last; other values are clipped.

    Use one scale for all frames of an animation, so that equal colors mean equal numbers.

    Args:
        vmin, vmax: ends of the range.
        kind: "each" (see `own`), "full" (minimum and maximum of a map), "shared" (one for several maps),
            "signed" (symmetric about zero) or "fixed" (chosen by the caller).
        signed: whether zero has the middle color.
        clipped: number of clipped patches, which pictures mark.

    Raises:
        HeatmapError: if the range is not finite, is reversed, or is signed but not symmetric about zero.
    """

    vmin: float
    vmax: float
    kind: Literal["each", "full", "shared", "signed", "fixed"] = "fixed"
    signed: bool = False
    clipped: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.vmin) and math.isfinite(self.vmax) and self.vmin <= self.vmax):
            raise HeatmapError(
                f"Expected finite vmin <= vmax, got ({self.vmin}, {self.vmax}). Give the lower number first."
            )
        if self.signed and self.vmin != -self.vmax:
            reach = max(abs(self.vmin), abs(self.vmax))
            raise HeatmapError(
                "Expected a range symmetric about zero for a signed map, so that zero has the middle color, got "
                f"({self.vmin}, {self.vmax}). Pass ({-reach}, {reach})."
            )

    @classmethod
    def own(cls, values: ArrayLike, signed: bool = False) -> Scale:
        """Return the default scale of one map: its minimum and maximum, or less if there are outliers.

        It ends at the 99th percentile if the strongest patch is more than 1.5 times as far from the minimum (from zero
        if signed); one patch would take most of the colors otherwise. Maps with fewer than 16 patches are not clipped.
        """
        array = as_map(values).ravel()
        sizes = np.sort(np.abs(array) if signed else array)
        low, high = 0.0 if signed else float(sizes[0]), float(sizes[-1])
        end = float(sizes[int(OWN_QUANTILE * (len(sizes) - 1))])
        if len(sizes) < FEW or not (end > low and high - low > FAR * (end - low)):
            end = high
        return cls(-end if signed else low, end, "each", signed, int((sizes > end).sum()))

    @classmethod
    def over(
        cls, maps: Sequence[ArrayLike], kind: Literal["full", "shared", "signed"] = "shared", signed: bool = False
    ) -> Scale:
        """Return the scale from the minimum to the maximum of all maps, symmetric about zero if signed."""
        arrays = [as_map(values) for values in maps]
        if not arrays:
            raise HeatmapError("Expected at least one map, got none. Choose a head or a layer.")
        low, high = min(float(a.min()) for a in arrays), max(float(a.max()) for a in arrays)
        if signed or kind == "signed":
            high = max(abs(low), abs(high))
            return cls(-high, high, kind, True)
        return cls(low, high, kind)

    @classmethod
    def choose(cls, choice: ScaleChoice, maps: Sequence[ArrayLike], signed: bool) -> Scale:
        """Return the shared scale of `maps` for a kind, a scale, or (vmin, vmax)."""
        if isinstance(choice, Scale):
            return choice
        if not isinstance(choice, str) and len(choice) == 2:
            return cls(float(choice[0]), float(choice[1]), "fixed", signed)
        if choice == "each" and len(maps) == 1:
            return cls.own(maps[0], signed)
        if choice not in ("full", "shared", "signed"):
            raise HeatmapError(
                f"Expected scale as 'each', 'full', 'shared', 'signed', a Scale or (vmin, vmax), got {choice!r}. "
                "Pass one."
            )
        return cls.over(maps, choice, signed)

    def indices(self, values: ArrayLike, gamma: float = 1.0) -> NDArray[np.uint8]:
        """Return color indices 0..255 in the shape of `values`.

        Args:
            values: numbers of any shape.
            gamma: exponent of the normalized values, or of their magnitudes if signed; below 1 it lifts small values.
        """
        if not (math.isfinite(gamma) and gamma > 0):
            raise HeatmapError(f"Expected gamma above 0, got {gamma}. Use 1 to leave the values as they are.")
        span = self.vmax - self.vmin
        if span > 0:
            t = np.clip((np.asarray(values, dtype=np.float64) - self.vmin) / span, 0.0, 1.0)
        else:  # a constant map has the middle color if signed, else the first
            t = np.full(np.shape(values), 0.5 if self.signed else 0.0)
        if gamma != 1.0:
            t = 0.5 + 0.5 * np.sign(2 * t - 1) * np.abs(2 * t - 1) ** gamma if self.signed else t**gamma
        return np.rint(t * 255).astype(np.uint8)


ScaleChoice: TypeAlias = Literal["each", "full", "shared", "signed"] | Scale | tuple[float, float]


@check_arguments(HeatmapError)
@dataclass(frozen=True, eq=False)
class Heatmap:
    """One map over one photograph.

    Notebooks display it as a picture, and NumPy reads its values: `np.asarray(heatmap)`, `plt.imshow(heatmap)`.

    Args:
        values: (gh, gw) raw, finite numbers; copied to read-only float32.
        geometry: maps patches to pixels of the photograph.
        photo: the upright photograph, shared and not copied.
        title: display name ("Layer 12, head 4").
        unit: "attention" is printed in percent; other units are printed beside the numbers.
        signed: whether negative values are meaningful.
        prefix_mass: mass outside the picture by kind of prefix token, e.g. {"CLS": 0.12}: a share, 0 to 1, for
            attention (and maps without a unit), else a number in the map's unit.
        query: (row, column) of the query patch, outlined in pictures.
        classes: index of the explained class, two indices (A, B) for a contrast, or empty.
        question: arguments of `View.explain` as JSON data, {"method": "attention", "block": 11, ...}, or empty.
        estimate: uncertainty of the values, for methods that estimate them; not saved in files.

    Raises:
        HeatmapError: for values that are not a finite 2-D array, a photograph whose size differs from the
            geometry's, a share outside 0 to 1, or a query outside the grid.

    Example:
        >>> import numpy as np
        >>> from PIL import Image
        >>> from vitviz.heatmap import Heatmap
        >>> from vitviz.images.preprocess import Preprocess
        >>> photo = Image.new("RGB", (640, 480), "gray")
        >>> geometry = Preprocess(height=224, width=224, mode="crop")(photo).geometry
        >>> values = np.zeros((14, 14)); values[3, 5] = 0.4
        >>> heatmap = Heatmap(values, geometry, photo, title="Layer 12, head 4", prefix_mass={"CLS": 0.6})
        >>> heatmap.overlay(alpha=0.6, grid=True).size
        (640, 480)
        >>> [(patch, round(value, 2)) for patch, value in heatmap.top(1)]
        [((3, 5), 0.4)]
    """

    values: NDArray[np.float32]
    geometry: Geometry
    photo: Image.Image = field(repr=False)
    title: str = ""
    unit: str = ""
    signed: bool = False
    prefix_mass: Mapping[str, float] = field(default_factory=dict)
    query: tuple[int, int] | None = None
    classes: tuple[int, ...] = ()
    question: Mapping[str, Any] = field(default_factory=dict, repr=False)
    estimate: str = ""

    __repr__ = short_repr

    def __post_init__(self) -> None:
        values = np.array(as_map(self.values), order="C")  # copy the caller's array
        values.setflags(write=False)
        masses = {str(name): float(mass) for name, mass in self.prefix_mass.items()}
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "prefix_mass", MappingProxyType(masses))
        check_photo(self.photo, self.geometry)
        for name, mass in masses.items():
            # Sums of float32 probabilities may slightly exceed 1. NaN fails both comparisons.
            if not (-1e-4 <= mass <= 1.0 + 1e-4 if self.in_shares else math.isfinite(mass)):
                kind = "a share from 0 to 1" if self.in_shares else "a finite number"
                raise HeatmapError(f"Expected prefix_mass {name!r} as {kind}, got {mass}. Divide by the row's sum.")
        if self.query is not None:
            object.__setattr__(self, "query", check_query(self.query, self.grid))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the values for NumPy, read-only unless copied."""
        if copy or (dtype is not None and dtype != self.values.dtype):
            return np.array(self.values, dtype)
        return self.values

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickle and copy."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return type(self), tuple((values | {"prefix_mass": dict(self.prefix_mass)}).values())

    def _repr_png_(self) -> bytes:
        """Return a picture for notebooks: the map with title, mass and color bar."""
        from vitviz.draw.sheet import card

        buffer = io.BytesIO()
        card(self).save(buffer, "PNG")
        return buffer.getvalue()

    @property
    def grid(self) -> tuple[int, int]:
        """Return (gh, gw): patches down and across."""
        return self.values.shape[0], self.values.shape[1]

    @property
    def in_shares(self) -> bool:
        """Return whether prefix masses are shares, not numbers in the map's unit."""
        return self.unit in ("", "attention")

    @property
    def explained(self) -> int | str | tuple[int, int] | None:
        """Return the explained class, target (as its spelling) or contrast of two classes; `None` for none."""
        if len(self.classes) == 2:
            return self.classes[0], self.classes[1]
        target: int | str | None = self.classes[0] if self.classes else self.question.get("target")
        return target

    def over(self, photo: Image.Image, geometry: Geometry | None = None) -> Heatmap:
        """Return the map over another picture.

        `geometry`, from `Preprocess`, defines the part that the model saw; by default, `photo` is a resized copy.
        """
        return replace(self, photo=photo, geometry=geometry or self.geometry.rescaled(photo.size))

    def describe_prefix_mass(self) -> str:
        """Return the attention mass outside the picture as text: "12.0 % on CLS", or ""."""
        form = percent if self.in_shares else number
        return items([Phrase("share-on", "{0} on {1}", form(mass), name) for name, mass in self.prefix_mass.items()])

    @property
    def note(self) -> str:
        """Return a note on the mass outside the picture, or that the map is blank."""
        mass, blank = self.describe_prefix_mass(), self.values.min() == self.values.max()
        outside = Phrase("outside-the-picture", "Outside the picture: {0}.", mass) if mass else ""
        constant = Phrase("blank-map", "Blank: all patches score the same.") if blank else ""
        return sentences(outside, constant, self.estimate)

    def scale(self, choice: ScaleChoice = "each") -> Scale:
        """Return the scale for a choice: "each" (see `Scale.own`), "full" (minimum and maximum), "signed",
        (vmin, vmax), or a `Scale` of several maps from `Scale.over`. A signed map's scale is symmetric about zero.
        """
        if isinstance(choice, str) and choice == "shared":
            raise HeatmapError(
                "Expected a scale of one map, got 'shared'. Make Scale.over([a.values, b.values]) and pass that "
                "to each map."
            )
        return Scale.choose(choice, [self.values], self.signed)

    def overlay(
        self, alpha: float = 0.5, cmap: str | None = None, *, scale: ScaleChoice = "each", **options: Any
    ) -> Picture:
        """Draw the map over the photograph as a new RGB picture of its size, a PIL image whose `save` returns the path.

        `options` are those of `vitviz.draw.overlay.overlay`: grid, smooth, gamma, unseen, gray.
        """
        from vitviz.draw.overlay import overlay

        options |= {"scale": self.scale(scale), "query": self.query}
        return Picture(overlay(self.photo, self.values, self.geometry, alpha=alpha, cmap=cmap, **options))

    def colorbar(self, cmap: str | None = None, *, scale: ScaleChoice = "each", **options: Any) -> Picture:
        """Draw the color bar of `overlay` for the same arguments.

        `options` are those of `vitviz.draw.colorbar.colorbar`: size, dark, gamma.
        """
        from vitviz.draw.colorbar import colorbar

        return Picture(colorbar(self.scale(scale), cmap, self.unit, **options))

    def top(self, k: int = 5) -> list[tuple[tuple[int, int], float]]:
        """Return the k strongest patches, [((row, column), value)], strongest first (by magnitude when signed); ties in
        reading order.
        """
        if k < 0:
            raise HeatmapError(f"Expected k as a number of patches, 0 or more, got {k}. Pass at least 0.")
        flat = self.values.ravel()
        order = np.argsort(-np.abs(flat) if self.signed else -flat, kind="stable")[:k]
        return [(divmod(int(i), self.grid[1]), float(flat[i])) for i in order]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write values, geometry and descriptions, but not the photograph, to a .npz file without pickle.

        `vitviz.export.numbers.save` also records model and photograph, so the map can be reproduced.

        Returns:
            The path of the file.
        """
        target = Path(path)
        if target.suffix.lower() != ".npz":
            raise HeatmapError(
                f"Expected a name that ends in .npz, got {target.name!r}. Use overlay().save(...) for pictures."
            )
        write_arrays(target, self.arrays())
        return target

    def arrays(self) -> dict[str, Any]:
        """Return the arrays that `save` writes, by name."""
        saved: dict[str, Any] = {name: getattr(self.geometry, name) for name in GEOMETRY}
        saved |= {name: getattr(self, name) for name in ("values", *TEXTS)}
        saved |= {"prefix_names": [*self.prefix_mass], "prefix_mass": [*self.prefix_mass.values()]}
        return saved | {"query": np.array(self.query or (), int), "classes": np.array(self.classes, int)}

    @classmethod
    def load(cls, path: str | os.PathLike[str], photo: Image.Image) -> Heatmap:
        """Load a saved heatmap; `photo` is the upright photograph, which the file does not contain."""
        saved = {name: array.tolist() for name, array in read_arrays(path, SAVED, HeatmapError).items()}
        return cls(
            values=np.array(saved["values"], np.float32),
            geometry=Geometry(**{name: tuple(saved[name]) for name in GEOMETRY}),
            photo=photo,
            **{name: saved[name] for name in TEXTS},
            prefix_mass=dict(zip(saved["prefix_names"], saved["prefix_mass"], strict=True)),
            query=tuple(saved["query"]) or None,
            classes=tuple(saved["classes"]),
        )


def check_photo(photo: Image.Image, geometry: Geometry) -> None:
    """Raise HeatmapError unless the photograph has the geometry's size."""
    if photo.size != tuple(geometry.image):
        raise HeatmapError(
            f"Expected photo as the upright original of {geometry.image[0]} x {geometry.image[1]} pixels, got "
            f"{photo.size[0]} x {photo.size[1]}. Pass the photograph that was given to the model."
        )


def check_query(query: tuple[int, int], grid: tuple[int, int]) -> tuple[int, int]:
    """Return (row, column) as integers, or raise HeatmapError if they lie outside the grid (gh, gw)."""
    (row, col), (gh, gw) = query, grid
    if not (0 <= row < gh and 0 <= col < gw):
        raise HeatmapError(f"Expected query (row, column) inside {gh} x {gw} patches, got {query}. Count from 0.")
    return int(row), int(col)
