"""Loaded models within a bound of memory: the least recently used goes when another needs its room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain

from vitviz.explorer import Explorer
from vitviz.model.devices import best_device
from vitviz.model.vit import ViT
from vitviz.server.menu import byte_words

LOADING_AT_ONCE = 4


class TooLarge(ValueError):
    """A model that does not fit into the memory for models; the text says how much there is."""


def bytes_of(model: ViT) -> int:
    """Memory of a model's parameters and buffers, in bytes."""
    return sum(tensor.nbytes for tensor in chain(model.parameters(), model.buffers()))


class Models:
    """Models by name. Each is loaded once, by threads of its own: whoever waits for one model holds up no other.

    Who holds an explorer keeps it: a model that goes while a request uses it lives until that request is answered.

    Args:
        load: from a model's name to the model; called without the lock.
        limit: memory for models, in bytes.
        kept: the model that never goes.
        size: what a model is expected to take, in bytes, if that is known (else 0), so that room can be made before
            it is loaded.
        gone: told of every explorer that went, so that others can drop it too.
    """

    def __init__(
        self,
        load: Callable[[str], ViT],
        limit: int,
        kept: str,
        size: Callable[[str], int] = lambda _: 0,
        gone: Callable[[str, Explorer], None] = lambda *_: None,
    ) -> None:
        self._load, self._limit, self._kept, self._size, self._gone = load, limit, kept, size, gone
        self._held: OrderedDict[str, tuple[Explorer, int]] = OrderedDict()
        self._coming: dict[str, Future[Explorer]] = {}
        self._lock = threading.Lock()
        self._workers = ThreadPoolExecutor(LOADING_AT_ONCE, thread_name_prefix="load")

    def get(self, name: str) -> Explorer:
        """The explorer of a model; waits while it is loaded, and raises what `load` raised."""
        return self.begin(name).result()

    def begin(self, name: str) -> Future[Explorer]:
        """The same, to be waited for. Requests for a model that is being loaded wait for the same loading."""
        with self._lock:
            if name in self._held:
                self._held.move_to_end(name)
                there: Future[Explorer] = Future()
                there.set_result(self._held[name][0])
                return there
            if name not in self._coming:
                self._coming[name] = self._workers.submit(self._fetch, name)
            return self._coming[name]

    def holds(self, explorer: Explorer) -> bool:
        """Whether this explorer is still among them."""
        with self._lock:
            return any(held is explorer for held, _ in self._held.values())

    @property
    def used(self) -> int:
        """Bytes of the models held."""
        with self._lock:
            return sum(size for _, size in self._held.values())

    def _fetch(self, name: str) -> Explorer:
        try:
            self._make_room(self._size(name))
            explorer = Explorer(self._load(name), device=best_device())
            size = bytes_of(explorer.model)
            self._check(name, size)
            self._make_room(size, (name, explorer))
            return explorer
        finally:
            with self._lock:  # after it is held: whoever asks in between would load it again
                del self._coming[name]

    def _check(self, name: str, size: int) -> None:
        with self._lock:
            room = self._limit - self._held.get(self._kept, (None, 0))[1]
        if size > room and name != self._kept:
            raise TooLarge(
                f"{name} takes {byte_words(size)} of memory, and this page has {byte_words(max(0, room))} for it. "
                "Choose a smaller model, or start the page with a larger --model-memory."
            )

    def _make_room(self, size: int, new: tuple[str, Explorer] | None = None) -> None:
        """Let models go, the least recently used first, until there are `size` bytes or only the kept one is left.

        `new` is then put there, before anybody else can take the room.
        """
        gone = []
        with self._lock:
            for name in [name for name in self._held if name != self._kept]:
                if sum(held for _, held in self._held.values()) + size <= self._limit:
                    break
                gone.append((name, self._held.pop(name)[0]))
            if new is not None:
                self._held[new[0]] = (new[1], size)
        for name, explorer in gone:  # without the lock: who is told may ask us
            self._gone(name, explorer)
