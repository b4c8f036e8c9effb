"""The cache of scenes and answers, shared computations, evicted models, and failures while the server runs."""

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
from offered import ask, cached, folder, forget_scenes, new_endpoints, photograph
from patience import patience

from vitviz.explorer import Explorer
from vitviz.images.decoding import ImageError
from vitviz.server import endpoints as answering
from vitviz.server import opening
from vitviz.server.endpoints import Endpoints
from vitviz.server.health import health
from vitviz.server.jobs import Cancelled, Jobs, Kind, current
from vitviz.server.models import fingerprint
from vitviz.server.routes import describe_error
from vitviz.server.scenes import Cache, UnknownScene, scene_id, size_of


def test_least_recently_used_value_is_evicted_and_too_large_ones_not_cached() -> None:
    cache = Cache(10)
    keys = [("scene", question) for question in ("open", "explain", "heads", "page")]
    for key in keys[:3]:
        cache.put(key, np.zeros(4, np.uint8))
        cache.get(keys[0])
    assert [cache.get(key) is not None for key in keys] == [True, False, True, False]
    assert cache.used == 8
    assert cache.evicted == 1
    cache.put(keys[3], np.zeros(100, np.uint8))
    assert [cache.get(key) is not None for key in keys] == [True, False, True, False]
    cache.put(keys[0], np.ones(4, np.uint8))
    cache.discard(np.all)
    assert cache.get(keys[0]) is None
    assert cache.used == 4


def test_size_of_estimates_the_bytes_of_answers() -> None:
    assert 1000 <= size_of(b"x" * 1000) < 1100
    assert 24_000 < size_of([float(i) for i in range(1000)]) < 40_000
    assert size_of({"a": "x" * 500, "b": [None, True, 3]}) > 700
    assert size_of((np.zeros(1000), 0.1)) > 8000


def test_answers_outlive_their_scene(endpoints: Endpoints) -> None:
    scene = endpoints.open(photograph())["id"]
    question = endpoints.question("explain", {"scene": scene, "method": "rollout"})
    answer = question.compute()
    forget_scenes(endpoints)
    assert endpoints.question("explain", {"method": "rollout", "scene": scene}).compute() is answer
    endpoints.cache.discard(lambda _: True)
    with pytest.raises(UnknownScene):
        question.compute()


def test_ids_depend_on_photograph_model_size_and_secret() -> None:
    """test_process.py checks that another process computes the same ids."""
    explorer = Explorer(tiny.model())
    others = [(Explorer(tiny.model(1)), "a"), (Explorer(tiny.model(registers=1)), "a")]
    prints = {fingerprint(*model) for model in ((explorer, "a"), (explorer, "b"), *others)}
    assert len(prints) == 4
    assert fingerprint(Explorer(tiny.model()), "a") == fingerprint(explorer, "a")
    ids = {scene_id(photo, print_, size, b"key") for photo in (b"a", b"b") for print_ in prints for size in (None, 91)}
    assert len(ids) == 16
    assert scene_id(b"a", "model", None, b"key") != scene_id(b"a", "model", None, b"another")


def test_equal_questions_are_computed_once_and_cancelled_when_all_have_left() -> None:
    jobs, begun, end, count = Jobs(), threading.Event(), threading.Event(), []

    def compute() -> str:
        count.append(1)
        begun.set()
        while not end.wait(0.01):
            if current.get().gone.is_set():
                raise Cancelled
        return "answer"

    first, joined = (jobs.join("key", compute, name) for name in ("a", "b"))
    assert first is joined
    assert begun.wait(patience(60))
    jobs.leave(first)
    assert not first.gone.is_set()  # the other client still waits
    end.set()
    assert joined.future.result(patience(60)) == "answer"
    assert len(count) == 1
    end.clear()
    third = jobs.join("key", compute, "c")
    assert third is not first
    jobs.leave(third)
    fourth = jobs.join("key", compute, "d")  # the next request starts a new computation
    assert fourth is not third
    assert isinstance(third.future.exception(patience(60)), Cancelled)
    end.set()
    assert fourth.future.result(patience(60)) == "answer"


def test_computation_that_nobody_waits_for_does_not_start() -> None:
    jobs, end, ran = Jobs(), threading.Event(), []
    busy = [jobs.join(f"busy {i}", lambda: end.wait(patience(60)), light=True) for i in range(2)]
    waiting = jobs.join("waiting", lambda: ran.append(1), light=True)
    jobs.leave(waiting)
    end.set()
    assert isinstance(waiting.future.exception(patience(60)), Cancelled)
    assert ran == []
    assert all(job.future.result(patience(60)) for job in busy)


def test_error_is_raised_for_all_who_wait_and_not_cached() -> None:
    jobs, calls, joined = Jobs(), [], threading.Event()

    def compute() -> None:
        calls.append(1)
        assert joined.wait(patience(60))
        raise ImageError("Expected one.")

    waiting = [jobs.join("key", compute) for _ in range(2)]
    joined.set()
    for job in waiting:
        assert isinstance(job.future.exception(patience(60)), ImageError)
    assert jobs.join("key", compute).future.exception(patience(60))
    assert len(calls) == 2


def test_evicted_model_is_freed_and_loaded_again(tmp_path: Path, sources: tuple[str, ...]) -> None:
    endpoints = new_endpoints(tmp_path / "page", sources, memory=2.5)
    scene = endpoints.open(photograph(), sources[1])["id"]
    opened = cached(endpoints, scene)
    alive, values = weakref.ref(opened.view.model), endpoints.attention(scene, 0)["values"]
    endpoints.open(photograph(), sources[2])
    with pytest.raises(UnknownScene):
        endpoints.attention(scene, 0)
    assert opened.view.attention(0).values.shape == tiny.GRID  # a running request can finish
    del opened
    gc.collect()
    assert alive() is None
    assert endpoints.open(photograph(), sources[1])["id"] == scene
    assert endpoints.attention(scene, 0)["values"] == values


def test_scene_of_a_model_evicted_meanwhile_is_not_cached(
    tmp_path: Path, sources: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoints, run = new_endpoints(tmp_path / "page", sources, memory=2.5), opening.open_view

    def open_view(*arguments: object) -> object:
        endpoints.loaded.get(sources[2])  # evicts the model that is running
        return run(*arguments)

    monkeypatch.setattr(opening, "open_view", open_view)
    manifest = endpoints.open(photograph(), sources[1])
    assert manifest["predictions"]
    assert cached(endpoints, manifest["id"]) is None


def test_model_that_does_not_load_is_named_in_the_error(
    endpoints: Endpoints, sources: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitviz.server.menu.zoo.load", Mock(side_effect=RuntimeError("secret")))
    with pytest.raises(ValueError, match=r"Tiny b.*RuntimeError"):
        endpoints.open(photograph(), sources[1])


def expect_answers(endpoints: Endpoints, seed: int) -> None:
    """Check that a new photograph can be opened and explained, and that the queue is empty afterwards."""
    scene = ask(endpoints, "open", photo=photograph(seed))["id"]
    assert ask(endpoints, "explain", scene=scene, method="rollout")["values"]
    assert endpoints.jobs.ahead(Kind.LONG)[0] == 0
    assert health(endpoints)["ready"]


MEMORY, OTHER = "There was not enough memory", "This could not be computed"
ERRORS = (
    *((error, MEMORY) for error in (torch.OutOfMemoryError("CUDA out of memory. /secret"), MemoryError())),
    *((error("/home/secret"), OTHER) for error in (RuntimeError, type("Other", (ValueError,), {}))),
)


@pytest.mark.parametrize(("error", "text"), ERRORS)
def test_error_texts_hide_pythons_and_the_next_question_is_answered(
    endpoints: Endpoints, error: Exception, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = ask(endpoints, "open", photo=photograph())["id"]
    with monkeypatch.context() as broken:
        for module, name in ((opening, "open_view"), (answering, "ask_view")):
            broken.setattr(module, name, Mock(side_effect=error))
        for name, arguments in (("open", {"photo": photograph(1)}), ("explain", {"scene": scene, "method": "gae"})):
            with pytest.raises(type(error)) as failed:
                ask(endpoints, name, **arguments)
            description = describe_error(failed.value)
            assert description["kind"] == "failed"
            assert description["text"].startswith(text)
            assert "secret" not in description["text"]
    expect_answers(endpoints, 1)


def test_vanished_model_is_reported_and_others_answer(tmp_path: Path) -> None:
    first, second = (folder(tmp_path / name, seed) for seed, name in enumerate(("first", "second")))
    endpoints = new_endpoints(tmp_path / "page", (first, second))
    before = ask(endpoints, "open", photo=photograph(2))["predictions"]
    weights = Path(first) / "model.safetensors"
    weights.write_bytes(bytes(weights.stat().st_size))  # the running server has a copy in memory
    shutil.move(second, tmp_path / "moved")
    forget_scenes(endpoints)
    assert ask(endpoints, "open", photo=photograph(2))["predictions"] == before
    with pytest.raises(ValueError, match="Expected") as gone:
        ask(endpoints, "open", photo=photograph(2), model=second)
    description = describe_error(gone.value)
    assert description["kind"] == "refused"
    assert second not in description["text"]
    expect_answers(endpoints, 3)
    shutil.move(tmp_path / "moved", second)
    assert ask(endpoints, "open", photo=photograph(2), model=second)["predictions"] != before


def test_answers_write_no_file_and_ignore_clock_jumps(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = ask(endpoints, "open", photo=photograph(5))["id"]
    monkeypatch.setattr(shutil, "copyfileobj", lambda *_: pytest.fail("a file was written"))
    for jump in (1e9, -1e9):
        monkeypatch.setattr("time.time", lambda jump=jump: jump)
        assert ask(endpoints, "explain", scene=scene, method="gae")["seconds"] < 600
        expect_answers(endpoints, 6)
