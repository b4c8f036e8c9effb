"""Decode pictures for another process: the process that `vitviz.images.worker` starts and limits."""

from __future__ import annotations

import io
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from PIL import Image

from vitviz.images.decoding import all_formats, decode_here
from vitviz.images.heif import register
from vitviz.images.limits import MAX_PIXELS, ImageError
from vitviz.images.worker import MEMORY, SECONDS, broken, receive, send
from vitviz.phrases import packed, text_of

STRIP = 2**20  # pixels per write


def serve(target: int) -> None:
    """Decode pictures from standard input until it ends.

    Args:
        target: file descriptor for pixels; negative for standard output.
    """
    source, replies = sys.stdin.buffer, sys.stdout.buffer
    register()
    Image.init()  # before the limits of memory and time apply
    Image.MAX_IMAGE_PIXELS = MAX_PIXELS // 2  # Pillow refuses twice as many
    formats, used = all_formats(), _memory()
    while True:
        try:
            request, data = receive(source)
        except EOFError:
            return
        _limit(used + MEMORY + 2 * len(data))
        try:
            picture = decode_here(io.BytesIO(data), request["name"], formats)
        except ImageError as error:
            send(replies, {"error": packed(text_of(error)), "reason": repr(error.__cause__)})
        except MemoryError as error:
            send(replies, {"error": packed(broken(request["name"])), "reason": repr(error)})
        else:
            about = {"size": picture.size, "range": packed(picture.info.get("range", ""))}
            if target >= 0:
                with os.fdopen(os.dup(target), "wb") as file:
                    file.seek(0)
                    _write(picture, file)
                del picture  # before the other process copies the pixels
                send(replies, about)
            else:
                send(replies, about)
                _write(picture, replies)
                replies.flush()
                del picture
        del data


def _write(picture: Image.Image, file: IO[bytes]) -> None:
    """Write the pixels in chunks of rows, to avoid a copy."""
    rows = max(1, STRIP // picture.width)
    for top in range(0, picture.height, rows):
        file.write(picture.crop((0, top, picture.width, min(top + rows, picture.height))).tobytes())


def _memory() -> int:
    """Return the size of this process's address space in bytes; 0 if unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _limit(memory: int) -> None:
    """Limit the address space and the further processor time, if the system supports it."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        seconds = int(time.process_time()) + 1 + SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        resource.setrlimit(resource.RLIMIT_AS, (memory, resource.getrlimit(resource.RLIMIT_AS)[1]))
