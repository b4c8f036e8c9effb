"""Test decoding in limited processes, and the memory of hostile files: no file takes over 300 MB in
this process, or 300 MB and the 50 MB of Python in a worker process.
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

import numpy as np
import pytest
from image_files import ADOBE_D50, heic, heic_photo, icc_profile, png_chunk, png_of, random_rgb, saved
from PIL import ExifTags, Image

from vitviz.images import decoding, worker
from vitviz.images.decoding import ImageError, decode, decode_apart
from vitviz.images.limits import format_of, prepared
from vitviz.images.worker import Worker, Workers
from vitviz.phrases import phrases, text_of

PHOTO = Image.fromarray(random_rgb(30, 41))
PNG = saved(PHOTO, "PNG")


@pytest.fixture
def pool() -> Workers:
    workers = Workers(1)
    yield workers
    workers.end()


def idle(pool: Workers) -> Worker:
    """Return the only worker of a pool, without removing it."""
    worker = pool._idle.get_nowait()
    pool._idle.put(worker)
    return worker


EXIF = Image.Exif()
EXIF[ExifTags.Base.Orientation] = 6
ON_ITS_SIDE = EXIF.tobytes()  # EXIF rotation as the content of a JPEG segment

# --- small files that request much memory, written byte by byte


def strip_png(width: int = 50_000_000) -> bytes:
    """Return a grey PNG of one row, that contains few of its pixels."""
    return png_of(width, 1, 0, zlib.compress(bytes(100)))


def webp(width: int, height: int) -> bytes:
    """Return a valid lossless WebP of 34 bytes: five prefix codes of one symbol each, so pixels take no bits."""
    bits, at = 0, 0
    for value, count in ((0x2F, 8), (width - 1, 14), (height - 1, 14), (0, 4), (0, 3), *[(1, 4)] * 5):
        bits |= value << at
        at += count
    return b"RIFF" + struct.pack("<I", 26) + b"WEBPVP8L" + struct.pack("<I", 14) + bits.to_bytes(14, "little")


def tiled_jpeg2000() -> bytes:
    """Return a JPEG 2000 of 255 x 256 tiles of one pixel, with the beginning of the first tile."""
    data = bytearray(saved(Image.new("RGB", (8, 8)), "JPEG2000", no_jp2=True, num_resolutions=1))
    struct.pack_into(">8I", data, 8, 255, 256, 0, 0, 1, 1, 0, 0)  # after SOC, SIZ, length and capabilities
    return bytes(data)


def directory(tags: list[tuple[int, int, int, int]], data: bytes) -> bytes:
    """Return a TIFF directory of (tag, type, count, value); the value -1 becomes the offset of the data."""
    at = 8 + 2 + 12 * len(tags) + 4
    entries = [struct.pack("<HHII", tag, kind, count, at if value == -1 else value) for tag, kind, count, value in tags]
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + b"".join(entries) + bytes(4) + data


def exif_bomb(entries: int = 2000, size: int = 500_000) -> bytes:
    """Return an EXIF block whose entries share their data."""
    return directory([(1000 + number, 7, size, -1) for number in range(entries)], bytes(size))


def exif_jpeg() -> bytes:
    """Return a JPEG with the EXIF bomb in many segments, which Pillow joins if there is no JFIF block."""
    data, body = saved(Image.new("RGB", (64, 64)), "JPEG"), exif_bomb()
    parts = [b"Exif\0\0" + body[at : at + 65_000] for at in range(0, len(body), 65_000)]
    segments = [b"\xff\xe1" + struct.pack(">H", len(part) + 2) + part for part in parts]
    return data[:2] + b"".join(segments) + data[20:]


def tiff(size: int, *further_tags: tuple[int, int, int, int], compression: int = 1, data: bytes = b"") -> bytes:
    tags = [(256, 4, 1, size), (257, 4, 1, size), (258, 3, 1, 8), (259, 3, 1, compression), (262, 3, 1, 1)]
    return directory(sorted([*tags, (277, 3, 1, 1), *further_tags]), data)


def tiff_tile(side: int = 20_000) -> bytes:
    """Return a TIFF with one tile far larger than the picture."""
    data = zlib.compress(bytes(1000))
    tile = [(322, 4, 1, side), (323, 4, 1, side), (324, 4, 1, -1), (325, 4, 1, len(data))]
    return tiff(100, *tile, compression=8, data=data)


# An AVIF of 16,384 x 16,384 grey pixels in 2,247 bytes; its header claims 100 x 50.
LYING_AVIF = (
    "c-muNV30{GsVqn=%S>Yc0uY^>nP!-qnF!*)%uOvxWPkw0jFg-rD4U@mGr5ET4e%9YmgIt2j6f`xnUkLk;<$kLj1W;qUIqsCT|l-*"
    "W@cU*T&)z4lgb3;C6*Z&I_Kx)gYC-5EGQ}f(w><G$@xH9B(u066>47!5F0`4t;hsx<^U2riDib)jq)-e0paBQoT9wsoC=`1ybNp&"
    "Kq2wWf?Sx7fX-rJWNKysy6I4EN@9r+0~fda_xk_;|1M*a;&m`u!7m|bIMbo25~#xJ{JFpn{AavAhE?VzU%ADRKVe^EmA-FTcbSN3"
    "tn!Cj3;}z6Rr1ZOU%9636n>`0E07Z7{$Q5t!q`V<6Rgjli>L|i^3e#gH1OFL{pQSyYYz;M_J4VL_Qd2Ohf|8`*F;-`4j86~hAQvj"
    "OZ;FruQv5)PH>16*ThpxCXZ?!)jX<sRP(6jQO(0zGbMTftJ3RF"
)
# A HEIC of 5,712 x 4,284 pixels of one color.
LARGE_HEIC = (
    "c-muNV30{GsVvAy%}izhg51nBLl8SRGck>UfpKPTYDppk1Sn>t<P<^K3<a6VB@Af5Br_);Y>0~k0}}%yh{d=ULNhRk=>f%nK>RgKgh2&}"
    "EiyCn(!e~BtSFF^3RVVGlTnsz$bcls2vXu&kqK7LSCCnf%K%l$a3iyzr~pXs%q&RG2hvqQz0QoxAfX9hMO!{F{Q3Li2Ll5?a{^F@gaacF"
    "<NyC41<W87%pkO77n4IGP*Tr{kr7R10mG&a250tr(Mz5z*|~!w!$1Kj%nTwJ6qA5j*jyM76gCS1EfP-7&ne1F&Zz*3@-nbB0EI*{iwjbr"
    "fe^sJAg~9>5Gcs3$OMTnb8v8gLM5{x7Z%Qp42&#|Ow24mrc`E8Y8q6SFFB<+862)aAB#ohrX&I*Kuk-6agBgOTTPjE$a25ARwXYl!>OrO"
    "AuEHHdQH{BOD$MeQy)0@%I<o>g*gVZpdO|!n$RGiKof&SC(y)Lz6=@|D{_JQhB9rUzL^3v2vY+ZM1SA`>YEwuKz%dIY2eNZ8o0Bof%;~y"
    "pn;joXkg}28ko6_24)@@BJO-o12ccnz|5yKF!K}j&17U98qO4@zLA2|H&T-NMoLrPNJZ)!=}3JeBdKqs?~w5L&@eKT`bK&Wi5MR>a!?x?"
    "IcnqxGtzrV7&#i_qehMzIcnsvG%}ijfq@M&eD3SZpatY{FfcL-fg~Yg${+v$3MZ|3"
)


def inflated(text: str) -> bytes:
    return zlib.decompress(base64.b85decode(text))


def segment(marker: int, data: bytes) -> bytes:
    return b"\xff" + bytes([marker]) + struct.pack(">H", len(data) + 2) + data


def scans(number: int, width: int = 64, height: int = 64, sampling: tuple[int, ...] = (0x11,)) -> bytes:
    """Return a grey progressive JPEG with a number of empty scans after the first."""
    frame = struct.pack(">BHHB", 8, height, width, len(sampling))
    frame += b"".join(bytes([component, factors, 0]) for component, factors in enumerate(sampling, 1))
    tables = segment(0xC4, b"\x00\x01" + bytes(15) + b"\0") + segment(0xC4, b"\x10\x01" + bytes(15) + b"\xe0")
    side = 8 * (sampling[0] >> 4)  # side of a unit in the first scan, which takes one bit per block
    blocks = -(-width // side) * -(-height // side) * sum((factors >> 4) * (factors & 15) for factors in sampling)
    components = b"".join(bytes([component, 0]) for component in range(1, len(sampling) + 1))
    first = segment(0xDA, bytes([len(sampling)]) + components + bytes(3)) + bytes(-(-blocks // 8))
    further = segment(0xDA, bytes([1, 1, 0, 1, 63, 0])) + b"\x00\x01"
    head = b"\xff\xd8" + segment(0xE1, ON_ITS_SIDE) + segment(0xDB, b"\0" + bytes([1] * 64)) + segment(0xC2, frame)
    return head + tables + first + number * further + b"\xff\xd9"


def test_progressive_jpegs_and_comments_are_accepted() -> None:
    for options in ({"progressive": True}, {"exif": bytes(6) + b"II*\0", "comment": b"c" * 500}):
        assert decode(saved(PHOTO, "JPEG", **options)).size == PHOTO.size
    assert decode(scans(20)).size == (64, 64)
    assert prepared(io.BytesIO(exif_jpeg()), "this file").read().count(b"Exif\0\0") == 1  # Pillow would join them


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "JPEG2000", "PPM", "AVIF"])
def test_worker_decodes_every_format_like_decode(kind: str) -> None:
    data = saved(PHOTO if kind != "GIF" else PHOTO.convert("P"), kind)
    assert format_of(data[:512]) == kind
    assert prepared(io.BytesIO(data), "this file").read() == data
    apart = decode_apart(data)
    assert apart.mode == "RGB"
    assert np.array_equal(np.asarray(apart), np.asarray(decode(data)))


def test_worker_raises_the_errors_of_decode() -> None:
    for data in (b"", b"hello", b"%PDF", PNG[:100], strip_png()):
        with pytest.raises(ImageError) as expected:
            decode(data)
        with pytest.raises(ImageError) as raised:
            decode_apart(data)
        assert str(raised.value) == str(expected.value)


def test_system_without_limits_of_memory_decodes_only_trusted_files_of_some_formats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decoding, "LIMITS_MEMORY", False)
    for kind in ("TIFF", "JPEG2000", "AVIF"):
        with pytest.raises(ImageError, match=f"Expected a photograph as JPEG, PNG, .* got {kind} in this file"):
            decode_apart(saved(PHOTO, kind), trusted=False)
        assert decode_apart(saved(PHOTO, kind)).size == PHOTO.size
    assert decode_apart(PNG, trusted=False).size == PHOTO.size


def test_worker_sends_the_keys_of_its_messages(pool: Workers) -> None:
    with pytest.raises(ImageError) as refused:
        pool.decode(bytes(9), "a.bin")
    sent = phrases(text_of(refused.value))
    assert str(refused.value) in sent
    assert {phrase["key"] for phrase in sent.values()} == {"photograph-of-another-kind", "unknown-format"}


def test_worker_is_replaced_after_its_number_of_pictures(pool: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "PICTURES", 3)
    processes = []
    for _ in range(5):
        pool.decode(PNG, "this file")
        processes.append(idle(pool)._process.pid)
    first, _, third, *_ = processes
    assert first != third
    assert processes == [first, first, third, third, third]


def test_pool_survives_a_lack_of_processes(pool: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "PICTURES", 1)

    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    pool.warm()
    with monkeypatch.context() as full:
        full.setattr(worker.subprocess, "Popen", refuse)
        pool.decode(PNG, "this file")  # the next worker cannot start
    assert pool.decode(PNG, "this file").size == decode(PNG).size


class Left(Exception):
    """Raised by `leave`, as if the client had disconnected."""


def kill(worker: Worker) -> None:
    os.kill(worker._process.pid, signal.SIGKILL)


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
def test_ended_worker_is_replaced(
    seconds: int, check: Callable[[Worker], None], error: type[Exception], words: str, pool: Workers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    pool.warm()
    process = idle(pool)
    os.kill(process._process.pid, signal.SIGSTOP)  # stopped, so it cannot reply
    with monkeypatch.context() as limited:
        limited.setattr(worker, "SECONDS", seconds)
        with pytest.raises(error, match=words):
            pool.decode(PNG, "this file", lambda: check(process))
    assert not process.alive
    assert pool.decode(PNG, "this file").size == PHOTO.size


def test_worker_ends_at_its_limit_of_processor_time(pool: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "from vitviz.images import worker_process as p; p.SECONDS = 0; p.serve({})"
    monkeypatch.setattr(worker, "_PROGRAM", program)
    data = saved(PHOTO.convert("P"), "GIF")
    comments = b"\x21\xfe\x01c\0" * 2_000_000  # Pillow joins them in quadratic time
    with pytest.raises(ImageError, match="takes longer"):
        pool.decode(data[:781] + comments + data[781:], "this file")


# Each file runs in a process forked from one that has loaded the decoders.
MEASURE = """
import json, os, resource, sys
from vitviz.images.decoding import ImageError, decode
from vitviz.images.preprocess import Preprocess
from vitviz.images.worker import workers

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

def peak_apart():  # a child's ru_maxrss would include the memory of this process at the fork
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


def lying_heic() -> bytes:
    data, size = heic(heic_photo().resize((128, 64))), struct.Struct(">4sLLL")
    stated_size = size.pack(b"ispe", 0, 128, 64)  # the box of ISO 23008-12, section 6.5.3
    assert data.count(stated_size) == 1
    return data.replace(stated_size, size.pack(b"ispe", 0, 8000, 6000))


def large_png() -> bytes:
    """Return an RGBA PNG of 26 megapixels with a color profile and an EXIF rotation."""
    profile = png_chunk(b"iCCP", b"wide\0\0" + zlib.compress(WIDE))
    pixels = zlib.compress(bytes(5200 * (1 + 4 * 5000)), 1)
    return png_of(5000, 5200, 6, pixels, profile + png_chunk(b"eXIf", ON_ITS_SIDE.removeprefix(b"Exif\0\0")))


WIDE = icc_profile("RGB", 2.2, ADOBE_D50)
TAGS = [(273, 4, 1, -1), *((40_966 + number, 7, 500_000, -1) for number in range(2000))]  # as in the EXIF bomb
STRIPS = [(273, 4, 1_500_000, -1), (278, 4, 1, 1)]  # far more strips than rows
# name -> (function of its bytes, decoded size or pattern of the error, maximum MB)
FILES: dict[str, tuple[Callable[[], bytes], list[int] | str, float]] = {
    # bombs
    "a PNG of one row": (strip_png, "at most 26 megapixels, got 50000000 x 1 ", 300),
    "a PNG of a shorter row": (lambda: strip_png(20_000_000), "pixels and an aspect ratio of at most 100", 300),
    "a WebP": (lambda: webp(10_000, 5_000), "at most 16 megapixels", 300),
    "a JPEG 2000 of many tiles": (tiled_jpeg2000, "cannot be decoded", 350),
    "a TIFF of many tags": (lambda: tiff(100, *TAGS, data=bytes(500_000)), "cannot be decoded", 350),
    "a TIFF of many strips": (lambda: tiff(100, *STRIPS, data=bytes(6_000_000)), "cannot be decoded", 350),
    "a TIFF of one tile": (tiff_tile, "cannot be decoded", 350),
    "an AVIF with a false size": (lambda: inflated(LYING_AVIF), "cannot be decoded", 350),
    "a HEIC with a false size": (lying_heic, "at most 25 megapixels", 60),  # refused before it is decoded
    # metadata that is not read
    "a JPEG with much EXIF": (exif_jpeg, [64, 64], 100),
    "a PNG with much EXIF": (lambda: saved(Image.new("RGB", (64, 64)), "PNG", exif=exif_bomb()), [64, 64], 50),
    "a WebP with much EXIF": (lambda: saved(Image.new("RGB", (64, 64)), "WEBP", exif=exif_bomb()), [64, 64], 50),
    # the largest accepted files; a JPEG of 50 megapixels is decoded at half its sides
    "a large PNG": (large_png, [5200, 5000], 300),
    "a large JPEG": (lambda: scans(0, 5000, 10_000, (0x22, 0x11, 0x11)), [5000, 2500], 300),
    "a large WebP": (lambda: webp(4000, 4000), [4000, 4000], 300),
    "a photo of a phone": (lambda: inflated(LARGE_HEIC), [5712, 4284], 300),
}


@pytest.mark.tier("all")
def test_decoding_any_file_takes_bounded_memory(tmp_path: Path) -> None:
    """Check that the largest files are decoded in a limited process, too."""
    (tmp_path / "small").write_bytes(saved(Image.new("RGB", (300, 300)), "PNG"))
    for name, (make, _, _) in FILES.items():
        (tmp_path / name).write_bytes(make())
    command = [sys.executable, "-c", MEASURE, *(str(tmp_path / name) for name in ("small", *FILES))]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    for line, (name, (_, expected, limit)) in zip(lines, FILES.items(), strict=True):
        megabytes, result = json.loads(line)
        assert re.search(expected, str(result)) if isinstance(expected, str) else result == expected, name
        assert megabytes < limit, name
    for name in FILES:
        if "large" in name:
            assert list(decode_apart((tmp_path / name).read_bytes()).size) == FILES[name][1]
    with pytest.raises(ImageError, match=FILES["a WebP"][1]):
        decode_apart((tmp_path / "a WebP").read_bytes())
