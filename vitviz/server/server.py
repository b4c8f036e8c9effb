"""Launch the page on Gradio's server: everything that the page adds is an argument of `gr.Blocks.launch`."""

from __future__ import annotations

import os
from typing import Any

import gradio as gr
from starlette.middleware import Middleware

from vitviz.images.worker import workers
from vitviz.model.devices import share_freed_memory
from vitviz.server.firewall import Firewall, unanswered
from vitviz.server.health import RequestLog
from vitviz.server.pages import Page
from vitviz.server.tools import check_tools
from vitviz.settings import Settings, shared
from vitviz.web import bundle

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

MAX_SESSIONS = 256  # sessions whose state Gradio keeps
MAX_RUNNING, MAX_WAITING = 256, 64  # events of Gradio's queue
OPEN_FILES = 65_536  # upper limit; every connection is an open file

THEME = gr.themes.Monochrome(
    primary_hue="indigo",
    neutral_hue="slate",
    radius_size="md",
    text_size="md",
    font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
    font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "monospace"],
).set(layout_gap="10px", block_padding="8px 10px", block_label_text_size="13px", form_gap_width="0px")


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
        Firewall, endpoints=page.endpoints, leave=page.programs.leave, requests=RequestLog() if allowed.log else None
    )
    # Direct calls, which would bypass the queue, are refused.
    page.queue(api_open=False, max_size=MAX_WAITING)
    return page.launch(
        server_name=host,
        server_port=port or allowed.port,
        share=shared(),  # by default Gradio creates a public link on hosted notebooks
        theme=THEME,
        # Gradio prefixes rules passed as `css`, which then do not apply outside the page's own element.
        head=f"<style>{bundle.style()}{bundle.lecture_style()}</style>",
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
