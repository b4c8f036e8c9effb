"""The C library's memory in the process that runs the tests: it would keep most of what a server once took.

glibc gives a thread an arena of its own, up to eight for each core, and an arena keeps what was freed in it. Models run
in the threads of the server, so each of some twenty threads came to hold as much as a model takes while it runs: at the
end of all tests the process had 8.9 GB, of which 1.7 GB were in use (servers that were closed; see `Running.close`) and
6.6 GB were free memory in arenas. With one arena, and `trim` after each module, it has at most 2.9 GB while a server
runs and 0.7 to 1.0 GB between modules (0.5 GB before the first), in the same time.
"""

from __future__ import annotations

import ctypes
import sys

M_ARENA_MAX = -8  # of <malloc.h>


def _libc() -> ctypes.CDLL | None:
    """glibc, where it is what this process runs on; others have neither arenas nor these functions."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None


def one_arena() -> None:
    """All threads share one arena. To be called before there are any."""
    if libc := _libc():
        libc.mallopt(M_ARENA_MAX, 1)


def trim() -> None:
    """Give all memory that is free back to the system."""
    if libc := _libc():
        libc.malloc_trim(0)
