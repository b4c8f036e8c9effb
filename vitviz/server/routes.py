"""Serve the page's questions: one HTTP request each, answered as a stream, so that any process can answer any of them.

`POST /vitviz/{name}` takes a form: `ask`, the arguments as JSON; where the process may not hold the scene also `source`
(image, model and size as JSON) and `photo` (a file, held in memory alone). The answer is lines of JSON: any number of
{"progress": ...} and then {"data": ...}, {"error": {"kind", "text"}}, or {"bytes": N} before N bytes. A question whose
client closes the connection is cancelled.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
import gradio as gr
from gradio.context import LocalContext
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from vitviz.model.memory import is_out_of_memory
from vitviz.server import arguments as args
from vitviz.server.arguments import MAX_PHOTO_BYTES, ArgumentError, check, quote
from vitviz.server.endpoints import Endpoints, Question
from vitviz.server.health import OUTCOME
from vitviz.server.menu import NO_UPLOADS, UPLOAD
from vitviz.server.scenes import Flight, UnknownScene
from vitviz.server.scheduler import BusyError, Cancelled, Client
from vitviz.server.uploads import CHECKPOINT, UploadError

NAMES = (
    *("open", "block", "rollout", "explain", "faithfulness", "heads", "layers", "intervene", "page", "models"),
    *("lecture", "checkpoint"),
)
TICK = 0.5  # seconds between two lines of progress
PHOTO_BYTES = 8 * MAX_PHOTO_BYTES  # photographs of all requests that are open
PHOTO_BYTES_OF_ADDRESS = 3 * MAX_PHOTO_BYTES
MAX_CHECKPOINT_BYTES = 2 * 10**9
FORM_BYTES = 2**20  # of the fields beside the file
BODY_SECONDS = 300  # that a body may take to arrive
OPEN_QUESTIONS = 64  # of one address at once

log = logging.getLogger(__name__)

Line = dict[str, Any]


class Refused(Exception):
    """Request that is answered in words before any work."""

    def __init__(self, status: int, text: str, **headers: str) -> None:
        super().__init__(text)
        self.response = PlainTextResponse(text, status, {name.replace("_", "-"): one for name, one in headers.items()})


def busy(what: str) -> Refused:
    """Return the answer to a request that would be one too many."""
    return Refused(429, f"Busy: {what}. Try again in 10 s.", retry_after="10")


# What every question comes to, whoever asks


async def lines(
    endpoints: Endpoints, name: str, given: object, client: Client, source: object = None, photo: bytes | None = None
) -> AsyncGenerator[Line, None]:
    """Answer a question: yield {"progress": ...} about every half second, and then {"data": ...} or {"error": ...}.

    Args:
        endpoints: that answer.
        name: of the endpoint.
        given: its arguments, which may be anything.
        client: who asks.
        source: {image, model, size} to open the scene from before the question is answered, or nothing.
        photo: the photograph's file, if it is none of the examples.
    """
    try:
        questions = await _questions(endpoints, name, given, source, photo)
        result = None
        for title, opening, question in questions:
            if opening is not None:
                async for progress in _waiting(opening, partial(dict, text=title)):
                    yield {"progress": progress}
            async with _flight(endpoints, question, client) as flight:
                async for progress in _waiting(flight.future, partial(_progress, endpoints, flight)):
                    yield {"progress": progress}
                result = flight.future.result()
        yield {"data": result}
    except Exception as error:  # noqa: BLE001 - each has its words
        yield {"error": describe_error(error)}


async def _questions(
    endpoints: Endpoints, name: str, given: object, source: object, photo: bytes | None
) -> list[tuple[str, Future[Any] | None, Question]]:
    """Return the questions that a request comes to, with the model that each waits for: at most opening, then asking.

    Everything is checked here, before any of it begins.
    """
    found: list[tuple[str, Future[Any] | None, Question]] = []
    if name == "open" or source is not None:
        opening = _opening(given if name == "open" else {}, source, photo)
        question = await anyio.to_thread.run_sync(endpoints.question, "open", opening)  # hashes the photograph
        if name != "open":
            endpoints.question(name, given)
        found.append((*endpoints.begin(opening.get("model")), question))
    if name != "open":
        found.append(("", None, endpoints.question(name, given)))
    return found


def _opening(given: object, source: object, photo: bytes | None) -> dict[str, Any]:
    """Return the arguments of `open` from those given, from `source` and from the photograph."""
    if not isinstance(given, dict):
        raise ArgumentError(f"Expected an object of arguments, got {quote(given)}. Name each argument.")
    opening = {**given, **(check(_source, source) if source is not None else {})}
    if photo is not None:
        opening["photo"] = photo
    return opening


def _source(
    image: args.Name | None = None, model: args.Name | None = None, size: args.Size | None = None
) -> dict[str, Any]:
    """Return what a scene is opened from, beside a photograph."""
    return {"image": image, "model": model, "size": size}


@asynccontextmanager
async def _flight(endpoints: Endpoints, question: Question, client: Client) -> AsyncIterator[Flight]:
    """Join the computation of an answer; leave it at the end, also when the client has gone."""
    flight = endpoints.flights.join(question.key, question.compute, client, question.light)
    try:
        yield flight
    finally:
        endpoints.flights.leave(question.key, flight)


async def _waiting(future: Future[Any], describe: Callable[[], Line]) -> AsyncGenerator[Line, None]:
    """Yield a description about every half second until a future is done."""
    wrapped = asyncio.wrap_future(future)
    # Who asks the future raises its error; where nobody asks any more, it is none that asyncio should report.
    wrapped.add_done_callback(lambda done: done.cancelled() or done.exception())
    while not (await asyncio.wait({wrapped}, timeout=TICK))[0]:
        yield describe()


def _progress(endpoints: Endpoints, flight: Flight) -> Line:
    """Return what a flight does, how many come before it, and about how many seconds it takes."""
    client = flight.client
    line = dict(client.progress)
    seconds = None if client.finishes is None else max(0.0, client.finishes - time.monotonic())
    if (place := endpoints.scheduler.place(client)) is not None:
        line["ahead"], wait = place
        seconds = wait + (seconds or 0.0)
    if seconds is not None:
        line["seconds"] = round(seconds, 1)
    return line


def describe_error(error: Exception) -> Line:
    """Return kind and words of an error. Python's own words are no use to a visitor, and may tell too much."""
    if isinstance(error, UnknownScene):
        return {"kind": "unknown", "text": str(error)}
    if isinstance(error, BusyError):
        return {"kind": "busy", "text": str(error), "seconds": round(error.seconds, 1)}
    if isinstance(error, Cancelled):
        return {"kind": "failed", "text": "This was stopped. Ask again."}
    if isinstance(error, ValueError) and type(error).__module__.startswith("vitviz."):
        return {"kind": "refused", "text": str(error)}
    log.error("A question could not be answered.", exc_info=error)
    if is_out_of_memory(error):
        return {"kind": "failed", "text": "There was not enough memory. Choose a smaller input size, or try again."}
    return {"kind": "failed", "text": "This could not be computed. Try again, or choose something else."}


# Over HTTP


class Questions:
    """Answer the page's requests, as an ASGI application.

    Args:
        endpoints: that answer.
    """

    def __init__(self, endpoints: Endpoints) -> None:
        self.endpoints = endpoints
        self._open: Counter[str] = Counter()  # requests, by address
        self._bytes: Counter[str] = Counter()  # of photographs in memory, by address

    def route(self) -> Route:
        """Return the route of all questions."""
        return Route("/vitviz/{name}", self, methods=["POST"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, and stop working on it when its client has gone."""
        client = Client(address(scope))
        LocalContext.request.set(gr.Request(Request(scope)))  # ZeroGPU takes the visitor's quota from it
        self._open[client.address] += 1
        try:
            if self._open[client.address] > OPEN_QUESTIONS:
                raise busy("this address has too many questions open")
            await self._answer(str(scope["path_params"]["name"]), client, scope, receive, send)
        except Refused as refused:
            await refused.response(scope, receive, send)
        finally:
            self._open -= Counter([client.address])

    async def _answer(self, name: str, client: Client, scope: Scope, receive: Receive, send: Send) -> None:
        if name not in NAMES:
            raise Refused(404, f"Expected one of {', '.join(NAMES)}; got {quote(name)}.")
        if name == "checkpoint" and not (self.endpoints.menu.settings.upload and self.endpoints.menu.uploads):
            raise Refused(403, NO_UPLOADS)
        async with self._form(name, client, scope, receive) as form:
            answering = asyncio.create_task(self._stream(name, form, client, send, scope.get(OUTCOME, {})))
            leaving = asyncio.create_task(left(receive))
            try:
                await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                leaving.cancel()
                answering.cancel()  # no effect on one that is done
                with suppress(asyncio.CancelledError):
                    await answering

    async def _stream(self, name: str, form: FormData, client: Client, send: Send, outcome: Line) -> None:
        """Send the lines of an answer, and note how it ended."""
        if name == "checkpoint":
            answers = self._checkpoint(form, client)
        else:
            photo, source = await self._photo(form), form.get("source")
            asked, opened = _json("ask", form.get("ask", "{}")), None if source is None else _json("source", source)
            answers = lines(self.endpoints, name, asked, client, opened, photo)
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        outcome["outcome"] = "left"
        async with aclosing(answers):
            async for line in answers:
                if "progress" not in line:
                    outcome["outcome"] = line["error"]["kind"] if "error" in line else "answered"
                data = line.get("data")
                found, last = ({"bytes": len(data)}, data) if isinstance(data, bytes) else (line, b"")
                text = json.dumps(found, allow_nan=False).encode() + b"\n"
                await send({"type": "http.response.body", "body": text + last, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _photo(self, form: FormData) -> bytes | None:
        photo = form.get("photo")
        if photo is None:
            return None
        if not isinstance(photo, UploadFile):
            raise Refused(400, "Expected a file as the photo, got text.")
        return await photo.read()

    async def _checkpoint(self, form: FormData, client: Client) -> AsyncGenerator[Line, None]:
        """Keep an uploaded checkpoint, and name it by its hash."""
        file, menu = form.get("photo"), self.endpoints.menu
        try:
            if not isinstance(file, UploadFile) or not (file.filename or "").lower().endswith(CHECKPOINT):
                raise UploadError(f"Expected a checkpoint as a {CHECKPOINT} file, got another. Convert it first.")
            assert menu.uploads is not None
            path = await anyio.to_thread.run_sync(menu.uploads.add, client.address, str(file.filename), file.file)
            source = f"{UPLOAD}{path.parent.name[:16]}"  # the folder's name is the hash of the file
            yield {"data": {"source": source, "words": menu.entry(source).describe()}}
        except Exception as error:  # noqa: BLE001 - each has its words
            yield {"error": describe_error(error)}

    @asynccontextmanager
    async def _form(self, name: str, client: Client, scope: Scope, receive: Receive) -> AsyncIterator[FormData]:
        """Read a form with at most one file: a photograph stays in memory, a checkpoint goes to an unnamed file."""
        most = FORM_BYTES + (MAX_CHECKPOINT_BYTES if name == "checkpoint" else MAX_PHOTO_BYTES)
        counted = Counter[str]()
        parser = MultiPartParser if name == "checkpoint" else _InMemory
        try:
            stream = self._counted(chunks(receive, most), client.address, counted, name != "checkpoint")
            form = await asyncio.wait_for(parse(Headers(scope=scope), stream, most, parser), BODY_SECONDS)
            try:
                yield form
            finally:
                await form.close()
        except asyncio.TimeoutError as error:
            raise Refused(408, f"Expected a request within {BODY_SECONDS} s. Send it again.") from error
        finally:
            self._bytes -= counted

    async def _counted(
        self, stream: AsyncGenerator[bytes, None], address: str, counted: Counter[str], in_memory: bool
    ) -> AsyncGenerator[bytes, None]:
        """Yield a body, and refuse it where photographs take too much memory."""
        async for chunk in stream:
            if in_memory:
                counted[address] += len(chunk)
                self._bytes[address] += len(chunk)
                if self._bytes[address] > PHOTO_BYTES_OF_ADDRESS or self._bytes.total() > PHOTO_BYTES:
                    raise busy("too many photographs are being sent")
            yield chunk


HEADERS = [
    (b"content-type", b"application/octet-stream"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),  # else nginx holds progress back
]


class _InMemory(MultiPartParser):
    """Parser that writes no file to disk."""

    spool_max_size = sys.maxsize


async def parse(
    headers: Headers, stream: AsyncGenerator[bytes, None], most: int, parser: type[MultiPartParser] = MultiPartParser
) -> FormData:
    """Parse a form with at most one file.

    Raises:
        Refused: if it is none, or too large.
    """
    if not headers.get("content-type", "").startswith("multipart/form-data"):
        raise Refused(415, "Expected a body of type multipart/form-data.")
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:20]) > most:
        raise Refused(413, f"Expected a file of at most {most // 10**6} MB. Send a smaller one.")
    try:
        return await parser(headers, stream, max_files=1, max_fields=4).parse()
    except (MultiPartException, KeyError) as error:
        raise Refused(400, "Expected a form with at most one file.") from error


async def left(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def chunks(receive: Receive, most: int) -> AsyncGenerator[bytes, None]:
    """Yield a request's body, and refuse it as soon as it is longer than allowed."""
    count = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "The request was broken off.")
        count += len(message.get("body", b""))
        if count > most:
            raise Refused(413, f"Expected a request of at most {most / 10**6:.0f} MB. Send less.")
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


def address(scope: Scope) -> str:
    """Return the address that a request comes from; uvicorn has put there what a trusted proxy says."""
    return str(scope["client"][0]) if scope.get("client") else ""


def _json(name: str, text: object) -> Any:
    try:
        return json.loads(str(text))
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"Expected JSON as the field {name}.") from error
