"""Contact sheets: many maps side by side, with the numbers that a picture alone hides.

Under every map stands the share that went to tokens without a place in the picture (CLS, registers), and the sheet says
in words whether equal colours mean equal numbers. `plan` decides what is written and where; `sheet` draws it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from vitviz.preprocess import Geometry
from vitviz.render.colorbar import DARK, LIGHT, colorbar, number, scale_words, span
from vitviz.render.colors import OverlayError, Scale, ScaleChoice, as_map, resolve
from vitviz.render.overlay import font, overlay


class MapLike(Protocol):
    """What a sheet needs to know of a map; `vitviz.heatmap.Heatmap` has it and tells more."""

    @property
    def values(self) -> NDArray[np.float32]:
        """(gh, gw), one number a patch."""

    @property
    def geometry(self) -> Geometry:
        """From patches to the pixels of the photograph."""

    @property
    def photo(self) -> Image.Image:
        """The upright original."""

    @property
    def title(self) -> str:
        """What the map shows, in words."""

    @property
    def unit(self) -> str:
        """The word for the numbers; attention is printed in percent."""

    @property
    def signed(self) -> bool:
        """Zero is in the middle of the colours."""

    @property
    def prefix_mass(self) -> Mapping[str, float]:
        """The share of each kind of prefix token, 0 to 1."""

    @property
    def query(self) -> tuple[int, int] | None:
        """The patch to outline."""


# --- the plan of a sheet ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One map on the sheet: the box of its picture (left, top, right, bottom), where its words start, and the words."""

    box: tuple[int, int, int, int]
    words_at: tuple[int, int]
    scale: Scale
    label: tuple[str, ...]
    captions: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """A sheet before it is drawn. `shared` is the one scale of all cells, or None where each has its own."""

    size: tuple[int, int]
    columns: int
    type_size: int
    margin: int
    heading: tuple[str, ...]
    words: tuple[str, ...]
    shared: Scale | None
    cells: tuple[Cell, ...]


def plan(
    maps: Sequence[MapLike],
    *,
    title: str = "",
    scale: ScaleChoice = "shared",
    columns: int | None = None,
    labels: Sequence[str] | None = None,
    thumb: int = 176,
    typeface: str | None = None,
) -> Plan:
    """Decide scales, words and places of a contact sheet; the arguments are those of `sheet`."""
    shared, scales = _scales(maps, scale)
    if labels is not None and len(labels) != len(maps):
        raise OverlayError(f"labels: expected one for each of {len(maps)} maps, got {len(labels)}.")
    if thumb < 48 or (columns is not None and columns < 1):
        raise OverlayError(
            f"sheet: expected thumbnails of at least 48 pixels and at least 1 column, got {thumb} and {columns}."
        )
    type_size = max(11, round(thumb / 13))
    face, margin, gap = font(type_size, path=typeface), round(1.8 * type_size), round(0.9 * type_size)
    sizes = [_fit(m.photo.size, thumb) for m in maps]
    wide, high = max(w for w, _ in sizes), max(h for _, h in sizes)
    titles = [wrap(text, face, wide) for text in ([m.title for m in maps] if labels is None else labels)]
    masses = _masses(maps, face, wide)
    texts = [
        (*mass, *([span(s, m.unit)] if shared is None else [])) for m, s, mass in zip(maps, scales, masses, strict=True)
    ]
    line, below = round(1.35 * type_size), max(len(a) + len(b) for a, b in zip(titles, texts, strict=True))
    step_x, step_y = wide + gap, high + round(0.4 * type_size) + line * below + gap
    columns = min(len(maps), columns or best_columns(len(maps), step_x, step_y))
    rows = -(-len(maps) // columns)
    inner = max(columns * step_x - gap, 20 * type_size)  # room for the title and the colour bar above a single map
    heading = wrap(title, font(round(1.5 * type_size), bold=True, path=typeface), inner) if title else ()
    clipped = shared is not None and any(m.values.min() < shared.vmin or m.values.max() > shared.vmax for m in maps)
    words = wrap(scale_words(shared, maps[0].unit, clipped), face, inner)
    top = margin + round(1.5 * line * len(heading)) + line * len(words) + gap
    left = margin + (inner - (columns * step_x - gap)) // 2
    cells = []
    for i, (w, h) in enumerate(sizes):
        x, y = left + i % columns * step_x, top + i // columns * step_y
        box = (x + (wide - w) // 2, y + (high - h) // 2, x + (wide + w) // 2, y + (high + h) // 2)
        cells.append(Cell(box, (x, y + high + round(0.4 * type_size)), scales[i], titles[i], texts[i]))
    bottom = top + rows * step_y - gap + (gap + 3 * type_size if shared is not None else 0)
    return Plan((inner + 2 * margin, bottom + margin), columns, type_size, margin, heading, words, shared, tuple(cells))


def _scales(maps: Sequence[MapLike], choice: ScaleChoice) -> tuple[Scale | None, list[Scale]]:
    """The one scale of all maps, or None; and the scale of every map."""
    if len(maps) == 0:
        raise OverlayError("sheet: expected at least one map, got none; choose a head or a layer.")
    values, signed = [as_map(m.values, f"map {i}") for i, m in enumerate(maps)], {bool(m.signed) for m in maps}
    if choice == "each":
        return None, [Scale.over([v], "each", bool(m.signed)) for v, m in zip(values, maps, strict=True)]
    if len(signed) > 1 or len({m.unit for m in maps}) > 1:
        raise OverlayError(
            "sheet: expected maps of one unit, all signed or none, to share a scale, got a mixture; "
            "pass scale='each' or make two sheets."
        )
    one = resolve(choice, values, signed.pop())
    return one, [one] * len(maps)


def best_columns(count: int, step_x: int, step_y: int) -> int:
    """The number of columns that makes the sheet about half again as wide as high with few empty places."""

    def cost(columns: int) -> float:
        rows = -(-count // columns)
        aspect = columns * step_x / (rows * step_y)
        return abs(math.log(aspect / 1.5)) + 1.5 * (rows * columns - count) / (rows * columns)

    return min(range(1, count + 1), key=cost)


def _masses(maps: Sequence[MapLike], face: ImageFont.FreeTypeFont, width: int) -> list[tuple[str, ...]]:
    """The shares outside the picture, for the lines under each map: on one line if that fits under every map, else one
    a line.
    """
    units = ["attention" if m.unit in ("", "attention") else m.unit for m in maps]  # a share, or the map's own numbers
    masses = [m.prefix_mass.items() for m in maps]
    parts = [tuple(f"{name} {number(mass, unit)}" for name, mass in of) for of, unit in zip(masses, units, strict=True)]
    joined = [" \N{MIDDLE DOT} ".join(p) for p in parts]
    if all(face.getlength(text) <= width for text in joined):
        return [(text,) if text else () for text in joined]
    return parts


def _fit(size: tuple[int, int], thumb: int) -> tuple[int, int]:
    ratio = thumb / max(size)
    return max(1, round(size[0] * ratio)), max(1, round(size[1] * ratio))


def wrap(text: str, face: ImageFont.FreeTypeFont, width: int) -> tuple[str, ...]:
    """The lines that a text takes at most `width` pixels wide; a word that is longer alone is shortened."""
    lines: list[str] = []
    for word in text.split():
        if lines and face.getlength(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return tuple(shorten(line, face, width) for line in lines)


def shorten(text: str, face: ImageFont.FreeTypeFont, width: int) -> str:
    """As much of a text as fits into `width` pixels, with an ellipsis where some of it does not."""
    if face.getlength(text) <= width:
        return text
    while text and face.getlength(text + "\N{HORIZONTAL ELLIPSIS}") > width:
        text = text[:-1]
    return text + "\N{HORIZONTAL ELLIPSIS}"


# --- the sheet -------------------------------------------------------------------------------------------------------


def sheet(
    maps: Sequence[MapLike],
    *,
    title: str = "",
    scale: ScaleChoice = "shared",
    columns: int | None = None,
    labels: Sequence[str] | None = None,
    thumb: int = 176,
    dark: bool = False,
    cmap: str | None = None,
    alpha: float = 0.6,
    smooth: bool = False,
    gamma: float = 1.0,
    grey: bool = True,
    typeface: str | None = None,
) -> Image.Image:
    """A contact sheet: every map over its photograph in reading order, its label and the mass outside the picture under
    it.

    Args:
        maps: heads of a layer (put the fused one first), layers of a model, or anything that is `MapLike`.
        title: stands above; long titles wrap.
        scale: "shared" (equal colours are equal numbers), "each", "signed", a `Scale`, or (vmin, vmax). The sheet says
            which.
        columns: default chosen so that the sheet is wider than high; pass the number of heads for a wall of layers.
        labels: under the pictures instead of the maps' own titles.
        thumb: the longer side of a picture in pixels; the type follows.
        dark: light words on a dark ground.
        cmap, alpha, smooth, gamma: as in `overlay`.
        grey: photographs without colour, so that the only colours are those of the bar.
        typeface: path of a TrueType file, for scripts that DejaVu Sans lacks.

    Raises:
        OverlayError: for no maps, a wrong number of labels, or maps that cannot share a scale.
    """
    design = plan(maps, title=title, scale=scale, columns=columns, labels=labels, thumb=thumb, typeface=typeface)
    theme, size = DARK if dark else LIGHT, design.type_size
    out = Image.new("RGB", design.size, theme.ground)
    draw, line = ImageDraw.Draw(out), round(1.35 * size)
    face, y = font(size, path=typeface), design.margin
    for text in design.heading:
        draw.text((design.margin, y), text, theme.text, font(round(1.5 * size), bold=True, path=typeface), anchor="la")
        y += round(1.5 * line)
    for text in design.words:
        draw.text((design.margin, y), text, theme.muted, face, anchor="la")
        y += line
    photos: dict[tuple[int, tuple[int, int]], Image.Image] = {}  # maps mostly share one photograph: shrink it once
    for m, cell in zip(maps, design.cells, strict=True):
        box, s = cell.box, cell.scale
        photo, geometry = _shrink(m, (box[2] - box[0], box[3] - box[1]), photos)
        picture = overlay(
            photo,
            m.values,
            geometry,
            cmap=cmap,
            alpha=alpha,
            smooth=smooth,
            query=m.query,
            vmin=s.vmin,
            vmax=s.vmax,
            signed=s.signed,
            gamma=gamma,
            grey=grey,
        )
        out.paste(picture, box[:2])
        for i, text in enumerate((*cell.label, *cell.captions)):
            colour = theme.text if i < len(cell.label) else theme.muted
            draw.text((cell.words_at[0], cell.words_at[1] + i * line), text, colour, face, anchor="la")
    if design.shared is not None:
        s, wide = design.shared, min(design.size[0] - 2 * design.margin, 30 * size)
        bar = colorbar(
            cmap, s.vmin, s.vmax, maps[0].unit, (wide, 3 * size), dark, gamma=gamma, signed=s.signed, typeface=typeface
        )
        out.paste(bar, ((design.size[0] - wide) // 2, design.size[1] - design.margin - 3 * size))
    return out


def _shrink(
    m: MapLike, size: tuple[int, int], photos: dict[tuple[int, tuple[int, int]], Image.Image]
) -> tuple[Image.Image, Geometry]:
    """The photograph and its geometry at the size of a thumbnail: drawn there, edges and lines stay sharp."""
    key = (id(m.photo), size)
    if key not in photos:
        photos[key] = m.photo.convert("RGB").resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)
    fx, fy = size[0] / m.geometry.image[0], size[1] / m.geometry.image[1]
    left, top, right, bottom = m.geometry.frame
    return photos[key], replace(m.geometry, image=size, frame=(left * fx, top * fy, right * fx, bottom * fy))
