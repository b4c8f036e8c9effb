"""Compare the memory of attribution methods and other requests with the server's estimates.

    python benchmarks/memory.py --depth 6 --side 32 48      # patches per side; Linux only
    python benchmarks/memory.py --only intervene layers --classes 10000

The model is random, with heads as in ViT-S. Estimates of `vitviz.server.sizes` use `Method.matrices` and
`Method.activations`, which scale with depth, tokens and heads. The measurement is the increase in peak resident memory
after the trace exists.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout that is not installed

from vitviz.analysis.head_statistics import head_statistics
from vitviz.analysis.interventions import intervene
from vitviz.analysis.logit_lens import logit_lens
from vitviz.analysis.tokens import token_pca
from vitviz.attribution.registry import METHODS, attribute
from vitviz.model.config import ViTConfig
from vitviz.model.devices import share_freed_memory
from vitviz.model.vit import ViT
from vitviz.server.sizes import heads_need, layers_need, method_need, passes_need

QUESTIONS = ("intervene", "layers", "gradient")  # "gradient" is a statistic of heads
SHORTENED = {
    "integrated_gradients": {"steps": 8},
    "kernel_shap": {"samples": 32},
}  # one batch, because further batches need no more memory


def memory(field: str) -> int:
    """Return a field of this process's status in bytes: VmRSS (resident memory) or VmHWM (its peak since a reset)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def measure(model: ViT, images: torch.Tensor, name: str) -> int:
    """Return the peak memory of a method or another request in bytes."""
    with torch.no_grad():
        trace = model.trace(images)
    options = dict(SHORTENED.get(name, {}))
    if name == "occlusion":
        options["window"] = max(1, min(trace.grid) // 4)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    if name in METHODS:
        attribute(model, images, 3 if METHODS[name].class_specific else None, name, trace=trace, **options)
    elif name == "layers":
        token_pca(model, trace)
        logit_lens(model, trace, [0, 1, 2, 3])
    elif name == "intervene":
        intervene(model, images, heads=[(0, 0)], drop=[(0, 0)], before=trace.logits)
    else:
        head_statistics(model, trace, names=["gradient"])
    return memory("VmHWM") - before


def estimated(config: ViTConfig, name: str, tokens: int) -> int:
    """Return the server's estimate for a method or another request in bytes."""
    estimate, facts = (method_need, [METHODS[name]]) if name in METHODS else (passes_need, [])
    if name in ("layers", "gradient"):
        estimate, facts = (layers_need, []) if name == "layers" else (heads_need, [["gradient"]])
    return estimate(config, 4, tokens - len(config.prefix), *facts).memory


def main() -> None:
    """Print one line per method and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--side", type=int, nargs="+", default=[32])
    parser.add_argument("--classes", type=int, default=1000)
    names = [*METHODS, *QUESTIONS]
    parser.add_argument("--only", nargs="+", default=names, choices=names, metavar="NAME", help=", ".join(names))
    args = parser.parse_args()
    share_freed_memory()
    config = ViTConfig(depth=args.depth, heads=args.heads, width=64 * args.heads, patch_size=14, classes=args.classes)
    model = ViT(config).eval()
    for side in args.side:
        images, tokens = torch.randn(1, 3, 14 * side, 14 * side), side**2 + 1
        for name in args.only:
            peak, estimate = measure(model, images, name), estimated(config, name, tokens)
            text = f"{peak / 1e6:6.0f} MB measured, {estimate / 1e6:6.0f} estimated ({estimate / peak:.1f} x)"
            print(f"{tokens:,} tokens, {name:22} {text}", flush=True)


if __name__ == "__main__":
    main()
