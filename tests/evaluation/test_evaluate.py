"""Methods over a folder: the same numbers after a stop, in two processes, and as one image at a time by hand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from PIL import Image

from vitviz.attribution import registry as methods
from vitviz.attribution.attention import rollout
from vitviz.attribution.inputs import Case, Method
from vitviz.attribution.scores import ExplainError
from vitviz.evaluation import EvaluationError
from vitviz.evaluation.evaluate import evaluate
from vitviz.evaluation.faithfulness import faithfulness
from vitviz.evaluation.records import rank_file
from vitviz.evaluation.table import COLUMNS, Evaluation
from vitviz.images.decoding import decode
from vitviz.images.folders import DataError
from vitviz.images.preprocess import Preprocess
from vitviz.model.vit import Pretrained, ViT
from vitviz.weights.checkpoint import save

pytestmark = pytest.mark.usefixtures("one_thread")

GRID, PATCH = (3, 5), 2
NAMES = ["attention", "rollout"]
FAST = {"steps": 3, "random": 2, "progress": False}


def model(seed: int = 0, **changes: Any) -> ViT:
    made = tiny.model(seed, grid=GRID, patch=PATCH, **{"classes": 3, **changes})
    made.pretrained = Pretrained(
        name="tiny",
        preprocess=Preprocess(mode="squash", height=GRID[0] * PATCH, width=GRID[1] * PATCH),
        labels=("ox", "golf ball", "church"),
        licence="MIT",
    )
    return made


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Seven photographs of two classes."""
    generator = np.random.default_rng(0)
    for label, count in (("ox", 3), ("church", 4)):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for index in range(count):
            pixels = generator.integers(256, size=(20, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{index}.png")
    return tmp_path / "photos"


def numbers(result: Evaluation) -> dict[tuple[str, str], list[float]]:
    """All that is not time."""
    names = ("deletion", "insertion", "positive", "negative", "gain", "whole")
    return {(one["image"], one["method"]): [one[name] for name in names] for one in result.records}


def assert_same(first: Evaluation, second: Evaluation) -> None:
    one, other = numbers(first), numbers(second)
    assert one.keys() == other.keys()
    for key in one:
        np.testing.assert_allclose(one[key], other[key], atol=1e-6, err_msg=str(key))
    for row in first.rows:
        for column in [*COLUMNS][:-1]:
            assert row.means[column] == pytest.approx(second.row(row.method).means[column], abs=1e-6)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# ---- what the numbers are


@pytest.mark.parametrize("aim", ["true", "predicted"])
def test_each_number_is_that_of_the_image_by_itself(photos: Path, aim: str) -> None:
    vit = model()
    result = evaluate(vit, photos, NAMES, seed=5, target=aim, **FAST)
    assert result.images == 7
    assert {row.method for row in result.rows} == {*NAMES, "random"}
    gains, chances = [], []
    for label, index in (("ox", 0), ("church", 2)):
        for path in sorted((photos / label).iterdir()):
            images = torch.from_numpy(vit.pretrained.preprocess(decode(path)).pixels)[None]
            target = index if aim == "true" else int(vit(images).argmax())
            seed = zlib.crc32(f"5 {label}/{path.name}".encode())
            maps = rollout(vit.trace(images)).patches
            (one,) = faithfulness(vit, images, maps, target, seed=seed, steps=3, random=2)
            found = numbers(result)[f"{label}/{path.name}", "rollout"]
            expected = [one.deletion.area, one.insertion.area, one.positive, one.negative, one.gain]
            np.testing.assert_allclose(found, [*expected, one.deletion.probabilities[0]], atol=1e-6)
            gains.append(one.gain)
            chances.append(one.deletion.random_area)
    row, chance = result.row("rollout"), result.row("random")
    assert row.images == 7
    assert row.means["gain"] == pytest.approx(np.mean(gains), abs=1e-6)
    assert row.errors["gain"] == pytest.approx(np.std(gains, ddof=1) / 7**0.5, abs=1e-6)
    for curve in ("deletion", "insertion"):
        assert chance.means[curve] == pytest.approx(np.mean(chances), abs=1e-6)
    assert chance.means["gain"] == 0
    assert row.means["seconds"] > 0
    with pytest.raises(EvaluationError, match="rows"):
        result.row("gae")


def test_a_limit_options_and_a_training_model(photos: Path) -> None:
    vit = model().train()
    result = evaluate(vit, photos, "rollout", limit=3, options={"rollout": {"fuse": "max"}}, **FAST)
    assert vit.training
    assert sorted({one["image"] for one in result.records}) == ["church/0.png", "ox/0.png", "ox/1.png"]
    plain = evaluate(vit, photos, "rollout", limit=3, **FAST)
    assert not np.allclose(result.row("rollout").means["gain"], plain.row("rollout").means["gain"])
    assert result.row("random").means["deletion"] == pytest.approx(plain.row("random").means["deletion"])
    (photos / "ox" / "deep").mkdir()
    (photos / "ox" / "2.png").rename(photos / "ox" / "deep" / "1.png")  # in a folder below, under a name that is there
    whole = evaluate(vit, photos, "rollout", **FAST)
    assert {"ox/1.png", "ox/deep/1.png"} <= {one["image"] for one in whole.records}
    assert whole.images == 7


def test_methods_that_a_model_does_not_admit_are_said_to_be(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(case: Case) -> torch.Tensor:
        raise ExplainError("Expected another model.")

    method = Method(function=broken, title="Broken", paper="", about="", cost=1.0)
    monkeypatch.setattr("vitviz.evaluation.evaluate.METHODS", {"broken": method, "rollout": methods.METHODS["rollout"]})
    monkeypatch.setitem(methods.METHODS, "broken", method)
    out = tmp_path / "results.jsonl"
    result = evaluate(model(), photos, out=out, **FAST)
    assert {row.method for row in result.rows} == {"rollout", "random"}
    assert result.left_out == {"broken": "Expected another model."}
    assert "Expected another model." in result.markdown()
    assert "Expected another model." in result.table()
    before = out.read_bytes()
    assert evaluate(model(), photos, out=out, **FAST).left_out == result.left_out
    assert out.read_bytes() == before
    with pytest.raises(ExplainError, match="another model"):  # by its name it was meant
        evaluate(model(), photos, ["broken"], out=out, **FAST)


def test_a_mistyped_value_is_no_model_that_does_not_admit(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    with pytest.raises(ExplainError, match="start"):
        evaluate(model(), photos, options={"rollout": {"start": 99}}, out=out, **FAST)
    assert "refused" not in (out.read_text() if out.exists() else "")


# ---- files


def test_what_is_there_is_not_made_again(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "results.jsonl"
    whole = evaluate(model(), photos, NAMES, **FAST)
    first = evaluate(model(), photos, ["rollout"], limit=3, out=out, **FAST)
    kept = {line for line in out.read_text().splitlines() if "rollout" in line}
    more = evaluate(model(), photos, NAMES, out=out, **FAST)  # more images, and one more method
    assert_same(more, whole)
    assert kept <= set(out.read_text().splitlines())
    assert len(lines(out)) == 1 + 7 * 3
    assert_same(evaluate(model(), photos, ["rollout"], limit=3, out=out, **FAST), first)
    assert len(lines(out)) == 1 + 7 * 3  # fewer were asked for; the others stay in the file
    (photos / "ox" / "1.png").write_bytes(b"no image")  # nor is it read again
    assert_same(evaluate(model(), photos, NAMES, out=out, **FAST), whole)
    assert [path.name for path in out.parent.iterdir()] == ["results.jsonl"]


CHILD = """
import os, signal, sys
import torch
from vitviz.evaluation import records
from vitviz.evaluation.evaluate import evaluate
from vitviz.weights.zoo import load

torch.set_num_threads(1)
folder, photos, out, stop = sys.argv[1:]
add = records.Journal.add

def add_and_die(self, some):
    add(self, some)
    if sum(1 for line in open(self.path)) >= int(stop):
        with open(self.path, "ab") as file:
            file.write(b'{"image": "church/1.png", "meth')
        os.kill(os.getpid(), signal.SIGKILL)

if int(stop):
    records.Journal.add = add_and_die
result = evaluate(load(folder), photos, ["attention", "rollout"], out=out, steps=3, random=2, progress=False)
# A file for each process: what two of them print may be mixed.
with open(os.path.join(os.path.dirname(out), f"printed.{os.environ.get('RANK', '0')}"), "w") as file:
    print(result.images, [row.method for row in result.rows], file=file)
"""


def child(tmp_path: Path, photos: Path, out: Path, stop: int, *launcher: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    if not (tmp_path / "model").exists():
        save(model(), tmp_path / "model")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, str(script), str(tmp_path / "model"), str(photos), str(out), str(stop)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)


def test_a_killed_run_goes_on_where_it_was(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    killed = child(tmp_path, photos, out, 1 + 3 * 3)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not out.read_bytes().endswith(b"\n")
    before = out.read_text().splitlines()[1:10]
    result = evaluate(model(), photos, NAMES, out=out, **FAST)
    assert_same(result, evaluate(model(), photos, NAMES, **FAST))
    assert set(before) <= set(out.read_text().splitlines())  # times too: they were not run again
    assert len(lines(out)) == 1 + 7 * 3


def test_two_processes_are_as_good_as_one(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    both = child(tmp_path, photos, out, 0, *launcher)
    assert both.returncode == 0, both.stderr
    tables = [(tmp_path / f"printed.{rank}").read_text() for rank in range(2)]
    assert tables == ["7 ['random', 'attention', 'rollout']\n"] * 2  # each process has the whole table
    assert [path.name for path in tmp_path.glob("results*")] == ["results.jsonl"]
    before = out.read_bytes()
    result = evaluate(model(), photos, NAMES, out=out, **FAST)
    assert out.read_bytes() == before
    assert_same(result, evaluate(model(), photos, NAMES, **FAST))


def test_files_of_processes_that_were_stopped_count(photos: Path, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole.jsonl", tmp_path / "results.jsonl"
    evaluate(model(), photos, NAMES, out=whole, **FAST)
    header, *rest = whole.read_text().splitlines(keepends=True)
    rank_file(out, 0).write_text(header + "".join(rest[:6]))
    rank_file(out, 1).write_text(header + "".join(rest[6:12]) + rest[12][:20])
    evaluate(model(), photos, NAMES, out=out, **FAST)
    assert set(rest[:12]) <= set(out.read_text().splitlines(keepends=True))
    assert not rank_file(out, 0).exists()
    assert not rank_file(out, 1).exists()


def test_files_of_other_settings_are_refused(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    evaluate(model(), photos, "rollout", limit=1, out=out, options={"rollout": {"query": (0, 1)}}, **FAST)
    before = out.read_bytes()
    same = {"limit": 1, "out": out, "options": {"rollout": {"query": (0, 1)}}, **FAST}
    evaluate(model(), photos, "rollout", **same)  # a tuple comes back from JSON as a list
    changes: list[tuple[str, dict[str, Any]]] = [
        ("seed is 0 there and 1 here", {"seed": 1}),
        ("target", {"target": "predicted"}),
        ("baseline", {"baseline": "blur"}),
        ("steps is 3 there and 4 here", {"steps": 4}),
        ("random", {"random": 3}),
        ("options", {"options": {}}),
    ]
    for words, change in changes:
        with pytest.raises(EvaluationError, match=words):
            evaluate(model(), photos, "rollout", **{**same, **change})
    with pytest.raises(EvaluationError, match="weights"):
        evaluate(model(seed=1), photos, "rollout", **same)
    assert out.read_bytes() == before


@pytest.mark.parametrize("text", ["my diary\n", "my diary", '{"a": 1}\n', "[]\n", "\n"])
def test_other_peoples_files_are_left_alone(photos: Path, tmp_path: Path, text: str) -> None:
    out = tmp_path / "results.jsonl"
    out.write_text(text)
    with pytest.raises(EvaluationError, match="something else"):
        evaluate(model(), photos, "rollout", out=out, **FAST)
    assert out.read_text() == text


def test_a_broken_line_in_the_middle_is_named(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    evaluate(model(), photos, "rollout", out=out, **FAST)
    good = out.read_text().splitlines()
    for wrong in (good[2][:-9], "[1]", '{"image": 3, "method": "rollout"}'):
        out.write_text("\n".join([*good[:2], wrong, *good[3:]]) + "\n")
        with pytest.raises(EvaluationError, match="line 3"):
            evaluate(model(), photos, "rollout", out=out, **FAST)


# ---- what is refused


def test_what_cannot_be_evaluated_is_refused(photos: Path) -> None:
    with pytest.raises(EvaluationError, match="classifier"):
        evaluate(tiny.model(grid=GRID, patch=PATCH), photos, "rollout", **FAST)
    with pytest.raises(ExplainError, match="nonsense"):
        evaluate(model(), photos, ["rollout", "nonsense"], **FAST)
    with pytest.raises(ExplainError, match="nonsense"):
        evaluate(model(), photos, "rollout", options={"nonsense": {}}, **FAST)
    with pytest.raises(ExplainError, match="no such option"):
        evaluate(model(), photos, "rollout", options={"rollout": {"nonsense": 1}}, **FAST)
    typo = {"options": {"gae": {"nonsense": 1}}, "out": photos.parent / "typo.jsonl"}
    with pytest.raises(
        ExplainError, match="no such option"
    ):  # before hours of work, though "all" leaves out what is refused
        evaluate(model(), photos, "all", **typo, **FAST)
    assert not typo["out"].exists()
    with pytest.raises(EvaluationError, match="options"):
        evaluate(model(), photos, "rollout", options={"rollout": {"query": object()}}, **FAST)
    for wrong in ({"limit": 0}, {"target": "wrong"}):
        with pytest.raises(EvaluationError):
            evaluate(model(), photos, "rollout", **FAST, **wrong)
    with pytest.raises(DataError):
        evaluate(model(), photos / "nowhere", "rollout", **FAST)
    (photos / "ox" / "broken.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"ox/broken\.png"):
        evaluate(model(), photos, "rollout", **FAST)
