"""Each hole of gradio as it comes, shown on a bare app of it and then shut in ours.

A test that a hole is shut says little where the hole may never have been there: a new gradio may have shut it, or
moved it to where nobody looks. So every one of them is asked of both.
"""

from __future__ import annotations

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

import pytest
from attacked import MODEL, ROOT, Server
from offered import photograph
from PIL import Image

# gradio fetches from public addresses alone. Without a network there are none, so this machine's counts as one.
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
NOWHERE = "http://127.0.0.1:9"  # a bare app reports to its makers; from here nothing leaves the machine
PROXIES = {"HTTP_PROXY": NOWHERE, "HTTPS_PROXY": NOWHERE, "NO_PROXY": "127.0.0.1,localhost"}
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "GRADIO_ANALYTICS_ENABLED"} | PROXIES
SITE, EVIL = "page.example:7860", "https://evil.example"
BOMB = (13_000, 13_000)  # pixels: within twice of what Pillow warns at, and half a gigabyte once it is decoded


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    place = tmp_path_factory.mktemp("servers")
    with (
        closing(Server(place / "bare", [sys.executable, "-c", PUBLIC + BARE], environment=ENVIRONMENT)) as bare,
        closing(Server(place / "ours", [sys.executable, "-c", PUBLIC + OURS], environment=ENVIRONMENT)) as ours,
    ):
        yield {"bare": bare, "ours": ours}


class Elsewhere:
    """Another server with a picture, which notes the paths that it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        asked = self.asked

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                self.send_response(200)
                self.send_header("Content-Type", "image/png")
                self.end_headers()
                self.wfile.write(photograph())

            def log_message(self, *_args: object) -> None:
                """Say nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    started = Elsewhere()
    yield started
    started.server.shutdown()


def opened(server: Server, payload: dict[str, Any]) -> str:
    """What the endpoint for a photograph answers to this file."""
    more = () if "bare" in str(server.folder) else (MODEL, None)
    return server.call("open", payload, *more)


# ---- the holes: whether each is open


def reads_any_picture(server: Server, _elsewhere: Elsewhere) -> bool:
    """Does a request open a file of the machine, by a payload without gradio's own mark?"""
    return "event: complete" in opened(server, {"path": str(ROOT / "examples" / "church.jpg")})


def fetches(server: Server, elsewhere: Elsewhere) -> bool:
    """Does the server fetch an address that a visitor names as a photograph?"""
    url = f"{elsewhere.url}/{server.folder.name}.png"
    for file in ({"path": url}, {"path": url, "url": url, "meta": {"_type": "gradio.FileData"}}):
        opened(server, file)
    return f"/{server.folder.name}.png" in elsewhere.asked


def relays(server: Server, elsewhere: Elsewhere) -> bool:
    """Does the server hand out what lies at an address?"""
    server.client.get(f"/gradio_api/file={elsewhere.url}/relay-{server.folder.name}.png")
    return f"/relay-{server.folder.name}.png" in elsewhere.asked


def is_blown_up(server: Server, _elsewhere: Elsewhere) -> bool:
    """Does a small picture take half a gigabyte?"""
    out = io.BytesIO()
    Image.new("L", BOMB).save(out, "PNG")
    assert len(out.getvalue()) < 400_000
    before = memory(server)
    path = server.upload("bomb.png", out.getvalue()).json()[0]
    opened(server, {"path": path, "meta": {"_type": "gradio.FileData"}})
    return memory(server) - before > 400


def memory(server: Server) -> float:
    """The most that a server has ever taken, in megabytes."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1000


def takes_any_file(server: Server, _elsewhere: Elsewhere) -> bool:
    """Does it keep what is no picture?"""
    return server.upload("page.html", b"<script>alert(1)</script>").status_code == 200


def takes_large_files(server: Server, _elsewhere: Elsewhere) -> bool:
    """Does it keep a file of any size?"""
    return server.upload("large.png", photograph() + bytes(80_000_000)).status_code == 200


def takes_many_files(server: Server, _elsewhere: Elsewhere) -> bool:
    """Does one request leave many files?"""
    many = [("files", (f"{number}.png", photograph(number))) for number in range(20)]
    return server.client.post("/gradio_api/upload", files=many).status_code == 200


def reflects_origins(server: Server, _elsewhere: Elsewhere) -> bool:
    """May a page of another site read answers, with the visitor's cookies?"""
    answer = server.client.get("/config", headers={"host": SITE, "origin": EVIL})
    return answer.headers.get("access-control-allow-origin") in (EVIL, "*")


def takes_requests_of_other_sites(server: Server, _elsewhere: Elsewhere) -> bool:
    """May a page of another site upload in the name of a visitor?"""
    return server.upload("a.png", photograph(), host=SITE, origin=EVIL).status_code == 200


def answers_to_any_name(server: Server, _elsewhere: Elsewhere) -> bool:
    """Is a page on this machine served to a foreign name that points here?"""
    return server.client.get("/config", headers={"host": SITE}).status_code == 200


def is_framed_by_anybody(server: Server, _elsewhere: Elsewhere) -> bool:
    """May any site show the page in a frame?"""
    return "frame-ancestors 'self'" not in server.client.get("/").headers.get("content-security-policy", "")


def loads_from_anywhere(server: Server, _elsewhere: Elsewhere) -> bool:
    """May the page load scripts, pictures and data of other hosts?"""
    policy = server.client.get("/").headers.get("content-security-policy", "")
    return not {"default-src 'self'", "object-src 'none'", "connect-src 'self' data: blob:"} <= set(policy.split("; "))


def lets_types_be_guessed(server: Server, _elsewhere: Elsewhere) -> bool:
    """May a browser take a file for another type than it is said to have?"""
    return server.client.get("/config").headers.get("x-content-type-options") != "nosniff"


def shows_who_visits(server: Server, _elsewhere: Elsewhere) -> bool:
    """Is the summary of all requests there for everybody?"""
    return server.client.get("/monitoring/summary").status_code == 200


def is_run_past_the_queue(server: Server, _elsewhere: Elsewhere) -> bool:
    """Is an endpoint run at once, however many wait?"""
    path = server.upload("mine.png", photograph()).json()[0]
    file = {"path": path, "meta": {"_type": "gradio.FileData"}}
    return server.client.post("/gradio_api/run/open", json={"data": [file]}).status_code == 200


def has_private_events_called(server: Server, _elsewhere: Elsewhere) -> bool:
    """Does an event that is in no list of endpoints answer to who calls it by its number?"""
    listed = {name.removeprefix("/") for name in server.client.get("/gradio_api/info").json()["named_endpoints"]}
    private = [one for one in server.config["dependencies"] if one["api_name"] not in listed and one["inputs"]]
    return any("process_completed" in server.join(one["id"], [[1, 2]], session="private") for one in private)


def fails_without_words(server: Server, _elsewhere: Elsewhere) -> bool:
    """Is an argument of a wrong type answered without a word of what was expected?"""
    return "xpected" not in opened(server, [7])  # type: ignore[arg-type]


def keeps_any_session(server: Server, _elsewhere: Elsewhere) -> bool:
    """Does a name of a session without bound stay in memory?"""
    body = {"data": [], "fn_index": 0, "session_hash": "x" * 100_000}
    return server.client.post("/gradio_api/queue/join", json=body).status_code == 200


def phones_home(server: Server, _elsewhere: Elsewhere) -> bool:
    """Does it tell its makers that it is run, where nobody has said otherwise?"""
    return bool(server.config["analytics_enabled"])


HOLES = [
    reads_any_picture, fetches, relays, is_blown_up, takes_any_file, takes_large_files, takes_many_files,
    reflects_origins, takes_requests_of_other_sites, answers_to_any_name, is_framed_by_anybody, loads_from_anywhere,
    lets_types_be_guessed, shows_who_visits, is_run_past_the_queue, has_private_events_called, fails_without_words,
    keeps_any_session, phones_home,
]  # fmt: skip


@pytest.mark.parametrize("hole", HOLES, ids=lambda hole: hole.__name__)
def test_a_hole_of_a_bare_app_is_shut(
    servers: dict[str, Server], elsewhere: Elsewhere, hole: Callable[[Server, Elsewhere], bool]
) -> None:
    assert hole(servers["bare"], elsewhere), "gradio has shut it: look for where it went, or drop it here and in ours"
    assert not hole(servers["ours"], elsewhere)
