"""Draw a worksheet as PDF pages: exercises with room for answers, and their solutions at the end."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findSystemFonts, fontManager, get_font
from numpy.typing import NDArray

from vitviz.draw.colors import DIVERGING, SEQUENTIAL, DrawError
from vitviz.draw.figures import METADATA, page
from vitviz.formatting import NO_BREAK, unbroken

WIDTH, HEIGHT, MARGIN = 8.27, 11.69, 0.8  # A4, in inches
HEADING, BODY = 11.0, 9.0  # points
INDENT, GAP = 0.4, 0.16  # inches: room for a label, and between exercises
PICTURE, TICKS, ROOM = 2.0, 0.25, 0.25  # inches: height of pictures, space for ticks, and space above an answer line
ACROSS = WIDTH - 2 * MARGIN
CHINESE = "\u3000-\u9fff\uff00-\uffef"
# A word with the space after it, or a Chinese character with the punctuation after it.
_UNITS = re.compile(rf"[{CHINESE}][，。：；？！）、]*|[^ {CHINESE}]+ ?| ")
_STYLES = ("Bold", "Light", "Thin", "Medium", "Black", "Mono", "Serif")


@dataclass(frozen=True, kw_only=True)
class Task:
    """Exercise on a worksheet.

    Args:
        ask, solution: the question and its solution.
        choices: answers to tick; empty for other kinds of exercises.
        field: the line to fill in, such as "Answer: ....."; empty for choices.
        pictures: drawn side by side: (gh, gw) numbers of the patches, or (H, W, 3) a photograph.
        legend: text below the pictures.
    """

    ask: str
    solution: str
    choices: Sequence[str] = ()
    field: str = ""
    pictures: Sequence[NDArray[Any]] = ()
    legend: str = ""


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """Contents of a worksheet.

    Args:
        title, about, name: the heading, the text below it, and the line for a name.
        solutions: heading of the second part.
        sections: titles, each with its exercises.
        grid: rows and columns of patches.
        footer: text at the bottom of every page.
    """

    title: str
    about: str
    name: str
    solutions: str
    sections: Sequence[tuple[str, Sequence[Task]]]
    grid: tuple[int, int]
    footer: str = ""

    def words(self) -> str:
        """Return all texts."""
        tasks = [task for _, tasks in self.sections for task in tasks]
        texts = [(task.ask, task.solution, task.field, task.legend, *task.choices) for task in tasks]
        titles = [title for title, _ in self.sections]
        return "".join([self.title, self.about, self.name, self.solutions, self.footer, *titles, *map("".join, texts)])


@dataclass(frozen=True)
class Block:
    """Part of a page that is not split: its height in inches, and how to draw it at a distance from the top."""

    height: float
    draw: Callable[[Figure, float], None]


def worksheet(sheet: Sheet) -> bytes:
    """Return the pages as a PDF file.

    Raises:
        DrawError: if the texts contain Chinese, and no installed font has all the characters.
    """
    letters = "".join(sorted(set(re.findall(f"[{CHINESE}]", sheet.words()))))
    families = [*page.STYLE["font.family"]]
    if letters:
        families.insert(1, _family(find_font(letters, tuple(sorted(findSystemFonts())))))
    with page.settings(), mpl.rc_context({"font.family": families}):
        pages = [*_pages(_exercises(sheet)), *_pages(_solutions(sheet))]
        buffer = io.BytesIO()
        with PdfPages(buffer, metadata=METADATA["pdf"]) as pdf:
            for number, figure in enumerate(pages, 1):
                foot = 1 - (HEIGHT - MARGIN / 2) / HEIGHT
                figure.text(MARGIN / WIDTH, foot, sheet.footer)
                figure.text(1 - MARGIN / WIDTH, foot, f"{number} / {len(pages)}", ha="right")
                pdf.savefig(figure)
    return buffer.getvalue()


@cache
def find_font(letters: str, paths: tuple[str, ...]) -> str:
    """Return the first font file that has all letters, regular fonts before bold and light ones.

    Raises:
        DrawError: if there is none.
    """
    for path in sorted(paths, key=lambda path: any(style in Path(path).name for style in _STYLES)):
        try:
            font = get_font(path)
        except (OSError, RuntimeError):  # bitmap fonts and damaged files
            continue
        if all(font.get_char_index(ord(letter)) for letter in letters):
            return path
    raise DrawError(
        f"Expected a font with Chinese characters for matplotlib, got none in {len(paths)} font files. Install one, "
        "such as Noto Sans CJK (Debian and Ubuntu: apt install fonts-noto-cjk), or choose English."
    )


def _family(path: str) -> str:
    """Register a font file, and return the name of its family."""
    fontManager.addfont(path)
    return FontProperties(fname=path).get_name()


# The contents as blocks


def _exercises(sheet: Sheet) -> Iterable[Block]:
    yield _lines(sheet.title, 1.4 * HEADING, bold=True)
    yield _lines(sheet.about)
    yield _space(_answer(sheet.name, 0), 1.5 * GAP)
    for number, (title, tasks) in enumerate(sheet.sections, 1):
        heading: list[Block] = [_space(_lines(f"{number}  {title}", HEADING, bold=True), 0.05)]
        for label, task in _with_labels(number, tasks):
            parts = [*heading, _labelled(label, task.ask)]
            parts += [_lines(f"☐  {choice}", indent=INDENT) for choice in task.choices]
            if task.pictures:
                parts.append(_pictures(task.pictures, task.legend, sheet.grid))
            if task.field:
                parts.append(_answer(task.field))
            yield _space(_stack(parts), GAP)
            heading = []


def _solutions(sheet: Sheet) -> Iterable[Block]:
    yield _space(_lines(sheet.solutions, 1.4 * HEADING, bold=True), GAP)
    for number, (title, tasks) in enumerate(sheet.sections, 1):
        parts = [_lines(f"{number}  {title}", BODY, bold=True)]
        parts += [_labelled(label, task.solution) for label, task in _with_labels(number, tasks)]
        yield _space(_stack(parts), GAP)


def _with_labels(number: int, tasks: Sequence[Task]) -> Iterable[tuple[str, Task]]:
    """Pair the exercises of a section with their labels: "3a", "3b", ..."""
    return zip((f"{number}{letter}" for letter in ascii_lowercase[: len(tasks)]), tasks, strict=True)


def _pages(blocks: Iterable[Block]) -> list[Figure]:
    """Draw blocks from top to bottom on as many pages as they need."""
    figures, top = [Figure(figsize=(WIDTH, HEIGHT))], MARGIN
    for block in blocks:
        if top + block.height > HEIGHT - MARGIN and top > MARGIN:
            figures.append(Figure(figsize=(WIDTH, HEIGHT)))
            top = MARGIN
        block.draw(figures[-1], top)
        top += block.height
    return figures


def _stack(blocks: Sequence[Block]) -> Block:
    def draw(figure: Figure, top: float) -> None:
        for block in blocks:
            block.draw(figure, top)
            top += block.height

    return Block(sum(block.height for block in blocks), draw)


def _space(block: Block, below: float) -> Block:
    return replace(block, height=block.height + below)


def _lines(words: str, size: float = BODY, *, bold: bool = False, indent: float = 0.0) -> Block:
    lines, high = wrap(words, size, ACROSS - indent, bold), page.line_of(size)

    def draw(figure: Figure, top: float) -> None:
        for place, line in enumerate(lines):
            _write(figure, MARGIN + indent, top + place * high, line, size, bold)

    return Block(len(lines) * high, draw)


def _labelled(label: str, words: str) -> Block:
    return _over(_lines(label, bold=True), _lines(words, indent=INDENT))


def _over(first: Block, second: Block) -> Block:
    """Draw two blocks at the same position, such as a label and the text beside it."""

    def draw(figure: Figure, top: float) -> None:
        first.draw(figure, top)
        second.draw(figure, top)

    return Block(max(first.height, second.height), draw)


def _answer(field: str, indent: float = INDENT) -> Block:
    """Leave space to write, and draw the line to fill in below it."""
    return _stack([Block(ROOM, lambda *_: None), _lines(field, indent=indent)])


def _pictures(pictures: Sequence[NDArray[Any]], legend: str, grid: tuple[int, int]) -> Block:
    rows, columns = grid
    side = min(PICTURE / rows, ((ACROSS - INDENT) / 2 - 1.6 * TICKS) / columns)  # inches of a patch
    size = (side * columns, side * rows)

    def draw(figure: Figure, top: float) -> None:
        for place, values in enumerate(pictures):
            left = MARGIN + INDENT + TICKS + place * (size[0] + 1.6 * TICKS)
            bounds = (left / WIDTH, 1 - (top + TICKS + 0.05 + size[1]) / HEIGHT, size[0] / WIDTH, size[1] / HEIGHT)
            _draw_picture(figure.add_axes(bounds), values, grid, side)

    return _stack([Block(size[1] + TICKS + 0.1, draw), _lines(legend, page.SMALL, indent=INDENT)])


def _draw_picture(axes: Axes, values: NDArray[Any], grid: tuple[int, int], side: float) -> None:
    """Draw a photograph or a map of the patches, with rows and columns numbered from 1."""
    rows, columns = grid
    extent = (0.5, columns + 0.5, rows + 0.5, 0.5)
    if values.ndim == 3:
        axes.imshow(values, extent=extent, interpolation="none")  # otherwise it would be enlarged to 300 dpi
    else:
        reach, signed = float(np.nanmax(np.abs(values))) or 1.0, bool(np.nanmin(values) < 0)
        colors: dict[str, Any] = {"cmap": DIVERGING, "vmin": -reach, "vmax": reach} if signed else {"cmap": SEQUENTIAL}
        axes.imshow(values, extent=extent, interpolation="none", **colors)
    axes.hlines(np.arange(1, rows) + 0.5, 0.5, columns + 0.5, colors="white", linewidths=0.4, alpha=0.6)
    axes.vlines(np.arange(1, columns) + 0.5, 0.5, rows + 0.5, colors="white", linewidths=0.4, alpha=0.6)
    axes.xaxis.tick_top()
    for axis, count in ((axes.xaxis, columns), (axes.yaxis, rows)):
        page.number_axis(axis, range(1, count + 1), [*map(str, range(1, count + 1))], side)
    axes.tick_params(length=0, labelsize=page.SMALL - 1)


# Text


def _write(figure: Figure, left: float, top: float, words: str, size: float, bold: bool) -> None:
    look: dict[str, Any] = {}  # few Chinese fonts have a bold weight
    if not re.search(f"[{CHINESE}]", words):
        look = {"fontfamily": page.STYLE["font.family"], "fontweight": "bold" if bold else "normal"}
    figure.text(left / WIDTH, 1 - top / HEIGHT, words, fontsize=size, va="top", **look)


def wrap(words: str, size: float, width: float, bold: bool = False) -> list[str]:
    """Split a text into lines of at most `width` inches; Chinese text breaks between characters."""
    lines = [""]
    for unit in _UNITS.findall(unbroken(words)):
        if lines[-1] and _measure((lines[-1] + unit).rstrip(), size, bold) > width:
            lines.append("")
        lines[-1] += unit
    return [line.rstrip().replace(NO_BREAK, " ") for line in lines]


def _measure(words: str, size: float, bold: bool) -> float:
    """Return the width of a text in inches. A Chinese character is one em wide."""
    rest = re.sub(f"[{CHINESE}]", "", words)
    return page.measure(rest, size, bold) + (len(words) - len(rest)) * size / 72
