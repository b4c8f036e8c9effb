"""The lecture in full screen on projectors: everything fits, is large enough, and obeys a presenter's remote."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patience import wait_until
from PIL import Image
from playwright.sync_api import Page, expect
from running import DOG, EVERYDAY, SCENE, Running, ready, upload
from viewer_pages import state

from vitviz.lecture.texts import STEPS

STAGES = len(STEPS)
PROJECTORS = [(1280, 720), (1920, 1080)]
LEAST = 20  # pixels of a letter
SHARE = 0.6  # of the screen, for the picture: what a screen shows besides its sentences
# The frame and the scale of a photograph, or the chart, matrix, table or bars that are the main object of the screen.
PICTURES = ".vv-picture, .vv-scale, .vv-box, canvas, .vv-chart, .vv-strip-of, table, ol, ul, .vv-group"

BEFORE = "getComputedStyle(document.querySelector('.vv'), '::before')"
# Captions are in English in every language.
WITHOUT_CAPTION = """document.querySelector('.vv-step:not([hidden]) .vv-words') ? ''
    : document.querySelector('.vv-lecture').innerText"""
MEASURE = """([least, pictures]) => {
    const stage = document.querySelector('.vv-steps');
    const name = (one) => `${one.tagName}.${one.className.baseVal ?? one.className}: ${one.textContent.slice(0, 60)}`;
    const all = [...document.querySelectorAll('.vv-lecture *')].filter((one) => one.checkVisibility()
        && one.getClientRects().length && !one.closest('svg, math, dialog, .vv-save'));
    const outside = all.filter((one) => {
        const { left, top, right, bottom } = one.getBoundingClientRect();
        return left < -1 || top < -1 || right > innerWidth + 1 || bottom > innerHeight + 1;
    });
    const cut = all.filter((one) => getComputedStyle(one).overflowX !== 'visible' && one.tagName !== 'CANVAS'
        && (one.scrollWidth > one.clientWidth + 1 || one.scrollHeight > one.clientHeight + 1)
        && !one.matches('select, .vv-picture'));
    const hasText = (one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const small = all.filter((one) => hasText(one) && parseFloat(getComputedStyle(one).fontSize) < least);
    const charts = [...stage.querySelectorAll('.vv-chart svg')].filter((one) => one.checkVisibility());
    const zoom = (svg) => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    const letters = charts.flatMap((svg) => [...svg.querySelectorAll('text')].filter((one) => (
        parseFloat(getComputedStyle(one).fontSize) * zoom(svg) < least - 0.5)));
    const drawn = [...stage.querySelectorAll(pictures)]
        .filter((one) => one.checkVisibility({ visibilityProperty: true }))
        .map((one) => one.getBoundingClientRect()).filter(({ width, height }) => width * height);
    const edge = (how, side) => how(...drawn.map((box) => box[side]));
    const picture = (edge(Math.max, 'right') - edge(Math.min, 'left'))
        * (edge(Math.max, 'bottom') - edge(Math.min, 'top'));
    return { outside: outside.map(name), cut: cut.map(name), small: [...small, ...letters].map(name),
        share: picture / (innerWidth * innerHeight),
        over: stage.scrollHeight - stage.clientHeight,
        page: document.querySelector('.vv').scrollHeight - innerHeight };
}"""


def measured(page: Page) -> dict[str, Any]:
    """Measure the screen once nothing is under way and the pictures have their size."""
    page.wait_for_function("vitviz.resting() && vitviz.progress.jobs.size === 0")
    page.wait_for_function(
        "(() => { const { scrollHeight, clientHeight } = document.querySelector('.vv-steps');"
        " return scrollHeight <= clientHeight; })()"
    )
    return page.evaluate(MEASURE, [LEAST, PICTURES])


@pytest.fixture
def lecture(page: Page, app: Running) -> Page:
    """The lecture in full screen, with a model of 12 layers and a captioner."""
    ready(page, f"{app.url}?tab=lecture&model={EVERYDAY}&__theme=light")
    page.wait_for_function("vitviz.scenes.get(vitviz.store.get().scene?.id)?.answers.complete")
    page.locator(".vv-top [data-do=full]").click()
    page.wait_for_function("document.fullscreenElement !== null && vitviz.store.get().full")
    return page


def place(page: Page) -> str:
    return page.locator(".vv-place").inner_text()


@pytest.mark.tier("all")
@pytest.mark.parametrize(("lang", "is_tall"), [("en", False), ("zh", True)])
def test_no_step_of_the_lecture_overflows_on_a_projector(
    lecture: Page, tmp_path: Path, lang: str, is_tall: bool
) -> None:
    lecture.emulate_media(reduced_motion="reduce")  # an element that moves has another size
    if is_tall:
        Image.open(DOG).resize((500, 760)).save(tmp_path / "tall.png")
        upload(lecture, tmp_path / "tall.png")
        lecture.wait_for_function(f"{SCENE}?.source.photo && {SCENE}.answers.complete")
    lecture.evaluate("lang => vitviz.store.dispatch({ type: 'change', change: { lang } })", lang)
    labels = lecture.evaluate(f"{SCENE}.manifest.labels")
    for width, height in PROJECTORS:
        lecture.set_viewport_size({"width": width, "height": height})
        lecture.evaluate("vitviz.store.dispatch({ type: 'change', change: { step: 1 } })")
        seen = []
        while not seen or place(lecture) != seen[-1]:
            seen.append(place(lecture))
            measures = measured(lecture)
            where = (seen[-1], width)
            assert measures.pop("share") >= SHARE, where
            text = lecture.evaluate(WITHOUT_CAPTION)
            assert not [label for label in labels if lang == "zh" and label in text], where
            assert measures == {"outside": [], "cut": [], "small": [], "over": 0, "page": 0}, where
            lecture.keyboard.press("PageDown")
            lecture.wait_for_function("vitviz.resting()")
        assert len({label.split(" / ")[0] for label in seen}) == STAGES
        assert len(seen) > 2 * STAGES


def test_a_presenters_remote_turns_parts_and_blackens_the_screen(lecture: Page) -> None:
    lecture.set_viewport_size({"width": 1280, "height": 720})
    assert place(lecture) == f"1 / {STAGES} · 1 / 2"
    lecture.keyboard.press("Space")  # after a click on the button for full screen
    wait_until(lambda: place(lecture) == f"1 / {STAGES} · 2 / 2", "the second screen of step 1")
    lecture.keyboard.press("PageDown")
    wait_until(lambda: place(lecture) == f"2 / {STAGES} · 1 / 3", "step 2")
    lecture.keyboard.press("PageUp")
    wait_until(lambda: place(lecture) == f"1 / {STAGES} · 2 / 2", "the end of step 1")
    assert state(lecture, "full") is True
    for key in ("b", "."):
        before = state(lecture, "bare", "head", "step", "part")
        lecture.keyboard.press(key)
        lecture.wait_for_function(f"{BEFORE}.backgroundColor === 'rgb(0, 0, 0)'")
        lecture.keyboard.press("PageDown")  # any key brings the picture back
        lecture.wait_for_function(f"{BEFORE}.content === 'none'")
        assert state(lecture, "bare", "head", "step", "part") == before
    lecture.evaluate(
        "step => vitviz.store.dispatch({ type: 'change', change: { step } })", STEPS.index("attention") + 1
    )
    expect(lecture.locator(".vv-guess")).to_contain_text("Click your guess")
    lecture.keyboard.press("PageDown")
    expect(lecture.locator(".vv-guess")).to_contain_text("The strongest patch is")
    lecture.keyboard.press("PageDown")  # the first of the products
    expect(lecture.locator(".vv-dot-sum")).to_contain_text("1 of 64 products")
    expect(lecture.locator(".vv-body")).to_be_hidden()
    lecture.keyboard.press("n")
    expect(lecture.locator(".vv-body")).to_be_visible()
    assert not measured(lecture)["outside"]
    for shown in (True, False):
        lecture.keyboard.press("?")
        expect(lecture.locator(".vv-help")).to_be_visible(visible=shown)
    lecture.locator("[data-go=qr]").click()
    expect(lecture.locator(".vv-qr button")).to_be_in_viewport(ratio=1)
    for theme in ("light", "dark"):
        lecture.evaluate("theme => vitviz.store.dispatch({ type: 'change', change: { theme } })", theme)
        expect_code(lecture)


def expect_code(page: Page) -> None:
    """Check that the QR code on the screen is that of the encoder, with a quiet zone of four modules, and centred."""
    code = page.locator(".vv-code svg")
    units = int(code.get_attribute("viewBox").split()[-1])
    corners = re.findall(r"M(\d+),(\d+)h(\d+)", code.locator("path").get_attribute("d"))
    module = int(corners[0][2])
    expected = np.zeros((units // module, units // module), bool)
    expected[tuple(np.array([(y, x) for x, y, _ in corners], int).T // module)] = True
    assert not np.any(np.pad(expected[4:-4, 4:-4], 4) != expected)
    pixels = np.asarray(Image.open(io.BytesIO(code.screenshot())).convert("L"))
    rows, columns = (((np.arange(len(expected)) + 0.5) * side / len(expected)).astype(int) for side in pixels.shape)
    assert min(pixels.shape) >= 5 * len(expected)  # pixels for each module
    np.testing.assert_array_equal(pixels[np.ix_(rows, columns)] < 128, expected)
    inner, outer = code.bounding_box(), page.locator(".vv-qr").bounding_box()
    middles = [box["x"] + box["width"] / 2 for box in (inner, outer)]
    assert middles[0] == pytest.approx(middles[1], abs=1)
    assert middles[1] == pytest.approx(page.viewport_size["width"] / 2, abs=1)


def test_steps_begin_at_a_layer_where_something_is_to_be_seen(lecture: Page) -> None:
    choices = (("residual", "[data-slide=layer]", "3"), ("prediction", ".vv-afters [aria-pressed=true]", "10"))
    for step, shown, layer in choices:
        lecture.evaluate("step => vitviz.store.dispatch({ type: 'change', change: { step } })", STEPS.index(step) + 1)
        place = lecture.locator(f".vv-step:visible {shown}")
        read = place.input_value if step == "residual" else place.inner_text
        wait_until(lambda read=read, layer=layer: read().strip() == layer, f"layer {layer} of {step}")
        assert state(lecture, "block") is None  # other tabs show the last layer
        lecture.keyboard.press("]")
        wait_until(lambda read=read, layer=layer: read().strip() == str(int(layer) + 1), f"the next layer of {step}")
        lecture.evaluate("vitviz.store.dispatch({ type: 'change', change: { block: null } })")


def test_the_next_step_is_scrolled_to_its_top(page: Page, app: Running) -> None:
    ready(page, f"{app.url}?tab=lecture")
    page.set_viewport_size({"width": 1280, "height": 720})
    expect(page.locator(".vv-step:visible .vv-picture").first).to_be_visible()
    page.evaluate("scrollTo(0, 400)")
    page.keyboard.press("PageDown")
    page.wait_for_function("vitviz.store.get().step === 2 && vitviz.resting()")
    expect(page.locator(".vv-ribbon")).to_be_in_viewport()
