"""Hostile files take no more memory than they are long: read in a process of its own that cannot have more."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hostile_files
import pytest
import torch
from hostile_files import BOMB, HOSTILE, STATE
from safetensors.torch import save_file

import vitviz


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return hostile_files.hostile(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from hostile_files.elsewhere(tmp_path, monkeypatch)


@pytest.fixture
def good(tmp_path: Path) -> list[Path]:
    return hostile_files.good(tmp_path)


LIMITED = """
import json, re, resource, sys
import torch, vitviz
torch.set_num_threads(1)

def mapped():
    try:
        return int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
    except OSError:  # no Linux: without a limit, the words alone are compared
        return None

good, files, room, heads = json.loads(sys.stdin.read())
for path in good:  # what is imported and set up on the way is not the files' doing
    vitviz.load(path, heads=5)
said = {}
for name, path in files.items():
    if (now := mapped()) is not None:
        resource.setrlimit(resource.RLIMIT_AS, (now + room, resource.RLIM_INFINITY))
    try:
        vitviz.load(path, heads=heads)
    except Exception as error:
        said[name] = f"{type(error).__name__}: {error}"
print(json.dumps(said))
"""


def said_within(room: int, good: list[Path], files: dict[str, Path], heads: int | None = 5) -> dict[str, str]:
    """The refusal of each file in a process that cannot map more than `room` bytes beside what it has."""
    named = {name: str(path) for name, path in files.items()}
    question = json.dumps([[str(path) for path in good], named, room, heads])
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}  # else the C library maps 64 MB for each thread, or does not
    answer = subprocess.run(
        [sys.executable, "-c", LIMITED], input=question, capture_output=True, text=True, check=True, env=environment
    )
    said: dict[str, str] = json.loads(answer.stdout.splitlines()[-1])
    return said


ROOM = 40 * 2**20  # the longest hostile file has 4 MB; Python and its libraries take some for themselves


def test_it_takes_no_more_memory_than_it_is_long(files: dict[str, Path], good: list[Path]) -> None:
    """With little room for more, every refusal is the same: nobody asked for what was not there."""
    assert max(path.stat().st_size for path in files.values()) < ROOM / 5 < ROOM < BOMB / 5
    said = said_within(ROOM, good, files)
    assert set(said) == set(files)
    for name, words in said.items():
        assert re.search(f"^CheckpointError: .*{HOSTILE[name][2]}", words, re.DOTALL), f"{name}: {words}"


def test_the_room_is_too_small_for_a_bomb(good: list[Path], tmp_path: Path) -> None:
    """The measure itself: 256 MB of honest weights do not fit into it."""
    save_file(STATE | {"norm.bias": torch.zeros(BOMB // 4)}, tmp_path / "b.safetensors")
    (words,) = said_within(ROOM, good, {"b": tmp_path / "b.safetensors"}).values()
    assert re.search("alloc|memory|mmap", words), words


@pytest.mark.parametrize("name", ["b.pt", "b.pth", "b.safetensors"])
def test_a_long_file_takes_about_as_much_memory_as_it_is_long(good: list[Path], tmp_path: Path, name: str) -> None:
    """54 MB of weights with a NaN in the last of them: the file itself, one copy, and a part of the checking."""
    wide = vitviz.ViTConfig(image_size=(32, 32), patch_size=16, width=1024, depth=1, heads=16, classes=0)
    with torch.device("meta"):
        state = {name: torch.ones(tensor.shape, device="cpu") for name, tensor in vitviz.ViT(wide).state_dict().items()}
    state["norm.bias"][5] = float("nan")
    path = tmp_path / name
    if name.endswith("safetensors"):
        save_file(state, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=name.endswith(".pt"))
    size = path.stat().st_size
    assert size > 5e7
    said = said_within(int(3.6 * size), good, {name: path}, heads=None)
    assert "NaN or infinity in norm.bias" in said[name]
    assert "NaN" not in said_within(size // 2, good, {name: path}, heads=None).get(name, "")
