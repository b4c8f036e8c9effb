"""Measure the memory that each attribution method takes, beside what the server estimates before it runs one.

    python benchmarks/memory.py --depth 6 --side 32 48      # patches along a side; Linux alone

A random model with the heads of ViT-S stands for larger ones: what grows with depth, tokens and heads is in
`Method.matrices` and `Method.activations`, from which `vitviz.server.sizes.question_bytes` is computed. Measured is the
peak of the resident memory over what the process held before, with the trace there already.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout that is not installed

from vitviz.attribution.registry import METHODS, attribute
from vitviz.model.config import ViTConfig
from vitviz.model.devices import share_freed_memory
from vitviz.model.vit import ViT
from vitviz.server.sizes import question_bytes

SHORTENED = {"integrated_gradients": {"steps": 8}, "kernel_shap": {"samples": 32}}  # a batch each: more take no more


def memory(field: str) -> int:
    """Return a field of this process's status in bytes: VmRSS is what it holds, VmHWM the most since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def measure(model: ViT, images: torch.Tensor, name: str) -> int:
    """Return the most bytes that a method holds at once."""
    with torch.no_grad():
        trace = model.trace(images)
    options = dict(SHORTENED.get(name, {}))
    if name == "occlusion":
        options["window"] = max(1, min(trace.grid) // 4)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    attribute(model, images, 3 if METHODS[name].class_specific else None, name, trace=trace, **options)
    return memory("VmHWM") - before


def main() -> None:
    """Print one line a method and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--side", type=int, nargs="+", default=[32])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    args = parser.parse_args()
    share_freed_memory()
    config = ViTConfig(depth=args.depth, heads=args.heads, width=64 * args.heads, patch_size=14, classes=10)
    model = ViT(config).eval()
    for side in args.side:
        images, tokens = torch.randn(1, 3, 14 * side, 14 * side), side**2 + 1
        for name in args.methods:
            found, estimate = measure(model, images, name), question_bytes(config, METHODS[name], tokens, 4)
            words = f"{found / 1e6:6.0f} MB measured, {estimate / 1e6:6.0f} estimated ({estimate / found:.1f} x)"
            print(f"{tokens:,} tokens, {name:22} {words}", flush=True)


if __name__ == "__main__":
    main()
