"""Check that every tab of the app passes axe in both themes, and that nothing overlaps or overflows."""

from itertools import combinations
from pathlib import Path

import pytest
from browsing import menu_click, menu_select, new_page, open_menu
from PIL import Image
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Locator, expect
from playwright.sync_api import Page as Browser
from running import (
    DOG,
    SCENE,
    Running,
    change,
    click_patch,
    complete,
    expect_accessible,
    own_photograph,
    ready,
    settled,
    unfold,
    upload,
)

SIZES = [(390, 844), (820, 844), (1024, 768), (1280, 900), (1366, 768), (1440, 900), (1920, 1080)]
TABS = {  # with the selector of an element that appears with the answers
    "look": ".vv-grid button",
    "why": ".vv-moved li",
    "inside": ".vv-alike canvas",
}
CONTROLS = ":is(button, summary, legend, h2, label:not(.vv-field)):visible"
SMALL = """(all) => all.filter((control) => control.checkVisibility({ visibilityProperty: true })
    && !control.closest('.vv-i, .vv-waterfall')) // an invisible border; columns of a chart, 200 pixels high
    .map((control) => [control, (control.closest('label') ?? control).getBoundingClientRect()])
    .filter(([, { width, height }]) => width * height && Math.min(width, height) < 43.5)
    .map(([{ outerHTML }, { width, height }]) => `${outerHTML.slice(0, 90)} ${width} x ${height}`)"""
BOXES = """(all) => all.map((element) => element.getBoundingClientRect()).filter(({ width, height }) => width * height)
    .map(({ left, top, right, bottom }) => [left, top, right, bottom])"""
BREAKABLE = """[...document.querySelectorAll('.vv :not(script, style)')].flatMap((element) => [...element.childNodes])
    .filter((node) => node.nodeType === 3 && /[0-9] [%×]|[<>] [0-9]/.test(node.data)).map((node) => node.data)"""
WIDER = "(all) => all.filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.textContent)"


def open_tab(page: Browser, name: str) -> Locator:
    page.click(f"[role=tab][data-tab={name}]")
    expect(page.locator(f".vv-tab[data-tab={name}] {TABS[name]}").first).to_be_visible()
    settled(page)
    return page.locator(f".vv-tab[data-tab={name}]")


def box(page: Browser, selector: str) -> dict[str, float]:
    return page.locator(selector).first.bounding_box()


def test_every_tab_passes_axe_and_fits_a_phone(page: Browser, app: Running, models: dict[str, str]) -> None:
    errors: list[str] = []
    note = lambda message: errors.append(message.text) if message.type == "error" else None  # noqa: E731
    page.on("console", note)
    ready(page, f"{app.url}?model={models['unsure']}&theme=light")  # this model has a threshold and many classes
    expect(page.locator(".loading")).to_have_count(0)  # Gradio's own loading indicator
    unfold(page)
    click_patch(page, app.view(model=models["unsure"]), 3, 3)
    menu_click(page, "compare")
    page.evaluate("document.querySelector('.vv-known').open = false")  # opened again in Look: it shows 264 classes
    for name in [*TABS][1:]:  # Look is checked below, together with the parts of the page around the tabs
        panel = open_tab(page, name)
        if name == "why":
            panel.locator("[data-do=test]").click()
            expect(panel.locator(".vv-chart")).to_have_count(2)
        expect_accessible(page, within="[role=tabpanel]:not([hidden])")
    open_tab(page, "look")
    page.evaluate("document.querySelector('.vv-known').open = true")
    assert errors == []  # the refusals below are logged as errors
    menu_select(page, "#model select", "timm:vit_small_patch16_224.dino")
    expect(page.locator("#notice")).to_be_visible()
    open_menu(page)
    page.select_option("#model select", "another model")
    expect(page.locator("#another [name=source]")).to_be_focused()
    expect(page.locator(".vv-status")).not_to_be_visible()
    expect_accessible(page)
    page.remove_listener("console", note)


def resize(page: Browser, width: int, height: int) -> None:
    page.set_viewport_size({"width": width, "height": height})
    page.wait_for_function("vitviz.resting()")


@pytest.mark.parametrize(
    ("lang", "sizes"), [("en", SIZES), pytest.param("zh", SIZES[::2], marks=pytest.mark.tier("all"))]
)
def test_nothing_overlaps_or_overflows_at_any_width(
    page: Browser, app: Running, lang: str, sizes: list[tuple[int, int]]
) -> None:
    page.set_viewport_size({"width": SIZES[0][0], "height": SIZES[0][1]})
    ready(page, app.url)
    complete(page)
    change(page, lang=lang)
    for width, height in sizes:
        resize(page, width, height)
        for name in TABS:
            panel = open_tab(page, name)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            assert not panel.locator(CONTROLS).evaluate_all(WIDER), (name, width, lang)
            assert page.evaluate(BREAKABLE) == [], (name, lang)
            boxes = page.locator(".vv-source:visible, .vv-tab:not([hidden]) > div").evaluate_all(BOXES)
            for first, second in combinations(boxes, 2):
                across = min(first[2], second[2]) - max(first[0], second[0])
                down = min(first[3], second[3]) - max(first[1], second[1])
                assert min(across, down) <= 1, (name, first, second)
            if name == "look":
                held = box(page, ".vv-held")
                assert held["y"] < 300  # visible without scrolling, also on a phone
                assert held["width"] > (0.9 if width < 760 else 0.45) * width
                assert held["width"] * held["height"] > 0.45 * width * height or (width, height) != (1440, 900)
                assert box(page, ".vv-top")["height"] < 70
                if width > 760:  # photograph, prediction and the first rows of all heads are in view, side by side
                    grid, ranked = box(page, ".vv-grid"), box(page, ".vv-predictions ol")
                    assert grid["x"] >= held["x"] + held["width"]
                    assert max(ranked["y"] + ranked["height"], held["y"] + held["height"], grid["y"] + 60) < height
                assert page.evaluate("document.querySelector('.gradio-container').offsetWidth") == width
            if name == "why" and width >= 1024:
                assert box(page, ".vv-explain .vv-held")["width"] > 0.42 * width
            if name == "inside" and width == 1920:
                text = panel.locator(".vv-chart svg text").first
                assert text.evaluate("(text) => parseFloat(getComputedStyle(text).fontSize)") >= 12
    open_tab(page, "look")
    unfold(page)
    shares = page.locator(".vv-predictions li > span:last-child")
    shares.first.evaluate("share => { share.textContent = '> 99.9 %'; }")
    change(page, color="viridis")
    for width, height in sizes:
        resize(page, width, height)
        assert box(page, ".vv-explore .vv-bar")["width"] >= 50
        scale, end = box(page, ".vv-explore .vv-scale"), box(page, ".vv-explore .vv-high")
        assert end["y"] + end["height"] <= scale["y"] + scale["height"] + 1  # in the first line
        assert not page.locator(".vv-explore .vv-scale span:visible").evaluate_all(WIDER)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert not shares.evaluate_all(WIDER)


def test_text_is_large_and_views_and_photographs_of_every_shape_fill_the_screen(
    opened: Browser, tmp_path: Path
) -> None:
    size = "(element) => parseFloat(getComputedStyle(element).fontSize)"
    assert opened.locator(".vv-sentence").first.evaluate(size) >= 20
    small = opened.locator(".vv-explore small, .vv-explore .vv-quiet, .vv-badge")
    assert min(element.evaluate(size) for element in small.all()) >= 12
    for name in ("Why", "Inside", "Look"):
        opened.get_by_role("tab", name=name).click()
        opened.click(".vv-top [data-do=full]")
        opened.wait_for_function("document.fullscreenElement !== null && vitviz.store.get().full")
        expect(opened.locator(".vv-tab:not([hidden]) .vv-picture").first).to_be_visible()
        opened.click(".vv-top [data-do=full]")
        opened.wait_for_function("document.fullscreenElement === null && !vitviz.store.get().full")
    open_tab(opened, "look")
    photo, side = Image.open(DOG), 768
    for shape, share in ((1.5, 0.5), (0.66, 0.27), (0.25, 0.11)):
        path = tmp_path / f"{shape}.png"
        photo.resize((side, round(side / shape)) if shape > 1 else (round(side * shape), side)).save(path)
        before = opened.evaluate(f"{SCENE}.id")
        upload(opened, path)
        opened.wait_for_function(f"{SCENE}?.source.photo && {SCENE}.id !== {before!r} && vitviz.resting()")
        complete(opened)
        held, pane, grid = (box(opened, name) for name in (".vv-held", ".vv-panes", ".vv-grid"))
        assert held["width"] > share * 1440
        assert held["height"] > 0.54 * 900
        assert grid["x"] >= pane["x"] + pane["width"]
        assert grid["y"] + grid["height"] / 2 < 900


def test_a_strip_of_3000_pixels_is_legible(opened: Browser, tmp_path: Path) -> None:
    Image.open(DOG).convert("RGB").resize((3000, 40)).save(tmp_path / "strip.png")
    upload(opened, tmp_path / "strip.png")
    opened.wait_for_function(f"{SCENE}?.source.photo && vitviz.resting()")
    complete(opened)
    assert box(opened, ".vv-held")["height"] >= 119  # it scrolls
    assert box(opened, ".vv-grid .vv-small canvas, .vv-grid .vv-map")["height"] >= 12
    assert opened.evaluate("document.documentElement.scrollWidth") <= 1440


def test_picture_precedes_thumbnails_on_a_phone(browser: Chromium, app: Running, tmp_path: Path) -> None:
    with new_page(browser, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True) as page:
        ready(page, app.url)
        tops = [box(page, name)["y"] for name in (".vv-picture", ".vv-predictions", "#examples", ".vv-grid")]
        assert tops == sorted(tops)
        assert tops[0] < 60
        assert tops[2] < 844
        assert page.evaluate("getComputedStyle(document.querySelector('.vv-picture')).touchAction") == "pan-y"
        page.get_by_role("tab", name="Why").click()
        expect(page.locator("[data-field=method]")).to_be_visible()
        page.get_by_role("tab", name="Look").click()
        page.locator(".vv-grid .vv-small").last.tap()
        expect(page.locator(".vv-explore .vv-title")).to_be_visible()  # the change is in sight
        expect(page.locator(".vv-explore .vv-picture")).to_be_in_viewport(ratio=0.95)
        for name in TABS:  # a finger needs 44 pixels
            panel = open_tab(page, name)
            assert panel.locator("button, select, input, summary, a").evaluate_all(SMALL) == []
            assert page.locator(".vv-top, .vv-source").locator("button, input").evaluate_all(SMALL) == []
        open_tab(page, "look")
        for photo, shown in ((own_photograph(tmp_path), ".vv-picture"), (Path(__file__), "#notice")):
            page.evaluate("window.scrollTo(0, 900)")
            expect(page.locator(".vv-file")).to_be_in_viewport(ratio=0.95)  # the button stays at the bottom
            upload(page, photo)
            expect(page.locator(shown).first).to_be_in_viewport(ratio=0.95)
            settled(page)
