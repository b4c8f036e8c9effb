"""Chromium decodes photographs as Python does: what local/opening.js relies on and docs/static.md says."""

from __future__ import annotations

import base64

import numpy as np
import pytest
from browsing import new_page
from image_files import ADOBE_D50, SRGB_D50, icc_profile, saved
from PIL import Image
from playwright.sync_api import Browser
from running import DOG

from vitviz.images.decoding import decode

DECODE = """async (file) => {
    const blob = await (await fetch(`data:image/jpeg;base64,${file}`)).blob();
    const bitmap = await createImageBitmap(blob, { imageOrientation: 'from-image' });
    const context = new OffscreenCanvas(bitmap.width, bitmap.height).getContext('2d', { willReadFrequently: true });
    context.drawImage(bitmap, 0, 0);
    return [...context.getImageData(0, 0, bitmap.width, bitmap.height).data];
}"""


@pytest.mark.parametrize(
    ("options", "levels"),
    [
        ({}, 0),
        ({"icc_profile": icc_profile("RGB", None, SRGB_D50)}, 0),
        ({"icc_profile": icc_profile("RGB", 2.19921875, ADOBE_D50)}, 1),
    ],
    ids=["no profile", "sRGB", "Adobe RGB"],
)
def test_a_photograph_has_the_pixels_that_python_has(browser: Browser, options: dict[str, bytes], levels: int) -> None:
    data = saved(Image.open(DOG).convert("RGB").resize((160, 120)), "JPEG", quality=90, **options)
    with new_page(browser) as page:
        found = np.array(page.evaluate(DECODE, base64.b64encode(data).decode())).reshape(120, 160, 4)[..., :3]
    off = np.abs(found - np.asarray(decode(data)).astype(int))
    assert off.max() <= levels
    assert off.mean() < 0.1
