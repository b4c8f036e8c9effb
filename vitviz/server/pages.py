"""Build the page: one component with the whole browser application, and the endpoints for API clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gradio as gr
from gradio.utils import get_function_description
from starlette.routing import Route

from vitviz.lecture.texts import lecture_given
from vitviz.server.api import Programs
from vitviz.server.endpoints import Endpoints
from vitviz.server.health import health_route
from vitviz.server.html import ExplorerHTML
from vitviz.server.menu import Menu
from vitviz.server.routes import Questions
from vitviz.server.tools import Tools
from vitviz.settings import Settings, settings
from vitviz.web import bundle


class Page(gr.Blocks):
    """Page of vitviz.

    Args:
        endpoints: answer the page's questions.
        lecture: from `vitviz.lecture.texts.lecture_given`; by default with the bundled texts.

    Attributes:
        routes: routes for the page's questions, for uploads and long answers of API clients, and for the health.
        programs: the endpoints for API clients.
    """

    def __init__(self, endpoints: Endpoints, lecture: Mapping[str, Any] | None = None) -> None:
        texts = dict(lecture or lecture_given())
        super().__init__(title="vitviz", fill_width=True, analytics_enabled=False)
        self.endpoints, self.programs = endpoints, Programs(endpoints)
        questions = Questions(endpoints)
        self.routes: list[Route] = [
            questions.route(), questions.upload_route(), endpoints.uploads.route(), health_route(endpoints)
        ]  # fmt: skip
        with self:
            ExplorerHTML(None, bundle.ENTRY, first_data(endpoints, texts), elem_id="vitviz")
            self.programs.add()

    @property  # type: ignore[override]
    def mcp_server_obj(self) -> Tools | None:
        """Return the server of tools, if `launch` was asked for one."""
        return self._tools

    @mcp_server_obj.setter
    def mcp_server_obj(self, server: object) -> None:
        self._tools = None if server is None else Tools(self, self.endpoints.uploads)

    def get_api_info(self, *values: Any, **named: Any) -> Any:
        """Return Gradio's description of the endpoints, with the name and content of each answer."""
        info = super().get_api_info(*values, **named)
        for function in self.fns.values():
            listed = info["named_endpoints"].get(f"/{function.api_name}")
            if listed and function.fn:
                for text, answer in zip(get_function_description(function.fn)[2], listed["returns"], strict=False):
                    answer["label"], _, answer["python_type"]["description"] = text.partition(": ")
        return info


def first_data(endpoints: Endpoints, lecture: dict[str, Any]) -> dict[str, Any]:
    """Return the page's initial data, so that the page works before its first request."""
    first = endpoints.open(image=endpoints.examples[0].name)
    return {"first": first, "models": endpoints.models(), "lecture": lecture, "notice": endpoints.notice}


def build(allowed: Settings | None = None, lecture: Mapping[str, Any] | None = None) -> Page:
    """Return the page, ready to launch, with its first model loaded and its first example open.

    Args:
        allowed: the operator's settings; by default from the environment, see `vitviz.settings`.
        lecture: as for `Page`.
    """
    return Page(Endpoints(Menu(allowed or settings())), lecture)
