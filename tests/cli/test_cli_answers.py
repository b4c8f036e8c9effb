"""What the commands write and print are the numbers and pictures of the Python API, as text and as JSON."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from PIL import Image
from running import CHURCH, folder

import vitviz
from vitviz.cli.main import main
from vitviz.draw.colorbar import describe_clipped
from vitviz.draw.sheet import card
from vitviz.formatting import percent

Run = Callable[..., str]


@pytest.fixture
def run(model: str, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command on the tiny model; return what it prints."""

    def run_command(command: str, *options: str, model: str = model) -> str:
        capsys.readouterr()
        assert main([command, *options, "--model", model, "--device", "cpu"]) == 0
        return capsys.readouterr().out

    return run_command


def same_picture(path: Path, expected: Image.Image) -> bool:
    with Image.open(path) as drawn:
        return np.array_equal(np.asarray(drawn), np.asarray(expected))


def saved(path: Path) -> np.ndarray:
    with np.load(path) as file:
        return file["values"]


def test_explain_writes_pictures_and_numbers_of_the_same_heatmap(run: Run, view: vitviz.View, tmp_path: Path) -> None:
    look, why = tmp_path / "look.png", tmp_path / "why.npz"
    options = ["--method", "attention", "--layer", "2", "--head", "3", "--query", "7,4", "--grid", "--alpha", "0.7"]
    run("explain", str(CHURCH), *options, "-o", str(look))
    assert same_picture(look, view.attention(1, 2, (6, 3)).overlay(alpha=0.7, grid=True))
    options = ["--method", "rollout", "--fuse", "max", "--discard", "0.5", "--start", "3"]
    run("explain", str(CHURCH), *options, "-o", str(why))
    np.testing.assert_allclose(saved(why), view.rollout(fuse="max", discard=0.5, start=2).values, atol=1e-6)
    options = ["--method", "attn_lrp", "--target", "thing 5", "--rather-than", "7", "--set", "gamma_mlp=0.1"]
    mine = view.explain("attn_lrp", contrast=("thing 5", 7), gamma_mlp=0.1)
    run("explain", str(CHURCH), *options, "-o", str(why))
    np.testing.assert_allclose(saved(why), mine.values, atol=1e-6)
    with np.load(why) as file:
        assert "thing 5 rather than thing 7" in str(file["title"])
    run("explain", str(CHURCH), *options, "-o", str(look))
    assert same_picture(look, mine.overlay())  # in the colours of two signs


def test_explain_says_what_its_colors_leave_out(run: Run, view: vitviz.View, tmp_path: Path) -> None:
    out = tmp_path / "why.png"
    options = ["--method", "attention", "--layer", "3", "--head", "1", "--caption", "--spotlight", "-o", str(out)]
    printed, heatmap = run("explain", str(CHURCH), *options), view.attention(2, 0)
    side, scale = max(view.photo.size), heatmap.scale()
    assert same_picture(out, card(heatmap, side=side, gray=False, alpha=0.5, spotlight=True, grid=False, smooth=False))
    assert scale.clipped  # without the outliers there is little to see
    assert describe_clipped(scale, "attention", float(heatmap.values.max())) in printed
    assert heatmap.scale("full").vmax == heatmap.values.max()


def test_explain_begins_with_the_method_of_the_page(run: Run, view: vitviz.View, model: str, tmp_path: Path) -> None:
    headless = folder(tmp_path / "without", classes=0)
    rollout = vitviz.Explorer(vitviz.load(headless)).open(CHURCH).rollout()
    for source, heatmap in ((model, view.explain("gae")), (headless, rollout)):
        run("explain", str(CHURCH), "-o", str(tmp_path / "why.npz"), model=source)
        np.testing.assert_allclose(saved(tmp_path / "why.npz"), heatmap.values, atol=1e-6)


def test_sheet_shows_heads_or_layers(run: Run, view: vitviz.View, tmp_path: Path) -> None:
    out = tmp_path / "sheet.png"
    run("sheet", str(CHURCH), "--layer", "3", "--query", "mean", "-o", str(out))
    assert same_picture(out, view.head_sheet(2, "mean", cmap="viridis"))
    run("sheet", str(CHURCH), "--dark", "--scale", "both", "--width", "999", "-o", str(out))
    assert same_picture(out, view.layer_sheet(scale="both", dark=True, cmap="viridis", width=999))


def test_export_writes_the_page_that_the_view_gives(run: Run, view: vitviz.View, model: str, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    run("export", str(CHURCH), "-o", str(out))
    same = out.read_text(encoding="utf-8") == view.html()  # a difference of megabytes is not worth showing
    assert same
    wide = tiny.GRID[1] * tiny.PATCH + 2 * tiny.PATCH
    run("export", str(CHURCH), "--html", str(out), "--size", str(wide))
    same = out.read_text(encoding="utf-8") == vitviz.Explorer(model).open(CHURCH, size=wide).html()
    assert same


def test_heads_prints_a_table_or_writes_one(run: Run, view: vitviz.View, tmp_path: Path) -> None:
    printed = run("heads", str(CHURCH), "--statistics", "distance", "entropy")
    assert printed.rstrip() == view.heads(["distance", "entropy"]).table()
    out = tmp_path / "heads.csv"
    run("heads", str(CHURCH), "--query", "cls", "-o", str(out))
    with out.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == view.heads(query="cls").header
    np.testing.assert_allclose(np.array(rows, float), view.heads(query="cls").rows(), rtol=1e-6)


def test_heads_takes_a_folder(run: Run, model: str, tmp_path: Path) -> None:
    for name, shade in (("a", 40), ("b", 200)):
        Image.effect_noise((90, 70), shade).convert("RGB").save(tmp_path / f"{name}.png")
    out, wide = tmp_path / "heads.csv", tiny.GRID[1] * tiny.PATCH + 2 * tiny.PATCH
    assert "2 images" in run("heads", str(tmp_path), "--statistics", "mass_cls", "-o", str(out))
    assert "deviation" in out.read_text(encoding="utf-8").splitlines()[0]
    answer = json.loads(run("heads", str(tmp_path), "--size", str(wide), "--json"))
    assert answer["data"] == {"folder": str(tmp_path), "images": 2}
    assert max(answer["input_size"]) == wide
    views = [vitviz.Explorer(vitviz.load(model)).open(path, size=wide) for path in tmp_path.glob("*.png")]
    mean = np.mean([view.heads(["distance"]).values["distance"] for view in views], axis=0)
    assert [row["distance"] for row in answer["heads"]] == pytest.approx(mean.ravel().tolist())


def test_lens_prints_a_row_for_each_layer(run: Run, view: vitviz.View, tmp_path: Path) -> None:
    out = tmp_path / "not there yet" / "lens.NPZ"
    lines = run("lens", str(CHURCH), "-k", "2", "-o", str(out)).splitlines()
    lens = view.lens(view.best(2))
    assert len(lines) == 1 + view.trace.depth + 1
    for line, shares in zip(lines[1:-1], lens.probabilities[:, list(lens.classes)], strict=True):
        assert re.split(r"\s{2,}", line.strip())[1:] == [percent(share) for share in shares]
    with np.load(out) as file:
        np.testing.assert_allclose(file["colors"], view.token_pca().colors, atol=1e-6)
        assert list(file["names"]) == list(lens.names)


def test_json_is_of_one_shape_for_every_command(run: Run, model: str, view: vitviz.View, tmp_path: Path) -> None:
    def answer(command: str, *options: str) -> dict[str, Any]:
        document = json.loads(run(command, str(CHURCH), "--json", *options))
        assert (document["model"], document["input_size"]) == (model, list(view.size))
        (image,) = document["images"]
        assert (image["photo"], image["input_size"]) == (str(CHURCH), list(view.size))
        return image

    predictions = answer("predict", "-k", "3")["predictions"]
    assert [one["label"] for one in predictions] == [label for label, _ in view.predictions(3)]
    assert [one["probability"] for one in predictions] == pytest.approx([share for _, share in view.predictions(3)])
    mine, picture = view.explain("gae", 3), str(tmp_path / "why.png")
    test = view.faithfulness(mine, 3)[0]
    why = answer("explain", "--method", "gae", "--target", "3", "--test", "-o", picture)
    np.testing.assert_allclose(why["values"], mine.values, atol=1e-6)
    assert why["faithfulness"]["gain"] == pytest.approx(test.gain)
    printed = run("explain", str(CHURCH), "--method", "gae", "--target", "3", "--test", "-o", picture)
    assert test.describe() in printed
    heads = answer("heads", "--statistics", "distance")["heads"]
    places = [(layer, head) for layer in range(1, view.trace.depth + 1) for head in range(1, view.trace.heads + 1)]
    assert [(one["layer"], one["head"]) for one in heads] == places
    assert [one["distance"] for one in heads] == pytest.approx(view.heads(["distance"])["distance"].ravel().tolist())
    last = answer("lens", "-k", "2")["layers"][-1]
    assert last == {"layer": view.trace.depth, "probabilities": pytest.approx(dict(view.predictions(2)))}
    for command, name in (("sheet", "sheet.png"), ("export", "page.html")):
        path = tmp_path / name
        assert answer(command, "-o", str(path))["output"] == str(path)
        assert path.exists()
    for options, names in (("--kind rollout-sheet inside", ("rollout-sheet", "inside")), ("--only shapes", ["shapes"])):
        drawn = answer("figures", *options.split(), "-o", str(tmp_path))["outputs"]
        assert drawn == {name: str(tmp_path / f"{name}.png") for name in names}
        assert all(Image.open(path).width == 1890 or "shapes" in path for path in drawn.values())


@pytest.fixture
def things(tmp_path: Path) -> Path:
    """Two classes with one photograph each."""
    for index in (3, 8):
        inside = tmp_path / "things" / f"thing {index}"
        inside.mkdir(parents=True)
        Image.effect_noise((100, 140), 60 + 10 * index).convert("RGB").save(inside / "one.png")
    return tmp_path / "things"


def test_summary_counts_trainable_parameters_by_layer_for_a_batch(run: Run, model: str) -> None:
    found = json.loads(run("summary", "--batch", "32", "--unfreeze-last", "0", "--json"))
    modules = {row["name"]: row for row in found["modules"]}
    learning = {name: row["trainable"] for name, row in modules.items() if row["trainable"]}
    assert learning == {"head": modules["head"]["parameters"]}
    assert found["trainable"] == learning["head"]
    assert {row["input"][0] for row in modules.values()} == {row["output"][0] for row in modules.values()} == {32}
    printed = run("summary", "--batch", "32", "--unfreeze-last", "0")
    (heading,) = (line.split() for line in printed.splitlines() if line.startswith("module"))
    assert heading == ["module", "kind", "input", "output", "parameters", "trainable", "multiply-adds"]
    (line,) = (line for line in printed.splitlines() if line.startswith("head "))
    assert f"{learning['head']:,}" in line.split()
    assert "for 32 images of" in printed


def test_json_of_a_model_and_of_data(run: Run, model: str, things: Path) -> None:
    answers = {}
    for command, options in {
        "summary": (),
        "validate": ("--data", str(things)),
        "evaluate": ("--data", str(things), "--methods", "rollout"),
    }.items():
        answers[command] = json.loads(run(command, *options, "--json"))
        assert answers[command]["model"] == model
        assert answers[command]["input_size"] == list(vitviz.load(model).config.image_size)
    assert answers["summary"]["parameters"] == sum(one.numel() for one in vitviz.load(model).parameters())
    assert answers["validate"]["data"] == answers["evaluate"]["data"] == {"folder": str(things), "images": 2}
    assert [one["label"] for one in answers["validate"]["classes"]] == ["thing 3", "thing 8"]
    assert {one["method"] for one in answers["evaluate"]["methods"]} == {"rollout", "random"}
    shutil.rmtree(things / "thing 3")
    alone = json.loads(run("evaluate", "--data", str(things), "--methods", "rollout", "--json"))
    assert alone["methods"][0]["errors"]["gain"] is None  # of one image there is none


def test_evaluate_prints_and_writes_a_table(
    run: Run, things: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, table = tmp_path / "results.jsonl", tmp_path / "tables" / "table.md"
    options = ["--data", str(things), "--methods", "rollout", "gae", "--out", str(results)]
    printed = run("evaluate", *options, "--table", str(table))
    assert "no method can be named" in printed  # of two images
    for name in ("rollout", "gae", "random"):
        assert name in printed
        assert f"| {name} |" in table.read_text(encoding="utf-8")
    before, table = results.read_bytes(), table.with_suffix(".csv")
    assert run("evaluate", *options, "--table", str(table)) == printed  # everything is there already
    assert not table.read_text(encoding="utf-8").endswith("\n\n")
    assert results.read_bytes() == before
    assert run("evaluate", *options[:-1], str(tmp_path / "max.jsonl"), "--set", "rollout.fuse=max") != printed
    monkeypatch.setattr("vitviz.evaluation.evaluate.gather", list)
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2")):  # the second of two under torchrun
        monkeypatch.setenv(name, value)
    assert run("evaluate", *options) == ""
