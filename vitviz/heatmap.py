"""A heatmap: numbers on patches, and where those patches lie in the photograph.

`Heatmap` keeps the raw values. Colours, ranges and pictures are made from them on demand and never stored in their
place.
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitviz.preprocess import Geometry
from vitviz.render.colorbar import colorbar
from vitviz.render.colors import OverlayError, Scale, ScaleChoice, as_map, resolve
from vitviz.render.overlay import overlay

__all__ = ["Heatmap", "HeatmapError"]


_SAVED = {
    "values",
    "image",
    "input",
    "frame",
    "title",
    "unit",
    "signed",
    "prefix_names",
    "prefix_mass",
    "query",
    "classes",
}


class HeatmapError(ValueError):
    """Values, geometry and photograph that do not belong together, or a file that is not a saved heatmap."""


@dataclass(frozen=True, eq=False)
class Heatmap:
    """One map over one photograph.

    Args:
        values: (gh, gw) finite numbers, one a patch, raw; copied to float32 and made read-only.
        geometry: the way from patches back to the pixels of the photograph.
        photo: the upright original, shared and not copied.
        title: what the map shows, in words for people ("Layer 12, head 4").
        unit: "attention" is printed in percent; any other word is printed beside the numbers.
        signed: the values have a meaning on both sides of zero.
        prefix_mass: what is not in the picture, for each kind of prefix token, e.g. {"CLS": 0.12}: a share, 0 to 1, of
            attention (and of maps without a unit), else a number in the map's own unit.
        query: (row, column) of the patch the map was asked from, outlined in pictures.
        classes: the class that the map is about, by index; two, (A, B), for why A and not B; empty for none.

    Raises:
        HeatmapError: for a photograph of another size than the geometry's, a share outside 0 to 1, or a query outside
            the grid.
        OverlayError: for values that are not a finite 2-D array. Both are ValueErrors.

    Example:
        >>> import numpy as np
        >>> from PIL import Image
        >>> from vitviz.heatmap import Heatmap
        >>> from vitviz.preprocess import Preprocess
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

    def __post_init__(self) -> None:
        values = np.array(
            as_map(self.values), dtype=np.float32, order="C"
        )  # np.array copies: the caller's array stays the caller's
        values.setflags(write=False)
        masses = {str(name): float(mass) for name, mass in self.prefix_mass.items()}
        if self.photo.size != tuple(self.geometry.image):
            raise HeatmapError(
                f"photo: expected the upright original of {self.geometry.image[0]} x {self.geometry.image[1]} pixels "
                f"that the geometry belongs to, got {self.photo.size[0]} x {self.photo.size[1]}."
            )
        for name, mass in masses.items():
            if self.unit not in ("", "attention"):
                if not math.isfinite(mass):
                    raise HeatmapError(f"prefix_mass: expected a finite number for {name!r}, got {mass}.")
            elif not -1e-4 <= mass <= 1.0 + 1e-4:  # sums of float32 probabilities overshoot a little; NaN fails too
                raise HeatmapError(
                    f"prefix_mass: expected a share from 0 to 1 for {name!r}, got {mass}; divide by the row's sum."
                )
        if self.query is not None:
            (row, col), (gh, gw) = self.query, values.shape
            if not (0 <= row < gh and 0 <= col < gw):
                raise HeatmapError(
                    f"query: expected (row, column) inside {gh} x {gw} patches, counted from 0, got {self.query}."
                )
            object.__setattr__(self, "query", (int(row), int(col)))
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "prefix_mass", MappingProxyType(masses))

    @property
    def grid(self) -> tuple[int, int]:
        """(gh, gw): patches down and across."""
        return self.values.shape[0], self.values.shape[1]

    def mass_words(self) -> str:
        """What is not in the picture, as a person reads it: "12.0 % on CLS"; empty where all of it is."""
        share = self.unit in ("", "attention")
        masses = self.prefix_mass.items()
        return ", ".join(f"{100 * mass:.1f} % on {name}" if share else f"{mass:.3g} on {name}" for name, mass in masses)

    def scale(self, choice: ScaleChoice = "each") -> Scale:
        """The `Scale` for a choice: "each" (own minimum and maximum; symmetric when the map is signed), "signed", a
        (vmin, vmax) pair, or a `Scale` made over many maps with `Scale.over`. "shared" has no meaning for one map and
        is refused.
        """
        if isinstance(choice, str) and choice == "shared":
            raise OverlayError(
                "scale: one map has nothing to share; make Scale.over([a.values, b.values]) and pass that to each."
            )
        return resolve(choice, [self.values], self.signed)

    def range(self, scale: ScaleChoice = "each") -> tuple[float, float]:
        """(vmin, vmax): the values of the first and the last colour; see `scale`."""
        chosen = self.scale(scale)
        return chosen.vmin, chosen.vmax

    def overlay(
        self,
        alpha: float = 0.5,
        cmap: str | None = None,
        grid: bool = False,
        smooth: bool = False,
        scale: ScaleChoice = "each",
        gamma: float = 1.0,
        unseen: bool = True,
        grey: bool = False,
    ) -> Image.Image:
        """The map over the photograph, as a new RGB picture of its size; see `vitviz.render.overlay.overlay`."""
        s = self.scale(scale)
        return overlay(
            self.photo,
            self.values,
            self.geometry,
            cmap=cmap,
            alpha=alpha,
            smooth=smooth,
            grid=grid,
            query=self.query,
            vmin=s.vmin,
            vmax=s.vmax,
            signed=s.signed,
            gamma=gamma,
            unseen=unseen,
            grey=grey,
        )

    def colorbar(
        self,
        cmap: str | None = None,
        scale: ScaleChoice = "each",
        size: tuple[int, int] = (360, 44),
        dark: bool = False,
        gamma: float = 1.0,
    ) -> Image.Image:
        """The colour bar that belongs to `overlay` with the same arguments."""
        s = self.scale(scale)
        return colorbar(cmap, s.vmin, s.vmax, self.unit, size, dark, gamma=gamma, signed=s.signed)

    def top(self, k: int = 5) -> list[tuple[tuple[int, int], float]]:
        """The k strongest patches, [((row, column), value)], strongest first (by magnitude when signed); ties in
        reading order.
        """
        if k < 0:
            raise HeatmapError(f"k: expected how many patches, 0 or more, got {k}.")
        flat = self.values.ravel()
        order = np.argsort(-np.abs(flat) if self.signed else -flat, kind="stable")[:k]
        return [(divmod(int(i), self.grid[1]), float(flat[i])) for i in order]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write raw values, geometry, title, unit and prefix masses to a .npz file, without pickle; returns its
        path.
        """
        target = Path(path)
        if target.suffix.lower() != ".npz":
            raise HeatmapError(
                f"path: expected a name that ends in .npz, got {target.name!r}; for pictures use overlay().save(...)."
            )
        with target.open("wb") as file:  # to a name, NumPy adds an ending of its own
            np.savez(
                file,
                values=self.values,
                image=np.array(self.geometry.image),
                input=np.array(self.geometry.input),
                frame=np.array(self.geometry.frame, dtype=np.float64),
                title=np.array(self.title),
                unit=np.array(self.unit),
                signed=np.array(self.signed),
                prefix_names=np.array(list(self.prefix_mass), dtype=np.str_),
                prefix_mass=np.array(list(self.prefix_mass.values()), dtype=np.float64),
                query=np.array([] if self.query is None else self.query, dtype=np.int64),
                classes=np.array(self.classes, dtype=np.int64),
            )
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str], photo: Image.Image) -> Heatmap:
        """A saved heatmap over its photograph (the upright original, which the file does not hold)."""
        if not zipfile.is_zipfile(path):
            raise HeatmapError(f"{path}: expected a .npz file written by Heatmap.save, got something else or nothing.")
        with np.load(path, allow_pickle=False) as saved:
            missing = _SAVED - set(saved.files)
            if missing:
                raise HeatmapError(f"{path}: expected a file written by Heatmap.save, but it lacks {sorted(missing)}.")
            a = {name: saved[name] for name in saved.files}
        (width, height), (rows, cols), (left, top, right, bottom) = (
            a["image"].tolist(),
            a["input"].tolist(),
            a["frame"].tolist(),
        )
        query = a["query"].tolist()
        return cls(
            values=a["values"],
            geometry=Geometry(image=(width, height), input=(rows, cols), frame=(left, top, right, bottom)),
            photo=photo,
            title=str(a["title"]),
            unit=str(a["unit"]),
            signed=bool(a["signed"]),
            prefix_mass=dict(zip(a["prefix_names"].tolist(), a["prefix_mass"].tolist(), strict=True)),
            query=(query[0], query[1]) if query else None,
            classes=tuple(a["classes"].tolist()),
        )
