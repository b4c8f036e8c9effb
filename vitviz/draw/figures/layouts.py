"""The width of figures, and whether they have a title and a caption: all that are drawn inside `layout` read it.

>>> with layout("column", bare=True):
...     current().inner
3.21
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from vitviz.draw.colors import DrawError

WIDTHS = {"column": 3.25, "page": 6.3}
"""Inches: a column of a paper in two columns, and the 160 mm that a page of A4 leaves between its margins."""
NARROWEST, WIDEST = 2.5, 20.0


@dataclass(frozen=True)
class Layout:
    """Width of a figure in inches, and whether it is bare: without title, caption and the room around them."""

    width: float = WIDTHS["page"]
    bare: bool = False

    @property
    def margin(self) -> float:
        """Return the room on each side, in inches."""
        return 0.02 if self.bare else 0.2

    @property
    def inner(self) -> float:
        """Return the width between the margins, in inches."""
        return round(self.width - 2 * self.margin, 6)


PAGE = Layout()
_layout: ContextVar[Layout] = ContextVar("layout", default=PAGE)


def current() -> Layout:
    """Return the layout of figures that are drawn here."""
    return _layout.get()


@contextmanager
def layout(width: float | str = "page", *, bare: bool = False) -> Iterator[None]:
    """Draw figures of another width, or without title and caption.

    Args:
        width: in inches, or a name in `WIDTHS`. The type keeps its size; panels move below one another.
        bare: leave out title and caption, for a document that has its own.

    Raises:
        DrawError: for another name, or a width out of range.
    """
    try:
        inches = WIDTHS[width] if isinstance(width, str) and width in WIDTHS else float(width)
    except ValueError:
        inches = 0.0
    if not NARROWEST <= inches <= WIDEST:
        raise DrawError(
            f"Expected a width of {' or '.join(WIDTHS)}, or {NARROWEST:g} to {WIDEST:g} inches, got {width!r}. Change "
            "it."
        )
    token = _layout.set(Layout(inches, bare))
    try:
        yield
    finally:
        _layout.reset(token)
