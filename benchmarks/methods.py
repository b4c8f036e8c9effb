"""Compare the cost of each attribution method with a forward pass of the same photograph.

    python benchmarks/methods.py                      # the bundled model at its native size, attention and gradients
    python benchmarks/methods.py --all                # also captum's methods, once each: a minute or more
    python benchmarks/methods.py --threads 1 --clock cpu

"alone" includes the forward pass; "after" reuses the trace of an `Explorer`. Methods alternate in each round, so
that background load affects all of them equally. On a busy machine, use `--clock cpu` with one thread,
because waiting threads count too.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout that is not installed

import vitviz
from vitviz.attribution.inputs import Method
from vitviz.attribution.registry import METHODS, attribute
from vitviz.images.decoding import decode

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
TARGETS = {"attention": 1.2, "values": 1.2, "gradient": 4.0}  # maximum cost in forward passes, by family
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


def rounds(runs: dict[str, Callable[[], object]], repeats: int, clock: Callable[[], float]) -> dict[str, float]:
    """Return the median seconds of each run; runs alternate, and the first round is the warm-up."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for index in range(repeats + 1):
        for name, run in runs.items():
            began = clock()
            run()
            if index:
                times[name].append(clock() - began)
    return {name: statistics.median(values) for name, values in times.items()}


def quick(method: Method) -> bool:
    """Return whether a method takes few forward passes."""
    return method.cost < 20


def main() -> None:
    """Print one line per method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="dinov2-s14-imagenette")
    parser.add_argument("--photo", type=Path, help="default: the first example")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--all", action="store_true", help="also methods that take hundreds of forward passes")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = CLOCKS[args.clock]

    model = vitviz.load(args.model)
    assert model.pretrained is not None
    photo = args.photo or min(EXAMPLES.glob("*.jpg"))
    prepared = model.pretrained.preprocess(decode(photo))
    images = torch.from_numpy(prepared.pixels)[None]
    trace = model.trace(images)

    def forward() -> None:
        with torch.no_grad():
            model(images)

    runs: dict[str, Callable[[], object]] = {"forward": forward}
    for name, method in METHODS.items():
        if quick(method):
            runs[name] = lambda name=name: attribute(model, images, method=name)
            runs[f"{name} after"] = lambda name=name: attribute(model, images, method=name, trace=trace)
    print(f"{platform.machine()}, {args.threads} threads, torch {torch.__version__}, {args.clock} clock")
    print(f"{args.model}, {images.shape[2]} x {images.shape[3]} pixels, {photo.name}, median of {args.repeats}")
    seconds = rounds(runs, args.repeats, clock)
    print(f"  {'':22}{'alone':>11}{'forwards':>10}{'after':>11}{'forwards':>10}{'target':>10}")
    print(f"  {'forward':22}{1000 * seconds['forward']:8.1f} ms{1:10.2f}")
    for name in seconds:
        if name in METHODS:
            line(METHODS[name], seconds[name], seconds[f"{name} after"], seconds["forward"])
    for name, method in METHODS.items() if args.all else ():
        if not quick(method):
            began = clock()
            attribute(model, images, method=name)
            line(method, clock() - began, None, seconds["forward"])


def line(method: Method, alone: float, after: float | None, forward: float) -> None:
    text = f"  {method.name:22}{1000 * alone:8.1f} ms{alone / forward:10.2f}"
    if after is not None:
        text += f"{1000 * after:8.1f} ms{after / forward:10.2f}"
    if target := TARGETS.get(method.family):
        text += f"{f'<= {target}':>10}" + ("" if alone <= target * forward else "  missed")
    print(text, flush=True)


if __name__ == "__main__":
    main()
