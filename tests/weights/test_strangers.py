"""What programs may ask of the page, and what strangers may try: words, never a traceback, never a path."""

from __future__ import annotations

import base64
import json
import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from gradio_client import handle_file
from gradio_client.exceptions import AppError
from running import CHURCH, DOG, MODEL, PATIENCE, Running, folder, served

from vitviz.server.insight import Panel
from vitviz.view import View
from vitviz.web.payload import block_bytes


@pytest.fixture(scope="module")
def closed(small: str) -> Iterator[Running]:
    """A page as on a Space: nothing is typed, nothing uploaded."""
    yield from served(small, typed=False)


@pytest.fixture(scope="module")
def generous(small: str) -> Iterator[Running]:
    """A page that takes checkpoints."""
    yield from served(small, upload=True)


def no_more_than_words(text: str) -> None:
    for hint in ("Traceback", 'File "', "site-packages", ".py", "/tmp/", str(Path.home())):
        assert hint not in text


# --- what programs may ask


def test_programs_can_ask_too(app: Running, tmp_path: Path) -> None:
    client = app.client()
    best = client.predict(handle_file(CHURCH), api_name="/predict")
    assert best[0]["label"] == "church"
    answer = client.predict(handle_file(CHURCH), MODEL, "attention", 12, "4", api_name="/explain")
    mine = app.view().attention(11, 3)
    assert answer["values"] == mine.values.tolist()
    assert answer["title"] == mine.title
    rollout = client.predict(handle_file(CHURCH), MODEL, "rollout", -1, "max", api_name="/explain")
    assert rollout["values"] == app.view().rollout(fuse="max").values.tolist()
    empty = tmp_path / "empty.jpg"
    empty.touch()
    with pytest.raises(httpx.HTTPStatusError, match="415"):  # no picture: it is not even kept
        client.predict(handle_file(empty), api_name="/predict")
    with pytest.raises(AppError, match="uploaded to this page"):
        client.predict({"path": "https://example.com/a.jpg", "meta": {"_type": "gradio.FileData"}}, api_name="/predict")


def test_only_these_two_are_told_of(app: Running) -> None:
    told = httpx.get(f"{app.url}gradio_api/info", timeout=PATIENCE).json()
    assert set(told["named_endpoints"]) == {"/predict", "/explain"}
    assert told["unnamed_endpoints"] == {}


@pytest.mark.parametrize(
    "asked",
    [("magic", 12, "mean"), ("attention", 99, "mean"), ("attention", 1, "99"), ("rollout", 1, "sum")],
    ids=str,
)
def test_programs_are_refused_in_words(app: Running, asked: tuple[str, int, str]) -> None:
    with pytest.raises(AppError) as refusal:
        app.client().predict(handle_file(CHURCH), MODEL, *asked, api_name="/explain")
    assert "xpected" in str(refusal.value)
    no_more_than_words(str(refusal.value))


@pytest.mark.parametrize("path", ["file=https://example.com/x", "proxy=https://example.com/x", "file=/etc/passwd"])
def test_doors_stay_shut(app: Running, path: str) -> None:
    assert httpx.get(f"{app.url}gradio_api/{path}", timeout=PATIENCE).status_code in (403, 404)


# --- the explorer's functions


def photograph_of(app: Running, visitor: str, photo: Path = DOG) -> str:
    """The id of a photograph that a visitor has open."""
    return app.sessions.open(visitor, photo, MODEL).name


def test_who_has_the_id_gets_the_file(app: Running) -> None:
    name = photograph_of(app, "visitor")
    answer = app.ask("part", [name, "3"]).json()
    assert base64.b64decode(answer["data"]) == block_bytes(app.view(DOG).trace, 3)
    assert app.ask("part", [app.page.first.name, "3"]).json()["data"] != answer["data"]


def test_ids_cannot_be_guessed_and_end_with_their_photograph(app: Running) -> None:
    names = {photograph_of(app, f"visitor {i}") for i in range(8)}
    assert len(names) == 8
    assert all(len(base64.urlsafe_b64decode(name + "==")) >= 16 for name in names)
    mine = photograph_of(app, "visitor 0")
    assert mine in names
    photograph_of(app, "visitor 0", CHURCH)
    assert "forgotten" in app.ask("part", [mine, "0"]).json()
    app.sessions.close("visitor 1")
    still = [name for name in names if "data" in app.ask("part", [name, "0"]).json()]
    assert len(still) == 6


@pytest.mark.parametrize("function", ["part", "flow", "whole"])
@pytest.mark.parametrize(
    "data",
    [
        None,
        7,
        "x" * 100_000,
        [],
        ["é", "0"],
        ["\x00", 0, {}],
        ["nobody's"],
        ["../../etc/passwd", "0"],
        [["x"] * 1000],
        {"data": [1]},
        [[[[[]]]]],
    ],
    ids=lambda one: repr(one)[:20],
)
def test_strangers_are_answered_in_words(app: Running, function: str, data: Any) -> None:
    photograph_of(app, "somebody")  # or there would be no name to compare with
    answer = app.ask(function, data)
    assert answer.status_code == 200
    assert "error" in answer.json()
    assert len(answer.text) < 400
    no_more_than_words(answer.text)


def test_absurd_arguments_are_answered_in_words(app: Running) -> None:
    name = app.page.first.name
    absurd: list[tuple[str, list[Any]]] = [
        ("part", [name, "9" * 5000]),
        ("part", [name, "-1"]),
        ("part", [name, 0]),
        ("flow", [name, 10**30, {}]),
        ("flow", [name, True, {}]),
        ("flow", [name, None, {"discard": math.nan}]),
        ("flow", [name, 0, {"start": -(10**9)}]),
        ("flow", [name, 0, {"fuse": "x" * 100_000}]),
        ("flow", [name, 0, {str(i): i for i in range(1000)}]),
        ("whole", [name, name]),
    ]
    for function, data in absurd:
        body = json.dumps(
            {"data": data, "component_id": app.page.viewer._id, "fn_name": function, "session_hash": "stranger"}
        )
        told = {"Content-Type": "application/json"}
        answer = httpx.post(f"{app.url}gradio_api/component_server/", content=body, headers=told, timeout=PATIENCE)
        assert answer.status_code == 200, function
        assert "error" in answer.json()
        assert len(answer.text) < 400
        no_more_than_words(answer.text)


@pytest.mark.parametrize("function", ["postprocess", "__init__", "push_to_hub", "get_config", "nothing", "find", ""])
def test_nothing_else_of_the_component_can_be_called(app: Running, function: str) -> None:
    answer = app.ask(function, ["x"])
    assert answer.status_code == 404
    no_more_than_words(answer.text)


# --- private endpoints: not secret, so they refuse as well


def test_private_endpoints_refuse_models(
    app: Running, closed: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = folder(tmp_path / "secret")
    monkeypatch.setattr("vitviz.server.menu.zoo.load", lambda source: pytest.fail(f"{source} was read"))
    for running, source in ((app, secret), (closed, secret), (closed, "timm:vit_tiny_patch16_224")):
        for handler, event in (
            ("chosen", {"source": source}),
            ("linked", {"image": None, "model": source, "detail": None, "turn": 1}),
        ):
            answers = "".join(running.call(handler, [None, None, None], event))
            assert "could not be opened" in answers
        with pytest.raises(AppError, match=r"Expected the name|its menu"):
            running.client().predict(handle_file(CHURCH), source, api_name="/predict")
    assert "could not be opened" in "".join(app.call("typed", [secret, None, None, None]))


@pytest.mark.parametrize(
    "event",
    [
        None,
        {},
        {"image": "/etc/passwd", "model": None, "turn": 1},
        {"image": {"path": "/etc/passwd"}, "model": None, "turn": "1"},
        {"image": ["Dog"] * 1000, "model": None, "turn": 1e300},
        {"image": "x" * 100_000, "model": None, "turn": None},
        {"image": None, "model": ["x"], "turn": True},
        {"image": 7, "model": {"a": 1}, "turn": -1},
    ],
    ids=lambda one: repr(one)[:40],
)
def test_links_that_are_none_are_refused_in_words(app: Running, event: Any) -> None:
    answers = [line for line in app.call("linked", [None, None, None], event) if "process" in line]
    said = "".join(answers)
    assert '"success":true' not in said.replace(" ", "") or "not here" in said or "could not be opened" in said
    told = json.loads(answers[-1].removeprefix("data:"))["output"].get("error") or ""
    no_more_than_words(told)
    assert "root:" not in said


def test_a_photograph_that_was_not_uploaded_is_not_read(app: Running, small: str) -> None:
    for path in ("/etc/passwd", f"{small}/model.safetensors", "https://example.com/a.jpg"):
        file = {"path": path, "meta": {"_type": "gradio.FileData"}}
        answers = "".join(app.call("new_photo", [file, None, "own"]))
        assert '"success":false' in answers.replace(" ", "")
        assert "root:" not in answers


@pytest.mark.parametrize("side", ["-5", "1e9", "999999", "9" * 5000, "None", "../x", "²"])
def test_a_size_that_is_none_is_refused_in_words(app: Running, side: str) -> None:
    said = "".join(app.call("new_detail", [None, None, side], session=f"stranger-{len(side)}"))
    assert "did not work" in said
    assert "xpected" in said
    assert "Traceback" not in said


def test_a_closed_page_has_no_handlers_for_what_it_forbids(closed: Running) -> None:
    handlers = {getattr(fn.fn, "__name__", "") for fn in closed.demo.fns.values()}
    assert not handlers & {"typed", "uploaded"}
    assert {"chosen", "new_photo", "linked"} <= handlers


def test_an_upload_that_was_none_is_not_read(generous: Running, small: str) -> None:
    for path in ("/etc/passwd", f"{small}/model.safetensors"):
        file = {"path": path, "meta": {"_type": "gradio.FileData"}}
        answers = "".join(generous.call("uploaded", [file, None, None, None]))
        assert "could not be opened" not in answers  # it did not come so far
        assert '"success":false' in answers.replace(" ", "")


# --- many at once


def test_a_photograph_does_not_wait_for_a_panels_long_answer(app: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, end = threading.Event(), threading.Event()

    def slow(view: View, *_: object) -> dict[str, str]:
        begun.set()
        assert end.wait(30)
        return {"answer": view.photo.mode}

    monkeypatch.setattr("vitviz.server.insight._lens", slow)
    panel = next(one for one in app.demo.blocks.values() if isinstance(one, Panel))
    asked = {"data": [app.page.first.name], "component_id": panel._id, "fn_name": "lens", "session_hash": "slow"}
    address = f"{app.url}gradio_api/component_server/"
    with ThreadPoolExecutor(2) as pool:
        try:
            first = pool.submit(httpx.post, address, json=asked, timeout=PATIENCE)
            assert begun.wait(30)
            photograph_of(app, "somebody who is in a hurry")
            begun.clear()
            second = pool.submit(httpx.post, address, json=asked, timeout=PATIENCE)
            assert not begun.wait(0.5)  # one answer at a time is worked out
            assert not first.done()
        finally:
            end.set()
        assert [json.loads(one.result().json()["data"])["answer"] for one in (first, second)] == ["RGB", "RGB"]
