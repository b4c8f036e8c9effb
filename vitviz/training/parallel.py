"""Several processes that train one model: who this one is, and what they tell one another.

Under torchrun each process takes its slice of every batch, and gradients are averaged (Li et al. 2020, "PyTorch
Distributed"). A process by itself is a world of one, in which nothing is sent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from vitviz.training import TrainingError

CPU = torch.device("cpu")
PATIENCE = timedelta(days=2)  # how long others wait: for features that one process computes, for a slow disk


@dataclass(frozen=True)
class World:
    """One process among those that train together: rank 0 of 1 when it is alone."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU  # what is sent has to lie where the processes' backend takes it

    @property
    def first(self) -> bool:
        """Whether it is the one that writes."""
        return self.rank == 0

    def total(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def same(self, tensors: list[Tensor]) -> None:
        """Give every process the first one's numbers, in place."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def tell(self, value: Any) -> Any:
        """The first process's plain value (as JSON has them), in every process. No object is unpacked that was sent."""
        if self.size == 1:
            return value
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(self.device)
        length = torch.tensor([len(data)], device=self.device)
        dist.broadcast(length, src=0)
        if not self.first:
            data = torch.empty(int(length), dtype=torch.uint8, device=self.device)
        dist.broadcast(data, src=0)
        return json.loads(data.cpu().numpy().tobytes())

    def slice(self, count: int) -> slice:
        """The part of `count` things in order that is this process's; parts differ by one at most."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)


@contextmanager
def world(device: torch.device) -> Iterator[World]:
    """The processes that torchrun has started, or this one alone. A group that is there already is used and kept."""
    started = dist.is_available() and dist.is_initialized()
    joins = not started and int(os.environ.get("WORLD_SIZE", "1")) > 1
    if not (started or joins):
        yield World()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if joins:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield World(dist.get_rank(), dist.get_world_size(), device)
    finally:
        if joins:
            dist.destroy_process_group()


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Only one process at a time is in here; a lock goes with its process, however that ends.

    Args:
        path: of the lock, a file that stays.

    Raises:
        TrainingError: where the disk knows no locks.
    """
    if os.name == "nt":
        yield
        return
    import fcntl

    try:
        file = path.open("wb")
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        raise TrainingError(
            f"{str(path)!r} cannot be locked: {error}. Choose a folder on a disk of this machine."
        ) from error
    with file:
        yield
