"""Choose where a model runs."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from vitviz.errors import VitvizError

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # of malloc.h, see mallopt(3)
SMALL = 2**17  # numbers in a layer's output: below, the threads of a CPU spend their time waiting for one another


class DeviceError(VitvizError):
    """Device that this machine does not have."""


def best_device() -> torch.device:
    """Return CUDA if there is one, then Apple's MPS, then the CPU.

    Under torchrun (LOCAL_RANK) every process of a machine gets a GPU of its own, if there are as many.
    """
    best, rank = _kinds()[0], os.environ.get("LOCAL_RANK", "")
    if best == "cuda" and rank.isdigit() and int(rank) < torch.cuda.device_count():
        return torch.device("cuda", int(rank))
    return torch.device(best)


def device_named(name: str | None) -> torch.device:
    """Return the device of a name such as "cuda:1"; the best there is for `None`.

    Raises:
        DeviceError: if this machine has no such device.
    """
    if name is None:
        return best_device()
    kind, colon, number = name.partition(":")
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if kind not in _kinds() or (colon and not (number.isdecimal() and int(number) < count)):
        raise DeviceError(
            f"Expected a device of this machine, one of {', '.join(_kinds())} (of several GPUs cuda:0, cuda:1, ...), "
            f"got {name!r}. Choose one of them."
        )
    return torch.device(name)


def describe_device(device: torch.device) -> str:
    """Return a device in words, such as "CPU, 2 threads"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' * (threads != 1)}" if device.type == "cpu" else "Apple GPU (MPS)"


def _kinds() -> list[str]:
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    return [kind for kind, here in there.items() if here]


@contextmanager
def threads_for(numbers: int, device: torch.device) -> Iterator[None]:
    """Use one thread of a CPU while layers are small: where other programs run too, two took forty times as long.

    `numbers` are those in a layer's output, such as B * N * D.
    """
    before = torch.get_num_threads()
    if device.type == "cpu" and numbers < SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def double(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in double precision, on the CPU where its device has none (Apple's MPS)."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, until it ends; return whether its C library can.

    A training step takes and frees the same hundreds of megabytes again and again. glibc hands them back each time, and
    the kernel clears every page anew: 14 % of a step of a ViT of width 192 on a CPU.
    """
    return _set_allocator((M_TRIM_THRESHOLD, 2**31 - 1), (M_MMAP_THRESHOLD, 2**25))  # the most that it takes


def share_freed_memory() -> bool:
    """Let all threads use the memory that any of them frees; return whether the C library can.

    glibc has an arena for each thread, which keeps what it freed: a page that had opened many photographs held 4.4 GB,
    of which 0.4 GB were in use. See `return_freed_memory` for what becomes of the one arena.
    """
    return _set_allocator((M_ARENA_MAX, 1), (M_MMAP_THRESHOLD, 2**25))


def return_freed_memory() -> bool:
    """Give the memory that is free to the system; return whether the C library can.

    Between blocks that stay are blocks that were freed: without this they grow with the hours of a server.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
    trim(0)
    return True


def _set_allocator(*settings: tuple[int, int]) -> bool:
    """Set parameters of glibc's allocator; return whether all were taken."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # Windows, macOS and musl
        return False
    return all(mallopt(name, value) for name, value in settings)
