"""Test errors for damaged files of numbers, changed photographs, and a cache that cannot be written."""

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

import vitviz
from vitviz.cli.main import main
from vitviz.export.numbers import NumbersError, replay, save
from vitviz.site.onnx import StaticError
from vitviz.site.runtime import runtime_files
from vitviz.site.static import cached_graphs

RECORD: dict[str, Any] = {
    "format": "vitviz map 1",
    "question": {"method": "attention"},
    "model": {"source": "model"},
    "photo": {"source": "photo.png"},
    "input": {"grid": [2, 3]},
    "versions": {},
}


def csv(record: object, rows: str = "row,column,value\n" + "0,0,1\n" * 6) -> bytes:
    return f"# {json.dumps(record)}\n{rows}".encode()


def npz(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


DAMAGED = {
    "nothing.csv": b"",
    "no UTF-8.csv": b"# \xff\xfe",
    "no JSON.csv": b"# {",
    "another table.csv": b"a,b\n1,2\n",
    "no numbers.csv": csv(RECORD, "row,column\n0,0\n"),
    "too few.csv": csv(RECORD, "row,column,value\n0,0,1\n"),
    "another format.csv": csv(RECORD | {"format": "vitviz map 0"}),
    "nothing.npz": b"",
    "no archive.npz": b"PK\x03\x04" + bytes(50),
    "cut short.npz": npz(record=json.dumps(RECORD), values=np.ones(6, np.float32))[:300],
    "a pickle.npz": npz(record=np.array({"a": 1}, object), values=np.zeros((2, 3))),
    "no numbers.npz": npz(record=json.dumps(RECORD)),
    "other values.npz": npz(record=json.dumps(RECORD), values=np.ones(7, np.float32)),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(DAMAGED[name])
    with pytest.raises(NumbersError, match=r"^Expected") as refused:
        replay(tmp_path / name)
    assert "Expected" not in str(refused.value)[1:]  # one sentence


def test_replay_refuses_another_photograph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    view = vitviz.Explorer("vit-cifar10").open(vitviz.example("koala"))
    saved = save(view, view.attention(), tmp_path / "map.csv", model="vit-cifar10")
    assert main(["replay", str(saved), "--photo", str(vitviz.example("koala"))]) == 0
    assert main(["replay", str(saved), "--photo", str(vitviz.example("church"))]) == 2
    words = r"Expected the original photograph koala\.jpg, got a different one: its pixels"
    assert re.search(words, capsys.readouterr().err)
    head, _, table = saved.read_text(encoding="utf-8").partition("\n")
    record = json.loads(head.removeprefix("# "))
    record["photo"]["pixels"] = None  # files of the browser have no checksum
    saved.write_text(f"# {json.dumps(record)}\n{table}", encoding="utf-8")
    for name, words in (("koala", False), ("church", True)):
        assert main(["replay", str(saved), "--photo", str(vitviz.example(name))]) == int(words)
        assert ("this photograph may differ" in capsys.readouterr().out) == words


def test_unwritable_cache_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").write_text("no folder")  # root may write into any folder
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    for work in (runtime_files, lambda: cached_graphs(tiny.model())):
        with pytest.raises(StaticError, match=r"home/vitviz.*XDG_CACHE_HOME"):
            work()
