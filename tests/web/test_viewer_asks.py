"""Test the explorer by pointer and touch, on pages from disk: selecting patches and thumbnails."""

import re
from pathlib import Path
from typing import Any

import numpy as np
from browsing import new_page
from playwright.sync_api import Browser, Page, expect
from running import expect_map
from viewer_pages import ask, assert_colors, box, centre, hover, pixels, rest, row_of, show, state, title, view

from vitviz.heatmap import Scale
from vitviz.view import View


def test_query_follows_pointer_until_pinned(explorer: Page) -> None:
    seen = view()
    hover(explorer, seen, 3, 7)
    assert title(explorer) == "Layer 3, mean of 5 heads, from patch row 4, column 8"
    explorer.get_by_label("register 2").check()
    picture = box(explorer, ".vv-held")
    explorer.mouse.move(picture["x"] + picture["width"] / 2, picture["y"] + 4)  # a margin outside the model's input
    assert title(explorer).endswith("from register 2")
    explorer.get_by_label("CLS", exact=True).check()
    explorer.mouse.click(*centre(explorer, seen, 2, 3))
    hover(explorer, seen, 5, 5)
    assert title(explorer).endswith("row 3, column 4")
    expect(explorer.locator(".vv-where")).to_contain_text("row 3, column 4, pinned")
    explorer.mouse.click(*centre(explorer, seen, 1, 1))  # a click pins another patch instead
    explorer.mouse.move(5, 5)
    assert title(explorer).endswith("row 2, column 2")
    explorer.mouse.click(*centre(explorer, seen, 1, 1))
    hover(explorer, seen, 5, 5)
    assert title(explorer).endswith("row 6, column 6")
    explorer.mouse.click(*centre(explorer, seen, 1, 1))
    explorer.mouse.move(5, 5)
    explorer.get_by_role("button", name="Unpin").click()
    assert title(explorer).endswith("from CLS")
    hover(explorer, seen, 4, 9)
    live = explorer.locator(".vv-live")
    expect(live).to_have_attribute("aria-live", "polite")  # screen readers read the text when the pointer rests
    expect(live).to_contain_text("Layer 3, mean of 5 heads, from patch row 5, column 10.")
    first = explorer.locator(".vv-strongest button").first
    row, column = map(int, re.findall(r"\d+", first.inner_text()))
    expect(live).to_contain_text(f"Strongest: row {row}, column {column}, ")
    explorer.mouse.move(5, 5)
    row, column = map(int, re.findall(r"\d+", first.inner_text()))
    first.press("Enter")
    assert title(explorer).endswith(f"from patch row {row}, column {column}")
    expect(first).to_be_focused()  # the focus stays in the new list
    ask(explorer, numbered=True)
    assert len(explorer.evaluate("vitviz.panels[0].panes[0].pane.aids.strongest")) == 5
    ask(explorer, numbered=False)
    assert explorer.evaluate("vitviz.panels[0].panes[0].pane.aids.strongest") == []


def test_touch_drags_select_and_taps_pin(browser: Browser, tmp_path: Path) -> None:
    with new_page(browser, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True) as page:
        show(page, tmp_path)
        point_and_tap(page)


def point_and_tap(page: Page) -> None:
    seen, finger = view(), page.context.new_cdp_session(page)

    def touch(kind: str, *patch: int) -> None:
        points = [dict(zip("xy", centre(page, seen, *patch), strict=True))] if patch else []
        finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", 1, 1)
    for patch in ((1, 3), (2, 5), (4, 6)):  # move sideways first
        touch("touchMove", *patch)
        expect(page.locator(".vv-title")).to_contain_text(f"row {patch[0] + 1}, column {patch[1] + 1}")
    touch("touchEnd")
    assert title(page).endswith("row 5, column 7")  # the last patch stays selected
    assert state(page, "pinned") is False
    page.touchscreen.tap(*centre(page, seen, 3, 3))
    expect(page.locator(".vv-where")).to_contain_text("row 4, column 4, pinned")
    touch("touchStart", 1, 1)
    touch("touchMove", 1, 5)  # sideways, because a vertical move scrolls the page
    expect(page.locator(".vv-note")).to_contain_text("Row 2, column 6:")  # described, but not selected
    assert title(page).endswith("row 4, column 4")
    touch("touchEnd")
    page.touchscreen.tap(*centre(page, seen, 3, 3))
    expect(page.locator(".vv-title")).to_have_text("Layer 3, mean of 5 heads, from CLS")


FRAMES = "() => new Promise((rest) => requestAnimationFrame(() => requestAnimationFrame(rest)))"


def assert_thumbnail(page: Page, selector: str, values: np.ndarray, scale: Scale | None = None) -> None:
    """Check a thumbnail's colours on the sheet, in the middle of each patch."""
    wall = f"document.querySelector({selector!r}).closest('.vv-wall, .vv-grid')"
    left, top, wide, high = page.evaluate(
        """(selector) => {
            const map = document.querySelector(selector).querySelector('.vv-map');
            const canvas = map.closest('.vv-wall, .vv-grid').querySelector('.vv-sheet');
            const [part, whole] = [map, canvas].map((element) => element.getBoundingClientRect());
            const fine = canvas.width / whole.width;
            const [left, top] = [part.left - whole.left, part.top - whole.top];
            return [left, top, part.width, part.height].map((length) => Math.round(length * fine));
        }""",
        selector,
    )
    shown = pixels(page, f"() => {wall}.querySelector('.vv-sheet')")[top : top + high, left : left + wide]
    assert shown.shape[:2] == (high, wide)
    assert (shown[..., 3] == 255).mean() > 0.95  # corners are round, and sizes are fractions of pixels
    rows, columns = (
        np.round((np.arange(count) + 0.5) * size / count - 0.5).astype(int)
        for count, size in zip(values.shape, (high, wide), strict=True)
    )
    assert_colors(shown[np.ix_(rows, columns)][..., :3], (scale or Scale.own(values)).indices(values), 1)


def patches(seen: View, *question: Any) -> np.ndarray:
    return row_of(seen, *question, "attention")[len(seen.trace.prefix) :].reshape(seen.trace.grid)


# Each frame has begun long ago, so the maps of all heads are drawn over several frames.
LATE = "Object.defineProperty(vitviz, 'began', { get: () => -Infinity, set() {} })"
IN_TIME = "Object.defineProperty(vitviz, 'began', { value: 0, writable: true })"


def test_thumbnails_follow_the_pointer(explorer: Page) -> None:
    seen = view()
    for patch, frames, width in (((4, 2), IN_TIME, 390), ((0, 10), LATE, 1440)):
        explorer.set_viewport_size({"width": width, "height": 844})
        explorer.evaluate(f"() => {{ {frames}; }}")
        explorer.evaluate(FRAMES)
        hover(explorer, seen, *patch)
        for block, head in ((0, 0), (2, 2)):
            values = patches(seen, block, head, patch, "row")
            assert_thumbnail(explorer, f".vv-grid [data-value='{block},{head}']", values)
    assert_thumbnail(explorer, ".vv-grid [data-value='1,mean']", patches(seen, 1, "mean", (0, 10), "row"))


def test_thumbnails_select_maps_and_can_share_a_scale(explorer: Page) -> None:
    def pressed(wall: str) -> list[str | None]:
        rest(explorer)
        buttons = explorer.locator(f"{wall} [aria-pressed=true]").all()
        return [button.get_attribute("data-value") for button in buttons]

    assert pressed(".vv-grid") == ["2,mean"]
    explorer.click(".vv-grid [data-value='0,3']")
    assert title(explorer).startswith("Layer 1, head 4,")
    assert pressed(".vv-grid") == ["0,3"]
    explorer.get_by_role("slider", name="Layer", exact=True).fill("2")
    assert title(explorer).startswith("Layer 2, head 4,")
    explorer.select_option("[data-key=head]", "max")
    assert title(explorer).startswith("Layer 2, max of 5 heads,")
    explorer.get_by_text("Rollout", exact=True).click()
    assert pressed(".vv-grid") == []
    explorer.locator(".vv-grid [data-value='1,2']").press("Enter")  # a head switches to attention
    assert title(explorer).startswith("Layer 2, head 3,")
    seen = view()
    own = explorer.get_by_role("radio", name="per map")
    expect(own).to_be_checked()
    explorer.get_by_role("radio", name="shared").check()
    ask(explorer, query=[1, 9])
    cells = [patches(seen, block, head, (1, 9), "row") for block in range(3) for head in range(5)]
    assert_thumbnail(explorer, ".vv-grid [data-value='1,2']", cells[7], Scale.over(cells))
    own.check()
    assert_thumbnail(explorer, ".vv-grid [data-value='1,2']", cells[7])


def test_thumbnail_under_pointer_or_focus_is_previewed_in_the_picture(explorer: Page) -> None:
    seen = view()
    ask(explorer, query=[3, 3])
    before = title(explorer)
    explorer.hover(".vv-grid [data-value='1,2']")
    expect(explorer.locator(".vv-scale-words")).to_contain_text("Layer 2, head 3: CLS")
    for query in ((3, 3), (5, 8)):
        ask(explorer, query=query)
        expect_map(explorer, seen.attention(1, 2, query))
    explorer.mouse.move(5, 5)
    expect(explorer.locator(".vv-scale-words")).to_have_text("3 layers × 5 heads")
    assert title(explorer) == before.replace("row 4, column 4", "row 6, column 9")
    assert state(explorer, "block", "head") == [None, "mean"]
    explorer.locator(".vv-grid [data-value='1,0']").focus()
    explorer.keyboard.press("ArrowRight")  # by keyboard
    expect_map(explorer, seen.attention(1, 1, (5, 8)))
    explorer.locator(".vv-picture").focus()
    assert title(explorer).startswith("Layer 3, mean")
