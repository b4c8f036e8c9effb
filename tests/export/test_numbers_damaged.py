"""Files of numbers that are damaged, or are none, are refused in words and print nothing that a terminal obeys."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitviz.export.numbers import NumbersError, read, replay

RECORD: dict[str, Any] = {
    "format": "vitviz map 1",
    "question": {"call": "attention"},
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


def bomb() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("values.npy", bytes(100_000_000))
    return out.getvalue()


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in RECORD.items() if key != name}


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
    "a bomb": bomb(),
    **{f"without {name}": csv(without(name)) for name in RECORD if name != "versions"},
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
def test_damaged_files_are_refused_in_words(name: str, tmp_path: Path) -> None:
    path = tmp_path / "map.csv"
    path.write_bytes(DAMAGED[name])
    with pytest.raises(NumbersError, match=r"^Expected .* got") as refused:
        replay(path)
    assert str(refused.value).isprintable()


def test_cut_archives_are_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "map.npz"
    whole = npz(record=json.dumps(RECORD), values=np.ones(6, np.float32))
    path.write_bytes(whole)
    assert read(path)[1].shape == (2, 3)
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        try:
            read(path)
        except NumbersError as error:
            assert str(error).startswith("Expected")  # noqa: PT017 - some bytes do not matter


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_pipes_and_devices_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "map.csv")
    for path in (tmp_path / "map.csv", Path("/dev/zero"), tmp_path, tmp_path / "nothing"):
        with pytest.raises(NumbersError, match="Expected a file of numbers"):
            read(path)
