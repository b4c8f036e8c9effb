"""The page: layout and wiring. What is drawn comes from `draw`, what is remembered from `sessions`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.data_classes import FileData

from vitviz.explorer import View
from vitviz.image import ImageError
from vitviz.ui import draw
from vitviz.ui.draw import FUSIONS, PATCH, Knobs
from vitviz.ui.parts import PhotoInput, Stage, Wall
from vitviz.ui.sessions import Sessions, Shown
from vitviz.weights.zoo import bundled, title

HERE = Path(__file__).parent
EXAMPLES = Path(__file__).parents[2] / "examples"
COLOUR_MAPS = ("viridis", "magma", "inferno", "plasma", "cividis", "turbo", "gray")
QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "trigger_mode": "always_last"}
MODEL = {"concurrency_id": "model", "concurrency_limit": 1}  # one forward pass at a time, whoever asks
# A choice carries what was chosen: each is answered, in order. ("always_last" would repeat the first one's data.)
CHOICE: dict[str, Any] = {**QUIET, **MODEL, "trigger_mode": "multiple"}

HEADER = """
<header><h1>vitviz</h1>
<p>Drop a photograph, click a patch, see where every head of a Vision Transformer looks.</p></header>
"""
THEME_BUTTON = '<button type="button" class="theme" aria-label="Switch between light and dark">◐</button>'

@dataclass(frozen=True)
class Example:
    """A photograph that comes with the page: its file, a word for its button, a sentence for its tooltip."""

    path: Path
    name: str
    label: str


def examples(folder: Path = EXAMPLES) -> list[Example]:
    """The photographs that come with the page, in order; `index.json` beside them says which."""
    index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    return [Example(folder / entry["file"], entry["name"], entry["label"]) for entry in index]


class Page:
    """The page's components, and what each event does.

    Every handler is a function of the photograph's path, the model's name and the knobs: nothing else is state, so a
    visitor whose open photograph was forgotten loses nothing.
    """

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.examples = examples()
        self.first = sessions.open("", None, sessions.models[0])
        with gr.Blocks(title="vitviz", fill_width=True, analytics_enabled=False, delete_cache=(3600, 86400)) as demo:
            self._header()
            with gr.Tabs():
                with gr.Tab("Explore"):
                    self._explore()
                with gr.Tab("How to read this"):
                    gr.Markdown((HERE / "help.md").read_text(encoding="utf-8"), elem_classes="help")
            self._wire(demo)
            self._api()
        self.demo = demo

    # What is on it

    def _header(self) -> None:
        with gr.Row(elem_id="top"):
            gr.HTML(HEADER, elem_id="title", apply_default_css=False)
            choices = [(title(name), name) for name in self.sessions.models]
            self.model = gr.Dropdown(choices, value=choices[0][1], label="Model", container=False, elem_id="model")
            self.badge = gr.HTML(draw.badge(self.first.view), elem_id="badge", apply_default_css=False)
            script = (HERE / "page.js").read_text(encoding="utf-8")
            gr.HTML(THEME_BUTTON, js_on_load=script, elem_id="theme", apply_default_css=False)

    def _explore(self) -> None:
        knobs = self._first_knobs()
        with gr.Row(elem_id="explore"):
            with gr.Column(elem_id="source", min_width=220):
                self._source()
            with gr.Column(elem_id="middle", min_width=320):
                self.stage = Stage(draw.stage(self.first, knobs), elem_id="stage")
                self.heads = Wall(draw.head_wall(self.first, knobs), elem_id="heads")
                self.layers = Wall(draw.layer_wall(self.first, knobs), elem_id="layers")
            with gr.Column(elem_id="controls", min_width=300):
                self.predictions = gr.HTML(
                    draw.predictions(self.first.view), elem_id="predictions", apply_default_css=False
                )
                self._knobs()

    def _source(self) -> None:
        self.photo = PhotoInput(
            value=str(self.examples[0].path),
            type="filepath",
            sources=["upload", "webcam", "clipboard"],
            label="Your photograph",
            buttons=[],
            height=190,
            elem_id="photo",
        )
        self.problem = gr.HTML("", elem_id="problem", apply_default_css=False)
        self.gallery = Wall(self._gallery(), elem_id="examples")
        with gr.Accordion("What the model saw", open=False):
            self.seen = gr.HTML(self._seen(self.first), apply_default_css=False)

    def _knobs(self) -> None:
        names = draw.queries(self.first.view)
        self.method = gr.Radio(
            [("Attention", "attention"), ("Rollout", "rollout")],
            value="attention",
            label="Show",
            elem_id="method",
        )
        self.query = gr.Radio(self._queries(names), value=names[0], label="From", elem_id="query")
        rows, columns = self.first.view.trace.grid
        self.patch = gr.State((rows // 2, columns // 2))
        self.block = gr.State(self.first.view.trace.depth - 1)
        self.head = gr.State("mean")
        with gr.Group(elem_classes="looks"):
            self.alpha = gr.Slider(0, 1, value=0.55, step=0.05, label="Opacity of the map", elem_id="alpha")
            with gr.Row(elem_classes="checks"):
                self.grid = gr.Checkbox(False, label="Patch grid", elem_id="grid")
                self.smooth = gr.Checkbox(False, label="Smooth", elem_id="smooth")
        with gr.Accordion("Colours and scale", open=False):
            self.cmap = gr.Dropdown(list(COLOUR_MAPS), value="viridis", label="Colour map", elem_id="cmap")
            self.shared = gr.Checkbox(False, label="One scale for all thumbnails", elem_id="shared")
        with gr.Accordion("Rollout options", open=False):
            self.fuse = gr.Radio(list(FUSIONS), value="mean", label="Heads become one by", elem_id="fuse")
            self.discard = gr.Slider(0, 0.95, value=0, step=0.05, label="Drop the weakest share", elem_id="discard")
            self.residual = gr.Slider(0, 1, value=0.5, step=0.05, label="Weight of the skip connection")
            depth = self.first.view.trace.depth
            self.start = gr.Slider(1, depth, value=1, step=1, label="First layer", elem_id="start")

    def _queries(self, names: list[str]) -> list[tuple[str, str]]:
        words = {"cls": "CLS", "mean": "All patches"}
        return [(words.get(name, name.capitalize()), name) for name in names] + [("A patch", PATCH)]

    def _gallery(self) -> str:
        parts = []
        for index, example in enumerate(self.examples):
            url = draw.data_url(draw.thumbnail(example.path), 82)
            parts.append(
                f'<button type="button" data-kind="example" data-value="{index}" title="{escape(example.label)}">'
                f'<img alt="" src="{url}"><span>{escape(example.name)}</span></button>'
            )
        return f'<h2>Drop or paste one anywhere, or try</h2><div class="wall">{"".join(parts)}</div>'

    def _seen(self, shown: Shown) -> str:
        picture = shown.view.seen()
        rows, columns = shown.view.trace.grid
        words = f"{picture.width} x {picture.height} pixels, cut into {rows} x {columns} patches"
        source = draw.data_url(picture, 88)
        return f'<img class="seen" alt="The photograph after preprocessing" src="{source}"><p>{words}</p>'

    def _first_knobs(self) -> Knobs:
        return Knobs(block=self.first.view.trace.depth - 1, query=draw.queries(self.first.view)[0])

    # What it does

    def _wire(self, demo: gr.Blocks) -> None:
        self.knobs = [
            self.method, self.block, self.head, self.query, self.patch, self.cmap, self.alpha, self.smooth, self.grid,
            self.shared, self.fuse, self.discard, self.residual, self.start,
        ]  # fmt: skip
        asked = [self.photo, self.model, *self.knobs]
        pictures = [self.stage, self.heads, self.layers]
        opened = [self.predictions, self.badge, self.seen, self.query, self.start, self.problem, *pictures]
        gr.on([self.photo.change, self.model.change], self.open, asked, opened, **QUIET, **MODEL)
        # `input` is what a person does. Our own choices answer with the pictures, so that one click is one round trip.
        stage_only = (self.alpha, self.grid, self.fuse, self.discard, self.residual, self.start)
        both = (self.method, self.query, self.cmap, self.smooth, self.shared)
        gr.on(inputs_of(stage_only), self.draw_stage, asked, [self.stage], **QUIET, **MODEL)
        gr.on(inputs_of(both), self.draw_all, asked, pictures, **QUIET, **MODEL)
        self.stage.pick(self.picked, asked, [self.query, self.patch, *pictures], **CHOICE)
        for wall in (self.heads, self.layers):
            wall.choose(self.chosen, asked, [self.block, self.head, self.method, *pictures], **CHOICE)
        self.gallery.choose(self.chosen_example, None, [self.photo], **CHOICE)
        demo.unload(self.left)

    def open(self, request: gr.Request, photo: str | None, model: str, *values: Any) -> list[Any]:
        """A new photograph or model: run it and show everything. A file that is no picture only says so."""
        if photo is None:
            return [gr.skip()] * 9
        try:
            shown = self.sessions.open(request.session_hash or "", photo, model)
        except ValueError as error:
            return [gr.skip()] * 5 + [draw.problem(str(error))] + [gr.skip()] * 3
        view = shown.view
        names = draw.queries(view)
        knobs = self._read(values)
        query = knobs.query if knobs.query in (*names, PATCH) else names[0]
        return [
            draw.predictions(view),
            draw.badge(view),
            self._seen(shown),
            gr.update(choices=self._queries(names), value=query),
            gr.update(maximum=view.trace.depth),
            "",
            *self._pictures(shown, knobs),
        ]

    def draw_all(self, request: gr.Request, photo: str | None, model: str, *values: Any) -> list[Any]:
        """The large picture and both walls."""
        return self._pictures(self._shown(photo, model, request), self._read(values))

    def draw_stage(self, request: gr.Request, photo: str | None, model: str, *values: Any) -> str:
        """The large picture alone."""
        return draw.stage(self._shown(photo, model, request), self._read(values))

    def picked(self, request: gr.Request, event: gr.EventData, photo: str, model: str, *values: Any) -> list[Any]:
        """A patch was chosen on the picture; (-1, -1) stands for the class token."""
        patch = (int(event.row), int(event.column))
        knobs = self._read(values)
        knobs = replace(knobs, query="cls") if patch[0] < 0 else replace(knobs, query=PATCH, patch=patch)
        shown = self._shown(photo, model, request)
        query = PATCH if knobs.query == PATCH else knobs.asked(shown.view)
        return [query, knobs.patch, *self._pictures(shown, knobs)]

    def chosen(self, request: gr.Request, event: gr.EventData, photo: str, model: str, *values: Any) -> list[Any]:
        """A head or a layer was chosen on a wall."""
        knobs = replace(self._read(values), method="attention")
        if event.kind == "block":
            knobs = replace(knobs, block=int(event.value))
        else:
            knobs = replace(knobs, head=int(event.value) if event.value.isdigit() else event.value)
        return [knobs.block, knobs.head, knobs.method, *self._pictures(self._shown(photo, model, request), knobs)]

    def chosen_example(self, event: gr.EventData) -> str:
        """An example was chosen."""
        return str(self.examples[int(event.value) % len(self.examples)].path)

    def left(self, request: gr.Request) -> None:
        """The visitor closed the page."""
        self.sessions.close(request.session_hash or "")

    def _pictures(self, shown: Shown, knobs: Knobs) -> list[Any]:
        return [draw.stage(shown, knobs), draw.head_wall(shown, knobs), draw.layer_wall(shown, knobs)]

    def _shown(self, photo: str | None, model: str, request: gr.Request) -> Shown:
        visitor = request.session_hash or ""
        try:
            return self.sessions.open(visitor, photo, model)
        except ImageError:  # `open` has said so, and the page still shows the photograph before it
            return self.sessions.open(visitor, None, model)

    def _read(self, values: tuple[Any, ...]) -> Knobs:
        *others, start = values
        knobs = Knobs(*others)
        return replace(knobs, patch=(knobs.patch[0], knobs.patch[1]), start=start - 1)  # a person counts from 1

    def _api(self) -> None:
        """Two named endpoints for programs; everything else that the page calls is its own business."""
        default = self.sessions.models[0]

        def predict(photo: FileData, model: str = default, k: int = 5) -> list[dict[str, Any]]:
            """The k most probable classes of a photograph: [{"label": "church", "probability": 0.93}, ...]."""
            view = self._api_view(photo, model)
            return [{"label": label, "probability": p} for label, p in view.predictions(k)]

        def explain(
            photo: FileData, model: str = default, method: str = "rollout", layer: int = -1, head: str = "mean"
        ) -> dict[str, Any]:
            """Raw scores of the patches as seen from CLS, rows from the top; layers and heads count from 1."""
            view = self._api_view(photo, model)
            block = layer - 1 if layer > 0 else -1
            one: Any = int(head) - 1 if head.isdigit() else head
            knobs = Knobs(method=method, block=block, head=one, fuse=one if one in FUSIONS else "mean")
            heatmap = knobs.heatmap(view)
            return {
                "title": heatmap.title,
                "values": heatmap.values.tolist(),
                "prefix_mass": dict(heatmap.prefix_mass),
                "frame": heatmap.geometry.frame,
            }

        for endpoint in (predict, explain):
            gr.events.api(_said(endpoint), api_name=endpoint.__name__, **MODEL)

    def _api_view(self, photo: Any, model: str) -> View:
        path = photo["path"] if isinstance(photo, dict) else photo.path
        return self.sessions.explorer(model).open(path)


def inputs_of(knobs: Sequence[Any]) -> list[Any]:
    """The events by which a person turns these knobs."""
    return [knob.input for knob in knobs]


def _said(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """The endpoint with our refusals passed on in words; gradio shows other errors as "Error"."""

    @wraps(endpoint)
    def said(*args: Any, **options: Any) -> Any:
        try:
            return endpoint(*args, **options)
        except ValueError as error:
            raise gr.Error(str(error), print_exception=False) from error

    return said


def build(models: list[str] | None = None) -> gr.Blocks:
    """The page, ready to launch. Loads the first model and analyses the first example, so that it opens alive."""
    demo: gr.Blocks = Page(Sessions(models or bundled(), default=examples()[0].path)).demo
    return demo
