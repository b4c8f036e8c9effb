"""Choosing a model: the menu, the form for a model that is not in it, and what happens until it is there."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import count
from typing import Any

import gradio as gr

from vitviz.server import draw
from vitviz.server.menu import BROUGHT, EXAMPLES, byte_words
from vitviz.server.parts import ModelMenu
from vitviz.server.sessions import Sessions, Shown

TICK = 0.5  # seconds between two words about a model that is on its way
CLOSE = '<button type="button" class="close" aria-label="Close">✕</button>'
Updates = dict[Any, Any]

log = logging.getLogger(__name__)


class Chooser:
    """The components around the choice of a model, and the events that load one.

    Attributes:
        model: the source of the model that the visitor sees, kept on the server.
        notice: where it is said that a model could not be had.
    """

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.model = gr.State(sessions.menu.default)
        self.brought = gr.State(())  # sources that this visitor has brought; they stay in this visitor's menu
        self._numbers = count()
        self._latest: dict[str, int] = {}  # by visitor: the last choice, which is the one that counts

    def lay_out_menu(self) -> None:
        """The menu itself."""
        self.menu = ModelMenu(self._menu("", self.sessions.menu.default, ()), elem_id="model")

    def lay_out_form(self, problem: str = "") -> None:
        """What stands below the menu: the form for another model, and what went wrong, at first `problem` as HTML."""
        allowed = self.sessions.menu.settings
        self.name = self.load = self.upload = None
        if self.sessions.menu.open_ended:
            with gr.Row(elem_id="another"):
                if allowed.typed:
                    self.name = gr.Textbox(
                        label="Name of another model",
                        placeholder=EXAMPLES,
                        max_lines=1,
                        container=False,
                        elem_id="named",
                    )
                    self.load = gr.Button("Load", elem_id="load")
                if allowed.upload:
                    self.upload = gr.UploadButton(
                        "Upload a checkpoint",
                        file_types=[".safetensors"],
                        elem_id="upload",
                    )
                gr.HTML(CLOSE, elem_id="closing", apply_default_css=False)
        self.notice = gr.HTML(problem, elem_id="notice", apply_default_css=False)

    def wire(
        self,
        status: gr.HTML,
        photo: gr.Image,
        outputs: list[Any],
        opened: Callable[[Shown], Updates],
        options: dict[str, Any],
    ) -> None:
        """Connect the events.

        Args:
            status: where it is said that something goes on.
            photo: the visitor's photograph.
            outputs: what changes with the model.
            opened: from a photograph that was opened with the new model to what these show.
            options: of each event.
        """
        self._status, self._opened = status, opened
        asked = [photo, self.model, self.brought]
        changed = [self.model, self.brought, self.menu, self.notice, status, *outputs]
        self.changed = [*changed, photo]
        self.menu.choose(self.chosen, asked, changed, **options)
        if self.name is not None and self.load is not None:
            typed = [self.name.submit, self.load.click]
            gr.on(typed, self.typed, [self.name, *asked], changed, **options)
        if self.upload is not None:
            self.upload.upload(self.uploaded, [self.upload, *asked], changed, **options)

    def chosen(self, request: gr.Request, event: gr.EventData, *asked: Any) -> Iterator[Updates]:
        """A line of the menu was chosen."""
        yield from self.switch(request, str(event.source), *asked)

    def typed(self, request: gr.Request, text: str, *asked: Any) -> Iterator[Updates]:
        """A name was typed."""
        yield from self.switch(request, text, *asked)

    def uploaded(self, request: gr.Request, file: str, *asked: Any) -> Iterator[Updates]:
        """A checkpoint was uploaded."""
        try:
            source = self.sessions.uploaded(request.session_hash or "", file)
        except ValueError as error:
            yield self._refused(request, str(error), *asked[-2:])
            return
        yield from self.switch(request, source, *asked)

    def turned(self, request: gr.Request, model: str, brought: tuple[str, ...]) -> Updates:
        """The visitor goes on with a model that is open in another pane."""
        return {self.model: model, self.menu: self._menu(request.session_hash or "", model, brought)}

    def left(self, request: gr.Request) -> None:
        """The visitor closed the page."""
        self._latest.pop(request.session_hash or "", None)

    def switch(
        self, request: gr.Request, text: str, photo: str | None, model: str, brought: tuple[str, ...]
    ) -> Iterator[Updates]:
        """Load a model and open the photograph with it, saying how it goes; on failure everything stays as it was."""
        visitor = request.session_hash or ""
        mine = self._latest[visitor] = next(self._numbers)
        try:
            source = self.sessions.permit(visitor, text)
            loading = self.sessions.begin(visitor, source)
        except ValueError as error:
            yield self._refused(request, str(error), model, brought)
            return
        offer = self.sessions.offer(visitor, source)
        size = f" ({byte_words(offer.size)})" if offer.size else ""

        def overtaken() -> bool:
            return self._latest.get(visitor) != mine  # another one was chosen meanwhile

        for words in waiting(loading, f"Loading {offer.title}{size}", overtaken):
            yield {self._status: words}
        if overtaken():
            yield {self._status: draw.working()}
            return
        if failure := loading.exception():
            words = reason(failure).replace(source, offer.title)  # a visitor need not know where an upload lies
            yield self._refused(request, words, model, brought, offer.title)
            return
        yield {self._status: draw.working("Looking at your photograph")}
        try:
            shown = self.sessions.with_model(visitor, self.sessions.wanted(photo, source))
        except ValueError as error:
            yield self._refused(request, str(error), model, brought)
            return
        if all(source != one.source for _, offers in self.sessions.menu.groups for one in offers):
            brought = (*(one for one in brought if one != source), source)
        menu = self._menu(visitor, source, brought)
        yield {
            self.model: source,
            self.brought: brought,
            self.menu: menu,
            self.notice: "",
            **self._opened(shown),
        }

    def _refused(
        self, request: gr.Request, words: str, model: str, brought: tuple[str, ...], title: str = "This model"
    ) -> Updates:
        return {
            self.notice: draw.problem(words, f"{title} could not be opened."),
            self.menu: self._menu(request.session_hash or "", model, brought),
            self._status: draw.working(),
        }

    def _menu(self, visitor: str, chosen: str, brought: tuple[str, ...]) -> str:
        menu = self.sessions.menu
        groups = [*menu.groups, (BROUGHT, [self.sessions.offer(visitor, source) for source in brought])]
        return draw.menu(groups, chosen, menu.open_ended, next(self._numbers))


def waiting(coming: Future[Any], words: str, overtaken: Callable[[], bool]) -> Iterator[str]:
    """Until something has come, or nobody waits for it any more and others may have the place in the queue: what to say
    meanwhile, again and again, so that it is seen to go on.
    """
    began = time.monotonic()
    yield draw.working(words)
    while not wait([coming], TICK, FIRST_COMPLETED).done and not overtaken():
        yield draw.working(f"{words} · {time.monotonic() - began:.0f} s")


def reason(error: BaseException) -> str:
    """Why a model could not be loaded, in words. Our own errors have them; others are logged and named."""
    if isinstance(error, ValueError):
        return str(error)
    log.error("A model could not be loaded.", exc_info=error)
    words = (str(error).strip().splitlines() or ["no reason was given"])[0]
    return f"{type(error).__name__}: {words[:300]}"
