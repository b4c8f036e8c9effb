"""A folder on a file server and a model to export, for tests of the static site."""

from __future__ import annotations

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import tiny

from vitviz.images.preprocess import Preprocess
from vitviz.model.vit import Pretrained
from vitviz.weights.checkpoint import save


class Quiet(SimpleHTTPRequestHandler):
    """A file server that notes what it is asked for."""

    asked: list[str] = []

    def log_message(self, *args: Any) -> None:
        self.asked.append(self.path)


class Served:
    """A folder, served."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def tiny_model(folder: Path, mode: Literal["native", "crop"] = "native", **changes: Any) -> str:
    """A tiny model as a folder; in mode "native" its inputs keep the shape of the photograph."""
    model = tiny.model(**changes)
    preprocess = Preprocess(mode=mode, height=7 * tiny.PATCH, width=11 * tiny.PATCH, multiple=tiny.PATCH)
    labels = tuple(f"thing {i}" for i in range(model.config.classes))
    model.pretrained = Pretrained(name="Tiny", preprocess=preprocess, labels=labels)
    save(model.half().float(), folder)
    return str(folder)
