"""What a figure says about itself: which model, which photograph, at which size."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitviz.model import ViT
from vitviz.view import View

Floats = NDArray[np.float32]


class FigureError(ValueError):
    """A figure that cannot be drawn or saved as asked; the text says why and what to do."""


def model_of(source: View | ViT) -> ViT:
    """The model of a view, or the model itself."""
    return source.model if isinstance(source, View) else source


def size_of(source: View | ViT) -> tuple[int, int]:
    """(height, width) in pixels of what the model reads: the view's own, or what the model is made for."""
    return source.size if isinstance(source, View) else source.config.image_size


def grid_of(source: View | ViT) -> tuple[int, int]:
    """(gh, gw) patches at that size."""
    return model_of(source).config.grid_of(*size_of(source))


def model_words(source: View | ViT) -> str:
    """The model in a sentence."""
    model = model_of(source)
    config = model.config
    name = f"{model.pretrained.name}: " if model.pretrained and model.pretrained.name else "A Vision Transformer: "
    blocks, heads = counted(config.depth, "block"), counted(config.heads, "head")
    return f"{name}{blocks} of {heads}, width {config.width}, patches of {config.patch_size} × {config.patch_size}."


def photo_words(source: View | ViT, photo: str) -> str:
    """The photograph in a sentence, and what the model reads of it."""
    height, width = size_of(source)
    rows, columns = grid_of(source)
    reads = f"{width} × {height}, {rows} × {columns} patches (rows × columns)"
    if not isinstance(source, View):
        return f"Drawn for images of {reads}."
    name = f"{photo}, " if photo else ""
    across, down = source.photo.size
    return f"Photograph: {name}{across} × {down} pixels; the model reads it at {reads}."


def counted(count: int, one: str) -> str:
    """3 blocks, 1 block."""
    return f"{count:,} {one}{'' if count == 1 else 's'}"


def array(tensor: Tensor) -> Floats:
    """A tensor's numbers in float32, off its device."""
    found: Floats = tensor.detach().to("cpu", torch.float32).numpy()
    return found
