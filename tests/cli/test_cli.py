"""Test the command line as a program; its commands write the same numbers and pictures as the Python API."""

import csv
import functools
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import data_files
import numpy as np
import pytest
import tiny
from click.testing import CliRunner
from PIL import Image
from running import CHURCH, folder
from safetensors.torch import save_file

import vitviz
from vitviz import Group, Similarity
from vitviz.analysis.pca_basis import PCABasis, fit_pca
from vitviz.cli import predict
from vitviz.cli.commands import vitviz as vitviz_command
from vitviz.cli.main import main
from vitviz.cli.options import parse_head, parse_query
from vitviz.cli.predict import find_photos
from vitviz.draw.colorbar import describe_clipped
from vitviz.draw.sheet import card
from vitviz.evaluation.arena import arena
from vitviz.evaluation.evaluate import evaluate
from vitviz.formatting import percent
from vitviz.weights.catalog import CATALOG
from vitviz.weights.zoo import bundled

Run = Callable[..., str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a tiny model with two registers; its classes are thing 0, thing 1, ..."""
    return folder(tmp_path_factory.mktemp("models") / "tiny", registers=2)


@pytest.fixture(scope="module")
def view(model: str) -> vitviz.View:
    return vitviz.Explorer(vitviz.load(model)).open(CHURCH)


@pytest.fixture
def run(model: str, shell: Run) -> Run:
    """Run a command on the tiny model or another, and return its output."""
    return lambda command, *words, model=model, code=0: shell(
        command, *words, "--model", model, "--device", "cpu", code=code
    )


def test_queries_and_heads_count_from_one() -> None:
    assert parse_query("7,4", (7, 5)) == (6, 3)
    assert parse_query("cls", (7, 5)) == "cls"
    assert parse_head("3", 3) == 2
    assert parse_head("max", 3) == "max"
    for bad in ("0,1", "1,0", "8,5", "7,6"):
        with pytest.raises(ValueError, match="from 1,1 to 7,5"):
            parse_query(bad, (7, 5))
    for bad in ("0", "4", "-1", "best"):
        with pytest.raises(ValueError, match="from 1 to 3"):
            parse_head(bad, 3)


def test_default_model_is_the_bundled_one(capsys: pytest.CaptureFixture[str]) -> None:
    for command, answer in (("summary", "22,2"), (f"predict {CHURCH} -k 1", "church")):
        assert main(command.split()) == 0
        assert answer in capsys.readouterr().out  # ViT-S and 264 classes: 22.2 million parameters
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[: len(bundled())] == bundled()
    assert all(any(entry.source in line and entry.licence in line for line in lines) for entry in CATALOG)


# Command -> part of its error message. PHOTO stands for a photograph.
REFUSED = {
    "predict nowhere.jpg": "nowhere.jpg",
    "predict PHOTO --colour red": "--colour",
    "export PHOTO --html page.png": "page.png",
    "explain PHOTO --method rollout --query 1,x": "1,x",
    "explain PHOTO --method attention --layer 13": "13",
    "explain PHOTO --method attention --head 7": "from 1 to 5, or mean, max, min, got 7",
    "explain PHOTO -o why.xyz": "why.xyz",
    "explain PHOTO --method gae --set speed": "NAME=VALUE",
    "explain PHOTO --method rollout --fuse max --set fuse=max": "--set fuse",
    "explain PHOTO --layer 2": "--method attention",
    "explain PHOTO --method gae --query 7,4": "--query",
    "explain PHOTO --method rollout --target 3": "every target",
    "explain PHOTO --target direction:nowhere.npy": "nowhere.npy",
    "explain PHOTO --target group:3,3": "twice",
    "evidence PHOTO --keep 2": "keep above 0",
    "evidence PHOTO -o why.csv": "why.csv",
    "audit nowhere": "nowhere",
    "heads . --rather-than 3": "--target",
    "explain PHOTO --method legrad --start 0": "--start from 1 to",
    "explain PHOTO --method gae --set target=3": "got target",
    "explain PHOTO --method attention_gradcam --layer 2 --set block=1": "--set block",
    "explain PHOTO --method attn_lrp --set conserve=False": "true or false",
    "heads PHOTO --query 0,3": "'0,3'",
    "heads PHOTO -o heads.txt": ".csv",
    "sheet PHOTO --layer 0": "0",
    "lens PHOTO -k 0": "-k",
    "lens PHOTO -o lens.png": ".npz",
    "components PHOTO -o out --basis nowhere.npz": "nowhere.npz",
    "components PHOTO -o out --basis nowhere.npz --layer 2": "--basis alone",
    "figures PHOTO --only poster": "poster",
    "figures PHOTO --filters 0": "at least 1",
    "figures PHOTO --format gif": "gif",
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
    "train --out out": "--data",
    "train --out out --resume": "no state was saved yet",
    "train --out out --data .": "--preset",
    "train --out out --data nowhere --preset tiny": "nowhere",
    "train --out out --data . --preset tiny --from z": "--preset",
    "train --out out --data . --preset tiny --image-size 1 2 3": "--image-size",
    "export": "Expected one photograph and one model, or --static DIR",
    "export a.jpg --static site": "Expected --static alone, got a.jpg too",
    "export --static site --labels names.txt": "Expected --static with unchanged models, got --labels",
    "export a.jpg --space": "Expected one photograph and one model",
    "export a.jpg --texts texts": "Expected --texts with --lecture or --static",
    "export a.jpg --model a --model b": "Expected one photograph and one model",
    "predikt x.jpg": "'predict'",
    "predict --jsn x.jpg": "--json",
    "train --recipee x": "--recipe",
    "explain --metod x": "--method",
}
ON_THE_MODEL = ("explain", "evidence", "heads", "sheet", "lens", "figures", "film", "evaluate")


@pytest.mark.parametrize("command", REFUSED)
def test_bad_input_prints_one_line_and_exits_with_2(
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
        "components PHOTO -o FILE", "export --static FILE", "train --data . --preset tiny --out FILE",
    ],
)  # fmt: skip
def test_unwritable_output_is_refused_before_loading_a_model(
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


@pytest.mark.parametrize("imported", ["click", "torch"])
def test_ctrl_c_during_imports_exits_with_130(imported: str, tmp_path: Path) -> None:
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


def test_unencodable_names_are_escaped(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo, written = tmp_path / "naïve ×.jpg", io.BytesIO()
    shutil.copy(CHURCH, photo)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert main(["predict", str(photo), "-k", "1", "--model", model, "--device", "cpu"]) == 0
    assert rb"na\xefve \xd7.jpg" in written.getvalue()
    assert b"thing" in written.getvalue()


def test_closed_pipe_causes_no_error() -> None:
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
def test_shell_completes_commands_options_and_names(line: str, completed: str) -> None:
    words = {"_VITVIZ_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    result = CliRunner().invoke(vitviz_command, env=words, prog_name="vitviz")
    assert result.output.split() == [f"plain,{completed}"]


# ---- outputs of commands


def same_picture(path: Path, expected: Image.Image) -> bool:
    with Image.open(path) as drawn:
        return np.array_equal(np.asarray(drawn), np.asarray(expected))


LRP = "explain PHOTO --method attn_lrp --target thing_5 --rather-than 7 --set gamma_mlp=0.1"
ROLLOUT = "explain PHOTO --method rollout --fuse max --discard 0.5 --start 3"
WIDE = {"scale": "both", "dark": True, "width": 999}
WRITTEN: dict[str, Callable[[vitviz.View], Image.Image | vitviz.Heatmap]] = {
    "explain PHOTO --method attention --layer 2 --head 3 --query 7,4": lambda view: view.attention(1, 2, (6, 3)),
    "explain PHOTO --method attention --grid --alpha 0.7": lambda view: view.attention().overlay(alpha=0.7, grid=True),
    LRP: lambda view: view.explain("attn_lrp", contrast=("thing 5", 7), gamma_mlp=0.1),
    "explain PHOTO --method attn_lrp": lambda view: view.explain("attn_lrp").overlay(),  # colors of a signed map
    ROLLOUT: lambda view: view.rollout(fuse="max", discard=0.5, start=2),
    "explain PHOTO --method occlusion --target similar:PHOTO": lambda view: view.explain("occlusion", Similarity(view)),
    "explain PHOTO --target group:thing_5,7": lambda view: view.explain("gae", Group(["thing 5", 7])),
    "explain PHOTO": lambda view: view.explain("gae"),  # the page's default method
    "sheet PHOTO --layer 3 --query mean": lambda view: view.head_sheet(2, "mean", cmap="viridis"),
    "sheet PHOTO --dark --scale both --width 999": lambda view: view.layer_sheet(**WIDE, cmap="viridis"),
}


@pytest.mark.parametrize("command", WRITTEN)
def test_commands_write_the_same_as_the_view(command: str, run: Run, view: vitviz.View, tmp_path: Path) -> None:
    expected = WRITTEN[command](view)
    out = tmp_path / "out.png"
    words = [word.replace("PHOTO", str(CHURCH)).replace("thing_5", "thing 5") for word in command.split()]
    if isinstance(expected, Image.Image):
        run(*words, "-o", out)
        assert same_picture(out, expected)
        return
    run(*words, "-o", out.with_suffix(".npz"))
    with np.load(out.with_suffix(".npz")) as file:
        np.testing.assert_allclose(file["values"], expected.values, atol=1e-6)
        assert str(file["title"]) == expected.title


def test_explain_notes_clipped_values(run: Run, view: vitviz.View, tmp_path: Path) -> None:
    out = tmp_path / "why.png"
    options = ["--method", "attention", "--layer", "3", "--head", "1", "--caption", "--spotlight", "-o", out]
    printed, heatmap = run("explain", CHURCH, *options), view.attention(2, 0)
    side, scale = max(view.photo.size), heatmap.scale()
    assert same_picture(out, card(heatmap, side=side, gray=False, alpha=0.5, spotlight=True, grid=False, smooth=False))
    assert scale.clipped  # outliers are clipped
    assert describe_clipped(scale, "attention", float(heatmap.values.max())) in printed
    assert heatmap.scale("full").vmax == heatmap.values.max()


def test_explain_uses_rollout_without_classes(run: Run, tmp_path: Path) -> None:
    headless, out = folder(tmp_path / "without", classes=0), tmp_path / "why.npz"
    run("explain", CHURCH, "-o", out, model=headless)
    expected = vitviz.Explorer(vitviz.load(headless)).open(CHURCH).rollout().values
    np.testing.assert_allclose(np.load(out)["values"], expected, atol=1e-6)


def test_export_writes_the_html_of_the_view(run: Run, view: vitviz.View, model: str, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    run("export", CHURCH, "-o", out)
    same = out.read_text(encoding="utf-8") == view.html()  # pytest would print megabytes
    assert same
    wide = tiny.GRID[1] * tiny.PATCH + 2 * tiny.PATCH
    run("export", CHURCH, "--html", out, "--size", wide)
    same = out.read_text(encoding="utf-8") == vitviz.Explorer(model).open(CHURCH, size=wide).html()
    assert same


def test_heads_prints_a_table_or_writes_one(run: Run, view: vitviz.View, tmp_path: Path) -> None:
    printed = run("heads", CHURCH, "--statistics", "distance", "entropy")
    assert printed.rstrip() == view.heads(["distance", "entropy"]).table()
    out = tmp_path / "heads.csv"
    run("heads", CHURCH, "--query", "cls", "-o", out)
    with out.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == view.heads(query="cls").header
    np.testing.assert_allclose(np.array(rows, float), view.heads(query="cls").rows(), rtol=1e-6)


def test_heads_takes_a_folder(run: Run, model: str, tmp_path: Path) -> None:
    for seed in (1, 2):
        data_files.photo(tmp_path / f"{seed}.png", 90, 70, seed)
    out, wide = tmp_path / "heads.csv", tiny.GRID[1] * tiny.PATCH + 2 * tiny.PATCH
    assert "2 images" in run("heads", tmp_path, "--statistics", "mass_cls", "-o", out)
    assert "deviation" in out.read_text(encoding="utf-8").splitlines()[0]
    answer = json.loads(run("heads", tmp_path, "--size", wide, "--json"))
    assert answer["data"] == {"folder": str(tmp_path), "images": 2}
    assert max(answer["input_size"]) == wide
    views = [vitviz.Explorer(vitviz.load(model)).open(path, size=wide) for path in tmp_path.glob("*.png")]
    mean = np.mean([view.heads(["distance"]).values["distance"] for view in views], axis=0)
    assert [row["distance"] for row in answer["heads"]] == pytest.approx(mean.ravel().tolist())


def test_circuit_prints_and_writes_its_parts(run: Run, model: str, tmp_path: Path) -> None:
    for seed in range(6):
        data_files.photo(tmp_path / "photos" / f"{seed}.png", 90, 70, seed)
    out, words = tmp_path / "circuit.csv", ("circuit", tmp_path / "photos", "--target", "thing 3", "--keep", "0.9")
    found = vitviz.circuit(vitviz.load(model), tmp_path / "photos", "thing 3", keep=0.9, progress=False)
    printed = run(*words, "-o", out)
    assert found.describe() in printed
    with out.open(encoding="utf-8", newline="") as file:
        assert len([*csv.reader(file)]) == 1 + found.size
    answer = json.loads(run(*words, "--json"))
    assert answer["data"]["images"] == 6
    assert len(answer["circuit"]["parts"]) == found.size
    assert answer["circuit"]["faithfulness"]["value"] == pytest.approx(found.faithfulness.value, abs=1e-6)


def test_evidence_prints_and_draws_its_sets(run: Run, view: vitviz.View, tmp_path: Path) -> None:
    words = ("evidence", CHURCH, "--target", "thing 3", "--keep", "0.001", "--sets", "1")
    found = view.evidence("thing 3", keep=0.001, sets=1)
    assert run(*words, "-o", tmp_path / "why.png").splitlines()[-1] == found.describe()
    drawn = view.show_patches(found.sets[0].patches)
    assert np.array_equal(np.asarray(Image.open(tmp_path / "why.png")), np.asarray(drawn))
    assert (tmp_path / "why-without.png").exists() == (found.change is not None)
    (answer,) = json.loads(run(*words, "--json"))["images"]
    certificate = found.sets[0].certificate
    assert certificate is not None
    assert answer["summary"] == found.describe()
    assert answer["sets"][0]["patches"] == [[row + 1, column + 1] for row, column in found.sets[0].patches]
    assert answer["sets"][0]["certificate"]["without"] == pytest.approx(certificate.without.tolist(), abs=1e-6)


def test_lens_prints_a_row_for_each_layer(run: Run, view: vitviz.View, tmp_path: Path) -> None:
    out = tmp_path / "not there yet" / "lens.NPZ"
    lines = run("lens", CHURCH, "-k", "2", "-o", out).splitlines()
    lens = view.lens(view.best(2))
    assert len(lines) == 1 + view.trace.depth + 1
    for line, shares in zip(lines[1:-1], lens.probabilities[:, list(lens.classes)], strict=True):
        assert re.split(r"\s{2,}", line.strip())[1:] == [percent(share) for share in shares]
    with np.load(out) as file:
        np.testing.assert_allclose(file["colors"], view.token_pca().colors, atol=1e-6)
        assert list(file["names"]) == list(lens.names)


def test_components_have_one_basis_that_can_be_used_again(run: Run, view: vitviz.View, tmp_path: Path) -> None:
    dog = vitviz.Explorer(view.model).open(vitviz.example("dog"))
    run("components", CHURCH, vitviz.example("dog"), "-o", tmp_path / "first")
    basis = fit_pca(view.model, [view.trace, dog.trace])
    saved = PCABasis.load(tmp_path / "first" / "basis.npz")
    np.testing.assert_allclose(saved.components, basis.components, atol=1e-5)
    answer = json.loads(
        run("components", CHURCH, "-o", tmp_path / "again", "--json", "--basis", tmp_path / "first" / "basis.npz")
    )
    mask = basis.foreground(view.model, view.trace)
    assert answer["images"][0]["foreground"] == pytest.approx(mask.mean())
    (left, top, right, bottom), (rows, columns) = view.geometry.frame, view.trace.grid
    for name in ("first", "again"):
        masked, colored = (
            np.asarray(Image.open(tmp_path / name / file)) for file in ("church-foreground.png", "church.png")
        )
        middles = np.ix_(
            [int(top + (bottom - top) * (row + 0.5) / rows) for row in range(rows)],
            [int(left + (right - left) * (column + 0.5) / columns) for column in range(columns)],
        )
        np.testing.assert_array_equal(masked[middles][..., 0] == 255, mask)
        blended = 0.25 * np.asarray(view.photo)[middles] + 0.75 * 255 * basis.colors(view.model, view.trace)
        np.testing.assert_allclose(colored[middles], blended, atol=1.5)


@pytest.fixture
def answer(run: Run, model: str, view: vitviz.View) -> Callable[..., dict[str, Any]]:
    """Run a command on the photograph, and return its entry in the JSON."""

    def run_command(command: str, *options: object) -> dict[str, Any]:
        document = json.loads(run(command, CHURCH, "--json", *options))
        assert (document["model"], document["input_size"]) == (model, list(view.size))
        (image,) = document["images"]
        assert (image["photo"], image["input_size"]) == (str(CHURCH), list(view.size))
        return image

    return run_command


def test_json_has_the_same_form_for_every_command(
    answer: Callable[..., dict[str, Any]], run: Run, view: vitviz.View, tmp_path: Path
) -> None:
    predictions = answer("predict", "-k", "3")["predictions"]
    assert [prediction["label"] for prediction in predictions] == [label for label, _ in view.predictions(3)]
    shares = [prediction["probability"] for prediction in predictions]
    assert shares == pytest.approx([share for _, share in view.predictions(3)])
    mine, picture = view.explain("gae", 3), str(tmp_path / "why.png")
    test = view.faithfulness(mine, 3)[0]
    why = answer("explain", "--method", "gae", "--target", "3", "--test", "-o", picture)
    np.testing.assert_allclose(why["values"], mine.values, atol=1e-6)
    assert why["faithfulness"]["gain"] == pytest.approx(test.gain)
    printed = run("explain", CHURCH, "--method", "gae", "--target", "3", "--test", "-o", picture)
    assert test.describe() in printed
    heads = answer("heads", "--statistics", "distance")["heads"]
    places = [(layer, head) for layer in range(1, view.trace.depth + 1) for head in range(1, view.trace.heads + 1)]
    assert [(entry["layer"], entry["head"]) for entry in heads] == places
    assert [entry["distance"] for entry in heads] == pytest.approx(
        view.heads(["distance"])["distance"].ravel().tolist()
    )
    unit = answer("lens", "--target", "unit:3")["layers"][-1]
    assert unit["values"] == {"unit 3 of the features": pytest.approx(float(view.features[3]), rel=1e-4)}
    last = answer("lens", "-k", "2")["layers"][-1]
    assert last == {"layer": view.trace.depth, "probabilities": pytest.approx(dict(view.predictions(2)))}
    for command, name in (("sheet", "sheet.png"), ("export", "page.html")):
        path = tmp_path / name
        assert answer(command, "-o", str(path))["output"] == str(path)
        assert path.exists()


@pytest.mark.parametrize(
    ("options", "names"), [("--kind rollout-sheet inside", "rollout-sheet inside"), ("--only shapes", "shapes")]
)
def test_figures_list_their_files(
    options: str, names: str, answer: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    drawn = answer("figures", *options.split(), "-o", tmp_path)["outputs"]
    assert drawn == {name: str(tmp_path / f"{name}.png") for name in names.split()}
    assert all(Image.open(path).width == 1890 or "shapes" in path for path in drawn.values())


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluate with fewer masked images."""
    for module, measure in (("evaluate", evaluate), ("arena", arena)):
        few = functools.partial(measure, steps=2, random=1)
        monkeypatch.setattr(f"vitviz.evaluation.{module}.{module}", few)


@pytest.fixture
def things(tmp_path: Path) -> Path:
    """Return a folder of two classes with one photograph each."""
    for index in (3, 8):
        data_files.photo(tmp_path / "things" / f"thing {index}" / "one.png", 100, 140, index)
    return tmp_path / "things"


def test_summary_counts_trainable_parameters_by_layer_for_a_batch(run: Run) -> None:
    summary = json.loads(run("summary", "--batch", 32, "--unfreeze-last", 0, "--json"))
    modules = {row["name"]: row for row in summary["modules"]}
    learning = {name: row["trainable"] for name, row in modules.items() if row["trainable"]}
    assert learning == {"head": modules["head"]["parameters"]}
    assert summary["trainable"] == learning["head"]
    assert {row["input"][0] for row in modules.values()} == {row["output"][0] for row in modules.values()} == {32}
    printed = run("summary", "--batch", 32, "--unfreeze-last", 0)
    lines = {line.split()[0]: line.split() for line in printed.splitlines() if line}
    assert lines["module"] == ["module", "kind", "input", "output", "parameters", "trainable", "multiply-adds"]
    assert f"{learning['head']:,}" in lines["head"]
    assert "for 32 images of" in printed


def test_json_names_the_model_its_input_size_and_the_data(run: Run, model: str, things: Path, quick: None) -> None:
    answers = {}
    for command, options in {
        "summary": (),
        "validate": ("--data", str(things)),
        "evaluate": ("--data", str(things), "--methods", "rollout"),
    }.items():
        answers[command] = json.loads(run(command, *options, "--json"))
        assert answers[command]["model"] == model
        assert answers[command]["input_size"] == list(vitviz.load(model).config.image_size)
    assert answers["summary"]["parameters"] == sum(weight.numel() for weight in vitviz.load(model).parameters())
    assert answers["validate"]["data"] == answers["evaluate"]["data"] == {"folder": str(things), "images": 2}
    assert [entry["label"] for entry in answers["validate"]["classes"]] == ["thing 3", "thing 8"]
    assert {entry["method"] for entry in answers["evaluate"]["methods"]} == {"rollout", "random"}
    shutil.rmtree(things / "thing 3")
    alone = json.loads(run("evaluate", "--data", things, "--methods", "rollout", "--json"))
    assert alone["methods"][0]["errors"]["gain"] is None  # one image has no standard error


def test_audit_writes_report_table_and_records(
    run: Run, things: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "audited"
    words = ("audit", things, "-o", out, "--methods", "rollout", "--sets", "1")
    printed = run(*words)
    assert "Not decided" in printed  # two photographs are too few
    assert {path.name for path in out.iterdir()} >= {"records.jsonl", "photographs.csv", "report.html"}
    before = (out / "records.jsonl").read_bytes()
    answer = json.loads(run(*words, "--json"))  # reads the records
    assert (out / "records.jsonl").read_bytes() == before
    assert sum(row["photographs"] for row in answer["answers"]) == 2
    quick = json.loads(run("audit", things, "-o", tmp_path / "quick", "--quick", "--json"))
    assert {row["verdict"] for row in quick["answers"]} == {"not decided"}
    for module in ("runs", "records"):
        monkeypatch.setattr(f"vitviz.evaluation.{module}.gather", list)
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2")):  # the second process of torchrun
        monkeypatch.setenv(name, value)
    assert run(*words) == ""


def test_compare_writes_a_report_and_the_heads(shell: Run, model: str, things: Path, tmp_path: Path) -> None:
    words = ("compare", model, model, things, "-o", tmp_path / "out", "--method", "rollout", "--limit", "1", "--json")
    answer = json.loads(shell(*words, "--device", "cpu"))
    assert answer["model"] == [model, model]
    assert answer["flips"] == []
    assert {(head["layer"], head["head"]) for head in answer["heads"]} >= {(1, 1)}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"report.html", "heads.csv", "records.jsonl"}


def test_evaluate_prints_and_writes_a_table(
    run: Run, things: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    results, table = tmp_path / "results.jsonl", tmp_path / "tables" / "table.md"
    options = ["--data", things, "--methods", "rollout", "gae", "--out", results]
    printed = run("evaluate", *options, "--table", table)
    assert "no method can be named" in printed  # two images are too few
    for name in ("rollout", "gae", "random"):
        assert name in printed
        assert f"| {name} |" in table.read_text(encoding="utf-8")
    before, table = results.read_bytes(), table.with_suffix(".csv")
    assert run("evaluate", *options, "--table", table) == printed  # the second run reads the results file
    assert not table.read_text(encoding="utf-8").endswith("\n\n")
    assert results.read_bytes() == before
    assert run("evaluate", *options[:-1], tmp_path / "max.jsonl", "--set", "rollout.fuse=max") != printed
    for module in ("runs", "records"):
        monkeypatch.setattr(f"vitviz.evaluation.{module}.gather", list)
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2")):  # the second process of torchrun
        monkeypatch.setenv(name, value)
    assert run("evaluate", *options) == ""


def test_arena_writes_rows_result_table_and_figure(run: Run, things: Path, tmp_path: Path, quick: None) -> None:
    out = tmp_path / "arena"
    options = ["--data", things, "--methods", "rollout", "gae", "-o", out, "--quiet"]
    printed = run("arena", *options)
    assert "no method can be named the best. Take at least 6." in printed
    assert "What it does not mean" in printed.splitlines()[0]  # above the table
    assert below(out) == {f"arena.{suffix}" for suffix in ("jsonl", "json", "md", "csv", "png")}
    rows = (out / "arena.jsonl").read_bytes()
    assert run("arena", *options) == printed  # the second run reads the rows
    assert (out / "arena.jsonl").read_bytes() == rows
    (entry, *_), left_out = map(json.loads(run("arena", *options, "--json")).get, ("methods", "left_out"))
    assert entry["low"] <= entry["score"] <= entry["high"]
    assert "tag" in left_out  # two photographs are too few to fit a head


# ---- predictions of files and folders


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a folder with three photographs, one in a subfolder, and a file that is not an image."""
    root = tmp_path / "photos"
    for index, name in enumerate(("a.png", "b.jpg", "b.png", "deep/c.png")):
        data_files.photo(root / name, 60 + 20 * index, 70, index)
    (root / "notes.txt").write_text("no image")
    return root


def below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_predict_reads_folders_and_names_broken_files(
    run: Run, model: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, out = photos / "deep" / "broken.jpg", tmp_path / "out"
    broken.write_bytes(b"\xff\xd8 no more")
    monkeypatch.setattr(predict, "ON_A_SHEET", 3)
    printed = run("predict", photos, "-o", out, "-k", "2", code=2)
    assert str(broken) in printed
    assert "1 of 5" in printed
    assert below(out) == {"a.png", "b.png", "b.png.png", "deep/c.png", "sheet-1.png", "sheet-2.png"}
    sizes = [Image.open(out / f"sheet-{number}.png").size for number in (1, 2)]
    assert sizes[0][0] > sizes[1][0]  # the first sheet has three pictures, the second has one
    explorer = vitviz.Explorer(vitviz.load(model))
    for name in ("a.png", "b.jpg", "b.png", "deep/c.png"):
        view = explorer.open(photos / name)
        label, share = view.predictions(1)[0]
        summary, first = printed.split(f"{photos / name}\n")[1].splitlines()[:2]
        assert summary == f"  {view.describe()}"
        assert first.split("%")[1].strip() == label
        assert first.startswith(percent(share).rjust(10))
    printed = run("predict", photos, CHURCH, "--json", "-k", "3", code=2)
    answers = json.JSONDecoder().raw_decode(printed)[0]["images"]
    names = ["a.png", "b.jpg", "b.png", "broken.jpg", "c.png", CHURCH.name]
    assert [Path(answer["photo"]).name for answer in answers] == names
    assert ["error" in answer for answer in answers] == [name == "broken.jpg" for name in names]
    assert [len(answer.get("predictions", [])) for answer in answers] == [3, 3, 3, 0, 3, 3]
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", broken, tmp_path / "nowhere.jpg"):
        assert path.name in run("predict", path, "-o", tmp_path / "none", code=2)
    assert not (tmp_path / "none").exists()


def test_predict_prints_json_of_a_file_or_of_standard_input(
    run: Run, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = json.loads(run("predict", CHURCH, "--json"))
    (image,) = answer["images"]
    assert answer["model"] == model
    assert set(image) == {"photo", "input_size", "summary", "classes", "sure_above", "predictions"}
    assert answer["input_size"] == image["input_size"]
    assert image["summary"].startswith(f"Best match among {image['classes']} classes: thing")
    assert image["sure_above"] is None
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(CHURCH.read_bytes())))
    image["photo"] = "-"
    assert json.loads(run("predict", "-", "--json", "-o", tmp_path / "out")) == answer
    assert below(tmp_path / "out") == {"stdin.png", "sheet.png"}
    sure = folder(tmp_path / "sure", about={"sure_above": 1.0})
    assert "Not sure: thing " in run("predict", CHURCH, "-k", "1", model=sure)
    assert json.loads(run("predict", CHURCH, "--json", model=sure))["images"][0]["sure_above"] == 1.0


def test_predict_never_overwrites_photographs_or_reads_its_own_pictures(run: Run, photos: Path) -> None:
    before = {name: (photos / name).read_bytes() for name in below(photos)}
    for path in (photos, photos / "a.png", photos / "b.jpg"):
        assert "-o" in run("predict", path, "-o", photos, code=2)
    assert {name: (photos / name).read_bytes() for name in below(photos)} == before
    out = photos / "out"
    run("predict", photos, "-o", out)
    first = below(out)
    run("predict", photos, "-o", out)
    assert below(out) == first


def test_pictures_of_several_folders_do_not_collide(photos: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(photos, other)
    shutil.copy(photos / "a.png", other / "sheet.png")
    shutil.copy(photos / "a.png", other / "A.png")
    listed = find_photos([str(photos), str(other), str(CHURCH), str(photos / "a.png")], tmp_path / "out")
    names = [str(photo.picture).casefold() for photo in listed]
    assert len(set(names)) == len(names) == 4 + 6 + 1  # a.png is listed once
    assert {"photos/a.png", "other/a.png", "church.png"} <= set(names)
    alone = find_photos([str(other)], tmp_path / "out")
    assert "sheet.png" not in {str(photo.picture) for photo in alone}


def test_missing_labels_and_preprocessing_are_stated_or_passed(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights, names = tmp_path / "mine.safetensors", tmp_path / "names.txt"
    model = tiny.model(image_size=(32, 32), patch_size=8)
    save_file(model.state_dict(), weights)
    names.write_text("\n".join(f"own {index}" for index in range(model.config.classes)), encoding="utf-8")
    command = ["predict", str(photos / "a.png"), "--model", str(weights), "--heads", str(model.config.heads)]
    command += ["--device", "cpu"]
    assert main(command) == 0
    notes = capsys.readouterr().err
    assert "preprocessing: " in notes
    assert "labels: class 0, class 1" in notes
    assert main([*command, "--labels", str(names), "--preprocess", "half", "--json"]) == 0
    output = capsys.readouterr()
    assert "preprocessing" not in output.err
    assert "own " in json.dumps(json.loads(output.out)["images"][0])
    assert main([*command, "--labels", str(tmp_path / "none.txt")]) == 2
    assert "none.txt" in capsys.readouterr().err
