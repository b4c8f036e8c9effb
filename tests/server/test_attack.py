"""Attacks on a started app, replayed: each of them once got through."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from attacked import MODEL, PATIENCE, ROOT, Server, started
from PIL import Image

from vitviz.server import api, scheduler
from vitviz.server.uploads import NO_SUCH_UPLOAD, UploadError, UploadFolder

CHURCH = ROOT / "examples" / "church.jpg"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with started(tmp_path_factory.mktemp("uploads")) as server:
        yield server


def picture(size: int = 64, seed: int = 0) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 255, (size, size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


# --- files of the server


@pytest.mark.parametrize("path", [str(CHURCH), "/etc/passwd", "/nothing/here", "/proc/self/environ", "../app.py", "\0"])
def test_no_file_is_read_that_was_not_uploaded(server: Server, path: str) -> None:
    answers = [server.call("open", {"path": path}, None, None)]
    answers.append(server.call("explain", {"path": path}, "rollout", None, None))
    events = [one for one in server.config["dependencies"] if one["inputs"]]
    assert len(events) == len(api.NAMES)
    answers += [server.join(one["id"], [{"path": path}, *[None] * (len(one["inputs"]) - 1)]) for one in events]
    for answer in answers:
        assert NO_SUCH_UPLOAD in answer  # one text, whatever lies there
        assert path not in answer or path == "\0"
    assert server.client.get(f"/gradio_api/file={quote(path)}").status_code == 403
    for source in ({"image": path}, {"model": path}, {"image": "Church", "model": f"upload:{path}"}):
        assert server.ask("open", source=source)["error"]["kind"] == "refused"
    assert server.ask("open", source={"path": path})["error"]["text"].startswith("Expected arguments among")


def test_links_out_of_the_folder_are_followed_before_they_are_believed(tmp_path: Path) -> None:
    folder = UploadFolder(tmp_path / "uploads")
    folder.root.mkdir()
    (folder.root / "link.jpg").symlink_to(CHURCH)
    (folder.root / "circle.jpg").symlink_to(folder.root / "circle.jpg")
    for name in ("link.jpg", "circle.jpg", "../uploads", "", "nothing.jpg"):
        with pytest.raises(UploadError, match="uploaded to this page"):
            folder.check(folder.root / name)
    for payload in ([{"a": [{"path": str(CHURCH)}]}], {"path": {"path": str(CHURCH)}}):
        with pytest.raises(UploadError):
            folder.check_all(payload)
    mine = folder.add("visitor", "mine.png", io.BytesIO(picture()))
    folder.check_all([{"path": str(mine)}, "path", 7, None])


# --- one client against the others


@pytest.mark.parametrize(
    "path", ["run/open", "api/open", "run/explain", "component_server", "process_recording", "vibe-edit"]
)
def test_nothing_passes_by_the_queue(server: Server, path: str) -> None:
    assert server.client.post(f"/gradio_api/{path}", json={"data": []}).status_code == 404


def test_a_crowd_that_leaves_holds_up_nobody(server: Server) -> None:
    """45 long questions, whose clients go away, while another visitor uploads, opens and asks a short question."""
    with ThreadPoolExecutor(45) as pool:
        targets = [number for number in range(1, 100) if number % 11][:45]
        attackers = [pool.submit(server.long_question, target, "127.0.0.9") for target in targets]
        time.sleep(1)
        began = time.monotonic()
        path = server.upload("mine.png", picture(seed=1)).json()[0]
        assert "predictions" in server.predict(path)
        scene = server.ask("open", photo=picture(seed=1), source={"model": MODEL})["data"]["id"]
        assert "data" in server.ask(
            "explain", {"scene": scene, "method": "token_gradcam", "target": 3, "against": None}
        )
        waited = time.monotonic() - began
        assert all("Busy" in attacker.result() for attacker in attackers if attacker.result())
    assert waited < PATIENCE / 4, "the long questions were waited for"
    assert "predictions" in server.predict(path)
    # What nobody waits for stops: running it would take minutes.
    assert "data" in server.ask("heads", {"scene": scene, "names": ["effective_rank"]})
    assert time.monotonic() - began < PATIENCE


def test_an_address_that_asks_too_much_is_told_how_long_it_takes(server: Server) -> None:
    many, full = scheduler.MOST_OF_ADDRESS + 4, threading.Event()

    def ask(number: int) -> str:
        answer = server.long_question(number, stay=PATIENCE / 2, leave=full)
        if answer:
            full.set()
        return answer

    with ThreadPoolExecutor(many) as pool:
        refused = list(filter(None, pool.map(ask, [number for number in range(90) if number % 11][:many])))
    assert refused
    assert all("Busy" in answer and "again in about" in answer for answer in refused)
    assert json.loads(refused[0])["error"]["kind"] == "busy"


def test_a_full_queue_says_how_long_it_takes_and_empties(server: Server) -> None:
    """One address fills the queue with events that nobody listens to."""
    number = next(one["id"] for one in server.config["dependencies"] if one["api_name"] == "open")
    path = server.upload("mine.png", picture(seed=3)).json()[0]
    answers = []
    for session in range(api.MOST_OF_ADDRESS + 20):
        body = {
            "data": [{"path": path}, MODEL, 140 + 14 * (session % 20)],
            "fn_index": number,
            "session_hash": f"crowd{session}",
        }
        answers.append(server.client.post("/gradio_api/queue/join", json=body))
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert all("requests are waiting. Try again in about" in answer.json()["detail"] for answer in refused)
    began = time.monotonic()
    while "Busy" in server.client.post("/gradio_api/call/open", json={"data": [7, MODEL, 3]}).text:
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.5)
    assert "predictions" in server.predict(path)  # after all who came before


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("explain", {"method": "gae", "target": 10**9}),
        ("explain", {"method": "gae", "target": -1}),
        ("explain", {"method": "gae", "target": 0, "against": 10**9}),
        ("explain", {"method": "no method", "target": 0}),
        ("faithfulness", {"methods": ["gae", "no method"]}),
        ("faithfulness", {"methods": ["gae"], "target": 10**9}),
        ("intervene", {"patches": [10**9]}),
        ("heads", {"names": ["beauty"]}),
    ],
)
def test_arguments_are_checked_before_anything_runs(server: Server, name: str, ask: dict[str, Any]) -> None:
    scene = server.first()
    began = time.process_time()
    answer = server.post(name, {"scene": scene, **ask})
    assert "xpected" in json.loads(answer.text)["error"]["text"]  # the first line
    assert time.process_time() - began < 1
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    ("endpoint", "data"),
    [
        ("open", [7, None, 5]),
        ("open", ["photo", None, 10**9]),
        ("open", ["photo", None, "many"]),
        ("open", ["photo", 7, None]),
        ("explain", ["0" * 32, ["rollout"], None, None]),
        ("explain", ["scene", "rollout", "last", None]),
        ("explain", [{"a": 1}, "rollout", None, None]),
        ("attention", ["scene", 10**9, "1", None]),
        ("attention", ["scene", 0, {"a": 1}, None]),
    ],
)
def test_wrong_types_are_answered_in_words(server: Server, endpoint: str, data: list) -> None:
    path = server.upload("mine.png", picture(seed=2)).json()[0]
    scene = server.first()
    given = [{"path": path} if one == "photo" else scene if one == "scene" else one for one in data]
    answer = server.call(
        endpoint, *[MODEL if one is None and endpoint == "open" else one for one in given[:2]], *given[2:]
    )
    assert "event: error" in answer
    assert "xpected" in answer
    for hint in ("Traceback", "object has no attribute", "<gradio", "pydantic", str(ROOT), "/tmp"):
        assert hint not in answer


# --- the disk


def test_only_pictures_are_kept_one_a_request_and_not_too_large(server: Server) -> None:
    before = server.files()
    for name, data in (
        ("a.txt", b"hello"),
        ("a.jpg", b"\x7fELF" * 99),
        ("a.html", b"<script>"),
        ("a.pt", b"\x80\x02}q\x00."),
    ):
        answer = server.upload(name, data)
        assert answer.status_code == 415
        assert "Expected a picture" in answer.text
    many = [("files", (f"{number}.png", picture())) for number in range(3)]
    assert server.client.post("/gradio_api/upload", files=many).status_code == 400
    assert server.upload("large.png", picture() + b"\0" * 70_000_000).status_code == 413
    chunked = server.client.post(
        "/gradio_api/upload",
        content=(b"\0" * 2**20 for _ in range(100)),
        headers={"content-type": "multipart/form-data; boundary=x"},
    )
    assert chunked.status_code in (400, 413)
    name = server.upload("n" * 100_000 + ".png", picture())
    assert name.status_code == 400 or len(name.text) < 500
    assert {path for path in server.files() if path.stat().st_size > 10**6} <= set(before)


def test_photographs_of_the_page_never_lie_on_the_disk(server: Server) -> None:
    before = set(server.files())
    large = picture(seed=9) + bytes(30_000_000)
    assert server.ask("open", photo=large, source={})["data"]["id"]
    assert server.ask("open", photo=b"hello", source={})["error"]["kind"] == "refused"
    assert server.client.post("/vitviz/open", files={"photo": large + bytes(40_000_000)}).status_code == 413
    many = [("photo", picture()) for _ in range(3)]
    assert server.client.post("/vitviz/open", files=many).status_code == 400
    assert set(server.files()) == before
    open_files = [os.readlink(path) for path in Path(f"/proc/{server.process.pid}/fd").iterdir() if path.is_symlink()]
    assert not [path for path in open_files if "deleted" in path and "tmp" in path]


def test_uploads_that_are_broken_off_leave_nothing(server: Server) -> None:
    before = set(server.files())
    host, port = server.url.removeprefix("http://").split(":")
    for path in 3 * ["/gradio_api/upload", "/vitviz/open", "/vitviz/checkpoint"]:
        with socket.create_connection((host, int(port)), timeout=PATIENCE) as line:
            head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 30000000\r\n"
            line.sendall(f"{head}Content-Type: multipart/form-data; boundary=x\r\n\r\n".encode())
            line.sendall(
                b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n' + picture(512)
            )
            line.sendall(b"\0" * 5_000_000)
    time.sleep(1)
    assert set(server.files()) == before


def test_who_takes_most_loses_the_oldest(tmp_path: Path) -> None:
    size = len(picture(seed=0))
    folder = UploadFolder(tmp_path / "uploads", quota=10 * size + 99)
    folder.root.mkdir()
    quiet = folder.add("quiet", "a.png", io.BytesIO(picture(seed=100)))
    greedy = [folder.add("greedy", f"{seed}.png", io.BytesIO(picture(seed=seed))) for seed in range(20)]
    assert quiet.exists()
    assert [path.exists() for path in greedy] == [False] * 15 + [True] * 5  # half of the quota
    others = [folder.add(f"visitor {seed}", "a.png", io.BytesIO(picture(seed=200 + seed))) for seed in range(8)]
    assert all(path.exists() for path in others)
    assert quiet.exists()
    assert sum(path.stat().st_size for path in folder.root.rglob("*.png")) <= folder.quota


def test_photographs_do_not_outlive_the_server(tmp_path: Path) -> None:
    folder = tmp_path / "uploads"
    with started(folder) as server:
        assert server.upload("mine.png", picture()).status_code == 200
        server.process.kill()
        server.process.wait(PATIENCE)
        assert any(path.name == "mine.png" for path in server.files())
    with started(folder) as server:
        assert not any(path.name == "mine.png" for path in server.files())
        assert server.upload("mine.png", picture()).status_code == 200
        assert any(path.name == "mine.png" for path in server.files())
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(PATIENCE)
        assert server.files() == []


# --- memory


def test_bodies_and_names_of_sessions_are_bounded(server: Server) -> None:
    large = {"data": ["x" * 5_000_000], "fn_index": 0, "session_hash": "attacker"}
    for path in ("queue/join", "call/open"):
        assert server.client.post(f"/gradio_api/{path}", json=large).status_code == 413
    assert server.post("explain", json.dumps(large)).status_code in (400, 413)
    for name in ("x" * 100_000, "a b", "", 7, ["x"]):
        body = {"data": [], "fn_index": 0, "session_hash": name}
        answer = server.client.post("/gradio_api/queue/join", json=body)
        assert answer.status_code == 400
        assert len(answer.text) < 200
    assert server.client.get(f"/gradio_api/heartbeat/{'x' * 1000}").status_code == 404
    nested = b"[" * 100_000
    answer = server.client.post("/gradio_api/queue/join", content=nested, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert server.post("explain", "[" * 100_000).status_code == 400
    scene = server.ask("explain", {"scene": "x" * 100_000})["error"]["text"]
    assert len(scene) < 200


# --- origins and headers


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://127.0.0.1.evil.example"]
)
@pytest.mark.parametrize(
    "path",
    [
        *("gradio_api/upload", "gradio_api/queue/join", "gradio_api/call/open", "gradio_api/cancel"),
        *("vitviz/open", "vitviz/explain", "vitviz/checkpoint"),
    ],
)
def test_other_sites_may_not_ask(server: Server, origin: str, path: str) -> None:
    answer = server.client.post(f"/{path}", json={}, headers={"origin": origin})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


def test_the_pages_own_site_may(server: Server) -> None:
    assert server.upload("mine.png", picture(), origin=server.url).status_code == 200
    assert server.post("models", headers={"origin": server.url}).status_code == 200
    answer = server.client.get("/config", headers={"origin": "https://evil.example"})
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_other_names_of_this_machine_are_not_answered(server: Server) -> None:
    assert server.client.get("/config", headers={"host": "evil.example"}).status_code == 421
    assert server.post("models", headers={"host": "evil.example"}).status_code == 421
    for header in ("x-forwarded-host", "x-gradio-server"):
        assert "evil" not in server.client.get("/config", headers={header: "evil.example"}).text


def test_every_answer_has_its_headers(server: Server) -> None:
    answers = [server.client.get(path) for path in ("/", "/config", "/nothing", "/gradio_api/info")]
    answers += [server.post("models"), server.post("nothing"), server.post("open", "{")]
    for headers in (answer.headers for answer in answers):
        assert headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'self'" in headers["content-security-policy"]
        assert "http" not in headers["content-security-policy"]


@pytest.mark.parametrize(
    "path",
    [
        "monitoring",
        "monitoring/summary",
        "gradio_api/dev/reload",
        "gradio_api/deep_link",
        "gradio_api/mcp",
        "vitviz/open",
    ],
)
def test_what_the_page_does_not_need_is_not_there(server: Server, path: str) -> None:
    assert server.client.get(f"/{path}").status_code == 404


def test_the_app_is_alive_after_all_this(server: Server) -> None:
    assert server.process.poll() is None
    path = server.upload("mine.jpg", CHURCH.read_bytes()).json()[0]
    assert "church" in server.predict(path)
