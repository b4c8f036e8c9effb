"""Captions of pictures whose regions are known."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from layouts import (
    BOTTOM,
    BOTTOM_LEFT,
    BOTTOM_RIGHT,
    LEFT,
    QUARTERS,
    RIGHT,
    TOP,
    TOP_LEFT,
    TOP_RIGHT,
    WHOLE,
    Box,
    Region,
)

SINGLE = ("a photo of {0}", "a picture of {0}", "this is {0}", "the photo shows {0}", "{0}")
"""Captions of a single photograph. {0} is its noun with its article."""

RELATIONS: Mapping[tuple[Box, ...], tuple[str, ...]] = {
    (LEFT, RIGHT): ("{0} left of {1}", "{1} right of {0}"),
    (TOP, BOTTOM): ("{0} above {1}", "{1} below {0}"),
    (TOP_LEFT, TOP_RIGHT, BOTTOM): ("{0} left of {1} , {2} below", "{1} right of {0} , {2} below"),
    (TOP, BOTTOM_LEFT, BOTTOM_RIGHT): ("{1} left of {2} , {0} above", "{0} above {1} and {2}"),
    (LEFT, TOP_RIGHT, BOTTOM_RIGHT): ("{1} above {2} , {0} on the left", "{0} left of {1} and {2}"),
    (TOP_LEFT, BOTTOM_LEFT, RIGHT): ("{0} above {1} , {2} on the right", "{2} right of {0} and {1}"),
    QUARTERS: ("{0} left of {1} , {2} left of {3} below", "{0} above {2} , {1} above {3} on the right"),
}
"""Captions of mosaics that relate the regions of a layout."""

PLACES: Mapping[Box, str] = {
    LEFT: "on the left",
    RIGHT: "on the right",
    TOP: "at the top",
    BOTTOM: "at the bottom",
    TOP_LEFT: "in the top left",
    TOP_RIGHT: "in the top right",
    BOTTOM_LEFT: "in the bottom left",
    BOTTOM_RIGHT: "in the bottom right",
}
RELATED, PLACE_FIRST = 0.3, 0.45
"""Shares of mosaics whose caption relates the regions, or names the place before each noun; others, after it."""

NO_ARTICLE = frozenset({
    "binoculars", "corn", "garlic", "headphones", "ice cream", "lasagna", "pants", "scissors", "shorts", "soup",
    "stairs",
})  # fmt: skip


@dataclass(frozen=True)
class Caption:
    """Words of a caption, and for each word the index of the region whose noun it belongs to, or None."""

    words: tuple[str, ...]
    regions: tuple[int | None, ...]


def with_article(noun: str) -> str:
    """Return a noun with its article, if it has one."""
    if noun in NO_ARTICLE:
        return noun
    return f"{'an' if noun[0].lower() in 'aeiou' and noun[:3] != 'uni' else 'a'} {noun}"


def write_caption(regions: Sequence[Region], rng: random.Random, hidden: Iterable[int] = ()) -> Caption:
    """Return a random caption of a picture, which does not mention the hidden regions."""
    boxes = tuple(region.box for region in regions)
    shown = [index for index in range(len(regions)) if index not in {*hidden}]
    style = rng.random()
    if boxes == (WHOLE,):
        template = rng.choice(SINGLE)
    elif len(shown) == len(boxes) and style < RELATED:
        template = rng.choice(RELATIONS[boxes])
    else:
        rng.shuffle(shown)
        place_first = style < RELATED + PLACE_FIRST * (len(shown) == len(boxes) or 1 + RELATED)
        form = "{place} {slot}" if place_first else "{slot} {place}"
        template = " , ".join(form.format(place=PLACES[boxes[i]], slot=f"{{{i}}}") for i in shown)
    return _fill(template, [region.noun for region in regions])


def _fill(template: str, nouns: Sequence[str]) -> Caption:
    """Put nouns with their articles into a template."""
    words: list[str] = []
    regions: list[int | None] = []
    for part in template.split():
        index = int(part[1:-1]) if part.startswith("{") else None
        added = part.split() if index is None else with_article(nouns[index]).split()
        words += added
        length = 0 if index is None else len(nouns[index].split())
        regions += [None] * (len(added) - length) + [index] * length
    return Caption(tuple(words), tuple(regions))


def vocabulary(nouns: Iterable[str]) -> tuple[str, ...]:
    """Return all words of captions, in alphabetical order."""
    texts = [*SINGLE, *(text for group in RELATIONS.values() for text in group), *PLACES.values()]
    texts += [with_article(noun) for noun in nouns]
    return tuple(sorted({word for text in texts for word in text.split() if not word.startswith("{")}))
