"""Configure all tests: no network, reproducible numbers, tiers, and fixtures for the browser and the app."""

import os

# Set before any import reads these variables: imported packages must not access the network.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"

from vitviz.images.torchvision_import import import_torchvision

import_torchvision()  # before timm and transformers, which import it differently

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from browsing import FLAGS, VIEWPORT, find_chromium, leave, limit_waits, no_chromium, watch
from hypothesis import settings
from patience import patience
from playwright.sync_api import Browser, BrowserContext, Page, Request, sync_playwright

if TYPE_CHECKING:
    from running import Running

# A shell's background jobs ignore Ctrl-C, and processes that tests start would inherit that: restore the default.
signal.signal(signal.SIGINT, signal.default_int_handler)
# With several pytest-xdist workers, use one thread per worker: more threads would wait for one another.
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)
# `make test` tries the same examples every time; `make fuzz` searches, and stores its findings in .hypothesis.
settings.register_profile("test", deadline=None, derandomize=True)
settings.register_profile("fuzz", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "test"))
IN_CI = os.environ.get("CI", "").lower() not in ("", "0", "false")

TIERS = ("test", "all", "names", "versions", "engines")  # `make test`, `make test-all` and so on
NO_GPU = not torch.cuda.is_available()
LONG = ("server", "web", "training")  # folders whose tests start browsers, servers and processes


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--tier`, which selects the tests to run. CONTRIBUTING.md describes the tiers."""
    parser.addoption("--tier", choices=TIERS, default=TIERS[0], help="run the tests of this tier only")


def tier_of(item: pytest.Item) -> str:
    """Return the tier with which a test or its module is marked."""
    marker = item.get_closest_marker("tier")
    return marker.args[0] if marker else TIERS[0]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Give each test more time on a busy machine, before pytest-timeout's wrapper reads the limit."""
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(patience(float(item.config.getini("timeout")))))
    return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark browser tests, deselect other tiers and tests that need a missing GPU, and put slow files first.

    Two workers take one file at a time: a slow file at the end would leave the other worker idle. `make test` therefore
    prevents pytest-xdist from reordering the files.
    """
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")
    tier = config.getoption("tier")
    left_out = [item for item in items if tier_of(item) != tier or (NO_GPU and item.get_closest_marker("cuda"))]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]
    slow = {item.path for item in items if item.get_closest_marker("browser") or item.path.parent.name in LONG}
    items.sort(key=lambda item: item.path not in slow)  # stable: a file's tests stay together


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start one headless Chromium for all tests; see `no_chromium` if there is none. A failure to start is an error."""
    with sync_playwright() as playwright:
        path = find_chromium(playwright.chromium.executable_path)
        if path is None:
            no_chromium(IN_CI)
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def shared_context(browser: Browser) -> Iterator[tuple[BrowserContext, list[str]]]:
    """Return the context of `page`, and the problems that `watch` finds in it."""
    context = browser.new_context(viewport=VIEWPORT)
    problems = watch(context)
    yield context, problems
    context.close()


@pytest.fixture
def page(shared_context: tuple[BrowserContext, list[str]]) -> Iterator[Page]:
    """Return an empty page of 1440 x 900 pixels; fail the test if `watch` finds a problem.

    All tests of a worker share the page, so that it loads scripts from its cache. After each test it is reset: routes,
    storage, cookies, permissions, window, media and network. Listeners (`page.on`) are not reset: a test that adds one
    must remove it.
    """
    context, problems = shared_context
    limit_waits(context)
    page = context.pages[0] if context.pages else context.new_page()
    addresses: set[str] = set()
    note = lambda frame: addresses.add(frame.url)  # noqa: E731
    page.on("framenavigated", note)
    yield page
    page.remove_listener("framenavigated", note)
    leave(page, addresses)
    found = "\n".join(problems)
    problems.clear()
    assert not found, found


@pytest.fixture
def requests(page: Page) -> Iterator[list[Request]]:
    """Return a list to which all requests of `page` are added."""
    made: list[Request] = []
    note = lambda request: made.append(request)  # noqa: E731
    page.on("request", note)
    yield made
    page.remove_listener("request", note)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Use one thread: on very small tensors, several threads mostly wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# ---- The app. Its modules are imported within the fixtures, because most tests need no server.


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the folders of the app's tiny models by name; `running.MODELS` describes the models."""
    from running import make_models

    return make_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def small(models: dict[str, str]) -> str:
    """Return the folder of a tiny model with two registers that crops photographs to their center."""
    return models["registers"]


@pytest.fixture(scope="session")
def app(models: dict[str, str]) -> "Iterator[Running]":
    """Serve one app for all tests of a worker; it opens with a tiny model."""
    from running import EVERYDAY, MODEL, served

    yield from served(*models.values(), default=models["native"], bundled=(MODEL, EVERYDAY))


@pytest.fixture
def opened(page: Page, app: "Running") -> Page:
    """Open the app's page in its initial state."""
    from running import ready

    ready(page, f"{app.url}?__theme=light")
    return page


# ---- The explorer as a saved page on disk.


@pytest.fixture
def offline(page: Page, requests: list[Request]) -> Iterator[Page]:
    """Return `page` without a network; fail the test if it requests anything but the file itself."""
    page.context.set_offline(True)
    yield page
    schemes = {request.url.partition(":")[0] for request in requests}
    assert "file" in schemes <= {"file", "data", "blob"}, [request.url[:200] for request in requests]


@pytest.fixture
def explorer(offline: Page, tmp_path: Path) -> Page:
    """Open the complete explorer of a tiny model offline."""
    import viewer_pages

    viewer_pages.show(offline, tmp_path)
    return offline
