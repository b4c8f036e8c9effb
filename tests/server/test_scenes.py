"""Scenes and answers within their bounds, computations that are shared and cancelled, models that come and go."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny
from offered import WIDTH, made, photograph
from patience import patience

from vitviz.explorer import Explorer
from vitviz.images.decoding import ImageError
from vitviz.model.vit import ViT
from vitviz.server import endpoints as module
from vitviz.server.account import Account, Resource
from vitviz.server.endpoints import Endpoints
from vitviz.server.models import fingerprint
from vitviz.server.scenes import Cache, Flights, Shelf, UnknownScene, answer_bytes, scene_id
from vitviz.server.scheduler import Cancelled, Client, current
from vitviz.server.settings import Settings

Make = Callable[..., Endpoints]


@pytest.fixture
def make(tmp_path: Path, sources: tuple[str, ...]) -> Make:
    """Make endpoints with three models."""
    return lambda **options: made(tmp_path / "page", sources, **options)


# --- the cache


def test_the_least_recently_used_is_evicted_and_what_is_too_large_is_not_held() -> None:
    account = Account(Settings(scene_memory=10))
    cache: Cache[bytes] = Cache(Shelf(account), len)
    for key in "abc":
        cache.put(key, bytes(4))
        cache.get("a")
    assert [cache.get(key) is not None for key in "abc"] == [True, False, True]
    assert cache.nbytes == account.used(Resource.SCENES) == 8
    cache.put("large", bytes(100))
    assert [cache.get(key) is not None for key in ("a", "c", "large")] == [True, True, False]
    cache.put("a", bytes(4))
    cache.discard(lambda key, _: key == "a")
    assert cache.get("a") is None
    assert cache.nbytes == account.used(Resource.SCENES) == 4


def test_bytes_of_answers_are_about_what_they_take() -> None:
    assert 1000 <= answer_bytes(b"x" * 1000) < 1100
    assert 24_000 < answer_bytes([float(i) for i in range(1000)]) < 40_000
    assert answer_bytes({"a": "x" * 500, "b": [None, True, 3]}) > 700
    assert answer_bytes((np.zeros(1000), 0.1)) > 8000


def test_answers_outlive_their_scene(make: Make) -> None:
    endpoints = make()
    scene = endpoints.open(photograph())["id"]
    question = endpoints.question("explain", {"scene": scene, "method": "rollout"})
    answer = question.compute()
    endpoints.scenes.discard(lambda *_: True)
    assert endpoints.question("explain", {"method": "rollout", "scene": scene}).compute() is answer
    endpoints.answers.discard(lambda *_: True)
    with pytest.raises(UnknownScene):
        question.compute()


def test_ids_are_of_bytes_model_and_size_and_nothing_else() -> None:
    """test_process.py holds that another process has the same ids."""
    explorer = Explorer(tiny.model())
    others = [(Explorer(tiny.model(1)), "a"), (Explorer(tiny.model(registers=1)), "a")]
    prints = {fingerprint(*one) for one in ((explorer, "a"), (explorer, "b"), *others)}
    assert len(prints) == 4
    assert fingerprint(Explorer(tiny.model()), "a") == fingerprint(explorer, "a")
    ids = {scene_id(photo, one, size, b"key") for photo in (b"a", b"b") for one in prints for size in (None, 91)}
    assert len(ids) == 16
    assert scene_id(b"a", "model", None, b"key") != scene_id(b"a", "model", None, b"another")


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

    first, joined = (flights.join("key", compute, Client(name)) for name in ("a", "b"))
    assert first is joined
    assert begun.wait(patience(60))
    flights.leave("key", first)
    assert not first.client.gone.is_set()  # somebody waits still
    end.set()
    assert joined.future.result(patience(60)) == "answer"
    assert len(count) == 1
    end.clear()
    third = flights.join("key", compute, Client("c"))
    assert third is not first
    flights.leave("key", third)
    fourth = flights.join("key", compute, Client("d"))  # who comes now begins anew
    assert fourth is not third
    assert isinstance(third.future.exception(patience(60)), Cancelled)
    end.set()
    assert fourth.future.result(patience(60)) == "answer"


def test_a_computation_that_nobody_waits_for_does_not_begin() -> None:
    flights, end, ran = Flights(), threading.Event(), []
    busy = [flights.join(f"busy {i}", lambda: end.wait(patience(60)), Client(), light=True) for i in range(2)]
    waiting = flights.join("waiting", lambda: ran.append(1), Client(), light=True)
    flights.leave("waiting", waiting)
    end.set()
    assert isinstance(waiting.future.exception(patience(60)), Cancelled)
    assert ran == []
    assert all(flight.future.result(patience(60)) for flight in busy)


def test_an_error_is_handed_to_all_who_wait_and_not_kept() -> None:
    flights, calls, joined = Flights(), [], threading.Event()

    def compute() -> None:
        calls.append(1)
        assert joined.wait(patience(60))
        raise ImageError("Expected one.")

    waiting = [flights.join("key", compute, Client()) for _ in range(2)]
    joined.set()
    for flight in waiting:
        assert isinstance(flight.future.exception(patience(60)), ImageError)
    assert flights.join("key", compute, Client()).future.exception(patience(60))
    assert len(calls) == 2


# --- models


def test_a_model_that_is_evicted_is_let_go_and_loaded_again(make: Make, sources: tuple[str, ...]) -> None:
    endpoints = make(memory=2.5)
    scene = endpoints.open(photograph(), sources[1])["id"]
    opened = endpoints.scenes.get(scene)
    alive, values = weakref.ref(opened.view.model), endpoints.attention(scene, 0)["values"]
    endpoints.open(photograph(), sources[2])
    with pytest.raises(UnknownScene):
        endpoints.attention(scene, 0)
    assert opened.view.attention(0).values.shape == tiny.GRID  # who has it can finish
    del opened
    gc.collect()
    assert alive() is None
    assert endpoints.open(photograph(), sources[1])["id"] == scene
    assert endpoints.attention(scene, 0)["values"] == values


def test_a_scene_of_a_model_that_was_evicted_meanwhile_is_not_kept(
    make: Make, sources: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoints, run = make(memory=2.5), module.open_view

    def slow(*given: object) -> object:
        endpoints.loaded.get(sources[2])  # takes the memory of the model that is running
        return run(*given)

    monkeypatch.setattr(module, "open_view", slow)
    manifest = endpoints.open(photograph(), sources[1])
    assert manifest["predictions"]
    assert endpoints.scenes.get(manifest["id"]) is None


def test_a_model_is_loaded_once_and_named_in_words_where_it_cannot_be(
    make: Make, sources: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []

    def load(name: str) -> ViT:
        loaded.append(name)
        if name == sources[1]:
            raise RuntimeError(f"{name}: secret")
        return tiny.model()

    monkeypatch.setattr("vitviz.server.menu.zoo.load", load)
    endpoints = make()
    for seed in (0, 1):
        for size in (WIDTH, 2 * WIDTH):
            endpoints.open(photograph(seed), sources[0], size)
    assert loaded == [sources[0]]
    with pytest.raises(ValueError, match=r"^Expected Tiny 1 to open, got RuntimeError\. Choose another model\.$"):
        endpoints.open(photograph(), sources[1])


def test_no_model_is_asked_for_more_patches_than_are_listed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoints = make()
    monkeypatch.setattr("vitviz.server.sizes.MOST_PATCHES", 9)
    assert endpoints.open(photograph(), size=3 * tiny.PATCH)["size"] == 3 * tiny.PATCH
    with pytest.raises(ValueError, match=f"at most {3 * tiny.PATCH} pixels for this model, got {4 * tiny.PATCH}"):
        endpoints.open(photograph(), size=4 * tiny.PATCH)
