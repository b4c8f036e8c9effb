"""The page's core: the address, the actions, the keys. Pure modules, called in Node."""

from __future__ import annotations

from functools import cache
from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from viewer_js import Script, once

NAMES = ["CLS", "register 1", "register 2"]
GRID = (5, 7)

# ---- the address ----

LIMITS = {
    "depth": 12, "heads": 6, "grid": GRID, "prefix": NAMES, "colors": ["viridis", "magma", "RdBu_r"],
    "modes": ["attention", "rollout"],
}  # fmt: skip
SOURCE = {"image": "church", "photo": None, "model": "a model", "size": None}
OPENED = {"type": "opened", "pane": 0, "scene": {"id": "scene", "source": SOURCE, "limits": LIMITS}}


@cache
def initial() -> dict[str, Any]:
    return once("core/state", "INITIAL").value


def defaults() -> dict[str, Any]:
    return dict(initial())


states = st.fixed_dictionaries(
    {
        "image": st.sampled_from([None, "church", "dog"]),
        "model": st.sampled_from([None, "DINOv2 S/14 · 10"]),
        "size": st.sampled_from([None, 448, 2044]),
        "block": st.integers(0, 11),
        "head": st.one_of(st.integers(0, 5), st.sampled_from(["mean", "max", "min"])),
        "query": st.one_of(
            st.tuples(st.integers(0, 4), st.integers(0, 6)).map(list), st.sampled_from(["cls", "mean", "register 2"])
        ),
        "direction": st.sampled_from(["row", "column"]),
        "mode": st.sampled_from(["attention", "rollout"]),
        "color": st.sampled_from([None, "magma", "RdBu_r"]),
        "opacity": st.integers(0, 1000).map(lambda n: n / 1000),
        "smooth": st.booleans(),
        "grid": st.booleans(),
        "gamma": st.integers(100, 10_000).map(lambda n: n / 1000),
        "shared": st.booleans(),
        "bare": st.booleans(),
        "numbered": st.booleans(),
        "removed": st.integers(0, 100),
        "erased": st.lists(st.integers(0, GRID[0] * GRID[1] - 1), unique=True),
        "fuse": st.sampled_from(["mean", "max", "min"]),
        "discard": st.integers(0, 19).map(lambda n: n / 20),
        "residual": st.integers(0, 20).map(lambda n: n / 20),
        "start": st.integers(1, 12),
        "tab": st.sampled_from(["explore", "explain", "heads", "layers", "help"]),
        "photo": st.sampled_from([None, "0123456789abcdef"]),
        "method": st.sampled_from([None, "gae"]),
        "target": st.sampled_from([None, 0, 999]),
        "against": st.sampled_from([None, 7]),
        "statistic": st.sampled_from([None, "distance"]),
        "off": st.lists(st.sampled_from(["0,0", "3,5", "11,2"]), unique=True),
        "lensClass": st.sampled_from([None, 3]),
        "theme": st.sampled_from([None, "dark", "light"]),
        "overlay": st.sampled_from(["spotlight", "even"]),
        "pane": st.sampled_from([0, 1]),
    }
)
besides = st.none() | st.fixed_dictionaries(
    {
        **{name: st.just(None) for name in ("photo", "size", "scene")},
        "image": st.sampled_from([None, "dog"]),
        "model": st.sampled_from([None, "another model"]),
        "block": st.sampled_from([None, 0, 7]),
        "head": st.sampled_from(["mean", "min", 4]),
    }
)


@given(st.lists(st.tuples(states, besides), min_size=20, max_size=20))
@settings(max_examples=5)
def test_an_address_restores_every_state(given_states: list[tuple[dict[str, Any], dict[str, Any] | None]]) -> None:
    script, asked = Script(), []
    for state, beside in given_states:
        full = {**defaults(), **state, "beside": beside, "pane": state["pane"] if beside else 0}
        full["base"] = None if isinstance(full["query"], list) else full["query"]
        address = script.call("core/url", "format", full)
        parsed = script.call("core/url", "parse", address.part())
        asked.append((full, address, parsed, script.call("core/actions", "fit", parsed.part("state"), LIMITS)))
    script.run()
    for full, address, parsed, fitted in asked:
        assert parsed.value == {"state": full, "messages": []}, address.value
        assert fitted.value == {"state": full, "messages": []}


def test_people_count_from_one_and_parts_have_one_order() -> None:
    state = {**defaults(), "query": [6, 3], "image": "church", "head": 3, "block": 11, "shared": True, "opacity": 0.3}
    script = Script()
    address = script.call("core/url", "format", state)
    kept = script.call("core/url", "format", state, "?head=2&__theme=dark&x=a%26b")
    nothing = script.call("core/url", "format", defaults())
    script.run()
    assert address.value == "?image=church&layer=12&head=4&from=7,4&opacity=0.3&scale=shared"
    assert kept.value == address.value + "&__theme=dark&x=a%26b"
    assert nothing.value == ""


def test_names_of_any_script_come_through() -> None:
    name = "Köln & 東京 #1?=+%"
    script = Script()
    address = script.call("core/url", "format", {**defaults(), "image": name})
    back = script.call("core/url", "parse", address.part())
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
        ("size", ["7", "-448", "448px", "own", "4480000"]),
        ("fuse", ["median", "MEAN", ""]),
        ("discard", ["1", "-0.1", "x"]),
        ("residual", ["1.1", ""]),
        ("start", ["0", "1.5", "-1"]),
        ("color", ["\x7f"]),
        ("tab", ["none", "Explore"]),
        ("off", ["1", "0.1", "1.1,", "a.b"]),
        ("target", ["-1", "x", "1.5"]),
        ("photo", ["xyz", "../etc", "12"]),
        ("bare", ["yes", ""]),
        ("numbered", ["no", "2"]),
        ("removed", ["101", "-1", "4.5", "007", ""]),
        ("erased", ["0", "1,", "a", "1.5"]),
        ("theme", ["blue"]),
        ("pane", ["0", "3", "x"]),
    ],
)
def test_absurd_parts_are_told_and_replaced(part: str, texts: list[str]) -> None:
    plain, script = defaults(), Script()
    answers = [script.call("core/url", "parse", f"?{part}={quoted(text)}&direction=column") for text in texts]
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
        parsed = script.call("core/url", "parse", search)
        asked += [parsed, script.call("core/actions", "fit", parsed.part("state"), LIMITS)]
        asked.append(script.call("core/url", "format", parsed.part("state"), search))
    asked += [script.call("core/url", "parse", odd) for odd in (None, 7, {"a": 1}, [])]
    script.run()
    assert [answer.error for answer in asked if answer.error] == []


def test_addresses_of_earlier_versions_are_read() -> None:
    found = once("core/url", "parse", "?detail=448&colours=magma&drop=0.5&skip=0.25&first=3").value
    expected = {"size": 448, "color": "magma", "discard": 0.5, "residual": 0.25, "start": 3}
    assert found == {"state": {**defaults(), **expected}, "messages": []}


# ---- actions ----


def after(*actions: dict[str, Any], **state: Any) -> Any:
    """The state after some actions, from the first one with a scene in it."""
    script = Script()
    current: Any = {**defaults(), **state}
    for action in actions:
        current = script.call("core/actions", "reduce", current, action).part()
    answer = script.answers[-1]
    script.run()
    return answer.value


def linked(search: str, **limits: Any) -> Any:
    """The state that a link leads to."""
    scene = {**OPENED["scene"], "limits": {**LIMITS, **limits}}
    return after({"type": "navigate", "search": search}, {**OPENED, "scene": scene})


def test_what_a_link_asks_for_and_a_scene_lacks_is_reported_and_replaced() -> None:
    plain = linked("")
    assert plain["messages"] == []
    assert (plain["block"], plain["query"], plain["linked"]) == (11, None, False)
    found = linked("?layer=40&head=16&from=6,1&mode=magic&start=13&off=13.1&erased=3,36")
    assert found == {**plain, "start": 12, "erased": [2], "messages": found["messages"]}
    wrong = ["mode", "layer", "start", "head", "off", "erased", "from"]
    assert [text.split(":")[0] for text in found["messages"]] == wrong
    assert "expected 1 to 12, got 40" in found["messages"][1]
    assert "got 6,1" in found["messages"][6]
    without = linked("?from=register-1", prefix=[])
    assert "got register-1; this is mean" in without["messages"][0]
    few = linked("?layer=1&head=6&from=5,7")
    assert few == {**plain, "query": [4, 6], "queryScene": "scene", "head": 5, "block": 0}


def test_another_model_keeps_what_both_have_without_a_word() -> None:
    small = {**LIMITS, "depth": 6, "heads": 2, "prefix": []}
    other = {"type": "opened", "pane": 0, "scene": {"id": "small", "source": {**SOURCE, "model": "b"}, "limits": small}}
    back = {"type": "open", "source": {"model": "a model"}}
    change = {"type": "change", "change": {"query": "cls", "head": 5}}
    found = after(OPENED, change, {"type": "open", "source": {"model": "b"}}, other)
    assert (found["block"], found["head"], found["query"], found["messages"]) == (5, "mean", "cls", [])
    found = after(OPENED, change, {"type": "open", "source": {"model": "b"}}, other, back, OPENED)
    assert (found["block"], found["query"], found["model"]) == (11, "cls", "a model")


def test_a_scene_that_cannot_be_had_leaves_what_is_shown() -> None:
    asked = {"type": "open", "source": {"image": "dog", "size": 448}}
    found = after(OPENED, asked, {"type": "failed", "pane": 0, "text": "It is not there."})
    assert found == {**after(OPENED), "messages": ["It is not there."]}


def test_two_panes_change_places_and_close() -> None:
    compare, other = {"type": "compare"}, {"type": "change", "change": {"head": 3, "block": 2}}
    two = after(OPENED, compare, other)
    assert (two["pane"], two["head"], two["beside"]["head"]) == (1, 3, "mean")
    left = after(OPENED, compare, other, {"type": "activate", "pane": 0})
    assert (left["pane"], left["head"], left["beside"]["head"]) == (0, "mean", 3)
    assert after(OPENED, compare, other, {"type": "activate", "pane": 0}, compare)["head"] == "mean"
    assert after(OPENED, compare, other, compare)["head"] == 3
    scene = {"id": "small", "source": {**SOURCE, "model": "b"}, "limits": {**LIMITS, "grid": [2, 3]}}
    carried = {"query": [1, 2], "pointer": None}
    pinned = {"type": "pick", "patch": [4, 6], "scene": "scene"}
    elsewhere = after(OPENED, pinned, compare, {**OPENED, "pane": 1, "scene": scene, "carried": carried})
    assert (elsewhere["query"], elsewhere["queryScene"]) == ([4, 6], "scene")  # the left pane still shows it
    alone = after(OPENED, pinned, {**OPENED, "scene": scene, "carried": carried})
    assert (alone["query"], alone["queryScene"]) == ([1, 2], "small")


# ---- keys ----


def pressed(state: dict[str, Any], *keys: str, **limits: Any) -> Any:
    """The state after some keys, from the first scene."""
    script = Script()
    scene = {**OPENED["scene"], "limits": {**LIMITS, **limits}}
    current: Any = {**after({**OPENED, "scene": scene}), **state}
    for key in keys:
        action = script.call("core/keys", "actionOf", current, key)
        current = script.call("core/actions", "reduce", current, action.part()).part()
    answer = script.answers[-1]
    script.run()
    return answer.value


CASES: list[tuple[dict[str, Any], list[str], dict[str, Any]]] = [
    ({}, ["ArrowUp"], {"query": [2, 3]}),  # from CLS to the middle
    ({"query": [2, 3]}, ["ArrowUp", "ArrowLeft", "ArrowLeft"], {"query": [1, 1]}),
    ({"query": [2, 3]}, ["ArrowDown", "ArrowRight"], {"query": [3, 4]}),
    ({"query": [0, 0]}, ["ArrowUp", "ArrowLeft"], {"query": [0, 0]}),
    ({"query": [4, 6]}, ["ArrowDown", "ArrowRight"], {"query": [4, 6]}),
    ({}, ["["], {"block": 10}),
    ({}, ["]"], {"block": 11}),
    ({"block": 0}, ["[", "]", "]"], {"block": 2}),
    ({}, ["."], {"head": 0}),
    ({}, ["."] * 9, {"head": 5}),
    ({"head": 1}, [",", ",", ","], {"head": "mean"}),
    ({"head": "max"}, [","], {"head": "max"}),  # nothing stands before the fused map
    ({"head": 4}, ["0"], {"head": "mean"}),
    ({"query": [1, 1]}, ["c"], {"query": "cls", "base": "cls"}),
    ({}, ["d"], {"direction": "column"}),
    ({}, ["d", "D"], {"direction": "row"}),
    ({}, ["r"], {"mode": "rollout"}),
    ({}, ["r", "r"], {"mode": "attention"}),
    ({}, ["g"], {"grid": True}),
    ({}, ["b"], {"bare": True}),
    ({}, ["f"], {"full": True}),
    ({}, ["?"], {"help": True}),
    ({"help": True, "query": [1, 1]}, ["Escape"], {"help": False}),
    ({"query": [1, 1], "base": "mean"}, ["Escape"], {"query": "mean", "queryScene": None}),
]


@pytest.mark.parametrize(("state", "keys", "expected"), CASES)
def test_keys_do_what_the_help_says(state: dict[str, Any], keys: list[str], expected: dict[str, Any]) -> None:
    found = pressed(state, *keys)
    plain = {**after(OPENED), **state, **expected}
    if isinstance(found["query"], list) and keys[0].startswith("Arrow"):
        plain["queryScene"] = "scene"
    assert found == plain


def test_keys_that_are_not_ours_stay_with_the_browser() -> None:
    script = Script()
    state = after(OPENED)
    keys = ["Tab", "Enter", " ", "x", "1", "F5", "constructor", "__proto__", "Escape"]
    answers = [script.call("core/keys", "actionOf", state, key) for key in keys]
    script.run()
    assert [answer.value for answer in answers] == [None] * len(keys)


def test_c_is_the_mean_where_there_is_no_class_token() -> None:
    assert pressed({"query": [1, 1]}, "c", prefix=["register 1"])["query"] == "mean"


def test_every_key_is_in_the_help() -> None:
    listed = " ".join(entry["keys"] for entry in once("core/keys", "KEYS").value).replace("Ctrl Z", "")
    names = {"ArrowUp": "↑", "ArrowDown": "↓", "ArrowLeft": "←", "ArrowRight": "→", "Escape": "Esc"}
    used = {names.get(key, key).lower() for _, keys, _ in CASES for key in keys}
    assert set(listed.lower().split()) == used
