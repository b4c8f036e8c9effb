"""The browser's preprocessing, run under Node, gives the pixels that `vitviz.images.preprocess` gives."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from viewer_js import Script

from vitviz.images.preprocess import Preprocess

SIZES = ((90, 60), (61, 97), (224, 224), (30, 40), (300, 75), (17, 400), (1, 9))
MODES = ("crop", "squash", "pad", "native")


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos"])
def test_preprocessing_is_pythons(interpolation: str) -> None:
    script, expected, found = Script(), [], []
    generator = np.random.default_rng(0)
    for mode in MODES:
        preprocess = Preprocess(mode=mode, height=56, width=70, multiple=14, interpolation=interpolation)
        for width, height in SIZES:
            pixels = generator.integers(0, 256, (height, width, 3), np.uint8)
            expected.append(preprocess(Image.fromarray(pixels)))
            rgba = np.concatenate([pixels, np.full((height, width, 1), 255, np.uint8)], 2).ravel()
            found.append(script.call("compute/image", "prepare", preprocess.to_dict(), rgba, width, height))
    script.run()
    for one, other in zip(expected, found, strict=True):
        values = other.value
        assert (values["height"], values["width"]) == one.geometry.input
        np.testing.assert_allclose(values["frame"], one.geometry.frame, rtol=1e-12, atol=1e-9)
        np.testing.assert_allclose(values["pixels"].reshape(one.pixels.shape), one.pixels, atol=1e-5)


def test_the_picture_that_the_model_saw_comes_back() -> None:
    preprocess = Preprocess(mode="squash", height=20, width=30)
    pixels = np.random.default_rng(1).integers(0, 256, (20, 30, 3), np.uint8)
    rgba = np.concatenate([pixels, np.full((20, 30, 1), 255, np.uint8)], 2).ravel()
    script = Script()
    made = script.call("compute/image", "prepare", preprocess.to_dict(), rgba, 30, 20)
    back = script.call("compute/image", "restore", preprocess.to_dict(), made)
    script.run()
    assert np.array_equal(back.value.reshape(20, 30, 4)[..., :3], pixels)
