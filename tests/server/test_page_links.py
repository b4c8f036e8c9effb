"""The page's address, its history, and copied links, saved pages and pictures."""

import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from browsing import menu_click, menu_select, new_page
from PIL import Image
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Page as Browser
from playwright.sync_api import expect
from running import (
    DOG,
    EXAMPLES,
    SCENE,
    Running,
    address,
    change,
    click_patch,
    example,
    expect_map,
    layer,
    more,
    own_photograph,
    ready,
    upload,
)

from vitviz.draw.colors import lut

KOALA = EXAMPLES / "koala.jpg"  # portrait: 10 rows of patches, while the first example has 7


def test_link_restores_its_state(page: Browser, app: Running, small: str) -> None:
    ready(page, f"{app.url}?image=Dog&layer=2&head=2&from=4,7&color=magma&opacity=0.3&grid=1&smooth=1&gamma=0.5")
    expect(page.locator(".vv-explore .vv-title")).to_have_text("Layer 2, head 2, from patch row 4, column 7")
    change(page, gamma=1)  # `expect_map` compares colors without gamma
    expect_map(page, app.view(DOG).attention(1, 1, (3, 6)))
    expect(page.locator(".vv-message")).not_to_be_visible()
    ready(page, f"{app.url}?image=Dog&model={small}&layer=2&head=5&from=register-2")
    expect_map(page, app.view(DOG, small).attention(1, 4, "register 2"))
    expect(page.locator("#model select")).to_have_value(small)
    assert app.view().trace.grid[0] < 9 <= app.view(KOALA).trace.grid[0]
    ready(page, f"{app.url}?image=Koala&layer=2&from=9,3&__theme=dark")  # only this photograph has this row
    expect_map(page, app.view(KOALA).attention(1, query=(8, 2)))
    expect(page.locator(".vv-message")).not_to_be_visible()
    layer(page, 2)
    assert (address(page)["__theme"], address(page)["layer"]) == ("dark", "3")  # other parameters stay


@pytest.mark.tier("all")
def test_link_opens_a_step_of_the_lecture_and_its_qr_code(page: Browser, app: Running) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    ready(page, f"{app.url}?tab=lecture&step=5&lang=zh&from=6,10")
    expect(page.locator("[role=tab][aria-selected=true]")).to_be_in_viewport(ratio=1)  # the list scrolls on a phone
    page.set_viewport_size({"width": 1440, "height": 900})
    chosen = page.locator(".vv-ribbon [aria-current]")
    expect(chosen).to_have_attribute("data-step", "5")
    expect(page.locator(".vv-text h2")).to_have_text("每个词元得到位置")
    expect(page.locator(".vv-tokens [aria-current]")).to_have_text(f"图块 {5 * app.view().trace.grid[1] + 10}")
    page.click("[data-go=qr]")
    expect(page.locator(".vv-qr svg")).to_be_visible()
    expect(page.locator(".vv-qr .vv-address")).to_have_text(page.url)
    page.keyboard.press("PageDown")  # the dialog is open, so the step stays
    page.keyboard.press("Escape")
    expect(page.locator(".vv-qr")).not_to_be_visible()
    expect(chosen).to_have_attribute("data-step", "5")
    page.click("[data-go='1']")
    expect(page.locator(".vv-step:visible")).to_have_attribute("data-of", "6")
    assert address(page)["step"] == "6"
    page.go_back()
    expect(chosen).to_have_attribute("data-step", "5")


@pytest.mark.tier("all")
def test_link_restores_the_input_size(page: Browser, app: Running, small: str) -> None:
    ready(page, f"{app.url}?model={small}")
    own = app.view(model=small).preprocess
    expect_map(page, app.view(model=small).attention())
    change(page, open=["input"])
    options = page.locator("#size select option").all_text_contents()
    assert options[0] == "Standard · 77 patches"
    assert re.fullmatch(r"2\s× · 308 patches · (under a second|about \d+\s(s|min))", options[1])
    menu_select(page, "#size select", index=1)
    page.wait_for_function("vitviz.store.get().scene.source.size !== null")
    size = page.evaluate("vitviz.store.get().size")
    assert size == 2 * max(own.height, own.width)
    finer = app.view(model=small, size=size)
    click_patch(page, finer, 5, 6)
    expect_map(page, finer.attention(query=(5, 6)))
    restored = address(page)
    assert (restored["size"], restored["from"]) == (str(size), "6,7")
    page.reload()
    page.wait_for_function(f"window.vitviz?.store.get().scene?.source.size === {size}")
    expect_map(page, finer.attention(query=(5, 6)))
    expect(page.locator("#size select")).to_have_value(str(size))
    assert address(page) == restored
    expect(page.locator(".vv-seen .vv-quiet")).to_contain_text("14 × 22 patches")
    page.go_back()  # undoes the click
    page.go_back()
    page.wait_for_function("vitviz.store.get().scene.source.size === null")
    expect_map(page, app.view(model=small).attention())
    menu_select(page, "#size select", index=1)
    expect_map(page, app.view(model=small, size=size).attention())
    menu_select(page, "#model select", app.default)  # other models start with their own size
    expect_map(page, app.view().attention())
    expect(page.locator("#size option:checked")).to_have_text(re.compile("^Standard"))
    page.goto(f"{app.url}?image=Dog&size=99999&layer=3")
    expect(page.get_by_role("alert")).to_contain_text("at most")


NONSENSE = {
    "image=Nobody&layer=2&head=2&from=4,7": ["Nobody", "Church, Dog, Lizard"],
    "image=Koala&model=/etc&layer=2": ["Expected the name of a model"],
    "photo=0123456789abcdef01234567&layer=2": ["stored only in the browser that created the link"],
    "image=Church&layer=99&head=nine&from=300,1&mode=telepathy&opacity=7": [
        f"{part}: expected" for part in ("layer", "head", "from", "mode", "opacity")
    ],
}


def test_page_opens_despite_an_invalid_link_and_explains_it(page: Browser, app: Running) -> None:
    for search, texts in NONSENSE.items():
        ready(page, f"{app.url}?{search}")
        for text in texts:
            expect(page.locator(".vv-message")).to_contain_text(text)
        expect(page.get_by_role("alert")).to_be_visible()
        layer(page, 0)
        change(page, head="mean", query="cls")
        expect_map(page, app.view().attention(0))
        shown = address(page)
        assert (shown.get("image", "Church"), shown.get("model", app.default)) == ("Church", app.default)


def test_own_photograph_survives_history_and_reload(page: Browser, app: Running, tmp_path: Path) -> None:
    photo = own_photograph(tmp_path)
    ready(page, app.url)
    upload(page, photo)
    expect_map(page, app.view(photo).attention())
    assert "image" not in address(page)
    assert "photo" in address(page)
    example(page, "Dog")
    expect_map(page, app.view(DOG).attention())
    page.go_back()
    expect_map(page, app.view(photo).attention())
    page.go_forward()
    expect_map(page, app.view(DOG).attention())
    page.go_back()
    page.reload()
    page.wait_for_function("window.vitviz?.drawn > 0")
    expect_map(page, app.view(photo).attention())
    expect(page.locator("[data-kind=example][aria-pressed=true]")).to_have_count(0)


def test_copied_link_restores_the_state_or_states_what_is_missing(page: Browser, app: Running, tmp_path: Path) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    ready(page, app.url)
    example(page, "Dog")
    expect_map(page, app.view(DOG).attention())
    layer(page, 1)
    change(page, theme="dark", lang="zh")
    change(page, lang="en")
    click_patch(page, app.view(DOG), 5, 5)
    menu_click(page, "link")
    message = page.locator(".vv-message")
    expect(message).to_contain_text("copied")
    expect(message).not_to_contain_text("does not contain your photograph")
    link = page.evaluate("navigator.clipboard.readText()")
    assert link.startswith(app.url)
    assert not {"theme", "lang"} & parse_qs(urlsplit(link).query).keys()  # the sender's
    photo = own_photograph(tmp_path, "secret holiday.png")
    upload(page, photo)
    page.keyboard.press("Escape")
    menu_click(page, "link")
    expect(message).to_contain_text("does not contain your photograph")
    lacking = page.evaluate("navigator.clipboard.readText()")
    assert "image=" not in lacking
    assert "secret" not in lacking
    assert parse_qs(urlsplit(lacking).query)["layer"] == ["2"]
    other = page.context.new_page()
    ready(other, link)
    expect_map(other, app.view(DOG).attention(1, query=(5, 5)))


PRINT = 1890  # pixels of a saved picture, at least
WRITTEN = """() => {
    const { prototype } = CanvasRenderingContext2D;
    const write = prototype.fillText;
    window.written = [];
    prototype.fillText = function (text, x, y) {
        window.written.push([text, x + this.measureText(text).width, y, parseFloat(/[\\d.]+px/.exec(this.font)[0])]);
        return write.call(this, text, x, y);
    };
}"""


def captioned(page: Browser) -> tuple[str, str, np.ndarray]:
    """Return a saved picture's name, caption and caption pixels; check that all text is legible and below the map."""
    page.evaluate(WRITTEN)
    with page.expect_download() as coming:
        menu_click(page, "picture")
    picture = Image.open(coming.value.path()).convert("RGB")
    written = page.evaluate("window.written")
    width, height = page.evaluate(f"(({{ width, height }}) => [width, height])({SCENE}.manifest.photo)")
    assert picture.width == max(width, PRINT)
    width, height = picture.width, round(height * picture.width / width)
    for _, right, middle, size in written:
        assert right <= width
        assert height + size / 2 < middle < picture.height - size / 2
        assert size >= width / 60
    return coming.value.suggested_filename, " ".join(text for text, *_ in written), np.asarray(picture, int)[height:]


@pytest.mark.tier("all")
def test_saved_page_works_offline_and_saved_pictures_have_captions(
    page: Browser, app: Running, browser: Chromium, tmp_path: Path
) -> None:
    """tests/web/test_viewer_page.py checks the pixels of the map."""
    ready(page, f"{app.url}?image=Church&layer=2&head=3&from=5,6&color=magma")
    read = expect_map(page, app.view().attention(1, 2, (4, 5)))
    more(page)
    with page.expect_download() as coming:
        menu_click(page, "page")
    file = tmp_path / coming.value.suggested_filename
    assert re.fullmatch(r"vitviz-Church-[\w.-]+\.html", file.name)
    coming.value.save_as(file)
    with new_page(browser, offline=True) as saved:
        ready(saved, file.as_uri())
        expect_map(saved, app.view().attention(1, 2, (4, 5)))
    page.click("[data-tab=lecture]")
    with page.expect_download() as coming:
        page.click("[data-go=save]")
    coming.value.save_as(file)
    with new_page(browser, offline=True) as saved:
        ready(saved, file.as_uri())
        expect(saved.locator(".vv-step:visible")).to_have_count(1)
        expect(saved.locator("[data-go=save]")).to_have_count(0)
    page.click("[data-tab=look]")
    name, caption, pixels = captioned(page)
    assert name == "vitviz-Church-Tiny-native-Layer-2-head-3-from-patch-row-5-column-6.png"
    for part in (read["title"], read["low"], f"{read['high']}  of attention", read["answer"], "Church"):
        assert part in caption
    for color in lut("magma")[[0, -1]]:  # ends of the color bar
        assert (np.abs(pixels - color).max(-1) <= 3).sum() > 5
    change(page, gamma=0.5, mode="rollout", query="cls", discard=0.2, residual=0.4, fuse="max", start=2)
    page.wait_for_function("vitviz.panels[0].panes[0].pane.title.startsWith('Rollout of layers 2 to 3, max of heads')")
    name, caption, _ = captioned(page)
    assert "Rollout-of-layers-2-to-3-max-of-heads-from-CLS" in name
    assert "skip connection 40\xa0% · weakest 20\xa0% discarded · gamma 0.5" in caption
    page.get_by_label("Photograph only").check()
    page.wait_for_function("vitviz.panels[0].panes[0].pane.opacity === 0")
    name, caption, _ = captioned(page)
    assert name.endswith("-Photograph.png")
    assert "Rollout" not in caption
    assert "of attention" not in caption
