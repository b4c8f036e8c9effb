"""Numbers to colours: which map is drawable, which number gets which colour, and the tables of colour.

A scale is always explicit and recorded, so that a picture can say whether equal colours mean equal numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Bytes: TypeAlias = NDArray[np.uint8]
Kind: TypeAlias = Literal["each", "shared", "signed", "fixed"]

SEQUENTIAL = "viridis"  # perceptually uniform
DIVERGING = "RdBu_r"  # white at zero, red above, blue below


class OverlayError(ValueError):
    """A map, a scale or a photograph that cannot be drawn; the text says what to do."""


def as_map(values: ArrayLike, name: str = "values") -> NDArray[np.float32]:
    """`values` as a float32 (gh, gw) array; raises `OverlayError` unless it is 2-D, not empty and finite."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise OverlayError(f"{name}: expected real numbers, got dtype {array.dtype}; convert them to float32.")
    if array.ndim != 2 or array.size == 0:
        raise OverlayError(
            f"{name}: expected shape (gh, gw), one number a patch, got {array.shape}; choose one image and one head."
        )
    with np.errstate(over="ignore"):  # float64 beyond float32 becomes inf, and is refused on the next line
        array = array.astype(np.float32, copy=False)
    if not np.isfinite(array).all():
        bad = int(array.size - np.isfinite(array).sum())
        raise OverlayError(
            f"{name}: expected finite numbers, got {bad} NaN or infinite of {array.size}; "
            "look for the division or overflow that made them."
        )
    return array


@dataclass(frozen=True)
class Scale:
    """Which number gets which colour: `vmin` the first colour, `vmax` the last; values beyond are clipped.

    `kind` records how the range was chosen: "each" (this map's own minimum and maximum), "shared" (over a set of maps),
    "signed" (over a set, symmetric about zero) or "fixed" (given by the caller). `signed` keeps zero in the middle of
    the colours, for any kind. Make one over all frames and pass it to every frame, and an animation does not flicker.

    Raises `OverlayError` for a range that is not finite, runs backwards, or is signed but not symmetric about zero.
    """

    vmin: float
    vmax: float
    kind: Kind = "fixed"
    signed: bool = False

    def __post_init__(self) -> None:
        if not (np.isfinite(self.vmin) and np.isfinite(self.vmax) and self.vmin <= self.vmax):
            raise OverlayError(
                f"scale: expected finite vmin <= vmax, got ({self.vmin}, {self.vmax}); give the lower number first."
            )
        if self.signed and self.vmin != -self.vmax:
            reach = max(abs(self.vmin), abs(self.vmax))
            raise OverlayError(
                "scale: a signed map needs a range symmetric about zero, so that zero has the middle colour, got "
                f"({self.vmin}, {self.vmax}); pass ({-reach}, {reach})."
            )

    @classmethod
    def over(cls, maps: Sequence[ArrayLike], kind: Kind = "shared", signed: bool = False) -> Scale:
        """The scale of a set of maps: their common minimum and maximum, or symmetric about zero when signed."""
        arrays = [as_map(m) for m in maps]
        if not arrays:
            raise OverlayError("scale: expected at least one map, got none; choose a head or a layer.")
        low, high = min(float(a.min()) for a in arrays), max(float(a.max()) for a in arrays)
        signed = signed or kind == "signed"
        if signed:
            high = max(abs(low), abs(high))
            low = -high
        return cls(low, high, kind, signed)

    def indices(self, values: ArrayLike, gamma: float = 1.0) -> Bytes:
        """Colour indices 0..255 of `values`, same shape; `gamma` below 1 lifts small values (small magnitudes when
        signed).
        """
        if not (np.isfinite(gamma) and gamma > 0):
            raise OverlayError(f"gamma: expected a number above 0, got {gamma}; 1 leaves the values as they are.")
        span = self.vmax - self.vmin
        if span > 0:
            t = np.clip((np.asarray(values, dtype=np.float64) - self.vmin) / span, 0.0, 1.0)
        else:  # a constant map has one colour: the neutral one when signed, else the first
            t = np.full(np.shape(values), 0.5 if self.signed else 0.0)
        if gamma != 1.0:
            t = 0.5 + 0.5 * np.sign(2 * t - 1) * np.abs(2 * t - 1) ** gamma if self.signed else t**gamma
        return np.rint(t * 255).astype(np.uint8)


@lru_cache(maxsize=64)
def lut(cmap: str) -> Bytes:
    """The colour map called `cmap` in matplotlib, as a read-only (256, 3) table of 8-bit RGB."""
    from matplotlib import colormaps  # 0.1 s, and only for who draws

    if cmap not in colormaps:
        raise OverlayError(
            f"cmap: expected the name of a matplotlib colour map, got {cmap!r}; try viridis, magma, cividis or RdBu_r."
        )
    table: Bytes = colormaps[cmap](np.linspace(0.0, 1.0, 256), bytes=True)[:, :3].copy()
    table.setflags(write=False)
    return table


ScaleChoice: TypeAlias = Literal["each", "shared", "signed"] | Scale | tuple[float, float]


def resolve(choice: ScaleChoice, maps: Sequence[NDArray[np.float32]], signed: bool) -> Scale:
    """One scale for `maps`: "each" and "shared" over them, "signed" symmetric about zero, or a given range."""
    if isinstance(choice, Scale):
        return choice
    if isinstance(choice, str):
        if choice not in ("each", "shared", "signed"):
            raise OverlayError(f"scale: expected 'each', 'shared', 'signed', a Scale or (vmin, vmax), got {choice!r}.")
        return Scale.over(maps, choice, signed)
    if len(choice) != 2:
        raise OverlayError(f"scale: expected (vmin, vmax), got {choice!r}.")
    return Scale(float(choice[0]), float(choice[1]), "fixed", signed)
