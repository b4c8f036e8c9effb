"""Devices by name, and what becomes of freed memory."""

import os
import platform
import subprocess
import sys

import pytest
from patience import patience

from vitviz.model import devices
from vitviz.model.devices import DeviceError, device_named


@pytest.mark.parametrize("name", ["abacus", "cpu:x", "cpu:1", "cuda:99", "cpu:"])
def test_a_device_that_is_not_here_is_refused(name: str) -> None:
    with pytest.raises(DeviceError, match=r"Expected a device of this machine.*cpu"):
        device_named(name)
    assert device_named("cpu:0").type == "cpu"


# The C library's own counts: where large blocks come from, how many arenas there are, and which pages it has.
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
block = torch.ones(5_000_000)  # 20 MB, from the kernel and back to it
assert libc.mallinfo2().hblkhd - mapped >= block.nbytes
assert keep_freed_memory()
mapped = libc.mallinfo2().hblkhd
block = [torch.ones(5_000_000) for _ in range(5)]
heap = libc.mallinfo2()
assert heap.hblkhd <= mapped, "large blocks do not come from the heap"
block = None
assert libc.mallinfo2().arena == heap.arena, "the heap was made smaller"

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


def test_freed_memory_is_kept_shared_by_threads_and_returned(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    if platform.libc_ver()[0] == "glibc":
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        command = [sys.executable, "-c", MEMORY, str(tmp_path / "arenas.xml")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patience(120))
        assert done.returncode == 0, done.stderr[-2000:]
    monkeypatch.setattr(devices.ctypes, "CDLL", lambda _: object())  # a C library that has no such functions
    assert not devices.keep_freed_memory()
    assert not devices.share_freed_memory()
    assert not devices.return_freed_memory()
