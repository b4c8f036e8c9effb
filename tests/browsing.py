"""Find Chromium, watch pages for errors, and reset them between tests."""

import re
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import pytest
from patience import patience
from playwright.sync_api import Browser, BrowserContext, Error, Page, Request, WebSocket, expect

VIEWPORT = {"width": 1440, "height": 900}
# A static site reloads itself when its service worker is ready, so only the tests of service workers allow them.
CONTEXT = {"viewport": VIEWPORT, "service_workers": "block"}
STORAGE = "local_storage,indexeddb,cache_storage,service_workers"
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Chromium reads only the last list of disabled features. The first three would start two pages for the address bar of
# each window, which take a second of CPU time. The others are in Playwright's list, too.
DISABLED = """WebUIOmniboxPopup WebUIOmniboxAimPopup WebUIOmniboxFullPopup
    PaintHolding HttpsUpgrades DestroyProfileOnBrowserClose ThirdPartyStoragePartitioning MediaRouter
    AimEnabled NetworkTimeServiceQuerying OptimizationHints PreconnectToSearch"""
FLAGS = [
    "--no-sandbox",  # the tests open only their own pages, and containers have no user namespaces
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # No other machine has an address. A route that refuses its requests would make every request slower, and would
    # switch off Chromium's cache.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost, EXCLUDE [::1]",
    f"--disable-features={','.join(DISABLED.split())}",
]
# A first visit begins with a pointer that moves by itself.
WELCOMED = "try { localStorage.setItem('vitviz-welcomed', '1'); } catch { /* about:blank has no storage */ }"
ELSEWHERE = re.compile(r"^wss?://(?!(?:127\.0\.0\.1|localhost|\[::1\])(?::\d+)?(?:/|$))")


def find_chromium(downloaded: str) -> str | None:
    """Return the path of the system's Chromium or Chrome, else of Playwright's, else None."""
    for name in CHROMIUMS:
        if path := shutil.which(name):
            return path
    return downloaded if Path(downloaded).is_file() else None


def no_chromium(in_ci: bool) -> NoReturn:
    """Skip the test, or fail it in CI."""
    words = f"no Chromium on this machine: none of {', '.join(CHROMIUMS)} is on the PATH"
    if in_ci:
        pytest.fail(f"{words}. In CI (where CI is set) the browser tests must run: install one", pytrace=False)
    pytest.skip(words)


def watch(context: BrowserContext) -> list[str]:
    """Collect uncaught errors, and requests to other machines (which `FLAGS` prevent), in all pages of `context`."""
    problems: list[str] = []

    def note(request: Request) -> None:
        if request.failure == "net::ERR_NAME_NOT_RESOLVED":
            problems.append(f"request to another machine: {request.url}")

    def note_socket(socket: WebSocket) -> None:
        if ELSEWHERE.match(socket.url):
            problems.append(f"socket to another machine: {socket.url}")

    context.add_init_script(WELCOMED)
    context.on("requestfailed", note)
    context.on("page", lambda page: page.on("websocket", note_socket))
    context.on("weberror", lambda error: problems.append(f"uncaught in the page: {error.error.stack or error.error}"))
    return problems


@contextmanager
def new_page(browser: Browser, **options: Any) -> Iterator[Page]:
    """Open a page with its own cookies and cache, and options of `Browser.new_context`; fail on problems of `watch`."""
    context = browser.new_context(**{**CONTEXT, **options})
    problems = watch(context)
    limit_waits(context)
    try:
        yield context.new_page()
    finally:
        context.close()
    assert not problems, "\n".join(problems)


def wait_for_function(page: Page, expression: str, *, timeout: float = 60_000) -> None:
    """Wait until an expression, or the result of a function without arguments, is true.

    This replaces `Page.wait_for_function`, whose `eval` in the page violates the static pages' security policy.
    """
    deadline = time.monotonic() + patience(timeout / 1000)
    # The page checks the expression in each frame, because a request for each check takes more CPU time. An async
    # function rejects if the expression throws; an error in the frame's callback would let `evaluate` wait forever.
    script = (
        "async () => { for (const start = performance.now(); performance.now() - start < 1000;) {"
        f" await new Promise(requestAnimationFrame); const value = ({expression});"
        " if (typeof value === 'function' ? value() : value) return true; } return false; }"
    )
    while True:
        with suppress(Error):  # the page is loading, or the expression reads something that does not exist yet
            if page.evaluate(script):
                return
        assert time.monotonic() < deadline, f"never became true: {expression}"
        page.wait_for_timeout(20)


Page.wait_for_function = wait_for_function


def speak(page: Page, language: str) -> None:
    """Click the language button until the page is in this language."""
    while (before := page.evaluate("document.documentElement.lang")) != language:
        page.click("[data-do=lang]")
        wait_for_function(page, f"document.documentElement.lang !== '{before}'")


def open_menu(page: Page) -> None:
    """Open the menu on the picture, which has the model, the input size and everything that leaves the page."""
    page.locator(".vv-menu").evaluate("(menu) => { menu.open = true }")


def close_menu(page: Page) -> None:
    page.locator(".vv-menu").evaluate("(menu) => { menu.open = false }")


def menu_click(page: Page, name: str) -> None:
    """Click a button of the menu on the picture by its `data-do`."""
    open_menu(page)
    page.locator(f".vv-menu [data-do={name}]").click()
    close_menu(page)


def menu_select(page: Page, selector: str, *value: str, **how: Any) -> None:
    """Choose from a list in the menu on the picture."""
    open_menu(page)
    page.locator(selector).select_option(*value, **how)
    close_menu(page)


def limit_waits(context: BrowserContext) -> None:
    """Extend Playwright's time limits on a busy machine."""
    context.set_default_timeout(1000 * patience(60))
    expect.set_options(timeout=1000 * patience(30))  # below pytest-timeout's limit, because this message says more


def leave(page: Page, addresses: Iterable[str]) -> None:
    """Leave a page that was at these addresses, and reset its context."""
    context = page.context
    for other in context.pages:
        if other is not page:
            other.close()
    page.unroute_all(behavior="ignoreErrors")
    page.goto("about:blank")
    page.mouse.move(0, 0)
    page.set_viewport_size(VIEWPORT)
    page.emulate_media(color_scheme="light", reduced_motion="no-preference", forced_colors="none")
    context.set_offline(False)
    context.clear_cookies()
    context.clear_permissions()
    devtools = context.new_cdp_session(page)
    for origin in {f"{parts.scheme}://{parts.netloc}" for parts in map(urlsplit, addresses) if parts.scheme != "about"}:
        devtools.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": STORAGE})
    devtools.detach()
