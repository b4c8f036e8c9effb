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

PAGE_ONLY = ("image", "ahead")  # arguments that only the page may send, not API clients
PICTURES = ("photo", "seen", "maps")  # of a manifest, left out for API clients, which have the photograph


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
        for name, question in QUESTIONS.items():
            if question.programs:
                gr.events.api(self._typed(getattr(self.endpoints, name)), api_name=name, concurrency_limit=None)

    def leave(self, session: str) -> None:
        """Stop the questions of a session whose client has left."""
        for task, other in self._sessions.items():
            if other == session:
                task.cancel()

    def _typed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function for Gradio with an endpoint's name, documentation and parameters, but those of `PAGE_ONLY`.

        A photograph is an uploaded file, and the answer what `Uploads.offer` returns.
        """
        signature, hints = inspect.signature(method), get_type_hints(method)
        hints |= {"return": str} if hints["return"] is bytes else {}
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = {"request": inspect.Parameter("request", kind, annotation=gr.Request)}
        for name, each in signature.parameters.items():
            if name == "photo":  # which programs have to send
                each, hints[name] = each.replace(default=each.empty), FileData
            if name not in PAGE_ONLY:
                parameters[name] = each.replace(annotation=hints[name])
        own = signature.replace(parameters=list(parameters.values()), return_annotation=hints["return"])

        async def run(request: gr.Request, *values: Any, **named: Any) -> Any:
            arguments = own.bind(request, *values, **named).arguments
            del arguments["request"]
            if "photo" in arguments:
                arguments["photo"] = self._photograph(arguments["photo"])
            answer = await self._answer(request, method.__name__, arguments)
            if isinstance(answer, dict):
                answer = {name: value for name, value in answer.items() if name not in PICTURES}
            return self.endpoints.uploads.offer(answer)

        run.__name__ = run.__qualname__ = method.__name__
        # Gradio and tools show the docstring; Gradio reads one line for each argument and for the answer.
        run.__doc__ = re.sub(r"\n {8,}", " ", inspect.getdoc(method) or "")
        run.__annotations__ = {each.name: each.annotation for each in parameters.values()} | {"return": hints["return"]}
        run.__signature__ = own  # type: ignore[attr-defined]
        return run

    def _photograph(self, file: Any) -> bytes:
        """Return the content of an uploaded file; Gradio passes on whatever the client sent."""
        path = file.get("path") if isinstance(file, dict) else getattr(file, "path", None)
        if not isinstance(path, str):
            raise _shown(f"Expected an uploaded file as the photo, got {type(file).__name__}. Upload it first.")
        try:
            return self.endpoints.uploads.read(path)
        except UploadError as error:
            raise _shown(str(error)) from error

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


def _shown(text: str) -> gr.Error:
    """Return an error whose text the client sees."""
    return gr.Error(text, print_exception=False)
