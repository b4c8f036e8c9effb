"""Set text in pictures: font, and lines that fit a width."""

import os
from collections.abc import Callable
from functools import lru_cache

from PIL import ImageFont

from vitviz.formatting import NO_BREAK, unbroken

ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


@lru_cache(maxsize=64)
def font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """Return DejaVu Sans at `size` pixels, from matplotlib, so that pictures are identical on every machine."""
    from matplotlib import get_data_path

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(os.path.join(get_data_path(), "fonts", "ttf", name), size)


def wrap(text: str, width: float, measure: Callable[[str], float]) -> tuple[str, ...]:
    """Wrap `text` into lines of at most `width` by `measure`, such as `font(12).getlength`; shorten longer words.

    No-break spaces, and spaces within sizes and percentages, keep words together.
    """
    lines: list[str] = []
    for word in unbroken(text).split(" ") if text else ():
        if lines and measure(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return tuple(shorten(line.replace(NO_BREAK, " "), width, measure) for line in lines)


def shorten(text: str, width: float, measure: Callable[[str], float]) -> str:
    """Return `text`, shortened with an ellipsis if it does not fit."""
    if measure(text) <= width:
        return text
    while text and measure(text + ELLIPSIS) > width:
        text = text[:-1]
    return text.rstrip() + ELLIPSIS
