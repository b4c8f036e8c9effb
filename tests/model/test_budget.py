"""Test estimates of a trace's memory, available memory, errors when memory is short, devices and the allocator."""

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
import tiny
import torch
from allocations import Allocations
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import patience

from vitviz.explorer import Explorer
from vitviz.model import devices, memory
from vitviz.model.config import ViTConfig
from vitviz.model.devices import DeviceError, device_named
from vitviz.model.memory import available_bytes, container_bytes, forward_bytes, is_out_of_memory, largest_side
from vitviz.model.vit import ViT
from vitviz.view import ExplorerError

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads memory from /proc")
SIZES = {"width": 256, "depth": 4, "heads": 4, "patch_size": 8, "image_size": (64, 64), "classes": 5}


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("changes", "side", "dtype", "count"),
    [
        ({}, 400, torch.bfloat16, 1),
        ({}, 256, torch.float32, 4),
        ({"positions": "rotary", "norms": {"qk": True}, "mlp": "swiglu"}, 400, torch.float32, 1),
        ({"depth": 12, "width": 128}, 400, torch.float32, 1),
        ({"head_width": 128, "mlp_width": 64}, 400, torch.float32, 1),
    ],
)
def test_the_estimate_covers_a_trace_and_its_queries(changes: dict, side: int, dtype: torch.dtype, count: int) -> None:
    config = ViTConfig(**{**SIZES, **changes})
    model, images = ViT(config).eval().to(dtype), torch.randn(count, 3, side, side, dtype=dtype)
    with Allocations() as allocations:
        trace = model.trace(images)
        for block in trace.blocks if count == 1 else ():
            trace.row(block), trace.column(block)
    estimate = forward_bytes(config, trace.tokens.shape[1], count, dtype.itemsize) - memory.SPARE_BYTES
    assert allocations.most <= estimate <= 1.8 * allocations.most


@linux
def test_available_bytes_of_this_machine_are_plausible() -> None:
    free = available_bytes("cpu")
    total = 1024 * int(Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0])
    assert 0 < free <= total
    assert available_bytes(torch.device("meta")) is None
    process, limit = psutil.Process(), 2**40  # more than any machine has, so that other allocations still succeed
    before = process.rlimit(psutil.RLIMIT_AS)
    process.rlimit(psutil.RLIMIT_AS, (process.memory_info().vms + limit, before[1]))
    remaining = memory.address_bytes()
    process.rlimit(psutil.RLIMIT_AS, before)
    assert 0.9 * limit < remaining <= limit


def group(place: Path, **files: object) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (place / name.replace("__", ".")).write_text(f"{value}\n")


def test_container_bytes_is_the_least_of_all_control_groups(tmp_path: Path) -> None:
    """Use the files of Linux's control groups, version 2 (docs/admin-guide/cgroup-v2, "Memory Interface Files")."""
    table, root = tmp_path / "table", tmp_path / "root"
    table.write_text("0::/outer/inner\n")
    assert container_bytes(root, table) is None  # nothing to read
    group(root / "outer" / "inner", memory__max="max", memory__current=700, memory__stat="anon 600")
    assert container_bytes(root, table) is None  # no limit
    stat = "anon 200\ninactive_file 30\nactive_file 5\nfile 90"
    group(root / "outer", memory__max=1000, memory__current=800, memory__stat=stat)
    assert container_bytes(root, table) == 1000 - 800 + 35  # cached file pages can be evicted
    group(root / "outer" / "inner", memory__max=900, memory__current=700, memory__stat="anon 600")
    assert container_bytes(root, table) == 200
    table.write_text("0::/as/seen/outside\n")  # inside a container, its own group is mounted at the root
    group(root, memory__max=5000, memory__current=4000)
    assert container_bytes(root, table) == 1000
    table.unlink()
    assert container_bytes(root, table) is None


def test_container_bytes_reads_control_groups_version_1(tmp_path: Path) -> None:
    table, root = tmp_path / "table", tmp_path / "root"
    table.write_text("9:name=systemd:/\n4:memory:/box\n3:cpu,cpuacct:/\n0::/\n")
    stat = "total_inactive_file 7\ninactive_file 1000"
    usage = {"memory__usage_in_bytes": 60, "memory__stat": stat}
    group(root / "memory" / "box", memory__limit_in_bytes=100, **usage)
    assert container_bytes(root, table) == 47
    group(root / "memory", memory__limit_in_bytes=9223372036854771712, **usage)
    assert container_bytes(root, table) == 47
    group(root / "unified", memory__max=50, memory__current=40)  # both versions, as in systemd's hybrid mode
    assert container_bytes(root, table) == 10


@settings(max_examples=40)
@given(st.integers(1, 30), st.integers(0, 10**7), st.integers(0, 5000), st.integers(1, 500))
def test_largest_side_fits_and_the_next_does_not(multiple: int, free: int, below: int, cost: int) -> None:
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


@pytest.fixture
def explorer(monkeypatch: pytest.MonkeyPatch) -> Explorer:
    monkeypatch.setattr(memory, "SPARE_BYTES", 0)
    return Explorer(tiny.model(grid=(4, 4), patch=2))


PHOTO = np.zeros((64, 64, 3), np.uint8)


def refused(explorer: Explorer) -> tuple[str, int]:
    """Return the error for a photograph of 64 x 64 pixels, and the size that it suggests."""
    with pytest.raises(ExplorerError) as caught:
        explorer.open(PHOTO, size=64)
    assert caught.value.__cause__ is caught.value.__context__ is None  # a traceback would hold the tensors
    text = str(caught.value)
    assert all(fact in text for fact in ("64 x 64", "1,025 tokens", "CPU", "size=")), text
    return text, int(text.split("size=")[1].rstrip("."))


def test_too_large_input_raises_before_the_model_runs(explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    free = forward_bytes(explorer.model.config, 401) + 50_000
    monkeypatch.setattr(memory, "available_bytes", lambda _: free)
    run, explorer.model.trace = explorer.model.trace, lambda *_: pytest.fail("it ran")
    text, size = refused(explorer)
    assert "MB of memory, and" in text
    explorer.model.trace = run
    view = explorer.open(PHOTO, size=size)
    assert view.size == (size, size)
    assert forward_bytes(explorer.model.config, view.trace.tokens.shape[1]) <= free
    assert 32 < size < 64


@pytest.mark.parametrize("take", [torch.empty, np.empty, bytearray], ids=["PyTorch", "NumPy", "Python"])
def test_allocation_failure_names_a_size_that_fits(explorer: Explorer, take: Callable) -> None:
    """A petabyte exceeds the address space, so each allocator raises its own error."""
    handle = explorer.model.patch_embed.register_forward_hook(lambda *_: take(10**15))
    text, size = refused(explorer)
    handle.remove()
    assert "than was free" in text
    assert explorer.open(PHOTO, size=size).size == (size, size)


def test_other_errors_pass_through(explorer: Explorer) -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    for error in (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), ValueError("out of memory"), OSError(12)):
        assert not is_out_of_memory(error)
    explorer.model.blocks[1].norm1.register_forward_pre_hook(lambda *_: torch.ones(2) @ torch.ones(3))
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        explorer.open(PHOTO)


@pytest.mark.cuda
def test_full_gpu_names_a_size() -> None:
    explorer = Explorer(ViT(ViTConfig(**SIZES)), device="cuda")
    photo = torch.zeros(512, 512, 3, dtype=torch.uint8).numpy()
    explorer.open(photo, size=64)
    filler = torch.empty(available_bytes("cuda") - 64 * 2**20, dtype=torch.uint8, device="cuda")
    with pytest.raises(ExplorerError, match="size="):
        explorer.open(photo, size=512)
    del filler
    explorer.open(photo, size=512)


# ---- devices by name, and freed memory


@pytest.mark.parametrize("name", ["abacus", "cpu:x", "cpu:1", "cuda:99", "cpu:"])
def test_missing_devices_raise(name: str) -> None:
    with pytest.raises(DeviceError, match="cpu"):
        device_named(name)
    assert device_named("cpu:0").type == "cpu"


# This program reads the C library's statistics: sources of large blocks, number of arenas, and resident pages.
MEMORY = """
import ctypes, re, sys, threading
import psutil, torch
from vitviz.model.devices import keep_freed_memory, return_freed_memory, share_freed_memory

libc = ctypes.CDLL(None)
class Info(ctypes.Structure):
    NAMES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in NAMES.split()]
libc.mallinfo2.restype = Info
libc.fopen.restype = ctypes.c_void_p

def arenas():
    file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
    libc.malloc_info(0, file)
    libc.fclose(file)
    return len(re.findall("<heap nr=", open(sys.argv[1]).read()))

mapped = libc.mallinfo2().hblkhd
block = torch.ones(5_000_000)  # 20 MB, allocated from the kernel and returned to it
assert libc.mallinfo2().hblkhd - mapped >= block.nbytes
assert keep_freed_memory()
mapped = libc.mallinfo2().hblkhd
block = [torch.ones(5_000_000) for _ in range(5)]
heap = libc.mallinfo2()
assert heap.hblkhd <= mapped, "large blocks do not come from the heap"
block = None
assert libc.mallinfo2().arena == heap.arena, "the heap shrank"

assert share_freed_memory()
before, barrier = arenas(), threading.Barrier(4)
def work():
    barrier.wait()
    torch.ones(500_000)
    barrier.wait()
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert arenas() == before, "threads have arenas of their own"

passing, stay = zip(*[(torch.ones(250_000), torch.ones(2500)) for _ in range(100)])
held = psutil.Process().memory_info().rss
del passing  # 100 MB between blocks that stay
assert return_freed_memory()
assert held - psutil.Process().memory_info().rss > 80e6, "free pages stay with the process"
"""


def test_allocator_keeps_shares_and_returns_freed_memory(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    if platform.libc_ver()[0] == "glibc":
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        command = [sys.executable, "-c", MEMORY, str(tmp_path / "arenas.xml")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patience(120))
        assert done.returncode == 0, done.stderr[-2000:]
    monkeypatch.setattr(devices.ctypes, "CDLL", lambda _: object())  # a C library without these functions
    assert not devices.keep_freed_memory()
    assert not devices.share_freed_memory()
    assert not devices.return_freed_memory()
