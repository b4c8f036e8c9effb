"""What clients cause is booked in one account: places are kept for others, and memory never passes its budget."""

from __future__ import annotations

import asyncio
import errno
import gc
import io
import json
import logging
import socket
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from asking import Site, free_port
from offered import ask, folder, made, photograph
from patience import patience, wait_until
from PIL import Image

from vitviz.server.account import Account, Budget, OverBudgetError, Resource
from vitviz.server.connections import Connections, QuietAccepts, connection_budget
from vitviz.server.endpoints import Endpoints
from vitviz.server.health import health
from vitviz.server.scheduler import BusyError, Client, Kind, Scheduler, current
from vitviz.server.settings import Settings

HALL = 60  # students behind one address


def test_bookings_add_up_by_address_and_in_all_and_are_released() -> None:
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


def test_two_addresses_leave_places_to_everybody_else() -> None:
    account = Account()
    for address in ("attacker", "other attacker"):
        for _ in range(2 * HALL):
            if account.fits(Resource.LONG, address):
                account.book(Resource.LONG, address)
    assert all(account.book(Resource.LONG, f"visitor {number}") for number in range(35))
    assert account.fits(Resource.PHOTOGRAPHS, "visitor")  # counted apart


def test_a_lecture_hall_has_its_places_beside_an_attacker() -> None:
    account = Account()
    while account.fits(Resource.PHOTOGRAPHS, "attacker") and account.used(Resource.PHOTOGRAPHS) < HALL:
        account.book(Resource.PHOTOGRAPHS, "attacker")
    assert all(account.book(Resource.PHOTOGRAPHS, "hall") for _ in range(HALL))
    assert not account.fits(Resource.PHOTOGRAPHS, "hall")


def test_the_share_of_an_address_binds_only_while_another_waits() -> None:
    account = Account()
    held = [account.book(Resource.PHOTOGRAPHS, "hall") for _ in range(HALL)]
    assert account.fits(Resource.PHOTOGRAPHS, "hall")
    with account.book(Resource.PHOTOGRAPHS, "visitor"):
        assert not account.fits(Resource.PHOTOGRAPHS, "hall")
    assert account.fits(Resource.PHOTOGRAPHS, "hall")
    for booking in held:
        booking.close()
    assert account.used(Resource.PHOTOGRAPHS) == 0


# --- the server


@pytest.fixture
def endpoints(tmp_path: Path) -> Endpoints:
    return made(tmp_path / "page", (folder(tmp_path / "a"),))


class Crowd:
    """Clients that hold places of a scheduler until they leave."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.clients, self.threads, self.end = scheduler, list[Client](), [], threading.Event()

    def join(self, address: str, kind: Kind, number: int) -> None:
        for _ in range(number):
            client = Client(address)
            self.clients.append(client)
            booked = self.scheduler.account.used(Resource.LONG if kind is Kind.LONG else Resource.PHOTOGRAPHS)
            self.threads.append(threading.Thread(target=self._hold, args=(client, kind)))
            self.threads[-1].start()
            resource = Resource.LONG if kind is Kind.LONG else Resource.PHOTOGRAPHS
            wait_until(
                lambda resource=resource, booked=booked: self.scheduler.account.used(resource) > booked,
                "it has a place",
            )

    def _hold(self, client: Client, kind: Kind) -> None:
        current.set(client)
        try:
            with self.scheduler.run(kind):
                self.end.wait(patience(60))
        except ValueError:
            pass
        except Exception:  # noqa: BLE001 - it was cancelled
            return

    def leave(self) -> None:
        for client in self.clients:
            client.gone.set()
        self.end.set()
        for thread in self.threads:
            thread.join(patience(60))


def test_long_questions_of_two_addresses_refuse_no_photograph_and_the_server_is_ready(endpoints: Endpoints) -> None:
    crowd = Crowd(endpoints.scheduler)
    for address in ("127.0.0.2", "127.0.0.3"):
        crowd.join(address, Kind.LONG, HALL)
    try:
        endpoints.loaded.get(endpoints.menu.default)
        assert health(endpoints)["ready"]
        token = current.set(Client("127.0.0.9"))
        try:
            assert ask(endpoints, "open", photo=photograph(4))["id"]
        finally:
            current.reset(token)
        assert endpoints.account.fits(Resource.LONG, "127.0.0.9")
    finally:
        crowd.leave()
    assert endpoints.account.used(Resource.LONG) == 0


def test_a_full_account_answers_with_the_time_to_wait() -> None:
    scheduler = Scheduler(Account(Settings(places=3)))
    crowd = Crowd(scheduler)
    crowd.join("a", Kind.PHOTO, 2)  # alone it may have all but the kept place
    token = current.set(Client("a"))
    try:
        with pytest.raises(BusyError, match=r"again in about \d+ s"), scheduler.run(Kind.PHOTO):
            pass
    finally:
        current.reset(token)
        crowd.leave()


def plain(seed: int) -> bytes:
    """A large photograph that is encoded quickly."""
    out = io.BytesIO()
    Image.new("RGB", (1200, 900), (seed, 0, 0)).save(out, "PNG")
    return out.getvalue()


def test_distinct_photographs_that_are_explained_stay_within_the_budget_and_are_let_go(endpoints: Endpoints) -> None:
    """Maps hold the photograph: they go with their scene."""
    limit = 20_000_000
    endpoints.account.budgets[Resource.SCENES] = Budget(limit)
    photographs = []
    for seed in range(12):
        scene = ask(endpoints, "open", photo=plain(seed))["id"]
        found = endpoints.scenes.get(scene)
        assert found is not None
        photographs.append(weakref.ref(found.view.photo))
        size = found.nbytes
        assert size > 4 * 1200 * 900  # what a picture takes in memory
        del found
        ask(endpoints, "explain", scene=scene, method="rollout")
        ask(endpoints, "explain", scene=scene, method="token_gradcam")
        assert endpoints.account.used(Resource.SCENES) <= limit
    gc.collect()
    alive = sum(one() is not None for one in photographs)
    assert 1 <= alive <= limit // size
    assert endpoints.account.used(Resource.SCENES) == endpoints.scenes.nbytes + endpoints.answers.nbytes


def test_what_questions_keep_is_booked_with_the_scene(endpoints: Endpoints) -> None:
    scene = ask(endpoints, "open", photo=photograph(3))["id"]
    before = endpoints.scenes.nbytes
    ask(endpoints, "attention", scene=scene, block=0)
    ask(endpoints, "explain", scene=scene, method="rollout")
    found = endpoints.scenes.get(scene)
    assert found is not None
    assert before < endpoints.scenes.nbytes == endpoints.account.used(Resource.SCENES) - endpoints.answers.nbytes
    assert endpoints.scenes.nbytes == found.nbytes
    assert len(found.maps) == 1


# --- connections

HALF = b"POST /vitviz/open HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-"
WHOLE = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
HELD = b"GET /held HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
STALL = 1.0  # seconds


class Listening:
    """A server with the connections of ours, whose answers to /held wait for the end."""

    def __init__(self, budget: Budget) -> None:
        self.account, self.port, self.requests = Account(), free_port(), 0
        self.account.budgets[Resource.CONNECTIONS] = budget
        self.connections = Connections(self.account, STALL)
        self.config = uvicorn.Config(self.answer, port=self.port, log_level="warning", interface="asgi3")
        self.config.http = self.connections.protocol  # type: ignore[assignment]
        self.server, self.sockets = uvicorn.Server(self.config), ExitStack()
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

    def open(self, address: str, data: bytes, count: int = 1) -> list[socket.socket]:
        """Open connections one after the other, and send the beginning of a request on each."""
        found = []
        for _ in range(count):
            one = self.sockets.enter_context(socket.socket())
            one.settimeout(patience(20))
            one.bind((address, 0))
            one.connect(("127.0.0.1", self.port))
            with suppress(OSError):
                one.sendall(data)
            found.append(one)
        return found

    def close(self) -> None:
        self.sockets.close()
        self.server.should_exit = True
        self.thread.join(patience(60))


def is_answered(one: socket.socket) -> bool:
    """Whether a connection is answered, and not closed."""
    found = b""
    with suppress(OSError):
        while not found.endswith(b"ok") and (part := one.recv(1000)):
            found += part
    return found.endswith(b"ok")


def is_closed(one: socket.socket) -> bool:
    """Whether the server has closed a connection on which nothing was answered."""
    one.setblocking(False)
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@pytest.fixture
def listening() -> Iterator[Listening]:
    served = Listening(Budget(30, 15, kept=10))
    yield served
    served.close()


def used(served: Listening) -> int:
    return served.account.used(Resource.CONNECTIONS)


def test_half_open_connections_of_many_addresses_leave_room_for_a_visitor_and_are_noted_once(
    listening: Listening, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(100):
        listening.open(f"127.0.1.{1 + number % 20}", HALF)
    assert used(listening) <= 30
    for _ in range(5):
        (visitor,) = listening.open("127.0.0.77", WHOLE)
        assert is_answered(visitor)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_connections_that_are_answered_are_closed_only_for_an_address_with_fewer(listening: Listening) -> None:
    addresses = [f"127.0.2.{number}" for number in range(1, 4)]
    for address in addresses:
        for _ in range(15):
            before = listening.requests
            (one,) = listening.open(address, HELD)
            wait_until(lambda one=one, before=before: listening.requests > before or is_closed(one), "it is taken")
    (visitor,) = listening.open("127.0.0.77", WHOLE)
    assert is_answered(visitor)
    wait_until(lambda: used(listening) <= 23, "what is closed is released")
    shares = [listening.account.used(Resource.CONNECTIONS, address) for address in addresses]
    assert min(shares) >= 5  # nobody holds what others need
    assert max(shares) <= 9


def test_an_address_closes_its_own_idle_connections(listening: Listening) -> None:
    (visitor,) = listening.open("127.0.0.77", HALF)
    listening.open("127.0.2.1", HALF, 50)
    wait_until(lambda: used(listening) == 16, "they are taken")
    visitor.sendall(b"Length: 0\r\n\r\n")
    assert is_answered(visitor)


def test_headers_that_do_not_end_in_time_close_the_connection_and_idle_ones_stay(listening: Listening) -> None:
    (half,) = listening.open("127.0.0.2", HALF)
    (idle,) = listening.open("127.0.0.3", WHOLE)
    assert is_answered(idle)
    assert half.recv(100) == b""
    idle.sendall(WHOLE)
    assert is_answered(idle)
    idle.sendall(HALF)
    assert idle.recv(100) == b""
    wait_until(lambda: used(listening) == 0, "what is closed is released")


@pytest.mark.parametrize("files", [256, 1024, 65_536])
def test_connections_are_fewer_than_open_files(files: int) -> None:
    budget = connection_budget(files)
    assert budget.total + files // 8 < files
    assert budget.each is not None
    assert 2 * budget.each <= budget.total
    assert budget.kept > 0


def test_a_system_without_files_is_noted_once_and_other_errors_each(caplog: pytest.LogCaptureFixture) -> None:
    loop, quiet = asyncio.new_event_loop(), QuietAccepts()
    try:
        with caplog.at_level(logging.WARNING):
            for _ in range(1000):
                quiet(loop, {"message": "socket.accept()", "exception": OSError(errno.EMFILE, "Too many open files")})
            assert len(caplog.records) == 1
            quiet(loop, {"message": "another", "exception": RuntimeError("another")})
            assert len(caplog.records) == 2
    finally:
        loop.close()


# --- tools, whose questions gradio asks of its own server


@pytest.mark.parametrize("proxies", [0, 1, 2])
def test_a_tools_question_is_booked_for_its_visitor(
    tmp_path: Path, proxies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "10.0.0.1" if proxies else "127.0.0.1")
    site = Site(made(tmp_path / "page", (folder(tmp_path / "a"),), mcp=True, proxies=proxies), listens=True)
    try:
        asked, join = [], site.endpoints.flights.join

        def noted(key: Any, compute: Any, client: Client, light: bool = False) -> Any:
            asked.append(client.address)
            return join(key, compute, client, light)

        monkeypatch.setattr(site.endpoints.flights, "join", noted)
        call = {"name": "layers", "arguments": {"scene": "0" * 32}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        for visitor in ("203.0.113.7", "203.0.113.8"):
            forwarded = ", ".join(["6.6.6.6"] * bool(proxies) + [visitor] + ["10.0.0.2"] * max(0, proxies - 1))
            headers = {"accept": "application/json, text/event-stream", "x-forwarded-for": forwarded}
            answer = site.client.post("/gradio_api/mcp/", json=body, headers=headers)
            assert "not here any more" in answer.text, json.dumps(answer.text)
        assert asked == ["203.0.113.7", "203.0.113.8"]
    finally:
        site.close()
