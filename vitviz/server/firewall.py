"""Check requests before gradio sees them: an ASGI middleware in the place of gradio's own CORS middleware.

gradio answers more than this page needs (monitoring, reloading, a relay for other hosts' files, direct calls that pass
by the queue), reflects every origin, and bounds neither bodies nor what one visitor may ask for at once. Here
everything is refused that is not in the table of routes.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
from starlette.datastructures import Headers, MutableHeaders, UploadFile
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitviz.server.health import OUTCOME, RequestLog
from vitviz.server.routes import FORM_BYTES, NAMES, Refused, address, busy, chunks, parse
from vitviz.server.uploads import DiskFullError, UploadError, UploadFolder, check_type

API = "/gradio_api"
NAME = r"[\w-]{1,64}"
GET = [
    r"/", r"/healthz", r"/config", r"/theme\.css", r"/robots\.txt", r"/favicon\.ico", r"/manifest\.json",
    r"/pwa_icon(/\d+)?", r"/(static|assets|svelte)/.+",
    rf"{API}/(info|openapi\.json|startup-events|app_id|theme\.css|queue/data|upload_progress)",
    rf"{API}/heartbeat/{NAME}", rf"{API}/call/(v2/)?{NAME}/{NAME}", rf"{API}/file=.+",
]  # fmt: skip
POST = [r"/vitviz/[a-z]+", rf"{API}/(upload|queue/join|cancel|reset|call/(v2/)?{NAME})"]
MCP = rf"{API}/mcp(/.*)?"
JSON_BYTES = 2**20  # of a request's body
OPEN = 400  # requests of one address at once: a lecture hall behind one router has one address

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


class Firewall:
    """Refuse what this page does not serve, bound what a visitor may ask for, and set the headers of every answer.

    Args:
        app: gradio's.
        uploads: where files of programs go.
        max_file: bytes of one upload.
        checkpoints: whether checkpoints may be uploaded.
        hosts: the names under which the page is served; empty for any.
        frames: origins that may show the page in a frame, beside its own.
        busy: why no event of an address is taken now, or an empty text.
        mcp: whether tools are served.
        log: where each request is noted, if it is.
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
        busy: Callable[[str], str],
        mcp: bool = False,
        log: RequestLog | None = None,
        **_options: Any,
    ) -> None:
        self.app, self.uploads, self.max_file, self.checkpoints = app, uploads, max_file, checkpoints
        self.hosts, self.busy, self.log = hosts, busy, log
        self._open: Counter[str] = Counter()
        tools = {"GET": [MCP], "POST": [MCP], "DELETE": [MCP]} if mcp else {}
        served = {"GET": GET, "HEAD": GET, "POST": POST, "DELETE": []}
        self.routes = {name: re.compile("|".join([*one, *tools.get(name, [])])) for name, one in served.items()}
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
        if scope["path"] == scope.get("root_path") != "":  # the page's own addresses are relative to the slash
            query = scope["query_string"].decode("latin-1")
            await RedirectResponse(f"{scope['path']}/{'?' * bool(query)}{query}")(scope, receive, send)
            return
        status, began, scope[OUTCOME] = 0, time.perf_counter(), {}
        scope["path"], scope["root_path"] = below_root(scope), ""

        async def answer(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await self._send(send, message)

        visitor = address(scope)
        self._open[visitor] += 1
        try:
            if self._open[visitor] > OPEN:
                raise busy("this address has too many requests open")
            self._check_route(scope)
            self._check_origin(scope)
            await self._serve(scope, receive, answer, visitor)
        except Refused as refused:
            await refused.response(scope, receive, answer)
        except Exception:  # gradio's, on what it does not expect
            log.exception("A request could not be answered.")
            if not status:
                text = "This request could not be answered. Check it against /gradio_api/info."
                await PlainTextResponse(text, 500)(scope, receive, answer)
        finally:
            self._open -= Counter([visitor])
            if self.log is not None:
                self.log.write(scope, status, began)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, visitor: str) -> None:
        path = route(scope)
        if path == f"{API}/upload":
            answer: Response = JSONResponse(await self._upload(scope, receive, visitor))
            await answer(scope, receive, send)
        elif path == f"{API}/upload_progress":  # the upload is answered when it is there
            await Response('data: {"msg": "done"}\n\n', media_type="text/event-stream")(scope, receive, send)
        elif scope["method"] == "POST" and path.startswith(API):
            receive = await self._checked_body(scope, receive)
            if (path.endswith("/join") or "/call/" in path) and (text := self.busy(visitor)):
                # Not 503: gradio's client has words of its own for that, without the time.
                await JSONResponse({"detail": text}, 429, {"retry-after": "10"})(scope, receive, send)
            else:
                await self.app(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    # What may come in

    def _check_route(self, scope: Scope) -> None:
        routes, path = self.routes.get(scope["method"]), route(scope)
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
        if scope["method"] in ("POST", "DELETE") and origin is not None and urlsplit(origin).netloc.lower() not in own:
            raise Refused(403, "This page takes no requests from other sites.")

    async def _checked_body(self, scope: Scope, receive: Receive) -> Receive:
        """Read a JSON body, bounded, and check what gradio takes on trust."""
        kind = Headers(scope=scope).get("content-type", "").split(";")[0].strip().lower()
        if kind not in ("application/json", ""):
            raise Refused(415, "Expected a body of type application/json.")
        body = bytearray()
        async for chunk in chunks(receive, JSON_BYTES):
            body += chunk
        try:
            content = json.loads(body or b"{}")
        except (ValueError, RecursionError) as error:
            raise Refused(400, "Expected a JSON object as the body.") from error
        if not isinstance(content, dict):
            raise Refused(400, "Expected a JSON object as the body.")
        if (name := content.get("session_hash")) is not None:
            check_session(name)
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
        most = self.max_file + FORM_BYTES
        form = await parse(Headers(scope=scope), chunks(receive, most), most)
        files = [one for one in form.getlist("files") if isinstance(one, UploadFile)]
        try:
            if len(files) != 1:
                raise Refused(400, "Expected one file a request, in the field files.")
            name = files[0].filename or ""
            await anyio.to_thread.run_sync(check_type, files[0].file, name, self.checkpoints)
            files[0].file.seek(0)
            return [str(await anyio.to_thread.run_sync(self.uploads.add, visitor, name, files[0].file))]
        except UploadError as error:
            raise Refused(507 if isinstance(error, DiskFullError) else 415, str(error)) from error
        finally:
            await form.close()

    # What goes out

    async def _send(self, send: Send, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in self.headers.items():
                headers[name] = value
        await send(message)


def check_session(name: object) -> None:
    """Refuse names of sessions that no browser makes: gradio keeps them."""
    if not (isinstance(name, str) and re.fullmatch(NAME, name)):
        raise Refused(400, "Expected a session_hash of at most 64 letters and digits.")


def below_root(scope: Scope) -> str:
    """Return the path of a request within this app, whether or not a proxy has cut off the path before it.

    Starlette would take the questions' own folder for that, where the page is served under a path of the same name.
    """
    path, root = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    is_question = path in {f"/vitviz/{name}" for name in NAMES}
    return path.removeprefix(root) if path.startswith(f"{root}/") and not is_question else path


def route(scope: Scope) -> str:
    """Return the path of a request within this app, without a slash at its end."""
    return str(scope["path"]).rstrip("/") or "/"


def hostname(host: str) -> str:
    """Return a Host header without its port, in lower case: "[::1]:7860" -> "::1"."""
    with suppress(ValueError):
        return (urlsplit(f"//{host}").hostname or "").lower()
    return ""
