"""Fine-tune the everyday model's backbone on balanced data, and cache its features for everyday_head.py.

    python scripts/checkpoints/train_everyday.py ARCHIVES PHOTOS OUT --base dinov2-s14-imagenette --seconds 60

PHOTOS contains everyday256/train, everyday2/train, imagenette/train and unknown, each with CLASS folders. One training
run leaves out each group of sources in turn (`everyday_head.FOLDS`), and a last one uses all photographs: OUT/fold0,
OUT/fold1, ... and OUT/all. Each folder receives the features that everyday_head.py reads, and OUT/all/model the
checkpoint. `--only` selects some of the runs.

All photographs are in the GPU's memory, where they are cropped, squashed, blurred and recolored, so that a run of 20
epochs takes about a minute. All blocks are trained, with rates that decrease towards the input, mixed images, outlier
exposure and an exponential moving average of the weights. A run lasts `--seconds`; its first steps are timed to plan
how many more fit. The sides of the inputs grow from `SIDES[0]` to `SIDES[1]`.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import everyday_head
import numpy as np
import torch
import torch.nn.functional as F
from cache_features import ENDINGS
from everyday_head import FOLDS, Material, fold_rows
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import vitviz
from vitviz.images.decoding import decode
from vitviz.images.preprocess import Preprocess
from vitviz.model.vit import ViT
from vitviz.training.loaders import normalize
from vitviz.training.network import set_dropout
from vitviz.training.optim import make_optimizer, running_mean, warmup_then
from vitviz.training.recipes import Recipe
from vitviz.weights.checkpoint import save

NAME, TRAINED = "DINOv2 S/14 · everyday", ", then on everyday256, everyday2 and Imagenette"
FOLDERS = {name: f"{name}/train" for name in everyday_head.SETS} | {"unknown": "unknown"}
STORED = 256  # side in pixels of the stored photographs, which are squashed to squares
SIDES = ((140, 154, 168, 182), (196, 210, 224, 238))  # pixels; the second row for the last quarter of the steps
EXPOSED = 0.125  # share of pictures without a class in a batch
CHECKED = 10  # steps to time before planning the rest


class Photos(Dataset[tuple[Tensor, float, Tensor]]):
    """Dataset of n pictures: two squashed versions (2, 3, S, S), the aspect ratio, and the pixels at inference.

    The second version is compressed again, as JPEG of a random quality.
    """

    def __init__(self, paths: list[Path], preprocess: Preprocess) -> None:
        self.paths = paths
        self.preprocess = replace(preprocess, mean=(0.0,) * 3, std=(1.0,) * 3)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, float, Tensor]:
        """Return one picture."""
        torch.set_num_threads(1)
        photo = decode(self.paths[index])
        file = io.BytesIO()
        photo.save(file, "JPEG", quality=random.Random(index).randint(30, 85))
        squashed = [
            np.asarray(version.convert("RGB").resize((STORED, STORED), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
            for version in (photo, Image.open(file))
        ]  # 2 x (3, S, S)
        pixels = np.rint(self.preprocess(photo).pixels * 255).astype(np.uint8)
        return torch.from_numpy(np.stack(squashed)), photo.width / photo.height, torch.from_numpy(pixels)


@dataclass(frozen=True, eq=False)
class Pictures:
    """All pictures in the device's memory: squashed (n, 2, 3, S, S) uint8, aspect ratios (n,), pixels at inference."""

    squashed: Tensor
    aspects: Tensor
    native: list[Tensor]


def read_pictures(paths: list[Path], preprocess: Preprocess, device: torch.device, workers: int) -> Pictures:
    """Decode all pictures in worker processes."""
    loader = DataLoader(Photos(paths, preprocess), batch_size=None, num_workers=workers)
    squashed = torch.empty(len(paths), 2, 3, STORED, STORED, dtype=torch.uint8, device=device)
    aspects = torch.empty(len(paths))
    native = []
    for index, (versions, aspect, pixels) in enumerate(loader):
        squashed[index] = versions.to(device)
        aspects[index] = aspect
        native.append(pixels.to(device))
    return Pictures(squashed, aspects.to(device), native)


# ---- augmentation of batches, on the device


def uniform(like: Tensor, low: float, high: float) -> Tensor:
    """Return one random number between `low` and `high` for each picture of a batch: (k,)."""
    return torch.empty(len(like), device=like.device).uniform_(low, high)


def augment(pictures: Pictures, index: Tensor, sharp: Tensor, side: int, least: float = 0.25) -> Tensor:
    """Return random crops of pictures, (k, 3, side, side) in 0..1: mirrored, squashed, blurred and recolored.

    Args:
        index: (k,), the pictures.
        sharp: (k,), whether to reduce the resolution of half of these crops.
        least: the smallest share of the area.
    """
    images = pictures.squashed[index, torch.randint(2, (len(index),), device=index.device)].float() / 255
    share, stretch = uniform(index, least, 1), uniform(index, math.log(3 / 4), math.log(4 / 3)).exp()
    squash = uniform(index, 0, 1) < 0.3  # like collections of squashed photographs
    ratio = torch.where(squash, torch.ones_like(stretch), stretch / pictures.aspects[index])
    width, height = (share * ratio).sqrt().clamp_max(1), (share / ratio).sqrt().clamp_max(1)
    x, y = uniform(index, -1, 1) * (1 - width), uniform(index, -1, 1) * (1 - height)
    mirrored = torch.where(uniform(index, 0, 1) < 0.5, -width, width)
    zero = torch.zeros_like(x)
    frames = torch.stack([torch.stack([mirrored, zero, x], 1), torch.stack([zero, height, y], 1)], 1)  # (k, 2, 3)
    grid = F.affine_grid(frames, [len(index), 3, side, side], align_corners=False)
    images = F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)
    blurred = (sharp & (uniform(index, 0, 1) < 0.5)).nonzero()[:, 0]
    small = F.interpolate(images[blurred], (random.randint(48, 120),) * 2, mode="bilinear", antialias=True)
    images[blurred] = F.interpolate(small, (side, side), mode="bicubic").clamp(0, 1)
    return recolor(images)


def recolor(images: Tensor) -> Tensor:
    """Return images (k, 3, H, W) in 0..1 of random saturation, contrast, brightness and tint; a tenth is gray."""
    gray = images.mean(1, keepdim=True)  # (k, 1, H, W)
    saturation = uniform(images, 0.5, 1.5) * (uniform(images, 0, 1) > 0.1)
    images = gray + (images - gray) * saturation[:, None, None, None]
    level = images.mean((1, 2, 3), keepdim=True)
    images = level + (images - level) * uniform(images, 0.6, 1.4)[:, None, None, None]
    tint = torch.empty(len(images), 3, 1, 1, device=images.device).uniform_(0.9, 1.1)
    return (images * tint * uniform(images, 0.7, 1.3)[:, None, None, None]).clamp_(0, 1)


def mix(images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the batch as it is, or mixed with itself in another order (MixUp), or with pasted patches (CutMix)."""
    chance, order = random.random(), torch.randperm(len(images), device=images.device)
    if chance < 0.4:
        return images, targets
    if chance < 0.65:
        kept = random.betavariate(0.4, 0.4)
        images = kept * images + (1 - kept) * images[order]
    else:
        side = images.shape[-1]
        width, height = (round(side * math.sqrt(random.random())) for _ in range(2))
        left, top = random.randint(0, side - width), random.randint(0, side - height)
        images = images.clone()
        images[:, :, top : top + height, left : left + width] = images[
            order, :, top : top + height, left : left + width
        ]
        kept = 1 - width * height / side**2
    return images, kept * targets + (1 - kept) * targets[order]


# ---- training


@dataclass(frozen=True)
class Settings:
    """Settings of a training run."""

    seconds: float = 60
    batch: int = 512
    rate: float = 5e-4
    head_rate: float = 2e-3
    layer_decay: float = 0.75
    weight_decay: float = 0.05
    path_dropout: float = 0.15
    smoothing: float = 0.1
    exposure: float = 0.3
    average: float = 0.99
    source_power: float = 0.5
    seed: int = 0


def batches(data: Material, rows: Tensor, settings: Settings, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield endless batches: numbers of pictures (k,), and their rows in `data` (k,), or -1 if they have no class."""
    weights = everyday_head.chances(data.classes[rows], data.sources[rows.numpy()], settings.source_power)
    exposed = round(EXPOSED * settings.batch)
    pictures, outliers = data.features[:, 0, 0].long(), data.outliers[:, 0, 0].long()
    while True:
        chosen = rows[torch.multinomial(weights, settings.batch - exposed, replacement=True)]
        unknown = outliers[torch.randint(len(outliers), (exposed,))]
        index = torch.cat([pictures[chosen], unknown])
        yield index.to(device), torch.cat([chosen, torch.full_like(unknown, -1)]).to(device)


def train(base: ViT, data: Material, rows: Tensor, pictures: Pictures, settings: Settings) -> ViT:
    """Train a copy of `base` on some rows of `data`, and return it with the moving average of its weights."""
    device = pictures.aspects.device
    torch.manual_seed(settings.seed)
    random.seed(settings.seed)
    recipe = Recipe(
        name="everyday", lr=settings.rate, head_lr=settings.head_rate, layer_decay=settings.layer_decay,
        weight_decay=settings.weight_decay,
    )  # fmt: skip
    model = new_classifier(base, data.labels).to(device).train()
    set_dropout(model, 0.0, settings.path_dropout)
    optimizer, average = make_optimizer(model, recipe), running_mean(model, settings.average)
    rates = [group["lr"] for group in optimizer.param_groups]
    classes, sharp = data.classes.to(device), data.sharp.to(device)
    present = torch.zeros(len(data.labels), device=device)
    present[classes[rows.to(device)]] = 1
    absent, present = present == 0, present / present.sum()
    assert model.pretrained is not None
    preprocess = model.pretrained.preprocess
    stream, start, step, steps, total = batches(data, rows, settings, device), time.perf_counter(), 0, CHECKED, 0.0

    def loss_of_batch(sides: tuple[int, ...]) -> Tensor:
        index, row = next(stream)
        known = row >= 0
        targets = F.one_hot(classes[row.clamp_min(0)], len(data.labels)).float()
        targets = targets * (1 - settings.smoothing) + settings.smoothing * present
        targets[~known] = present
        images = augment(pictures, index, sharp[row.clamp_min(0)] | ~known, random.choice(sides))
        count = int(known.sum())  # pictures with a class come first; only these are mixed
        with torch.autocast(device.type, torch.bfloat16):
            mixed, wanted = mix(images[:count], targets[:count])
            logits = model(normalize(torch.cat([mixed, images[count:]]), preprocess)).float()
        losses = -(torch.cat([wanted, targets[count:]]) * logits.masked_fill(absent, -1e4).log_softmax(1)).sum(1)
        return losses[:count].mean() + settings.exposure * losses[count:].mean()

    while step < steps:
        planned = steps > CHECKED  # the first steps are only timed, at a low rate
        share = warmup_then("cosine", steps, min(CHECKED * 3, steps // 4))(step) if planned else step / 30
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * share
        loss = loss_of_batch(SIDES[1] if planned and step >= 0.75 * steps else SIDES[0])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average.update_parameters(model)
        step += 1
        if step == CHECKED // 2:
            total, start = loss.item(), time.perf_counter()
        if step == CHECKED and steps == CHECKED:
            total, seconds = loss.item(), (time.perf_counter() - start) / (CHECKED - CHECKED // 2)
            # Steps of the last quarter take about 1.7 times as long, because their inputs are larger.
            steps = max(CHECKED * 2, int(settings.seconds / seconds / 1.18))
            print(f"  {seconds:.3f} s per step, {steps} steps", flush=True)
        if step % 50 == 0:
            print(f"  step {step} of {steps}, loss {loss.item():.3f}", flush=True)
    print(f"  loss {total:.3f} to {loss.item():.3f}, {time.perf_counter() - start:.0f} s", flush=True)
    trained = average.module.eval()
    set_dropout(trained, 0.0, 0.0)
    return trained


def new_classifier(base: ViT, labels: tuple[str, ...]) -> ViT:
    """Return a copy of a model with a new head."""
    assert base.head is not None
    assert base.pretrained is not None
    about = replace(
        base.pretrained, name=NAME, source=base.pretrained.source + TRAINED, labels=labels, class_ids=labels,
        sure_above=None, known_above=None, groups=(),
    )  # fmt: skip
    model = ViT(replace(base.config, classes=len(labels)), about)
    weights = {name: value for name, value in base.state_dict().items() if not name.startswith("head.")}
    model.load_state_dict(weights | {f"head.{name}": value for name, value in model.head.state_dict().items()})
    torch.nn.init.trunc_normal_(model.head.weight, std=0.01)
    return model


@torch.inference_mode()
def features(model: ViT, native: list[Tensor]) -> Tensor:
    """Return the features (n, R) of pictures as at inference, from their uint8 pixels; equal shapes run together."""
    assert model.pretrained is not None
    out = torch.empty(len(native), 2 * model.config.width)
    shapes: dict[tuple[int, ...], list[int]] = {}
    for index, pixels in enumerate(native):
        shapes.setdefault(tuple(pixels.shape), []).append(index)
    for indices in shapes.values():
        for start in range(0, len(indices), 512):
            part = indices[start : start + 512]
            images = normalize(
                torch.stack([native[index] for index in part]).float() / 255, model.pretrained.preprocess
            )
            with torch.autocast(images.device.type, torch.bfloat16):
                out[part] = model.features(images).float().cpu()
    return out


@torch.inference_mode()
def features_of_crops(model: ViT, pictures: Pictures, sharp: Tensor) -> Tensor:
    """Crop each picture at random, and return the features of the crops: (n, R)."""
    assert model.pretrained is not None
    parts = []
    for index in torch.arange(len(pictures.aspects), device=sharp.device).split(512):
        images = normalize(augment(pictures, index, sharp[index], 224, least=0.4), model.pretrained.preprocess)
        with torch.autocast(images.device.type, torch.bfloat16):
            parts.append(model.features(images).float().cpu())
    return torch.cat(parts)


def main() -> None:
    """Train each run, and write its features."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archives", type=Path, metavar="ARCHIVES", help="folder with the lists of images")
    parser.add_argument("photos", type=Path, metavar="PHOTOS", help="folder of photographs")
    parser.add_argument("output", type=Path, metavar="OUT", help="folder for features and the trained model")
    for name, value in vars(Settings()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    parser.add_argument("--base", default="dinov2-s14-imagenette", help="model to start from")
    parser.add_argument("--only", nargs="+", help="runs: fold0, fold1, ..., all")
    parser.add_argument("--workers", type=int, default=16, help="processes that decode photographs")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--limit", type=int, help="use this many pictures of each collection, for a trial")
    args = parser.parse_args()
    settings = Settings(**{name: getattr(args, name) for name in vars(Settings())})
    base = vitviz.load(args.base).float()
    assert base.pretrained is not None
    paths = {
        name: sorted(str(p.relative_to(args.photos / folder)) for p in (args.photos / folder).rglob("*")
                     if p.suffix.lower() in ENDINGS)
        for name, folder in FOLDERS.items()
    }  # fmt: skip
    for names in paths.values():
        random.Random(0).shuffle(names)
        del names[args.limit or len(names) :]
    files = [args.photos / folder / name for set_name, folder in FOLDERS.items() for name in paths[set_name]]
    index = torch.arange(len(files)).view(-1, 1, 1).split([len(names) for names in paths.values()])
    data = everyday_head.material(args.archives, dict(zip(paths, zip(index, paths.values(), strict=True), strict=True)))
    began = time.perf_counter()
    pictures = read_pictures(files, base.pretrained.preprocess, torch.device(args.device), args.workers)
    print(f"{len(files):,} pictures in {time.perf_counter() - began:.0f} s", flush=True)
    sharp = torch.ones(len(files), dtype=torch.bool)
    sharp[data.features[:, 0, 0]] = data.sharp
    runs = {f"fold{number}": fold_rows(data, number) for number in range(len(FOLDS))}
    runs["all"] = torch.arange(len(data.classes))
    for name in args.only or runs:
        print(f"{name}: {len(runs[name]):,} photographs, {settings}", flush=True)
        model = train(base, data, runs[name], pictures, settings)
        began, folder = time.perf_counter(), args.output / name
        folder.mkdir(parents=True, exist_ok=True)
        crops = features_of_crops(model, pictures, sharp.to(args.device))
        for suffix, values in (("", features(model, pictures.native)), ("-1", crops)):
            for (collection, names), part in zip(paths.items(), index, strict=True):
                chosen = values[part.flatten()].half().numpy()
                np.savez(folder / f"{collection}{suffix}.npz", features=chosen, paths=np.array(names))
        (folder / "settings.json").write_text(json.dumps(vars(settings), indent=2) + "\n", encoding="utf-8")
        torch.save(model.head.state_dict(), folder / "head.pt")
        if name == "all":
            save(model.cpu(), folder / "model", dtype=torch.float16)
        print(f"  features in {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
