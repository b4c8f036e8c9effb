"""Test errors for damaged files of numbers, changed photographs, and a cache that cannot be written."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

import vitviz
from vitviz.cli.main import main
from vitviz.export.numbers import NumbersError, read, replay, save
from vitviz.export.onnx import StaticError
from vitviz.export.runtime import runtime_files
from vitviz.export.static import cached_graphs

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
    "nothing": b"",
    "no archive": b"PK\x03\x04" + bytes(50),
    "no UTF-8": b"# \xff\xfe",
    "no JSON": b"# {",
    "deep": b"# " + b"[" * 100_000,
    "a list": csv([]),
    "a number": csv(7),
    "another table": b"a,b\n1,2\n",
    "a pickle": npz(record=np.array({"a": 1}, object), values=np.zeros((2, 2))),
    "a bomb": npz(values=np.zeros(100_000_000, np.uint8)),
    **{
        f"without {name}": csv({key: RECORD[key] for key in RECORD if key != name})
        for name in RECORD
        if name != "versions"
    },
    **{f"{name} null": csv(RECORD | {name: None}) for name in RECORD},
    "a grid of text": csv(RECORD | {"input": {"grid": "ab"}}),
    "a grid of infinity": csv(RECORD | {"input": {"grid": [float("inf"), 1]}}),
    "a source of numbers": csv(RECORD | {"model": {"source": 7}}),
    "no values": csv(RECORD, "row,column\n0,0\n"),
    "values of text": csv(RECORD, "value\nmany\n"),
    "an escape": csv(RECORD | {"model": {"source": "\x1b]0;title\x07"}}),
    "an escape of one byte": csv(RECORD | {"photo": {"source": "\x9b31m"}}),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "map.csv"
    path.write_bytes(DAMAGED[name])
    with pytest.raises(NumbersError, match=r"^Expected .* got") as refused:
        replay(path)
    assert str(refused.value).isprintable()


def test_truncated_archives_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "map.npz"
    whole = npz(record=json.dumps(RECORD), values=np.ones(6, np.float32))
    path.write_bytes(whole)
    assert read(path)[1].shape == (2, 3)
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        try:
            read(path)
        except NumbersError as error:
            assert str(error).startswith("Expected")  # noqa: PT017 - some bytes have no effect


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_numbers_must_be_regular_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "map.csv")
    for path in (tmp_path / "map.csv", Path("/dev/zero"), tmp_path, tmp_path / "nothing"):
        with pytest.raises(NumbersError, match="Expected a file of numbers"):
            read(path)


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
    for work in (lambda: runtime_files("wasm"), lambda: cached_graphs(tiny.model())):
        with pytest.raises(StaticError, match=r"Expected a cache that can be written at .*home/vitviz.*XDG_CACHE_HOME"):
            work()
