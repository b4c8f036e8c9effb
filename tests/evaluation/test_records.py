"""What is written down of an evaluation: the table, half lines, models told apart, processes."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from vitviz.evaluation import EvaluationError
from vitviz.evaluation.records import Journal, processes, read
from vitviz.evaluation.table import COLUMNS, ENOUGH, tabulate
from vitviz.weights.checkpoint import fingerprint


def record(image: str, method: str, **changes: Any) -> dict[str, Any]:
    blank = dict.fromkeys(COLUMNS, 0.5)
    return {"image": image, "method": method, **blank, **changes}


def test_the_table_puts_the_best_first() -> None:
    gains = {"gae": (0.3, 0.1), "rollout": (-0.2, 0.0), "random": (0.0, 0.0), "legrad": (0.4, 0.4)}
    records = {
        (image, name): record(image, name, gain=gain, seconds=None if name == "random" else 0.25)
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
    widths = {len(line) for line in result.table().splitlines()[2:]}
    assert len(widths) == 1
    one = tabulate(["a"], ["rollout"], records, {})
    assert "±" not in one.markdown().splitlines()[2]


@pytest.mark.parametrize("count", [2, ENOUGH - 1, ENOUGH])
def test_a_few_images_name_no_best_method(count: int) -> None:
    keys, gains = [str(index) for index in range(count)], {"gae": 0.3, "rollout": -0.2, "random": 0.0}
    records = {(key, name): record(key, name, gain=gain) for key in keys for name, gain in gains.items()}
    result = tabulate(keys, ["gae", "rollout"], records, {})
    assert [row.method for row in result.rows] == ["gae", "random", "rollout"]  # the table is sorted all the same
    assert ("gae is the most faithful" in result.describe()) is (count == ENOUGH)
    assert (f"fewer than {ENOUGH} images" in result.describe()) is (count < ENOUGH)
    worse = tabulate(keys, ["rollout"], records, {})
    assert ("no method is better" in worse.describe()) is (count == ENOUGH)


def test_a_journal_begins_again_after_half_a_first_line(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    Journal(path, {"seed": 1})
    path.write_bytes(path.read_bytes()[:11])
    Journal(path, {"seed": 1}).add([record("a", "rollout")])
    assert set(read(path, {"seed": 1})[0]) == {("a", "rollout")}
    with path.open("ab") as file:
        file.write(b'{"image": "b", "meth')
    Journal(path, {"seed": 1}).add([record("c", "rollout")])
    assert set(read(path, {"seed": 1})[0]) == {("a", "rollout"), ("c", "rollout")}
    path.write_bytes(b"")
    Journal(path, {"seed": 2})
    assert read(path, {"seed": 2}) == ({}, path.stat().st_size)


def test_a_fingerprint_tells_models_apart() -> None:
    first = fingerprint(tiny.model())
    assert first == fingerprint(tiny.model())
    other = tiny.model()
    with torch.no_grad():
        other.blocks[1].mlp.fc1.weight[0, 0] += 1e-4
    assert len({first, fingerprint(other), fingerprint(tiny.model(1)), fingerprint(tiny.model().half())}) == 4


def test_processes_are_those_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert processes() == (0, 1)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert processes() == (2, 3)
    for wrong in ("3", "-1", "two"):
        monkeypatch.setenv("RANK", wrong)
        with pytest.raises(EvaluationError, match="torchrun"):
            processes()
