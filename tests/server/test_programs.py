"""The endpoints as programs use them: with gradio_client, and as gradio lists them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tiny
from gradio.mcp import GradioMCPServer
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from offered import ask_without_end, folder, made, photograph
from test_routes import Replica, wait_for

from vitviz.server import endpoints as endpoints_module
from vitviz.server.api import NAMES
from vitviz.server.scheduler import Kind
from vitviz.server.uploads import upload_folder

ROWS, COLUMNS = tiny.GRID


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    place = tmp_path_factory.mktemp("programs")
    started = Replica(made(place / "page", (folder(place / "model"),)))
    yield started
    started.close()


@pytest.fixture(scope="module")
def client(replica: Replica) -> Client:
    return Client(replica.url, verbose=False, httpx_kwargs={"timeout": 60})


@pytest.fixture(scope="module")
def scene(client: Client, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("photo") / "mine.png"
    path.write_bytes(photograph(3))
    return client.predict(handle_file(path), api_name="/open")["id"]


def test_every_endpoint_is_listed_with_its_words_and_types(replica: Replica) -> None:
    listed = httpx.get(f"{replica.url}/gradio_api/info", timeout=60).json()["named_endpoints"]
    assert set(listed) == {f"/{name}" for name in NAMES}
    for name in NAMES:
        description = listed[f"/{name}"]["description"]
        assert description.split()[0] in {"Open", "Return", "Explain", "Test", "Run"}
        assert "self" not in [one["parameter_name"] for one in listed[f"/{name}"]["parameters"]]
    explain = {one["parameter_name"]: one for one in listed["/explain"]["parameters"]}
    assert list(explain) == ["scene", "method", "target", "against"]
    assert explain["method"]["parameter_default"] == "gae"
    assert explain["scene"]["python_type"]["type"] == "str"


def test_every_endpoint_answers(client: Client, scene: str, replica: Replica, tmp_path: Path) -> None:
    def ask(name: str, *given: Any, **named: Any) -> Any:
        return client.predict(*given, **named, api_name=f"/{name}")

    endpoints = replica.endpoints
    assert base64.b64decode(ask("block", scene, 1)) == endpoints.block(scene, 1)
    assert base64.b64decode(ask("rollout", scene, fuse="max")) == endpoints.rollout(scene, fuse="max")
    assert (
        ask("explain", scene, "token_gradcam", target=3)["values"]
        == endpoints.explain(scene, "token_gradcam", 3)["values"]
    )
    assert ask("faithfulness", scene, ["token_gradcam"], target=3)[0]["words"]
    assert np.shape(ask("heads", scene, ["distance"])["values"]["distance"]) == (tiny.DEPTH, tiny.HEADS)
    assert ask("layers", scene) == endpoints.layers(scene)
    assert ask("intervene", scene, [0, 1], [[0, 1]]) == endpoints.intervene(scene, [0, 1], [[0, 1]])
    assert np.shape(ask("attention", scene, 2, "3")["values"]) == (ROWS, COLUMNS)
    assert base64.b64decode(ask("page", scene)).startswith(b"<!doctype html>")


def test_what_is_wrong_is_answered_in_words(client: Client, scene: str) -> None:
    for name, given, named in (
        ("explain", (scene, "beauty"), "beauty"),
        ("explain", (scene, "gae", 99), "99"),
        ("explain", ("0" * 32,), "Open it again"),
        ("block", (scene, -1), "-1"),
        ("heads", (scene, [7]), "names"),
    ):
        with pytest.raises(AppError, match=named):
            client.predict(*given, api_name=f"/{name}")


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute KernelSHAP again and again: only cancelling ends it."""
    monkeypatch.setattr(endpoints_module, "ask_view", ask_without_end)


@pytest.mark.usefixtures("endless")
def test_what_a_program_cancels_stops(client: Client, scene: str, replica: Replica) -> None:
    scheduler = replica.endpoints.scheduler
    job = client.submit(scene, "kernel_shap", api_name="/explain")
    wait_for(lambda: scheduler.ahead(Kind.LONG) == 1)
    job.cancel()
    wait_for(lambda: scheduler.ahead(Kind.LONG) == 0)


@pytest.mark.usefixtures("endless")
def test_what_a_program_that_has_gone_asked_stops(scene: str, replica: Replica) -> None:
    scheduler, address = replica.endpoints.scheduler, f"{replica.url}/gradio_api/call/explain"
    event = httpx.post(address, json={"data": [scene, "kernel_shap", None, None]}, timeout=60).json()["event_id"]
    with httpx.stream("GET", f"{address}/{event}", timeout=60):
        wait_for(lambda: scheduler.ahead(Kind.LONG) == 1)
    wait_for(lambda: scheduler.ahead(Kind.LONG) == 0)


def test_tools_are_served(tmp_path: Path) -> None:
    served = Replica(made(tmp_path / "page", (folder(tmp_path / "model"),), mcp=True))
    tools = httpx.get(f"{served.url}/gradio_api/mcp/schema", timeout=60).json()
    photo = f"data:image/png;base64,{base64.b64encode(b'a picture').decode()}"
    kept = GradioMCPServer.convert_strings_to_filedata(None, {"photo": photo}, [["photo"]])["photo"]["path"]
    served.close()
    assert Path(kept).is_relative_to(upload_folder().root)  # not where other users of this machine read and write
    assert {one["name"] for one in tools} == set(NAMES)
    assert all(one["description"] for one in tools)


def test_python_needs_no_page(replica: Replica) -> None:
    answer = httpx.get(replica.url, timeout=60)
    assert answer.status_code == 200
    assert "vitvizExplorer" in answer.text
