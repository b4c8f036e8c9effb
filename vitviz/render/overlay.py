"""One map over one photograph: colour scales, the heatmap, the patch grid.

Everything here draws arrays. A map is `values` (gh, gw), one number a patch; a `Geometry` says which pixels of the
photograph each patch saw. Only those pixels are coloured. What the model did not see is hatched, never guessed. Inputs
are never changed.

Speed comes from keeping the map small for as long as possible: it is turned into 8-bit colour indices at (gh, gw),
enlarged as one byte a pixel, and coloured by a palette. No float array of the photograph's size is ever made.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageChops, ImageDraw, ImageFont

from vitviz.preprocess import Geometry
from vitviz.render.colors import DIVERGING, SEQUENTIAL, Bytes, OverlayError, Scale, as_map, lut

__all__ = ["OverlayError", "Scale", "font", "overlay", "patch_edges", "patch_grid"]

Box: TypeAlias = tuple[int, int, int, int]
WHITE, DARK = (255, 255, 255), (12, 14, 18)


# --- where the patches are -------------------------------------------------------------------------------------------


def patch_edges(geometry: Geometry, grid: tuple[int, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first pixel of every patch column (gw + 1,) and of every patch row (gh + 1,), each with the end appended.

    A pixel belongs to the patch its centre lies in. Edges are clipped to the photograph, so padding gives patches
    without pixels.
    """
    left, top, right, bottom = geometry.frame
    if not (right > left and bottom > top):
        raise OverlayError(
            f"geometry: expected a frame (left, top, right, bottom) with some area, got {geometry.frame}."
        )
    (width, height), (gh, gw) = geometry.image, grid

    def edges(low: float, high: float, count: int, size: int) -> NDArray[np.int64]:
        exact = low + (high - low) * np.arange(count + 1) / count  # as Geometry.patch_box computes them
        exact[-1] = high
        return np.clip(np.ceil(exact - 0.5), 0, size).astype(np.int64)

    return edges(left, right, gw, width), edges(top, bottom, gh, height)


def _checked(photo: Image.Image, geometry: Geometry) -> Image.Image:
    if photo.size != tuple(geometry.image):
        raise OverlayError(
            f"photo: the geometry belongs to a photograph of {geometry.image[0]} x {geometry.image[1]} pixels, got "
            f"{photo.size[0]} x {photo.size[1]}; pass the upright original that was given to the model."
        )
    return photo if photo.mode == "RGB" else photo.convert("RGB")


# --- the picture -----------------------------------------------------------------------------------------------------


def overlay(
    photo: Image.Image,
    values: ArrayLike,
    geometry: Geometry,
    *,
    cmap: str | None = None,
    alpha: float = 0.5,
    smooth: bool = False,
    grid: bool = False,
    query: tuple[int, int] | None = None,
    vmin: float | None = None,
    vmax: float | None = None,
    signed: bool = False,
    gamma: float = 1.0,
    unseen: bool = True,
    grey: bool = False,
) -> Image.Image:
    """Lay a map over the photograph, at exactly the pixels each patch saw.

    Args:
        photo: the upright original, `geometry.image` pixels large.
        values: (gh, gw), one finite number a patch.
        geometry: which part of the photograph the model input maps to.
        cmap: a matplotlib colour map; default viridis, or RdBu_r when `signed`.
        alpha: 0 shows the photograph, 1 the map alone.
        smooth: bilinear between patch centres instead of one colour a patch.
        grid: thin lines between patches.
        query: (row, column) of a patch to outline.
        vmin, vmax: the values of the first and last colour; default the map's own minimum and maximum. See `Scale`.
        signed: zero in the middle of the colours; the default range is then symmetric about zero.
        gamma: below 1 lifts small values.
        unseen: hatch what the model did not see; False leaves it as photographed.
        grey: take the colour out of the photograph, so that the only colours are those of the map.

    Returns:
        A new RGB picture of the photograph's size.

    Raises:
        OverlayError: for values that are not a finite 2-D map, a photograph of another size, a query outside the grid,
            an alpha outside [0, 1], a range that runs backwards, or an unknown colour map.
    """
    values, photo = as_map(values), _checked(photo, geometry)
    if not 0.0 <= alpha <= 1.0:
        raise OverlayError(f"alpha: expected a number from 0 (photograph) to 1 (map), got {alpha}.")
    scale = _scale(values, vmin, vmax, signed)
    shape = (values.shape[0], values.shape[1])
    xs, ys = patch_edges(geometry, shape)
    region = (int(xs[0]), int(ys[0]), int(xs[-1]), int(ys[-1]))
    out = photo.convert("L").convert("RGB") if grey else photo.copy()
    table = lut(cmap or (DIVERGING if scale.signed else SEQUENTIAL)).tobytes()
    if not _empty(region):
        index = scale.indices(values, gamma)
        heat = _enlarge_smooth(index, geometry, region) if smooth else _enlarge_blocks(index, xs, ys)
        for box in _strips(region):
            part = heat.crop((0, box[1] - region[1], box[2] - box[0], box[3] - region[1]))
            part.putpalette(table)
            out.paste(Image.blend(out.crop(box), part.convert("RGB"), alpha), box[:2])
    if unseen:
        _hatch_around(out, region)
    if grid:
        _draw_grid(out, xs, ys)
    if query is not None:
        _outline(out, xs, ys, query)
    return out


def patch_grid(
    photo: Image.Image, geometry: Geometry, grid: tuple[int, int], *, numbers: bool = True, unseen: bool = True
) -> Image.Image:
    """The photograph cut into the patches the model reads, numbered from 0, row by row from the top left.

    Args:
        photo: the upright original.
        geometry: which part of the photograph the model input maps to.
        grid: (gh, gw), patches down and across.
        numbers: write `row * gw + column` on the patches; where patches are too small to read, on every second, third,
            ... of them.
        unseen: hatch what the model did not see.
    """
    if len(grid) != 2 or min(grid) < 1:
        raise OverlayError(f"grid: expected (rows, columns), both at least 1, got {grid}.")
    out = _checked(photo, geometry).copy()
    xs, ys = patch_edges(geometry, grid)
    if unseen:
        _hatch_around(out, (int(xs[0]), int(ys[0]), int(xs[-1]), int(ys[-1])))
    _draw_grid(out, xs, ys, strength=0.6)
    if numbers:
        _draw_numbers(out, geometry, grid)
    return out


def _scale(values: NDArray[np.float32], vmin: float | None, vmax: float | None, signed: bool) -> Scale:
    own = Scale.over([values], "each", signed)
    if vmin is None and vmax is None:
        return own
    low = vmin if vmin is not None else -vmax if signed and vmax is not None else own.vmin  # signed: one end gives both
    high = vmax if vmax is not None else -vmin if signed and vmin is not None else own.vmax
    return Scale(float(low), float(high), "fixed", signed)


def _empty(box: Box) -> bool:
    return box[2] <= box[0] or box[3] <= box[1]


def _strips(box: Box) -> list[Box]:
    """`box` cut into strips that stay in the cache: fresh memory for whole pictures costs more than the arithmetic."""
    rows = max(1, 48_000 // max(1, box[2] - box[0]))
    return [(box[0], y, box[2], min(y + rows, box[3])) for y in range(box[1], box[3], rows)]


def _enlarge_blocks(index: Bytes, xs: NDArray[np.int64], ys: NDArray[np.int64]) -> Image.Image:
    """(gh, gw) -> one byte a pixel of the seen region; every pixel takes the patch its centre lies in."""
    return Image.fromarray(np.repeat(np.repeat(index, np.diff(xs), axis=1), np.diff(ys), axis=0))


def _enlarge_smooth(index: Bytes, geometry: Geometry, region: Box) -> Image.Image:
    """The same, bilinear between patch centres. A border of copies makes the edge flat, as clamping would."""
    left, top, right, bottom = geometry.frame
    gh, gw = index.shape
    dx, dy = (right - left) / gw, (bottom - top) / gh
    box = (
        max(0.0, 1 + (region[0] - left) / dx),
        max(0.0, 1 + (region[1] - top) / dy),
        min(gw + 2.0, 1 + (region[2] - left) / dx),
        min(gh + 2.0, 1 + (region[3] - top) / dy),
    )
    size = (region[2] - region[0], region[3] - region[1])
    return Image.fromarray(np.pad(index, 1, mode="edge")).resize(size, Image.Resampling.BILINEAR, box=box)


# --- marks on the picture --------------------------------------------------------------------------------------------


def _hatch_around(out: Image.Image, region: Box) -> None:
    """Fade and hatch, in place, everything outside `region`."""
    width, height = out.size
    x0, y0, x1, y1 = region if not _empty(region) else (0, 0, 0, 0)
    for box in ((0, 0, width, y0), (0, y1, width, height), (0, y0, x0, y1), (x1, y0, width, y1)):
        if not _empty(box):
            for strip in _strips(box):
                _hatch(out, strip)


_FLAT = [round(24 + 0.72 * v) for v in range(256)]  # less contrast: what was not seen steps back


def _hatch(out: Image.Image, box: Box) -> None:
    """Diagonal lines, each light beside dark so that they read on any photograph, over greyer and flatter colours."""
    long = max(out.size)
    line, period = max(1, round(long / 900)), max(8, round(long / 56))
    profile = np.full(period, 128, np.uint8)
    depth = 22 + round(22 * min(1.0, long / 900))  # thumbnails have more lines for their size: fainter ones
    profile[:line], profile[line : 2 * line] = 128 + depth, 128 - depth
    width, height = box[2] - box[0], box[3] - box[1]
    # Row y is the profile started y pixels later: one strided view, no arithmetic. The phase counts from the
    # photograph's corner, so that the lines run on from one box to the next.
    phase = (box[0] + box[1]) % period
    row = np.resize(profile, phase + width + height)[phase:]
    lines = Image.fromarray(
        np.ascontiguousarray(np.lib.stride_tricks.as_strided(row, (height, width), (1, 1), writeable=False))
    )
    band = out.crop(box)
    grey = band.convert("L").point(_FLAT)
    out.paste(Image.blend(band, ImageChops.add(grey, lines, 1, -128).convert("RGB"), 0.72), box[:2])


def _draw_grid(out: Image.Image, xs: NDArray[np.int64], ys: NDArray[np.int64], strength: float = 0.5) -> None:
    """Thin lines in place: a light one on the first pixels of a patch, a dark one on the last of its neighbour."""
    line = max(1, round(max(out.size) / 1200))
    x0, x1, y0, y1 = int(xs[0]), int(xs[-1]), int(ys[0]), int(ys[-1])
    across = [int(x) for x in np.unique(xs) if 0 < x < out.width]
    down = [int(y) for y in np.unique(ys) if 0 < y < out.height]
    room = min((x1 - x0) / max(1, len(xs) - 1), (y1 - y0) / max(1, len(ys) - 1))
    shades = [(DARK, -line, strength), (WHITE, 0, strength * 0.8)] if room >= 6 * line else [(WHITE, 0, strength * 0.6)]
    tinted = []  # all strips are taken from the picture before any is put back, so that crossings are not tinted twice
    for colour, shift, amount in shades:
        boxes = [(max(x0, x + shift), y0, min(x1, x + shift + line), y1) for x in across]
        boxes += [(x0, max(y0, y + shift), x1, min(y1, y + shift + line)) for y in down]
        for box in boxes:
            if not _empty(box):
                strip = out.crop(box)
                tinted.append((Image.blend(strip, Image.new("RGB", strip.size, colour), amount), box[:2]))
    for strip, corner in tinted:
        out.paste(strip, corner)


def _outline(out: Image.Image, xs: NDArray[np.int64], ys: NDArray[np.int64], query: tuple[int, int]) -> None:
    """A white frame in a dark casing around one patch, in place; it leaves the patch's own pixels free where there is
    room.
    """
    row, col = query
    gh, gw = len(ys) - 1, len(xs) - 1
    if not (0 <= row < gh and 0 <= col < gw):
        raise OverlayError(
            f"query: expected (row, column) inside a grid of {gh} x {gw} patches, got {query}; both count from 0."
        )
    box = (int(xs[col]), int(ys[row]), int(xs[col + 1]), int(ys[row + 1]))
    if _empty(box):  # the patch saw padding only
        return
    line = max(1, round(max(out.size) / 320))
    casing = max(1, round(line / 2))
    reach = line + 2 * casing
    outer = [
        max(0, box[0] - reach),
        max(0, box[1] - reach),
        min(out.width, box[2] + reach) - 1,
        min(out.height, box[3] + reach) - 1,
    ]
    draw = ImageDraw.Draw(out)
    for colour, width in ((DARK, casing), (WHITE, line), (DARK, casing)):
        if outer[2] - outer[0] < 2 * width or outer[3] - outer[1] < 2 * width:
            return
        draw.rectangle(outer, outline=colour, width=width)
        outer = [outer[0] + width, outer[1] + width, outer[2] - width, outer[3] - width]


@lru_cache(maxsize=64)
def font(size: int, bold: bool = False, path: str | None = None) -> ImageFont.FreeTypeFont:
    """A typeface at `size` pixels. The default travels with matplotlib, so a picture is the same on every machine."""
    if path is None:
        from matplotlib import get_data_path

        path = os.path.join(get_data_path(), "fonts", "ttf", "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf")
    try:
        return ImageFont.truetype(path, size)
    except OSError as error:
        raise OverlayError(
            f"font: expected the path of a TrueType or OpenType file, got {path!r} ({error})."
        ) from error


def _draw_numbers(out: Image.Image, geometry: Geometry, grid: tuple[int, int]) -> None:
    gh, gw = grid
    left, top, right, bottom = geometry.frame
    wide, high = (right - left) / gw, (bottom - top) / gh
    digits = len(str(gh * gw - 1))
    fits = min(0.48 * high, 0.9 * wide / (0.64 * digits))  # a digit is about 0.64 of the type size wide
    size = int(min(max(fits, 9.0), max(out.size) / 24))
    every = max(1, int(np.ceil(size * 0.99 / fits)))
    draw, face = ImageDraw.Draw(out), font(max(6, size))
    stroke = max(1, size // 10)
    for row in range(0, gh, every):
        for col in range(0, gw, every):
            x, y = left + (col + 0.5) * wide, top + (row + 0.5) * high
            if 0 <= x <= out.width and 0 <= y <= out.height:
                draw.text((x, y), str(row * gw + col), WHITE, face, anchor="mm", stroke_width=stroke, stroke_fill=DARK)
