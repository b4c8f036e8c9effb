"""Tests of `python app.py` in its own process, which need sockets, files, logs or signals."""

import io
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from attacked import ROOT, Server, started
from offered import WIDTH, new_endpoints, photograph
from patience import patience, wait_until
from PIL import ExifTags, Image

SECRET = "shared by all processes of this test"


@pytest.fixture(scope="module")
def model(sources: tuple[str, ...]) -> str:
    return sources[0]


def settings(model: str) -> dict[str, str]:
    return {"VITVIZ_MODELS": model, "VITVIZ_DEFAULT": model, "VITVIZ_LOG": "1", "VITVIZ_SECRET": SECRET}


@pytest.fixture(scope="module")
def server(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with started(tmp_path_factory.mktemp("process") / "uploads", **settings(model)) as server:
        yield server


def post(server: Server, path: str, length: int, *more: str) -> socket.socket:
    """Open a connection, and send the request headers of a form with `length` bytes."""
    line = socket.create_connection(("127.0.0.1", server.port), timeout=patience(60))
    head = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {length}", *more]
    line.sendall("\r\n".join([*head, "Content-Type: multipart/form-data; boundary=x", "", ""]).encode())
    return line


def logged(server: Server) -> list[dict[str, object]]:
    return [json.loads(line) for line in server.log().splitlines() if line.startswith("{")]


@pytest.mark.tier("all")
def test_interrupted_uploads_leave_no_files(server: Server) -> None:
    paths, earlier = ["/gradio_api/upload", "/vitviz/open"], len(logged(server))
    for path in 2 * paths:
        with post(server, path, 30_000_000) as line:
            line.sendall(b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n')
            line.sendall(photograph() + bytes(5_000_000))
    ended = lambda: [line["path"] for line in logged(server)[earlier:]]  # noqa: E731
    wait_until(lambda: all(ended().count(path) >= 2 for path in paths), "all requests end")
    assert server.files() == set()
    assert server.client.get("/healthz").json()["scenes"]["bytes"] < 30_000_000


def test_processes_with_one_secret_have_the_same_ids(server: Server, model: str, tmp_path: Path) -> None:
    local = new_endpoints(tmp_path / "page", (model,), secret=SECRET.encode()).open(photograph(5), size=2 * WIDTH)
    assert server.ask("open", photo=photograph(5), source={"size": 2 * WIDTH})["data"]["id"] == local["id"]


def test_request_log_contains_times_and_nothing_about_photographs(server: Server) -> None:
    server.client.get("/config?photo=secret", headers={"user-agent": "secret"})
    server.client.get("/secret/path")
    server.ask("open", {"image": "secret"})
    server.upload("secret.png", photograph(3))
    about = Image.Exif()
    about[ExifTags.Base.ImageDescription] = "secret"
    taken = io.BytesIO()
    Image.open(io.BytesIO(photograph(4))).convert("RGB").save(taken, "JPEG", exif=about)
    assert b"secret" in taken.getvalue()
    assert server.ask("open", photo=taken.getvalue(), source={})["data"]["id"]
    lines = logged(server)
    requests = {(line["path"], line["status"], line.get("outcome")) for line in lines}
    assert {("/config", 200, None), ("other", 404, None), ("/gradio_api/upload", 200, None)} < requests
    assert {("/vitviz/open", 200, "refused"), ("/vitviz/open", 200, "answered")} < requests
    assert all(line["seconds"] >= 0 and line["time"] for line in lines)
    assert "secret" not in server.log()
    assert "127.0.0.1" not in json.dumps(lines)


def test_containers_health_check_detects_a_missing_server(server: Server) -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    command = json.loads(re.search(r"HEALTHCHECK.*?CMD (\[.*?\])\n", text, re.DOTALL)[1])
    command[0] = sys.executable
    for port, code in ((server.port, 0), (9, 1)):
        done = subprocess.run(command, env={"GRADIO_SERVER_PORT": str(port)}, capture_output=True, check=False)
        assert done.returncode == code, done.stderr


@pytest.mark.tier("all")
def test_uploads_are_not_written_to_disk(server: Server) -> None:
    path = server.upload("mine.png", photograph()).json()[0]
    assert "predictions" in server.call("open", {"path": path}, None, None, None, None)
    assert server.files() == set()
