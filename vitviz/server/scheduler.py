"""Schedule computations with a priority semaphore: photographs and short questions before long ones.

Parallel forward passes need more memory and finish no sooner, so one computation of each kind runs at a time. Between
two calls of PyTorch, a long computation pauses while a photograph or a short question runs, and stops when its client
has left. While photographs and short questions compete, photographs get `SHARE` times as much time: a single photograph
does not wait, and short questions delay a lecture hall's photographs by an eighth. Addresses take turns: sixty requests
from one address delay another address by one computation. Photographs are decoded first, two at a time, in a separate
queue. The account limits how many computations wait or run, with a separate limit for long ones.
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
from operator import itemgetter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from vitviz.errors import VitvizError
from vitviz.images.worker import WORKERS
from vitviz.server.account import Account, Booking, OverBudgetError, Resource

TICK = 0.1  # seconds between checks for a client that has left
MOST_PAUSE = 20.0  # seconds by which pauses may exceed the running time, so that every computation finishes
SHARE = 8  # seconds for photographs per second for short questions, while both are waiting
RESTORE = torch._C._set_grad_enabled  # called at the end of `torch.no_grad`
UNWIND = 0.5  # seconds for a cancelled computation to leave its context managers
RECENT = 20  # number of computations of a kind whose mean time is the estimate for the next


class Kind(IntEnum):
    """Kind of a computation, the most urgent first; photographs and short questions share the time."""

    DECODE = -1  # decodes a photograph in a separate process
    PHOTO = 0  # runs the model on a photograph
    SHORT = 1  # takes up to a few seconds
    LONG = 2


AT_ONCE = {Kind.DECODE: WORKERS}  # other kinds run one at a time


class Cancelled(Exception):
    """Raised in a computation that no request waits for any longer."""


class BusyError(VitvizError):
    """Raised if too many requests are waiting; the message and `seconds` give the expected wait."""

    def __init__(self, seconds: float) -> None:
        self.seconds = float(max(1, round(seconds)))
        super().__init__(f"Busy: too many requests are waiting. Try again in about {self.seconds:.0f} s.")


@dataclass(eq=False)
class Client:
    """Client of a computation.

    Attributes:
        address: address for which places are booked.
        gone: set when the client has left.
        progress: latest progress message.
        finishes: expected end by `time.monotonic()`, if known.
    """

    address: str = ""
    gone: threading.Event = field(default_factory=threading.Event)
    progress: dict[str, Any] = field(default_factory=dict)
    finishes: float | None = None


current: ContextVar[Client] = ContextVar("current", default=Client())  # noqa: B039 - the default client's event is never set
"""The client for which this context computes."""


def report(text: str, seconds: float | None = None, **counts: int) -> None:
    """Set the progress message of the current client.

    Args:
        text: the message.
        seconds: expected remaining time, if known.
        counts: numbers `done` and `of` (the total), for a progress bar.
    """
    client = current.get()
    client.finishes = None if seconds is None else time.monotonic() + seconds
    client.progress = {"text": text, **counts}


class Scheduler:
    """Let one computation of each kind run at a time; the module's docstring describes their order.

    Args:
        account: where waiting and running computations are booked.
    """

    def __init__(self, account: Account | None = None) -> None:
        self.account = account or Account()
        self._changed = threading.Condition()
        self._waiting: dict[Kind, deque[Client]] = {kind: deque() for kind in Kind}
        self._served: dict[Kind, Counter[str]] = {kind: Counter() for kind in Kind}  # turns by address, while any waits
        self._running: dict[Kind, int] = dict.fromkeys(Kind, 0)
        self._began: dict[Kind, float] = {}  # start of the latest computation
        self._times: dict[Kind, deque[float]] = {kind: deque(maxlen=RECENT) for kind in Kind}
        self._credit = 0.0  # unused seconds of the short questions' share
        self._counted = time.monotonic()  # when `_credit` was updated
        self._paused = False  # whether the running short question pauses

    @contextmanager
    def run(self, kind: Kind) -> Iterator[None]:
        """Book a place, wait for a turn, and run the body of the `with` statement for the current client.

        Raises:
            BusyError: if too many computations wait, in total or from this address.
            Cancelled: if the client has left.
        """
        with self._book(kind, current.get()), self.wait_and_run(kind):
            yield

    @contextmanager
    def wait_and_run(self, kind: Kind) -> Iterator[None]:
        """Wait for a turn, and run the body of the `with` statement for a client that already has a place.

        Raises:
            Cancelled: if the client has left.
        """
        self._wait(kind, current.get())
        began = self._began[kind] = time.monotonic()
        try:
            with _GiveWay(self, kind):
                yield
            self._times[kind].append(time.monotonic() - began)
        finally:
            self._leave(kind)

    def give_way(self, kind: Kind) -> None:
        """Let waiting computations of the same kind run between two parts of this one.

        Raises:
            Cancelled: if the client has left.
        """
        check_cancelled()
        if self._waiting[kind]:
            self._leave(kind)
            try:
                self._wait(kind, current.get())
            except Cancelled:
                with self._changed:
                    self._running[kind] += 1  # `wait_and_run` subtracts it
                raise

    @property
    def idle(self) -> bool:
        """Return whether no computation waits or runs."""
        with self._changed:
            return not any(self._running.values()) and not any(self._waiting.values())

    @property
    def waiting(self) -> int:
        """Return how many computations of all kinds are waiting."""
        with self._changed:
            return sum(map(len, self._waiting.values()))

    def ahead(self, kind: Kind) -> int:
        """Return how many computations a new one would wait for."""
        with self._changed:
            return self._ahead(kind).total()

    def seconds(self, kind: Kind) -> float:
        """Estimate how many seconds a new computation would wait."""
        with self._changed:
            return self._duration(self._ahead(kind))

    def place(self, client: Client) -> tuple[int, float] | None:
        """Return the number of computations ahead of a waiting client, and their estimated seconds.

        `None` if the client is not waiting.
        """
        with self._changed:
            kind = next((kind for kind in Kind if client in self._waiting[kind]), None)
            if kind is None:
                return None
            ahead = self._ahead(kind)
            behind = len(self._waiting[kind]) - self._order(kind).index(client)
            if kind is Kind.PHOTO:
                behind += len(self._waiting[Kind.DECODE])
            ahead[max(kind, Kind.PHOTO)] -= behind
            return ahead.total(), self._duration(ahead)

    def _ahead(self, kind: Kind) -> Counter[Kind]:
        """Count the computations that a new one would wait for; photographs to be decoded count as photographs."""
        kinds = [Kind(number) for number in range(max(kind, Kind.PHOTO) + 1)]
        ahead = Counter({kind: len(self._waiting[kind]) + self._running[kind] for kind in kinds})
        ahead[Kind.PHOTO] += len(self._waiting[Kind.DECODE])
        return ahead

    def _duration(self, computations: Counter[Kind]) -> float:
        """Estimate how many seconds computations take."""
        return sum(self.mean(kind) * number for kind, number in computations.items())

    def urgent(self, kind: Kind) -> bool:
        """Return whether a more urgent computation is running or waiting."""
        if kind is Kind.LONG:
            return self._present(Kind.PHOTO) or self._present(Kind.SHORT)
        if kind is Kind.DECODE or not self._present(Kind.SHORT if kind is Kind.PHOTO else Kind.PHOTO):
            return False
        with self._changed:
            self._count()
            if kind is Kind.PHOTO:
                return self._credit > 0
            return self._running[Kind.PHOTO] > 0 or self._credit <= 0

    def pause(self, kind: Kind, most: float) -> float:
        """Wait while a more urgent computation runs, for at most `most` seconds; return the seconds that passed."""
        began = time.monotonic()
        with self._changed:
            while self.urgent(kind) and time.monotonic() - began < most and not current.get().gone.is_set():
                if kind is Kind.SHORT:
                    self._paused = True
                self._changed.wait(TICK)
            if kind is Kind.SHORT:
                self._count()
                self._paused = False
        return time.monotonic() - began

    def mean(self, kind: Kind) -> float:
        """Return the mean time of the latest computations of a kind, in seconds; 1 before the first.

        If the running computation has already taken longer, return its time so far.
        """
        times = self._times[kind]
        mean = sum(times) / len(times) if times else 1.0
        return max(mean, time.monotonic() - self._began[kind]) if self._running[kind] and kind in self._began else mean

    def _present(self, kind: Kind) -> bool:
        return bool(self._running[kind] or self._waiting[kind])

    def _count(self) -> None:
        """Update `_credit` by the time since the last count."""
        now = time.monotonic()
        passed, self._counted = now - self._counted, now
        short = 0 if self._paused else self._running[Kind.SHORT]
        self._credit += passed * (self._running[Kind.PHOTO] / SHARE - short)

    def _book(self, kind: Kind, client: Client) -> Booking:
        """Book a place."""
        try:
            return self.account.book(Resource.LONG if kind is Kind.LONG else Resource.PHOTOGRAPHS, client.address)
        except OverBudgetError as error:
            with self._changed:
                seconds = self._duration(Counter({kind: len(self._waiting[kind]) for kind in Kind}))
            raise BusyError(seconds) from error

    def _wait(self, kind: Kind, client: Client) -> None:
        """Wait until a computation of this kind may run, and mark it as running."""
        began = time.monotonic()
        with self._changed:
            self._count()
            # Time that the other kind used while nothing competed with it does not count.
            if kind is Kind.PHOTO and not self._present(kind):
                self._credit = max(self._credit, 0.0)
            elif kind is Kind.SHORT and not self._present(kind):
                self._credit = min(self._credit, 0.0)
            self._arrive(kind, client)
            try:
                while (
                    self._order(kind)[0] is not client
                    or self._running[kind] >= AT_ONCE.get(kind, 1)
                    or (self.urgent(kind) and time.monotonic() - began < MOST_PAUSE)
                ):
                    self._changed.wait(TICK)
                    check_cancelled()
                self._count()
                self._running[kind] += 1
                self._served[kind][client.address] += 1
            finally:
                self._waiting[kind].remove(client)
                if not self._waiting[kind]:
                    self._served[kind].clear()
                self._changed.notify_all()

    def _arrive(self, kind: Kind, client: Client) -> None:
        """Add a waiting client; a new address starts with as many turns as the waiting address with the fewest."""
        served, waiting = self._served[kind], {other.address for other in self._waiting[kind]}
        if client.address not in waiting:
            fewest = min((served[address] for address in waiting), default=0)
            served[client.address] = max(served[client.address], fewest)
        self._waiting[kind].append(client)

    def _order(self, kind: Kind) -> list[Client]:
        """Return the waiting clients, the next client first: addresses take turns, each in order of arrival."""
        served, order = self._served[kind].copy(), list[tuple[int, Client]]()
        for client in self._waiting[kind]:
            order.append((served[client.address], client))
            served[client.address] += 1
        return [client for _, client in sorted(order, key=itemgetter(0))]

    def _leave(self, kind: Kind) -> None:
        with self._changed:
            self._count()
            self._running[kind] -= 1
            self._changed.notify_all()


def check_cancelled() -> None:
    """Raise `Cancelled` if the current client has left."""
    if current.get().gone.is_set():
        raise Cancelled


class _GiveWay(TorchFunctionMode):
    """Before each PyTorch call, pause for more urgent computations, and cancel this one if its client has left.

    For `UNWIND` seconds after cancellation, calls run unchecked, so that context managers can restore their state.
    """

    def __init__(self, scheduler: Scheduler, kind: Kind) -> None:
        super().__init__()
        self.scheduler, self.kind, self.unwinding = scheduler, kind, 0.0
        self.left, self.counted = MOST_PAUSE, time.monotonic()  # remaining seconds of pause, and since when

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not RESTORE and time.monotonic() > self.unwinding:
            if self.kind > Kind.PHOTO and self.scheduler.urgent(self.kind):
                now = time.monotonic()
                self.left = min(MOST_PAUSE, self.left + now - self.counted)
                self.left -= self.scheduler.pause(self.kind, self.left)
                self.counted = time.monotonic()
            if current.get().gone.is_set():
                self.unwinding = time.monotonic() + UNWIND
                raise Cancelled
        return func(*args, **(kwargs or {}))
