"""Scenes and answers within their bounds, computations that are shared and cancelled, models that come and go."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
import tiny
from offered import WIDTH, folder, made, photograph

from vitviz.explorer import Explorer
from vitviz.images.decoding import ImageError
from vitviz.model.vit import ViT
from vitviz.server import endpoints as module
from vitviz.server.models import fingerprint
from vitviz.server.scenes import Cache, Flights, UnknownScene, answer_bytes, scene_id
from vitviz.server.scheduler import Cancelled, Client, Kind, current

TESTS = Path(__file__).parents[1]


@pytest.fixture
def sources(tmp_path: Path) -> tuple[str, ...]:
    return tuple(folder(tmp_path / name, seed) for seed, name in enumerate(("a", "b", "c")))


# --- the cache


def test_the_least_recently_used_is_evicted_and_the_latest_stays() -> None:
    cache: Cache[bytes] = Cache(10, len)
    for key in "abc":
        cache.put(key, bytes(4))
        cache.get("a")
    assert [cache.get(key) is not None for key in "abc"] == [True, False, True]
    assert cache.nbytes == 8
    cache.put("large", bytes(100))
    assert [cache.get(key) is not None for key in ("a", "c", "large")] == [False, False, True]
    cache.put("a", bytes(4))
    cache.discard(lambda key, _: key == "a")
    assert cache.get("a") is None
    assert cache.nbytes == 0


def test_bytes_of_answers_are_about_what_they_take() -> None:
    assert 1000 <= answer_bytes(b"x" * 1000) < 1100
    assert 24_000 < answer_bytes([float(i) for i in range(1000)]) < 40_000
    assert answer_bytes({"a": "x" * 500, "b": [None, True, 3]}) > 700
    assert answer_bytes((np.zeros(1000), 0.1)) > 8000


def test_scenes_are_bounded_and_opened_again(tmp_path: Path, sources: tuple[str, ...]) -> None:
    endpoints = made(tmp_path / "page", sources)
    first = endpoints.open(photograph(0))["id"]
    size = endpoints.scenes.nbytes
    endpoints.scenes.limit = 2 * size + size // 2
    values = endpoints.attention(first, 0)["values"]
    for seed in (1, 2):
        endpoints.open(photograph(seed))
        assert endpoints.scenes.nbytes <= endpoints.scenes.limit
    with pytest.raises(UnknownScene):
        endpoints.attention(first, 0)
    assert endpoints.open(photograph(0))["id"] == first
    assert endpoints.attention(first, 0)["values"] == values


def test_answers_are_bounded_and_outlive_their_scene(tmp_path: Path, sources: tuple[str, ...]) -> None:
    endpoints = made(tmp_path / "page", sources)
    scene = endpoints.open(photograph())["id"]
    question = endpoints.question("explain", {"scene": scene, "method": "rollout"})
    found = question.compute()
    endpoints.scenes.discard(lambda *_: True)
    assert endpoints.question("explain", {"method": "rollout", "scene": scene}).compute() is found
    endpoints.answers.limit = 10_000
    endpoints.open(photograph())
    for block in range(tiny.DEPTH):
        endpoints.question("block", {"scene": scene, "block": block}).compute()
    assert endpoints.answers.nbytes < 10_000 + 200_000  # the latest, whatever its size
    endpoints.scenes.discard(lambda *_: True)
    with pytest.raises(UnknownScene):
        question.compute()


# --- ids


def test_ids_are_of_bytes_model_and_size_and_nothing_else(tmp_path: Path, sources: tuple[str, ...]) -> None:
    explorer = Explorer(tiny.model())
    prints = {
        fingerprint(explorer, "a"),
        fingerprint(explorer, "b"),
        fingerprint(Explorer(tiny.model(1)), "a"),
        fingerprint(Explorer(tiny.model(registers=1)), "a"),
    }
    assert len(prints) == 4
    assert fingerprint(Explorer(tiny.model()), "a") == fingerprint(explorer, "a")
    assert len({scene_id(photo, one, size) for photo in (b"a", b"b") for one in prints for size in (None, 91)}) == 16


def test_another_process_has_the_same_ids(tmp_path: Path, sources: tuple[str, ...]) -> None:
    here = made(tmp_path / "page", sources).open(photograph(5), size=2 * WIDTH)["id"]
    code = (
        "from pathlib import Path; from offered import made, photograph, WIDTH; import sys;"
        "print(made(Path(sys.argv[1]), tuple(sys.argv[2:])).open(photograph(5), size=2 * WIDTH)['id'])"
    )
    environ = {**os.environ, "PYTHONPATH": f"{TESTS.parent}:{TESTS}"}
    command = [sys.executable, "-c", code, str(tmp_path / "other"), *sources]
    there = subprocess.run(command, capture_output=True, text=True, cwd=TESTS.parent, env=environ, check=True)
    assert there.stdout.strip() == here


# --- one computation for all who ask


def test_equal_questions_are_computed_once_and_cancelled_when_all_have_left() -> None:
    flights, begun, end, count = Flights(), threading.Event(), threading.Event(), []

    def compute() -> str:
        count.append(1)
        begun.set()
        while not end.wait(0.01):
            if current.get().gone.is_set():
                raise Cancelled
        return "answer"

    one, other = (flights.join("key", compute, Client(name)) for name in ("a", "b"))
    assert one is other
    assert begun.wait(30)
    flights.leave("key", one)
    assert not one.client.gone.is_set()  # somebody waits still
    end.set()
    assert other.future.result(30) == "answer"
    assert len(count) == 1
    end.clear()
    third = flights.join("key", compute, Client("c"))
    assert third is not one
    flights.leave("key", third)
    fourth = flights.join("key", compute, Client("d"))  # who comes now begins anew
    assert fourth is not third
    assert isinstance(third.future.exception(30), Cancelled)
    end.set()
    assert fourth.future.result(30) == "answer"


def test_what_nobody_waits_for_does_not_begin() -> None:
    flights, end, ran = Flights(), threading.Event(), []
    busy = [flights.join(f"busy {i}", lambda: end.wait(30), Client(), light=True) for i in range(2)]
    waiting = flights.join("waiting", lambda: ran.append(1), Client(), light=True)
    flights.leave("waiting", waiting)
    end.set()
    assert isinstance(waiting.future.exception(30), Cancelled)
    assert ran == []
    assert all(one.future.result(30) for one in busy)


def test_an_error_is_handed_to_all_who_wait_and_not_kept() -> None:
    flights, calls = Flights(), []

    def compute() -> None:
        calls.append(1)
        time.sleep(0.1)
        raise ImageError("Expected one.")

    one, other = (flights.join("key", compute, Client()) for _ in range(2))
    for flight in (one, other):
        assert isinstance(flight.future.exception(30), ImageError)
    assert flights.join("key", compute, Client()).future.exception(30)
    assert len(calls) == 2


def test_the_same_photograph_at_once_runs_the_model_once(
    tmp_path: Path, sources: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoints, runs, run = made(tmp_path / "page", sources), [], module.open_view
    monkeypatch.setattr(module, "open_view", lambda *given: runs.append(1) or run(*given))
    flights = []
    with endpoints.scheduler.run(Kind.PHOTO):
        for _ in range(20):
            question = endpoints.question("open", {"photo": photograph(3)})
            flights.append(endpoints.flights.join(question.key, question.compute, Client(), question.light))
    assert len({flight.future.result(60)["id"] for flight in flights}) == 1
    assert len(runs) == 1


# --- models


def test_a_model_that_is_evicted_is_let_go_and_loaded_again(tmp_path: Path, sources: tuple[str, ...]) -> None:
    endpoints = made(tmp_path / "page", sources, memory=2.5)
    scene = endpoints.open(photograph(), sources[1])["id"]
    found = endpoints.scenes.get(scene)
    assert found is not None
    alive, values = weakref.ref(found.view.model), endpoints.attention(scene, 0)["values"]
    endpoints.open(photograph(), sources[2])
    with pytest.raises(UnknownScene):
        endpoints.attention(scene, 0)
    assert found.view.attention(0).values.shape == tiny.GRID  # who has it can finish
    del found
    gc.collect()
    assert alive() is None
    assert endpoints.open(photograph(), sources[1])["id"] == scene
    assert endpoints.attention(scene, 0)["values"] == values


def test_a_scene_of_a_model_that_was_evicted_meanwhile_is_not_kept(
    tmp_path: Path, sources: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoints, run = made(tmp_path / "page", sources, memory=2.5), module.open_view

    def slow(*given: object) -> object:
        endpoints.loaded.get(sources[2])  # takes the memory of the model that is running
        return run(*given)

    monkeypatch.setattr(module, "open_view", slow)
    manifest = endpoints.open(photograph(), sources[1])
    assert manifest["predictions"]
    assert endpoints.scenes.get(manifest["id"]) is None


def test_a_model_is_loaded_once(tmp_path: Path, sources: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr("vitviz.server.menu.zoo.load", lambda name: loaded.append(name) or tiny.model())
    endpoints = made(tmp_path / "page", sources)
    for seed in (0, 1):
        for size in (WIDTH, 2 * WIDTH):
            endpoints.open(photograph(seed), sources[0], size)
    assert loaded == [sources[0]]


def test_no_model_is_asked_for_more_patches_than_are_listed(
    tmp_path: Path, sources: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoints = made(tmp_path / "page", sources)
    monkeypatch.setattr("vitviz.server.sizes.MOST_PATCHES", 9)
    assert endpoints.open(photograph(), size=3 * tiny.PATCH)["size"] == 3 * tiny.PATCH
    with pytest.raises(ValueError, match=f"at most {3 * tiny.PATCH} pixels for this model, got {4 * tiny.PATCH}"):
        endpoints.open(photograph(), size=4 * tiny.PATCH)


def test_a_model_that_cannot_be_loaded_is_named_in_words(
    tmp_path: Path, sources: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoints, load = made(tmp_path / "page", sources), endpoints_load(sources[1])
    monkeypatch.setattr("vitviz.server.menu.zoo.load", load)
    with pytest.raises(ValueError, match=r"^Expected Tiny 1 to open, got RuntimeError\. Choose another model\.$"):
        endpoints.open(photograph(), sources[1])


def endpoints_load(broken: str) -> object:
    def load(name: str) -> ViT:
        if name == broken:
            raise RuntimeError(f"{broken}: secret")
        return tiny.model()

    return load
