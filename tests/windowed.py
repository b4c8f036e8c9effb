"""Make small windowed models of other libraries, with random weights, and open them."""

import warnings
from typing import Any

import torch
from tiny import shaken
from torch import nn

import vitviz
from vitviz.images.torchvision_import import import_torchvision
from vitviz.weights.captured_vit import CapturedViT

LIKE_SAM = {"kind": "SAM"}


def small(kind: str = "Swin", classes: int = 5, **changes: Any) -> CapturedViT:
    """Return a model of timm that runs as it is, for images of 48 x 32 pixels.

    "Swin" and "Swin v2" have two stages of 24 x 16 and 12 x 8 tokens; "SAM" has windows of 5 x 5 tokens with padding in
    a grid of 24 x 16, no windows in block 2, and a neck.
    """
    import_torchvision()  # timm imports torchvision, whose import may fail
    from timm.models.swin_transformer import SwinTransformer
    from timm.models.swin_transformer_v2 import SwinTransformerV2
    from timm.models.vision_transformer_sam import VisionTransformerSAM

    sizes: dict[str, Any] = {"img_size": (48, 32), "patch_size": 2, "embed_dim": 12, "num_classes": classes} | changes
    stages: dict[str, Any] = {"depths": (2, 2), "num_heads": (2, 3), "window_size": ((4, 4), (2, 2)), "mlp_ratio": 1.5}
    sam: dict[str, Any] = {"depth": 4, "num_heads": 2, "window_size": 5, "global_attn_indexes": (2,)}
    sam |= {"use_rel_pos": True, "neck_chans": 11}
    torch.manual_seed(3)
    if kind == "SAM":
        module = VisionTransformerSAM(**sizes | sam)
    else:
        module = (SwinTransformerV2 if kind == "Swin v2" else SwinTransformer)(**sizes | stages)
    height, width = sizes["img_size"]
    return opened(module, height, width, [f"class {index}" for index in range(classes)])


def opened(module: nn.Module, height: int, width: int, labels: list[str]) -> CapturedViT:
    """Open a module that is not converted, after a change of its weights."""
    preprocess = vitviz.Preprocess(height=height, width=width, mode="squash")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = vitviz.load(shaken(module), labels=labels, preprocess=preprocess)
    assert isinstance(model, CapturedViT)
    return model
