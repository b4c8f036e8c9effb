"""Compare the endpoints' answers with Python, and check refused arguments; test_firewall.py tests the layers above."""

import io
import json
import math
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from image_files import saved
from offered import SPOTS, WIDTH, ask, cached, folder, new_endpoints, photograph, view_of, visiting
from PIL import Image

from vitviz import Similarity
from vitviz.analysis.interventions import Change
from vitviz.analysis.tokens import token_norms
from vitviz.attribution.attention import rollout_matrix
from vitviz.attribution.registry import METHODS
from vitviz.errors import VitvizError
from vitviz.evaluation.evidence import find_set
from vitviz.images import decoding
from vitviz.lecture.numbers import planted_bytes
from vitviz.lecture.texts import LectureError
from vitviz.server import endpoints as module
from vitviz.server import opening
from vitviz.server.arguments import ArgumentError
from vitviz.server.endpoints import Endpoints
from vitviz.server.jobs import Kind
from vitviz.server.routes import describe_error
from vitviz.server.scenes import UnknownScene
from vitviz.view import View
from vitviz.web import responses
from vitviz.web.questions import QUESTIONS
from vitviz.web.scene import ROLLOUT_TOKENS, saved_page

ROWS, COLUMNS = tiny.GRID
TOKENS = 1 + ROWS * COLUMNS
FAST = [name for name, method in METHODS.items() if not method.slow]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    bare = tiny.KINDS["talking heads, class attention"]
    models = {"plain": {}, "blind": {"classes": 0}, "bare": bare, "registers": {"registers": 2}}
    place = tmp_path_factory.mktemp("models")
    return tuple(folder(place / name, **options) for name, options in models.items())


@pytest.fixture(scope="module")
def endpoints(tmp_path_factory: pytest.TempPathFactory, sources: tuple[str, ...]) -> Endpoints:
    return new_endpoints(tmp_path_factory.mktemp("page"), sources, side=8 * WIDTH)


@pytest.fixture(scope="module")
def scene(endpoints: Endpoints) -> str:
    return endpoints.open(photograph())["id"]


@pytest.fixture(scope="module")
def fine(endpoints: Endpoints) -> str:
    """Return a scene with too many tokens for the rollout matrix."""
    return endpoints.open(photograph(), size=4 * WIDTH)["id"]


def test_open_is_idempotent_and_ids_depend_on_photograph_model_and_size(
    endpoints: Endpoints, sources: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = endpoints.open(photograph(), sources[0])
    monkeypatch.setattr(opening, "open_view", lambda *_: pytest.fail("the model ran again"))
    assert endpoints.open(photograph()) is first  # with the default model
    monkeypatch.undo()
    others = [endpoints.open(photograph(7)), endpoints.open(photograph(), sources[3])]
    others.append(endpoints.open(photograph(), size=2 * WIDTH))
    assert len({manifest["id"] for manifest in (first, *others)}) == 4
    assert all(len(manifest["id"]) == 32 for manifest in others)
    assert others[2]["grid"] == (2 * ROWS, 2 * COLUMNS)
    json.dumps(first)


def test_tiff_of_another_address_is_refused_where_memory_cannot_be_limited(
    endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "LIMITS_MEMORY", False)
    for number, address in enumerate(("203.0.113.5", "2001:db8::5", "unknown", "127.0.0.1", "::1")):
        tiff = saved(Image.new("RGB", (90, 60), (number, 0, 0)), "TIFF")
        with visiting(address):
            if number < 3:
                with pytest.raises(decoding.ImageError, match="got TIFF"):
                    endpoints.open(tiff)
            assert endpoints.open(photograph(number))["grid"] == tiny.GRID
            if number >= 3:
                assert endpoints.open(tiff)["grid"] == tiny.GRID


def test_manifest_names_an_example_and_hashes_other_photographs(endpoints: Endpoints) -> None:
    example, own = endpoints.open(image="Noise"), endpoints.open(photograph())
    assert (example["image"], example["own"]) == ("Noise", None)
    assert own["image"] is None
    assert len(own["own"]) == 32
    assert example["caveat"]  # a model with random weights gets it wrong


@pytest.mark.parametrize(
    ("which", "options"),
    [("fine", {}), ("scene", {"fuse": "min", "discard": 0.25, "residual": 0.7, "start": 1}), ("fine", {"fuse": "max"})],
    ids=str,
)
def test_rollout_rows_equal_those_of_the_matrix(
    endpoints: Endpoints, which: str, options: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    name = request.getfixturevalue(which)
    expected = rollout_matrix(view_of(endpoints, name).trace, **options)[0].numpy()  # (N, N)
    for token in (0, 5, len(expected) - 1):
        row = np.frombuffer(ask(endpoints, "rollout", scene=name, token=token, **options), "<f4")
        np.testing.assert_allclose(row, expected[token], atol=1e-6)
    mean = np.frombuffer(ask(endpoints, "rollout", scene=name, token=-1, **options), "<f4")
    np.testing.assert_allclose(mean, expected[1:].mean(0), atol=1e-6)


def test_many_tokens_have_rollout_rows_but_no_matrix(endpoints: Endpoints, fine: str) -> None:
    assert view_of(endpoints, fine).trace.tokens.shape[1] > ROLLOUT_TOKENS
    assert not endpoints.open(photograph(), size=4 * WIDTH)["rollout"]
    with pytest.raises(ArgumentError, match=f"{ROLLOUT_TOKENS}.*row"):
        endpoints.rollout(fine)


def test_saved_page_matches_python(
    endpoints: Endpoints, scene: str, fine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert endpoints.page(scene, "?layer=2").decode() == saved_page(cached(endpoints, scene).scene, "?layer=2")
    assert endpoints.page(scene, lecture=True).count(b'id="values-') == tiny.DEPTH
    monkeypatch.setattr(module, "PAGE_MEGABYTES", 0.1)
    with pytest.raises(ArgumentError, match="1,233 tokens"):
        endpoints.page(fine)


EDGE = {"block": 1, "head": 0, "query": 2, "key": 5}
DROP, HEADS = [(0, 0), (0, 1), divmod(30, COLUMNS)], [(1, 2), (2, 0)]


def judged(view: View, **aim: Any) -> list[dict[str, Any]]:
    maps = [view.explain("gae", **aim), view.explain("rollout")]
    return [responses.describe_test(test) for test in view.faithfulness(maps, **aim)]


def measured(view: View, **aim: Any) -> dict[str, Any]:
    table = view.heads(["distance", "gradient"], **aim)
    values = {name: [list(map(responses.rounded, row)) for row in table[name].tolist()] for name in table.present}
    return {"values": values, "missing": {}, "target": table.target, "scale": table.scale}


def changed(view: View, change: Change, *classes: int) -> dict[str, Any]:
    return {"classes": responses.describe_change(view, change, classes), **responses.describe_target(change)}


# For each endpoint that takes a target, arguments and the answer of Python.
AIMED: dict[str, tuple[dict[str, Any], Callable[..., Any]]] = {
    "explain": ({"method": "gae"}, lambda view, **aim: responses.describe_map(view.explain("gae", **aim))),
    "faithfulness": ({"methods": ["gae", "rollout"]}, judged),
    "heads": ({"names": ["distance", "gradient"]}, measured),
    "layers": ({}, responses.describe_layers),
    "decompose": ({}, lambda view, **aim: responses.describe_decomposition(view.decompose(**aim))),
    "edge": ({**EDGE, "cut": True}, lambda view, **aim: responses.describe_edge(view.edge(**EDGE, cut=True, **aim))),
    "intervene": (
        {"patches": [0, 1, 30], "heads": [list(head) for head in HEADS], "classes": [5]},
        lambda view, **aim: changed(view, view.intervene(drop=DROP, heads=HEADS, **aim), 5),
    ),
}


def assert_alike(answer: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert answer.keys() == expected.keys()
        for name in expected.keys() - {"seconds"}:
            assert_alike(answer[name], expected[name])
    elif isinstance(expected, list):
        for value, wanted in zip(answer, expected, strict=True):
            assert_alike(value, wanted)
    else:
        assert answer == (pytest.approx(expected, rel=1e-4, abs=1e-7) if isinstance(expected, float) else expected)


@pytest.mark.parametrize("name", AIMED)
def test_answers_about_targets_match_python(endpoints: Endpoints, scene: str, name: str) -> None:
    """tests/web/test_panels.py compares the numbers on the page with Python's, whatever describes them."""
    view, (arguments, python) = view_of(endpoints, scene), AIMED[name]
    targets = [({"target": "thing 7"}, {"target": 7}), ({"target": 3, "against": 1}, {"contrast": (3, 1)})]
    if name == "layers":
        targets.append(({}, {}))
    if name not in ("decompose", "edge"):  # which need a score that is a sum
        other = endpoints.open(photograph(7))["id"]
        similarity = str(Similarity(view_of(endpoints, other).features, "the other photograph"))
        targets.append(({"target": "group:3,5"}, {"target": "group:3,5"}))
        targets.append(({"target": f"similar:{other}"}, {"target": similarity}))
    for target, aim in targets:
        assert_alike(ask(endpoints, name, scene=scene, **arguments, **target), python(view, **aim))


def test_contrast_with_the_best_class_and_features_are_explained(
    endpoints: Endpoints, scene: str, sources: tuple[str, ...]
) -> None:
    view = view_of(endpoints, scene)
    best = view.best(1)[0]
    other = (best + 1) % len(view.labels)
    pairs = [endpoints.explain(scene, "gae", target, other)["values"] for target in (None, best)]
    assert pairs[0] == pairs[1]
    assert endpoints.explain(scene, "rollout", 7)["title"] == view.explain("rollout").title  # one map for all classes
    blind = endpoints.open(photograph(), sources[1])["id"]
    assert endpoints.explain(blind, "gae", "unit:3")["title"].endswith("unit 3 of the features (value)")
    with pytest.raises(ArgumentError, match="another model"):
        endpoints.explain(scene, "gae", f"similar:{blind}")
    assert endpoints.edge(blind, **EDGE)["writes"] is None  # without a classifier


def test_classes_after_a_change_are_sorted_and_include_the_best(endpoints: Endpoints, scene: str) -> None:
    view = view_of(endpoints, scene)
    classes = endpoints.intervene(scene, [0, 1, 30], HEADS)["classes"]
    assert [before for _, before, _ in classes] == sorted((before for _, before, _ in classes), reverse=True)
    best = view.labels[int(view.intervene(drop=DROP, heads=HEADS).after[0].argmax())]
    assert best in {label for label, _, _ in classes}
    for _, before, after in endpoints.intervene(scene)["classes"]:
        assert before == pytest.approx(after, abs=1e-6)


def test_faithfulness_reports_progress_and_reuses_maps(
    endpoints: Endpoints, scene: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[dict[str, Any]] = []
    monkeypatch.setattr(module, "report", lambda text, seconds=None, **counts: reports.append({"text": text, **counts}))
    methods = ["rollout", "token_gradcam", "attn_lrp"]
    endpoints.faithfulness(scene, methods, 11)
    assert [report["text"] for report in reports[:3]] == [f"Computing {METHODS[name].title}" for name in methods]
    assert [report["done"] for report in reports] == sorted(report["done"] for report in reports)
    assert reports[-1] == {"text": "Testing 3 maps", "done": 6, "of": 6}
    monkeypatch.setattr(View, "explain", lambda *_, **__: pytest.fail("a map was computed again"))
    endpoints.faithfulness(scene, methods, 11)
    endpoints.explain(scene, "attn_lrp", 11)


@pytest.mark.parametrize(("head", "query"), [("mean", None), (1, 0), ("max", 5), (4, -1)])
def test_attention_matches_python(endpoints: Endpoints, scene: str, head: str | int, query: int | None) -> None:
    answer = ask(endpoints, "attention", scene=scene, block=1, head=head, query=query)
    expected = view_of(endpoints, scene).attention(1, head, "mean" if query == -1 else query)
    np.testing.assert_allclose(answer["values"], expected.values)
    assert answer["prefix_mass"] == dict(expected.prefix_mass)
    assert np.sum(answer["values"]) + sum(answer["prefix_mass"].values()) == pytest.approx(1, abs=1e-5)


def test_cait_opens_with_the_attention_and_maps_of_python(endpoints: Endpoints, sources: tuple[str, ...]) -> None:
    """Check the file of a block, from which the page computes attention, methods, a saved page and the lecture."""
    scene = endpoints.open(photograph(), sources[2])["id"]
    view, shape = view_of(endpoints, scene), (2, tiny.HEADS, ROWS * COLUMNS, tiny.HEADS * tiny.HEAD_WIDTH)
    queries, keys = np.frombuffer(endpoints.block(scene, 1), "<f2")[-math.prod(shape) :].reshape(shape).astype(float)
    attention = np.exp(queries @ keys.swapaxes(1, 2))
    attention /= attention.sum(-1, keepdims=True)
    np.testing.assert_allclose(attention, view.trace.attention(1)[0], atol=0.004)
    for name in ("gae", "legrad"):
        answer = ask(endpoints, "explain", scene=scene, method=name, target=7, against=None)
        np.testing.assert_allclose(answer["values"], view.explain(name, target=7).values.ravel(), rtol=6e-5, atol=1e-12)
    assert endpoints.page(scene).decode() == saved_page(cached(endpoints, scene).scene)
    with pytest.raises(LectureError, match="talking heads"):
        endpoints.lecture(scene, 1)


def test_model_without_classes_answers_other_questions(endpoints: Endpoints, sources: tuple[str, ...]) -> None:
    manifest = endpoints.open(photograph(), sources[1])
    assert manifest["predictions"] == manifest["labels"] == []
    assert len(endpoints.explain(manifest["id"], "rollout")["values"]) == ROWS * COLUMNS
    assert endpoints.layers(manifest["id"])["names"] == []
    with pytest.raises(ValueError, match="classifier"):
        endpoints.explain(manifest["id"], "gae")


def test_all_patches_can_be_removed_only_if_prefix_tokens_remain(
    endpoints: Endpoints, sources: tuple[str, ...], scene: str
) -> None:
    everything = list(range(ROWS * COLUMNS))
    assert endpoints.intervene(scene, everything)["classes"]
    bare = endpoints.open(photograph(), sources[2])["id"]
    with pytest.raises(ArgumentError, match="Leave one"):
        endpoints.intervene(bare, everything)


def test_models_lists_models_examples_and_methods(endpoints: Endpoints, sources: tuple[str, ...]) -> None:
    models = endpoints.models()
    json.dumps(models)
    assert models["default"] == sources[0]
    assert [entry["source"] for entry in models["groups"][0]["entries"]] == list(sources)
    assert [example["name"] for example in models["examples"]] == ["Noise"]
    assert [(each["name"], not each["slow"]) for each in models["methods"]] == [
        (name, name in FAST) for name in METHODS
    ]
    assert models["more"] == {"typed": True, "upload": False}


def test_bright_spots_match_python(endpoints: Endpoints, scene: str, tmp_path: Path) -> None:
    assert endpoints.sinks(scene) == {"sinks": [], "neurons": [], "classes": []}
    source = folder(tmp_path / "spots", spots=Image.open(io.BytesIO(photograph())))
    planted = new_endpoints(tmp_path / "page", (source,))
    opened = planted.open(photograph())["id"]
    view, answer = view_of(planted, opened), planted.sinks(opened)
    assert_alike(answer, responses.describe_sinks(view, view.sinks()))
    second = planted.sinks(opened, block=1)
    assert_alike(second, responses.describe_sinks(view, view.sinks(block=1)))
    assert second["classes"] != answer["classes"]
    with pytest.raises(VitvizError, match=r"Choose one of \[0, 1\]"):
        planted.sinks(opened, block=2)
    assert {(neuron["block"], neuron["index"]) for neuron in answer["neurons"]} == set(SPOTS)
    manifest = planted.open(photograph(), registers=1)
    repaired = view_of(planted, manifest["id"])
    assert (manifest["prefix"][-1], manifest["title"]) == ("register 1", "Tiny spots + 1 register")
    assert manifest["id"] not in (opened, planted.open(photograph(), registers=2)["id"])
    assert not token_norms(repaired.model, repaired.trace).outliers.any()
    by_hand = view.model.with_registers(1, SPOTS)
    tiny.close(repaired.trace.logits, by_hand(view.images))
    with pytest.raises(VitvizError, match="outlying norm"):
        endpoints.open(photograph(), registers=1)


def test_evidence_matches_python(endpoints: Endpoints, scene: str) -> None:
    view, apart = view_of(endpoints, scene), list[int]()
    for _ in range(2):
        *_, expected = find_set(view.model, view.images, apart=[divmod(patch, COLUMNS) for patch in apart])
        answer = endpoints.evidence(scene, apart=apart)
        assert [divmod(patch, COLUMNS) for patch in answer["patches"]] == list(expected.patches)
        assert (answer["probability"], answer["minimal"]) == (pytest.approx(expected.probability), True)
        apart += answer["patches"]
    everything = [*range(ROWS * COLUMNS)]
    assert endpoints.evidence(scene, apart=everything)["patches"] is None


def test_planted_neuron_is_that_of_python(endpoints: Endpoints, scene: str) -> None:
    assert endpoints.planted(scene) == planted_bytes(view_of(endpoints, scene))


def test_values_of_another_photograph_match_python(endpoints: Endpoints, scene: str) -> None:
    other = endpoints.open(photograph(7))["id"]
    view, peer = view_of(endpoints, scene), view_of(endpoints, other)
    for place, part in (
        ({"head": 2}, {"heads": [(1, 2)]}),
        ({}, {"blocks": [1]}),
        ({"token": 4}, {"tokens": [(1, 4)]}),
        ({"stream": True}, {"stream": 1}),
    ):
        answer, change = endpoints.patch(scene, other, 1, **place, target=3), view.patch(peer, **part, target=3)
        expected = [float(change.target_before[0]), float(change.target_after[0])]
        assert answer["target"][1:] == pytest.approx(expected, rel=1e-4)
        same = endpoints.patch(scene, scene, 1, **place)["target"]
        assert same[1] == pytest.approx(same[2], abs=1e-6)  # the photograph patched with itself
    peers = dict(zip(peer.labels, peer.trace.logits[0].softmax(-1).tolist(), strict=True))
    for label, _, after in endpoints.patch(scene, other, 1, stream=True)["classes"]:
        assert after == pytest.approx(peers[label], abs=1e-6)  # the whole stream: the other photograph's answer


TABLE: list[tuple[str, dict[str, Any], str]] = [  # endpoint, arguments, part of the error message
    ("open", {}, "photograph"),
    ("open", {"image": "Nothing"}, "Noise"),
    *(("open", {"photo": photo}, "photograph") for photo in (b"", b"no picture", b"\x89PNG\r\n\x1a\n" + bytes(99))),
    ("open", {"photo": photograph()[:200]}, "photograph"),
    ("open", {"photo": photograph(), "model": "/etc/passwd"}, "name of a model"),
    ("open", {"photo": "text"}, "a file of at most 64 MB"),
    *(("open", {"photo": photograph(), "size": size}, "size") for size in (91.0, True, 0, 10**6)),
    *(("open", {"photo": photograph(), "size": size}, str(size)) for size in (1, 12, 9 * WIDTH, 10**5)),
    ("open", {"photo": photograph(), "detail": 91}, "detail"),
    *(("open", {"photo": photograph(), "registers": count}, "registers") for count in (0, 17, 1.0, True)),
    ("decompose", {"target": tiny.CLASSES}, str(tiny.CLASSES)),
    ("decompose", {"target": "group:1,2"}, "whose score is a sum"),
    *(("edge", {**EDGE, name: 10**4}, "10000") for name in EDGE),
    ("edge", {**EDGE, "target": "group:1,2", "cut": True}, "whose score is a sum"),
    ("descriptors", {"descriptor": "pixels"}, "tokens, queries, keys or values"),
    ("descriptors", {"block": tiny.DEPTH}, str(tiny.DEPTH)),
    ("evidence", {"against": 10**4}, "10000"),
    ("evidence", {"apart": [10**4]}, "10000"),
    ("explain", {"method": "grad"}, "grad"),
    ("explain", {"method": 7}, "method"),
    ("explain", {"target": "nothing"}, "nothing"),
    ("explain", {"target": "group:3,5", "against": 4}, "group:3,5"),
    ("explain", {"target": "similar:1,2"}, f"{tiny.WIDTH} numbers"),
    ("explain", {"target": f"similar:{'0' * 32}"}, "not open"),
    ("explain", {"target": "text:a cat"}, "text tower"),
    ("explain", {"target": 99}, "99"),
    ("explain", {"target": 3, "against": 3}, "different"),
    ("explain", {"target": 3, "against": 10**6}, "1000000"),
    ("faithfulness", {"methods": []}, "[]"),
    ("faithfulness", {"methods": ["gae"] * 99}, "methods"),
    ("faithfulness", {"methods": ["gae", "no method"]}, "no method"),
    ("faithfulness", {}, "got nothing"),
    ("intervene", {"patches": [ROWS * COLUMNS]}, str(ROWS * COLUMNS - 1)),
    *(("intervene", {"patches": [patch]}, str(patch)) for patch in (-1, 0.5, True)),
    ("intervene", {"heads": [[0]]}, "[[0]]"),
    ("intervene", {"heads": [[tiny.DEPTH, 0]]}, str(tiny.DEPTH)),
    ("heads", {"names": ["beauty"]}, "beauty"),
    ("patch", {"other": "0" * 32, "block": 0}, "not open"),
    ("patch", {"other": "0" * 32, "block": 0, "token": TOKENS}, str(TOKENS)),
    ("layers", {"more": 1}, "more"),
    ("attention", {"block": tiny.DEPTH}, str(tiny.DEPTH)),
    ("attention", {"block": 0, "head": tiny.HEADS}, str(tiny.HEADS)),
    ("attention", {"block": 0, "head": "median"}, "mean, max or min"),
    ("lecture", {"block": tiny.DEPTH}, str(tiny.DEPTH)),
    ("rearrange", {"shuffle": -1}, "-1"),
    ("rearrange", {"positions": "no"}, "no"),
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
def test_wrong_arguments_are_refused_with_a_reason_before_anything_runs(
    endpoints: Endpoints, scene: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitviz.view.attribute", lambda *_, **__: pytest.fail("the method ran"))
    for arguments, part in [row[1:] for row in TABLE if row[0] == name]:
        case = repr(arguments)[:200]
        with pytest.raises(ValueError, match="xpected") as refused:
            ask(endpoints, name, **({} if name == "open" else {"scene": scene}), **arguments)
        text = str(refused.value)
        assert part in text, case
        assert len(text) < 600, case
        assert not any(leak in text for leak in LEAKS), case
        assert describe_error(refused.value)["kind"] == "refused", case
        assert endpoints.jobs.ahead(Kind.LONG)[0] == 0, case


OF_SCENES = [name for name in QUESTIONS if "scene" in signature(getattr(Endpoints, name, print)).parameters]
MORE = {"edge": EDGE, "faithfulness": {"methods": ["gae"]}, "heads": {"names": ["distance"]}}
MORE |= {name: {"block": 0} for name in ("block", "attention")}
UNKNOWN = "0" * 32
MORE["patch"] = {"other": UNKNOWN, "block": 0}


@pytest.mark.parametrize("name", OF_SCENES)
def test_unknown_scenes_differ_from_invalid_ids(endpoints: Endpoints, name: str) -> None:
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
    st.sampled_from([*OF_SCENES, "models"]),
    ANYTHING | st.dictionaries(st.sampled_from(ARGUMENTS), ANYTHING, max_size=5),
    st.booleans(),
)
def test_random_arguments_cause_no_server_error(
    endpoints: Endpoints, scene: str, name: str, arguments: Any, known: bool
) -> None:
    if known and isinstance(arguments, dict):
        arguments["scene"] = scene
    answer = {"kind": "answered", "text": "Expected"}
    try:
        endpoints.question(name, arguments).compute()
    except (ValueError, UnknownScene) as error:
        answer = describe_error(error)
    assert answer["kind"] in ("answered", "refused", "unknown")
    assert answer["text"].startswith("Expected")
    assert len(answer["text"]) < 600
