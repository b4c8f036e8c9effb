"""Serve the endpoints as tools of the Model Context Protocol (MCP), through Gradio's server of tools."""

from __future__ import annotations

import json
from importlib.metadata import distributions, version
from typing import Any

import gradio as gr
import gradio.mcp

from vitviz.server.uploads import STORED, UploadError, Uploads
from vitviz.settings import SettingsError

UPLOADED = "/gradio_api/file="  # in the URL of an uploaded file


class Tools(gradio.mcp.GradioMCPServer):
    """Gradio's server of tools, which answers in JSON and opens only photographs sent to this page.

    Args:
        page: the page with the endpoints.
        uploads: its photographs.
    """

    def __init__(self, page: gr.Blocks, uploads: Uploads) -> None:
        super().__init__(page)
        self._uploads = uploads

    def postprocess_output_data(self, data: Any, root_url: str) -> list[Any]:  # noqa: ARG002 - Gradio's signature
        """Return answers as text in JSON; Gradio would write them as Python does."""
        texts = (json.dumps(answer, ensure_ascii=False, allow_nan=False) for answer in data)
        return [self.types.TextContent(type="text", text=text) for text in texts]

    def convert_strings_to_filedata(self, value: Any, filedata_positions: list[list[str | int]]) -> Any:
        """Return a tool's arguments with its photographs as uploaded files.

        Raises:
            UploadError: if a photograph was not sent to this page.
        """
        files = {name: stored(value[name], self._uploads) for (name,) in filedata_positions if name in value}
        return super().convert_strings_to_filedata(value | files, filedata_positions)


def stored(photo: object, uploads: Uploads) -> str:
    """Return the URL of `uploads.STORED` of a tool's photograph.

    Args:
        photo: this URL, into which the firewall turns data: URLs, or the URL of an uploaded file.
        uploads: the page's photographs.

    Raises:
        UploadError: for anything else, such as a path on the client's machine, or if the file no longer exists.
    """
    before, _, name = str(photo).rpartition(UPLOADED)
    if not before and not name.startswith(STORED):
        raise UploadError(
            f"Expected a photograph as a data: URL or as the URL of an uploaded file, got {photo!r:.80}. Upload it "
            "with the tool upload_file_to_gradio, which `gradio upload-mcp` offers (docs/mcp.md)."
        )
    uploads.read(name := name.removeprefix(STORED))
    return STORED + name


def check_tools(page: gr.Blocks, uploads: Uploads) -> None:
    """Check that Gradio can use the package `mcp`; it would start without tools.

    Raises:
        SettingsError: if it cannot.
    """
    try:
        Tools(page, uploads)
    except (ImportError, AttributeError, TypeError) as error:
        found = next((f"mcp {package.version}" for package in distributions(name="mcp")), "none")
        raise SettingsError(
            f"Expected a package mcp that Gradio {version('gradio')} can use for VITVIZ_MCP=1 or --mcp, got {found}. "
            "Run pip install 'gradio[mcp]'."
        ) from error
