"""Bound the server's open connections: at the limit, a new connection replaces the oldest idle one.

Each connection is an open file of the process. Without a limit, requests whose headers never end would use all open
files that the system allows: no request would be answered, and asyncio would log every connection it cannot accept.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from vitviz.server.account import REQUESTS, Account, Booking, Budget, OverBudgetError, Resource

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

OPEN_FILES = 65_536  # upper limit; every connection is an open file
SHARE_OF_FILES = 5 / 8  # fraction for connections; the rest is for uploads, models and connections being accepted
ACCEPTED_AT_ONCE = 1 / 8  # fraction of the open files
KEEP_ALIVE = 75  # seconds that an idle connection stays open; nginx reuses connections for up to 60

log = logging.getLogger(__name__)


def raise_open_files() -> int:
    """Raise the soft limit of open files and return it; the usual 1,024 is too low for a lecture hall."""
    files = OPEN_FILES
    if resource is not None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
        if soft != resource.RLIM_INFINITY:
            files = max(soft, most)
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return files


def connection_budget(files: int) -> Budget:
    """Return the limits of connections for a process that may open `files` files."""
    total = min(REQUESTS, int(SHARE_OF_FILES * files))
    return Budget(total, total // 2, reserved=total // 3)


class Connections:
    """Open connections, in order of their last request, the oldest first.

    Args:
        account: where connections are booked.
        stall: seconds within which the headers of a request must arrive.
    """

    def __init__(self, account: Account, stall: float) -> None:
        self.account, self.stall = account, stall
        self._open: dict[Connection, Booking] = {}
        self._noted = False

    def protocol(self, **options: Any) -> Connection:
        """Return the protocol of a new connection, for uvicorn."""
        return Connection(self, **options)

    def admit(self, connection: Connection) -> bool:
        """Return whether a new connection may stay open; close others to make room."""
        while True:
            try:
                self._open[connection] = self.account.book(Resource.CONNECTIONS, connection.address)
                return True
            except OverBudgetError:
                victim = self._victim(connection.address)
            if not self._noted:
                self._noted = True
                log.warning("Too many connections: idle ones are closed for new ones.")
            if victim is None:
                return False
            self.release(victim)
            victim.transport.abort()

    def used(self, connection: Connection) -> None:
        """Record a request on a connection."""
        if connection in self._open:
            self._open[connection] = self._open.pop(connection)

    def release(self, connection: Connection) -> None:
        """Remove a closed connection and its booking."""
        if booking := self._open.pop(connection, None):
            booking.close()

    def _victim(self, address: str) -> Connection | None:
        """Return the connection to close for a new one from an address, if any.

        This is the oldest idle connection. If none is idle, it is the oldest connection of the address with the most
        connections, if that address has more than this one.
        """
        account, budget = self.account, self.account.budgets[Resource.CONNECTIONS]
        used = account.used(Resource.CONNECTIONS, address)
        if address and budget.each is not None and used >= budget.each:
            return next((other for other in self._open if other.idle and other.address == address), None)
        if idle := next((other for other in self._open if other.idle), None):
            return idle
        most = account.largest(Resource.CONNECTIONS) or ""
        if account.used(Resource.CONNECTIONS, most) <= used + 1:
            return None
        return next(other for other in self._open if other.address == most)


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Client connection, counted and bounded by `Connections`."""

    def __init__(self, connections: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._connections, self._request, self._waits = connections, None, False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def address(self) -> str:
        """Return the address of the client or of the last proxy."""
        return self.client[0] if self.client else ""

    @property
    def idle(self) -> bool:
        """Return whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: Any) -> None:
        """Accept the connection, unless there are too many."""
        super().connection_made(transport)
        if self._connections.admit(self):
            self._limit(KEEP_ALIVE)
        else:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Handle received data; after the first byte of a request, its headers must end in time."""
        super().data_received(data)
        if self.cycle is not self._request:
            self._request, self._waits = self.cycle, False
            self._limit(None)
            self._connections.used(self)
        elif self.idle and not self._waits:
            self._waits = True
            self._limit(self._connections.stall)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection."""
        self._limit(None)
        self._connections.release(self)
        super().connection_lost(exc)

    def _limit(self, seconds: float | None) -> None:
        """Close an idle connection after `seconds`, which replaces an earlier limit; `None` removes the limit."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        if self.idle and not self.transport.is_closing():
            self.transport.close()


class QuietAccepts:
    """Handle errors of an event loop; log only once that no more files can be opened.

    asyncio would log each refused connection with a traceback, a thousand times a second.
    """

    def __init__(self) -> None:
        self._logged = False

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an error."""
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)):
            loop.default_exception_handler(context)
        elif not self._logged:
            self._logged = True
            log.warning("No more files can be opened: new connections wait until others are closed.")
