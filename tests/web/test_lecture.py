"""The lecture: its texts, and the whole path in a browser, offline, in both languages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
from browsing import new_page
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Page, expect
from running import axe
from viewer_pages import KINDS, SCENE, photograph, rest, write

from vitviz.explorer import Explorer
from vitviz.images.preprocess import Preprocess
from vitviz.model.vit import Pretrained
from vitviz.view import View
from vitviz.web.lecture import FILES, LANGUAGES, LectureError, lecture_texts

PATCH = (2, 7)
STAGES = 8


@pytest.fixture(scope="module")
def view() -> View:
    """What a tiny model with registers saw of a photograph that is cropped."""
    _, preprocess, size = KINDS["registers, margins unseen"]
    model = tiny.model(registers=2)
    labels = tuple(f"thing {i}" for i in range(model.config.classes))
    model.pretrained = Pretrained(name="A model", preprocess=Preprocess(**preprocess), labels=labels)
    return Explorer(model).open(photograph(*size))


@pytest.fixture(scope="module")
def lecture(browser: Chromium, view: View, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The lecture as a file, with nothing else to ask."""
    with new_page(browser, viewport={"width": 1920, "height": 1080}, offline=True) as page:
        page.goto(write(tmp_path_factory.mktemp("lecture"), view.html(lecture=True)) + "?tab=lecture")
        page.wait_for_function(f"{SCENE}?.answers.complete")
        page.evaluate("vitviz.store.dispatch({ type: 'change', change: { tab: 'lecture' } })")
        yield page


def turn(page: Page, step: int) -> None:
    """Wait until a step is on the screen with its numbers."""
    expect(page.locator(".vv-tensors [aria-current]")).to_have_attribute("data-step", str(step))
    expect(page.locator(".vv-step:visible")).to_have_attribute("data-of", str(step))
    expect(page.locator(".vv-waits")).to_be_hidden()
    rest(page)


def shown(page: Page, selector: str) -> str:
    return page.locator(f".vv-step:visible {selector}").first.inner_text()


def number(text: str) -> float:
    return float(text.replace("\N{MINUS SIGN}", "-"))


def test_the_whole_path_with_the_models_own_numbers(lecture: Page, view: View) -> None:
    page, side = lecture, view.model.config.patch_size
    lecture_of = {language: lecture_texts()[language] for language in LANGUAGES}
    expect(page.locator("[role=tab]")).to_have_text(["Explore", "Lecture"])
    for step in range(1, STAGES + 1):
        turn(page, step)
        expect(page.locator(".vv-text h2")).to_have_text(lecture_of["en"][step - 1]["title"])
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
    page.evaluate("query => vitviz.store.dispatch({ type: 'change', change: { query } })", list(PATCH))
    rest(page)
    assert f"row {PATCH[0] + 1}, column {PATCH[1] + 1}" in shown(page, "h3.vv-which")
    page.click("[data-go='-1']")
    turn(page, 1)
    middle = [place * side + side // 2 for place in PATCH]
    for channel, said in enumerate(page.locator(".vv-sums tbody td:last-child").all_inner_texts()):
        assert number(said) == pytest.approx(float(view.images[0, channel, middle[0], middle[1]]), abs=6e-4)
    page.click("[data-step='3']")
    turn(page, 3)
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
    page.click("[data-step='6']")
    turn(page, 6)
    expect(page.locator(".vv-kinds b").first).not_to_have_text("…")
    assert sum(map(int, page.locator(".vv-kinds b").all_inner_texts())) == view.trace.depth * view.trace.heads


def test_everything_is_in_chinese_too(lecture: Page) -> None:
    page = lecture
    page.click("[data-do=lang]")
    expect(page.locator("[role=tab]")).to_have_text(["探索", "课堂"])
    assert page.evaluate("document.documentElement.lang") == "zh"
    texts = lecture_texts()["zh"]
    for step in range(1, STAGES + 1):
        page.click(f"[data-step='{step}']")
        turn(page, step)
        expect(page.locator(".vv-text h2")).to_have_text(texts[step - 1]["title"])
        page.click(".vv-question summary")
        expect(page.locator(".vv-question > div")).to_be_visible()
        for heading in page.locator(".vv-step:visible h3:visible").all_inner_texts():
            assert any("\u4e00" <= letter <= "\u9fff" for letter in heading), heading
    page.click("[data-do=lang]")
    expect(page.locator("[role=tab]")).to_have_text(["Explore", "Lecture"])


# ---- texts


def test_a_lecturers_texts_take_the_place_of_the_ones_here(view: View, tmp_path: Path) -> None:
    (tmp_path / "zh").mkdir()
    text = "# One\n\nTwo *words*, <b>$a_1$</b>.\n\n## Three?\n\nFour![](http://x.example/a.png)\n"
    (tmp_path / "zh" / FILES[2]).write_text(text, encoding="utf-8")
    own, here = lecture_texts(tmp_path), lecture_texts()
    step = own["zh"][2]
    assert (step["title"], step["question"]) == ("One", "Three?")
    assert "<em>words</em>" in step["body"]
    assert "<msub>" in step["body"]
    assert "&lt;b&gt;" in step["body"]  # no HTML of the file's own
    assert "<img" not in step["answer"]  # and nothing that would be fetched
    assert own["en"] == here["en"]
    assert [own["zh"][i] == here["zh"][i] for i in range(STAGES)] == [True, True, False, True, True, True, True, True]
    assert "Three?" in view.html(lecture=True, texts=tmp_path)
    assert "Three?" not in view.html(lecture=True)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("en/9-more.md", "# A\n\nB\n\n## C\n\nD\n", "9-more.md"),
        ("en/1-pixels.md", "No heading.\n", "other headings"),
        ("en/1-pixels.md", "# A\n\nB\n\n## C\n", "no answer"),
        ("en/1-pixels.md", "# A\n\n## C\n\nD\n", "no text"),
        ("en/1-pixels.md", "# A\n\n$x_1_2$\n\n## C\n\nD\n", "x_1_2"),
        ("en/notes.txt", "# A\n", "Put one there"),
    ],
)
def test_a_text_that_cannot_be_shown_is_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    path = tmp_path / name
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    with pytest.raises(LectureError, match="Expected") as found:
        lecture_texts(tmp_path)
    assert said in str(found.value)
