"""Serve a folder with owner/name/files like the Hugging Face hub."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = re.compile(r"/api/models/([\w.-]+/[\w.-]+?)(?:/revision/\w+|(/tree)/\w+)?")
FILE = re.compile(r"/([\w.-]+/[\w.-]+)/resolve/\w+/(.+)")


class Handler(BaseHTTPRequestHandler):
    """Handle requests of `huggingface_hub` for a repository, its list of files, and each file."""

    folder: Path

    def do_GET(self) -> None:  # the name is http.server's
        path = self.path.partition("?")[0]
        status, body, headers = 404, b"{}", {"X-Error-Code": "EntryNotFound"} if FILE.fullmatch(path) else {}
        if (match := FILE.fullmatch(path)) and (file := self.folder / match[1] / match[2]).is_file():
            status, body, headers = 200, file.read_bytes(), {"ETag": f'"{tag(file)}"', "X-Repo-Commit": COMMIT}
        elif (match := REPOSITORY.fullmatch(path)) and (self.folder / match[1]).is_dir():
            files = [file for file in sorted((self.folder / match[1]).iterdir()) if file.is_file()]
            siblings = [{"rfilename": file.name} for file in files]
            about: Any = {"id": match[1], "sha": COMMIT, "private": False, "siblings": siblings}
            if match[2]:
                facts = [(file.name, file.stat().st_size, tag(file)) for file in files]
                about = [{"type": "file", "path": name, "size": size, "oid": oid} for name, size, oid in facts]
            status, body = 200, json.dumps(about).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def tag(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()


@contextmanager
def local_hub(folder: Path, cache: Path, patch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve `folder` as the hub of this process, with an empty cache; yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Folder", (Handler,), {"folder": folder}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    patch.setattr("huggingface_hub.constants.ENDPOINT", address)
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    for module in ("constants", "file_download"):  # releases before 1.0 have the template in both
        patch.setattr(f"huggingface_hub.{module}.HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    try:
        yield address
    finally:
        server.shutdown()
        server.server_close()
