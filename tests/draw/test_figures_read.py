"""Test that figures can be read: legends cover nothing, rows are aligned, and figures fit a column."""

import re

import numpy as np
import pytest
import tiny
import torch
from figure_words import words_are_inside_and_apart
from matplotlib.figure import Figure
from pairwise import alternate

import vitviz
from vitviz.draw.colors import DrawError
from vitviz.draw.figures import KINDS, NAMES, draw
from vitviz.draw.figures.layouts import layout
from vitviz.draw.figures.page import ACCENTS, SMALL
from vitviz.model.vit import Pretrained
from vitviz.paper.figures import inside, rollout_sheet
from vitviz.training.curves import learning_curves
from vitviz.training.log import Epoch
from vitviz.view import View

EPOCHS = [
    Epoch(
        epoch=n, step=n, loss=2 / n, accuracy=0.2 * n, val_loss=2.5 / n, top1=0.3 * n, top5=1.0, lr=0.1,
        images_per_second=1.0, seconds=1.0,
    )
    for n in (1, 2)
]  # fmt: skip


@pytest.fixture(scope="module")
def view() -> View:
    model = tiny.model()
    explorer = vitviz.Explorer(model)
    labels = tuple(f"thing {i}" for i in range(model.config.classes))
    model.pretrained = Pretrained(name="Tiny", preprocess=explorer.preprocess, labels=labels)
    return explorer.open(torch.rand(3, 91, 143, generator=torch.Generator().manual_seed(0)))


def drawn(view: View, name: str) -> Figure:
    return draw(view, [name], photo="noise.png")[name]


@pytest.mark.parametrize("name", ["curves", "lens", "decomposition"])
def test_legend_covers_neither_axes_nor_caption(view: View, name: str) -> None:
    figure = drawn(view, name)
    (legend,) = figure.legends
    box, caption = legend.get_window_extent(), figure.texts[1].get_window_extent()
    assert not any(axes.get_legend() for axes in figure.axes)
    assert not any(box.overlaps(axes.get_window_extent()) for axes in figure.axes)
    assert not box.overlaps(caption)


def test_bars_are_aligned_with_the_rows_of_the_table(view: View) -> None:
    figure = drawn(view, "decomposition")
    table, sums = (next(axes for axes in figure.axes if axes.get_label() == name) for name in ("parts", "sums"))
    assert table.get_ylim() == sums.get_ylim()
    centers = [
        np.mean([bar.get_y() + bar.get_height() / 2 for bar in pair]) for pair in zip(*sums.containers, strict=True)
    ]
    np.testing.assert_allclose(centers, range(len(centers)), atol=1e-9)


def test_logit_lens_has_a_logarithmic_axis(view: View) -> None:
    (axes,) = drawn(view, "lens").axes
    assert axes.get_yscale() == "log"


def test_each_layer_has_its_own_scale(view: View) -> None:
    figure = drawn(view, "layers")
    assert [re.sub(" to .*", "", axes.get_label()) for axes in figure.axes] == ["layer 1:", "layer 2:", "layer 3:"]


def test_gains_have_two_decimals(view: View) -> None:
    titles = [axes.get_label() for axes in drawn(view, "methods").axes]
    assert all(re.search(r": [+−]\d\.\d\d$", title) for title in titles), titles


# ---- column width, and no title or caption


@pytest.mark.parametrize("name", alternate([*NAMES, *KINDS]))
def test_figures_fit_a_column_without_overlapping_text(view: View, name: str) -> None:
    options = {"filters": 6, "methods": ("rollout", "gae")}
    figure = draw(view, [name], photo="noise.png", width="column", bare=name in ("lens", "flattened"), **options)[name]
    assert figure.get_figwidth() == 3.25
    words_are_inside_and_apart(figure)


@pytest.mark.parametrize("name", ["parameters", "layers", "lens"])
def test_bare_figures_have_no_title_and_caption_and_are_lower(view: View, name: str) -> None:
    plain, bare = drawn(view, name), draw(view, [name], photo="noise.png", bare=True)[name]
    assert not bare.texts
    assert "noise.png" in bare.get_label()
    assert bare.get_label() == plain.get_label()
    assert bare.get_figheight() < plain.get_figheight() - 0.5


def test_all_figures_have_the_width_of_the_layout(view: View) -> None:
    with layout("column", bare=True):
        figures = [rollout_sheet([view] * 3), inside(view.model, view.heads(["distance"])), learning_curves(EPOCHS)]
    for figure in figures:
        assert figure.get_figwidth() == 3.25
        assert not figure.texts
        words_are_inside_and_apart(figure)
    assert draw(view, ["parameters"])["parameters"].get_figwidth() == 6.3
    for width in ("poster", 1.0, float("nan")):
        with pytest.raises(DrawError, match="column or page"):
            draw(view, ["parameters"], width=width)


def test_learning_curves_have_the_style_of_figures() -> None:
    figure = learning_curves(EPOCHS)
    left, right = figure.axes
    np.testing.assert_allclose(right.lines[1].get_ydata(), [30.0, 60.0])
    assert {text.get_fontsize() for axes in (left, right) for text in axes.get_xticklabels()} == {SMALL}
    assert left.lines[1].get_color() == ACCENTS[False]["embedding"]
    words_are_inside_and_apart(figure)


# ---- from the textbook


@torch.no_grad()
def test_a_chosen_feature_map_is_flattened_in_reading_order(view: View) -> None:
    figure = draw(view, ["flattened"], filters=[4, 2])["flattened"]
    responses = view.model.patch_embed(view.images)[0, :, 4].numpy()
    images = {axes.get_label(): np.asarray(axes.images[0].get_array()) for axes in figure.axes if axes.images}
    np.testing.assert_allclose(images["map"], responses.reshape(view.trace.grid), atol=1e-5)
    np.testing.assert_allclose(images["row"], responses[None], atol=1e-5)
    assert "filter 5 " in figure.get_label()


def test_chosen_filters_keep_their_order(view: View) -> None:
    figure = draw(view, ["features"], filters=[6, 1])["features"]
    assert [axes.get_title() for axes in figure.axes if axes.get_title()] == ["filter 7", "filter 2"]
    for invalid in ([], [0, 19], [-1]):
        with pytest.raises(DrawError, match="from 1 to 19"):
            draw(view, ["features"], filters=invalid)


def test_prediction_figure_has_the_prediction_as_title(view: View) -> None:
    figure = draw(view, ["prediction"], bare=True)["prediction"]
    (axes,) = figure.axes
    assert " ".join(axes.get_title("left").split()) == view.describe()
    height, width, _ = axes.images[0].get_array().shape
    assert (width * view.photo.height, width % view.photo.width) == (height * view.photo.width, 0)
    assert view.predictions(5)[4][0] in figure.get_label()


def test_statistics_number_layers_and_heads_from_one(view: View) -> None:
    figure = drawn(view, "statistics")
    statistics = view.heads(["distance"])
    (axes,) = (axes for axes in figure.axes if axes.get_label() == "distance")
    np.testing.assert_allclose(axes.images[0].get_array(), statistics["distance"])
    layers, heads = statistics["distance"].shape
    assert [label.get_text() for label in axes.get_yticklabels()] == [str(layer + 1) for layer in range(layers)]
    assert axes.images[0].get_extent() == [0.5, heads + 0.5, layers + 0.5, 0.5]


def test_components_figure_shows_the_colors_of_token_pca(view: View) -> None:
    figure = drawn(view, "components")
    assert [axes.get_title("left") for axes in figure.axes] == ["layer 1", "layer 2", "layer 3"]
    np.testing.assert_allclose([axes.images[0].get_array() for axes in figure.axes], view.token_pca().colors)


def test_notebooks_display_figures_at_print_width(view: View) -> None:
    data, about = drawn(view, "parameters")._repr_png_()
    assert data.startswith(b"\x89PNG")
    assert about == {"width": round(96 * 6.3)}
