"""Pictures are decoded in processes with limits; what floods a decoder is refused before it is decoded."""

from __future__ import annotations

import io
import os
import signal
import struct
import sys
from collections.abc import Callable

import image_bombs as bombs
import numpy as np
import pytest
from image_files import png_chunk, random_rgb, saved
from PIL import Image

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


# --- floods


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


def app_segments(total: int = 100_000) -> bytes:
    plain = saved(PHOTO, "JPEG")
    return plain[:20] + b"\xff\xe5\x00\x02" * (total // 4) + plain[20:]


def png_chunks(number: int = 10_000, size: int = 0) -> bytes:
    return PNG[:33] + number * png_chunk(b"prVt", bytes(size)) + PNG[33:]


def gif_comments(total: int, block: int) -> bytes:
    plain = saved(PHOTO.convert("P"), "GIF")
    start = 13 + (3 * 2 ** ((plain[10] & 7) + 1) if plain[10] & 128 else 0)
    if block == 1:
        return plain[:start] + b"\x21\xfe\x01c\0" * (total // 5) + plain[start:]
    return plain[:start] + b"\x21\xfe" + (b"\xff" + b"c" * 255) * (total // 256) + b"\0" + plain[start:]


def webp_chunks(number: int = 10_000) -> bytes:
    plain = saved(PHOTO, "WEBP")
    body = plain[12:] + b"prvt\0\0\0\0" * number
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def boxes(number: int = 10_000) -> bytes:
    plain = saved(PHOTO, "JPEG2000")
    at = 12 + struct.unpack(">I", plain[12:16])[0]
    return plain[:at] + (struct.pack(">I", 8) + b"free") * number + plain[at:]


FLOODS: dict[str, Callable[[], bytes]] = {
    "scans": lambda: scans(200),
    "APP segments": app_segments,
    "EXIF": bombs.exif_jpeg,
    "PNG chunks": png_chunks,
    "PNG chunk bytes": lambda: png_chunks(20, 2**20),
    "a GIF comment": lambda: gif_comments(400_000, 255),
    "GIF comments": lambda: gif_comments(50_000, 1),
    "WebP chunks": webp_chunks,
    "JPEG 2000 boxes": boxes,
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


# --- processes


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "JPEG2000", "PPM", "AVIF"])
def test_every_format_is_the_same_in_a_process_of_its_own(kind: str) -> None:
    data = saved(PHOTO if kind != "GIF" else PHOTO.convert("P"), kind)
    assert format_of(data[:512]) == kind
    assert check_metadata(io.BytesIO(data), "this file").read() == data
    apart = decode_apart(data)
    assert apart.mode == "RGB"
    assert np.array_equal(np.asarray(apart), np.asarray(decode(data)))


def test_refusals_have_the_same_words_in_a_process_of_their_own() -> None:
    for data in (b"", b"hello", b"%PDF", PNG[:100], png_chunks(), bombs.strip_png()):
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


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are the system's")
def test_a_picture_that_takes_more_memory_than_it_claims_is_ended(pool: Workers) -> None:
    with pytest.raises(ImageError, match="cannot be decoded"):
        pool.decode(bombs.lying_avif(), "this file")
    assert pool.decode(PNG, "this file").size == PHOTO.size
