"""What a training step costs: this checkout, another one, and timm, in one run.

    python benchmarks/training.py --against ../vitviz-0.1.0        # three sizes in float32 on the CPU
    python benchmarks/training.py --device cuda --precision bfloat16 --sizes small-224

Each side trains the same ViT on the same images in a process of its own: here and in the other checkout by `Trainer`,
with its data loader, log and state; with timm by a plain loop over batches in memory. A step is forward, loss,
backward, gradients clipped to 1, and a fused AdamW. The time is that of the processor, over all of a process's threads
and workers, so that other work on the machine counts little; rounds alternate between the sides. With --wall it is the
clock's, and on a GPU always.
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
SIZES: dict[str, dict[str, Any]] = {  # of the model, images of a step, steps
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

# Run in a process of its own: argv holds the side, the checkout and the settings. Prints seconds.
CHILD = """
import json, os, sys, tempfile, time
side, checkout, asked = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
sys.path.insert(0, checkout)
import torch
torch.set_num_threads(asked["threads"])
sizes = {name: tuple(one) if isinstance(one, list) else one for name, one in asked["model"].items()}
height, width = sizes["image_size"]
images = torch.randint(0, 256, (asked["steps"] * asked["batch"], 3, height, width), dtype=torch.uint8)
classes = torch.arange(len(images)) % 10
device = torch.device(asked["device"])

def seconds():
    if asked["wall"]:
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
    augment = asked.get("augment", {})
    try:
        from vitviz.training.loop import Trainer
        from vitviz.images.datasets import Samples
        split = lambda n: Split(Samples(classes[:n], images=images[:n]), preprocess, images[:n])
        settings = augment
    except ImportError:
        from vitviz.training.engine import Trainer
        from vitviz.training.augment import Augment
        split = lambda n: Split(classes[:n], None, preprocess, images[:n])
        settings = {"augment": Augment(**augment)}
    labels = tuple("abcdefghij")
    data = Data("noise", labels, labels, split(len(images)), split(10), source="", licence="")
    model = ViT(ViTConfig(**sizes, classes=10), Pretrained(name="", preprocess=preprocess, labels=labels))
    recipe = Recipe(epochs=1, batch=asked["batch"], precision=asked["precision"], warmup=0.5, **settings)
    with tempfile.TemporaryDirectory() as out:
        trainer = Trainer(model, data, recipe, out, device=asked["device"], progress=False)
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
    dtype = {"float32": None, "bfloat16": torch.bfloat16}[asked["precision"]]
    began = seconds()
    for some in torch.arange(len(images)).split(asked["batch"]):
        batch = images[some].to(device).float().div_(255)
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            loss = torch.nn.functional.cross_entropy(model(batch), classes[some].to(device))
        loss.backward()
        timm.utils.dispatch_clip_grad(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
    return seconds() - began

print(json.dumps(theirs() if side == "timm" else ours()))
"""


def measure(side: str, checkout: Path, asked: dict[str, Any]) -> float:
    """Return the seconds that one side takes for all steps."""
    command = [sys.executable, "-c", CHILD, side, str(checkout), json.dumps(asked)]
    environment = os.environ | {"OMP_NUM_THREADS": str(asked["threads"])}
    with tempfile.TemporaryDirectory() as folder:  # not the checkout: an import would find that first
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Print one line a size: images a second of each side, and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="another checkout of vitviz")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--wall", action="store_true", help="the clock's time, not the processor's")
    args = parser.parse_args()
    sides = {"vitviz": HERE, **({"against": args.against.resolve()} if args.against else {}), "timm": HERE}
    wall = args.wall or args.device == "cuda"
    print(f"{args.precision} on {args.device}, {args.threads} threads, {'wall' if wall else 'processor'} time")
    print(f"{'images a second':<16}" + "".join(f"{side:>10}" for side in sides) + "   vitviz / each")
    for name in args.sizes:
        asked = {"precision": args.precision, "device": args.device, "threads": args.threads, "wall": wall}
        times: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(args.repeats):
            for side, checkout in sides.items():
                times[side].append(measure(side, checkout, SIZES[name] | asked))
        images = SIZES[name]["batch"] * SIZES[name]["steps"]
        speed = {side: images / statistics.median(some) for side, some in times.items()}
        ratios = "  ".join(f"{speed['vitviz'] / one:.2f}" for one in speed.values())
        print(f"{name:<16}" + "".join(f"{one:>10,.0f}" for one in speed.values()) + f"   {ratios}", flush=True)


if __name__ == "__main__":
    main()
