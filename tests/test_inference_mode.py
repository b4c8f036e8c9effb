"""Check that calls inside `torch.inference_mode` give the results that they give outside of it."""

import numpy as np
import pytest
import tiny
import torch

import vitviz
from vitviz.attribution.registry import METHODS

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_the_same_scores(method: str) -> None:
    model = tiny.model(**tiny.SMALL)
    (expected, *_) = vitviz.attribute(model, tiny.images(1, **tiny.SMALL), 3, method)
    with torch.inference_mode():
        images = tiny.images(1, **tiny.SMALL)  # inference tensors
        (inside, *_) = vitviz.attribute(tiny.model(**tiny.SMALL), images, 3, method)
    (after, *_) = vitviz.attribute(model, images, 3, method)
    for scores in (inside, after):
        np.testing.assert_allclose(scores.values, expected.values, rtol=1e-4, atol=1e-6)


def test_views_made_inside_work_inside_and_afterwards() -> None:
    explorer = vitviz.Explorer(tiny.known())
    expected = explorer.open(vitviz.example("dog")).explain("gae").values
    with torch.inference_mode():
        view = vitviz.Explorer(tiny.known()).open(vitviz.example("dog"))
        (many,) = vitviz.Explorer(tiny.known()).open_many([vitviz.example("dog")])
        for opened in (view, many):
            np.testing.assert_allclose(opened.explain("gae").values, expected, rtol=1e-4, atol=1e-6)
            assert opened.decompose()
            assert opened.faithfulness([opened.rollout()])
        trained = vitviz.ViT(tiny.config(**tiny.SMALL))
    assert not any(parameter.is_inference() for parameter in trained.parameters())
    np.testing.assert_allclose(view.explain("attention_gradcam").values, many.explain("attention_gradcam").values)
    trained.trace(tiny.images(1, **tiny.SMALL), grad=True).logits.sum().backward()


def test_gradients_outside_of_inference_mode_stay_as_they_were() -> None:
    model = tiny.model(**tiny.SMALL)
    with torch.no_grad():
        assert not model.trace(tiny.images(1, **tiny.SMALL)).tokens.requires_grad
        assert not torch.is_grad_enabled()
