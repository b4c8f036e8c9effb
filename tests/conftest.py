"""What every test stands on: no network, repeatable numbers, and a browser where there is one."""

import os

# Before anything reads them. Nothing that the tests import may call out.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"

from vitviz.images.torchvision_import import import_torchvision

import_torchvision()  # before timm and transformers, which import it their own way

import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
import torch
from hypothesis import settings
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

if TYPE_CHECKING:
    from running import Running

# A shell's background jobs ignore Ctrl-C, and so would the processes that tests start: now they get it again.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Beside other workers of pytest-xdist one thread each: more would wait for one another.
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)
# `make test` tries the same examples every time; `make fuzz` searches, and keeps what it finds in .hypothesis.
settings.register_profile("test", deadline=None, derandomize=True)
settings.register_profile("fuzz", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "test"))
IN_CI = os.environ.get("CI", "").lower() not in ("", "0", "false")

LONG = ("server", "web", "training")  # folders whose tests start browsers, servers and processes
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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what opens a browser, leave out what needs a GPU that is not here, and put long files first.

    Two workers take a file each, one after another: a long one at the end would run beside an idle worker. `make test`
    therefore keeps pytest-xdist from an order of its own.
    """
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")
            if IN_CI:  # where a page may wait for its turn longer than on any desk; the summary names what ran again
                item.add_marker(pytest.mark.flaky(reruns=1))
    if not torch.cuda.is_available():
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("cuda")])
        items[:] = [item for item in items if not item.get_closest_marker("cuda")]
    slow = {item.path for item in items if item.get_closest_marker("browser") or item.path.parent.name in LONG}
    items.sort(key=lambda item: item.path not in slow)  # stable: a file's tests stay together


def find_chromium(downloaded: str) -> str | None:
    """The system's Chromium or Chrome, else the one that Playwright has downloaded before, else None."""
    for name in CHROMIUMS:
        if path := shutil.which(name):
            return path
    return downloaded if Path(downloaded).is_file() else None


def no_chromium(in_ci: bool) -> NoReturn:
    """Leave the test out, or fail it in CI, where a part of the tests must not go missing unnoticed."""
    words = f"no Chromium on this machine: none of {', '.join(CHROMIUMS)} is on the PATH"
    if in_ci:
        pytest.fail(f"{words}. In CI (where CI is set) the browser tests have to run: install one", pytrace=False)
    pytest.skip(words)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One headless Chromium for all tests. Without one see `no_chromium`; one that does not start is a failure."""
    with sync_playwright() as playwright:
        path = find_chromium(playwright.chromium.executable_path)
        if path is None:
            no_chromium(IN_CI)
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


@pytest.fixture
def one_thread() -> Iterator[None]:
    """On very small tensors, threads spend their time waiting for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# ---- the app. What runs it is imported where it is wanted: most tests need no server.


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model with two registers, as a folder."""
    from running import folder

    return folder(tmp_path_factory.mktemp("models") / "small", registers=2)


@pytest.fixture(scope="module")
def app(small: str) -> "Iterator[Running]":
    """The app as it is served to visitors, with the bundled model and `small` on its menu."""
    from running import served

    yield from served(small)


@pytest.fixture
def opened(page: Page, app: "Running") -> Page:
    """The app's page as it opens."""
    from running import ready

    ready(page, f"{app.url}?__theme=light")
    return page


# ---- the explorer by itself, a page from disk


@pytest.fixture
def offline(page: Page) -> Iterator[Page]:
    """`page` without a network; fails its test where anything but the file itself is asked for."""
    import viewer_pages

    yield from viewer_pages.offline(page)


@pytest.fixture
def explorer(offline: Page, tmp_path: Path) -> Page:
    """The explorer of a tiny model, offline, with everything there."""
    import viewer_pages

    viewer_pages.show(offline, tmp_path)
    return offline
