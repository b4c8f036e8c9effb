"""Small random models of timm for the tests of its converters."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from timm.layers import LayerNorm
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import nn

# Every size another prime (times what has to divide it), so that a swapped axis cannot fit by chance.
SIZES = {
    "img_size": (3 * 5, 7 * 5),
    "patch_size": 5,
    "embed_dim": 5 * 12,
    "depth": 3,
    "num_heads": 5,
    "mlp_ratio": 2.2,
    "num_classes": 29,
    "dynamic_img_size": True,
}
OTHER = (11 * 5, 2 * 5)  # another grid, in both directions
ROTARY = {
    "rope_type": "dinov3",
    "rope_temperature": 31.0,
    "rope_rotate_half": True,
    "use_rot_pos_emb": True,
    "use_abs_pos_emb": False,
    "num_reg_tokens": 2,
    "use_fc_norm": False,
    "init_values": 0.5,
    "norm_layer": partial(LayerNorm, eps=1e-3),
}


@torch.no_grad()
def shaken(model: nn.Module, seed: int = 0) -> nn.Module:
    """Far from the initial values, where half the tensors are zeros or ones: every one of them matters."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model.eval()


def vit(**changes: Any) -> nn.Module:
    return shaken(VisionTransformer(**{**SIZES, **changes}))


def distilled(**changes: Any) -> nn.Module:
    return shaken(VisionTransformerDistilled(**{**SIZES, **changes}))


def eva(**changes: Any) -> nn.Module:
    return shaken(Eva(**{**SIZES, **changes}))
