"""Ending a training on request: the signal is noted, and the engine saves after the step that runs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)  # Ctrl-C; what schedulers and torchrun send


class Stopped(KeyboardInterrupt):
    """Ctrl-C or SIGTERM: the state is saved. Its text says where the training stands and how to go on."""


class Request:
    """Whether somebody has asked for an end: `signal` is 0 until then."""

    signal: int = 0


@contextmanager
def listening() -> Iterator[Request]:
    """Within, a signal is noted; a second one does at once what it would have done.

    Signals reach a program's main thread only: elsewhere nothing is changed, and they do what they did.
    """
    request = Request()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before: dict[int, Any] = {}

    def note(number: int, _frame: FrameType | None) -> None:
        request.signal = number
        for one, handler in before.items():
            signal.signal(one, handler)
        # Not through sys.stderr: the signal may have come in the middle of its own writing.
        os.write(2, b"\nStopping after this step, with the state saved. Once more stops at once, without.\n")

    try:
        before |= {number: signal.signal(number, note) for number in _SIGNALS}
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
