"""Measure how long the search for small evidence takes, and how large its sets are.

    python benchmarks/evidence.py photos                    # the default model, 24 photographs of the folder
    python benchmarks/evidence.py a.jpg b.jpg --keep 0.8 --size 112 --until minimal

Times start after the forward pass that opens a photograph and include the map of AttnLRP. CPU seconds count all
threads of this process; seconds by the clock are longer on a busy machine.

- greedy: the first set, the first patches of the map that alone keep the prediction
- minimal: this set with its certificate
- sets: in addition, up to two further disjoint sets with their certificates
- all: in addition, the set whose removal changes the prediction, with its certificate

The last two columns are numbers of patches; for "sets", the number of sets.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout that is not installed

import vitviz
from vitviz.evaluation.evidence import METHOD, Evidence, search
from vitviz.formatting import text_table
from vitviz.images.folders import find_images, spread
from vitviz.resources import DEFAULT
from vitviz.view import View

STAGES = ("greedy", "minimal", "sets", "all")


def stages(found: Evidence) -> list[str]:
    """Return the stages that a search has reached."""
    minimal, removing = bool(found.sets) and found.sets[0].minimal, found.change is not None
    reached = bool(found.sets), minimal, removing or found.finished, found.finished
    return [stage for stage, yes in zip(STAGES, reached, strict=True) if yes]


def measure(view: View, keep: float | None, until: str) -> dict[str, tuple[float, float, float]]:
    """Return seconds by the clock, CPU seconds and size of each stage: patches, or for "sets" the number of sets."""
    clock, cpu, measured = time.perf_counter(), time.process_time(), dict[str, tuple[float, float, float]]()
    for found in search(view.model, view.images, keep=keep, heatmap=view.explain(METHOD)):
        seconds = time.perf_counter() - clock, time.process_time() - cpu
        change = float("nan") if found.change is None else len(found.change.patches)
        sizes = {"sets": len(found.sets), "all": change}
        for stage in stages(found):
            measured.setdefault(stage, (*seconds, sizes.get(stage, len(found.sets[0].patches))))
        if until in measured:
            break
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, nargs="+", help="files, or one folder")
    parser.add_argument("--model", default=DEFAULT)
    parser.add_argument("--limit", type=int, default=24, help="photographs of a folder, spread over its subfolders")
    parser.add_argument("--size", type=int, help="input size in pixels (default: the model's)")
    parser.add_argument("--keep", type=float, help="probability to keep (default: stay the predicted class)")
    parser.add_argument("--until", choices=STAGES, default="all", help="stop each search at this stage (default: all)")
    args = parser.parse_args()
    photos = args.photos
    if photos[0].is_dir():
        photos = [path for path, _ in spread(find_images(photos[0]), args.limit)]
    explorer, measured = vitviz.Explorer(args.model), []
    for path in photos:
        view = explorer.open(path, size=args.size)
        if args.keep is None or view.predictions(1)[0][1] >= args.keep:
            measured.append(measure(view, args.keep, args.until))
            print(
                path.name, {stage: np.round(values, 1).tolist() for stage, values in measured[-1].items()}, flush=True
            )
    rows = [["stage", "seconds, median", "95 %", "CPU seconds, median", "95 %", "patches, median", "95 %"]]
    for stage in STAGES:
        values = np.array([each[stage] for each in measured if stage in each])  # (photographs, 3)
        if len(values):
            middle, high = np.nanquantile(values, 0.5, axis=0), np.nanquantile(values, 0.95, axis=0)
            rows.append([stage, *(f"{number:.1f}" for pair in zip(middle, high, strict=True) for number in pair)])
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    print(f"{args.model}, {len(measured)} of {len(photos)} photographs, {load}")
    print(text_table(rows, left=0))


if __name__ == "__main__":
    main()
