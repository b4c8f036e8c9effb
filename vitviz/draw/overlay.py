"""Draw a map over a photograph, aligned with the pixels of each patch.

To save memory, (gh, gw) values become 8-bit color indices, which are enlarged to one byte per pixel and colored by a
palette, without a float array of the photograph's size.
"""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageChops, ImageDraw

from vitviz.draw.colors import DIVERGING, SEQUENTIAL, DrawError, lut
from vitviz.fields import check_arguments
from vitviz.heatmap import Scale, ScaleChoice, as_map, check_photo, check_query
from vitviz.images.geometry import Geometry

Box: TypeAlias = tuple[int, int, int, int]  # (left, top, right, bottom) in pixels
WHITE, BLACK = (255, 255, 255), (12, 14, 18)
OVER_GRAY: dict[str, Any] = {"gray": True, "alpha": 0.9, "spotlight": True}
"""Options of `overlay` for figures and films: a grey photograph, colored where the map is high."""


@check_arguments(DrawError)
def overlay(
    photo: Image.Image,
    values: ArrayLike,
    geometry: Geometry,
    *,
    scale: ScaleChoice = "each",
    signed: bool = False,
    cmap: str | None = None,
    alpha: float = 0.5,
    spotlight: bool = False,
    smooth: bool = False,
    grid: bool = False,
    query: tuple[int, int] | None = None,
    gamma: float = 1.0,
    unseen: bool = True,
    gray: bool = False,
) -> Image.Image:
    """Return a map over the photograph, as a new RGB picture of its size.

    Args:
        photo: the upright photograph of `geometry.image` pixels.
        values: (gh, gw), one finite number per patch.
        geometry: maps patches to pixels of the photograph.
        scale: "each" (`Scale.own`; dots mark clipped patches), "full" (the map's minimum and maximum),
            (vmin, vmax) or a `Scale`.
        signed: center the colors at zero; by default the range is then symmetric.
        cmap: a matplotlib color map; default viridis, or RdBu_r for a signed scale.
        alpha: 0 shows only the photograph, 1 only the map.
        spotlight: make the opacity follow the value, up to `alpha`, so the photograph stays visible at low values.
        smooth: interpolate bilinearly between patch centers.
        grid: thin lines between patches.
        query: (row, column) of a patch to outline.
        gamma: below 1 lifts small values.
        unseen: hatch the part that the model did not see.
        gray: convert the photograph to grey.

    Raises:
        HeatmapError: for values that are not a finite 2-D map, a photograph of the wrong size, a query outside the
            grid, or a reversed range.
        DrawError: for an alpha outside [0, 1] or an unknown color map.
    """
    values = as_map(values)
    check_photo(photo, geometry)
    if not 0.0 <= alpha <= 1.0:
        raise DrawError(f"Expected alpha from 0 (photograph) to 1 (map), got {alpha}. Try 0.5.")
    scale = Scale.choose(scale, [values], signed)
    xs, ys = patch_edges(geometry, (values.shape[0], values.shape[1]))
    region = (int(xs[0]), int(ys[0]), int(xs[-1]), int(ys[-1]))
    out = photo.convert("L").convert("RGB") if gray else photo.convert("RGB") if photo.mode != "RGB" else photo.copy()
    table = lut(cmap or (DIVERGING if scale.signed else SEQUENTIAL)).tobytes()
    if not _empty(region):
        index = scale.indices(values, gamma)
        heat = _enlarge_smooth(index, geometry, region) if smooth else _enlarge_blocks(index, xs, ys)
        for box in _strips(region):
            part = heat.crop((0, box[1] - region[1], box[2] - box[0], box[3] - region[1]))
            mask = part.point(_opacities(alpha, scale.signed)) if spotlight else None
            part.putpalette(table)
            colored, below = part.convert("RGB"), out.crop(box)
            out.paste(Image.composite(colored, below, mask) if mask else Image.blend(below, colored, alpha), box[:2])
    if unseen:
        _hatch_around(out, region)
    if grid:
        _draw_grid(out, xs, ys)
    if scale.clipped:
        reach = np.abs(values) if scale.signed else values
        for row, col in np.argwhere(reach > scale.vmax).tolist():
            _dot(out, (int(xs[col]), int(ys[row]), int(xs[col + 1]), int(ys[row + 1])))
    if query is not None:
        row, col = check_query(query, (values.shape[0], values.shape[1]))
        _outline(out, (int(xs[col]), int(ys[row]), int(xs[col + 1]), int(ys[row + 1])))
    return out


@check_arguments(DrawError)
def overlay_colors(photo: Image.Image, colors: ArrayLike, geometry: Geometry, *, alpha: float = 0.75) -> Image.Image:
    """Return a color for each patch over the photograph, as a new RGB picture of its size.

    Args:
        photo: the upright photograph of `geometry.image` pixels.
        colors: (gh, gw, 3), red, green and blue, 0..1.
        geometry: maps patches to pixels of the photograph.
        alpha: 0 shows only the photograph, 1 only the colors.

    Raises:
        HeatmapError: for a photograph of the wrong size.
        DrawError: for colors of another shape.
    """
    check_photo(photo, geometry)
    table = np.asarray(colors)
    if table.ndim != 3 or table.shape[2] != 3:
        raise DrawError(f"Expected colors of shape (rows, columns, 3), got {table.shape}. Pass red, green and blue.")
    xs, ys = patch_edges(geometry, (table.shape[0], table.shape[1]))
    out = photo.convert("RGB")
    if out is photo:
        out = photo.copy()
    rows, columns = (np.repeat(np.arange(len(edges) - 1), np.diff(edges)) for edges in (ys, xs))
    if len(rows) and len(columns):
        patches = Image.fromarray(np.rint(255 * table.clip(0, 1)).astype(np.uint8)[rows][:, columns])
        box = (int(xs[0]), int(ys[0]), int(xs[-1]), int(ys[-1]))
        out.paste(Image.blend(out.crop(box), patches, alpha), box[:2])
    return out


def patch_edges(geometry: Geometry, grid: tuple[int, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first pixel of each patch column and row, and the end: (gw + 1,) and (gh + 1,).

    A pixel belongs to the patch that contains its center. Edges are clipped to the photograph, so patches of padding
    have no pixels.
    """
    (width, height), (gh, gw), (left, top, right, bottom) = geometry.image, grid, geometry.frame

    def edges(low: float, high: float, count: int, size: int) -> NDArray[np.int64]:
        exact = low + (high - low) * np.arange(count + 1) / count  # same formula as Geometry.patch_box
        exact[-1] = high
        return np.clip(np.ceil(exact - 0.5), 0, size).astype(np.int64)

    return edges(left, right, gw, width), edges(top, bottom, gh, height)


def _opacities(alpha: float, signed: bool) -> list[int]:
    """Return the opacity, 0..255, of each color index, as on the page."""
    strength = np.abs(np.arange(256) - 127.5) / 127.5 if signed else np.arange(256) / 255
    opacities: list[int] = np.rint(255 * alpha * strength**0.7).astype(int).tolist()
    return opacities


def _empty(box: Box) -> bool:
    return box[2] <= box[0] or box[3] <= box[1]


def _strips(box: Box) -> list[Box]:
    """Cut a box into strips that fit the CPU cache."""
    rows = max(1, 48_000 // max(1, box[2] - box[0]))
    return [(box[0], y, box[2], min(y + rows, box[3])) for y in range(box[1], box[3], rows)]


def _enlarge_blocks(index: NDArray[np.uint8], xs: NDArray[np.int64], ys: NDArray[np.int64]) -> Image.Image:
    """Resize (gh, gw) to one byte per pixel of the region between the edges."""
    return Image.fromarray(np.repeat(np.repeat(index, np.diff(xs), axis=1), np.diff(ys), axis=0))


def _enlarge_smooth(index: NDArray[np.uint8], geometry: Geometry, region: Box) -> Image.Image:
    """Resize (gh, gw) bilinearly between patch centers; a border of copies clamps the edges."""
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


# --- marks: all draw in place ----------------------------------------------------------------------------------------

_FLAT = [round(24 + 0.72 * v) for v in range(256)]  # less contrast outside the visible part


def _hatch_around(out: Image.Image, region: Box) -> None:
    """Draw hatching over everything outside `region`."""
    width, height = out.size
    x0, y0, x1, y1 = (0, 0, 0, 0) if _empty(region) else region
    for box in ((0, 0, width, y0), (0, y1, width, height), (0, y0, x0, y1), (x1, y0, width, y1)):
        for strip in [] if _empty(box) else _strips(box):
            _hatch(out, strip)


def _hatch(out: Image.Image, box: Box) -> None:
    """Desaturate a box and draw diagonal light and dark lines on it, visible on any photograph."""
    longer = max(out.size)
    line, period = max(1, round(longer / 900)), max(8, round(longer / 56))
    profile = np.full(period, 128, np.uint8)
    depth = 22 + round(22 * min(1.0, longer / 900))  # fainter on thumbnails, where the lines are relatively denser
    profile[:line], profile[line : 2 * line] = 128 + depth, 128 - depth
    width, height = box[2] - box[0], box[3] - box[1]
    # Row y is the profile shifted by y pixels, as a strided view. The phase starts at the photograph's corner, so lines
    # continue between boxes.
    phase = (box[0] + box[1]) % period
    row = np.resize(profile, phase + width + height)[phase:]
    lines = np.lib.stride_tricks.as_strided(row, (height, width), (1, 1), writeable=False)
    band = out.crop(box)
    hatched = ImageChops.add(band.convert("L").point(_FLAT), Image.fromarray(np.ascontiguousarray(lines)), 1, -128)
    out.paste(Image.blend(band, hatched.convert("RGB"), 0.72), box[:2])


def _draw_grid(out: Image.Image, xs: NDArray[np.int64], ys: NDArray[np.int64]) -> None:
    """Draw thin lines: a light one on the first pixels of a patch, a dark one on its neighbor's last pixels."""
    line = max(1, round(max(out.size) / 1200))
    x0, x1, y0, y1 = int(xs[0]), int(xs[-1]), int(ys[0]), int(ys[-1])
    across = [int(x) for x in np.unique(xs) if 0 < x < out.width]
    down = [int(y) for y in np.unique(ys) if 0 < y < out.height]
    narrow = min((x1 - x0) / (len(xs) - 1), (y1 - y0) / (len(ys) - 1)) < 6 * line
    tinted = []  # read all strips before writing, so that crossings are not tinted twice
    for color, shift, strength in [(WHITE, 0, 0.3)] if narrow else [(BLACK, -line, 0.5), (WHITE, 0, 0.4)]:
        boxes = [(max(x0, x + shift), y0, min(x1, x + shift + line), y1) for x in across]
        boxes += [(x0, max(y0, y + shift), x1, min(y1, y + shift + line)) for y in down]
        for box in boxes:
            if not _empty(box):
                strip = out.crop(box)
                tinted.append((Image.blend(strip, Image.new("RGB", strip.size, color), strength), box[:2]))
    for strip, corner in tinted:
        out.paste(strip, corner)


def _dot(out: Image.Image, box: Box) -> None:
    """Mark a clipped patch by a white square with a black border in the middle of a box, a quarter of its width."""
    width, height = box[2] - box[0], box[3] - box[1]
    if (side := min(width, height) // 4) < 1:
        return
    casing = max(1, side // 4)
    left, top = box[0] + (width - side) // 2, box[1] + (height - side) // 2
    for color, more in ((BLACK, casing), (WHITE, 0)):
        out.paste(color, (left - more, top - more, left + side + more, top + side + more))


def _outline(out: Image.Image, box: Box) -> None:
    """Draw a white frame with a black border around a box, outside of it if there is room."""
    if _empty(box):  # the patch contains only padding
        return
    line = max(1, round(max(out.size) / 320))
    casing = max(1, round(line / 2))
    reach = line + 2 * casing
    left, top = max(0, box[0] - reach), max(0, box[1] - reach)
    right, bottom = min(out.width, box[2] + reach) - 1, min(out.height, box[3] + reach) - 1
    draw = ImageDraw.Draw(out)
    for color, width in ((BLACK, casing), (WHITE, line), (BLACK, casing)):
        if min(right - left, bottom - top) < 2 * width:
            return
        draw.rectangle((left, top, right, bottom), outline=color, width=width)
        left, top, right, bottom = left + width, top + width, right - width, bottom - width
