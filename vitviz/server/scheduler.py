"""Schedule computations: one of a kind at a time, urgent ones before long ones, none for a client who has left.

Several forward passes at once take as many times the time and the memory, so computations wait for each other. A long
one gives way between two calls of PyTorch: while an urgent one runs it pauses, and when its client has left it stops.
Photographs and short questions share: while both are wanted, photographs have `SHARE` of nine parts of the time. So one
photograph waits for no question, and a hall of visitors who all send one sees the last of them an eighth later than
without questions. Addresses take turns: who asks for sixty things at once delays others by one of them. Photographs are
decoded before that, two at a time, in turns of their own. How many wait is bounded by the account: long ones apart.
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

TICK = 0.1  # seconds between two looks at whether the client is still there
MOST_PAUSE = 20.0  # seconds that a computation may pause more than it has run: so it ends some day
SHARE = 8  # seconds of photographs for one of short questions, while both are wanted
RESTORE = torch._C._set_grad_enabled  # what `torch.no_grad` calls at its end
UNWIND = 0.5  # seconds in which a computation that was stopped leaves its context managers
RECENT = 20  # computations of each kind whose mean time is expected of the next one


class Kind(IntEnum):
    """Kinds of computations, the most urgent first; photographs and short questions share."""

    DECODE = -1  # in a process of its own
    PHOTO = 0  # open a photograph
    SHORT = 1  # up to some seconds
    LONG = 2


AT_ONCE = {Kind.DECODE: WORKERS}  # else one of a kind


class Cancelled(Exception):
    """Computation that nobody waits for any more."""


class BusyError(VitvizError):
    """Refusal because too much is waiting; the text and `seconds` say how long it may take."""

    def __init__(self, seconds: float, what: str = "too many requests are waiting") -> None:
        self.seconds = float(max(1, round(seconds)))
        super().__init__(f"Busy: {what}. Try again in about {self.seconds:.0f} s.")


@dataclass(eq=False)
class Client:
    """Client of a computation: its address, whether it has left, and what it is told of the progress."""

    address: str = ""
    gone: threading.Event = field(default_factory=threading.Event)
    progress: dict[str, Any] = field(default_factory=dict)
    finishes: float | None = None  # by time.monotonic(), as far as it is known


current: ContextVar[Client] = ContextVar("current", default=Client())  # noqa: B039 - nobody sets its event
"""The client of this context."""


def report(text: str, seconds: float | None = None, **counts: int) -> None:
    """Tell the context's client what is being done.

    Args:
        text: for a person.
        seconds: about how long it takes from now on.
        counts: `done` and `of`, for a bar.
    """
    client = current.get()
    client.finishes = None if seconds is None else time.monotonic() + seconds
    client.progress = {"text": text, **counts}


class Scheduler:
    """Let computations run one of a kind at a time; see the module for their order.

    Args:
        account: where the places of those that wait or run are booked.
    """

    def __init__(self, account: Account | None = None) -> None:
        self.account = account or Account()
        self._changed = threading.Condition()
        self._waiting: dict[Kind, deque[Client]] = {kind: deque() for kind in Kind}
        self._served: dict[Kind, Counter[str]] = {kind: Counter() for kind in Kind}  # of addresses, while others wait
        self._running: dict[Kind, int] = dict.fromkeys(Kind, 0)
        self._began: dict[Kind, float] = {}  # when the latest of each kind began
        self._times: dict[Kind, deque[float]] = {kind: deque(maxlen=RECENT) for kind in Kind}
        self._lead = 0.0  # seconds that short questions are behind their share, while photographs are wanted too
        self._counted = time.monotonic()  # when `_lead` was that
        self._paused = False  # the short question that runs

    @contextmanager
    def run(self, kind: Kind) -> Iterator[None]:
        """Wait for a place, then run the body of the `with` statement for the context's client.

        Raises:
            BusyError: if too much is waiting, in all or of this address.
            Cancelled: when the client has left.
        """
        with self._admit(kind, current.get()), self.wait_and_run(kind):
            yield

    @contextmanager
    def wait_and_run(self, kind: Kind) -> Iterator[None]:
        """Run the body of the `with` statement when it is its turn: for a client who has a place already.

        Raises:
            Cancelled: when the client has left.
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
        """Let others of the same kind go first, between two parts of a computation that runs.

        Raises:
            Cancelled: when the client has left.
        """
        check_cancelled()
        if self._waiting[kind]:
            self._leave(kind)
            try:
                self._wait(kind, current.get())
            except Cancelled:
                with self._changed:
                    self._running[kind] += 1  # `run` takes it away
                raise

    @property
    def waiting(self) -> int:
        """Return how many computations wait, of all kinds."""
        with self._changed:
            return sum(map(len, self._waiting.values()))

    def ahead(self, kind: Kind) -> int:
        """Return how many computations a new one would wait for."""
        with self._changed:
            return sum(self._before(kind).values())

    def seconds(self, kind: Kind) -> float:
        """Return about how many seconds a new computation would wait."""
        with self._changed:
            return sum(self.mean(one) * number for one, number in self._before(kind).items())

    def place(self, client: Client) -> tuple[int, float] | None:
        """Return how many computations a waiting client has before it, and about how many seconds they take.

        `None` if the client does not wait.
        """
        with self._changed:
            kind = next((kind for kind in Kind if client in self._waiting[kind]), None)
            if kind is None:
                return None
            before = self._before(kind)
            behind = len(self._waiting[kind]) - self._order(kind).index(client)
            if kind is Kind.PHOTO:
                behind += len(self._waiting[Kind.DECODE])
            before[max(kind, Kind.PHOTO)] -= behind
            return sum(before.values()), sum(self.mean(one) * number for one, number in before.items())

    def _before(self, kind: Kind) -> dict[Kind, int]:
        """Return how many of each kind a new computation waits for; who waits for decoding counts as a photograph."""
        kinds = [one for one in Kind if Kind.PHOTO <= one <= max(kind, Kind.PHOTO)]
        found = {one: len(self._waiting[one]) + self._running[one] for one in kinds}
        found[Kind.PHOTO] += len(self._waiting[Kind.DECODE])
        return found

    def urgent(self, kind: Kind) -> bool:
        """Return whether anything that goes first runs or waits."""
        if kind is Kind.LONG:
            return self._present(Kind.PHOTO) or self._present(Kind.SHORT)
        if kind is Kind.DECODE or not self._present(Kind.SHORT if kind is Kind.PHOTO else Kind.PHOTO):
            return False
        with self._changed:
            self._count()
            if kind is Kind.PHOTO:
                return self._lead > 0
            return self._running[Kind.PHOTO] > 0 or self._lead <= 0

    def pause(self, kind: Kind, most: float) -> float:
        """Wait while something more urgent runs, at most so many seconds; return the seconds that passed."""
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

        One that runs longer than the mean is expected to be typical of those that wait behind it.
        """
        times = self._times[kind]
        mean = sum(times) / len(times) if times else 1.0
        return max(mean, time.monotonic() - self._began[kind]) if self._running[kind] and kind in self._began else mean

    def _present(self, kind: Kind) -> bool:
        return bool(self._running[kind] or self._waiting[kind])

    def _count(self) -> None:
        """Add the time since the last count to `_lead`."""
        now = time.monotonic()
        passed, self._counted = now - self._counted, now
        short = 0 if self._paused else self._running[Kind.SHORT]
        self._lead += passed * (self._running[Kind.PHOTO] / SHARE - short)

    def _admit(self, kind: Kind, client: Client) -> Booking:
        """Reserve a place."""
        try:
            return self.account.book(Resource.LONG if kind is Kind.LONG else Resource.PHOTOGRAPHS, client.address)
        except OverBudgetError as error:
            with self._changed:
                seconds = sum(self.mean(one) * len(self._waiting[one]) for one in Kind)
            raise BusyError(seconds) from error

    def _wait(self, kind: Kind, client: Client) -> None:
        """Wait for the place of a kind, and take it."""
        began = time.monotonic()
        with self._changed:
            self._count()
            if not self._present(kind) and kind in (
                Kind.PHOTO,
                Kind.SHORT,
            ):  # what the other kind had alone does not count
                self._lead = max(self._lead, 0.0) if kind is Kind.PHOTO else min(self._lead, 0.0)
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
        """Let a client wait; an address that comes anew has had as many turns as the one that has had fewest."""
        served, waiting = self._served[kind], {other.address for other in self._waiting[kind]}
        if client.address not in waiting:
            fewest = min((served[address] for address in waiting), default=0)
            served[client.address] = max(served[client.address], fewest)
        self._waiting[kind].append(client)

    def _order(self, kind: Kind) -> list[Client]:
        """Return who waits, the next one first: addresses in turn, and clients of one address as they came."""
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
    """Raise `Cancelled` if nobody waits for this context's result any more."""
    if current.get().gone.is_set():
        raise Cancelled


class _GiveWay(TorchFunctionMode):
    """Before each call of PyTorch: stop if the client has left, pause while something urgent runs.

    While context managers restore the thread's state after that, they are left alone.
    """

    def __init__(self, scheduler: Scheduler, kind: Kind) -> None:
        super().__init__()
        self.scheduler, self.kind, self.unwinding = scheduler, kind, 0.0
        self.left, self.ran = MOST_PAUSE, time.monotonic()  # seconds of pause that are left, and when that was counted

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not RESTORE and time.monotonic() > self.unwinding:
            if self.kind > Kind.PHOTO and self.scheduler.urgent(self.kind):
                now = time.monotonic()
                self.left = min(MOST_PAUSE, self.left + now - self.ran)
                self.left -= self.scheduler.pause(self.kind, self.left)
                self.ran = time.monotonic()
            if current.get().gone.is_set():
                self.unwinding = time.monotonic() + UNWIND
                raise Cancelled
        return func(*args, **(kwargs or {}))
