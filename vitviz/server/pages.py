"""Build the page: one component that holds the whole browser application, and the endpoints for programs."""

from __future__ import annotations

import json
from typing import Any

import gradio as gr
from starlette.routing import Route

from vitviz.server.api import CheckedBlocks, add_endpoints
from vitviz.server.endpoints import Endpoints
from vitviz.server.menu import Menu
from vitviz.server.routes import Questions
from vitviz.server.settings import Settings, settings
from vitviz.server.uploads import upload_folder
from vitviz.web import bundle

START = "vitvizExplorer.start(element, {{ colors: {colors}, ...JSON.parse(props.value) }});"


class Application(gr.HTML):
    """Component of the browser application, without events: gradio takes any quoted word of a script for one."""

    def __getattr__(self, name: str) -> Any:
        """Refuse attributes that are not there."""
        raise AttributeError(name)

    def get_block_name(self) -> str:
        """Return the name of the front end's component."""
        return "html"


class Page(CheckedBlocks):
    """Page of vitviz.

    Args:
        endpoints: that answer.

    Attributes:
        routes: of the page's questions.
    """

    def __init__(self, endpoints: Endpoints) -> None:
        upload_folder()  # before gradio asks where files go
        super().__init__(
            scheduler=endpoints.scheduler,
            title="vitviz",
            fill_width=True,
            analytics_enabled=False,
            delete_cache=(3600, 86400),
        )
        self.endpoints = endpoints
        self.routes: list[Route] = [Questions(endpoints).route()]
        with self:
            Application(
                first_value(endpoints),
                html_template=bundle.template(),
                js_on_load=bundle.script() + START.format(colors=bundle.colors()),
                apply_default_css=False,
                elem_id="vitviz",
            )
            add_endpoints(endpoints)


def first_value(endpoints: Endpoints) -> str:
    """Return what the page opens with as JSON, so that it is alive without a request."""
    first = endpoints.open(image=endpoints.examples[0].name)
    return json.dumps({"first": first, "models": endpoints.models(), "notice": endpoints.notice})


def build(allowed: Settings | None = None) -> Page:
    """Return the page, ready to launch. Loads the first model and opens the first example.

    Args:
        allowed: what visitors may do; by default what the environment says, see `vitviz.server.settings`.
    """
    return Page(Endpoints(Menu(allowed or settings(), uploads=upload_folder())))
