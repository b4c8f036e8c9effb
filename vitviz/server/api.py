"""Serve the endpoints to API clients: through gradio_client, Gradio's HTTP interface, and tools of an MCP server."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, cast, get_type_hints

import gradio as gr
from gradio.data_classes import FileData

from vitviz.server.endpoints import Endpoints
from vitviz.server.fairness import address
from vitviz.server.routes import lines
from vitviz.server.uploads import UploadError
from vitviz.web.questions import QUESTIONS

PICTURES = ("photo", "seen", "maps")  # manifest fields left out for API clients, which have the photograph


class Programs:
    """Answer API clients' questions, and stop those whose client has left.

    Gradio starts each event at once, because `Jobs` limits the questions.

    Args:
        endpoints: compute the answers.
    """

    def __init__(self, endpoints: Endpoints) -> None:
        self.endpoints = endpoints
        self._sessions: dict[asyncio.Task[Any], str] = {}  # Gradio's session of each running task

    def add(self) -> None:
        """Add the endpoints to the `gr.Blocks` that is being built."""

        async def open_upload(
            request: gr.Request,
            photo: FileData,
            model: str | None = None,
            size: int | None = None,
            texts: list[str] | None = None,
            registers: int | None = None,
        ) -> dict[str, Any]:
            file: Any = photo  # Gradio passes on whatever the client sent
            path = file.get("path") if isinstance(file, dict) else getattr(file, "path", None)
            if not isinstance(path, str):
                raise _shown(f"Expected an uploaded file as the photo, got {type(file).__name__}. Upload it first.")
            try:
                data = self.endpoints.uploads.read(path)
            except UploadError as error:
                raise _shown(str(error)) from error
            opening = {"photo": data, "model": model, "size": size, "texts": texts, "registers": registers}
            manifest = await self._answer(request, "open", opening)
            return {name: value for name, value in manifest.items() if name not in PICTURES}

        open_upload.__annotations__ = get_type_hints(open_upload)  # Gradio reads no types from strings
        for name, question in QUESTIONS.items():
            if question.programs:
                method = getattr(self.endpoints, name)
                function = _described(open_upload, method) if name == "open" else self._typed(method)
                gr.events.api(function, api_name=name, concurrency_limit=None)

    def leave(self, session: str) -> None:
        """Stop the questions of a session whose client has left."""
        for task, other in self._sessions.items():
            if other == session:
                task.cancel()

    def _typed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap an endpoint in a function with the same parameters that returns what `Uploads.offer` does."""
        signature, hints = inspect.signature(method), get_type_hints(method)
        hints["return"] = str if hints["return"] is bytes else hints["return"]

        async def run(request: gr.Request, *values: Any, **named: Any) -> Any:
            answer = await self._answer(request, method.__name__, signature.bind(*values, **named).arguments)
            return self.endpoints.uploads.offer(answer)

        run.__annotations__ = {"request": gr.Request, **hints}
        parameters = [each.replace(annotation=hints[name]) for name, each in signature.parameters.items()]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        run.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[inspect.Parameter("request", kind, annotation=gr.Request), *parameters],
            return_annotation=hints["return"],
        )
        return _described(run, method)

    async def _answer(self, request: gr.Request, name: str, arguments: dict[str, Any]) -> Any:
        """Return the answer of an endpoint.

        Raises:
            gr.Error: for every error, with a message for visitors.
            CancelledError: if the client has cancelled the event or left.
        """
        client = address(request.request.scope) if request.request else ""
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._sessions[task] = str(request.session_hash)
        try:
            async with aclosing(lines(self.endpoints, name, arguments, client)) as answers:
                async for line in answers:
                    if "error" in line:
                        raise _shown(line["error"]["text"])
                    if "data" in line:
                        return line["data"]
        finally:
            del self._sessions[task]
        raise AssertionError("Expected data or an error at the end of an answer, got neither. Report this.")


def _described(run: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function the name and docstring of an endpoint; Gradio and tools show both.

    Gradio reads one line for each argument and for the answer.
    """
    run.__name__ = run.__qualname__ = method.__name__
    run.__doc__ = re.sub(r"\n {8,}", " ", inspect.getdoc(method) or "")
    return run


def _shown(text: str) -> gr.Error:
    """Return an error whose text the client sees."""
    return gr.Error(text, print_exception=False)
