"""Compare decoding in a process of its own, as the server does, with decoding in this one: processor time a photograph.

    python benchmarks/decoding.py

The photograph is an example as a JPEG of one megapixel. Both sides take turns; a batch's time is that of this process
and its children, so that nothing depends on the machine's other work but its caches.
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout that is not installed

from vitviz.images.decoding import decode, decode_apart
from vitviz.images.worker import workers
from vitviz.resources import resource_folder

SIZE = (1224, 816)  # one megapixel
TARGET = 15.0  # milliseconds of the processor that the process of its own may cost


def photograph() -> bytes:
    """Return a photograph as a JPEG file."""
    out = io.BytesIO()
    with Image.open(sorted(resource_folder("examples").glob("*.jpg"))[0]) as whole:
        whole.convert("RGB").resize(SIZE).save(out, "JPEG", quality=92)
    return out.getvalue()


def processor_seconds() -> float:
    """Return the processor time of this process and its children."""
    this = psutil.Process()
    times = [one.cpu_times() for one in (this, *this.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


def milliseconds(decoder: Callable[[bytes], Any], data: bytes, pictures: int) -> float:
    """Return the processor time of one picture; the kernel counts in hundredths of a second, so several are timed."""
    before = processor_seconds()
    for _ in range(pictures):
        decoder(data)
    return 1000 * (processor_seconds() - before) / pictures


def main() -> None:
    """Print both sides."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=9)
    parser.add_argument("--pictures", type=int, default=20, help="of a batch")
    args = parser.parse_args()
    data, sides = photograph(), {"in this process": decode, "in a process of its own": decode_apart}
    workers().warm()
    found: dict[str, list[float]] = {name: [] for name in sides}
    for decoder in sides.values():
        milliseconds(decoder, data, args.pictures)  # imports, caches
    for _ in range(args.batches):
        for name, decoder in sides.items():
            found[name].append(milliseconds(decoder, data, args.pictures))
    kilobytes = len(data) / 1e3
    print(f"JPEG of {SIZE[0]} x {SIZE[1]}, {kilobytes:.0f} kB; median of {args.batches} batches of {args.pictures}")
    medians = {name: statistics.median(each) for name, each in found.items()}
    for name, each in found.items():
        print(f"{name:24} {medians[name]:6.1f} ms of the processor ({min(each):.1f} to {max(each):.1f})")
    here, apart = medians.values()
    print(f"difference {apart - here:+.1f} ms; target at most {TARGET:g} ms")


if __name__ == "__main__":
    main()
