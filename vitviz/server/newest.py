"""Which photograph a visitor named last: events overtake each other on their way."""

from __future__ import annotations

import threading


class Newest:
    """The photograph that each visitor named last.

    An event that runs the model may take seconds, and others come meanwhile: it opens what is newest when the model is
    free, and answers only if what it was asked for still is.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paths: dict[str, str] = {}
        self._turns: dict[str, float] = {}

    def name(self, visitor: str, path: str, turn: float | None = None) -> bool:
        """A visitor named a photograph.

        Args:
            visitor: who.
            path: the photograph's file.
            turn: when, by the clock of the visitor's browser; later is newer.

        Returns:
            Whether it is the newest: `False` if a later choice came first, which then stays.
        """
        with self._lock:
            if turn is not None and turn <= self._turns.get(visitor, -1.0):
                return False
            if turn is not None:
                self._turns[visitor] = turn
            self._paths[visitor] = path
            return True

    def get(self, visitor: str) -> str | None:
        """The photograph that a visitor named last, if any."""
        with self._lock:
            return self._paths.get(visitor)

    def left(self, visitor: str) -> None:
        """Forget a visitor who left."""
        with self._lock:
            self._paths.pop(visitor, None)
            self._turns.pop(visitor, None)
