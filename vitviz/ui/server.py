"""Serving the page: queue, limits, and doors that stay shut."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

import gradio as gr
from gradio import processing_utils
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from vitviz.ui.settings import shared
from vitviz.viewer import bundle

HERE = Path(__file__).parent
MAX_FILE_SIZE = "64mb"
MAX_CHECKPOINT_SIZE = "2gb"  # where checkpoints may be uploaded; gradio has one limit for all files
M_MMAP_THRESHOLD = -3  # glibc's number for it, see mallopt(3)
MAPPED_BYTES = 128 * 2**10  # blocks from here on are mapped, and unmapped when they are freed
MAX_WAITING = 64  # requests in the queue before a visitor is told to come back

THEME = gr.themes.Monochrome(
    primary_hue="indigo",
    neutral_hue="slate",
    radius_size="md",
    text_size="md",
    font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
    font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "monospace"],
).set(layout_gap="10px", block_padding="8px 10px", block_label_text_size="13px", form_gap_width="0px")


class Closed:
    """Refuse the two doors through which gradio would fetch any address for any visitor."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """403 for remote files and the proxy; everything else passes."""
        path = scope.get("path", "")
        if scope["type"] == "http" and ("/file=http" in path.replace("%3A", ":") or "/proxy=" in path):
            await PlainTextResponse("vitviz fetches nothing from other hosts.", status_code=403)(scope, receive, send)
            return
        await self.app(scope, receive, send)


async def _refuse_download(*_args: Any, **_options: Any) -> str:
    raise gr.Error(
        "vitviz fetches nothing from other hosts. Save the picture and upload the file.", print_exception=False
    )


def give_memory_back() -> None:
    """Let glibc return large freed blocks to the system at once.

    Models run in many threads, and each keeps what it freed in an arena of its own: a page that had opened many
    photographs held 4.4 GB, of which 0.4 GB were in use; with this, 1.2 GB, for a tenth more CPU time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:  # not with musl
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)


def launch(
    demo: gr.Blocks, host: str | None = None, port: int | None = None, *, upload: bool = False, **options: Any
) -> Any:
    """Serve the page; returns what `gr.Blocks.launch` returns.

    Args:
        demo: the page.
        host, port: where to listen; gradio's own settings (`GRADIO_SERVER_NAME`, `GRADIO_SERVER_PORT`) by default.
        upload: whether visitors may upload checkpoints, which are larger than photographs.
        options: passed on to `gr.Blocks.launch`.
    """
    give_memory_back()
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    # gradio fetches addresses that visitors type; the name is internal, so gradio is pinned and a test holds this.
    processing_utils.async_ssrf_protected_download = _refuse_download
    # As a <style> of its own: rules that are given as `css` are prefixed, and then miss what lies above the page.
    demo.queue(max_size=MAX_WAITING, default_concurrency_limit=2)
    return demo.launch(
        server_name=host,
        server_port=port,
        share=shared(),  # left to itself gradio shares on hosted notebooks, unasked
        theme=THEME,
        head=f"<style>{bundle.style()}{(HERE / 'page.css').read_text(encoding='utf-8')}</style>",
        max_file_size=MAX_CHECKPOINT_SIZE if upload else MAX_FILE_SIZE,
        ssr_mode=False,
        show_error=True,
        footer_links=["api"],
        run_history=False,
        app_kwargs={"middleware": [Middleware(Closed)]},
        # It answers by now (`startup-events`). Else gradio asks for the page itself, gives up after three seconds, too
        # few on a busy machine, and advises to share it with the world.
        _frontend=False,
        **options,
    )
