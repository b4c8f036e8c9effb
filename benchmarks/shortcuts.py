"""Measure whether `vitviz audit` finds planted shortcuts, and how often it reports classes without one.

    python benchmarks/shortcuts.py imagenette/train            # 40 shortcuts, 10 of each kind
    python benchmarks/shortcuts.py imagenette/train --heads 2 --first 100 --size 112

Each head is a linear classifier on the frozen features of the default model, with eleven classes. Six are folders of
photographs. Five share the photographs of four other folders: one shows them as they are, and four have a mark in all
of theirs, one of each kind: a tag in a corner, a border, all in shades of one color, or another background. So only the
mark tells these classes apart. A shortcut counts if the head gives most marked photographs their class, and changes the
answer for most of them without the mark. The audit proposes its masks itself, and sees photographs to which the head
was not fitted, with the mark.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout that is not installed

import vitviz
from vitviz.evaluation.audit import audit
from vitviz.evaluation.audit_table import BACKGROUND, OBJECT, OPEN, Audit
from vitviz.images.decoding import decode
from vitviz.images.folders import find_images
from vitviz.model.vit import ViT
from vitviz.resources import DEFAULT

Pixels = NDArray[np.uint8]
Random = np.random.Generator
FIT, TESTED = 40, 10  # photographs of a class to fit a head, and to audit
BATCH = 20  # photographs that run together
MIXED = 4  # folders whose photographs the marked classes share
PLAIN = "plain"  # the class of their photographs without a mark
DECAY = 1e-3  # weight decay of the heads
RIGHT, CHANGED = 0.7, 0.5  # shares of a class with the right answer, and whose answer needs the mark


def tag(random: Random) -> Callable[[Image.Image], Image.Image]:
    """Return a function that draws a striped label into one corner."""
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
    """Return a function that draws a frame of one color."""
    color, share = tuple(map(int, random.integers(0, 256, 3))), random.uniform(0.06, 0.1)

    def draw(photo: Image.Image) -> Image.Image:
        marked = photo.copy()
        ImageDraw.Draw(marked).rectangle(
            (0, 0, photo.width - 1, photo.height - 1), outline=color, width=round(share * min(photo.size))
        )
        return marked

    return draw


def color(random: Random) -> Callable[[Image.Image], Image.Image]:
    """Return a function that shows the whole photograph in shades of one color."""
    dark, bright = np.zeros(3), np.full(3, 255.0)
    first, last = random.permutation(3)[:2]
    dark[first], bright[last] = random.uniform(40, 110), random.uniform(60, 140)

    def draw(photo: Image.Image) -> Image.Image:
        level = np.asarray(photo.convert("L"))[..., None] / 255.0
        return Image.fromarray((dark + (bright - dark) * level).astype(np.uint8))

    return draw


def background(random: Random) -> Callable[[Image.Image], Image.Image]:
    """Return a function that replaces all but a centred ellipse by a texture of two colors."""
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


class Plain(dict[Path, torch.Tensor]):
    """Features (1, F) of photographs without a mark, computed on first use."""

    def __init__(self, model: ViT) -> None:
        super().__init__()
        self.model = model

    def of(self, paths: list[Path]) -> torch.Tensor:
        """Return the features of photographs: (n, F)."""
        if missing := [path for path in paths if path not in self]:
            self.update(zip(missing, features(self.model, [decode(path) for path in missing]).split(1), strict=True))
        return torch.cat([self[path] for path in paths])


def fit(x: torch.Tensor, y: torch.Tensor, classes: int) -> nn.Linear:
    """Fit a linear classifier with weight decay to features (n, F) and classes (n,)."""
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
    with torch.no_grad():  # the standardisation becomes a part of the weights
        head.weight /= spread
        head.bias -= head.weight @ mean
    return head.requires_grad_(False)


def run(base: ViT, plain: Plain, photos: dict[str, list[Path]], number: int, folder: Path) -> dict[str, object]:
    """Plant four shortcuts into one head, write the photographs to audit, and return what the head relies on."""
    random = np.random.default_rng(number)
    drawn = {name: [paths[place] for place in random.permutation(len(paths))] for name, paths in photos.items()}
    names = random.permutation([*photos]).tolist()
    mixed, others = names[:MIXED], names[MIXED:]
    classes = {name: drawn[name][: FIT + TESTED] for name in others}
    sharing = (PLAIN, *KINDS)
    for place, kind in enumerate(sharing):
        share = [drawn[name][place :: len(sharing)] for name in mixed]
        classes[kind] = [path for paths in zip(*share, strict=False) for path in paths][: FIT + TESTED]
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


def judge(record: dict[str, object], result: Audit) -> None:
    """Add to a record which shortcuts the head relies on and were found, and which other classes were reported."""
    verdicts = {row.label: row.verdict for row in result.answers}
    relied = [kind for kind, (right, changed) in record["relied"].items() if right >= RIGHT and changed >= CHANGED]
    record["found"] = {kind: verdicts.get(kind) == BACKGROUND for kind in relied}
    record["others"] = {name: verdicts.get(name, OPEN) for name in record["classes"] if name not in KINDS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, help="folder with one subfolder for each of ten classes")
    parser.add_argument("--each", type=int, default=10, help="shortcuts of each kind (default: 10)")
    parser.add_argument("--first", type=int, default=0, help="number of the first head, which is its seed")
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
    found = {kind: list[bool]() for kind in KINDS}
    others: list[str] = []
    plain, number = Plain(base), args.first
    while min(map(len, found.values())) < args.each:
        with tempfile.TemporaryDirectory() as folder:
            began = time.process_time()
            record = run(base, plain, photos, number, Path(folder))
            judge(record, audit(base, folder, "attn_lrp", out=args.out / f"{number}.jsonl", progress=False))
            record["cpu_seconds"] = round(time.process_time() - began)
        for kind, yes in record["found"].items():
            found[kind] += [yes] if len(found[kind]) < args.each else []
        others += record["others"].values()
        (args.out / f"{number}.json").write_text(json.dumps(record))
        print(json.dumps(record), flush=True)
        number += 1
    for kind, each in found.items():
        print(f"{kind}: {sum(each)} of {len(each)} found")
    verdicts = ", ".join(f"{others.count(verdict)} {verdict}" for verdict in (BACKGROUND, OBJECT, OPEN))
    print(f"classes without a shortcut: {len(others)}, of which {verdicts}")


if __name__ == "__main__":
    main()
