"""Provide the explorer as a notebook widget whose selection can be read in Python."""

from __future__ import annotations

import base64
import json
from typing import Any

import anywidget
import traitlets

from vitviz.errors import VitvizError
from vitviz.view import View
from vitviz.web import bundle
from vitviz.web.payload import block_bytes, rollout_bytes, rollout_row_bytes
from vitviz.web.scene import Scene

__all__ = ["ExplorerWidget", "WidgetError"]

ARGUMENTS = {"block": {"block"}, "rollout": {"token", "fuse", "discard", "residual", "start"}}


class WidgetError(VitvizError):
    """Raised for a question that the widget does not answer."""


class ExplorerWidget(anywidget.AnyWidget):
    """The explorer of a view as a notebook widget.

    Show it in one cell, select something, and read `widget.selection` in the next. The page asks the kernel for the
    attention of a block when that block is shown. Notebooks without widgets, and untrusted ones, show a picture.

    Args:
        view: view from `Explorer.open`.

    Attributes:
        selection: the current selection, counted from 0: "patch" [row, column] (`None` while none is pinned), "block",
            "head" (a number, or "mean", "max", "min") and "prediction" ("label", "index", "probability"). Empty until
            the widget is shown.
    """

    manifest = traitlets.Dict().tag(sync=True)
    selection = traitlets.Dict().tag(sync=True)
    _esm = traitlets.Unicode().tag(sync=True)

    def __init__(self, view: View) -> None:
        parts = {
            "template": bundle.template(),
            "style": bundle.contained_style(),
            "colors": json.loads(bundle.colors()),
        }
        start = f"export default {{ render: (host) => vitvizExplorer.render(host, {json.dumps(parts)}) }};"
        self._view = view
        super().__init__(_esm=bundle.script("web/widget.js") + start, manifest=Scene(view).manifest("view"))
        self.on_msg(self._answer)

    def _answer(self, _widget: object, message: Any, _buffers: object) -> None:
        """Answer a question of the page with its ticket and a file of `vitviz.web.payload`, or an error message."""
        reply: dict[str, Any] = {"ticket": message.get("ticket")}
        try:
            data = answer(self._view, message.get("name"), message.get("ask"))
        except VitvizError as error:
            self.send(reply | {"error": str(error)})
        else:
            self.send(reply, [data])

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """Return the widget, and a picture of the view for notebooks that show no widgets."""
        bundle_of_widget = super()._repr_mimebundle_(**options)
        if bundle_of_widget is None:
            return None
        data, metadata = bundle_of_widget if isinstance(bundle_of_widget, tuple) else (bundle_of_widget, {})
        return data | {"image/png": base64.b64encode(self._view._repr_png_()).decode()}, metadata


def answer(view: View, name: object, ask: object) -> bytes:
    """Return the answer to a question of the page: a block's file, the rollout matrix, or one of its rows.

    Args:
        view: the view of the widget.
        name: "block" or "rollout".
        ask: {"block"}; or {"token", "fuse", "discard", "residual", "start"}, where the token is `None` for the matrix
            and -1 for the mean over patches.

    Raises:
        WidgetError: for another question or other names of arguments.
        VitvizError: for invalid values.
    """
    options = dict(ask) if isinstance(ask, dict) else {}
    if name not in ARGUMENTS or set(options) != ARGUMENTS[str(name)]:
        raise WidgetError(f"Expected a block or rollout, got {name!r:.40} of {list(options)}. Ask the view in Python.")
    if name == "block":
        return block_bytes(view.trace, options["block"])
    token = options.pop("token")
    if token is None:
        return rollout_bytes(view.trace, **options)
    return rollout_row_bytes(view.trace, token, **options)
