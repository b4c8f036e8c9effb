"""Hold loaded models within a memory limit; the least recently used is evicted when another model needs memory."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain

import torch

from vitviz.errors import VitvizError
from vitviz.explorer import Explorer
from vitviz.formatting import describe_bytes
from vitviz.model.vit import ViT
from vitviz.server.gpu import home_device

LOADING_AT_ONCE = 4
SAMPLE = 1024  # elements of each tensor that a fingerprint includes


class TooLarge(VitvizError):
    """Raised for a model that does not fit into the memory for models; the message gives its size."""


@dataclass(frozen=True, eq=False)
class Loaded:
    """Model in memory.

    Args:
        explorer: explorer of the model.
        fingerprint: hash that is equal for equal models in every process.
        nbytes: bytes of its parameters and buffers.
    """

    explorer: Explorer
    fingerprint: str
    nbytes: int


def bytes_of(model: ViT) -> int:
    """Return the memory of a model's parameters and buffers, in bytes."""
    return sum(tensor.nbytes for tensor in chain(model.parameters(), model.buffers()))


@torch.no_grad()
def fingerprint(explorer: Explorer, source: str) -> str:
    """Return a hash of a model: its source, sizes, preprocessing, labels, and a sample of every tensor."""
    model = explorer.model
    labels = model.pretrained.labels if model.pretrained else ()
    digest = hashlib.sha256(repr((source, model.config, explorer.preprocess, labels)).encode())
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        flat = tensor.flatten()
        sample = flat[:: max(1, len(flat) // SAMPLE)].float().cpu().numpy()
        digest.update(f"{name} {tuple(tensor.shape)}".encode() + sample.tobytes())
    return digest.hexdigest()


class Models:
    """Hold models by name. Each is loaded once; loading one model does not block requests for others.

    A model that is evicted during a request stays in memory until the request is answered.

    Args:
        load: loads a model by name; called without holding the lock.
        limit: memory for models, in bytes.
        pinned: the model that is never evicted.
        size: returns a model's expected bytes, which are freed before it is loaded; 0 if unknown.
        evicted: called with the name of every evicted model.
    """

    def __init__(
        self,
        load: Callable[[str], ViT],
        limit: int,
        pinned: str,
        size: Callable[[str], int] = lambda _: 0,
        evicted: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._load, self._limit, self._pinned, self._size, self._evicted = load, limit, pinned, size, evicted
        self._held: OrderedDict[str, Loaded] = OrderedDict()
        self._pending: dict[str, Future[Loaded]] = {}
        self._lock = threading.Lock()
        self._workers = ThreadPoolExecutor(LOADING_AT_ONCE, thread_name_prefix="load")

    def get(self, name: str) -> Loaded:
        """Return a model, and load it if necessary; errors of `load` are raised."""
        return self.begin(name).result()

    def begin(self, name: str) -> Future[Loaded]:
        """Return the future of a model. Requests for a model that is being loaded share the same future."""
        with self._lock:
            if name in self._held:
                self._held.move_to_end(name)
                loaded: Future[Loaded] = Future()
                loaded.set_result(self._held[name])
                return loaded
            if name not in self._pending:
                self._pending[name] = self._workers.submit(self._fetch, name)
            return self._pending[name]

    def holds(self, explorer: Explorer) -> bool:
        """Return whether an explorer's model is still held."""
        with self._lock:
            return any(held.explorer is explorer for held in self._held.values())

    @property
    def used(self) -> int:
        """Return the bytes that all held models use."""
        with self._lock:
            return self._used()

    def _used(self) -> int:
        return sum(held.nbytes for held in self._held.values())

    def _fetch(self, name: str) -> Loaded:
        try:
            self._evict(self._size(name))
            model = self._load(name)
            explorer = Explorer(model, device=home_device())
            loaded = Loaded(explorer, fingerprint(explorer, name), bytes_of(explorer.model))
            self._check(name, loaded.nbytes)
            self._evict(loaded.nbytes, (name, loaded))
            return loaded
        finally:
            with self._lock:  # only after the model is held: a request in between would load it again
                del self._pending[name]

    def _check(self, name: str, size: int) -> None:
        with self._lock:
            free = self._limit - (self._held[self._pinned].nbytes if self._pinned in self._held else 0)
        if size > free and name != self._pinned:
            raise TooLarge(
                f"Expected a model that fits into {describe_bytes(max(0, free))} of memory, got {name}, which takes "
                f"{describe_bytes(size)}. Choose a smaller one, or start the page with a larger --model-memory."
            )

    def _evict(self, size: int, new: tuple[str, Loaded] | None = None) -> None:
        """Evict models, the least recently used first, until `size` bytes are free or only the pinned one is left.

        `new` is then added under the same lock, so that no other model can take its memory.
        """
        evicted = []
        with self._lock:
            for name in [name for name in self._held if name != self._pinned]:
                if self._used() + size <= self._limit:
                    break
                del self._held[name]
                evicted.append(name)
            if new is not None:
                self._held[new[0]] = new[1]
        for name in evicted:  # without the lock, because the callback may call `holds`
            self._evicted(name)
