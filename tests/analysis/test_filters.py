"""Position similarity and patch filters, against loops and a decomposition by NumPy."""

from typing import Any

import numpy as np
import pytest
import tiny
import torch

from vitviz.analysis import AnalysisError
from vitviz.analysis.filters import patch_filters, position_similarity


@pytest.mark.parametrize(
    ("changes", "grid"),
    [({}, (3, 5)), ({"positions": "sincos", "width": 20, "grid": (3, 4)}, None), ({"grid": (2, 3)}, None)],
)
def test_positions_are_compared_pair_by_pair(changes: dict[str, Any], grid: tuple[int, int] | None) -> None:
    model = tiny.model(**changes)
    similarity = position_similarity(model, grid)
    rows, columns = grid or model.config.grid
    table = model.positions((rows, columns))[0].detach().double().numpy()  # (gh * gw, D)
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    tiny.close(similarity, (unit @ unit.T).reshape(rows, columns, rows, columns))
    assert np.abs(similarity).max() <= 1.0


def test_filters_and_their_components_are_those_of_a_decomposition() -> None:
    model = tiny.model()
    weights = model.patch_embed.proj.weight.detach().double().numpy()  # (D, 3, p, p)
    filters = patch_filters(model, 7)
    samples = weights.reshape(tiny.WIDTH, -1)
    _, values, axes = np.linalg.svd(samples - samples.mean(0), full_matrices=False)
    np.testing.assert_allclose(filters.explained, values[:7] ** 2 / (values**2).sum(), rtol=1e-5)
    np.testing.assert_allclose(np.abs((filters.components.reshape(7, -1) * axes[:7]).sum(1)), 1.0, rtol=1e-5)
    assert ((filters.components.astype(np.float64) ** 3).sum((1, 2, 3)) > 0).all()
    for picture, component in zip(filters.pictures, filters.components, strict=True):
        tiny.close(picture, 0.5 + component.transpose(1, 2, 0) / (2 * np.abs(component).max()))
        assert min(picture.min(), 1 - picture.max()) == pytest.approx(0.0, abs=1e-6)


def test_filters_of_one_picture_have_one_component() -> None:
    """All filters are multiples of one picture: it is the first component, and there is no second."""
    model = tiny.model()
    picture = torch.randn(3, tiny.PATCH, tiny.PATCH, generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        strengths = torch.linspace(-1.0, 2.0, tiny.WIDTH)
        model.patch_embed.proj.weight.copy_(strengths[:, None, None, None] * picture)
    filters = patch_filters(model, 3)
    np.testing.assert_allclose(filters.explained, [1.0, 0.0, 0.0], atol=1e-5)
    unit = (picture / picture.norm()).numpy()
    np.testing.assert_allclose(np.abs((filters.components[0] * unit).sum()), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(filters.pictures[1:], 0.5)  # nothing: the grey of a weight of zero


def test_grey_images_have_grey_filters_and_other_inputs_are_refused() -> None:
    grey = patch_filters(tiny.model(channels=1), 100)
    assert grey.components.shape == (tiny.WIDTH, 1, tiny.PATCH, tiny.PATCH)
    np.testing.assert_array_equal(grey.pictures[..., 0], grey.pictures[..., 2])
    with pytest.raises(AnalysisError, match="1 or 3 channels"):
        patch_filters(tiny.model(channels=5))
    with pytest.raises(AnalysisError, match="3 and 0"):
        patch_filters(tiny.model(), 0)
    for positions in ("rotary", "none"):
        with pytest.raises(AnalysisError, match="learned or sine-cosine"):
            position_similarity(tiny.model(positions=positions, head_width=16))
    with pytest.raises(AnalysisError, match="at least 1 x 1"):
        position_similarity(tiny.model(), (0, 3))
