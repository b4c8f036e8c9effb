"""A small part of what `make fuzz` searches, and that its search finds what is there to be found."""

from __future__ import annotations

from pathlib import Path

import fuzz
import pytest


def test_damaged_pictures_and_checkpoints_end_in_words() -> None:
    pictures = fuzz.search(fuzz.image, iter(range(1000)))
    assert pictures["refused"] > 150
    assert pictures["opened"] > 150
    assert len(fuzz.pictures()) > 40
    assert fuzz.search(fuzz.checkpoint, iter(range(30)))["refused"] > 5


def test_the_search_names_the_example_that_failed() -> None:
    def breaks(number: int, _place: Path) -> str:
        return str(1 / (number - 3))

    with pytest.raises(fuzz.Found, match="breaks 3: ZeroDivisionError"):
        fuzz.search(breaks, iter(range(9)))
