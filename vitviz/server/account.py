"""Book what clients cause in one place: bytes in memory, bytes on disk and places, by address and in all.

Whatever lives longer than one call because a client asked for it is booked here before it grows, so that the server can
say "busy" instead of running out. What a session holds is released by closing its booking.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from types import TracebackType

from vitviz.errors import VitvizError
from vitviz.settings import Settings


class Resource(Enum):
    """Name what is counted; the value says it in a message."""

    SCENES = "bytes of open photographs and of answers about them"
    TRANSFERS = "bytes of requests and answers on their way"
    DISK = "bytes of uploaded files"
    CONNECTIONS = "open connections"
    REQUESTS = "open requests"
    QUESTIONS = "open questions"
    PHOTOGRAPHS = "photographs and short questions that wait or run"
    LONG = "long questions that wait or run"


@dataclass(frozen=True)
class Budget:
    """Most of a resource that may be booked.

    Args:
        total: by all addresses together.
        each: by one address; `None` for no limit of its own.
        kept: part of the total that only addresses without a booking may use.
        shared: whether `each` binds only while another address has a booking.
    """

    total: int
    each: int | None = None
    kept: int = 0
    shared: bool = False


QUESTIONS_OF_ADDRESS = 64
REQUESTS_OF_ADDRESS = 400  # a lecture hall behind one router has one address
REQUESTS = 10_000
KEPT = 3  # one of so many places is for addresses that have none


def budgets(allowed: Settings) -> dict[Resource, Budget]:
    """Return the budgets that the operator's settings come to."""
    places = Budget(allowed.places, allowed.places_of_address, kept=allowed.places // KEPT, shared=True)
    return {
        Resource.SCENES: Budget(allowed.scene_memory),
        Resource.TRANSFERS: Budget(allowed.transfers, allowed.transfers // 4),
        Resource.DISK: Budget(allowed.disk, allowed.disk // 2),
        Resource.CONNECTIONS: Budget(REQUESTS, REQUESTS // 2, kept=REQUESTS // KEPT),  # see `connections`
        Resource.REQUESTS: Budget(REQUESTS, REQUESTS_OF_ADDRESS),
        Resource.QUESTIONS: Budget(REQUESTS, QUESTIONS_OF_ADDRESS),
        Resource.PHOTOGRAPHS: places,
        Resource.LONG: places,
    }


class OverBudgetError(VitvizError):
    """Booking that would exceed its budget."""

    def __init__(self, resource: Resource) -> None:
        super().__init__(f"Expected room for more {resource.value}, got none. Try again later.")
        self.resource = resource


class Account:
    """Count what is booked of each resource.

    Args:
        allowed: the operator's settings, which say the budgets.
    """

    def __init__(self, allowed: Settings | None = None) -> None:
        self.budgets = budgets(allowed or Settings())
        self._used: dict[Resource, Counter[str]] = {resource: Counter() for resource in Resource}
        self._lock = threading.Lock()

    def used(self, resource: Resource, address: str | None = None) -> int:
        """Return what is booked by an address, or by all of them."""
        with self._lock:
            used = self._used[resource]
            return used.total() if address is None else used[address]

    def largest(self, resource: Resource) -> str | None:
        """Return the address that has booked most of a resource; `None` where nothing is booked."""
        with self._lock:
            most = self._used[resource].most_common(1)
        return most[0][0] if most else None

    def fits(self, resource: Resource, address: str, amount: int = 1) -> bool:
        """Return whether so much more would be booked for an address."""
        with self._lock:
            return self._fits(resource, address, amount)

    def book(self, resource: Resource, address: str, amount: int = 1) -> Booking:
        """Reserve an amount for an address; close the booking, or use it in a `with` statement.

        Args:
            resource: what is booked.
            address: of the client; an empty one, the server's own, has no limit of its own.
            amount: bytes or places.

        Raises:
            OverBudgetError: if the budget has no room for it.
        """
        booking = Booking(self, resource, address)
        booking.add(amount)
        return booking

    def _fits(self, resource: Resource, address: str, amount: int) -> bool:
        budget, used = self.budgets[resource], self._used[resource]
        own, total = used[address], used.total()
        if total + amount > budget.total - (budget.kept if own else 0):
            return False
        if budget.each is None or not address or own + amount <= budget.each:
            return True
        return budget.shared and own == total  # nobody else needs it

    def _change(self, resource: Resource, address: str, amount: int, checked: bool) -> None:
        with self._lock:
            if checked and not self._fits(resource, address, amount):
                raise OverBudgetError(resource)
            self._used[resource][address] += amount
            if self._used[resource][address] <= 0:
                del self._used[resource][address]


class Booking:
    """Amount of one resource that is booked for one address until `close`.

    Attributes:
        amount: bytes or places.
    """

    def __init__(self, account: Account, resource: Resource, address: str) -> None:
        self.account, self.resource, self.address, self.amount = account, resource, address, 0

    def add(self, amount: int) -> None:
        """Reserve more.

        Raises:
            OverBudgetError: if the budget has no room for it; what was booked before stays booked.
        """
        self.account._change(self.resource, self.address, amount, checked=True)
        self.amount += amount

    def settle(self, amount: int) -> None:
        """Replace the amount by what something takes that is there already, whatever the budget says."""
        self.account._change(self.resource, self.address, amount - self.amount, checked=False)
        self.amount = amount

    def close(self) -> None:
        """Release the amount."""
        self.settle(0)

    def __enter__(self) -> Booking:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
