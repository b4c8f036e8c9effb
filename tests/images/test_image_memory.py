"""No file takes over 300 MB: each is decoded and prepared in a process of its own, whose peak is measured."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import image_bombs as bombs
import pytest
from image_files import ADOBE_D50, icc_profile
from PIL import ExifTags, Image

MEASURE = """
import json, os, resource, sys
from vitviz.images.decoding import ImageError, decode
from vitviz.images.preprocess import Preprocess

def peak(who):
    return resource.getrusage(who).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

decode(sys.argv[2])  # load the decoders
base = peak(resource.RUSAGE_SELF)
try:
    picture = decode(sys.argv[1])
    said = list(picture.size)
    for mode in ("squash", "pad", "native", "crop"):
        Preprocess(mode=mode)(picture)
except ImageError as error:
    said = str(error)
took = max(peak(resource.RUSAGE_SELF) - base, peak(resource.RUSAGE_CHILDREN))
print(json.dumps([took / 1e6, said]))
"""


def measured(path: Path) -> tuple[float, str | list[int]]:
    """Return the memory in MB that a file takes, and its picture's size or the refusal."""
    small = path.with_name("small.png")
    Image.new("RGB", (300, 300)).save(small)
    command = [sys.executable, "-c", MEASURE, str(path), str(small)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    megabytes, said = json.loads(answer.stdout)
    return megabytes, said


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (bombs.strip_png, "at most 26 megapixels, got 50000000 x 1 "),
        (lambda: bombs.strip_png(20_000_000), "sides of at most 32,768 pixels and 100 times each other"),
        (lambda: bombs.webp(10_000, 5_000), "at most 16 megapixels"),
        (bombs.tiled_jpeg2000, "tiles .*got 65,280"),
        (bombs.exif_jpeg, "metadata"),
        (bombs.tiff_tags, "metadata"),
        (bombs.tiff_strips, "metadata"),
        (bombs.tiff_tile, "tiles of at most 2048 x 2048 pixels, got 20000 x 20000"),
        (bombs.lying_avif, "cannot be decoded"),
    ],
)
def test_bombs_are_refused_in_little_memory(make: Callable[[], bytes], words: str, tmp_path: Path) -> None:
    (tmp_path / "bomb").write_bytes(make())
    megabytes, said = measured(tmp_path / "bomb")
    assert megabytes < 300
    assert re.search(words, str(said))


@pytest.mark.parametrize("format", ["PNG", "WEBP"])
def test_metadata_that_nobody_reads_takes_nothing(format: str, tmp_path: Path) -> None:
    (tmp_path / "bomb").write_bytes(bombs.exif_in(format))
    megabytes, said = measured(tmp_path / "bomb")
    assert said == [64, 64]
    assert megabytes < 50


def large_png(path: Path) -> None:
    flat("RGBA", 26).save(path, "PNG", exif=turned(), icc_profile=icc_profile("RGB", 2.2, ADOBE_D50))


def large_jpeg(path: Path) -> None:
    flat("RGB", 50).save(path, "JPEG", exif=turned(), progressive=True)


def large_webp(path: Path) -> None:
    path.write_bytes(bombs.webp(4000, 4000))


def flat(mode: str, megapixels: int) -> Image.Image:
    return Image.new(mode, (5000, megapixels * 200), "teal")


def turned() -> Image.Exif:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    return exif


@pytest.mark.parametrize(
    ("save", "size"), [(large_png, [5200, 5000]), (large_jpeg, [5000, 2500]), (large_webp, [4000, 4000])]
)
def test_the_largest_that_are_taken(save: Callable[[Path], None], size: list[int], tmp_path: Path) -> None:
    """A JPEG of 50 megapixels is decoded at half its sides."""
    save(tmp_path / "large")
    megabytes, said = measured(tmp_path / "large")
    assert said == size
    assert megabytes < 300
