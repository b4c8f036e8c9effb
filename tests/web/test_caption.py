"""Test the caption under the photograph: its words, their maps, keys, links and saved pages."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patience import wait_until
from playwright.sync_api import Page as Browser
from playwright.sync_api import expect
from running import CHURCH, DOG, EVERYDAY, MODEL, Running, complete, ready, served, settled, upload
from scipy.stats import spearmanr

from vitviz.language.words import Words
from vitviz.lecture.numbers import site_files
from vitviz.lecture.texts import STEPS, lecture_given
from vitviz.web.payload import caption_bytes
from vitviz.web.scene import Scene, saved_page

WORDS = ".vv-explore .vv-words button"
SHOWN = """() => { const { saved } = vitviz.panels[0].saved(0); return [...saved.values]; }"""
SHARES = (
    f"() => [...document.querySelectorAll('{WORDS}')].map((word) => Number(word.style.getPropertyValue('--share')))"
)


@pytest.fixture(scope="module")
def app() -> Iterator[Running]:
    yield from served(bundled=(EVERYDAY, MODEL))


@pytest.fixture(scope="module")
def words(app: Running) -> Words:
    return app.view(CHURCH).caption()


def opened(page: Browser, url: str) -> None:
    ready(page, url)
    settled(page)
    expect(page.locator(WORDS)).to_have_text(["a", "church"])


def shown(page: Browser) -> Any:
    settled(page)
    return np.array(page.evaluate(SHOWN))


def test_file_of_a_caption_has_the_numbers_of_python(words: Words) -> None:
    caption = json.loads(caption_bytes(words))
    assert (caption["words"], caption["grid"], caption["heads"]) == (["a", "church"], [8, 8], 8)
    np.testing.assert_allclose(np.array(caption["values"]) * 1e-5, words.attention, atol=6e-6)
    np.testing.assert_allclose(np.array(caption["effects"]) * 1e-3, words.effects(), atol=1e-3)
    np.testing.assert_allclose(caption["probabilities"], words.probabilities, rtol=0.01)
    for name in ("gae", "gradient_input"):
        np.testing.assert_allclose(caption["maps"][name], words.maps[name], rtol=1e-3)
    for name, ranks in words.agreement().items():
        np.testing.assert_allclose(caption["agreement"][name], ranks, atol=0.01)
    assert caption["sentence"] == "“church” needs this picture; “a” does not."


def test_a_word_shows_its_effects_and_every_head_without_a_request(page: Browser, app: Running, words: Words) -> None:
    opened(page, app.url)
    expect(page.locator(".vv-caption")).to_contain_text("“church” needs this picture; “a” does not.")
    np.testing.assert_allclose(page.evaluate(SHARES), words.needs, atol=0.01)
    complete(page)  # blocks of the model
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.hover(f"{WORDS} >> nth=1")
    expect(page.locator(".vv-of-word button")).to_have_count(4 * 9)
    expect(page.locator(".vv-explore .vv-scale-words")).to_have_text("Decoder: 4 layers × 8 heads")
    title = "“church”: how much its log-probability falls when each image token is masked"
    expect(page.locator(".vv-explore .vv-title")).to_have_text(title)
    np.testing.assert_allclose(shown(page), words.effects()[1].clamp_min(0), atol=2e-3)
    page.click(f"{WORDS} >> nth=1")
    page.hover(".vv-of-word [data-value='2,5']")
    expect(page.locator(".vv-explore .vv-title")).to_have_text("“church”: decoder, Layer 3, head 6")
    np.testing.assert_allclose(shown(page), words.of("church")[2, 5], atol=1e-5)
    page.hover(".vv-of-word [data-value='3,mean']")
    np.testing.assert_allclose(shown(page), words.of("church")[3].mean(0), atol=1e-5)
    page.mouse.move(0, 0)
    page.keyboard.press("Escape")
    expect(page.locator(".vv-explore .vv-scale-words")).to_have_text("12 layers × 6 heads")
    assert asked == []


def test_a_caption_of_several_lines_stands_below_the_controls(page: Browser, app: Running) -> None:
    opened(page, app.url)
    longer = "row => { for (let n = 0; n < 30; n += 1) row.append(row.lastElementChild.cloneNode(true)); }"
    page.locator(".vv-caption .vv-words").evaluate(longer)
    words, controls = (page.locator(f".vv-explore {part}").bounding_box() for part in (".vv-words", ".vv-controls"))
    assert words
    assert controls
    assert words["height"] > 60
    assert words["y"] >= controls["y"] + controls["height"]


def test_other_maps_of_a_word_stand_beside_the_effects(page: Browser, app: Running, words: Words) -> None:
    opened(page, f"{app.url}?word=2")
    page.click(".vv-caption summary")
    for name, map_ in words.maps.items():
        page.select_option("[data-key=wordMap]", name)
        np.testing.assert_allclose(shown(page), map_[1], rtol=1e-3, atol=1e-5)
        rank = f"{words.agreement()[name][1]:.2f}".replace("-", "−")
        sentence = f"Rank correlation of this map with the exact effects: {rank}."
        expect(page.locator(".vv-sentence")).to_contain_text(sentence)
    wait_until(lambda: "word-map=gradient_input" in page.url, "the address")


def test_a_patch_lights_the_words_that_read_it(page: Browser, app: Running, words: Words) -> None:
    opened(page, app.url)
    box = page.locator(".vv-explore .vv-held").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.53 * box["width"], box["y"] + 0.2 * box["height"])  # column 4, row 1 of 8 x 8
    wait_until(lambda: page.locator(".vv-words.vv-lit").count() == 1, "the words are lit")
    reading = words.attention.mean((1, 2))[:, 8 + 4]
    np.testing.assert_allclose(page.evaluate(SHARES), reading / reading.max(), atol=0.01)


def test_keys_choose_a_word_and_the_address_keeps_it(page: Browser, app: Running, words: Words) -> None:
    opened(page, app.url)
    page.focus(WORDS)
    page.keyboard.press("ArrowRight")
    expect(page.locator(f"{WORDS} >> nth=1")).to_be_focused()
    np.testing.assert_allclose(shown(page), words.effects()[1].clamp_min(0), atol=2e-3)
    page.keyboard.press("Enter")
    expect(page.locator(f"{WORDS} >> nth=1")).to_have_attribute("aria-pressed", "true")
    wait_until(lambda: "word=2" in page.url, "the address")
    opened(page, page.url)
    np.testing.assert_allclose(shown(page), words.effects()[1].clamp_min(0), atol=2e-3)


def test_another_photograph_gets_its_own_caption_and_another_model_none(page: Browser, app: Running) -> None:
    opened(page, f"{app.url}?word=2")
    upload(page, DOG)
    expect(page.locator(WORDS)).to_have_text(["a", "photo", "of", "a", "German", "shepherd"])
    expect(page.locator(".vv-explore .vv-scale-words")).to_have_text("12 layers × 6 heads")
    wait_until(lambda: "word=" not in page.url, "the address")
    ready(page, f"{app.url}?model={MODEL}")
    settled(page)
    expect(page.locator(".vv-caption")).not_to_be_visible()


def test_a_saved_page_has_the_caption(page: Browser, app: Running, words: Words, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(app.view(CHURCH).html(), encoding="utf-8")
    opened(page, f"{file.as_uri()}?word=2")
    page.click(f"{WORDS} >> nth=1")
    np.testing.assert_allclose(shown(page), words.effects()[1].clamp_min(0), atol=2e-3)


# ---- the step of the lecture

STEP = f"tab=lecture&step={STEPS.index('words') + 1}"
MAP = """([step, at]) => [...vitviz.panels.find((panel) => panel.exercises).steps[step].panes[at].painted.index]"""


def check_step(page: Browser, words: Words) -> None:
    """Check the shapes, the words and the maps of the step, which shows the word that needs the picture most."""
    shapes = page.locator(".vv-step:visible .vv-path td:nth-child(2)")
    expect(shapes).to_have_text(["256 × 384", "64 × 1,536", "64 × 256", "4 ×", "311"])
    effects, attention = words.effects()[1], words.attention[1].mean((0, 1))
    rank = f"{spearmanr(effects, attention).statistic:.2f}".replace("-", "−")
    expect(page.locator(".vv-step:visible .vv-alike")).to_contain_text(f"Rank correlation of the two maps: {rank}")
    expect(page.locator(".vv-step:visible .vv-shares")).to_contain_text("48.2 %")
    expect(page.locator(".vv-step:visible .vv-shown")).to_have_text("church")
    for at, values in ((1, effects.clamp_min(0)), (2, attention)):
        scaled = (values - values.min()) / (values.max() - values.min())
        np.testing.assert_allclose(page.evaluate(MAP, [STEPS.index("words"), at]), 255 * scaled, atol=3)
    page.hover(".vv-step:visible .vv-words button >> nth=0")
    expect(page.locator(".vv-step:visible .vv-chance")).to_have_text("Probability of “a”")


def test_the_lecture_shows_the_way_from_patches_to_words(page: Browser, app: Running, words: Words) -> None:
    ready(page, f"{app.url}?{STEP}")
    check_step(page, words)
    page.locator(".vv-exercises summary").click()
    whole, average = words.probabilities[1].tolist()
    page.locator(".vv-exercises input[name=number]").fill(f"{np.log(whole / average):.2f}")
    page.locator(".vv-exercises form[data-kind=number] [data-word=check]").click()
    expect(page.locator(".vv-exercises form[data-kind=number] .vv-verdict")).to_contain_text("Right.")
    ready(page, f"{app.url}?{STEP}&model={MODEL}")
    expect(page.locator(".vv-step:visible .vv-trouble")).to_contain_text("The default model of vitviz has one.")
    expect(page.locator(".vv-step:visible .vv-words")).to_be_hidden()


def test_a_saved_lecture_has_the_step(page: Browser, app: Running, words: Words, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    view = app.view(CHURCH)
    saved = saved_page(Scene(view), f"?{STEP}", lecture=site_files(view), texts=lecture_given())
    file.write_text(saved, encoding="utf-8")
    ready(page, file.as_uri())
    check_step(page, words)
