"""Create the image folder of 264 everyday classes from the archives of everyday256 and Imagenette.

    python scripts/make_everyday.py ARCHIVES everyday

ARCHIVES contains everyday256-train-a.tar, everyday256-train-b.tar, everyday256-val.tar, everyday256-classes.csv,
everyday256-images.csv.gz, imagenette224-train-a.tar, imagenette224-train-b.tar and imagenette224-val.tar. The script
writes

- train/CLASS and val/CLASS, for `vitviz train --data everyday`; CLASS is the label. val/ has everyday256's validation
  images and only the first --imagenette-val images of Imagenette's classes, to keep validation short;
- test/sharp, test/small and test/imagenette, each with CLASS folders, for `vitviz validate --data everyday/test/sharp`.
  The originals of "small" images have a short side under 160 pixels. imagenette is the whole validation split. Files of
  test/ and val/ are hard links;
- classes.csv: class, synsets (ImageNet-1k, separated by spaces, or none), and the number of training images.

Files of everyday256 whose names start with X (captcha pictures of unclear origin) are left out. This removes two
classes (living room, parrot), and leaves three with six training images and no validation images (bridge, bus, train);
in
classes without validation images, every third training image becomes a validation image.
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

SHARP = 160  # minimum short side of the original in pixels
EVERYDAY = ("everyday256-train-a.tar", "everyday256-train-b.tar", "everyday256-val.tar")
IMAGENETTE_FILES = ("imagenette224-train-a.tar", "imagenette224-train-b.tar", "imagenette224-val.tar")


def images(archive: Path) -> Iterator[tuple[str, str, str, bytes]]:
    """Yield (split, class folder, file name, bytes) of each image in an archive, sorted by name."""
    with tarfile.open(archive) as tar:
        for member in sorted(tar, key=lambda entry: entry.name):
            path = PurePosixPath(member.name)
            data = tar.extractfile(member) if member.isfile() and len(path.parts) == 3 else None
            if data is not None:
                split, folder, name = path.parts
                yield split, folder, name, data.read()


def read_short_sides(path: Path) -> dict[str, int]:
    """Return "split/class/file" -> short side of the original in pixels."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return {row["file"]: int(row["original_short_side"]) for row in csv.DictReader(file)}


def read_synsets(path: Path) -> dict[str, str]:
    """Return class -> ImageNet-1k synsets, separated by spaces, or ""."""
    with path.open(encoding="utf-8", newline="") as file:
        return {row["class"]: row["imagenet_1k_synsets"] for row in csv.DictReader(file)}


def is_unclear(path: str) -> bool:
    """Return whether the origin of an image is unclear."""
    return PurePosixPath(path).name.startswith("X")


def put(path: Path, data: bytes) -> None:
    """Write a file, and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def link(source: Path, path: Path) -> None:
    """Create a hard link to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.link(source, path)


def main() -> None:
    """Unpack the archives into folders, and count the images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archives", type=Path, metavar="ARCHIVES", help="folder with the archives")
    parser.add_argument("out", type=Path, metavar="FOLDER", help="folder to create")
    parser.add_argument(
        "--imagenette-val", type=int, default=30, metavar="N", help="images per class in val/ (default: 30)"
    )
    args = parser.parse_args()
    if args.out.exists():
        raise SystemExit(f"Expected a new folder, got {args.out}. Name another.")
    short = read_short_sides(args.archives / "everyday256-images.csv.gz")
    synsets = read_synsets(args.archives / "everyday256-classes.csv")
    synsets |= {label: wnid for wnid, label in IMAGENETTE.items()}
    counts: Counter[str] = Counter()
    train: Counter[str] = Counter()
    validated = {path.split("/")[1] for path in short if path.startswith("val/") and not is_unclear(path)}
    read: Counter[str] = Counter()
    for archive in EVERYDAY:
        for original, name, file, data in images(args.archives / archive):
            if is_unclear(file):
                counts["left out: X"] += 1
                continue
            read[name] += 1
            split = "val" if original == "train" and name not in validated and read[name] % 3 == 0 else original
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
    print(f"{len(train)} classes, {train.total():,} training images; {dict(counts)}")


if __name__ == "__main__":
    main()
