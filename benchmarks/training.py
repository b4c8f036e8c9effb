"""Compare the cost of a training step in this checkout, another checkout, and timm.

    python benchmarks/training.py --against ../vitviz-0.1.0        # three sizes in float32 on the CPU
    python benchmarks/training.py --device cuda --precision bfloat16 --sizes small-224

Each side trains the same ViT on the same images in a separate process: the checkouts with `Trainer`, including its data
loader, log and state, and timm with a loop over batches in memory. A step is forward, loss, backward, gradients clipped
to 1, and a fused AdamW. CPU time of all threads and workers is measured, so that background load has
little effect; rounds alternate between the sides. With --wall, and always on a GPU, wall time is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
SIZES: dict[str, dict[str, Any]] = {
    "fashion-mnist": {
        "model": {"image_size": (28, 28), "patch_size": 4, "width": 8, "depth": 2, "heads": 2},
        "batch": 128,
        "steps": 150,
    },
    "tiny-cifar10": {
        "model": {"image_size": (32, 32), "patch_size": 4, "width": 48, "depth": 4, "heads": 4},
        "batch": 128,
        "steps": 40,
        "augment": {"crop_padding": 4, "flip": True},
    },
    "vit-cifar10": {
        "model": {"image_size": (32, 32), "patch_size": 4, "width": 192, "depth": 6, "heads": 6, "pooling": "mean"},
        "batch": 64,
        "steps": 40,
        "augment": {"crop_padding": 4, "flip": True, "policy": "rand"},
    },
    "small-224": {
        "model": {"image_size": (224, 224), "patch_size": 16, "width": 384, "depth": 12, "heads": 6},
        "batch": 8,
        "steps": 3,
    },
}

# Script of a separate process. Arguments: side, checkout, settings. Prints seconds.
CHILD = """
import json, os, sys, tempfile, time
side, checkout, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
sys.path.insert(0, checkout)
import torch
torch.set_num_threads(settings["threads"])
sizes = {name: tuple(value) if isinstance(value, list) else value for name, value in settings["model"].items()}
height, width = sizes["image_size"]
images = torch.randint(0, 256, (settings["steps"] * settings["batch"], 3, height, width), dtype=torch.uint8)
classes = torch.arange(len(images)) % 10
device = torch.device(settings["device"])

def seconds():
    if settings["wall"]:
        return time.perf_counter()
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system

def ours():
    from vitviz.images.preprocess import Preprocess
    from vitviz.model.config import ViTConfig
    from vitviz.model.vit import Pretrained, ViT
    from vitviz.training.data import Data, Split
    from vitviz.training.recipes import Recipe
    plain = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    preprocess = Preprocess(height=height, width=width, mode="squash", **plain)
    augment = settings.get("augment", {})
    try:
        from vitviz.training.loop import Trainer
        from vitviz.images.datasets import Samples
        split = lambda n: Split(Samples(classes[:n], images=images[:n]), preprocess, images[:n])
        augmentation = augment
    except ImportError:  # version 0.1.0
        from vitviz.training.engine import Trainer
        from vitviz.training.augment import Augment
        split = lambda n: Split(classes[:n], None, preprocess, images[:n])
        augmentation = {"augment": Augment(**augment)}
    labels = tuple("abcdefghij")
    data = Data("noise", labels, labels, split(len(images)), split(10), source="", licence="")
    model = ViT(ViTConfig(**sizes, classes=10), Pretrained(name="", preprocess=preprocess, labels=labels))
    recipe = Recipe(epochs=1, batch=settings["batch"], precision=settings["precision"], warmup=0.5, **augmentation)
    with tempfile.TemporaryDirectory() as out:
        trainer = Trainer(model, data, recipe, out, device=settings["device"], progress=False)
        began = seconds()
        trainer.run()
        del trainer
        return seconds() - began

def theirs():
    from vitviz.images.torchvision_import import import_torchvision
    import_torchvision()
    import timm, timm.optim, timm.utils
    model = timm.models.VisionTransformer(
        img_size=sizes["image_size"], patch_size=sizes["patch_size"], embed_dim=sizes["width"], depth=sizes["depth"],
        num_heads=sizes["heads"], num_classes=10, fc_norm=False,
        global_pool="avg" if sizes.get("pooling") == "mean" else "token",
    ).to(device)
    optimizer = timm.optim.create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05, fused=True)
    dtype = {"float32": None, "bfloat16": torch.bfloat16}[settings["precision"]]
    began = seconds()
    for indices in torch.arange(len(images)).split(settings["batch"]):
        batch = images[indices].to(device).float().div_(255)
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            loss = torch.nn.functional.cross_entropy(model(batch), classes[indices].to(device))
        loss.backward()
        timm.utils.dispatch_clip_grad(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
    return seconds() - began

print(json.dumps(theirs() if side == "timm" else ours()))
"""


def measure(side: str, checkout: Path, settings: dict[str, Any]) -> float:
    """Return the seconds of one side for all steps."""
    command = [sys.executable, "-c", CHILD, side, str(checkout), json.dumps(settings)]
    environment = os.environ | {"OMP_NUM_THREADS": str(settings["threads"])}
    with tempfile.TemporaryDirectory() as folder:  # another working directory, or this checkout would be imported
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Print one line per size: images per second of each side, and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout of vitviz")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--wall", action="store_true", help="measure wall time instead of CPU time")
    args = parser.parse_args()
    sides = {"vitviz": HERE, **({"against": args.against.resolve()} if args.against else {}), "timm": HERE}
    wall = args.wall or args.device == "cuda"
    print(f"{args.precision} on {args.device}, {args.threads} threads, {'wall' if wall else 'CPU'} time")
    print(f"{'images / second':<16}" + "".join(f"{side:>10}" for side in sides) + "   vitviz / each")
    for name in args.sizes:
        settings = {"precision": args.precision, "device": args.device, "threads": args.threads, "wall": wall}
        times: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(args.repeats):
            for side, checkout in sides.items():
                times[side].append(measure(side, checkout, SIZES[name] | settings))
        images = SIZES[name]["batch"] * SIZES[name]["steps"]
        speeds = {side: images / statistics.median(seconds) for side, seconds in times.items()}
        ratios = "  ".join(f"{speeds['vitviz'] / speed:.2f}" for speed in speeds.values())
        print(f"{name:<16}" + "".join(f"{speed:>10,.0f}" for speed in speeds.values()) + f"   {ratios}", flush=True)


if __name__ == "__main__":
    main()
