"""What the page says of a prediction, in every panel, and the list of the classes that a model knows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import viewer_pages
from playwright.sync_api import Page as Browser
from playwright.sync_api import expect
from running import CHURCH, MODEL, Running, axe, example, expect_map, folder, ready, served

from vitviz.formatting import percent
from vitviz.view import View
from vitviz.web.examples import Example
from vitviz.web.scene import standalone

CLASSES = 264
HOSTILE = '<img src=x onerror="document.title = 1">'


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Models with 264 classes and a threshold, as the everyday model has: one is never sure, one always."""
    place = tmp_path_factory.mktemp("models")
    labels = (HOSTILE, *(f"thing {number}" for number in range(1, CLASSES)))
    unsure = folder(place / "unsure", about={"labels": labels, "sure_above": 0.87}, classes=CLASSES)
    return unsure, folder(place / "sure", about={"labels": labels, "sure_above": 0.001}, classes=CLASSES)


@pytest.fixture(scope="module")
def app(small: tuple[str, str]) -> Iterator[Running]:
    yield from served(*small)


def opened(page: Browser, app: Running, model: str) -> View:
    ready(page, f"{app.url}?model={model}")
    view = app.view(model=model)
    expect_map(page, view.attention())
    return view


@pytest.mark.parametrize("which", [0, 1])
def test_every_panel_says_it_in_the_same_words(page: Browser, app: Running, small: tuple[str, str], which: int) -> None:
    view = opened(page, app, small[which])
    words = view.describe()
    assert words.startswith(("Not sure: perhaps ", f"Closest of {CLASSES} classes: ")[which])
    expect(page.locator(".vv-answer:visible")).to_have_text(words)
    heading = words if which == 0 else f"Closest of {CLASSES} classes"
    expect(page.locator(".vv-predictions h2")).to_have_text(heading)
    expect(page.locator(".vv-sure")).to_contain_text(f"Not sure under {percent(view.sure_above or 0, 2)}.")
    for tab in ("Explain", "Heads", "Layers"):
        page.get_by_role("tab", name=tab).click()
        expect(page.locator(".vv-answer:visible")).to_have_text(words)


def test_a_model_without_a_threshold_is_never_called_unsure(page: Browser, app: Running) -> None:
    opened(page, app, MODEL)
    expect(page.locator(".vv-predictions h2")).to_have_text("Closest of 10 classes")
    expect(page.locator(".vv-sure")).not_to_be_visible()
    expect(page.locator(".vv-caveat")).not_to_be_visible()


def test_an_example_that_the_model_does_not_know_says_so(page: Browser, app: Running) -> None:
    opened(page, app, MODEL)
    example(page, "Koala")
    expect(page.locator(".vv-caveat")).to_contain_text("none of its classes fits")
    example(page, "Church")
    expect(page.locator(".vv-predictions h2")).to_have_text("Closest of 10 classes")
    expect(page.locator(".vv-caveat")).not_to_be_visible()


def test_what_an_example_says_depends_on_the_model() -> None:
    view = viewer_pages.view()
    best = view.predictions(1)[0][0]
    about = view.model.pretrained
    assert about is not None
    right = Example(CHURCH, "Church", "Church: a cathedral", ("house", best.upper()))
    other = Example(CHURCH, "Church", "Church: a cathedral", (view.predictions(2)[1][0],))
    unknown = Example(CHURCH, "Church", "Church: a cathedral", ("church",))
    assert right.caveat(view) == ""
    assert other.caveat(view) == "An example of what this model gets wrong. Church: a cathedral."
    assert "none of its classes fits" in unknown.caveat(view)
    try:
        view.model.pretrained = replace(about, labels=tuple(f"church {one}, {one}" for one in about.labels))
        assert right.caveat(view) == ""  # one of two names
    finally:
        view.model.pretrained = about


def search(page: Browser, classes: tuple[str, ...]) -> None:
    """Search the list of classes by keyboard alone."""
    listed = page.locator(".vv-known li")
    expect(page.locator(".vv-known summary")).to_have_text(f"All {len(classes)} classes that it knows")
    expect(listed.first).not_to_be_visible()
    page.focus(".vv-known summary")
    page.keyboard.press("Enter")
    expect(listed).to_have_count(len(classes))
    assert set(listed.all_text_contents()) == set(classes)
    page.keyboard.press("Tab")
    expect(page.locator(".vv-known input")).to_be_focused()
    before = page.evaluate("JSON.stringify(window.vitviz.store.get())")
    page.keyboard.type("thing 12")
    wanted = sorted(label for label in classes if "thing 12" in label)
    expect(listed).to_have_text(wanted)
    expect(page.locator(".vv-known [role=status]")).to_have_text(f"{len(wanted)} of {len(classes)}.")
    page.keyboard.type("?")  # a letter to search for, and no key of the explorer's
    expect(listed).to_have_count(0)
    expect(page.locator(".vv-known [role=status]")).to_contain_text(f"0 of {len(classes)}. It can only name")
    assert page.evaluate("JSON.stringify(window.vitviz.store.get())") == before
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Control+a")
    page.keyboard.type("IMG")
    expect(listed).to_have_text([HOSTILE])
    assert page.title() != "1"


def test_the_classes_can_be_listed_and_searched(page: Browser, app: Running, small: tuple[str, str]) -> None:
    view = opened(page, app, small[0])
    search(page, view.labels)
    page.select_option("#model select", MODEL)
    expect_map(page, app.view().attention())
    page.fill(".vv-known input", "church")  # the list stays open
    expect(page.locator(".vv-known li")).to_have_text(["church"])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_list_passes_axe_and_fits_a_phone(page: Browser, app: Running, small: tuple[str, str], theme: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    ready(page, f"{app.url}?model={small[0]}&theme={theme}")
    page.click(".vv-known summary")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert not axe(page)


def test_a_page_from_disk_has_the_list_too(
    offline: Browser, app: Running, small: tuple[str, str], tmp_path: Path
) -> None:
    view = app.view(model=small[0])
    viewer_pages.show(offline, tmp_path, view.html())
    expect(offline.locator(".vv-answer:visible")).to_have_text(view.describe())
    search(offline, view.labels)


def test_of_very_many_classes_the_first_are_listed(offline: Browser, tmp_path: Path) -> None:
    labels = tuple(f"thing {number}" for number in range(21_841))
    scene = viewer_pages.scene(viewer_pages.view(), labels=labels)
    viewer_pages.show(offline, tmp_path, standalone(scene))
    expect(offline.locator(".vv-predictions h2")).to_have_text("Closest of 21,841 classes")
    offline.click(".vv-known summary")
    expect(offline.locator(".vv-known li")).to_have_count(400)
    expect(offline.locator(".vv-known [role=status]")).to_have_text("21,841 of 21,841, the first 400 listed.")
    offline.fill(".vv-known input", "thing 21840")
    expect(offline.locator(".vv-known li")).to_have_text(["thing 21840"])
