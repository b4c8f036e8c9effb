"""The lecture in a browser, offline: the whole path, both languages, and numbers that are the model's own and add up.

What the page's scripts make of the lecture's files is held by tests/js/lecture.test.mjs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest
import viewer_pages
from browsing import new_page
from js_vectors import BLOCK, HEAD, PATCH, head_tensors
from patience import wait_until
from playwright.sync_api import Browser, Page, expect
from running import axe
from scipy.stats import rankdata, spearmanr
from viewer_pages import SCENE, rest, write

from vitviz.view import View
from vitviz.web.lecture import lecture_texts

STAGES = 8
HALF = 2e-3


@pytest.fixture(scope="module")
def view() -> View:
    return viewer_pages.view()


@pytest.fixture(scope="module")
def saved(browser: Browser, view: View, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The lecture as a file, with nothing else to ask."""
    with new_page(browser, viewport={"width": 1920, "height": 1080}, offline=True) as page:
        page.goto(write(tmp_path_factory.mktemp("lecture"), view.html(lecture=True)) + "?tab=lecture")
        page.wait_for_function(f"{SCENE}?.answers.complete")
        page.click("[role=tab][data-tab=lecture]")
        yield page


def turn(page: Page, step: int) -> None:
    """Wait until a step is on the screen with its numbers."""
    expect(page.locator(".vv-tensors [aria-current]")).to_have_attribute("data-step", str(step))
    expect(page.locator(".vv-step:visible")).to_have_attribute("data-of", str(step))
    expect(page.locator(".vv-waits")).to_be_hidden()
    rest(page)


def go(page: Page, step: int) -> None:
    page.click(f".vv-lecture button[data-step='{step}']")
    turn(page, step)


def choose(page: Page, query: tuple[int, int]) -> None:
    page.evaluate("query => vitviz.store.dispatch({ type: 'change', change: { query } })", list(query))
    rest(page)


def shown(page: Page, selector: str) -> str:
    return page.locator(f".vv-step:visible {selector}").first.inner_text()


def number(text: str) -> float:
    return float(text.replace("\N{MINUS SIGN}", "-").replace(" %", "").strip())


def test_the_whole_path_with_the_models_own_numbers(saved: Page, view: View) -> None:
    page, side = saved, view.model.config.patch_size
    texts = lecture_texts()["en"]
    go(page, 1)
    expect(page.locator("[role=tab]")).to_have_text(["Explore", "Lecture"])
    for step in range(1, STAGES + 1):
        turn(page, step)
        expect(page.locator(".vv-text h2")).to_have_text(texts[step - 1]["title"])
        assert shown(page, "").strip()
        assert axe(page) == []
        for width in (390, 1920):
            page.set_viewport_size({"width": width, "height": 1080})
            rest(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, step
        page.keyboard.press("PageDown")  # as a presenter's remote does; stays at the last one
    turn(page, STAGES)
    for step in range(STAGES - 1, 1, -1):
        page.keyboard.press("ArrowLeft" if step % 2 else "PageUp")
        turn(page, step)
    # A click on a patch, and every step is about it.
    page.locator(".vv-step:visible .vv-picture").first.focus()
    page.keyboard.press("ArrowRight")  # moves the patch, not the step
    turn(page, 2)
    choose(page, PATCH)
    assert f"row {PATCH[0] + 1}, column {PATCH[1] + 1}" in shown(page, "h3.vv-which")
    page.click("[data-go='-1']")
    turn(page, 1)
    middle = [place * side + side // 2 for place in PATCH]
    for channel, said in enumerate(page.locator(".vv-sums tbody td:last-child").all_inner_texts()):
        assert number(said) == pytest.approx(float(view.images[0, channel, middle[0], middle[1]]), abs=6e-4)
    go(page, 3)
    page.locator(".vv-bars-of").focus()
    page.keyboard.press("ArrowRight")  # another filter, not another step
    rest(page)
    turn(page, 3)
    chosen = int(page.locator(".vv-bars-of").get_attribute("aria-valuenow") or 0) - 1
    box = [slice(place * side, (place + 1) * side) for place in PATCH]
    weight, bias = view.model.patch_embed.proj.weight[chosen], view.model.patch_embed.proj.bias
    assert bias is not None
    own = float(((weight * view.images[0, :, box[0], box[1]]).sum() + bias[chosen]).detach())
    assert number(shown(page, ".vv-adds").rsplit("=", 1)[1]) == pytest.approx(own, abs=5e-3)
    # Kinds of heads, counted: every head has one.
    go(page, 6)
    expect(page.locator(".vv-kinds b").first).not_to_have_text("…")
    assert sum(map(int, page.locator(".vv-kinds b").all_inner_texts())) == view.trace.depth * view.trace.heads


def test_everything_is_in_chinese_too(saved: Page) -> None:
    page = saved
    page.click("[data-do=lang]")
    expect(page.locator("[role=tab]")).to_have_text(["探索", "课堂"])
    assert page.evaluate("document.documentElement.lang") == "zh"
    texts = lecture_texts()["zh"]
    for step in range(1, STAGES + 1):
        go(page, step)
        expect(page.locator(".vv-text h2")).to_have_text(texts[step - 1]["title"])
        page.click(".vv-question summary")
        expect(page.locator(".vv-question > div")).to_be_visible()
        for heading in page.locator(".vv-step:visible h3:visible").all_inner_texts():
            assert any("\u4e00" <= letter <= "\u9fff" for letter in heading), heading
    page.click("[data-do=lang]")
    expect(page.locator("[role=tab]")).to_have_text(["Explore", "Lecture"])


def test_every_number_of_step_5_is_the_models_and_adds_up(saved: Page, view: View) -> None:
    choose(saved, PATCH)
    go(saved, 5)
    saved.select_option(".vv-step [data-ask=layer]", label=str(BLOCK + 1))
    saved.select_option(".vv-step [data-ask=head]", label=str(HEAD + 1))
    queries, keys, values = head_tensors(view, BLOCK, HEAD)
    token = len(view.trace.prefix) + PATCH[0] * view.trace.grid[1] + PATCH[1]
    dots = keys @ queries[token]
    scaled = dots / np.sqrt(view.trace.head_width)
    weights = np.exp(scaled) / np.exp(scaled).sum()
    best = int(weights.argmax())
    row = saved.locator(f".vv-table-sum tr:has([data-token='{best}'])")
    expect(row).to_have_class("vv-looked")  # the strongest token is looked at first
    near = HALF * np.abs(dots).max() + 0.005
    found = saved.evaluate("""() => [...document.querySelectorAll('.vv-table-sum tbody tr')].map((row) => (
        [row.querySelector('button')?.dataset.token ?? null,
            ...[...row.cells].slice(1).map((cell) => cell.textContent)]))""")
    assert {int(one) for one, *_ in found if one is not None} == set(np.argsort(-weights)[: len(found) - 1])
    for one, *cells in found[:-1]:
        n = int(one)
        dot, root, power, share = map(number, cells)
        assert (dot, root) == pytest.approx((dots[n], scaled[n]), abs=near)
        assert power == pytest.approx(np.exp(scaled[n] - scaled.max()), abs=near)
        assert share == pytest.approx(100 * weights[n], abs=0.02 + 100 * HALF)
    last = saved.locator(".vv-table-sum tfoot td").all_text_contents()
    assert number(last[-1]) == pytest.approx(100)
    assert sum(number(one[-1]) for one in found) == pytest.approx(100)
    assert sum(number(one[-2]) for one in found) == pytest.approx(number(last[-2]))

    other = int(found[2][0])  # another token is looked at, and another number, by keyboard
    saved.locator(f".vv-table-sum [data-token='{other}']").focus()
    for strip in (".vv-q", ".vv-z"):
        saved.locator(strip).focus()
        saved.keyboard.press("ArrowRight")
        expect(saved.locator(strip)).to_have_attribute("aria-valuenow", "2")
    expect(saved.locator(f".vv-table-sum tr:has([data-token='{other}'])")).to_have_class("vv-looked")
    for place, expected, far in (("dot", dots[other], near), ("value", (weights @ values)[1], 0.01)):
        text = saved.locator(f".vv-sum:has([data-sum={place}])").inner_text()
        assert number(saved.locator(f"[data-sum={place}]").inner_text()) == pytest.approx(expected, abs=far)
        terms = re.sub(r"\(.*?\)", "", text.splitlines()[-1].replace("−", "-")).split("=")[1].replace(" ", "")
        assert sum(map(float, re.findall(r"[+-]?[\d.]+", terms))) == pytest.approx(expected, abs=far)
    product = queries[token][1] * keys[other][1]
    text = saved.locator(".vv-dot-sum").inner_text().splitlines()[0]
    assert number(text.split("=")[-1]) == pytest.approx(product, abs=2 * HALF * np.abs(queries * keys).max())
    assert saved.locator(".vv-q").get_attribute("aria-valuetext") is not None


def test_step_7_reads_the_classes_after_each_layer(saved: Page, view: View) -> None:
    go(saved, 7)
    lens = view.lens(view.best(4))
    for block in (0, 2):
        saved.click(f".vv-afters [data-layer='{block}']")
        best = lens.probabilities[block, list(lens.classes)]
        expected = 100 * np.append(best, 1 - best.sum())

        def shares() -> list[float]:
            return [number(one) for one in saved.locator(".vv-shares [data-share]").all_text_contents()]

        wait_until(lambda: np.allclose(shares(), expected, rtol=0, atol=0.02), f"the shares of layer {block + 1}")  # noqa: B023
        assert sum(shares()) == pytest.approx(100)


def test_step_8_finds_where_two_maps_of_this_picture_disagree(saved: Page, view: View) -> None:
    go(saved, 8)
    maps = [view.explain("rollout"), view.explain("gae", view.best(1)[0])]
    first, second = (one.values.ravel() for one in maps)
    ranks = [rankdata(-np.array([float(f"{value:.5g}") for value in one])) for one in (first, second)]
    expect(saved.locator(".vv-alike")).to_contain_text(f"{spearmanr(*ranks).statistic:.2f}".replace("-", "−"))
    for place, patch in enumerate((np.argmax(ranks[1] - ranks[0]), np.argmin(ranks[1] - ranks[0])), 1):
        row, column = divmod(int(patch), view.trace.grid[1])
        words = (
            f"Patch {place}, row {row + 1}, column {column + 1}: number {int(ranks[0][patch] + 0.5)} of {first.size}"
        )
        expect(saved.locator(".vv-apart ol")).to_contain_text(words)
    tests = view.faithfulness(maps, view.best(1)[0])
    expect(saved.locator(".vv-areas")).to_contain_text(f"rollout {tests[0].insertion.area:.2f}")
    expect(saved.locator(".vv-step:not([hidden]) .vv-chart polyline")).to_have_count(3)
