"""Serve the page: queue, limits, and routes that stay shut."""

from __future__ import annotations

import os
from functools import partial
from importlib.util import find_spec
from typing import Any

import gradio as gr
from gradio import mcp, processing_utils, routes

from vitviz.model.devices import share_freed_memory
from vitviz.server.api import CheckedBlocks
from vitviz.server.arguments import MAX_PHOTO_BYTES
from vitviz.server.firewall import Firewall
from vitviz.server.health import RequestLog
from vitviz.server.routes import MAX_CHECKPOINT_BYTES
from vitviz.server.settings import Settings, SettingsError, shared
from vitviz.server.uploads import upload_folder
from vitviz.web import bundle

MAX_SESSIONS = 256  # programs whose calls gradio remembers

THEME = gr.themes.Monochrome(
    primary_hue="indigo",
    neutral_hue="slate",
    radius_size="md",
    text_size="md",
    font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
    font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "monospace"],
).set(layout_gap="10px", block_padding="8px 10px", block_label_text_size="13px", form_gap_width="0px")


async def _refuse_download(*_args: Any, **_options: Any) -> str:
    raise gr.Error("Expected an uploaded file, got an address. Save the picture and upload it.", print_exception=False)


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
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    if os.environ.get("SPACE_ID"):  # who visits is what the Space's proxy says: there is no other way in
        os.environ.setdefault("FORWARDED_ALLOW_IPS", "*")
    # Three inner names of gradio's; gradio is pinned and tests hold them. It would fetch addresses that visitors type,
    # keep photographs of its tools in a folder that all users of this machine share, and let in all origins.
    processing_utils.async_ssrf_protected_download = _refuse_download
    mcp.DEFAULT_TEMP_DIR = str(upload_folder().root)
    firewall = partial(
        Firewall,
        uploads=upload_folder(),
        max_file=MAX_CHECKPOINT_BYTES if allowed.upload else MAX_PHOTO_BYTES,
        checkpoints=allowed.upload,
        hosts=allowed.hosts,
        frames=allowed.frames,
        busy=demo.busy,
        mcp=allowed.mcp,
        log=RequestLog() if allowed.log else None,
    )
    setattr(routes, "CustomCORSMiddleware", firewall)  # noqa: B010 - not exported, so not to be assigned either
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
