"""The account of memory, places and connections: places are reserved, and budgets are never exceeded."""

import asyncio
import errno
import gc
import socket
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any

import pytest
import uvicorn
from asking import free_port
from image_files import saved
from offered import ask, cached, photograph, view_of, visiting
from patience import patience, wait_until
from PIL import Image

from vitviz.server.account import Account, Booking, Budget, OverBudgetError, Resource
from vitviz.server.connections import Connections, QuietAccepts, connection_budget
from vitviz.server.endpoints import Endpoints
from vitviz.server.health import health
from vitviz.server.scenes import size_of
from vitviz.settings import Settings

HALL = 60  # students behind one address


def test_bookings_are_summed_by_address_and_in_total_and_released() -> None:
    account = Account(Settings(transfers=1000))
    with account.book(Resource.TRANSFERS, "a", 200) as first, account.book(Resource.TRANSFERS, "b", 250):
        first.add(50)
        assert account.used(Resource.TRANSFERS) == 500
        assert account.used(Resource.TRANSFERS, "a") == 250
        with pytest.raises(OverBudgetError):
            first.add(1)  # a quarter of the budget is one address's
        assert first.amount == 250
        with account.book(Resource.TRANSFERS, "c", 250), account.book(Resource.TRANSFERS, "d", 250):
            assert not account.fits(Resource.TRANSFERS, "e", 1)
    assert account.used(Resource.TRANSFERS) == 0


def fill(account: Account, resource: Resource, address: str, most: int = 2 * HALL) -> list[Booking]:
    """Book places for an address until it is refused."""
    bookings = []
    while len(bookings) < most and account.fits(resource, address):
        bookings.append(account.book(resource, address))
    return bookings


def test_long_questions_of_two_addresses_leave_places_for_others(endpoints: Endpoints) -> None:
    account = endpoints.account
    for address in ("attacker", "other attacker"):
        fill(account, Resource.LONG, address)
    endpoints.loaded.get(endpoints.menu.default)
    assert health(endpoints)["ready"]
    with visiting("127.0.0.9"):  # photographs are counted separately
        assert ask(endpoints, "open", photo=photograph(4))["id"]
    assert all(account.book(Resource.LONG, f"visitor {number}") for number in range(35))


def test_limit_of_an_address_applies_only_while_another_has_a_place() -> None:
    account = Account()
    with ExitStack() as hall:
        for booking in fill(account, Resource.PHOTOGRAPHS, "hall", HALL):
            hall.enter_context(booking)
        assert account.used(Resource.PHOTOGRAPHS, "hall") == HALL
        assert account.fits(Resource.PHOTOGRAPHS, "hall")
        with account.book(Resource.PHOTOGRAPHS, "visitor"):
            assert not account.fits(Resource.PHOTOGRAPHS, "hall")
        assert account.fits(Resource.PHOTOGRAPHS, "hall")
    assert account.used(Resource.PHOTOGRAPHS) == 0
    fill(account, Resource.PHOTOGRAPHS, "attacker", HALL)  # leaves enough places for a lecture hall
    assert len(fill(account, Resource.PHOTOGRAPHS, "hall")) == HALL
    small = Account(Settings(places=3))  # one is reserved for addresses without a booking
    assert len(fill(small, Resource.PHOTOGRAPHS, "alone")) == 2
    assert small.fits(Resource.PHOTOGRAPHS, "visitor")


def test_distinct_photographs_stay_within_the_budget_and_are_freed(endpoints: Endpoints) -> None:
    """Maps hold the photograph, so they are evicted with their scene."""
    limit = 20_000_000
    endpoints.account.budgets[Resource.SCENES] = Budget(limit)
    photographs = []
    for seed in range(7):
        plain = saved(Image.new("RGB", (1200, 900), (seed, 0, 0)), "PNG")  # large, and encoded quickly
        scene = ask(endpoints, "open", photo=plain)["id"]
        photographs.append(weakref.ref(view_of(endpoints, scene).photo))
        size = cached(endpoints, scene).nbytes
        assert size > 4 * 1200 * 900  # bytes of the picture in memory
        ask(endpoints, "explain", scene=scene, method="rollout")
        ask(endpoints, "explain", scene=scene, method="token_gradcam")
        assert endpoints.account.used(Resource.SCENES) <= limit
    gc.collect()
    alive = sum(reference() is not None for reference in photographs)
    assert 1 <= alive <= limit // size
    endpoints.cache.discard(lambda _: True)
    assert endpoints.account.used(Resource.SCENES) == 0


def test_results_cached_by_a_view_are_booked_with_its_scene(endpoints: Endpoints) -> None:
    scene = ask(endpoints, "open", photo=photograph(3))["id"]
    opened = cached(endpoints, scene)
    before = opened.nbytes
    answers = [ask(endpoints, "attention", scene=scene, block=0)]
    answers.append(ask(endpoints, "explain", scene=scene, method="rollout"))
    assert before < opened.nbytes == endpoints.account.used(Resource.SCENES) - sum(map(size_of, answers))
    assert len(opened.maps) == 1


HALF = b"POST /vitviz/open HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-"
WHOLE = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
HELD = b"GET /held HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
STALL = 1.0  # seconds


class Listening:
    """A server with our connections; its answers to /held wait until the client disconnects."""

    def __init__(self) -> None:
        self.account, self.port, self.requests = Account(), free_port(), 0
        self.account.budgets[Resource.CONNECTIONS] = Budget(30, 15, reserved=10)
        config = uvicorn.Config(self.answer, port=self.port, log_level="warning", interface="asgi3")
        config.http = Connections(self.account, STALL).protocol
        self.server, self.sockets = uvicorn.Server(config), ExitStack()
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        wait_until(lambda: self.server.started, "it listens")

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        self.requests += 1
        while scope["path"] == "/held" and (await receive())["type"] != "http.disconnect":
            pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    def open(self, address: str, data: bytes) -> socket.socket:
        """Open a connection, and send the beginning of a request."""
        line = self.sockets.enter_context(socket.socket())
        line.settimeout(patience(20))
        line.bind((address, 0))
        line.connect(("127.0.0.1", self.port))
        with suppress(OSError):
            line.sendall(data)
        return line

    def used(self) -> int:
        return self.account.used(Resource.CONNECTIONS)

    def close(self) -> None:
        self.sockets.close()
        self.server.should_exit = True
        self.thread.join(patience(60))


def is_answered(line: socket.socket) -> bool:
    """Whether a connection gets an answer before it is closed."""
    answer = b""
    with suppress(OSError):
        while not answer.endswith(b"ok") and (part := line.recv(1000)):
            answer += part
    return answer.endswith(b"ok")


def is_closed(line: socket.socket) -> bool:
    """Whether the server has closed a connection without an answer."""
    line.setblocking(False)
    try:
        return line.recv(1) == b""
    except OSError as error:
        return not isinstance(error, BlockingIOError)


@pytest.fixture
def listening() -> Iterator[Listening]:
    with closing(Listening()) as listening:
        yield listening


def test_half_open_connections_leave_room_for_others(listening: Listening, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(100):
        listening.open(f"127.0.1.{1 + number % 20}", HALF)
    assert listening.used() <= 30
    assert all(is_answered(listening.open("127.0.0.77", WHOLE)) for _ in range(5))
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_busy_connections_are_closed_only_for_an_address_with_fewer(listening: Listening) -> None:
    addresses = [f"127.0.2.{number}" for number in range(1, 4)]
    for address in addresses:
        for _ in range(15):
            before = listening.requests
            line = listening.open(address, HELD)
            wait_until(lambda line=line, before=before: listening.requests > before or is_closed(line), "it is taken")
    assert is_answered(listening.open("127.0.0.77", WHOLE))
    wait_until(lambda: listening.used() <= 23, "closed connections are released")
    shares = [listening.account.used(Resource.CONNECTIONS, address) for address in addresses]
    assert min(shares) >= 5
    assert max(shares) <= 9


def test_address_at_its_limit_replaces_its_own_idle_connections(listening: Listening) -> None:
    visitor = listening.open("127.0.0.77", HALF)
    for _ in range(50):
        listening.open("127.0.2.1", HALF)
    wait_until(lambda: listening.used() == 16, "they are taken")
    visitor.sendall(b"Length: 0\r\n\r\n")
    assert is_answered(visitor)


def test_unfinished_headers_close_a_connection_and_idle_ones_stay_open(listening: Listening) -> None:
    half = listening.open("127.0.0.2", HALF)
    idle = listening.open("127.0.0.3", WHOLE)
    assert is_answered(idle)
    assert half.recv(100) == b""
    idle.sendall(WHOLE)
    assert is_answered(idle)
    idle.sendall(HALF)
    assert idle.recv(100) == b""
    wait_until(lambda: listening.used() == 0, "closed connections are released")


@pytest.mark.parametrize("files", [256, 1024, 65_536])
def test_connection_budget_is_below_the_number_of_open_files(files: int) -> None:
    budget = connection_budget(files)
    assert budget.total + files // 8 < files
    assert 2 * budget.each <= budget.total
    assert budget.reserved > 0


def test_lack_of_open_files_is_logged_once_and_other_errors_each_time(caplog: pytest.LogCaptureFixture) -> None:
    with closing(asyncio.new_event_loop()) as loop:
        handle = QuietAccepts()
        for error in (*[OSError(errno.EMFILE, "Too many open files")] * 9, RuntimeError("another")):
            handle(loop, {"message": "socket.accept()", "exception": error})
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]
