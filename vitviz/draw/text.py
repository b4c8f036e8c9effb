"""Text in pictures: the typeface, lines that fit a width."""

import os
import re
from collections.abc import Callable
from functools import lru_cache

from PIL import ImageFont

ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
# Spaces at which no line ends: "16 × 16", "< 8.3 %".
KEPT = re.compile(r"(?<=\d) (?=[×%])|(?<=\d ×) (?=\d)|(?<=[<>]) (?=\d)")


@lru_cache(maxsize=64)
def font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """Return DejaVu Sans at `size` pixels; it comes with matplotlib, so a picture is the same on every machine."""
    from matplotlib import get_data_path

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(os.path.join(get_data_path(), "fonts", "ttf", name), size)


def wrap(text: str, width: float, measure: Callable[[str], float]) -> tuple[str, ...]:
    """Return `text` in lines of at most `width`, as `measure` measures; a word that is longer alone is shortened.

    No-break spaces keep words together, and so do those within sizes and percentages. `measure` is such as
    `font(12).getlength`.
    """
    lines: list[str] = []
    for word in KEPT.sub("\N{NO-BREAK SPACE}", text).split(" ") if text else ():
        if lines and measure(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return tuple(shorten(line.replace("\N{NO-BREAK SPACE}", " "), width, measure) for line in lines)


def shorten(text: str, width: float, measure: Callable[[str], float]) -> str:
    """Return as much of `text` as fits, with an ellipsis where some of it does not."""
    if measure(text) <= width:
        return text
    while text and measure(text + ELLIPSIS) > width:
        text = text[:-1]
    return text.rstrip() + ELLIPSIS
