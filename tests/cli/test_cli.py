"""The command line: the same answers as the API, and refusals in words."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitviz
from vitviz.cli.main import build_parser, main
from vitviz.cli.options import parse_head, parse_query
from vitviz.formatting import percent
from vitviz.weights.zoo import DEFAULT

MODEL = DEFAULT
CHURCH = Path(__file__).parents[2] / "examples" / "church.jpg"


@pytest.fixture(scope="module")
def view() -> vitviz.View:
    return vitviz.Explorer(vitviz.load(MODEL)).open(CHURCH)


def test_predict_prints_the_same_as_python(capsys: pytest.CaptureFixture[str], view: vitviz.View) -> None:
    assert main(["predict", str(CHURCH), "--json", "-k", "3", "--device", "cpu"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [p["label"] for p in answer["predictions"]] == [label for label, _ in view.predictions(3)]
    assert [p["probability"] for p in answer["predictions"]] == pytest.approx([p for _, p in view.predictions(3)])
    assert main(["predict", str(CHURCH), "--device", "cpu"]) == 0
    assert re.search(rf"^ +{percent(view.predictions(1)[0][1])} +church$", capsys.readouterr().out, re.MULTILINE)


def test_explain_writes_the_picture_of_the_same_heatmap(tmp_path: Path, view: vitviz.View) -> None:
    out = tmp_path / "look.png"
    options = ["--method", "attention", "--layer", "12", "--head", "3", "--query", "7,4", "--grid", "--alpha", "0.7"]
    assert main(["explain", str(CHURCH), *options, "-o", str(out), "--device", "cpu"]) == 0
    mine = view.attention(11, 2, (6, 3)).overlay(alpha=0.7, grid=True)
    assert np.array_equal(np.asarray(Image.open(out)), np.asarray(mine))


def test_explain_writes_raw_numbers(tmp_path: Path, view: vitviz.View) -> None:
    out = tmp_path / "why.npz"
    assert main(["explain", str(CHURCH), "--fuse", "max", "--discard", "0.5", "--start", "3", "-o", str(out)]) == 0
    mine = view.rollout(fuse="max", discard=0.5, start=2)
    with np.load(out) as saved:
        np.testing.assert_allclose(saved["values"], mine.values, atol=1e-6)


def test_sheet_shows_heads_or_layers(tmp_path: Path, view: vitviz.View) -> None:
    out = tmp_path / "sheet.png"
    assert main(["sheet", str(CHURCH), "--layer", "12", "--query", "mean", "-o", str(out)]) == 0
    assert np.array_equal(np.asarray(Image.open(out)), np.asarray(view.head_sheet(11, "mean", cmap="viridis")))
    assert main(["sheet", str(CHURCH), "--dark", "--scale", "each", "-o", str(out)]) == 0
    mine = view.layer_sheet(scale="each", dark=True, cmap="viridis")
    assert np.array_equal(np.asarray(Image.open(out)), np.asarray(mine))


def test_export_writes_the_page_that_the_view_gives(tmp_path: Path, view: vitviz.View) -> None:
    out = tmp_path / "page.html"
    assert main(["export", str(CHURCH), "--html", str(out), "--device", "cpu"]) == 0
    page = out.read_text(encoding="utf-8")
    same = page == view.html()  # a difference of megabytes is not worth showing
    assert same
    assert out.stat().st_size < 8e6
    small = tmp_path / "small.html"
    assert main(["export", str(CHURCH), "--html", str(small), "--size", "112"]) == 0
    assert small.stat().st_size < out.stat().st_size / 2


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["predict", "nowhere.jpg"], "nowhere.jpg"),
        (["export", str(CHURCH), "--html", "page.png"], "page.png"),
        (["predict", str(Path(__file__))], "test_cli.py"),
        (["predict", str(CHURCH), "--model", "swin"], "swin"),
        (["explain", str(CHURCH), "--query", "1,x"], "1,x"),
        (["explain", str(CHURCH), "--query", "99,1"], "98"),
        (["explain", str(CHURCH), "--method", "attention", "--layer", "13"], "13"),
        (["explain", str(CHURCH), "--method", "attention", "--head", "best"], "best"),
        (["explain", str(CHURCH), "--discard", "1.5"], "1.5"),
        (["explain", str(CHURCH), "-o", "why.xyz"], "why.xyz"),
        (["sheet", str(CHURCH), "--layer", "0"], "0"),
        (["explain", str(CHURCH), "-o", "/dev/null/why.png"], "/dev/null"),
        (["explain", str(CHURCH), "--cmap", "rainbows"], "rainbows"),
        (["predict", str(CHURCH), "--device", "abacus"], "abacus"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert named in said
    assert said.startswith("vitviz: ")
    assert "Traceback" not in said


def test_names_without_letters_for_them_end_no_work(tmp_path: Path) -> None:
    photo = tmp_path / "naïve ×.jpg"
    shutil.copy(CHURCH, photo)
    command = [sys.executable, "-m", "vitviz", "predict", str(photo), "-k", "1"]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, check=True)
    assert rb"na\xefve \xd7.jpg" in done.stdout
    assert b"church" in done.stdout


def test_who_reads_no_further_gets_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as shut:
        done = subprocess.run(
            [sys.executable, "-m", "vitviz", "models"], stdout=shut, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (1, b"")


def test_people_count_from_one() -> None:
    assert parse_query("7,4") == (6, 3)
    assert parse_query("cls") == "cls"
    assert parse_head("1") == 0
    assert parse_head("max") == "max"
    for bad in ("0,1", "1,0"):
        with pytest.raises(ValueError, match="counted from 1"):
            parse_query(bad)
    with pytest.raises(ValueError, match="number from 1"):
        parse_head("0")


def test_summary_models_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    assert MODEL in capsys.readouterr().out
    assert main(["summary"]) == 0
    assert "22,2" in capsys.readouterr().out  # ViT-S and 264 classes: 22.2 million
    assert all(word in build_parser().format_help() for word in ("predict", "explain", "validate", "app"))


def test_help_version_and_typos_do_not_wait_for_torch() -> None:
    code = """
import sys
from vitviz.cli.main import main
for arguments in (["--help"], ["--version"], ["predikt"]):
    try:
        main(arguments)
    except SystemExit as ended:
        print(ended.code)
print(sorted({"torch", "numpy", "matplotlib", "gradio"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [line for line in done.stdout.splitlines() if line in {"0", "2", "[]"}] == ["0", "0", "2", "[]"]
    assert "invalid choice: 'predikt'" in done.stderr


def test_ctrl_c_ends_with_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt() -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr("vitviz.cli.models.bundled", interrupt)
    assert main(["models"]) == 130
    assert capsys.readouterr().err == "\nvitviz: interrupted\n"


@pytest.mark.parametrize("command", ["predict x.jpg", "train --out x", "app"])
def test_an_unknown_option_is_refused_by_its_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--colour", "red"])
    name = f"vitviz {command.split()[0]}"
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith(f"usage: {name} ")
    assert "--colour red" in said.splitlines()[-1]
