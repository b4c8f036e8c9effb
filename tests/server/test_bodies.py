"""Client addresses behind proxies, and the limits, bookings and timeouts of bodies and answers in transit."""

import codecs
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio.from_thread import BlockingPortal
from asking import InProcess
from offered import new_endpoints, photograph
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import Router

from vitviz.server import arguments, bodies
from vitviz.server.account import Account, Budget, Resource
from vitviz.server.endpoints import Endpoints
from vitviz.server.firewall import Firewall
from vitviz.server.routes import Questions
from vitviz.server.uploads import UploadFolder
from vitviz.settings import Settings

STALL = 0.2  # seconds until stalled clients are disconnected


def walled(app: Callable[..., Any], uploads: UploadFolder, allowed: Settings) -> Firewall:
    return Firewall(
        app, uploads=uploads, account=uploads.account, max_file=10**6, allowed=allowed, leave=lambda _: None
    )


@pytest.mark.parametrize(
    ("proxies", "forwarded", "address"),
    [
        (0, "6.6.6.6", "10.0.0.1"),
        (1, "", "10.0.0.1"),
        (1, "6.6.6.6, 7.7.7.7, 1.2.3.4", "1.2.3.4"),
        (2, "6.6.6.6, 1.2.3.4, 5.5.5.5", "1.2.3.4"),
        (2, "1.2.3.4", "10.0.0.1"),
    ],
)
def test_only_forwarded_entries_of_the_operators_proxies_are_trusted(
    proxies: int, forwarded: str, address: str, tmp_path: Path, portal: BlockingPortal
) -> None:
    seen: list[tuple[str, str]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["client"][0], Headers(scope=scope)["x-forwarded-for"]))
        await Response()(scope, receive, send)

    firewall = walled(app, UploadFolder(tmp_path), Settings(proxies=proxies, mcp=True))
    with httpx.Client(base_url="http://localhost", transport=InProcess(firewall, portal, "10.0.0.1")) as client:
        for path in ("/config", "/gradio_api/mcp/"):
            client.get(path, headers={"x-forwarded-for": forwarded})
    # Gradio passes the headers of a tool's request on to its own server, which trusts the same number of entries.
    assert seen == [(address, forwarded), (address, ", ".join([address] * max(1, proxies)))]


class Page:
    """Serve the page's questions behind the firewall, without a socket."""

    def __init__(self, endpoints: Endpoints, portal: BlockingPortal) -> None:
        self.endpoints, self.account, self.portal = endpoints, endpoints.account, portal
        self.uploads = endpoints.menu.uploads
        self.app = walled(Router([Questions(endpoints).route()]), self.uploads, endpoints.menu.settings)

    def client(self, address: str = "127.0.0.9", **habits: bool) -> httpx.Client:
        """Return a client; `habits` are options of `InProcess`."""
        return httpx.Client(base_url="http://localhost", transport=InProcess(self.app, self.portal, address, **habits))

    def ask(
        self, path: str, body: bytes, kind: str = "multipart/form-data; boundary=x", **options: Any
    ) -> tuple[int, bytes]:
        """Return status and body of an answer."""
        answer = self.client(**options).post(path, content=body, headers={"content-type": kind})
        return answer.status_code, answer.content

    def unread(self, path: str, body: bytes) -> bytes:
        """Return the part of an unread answer that is sent before the server aborts it."""
        headers, sent = {"content-type": "multipart/form-data; boundary=x"}, list[bytes]()
        answering = self.client(reads=False).stream("POST", path, content=body, headers=headers)
        with answering as answer, pytest.raises(AssertionError, match="the answer has no end"):
            sent.extend(answer.iter_raw())
        return b"".join(sent)

    def booked(self) -> int:
        """Return everything that is booked, except for scenes."""
        return sum(self.account.used(resource) for resource in Resource if resource is not Resource.SCENES)


def form(name: str, data: bytes, filename: str | None = None, end: bool = True) -> bytes:
    file = f'; filename="{filename}"' if filename else ""
    head = f'--x\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode()
    return head + data + (b"\r\n--x--\r\n" if end else b"")


@pytest.fixture
def page(tmp_path: Path, sources: tuple[str, ...], portal: BlockingPortal) -> Page:
    return Page(new_endpoints(tmp_path / "page", sources, upload=True, stall=STALL, disk=2 * 10**6), portal)


def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the names of codecs are added when they are looked up."""
    names, lookup = list[str](), codecs.lookup
    monkeypatch.setattr(codecs, "lookup", lambda name: names.append(name) or lookup(name))
    return names


@pytest.mark.parametrize("path", ["/vitviz/explain", "/vitviz/checkpoint", "/gradio_api/upload"])
def test_other_charsets_are_refused_before_decoding(page: Page, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    names = looked_up(monkeypatch)
    body = form("f-", b"9999a" + b"a" * 5000)
    for charset in ("punycode", "undefined", "utf-7", "idna", "latin-1", "no-such", "utf-16"):
        status, text = page.ask(path, body, f"multipart/form-data; boundary=x; charset={charset}")
        assert (status, b"UTF-8" in text) == (415, True), charset
    assert names == []
    assert page.booked() == 0


def test_charsets_of_parts_and_json_are_never_looked_up(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"9999a" + b"a" * 5000 + b"-"
    disposition = b"Content-Disposition: form-data; name=\"ask\"; name*=punycode''" + text[:100]
    part = b"--x\r\n" + disposition + b"\r\nContent-Type: text/plain; charset=punycode\r\n\r\n{}\r\n--x--\r\n"
    requests = [("/vitviz/models", part, "multipart/form-data; boundary=x")]
    requests += [("/gradio_api/call/open", text, f"application/json; charset={name}") for name in ("punycode", "idna")]
    names = looked_up(monkeypatch)
    assert [page.ask(*request)[0] for request in requests] == [200, 400, 400]
    assert names == []


def test_utf_8_is_read_and_invalid_utf_8_refused(page: Page) -> None:
    for charset in ("", "; charset=utf-8", "; charset=UTF-8"):
        status, text = page.ask("/vitviz/models", form("ask", b"{}"), f"multipart/form-data; boundary=x{charset}")
        assert status == 200
        assert b'"groups"' in text
    for name in ("ask", "files"):
        assert page.ask("/vitviz/models", form(name, b"\xff\xfe"))[0] == 400


def test_names_headers_and_fields_of_a_form_are_bounded(page: Page) -> None:
    fields = [form(f"f{number}", bytes(400_000), end=False) + b"\r\n" for number in range(4)]
    for body in (
        form("n" * 1000, b"{}"),
        form("photo", b"{}", "n" * 1000),
        b"--x\r\n" + b"A: b\r\n" * 100 + b"\r\n--x--\r\n",
        b"--x\r\nContent-Disposition: " + b"a" * 100_000 + b"\r\n\r\n--x--\r\n",
        b"".join(form(f"f{number}", b"x", end=False) + b"\r\n" for number in range(20)) + b"--x--\r\n",
        form("ask", bytes(2**20 + 1)),
        b"".join(fields),  # too long together
    ):
        assert page.ask("/vitviz/models", body)[0] == 400, body[:100]
        assert page.ask("/gradio_api/upload", body)[0] in (400, 413, 507), body[:100]
    assert page.booked() == 0


@pytest.mark.parametrize("path", ["/vitviz/open", "/vitviz/checkpoint", "/gradio_api/upload", "/gradio_api/call/open"])
def test_body_that_never_ends_is_refused_and_its_booking_released(page: Page, path: str) -> None:
    if "call" in path:
        status, text = page.ask(path, b'{"data": ["x', "application/json", hangs=True)
    else:
        status, text = page.ask(path, form("photo", bytes(50_000), "a.png", end=False), hangs=True)
    assert status == 408
    assert b"Expected" in text
    assert page.booked() == 0
    assert list(page.uploads.root.iterdir()) == []


def test_slow_body_is_refused(portal: BlockingPortal) -> None:
    now, received = iter(range(0, 10_000, 10)), []

    async def receive() -> dict[str, Any]:
        received.append(b"x" * 100)
        return {"type": "http.request", "body": received[-1], "more_body": True}

    async def read() -> None:
        with Account().book(Resource.TRANSFERS, "a", 0) as booking:
            async for _ in bodies.chunks(receive, 10**6, booking, 20, lambda: next(now)):
                pass

    with pytest.raises(bodies.Refused, match="20,000 bytes in 30 s"):
        portal.call(read)
    assert len(b"".join(received)) < 20_000


@pytest.mark.parametrize(
    ("path", "resource"), [("/vitviz/open", Resource.TRANSFERS), ("/gradio_api/upload", Resource.DISK)]
)
def test_unfinished_bodies_are_booked_by_address_and_in_total(page: Page, path: str, resource: Resource) -> None:
    page.account.budgets[resource] = Budget(250_000, 100_000)
    body, addresses = form("files", bytes(60_000), "a.png", end=False), [f"127.0.0.{n}" for n in (1, 1, 2, 3, 4, 5)]
    with ThreadPoolExecutor(6) as pool:
        answers = pool.map(lambda address: page.ask(path, body, address=address, hangs=True)[0], addresses)
    statuses = sorted(answers)
    assert statuses[:4] == [408] * 4
    assert set(statuses[4:]) <= {429, 507}  # the second request of one address, and the fifth in total
    assert page.account.used(resource) == 0


def test_full_disk_during_an_upload_is_explained(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bodies._Reader, "flush", full)
    for path in ("/vitviz/checkpoint", "/gradio_api/upload"):
        status, text = page.ask(path, form("photo", photograph(), "a.safetensors"))
        assert status == 507
        assert b"Expected room" in text


def test_unread_answers_are_booked_cut_off_and_released(page: Page) -> None:
    scene = page.endpoints.open(photograph())["id"]
    asks = [form("ask", json.dumps({"scene": scene, "search": f"?a={number}"}).encode()) for number in range(3)]
    status, whole = page.ask("/vitviz/page", asks[0])
    assert status == 200
    assert b"<html" in whole
    assert 0 < len(page.unread("/vitviz/page", asks[0])) <= bodies.PIECE  # the next piece waits for the first
    assert page.booked() == 0
    page.account.budgets[Resource.TRANSFERS] = Budget(10 * len(whole), len(whole) + 10_000)
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda ask: page.unread("/vitviz/page", ask), asks))
    assert any(b"waiting to be read" in text for text in answers)
    assert page.booked() == 0


def test_upload_paths_are_relative_and_differ_between_visitors(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, body = [], form("files", photograph(), "holiday.png")
    monkeypatch.setattr("PIL.Image.open", lambda *_: pytest.fail("the upload was decoded"))
    for address in ("127.0.0.1", "127.0.0.2"):
        status, text = page.ask("/gradio_api/upload", body, address=address)
        assert status == 200
        paths += json.loads(text)
    assert all(not path.startswith("/") and path.endswith("/holiday.png") for path in paths)
    assert paths[0] != paths[1]
    assert all(page.uploads.check(path).read_bytes() == photograph() for path in paths)
    assert page.account.used(Resource.DISK) == 2 * len(body)


def test_long_lists_are_checked_in_a_thread_up_to_the_first_error(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = {"scene": page.endpoints.open(photograph())["id"], "patches": ["a"] * 20_000}
    threads, question = [], page.endpoints.question
    monkeypatch.setattr(
        page.endpoints, "question", lambda *args: threads.append(threading.current_thread()) or question(*args)
    )
    status, text = page.ask("/vitviz/intervene", form("ask", json.dumps(ask).encode()))
    assert status == 200
    assert json.loads(text)["error"]["kind"] == "refused"
    assert threads != [page.portal.call(threading.current_thread)]
    assert len(threads) == 1
    with pytest.raises(ValueError, match="1 validation error"):
        arguments._model(Endpoints.intervene).model_validate(ask)
