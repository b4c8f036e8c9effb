"""The command line in this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vitviz.cli.main import main


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command and assert its exit code; return what it prints, and its error unless it succeeds."""

    def run(*words: object, code: int = 0) -> str:
        capsys.readouterr()
        assert main([str(word) for word in words]) == code
        printed = capsys.readouterr()
        return printed.out + (printed.err if code else "")

    return run
