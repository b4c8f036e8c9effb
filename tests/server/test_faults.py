"""What goes wrong under a running server: each fault is said in words, and the next question is answered."""

from __future__ import annotations

import errno
import io
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from offered import ask, folder, made, photograph

from vitviz.server import endpoints as module
from vitviz.server import uploads
from vitviz.server.endpoints import Endpoints
from vitviz.server.health import health
from vitviz.server.routes import describe_error
from vitviz.server.scheduler import Kind


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    place = tmp_path_factory.mktemp("models")
    return [folder(place / "first"), folder(place / "second", seed=1)]


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
def test_memory_that_runs_out_is_said_and_the_next_one_is_answered(
    endpoints: Endpoints, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = ask(endpoints, "open", photo=photograph())["id"]

    def fails(*_args: Any, **_options: Any) -> None:
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(module, "open_view", fails)
        broken.setattr(module, "ask_view", fails)
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
    content, kept = weights.read_bytes(), tmp_path / "kept"
    weights.write_bytes(bytes(len(content)))  # under the running server, which has it in memory
    shutil.move(second, kept)
    try:
        endpoints.scenes.discard(lambda *_: True)
        assert ask(endpoints, "open", photo=photograph(2))["predictions"] == before
        with pytest.raises(ValueError, match="Expected") as gone:
            ask(endpoints, "open", photo=photograph(2), model=models[1])
        said = describe_error(gone.value)
        assert said["kind"] == "refused"
        assert str(second) not in said["text"]
        answers(endpoints, 3)
    finally:
        weights.write_bytes(content)
        shutil.move(kept, second)
    assert ask(endpoints, "open", photo=photograph(2), model=models[1])["predictions"] != before


def test_a_full_disk_is_said_and_the_page_needs_none(
    endpoints: Endpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = uploads.UploadFolder(tmp_path / "full")
    place.root.mkdir()

    def full(*_args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(place.root))

    with monkeypatch.context() as broken:
        broken.setattr(uploads.shutil, "copyfileobj", full)
        with pytest.raises(uploads.DiskFullError, match="room on the server") as refused:
            place.add("visitor", "mine.png", io.BytesIO(photograph()))
        assert str(place.root) not in str(refused.value)
        answers(endpoints, 4)
    assert list(place.root.iterdir()) == []
    assert place.add("visitor", "mine.png", io.BytesIO(photograph())).exists()


@pytest.mark.parametrize("jump", [10 * 365 * 86_400.0, -10 * 365 * 86_400.0])
def test_the_clock_may_jump(endpoints: Endpoints, tmp_path: Path, jump: float, monkeypatch: pytest.MonkeyPatch) -> None:
    place = uploads.UploadFolder(tmp_path / "uploads")
    place.root.mkdir()
    mine = place.add("visitor", "mine.png", io.BytesIO(photograph()))
    scene = ask(endpoints, "open", photo=photograph(5))["id"]
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + jump)
    place.add("other", "other.png", io.BytesIO(photograph(1)))
    assert mine.exists()  # it is no older than before
    assert ask(endpoints, "explain", scene=scene, method="gae")["seconds"] < 600
    answers(endpoints, 6)
