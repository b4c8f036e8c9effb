"""The page with the everyday model: photographs of things that it knows, and of things that it does not.

The photographs outside `examples/` are scikit-image's: the cat and the coffee cup under CC0, the motorcycle of the
Middlebury stereo data set, the rocket (SpaceX) and the astronaut (NASA) in the public domain.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page as Browser
from playwright.sync_api import expect
from running import Running, example, expect_map, ready, served, upload

from vitviz.formatting import percent
from vitviz.server.menu import Menu
from vitviz.server.settings import Settings
from vitviz.view import View
from vitviz.web.examples import examples

EVERYDAY = "dinov2-s14-everyday"
CLASSES = 264
KNOWN = {"chelsea.png": {"cat"}, "motorcycle_left.png": {"motorcycle"}}
OTHERS = ("coffee.png", "rocket.jpg", "astronaut.png")  # it takes the coffee for soup


@pytest.fixture(scope="module")
def app() -> Iterator[Running]:
    yield from served(default=EVERYDAY)


def photograph(name: str) -> Path:
    spec = importlib.util.find_spec("skimage")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "data" / name


def expect_words(page: Browser, view: View) -> None:
    """The page says what Python says, and that it is not sure exactly below the threshold."""
    expect_map(page, view.attention())
    expect(page.locator(".vv-explore .vv-answer")).to_have_text(view.describe())
    label, probability = view.predictions(1)[0]
    assert view.sure_above is not None
    sure = probability >= view.sure_above
    heading = f"Closest of {CLASSES} classes" if sure else view.describe()
    assert view.describe().startswith(f"{heading}: {label} " if sure else f"Not sure: perhaps {label}")
    expect(page.locator(".vv-predictions h2")).to_have_text(heading)


def test_it_is_the_model_that_the_page_opens_with() -> None:
    assert Menu(Settings()).default == EVERYDAY


def test_it_states_how_many_classes_it_knows_and_from_when_on_it_is_sure(page: Browser, app: Running) -> None:
    ready(page, app.url)
    view = app.view(model=EVERYDAY)
    assert len(view.labels) == CLASSES
    assert view.sure_above is not None
    assert 0 < view.sure_above < 1
    expect(page.locator(".vv-sure")).to_contain_text(f"Not sure under {percent(view.sure_above, 2)}.")
    expect(page.locator(".vv-known summary")).to_have_text(f"All {CLASSES} classes that it knows")


@pytest.mark.parametrize("name", [*KNOWN, *OTHERS])
def test_photographs_of_known_and_unknown_things(page: Browser, app: Running, name: str) -> None:
    ready(page, app.url)
    upload(page, photograph(name))
    view = app.view(photograph(name), EVERYDAY)
    expect_words(page, view)
    if name in KNOWN:
        assert view.predictions(1)[0][0] in KNOWN[name]
    expect(page.locator(".vv-caveat")).not_to_be_visible()  # nobody knows what a visitor's photograph shows


def test_the_examples_are_right_or_say_that_they_are_not(page: Browser, app: Running) -> None:
    ready(page, app.url)
    caveats = {}
    for one in examples():
        example(page, one.name)
        view = app.view(one.path, EVERYDAY)
        expect_words(page, view)
        caveats[one.name] = one.caveat(view)
        expect(page.locator(".vv-caveat")).to_have_text(caveats[one.name])
        right = view.predictions(1)[0][0] in one.classes
        assert bool(caveats[one.name]) != right
    assert not any(caveats[name] for name in ("Church", "Cat", "Giraffe", "Panda", "Hedgehog"))
    assert "does not know" in caveats["Lizard"]
