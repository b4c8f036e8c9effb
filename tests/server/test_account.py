"""Bookings of memory, places and connections: places are reserved, and budgets are never exceeded."""

import asyncio
import errno
import gc
import socket
import threading
import weakref
from contextlib import ExitStack, closing
from hashlib import sha256
from typing import Any
from unittest.mock import Mock

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
            first.add(1)  # an address may use a quarter of the budget
        assert first.amount == 250
        with account.book(Resource.TRANSFERS, "c", 250), account.book(Resource.TRANSFERS, "d", 250):
            assert not account.fits(Resource.TRANSFERS, "e", 1)
    assert account.used(Resource.TRANSFERS) == 0


def fill(account: Account, resource: Resource, address: str, most: int = 2 * HALL) -> list[Booking]:
    """Book places for an address until a booking is refused, at most `most`."""
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
    """Maps refer to the photograph, so they are evicted with their scene."""
    limit = 20_000_000
    endpoints.account.budgets[Resource.SCENES] = Budget(limit)
    photographs = []
    for seed in range(7):
        plain = saved(Image.new("RGB", (1200, 900), (seed, 0, 0)), "PNG")  # large, but fast to encode
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
    answers.append(endpoints.cache.get((scene, f"map rollout {sha256(b'{}').hexdigest()}")))  # for tests of the map
    assert before < opened.nbytes == endpoints.account.used(Resource.SCENES) - sum(map(size_of, answers))


class Line:
    """Connection without a socket."""

    def __init__(self, address: str, idle: bool) -> None:
        self.address, self.idle, self.transport = address, idle, Mock()


class Lines(Connections):
    """Allow at most 30 connections, at most 15 from one address, with 10 reserved."""

    def __init__(self) -> None:
        super().__init__(Account(), 1.0)
        self.account.budgets[Resource.CONNECTIONS] = Budget(30, 15, reserved=10)

    def open(self, address: str, idle: bool = True) -> Line:
        line = Line(address, idle)
        if not self.admit(line):
            line.transport.abort()
        return line

    def used(self, address: str | None = None) -> int:
        return self.account.used(Resource.CONNECTIONS, address)


def test_half_open_connections_leave_room_for_others(caplog: pytest.LogCaptureFixture) -> None:
    lines = Lines()
    for number in range(100):
        lines.open(f"address {number % 20}")
    assert lines.used() <= 30
    others = [lines.open("visitor") for _ in range(5)]
    assert not any(line.transport.abort.called for line in others)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_busy_connections_are_closed_only_for_an_address_with_fewer() -> None:
    lines = Lines()
    for address in "abc":
        for _ in range(15):
            lines.open(address, idle=False)
    assert not lines.open("visitor", idle=False).transport.abort.called
    assert lines.used() <= 30
    assert all(5 <= lines.used(address) <= 10 for address in "abc")


def test_address_at_its_limit_replaces_its_own_idle_connections() -> None:
    lines = Lines()
    visitor = lines.open("visitor")
    own = [lines.open("crowd") for _ in range(50)]
    assert lines.used() == 16
    assert not visitor.transport.abort.called
    assert [line.transport.abort.called for line in own] == [True] * 35 + [False] * 15


def test_unfinished_headers_close_a_connection_and_idle_ones_stay_open() -> None:
    whole, account, port = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", Account(), free_port()

    async def answer(scope: Any, _receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body"})

    config = uvicorn.Config(answer, port=port, log_level="warning", interface="asgi3")
    config.http = Connections(account, 1.0).protocol
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_until(lambda: server.started, "the server listens")
    half, idle = (socket.create_connection(("127.0.0.1", port), timeout=patience(20)) for _ in range(2))
    with half, idle:
        half.sendall(whole[:20])
        for _ in range(2):
            idle.sendall(whole)
            assert idle.recv(1000).startswith(b"HTTP/1.1 200")
            assert half.recv(100) == b""  # closed before the second request on the other connection
        idle.sendall(whole[:20])
        assert idle.recv(100) == b""
    wait_until(lambda: account.used(Resource.CONNECTIONS) == 0, "closed connections are released")
    server.should_exit = True
    thread.join(patience(60))


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
