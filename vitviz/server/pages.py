"""Build the page: one component with the whole browser application, and the endpoints for API clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gradio as gr
from gradio.utils import get_function_description
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from vitviz.server.api import Programs
from vitviz.server.endpoints import Endpoints
from vitviz.server.health import health_route
from vitviz.server.html import ExplorerHTML
from vitviz.server.menu import Menu
from vitviz.server.routes import Questions
from vitviz.server.uploads import upload_folder
from vitviz.settings import Settings, settings
from vitviz.web import bundle
from vitviz.web.lecture_texts import lecture_given


class Page(gr.Blocks):
    """Page of vitviz.

    Args:
        endpoints: answer the page's questions.
        lecture: from `vitviz.web.lecture_texts.lecture_given`; by default with the bundled texts.

    Attributes:
        routes: routes for the page's questions and for the server's health.
        programs: the endpoints for API clients.
    """

    def __init__(self, endpoints: Endpoints, lecture: Mapping[str, Any] | None = None) -> None:
        texts = dict(lecture or lecture_given())
        upload_folder().account = endpoints.account  # creates the folder before Gradio reads GRADIO_TEMP_DIR
        super().__init__(title="vitviz", fill_width=True, analytics_enabled=False, delete_cache=(3600, 86400))
        self.endpoints, self.programs = endpoints, Programs(endpoints)
        preview = Route(f"/vitviz/{bundle.PREVIEW}", _preview)
        self.routes: list[Route] = [Questions(endpoints).route(), health_route(endpoints), preview]
        with self:
            ExplorerHTML(None, bundle.ENTRY, first_data(endpoints, texts), elem_id="vitviz")
            self.programs.add()

    def get_api_info(self, *values: Any, **named: Any) -> Any:
        """Return Gradio's description of the endpoints, with the name and content of each answer."""
        info = super().get_api_info(*values, **named)
        for function in self.fns.values():
            listed = info["named_endpoints"].get(f"/{function.api_name}")
            if listed and function.fn:
                for text, answer in zip(get_function_description(function.fn)[2], listed["returns"], strict=False):
                    answer["label"], _, answer["python_type"]["description"] = text.partition(": ")
        return info


async def _preview(_request: Request) -> Response:
    return Response(bundle.picture(), media_type="image/jpeg")


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
    return Page(Endpoints(Menu(allowed or settings(), uploads=upload_folder())), lecture)
