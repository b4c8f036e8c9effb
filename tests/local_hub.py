"""A model hub on this machine: a folder with owner/name/files, served as the Hugging Face hub serves them."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ABOUT = re.compile(r"/api/models/([\w.-]+/[\w.-]+?)(?:/revision/\w+)?")
TREE = re.compile(r"/api/models/([\w.-]+/[\w.-]+)/tree/\w+")
FILE = re.compile(r"/([\w.-]+/[\w.-]+)/resolve/\w+/(.+)")


class Handler(BaseHTTPRequestHandler):
    """Answer what `huggingface_hub` asks: of a repository, of its files, and each file."""

    folder: Path

    def do_GET(self) -> None:  # the name is http.server's
        path = self.path.partition("?")[0]
        if found := FILE.fullmatch(path):
            self._file(self.folder / found[1] / found[2])
            return
        tree = TREE.fullmatch(path)
        about = tree or ABOUT.fullmatch(path)
        if about is None or not (self.folder / about[1]).is_dir():
            self._send(404, b"{}")
            return
        files = [one for one in sorted((self.folder / about[1]).iterdir()) if one.is_file()]
        listed = [{"type": "file", "path": one.name, "size": one.stat().st_size, "oid": tag(one)} for one in files]
        siblings = [{"rfilename": one.name} for one in files]
        told = listed if tree else {"id": about[1], "sha": COMMIT, "private": False, "siblings": siblings}
        self._send(200, json.dumps(told).encode())

    do_HEAD = do_GET

    def _file(self, path: Path) -> None:
        if path.is_file():
            self._send(200, path.read_bytes(), {"ETag": f'"{tag(path)}"', "X-Repo-Commit": COMMIT})
        else:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def tag(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()


@contextmanager
def local_hub(folder: Path, cache: Path, patch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve `folder` as the hub of this process, with an empty cache; yields its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Folder", (Handler,), {"folder": folder}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    patch.setattr("huggingface_hub.constants.ENDPOINT", address)
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    patch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    try:
        yield address
    finally:
        server.shutdown()
        server.server_close()
