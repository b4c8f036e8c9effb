"""Run the app in a separate process, for tests of sockets, files and signals."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import httpx
from asking import Visitor, free_port
from patience import patience, wait_until

ROOT = Path(__file__).parents[1]
STARTS = 280  # seconds to start on a busy machine: it imports PyTorch and gradio


class Server(Visitor):
    """Process of `python app.py`.

    Args:
        folder: folder of uploads.
        command, cwd, environment: how to start it.
        port: a free one by default.
    """

    def __init__(
        self,
        folder: Path,
        command: Sequence[str | Path] = (sys.executable, "app.py"),
        cwd: Path = ROOT,
        environment: Mapping[str, str] = os.environ,
        port: int | None = None,
    ) -> None:
        self.folder, self.port = folder, port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        settings = {"GRADIO_SERVER_NAME": "127.0.0.1", "OMP_NUM_THREADS": "1", **environment}
        settings |= {"GRADIO_SERVER_PORT": str(self.port)}
        self._log = folder.parent / f"{folder.name}.log"
        with self._log.open("a") as log:
            self.process = subprocess.Popen(command, cwd=cwd, env=settings, stdout=log, stderr=log)
        self.client = httpx.Client(base_url=self.url, timeout=patience(120))
        try:
            wait_until(self._answers, "the server listens", STARTS, poll=0.1)
        except BaseException:
            self.close()
            raise

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log()
        with suppress(httpx.TransportError):
            return self.client.get("/healthz").status_code > 0
        return False

    def log(self) -> str:
        return self._log.read_text()

    def files(self) -> set[Path]:
        """Return the files in the upload folder, without gradio's copies of examples."""
        return {path for path in self.folder.rglob("*") if path.is_file() and path.suffix != ".lock"}

    def kill(self) -> None:
        """Kill the process, as in a power failure."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.client.close()
        self.kill()


@contextmanager
def started(folder: Path, **settings: str) -> Iterator[Server]:
    with closing(Server(folder, environment={**os.environ, **settings})) as server:
        yield server
