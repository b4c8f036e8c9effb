"""Bodies and answers on their way are booked, bounded, read as UTF-8 alone, and cut off where a client stalls."""

from __future__ import annotations

import asyncio
import codecs
import json
from pathlib import Path
from typing import Any

import pytest
from asking import run_async
from offered import folder, made, photograph
from starlette.routing import Router

from vitviz.server import arguments, bodies
from vitviz.server.account import Account, Budget, Resource
from vitviz.server.endpoints import Endpoints
from vitviz.server.firewall import Firewall
from vitviz.server.routes import Questions
from vitviz.server.uploads import UploadFolder

STALL = 0.2  # seconds, of clients that never send or read again


class Page:
    """The page's questions behind the firewall, asked without a socket."""

    def __init__(self, place: Path, endpoints: Endpoints) -> None:
        self.endpoints, self.account = endpoints, endpoints.account
        self.uploads = UploadFolder(place)
        self.uploads.account = self.account
        self.app = Firewall(
            Router([Questions(endpoints).route()]),
            uploads=self.uploads,
            account=self.account,
            max_file=10**6,
            allowed=endpoints.menu.settings,
            busy=lambda _: "",
        )

    def ask(self, *args: Any, **options: Any) -> tuple[int, bytes]:
        return run_async(lambda: self.request(*args, **options))

    async def request(
        self,
        path: str,
        parts: list[bytes],
        content_type: str = "multipart/form-data; boundary=x",
        address: str = "127.0.0.9",
        ends: bool = True,
        reads: bool = True,
    ) -> tuple[int, bytes]:
        """Return status and body of an answer; a body that does not end sends nothing more after its parts."""
        status, found, pending = 0, b"", list(parts)

        async def receive() -> dict[str, Any]:
            if pending:
                part = pending.pop(0)
                return {"type": "http.request", "body": part, "more_body": bool(pending) or not ends}
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: dict[str, Any]) -> None:
            nonlocal status, found
            status = message.get("status", status)
            found += message.get("body", b"")
            if not reads and message.get("body"):
                await asyncio.Event().wait()

        headers = [(b"host", b"localhost"), (b"content-type", content_type.encode())]
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "root_path": "",
            "query_string": b"",
            "headers": headers,
            "client": (address, 1),
            "scheme": "http",
            "server": ("localhost", 80),
        }
        await self.app(scope, receive, send)
        return status, found


def form(name: str, data: bytes, filename: str | None = None, end: bool = True) -> bytes:
    file = f'; filename="{filename}"' if filename else ""
    head = f'--x\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode()
    return head + data + (b"\r\n--x--\r\n" if end else b"")


@pytest.fixture
def page(tmp_path: Path) -> Page:
    (tmp_path / "uploads").mkdir()
    endpoints = made(tmp_path / "page", (folder(tmp_path / "a"),), upload=True, stall=STALL, disk=2 * 10**6)
    return Page(tmp_path / "uploads", endpoints)


# --- what a client names decodes nothing


@pytest.mark.parametrize("path", ["/vitviz/explain", "/vitviz/checkpoint", "/gradio_api/upload"])
@pytest.mark.parametrize("charset", ["punycode", "undefined", "utf-7", "idna", "latin-1", "no-such", "utf-16"])
def test_other_charsets_than_utf_8_are_refused_before_anything_is_decoded(
    page: Page, monkeypatch: pytest.MonkeyPatch, path: str, charset: str
) -> None:
    looked: list[str] = []
    look = codecs.lookup
    monkeypatch.setattr(codecs, "lookup", lambda name: looked.append(name) or look(name))
    body = form("f-", b"9999a" + b"a" * 5000)
    status, text = page.ask(path, [body], f"multipart/form-data; boundary=x; charset={charset}")
    assert status == 415
    assert b"UTF-8" in text
    assert looked == []
    assert page.account.used(Resource.TRANSFERS) == page.account.used(Resource.DISK) == 0


def test_utf_8_is_read_and_what_is_none_is_refused(page: Page) -> None:
    for charset in ("", "; charset=utf-8", "; charset=UTF-8"):
        status, text = page.ask("/vitviz/models", [form("ask", b"{}")], f"multipart/form-data; boundary=x{charset}")
        assert status == 200
        assert b'"groups"' in text
    for name in ("ask", "files"):
        assert page.ask("/vitviz/models", [form(name, b"\xff\xfe")])[0] == 400


@pytest.mark.parametrize(
    "body",
    [
        form("n" * 1000, b"{}"),
        form("photo", b"{}", "n" * 1000),
        b"--x\r\n" + b"A: b\r\n" * 100 + b"\r\n--x--\r\n",
        b"--x\r\nContent-Disposition: " + b"a" * 100_000 + b"\r\n\r\n--x--\r\n",
        b"".join(form(f"f{number}", b"x", end=False) + b"\r\n" for number in range(20)) + b"--x--\r\n",
        form("ask", bytes(2**20 + 1)),
    ],
    ids=["name", "filename", "headers", "header", "fields", "field"],
)
def test_names_headers_and_fields_are_bounded(page: Page, body: bytes) -> None:
    assert page.ask("/vitviz/models", [body])[0] == 400


# --- bodies on their way


@pytest.mark.parametrize("path", ["/vitviz/open", "/vitviz/checkpoint", "/gradio_api/upload", "/gradio_api/call/open"])
def test_a_body_that_never_ends_is_refused_and_releases_what_it_booked(page: Page, path: str) -> None:
    if "call" in path:
        status, text = page.ask(path, [b'{"data": ["x'], "application/json", ends=False)
    else:
        status, text = page.ask(path, [form("photo", bytes(50_000), "a.png", end=False)], ends=False)
    assert status == 408
    assert b"Expected" in text
    assert [page.account.used(one) for one in Resource if one is not Resource.SCENES] == [0] * (len(Resource) - 1)
    assert list(page.uploads.root.iterdir()) == []


def test_a_body_that_comes_by_drops_is_refused() -> None:
    now = iter(range(0, 10_000, 10))

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"x" * 100, "more_body": True}

    async def read(found: list[int]) -> None:
        with Account().book(Resource.TRANSFERS, "a", 0) as booking:
            async for part in bodies.chunks(receive, 10**6, booking, 20, lambda: next(now)):
                found[0] += len(part)

    found = [0]
    with pytest.raises(bodies.Refused, match="20,000 bytes in 30 s"):
        run_async(lambda: read(found))
    assert found[0] < 20_000


@pytest.mark.parametrize(
    ("path", "resource"), [("/vitviz/open", Resource.TRANSFERS), ("/gradio_api/upload", Resource.DISK)]
)
def test_unfinished_bodies_are_booked_by_address_and_in_all(page: Page, path: str, resource: Resource) -> None:
    page.account.budgets[resource] = Budget(250_000, 100_000)

    async def run() -> list[tuple[int, bytes]]:
        part = form("files", bytes(60_000), "a.png", end=False)
        waiting = [
            asyncio.create_task(page.request(path, [part], address=f"127.0.0.{number}", ends=False))
            for number in (1, 1, 2, 3, 4, 5)
        ]
        return await asyncio.gather(*waiting)

    answers = run_async(run)
    refused = [status for status, _ in answers if status in (429, 507)]
    assert len(refused) == 2  # the second of one address, and the fifth in all
    assert [status for status, _ in answers if status not in (429, 507)] == [408] * 4
    assert page.account.used(resource) == 0


def test_fields_of_an_upload_are_bounded_together(page: Page) -> None:
    body = b"".join(form(f"a{number}", bytes(400_000), end=False) + b"\r\n" for number in range(4))
    assert page.ask("/gradio_api/upload", [body], ends=False)[0] in (400, 408, 413, 507)
    assert page.account.used(Resource.DISK) == 0


def test_a_full_disk_while_a_body_arrives_is_answered_in_words(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bodies._Reader, "flush", full)
    for path in ("/vitviz/checkpoint", "/gradio_api/upload"):
        status, text = page.ask(path, [form("photo", photograph(), "a.safetensors")])
        assert status == 507
        assert b"Expected room" in text


# --- answers on their way


def test_an_answer_that_nobody_reads_is_cut_off_and_released(page: Page) -> None:
    scene = page.endpoints.open(photograph())["id"]
    ask = form("ask", json.dumps({"scene": scene}).encode())
    status, whole = page.ask("/vitviz/page", [ask])
    assert status == 200
    assert b"<html" in whole
    status, text = page.ask("/vitviz/page", [ask], reads=False)
    assert status == 200
    assert len(text) <= bodies.PIECE  # no more is handed to the connection before it takes that
    assert page.account.used(Resource.TRANSFERS) == page.account.used(Resource.QUESTIONS) == 0


def test_unread_answers_are_booked_and_one_too_many_is_refused_in_words(page: Page) -> None:
    scene = page.endpoints.open(photograph())["id"]
    size = len(page.endpoints.page(scene))
    page.account.budgets[Resource.TRANSFERS] = Budget(10 * size, size + 10_000)

    async def run() -> list[tuple[int, bytes]]:
        asks = [form("ask", json.dumps({"scene": scene, "search": f"?a={number}"}).encode()) for number in range(3)]
        return await asyncio.gather(*(page.request("/vitviz/page", [ask], reads=False) for ask in asks))

    answers = run_async(run)
    assert sum(b"wait to be read" in text for _, text in answers) >= 1
    assert page.account.used(Resource.TRANSFERS) == 0


# --- uploads


def test_an_upload_is_named_from_the_folder_on_and_another_visitor_has_another_name(page: Page) -> None:
    paths = []
    for address in ("127.0.0.1", "127.0.0.2"):
        status, text = page.ask("/gradio_api/upload", [form("files", photograph(), "holiday.png")], address=address)
        assert status == 200
        paths += json.loads(text)
    assert all(not path.startswith("/") and path.endswith("/holiday.png") for path in paths)
    assert paths[0] != paths[1]
    assert all(page.uploads.check(path).read_bytes() == photograph() for path in paths)
    assert page.account.used(Resource.DISK) == 2 * len(form("files", photograph(), "holiday.png"))


def test_an_upload_is_not_opened_before_it_is_decoded(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("PIL.Image.open", lambda *_: pytest.fail("it was opened"))
    assert page.ask("/gradio_api/upload", [form("files", photograph(), "a.png")])[0] == 200


# --- lists


def test_lists_are_checked_off_the_event_loop_and_only_to_the_first_mistake(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = page.endpoints.open(photograph())["id"]
    threads: list[bool] = []
    question = page.endpoints.question

    def asked(*given: Any) -> Any:
        try:
            threads.append(asyncio.get_running_loop() is None)
        except RuntimeError:
            threads.append(True)
        return question(*given)

    monkeypatch.setattr(page.endpoints, "question", asked)
    body = form("ask", json.dumps({"scene": scene, "patches": ["a"] * 20_000}).encode())
    status, text = page.ask("/vitviz/intervene", [body])
    assert status == 200
    assert json.loads(text)["error"]["kind"] == "refused"
    assert threads == [True]
    model = arguments._model(Endpoints.intervene)
    with pytest.raises(ValueError, match="1 validation error"):
        model.model_validate({"scene": scene, "patches": ["a"] * 20_000})
