"""Models of a page's menu, and computations that last as long as a test wants."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from offered import ask_without_end, folder

from vitviz.server import endpoints


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The folders of three tiny models: Tiny 0, Tiny 1 and Tiny 2."""
    place = tmp_path_factory.mktemp("sources")
    return tuple(folder(place / name, seed) for seed, name in enumerate("abc"))


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute KernelSHAP again and again: only cancelling ends it."""
    monkeypatch.setattr(endpoints, "ask_view", ask_without_end)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Opening a photograph takes until the event is set."""
    run, end = endpoints.open_view, threading.Event()

    def open_view(*arguments: Any) -> Any:
        while not end.wait(0.02):
            torch.zeros(1).sum()  # where it is cancelled
        return run(*arguments)

    monkeypatch.setattr(endpoints, "open_view", open_view)
    yield end
    end.set()
