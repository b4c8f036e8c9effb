"""Test the lecture in a browser, offline: all steps in both languages, with numbers that match the model and add up.

A lecturer's texts replace the built-in texts, and formulas become MathML that contains only allowed elements.

tests/js/lecture.test.mjs tests how the page's scripts read the lecture's files.
"""

import io
import itertools
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pypdf
import pytest
import viewer_pages
from browsing import new_page, speak
from exercise_answers import exercise_answers
from js_vectors import BLOCK, HEAD, PATCH, head_tensors
from numpy.typing import NDArray
from patience import wait_until
from playwright.sync_api import Browser, Page, expect
from running import axe
from safetensors.numpy import load
from scipy.stats import rankdata, spearmanr
from viewer_pages import SCENE, ask, rest, write

from vitviz.lecture.exercises import CHOICES, TOLERANCES, exercise_texts
from vitviz.lecture.numbers import planted_bytes, token_bytes
from vitviz.lecture.texts import FILES, MATHML, STEPS, LectureError, lecture_texts
from vitviz.model.registers import norm_outliers
from vitviz.view import View
from vitviz.web.languages import LANGUAGES

STAGES = len(STEPS)
HALF = 2e-3
EXERCISES = "vitviz.panels.find((view) => view.exercises).exercises.exercises"


@pytest.fixture(scope="module")
def view() -> View:
    return viewer_pages.view()


@pytest.fixture(scope="module")
def saved(browser: Browser, view: View, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """Yield a page that shows the lecture from a file, without a server."""
    with new_page(browser, viewport={"width": 1920, "height": 1080}, offline=True) as page:
        page.goto(write(tmp_path_factory.mktemp("lecture"), view.html(lecture=True)) + "?tab=lecture")
        page.wait_for_function(f"{SCENE}?.answers.complete")
        page.click("[role=tab][data-tab=lecture]")
        yield page


def turn(page: Page, step: int) -> None:
    """Wait until a step shows its numbers."""
    expect(page.locator(".vv-ribbon [aria-current]")).to_have_attribute("data-step", str(step))
    expect(page.locator(".vv-step:visible")).to_have_attribute("data-of", str(step))
    expect(page.locator(".vv-waits")).to_be_hidden()
    rest(page)


def go(page: Page, name: str) -> None:
    step = STEPS.index(name) + 1
    page.click(f".vv-lecture button[data-step='{step}']")
    turn(page, step)
    page.wait_for_function("document.getAnimations().length === 0")


def shown(page: Page, selector: str) -> str:
    return page.locator(f".vv-step:visible {selector}").first.inner_text()


def number(text: str) -> float:
    return float(text.replace("\N{MINUS SIGN}", "-").replace("%", "").strip())


def check_widths(page: Page, step: int) -> None:
    """Check that a step fits a phone, a laptop and a projector; a phone's ribbon has no numbers, so it comes first."""
    for width in (390, 1280, 1920):
        page.set_viewport_size({"width": width, "height": 1080})
        rest(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, step


def near_shares(view: View) -> NDArray[np.float64]:
    """Return the sums of attention to the patches around nine patches, in the first third of the layers: (l, H)."""
    (rows, columns), prefix = view.trace.grid, len(view.trace.prefix)
    shares = np.zeros((-(-view.trace.depth // 3), view.trace.heads))
    for (block, _), r, c in itertools.product(np.ndenumerate(shares[:, 0]), (1, 2, 3), (1, 2, 3)):
        row, column = r * rows // 4, c * columns // 4
        weights = view.trace.row(block[0], (row, column))[0, :, prefix:].unflatten(1, (rows, columns)).numpy()
        window = weights[:, max(0, row - 1) : row + 2, max(0, column - 1) : column + 2].sum((1, 2))
        shares[block[0]] += window - weights[:, row, column]
    return shares


@pytest.mark.tier("all")
def test_all_steps_show_the_models_numbers(saved: Page, view: View) -> None:
    page = saved
    texts = lecture_texts()["en"]
    go(page, STEPS[0])
    expect(page.locator("[role=tab]")).to_have_text(["Look", "Lecture"])
    for step in range(1, STAGES + 1):
        turn(page, step)
        expect(page.locator(".vv-text h2")).to_have_text(texts[step - 1]["title"])
        assert shown(page, "").strip()
        assert axe(page, within=None if step == 1 else ".vv-lecture") == []
        check_widths(page, step)
        page.keyboard.press("PageDown")  # a presenter's remote sends this key; the last step stays
    turn(page, STAGES)
    for step in range(STAGES - 1, STEPS.index("patches"), -1):
        page.keyboard.press("ArrowLeft" if step % 2 else "PageUp")
        turn(page, step)
    # All steps follow the selected patch.
    page.locator(".vv-step:visible .vv-picture").first.focus()
    page.keyboard.press("ArrowRight")  # the key moves the patch instead of changing the step
    turn(page, STEPS.index("patches") + 1)
    ask(page, query=PATCH)
    assert f"row {PATCH[0] + 1}, column {PATCH[1] + 1}" in shown(page, "h3.vv-which")
    page.click("[data-go='-1']")
    turn(page, STEPS.index("pixels") + 1)
    go(page, "embedding")
    bars = page.locator(".vv-step:visible .vv-bars-of")
    bars.focus()
    page.keyboard.press("ArrowRight")  # the key selects another filter instead of another step
    rest(page)
    turn(page, STEPS.index("embedding") + 1)
    go(page, "attention")  # begins with a local head of an early layer
    shares = near_shares(view)
    block, head = np.unravel_index(shares.argmax(), shares.shape)
    expect(page.locator(".vv-step:visible [data-field=layer]")).to_have_value(str(block))
    expect(page.locator(".vv-step:visible [data-field=head]")).to_have_value(str(head))
    go(page, "heads")
    expect(page.locator(".vv-kinds b").first).not_to_have_text("…")  # every head is classified
    assert sum(map(int, page.locator(".vv-kinds b").all_inner_texts())) == view.trace.depth * view.trace.heads


@pytest.mark.tier("all")
def test_all_steps_are_in_chinese(saved: Page) -> None:
    page = saved
    speak(page, "zh")
    expect(page.locator("[role=tab]")).to_have_text(["看", "讲解"])
    texts = lecture_texts()["zh"]
    for step in range(1, STAGES + 1):
        go(page, STEPS[step - 1])
        expect(page.locator(".vv-text h2")).to_have_text(texts[step - 1]["title"])
        page.click(".vv-question summary")
        expect(page.locator(".vv-question > div")).to_be_visible()
        check_widths(page, step)
        for heading in page.locator(".vv-step:visible h3:visible").all_inner_texts():
            assert any("\u4e00" <= letter <= "\u9fff" for letter in heading), heading
    speak(page, "en")
    expect(page.locator("[role=tab]")).to_have_text(["Look", "Lecture"])


def test_numbers_of_a_head_match_model_and_add_up(saved: Page, view: View) -> None:
    ask(saved, query=PATCH)
    go(saved, "attention")
    saved.select_option(".vv-step:visible [data-field=layer]", label=str(BLOCK + 1))
    saved.select_option(".vv-step:visible [data-field=head]", label=str(HEAD + 1))
    queries, keys, values = head_tensors(view, BLOCK, HEAD)
    token = len(view.trace.prefix) + PATCH[0] * view.trace.grid[1] + PATCH[1]
    dots = keys @ queries[token]
    scaled = dots / np.sqrt(view.trace.head_width)
    weights = np.exp(scaled) / np.exp(scaled).sum()
    best = int(weights.argmax())
    row = saved.locator(f".vv-table-sum tr:has([data-token='{best}'])")
    expect(row).to_have_class("vv-looked")  # the strongest token is selected first
    near = HALF * np.abs(dots).max() + 0.005
    rows = saved.evaluate("""() => [...document.querySelectorAll('.vv-table-sum tbody tr')].map((row) => (
        [row.querySelector('button')?.dataset.token ?? null,
            ...[...row.cells].slice(1).map((cell) => cell.textContent)]))""")
    assert {int(place) for place, *_ in rows if place is not None} == set(np.argsort(-weights)[: len(rows) - 1])
    for place, *cells in rows[:-1]:
        n = int(place)
        dot, root, power, share = map(number, cells)
        assert (dot, root) == pytest.approx((dots[n], scaled[n]), abs=near)
        assert power == pytest.approx(np.exp(scaled[n] - scaled.max()), abs=near)
        assert share == pytest.approx(100 * weights[n], abs=0.02 + 100 * HALF)
    last = saved.locator(".vv-table-sum tfoot td").all_text_contents()
    assert number(last[-1]) == pytest.approx(100)
    assert sum(number(cells[-1]) for cells in rows) == pytest.approx(100)
    assert sum(number(cells[-2]) for cells in rows) == pytest.approx(number(last[-2]))

    other = int(rows[2][0])  # the keyboard selects another token and another channel
    saved.locator(f".vv-table-sum [data-token='{other}']").focus()
    for strip in (".vv-q", ".vv-z"):
        saved.locator(strip).focus()
        saved.keyboard.press("ArrowRight")
        expect(saved.locator(strip)).to_have_attribute("aria-valuenow", "2")
    for place, expected, far in (("dot", dots[other], near), ("value", (weights @ values)[1], 0.01)):
        assert number(saved.locator(f"[data-sum={place}]").inner_text()) == pytest.approx(expected, abs=far)
    saved.locator("[data-do=product]").click()  # one product after another
    saved.locator("[data-do=product]").click()
    rest(saved)
    first = (queries[token] * keys[other])[:2].sum()
    assert number(saved.locator("[data-sum=dot]").inner_text()) == pytest.approx(first, abs=near)


def boxes(page: Page, selector: str) -> list[dict[str, float]]:
    """Return the boxes of all visible elements."""
    return page.evaluate(
        "selector => [...document.querySelectorAll(selector)].filter((one) => one.checkVisibility())"
        ".map((one) => one.getBoundingClientRect().toJSON())",
        selector,
    )


def test_one_column_below_1600_pixels_holds_wide_steps(saved: Page) -> None:
    go(saved, STEPS[0])
    for width, columns in ((1920, 2), (1280, 1)):
        saved.set_viewport_size({"width": width, "height": 720})
        rest(saved)
        assert (boxes(saved, ".vv-steps")[0]["width"] < width - 300) == (columns == 2)
    for name in ("attention", "closing"):
        go(saved, name)
        assert not [box for box in boxes(saved, ".vv-step *:not(svg *)") if box["right"] > 1280], name
    assert min(box["width"] for box in boxes(saved, ".vv-path td:last-child")) > 200
    go(saved, STEPS[0])
    pictures = boxes(saved, ".vv-pair .vv-picture")
    assert [pictures[0][side] for side in ("top", "width", "height")] == [
        pictures[1][side] for side in ("top", "width", "height")
    ]
    saved.set_viewport_size({"width": 1920, "height": 1080})


def test_ribbon_stays_in_view_and_its_parts_open_their_first_step(saved: Page) -> None:
    go(saved, "closing")
    for part, step in (("patches", "patches"), ("layers", "residual"), ("mlp", "mlp"), ("answer", "prediction")):
        saved.click(f"[data-zoom={part}]")
        turn(saved, STEPS.index(step) + 1)
        assert saved.evaluate("document.querySelector('.vv-lit').dataset.of") == part
    expect(saved.locator("[data-of=answer] small")).to_have_text(saved.evaluate(f"{SCENE}.said"))
    saved.set_viewport_size({"width": 1280, "height": 500})
    saved.evaluate("scrollTo(0, 600)")
    expect(saved.locator("[data-zoom=photo]")).to_be_in_viewport(ratio=1)
    saved.click("[data-zoom=photo]")
    expect(saved.locator(".vv-text h2")).to_be_in_viewport(ratio=1)  # the next step begins at its top
    saved.click("[data-path=short]")
    expect(saved.locator(".vv-place")).to_have_text("1 / 8")
    expect(saved.locator("[data-step='2']")).to_be_hidden()
    saved.keyboard.press("l")
    expect(saved.locator(".vv-place")).to_have_text(f"1 / {STAGES}")
    saved.set_viewport_size({"width": 1920, "height": 1080})


def test_what_steps_share_moves_from_one_to_the_next(saved: Page) -> None:
    frames = saved.context.new_cdp_session(saved)
    frames.send("Animation.enable")
    moving = (
        "[...document.getAnimations()].filter(({ effect }) => effect.getTiming().duration === 400)"
        ".map(({ effect }) => effect.target)"
    )
    patch, row, vector = ".vv-patch", ".vv-vector", ".vv-bars-of"
    go(saved, "patches")
    before = [boxes(saved, f".vv-step:not([hidden]) {one}")[0] for one in (patch, row)]
    frames.send("Animation.setPlaybackRate", {"playbackRate": 0})
    saved.keyboard.press("PageDown")
    turn(saved, STEPS.index("embedding") + 1)
    assert saved.evaluate(f"{moving}.length") == 3  # photograph, patch, and the row that becomes a vector
    after = [boxes(saved, f".vv-step:not([hidden]) {one}")[0] for one in (patch, vector)]
    for one, other in zip(before, after, strict=True):
        assert {side: pytest.approx(one[side], abs=1.5) for side in ("left", "top", "width", "height")} == {
            side: other[side] for side in ("left", "top", "width", "height")
        }
    saved.emulate_media(reduced_motion="reduce")
    saved.keyboard.press("PageUp")
    turn(saved, STEPS.index("patches") + 1)
    assert saved.evaluate(f"{moving}.filter((one) => one.checkVisibility()).length") == 0
    saved.emulate_media(reduced_motion="no-preference")
    frames.send("Animation.setPlaybackRate", {"playbackRate": 1})
    frames.detach()


def test_a_guess_is_ranked_among_the_patches(saved: Page, view: View) -> None:
    ask(saved, query=PATCH, block=BLOCK, head=HEAD)
    go(saved, "attention")
    saved.click("[data-do=guess]")
    expect(saved.locator(".vv-guess")).to_contain_text("Click your guess")
    ask(saved, query=PATCH)
    guess = (view.trace.grid[0] - 1, 0)
    saved.mouse.click(*viewer_pages.centre(saved, view, *guess, selector=".vv-step:visible .vv-held"))
    row = view.trace.row(BLOCK, PATCH)[0, HEAD, len(view.trace.prefix) :].numpy()
    place = guess[0] * view.trace.grid[1] + guess[1]
    rank = 1 + int((row > row[place]).sum())
    expect(saved.locator(".vv-guess")).to_contain_text(f"is number {rank} of {row.size}")


def test_parts_of_a_token_add_up_to_the_next_layer(view: View) -> None:
    model, trace = view.model, view.trace
    token = len(trace.prefix) + 5
    for block in range(trace.depth - 1):
        parts, layer = load(token_bytes(model, trace, block, token)), model.blocks[block]
        np.testing.assert_allclose(parts["stream"], trace.stream(block)[0, token], atol=1e-6)
        np.testing.assert_allclose(parts["normed"], layer.norm1(trace.stream(block))[0, token].detach(), atol=1e-5)
        bias = layer.ls1(layer.attn.proj.bias).detach()
        np.testing.assert_allclose(parts["heads"].sum(0) + bias.numpy(), parts["attended"], atol=5 * HALF)
        after = parts["stream"] + parts["attended"] + parts["transformed"]
        np.testing.assert_allclose(after, trace.stream(block + 1)[0, token], atol=5 * HALF)
        assert parts["after"].shape == (model.config.hidden,)


def test_planted_neuron_raises_norms_and_a_register_takes_the_attention(saved: Page, view: View) -> None:
    data = planted_bytes(view)
    facts = json.loads(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]["facts"])
    (norms, attention), places = (load(data)[name].astype(float) for name in ("norms", "attention")), facts["places"]
    prefix, later = len(view.trace.prefix), facts["later"]
    np.testing.assert_allclose(norms[0], view.trace.stream(facts["block"] + 1)[0, prefix:].norm(dim=-1), rtol=1e-5)
    own = view.trace.attention(later)[0].mean((0, 1))[prefix:]
    np.testing.assert_allclose(attention[0], own, rtol=1e-4)
    outliers, _ = norm_outliers(norms, 0)
    assert np.flatnonzero(outliers[1]).tolist() == places
    assert not outliers[2].any()
    taken = attention[:, places].sum(1)
    assert taken[1] > max(2 * taken[0], 2 * taken[2])
    assert facts["register"] > taken[2]
    go(saved, "sinks")
    lit = norms[1, places] / np.sort(norms[1])[norms.shape[1] // 2]
    expect(saved.locator(".vv-norms")).to_contain_text(f"{lit.min():.1f} to {lit.max():.1f} times the median")
    shown_shares = [float(share) for share in re.findall(r"([\d.]+)\s%", shown(saved, ".vv-repaired"))]
    expected = [taken[1], taken[0], taken[2], facts["register"], *facts["classes"][0][1:]]
    assert shown_shares == pytest.approx([100 * share for share in expected], rel=0.05)


def test_prediction_and_explanation_match_lens_and_faithfulness(saved: Page, view: View) -> None:
    go(saved, "prediction")
    lens = view.lens(view.best(4))
    for block in (0, 2):
        saved.click(f".vv-afters [data-layer='{block}']")
        best = lens.probabilities[block, list(lens.classes)]
        expected = 100 * np.append(best, 1 - best.sum())

        def shares() -> list[float]:
            numbers = saved.locator(".vv-step:visible .vv-shares li > span:last-child")
            return [number(text) for text in numbers.all_text_contents()]

        wait_until(lambda: np.allclose(shares(), expected, rtol=0, atol=0.02), f"the shares of layer {block + 1}")  # noqa: B023
        assert sum(shares()) == pytest.approx(100)
    go(saved, "explanation")
    maps = [view.explain("rollout"), view.explain("gae", view.best(1)[0])]
    first, second = (heatmap.values.ravel() for heatmap in maps)
    ranks = [rankdata(-np.array([float(f"{value:.5g}") for value in values])) for values in (first, second)]
    correlation = f"{spearmanr(*ranks).statistic:.2f}".replace("-", "−")
    expect(saved.locator(".vv-step:visible .vv-alike")).to_contain_text(correlation)
    for place, patch in enumerate((np.argmax(ranks[1] - ranks[0]), np.argmin(ranks[1] - ranks[0])), 1):
        row, column = divmod(int(patch), view.trace.grid[1])
        words = f"Patch {place}, row {row + 1}, column {column + 1}: rank {int(ranks[0][patch] + 0.5)} of "
        expect(saved.locator(".vv-apart ol")).to_contain_text(f"{words}{first.size} in rollout")
    tests = view.faithfulness(maps, view.best(1)[0])
    expect(saved.locator(".vv-areas")).to_contain_text(f"rollout {tests[0].insertion.area:.2f}")
    expect(saved.locator(".vv-step:not([hidden]) .vv-chart polyline")).to_have_count(4)


def answer(page: Page, view: View, kind: str, value: float) -> str:
    """Answer an exercise on the page, and return the verdict."""
    form = page.locator(f".vv-exercises form[data-kind={kind}]")
    if kind == "number":
        form.locator("input").fill(f"{value:,.9f}")
    elif kind == "choice":
        form.locator("input").nth(int(value)).check()
    else:
        left, top, right, bottom = view.geometry.patch_box(*divmod(int(value), view.trace.grid[1]), view.trace.grid)
        box = form.locator(".vv-held").bounding_box()
        zoom = box["width"] / view.photo.width
        form.locator(".vv-held").click(position={"x": (left + right) / 2 * zoom, "y": (top + bottom) / 2 * zoom})
    form.locator("[data-word=check]").click()
    return form.locator(".vv-verdict").inner_text()


@pytest.mark.tier("all")
def test_the_page_checks_every_exercise_against_the_model(saved: Page, view: View) -> None:
    page = saved
    for step, expected in exercise_answers(view).items():
        go(page, step)
        page.click(".vv-exercises summary")
        given = exercise_texts("en")[step]
        kinds = {*expected, *(("choice",) if step in CHOICES else ())}  # others need a captioner
        texts = {kind: text for kind, text in given.items() if kind in kinds}
        page.wait_for_function(f"{EXERCISES}.length === {len(texts)}")
        for own in page.evaluate(EXERCISES):
            kind, right = own["kind"], expected.get(own["kind"], CHOICES.get(step))
            accepted = [right]
            if kind == "patch":
                least = np.nanmax(right) - TOLERANCES["patch"] * np.ptp(right[~np.isnan(right)])
                accepted = np.flatnonzero(right >= least).tolist()
                assert own["answer"] == int(np.nanargmax(right)), step
                assert own["accepted"] == accepted, step
            else:
                assert own["answer"] == pytest.approx(right, rel=HALF), (step, kind)
            for language in LANGUAGES:  # every placeholder has a value
                text = exercise_texts(language)[step][kind]
                assert len(text["choices"]) == len(texts[kind]["choices"])
                places = re.findall(r"\{(\d)\}", text["question"] + text["solution"])
                assert max(map(int, places), default=-1) < len(own["values"]), (step, kind, language)
            if step == STEPS[0]:
                patches = view.trace.grid[0] * view.trace.grid[1]
                wrong = {
                    "number": own["answer"] + 1.5 * own["tolerance"],
                    "choice": (own["answer"] + 1) % 2,
                    "patch": next(patch for patch in range(patches) if patch not in accepted),
                }[kind]
                assert answer(page, view, kind, wrong).startswith("Not yet")
            assert answer(page, view, kind, own["answer"]).startswith("Right.")
        if step == STEPS[0]:
            assert axe(page, within=".vv-exercises") == []


def test_all_exercises_print_with_solutions_on_later_pages(saved: Page) -> None:
    go(saved, STEPS[0])
    saved.locator(".vv-exercises").evaluate("fold => { fold.open = true; }")
    saved.evaluate("window.print = () => {}")  # headless browsers have no dialogue
    saved.get_by_role("button", name="Print all exercises").click()
    saved.wait_for_selector(".vv-printed", state="attached")
    pdf = pypdf.PdfReader(io.BytesIO(saved.pdf()))
    pages = [" ".join(normalize("NFKC", page.extract_text()).split()) for page in pdf.pages]  # without ligatures
    (second,) = (place for place, text in enumerate(pages) if text.startswith("Solutions"))
    questions, solutions = " ".join(pages[:second]), " ".join(pages[second:])
    texts = [
        text
        for step, kinds in exercise_texts("en").items()
        for kind, text in kinds.items()
        if (step, kind) != ("words", "number")  # the model has no captioner
    ]
    for part, name in ((questions, "question"), (solutions, "solution")):
        # Compare the longest piece without numbers.
        pieces = [normalize("NFKC", max(re.split(r"\{\d\}", text[name]), key=len).strip()) for text in texts]
        assert [piece for piece in pieces if piece not in part] == []
    assert "Print all exercises" not in questions
    expect(saved.locator(".vv-printed")).to_have_count(0)  # removed afterwards


def test_one_steps_exercises_print_in_chinese(saved: Page, view: View) -> None:
    go(saved, "positions")
    saved.locator(".vv-exercises").evaluate("fold => { fold.open = true; }")
    speak(saved, "zh")
    try:
        saved.emulate_media(media="print")
        saved.evaluate("dispatchEvent(new Event('beforeprint'))")
        sheet = saved.locator(".vv-printed")
        expect(sheet.locator("h2").first).to_contain_text(lecture_texts()["zh"][STEPS.index("positions")]["title"])
        texts = exercise_texts("zh")["positions"]
        expect(sheet.locator(".vv-task").nth(1)).to_contain_text(texts["choice"]["question"])
        expect(sheet.locator(".vv-pictures rect")).to_have_count(view.trace.grid[0] * view.trace.grid[1] - 9)
        expect(saved.locator(".vv-lecture")).to_be_hidden()
    finally:
        saved.evaluate("dispatchEvent(new Event('afterprint'))")
        saved.emulate_media(media="screen")
        speak(saved, "en")


SCRIPTS = [
    r"\text{<img src=x onerror=alert(1)>}",
    r"\text{<img/src='x'/onerror='alert(1)'>}",
    r"\mathrm{<script>alert(1)</script>}",
    r"\text{&lt;script&gt;alert(1)&lt;/script&gt;}",
    r"\text{&#60;img src=x onerror=alert(1)&#62;}",
    r"\text{</math><svg onload=alert(1)>}",
    r"\href{javascript:alert(1)}{x}",
    r"\color{red' onclick='alert(1)}x",
]


def texts_with(folder: Path, text: str, name: str = "en/pixels.md") -> dict[str, list[dict[str, str]]]:
    """Return the lecture's texts with one replaced."""
    (folder / name).parent.mkdir()
    (folder / name).write_text(text, encoding="utf-8")
    return lecture_texts(folder)


def body(folder: Path, formula: str) -> str:
    return texts_with(folder, f"# Title\n\nBody ${formula}$ here.\n\n## Question?\n\nAnswer.\n")["en"][1]["body"]


def test_chinese_texts_show_no_markdown_and_no_space_after_full_width_marks() -> None:
    texts = [text for step in lecture_texts()["zh"] for text in step.values()]
    assert [text for text in texts if re.search(r"\*|[\u3000-\u303f\uff00-\uffef]\s+(\w|<math)", text)] == []


def test_lecturers_texts_replace_bundled_ones(tmp_path: Path) -> None:
    text = "# One\n\nTwo *words*, <b>$a_1$</b>.\n\n## Three?\n\nFour![](http://x.example/a.png)\n"
    own, bundled = texts_with(tmp_path, text, f"zh/{FILES[2]}"), lecture_texts()
    third = own["zh"][2]
    assert (third["title"], third["question"]) == ("One", "Three?")
    assert "<em>words</em>" in third["body"]
    assert "<msub>" in third["body"]
    assert "&lt;b&gt;" in third["body"]  # raw HTML is escaped
    assert "<img" not in third["answer"]  # and nothing is downloaded
    assert own["en"] == bundled["en"]
    assert [step for step in range(STAGES) if own["zh"][step] != bundled["zh"][step]] == [2]
    assert "Three?" in viewer_pages.view().html(lecture=True, texts=tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("en/more.md", "# A\n\nB\n\n## C\n\nD\n", "more.md"),
        ("en/pixels.md", "No heading.\n", "other headings"),
        ("en/pixels.md", "# A\n\nB\n\n## C\n", "no answer"),
        ("en/pixels.md", "# A\n\n## C\n\nD\n", "no text"),
        ("en/pixels.md", "# A\n\n$x_1_2$\n\n## C\n\nD\n", "x_1_2"),
        ("en/.notes.md", "# A\n", "Put one there"),
    ],
)
def test_invalid_texts_are_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(LectureError, match="Expected") as refused:
        texts_with(tmp_path, text, name)
    assert said in str(refused.value)


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.names |= {tag, *(name for name, _ in attributes)}


@pytest.mark.parametrize("formula", SCRIPTS)
def test_formulas_contain_only_mathml(formula: str, tmp_path: Path) -> None:
    names: set[str] = set()
    with suppress(LectureError):  # a formula with other elements is refused
        names = Elements(body(tmp_path, formula)).names
    assert names <= MATHML | {"p"}


def test_valid_formulas_are_kept(tmp_path: Path) -> None:
    html = body(tmp_path, r"a < b,\ \frac{q k^\top}{\sqrt{d}} \cdot \text{share} & \alpha")
    assert all(part in html for part in ("<mo>&lt;</mo>", "<mfrac>", "α", "share"))
    assert "&amp;#x" not in html


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_texts_must_be_regular_files_of_limited_size(tmp_path: Path) -> None:
    (tmp_path / "en").mkdir()
    path = tmp_path / "en" / "pixels.md"
    for make, words in (
        (os.mkfifo, "regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "regular file"),
        (lambda path: path.write_text("x" * 300_000), "200 kB"),
    ):
        make(path)
        with pytest.raises(LectureError, match=words):
            lecture_texts(tmp_path)
        path.unlink()
