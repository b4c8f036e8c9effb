"""Set time limits that grow with the machine's load, so that a busy machine fails no test."""

import os
import time
from collections.abc import Callable


def patience(seconds: float) -> float:
    """Return a time limit: `seconds` on an idle machine, more if the load exceeds half the cores."""
    return seconds * max(1.0, 2 * os.getloadavg()[0] / (os.cpu_count() or 1))


def wait_until(condition: Callable[[], object], what: str, seconds: float = 60, poll: float = 0.01) -> None:
    """Wait until `condition()` is true.

    Raises:
        AssertionError: with the text `what`, if it is still false after `patience(seconds)`.
    """
    until = time.monotonic() + patience(seconds)
    while not condition():
        assert time.monotonic() < until, f"never happened: {what}"
        time.sleep(poll)
