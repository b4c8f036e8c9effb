"""What the explorer on the page asks the server, and what it does not: rollout, large inputs, no request for a move."""

import tiny
from playwright.sync_api import Page as Browser
from playwright.sync_api import Request, expect
from running import (
    CHURCH,
    DOG,
    Running,
    at_patch,
    change,
    click_patch,
    complete,
    example,
    expect_map,
    head,
    layer,
    ready,
)

SIDE = tiny.GRID[1] * tiny.PATCH  # pixels


def functions(requests: list[Request]) -> list[str]:
    """The server's functions that were asked."""
    return [one.url.rpartition("/")[2] for one in requests if "/vitviz/" in one.url]


def slide(page: Browser, key: str, value: float) -> None:
    """Move a slider as a hand does."""
    page.locator(f"input[data-key={key}]").evaluate(
        "(input, value) => { input.value = value; input.dispatchEvent(new Event('input', { bubbles: true })); }",
        str(value),
    )


def test_no_request_for_moves_layers_and_heads(opened: Browser, requests: list[Request], app: Running) -> None:
    complete(opened)
    requests.clear()
    box = opened.locator(".vv-held").first.bounding_box()
    assert box is not None
    drawn = opened.evaluate("vitviz.drawn")
    for step in range(45):
        x, y = step * 0.618 % 1, step * 0.377 % 1
        opened.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
    assert opened.evaluate("vitviz.drawn") > drawn + 15
    for key in "[[[,.,.]]0dcdrgr":
        opened.keyboard.press(key)
    for block in (0, 1, 2):
        layer(opened, block)
    for one in (0, 4, "max", "min"):
        head(opened, one)
    slide(opened, "opacity", 0.8)
    slide(opened, "gamma", 0.5)
    opened.click(".vv-matrix summary")
    click_patch(opened, app.view(), 4, 4)
    before = opened.evaluate("vitviz.store.get().scene.id")
    opened.click("[data-do=compare]")
    opened.click("[data-do=compare]")
    assert opened.evaluate("vitviz.store.get().scene.id") == before
    with opened.expect_request("**/vitviz/rollout"):  # a question that waits a moment before it is asked: all else came
        change(opened, fuse="max")
    assert [one.url.rpartition("/")[2] for one in requests] == ["rollout"]


# --- rollout


def test_options_of_rollout_change_the_numbers_to_pythons(
    opened: Browser, requests: list[Request], app: Running
) -> None:
    complete(opened)
    requests.clear()
    view = app.view()
    opened.check(".vv-modes input[value=rollout]")
    expect_map(opened, view.rollout())
    assert functions(requests) == []
    opened.click(".vv-rollout summary")
    opened.select_option("[data-key=fuse]", "max")
    expect_map(opened, view.rollout(fuse="max"))
    slide(opened, "discard", 0.5)
    expect_map(opened, view.rollout(fuse="max", discard=0.5))
    slide(opened, "residual", 0.2)
    expect_map(opened, view.rollout(fuse="max", discard=0.5, residual=0.2))
    slide(opened, "start", 2)
    options = {"fuse": "max", "discard": 0.5, "residual": 0.2, "start": 1}
    expect_map(opened, view.rollout(**options))
    once = len(functions(requests))
    assert once <= 4
    click_patch(opened, view, 6, 3)  # from every patch, without asking again
    expect_map(opened, view.rollout((6, 3), **options))
    assert len(functions(requests)) == once
    example(opened, "Dog")
    opened.keyboard.press("Escape")
    expect(opened.locator("#badge")).to_contain_text("8 x 10")
    opened.check(".vv-queries input[value=cls]")
    expect_map(opened, app.view(DOG).rollout(**options))


def test_rollout_of_many_patches_comes_row_by_row(
    page: Browser, requests: list[Request], app: Running, small: str
) -> None:
    ready(page, f"{app.url}?model={small}&size={4 * SIDE}")
    view = app.view(CHURCH, small, 4 * SIDE)
    assert view.trace.tokens.shape[1] > 600
    expect_map(page, view.attention())
    complete(page)
    requests.clear()
    page.check(".vv-modes input[value=rollout]")
    expect_map(page, view.rollout())
    page.mouse.move(*at_patch(page, view, 20, 30))
    expect_map(page, view.rollout((20, 30)))
    page.check(".vv-queries input[value=mean]")
    page.mouse.move(5, 5)
    expect_map(page, view.rollout("mean"))
    assert set(functions(requests)) == {"rollout"}
    before = len(requests)
    page.check(".vv-queries input[value=cls]")
    expect_map(page, view.rollout())
    assert len(requests) == before  # that row is here already
    page.click(".vv-rollout summary")
    page.select_option("[data-key=fuse]", "min")
    slide(page, "start", 2)
    expect_map(page, view.rollout(fuse="min", start=1))
    page.check("input[data-key=direction][value=column]")
    expect(page.locator(".vv-explore .vv-below")).to_contain_text("only what a query attends to")
