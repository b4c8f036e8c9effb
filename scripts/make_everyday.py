"""Make the image folder of 264 everyday classes from the archives of everyday256 and Imagenette.

    python scripts/make_everyday.py ARCHIVES everyday

ARCHIVES holds everyday256-train-a.tar, everyday256-train-b.tar, everyday256-val.tar, everyday256-classes.csv,
everyday256-images.csv.gz, imagenette224-train-a.tar, imagenette224-train-b.tar and imagenette224-val.tar. Written are

- train/CLASS and val/CLASS: what `vitviz train --data everyday` reads; CLASS is the label. val/ holds everyday256's
  validation images and the first --imagenette-val images of each of Imagenette's classes, so that a validation after
  each epoch is short;
- test/sharp, test/small and test/imagenette, each with CLASS folders: for `vitviz validate --data everyday/test/sharp`.
  "small" are images whose original had a short side under 160 pixels. imagenette is the whole validation split. The
  files of test/ and val/ are the same ones, linked;
- classes.csv: class, synsets (ImageNet-1k, several parted by spaces, or none), and the number of training images.

Files of everyday256 whose name begins with X (captcha pictures of unclear origin) are left out. Two classes vanish with
them (living room, parrot), and three keep six training images and none to validate (bridge, bus, train): of a class
without validation images every third training image becomes one.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from vitviz.images.datasets import IMAGENETTE

SHARP = 160  # pixels of the original's short side
EVERYDAY = ("everyday256-train-a.tar", "everyday256-train-b.tar", "everyday256-val.tar")
IMAGENETTE_FILES = ("imagenette224-train-a.tar", "imagenette224-train-b.tar", "imagenette224-val.tar")


def images(archive: Path) -> Iterator[tuple[str, str, str, bytes]]:
    """Yield (split, class folder, file name, bytes) of each image in an archive, in order of name."""
    with tarfile.open(archive) as tar:
        for member in sorted(tar, key=lambda one: one.name):
            path = PurePosixPath(member.name)
            data = tar.extractfile(member) if member.isfile() and len(path.parts) == 3 else None
            if data is not None:
                split, folder, name = path.parts
                yield split, folder, name, data.read()


def read_short_sides(path: Path) -> dict[str, int]:
    """Return the short side of the original, in pixels, by "split/class/file"."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return {row["file"]: int(row["original_short_side"]) for row in csv.DictReader(file)}


def read_synsets(path: Path) -> dict[str, str]:
    """Return the ImageNet-1k synsets of each of the 256 classes, parted by spaces; empty where there are none."""
    with path.open(encoding="utf-8", newline="") as file:
        return {row["class"]: row["imagenet_1k_synsets"] for row in csv.DictReader(file)}


def is_unclear(path: str) -> bool:
    """Return whether an image is one of those whose origin is unclear."""
    return PurePosixPath(path).name.startswith("X")


def put(path: Path, data: bytes) -> None:
    """Write a file, and the folder it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def link(source: Path, path: Path) -> None:
    """Give a file a second name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.link(source, path)


def main() -> None:
    """Unpack, sort, count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archives", type=Path, metavar="ARCHIVES", help="the folder that holds the archives")
    parser.add_argument("out", type=Path, metavar="FOLDER", help="the folder to write; it must not exist")
    parser.add_argument(
        "--imagenette-val", type=int, default=30, metavar="N", help="of each class in val/ (default: 30)"
    )
    args = parser.parse_args()
    if args.out.exists():
        raise SystemExit(f"Expected a folder that does not exist yet, got {args.out}. Name another.")
    short = read_short_sides(args.archives / "everyday256-images.csv.gz")
    synsets = read_synsets(args.archives / "everyday256-classes.csv")
    synsets |= {label: wnid for wnid, label in IMAGENETTE.items()}
    counts: Counter[str] = Counter()
    train: Counter[str] = Counter()
    validated = {path.split("/")[1] for path in short if path.startswith("val/") and not is_unclear(path)}
    seen: Counter[str] = Counter()
    for archive in EVERYDAY:
        for original, name, file, data in images(args.archives / archive):
            if is_unclear(file):
                counts["left out: X"] += 1
                continue
            seen[name] += 1
            split = "val" if original == "train" and name not in validated and seen[name] % 3 == 0 else original
            path = args.out / split / name / file
            put(path, data)
            if split == "train":
                train[name] += 1
                continue
            part = "sharp" if short[f"{original}/{name}/{file}"] >= SHARP else "small"
            link(path, args.out / "test" / part / name / file)
            counts[f"test/{part}"] += 1
    held: Counter[str] = Counter()
    for archive in IMAGENETTE_FILES:
        for split, wnid, file, data in images(args.archives / archive):
            name = IMAGENETTE[wnid]
            if split == "train":
                put(args.out / split / name / file, data)
                train[name] += 1
                continue
            path = args.out / "test" / "imagenette" / name / file
            put(path, data)
            counts["test/imagenette"] += 1
            if held[name] < args.imagenette_val:
                link(path, args.out / "val" / name / file)
                held[name] += 1
    with (args.out / "classes.csv").open("w", encoding="utf-8", newline="") as file_out:
        writer = csv.writer(file_out, lineterminator="\n")
        writer.writerow(("class", "synsets", "train"))
        writer.writerows((name, synsets[name], train[name]) for name in sorted(train))
    print(f"{len(train)} classes, {train.total():,} images to train on; {dict(counts)}")


if __name__ == "__main__":
    main()
