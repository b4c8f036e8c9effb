"""Computations run one at a time, urgent ones first; what nobody waits for any more stops."""

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from vitviz.server import scheduler as module
from vitviz.server.scheduler import BusyError, Cancelled, Client, Kind, Scheduler, current, report


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler()


@pytest.fixture(autouse=True)
def nobody() -> Iterator[None]:
    token = current.set(Client())
    yield
    current.reset(token)


def compute(scheduler: Scheduler, kind: Kind, steps: int, done: list, name: str, client: Client | None = None) -> None:
    """So many calls of PyTorch, about a hundredth of a second each."""
    current.set(client or Client())
    try:
        with scheduler.run(kind):
            done.append(f"{name} begins")
            for _ in range(steps):
                torch.ones(2).sum()
                time.sleep(0.01)
            done.append(f"{name} ends")
    except Cancelled:
        done.append(f"{name} is stopped")


def start(*arguments: object) -> threading.Thread:
    thread = threading.Thread(target=compute, args=arguments)
    thread.start()
    return thread


def until(done: list, what: str) -> None:
    began = time.monotonic()
    while what not in done:
        assert time.monotonic() - began < 30, done
        time.sleep(0.005)


def test_one_of_a_kind_runs_at_a_time_in_order(scheduler: Scheduler) -> None:
    done: list[str] = []
    threads = []
    for name in "abc":
        threads.append(start(scheduler, Kind.SHORT, 5, done, name))
        until([*done, *(["waits"] if scheduler.ahead(Kind.SHORT) > len(threads) - 1 else [])], "waits")
    for thread in threads:
        thread.join(30)
    assert done == [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]


def test_an_urgent_one_overtakes_a_long_one_under_way(scheduler: Scheduler) -> None:
    done: list[str] = []
    long = start(scheduler, Kind.LONG, 200, done, "long")
    until(done, "long begins")
    other = start(scheduler, Kind.LONG, 1, done, "other")
    short = start(scheduler, Kind.SHORT, 20, done, "short")
    photo = start(scheduler, Kind.PHOTO, 20, done, "photo")
    for thread in (long, other, short, photo):
        thread.join(60)
    assert done.index("photo ends") < done.index("long ends")
    assert done.index("short ends") < done.index("long ends") < done.index("other begins")


def test_a_photograph_overtakes_a_short_question_under_way(scheduler: Scheduler) -> None:
    done: list[str] = []
    short = start(scheduler, Kind.SHORT, 300, done, "short")
    until(done, "short begins")
    photo = start(scheduler, Kind.PHOTO, 20, done, "photo")
    for thread in (short, photo):
        thread.join(60)
    assert done == ["short begins", "photo begins", "photo ends", "short ends"]


@pytest.mark.parametrize("visitors", [1, 3])
def test_photographs_without_end_leave_a_share_to_short_questions(scheduler: Scheduler, visitors: int) -> None:
    done: list[str] = []
    stop = threading.Event()

    def photographs() -> None:
        while not stop.is_set():
            compute(scheduler, Kind.PHOTO, 10, done, "photo")

    threads = [threading.Thread(target=photographs) for _ in range(visitors)]
    for thread in threads:
        thread.start()
    until(done, "photo begins")
    before = len(done)
    short = [start(scheduler, Kind.SHORT, 20, done, name) for name in ("short", "another")]
    for thread in short:
        thread.join(60)
    stop.set()
    for thread in threads:
        thread.join(30)
    last = max(done.index("short ends"), done.index("another ends"))
    meanwhile = done[before:last].count("photo ends")
    both = 2 * 20 / 10  # photographs in the time of both questions
    assert module.SHARE * both / 3 <= meanwhile <= module.SHARE * both * 3


def test_addresses_take_turns(scheduler: Scheduler) -> None:
    done: list[str] = []
    first = Client("crowd")
    threads = [start(scheduler, Kind.PHOTO, 100_000, done, "first", first)]
    until(done, "first begins")
    for count, (address, name) in enumerate(
        [("crowd", "b"), ("crowd", "c"), ("crowd", "d"), ("other", "x"), ("other", "y"), ("third", "z")], 1
    ):
        threads.append(start(scheduler, Kind.PHOTO, 1, done, name, Client(address)))
        while scheduler.waiting < count:
            time.sleep(0.002)
    first.gone.set()
    for thread in threads:
        thread.join(30)
    assert [line[0] for line in done if line.endswith("begins")] == ["f", "b", "x", "z", "c", "y", "d"]


def test_what_is_computed_for_who_has_left_stops_and_the_next_one_runs(scheduler: Scheduler) -> None:
    done: list[str] = []
    client = Client("visitor")
    long = start(scheduler, Kind.LONG, 10_000, done, "long", client)
    until(done, "long begins")
    waiting = start(scheduler, Kind.LONG, 10_000, done, "waiting", client)
    other = start(scheduler, Kind.LONG, 1, done, "other", Client("other"))
    client.gone.set()
    for thread in (long, waiting, other):
        thread.join(30)
    assert set(done) == {"long begins", "long is stopped", "waiting is stopped", "other begins", "other ends"}
    assert scheduler.ahead(Kind.LONG) == 0


@pytest.mark.parametrize(
    ("client", "most"),
    [(Client("1.2.3.4"), module.MOST_OF_ADDRESS), (None, module.MOST_WAITING + 1)],
    ids=["of one address", "in all"],
)
def test_too_many_are_refused_with_the_time_to_wait(scheduler: Scheduler, client: Client | None, most: int) -> None:
    stop = Client("stop")
    done: list[str] = []
    clients = [Client("1.2.3.4" if client else f"address {number}") for number in range(most)]
    threads = []
    for number, one in enumerate(clients):
        threads.append(start(scheduler, Kind.LONG, 10_000, done, str(number), one))
    began = time.monotonic()
    while scheduler.ahead(Kind.LONG) < most:
        assert time.monotonic() - began < 30
        time.sleep(0.005)
    current.set(client or stop)
    places = [place for place in map(scheduler.place, clients) if place is not None]
    assert sorted(before for before, _ in places) == list(range(1, most))
    assert all(seconds > 0 for _, seconds in places)
    assert scheduler.place(stop) is None
    with pytest.raises(BusyError, match=r"again in about \d+ s"), scheduler.run(Kind.LONG):
        pass
    if client:
        current.set(stop)
        assert scheduler.seconds(Kind.LONG) > 0
        with scheduler.run(Kind.SHORT):  # others are not refused
            done.append("another visitor")
        assert "another visitor" in done
    for one in clients:
        one.gone.set()
    for thread in threads:
        thread.join(30)
    assert scheduler.ahead(Kind.LONG) == 0


def test_a_long_one_does_not_pause_for_ever(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PAUSE", 0.3)
    done: list[str] = []
    endless = Client("endless")
    photo = start(scheduler, Kind.PHOTO, 100_000, done, "photo", endless)
    until(done, "photo begins")
    start(scheduler, Kind.LONG, 3, done, "long").join(30)
    assert "long ends" in done
    endless.gone.set()
    photo.join(30)


def test_an_error_leaves_the_place_to_the_next(scheduler: Scheduler) -> None:
    with pytest.raises(ZeroDivisionError), scheduler.run(Kind.PHOTO):
        _ = 1 / 0
    with scheduler.run(Kind.PHOTO):
        assert scheduler.ahead(Kind.PHOTO) == 1


def test_a_long_one_lets_another_long_one_go_first_between_its_parts(scheduler: Scheduler) -> None:
    done: list[str] = []
    client = Client("parts")

    def parts() -> None:
        current.set(client)
        with scheduler.run(Kind.LONG):
            for number in range(3):
                scheduler.give_way(Kind.LONG)
                done.append(f"part {number}")
                if number == 0:
                    while scheduler.ahead(Kind.LONG) < 2:
                        time.sleep(0.005)

    thread = threading.Thread(target=parts)
    thread.start()
    until(done, "part 0")
    other = start(scheduler, Kind.LONG, 1, done, "other")
    for one in (thread, other):
        one.join(30)
    assert done == ["part 0", "other begins", "other ends", "part 1", "part 2"]
    assert scheduler.ahead(Kind.LONG) == 0


def test_who_leaves_while_giving_way_leaves_the_place(scheduler: Scheduler) -> None:
    done: list[str] = []
    client = Client("parts")

    def parts() -> None:
        current.set(client)
        try:
            with scheduler.run(Kind.LONG):
                done.append("begins")
                while True:
                    scheduler.give_way(Kind.LONG)
                    time.sleep(0.005)
        except Cancelled:
            done.append("is stopped")

    thread = threading.Thread(target=parts)
    thread.start()
    until(done, "begins")
    endless = Client("endless")
    other = start(scheduler, Kind.LONG, 100_000, done, "other", endless)
    until(done, "other begins")
    client.gone.set()
    thread.join(30)
    assert "is stopped" in done
    endless.gone.set()
    other.join(30)
    assert scheduler.ahead(Kind.LONG) == 0
    with scheduler.run(Kind.LONG):
        assert scheduler.ahead(Kind.LONG) == 1


def test_what_is_reported_reaches_the_client(scheduler: Scheduler) -> None:
    client = Client()
    current.set(client)
    report("Testing 3 maps", 4.0, done=1, of=6)
    assert client.progress == {"text": "Testing 3 maps", "done": 1, "of": 6}
    assert client.finishes is not None
    assert 3 < client.finishes - time.monotonic() <= 4


def test_what_is_stopped_leaves_its_thread_as_it_was(scheduler: Scheduler) -> None:
    """Wherever it is stopped, also while `no_grad` ends."""
    found: list[bool] = []

    def work(client: Client) -> None:
        current.set(client)
        try:
            with scheduler.run(Kind.LONG):
                while True:
                    with torch.no_grad():
                        torch.ones(2).sum()
        except Cancelled:
            found.append(torch.is_grad_enabled())

    for _ in range(30):
        client = Client()
        thread = threading.Thread(target=work, args=(client,))
        thread.start()
        time.sleep(0.01)
        client.gone.set()
        thread.join(30)
    assert found == [True] * 30
