"""Compare the CPU time of decoding a photograph in a worker process, as the server does, and in this process.

    python benchmarks/decoding.py

The photograph is an example as a JPEG of one megapixel. Batches alternate between the two. The CPU time of this
process and its children is measured, so background load has little effect.
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
TARGET = 15.0  # maximum extra CPU time of the worker process, in milliseconds


def photograph() -> bytes:
    """Return a photograph as a JPEG file."""
    out = io.BytesIO()
    with Image.open(sorted(resource_folder("examples").glob("*.jpg"))[0]) as whole:
        whole.convert("RGB").resize(SIZE).save(out, "JPEG", quality=92)
    return out.getvalue()


def cpu_seconds() -> float:
    """Return the CPU time of this process and its children."""
    process = psutil.Process()
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return float(sum(time.user + time.system for time in times))


def milliseconds(decoder: Callable[[bytes], Any], data: bytes, pictures: int) -> float:
    """Return the CPU time per picture, averaged because the kernel counts in hundredths of a second."""
    before = cpu_seconds()
    for _ in range(pictures):
        decoder(data)
    return 1000 * (cpu_seconds() - before) / pictures


def main() -> None:
    """Measure and print the CPU time of both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=9)
    parser.add_argument("--pictures", type=int, default=20, help="pictures per batch")
    args = parser.parse_args()
    data, decoders = photograph(), {"in this process": decode, "in a worker process": decode_apart}
    workers().warm()
    times: dict[str, list[float]] = {name: [] for name in decoders}
    for decoder in decoders.values():
        milliseconds(decoder, data, args.pictures)  # warm-up
    for _ in range(args.batches):
        for name, decoder in decoders.items():
            times[name].append(milliseconds(decoder, data, args.pictures))
    kilobytes = len(data) / 1e3
    print(f"JPEG of {SIZE[0]} x {SIZE[1]}, {kilobytes:.0f} kB; median of {args.batches} batches of {args.pictures}")
    medians = {name: statistics.median(batches) for name, batches in times.items()}
    for name, batches in times.items():
        print(f"{name:24} {medians[name]:6.1f} ms of CPU time ({min(batches):.1f} to {max(batches):.1f})")
    single, worker = medians.values()
    print(f"difference {worker - single:+.1f} ms; target at most {TARGET:g} ms")


if __name__ == "__main__":
    main()
