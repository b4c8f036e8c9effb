"""The page's own components: a photograph input that leaves decoding to us, the large picture, and walls of buttons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

HERE = Path(__file__).parent


class PhotoInput(gr.Image):
    """An image input that hands over the uploaded file as it is.

    gradio would decode it first, without our limits, and answer a broken file in its own words.
    """

    def get_block_name(self) -> str:
        """The front end shows it as gradio's own image input."""
        return "image"

    def preprocess(self, payload: Any) -> str | None:
        """The path of the uploaded file, or `None` when the input was cleared."""
        return None if payload is None else payload.path


class OpenRadio(gr.Radio):
    """Buttons whose choices change with the model.

    gradio refuses a request made just before the choices changed. Here every answer comes through, and `Knobs` brings
    it inside.
    """

    def get_block_name(self) -> str:
        """The front end shows it as gradio's own."""
        return "radio"

    def preprocess(self, payload: Any) -> str:
        """The name of the choice."""
        return str(payload)


class OpenDropdown(gr.Dropdown):
    """The same as a list; `side_of` refuses what is no size, and the sessions what is too large."""

    def get_block_name(self) -> str:
        """The front end shows it as gradio's own."""
        return "dropdown"

    def preprocess(self, payload: Any) -> str:
        """The name of the choice."""
        return str(payload)


class _Html(gr.HTML):
    """A component of ours: constant HTML, our script, and one string from the server as its value."""

    def get_block_name(self) -> str:
        """The front end shows it as gradio's HTML component."""
        return "html"


class Stage(_Html):
    """The large picture. Its value is the JSON of `draw.stage`; it fires `pick` with a row and a column."""

    def __init__(self, value: str | None = None, **options: Any) -> None:
        template = (HERE / "stage.html").read_text(encoding="utf-8")
        script = (HERE / "stage.js").read_text(encoding="utf-8")
        super().__init__(value, html_template=template, js_on_load=script, apply_default_css=False, **options)


class Wall(_Html):
    """Buttons with thumbnails. Its value is HTML from `draw`; it fires `choose` with the kind and value of a button."""

    def __init__(self, value: str | None = None, **options: Any) -> None:
        script = (HERE / "wall.js").read_text(encoding="utf-8")
        template = '<div class="box"></div>'
        super().__init__(value, html_template=template, js_on_load=script, apply_default_css=False, **options)


class ModelMenu(_Html):
    """The menu of models. Its value is the JSON of `draw.menu`; it fires `choose` with the source of a model."""

    def __init__(self, value: str | None = None, **options: Any) -> None:
        template = (HERE / "menu.html").read_text(encoding="utf-8")
        script = (HERE / "menu.js").read_text(encoding="utf-8")
        super().__init__(value, html_template=template, js_on_load=script, apply_default_css=False, **options)
