"""Pictures are decoded in processes with limits; what floods a decoder is refused before it is decoded.

No file takes over 300 MB: each is decoded and prepared, and the peak of the memory is measured.
"""

import base64
import io
import json
import os
import re
import signal
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_files import ADOBE_D50, heic, heic_photo, icc_profile, png_chunk, png_of, random_rgb, saved
from PIL import ExifTags, Image

from vitviz.images import decoding, worker
from vitviz.images.decoding import ImageError, decode, decode_apart
from vitviz.images.limits import check_metadata, format_of
from vitviz.images.worker import Worker, Workers

PHOTO = Image.fromarray(random_rgb(30, 41))
PNG = saved(PHOTO, "PNG")


@pytest.fixture
def pool() -> Workers:
    made = Workers(1)
    yield made
    made.end()


def idle(pool: Workers) -> Worker:
    """Return the only process of a pool, which stays in it."""
    held = pool._idle.get_nowait()
    pool._idle.put(held)
    return held


# --- small files that ask a decoder for much memory, written byte by byte


def strip_png(width: int = 50_000_000) -> bytes:
    """A grey PNG of one row."""
    return png_of(width, 1, 0, zlib.compress(bytes(width + 1), 9))


def riff(chunks: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", len(chunks) + 4) + b"WEBP" + chunks


def webp(width: int, height: int) -> bytes:
    """A valid lossless WebP of 34 bytes: five prefix codes of one symbol each, so that pixels take no bits at all."""
    bits, at = 0, 0
    for value, count in ((0x2F, 8), (width - 1, 14), (height - 1, 14), (0, 4), (0, 3), *[(1, 4)] * 5):
        bits |= value << at
        at += count
    return riff(b"VP8L" + struct.pack("<I", 14) + bits.to_bytes(14, "little"))


def tiled_jpeg2000() -> bytes:
    """A JPEG 2000 of 255 x 256 tiles of one pixel, of which the first begins."""
    data = bytearray(saved(Image.new("RGB", (8, 8)), "JPEG2000", no_jp2=True, num_resolutions=1))
    struct.pack_into(">8I", data, 8, 255, 256, 0, 0, 1, 1, 0, 0)  # behind SOC, SIZ, its length and capabilities
    return bytes(data)


def directory(tags: list[tuple[int, int, int, int]], data: bytes) -> bytes:
    """A TIFF directory of (tag, type, count, value); the value -1 stands for where the data lie."""
    at = 8 + 2 + 12 * len(tags) + 4
    rows = [struct.pack("<HHII", tag, kind, count, at if value == -1 else value) for tag, kind, count, value in tags]
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + b"".join(rows) + bytes(4) + data


def exif_bomb(entries: int = 2000, size: int = 500_000) -> bytes:
    """An EXIF block whose entries share their data."""
    return directory([(1000 + number, 7, size, -1) for number in range(entries)], bytes(size))


def exif_jpeg() -> bytes:
    """A JPEG with the bomb in many segments, which Pillow joins, and without the JFIF block that would spare it."""
    plain, body = saved(Image.new("RGB", (64, 64)), "JPEG"), exif_bomb()
    parts = [b"Exif\0\0" + body[at : at + 65_000] for at in range(0, len(body), 65_000)]
    segments = [b"\xff\xe1" + struct.pack(">H", len(part) + 2) + part for part in parts]
    return plain[:2] + b"".join(segments) + plain[20:]


def tiff(size: int, *more: tuple[int, int, int, int], compression: int = 1, data: bytes = b"") -> bytes:
    """A TIFF of size x size grey pixels."""
    tags = [(256, 4, 1, size), (257, 4, 1, size), (258, 3, 1, 8), (259, 3, 1, compression), (262, 3, 1, 1)]
    return directory(sorted([*tags, (277, 3, 1, 1), *more]), data)


def tiff_tile(side: int = 20_000) -> bytes:
    """A TIFF with one tile far larger than the picture."""
    data = zlib.compress(bytes(side * side), 1)
    tile = [(322, 4, 1, side), (323, 4, 1, side), (324, 4, 1, -1), (325, 4, 1, len(data))]
    return tiff(100, *tile, compression=8, data=data)


# An AVIF of 16,384 x 16,384 grey pixels in 2,247 bytes; its header says 100 x 50.
LYING_AVIF = (
    "c-muNV30{GsVqn=%S>Yc0uY^>nP!-qnF!*)%uOvxWPkw0jFg-rD4U@mGr5ET4e%9YmgIt2j6f`xnUkLk;<$kLj1W;qUIqsCT|l-*"
    "W@cU*T&)z4lgb3;C6*Z&I_Kx)gYC-5EGQ}f(w><G$@xH9B(u066>47!5F0`4t;hsx<^U2riDib)jq)-e0paBQoT9wsoC=`1ybNp&"
    "Kq2wWf?Sx7fX-rJWNKysy6I4EN@9r+0~fda_xk_;|1M*a;&m`u!7m|bIMbo25~#xJ{JFpn{AavAhE?VzU%ADRKVe^EmA-FTcbSN3"
    "tn!Cj3;}z6Rr1ZOU%9636n>`0E07Z7{$Q5t!q`V<6Rgjli>L|i^3e#gH1OFL{pQSyYYz;M_J4VL_Qd2Ohf|8`*F;-`4j86~hAQvj"
    "OZ;FruQv5)PH>16*ThpxCXZ?!)jX<sRP(6jQO(0zGbMTftJ3RF"
)


def segment(marker: int, data: bytes) -> bytes:
    return b"\xff" + bytes([marker]) + struct.pack(">H", len(data) + 2) + data


def scans(number: int, side: int = 64) -> bytes:
    """A progressive JPEG with so many scans of nothing."""
    frame = struct.pack(">BHHB", 8, side, side, 1) + bytes([1, 0x11, 0])
    tables = segment(0xC4, b"\x00\x01" + bytes(15) + b"\0") + segment(0xC4, b"\x10\x01" + bytes(15) + b"\xe0")
    first = segment(0xDA, bytes([1, 1, 0, 0, 0, 0])) + bytes(8)
    further = segment(0xDA, bytes([1, 1, 0, 1, 63, 0])) + b"\x00\x01"
    head = b"\xff\xd8" + segment(0xDB, b"\0" + bytes([1] * 64)) + segment(0xC2, frame) + tables
    return head + first + number * further + b"\xff\xd9"


def flooded(kind: str, at: int, flood: bytes) -> bytes:
    """A photograph's file with bytes between two of its parts."""
    plain = saved(PHOTO.convert("P") if kind == "GIF" else PHOTO, kind)
    return plain[:at] + flood + plain[at:]


FLOODS: dict[str, Callable[[], bytes]] = {
    "scans": lambda: scans(200),
    "APP segments": lambda: flooded("JPEG", 20, b"\xff\xe5\x00\x02" * 25_000),
    "EXIF": exif_jpeg,
    "PNG chunks": lambda: flooded("PNG", 33, png_chunk(b"prVt", b"") * 10_000),
    "PNG chunk bytes": lambda: flooded("PNG", 33, png_chunk(b"prVt", bytes(2**20)) * 20),
    "a GIF comment": lambda: flooded("GIF", 781, b"\x21\xfe" + (b"\xff" + b"c" * 255) * 1562 + b"\0"),
    "GIF comments": lambda: flooded("GIF", 781, b"\x21\xfe\x01c\0" * 10_000),
    "WebP chunks": lambda: riff(saved(PHOTO, "WEBP")[12:] + b"prvt\0\0\0\0" * 10_000),
    "JPEG 2000 boxes": lambda: flooded("JPEG2000", 32, (struct.pack(">I", 8) + b"free") * 10_000),
    "a PPM comment": lambda: b"P6\n#" + b"c" * 100_000 + b"\n4 4\n255\n" + bytes(48),
    "PPM in text": lambda: b"P3\n2048 2048\n255\n" + b"0 " * (5 * 2**20),
}


@pytest.mark.parametrize("name", FLOODS)
def test_floods_are_refused_before_a_decoder_sees_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = FLOODS[name]()
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("a decoder saw it"))
    with pytest.raises(ImageError, match=r"^Expected .* got .*(Save|Make)"):
        decoding.decode_here(io.BytesIO(data), "this file", ("TIFF", "JPEG2000", *decoding._FORMATS))


def test_progressive_photographs_with_comments_pass() -> None:
    for options in ({"progressive": True}, {"exif": bytes(6) + b"II*\0", "comment": b"c" * 500}):
        assert decode(saved(PHOTO, "JPEG", **options)).size == PHOTO.size
    assert decode(scans(20)).size == (64, 64)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "JPEG2000", "PPM", "AVIF"])
def test_every_format_is_the_same_in_a_process_of_its_own(kind: str) -> None:
    data = saved(PHOTO if kind != "GIF" else PHOTO.convert("P"), kind)
    assert format_of(data[:512]) == kind
    assert check_metadata(io.BytesIO(data), "this file").read() == data
    apart = decode_apart(data)
    assert apart.mode == "RGB"
    assert np.array_equal(np.asarray(apart), np.asarray(decode(data)))


def test_refusals_have_the_same_words_in_a_process_of_their_own() -> None:
    for data in (b"", b"hello", b"%PDF", PNG[:100], FLOODS["PNG chunks"](), strip_png()):
        with pytest.raises(ImageError) as expected:
            decode(data)
        with pytest.raises(ImageError) as found:
            decode_apart(data)
        assert str(found.value) == str(expected.value)


def test_a_process_decodes_one_picture_after_another_and_is_replaced(
    pool: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "PICTURES", 3)
    processes = []
    for _ in range(5):
        pool.decode(PNG, "this file")
        processes.append(idle(pool)._process.pid)
    first, _, third, *_ = processes
    assert first != third
    assert processes == [first, first, third, third, third]


class Left(Exception):
    """The sender is gone."""


def kill(held: Worker) -> None:
    os.kill(held._process.pid, signal.SIGKILL)


def leave(_: Worker) -> None:
    raise Left("gone")


@pytest.mark.parametrize(
    ("seconds", "check", "error", "words"),
    [
        (10, kill, ImageError, "which cannot be decoded"),
        (10, leave, Left, "gone"),
        (0, lambda _: None, ImageError, "takes longer"),
    ],
)
def test_a_process_that_ends_or_is_ended_is_replaced(
    seconds: int, check: Callable[[Worker], None], error: type[Exception], words: str, pool: Workers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    pool.warm()
    held = idle(pool)
    os.kill(held._process.pid, signal.SIGSTOP)  # it cannot answer before it is ended
    with monkeypatch.context() as limited:
        limited.setattr(worker, "SECONDS", seconds)
        with pytest.raises(error, match=words):
            pool.decode(PNG, "this file", lambda: check(held))
    assert not held.alive
    assert pool.decode(PNG, "this file").size == PHOTO.size


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
    data, size = heic(heic_photo().resize((128, 64))), struct.Struct(">4sLLL")
    told = size.pack(b"ispe", 0, 128, 64)  # the box of ISO 23008-12, section 6.5.3
    assert data.count(told) == 1
    return data.replace(told, size.pack(b"ispe", 0, 8000, 6000))


WIDE = icc_profile("RGB", 2.2, ADOBE_D50)
TAGS = [(273, 4, 1, -1), *((40_966 + number, 7, 500_000, -1) for number in range(2000))]  # those of the EXIF bomb
STRIPS = [(273, 4, 1_500_000, -1), (278, 4, 1, 1)]  # one for a row, and many more than rows
# name -> (its bytes, its size or the words of the refusal, the most MB that it may take)
FILES: dict[str, tuple[Callable[[], bytes], list[int] | str, float]] = {
    # bombs
    "a PNG of one row": (strip_png, "at most 26 megapixels, got 50000000 x 1 ", 300),
    "a PNG of a shorter row": (lambda: strip_png(20_000_000), "at most 32,768 pixels and 100 times each o", 300),
    "a WebP": (lambda: webp(10_000, 5_000), "at most 16 megapixels", 300),
    "a JPEG 2000 of many tiles": (tiled_jpeg2000, "tiles .*got 65,280", 300),
    "a JPEG with much EXIF": (exif_jpeg, "metadata", 300),
    "a TIFF of many tags": (lambda: tiff(100, *TAGS, data=bytes(500_000)), "metadata", 300),
    "a TIFF of many strips": (lambda: tiff(100, *STRIPS, data=struct.pack("<I", 200) * 1_500_000), "metadata", 300),
    "a TIFF of one tile": (tiff_tile, "tiles of at most 2048 x 2048 pixels, got 20000 x 20000", 300),
    "a lying AVIF": (lambda: zlib.decompress(base64.b85decode(LYING_AVIF)), "cannot be decoded", 300),
    "a lying HEIC": (lying_heic, "at most 25 megapixels", 60),  # refused before it is decoded
    # metadata that nobody reads
    "a PNG with much EXIF": (lambda: saved(Image.new("RGB", (64, 64)), "PNG", exif=exif_bomb()), [64, 64], 50),
    "a WebP with much EXIF": (lambda: saved(Image.new("RGB", (64, 64)), "WEBP", exif=exif_bomb()), [64, 64], 50),
    # the largest that are taken; a JPEG of 50 megapixels is decoded at half its sides
    "a large PNG": (lambda: flat("RGBA", 26, "PNG", icc_profile=WIDE, compress_level=1), [5200, 5000], 300),
    "a large JPEG": (lambda: flat("RGB", 50, "JPEG", progressive=True), [5000, 2500], 300),
    "a large WebP": (lambda: webp(4000, 4000), [4000, 4000], 300),
    "a photo of a phone": (lambda: heic(Image.new("RGB", (5712, 4284), "teal"), quality=10), [5712, 4284], 300),
}


def test_files_are_taken_or_refused_in_little_memory(tmp_path: Path) -> None:
    """The largest ones also by a process whose memory is limited."""
    (tmp_path / "small").write_bytes(saved(Image.new("RGB", (300, 300)), "PNG"))
    for name, (make, _, _) in FILES.items():
        (tmp_path / name).write_bytes(make())
    command = [sys.executable, "-c", MEASURE, *(str(tmp_path / name) for name in ("small", *FILES))]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    for line, (name, (_, expected, limit)) in zip(lines, FILES.items(), strict=True):
        megabytes, said = json.loads(line)
        assert re.search(expected, str(said)) if isinstance(expected, str) else said == expected, name
        assert megabytes < limit, name
    for name in FILES:
        if "large" in name:
            assert list(decode_apart((tmp_path / name).read_bytes()).size) == FILES[name][1]
    with pytest.raises(ImageError, match=FILES["a WebP"][1]):
        decode_apart((tmp_path / "a WebP").read_bytes())
