"""Hostile and damaged files are refused with a message, run no code, and take no more memory than their length."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import hostile_files
import pytest
import torch
from hostile_files import BOMB, HOSTILE, MARK, STATE
from safetensors.torch import save_file
from timm_models import written

import vitviz
from vitviz.weights.checks import CheckpointError
from vitviz.weights.files import load_file


def test_folder_and_missing_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.pt").mkdir()
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        vitviz.load(tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match="is a folder"):
        load_file(tmp_path / "x.pt")
    for name in ("y.pt", "y.safetensors"):
        with pytest.raises(CheckpointError, match=rf"y\.{name[2:]}', which does not exist"):
            vitviz.load(tmp_path / name)


# --- memory: one process with a limit reads all files

READER = """
import json, re, resource, sys
import torch, vitviz
torch.set_num_threads(1)

def mapped():
    try:
        return int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
    except OSError:  # not Linux: no limit, only messages are compared
        return None

good, tasks = json.loads(sys.stdin.read())
messages = {}
for path in good:  # imports and set-up need memory once
    messages[path] = vitviz.load(path, heads=5).norm.weight.tolist()
for name, path, limit, heads in tasks:
    if (now := mapped()) is not None:
        resource.setrlimit(resource.RLIMIT_AS, (now + limit, resource.RLIM_INFINITY))
    try:
        vitviz.load(path, heads=heads)
    except Exception as error:
        messages[name] = f"{type(error).__name__}: {error}"
print(json.dumps(messages))
"""
LIMIT = 40 * 2**20  # the longest hostile file has 4 MB; Python and its libraries need some memory
LONG = (".pt", ".bin", ".safetensors")
# One heap, because each thread may map 64 MB; large allocations are returned to the system when freed.
ONE_HEAP = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(2**20), "MALLOC_TRIM_THRESHOLD_": str(2**20)}


def test_hostile_files_run_no_code_and_are_refused_within_little_memory(
    tmp_path: Path,
) -> None:
    """With little free memory, every message is the same: no reader allocates what a file only claims.

    Long files get memory for themselves, one copy, and a part of the checks. Files that do not fit check the limit
    itself: 256 MB of valid weights, and long files with memory for half of one copy.
    """
    (tmp_path / "hostile").mkdir()
    files = hostile_files.hostile(tmp_path / "hostile")
    assert max(path.stat().st_size for path in files.values()) < LIMIT / 5 < LIMIT < BOMB / 5
    tasks = [(name, str(path), LIMIT, 5) for name, path in files.items()]
    save_file(STATE | {"norm.bias": torch.zeros(BOMB // 4)}, tmp_path / "bomb.safetensors")
    tasks += [("bomb", str(tmp_path / "bomb.safetensors"), LIMIT, 5)]
    # 54 MB of weights with a NaN in the last of them, in each form
    wide = vitviz.ViTConfig(image_size=(32, 32), patch_size=16, width=1024, depth=1, heads=16, classes=0)
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in vitviz.ViT(wide).state_dict().items()}
    state = {name: torch.ones(shape) for name, shape in shapes.items()}
    state["norm.bias"][5] = float("nan")
    for name in LONG:
        path = written(state, tmp_path, name)
        size = path.stat().st_size
        assert size > 5e7
        tasks += [(f"{name} cramped", str(path), size // 2, None), (name, str(path), int(3.6 * size), None)]
    good = [str(path) for path in hostile_files.good(tmp_path)]
    answer = subprocess.run(
        [sys.executable, "-c", READER], input=json.dumps([good, tasks]), capture_output=True, text=True, check=True,
        env={**os.environ, **ONE_HEAP, "PYTHONPATH": str(Path(__file__).parents[2])}, cwd=tmp_path,
    )  # fmt: skip
    assert not (tmp_path / MARK).exists()
    messages = json.loads(answer.stdout.splitlines()[-1])
    assert [messages[path] for path in good] == [STATE["norm.weight"].tolist()] * 3
    for name, path in files.items():
        assert re.search(f"^CheckpointError: .*{HOSTILE[name][2]}", messages[name], re.DOTALL), (
            f"{name}: {messages[name]}"
        )
        assert len(messages[name]) < 1200
        assert repr(str(path)) in messages[name]
    assert re.search("alloc|memory|mmap", messages["bomb"]), messages["bomb"]
    for name in LONG:
        assert "NaN or infinity in norm.bias" in messages[name]
        assert "NaN" not in messages[f"{name} cramped"]
