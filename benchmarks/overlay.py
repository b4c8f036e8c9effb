"""Compare the time of an overlay with matplotlib's imshow and savefig of the same picture.

python benchmarks/overlay.py [--width 1000] [--height 750] [--repeats 40]
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout that is not installed

from vitviz.draw.sheet import sheet
from vitviz.heatmap import Heatmap
from vitviz.images.preprocess import Preprocess


def median_ms(run: Callable[[], object], repeats: int) -> float:
    """Return the median wall time of `run` in milliseconds, after two warm-up runs."""
    times = []
    for i in range(repeats + 2):
        start = time.perf_counter()
        run()
        if i >= 2:
            times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def matplotlib_picture(heatmap: Heatmap) -> Callable[[], object]:
    """Return the usual way: two imshow calls and savefig, with one pixel of the figure per pixel of the photograph."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width, height = heatmap.photo.size
    left, top, right, bottom = heatmap.geometry.frame

    def draw() -> bytes:
        figure = Figure(figsize=(width / 100, height / 100), dpi=100)
        FigureCanvasAgg(figure)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.imshow(np.asarray(heatmap.photo), extent=(0, width, height, 0))
        axes.imshow(heatmap.values, alpha=0.5, extent=(left, right, bottom, top), interpolation="bilinear")
        axes.set_xlim(0, width)
        axes.set_ylim(height, 0)
        axes.axis("off")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="raw")  # without PNG compression, to compare only the drawing
        return buffer.getvalue()

    return draw


def main() -> None:
    """Print one line per case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=1000)
    parser.add_argument("--height", type=int, default=750)
    parser.add_argument("--repeats", type=int, default=40)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    noise = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
    photo = noise.resize((args.width, args.height), Image.Resampling.BICUBIC)

    def report(name: str, run: Callable[[], object], repeats: int = args.repeats) -> None:
        print(f"  {name:36}{median_ms(run, repeats):8.1f} ms")

    print(f"photograph {args.width} x {args.height}, map 16 x 16, with grid and query, median of {args.repeats}")
    for mode in ("crop", "squash"):
        geometry = Preprocess(height=256, width=256, mode=mode)(photo).geometry
        heatmap = Heatmap(rng.random((16, 16), np.float32) ** 4, geometry, photo, unit="attention", query=(5, 7))
        report(f"{mode}, blocks", partial(heatmap.overlay, grid=True))
        report(f"{mode}, smooth", partial(heatmap.overlay, grid=True, smooth=True))
        report(f"{mode}, matplotlib imshow + savefig", matplotlib_picture(heatmap), max(5, args.repeats // 4))
    report("contact sheet of 13 maps", partial(sheet, [heatmap] * 13, title="Layer 12"))


if __name__ == "__main__":
    main()
