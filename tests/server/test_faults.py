"""Faults under a running server: each is said in words, and the next question is answered."""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from offered import ask, folder, made, photograph

from vitviz.server import endpoints as module
from vitviz.server.endpoints import Endpoints
from vitviz.server.health import health
from vitviz.server.routes import describe_error
from vitviz.server.scheduler import Kind


@pytest.fixture
def models(tmp_path: Path) -> list[str]:
    return [folder(tmp_path / "first"), folder(tmp_path / "second", seed=1)]


@pytest.fixture
def endpoints(models: list[str], tmp_path: Path) -> Endpoints:
    return made(tmp_path / "page", tuple(models))


def answers(endpoints: Endpoints, seed: int) -> None:
    """A photograph that is new is opened and explained, and nothing is left in the queue."""
    scene = ask(endpoints, "open", photo=photograph(seed))["id"]
    assert ask(endpoints, "explain", scene=scene, method="rollout")["values"]
    assert endpoints.scheduler.ahead(Kind.LONG) == 0
    assert health(endpoints)["ready"]


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory. /secret"), MemoryError()])
def test_memory_that_runs_out_is_said_and_the_next_question_is_answered(
    endpoints: Endpoints, error: Exception, monkeypatch: pytest.MonkeyPatch
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
            assert said["text"].startswith("There was not enough memory")
            assert "secret" not in said["text"]
    answers(endpoints, 1)


def test_a_model_that_vanishes_or_changes_is_said_and_others_answer(
    endpoints: Endpoints, models: list[str], tmp_path: Path
) -> None:
    first, second = map(Path, models)
    before = ask(endpoints, "open", photo=photograph(2))["predictions"]
    weights = first / "model.safetensors"
    weights.write_bytes(bytes(weights.stat().st_size))  # under the running server, which has it in memory
    shutil.move(second, tmp_path / "kept")
    endpoints.scenes.discard(lambda *_: True)
    assert ask(endpoints, "open", photo=photograph(2))["predictions"] == before
    with pytest.raises(ValueError, match="Expected") as gone:
        ask(endpoints, "open", photo=photograph(2), model=models[1])
    said = describe_error(gone.value)
    assert said["kind"] == "refused"
    assert str(second) not in said["text"]
    answers(endpoints, 3)
    shutil.move(tmp_path / "kept", second)
    assert ask(endpoints, "open", photo=photograph(2), model=models[1])["predictions"] != before


def test_a_full_disk_or_a_jump_of_the_clock_is_nothing_to_the_page(
    endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = ask(endpoints, "open", photo=photograph(5))["id"]
    monkeypatch.setattr(shutil, "copyfileobj", lambda *_: pytest.fail("it wrote a file"))
    for jump in (1e9, -1e9):
        monkeypatch.setattr("time.time", lambda jump=jump: jump)
        assert ask(endpoints, "explain", scene=scene, method="gae")["seconds"] < 600
        answers(endpoints, 6)


def test_an_error_of_python_is_not_shown() -> None:
    class Secret(ValueError):
        pass

    for error in (RuntimeError("/home/secret"), Secret("/home/secret")):
        said = describe_error(error)
        assert said["kind"] == "failed"
        assert "secret" not in said["text"]
