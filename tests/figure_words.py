"""Check the texts of figures: which are drawn, and whether they overlap."""

from functools import cache
from itertools import combinations
from typing import Any

from matplotlib.figure import Figure
from matplotlib.text import Text


@cache
def texts(drawn: Figure) -> tuple[Text, ...]:
    drawn.canvas.draw()
    visible_texts = [text for text in drawn.findobj(Text) if text.get_visible() and text.get_text().strip()]
    ticks = [label for axes in drawn.axes for axis in (axes.xaxis, axes.yaxis) for label in visible(axis)]
    tick_labels = [label for axes in drawn.axes for axis in (axes.xaxis, axes.yaxis) for label in labels(axis)]
    return (*(text for text in visible_texts if text not in tick_labels), *ticks)


def labels(axis: Any) -> list[Text]:
    return [label for tick in (*axis.majorTicks, *axis.minorTicks) for label in (tick.label1, tick.label2)]


def visible(axis: Any) -> list[Text]:
    """Return the drawn tick labels; `findobj` also finds unused ones."""
    drawn = [label for tick in axis._update_ticks() for label in (tick.label1, tick.label2)]
    return [label for label in drawn if label.get_visible() and label.get_text()]


def words_are_inside_and_apart(drawn: Figure) -> None:
    boxes = [(text.get_text(), text.get_window_extent().padded(-0.6)) for text in texts(drawn)]
    assert boxes
    page = drawn.bbox
    outside = [words for words, box in boxes if box.x0 < 0 or box.y0 < 0 or box.x1 > page.x1 or box.y1 > page.y1]
    assert outside == []
    overlapping = [(a, b) for (a, box), (b, other_box) in combinations(boxes, 2) if box.overlaps(other_box)]
    assert overlapping == []
    pictures = [(axes.get_label(), axes.get_window_extent()) for axes in drawn.axes if axes.images and not axes.texts]
    hidden = [(words, label) for words, box in boxes for label, picture in pictures if box.overlaps(picture)]
    assert hidden == []
