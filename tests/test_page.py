"""The app as a visitor uses it, in a real browser with the real model. Pictures are held against Python's own."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from PIL import Image
from playwright.sync_api import Page as Browser
from playwright.sync_api import expect
from running import CHURCH, DOG, FIRST, MODEL, Running, click_patch, expect_picture, picture, ready, upload

from vitviz.config import preset
from vitviz.explorer import Explorer
from vitviz.model import ViT
from vitviz.ui import draw
from vitviz.ui.draw import PATCH, Knobs
from vitviz.ui.menu import Menu
from vitviz.ui.sessions import Sessions, Shown
from vitviz.ui.settings import Settings


@pytest.fixture(scope="module")
def app() -> Iterator[Running]:
    running = Running()
    yield running
    running.demo.close()


@pytest.fixture
def opened(page: Browser, app: Running) -> Browser:
    ready(page, f"{app.url}?__theme=light")
    return page


def test_the_page_opens_with_the_first_example_analysed(opened: Browser, app: Running) -> None:
    expect_picture(opened, app.python(CHURCH, FIRST))
    best = app.sessions.open("test", CHURCH, MODEL).view.predictions()
    expect(opened.locator(".predictions .name")).to_have_text([label for label, _ in best])
    expect(opened.locator(".predictions .number").first).to_have_text(draw.percent(best[0][1]))
    assert best[0][0] == "church"
    assert opened.locator("#heads button").count() == 3 + 6
    assert opened.locator("#layers button").count() == 12
    expect(opened.locator("#badge")).to_contain_text(re.compile(r"(CPU|CUDA|MPS) · \d+ ms"))
    expect(opened.locator(".known")).to_contain_text("10 classes")


def test_an_uploaded_photograph_is_analysed(opened: Browser, app: Running, tmp_path: Path) -> None:
    photo = tmp_path / "mine.png"
    Image.open(DOG).crop((100, 0, 700, 500)).save(photo)
    upload(opened, photo)
    expected = app.python(photo, FIRST)
    expect_picture(opened, expected)
    expect(opened.locator("#stage .answer")).to_have_text(expected["answer"])


@pytest.mark.parametrize("way", ["drop", "paste"])
def test_a_photograph_can_be_dropped_or_pasted_anywhere(opened: Browser, app: Running, way: str) -> None:
    opened.evaluate(
        """async ([way, bytes]) => {
            const carried = new DataTransfer();
            carried.items.add(new File([new Uint8Array(bytes)], 'dog.jpg', { type: 'image/jpeg' }));
            const place = document.querySelector('#predictions');
            const event = way === 'drop'
                ? new DragEvent('drop', { dataTransfer: carried, bubbles: true, cancelable: true })
                : new ClipboardEvent('paste', { clipboardData: carried, bubbles: true, cancelable: true });
            place.dispatchEvent(event);
        }""",
        [way, list(DOG.read_bytes())],
    )
    expect_picture(opened, app.python(DOG, FIRST))


def test_layer_head_rollout_and_looks_change_the_picture(opened: Browser, app: Running) -> None:
    opened.click("#heads button[data-value='3']")
    knobs = replace(FIRST, head=3)
    expect_picture(opened, app.python(CHURCH, knobs))
    expect(opened.locator("#heads button[data-value='3']")).to_have_attribute("aria-pressed", "true")
    opened.click("#layers button[data-value='4']")
    knobs = replace(knobs, block=4)
    expect_picture(opened, app.python(CHURCH, knobs))
    opened.check("#grid input")
    knobs = replace(knobs, grid=True)
    expect_picture(opened, app.python(CHURCH, knobs))
    opened.check("#method input[value=rollout]")
    expect_picture(opened, app.python(CHURCH, replace(knobs, method="rollout")))
    opened.click("#heads button[data-value='max']")  # a head on the wall is attention again
    expect_picture(opened, app.python(CHURCH, replace(knobs, head="max")))


def test_a_click_asks_from_that_patch(opened: Browser, app: Running) -> None:
    grid = app.sessions.open("test", CHURCH, MODEL).view.trace.grid
    assert grid[0] != grid[1]  # the photograph keeps its own shape
    click_patch(opened, 9, 4, grid)
    expect_picture(opened, app.python(CHURCH, replace(FIRST, query=PATCH, patch=(9, 4))))
    expect(opened.locator("#stage .where")).to_have_text("row 10, column 5")
    click_patch(opened, 2, grid[1] - 1, grid)
    expect_picture(opened, app.python(CHURCH, replace(FIRST, query=PATCH, patch=(2, grid[1] - 1))))
    opened.check("#query input[value=mean]")
    expect_picture(opened, app.python(CHURCH, replace(FIRST, query="mean", patch=(2, grid[1] - 1))))


def test_the_keyboard_moves_the_patch(opened: Browser, app: Running) -> None:
    rows, columns = app.sessions.open("test", CHURCH, MODEL).view.trace.grid
    opened.focus("#stage .picture")
    for key in ("ArrowUp", "ArrowUp", "ArrowRight"):
        opened.keyboard.press(key)
    patch = (rows // 2 - 2, columns // 2 + 1)
    expect_picture(opened, app.python(CHURCH, replace(FIRST, query=PATCH, patch=patch)))
    opened.keyboard.press("c")
    expect_picture(opened, app.python(CHURCH, FIRST))


def test_a_file_that_is_no_picture_is_refused_in_words(opened: Browser, app: Running, tmp_path: Path) -> None:
    bogus = tmp_path / "holiday.jpg"
    bogus.write_text("this is not a photograph")
    before = picture(opened)
    upload(opened, bogus)
    expect(opened.get_by_role("alert")).to_contain_text("holiday.jpg")
    assert picture(opened) == before
    opened.click("#heads button[data-value='2']")  # what is on the page can still be asked
    expect_picture(opened, app.python(CHURCH, replace(FIRST, head=2)))
    opened.click("#heads button[data-value='mean']")
    upload(opened, DOG)
    expect_picture(opened, app.python(DOG, FIRST))
    expect(opened.get_by_role("alert")).to_have_count(0)


def test_a_photograph_taken_on_its_side_stands_upright(opened: Browser, app: Running, tmp_path: Path) -> None:
    photo = tmp_path / "phone.jpg"
    upright = Image.new("RGB", (300, 500), "black")
    upright.paste((255, 255, 255), (0, 0, 300, 100))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show it a quarter turn clockwise
    upright.transpose(Image.Transpose.ROTATE_90).save(photo, exif=exif)
    upload(opened, photo)
    expect_picture(opened, app.python(photo, FIRST))
    width, height = opened.evaluate("(e => [e.naturalWidth, e.naturalHeight])(document.querySelector('#stage img'))")
    assert (width, height) == (300, 500)


def test_knobs_do_not_run_the_model(opened: Browser, app: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    opened.click("#heads button[data-value='0']")
    expect_picture(opened, app.python(CHURCH, replace(FIRST, head=0)))

    def run(*_: object) -> None:
        raise AssertionError("the model ran again")

    monkeypatch.setattr(Explorer, "open", run)
    opened.click("#heads button[data-value='5']")
    expect_picture(opened, app.python(CHURCH, replace(FIRST, head=5)))
    opened.check("#smooth input")
    expect_picture(opened, app.python(CHURCH, replace(FIRST, head=5, smooth=True)))


def test_two_visitors_do_not_mix(opened: Browser, app: Running, browser) -> None:
    other = browser.new_page()
    other.goto(app.url)
    other.wait_for_function("window.vitviz && window.vitviz.drawn > 0")
    upload(other, DOG)
    expect_picture(other, app.python(DOG, FIRST))
    opened.click("#heads button[data-value='2']")
    expect_picture(opened, app.python(CHURCH, replace(FIRST, head=2)))
    other.click("#heads button[data-value='1']")
    expect_picture(other, app.python(DOG, replace(FIRST, head=1)))
    other.close()


@pytest.mark.parametrize("width", [390, 1024, 1440])
def test_nothing_sticks_out(page: Browser, app: Running, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    page.goto(app.url)
    page.wait_for_function("window.vitviz && window.vitviz.drawn > 0")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    box = page.locator("#stage img").bounding_box()
    assert box is not None
    assert box["y"] < 300  # the picture is on the first screen, on a phone too
    assert box["width"] > (0.9 * width if width < 760 else 300)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_passes_axe(page: Browser, app: Running, theme: str) -> None:
    from axe_core_python.sync_playwright import Axe

    page.goto(f"{app.url}?__theme={theme}")
    page.wait_for_function("window.vitviz && window.vitviz.drawn > 0")
    expect(page.locator(".loading")).to_have_count(0)  # gradio's own, while the page settles
    found = Axe().run(page)["violations"]
    assert not found, [(v["id"], v["help"], [node["html"][:200] for node in v["nodes"]][:3]) for v in found]


def test_programs_can_ask_too(app: Running, tmp_path: Path) -> None:
    client = Client(app.url, verbose=False)
    best = client.predict(handle_file(CHURCH), api_name="/predict")
    assert best[0]["label"] == "church"
    answer = client.predict(handle_file(CHURCH), MODEL, "attention", 12, "4", api_name="/explain")
    mine = app.sessions.open("test", CHURCH, MODEL).view.attention(11, 3)
    assert answer["values"] == mine.values.tolist()
    assert answer["title"] == mine.title
    empty = tmp_path / "empty.jpg"
    empty.touch()
    with pytest.raises(AppError, match=r"empty\.jpg"):
        client.predict(handle_file(empty), api_name="/predict")
    with pytest.raises(AppError, match="other hosts"):
        client.predict({"path": "https://example.com/a.jpg", "meta": {"_type": "gradio.FileData"}}, api_name="/predict")


@pytest.mark.parametrize("path", ["file=https://example.com/x", "proxy=https://example.com/x", "file=/etc/passwd"])
def test_doors_stay_shut(app: Running, path: str) -> None:
    assert httpx.get(f"{app.url}gradio_api/{path}").status_code == 403


def test_fault_15_the_model_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def count(name: str) -> ViT:
        loaded.append(name)
        return ViT(preset("tiny", image_size=(32, 32), depth=1, classes=3))

    monkeypatch.setattr("vitviz.ui.menu.zoo.load", count)
    sessions = Sessions(Menu(Settings(), bundled=[MODEL]), CHURCH)
    for visitor in ("a", "b"):
        for photo in (CHURCH, DOG):
            sessions.open(visitor, photo, MODEL)
    assert loaded == [MODEL]


def test_open_photographs_are_bounded_and_forgetting_loses_nothing(app: Running) -> None:
    first = app.sessions.open("a", CHURCH, MODEL)
    sessions = Sessions(app.sessions.menu, CHURCH, limit=2 * first.size + 1000)
    sessions.models = app.sessions.models  # the model is loaded already
    first = sessions.open("a", CHURCH, MODEL)
    assert sessions.open("a", None, MODEL) is first
    sessions.open("b", CHURCH, MODEL)
    sessions.open("c", CHURCH, MODEL)
    assert list(sessions._open) == ["b", "c"]
    again = sessions.open("a", CHURCH, MODEL)
    assert again is not first
    assert draw.stage(again, FIRST) == draw.stage(first, FIRST)
    sessions.close("a")
    assert list(sessions._open) == ["c"]


def test_a_photograph_taken_away_stays_on_the_page(opened: Browser, app: Running) -> None:
    opened.click("#examples button[data-value='1']")
    expect_picture(opened, app.python(DOG, FIRST))
    opened.click("#photo button[aria-label='Remove Image']")
    opened.click("#heads button[data-value='2']")
    expect_picture(opened, app.python(DOG, replace(FIRST, head=2)))


def test_knobs_of_another_model_are_brought_inside(app: Running) -> None:
    shown: Shown = app.sessions.open("test", CHURCH, MODEL)
    outside = Knobs(block=40, head=17, query="register 3", patch=(99, 99))
    assert outside.heatmap(shown.view).title == FIRST.heatmap(shown.view).title
    rows, columns = shown.view.trace.grid
    assert replace(outside, query=PATCH).asked(shown.view) == (rows - 1, columns - 1)
