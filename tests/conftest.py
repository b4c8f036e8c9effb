"""What every test stands on: no network, repeatable numbers, and a browser where there is one."""

import os

# Before anything reads them. Nothing that the tests import may call out.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"

from vitviz.images.torchvision_import import import_torchvision

import_torchvision()  # before timm and transformers, which import it their own way

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

# A shell's background jobs ignore Ctrl-C, and so would the processes that tests start: now they get it again.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Beside other workers of pytest-xdist one thread each: more would wait for one another.
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)
# `make test` tries the same examples every time; `make fuzz` searches, and keeps what it finds in .hypothesis.
settings.register_profile("test", deadline=None, derandomize=True)
settings.register_profile("fuzz", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "test"))
IN_CI = os.environ.get("CI", "").lower() not in ("", "0", "false")

TIERS = ("test", "all", "names", "versions", "engines")  # `make test`, `make test-all` and so on
NO_GPU = not torch.cuda.is_available()
LONG = ("server", "web", "training")  # folders whose tests start browsers, servers and processes


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--tier`: which tests run. CONTRIBUTING.md says what each tier holds."""
    parser.addoption("--tier", choices=TIERS, default=TIERS[0], help="run the tests of this tier only")


def tier_of(item: pytest.Item) -> str:
    """Return the tier that a test or its module is marked with."""
    marker = item.get_closest_marker("tier")
    return marker.args[0] if marker else TIERS[0]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Give each test more time on a busy machine, before pytest-timeout, a wrapper too, reads the limit."""
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(patience(float(item.config.getini("timeout")))))
    return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark browser tests, deselect other tiers and tests that need a missing GPU, and put slow files first.

    Two workers take a file each, one after another: a long one at the end would run beside an idle worker. `make test`
    therefore keeps pytest-xdist from an order of its own.
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
    """One headless Chromium for all tests. Without one see `no_chromium`; one that does not start is a failure."""
    with sync_playwright() as playwright:
        path = find_chromium(playwright.chromium.executable_path)
        if path is None:
            no_chromium(IN_CI)
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def shared_context(browser: Browser) -> Iterator[tuple[BrowserContext, list[str]]]:
    """The context of `page`, and what `watch` finds in it."""
    context = browser.new_context(viewport=VIEWPORT)
    problems = watch(context)
    yield context, problems
    context.close()


@pytest.fixture
def page(shared_context: tuple[BrowserContext, list[str]]) -> Iterator[Page]:
    """A page of 1440 x 900, as good as new; fails its test on what `watch` finds.

    All tests of a worker share it, so that it loads scripts from its cache. After each test it is left, and what the
    test set is undone: routes, storage, cookies, permissions, window, media and network. Listeners (`page.on`) stay:
    a test that adds one removes it.
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
    """All requests of `page`, as they come."""
    made: list[Request] = []
    note = lambda request: made.append(request)  # noqa: E731
    page.on("request", note)
    yield made
    page.remove_listener("request", note)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """On very small tensors, threads spend their time waiting for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# ---- the app. What runs it is imported where it is wanted: most tests need no server.


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The folders of the app's tiny models by name; `running.MODELS` says what they are."""
    from running import make_models

    return make_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def small(models: dict[str, str]) -> str:
    """The folder of a tiny model with two registers that sees the middle of a photograph."""
    return models["registers"]


@pytest.fixture(scope="session")
def app(models: dict[str, str]) -> "Iterator[Running]":
    """The app as it is served to visitors: one for all tests of a worker. It opens with a tiny model."""
    from running import EVERYDAY, MODEL, served

    yield from served(*models.values(), default=models["native"], bundled=(MODEL, EVERYDAY))


@pytest.fixture
def opened(page: Page, app: "Running") -> Page:
    """The app's page as it opens."""
    from running import ready

    ready(page, f"{app.url}?__theme=light")
    return page


# ---- the explorer by itself, a page from disk


@pytest.fixture
def offline(page: Page, requests: list[Request]) -> Iterator[Page]:
    """`page` without a network; fails its test where anything but the file itself is asked for."""
    page.context.set_offline(True)
    yield page
    schemes = {request.url.partition(":")[0] for request in requests}
    assert "file" in schemes <= {"file", "data", "blob"}, [request.url[:200] for request in requests]


@pytest.fixture
def explorer(offline: Page, tmp_path: Path) -> Page:
    """The explorer of a tiny model, offline, with everything there."""
    import viewer_pages

    viewer_pages.show(offline, tmp_path)
    return offline
