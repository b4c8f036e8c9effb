"""What clients cause is booked in one account: places are kept for others, and memory never passes its budget."""

from __future__ import annotations

import gc
import io
import threading
import weakref
from pathlib import Path

import pytest
from offered import ask, folder, made, photograph
from patience import patience, wait_until
from PIL import Image

from vitviz.server.account import Account, Budget, OverBudgetError, Resource
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
