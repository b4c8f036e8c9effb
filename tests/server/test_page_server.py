"""What the explorer on the page asks the server, and what it does not: rollout, large inputs, no request for a move."""

import re

import pytest
import tiny
from playwright.sync_api import Page as Browser
from playwright.sync_api import Request, expect
from running import (
    CHURCH,
    DOG,
    Running,
    at_patch,
    click_patch,
    complete,
    example,
    expect_map,
    head,
    layer,
)

SIDE = tiny.GRID[1] * tiny.PATCH  # pixels


@pytest.fixture
def opened(opened: Browser) -> Browser:
    """The page as it opens, with everything there."""
    complete(opened)
    return opened


@pytest.fixture
def asked(opened: Browser) -> list[Request]:
    """Every request of the page from now on."""
    requests: list[Request] = []
    opened.on("request", lambda request: requests.append(request))
    return requests


def functions(requests: list[Request]) -> list[str]:
    """The server's functions that were asked."""
    return [one.url.rpartition("/")[2] for one in requests if "/vitviz/" in one.url]


def slide(page: Browser, key: str, value: float) -> None:
    """Move a slider as a hand does."""
    page.locator(f"input[data-key={key}]").evaluate(
        "(input, value) => { input.value = value; input.dispatchEvent(new Event('input', { bubbles: true })); }",
        str(value),
    )


def test_no_request_for_moves_layers_and_heads(opened: Browser, asked: list[Request], app: Running) -> None:
    view = app.view()
    box = opened.locator(".vv-held").first.bounding_box()
    assert box is not None
    drawn = opened.evaluate("vitviz.drawn")
    for step in range(90):
        x, y = step * 0.618 % 1, step * 0.377 % 1
        opened.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
    assert opened.evaluate("vitviz.drawn") > drawn + 30
    for key in "[[[,.,.]]0dcdrgr":
        opened.keyboard.press(key)
    for block in (0, 6, 11):
        layer(opened, block)
    for one in (0, 5, "max", "min"):
        head(opened, one)
    slide(opened, "opacity", 0.8)
    slide(opened, "gamma", 0.5)
    opened.click(".vv-matrix summary")
    click_patch(opened, view, 4, 4)
    opened.wait_for_timeout(700)
    assert [one.url for one in asked] == []
    before = opened.evaluate("vitviz.store.get().scene.id")
    opened.click("[data-do=compare]")
    opened.click("[data-do=compare]")
    opened.wait_for_timeout(700)
    assert functions(asked) == []
    assert opened.evaluate("vitviz.store.get().scene.id") == before


# --- rollout


def test_options_of_rollout_change_the_numbers_to_pythons(opened: Browser, asked: list[Request], app: Running) -> None:
    view = app.view()
    opened.check(".vv-modes input[value=rollout]")
    expect_map(opened, view.rollout())
    assert functions(asked) == []
    opened.click(".vv-rollout summary")
    opened.select_option("[data-key=fuse]", "max")
    expect_map(opened, view.rollout(fuse="max"))
    slide(opened, "discard", 0.5)
    expect_map(opened, view.rollout(fuse="max", discard=0.5))
    slide(opened, "residual", 0.2)
    expect_map(opened, view.rollout(fuse="max", discard=0.5, residual=0.2))
    slide(opened, "start", 4)
    options = {"fuse": "max", "discard": 0.5, "residual": 0.2, "start": 3}
    expect_map(opened, view.rollout(**options))
    once = len(functions(asked))
    assert once <= 4
    click_patch(opened, view, 6, 3)  # from every patch, without asking again
    expect_map(opened, view.rollout((6, 3), **options))
    assert len(functions(asked)) == once
    example(opened, "Dog")
    opened.keyboard.press("Escape")
    expect(opened.locator("#badge")).to_contain_text("14 x 18")
    opened.check(".vv-queries input[value=cls]")
    expect_map(opened, app.view(DOG).rollout(**options))


def finer(page: Browser, index: int) -> None:
    page.locator("#size select").select_option(index=index)


def test_rollout_of_many_patches_comes_row_by_row(
    opened: Browser, asked: list[Request], app: Running, small: str
) -> None:
    opened.select_option("#model select", small)
    expect_map(opened, app.view(model=small).attention())
    finer(opened, 2)
    view = app.view(CHURCH, small, 4 * SIDE)
    assert view.trace.tokens.shape[1] > 600
    expect_map(opened, view.attention())
    complete(opened)
    asked.clear()
    opened.check(".vv-modes input[value=rollout]")
    expect_map(opened, view.rollout())
    opened.mouse.move(*at_patch(opened, view, 20, 30))
    expect_map(opened, view.rollout((20, 30)))
    opened.check(".vv-queries input[value=mean]")
    opened.mouse.move(5, 5)
    expect_map(opened, view.rollout("mean"))
    assert set(functions(asked)) == {"rollout"}
    before = len(asked)
    opened.check(".vv-queries input[value=cls]")
    expect_map(opened, view.rollout())
    assert len(asked) == before  # that row is here already
    opened.click(".vv-rollout summary")
    opened.select_option("[data-key=fuse]", "min")
    slide(opened, "start", 2)
    expect_map(opened, view.rollout(fuse="min", start=1))


def test_who_attends_by_rollout_is_told_to_be_too_much(opened: Browser, app: Running, small: str) -> None:
    opened.select_option("#model select", small)
    expect_map(opened, app.view(model=small).attention())
    finer(opened, 2)
    expect_map(opened, app.view(CHURCH, small, 4 * SIDE).attention())
    opened.check(".vv-modes input[value=rollout]")
    opened.check("input[data-key=direction][value=column]")
    expect(opened.locator(".vv-explore .vv-below")).to_contain_text("only what a query attends to")
    opened.check("input[data-key=direction][value=row]")
    expect_map(opened, app.view(CHURCH, small, 4 * SIDE).rollout())


def test_thousands_of_patches_are_answered(opened: Browser, app: Running, small: str) -> None:
    opened.select_option("#model select", small)
    expect_map(opened, app.view(model=small).attention())
    finer(opened, 3)
    view = app.view(CHURCH, small, 8 * SIDE)
    assert view.trace.grid == (8 * tiny.GRID[0], 8 * tiny.GRID[1])  # 4,928
    expect_map(opened, view.attention())
    expect(opened.locator("#badge")).to_contain_text("56 x 88 patches")
    opened.mouse.move(*at_patch(opened, view, 40, 70))
    expect_map(opened, view.attention(query=(40, 70)))
    click_patch(opened, view, 3, 80)
    head(opened, 4)
    layer(opened, 0)
    expect_map(opened, view.attention(0, 4, (3, 80)))
    expect(opened.locator("#size option:checked")).to_have_text(re.compile("8 x · 4,928 patches"))
