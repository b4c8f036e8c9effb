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


@pytest.fixture
def pool() -> Workers:
    made = Workers(1)
    yield made
    made.end()


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
    plain = saved(PHOTO, "PNG")
    return plain[:33] + number * png_chunk(b"prVt", bytes(size)) + plain[33:]


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


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "JPEG2000", "PPM"])
def test_photographs_pass_with_what_cameras_and_editors_write(kind: str) -> None:
    data = saved(PHOTO if kind != "GIF" else PHOTO.convert("P"), kind)
    assert format_of(data[:512]) == kind
    assert check_metadata(io.BytesIO(data), "this file").read() == data


@pytest.mark.parametrize("options", [{"progressive": True}, {"exif": bytes(6) + b"II*\0", "comment": b"c" * 500}])
def test_progressive_photographs_with_comments_pass(options: dict) -> None:
    assert decode(saved(PHOTO, "JPEG", **options)).size == PHOTO.size
    assert decode(scans(20)).size == (64, 64)


# --- processes


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "JPEG2000", "PPM", "AVIF"])
def test_every_format_is_the_same_in_a_process_of_its_own(kind: str) -> None:
    data = saved(PHOTO if kind != "GIF" else PHOTO.convert("P"), kind)
    apart = decode_apart(data)
    assert apart.mode == "RGB"
    assert np.array_equal(np.asarray(apart), np.asarray(decode(data)))


def test_what_is_refused_is_refused_in_the_same_words() -> None:
    for data in (b"", b"hello", b"%PDF", saved(PHOTO, "PNG")[:100], png_chunks(), bombs.strip_png()):
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
        pool.decode(saved(PHOTO, "PNG"), "this file")
        held = pool._idle.get_nowait()
        processes.append(held._process.pid)
        pool._idle.put(held)
    assert len({*processes[:2]}) == 1
    assert len({*processes[2:]}) == 1
    assert processes[0] != processes[2]


def test_a_process_that_ends_is_an_error_in_words_and_another_takes_its_place(pool: Workers) -> None:
    pool.warm()
    held = pool._idle.get_nowait()
    pool._idle.put(held)
    _stop(held)
    with pytest.raises(ImageError, match="which cannot be decoded"):
        pool.decode(saved(PHOTO, "PNG"), "this file", lambda: os.kill(held._process.pid, signal.SIGKILL))
    assert not held.alive
    assert pool.decode(saved(PHOTO, "PNG"), "this file").size == PHOTO.size


def _stop(held: Worker) -> None:
    """Stop the process, so that it cannot answer before it is ended."""
    os.kill(held._process.pid, signal.SIGSTOP)


def test_who_leaves_ends_the_decoding(pool: Workers) -> None:
    pool.warm()
    held = pool._idle.get_nowait()
    pool._idle.put(held)
    _stop(held)

    class Left(Exception):
        pass

    def check() -> None:
        raise Left

    with pytest.raises(Left):
        pool.decode(saved(PHOTO, "PNG"), "this file", check)
    assert not held.alive
    assert pool.decode(saved(PHOTO, "PNG"), "this file").size == PHOTO.size


def test_a_picture_that_takes_too_long_is_ended(pool: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "SECONDS", 0)
    pool.warm()
    held = pool._idle.get_nowait()
    pool._idle.put(held)
    _stop(held)
    with pytest.raises(ImageError, match="takes longer"):
        pool.decode(saved(PHOTO, "PNG"), "this file")
    assert not held.alive


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are the system's")
def test_a_picture_that_takes_more_memory_than_it_claims_is_ended(pool: Workers) -> None:
    with pytest.raises(ImageError, match="cannot be decoded"):
        pool.decode(bombs.lying_avif(), "this file")
    assert pool.decode(saved(PHOTO, "PNG"), "this file").size == PHOTO.size
