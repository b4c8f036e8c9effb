"""Estimate the memory of a trace, and the available memory, before running a large image.

On Linux, a process that exceeds the memory is killed without an error.
"""

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import torch

from vitviz.model.config import ViTConfig
from vitviz.model.trace import keeps_queries

# Peak memory of a block in addition to the trace, in numbers per token: multiples of the width D (norm, output), of the
# heads' width H * d (queries, keys, values, outputs and temporary copies), and further multiples of H * d if queries
# and keys are normed or rotated.
WIDE, INNER, PLACED = 2, 5, 5
# Fragmentation, and memory that does not depend on the image: pieces of the MLP and of attention, and library buffers.
# With these numbers, the estimate was 1.1 to 1.8 times the peak resident memory (above 40 MB) on two CPU cores: ViT-Ti,
# S, B and H, 512 to 2,048 pixels, float32 and bfloat16, all positions, batches of 1 and 4.
FRAGMENTATION, SPARE_BYTES = 0.15, 32 * 2**20


def forward_bytes(config: ViTConfig, tokens: int, batch: int = 1, itemsize: int = 4) -> int:
    """Estimate the peak memory in bytes of a trace of all blocks, without the model's weights.

    `tokens` is N per image, `batch` is B, and `itemsize` the bytes per number in the model's precision.
    """
    inner = config.heads * config.query_width(tokens)
    number_bytes = batch * tokens * itemsize  # bytes of one number per token
    trace_bytes = kept_bytes(config, tokens, batch, itemsize)
    placed = PLACED if config.norms.qk or config.rotates else 0
    work = number_bytes * (WIDE * config.width + (INNER + placed) * inner)
    # With half-precision weights, a query needs the stored queries and keys plus float32 copies of both.
    query = number_bytes * (config.width + 2 * inner) + 12 * batch * tokens * inner
    pixels = batch * tokens * config.channels * config.patch_size**2
    return int((1 + FRAGMENTATION) * (trace_bytes + max(work, query))) + pixels * (4 + itemsize) + SPARE_BYTES


def kept_bytes(config: ViTConfig, tokens: int, batch: int = 1, itemsize: int = 4) -> int:
    """Return the bytes that a trace of all blocks keeps; arguments as in `forward_bytes`."""
    number_bytes = batch * tokens * itemsize  # bytes of one number per token
    streams = (1 + config.table.between) * number_bytes * config.width  # and positions on the image's grid
    stored = config.depth * (streams + 4 * batch * tokens * config.heads)  # streams and row sums
    query_key_bytes = 2 * config.depth * number_bytes * config.heads * config.query_width(tokens)  # queries and keys
    always = hasattr(config, "keeps_queries")  # captured modules cannot recompute them
    return stored + (query_key_bytes if always or keeps_queries(query_key_bytes) else 0)


def available_bytes(device: torch.device | str) -> int | None:
    """Return the available bytes on a device; `None` if unknown.

    On the CPU, the minimum of the machine's free memory, the container's remaining limit, and the process's remaining
    address space (`ulimit -v`).
    """
    device = torch.device(device)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # Memory that PyTorch has reserved but does not use is also available.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type == "mps":
        return max(0, torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    if device.type != "cpu":
        return None
    known = [int(psutil.virtual_memory().available), container_bytes(), address_bytes()]
    return max(0, min(free_bytes for free_bytes in known if free_bytes is not None))


def container_bytes(root: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> int | None:
    """Return the bytes left in this process's control group and its parents; `None` without a limit."""
    free_bytes = []
    for line in _lines(groups):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            names = ("memory.max", "memory.current", ("inactive_file", "active_file"))
            tops = [root, root / "unified"]
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
            tops = [root / "memory", root / controllers]
        else:
            continue
        parts = Path(path.lstrip("/")).parts
        # A container may see only its own group, mounted at the root, although the path is the host's.
        places = [top.joinpath(*parts[:count]) for top in tops for count in range(len(parts) + 1)]
        free_bytes += [group_free for place in places if (group_free := _group_bytes(place, *names)) is not None]
    return min(free_bytes, default=None)


def _group_bytes(place: Path, limit: str, usage: str, cached: tuple[str, ...]) -> int | None:
    """Return the bytes left in one control group. Cached file pages count as free, because they can be evicted."""
    maximum, used = (next(_lines(place / name), "max").strip() for name in (limit, usage))
    if not (maximum.isdigit() and used.isdigit()):
        return None
    fields = (line.split() for line in _lines(place / "memory.stat"))
    return int(maximum) - int(used) + sum(int(field[1]) for field in fields if field[0] in cached)


def address_bytes() -> int | None:
    """Return the remaining address space of the process in bytes; `None` without a limit."""
    if not sys.platform.startswith("linux"):
        return None
    process = psutil.Process()
    limit, _ = process.rlimit(psutil.RLIMIT_AS)
    return None if limit == psutil.RLIM_INFINITY else int(limit - process.memory_info().vms)


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a kernel file; none if it cannot be read."""
    try:
        yield from path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return


def largest_side(bytes_at: Callable[[int], int], free: int, multiple: int, below: int) -> int | None:
    """Return the largest image size in pixels below `below`, a multiple of `multiple`, that fits; `None` if none does.

    `bytes_at(size)` is the memory of an image, increasing with the size; `free` is the available memory in bytes.
    """
    fitting = bisect_right(range(1, -(-below // multiple)), free, key=lambda patches: bytes_at(patches * multiple))
    return fitting * multiple or None


# Messages of plain RuntimeErrors from the CPU allocator on Linux, macOS and Windows, and from Apple's devices.
OUT_OF_MEMORY = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "MPS backend out of memory",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of PyTorch, NumPy or Python reports that memory ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in OUT_OF_MEMORY)
