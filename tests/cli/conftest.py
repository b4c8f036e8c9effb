"""A tiny model on the command line, shared by the tests of all commands."""

from __future__ import annotations

import pytest
from running import CHURCH, folder

import vitviz


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model with two registers as a folder; its classes are thing 0, thing 1, ..."""
    return folder(tmp_path_factory.mktemp("models") / "tiny", registers=2)


@pytest.fixture(scope="session")
def view(model: str) -> vitviz.View:
    return vitviz.Explorer(vitviz.load(model)).open(CHURCH)
