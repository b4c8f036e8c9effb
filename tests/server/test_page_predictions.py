"""What the page says of a prediction, in every panel, and the list of the classes that a model knows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import viewer_pages
from playwright.sync_api import Page as Browser
from playwright.sync_api import expect
from running import CHURCH, HOSTILE, MANY, Running, expect_map, ready

from vitviz.formatting import percent
from vitviz.web.examples import Example
from vitviz.web.scene import standalone

CLASSES = len(MANY)


@pytest.mark.parametrize("name", ["unsure", "sure"])
def test_every_panel_says_it_in_the_same_words(page: Browser, app: Running, models: dict[str, str], name: str) -> None:
    ready(page, f"{app.url}?model={models[name]}")
    view = app.view(model=models[name])
    expect_map(page, view.attention())
    words = view.describe()
    start = {"unsure": "Not sure: perhaps ", "sure": f"Closest of {CLASSES} classes: "}[name]
    assert words.startswith(start)
    expect(page.locator(".vv-answer:visible")).to_have_text(words)
    heading = words if name == "unsure" else f"Closest of {CLASSES} classes"
    expect(page.locator(".vv-predictions h2")).to_have_text(heading)
    expect(page.locator(".vv-sure")).to_contain_text(f"Not sure under {percent(view.sure_above or 0, 2)}.")
    for tab in ("Explain", "Heads", "Layers"):
        page.get_by_role("tab", name=tab).click()
        expect(page.locator(".vv-answer:visible")).to_have_text(words)


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


def test_the_classes_can_be_listed_and_searched_by_keyboard(
    page: Browser, app: Running, models: dict[str, str]
) -> None:
    ready(page, f"{app.url}?model={models['unsure']}")
    classes = app.view(model=models["unsure"]).labels
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
    page.select_option("#model select", app.default)
    expect_map(page, app.view().attention())
    page.fill(".vv-known input", "thing 11")  # the list stays open
    expect(listed).to_have_text(["thing 11"])


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
