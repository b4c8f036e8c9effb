"""The commands that ask a model about itself: the same answers as the API, and refusals in words."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from PIL import Image
from running import CHURCH, folder

import vitviz
from vitviz.cli.main import main
from vitviz.formatting import percent


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model as a folder; its classes are thing 0, thing 1, ..."""
    return folder(tmp_path_factory.mktemp("models") / "tiny", registers=2)


@pytest.fixture(scope="module")
def view(model: str) -> vitviz.View:
    return vitviz.Explorer(vitviz.load(model)).open(CHURCH)


def run(command: str, model: str, *more: str) -> int:
    return main([command, *more, "--model", model, "--device", "cpu"])


def test_explain_takes_every_method_and_a_class(model: str, view: vitviz.View, tmp_path: Path) -> None:
    out = tmp_path / "why.npz"
    options = ["--method", "attn_lrp", "--target", "thing 5", "--rather-than", "7", "--set", "gamma_mlp=0.1"]
    assert run("explain", model, str(CHURCH), *options, "-o", str(out)) == 0
    mine = view.explain("attn_lrp", contrast=("thing 5", 7), gamma_mlp=0.1)
    with np.load(out) as saved:
        np.testing.assert_allclose(saved["values"], mine.values, atol=1e-6)
        assert "thing 5 rather than thing 7" in str(saved["title"])
    signed = tmp_path / "signed.png"
    assert run("explain", model, str(CHURCH), *options, "-o", str(signed)) == 0
    with Image.open(signed) as drawn:  # in the colours of two signs
        np.testing.assert_array_equal(np.asarray(drawn), np.asarray(mine.overlay()))
    picture = tmp_path / "why.png"
    assert run("explain", model, str(CHURCH), "--method", "gae", "-o", str(picture)) == 0
    assert Image.open(picture).size == view.photo.size


def test_explain_begins_with_the_method_of_the_page(view: vitviz.View, model: str, tmp_path: Path) -> None:
    without = folder(tmp_path / "without", classes=0)
    for name, source, values in (
        ("classes", model, view.explain("gae").values),
        ("none", without, vitviz.Explorer(vitviz.load(without)).open(CHURCH).rollout().values),
    ):
        assert run("explain", source, str(CHURCH), "-o", str(tmp_path / f"{name}.npz")) == 0
        with np.load(tmp_path / f"{name}.npz") as saved:
            np.testing.assert_allclose(saved["values"], values, atol=1e-6)


def test_explain_says_whether_it_is_true(
    model: str, view: vitviz.View, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--method", "gae", "--target", "3", "--test", "-o", str(tmp_path / "why.png")]
    assert run("explain", model, str(CHURCH), *options) == 0
    assert view.faithfulness(view.explain("gae", 3), 3)[0].describe() in capsys.readouterr().out


def test_heads_prints_a_table_or_writes_one(
    model: str, view: vitviz.View, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("heads", model, str(CHURCH), "--statistics", "distance", "entropy") == 0
    assert capsys.readouterr().out.rstrip() == view.heads(["distance", "entropy"]).table()
    out = tmp_path / "heads.csv"
    assert run("heads", model, str(CHURCH), "--query", "cls", "-o", str(out)) == 0
    with out.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    expected = view.heads(query="cls")
    assert rows[0] == expected.header
    np.testing.assert_allclose(np.array(rows[1:], float), expected.rows(), rtol=1e-6)


def test_heads_takes_a_folder(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, shade in (("a", 40), ("b", 200)):
        Image.effect_noise((90, 70), shade).convert("RGB").save(tmp_path / f"{name}.png")
    out = tmp_path / "heads.csv"
    assert run("heads", model, str(tmp_path), "--statistics", "mass_cls", "-o", str(out)) == 0
    assert "2 images" in capsys.readouterr().out
    assert "deviation" in out.read_text(encoding="utf-8").splitlines()[0]
    patch, width = tiny.PATCH, tiny.GRID[1] * tiny.PATCH
    assert run("heads", model, str(tmp_path), "--size", str(width + 2 * patch), "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["data"] == {"folder": str(tmp_path), "images": 2}
    assert max(said["input_size"]) == width + 2 * patch
    views = [vitviz.Explorer(vitviz.load(model)).open(path, size=width + 2 * patch) for path in tmp_path.glob("*.png")]
    mean = np.mean([view.heads(["distance"]).values["distance"] for view in views], axis=0)
    assert [one["distance"] for one in said["heads"]] == pytest.approx(mean.ravel().tolist())


def test_json_is_of_one_shape_for_every_command(
    model: str, view: vitviz.View, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(command: str, *options: str) -> dict[str, Any]:
        assert run(command, model, str(CHURCH), "--json", *options) == 0
        document = json.loads(capsys.readouterr().out)
        assert (document["model"], document["input_size"]) == (model, list(view.size))
        (image,) = document["images"]
        assert (image["photo"], image["input_size"]) == (str(CHURCH), list(view.size))
        return image

    why = said("explain", "--method", "gae", "--target", "3", "--test", "-o", str(tmp_path / "why.png"))
    mine = view.explain("gae", 3)
    np.testing.assert_allclose(why["values"], mine.values, atol=1e-6)
    test = view.faithfulness(mine, 3)[0]
    assert why["faithfulness"]["gain"] == pytest.approx(test.gain)
    heads = said("heads", "--statistics", "distance")["heads"]
    places = [(layer, head) for layer in range(1, view.trace.depth + 1) for head in range(1, view.trace.heads + 1)]
    assert [(one["layer"], one["head"]) for one in heads] == places
    assert [one["distance"] for one in heads] == pytest.approx(view.heads(["distance"])["distance"].ravel().tolist())
    last = said("lens", "-k", "2")["layers"][-1]
    assert last == {"layer": view.trace.depth, "probabilities": pytest.approx(dict(view.predictions(2)))}
    for command, name in (("sheet", "sheet.png"), ("export", "page.html")):
        path = tmp_path / name
        assert said(command, "-o", str(path))["output"] == str(path)
        assert path.exists()
    drawn = said("figures", "--kind", "rollout-sheet", "inside", "-o", str(tmp_path))["outputs"]
    assert drawn == {name: str(tmp_path / f"{name}.png") for name in ("rollout-sheet", "inside")}
    assert all(Image.open(path).width == 1890 for path in drawn.values())
    drawn = said("figures", "--only", "shapes", "-o", str(tmp_path))["outputs"]
    assert drawn == {"shapes": str(tmp_path / "shapes.png")}


def test_json_of_a_model_and_of_data(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inside = tmp_path / "thing 3"
    inside.mkdir()
    Image.effect_noise((100, 140), 60).convert("RGB").save(inside / "one.png")
    height, width = vitviz.load(model).config.image_size
    found = {}
    for command, options in {
        "summary": [],
        "validate": ["--data", str(tmp_path)],
        "evaluate": ["--data", str(tmp_path), "--methods", "rollout"],
    }.items():
        assert run(command, model, *options, "--json") == 0
        found[command] = json.loads(capsys.readouterr().out)
        assert (found[command]["model"], found[command]["input_size"]) == (model, [height, width])
    assert found["summary"]["parameters"] == sum(one.numel() for one in vitviz.load(model).parameters())
    assert found["validate"]["data"] == found["evaluate"]["data"] == {"folder": str(tmp_path), "images": 1}
    assert found["validate"]["classes"][0]["label"] == "thing 3"
    assert {one["method"] for one in found["evaluate"]["methods"]} == {"rollout", "random"}
    assert found["evaluate"]["methods"][0]["errors"]["gain"] is None  # of one image there is none


def test_lens_prints_a_row_for_each_layer(
    model: str, view: vitviz.View, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "not there yet" / "lens.NPZ"
    assert run("lens", model, str(CHURCH), "-k", "2", "-o", str(out)) == 0
    lines = capsys.readouterr().out.splitlines()
    read = view.lens(view.best(2))
    assert len(lines) == 1 + view.trace.depth + 1
    for line, shares in zip(lines[1:-1], read.probabilities[:, list(read.classes)], strict=True):
        assert re.split(r"\s{2,}", line.strip())[1:] == [percent(share) for share in shares]
    with np.load(out) as saved:
        np.testing.assert_allclose(saved["colors"], view.token_pca().colors, atol=1e-6)
        assert list(saved["names"]) == list(read.names)


def test_evaluate_prints_and_writes_a_table(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in (3, 8):
        inside = tmp_path / "data" / f"thing {index}"
        inside.mkdir(parents=True)
        Image.effect_noise((100, 140), 60 + 10 * index).convert("RGB").save(inside / "one.png")
    results, table = tmp_path / "results.jsonl", tmp_path / "tables" / "table.md"
    options = ["--data", str(tmp_path / "data"), "--methods", "rollout", "gae", "--out", str(results)]
    assert run("evaluate", model, *options, "--table", str(table)) == 0
    said = capsys.readouterr().out
    assert "no method can be named" in said  # of two images
    for name in ("rollout", "gae", "random"):
        assert name in said
        assert f"| {name} |" in table.read_text(encoding="utf-8")
    before = results.read_bytes()
    table = table.with_suffix(".csv")
    assert run("evaluate", model, *options, "--table", str(table)) == 0  # everything is there already
    assert not table.read_text(encoding="utf-8").endswith("\n\n")
    assert capsys.readouterr().out == said
    assert results.read_bytes() == before
    with_max = [*options[:-1], str(tmp_path / "max.jsonl"), "--set", "rollout.fuse=max"]
    assert run("evaluate", model, *with_max) == 0
    assert capsys.readouterr().out != said
    monkeypatch.setattr("vitviz.evaluation.evaluate.gather", list)
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2")):  # the second of two under torchrun
        monkeypatch.setenv(name, value)
    assert run("evaluate", model, *options) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["explain", str(CHURCH), "--method", "gae", "--target", "zebra"], "zebra"),
        (["explain", str(CHURCH), "--method", "gae", "--target", "2", "--rather-than", "2"], "different"),
        (["explain", str(CHURCH), "--method", "gae", "--set", "speed=2"], "speed"),
        (["explain", str(CHURCH), "--method", "gae", "--set", "speed"], "NAME=VALUE"),
        (["explain", str(CHURCH), "--method", "rollout", "--set", "fuse=max"], "--set"),
        (["explain", str(CHURCH), "--layer", "2"], "--method attention"),
        (["explain", str(CHURCH), "--method", "gae", "--query", "7,4"], "--query"),
        (["explain", str(CHURCH), "--method", "rollout", "--target", "thing 3"], "every class"),
        (["explain", str(CHURCH), "--method", "legrad", "--set", "start=soon"], "whole number"),
        (["explain", str(CHURCH), "--method", "legrad", "--start", "0"], "--start from 1 to"),
        (["explain", str(CHURCH), "--method", "gae", "--set", "target=3"], "got target"),
        (["explain", str(CHURCH), "--method", "gae", "--set", "trace=1"], "got trace"),
        (["explain", str(CHURCH), "--method", "attention_gradcam", "--layer", "2", "--set", "block=1"], "--set block"),
        (["explain", str(CHURCH), "--method", "token_gradcam", "--set", "block={}"], "Expected a block"),
        (["explain", str(CHURCH), "--method", "attn_lrp", "--set", "conserve=False"], "true or false"),
        (["lens", str(CHURCH), "-k", "0"], "-k"),
        (["lens", str(CHURCH), "-k", "-1"], "-k"),
        (["heads", str(CHURCH), "-o", "heads.txt"], ".csv"),
        (["heads", "nowhere.jpg"], "nowhere.jpg"),
        (["lens", str(CHURCH), "-o", "lens.png"], ".npz"),
        (["evaluate", "--data", "nowhere"], "nowhere"),
        (["evaluate", "--data", ".", "--table", "table.pdf"], "--table"),
        (["evaluate", "--data", ".", "--set", "fuse=max"], "METHOD.NAME=VALUE"),
        (["evaluate", "--data", ".", "--methods", "gae", "--set", "rollout.fuse=max"], "rollout.fuse"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    arguments: list[str],
    named: str,
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)  # what is written all the same does not lie about
    assert run(arguments[0], model, *arguments[1:]) == 2
    said = capsys.readouterr().err
    assert named in said
    assert said.startswith("vitviz: ")
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())
