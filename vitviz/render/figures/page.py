"""The page that every figure stands on: one size, one type, one set of colours, and places in inches.

Figures are made without pyplot and set everything that they need themselves, so that they work in threads and look the
same whatever a person's matplotlib settings are. Every text is DejaVu Sans, which travels with matplotlib.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.image import AxesImage
from matplotlib.text import Text
from matplotlib.textpath import TextToPath
from matplotlib.ticker import FixedLocator, FuncFormatter
from numpy.typing import NDArray

from vitviz.render import colorbar
from vitviz.render.colors import DIVERGING, SEQUENTIAL
from vitviz.render.figures.about import Floats

WIDTH, MARGIN = 6.3, 0.2  # inches; 160 mm is what a page of A4 leaves between its margins
INNER = WIDTH - 2 * MARGIN
# At 200 and 300 the letters of a picture are as wide as those of print; at 150 they are up to 7 % wider.
SCREEN_DPI, PRINT_DPI = 200, 300
TITLE, PANEL, SMALL = 10.0, 8.0, 7.0  # points: a figure's title, a panel's, everything else
LEADING = 1.35  # from line to line, in sizes of the type
FAMILY = ["DejaVu Sans", "sans-serif"]  # the second is for who opens an SVG where the first is not installed

Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Look:
    """Colours of a page. `accents` are Okabe and Ito's (2008), told apart by colour-blind people, for this ground."""

    ground: Colour
    text: Colour
    muted: Colour
    line: Colour
    accents: dict[str, str]
    diverging: Colormap
    sequential: Colormap


def _look(theme: colorbar.Theme, accents: Sequence[str], diverging: Colormap) -> Look:
    ground, text, muted, line = (
        (r / 255, g / 255, b / 255) for r, g, b in (theme.ground, theme.text, theme.muted, theme.line)
    )
    kinds = ("embedding", "attention", "mlp", "norm", "head")
    return Look(ground, text, muted, line, dict(zip(kinds, accents, strict=True)), diverging, colormaps[SEQUENTIAL])


# On a dark ground zero is dark: RdBu's white middle would be the brightest thing on the page.
_GLOW = LinearSegmentedColormap.from_list("glow", ["#9bd1ff", "#3b83c4", "#191c22", "#c8622f", "#ffc59b"])
LIGHT = _look(colorbar.LIGHT, ("#0072B2", "#D55E00", "#009E73", "#7F7F7F", "#CC79A7"), colormaps[DIVERGING])
DARK = _look(colorbar.DARK, ("#56B4E9", "#E69F00", "#2BC39A", "#A6A6A6", "#E39AC4"), _GLOW)


# --- words -----------------------------------------------------------------------------------------------------------


def type_of(size: float, bold: bool = False) -> FontProperties:
    """The typeface of all figures at `size` points."""
    return FontProperties(family=FAMILY, size=size, weight="bold" if bold else "normal", style="normal")


@lru_cache(maxsize=4096)
def measure(text: str, size: float, bold: bool = False) -> float:
    """How wide one line is, in inches."""
    wide, _, _ = TextToPath().get_text_width_height_descent(text, type_of(size, bold), ismath=False)
    return float(wide) / 72


def wrap(text: str, size: float, width: float, bold: bool = False) -> list[str]:
    """Lines of at most `width` inches; sizes such as 16 × 16 stay whole, and only a word that is wider than a line is
    broken.
    """
    lines: list[str] = []
    for word in re.sub(r"(?<=\d) × (?=\d)", "\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}", text).split(" "):
        if lines and measure(f"{lines[-1]} {word}", size, bold) <= width:
            lines[-1] += f" {word}"
            continue
        while measure(word, size, bold) > width and len(word) > 1:
            fits = next(n for n in range(len(word) - 1, 0, -1) if n == 1 or measure(word[:n], size, bold) <= width)
            lines.append(word[:fits])
            word = word[fits:]
        lines.append(word)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def shorten(text: str, size: float, width: float) -> str:
    """One line of at most `width` inches, cut with an ellipsis."""
    if measure(text, size) <= width:
        return text
    while text and measure(f"{text}…", size) > width:
        text = text[:-1]
    return f"{text.rstrip()}…"


def line_of(size: float) -> float:
    """The height of a line, in inches."""
    return LEADING * size / 72


# --- the page --------------------------------------------------------------------------------------------------------

_UNLAID: Any = "none"  # not None, which asks a person's settings; matplotlib's types do not name it


class Page:
    """A figure with a title above and a caption below; places are inches from the top left of what is in between.

    Args:
        title: one line, or more where it is long.
        caption: which model, which photograph, how to read it.
        height: of what is in between, in inches.
        dark: light words on a dark ground.
    """

    def __init__(self, title: str, caption: str, height: float, *, dark: bool = False) -> None:
        self.look = DARK if dark else LIGHT
        heading, lines = wrap(title, TITLE, INNER, bold=True), wrap(caption, SMALL, INNER)
        self.top = MARGIN + len(heading) * line_of(TITLE) + 0.1
        self.height = height
        self.total = self.top + height + 0.12 + len(lines) * line_of(SMALL) + MARGIN
        self.figure = Figure(figsize=(WIDTH, self.total), dpi=SCREEN_DPI, layout=_UNLAID)
        self.figure.set(facecolor=self.look.ground, edgecolor="none", frameon=True)
        FigureCanvasAgg(self.figure)
        for number, text in enumerate(heading):
            self.words(0, MARGIN - self.top + number * line_of(TITLE), text, size=TITLE, bold=True)
        for number, text in enumerate(lines):
            self.words(0, height + 0.12 + number * line_of(SMALL), text, colour=self.look.muted)

    def words(
        self,
        left: float,
        top: float,
        text: str,
        *,
        size: float = SMALL,
        bold: bool = False,
        colour: Colour | None = None,
        across: str = "left",
        down: str = "top",
        rotation: float = 0.0,
    ) -> Text:
        """One line of text; `across` and `down` say which of its points lies at the place."""
        return self.figure.text(
            (MARGIN + left) / WIDTH,
            1 - (self.top + top) / self.total,
            text,
            fontproperties=type_of(size, bold),
            color=self.look.text if colour is None else colour,
            ha=across,
            va=down,
            rotation=rotation,
            rotation_mode="anchor",
            parse_math=False,
            usetex=False,
        )

    def axes(self, name: str, left: float, top: float, width: float, height: float, *, frame: bool = True) -> Axes:
        """Axes of `width` x `height` inches, with neither ticks nor labels yet; `name` finds them again."""
        box = ((MARGIN + left) / WIDTH, 1 - (self.top + top + height) / self.total, width / WIDTH, height / self.total)
        axes = self.figure.add_axes(box, label=name, facecolor="none", projection="rectilinear")
        for spine in axes.spines.values():
            spine.set(visible=frame, linewidth=0.5, color=self.look.line)
        axes.grid(visible=False)
        axes.minorticks_off()
        axes.set_xticks([])
        axes.set_yticks([])
        for axis in ("x", "y"):
            self._tick_style(axes, axis)
        return axes

    def _tick_style(self, axes: Axes, axis: Any) -> None:
        axes.tick_params(
            axis,
            which="both",
            direction="out",
            length=2.0,
            width=0.5,
            pad=2.0,
            color=self.look.line,
            labelcolor=self.look.text,
            labelsize=SMALL,
            labelfontfamily=FAMILY,
            bottom=True,
            left=True,
            top=False,
            right=False,
            labelbottom=True,
            labelleft=True,
            labeltop=False,
            labelright=False,
        )

    def ticks(self, axes: Axes, axis: str, places: Sequence[float], texts: Sequence[str]) -> None:
        """Texts along the lower ("x") or the left ("y") side."""
        chosen = axes.xaxis if axis == "x" else axes.yaxis
        chosen.set_major_locator(FixedLocator(list(places)))
        names = dict(zip(places, texts, strict=True))
        chosen.set_major_formatter(FuncFormatter(lambda place, _number: names.get(place, "")))
        for label in chosen.get_ticklabels():
            label.set(fontproperties=type_of(SMALL), parse_math=False, usetex=False)

    def counted(self, axes: Axes, axis: str, count: int, first: int = 1, air: float = 1.15) -> None:
        """Numbers of `count` things side by side, at 0, 1, 2, ...; only as many as find room.

        Args:
            first: the number of the first thing.
            air: how many lines of type a number takes, one above the other.
        """
        box = axes.get_position()
        inches = box.width * WIDTH if axis == "x" else box.height * self.total
        each = inches / count
        last = str(first + count - 1)
        room = (measure(last, SMALL) + 0.06 if axis == "x" else air * SMALL / 72) / each
        places = [number - first for number in numbers(first, first + count - 1, room)]
        self.ticks(axes, axis, places, [f"{first + place}" for place in places])

    def name_axes(self, axes: Axes, across: str | None = None, down: str | None = None) -> None:
        """What runs along the axes; upright only the first word of it where the axis is shorter than the words."""
        if down and measure(down, SMALL) > axes.get_position().height * self.total:
            down = re.split(r"[, ]", down)[0]
        for text, put in ((across, axes.set_xlabel), (down, axes.set_ylabel)):
            if text:
                label = put(text, labelpad=2.5, color=self.look.muted)
                label.set(fontproperties=type_of(SMALL), parse_math=False, usetex=False)

    def heading(self, left: float, top: float, text: str) -> None:
        """A panel's title, its foot at `top`."""
        self.words(left, top - 0.05, text, size=PANEL, bold=True, down="baseline")

    def picture(self, axes: Axes, values: NDArray[Any], *, sharp: bool = False, **place: Any) -> AxesImage:
        """Colours (rows, columns, 3 or 4) as they are; `sharp` shows pixels as squares. `place` may give the extent."""
        how = "nearest" if sharp else "antialiased"
        return axes.imshow(values, aspect="auto", interpolation=how, origin="upper", resample=True, **place)

    def heat(self, axes: Axes, values: Floats, reach: float) -> AxesImage:
        """Values (rows, columns) as colours, -reach to reach; each value is one rectangle about whole numbers.

        Only where there are more values than dots of a screen are they averaged.
        """
        box = axes.get_position()
        dots = SCREEN_DPI * box.height * self.total, SCREEN_DPI * box.width * WIDTH
        squares = values.shape[0] <= dots[0] and values.shape[1] <= dots[1]
        return axes.imshow(
            values,
            cmap=self.look.diverging,
            vmin=-reach,
            vmax=reach,
            aspect="auto",
            interpolation="nearest" if squares else "antialiased",
            origin="upper",
            resample=True,
        )

    def bar(
        self,
        image: AxesImage,
        name: str,
        box: tuple[float, float, float, float],
        words: str,
        shown: Sequence[Floats] = (),
    ) -> None:
        """The colours of `image` and their numbers, in a box (left, top, width, height); upright if it is higher
        than wide. An arrow stands where values lie beyond: those of `image`, or of all that are `shown` in its colours.
        """
        left, top, wide, high = box
        upright = high > wide
        # Upright, the numbers at its ends stay beside it, out of a title's way.
        axes = self.axes(name, left, top + 0.05, wide, high - 0.1) if upright else self.axes(name, *box)
        low, most = image.get_clim()
        values: Floats = np.concatenate(
            [np.ma.compressed(np.ma.masked_invalid(np.ma.asarray(one))) for one in shown or (image.get_array(),)]
        )
        below, above = values.min() < low - 1e-6 * abs(low), values.max() > most + 1e-6 * abs(most)
        drawn = self.figure.colorbar(
            image,
            cax=axes,
            orientation="vertical" if upright else "horizontal",
            extend="both" if below and above else "min" if below else "max" if above else "neither",
            extendfrac=0.06,
            drawedges=False,
        )
        drawn.minorticks_off()
        drawn.outline.set(linewidth=0.5, edgecolor=self.look.line)
        axis = "y" if upright else "x"
        found = _spread(low, most, (high - 0.1) / line_of(SMALL) if upright else wide / 0.5)
        self._tick_style(axes, axis)
        if upright:
            axes.tick_params("y", left=False, labelleft=False, right=True, labelright=True)
            axes.yaxis.set_label_position("right")
        self.ticks(axes, axis, found, [colorbar.number(tick, step=found[1] - found[0]) for tick in found])
        self.name_axes(axes, *((None, words) if upright else (words, None)))


def numbers(first: int, last: int, room: float) -> list[int]:
    """Which of the numbers from `first` to `last` to print when one takes as much room as `room` of them.

    >>> numbers(1, 16, 0.8) == list(range(1, 17)), numbers(1, 16, 1.5), numbers(1, 37, 3.0)
    (True, [1, 3, 5, 7, 9, 11, 13, 15], [1, 5, 10, 15, 20, 25, 30, 35])
    """
    power = 1
    while True:
        for step in (power, 2 * power, 5 * power):
            if step >= room:
                if step < 5:
                    return list(range(first, last + 1, step))
                rounds = range((first // step + 1) * step, last + 1, step)
                return [first, *(number for number in rounds if number - first >= 0.8 * room)]
        power *= 10


def _spread(low: float, high: float, room: float) -> list[float]:
    """At most five round numbers from low to high, as many as find room where there is room for `room`; or the ends."""
    for count in (4, 3, 2, 1):
        found = colorbar.ticks(low, high, count)
        if len(found) > 1 and (found[1] - found[0]) / (high - low) * room >= 1.0:
            return found
    return [low, high]


def reach_of(*arrays: Floats) -> float:
    """Where the colours of signed values end: at most one value in two hundred lies beyond."""
    found = float(np.percentile(np.abs(np.concatenate([array.ravel() for array in arrays])), 99.5))
    return found if found > 0 else 1.0
