"""Draw color bars, and describe scales as text."""

import io
from typing import Any

import numpy as np
from PIL import Image

from vitviz.draw.colors import DIVERGING, SEQUENTIAL, DrawError, Theme, lut
from vitviz.draw.text import font
from vitviz.formatting import number
from vitviz.heatmap import Scale


def describe_range(scale: Scale, unit: str = "") -> str:
    """Return a range as text: "0.1 to 3.4 %", with enough digits to distinguish the ends.

    "0.1 to 3.4 % and more" if patches are clipped.
    """
    step = scale.vmax - scale.vmin
    if not step > 0:
        return f"{number(scale.vmax, unit)} everywhere"
    beyond = " and more" if scale.clipped else ""
    return f"{number(scale.vmin, unit, step).removesuffix(' %')} to {number(scale.vmax, unit, step)}{beyond}"


def describe_clipped(scale: Scale, unit: str, most: float) -> str:
    """Describe the clipped patches of a scale: "Colours end at 3.4 %; 2 patches beyond it (up to 9.1 %) ..."."""
    if not scale.clipped:
        return ""
    count = "1 patch" if scale.clipped == 1 else f"{scale.clipped} patches"
    return f"Colours end at {number(scale.vmax, unit)}; {count} beyond it (up to {number(most, unit)}) marked by a dot."


def describe_scale(scale: Scale | None, unit: str = "", clipped: bool = False) -> str:
    """Describe the scale of a sheet; None means one scale per map."""
    if scale is None:
        return "Each map has its own scale: colours do not compare between maps."
    kind = "Fixed scale" if scale.kind == "fixed" else "One shared scale"
    middle = " (zero has the middle colour)" if scale.signed else ""
    beyond = " Numbers beyond it take the colour of its ends." if clipped else ""
    beyond = " Patches beyond it are marked by a dot." if scale.clipped else beyond
    return f"{kind}, {describe_range(scale, unit)}{middle}: equal colours are equal numbers.{beyond}"


def colorbar(
    scale: Scale,
    cmap: str | None = None,
    unit: str = "",
    *,
    size: tuple[int, int] = (360, 44),
    dark: bool = False,
    gamma: float = 1.0,
) -> Image.Image:
    """Return a horizontal color bar with numbers below and the unit beside it, as an RGB picture.

    Arrows mark ends beyond which patches are clipped.

    Args:
        scale: the scale.
        cmap: a matplotlib color map; by default the one of `overlay`.
        unit: "attention" is printed in percent; other units are printed unchanged.
        size: (width, height) in pixels, at least (120, 24). The font size follows the height.
        dark: light text on a dark background.
        gamma: as given to `overlay`.

    Raises:
        DrawError: for a smaller size or an unknown color map.
    """
    if size[0] < 120 or size[1] < 24:
        raise DrawError(f"Expected a color bar of at least (120, 24) pixels, got size {size}. Make it larger.")
    low, high, points = scale.vmin, scale.vmax, max(10, round(0.32 * size[1]))
    # Use the color table of `overlay`, so that gamma applies to bar and maps alike.
    colors = lut(cmap or (DIVERGING if scale.signed else SEQUENTIAL))[scale.indices(np.linspace(low, high, 256), gamma)]

    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import MaxNLocator

    from vitviz.draw.figures.page import settings

    with settings(dark):
        # At 72 dots per inch, a point is a pixel.
        figure = Figure((size[0] / 72, size[1] / 72), layout=ConstrainedLayoutEngine(w_pad=1 / 72, h_pad=1 / 72))
        axes = figure.subplots()
        extend = ("both" if scale.signed else "max") if scale.clipped else "neither"
        mappable = ScalarMappable(Normalize(low, high), ListedColormap(colors / 255))
        bar = figure.colorbar(mappable, axes, orientation="horizontal", extend=extend, extendfrac=0.03)
        most = int((size[0] - font(points).getlength(unit)) / (5 * points))
        ticks = MaxNLocator(max(1, min(6, most)), steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
        slack = 1e-9 * (high - low)
        ticks = [tick for tick in ticks if low - slack <= tick <= high + slack]
        if len(ticks) < 2:
            ticks = sorted({low, high})
        step = ticks[1] - ticks[0] if len(ticks) > 1 else None
        bar.set_ticks(ticks, labels=[number(tick, unit, step) for tick in ticks], fontsize=points)
        right: dict[str, Any] = {"transform": axes.transAxes, "va": "center", "color": Theme.of(dark).muted}
        axes.text(1.03 if scale.clipped else 1.0, 0.5, f"  {unit}", fontsize=points, **right)
        figure.savefig(buffer := io.BytesIO(), format="raw", dpi=72)
    return Image.frombytes("RGBA", size, buffer.getvalue()).convert("RGB")
