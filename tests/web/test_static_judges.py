"""The static site judges as Python does: tests of maps, colors of components, photographs with a color profile."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Page
from running import CHURCH, DOG, upload
from static_site import Served
from test_static import SCENE, ask, opened, showing, tiny_model, write_files

pytestmark = pytest.mark.timeout(900)  # on a busy machine the graphs of a model take minutes
TARGET = 3


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny", pooling="cls+mean", registers=2)


@pytest.fixture(scope="module")
def page(browser: Chromium, source: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    served = Served(write_files(tmp_path_factory.mktemp("site"), source))
    yield from showing(browser, served.url, DOG)
    served.server.shutdown()


def show(page: Page, photo: Path) -> None:
    """Give the page another photograph than it has, and wait until it is there with all its blocks."""
    before = page.evaluate(f"{SCENE}.id")
    upload(page, photo)
    page.wait_for_function(f"{SCENE}?.id && {SCENE}.id !== {before!r} && !vitviz.progress.first")


@pytest.mark.parametrize(("photo", "method"), [(CHURCH, "gae"), (DOG, "attention_gradcam")])
def test_a_map_gets_the_sentence_that_python_gives(page: Page, source: str, photo: Path, method: str) -> None:
    """Half of the patches are 38.5: both round them to 38. Grad-CAM has many patches of score 0, in random order."""
    show(page, photo)
    view = opened(source, photo)
    (found,) = ask(page, "faithfulness", {"methods": [method], "target": TARGET, "against": None})
    (expected,) = view.faithfulness(view.explain(method, TARGET))
    assert found["words"] == expected.describe()
    for name in ("deletion", "insertion"):
        curve = getattr(expected, name)
        np.testing.assert_allclose(found[name]["x"], curve.fractions, atol=1e-12)
        np.testing.assert_allclose(found[name]["y"], curve.probabilities, atol=1e-5)
        np.testing.assert_allclose(found[name]["random"], curve.random.mean(axis=0), atol=1e-5)


def test_components_have_the_colors_that_python_gives_them(page: Page, source: str) -> None:
    for photo in (CHURCH, DOG):
        show(page, photo)
        found, expected = ask(page, "layers", {}), opened(source, photo).token_pca()
        np.testing.assert_allclose(found["explained"], expected.explained.sum(1), atol=1e-4)
        colors = np.frombuffer(base64.b64decode(found["colors"]), np.uint8).reshape(expected.colors.shape)
        np.testing.assert_allclose(colors / 255, expected.colors, atol=0.01)
