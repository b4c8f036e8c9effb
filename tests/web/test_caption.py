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

from vitviz.language.words import Words
from vitviz.web.payload import caption_bytes

WORDS = ".vv-words button"
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
