"""The command line as a program: exit codes, refusals in one line, help, completion, Ctrl-C."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from running import CHURCH

from vitviz.cli.commands import vitviz as vitviz_command
from vitviz.cli.main import main
from vitviz.cli.options import parse_head, parse_query
from vitviz.weights.catalog import CATALOG
from vitviz.weights.zoo import bundled


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


def test_without_a_model_the_bundled_one_answers(capsys: pytest.CaptureFixture[str]) -> None:
    for command, answer in (("summary", "22,2"), (f"predict {CHURCH} -k 1", "church")):
        assert main(command.split()) == 0
        assert answer in capsys.readouterr().out  # ViT-S and 264 classes: 22.2 million parameters
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[: len(bundled())] == bundled()
    assert all(any(one.source in line and one.licence in line for line in lines) for one in CATALOG)


# ---- refusals

# A command, where PHOTO is a photograph, and what its error names.
REFUSED = {
    "predict nowhere.jpg": "nowhere.jpg",
    f"predict {__file__}": "test_cli.py",
    "predict PHOTO --model swin": "swin",
    "predict PHOTO --device abacus": "abacus",
    "predict PHOTO --colour red": "--colour",
    "export PHOTO --html page.png": "page.png",
    "explain PHOTO --method rollout --query 1,x": "1,x",
    "explain PHOTO --method attention --layer 13": "13",
    "explain PHOTO --method attention --head best": "best",
    "explain PHOTO --method attention --head 7": "from 1 to 5, or mean, max, min, got 7",
    "explain PHOTO --method rollout --discard 1.5": "1.5",
    "explain PHOTO -o why.xyz": "why.xyz",
    "explain PHOTO -o /dev/null/why.png": "/dev/null",
    "explain PHOTO --cmap rainbows": "rainbows",
    "explain PHOTO --method gae --target zebra": "zebra",
    "explain PHOTO --method gae --target 2 --rather-than 2": "different",
    "explain PHOTO --method gae --set speed=2": "speed",
    "explain PHOTO --method gae --set speed": "NAME=VALUE",
    "explain PHOTO --method rollout --set fuse=max": "--set",
    "explain PHOTO --layer 2": "--method attention",
    "explain PHOTO --method gae --query 7,4": "--query",
    "explain PHOTO --method rollout --target 3": "every class",
    "explain PHOTO --method legrad --set start=soon": "whole number",
    "explain PHOTO --method legrad --start 0": "--start from 1 to",
    "explain PHOTO --method gae --set target=3": "got target",
    "explain PHOTO --method gae --set trace=1": "got trace",
    "explain PHOTO --method attention_gradcam --layer 2 --set block=1": "--set block",
    "explain PHOTO --method token_gradcam --set block={}": "Expected a block",
    "explain PHOTO --method attn_lrp --set conserve=False": "true or false",
    "heads PHOTO --query 0,3": "'0,3'",
    "heads PHOTO -o heads.txt": ".csv",
    "heads nowhere.jpg": "nowhere.jpg",
    "sheet PHOTO --layer 0": "0",
    "lens PHOTO -k 0": "-k",
    "lens PHOTO -o lens.png": ".npz",
    "figures PHOTO --only poster": "poster",
    "figures PHOTO --filters 0": "at least 1",
    "figures PHOTO --size 3": "one patch",
    "figures PHOTO --format gif": "gif",
    "figures nobody.jpg": "nobody.jpg",
    "film PHOTO -o film.avi": "film.avi",
    "film PHOTO --show similarity": "clip",
    "film PHOTO --seconds 0": "seconds",
    "film PHOTO --models vit-cifar10": "2 to",
    "replay PHOTO": "church.jpg",
    "replay nowhere.npz": "nowhere.npz",
    "evaluate --data nowhere": "nowhere",
    "evaluate --data . --table table.pdf": "--table",
    "evaluate --data . --set fuse=max": "METHOD.NAME=VALUE",
    "evaluate --data . --methods gae --set rollout.fuse=max": "rollout.fuse",
    "predikt x.jpg": "'predict'",
    "predict --jsn x.jpg": "--json",
    "train --recipee x": "--recipe",
    "explain --metod x": "--method",
}
ON_THE_MODEL = ("explain", "heads", "sheet", "lens", "figures", "film", "evaluate")


@pytest.mark.parametrize("command", REFUSED)
def test_bad_input_is_one_line_and_exit_2(
    command: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [str(CHURCH) if word == "PHOTO" else word for word in command.split()]
    if arguments[0] in ON_THE_MODEL and "--metod" not in command:
        arguments += ["--model", model, "--device", "cpu"]
    assert main(arguments) == 2
    *before, last = capsys.readouterr().err.splitlines()
    assert REFUSED[command] in last
    if before:  # refused by click
        assert last.startswith("Error: ")
        assert "--help" in "".join(before)
    else:
        assert last.startswith("vitviz: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command",
    [
        "explain PHOTO -o FILE/why.png", "explain PHOTO -o folder.png", "sheet PHOTO -o FILE/sheet.png",
        "export PHOTO -o FILE/page.html", "predict PHOTO -o FILE", "figures PHOTO -o FILE/figures",
        "heads PHOTO -o FILE/heads.csv", "lens PHOTO -o FILE/lens.npz", "evaluate --data . --out FILE/some.jsonl",
        "evaluate --data . --table FILE/table.md", "validate --data . --confusion FILE/confusion.csv",
        "export --static FILE", "train --data . --preset tiny --out FILE",
    ],
)  # fmt: skip
def test_a_bad_output_is_refused_before_a_model_is_loaded(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vitviz.weights.zoo.load", lambda *_, **__: pytest.fail("the model is loaded"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("a file")
    (tmp_path / "folder.png").mkdir()
    assert main(command.replace("PHOTO", str(CHURCH)).split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("vitviz: Expected ")
    assert "got" in error
    assert error.count("\n") == 1
    assert (tmp_path / "FILE").read_text() == "a file"


# ---- a program among others


@pytest.mark.parametrize("imported", ["click", "torch"])
def test_ctrl_c_while_libraries_are_imported(imported: str, tmp_path: Path) -> None:
    (tmp_path / f"{imported}.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-m", "vitviz", "summary"]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert (done.returncode, done.stderr) == (130, "\nvitviz: interrupted\n")


def test_help_version_and_typos_do_not_import_torch() -> None:
    arguments = [["--help"], ["--version"], *(command.split() for command in list(REFUSED)[-4:])]
    code = f"""
import sys
from vitviz.cli.main import main
print([main(each) for each in {arguments!r}])
print(sorted({{"torch", "numpy", "matplotlib", "gradio"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["[0, 0, 2, 2, 2, 2]", "[]"]
    assert all(f"  {name} " in done.stdout for name in ("predict", "explain", "validate", "app"))


def test_the_program_writes_names_that_its_output_cannot_encode(model: str, tmp_path: Path) -> None:
    photo = tmp_path / "naïve ×.jpg"
    shutil.copy(CHURCH, photo)
    command = [sys.executable, "-m", "vitviz", "predict", str(photo), "-k", "1", "--model", model]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, check=True)
    assert rb"na\xefve \xd7.jpg" in done.stdout
    assert b"thing" in done.stdout


def test_a_reader_that_closes_the_pipe_causes_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "vitviz", "--help"]
    with os.fdopen(writer, "wb") as shut:
        done = subprocess.run(command, stdout=shut, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize(
    ("line", "completed"),
    [("vitviz val", "validate"), ("vitviz predict --js", "--json"), ("vitviz explain --method attn_l", "attn_lrp")],
)
def test_a_shell_completes_commands_options_and_names(line: str, completed: str) -> None:
    words = {"_VITVIZ_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    result = CliRunner().invoke(vitviz_command, env=words, prog_name="vitviz")
    assert result.output.split() == [f"plain,{completed}"]
