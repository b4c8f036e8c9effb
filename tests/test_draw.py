"""What the page shows, for models of every kind: no browser needed."""

import base64
import io
import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
import tiny
from PIL import Image

from vitviz.explorer import Explorer
from vitviz.model import Pretrained
from vitviz.preprocess import Preprocess
from vitviz.ui import draw
from vitviz.ui.draw import Knobs
from vitviz.ui.menu import Offer
from vitviz.ui.sessions import STAGE_SIDE, Shown, shrink

HOSTILE = '<img src=x onerror="alert(1)">'


def shown(size: tuple[int, int] = (500, 300), labels: tuple[str, ...] = (), **changes: Any) -> Shown:
    model = tiny.model(**changes)
    if labels:
        height, width = model.config.image_size
        model.pretrained = Pretrained(
            name="tiny", preprocess=Preprocess(mode="pad", height=height, width=width), labels=labels
        )
    photo = np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), np.uint8)
    return Shown(Explorer(model).open(photo))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"registers": 3},
        {"class_token": False, "pooling": "mean"},
        {"class_token": False, "pooling": "mean", "registers": 2},
        {"distillation_token": True},
        {"classes": 0},
        {"heads": 17},
    ],
    ids=str,
)
@pytest.mark.parametrize("method", ["attention", "rollout"])
def test_every_kind_of_model_can_be_shown(changes: dict, method: str) -> None:
    one = shown(**changes)
    for query in [*draw.queries(one.view), draw.PATCH]:
        knobs = Knobs(method=method, block=1, head=1, query=query, patch=(2, 5))
        stage = json.loads(draw.stage(one, knobs))
        assert stage["grid"] == list(tiny.GRID)
        assert (stage["query"] == [2, 5]) == (query == draw.PATCH)
        assert draw.head_wall(one, knobs).count("<button") == 3 + one.view.trace.heads
        assert draw.layer_wall(one, knobs).count("<button") == tiny.DEPTH
    assert ("register" in draw.head_wall(one, Knobs())) == bool(changes.get("registers"))
    assert ("no classifier" in draw.predictions(one.view)) == (changes.get("classes") == 0)
    assert bool(draw.answer(one.view)) == (changes.get("classes") != 0)


def test_masses_and_numbers_are_those_of_the_trace() -> None:
    one = shown(registers=3)
    row = one.view.trace.row(1, "cls")[0, 2]  # (N,)
    heatmap = Knobs(block=1, head=2).heatmap(one.view)
    assert draw.masses(heatmap) == pytest.approx({"CLS": float(row[0]), "registers": float(row[1:4].sum())}, abs=1e-6)
    wall = draw.head_wall(one, Knobs(block=1, head=2))
    third = re.findall(r'data-value="2".*?</button>', wall)[0]
    words = f"CLS {draw.percent(float(row[0]), 0)} · registers {draw.percent(float(row[1:4].sum()), 0)}"
    assert words in third.replace("\xa0", " ")
    assert 'aria-pressed="true"' in third


def test_words_from_outside_stay_words() -> None:
    one = shown(labels=(HOSTILE, *(f"class {i}" for i in range(tiny.CLASSES - 1))))
    tags: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list) -> None:
            tags.append(tag)

    Reader().feed(draw.predictions(one.view, k=tiny.CLASSES) + draw.problem(HOSTILE))
    assert "img" not in tags


def test_outputs_without_names_are_not_shown_as_classes() -> None:
    one = shown()
    assert "class " in draw.predictions(one.view)  # a model of our own making: its classes are numbered
    model = tiny.model()
    height, width = model.config.image_size
    model.pretrained = Pretrained(name="features", preprocess=Preprocess(mode="pad", height=height, width=width))
    features = Shown(Explorer(model).open(np.zeros((50, 60, 3), np.uint8)))
    words = draw.predictions(features.view)
    assert f"{tiny.CLASSES} numbers" in words
    assert "<li>" not in words
    assert draw.answer(features.view) == ""
    assert json.loads(draw.stage(features, Knobs()))["answer"] == ""


def test_doubt_is_said_below_a_half() -> None:
    one = shown()
    best = one.view.predictions(1)[0][1]
    assert ("Not sure" in draw.predictions(one.view)) == (best < 0.5)
    one.view.trace.logits.mul_(100)
    assert "Not sure" not in draw.predictions(one.view)
    one.view.trace.logits.zero_()
    assert "Not sure" in draw.predictions(one.view)


@pytest.mark.parametrize("size", [(5000, 3000), (311, 4001), (90, 70)])
def test_the_small_copy_keeps_every_patch_in_place(size: tuple[int, int]) -> None:
    one = shown(size, labels=tuple(map(str, range(tiny.CLASSES))))
    small, geometry = shrink(one.view.photo, one.view.geometry, STAGE_SIDE)
    assert max(small.size) == min(STAGE_SIDE, max(size))
    assert geometry.image == small.size
    for patch in ((0, 0), (3, 5), (6, 10)):
        large = np.array(one.view.geometry.patch_box(*patch, tiny.GRID)).reshape(2, 2) / size
        np.testing.assert_allclose(
            np.array(geometry.patch_box(*patch, tiny.GRID)).reshape(2, 2) / small.size, large, atol=1e-9
        )


def test_one_scale_for_all_is_said_and_used() -> None:
    one = shown()
    maps = one.view.heads(2)
    low, high = min(m.values.min() for m in maps), max(m.values.max() for m in maps)
    words = re.findall("<small>(.*?)</small></h2>", draw.head_wall(one, Knobs(block=2, shared=True)))[0]
    fused = [one.view.attention(2, fuse).values for fuse in draw.FUSIONS]
    low, high = min(low, *(v.min() for v in fused)), max(high, *(v.max() for v in fused))
    assert draw.percent(float(low)) in words
    assert draw.percent(float(high)) in words
    assert "own scale" in draw.head_wall(one, Knobs(block=2, shared=False))


def test_a_wall_of_few_has_small_thumbnails() -> None:
    one = shown(heads=1)
    for wall, buttons in ((draw.head_wall(one, Knobs()), 4), (draw.layer_wall(one, Knobs()), tiny.DEPTH)):
        assert wall.count("<button") == buttons
        assert "--columns: 6" in wall
    assert "--columns: 10" in draw.head_wall(shown(heads=17), Knobs())  # 20 in two even rows


def test_the_menu_is_data_and_its_words_are_never_html() -> None:
    offers = [Offer("a", HOSTILE, 88_200_000, "Apache-2.0", "for its heads"), Offer("b", "B")]
    menu = json.loads(draw.menu([("Here", offers), ("Nothing", [])], "b", True, 7))
    assert [group["title"] for group in menu["groups"]] == ["Here"]
    assert menu["groups"][0]["offers"][0]["words"] == f"{HOSTILE} · 88 MB · Apache-2.0"
    assert menu["groups"][0]["offers"][1]["words"] == "B"
    assert (menu["chosen"], menu["more"], menu["turn"]) == ("b", True, 7)


def test_a_bar_fills_in_the_time_that_is_expected() -> None:
    assert "animation-duration: 12.5s" in draw.working("Looking", 12.5)
    assert "animation-duration" not in draw.working("Loading")
    assert "<img" not in draw.working(HOSTILE)


@pytest.mark.parametrize(("value", "words"), [(0.0961, "96 ms"), (0.9994, "999 ms"), (61.23, "61.2 s")])
def test_measured_times(value: float, words: str) -> None:
    assert draw.duration(value) == words


@pytest.mark.parametrize(
    ("value", "words"), [(0.93, "93.0 %"), (0.0004, "0.04 %"), (0.0, "0.0 %"), (1.0, "100.0 %"), (0.0316, "3.2 %")]
)
def test_shares_are_percent(value: float, words: str) -> None:
    assert draw.percent(value) == words


def test_pictures_are_small_enough_to_send() -> None:
    stage = draw.stage(shown((4000, 3000)), Knobs())
    assert len(stage) < 2_000_000
    picture = Image.open(io.BytesIO(base64.b64decode(json.loads(stage)["src"].split(",")[1])))
    assert picture.size == (1024, 768)
