"""The page with the everyday model: photographs of things that it knows, and of things that it does not.

The photographs outside `examples/` are scikit-image's: the cat and the coffee cup under CC0, the motorcycle of the
Middlebury stereo data set, the rocket (SpaceX) and the astronaut (NASA) in the public domain.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from playwright.sync_api import Page as Browser
from playwright.sync_api import expect
from running import EVERYDAY, SCENE, Running, example, expect_map, ready, upload

from vitviz.formatting import percent
from vitviz.server.menu import Menu
from vitviz.server.settings import Settings
from vitviz.view import View
from vitviz.web.examples import examples

CLASSES = 260
KNOWN = {"chelsea.png": "cat", "motorcycle_left.png": "motorcycle"}
OTHERS = ("coffee.png", "rocket.jpg", "astronaut.png")  # it takes the coffee for soup


def photograph(name: str) -> Path:
    spec = importlib.util.find_spec("skimage")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "data" / name


def expect_words(page: Browser, view: View) -> None:
    """The page says what Python says, and that it is not sure exactly below the threshold."""
    expect_map(page, view.attention())
    words, (label, probability) = view.describe(), view.predictions(1)[0]
    expect(page.locator(".vv-explore .vv-answer")).to_have_text(words)
    assert view.sure_above is not None
    sure = probability >= view.sure_above and view.known is not False
    heading = f"Closest of {CLASSES} classes"
    assert words.startswith(f"{heading}: {label} ") == sure
    expect(page.locator(".vv-predictions h2")).to_have_text(heading if sure else words)


def test_the_everyday_model_says_what_it_knows_and_how_sure_it_is(page: Browser, app: Running) -> None:
    assert Menu(Settings()).default == EVERYDAY  # the page opens with it
    ready(page, f"{app.url}?model={EVERYDAY}")
    sure_above = app.view(model=EVERYDAY).sure_above
    assert sure_above is not None
    expect(page.locator(".vv-sure")).to_contain_text(f"Not sure under {percent(sure_above, 2)}.")
    expect(page.locator(".vv-known summary")).to_have_text(f"All {CLASSES} classes that it knows")
    for name in (*KNOWN, *OTHERS):
        upload(page, photograph(name))
        view = app.view(photograph(name), EVERYDAY)
        expect_words(page, view)
        if name in KNOWN:
            assert view.predictions(1)[0][0] == KNOWN[name]
        expect(page.locator(".vv-caveat")).not_to_be_visible()  # nobody knows what a visitor's photograph shows


def test_the_examples_are_right_or_say_that_they_are_not(page: Browser, app: Running) -> None:
    ready(page, f"{app.url}?model={EVERYDAY}")
    caveats = {}
    for one in examples():
        example(page, one.name)
        page.wait_for_function(f"{SCENE}?.manifest.image === {one.name!r}")
        scene = app.endpoints.scenes.get(page.evaluate("vitviz.store.get().scene.id"))
        assert scene is not None
        view = scene.view
        expect_words(page, view)
        caveats[one.name] = one.caveat(view)
        expect(page.locator(".vv-caveat")).to_have_text(caveats[one.name])
        right = view.predictions(1)[0][0] in one.classes
        assert bool(caveats[one.name]) != right
    assert not any(caveats[name] for name in ("Church", "Cat", "Giraffe", "Panda", "Hedgehog"))
    assert "does not know" in caveats["Lizard"]
