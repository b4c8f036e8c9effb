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
from vitviz.cli.main import main
from vitviz.cli.options import parse_head, parse_query
from vitviz.draw.colorbar import describe_clipped
from vitviz.draw.sheet import card
from vitviz.formatting import percent
from vitviz.weights.zoo import DEFAULT

MODEL = DEFAULT
CHURCH = Path(__file__).parents[2] / "examples" / "church.jpg"


@pytest.fixture(scope="module")
def view() -> vitviz.View:
    return vitviz.Explorer(vitviz.load(MODEL)).open(CHURCH)


def test_predict_prints_the_same_as_python(capsys: pytest.CaptureFixture[str], view: vitviz.View) -> None:
    assert main(["predict", str(CHURCH), "--json", "-k", "3", "--device", "cpu"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["model"], said["input_size"]) == (MODEL, [224, 224])
    (answer,) = said["images"]
    assert answer["input_size"] == list(view.size)  # of as many pixels
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


def test_explain_says_what_its_colors_leave_out(
    tmp_path: Path, view: vitviz.View, capsys: pytest.CaptureFixture[str]
) -> None:
    out, heatmap = tmp_path / "why.png", view.rollout()
    assert main(["explain", str(CHURCH), "--method", "rollout", "--caption", "--spotlight", "-o", str(out)]) == 0
    side = max(view.photo.size)
    mine = card(heatmap, side=side, gray=False, alpha=0.5, spotlight=True, grid=False, smooth=False)
    assert np.array_equal(np.asarray(Image.open(out)), np.asarray(mine))
    scale = heatmap.scale()
    assert scale.clipped  # without the patches that outshine it there is little to see
    assert describe_clipped(scale, "attention", float(heatmap.values.max())) in capsys.readouterr().out
    assert heatmap.scale("full").vmax == heatmap.values.max()


def test_explain_writes_raw_numbers(tmp_path: Path, view: vitviz.View) -> None:
    out = tmp_path / "why.npz"
    options = ["--method", "rollout", "--fuse", "max", "--discard", "0.5", "--start", "3"]
    assert main(["explain", str(CHURCH), *options, "-o", str(out)]) == 0
    mine = view.rollout(fuse="max", discard=0.5, start=2)
    with np.load(out) as saved:
        np.testing.assert_allclose(saved["values"], mine.values, atol=1e-6)


def test_sheet_shows_heads_or_layers(tmp_path: Path, view: vitviz.View) -> None:
    out = tmp_path / "sheet.png"
    assert main(["sheet", str(CHURCH), "--layer", "12", "--query", "mean", "-o", str(out)]) == 0
    assert np.array_equal(np.asarray(Image.open(out)), np.asarray(view.head_sheet(11, "mean", cmap="viridis")))
    assert main(["sheet", str(CHURCH), "--dark", "--scale", "both", "--width", "999", "-o", str(out)]) == 0
    mine = view.layer_sheet(scale="both", dark=True, cmap="viridis", width=999)
    assert np.array_equal(np.asarray(Image.open(out)), np.asarray(mine))


def test_export_writes_the_page_that_the_view_gives(tmp_path: Path, view: vitviz.View) -> None:
    out = tmp_path / "page.html"
    assert main(["export", str(CHURCH), "-o", str(out), "--device", "cpu"]) == 0
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
        (["explain", str(CHURCH), "--method", "rollout", "--query", "1,x"], "1,x"),
        (["explain", str(CHURCH), "--method", "rollout", "--query", "99,1"], "from 1,1 to 13,20, got '99,1'"),
        (["explain", str(CHURCH), "--method", "attention", "--layer", "13"], "13"),
        (["explain", str(CHURCH), "--method", "attention", "--head", "best"], "best"),
        (["explain", str(CHURCH), "--method", "attention", "--head", "7"], "from 1 to 6, or mean, max, min, got 7"),
        (["heads", str(CHURCH), "--query", "0,3"], "'0,3'"),
        (["explain", str(CHURCH), "--method", "rollout", "--discard", "1.5"], "1.5"),
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
    assert parse_query("7,4", (7, 5)) == (6, 3)
    assert parse_query("cls", (7, 5)) == "cls"
    assert parse_head("3", 3) == 2
    assert parse_head("max", 3) == "max"
    for bad in ("0,1", "1,0", "8,5", "7,6"):
        with pytest.raises(ValueError, match="from 1,1 to 7,5"):
            parse_query(bad, (7, 5))
    for bad in ("0", "4", "-1"):
        with pytest.raises(ValueError, match="from 1 to 3"):
            parse_head(bad, 3)


def test_summary_models_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    assert MODEL in capsys.readouterr().out
    assert main(["summary"]) == 0
    assert "22,2" in capsys.readouterr().out  # ViT-S and 264 classes: 22.2 million


TYPOS = {
    "predikt": "'predict'",
    "predict --jsn x.jpg": "--json",
    "train --recipee x": "--recipe",
    "explain --metod x": "--method",
}


def test_help_version_and_typos_do_not_wait_for_torch() -> None:
    arguments = [["--help"], ["--version"], *(typo.split() for typo in TYPOS)]
    code = f"""
import sys, time
from vitviz.cli.main import main
print([main(each) for each in {arguments!r}])
print(sorted({{"torch", "numpy", "matplotlib", "gradio"}} & set(sys.modules)), time.process_time())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    codes, imported = done.stdout.splitlines()[-2:]
    assert codes == str([0, 0, *[2] * len(TYPOS)])
    assert imported.startswith("[] ")
    assert float(imported.removeprefix("[] ")) < 0.5  # of the processor, whatever else the machine does
    assert all(meant in done.stderr for meant in TYPOS.values())  # each is told what there is
    assert all(f"  {name} " in done.stdout for name in ("predict", "explain", "validate", "app"))


def test_a_shell_completes_commands_options_and_names() -> None:
    def completed(line: str) -> str:
        words = {"_VITVIZ_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
        command = [sys.executable, "-m", "vitviz"]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **words}, check=True)
        return done.stdout

    assert completed("vitviz val").split() == ["plain,validate"]
    assert completed("vitviz predict --js").split() == ["plain,--json"]
    assert completed("vitviz explain --method attn_l").split() == ["plain,attn_lrp"]


def test_ctrl_c_ends_with_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt() -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr("vitviz.weights.zoo.bundled", interrupt)
    assert main(["models"]) == 130
    assert capsys.readouterr().err == "\nvitviz: interrupted\n"


@pytest.mark.parametrize("imported", ["click", "torch"])
def test_ctrl_c_while_libraries_are_imported(imported: str, tmp_path: Path) -> None:
    (tmp_path / f"{imported}.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-m", "vitviz", "summary"]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert (done.returncode, done.stderr) == (130, "\nvitviz: interrupted\n")


@pytest.mark.parametrize("command", ["predict x.jpg", "train --out x", "app"])
def test_an_unknown_option_is_refused_by_its_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--colour", "red"]) == 2
    said = capsys.readouterr().err
    assert f"vitviz {command.split()[0]} --help" in said
    assert "--colour" in said.splitlines()[-1]


@pytest.mark.parametrize(
    "arguments",
    [
        ["explain", "-o", "FILE/why.png"],
        ["explain", "-o", "folder.png"],
        ["sheet", "-o", "FILE/sheet.png"],
        ["export", "-o", "FILE/page.html"],
        ["predict", "-o", "FILE"],
        ["figures", "-o", "FILE/figures"],
        ["heads", "-o", "FILE/heads.csv"],
        ["lens", "-o", "FILE/lens.npz"],
        ["evaluate", "--data", ".", "--out", "FILE/some.jsonl"],
        ["evaluate", "--data", ".", "--table", "FILE/table.md"],
        ["validate", "--data", ".", "--confusion", "FILE/confusion.csv"],
        ["export", "--static", "FILE"],
        ["train", "--data", ".", "--preset", "tiny", "--out", "FILE"],
    ],
)
def test_a_bad_output_is_refused_before_a_model_is_loaded(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(*_: object, **__: object) -> None:
        raise AssertionError("the model is loaded")

    monkeypatch.setattr("vitviz.weights.zoo.load", load)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("a file")
    (tmp_path / "folder.png").mkdir()
    takes_photo = arguments[1].startswith("-o")
    assert main([*arguments, *([str(CHURCH)] if takes_photo else [])]) == 2
    said = capsys.readouterr().err
    assert said.startswith("vitviz: Expected ")
    assert "got" in said
    assert said.count("\n") == 1
    assert (tmp_path / "FILE").read_text() == "a file"
