"""The manifest of a scene, and the page that is built from it, without a browser."""

import base64
import html
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import viewer_pages
from PIL import Image

import vitviz.view
from vitviz.explorer import Explorer
from vitviz.images.preprocess import Preprocess
from vitviz.model.vit import Pretrained
from vitviz.view import ExplorerError, View
from vitviz.web.payload import block_bytes, count_bytes, rollout_bytes
from vitviz.web.scene import LEAST_SIDE, PICTURE_BYTES, STAGE_SIDE, Scene, saved_bytes, saved_page

HOSTILE = '<img src=x onerror="alert(1)">'


def opened(size: tuple[int, int] = (500, 300), labels: tuple[str, ...] | None = None, **changes: Any) -> View:
    model = tiny.model(**changes)
    if labels is not None:
        height, width = model.config.image_size
        preprocess = Preprocess(mode="pad", height=height, width=width)
        model.pretrained = Pretrained(name="tiny", preprocess=preprocess, labels=labels)
    photo = np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), np.uint8)
    return Explorer(model).open(photo)


def manifest(view: View, **options: Any) -> dict[str, Any]:
    """Return the manifest as the browser receives it."""
    return json.loads(json.dumps(Scene(view, **options).manifest("name")))


MODELS = [{}, {"registers": 3}, {"class_token": False, "pooling": "mean"}, {"distillation_token": True}, {"heads": 17}]


@pytest.mark.parametrize("changes", [*MODELS, {"classes": 0}], ids=str)
def test_manifest_describes_every_kind_of_model(changes: dict) -> None:
    view = opened(**changes)
    data, trace = manifest(view, image="Dog"), view.trace
    facts = {"grid": list(trace.grid), "prefix": list(trace.prefix), "image": "Dog", "rollout": True}
    facts |= {"depth": tiny.DEPTH, "heads": trace.heads, "width": tiny.HEAD_WIDTH, "blocks": tiny.DEPTH}
    facts |= {"badge": {"device": "CPU", "seconds": view.seconds}}
    assert {name: data[name] for name in facts} == facts
    named = changes != {"classes": 0}
    assert bool(data["predictions"]) == bool(data["labels"]) == named
    assert bool(data["caveat"]) != named


def test_texts_from_outside_are_escaped() -> None:
    view = opened(labels=(HOSTILE, *(f"class {i}" for i in range(tiny.CLASSES - 1))))
    view.trace.logits[0, 0] = 100.0
    scene = Scene(view, title=HOSTILE, image="</script><script>alert(1)</script>")
    page = saved_page(scene, "?layer=2</script><b>")
    assert not [text for text in ("<img src=x", "<script>alert(1)", "</script><b>", "@@") if text in page]
    assert '"?layer=2&head=3"' in saved_page(scene, "?layer=2&head=3")


def test_outputs_without_names_are_not_shown_as_classes() -> None:
    assert manifest(opened())["labels"][0] == "class 0"  # without labels, classes are numbered
    data = manifest(opened(labels=()))
    assert f"{tiny.CLASSES} numbers" in data["caveat"]
    assert data["predictions"] == data["labels"] == []


def test_manifest_and_view_describe_a_photograph_alike() -> None:
    view = opened(labels=tuple(map(str, range(tiny.CLASSES))))
    about, score = view.model.pretrained, float(view.trace.logits[0].logsumexp(-1))
    unsure = {"sure_above": 0.999}
    grouped = {**unsure, "groups": (("even", *view.labels[::2]), ("any", *view.labels))}
    for text, known, facts in (
        ("Best match among ", None, {}),
        ("Not sure: ", None, unsure),
        ("Some kind of any (", True, {**grouped, "known_above": score - 1e-3}),
        ("Perhaps none of the", False, {**grouped, "known_above": score + 1e-3}),
    ):
        view.model.pretrained = replace(about, **facts)
        data, scene = manifest(view), Scene(view)
        assert [index for _, _, index in data["predictions"]] == list(view.best())
        assert [(label, share) for label, share, _ in data["predictions"]] == list(view.predictions())
        assert data["sureAbove"] == view.sure_above == facts.get("sure_above")
        members = [label for label, _ in view.predictions(3)]
        assert view.group() == (("any", pytest.approx(1.0), members) if "groups" in facts else None)
        assert data["group"] == (view.group() and [*view.group()])
        assert data["known"] is view.known is known
        assert view.describe() == scene.summary
        assert scene.summary.startswith(text)
        assert f"<title>{html.escape(scene.summary)} · tiny · vitviz</title>" in saved_page(scene)
    name, _, members = view.group(1e-9)
    assert name == "even"
    assert members == [label for label, _ in view.predictions(tiny.CLASSES) if label in view.labels[::2]][:3]


@pytest.mark.parametrize("size", [(5000, 3000), (311, 4001), (900, 70), (32, 20)])
def test_page_gets_a_small_copy_with_every_patch_in_place(size: tuple[int, int]) -> None:
    view = opened(size, labels=tuple(map(str, range(tiny.CLASSES))))
    small, geometry = Scene(view).picture
    assert max(small.size) == max(min(STAGE_SIDE, max(size)), LEAST_SIDE)
    assert geometry.image == small.size
    for patch in ((0, 0), (3, 5), (6, 10)):
        large = np.array(view.geometry.patch_box(*patch, tiny.GRID)).reshape(2, 2) / size
        scaled = np.array(geometry.patch_box(*patch, tiny.GRID)).reshape(2, 2) / small.size
        np.testing.assert_allclose(scaled, large, atol=1e-9)
    data = manifest(view)
    url = data["photo"]["url"]
    assert len(url) < 2_000_000
    assert small.size == Image.open(io.BytesIO(base64.b64decode(url.split(",")[1]))).size
    assert small.size == (data["photo"]["width"], data["photo"]["height"])
    assert max(data["seen"]["width"], data["seen"]["height"]) <= 640


def test_manifest_contains_the_numbers_of_further_maps() -> None:
    view = opened(registers=2)
    heatmap = view.rollout((1, 2))
    (data,) = manifest(view, maps=[heatmap])["maps"]
    assert data["title"] == heatmap.title
    np.testing.assert_allclose(np.reshape(data["values"], heatmap.values.shape), heatmap.values, rtol=1e-6)
    assert "% on CLS" in data["note"]


def cell_output(view: View) -> dict[str, dict[str, str | None]]:
    """Return the elements of a notebook's output, with their attributes."""
    reader, elements = HTMLParser(), {}
    reader.handle_starttag = lambda tag, attrs: elements.update({tag: dict(attrs)})
    reader.feed(view._repr_html_())
    return elements


def test_notebook_output_is_a_frame_with_a_picture_as_fallback() -> None:
    view = opened()
    elements = cell_output(view)
    assert set(elements) == {"div", "img", "iframe"}
    assert elements["iframe"]["srcdoc"] == view.html()
    kind, picture = elements["img"]["src"].split(",")
    assert kind == "data:image/png;base64"
    assert base64.b64decode(picture) == view._repr_png_()


def test_page_too_large_for_a_cell_becomes_a_picture_and_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    view = opened()
    megabytes = len(view.html()) / 1e6
    monkeypatch.setattr(vitviz.view, "CELL_MEGABYTES", 0.1)
    monkeypatch.setattr(view, "html", lambda **options: pytest.fail("the page was built"))
    assert "iframe" not in cell_output(view)
    assert "img" in cell_output(view)
    assert "view.save_html('page.html')" in view._repr_html_()
    monkeypatch.setattr(vitviz.view, "PAGE_MEGABYTES", 0.2)
    hint = re.search(r"view\.save_html\('page\.html', limit=(\d+)\)", view._repr_html_())
    assert hint
    assert megabytes <= int(hint[1]) <= 1.25 * megabytes + 1  # an estimate, rounded up


@pytest.mark.parametrize("kind", viewer_pages.KINDS)
def test_estimated_size_of_a_page_matches_the_page(kind: str) -> None:
    view = viewer_pages.view(kind)
    trace, maps = view.trace, [view.attention()] * 3
    files = [block_bytes(trace, block) for block in trace.blocks]
    assert count_bytes(trace, rollout=False) == sum(map(len, files))
    assert count_bytes(trace, rollout=True) == sum(map(len, [*files, rollout_bytes(trace)]))
    page = view.html(maps=maps)
    assert saved_bytes(trace, maps) == pytest.approx(len(page), rel=0.1, abs=2 * PICTURE_BYTES)


def test_page_beyond_the_limit_is_refused_in_advance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = opened()
    with pytest.raises(ExplorerError, match=r"0\.2 MB.*78 tokens.*html\(limit=\d\)"):
        view.html(limit=0.2)
    written = view.save_html(tmp_path / "page.html", limit=10)
    assert written.read_text(encoding="utf-8") == view.html()
