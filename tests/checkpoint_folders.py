"""A small model that is saved as a folder, and changes of its files, for the tests of what is saved and loaded."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ViTConfig
from vitviz.model.vit import Pretrained, ViT

LABELS = ("ash", "birch", "cedar")
CONFIG = ViTConfig(
    image_size=(10, 15), patch_size=5, width=14, depth=3, heads=2, mlp_width=11, classes=3, registers=2, layer_scale=0.5
)
ABOUT = Pretrained(
    name="Bäume",
    preprocess=Preprocess(height=10, width=15, mode="squash", mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6)),
    labels=LABELS,
    class_ids=("n1", "n2", "n3"),
    licence="MIT",
    source="a test",
    sure_above=0.27,
    known_above=-1.5,
    groups=(("tree with needles", "birch", "cedar"),),
)


def model(config: ViTConfig = CONFIG, about: Pretrained | None = ABOUT) -> ViT:
    torch.manual_seed(7)
    made = ViT(config, about)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_()
    return made.eval()


def edit_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "config.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = folder / "model.safetensors"
    state = load_file(path)
    change(state)
    save_file(state, path)


def header(entries: Any, length: int | None = None, numbers: bytes = b"") -> bytes:
    """A safetensors file of any entries; `length` is what it says of its header, true or not."""
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + numbers
