"""Configure all tests: no network, repeatable numbers, tiers, and a browser if there is one."""

import os

# Set before the imports below, which read them. No test may use the network.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"

import sys

# Gradio imports jsonschema, which would build a grammar for a format of addresses that nothing here uses: seconds in
# each worker. jsonschema works without this package, which only Jupyter installs.
sys.modules.setdefault("rfc3987_syntax", None)

from vitviz.images.torchvision_import import import_torchvision

import_torchvision()  # before timm and transformers import torchvision

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from browsing import CONTEXT, FLAGS, find_chromium, leave, limit_waits, no_chromium, watch
from hypothesis import settings
from patience import patience
from playwright.sync_api import Browser, BrowserContext, Page, Request, sync_playwright

if TYPE_CHECKING:
    from running import Running

# A shell's background jobs ignore SIGINT, and so would the processes that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
# One thread per worker of pytest-xdist, because more would compete for the cores.
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)
# `make test` runs the same examples each time; `make fuzz` searches, and keeps its findings in .hypothesis.
settings.register_profile("test", deadline=None, derandomize=True)
settings.register_profile("fuzz", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "test"))
IN_CI = os.environ.get("CI", "").lower() not in ("", "0", "false")

TIERS = ("test", "all", "versions", "engines")  # `make test`, `make test-all` and so on
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
    """Extend each test's time limit on a busy machine, before pytest-timeout reads it."""
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(patience(float(item.config.getini("timeout")))))
    return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark browser tests, deselect other tiers and tests that need a missing GPU, and put slow files first.

    Workers take one file at a time: a slow file at the end would leave the other workers idle. `make test` therefore
    prevents pytest-xdist from reordering the files. Files that have not run yet come first, if their folder is slow.
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
    """Start one headless Chromium for all tests; without one, see `no_chromium`."""
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
    context = browser.new_context(**CONTEXT)
    problems = watch(context)
    yield context, problems
    context.close()


@pytest.fixture
def page(shared_context: tuple[BrowserContext, list[str]]) -> Iterator[Page]:
    """Return a fresh page of 1440 x 900; fail its test on problems of `watch`.

    All tests of a worker share it, so scripts load from its cache. After each test, routes, storage, cookies,
    permissions, window, media and network are reset. Tests remove their own listeners (`page.on`).
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
    messages = "\n".join(problems)
    problems.clear()
    assert not messages, messages


@pytest.fixture
def requests(page: Page) -> Iterator[list[Request]]:
    """Return a growing list of all requests of `page`."""
    page_requests: list[Request] = []
    note = lambda request: page_requests.append(request)  # noqa: E731
    page.on("request", note)
    yield page_requests
    page.remove_listener("request", note)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Use one thread, because threads mostly wait for each other on very small tensors."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# ---- the app, imported on demand because most tests need no server


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the folders of the app's tiny models (`running.MODELS`) by name."""
    from running import make_models

    return make_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def small(models: dict[str, str]) -> str:
    """Return the folder of a tiny model with two registers that crops photographs."""
    return models["registers"]


@pytest.fixture(scope="session")
def app(models: dict[str, str]) -> "Iterator[Running]":
    """Serve the app with tiny models, once for all tests of a worker."""
    from running import EVERYDAY, MODEL, served

    yield from served(*models.values(), default=models["native"], bundled=(MODEL, EVERYDAY))


@pytest.fixture
def opened(page: Page, app: "Running") -> Page:
    from running import ready

    ready(page, f"{app.url}?__theme=light")
    return page


@pytest.fixture(scope="session")
def embedding(small: str, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[tuple[str, Path]]":
    """The address of a Gradio app with two explorers, and the file of its events: one app for all tests of a worker."""
    from embedding_app import served
    from running import CHURCH

    events = tmp_path_factory.mktemp("told") / "events.jsonl"
    with served(CHURCH, small, events) as url:
        yield url, events


# ---- the explorer as a page on disk


@pytest.fixture
def offline(page: Page, requests: list[Request]) -> Iterator[Page]:
    """Return `page` without a network; fail its test on requests for anything but the file."""
    page.context.set_offline(True)
    yield page
    schemes = {request.url.partition(":")[0] for request in requests}
    assert "file" in schemes <= {"file", "data", "blob"}, [request.url[:200] for request in requests]


@pytest.fixture
def explorer(offline: Page, tmp_path: Path) -> Page:
    """Return the explorer of a tiny model, offline and complete."""
    import viewer_pages

    viewer_pages.show(offline, tmp_path)
    return offline
