"""The numbers behind the lecture are the model's own, and what the page makes of them adds up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tiny
import torch
import viewer_pages
from conftest import watch
from numpy.typing import NDArray
from playwright.sync_api import Browser, Page, expect
from scipy.stats import rankdata, spearmanr
from viewer_js import Answer, Script

from vitviz.analysis.filters import position_similarity
from vitviz.explorer import Explorer
from vitviz.model.positions import rotary_angles, sincos_positions
from vitviz.view import View
from vitviz.web.numbers import lecture_bytes, values_bytes
from vitviz.web.payload import block_bytes

MODULE, HALF = "compute/lecture", 2e-3
BLOCK, HEAD, PATCH = 1, 3, (2, 5)


def own(view: View, block: int, head: int) -> tuple[NDArray[Any], ...]:
    """Return queries before the scale, keys and values (N, d) of a head, from the model's weights alone."""
    layer, (heads, width) = view.model.blocks[block], (view.trace.heads, view.trace.head_width)
    stream = view.trace.stream(block)[0].double().numpy()  # (N, D)
    norm, qkv = layer.norm1, layer.attn.qkv
    gamma, beta, weight, bias = (t.detach().double().numpy() for t in (norm.weight, norm.bias, qkv.weight, qkv.bias))
    centerd = stream - stream.mean(1, keepdims=True)
    normed = centerd / np.sqrt((centerd**2).mean(1, keepdims=True) + norm.eps) * gamma + beta
    every = (normed @ weight.T + bias).reshape(len(stream), 3, heads, width)  # (N, 3, H, d)
    return tuple(every[:, part, head] for part in range(3))


@pytest.fixture(scope="module")
def view() -> View:
    return viewer_pages.view()


@pytest.fixture(scope="module")
def told(view: View) -> dict[str, Answer]:
    """What the modules of the page make of the files, in one run of Node."""
    script, grid = Script(), view.trace.grid
    lecture = script.call(MODULE, "parseLecture", lecture_bytes(view))
    block = script.call("compute/payload", "parseBlock", block_bytes(view.trace, BLOCK))
    values = script.call(MODULE, "parseValues", values_bytes(view.model, view.trace, BLOCK))
    token = len(view.trace.prefix) + PATCH[0] * grid[1] + PATCH[1]
    head = script.call(MODULE, "attend", block, values, HEAD, token)
    positions = lecture.part("positions")
    answers = {
        "lecture": lecture,
        "losses": script.call(MODULE, "losses", lecture),
        "product": script.call(MODULE, "filterProduct", lecture, PATCH, 4),
        "embedded": script.call(MODULE, "embed", lecture, PATCH),
        "map": script.call(MODULE, "filterMap", lecture, 4),
        "similar": script.call(MODULE, "positionSimilarity", positions, PATCH[0] * grid[1] + PATCH[1]),
        "sines": script.call(MODULE, "sinePositions", grid, 20),
        "head": head,
        "terms": script.call(MODULE, "dotTerms", head, 7),
        "given": script.call(MODULE, "sumTerms", head, 5),
        "largest": script.call(MODULE, "largest", np.array([0.5, -3.0, 1.0, 2.0]), 2),
        "rounded": script.call(MODULE, "roundedToSum", [1 / 3, 1 / 3, 1 / 3, -0.126], 2),
        "tiny rest": script.call(MODULE, "roundedToSum", [0.496, 0.246, 0.256, 0.002], 2),
        "apart": script.call(MODULE, "disagreement", np.array([9.0, 8, 7, 6]), np.array([1.0, 3, 4, 2])),
    }
    script.run()
    return answers


def test_pixels_are_the_models_input_to_the_bit(view: View, told: dict[str, Answer]) -> None:
    found = told["lecture"].value
    assert np.array_equal(found["pixels"], view.images.numpy().ravel())
    (height, width), (rows, columns) = view.size, view.trace.grid
    assert (found["input"], found["grid"]) == ([height, width], [rows, columns])
    left, top, right, bottom = view.geometry.frame
    seen = (min(right, view.photo.width) - max(left, 0)) * (min(bottom, view.photo.height) - max(top, 0))
    lost = told["losses"].value
    assert lost["kept"] == pytest.approx(seen / (view.photo.width * view.photo.height), abs=0.02)
    assert lost["scale"][0] == pytest.approx(width / (right - left))


def test_filters_make_the_models_tokens(view: View, told: dict[str, Answer]) -> None:
    with torch.no_grad():
        expected = view.model.patch_embed(view.images)[0].unflatten(0, view.trace.grid).numpy()  # (gh, gw, D)
    np.testing.assert_allclose(told["embedded"].value, expected[PATCH], atol=HALF)
    np.testing.assert_allclose(told["map"].value, expected[..., 4].ravel(), atol=HALF)
    product = told["product"].value
    assert product["sum"] == pytest.approx(product["terms"].sum() + product["bias"])
    assert product["sum"] == pytest.approx(told["embedded"].value[4])


def test_positions_and_prefix_tokens_are_the_models(view: View, told: dict[str, Answer]) -> None:
    cosines = position_similarity(view.model, view.trace.grid)[PATCH]
    np.testing.assert_allclose(told["similar"].value, cosines.ravel(), atol=HALF)
    np.testing.assert_allclose(told["sines"].value["table"], sincos_positions(view.trace.grid, 20).ravel(), atol=1e-5)
    tokens = view.trace.stream(0)[0, : len(view.trace.prefix)].numpy()
    np.testing.assert_allclose(told["lecture"].value["prefix"].reshape(tokens.shape), tokens, atol=1e-6)


def test_a_head_is_the_models_and_adds_up(view: View, told: dict[str, Answer]) -> None:
    queries, keys, values = own(view, BLOCK, HEAD)
    token = len(view.trace.prefix) + PATCH[0] * view.trace.grid[1] + PATCH[1]
    found = told["head"].value
    dots = keys @ queries[token]  # (N, d) @ (d,) -> (N,)
    scaled = dots / np.sqrt(view.trace.head_width)
    weights = np.exp(scaled) / np.exp(scaled).sum()
    np.testing.assert_allclose(found["query"], queries[token], atol=HALF * np.abs(queries).max())
    np.testing.assert_allclose(found["dots"], dots, atol=HALF * np.abs(dots).max())
    np.testing.assert_allclose(found["weights"], weights, atol=HALF)
    np.testing.assert_allclose(found["weights"], view.trace.row(BLOCK, token)[0, HEAD].numpy(), atol=HALF)
    np.testing.assert_allclose(found["sum"], weights @ values, atol=2 * HALF * np.abs(values).max())
    assert found["weights"].sum() == pytest.approx(1)
    assert found["powers"].sum() == pytest.approx(found["total"])
    assert told["terms"].value.sum() == pytest.approx(found["dots"][7])
    assert told["given"].value.sum() == pytest.approx(found["sum"][5])


def test_what_is_not_shown_alone_is_summed_and_maps_are_compared_by_rank(told: dict[str, Answer]) -> None:
    assert told["largest"].value == {"best": [1, 3], "rest": 1.5, "others": 2}
    assert sum(told["rounded"].value) == pytest.approx(0.87)
    assert list(told["rounded"].value) == [0.33, 0.33, 0.33, -0.12]  # each as it is everywhere, but the rest
    assert list(told["tiny rest"].value) == [0.49, 0.25, 0.26, 0.0]  # none below zero
    apart = told["apart"].value
    assert (apart["over"], apart["under"]) == (0, 2)
    assert list(apart["first"]) == [1, 2, 3, 4]
    assert list(apart["second"]) == [4, 2, 1, 3]
    assert apart["correlation"] == pytest.approx(-0.4)


def test_what_a_model_does_not_have_is_said() -> None:
    script, lectures = Script(), []
    for positions in ("none", "rotary"):
        model = tiny.model(positions=positions, head_width=8, class_token=False, pooling="mean", patch_bias=False)
        view = Explorer(model).open(viewer_pages.photograph(200, 170))
        lectures.append(script.call(MODULE, "parseLecture", lecture_bytes(view)))
    similar = script.call(MODULE, "positionSimilarity", lectures[1].part("positions"), 9)
    script.run()
    for found in (one.value for one in lectures):
        assert "no tokens" in found["missing"]["prefix"]
        assert (len(found["prefix"]), np.abs(found["bias"]).max()) == (0, 0)
    assert lectures[0].value["positions"] is None
    assert lectures[0].value["missing"]["positions"]
    cos, sin = (one.numpy() for one in rotary_angles(view.trace.grid, 8, model.config.rotary_base))
    turned = np.arctan2(sin, cos)
    np.testing.assert_allclose(similar.value, np.cos(turned - turned[9]).mean(1), atol=HALF)


# ---- what the page shows of them: a saved page with the lecture, from disk and without a network


@pytest.fixture(scope="module")
def saved(browser: Browser, view: View, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1920, "height": 1080}, offline=True)
    problems = watch(context)
    page = context.new_page()
    page.goto(viewer_pages.write(tmp_path_factory.mktemp("saved"), view.html(lecture=True)))
    page.click("[role=tab][data-tab=lecture]")
    page.evaluate("(query) => vitviz.store.dispatch({ type: 'change', change: { query } })", PATCH)
    yield page
    context.close()
    assert not problems


def shown_number(text: str) -> float:
    """A number as the page writes it, after the last equals sign."""
    return float(text.replace("−", "-").replace(" %", "").strip())


def step(page: Page, number: int) -> None:
    page.click(f".vv-lecture button[data-step='{number}']")


def test_every_number_of_step_5_is_the_models_and_adds_up(saved: Page, view: View) -> None:
    step(saved, 5)
    saved.select_option(".vv-step [data-ask=layer]", label=str(BLOCK + 1))
    saved.select_option(".vv-step [data-ask=head]", label=str(HEAD + 1))
    queries, keys, values = own(view, BLOCK, HEAD)
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
        expect(saved.locator(".vv-shares [data-share='0']")).to_have_text(re.compile(rf"^{100 * best[0]:.0f}|\."))
        shares = [shown_number(one) for one in saved.locator(".vv-shares [data-share]").all_text_contents()]
        np.testing.assert_allclose(shares, 100 * np.append(best, 1 - best.sum()), atol=0.02)
        assert sum(shares) == pytest.approx(100)


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
