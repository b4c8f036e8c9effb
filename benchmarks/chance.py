"""Measure how often chance, and a map of the picture's centre, pass the test of a map by deletion and insertion.

    python benchmarks/chance.py photos                        # the default model, 24 photographs of the folder
    python benchmarks/chance.py photos --models vit-cifar10 --limit 100

random: for each photograph, 60 random orders of the patches and their reverses, 120 maps of the predicted class. The
table has the probability that such a map beats k of the other random orders in deletion, in insertion, in at least one
of them, and in both; it counts all subsets of k orders instead of drawing some. In one direction, the probability is
1 / (k + 1) in any model. In both, it depends on the model: 1 / ((k + 1) (k + 2)) if the two areas are independent, and
at most 1 / (2 (k + 1)), which is reached if one area determines the other.

centre: the same for the map of the distance to the picture's centre.

The number after ± is the standard error over the photographs.
"""

from __future__ import annotations

import argparse
import sys
from math import comb
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout that is not installed

import vitviz
from vitviz.evaluation.faithfulness import RANDOM, Floats, center_map, random_orders
from vitviz.formatting import text_table
from vitviz.images.folders import find_images, spread
from vitviz.resources import DEFAULT
from vitviz.view import View

ORDERS = (1, 3, 4, 5, RANDOM, 9, 19)


def passed(deletion: float, insertion: float, areas: Floats, k: int) -> Floats:
    """Return the chances that a map beats k random orders in deletion, insertion, one of them, and both: (4,).

    Args:
        deletion, insertion: the map's areas.
        areas: (R,), areas of independent random orders. All their subsets of k are counted.
        k: number of random orders.
    """
    faster = areas > deletion, areas < insertion
    hidden, shown, both = (comb(int(beaten.sum()), k) / comb(len(areas), k) for beaten in (*faster, np.all(faster, 0)))
    return np.array([hidden, shown, hidden + shown - both, both])


def measure(view: View, orders: int) -> tuple[Floats, Floats]:
    """Return the chances of random maps and of the centre map for each of `ORDERS`: 2 x (K, 4)."""
    grid = view.trace.grid
    ranks = random_orders(grid[0] * grid[1], orders, seed=1).argsort(1).double().unflatten(1, grid)
    tests = view.faithfulness(torch.cat([-ranks, center_map(grid)[None]]), random=1)
    *maps, center = [(test.deletion.area, test.insertion.area) for test in tests]
    chances = np.empty((orders, 2, 2, len(ORDERS), 4))  # of each order and its reverse, in two sets of areas
    for index, own in enumerate(maps):
        others = np.delete(np.array(maps), index, axis=0)  # (R - 1, 2)
        for areas in (0, 1):
            for reverse, (deletion, insertion) in enumerate((own, own[::-1])):
                chances[index, reverse, areas] = [passed(deletion, insertion, others[:, areas], k) for k in ORDERS]
    centers = [[passed(*center, areas, k) for k in ORDERS] for areas in np.array(maps).T]
    return chances.mean((0, 1, 2)), np.mean(centers, axis=0)


def rows(name: str, chances: Floats) -> list[list[str]]:
    """Return a row for each number of orders: means and standard errors over the photographs. chances: (P, K, 4)."""
    errors = chances.std(0, ddof=1) / len(chances) ** 0.5
    cells = [
        [f"{100 * m:.1f} ± {100 * e:.1f} %" for m, e in zip(*row, strict=True)]
        for row in zip(chances.mean(0), errors, strict=True)
    ]
    return [[name, str(k), *row] for k, row in zip(ORDERS, cells, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--models", nargs="+", default=[DEFAULT])
    parser.add_argument("--limit", type=int, default=24, help="photographs, spread over the subfolders")
    parser.add_argument("--size", type=int, help="input size in pixels (default: the model's)")
    parser.add_argument("--orders", type=int, default=60, help="random orders of each photograph")
    args = parser.parse_args()
    photos = [path for path, _ in spread(find_images(args.photos), args.limit)]
    for model in args.models:
        explorer = vitviz.Explorer(model)
        measured = []
        for done, path in enumerate(photos, 1):
            measured.append(measure(explorer.open(path, size=args.size), args.orders))
            print(f"{done} photographs", end="\r", file=sys.stderr, flush=True)
        random, center = map(np.stack, zip(*measured, strict=True))
        print(f"{model}, {len(photos)} photographs")
        header = ["map", "random orders", "deletion", "insertion", "one of them", "both"]
        print(text_table([header, *rows("random", random), *rows("centre", center)], left=0), flush=True)


if __name__ == "__main__":
    main()
