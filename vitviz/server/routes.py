"""Serve the page's questions over HTTP: each is one request with one streamed answer, from any process.

`POST /vitviz/{name}` takes a form with `ask`, the arguments as JSON. If the process might not hold the scene, the form
also has `source` (image, model and size as JSON) and `photo` (a file, kept only in memory). `patches` may be a field of
numbers, because a long list exceeds the bounds of JSON. The answer consists of
lines of JSON: any number of {"progress": ...}, then {"data": ...}, {"error": {"kind", "text"}}, or {"bytes": N} before
N bytes. A form of `open` may have `block`, the number of the block that the page shows first: its answer follows that
of `open`, which saves a request. A question is cancelled when its client closes the connection.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import shutil
import time
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
from starlette.background import BackgroundTask
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from vitviz.errors import VitvizError
from vitviz.model.memory import is_out_of_memory
from vitviz.phrases import Phrase, text_of, with_phrases
from vitviz.server import arguments as args
from vitviz.server.arguments import ArgumentError, check, quote
from vitviz.server.bodies import Refused, json_value, read_form
from vitviz.server.endpoints import CheckedQuestion, Endpoints
from vitviz.server.fairness import Transfers, address
from vitviz.server.gpu import identify
from vitviz.server.health import OUTCOME
from vitviz.server.jobs import BusyError, Cancelled, Job
from vitviz.server.menu import CHECKPOINT, NO_UPLOADS, UPLOAD
from vitviz.server.scenes import UnknownScene
from vitviz.server.sizes import TooLargeError
from vitviz.server.uploads import UploadError
from vitviz.settings import LOCALHOST
from vitviz.web.questions import QUESTIONS

TICK = 0.5  # seconds between lines of progress
PROXIED = ("forwarded", "via", "x-real-ip")  # headers that proxies add, beside those that start with x-forwarded-
NAME_LETTERS = 80  # of a checkpoint's name
PIECE = 2**16  # bytes of an answer that are sent at once
RETRY = 10.0  # seconds after which a client may ask again

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
    block: int | None = None,
) -> AsyncGenerator[Line, None]:
    """Answer a question: yield {"progress": ...} about every half second, and then {"data": ...} or {"error": ...}.

    Args:
        endpoints: compute the answer.
        name: the endpoint's name.
        arguments: the endpoint's arguments from a client, not yet checked.
        address: address of the client.
        source: {image, model, size, texts, registers}, if the scene must be opened before the question is answered.
        photo: content of the photograph's file; `None` for an example.
        block: answered after `open`, see `Endpoints.block`; the last one if the model has fewer.
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
        answer: Any = None
        for question in questions:
            job = endpoints.jobs.join(question.key, question.compute, address, question.is_light())
            try:
                async for _ in _ticks(job.future):
                    yield {"progress": _progress(endpoints, job)}
                answer = job.future.result()
            finally:  # runs also if the client has left
                endpoints.jobs.leave(job)
        yield {"data": answer}
        if name == "open" and block is not None:
            about = {"scene": answer["id"], "block": min(block, answer["depth"] - 1)}
            async with aclosing(lines(endpoints, "block", about, address)) as more:
                async for line in more:
                    yield line
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
    registers: args.Registers | None = None,
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


MEMORY = "There was not enough memory. Choose a smaller input size, or try again."
FAILED = "This could not be computed. Try again, or choose something else."


def describe_error(error: Exception) -> Line:
    """Return an error's kind and message. Messages of Python's own errors are hidden: they may reveal too much."""
    if isinstance(error, UnknownScene):
        return {"kind": "unknown", "text": text_of(error)}
    if isinstance(error, BusyError):
        return {"kind": "busy", "text": text_of(error), "seconds": round(error.seconds, 1)}
    if isinstance(error, TooLargeError):
        return {"kind": "refused", "text": text_of(error), "size": error.size}
    if isinstance(error, Cancelled):
        return {"kind": "failed", "text": Phrase("stopped", "The computation was stopped. Ask again.")}
    if isinstance(error, VitvizError):
        return {"kind": "refused", "text": text_of(error)}
    log.error("A question could not be answered.", exc_info=error)
    if is_out_of_memory(error):
        return {"kind": "failed", "text": Phrase("not-enough-memory", MEMORY)}
    return {"kind": "failed", "text": Phrase("could-not-be-computed", FAILED)}


# Over HTTP


def is_question(name: str) -> bool:
    """Return whether the page asks a question of this name."""
    return name in QUESTIONS and QUESTIONS[name].page


class Questions:
    """Answer the page's requests.

    Args:
        endpoints: compute the answers.
    """

    def __init__(self, endpoints: Endpoints) -> None:
        self.endpoints, self._unread = endpoints, Transfers(endpoints.cache)

    async def answer(self, request: Request) -> Response:
        """Answer one question; it is cancelled if its client disconnects."""
        client, name = address(request.scope), str(request.path_params["name"])
        identify(request.scope)
        if not is_question(name):
            known = ", ".join(filter(is_question, QUESTIONS))
            raise Refused(404, f"Expected one of {known}; got {quote(name)}.")
        answers = await (self._checkpoint(request) if name == "checkpoint" else self._lines(name, request, client))
        body = self._stream(answers, client, request.scope.get(OUTCOME, {}))

        async def close() -> None:  # also if the client disconnects
            await body.aclose()

        return StreamingResponse(body, headers=HEADERS, background=BackgroundTask(close))

    async def _lines(self, name: str, request: Request, client: str) -> AsyncGenerator[Line, None]:
        """Answer the question of a form."""
        form = await read_form(request)
        fields = {field: text for field, text in form.items() if isinstance(text, str)}
        photo = None
        if isinstance(file := form.get("photo"), UploadFile):
            with self.endpoints.cache.reserve(file.size or 0):  # for the form's copy, until it is closed
                photo = await file.read()
                await form.close()
        ask = json_value("ask", fields.get("ask", "{}"))
        if "patches" in fields and isinstance(ask, dict):
            ask["patches"] = _numbers(fields["patches"])
        source = json_value("source", fields["source"]) if "source" in fields else None
        block = next(iter(_numbers(fields.get("block", ""))), None)
        return lines(self.endpoints, name, ask, client, source, photo, block)

    async def _stream(
        self, answers: AsyncGenerator[Line, None], client: str, outcome: Line
    ) -> AsyncGenerator[bytes, None]:
        """Yield the lines of an answer, and record its outcome."""
        outcome["outcome"] = "left"
        async with aclosing(answers):
            async for line in answers:
                data, found = line.get("data"), b""
                if isinstance(data, bytes):
                    fits = self._unread.fits(client, len(data))
                    line = {"bytes": len(data)} if fits else {"error": BUSY}
                    found = data if fits else b""
                if "progress" not in line:
                    outcome["outcome"] = line["error"]["kind"] if "error" in line else "answered"
                yield _encoded(line)
                with self._unread.hold(client, len(found)):
                    for start in range(0, len(found), PIECE):
                        yield found[start : start + PIECE]

    async def _checkpoint(self, request: Request) -> AsyncGenerator[Line, None]:
        """Keep an uploaded checkpoint, and return its source."""
        menu, folder = self.endpoints.menu, self.endpoints.menu.uploads
        if folder is None or not is_own(request):
            raise Refused(403, NO_UPLOADS)
        form = await read_form(request, on_disk=True)
        file = form.get("photo")

        async def kept() -> AsyncGenerator[Line, None]:
            try:
                if not (isinstance(file, UploadFile) and str(file.filename).lower().endswith(CHECKPOINT)):
                    raise UploadError(f"Expected a checkpoint as a {CHECKPOINT} file, got another. Convert it first.")
                source = await anyio.to_thread.run_sync(_keep, file, folder)
                yield {"data": {"source": source, "words": menu.entry(source).describe()}}
            except Exception as error:  # noqa: BLE001 - described for the client
                yield {"error": describe_error(error)}
            finally:
                await form.close()

        return kept()

    async def upload(self, request: Request) -> Response:
        """Keep a photograph of an API client in memory; Gradio's own route would write it to disk."""
        form = await read_form(request)
        try:
            if not isinstance(file := form.get("files"), UploadFile):
                raise Refused(400, "Expected one file per request, in the field files. Send one.")
            return JSONResponse([self.endpoints.uploads.add(await file.read())])
        except UploadError as error:
            raise Refused(415, str(error)) from error
        finally:
            await form.close()


def is_own(request: Request) -> bool:
    """Return whether a request comes from this machine, under one of its own names and past no proxy."""
    forwarded = any(name in PROXIED or name.startswith("x-forwarded-") for name in request.headers)
    return not forwarded and {request.url.hostname, address(request.scope)} <= LOCALHOST


def _keep(file: UploadFile, folder: Path) -> str:
    """Move an uploaded checkpoint to the folder of checkpoints, and return its source."""
    digest = hashlib.sha256()
    while part := file.file.read(2**20):
        digest.update(part)
    source = digest.hexdigest()[:16]
    target = folder / source / (Path(str(file.filename)).name[-NAME_LETTERS:])
    target.parent.mkdir(exist_ok=True)
    file.file.seek(0)
    with target.open("wb") as out:
        shutil.copyfileobj(file.file, out)
    return f"{UPLOAD}{source}"


def _numbers(text: str) -> list[int]:
    """Return the numbers of a field such as "3,5,8"."""
    try:
        return [int(number) for number in text.split(",") if number]
    except ValueError as error:
        raise Refused(400, "Expected whole numbers separated by commas, got another text. Correct it.") from error


def _encoded(line: Line) -> bytes:
    """Return a line as JSON; numbers that JSON lacks are an error."""
    try:
        return json.dumps(with_phrases(line), allow_nan=False).encode() + b"\n"
    except ValueError:
        return json.dumps(with_phrases(NOT_FINITE)).encode() + b"\n"


UNREAD = "Busy: too many answers to this address are waiting to be read. Try again in {0} s."
BUSY = {"kind": "busy", "text": Phrase("busy-reading", UNREAD, f"{RETRY:.0f}"), "seconds": RETRY}
TOO_LARGE = "The answer has numbers that are too large to represent. Choose another target."
NOT_FINITE = {"error": {"kind": "failed", "text": Phrase("not-finite", TOO_LARGE)}}
HEADERS = {
    "content-type": "application/octet-stream",
    "cache-control": "no-store, no-transform",
    "x-accel-buffering": "no",  # otherwise nginx would buffer the progress lines
}
