"""What a person does with the explorer by pointer and finger: asking from patches, choosing on the walls."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import viewer_pages
from conftest import watch
from playwright.sync_api import Browser, Page, expect
from viewer_pages import ask, box, centre, hover, pixels, rest, row_of, show, state, title, view

from vitviz.explorer import View
from vitviz.render.colors import Scale, lut


@pytest.fixture
def offline(page: Page) -> Iterator[Page]:
    yield from viewer_pages.offline(page)


@pytest.fixture
def opened(offline: Page, tmp_path: Path) -> Page:
    show(offline, tmp_path)
    return offline


# ---- the pointer


def test_the_query_follows_the_pointer_and_goes_back(opened: Page) -> None:
    seen = view()
    for row, column in ((0, 0), (3, 7), (6, 10)):
        hover(opened, seen, row, column)
        assert title(opened) == f"Layer 3, mean of 5 heads, from patch row {row + 1}, column {column + 1}"
    opened.mouse.move(5, 5)
    assert title(opened).endswith("from CLS")
    opened.get_by_label("register 2").check()
    hover(opened, seen, 2, 2)
    assert title(opened).endswith("row 3, column 3")
    picture = box(opened, ".vv-held")
    opened.mouse.move(picture["x"] + picture["width"] / 2, picture["y"] + 4)  # a margin that the model did not see
    assert title(opened).endswith("from register 2")


def test_a_click_pins_and_a_second_one_lets_go(opened: Page) -> None:
    seen = view()
    opened.mouse.click(*centre(opened, seen, 2, 3))
    hover(opened, seen, 5, 5)
    assert title(opened).endswith("row 3, column 4")
    opened.mouse.move(5, 5)
    assert title(opened).endswith("row 3, column 4")
    expect(opened.locator(".vv-where")).to_contain_text("row 3, column 4, pinned")
    opened.mouse.click(*centre(opened, seen, 2, 3))
    assert title(opened).endswith("row 3, column 4")  # the pointer is there still, and leads again
    hover(opened, seen, 5, 5)
    assert title(opened).endswith("row 6, column 6")
    opened.mouse.click(*centre(opened, seen, 5, 5))
    opened.mouse.click(*centre(opened, seen, 1, 1))  # another patch is pinned in its place
    opened.mouse.move(5, 5)
    assert title(opened).endswith("row 2, column 2")
    opened.keyboard.press("Escape")
    assert title(opened).endswith("from CLS")
    opened.mouse.click(*centre(opened, seen, 1, 1))
    opened.mouse.move(5, 5)
    opened.get_by_role("button", name="Let go").click()
    assert title(opened).endswith("from CLS")


def test_a_strongest_patch_can_be_asked_from(opened: Page) -> None:
    first = opened.locator(".vv-strongest button").first
    row, column = map(int, re.findall(r"\d+", first.inner_text()))
    first.press("Enter")
    assert title(opened).endswith(f"from patch row {row}, column {column}")
    expect(first).to_be_focused()  # the list is another one now; who types stays in it


def test_a_finger_shows_the_way_and_a_tap_pins(browser: Browser, tmp_path: Path) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    problems = watch(context)
    page = context.new_page()
    show(page, tmp_path)
    seen, finger = view(), context.new_cdp_session(page)

    def touch(kind: str, *patch: int) -> None:
        points = []
        if patch:
            x, y = centre(page, seen, *patch)
            points = [{"x": x, "y": y}]
        finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", 1, 1)
    for patch in ((2, 3), (3, 5), (4, 6)):
        touch("touchMove", *patch)
        expect(page.locator(".vv-title")).to_contain_text(f"row {patch[0] + 1}, column {patch[1] + 1}")
    touch("touchEnd")
    assert title(page).endswith("row 5, column 7")  # what the finger found stays to be read
    assert state(page, "pinned") is False
    page.touchscreen.tap(*centre(page, seen, 3, 3))
    expect(page.locator(".vv-where")).to_contain_text("row 4, column 4, pinned")
    touch("touchStart", 1, 1)
    touch("touchMove", 5, 5)
    expect(page.locator(".vv-note")).to_contain_text("Row 6, column 6:")  # read, and not asked
    assert title(page).endswith("row 4, column 4")
    page.wait_for_timeout(200)  # a finger that flies off would be a fling, and the tap would only stop that
    touch("touchEnd")
    page.touchscreen.tap(*centre(page, seen, 3, 3))
    expect(page.locator(".vv-title")).to_have_text("Layer 3, mean of 5 heads, from CLS")
    context.close()
    assert problems == []


# ---- walls


def assert_thumbnail(page: Page, selector: str, values: np.ndarray, scale: Scale | None = None) -> None:
    """A thumbnail has Python's colours; halves may move a number to the next colour, no further."""
    shown = pixels(page, f"() => document.querySelector({selector!r} + ' canvas')")[..., :3]
    index = (scale or Scale.over([values], "each")).indices(values).astype(int)
    near = [lut("viridis")[np.clip(index + step, 0, 255)] for step in (-1, 0, 1)]
    assert shown.shape == (*values.shape, 3)
    assert np.any([(shown == colours).all(-1) for colours in near], axis=0).all()


def patches(seen: View, *question: Any) -> np.ndarray:
    return row_of(seen, *question, "attention")[len(seen.trace.prefix) :].reshape(seen.trace.grid)


def test_every_thumbnail_follows_the_pointer(opened: Page) -> None:
    seen = view()
    for patch in ((4, 2), (0, 10)):
        hover(opened, seen, *patch)
        for block, head in ((0, 0), (1, 4), (2, 2)):
            values = patches(seen, block, head, patch, "row")
            assert_thumbnail(opened, f".vv-grid [data-value='{block},{head}']", values)
        for head in ("mean", "max", "min"):
            assert_thumbnail(opened, f".vv-heads [data-value='{head}']", patches(seen, 2, head, patch, "row"))
        assert_thumbnail(opened, ".vv-heads [data-value='3']", patches(seen, 2, 3, patch, "row"))
        assert_thumbnail(opened, ".vv-layers [data-value='1']", patches(seen, 1, "mean", patch, "row"))
    words = opened.locator(".vv-heads [data-value='3'] small").inner_text().split("\n")
    row = row_of(seen, 2, 3, (0, 10), "row", "attention")
    found = {"CLS": row[0], "registers": row[1:4].sum(), "self": row[seen.trace.token((0, 10))]}
    assert [re.split(r"\s", line)[0] for line in words] == list(found)
    for line, value in zip(words, found.values(), strict=True):
        percent = float(re.findall(r"(\d+)\s%", line)[0])
        assert abs(100 * value - percent) <= 0.5 + 0.2 if "<" not in line else value < 0.005 + 0.002


@pytest.mark.parametrize("change", [{"direction": "column", "query": [2, 2], "pinned": True}, {"query": "mean"}])
def test_fusions_that_need_every_row_are_finished(opened: Page, change: dict[str, Any]) -> None:
    seen, query, direction = view(), change["query"], change.get("direction", "row")
    query = tuple(query) if isinstance(query, list) else query
    ask(opened, head="min", **change)
    for head in ("max", "min"):
        assert_thumbnail(opened, f".vv-heads [data-value='{head}']", patches(seen, 2, head, query, direction))
    for block in range(3):
        assert_thumbnail(opened, f".vv-layers [data-value='{block}']", patches(seen, block, "min", query, direction))
    assert opened.locator(".vv-waiting").count() == 0


def test_choosing_a_thumbnail_selects_it(opened: Page) -> None:
    def pressed(wall: str) -> list[str | None]:
        rest(opened)
        return [one.get_attribute("data-value") for one in opened.locator(f"{wall} [aria-pressed=true]").all()]

    assert (pressed(".vv-heads"), pressed(".vv-layers"), pressed(".vv-grid")) == (["mean"], ["2"], [])
    opened.click(".vv-grid [data-value='0,3']")
    assert title(opened).startswith("Layer 1, head 4,")
    assert (pressed(".vv-heads"), pressed(".vv-layers"), pressed(".vv-grid")) == (["3"], ["0"], ["0,3"])
    opened.click(".vv-layers [data-value='1']")
    assert title(opened).startswith("Layer 2, head 4,")
    opened.click(".vv-heads [data-value='max']")
    assert title(opened).startswith("Layer 2, max of 5 heads,")
    opened.get_by_text("Rollout", exact=True).click()
    assert (pressed(".vv-heads"), pressed(".vv-layers"), pressed(".vv-grid")) == ([], [], [])
    opened.locator(".vv-heads [data-value='2']").press("Enter")  # a head is attention
    assert title(opened).startswith("Layer 2, head 3,")


def test_a_shared_scale_says_so_with_its_numbers(opened: Page) -> None:
    seen = view()
    expect(opened.locator(".vv-heads-title small")).to_contain_text("each on its own scale")
    opened.get_by_text("Colours and scale").click()
    opened.get_by_label("One scale for all thumbnails").check()
    ask(opened, query=[1, 9], pinned=True)
    cells = [patches(seen, block, head, (1, 9), "row") for block in range(3) for head in range(5)]
    scale = Scale.over(cells)
    words = opened.locator(".vv-scale-words").inner_text()
    low, high = (viewer_pages.number(text) for text in re.findall(r"[\d.]+ %", words))
    assert (low, high) == (pytest.approx(scale.vmin, abs=2.6e-3), pytest.approx(scale.vmax, abs=2.6e-3))
    assert "one scale for all" in words
    assert_thumbnail(opened, ".vv-grid [data-value='1,2']", cells[7], scale)


def test_a_cell_under_the_pointer_is_named_and_enlarged(opened: Page) -> None:
    ask(opened, query=[3, 3], pinned=True)
    rows = [row_of(view(), 1, head, (3, 3), "row", "attention") for head in range(5)]
    head = int(np.argmax([row[1:4].sum() for row in rows]))
    cell = f".vv-grid [data-value='1,{head}']"
    small = box(opened, f"{cell} canvas")
    opened.hover(cell)
    expect(opened.locator(".vv-scale-words")).to_contain_text(f"Layer 2, head {head + 1}: CLS")
    found = re.search(r"registers\s(\d+)\s%", opened.locator(".vv-scale-words").inner_text())
    assert found
    assert int(found[1]) == pytest.approx(100 * rows[head][1:4].sum(), abs=0.7)
    assert box(opened, f"{cell} canvas")["width"] > 2 * small["width"]
    opened.mouse.move(5, 5)
    expect(opened.locator(".vv-scale-words")).to_contain_text("Numbers are layers")
