"""Figures can be read: keys lie on no line, rows are aligned, small numbers and pale layers are seen."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tiny
import torch
from matplotlib.figure import Figure

import vitviz
from vitviz.draw.figures import draw
from vitviz.model.vit import Pretrained
from vitviz.view import View


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
def test_the_key_covers_neither_axes_nor_caption(view: View, name: str) -> None:
    figure = drawn(view, name)
    (key,) = figure.legends
    box, caption = key.get_window_extent(), figure.texts[1].get_window_extent()
    assert not any(axes.get_legend() for axes in figure.axes)
    assert not any(box.overlaps(axes.get_window_extent()) for axes in figure.axes)
    assert not box.overlaps(caption)


def test_bars_of_a_layer_stand_beside_its_row(view: View) -> None:
    figure = drawn(view, "decomposition")
    table, sums = (next(axes for axes in figure.axes if axes.get_label() == name) for name in ("parts", "sums"))
    assert table.get_ylim() == sums.get_ylim()
    middles = [
        np.mean([bar.get_y() + bar.get_height() / 2 for bar in pair]) for pair in zip(*sums.containers, strict=True)
    ]
    np.testing.assert_allclose(middles, range(len(middles)), atol=1e-9)


def test_small_probabilities_are_told_apart(view: View) -> None:
    (axes,) = drawn(view, "lens").axes
    assert axes.get_yscale() == "log"


def test_each_layer_has_a_scale_of_its_own(view: View) -> None:
    figure = drawn(view, "layers")
    assert [re.sub(" to .*", "", axes.get_label()) for axes in figure.axes] == ["layer 1:", "layer 2:", "layer 3:"]


def test_gains_have_two_decimals(view: View) -> None:
    titles = [axes.get_label() for axes in drawn(view, "methods").axes]
    assert all(re.search(r": [+−]\d\.\d\d$", title) for title in titles), titles
