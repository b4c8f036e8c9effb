"""Stop a training run on a signal: the loop saves its state after the current step."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)  # from Ctrl-C, and from schedulers and torchrun


class Stopped(KeyboardInterrupt):
    """Raised after Ctrl-C or SIGTERM, with the state saved; the message says how to resume."""


@contextmanager
def deferred_interrupts() -> Iterator[threading.Event]:
    """Yield a flag that the first signal sets; a second signal acts immediately.

    Only the main thread receives signals; in other threads, nothing changes.
    """
    interrupt, before = threading.Event(), dict[int, Any]()

    def note(*_: object) -> None:
        interrupt.set()
        restore()
        # Not through sys.stderr, which the signal may have interrupted.
        os.write(
            2, b"\nStopping after this step, with the state saved. Interrupt again to stop at once without saving.\n"
        )

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    try:
        if threading.current_thread() is threading.main_thread():
            before |= {number: signal.signal(number, note) for number in _SIGNALS}
        yield interrupt
    finally:
        restore()
