"""What the server remembers of each visitor: the photograph that is open, and what was uploaded."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from vitviz.explorer import Explorer
from vitviz.images.preprocess import Preprocess
from vitviz.server.detail import Pace, faster, most_pixels
from vitviz.server.menu import Menu, MenuError, Offer
from vitviz.server.models import Models
from vitviz.server.scheduler import Client, Kind, Scheduler, current
from vitviz.view import View

# Memory for open photographs, in bytes. ViT-S at 224 px keeps 10 MB of queries and keys, a phone's photograph 36 MB.
OPEN_BYTES = 2**30
REMEMBERED = 10_000  # visitors whose last choice is kept


@dataclass(frozen=True)
class Wanted:
    """A photograph's path, a model's name, and the side of the input in pixels (`None`: the model's own)."""

    path: str
    model: str
    side: int | None = None


@dataclass(frozen=True, eq=False)
class Shown:
    """An open photograph.

    `wanted` is what it was opened from, `own` the model's own preprocessing. `name` is how the visitor's browser asks
    for its files: a secret, because who knows it sees the photograph.
    """

    view: View
    wanted: Wanted = Wanted("", "")
    own: Preprocess | None = None
    name: str = field(default_factory=lambda: secrets.token_urlsafe(16))

    @property
    def path(self) -> str:
        """The photograph's file."""
        return self.wanted.path

    @property
    def size(self) -> int:
        """Bytes that stay in memory while the photograph is open: the picture, the model's pixels, and the trace."""
        view, (height, width) = self.view, self.view.size
        return 3 * view.photo.width * view.photo.height + 12 * height * width + view.trace.nbytes


class Sessions:
    """Open photographs by visitor, the least recently used forgotten first, and the models that they were opened with.

    Forgetting loses nothing: every request names its photograph, model and size, and the photograph is opened again.
    Models open one photograph at a time, and answer one question about an open one beside it, whoever asks.

    Args:
        menu: the models on offer, and what else visitors may name.
        default: the photograph of a visitor who has none.
        limit: memory for open photographs, in bytes; the newest one is kept whatever its size.
    """

    def __init__(self, menu: Menu, default: Path, limit: int = OPEN_BYTES) -> None:
        self.menu, self.path = menu, str(default)
        self._limit = limit
        self._open: OrderedDict[str, Shown] = OrderedDict()
        self._beside: OrderedDict[str, Shown] = OrderedDict()  # what the other one of two panes shows
        self._last: dict[str, Wanted] = {}  # by visitor; it stays when the photograph is forgotten
        self._uploads: dict[str, dict[str, Offer]] = {}
        self._paces: dict[str, Pace] = {}
        self._lock = threading.Lock()
        self._clients: dict[str, Client] = {}
        self.scheduler = Scheduler()
        self.models = self._models()

    # Models

    def _models(self) -> Models:
        menu = self.menu
        return Models(menu.load, menu.settings.memory, menu.default, lambda name: menu.offer(name).size, self._drop)

    def settle_default(self) -> BaseException | None:
        """Load the model that the page opens with; where it cannot be had, go back to the bundled one and say why."""
        failure = self.begin("", self.menu.default).exception()
        if failure is not None and self.menu.default != self.menu.bundled:
            self.menu.default = self.menu.bundled
            self.models = self._models()  # it keeps the default, and there is nothing in it yet
            return failure
        return None

    def permit(self, visitor: str, text: str) -> str:
        """The model that a visitor named, if this visitor may use it.

        Raises:
            MenuError: if not; see `Menu.permit`.
        """
        return text if text in self._uploads.get(visitor, {}) else self.menu.permit(text)

    def offer(self, visitor: str, source: str) -> Offer:
        """What is known of a permitted model before it is loaded."""
        return self._uploads.get(visitor, {}).get(source) or self.menu.offer(source)

    def uploaded(self, visitor: str, path: str) -> str:
        """Let a visitor, and nobody else, use a checkpoint that this visitor has uploaded.

        Args:
            path: where the server has put it. It must not come from the visitor.

        Raises:
            MenuError: if the operator does not allow it.
        """
        if not self.menu.settings.upload:
            raise MenuError("This page takes no checkpoints from visitors. Run vitviz on your own machine to open one.")
        file = Path(path)
        with self._lock:
            self._uploads.setdefault(visitor, {})[path] = Offer(path, file.name, file.stat().st_size)
        return path

    def is_upload(self, source: str) -> bool:
        """Whether a model is a visitor's own checkpoint."""
        with self._lock:
            return any(source in mine for mine in self._uploads.values())

    def begin(self, visitor: str, source: str) -> Future[Explorer]:
        """Load a model, or wait for who is loading it already.

        Raises:
            MenuError: if this visitor may not use it.
        """
        return self.models.begin(self.permit(visitor, source))

    # Photographs

    def held(self, visitor: str) -> Shown | None:
        """What a visitor has open."""
        with self._lock:
            if visitor in self._open:
                self._open.move_to_end(visitor)
            return self._open.get(visitor)

    def find(self, name: str) -> Shown | None:
        """The open photograph of this name, whoever's it is. Names come from visitors, so they may be anything."""
        given = name.encode(errors="replace")
        with self._lock:
            there = chain(self._open.values(), self._beside.values())
            found = (one for one in there if secrets.compare_digest(one.name.encode(), given))
            return next(found, None)

    def open(self, visitor: str, photo: str | Path | None, model: str, side: int | None = None) -> Shown:
        """The visitor's photograph as the model saw it; the model runs only if one of the three changed.

        A visitor who took the photograph away (`None`) keeps the last one, or gets the default.

        Raises:
            MenuError: if this visitor may not use the model, or the input is larger than allowed.
            ImageError, ExplorerError: see `Explorer.open`.
        """
        return self._settle(visitor, lambda last: Wanted(str(photo or (last or self).path), model, side))

    # One event changes one thing. The others are what the visitor had last, whatever it was when the event was sent;
    # what came with the event counts only where nothing was open.

    def turn_to(self, visitor: str, shown: Shown, beside: Shown | None) -> None:
        """The visitor goes on with one of two panes: what is chosen next is for this one.

        Args:
            visitor: who.
            shown: what this pane shows.
            beside: what the other pane shows, which stays open too; `None` where there is no other pane.
        """
        with self._lock:
            for kept, one in ((self._open, shown), (self._beside, beside)):
                kept.pop(visitor, None)
                if one is not None:
                    kept[visitor] = one
            self._last[visitor] = shown.wanted
            self._make_room()

    def again(self, visitor: str, wanted: Wanted) -> Shown:
        """What the visitor had open last, opened again if it was forgotten."""
        return self._settle(visitor, lambda last: last or wanted)

    def with_photo(self, visitor: str, wanted: Wanted, newest: Callable[[], str] | None = None) -> Shown:
        """Another photograph, with the visitor's model and size; see `open`.

        Args:
            visitor: who.
            wanted: what came with the event.
            newest: the photograph that counts when the model is free; by default the one that is wanted.
        """

        def choose(last: Wanted | None) -> Wanted:
            return replace(last or wanted, path=newest() if newest else wanted.path)

        return self._settle(visitor, choose)

    def with_side(self, visitor: str, wanted: Wanted) -> Shown:
        """The visitor's photograph in another size; see `open`."""
        return self._settle(visitor, lambda last: replace(last, side=wanted.side) if last else wanted)

    def with_model(self, visitor: str, wanted: Wanted) -> Shown:
        """The visitor's photograph with another model, in that model's own size; see `open`."""
        return self._settle(visitor, lambda last: Wanted((last or wanted).path, wanted.model, None))

    def wanted(self, photo: str | None, model: str, side: int | None = None) -> Wanted:
        """What came with an event; without a photograph, the default."""
        return Wanted(photo or self.path, model, side)

    def last(self, visitor: str) -> Wanted | None:
        """What a visitor opened last."""
        with self._lock:
            return self._last.get(visitor)

    def _settle(self, visitor: str, choose: Callable[[Wanted | None], Wanted]) -> Shown:
        """Open what `choose` makes of what the visitor opened last."""
        while True:
            model = choose(self.last(visitor)).model
            explorer = self.begin(visitor, model).result()  # may take long: nobody is held up
            with self.client(visitor), self.scheduler.run(Kind.PHOTO):
                held, wanted = self.held(visitor), choose(self.last(visitor))
                if wanted.model == model:  # else another one was opened meanwhile
                    return held if held and held.wanted == wanted else self._run(visitor, explorer, wanted)

    def _run(self, visitor: str, explorer: Explorer, wanted: Wanted) -> Shown:
        most = most_pixels(explorer.model.config, self.menu.settings.side)
        if wanted.side is not None and wanted.side > most:
            raise MenuError(f"Expected an input of at most {most} pixels for this model, got {wanted.side}.")
        shown = Shown(explorer.open(wanted.path, size=wanted.side), wanted, explorer.preprocess)
        self._paces[wanted.model] = faster(shown.view, self._paces.get(wanted.model))
        with self._lock:
            self._last[visitor] = wanted
            if self.models.holds(explorer):  # or this would keep a model alive that has just gone
                self._open[visitor] = shown
                self._open.move_to_end(visitor)
            self._make_room()
        return shown

    def _make_room(self) -> None:
        """Forget what other panes show, then photographs, until the rest fits; never what was opened last."""
        while self._beside or len(self._open) > 1:
            if sum(one.size for one in {*self._open.values(), *self._beside.values()}) <= self._limit:
                return
            (self._beside or self._open).popitem(last=False)

    def look(self, photo: str, model: str) -> View:
        """A photograph as a model sees it, for a program that asks once; nothing is remembered."""
        explorer = self.begin("", model).result()
        with self.scheduler.run(Kind.PHOTO):
            return explorer.open(photo)

    @contextmanager
    def client(self, visitor: str) -> Iterator[None]:
        """Compute what follows for a visitor: it is stopped when the visitor leaves."""
        with self._lock:
            token = current.set(self._clients.setdefault(visitor, Client(visitor)))
        try:
            yield
        finally:
            current.reset(token)

    def pace(self, model: str) -> Pace | None:
        """How fast a model has run here."""
        return self._paces.get(model)

    def close(self, visitor: str) -> None:
        """Forget the photographs and checkpoints of a visitor who left, or seems to have.

        A page whose connection broke goes on when it is back, and still shows what was chosen: that is remembered.
        """
        with self._lock:
            if visitor in self._clients:
                self._clients.pop(visitor).gone.set()
            self._open.pop(visitor, None)
            self._beside.pop(visitor, None)
            mine = self._uploads.pop(visitor, {})
            if visitor in self._last and self._last[visitor].model in mine:
                del self._last[visitor]
            while len(self._last) > REMEMBERED:
                del self._last[next(iter(self._last))]  # the oldest

    def _drop(self, model: str, explorer: Explorer) -> None:
        """Forget the photographs that were opened with a model that has gone; they would keep it alive."""
        self._paces.pop(model, None)
        with self._lock:
            for kept in (self._open, self._beside):
                for visitor in [name for name, shown in kept.items() if shown.view.model is explorer.model]:
                    del kept[visitor]
