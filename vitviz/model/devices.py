"""Choose where a model runs."""

import copy
import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from vitviz.errors import VitvizError

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # from malloc.h, see mallopt(3)
SMALL = 2**17  # with fewer numbers in a layer's output, CPU threads mostly wait for each other


Module = TypeVar("Module", bound=nn.Module)
Precision = Literal["float64", "float32", "bfloat16", "float16"]
"""Types of numbers of a model's weights."""


class DeviceError(VitvizError):
    """Raised for a device that this machine does not have."""


def best_device() -> torch.device:
    """Return CUDA if there is one, then Apple's MPS, then the CPU.

    Under torchrun (LOCAL_RANK), each process on a machine gets its own GPU if there are enough.
    """
    best, rank = _kinds()[0], os.environ.get("LOCAL_RANK", "")
    if best == "cuda" and rank.isdigit() and int(rank) < torch.cuda.device_count():
        return torch.device("cuda", int(rank))
    return torch.device(best)


def device_named(name: str | None) -> torch.device:
    """Return the device with a name such as "cuda:1", or the best device for `None`.

    Raises:
        DeviceError: if this machine has no such device.
    """
    if name is None:
        return best_device()
    kind, colon, number = name.partition(":")
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if kind not in _kinds() or (colon and not (number.isdecimal() and int(number) < count)):
        raise DeviceError(
            f"Expected a device of this machine: {', '.join(_kinds())} (or cuda:0, cuda:1, ... with several GPUs), "
            f"got {name!r}. Choose one of them."
        )
    return torch.device(name)


def check_precision(precision: Precision, device: torch.device) -> torch.dtype:
    """Return the type of numbers with a name, for weights on a device.

    Raises:
        DeviceError: if the device cannot compute with it.
    """
    dtype: torch.dtype = getattr(torch, precision)
    try:
        torch.ones(1, 1, dtype=dtype, device=device) @ torch.ones(1, 1, dtype=dtype, device=device)
    except (TypeError, RuntimeError) as error:
        raise DeviceError(
            f"Expected a precision that {describe_device(device)} computes with, got {precision}. Choose float32."
        ) from error
    return dtype


def describe_device(device: torch.device) -> str:
    """Return a description such as "CPU, 2 threads"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' * (threads != 1)}" if device.type == "cpu" else "Apple GPU (MPS)"


def _kinds() -> list[str]:
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    return [kind for kind, present in available.items() if present]


@contextmanager
def threads_for(numbers: int, device: torch.device) -> Iterator[None]:
    """Use one CPU thread for small layers: on a busy machine, two threads took forty times as long.

    `numbers` is the size of a layer's output, such as B * N * D.
    """
    before = torch.get_num_threads()
    if device.type == "cpu" and numbers < SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def double(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in double precision, moved to the CPU if its device lacks this type (Apple's MPS)."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def double_module(module: Module, memo: dict[int, Any] | None = None) -> Module:
    """Return a copy of a module in double precision, on the device that `double` chooses.

    `memo` maps the `id` of parts to their replacements in the copy, see `copy.deepcopy`.
    """
    copied = copy.deepcopy(module, memo)
    on_mps = any(parameter.device.type == "mps" for parameter in copied.parameters())
    return (copied.cpu() if on_mps else copied).double()


def keep_freed_memory() -> bool:
    """Keep freed memory in this process; return whether the C library supports it.

    Each training step allocates and frees the same hundreds of megabytes. By default glibc returns them to the kernel,
    which clears every page again: 14 % of the time of a training step of a ViT of width 192 on a CPU.
    """
    return _set_allocator((M_TRIM_THRESHOLD, 2**31 - 1), (M_MMAP_THRESHOLD, 2**25))  # the maximum values


def share_freed_memory() -> bool:
    """Use one memory arena for all threads; return whether the C library supports it.

    By default glibc keeps freed memory in one arena per thread: after many photographs, a server held 4.4 GB,
    of which it used 0.4 GB. `return_freed_memory` trims the shared arena.
    """
    return _set_allocator((M_ARENA_MAX, 1), (M_MMAP_THRESHOLD, 2**25))


def return_freed_memory() -> bool:
    """Return free memory to the system; return whether the C library supports it.

    Without this, free blocks between used ones accumulate over hours on a server.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # the C library is not glibc
        return False
    trim(0)
    return True


def _set_allocator(*settings: tuple[int, int]) -> bool:
    """Set parameters of glibc's allocator; return whether it accepted all."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # Windows, macOS and musl
        return False
    return all(mallopt(name, value) for name, value in settings)
