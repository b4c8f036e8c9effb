"""What the explorer on the page may ask the server, by its own hand and by strangers'. No browser."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

from vitviz.attribution.attention import rollout_matrix
from vitviz.explorer import Explorer
from vitviz.server import explore
from vitviz.server.explore import ExplorerView, answers, manifest, proposing
from vitviz.server.scheduler import Scheduler
from vitviz.web.payload import HEADER, block_bytes, rollout_bytes
from vitviz.web.scene import ROLLOUT_TOKENS, Scene, standalone

Ask = Callable[[Any], dict[str, str]]
TOKENS = 1 + tiny.GRID[0] * tiny.GRID[1]
FINE = (29, 31)  # patches: 900 tokens, too many for the rollout matrix


def scene(**changes: Any) -> Scene:
    photo = np.random.default_rng(0).integers(0, 255, (60, 90, 3), np.uint8)
    return Scene.of(Explorer(tiny.model(**changes)).open(photo))


SMALL, LARGE = scene(), scene(grid=FINE)
SCENES = {"small": SMALL, "large": LARGE}
PART, FLOW, WHOLE = answers(SCENES.get, Scheduler())


def bytes_of(answer: dict[str, str]) -> bytes:
    assert list(answer) == ["data"], answer
    return base64.b64decode(answer["data"])


def words_of(answer: dict[str, str]) -> str:
    assert "data" not in answer
    return answer["error"]


# --- what it answers


@pytest.mark.parametrize("block", range(tiny.DEPTH))
def test_a_block_is_its_file(block: int) -> None:
    assert bytes_of(PART(["small", str(block)])) == block_bytes(SMALL.trace, block)
    assert bytes_of(PART(["large", str(block)])) == block_bytes(LARGE.trace, block)


def test_rollout_is_its_file_with_and_without_options() -> None:
    assert bytes_of(PART(["small", "rollout"])) == rollout_bytes(SMALL.trace)
    assert bytes_of(FLOW(["small", None, {}])) == rollout_bytes(SMALL.trace)
    options = {"fuse": "max", "discard": 0.3, "residual": 0.2, "start": 1}
    assert bytes_of(FLOW(["small", None, options])) == rollout_bytes(SMALL.trace, **options)


@pytest.mark.parametrize("name", ["small", "large"])
@pytest.mark.parametrize("options", [{}, {"fuse": "min", "discard": 0.25, "residual": 0.7, "start": 1}], ids=str)
def test_a_row_is_that_of_the_whole_matrix(name: str, options: dict[str, Any]) -> None:
    expected = rollout_matrix(SCENES[name].trace, **options)[0].numpy()  # (N, N), the dense way
    for token in (0, 5, len(expected) - 1):
        row = np.frombuffer(bytes_of(FLOW([name, token, options])), "<f4")
        np.testing.assert_allclose(row, expected[token], atol=1e-6)
    mean = np.frombuffer(bytes_of(FLOW([name, -1, options])), "<f4")
    np.testing.assert_allclose(mean, expected[1:].mean(0), atol=1e-6)


def test_many_tokens_have_rows_and_no_matrix() -> None:
    assert LARGE.trace.tokens.shape[1] > ROLLOUT_TOKENS
    for answer in (PART(["large", "rollout"]), FLOW(["large", None, {}])):
        assert str(ROLLOUT_TOKENS) in words_of(answer)
        assert "row" in words_of(answer)
    assert json.loads(manifest(LARGE, "large"))["rollout"] is None


def test_the_manifest_names_addresses_that_are_answered() -> None:
    told = json.loads(manifest(SMALL, "small"))
    assert told["id"] == "small"
    assert len(told["blocks"]) == SMALL.trace.depth
    for place, address in enumerate(told["blocks"]):
        file = bytes_of(PART(address.split("/")))
        assert HEADER.unpack_from(file)[6] == place  # the header says which block it is
    assert bytes_of(PART(told["rollout"].split("/")))[:4] == b"VVR1"


def test_the_whole_page_is_the_one_that_python_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bytes_of(WHOLE(["small"])).decode() == standalone(SMALL)
    monkeypatch.setattr(explore, "MOST_PAGE_BYTES", 100_000)
    words = words_of(WHOLE(["large"]))
    assert "900 tokens" in words
    assert "less detail" in words


def test_models_are_proposed_to_those_who_have_a_photograph_open() -> None:
    ask = proposing(SCENES.get, lambda: [{"source": "a"}])
    assert json.loads(ask(["small"])["data"]) == [{"source": "a"}]
    assert "forgotten" in ask(["gone"])
    for nonsense in (None, {}, [], [7], ["small", "more"], "small"):
        assert "Expected" in words_of(ask(nonsense))


def test_each_answer_is_about_its_own_photograph() -> None:
    other = replace(SMALL, trace=scene(seed=7).trace)
    part, flow, _ = answers({"a": SMALL, "b": other}.get, Scheduler())
    assert part(["a", "0"]) != part(["b", "0"])
    assert flow(["a", 0, {}]) != flow(["b", 0, {}])


def test_what_was_forgotten_is_said_to_be() -> None:
    for answer in (PART(["gone", "0"]), FLOW(["gone", 0, {}]), WHOLE(["gone"])):
        assert "forgotten" in answer
        assert "opened again" in words_of(answer)
    assert "forgotten" not in PART(["small", "99"])  # this one is here, and has no such block


def test_the_component_can_be_made_anew_as_gradio_does() -> None:
    made = ExplorerView("{}", find=SCENES.get, elem_id="viewer")
    again = ExplorerView(**{**made.constructor_args, "value": None})
    assert bytes_of(again.part(["small", "0"])) == block_bytes(SMALL.trace, 0)
    assert made.get_block_name() == "html"


# --- what strangers may not do

NONSENSE = [
    None,
    True,
    7,
    "small",
    [],
    {},
    {"0": "small", "1": "0"},
    ["small"],
    ["small", "0", {}, 1],
    [None, "0"],
    [["small"], "0"],
    [{"a": 1}, "0", {}],
    [7, 0, {}],
]
BLOCKS = [0, -1, "-1", "3", "", " 1", "1.0", "1e0", "0x1", "9" * 5000, "²", "١", None, True, ["0"], {"a": 1}, "../0"]
TOKENS_OUTSIDE = [TOKENS, 10**30, 1.0, math.nan, "0", "cls", True, [0], {"a": 1}]
OPTIONS: list[Any] = [
    None,
    [],
    "max",
    7,
    {"unknown": 1},
    {"dtype": "float32"},
    {"trace": None},
    *({"fuse": value} for value in ("evil", "", 0, None, ["mean"], "m" * 10**6)),
    *({"discard": value} for value in (math.nan, math.inf, -0.1, 1, 10**400, "0.1", True, None)),
    *({"residual": value} for value in (math.nan, -math.inf, -1, 1.5, 10**400, [0.5], False)),
    *({"start": value} for value in (-1, tiny.DEPTH, 10**30, 0.0, "0", True, None)),
]


def refused(answer: dict[str, str]) -> None:
    words = words_of(answer)
    assert len(words) < 600
    assert not any(hint in words for hint in ("Traceback", 'File "', "site-packages", "vitviz/", "set_int_max"))


@pytest.mark.parametrize("asked", NONSENSE, ids=lambda one: repr(one)[:30])
@pytest.mark.parametrize("ask", [PART, FLOW, WHOLE], ids=["part", "flow", "whole"])
def test_what_is_no_question_is_refused_in_words(ask: Ask, asked: Any) -> None:
    if not (ask is WHOLE and asked == ["small"]):
        refused(ask(asked))


@pytest.mark.parametrize("block", BLOCKS, ids=lambda one: repr(one)[:30])
def test_no_other_block_than_those_there_are(block: Any) -> None:
    refused(PART(["small", block]))


@pytest.mark.parametrize("token", TOKENS_OUTSIDE, ids=lambda one: repr(one)[:30])
def test_no_other_token_than_those_there_are(token: Any) -> None:
    refused(FLOW(["small", token, {}]))


@pytest.mark.parametrize("options", OPTIONS, ids=lambda one: repr(one)[:30])
@pytest.mark.parametrize("token", [None, 0])
def test_no_other_options_than_those_there_are(token: int | None, options: Any) -> None:
    refused(FLOW(["small", token, options]))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["small", "rollout", "0"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(asked=ANYTHING | st.lists(ANYTHING, min_size=1, max_size=3).map(lambda more: ["small", *more]))
def test_nothing_that_json_can_say_is_an_error_of_ours(asked: Any) -> None:
    for ask in (PART, FLOW):
        answer = ask(asked)
        assert list(answer) == ["data"] or isinstance(answer["error"], str)
