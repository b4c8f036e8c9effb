"""Measure similarities of two photographs: mirror images, tests of explained similarities, their time, and masks.

    python benchmarks/pairs.py mirror photos examples   # the best layer on `photos`, then the score on `examples`
    python benchmarks/pairs.py removal photos           # photos has one subfolder per class; a minute per 20 pairs
    python benchmarks/pairs.py time examples            # the CPU time of a map of a similarity and of a class
    python benchmarks/pairs.py masks examples           # masks of the foreground in pairs, and of each photograph alone

mirror: a photograph is compared with its mirror image, and a mutual match is right if it lies within one patch of the
mirrored position. The layer and descriptor with the most right matches on the first folder are chosen; the second
folder must not share photographs with it.

removal: for two photographs of one class, a map explains their similarity, and its patches are removed from the first,
and the second photograph stays fixed. It prints the share of pairs whose similarity falls faster than with random
orders.

time: for each method, the CPU time of all threads for the map of the predicted class and for the map of the similarity
to the next photograph, alternately in one run. It prints the medians over the photographs.

masks: for each descriptor of the last layers, one basis of principal components is fitted to each pair of photographs.
It prints the share of patches whose foreground mask agrees with that of a basis fitted to one photograph alone, and the
share of degenerate masks, which cover less than 5 % or more than 95 % of the patches.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from itertools import combinations, product
from pathlib import Path
from statistics import mean, median
from time import process_time

import torch
from PIL import ImageOps

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout that is not installed

import vitviz
from vitviz.analysis.pairs import DESCRIPTORS, PatchSimilarity
from vitviz.analysis.pca_basis import fit_pca
from vitviz.formatting import percent, text_table
from vitviz.images.folders import find_images, spread
from vitviz.resources import DEFAULT
from vitviz.view import View

ROUNDS = 3  # maps of each photograph, for each target and method


def right(similarity: PatchSimilarity) -> float:
    """Return the share of mutual matches with a mirror image that lie within one patch of the right position."""
    across = similarity.cosines.shape[1]
    away = [
        max(abs(match.first[0] - match.second[0]), abs(across - 1 - match.first[1] - match.second[1])) <= 1
        for match in similarity.mutual()
    ]
    return mean(away)


def mirrored(explorer: vitviz.Explorer, folder: Path, limit: int) -> Iterator[tuple[str, View, View]]:
    """Yield the name of each photograph, its view, and the view of its mirror image."""
    for path, _ in spread(find_images(folder), limit):
        view = explorer.open(path)
        yield path.name, view, explorer.open(ImageOps.mirror(view.photo))


def mirror(explorer: vitviz.Explorer, args: argparse.Namespace) -> None:
    """Print the share of right matches for every layer and descriptor, and for the best one on other photographs."""
    choices = [(name, block) for name in DESCRIPTORS for block in range(explorer.model.config.depth)]
    scores: dict[tuple[str, int], list[float]] = {choice: [] for choice in choices}
    for _, view, other in mirrored(explorer, args.photos, args.limit):
        for name, block in choices:
            scores[name, block].append(right(view.compare(other, name, block)))
    layers = [str(block + 1) for block in range(explorer.model.config.depth)]
    rows = [[name, *(percent(mean(scores[name, int(layer) - 1]), 2) for layer in layers)] for name in DESCRIPTORS]
    print(text_table([["layer", *layers], *rows]))
    best = max(choices, key=lambda choice: mean(scores[choice]))
    print(f"best on {args.photos}: {best[0]} of layer {best[1] + 1}, {percent(mean(scores[best]))}")
    found = {name: right(view.compare(other, *best)) for name, view, other in mirrored(explorer, args.test, args.limit)}
    print(f"on {args.test}: {percent(mean(found.values()))}, as a mean over {len(found)} photographs; at least 80 %")
    print(", ".join(f"{name} {percent(share, 2)}" for name, share in found.items()))


def pairs(folder: Path, count: int, seed: int) -> list[tuple[Path, Path]]:
    """Return random pairs of photographs of one class."""
    draw = random.Random(seed)
    classes = [sorted(files) for files in find_images(folder).values() if len(files) > 1]
    drawn = [draw.sample(files, 2) for files in draw.sample(classes, min(count, len(classes)))]
    return [(first, second) for first, second in drawn]


def removal(explorer: vitviz.Explorer, args: argparse.Namespace) -> None:
    """Print for each method the share of pairs whose similarity falls faster than with random orders."""
    gains: dict[str, list[float]] = {method: [] for method in args.methods}
    drops: dict[str, list[float]] = {method: [] for method in args.methods}
    for done, (first, second) in enumerate(pairs(args.photos, args.limit, args.seed), 1):
        view, target = explorer.open(first), vitviz.Similarity(explorer.open(second))
        maps = [view.explain(method, target) for method in args.methods]
        for method, test in zip(args.methods, view.faithfulness(maps, target, seed=args.seed), strict=True):
            gains[method].append(test.gain)
            drops[method].append(test.deletion.gain)
        print(f"{done} pairs", end="\r", file=sys.stderr, flush=True)
    rows = [
        [
            method, percent(mean(gain > 0 for gain in drops[method])), f"{mean(drops[method]):.3f}",
            percent(mean(gain > 0 for gain in gains[method])), f"{mean(gains[method]):.3f}",
        ]
        for method in args.methods
    ]  # fmt: skip
    print(f"{len(next(iter(gains.values())))} pairs, seed {args.seed}; cosine area below random orders:")
    print(text_table([["method", "deletion faster", "gain", "both better", "gain"], *rows]))


def measure_time(explorer: vitviz.Explorer, args: argparse.Namespace) -> None:
    """Print, for each method, the CPU time of explaining the predicted class and of explaining the similarity."""
    files = [path for path, _ in spread(find_images(args.photos), args.limit)]
    references = [vitviz.Similarity(explorer.open(path)) for path in [*files[1:], files[0]]]
    rows = []
    for method in args.methods:
        seconds: dict[str, list[float]] = {"class": [], "similarity": []}
        for _ in range(ROUNDS):
            for path, reference in zip(files, references, strict=True):
                for name in seconds:
                    view = explorer.open(path)  # a view keeps its maps
                    target = view.best(1)[0] if name == "class" else reference
                    began = process_time()
                    view.explain(method, target)
                    seconds[name].append(process_time() - began)
        one, other = median(seconds["class"]), median(seconds["similarity"])
        rows.append([method, f"{1000 * one:.0f}", f"{1000 * other:.0f}", f"{other / one:.2f}"])
    print(f"{len(files)} photographs, {torch.get_num_threads()} threads; milliseconds of CPU time, medians:")
    print(text_table([["method", "class", "similarity", "ratio"], *rows]))


def masks(explorer: vitviz.Explorer, args: argparse.Namespace) -> None:
    """Print how masks of the foreground in pairs agree with those of a photograph alone."""
    model = explorer.model
    traces = [explorer.open(path).trace for path, _ in spread(find_images(args.photos), args.limit)]
    rows = []
    for descriptor, block in product(DESCRIPTORS, range(-1, -5, -1)):
        alone = [fit_pca(model, [trace], descriptor, block).foreground(model, trace) for trace in traces]
        shares, agree = [], []
        for pair in combinations(range(len(traces)), 2):
            basis = fit_pca(model, [traces[index] for index in pair], descriptor, block)
            for index in pair:
                mask = basis.foreground(model, traces[index])
                shares.append(float(mask.mean()))
                agree.append(float((mask == alone[index]).mean()))
        layer = model.config.depth + block + 1
        lost = mean(not 0.05 <= share <= 0.95 for share in shares)
        rows.append([f"{descriptor} of layer {layer}", percent(lost), percent(mean(agree))])
    print(text_table([["descriptor", "all or nothing", "as alone"], *rows]))


MEASUREMENTS = {"mirror": mirror, "removal": removal, "time": measure_time, "masks": masks}


def main() -> None:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurement", choices=list(MEASUREMENTS))
    parser.add_argument("photos", type=Path)
    parser.add_argument("test", type=Path, nargs="?", default=Path("examples"))
    parser.add_argument("--model", default=DEFAULT)
    parser.add_argument("--limit", type=int, default=100, help="photographs, or pairs")
    parser.add_argument("--methods", nargs="+", default=["attn_lrp", "gae", "token_gradcam"])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    explorer = vitviz.Explorer(args.model)
    print(f"model {args.model}, {explorer.model.config.depth} layers")
    MEASUREMENTS[args.measurement](explorer, args)


if __name__ == "__main__":
    main()
