"""What can be taken away from the page: links, pictures, pages."""

import base64
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from conftest import watch
from PIL import Image
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Page as Browser
from playwright.sync_api import expect
from running import (
    CHURCH,
    DOG,
    Running,
    address,
    click_patch,
    example,
    expect_map,
    head,
    layer,
    own_photograph,
    ready,
    upload,
    with_own,
)

from vitviz.draw.colors import lut
from vitviz.draw.overlay import overlay
from vitviz.web.scene import fitted


@pytest.fixture
def writer(browser: Chromium) -> Iterator[Browser]:
    """A page that may use the clipboard."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    problems = watch(context)
    yield context.new_page()
    context.close()
    assert not problems


def test_the_link_is_copied_and_opens_the_same(writer: Browser, app: Running) -> None:
    ready(writer, app.url)
    example(writer, "Dog")
    expect_map(writer, app.view(DOG).attention())
    layer(writer, 6)
    click_patch(writer, app.view(DOG), 5, 5)
    writer.click("[data-do=link]")
    expect(writer.locator(".vv-message")).to_contain_text("copied")
    expect(writer.locator(".vv-message")).not_to_contain_text("not in it")
    link = writer.evaluate("navigator.clipboard.readText()")
    assert link.startswith(app.url)
    other = writer.context.new_page()
    ready(other, link)
    expect_map(other, app.view(DOG).attention(6, query=(5, 5)))


def test_a_link_without_the_photograph_says_so(writer: Browser, app: Running, tmp_path: Path) -> None:
    with_own(writer, app, own_photograph(tmp_path, "secret holiday.png"))
    layer(writer, 6)
    writer.click("[data-do=link]")
    expect(writer.locator(".vv-message")).to_contain_text("not in it")
    link = writer.evaluate("navigator.clipboard.readText()")
    assert "image=" not in link
    assert "secret" not in link
    assert parse_qs(urlsplit(link).query)["layer"] == ["7"]


def test_an_uploaded_copy_of_an_example_is_that_example(page: Browser, app: Running, tmp_path: Path) -> None:
    copy = tmp_path / "copy.jpg"
    copy.write_bytes(DOG.read_bytes())
    ready(page, app.url)
    upload(page, copy)
    expect_map(page, app.view(DOG).attention())
    assert address(page)["image"] == "Dog"


def test_the_page_is_saved_and_opens_offline(page: Browser, app: Running, browser: Chromium, tmp_path: Path) -> None:
    ready(page, f"{app.url}?image=Dog")
    expect_map(page, app.view(DOG).attention())
    with page.expect_download() as coming:
        page.click("[data-do=page]")
    file = tmp_path / coming.value.suggested_filename
    assert re.fullmatch(r"vitviz-Dog-[\w.-]+\.html", file.name)
    coming.value.save_as(file)
    assert file.stat().st_size < 8_000_000
    context = browser.new_context(viewport={"width": 1440, "height": 900}, offline=True)
    problems = watch(context)
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    saved = context.new_page()
    ready(saved, file.as_uri())
    view = app.view(DOG)
    expect_map(saved, view.attention())
    layer(saved, 3)
    head(saved, 4)
    click_patch(saved, view, 6, 2)
    expect_map(saved, view.attention(3, 4, (6, 2)))
    saved.check(".vv-modes input[value=rollout]")
    expect_map(saved, view.rollout((6, 2)))
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert not problems
    context.close()


def test_the_picture_is_saved_as_python_draws_it(page: Browser, app: Running) -> None:
    view = app.view(CHURCH)
    ready(page, f"{app.url}?image=Church&layer=8&head=3&from=5,6&grid=1&color=magma&overlay=even&opacity=0.55")
    heatmap = view.attention(7, 2, (4, 5))
    expect_map(page, heatmap)
    with page.expect_download() as coming:
        page.click("[data-do=picture]")
    saved = Image.open(coming.value.path()).convert("RGB")
    photo = Image.open(io.BytesIO(_photo(page))).convert("RGB")
    _, geometry = fitted(view.photo, view.geometry, max(photo.size))
    drawn = overlay(photo, heatmap.values, geometry, cmap="magma", alpha=0.55, grid=True, query=heatmap.query)
    assert saved.width == drawn.width == photo.width
    assert saved.height > drawn.height == photo.height
    off = np.abs(np.asarray(saved, int)[: photo.height] - np.asarray(drawn, int))
    assert np.quantile(off, 0.99) <= 2
    caption = np.asarray(saved)[photo.height :]
    for color in lut("magma")[[0, -1]]:  # the color bar's ends
        assert (np.abs(caption.astype(int) - color).max(-1) <= 3).sum() > 5


WRITTEN = """() => {
    const { prototype } = CanvasRenderingContext2D;
    const write = prototype.fillText;
    window.written = [];
    prototype.fillText = function (text, x, y) {
        window.written.push([text, x + this.measureText(text).width, y, parseFloat(/[\\d.]+px/.exec(this.font)[0])]);
        return write.call(this, text, x, y);
    };
}"""


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


def test_a_saved_picture_says_what_it_shows(page: Browser, app: Running) -> None:
    view = app.view(CHURCH)
    ready(page, f"{app.url}?image=Church&layer=8&head=3&from=5,6")
    read = expect_map(page, view.attention(7, 2, (4, 5)))
    page.evaluate("vitviz.store.dispatch({ type: 'change', change: { gamma: 0.5 } })")
    page.wait_for_function("vitviz.resting()")
    name, words, _ = captioned(page)
    assert name == "vitviz-Church-DINOv2-S-14-10-classes-Layer-8-head-3-from-patch-row-5-column-6.png"
    for part in (read["title"], read["low"], f"{read['high']}  of attention", "gamma 0.5", read["answer"], "Church"):
        assert part in words


def test_a_saved_rollout_says_its_options_and_a_bare_photograph_no_scale(page: Browser, app: Running) -> None:
    ready(page, f"{app.url}?mode=rollout&discard=0.2&residual=0.4&fuse=max&start=3")
    page.wait_for_function("vitviz.views[0].panes[0].pane.title.startsWith('Rollout of layers 3 to 12, max of heads')")
    name, words, _ = captioned(page)
    assert "Rollout-of-layers-3-to-12-max-of-heads-from-CLS" in name
    assert "skip connection 40 % · weakest 20 % dropped" in words
    page.get_by_label("Photograph only").check()
    page.wait_for_function("vitviz.views[0].panes[0].pane.opacity === 0")
    name, words, _ = captioned(page)
    assert name.endswith("-Photograph.png")
    assert "Rollout" not in words
    assert "of attention" not in words


def _photo(page: Browser) -> bytes:
    """The photograph that the page was given, decoded by the browser: decoders of JPEG differ by some levels."""
    url = page.evaluate(
        """async () => {
            const { url, width, height } = vitviz.scenes.get(vitviz.store.get().scene.id).manifest.photo;
            const image = new Image();
            image.src = url;
            await image.decode();
            const canvas = Object.assign(document.createElement('canvas'), { width, height });
            canvas.getContext('2d').drawImage(image, 0, 0);
            return canvas.toDataURL('image/png');
        }"""
    )
    return base64.b64decode(url.split(",")[1])


def test_no_path_of_the_server_is_in_the_page(page: Browser, app: Running, tmp_path: Path) -> None:
    with_own(page, app, own_photograph(tmp_path, "mine.png"))
    told = page.evaluate("JSON.stringify(vitviz.scenes.get(vitviz.store.get().scene.id).manifest)")
    told = json.dumps({name: value for name, value in json.loads(told).items() if name != "photo"})
    assert not re.search(r"/tmp|/home|gradio|mine\.png|site-packages", told)
