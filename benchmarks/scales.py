"""Measure how outliers affect the colors of maps: rollout from several first layers, and other methods.

    python benchmarks/scales.py photos                        # any folder; two bundled models, 50 files
    python benchmarks/scales.py photos --limit 12 --gain      # also faithfulness: half a minute or more per photograph
    python benchmarks/scales.py photos --gain --steps 8 --maps rollout          # only rollout: a few seconds each

"strongest" is the strongest patch relative to the map's 99th percentile (median, then 90th percentile of the
photographs): at 8, one patch takes seven eighths of the colors. "full" is the share of patches above a quarter of the
color range if it runs from minimum to maximum, "own" is the same for `Scale.own`, and "clipped" is the share of
photographs whose own scale clips patches. "edge" is the share of photographs whose strongest patch is at the border.
"gain" is the area by which deletion and insertion beat random orders.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout that is not installed

import vitviz
from vitviz.formatting import text_table
from vitviz.heatmap import Scale
from vitviz.images.folders import find_images, spread
from vitviz.view import View

OTHERS = ("attention", "value_attention", "gradient_rollout", "attention_gradcam", "gae", "attn_lrp")


def starts(depth: int) -> dict[str, int]:
    """Return row name -> first layer, counted from 0."""
    return {
        f"rollout from layer {start + 1} of {depth}": start for start in sorted({0, *range(2, depth, 2), depth - 1})
    }


def maps(view: View, prefix: str = "") -> dict[str, Any]:
    """Return row name -> map of one photograph, for rows whose names start with a prefix."""
    rollouts = {name: partial(view.rollout, start=start) for name, start in starts(view.trace.depth).items()}
    rows = rollouts | {method: partial(view.explain, method) for method in OTHERS}
    return {name: compute() for name, compute in rows.items() if name.startswith(prefix)}


def measure(values: NDArray[np.float32], signed: bool) -> list[float]:
    """Return the columns "strongest", "full", "own", "clipped" and "edge" for one map."""
    scale, sizes = Scale.own(values, signed), np.abs(values) if signed else values
    low, high, most = 0.0 if signed else float(sizes.min()), float(np.quantile(sizes, 0.99)), float(sizes.max())
    colored = [float((sizes > low + 0.25 * (end - low)).mean()) for end in (most, scale.vmax)]
    row, column = divmod(int(sizes.argmax()), sizes.shape[1])
    edge = row in (0, sizes.shape[0] - 1) or column in (0, sizes.shape[1] - 1)
    return [most / max(high, 1e-12), *colored, float(scale.clipped > 0), float(edge)]


def main() -> None:
    """Print one table per model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", nargs="+", default=["dinov2-s14-everyday", "dinov2-s14-imagenette"])
    parser.add_argument("--limit", type=int, default=50)
    parser.add_argument("--gain", action="store_true", help="also measure faithfulness")
    parser.add_argument("--steps", type=int, default=16, help="steps of deletion and insertion")
    parser.add_argument("--maps", default="", metavar="PREFIX", help="only rows whose names start with PREFIX")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    photos = [path for path, _ in spread(find_images(args.folder), args.limit)]
    for name in args.models:
        measured: dict[str, list[list[float]]] = {}
        explorer = vitviz.Explorer(name)
        for path in photos:
            view = explorer.open(path)
            heatmaps, best = maps(view, args.maps), view.best(1)[0]
            tests = view.faithfulness([*heatmaps.values()], best, steps=args.steps, random=4) if args.gain else []
            gains = [[test.gain] for test in tests] or [[]] * len(heatmaps)
            for (row, heatmap), gain in zip(heatmaps.items(), gains, strict=True):
                measured.setdefault(row, []).append([*measure(heatmap.values, heatmap.signed), *gain])
        print(f"\n{name}, {len(photos)} photographs")
        header = ["map", "strongest", "90 %", "full", "own", "clipped", "edge", *(["gain"] if args.gain else [])]
        lines = []
        for row, numbers in measured.items():
            columns = np.array(numbers).T
            cells = [f"{np.median(columns[0]):.1f}", f"{np.quantile(columns[0], 0.9):.1f}"]
            cells += [f"{column.mean():.0%}" for column in columns[1:5]]
            lines.append([row, *cells, *(f"{column.mean():.3f}" for column in columns[5:])])
        print(text_table([header, *lines], left=0))


if __name__ == "__main__":
    main()
