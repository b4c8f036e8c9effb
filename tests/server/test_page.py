"""Check in a browser that the app's numbers and texts match Python, and that it sends no unnecessary requests."""

import base64
import importlib.util
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import viewer_pages
from browsing import menu_click, menu_select
from patience import wait_until
from PIL import Image
from playwright.sync_api import Page as Browser
from playwright.sync_api import Request, expect
from running import (
    CHURCH,
    DOG,
    EVERYDAY,
    HOSTILE,
    MODEL,
    SCENE,
    Gate,
    Running,
    at_patch,
    change,
    click_patch,
    complete,
    example,
    expect_map,
    expect_unchanged,
    head,
    layer,
    more,
    own_photograph,
    ready,
    settled,
    upload,
)

from vitviz.attribution.registry import METHODS
from vitviz.formatting import HEADINGS, certainty, percent
from vitviz.server.menu import Menu
from vitviz.settings import Settings
from vitviz.view import View
from vitviz.web.examples import Example, examples
from vitviz.web.scene import saved_page


def test_page_shows_every_layer_head_and_patch_of_the_bundled_model(page: Browser, app: Running) -> None:
    ready(page, f"{app.url}?model={MODEL}")
    view = app.view(CHURCH, MODEL)
    expect_map(page, view.attention())
    best = view.predictions()
    assert best[0][0] == "church"
    expect(page.locator(".vv-name")).to_have_text([label for label, _ in best])
    expect(page.locator(".vv-predictions li").first).to_contain_text(percent(best[0][1]))
    expect(page.locator(".vv-explore .vv-answer")).to_have_text(
        f"Best match among 10 classes: church ({percent(best[0][1])}); this model has only 10 possible answers"
    )
    expect(page.locator(".vv-predictions h2")).to_have_text("It says")
    for absent in (".vv-sure", ".vv-caveat"):  # the model has no threshold, and its prediction is right
        expect(page.locator(absent)).not_to_be_visible()
    assert page.locator(".vv-grid button").count() == view.trace.depth * (1 + view.trace.heads)
    expect(page.locator("#badge")).to_contain_text(re.compile(r"(CPU|CUDA|MPS) · [\d.]+\sm?s · 13\s×\s20 patches"))
    expect(page.locator(".vv-known")).to_contain_text("10 classes")
    expect(page.get_by_role("alert")).not_to_be_visible()
    complete(page)
    page.click(".vv-grid button[data-value='7,5']")
    expect_map(page, view.attention(7, 5))
    more(page)
    page.check(".vv-modes input[value=rollout]")
    expect_map(page, view.rollout())
    head(page, "max")  # back to attention
    page.mouse.move(*at_patch(page, view, 2, 19))
    expect_map(page, view.attention(7, "max", (2, 19)))
    assert len(view.html().encode()) <= 8_000_000  # small enough for e-mail


GIVE = """async ([way, base64]) => {
    const carried = new DataTransfer();
    const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
    carried.items.add(new File([bytes], 'dog.jpg', { type: 'image/jpeg' }));
    const place = document.querySelector('.vv-predictions');
    const event = way === 'drop'
        ? new DragEvent('drop', { dataTransfer: carried, bubbles: true, cancelable: true })
        : new ClipboardEvent('paste', { clipboardData: carried, bubbles: true, cancelable: true });
    place.dispatchEvent(event);
}"""


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


def test_uploaded_photographs_are_shown_and_other_files_refused(
    requests: list[Request], opened: Browser, app: Running, tmp_path: Path
) -> None:
    bogus, photo, copy = tmp_path / "holiday.jpg", own_photograph(tmp_path), tmp_path / "copy.jpg"
    bogus.write_text("this is not a photograph")
    copy.write_bytes(DOG.read_bytes())
    alert = opened.get_by_role("alert")
    before = expect_map(opened, app.view().attention())
    upload(opened, bogus)
    expect(alert).to_contain_text("This is text, not a photograph. Save it as JPEG or PNG.")
    expect(opened.locator("[data-value=Church]")).to_have_attribute("aria-pressed", "true")
    expect_unchanged(opened, before)
    opened.locator(".vv-message").get_by_role("button").click()
    expect(opened.locator(".vv-message")).to_be_hidden()
    upload(opened, bogus)
    expect(alert).to_be_visible()
    upload(opened, photo)
    expect_map(opened, app.view(photo).attention())
    expect(opened.locator(".vv-explore .vv-answer")).to_have_text(app.view(photo).describe())
    expect(alert).not_to_be_visible()
    manifest = opened.evaluate(f"{SCENE}.manifest")
    text = json.dumps({name: value for name, value in manifest.items() if name != "photo"}).replace(app.default, "")
    assert not re.search(r"/tmp|/home|gradio|mine\.png|site-packages", text)  # no path of the server
    complete(opened)
    requests.clear()
    upload(opened, copy)  # recognized as an example
    opened.wait_for_function("new URLSearchParams(location.search).get('image') === 'Dog'")
    expect_map(opened, app.view(DOG).attention())
    complete(opened)
    assert functions(requests).count("block") == app.view(DOG).trace.depth - 1  # the first came with the photograph


def test_photographs_are_dropped_pasted_and_taken_by_webcam(opened: Browser) -> None:
    for way in ("drop", "paste"):
        example(opened, "Church")
        opened.wait_for_function(f"{SCENE}?.manifest.image === 'Church'")
        opened.evaluate(GIVE, [way, base64.b64encode(DOG.read_bytes()).decode()])
        opened.wait_for_function(f"{SCENE}?.manifest.image === 'Dog'")
    webcam, shutter = opened.locator(".vv-webcam"), opened.locator("[data-do=shutter]")
    opened.evaluate(NO_CAMERA)
    menu_click(opened, "webcam")
    expect(webcam.locator("p")).to_contain_text("Allow it in the address bar")
    expect(shutter).to_be_disabled()
    webcam.locator("[data-do=stop]").click()
    expect(webcam).to_be_hidden()
    opened.evaluate(CAMERA)
    menu_click(opened, "webcam")
    expect(shutter).to_be_enabled()
    shutter.click()
    expect(webcam).to_be_hidden()
    opened.wait_for_function(f"{SCENE}?.source.photo")
    assert opened.evaluate(f"[{SCENE}.manifest.photo.width >= 320, {SCENE}.manifest.image]") == [True, None]
    assert opened.evaluate("window.stream.getTracks().every((track) => track.readyState === 'ended')")


def forget(app: Running) -> None:
    """Empty the cache, as if the server had restarted or the request had reached another replica."""
    app.endpoints.cache.discard(lambda _: True)


def test_evicted_photograph_is_opened_again(opened: Browser, app: Running, tmp_path: Path) -> None:
    gate = Gate(opened, "**/vitviz/block")
    example(opened, "Dog")
    opened.wait_for_function("vitviz.store.get().scene.source.image === 'Dog'")
    gate.wait()
    forget(app)
    gate.open()
    expect_map(opened, app.view(DOG).attention())
    photo = own_photograph(tmp_path)  # the browser sends it again
    upload(opened, photo)
    expect_map(opened, app.view(photo).attention())
    forget(app)
    more(opened)
    opened.check(".vv-modes input[value=rollout]")
    more(opened, "rollout")
    opened.select_option("[data-key=fuse]", "max")
    expect_map(opened, app.view(photo).rollout(fuse="max"))
    forget(app)
    opened.get_by_role("tab", name="Inside").click()
    expect(opened.locator(".vv-alike canvas").first).to_be_visible()
    settled(opened)
    expect(opened.locator(".vv-layers-view .vv-trouble")).not_to_be_visible()
    expect(opened.locator(".vv-message")).not_to_be_visible()


def test_page_has_a_skip_link_themes_history_and_progress(opened: Browser) -> None:
    def ground() -> Any:
        return opened.evaluate("getComputedStyle(document.querySelector('.vv')).backgroundColor")

    def brightest_below() -> int:
        with Image.open(io.BytesIO(opened.screenshot(clip={"x": 0, "y": 3900, "width": 300, "height": 100}))) as shot:
            return shot.convert("L").getextrema()[1]

    opened.keyboard.press("Tab")
    expect(opened.locator(".vv-skip")).to_be_focused()
    opened.keyboard.press("Enter")
    expect(opened.locator(".vv-explore .vv-picture")).to_be_focused()
    buttons = opened.locator(".vv-grid button")  # thumbnails are one tab stop
    assert buttons.evaluate_all("(all) => all.filter(({ tabIndex }) => tabIndex === 0).length") == 1
    buttons.first.focus()
    opened.keyboard.press("ArrowRight")
    assert opened.evaluate("document.activeElement.dataset.value") == "0,0"
    light = ground()
    opened.click(".theme")
    expect(opened.locator(".vv")).to_have_class("vv dark")
    assert ground() != light
    opened.set_viewport_size({"width": 1440, "height": 4000})  # taller than the page
    wait_until(lambda: brightest_below() < 128, "the area below the page is dark")
    opened.set_viewport_size({"width": 1440, "height": 900})
    opened.click(".theme")
    expect(opened.locator(".vv")).to_have_class("vv")  # the page draws in the next frame
    assert ground() == light
    opened.get_by_role("tab", name="Look").focus()
    opened.keyboard.press("ArrowRight")
    expect(opened.get_by_role("tab", name="Why")).to_be_focused()
    opened.keyboard.press("Enter")
    expect(opened.locator(".vv-explain .vv-picture")).to_be_visible()
    opened.click(".theme")
    opened.reload()
    expect(opened.locator(".vv")).to_have_class("vv dark")
    expect(opened.get_by_role("tab", name="Why")).to_have_attribute("aria-selected", "true")
    expect(opened.locator(".vv-explain .vv-picture")).to_be_visible()
    opened.go_back()
    expect(opened.locator(".vv-explore .vv-picture")).to_be_visible()
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
    expect(status).to_contain_text("Running the model on the photograph")
    gate.open()
    opened.wait_for_function(f"{SCENE}.manifest.image === 'Dog'")
    expect(status).to_be_hidden()


SIDE = tiny.GRID[1] * tiny.PATCH  # pixels


def functions(requests: list[Request]) -> list[str]:
    """Return the names of the questions in a list of requests."""
    return [request.url.rpartition("/")[2] for request in requests if "/vitviz/" in request.url]


def slide(page: Browser, key: str, value: float) -> None:
    """Move a slider as a user does."""
    page.locator(f"input[data-key={key}]").evaluate(
        "(input, value) => { input.value = value; input.dispatchEvent(new Event('input', { bubbles: true })); }",
        str(value),
    )


def test_pointer_layers_and_heads_need_no_request(requests: list[Request], opened: Browser, app: Running) -> None:
    complete(opened)
    assert f"{app.url}vitviz/open" not in [request.url for request in requests]  # the page contains its first scene
    requests.clear()
    box = opened.locator(".vv-held").first.bounding_box()
    drawn = opened.evaluate("vitviz.drawn")
    for step in range(45):
        x, y = step * 0.618 % 1, step * 0.377 % 1
        opened.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
    assert opened.evaluate("vitviz.drawn") > drawn + 15
    for key in "[[[,.,.]]0dcdrgr":
        opened.keyboard.press(key)
    for block in (0, 1, 2):
        layer(opened, block)
    for number in (0, 4, "max", "min"):
        head(opened, number)
    slide(opened, "opacity", 0.8)
    slide(opened, "gamma", 0.5)
    more(opened, "matrix")
    click_patch(opened, app.view(), 4, 4)
    before = opened.evaluate("vitviz.store.get().scene.id")
    menu_click(opened, "compare")
    menu_click(opened, "compare")
    assert opened.evaluate("vitviz.store.get().scene.id") == before
    with opened.expect_request("**/vitviz/rollout"):  # it is delayed: earlier requests would have been sent
        change(opened, fuse="max")
    assert [request.url.rpartition("/")[2] for request in requests] == ["rollout"]


def test_rollout_options_match_python(opened: Browser, requests: list[Request], app: Running) -> None:
    complete(opened)
    requests.clear()
    view = app.view()
    more(opened)
    opened.check(".vv-modes input[value=rollout]")
    expect_map(opened, view.rollout())
    assert functions(requests) == []
    more(opened, "rollout")
    opened.select_option("[data-key=fuse]", "max")
    for key, value in (("discard", 0.5), ("residual", 0.2), ("start", 2)):
        slide(opened, key, value)
    options = {"fuse": "max", "discard": 0.5, "residual": 0.2, "start": 1}
    expect_map(opened, view.rollout(**options))
    once = len(functions(requests))
    assert once <= 4
    click_patch(opened, view, 6, 3)  # rows of other patches need no further request
    expect_map(opened, view.rollout((6, 3), **options))
    assert len(functions(requests)) == once


@pytest.mark.tier("all")
def test_rollout_of_many_patches_is_requested_by_row(
    page: Browser, requests: list[Request], app: Running, small: str
) -> None:
    ready(page, f"{app.url}?model={small}&size={4 * SIDE}")
    view = app.view(CHURCH, small, 4 * SIDE)
    assert view.trace.tokens.shape[1] > 600
    expect_map(page, view.attention())
    complete(page)
    more(page)
    requests.clear()
    page.check(".vv-modes input[value=rollout]")
    expect_map(page, view.rollout())
    page.mouse.move(*at_patch(page, view, 20, 30))
    expect_map(page, view.rollout((20, 30)))
    page.check(".vv-queries input[value=mean]")
    page.mouse.move(5, 5)
    expect_map(page, view.rollout("mean"))
    assert set(functions(requests)) == {"rollout"}
    before = len(requests)
    page.check(".vv-queries input[value=cls]")
    expect_map(page, view.rollout())
    assert len(requests) == before  # this row is cached
    more(page, "rollout")
    page.select_option("[data-key=fuse]", "min")
    slide(page, "start", 2)
    expect_map(page, view.rollout(fuse="min", start=1))
    page.check("input[data-key=direction][value=column]")
    expect(page.locator(".vv-sentence")).to_contain_text("available only for")


KNOWN = {"chelsea.png": "cat", "motorcycle_left.png": "motorcycle"}
OTHERS = ("coffee.png", "rocket.jpg", "astronaut.png")  # the model classifies the coffee as soup


def photograph(name: str) -> Path:
    """Return the path of a scikit-image photograph.

    The cat and the coffee cup are under CC0; the motorcycle of the Middlebury stereo data set, the rocket (SpaceX) and
    the astronaut (NASA) are in the public domain.
    """
    return Path(importlib.util.find_spec("skimage").origin).parent / "data" / name


def expect_text(page: Browser, view: View) -> None:
    """Check that the page shows Python's text, and reports uncertainty exactly below the threshold."""
    expect_map(page, view.attention())
    text, (label, probability) = view.describe(), view.predictions(1)[0]
    expect(page.locator(".vv-explore .vv-answer")).to_have_text(text)
    sure = probability >= view.sure_above
    assert (text == f"{label} ({percent(probability)})") == sure
    threshold = page.locator(".vv-sure")
    if sure or view.known is False:
        expect(threshold).to_be_hidden()
    else:
        expect(threshold).to_contain_text(f"The best match is below {percent(view.sure_above, 2)}.")
    group = view.group()
    heading = HEADINGS[certainty(probability, view.sure_above, group, view.known is not False)]
    named = (group[0], percent(group[1])) if group else ()
    expect(page.locator(".vv-predictions h2")).to_have_text(heading.format(*named))


@pytest.mark.tier("all")
def test_everyday_model_is_right_or_unsure(app: Running) -> None:
    caveats, explorer = {}, app.endpoints.loaded.get(EVERYDAY).explorer
    for photo in (*examples(), *KNOWN, *OTHERS):
        view = explorer.open(photograph(photo) if isinstance(photo, str) else photo.path)
        (label, probability), *_ = view.predictions(1)
        sure = probability >= view.sure_above
        assert (view.describe() == f"{label} ({percent(probability)})") == sure
        if isinstance(photo, str):
            assert label == KNOWN.get(photo, label)
        else:
            caveats[photo.name] = photo.caveat(view)
            says = view.known is False and not set(photo.classes) & set(view.labels)  # that it is none of the classes
            assert bool(caveats[photo.name]) != (label in photo.classes or says)
    assert not any(caveats[name] for name in ("Church", "Lizard", "Cat", "Giraffe", "Panda", "Hedgehog"))


def test_page_of_the_everyday_model_matches_python(page: Browser, app: Running) -> None:
    assert Menu(Settings()).default == EVERYDAY  # the page opens with it
    ready(page, f"{app.url}?model={EVERYDAY}")
    expect(page.locator(".vv-known summary")).to_have_text("All 260 classes this model knows")
    shown = {shown.name: shown for shown in examples() if shown.name in ("Church", "Lizard")}
    for name in (*shown, OTHERS[0]):
        if name in shown:
            example(page, name)
            page.wait_for_function(f"{SCENE}?.manifest.image === {name!r}")
        else:
            upload(page, photograph(name))
        view = app.view(shown[name].path if name in shown else photograph(name), EVERYDAY)
        expect_text(page, view)
        expect(page.locator(".vv-caveat")).to_have_text(shown[name].caveat(view) if name in shown else "")


def test_caveat_of_an_example_depends_on_the_model() -> None:
    view = viewer_pages.view()
    best = view.predictions(1)[0][0]
    about = view.model.pretrained
    right = Example(CHURCH, "Church", "Church: a cathedral", ("house", best.upper()))
    other = Example(CHURCH, "Church", "Church: a cathedral", (view.predictions(2)[1][0],))
    unknown = Example(CHURCH, "Church", "Church: a cathedral", ("church",))
    assert right.caveat(view) == ""
    assert other.caveat(view) == "The model gets this example wrong. Church: a cathedral."
    assert "None of this model's classes fits" in unknown.caveat(view)
    try:
        view.model.pretrained = replace(about, labels=tuple(f"church {label}, {label}" for label in about.labels))
        assert right.caveat(view) == ""  # one of two names
    finally:
        view.model.pretrained = about


def test_panels_agree_and_classes_are_searched_by_keyboard(page: Browser, app: Running, models: dict[str, str]) -> None:
    ready(page, f"{app.url}?model={models['unsure']}")
    view = app.view(model=models["unsure"])
    expect_text(page, view)
    for tab, panes in (("Why", 1), ("Inside", 3), ("Look", 1)):
        page.get_by_role("tab", name=tab).click()
        expect(page.locator(".vv-tab:not([hidden]) .vv-answer")).to_have_text([view.describe()] * panes)
    classes = view.labels
    listed = page.locator(".vv-known li")
    expect(page.locator(".vv-known summary")).to_have_text(f"All {len(classes)} classes this model knows")
    expect(listed.first).not_to_be_visible()
    page.focus(".vv-known summary")
    page.keyboard.press("Enter")
    expect(listed).to_have_count(len(classes))
    assert set(listed.all_text_contents()) == set(classes)
    page.keyboard.press("Tab")
    expect(page.locator(".vv-known input")).to_be_focused()
    before = page.evaluate("JSON.stringify(window.vitviz.store.get())")
    page.keyboard.type("thing 12")
    wanted = sorted(label for label in classes if "thing 12" in label)
    expect(listed).to_have_text(wanted)
    expect(page.locator(".vv-known [role=status]")).to_have_text(f"{len(wanted)} of {len(classes)}.")
    page.keyboard.type("?")  # search text, not a shortcut
    expect(listed).to_have_count(0)
    expect(page.locator(".vv-known [role=status]")).to_contain_text(f"0 of {len(classes)}. The model can only")
    assert page.evaluate("JSON.stringify(window.vitviz.store.get())") == before
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Control+a")
    page.keyboard.type("IMG")
    expect(listed).to_have_text([HOSTILE])
    assert page.title() != "1"
    menu_select(page, "#model select", app.default)
    expect_map(page, app.view().attention())
    page.fill(".vv-known input", "thing 11")  # the list stays open
    expect(listed).to_have_text(["thing 11"])


def test_only_the_first_of_very_many_classes_are_listed(
    offline: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(View, "labels", tuple(f"thing {number}" for number in range(21_841)))
    viewer_pages.show(offline, tmp_path, saved_page(viewer_pages.scene(viewer_pages.view())))
    expect(offline.locator(".vv-predictions h2")).to_have_text("It says")
    offline.click(".vv-known summary")
    expect(offline.locator(".vv-known li")).to_have_count(400)
    expect(offline.locator(".vv-known [role=status]")).to_have_text("21,841 of 21,841, the first 400 listed.")
    offline.fill(".vv-known input", "thing 21840")
    expect(offline.locator(".vv-known li")).to_have_text(["thing 21840"])


def test_windowed_model_shows_the_window_of_a_patch_in_every_stage(
    page: Browser, app: Running, models: dict[str, str], tmp_path: Path
) -> None:
    ready(page, f"{app.url}?model={models['windowed']}")
    view = app.view(CHURCH, models["windowed"])
    expect_map(page, view.attention())
    assert page.locator(".vv-queries").text_content() == "All patches"
    stages = page.locator(".vv-whole .vv-stage")
    expect(stages).to_have_text(["Stage 1: 24 × 16 patches, 2 heads", "Stage 2: 12 × 8 patches, 3 heads"])
    expect(page.locator(".vv-whole .vv-grid button")).to_have_count(2 * 3 + 2 * 4)
    page.mouse.move(*at_patch(page, view, 7, 10))  # a patch of the first stage
    expect_map(page, view.attention(3, query=(3, 5)))
    page.mouse.down()
    page.mouse.up()
    layer(page, 1)
    expect_map(page, view.attention(1, query=(7, 11)))  # the middle of the patch of the second stage
    head(page, 1)
    expect_map(page, view.attention(1, 1, (7, 11)))
    page.focus(".vv-explore .vv-picture")
    page.keyboard.press("ArrowUp")
    expect_map(page, view.attention(1, 1, (6, 11)))
    change(page, query=[7, 11], block=2, mode="rollout", head="mean")
    expect_map(page, view.rollout((3, 5)))
    change(page, tab="why", mode="attention", method="legrad")
    settled(page)
    explained = "vitviz.panels.find((view) => view.hiding)"
    assert page.evaluate(f"{explained}.mapPane.pane.grid") == [12, 8]  # of the last stage
    change(page, erased=[29])
    settled(page)
    (label, *shares), *_ = page.evaluate(f"[...{explained}.bars.answers.values()].at(-1).classes")
    blurred = view.intervene(drop=[(3, 5)], mode="blur")
    best = view.labels.index(label)
    np.testing.assert_allclose(shares, [blurred.before[0][best], blurred.after[0][best]], rtol=1e-5)
    change(page, erased=[])
    page.click(".vv-explain [data-do=test]")
    expect(page.locator(".vv-testing .vv-verdict")).to_contain_text("Covering the patches")
    change(page, tab="inside")
    settled(page)
    distances = view.heads(["distance"])["distance"]
    cells = page.locator(".vv-cell").all_inner_texts()
    np.testing.assert_allclose([float(cell) for cell in cells], distances[np.isfinite(distances)], rtol=5e-3)
    expect(page.locator(".vv-layers-view > *:visible")).to_have_count(0)
    change(page, tab="lecture")
    expect(page.locator(".vv-lacking")).to_contain_text("only converted models")
    ready(page, view.save_html(tmp_path / "page.html").as_uri())
    change(page, block=1, query=[7, 11])
    expect_map(page, view.attention(1, query=(7, 11)))


def test_captured_model_opens_as_any_other(page: Browser, tmp_path: Path) -> None:
    import transformers

    sizes = {"hidden_size": 20, "num_attention_heads": 5, "num_hidden_layers": 3, "intermediate_size": 16}
    config = transformers.ViTConfig(**sizes, image_size=48, patch_size=8, hidden_act="relu", num_labels=5)
    folder = str(tmp_path / "captured")
    tiny.shaken(transformers.ViTForImageClassification(config)).save_pretrained(folder)
    app = Running(folder, bundled=())
    try:
        view = app.view(CHURCH, folder)
        ready(page, app.url)
        change(page, block=1, head=2, query=[2, 3], mode="attention")
        expect_map(page, view.attention(1, 2, (2, 3)))
        change(page, mode="rollout", head="mean")
        expect_map(page, view.rollout((2, 3)))
        expect(page.locator(".vv-caveat")).to_contain_text("the model runs as it is")
        change(page, tab="why", mode="attention", method="gae")
        settled(page)
        methods = page.evaluate("vitviz.panels.find((view) => view.hiding).methods.map(({ name }) => name)")
        assert methods == [name for name, method in METHODS.items() if not method.not_captured]
        change(page, tab="lecture")
        expect(page.locator(".vv-lacking")).to_contain_text("only converted models")
    finally:
        app.close()
