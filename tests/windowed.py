"""Make small windowed models with random weights."""

from typing import Any

import torch
from tiny import shaken

from vitviz.images.preprocess import Preprocess
from vitviz.model.vit import Pretrained
from vitviz.model.windowed_vit import WindowedConfig, WindowedViT


def small(**changes: Any) -> WindowedViT:
    """Return a model with two stages of 24 x 16 and 12 x 8 tokens for images of 48 x 32 pixels."""
    sizes: dict[str, Any] = {"image_size": (48, 32), "patch_size": 2, "width": 12, "depths": (2, 2), "windows": (4, 2)}
    torch.manual_seed(3)
    model = WindowedViT(WindowedConfig(**sizes | {"stage_heads": (2, 3), "classes": 5, "mlp_width": 17} | changes))
    return shaken(model)


# As SAM: windows of 5 x 5 tokens with padding in a grid of 24 x 16, block 2 without windows, and a neck.
LIKE_SAM: dict[str, Any] = {"depths": (4,), "stage_heads": (2,), "windows": (5,), "padded": True, "global_blocks": (2,)}
LIKE_SAM |= {"window_bias": "decomposed", "neck": 11, "positions": "learned", "norm_patch": False, "norm_final": False}


def known(model: WindowedViT) -> WindowedViT:
    labels = tuple(f"class {index}" for index in range(5))
    model.pretrained = Pretrained(name="tiny", preprocess=Preprocess(height=48, width=32, mode="squash"), labels=labels)
    return model
