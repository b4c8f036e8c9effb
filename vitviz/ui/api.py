"""What programs may ask of the page: two named endpoints. Everything else that it serves is its own business."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import gradio as gr
from gradio.data_classes import FileData

from vitviz.ui.sessions import Sessions
from vitviz.view import View

PROGRAMS = {"concurrency_id": "programs", "concurrency_limit": 2}  # a program's download holds up no visitor


def add_endpoints(sessions: Sessions) -> None:
    """Add the endpoints to the `gr.Blocks` that is being built."""
    default = sessions.menu.default

    def predict(photo: FileData, model: str = default, k: int = 5) -> list[dict[str, Any]]:
        """The k most probable classes of a photograph: [{"label": "church", "probability": 0.93}, ...]."""
        view = _view(sessions, photo, model)
        return [{"label": label, "probability": p} for label, p in view.predictions(k)]

    def explain(
        photo: FileData, model: str = default, method: str = "rollout", layer: int = -1, head: str = "mean"
    ) -> dict[str, Any]:
        """Raw scores of the patches as seen from CLS, rows from the top; layers and heads count from 1."""
        view = _view(sessions, photo, model)
        one: Any = int(head) - 1 if head.isdigit() else head
        if method == "rollout":
            heatmap = view.rollout(fuse="mean" if isinstance(one, int) else one)
        elif method == "attention":
            if layer == 0:
                raise ValueError("layer: expected a number from 1, or -1 for the last; got 0.")
            heatmap = view.attention(layer - 1 if layer > 0 else layer, one)
        else:
            raise ValueError(f"method: expected attention or rollout, got {method!r:.40}.")
        return {
            "title": heatmap.title,
            "values": heatmap.values.tolist(),
            "prefix_mass": dict(heatmap.prefix_mass),
            "frame": heatmap.geometry.frame,
        }

    for endpoint in (predict, explain):
        gr.events.api(_said(endpoint), api_name=endpoint.__name__, **PROGRAMS)


def _view(sessions: Sessions, photo: Any, model: str) -> View:
    return sessions.look(photo["path"] if isinstance(photo, dict) else photo.path, model)


def _said(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """The endpoint with our refusals passed on in words; gradio shows other errors as "Error"."""

    @wraps(endpoint)
    def said(*args: Any, **options: Any) -> Any:
        try:
            return endpoint(*args, **options)
        except ValueError as error:
            raise gr.Error(str(error), print_exception=False) from error

    return said
