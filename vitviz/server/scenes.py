"""Cache open scenes and answers within a memory budget, and compute each answer once for all waiting requests.

A scene is the result of one model on one photograph at one input size; its id is a keyed hash of the three, so every
process gives the same scene the same id. If an id is unknown, the client opens the scene again from the
photograph. Nothing is stored about visitors.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from vitviz.heatmap import Heatmap
from vitviz.server.account import Account, Booking, Resource
from vitviz.server.scheduler import Client, check_cancelled, current
from vitviz.view import View
from vitviz.web.scene import Scene

PIXEL_BYTES = 4  # bytes per pixel of a PIL image in RGB
MAPS = 64  # maps kept per scene, so that testing them does not compute them again
ID_DIGITS = 32  # hexadecimal digits of a scene's id
LIGHT_THREADS = 2
SPARE_THREADS = 16  # threads in addition to one for each place of the scheduler; most threads only wait
OPEN = "open"  # the question whose answer is the scene itself

Key = tuple[str | None, str]
"""Id of a scene (`None` for questions that need no scene), and the question with its arguments."""


class UnknownScene(Exception):
    """Raised for a question about a scene that this process does not hold."""

    def __init__(self) -> None:
        super().__init__("Expected an open photograph, got one that has expired. Open it again.")


@dataclass(frozen=True, eq=False)
class OpenScene:
    """A photograph that one model has processed, with its trace.

    Args:
        id: hash of photograph, model, input size, and texts as classes.
        view: view of the photograph.
        model: the model's source.
        scene: content of a saved page.
        manifest: data for the page, see `vitviz.web.scene`.
        maps: maps and their computing times in seconds, by method and classes. Maps refer to the photograph, so they
            are evicted with the scene.
    """

    id: str
    view: View
    model: str
    scene: Scene
    manifest: dict[str, Any]
    maps: dict[str, tuple[Heatmap, float]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the scene, its pictures and its maps."""
        pictures = {id(image): image for image in (self.view.photo, self.scene.picture[0], self.scene.seen)}
        return (
            sum(PIXEL_BYTES * image.width * image.height for image in pictures.values() if image is not None)
            + self.view.nbytes
            + size_of(self.manifest)
            + sum(heatmap.values.nbytes + 1000 for heatmap, _ in list(self.maps.values()))
        )


class Cache:
    """Hold scenes and answers by scene and question; the least recently used are evicted when memory runs out.

    Args:
        account: where the cached bytes are booked.

    Attributes:
        evicted: number of values evicted so far.
    """

    def __init__(self, account: Account) -> None:
        self.account, self.evicted = account, 0
        self._entries: OrderedDict[Key, tuple[Any, Booking]] = OrderedDict()
        self._lock = threading.RLock()

    def get(self, key: Key) -> Any:
        """Return a value and mark it as used; `None` if it is not cached."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: Key, value: Any) -> None:
        """Cache a value, evicting others if necessary. A value larger than the whole budget is not cached."""
        size = size_of(value)
        with self._lock:
            self._remove(key)
            if size > self.account.budgets[Resource.SCENES].total:
                return
            while self._entries and not self.account.fits(Resource.SCENES, "", size):
                self._remove(next(iter(self._entries)))
                self.evicted += 1
            self._entries[key] = value, self.account.book(Resource.SCENES, "", size)

    def measure(self, key: Key) -> None:
        """Book the current size of a value that may have grown; evict values if the budget is exceeded."""
        with self._lock:
            value, booking = self._entries.get(key, (None, None))
            if booking is not None and size_of(value) != booking.amount:
                self.put(key, value)

    def discard(self, condition: Callable[[Any], bool]) -> None:
        """Remove all values for which a condition holds."""
        with self._lock:
            for key in [key for key, (value, _) in self._entries.items() if condition(value)]:
                self._remove(key)

    def _remove(self, key: Key) -> None:
        if key in self._entries:
            self._entries.pop(key)[1].close()


def scene_id(
    photo: bytes, fingerprint: str, size: int | None, secret: bytes, texts: Sequence[str] | None = None
) -> str:
    """Return the id of a scene: equal in all processes that share the secret, and unguessable without it."""
    parts = [hashlib.sha256(photo).hexdigest(), fingerprint, str(size)]
    if texts:
        parts.append(json.dumps(texts))
    return hmac.new(secret, " ".join(parts).encode(), "sha256").hexdigest()[:ID_DIGITS]


def size_of(value: Any) -> int:
    """Estimate the bytes of a value: an array, a scene, text, bytes, numbers, or lists and dicts of them."""
    if (nbytes := getattr(value, "nbytes", None)) is not None:
        return int(nbytes)
    if isinstance(value, dict):
        return sys.getsizeof(value) + sum(map(size_of, chain(value, value.values())))
    if isinstance(value, list | tuple):
        return sys.getsizeof(value) + sum(map(size_of, value))
    return sys.getsizeof(value)


@dataclass(eq=False)
class Flight:
    """Computation in progress.

    Args:
        client: client for which it runs; it is cancelled when no request waits for it any longer.
        future: future of the result.
        waiting: number of requests that wait for the result.
    """

    client: Client
    future: Future[Any] = field(default_factory=Future)
    waiting: int = 0


class Flights:
    """Compute answers in threads, each once for all requests that wait for it ("single flight").

    A computation is cancelled when no request waits for it any longer.

    Args:
        account: limits how many computations wait or run.
    """

    def __init__(self, account: Account | None = None) -> None:
        self._open: dict[Hashable, Flight] = {}
        self._lock = threading.RLock()
        budgets = (account or Account()).budgets
        heavy = SPARE_THREADS + budgets[Resource.PHOTOGRAPHS].total + budgets[Resource.LONG].total
        self._light = ThreadPoolExecutor(LIGHT_THREADS, thread_name_prefix="light")
        self._heavy = ThreadPoolExecutor(heavy, thread_name_prefix="heavy")

    def join(self, key: Hashable, compute: Callable[[], Any], client: Client, light: bool = False) -> Flight:
        """Start a computation, or join the running one with the same key; call `leave` afterwards.

        Args:
            key: identifies the question and its arguments.
            compute: returns the answer; it runs in a thread with a copy of this context.
            client: sender of the request.
            light: whether it takes milliseconds; light computations queue only behind each other.
        """
        with self._lock:
            flight = self._open.get(key)
            if flight is None:
                flight = self._open[key] = Flight(replace(client, gone=threading.Event(), progress={}))
                pool = self._light if light else self._heavy
                pool.submit(copy_context().run, self._compute, key, flight, compute)
            flight.waiting += 1
            return flight

    def leave(self, key: Hashable, flight: Flight) -> None:
        """Stop waiting for a computation."""
        with self._lock:
            flight.waiting -= 1
            if flight.waiting == 0 and not flight.future.done():
                flight.client.gone.set()
                self._close(key, flight)  # the next request starts a new computation

    def _compute(self, key: Hashable, flight: Flight, compute: Callable[[], Any]) -> None:
        current.set(flight.client)
        try:
            check_cancelled()
            answer = compute()
        except BaseException as error:  # noqa: BLE001 - raised by `future.result()`
            self._close(key, flight)
            flight.future.set_exception(error)
        else:
            self._close(key, flight)
            flight.future.set_result(answer)

    def _close(self, key: Hashable, flight: Flight) -> None:
        with self._lock:
            if self._open.get(key) is flight:
                del self._open[key]
