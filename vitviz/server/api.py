"""Serve the endpoints to programs: with gradio_client, over Gradio's HTTP interface, and as tools of an MCP server."""

from __future__ import annotations

import asyncio
import base64
import inspect
import logging
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, cast, get_type_hints

import gradio as gr
from gradio.context import LocalContext
from gradio.data_classes import FileData

from vitviz.server.endpoints import Endpoints
from vitviz.server.routes import lines
from vitviz.server.scheduler import Client, Kind, Scheduler
from vitviz.server.uploads import UploadError, upload_folder
from vitviz.web.questions import QUESTIONS

MOST_WAITING, MOST_OF_ADDRESS = 64, 40  # events in Gradio's queue, in total and of one address
PICTURES = ("photo", "seen", "maps")  # of a manifest, left out for programs, which have the photograph
PROGRAMS = {"concurrency_id": "programs", "concurrency_limit": 8}

log = logging.getLogger(__name__)


class CheckedBlocks(gr.Blocks):
    """Blocks that check every file named in a request, and never answer with the text of Python's own errors.

    Args:
        scheduler: of the page's computations.
        options: of `gr.Blocks`.

    Attributes:
        account: where memory, disk space and places are booked.
    """

    def __init__(self, *, scheduler: Scheduler | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.scheduler = scheduler or Scheduler()
        self.account = upload_folder().account = self.scheduler.account

    def busy(self, address: str) -> str:
        """Return why a visitor's event is refused now, with the expected wait; empty if it is accepted."""
        # The queue is private to Gradio, which is pinned; a test fills it.
        queues = self._queue.event_queue_per_concurrency_id.values()
        waiting = [event for queue in queues for event in queue.queue]
        own = sum(event.request.client is not None and event.request.client.host == address for event in waiting)
        if len(waiting) < MOST_WAITING and own < MOST_OF_ADDRESS:
            return ""
        seconds = len(waiting) * self.scheduler.mean(Kind.PHOTO)
        return f"Busy: {len(waiting)} requests are waiting. Try again in about {max(1, seconds):.0f} s."

    def block_thread(self) -> None:
        """Serve until Ctrl-C; the caller prints a message."""
        try:
            while self.is_running:
                time.sleep(0.1)
        finally:
            self.close(verbose=False)

    async def preprocess_data(self, block_fn: Any, inputs: list[Any], *args: Any, **options: Any) -> list[Any]:
        """Resolve all files in a request's data, at any depth, before Gradio, which checks only some, reads it."""
        resolved = upload_folder().resolved(inputs)
        return cast("list[Any]", await super().preprocess_data(block_fn, resolved, *args, **options))

    async def process_api(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Answer a request.

        Raises:
            gr.Error: for every error, with a text for visitors.
        """
        try:
            return await super().process_api(*args, **options)
        except gr.Error:
            raise
        except UploadError as error:
            raise gr.Error(str(error), print_exception=False) from error
        except Exception as error:
            log.exception("A request could not be answered.")
            text = "Expected arguments of the types that /gradio_api/info lists, got others. Check them."
            raise gr.Error(text, print_exception=False) from error


def add_endpoints(endpoints: Endpoints) -> None:
    """Add the endpoints to the `gr.Blocks` that is being built."""

    async def open_upload(photo: FileData, model: str | None = None, size: int | None = None) -> dict[str, Any]:
        file: Any = photo  # Gradio passes on what the program sent, of any type
        path = file.get("path") if isinstance(file, dict) else getattr(file, "path", None)
        if not isinstance(path, str):
            text = f"Expected an uploaded file as the photo, got {type(file).__name__}. Upload it first."
            raise gr.Error(text, print_exception=False)
        data = await asyncio.to_thread(upload_folder().check(path).read_bytes)
        manifest = await _answer(endpoints, "open", {"photo": data, "model": model, "size": size})
        return {name: value for name, value in manifest.items() if name not in PICTURES}

    for name, question in QUESTIONS.items():
        if question.programs:
            method = getattr(endpoints, name)
            function = _described(open_upload, method) if name == "open" else _typed(endpoints, method)
            gr.events.api(function, api_name=name, **cast(Any, PROGRAMS))


def _typed(endpoints: Endpoints, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return an endpoint as a function with the same parameters; bytes are encoded in base64."""
    signature, hints = inspect.signature(method), get_type_hints(method)
    hints["return"] = str if hints["return"] is bytes else hints["return"]

    async def run(*values: Any, **named: Any) -> Any:
        answer = await _answer(endpoints, method.__name__, signature.bind(*values, **named).arguments)
        return base64.b64encode(answer).decode() if isinstance(answer, bytes) else answer

    run.__annotations__ = hints
    parameters = [each.replace(annotation=hints[name]) for name, each in signature.parameters.items()]
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=parameters, return_annotation=hints["return"]
    )
    return _described(run, method)


def _described(run: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function the name and docstring of an endpoint, which Gradio lists and tools show."""
    run.__name__ = run.__qualname__ = method.__name__
    run.__doc__ = method.__doc__
    return run


def _has_left() -> bool:
    """Return whether the program that Gradio answers in this context has closed its connection."""
    # Gradio cancels this task at a program's request; a closed connection only changes the event.
    blocks, name = LocalContext.blocks.get(None), LocalContext.event_id.get(None)
    event = None if blocks is None or name is None else blocks._queue.event_ids_to_events.get(name)
    return event is not None and not event.alive


async def _answer(endpoints: Endpoints, name: str, arguments: dict[str, Any]) -> Any:
    """Return the answer of an endpoint; stop when the program cancels the request or has left.

    Raises:
        gr.Error: for every error, with a text for visitors.
        CancelledError: if the program has left.
    """
    request = LocalContext.request.get(None)
    client = Client(request.client.host if request is not None and request.client is not None else "")
    async with aclosing(lines(endpoints, name, arguments, client)) as answers:
        async for line in answers:
            if "error" in line:
                raise gr.Error(line["error"]["text"], print_exception=False)
            if "data" in line:
                return line["data"]
            if _has_left():
                raise asyncio.CancelledError
    raise AssertionError("Expected data or an error at the end of an answer, got neither. Report this.")
