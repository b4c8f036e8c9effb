"""Build the page of `vitviz app`, a `gr.Blocks` with the explorer, and launch it on Gradio's server.

Everything that the app adds to Gradio is an argument of `gr.Blocks.launch`: routes, and the firewall as middleware.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

import gradio as gr
from gradio.utils import get_function_description
from starlette.middleware import Middleware
from starlette.routing import Route

from vitviz import rooms
from vitviz.gradio import AttentionExplorer
from vitviz.images.worker import workers
from vitviz.model.devices import share_freed_memory
from vitviz.server.api import Programs
from vitviz.server.endpoints import Endpoints
from vitviz.server.files import FOLDER, PageFiles
from vitviz.server.firewall import Firewall, unanswered
from vitviz.server.health import RequestLog, healthz
from vitviz.server.menu import Menu
from vitviz.server.routes import Questions
from vitviz.server.tools import Tools, check_tools
from vitviz.settings import Settings, settings, shared
from vitviz.web import bundle

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

MAX_SESSIONS = 256  # sessions whose state Gradio keeps
MAX_RUNNING, MAX_WAITING = 256, 64  # events of Gradio's queue
OPEN_FILES = 65_536  # upper limit; every connection is an open file


NO_MARGINS = ".gradio-container :is(.main, .main > .wrap) { padding: 0 !important; max-width: none !important; }"
"""The page fills the window from the start, before the explorer is there; otherwise everything moves."""

THEME = gr.themes.Monochrome(
    primary_hue="amber",
    neutral_hue="stone",
    radius_size="md",
    text_size="md",
    font=["Inter Variable", "system-ui", "sans-serif"],
    font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "monospace"],
).set(layout_gap="10px", block_padding="8px 10px", block_label_text_size="13px", form_gap_width="0px")


class AppExplorer(AttentionExplorer):
    """The explorer as a whole page, with all models of a menu; its questions are requests to routes of the app."""

    def __init__(self, files: PageFiles) -> None:
        self.start(None, files.script, files.template, elem_id="vitviz")


class Page(gr.Blocks):
    """Page of vitviz.

    Args:
        endpoints: answer the page's questions.
        lecture: from `vitviz.lecture.texts.lecture_given`; by default with the bundled texts, if there are any.

    Attributes:
        files: the page's files.
        routes: routes for the page's files and questions, for uploads and long answers of API clients, and for the
            health.
        programs: the endpoints for API clients.
    """

    def __init__(self, endpoints: Endpoints, lecture: Mapping[str, Any] | None = None) -> None:
        if lecture is None and rooms.has("lecture"):
            lecture = rooms.load("lecture", "texts").lecture_given()
        super().__init__(title="vitviz", fill_width=True, analytics_enabled=False)
        self.endpoints, self.programs, self.files = endpoints, Programs(endpoints), PageFiles(endpoints, lecture)
        questions = Questions(endpoints)
        self.routes = [
            Route(f"/{FOLDER}/{{name}}", self.files.serve),
            Route("/vitviz/{name}", questions.answer, methods=["POST"]),
            Route("/vitviz/answer/{name}", endpoints.uploads.fetch),
            Route("/gradio_api/upload", questions.upload, methods=["POST"]),
            Route("/healthz", partial(healthz, endpoints)),
        ]
        with self:
            AppExplorer(self.files)
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
                texts = get_function_description(function.fn)[2]  # none where a plugin's function has no docstring
                for text, answer in zip(texts, listed["returns"], strict=False):
                    answer["label"], _, answer["python_type"]["description"] = text.partition(": ")
        return info


def build(allowed: Settings | None = None, lecture: Mapping[str, Any] | None = None) -> Page:
    """Return the page, ready to launch, with its first model loaded and its first example open.

    Args:
        allowed: the operator's settings; by default from the environment, see `vitviz.settings`.
        lecture: as for `Page`.
    """
    return Page(Endpoints(Menu(allowed or settings())), lecture)


def raise_open_files() -> None:
    """Raise the soft limit of open files; the usual 1,024 is too low for a lecture hall."""
    if resource is not None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
        if soft != resource.RLIM_INFINITY and soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def launch(page: Page, allowed: Settings, host: str | None = None, port: int | None = None, **options: Any) -> Any:
    """Serve the page; return what `gr.Blocks.launch` returns.

    Args:
        page: the page.
        allowed: the operator's settings.
        host, port: where to listen; by default the host of `GRADIO_SERVER_NAME` and the port of `allowed`.
        options: passed on to `gr.Blocks.launch`.

    Raises:
        SettingsError: if tools are to be served and Gradio cannot use the package `mcp`.
        OSError: if the port is taken.
    """
    if allowed.mcp:
        check_tools(page, page.endpoints.uploads)
    share_freed_memory()
    raise_open_files()
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    workers().warm()
    firewall = Middleware(
        Firewall,
        endpoints=page.endpoints,
        leave=page.programs.leave,
        requests=RequestLog() if allowed.log else None,
        links=page.files.links,
    )
    # Direct calls, which would bypass the queue, are refused.
    page.queue(api_open=False, max_size=MAX_WAITING)
    return page.launch(
        server_name=host,
        server_port=port or allowed.port,
        share=shared(),  # by default Gradio creates a public link on hosted notebooks
        theme=THEME,
        # Gradio prefixes rules passed as `css`, which then do not apply outside the page's own element.
        head=f"<style>{page.files.style}{NO_MARGINS}</style>",
        favicon_path=bundle.HERE / "icon.svg",
        app_kwargs={
            "routes": list(page.routes),
            "middleware": [firewall],
            "exception_handlers": {Exception: unanswered},
        },
        mcp_server=allowed.mcp,
        ssr_mode=False,
        show_error=False,  # hides Python's errors from visitors, not `gr.Error`
        footer_links=["api"],
        run_history=False,
        enable_monitoring=False,
        state_session_capacity=MAX_SESSIONS,
        max_threads=MAX_RUNNING,
        **options,
    )


def serve(page: Page, allowed: Settings, **options: Any) -> None:
    """Serve the page like `launch`, until Ctrl-C, which raises KeyboardInterrupt; Gradio's own wait would hide it."""
    launch(page, allowed, prevent_thread_lock=True, **options)
    try:
        threading.Event().wait()
    finally:
        page.close(verbose=False)
