"""How much memory a trace takes, how much there is, and what is said when it is not enough."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitviz.explorer import Explorer
from vitviz.model import memory as budget
from vitviz.model.config import ViTConfig
from vitviz.model.memory import (
    available_bytes,
    container_bytes,
    forward_bytes,
    is_out_of_memory,
    largest_side,
)
from vitviz.model.vit import ViT
from vitviz.view import ExplorerError

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads memory from /proc")

# What every script below starts with. Threads, kernels and caches are there before anything is measured or limited.
START = """
import json, sys, resource, time
from pathlib import Path
import numpy as np, torch
from vitviz import Explorer, ViT, ViTConfig
from vitviz.model import memory as budget

def status(field):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(field))

def limit(extra):
    resource.setrlimit(resource.RLIMIT_AS, (status("VmSize") + extra, resource.RLIM_INFINITY))

torch.manual_seed(0)
sizes = {"width": 256, "depth": 4, "heads": 4, "patch_size": 8, "image_size": (64, 64), "classes": 5}
config = ViTConfig(**{**sizes, **json.loads(sys.argv[1])})
model = ViT(config).eval()
explorer = Explorer(model)
photo = np.random.default_rng(0).integers(0, 256, (512, 512, 3), np.uint8)
explorer.open(photo, size=64).rollout()
"""


def script(code: str, **changes: object) -> str:
    """What a script prints, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", START + code, json.dumps(changes)], capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


# ---- what a trace takes

PEAK = """
side, dtype, count = {side}, torch.{dtype}, {count}
model.to(dtype)
images = torch.randn(count, 3, side, side, dtype=dtype)
Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
trace = model.trace(images)
if count == 1:
    for block in trace.blocks:
        trace.row(block), trace.column(block)
print(status("VmHWM") - before, budget.forward_bytes(config, trace.tokens.shape[1], count, dtype.itemsize))
"""


@linux
@pytest.mark.parametrize(
    ("changes", "side", "dtype", "count"),
    [
        ({}, 512, "float32", 1),
        ({}, 512, "bfloat16", 1),
        ({}, 256, "float32", 4),
        ({"positions": "rotary", "qk_norm": True, "mlp": "swiglu"}, 512, "float32", 1),
        ({"depth": 12, "width": 128}, 768, "float32", 1),
        ({"head_width": 128, "mlp_width": 64}, 512, "float32", 1),
    ],
)
def test_the_estimate_is_what_a_trace_and_its_questions_take(changes: dict, side: int, dtype: str, count: int) -> None:
    peak, estimate = map(int, script(PEAK.format(side=side, dtype=dtype, count=count), **changes).split())
    assert peak <= estimate <= 2 * peak + budget.SPARE_BYTES


@given(st.integers(1, 10**6), st.integers(1, 64))
def test_more_tokens_images_or_digits_never_take_less(tokens: int, batch: int) -> None:
    config = tiny.config()
    one = forward_bytes(config, tokens, batch, 2)
    assert one > budget.SPARE_BYTES
    # Queries and keys are kept up to a bound and made again above it: only there the sum may fall.
    slack = 128 * 2**20
    assert one <= slack + min(
        forward_bytes(config, tokens + 1, batch, 2),
        forward_bytes(config, tokens, batch + 1, 2),
        forward_bytes(config, tokens, batch, 4),
    )
    assert forward_bytes(config, 2 * tokens, batch) == pytest.approx(forward_bytes(config, tokens, 2 * batch))


# ---- what there is


@linux
def test_this_machine_has_memory() -> None:
    free = available_bytes("cpu")
    total = 1024 * int(Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0])
    assert 0 < free <= total
    assert available_bytes(torch.device("meta")) is None


def group(place: Path, **files: object) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (place / name.replace("__", ".")).write_text(f"{value}\n")


def test_a_containers_limit_counts_and_that_of_every_group_around_it(tmp_path: Path) -> None:
    """The files as Linux writes them, version 2: docs/admin-guide/cgroup-v2, "Memory Interface Files"."""
    table, root = tmp_path / "table", tmp_path / "root"
    table.write_text("0::/outer/inner\n")
    assert container_bytes(root, table) is None  # nothing to read
    group(root / "outer" / "inner", memory__max="max", memory__current=700, memory__stat="anon 600")
    assert container_bytes(root, table) is None  # no limit
    stat = "anon 200\ninactive_file 30\nactive_file 5\nfile 90"
    group(root / "outer", memory__max=1000, memory__current=800, memory__stat=stat)
    assert container_bytes(root, table) == 1000 - 800 + 35  # cached pages of files go when they are needed
    group(root / "outer" / "inner", memory__max=900, memory__current=700, memory__stat="anon 600")
    assert container_bytes(root, table) == 200
    table.write_text("0::/as/seen/outside\n")  # a container sees its own group at the top
    group(root, memory__max=5000, memory__current=4000)
    assert container_bytes(root, table) == 1000
    table.unlink()
    assert container_bytes(root, table) is None


def test_the_older_kind_of_limit_counts_too(tmp_path: Path) -> None:
    table, root = tmp_path / "table", tmp_path / "root"
    table.write_text("9:name=systemd:/\n4:memory:/box\n3:cpu,cpuacct:/\n0::/\n")
    stat = "total_inactive_file 7\ninactive_file 1000"
    usage = {"memory__usage_in_bytes": 60, "memory__stat": stat}
    group(root / "memory" / "box", memory__limit_in_bytes=100, **usage)
    assert container_bytes(root, table) == 47
    group(root / "memory", memory__limit_in_bytes=9223372036854771712, **usage)
    assert container_bytes(root, table) == 47
    group(root / "unified", memory__max=50, memory__current=40)  # both kinds at once, as systemd's hybrid
    assert container_bytes(root, table) == 10


@given(st.integers(1, 30), st.integers(0, 10**7), st.integers(0, 5000), st.integers(1, 500))
def test_the_largest_side_fits_and_the_next_does_not(multiple: int, free: int, below: int, cost: int) -> None:
    def bytes_at(side: int) -> int:
        return cost * side**2

    side = largest_side(bytes_at, free, multiple, below)
    if side is None:
        assert bytes_at(multiple) > free or multiple >= below
    else:
        assert side % multiple == 0
        assert bytes_at(side) <= free
        assert 0 < side < below
        assert bytes_at(side + multiple) > free or side + multiple >= below


# ---- when it is not enough


@linux
def test_what_is_too_large_is_refused_before_it_runs_and_what_is_named_fits() -> None:
    code = """
run, model.trace = model.trace, lambda *_: sys.exit("it ran")
limit(90 * 2**20)
try:
    explorer.open(photo, size=512)
except ValueError as error:
    said = f"{type(error).__name__}: {error}"
print(said)
model.trace = run
view = explorer.open(photo, size=int(said.split("size=")[1].split(" ")[0].rstrip(".")))
print(view.rollout().values.sum() > 0, view.size)
"""
    said, then = script(code).splitlines()
    for fact in ("ExplorerError", "512 x 512", "4,097 tokens", "MB", "CPU", "size="):
        assert fact in said
    size = int(re.search(r"size=(\d+)", said)[1])
    assert size % 8 == 0
    assert 64 < size < 512
    assert then == f"True ({size}, {size})"


@linux
def test_memory_that_runs_out_during_the_run_is_told_in_words() -> None:
    """The allocator's own failure: the limit is lowered when the run has begun, as if someone else took the memory."""
    code = """
handle = model.patch_embed.register_forward_hook(lambda *_: limit(6 * 2**20))
for _ in range(2):
    try:
        explorer.open(photo, size=512)
    except ValueError as error:
        said = f"{type(error).__name__}: {error}"
        assert error.__cause__ is None and error.__context__ is None  # a traceback would hold the tensors
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    print(said)
handle.remove()
print(explorer.open(photo, size=int(said.split("size=")[1].split(" ")[0].rstrip("."))).size)
"""
    said, again, then = script(code).splitlines()
    for fact in ("ExplorerError", "512 x 512", "4,097 tokens", "than there was", "size="):
        assert fact in said
    assert again == said
    size = int(re.search(r"size=(\d+)", said)[1])
    assert then == f"({size}, {size})"


@linux
def test_the_allocators_words_are_known() -> None:
    """The errors themselves, as PyTorch and NumPy raise them under a limit."""
    code = """
limit(64 * 2**20)
takes = [lambda n: torch.zeros(n), lambda n: torch.ones(n // 10) * 2.0, lambda n: np.zeros(n), lambda n: b"1" * n]
for take in takes:
    try:
        take(10**9)
    except (RuntimeError, MemoryError) as error:
        print(type(error).__name__, budget.is_out_of_memory(error))
"""
    lines = [line.split() for line in script(code).splitlines()]
    assert [known for _, known in lines] == ["True"] * 4
    assert [name for name, _ in lines] == ["RuntimeError", "RuntimeError", "MemoryError", "MemoryError"]


def test_other_errors_pass_through() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    for error in (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), ValueError("out of memory"), OSError(12)):
        assert not is_out_of_memory(error)
    explorer = Explorer(tiny.model())

    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    explorer.model.blocks[1].attn.register_forward_pre_hook(fail)
    explorer.model.blocks[1].norm1.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="a bug"):
        explorer.open(torch.zeros(9, 9, 3, dtype=torch.uint8).numpy())


@pytest.mark.cuda
def test_a_full_gpu_is_told_in_words() -> None:
    config = ViTConfig(image_size=(64, 64), patch_size=8, width=256, depth=4, heads=4, classes=5)
    explorer = Explorer(ViT(config), device="cuda")
    photo = torch.zeros(512, 512, 3, dtype=torch.uint8).numpy()
    explorer.open(photo, size=64)
    taken = torch.empty(available_bytes("cuda") - 64 * 2**20, dtype=torch.uint8, device="cuda")
    with pytest.raises(ExplorerError, match="size="):
        explorer.open(photo, size=512)
    del taken
    explorer.open(photo, size=512)
