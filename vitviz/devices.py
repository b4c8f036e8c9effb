"""Where a model runs: what this machine has, what a person asked for, and whose turn it is under torchrun."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

SMALL = 2**17  # numbers in a layer's output: below, the threads of a CPU spend their time waiting for one another


class DeviceError(ValueError):
    """A device that is not here; the text names those that are."""


def best_device() -> torch.device:
    """CUDA if there is one, then Apple's MPS, then the CPU.

    Under torchrun every process of a machine gets a GPU of its own (LOCAL_RANK), if there are as many.
    """
    best = next(name for name, there in _devices().items() if there)
    rank = os.environ.get("LOCAL_RANK", "")
    if best == "cuda" and rank.isdigit() and int(rank) < torch.cuda.device_count():
        return torch.device("cuda", int(rank))
    return torch.device(best)


def device_named(name: str | None) -> torch.device:
    """The device that a person asked for; the best there is for `None`.

    Raises:
        DeviceError: if there is no such device here.
    """
    if name is None:
        return best_device()
    here = [known for known, there in _devices().items() if there]
    kind, colon, number = name.partition(":")
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if kind not in here or (colon and not (number.isdecimal() and int(number) < count)):
        raise DeviceError(
            f"Expected a device of this machine, one of {', '.join(here)} (of several GPUs cuda:0, cuda:1, ...); got "
            f"{name!r}."
        )
    return torch.device(name)


@contextmanager
def threads_for(numbers: int, device: torch.device) -> Iterator[None]:
    """One thread where layers are small: where other programs run too, two took forty times as long.

    Args:
        numbers: in a layer's output, such as B * N * D.
        device: nothing changes on others than the CPU.
    """
    before = torch.get_num_threads()
    if device.type == "cpu" and numbers < SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def double(tensor: torch.Tensor) -> torch.Tensor:
    """In double precision, where the tensor is; on the CPU where its device has none (Apple's MPS)."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, until it ends; whether its C library can.

    A training step takes and frees the same hundreds of megabytes again and again. glibc hands them back each time, and
    the kernel clears every page anew: 14 % of a step of a ViT of width 192 on a CPU.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt  # glibc's: not there on Windows, macOS and musl
    except (AttributeError, OSError, TypeError):
        return False
    trim, mmap = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
    return bool(mallopt(trim, 2**31 - 1) and mallopt(mmap, 2**25))  # the largest that it takes: 2 GiB, 32 MiB


def _devices() -> dict[str, bool]:
    return {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
