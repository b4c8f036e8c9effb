"""Draw contact sheets: maps side by side with numbers.

Each map has the share on tokens outside the picture (CLS, registers) below it, and the sheet states whether maps share
a scale. `arrange` lays out cells; `sheet` makes cells from maps.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from PIL import Image, ImageDraw

from vitviz.draw.colorbar import colorbar, describe_clipped, describe_range, describe_scale
from vitviz.draw.colors import DrawError, Theme
from vitviz.draw.text import font, wrap
from vitviz.formatting import number, percent
from vitviz.heatmap import Heatmap, HeatmapError, Scale, ScaleChoice

Line: TypeAlias = tuple[tuple[str, str, bool], ...]  # consecutive pieces of text: (text, color, bold)


@dataclass(frozen=True, eq=False)
class Cell:
    """Pictures side by side with lines of text below."""

    pictures: tuple[Image.Image, ...]
    lines: tuple[Line, ...]


def arrange(
    cells: Sequence[Cell],
    slot: int,
    size: int,
    *,
    columns: int | None = None,
    title: str = "",
    note: str = "",
    dark: bool = False,
    footer: Callable[[int], Image.Image] | None = None,
) -> Image.Image:
    """Draw cells in reading order, with a title and a note above, as an RGB picture.

    Args:
        cells: at least one cell, with equal numbers of pictures.
        slot: width for a picture in pixels.
        size: font size in pixels; distances follow it.
        columns: cells per row; by default, chosen to make the sheet wider than tall.
        title, note: text above; long lines wrap.
        dark: light text on a dark background.
        footer: function that returns the footer for the width between the margins.
    """
    theme, face, head = Theme.of(dark), font(size), font(round(1.5 * size), bold=True)
    margin, gap, line, between, above = (round(times * size) for times in (1.8, 0.9, 1.35, 0.3, 1.6))
    across, below = len(cells[0].pictures), max(len(cell.lines) for cell in cells)
    wide = across * slot + (across - 1) * between
    high = max(picture.height for cell in cells for picture in cell.pictures)
    words = high + round(0.4 * size)  # offset of the text in a cell
    step_x, step_y = wide + gap, words + below * line + gap
    columns = min(len(cells), columns or best_columns(len(cells), step_x, step_y))
    inner = max(columns * step_x - gap, 20 * size)
    titles, notes = wrap(title, inner, head.getlength), wrap(note, inner, face.getlength)
    top = margin + len(titles) * round(1.5 * line) + len(notes) * line + (gap if titles or notes else 0)
    bottom = top + -(-len(cells) // columns) * step_y - gap
    foot = footer(inner) if footer else None
    out = Image.new("RGB", (inner + 2 * margin, bottom + margin + (above + foot.height if foot else 0)), theme.ground)
    draw, y = ImageDraw.Draw(out), margin
    for text in titles:
        draw.text((margin, y), text, theme.text, head, anchor="la")
        y += round(1.5 * line)
    for text in notes:
        draw.text((margin, y), text, theme.muted, face, anchor="la")
        y += line
    for index, cell in enumerate(cells):
        left, y = margin + index % columns * step_x, top + index // columns * step_y
        for place, picture in enumerate(cell.pictures):
            indent = place * (slot + between) + (slot - picture.width) // 2
            out.paste(picture, (left + indent, y + (high - picture.height) // 2))
        for row, runs in enumerate(cell.lines):
            x = float(left)
            for text, color, bold in runs:
                draw.text((x, y + words + row * line), text, color, font(size, bold), anchor="la")
                x += font(size, bold).getlength(text)
    if foot:
        out.paste(foot, (margin + (inner - foot.width) // 2, bottom + above))
    return out


def best_columns(count: int, step_x: int, step_y: int) -> int:
    """Return the number of columns for an aspect ratio of about 3:2 with few empty cells."""

    def cost(columns: int) -> float:
        rows = -(-count // columns)
        aspect = columns * step_x / (rows * step_y)
        return abs(math.log(aspect / 1.5)) + 1.5 * (rows * columns - count) / (rows * columns)

    return min(range(1, count + 1), key=cost)


def fit_photo(photo: Image.Image, side: int) -> Image.Image:
    """Resize a photograph to a longer side of at most `side` pixels, as RGB.

    Small photographs are enlarged by an integer factor without smoothing.
    """
    photo, size = photo.convert("RGB"), fit_size(photo, side)
    if side >= 2 * max(photo.size):
        return photo.resize(size, Image.Resampling.NEAREST)
    return photo.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)


def fit_size(photo: Image.Image, side: int) -> tuple[int, int]:
    """Return (width, height) of a photograph after `fit_photo`."""
    longest = max(photo.size)
    factor = side // longest if side >= 2 * longest else side / longest
    return max(1, round(photo.width * factor)), max(1, round(photo.height * factor))


def sheet(
    maps: Sequence[Heatmap],
    *,
    title: str = "",
    scale: ScaleChoice | Literal["both"] = "shared",
    columns: int | None = None,
    labels: Sequence[str] | None = None,
    plain: bool = False,
    thumb: int = 176,
    width: int | None = None,
    dark: bool = False,
    cmap: str | None = None,
    alpha: float = 0.85,
    spotlight: bool = True,
    smooth: bool = False,
    gamma: float = 1.0,
    gray: bool = True,
) -> Image.Image:
    """Draw a contact sheet: each map over its photograph, with its label and the mass outside the picture.

    Args:
        maps: heads of a layer (the fused one first), layers of a model, or any other maps.
        title: title above; long titles wrap.
        scale: "shared" (one scale, clipped as in `Scale.own`), "each", "both" (each map on the shared scale and on its
            own), "signed", a `Scale`, or (vmin, vmax). The sheet states it.
        columns: maps per row; by default, chosen to make the sheet wider than tall.
        labels: labels below the pictures instead of the maps' titles.
        plain: start with the photographs without maps.
        thumb: longer side of a picture in pixels, at least 48; the font size follows.
        width: width of the whole sheet in pixels, instead of `thumb`.
        dark: light text on a dark background.
        cmap, alpha, spotlight, smooth, gamma, gray: as in `overlay`.

    Raises:
        HeatmapError: if there are no maps, or they cannot share a scale.
        DrawError: for a wrong number of labels, or sizes that cannot be drawn.
    """
    if labels is not None and len(labels) != len(maps):
        raise DrawError(f"Expected one label for each of {len(maps)} maps, got {len(labels)}. Pass one per map.")
    shared, own = _scales(maps, "shared" if scale == "both" else scale)
    pairs: list[tuple[Scale, ...]] = [(own_scale,) for own_scale in own]
    if shared and scale == "both":
        pairs = [(shared, heatmap.scale()) for heatmap in maps]
    photos = [*{id(heatmap.photo): heatmap.photo for heatmap in maps}.values()]  # usually all maps share one photograph
    count = len(maps) + (len(photos) if plain else 0)
    if width is not None:
        columns, thumb = _fit_width(width, count, columns, photos, len(pairs[0]))
    if thumb < 48 or (columns is not None and columns < 1):
        raise DrawError(
            f"Expected thumbnails of at least 48 pixels and at least 1 column, got {thumb} and {columns}. "
            "Pass larger numbers."
        )
    size, theme = _type_size(thumb), Theme.of(dark)
    small = {id(photo): fit_photo(photo, thumb) for photo in photos}
    slot, measure = max(photo.width for photo in small.values()), font(size).getlength
    cells = [
        Cell(
            (photo, *[Image.new("RGB", photo.size, theme.ground)] * (len(pairs[0]) - 1)),
            ((("photograph", theme.text, False),),),
        )
        for photo in small.values()
        if plain
    ]
    breadth = len(pairs[0]) * slot
    ranges = None if shared and scale != "both" else [pair[-1] for pair in pairs]
    texts = captions(maps, ranges, breadth, measure)
    style: dict[str, Any] = {"cmap": cmap, "alpha": alpha, "spotlight": spotlight, "smooth": smooth, "gamma": gamma}
    style["gray"] = gray
    for index, (heatmap, pair, below) in enumerate(zip(maps, pairs, texts, strict=True)):
        resized = heatmap.over(small[id(heatmap.photo)])
        pictures = tuple(resized.overlay(scale=each, **style) for each in pair)
        label = wrap(heatmap.title if labels is None else labels[index], breadth, measure)
        lines = [((text, theme.text, False),) for text in label] + [((text, theme.muted, False),) for text in below]
        cells.append(Cell(pictures, tuple(lines)))
    unit, all_values = maps[0].unit, Scale.over(maps)
    beyond = shared is not None and (all_values.vmin < shared.vmin or all_values.vmax > shared.vmax)

    def bar(width: int) -> Image.Image:
        return colorbar(own[0], cmap, unit, size=(min(width, 30 * size), 3 * size), dark=dark, gamma=gamma)

    note, footer = describe_scale(shared, unit, beyond), bar if shared else None
    if scale == "both":
        note = f"Left of each pair: {note[0].lower()}{note[1:]} Right: each map's own scale."
    out = arrange(cells, slot, size, columns=columns, title=title, note=note, dark=dark, footer=footer)
    return out if width is None else _pad(out, width, theme.ground)


def _type_size(thumb: int) -> int:
    return max(11, round(thumb / 13))


def _fit_width(
    width: int, count: int, columns: int | None, photos: Sequence[Image.Image], across: int
) -> tuple[int, int]:
    """Return the columns, and the longer side of pictures for which the cells fill `width` pixels."""
    aspect = max(photo.width / max(photo.size) for photo in photos)  # width of a slot relative to the longer side
    high = max(photo.height / max(photo.size) for photo in photos)
    if columns is None:
        columns = best_columns(count, round(1000 * (across * aspect + 0.07)), round(1000 * (high + 0.4)))
    cells, shares = columns * across, (3.6 + 0.9 * (columns - 1) + 0.3 * columns * (across - 1)) / 13
    thumb = int(width / (cells * aspect + shares)) + 2  # approximate, because `arrange` rounds margins and gaps
    while thumb > 0:
        size = _type_size(thumb)
        gaps = 2 * round(1.8 * size) + (columns - 1) * round(0.9 * size) + columns * (across - 1) * round(0.3 * size)
        if cells * round(aspect * thumb) + gaps <= width:
            break
        thumb -= 1
    return columns, thumb


def _pad(picture: Image.Image, width: int, ground: str) -> Image.Image:
    """Center a picture on a background of the exact width."""
    out = Image.new("RGB", (max(width, picture.width), picture.height), ground)
    out.paste(picture, ((out.width - picture.width) // 2, 0))
    return out


def card(
    heatmap: Heatmap,
    *,
    title: str = "",
    side: int = 480,
    dark: bool = False,
    cmap: str | None = None,
    scale: ScaleChoice = "each",
    **options: Any,
) -> Image.Image:
    """Draw one map over its photograph, with title, mass outside the picture, and color bar.

    Args:
        heatmap: the map, on its own scale.
        title: title above; long titles wrap.
        side: the longer side of the photograph in pixels.
        dark: light text on a dark background.
        cmap, scale, options: as in `overlay`.
    """
    size, theme, chosen = max(11, round(side / 28)), Theme.of(dark), heatmap.scale(scale)
    style = {"gray": True, "alpha": 0.6, "cmap": cmap} | options
    picture = heatmap.over(fit_photo(heatmap.photo, side)).overlay(scale=chosen, **style)
    slot = max(picture.width, 20 * size)  # the text below a narrow photograph needs room
    mass = heatmap.describe_prefix_mass()
    clipped = describe_clipped(chosen, heatmap.unit, float(np.abs(heatmap.values).max()))
    notes = [f"Outside the picture: {mass}." if mass else "", clipped]
    texts = ((heatmap.title, theme.text), *((note, theme.muted) for note in notes))
    lines = [((line, color, False),) for text, color in texts for line in wrap(text, slot, font(size).getlength)]

    def bar(width: int) -> Image.Image:
        return colorbar(chosen, cmap, heatmap.unit, size=(min(width, 30 * size), 3 * size), dark=dark)

    return arrange([Cell((picture,), tuple(lines))], slot, size, title=title, dark=dark, footer=bar)


def _scales(maps: Sequence[Heatmap], choice: ScaleChoice) -> tuple[Scale | None, list[Scale]]:
    """Return the shared scale, or None for separate scales, and the scale of each map."""
    if len(maps) == 0:
        raise HeatmapError("Expected at least one map, got none. Choose a head or a layer.")
    if choice in ("each", "full"):
        return None, [heatmap.scale(choice) for heatmap in maps]
    if len({(heatmap.signed, heatmap.unit) for heatmap in maps}) > 1:
        raise HeatmapError(
            "Expected maps of one unit, all signed or none, to share a scale, got a mixture. "
            "Pass scale='each' or make two sheets."
        )
    if choice == "shared":  # clip over all maps, because one layer may consist of outliers
        values = np.concatenate([heatmap.values.ravel() for heatmap in maps])
        shared = replace(Scale.own(values[None], maps[0].signed), kind="shared")
    else:
        shared = Scale.choose(choice, maps, maps[0].signed)
    return shared, [shared] * len(maps)


def captions(
    maps: Sequence[Heatmap], scales: Sequence[Scale] | None, width: float, measure: Callable[[str], float]
) -> list[tuple[str, ...]]:
    """Return the lines below each map: prefix masses, and the range for separate scales.

    Masses share a line if they fit `width` below all maps, else each has its own line.
    """
    masses = [
        tuple(
            f"{name} {percent(mass, 2) if heatmap.in_shares else number(mass)}"
            for name, mass in heatmap.prefix_mass.items()
        )
        for heatmap in maps
    ]
    joined = [(" \N{MIDDLE DOT} ".join(parts),) if parts else () for parts in masses]
    if all(measure(text) <= width for parts in joined for text in parts):
        masses = list(joined)
    if scales is None:
        return masses
    return [
        (*parts, describe_range(scale, heatmap.unit))
        for parts, heatmap, scale in zip(masses, maps, scales, strict=True)
    ]
