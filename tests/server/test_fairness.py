"""What one address may send, read and ask at once; photographs and answers stay within the cache's budget."""

import asyncio
import gc
import weakref
from contextlib import ExitStack
from hashlib import sha256

import pytest
from anyio.from_thread import BlockingPortal
from image_files import saved
from offered import ask, cached, photograph, view_of, visiting
from PIL import Image

from vitviz.server.arguments import MAX_PHOTO_BYTES
from vitviz.server.endpoints import Endpoints
from vitviz.server.fairness import Transfers, address
from vitviz.server.health import health
from vitviz.server.jobs import MAX_LONG, MAX_OPEN, BusyError, Job, Jobs, Kind, current
from vitviz.server.scenes import Cache, size_of

HALL = 60  # students behind one address
GIGABYTE = 10**9


@pytest.mark.parametrize(
    ("host", "shared"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9%eth0", "2001:db8:1:2::/64"),
        ("not an address", "not an address"),
    ],
)
def test_an_ipv6_address_counts_as_its_network(host: str, shared: str) -> None:
    assert address({"client": (host, 1)}) == shared


def test_photographs_of_a_lecture_hall_are_all_transferred(portal: BlockingPortal) -> None:
    cache, size, done = Cache(GIGABYTE), 4 * 10**6, []
    transfers = Transfers(cache)

    async def send(number: int) -> None:
        await transfers.wait("hall", size)
        with transfers.hold("hall", size):
            assert cache.reserved <= MAX_PHOTO_BYTES
            await asyncio.sleep(0)
            done.append(number)

    async def all_send() -> None:
        await asyncio.gather(*map(send, range(HALL)))

    portal.call(all_send)
    assert sorted(done) == list(range(HALL))
    assert cache.used == cache.reserved == 0


def test_transfers_of_an_address_and_in_total_are_bounded() -> None:
    transfers = Transfers(Cache(6 * MAX_PHOTO_BYTES))
    with ExitStack() as open_transfers:
        open_transfers.enter_context(transfers.hold("a", MAX_PHOTO_BYTES))
        assert not transfers.fits("a", 10**6)
        assert transfers.fits("a", 10**4)  # a short question does not wait for a photograph
        assert transfers.fits("b", MAX_PHOTO_BYTES)
        open_transfers.enter_context(transfers.hold("b", MAX_PHOTO_BYTES))
        assert not transfers.fits("c", 10**6)  # a third of the memory is in transfer
        assert transfers.fits("c", 10**4)
    assert transfers.fits("a", 2 * MAX_PHOTO_BYTES)  # one transfer may be larger


def test_transfers_evict_cached_values() -> None:
    cache = Cache(10_000)
    cache.put(("scene", "open"), bytes(6_000))
    with cache.reserve(3_000):
        assert cache.get(("scene", "open"))
    with cache.reserve(5_000):
        assert cache.get(("scene", "open")) is None
        cache.put(("scene", "open"), bytes(6_000))
        assert cache.get(("scene", "open")) is None  # larger than the rest
    assert cache.used == 0


def test_long_questions_of_an_address_leave_places_for_others(endpoints: Endpoints) -> None:
    jobs = endpoints.jobs
    with ExitStack() as attack:
        for attacker in ("attacker", "other attacker"):
            for _ in range(MAX_LONG):
                attack.enter_context(jobs._place(Kind.LONG, attacker))
            assert not jobs.has_place(Kind.LONG, attacker)
        endpoints.loaded.get(endpoints.menu.default)
        assert health(endpoints)["ready"]
        with visiting("127.0.0.9"):  # photographs are counted separately
            assert ask(endpoints, "open", photo=photograph(4))["id"]
        for number in range(35):
            attack.enter_context(jobs._place(Kind.LONG, f"visitor {number}"))
        with visiting("attacker"), pytest.raises(BusyError), jobs.run(Kind.LONG):
            pass
    assert jobs.has_place(Kind.LONG, "attacker")


def test_open_questions_of_an_address_are_bounded() -> None:
    jobs, current_job = Jobs(), current.get()
    with jobs._changed:  # no job can end
        for number in range(MAX_OPEN):
            jobs._open[number] = Job("attacker", number)
        with pytest.raises(BusyError):
            jobs.join("another", lambda: None, "attacker")
        assert jobs.join(3, lambda: None, "attacker").key == 3  # an open one can be joined
    assert jobs.join("another", lambda: 7, "visitor").future.result() == 7
    assert current.get() is current_job


def test_distinct_photographs_stay_within_the_budget_and_are_freed(endpoints: Endpoints) -> None:
    """Maps refer to the photograph, so they are evicted with their scene."""
    limit = endpoints.cache.budget = 20_000_000
    photographs = []
    for seed in range(7):
        plain = saved(Image.new("RGB", (1200, 900), (seed, 0, 0)), "PNG")  # large, but fast to encode
        scene = ask(endpoints, "open", photo=plain)["id"]
        photographs.append(weakref.ref(view_of(endpoints, scene).photo))
        size = cached(endpoints, scene).nbytes
        assert size > 4 * 1200 * 900  # bytes of the picture in memory
        ask(endpoints, "explain", scene=scene, method="rollout")
        ask(endpoints, "explain", scene=scene, method="token_gradcam")
        assert endpoints.cache.used <= limit
    gc.collect()
    alive = sum(reference() is not None for reference in photographs)
    assert 1 <= alive <= limit // size
    endpoints.cache.discard(lambda _: True)
    assert endpoints.cache.used == 0


def test_results_cached_by_a_view_are_counted_with_its_scene(endpoints: Endpoints) -> None:
    scene = ask(endpoints, "open", photo=photograph(3))["id"]
    opened = cached(endpoints, scene)
    before = opened.nbytes
    answers = [ask(endpoints, "attention", scene=scene, block=0)]
    answers.append(ask(endpoints, "explain", scene=scene, method="rollout"))
    answers.append(endpoints.cache.get((scene, f"map rollout {sha256(b'{}').hexdigest()}")))  # for tests of the map
    assert before < opened.nbytes == endpoints.cache.used - sum(map(size_of, answers))
