"""A small part of what `make fuzz` searches."""

import fuzz


def test_damaged_pictures_and_checkpoints_end_in_words() -> None:
    pictures = fuzz.search(fuzz.image, iter(range(500)))
    assert pictures["refused"] > 75
    assert pictures["opened"] > 75
    assert len(fuzz.pictures()) > 40
    assert fuzz.search(fuzz.checkpoint, iter(range(150)))["refused"] > 25
