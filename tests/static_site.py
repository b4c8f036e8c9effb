"""Serve a folder as static files, for tests of the static site."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple


class Site(NamedTuple):
    """A served folder, its URL, and the paths of all requests so far."""

    folder: Path
    url: str
    log: list[str]


@contextmanager
def serve(folder: Path) -> Iterator[Site]:
    """Serve a folder until the end of the context."""
    log: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            log.append(self.path)

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Site(folder, f"http://127.0.0.1:{server.server_port}/", log)
        server.shutdown()
