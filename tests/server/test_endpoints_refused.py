"""What the endpoints refuse. No browser, no HTTP."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st
from offered import ask, folder, made, photograph

from vitviz.server.arguments import ArgumentError
from vitviz.server.endpoints import Endpoints
from vitviz.server.routes import describe_error
from vitviz.server.scenes import UnknownScene
from vitviz.server.scheduler import Kind

ROWS, COLUMNS = tiny.GRID
TOKENS = 1 + ROWS * COLUMNS


@pytest.fixture(scope="module")
def endpoints(tmp_path_factory: pytest.TempPathFactory) -> Endpoints:
    place = tmp_path_factory.mktemp("refused")
    return made(place / "page", (folder(place / "model"),))


@pytest.fixture(scope="module")
def scene(endpoints: Endpoints) -> str:
    return endpoints.open(photograph())["id"]


NOTHING = "0" * 32
CALLS: list[tuple[str, dict[str, Any], str]] = [
    ("explain", {"method": "grad"}, "grad"),
    ("explain", {"method": 7}, "method"),
    ("explain", {"target": "thing 1"}, "target"),
    ("explain", {"target": 99}, "99"),
    ("explain", {"target": True}, "True"),
    ("explain", {"target": 3, "against": 3}, "different"),
    ("explain", {"target": -1}, "-1"),
    ("explain", {"target": 10**30}, "target"),
    ("faithfulness", {"methods": "gae"}, "gae"),
    ("faithfulness", {"methods": []}, "[]"),
    ("faithfulness", {"methods": ["gae"] * 99}, "methods"),
    ("faithfulness", {"methods": ["gae", "no method"]}, "no method"),
    ("faithfulness", {}, "got nothing"),
    ("intervene", {"patches": [ROWS * COLUMNS]}, str(ROWS * COLUMNS - 1)),
    ("intervene", {"patches": [-1]}, "-1"),
    ("intervene", {"patches": [0.5]}, "0.5"),
    ("intervene", {"patches": [True]}, "True"),
    ("intervene", {"heads": [[0]]}, "[[0]]"),
    ("intervene", {"heads": [[tiny.DEPTH, 0]]}, str(tiny.DEPTH)),
    ("heads", {"names": ["beauty"]}, "beauty"),
    ("heads", {"names": "distance"}, "distance"),
    ("layers", {"more": 1}, "more"),
    ("attention", {"block": tiny.DEPTH}, str(tiny.DEPTH)),
    ("attention", {"block": 0, "head": "6"}, "6"),
    ("attention", {"block": 0, "head": "0"}, "0"),
    ("attention", {"block": 0, "query": TOKENS}, str(TOKENS)),
    *(("block", {"block": value}, "block") for value in (tiny.DEPTH, -1, "1", "3", 1.0, None, True, ["0"], {"a": 1})),
    *(("rollout", {"token": value}, "token") for value in (TOKENS, -2, 10**30, 1.0, math.nan, "0", True, [0])),
    *(("rollout", {"fuse": value}, "fuse") for value in ("evil", "", 0, None, ["mean"], "m" * 10**6)),
    *(("rollout", {"discard": value}, "discard") for value in (math.nan, math.inf, -0.1, 1, 10**400, "0.1", True)),
    *(("rollout", {"residual": value}, "residual") for value in (math.nan, -math.inf, -1, 1.5, 10**400, [0.5], False)),
    *(("rollout", {"start": value}, "start") for value in (-1, tiny.DEPTH, 10**30, 0.0, "0", True, None)),
    ("page", {"search": "x" * 5000}, "search"),
]


@pytest.mark.parametrize(("name", "given", "named"), CALLS, ids=lambda one: repr(one)[:40])
def test_what_cannot_be_is_refused_in_words_before_anything_runs(
    endpoints: Endpoints, scene: str, name: str, given: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitviz.view.attribute", lambda *_, **__: pytest.fail("it ran"))
    with pytest.raises(ValueError, match="xpected") as refused:
        ask(endpoints, name, scene=scene, **given)
    text = str(refused.value)
    assert named in text
    assert len(text) < 600
    assert not any(hint in text for hint in ("Traceback", 'File "', "site-packages", "vitviz/", "set_int_max"))
    assert describe_error(refused.value)["kind"] == "refused"
    assert endpoints.scheduler.ahead(Kind.LONG) == 0


@pytest.mark.parametrize(
    "name", ["block", "rollout", "explain", "faithfulness", "heads", "layers", "lecture", "intervene", "page"]
)
def test_an_unknown_scene_is_said_to_be(endpoints: Endpoints, name: str) -> None:
    more = {"block": {"block": 0}, "faithfulness": {"methods": ["gae"]}, "heads": {"names": ["distance"]}}
    with pytest.raises(UnknownScene) as unknown:
        ask(endpoints, name, scene=NOTHING, **more.get(name, {}))
    assert describe_error(unknown.value)["kind"] == "unknown"
    for nonsense in (
        "",
        "x" * 32,
        NOTHING[1:],
        NOTHING + "0",
        NOTHING.replace("0", "G"),
        7,
        None,
        ["a"],
        "\ud800" * 32,
    ):
        with pytest.raises(ArgumentError, match="scene"):
            ask(endpoints, name, scene=nonsense, **more.get(name, {}))


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.sampled_from(["gae", "mean"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
ASKABLE = [
    "block",
    "rollout",
    "explain",
    "faithfulness",
    "heads",
    "layers",
    "lecture",
    "intervene",
    "attention",
    "page",
    "models",
]
ARGUMENTS = [
    "scene",
    "block",
    "token",
    "fuse",
    "discard",
    "start",
    "method",
    "target",
    "methods",
    "names",
    "patches",
    "heads",
]


@given(
    st.sampled_from(ASKABLE),
    ANYTHING | st.dictionaries(st.sampled_from(ARGUMENTS), ANYTHING, max_size=5),
    st.booleans(),
)
def test_nothing_that_is_asked_is_an_error_of_ours(
    endpoints: Endpoints, scene: str, name: str, asked: Any, known: bool
) -> None:
    if known and isinstance(asked, dict):
        asked["scene"] = scene
    found = {"kind": "answered", "text": "Expected"}
    try:
        endpoints.question(name, asked).compute()
    except (ValueError, UnknownScene) as error:
        found = describe_error(error)
    assert found["kind"] in ("answered", "refused", "unknown")
    assert found["text"].startswith("Expected")
    assert len(found["text"]) < 600
