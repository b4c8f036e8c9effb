"""Check requests before Gradio handles them: an ASGI middleware around Gradio's whole application.

Gradio serves more than this page needs (monitoring, reloading, a proxy for files on other hosts, direct calls that
bypass the queue), allows every origin, and limits neither body sizes nor requests per visitor. The firewall refuses
everything that is not in its table of routes.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from urllib.parse import parse_qs, urlsplit

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitviz.server.account import Account, Booking, OverBudgetError, Resource
from vitviz.server.bodies import (
    FIELD_BYTES,
    Refused,
    Stalled,
    address,
    busy,
    chunks,
    json_object,
    read_form,
    send_in_pieces,
)
from vitviz.server.health import OUTCOME, RequestLog
from vitviz.server.routes import is_question
from vitviz.server.uploads import DISK_FULL, DiskFullError, UploadError, UploadFolder, check_type
from vitviz.settings import Settings
from vitviz.web import bundle

API = "/gradio_api"
NAME = r"[\w-]{1,64}"
GET = [
    r"/", r"/healthz", r"/config", r"/theme\.css", r"/robots\.txt", r"/favicon\.ico", r"/manifest\.json",
    r"/pwa_icon(/\d+)?", r"/(static|assets|svelte)/.+", rf"/vitviz/{re.escape(bundle.PREVIEW)}",
    rf"{API}/(info|openapi\.json|startup-events|app_id|theme\.css|queue/data|upload_progress)",
    rf"{API}/heartbeat/{NAME}", rf"{API}/call/(v2/)?{NAME}/{NAME}", rf"{API}/file=.+",
]  # fmt: skip
POST = [
    r"/vitviz/[a-z]+", rf"{API}/(upload|queue/join|cancel|reset|call/(v2/)?{NAME})",
]  # fmt: skip
MCP = rf"{API}/mcp(/.*)?"
JSON_BYTES = 2**20  # limit of a JSON body
REST_SECONDS = 30  # time limit for reading the rest of a refused body

PREVIEW = re.compile(rb'<meta\s+(?:property="og:|name="twitter:)[^>]*>\s*')  # gradio's own
INLINE = re.compile(rb"<script(?![^>]*\ssrc=)(?=[\s>])")  # inline only: a nonce would allow a script from any host

log = logging.getLogger(__name__)

CSP = {
    "default-src": "'self'",
    "script-src": "'self'{nonce} 'unsafe-eval'",  # Gradio compiles its components' scripts
    "style-src": "'self' 'unsafe-inline'",  # Gradio writes style attributes
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
    """Refuse requests that this page does not serve, limit requests per visitor, and set headers on every answer.

    Args:
        app: Gradio's application.
        uploads: folder for files uploaded by API clients.
        account: where requests and their bodies are booked.
        max_file: largest allowed upload, in bytes.
        allowed: the operator's settings.
        leave: called with the name of a session whose client left before the end of its events.
        log: request log, if any.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        uploads: UploadFolder,
        account: Account,
        max_file: int,
        allowed: Settings,
        leave: Callable[[str], None],
        log: RequestLog | None = None,
    ) -> None:
        self.app, self.uploads, self.account, self.max_file = app, uploads, account, max_file
        self.root: str = getattr(app, "root_path", "")  # GRADIO_ROOT_PATH; FastAPI sets it in the scope only later
        self.allowed, self.hosts, self.leave, self.log = allowed, allowed.hosts, leave, log
        tools = {"GET": [MCP], "POST": [MCP], "DELETE": [MCP]} if allowed.mcp else {}
        served = {"GET": GET, "HEAD": GET, "POST": POST, "DELETE": []}
        self.routes = {name: re.compile("|".join([*paths, *tools.get(name, [])])) for name, paths in served.items()}
        csp = CSP | {"frame-ancestors": " ".join(("'self'", *allowed.frames))}
        self.policy = "; ".join(f"{name} {value}" for name, value in csp.items())
        self.headers = {
            "content-security-policy": self.policy.format(nonce=""),
            "x-content-type-options": "nosniff",
            "referrer-policy": "same-origin",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on to Gradio."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        if scope["path"] == self.root != "":  # the page's relative URLs need the trailing slash
            query = scope["query_string"].decode("latin-1")
            await RedirectResponse(f"{scope['path']}/{'?' * bool(query)}{query}")(scope, receive, send)
            return
        status, began, scope[OUTCOME] = 0, time.perf_counter(), {}
        scope["path"] = below_root(scope["path"], self.root)
        receive = body = _Body(receive)

        self._believe_proxies(scope)
        visitor = address(scope)
        if re.fullmatch(MCP, route(scope)):  # Gradio copies a tool's headers into a request to its own server
            # That request passes through no proxy, so the visitor's address is entered once per proxy.
            MutableHeaders(scope=scope)["x-forwarded-for"] = ", ".join([visitor] * max(1, self.allowed.proxies))

        page = _Page(partial(self._preview, scope))

        async def answer(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            if message["type"] == "http.response.start" and status >= 400 and is_last(scope):
                await body.skip(REST_SECONDS)
            for part in page.take(message):
                await self._send(send, part, visitor, page.nonce)

        try:
            with self._place(visitor):
                self._check_route(scope)
                self._check_origin(scope)
                await self._serve(scope, receive, answer, visitor)
        except Refused as refused:
            with suppress(Stalled):
                await refused.response(scope, receive, answer)
        except Stalled:  # the server closes the connection, because the answer is incomplete
            log.info("A client did not read its answer.")
        except Exception:  # raised by Gradio for unexpected input
            log.exception("A request could not be answered.")
            if not status:
                await unanswered()(scope, receive, answer)
        finally:
            if self.log is not None:
                self.log.write(scope, status, began)

    def _believe_proxies(self, scope: Scope) -> None:
        """Take the visitor's address from `X-Forwarded-For`, counting one entry per proxy from the right.

        Earlier entries come from the visitor and may be forged.
        """
        if self.allowed.proxies:
            listed = ",".join(Headers(scope=scope).getlist("x-forwarded-for")).split(",")
            entries = list(filter(None, map(str.strip, listed)))
            if len(entries) >= self.allowed.proxies:
                scope["client"] = (entries[-self.allowed.proxies], 0)

    def _preview(self, scope: Scope) -> str:
        """Return the tags for previews of a link to the page."""
        host = Headers(scope=scope).get("host", "")
        return bundle.preview(f"{scope['scheme']}://{host}{self.root}/vitviz/{bundle.PREVIEW}")

    def _place(self, visitor: str) -> Booking:
        """Book one request."""
        try:
            return self.account.book(Resource.REQUESTS, visitor)
        except OverBudgetError as error:
            raise busy("this address has too many requests open") from error

    async def _serve(self, scope: Scope, receive: Receive, send: Send, visitor: str) -> None:
        path = route(scope)
        if path == f"{API}/upload":
            await JSONResponse(await self._upload(scope, receive, visitor))(scope, receive, send)
        elif path == f"{API}/upload_progress":  # no progress is sent: the upload's own answer marks its end
            await Response('data: {"msg": "done"}\n\n', media_type="text/event-stream")(scope, receive, send)
        elif path == "/" and scope["method"] == "HEAD":  # when Gradio starts, it waits three seconds for it
            await Response(media_type="text/html")(scope, receive, send)
        elif scope["method"] == "POST" and path.startswith(API):
            with self.account.book(Resource.TRANSFERS, visitor, 0) as booking:
                await self._pass_on(scope, await self._checked_body(scope, receive, booking, visitor), send)
        elif session := session_of(scope):
            await self._follow(session, scope, receive, send)
        else:
            await self._pass_on(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to Gradio's application, with the root path in front of its path.

        The firewall uses paths below the root path, see `below_root`. Gradio's application expects the root path at the
        start of every path, and removes it. If it were missing, the application would remove /vitviz from /vitviz/open
        where that is also the root path, and mounted applications (MCP) would find none of their routes.
        """
        await self.app({**scope, "path": self.root + scope["path"]}, receive, send)

    async def _follow(self, session: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a stream of events on; call `leave` if the client leaves before its end."""
        complete = False

        async def answer(message: Message) -> None:
            nonlocal complete
            await send(message)
            complete = message["type"] == "http.response.body" and not message.get("more_body", False)

        try:
            await self._pass_on(scope, receive, answer)
        finally:
            if not complete:
                self.leave(session)

    # Checking requests

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
        """Check the host, and that state-changing requests come from the page itself or from an API client."""
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
            raise Refused(403, "This page accepts no requests from other sites.")
        if origin is not None:
            del headers["origin"]  # Gradio would let the other site read the answer

    async def _checked_body(self, scope: Scope, receive: Receive, booking: Booking, visitor: str) -> Receive:
        """Read a bounded JSON body, and check what Gradio does not check: sessions, and files at any depth."""
        kind = Headers(scope=scope).get("content-type", "").split(";")[0].strip().lower()
        if kind not in ("application/json", ""):
            raise Refused(415, "Expected a body of type application/json.")
        text = b"".join([part async for part in chunks(receive, JSON_BYTES, booking, self.allowed.stall)])
        content = json_object(text or b"{}")
        if (name := content.get("session_hash")) is not None:
            check_session(name)
        if "/call/" in scope["path"]:
            content.pop("session_hash", None)  # Gradio then takes the event's id as its session, as `leave` does
        try:
            if re.fullmatch(MCP, route(scope)):
                content = await anyio.to_thread.run_sync(self.uploads.store_photographs, content, visitor)
            body = json.dumps(self.uploads.resolved(content)).encode()
        except UploadError as error:
            raise Refused(403, str(error)) from error
        except (ValueError, RecursionError) as error:
            raise Refused(400, "Expected a body with fewer levels.") from error
        MutableHeaders(scope=scope)["content-length"] = str(len(body))
        sent = False

        async def replay() -> Message:
            nonlocal sent
            if sent:
                return await receive()  # returns when the client disconnects
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        return replay

    async def _upload(self, scope: Scope, receive: Receive, visitor: str) -> list[str]:
        """Receive one file, and return its path in the upload folder. Interrupted uploads are deleted."""
        most = self.max_file + FIELD_BYTES
        try:
            with self.uploads.receive(visitor) as incoming:
                body = chunks(receive, most, incoming.booking, self.allowed.stall)
                form = await read_form(Headers(scope=scope), body, most, incoming.file)
                if "files" not in form.files:
                    raise Refused(400, "Expected one file per request, in the field files.")
                check_type(form.files["files"], form.filename, self.allowed.upload)
                path = await anyio.to_thread.run_sync(incoming.keep, form.filename)
                return [path.relative_to(self.uploads.root).as_posix()]
        except OSError as error:
            raise Refused(507, DISK_FULL) from error
        except UploadError as error:
            raise Refused(507 if isinstance(error, DiskFullError) else 415, str(error)) from error

    # Sending answers

    async def _send(self, send: Send, message: Message, visitor: str, nonce: str) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in self.headers.items():
                headers[name] = value
            if nonce:
                headers["content-security-policy"] = self.policy.format(nonce=f" 'nonce-{nonce}'")
        try:
            with self.account.book(Resource.TRANSFERS, visitor, len(message.get("body", b""))):
                await send_in_pieces(send, message, self.allowed.stall)
        except OverBudgetError as error:
            raise Stalled from error


class _Page:
    """Collect a whole HTML page, give its inline scripts a nonce, and replace Gradio's tags for link previews.

    Args:
        preview: returns the tags.

    Attributes:
        nonce: nonce in the page's content security policy; empty for other answers.
    """

    def __init__(self, preview: Callable[[], str]) -> None:
        self.nonce, self._body, self._preview = "", bytearray(), preview
        self._start: Message = {}

    def take(self, message: Message) -> list[Message]:
        """Return the messages to send instead of this one."""
        if message["type"] == "http.response.start":
            headers = Headers(raw=message["headers"])
            if headers.get("content-type", "").startswith("text/html") and "content-encoding" not in headers:
                self.nonce, self._start = secrets.token_urlsafe(16), message
                return []
            return [message]
        if not self._start:
            return [message]
        self._body += message.get("body", b"")
        if message.get("more_body", False):
            return []
        start, body = self._start, INLINE.sub(b'<script nonce="%s"' % self.nonce.encode(), self._body)
        if PREVIEW.search(body):
            body = PREVIEW.sub(b"", body).replace(b"</head>", self._preview().encode() + b"</head>", 1)
        MutableHeaders(scope=start)["content-length"] = str(len(body))
        self._start = {}
        return [start, {**message, "body": body}]


class _Body:
    """Receive a request's body, and record whether it is complete."""

    def __init__(self, receive: Receive) -> None:
        self._receive, self._is_complete = receive, False

    async def __call__(self) -> Message:
        message = await self._receive()
        self._is_complete |= not message.get("more_body", False)
        return message

    async def skip(self, seconds: float) -> None:
        """Read the rest of the body for at most `seconds`.

        Closing a connection with unread data resets it, and the client would never see the answer.
        """
        with anyio.move_on_after(seconds):
            while not self._is_complete:
                await self()


def unanswered(*_: object) -> Response:
    """Return the answer to a request that raised an unexpected error."""
    return PlainTextResponse("This request could not be answered. Check it against /gradio_api/info.", 500)


def is_last(scope: Scope) -> bool:
    """Return whether the server closes the connection after this answer although the client may still send a body."""
    headers = Headers(scope=scope)
    closes = scope["http_version"] == "1.0" or "close" in headers.get("connection", "").lower()
    return closes and "expect" not in headers


def session_of(scope: Scope) -> str:
    """Return the session whose events a request streams; empty for other requests."""
    path = route(scope)
    if path == f"{API}/queue/data":
        return str(parse_qs(scope["query_string"].decode("latin-1")).get("session_hash", [""])[0])
    return path.rpartition("/")[2] if path.startswith(f"{API}/call/") and scope["method"] == "GET" else ""


def check_session(name: object) -> None:
    """Refuse session names that no browser creates, because Gradio stores them."""
    if not (isinstance(name, str) and re.fullmatch(NAME, name)):
        raise Refused(400, "Expected a session_hash of at most 64 letters and digits.")


def below_root(path: str, root: str) -> str:
    """Return the path of a request within this app, whether or not a proxy has removed the root path.

    Paths of our own routes start with /vitviz/. If the root path is also /vitviz, they keep this prefix.
    """
    root, name = root.rstrip("/"), path.removeprefix("/vitviz/")
    is_own = name != path and (is_question(name) or name == bundle.PREVIEW)
    return path.removeprefix(root) if path.startswith(f"{root}/") and not is_own else path


def route(scope: Scope) -> str:
    """Return the path of a request within this app, without a trailing slash."""
    return str(scope["path"]).rstrip("/") or "/"


def hostname(host: str) -> str:
    """Return a Host header without its port, in lower case: "[::1]:7860" -> "::1"."""
    with suppress(ValueError):
        return (urlsplit(f"//{host}").hostname or "").lower()
    return ""
