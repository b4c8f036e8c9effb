"""Search for input that vitviz answers with anything but words: damaged pictures, damaged checkpoints, odd requests.

    python tests/fuzz.py images --count 20000
    python tests/fuzz.py checkpoints --count 1400
    python tests/fuzz.py requests --seconds 60

`make fuzz` runs all three for some minutes. Every example follows from its number, so a failure names what to try
again; it is then kept as a test.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import resource
import string
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from attacked import ROOT, Server, started
from PIL import Image

import vitviz
from vitviz.images.decoding import ImageError, decode
from vitviz.images.torchvision_import import import_torchvision
from vitviz.server import api, routes
from vitviz.weights.checks import CheckpointError

MODES = ("RGB", "RGBA", "L", "P", "1", "CMYK", "I", "F")
MEGABYTES = 400  # that any picture or checkpoint of these may take; limits.py promises 300 for a picture
SECONDS = 5.0  # of the processor, for one of them
WORDS = (200, 400, 403, 404, 405, 408, 413, 415, 421, 422, 429)  # answers that were meant
LEAKS = ("Traceback", 'File "', "site-packages", str(ROOT))


class Found(AssertionError):
    """Input that was answered with something else than words."""


@cache
def pictures() -> list[bytes]:
    """Small pictures in every format and mode that Pillow writes and opens here."""
    Image.init()
    noise, found = random.Random(0), []
    pixels = bytes(noise.randrange(256) for _ in range(3 * 40 * 30))
    for kind in sorted(Image.SAVE):
        for mode in MODES if kind != "AVIF" else MODES[:1]:  # each is opened by a process of its own
            out = io.BytesIO()
            try:
                Image.frombytes("RGB", (40, 30), pixels).convert(mode).save(out, kind)
                Image.open(io.BytesIO(out.getvalue()))
            except Exception:  # noqa: BLE001 - a format that is not written in this mode, or not read
                continue
            found.append(out.getvalue())
    return found


@cache
def checkpoints() -> list[tuple[bytes, str]]:
    """Checkpoints of the tests, and how their files end."""
    import_torchvision()  # before timm imports it its own way
    from hostile_files import OLD, SAFE, WHOLE

    return [(WHOLE, ".pt"), (OLD, ".pth"), (SAFE, ".safetensors")]


def mutated(data: bytes, rng: random.Random, head: int = 2000) -> bytes:
    """Damage a file, mostly near its beginning and its end, where headers are."""
    broken = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        size = len(broken)
        near = rng.randrange(min(size, head))
        at, more = rng.choice((near, size - 1 - near, rng.randrange(size))), rng.randint(1, 64)
        word = rng.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\0\0\0\x80"))
        byte, bit = bytes([rng.randrange(256)]), bytes([broken[at] ^ 1 << rng.randrange(8)])
        old, new = rng.choice(
            (*[(1, byte)] * 3, *[(1, bit)] * 3, *[(4, word)] * 2, (more, b""), (0, broken[at : at + more]), (size, b""))
        )
        broken[at : at + old] = new
        broken = broken or bytearray(b"\0")
    return bytes(broken)


def image(number: int, _place: Path) -> str:
    """Open damaged picture number so and so."""
    rng = random.Random(number)
    try:
        assert decode(mutated(rng.choice(pictures()), rng)).mode == "RGB"
    except ImageError:
        return "refused"
    return "opened"


def checkpoint(number: int, place: Path) -> str:
    """Load damaged checkpoint number so and so."""
    rng = random.Random(number)
    data, suffix = rng.choice(checkpoints())
    path = place / f"damaged{suffix}"
    path.write_bytes(mutated(data, rng, 6000))
    try:
        model = vitviz.load(path, heads=5)
    except CheckpointError:
        return "refused"
    assert all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())
    return "loaded"


def search(one: Callable[[int, Path], str], numbers: Iterator[int]) -> Counter[str]:
    """Try examples; return how many ended how.

    Raises:
        Found: at the first that ends otherwise, takes too long, or too much memory.
    """
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one(0, Path(place))  # imports, caches
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in numbers:
            began = time.process_time()
            try:
                outcomes[one(number, Path(place))] += 1
            except Exception as error:
                raise Found(f"{one.__name__} {number}: {type(error).__name__}: {error}") from error
            if (seconds := time.process_time() - began) > SECONDS:
                raise Found(f"{one.__name__} {number}: {seconds:.1f} s")
            taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000
            if taken > MEGABYTES:
                raise Found(f"{one.__name__} {number}: {taken:.0f} MB")
    return outcomes


# ---- requests


def value(rng: random.Random, known: list[Any], depth: int = 3) -> Any:
    """Return anything that JSON can say, often something that makes sense somewhere."""
    if depth and rng.random() < 0.2:
        values = [value(rng, known, depth - 1) for _ in range(rng.randint(0, 4))]
        return rng.choice((values, {str(rng.choice(known))[:40]: item for item in values}))
    text = "".join(rng.choices(string.printable + "é\u202e\ud7ff\0", k=rng.choice((0, 1, 8, 300))))
    number = rng.choice((0, 1, -1, 3, 11, 2**31, 2**63, -(10**30), 0.5, 1e308, -0.0))
    return rng.choice((rng.choice(known), rng.choice(known), number, text, None, True, False, "", [], {}))


def request(server: Server, number: int, known: list[Any]) -> str:
    """Ask something odd, as the page or as a program.

    Raises:
        Found: if the answer is not in words.
    """
    rng = random.Random(number)

    def mostly(sensible: Any) -> str:
        return json.dumps(sensible if rng.random() < 0.9 else value(rng, known))

    if rng.random() < 0.6:
        name = rng.choice(routes.NAMES)
        asked = {rng.choice(ARGUMENTS): value(rng, known) for _ in range(rng.randint(0, 4))}
        asked |= {"scene": known[0]} if rng.random() < 0.7 else {}
        source = {"source": value(rng, known)} if rng.random() < 0.2 else {}
        photo = mutated(rng.choice(pictures()), rng) if rng.random() < 0.2 else None
        answer = server.post(name, mostly(asked), photo, **source)
    else:
        name = f"/gradio_api/call/{rng.choice(api.NAMES)}"
        body = mostly({"data": [value(rng, known) for _ in range(rng.randint(0, 6))]})
        answer = server.client.post(name, content=body, headers={"content-type": "application/json"})
        if answer.status_code == 200 and "event_id" in answer.text:
            answer = server.client.get(f"{name}/{answer.json()['event_id']}")
    text = answer.text[:100_000]
    if answer.status_code not in WORDS or any(leak in text for leak in LEAKS):
        raise Found(f"request {number} to {name}: {answer.status_code} {text[:500]}")
    return str(answer.status_code)


ARGUMENTS = (
    *("scene", "block", "token", "fuse", "discard", "residual", "start", "method", "methods", "target", "against"),
    *("names", "patches", "heads", "head", "query", "search", "image", "model", "size", "photo", "x"),
)


def requests(server: Server, numbers: Iterator[int]) -> Counter[str]:
    """Ask a started app odd things; return how many were answered how."""
    known: list[Any] = [server.first(), "rollout", "attention", "mean", "distance", "Church"]
    known += [["rollout"], ["distance"], [[0, 0]], [0, 1]]
    outcomes = Counter(request(server, number, known) for number in numbers)
    if server.process.poll() is not None or not server.first():
        raise Found("The app has ended.")
    return outcomes


def numbers(first: int, count: int, seconds: float) -> Iterator[int]:
    """Yield numbers of examples until there are so many, or the time is up."""
    until = time.monotonic() + seconds
    for number in range(first, first + count):
        if time.monotonic() > until:
            return
        yield number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("images", "checkpoints", "requests", "all"))
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=10**9)
    parser.add_argument("--seed", type=int, default=0, help="the number of the first example")
    args = parser.parse_args()
    examples = (args.seed, args.count, args.seconds)
    for what, one in (("images", image), ("checkpoints", checkpoint)):
        if args.what in (what, "all"):
            print(what, dict(search(one, numbers(*examples))), flush=True)
    if args.what in ("requests", "all"):
        with tempfile.TemporaryDirectory() as place, started(Path(place) / "uploads") as server:
            print("requests", dict(requests(server, numbers(*examples))), flush=True)


if __name__ == "__main__":
    main()
