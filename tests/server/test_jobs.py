"""Check that computations run one at a time, urgent ones first, and stop when no client waits for them."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from offered import visiting
from patience import patience, wait_until

from vitviz.server import jobs as module
from vitviz.server.jobs import BusyError, Cancelled, Job, Jobs, Kind, current, report
from vitviz.settings import Settings


class Work(threading.Thread):
    """A computation that calls PyTorch in a loop until `finish`, and logs its start and end."""

    def __init__(self, jobs: Jobs, kind: Kind, log: list[str], name: str, job: Job | None = None):
        super().__init__(name=name, daemon=True)
        self.jobs, self.kind, self.log, self.job = jobs, kind, log, job or Job()
        self.begun, self.end, self.steps = threading.Event(), threading.Event(), 0
        self.start()

    def run(self) -> None:
        current.set(self.job)
        try:
            with self.jobs.run(self.kind):
                self.log.append(f"{self.name} begins")
                self.begun.set()
                while not self.end.wait(0.001):
                    torch.ones(2).sum()
                    self.steps += 1
                self.log.append(f"{self.name} ends")
        except Cancelled:
            self.log.append(f"{self.name} is stopped")

    def wait(self) -> "Work":
        """Wait until the computation has started."""
        assert self.begun.wait(patience(60)), self.log
        return self

    def finish(self) -> None:
        self.end.set()
        self.ended()

    def ended(self) -> None:
        self.join(patience(60))
        assert not self.is_alive(), self.log


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture(autouse=True)
def nobody() -> Iterator[None]:
    with visiting(""):
        yield


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replace the clock of jobs by one that is stopped at `now` seconds."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.mark.parametrize(
    ("slow", "urgent"), [(Kind.LONG, Kind.SHORT), (Kind.LONG, Kind.PHOTO), (Kind.SHORT, Kind.PHOTO)]
)
def test_urgent_computation_runs_before_slower_ones(jobs: Jobs, log: list[str], slow: Kind, urgent: Kind) -> None:
    first = Work(jobs, slow, log, "first").wait()
    second = Work(jobs, slow, log, "second")
    wait_until(lambda: jobs.waiting == 1, "the second computation waits")
    overtaking = Work(jobs, urgent, log, "urgent").wait()
    before = first.steps
    wait_until(lambda: overtaking.steps > 20, "the urgent computation continues")
    assert first.steps <= before + 1  # the first computation pauses
    for work in (overtaking, first, second):
        work.finish()
    assert log == ["first begins", "urgent begins", "urgent ends", "first ends", "second begins", "second ends"]


def test_waiting_computations_alternate_between_addresses(jobs: Jobs, log: list[str]) -> None:
    first = Work(jobs, Kind.SHORT, log, "first", Job("crowd")).wait()
    works = []
    for address, names in (("crowd", "bcd"), ("other", "xy"), ("third", "z")):
        for name in names:
            works.append(Work(jobs, Kind.SHORT, log, name, Job(address)))
            works[-1].end.set()
            wait_until(lambda: jobs.waiting == len(works), f"{name} waits")
    first.job.gone.set()
    for work in (first, *works):
        work.ended()
    assert [line[0] for line in log if line.endswith("begins")] == ["f", "b", "x", "z", "c", "y", "d"]


def test_computations_of_a_client_that_left_stop_and_the_next_runs(jobs: Jobs, log: list[str]) -> None:
    job = Job("visitor")
    works = [Work(jobs, Kind.LONG, log, "long", job).wait(), Work(jobs, Kind.LONG, log, "waiting", job)]
    works.append(Work(jobs, Kind.LONG, log, "other", Job("other")))
    works[-1].end.set()
    job.gone.set()
    for work in works:
        work.ended()
    assert set(log) == {"long begins", "long is stopped", "waiting is stopped", "other begins", "other ends"}
    assert jobs.ahead(Kind.LONG)[0] == 0


def test_too_many_computations_are_refused_with_the_expected_wait(jobs: Jobs, log: list[str]) -> None:
    most = Settings().places
    queued = [Job(f"address {number}") for number in range(most)]
    works = [Work(jobs, Kind.LONG, log, str(number), job) for number, job in enumerate(queued)]
    wait_until(lambda: jobs.ahead(Kind.LONG)[0] == most, "all computations run or wait")
    wait_until(lambda: jobs.waiting == most - 1, "one computation runs")
    places = [place for place in map(jobs.place, queued) if place is not None]
    assert sorted(before for before, _ in places) == list(range(1, most))
    assert all(seconds > 0 for _, seconds in places)
    current.set(Job("another"))
    assert jobs.place(current.get()) is None
    with pytest.raises(BusyError, match=r"again in about \d+ s"), jobs.run(Kind.LONG):
        pass
    with jobs.run(Kind.SHORT):  # short questions have a separate limit
        log.append("short")
    assert "short" in log
    for job in queued:
        job.gone.set()
    for work in works:
        work.ended()
    assert jobs.ahead(Kind.LONG)[0] == 0


@pytest.mark.parametrize("kind", [Kind.SHORT, Kind.LONG])
def test_pauses_are_limited(jobs: Jobs, log: list[str], monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    monkeypatch.setitem(module.MAX_PAUSE, kind, 0.1)
    photo = Work(jobs, Kind.PHOTO, log, "photo").wait()
    Work(jobs, kind, log, "other").wait().finish()
    photo.finish()
    assert log == ["photo begins", "other begins", "other ends", "photo ends"]


def test_error_frees_the_place(jobs: Jobs) -> None:
    with pytest.raises(ZeroDivisionError), jobs.run(Kind.SHORT):
        _ = 1 / 0
    with jobs.run(Kind.SHORT):
        assert jobs.ahead(Kind.SHORT)[0] == 1


def test_long_computation_lets_another_run_between_its_parts(jobs: Jobs, log: list[str]) -> None:
    with jobs.run(Kind.LONG):
        jobs.give_way(Kind.LONG)
        log.append("part 0")
        other = Work(jobs, Kind.LONG, log, "other")
        other.end.set()
        wait_until(lambda: jobs.waiting == 1, "the other computation waits")
        for number in (1, 2):
            jobs.give_way(Kind.LONG)
            log.append(f"part {number}")
    other.ended()
    assert log == ["part 0", "other begins", "other ends", "part 1", "part 2"]
    assert jobs.ahead(Kind.LONG)[0] == 0


def test_client_that_leaves_while_giving_way_frees_the_place(jobs: Jobs, log: list[str]) -> None:
    job = Job("parts")
    current.set(job)
    others = []

    def work() -> None:
        with jobs.run(Kind.LONG):
            others.append(Work(jobs, Kind.LONG, log, "other"))
            wait_until(lambda: jobs.waiting == 1, "the other computation waits")
            threading.Thread(target=lambda: others[0].wait() and job.gone.set()).start()
            jobs.give_way(Kind.LONG)

    with pytest.raises(Cancelled):
        work()
    others[0].finish()
    current.set(Job())
    assert jobs.ahead(Kind.LONG)[0] == 0
    with jobs.run(Kind.LONG):
        assert jobs.ahead(Kind.LONG)[0] == 1


def test_report_sets_the_clients_progress(clock: SimpleNamespace) -> None:
    job = Job()
    current.set(job)
    report("Testing 3 maps", 4.0, done=1, of=6)
    assert job.progress == {"text": "Testing 3 maps", "done": 1, "of": 6}
    assert job.finishes == clock.now + 4


def test_mean_is_of_the_latest_computations_and_grows_with_a_running_one(jobs: Jobs, clock: SimpleNamespace) -> None:
    assert jobs._lanes[Kind.LONG].seconds(1) == 1
    for seconds in (100, *[4] * module.RECENT):
        with jobs.run(Kind.LONG):
            clock.now += seconds
    assert jobs._lanes[Kind.LONG].seconds(1) == 4
    with jobs.run(Kind.LONG):
        clock.now += 3
        assert jobs._lanes[Kind.LONG].seconds(1) == 4
        clock.now += 3
        assert jobs.ahead(Kind.LONG)[1] == 6


@pytest.mark.parametrize("place", ["before", "inside", "after"])
def test_cancelled_computation_restores_the_state_of_its_thread(jobs: Jobs, place: str) -> None:
    """Also check a computation that is cancelled as `no_grad` ends."""
    job = Job()
    current.set(job)

    def work() -> None:
        with jobs.run(Kind.LONG):
            if place == "before":
                job.gone.set()
            with torch.no_grad():
                if place == "inside":
                    job.gone.set()
                torch.ones(2).sum()
                if place == "after":
                    job.gone.set()
            torch.ones(2).sum()

    with pytest.raises(Cancelled):
        work()
    assert torch.is_grad_enabled()
