"""What can be taken away from the page: links, pictures, pages."""

import base64
import io
import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
from browsing import new_page
from PIL import Image
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Page as Browser
from playwright.sync_api import expect
from running import DOG, Running, change, click_patch, example, expect_map, layer, own_photograph, ready, upload

from vitviz.draw.colors import lut
from vitviz.draw.overlay import overlay
from vitviz.web.scene import fitted


def test_a_copied_link_opens_the_same_or_says_what_it_lacks(page: Browser, app: Running, tmp_path: Path) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    ready(page, app.url)
    example(page, "Dog")
    expect_map(page, app.view(DOG).attention())
    layer(page, 1)
    click_patch(page, app.view(DOG), 5, 5)
    page.click("[data-do=link]")
    message = page.locator(".vv-message")
    expect(message).to_contain_text("copied")
    expect(message).not_to_contain_text("not in it")
    link = page.evaluate("navigator.clipboard.readText()")
    assert link.startswith(app.url)
    photo = own_photograph(tmp_path, "secret holiday.png")
    upload(page, photo)
    page.keyboard.press("Escape")
    page.click("[data-do=link]")
    expect(message).to_contain_text("not in it")
    lacking = page.evaluate("navigator.clipboard.readText()")
    assert "image=" not in lacking
    assert "secret" not in lacking
    assert parse_qs(urlsplit(lacking).query)["layer"] == ["2"]
    other = page.context.new_page()
    ready(other, link)
    expect_map(other, app.view(DOG).attention(1, query=(5, 5)))


def test_the_page_is_saved_and_opens_offline(page: Browser, app: Running, browser: Chromium, tmp_path: Path) -> None:
    ready(page, f"{app.url}?image=Dog&layer=2")
    expect_map(page, app.view(DOG).attention(1))
    with page.expect_download() as coming:
        page.click("[data-do=page]")
    file = tmp_path / coming.value.suggested_filename
    assert re.fullmatch(r"vitviz-Dog-[\w.-]+\.html", file.name)
    coming.value.save_as(file)
    with new_page(browser, offline=True) as saved:
        ready(saved, file.as_uri())
        expect_map(saved, app.view(DOG).attention(1))


# ---- pictures

WRITTEN = """() => {
    const { prototype } = CanvasRenderingContext2D;
    const write = prototype.fillText;
    window.written = [];
    prototype.fillText = function (text, x, y) {
        window.written.push([text, x + this.measureText(text).width, y, parseFloat(/[\\d.]+px/.exec(this.font)[0])]);
        return write.call(this, text, x, y);
    };
}"""
PHOTO = """async () => {
    const { url, width, height } = vitviz.scenes.get(vitviz.store.get().scene.id).manifest.photo;
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = Object.assign(document.createElement('canvas'), { width, height });
    canvas.getContext('2d').drawImage(image, 0, 0);
    return canvas.toDataURL('image/png');
}"""  # decoded by the browser: decoders of JPEG differ by some levels


def captioned(page: Browser) -> tuple[str, str, Image.Image]:
    """The name, the caption and the pixels of a saved picture; every word is legible, and below the map."""
    page.evaluate(WRITTEN)
    with page.expect_download() as coming:
        page.click("[data-do=picture]")
    picture = Image.open(coming.value.path()).convert("RGB")
    written = page.evaluate("window.written")
    height = page.evaluate("vitviz.scenes.get(vitviz.store.get().scene.id).manifest.photo.height")
    for _, right, middle, size in written:
        assert right <= picture.width
        assert height + size / 2 < middle < picture.height - size / 2
        assert size >= picture.width / 60
    return coming.value.suggested_filename, " ".join(text for text, *_ in written), picture


def test_a_saved_picture_is_pythons_and_its_caption_says_what_it_shows(page: Browser, app: Running) -> None:
    view = app.view()
    ready(page, f"{app.url}?image=Church&layer=2&head=3&from=5,6&grid=1&color=magma&overlay=even&opacity=0.55")
    heatmap = view.attention(1, 2, (4, 5))
    read = expect_map(page, heatmap)
    name, words, saved = captioned(page)
    assert name == "vitviz-Church-Tiny-native-Layer-2-head-3-from-patch-row-5-column-6.png"
    for part in (read["title"], read["low"], f"{read['high']}  of attention", read["answer"], "Church"):
        assert part in words
    photo = Image.open(io.BytesIO(base64.b64decode(page.evaluate(PHOTO).split(",")[1]))).convert("RGB")
    _, geometry = fitted(view.photo, view.geometry, max(photo.size))
    drawn = overlay(photo, heatmap.values, geometry, cmap="magma", alpha=0.55, grid=True, query=heatmap.query)
    assert saved.width == drawn.width == photo.width
    assert saved.height > drawn.height == photo.height
    off = np.abs(np.asarray(saved, int)[: photo.height] - np.asarray(drawn, int))
    assert np.quantile(off, 0.99) <= 2
    caption = np.asarray(saved)[photo.height :]
    for color in lut("magma")[[0, -1]]:  # the color bar's ends
        assert (np.abs(caption.astype(int) - color).max(-1) <= 3).sum() > 5
    change(page, gamma=0.5, mode="rollout", query="cls", discard=0.2, residual=0.4, fuse="max", start=2)
    page.wait_for_function("vitviz.views[0].panes[0].pane.title.startsWith('Rollout of layers 2 to 3, max of heads')")
    name, words, _ = captioned(page)
    assert "Rollout-of-layers-2-to-3-max-of-heads-from-CLS" in name
    assert "skip connection 40 % · weakest 20 % dropped · gamma 0.5" in words
    page.get_by_label("Photograph only").check()
    page.wait_for_function("vitviz.views[0].panes[0].pane.opacity === 0")
    name, words, _ = captioned(page)
    assert name.endswith("-Photograph.png")
    assert "Rollout" not in words
    assert "of attention" not in words
