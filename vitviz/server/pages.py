"""Build the page: one component with the whole browser application, and the endpoints for API clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gradio as gr
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from vitviz.server.api import CheckedBlocks, add_endpoints
from vitviz.server.endpoints import Endpoints
from vitviz.server.health import health_route
from vitviz.server.menu import Menu
from vitviz.server.routes import Questions
from vitviz.server.uploads import upload_folder
from vitviz.settings import Settings, settings
from vitviz.web import bundle
from vitviz.web.lecture_texts import lecture_given

START = "vitvizExplorer.start(element, {{ colors: {colors}, ...JSON.parse(props.value) }});"


class Application(gr.HTML):
    """Component of the browser application. It has no events: Gradio would treat any quoted word of a script as one."""

    def __getattr__(self, name: str) -> Any:
        """Raise an error for missing attributes, which `gr.HTML` would return as events."""
        raise AttributeError(name)

    def get_block_name(self) -> str:
        """Return the component's name in Gradio's front end."""
        return "html"


class Page(CheckedBlocks):
    """Page of vitviz.

    Args:
        endpoints: answer the page's questions.
        lecture: folder with a lecturer's own texts, see `vitviz.web.lecture_texts`.

    Attributes:
        routes: routes for the page's questions and for the server's health.
    """

    def __init__(self, endpoints: Endpoints, lecture: Path | None = None) -> None:
        texts = lecture_given(folder=lecture)
        upload_folder()  # sets GRADIO_TEMP_DIR before Gradio reads it
        super().__init__(
            scheduler=endpoints.scheduler,
            title="vitviz",
            fill_width=True,
            analytics_enabled=False,
            delete_cache=(3600, 86400),
        )
        self.endpoints = endpoints
        preview = Route(f"/vitviz/{bundle.PREVIEW}", _preview)
        self.routes: list[Route] = [Questions(endpoints).route(), health_route(endpoints), preview]
        with self:
            Application(
                first_value(endpoints, texts),
                html_template=bundle.template(),
                js_on_load=bundle.script() + START.format(colors=bundle.colors()),
                apply_default_css=False,
                elem_id="vitviz",
            )
            add_endpoints(endpoints)


async def _preview(_request: Request) -> Response:
    return Response(bundle.picture(), media_type="image/jpeg")


def first_value(endpoints: Endpoints, lecture: dict[str, Any]) -> str:
    """Return the page's initial data as JSON, so that the page works before its first request."""
    first = endpoints.open(image=endpoints.examples[0].name)
    return json.dumps({"first": first, "models": endpoints.models(), "lecture": lecture, "notice": endpoints.notice})


def build(allowed: Settings | None = None, lecture: Path | None = None) -> Page:
    """Return the page, ready to launch, with its first model loaded and its first example open.

    Args:
        allowed: the operator's settings; by default from the environment, see `vitviz.settings`.
        lecture: folder with a lecturer's own texts, see `vitviz.web.lecture_texts`.
    """
    return Page(Endpoints(Menu(allowed or settings(), uploads=upload_folder())), lecture)
