"""Serve the page's questions over HTTP: each is one request with one streamed answer, from any process.

`POST /vitviz/{name}` takes a form with `ask`, the arguments as JSON. If the process might not hold the scene, the form
also has `source` (image, model and size as JSON) and `photo` (a file, kept only in memory). The answer consists of
lines of JSON: any number of {"progress": ...}, then {"data": ...}, {"error": {"kind", "text"}}, or {"bytes": N} before
N bytes. A question is cancelled when its client closes the connection.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import Future
from contextlib import ExitStack, aclosing, asynccontextmanager, suppress
from typing import Any

import anyio
from starlette.datastructures import Headers
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from vitviz.errors import VitvizError
from vitviz.model.memory import is_out_of_memory
from vitviz.server import arguments as args
from vitviz.server.account import OverBudgetError, Resource
from vitviz.server.arguments import MAX_PHOTO_BYTES, ArgumentError, check, quote
from vitviz.server.bodies import (
    BODY_SECONDS,
    FIELD_BYTES,
    RETRY,
    Form,
    Refused,
    address,
    busy,
    chunks,
    left,
    read_form,
)
from vitviz.server.endpoints import CheckedQuestion, Endpoints
from vitviz.server.gpu import identify
from vitviz.server.health import OUTCOME
from vitviz.server.jobs import BusyError, Cancelled, Job
from vitviz.server.menu import NO_UPLOADS, UPLOAD
from vitviz.server.scenes import UnknownScene
from vitviz.server.sizes import TooLargeError
from vitviz.server.uploads import CHECKPOINT, DISK_FULL, DiskFullError, Incoming, UploadError
from vitviz.web.questions import QUESTIONS

TICK = 0.5  # seconds between lines of progress
MAX_CHECKPOINT_BYTES = 2 * 10**9

log = logging.getLogger(__name__)

Line = dict[str, Any]


# Answers to the page and to API clients


async def lines(
    endpoints: Endpoints,
    name: str,
    arguments: object,
    address: str,
    source: object = None,
    photo: bytes | None = None,
) -> AsyncGenerator[Line, None]:
    """Answer a question: yield {"progress": ...} about every half second, and then {"data": ...} or {"error": ...}.

    Args:
        endpoints: compute the answer.
        name: the endpoint's name.
        arguments: the endpoint's arguments from a client, not yet checked.
        address: address of the client.
        source: {image, model, size, texts}, if the scene must be opened before the question is answered.
        photo: content of the photograph's file; `None` for an example.
    """
    try:
        # Questions are checked in threads, because checking hashes photographs and reads long lists.
        in_thread = anyio.to_thread.run_sync
        questions: list[CheckedQuestion] = []
        opening = None
        if name == "open" or source is not None:
            opening = _opening(arguments if name == "open" else {}, source, photo)
            questions.append(await in_thread(endpoints.question, "open", opening))
        if name != "open":
            questions.append(await in_thread(endpoints.question, name, arguments))
        if opening is not None:
            text, model = endpoints.begin(opening.get("model"))
            async for _ in _ticks(model):
                yield {"progress": {"text": text}}
        answer = None
        for question in questions:
            job = endpoints.jobs.join(question.key, question.compute, address, question.is_light())
            try:
                async for _ in _ticks(job.future):
                    yield {"progress": _progress(endpoints, job)}
                answer = job.future.result()
            finally:  # runs also if the client has left
                endpoints.jobs.leave(job)
        yield {"data": answer}
    except Exception as error:  # noqa: BLE001 - described for the client
        yield {"error": describe_error(error)}


def _opening(arguments: object, source: object, photo: bytes | None) -> dict[str, Any]:
    """Return the arguments of `open`, merged from the request, `source` and the photograph."""
    if not isinstance(arguments, dict):
        raise ArgumentError(f"Expected an object of arguments, got {quote(arguments)}. Name each argument.")
    opening = {**arguments, **(check(_source, source) if source is not None else {})}
    if photo is not None:
        opening["photo"] = photo
    return opening


def _source(
    image: args.Name | None = None,
    model: args.Name | None = None,
    size: args.Size | None = None,
    texts: args.Texts | None = None,
) -> None:
    """Declare the arguments of a source."""


async def _ticks(future: Future[Any]) -> AsyncGenerator[None, None]:
    """Yield about every half second until a future is done."""
    wrapped = asyncio.wrap_future(future)
    # The caller's `future.result()` raises the error; retrieving it here stops asyncio from reporting it as unhandled.
    wrapped.add_done_callback(lambda done: done.cancelled() or done.exception())
    while not (await asyncio.wait({wrapped}, timeout=TICK))[0]:
        yield


def _progress(endpoints: Endpoints, job: Job) -> Line:
    """Return a job's progress message, the number of jobs ahead of it, and its remaining seconds."""
    line = dict(job.progress)
    seconds = None if job.finishes is None else max(0.0, job.finishes - time.monotonic())
    if (place := endpoints.jobs.place(job)) is not None:
        line["ahead"], wait = place
        seconds = wait + (seconds or 0.0)
    if seconds is not None:
        line["seconds"] = round(seconds, 1)
    return line


def describe_error(error: Exception) -> Line:
    """Return an error's kind and message. Messages of Python's own errors are hidden: they may reveal too much."""
    if isinstance(error, UnknownScene):
        return {"kind": "unknown", "text": str(error)}
    if isinstance(error, BusyError):
        return {"kind": "busy", "text": str(error), "seconds": round(error.seconds, 1)}
    if isinstance(error, TooLargeError):
        return {"kind": "refused", "text": str(error), "size": error.size}
    if isinstance(error, OverBudgetError):
        text = f"Busy: too many {error.resource.value}. Try again in {RETRY} s."
        return {"kind": "busy", "text": text, "seconds": float(RETRY)}
    if isinstance(error, Cancelled):
        return {"kind": "failed", "text": "The computation was stopped. Ask again."}
    if isinstance(error, VitvizError):
        return {"kind": "refused", "text": str(error)}
    log.error("A question could not be answered.", exc_info=error)
    if is_out_of_memory(error):
        return {"kind": "failed", "text": "There was not enough memory. Choose a smaller input size, or try again."}
    return {"kind": "failed", "text": "This could not be computed. Try again, or choose something else."}


# Over HTTP


def is_question(name: str) -> bool:
    """Return whether the page asks a question of this name."""
    return name in QUESTIONS and QUESTIONS[name].page


class Questions:
    """Answer the page's requests, as an ASGI application.

    Args:
        endpoints: compute the answers.
    """

    def __init__(self, endpoints: Endpoints) -> None:
        self.endpoints = endpoints

    def route(self) -> Route:
        """Return the route that serves all questions."""
        return Route("/vitviz/{name}", self, methods=["POST"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; cancel it if its client disconnects."""
        client = address(scope)
        identify(scope)
        try:
            with self.endpoints.account.book(Resource.QUESTIONS, client):
                await self._answer(str(scope["path_params"]["name"]), client, scope, receive, send)
        except OverBudgetError:
            await busy("this address has too many questions open").response(scope, receive, send)
        except Refused as refused:
            await refused.response(scope, receive, send)

    async def _answer(self, name: str, client: str, scope: Scope, receive: Receive, send: Send) -> None:
        if not is_question(name):
            known = ", ".join(filter(is_question, QUESTIONS))
            raise Refused(404, f"Expected one of {known}; got {quote(name)}.")
        if name == "checkpoint" and not (self.endpoints.menu.settings.upload and self.endpoints.menu.uploads):
            raise Refused(403, NO_UPLOADS)
        async with self._form(name, client, scope, receive) as (form, incoming):
            answers = self._checkpoint(form, incoming) if incoming else self._lines(name, form, client)
            answering = asyncio.create_task(self._stream(answers, client, send, scope.get(OUTCOME, {})))
            leaving = asyncio.create_task(left(receive))
            try:
                await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                leaving.cancel()
                answering.cancel()
                with suppress(asyncio.CancelledError):
                    await answering

    def _lines(self, name: str, form: Form, client: str) -> AsyncGenerator[Line, None]:
        """Answer the question of a form."""
        if "photo" in form.fields:
            raise Refused(400, "Expected a file as the photo, got text.")
        photo = form.files["photo"].read() if "photo" in form.files else None
        arguments = _json("ask", form.fields.get("ask", "{}"))
        source = _json("source", form.fields["source"]) if "source" in form.fields else None
        return lines(self.endpoints, name, arguments, client, source, photo)

    async def _stream(self, answers: AsyncGenerator[Line, None], client: str, send: Send, outcome: Line) -> None:
        """Send the lines of an answer, and record its outcome."""
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        outcome["outcome"] = "left"
        async with aclosing(answers):
            async for line in answers:
                data = line.get("data")
                size = len(data) if isinstance(data, bytes) else 0
                if not self.endpoints.account.fits(Resource.TRANSFERS, client, size):
                    data, line = b"", {"error": {"kind": "busy", "text": UNREAD, "seconds": float(RETRY)}}
                if "progress" not in line:
                    outcome["outcome"] = line["error"]["kind"] if "error" in line else "answered"
                content = data if isinstance(data, bytes) else b""
                text = json.dumps({"bytes": size} if content else line, allow_nan=False).encode() + b"\n"
                await send({"type": "http.response.body", "body": text + content, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _checkpoint(self, form: Form, incoming: Incoming) -> AsyncGenerator[Line, None]:
        """Keep an uploaded checkpoint, and return its source."""
        menu = self.endpoints.menu
        try:
            if "photo" not in form.files or not form.filename.lower().endswith(CHECKPOINT):
                raise UploadError(f"Expected a checkpoint as a {CHECKPOINT} file, got another file. Convert it first.")
            path = await anyio.to_thread.run_sync(incoming.keep, form.filename)
            source = f"{UPLOAD}{path.parent.name[:16]}"
            yield {"data": {"source": source, "words": menu.entry(source).describe()}}
        except Exception as error:  # noqa: BLE001 - described for the client
            yield {"error": describe_error(error)}

    @asynccontextmanager
    async def _form(
        self, name: str, client: str, scope: Scope, receive: Receive
    ) -> AsyncIterator[tuple[Form, Incoming | None]]:
        """Read a form with at most one file: a photograph stays in memory, a checkpoint goes to the upload folder."""
        uploads, allowed = self.endpoints.menu.uploads, self.endpoints.menu.settings
        with ExitStack() as stack:
            incoming, most = None, MAX_PHOTO_BYTES
            booking = stack.enter_context(self.endpoints.account.book(Resource.TRANSFERS, client, 0))
            if name == "checkpoint" and uploads is not None:
                most = min(MAX_CHECKPOINT_BYTES, allowed.disk // 2)
                try:
                    incoming = stack.enter_context(uploads.receive(client))
                except DiskFullError as error:
                    raise Refused(507, DISK_FULL) from error
                booking = incoming.booking
            most += FIELD_BYTES
            body = chunks(receive, most, booking, allowed.stall)
            target = None if incoming is None else incoming.file
            try:
                with anyio.fail_after(BODY_SECONDS):
                    form = await read_form(Headers(scope=scope), body, most, target)
            except TimeoutError as error:
                raise Refused(408, f"Expected a request within {BODY_SECONDS} s. Send it again.") from error
            except (OSError, DiskFullError) as error:
                raise Refused(507, DISK_FULL) from error
            yield form, incoming


UNREAD = f"Busy: too many answers to this address are waiting to be read. Try again in {RETRY} s."
HEADERS = [
    (b"content-type", b"application/octet-stream"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),  # otherwise nginx would buffer the progress lines
]


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"Expected JSON as the field {name}.") from error
