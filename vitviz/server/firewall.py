"""Check requests before Gradio handles them: the middleware that `launch` passes to Gradio's application.

Gradio serves more than this page needs (monitoring, reloading, a proxy for files on other hosts, direct calls that
bypass the queue), allows other origins, and limits no body. The firewall refuses what is not in its table of routes.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import parse_qs, urlsplit

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitviz.phrases import Phrase
from vitviz.server.arguments import MAX_PHOTO_BYTES
from vitviz.server.bodies import FORM_BYTES, JSON_BYTES, Refused, json_value
from vitviz.server.endpoints import Endpoints
from vitviz.server.fairness import Transfers, address
from vitviz.server.files import FOLDER
from vitviz.server.health import OUTCOME, RequestLog
from vitviz.server.routes import is_question
from vitviz.server.uploads import UploadError

API = "/gradio_api"
NAME, FILE = r"[\w-]{1,64}", r"[\w.-]{1,64}"
GET = [
    r"/", r"/healthz", r"/config", r"/theme\.css", r"/robots\.txt", r"/favicon\.ico", r"/manifest\.json",
    r"/pwa_icon(/\d+)?", r"/(static|assets|svelte)/.+", rf"/vitviz/answer/{NAME}", rf"/{FOLDER}/{FILE}",
    rf"{API}/(info|openapi\.json|startup-events|app_id|theme\.css|queue/data)",
    rf"{API}/heartbeat/{NAME}", rf"{API}/call/(v2/)?{NAME}/{NAME}",
]  # fmt: skip
POST = [r"/vitviz/[a-z]+", rf"{API}/(upload|queue/join|cancel|reset|call/(v2/)?{NAME})"]
MCP = rf"{API}/mcp(/.*)?"
CHECKPOINT_BYTES = 2 * 10**9
CSP = {
    "default-src": "'self'",
    "script-src": "'self' 'unsafe-inline' 'unsafe-eval'",  # Gradio's page has inline scripts, and compiles others
    "script-src-attr": "'none'",
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

log = logging.getLogger(__name__)


class Firewall:
    """Refuse requests that this page does not serve, bound their bodies, and set headers on every answer.

    Args:
        app: Gradio's application.
        endpoints: have the operator's settings, and the photographs of API clients.
        leave: called with the name of a session whose client left before the end of its events.
        requests: request log, if any.
        links: `Link` header of the page, see `PageFiles`.
    """

    def __init__(
        self,
        app: ASGIApp,
        endpoints: Endpoints,
        leave: Callable[[str], None],
        requests: RequestLog | None = None,
        links: str = "",
    ) -> None:
        self.app, self.endpoints, self.leave, self.requests, self.links = app, endpoints, leave, requests, links
        self.page = GZipMiddleware(app)  # Gradio compresses its scripts, but not its HTML
        self.allowed, self.transfers = endpoints.menu.settings, Transfers(endpoints.cache)
        tools = [MCP] if self.allowed.mcp else []
        served = {"GET": GET, "HEAD": GET, "POST": POST, "DELETE": []}
        self.routes = {name: re.compile("|".join([*paths, *tools])) for name, paths in served.items()}
        policy = CSP | {"frame-ancestors": " ".join(("'self'", *self.allowed.frames))}
        self.headers = {
            "content-security-policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
            "x-content-type-options": "nosniff",
            "referrer-policy": "same-origin",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on to Gradio."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        root = str(scope.get("root_path", ""))  # GRADIO_ROOT_PATH
        status, began, scope[OUTCOME] = 0, time.perf_counter(), {}

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(self.headers)
            await send(message)

        if scope["path"] == root != "":  # the page's relative URLs need the trailing slash
            query = scope["query_string"].decode("latin-1")
            await RedirectResponse(f"{root}/{'?' * bool(query)}{query}")(scope, receive, answer)
            return
        scope["path"] = below_root(scope["path"], root)
        try:
            self._identify(scope)
            self._check_route(scope)
            self._check_origin(scope)
            client, length = address(scope), self._check_length(scope)
            await self.transfers.wait(client, length)
            with self.transfers.hold(client, length):
                await self._serve(scope, receive, answer)
        except Refused as refused:
            await refused.response(scope, receive, answer)
        except ClientDisconnect:
            log.info("A client left before the end of its request.")
        except Exception:  # raised by Gradio for unexpected input
            log.exception("A request could not be answered.")
            if not status:
                await unanswered()(scope, receive, answer)
        finally:
            if self.requests is not None:
                self.requests.write(scope, status, began)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = route(scope)
        if path == "/" and scope["method"] == "HEAD":  # when Gradio starts, it waits three seconds for it
            await Response(media_type="text/html")(scope, receive, send)
            return
        if scope["method"] == "POST" and path.startswith(f"{API}/") and path != f"{API}/upload":
            receive = await self._checked_body(scope, receive)
        ended = left = False

        async def listen() -> Message:
            nonlocal left
            message = await receive()
            left = left or (message["type"] == "http.disconnect" and not ended)
            return message

        async def answer(message: Message) -> None:
            nonlocal ended
            if path == "/" and message["type"] == "http.response.start" and b"image=" not in scope["query_string"]:
                MutableHeaders(scope=message)["link"] = self.links
            await send(message)
            ended = message["type"] == "http.response.body" and not message.get("more_body", False)

        try:
            # Gradio's application expects the root path at the start of every path, and removes it.
            app = self.page if path == "/" else self.app
            await app({**scope, "path": scope.get("root_path", "") + scope["path"]}, listen, answer)
        finally:
            # Gradio may notice that the client has left, and end the response as if it were complete.
            if (left or not ended) and (session := session_of(scope)):
                self.leave(session)

    # Checking requests

    def _identify(self, scope: Scope) -> None:
        """Take the visitor's address from `X-Forwarded-For`, counting one entry per proxy from the right.

        Earlier entries come from the visitor and may be forged.
        """
        headers, proxies = MutableHeaders(scope=scope), self.allowed.proxies
        entries = [entry.strip() for entry in ",".join(headers.getlist("x-forwarded-for")).split(",") if entry.strip()]
        if proxies and len(entries) >= proxies:
            scope["client"] = (entries[-proxies], 0)
        if re.fullmatch(MCP, route(scope)):  # Gradio copies a tool's headers into a request to its own server
            # That request passes through no proxy, so the visitor's address is entered once per proxy.
            host = str(scope["client"][0]) if scope.get("client") else ""
            headers["x-forwarded-for"] = ", ".join([host] * max(1, proxies))

    def _check_route(self, scope: Scope) -> None:
        routes = self.routes.get(scope["method"])
        if routes is None or not routes.fullmatch(route(scope)):
            raise Refused(404, "This page does not serve this address.")
        for name in parse_qs(scope["query_string"].decode("latin-1")).get("session_hash", []):
            check_session(name)

    def _check_origin(self, scope: Scope) -> None:
        """Check the host, and that the request does not come from another site: Gradio would let it read the answer."""
        headers = MutableHeaders(scope=scope)
        host, hosts = headers.get("host", ""), self.allowed.hosts
        if hosts and hostname(host) not in hosts:
            raise Refused(421, "This page is not served under this name. Its operator can add names with VITVIZ_HOSTS.")
        forwarded = headers.get("x-forwarded-host", "").split(",")[0].strip()
        if forwarded and forwarded != host and hostname(forwarded) not in hosts:
            del headers["x-forwarded-host"]
        del headers["x-gradio-server"]
        origin = headers.get("origin")
        own = {host.lower(), headers.get("x-forwarded-host", host).split(",")[0].strip().lower()}
        if origin is not None and urlsplit(origin).netloc.lower() not in own:
            raise Refused(403, "This page accepts no requests from other sites.")

    def _check_length(self, scope: Scope) -> int:
        """Return the length of the body, which the client must declare: chunks of one byte take long to read."""
        headers, path = Headers(scope=scope), route(scope)
        if "transfer-encoding" in headers:
            raise Refused(411, "Expected a request with a Content-Length, got chunks. Send it so.", connection="close")
        most = JSON_BYTES
        if path.startswith("/vitviz/") or path == f"{API}/upload":
            uploads = path == "/vitviz/checkpoint" and self.endpoints.menu.uploads is not None
            most = FORM_BYTES + (CHECKPOINT_BYTES if uploads else MAX_PHOTO_BYTES)
        elif re.fullmatch(MCP, path):
            most = JSON_BYTES + MAX_PHOTO_BYTES * 4 // 3  # in base64
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > most:
            text = "This is more than {0} MB. Send a smaller file."
            raise Refused(413, Phrase("request-too-large", text, f"{most / 10**6:.1f}"))
        return int(length)

    async def _checked_body(self, scope: Scope, receive: Receive) -> Receive:
        """Read a JSON body, and check what Gradio does not check: its size, sessions, and files at any depth."""
        request = Request(scope, receive)
        kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
        if kind not in ("application/json", ""):
            raise Refused(415, "Expected a body of type application/json.")
        body, uploads = await request.body() or b"{}", self.endpoints.uploads
        try:
            if re.fullmatch(MCP, route(scope)):
                body = await anyio.to_thread.run_sync(uploads.without_photographs, body)
            content = json_value("body", body)
            if not isinstance(content, dict):
                raise Refused(400, "Expected a JSON object as the body.")
            if (name := content.get("session_hash")) is not None:
                check_session(name)
            if "/call/" in scope["path"]:
                content.pop("session_hash", None)  # Gradio then takes the event's id as its session, as `leave` does
            body = json.dumps(uploads.checked(content)).encode()
        except UploadError as error:
            raise Refused(403, str(error)) from error
        except RecursionError as error:
            raise Refused(400, "Expected a body with fewer levels.") from error
        MutableHeaders(scope=scope)["content-length"] = str(len(body))
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()  # the latter when the client disconnects

        return replay


def unanswered(*_: object) -> Response:
    """Return the answer to a request that raised an unexpected error."""
    return PlainTextResponse("This request could not be answered. Check it against /gradio_api/info.", 500)


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
    is_own = name != path and (is_question(name) or name.startswith(("answer/", "files/")))
    return path.removeprefix(root) if path.startswith(f"{root}/") and not is_own else path


def route(scope: Scope) -> str:
    """Return the path of a request within this app, without a trailing slash."""
    return str(scope["path"]).rstrip("/") or "/"


def hostname(host: str) -> str:
    """Return a Host header without its port, in lower case: "[::1]:7860" -> "::1"."""
    with suppress(ValueError):
        return (urlsplit(f"//{host}").hostname or "").lower()
    return ""
