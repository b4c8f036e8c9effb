"""What the page shows beside the explorer, as HTML and JSON; all text is escaped. No gradio."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path

from PIL import Image

from vitviz.images.decoding import decode
from vitviz.server.menu import BROUGHT, Offer
from vitviz.view import View


def badge(view: View) -> str:
    """Where the model ran and how long it took, as HTML."""
    rows, columns = view.trace.grid
    return (
        f'<span class="badge" title="Where the model ran, the time of one forward pass, and the patches it cut the '
        f'photograph into">{view.device} · {duration(view.seconds)} · {rows} x {columns} patches</span>'
    )


def duration(seconds: float) -> str:
    """A time that was measured: "96 ms", "61.2 s"."""
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def data_url(picture: Image.Image, quality: int) -> str:
    """A picture for an <img>: JPEG, because it is encoded in a tenth of PNG's time and only the screen sees it."""
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def thumbnail(path: Path, side: int = 200) -> Image.Image:
    """A small copy of an example for its button."""
    photo = decode(path)
    photo.thumbnail((side, side), reducing_gap=2.0)
    return photo


def problem(words: str, what: str = "This picture could not be opened.") -> str:
    """What went wrong, as HTML that a screen reader says at once."""
    return f'<p class="problem" role="alert"><strong>{escape(what)}</strong> {escape(words)}</p>'


def working(words: str = "Working", seconds: float | None = None) -> str:
    """What the server is doing, as HTML with a bar that moves; the page shows it after half a second of waiting.

    Args:
        words: said to the visitor.
        seconds: how long it may take. The bar fills in that time; without, it moves to and fro.
    """
    bar = "<i></i>" if seconds is None else f'<i class="known" style="animation-duration: {seconds:.1f}s"></i>'
    return f'<p class="working" role="status">{escape(words)}</p><div class="track" aria-hidden="true">{bar}</div>'


def menu(groups: Sequence[tuple[str, Sequence[Offer]]], chosen: str, more: bool, turn: int) -> str:
    """The menu of models as JSON for menu.js.

    Args:
        groups: titles, and the models under them.
        chosen: the source of the model that the page shows.
        more: whether visitors may bring models of their own.
        turn: another number at each answer, so that the menu is set back to `chosen` even if that stayed the same.
    """
    listed = [
        {
            "title": title,
            "brought": title == BROUGHT,
            "offers": [{"source": one.source, "words": one.words, "tip": one.known_for} for one in offers],
        }
        for title, offers in groups
        if offers
    ]
    return json.dumps({"groups": listed, "chosen": chosen, "more": more, "turn": turn})
