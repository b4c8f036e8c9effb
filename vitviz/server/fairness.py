"""Share the server between addresses: what one of them may send and read at once.

`Jobs` bounds the questions of an address. A proxy does the rest, see docs/hosting.md.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv6Address, ip_address

from starlette.types import Scope

from vitviz.server.arguments import MAX_PHOTO_BYTES
from vitviz.server.scenes import Cache

SMALL_BYTES = 2**16  # bodies up to this size may use some more room, so that they do not wait for photographs
SMALL_ROOM = 64 * SMALL_BYTES


def address(scope: Scope) -> str:
    """Return a client's address; an IPv6 client is its network of 64 bits, because it can choose the rest."""
    host = str(scope["client"][0]) if scope.get("client") else ""
    with suppress(ValueError):
        parsed = ip_address(host.partition("%")[0])
        if isinstance(parsed, IPv6Address):
            return str(parsed.ipv4_mapped or f"{IPv6Address(int(parsed) >> 64 << 64)}/64")
    return host


class Transfers:
    """Bytes in transfer, of one direction: at most `MAX_PHOTO_BYTES` of one address, or one transfer that is larger.

    They count as used memory of the cache, and photographs and long answers take at most a third of it.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache, self._used = cache, Counter[str]()
        self._waiting: list[asyncio.Future[None]] = []

    def fits(self, address: str, amount: int) -> bool:
        """Return whether an address may transfer this many bytes now."""
        small = amount <= SMALL_BYTES
        most, total = MAX_PHOTO_BYTES + SMALL_ROOM * small, (1 + small) * self._cache.budget // 3
        limits = ((self._used[address], most), (self._used.total(), total))
        return all(not used or used + amount <= limit for used, limit in limits)

    async def wait(self, address: str, amount: int) -> None:
        """Wait until an address may transfer this many bytes."""
        while not self.fits(address, amount):
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            finally:
                self._waiting.remove(waiter)

    @contextmanager
    def hold(self, address: str, amount: int) -> Iterator[None]:
        """Count bytes that are being transferred."""
        self._used[address] += amount
        try:
            with self._cache.reserve(amount):
                yield
        finally:
            self._used[address] -= amount
            self._used += Counter()  # forgets addresses without a transfer
            for waiter in self._waiting:
                if not waiter.done():
                    waiter.set_result(None)
