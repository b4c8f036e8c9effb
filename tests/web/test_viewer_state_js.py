"""The explorer's numbers about a row, its address and its keys, run under Node."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from viewer_js import Answer, Script, empty, once

GRID = (5, 7)
NAMES = ["CLS", "distillation", "register 1", "register 2"]
PREFIX = len(NAMES)
TOKENS = PREFIX + GRID[0] * GRID[1]


def row(seed: int = 0) -> np.ndarray:
    """A row that sums to 1, some of it exactly zero, with two equal patches."""
    values = np.random.default_rng(seed).exponential(size=TOKENS)
    values[[6, 20]] = 0.0
    values[[11, 30]] = 4.0
    return (values / values.sum()).astype(np.float32)


def patches(values: np.ndarray) -> np.ndarray:
    return values[PREFIX:].astype(np.float64).reshape(GRID)


# ---- numbers about a row ----


def test_masses_are_the_sums_that_they_say() -> None:
    values, script = row().astype(np.float64), Script()
    wall = np.concatenate([row(1), row()])
    kinds = script.call("compute/statistics", "prefixKinds", NAMES)
    cases = [(wall[TOKENS:], 9, 0), (wall[TOKENS:], 0, 0), (wall[TOKENS:], -1, 0), (wall, 9, TOKENS)]
    asked = [
        script.call(
            "compute/statistics", "masses", array, TOKENS, kinds.part(), query, empty(5, "float64"), start, give=(4,)
        )
        for array, query, start in cases
    ]
    script.run()
    assert kinds.value.tolist() == [1, 3, 2, 2]
    by_hand = [values[PREFIX:].sum(), values[0], values[2] + values[3], values[1]]
    for (_, query, _), answer in zip(cases, asked, strict=True):
        own = np.nan if query < 0 else values[query]
        assert np.allclose(answer.given[0], [*by_hand, own], atol=1e-12, rtol=0, equal_nan=True)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("k", [1, 5, 12, 99])
def test_the_strongest_patches_come_first(k: int, signed: bool) -> None:
    values = row() - np.float32(0.05 if signed else 0.0)
    flat = values[PREFIX:]
    expected = np.argsort(-np.abs(flat) if signed else -flat, kind="stable")[:k]
    answer = once("compute/statistics", "topPatches", values, PREFIX, TOKENS, signed, empty(k, "int32"), give=(4,))
    assert answer.value == len(expected)
    assert np.array_equal(answer.given[0][: answer.value], expected)


def test_entropy_is_shannons_of_the_part_made_a_whole() -> None:
    values, script = row(), Script()
    parts = [(0, TOKENS), (PREFIX, TOKENS), (8, 9)]
    found = [script.call("compute/statistics", "entropy", values, *part) for part in parts]
    shares = [
        script.call("compute/statistics", "share", answer.part(), b - a)
        for answer, (a, b) in zip(found, parts, strict=True)
    ]
    flat = script.call("compute/statistics", "entropy", np.full(32, 0.01, np.float32), 0, 32)
    even = script.call("compute/statistics", "share", flat.part(), 32)
    nothing = script.call("compute/statistics", "entropy", np.zeros(9, np.float32), 0, 9)
    script.run()
    for (start, stop), answer, relative in zip(parts, found, shares, strict=True):
        part = values[start:stop].astype(np.float64)
        p = part[part > 0] / part.sum()
        expected = -(p * np.log(p)).sum()
        assert answer.value == pytest.approx(expected, abs=1e-12)
        assert relative.value == pytest.approx(expected / np.log(stop - start) if stop - start > 1 else 0.0)
    assert even.value == pytest.approx(1.0)
    assert np.isnan(nothing.value)


def test_mean_distance_leaves_prefix_tokens_out_and_the_rest_makes_a_whole() -> None:
    values, script = row(), Script()
    places = [(0, 0), (4, 6), (2, 3)]
    found = [script.call("compute/statistics", "meanDistance", values, PREFIX, GRID, place) for place in places]
    halved = values.copy()
    halved[PREFIX:] /= 2
    halved[0] += halved[PREFIX:].sum()  # more on CLS: the distance among patches stays
    less = script.call("compute/statistics", "meanDistance", halved, PREFIX, GRID, places[0])
    without = script.call("compute/statistics", "meanDistance", values, PREFIX, GRID, None)
    on_cls = script.call(
        "compute/statistics", "meanDistance", np.eye(1, TOKENS, dtype=np.float32)[0], PREFIX, GRID, (0, 0)
    )
    script.run()
    rows, columns = np.indices(GRID)
    weights = patches(values) / patches(values).sum()
    for (r, c), answer in zip(places, found, strict=True):
        assert answer.value == pytest.approx((weights * np.hypot(rows - r, columns - c)).sum(), abs=1e-12)
    assert less.value == pytest.approx(found[0].value, abs=1e-6)
    assert np.isnan(without.value)
    assert np.isnan(on_cls.value)


# ---- the address ----

LIMITS = {
    "depth": 12, "heads": 6, "grid": GRID, "prefix": NAMES, "images": ["church", "dog"], "models": ["DINOv2 S/14 · 10"],
    "cmaps": ["viridis", "magma", "RdBu_r"], "modes": ["attention", "rollout"],
}  # fmt: skip
FITTED = {"block": 11, "query": "cls"}


def defaults() -> dict[str, Any]:
    return once("core/state", "DEFAULTS").value


states = st.fixed_dictionaries(
    {
        "image": st.sampled_from([None, "church", "dog"]),
        "model": st.sampled_from([None, "DINOv2 S/14 · 10"]),
        "detail": st.sampled_from([None, 448, 2044]),
        "block": st.integers(0, 11),
        "head": st.one_of(st.integers(0, 5), st.sampled_from(["mean", "max", "min"])),
        "query": st.one_of(
            st.tuples(st.integers(0, 4), st.integers(0, 6)).map(list), st.sampled_from(["cls", "mean", "register 2"])
        ),
        "direction": st.sampled_from(["row", "column"]),
        "mode": st.sampled_from(["attention", "rollout"]),
        "cmap": st.sampled_from([None, "magma", "RdBu_r"]),
        "alpha": st.integers(0, 1000).map(lambda n: n / 1000),
        "smooth": st.booleans(),
        "grid": st.booleans(),
        "gamma": st.integers(100, 10_000).map(lambda n: n / 1000),
        "shared": st.booleans(),
        "fuse": st.sampled_from(["mean", "max", "min"]),
        "discard": st.integers(0, 19).map(lambda n: n / 20),
        "residual": st.integers(0, 20).map(lambda n: n / 20),
        "start": st.integers(1, 12),
    }
)


@given(st.lists(states, min_size=20, max_size=20))
@settings(max_examples=5)
def test_an_address_restores_every_state(wanted: list[dict[str, Any]]) -> None:
    script, asked = Script(), []
    for state in wanted:
        address = script.call("core/state", "format", {"full": False, "help": False, **state})
        parsed = script.call("core/state", "parse", address.part())
        asked.append((state, address, parsed, script.call("core/state", "fit", parsed.part("state"), LIMITS)))
    script.run()
    for state, address, parsed, fitted in asked:
        expected = {**state, "pinned": isinstance(state["query"], list), "full": False, "help": False}
        assert parsed.value == {"state": expected, "messages": []}, address.value
        assert fitted.value == {"state": expected, "messages": []}


def test_people_count_from_one_and_parts_have_one_order() -> None:
    state = {**defaults(), "query": [6, 3], "image": "church", "head": 3, "block": 11, "shared": True, "alpha": 0.3}
    script = Script()
    address = script.call("core/state", "format", state)
    kept = script.call("core/state", "format", state, "?head=2&__theme=dark&x=a%26b")
    nothing = script.call("core/state", "format", defaults())
    script.run()
    assert address.value == "?image=church&layer=12&head=4&from=7,4&opacity=0.3&scale=shared"
    assert kept.value == address.value + "&__theme=dark&x=a%26b"
    assert nothing.value == ""


def test_names_of_any_script_come_through() -> None:
    name = "Köln & 東京 #1?=+%"
    script = Script()
    address = script.call("core/state", "format", {**defaults(), "image": name})
    back = script.call("core/state", "parse", address.part())
    script.run()
    assert parse_qsl(address.value[1:]) == [("image", name)]
    assert back.value["state"]["image"] == name


@pytest.mark.parametrize(
    ("part", "texts"),
    [
        ("layer", ["0", "-1", "1.5", "1e3", "12abc", "", " 3", "999999999", "٣", "NaN"]),
        ("head", ["0", "median", "-2", "mean ", "1,2"]),
        ("from", ["0,1", "1,0", "7", "7,4,1", "7,-4", "register-0", "register 1", "CLS", "a,b", ","]),
        ("direction", ["up", "ROW", ""]),
        ("opacity", ["1.01", "-0.5", "1e-3", "Infinity", "50%", "0,5"]),
        ("gamma", ["0", "0.05", "11", "x"]),
        ("smooth", ["yes", "2", "constructor", ""]),
        ("grid", ["true", "__proto__"]),
        ("scale", ["both", "toString"]),
        ("image", ["", "a\nb", "x" * 201]),
        ("mode", ["", "\x00"]),
        ("detail", ["7", "-448", "448px", "own", "4480000"]),
        ("fuse", ["median", "MEAN", ""]),
        ("drop", ["1", "-0.1", "x"]),
        ("skip", ["1.1", ""]),
        ("first", ["0", "1.5", "-1"]),
        ("colours", ["\x7f"]),
    ],
)
def test_absurd_parts_are_told_and_replaced(part: str, texts: list[str]) -> None:
    plain, script = defaults(), Script()
    answers = [script.call("core/state", "parse", f"?{part}={quoted(text)}&direction=column") for text in texts]
    script.run()
    for text, answer in zip(texts, answers, strict=True):
        found = answer.value
        assert len(found["messages"]) == 1, text
        assert found["messages"][0].startswith(f"{part}: expected ")
        own = {} if part == "direction" else {"direction": "column"}
        assert found["state"] == {**plain, **own}, text


def quoted(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


@given(st.lists(st.text(max_size=60), min_size=30, max_size=30))
@settings(max_examples=5)
def test_nothing_that_is_typed_throws(texts: list[str]) -> None:
    script = Script()
    searches = [*texts, *(f"?layer={text}&from={text}&mode={text}" for text in texts), "%", "?%E0%A4%A", "&&=&", "???"]
    searches = [text.encode("utf-8", "replace").decode() for text in searches]
    asked = []
    for search in searches:
        parsed = script.call("core/state", "parse", search)
        asked += [parsed, script.call("core/state", "fit", parsed.part("state"), LIMITS)]
        asked.append(script.call("core/state", "format", parsed.part("state"), search))
    asked += [script.call("core/state", "parse", odd) for odd in (None, 7, {"a": 1}, [])]
    script.run()
    assert [answer.error for answer in asked if answer.error] == []


def fitted(state: dict[str, Any], **limits: Any) -> dict[str, Any]:
    return once("core/state", "fit", {**defaults(), **state}, {**LIMITS, **limits}).value


def test_what_another_model_does_not_have_is_told_and_replaced() -> None:
    assert fitted({}) == {"state": {**defaults(), **FITTED}, "messages": []}
    wrong = {"block": 39, "head": 15, "query": [5, 0], "pinned": True, "image": "cat", "mode": "magic", "start": 13}
    found = fitted(wrong)
    assert found["state"] == {**defaults(), **FITTED, "start": 12}
    assert [text.split(":")[0] for text in found["messages"]] == ["image", "mode", "layer", "first", "head", "from"]
    assert "expected 1 to 12, got 40" in found["messages"][2]
    assert "got 6,1" in found["messages"][5]
    without = fitted({"query": "register 1"}, prefix=[])
    assert without["state"]["query"] == "mean"
    assert "got register-1; this is mean" in without["messages"][0]
    few = fitted({"query": [4, 6], "head": 5, "block": 0, "pinned": True})
    assert few == {"state": {**defaults(), "query": [4, 6], "head": 5, "block": 0, "pinned": True}, "messages": []}


# ---- keys ----


def pressed(state: dict[str, Any], *keys: str, **limits: Any) -> Any:
    """The state after some keys, from the fitted defaults."""
    script = Script()
    current: Any = {**defaults(), **FITTED, **state}
    answer: Answer | None = None
    for key in keys:
        answer = script.call("core/keys", "press", current, key, {**LIMITS, **limits})
        current = answer.part()
    assert answer is not None
    script.run()
    return answer.value


CASES: list[tuple[dict[str, Any], list[str], dict[str, Any]]] = [
    ({}, ["ArrowUp"], {"query": [2, 3], "pinned": True}),  # from CLS to the middle
    ({"query": [2, 3]}, ["ArrowUp", "ArrowLeft", "ArrowLeft"], {"query": [1, 1], "pinned": True}),
    ({"query": [2, 3]}, ["ArrowDown", "ArrowRight"], {"query": [3, 4], "pinned": True}),
    ({"query": [0, 0]}, ["ArrowUp", "ArrowLeft"], {"query": [0, 0], "pinned": True}),
    ({"query": [4, 6]}, ["ArrowDown", "ArrowRight"], {"query": [4, 6], "pinned": True}),
    ({}, ["["], {"block": 10}),
    ({}, ["]"], {"block": 11}),
    ({"block": 0}, ["[", "]", "]"], {"block": 2}),
    ({"block": None}, ["["], {"block": 10}),
    ({}, ["."], {"head": 0}),
    ({}, ["."] * 9, {"head": 5}),
    ({"head": 1}, [",", ",", ","], {"head": "mean"}),
    ({"head": "max"}, [","], {"head": "max"}),  # nothing stands before the fused map
    ({"head": 4}, ["0"], {"head": "mean"}),
    ({"query": [1, 1], "pinned": True}, ["c"], {"query": "cls", "pinned": False}),
    ({}, ["d"], {"direction": "column"}),
    ({}, ["d", "D"], {"direction": "row"}),
    ({}, ["r"], {"mode": "rollout"}),
    ({}, ["r", "r"], {"mode": "attention"}),
    ({}, ["g"], {"grid": True}),
    ({}, ["f"], {"full": True}),
    ({}, ["?"], {"help": True}),
    ({"help": True, "pinned": True}, ["Escape"], {"help": False, "pinned": True}),
    ({"pinned": True, "query": [1, 1]}, ["Escape"], {"pinned": False, "query": [1, 1]}),
]


@pytest.mark.parametrize(("state", "keys", "expected"), CASES)
def test_keys_do_what_the_help_says(state: dict[str, Any], keys: list[str], expected: dict[str, Any]) -> None:
    assert pressed(state, *keys) == {**defaults(), **FITTED, **state, **expected}


def test_keys_that_are_not_ours_stay_with_the_browser() -> None:
    script = Script()
    state = {**defaults(), **FITTED}
    keys = ["Tab", "Enter", " ", "x", "1", "F5", "constructor", "__proto__", "Escape"]
    answers = [script.call("core/keys", "press", state, key, LIMITS) for key in keys]
    script.run()
    assert [answer.value for answer in answers] == [None] * len(keys)


def test_c_is_the_mean_where_there_is_no_class_token() -> None:
    assert pressed({"query": [1, 1]}, "c", prefix=["register 1"])["query"] == "mean"


def test_every_key_is_in_the_help() -> None:
    listed = " ".join(entry["keys"] for entry in once("core/keys", "KEYS").value)
    names = {"ArrowUp": "↑", "ArrowDown": "↓", "ArrowLeft": "←", "ArrowRight": "→", "Escape": "Esc"}
    used = {names.get(key, key).lower() for _, keys, _ in CASES for key in keys}
    assert set(listed.lower().split()) == used
