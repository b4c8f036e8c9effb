"""Hold opened scenes and answers about them, within a bound of memory, and nothing about visitors.

A scene is what one model made of one photograph at one input size; its id is a keyed hash of these three. Whoever asks
about an id that is not here opens the scene again from the photograph: every process makes the same scene under the
same id.
"""

from __future__ import annotations

import hashlib
import hmac
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Any, Generic, TypeVar

import numpy as np

from vitviz.heatmap import Heatmap
from vitviz.server.account import Account, Booking, Resource
from vitviz.server.scheduler import Cancelled, Client, current
from vitviz.view import View
from vitviz.web.scene import Scene

PIXEL_BYTES = 4  # of a PIL image in RGB
MAPS = 64  # that a scene keeps for tests of them
ID = 32  # hexadecimal digits of an id: nobody finds the one of a photograph that he does not have
LIGHT = 2  # threads
SPARE = 16  # threads for heavy questions beyond the places of the scheduler, in which they mostly wait

V = TypeVar("V")


class UnknownScene(Exception):
    """Question about a scene that this process does not hold."""

    def __init__(self) -> None:
        super().__init__("Expected an open photograph, got one that is not here any more. Open it again.")


class Shelf:
    """Caches that share a budget of the account: the least recently used of all their values goes first.

    Args:
        account: where the values are booked.

    Attributes:
        evicted: how many values went.
    """

    def __init__(self, account: Account) -> None:
        self.account, self.lock, self.caches = account, threading.RLock(), list[Cache[Any]]()
        self.uses, self.evicted = count(), 0

    def evict_for(self, size: int) -> None:
        """Evict values until so many bytes fit, or none are left."""
        while not self.account.fits(Resource.SCENES, "", size):
            caches = [cache for cache in self.caches if cache.oldest is not None]
            if not caches:
                return
            min(caches, key=lambda cache: cache.oldest or 0).evict()
            self.evicted += 1


@dataclass
class Held(Generic[V]):
    """Value of a cache, its bytes, and when it was used last."""

    value: V
    booking: Booking
    used: int


class Cache(Generic[V]):
    """Hold values by key.

    Args:
        shelf: of the caches that share a budget.
        size: bytes of a value.
    """

    def __init__(self, shelf: Shelf, size: Callable[[V], int]) -> None:
        self._shelf, self._size = shelf, size
        self._held: OrderedDict[Hashable, Held[V]] = OrderedDict()
        shelf.caches.append(self)

    def get(self, key: Hashable) -> V | None:
        """Return a value, and count it as used."""
        with self._shelf.lock:
            if key not in self._held:
                return None
            self._held.move_to_end(key)
            self._held[key].used = next(self._shelf.uses)
            return self._held[key].value

    def put(self, key: Hashable, value: V) -> None:
        """Hold a value; evict others for it. One that is larger than the whole budget is not held."""
        account, size = self._shelf.account, self._size(value)
        with self._shelf.lock:
            self.discard(lambda other, _: other == key)
            if size > account.budgets[Resource.SCENES].total:
                return
            self._shelf.evict_for(size)
            self._held[key] = Held(value, account.book(Resource.SCENES, "", size), next(self._shelf.uses))

    def measure(self, key: Hashable) -> None:
        """Reserve what a value takes now, and evict others, or it, where it has grown beyond the budget."""
        with self._shelf.lock:
            held = self._held.get(key)
            if held is not None and self._size(held.value) != held.booking.amount:
                self.put(key, held.value)

    def discard(self, condition: Callable[[Hashable, V], bool]) -> None:
        """Evict all values for which a condition holds."""
        with self._shelf.lock:
            for key in [key for key, held in self._held.items() if condition(key, held.value)]:
                self._held.pop(key).booking.close()

    def evict(self) -> None:
        """Evict the least recently used value."""
        with self._shelf.lock:
            self._held.popitem(last=False)[1].booking.close()

    @property
    def oldest(self) -> int | None:
        """Return when the least recently used value was used; `None` where there is none."""
        return next(iter(self._held.values())).used if self._held else None

    @property
    def nbytes(self) -> int:
        """Return the bytes that are held."""
        with self._shelf.lock:
            return sum(held.booking.amount for held in self._held.values())


@dataclass(frozen=True, eq=False)
class Opened:
    """Open scene.

    Args:
        id: of photograph, model and size.
        view: of the photograph.
        model: the model's source.
        manifest: see `vitviz.web.scene`.
        scene: the scene, for pages.
        maps: of attribution methods with the seconds that they took. They hold the photograph, and go with it.
    """

    id: str
    view: View
    model: str
    scene: Scene
    manifest: dict[str, Any]
    maps: dict[str, tuple[Heatmap, float]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Return the bytes that this and questions about it hold."""
        pictures = {
            id(one): one for one in (self.view.photo, self.scene.picture[0], self.scene.seen) if one is not None
        }
        values = sum(heatmap.values.nbytes for heatmap, _ in list(self.maps.values()))
        return (
            sum(PIXEL_BYTES * one.width * one.height for one in pictures.values())
            + self.view.nbytes
            + answer_bytes(self.manifest)
            + values
            + 1000 * len(self.maps)
        )


def scene_id(photo: bytes, fingerprint: str, size: int | None, secret: bytes) -> str:
    """Return the id of a scene: the same in every process that has the secret, and nowhere else."""
    parts = (hashlib.sha256(photo).hexdigest(), fingerprint, str(size))
    return hmac.new(secret, " ".join(parts).encode(), "sha256").hexdigest()[:ID]


def answer_bytes(value: Any) -> int:
    """Estimate the bytes of an answer: text, bytes, numbers, and lists and dicts of them."""
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

    Args:
        account: which bounds how many wait or run.
    """

    def __init__(self, account: Account | None = None) -> None:
        self._open: dict[Hashable, Flight] = {}
        self._lock = threading.Lock()
        places = (account or Account()).budgets
        heavy = SPARE + places[Resource.PHOTOGRAPHS].total + places[Resource.LONG].total
        self._pools = {
            light: ThreadPoolExecutor(threads, thread_name_prefix="light" if light else "heavy")
            for light, threads in ((True, LIGHT), (False, heavy))
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
