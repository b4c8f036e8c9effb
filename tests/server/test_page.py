"""The app as a visitor uses it, in a real browser, held against Python's numbers."""

import io
import json
import re
from pathlib import Path
from typing import Any

from patience import wait_until
from PIL import Image
from playwright.sync_api import Page as Browser
from playwright.sync_api import expect
from running import (
    CHURCH,
    DOG,
    MODEL,
    SCENE,
    Gate,
    Running,
    at_patch,
    click_patch,
    complete,
    example,
    expect_map,
    expect_unchanged,
    head,
    own_photograph,
    ready,
    settled,
    upload,
)

from vitviz.formatting import percent

OPENED = f"{SCENE}?.source.photo"


def test_the_bundled_model_shows_every_layer_head_and_patch(page: Browser, app: Running) -> None:
    ready(page, f"{app.url}?model={MODEL}")
    view = app.view(CHURCH, MODEL)
    expect_map(page, view.attention())
    best = view.predictions()
    assert best[0][0] == "church"
    expect(page.locator(".vv-name")).to_have_text([label for label, _ in best])
    expect(page.locator(".vv-predictions li").first).to_contain_text(percent(best[0][1]))
    expect(page.locator(".vv-explore .vv-answer")).to_have_text(f"Closest of 10 classes: church {percent(best[0][1])}")
    expect(page.locator(".vv-predictions h2")).to_have_text("Closest of 10 classes")
    for absent in (".vv-sure", ".vv-caveat"):  # it has no threshold, and is right
        expect(page.locator(absent)).not_to_be_visible()
    assert page.locator(".vv-heads button").count() == 3 + view.trace.heads
    assert page.locator(".vv-layers button").count() == view.trace.depth
    assert page.locator(".vv-grid button").count() == view.trace.depth * view.trace.heads
    expect(page.locator("#badge")).to_contain_text(re.compile(r"(CPU|CUDA|MPS) · [\d.]+ m?s · 13 x 20 patches"))
    expect(page.locator(".vv-known")).to_contain_text("10 classes")
    expect(page.get_by_role("alert")).not_to_be_visible()
    complete(page)
    page.click(".vv-grid button[data-value='7,5']")
    expect_map(page, view.attention(7, 5))
    page.check(".vv-modes input[value=rollout]")
    expect_map(page, view.rollout())
    head(page, "max")  # a head on the wall is attention again
    page.mouse.move(*at_patch(page, view, 2, 19))
    expect_map(page, view.attention(7, "max", (2, 19)))
    example(page, "Koala")
    expect(page.locator(".vv-caveat")).to_contain_text("none of its classes fits")
    example(page, "Church")
    expect(page.locator(".vv-predictions h2")).to_have_text("Closest of 10 classes")
    expect(page.locator(".vv-caveat")).not_to_be_visible()


# --- photographs

GIVE = """async ([way, bytes]) => {
    const carried = new DataTransfer();
    carried.items.add(new File([new Uint8Array(bytes)], 'dog.jpg', { type: 'image/jpeg' }));
    const place = document.querySelector('.vv-predictions');
    const event = way === 'drop'
        ? new DragEvent('drop', { dataTransfer: carried, bubbles: true, cancelable: true })
        : new ClipboardEvent('paste', { clipboardData: carried, bubbles: true, cancelable: true });
    place.dispatchEvent(event);
}"""


def test_photographs_are_uploaded_dropped_and_pasted_and_other_files_refused(
    opened: Browser, app: Running, tmp_path: Path
) -> None:
    bogus, photo, copy = tmp_path / "holiday.jpg", own_photograph(tmp_path), tmp_path / "copy.jpg"
    bogus.write_text("this is not a photograph")
    copy.write_bytes(DOG.read_bytes())
    alert = opened.get_by_role("alert")
    before = expect_map(opened, app.view().attention())
    upload(opened, bogus)
    expect(alert).to_contain_text("Expected a photograph as JPEG")
    expect(opened.locator("[data-value=Church]")).to_have_attribute("aria-pressed", "true")
    expect_unchanged(opened, before)  # the old picture stays
    head(opened, 2)  # what is on the page can still be asked
    expect_map(opened, app.view().attention(head=2))
    head(opened, "mean")
    opened.locator(".vv-message").get_by_role("button").click()
    expect(opened.locator(".vv-message")).to_be_hidden()
    upload(opened, bogus)
    expect(alert).to_be_visible()
    upload(opened, photo)
    expect_map(opened, app.view(photo).attention())
    expect(opened.locator(".vv-explore .vv-answer")).to_have_text(app.view(photo).describe())
    expect(alert).not_to_be_visible()
    told = opened.evaluate(f"{SCENE}.manifest")
    words = json.dumps({name: value for name, value in told.items() if name != "photo"}).replace(app.default, "")
    assert not re.search(r"/tmp|/home|gradio|mine\.png|site-packages", words)  # no path of the server is in the page
    upload(opened, copy)  # a copy of an example is that example
    expect_map(opened, app.view(DOG).attention())
    opened.wait_for_function("new URLSearchParams(location.search).get('image') === 'Dog'")
    for way in ("drop", "paste"):
        example(opened, "Church")
        expect_map(opened, app.view().attention())
        opened.evaluate(GIVE, [way, list(DOG.read_bytes())])
        expect_map(opened, app.view(DOG).attention())


def test_a_pinned_patch_stays_at_its_place_with_another_model(opened: Browser, app: Running, small: str) -> None:
    click_patch(opened, app.view(), 4, 6)
    opened.evaluate("vitviz.store.dispatch({ type: 'change', change: { start: 3 } })")
    opened.select_option("#model select", small)
    opened.wait_for_function(f"vitviz.store.get().scene.source.model === {small!r}")
    here, there = app.view(), app.view(model=small)
    state = opened.evaluate("vitviz.store.get()")
    left, top, right, bottom = there.geometry.frame
    first_left, first_top, first_right, first_bottom = here.geometry.patch_box(4, 6, here.trace.grid)
    across = ((first_left + first_right) / 2 - left) / (right - left)
    down = ((first_top + first_bottom) / 2 - top) / (bottom - top)
    assert state["query"] == [int(down * there.trace.grid[0]), int(across * there.trace.grid[1])]
    assert state["start"] == there.trace.depth
    expect(opened.locator(".vv-message")).not_to_be_visible()


# --- the webcam

CAMERA = """() => {
    const canvas = Object.assign(document.createElement('canvas'), { width: 320, height: 240 });
    const context = canvas.getContext('2d');
    window.drawing = setInterval(() => {
        context.fillStyle = '#c02020';
        context.fillRect(0, 0, 320, 240);
    }, 30);
    window.stream = canvas.captureStream(30);
    Object.defineProperty(navigator, 'mediaDevices',
        { configurable: true, value: { getUserMedia: async () => window.stream } });
}"""
NO_CAMERA = """Object.defineProperty(navigator, 'mediaDevices', { configurable: true, value: {
    getUserMedia: async () => { throw new DOMException('', 'NotAllowedError'); } } })"""


def test_the_webcam_takes_a_photograph_or_says_why_not(opened: Browser) -> None:
    webcam, shutter = opened.locator(".vv-webcam"), opened.locator("[data-do=shutter]")
    opened.evaluate(NO_CAMERA)
    opened.click("[data-do=webcam]")
    expect(webcam.locator("p")).to_contain_text("Allow it beside the address")
    expect(shutter).to_be_disabled()
    webcam.locator("[data-do=stop]").click()
    expect(webcam).to_be_hidden()
    opened.evaluate(CAMERA)
    opened.click("[data-do=webcam]")
    expect(shutter).to_be_enabled()
    shutter.click()
    expect(webcam).to_be_hidden()
    opened.wait_for_function(OPENED)
    assert opened.evaluate(f"[{SCENE}.manifest.photo.width >= 320, {SCENE}.manifest.image]") == [True, None]
    assert opened.evaluate("window.stream.getTracks().every((track) => track.readyState === 'ended')")


# --- what the server forgot


def forget(app: Running) -> None:
    """As if the server had been restarted, or another replica were asked."""
    app.endpoints.scenes.discard(lambda *_: True)
    app.endpoints.answers.discard(lambda *_: True)


def test_a_forgotten_photograph_is_opened_again(opened: Browser, app: Running, tmp_path: Path) -> None:
    gate = Gate(opened, "**/vitviz/block")
    example(opened, "Dog")
    opened.wait_for_function("vitviz.store.get().scene.source.image === 'Dog'")
    gate.wait()
    forget(app)
    gate.open()
    expect_map(opened, app.view(DOG).attention())
    photo = own_photograph(tmp_path)  # the visitor's own is sent again
    upload(opened, photo)
    expect_map(opened, app.view(photo).attention())
    forget(app)
    opened.check(".vv-modes input[value=rollout]")
    opened.click(".vv-rollout summary")
    opened.select_option("[data-key=fuse]", "max")
    expect_map(opened, app.view(photo).rollout(fuse="max"))
    forget(app)
    opened.get_by_role("tab", name="Layers").click()
    expect(opened.locator(".vv-alike canvas").first).to_be_visible()
    settled(opened)
    expect(opened.locator(".vv-layers-view .vv-trouble")).not_to_be_visible()
    expect(opened.locator(".vv-message")).not_to_be_visible()


# --- the frame around the views


def test_tab_and_theme_survive_a_reload_and_the_way_back(opened: Browser) -> None:
    def ground() -> Any:
        return opened.evaluate("getComputedStyle(document.querySelector('.vv [data-do=help]')).backgroundColor")

    def brightest_below() -> int:
        with Image.open(io.BytesIO(opened.screenshot(clip={"x": 0, "y": 3900, "width": 300, "height": 100}))) as shot:
            return shot.convert("L").getextrema()[1]

    light = ground()
    opened.click(".theme")
    expect(opened.locator(".vv")).to_have_class("vv dark")
    assert ground() != light
    opened.set_viewport_size({"width": 1440, "height": 4000})  # higher than the page
    wait_until(lambda: brightest_below() < 128, "what lies below the page is dark")
    opened.set_viewport_size({"width": 1440, "height": 900})
    opened.click(".theme")
    assert ground() == light
    opened.get_by_role("tab", name="Explore").focus()
    opened.keyboard.press("ArrowRight")
    expect(opened.get_by_role("tab", name="Explain")).to_be_focused()
    opened.keyboard.press("Enter")
    expect(opened.locator(".vv-explain .vv-picture")).to_be_visible()
    opened.click(".theme")
    opened.reload()
    expect(opened.locator(".vv")).to_have_class("vv dark")
    expect(opened.get_by_role("tab", name="Explain")).to_have_attribute("aria-selected", "true")
    expect(opened.locator(".vv-explain .vv-picture")).to_be_visible()
    opened.go_back()
    expect(opened.locator(".vv-explore .vv-picture")).to_be_visible()


def test_progress_is_told_after_half_a_second(opened: Browser) -> None:
    gate = Gate(opened, "**/vitviz/open")
    shown = opened.evaluate(
        """() => {
            document.querySelector('[data-value=Dog]').click();
            const look = { visibilityProperty: true, opacityProperty: true };
            return document.querySelector('#status').checkVisibility(look);
        }"""
    )
    status = opened.locator("#status")
    assert not shown
    expect(status).to_be_visible()
    expect(status).to_contain_text("Looking at the photograph")
    gate.open()
    opened.wait_for_function(f"{SCENE}.manifest.image === 'Dog'")
    expect(status).to_be_hidden()


def test_a_skip_link_leads_to_the_photograph_and_thumbnails_are_one_tab_stop(opened: Browser) -> None:
    opened.keyboard.press("Tab")
    expect(opened.locator(".vv-skip")).to_be_focused()
    opened.keyboard.press("Enter")
    expect(opened.locator(".vv-explore .vv-picture")).to_be_focused()
    buttons = opened.locator(".vv-grid button")
    assert buttons.evaluate_all("(all) => all.filter((one) => one.tabIndex === 0).length") == 1
    buttons.first.focus()
    opened.keyboard.press("ArrowRight")
    assert opened.evaluate("document.activeElement.dataset.value") == "0,1"
