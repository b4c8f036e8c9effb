"""What every test stands on: no network, repeatable numbers, and a browser where there is one."""

import os

# Before anything reads them. Nothing that the tests import may call out.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"

from vitviz.compat import import_torchvision

import_torchvision()  # before timm and transformers, which import it their own way

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

torch.set_num_threads(2)
settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--no-sandbox",  # the tests open only pages that they serve themselves, and containers have no user namespaces
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
ELSEWHERE = re.compile(r"^(?:https?|wss?)://(?!(?:127\.0\.0\.1|localhost|\[::1\])(?::\d+)?(?:/|$))")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what opens a browser, so that `-m "not browser"` leaves it out."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")


def find_chromium(downloaded: str) -> str | None:
    """The system's Chromium or Chrome, else the one that Playwright has downloaded before, else None."""
    for name in CHROMIUMS:
        if path := shutil.which(name):
            return path
    return downloaded if Path(downloaded).is_file() else None


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One headless Chromium for all tests. Without one they are skipped; one that does not start is a failure."""
    with sync_playwright() as playwright:
        path = find_chromium(playwright.chromium.executable_path)
        if path is None:
            pytest.skip(f"no Chromium on this machine: none of {', '.join(CHROMIUMS)} is on the PATH")
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()


def watch(context: BrowserContext) -> list[str]:
    """Collect what must not happen in any page of `context`: uncaught errors, and requests that leave this machine.

    Such requests are stopped as well, so a test never depends on the network.
    """
    problems: list[str] = []

    def refuse(route) -> None:
        problems.append(f"request that leaves this machine: {route.request.url}")
        route.abort()

    def refuse_socket(socket) -> None:
        problems.append(f"socket that leaves this machine: {socket.url}")
        socket.close()

    context.route(ELSEWHERE, refuse)
    context.route_web_socket(ELSEWHERE, refuse_socket)
    context.on("weberror", lambda error: problems.append(f"uncaught in the page: {error.error.stack or error.error}"))
    return problems


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh page of 1440 x 900, with its own cookies and cache; fails its test on what `watch` finds."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    problems = watch(context)
    yield context.new_page()
    context.close()
    assert not problems, "\n".join(problems)
