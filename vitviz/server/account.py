"""Track clients' resources: bytes in memory, bytes on disk and places in queues, by address and in total.

Resources that a client uses for longer than one call are booked before they grow, so that the server answers "busy"
instead of running out of them. Closing a booking releases it.
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
    """Resource that is counted; the value is its name in messages."""

    SCENES = "bytes of open photographs and of answers about them"
    TRANSFERS = "bytes of requests and answers in transit"
    DISK = "bytes of uploaded files"
    CONNECTIONS = "open connections"
    REQUESTS = "open requests"
    QUESTIONS = "open questions"
    PHOTOGRAPHS = "photographs and short questions that wait or run"
    LONG = "long questions that wait or run"


@dataclass(frozen=True)
class Budget:
    """Limits of a resource.

    Args:
        total: limit of all addresses together.
        each: limit of one address; `None` for no separate limit.
        reserved: part of the total that is reserved for addresses without a booking.
        shared: whether `each` applies only while another address has a booking.
    """

    total: int
    each: int | None = None
    reserved: int = 0
    shared: bool = False


QUESTIONS_OF_ADDRESS = 64
REQUESTS_OF_ADDRESS = 400  # a lecture hall behind one router has one address
REQUESTS = 10_000
RESERVED = 3  # a third of the places is reserved for addresses without a booking


def budgets(allowed: Settings) -> dict[Resource, Budget]:
    """Return the budgets that follow from the operator's settings."""
    places = Budget(allowed.places, allowed.places_of_address, reserved=allowed.places // RESERVED, shared=True)
    return {
        Resource.SCENES: Budget(allowed.scene_memory),
        Resource.TRANSFERS: Budget(allowed.transfers, allowed.transfers // 4),
        Resource.DISK: Budget(allowed.disk, allowed.disk // 2),
        Resource.CONNECTIONS: Budget(REQUESTS, REQUESTS // 2, reserved=REQUESTS // RESERVED),  # replaced by `launch`
        Resource.REQUESTS: Budget(REQUESTS, REQUESTS_OF_ADDRESS),
        Resource.QUESTIONS: Budget(REQUESTS, QUESTIONS_OF_ADDRESS),
        Resource.PHOTOGRAPHS: places,
        Resource.LONG: places,
    }


class OverBudgetError(VitvizError):
    """Raised for a booking that would exceed its budget."""

    def __init__(self, resource: Resource) -> None:
        super().__init__(f"Expected room for more {resource.value}, got none. Try again later.")
        self.resource = resource


class Account:
    """Count the bookings of each resource.

    Args:
        allowed: the operator's settings, which determine the budgets.
    """

    def __init__(self, allowed: Settings | None = None) -> None:
        self.budgets = budgets(allowed or Settings())
        self._used: dict[Resource, Counter[str]] = {resource: Counter() for resource in Resource}
        self._lock = threading.Lock()

    def used(self, resource: Resource, address: str | None = None) -> int:
        """Return the amount booked by one address, or by all."""
        with self._lock:
            used = self._used[resource]
            return used.total() if address is None else used[address]

    def largest(self, resource: Resource) -> str | None:
        """Return the address that has booked most of a resource; `None` if nothing is booked."""
        with self._lock:
            most = self._used[resource].most_common(1)
        return most[0][0] if most else None

    def fits(self, resource: Resource, address: str, amount: int = 1) -> bool:
        """Return whether the budget has room for another `amount`."""
        with self._lock:
            return self._fits(resource, address, amount)

    def book(self, resource: Resource, address: str, amount: int = 1) -> Booking:
        """Book an amount for an address; close the booking, or use it in a `with` statement.

        Args:
            resource: the resource to book.
            address: the client's; empty for the server itself, which has no separate limit.
            amount: bytes or places.

        Raises:
            OverBudgetError: if the budget has no room.
        """
        booking = Booking(self, resource, address)
        booking.add(amount)
        return booking

    def _fits(self, resource: Resource, address: str, amount: int) -> bool:
        budget, used = self.budgets[resource], self._used[resource]
        own, total = used[address], used.total()
        if total + amount > budget.total - (budget.reserved if own else 0):
            return False
        if budget.each is None or not address or own + amount <= budget.each:
            return True
        return budget.shared and own == total  # no other address has a booking

    def _change(self, resource: Resource, address: str, amount: int, checked: bool) -> None:
        with self._lock:
            if checked and not self._fits(resource, address, amount):
                raise OverBudgetError(resource)
            self._used[resource][address] += amount
            if self._used[resource][address] <= 0:
                del self._used[resource][address]


class Booking:
    """Amount of a resource, booked for one address until `close`.

    Attributes:
        amount: bytes or places.
    """

    def __init__(self, account: Account, resource: Resource, address: str) -> None:
        self.account, self.resource, self.address, self.amount = account, resource, address, 0

    def add(self, amount: int) -> None:
        """Add to the booking.

        Raises:
            OverBudgetError: if the budget has no room; earlier amounts stay booked.
        """
        self.account._change(self.resource, self.address, amount, checked=True)
        self.amount += amount

    def settle(self, amount: int) -> None:
        """Replace the amount without checking the budget, for memory that is already in use."""
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
