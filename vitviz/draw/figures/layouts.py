"""Set the width of figures, and whether they have a title and a caption, with the context manager `layout`.

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
"""Inches: a column of a two-column paper, and the 160 mm between the margins of an A4 page."""
NARROWEST, WIDEST = 2.5, 20.0


@dataclass(frozen=True)
class Layout:
    """Width of a figure in inches, and whether it is bare (without title and caption)."""

    width: float = WIDTHS["page"]
    bare: bool = False

    @property
    def margin(self) -> float:
        """Return the margin on each side, in inches."""
        return 0.02 if self.bare else 0.2

    @property
    def inner(self) -> float:
        """Return the width between the margins, in inches."""
        return round(self.width - 2 * self.margin, 6)


PAGE = Layout()
_layout: ContextVar[Layout] = ContextVar("layout", default=PAGE)


def current() -> Layout:
    """Return the current layout."""
    return _layout.get()


@contextmanager
def layout(width: float | str = "page", *, bare: bool = False) -> Iterator[None]:
    """Draw figures with a different width, or without title and caption.

    Args:
        width: width in inches, or a name in `WIDTHS`. The font size is constant; panels are stacked.
        bare: omit title and caption, for documents that provide their own.

    Raises:
        DrawError: for an unknown name, or a width out of range.
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
