"""Serve the endpoints as tools of the Model Context Protocol (MCP), through Gradio's server of tools."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from urllib.parse import unquote

import gradio as gr
import gradio.mcp

from vitviz.server.uploads import STORED, UploadError, upload_folder
from vitviz.settings import SettingsError

UPLOADED = "/gradio_api/file="  # in the URL of an uploaded file


class Tools(gradio.mcp.GradioMCPServer):
    """Gradio's server of tools, which answers in JSON and opens only photographs sent to this page."""

    def postprocess_output_data(self, data: Any, root_url: str) -> list[Any]:  # noqa: ARG002 - Gradio's signature
        """Return answers as text in JSON; Gradio would write them as Python does."""
        texts = (json.dumps(answer, ensure_ascii=False, allow_nan=False) for answer in data)
        return [self.types.TextContent(type="text", text=text) for text in texts]

    def convert_strings_to_filedata(self, value: Any, filedata_positions: list[list[str | int]]) -> Any:
        """Return a tool's arguments with its photographs as files of the upload folder.

        Raises:
            UploadError: if a photograph was not sent to this page.
        """
        files = {name: stored(value[name]) for (name,) in filedata_positions if name in value}
        return super().convert_strings_to_filedata(value | files, filedata_positions)


def stored(photo: object) -> str:
    """Return the URL of `uploads.STORED` of a tool's photograph.

    Args:
        photo: this URL, into which the firewall turns data: URLs, or the URL of an uploaded file.

    Raises:
        UploadError: for anything else, such as a path on the client's machine, or if the file no longer exists.
    """
    before, _, path = str(photo).rpartition(UPLOADED)
    url = STORED + unquote(path) if before else str(photo)
    if not url.startswith(STORED):
        raise UploadError(
            f"Expected a photograph as a data: URL or as the URL of an uploaded file, got {photo!r:.80}. Upload it "
            "with the tool upload_file_to_gradio, which `gradio upload-mcp` offers (docs/mcp.md)."
        )
    upload_folder().check(url)
    return url


def use_tools(page: gr.Blocks) -> None:
    """Let Gradio serve a page's endpoints with `Tools`.

    Raises:
        SettingsError: if Gradio cannot use the package `mcp`; it would start without tools.
    """
    setattr(gradio.mcp, "GradioMCPServer", Tools)  # noqa: B010 - `launch` has no option for the class
    try:
        Tools(page)
    except (ImportError, AttributeError, TypeError) as error:
        raise SettingsError(
            f"Expected a package mcp that Gradio {version('gradio')} can use for VITVIZ_MCP=1 or --mcp, got "
            f"{_installed()}. Run pip install 'gradio[mcp]'."
        ) from error


def _installed() -> str:
    try:
        return f"mcp {version('mcp')}"
    except PackageNotFoundError:
        return "none"
