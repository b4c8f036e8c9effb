"""Serve the endpoints to API clients: through gradio_client, Gradio's HTTP interface, and tools of an MCP server."""

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

MOST_WAITING, MOST_OF_ADDRESS = 64, 40  # limits of events in Gradio's queue, in total and per address
PICTURES = ("photo", "seen", "maps")  # manifest fields left out for API clients, which have the photograph
PROGRAMS = {"concurrency_id": "programs", "concurrency_limit": 8}

log = logging.getLogger(__name__)


class CheckedBlocks(gr.Blocks):
    """Blocks that check every file named in a request, and never reveal the text of Python's own errors.

    Args:
        scheduler: schedules the page's computations.
        options: passed on to `gr.Blocks`.

    Attributes:
        account: where memory, disk space and places are booked.
    """

    def __init__(self, *, scheduler: Scheduler | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.scheduler = scheduler or Scheduler()
        self.account = upload_folder().account = self.scheduler.account

    def busy(self, address: str) -> str:
        """Return a message with the expected wait if a visitor's event must be refused now; empty if it is accepted."""
        # The queue is a private attribute of Gradio, whose version is pinned; a test fills it.
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
        """Resolve all files in a request's data, at any depth, before Gradio reads it: Gradio checks only some."""
        resolved = upload_folder().resolved(inputs)
        return cast("list[Any]", await super().preprocess_data(block_fn, resolved, *args, **options))

    async def process_api(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Answer a request.

        Raises:
            gr.Error: for every error, with a message for visitors.
        """
        try:
            return await super().process_api(*args, **options)
        except gr.Error:
            raise
        except UploadError as error:
            raise gr.Error(str(error), print_exception=False) from error
        except Exception as error:
            log.exception("A request could not be answered.")
            text = "Expected arguments of the types that /gradio_api/info lists, got other types. Check them."
            raise gr.Error(text, print_exception=False) from error


def add_endpoints(endpoints: Endpoints) -> None:
    """Add the endpoints to the `gr.Blocks` that is being built."""

    async def open_upload(photo: FileData, model: str | None = None, size: int | None = None) -> dict[str, Any]:
        file: Any = photo  # Gradio passes on whatever the client sent
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
    """Wrap an endpoint in a function with the same parameters that encodes bytes in base64."""
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
    """Give a function the name and docstring of an endpoint; Gradio and tools show both."""
    run.__name__ = run.__qualname__ = method.__name__
    run.__doc__ = method.__doc__
    return run


def _has_left() -> bool:
    """Return whether the API client that is served in this context has closed its connection."""
    # Gradio cancels this task if the client requests it; if a connection closes, Gradio only marks the event.
    blocks, name = LocalContext.blocks.get(None), LocalContext.event_id.get(None)
    event = None if blocks is None or name is None else blocks._queue.event_ids_to_events.get(name)
    return event is not None and not event.alive


async def _answer(endpoints: Endpoints, name: str, arguments: dict[str, Any]) -> Any:
    """Return the answer of an endpoint; stop if the client cancels the request or disconnects.

    Raises:
        gr.Error: for every error, with a message for visitors.
        CancelledError: if the client has disconnected.
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
