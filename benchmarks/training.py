"""What a training step costs, here and in timm: the same ViT, batch, precision and optimiser, in one run.

    python benchmarks/training.py                     # three sizes in float32 on the CPU
    python benchmarks/training.py --threads 1 --clock cpu
    python benchmarks/training.py --device cuda --precision bfloat16 --sizes small-224

A step is forward, loss with soft targets, backward, gradients clipped to 1, and a fused AdamW. Rounds are interleaved,
so that other work on the machine falls on both alike; where there is much of it, `--clock cpu` counts the time that the
processor spent (with one thread: threads that wait count too). Both start from the same weights, and have to have the
same loss and to learn alike before anything is timed.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout that is not installed

from vitviz.compat import import_torchvision
from vitviz.config import ViTConfig, preset
from vitviz.model import ViT
from vitviz.training.feed import Batch
from vitviz.training.losses import one_hot
from vitviz.training.parallel import World
from vitviz.training.recipes import Precision, Recipe
from vitviz.training.short import network
from vitviz.training.step import DTYPES, Learner
from vitviz.weights.from_timm import convert_timm

import_torchvision()  # before timm, which imports it its own way
timm = importlib.import_module("timm")
for part in ("loss", "optim", "utils"):
    importlib.import_module(f"timm.{part}")

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
SIZES: dict[str, tuple[dict[str, Any], int]] = {  # of the model, and images of a step
    "tiny-cifar10": ({"image_size": (32, 32), "patch_size": 4, "width": 48, "depth": 4, "heads": 4}, 128),
    "mean-cifar10": (
        {"image_size": (32, 32), "patch_size": 4, "width": 192, "depth": 6, "heads": 3, "pooling": "mean"},
        128,
    ),
    "small-224": ({"image_size": (224, 224), **{key: preset("small").to_dict()[key] for key in ("width", "depth")}}, 8),
}
RATE, DECAY, CLIP, CLASSES = 1e-3, 0.05, 1.0, 10


def theirs(
    config: ViTConfig, batch: Batch, precision: Precision, device: torch.device
) -> tuple[Any, Callable[[], Tensor]]:
    """Its model and a step of it, as its training script takes one."""
    model = timm.models.VisionTransformer(
        img_size=config.image_size,
        patch_size=config.patch_size,
        embed_dim=config.width,
        depth=config.depth,
        num_heads=config.heads,
        num_classes=CLASSES,
        global_pool="avg" if config.pooling == "mean" else "token",
        fc_norm=False,
    ).to(device)
    optimiser = timm.optim.create_optimizer_v2(model, opt="adamw", lr=RATE, weight_decay=DECAY, fused=True)
    lossy = timm.loss.SoftTargetCrossEntropy()
    dtype = DTYPES[precision]

    def step() -> Tensor:
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            loss = lossy(model(batch.inputs), batch.targets)
        loss.backward()
        timm.utils.dispatch_clip_grad(model.parameters(), CLIP)
        optimiser.step()
        optimiser.zero_grad()
        return loss.detach()

    return model, step


def ours(model: ViT, batch: Batch, precision: Precision) -> Callable[[], Tensor]:
    """A step of `Trainer`."""
    recipe = Recipe(batch=len(batch), lr=RATE, weight_decay=DECAY, clip=CLIP, warmup=0.0, precision=precision, epochs=1)
    learner = Learner(model, network(model, None, None), recipe, 10**9, World())
    return lambda: learner.learn(batch, 0)[0]


def compare(name: str, args: argparse.Namespace) -> None:
    """Print one line for a size."""
    sizes, count = SIZES[name]
    config = ViTConfig(**{"heads": 6, **sizes, "classes": CLASSES})
    device = torch.device(args.device)
    count = args.batch or count
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(count, 3, *config.image_size, generator=generator).to(device)
    batch = Batch(images, one_hot(torch.randint(CLASSES, (count,), generator=generator), CLASSES).to(device))
    torch.manual_seed(0)
    model, there = theirs(config, batch, args.precision, device)
    here = ours(convert_timm(model).train().to(device), batch, args.precision)
    steps = {"vitviz": here, "timm": there}
    losses = {side: [float(step()) for _ in range(3)] for side, step in steps.items()}
    first, *_, last = (abs(a - b) / a for a, b in zip(*losses.values(), strict=True))
    exact = args.precision == "float32"
    # timm's class token has a position beside it, which learns too: after some steps the two part a little.
    assert first < (1e-5 if exact else 1e-2), f"not the same model: {losses}"
    assert last < (2e-2 if exact else 1e-1), f"they do not train alike: {losses}"
    clock = CLOCKS[args.clock]
    times: dict[str, list[float]] = {side: [] for side in steps}
    for index in range(args.repeats + 1):
        for side, step in steps.items():
            began = clock()
            step()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if index:
                times[side].append(clock() - began)
    speed = {side: count / statistics.median(some) for side, some in times.items()}
    print(
        f"{name:<14} {count:>6} {speed['vitviz']:>12,.0f} {speed['timm']:>12,.0f} "
        f"{speed['vitviz'] / speed['timm']:>7.2f}   {first:.0e}, {last:.0e}",
        flush=True,
    )


def main() -> None:
    """Print one line a size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--batch", type=int, help="images of a step (default: the size's own)")
    parser.add_argument("--precision", choices=tuple(DTYPES), default="float32")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    about = f"{args.precision} on {args.device}, {args.threads} threads, {args.clock} time, timm {timm.__version__}"
    print(f"{about}; images a second")
    print(f"{'model':<14} {'batch':>6} {'vitviz':>12} {'timm':>12} {'ratio':>7}   first and third loss differ by")
    for name in args.sizes:
        compare(name, args)


if __name__ == "__main__":
    main()
