"""Scenes and answers within their bounds, computations that are shared, models that come and go, faults under way."""

import gc
import shutil
import threading
import weakref
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import tiny
import torch
from offered import ask, folder, made, photograph
from patience import patience

from vitviz.explorer import Explorer
from vitviz.images.decoding import ImageError
from vitviz.server import endpoints as module
from vitviz.server.account import Account, Resource
from vitviz.server.endpoints import Endpoints
from vitviz.server.health import health
from vitviz.server.models import fingerprint
from vitviz.server.routes import describe_error
from vitviz.server.scenes import Cache, Flights, Shelf, UnknownScene, answer_bytes, scene_id
from vitviz.server.scheduler import Cancelled, Client, Kind, current
from vitviz.settings import Settings


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


def test_answers_outlive_their_scene(endpoints: Endpoints) -> None:
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


def test_a_model_that_is_evicted_is_let_go_and_loaded_again(tmp_path: Path, sources: tuple[str, ...]) -> None:
    endpoints = made(tmp_path / "page", sources, memory=2.5)
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


def test_a_model_that_does_not_load_is_named_in_words(
    endpoints: Endpoints, sources: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitviz.server.menu.zoo.load", Mock(side_effect=RuntimeError("secret")))
    with pytest.raises(ValueError, match=r"^Expected Tiny b to open, got RuntimeError\. Choose another model\.$"):
        endpoints.open(photograph(), sources[1])


def expect_answers(endpoints: Endpoints, seed: int) -> None:
    """A photograph that is new is opened and explained, and nothing is left in the queue."""
    scene = ask(endpoints, "open", photo=photograph(seed))["id"]
    assert ask(endpoints, "explain", scene=scene, method="rollout")["values"]
    assert endpoints.scheduler.ahead(Kind.LONG) == 0
    assert health(endpoints)["ready"]


MEMORY, OTHER = "There was not enough memory", "This could not be computed"
ERRORS = (
    (torch.OutOfMemoryError("CUDA out of memory. /secret"), MEMORY),
    (MemoryError(), MEMORY),
    (RuntimeError("/home/secret"), OTHER),
    (type("Other", (ValueError,), {})("/home/secret"), OTHER),
)


@pytest.mark.parametrize(("error", "words"), ERRORS)
def test_errors_are_told_without_what_python_says_and_the_next_question_is_answered(
    endpoints: Endpoints, error: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = ask(endpoints, "open", photo=photograph())["id"]
    with monkeypatch.context() as broken:
        for name in ("open_view", "ask_view"):
            broken.setattr(module, name, Mock(side_effect=error))
        for name, given in (("open", {"photo": photograph(1)}), ("explain", {"scene": scene, "method": "gae"})):
            with pytest.raises(type(error)) as failed:
                ask(endpoints, name, **given)
            said = describe_error(failed.value)
            assert said["kind"] == "failed"
            assert said["text"].startswith(words)
            assert "secret" not in said["text"]
    expect_answers(endpoints, 1)


def test_a_model_that_vanishes_or_changes_is_said_and_others_answer(tmp_path: Path) -> None:
    first, second = (folder(tmp_path / name, seed) for seed, name in enumerate(("first", "second")))
    endpoints = made(tmp_path / "page", (first, second))
    before = ask(endpoints, "open", photo=photograph(2))["predictions"]
    weights = Path(first) / "model.safetensors"
    weights.write_bytes(bytes(weights.stat().st_size))  # under the running server, which has it in memory
    shutil.move(second, tmp_path / "kept")
    endpoints.scenes.discard(lambda *_: True)
    assert ask(endpoints, "open", photo=photograph(2))["predictions"] == before
    with pytest.raises(ValueError, match="Expected") as gone:
        ask(endpoints, "open", photo=photograph(2), model=second)
    said = describe_error(gone.value)
    assert said["kind"] == "refused"
    assert second not in said["text"]
    expect_answers(endpoints, 3)
    shutil.move(tmp_path / "kept", second)
    assert ask(endpoints, "open", photo=photograph(2), model=second)["predictions"] != before


def test_a_full_disk_or_a_jump_of_time_changes_nothing(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = ask(endpoints, "open", photo=photograph(5))["id"]
    monkeypatch.setattr(shutil, "copyfileobj", lambda *_: pytest.fail("it wrote a file"))
    for jump in (1e9, -1e9):
        monkeypatch.setattr("time.time", lambda jump=jump: jump)
        assert ask(endpoints, "explain", scene=scene, method="gae")["seconds"] < 600
        expect_answers(endpoints, 6)
