"""Compare the cost of each attribution method with a forward pass of the same photograph.

    python benchmarks/methods.py                      # the bundled model at its native size, attention and gradients
    python benchmarks/methods.py --all                # also captum's methods, once each: a minute or more
    python benchmarks/methods.py --threads 1 --clock cpu --against ../before     # another checkout
    python benchmarks/methods.py --size 1036 --only rollout                      # many tokens

"alone" includes the forward pass; "after" reuses the trace of an `Explorer`. Methods and checkouts, each in its own
process, alternate in each round, so that background load affects all of them equally. On a busy machine, use
`--clock cpu` with one thread, because waiting threads count too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, os.environ.get("CHECKOUT") or str(Path(__file__).resolve().parents[1]))  # it is not installed

import vitviz
from vitviz.attribution.inputs import Method
from vitviz.attribution.registry import METHODS, attribute
from vitviz.images.decoding import decode

HERE = Path(__file__).resolve().parents[1]
EXAMPLES = HERE / "examples"
TARGETS = {"attention": 1.2, "values": 1.2, "gradient": 4.0}  # maximum cost in forward passes, by family
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


class Side:
    """A checkout, whose child process times each run once per round."""

    def __init__(self, checkout: Path) -> None:
        environment = {**os.environ, "CHECKOUT": str(checkout.resolve())}
        command = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:], "--serve"]
        pipe = subprocess.PIPE
        self.child = subprocess.Popen(command, env=environment, cwd=checkout, stdin=pipe, stdout=pipe, text=True)
        self.rounds: list[dict[str, float]] = []

    def run(self) -> None:
        """Time each run once, in seconds."""
        assert self.child.stdin
        assert self.child.stdout
        print(file=self.child.stdin, flush=True)
        self.rounds.append(json.loads(self.child.stdout.readline()))

    def medians(self) -> dict[str, float]:
        """Return the median seconds of each run, without the first round, which warms up."""
        return {name: statistics.median(each[name] for each in self.rounds[1:]) for name in self.rounds[0]}


def serve(runs: dict[str, Callable[[], object]], clock: Callable[[], float]) -> None:
    """Time all runs for each line of standard input."""
    for _ in sys.stdin:
        seconds = {}
        for name, run in runs.items():
            began = clock()
            run()
            seconds[name] = clock() - began
        print(json.dumps(seconds), flush=True)


def prepare(args: argparse.Namespace) -> dict[str, Callable[[], object]]:
    """Return what is timed, by name: a forward pass, and each method alone and with an existing trace."""
    torch.set_num_threads(args.threads)
    model = vitviz.load(args.model)
    assert model.pretrained is not None
    preprocess = model.pretrained.preprocess
    if args.size:
        preprocess = preprocess.at(args.size, model.config.patch_size)
    images = torch.from_numpy(preprocess(decode(args.photo)).pixels)[None]
    trace = model.trace(images)

    def forward() -> None:
        with torch.no_grad():
            model(images)

    runs: dict[str, Callable[[], object]] = {"forward": forward}
    for name in args.only:
        runs[name] = lambda name=name: attribute(model, images, method=name)
        runs[f"{name} after"] = lambda name=name: attribute(model, images, method=name, trace=trace)
    return runs


def main() -> None:
    """Print one line per method."""
    quick_methods = [name for name, method in METHODS.items() if not method.slow]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="dinov2-s14-imagenette")
    parser.add_argument("--photo", type=Path, default=min(EXAMPLES.glob("*.jpg")), help="default: the first example")
    parser.add_argument("--size", type=int, help="pixels of the input's longer side (default: the model's)")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout of vitviz")
    parser.add_argument("--only", nargs="+", default=quick_methods, choices=METHODS, metavar="METHOD")
    parser.add_argument("--all", action="store_true", help="also methods that take hundreds of forward passes")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.all:
        args.only = list(METHODS)
    if args.serve:
        serve(prepare(args), CLOCKS[args.clock])
        return
    sides = [Side(checkout) for checkout in (HERE, args.against) if checkout]
    for _ in range(args.repeats + 1):
        for side in sides:
            side.run()
    print(f"{platform.machine()}, {args.threads} threads, torch {torch.__version__}, {args.clock} clock")
    print(f"{args.model}, {args.size or 'default'} pixels, {args.photo.name}, median of {args.repeats}")
    heading = f"{'alone':>11}{'forwards':>10}{'after':>11}{'forwards':>10}"
    print(f"  {'':22}{heading}{'target':>10}{'| ' + heading if args.against else ''}")
    for name in args.only:
        print(line(METHODS[name], *(side.medians() for side in sides)), flush=True)


def line(method: Method, seconds: dict[str, float], *before: dict[str, float]) -> str:
    """Return a method's times in this checkout and in the other, if any."""
    columns = [
        f"{1000 * side[name]:8.1f} ms{side[name] / side['forward']:10.2f}"
        for side in (seconds, *before)
        for name in (method.name, f"{method.name} after")
    ]
    target = TARGETS.get(method.family)
    mark = "" if target is None else f"<= {target}"
    return f"  {method.name:22}{''.join(columns[:2])}{mark:>10}{'| ' + ''.join(columns[2:]) if before else ''}"


if __name__ == "__main__":
    main()
