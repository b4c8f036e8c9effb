"""Which photograph counts when events overtake each other."""

import itertools

import pytest

from vitviz.server.newest import Newest


@pytest.mark.parametrize("order", list(itertools.permutations([1.5, 2.5, 4.0])))
def test_the_latest_turn_counts_in_whatever_order_they_come(order: tuple[float, ...]) -> None:
    newest = Newest()
    told = [newest.name("visitor", f"photo {turn}", turn) for turn in order]
    assert newest.get("visitor") == "photo 4.0"
    assert told == [turn == max(order[: place + 1]) for place, turn in enumerate(order)]


def test_a_photograph_without_a_turn_is_the_newest_when_it_comes() -> None:
    newest = Newest()
    assert newest.name("visitor", "chosen", 7.0)
    assert newest.name("visitor", "uploaded")
    assert newest.get("visitor") == "uploaded"
    assert not newest.name("visitor", "chosen before", 6.0)
    assert newest.get("visitor") == "uploaded"
    assert newest.name("visitor", "chosen after", 8.0)
    assert newest.get("visitor") == "chosen after"


def test_visitors_do_not_mix_and_are_forgotten() -> None:
    newest = Newest()
    newest.name("a", "one", 5.0)
    newest.name("b", "two", 1.0)
    assert (newest.get("a"), newest.get("b"), newest.get("c")) == ("one", "two", None)
    newest.left("a")
    assert newest.get("a") is None
    assert newest.name("a", "again", 1.0)
