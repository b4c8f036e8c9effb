"""Decode AVIF and HEIC in a process with bounded memory: a header may tell a smaller size than the picture has.

Pillow reads AVIF by itself. HEIC, in which many phones save photographs, needs pillow-heif: `pip install vitviz[heic]`.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Literal

from vitviz.images.limits import MEGAPIXELS, ImageError, check_size

Kind = Literal["AVIF", "HEIC"]

_SECONDS = 30
_MEMORY = 300_000_000  # bytes of address space; Python and Pillow take 35 MB of it
_PLUGIN = {
    "AVIF": "from PIL import AvifImagePlugin; AvifImagePlugin.DEFAULT_MAX_THREADS = 1",
    "HEIC": "import pillow_heif; pillow_heif.register_heif_opener(decode_threads=1, thumbnails=False)",
}
_CHILD = """
import sys
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, ({memory}, {memory}))
    resource.setrlimit(resource.RLIMIT_CPU, ({seconds}, {seconds}))
except ImportError:  # Windows
    pass
from PIL import Image
{plugin}
with Image.open(sys.stdin.buffer, formats=["{format}"]) as image:
    print(*image.size, flush=True)
    if image.width * image.height <= {pixels}:
        image.save(sys.stdout.buffer, "PNG", compress_level=0, exif=image.info.get("exif") or b"")
"""

_BRANDS: dict[Kind, tuple[bytes, ...]] = {
    "AVIF": (b"avif", b"avis"),
    "HEIC": (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"),
}


def kind_of(head: bytes) -> Kind | None:
    """Return what a file that begins with `head` calls itself (its brands, ISO 14496-12, section 4.3)."""
    if head[4:8] != b"ftyp":
        return None
    listed = head[8 : min(int.from_bytes(head[:4], "big"), 256)]
    brands = {listed[at : at + 4] for at in range(0, len(listed), 4)}
    return next((kind for kind, known in _BRANDS.items() if brands.intersection(known)), None)


def to_png(data: bytes, name: str, kind: Kind) -> bytes:
    """Return a file's first picture as an uncompressed PNG with its orientation and colour profile.

    Raises:
        ImageError: if the picture is too large, or takes too long; or if it is HEIC and pillow-heif is not installed.
        OSError: if it cannot be decoded in 300 MB of memory.
    """
    if kind == "HEIC" and find_spec("pillow_heif") is None:
        raise ImageError(
            f"Expected a photograph that Pillow reads, got a HEIC photo (the format of many phones) in {name}. Run "
            "pip install 'vitviz[heic]', or save it as JPEG or PNG."
        )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "MALLOC_ARENA_MAX": "1"}
    program = _CHILD.format(
        memory=_MEMORY,
        seconds=_SECONDS,
        plugin=_PLUGIN[kind],
        format="HEIF" if kind == "HEIC" else kind,
        pixels=MEGAPIXELS[kind] * 1_000_000,
    )
    command = [sys.executable, "-c", program]
    try:
        child = subprocess.run(command, input=data, capture_output=True, env=environment, timeout=2 * _SECONDS)
    except subprocess.TimeoutExpired as error:
        raise ImageError(
            f"Expected a {kind} image that is decoded in {_SECONDS} s, got {name}, which takes longer. Save it as JPEG."
        ) from error
    size, _, png = child.stdout.partition(b"\n")
    if size:
        width, height = map(int, size.split())
        check_size(width, height, name, MEGAPIXELS[kind])
    if child.returncode:
        raise OSError((child.stderr.decode(errors="replace").strip().splitlines() or ["the decoder stopped"])[-1])
    return png
