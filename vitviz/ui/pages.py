"""The page: layout and wiring. What is drawn comes from `draw`, what is remembered from `sessions`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from vitviz.image import ImageError
from vitviz.ui import detail, draw
from vitviz.ui.api import add_endpoints
from vitviz.ui.choosing import Chooser, Updates
from vitviz.ui.draw import FUSIONS, PATCH, Knobs
from vitviz.ui.menu import Menu
from vitviz.ui.parts import OpenDropdown, OpenRadio, PhotoInput, Stage, Wall
from vitviz.ui.sessions import Sessions, Shown, Wanted
from vitviz.ui.settings import Settings, settings

HERE = Path(__file__).parent
EXAMPLES = Path(__file__).parents[2] / "examples"
COLOUR_MAPS = ("viridis", "magma", "inferno", "plasma", "cividis", "turbo", "gray")
# The knobs are answered in order, one at a time, from what is open. What runs a model waits elsewhere, and holds up no
# other visitor's knobs; `Sessions` sees to it that one model runs at a time.
KNOBS: dict[str, Any] = {"concurrency_id": "knobs", "concurrency_limit": 1}
RUNS: dict[str, Any] = {"concurrency_id": "runs", "concurrency_limit": 8}
SEEN_SIDE = 640  # pixels; what the model saw is shown no larger
SLOW_TOKENS = 1_500  # from here on rollout takes seconds

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

    A photograph, a model or a detail that is new runs the model, and then everything is drawn; a knob only draws, from
    what the visitor has open. Nothing else is state than the photograph's path, the model's name, the detail and the
    knobs, so a visitor whose open photograph was forgotten loses nothing.
    """

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.examples = examples()
        self.first = sessions.open("", None, sessions.menu.default)
        with gr.Blocks(title="vitviz", fill_width=True, analytics_enabled=False, delete_cache=(3600, 86400)) as demo:
            self.chooser = Chooser(sessions)
            self._header()
            self.chooser.lay_out_form()
            self.status = gr.HTML(draw.working(), elem_id="status", apply_default_css=False)
            with gr.Tabs():
                with gr.Tab("Explore"):
                    self._explore()
                with gr.Tab("How to read this"):
                    gr.Markdown((HERE / "help.md").read_text(encoding="utf-8"), elem_classes="help")
            self._wire(demo)
            add_endpoints(sessions)
        self.demo = demo

    # What is on it

    def _header(self) -> None:
        with gr.Row(elem_id="top"):
            gr.HTML(HEADER, elem_id="title", apply_default_css=False)
            self.chooser.lay_out_menu()
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
        self.query = OpenRadio(self._queries(names), value=names[0], label="From", elem_id="query")
        self.detail = OpenDropdown(
            self._details(self.first), value=detail.OWN, label="Detail", filterable=False, elem_id="detail"
        )
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
        picture.thumbnail((SEEN_SIDE, SEEN_SIDE))
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
        # gradio's own sign of waiting appears on the status alone; nothing else dims while it is being drawn.
        quiet: dict[str, Any] = {"show_progress_on": self.status, "api_visibility": "private"}
        newest: dict[str, Any] = {**quiet, **KNOBS, "trigger_mode": "always_last"}
        # A choice carries what was chosen: each is answered, in order. ("always_last" would repeat the first's data.)
        choice: dict[str, Any] = {**quiet, **KNOBS, "trigger_mode": "multiple"}
        self.source = [self.photo, self.chooser.model, self.detail]
        asked = [*self.source, *self.knobs]
        pictures = [self.stage, self.heads, self.layers]
        opened = [self.predictions, self.badge, self.seen, self.query, self.start, self.detail, self.problem]
        runs = {**quiet, **RUNS, "trigger_mode": "multiple"}
        switched = self.chooser.wire(self.status, self.photo, self.query, opened, self._opened, runs)
        changed = [*opened, self.chooser.notice, self.status]
        latest: dict[str, Any] = {**quiet, **RUNS, "trigger_mode": "always_last"}
        new = self.photo.change(self.new_photo, [*self.source, self.query], changed, **latest)
        finer = self.detail.input(self.new_detail, [*self.source, self.query], changed, **latest)
        for run in (*switched, new, finer):  # with the knobs as they are then
            run.then(self.draw_all, asked, pictures, **quiet, **KNOBS)
        # `input` is what a person does. Our own choices answer with the pictures, so that one click is one round trip.
        stage_only = (self.alpha, self.grid, self.fuse, self.discard, self.residual, self.start)
        both = (self.method, self.query, self.cmap, self.smooth, self.shared)
        gr.on(inputs_of(stage_only), self.draw_stage, asked, [self.stage], **newest)
        gr.on(inputs_of(both), self.draw_all, asked, pictures, **newest)
        self.stage.pick(self.picked, asked, [self.query, self.patch, *pictures], **choice)
        for wall in (self.heads, self.layers):
            wall.choose(self.chosen, asked, [self.block, self.head, self.method, *pictures], **choice)
        self.gallery.choose(self.chosen_example, None, [self.photo], **choice)
        demo.unload(self.left)

    def new_photo(self, request: gr.Request, photo: str | None, *others: str) -> Iterator[Updates]:
        """A photograph was given. One that was taken away stays on the page."""
        if photo is None:
            yield {self.problem: ""}
        else:
            yield from self._run(self.sessions.with_photo, request, photo, *others)

    def new_detail(self, request: gr.Request, *asked: Any) -> Iterator[Updates]:
        """Another size of input was chosen."""
        yield from self._run(self.sessions.with_side, request, *asked)

    def _run(
        self,
        change: Callable[[str, Wanted], Shown],
        request: gr.Request,
        photo: str | None,
        model: str,
        fineness: str,
        query: str,
    ) -> Iterator[Updates]:
        """Run the model, and say so. What cannot be opened is said, and the page stays as it was."""
        visitor = request.session_hash or ""
        try:
            yield {self.status: self._expected(visitor, model, fineness)}
            shown = change(visitor, self.sessions.wanted(photo, model, side_of(fineness)))
        except ImageError as error:
            yield {self.problem: draw.problem(str(error)), self.status: draw.working()}
            return
        except ValueError as error:
            held = self.sessions.held(visitor)
            before = fineness_of(held.wanted if held else None)
            words = draw.problem(f"{error} Choose less detail.", "That is too fine a look.")
            yield {self.chooser.notice: words, self.detail: before, self.status: draw.working()}
            return
        yield {self.chooser.notice: "", **self._opened(shown, query)}

    def _opened(self, shown: Shown, query: str) -> Updates:
        """What changes with a photograph that was opened, beside the pictures. `query` is the one that was chosen."""
        view = shown.view
        names = draw.queries(view)
        return {
            self.predictions: draw.predictions(view),
            self.badge: draw.badge(view),
            self.seen: self._seen(shown),
            self.query: gr.update(choices=self._queries(names), value=query if query in (*names, PATCH) else names[0]),
            self.start: gr.update(maximum=view.trace.depth),
            self.detail: gr.update(choices=self._details(shown), value=fineness_of(shown.wanted)),
            self.problem: "",
            self.status: self._resting(shown),
        }

    def _details(self, shown: Shown) -> list[tuple[str, str]]:
        """The sizes to choose from, in words, and their names; what the visitor has is among them."""
        view, pace = shown.view, self.sessions.pace(shown.wanted.model)
        own, limit = shown.own or view.preprocess, self.sessions.menu.settings.side
        found = detail.choices(view.model.config, own, view.photo.size, pace, limit)
        return [(choice.words, choice.value) for choice in found]

    def _expected(self, visitor: str, model: str, fineness: str) -> str:
        """What to say while a photograph is being opened: how much work it is, and how long it may take."""
        loading, held = self.sessions.begin(visitor, model), self.sessions.held(visitor)
        if not loading.done():
            return draw.working("Loading the model")
        explorer, pace = loading.result(), self.sessions.pace(model)
        size = (held or self.first).view.photo.size
        limit = self.sessions.menu.settings.side
        for choice in detail.choices(explorer.model.config, explorer.preprocess, size, pace, limit):
            if choice.value == fineness and choice.seconds is not None:
                words = f"Looking at {choice.patches:,} patches · {detail.about(choice.seconds)}"
                return draw.working(words, choice.seconds)
        return draw.working("Looking at your photograph")

    def _resting(self, shown: Shown) -> str:
        """What the status will say when a knob takes long."""
        tokens, seconds = shown.view.trace.tokens.shape[1], shown.view.seconds
        if tokens < SLOW_TOKENS:
            return draw.working()
        words = f"Working · rollout and “All patches” compare {tokens:,} tokens"
        return draw.working(f"{words}: {detail.about(2 * seconds)}")

    def draw_all(self, request: gr.Request, *values: Any) -> list[Any]:
        """The large picture and both walls."""
        return self._pictures(*self._asked(request, values))

    def draw_stage(self, request: gr.Request, *values: Any) -> str:
        """The large picture alone."""
        return draw.stage(*self._asked(request, values))

    def picked(self, request: gr.Request, event: gr.EventData, *values: Any) -> list[Any]:
        """A patch was chosen on the picture; (-1, -1) stands for the class token."""
        patch = (int(event.row), int(event.column))
        shown, knobs = self._asked(request, values)
        knobs = replace(knobs, query="cls") if patch[0] < 0 else replace(knobs, query=PATCH, patch=patch)
        query = PATCH if knobs.query == PATCH else knobs.asked(shown.view)
        return [query, knobs.patch, *self._pictures(shown, knobs)]

    def chosen(self, request: gr.Request, event: gr.EventData, *values: Any) -> list[Any]:
        """A head or a layer was chosen on a wall."""
        shown, knobs = self._asked(request, values)
        knobs = replace(knobs, method="attention")
        if event.kind == "block":
            knobs = replace(knobs, block=int(event.value))
        else:
            knobs = replace(knobs, head=int(event.value) if event.value.isdigit() else event.value)
        return [knobs.block, knobs.head, knobs.method, *self._pictures(shown, knobs)]

    def chosen_example(self, event: gr.EventData) -> str:
        """An example was chosen."""
        return str(self.examples[int(event.value) % len(self.examples)].path)

    def left(self, request: gr.Request) -> None:
        """The visitor closed the page."""
        self.sessions.close(request.session_hash or "")
        self.chooser.left(request)

    def _pictures(self, shown: Shown, knobs: Knobs) -> list[Any]:
        return [draw.stage(shown, knobs), draw.head_wall(shown, knobs), draw.layer_wall(shown, knobs)]

    def _asked(self, request: gr.Request, values: tuple[Any, ...]) -> tuple[Shown, Knobs]:
        """What the visitor has open, and the knobs. It is opened again if it was forgotten."""
        visitor = request.session_hash or ""
        photo, model, fineness, *others, start = values
        knobs = Knobs(*others)
        knobs = replace(knobs, patch=(knobs.patch[0], knobs.patch[1]), start=start - 1)  # a person counts from 1
        try:
            return self.sessions.again(visitor, self.sessions.wanted(photo, model, side_of(fineness))), knobs
        except ImageError:  # `new_photo` has said so
            return self.sessions.again(visitor, self.sessions.wanted(None, model, side_of(fineness))), knobs


def inputs_of(knobs: Sequence[Any]) -> list[Any]:
    """The events by which a person turns these knobs."""
    return [knob.input for knob in knobs]


def side_of(fineness: str) -> int | None:
    """The size of input that a choice of detail names, as `Explorer.open` takes it."""
    if fineness == detail.OWN:
        return None
    if not fineness.isdecimal():
        raise ValueError(f"Expected a size in pixels, or {detail.OWN!r}; got {fineness!r:.40}.")
    return int(fineness)


def fineness_of(wanted: Wanted | None) -> str:
    """The choice of detail that names a size of input."""
    return detail.OWN if wanted is None or wanted.side is None else str(wanted.side)


def build(allowed: Settings | None = None) -> gr.Blocks:
    """The page, ready to launch. Loads the first model and analyses the first example, so that it opens alive.

    Args:
        allowed: what visitors may do; by default what the environment says, see `vitviz.ui.settings`.
    """
    menu = Menu(allowed or settings())
    demo: gr.Blocks = Page(Sessions(menu, default=examples()[0].path)).demo
    return demo
