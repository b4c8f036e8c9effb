"""What a request must be before gradio sees it: an ASGI middleware that stands in the place of gradio's own CORS.

gradio answers more than this page needs (monitoring, reloading, a relay for other hosts' files, direct calls that pass
by the queue), reflects every origin, and bounds neither bodies nor what one visitor may ask for at once. Here
everything is refused that is not in the table of routes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
from starlette.datastructures import Headers, MutableHeaders, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitviz.server.scheduler import Client, current
from vitviz.server.uploads import UploadError, UploadFolder, check_type

API = "/gradio_api"
NAME = r"[\w-]{1,64}"
GET = [
    r"/", r"/config", r"/theme\.css", r"/robots\.txt", r"/favicon\.ico", r"/manifest\.json", r"/pwa_icon(/\d+)?",
    r"/(static|assets|svelte)/.+",
    rf"{API}/(info|openapi\.json|startup-events|app_id|theme\.css|queue/data|upload_progress)",
    rf"{API}/heartbeat/{NAME}", rf"{API}/call/(v2/)?{NAME}/{NAME}", rf"{API}/file=.+",
]  # fmt: skip
POST = [rf"{API}/(upload|queue/join|cancel|reset|component_server|call/(v2/)?{NAME})"]
ROUTES = {method: re.compile("|".join(GET)) for method in ("GET", "HEAD")} | {"POST": re.compile("|".join(POST))}
JSON_BYTES = 2**20  # of a request's body
RUNNING = 8  # questions to components that hold a thread at once; gradio has 40 for all it does
OPEN = 400  # requests of one address at once: a lecture hall behind one router has one address
OPEN_QUESTIONS = 64  # of these, questions to components

log = logging.getLogger(__name__)

CSP = {
    "default-src": "'self'",
    "script-src": "'self' 'unsafe-inline' 'unsafe-eval'",  # gradio makes functions of its components' scripts
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data: blob:",
    "media-src": "'self' data: blob:",
    "font-src": "'self' data:",
    "connect-src": "'self' data: blob:",
    "worker-src": "'self' blob:",
    "object-src": "'none'",
    "base-uri": "'self'",
    "form-action": "'self'",
}


class Refused(Exception):
    """A request that is answered here, in words."""

    def __init__(self, status: int, words: str, **headers: str) -> None:
        self.response = PlainTextResponse(words, status, headers)


class Firewall:
    """Refuse what this page does not serve, bound what a visitor may ask for, and set the headers of every answer.

    Args:
        app: gradio's.
        uploads: where files go.
        max_file: bytes of one upload.
        checkpoints: whether checkpoints may be uploaded.
        hosts: the names under which the page is served; empty for any.
        frames: origins that may show the page in a frame, beside its own.
        components: the components that answer questions.
        busy: why no event of an address is taken now, or an empty text.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        uploads: UploadFolder,
        max_file: int,
        checkpoints: bool,
        hosts: frozenset[str],
        frames: tuple[str, ...],
        components: frozenset[int],
        busy: Callable[[str], str],
        **_options: Any,
    ) -> None:
        self.app, self.uploads, self.max_file, self.checkpoints = app, uploads, max_file, checkpoints
        self.hosts, self.components, self.busy = hosts, components, busy
        self._open: Counter[str] = Counter()
        self._questions: Counter[str] = Counter()
        self._slots: asyncio.Semaphore | None = None
        csp = CSP | {"frame-ancestors": " ".join(("'self'", *frames))}
        self.headers = {
            "content-security-policy": "; ".join(f"{name} {value}" for name, value in csp.items()),
            "x-content-type-options": "nosniff",
            "referrer-policy": "same-origin",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request here, or hand it to gradio."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        begun = False

        async def answer(message: Message) -> None:
            nonlocal begun
            begun = True
            await self._send(send, message)

        visitor = address(scope)
        self._open[visitor] += 1
        try:
            if self._open[visitor] > OPEN:
                raise Refused(429, "Busy: this address has too many requests open. Try again in 10 s.", **retry(10))
            self._check_route(scope)
            self._check_origin(scope)
            await self._serve(scope, receive, answer, visitor)
        except Refused as refused:
            await refused.response(scope, receive, answer)
        except Exception:  # gradio's, on what it does not expect
            log.exception("A request could not be answered.")
            if not begun:
                words = "This request could not be answered. Check it against /gradio_api/info."
                await PlainTextResponse(words, 500)(scope, receive, answer)
        finally:
            self._open -= Counter([visitor])

    async def _serve(self, scope: Scope, receive: Receive, send: Send, visitor: str) -> None:
        path = route(scope)
        if path == f"{API}/upload":
            answer: Response = JSONResponse(await self._upload(scope, receive, visitor))
            await answer(scope, receive, send)
        elif path == f"{API}/upload_progress":  # the upload is answered when it is there
            await Response('data: {"msg": "done"}\n\n', media_type="text/event-stream")(scope, receive, send)
        elif scope["method"] == "POST":
            receive = await self._checked_body(scope, receive, question=path == f"{API}/component_server")
            if path == f"{API}/component_server":
                await self._answer(scope, receive, send, visitor)
            elif (path.endswith("/join") or "/call/" in path) and (words := self.busy(visitor)):
                # Not 503: gradio's page has words of its own for that, without the time.
                await JSONResponse({"detail": words}, 429, retry(10))(scope, receive, send)
            else:
                await self.app(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    # What may come in

    def _check_route(self, scope: Scope) -> None:
        routes = ROUTES.get(scope["method"])
        path = route(scope)
        if routes is None or not routes.fullmatch(path):
            raise Refused(404, "This page does not serve this address.")
        if path.startswith(f"{API}/file="):
            try:
                self.uploads.check(path.removeprefix(f"{API}/file="))
            except UploadError as error:
                raise Refused(403, str(error)) from error
        for name in parse_qs(scope["query_string"].decode("latin-1")).get("session_hash", []):
            check_session(name)

    def _check_origin(self, scope: Scope) -> None:
        """Check the host, and that a request which changes something comes from the page itself or from a program."""
        headers = MutableHeaders(scope=scope)
        host = headers.get("host", "")
        if self.hosts and hostname(host) not in self.hosts:
            raise Refused(421, "This page is not served under this name. Its operator can add names with VITVIZ_HOSTS.")
        forwarded = headers.get("x-forwarded-host", "").split(",")[0].strip()
        if forwarded and forwarded != host and hostname(forwarded) not in self.hosts:
            del headers["x-forwarded-host"]
        if "x-gradio-server" in headers:
            del headers["x-gradio-server"]
        origin = headers.get("origin")
        own = {host.lower(), headers.get("x-forwarded-host", host).split(",")[0].strip().lower()}
        if scope["method"] == "POST" and origin is not None and urlsplit(origin).netloc.lower() not in own:
            raise Refused(403, "This page takes no requests from other sites.")

    async def _checked_body(self, scope: Scope, receive: Receive, question: bool) -> Receive:
        """Read a JSON body, bounded, and check what gradio takes on trust."""
        kind = Headers(scope=scope).get("content-type", "").split(";")[0].strip().lower()
        if kind not in ("application/json", ""):
            raise Refused(415, "Expected a body of type application/json.")
        body = bytearray()
        async for chunk in chunks(receive, JSON_BYTES):
            body += chunk
        try:
            said = json.loads(body or b"{}")
        except (ValueError, RecursionError) as error:
            raise Refused(400, "Expected a JSON object as the body.") from error
        if not isinstance(said, dict):
            raise Refused(400, "Expected a JSON object as the body.")
        if (name := said.get("session_hash")) is not None:
            check_session(name)
        if question and not (
            said.get("component_id") in self.components and isinstance(said.get("fn_name"), str) and "data" in said
        ):
            raise Refused(400, "Expected data, component_id and fn_name of a component that answers questions.")
        if question and said.get("session_hash") is None:
            raise Refused(400, "Expected a session_hash.")
        sent = False

        async def again() -> Message:
            nonlocal sent
            if sent:
                return await receive()  # the client leaves
            sent = True
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        return again

    async def _upload(self, scope: Scope, receive: Receive, visitor: str) -> list[str]:
        """Take one file. What is broken off leaves nothing behind: until it is whole, the system holds it unnamed."""
        headers = Headers(scope=scope)
        if not headers.get("content-type", "").startswith("multipart/form-data"):
            raise Refused(415, "Expected a body of type multipart/form-data.")
        most = self.max_file + 2**16  # the parts' own lines
        if int(headers.get("content-length") or 0) > most:
            raise Refused(413, f"Expected a file of at most {self.max_file // 10**6} MB. Send a smaller one.")
        try:
            form = await MultiPartParser(headers, chunks(receive, most), max_files=1, max_fields=4).parse()
        except (MultiPartException, KeyError) as error:
            raise Refused(400, "Expected one file a request.") from error
        files = [one for one in form.getlist("files") if isinstance(one, UploadFile)]
        try:
            if len(files) != 1:
                raise Refused(400, "Expected one file a request, in the field files.")
            name = files[0].filename or ""
            await anyio.to_thread.run_sync(check_type, files[0].file, name, self.checkpoints)
            files[0].file.seek(0)
            return [str(await anyio.to_thread.run_sync(self.uploads.add, visitor, name, files[0].file))]
        except UploadError as error:
            raise Refused(415, str(error)) from error
        finally:
            await form.close()

    # Questions to components, which pass by gradio's queue

    async def _answer(self, scope: Scope, receive: Receive, send: Send, visitor: str) -> None:
        """Hand a question to gradio when a thread is free. When its client leaves before it is answered, stop it."""
        self._slots = self._slots or asyncio.Semaphore(RUNNING)
        if self._questions[visitor] >= OPEN_QUESTIONS:
            raise Refused(429, "Busy: this address has too many questions open. Try again in 10 s.", **retry(10))
        self._questions[visitor] += 1
        body = await receive()
        client = Client(json.loads(body["body"])["session_hash"], visitor)
        current.set(client)
        work = asyncio.create_task(self._run(scope, body, send))
        leaving = asyncio.create_task(left(receive))
        try:
            await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                client.gone.set()
            await work
        finally:
            client.gone.set()
            leaving.cancel()
            self._questions -= Counter([visitor])

    async def _run(self, scope: Scope, body: Message, send: Send) -> None:
        async def receive() -> Message:
            return body

        assert self._slots is not None
        async with self._slots:
            if not current.get().gone.is_set():
                await self.app(scope, receive, send)

    # What goes out

    async def _send(self, send: Send, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in self.headers.items():
                headers[name] = value
        await send(message)


async def left(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def chunks(receive: Receive, most: int) -> AsyncGenerator[bytes, None]:
    """Yield a request's body, and refuse it as soon as it is longer than allowed."""
    seen = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "The request was broken off.")
        seen += len(message.get("body", b""))
        if seen > most:
            raise Refused(413, f"Expected a request of at most {most / 10**6:.0f} MB. Send less.")
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


def check_session(name: object) -> None:
    """Refuse names of sessions that no browser makes: gradio keeps them."""
    if not (isinstance(name, str) and re.fullmatch(NAME, name)):
        raise Refused(400, "Expected a session_hash of at most 64 letters and digits.")


def address(scope: Scope) -> str:
    """Return the address that a request comes from; uvicorn has put there what a trusted proxy says."""
    return str(scope["client"][0]) if scope.get("client") else ""


def route(scope: Scope) -> str:
    """Return the path of a request within this app, without a slash at its end."""
    return str(scope["path"]).removeprefix(scope.get("root_path", "")).rstrip("/") or "/"


def hostname(host: str) -> str:
    """Return a Host header without its port, in lower case: "[::1]:7860" -> "::1"."""
    with suppress(ValueError):
        return (urlsplit(f"//{host}").hostname or "").lower()
    return ""


def retry(seconds: int) -> dict[str, str]:
    """Return the header that tells programs when to come again."""
    return {"retry-after": str(seconds)}
