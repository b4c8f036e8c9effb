"""AVIF, decoded in a process of its own with bounded memory: its header need not tell the size of what it holds."""

import os
import subprocess
import sys

from vitviz.images.limits import MEGAPIXELS, ImageError, check_size

_MEMORY = 300_000_000  # bytes of address space; Python and Pillow take 35 MB of it
_SECONDS = 30

_CHILD = f"""
import sys
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, ({_MEMORY}, {_MEMORY}))
    resource.setrlimit(resource.RLIMIT_CPU, ({_SECONDS}, {_SECONDS}))
except ImportError:  # Windows
    pass
from PIL import AvifImagePlugin, Image
AvifImagePlugin.DEFAULT_MAX_THREADS = 1
with Image.open(sys.stdin.buffer, formats=["AVIF"]) as image:
    print(*image.size, flush=True)
    if image.width * image.height <= {MEGAPIXELS["AVIF"] * 1_000_000}:
        image.save(sys.stdout.buffer, "PNG", compress_level=0, exif=image.info.get("exif", b""))
"""


def is_avif(head: bytes) -> bool:
    """Return whether a file that begins with `head` calls itself AVIF (its brands, ISO 14496-12, section 4.3)."""
    brands = head[8 : min(int.from_bytes(head[:4], "big"), 256)]
    return head[4:8] == b"ftyp" and any(brands[at : at + 4] in (b"avif", b"avis") for at in range(0, len(brands), 4))


def to_png(data: bytes, name: str) -> bytes:
    """Return an AVIF file's first frame as an uncompressed PNG with its orientation and colour profile.

    Raises:
        ImageError: if the picture is too large, or takes too long.
        OSError: if it cannot be decoded in 300 MB of memory.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "MALLOC_ARENA_MAX": "1"}
    command = [sys.executable, "-c", _CHILD]
    try:
        child = subprocess.run(command, input=data, capture_output=True, env=environment, timeout=2 * _SECONDS)
    except subprocess.TimeoutExpired as error:
        raise ImageError(
            f"Expected an AVIF image that is decoded in {_SECONDS} s, got {name}, which takes longer. Save it as JPEG."
        ) from error
    size, _, png = child.stdout.partition(b"\n")
    if size:
        width, height = map(int, size.split())
        check_size(width, height, name, MEGAPIXELS["AVIF"])
    if child.returncode:
        raise OSError((child.stderr.decode(errors="replace").strip().splitlines() or ["the decoder stopped"])[-1])
    return png
