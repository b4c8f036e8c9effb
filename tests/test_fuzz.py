"""Fuzz decoding, checkpoints and requests: damaged or odd input must raise the expected errors.

Each example is generated from a seed. `make test` uses the same seeds each time, `make fuzz` other seeds.
"""

import io
import json
import random
import resource
import string
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from asking import Site
from hostile_files import OLD, SAFE, WHOLE
from hypothesis import given, settings
from hypothesis import strategies as st
from offered import new_endpoints
from PIL import Image

import vitviz
from vitviz.images.decoding import ImageError, decode
from vitviz.web.questions import QUESTIONS
from vitviz.weights.checks import CheckpointError

pytestmark = pytest.mark.hypothesis
MODES = ("RGB", "RGBA", "L", "P", "1", "CMYK", "I", "F")
MEGABYTES = 400  # maximum for any picture or checkpoint; limits.py allows 300 for a picture
SECONDS = 20.0  # CPU time per example; the slowest valid requests take a few seconds
STATUSES = (200, 400, 403, 404, 405, 408, 413, 415, 421, 422, 429)  # expected statuses
LEAKS = ("Traceback", 'File "', "site-packages", str(Path(vitviz.__file__).parents[1]))
CHECKPOINTS = ((WHOLE, ".pt"), (OLD, ".pth"), (SAFE, ".safetensors"))
ENDPOINTS = [name for name, question in QUESTIONS.items() if question.programs]  # endpoints of Gradio's API
ARGUMENTS = (
    *("scene", "block", "token", "fuse", "discard", "residual", "start", "method", "methods", "target", "against"),
    *("names", "patches", "heads", "head", "query", "search", "image", "model", "size", "photo", "x"),
)


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def outcomes(count: int, run: Callable[[random.Random], str]) -> Counter[str]:
    """Count the outcomes of `count` examples; each takes at most `SECONDS` and `MEGABYTES`."""
    ended: Counter[str] = Counter()
    run(random.Random(0))  # fills caches
    before = peak_megabytes()

    @settings(max_examples=count)
    @given(st.integers(0, 2**32))
    def check(number: int) -> None:
        began = time.process_time()
        ended[run(random.Random(number))] += 1
        assert time.process_time() - began < SECONDS
        assert peak_megabytes() - before < MEGABYTES

    check()
    return ended


@cache
def pictures() -> list[bytes]:
    """Return small pictures in every format and mode that Pillow writes and opens."""
    Image.init()
    noise, written = Image.effect_noise((40, 30), 90).convert("RGB"), []
    for kind in sorted(Image.SAVE):
        for mode in MODES if kind != "AVIF" else MODES[:1]:  # AVIF is opened in a worker process
            out = io.BytesIO()
            try:
                noise.convert(mode).save(out, kind)
                Image.open(io.BytesIO(out.getvalue()))
            except Exception:  # noqa: BLE001 - Pillow cannot write or read this format in this mode
                continue
            written.append(out.getvalue())
    return written


def damage(data: bytes, rng: random.Random, head: int = 2000) -> bytes:
    """Damage a file, mostly near its beginning and its end."""
    broken = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        size = len(broken)
        near = rng.randrange(min(size, head))
        at, length = rng.choice((near, size - 1 - near, rng.randrange(size))), rng.randint(1, 64)
        word = rng.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\0\0\0\x80"))
        byte, bit = bytes([rng.randrange(256)]), bytes([broken[at] ^ 1 << rng.randrange(8)])
        old, new = rng.choice(
            (
                *[(1, byte)] * 3,
                *[(1, bit)] * 3,
                *[(4, word)] * 2,
                (length, b""),
                (0, broken[at : at + length]),
                (size, b""),
            )
        )
        broken[at : at + old] = new
        broken = broken or bytearray(b"\0")
    return bytes(broken)


def test_damaged_pictures_open_or_raise() -> None:
    def run(rng: random.Random) -> str:
        try:
            assert decode(damage(rng.choice(pictures()), rng)).mode == "RGB"
        except ImageError:
            return "refused"
        return "opened"

    ended = outcomes(500, run)
    assert len(pictures()) > 40
    assert min(ended["refused"], ended["opened"]) > 75


@pytest.mark.filterwarnings("ignore")
def test_damaged_checkpoints_load_or_raise(tmp_path: Path) -> None:
    def run(rng: random.Random) -> str:
        data, suffix = rng.choice(CHECKPOINTS)
        path = tmp_path / f"damaged{suffix}"
        path.write_bytes(damage(data, rng, 6000))
        try:
            model = vitviz.load(path, heads=5)
        except CheckpointError:
            return "refused"
        assert all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())
        return "loaded"

    assert outcomes(150, run)["refused"] > 25


def odd_value(rng: random.Random, known: list[Any], depth: int = 3) -> Any:
    """Return any JSON value, often one that is valid somewhere."""
    if depth and rng.random() < 0.2:
        values = [odd_value(rng, known, depth - 1) for _ in range(rng.randint(0, 4))]
        return rng.choice((values, {str(rng.choice(known))[:40]: item for item in values}))
    text = "".join(rng.choices(string.printable + "é\u202e\ud7ff\0", k=rng.choice((0, 1, 8, 300))))
    number = rng.choice((0, 1, -1, 3, 11, 2**31, 2**63, -(10**30), 0.5, 1e308, -0.0))
    return rng.choice((rng.choice(known), rng.choice(known), number, text, None, True, False, "", [], {}))


def test_odd_requests_get_expected_statuses(small: str, tmp_path: Path) -> None:
    """Send requests as the page and API clients do."""
    site = Site(new_endpoints(tmp_path / "page", (small,), upload=True))
    scene = site.ask("open", source={"image": "Noise"})["data"]["id"]
    known: list[Any] = [scene, "rollout", "attention", "mean", "distance", "Noise"]
    known += [["rollout"], ["distance"], [[0, 0]], [0, 1]]

    def run(rng: random.Random) -> str:
        def mostly(sensible: Any) -> str:
            return json.dumps(sensible if rng.random() < 0.9 else odd_value(rng, known))

        if rng.random() < 0.6:
            name = rng.choice(list(QUESTIONS))
            question = {rng.choice(ARGUMENTS): odd_value(rng, known) for _ in range(rng.randint(0, 4))}
            question |= {"scene": scene} if rng.random() < 0.7 else {}
            source = {"source": odd_value(rng, known)} if rng.random() < 0.2 else {}
            photo = damage(rng.choice(pictures()), rng) if rng.random() < 0.2 else None
            answer = site.post(name, mostly(question), photo, **source)
        else:
            name = f"/gradio_api/call/{rng.choice(ENDPOINTS)}"
            body = mostly({"data": [odd_value(rng, known) for _ in range(rng.randint(0, 6))]})
            answer = site.client.post(name, content=body, headers={"content-type": "application/json"})
            if answer.status_code == 200 and "event_id" in answer.text:
                answer = site.client.get(f"{name}/{answer.json()['event_id']}")
        assert answer.status_code in STATUSES, f"{name}: {answer.status_code} {answer.text[:500]}"
        assert not any(leak in answer.text for leak in LEAKS), f"{name}: {answer.text[:500]}"
        return f"{answer.status_code} {answer.text[:40]}"

    assert len(outcomes(60, run)) > 1
    assert site.ask("open", source={"image": "Noise"})["data"]["id"] == scene
    site.close()
