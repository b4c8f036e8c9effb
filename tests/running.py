"""The page under test in a real browser, for the tests that share it."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import httpx
import tiny
from playwright.sync_api import Page as Browser
from playwright.sync_api import expect

from vitviz.model import Pretrained
from vitviz.preprocess import Preprocess
from vitviz.ui import draw
from vitviz.ui.draw import Knobs
from vitviz.ui.menu import Menu
from vitviz.ui.pages import EXAMPLES, Page
from vitviz.ui.server import launch
from vitviz.ui.sessions import Sessions
from vitviz.ui.settings import Settings
from vitviz.weights.checkpoint import save

expect.set_options(timeout=15_000)  # milliseconds; a busy machine draws slowly

MODEL = "dinov2-s14-imagenette"
CHURCH, DOG = EXAMPLES / "church.jpg", EXAMPLES / "dog.jpg"
FIRST = Knobs(block=11)


def folder(path: Path, **changes: object) -> str:
    """A tiny model as a folder."""
    model = tiny.model(**changes)
    model.pretrained = Pretrained(
        name=f"Tiny {path.name}",
        preprocess=Preprocess(mode="crop", height=tiny.GRID[0] * tiny.PATCH, width=tiny.GRID[1] * tiny.PATCH),
        labels=tuple(f"thing {i}" for i in range(model.config.classes)),
        licence="MIT",
    )
    save(model, path)
    return str(path)


class Running:
    """The app under test, and the same pictures from Python."""

    def __init__(self, *models: str, **allowed: bool) -> None:
        self.sessions = Sessions(Menu(Settings(models=models, **allowed), bundled=[MODEL]), CHURCH)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.demo = Page(self.sessions).demo
        upload = self.sessions.menu.settings.upload
        launch(self.demo, "127.0.0.1", port, upload=upload, prevent_thread_lock=True, quiet=True)
        self.url = f"http://127.0.0.1:{port}/"

    def python(self, photo: Path, knobs: Knobs, model: str = MODEL, side: int | None = None) -> dict:
        return json.loads(draw.stage(self.sessions.open("test", photo, model, side), knobs))

    def call(self, handler: str, data: list, event: dict | None = None, session: str = "stranger") -> list:
        """Call a private endpoint as a stranger's program may; everything that it answers."""
        number = next(i for i, fn in self.demo.fns.items() if getattr(fn.fn, "__name__", "") == handler)
        asked = {"data": data, "event_data": event, "fn_index": number, "session_hash": session}
        httpx.post(f"{self.url}gradio_api/queue/join", json=asked).raise_for_status()
        answers = []
        with httpx.stream("GET", f"{self.url}gradio_api/queue/data?session_hash={session}", timeout=30) as lines:
            for line in lines.iter_lines():
                answers.append(line)
                if '"process_completed"' in line or '"close_stream"' in line:
                    return answers
        return answers


def ready(page: Browser, url: str) -> None:
    """Open the page and wait until it shows a picture."""
    page.goto(url)
    page.wait_for_function("window.vitviz && window.vitviz.drawn > 0")


def picture(page: Browser) -> str:
    return page.locator("#stage img").get_attribute("src") or ""


def expect_picture(page: Browser, expected: dict) -> None:
    """The page shows this picture, to the byte, with these words."""
    expect(page.locator("#stage .title")).to_have_text(expected["title"])
    expect(page.locator("#stage img")).to_have_attribute("src", expected["src"])
    expect(page.locator("#stage .note")).to_have_text(expected["note"])


def click_patch(page: Browser, row: int, column: int, grid: tuple[int, int]) -> None:
    box = page.locator("#stage img").bounding_box()
    assert box is not None
    page.mouse.click(
        box["x"] + (column + 0.5) / grid[1] * box["width"], box["y"] + (row + 0.5) / grid[0] * box["height"]
    )


def upload(page: Browser, path: Path) -> None:
    """As a visitor who has a photograph there already: remove it, then choose another."""
    page.locator("#photo input[type=file]").first.set_input_files(str(path))
