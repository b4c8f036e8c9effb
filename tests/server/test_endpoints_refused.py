"""The table of what the endpoints refuse. No browser, no HTTP: test_firewall.py has how each layer says it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from offered import WIDTH, ask, made, photograph

from vitviz.server.arguments import ArgumentError
from vitviz.server.endpoints import Endpoints
from vitviz.server.routes import describe_error
from vitviz.server.scenes import UnknownScene
from vitviz.server.scheduler import Kind

ROWS, COLUMNS = tiny.GRID
TOKENS = 1 + ROWS * COLUMNS


@pytest.fixture(scope="module")
def endpoints(tmp_path_factory: pytest.TempPathFactory, sources: tuple[str, ...]) -> Endpoints:
    return made(tmp_path_factory.mktemp("page"), sources[:1], side=8 * WIDTH)


@pytest.fixture(scope="module")
def scene(endpoints: Endpoints) -> str:
    return endpoints.open(photograph())["id"]


TABLE: list[tuple[str, dict[str, Any], str]] = [  # endpoint, arguments, part of the text
    ("open", {}, "photograph"),
    ("open", {"image": "Nothing"}, "Noise"),
    ("open", {"photo": b"no picture"}, "photograph"),
    ("open", {"photo": b""}, "photograph"),
    ("open", {"photo": photograph(), "model": "/etc/passwd"}, "name of a model"),
    ("open", {"photo": "text"}, "a file of at most 64 MB"),
    *(("open", {"photo": photograph(), "size": size}, "size") for size in (91.0, True, 0, 10**6)),
    *(("open", {"photo": photograph(), "size": size}, str(size)) for size in (1, 12, 9 * WIDTH, 10**5)),
    ("open", {"photo": photograph(), "detail": 91}, "detail"),
    ("explain", {"method": "grad"}, "grad"),
    ("explain", {"method": 7}, "method"),
    ("explain", {"target": "thing 1"}, "target"),
    ("explain", {"target": 99}, "99"),
    ("explain", {"target": True}, "True"),
    ("explain", {"target": 3, "against": 3}, "different"),
    ("explain", {"target": 3, "against": 10**6}, "1000000"),
    ("explain", {"target": -1}, "-1"),
    ("explain", {"target": 10**30}, "target"),
    ("faithfulness", {"methods": "gae"}, "gae"),
    ("faithfulness", {"methods": []}, "[]"),
    ("faithfulness", {"methods": ["gae"] * 99}, "methods"),
    ("faithfulness", {"methods": ["gae", "no method"]}, "no method"),
    ("faithfulness", {"methods": ["gae"], "target": 99}, "99"),
    ("faithfulness", {}, "got nothing"),
    ("intervene", {"patches": [ROWS * COLUMNS]}, str(ROWS * COLUMNS - 1)),
    *(("intervene", {"patches": [patch]}, str(patch)) for patch in (-1, 0.5, True)),
    ("intervene", {"heads": [[0]]}, "[[0]]"),
    ("intervene", {"heads": [[tiny.DEPTH, 0]]}, str(tiny.DEPTH)),
    ("heads", {"names": ["beauty"]}, "beauty"),
    ("heads", {"names": "distance"}, "distance"),
    ("layers", {"more": 1}, "more"),
    ("attention", {"block": tiny.DEPTH}, str(tiny.DEPTH)),
    ("attention", {"block": 0, "head": "6"}, "6"),
    ("attention", {"block": 0, "head": "0"}, "0"),
    ("attention", {"block": 0, "query": TOKENS}, str(TOKENS)),
    ("lecture", {"block": tiny.DEPTH}, str(tiny.DEPTH)),
    *(("block", {"block": value}, "block") for value in (tiny.DEPTH, -1, "1", "3", 1.0, None, True, ["0"], {"a": 1})),
    *(("rollout", {"token": value}, "token") for value in (TOKENS, -2, 10**30, 1.0, math.nan, "0", True, [0])),
    *(("rollout", {"fuse": value}, "fuse") for value in ("evil", "", 0, None, ["mean"], "m" * 10**6)),
    *(("rollout", {"discard": value}, "discard") for value in (math.nan, math.inf, -0.1, 1, 10**400, "0.1", True)),
    *(("rollout", {"residual": value}, "residual") for value in (math.nan, -math.inf, -1, 1.5, 10**400, [0.5], False)),
    *(("rollout", {"start": value}, "start") for value in (-1, tiny.DEPTH, 10**30, 0.0, "0", True, None)),
    ("page", {"search": "x" * 5000}, "search"),
]


LEAKS = ("Traceback", 'File "', "site-packages", "vitviz/", "set_int_max")


@pytest.mark.parametrize("name", sorted({name for name, *_ in TABLE}))
def test_wrong_arguments_are_refused_in_words_before_anything_runs(
    endpoints: Endpoints, scene: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitviz.view.attribute", lambda *_, **__: pytest.fail("it ran"))
    for _, arguments, part in (row for row in TABLE if row[0] == name):
        case = repr(arguments)[:200]
        with pytest.raises(ValueError, match="xpected") as refused:
            ask(endpoints, name, **({} if name == "open" else {"scene": scene}), **arguments)
        text = str(refused.value)
        assert part in text, case
        assert len(text) < 600, case
        assert not any(leak in text for leak in LEAKS), case
        assert describe_error(refused.value)["kind"] == "refused", case
        assert endpoints.scheduler.ahead(Kind.LONG) == 0, case


OF_SCENES = ("block", "rollout", "explain", "faithfulness", "heads", "layers", "lecture", "intervene", "page")
MORE = {"block": {"block": 0}, "faithfulness": {"methods": ["gae"]}, "heads": {"names": ["distance"]}}
UNKNOWN = "0" * 32


@pytest.mark.parametrize("name", OF_SCENES)
def test_an_unknown_scene_is_told_from_no_id(endpoints: Endpoints, name: str) -> None:
    with pytest.raises(UnknownScene) as unknown:
        ask(endpoints, name, scene=UNKNOWN, **MORE.get(name, {}))
    assert describe_error(unknown.value)["kind"] == "unknown"
    for wrong in ("", "x" * 32, UNKNOWN[1:], UNKNOWN + "0", "G" * 32, 7, None, ["a"], "\ud800" * 32):
        with pytest.raises(ArgumentError, match="scene"):
            ask(endpoints, name, scene=wrong, **MORE.get(name, {}))


NUMBERS = st.booleans() | st.integers() | st.floats()
ANYTHING = st.recursive(
    st.none() | NUMBERS | st.text() | st.binary() | st.sampled_from(["gae", "mean"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = ("scene", "block", "token", "fuse", "discard", "start", "method", "target", "methods", "names", "heads")


@settings(max_examples=40)
@given(
    st.sampled_from([*OF_SCENES, "attention", "models"]),
    ANYTHING | st.dictionaries(st.sampled_from(ARGUMENTS), ANYTHING, max_size=5),
    st.booleans(),
)
def test_no_question_is_an_error_of_the_server(
    endpoints: Endpoints, scene: str, name: str, asked: Any, known: bool
) -> None:
    if known and isinstance(asked, dict):
        asked["scene"] = scene
    answer = {"kind": "answered", "text": "Expected"}
    try:
        endpoints.question(name, asked).compute()
    except (ValueError, UnknownScene) as error:
        answer = describe_error(error)
    assert answer["kind"] in ("answered", "refused", "unknown")
    assert answer["text"].startswith("Expected")
    assert len(answer["text"]) < 600
