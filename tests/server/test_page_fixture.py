"""The browser fixture must see what goes wrong in a page, or every browser test is blind."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from conftest import CHROMIUMS, ELSEWHERE, find_chromium, no_chromium, watch
from playwright.sync_api import Browser, Page

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


def test_a_good_page_passes(page: Page, url: str) -> None:
    page.goto(url + "/good")
    page.wait_for_load_state("networkidle")
    assert page.title() == "good"
    assert page.viewport_size == {"width": 1440, "height": 900}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/error", "uncaught in the page: TypeError"),
        ("/promise", "uncaught in the page: Error: forgotten"),
        ("/font", "leaves this machine: https://fonts.example.org"),
        ("/socket", "leaves this machine: wss://example.org/live"),
    ],
)
def test_what_goes_wrong_is_seen(browser: Browser, url: str, path: str, text: str) -> None:
    context = browser.new_context()
    problems = watch(context)
    opened = context.new_page()
    opened.goto(url + path)
    opened.wait_for_timeout(300)
    context.close()
    assert len(problems) == 1
    assert text in problems[0]


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
