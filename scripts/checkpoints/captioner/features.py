"""Compute the image tokens of photographs and mosaics, from which train.py trains the captioner.

    python scripts/checkpoints/captioner/features.py --data ARCHIVES --work WORK

ARCHIVES contains the archives of everyday256, everyday2 and Imagenette, which are unpacked to WORK/photos. The bundled
backbone runs on each picture once. Its final patch tokens are merged, 2 x 2 to one, and projected to the `DIMENSIONS`
principal components, which are those of the first `SAMPLED` training pictures. WORK/features receives the tokens in
half precision, in parts of `PART` pictures; an interrupted run continues with the first missing part, and training may
begin before all parts are there. WORK/plan.jsonl lists the pictures.

The splits: "train"; "dev", for choices during the development; "test", 500 photographs of everyday256's validation part
and mosaics of these, for the figures of the card. Dev and test share no photograph.
"""

from __future__ import annotations

import argparse
import json
import random
import tarfile
from collections.abc import Sequence
from dataclasses import asdict
from multiprocessing import Pool
from pathlib import Path

import torch
from layouts import (
    SIDE,
    Box,
    Photo,
    Picture,
    Region,
    draw,
    find_photos,
    mosaics,
    read_answers,
    single_pictures,
)  # fmt: skip
from safetensors.torch import load_file, save_file
from torch import Tensor

import vitviz
from vitviz.images.preprocess import Preprocess
from vitviz.language.captioner import merged_tokens, project
from vitviz.model.vit import ViT

BACKBONE = "dinov2-s14-everyday"
DIMENSIONS = 256
MERGED = 2
"""Side of the square of patches that become one image token."""

SEED, PART, BATCH, SAMPLED = 20261128, 128, 32, 256
LIMIT, MOSAICS = 28, 10_000  # single photographs of each noun; mosaics
TESTED, DEV = 500, 200  # single photographs, and as many mosaics
TRAINING = ("everyday256/train", "everyday2/train", "imagenette/train")
TABLES = Path(__file__).parents[1] / "everyday"
ARCHIVES = {
    "everyday256": "everyday256-*.tar",
    "everyday2": "everyday2-train-*.tar",
    "imagenette": "imagenette224-*.tar",
}


# ---- the pictures


def unpack(archives: Path, photos: Path) -> None:
    """Unpack the archives, each data set to a folder of its own."""
    for name, pattern in ARCHIVES.items():
        if not (photos / name).is_dir():
            for archive in sorted(archives.glob(pattern)):
                with tarfile.open(archive) as file:
                    file.extractall(photos / f"{name}.part", filter="data")
            (photos / f"{name}.part").rename(photos / name)


def make_plan(photos: Path) -> list[Picture]:
    """Return all pictures: dev and test first, then the training pictures in random order."""
    classes, nouns = read_answers(TABLES)
    rng = random.Random(f"{SEED} validation")
    validation = find_photos(photos, ["everyday256/val"], nouns)
    rng.shuffle(validation)
    plan: list[Picture] = []
    for split, count, part in (("dev", DEV, validation[TESTED:]), ("test", TESTED, validation[:TESTED])):
        plan += single_pictures(split, part[:count], count, rng) + mosaics(split, part, count, rng)
    rng = random.Random(f"{SEED} train")
    training = find_photos(photos, TRAINING, {folder: nouns[folder] for folder in classes})
    pictures = single_pictures("train", training, LIMIT, rng) + mosaics("train", training, MOSAICS, rng)
    rng.shuffle(pictures)
    return plan + pictures


def write_plan(path: Path, plan: Sequence[Picture]) -> None:
    """Write a plan, one picture a line."""
    path.write_text("".join(json.dumps(asdict(picture), ensure_ascii=False) + "\n" for picture in plan), "utf-8")


def read_plan(path: Path) -> list[Picture]:
    """Read what `write_plan` wrote."""
    return [_picture(json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def _picture(entry: dict) -> Picture:
    """Return a picture from its entry in a plan."""
    regions = tuple(
        Region(Photo(region["photo"]["path"], tuple(region["photo"]["nouns"])), _box(region["box"]))
        for region in entry["regions"]
    )
    return Picture(entry["split"], regions, entry["seed"])


def _box(edges: Sequence[int]) -> Box:
    """Return a box from JSON."""
    left, top, right, bottom = edges
    return left, top, right, bottom


# ---- their tokens


def preprocess_of(model: ViT) -> Preprocess:
    """Return the captioner's preprocessing: the whole photograph, squashed to a square."""
    assert model.pretrained is not None
    about = model.pretrained.preprocess
    return Preprocess(height=SIDE, width=SIDE, mode="squash", mean=about.mean, std=about.std)


def fit_projection(tokens: Tensor) -> dict[str, Tensor]:
    """Return mean (F,) and weight (K, F) of the projection to the first principal components, scaled to variance 1.

    The scale is one number for all components, so that distances keep their proportions.
    """
    flat = tokens.flatten(0, 1).double()
    mean = flat.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov((flat - mean).T))  # ascending
    values, vectors = values.flip(0)[:DIMENSIONS], vectors.flip(1)[:, :DIMENSIONS]
    weight = (vectors / values.mean().sqrt()).T.contiguous()
    kept = values.sum() / (flat - mean).square().sum(1).mean()
    print(f"{DIMENSIONS} of {len(mean)} dimensions keep {100 * kept:.1f} % of the variance", flush=True)
    return {"mean": mean.float(), "weight": weight.float()}


class Worker:
    """Computes the tokens of pictures in a process of its own."""

    def __init__(self, backbone: str, photos: Path, projection: Path | None) -> None:
        torch.set_num_threads(1)
        self.model = vitviz.load(backbone).eval().float()
        self.preprocess, self.photos = preprocess_of(self.model), photos
        self.projection = None if projection is None else load_file(projection)

    def tokens(self, pictures: Sequence[Picture]) -> Tensor:
        """Return the merged tokens, projected if there is a projection: (B, n, F or K)."""
        parts = []
        for start in range(0, len(pictures), BATCH):
            drawn = [draw(picture, self.photos) for picture in pictures[start : start + BATCH]]
            images = torch.stack([torch.from_numpy(self.preprocess(image).pixels) for image in drawn])
            with torch.autocast(images.device.type, torch.bfloat16):
                parts.append(merged_tokens(self.model, images, MERGED))
        tokens = torch.cat(parts)
        return tokens if self.projection is None else project(tokens, self.projection)


_worker: Worker | None = None  # each process of the pool has one


def _start(backbone: str, photos: Path, projection: Path) -> None:
    """Prepare a process of the pool."""
    global _worker
    _worker = Worker(backbone, photos, projection)


def _compute(job: tuple[Path, list[Picture]]) -> Path:
    """Compute one part and write it under its name when it is complete."""
    path, pictures = job
    assert _worker is not None
    unfinished = path.with_suffix(".unfinished")
    save_file({"tokens": _worker.tokens(pictures).half()}, unfinished)
    unfinished.rename(path)
    return path


def part_path(work: Path, index: int) -> Path:
    """Return the file of a part."""
    return work / "features" / f"{index:04}.safetensors"


def main() -> None:
    """Compute the missing parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="ARCHIVES", help="folder with the archives")
    parser.add_argument("--work", type=Path, required=True, help="folder for photographs, plan and features")
    parser.add_argument("--backbone", default=BACKBONE, help="a model's name or folder")
    parser.add_argument("--processes", type=int, default=2, help="number of processes")
    args = parser.parse_args()
    photos, plan_path, projection = args.work / "photos", args.work / "plan.jsonl", args.work / "projection.safetensors"
    unpack(args.data, photos)
    (args.work / "features").mkdir(exist_ok=True)
    if not plan_path.exists():
        write_plan(plan_path, make_plan(photos))
    plan = read_plan(plan_path)
    if not projection.exists():
        sample = [picture for picture in plan if picture.split == "train"][:SAMPLED]
        save_file(fit_projection(Worker(args.backbone, photos, None).tokens(sample)), projection)
    jobs = [(part_path(args.work, start // PART), plan[start : start + PART]) for start in range(0, len(plan), PART)]
    missing = [job for job in jobs if not job[0].exists()]
    with Pool(args.processes, _start, (args.backbone, photos, projection)) as pool:
        for done, _ in enumerate(pool.imap_unordered(_compute, missing), len(jobs) - len(missing) + 1):
            print(f"{done} of {len(jobs)} parts", flush=True)


if __name__ == "__main__":
    main()
