"""Launch the page on Gradio's server, with the firewall, connection limits and a queue."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from functools import partial
from typing import Any, cast

import gradio as gr
import uvicorn
from gradio import http_server, queueing
from starlette.types import ASGIApp

from vitviz.images.worker import workers
from vitviz.model.devices import share_freed_memory
from vitviz.server.account import QUESTIONS_OF_ADDRESS, Resource
from vitviz.server.arguments import MAX_PHOTO_BYTES
from vitviz.server.connections import (
    ACCEPTED_AT_ONCE,
    KEEP_ALIVE,
    Connections,
    QuietAccepts,
    connection_budget,
    raise_open_files,
)
from vitviz.server.firewall import Firewall, unanswered
from vitviz.server.health import RequestLog
from vitviz.server.pages import Page
from vitviz.server.routes import MAX_CHECKPOINT_BYTES
from vitviz.server.tools import use_tools
from vitviz.server.uploads import upload_folder
from vitviz.settings import Settings, shared
from vitviz.web import bundle

MAX_SESSIONS = 256  # sessions whose state Gradio keeps
MAX_RUNNING, MAX_WAITING = 256, QUESTIONS_OF_ADDRESS  # events of Gradio's queue

THEME = gr.themes.Monochrome(
    primary_hue="indigo",
    neutral_hue="slate",
    radius_size="md",
    text_size="md",
    font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
    font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "monospace"],
).set(layout_gap="10px", block_padding="8px 10px", block_label_text_size="13px", form_gap_width="0px")


class Queue(queueing.Queue):
    """Gradio's queue of requests from API clients, which checks less often for new ones; see docs/security.md."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.sleep_when_free, self.progress_update_sleep_when_free = 0.02, 0.1  # seconds; in Gradio 0.001, 0.01


class Server(uvicorn.Server):
    """Server for `gr.Blocks.launch`, with the firewall and bounded connections.

    It keeps idle connections open while there are few. By default uvicorn closes idle connections after five seconds,
    as httpx does: a request that httpx sends just then gets no answer. Gradio's own server gives up if it does
    not listen within five seconds; this one waits longer, because the machine may be busy.

    Args:
        config: uvicorn's configuration.
        page: the page.
        allowed: the operator's settings.
        files: number of files that the process may open.
    """

    def __init__(self, config: uvicorn.Config, page: Page, allowed: Settings, files: int, **_reloading: Any) -> None:
        account = page.endpoints.account
        config.app = Firewall(
            cast("ASGIApp", config.app),
            uploads=upload_folder(),
            account=account,
            max_file=min(MAX_CHECKPOINT_BYTES, allowed.disk // 2) if allowed.upload else MAX_PHOTO_BYTES,
            allowed=allowed,
            leave=page.programs.leave,
            log=RequestLog() if allowed.log else None,
        )
        config.timeout_keep_alive = KEEP_ALIVE
        config.http = cast("Any", Connections(account, allowed.stall).protocol)  # called like a class
        # asyncio accepts up to `backlog` connections before the first is counted.
        config.backlog = min(config.backlog, int(ACCEPTED_AT_ONCE * files))
        super().__init__(config)
        self.thread = threading.Thread(target=self.run, daemon=True)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start serving in the server's event loop."""
        asyncio.get_running_loop().set_exception_handler(QuietAccepts())
        await super().startup(sockets)

    def run_in_thread(self) -> None:
        """Start serving, and wait until the server listens.

        Raises:
            OSError: if the port is taken.
        """
        self.thread.start()
        while not self.started:
            if not self.thread.is_alive():
                raise OSError(f"Expected a free port, got {self.config.port}, which is in use. Choose another.")
            time.sleep(0.01)

    def close(self) -> None:
        """Stop serving."""
        self.should_exit = True
        self.thread.join(timeout=5)


def launch(
    page: Page,
    allowed: Settings,
    host: str | None = None,
    port: int | None = None,
    *,
    prevent_thread_lock: bool = False,
    **options: Any,
) -> Any:
    """Serve the page; return what `gr.Blocks.launch` returns.

    Args:
        page: the page.
        allowed: the operator's settings.
        host, port: where to listen; by default the host of `GRADIO_SERVER_NAME` and the port of `allowed`.
        prevent_thread_lock: whether to return while the server runs, instead of on Ctrl-C.
        options: passed on to `gr.Blocks.launch`.

    Raises:
        SettingsError: if tools are to be served and Gradio cannot use the package `mcp`.
    """
    if allowed.mcp:
        use_tools(page)
    share_freed_memory()
    files = raise_open_files()
    page.endpoints.account.budgets[Resource.CONNECTIONS] = connection_budget(files)
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    workers().warm()
    # `launch` has no option for the server's class, so Gradio's name is replaced; docs/security.md gives the reasons.
    setattr(http_server, "Server", partial(Server, page=page, allowed=allowed, files=files))  # noqa: B010 - for mypy
    setattr(queueing, "Queue", Queue)  # noqa: B010 - as above
    # Direct calls, which would bypass the queue, are refused.
    page.queue(api_open=False, max_size=MAX_WAITING)
    result = page.launch(
        server_name=host,
        server_port=port or allowed.port,
        share=shared(),  # by default Gradio creates a public link on hosted notebooks
        theme=THEME,
        # Gradio prefixes rules passed as `css`, which then do not apply outside the page's own element.
        head=f"<style>{bundle.style()}{bundle.lecture_style()}</style>",
        app_kwargs={"routes": list(page.routes), "exception_handlers": {Exception: unanswered}},
        mcp_server=allowed.mcp,
        ssr_mode=False,
        show_error=False,  # hides Python's errors from visitors, not `gr.Error`
        footer_links=["api"],
        run_history=False,
        enable_monitoring=False,
        state_session_capacity=MAX_SESSIONS,
        max_threads=MAX_RUNNING,
        prevent_thread_lock=True,
        **options,
    )
    try:
        while not prevent_thread_lock:
            time.sleep(0.1)
    finally:
        if not prevent_thread_lock:
            page.close(verbose=False)
    return result
