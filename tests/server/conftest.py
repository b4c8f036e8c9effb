"""Fixtures of the server's tests: models for a menu, an event loop, and computations that a test can hold up."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from anyio.from_thread import BlockingPortal, start_blocking_portal
from offered import ask_without_end, folder, new_endpoints

from vitviz.server import endpoints as module
from vitviz.server import opening
from vitviz.server.endpoints import Endpoints


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Return the folders of three tiny models: Tiny a, Tiny b and Tiny c."""
    parent = tmp_path_factory.mktemp("sources")
    return tuple(folder(parent / name, seed) for seed, name in enumerate("abc"))


@pytest.fixture
def endpoints(tmp_path: Path, sources: tuple[str, ...]) -> Endpoints:
    """Return endpoints with the three models; the first is the default."""
    return new_endpoints(tmp_path / "page", sources)


@pytest.fixture(scope="session")
def portal() -> Iterator[BlockingPortal]:
    """Run an event loop in another thread, because Playwright's loop occupies this thread once a browser runs."""
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute KernelSHAP in an endless loop that only cancellation ends."""
    monkeypatch.setattr(module, "ask_view", ask_without_end)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Hold up every forward pass on a photograph until the event is set."""
    run, end = opening.open_view, threading.Event()

    def open_view(*arguments: Any) -> Any:
        while not end.wait(0.02):
            torch.zeros(1).sum()  # raises Cancelled if the client has left
        return run(*arguments)

    monkeypatch.setattr(opening, "open_view", open_view)
    yield end
    end.set()
