"""The page's own components: a photograph input that leaves decoding to us, walls of buttons, the menu of models; and
how components answer the browser.
"""

from __future__ import annotations

import filecmp
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import gradio as gr
from gradio.blocks import Block

from vitviz.server.scheduler import Cancelled
from vitviz.web import bundle

HERE = Path(__file__).parent
Found = TypeVar("Found")
Answer = dict[str, str]


class PhotoInput(gr.Image):
    """An image input that hands over the uploaded file as it is.

    gradio would decode it first, without our limits, and answer a broken file in its own words.

    Args:
        originals: files that come with the page. gradio hands over a copy of them; here they are themselves again.
    """

    def __init__(self, value: str | None = None, *, originals: Sequence[Path] = (), **options: Any) -> None:
        self.originals = originals
        super().__init__(value, **options)

    def get_block_name(self) -> str:
        """The front end shows it as gradio's own image input."""
        return "image"

    def get_config(self, cls: type[Block] | None = None) -> dict[str, Any]:
        """What the front end is told: gradio's own properties, which it knows by the arguments of `__init__`."""
        return super().get_config(cls or gr.Image)

    def preprocess(self, payload: Any) -> str | None:
        """The path of the uploaded file, or `None` when the input was cleared."""
        if payload is None or not payload.path:
            return None
        given = Path(payload.path)
        if not given.is_file():
            return str(given)  # `decode` has words for it
        return str(next((own for own in self.originals if filecmp.cmp(own, given, shallow=False)), given))


class OpenDropdown(gr.Dropdown):
    """A list whose choices change with the model.

    gradio refuses a request made just before the choices changed. Here every answer comes through: `side_of` refuses
    what is no size, and the sessions what is too large.
    """

    def get_block_name(self) -> str:
        """The front end shows it as gradio's own."""
        return "dropdown"

    def preprocess(self, payload: Any) -> str:
        """The name of the choice."""
        return str(payload)


def asking(*glue: str) -> str:
    """The script of a component that asks the server: files beside this one, behind what all of them share."""
    script = "".join((HERE / name).read_text(encoding="utf-8") for name in ("ask.js", *glue))
    return script.replace("COLOURS", bundle.colours())


class _Html(gr.HTML):
    """A component of ours: constant HTML, our script, and one string from the server as its value."""

    def get_block_name(self) -> str:
        """The front end shows it as gradio's HTML component."""
        return "html"


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
        script = "".join((HERE / name).read_text(encoding="utf-8") for name in ("remembered.js", "menu.js"))
        super().__init__(value, html_template=template, js_on_load=script, apply_default_css=False, **options)


def answered(
    find: Callable[[str], Found | None], work: Callable[[Found, list[Any]], str], asked: Any, count: int
) -> Answer:
    """What `work` makes of what was asked. It comes from the visitor: nothing in it is believed.

    Args:
        find: the open photograph of a name; `None` for one that was forgotten. Names are secrets of their visitor.
        work: from the photograph and the rest of the list to what is sent.
        asked: expected to be a list, the first of which is a photograph's name.
        count: of that list.

    Returns:
        "data"; or "error" in words, with "forgotten" where the photograph was.
    """
    if not (isinstance(asked, list) and len(asked) == count and isinstance(asked[0], str)):
        return {"error": f"Expected a list of {count} with a photograph's id first, got {asked!r:.40}."}
    found = find(asked[0])
    if found is None:
        return {"error": "This photograph was put away. It is being opened again.", "forgotten": "yes"}
    try:
        return {"data": work(found, asked[1:])}
    except Cancelled:
        return {"error": "This was stopped: nobody waits for it any more."}
    except ValueError as error:
        return {"error": str(error)}
