"""Colour bars, and numbers in words: what a person reads beside a map."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vitviz.render.colors import DIVERGING, SEQUENTIAL, OverlayError, Scale, lut
from vitviz.render.overlay import font

Colour: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True)
class Theme:
    """The colours of a sheet: ground, words, quieter words, hairlines."""

    ground: Colour
    text: Colour
    muted: Colour
    line: Colour


LIGHT = Theme((255, 255, 255), (24, 26, 31), (92, 97, 107), (214, 217, 222))
DARK = Theme((17, 19, 24), (236, 238, 242), (158, 164, 175), (58, 62, 71))

# --- numbers in words ------------------------------------------------------------------------------------------------


def number(value: float, unit: str = "", step: float | None = None) -> str:
    """A number for people: attention in percent, to two digits; the rest to three. `step` asks for digits that tell
    steps apart.
    """
    percent = unit == "attention"
    shown = 100.0 * value if percent else value
    size = abs(shown) if step is None else abs(100.0 * step if percent else step)
    places = (1 if percent or step is not None else 2) - math.floor(math.log10(size)) if size > 0 else 0
    if shown == 0:
        text = "0"
    elif abs(shown) < 1e5 and places < (10 if step is not None else 6):
        rounded = round(shown, max(0, places)) + 0.0  # + 0.0 turns -0.0 into 0.0
        text = f"{rounded:.{max(0, places)}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    else:
        text = f"{shown:.2g}"
    return text.replace("-", "\N{MINUS SIGN}") + (" %" if percent else "")


def span(scale: Scale, unit: str = "") -> str:
    """A range in words: "0.1 to 3.4 %"; both ends with the digits that tell them apart."""
    step = scale.vmax - scale.vmin
    if not step > 0:
        return f"{number(scale.vmax, unit)} everywhere"
    return f"{number(scale.vmin, unit, step).removesuffix(' %')} to {number(scale.vmax, unit, step)}"


def scale_words(scale: Scale | None, unit: str = "", clipped: bool = False) -> str:
    """The sentence a sheet says about its colours; None stands for one scale a map."""
    if scale is None:
        return "Each map has its own scale: colours do not compare between maps."
    kind = "Fixed scale" if scale.kind == "fixed" else "One shared scale"
    middle = " (zero has the middle colour)" if scale.signed else ""
    beyond = " Numbers beyond it take the colour of its ends." if clipped else ""
    return f"{kind}, {span(scale, unit)}{middle}: equal colours are equal numbers.{beyond}"


def ticks(vmin: float, vmax: float, count: int = 5) -> list[float]:
    """At most about `count` round numbers (steps of 1, 2, 2.5 or 5 times a power of ten) from vmin to vmax."""
    if not vmax > vmin:
        return [vmin]
    raw = (vmax - vmin) / max(1, count)
    if raw < 1e-300:  # no round numbers down there
        return [vmin, vmax]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * power >= raw * (1 - 1e-9))
    first = math.ceil(vmin / step - 1e-9)
    return [i * step for i in range(first, math.floor(vmax / step + 1e-9) + 1)]


# --- the colour bar --------------------------------------------------------------------------------------------------


def colorbar(
    cmap: str | None,
    vmin: float,
    vmax: float,
    unit: str = "",
    size: tuple[int, int] = (360, 44),
    dark: bool = False,
    *,
    gamma: float = 1.0,
    signed: bool = False,
    typeface: str | None = None,
) -> Image.Image:
    """A horizontal colour bar with numbers under it and the unit beside it, as an RGB picture of `size` (width,
    height).

    Args:
        cmap: a matplotlib colour map; None for the default of the sign.
        vmin, vmax: the values at its ends.
        unit: "attention" is printed in percent; any other word is printed as it is.
        size: (width, height) in pixels, at least (120, 24). The type follows the height.
        dark: light words on a dark ground.
        gamma, signed: as given to `overlay`, so that bar and map agree.
        typeface: path of a TrueType file, for scripts that DejaVu Sans lacks.
    """
    if size[0] < 120 or size[1] < 24:
        raise OverlayError(f"size: expected at least (120, 24) pixels for a legible colour bar, got {size}.")
    theme, (width, height), scale = DARK if dark else LIGHT, size, Scale(vmin, vmax, "fixed", signed)
    out = Image.new("RGB", size, theme.ground)
    draw, face = ImageDraw.Draw(out), font(max(10, round(height * 0.32)), path=typeface)
    texts = _readable_ticks(scale, unit, width, face)
    margin = math.ceil(max(face.getlength(text) for _, text in texts) / 2) + 1
    word = f"  {unit}" if unit else ""
    x0, x1 = margin, width - max(margin, math.ceil(face.getlength(word)) + 2)
    y0, y1 = 1, round(height * 0.42)
    # One colour a pixel column, through the same table as the maps: gamma bends the bar exactly as it bends them.
    index = scale.indices(np.linspace(vmin, vmax, x1 - x0), gamma)
    bar = Image.fromarray(np.tile(lut(cmap or (DIVERGING if signed else SEQUENTIAL))[index], (y1 - y0, 1, 1)))
    out.paste(bar, (x0, y0))
    draw.rectangle((x0 - 1, y0 - 1, x1, y1), outline=theme.line)
    for value, text in texts:
        x = x0 + (value - vmin) / (vmax - vmin) * (x1 - x0 - 1) if vmax > vmin else (x0 + x1) / 2
        draw.line((round(x), y1 + 1, round(x), y1 + max(2, height // 14)), fill=theme.muted)
        draw.text((x, height - 1), text, theme.text, face, anchor="md")
    draw.text((x1, (y0 + y1) / 2), word, theme.muted, face, anchor="lm")
    return out


def _readable_ticks(scale: Scale, unit: str, width: int, face: ImageFont.FreeTypeFont) -> list[tuple[float, str]]:
    """As many round numbers, with their texts, as fit side by side with air between them; else the two ends."""
    for count in (6, 5, 4, 3, 2):
        values = ticks(scale.vmin, scale.vmax, count)
        if len(values) < 2:
            break
        texts = [number(v, unit, values[1] - values[0]) for v in values]
        if 1.6 * max(map(face.getlength, texts)) * len(texts) <= width and len(set(texts)) == len(texts):
            return list(zip(values, texts, strict=True))
    return [(v, number(v, unit)) for v in dict.fromkeys((scale.vmin, scale.vmax))]
