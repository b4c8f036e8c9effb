"""Test the explorer by pointer and touch, on pages from disk: selecting patches and thumbnails."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import viewer_pages
from browsing import new_page
from playwright.sync_api import Browser, Page, expect
from viewer_pages import ask, assert_colors, box, centre, hover, pixels, rest, row_of, show, state, title, view

from vitviz.heatmap import Scale
from vitviz.view import View


def test_query_follows_pointer_until_pinned(explorer: Page) -> None:
    seen = view()
    for row, column in ((0, 0), (3, 7), (6, 10)):
        hover(explorer, seen, row, column)
        assert title(explorer) == f"Layer 3, mean of 5 heads, from patch row {row + 1}, column {column + 1}"
    explorer.mouse.move(5, 5)
    assert title(explorer).endswith("from CLS")
    explorer.get_by_label("register 2").check()
    hover(explorer, seen, 2, 2)
    assert title(explorer).endswith("row 3, column 3")
    picture = box(explorer, ".vv-held")
    explorer.mouse.move(picture["x"] + picture["width"] / 2, picture["y"] + 4)  # a margin outside the model's input
    assert title(explorer).endswith("from register 2")
    explorer.get_by_label("CLS", exact=True).check()
    explorer.mouse.click(*centre(explorer, seen, 2, 3))
    hover(explorer, seen, 5, 5)
    assert title(explorer).endswith("row 3, column 4")
    explorer.mouse.move(5, 5)
    assert title(explorer).endswith("row 3, column 4")
    expect(explorer.locator(".vv-where")).to_contain_text("row 3, column 4, pinned")
    explorer.mouse.click(*centre(explorer, seen, 2, 3))
    assert title(explorer).endswith("row 3, column 4")  # the pointer is still on this patch
    hover(explorer, seen, 5, 5)
    assert title(explorer).endswith("row 6, column 6")
    explorer.mouse.click(*centre(explorer, seen, 5, 5))
    explorer.mouse.click(*centre(explorer, seen, 1, 1))  # a click pins another patch instead
    explorer.mouse.move(5, 5)
    assert title(explorer).endswith("row 2, column 2")
    explorer.keyboard.press("Escape")
    assert title(explorer).endswith("from CLS")
    explorer.mouse.click(*centre(explorer, seen, 1, 1))
    explorer.mouse.move(5, 5)
    explorer.get_by_role("button", name="Unpin").click()
    assert title(explorer).endswith("from CLS")
    hover(explorer, seen, 4, 9)
    first, live = explorer.locator(".vv-strongest li").first, explorer.locator(".vv-live")
    row, column = map(int, re.findall(r"\d+", first.locator("button").inner_text()))
    expect(live).to_have_attribute("aria-live", "polite")  # screen readers read the text when the pointer rests
    expect(live).to_contain_text("Layer 3, mean of 5 heads, from patch row 5, column 10.")
    expect(live).to_contain_text(explorer.locator(".vv-note").inner_text())
    value = first.locator("span").inner_text().strip()  # the list pads values with spaces
    expect(live).to_contain_text(f"Strongest: row {row}, column {column}, {value}.")


def test_strongest_patches_are_numbered_and_selectable(explorer: Page) -> None:
    first = explorer.locator(".vv-strongest button").first
    row, column = map(int, re.findall(r"\d+", first.inner_text()))
    first.press("Enter")
    assert title(explorer).endswith(f"from patch row {row}, column {column}")
    expect(first).to_be_focused()  # the focus stays in the new list
    seen = view()
    ask(explorer, query=[3, 3])
    values = row_of(seen, 2, "mean", (3, 3), "row", "attention")[len(seen.trace.prefix) :].reshape(seen.trace.grid)
    strongest = [divmod(int(place), seen.trace.grid[1]) for place in np.argsort(-values.ravel())[:5]]
    aid = pixels(explorer, "(view) => view.panes[0].pane.aid.canvas")
    across, down = aid.shape[1] / seen.photo.width, aid.shape[0] / seen.photo.height
    cut = []
    for row, column in strongest:
        left, top, right, bottom = seen.geometry.patch_box(row, column, seen.trace.grid)
        x, y = round(left * across) + 3, round(top * down) + 3  # inside the frame
        assert (right - left) * across > 20 < (bottom - top) * down
        cut.append(aid[y : y + 12, x : x + 9])
        white, dark = ((cut[-1][..., :3] > 200).all(-1), (cut[-1][..., :3] < 50).all(-1) & (cut[-1][..., 3] > 200))
        assert white.sum() > 8
        assert dark.sum() > 8
    assert len({part.tobytes() for part in cut}) == 5
    ask(explorer, numbered=False)
    assert explorer.evaluate("vitviz.views[0].panes[0].pane.aids.strongest") == []


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
    assert (shown[..., 3] == 255).mean() > 0.97  # corners are round
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
    for patch, frames in (((4, 2), IN_TIME), ((0, 10), LATE)):
        explorer.evaluate(f"() => {{ {frames}; }}")
        hover(explorer, seen, *patch)
        for block, head in ((0, 0), (1, 4), (2, 2)):
            values = patches(seen, block, head, patch, "row")
            assert_thumbnail(explorer, f".vv-grid [data-value='{block},{head}']", values)
        for head in ("mean", "max", "min"):
            assert_thumbnail(explorer, f".vv-heads [data-value='{head}']", patches(seen, 2, head, patch, "row"))
        assert_thumbnail(explorer, ".vv-heads [data-value='3']", patches(seen, 2, 3, patch, "row"))
        assert_thumbnail(explorer, ".vv-layers [data-value='1']", patches(seen, 1, "mean", patch, "row"))
    explorer.evaluate(f"() => {{ {IN_TIME}; }}")
    words = explorer.locator(".vv-heads [data-value='3'] small").inner_text().split("\n")
    row = row_of(seen, 2, 3, (0, 10), "row", "attention")
    masses = {"CLS": row[0], "registers": row[1:4].sum(), "self": row[seen.trace.token((0, 10))]}
    assert [re.split(r"\s", line)[0] for line in words] == list(masses)
    for line, value in zip(words, masses.values(), strict=True):
        percent = float(re.findall(r"([\d.]+)\s%", line)[0])
        assert abs(100 * value - percent) <= 0.5 + 0.2 if "<" not in line else value < 0.0001 + 0.002


def test_thumbnails_select_maps_and_can_share_a_scale(explorer: Page) -> None:
    def pressed(wall: str) -> list[str | None]:
        rest(explorer)
        buttons = explorer.locator(f"{wall} [aria-pressed=true]").all()
        return [button.get_attribute("data-value") for button in buttons]

    assert (pressed(".vv-heads"), pressed(".vv-layers"), pressed(".vv-grid")) == (["mean"], ["2"], ["2,mean"])
    explorer.click(".vv-grid [data-value='0,3']")
    assert title(explorer).startswith("Layer 1, head 4,")
    assert (pressed(".vv-heads"), pressed(".vv-layers"), pressed(".vv-grid")) == (["3"], ["0"], ["0,3"])
    explorer.click(".vv-layers [data-value='1']")
    assert title(explorer).startswith("Layer 2, head 4,")
    explorer.click(".vv-heads [data-value='max']")
    assert title(explorer).startswith("Layer 2, max of 5 heads,")
    explorer.get_by_text("Rollout", exact=True).click()
    assert (pressed(".vv-heads"), pressed(".vv-layers"), pressed(".vv-grid")) == ([], [], [])
    explorer.locator(".vv-heads [data-value='2']").press("Enter")  # a head switches to attention
    assert title(explorer).startswith("Layer 2, head 3,")
    seen = view()
    expect(explorer.locator(".vv-heads-title small")).to_contain_text("one scale per map")
    own = explorer.get_by_role("radio", name="per map")
    expect(own).to_be_checked()
    explorer.get_by_role("radio", name="shared").check()
    ask(explorer, query=[1, 9])
    cells = [patches(seen, block, head, (1, 9), "row") for block in range(3) for head in range(5)]
    scale = Scale.over(cells)
    words = explorer.locator(".vv-scale-words").inner_text()
    low, high = (viewer_pages.number(text) for text in re.findall(r"(?:[<>]\s)?[\d.]+\s%", words))
    assert (low, high) == (pytest.approx(scale.vmin, abs=2.6e-3), pytest.approx(scale.vmax, abs=2.6e-3))
    assert "shared scale" in words
    assert_thumbnail(explorer, ".vv-grid [data-value='1,2']", cells[7], scale)
    own.check()
    assert_thumbnail(explorer, ".vv-grid [data-value='1,2']", cells[7])


def test_thumbnail_under_pointer_or_focus_is_enlarged(explorer: Page) -> None:
    seen = view()
    ask(explorer, query=[3, 3])
    rows = [row_of(seen, 1, head, (3, 3), "row", "attention") for head in range(5)]
    head = int(np.argmax([row[1:4].sum() for row in rows]))
    cell = f".vv-grid [data-value='1,{head}']"
    explorer.locator(cell).scroll_into_view_if_needed()
    small = box(explorer, f"{cell} .vv-map")
    lens = explorer.locator(".vv-grid .vv-lens")
    expect(lens).to_be_hidden()
    explorer.hover(cell)
    expect(explorer.locator(".vv-scale-words")).to_contain_text(f"Layer 2, head {head + 1}: CLS")
    (said,) = re.findall(r"registers\s([\d.]+)\s%", explorer.locator(".vv-scale-words").inner_text())
    assert float(said) == pytest.approx(100 * rows[head][1:4].sum(), abs=0.7)
    for query in ((3, 3), (5, 8)):  # the enlarged thumbnail follows like the small thumbnails
        ask(explorer, query=query)
        values, large = patches(seen, 1, head, query, "row"), box(explorer, ".vv-grid .vv-lens")
        assert large["width"] > 2 * small["width"]
        assert large["y"] == pytest.approx(small["y"], abs=1)
        assert large["x"] <= small["x"] + 1
        assert large["x"] + large["width"] >= small["x"] + small["width"] - 1
        enlarged = pixels(explorer, "(view) => view.find('.vv-grid .vv-lens')")[..., :3]
        assert_colors(enlarged, Scale.own(values).indices(values), 1)
    explorer.mouse.move(5, 5)
    expect(explorer.locator(".vv-scale-words")).to_contain_text("One row per layer")
    expect(lens).to_be_hidden()
    explorer.locator(".vv-heads [data-value='0']").focus()
    explorer.keyboard.press("ArrowRight")  # by keyboard
    second = explorer.locator(".vv-heads [data-value='1']")
    expect(second).to_be_focused()
    lens = explorer.locator(".vv-heads .vv-lens")
    expect(lens).to_be_visible()
    for width in (1440, 860):
        explorer.set_viewport_size({"width": width, "height": 844})
        explorer.evaluate(FRAMES)
        small, large = box(explorer, ".vv-heads [data-value='1'] .vv-map"), box(explorer, ".vv-heads .vv-lens")
        assert large["width"] == pytest.approx(1.25 * small["width"], rel=0.02)
        assert large["x"] + large["width"] / 2 == pytest.approx(small["x"] + small["width"] / 2, abs=1)
    explorer.locator(".vv-picture").focus()
    expect(lens).to_be_hidden()


def test_thumbnails_align_with_buttons_at_every_width(explorer: Page) -> None:
    seen = view()
    ask(explorer, query=[2, 2])
    for width in (1440, 900, 390, 1024):
        explorer.set_viewport_size({"width": width, "height": 844})
        explorer.evaluate(FRAMES)
        words, grid = (box(explorer, name) for name in (".vv-scale-words", ".vv-grid"))
        assert words["y"] < grid["y"]
        for wall, cell, block, head in (("grid", "2,4", 2, 4), ("heads", "4", 2, 4), ("layers", "0", 0, "mean")):
            assert_thumbnail(explorer, f".vv-{wall} [data-value='{cell}']", patches(seen, block, head, (2, 2), "row"))
    explorer.evaluate("document.querySelector('.vv-whole').open = false")
    ask(explorer, query=[6, 1])
    explorer.evaluate("document.querySelector('.vv-whole').open = true")
    rest(explorer)
    explorer.evaluate(FRAMES)
    for head in (0, 4):
        values = patches(seen, 1, head, (6, 1), "row")
        assert_thumbnail(explorer, f".vv-grid [data-value='1,{head}']", values)
