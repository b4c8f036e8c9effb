"""The page: layout and wiring. What is looked at is the explorer's, what is remembered is `sessions`'."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any

import gradio as gr

from vitviz.images.decoding import ImageError
from vitviz.resources import resource_folder
from vitviz.server import detail, draw
from vitviz.server.api import add_endpoints
from vitviz.server.blocks import CheckedBlocks
from vitviz.server.choosing import TICK, Chooser, Updates, reason
from vitviz.server.explore import ExplorerView, manifest
from vitviz.server.insight import Panel
from vitviz.server.larger import LargerModels
from vitviz.server.menu import Menu
from vitviz.server.newest import Newest
from vitviz.server.parts import OpenDropdown, PhotoInput, Wall
from vitviz.server.scheduler import Kind
from vitviz.server.sessions import Sessions, Shown, Wanted
from vitviz.server.settings import Settings, settings
from vitviz.server.uploads import upload_folder
from vitviz.view import View
from vitviz.web.scene import Scene

log = logging.getLogger(__name__)

HERE = Path(__file__).parent
EXAMPLES = resource_folder("examples")
# What runs a model waits here, and holds up nothing else; `Sessions` sees to it that one model runs at a time.
RUNS: dict[str, Any] = {"concurrency_id": "runs", "concurrency_limit": 8}
PANELS = {"Explain": "explain", "Heads": "heads", "Layers": "layers"}
SEEN_SIDE = 640  # pixels; what the model saw is shown no larger

HEADER = """
<header><h1>vitviz</h1>
<p>Drop a photograph, point at a patch, see where every head of a Vision Transformer looks.</p></header>
"""
THEME_BUTTON = '<button type="button" class="theme" aria-label="Switch between light and dark">◐</button>'


@dataclass(frozen=True)
class Example:
    """A photograph that comes with the page: its file, a word for its button, a sentence for its tooltip.

    Args:
        classes: what a model may call it and be right, in the words of any.
    """

    path: Path
    name: str
    label: str
    classes: tuple[str, ...] = ()

    def caveat(self, view: View) -> str:
        """What to say where the model has no class for what it shows, or names another one."""
        if not view.names_classes:
            return ""
        right = {one.casefold() for one in self.classes}
        if not right & {name for label in view.labels for name in synonyms(label)}:
            return "An example of what this model does not know: none of its classes fits, and it names the closest."
        if not right & synonyms(view.predictions(1)[0][0]):
            return f"An example of what this model gets wrong. {self.label}."
        return ""


def synonyms(label: str) -> set[str]:
    """The names in a label: ImageNet's have several, such as "tabby, tabby cat"."""
    return {name.strip().casefold() for name in label.split(",")}


def examples(folder: Path = EXAMPLES) -> list[Example]:
    """The photographs that come with the page, in order; `index.json` beside them says which."""
    index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    return [Example(folder / one["file"], one["name"], one["label"], tuple(one["classes"])) for one in index]


class Page:
    """The page's components, and what each event does.

    A photograph, a model or a detail that is new runs the model and gives the explorer a new manifest; all else happens
    in the browser. Nothing is state but the photograph's path, the model's name and the detail, so a visitor whose open
    photograph was forgotten loses nothing.
    """

    def __init__(self, sessions: Sessions) -> None:
        self.sessions, self.newest = sessions, Newest()
        self._workers = ThreadPoolExecutor(RUNS["concurrency_limit"], thread_name_prefix="open")
        self.examples = examples()
        problem = self._settle_default()
        self.first = sessions.open("", None, sessions.menu.default)
        larger = LargerModels(sessions.menu)
        upload_folder()  # before gradio asks where files go
        with CheckedBlocks(
            scheduler=sessions.scheduler,
            title="vitviz",
            fill_width=True,
            analytics_enabled=False,
            delete_cache=(3600, 86400),
        ) as demo:
            self.chooser = Chooser(sessions)
            self._header()
            self.chooser.lay_out_form(problem)
            self.status = gr.HTML(draw.working(), elem_id="status", apply_default_css=False)
            with gr.Tabs():
                with gr.Tab("Explore"), gr.Row(elem_id="explore"):
                    with gr.Column(elem_id="source", min_width=220):
                        self._source()
                    self.viewer = ExplorerView(
                        self._manifest(self.first),
                        find=self._scene,
                        larger=larger.models,
                        scheduler=sessions.scheduler,
                        elem_id="viewer",
                    )
                for title, name in PANELS.items():
                    with gr.Tab(title):
                        Panel(name, self._open, sessions.scheduler, elem_classes="panel")
                with gr.Tab("How to read this"):
                    gr.Markdown((HERE.parent / "web" / "help.md").read_text(encoding="utf-8"), elem_classes="help")
            self._wire(demo)
            add_endpoints(sessions)
        self.demo = demo

    def _settle_default(self) -> str:
        """What to say, as HTML, where the model that the operator asked for cannot be had."""
        menu = self.sessions.menu
        wanted = menu.offer(menu.default)
        failure = self.sessions.settle_default()
        if failure is None:
            return ""
        words = reason(failure).replace(wanted.source, wanted.title)
        log.warning("%s could not be opened, the page opens with %s: %s", wanted.title, menu.default, words)
        return draw.problem(
            words, f"{wanted.title} could not be opened, so the page opens with {menu.offer(menu.default).title}."
        )

    # What is on it

    def _header(self) -> None:
        with gr.Row(elem_id="top"):
            gr.HTML(HEADER, elem_id="title", apply_default_css=False)
            self.chooser.lay_out_menu()
            self.badge = gr.HTML(draw.badge(self.first.view), elem_id="badge", apply_default_css=False)
            script = (HERE / "page.js").read_text(encoding="utf-8")
            gr.HTML(THEME_BUTTON, js_on_load=script, elem_id="theme", apply_default_css=False)

    def _source(self) -> None:
        self.photo = PhotoInput(
            value=str(self.examples[0].path),
            originals=[example.path for example in self.examples],
            type="filepath",
            sources=["upload", "webcam", "clipboard"],
            label="Your photograph",
            buttons=[],
            height=190,
            elem_id="photo",
        )
        self.problem = gr.HTML("", elem_id="problem", apply_default_css=False)
        self.gallery = Wall(self._gallery(), elem_id="examples")
        self.detail = OpenDropdown(
            self._details(self.first), value=detail.OWN, label="Detail", filterable=False, elem_id="detail"
        )
        with gr.Accordion("What the model saw", open=False):
            self.seen = gr.HTML(self._seen(self.first), apply_default_css=False)

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

    # What the explorer shows

    def _manifest(self, shown: Shown, turn: int | None = None) -> str:
        return manifest(self._as_scene(shown), shown.name, turn)

    def _scene(self, name: str) -> Scene | None:
        """What the browser may ask about by this name. The first one is everybody's."""
        shown = self._open(name)
        return None if shown is None else self._as_scene(shown)

    def _open(self, name: str) -> Shown | None:
        return self.first if name == self.first.name else self.sessions.find(name)

    def _as_scene(self, shown: Shown) -> Scene:
        example = next((one for one in self.examples if str(one.path) == shown.path), None)
        image, caveat = (example.name, example.caveat(shown.view)) if example else (None, "")
        model = "" if self.sessions.is_upload(shown.wanted.model) else shown.wanted.model  # nobody else could open it
        return replace(Scene.of(shown.view, image=image, caveat=caveat), model=model, detail=shown.wanted.side)

    # What it does

    def _wire(self, demo: gr.Blocks) -> None:
        # gradio's own sign of waiting appears on the status alone; nothing else dims while it is being drawn.
        quiet: dict[str, Any] = {"show_progress_on": self.status, "api_visibility": "private"}
        runs: dict[str, Any] = {**quiet, **RUNS, "trigger_mode": "multiple"}
        latest: dict[str, Any] = {**quiet, **RUNS, "trigger_mode": "always_last"}
        opened = [self.viewer, self.badge, self.seen, self.detail, self.problem]
        changed = [*opened, self.chooser.notice, self.status]
        asked = [self.photo, self.chooser.model, self.detail]
        self.chooser.wire(self.status, self.photo, opened, self._opened, runs)
        self.photo.input(self.new_photo, asked, changed, **runs)  # not `change`: what we put there ourselves is open
        # In two steps: a generator that sometimes leaves the photograph out would hand back a broken one.
        chosen = self.gallery.choose(
            self.chosen_example, asked[1:], [self.photo, self.status], trigger_mode="multiple", **quiet
        )
        chosen.then(self.look, asked, changed, **runs)
        self.detail.input(self.new_detail, asked, changed, **latest)
        self.viewer.forgotten(self.again, asked, changed, **latest)
        linking = [self.photo, self.chooser.model, self.chooser.brought]
        self.viewer.open(self.linked, linking, self.chooser.changed, **runs)
        beside = [self.chooser.model, self.chooser.menu, self.badge, self.seen, self.detail]
        self.viewer.turned(self.turned, [self.chooser.brought], beside, **quiet)
        demo.unload(self.left)

    def new_photo(self, request: gr.Request, photo: str | None, model: str, fineness: str) -> Iterator[Updates]:
        """A photograph was given. One that was taken away stays on the page."""
        if photo is None:
            yield {self.problem: ""}
            return
        visitor = request.session_hash or ""
        self.newest.name(visitor, photo)
        yield {self.status: self._expected(visitor, model, fineness)}
        yield from self.look(request, photo, model, fineness)

    def chosen_example(self, request: gr.Request, event: gr.EventData, model: str, fineness: str) -> Updates:
        """An example was chosen."""
        visitor, path = request.session_hash or "", str(self.examples[int(event.value) % len(self.examples)].path)
        if not self.newest.name(visitor, path, float(event.turn)):
            return {self.photo: gr.skip()}
        return {self.photo: path, self.status: self._expected(visitor, model, fineness)}

    def look(self, request: gr.Request, photo: str | None, model: str, fineness: str) -> Iterator[Updates]:
        """Open the photograph that the visitor named last. What was overtaken meanwhile shows nothing."""
        visitor = request.session_hash or ""
        named = self.newest.get(visitor) or self.sessions.wanted(photo, model).path

        def change(visitor: str, wanted: Wanted) -> Shown:
            return self.sessions.with_photo(visitor, wanted, lambda: self.newest.get(visitor) or named)

        for updates in self._answer(change, visitor, named, model, fineness):
            yield updates if self.newest.get(visitor) in (None, named) else {self.status: draw.working()}

    def new_detail(self, request: gr.Request, *asked: Any) -> Iterator[Updates]:
        """Another size of input was chosen."""
        yield from self._run(self.sessions.with_side, request, *asked)

    def again(self, request: gr.Request, *asked: Any) -> Iterator[Updates]:
        """The visitor's photograph was forgotten, and the browser wants more of it."""
        yield from self._run(self.sessions.again, request, *asked)

    def turned(self, request: gr.Request, event: gr.EventData, brought: tuple[str, ...]) -> Updates:
        """The visitor went to the other of two panes: what stands beside them is of this one."""
        shown = self._open(str(event.id))
        if shown is None:  # it was put away; the pane shows what it has, and asks for more when it needs it
            return {self.badge: gr.skip()}
        other = None if event.beside is None else self._open(str(event.beside))
        self.sessions.turn_to(request.session_hash or "", shown, other)
        updates = {**self._opened(shown), **self.chooser.turned(request, shown.wanted.model, brought)}
        return {
            part: update for part, update in updates.items() if part not in (self.viewer, self.problem, self.status)
        }

    def linked(
        self, request: gr.Request, event: gr.EventData, photo: str | None, model: str, brought: tuple[str, ...]
    ) -> Iterator[Updates]:
        """A link names an example, a model, how fine. What cannot be had is said; the explorer is answered last."""
        named = next((str(example.path) for example in self.examples if example.name == event.image), None)
        said = "" if event.image is None or named else self._no_example(event.image)
        updates: list[Iterator[Updates]] = []
        if event.model is not None and event.model != model:
            updates.append(self.chooser.switch(request, str(event.model), named or photo, model, brought))
        if named:
            self.newest.name(request.session_hash or "", named)
            updates.append(self._run(self.sessions.with_photo, request, named, model, detail.OWN))
        updates.append(self._cut(request, named or photo, model, event.detail))
        for update in chain.from_iterable(updates):
            said += update.pop(self.chooser.notice, "")
            update.pop(self.viewer, None)
            yield update
        shown = self.sessions.held(request.session_hash or "") or self.first
        answer = self._manifest(shown, event.turn if isinstance(event.turn, int) else 0)
        yield {self.viewer: answer, self.chooser.notice: said, **({self.photo: named} if named else {})}

    def _cut(self, request: gr.Request, photo: str | None, model: str, side: Any) -> Iterator[Updates]:
        """The photograph as finely cut as a link says, if it is not: `side` in pixels, `None` for the model's own."""
        last = self.sessions.last(request.session_hash or "")
        if side != (last.side if last else None):
            fineness = detail.OWN if side is None else str(side)
            yield from self._run(self.sessions.with_side, request, photo, model, fineness)

    def _no_example(self, name: Any) -> str:
        known = ", ".join(example.name for example in self.examples)
        words = f"Expected one of {known}; got {str(name)!r:.60}. Photographs that were uploaded are in no link."
        return draw.problem(words, "This link names a photograph that is not here.")

    def _run(
        self, change: Callable[[str, Wanted], Shown], request: gr.Request, photo: str | None, model: str, fineness: str
    ) -> Iterator[Updates]:
        """Run the model, and say so. What cannot be opened is said, and the page stays as it was."""
        visitor = request.session_hash or ""
        yield {self.status: self._expected(visitor, model, fineness)}
        yield from self._answer(change, visitor, photo, model, fineness)

    def _answer(self, change: Callable[[str, Wanted], Shown], visitor: str, *asked: Any) -> Iterator[Updates]:
        """Say how many photographs come first while there are any, then what has become of the change."""
        result = self._workers.submit(self._changed, change, visitor, *asked)
        while not wait([result], TICK).done:
            before = self.sessions.scheduler.ahead(Kind.PHOTO) - 1
            if before > 0:
                seconds = self.sessions.scheduler.seconds(Kind.PHOTO)
                words = f"Number {before + 1} in the queue · {detail.about(seconds)}"
                yield {self.status: draw.working(words)}
        yield result.result()

    def _changed(
        self, change: Callable[[str, Wanted], Shown], visitor: str, photo: str | None, model: str, fineness: str
    ) -> Updates:
        try:
            shown = change(visitor, self.sessions.wanted(photo, model, side_of(fineness)))
        except ImageError as error:
            return {self.problem: draw.problem(str(error)), self.status: draw.working()}
        except ValueError as error:
            words = draw.problem(str(error), "That did not work.")
            before = fineness_of(self.sessions.last(visitor))
            return {self.chooser.notice: words, self.detail: before, self.status: draw.working()}
        return {self.chooser.notice: "", **self._opened(shown)}

    def _opened(self, shown: Shown) -> Updates:
        """What changes with a photograph that was opened."""
        return {
            self.viewer: self._manifest(shown),
            self.badge: draw.badge(shown.view),
            self.seen: self._seen(shown),
            self.detail: gr.update(choices=self._details(shown), value=fineness_of(shown.wanted)),
            self.problem: "",
            self.status: draw.working(),
        }

    def _details(self, shown: Shown) -> list[tuple[str, str]]:
        """The sizes to choose from, in words, and their names; what the visitor has is among them."""
        view, pace = shown.view, self.sessions.pace(shown.wanted.model)
        own, limit = shown.own or view.preprocess, self.sessions.menu.settings.side
        found = detail.choices(view.model.config, own, view.photo.size, pace, limit)
        return [(choice.words, choice.value) for choice in found]

    def _expected(self, visitor: str, model: str, fineness: str) -> str:
        """What to say while a photograph is being opened: how much work it is, and how long it may take."""
        held = self.sessions.held(visitor)
        try:
            loading = self.sessions.begin(visitor, model)
            if not loading.done():
                return draw.working("Loading the model")
            explorer, pace = loading.result(), self.sessions.pace(model)
        except ValueError:  # said when the photograph is opened
            return draw.working()
        size = (held or self.first).view.photo.size
        limit = self.sessions.menu.settings.side
        for choice in detail.choices(explorer.model.config, explorer.preprocess, size, pace, limit):
            if choice.value == fineness and choice.seconds is not None:
                words = f"Looking at {choice.patches:,} patches · {detail.about(choice.seconds)}"
                return draw.working(words, choice.seconds)
        return draw.working("Looking at your photograph")

    def left(self, request: gr.Request) -> None:
        """The visitor closed the page."""
        self.sessions.close(request.session_hash or "")
        self.newest.left(request.session_hash or "")
        self.chooser.left(request)


def side_of(fineness: str) -> int | None:
    """The size of input that a choice of detail names, as `Explorer.open` takes it."""
    if fineness == detail.OWN:
        return None
    if not (fineness.isdecimal() and len(fineness) < 7):
        raise ValueError(f"Expected a size in pixels, or {detail.OWN!r}; got {fineness!r:.40}.")
    return int(fineness)


def fineness_of(wanted: Wanted | None) -> str:
    """The choice of detail that names a size of input."""
    return detail.OWN if wanted is None or wanted.side is None else str(wanted.side)


def build(allowed: Settings | None = None) -> CheckedBlocks:
    """The page, ready to launch. Loads the first model and analyses the first example, so that it opens alive.

    Args:
        allowed: what visitors may do; by default what the environment says, see `vitviz.server.settings`.
    """
    menu = Menu(allowed or settings())
    demo: CheckedBlocks = Page(Sessions(menu, default=examples()[0].path)).demo
    return demo
