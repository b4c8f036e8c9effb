"""Decode pictures for another process, see `vitviz.images.worker`: the side that is limited."""

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
from vitviz.images.limits import ImageError
from vitviz.images.worker import BROKEN, MEMORY, SECONDS, receive, send

STRIP = 2**20  # pixels that are written at once


def serve(target: int) -> None:
    """Decode what standard input sends until it ends.

    Args:
        target: descriptor of the file that pixels are written to; below 0, standard output.
    """
    source, answers = sys.stdin.buffer, sys.stdout.buffer
    register()
    Image.init()  # so that limits of memory and time are those of the picture
    formats, used = all_formats(), _memory()
    while True:
        try:
            asked, data = receive(source)
        except EOFError:
            return
        _limit(used + MEMORY + 2 * len(data))
        try:
            picture = decode_here(io.BytesIO(data), asked["name"], formats)
        except ImageError as error:
            send(answers, {"error": str(error), "reason": repr(error.__cause__)})
        except MemoryError as error:
            send(answers, {"error": BROKEN.format(asked["name"]), "reason": repr(error)})
        else:
            if target >= 0:
                with os.fdopen(os.dup(target), "wb") as file:
                    file.seek(0)
                    _write(picture, file)
                size = picture.size
                del picture  # before the other process copies the pixels
                send(answers, {"size": size})
            else:
                send(answers, {"size": picture.size})
                _write(picture, answers)
                answers.flush()
                del picture
        del data


def _write(picture: Image.Image, file: IO[bytes]) -> None:
    """Write the pixels, some rows at a time, so that they are not there twice."""
    rows = max(1, STRIP // picture.width)
    for top in range(0, picture.height, rows):
        file.write(picture.crop((0, top, picture.width, min(top + rows, picture.height))).tobytes())


def _memory() -> int:
    """Return the bytes of address space that this process has; 0 where that is not known."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _limit(memory: int) -> None:
    """Bound the address space, and the processor time from now on, where the system does that."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        seconds = int(time.process_time()) + 1 + SECONDS
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        resource.setrlimit(resource.RLIMIT_AS, (memory, resource.getrlimit(resource.RLIMIT_AS)[1]))
