"""Hold opened scenes and answers about them, within a bound of memory, and nothing about visitors.

A scene is what one model made of one photograph at one input size; its id is a hash of these three. Whoever asks about
an id that is not here opens the scene again from the photograph: every process makes the same scene under the same id.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Generic, TypeVar

import numpy as np

from vitviz.heatmap import Heatmap
from vitviz.server.scheduler import Cancelled, Client, current
from vitviz.view import View
from vitviz.web.scene import Scene

# ViT-S at 224 px keeps 10 MB of queries and keys, a phone's photograph 36 MB.
SCENE_BYTES = 2**30
ANSWER_BYTES = 2**28
ID = 32  # hexadecimal digits of an id: nobody finds the one of a photograph that he does not have
LIGHT, HEAVY = 2, 112  # threads; those for heavy questions mostly wait in the scheduler, which admits fewer

V = TypeVar("V")


class UnknownScene(Exception):
    """Question about a scene that this process does not hold."""

    def __init__(self) -> None:
        super().__init__("Expected an open photograph, got one that is not here any more. Open it again.")


class Cache(Generic[V]):
    """Hold values by key within a bound of bytes; the least recently used are evicted.

    Args:
        limit: bytes. The latest value stays, whatever its size.
        size: bytes of a value.
    """

    def __init__(self, limit: int, size: Callable[[V], int]) -> None:
        self.limit, self._size = limit, size
        self._held: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> V | None:
        """Return a value, and count it as used."""
        with self._lock:
            if key not in self._held:
                return None
            self._held.move_to_end(key)
            return self._held[key][0]

    def put(self, key: Hashable, value: V) -> None:
        """Hold a value."""
        size = self._size(value)
        with self._lock:
            self._held[key] = value, size
            self._held.move_to_end(key)
            while len(self._held) > 1 and self._bytes() > self.limit:
                self._held.popitem(last=False)

    def discard(self, condition: Callable[[Hashable, V], bool]) -> None:
        """Evict all values for which a condition holds."""
        with self._lock:
            for key in [key for key, (value, _) in self._held.items() if condition(key, value)]:
                del self._held[key]

    @property
    def nbytes(self) -> int:
        """Return the bytes that are held."""
        with self._lock:
            return self._bytes()

    def _bytes(self) -> int:
        return sum(size for _, size in self._held.values())


@dataclass(frozen=True, eq=False)
class Opened:
    """Open scene.

    Args:
        id: of photograph, model and size.
        view: of the photograph.
        model: the model's source.
        manifest: see `vitviz.web.scene`.
        scene: the scene, for pages.
    """

    id: str
    view: View
    model: str
    scene: Scene
    manifest: dict[str, Any]

    @property
    def nbytes(self) -> int:
        """Return the bytes that this holds: the picture, the model's pixels, the trace and the manifest's pictures."""
        view, (height, width) = self.view, self.view.size
        pictures = sum(len(self.manifest[name]["url"]) for name in ("photo", "seen"))
        return 3 * view.photo.width * view.photo.height + 15 * height * width + view.trace.nbytes + 2 * pictures


def scene_id(photo: bytes, fingerprint: str, size: int | None) -> str:
    """Return the id of a scene: the same in every process."""
    parts = (hashlib.sha256(photo).hexdigest(), fingerprint, str(size))
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:ID]


def answer_bytes(value: Any) -> int:
    """Estimate the bytes of an answer: text, bytes, numbers, and lists and dicts of them."""
    if isinstance(value, Heatmap):
        return int(value.values.nbytes) + 1000  # its photograph is the scene's
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, dict):
        return sys.getsizeof(value) + sum(answer_bytes(one) for one in chain(value, value.values()))
    if isinstance(value, list | tuple):
        return sys.getsizeof(value) + sum(map(answer_bytes, value))
    return sys.getsizeof(value)


@dataclass(eq=False)
class Flight:
    """Computation under way, and the clients that wait for it.

    Args:
        future: of the result.
        client: in whose name it runs; it leaves when all who wait have left.
    """

    client: Client
    future: Future[Any] = field(default_factory=Future)
    waiting: int = 0


class Flights:
    """Compute answers in threads: each once for all who ask for it at the same time.

    A computation is cancelled when all who wait for it have left.
    """

    def __init__(self) -> None:
        self._open: dict[Hashable, Flight] = {}
        self._lock = threading.Lock()
        self._pools = {
            light: ThreadPoolExecutor(LIGHT if light else HEAVY, thread_name_prefix="light" if light else "heavy")
            for light in (True, False)
        }

    def join(self, key: Hashable, compute: Callable[[], Any], client: Client, light: bool = False) -> Flight:
        """Begin a computation, or join one with the same key; call `leave` when its result is not awaited any more.

        Args:
            key: of question and arguments.
            compute: returns the answer; it runs in a thread with a copy of this context.
            client: who asks.
            light: whether it takes some milliseconds; such computations wait for each other alone.
        """
        with self._lock:
            flight = self._open.get(key)
            if flight is None:
                flight = self._open[key] = Flight(replace(client, gone=threading.Event(), progress={}))
                self._pools[light].submit(copy_context().run, self._fly, key, flight, compute)
            flight.waiting += 1
            return flight

    def leave(self, key: Hashable, flight: Flight) -> None:
        """Stop waiting."""
        with self._lock:
            flight.waiting -= 1
            if flight.waiting == 0 and not flight.future.done():
                flight.client.gone.set()
                self._end(key, flight)  # who asks from now on begins anew

    def _fly(self, key: Hashable, flight: Flight, compute: Callable[[], Any]) -> None:
        current.set(flight.client)
        try:
            if flight.client.gone.is_set():
                raise Cancelled
            result = compute()
        except BaseException as error:  # noqa: BLE001 - handed over to who waits
            self._finish(key, flight)
            flight.future.set_exception(error)
        else:
            self._finish(key, flight)
            flight.future.set_result(result)

    def _finish(self, key: Hashable, flight: Flight) -> None:
        with self._lock:
            self._end(key, flight)

    def _end(self, key: Hashable, flight: Flight) -> None:
        if self._open.get(key) is flight:
            del self._open[key]
