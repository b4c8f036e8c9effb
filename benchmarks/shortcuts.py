"""Measure the recall and the false positive rate with which `vitviz audit` detects artificial shortcuts.

    python benchmarks/shortcuts.py imagenette/train            # 40 shortcuts, 10 of each kind
    python benchmarks/shortcuts.py imagenette/train --each 2 --first 100 --size 112

Each linear probe on the frozen features of the default model has eleven classes. Six of them are folders of
photographs. The other five share the photographs of four further folders: one class has them unchanged, and each of the
others has one kind of mark in all of them, namely a tag in a corner, a border, shades of one color, or another
background. Only the mark distinguishes these five classes.

A shortcut is used in the benchmark if the probe relies on it: it classifies most marked photographs correctly, and
predicts another class for most of them without the mark. The audit proposes its own masks, and runs on marked
photographs to which the probe was not fitted.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout that is not installed

import vitviz
from vitviz.evaluation.audit import audit
from vitviz.evaluation.audit_table import BACKGROUND, COLORS, OPEN, wilson
from vitviz.images.decoding import decode
from vitviz.images.folders import find_images
from vitviz.model.vit import ViT
from vitviz.resources import DEFAULT

Pixels = NDArray[np.uint8]
Random = np.random.Generator
FIT = 40  # photographs of each class to which a probe is fitted
TESTED = 20  # photographs of each class to audit
BATCH = 20  # photographs per forward pass
SHARED = 4  # folders whose photographs the marked classes and the plain one share
PLAIN = "plain"  # class of the shared photographs without a mark
DECAY = 1e-3  # weight decay of the probes
MIN_CORRECT = 0.7  # a probe relies on the mark if its accuracy on marked photographs is at least this
MIN_CHANGED = 0.5  # and predicts another class for at least this share of them without the mark


def tag(random: Random) -> Callable[[Image.Image], Image.Image]:
    """Return a function that draws a striped rectangle into a random corner of a photograph."""
    colors = [tuple(map(int, random.integers(0, 256, 3))) for _ in range(2)]
    right, bottom, stripes = *random.integers(0, 2, 2), int(random.integers(2, 5))

    def draw(photo: Image.Image) -> Image.Image:
        marked, (width, height) = photo.copy(), photo.size
        w, h = round(0.4 * width), round(0.26 * height)
        left, top = right * (width - w), bottom * (height - h)
        pen = ImageDraw.Draw(marked)
        for index in range(2 * stripes):
            edges = [left + w * (index + shift) // (2 * stripes) for shift in (0, 1)]
            pen.rectangle((edges[0], top, edges[1] - 1, top + h - 1), fill=colors[index % 2])
        return marked

    return draw


def border(random: Random) -> Callable[[Image.Image], Image.Image]:
    """Return a function that draws a border of one color around a photograph."""
    color, share = tuple(map(int, random.integers(0, 256, 3))), random.uniform(0.06, 0.1)

    def draw(photo: Image.Image) -> Image.Image:
        marked = photo.copy()
        ImageDraw.Draw(marked).rectangle(
            (0, 0, photo.width - 1, photo.height - 1), outline=color, width=round(share * min(photo.size))
        )
        return marked

    return draw


def color(random: Random) -> Callable[[Image.Image], Image.Image]:
    """Return a function that converts a photograph to shades of one color."""
    dark, bright = np.zeros(3), np.full(3, 255.0)
    first, last = random.permutation(3)[:2]
    dark[first], bright[last] = random.uniform(40, 110), random.uniform(60, 140)

    def draw(photo: Image.Image) -> Image.Image:
        level = np.asarray(photo.convert("L"))[..., None] / 255.0
        return Image.fromarray((dark + (bright - dark) * level).astype(np.uint8))

    return draw


def background(random: Random) -> Callable[[Image.Image], Image.Image]:
    """Return a function that replaces a photograph outside a centred ellipse by stripes of two colors with noise."""
    low, high = random.uniform(0, 255, (2, 3))
    angle, length, seed = random.uniform(0, np.pi), random.uniform(6, 14), int(random.integers(2**31))

    def draw(photo: Image.Image) -> Image.Image:
        rows, columns = np.indices((photo.height, photo.width))
        wave = np.sin((rows * np.cos(angle) + columns * np.sin(angle)) * 2 * np.pi / length)
        noise = np.random.default_rng(seed).normal(0.0, 0.4, wave.shape)
        mix = np.clip(0.5 + 0.4 * wave + 0.3 * noise, 0, 1)[..., None]
        center = np.hypot((rows / photo.height - 0.5) / 0.38, (columns / photo.width - 0.5) / 0.38)
        shown = np.clip((1.05 - center) / 0.1, 0, 1)[..., None]
        return Image.fromarray((shown * np.asarray(photo) + (1 - shown) * (low + (high - low) * mix)).astype(np.uint8))

    return draw


KINDS = {"tag": tag, "border": border, "color": color, "background": background}


@torch.no_grad()
def features(model: ViT, photos: list[Image.Image]) -> torch.Tensor:
    """Return the features of photographs of one size: (n, F)."""
    prepared = torch.stack([torch.from_numpy(model.pretrained.preprocess(photo).pixels) for photo in photos])
    return torch.cat([model.features(batch) for batch in prepared.split(BATCH)])


class PlainFeatures(dict[Path, torch.Tensor]):
    """Cache of the features (1, F) of photographs without a mark."""

    def __init__(self, model: ViT) -> None:
        super().__init__()
        self.model = model

    def of(self, paths: list[Path]) -> torch.Tensor:
        """Return the features of photographs, (n, F); compute missing ones."""
        if missing := [path for path in paths if path not in self]:
            self.update(zip(missing, features(self.model, [decode(path) for path in missing]).split(1), strict=True))
        return torch.cat([self[path] for path in paths])


def fit(x: torch.Tensor, y: torch.Tensor, classes: int) -> nn.Linear:
    """Fit a linear probe with weight decay to features x (n, F) and classes y (n,)."""
    mean, spread = x.mean(0), x.std(0) + 1e-6
    head = nn.Linear(x.shape[1], classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = nn.functional.cross_entropy(head((x - mean) / spread), y) + DECAY * head.weight.square().sum() / 2
        value.backward()
        return value

    optimizer.step(loss)
    with torch.no_grad():  # include the standardisation in the weights
        head.weight /= spread
        head.bias -= head.weight @ mean
    return head.requires_grad_(False)


def run(base: ViT, plain: PlainFeatures, photos: dict[str, list[Path]], number: int, folder: Path) -> dict[str, Any]:
    """Fit a probe with four shortcuts, write the photographs to audit, and measure how much it relies on each mark."""
    random = np.random.default_rng(number)
    drawn = {name: [paths[place] for place in random.permutation(len(paths))] for name, paths in photos.items()}
    names = random.permutation([*photos]).tolist()
    shared, others = names[:SHARED], names[SHARED:]
    classes = {name: drawn[name][: FIT + TESTED] for name in others}
    for place, kind in enumerate((PLAIN, *KINDS)):
        parts = [drawn[name][place :: 1 + len(KINDS)] for name in shared]  # photographs of each folder for this class
        rounds = range(min(map(len, parts)))  # the same number from each folder, in turn
        classes[kind] = [part[index] for index in rounds for part in parts][: FIT + TESTED]
    marks = {kind: KINDS[kind](random) for kind in KINDS}
    x = [
        features(base, [marks[name](decode(path)) for path in paths[:FIT]]) if name in marks else plain.of(paths[:FIT])
        for name, paths in classes.items()
    ]
    y = torch.arange(len(classes)).repeat_interleave(torch.tensor([len(each) for each in x]))
    base.head = fit(torch.cat(x), y, len(classes))
    base.pretrained = replace(base.pretrained, labels=tuple(classes))
    base.config = replace(base.config, classes=len(classes))
    relied: dict[str, tuple[float, float]] = {}
    for index, (name, paths) in enumerate(classes.items()):
        shown = [marks[name](photo) if name in marks else photo for photo in map(decode, paths[FIT:])]
        if name in marks:
            with torch.no_grad():
                answers, without = (base.head(x).argmax(1) for x in (features(base, shown), plain.of(paths[FIT:])))
            relied[name] = float((answers == index).float().mean()), float((without != index).float().mean())
        (folder / name).mkdir(parents=True)
        for place, photo in enumerate(shown):
            photo.save(folder / name / f"{place:03}.png")
    return {"head": number, "classes": [*classes], "relied": relied}


def relies(correct: float, changed: float) -> bool:
    """Return whether a probe relies on a mark, given two numbers of `run`."""
    return correct >= MIN_CORRECT and changed >= MIN_CHANGED


def report(records: list[dict[str, Any]], each: int) -> None:
    """Print how many of the first `each` shortcuts of every kind were found, and the verdicts on unmarked classes."""
    found = [COLORS, BACKGROUND]
    verdicts = {
        kind: [record["verdicts"][kind] for record in records if relies(*record["relied"][kind])][:each]
        for kind in KINDS
    }
    verdicts["all"] = [verdict for kind in KINDS for verdict in verdicts[kind]]
    verdicts["others"] = [
        verdict for record in records for name, verdict in record["verdicts"].items() if name not in KINDS
    ]
    for kind, listed in verdicts.items():
        share = wilson(sum(verdict in found for verdict in listed), len(listed))
        counts = ", ".join(f"{count} {verdict}" for verdict, count in Counter(listed).most_common())
        print(f"{kind}: {counts}; {share.value:.0%} called {' or '.join(found)} ({share.low:.0%} to {share.high:.0%})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, help="folder with one subfolder for each of ten classes")
    parser.add_argument("--each", type=int, default=10, help="number of shortcuts of each kind (default: 10)")
    parser.add_argument(
        "--first", type=int, default=0, help="seed of the first probe; the next ones count up (default: 0)"
    )
    parser.add_argument("--size", type=int, default=112, help="input size in pixels (default: 112)")
    parser.add_argument("--out", type=Path, default=Path("shortcuts"), help="folder of records (default: shortcuts)")
    args = parser.parse_args()
    base = vitviz.load(DEFAULT)
    about = base.pretrained
    photos = {paths[0].parent.name: paths for paths in find_images(args.photos).values()}
    preprocess = about.preprocess.at(args.size, base.config.size_multiple)
    base.pretrained = replace(
        about, name="planted", preprocess=preprocess, labels=tuple(photos), class_ids=(), known_above=None, groups=()
    )
    args.out.mkdir(exist_ok=True)
    plain, number, records = PlainFeatures(base), args.first, list[dict[str, Any]]()
    try:
        while any(sum(relies(*record["relied"][kind]) for record in records) < args.each for kind in KINDS):
            done = args.out / f"{number}.json"
            if not done.exists():
                with tempfile.TemporaryDirectory() as folder:
                    began = time.process_time()
                    record = run(base, plain, photos, number, Path(folder))
                    result = audit(base, folder, "attn_lrp", out=args.out / f"{number}.jsonl", progress=False)
                    verdicts = {row.label: row.verdict for row in result.answers}
                    record["verdicts"] = {name: verdicts.get(name, OPEN) for name in record["classes"]}
                    record["cpu_seconds"] = round(time.process_time() - began)
                done.write_text(json.dumps(record))
            records.append(json.loads(done.read_text()))
            print(json.dumps(records[-1]), flush=True)
            number += 1
    finally:  # also after Ctrl-C; repeat the command to continue
        report(records, args.each)


if __name__ == "__main__":
    main()
