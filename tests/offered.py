"""Models in folders, and a page's server that offers them."""

from __future__ import annotations

from pathlib import Path

import tiny

from vitviz.images.preprocess import Preprocess
from vitviz.model.vit import Pretrained
from vitviz.server.menu import Menu
from vitviz.server.models import bytes_of
from vitviz.server.sessions import Sessions
from vitviz.server.settings import Settings
from vitviz.weights.checkpoint import save

SIZE = bytes_of(tiny.model())
HEIGHT, WIDTH = (side * tiny.PATCH for side in tiny.GRID)


def folder(path: Path, seed: int = 0, **changes: object) -> str:
    """A model as a folder."""
    model = tiny.model(seed, **changes)
    model.pretrained = Pretrained(
        name=f"Tiny {seed}",
        preprocess=Preprocess(mode="crop", height=HEIGHT, width=WIDTH),
        labels=tuple(f"class {i}" for i in range(model.config.classes)),
        licence="MIT (tests); nothing else",
    )
    save(model, path)
    return str(path)


def made(sources: tuple[str, ...], photo: Path, room: float = 10.0, **allowed: bool) -> Sessions:
    """Sessions with memory for `room` models."""
    menu = Menu(Settings(models=sources, memory=round(room * SIZE), **allowed), bundled=[])
    return Sessions(menu, photo)
