"""How a model knows where a patch lies: prefix tokens, position embeddings, rotations, and which places look alike.

Dosovitskiy et al. 2021, figure 7, centre; Su et al. 2021 (RoFormer) for rotations. Shapes: gh x gw patches, P prefix
tokens, D width, d head width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from vitviz.model import ViT
from vitviz.positions import sincos_positions
from vitviz.render.figures.about import Floats, array, grid_of, model_of, model_words, photo_words
from vitviz.render.figures.page import INNER, SMALL, Page, line_of, measure, reach_of
from vitviz.render.figures.tokens import FOOT, HEAD, SIDE
from vitviz.view import View

SHOWN = 8  # places along the longer side whose maps are drawn, at most
# Inches: a colour bar beside a panel with its numbers, and the shortest that has room for them; a token's row.
BAR, LEAST, EACH = 0.64, 0.42, 0.14


@dataclass(frozen=True, eq=False)
class Table:
    """One kind of positions. Args: what it is; `values` (gh * gw, channels) with what a channel is and their reach;
    `alike` (k, gh * gw), how alike the chosen places and all are; what that number is.
    """

    title: str
    values: Floats
    channel: str
    unit: str
    reach: float
    alike: Floats
    likeness: str


@torch.no_grad()
def positions(source: View | ViT, *, photo: str = "", dark: bool = False) -> Figure:
    """Prefix tokens and position embeddings as heatmaps, and how alike each place is to all others.

    The model's own positions stand beside the fixed sinusoidal ones of the same grid. A model with rotary positions has
    no embedding: its angles are drawn, and how much a query finds an equal key, averaged over the rotated pairs.

    Args:
        source: a view, for the grid of its photograph, or a model, for its own.
        photo: the photograph's name, for the caption.
        dark: light words on a dark ground.
    """
    model, (gh, gw) = model_of(source), grid_of(source)
    config = model.config
    step = -(-max(gh, gw) // SHOWN)
    rows, columns = range(0, gh, step), range(0, gw, step)
    chosen = torch.tensor([r * gw + c for r in rows for c in columns])
    tables = _tables(model, (gh, gw), chosen)
    strip = _prefix(model)
    top = HEAD + 0.12 + (len(strip) * EACH + FOOT if strip else line_of(SMALL) + 0.08)
    wide, high = (INNER - 0.15) / 2 - SIDE - BAR, 1.7
    shape = (len(rows) * gh + len(rows) - 1) / (len(columns) * gw + len(columns) - 1)
    maps = min(max(wide * shape, 0.8), 2.6)  # a strip of patches is drawn wider, or a column, than it is
    across = min(max(maps / shape, 0.8), wide)
    below = HEAD + high + FOOT + 0.08
    beside = len(tables) == 1  # then heatmap and maps lie side by side
    height = top + (max(below, HEAD + maps + FOOT) if beside else below + HEAD + maps + FOOT)
    every = "each" if step == 1 else f"every {step}{'nd' if step == 2 else 'rd' if step == 3 else 'th'}"
    caption = (
        f"{_caption(model)} Similarity: a small map for {every} row and column shows how alike that position and each "
        f"of the {gh} × {gw} are. {photo_words(source, photo)} {model_words(source)}"
    )
    page = Page("Where a patch lies", caption, height, dark=dark)
    _draw_prefix(page, strip, config.width)
    for number, table in enumerate(tables):
        left = number * (INNER + 0.15) / 2 + SIDE
        _draw_table(page, table, number, (left, top + HEAD, wide, high))
        place = (SIDE + (INNER + 0.15) / 2, top + HEAD) if beside else (left, top + below + HEAD)
        _draw_alike(page, table, number, (*place, across, maps), (rows, columns), (gh, gw))
    return page.figure


def _tables(model: ViT, grid: tuple[int, int], chosen: Tensor) -> list[Table]:
    """The model's own positions, if it has any, and the sinusoidal ones."""
    config, found = model.config, []
    own = model.positions(grid)  # (1, gh * gw, D)
    if (angles := model.angles(grid)) is not None:
        cos, sin = (angle.float().cpu() for angle in angles)  # (gh * gw, d) each: every pair's angle, twice
        alike = (cos[chosen] @ cos.T + sin[chosen] @ sin.T) / cos.shape[1]  # mean over pairs of cos(angle - angle')
        half = array(cos[:, : cos.shape[1] // 2])  # (gh * gw, d / 2)
        pair = "rotated pair: first those of the row"
        found.append(Table("Rotary: cosines of the angles", half, pair, "cosine", 1.0, array(alike), "cosine"))
    elif config.positions == "learned" and own is not None:
        found.append(_table("Learned positions", own[0], chosen))
    width = max(4, config.width // 4 * 4)
    name = "Sinusoidal positions" if width == config.width else f"Sinusoidal positions of width {width}"
    found.append(_table(name, sincos_positions(grid, width)[0], chosen))
    return found


def _table(title: str, values: Tensor, chosen: Tensor) -> Table:
    values = values.float().cpu()  # (gh * gw, D)
    unit = F.normalize(values, dim=-1)
    shown = array(values)
    return Table(title, shown, "channel", "value", reach_of(shown), array(unit[chosen] @ unit.T), "cosine")


def _prefix(model: ViT) -> dict[str, Floats]:
    """What stands in front of the patches, and the query of attention pooling: (D,) each, by name."""
    found = [token for token in (model.cls_token, model.dist_token, model.reg_token) if token is not None]
    rows = [array(row) for token in found for row in token[0]]
    named = dict(zip(model.config.prefix, rows, strict=True))
    if model.attn_pool is not None:
        named["pooling query"] = array(model.attn_pool.latent[0, 0])
    return named


def _caption(model: ViT) -> str:
    """What the model does about places, in a sentence."""
    config = model.config
    grid = f"{config.learned_grid[0]} × {config.learned_grid[1]}"
    return {
        "learned": f"The model learned its positions on a grid of {grid}; they are interpolated to others.",
        "sincos": "The model has fixed sinusoidal positions: a quarter each of sin x, cos x, sin y and cos y.",
        "rotary": "Rotary: no position embedding. The model turns queries and keys by these angles in every block; "
        "the sinusoidal positions are for comparison.",
        "none": "This model has no positions at all; the sinusoidal ones are for comparison.",
    }[config.positions]


def _draw_prefix(page: Page, strip: dict[str, Floats], width: int) -> None:
    if not strip:
        page.heading(SIDE, HEAD, "No class token")
        page.words(SIDE, HEAD, "What is read at the end is the mean over the patches.", colour=page.look.muted)
        return
    values = np.stack(list(strip.values()))  # (P, D)
    room = max(SIDE, max(measure(name, SMALL) for name in strip) + 0.08)
    page.heading(room, HEAD, f"Learned tokens: {len(values)} × {width}")
    axes = page.axes("prefix", room, HEAD, INNER - room - BAR, len(values) * EACH)
    image = page.heat(axes, values, reach_of(values))
    page.ticks(axes, "y", range(len(values)), list(strip))
    page.counted(axes, "x", width)
    page.name_axes(axes, "channel")
    page.bar(
        image,
        "prefix scale",
        (INNER - BAR + 0.06, HEAD, 0.09, max(len(values) * EACH, 0.1 + 3 * line_of(SMALL) * 0.8)),
        "value",
    )


def _draw_table(page: Page, table: Table, number: int, box: tuple[float, float, float, float]) -> None:
    left, top, wide, high = box
    page.heading(left, top, table.title)
    axes = page.axes(f"table {number}", left, top, wide, high)
    image = page.heat(axes, table.values, table.reach)
    page.counted(axes, "x", table.values.shape[1])
    page.counted(axes, "y", len(table.values), air=2)
    page.name_axes(axes, table.channel, "patch, in reading order")
    page.bar(image, f"table {number} scale", (left + wide + 0.06, top, 0.09, high), table.unit)


def _draw_alike(
    page: Page,
    table: Table,
    number: int,
    box: tuple[float, float, float, float],
    shown: tuple[range, range],
    grid: tuple[int, int],
) -> None:
    """A small map for each chosen place, in its place, with one patch of room between them."""
    (left, top, wide, high), (rows, columns), (gh, gw) = box, shown, grid
    page.heading(left, top, "Similarity of positions")
    axes = page.axes(f"alike {number}", left, top, wide, high, frame=False)
    drawn = np.full((len(rows), gh + 1, len(columns), gw + 1), np.nan, np.float32)
    drawn[:, :gh, :, :gw] = table.alike.reshape(len(rows), len(columns), gh, gw).transpose(0, 2, 1, 3)
    drawn = drawn.reshape(len(rows) * (gh + 1), len(columns) * (gw + 1))[:-1, :-1]
    x, y = gw / (gw + 1) / 2, gh / (gh + 1) / 2
    image = axes.imshow(
        np.ma.masked_invalid(drawn),
        cmap=page.look.sequential,
        vmin=min(0.0, float(table.alike.min())),
        vmax=1.0,
        aspect="auto",
        interpolation="nearest",
        origin="upper",
        resample=True,
        extent=(-x, len(columns) - 1 + x, len(rows) - 1 + y, -y),
    )
    page.ticks(axes, "x", range(len(columns)), [str(c + 1) for c in columns])
    page.ticks(axes, "y", range(len(rows)), [str(r + 1) for r in rows])
    page.name_axes(axes, "column", "row")
    page.bar(image, f"alike {number} scale", (left + wide + 0.06, top, 0.09, high), table.likeness)
