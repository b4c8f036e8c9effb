"""What the model learned about places and pixels, against loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tiny
import torch

from vitviz.analysis import AnalysisError
from vitviz.analysis.filters import patch_filters, position_similarity


@pytest.mark.parametrize(
    ("changes", "grid"),
    [({}, None), ({"registers": 2}, (3, 5)), ({"positions": "sincos", "width": 20}, None), ({"grid": (2, 3)}, (4, 2))],
)
def test_positions_are_compared_pair_by_pair(changes: dict[str, Any], grid: tuple[int, int] | None) -> None:
    model = tiny.model(**changes)
    found = position_similarity(model, grid)
    rows, columns = grid or model.config.grid
    assert found.shape == (rows, columns, rows, columns)
    table = model.positions((rows, columns))[0].detach().double().numpy()  # (gh * gw, D)
    for first in range(len(table)):
        for second in range(len(table)):
            a, b = table[first], table[second]
            cosine = a @ b / np.sqrt((a @ a) * (b @ b))
            place = (first // columns, first % columns, second // columns, second % columns)
            assert found[place] == pytest.approx(cosine, abs=1e-5)
    assert np.abs(found).max() <= 1.0


@pytest.mark.parametrize("positions", ["rotary", "none"])
def test_models_that_add_no_positions_are_refused(positions: str) -> None:
    with pytest.raises(AnalysisError, match="learned or sine-cosine"):
        position_similarity(tiny.model(positions=positions, head_width=16))
    with pytest.raises(AnalysisError, match="at least 1 x 1"):
        position_similarity(tiny.model(), (0, 3))


def test_filters_and_their_components_are_those_of_a_decomposition() -> None:
    model = tiny.model()
    weights = model.patch_embed.proj.weight.detach().double().numpy()  # (D, 3, p, p)
    found = patch_filters(model, 7)
    samples = weights.reshape(tiny.WIDTH, -1)
    _, values, axes = np.linalg.svd(samples - samples.mean(0), full_matrices=False)
    np.testing.assert_allclose(found.explained, values[:7] ** 2 / (values**2).sum(), rtol=1e-5)
    np.testing.assert_allclose(np.abs((found.components.reshape(7, -1) * axes[:7]).sum(1)), 1.0, rtol=1e-5)
    assert ((found.components.astype(np.float64) ** 3).sum((1, 2, 3)) > 0).all()
    for picture, component in zip(found.pictures, found.components, strict=True):
        largest = np.abs(component).max()
        for row, column, colour in ((0, 0, 0), (4, 9, 1), (12, 12, 2), (12, 3, 0)):
            expected = 0.5 + component[colour, row, column] / (2 * largest)
            assert picture[row, column, colour] == pytest.approx(expected, abs=1e-5)
        assert min(picture.min(), 1 - picture.max()) == pytest.approx(0.0, abs=1e-6)


def test_planted_filters_are_found() -> None:
    """All filters are multiples of one picture: it is the first component, and there is no second."""
    model = tiny.model()
    picture = torch.randn(3, tiny.PATCH, tiny.PATCH, generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        strengths = torch.linspace(-1.0, 2.0, tiny.WIDTH)
        model.patch_embed.proj.weight.copy_(strengths[:, None, None, None] * picture)
    found = patch_filters(model, 3)
    np.testing.assert_allclose(found.explained, [1.0, 0.0, 0.0], atol=1e-5)
    unit = (picture / picture.norm()).numpy()
    np.testing.assert_allclose(np.abs((found.components[0] * unit).sum()), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(found.pictures[1:], 0.5)  # nothing: the grey of a weight of zero


def test_grey_images_have_grey_filters_and_other_channels_none() -> None:
    grey = patch_filters(tiny.model(channels=1), 100)
    assert grey.components.shape == (tiny.WIDTH, 1, tiny.PATCH, tiny.PATCH)
    np.testing.assert_array_equal(grey.pictures[..., 0], grey.pictures[..., 2])
    with pytest.raises(AnalysisError, match="1 or 3 channels"):
        patch_filters(tiny.model(channels=5))
    with pytest.raises(AnalysisError, match="3 and 0"):
        patch_filters(tiny.model(), 0)
