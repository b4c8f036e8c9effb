"""The browser fixture must see what goes wrong in a page, or every browser test is blind."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from browsing import CHROMIUMS, ELSEWHERE, find_chromium, leave, new_page, no_chromium, watch
from patience import wait_until
from playwright.sync_api import Browser

PAGES = {
    "/good": "<title>good</title><img src='/pixel.png'><script>fetch('/data')</script>",
    "/error": "<title>error</title><script>null.length</script>",
    "/promise": "<title>promise</title><script>Promise.reject(new Error('forgotten'))</script>",
    "/font": "<title>font</title><link rel=stylesheet href='https://fonts.example.org/css?family=Inter'>",
    "/socket": "<title>socket</title><script>new WebSocket('wss://example.org/live')</script>",
}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(PAGES.get(self.path, "").encode())

    def log_message(self, *args: object) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_the_fixture_sees_errors_and_requests_that_leave_the_machine(browser: Browser, url: str) -> None:
    context = browser.new_context()
    problems = watch(context)
    page = context.new_page()
    page.goto(f"{url}/good")
    page.wait_for_load_state("networkidle")
    assert (page.title(), problems) == ("good", [])
    for path, text in (
        ("/error", "uncaught in the page: TypeError"),
        ("/promise", "uncaught in the page: Error: forgotten"),
        ("/font", "leaves this machine: https://fonts.example.org"),
        ("/socket", "leaves this machine: wss://example.org/live"),
    ):
        problems.clear()
        page.goto(url + path)
        wait_until(lambda: page.evaluate("true") and problems, path)
        page.goto("about:blank")
        assert len(problems) == 1
        assert text in problems[0]
    context.close()


DIRTY = """async () => {
    localStorage.setItem('a', 'b');
    document.cookie = 'a=b';
    await new Promise((done) => { indexedDB.open('a').onsuccess = done; });
}"""
STATE = """async () => [localStorage.length, document.cookie, (await indexedDB.databases()).length, navigator.onLine,
    innerWidth, matchMedia('(prefers-color-scheme: dark)').matches, document.title,
    (await navigator.permissions.query({ name: 'geolocation' })).state]"""


def test_a_page_that_was_left_is_as_good_as_new(browser: Browser, url: str) -> None:
    with new_page(browser) as page:
        page.goto(f"{url}/good")
        new = page.evaluate(STATE)
        page.context.grant_permissions(["geolocation"])
        page.evaluate(DIRTY)
        page.set_viewport_size({"width": 390, "height": 844})
        page.emulate_media(color_scheme="dark")
        page.route("**/good", lambda route: route.fulfill(body="<title>another</title>", content_type="text/html"))
        page.goto(f"{url}/good")
        page.context.set_offline(True)
        assert all(now != before for now, before in zip(page.evaluate(STATE), new, strict=True))
        page.context.new_page()
        leave(page, [page.url])
        assert page.context.pages == [page]
        page.goto(f"{url}/good")
        assert page.evaluate(STATE) == new


def test_only_this_machine_is_here() -> None:
    here = ["http://127.0.0.1:7860/x", "http://localhost/", "ws://localhost:7860/queue", "http://[::1]:80/", "data:,x"]
    away = ["https://example.org/a.js", "http://127.0.0.1.example.org/", "https://localhost.example.org", "wss://a.org"]
    assert [address for address in here + away if ELSEWHERE.match(address)] == away


def test_the_systems_chromium_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downloaded = tmp_path / "chrome"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_chromium(str(downloaded)) is None
    downloaded.touch()
    assert find_chromium(str(downloaded)) == str(downloaded)
    system = tmp_path / "google-chrome"
    system.touch(mode=0o755)
    assert find_chromium(str(downloaded)) == str(system)


def test_without_a_chromium_tests_are_left_out_but_fail_in_ci() -> None:
    with pytest.raises(pytest.skip.Exception, match=CHROMIUMS[0]):
        no_chromium(in_ci=False)
    with pytest.raises(pytest.fail.Exception, match=CHROMIUMS[0]):
        no_chromium(in_ci=True)
