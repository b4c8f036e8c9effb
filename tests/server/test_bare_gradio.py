"""Check that each vulnerability of plain Gradio exists in a plain app and is absent in ours.

A check of our app alone would prove little: a new version of Gradio may have fixed or moved the vulnerability.
"""

import functools
import http.server
import io
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from attacked import ROOT, Server
from offered import folder, photograph
from PIL import Image

pytestmark = pytest.mark.tier("all")

# Gradio fetches only from public addresses. Without a network there are none, so a local address counts as public.
PUBLIC = "import safehttpx; safehttpx.is_public_ip = lambda address: True\n"
BARE = """
import gradio as gr

def turn(image):
    return image.rotate(180)

with gr.Blocks(title="bare") as demo:
    image = gr.Image(type="pil")
    out = gr.Image(format="png")
    gr.Button().click(turn, image, out, api_name="open")
    gr.Button().click(len, gr.JSON(), gr.Number(), api_visibility="private")
demo.launch()
"""
OURS = "import runpy; runpy.run_path('app.py', run_name='__main__')"
NOWHERE = "http://127.0.0.1:9"  # a plain app sends telemetry, which must not leave this machine
PROXIES = {"HTTP_PROXY": NOWHERE, "HTTPS_PROXY": NOWHERE, "NO_PROXY": "127.0.0.1,localhost"}
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "GRADIO_ANALYTICS_ENABLED"} | PROXIES
SITE, EVIL = "page.example:7860", "https://evil.example"
POLICIES = {"default-src 'self'", "object-src 'none'", "connect-src 'self' data: blob:", "frame-ancestors 'self'"}
FILE = {"meta": {"_type": "gradio.FileData"}}  # Gradio's marker of files
BOMB = (13_000, 13_000)  # pixels: below Pillow's limit, and half a gigabyte when decoded


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    place = tmp_path_factory.mktemp("servers")
    ours = {**ENVIRONMENT, "VITVIZ_DEFAULT": folder(place / "model"), "VITVIZ_MODELS": str(place / "model")}
    with (
        closing(Server(place / "bare", [sys.executable, "-c", PUBLIC + BARE], environment=ENVIRONMENT)) as bare,
        closing(Server(place / "ours", [sys.executable, "-c", PUBLIC + OURS], environment=ours)) as served,
    ):
        yield bare, served


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """Another server, which records the requested paths in `REQUESTED`."""

    def do_GET(self) -> None:
        REQUESTED.append(self.path)
        self.send_error(404)

    def log_message(self, *_args: object) -> None:
        """Log nothing."""


REQUESTED: list[str] = []


@functools.cache
def elsewhere() -> str:
    """Start another server, which runs until the tests end; return its address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def opened(server: Server, photo: Any) -> str:
    """Return the photograph endpoint's answer to a file."""
    return server.call("open", photo, *(() if server.folder.name == "bare" else (None, None, None)))


def sent(server: Server) -> dict[str, Any]:
    """Upload a photograph; return it as an argument."""
    return {"path": server.upload("mine.png", photograph()).json()[0], **FILE}


def policy(server: Server) -> set[str]:
    return set(server.client.get("/").headers.get("content-security-policy", "").split("; "))


def fetches(server: Server) -> bool:
    path = f"/{server.folder.name}.png"
    address = elsewhere() + path
    for file in ({"path": address}, {"path": address, "url": address, **FILE}):
        opened(server, file)
    return path in REQUESTED


def relays(server: Server) -> bool:
    server.client.get(f"/gradio_api/file={elsewhere()}/relay-{server.folder.name}.png")
    return f"/relay-{server.folder.name}.png" in REQUESTED


def takes_half_a_gigabyte(server: Server) -> bool:
    def memory() -> float:
        """Return the peak memory of the server in megabytes."""
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1000

    out = io.BytesIO()
    Image.new("L", BOMB).save(out, "PNG")
    assert len(out.getvalue()) < 400_000
    before = memory()
    opened(server, {"path": server.upload("bomb.png", out.getvalue()).json()[0], **FILE})
    return memory() - before > 400


def answers_private_events(server: Server) -> bool:
    listed = {name.removeprefix("/") for name in server.client.get("/gradio_api/info").json()["named_endpoints"]}
    events = [event for event in server.config()["dependencies"] if event["api_name"] not in listed and event["inputs"]]
    return any("process_completed" in server.join(event["id"], [[1, 2]], session="private") for event in events)


def get(server: Server, path: str, **headers: str) -> httpx.Response:
    return server.client.get(path, headers=headers)


def post(server: Server, path: str, **options: Any) -> bool:
    return server.client.post(f"/gradio_api/{path}", **options).status_code == 200


def other_site_reads(answer: httpx.Response) -> bool:
    return answer.is_success and answer.headers.get("access-control-allow-origin") in (EVIL, "*")


MANY = [("files", (f"{number}.png", photograph(number))) for number in range(20)]
ANY_SESSION = {"data": [], "fn_index": 0, "session_hash": "x" * 100_000}
VULNERABILITIES: dict[str, Callable[[Server], bool]] = {
    "reads any picture on the machine": lambda server: (
        "event: complete" in opened(server, {"path": str(ROOT / "examples" / "church.jpg")})
    ),
    "fetches any address that a visitor names": fetches,
    "relays files from any address": relays,
    "uses half a gigabyte for a small picture": takes_half_a_gigabyte,
    "stores files that are not pictures": lambda server: (
        server.upload("page.html", b"<script>alert(1)</script>").is_success
    ),
    "stores files of any size": lambda server: server.upload("a.png", photograph() + bytes(80_000_000)).is_success,
    "stores many files from one request": lambda server: post(server, "upload", files=MANY),
    "allows other sites to read answers": lambda server: other_site_reads(
        get(server, "/config", host=SITE, origin=EVIL)
    ),
    "accepts requests from other sites": lambda server: (
        server.upload("a.png", photograph(), host=SITE, origin=EVIL).is_success
    ),
    "answers requests for another host name": lambda server: get(server, "/config", host=SITE).is_success,
    "has no content security policy": lambda server: not policy(server) >= POLICIES,
    "allows content types to be guessed": lambda server: (
        get(server, "/config").headers.get("x-content-type-options") != "nosniff"
    ),
    "publishes its visitors": lambda server: get(server, "/monitoring/summary").is_success,
    "bypasses the queue": lambda server: post(server, "run/open", json={"data": [sent(server)]}),
    "answers private events": answers_private_events,
    "fails without an explanation": lambda server: "xpected" not in opened(server, 7),
    "stores sessions with any name": lambda server: post(server, "queue/join", json=ANY_SESSION),
    "sends telemetry": lambda server: bool(server.config()["analytics_enabled"]),
}


@pytest.mark.parametrize("name", VULNERABILITIES)
def test_vulnerability_of_plain_gradio_is_absent_in_the_app(servers: tuple[Server, Server], name: str) -> None:
    bare, ours = servers
    assert VULNERABILITIES[name](bare), "Gradio has fixed it: update this check, or remove it and our defense"
    assert not VULNERABILITIES[name](ours)
