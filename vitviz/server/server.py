"""Serve the page: queue, limits, and routes that stay shut."""

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

MAX_SESSIONS = 256  # programs whose calls gradio remembers
TOOLS = "tools"  # in the place of an address: who owns the files of tools

THEME = gr.themes.Monochrome(
    primary_hue="indigo",
    neutral_hue="slate",
    radius_size="md",
    text_size="md",
    font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
    font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "monospace"],
).set(layout_gap="10px", block_padding="8px 10px", block_label_text_size="13px", form_gap_width="0px")


class _Server(http_server.Server):
    """Server that bounds its connections, and leaves it to the clients to close idle ones while there are few.

    uvicorn closes them after five seconds, by default just when httpx sends the next request on one: that request gets
    no answer.

    Args:
        config: uvicorn's.
        connections: the open ones.
        files: that the process may open.
    """

    def __init__(self, config: Any, connections: Connections, files: int, **options: Any) -> None:
        config.timeout_keep_alive, config.http = KEEP_ALIVE, connections.protocol
        # asyncio accepts so many at once before the first of them is counted.
        config.backlog = min(config.backlog, int(ACCEPTED_AT_ONCE * files))
        super().__init__(config, **options)

    async def startup(self, *args: Any, **options: Any) -> None:
        """Begin to serve, in the loop of the server."""
        asyncio.get_running_loop().set_exception_handler(QuietAccepts())
        await super().startup(*args, **options)

    def run_in_thread(self) -> None:
        """Begin to serve, and wait for that as long as it takes; gradio gives up after five seconds."""
        try:
            super().run_in_thread()  # type: ignore[no-untyped-call]
        except ServerFailedToStartError:
            while not self.started:
                if not self.thread.is_alive():  # the port is taken
                    raise
                time.sleep(0.01)


def _keep_tool_file(data: str, *_args: Any, **_options: Any) -> str:
    """Keep the photograph that a tool is called with among the uploads, where it is booked and expires.

    Raises:
        UploadError: if it is none.
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
        allowed: what its operator allows.
        host, port: where to listen; what is allowed says the port, and `GRADIO_SERVER_NAME` the host, by default.
        options: passed on to `gr.Blocks.launch`.

    Raises:
        SettingsError: if tools are to be served, and the package for that is not installed.
    """
    if allowed.mcp and find_spec("mcp") is None:
        raise SettingsError("Expected the package mcp for VITVIZ_MCP=1, got none. Run pip install 'gradio[mcp]'.")
    share_freed_memory()
    files = raise_open_files()
    demo.account.budgets[Resource.CONNECTIONS] = connection_budget(files)
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    workers().warm()
    # Three inner names of gradio's: docs/security.md says why. gradio is pinned, and tests hold them.
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
    setattr(routes, "CustomCORSMiddleware", firewall)  # noqa: B010 - not exported, so not to be assigned either
    server = partial(_Server, connections=Connections(demo.account, allowed.stall), files=files)
    setattr(http_server, "Server", server)  # noqa: B010 - for mypy, a class is not to be assigned to
    # Nothing passes by the queue: direct calls are refused.
    demo.queue(default_concurrency_limit=2, api_open=False)
    return demo.launch(
        server_name=host,
        server_port=port or allowed.port,
        share=shared(),  # left to itself gradio shares on hosted notebooks, unasked
        theme=THEME,
        # As a <style> of its own: rules that are given as `css` are prefixed, and then miss what lies above the page.
        head=f"<style>{bundle.style()}{bundle.lecture_style()}</style>",
        app_kwargs={"routes": list(getattr(demo, "routes", ()))},
        mcp_server=allowed.mcp,
        ssr_mode=False,
        show_error=False,  # our own errors are shown all the same; Python's are no use to a visitor
        footer_links=["api"],
        run_history=False,
        enable_monitoring=False,
        state_session_capacity=MAX_SESSIONS,
        # It answers by now (`startup-events`). Else gradio asks for the page itself, gives up after three seconds, too
        # few on a busy machine, and advises to share it with the world.
        _frontend=False,
        **options,
    )
