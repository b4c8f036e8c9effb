"""Draw color bars, and describe scales as text."""

import math
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw

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


def ticks(vmin: float, vmax: float, count: int = 5) -> list[float]:
    """Return about `count` round numbers from vmin to vmax: multiples of 1, 2, 2.5 or 5 times a power of ten."""
    if not vmax > vmin:
        return [vmin]
    raw = (vmax - vmin) / max(1, count)
    if raw < 1e-300:  # too small for round numbers
        return [vmin, vmax]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= raw * (1 - 1e-9))
    return [i * step for i in range(math.ceil(vmin / step - 1e-9), math.floor(vmax / step + 1e-9) + 1)]


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
    theme, (width, height), (low, high) = Theme.of(dark), size, (scale.vmin, scale.vmax)
    out = Image.new("RGB", size, theme.ground)
    draw, face = ImageDraw.Draw(out), font(max(10, round(height * 0.32)))
    labels = _labels(scale, unit, width, face.getlength)
    margin = math.ceil(max(face.getlength(text) for _, text in labels) / 2) + 1
    tip = round(height * 0.42) // 2 + 1 if scale.clipped else 0  # room for arrows
    word = f"  {unit}" if unit else ""
    x0, x1 = max(margin, tip + 2), width - max(margin, tip + math.ceil(face.getlength(word)) + 2)
    y0, y1 = 1, round(height * 0.42)
    # One color per pixel column, from the table of the maps, so gamma applies to bar and maps alike.
    index = scale.indices(np.linspace(low, high, x1 - x0), gamma)
    colors = lut(cmap or (DIVERGING if scale.signed else SEQUENTIAL))[index]  # (x1 - x0, 3)
    out.paste(Image.fromarray(np.tile(colors, (y1 - y0, 1, 1))), (x0, y0))
    draw.rectangle((x0 - 1, y0 - 1, x1, y1), outline=theme.line)
    if scale.clipped:  # arrows for clipped patches
        middle = (y0 + y1) // 2
        draw.polygon([(x1 + 1, y0 - 1), (x1 + 1, y1), (x1 + tip, middle)], fill=tuple(colors[-1].tolist()))
        if scale.signed:
            draw.polygon([(x0 - 2, y0 - 1), (x0 - 2, y1), (x0 - 1 - tip, middle)], fill=tuple(colors[0].tolist()))
    for value, text in labels:
        x = x0 + (value - low) / (high - low) * (x1 - x0 - 1) if high > low else (x0 + x1) / 2
        draw.line((round(x), y1 + 1, round(x), y1 + max(2, height // 14)), fill=theme.muted)
        draw.text((x, height - 1), text, theme.text, face, anchor="md")
    draw.text((x1 + tip, (y0 + y1) / 2), word, theme.muted, face, anchor="lm")
    return out


def _labels(scale: Scale, unit: str, width: int, measure: Callable[[str], float]) -> list[tuple[float, str]]:
    """Return as many round numbers with texts as fit side by side, else the two ends."""
    for count in (6, 5, 4, 3, 2):
        values = ticks(scale.vmin, scale.vmax, count)
        if len(values) < 2:
            break
        texts = [number(v, unit, values[1] - values[0]) for v in values]
        if 1.6 * max(map(measure, texts)) * len(texts) <= width and len(set(texts)) == len(texts):
            return list(zip(values, texts, strict=True))
    return [(v, number(v, unit)) for v in dict.fromkeys((scale.vmin, scale.vmax))]
