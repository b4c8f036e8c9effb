"""Ending a training on request: the signal is noted, and the loop saves after the step that runs."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)  # Ctrl-C; what schedulers and torchrun send


class Stopped(KeyboardInterrupt):
    """Ctrl-C or SIGTERM ended the training and its state is saved. The text says how to go on."""


@contextmanager
def deferred_interrupts() -> Iterator[threading.Event]:
    """Yield a flag that the first signal sets; let a second one act immediately.

    Signals reach a program's main thread only: elsewhere nothing is changed.
    """
    interrupt, before = threading.Event(), dict[int, Any]()

    def note(*_: object) -> None:
        interrupt.set()
        restore()
        # Not through sys.stderr: the signal may have come in the middle of its own writing.
        os.write(2, b"\nStopping after this step, with the state saved. Once more stops at once, without.\n")

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    try:
        if threading.current_thread() is threading.main_thread():
            before |= {number: signal.signal(number, note) for number in _SIGNALS}
        yield interrupt
    finally:
        restore()
