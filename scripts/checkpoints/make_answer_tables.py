"""Write the classes of the everyday model and the tables of correct answers for its evaluation.

    python scripts/checkpoints/make_answer_tables.py ARCHIVES scripts/checkpoints/everyday

ARCHIVES contains everyday256-images.csv.gz, everyday2-images.csv.gz and their class lists. Run it before any training;
it does not use a model. It writes

- classes.csv: for each folder of the training material, the class that it belongs to, "left out" (too small, too
  similar to another folder, or rarely photographed; may serve as an example of unknown pictures), or "unknown" (drawn
  at random; never used for training or tuning);
- wild_labels.csv: for each folder of wild/, the correct answers, the folder's class first, or "unknown";
- own_labels.csv: the same for the validation images of everyday256 and Imagenette.

A correct answer is a class that describes the object: "dog" is correct for a Labrador, "Labrador retriever" is wrong
for another dog. Unknown classes are drawn at random from the folders of wild/ that match no remaining class, except
objects that visitors photograph first (`FIRST`).
"""

from __future__ import annotations

import argparse
import csv
import gzip
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from vitviz.images.datasets import IMAGENETTE

SEED = 20261123
UNKNOWN_CLASSES, UNKNOWN_IMAGES = 24, 150
LEFT_OUT, UNKNOWN = "left out", "unknown"

MERGED = {
    "beer bottle": "bottle", "pop bottle": "bottle", "milk carton": "carton", "juice carton": "carton",
    "lotus": "water lily", "road": "street", "chocolate cake": "cake", "motorboat": "boat", "baboon": "monkey",
    "house finch": "bird", "desk": "table", "rocking chair": "chair", "chandelier": "lamp", "comic book": "book",
    "Rhodesian ridgeback": "dog", "Newfoundland": "dog", "Old English sheepdog": "dog", "malamute": "dog",
    "kingfisher": "bird",
}  # fmt: skip
"""Folders whose pictures are used for a broader class."""

DROPPED = (
    "aurora", "bucket", "buttercup", "cannon", "cliff", "computer", "crayfish", "dining room", "drone", "emu", "eraser",
    "euphonium", "hibiscus", "ibis", "inline skate", "iPod", "joshua tree", "mashed potato", "moth", "okapi", "parrot",
    "passion flower", "petunia", "plate", "river", "ruins", "sea", "slug", "snowboard", "statue", "stopwatch", "sunset",
    "wasp", "wooden spoon", "xylophone", "yogurt",
)  # fmt: skip
"""Folders not used for training: from a single source, similar to another class, or rarely photographed."""

ALSO = {
    **dict.fromkeys(
        ("beagle", "boxer", "Chihuahua", "dalmatian", "French bulldog", "German shepherd", "golden retriever",
         "Labrador retriever", "Samoyed", "Shih-Tzu", "standard poodle", "Yorkshire terrier", "English springer"),
        ("dog",),
    ),
    **dict.fromkeys(
        ("eagle", "flamingo", "goose", "gull", "hummingbird", "parrot", "pelican", "penguin", "pigeon", "robin",
         "toucan", "woodpecker", "duck", "chicken", "turkey"),
        ("bird",),
    ),
    **dict.fromkeys(("goldfish", "shark", "tench"), ("fish",)),
    "sailboat": ("boat",), "motorboat": ("boat",), "school bus": ("bus",), "garbage truck": ("truck",),
    "espresso": ("cup",), "cheesecake": ("cake",), "cupcake": ("cake",), "orangutan": (), "sandal": ("shoe",),
    "bonsai": ("tree", "potted plant"), "desk": ("table",), "iPod": (),
}  # fmt: skip
"""Further correct classes of a folder's pictures."""

FIRST = (
    "airliner", "apple", "backpack", "banana", "beach", "bear", "bed", "bench", "bicycle", "bird", "boat", "book",
    "bottle", "bowl", "bridge", "bus", "butterfly", "cake", "camera", "car", "cat", "cellphone", "chair", "clock",
    "computer keyboard", "computer mouse", "cow", "cup", "dog", "elephant", "handbag", "hamburger", "horse", "house",
    "goldfish", "guinea pig", "lake", "lamp", "laptop", "mountain", "motorcycle", "mushroom", "orange", "person",
    "pizza", "potted plant", "rabbit", "refrigerator", "sandwich", "sheep", "shoe", "sofa", "street sign", "T-shirt",
    "table", "teddy", "television", "toilet", "traffic light", "train", "truck", "umbrella",
)  # fmt: skip
"""Objects that visitors photograph first, which are never drawn as unknown."""


def folders(path: Path, splits: Iterable[str]) -> Counter[str]:
    """Count the images of each class folder in some splits, without captcha pictures (X, everyday256)."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        names = [row["file"].split("/") for row in csv.DictReader(file)]
    captchas = path.name.startswith("everyday256")
    return Counter(
        folder for split, folder, name in names if split in splits and not (captchas and name.startswith("X"))
    )


def write(path: Path, header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    """Write a table."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def main() -> None:
    """Draw the unknown classes, then write the three tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archives", type=Path, metavar="ARCHIVES", help="folder with the archives")
    parser.add_argument("output", type=Path, metavar="FOLDER", help="folder for the tables")
    args = parser.parse_args()
    first, second = (args.archives / f"{name}-images.csv.gz" for name in ("everyday256", "everyday2"))
    train = folders(first, ["train"]) + folders(second, ["train"]) + Counter(dict.fromkeys(IMAGENETTE.values(), 80))
    wild, own = folders(second, ["wild"]), folders(first, ["val"])
    covered = {*FIRST, *MERGED, *DROPPED, *ALSO, *IMAGENETTE.values(), *MERGED.values()}
    eligible = sorted(set(wild) - covered)
    random.Random(SEED).shuffle(eligible)
    drawn: list[str] = []
    while len(drawn) < UNKNOWN_CLASSES or sum(wild[name] for name in drawn) < UNKNOWN_IMAGES:
        drawn.append(eligible[len(drawn)])

    def trains(folder: str) -> str:
        if folder in drawn:
            return UNKNOWN
        return LEFT_OUT if folder in DROPPED else MERGED.get(folder, folder)

    classes = {trains(folder) for folder in train} - {LEFT_OUT, UNKNOWN}

    def answers(folder: str) -> str:
        right = dict.fromkeys((trains(folder), *ALSO.get(folder, ())))
        return "|".join(name for name in right if name in classes) or UNKNOWN

    names = sorted(train | wild, key=str.lower)
    write(args.output / "classes.csv", ("folder", "class", "train"), ((n, trains(n), train[n]) for n in names))
    own.update(dict.fromkeys(IMAGENETTE.values(), 0))  # there is no list of their validation split
    for name, counts in (("wild", wild), ("own", own)):
        rows = [(folder, answers(folder), counts[folder]) for folder in sorted(counts, key=str.lower)]
        write(args.output / f"{name}_labels.csv", ("folder", "answers", "images"), rows)
        known = [row for row in rows if row[1] != UNKNOWN]
        images = sum(row[2] for row in known)
        print(f"{name}: {len(known)} of {len(rows)} folders and {images:,} of {counts.total():,} images known")
    images = sum(wild[name] for name in drawn)
    print(f"{len(classes)} classes; drawn as unknown: {len(drawn)} folders with {images} images: {', '.join(drawn)}")


if __name__ == "__main__":
    main()
