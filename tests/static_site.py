"""Serve a folder on this machine."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple


class Site(NamedTuple):
    """A served folder, its address, and the requested paths."""

    folder: Path
    url: str
    log: list[str]


@contextmanager
def serve(folder: Path, *, isolated: bool = False) -> Iterator[Site]:
    """Serve a folder; `isolated` sends the headers for threads, without which a first visit loads the site twice."""
    log: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            log.append(self.path)

        def end_headers(self) -> None:
            if isolated:
                self.send_header("Cross-Origin-Opener-Policy", "same-origin")
                self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
            super().end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Site(folder, f"http://127.0.0.1:{server.server_port}/", log)
        server.shutdown()
