"""Color maps, and the colors of light and dark pages."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from vitviz.errors import VitvizError

SEQUENTIAL = "viridis"  # perceptually uniform
DIVERGING = "RdBu_r"  # white at zero, red above, blue below
SHADE = (18, 15, 12)  # color that dims a photograph where a map is low
DIMMED = 0.78  # opacity of the darkest shade
LIT = 0.9  # quantile of the color indices from which patches are not dimmed
LEAST_FULL = 32  # lowest color index that may be shown without dimming


class DrawError(VitvizError):
    """Raised for a picture or figure that cannot be drawn."""


@dataclass(frozen=True)
class Theme:
    """Colors of a page for Pillow and matplotlib; right and wrong predictions differ in color and mark."""

    ground: str
    text: str
    muted: str
    line: str
    right: str
    wrong: str

    @classmethod
    def of(cls, dark: bool) -> "Theme":
        """Return the theme for light text on a dark background, or for dark text on a light one."""
        if dark:
            return cls("#111318", "#eceef2", "#9ea4af", "#3a3e47", right="#5cc88c", wrong="#ff8a80")
        return cls("#ffffff", "#181a1f", "#5c616b", "#d6d9de", right="#00703c", wrong="#ba1a1a")


@lru_cache(maxsize=64)
def lut(cmap: str) -> NDArray[np.uint8]:
    """Return matplotlib's color map of that name as a read-only (256, 3) table of 8-bit RGB."""
    from matplotlib import colormaps  # takes 0.1 s

    if cmap not in colormaps:
        raise DrawError(
            f"Expected cmap as the name of a matplotlib color map, got {cmap!r}. Try viridis, magma, cividis or RdBu_r."
        )
    table: NDArray[np.uint8] = colormaps[cmap](np.linspace(0.0, 1.0, 256), bytes=True)[:, :3].copy()
    table.setflags(write=False)
    return table


def shades(index: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a color table that dims a photograph where a map is low, transparent where it is high: (256, 4) RGBA.

    At least a tenth of the patches are not dimmed, so that a few outliers do not leave all other patches dark.

    Args:
        index: color indices of the patches, of any shape.
    """
    full = max(LEAST_FULL, int(np.sort(index, axis=None)[int(LIT * (index.size - 1))]))
    table = np.empty((256, 4), np.uint8)
    table[:, :3] = SHADE
    table[:, 3] = np.floor(255 * DIMMED * (1 - np.minimum(1, np.arange(256) / full)) + 0.5)
    return table
