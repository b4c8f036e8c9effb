"""Serve a package index on this machine that accepts and lists files like the Python Package Index."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from email.parser import BytesParser
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread


class Index(SimpleHTTPRequestHandler):
    """List the folder's files under simple/vitviz/ (PEP 503), and save posted files (as twine posts them)."""

    def translate_path(self, path: str) -> str:
        return super().translate_path(path.removeprefix("/simple/vitviz"))

    def do_POST(self) -> None:
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        form = BytesParser().parsebytes(head + self.rfile.read(int(self.headers["Content-Length"])))
        fields = {part.get_param("name", header="Content-Disposition"): part for part in form.get_payload()}
        assert fields[":action"].get_payload() == "file_upload"
        content = fields["content"]
        (Path(self.directory) / content.get_filename()).write_bytes(content.get_payload(decode=True))
        self.send_response(200)
        self.end_headers()


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Index, directory=folder)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
