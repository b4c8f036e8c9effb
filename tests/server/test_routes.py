"""The page's questions over HTTP: streams, progress, cancelling, replicas, and what is refused before any work."""

from __future__ import annotations

import gc
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from offered import ask_without_end, folder, made, photograph

from vitviz.server import endpoints as endpoints_module
from vitviz.server import routes
from vitviz.server.endpoints import Endpoints
from vitviz.server.pages import Page
from vitviz.server.scheduler import Kind
from vitviz.server.server import launch
from vitviz.server.settings import Settings

PATIENCE = 60  # seconds


class Replica:
    """A server of the page in this process, and questions to it."""

    def __init__(self, endpoints: Endpoints) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.endpoints, self.page = endpoints, Page(endpoints)
        launch(self.page, endpoints.menu.settings, "127.0.0.1", port, prevent_thread_lock=True, quiet=True)
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE)

    def post(self, name: str, ask: Any = None, photo: bytes | None = None, source: Any = None) -> httpx.Response:
        form: dict[str, Any] = {"ask": json.dumps(ask or {})}
        if source is not None:
            form["source"] = json.dumps({"image": None, "model": None, "size": None, **source})
        files = FORM if photo is None else {"photo": ("photo", photo)}
        return self.client.post(f"/vitviz/{name}", data=form, files=files)

    def ask(self, name: str, ask: Any = None, photo: bytes | None = None, source: Any = None) -> Any:
        """The last line of an answer, or its bytes."""
        answer = self.post(name, ask, photo, source)
        assert answer.status_code == 200, answer.text
        return last(answer.content)

    def close(self) -> None:
        self.client.close()
        self.page.close()
        del self.page, self.endpoints
        gc.collect()


FORM = {"nothing": (None, "")}  # makes httpx send a multipart form without a file


def last(content: bytes) -> Any:
    """What a stream ends with."""
    while True:
        text, _, content = content.partition(b"\n")
        line = json.loads(text)
        if "bytes" in line:
            assert len(content) == line["bytes"]
            return content
        if "progress" not in line:
            assert content == b""
            return line


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    place = tmp_path_factory.mktemp("models")
    return folder(place / "a"), folder(place / "b", 1)


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory, sources: tuple[str, ...]) -> Iterator[list[Replica]]:
    """Two servers that know nothing of each other."""
    started = [Replica(made(tmp_path_factory.mktemp("page"), sources, upload=True)) for _ in range(2)]
    yield started
    for replica in started:
        replica.close()


@pytest.fixture
def replica(replicas: list[Replica]) -> Replica:
    return replicas[0]


@pytest.fixture
def other(replicas: list[Replica]) -> Replica:
    return replicas[1]


# --- answers


def test_a_photograph_is_opened_and_asked_about(replica: Replica) -> None:
    manifest = replica.ask("open", photo=photograph(), source={})["data"]
    scene = {"scene": manifest["id"]}
    assert manifest["own"]
    assert replica.ask("block", {**scene, "block": 1})[:4] == b"VVB1"
    assert replica.ask("rollout", {**scene, "token": None, "fuse": "mean"})[:4] == b"VVR1"
    assert len(replica.ask("rollout", {**scene, "token": -1})) == 4 * (1 + 77)
    assert (
        len(
            replica.ask("explain", {**scene, "method": "token_gradcam", "target": None, "against": None})["data"][
                "values"
            ]
        )
        == 77
    )
    assert replica.ask("faithfulness", {**scene, "methods": ["rollout"], "target": 3, "against": None})["data"][0][
        "words"
    ]
    assert replica.ask("heads", {**scene, "names": ["distance"]})["data"]["values"]
    assert replica.ask("layers", scene)["data"]["layers"]
    assert replica.ask("intervene", {**scene, "patches": [3], "heads": [[0, 1]]})["data"]["classes"]
    assert b"<html" in replica.ask("page", {**scene, "search": "?layer=2"})
    assert replica.ask("models")["data"]["methods"]


def test_an_example_needs_no_photograph(replica: Replica, sources: tuple[str, ...]) -> None:
    manifest = replica.ask("open", source={"image": "Noise", "model": sources[1]})["data"]
    assert (manifest["image"], manifest["model"], manifest["own"]) == ("Noise", sources[1], None)
    assert "Noise" in replica.ask("open", source={"image": "Cat"})["error"]["text"]


def test_what_a_process_does_not_hold_is_opened_again_in_one_request(replica: Replica, other: Replica) -> None:
    manifest = replica.ask("open", photo=photograph(11), source={})["data"]
    ask = {"scene": manifest["id"], "block": 0}
    expected = replica.ask("block", ask)
    assert other.ask("block", ask)["error"]["kind"] == "unknown"
    assert other.ask("block", ask, photo=photograph(11), source={}) == expected
    assert other.ask("block", ask) == expected  # it is here now
    replica.endpoints.scenes.discard(lambda *_: True)  # as if the server had started anew
    question = {"scene": manifest["id"], "method": "token_gradcam", "target": None, "against": None}
    assert replica.ask("explain", question)["error"]["kind"] == "unknown"
    assert replica.ask("explain", question, photo=photograph(11), source={})["data"]["values"]


def test_another_photograph_than_the_scenes_is_no_answer(replica: Replica) -> None:
    ask = {"scene": "0" * 32, "block": 0}
    assert replica.ask("block", ask, photo=photograph(12), source={})["error"]["kind"] == "unknown"


# --- progress and leaving


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Opening a photograph takes until the event is set, and looks whether somebody waits."""
    run, end = endpoints_module.open_view, threading.Event()

    def held(*given: Any) -> Any:
        while not end.wait(0.02):
            torch.zeros(1).sum()
        return run(*given)

    monkeypatch.setattr(endpoints_module, "open_view", held)
    yield end
    end.set()


def stream(replica: Replica, photo: bytes, found: list[Any], stop: threading.Event | None = None) -> None:
    """Read an answer line by line."""
    form = {"ask": "{}", "source": "{}"}
    with replica.client.stream("POST", "/vitviz/open", data=form, files={"photo": photo}) as answer:
        for line in answer.iter_lines():
            found.append((time.monotonic(), json.loads(line)))
            if stop is not None and stop.is_set():
                return


def wait_for(condition: Any) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_progress_comes_twice_a_second_with_place_and_time(replica: Replica, slow: threading.Event) -> None:
    first: list[Any] = []
    second: list[Any] = []
    with ThreadPoolExecutor(2) as pool:
        pool.submit(stream, replica, photograph(20), first)
        wait_for(lambda: len(first) >= 2)
        pool.submit(stream, replica, photograph(21), second)
        wait_for(lambda: len(second) >= 3)
        slow.set()
    assert first[0][1]["progress"]["text"] == "Running the model on 77 patches"
    assert second[0][1]["progress"]["ahead"] == 1
    assert second[0][1]["progress"]["seconds"] > 0
    assert 0.3 < second[1][0] - second[0][0] < 2
    for lines in (first, second):
        assert lines[-1][1]["data"]["id"]
        assert all(list(line) == ["progress"] for _, line in lines[:-1])


def test_who_closes_the_connection_stops_the_work_and_what_waits_never_begins(
    replica: Replica, slow: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    leave, found, runs = threading.Event(), [], []
    with ThreadPoolExecutor(3) as pool:
        running = pool.submit(stream, replica, photograph(30), found, leave)
        wait_for(lambda: found)
        waiting = pool.submit(stream, replica, photograph(31), runs, leave)
        wait_for(lambda: runs)
        leave.set()
        running.result(PATIENCE)
        waiting.result(PATIENCE)
    wait_for(lambda: replica.endpoints.scheduler.ahead(Kind.LONG) == 0)
    assert not slow.is_set()  # nobody let it finish
    assert all("progress" in line for _, line in found + runs)
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_who_joins_a_question_keeps_it_alive(replica: Replica, slow: threading.Event) -> None:
    leave, found = threading.Event(), []
    joined: list[Any] = []
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(stream, replica, photograph(40), found, leave)
        wait_for(lambda: found)
        pool.submit(stream, replica, photograph(40), joined)
        wait_for(lambda: joined)
        leave.set()
        first.result(PATIENCE)
        slow.set()
    assert joined[-1][1]["data"]["id"]


def test_kernel_shap_of_who_has_left_delays_nobody(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints_module, "ask_view", ask_without_end)
    scene = replica.ask("open", photo=photograph(50), source={})["data"]["id"]
    form = {"ask": json.dumps({"scene": scene, "methods": ["gae", "kernel_shap"], "target": 5, "against": None})}
    with replica.client.stream("POST", "/vitviz/faithfulness", data=form, files=FORM) as answer:
        lines = (json.loads(line)["progress"] for line in answer.iter_lines())
        assert next(line for line in lines if line.get("done") == 1)["of"] == 4
        began = time.monotonic()
        assert replica.ask("layers", {"scene": scene})["data"]
        assert replica.ask("explain", {"scene": scene, "method": "token_gradcam", "target": 6})["data"]
        assert time.monotonic() - began < PATIENCE / 4
        assert replica.endpoints.scheduler.ahead(Kind.LONG) == 1
    wait_for(lambda: replica.endpoints.scheduler.ahead(Kind.LONG) == 0)
    assert replica.ask("heads", {"scene": scene, "names": ["ablation_logit"]})["data"]


def test_loading_a_model_is_said(replica: Replica, sources: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    load, end = replica.endpoints.loaded._load, threading.Event()
    monkeypatch.setattr(replica.endpoints.loaded, "_load", lambda name: end.wait(30) and load(name))
    replica.endpoints.loaded._evict(replica.endpoints.loaded._limit)
    found: list[Any] = []
    form = {"ask": "{}", "source": json.dumps({"image": "Noise", "model": sources[1]})}
    with replica.client.stream("POST", "/vitviz/open", data=form, files=FORM) as answer:
        for line in answer.iter_lines():
            found.append(json.loads(line))
            end.set()
    assert found[0]["progress"]["text"].startswith("Loading Tiny 1 (")
    assert found[-1]["data"]["model"] == sources[1]


# --- what is refused


@pytest.mark.parametrize("name", ["nothing", "Open", "question", "scenes", "checkpoints"])
def test_no_other_name_is_asked(replica: Replica, name: str) -> None:
    answer = replica.post(name)
    assert answer.status_code == 404
    assert len(answer.text) < 200


def test_forms_that_are_none_are_refused_in_words(replica: Replica) -> None:
    post = replica.client.post
    assert post("/vitviz/open", json={"ask": {}}).status_code == 415
    assert post("/vitviz/open", content=b"x", headers={"content-type": "multipart/form-data"}).status_code == 400
    assert post("/vitviz/open", data={"ask": "{"}, files=FORM).status_code == 400
    assert post("/vitviz/open", data={"ask": "[" * 100_000}, files=FORM).status_code == 400
    assert post("/vitviz/open", data={"ask": "{}", "photo": "text"}, files=FORM).status_code == 400
    assert post("/vitviz/open", files=[("photo", b"a"), ("photo", b"b")]).status_code == 400
    many = {str(number): "x" for number in range(20)}
    assert post("/vitviz/open", data=many, files=FORM).status_code == 400
    assert post("/vitviz/open", files={"photo": bytes(66_000_000)}).status_code == 413
    assert replica.client.get("/vitviz/open").status_code == 404
    for ask in ("[]", "7", "null", '"x"', '{"photo": "x"}', '{"x": 1}', "NaN"):
        found = last(post("/vitviz/open", data={"ask": ask}, files=FORM).content)
        assert found["error"]["kind"] == "refused"
        assert found["error"]["text"].startswith("Expected")
    for source in ("[]", "7", '{"path": "/etc/passwd"}', '{"size": "1"}', '{"model": 7}', '{"image": ["a"]}'):
        found = last(post("/vitviz/open", data={"source": source}, files=FORM).content)
        assert found["error"]["kind"] == "refused"


@pytest.mark.parametrize("photo", [b"", b"no picture", b"\x89PNG\r\n\x1a\n" + bytes(99), photograph()[:200]])
def test_photographs_that_are_none_are_refused_in_words(replica: Replica, photo: bytes) -> None:
    found = replica.ask("open", photo=photo, source={})["error"]
    assert found["kind"] == "refused"
    assert found["text"].startswith("Expected a")


def test_nothing_is_written_to_disk(replica: Replica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.SpooledTemporaryFile.rollover", lambda *_: pytest.fail("it went to disk"))
    large = photograph(60) + bytes(20_000_000)
    assert replica.ask("open", photo=large, source={})["data"]["id"]


def test_photographs_in_memory_are_bounded(
    replica: Replica, slow: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "PHOTO_BYTES_OF_ADDRESS", 3_000_000)
    photos = [photograph(seed) + bytes(2_000_000) for seed in (70, 71)]
    found: list[Any] = []
    with ThreadPoolExecutor(1) as pool:
        pool.submit(stream, replica, photos[0], found)
        wait_for(lambda: found)
        answer = replica.client.post("/vitviz/open", files={"photo": photos[1]})
        assert answer.status_code == 429
        assert "Busy" in answer.text
        slow.set()
    assert replica.ask("open", photo=photos[1], source={})["data"]["id"]


def test_questions_of_an_address_are_bounded(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "OPEN_QUESTIONS", 0)
    answer = replica.post("models")
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "10"
    assert answer.headers["content-type"].startswith("text/plain")


# --- checkpoints


def test_a_checkpoint_is_uploaded_and_named_by_its_hash(replica: Replica, other: Replica, tmp_path: Path) -> None:
    weights = Path(folder(tmp_path / "mine", 9)) / "model.safetensors"
    files = {"photo": ("mine.safetensors", weights.read_bytes())}
    found = last(replica.client.post("/vitviz/checkpoint", files=files).content)["data"]
    assert found["source"].startswith("upload:")
    assert found["words"].startswith("mine.safetensors · ")
    refused = other.ask("open", photo=photograph(), source={"model": found["source"]})["error"]
    assert "Upload it again" in refused["text"]  # on another machine
    for source in (
        "upload:",
        "upload:*",
        "upload:../..",
        f"{found['source']}0",
        found["source"][:-1],
        "upload:" + "0" * 16,
    ):
        refused = replica.ask("open", photo=photograph(), source={"model": source})["error"]
        assert refused["kind"] == "refused"
        assert str(tmp_path) not in refused["text"]
    answer = replica.ask("open", photo=photograph(), source={"model": found["source"]})
    text = answer["error"]["text"] if "error" in answer else answer["data"]["model"]
    assert text == found["source"] or text.startswith("Expected mine.safetensors to open, got an error. Expected")


def test_what_is_no_checkpoint_is_refused(replica: Replica, tmp_path: Path) -> None:
    for name, data in (("a.pt", b"x"), ("a.safetensors", b"")):
        answer = replica.client.post("/vitviz/checkpoint", files={"photo": (name, data)})
        found = last(answer.content)
        if "error" not in found:
            found = replica.ask("open", photo=photograph(), source={"model": found["data"]["source"]})
        assert found["error"]["kind"] == "refused"


def test_checkpoints_are_refused_where_the_operator_does(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica.endpoints.menu, "settings", Settings())
    answer = replica.client.post("/vitviz/checkpoint", files={"photo": ("a.safetensors", b"x")})
    assert answer.status_code == 403
    assert "own machine" in answer.text
