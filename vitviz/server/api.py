"""What programs may ask of the page: two named endpoints. Everything else that it serves is its own business."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, get_args

import gradio as gr
from gradio.data_classes import FileData

from vitviz.attribution.attention import Fusion
from vitviz.server.sessions import Sessions

MOST_CLASSES = 1000
PROGRAMS = {"concurrency_id": "programs", "concurrency_limit": 2}  # a program's download holds up no visitor


def add_endpoints(sessions: Sessions) -> None:
    """Add the endpoints to the `gr.Blocks` that is being built."""
    default = sessions.menu.default

    def predict(photo: FileData, model: str = default, k: int = 5) -> list[dict[str, Any]]:
        """Return the k most probable classes of a photograph: [{"label": "church", "probability": 0.93}, ...]."""
        if not (isinstance(k, int) and not isinstance(k, bool) and 1 <= k <= MOST_CLASSES):
            raise ValueError(f"Expected k, the number of classes, from 1 to {MOST_CLASSES}; got {k!r:.40}.")
        view = sessions.look(path_of(photo), text_of("model", model))
        return [{"label": label, "probability": p} for label, p in view.predictions(k)]

    def explain(
        photo: FileData, model: str = default, method: str = "rollout", layer: int = -1, head: str = "mean"
    ) -> dict[str, Any]:
        """Return the raw scores of the patches as seen from CLS, rows from the top; layers and heads count from 1."""
        path, name = path_of(photo), text_of("model", model)
        if text_of("method", method) not in ("attention", "rollout"):
            raise ValueError(f"Expected attention or rollout as the method, got {method!r:.40}.")
        config = sessions.begin("", name).result().model.config
        whole = isinstance(layer, int) and not isinstance(layer, bool)
        if not whole or (layer != -1 and not 1 <= layer <= config.depth):
            raise ValueError(f"Expected a layer from 1 to {config.depth}, or -1 for the last; got {layer!r:.40}.")
        heads = {str(number): number - 1 for number in range(1, config.heads + 1)}
        fusions: tuple[Fusion, ...] = get_args(Fusion)
        if text_of("head", head) not in (*heads, *fusions):
            raise ValueError(f"Expected a head from 1 to {config.heads}, or {', '.join(fusions)}; got {head!r:.40}.")
        view = sessions.look(path, name)
        if method == "rollout":
            heatmap = view.rollout(fuse=next((one for one in fusions if one == head), "mean"))
        else:
            one = next((one for one in fusions if one == head), heads.get(head, 0))
            heatmap = view.attention(layer - 1 if layer > 0 else layer, one)
        return {
            "title": heatmap.title,
            "values": heatmap.values.tolist(),
            "prefix_mass": dict(heatmap.prefix_mass),
            "frame": heatmap.geometry.frame,
        }

    for endpoint in (predict, explain):
        gr.events.api(_said(endpoint), api_name=endpoint.__name__, **PROGRAMS)


def path_of(photo: Any) -> str:
    """Return the path of a photograph that a program has uploaded. Where it lies is checked before."""
    path = photo.get("path") if isinstance(photo, dict) else getattr(photo, "path", None)
    if not isinstance(path, str):
        raise ValueError(f"Expected an uploaded file as the photo, got {type(photo).__name__}. Upload it first.")
    return path


def text_of(name: str, value: object) -> str:
    """Return an argument that is a text."""
    if not isinstance(value, str):
        raise ValueError(f"Expected a text as the {name}, got {value!r:.40}.")
    return value


def _said(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """The endpoint with our refusals passed on in words; gradio shows other errors as "Error"."""

    @wraps(endpoint)
    def said(*args: Any, **options: Any) -> Any:
        try:
            return endpoint(*args, **options)
        except ValueError as error:
            raise gr.Error(str(error), print_exception=False) from error

    return said
