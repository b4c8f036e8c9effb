"""Compare the cost of a trace in this project, timm and transformers, and of capturing these, on the same weights.

    python benchmarks/attention.py                       # ViT-S/16 and ViT-B/16 at 224, 512 and 1,024 pixels
    python benchmarks/attention.py --sizes 224 --models small
    python benchmarks/attention.py --device cuda --dtypes float32 bfloat16 --sizes 224 1024 2048

A random timm Vision Transformer is converted to our implementation and to transformers. First, logits and attention of
all three are compared. On the CPU, each way then runs in separate processes: one measures the median time of a forward
pass, another the increase in peak memory. The second process makes the C library return memory immediately
(`MALLOC_MMAP_THRESHOLD_`), because memory reserved between passes would otherwise hide what a pass needs. On a GPU,
whose memory PyTorch counts, one process measures everything.
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
from vitviz.weights.capture import capture
from vitviz.weights.from_timm import convert_timm

SIZES = {"small": (384, 6), "base": (768, 12)}
DEPTH, PATCH, CLASSES = 12, 16, 1000
WAYS = (
    "ours: forward",
    "ours: trace",
    "ours: trace + CLS rollout",
    "timm: fused forward",
    "timm: fused, captured",
    "timm: unfused, hooks",
    "timm: unfused, hooks + dense rollout",
    "transformers: sdpa forward",
    "transformers: sdpa, captured",
    "transformers: eager, output_attentions",
)


def build_timm(model: str, side: int, fused: bool) -> Any:
    import_torchvision()
    from timm.layers import set_fused_attn
    from timm.models.vision_transformer import VisionTransformer

    set_fused_attn(fused)
    width, heads = SIZES[model]
    torch.manual_seed(0)
    model_of_timm = VisionTransformer(
        img_size=side, patch_size=PATCH, embed_dim=width, depth=DEPTH, num_heads=heads, num_classes=CLASSES
    )
    torch.nn.init.normal_(model_of_timm.head.weight, std=0.02)  # zeros would hide errors
    return model_of_timm.eval()


def build_ours(model: str, side: int) -> ViT:
    return convert_timm(build_timm(model, side, fused=True))


def build_transformers(model: str, side: int, eager: bool) -> Any:
    """Return a transformers model with the same weights."""
    import_torchvision()
    from transformers import ViTConfig, ViTForImageClassification

    width, heads = SIZES[model]
    config = ViTConfig(
        hidden_size=width, num_hidden_layers=DEPTH, num_attention_heads=heads, intermediate_size=4 * width,
        image_size=side, patch_size=PATCH, num_labels=CLASSES, layer_norm_eps=1e-6,
    )  # fmt: skip
    config._attn_implementation = "eager" if eager else "sdpa"
    network = ViTForImageClassification(config).eval()
    weights = build_timm(model, side, fused=True).state_dict()
    norms = {"norm1": "layernorm_before", "norm2": "layernorm_after"}
    network.load_state_dict({name: _timm_tensor(name, weights, norms) for name in network.state_dict()})
    return network


def _timm_tensor(name: str, weights: dict[str, Tensor], norms: dict[str, str]) -> Tensor:
    """Return timm's tensor for a transformers parameter name, old or new."""
    kind = name.rsplit(".", 1)[1]
    if "cls_token" in name or "position_embeddings" in name:
        return weights["cls_token" if "cls_token" in name else "pos_embed"]
    if "projection" in name:
        return weights[f"patch_embed.proj.{kind}"]
    parts = name.split(".")
    index = next((part for part in parts if part.isdigit()), None)
    if index is None:
        return weights[f"{'head' if 'classifier' in name else 'norm'}.{kind}"]
    block = f"blocks.{index}."
    for timm_name, other_name in norms.items():
        if other_name in name:
            return weights[f"{block}{timm_name}.{kind}"]
    for order, names in enumerate((("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"))):
        if any(part in parts for part in names):
            return weights[f"{block}attn.qkv.{kind}"].chunk(3)[order]
    if "attention" in parts:
        return weights[f"{block}attn.proj.{kind}"]
    return weights[f"{block}mlp.{'fc1' if 'intermediate' in parts or 'fc1' in parts else 'fc2'}.{kind}"]


class Hooks:
    """The usual way to read attention from timm: unfused attention, with a hook after the softmax."""

    def __init__(self, model: Any) -> None:
        self.model, self.attentions = model, []
        for block in model.blocks:
            block.attn.attn_drop.register_forward_hook(lambda _m, _i, out: self.attentions.append(out))

    def __call__(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        logits = self.model(images)
        attentions, self.attentions = self.attentions, []  # otherwise they would stay in memory
        return logits, attentions


def dense_rollout(attentions: list[Tensor]) -> Tensor:
    """Compute rollout in the usual way, by L products of N x N matrices."""
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
    if "captured" in way:
        module = build_timm(model, side, fused=True) if "timm" in way else build_transformers(model, side, eager=False)
        return module, lambda images: capture(module, images)
    if way.startswith("timm"):
        of_timm = build_timm(model, side, fused="unfused" not in way)
        if way == "timm: fused forward":
            return of_timm, of_timm
        hooks = Hooks(of_timm)
        return of_timm, (lambda images: dense_rollout(hooks(images)[1])) if "rollout" in way else hooks
    eager = "eager" in way
    of_transformers = build_transformers(model, side, eager)
    return of_transformers, lambda images: of_transformers(pixel_values=images, output_attentions=eager)


def resident(peak: bool) -> float:
    """Return the resident memory of this process in MB, now or its peak since `reset_peak`. Linux only."""
    field = "VmHWM" if peak else "VmRSS"
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith(field)).split()[1]) / 1024


def reset_peak() -> None:
    """Reset the peak of the resident memory (see `man 5 proc`, clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")


def measure(way: str, model: str, side: int, device: str, dtype: str, repeats: int) -> dict[str, float]:
    """Return the median seconds of one way and its increase in peak memory in MB, in this process."""
    module, run = prepare(way, model, side)
    module.to(device)
    return time_and_memory(run, side, device, dtype, repeats)


def time_and_memory(run: Callable[[Tensor], Any], side: int, device: str, dtype: str, repeats: int) -> dict[str, float]:
    """Return the median seconds of a function of images and its increase in peak memory in MB."""
    images = torch.randn(1, 3, side, side, device=device)
    times, before = [], 0.0
    with torch.no_grad(), torch.autocast(device, getattr(torch, dtype), enabled=dtype != "float32"):
        if device == "cpu":
            reset_peak()
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
            if index:  # after the warm-up
                times.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else resident(peak=True)
    return {"seconds": statistics.median(times), "memory": peak - before}


def agree(model: str, side: int) -> None:
    """Exit unless all three implementations have the same logits and attention."""
    torch.manual_seed(1)
    images = torch.randn(1, 3, side, side)
    with torch.no_grad():
        ours = build_ours(model, side).trace(images)
        logits, attentions = Hooks(build_timm(model, side, fused=False))(images)
        output = build_transformers(model, side, eager=True)(pixel_values=images, output_attentions=True)
        captured = [capture(build_timm(model, side, fused=True), images)]
        captured += [capture(build_transformers(model, side, eager=False), images)]
    gaps = {
        "logits, timm": (ours.logits - logits).abs().max(),
        "logits, transformers": (ours.logits - output.logits).abs().max(),
        "attention, timm": max((a - b).abs().max() for a, b in zip(ours.attentions, attentions, strict=True)),
        "attention, transformers": max(
            (a - b).abs().max() for a, b in zip(ours.attentions, output.attentions, strict=True)
        ),
        "attention, captured": max(
            (a - b).abs().max() for one in captured for a, b in zip(one.attentions, attentions, strict=True)
        ),
        "rollout": (rollout_scores(ours) - dense_rollout(attentions))[:, 1:].abs().max(),
    }
    print("  largest differences: " + ", ".join(f"{name} {float(gap):.0e}" for name, gap in gaps.items()))
    if not all(gap < (1e-4 if "logits" in name else 1e-5) for name, gap in gaps.items()):
        raise SystemExit("Expected equal logits (within 1e-4) and attention (1e-5), got the differences above.")


def alone(way: str, model: str, side: int, dtype: str, args: argparse.Namespace, lean: bool) -> dict[str, float]:
    """Run `measure` in a separate process; `lean` measures memory: one pass, no memory reserved by the C library."""
    repeats = 1 if lean else args.repeats
    command = [sys.executable, __file__, "--one", way, model, str(side), args.device, dtype, str(repeats)]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**20)} if lean else None
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["killed"])[-1][:100])
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def compare(model: str, side: int, args: argparse.Namespace) -> None:
    """Print one table for each type: every way on one model at one size."""
    tokens = (side // PATCH) ** 2 + 1
    if side <= args.agree_up_to:
        agree(model, side)
    ways = [way for way in WAYS if any(part in way for part in args.ways)]
    measured: dict[str, dict[str, dict[str, float] | str]] = {dtype: {} for dtype in args.dtypes}
    for way in ways:
        prepared = prepare(way, model, side) if args.device == "cuda" else None
        for dtype in args.dtypes:
            try:
                if prepared is None:
                    time_run, memory_run = (alone(way, model, side, dtype, args, lean) for lean in (False, True))
                    measured[dtype][way] = time_run | {"memory": memory_run["memory"]}
                else:
                    prepared[0].to(args.device)
                    measured[dtype][way] = time_and_memory(prepared[1], side, args.device, dtype, args.repeats)
            except RuntimeError as error:
                measured[dtype][way] = f"failed: {str(error)[:100]}"
    for dtype, rows in measured.items():
        print(f"\nViT-{model[0].upper()}/{PATCH} at {side} px, {tokens:,} tokens, {args.device}, {dtype}")
        print_rows(rows)


def print_rows(rows: dict[str, dict[str, float] | str]) -> None:
    """Print time and memory of each implementation, and their ratios to our fused forward pass."""
    fused = rows["ours: forward"]
    assert not isinstance(fused, str)
    for way, row in rows.items():
        if isinstance(row, str):
            print(f"  {way:<40} {row}")
            continue
        seconds, memory = row["seconds"], row["memory"]
        ratios = f"{seconds / fused['seconds']:6.2f} x"
        if fused["memory"] >= 20:  # smaller numbers are mostly noise
            ratios += f" {memory / fused['memory']:6.2f} x"
        print(f"  {way:<40} {1000 * seconds:9.1f} ms {memory:9.0f} MB  {ratios}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--sizes", nargs="+", type=int, default=[224, 512, 1024], metavar="PIXELS")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtypes", nargs="+", default=["float32"], choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ways", nargs="+", default=[""], metavar="PART", help="only ways with a PART in their names")
    parser.add_argument(
        "--agree-up-to", type=int, default=512, metavar="PIXELS", help="compare numbers up to this size"
    )
    parser.add_argument("--one", nargs=6, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        way, model, side, device, dtype, repeats = args.one
        print(json.dumps(measure(way, model, int(side), device, dtype, int(repeats))))
        return
    threads, python = torch.get_num_threads(), platform.python_version()
    print(f"{platform.machine()}, {threads} threads, Python {python}, torch {torch.__version__}")
    if args.device == "cuda":
        print(f"  {torch.cuda.get_device_name()}, CUDA {torch.version.cuda}")
    print("  time: median of", args.repeats, "| memory: peak above the start | ratios: to our fused forward")
    for model in args.models:
        for side in args.sizes:
            compare(model, side, args)


if __name__ == "__main__":
    main()
