"""The app in a process of its own, for tests that attack it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[1]
MODEL = "dinov2-s14-imagenette"
PATIENCE = 120  # seconds; the machine may have other work
STARTS = 280  # seconds until it listens, on a machine with much other work: it imports PyTorch and gradio


class Server:
    """`python app.py` in a process of its own, whose uploads lie under `folder`.

    Args:
        folder: of the uploads.
        command, cwd, environment: another way to start it.
    """

    def __init__(
        self,
        folder: Path,
        command: Sequence[str] = (sys.executable, "app.py"),
        cwd: Path = ROOT,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.folder, self.url = folder, f"http://127.0.0.1:{port}"
        settings = {"GRADIO_TEMP_DIR": str(folder), "GRADIO_SERVER_PORT": str(port)}
        name = environment.get("GRADIO_SERVER_NAME", "127.0.0.1")
        settings = {**environment, **settings, "GRADIO_SERVER_NAME": name}
        self.log = (folder.parent / f"{folder.name}.log").open("w+")
        self.process = subprocess.Popen(command, cwd=cwd, env=settings, stdout=self.log, stderr=self.log)
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE)
        try:
            self.config = self._wait()
        except BaseException:
            self.close()
            raise

    def _wait(self) -> dict[str, Any]:
        """Wait until it answers, and return the page's config."""
        began = time.monotonic()
        while time.monotonic() - began < STARTS:
            with suppress(httpx.TransportError):
                return self.client.get("/config").json()
            assert self.process.poll() is None, Path(self.log.name).read_text()
            time.sleep(0.2)
        raise AssertionError(Path(self.log.name).read_text())

    def files(self) -> list[Path]:
        """What lies in the upload folder, without gradio's copies of examples."""
        return [path for path in self.folder.rglob("*") if path.is_file() and path.suffix != ".lock"]

    def upload(self, name: str, data: bytes, **headers: str) -> httpx.Response:
        return self.client.post("/gradio_api/upload", files={"files": (name, data)}, headers=headers)

    def post(self, name: str, ask: Any = None, photo: bytes | None = None, **options: Any) -> httpx.Response:
        """Ask as the page does."""
        files = {"nothing": (None, "")} if photo is None else {"photo": ("photo", photo)}
        form = {"ask": ask if isinstance(ask, str) else json.dumps(ask or {})}
        if "source" in options:
            form["source"] = json.dumps(options.pop("source"))
        return self.client.post(f"/vitviz/{name}", data=form, files=files, **options)

    def ask(self, name: str, ask: Any = None, photo: bytes | None = None, **options: Any) -> dict[str, Any]:
        """The last line of an answer: data, or an error."""
        answer = self.post(name, ask, photo, **options)
        assert answer.status_code == 200, answer.text
        return json.loads(answer.text.rstrip("\n").rpartition("\n")[2])

    def join(self, number: int, data: list, event: Any = None, session: str = "attacker") -> str:
        """Everything that an event of the page answers."""
        asked = {"data": data, "event_data": event, "fn_index": number, "session_hash": session}
        self.client.post("/gradio_api/queue/join", json=asked).raise_for_status()
        lines = []
        with self.client.stream("GET", f"/gradio_api/queue/data?session_hash={session}") as answer:
            for line in answer.iter_lines():
                lines.append(line)
                if '"process_completed"' in line or '"close_stream"' in line:
                    break
        return "\n".join(lines)

    def call(self, name: str, *data: Any) -> str:
        """What a named endpoint answers."""
        began = time.monotonic()
        while (answer := self.client.post(f"/gradio_api/call/{name}", json={"data": data})).status_code == 429:
            assert time.monotonic() - began < PATIENCE
            time.sleep(0.2)
        event = answer.json()["event_id"]
        return self.client.get(f"/gradio_api/call/{name}/{event}").text

    def predict(self, path: str) -> str:
        """What the model says of a photograph that was uploaded."""
        return self.call("open", {"path": path, "meta": {"_type": "gradio.FileData"}}, MODEL, None)

    def long_question(
        self, target: int, address: str = "127.0.0.1", stay: float = 3, leave: threading.Event | None = None
    ) -> str:
        """Ask what takes minutes, and leave after some seconds or on a sign; what was answered until then."""
        asked = {"scene": self.first(), "methods": ["kernel_shap"], "target": target // 10, "against": target % 10}
        found = ""
        try:
            with (
                httpx.Client(transport=httpx.HTTPTransport(local_address=address), timeout=PATIENCE) as client,
                client.stream(
                    "POST", f"{self.url}/vitviz/faithfulness", data={"ask": json.dumps(asked)}, files={"x": (None, "")}
                ) as answer,
            ):
                began = time.monotonic()
                for line in answer.iter_lines():
                    found = line
                    if time.monotonic() - began > stay or (leave is not None and leave.is_set()):
                        break
        except httpx.TransportError:
            return ""
        return "" if "progress" in found else found

    def first(self) -> str:
        """The id of the photograph that everybody's page opens with."""
        return self.ask("open", source={"image": "Church", "model": MODEL})["data"]["id"]

    def close(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()
        self.log.close()


@contextmanager
def started(folder: Path) -> Iterator[Server]:
    with closing(Server(folder)) as server:
        yield server
