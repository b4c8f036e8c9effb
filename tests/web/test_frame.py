"""Test what stands around the views in a real browser: photographs, tabs, light and dark, what is under way, layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Page as Browser
from playwright.sync_api import expect
from running import CHURCH, DOG, SCENE, Gate, Running, expect_map, own_photograph, ready

SIZES = [(1440, 900), (1920, 1080), (1024, 768), (390, 844)]
TABS = ["Explore", "Explain", "Heads", "Layers", "How to read this"]
OPENED = f"{SCENE}?.source.photo"

CAMERA = """() => {
    const canvas = Object.assign(document.createElement('canvas'), { width: 320, height: 240 });
    const context = canvas.getContext('2d');
    window.drawing = setInterval(() => {
        context.fillStyle = '#c02020';
        context.fillRect(0, 0, 320, 240);
    }, 30);
    window.stream = canvas.captureStream(30);
    Object.defineProperty(navigator, 'mediaDevices', { value: { getUserMedia: async () => window.stream } });
}"""


@pytest.fixture
def shaped(tmp_path: Path) -> Any:
    """Make a photograph of a shape: width over height."""

    def make(shape: float) -> str:
        photo, side = Image.open(DOG), 768
        size = (side, round(side / shape)) if shape > 1 else (round(side * shape), side)
        path = tmp_path / f"{shape}.png"
        photo.resize(size).save(path)
        return str(path)

    return make


def give(page: Browser, path: str | Path) -> None:
    """Choose a file."""
    before = page.evaluate("vitviz.store.get().scene.id")
    page.locator("#photo input[type=file]").set_input_files(str(path))
    page.wait_for_function(f"vitviz.store.get().scene.id !== {before!r} && {OPENED}")


# --- photographs


def test_the_webcam_takes_a_photograph(opened: Browser) -> None:
    opened.evaluate(CAMERA)
    opened.click("[data-do=webcam]")
    shutter = opened.locator("[data-do=shutter]")
    expect(shutter).to_be_enabled()
    shutter.click()
    expect(opened.locator(".vv-webcam")).to_be_hidden()
    opened.wait_for_function(OPENED)
    assert opened.evaluate(f"[{SCENE}.manifest.photo.width >= 320, {SCENE}.manifest.image]") == [True, None]
    assert opened.evaluate("window.stream.getTracks().every((track) => track.readyState === 'ended')")


def test_a_webcam_that_cannot_be_had_is_told_in_words(opened: Browser) -> None:
    opened.evaluate(
        "Object.defineProperty(navigator, 'mediaDevices', { value: { getUserMedia: async () => {"
        " throw new DOMException('', 'NotAllowedError'); } } })"
    )
    opened.click("[data-do=webcam]")
    expect(opened.locator(".vv-webcam p")).to_contain_text("Allow it beside the address")
    expect(opened.locator("[data-do=shutter]")).to_be_disabled()
    opened.click(".vv-webcam [data-do=stop]")
    expect(opened.locator(".vv-webcam")).to_be_hidden()


def test_a_photograph_of_ones_own_is_there_after_a_reload(opened: Browser, app: Running, tmp_path: Path) -> None:
    photo = own_photograph(tmp_path)
    give(opened, photo)
    expect_map(opened, app.view(photo).attention())
    assert "photo=" in opened.url
    opened.reload()
    opened.wait_for_function("window.vitviz?.drawn > 0")
    expect_map(opened, app.view(photo).attention())
    expect(opened.locator("[data-kind=example][aria-pressed=true]")).to_have_count(0)


def test_a_file_that_is_no_photograph_leaves_the_old_one(opened: Browser, app: Running, tmp_path: Path) -> None:
    bogus = tmp_path / "holiday.jpg"
    bogus.write_text("this is not a photograph")
    opened.locator("#photo input[type=file]").set_input_files(str(bogus))
    message = opened.locator(".vv-message")
    expect(message).to_contain_text("Expected a photograph")
    expect_map(opened, app.view().attention())
    expect(opened.locator("[data-value=Church]")).to_have_attribute("aria-pressed", "true")
    message.get_by_role("button").click()
    expect(message).to_be_hidden()


def test_the_input_size_is_chosen_and_said(opened: Browser) -> None:
    select = opened.locator("#size select")
    sizes = opened.evaluate(f"{SCENE}.manifest.sizes")
    assert [option.strip() for option in select.locator("option").all_inner_texts()] == [one["words"] for one in sizes]
    select.select_option(str(sizes[1]["size"]))
    opened.wait_for_function(f"{SCENE}.manifest.size === {sizes[1]['size']}")
    opened.click(".vv-seen summary")
    grid = opened.evaluate(f"{SCENE}.manifest.grid")
    expect(opened.locator(".vv-seen p")).to_contain_text(f"{grid[0]} x {grid[1]} patches")
    opened.reload()
    opened.wait_for_function("window.vitviz?.drawn > 0")
    opened.wait_for_function(f"{SCENE}?.manifest.size === {sizes[1]['size']}")
    expect(select).to_have_value(str(sizes[1]["size"]))


# --- the frame


def test_tab_and_theme_survive_a_reload_and_the_way_back(opened: Browser) -> None:
    opened.get_by_role("tab", name="Layers").click()
    opened.click(".theme")
    expect(opened.locator(".vv")).to_have_class("vv dark")
    opened.reload()
    expect(opened.locator(".vv")).to_have_class("vv dark")
    expect(opened.get_by_role("tab", name="Layers")).to_have_attribute("aria-selected", "true")
    expect(opened.locator(".vv-layers-view .vv-picture")).to_be_visible()
    opened.go_back()
    expect(opened.locator(".vv-explore .vv-picture")).to_be_visible()


def test_tabs_are_walked_by_keys(opened: Browser) -> None:
    opened.get_by_role("tab", name="Explore").focus()
    opened.keyboard.press("ArrowRight")
    expect(opened.get_by_role("tab", name="Explain")).to_be_focused()
    opened.keyboard.press("Enter")
    expect(opened.locator(".vv-explain .vv-picture")).to_be_visible()


def test_what_is_under_way_is_told_after_half_a_second(opened: Browser) -> None:
    gate = Gate(opened, "**/vitviz/open")
    shown = opened.evaluate(
        """() => {
            document.querySelector('[data-value=Dog]').click();
            const look = { visibilityProperty: true, opacityProperty: true };
            return document.querySelector('#status').checkVisibility(look);
        }"""
    )
    status = opened.locator("#status")
    assert not shown
    expect(status).to_be_visible()
    expect(status).to_contain_text("Looking at the photograph")
    gate.open()
    opened.wait_for_function(f"{SCENE}.manifest.image === 'Dog'")
    expect(status).to_be_hidden()


@pytest.mark.parametrize("name", TABS[1:4])
def test_every_view_fills_the_screen(opened: Browser, name: str) -> None:
    opened.get_by_role("tab", name=name).click()
    opened.click(".vv-strip [data-do=full]")
    opened.wait_for_function("document.fullscreenElement !== null")
    expect(opened.locator(".vv-tab:visible .vv-picture")).to_be_visible()
    expect(opened.locator(".vv-top")).to_be_hidden()
    opened.click(".vv-strip [data-do=full]")
    opened.wait_for_function("document.fullscreenElement === null")


# --- room


@pytest.mark.parametrize("size", SIZES)
def test_nothing_overlaps_and_nothing_sticks_out(page: Browser, app: Running, size: tuple[int, int]) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    ready(page, app.url)
    for name in TABS:
        page.get_by_role("tab", name=name).click()
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0], name
        boxes = page.locator(".vv-source:visible, .vv-tab:visible > div").evaluate_all(
            "(all) => all.map((one) => one.getBoundingClientRect()).filter(({ width, height }) => width * height)"
            ".map(({ left, top, right, bottom }) => [left, top, right, bottom])"
        )
        for place, one in enumerate(boxes):
            for other in boxes[place + 1 :]:
                across = min(one[2], other[2]) - max(one[0], other[0])
                down = min(one[3], other[3]) - max(one[1], other[1])
                assert min(across, down) <= 1, (name, one, other)


@pytest.mark.parametrize(("shape", "share"), [(1.5, 0.5), (0.66, 0.27), (0.25, 0.11)])
def test_what_a_tall_photograph_leaves_free_is_the_thumbnails(
    opened: Browser, shaped: Any, shape: float, share: float
) -> None:
    give(opened, shaped(shape))
    opened.wait_for_timeout(500)
    held, pane, grid = (opened.locator(name).first.bounding_box() for name in (".vv-held", ".vv-panes", ".vv-grid"))
    assert held["width"] > share * 1440
    assert held["height"] > 0.55 * 900
    assert held["width"] > 0.7 * pane["width"] or pane["width"] < 300  # the picture's column is no wider than it needs
    if shape < 0.9:
        assert grid["x"] >= pane["x"] + pane["width"]
        assert grid["y"] < held["y"] + 150


def test_on_a_phone_the_picture_comes_first_then_the_thumbnails(browser: Chromium, app: Running) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = context.new_page()
    ready(page, app.url)
    names = (".vv-picture", ".vv-grid", ".vv-taking", ".vv-predictions")
    tops = [page.locator(name).first.bounding_box()["y"] for name in names]
    assert tops == sorted(tops)
    assert tops[0] < 240
    assert tops[1] < 844
    assert page.evaluate("getComputedStyle(document.querySelector('.vv-picture')).touchAction") == "pan-y"
    page.get_by_role("tab", name="Explain").click()
    methods = page.locator(".vv-methods")
    expect(methods).to_be_visible()
    assert methods.bounding_box()["y"] < 975
    context.close()


def test_words_are_large_enough_for_a_projector(opened: Browser) -> None:
    size = "(one) => parseFloat(getComputedStyle(one).fontSize)"
    assert opened.locator(".vv-note").first.evaluate(size) >= 16
    for small in opened.locator(".vv-explore small, .vv-explore .vv-quiet, .vv-badge").all():
        assert small.evaluate(size) >= 12


def test_the_photograph_stays_of_this_browser(opened: Browser, app: Running) -> None:
    """A link with somebody else's photograph says what it lacks, and shows what the page opens with."""
    ready(opened, f"{app.url}?photo={'ab' * 12}")
    expect(opened.locator(".vv-message")).to_contain_text("only in the browser in which it was opened")
    expect_map(opened, app.view(CHURCH).attention())
