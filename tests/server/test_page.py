"""The app as a visitor uses it, in a real browser with the real model, held against Python's numbers."""

import io
import re
import time
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser as Chromium
from playwright.sync_api import Page as Browser
from playwright.sync_api import expect
from running import (
    CHURCH,
    DOG,
    MODEL,
    WAIT,
    Gate,
    Running,
    at_patch,
    axe,
    click_patch,
    complete,
    example,
    expect_map,
    expect_unchanged,
    head,
    layer,
    own_photograph,
    ready,
    unfold,
    upload,
)

from vitviz.explorer import Explorer
from vitviz.formatting import percent


def test_the_page_opens_with_the_first_example_analysed(opened: Browser, app: Running) -> None:
    view = app.view()
    expect_map(opened, view.attention())
    best = view.predictions()
    expect(opened.locator(".vv-name")).to_have_text([label for label, _ in best])
    expect(opened.locator(".vv-predictions li").first).to_contain_text(percent(best[0][1]))
    expect(opened.locator(".vv-explore .vv-answer")).to_have_text(
        f"Closest of 10 classes: church {percent(best[0][1])}"
    )
    assert best[0][0] == "church"
    assert opened.locator(".vv-heads button").count() == 3 + view.trace.heads
    assert opened.locator(".vv-layers button").count() == view.trace.depth
    assert opened.locator(".vv-grid button").count() == view.trace.depth * view.trace.heads
    expect(opened.locator("#badge")).to_contain_text(re.compile(r"(CPU|CUDA|MPS) · [\d.]+ m?s · 13 x 20 patches"))
    expect(opened.locator(".vv-known")).to_contain_text("10 classes")
    expect(opened.get_by_role("alert")).not_to_be_visible()


def test_every_layer_and_head_is_pythons(opened: Browser, app: Running) -> None:
    complete(opened)
    view = app.view()
    head(opened, 3)
    expect_map(opened, view.attention(11, 3))
    expect(opened.locator(".vv-heads button[data-value='3']")).to_have_attribute("aria-pressed", "true")
    layer(opened, 4)
    expect_map(opened, view.attention(4, 3))
    opened.click(".vv-grid button[data-value='7,5']")
    expect_map(opened, view.attention(7, 5))
    opened.check(".vv-modes input[value=rollout]")
    expect_map(opened, view.rollout())
    head(opened, "max")  # a head on the wall is attention again
    expect_map(opened, view.attention(7, "max"))
    opened.check(".vv-queries input[value=mean]")
    expect_map(opened, view.attention(7, "max", "mean"))


def test_the_pointer_asks_and_a_click_stays(opened: Browser, app: Running) -> None:
    complete(opened)
    view = app.view()
    assert view.trace.grid[0] != view.trace.grid[1]  # the photograph keeps its own shape
    opened.mouse.move(*at_patch(opened, view, 9, 4))
    expect_map(opened, view.attention(query=(9, 4)))
    opened.mouse.move(*at_patch(opened, view, 2, 19))
    expect_map(opened, view.attention(query=(2, 19)))
    opened.mouse.move(5, 5)
    expect_map(opened, view.attention())
    click_patch(opened, view, 9, 4)
    opened.mouse.move(5, 5)
    expect_map(opened, view.attention(query=(9, 4)))
    expect(opened.locator(".vv-where")).to_contain_text("row 10, column 5")


def test_the_keyboard_moves_the_patch(opened: Browser, app: Running) -> None:
    complete(opened)
    view = app.view()
    rows, columns = view.trace.grid
    opened.focus(".vv-picture")
    for key in ("ArrowUp", "ArrowUp", "ArrowRight"):
        opened.keyboard.press(key)
    expect_map(opened, view.attention(query=(rows // 2 - 1, columns // 2 + 1)))
    opened.keyboard.press("c")
    expect_map(opened, view.attention())


# --- photographs


def test_an_uploaded_photograph_is_analysed(opened: Browser, app: Running, tmp_path: Path) -> None:
    photo = own_photograph(tmp_path)
    upload(opened, photo)
    view = app.view(photo)
    expect_map(opened, view.attention())
    expect(opened.locator(".vv-explore .vv-answer")).to_have_text(view.describe())


@pytest.mark.parametrize("way", ["drop", "paste"])
def test_a_photograph_can_be_dropped_or_pasted_anywhere(opened: Browser, app: Running, way: str) -> None:
    opened.evaluate(
        """async ([way, bytes]) => {
            const carried = new DataTransfer();
            carried.items.add(new File([new Uint8Array(bytes)], 'dog.jpg', { type: 'image/jpeg' }));
            const place = document.querySelector('.vv-predictions');
            const event = way === 'drop'
                ? new DragEvent('drop', { dataTransfer: carried, bubbles: true, cancelable: true })
                : new ClipboardEvent('paste', { clipboardData: carried, bubbles: true, cancelable: true });
            place.dispatchEvent(event);
        }""",
        [way, list(DOG.read_bytes())],
    )
    expect_map(opened, app.view(DOG).attention())


def test_what_is_pinned_stays_at_its_place_in_a_finer_grid(opened: Browser, app: Running, small: str) -> None:
    click_patch(opened, app.view(), 6, 9)
    opened.evaluate("vitviz.store.dispatch({ type: 'change', change: { start: 12 } })")
    opened.select_option("#model select", small)
    opened.wait_for_function(f"vitviz.store.get().scene.source.model === {small!r}")
    here, there = app.view(), app.view(model=small)
    state = opened.evaluate("vitviz.store.get()")
    left, top, right, bottom = there.geometry.frame
    across = (9.5 / here.trace.grid[1] * here.photo.width - left) / (
        right - left
    )  # the model sees the whole photograph
    down = (6.5 / here.trace.grid[0] * here.photo.height - top) / (bottom - top)
    assert state["query"] == [int(down * there.trace.grid[0]), int(across * there.trace.grid[1])]
    assert state["start"] == there.trace.depth
    expect(opened.locator(".vv-message")).not_to_be_visible()  # nobody asked for layer 12 of this model


def test_a_file_that_is_no_picture_is_refused_in_words(opened: Browser, app: Running, tmp_path: Path) -> None:
    bogus = tmp_path / "holiday.jpg"
    bogus.write_text("this is not a photograph")
    before = expect_map(opened, app.view().attention())
    upload(opened, bogus)
    expect(opened.get_by_role("alert")).to_contain_text("Expected a photograph as JPEG")
    expect_unchanged(opened, before)  # the old picture stays
    head(opened, 2)  # what is on the page can still be asked
    expect_map(opened, app.view().attention(head=2))
    head(opened, "mean")
    upload(opened, DOG)
    expect_map(opened, app.view(DOG).attention())
    expect(opened.get_by_role("alert")).not_to_be_visible()


def test_a_photograph_taken_on_its_side_stands_upright(opened: Browser, app: Running, tmp_path: Path) -> None:
    photo = tmp_path / "phone.jpg"
    upright = Image.new("RGB", (600, 1000), "black")
    upright.paste((255, 255, 255), (120, 40, 220, 140))  # a bright marker
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show it a quarter turn clockwise
    upright.transpose(Image.Transpose.ROTATE_90).save(photo, exif=exif, quality=95)
    upload(opened, photo)
    view = app.view(photo)
    assert view.photo.size == (600, 1000)
    expect_map(opened, view.attention())
    rows, columns = view.trace.grid
    marker = next(
        (row, column)
        for row in range(rows)
        for column in range(columns)
        if _holds(view.geometry.patch_box(row, column, (rows, columns)), (170, 90))
    )
    click_patch(opened, view, *marker)
    expect_map(opened, view.attention(query=marker))
    x, y = at_patch(opened, view, *marker)
    seen = opened.evaluate(
        """([x, y]) => {
            const canvas = document.querySelector('.vv-held canvas');
            const box = canvas.getBoundingClientRect();
            const at = [(x - box.x) / box.width * canvas.width, (y - box.y) / box.height * canvas.height];
            const context = canvas.getContext('2d');
            const level = (x, y) => context.getImageData(Math.floor(x), Math.floor(y), 1, 1).data[0];
            return [canvas.width, canvas.height, level(...at), level(at[0], canvas.height - at[1])];
        }""",
        [x, y],
    )
    assert seen[:2] == [600, 1000]
    assert seen[2] > 240
    assert seen[3] < 15


def _holds(box: tuple[float, float, float, float], point: tuple[float, float]) -> bool:
    return box[0] <= point[0] < box[2] and box[1] <= point[1] < box[3]


def test_photographs_one_after_the_other_do_not_mix(opened: Browser, app: Running) -> None:
    for name in ("Dog", "Lizard", "Koala", "Church", "Dog"):
        example(opened, name)  # faster than the model runs
    expect_map(opened, app.view(DOG).attention())
    complete(opened)
    for block in (0, 5, 11):
        layer(opened, block)
        expect_map(opened, app.view(DOG).attention(block))
    expect(opened.locator(".vv-name").first).to_have_text(app.view(DOG).predictions(1)[0][0])


def test_two_visitors_do_not_mix(opened: Browser, app: Running, browser: Chromium) -> None:
    other = browser.new_page()
    ready(other, app.url)
    upload(other, DOG)
    expect_map(other, app.view(DOG).attention())
    head(opened, 2)
    expect_map(opened, app.view().attention(head=2))
    head(other, 1)
    expect_map(other, app.view(DOG).attention(head=1))
    other.close()


def test_the_model_runs_once_for_a_photograph(opened: Browser, app: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    example(opened, "Dog")
    expected = [app.view(DOG).attention(block, 5) for block in (11, 0)]
    expect_map(opened, app.view(DOG).attention())

    def run(*_: object) -> None:
        raise AssertionError("the model ran again")

    monkeypatch.setattr(Explorer, "open", run)
    head(opened, 5)
    expect_map(opened, expected[0])
    layer(opened, 0)
    expect_map(opened, expected[1])
    expect(opened.get_by_role("alert")).not_to_be_visible()


# --- what the server forgot


def forget(app: Running) -> None:
    """As if the server had been restarted, or another replica were asked."""
    app.endpoints.scenes.discard(lambda *_: True)
    app.endpoints.answers.discard(lambda *_: True)


def test_a_forgotten_photograph_is_opened_again(opened: Browser, app: Running) -> None:
    gate = Gate(opened, "**/vitviz/block")
    example(opened, "Dog")
    opened.wait_for_function("vitviz.store.get().scene.source.image === 'Dog'")
    while not gate.held:
        opened.wait_for_timeout(20)
    forget(app)
    gate.open()
    expect_map(opened, app.view(DOG).attention())
    layer(opened, 0)
    expect_map(opened, app.view(DOG).attention(0))
    complete(opened)
    expect(opened.locator(".vv-message")).not_to_be_visible()


def test_a_forgotten_photograph_of_ones_own_is_sent_again(opened: Browser, app: Running, tmp_path: Path) -> None:
    photo = own_photograph(tmp_path)
    upload(opened, photo)
    expect_map(opened, app.view(photo).attention())
    complete(opened)
    forget(app)
    opened.check(".vv-modes input[value=rollout]")
    opened.click(".vv-rollout summary")
    opened.select_option("[data-key=fuse]", "max")
    expect_map(opened, app.view(photo).rollout(fuse="max"))
    expect(opened.locator(".vv-message")).not_to_be_visible()


# --- looks


@pytest.mark.parametrize("width", [390, 820, 1024, 1440])
def test_nothing_sticks_out(page: Browser, app: Running, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    ready(page, app.url)
    unfold(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.querySelector('.gradio-container').offsetWidth") == width
    page.locator(".vv-predictions li > span:last-child").first.evaluate("said => { said.textContent = '> 99.9 %'; }")
    wider = "said => said.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent)"
    assert not page.locator(".vv-predictions li > span:last-child").evaluate_all(wider)
    assert width < 760 or page.evaluate("document.querySelector('.vv-top').offsetHeight") < 100
    box = page.locator(".vv-held").first.bounding_box()
    assert box is not None
    assert box["y"] < 300  # the picture is on the first screen, on a phone too
    assert box["width"] > (0.9 if width < 760 else 0.5 if width < 1000 else 0.4) * width


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_passes_axe(page: Browser, app: Running, theme: str) -> None:
    ready(page, f"{app.url}?theme={theme}")
    expect(page.locator(".loading")).to_have_count(0)  # gradio's own, while the page settles
    assert not axe(page)
    unfold(page)
    click_patch(page, app.view(), 3, 3)
    page.click("[data-do=compare]")
    assert not axe(page)


def brightest(page: Browser, clip: dict[str, int]) -> int:
    """The brightest gray, 0..255, of a part of the screen."""
    with Image.open(io.BytesIO(page.screenshot(clip=clip))) as shot:
        return shot.convert("L").getextrema()[1]


def test_light_and_dark_are_a_click_apart(opened: Browser) -> None:
    ground = "getComputedStyle(document.querySelector('.vv button[data-do=help]')).backgroundColor"
    light = opened.evaluate(ground)
    opened.click(".theme")
    dark = opened.evaluate(ground)
    assert dark != light
    opened.set_viewport_size({"width": 1440, "height": 4000})  # higher than the page
    until = time.monotonic() + WAIT
    while brightest(opened, {"x": 0, "y": 3900, "width": 300, "height": 100}) >= 128:
        assert time.monotonic() < until, "what lies below the page is not dark"
        opened.wait_for_timeout(100)
    opened.click(".theme")
    assert opened.evaluate(ground) == light


def test_the_model_is_the_one_of_the_menu(opened: Browser) -> None:
    assert opened.evaluate("vitviz.store.get().scene.source.model") == MODEL
    assert opened.input_value("#model select") == MODEL
    assert CHURCH.stem == opened.evaluate("vitviz.store.get().image").lower()
