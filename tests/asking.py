"""Run the page's server in this process, and send it requests as browsers and programs do."""

import gc
import json
import queue
import socket
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any
from unittest.mock import Mock

import anyio
import httpx
import pytest
from anyio.from_thread import start_blocking_portal
from gradio import http_server
from patience import patience, wait_until

from vitviz.page import Page, launch
from vitviz.server.endpoints import Endpoints
from vitviz.server.jobs import Kind

FORM = {"nothing": (None, "")}  # makes httpx send a multipart form without a file
CHUNK = 2**18  # bytes per chunk of a body


class Visitor:
    """Client of a server; `client` sends the requests."""

    client: httpx.Client

    def post(self, name: str, *question: Any, headers: dict[str, str] | None = None, **named: Any) -> httpx.Response:
        """Send a question like the page; its arguments are those of `form`."""
        return self.client.post(f"/vitviz/{name}", **form(*question, **named), headers=headers)

    def ask(self, name: str, *question: Any, **named: Any) -> Any:
        """Return the last line of a response, or its bytes."""
        answer = self.post(name, *question, **named)
        assert answer.status_code == 200, answer.text
        return last(answer.content)

    def stream(self, name: str, *question: Any, **named: Any) -> Any:
        return self.client.stream("POST", f"/vitviz/{name}", **form(*question, **named))

    def upload(self, name: str, data: bytes, **headers: str) -> httpx.Response:
        return self.client.post("/gradio_api/upload", files={"files": (name, data)}, headers=headers)

    def join(self, number: int, data: list[Any], session: str = "attacker") -> str:
        """Return the whole response to an event of the page."""
        body = {"data": data, "fn_index": number, "session_hash": session}
        self.client.post("/gradio_api/queue/join", json=body).raise_for_status()
        lines = []
        with self.client.stream("GET", f"/gradio_api/queue/data?session_hash={session}") as answer:
            for line in answer.iter_lines():
                lines.append(line)
                if '"process_completed"' in line or '"close_stream"' in line:
                    break
        return "\n".join(lines)

    def call(self, name: str, *data: Any) -> str:
        """Return the response of a named endpoint of Gradio's API."""
        began = self.client.post(f"/gradio_api/call/{name}", json={"data": data})
        if began.status_code in (400, 403):  # refused before it was queued
            return began.text
        assert began.status_code == 200, began.text
        return self.client.get(f"/gradio_api/call/{name}/{began.json()['event_id']}").text

    def config(self) -> dict[str, Any]:
        return self.client.get("/config").json()


def form(ask: Any = None, photo: bytes | None = None, source: Any = None) -> dict[str, Any]:
    data = {"ask": ask if isinstance(ask, str) else json.dumps(ask or {})}
    if source is not None:
        data["source"] = json.dumps(source)
    return {"data": data, "files": FORM if photo is None else {"photo": ("photo", photo)}}


def last(body: bytes) -> Any:
    """Return the last message of a stream."""
    while True:
        text, _, body = body.partition(b"\n")
        line = json.loads(text)
        if "bytes" in line:
            assert len(body) == line["bytes"]
            return body
        if "progress" not in line:
            assert body == b""
            return line


class Site(Visitor):
    """Page as `launch` assembles it, without a socket unless it `listens`."""

    def __init__(self, endpoints: Endpoints, listens: bool = False) -> None:
        self.endpoints, self.page, self.url = endpoints, Page(endpoints), "http://127.0.0.1"
        self._loop = start_blocking_portal()
        self.portal = self._loop.__enter__()
        options = {"prevent_thread_lock": True, "quiet": True}
        if listens:
            self.url = f"http://127.0.0.1:{free_port()}"
            launch(self.page, endpoints.menu.settings, "127.0.0.1", int(self.url.rpartition(":")[2]), **options)
            self.client = httpx.Client(base_url=self.url, timeout=patience(60))
        else:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(http_server, "start_server", lambda **_: ("127.0.0.1", 1, self.url, Mock()))
                for name in ("get", "head"):  # Gradio's requests to its own server when it starts
                    patch.setattr(httpx, name, lambda *_, **__: httpx.Response(200))
                launch(self.page, endpoints.menu.settings, **options)
            self.app = self.page.app
            self.client = self.client_at("127.0.0.1")
            self.client.get("/gradio_api/startup-events").raise_for_status()

    def client_at(self, address: str, hangs: bool = False) -> httpx.Client:
        """Return a client whose requests come from an address; if it `hangs`, its requests never end."""
        return httpx.Client(base_url=self.url, transport=InProcess(self.app, self.portal, address, hangs))

    def close(self) -> None:
        self.client.close()
        self.page.close()
        self._loop.__exit__(None, None, None)
        del self.page, self.endpoints
        gc.collect()


class InProcess(httpx.BaseTransport):
    """Pass requests from an address to an ASGI app in the loop of `portal`, and stream its responses.

    Closing a response before its end closes the connection: the app receives `http.disconnect`.

    Args:
        app, portal, address: see above.
        hangs: whether the last byte of a request is never sent.
        reads: whether more than the first part of a response is read.
    """

    def __init__(
        self, app: Callable[..., Any], portal: Any, address: str, hangs: bool = False, reads: bool = True
    ) -> None:
        self.app, self.portal, self.address, self.hangs, self.reads = app, portal, address, hangs, reads

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        body, messages = request.read(), queue.Queue[Any]()
        parts = [body[at : at + CHUNK] for at in range(0, len(body), CHUNK)] or [b""]
        ended = self.portal.call(anyio.Event)

        async def receive() -> dict[str, Any]:
            if parts:
                return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts) or self.hangs}
            await ended.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            messages.put(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                ended.set()
            if message.get("body") and not self.reads:
                await anyio.sleep_forever()

        url = request.url
        scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": request.method}
        scope |= {"scheme": url.scheme, "path": url.path, "raw_path": url.raw_path, "query_string": url.query}
        scope |= {"root_path": "", "client": (self.address, 1), "server": ("127.0.0.1", 80)}
        scope["headers"] = [(name.lower(), value) for name, value in request.headers.raw]

        async def run() -> None:
            try:
                await self.app(scope, receive, send)
                messages.put(AssertionError("the answer has no end"))
            except BaseException as error:
                messages.put(error)
                raise

        def close() -> None:
            self.portal.call(ended.set)
            running.result(patience(60))

        running = self.portal.start_task_soon(run)
        start = take(messages)
        return httpx.Response(start["status"], headers=start["headers"], stream=_Answer(messages, close))


class _Answer(httpx.SyncByteStream):
    def __init__(self, messages: queue.Queue[Any], close: Callable[[], None]) -> None:
        self._messages, self.close = messages, close

    def __iter__(self) -> Iterator[bytes]:
        while (message := take(self._messages)).get("more_body", False):
            yield message["body"]
        yield message.get("body", b"")


def take(messages: queue.Queue[Any]) -> dict[str, Any]:
    message = messages.get(timeout=patience(60))
    if isinstance(message, BaseException):
        raise message
    return message


def free_port() -> int:
    """Return an unused port of this machine."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def progress(lines: Iterator[str]) -> dict[str, Any]:
    """Read the next progress message of a response."""
    return json.loads(next(lines))["progress"]


def progress_with(key: str, lines: Iterator[str]) -> dict[str, Any]:
    """Read progress messages until one has a key."""
    return next(line for line in map(progress, repeat(lines)) if key in line)


def wait_for_rest(endpoints: Endpoints) -> None:
    """Wait until no job is running or queued."""
    wait_until(lambda: endpoints.jobs.ahead(Kind.LONG)[0] == 0, "the server comes to rest")
