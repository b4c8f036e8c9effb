"""The explorer's HTML and script as a Gradio component: the base of the app's page and of `vitviz.gradio`."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import gradio as gr

from vitviz.web import bundle

# Gradio calls the script with these four objects, see the guide "Custom HTML components".
START = "vitvizExplorer.start(element, {{ props, trigger, server, watch }}, {{ colors: {colors}, ...{setup} }});"


class ExplorerHTML(gr.HTML):
    """HTML of the explorer, with one of the page's scripts.

    Args:
        value: the component's value.
        script: a script of `vitviz.web` that exports `start`.
        setup: data that `start` receives.
        options: other arguments of `gr.HTML`.
    """

    def __init__(self, value: Any, script: str, setup: dict[str, Any], **options: Any) -> None:
        super().__init__(
            value,
            html_template=bundle.template(),
            js_on_load=bundle.script(script) + START.format(colors=bundle.colors(), setup=json.dumps(setup)),
            apply_default_css=False,
            **options,
        )

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse unknown attributes; `gr.HTML` would treat any quoted word of a script as an event."""
        raise AttributeError(f"{type(self).__name__} has no attribute {name}")
