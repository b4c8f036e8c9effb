"""What the endpoints answer. No browser, no HTTP."""

from __future__ import annotations

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tiny
from offered import WIDTH, ask, folder, made, photograph
from patience import patience, wait_until

from vitviz.attribution.attention import rollout_matrix
from vitviz.attribution.registry import METHODS
from vitviz.server import endpoints as module
from vitviz.server.arguments import ArgumentError
from vitviz.server.endpoints import Endpoints
from vitviz.server.scheduler import Kind
from vitviz.view import View
from vitviz.web.scene import ROLLOUT_TOKENS, standalone

ROWS, COLUMNS = tiny.GRID
TOKENS = 1 + ROWS * COLUMNS
FAST = [name for name, method in METHODS.items() if method.cost <= module.SLOW]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    place = tmp_path_factory.mktemp("models")
    return (
        folder(place / "plain"),
        folder(place / "blind", classes=0),
        folder(place / "bare", class_token=False, pooling="mean"),
        folder(place / "registers", registers=2),
    )


@pytest.fixture(scope="module")
def endpoints(tmp_path_factory: pytest.TempPathFactory, sources: tuple[str, ...]) -> Endpoints:
    return made(tmp_path_factory.mktemp("page"), sources, side=8 * WIDTH)


@pytest.fixture(scope="module")
def scene(endpoints: Endpoints) -> str:
    return endpoints.open(photograph())["id"]


@pytest.fixture(scope="module")
def fine(endpoints: Endpoints) -> str:
    """More tokens than the rollout matrix has."""
    return endpoints.open(photograph(), size=4 * WIDTH)["id"]


def view_of(endpoints: Endpoints, scene: str) -> View:
    found = endpoints.scenes.get(scene)
    assert found is not None
    return found.view


# --- open


def test_open_is_idempotent_and_its_id_is_of_photograph_model_and_size(
    endpoints: Endpoints, sources: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = endpoints.open(photograph(), sources[0])
    monkeypatch.setattr(module, "open_view", lambda *_: pytest.fail("the model ran again"))
    assert endpoints.open(photograph()) is first  # the default model
    monkeypatch.undo()
    others = [
        endpoints.open(photograph(7)),
        endpoints.open(photograph(), sources[3]),
        endpoints.open(photograph(), size=2 * WIDTH),
    ]
    assert len({one["id"] for one in (first, *others)}) == 4
    assert all(len(one["id"]) == 32 for one in others)
    assert others[2]["grid"] == (2 * ROWS, 2 * COLUMNS)
    json.dumps(first)


def test_an_example_is_named_and_a_photograph_of_ones_own_is_not(endpoints: Endpoints) -> None:
    example, own = endpoints.open(image="Noise"), endpoints.open(photograph())
    assert (example["image"], example["own"]) == ("Noise", None)
    assert own["image"] is None
    assert len(own["own"]) == 32
    assert example["caveat"]  # a model of random weights does not know it


# --- files


@pytest.mark.parametrize(
    ("which", "options"),
    [("fine", {}), ("scene", {"fuse": "min", "discard": 0.25, "residual": 0.7, "start": 1}), ("fine", {"fuse": "max"})],
    ids=str,
)
def test_a_row_is_that_of_the_whole_matrix(
    endpoints: Endpoints, which: str, options: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    name = request.getfixturevalue(which)
    expected = rollout_matrix(view_of(endpoints, name).trace, **options)[0].numpy()  # (N, N), the dense way
    for token in (0, 5, len(expected) - 1):
        row = np.frombuffer(ask(endpoints, "rollout", scene=name, token=token, **options), "<f4")
        np.testing.assert_allclose(row, expected[token], atol=1e-6)
    mean = np.frombuffer(ask(endpoints, "rollout", scene=name, token=-1, **options), "<f4")
    np.testing.assert_allclose(mean, expected[1:].mean(0), atol=1e-6)


def test_many_tokens_have_rows_and_no_matrix(endpoints: Endpoints, fine: str) -> None:
    assert view_of(endpoints, fine).trace.tokens.shape[1] > ROLLOUT_TOKENS
    assert not endpoints.open(photograph(), size=4 * WIDTH)["rollout"]
    with pytest.raises(ArgumentError, match=f"{ROLLOUT_TOKENS}.*row"):
        endpoints.rollout(fine)


def test_the_page_is_the_one_that_python_writes(
    endpoints: Endpoints, scene: str, fine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = endpoints.scenes.get(scene)
    assert found is not None
    assert endpoints.page(scene, "?layer=2").decode() == standalone(found.scene, "?layer=2")
    monkeypatch.setattr(module, "PAGE_MEGABYTES", 0.1)
    with pytest.raises(ArgumentError, match=r"1,233 tokens\. Choose a smaller input size"):
        endpoints.page(fine)


# --- numbers


@pytest.mark.parametrize("name", FAST)
def test_maps_are_pythons(endpoints: Endpoints, scene: str, name: str) -> None:
    specific = METHODS[name].class_specific
    found = ask(endpoints, "explain", scene=scene, method=name, target=7, against=None)
    expected = view_of(endpoints, scene).explain(name, **({"target": 7} if specific else {}))
    np.testing.assert_allclose(found["values"], expected.values.ravel(), rtol=6e-5, atol=1e-12)
    assert found["signed"] == expected.signed
    assert ("thing 7" in found["title"]) == specific


def test_a_class_may_be_held_against_another(endpoints: Endpoints, scene: str) -> None:
    view = view_of(endpoints, scene)
    expected = view.explain("gae", contrast=(3, 5))
    values = endpoints.explain(scene, "gae", 3, 5)["values"]
    np.testing.assert_allclose(values, expected.values.ravel(), rtol=6e-5, atol=1e-12)
    best = view.best(1)[0]
    other = (best + 1) % len(view.labels)
    pairs = [endpoints.explain(scene, "gae", target, other)["values"] for target in (None, best)]
    assert pairs[0] == pairs[1]


def test_a_test_is_pythons_and_maps_share_their_random_orders(endpoints: Endpoints, scene: str) -> None:
    view = view_of(endpoints, scene)
    tests = ask(endpoints, "faithfulness", scene=scene, methods=["gae", "rollout"], target=7, against=None)
    expected = view.faithfulness([view.explain("gae", 7), view.explain("rollout")], 7)
    assert [test["words"] for test in tests] == [test.describe() for test in expected]
    assert [test["gain"] for test in tests] == pytest.approx([test.gain for test in expected])
    assert tests[0]["deletion"]["random"] == tests[1]["deletion"]["random"]
    for kind in ("deletion", "insertion"):
        curve = tests[0][kind]
        np.testing.assert_allclose(curve["y"], getattr(expected[0], kind).probabilities, rtol=1e-3)
        assert len(curve["x"]) == len(curve["low"]) == len(curve["high"]) == len(curve["random"])


def test_a_test_reports_its_progress_and_computes_no_map_twice(
    endpoints: Endpoints, scene: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[dict[str, Any]] = []
    monkeypatch.setattr(module, "report", lambda text, seconds=None, **counts: reports.append({"text": text, **counts}))
    methods = ["rollout", "token_gradcam", "attn_lrp"]
    endpoints.faithfulness(scene, methods, 11)
    assert [one["text"] for one in reports[:3]] == [f"Computing {METHODS[name].title}" for name in methods]
    assert [one["done"] for one in reports] == sorted(one["done"] for one in reports)
    assert reports[-1] == {"text": "Testing 3 maps", "done": 6, "of": 6}
    monkeypatch.setattr(View, "explain", lambda *_, **__: pytest.fail("a map was computed again"))
    endpoints.faithfulness(scene, methods, 11)
    endpoints.explain(scene, "attn_lrp", 11)


def test_interventions_are_pythons(endpoints: Endpoints, scene: str) -> None:
    view = view_of(endpoints, scene)
    found = ask(endpoints, "intervene", scene=scene, patches=[0, 1, 30], heads=[[1, 2], [2, 0]])["classes"]
    change = view.intervene(drop=[(0, 0), (0, 1), divmod(30, COLUMNS)], heads=[(1, 2), (2, 0)])
    for label, before, after in found:
        index = view.labels.index(label)
        assert (before, after) == pytest.approx((change.before[0, index], change.after[0, index]))
    assert [before for _, before, _ in found] == sorted((before for _, before, _ in found), reverse=True)
    assert int(change.after[0].argmax()) in {view.labels.index(label) for label, _, _ in found}
    for _, before, after in endpoints.intervene(scene)["classes"]:
        assert before == pytest.approx(after, abs=1e-6)


def test_statistics_are_pythons(endpoints: Endpoints, scene: str) -> None:
    names = ["distance", "mass_cls", "ablation_logit"]
    found = ask(endpoints, "heads", scene=scene, names=names)["values"]
    expected = view_of(endpoints, scene).heads(names)
    for name in names:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4)


def test_layers_are_pythons(endpoints: Endpoints, scene: str) -> None:
    view, found = view_of(endpoints, scene), ask(endpoints, "layers", scene=scene)
    lens = view.lens(view.best(4))
    assert found["names"] == list(lens.names)
    np.testing.assert_allclose(found["read"], lens.probabilities[:, list(lens.classes)], rtol=1e-4)
    patches = np.frombuffer(base64.b64decode(found["patches"]), np.uint8).reshape(tiny.DEPTH, 4, ROWS, COLUMNS)
    np.testing.assert_allclose(patches / 255, np.moveaxis(lens.patches, 3, 1), atol=0.5 / 255 + 1e-6)
    colors = np.frombuffer(base64.b64decode(found["colors"]), np.uint8).reshape(tiny.DEPTH, ROWS, COLUMNS, 3)
    np.testing.assert_allclose(colors / 255, view.token_pca().colors, atol=0.5 / 255 + 1e-6)


@pytest.mark.parametrize(("head", "query"), [("mean", None), ("2", 0), ("max", 5), ("5", -1)])
def test_attention_is_pythons(endpoints: Endpoints, scene: str, head: str, query: int | None) -> None:
    found = ask(endpoints, "attention", scene=scene, block=1, head=head, query=query)
    which = int(head) - 1 if head.isdecimal() else head
    expected = view_of(endpoints, scene).attention(1, which, "mean" if query == -1 else query)
    np.testing.assert_allclose(found["values"], expected.values)
    assert found["prefix_mass"] == dict(expected.prefix_mass)
    assert np.sum(found["values"]) + sum(found["prefix_mass"].values()) == pytest.approx(1, abs=1e-5)


def test_a_model_without_classes_answers_what_it_can(endpoints: Endpoints, sources: tuple[str, ...]) -> None:
    manifest = endpoints.open(photograph(), sources[1])
    assert manifest["predictions"] == manifest["labels"] == []
    assert len(endpoints.explain(manifest["id"], "rollout")["values"]) == ROWS * COLUMNS
    assert endpoints.layers(manifest["id"])["names"] == []
    with pytest.raises(ValueError, match="classifier"):
        endpoints.explain(manifest["id"], "gae")


def test_without_any_patch_the_prefix_is_read_or_it_is_refused(
    endpoints: Endpoints, sources: tuple[str, ...], scene: str
) -> None:
    everything = list(range(ROWS * COLUMNS))
    assert endpoints.intervene(scene, everything)["classes"]
    bare = endpoints.open(photograph(), sources[2])["id"]
    with pytest.raises(ArgumentError, match="Leave one"):
        endpoints.intervene(bare, everything)


def test_the_models_answer_lists_what_there_is(endpoints: Endpoints, sources: tuple[str, ...]) -> None:
    found = endpoints.models()
    json.dumps(found)
    assert found["default"] == sources[0]
    assert [one["source"] for one in found["groups"][0]["entries"]] == list(sources)
    assert [one["name"] for one in found["examples"]] == ["Noise"]
    assert [one["name"] for one in found["methods"]] == list(METHODS)
    assert found["more"] == {"typed": True, "upload": False}
    assert {one["name"] for one in found["methods"] if one["slow"]} == set(METHODS) - set(FAST)


# --- many at once


def test_one_model_runs_at_a_time(endpoints: Endpoints, scene: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        with endpoints.scheduler.run(Kind.PHOTO):
            asking = pool.submit(endpoints.explain, scene, "rollout")
            wait_until(lambda: endpoints.scheduler.waiting == 1, "the question waits")
            assert not asking.done()
        assert asking.result(patience(60))["values"]
