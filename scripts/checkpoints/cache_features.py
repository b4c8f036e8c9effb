"""Cache the input of a model's classifier (class token and mean patch) for every picture of a folder.

    python scripts/checkpoints/cache_features.py MODEL FOLDER OUT.npz
    python scripts/checkpoints/cache_features.py MODEL FOLDER OUT.npz --augment 1

FOLDER contains FOLDER/.../CLASS/NAME. Pictures are decoded and preprocessed like a visitor's photograph. With --augment
SEED, each picture is first cropped, mirrored, squashed to a square, sometimes scaled down and up again, and saved as
JPEG of a random quality, so that sharpness, shape and compression do not distinguish the classes; crops depend on the
seed.

OUT.npz contains `features` (n, R) float16 and `paths` (n,), relative to FOLDER. Finished parts are saved in
OUT.npz.parts, and the same command continues an interrupted run.
"""

from __future__ import annotations

import argparse
import io
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

import vitviz
from vitviz.images.decoding import decode
from vitviz.model.vit import ViT

ENDINGS = (".jpg", ".jpeg", ".png")
Array = npt.NDArray[np.float16]
PART = 512
BATCH = 16
SMALL = 150
"""Minimum short side in pixels of pictures to degrade; smaller pictures are already blurred."""


def augment(photo: Image.Image, rng: random.Random) -> Image.Image:
    """Return a random crop of a photograph as a square, half of them mirrored, half scaled down and up again."""
    share, stretch = rng.uniform(0.4, 1.0), rng.uniform(0.8, 1.25)
    width = min(photo.width, round(photo.width * share**0.5 * stretch))
    height = min(photo.height, round(photo.height * share**0.5 / stretch))
    left, top = rng.randint(0, photo.width - width), rng.randint(0, photo.height - height)
    photo = photo.crop((left, top, left + width, top + height))
    if rng.random() < 0.5:
        photo = photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    photo = photo.resize((min(photo.size),) * 2, Image.Resampling.BICUBIC)  # like collections of square images
    if min(photo.size) >= SMALL // 2 and rng.random() < 0.5:
        scale = rng.uniform(56, 120) / min(photo.size)
        if scale < 1:
            photo = photo.resize((max(1, round(photo.width * scale)), max(1, round(photo.height * scale))))
    file = io.BytesIO()
    photo.save(file, "JPEG", quality=rng.randint(40, 92))
    return Image.open(file).convert("RGB")


@torch.inference_mode()
def compute(model: ViT, folder: Path, paths: list[str], seed: int | None) -> Array:
    """Return the features (n, R) of pictures; pictures with inputs of one shape run together."""
    assert model.pretrained is not None
    assert model.head is not None
    pixels = []
    for path in paths:
        photo = decode(folder / path)
        if seed is not None:
            photo = augment(photo, random.Random(f"{seed} {path}"))
        pixels.append(torch.from_numpy(model.pretrained.preprocess(photo).pixels))
    shapes: dict[tuple[int, ...], list[int]] = {}
    for index, image in enumerate(pixels):
        shapes.setdefault(tuple(image.shape), []).append(index)
    features = np.empty((len(paths), model.head.in_features), np.float16)
    for indices in shapes.values():
        for start in range(0, len(indices), BATCH):
            chosen = indices[start : start + BATCH]
            with torch.autocast("cpu", torch.bfloat16):
                features[chosen] = model.features(torch.stack([pixels[index] for index in chosen])).half().numpy()
    return features


def main() -> None:
    """Compute the missing parts, then join all parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a model's name or folder")
    parser.add_argument("folder", type=Path, help="the folder of pictures")
    parser.add_argument("output", type=Path, metavar="OUT.npz", help="the file to write")
    parser.add_argument("--augment", type=int, metavar="SEED", help="augment each picture")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="number of PyTorch's threads")
    parser.add_argument("--size", type=int, help="input size in pixels (default: the model's)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = vitviz.load(args.model).eval().float()
    assert model.pretrained is not None
    if args.size is not None:
        preprocess = model.pretrained.preprocess.at(args.size, model.config.patch_size)
        model.pretrained = replace(model.pretrained, preprocess=preprocess)
    paths = sorted(str(p.relative_to(args.folder)) for p in args.folder.rglob("*") if p.suffix.lower() in ENDINGS)
    random.Random(0).shuffle(paths)  # so that every part has all classes
    parts = args.output.with_name(args.output.name + ".parts")
    parts.mkdir(parents=True, exist_ok=True)
    for start in range(0, len(paths), PART):
        part = parts / f"{start}.npy"
        if not part.exists():
            np.save(parts / "unfinished.npy", compute(model, args.folder, paths[start : start + PART], args.augment))
            (parts / "unfinished.npy").rename(part)
            print(f"{min(start + PART, len(paths)):,} of {len(paths):,}", flush=True)
    features = np.concatenate([np.load(parts / f"{start}.npy") for start in range(0, len(paths), PART)])
    np.savez(args.output, features=features, paths=np.array(paths))


if __name__ == "__main__":
    main()
