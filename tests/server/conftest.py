"""Models of a page's menu, and computations that last as long as a test wants."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from anyio.from_thread import BlockingPortal, start_blocking_portal
from offered import ask_without_end, folder, made

from vitviz.server import endpoints as module
from vitviz.server.endpoints import Endpoints


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The folders of three tiny models: Tiny a, Tiny b and Tiny c."""
    place = tmp_path_factory.mktemp("sources")
    return tuple(folder(place / name, seed) for seed, name in enumerate("abc"))


@pytest.fixture
def endpoints(tmp_path: Path, sources: tuple[str, ...]) -> Endpoints:
    """A server's endpoints with the three models; it opens with the first."""
    return made(tmp_path / "page", sources)


@pytest.fixture(scope="session")
def portal() -> Iterator[BlockingPortal]:
    """An event loop in a thread of its own: in this one Playwright's runs as soon as there is a browser."""
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute KernelSHAP again and again: only cancelling ends it."""
    monkeypatch.setattr(module, "ask_view", ask_without_end)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Opening a photograph takes until the event is set."""
    run, end = module.open_view, threading.Event()

    def open_view(*arguments: Any) -> Any:
        while not end.wait(0.02):
            torch.zeros(1).sum()  # where it is cancelled
        return run(*arguments)

    monkeypatch.setattr(module, "open_view", open_view)
    yield end
    end.set()
