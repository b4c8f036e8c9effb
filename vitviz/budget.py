"""How much memory a trace takes, and how much there is: asked before a large image runs, not after it has failed.

On Linux a process that asks for more than there is does not get an error; it is killed. So the estimate comes first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from vitviz.config import ViTConfig
from vitviz.trace import stays

# What stands in memory at the peak of a block, beside what the trace keeps, in numbers for each token: so many times
# the width D (its norm, its output), so many times the heads' inner width H * d (queries, keys, values, what is mixed
# of them and what is on the way), and more of these where queries and keys are normed or rotated.
WIDE, INNER, TURNED = 2, 5, 5
# The allocator's holes between what is kept and what is freed, and what does not grow with the image: the pieces of the
# MLP and of attention, and the libraries' own buffers. With these numbers the estimate was 1.1 to 1.8 times the peak of
# the resident memory on two CPU cores, over 40 MB: ViT-Ti, S, B and H, 512 to 2,048 pixels, float32 and bfloat16, all
# positions, batches of 1 and 4.
HOLES, SPARE_BYTES = 0.15, 32 * 2**20


def forward_bytes(config: ViTConfig, tokens: int, batch: int = 1, itemsize: int = 4) -> int:
    """About how many bytes a trace of all blocks takes at its peak, over the model's own weights.

    Args:
        config: of the model.
        tokens: N, prefix tokens and patches of one image.
        batch: B, images at once.
        itemsize: bytes of one number in the model's precision.
    """
    inner = config.heads * config.head_size
    one = batch * tokens * itemsize  # bytes of one number a token
    kept = config.depth * (one * config.width + 4 * batch * tokens * config.heads)  # what entered, and the row sums
    both = 2 * config.depth * one * inner  # queries and keys
    kept += both if stays(both) else 0
    turned = TURNED if config.qk_norm or config.positions == "rotary" else 0
    work = one * (WIDE * config.width + (INNER + turned) * inner)
    # A question to half-precision weights takes queries and keys as they are and both in float32, queries twice.
    asked = one * (config.width + 2 * inner) + 12 * batch * tokens * inner
    pixels = batch * tokens * config.channels * config.patch_size**2
    return int((1 + HOLES) * (kept + max(work, asked))) + pixels * (4 + itemsize) + SPARE_BYTES


def available_bytes(device: torch.device | str) -> int | None:
    """How many bytes may still be taken on a device; `None` where nobody says.

    On the CPU of a Linux machine the least of three: what the machine has free, what the container may still take, and
    what is left of the process's address space (`ulimit -v`).
    """
    device = torch.device(device)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # What PyTorch holds for itself and does not use is free as well.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type == "mps":
        return max(0, torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    if device.type != "cpu" or not sys.platform.startswith("linux"):
        return None
    known = [left for left in (machine_bytes(), container_bytes(), address_bytes()) if left is not None]
    return max(0, min(known)) if known else None


def machine_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """What the machine can hand out without swapping."""
    for line in _lines(meminfo):
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    return None


def container_bytes(root: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> int | None:
    """What this process's control group, and every group around it, may still take; `None` where none has a limit."""
    left = []
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
        # A container may see only its own group, mounted at the top, and be told of a path from outside.
        places = [top.joinpath(*parts[:count]) for top in tops for count in range(len(parts) + 1)]
        left += [free for place in places if (free := _group_bytes(place, *names)) is not None]
    return min(left, default=None)


def _group_bytes(place: Path, limit: str, usage: str, cached: tuple[str, ...]) -> int | None:
    """What one control group may still take. Cached pages of files count as used, but go when they are needed."""
    most, used = (next(_lines(place / name), "max").strip() for name in (limit, usage))
    if not (most.isdigit() and used.isdigit()):
        return None
    fields = (line.split() for line in _lines(place / "memory.stat"))
    return int(most) - int(used) + sum(int(field[1]) for field in fields if field[0] in cached)


def address_bytes() -> int | None:
    """What is left of the process's address space; `None` where it has no limit."""
    if sys.platform == "win32":
        return None
    import resource  # there is none on Windows

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    pages = next(_lines(Path("/proc/self/statm")), "").split()
    return limit - int(pages[0]) * resource.getpagesize() if pages else None


def _lines(path: Path) -> Iterator[str]:
    """The lines of a file of the kernel's; none where it is not there or not to be read."""
    try:
        yield from path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return


def largest_side(bytes_at: Callable[[int], int], free: int, multiple: int, below: int) -> int | None:
    """The largest size of an image in pixels, a multiple of `multiple` below `below`, that fits; `None` if none does.

    Args:
        bytes_at: what an image of a size takes; more for a larger one.
        free: bytes that there are.
        multiple: the patch size.
        below: the size that was too large.
    """
    least, most = 0, max(0, (below - 1) // multiple)  # in patches: `least` fits (or is none), above `most` nothing
    while least < most:
        middle = (least + most + 1) // 2
        if bytes_at(middle * multiple) <= free:
            least = middle
        else:
            most = middle - 1
    return least * multiple or None


# The words that PyTorch has for it where it raises a plain RuntimeError: the CPU's allocator on Linux, macOS and
# Windows, and Apple's devices.
OUT_OF_MEMORY = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "MPS backend out of memory",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, in any of the ways that PyTorch, NumPy and Python say it."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)
