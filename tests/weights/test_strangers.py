"""What programs may ask of the page, and what strangers may try: words, never a traceback, never a path."""

from __future__ import annotations

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

from vitviz.server import endpoints
from vitviz.view import View
from vitviz.web.payload import block_bytes


@pytest.fixture(scope="module")
def closed(small: str) -> Iterator[Running]:
    """A page as on a Space: nothing is typed, nothing uploaded."""
    yield from served(small, typed=False)


def post(app: Running, name: str, ask: Any = None, source: Any = None, photo: bytes | None = None) -> httpx.Response:
    """Ask as a stranger's program may."""
    form = {"ask": json.dumps({} if ask is None else ask)}
    if source is not None:
        form["source"] = json.dumps(source)
    files = {"nothing": (None, "")} if photo is None else {"photo": ("photo", photo)}
    return httpx.post(f"{app.url}vitviz/{name}", data=form, files=files, timeout=PATIENCE)


def refused(answer: httpx.Response) -> str:
    """The words of a refusal."""
    text = answer.text if answer.status_code != 200 else json.loads(answer.text.splitlines()[-1])["error"]["text"]
    assert len(text) < 400
    for hint in ("Traceback", 'File "', "site-packages", ".py", "/tmp/", str(Path.home())):
        assert hint not in text
    return text


def opened(app: Running, photo: Path = DOG) -> str:
    """The id of an open photograph."""
    answer = post(app, "open", source={"model": MODEL}, photo=photo.read_bytes())
    return json.loads(answer.text.splitlines()[-1])["data"]["id"]


# --- what programs may ask


def test_programs_can_ask_too(app: Running, tmp_path: Path) -> None:
    client = app.client()
    manifest = client.predict(handle_file(CHURCH), MODEL, api_name="/open")
    assert manifest["predictions"][0][0] == "church"
    answer = client.predict(manifest["id"], 11, "4", api_name="/attention")
    mine = app.view().attention(11, 3)
    assert answer["values"] == mine.values.tolist()
    assert answer["title"] == mine.title
    empty = tmp_path / "empty.jpg"
    empty.touch()
    with pytest.raises(httpx.HTTPStatusError, match="415"):  # no picture: it is not even kept
        client.predict(handle_file(empty), api_name="/open")
    with pytest.raises(AppError, match="uploaded to this page"):
        client.predict({"path": "https://example.com/a.jpg", "meta": {"_type": "gradio.FileData"}}, api_name="/open")


@pytest.mark.parametrize("path", ["file=https://example.com/x", "proxy=https://example.com/x", "file=/etc/passwd"])
def test_doors_stay_shut(app: Running, path: str) -> None:
    assert httpx.get(f"{app.url}gradio_api/{path}", timeout=PATIENCE).status_code in (403, 404)


# --- the page's questions


def test_who_has_the_id_gets_the_file(app: Running) -> None:
    answer = post(app, "block", {"scene": opened(app), "block": 3})
    *progress, last, content = answer.content.split(b"\n", answer.content.count(b'{"progress"') + 1)
    assert all(line.startswith(b'{"progress"') for line in progress)  # of a slow machine
    assert json.loads(last) == {"bytes": len(content)}
    assert content == block_bytes(app.view(DOG).trace, 3)
    other = post(app, "block", {"scene": opened(app, CHURCH), "block": 3})
    assert other.content != answer.content


NONSENSE: list[Any] = [
    *(7, "x" * 100_000, [], ["é", "0"], ["../../etc/passwd"], [["x"] * 1000], {"data": [1]}, [[[[[]]]]]),
    *({"scene": one} for one in (None, "\x00", "nobody's", "../../etc/passwd", ["x"] * 1000, "0" * 31, "é" * 32)),
]


@pytest.mark.parametrize("name", ["block", "rollout", "explain", "page", "open", "models"])
@pytest.mark.parametrize("ask", NONSENSE, ids=lambda one: repr(one)[:20])
def test_strangers_are_answered_in_words(app: Running, name: str, ask: Any) -> None:
    assert "xpected" in refused(post(app, name, ask))


def test_absurd_arguments_are_answered_in_words(app: Running) -> None:
    scene = opened(app)
    absurd: list[tuple[str, dict[str, Any]]] = [
        ("block", {"block": "9" * 5000}),
        ("block", {"block": -1}),
        ("block", {"block": "0"}),
        ("rollout", {"token": 10**30}),
        ("rollout", {"token": True}),
        ("rollout", {"token": None, "discard": math.nan}),
        ("rollout", {"token": 0, "start": -(10**9)}),
        ("rollout", {"token": 0, "fuse": "x" * 100_000}),
        ("rollout", {str(i): i for i in range(1000)}),
        ("page", {"search": scene * 1000}),
    ]
    for name, ask in absurd:
        assert "xpected" in refused(post(app, name, {"scene": scene, **ask}))


def test_models_are_refused(app: Running, closed: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = folder(tmp_path / "secret")
    monkeypatch.setattr("vitviz.server.menu.zoo.load", lambda source: pytest.fail(f"{source} was read"))
    for running, source in ((app, secret), (closed, secret), (closed, "timm:vit_tiny_patch16_224")):
        answer = post(running, "open", source={"image": "Dog", "model": source})
        assert "name of a model" in answer.text or "this page's menu" in answer.text
        with pytest.raises(AppError, match=r"Expected the name|its menu|page's menu"):
            running.client().predict(handle_file(CHURCH), source, api_name="/open")


@pytest.mark.parametrize(
    "source",
    [
        [],
        {"image": "/etc/passwd"},
        {"image": {"path": "/etc/passwd"}},
        {"image": ["Dog"] * 1000},
        {"image": "x" * 100_000},
        {"model": ["x"]},
        {"image": 7, "model": {"a": 1}},
        {"path": "/etc/passwd"},
    ],
    ids=lambda one: repr(one)[:40],
)
def test_sources_that_are_none_are_refused_in_words(app: Running, source: Any) -> None:
    answer = post(app, "open", source=source)
    assert "xpected" in refused(answer)
    assert "root:" not in answer.text


@pytest.mark.parametrize("size", [-5, 0, 1e9, 999_999, 10**40, "None", "../x", True, 224.5])
def test_a_size_that_is_none_is_refused_in_words(app: Running, size: Any) -> None:
    assert "xpected" in refused(post(app, "open", source={"image": "Dog", "model": MODEL, "size": size}))


# --- many at once


def test_a_photograph_does_not_wait_for_a_panels_long_answer(app: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, end = threading.Event(), threading.Event()

    def slow(view: View) -> dict[str, str]:
        begun.set()
        assert end.wait(30)
        return {"answer": view.photo.mode}

    monkeypatch.setattr(endpoints, "describe_layers", slow)
    one, other = opened(app, CHURCH), opened(app)
    with ThreadPoolExecutor(2) as pool:
        try:
            first = pool.submit(post, app, "layers", {"scene": one})
            assert begun.wait(30)
            hurry = post(app, "open", source={"image": "Dog", "model": MODEL, "size": 196})
            assert "data" in json.loads(hurry.text.splitlines()[-1])
            begun.clear()
            second = pool.submit(post, app, "layers", {"scene": other})
            assert not begun.wait(0.5)  # one answer at a time is worked out
            assert not first.done()
        finally:
            end.set()
        for question in (first, second):
            assert json.loads(question.result().text.splitlines()[-1])["data"] == {"answer": "RGB"}
