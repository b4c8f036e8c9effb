"""Cache open scenes, answers and uploaded photographs within one budget of memory.

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

from PIL import Image

from vitviz.view import View
from vitviz.web.scene import Scene

PIXEL_BYTES = 4  # bytes per pixel of a PIL image in RGB
ID_DIGITS = 32  # hexadecimal digits of a scene's id
OPEN = "open"  # the question whose answer is the scene itself

Key = tuple[str | None, str]
"""Id of a scene (`None` for what needs no scene), and the question with its arguments, or the name of an upload."""


class UnknownScene(Exception):
    """Raised for a question about a scene that this process does not hold."""

    def __init__(self) -> None:
        super().__init__("Expected an open photograph, got one that has expired. Open it again.")


@dataclass(frozen=True, eq=False)
class OpenScene:
    """A photograph that one model has processed, with its trace.

    Args:
        id: hash of photograph, model, input size, texts as classes, and test-time registers.
        scene: its view, and what a page shows with it.
    """

    id: str
    scene: Scene

    @property
    def view(self) -> View:
        """Return the view of the photograph."""
        return self.scene.view

    @property
    def model(self) -> str:
        """Return where the model was loaded from, as in the menu of models."""
        return self.scene.model

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """Return data for the page, see `vitviz.web.scene`."""
        return self.scene.manifest(self.id)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the scene and its pictures."""
        pictures = {id(image): image for image in (self.view.photo, self.scene.picture[0])}
        return sum(map(picture_bytes, pictures.values())) + self.view.nbytes + size_of(self.manifest)


class Cache:
    """Hold scenes, answers and uploads by scene and question, within a budget of memory.

    When memory runs out, the least recently used are evicted.

    Args:
        budget: bytes.

    Attributes:
        used: bytes of cached values and of transfers.
        reserved: bytes of transfers.
        evicted: number of values evicted so far.
    """

    def __init__(self, budget: int) -> None:
        self.budget, self.used, self.reserved, self.evicted = budget, 0, 0, 0
        self._entries: OrderedDict[Key, tuple[Any, int]] = OrderedDict()  # value and bytes
        self._lock = threading.RLock()

    def get(self, key: Key) -> Any:
        """Return a value and mark it as used; `None` if it is not cached."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def answer(self, key: Key, compute: Callable[[], Any]) -> Any:
        """Return a cached value, or compute and cache it."""
        value = self.get(key)
        if value is None:
            value = compute()
            self.put(key, value)
        return value

    def put(self, key: Key, value: Any) -> None:
        """Cache a value, evicting others if necessary. A value larger than the whole budget is not cached."""
        size = size_of(value)
        with self._lock:
            self.pop(key)
            if size > self.budget - self.reserved:
                return
            self._make_room(size)
            self._entries[key] = value, size
            self.used += size

    def pop(self, key: Key) -> Any:
        """Remove a value and return it; `None` if it is not cached."""
        with self._lock:
            value, size = self._entries.pop(key, (None, 0))
            self.used -= size
            return value

    def measure(self, key: Key) -> None:
        """Count the current size of a value that may have grown; evict values if the budget is exceeded."""
        with self._lock:
            value, size = self._entries.get(key, (None, 0))
            if value is not None and size_of(value) != size:
                self.put(key, value)

    def discard(self, condition: Callable[[Any], bool]) -> None:
        """Remove all values for which a condition holds."""
        with self._lock:
            for key in [key for key, (value, _) in self._entries.items() if condition(value)]:
                self.pop(key)

    @contextmanager
    def reserve(self, amount: int) -> Iterator[None]:
        """Count bytes in use outside the cache, and evict values to make room for them."""
        with self._lock:
            self._make_room(amount)
            self.used, self.reserved = self.used + amount, self.reserved + amount
        try:
            yield
        finally:
            with self._lock:
                self.used, self.reserved = self.used - amount, self.reserved - amount

    def _make_room(self, amount: int) -> None:
        while self._entries and self.used + amount > self.budget:
            self.pop(next(iter(self._entries)))
            self.evicted += 1


def picture_bytes(picture: Image.Image) -> int:
    """Return the bytes of a picture in memory."""
    return PIXEL_BYTES * picture.width * picture.height


def scene_id(
    photo: bytes,
    fingerprint: str,
    size: int | None,
    secret: bytes,
    texts: Sequence[str] | None = None,
    registers: int | None = None,
) -> str:
    """Return the id of a scene: equal in all processes that share the secret, and unguessable without it."""
    parts = [hashlib.sha256(photo).hexdigest(), fingerprint, str(size)]
    if texts:
        parts.append(json.dumps(texts))
    if registers:
        parts.append(f"{registers} registers")
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
