"""What a process asks of the machine under it."""

import platform
import resource
import subprocess
import sys

import pytest

from vitviz.model.devices import DeviceError, device_named

# Four steps take and free 200 MB in buffers of 20 MB, as activations are: how many pages must the kernel clear?
# The heap has settled after eight steps: then none. Without the call it is between none of them and all, as the heap's
# top happens to be in use or free.
AGAIN = """
import resource, torch
from vitviz.model.devices import keep_freed_memory
kept = keep_freed_memory()
def step():
    return [torch.ones(5_000_000) for _ in range(10)]
for _ in range(8):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    step()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES = 4 * 10 * 5_000_000 * 4 // resource.getpagesize()


@pytest.mark.parametrize("name", ["abacus", "cpu:x", "cpu:1", "cuda:99", "cpu:"])
def test_a_device_that_is_not_here_is_refused(name: str) -> None:
    with pytest.raises(DeviceError, match=r"Expected a device of this machine.*cpu"):
        device_named(name)
    assert device_named("cpu:0").type == "cpu"


def test_memory_that_was_freed_is_taken_again_without_the_kernel() -> None:
    process = subprocess.run([sys.executable, "-c", AGAIN], capture_output=True, text=True, check=True)
    kept, faults = process.stdout.split()
    assert kept == str(platform.libc_ver()[0] == "glibc")
    if kept == "True":
        assert 8 * int(faults) < PAGES


# Threads take and free blocks between blocks that stay; how much does the process hold beyond those, in MB?
HELD = """
import platform, sys, threading
import psutil, torch
from vitviz.model.devices import return_freed_memory, share_freed_memory
shared = share_freed_memory()
stay = []
def work():
    for _ in range(20):
        passing = [torch.ones(500_000) for _ in range(10)]
        stay.append(torch.ones(25_000))
process, before = psutil.Process(), psutil.Process().memory_info().rss
for _ in range(8):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
print(shared, return_freed_memory(), (process.memory_info().rss - before) / 1e6 - len(stay) * 0.1)
"""


def test_memory_that_threads_freed_is_returned() -> None:
    process = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, check=True)
    shared, returned, held = process.stdout.split()
    assert shared == returned == str(platform.libc_ver()[0] == "glibc")
    if shared == "True":
        assert float(held) < 20
