"""No file takes over 300 MB: each is decoded and prepared, and the peak of the memory is measured."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import image_bombs as bombs
import pytest
from image_files import ADOBE_D50, icc_profile, saved
from PIL import ExifTags, Image
from test_heic import heic, photo

from vitviz.images.decoding import ImageError, decode_apart

# Each file in a process of its own, forked from one that has loaded the decoders.
MEASURE = """
import json, os, resource, sys
from vitviz.images.decoding import ImageError, decode
from vitviz.images.preprocess import Preprocess
from vitviz.images.worker import workers

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

def peak_apart():  # ru_maxrss of a child would begin with what this process held when it started the child
    if sys.platform != "linux":
        return 0
    pids = [worker._process.pid for worker in workers()._idle.queue if worker is not None]
    statuses = [open(f"/proc/{pid}/status").read() for pid in pids]
    return max((int(status.split("VmHWM:")[1].split()[0]) * 1024 for status in statuses), default=0)

def take(path, write):
    base = peak()
    try:
        picture = decode(path)
        said = list(picture.size)
        for mode in ("squash", "pad", "native", "crop"):
            Preprocess(mode=mode)(picture)
    except ImageError as error:
        said = str(error)
    took = max(peak() - base, peak_apart())
    write.write(json.dumps([took / 1e6, said]) + "\\n")

small, *paths = sys.argv[1:]
for mode in ("squash", "pad", "native", "crop"):
    Preprocess(mode=mode)(decode(small))  # load the decoders
for path in paths:
    if (child := os.fork()) == 0:
        take(path, sys.stdout)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def flat(mode: str, megapixels: int, format: str, **options: Any) -> bytes:
    """A picture of one colour that lies on its side."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    return saved(Image.new(mode, (5000, megapixels * 200), "teal"), format, exif=exif, **options)


def lying_heic() -> bytes:
    data, size = heic(photo().resize((128, 64))), struct.Struct(">4sLLL")
    told = size.pack(b"ispe", 0, 128, 64)  # the box of ISO 23008-12, section 6.5.3
    assert data.count(told) == 1
    return data.replace(told, size.pack(b"ispe", 0, 8000, 6000))


WIDE = icc_profile("RGB", 2.2, ADOBE_D50)
# name -> (its bytes, its size or the words of the refusal, the most MB that it may take)
FILES: dict[str, tuple[Callable[[], bytes], list[int] | str, float]] = {
    # bombs
    "a PNG of one row": (bombs.strip_png, "at most 26 megapixels, got 50000000 x 1 ", 300),
    "a PNG of a shorter row": (lambda: bombs.strip_png(20_000_000), "at most 32,768 pixels and 100 times each o", 300),
    "a WebP": (lambda: bombs.webp(10_000, 5_000), "at most 16 megapixels", 300),
    "a JPEG 2000 of many tiles": (bombs.tiled_jpeg2000, "tiles .*got 65,280", 300),
    "a JPEG with much EXIF": (bombs.exif_jpeg, "metadata", 300),
    "a TIFF of many tags": (bombs.tiff_tags, "metadata", 300),
    "a TIFF of many strips": (bombs.tiff_strips, "metadata", 300),
    "a TIFF of one tile": (bombs.tiff_tile, "tiles of at most 2048 x 2048 pixels, got 20000 x 20000", 300),
    "a lying AVIF": (bombs.lying_avif, "cannot be decoded", 300),
    "a lying HEIC": (lying_heic, "at most 25 megapixels", 60),  # refused before it is decoded
    # metadata that nobody reads
    "a PNG with much EXIF": (lambda: bombs.exif_in("PNG"), [64, 64], 50),
    "a WebP with much EXIF": (lambda: bombs.exif_in("WEBP"), [64, 64], 50),
    # the largest that are taken; a JPEG of 50 megapixels is decoded at half its sides
    "a large PNG": (lambda: flat("RGBA", 26, "PNG", icc_profile=WIDE, compress_level=1), [5200, 5000], 300),
    "a large JPEG": (lambda: flat("RGB", 50, "JPEG", progressive=True), [5000, 2500], 300),
    "a large WebP": (lambda: bombs.webp(4000, 4000), [4000, 4000], 300),
    "a photo of a phone": (lambda: heic(Image.new("RGB", (5712, 4284), "teal"), quality=10), [5712, 4284], 300),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("files")
    for name, (make, _, _) in FILES.items():
        (made / name).write_bytes(make())
    return made


def test_files_are_taken_or_refused_in_little_memory(folder: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.write_bytes(saved(Image.new("RGB", (300, 300)), "PNG"))
    command = [sys.executable, "-c", MEASURE, str(small), *(str(folder / name) for name in FILES)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    for line, (name, (_, expected, limit)) in zip(answer.stdout.splitlines(), FILES.items(), strict=True):
        megabytes, said = json.loads(line)
        assert re.search(expected, str(said)) if isinstance(expected, str) else said == expected, name
        assert megabytes < limit, name


@pytest.mark.parametrize("name", ["a WebP", *(name for name in FILES if "large" in name)])
def test_a_process_with_limited_memory_takes_or_refuses_the_same_files(name: str, folder: Path) -> None:
    data, expected = (folder / name).read_bytes(), FILES[name][1]
    if isinstance(expected, str):
        with pytest.raises(ImageError, match=expected):
            decode_apart(data)
    else:
        assert list(decode_apart(data).size) == expected
