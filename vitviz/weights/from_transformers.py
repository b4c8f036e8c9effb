"""Weights in Hugging Face's names -> weights in ours.

One pure function for each family: (state, settings) -> (`ViTConfig`, state). Every tensor of the source is taken
exactly once with the shape it must have, dropped by name with a reason, or reported.

Shapes: D width, M hidden width of the MLP, R registers, p patch side, gh x gw the grid of the position table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitviz.config import ViTConfig
from vitviz.weights.source import ConvertError, Source


def dinov2(state: Mapping[str, Tensor], settings: Mapping[str, Any]) -> tuple[ViTConfig, dict[str, Tensor]]:
    """DINOv2, with or without registers, in the names of Hugging Face's files (`Dinov2Model`).

    Oquab et al. 2024, "DINOv2: Learning Robust Visual Features without Supervision"; Darcet et al. 2024, "Vision
    Transformers Need Registers". `transformers` with registers filters positions when it shrinks them and without
    does not; `position_antialias` follows it.

    Args:
        state: tensors as in `model.safetensors`; the bare model, without a prefix such as `dinov2.`.
        settings: the `config.json` beside it. Sizes have no defaults here: a guess would fit the wrong model.

    Returns:
        The config (no classifier) and the state dict for `ViT(config)`.

    Raises:
        ConvertError: if settings are missing or not supported, or tensors are missing, misshaped or left over.
    """
    config = _dinov2_config(settings)
    width, patch = config.width, config.patch_size
    source = Source(state, "DINOv2")
    source.drop("embeddings.mask_token")  # stands in for hidden patches in training; no image ever meets it
    rows, columns = config.learned_grid
    table = source.take("embeddings.position_embeddings", 1, 1 + rows * columns, width)
    new = {
        # Our prefix tokens have no position: that of CLS never changes, so it is added here once.
        "cls_token": source.take("embeddings.cls_token", 1, 1, width) + table[:, :1],
        "pos_embed": table[:, 1:],
        "patch_embed.proj.weight": source.take(
            "embeddings.patch_embeddings.projection.weight", width, config.channels, patch, patch
        ),
        "patch_embed.proj.bias": source.take("embeddings.patch_embeddings.projection.bias", width),
        "norm.weight": source.take("layernorm.weight", width),
        "norm.bias": source.take("layernorm.bias", width),
    }
    if config.registers:
        new["reg_token"] = source.take("embeddings.register_tokens", 1, config.registers, width)
    for index in range(config.depth):
        block = _dinov2_block(source, f"encoder.layer.{index}.", config)
        new |= {f"blocks.{index}.{name}": tensor for name, tensor in block.items()}
    source.finish()
    return config, {name: tensor.clone() for name, tensor in new.items()}


def _dinov2_block(source: Source, at: str, config: ViTConfig) -> dict[str, Tensor]:
    """One block, whose tensors are named `at` + ...; ours without the block's prefix."""
    width, hidden = config.width, config.hidden
    parts = [f"{at}attention.attention.{part}." for part in ("query", "key", "value")]
    # Three (D, D) matrices, one above the other -> (3 D, D).
    new = {"attn.qkv.weight": torch.cat([source.take(part + "weight", width, width) for part in parts])}
    if config.qkv_bias:
        new["attn.qkv.bias"] = torch.cat([source.take(part + "bias", width) for part in parts])
    new["ls1.gamma"] = source.take(at + "layer_scale1.lambda1", width)
    new["ls2.gamma"] = source.take(at + "layer_scale2.lambda1", width)
    for norm in ("norm1", "norm2"):
        new[norm + ".weight"] = source.take(f"{at}{norm}.weight", width)
        new[norm + ".bias"] = source.take(f"{at}{norm}.bias", width)
    for ours, theirs, rows, columns in (
        ("attn.proj", "attention.output.dense", width, width),
        ("mlp.fc1", "mlp.fc1", hidden, width),
        ("mlp.fc2", "mlp.fc2", width, hidden),
    ):
        new[ours + ".weight"] = source.take(f"{at}{theirs}.weight", rows, columns)
        new[ours + ".bias"] = source.take(f"{at}{theirs}.bias", rows)
    return new


def _dinov2_config(settings: Mapping[str, Any]) -> ViTConfig:
    """The config that a `config.json` of DINOv2 describes."""
    needed = ("hidden_size", "num_hidden_layers", "num_attention_heads", "mlp_ratio", "image_size", "patch_size")
    if missing := [name for name in needed if name not in settings]:
        raise ConvertError(f"DINOv2 settings without {', '.join(missing)}: expected those of its config.json.")
    # What this model computes; the values that transformers assumes where the file does not say.
    for name, default, supported in (("hidden_act", "gelu", "gelu"), ("use_swiglu_ffn", False, False)):
        if (came := settings.get(name, default)) != supported:
            raise ConvertError(f"DINOv2 with {name}={came!r} is not supported yet: expected {supported!r}.")
    side, width = settings["image_size"], settings["hidden_size"]
    if not isinstance(side, int):
        raise ConvertError(f"DINOv2 has a square position table: expected one whole number as image_size, got {side}.")
    registered = settings.get("model_type", "dinov2") == "dinov2_with_registers"
    return ViTConfig(
        image_size=(side, side),
        patch_size=settings["patch_size"],
        channels=settings.get("num_channels", 3),
        width=width,
        depth=settings["num_hidden_layers"],
        heads=settings["num_attention_heads"],
        mlp_width=int(width * settings["mlp_ratio"]),
        classes=0,
        registers=settings.get("num_register_tokens", 4) if registered else 0,
        position_antialias=registered,
        layer_scale=float(settings.get("layerscale_value", 1.0)),
        qkv_bias=settings.get("qkv_bias", True),
        norm_eps=settings.get("layer_norm_eps", 1e-6),
    )
