"""Test keyboard, two panes, animation, matrix and screen readers of the explorer, on pages from disk."""

from pathlib import Path

import numpy as np
import pytest
from browsing import menu_click
from playwright.sync_api import Page, expect
from running import Running, ready, settled, unfold
from viewer_pages import ask, assert_colors, box, centre, hover, pixels, rest, row_of, show, state, title, view

from vitviz.heatmap import Scale
from vitviz.view import View


def test_keys_act_on_the_focused_page_picture_or_input(explorer: Page) -> None:
    """tests/js/core.test.mjs tests every key."""
    explorer.keyboard.press("[")
    assert state(explorer, "block") == 1
    explorer.keyboard.press("ArrowDown")  # this key scrolls the page
    assert state(explorer, "query") == "cls"
    hover(explorer, view(), 4, 4)
    explorer.keyboard.press("ArrowDown")
    assert state(explorer, "query", "pinned") == [[5, 4], True]
    explorer.keyboard.press("Escape")
    explorer.mouse.move(5, 5)
    explorer.locator(".vv-picture").focus()
    for key in ("ArrowUp", "ArrowRight", ".", "d", "g"):
        explorer.keyboard.press(key)
    assert title(explorer) == "Layer 2, head 1, to patch row 4, column 7"
    expect(explorer.get_by_label("what attends to it")).to_be_checked()
    expect(explorer.get_by_label("Patch grid")).to_be_checked()
    explorer.keyboard.press("Escape")
    assert title(explorer) == "Layer 2, head 1, to CLS"
    # inputs keep their keys
    unfold(explorer)
    fields = ("block", "head", "query", "direction", "mode", "grid", "full", "help")
    before = state(explorer, *fields)
    explorer.get_by_role("slider", name="Opacity").focus()
    for key in ("[", "]", "0", ".", "d", "r", "g", "c", "f", "?", "ArrowRight"):
        explorer.keyboard.press(key)
    assert state(explorer, "opacity") == pytest.approx(0.8)
    assert state(explorer, *fields) == before
    explorer.get_by_label("CLS", exact=True).focus()
    explorer.keyboard.press("ArrowRight")
    assert state(explorer, "query") == "register 1"
    explorer.keyboard.press("[")
    assert state(explorer, "block") == 0
    explorer.get_by_label("Patch grid").focus()
    explorer.keyboard.press("Space")
    assert state(explorer, "grid") is False
    explorer.keyboard.press("Control+]")
    assert state(explorer, "block") == 0


def test_help_restores_focus_and_full_screen_toggles(explorer: Page) -> None:
    picture, help_ = explorer.locator(".vv-picture"), explorer.get_by_role("dialog")
    for close in ("Escape", "?", "Enter"):
        picture.focus()
        explorer.keyboard.press("?")
        expect(help_).to_be_visible()
        expect(help_.locator("dt")).to_have_count(19)
        explorer.keyboard.press("[")
        explorer.keyboard.press(close)
        expect(help_).to_be_hidden()
        explorer.wait_for_function("!vitviz.store.get().help")  # the close event fires later
        expect(picture).to_be_focused()
    assert state(explorer, "block", "help") == [None, False]
    picture.press("?")
    expect(help_).to_be_visible()
    help_.evaluate(  # reopening before the close event keeps the dialog open
        """(dialog) => new Promise((heard) => {
            dialog.addEventListener('close', () => heard(), { once: true });
            dialog.close();
            dialog.showModal();
        })"""
    )
    expect(help_).to_be_visible()
    assert state(explorer, "help") is True
    explorer.keyboard.press("Escape")
    explorer.wait_for_function("!vitviz.store.get().help")
    explorer.get_by_role("button", name="Full screen").click()
    explorer.wait_for_function("document.fullscreenElement !== null")
    explorer.evaluate("document.exitFullscreen()")  # like the browser's own key
    explorer.wait_for_function("vitviz.store.get().full === false")
    for _ in range(4):  # faster than the browser changes to full screen
        explorer.keyboard.press("f")
    explorer.wait_for_function("document.fullscreenElement === null && !vitviz.store.get().full")


def test_tab_reaches_every_control_with_visible_focus(explorer: Page) -> None:
    explorer.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    rest(explorer)
    reached = set()
    for _ in range(100):
        explorer.keyboard.press("Tab")
        name, seen = explorer.evaluate(
            """() => {
                const e = document.activeElement;
                const shown = e.closest('.vv-chip, .vv-views label') ?? e;
                const { outlineStyle, outlineWidth } = getComputedStyle(shown);
                const { do: does, key, kind = 'cell', value } = e.dataset;
                const kinds = [does, key, value && `${kind} ${value}`];
                return [kinds.find(Boolean) ?? e.className, outlineStyle === 'none' ? 0 : parseFloat(outlineWidth)];
            }"""
        )
        if name in reached and name == "vv-picture":
            break
        assert name == "" or seen >= 2, name  # "" is the page itself, after the last element
        reached.add(name)
    wanted = {"vv-picture", "query", "mode", "direction", "opacity", "grid", "smooth", "numbered", "color", "gamma"}
    wanted |= {"shared", "play", "compare", "picture", "full", "help", "cell 0,mean", "head", "block"}
    assert wanted <= reached, wanted - reached


def test_panes_share_the_query_but_not_the_head(explorer: Page) -> None:
    seen = view()
    ask(explorer, head=1)
    menu_click(explorer, "compare")
    explorer.click(".vv-grid [data-value='2,3']")
    explorer.mouse.move(5, 5)
    assert [title(explorer, pane) for pane in (0, 1)] == [f"Layer 3, head {head}, from CLS" for head in (2, 4)]
    expect(explorer.locator(".vv-live")).to_contain_text("head 4")  # the chosen one
    for pane in (0, 1):
        hover(explorer, seen, 2, 5, pane)
        words = "from patch row 3, column 6"
        assert [title(explorer, each) for each in (0, 1)] == [f"Layer 3, head {head}, {words}" for head in (2, 4)]
    explorer.locator(".vv-picture").first.focus()  # the controls now show the first pane
    expect(explorer.locator(".vv-grid [aria-pressed=true]")).to_have_attribute("data-value", "2,1")
    explorer.keyboard.press("[")
    assert title(explorer, 0).startswith("Layer 2, head 2")
    assert title(explorer, 1).startswith("Layer 3, head 4")
    expect(explorer.locator(".vv-menu [data-do=compare]")).to_have_attribute("aria-pressed", "true")
    menu_click(explorer, "compare")
    expect(explorer.locator(".vv-pane")).to_have_count(1)
    assert title(explorer).startswith("Layer 2, head 2")  # the active pane stays the same
    hover(explorer, seen, 0, 0)
    assert title(explorer).endswith("row 1, column 1")


@pytest.mark.tier("all")
def test_panes_with_different_grids_share_the_place(page: Page, app: Running, small: str) -> None:
    seen, other = app.view(size=286), app.view(model=small)
    assert seen.trace.grid != other.trace.grid
    ready(page, f"{app.url}?pane=1&size=286&model2={small}")
    page.wait_for_function("vitviz.scenes.get(vitviz.store.get().beside?.scene?.id)?.answers.complete")
    settled(page)

    def expect_patches(first: tuple[int, int], second: tuple[int, int]) -> None:
        for pane, (row, column) in enumerate((first, second)):
            assert title(page, pane).endswith(f"from patch row {row + 1}, column {column + 1}")

    def same_place(patch: tuple[int, int], source: View, target: View) -> tuple[int, int]:
        left, top, right, bottom = source.geometry.patch_box(*patch, source.trace.grid)
        return target.geometry.patch_at((left + right) / 2, (top + bottom) / 2, target.trace.grid)

    first, second = (3, 8), (4, 4)
    hover(page, seen, *first, pane=0)
    expect_patches(first, same_place(first, seen, other))
    hover(page, other, *second, pane=1)
    expect_patches(there := same_place(second, other, seen), second)
    page.mouse.click(*centre(page, other, *second, pane=1))
    hover(page, seen, *first, pane=0)  # elsewhere, while a patch is pinned
    expect_patches(there, second)
    page.locator(".vv-explore .vv-picture").first.focus()
    page.keyboard.press("ArrowLeft")
    expect_patches(moved := (there[0], there[1] - 1), same_place(moved, seen, other))
    page.locator(".vv-explore .vv-picture").nth(1).focus()
    menu_click(page, "compare")
    expect(page.locator(".vv-explore .vv-pane")).to_have_count(1)  # text of the active pane
    assert page.evaluate("vitviz.store.get().scene.source.model") == small
    row, column = same_place(moved, seen, other)
    assert title(page).endswith(f"from patch row {row + 1}, column {column + 1}")


def test_reduced_motion_steps_once_per_press(offline: Page, tmp_path: Path) -> None:
    offline.emulate_media(reduced_motion="reduce")
    show(offline, tmp_path)
    assert_nothing_moves(offline)
    for layer in (1, 2):
        offline.get_by_role("button", name="Next layer").click()
        expect(offline.locator(".vv-title")).to_have_text(f"Layer {layer}, mean of 5 heads, from CLS")
    assert state(offline, "playing") is False
    ask(offline, head=3)
    offline.get_by_role("button", name="Next head").click()
    expect(offline.locator(".vv-title")).to_contain_text("head 5,")


def assert_nothing_moves(page: Page) -> None:
    drawn = page.evaluate("vitviz.drawn")
    page.evaluate("async () => { for (let i = 0; i < 20; i += 1) await new Promise(requestAnimationFrame); }")
    assert page.evaluate("[vitviz.drawn, document.getAnimations().length]") == [drawn, 0]


def test_matrix_and_picture_mark_the_same_patch(explorer: Page) -> None:
    seen = view()
    ask(explorer, head=2, block=1)
    explorer.get_by_text("The full attention matrix of one head").click()
    expect(explorer.locator(".vv-matrix p")).to_contain_text("Layer 2, head 3, 81 × 81 tokens")
    rest(explorer)
    shown = pixels(explorer, "() => document.querySelector('.vv-cells canvas')")[..., :3]
    values = np.stack([row_of(seen, 1, 2, token, "row", "attention") for token in range(81)])
    assert_colors(shown, Scale.over([values], "each").indices(values, 0.5), 2)

    cells = explorer.locator(".vv-cells")
    cells.scroll_into_view_if_needed()
    place = box(explorer, ".vv-cells")

    def at(query: int, key: int) -> tuple[float, float]:
        return place["x"] + (key + 0.5) / 81 * place["width"], place["y"] + (query + 0.5) / 81 * place["height"]

    explorer.mouse.move(*at(seen.trace.token((5, 6)), seen.trace.token((0, 2))))
    assert title(explorer) == "Layer 2, head 3, from patch row 6, column 7"
    explorer.mouse.move(*at(2, 40))
    assert title(explorer).endswith("from register 2")
    explorer.mouse.move(place["x"] - 3, place["y"] + 5)
    assert title(explorer).endswith("from CLS")
    explorer.mouse.click(*at(30, 30))
    explorer.mouse.move(5, 5)
    assert state(explorer, "pinned") is True
    assert title(explorer).endswith(f"row {26 // 11 + 1}, column {26 % 11 + 1}")
