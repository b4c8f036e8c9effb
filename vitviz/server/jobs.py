"""Compute each question once, in the order of a priority semaphore: photographs, short questions, long ones.

Requests for the same answer join one job, which stops when none of them waits any longer. Parallel forward passes need
more memory and finish no sooner, so one job of each kind runs at a time; of photographs two, because one is decoded in
another process while the model runs on the other. Between two calls of PyTorch, a job pauses while a more urgent one
runs, up to a limit, after which both run at once. Addresses take turns: sixty requests from one address delay another
address by one job. The numbers of jobs that wait or run are limited, in total and of one address, with separate limits
for long ones.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from enum import IntEnum
from operator import itemgetter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from vitviz.errors import VitvizError
from vitviz.images.worker import WORKERS
from vitviz.phrases import Phrase
from vitviz.settings import Settings

TICK = 0.1  # seconds between checks for a job that nobody waits for
RESTORE = torch._C._set_grad_enabled  # called at the end of `torch.no_grad`
UNWIND = 0.5  # seconds for a cancelled job to leave its context managers
RECENT = 20  # number of jobs of a kind whose mean time is the estimate for the next
LIGHT_THREADS = 2
MAX_OPEN = 64  # questions of one address: a lecture hall behind one router has one address
MAX_LONG = 8  # long questions of one address
SPARE_THREADS = 16  # threads in addition to one for each place; most threads only wait


class Kind(IntEnum):
    """Kind of a computation, the most urgent first."""

    PHOTO = 0  # decodes a photograph, and runs the model on it
    SHORT = 1  # takes up to a few seconds
    LONG = 2


AT_ONCE = {Kind.PHOTO: WORKERS, Kind.SHORT: 1, Kind.LONG: 1}
# Seconds by which pauses may exceed the running time, so that every job finishes.
MAX_PAUSE = {Kind.PHOTO: 0.0, Kind.SHORT: 2.0, Kind.LONG: 20.0}


class Cancelled(Exception):
    """Raised in a job that no request waits for any longer."""


class BusyError(VitvizError):
    """Raised if too many requests are waiting; the message and `seconds` give the expected wait."""

    def __init__(self, seconds: float) -> None:
        self.seconds = float(max(1, round(seconds)))
        text = "Busy: too many requests are waiting. Try again in about {0} s."
        super().__init__(Phrase("busy", text, f"{self.seconds:.0f}"))


@dataclass(eq=False)
class Job:
    """Computation of an answer.

    Attributes:
        address: address of the first request, which has the place.
        key: question that it answers.
        future: future of the answer.
        requests: number of requests that wait for the answer.
        gone: set when none waits any longer.
        progress: latest progress message.
        finishes: expected end by `time.monotonic()`, if known.
    """

    address: str = ""
    key: Hashable = None
    future: Future[Any] = field(default_factory=Future)
    requests: int = 0
    gone: threading.Event = field(default_factory=threading.Event)
    progress: dict[str, Any] = field(default_factory=dict)
    finishes: float | None = None


current: ContextVar[Job] = ContextVar("current", default=Job())  # noqa: B039 - the default job's event is never set
"""The job for which this context computes."""


def report(text: str, seconds: float | None = None, **facts: Any) -> None:
    """Set the progress message of the current job.

    Args:
        text: the message.
        seconds: expected remaining time, if known.
        facts: numbers `done` and `of` (the total), for a progress bar, and intermediate results.
    """
    job = current.get()
    job.finishes = None if seconds is None else time.monotonic() + seconds
    job.progress = {"text": text, **facts}


def check_cancelled() -> None:
    """Raise `Cancelled` if no request waits for the current job."""
    if current.get().gone.is_set():
        raise Cancelled


class Lane:
    """Waiting jobs of one kind in order of arrival, and times of those that ran."""

    def __init__(self, at_once: int) -> None:
        self.at_once, self.waiting = at_once, list[Job]()
        self.turns = Counter[str]()  # how often each address had its turn while any job waits
        self.running, self.began = 0, 0.0  # number of running jobs, and start of the latest
        self.times = deque[float](maxlen=RECENT)

    def __len__(self) -> int:
        """Return the number of jobs that wait or run."""
        return len(self.waiting) + self.running

    def add(self, job: Job) -> None:
        """Add a waiting job; a new address starts with as many turns as the waiting address with the fewest."""
        if job.address not in (addresses := {other.address for other in self.waiting}):
            fewest = min((self.turns[address] for address in addresses), default=0)
            self.turns[job.address] = max(self.turns[job.address], fewest)
        self.waiting.append(job)

    def order(self) -> list[Job]:
        """Return the waiting jobs, the next one first: addresses take turns, each in order of arrival."""
        turns, order = self.turns.copy(), list[tuple[int, Job]]()
        for job in self.waiting:
            order.append((turns[job.address], job))
            turns[job.address] += 1
        return [job for _, job in sorted(order, key=itemgetter(0))]

    def remove(self, job: Job) -> None:
        """Remove a job that no longer waits."""
        self.waiting.remove(job)
        if not self.waiting:
            self.turns.clear()

    def seconds(self, jobs: int) -> float:
        """Estimate how long a number of jobs takes, from the mean time of the latest; one takes 1 s before the first.

        If the running job has already taken longer, use its time so far.
        """
        mean = sum(self.times) / len(self.times) if self.times else 1.0
        return jobs / self.at_once * (max(mean, time.monotonic() - self.began) if self.running else mean)


class Jobs:
    """Compute each answer once for all requests that wait for it, in the order that the module's docstring describes.

    Args:
        most: limit of photographs and short questions that wait or run, and the same limit of long questions.
    """

    def __init__(self, most: int = Settings().places) -> None:
        self.most = most
        self._open: dict[Hashable, Job] = {}  # unfinished jobs by question
        self._lanes = {kind: Lane(AT_ONCE[kind]) for kind in Kind}
        self._changed = threading.Condition()
        self._places = {False: Counter[str](), True: Counter[str]()}  # by whether it is long: jobs of each address
        self._light = ThreadPoolExecutor(LIGHT_THREADS, thread_name_prefix="light")
        self._heavy = ThreadPoolExecutor(SPARE_THREADS + 2 * most, thread_name_prefix="heavy")

    # Requests

    def join(self, key: Hashable, compute: Callable[[], Any], address: str = "", light: bool = False) -> Job:
        """Start a job, or join the unfinished one with the same key; call `leave` afterwards.

        Args:
            key: identifies the question and its arguments.
            compute: returns the answer; it runs in a thread with a copy of this context.
            address: address of the request.
            light: whether it takes milliseconds; light jobs queue only behind each other.

        Raises:
            BusyError: if this address has too many open questions.
        """
        with self._changed:
            job = self._open.get(key)
            if job is None:
                if sum(other.address == address for other in self._open.values()) >= MAX_OPEN:
                    raise self._busy()
                job = self._open[key] = Job(address, key)
                pool = self._light if light else self._heavy
                pool.submit(copy_context().run, self._compute, job, compute)
            job.requests += 1
            return job

    def leave(self, job: Job) -> None:
        """Stop waiting for a job; if no request waits any longer, it is cancelled."""
        with self._changed:
            job.requests -= 1
            if job.requests == 0 and not job.future.done():
                job.gone.set()
                self._close(job)  # the next request starts a new job

    def _compute(self, job: Job, compute: Callable[[], Any]) -> None:
        current.set(job)
        try:
            check_cancelled()
            answer = compute()
        except BaseException as error:  # noqa: BLE001 - raised by `future.result()`
            self._close(job)
            job.future.set_exception(error)
        else:
            self._close(job)
            job.future.set_result(answer)

    def _close(self, job: Job) -> None:
        with self._changed:
            if self._open.get(job.key) is job:
                del self._open[job.key]

    # Turns

    @contextmanager
    def run(self, kind: Kind) -> Iterator[None]:
        """Wait for a turn of the current job, and run the body of the `with` statement.

        Raises:
            BusyError: if too many jobs wait, in total or from this address.
            Cancelled: if no request waits for the job.
        """
        lane, job = self._lanes[kind], current.get()
        with self._place(kind, job.address):
            self._wait(kind, job)
            began = time.monotonic()
            try:
                with _GiveWay(self, kind):
                    yield
                lane.times.append(time.monotonic() - began)
            finally:
                self._end(kind)

    def give_way(self, kind: Kind) -> None:
        """Let waiting jobs of the same kind run between two parts of this one.

        Raises:
            Cancelled: if no request waits for the job.
        """
        check_cancelled()
        if self._lanes[kind].waiting:
            self._end(kind)
            try:
                self._wait(kind, current.get())
            except Cancelled:
                with self._changed:
                    self._lanes[kind].running += 1  # `run` subtracts it
                raise

    def urgent(self, kind: Kind) -> bool:
        """Return whether a more urgent job is running or waiting."""
        return any(self._lanes[other] for other in Kind if other < kind)

    def pause(self, kind: Kind, most: float) -> float:
        """Wait while a more urgent job runs, for at most `most` seconds; return the seconds that passed."""
        began = time.monotonic()
        with self._changed:
            while self.urgent(kind) and time.monotonic() - began < most and not current.get().gone.is_set():
                self._changed.wait(TICK)
        return time.monotonic() - began

    def has_place(self, kind: Kind, address: str = "") -> bool:
        """Return whether another computation of an address may wait."""
        places = self._places[kind is Kind.LONG]
        return places.total() < self.most and (kind is not Kind.LONG or places[address] < MAX_LONG)

    @contextmanager
    def _place(self, kind: Kind, address: str) -> Iterator[None]:
        """Count a computation that waits or runs."""
        with self._changed:
            if not self.has_place(kind, address):
                raise self._busy()
            places = self._places[kind is Kind.LONG]
            places[address] += 1
        try:
            yield
        finally:
            with self._changed:
                places[address] -= 1
                if not places[address]:
                    del places[address]

    def _busy(self) -> BusyError:
        return BusyError(self.ahead(Kind.LONG)[1])

    def _wait(self, kind: Kind, job: Job) -> None:
        """Wait until a job of this kind may run, and count it as running."""
        began, lane = time.monotonic(), self._lanes[kind]
        with self._changed:
            lane.add(job)
            try:
                while (
                    lane.running >= lane.at_once
                    or lane.order()[0] is not job
                    or (self.urgent(kind) and time.monotonic() - began < MAX_PAUSE[kind])
                ):
                    self._changed.wait(TICK)
                    check_cancelled()
                lane.running, lane.began = lane.running + 1, time.monotonic()
                lane.turns[job.address] += 1
            finally:
                lane.remove(job)
                self._changed.notify_all()

    def _end(self, kind: Kind) -> None:
        with self._changed:
            self._lanes[kind].running -= 1
            self._changed.notify_all()

    # Expected waits

    @property
    def waiting(self) -> int:
        """Return how many jobs of all kinds are waiting."""
        with self._changed:
            return sum(len(lane.waiting) for lane in self._lanes.values())

    def ahead(self, kind: Kind, behind: int = 0) -> tuple[int, float]:
        """Return the number of jobs that a new one would wait for, and their estimated seconds.

        `behind` of the jobs of the same kind are left out, because they run later.
        """
        with self._changed:
            counts = {other: len(self._lanes[other]) - behind * (other == kind) for other in Kind if other <= kind}
            return sum(counts.values()), sum(self._lanes[other].seconds(count) for other, count in counts.items())

    def place(self, job: Job) -> tuple[int, float] | None:
        """Return the number of jobs ahead of a waiting one, and their estimated seconds; `None` if it does not wait."""
        with self._changed:
            kind = next((kind for kind, lane in self._lanes.items() if job in lane.waiting), None)
            if kind is None:
                return None
            order = self._lanes[kind].order()
            return self.ahead(kind, behind=len(order) - order.index(job))


class _GiveWay(TorchFunctionMode):
    """Before each PyTorch call, pause for more urgent jobs, and cancel this one if no request waits for it.

    For `UNWIND` seconds after cancellation, calls run unchecked, so that context managers can restore their state.
    """

    def __init__(self, jobs: Jobs, kind: Kind) -> None:
        super().__init__()
        self.jobs, self.kind, self.unwinding = jobs, kind, 0.0
        self.left, self.counted = MAX_PAUSE[kind], time.monotonic()  # remaining seconds of pause, and since when

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not RESTORE and time.monotonic() > self.unwinding:
            if self.jobs.urgent(self.kind):
                now = time.monotonic()
                self.left = min(MAX_PAUSE[self.kind], self.left + now - self.counted)
                self.left -= self.jobs.pause(self.kind, self.left)
                self.counted = time.monotonic()
            if current.get().gone.is_set():
                self.unwinding = time.monotonic() + UNWIND
                raise Cancelled
        return func(*args, **(kwargs or {}))
