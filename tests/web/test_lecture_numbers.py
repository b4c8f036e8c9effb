"""The numbers that the lecture shows are the model's own and add up: a saved page, from disk and without a network.

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
from scipy.stats import rankdata, spearmanr

from vitviz.view import View

HALF = 2e-3


@pytest.fixture(scope="module")
def view() -> View:
    return viewer_pages.view()


@pytest.fixture(scope="module")
def saved(browser: Browser, view: View, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with new_page(browser, viewport={"width": 1920, "height": 1080}, offline=True) as page:
        page.goto(viewer_pages.write(tmp_path_factory.mktemp("saved"), view.html(lecture=True)))
        page.click("[role=tab][data-tab=lecture]")
        page.evaluate("(query) => vitviz.store.dispatch({ type: 'change', change: { query } })", PATCH)
        yield page


def shown_number(text: str) -> float:
    """A number as the page writes it, after the last equals sign."""
    return float(text.replace("−", "-").replace(" %", "").strip())


def step(page: Page, number: int) -> None:
    page.click(f".vv-lecture button[data-step='{number}']")


def test_every_number_of_step_5_is_the_models_and_adds_up(saved: Page, view: View) -> None:
    step(saved, 5)
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
        dot, root, power, share = map(shown_number, cells)
        assert (dot, root) == pytest.approx((dots[n], scaled[n]), abs=near)
        assert power == pytest.approx(np.exp(scaled[n] - scaled.max()), abs=near)
        assert share == pytest.approx(100 * weights[n], abs=0.02 + 100 * HALF)
    last = saved.locator(".vv-table-sum tfoot td").all_text_contents()
    assert shown_number(last[-1]) == pytest.approx(100)
    assert sum(shown_number(one[-1]) for one in found) == pytest.approx(100)
    assert sum(shown_number(one[-2]) for one in found) == pytest.approx(shown_number(last[-2]))

    other = int(found[2][0])  # another token is looked at, and another number, by keyboard
    saved.locator(f".vv-table-sum [data-token='{other}']").focus()
    for strip in (".vv-q", ".vv-z"):
        saved.locator(strip).focus()
        saved.keyboard.press("ArrowRight")
        expect(saved.locator(strip)).to_have_attribute("aria-valuenow", "2")
    expect(saved.locator(f".vv-table-sum tr:has([data-token='{other}'])")).to_have_class("vv-looked")
    for place, expected, far in (("dot", dots[other], near), ("value", (weights @ values)[1], 0.01)):
        text = saved.locator(f".vv-sum:has([data-sum={place}])").inner_text()
        assert shown_number(saved.locator(f"[data-sum={place}]").inner_text()) == pytest.approx(expected, abs=far)
        terms = re.sub(r"\(.*?\)", "", text.splitlines()[-1].replace("−", "-")).split("=")[1].replace(" ", "")
        assert sum(map(float, re.findall(r"[+-]?[\d.]+", terms))) == pytest.approx(expected, abs=far)
    product = queries[token][1] * keys[other][1]
    text = saved.locator(".vv-dot-sum").inner_text().splitlines()[0]
    assert shown_number(text.split("=")[-1]) == pytest.approx(product, abs=2 * HALF * np.abs(queries * keys).max())
    assert saved.locator(".vv-q").get_attribute("aria-valuetext") is not None


def test_step_7_reads_the_classes_after_each_layer(saved: Page, view: View) -> None:
    step(saved, 7)
    lens = view.lens(view.best(4))
    for block in (0, 2):
        saved.click(f".vv-afters [data-layer='{block}']")
        best = lens.probabilities[block, list(lens.classes)]
        expected = 100 * np.append(best, 1 - best.sum())

        def shares() -> list[float]:
            return [shown_number(one) for one in saved.locator(".vv-shares [data-share]").all_text_contents()]

        wait_until(lambda: np.allclose(shares(), expected, rtol=0, atol=0.02), f"the shares of layer {block + 1}")  # noqa: B023
        assert sum(shares()) == pytest.approx(100)


def test_step_8_finds_where_two_maps_of_this_picture_disagree(saved: Page, view: View) -> None:
    step(saved, 8)
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
