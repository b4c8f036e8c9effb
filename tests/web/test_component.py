"""Test the Gradio component in other apps: its events in Chromium, and its limits in this process."""

import asyncio
import json
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import gradio as gr
import numpy as np
import pytest
from asking import free_port
from browsing import VIEWPORT
from documents import ROOT, blocks
from embedding_app import running
from gradio.data_classes import FileData
from patience import wait_until
from PIL import Image
from playwright.sync_api import Page as Browser
from running import CHURCH, DOG
from viewer_pages import centre

from vitviz import gradio as module
from vitviz.errors import VitvizError
from vitviz.explorer import Explorer
from vitviz.gradio import AttentionExplorer
from vitviz.view import View

TICKET = "0" * 32
T = TypeVar("T")


class Told:
    """Read the events that an app received in Python."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def of(self, explorer: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]
        return [event for event in lines if event["explorer"] == explorer]

    def wait(self, explorer: str, *events: str) -> dict[str, dict[str, Any]]:
        """Wait for these events; return the last event of each type."""
        wait_until(lambda: {event["event"] for event in self.of(explorer)} >= set(events), f"events {events}")
        return {event["event"]: event for event in self.of(explorer)}


@pytest.fixture(scope="module")
def explorer(small: str) -> AttentionExplorer:
    return AttentionExplorer(model=small)


@pytest.fixture(scope="module")
def view(small: str) -> View:
    return Explorer(small).open(CHURCH)


def drawn(page: Browser, name: str) -> None:
    """Wait until an explorer shows a map, and let `vitviz` refer to this explorer."""
    page.wait_for_function(f"document.querySelector('#{name} .vv')?.vitviz?.drawn > 0")
    page.evaluate(f"window.vitviz = document.querySelector('#{name} .vv').vitviz")
    page.wait_for_function("vitviz.resting()")


@pytest.fixture
def events(embedding: tuple[str, Path]) -> Told:
    embedding[1].write_text("", encoding="utf-8")
    return Told(embedding[1])


@pytest.fixture
def opened(page: Browser, embedding: tuple[str, Path], events: Told) -> Browser:
    page.goto(embedding[0])
    drawn(page, "left")
    return page


def test_events_reach_python_only_from_their_explorer(opened: Browser, events: Told, view: View) -> None:
    first = events.wait("left", "select_prediction", "select")["select_prediction"]
    (label, probability), (index,) = view.predictions(1)[0], view.best(1)
    assert (first["prediction"]["label"], first["prediction"]["index"]) == (label, index)
    assert first["prediction"]["probability"] == pytest.approx(probability, abs=1e-6)
    assert (first["patch"], first["block"], first["head"]) == (None, view.trace.depth - 1, "mean")
    opened.mouse.click(*centre(opened, view, 1, 2, selector="#left .vv-explore .vv-held"))
    assert events.wait("left", "select_patch")["select_patch"]["patch"] == [1, 2]
    opened.click("#left .vv-grid button[data-value='0,1']")
    last = events.wait("left", "select_head", "select_block")
    assert (last["select_head"]["head"], last["select_block"]["block"]) == (1, 0)
    assert last["select_block"]["patch"] == [1, 2]
    assert events.of("right") == []
    for tab, selector in (
        ("why", ".vv-moved li"),
        ("inside", ".vv-cell"),
    ):
        opened.click(f"#left [role=tab][data-tab={tab}]")
        opened.locator(f"#left {selector}").first.wait_for(state="visible")
        assert not opened.locator("#left .vv-trouble:visible").count()


BESIDE = """(() => {
    const [panes, side] = ['.vv-panes', '.vv-side'].map((name) => (
        document.querySelector(name).getBoundingClientRect()));
    return side.left >= panes.right;
})()"""
BLOCKS = "['left', 'right'].map((name) => document.querySelector(`#${name} .vv`).vitviz.store.get().block)"


@pytest.mark.tier("all")
def test_two_explorers_have_separate_photographs_choices_and_keys(opened: Browser, view: View) -> None:
    assert not opened.evaluate(BESIDE)  # each of two explorers takes half of the window
    opened.set_viewport_size({"width": 2000, "height": 900})
    opened.wait_for_function(BESIDE)
    opened.set_viewport_size({"width": 390, "height": 844})
    opened.wait_for_function(f"document.documentElement.scrollWidth === 390 && !({BESIDE})")
    opened.set_viewport_size(VIEWPORT)
    right = opened.locator("#right")
    assert right.locator(".vv-absent").inner_text() == "No photograph yet."
    assert not right.locator(".vv").is_visible()
    opened.click("#show")
    drawn(opened, "right")
    before = opened.evaluate(BLOCKS)
    opened.keyboard.press("[")  # the button has the focus
    assert opened.evaluate(BLOCKS) == before
    opened.locator("#right .vv-explore .vv-picture").focus()
    opened.keyboard.press("[")
    assert opened.evaluate(BLOCKS) == [before[0], view.trace.depth - 2]
    opened.keyboard.press("Control+z")
    assert opened.evaluate(BLOCKS) == before  # null: the last layer
    for name in ("left", "right"):
        assert opened.locator(f"#{name} .vv-modes input:checked").get_attribute("value") == "attention"
    opened.locator("#left .vv-more > summary").click()
    opened.check("#left .vv-modes input[value=rollout]")
    assert opened.locator("#right .vv-modes input:checked").get_attribute("value") == "attention"
    opened.click("#read")
    opened.wait_for_function("document.querySelector('#path textarea').value !== ''")
    assert Path(opened.input_value("#path textarea")).read_bytes() == CHURCH.read_bytes()
    opened.click("#nothing")
    right.locator(".vv-absent").wait_for(state="visible")
    assert not right.locator(".vv").is_visible()
    opened.click("#show")
    right.locator(".vv").wait_for(state="visible")


@pytest.mark.tier("all")
def test_example_of_docs_reports_selected_patch(page: Browser, tmp_path: Path) -> None:
    (code,) = blocks("docs/embedding.md", "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    (tmp_path / "app.py").write_text(code, encoding="utf-8")
    (tmp_path / "photo.jpg").symlink_to(CHURCH)
    port = free_port()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GRADIO_SERVER_PORT": str(port)}
    with running(["app.py"], port, cwd=tmp_path, env=environment) as url:
        page.goto(url)
        page.wait_for_function("document.querySelector('textarea')?.value.includes('from CLS')")
        page.locator(".vv-explore .vv-picture").focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_function("document.querySelector('.vv').vitviz.store.get().query !== null")
        page.wait_for_function("document.querySelector('textarea').value.includes('patch')")
        patch = page.evaluate("document.querySelector('.vv').vitviz.store.get().query")
        assert page.input_value("textarea") == f"Block 11, head mean, from patch {patch}: church"
        page.locator("input[type=file]").first.set_input_files(str(DOG))
        page.wait_for_function("!document.querySelector('textarea').value.endsWith('church')")


# ---- without a browser


@pytest.mark.parametrize("kind", [str, Path, Image.open, lambda path: np.asarray(Image.open(path))])
def test_photograph_may_be_path_picture_or_array(explorer: AttentionExplorer, kind: Any) -> None:
    shown = explorer.postprocess(kind(CHURCH))
    np.testing.assert_array_equal(np.asarray(Image.open(shown.photo.path)), np.asarray(Image.open(CHURCH)))
    assert explorer.preprocess(shown) == shown.photo.path


@pytest.mark.parametrize("value", ["https://example.org/photo.jpg", "pyproject.toml", [[1, 2], [3]], object()])
def test_invalid_photographs_are_refused(explorer: AttentionExplorer, value: Any) -> None:
    with pytest.raises(VitvizError, match=r"^Expected .* got"):
        explorer.postprocess(value)


def test_payload_cannot_name_other_files(explorer: AttentionExplorer, tmp_path: Path) -> None:
    (tmp_path / "secret.jpg").write_bytes(CHURCH.read_bytes())
    cache = Path(explorer.GRADIO_CACHE)
    link = cache / "link.jpg"
    link.unlink(missing_ok=True)
    link.symlink_to(tmp_path / "secret.jpg")
    for path in (tmp_path / "secret.jpg", cache / ".." / "x.jpg", link, cache):
        with pytest.raises(gr.Error, match="in this app"):
            explorer.preprocess(module.Shown(name=TICKET, photo=FileData(path=str(path))))
    link.unlink()


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in another thread, because this one runs the browser's event loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def call(engine: Any, **parts: Any) -> dict[str, Any]:
    """Return the last line of the answer to a question."""

    async def ask() -> dict[str, Any]:
        while "progress" in (line := await engine.answer({"ticket": TICKET, **parts}, "1.2.3.4")):
            pass
        return line

    return run(ask())


@pytest.mark.parametrize(
    "parts",
    [
        {"ticket": "x"},
        {"name": "models"},
        {"name": ["open"]},
        {"name": "open", "source": {"photo": "../../etc/passwd"}},
        {"name": "open", "source": {"photo": "f" * 32}},
        {"name": "open", "source": 3},
        {"name": "block", "ask": [1]},
        {"name": "explain", "ask": {"scene": "0" * 32, "nothing": 1}},
    ],
)
def test_invalid_calls_are_refused(explorer: AttentionExplorer, parts: dict[str, Any]) -> None:
    explorer.postprocess(CHURCH)  # creates the folder
    error = call(explorer._engine, **parts)["error"]
    assert error["kind"] == "refused"
    assert error["text"].startswith("Expected")


def test_file_cache_is_bounded_and_keeps_pinned_files(tmp_path: Path) -> None:
    files = module._Files(str(tmp_path), most=250)
    files.put("first", bytes(500), pinned=True)
    for name in "abc":
        files.put(name, bytes(100))
        files.path("a")
    assert sorted(path.name for path in files.root.iterdir()) == ["a", "c", "first"]
    root = files.root
    del files
    assert not root.exists()


def test_updating_a_property_loads_no_second_model(explorer: AttentionExplorer, small: str) -> None:
    again = AttentionExplorer(model=small, visible=False)
    assert again._engine is explorer._engine
    assert AttentionExplorer(model=small, memory=0.1)._engine is not again._engine


def test_question_without_polling_is_stopped(explorer: AttentionExplorer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ABANDONED", 0.2)
    engine, ended = explorer._engine, threading.Event()

    async def endless(*_: Any) -> Any:
        try:
            while True:
                yield {"progress": {"text": "working"}}
                await asyncio.sleep(0.01)
        finally:
            ended.set()

    monkeypatch.setattr(module, "lines", endless)

    async def ask_once() -> None:
        question = {"ticket": TICKET, "name": "block", "ask": {}}
        assert await engine.answer(question, "1.2.3.4") == {"progress": {"text": "working"}}
        while not ended.is_set() or engine._open:
            await asyncio.sleep(0.01)

    run(asyncio.wait_for(ask_once(), 60))


@pytest.mark.parametrize("arguments", [{"model": 3}, {"memory": 0}, {"places": -1}, {"model": "no-such-model"}])
def test_invalid_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(VitvizError, match=r"^Expected .* got"):
        AttentionExplorer(**arguments)
