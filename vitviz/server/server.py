"""Launch the page on Gradio's server, with the firewall, connection limits and a queue."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import time
from functools import partial
from importlib.util import find_spec
from typing import Any

import gradio as gr
from gradio import http_server, processing_utils, routes
from gradio.exceptions import ServerFailedToStartError

from vitviz.images.worker import workers
from vitviz.model.devices import share_freed_memory
from vitviz.server.account import Resource
from vitviz.server.api import CheckedBlocks
from vitviz.server.arguments import MAX_PHOTO_BYTES
from vitviz.server.connections import (
    ACCEPTED_AT_ONCE,
    KEEP_ALIVE,
    Connections,
    QuietAccepts,
    connection_budget,
    raise_open_files,
)
from vitviz.server.firewall import Firewall
from vitviz.server.health import RequestLog
from vitviz.server.routes import MAX_CHECKPOINT_BYTES
from vitviz.server.uploads import UploadError, check_type, upload_folder
from vitviz.settings import Settings, SettingsError, shared
from vitviz.web import bundle

MAX_SESSIONS = 256  # sessions whose state Gradio keeps
TOOLS = "tools"  # owner of files from tools, instead of an address

THEME = gr.themes.Monochrome(
    primary_hue="indigo",
    neutral_hue="slate",
    radius_size="md",
    text_size="md",
    font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
    font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "monospace"],
).set(layout_gap="10px", block_padding="8px 10px", block_label_text_size="13px", form_gap_width="0px")


class _Server(http_server.Server):
    """Server that bounds its connections, and keeps idle ones open while there are few.

    By default uvicorn closes idle connections after five seconds, as httpx does: a request that httpx sends just then
    gets no answer.

    Args:
        config: uvicorn's configuration.
        connections: open connections.
        files: number of files that the process may open.
    """

    def __init__(self, config: Any, connections: Connections, files: int, **options: Any) -> None:
        config.timeout_keep_alive, config.http = KEEP_ALIVE, connections.protocol
        # asyncio accepts up to `backlog` connections before the first is counted.
        config.backlog = min(config.backlog, int(ACCEPTED_AT_ONCE * files))
        super().__init__(config, **options)

    async def startup(self, *args: Any, **options: Any) -> None:
        """Start serving in the server's event loop."""
        asyncio.get_running_loop().set_exception_handler(QuietAccepts())
        await super().startup(*args, **options)

    def run_in_thread(self) -> None:
        """Start serving, and wait without Gradio's limit of five seconds."""
        try:
            super().run_in_thread()  # type: ignore[no-untyped-call]
        except ServerFailedToStartError:
            while not self.started:
                if not self.thread.is_alive():  # the port is taken
                    raise
                time.sleep(0.01)


def _keep_tool_file(data: str, *_args: Any, **_options: Any) -> str:
    """Store a tool's photograph among the uploads, where it is booked and expires.

    Raises:
        UploadError: if it is not a picture.
    """
    try:
        content = base64.b64decode(data.partition(",")[2], validate=True)
    except ValueError as error:
        raise UploadError("Expected a picture as a data: URL in base64, got something else. Encode it.") from error
    check_type(io.BytesIO(content), "", False)
    return str(upload_folder().add(TOOLS, "photo", io.BytesIO(content)))


def launch(
    demo: CheckedBlocks, allowed: Settings, host: str | None = None, port: int | None = None, **options: Any
) -> Any:
    """Serve the page; return what `gr.Blocks.launch` returns.

    Args:
        demo: the page.
        allowed: the operator's settings.
        host, port: where to listen; by default the host of `GRADIO_SERVER_NAME` and the port of `allowed`.
        options: passed on to `gr.Blocks.launch`.

    Raises:
        SettingsError: if tools are to be served and the package `mcp` is not installed.
    """
    if allowed.mcp and find_spec("mcp") is None:
        raise SettingsError("Expected the package mcp for VITVIZ_MCP=1, got none. Run pip install 'gradio[mcp]'.")
    share_freed_memory()
    files = raise_open_files()
    demo.account.budgets[Resource.CONNECTIONS] = connection_budget(files)
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    workers().warm()
    # Gradio is pinned, so three of its private names are replaced: docs/security.md says why, and tests check them.
    setattr(processing_utils, "save_base64_to_cache", _keep_tool_file)  # noqa: B010
    firewall = partial(
        Firewall,
        uploads=upload_folder(),
        account=demo.account,
        max_file=min(MAX_CHECKPOINT_BYTES, allowed.disk // 2) if allowed.upload else MAX_PHOTO_BYTES,
        allowed=allowed,
        busy=demo.busy,
        log=RequestLog() if allowed.log else None,
    )
    setattr(routes, "CustomCORSMiddleware", firewall)  # noqa: B010 - not exported, so mypy refuses an assignment
    server = partial(_Server, connections=Connections(demo.account, allowed.stall), files=files)
    setattr(http_server, "Server", server)  # noqa: B010 - mypy refuses an assignment to a class
    # Direct calls, which would bypass the queue, are refused.
    demo.queue(default_concurrency_limit=2, api_open=False)
    return demo.launch(
        server_name=host,
        server_port=port or allowed.port,
        share=shared(),  # by default Gradio creates a public link on hosted notebooks
        theme=THEME,
        # Gradio prefixes rules passed as `css`, which then do not apply outside the page's own element.
        head=f"<style>{bundle.style()}{bundle.lecture_style()}</style>",
        app_kwargs={"routes": list(getattr(demo, "routes", ()))},
        mcp_server=allowed.mcp,
        ssr_mode=False,
        show_error=False,  # hides Python's errors from visitors, not `gr.Error`
        footer_links=["api"],
        run_history=False,
        enable_monitoring=False,
        state_session_capacity=MAX_SESSIONS,
        # Otherwise Gradio requests the page, and recommends a public link if it takes more than three seconds, as on a
        # busy machine.
        _frontend=False,
        **options,
    )
