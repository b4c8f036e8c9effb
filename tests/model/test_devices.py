"""What a process asks of the machine under it."""

import platform
import subprocess
import sys

import pytest

from vitviz.model.devices import DeviceError, device_named

# Buffers of 20 MB, taken, freed and taken again, as activations are: how many pages did the kernel have to clear?
AGAIN = """
import resource, torch
from vitviz.model.devices import keep_freed_memory
kept = keep_freed_memory() if {keep} else False
def step():
    return [torch.ones(5_000_000) for _ in range(10)]
step()
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    step()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.parametrize("name", ["abacus", "cpu:x", "cpu:1", "cuda:99", "cpu:"])
def test_a_device_that_is_not_here_is_refused(name: str) -> None:
    with pytest.raises(DeviceError, match=r"Expected a device of this machine.*cpu"):
        device_named(name)
    assert device_named("cpu:0").type == "cpu"


def faults(keep: bool) -> tuple[bool, int]:
    """Whether freed memory was kept, and the page faults of four steps in a process of their own."""
    command = [sys.executable, "-c", AGAIN.format(keep=keep)]
    kept, count = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return kept == "True", int(count)


def test_memory_that_was_freed_is_taken_again_without_the_kernel() -> None:
    handed_back, (kept, few) = faults(keep=False)[1], faults(keep=True)
    assert kept == (platform.libc_ver()[0] == "glibc")
    if kept:
        assert 5 * few < handed_back, (few, handed_back)
