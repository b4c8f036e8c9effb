"""Figures as files: the same bytes for the same figure, and words that can be searched and edited."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from matplotlib import rcParams
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from vitviz.render.figures.page import PRINT_DPI

# What matplotlib asks its settings for only while it writes. "none": SVG text as text; 42: TrueType in PDF, as text.
WRITING: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "vitviz",
    "svg.image_inline": True,
    "svg.id": None,
    "image.composite_image": True,
    "pdf.fonttype": 42,
    "pdf.use14corefonts": False,
    "pdf.inheritcolor": False,
    "pdf.compression": 6,
}
# Without these, a file says when it was written, and by which version of matplotlib.
NAMELESS: dict[str, dict[str, str | None]] = {
    "png": {"Software": "vitviz"},
    "svg": {"Date": None, "Creator": "vitviz"},
    "pdf": {"CreationDate": None, "Creator": "vitviz", "Producer": "vitviz"},
}
_lock = threading.Lock()


@contextmanager
def _writing() -> Iterator[None]:
    """Matplotlib's settings as files need them, for one thread at a time; put back one by one, so that what another
    thread sets in the meantime stays.
    """
    with _lock:
        settings = cast("dict[str, Any]", rcParams)
        before = {name: settings[name] for name in WRITING}
        try:
            settings.update(WRITING)
            yield
        finally:
            settings.update(before)


def encoded(figure: Figure, format: str) -> bytes:
    """A figure as the bytes of a file; `format` is png, svg or pdf."""
    buffer = io.BytesIO()
    whole = Bbox.from_bounds(0, 0, *figure.get_size_inches())
    with _writing():
        figure.savefig(
            buffer,
            format=format,
            dpi=PRINT_DPI,
            facecolor=figure.get_facecolor(),
            edgecolor="none",
            transparent=False,
            bbox_inches=whole,
            metadata=NAMELESS[format],
        )
    return buffer.getvalue()
