"""Who computes when: one computation at a time, urgent ones before long ones, none for a visitor who has left.

Several forward passes at once take as many times the time and the memory, so computations wait for each other. A long
one gives way between two calls of PyTorch: while an urgent one runs it pauses, and when its visitor has left it stops.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from torch.overrides import TorchFunctionMode

TICK = 0.1  # seconds between two looks at whether the visitor is still there
MOST_PAUSE = 20.0  # seconds that a computation pauses in all: then it runs beside the others, and ends some day
MOST_WAITING = 48  # computations in all
MOST_OF_SESSION, MOST_OF_ADDRESS = 6, 24  # a lecture hall behind one router has one address
RECENT = 20  # computations of each kind whose mean time is expected of the next one


class Kind(IntEnum):
    """Kinds of computations, the most urgent first: open a photograph, a short question, a long one."""

    PHOTO = 0
    SHORT = 1
    LONG = 2


class Cancelled(Exception):
    """The visitor for whom this was computed has left."""


class BusyError(ValueError):
    """Too much is waiting; the text says how long it may take."""


@dataclass(frozen=True, eq=False)
class Client:
    """For whom something is computed: a visitor's session, its address, and whether the visitor has left."""

    session: str = ""
    address: str = ""
    gone: threading.Event = field(default_factory=threading.Event)


current: ContextVar[Client] = ContextVar("current", default=Client())  # noqa: B039 - nobody sets its event
"""The client of this context."""


class Scheduler:
    """Let computations run one at a time, by urgency and then in the order of their arrival."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[Kind, deque[object]] = {kind: deque() for kind in Kind}
        self._running: dict[Kind, int] = dict.fromkeys(Kind, 0)
        self._began: dict[Kind, float] = {}  # when the latest of each kind began
        self._open: Counter[tuple[str, str]] = Counter()  # computations that wait or run, by kind of name and name
        self._times: dict[Kind, deque[float]] = {kind: deque(maxlen=RECENT) for kind in Kind}

    @contextmanager
    def run(self, kind: Kind) -> Iterator[None]:
        """Wait for a place, then run the body of the `with` statement for the context's client.

        Raises:
            BusyError: if too much is waiting, in all or of this client.
            Cancelled: when the client has left.
        """
        names = [name for name in (("session", current.get().session), ("address", current.get().address)) if name[1]]
        self._enter(kind, names)
        began = self._began[kind] = time.monotonic()
        try:
            with _GiveWay(self, kind):
                yield
            self._times[kind].append(time.monotonic() - began)
        finally:
            with self._changed:
                self._running[kind] -= 1
                self._open -= Counter(names)
                self._changed.notify_all()

    def ahead(self, kind: Kind) -> int:
        """Return how many computations a new one would wait for."""
        with self._changed:
            return sum(len(self._waiting[one]) + self._running[one] for one in Kind if one <= kind)

    def seconds(self, kind: Kind) -> float:
        """Return about how many seconds a new computation would wait."""
        with self._changed:
            return sum(self.mean(one) * (len(self._waiting[one]) + self._running[one]) for one in Kind if one <= kind)

    def urgent(self, kind: Kind) -> bool:
        """Return whether anything more urgent runs or waits."""
        return any(self._running[one] or self._waiting[one] for one in Kind if one < kind)

    def pause(self, kind: Kind, most: float) -> float:
        """Wait while something more urgent runs, at most so many seconds; return the seconds that passed."""
        began = time.monotonic()
        with self._changed:
            while self.urgent(kind) and time.monotonic() - began < most:
                self._changed.wait(TICK)
                check_cancelled()
        return time.monotonic() - began

    def _enter(self, kind: Kind, names: list[tuple[str, str]]) -> None:
        mine, began = object(), time.monotonic()
        with self._changed:
            most = {"session": MOST_OF_SESSION, "address": MOST_OF_ADDRESS}
            full = sum(map(len, self._waiting.values())) >= MOST_WAITING
            if full or any(self._open[name] >= most[name[0]] for name in names):
                expected = sum(self.mean(one) * len(self._waiting[one]) for one in Kind)
                raise BusyError(f"Busy: too many requests are waiting. Try again in about {max(1, expected):.0f} s.")
            self._waiting[kind].append(mine)
            self._open.update(names)
            try:
                while (
                    self._waiting[kind][0] is not mine
                    or self._running[kind]
                    or (self.urgent(kind) and time.monotonic() - began < MOST_PAUSE)
                ):
                    self._changed.wait(TICK)
                    check_cancelled()
                self._running[kind] += 1
            except Cancelled:
                self._open -= Counter(names)
                raise
            finally:
                self._waiting[kind].remove(mine)
                self._changed.notify_all()

    def mean(self, kind: Kind) -> float:
        """Return the mean time of the latest computations of a kind, in seconds; 1 before the first.

        One that runs longer than the mean is expected to be typical of those that wait behind it.
        """
        times = self._times[kind]
        mean = sum(times) / len(times) if times else 1.0
        return max(mean, time.monotonic() - self._began[kind]) if self._running[kind] and kind in self._began else mean


def check_cancelled() -> None:
    """Raise `Cancelled` if nobody waits for this context's result any more."""
    if current.get().gone.is_set():
        raise Cancelled


class _GiveWay(TorchFunctionMode):
    """Before each call of PyTorch: stop if the visitor has left, pause while something urgent runs."""

    def __init__(self, scheduler: Scheduler, kind: Kind) -> None:
        super().__init__()
        self.scheduler, self.kind, self.left = scheduler, kind, MOST_PAUSE

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        check_cancelled()
        if self.kind > Kind.PHOTO and self.left > 0 and self.scheduler.urgent(self.kind):
            self.left -= self.scheduler.pause(self.kind, self.left)
        return func(*args, **(kwargs or {}))
