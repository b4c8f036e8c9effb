"""Test the evaluation of methods over a folder: results of single images, interruptions, and two processes."""

import csv
import errno
import io
import json
import os
import re
import shutil
import subprocess
import sys
import zlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import data_files
import numpy as np
import pytest
import tiny
import torch
import windowed
from data_files import file_size_limit
from patience import patience
from PIL import Image
from torch.distributed import TCPStore

from vitviz.attribution import registry as methods
from vitviz.attribution.attention import rollout
from vitviz.attribution.inputs import Case, Method
from vitviz.attribution.targets import ExplainError
from vitviz.evaluation import EvaluationError
from vitviz.evaluation.arena import arena
from vitviz.evaluation.audit import audit
from vitviz.evaluation.compare import compare
from vitviz.evaluation.evaluate import evaluate
from vitviz.evaluation.faithfulness import faithfulness
from vitviz.evaluation.records import append, opened, processes, read
from vitviz.evaluation.table import COLUMNS, ENOUGH, REMOVAL, Evaluation, tabulate
from vitviz.explorer import Explorer
from vitviz.images.decoding import decode
from vitviz.images.folders import DataError, find_classes, list_images
from vitviz.model.vit import ViT
from vitviz.weights.checkpoint import fingerprint, save
from vitviz.writing import WritingError

pytestmark = pytest.mark.usefixtures("one_thread")

NAMES = ["attention", "rollout"]
FAST = {"steps": 3, "random": 2, "progress": False}


def model(seed: int = 0, **changes: Any) -> ViT:
    return tiny.known(seed, labels=("ox", "golf ball", "church"), **tiny.SMALL, **{"classes": 3, **changes})


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a folder with seven photographs of two classes."""
    for index, name in enumerate(("ox/0", "ox/1", "ox/2", "church/0", "church/1", "church/2", "church/3")):
        data_files.photo(tmp_path / "photos" / f"{name}.png", 30, 20, seed=index)
    return tmp_path / "photos"


def numbers(result: Evaluation) -> dict[tuple[str, str], list[float]]:
    """Return all numbers except times."""
    names = ("deletion", "insertion", "positive", "negative", "gain", "whole")
    return {(record["image"], record["method"]): [record[name] for name in names] for record in result.records}


def assert_same(first: Evaluation, second: Evaluation) -> None:
    actual, expected = numbers(first), numbers(second)
    assert actual.keys() == expected.keys()
    for key in actual:
        np.testing.assert_allclose(actual[key], expected[key], atol=1e-6, err_msg=str(key))
    for row in first.rows:
        for column in [*COLUMNS][:-1]:
            assert row.means[column] == pytest.approx(second.row(row.method).means[column], abs=1e-6)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("aim", ["true", "predicted"])
def test_records_match_faithfulness_of_single_images(photos: Path, aim: str) -> None:
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
            maps = rollout(vit.trace(images))
            (single,) = faithfulness(vit, images, maps, target, seed=seed, steps=3, random=2)
            record = numbers(result)[f"{label}/{path.name}", "rollout"]
            expected = [single.deletion.area, single.insertion.area, single.positive, single.negative, single.gain]
            np.testing.assert_allclose(record, [*expected, single.deletion.probabilities[0]], atol=1e-6)
            gains.append(single.gain)
            chances.append(single.deletion.random_area)
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


def test_evaluate_takes_a_limit_options_and_models_in_training(photos: Path) -> None:
    vit = model().train()
    result = evaluate(vit, photos, "rollout", limit=3, options={"rollout": {"fuse": "max"}}, **FAST)
    assert vit.training
    assert sorted({record["image"] for record in result.records}) == ["church/0.png", "ox/0.png", "ox/1.png"]
    plain = evaluate(vit, photos, "rollout", limit=3, **FAST)
    assert not np.allclose(result.row("rollout").means["gain"], plain.row("rollout").means["gain"])
    assert result.row("random").means["deletion"] == pytest.approx(plain.row("random").means["deletion"])
    (photos / "ox" / "deep").mkdir()
    (photos / "ox" / "2.png").rename(photos / "ox" / "deep" / "1.png")  # same file name in a subfolder
    all_photos = evaluate(vit, photos, "rollout", **FAST)
    assert {"ox/1.png", "ox/deep/1.png"} <= {record["image"] for record in all_photos.records}
    assert all_photos.images == 7


def test_windowed_models_are_evaluated_with_maps_of_every_stage(photos: Path) -> None:
    vit = windowed.small(classes=3)
    assert vit.pretrained is not None
    vit.pretrained = replace(vit.pretrained, labels=("ox", "golf ball", "church"))
    result = evaluate(vit, photos, ["rollout", "legrad"], limit=1, **FAST)
    with Image.open(photos / "ox" / "0.png") as photo:
        view = Explorer(vit).open(photo)
    maps = [view.explain(name, "ox") for name in ("rollout", "legrad")]
    tests = [view.faithfulness(heatmap, "ox", steps=3, random=1)[0] for heatmap in maps]
    areas = {record["method"]: record["deletion"] for record in result.records if record["image"] == "ox/0.png"}
    assert [areas["rollout"], areas["legrad"]] == pytest.approx([test.deletion.area for test in tests], abs=1e-5)


def test_unsupported_methods_are_left_out_with_a_reason(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(case: Case) -> torch.Tensor:
        raise ExplainError("Expected another model.")

    method = Method(function=unsupported, title="Unsupported", paper="", about="", cost=1.0)
    rollout_method = methods.METHODS["rollout"]
    monkeypatch.setattr("vitviz.evaluation.evaluate.METHODS", {"unsupported": method, "rollout": rollout_method})
    monkeypatch.setitem(methods.METHODS, "unsupported", method)
    out = tmp_path / "results.jsonl"
    result = evaluate(model(), photos, out=out, **FAST)
    assert {row.method for row in result.rows} == {"rollout", "random"}
    assert result.left_out == {"unsupported": "Expected another model."}
    assert "Expected another model." in result.markdown()
    assert "Expected another model." in result.table()
    before = out.read_bytes()
    assert evaluate(model(), photos, out=out, **FAST).left_out == result.left_out
    assert out.read_bytes() == before
    with pytest.raises(ExplainError, match="another model"):  # requested by name
        evaluate(model(), photos, ["unsupported"], out=out, **FAST)


def test_existing_records_are_reused(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "results.jsonl"
    expected = evaluate(model(), photos, NAMES, **FAST)
    first = evaluate(model(), photos, ["rollout"], limit=3, out=out, **FAST)
    first_lines = {line for line in out.read_text().splitlines() if "rollout" in line}
    assert_same(evaluate(model(), photos, NAMES, out=out, **FAST), expected)  # more images, and one more method
    assert first_lines <= set(out.read_text().splitlines())
    assert len(lines(out)) == 1 + 7 * 3
    assert_same(evaluate(model(), photos, ["rollout"], limit=3, out=out, **FAST), first)
    assert len(lines(out)) == 1 + 7 * 3  # further records stay in the file
    (photos / "ox" / "1.png").write_bytes(b"no image")  # evaluated images are not read again
    assert_same(evaluate(model(), photos, NAMES, out=out, **FAST), expected)
    assert [path.name for path in out.parent.iterdir()] == ["results.jsonl"]


def test_interrupted_runs_keep_their_records(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, images = tmp_path / "results.jsonl", []

    def add_three(path: Path, rows: Any) -> None:
        if len(images) == 3:
            raise KeyboardInterrupt
        images.append(append(path, rows))

    monkeypatch.setattr("vitviz.evaluation.runs.append", add_three)
    with pytest.raises(KeyboardInterrupt):
        evaluate(model(), photos, NAMES, out=out, **FAST)
    assert len(lines(out)) == 1 + 3 * 3


HOLDER = """
import os, sys
from pathlib import Path
from vitviz.evaluation.records import opened

with opened(Path(sys.argv[1]), {}):
    print(os.getpid(), flush=True)
    sys.stdin.read()
"""


def test_second_run_with_the_same_file_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(out)], **pipes) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(EvaluationError, match="another process"), opened(out, {}):
            pass
        holder.kill()
        holder.wait()
    with opened(out, {}) as rows:  # the lock of a killed process is taken over
        assert rows == {}
    assert [path.name for path in tmp_path.iterdir()] == ["results.jsonl"]


def test_file_systems_without_locks_need_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs at once add the same rows; each counts once."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    out, row = tmp_path / "results.jsonl", record("a", "rollout")
    with opened(out, {}), opened(out, {}):
        append(out, [row])
        append(out, [row])
    assert read(out, {}) == {(REMOVAL, "a", "rollout"): row}


def test_full_disk_is_explained_and_keeps_the_rows(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    evaluate(model(), photos, NAMES, limit=1, out=out, **FAST)
    before = read(out, (settings := lines(out)[0]["settings"]))
    with file_size_limit(out.stat().st_size + 100), pytest.raises(WritingError, match=r"results\.jsonl"):
        evaluate(model(), photos, NAMES, out=out, **FAST)
    assert read(out, settings) == before


CHILD = """
import sys, torch
from vitviz.evaluation.arena import arena
from vitviz.evaluation.audit import audit
from vitviz.evaluation.compare import compare
from vitviz.evaluation.evaluate import evaluate
from vitviz.weights.zoo import load

torch.set_num_threads(1)
folder, photos, out = sys.argv[1:]
result = evaluate(load(folder), photos, ["attention", "rollout"], out=out, steps=3, random=2, progress=False)
print(result.images, sorted(row.method for row in result.rows))
"""


@pytest.mark.tier("all")
def test_evaluate_with_two_processes_matches_one(photos: Path, tmp_path: Path) -> None:
    """Start processes with the environment that torchrun sets; the launcher's store listens on a free port."""
    out = tmp_path / "results.jsonl"
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torchrun = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    torchrun |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    torchrun |= {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    save(model(), tmp_path / "model")
    command = [sys.executable, "-c", CHILD, str(tmp_path / "model"), str(photos), str(out)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranks = [{**os.environ, **torchrun, "RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
    processes = [subprocess.Popen(command, env=environment, **pipes) for environment in ranks]
    for process in processes:
        table, errors = process.communicate(timeout=patience(120))
        assert process.returncode == 0, errors
        assert table == "7 ['attention', 'random', 'rollout']\n"  # each process returns all results
    assert [path.name for path in tmp_path.glob("results*")] == ["results.jsonl"]
    before = out.read_bytes()
    result = evaluate(model(), photos, NAMES, out=out, **FAST)
    assert out.read_bytes() == before
    assert_same(result, evaluate(model(), photos, NAMES, **FAST))


def numbers_of(path: Path) -> list[float]:
    """Return all numbers in the rows of a file, without times."""
    return [float(text) for text in re.findall(r"-?\b\d[\d.e-]*", re.sub('"seconds": [^,}]*', "", path.read_text()))]


RUNS: dict[str, tuple[Any, dict[str, Any]]] = {
    "evaluate": (evaluate, {"methods": NAMES, **FAST}),
    "arena": (arena, {"methods": NAMES, "limit": 4, **FAST}),
    "audit": (audit, {"methods": NAMES, "progress": False}),
    "compare": (partial(compare, model(1)), {"method": "rollout", "progress": False}),
}


@pytest.mark.parametrize("command", RUNS)
def test_killed_runs_are_continued(command: str, photos: Path, tmp_path: Path) -> None:
    """A killed process leaves an incomplete last line, and several processes may have written the same rows."""
    run, options = RUNS[command]
    complete, out = tmp_path / "complete.jsonl", tmp_path / "results.jsonl"
    expected = run(model(), photos, out=complete, **options)
    header, *rest = complete.read_text().splitlines(keepends=True)
    kept = rest[::2]
    out.write_text(header + "".join([*kept, kept[0]]) + rest[1][:20])
    result = run(model(), photos, out=out, **options)
    assert set(kept) <= set(out.read_text().splitlines(keepends=True))  # equal times show that records were reused
    np.testing.assert_allclose(numbers_of(out), numbers_of(complete), atol=1e-5)
    assert result.describe() == expected.describe()
    with pytest.raises(EvaluationError, match="Use the same or name another file"):
        run(model(2), photos, out=out, **options)


def test_files_with_other_settings_are_refused(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    evaluate(model(), photos, "rollout", limit=1, out=out, options={"rollout": {"query": (0, 1)}}, **FAST)
    before = out.read_bytes()
    same = {"limit": 1, "out": out, "options": {"rollout": {"query": (0, 1)}}, **FAST}
    evaluate(model(), photos, "rollout", **same)  # JSON returns the tuple as a list
    changes: list[tuple[str, dict[str, Any]]] = [
        ("seed was 0 and is 1", {"seed": 1}),
        ("target", {"target": "predicted"}),
        ("baseline", {"baseline": "blur"}),
        ("steps was 3 and is 4", {"steps": 4}),
        ("random", {"random": 3}),
        ("options", {"options": {}}),
    ]
    for message, change in changes:
        with pytest.raises(EvaluationError, match=message):
            evaluate(model(), photos, "rollout", **{**same, **change})
    with pytest.raises(EvaluationError, match="weights"):
        evaluate(model(seed=1), photos, "rollout", **same)
    assert out.read_bytes() == before
    out.write_bytes(before * 2)  # files of two machines, joined
    evaluate(model(), photos, "rollout", **same)
    assert out.read_bytes() == before
    out.write_bytes(before + before.replace(b'"seed": 0', b'"seed": 7'))
    with pytest.raises(EvaluationError, match="seed was 7 and is 0"):
        evaluate(model(), photos, "rollout", **same)


def test_other_files_are_refused_unchanged(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    for text in ("my diary\n", "my diary", '{"a": 1}\n', "[]\n", "\n"):
        out.write_text(text)
        with pytest.raises(EvaluationError, match="something else"):
            evaluate(model(), photos, "rollout", out=out, **FAST)
        assert out.read_text() == text
    out.unlink()
    evaluate(model(), photos, "rollout", limit=2, out=out, **FAST)
    valid = out.read_text().splitlines()
    for invalid in (valid[2][:-9], "[1]", '{"task": "removal", "image": 3, "method": "rollout"}'):
        out.write_text("\n".join([*valid[:2], invalid, *valid[3:]]) + "\n")
        evaluate(model(), photos, "rollout", limit=2, out=out, **FAST)  # computes the row again
        assert len(out.read_text().splitlines()) == len(valid)


def test_links_to_folders_are_followed_without_circles(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "ox").symlink_to(photos / "ox")
    (photos / "ox" / "circle").symlink_to(photos / "ox")
    names = [path.name for path in list_images(tmp_path / "linked")]
    assert names == sorted(path.name for path in (photos / "ox").glob("*.png"))
    before = find_classes(photos, {"ox": 0, "church": 2})
    (photos / "empty").mkdir()  # not a class, but without photographs
    assert find_classes(photos, {"ox": 0, "church": 2}) == before


def test_photographs_without_labels_are_explained_for_the_predicted_class(photos: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    for index, path in enumerate(sorted(photos.rglob("*.png"))):
        shutil.copy(path, plain / f"{index}.png")
    result = evaluate(model(), plain, "rollout", **FAST)
    labeled = evaluate(model(), photos, "rollout", target="predicted", **FAST)
    assert result.images == labeled.images == 7
    assert "the class that the model predicts" in result.describe()
    assert result.row("rollout").means["deletion"] == pytest.approx(labeled.row("rollout").means["deletion"], abs=1e-6)
    (photos / "ox").rename(photos / "2021")  # no class
    assert evaluate(model(), photos, "rollout", target="predicted", **FAST).images == 7
    vit = model()
    vit.pretrained = replace(vit.pretrained, class_ids=("n01", "n02", "n03"))
    with pytest.raises(DataError, match=r"ox, golf ball, church.*--aim predicted"):
        evaluate(vit, photos, "rollout", **FAST)


@pytest.mark.parametrize(
    ("error", "message", "changes"),
    [
        (EvaluationError, "classifier", {"model": tiny.model(**tiny.SMALL)}),
        (ExplainError, "nonsense", {"methods": ["rollout", "nonsense"]}),
        (ExplainError, "nonsense", {"options": {"nonsense": {}}}),
        # Raises an error immediately, although "all" leaves out unsupported methods.
        (ExplainError, "no such option", {"methods": "all", "options": {"gae": {"nonsense": 1}}}),
        (ExplainError, "start", {"methods": "all", "options": {"rollout": {"start": 99}}}),
        (EvaluationError, "options", {"options": {"rollout": {"discard": np.float32(0.1)}}}),
        (EvaluationError, "limit", {"limit": 0}),
        (EvaluationError, "target", {"target": "wrong"}),
        (EvaluationError, "seed", {"seed": -1}),
        (EvaluationError, "methods", {"methods": 3}),
    ],
)
def test_invalid_evaluate_arguments_are_refused(
    photos: Path, error: type, message: str, changes: dict[str, Any]
) -> None:
    out = photos.parent / "refused.jsonl"
    with pytest.raises(error, match=message):
        evaluate(**FAST, **{"model": model(), "folder": photos, "methods": "rollout", "out": out, **changes})
    assert "refused" not in (out.read_text() if out.exists() else "")
    assert message == "start" or not out.exists()


def record(image: str, method: str, **changes: Any) -> dict[str, Any]:
    return {"task": REMOVAL, "image": image, "method": method, **dict.fromkeys(COLUMNS, 0.5), **changes}


def test_table_sorts_methods_by_gain() -> None:
    gains = {"gae": (0.3, 0.1), "rollout": (-0.2, 0.0), "random": (0.0, 0.0), "legrad": (0.4, 0.4)}
    records = {
        (REMOVAL, image, name): record(image, name, gain=gain, seconds=None if name == "random" else 0.25)
        for name, both in gains.items()
        for image, gain in zip("ab", both, strict=True)
    }
    result = tabulate(["a", "b"], ["gae", "rollout", "legrad"], records, {})
    assert [row.method for row in result.rows] == ["legrad", "gae", "random", "rollout"]
    assert result.row("gae").means["gain"] == pytest.approx(0.2)
    assert result.row("gae").errors["gain"] == pytest.approx(0.1)
    assert "| gae | 0.500 ± 0.000 | 0.500 ± 0.000 | 0.500 ± 0.000 | 0.500 ± 0.000 | 0.200 ± 0.100 | 0.25 |" in (
        result.markdown().splitlines()
    )
    table = list(csv.DictReader(io.StringIO(result.csv())))
    assert [row["method"] for row in table] == ["legrad", "gae", "random", "rollout"]
    assert float(table[1]["gain_error"]) == pytest.approx(0.1)
    assert table[2]["seconds"] == ""
    assert len({len(line) for line in result.table().splitlines()[-7:-2]}) == 1  # aligned
    assert "±" not in tabulate(["a"], ["rollout"], records, {}).markdown().splitlines()[2]  # no error for one image


@pytest.mark.parametrize("count", [2, ENOUGH - 1, ENOUGH])
def test_few_images_have_no_best_method(count: int) -> None:
    keys, gains = [str(index) for index in range(count)], {"gae": 0.3, "rollout": -0.2, "random": 0.0}
    records = {(REMOVAL, key, name): record(key, name, gain=gain) for key in keys for name, gain in gains.items()}
    result = tabulate(keys, ["gae", "rollout"], records, {})
    assert [row.method for row in result.rows] == ["gae", "random", "rollout"]  # still sorted
    assert ("gae is the most faithful" in result.describe()) is (count == ENOUGH)
    assert (f"fewer than {ENOUGH} images" in result.describe()) is (count < ENOUGH)
    worse = tabulate(keys, ["rollout"], records, {})
    assert ("no method is better" in worse.describe()) is (count == ENOUGH)


def test_fingerprints_of_different_weights_differ() -> None:
    first = fingerprint(tiny.model())
    assert first == fingerprint(tiny.model())
    other = tiny.model()
    with torch.no_grad():
        other.blocks[1].mlp.fc1.weight[0, 0] += 1e-4
    assert len({first, fingerprint(other), fingerprint(tiny.model(1)), fingerprint(tiny.model().half())}) == 4


def test_processes_reads_the_variables_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert processes() == (0, 1)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert processes() == (2, 3)
    for invalid in ("3", "-1", "two"):
        monkeypatch.setenv("RANK", invalid)
        with pytest.raises(EvaluationError, match="torchrun"):
            processes()
