"""Measure what a trace costs: this project, timm and transformers on the same weights, in one run.

    python benchmarks/attention.py                       # ViT-S/16 and ViT-B/16 at 224, 512 and 1,024 pixels
    python benchmarks/attention.py --sizes 224 --models small
    python benchmarks/attention.py --device cuda --dtype bfloat16 --sizes 224 1024 4096

One random Vision Transformer is built in timm and converted to ours and to transformers'. Logits and attention are
checked against each other first. Then each way runs in processes of its own: one for the median time of a forward pass,
one for the peak memory over that before. There the C library is told to give memory back at once
(`MALLOC_MMAP_THRESHOLD_`): otherwise what it reserves between passes, different in each run, hides what a pass needs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitviz.attribution.attention import rollout_scores
from vitviz.images.torchvision_import import import_torchvision
from vitviz.model.vit import ViT
from vitviz.weights.from_timm import convert_timm

SIZES = {"small": (384, 6), "base": (768, 12)}
DEPTH, PATCH, CLASSES = 12, 16, 1000
WAYS = (
    "ours: forward",
    "ours: trace",
    "ours: trace + CLS rollout",
    "timm: fused forward",
    "timm: unfused, hooks",
    "timm: unfused, hooks + dense rollout",
    "transformers: sdpa forward",
    "transformers: eager, output_attentions",
)


def build_timm(model: str, side: int, fused: bool) -> Any:
    import_torchvision()
    from timm.layers import set_fused_attn
    from timm.models.vision_transformer import VisionTransformer

    set_fused_attn(fused)
    width, heads = SIZES[model]
    torch.manual_seed(0)
    made = VisionTransformer(
        img_size=side, patch_size=PATCH, embed_dim=width, depth=DEPTH, num_heads=heads, num_classes=CLASSES
    )
    torch.nn.init.normal_(made.head.weight, std=0.02)  # timm starts with a head of zeros, which every model would share
    return made.eval()


def build_ours(model: str, side: int) -> ViT:
    return convert_timm(build_timm(model, side, fused=True))


def build_transformers(model: str, side: int, eager: bool) -> Any:
    """Return a model with the same weights under transformers' names."""
    import_torchvision()
    from transformers import ViTConfig, ViTForImageClassification

    width, heads = SIZES[model]
    config = ViTConfig(
        hidden_size=width, num_hidden_layers=DEPTH, num_attention_heads=heads, intermediate_size=4 * width,
        image_size=side, patch_size=PATCH, num_labels=CLASSES, layer_norm_eps=1e-6,
    )  # fmt: skip
    config._attn_implementation = "eager" if eager else "sdpa"
    made = ViTForImageClassification(config).eval()
    theirs = build_timm(model, side, fused=True).state_dict()
    block = {"norm1": "layernorm_before", "norm2": "layernorm_after"}
    new: dict[str, Tensor] = {}
    names = list(made.state_dict())
    for name in names:
        new[name] = _timm_tensor(name, theirs, block)
    made.load_state_dict(new)
    return made


def _timm_tensor(name: str, theirs: dict[str, Tensor], block: dict[str, str]) -> Tensor:
    """Return timm's tensor for a name of transformers (either generation of names)."""
    kind = name.rsplit(".", 1)[1]
    if "cls_token" in name or "position_embeddings" in name:
        return theirs["cls_token" if "cls_token" in name else "pos_embed"]
    if "projection" in name:
        return theirs[f"patch_embed.proj.{kind}"]
    parts = name.split(".")
    index = next((part for part in parts if part.isdigit()), None)
    if index is None:
        return theirs[f"{'head' if 'classifier' in name else 'norm'}.{kind}"]
    at = f"blocks.{index}."
    for ours, other in block.items():
        if other in name:
            return theirs[f"{at}{ours}.{kind}"]
    for order, words in enumerate((("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"))):
        if any(word in parts for word in words):
            return theirs[f"{at}attn.qkv.{kind}"].chunk(3)[order]
    if "attention" in parts:
        return theirs[f"{at}attn.proj.{kind}"]
    return theirs[f"{at}mlp.{'fc1' if 'intermediate' in parts or 'fc1' in parts else 'fc2'}.{kind}"]


class Hooks:
    """The usual way to get attention out of timm: unfused attention, and a hook on what follows the softmax."""

    def __init__(self, model: Any) -> None:
        self.model, self.kept = model, []
        for block in model.blocks:
            block.attn.attn_drop.register_forward_hook(lambda _m, _i, out: self.kept.append(out))

    def __call__(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        self.kept = []
        return self.model(images), self.kept


def dense_rollout(attentions: list[Tensor]) -> Tensor:
    """Compute rollout as it is usually written: by L products of N x N matrices."""
    eye = torch.eye(attentions[0].shape[-1], device=attentions[0].device)
    product = eye
    for attention in attentions:
        product = (0.5 * attention.float().mean(1) + 0.5 * eye) @ product
    return product[:, 0]


def prepare(way: str, model: str, side: int) -> tuple[torch.nn.Module, Callable[[Tensor], Any]]:
    """Return the module and the function that is timed."""
    if way.startswith("ours"):
        ours = build_ours(model, side)
        if way == "ours: forward":
            return ours, ours
        if way == "ours: trace":
            return ours, ours.trace
        return ours, lambda images: rollout_scores(ours.trace(images))
    if way.startswith("timm"):
        theirs = build_timm(model, side, fused="unfused" not in way)
        if way == "timm: fused forward":
            return theirs, theirs
        hooks = Hooks(theirs)
        return theirs, (lambda images: dense_rollout(hooks(images)[1])) if "rollout" in way else hooks
    eager = "eager" in way
    theirs = build_transformers(model, side, eager)
    return theirs, lambda images: theirs(pixel_values=images, output_attentions=eager)


def resident(peak: bool) -> float:
    """Return the MB that this process holds now, or has held at most since `forget_peak`. Linux only."""
    field = "VmHWM" if peak else "VmRSS"
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith(field)).split()[1]) / 1024


def forget_peak() -> None:
    """Reset the peak of the memory held (see `man 5 proc`, clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")


def measure(way: str, model: str, side: int, device: str, dtype: str, repeats: int) -> dict[str, float]:
    """Return median seconds and peak MB over the start, of one way, in this process."""
    module, run = prepare(way, model, side)
    module.to(device)
    images = torch.randn(1, 3, side, side, device=device)
    times, before = [], 0.0
    with torch.no_grad(), torch.autocast(device, getattr(torch, dtype), enabled=dtype != "float32"):
        if device == "cpu":
            forget_peak()
            before = resident(peak=False)
        for index in range(repeats + 1):
            if device == "cuda":
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated() / 2**20
            began = time.perf_counter()
            run(images)
            if device == "cuda":
                torch.cuda.synchronize()
            if index:  # the first is the warm-up
                times.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else resident(peak=True)
    return {"seconds": statistics.median(times), "memory": peak - before}


def agree(model: str, side: int) -> None:
    """Stop unless all three give the same logits and attention."""
    torch.manual_seed(1)
    images = torch.randn(1, 3, side, side)
    with torch.no_grad():
        ours = build_ours(model, side).trace(images)
        logits, attentions = Hooks(build_timm(model, side, fused=False))(images)
        theirs = build_transformers(model, side, eager=True)(pixel_values=images, output_attentions=True)
    gaps = {
        "logits, timm": (ours.logits - logits).abs().max(),
        "logits, transformers": (ours.logits - theirs.logits).abs().max(),
        "attention, timm": max((a - b).abs().max() for a, b in zip(ours.attentions, attentions, strict=True)),
        "attention, transformers": max(
            (a - b).abs().max() for a, b in zip(ours.attentions, theirs.attentions, strict=True)
        ),
        "rollout": (rollout_scores(ours) - dense_rollout(attentions))[:, 1:].abs().max(),
    }
    print("  largest differences: " + ", ".join(f"{name} {float(gap):.0e}" for name, gap in gaps.items()))
    if not all(gap < (1e-4 if "logits" in name else 1e-5) for name, gap in gaps.items()):
        raise SystemExit("Expected the same logits (1e-4) and attention (1e-5) from all three.")


def alone(way: str, model: str, side: int, args: argparse.Namespace, lean: bool) -> dict[str, float]:
    """Run `measure` in a process of its own; `lean` for memory: one pass, nothing reserved by the C library."""
    repeats = 1 if lean else args.repeats
    command = [sys.executable, __file__, "--one", way, model, str(side), args.device, args.dtype, str(repeats)]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**20)} if lean else None
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["killed"])[-1][:100])
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def compare(model: str, side: int, args: argparse.Namespace) -> None:
    """Print one table: every way on one model at one size."""
    tokens = (side // PATCH) ** 2 + 1
    print(f"\nViT-{model[0].upper()}/{PATCH} at {side} px, {tokens:,} tokens, {args.device}, {args.dtype}")
    if side <= args.agree_up_to:
        agree(model, side)
    rows: dict[str, dict[str, float]] = {}
    for way in (way for way in WAYS if any(part in way for part in args.ways)):
        try:
            timed, weighed = (alone(way, model, side, args, lean) for lean in (False, True))
        except RuntimeError as error:
            print(f"  {way:<40} failed: {error}")
            continue
        rows[way] = {"seconds": timed["seconds"], "memory": weighed["memory"]}
        fused = rows["ours: forward"]
        seconds, memory = rows[way]["seconds"], rows[way]["memory"]
        ratios = f"{seconds / fused['seconds']:6.2f} x"
        if fused["memory"] >= 20:  # below that the model's own making hides it
            ratios += f" {memory / fused['memory']:6.2f} x"
        print(f"  {way:<40} {1000 * seconds:9.1f} ms {memory:9.0f} MB  {ratios}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--sizes", nargs="+", type=int, default=[224, 512, 1024], metavar="PIXELS")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ways", nargs="+", default=[""], metavar="PART", help="only those with this in their names")
    parser.add_argument("--agree-up-to", type=int, default=512, metavar="PIXELS", help="check numbers up to this size")
    parser.add_argument("--one", nargs=6, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        way, model, side, device, dtype, repeats = args.one
        print(json.dumps(measure(way, model, int(side), device, dtype, int(repeats))))
        return
    threads, python = torch.get_num_threads(), platform.python_version()
    print(f"{platform.machine()}, {threads} threads, Python {python}, torch {torch.__version__}")
    print("  time: median of", args.repeats, "| memory: peak over the start | ratios: to our fused forward")
    for model in args.models:
        for side in args.sizes:
            compare(model, side, args)


if __name__ == "__main__":
    main()
