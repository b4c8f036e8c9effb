"""Draw positions: prefix tokens, position embeddings, rotations, and similarities.

Dosovitskiy et al. 2021, figure 7, center; Su et al. 2021 (RoFormer) for rotations. Shapes: gh x gw patches, P prefix
tokens, D width, d head width.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from vitviz.draw.colors import SEQUENTIAL
from vitviz.draw.figures.page import Floats, array, bar, describe, fitting, heat, new_page, reach_of, styled
from vitviz.model.positions import sincos1d_positions, sincos_positions
from vitviz.model.vit import ViT
from vitviz.view import View

SHOWN = 8  # maximum number of maps along the longer side


@dataclass(frozen=True, eq=False)
class Table:
    """Values of one type of position embedding.

    Args:
        title: name.
        values: of shape (gh * gw, channels).
        channel: description of a channel.
        unit: unit of the values.
        reach: limit of the colors.
        cosines: (k, gh * gw), similarity of the chosen positions to all positions.
    """

    title: str
    values: Floats
    channel: str
    unit: str
    reach: float
    cosines: Floats


@styled
@torch.no_grad()
def positions(view: View, *, photo: str = "", dark: bool = False) -> Figure:
    """Draw prefix tokens and position embeddings as heatmaps, and the similarity of each position to all others.

    The figure compares the model's positions with fixed sinusoidal positions on the same grid. For rotary positions, it
    shows the angles, and the mean cosine of the angles between two positions.
    """
    model, (gh, gw) = view.model, view.trace.grid
    step = -(-max(gh, gw) // SHOWN)
    rows, columns = range(0, gh, step), range(0, gw, step)
    tables = positions_of(model, (gh, gw), torch.tensor([r * gw + c for r in rows for c in columns]))
    prefix = _prefix(model)
    shape = (len(rows) * gh + len(rows) - 1) / (len(columns) * gw + len(columns) - 1)  # of all maps: height / width
    mosaic: list[Any] = [["table 0", "alike 0"]]
    heights = [min(max(2.0 * shape, 1.4), 2.6)]
    if len(tables) == 2:
        mosaic, heights = [["table 0", "table 1"], ["alike 0", "alike 1"]], [1.7, min(max(2.0 * shape, 0.8), 2.6)]
    if fitting(2.6, 2) == 1:  # stacked vertically
        kinds = [("table", 1.5), ("alike", min(max(2.0 * shape, 0.8), 2.6))]
        mosaic = [[f"{kind} {index}"] for index in range(len(tables)) for kind, _ in kinds]
        heights = [high for _ in tables for _, high in kinds]
    if prefix:
        mosaic, heights = [["prefix"] * len(mosaic[0]), *mosaic], [max(0.42, 0.14 * len(prefix)), *heights]
    caption = (
        f"{_caption(model)} Similarity: a small map for {every(step)} row and column shows how similar that position "
        f"is to each of the {gh} × {gw}. {describe(view, photo)}"
    )
    figure = new_page("Positions of the patches", caption, sum(heights) + 0.55 * len(heights))
    axes = figure.subplot_mosaic(mosaic, height_ratios=heights)
    if prefix:
        values = np.stack(list(prefix.values()))  # (P, D)
        image = heat(axes["prefix"], values, reach_of(values), dark)
        axes["prefix"].set(title=f"Learned tokens: {len(values)} × {values.shape[1]}", xlabel="channel")
        axes["prefix"].set_yticks(range(1, 1 + len(values)), list(prefix))
        bar(image, axes["prefix"], "value")
    for index, table in enumerate(tables):
        panel = axes[f"table {index}"]
        panel.set(title=table.title, xlabel=table.channel, ylabel="patch, in reading order")
        bar(heat(panel, table.values, table.reach, dark), panel, table.unit)
        draw_similarity(axes[f"alike {index}"], table, (rows, columns), (gh, gw))
    return figure


def positions_of(model: ViT, grid: tuple[int, int], chosen: Tensor) -> list[Table]:
    """Return the model's own positions, if it has any, and the sinusoidal positions."""
    config, tables = model.config, []
    own = model.positions(grid)  # (1, gh * gw, D)
    angles = model.angles(grid)
    if angles is not None and angles.rotation:
        # (gh * gw, 2 d): every pair's angle twice. The cosine of two rows is the mean of cos(angle - angle').
        both = torch.cat(angles.rotation, dim=1).float().cpu()
        half = array(both[:, : both.shape[1] // 4])  # (gh * gw, d / 2)
        channel = "rotated pair: first those of the row"
        tables.append(Table("Rotary: cosines of the angles", half, channel, "cosine", 1.0, _cosines(both, chosen)))
    if config.learned and own is not None:
        tables.append(_table("Learned positions", own[0], chosen))
    elif config.positions == "sincos1d":
        tables.append(_table("One-dimensional sinusoids", sincos1d_positions(grid, config.width)[0], chosen))
    width = max(4, config.width // 4 * 4)
    name = "Sinusoidal positions" if width == config.width else f"Sinusoidal, width {width}"
    if config.positions == "sincos1d":
        name = "Two-dimensional sinusoids"
    return [*tables, _table(name, sincos_positions(grid, width)[0], chosen)]


def every(step: int) -> str:
    """Describe which rows and columns have a map: "each", "every 2nd"."""
    return "each" if step == 1 else f"every {step}{ {2: 'nd', 3: 'rd'}.get(step, 'th') }"


def _table(title: str, values: Tensor, chosen: Tensor) -> Table:
    rows = array(values)  # (gh * gw, D)
    return Table(title, rows, "channel", "value", reach_of(rows), _cosines(values.float().cpu(), chosen))


def _cosines(vectors: Tensor, chosen: Tensor) -> Floats:
    """Return the cosines between the chosen rows and all rows: (gh * gw, D) -> (k, gh * gw)."""
    unit = F.normalize(vectors, dim=-1)
    return array(unit[chosen] @ unit.T)


def _prefix(model: ViT) -> dict[str, Floats]:
    """Return the prefix tokens and the query of attention pooling by name, (D,) each."""
    parameters = (model.cls_token, model.dist_token, model.reg_token)
    rows = [array(row) for parameter in parameters if parameter is not None for row in parameter[0]]
    tokens = dict(zip(model.config.prefix, rows, strict=True))
    if model.attn_pool is not None:
        tokens["pooling query"] = array(model.attn_pool.latent[0, 0])
    return tokens


def _caption(model: ViT) -> str:
    config = model.config
    grid = f"{config.learned_grid[0]} × {config.learned_grid[1]}"
    start = "" if _prefix(model) else "No class token: the classifier reads the mean of the patches. "
    return (
        start
        + {
            "learned": f"The model learned its positions on a grid of {grid}; they are interpolated to other grids.",
            "sincos": "The model has fixed sinusoidal positions: a quarter each of sin x, cos x, sin y and cos y.",
            "sincos1d": "The model has fixed sinusoidal positions in reading order, alternately sin and cos: the last "
            "patch of a row is near the first patch of the next. Beside them: sinusoidal positions of row and column.",
            "rotary": "Rotary: no position embedding. The model rotates queries and keys by these angles in every "
            "block; sinusoidal positions are shown for comparison.",
            "learned+rotary": "The model adds learned positions to the tokens, and rotates queries and keys in every "
            "block.",
            "relative": "Relative position bias: each head adds a learned number to the logit of two patches, which "
            "depends on the difference of their rows and columns; sinusoidal positions are shown for comparison.",
            "none": "This model has no positions; sinusoidal positions are shown for comparison.",
        }[config.position_kind]
    )


def draw_similarity(axes: Axes, table: Table, shown: tuple[range, range], grid: tuple[int, int]) -> None:
    """Draw a small map for each chosen position, arranged like the positions, one patch apart."""
    (rows, columns), (gh, gw) = shown, grid
    drawn = np.full((len(rows), gh + 1, len(columns), gw + 1), np.nan, np.float32)
    drawn[:, :gh, :, :gw] = table.cosines.reshape(len(rows), len(columns), gh, gw).transpose(0, 2, 1, 3)
    drawn = drawn.reshape(len(rows) * (gh + 1), len(columns) * (gw + 1))[:-1, :-1]
    x, y = gw / (gw + 1) / 2, gh / (gh + 1) / 2
    image = axes.imshow(
        np.ma.masked_invalid(drawn),
        cmap=SEQUENTIAL,
        vmin=math.floor(min(0.9, float(table.cosines.min())) * 20) / 20,  # fixed positions are similar: 0.65 and more
        vmax=1.0,
        interpolation="nearest",
        extent=(-x, len(columns) - 1 + x, len(rows) - 1 + y, -y),
    )
    axes.set(title="Similarity of positions", xlabel="column", ylabel="row")
    axes.set_xticks(range(len(columns)), [str(c + 1) for c in columns])
    axes.set_yticks(range(len(rows)), [str(r + 1) for r in rows])
    axes.spines[:].set_visible(False)
    bar(image, axes, "cosine")
