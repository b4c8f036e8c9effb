"""Run the command line in the test process."""

from collections.abc import Callable

import pytest

from vitviz.cli.main import main


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command and assert its exit code; return its output, and its error message if it fails."""

    def run(*words: object, code: int = 0) -> str:
        capsys.readouterr()
        assert main([str(word) for word in words]) == code
        output = capsys.readouterr()
        return output.out + (output.err if code else "")

    return run
