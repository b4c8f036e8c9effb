"""Draw two figures of the Vision Transformer paper, which show its attention and its weights.

Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words": figure 6 (photographs beside attention rollout) and figure 7
(filters of the patch embedding, similarity of positions, attention distance by depth). Shapes: L blocks, H heads.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitviz.analysis.filters import patch_filters
from vitviz.analysis.head_statistics import HeadStatistics
from vitviz.draw.colorbar import describe_range
from vitviz.draw.figures import page, places
from vitviz.draw.overlay import OVER_GRAY
from vitviz.draw.sheet import fit_photo
from vitviz.formatting import percent
from vitviz.model.vit import ViT
from vitviz.view import View

ACROSS, PIXELS = 3, 600  # pairs per row of figure 6; longer side of a picture
FILTERS = 28  # filters in figure 7, as in the paper


@page.styled
def rollout_sheet(views: Sequence[View], *, dark: bool = False, **options: Any) -> Figure:  # noqa: ARG001 - read by styled
    """Draw photographs beside their attention rollout: the paper's figure 6.

    Args:
        views: views of one model from `Explorer.open` or `open_many`; their names are the titles.
        dark: light text on a dark background.
        options: options of `View.rollout`.
    """
    maps = [view.rollout(**options) for view in views]
    pairs = page.fitting(1.9, min(ACROSS, len(views)))
    rows = [range(start, min(start + pairs, len(views))) for start in range(0, len(views), pairs)]
    side = min(page.inner() / (2 * pairs) - 0.1, 2.2)
    heights = [side * max(min(views[i].photo.height / views[i].photo.width, 1.0) for i in row) + 0.02 for row in rows]
    caption = (
        f"{maps[0].title}. Each map has its own scale, with the ends given above it. A dot marks patches beyond the "
        f"upper end (+); opacity follows the value. {page.describe_model(views[0].model)}"
    )
    figure = page.new_page("Attention rollout", caption, sum(heights) + 0.25 * len(rows))
    axes = figure.subplots(len(rows), 2 * pairs, height_ratios=heights, squeeze=False)
    for panel in axes.flat:
        page.hide_axes(panel)
    for index, (view, heatmap) in enumerate(zip(views, maps, strict=True)):
        left, right = axes[index // pairs, 2 * (index % pairs) : 2 * (index % pairs) + 2]
        photo = fit_photo(view.photo, PIXELS)
        name = view.name or f"photograph {index + 1}"
        ends = describe_range(heatmap.scale(), heatmap.unit).replace(" and more", " +")
        for panel, picture, title in ((left, photo, name), (right, heatmap.over(photo).overlay(**OVER_GRAY), ends)):
            panel.imshow(np.asarray(picture), aspect="equal", interpolation="antialiased")
            panel.set_title(page.shorten(title, page.SMALL, side), fontsize=page.SMALL, fontweight="normal", loc="left")
            panel.set_anchor("NW")
    return figure


@page.styled
def inside(model: ViT, statistics: HeadStatistics, *, photo: str = "", dark: bool = False) -> Figure:
    """Draw filters, similarity of positions and attention distance by depth: the paper's figure 7.

    Args:
        model: model with 1 or 3 channels.
        statistics: statistics with "distance" of one photograph (`View.heads`) or a folder (`folder_statistics`).
        photo: name of the photograph or folder, for the caption.
        dark: light text on a dark background.
    """
    config, count = model.config, statistics.images
    filters = patch_filters(model, FILTERS)
    photographs = "one photograph" if count == 1 else f"{count:,} photographs"
    caption = (
        f"Filters: the first {len(filters.pictures)} principal components of the {config.width} filters of the patch "
        f"embedding, {percent(float(filters.explained.sum()), 2)} of their variance; each on its own scale. "
        f"{_about_positions(model)} Distance: for each head the mean distance between a patch and the patches that it "
        f"attends to, in pixels of the model's input, averaged over all patches of {photographs}"
        f"{f' ({photo})' if photo else ''}; the line is the mean of the heads. {page.describe_model(model)}"
    )
    wide = page.fitting(1.8, 3) == 3
    figure = page.new_page("Inside the model", caption, 2.3 if wide else 4.4)
    mosaic: list[Any] = [["filters", "positions", "distance"]] if wide else [["filters", "distance"], ["positions"] * 2]
    axes = figure.subplot_mosaic(mosaic, width_ratios=[0.62, 1.2, 1.1] if wide else [0.62, 1.1])
    _draw_filters(axes["filters"], filters.pictures)
    _draw_positions(axes["positions"], model)
    _draw_distance(axes["distance"], statistics, config.patch_size, dark)
    return figure


def _about_positions(model: ViT) -> str:
    if model.config.positions == "none":
        return "The model has no position embeddings."
    step = -(-max(model.config.grid) // places.SHOWN)
    fixed = "its fixed sinusoidal positions"
    kind = {"rotary": "the angles of its rotary positions", "sincos": fixed, "sincos1d": fixed}
    return (
        f"Similarity: a small map for {places.every(step)} row and column shows the cosine of that position with every "
        f"other, of {kind.get(model.config.positions, 'the learned position embeddings')}."
    )


def _draw_filters(axes: Axes, pictures: page.Floats) -> None:
    """Draw principal components (K, p, p, 3) in rows of four, with a gap between them."""
    count, p = pictures.shape[:2]
    rows, step = -(-count // 4), p + max(1, p // 8)
    drawn = np.zeros((rows * step, 4 * step, 4), np.float32)  # with opacity
    for index, picture in enumerate(pictures):
        top, left = index // 4 * step, index % 4 * step
        drawn[top : top + p, left : left + p, :3], drawn[top : top + p, left : left + p, 3] = picture, 1
    axes.imshow(drawn[: p - step, : p - step], interpolation="nearest", aspect="equal")
    axes.set_anchor("NW")
    page.hide_axes(axes)
    axes.set(title="Filters", label="filters")


@torch.no_grad()
def _draw_positions(axes: Axes, model: ViT) -> None:
    """Draw the similarity of positions on the model's own grid."""
    gh, gw = model.config.grid
    if model.config.positions == "none":
        page.hide_axes(axes)
        axes.set_title("No positions")
        return
    step = -(-max(gh, gw) // places.SHOWN)
    rows, columns = range(0, gh, step), range(0, gw, step)
    chosen = torch.tensor([r * gw + c for r in rows for c in columns])
    places.draw_similarity(axes, places.positions_of(model, (gh, gw), chosen)[0], (rows, columns), (gh, gw))
    axes.set_label("positions")


def _draw_distance(axes: Axes, statistics: HeadStatistics, patch: int, dark: bool) -> None:
    """Draw a dot for each head above its layer, and a line through the means of the layers."""
    distances = patch * statistics.values["distance"]  # (L, H), in pixels
    layers = np.array(statistics.blocks) + 1  # (L,)
    colors = page.ACCENTS[dark]
    axes.scatter(layers.repeat(distances.shape[1]), distances.ravel(), s=9, color=colors["attention"], lw=0, alpha=0.8)
    axes.plot(layers, distances.mean(1), color=colors["embedding"], lw=1)
    axes.set(title="Attention distance", xlabel="layer", ylabel="mean distance, pixels", label="distance")
    axes.set_ylim(0, 1.08 * float(distances.max()) if math.isfinite(float(distances.max())) else None)
    page.count(axes)
    axes.spines[["top", "right"]].set_visible(False)
