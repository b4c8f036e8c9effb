"""Words of figures: which are drawn, and whether they can be read."""

from __future__ import annotations

from functools import cache
from itertools import combinations
from typing import Any

from matplotlib.figure import Figure
from matplotlib.text import Text


@cache
def texts(drawn: Figure) -> tuple[Text, ...]:
    """All texts that are drawn."""
    drawn.canvas.draw()
    shown = [text for text in drawn.findobj(Text) if text.get_visible() and text.get_text().strip()]
    ticks = [label for one in drawn.axes for axis in (one.xaxis, one.yaxis) for label in visible(axis)]
    every = [label for one in drawn.axes for axis in (one.xaxis, one.yaxis) for label in labels(axis)]
    return (*(text for text in shown if text not in every), *ticks)


def labels(axis: Any) -> list[Text]:
    return [label for tick in (*axis.majorTicks, *axis.minorTicks) for label in (tick.label1, tick.label2)]


def visible(axis: Any) -> list[Text]:
    """The tick labels that are drawn; `findobj` also finds those that matplotlib keeps for later."""
    drawn = [label for tick in axis._update_ticks() for label in (tick.label1, tick.label2)]
    return [label for label in drawn if label.get_visible() and label.get_text()]


def words_are_inside_and_apart(drawn: Figure) -> None:
    boxes = [(text.get_text(), text.get_window_extent().padded(-0.6)) for text in texts(drawn)]
    assert boxes
    page = drawn.bbox
    outside = [words for words, box in boxes if box.x0 < 0 or box.y0 < 0 or box.x1 > page.x1 or box.y1 > page.y1]
    assert outside == []
    over = [(a, b) for (a, box), (b, other) in combinations(boxes, 2) if box.overlaps(other)]
    assert over == []
    pictures = [(one.get_label(), one.get_window_extent()) for one in drawn.axes if one.images and not one.texts]
    hidden = [(words, label) for words, box in boxes for label, picture in pictures if box.overlaps(picture)]
    assert hidden == []
