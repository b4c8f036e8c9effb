"""What the panels beside the explorer may ask the server, by their own hand and by strangers'. No browser."""

from __future__ import annotations

import base64
import json
import threading
from typing import Any

import numpy as np
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

from vitviz.analysis.heads import STATISTICS
from vitviz.attribution.registry import METHODS
from vitviz.explorer import Explorer
from vitviz.images.preprocess import Preprocess
from vitviz.model.vit import Pretrained
from vitviz.server.insight import Panel, answers
from vitviz.server.scheduler import Kind, Scheduler
from vitviz.server.sessions import Shown
from vitviz.view import View

HEIGHT, WIDTH = (side * tiny.PATCH for side in tiny.GRID)
ROWS, COLUMNS = tiny.GRID
FAST = ("attention", "rollout", "gae", "legrad")


def opened(seed: int = 0, named: bool = True, **changes: Any) -> View:
    model = tiny.model(seed, **changes)
    if named:
        labels = tuple(f"thing {index}" for index in range(model.config.classes))
        model.pretrained = Pretrained(
            name="Tiny", preprocess=Preprocess(mode="squash", height=HEIGHT, width=WIDTH), labels=labels
        )
    photo = np.random.default_rng(seed).integers(0, 255, (60, 90, 3), np.uint8)
    return Explorer(model).open(photo)


VIEW = opened()
HERE = {"here": Shown(VIEW), "blind": Shown(opened(named=False, classes=0))}
SCHEDULER = Scheduler()
OUTLINE, WAITING, EXPLAIN, JUDGE, WITHOUT, STATISTICS_OF, LENS = answers(HERE.get, SCHEDULER)


def told(answer: dict[str, str]) -> Any:
    assert set(answer) == {"data"}, answer
    return json.loads(answer["data"])


def refused(answer: dict[str, str]) -> str:
    assert set(answer) - {"forgotten"} == {"error"}
    return answer["error"]


def test_the_outline_waits_for_nobodys_question() -> None:
    with SCHEDULER.run(Kind.PHOTO):
        assert told(OUTLINE(["here"]))["classifies"]


def test_how_long_a_question_waits_can_be_asked_meanwhile() -> None:
    assert told(WAITING(["here"])) == {"ahead": 0, "seconds": 0}
    with SCHEDULER.run(Kind.LONG):
        found = told(WAITING(["here"]))
        assert found["ahead"] == 1
        assert found["seconds"] > 0


def test_the_outline_names_what_can_be_asked() -> None:
    outline = told(OUTLINE(["here"]))
    assert [method["name"] for method in outline["methods"]] == list(METHODS)
    assert [one["name"] for one in outline["statistics"]] == list(STATISTICS)
    assert outline["labels"] == list(VIEW.labels)
    assert [[label, p] for _, label, p in outline["best"]] == [list(pair) for pair in VIEW.predictions(5)]
    assert [VIEW.labels[index] for index, _, _ in outline["best"]] == [label for label, _ in VIEW.predictions(5)]
    assert outline["classifies"]


def test_a_model_without_classes_has_an_outline_too() -> None:
    outline = told(OUTLINE(["blind"]))
    assert not outline["classifies"]
    assert outline["best"] == outline["labels"] == []
    assert len(told(EXPLAIN(["blind", "rollout", None, None]))["values"]) == ROWS * COLUMNS
    assert "classifier" in refused(EXPLAIN(["blind", "gae", None, None]))
    assert told(LENS(["blind"]))["names"] == []


@pytest.mark.parametrize("name", FAST)
def test_maps_are_pythons(name: str) -> None:
    specific = METHODS[name].class_specific
    found = told(EXPLAIN(["here", name, 7 if specific else None, None]))
    expected = VIEW.explain(name, **({"target": 7} if specific else {}))
    np.testing.assert_allclose(found["values"], expected.values.ravel(), rtol=6e-5, atol=1e-12)
    assert found["signed"] == expected.signed
    assert ("thing 7" in found["title"]) == specific


def test_a_class_may_be_held_against_another() -> None:
    found = told(EXPLAIN(["here", "gae", 3, 5]))
    np.testing.assert_allclose(
        found["values"], VIEW.explain("gae", contrast=(3, 5)).values.ravel(), rtol=6e-5, atol=1e-12
    )
    best = VIEW.best(1)[0]
    other = (best + 1) % len(VIEW.labels)
    assert (
        told(EXPLAIN(["here", "gae", None, other]))["values"] == told(EXPLAIN(["here", "gae", best, other]))["values"]
    )


def test_a_judgement_is_pythons_and_maps_share_their_random_orders() -> None:
    tests = told(JUDGE(["here", ["gae", "rollout"], 7, None]))
    expected = VIEW.faithfulness([VIEW.explain("gae", 7), VIEW.explain("rollout")], 7)
    assert [test["words"] for test in tests] == [test.describe() for test in expected]
    assert [test["gain"] for test in tests] == pytest.approx([test.gain for test in expected])
    assert tests[0]["deletion"]["random"] == tests[1]["deletion"]["random"]
    for kind in ("deletion", "insertion"):
        curve = tests[0][kind]
        np.testing.assert_allclose(curve["y"], getattr(expected[0], kind).probabilities, rtol=1e-3)
        assert len(curve["x"]) == len(curve["low"]) == len(curve["high"]) == len(curve["random"])


def test_what_if_is_pythons() -> None:
    found = told(WITHOUT(["here", [0, 1, 30], [[1, 2], [2, 0]]]))["classes"]
    change = VIEW.intervene(drop=[(0, 0), (0, 1), divmod(30, COLUMNS)], heads=[(1, 2), (2, 0)])
    for label, before, after in found:
        index = VIEW.labels.index(label)
        assert (before, after) == pytest.approx((change.before[0, index], change.after[0, index]))
    assert [before for _, before, _ in found] == sorted((before for _, before, _ in found), reverse=True)
    assert int(change.after[0].argmax()) in {VIEW.labels.index(label) for label, _, _ in found}
    for _, before, after in told(WITHOUT(["here", [], []]))["classes"]:
        assert before == pytest.approx(after, abs=1e-6)


def test_statistics_are_pythons() -> None:
    found = told(STATISTICS_OF(["here", ["distance", "mass_cls"]]))["values"]
    expected = VIEW.heads(["distance", "mass_cls"])
    for name in ("distance", "mass_cls"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4)


def test_the_lens_is_pythons() -> None:
    found = told(LENS(["here"]))
    read = VIEW.lens(VIEW.best(4))
    assert found["names"] == list(read.names)
    np.testing.assert_allclose(found["read"], read.probabilities[:, list(read.classes)], rtol=1e-4)
    patches = np.frombuffer(base64.b64decode(found["patches"]), np.uint8).reshape(tiny.DEPTH, 4, ROWS, COLUMNS)
    np.testing.assert_allclose(patches / 255, np.moveaxis(read.patches, 3, 1), atol=0.5 / 255 + 1e-6)
    colours = np.frombuffer(base64.b64decode(found["colours"]), np.uint8).reshape(tiny.DEPTH, ROWS, COLUMNS, 3)
    np.testing.assert_allclose(colours / 255, VIEW.token_pca().colors, atol=0.5 / 255 + 1e-6)


def test_one_model_runs_at_a_time() -> None:
    came: list[Any] = []
    asking = threading.Thread(target=lambda: came.append(EXPLAIN(["here", "rollout", None, None])))
    with SCHEDULER.run(Kind.PHOTO):
        asking.start()
        asking.join(0.3)
        assert not came
    asking.join(30)
    assert told(came[0])


@pytest.mark.parametrize(
    ("ask", "given", "named"),
    [
        (EXPLAIN, ["here", "grad", None, None], "grad"),
        (EXPLAIN, ["here", "gae", "thing 1", None], "thing 1"),
        (EXPLAIN, ["here", "gae", 99, None], "99"),
        (EXPLAIN, ["here", "gae", True, None], "True"),
        (EXPLAIN, ["here", "gae", 3, 3], "different"),
        (EXPLAIN, ["here", "gae"], "4"),
        (EXPLAIN, ["gone", "gae", None, None], "put away"),
        (EXPLAIN, [None, "gae", None, None], "list of 4"),
        (JUDGE, ["here", "gae", None, None], "gae"),
        (JUDGE, ["here", [], None, None], "[]"),
        (JUDGE, ["here", ["gae"] * 99, None, None], "some methods"),
        (WITHOUT, ["here", [ROWS * COLUMNS], []], str(ROWS * COLUMNS - 1)),
        (WITHOUT, ["here", [-1], []], "-1"),
        (WITHOUT, ["here", [0.5], []], "0.5"),
        (WITHOUT, ["here", [], [[0]]], "[[0]]"),
        (WITHOUT, ["here", [], [[tiny.DEPTH, 0]]], str(tiny.DEPTH)),
        (STATISTICS_OF, ["here", ["beauty"]], "beauty"),
        (STATISTICS_OF, ["here", "distance"], "distance"),
        (LENS, [7], "list of 1"),
    ],
)
def test_what_cannot_be_is_refused_in_words(ask: Any, given: Any, named: str) -> None:
    assert named in refused(ask(given))
    assert SCHEDULER.ahead(Kind.LONG) == 0


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)


@given(
    st.sampled_from([OUTLINE, WAITING, EXPLAIN, JUDGE, WITHOUT, STATISTICS_OF, LENS]),
    ANYTHING,
    st.lists(ANYTHING, max_size=3),
)
def test_nonsense_gets_an_answer(ask: Any, asked: Any, more: list[Any]) -> None:
    assert set(ask(asked)) <= {"data", "error", "forgotten"}
    assert set(ask(["here", *more])) <= {"data", "error", "forgotten"}


def test_without_any_patch_the_prefix_answers_or_it_is_refused() -> None:
    everything = list(range(ROWS * COLUMNS))
    assert told(WITHOUT(["here", everything, []]))["classes"]
    bare = answers({"here": Shown(opened(class_token=False, pooling="mean"))}.get, SCHEDULER)[4]
    assert "leave one" in refused(bare(["here", everything, []]))


@pytest.mark.parametrize("name", ["explain", "heads", "layers"])
def test_a_panel_can_be_made_anew_as_gradio_does(name: str) -> None:
    made = Panel(name, HERE.get, SCHEDULER)
    again = Panel(**made.constructor_args)
    assert told(again.outline(["here"]))["classifies"]
    assert made.get_block_name() == "html"
