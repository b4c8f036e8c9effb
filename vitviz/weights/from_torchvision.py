"""Weights of torchvision's Vision Transformer -> weights in ours.

Every tensor of the source is taken exactly once with the shape it must have, or reported. torchvision takes images of
one size only and interpolates positions when weights are loaded (bicubic, the corners aligned); here they are
interpolated when an image of another size comes, as everywhere in vitviz. At the native size both compute the same.

Shapes: D width, M hidden width of the MLP, p patch side, C classes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from vitviz.compat import import_torchvision
from vitviz.config import ViTConfig
from vitviz.model import Pretrained, ViT
from vitviz.preprocess import Preprocess
from vitviz.weights.parts import State, finish, linear, norm, open_source, patches, within
from vitviz.weights.settings import Settings
from vitviz.weights.source import ConvertError, Source

# The builders of torchvision.models, in the names of `VisionTransformer`'s arguments.
BUILDERS: dict[str, dict[str, int]] = {
    "vit_b_16": {"patch_size": 16, "num_layers": 12, "num_heads": 12, "hidden_dim": 768, "mlp_dim": 3072},
    "vit_b_32": {"patch_size": 32, "num_layers": 12, "num_heads": 12, "hidden_dim": 768, "mlp_dim": 3072},
    "vit_l_16": {"patch_size": 16, "num_layers": 24, "num_heads": 16, "hidden_dim": 1024, "mlp_dim": 4096},
    "vit_l_32": {"patch_size": 32, "num_layers": 24, "num_heads": 16, "hidden_dim": 1024, "mlp_dim": 4096},
    "vit_h_14": {"patch_size": 14, "num_layers": 32, "num_heads": 16, "hidden_dim": 1280, "mlp_dim": 5120},
}
_DEFAULTS: dict[str, Any] = {
    "image_size": 224,
    "num_classes": 1000,
    "representation_size": None,
    "conv_stem_configs": None,
    "norm_eps": 1e-6,
}
_SWAG = "facebookresearch/SWAG"


def torchvision_vit(state: Mapping[str, Tensor], settings: Mapping[str, Any]) -> tuple[ViTConfig, State]:
    """The Vision Transformer of `torchvision.models` (`vit_b_16`, `vit_b_32`, `vit_l_16`, `vit_l_32`, `vit_h_14`).

    Args:
        state: its state dict; of a file in older names (`mlp.linear_1`) too.
        settings: the arguments of `torchvision.models.VisionTransformer`: patch_size, num_layers, num_heads,
            hidden_dim and mlp_dim, which `BUILDERS` has for the published models; image_size (224), num_classes (1000;
            0 for a model without a classifier), representation_size (only `None`), and norm_eps (1e-6).

    Returns:
        The config and the state dict for `ViT(config)`.

    Raises:
        ConvertError: if settings are missing or not supported, or tensors are missing, misshaped or left over.
    """
    said = Settings(settings, "torchvision", _DEFAULTS)
    said.need("patch_size", "num_layers", "num_heads", "hidden_dim", "mlp_dim")
    if said.get("representation_size") is not None:
        raise said.refuse("representation_size", "a classifier of two layers is none of the model's")
    if said.get("conv_stem_configs") is not None:
        raise said.refuse("conv_stem_configs", "patches come from one convolution, not from several")
    patch, width, hidden = said.whole("patch_size"), said.whole("hidden_dim"), said.whole("mlp_dim")
    config = ViTConfig(
        image_size=(said.whole("image_size"),) * 2,
        patch_size=patch,
        width=width,
        depth=said.whole("num_layers"),
        heads=said.whole("num_heads"),
        mlp_width=hidden,
        classes=said.whole("num_classes", 0),
        position_antialias=False,
        norm_eps=said.number("norm_eps"),
    )
    source, names = open_source(state, "torchvision")
    rows, columns = config.learned_grid
    table = source.take("encoder.pos_embedding", 1, 1 + rows * columns, width)
    new = {
        # Our prefix tokens have no position: that of CLS never changes, so it is added here once.
        "cls_token": source.take("class_token", 1, 1, width) + table[:, :1],
        "pos_embed": table[:, 1:],
    }
    new |= patches(source, "conv_proj", (width, config.channels, patch, patch))
    new |= norm(source, "norm", "encoder.ln", width)
    older = any(".mlp.linear_1." in name for name in names)
    for index in range(config.depth):
        block = _block(source, f"encoder.layers.encoder_layer_{index}.", width, hidden, older)
        new |= within(f"blocks.{index}.", block)
    if config.classes:
        new |= linear(source, "head", "heads.head", config.classes, width)
    return config, finish(source, new)


def _block(source: Source, at: str, width: int, hidden: int, older: bool) -> State:
    """One block, whose tensors are named `at` + ...; ours without the block's prefix."""
    first, second = ("linear_1", "linear_2") if older else ("0", "3")
    new = {
        "attn.qkv.weight": source.take(at + "self_attention.in_proj_weight", 3 * width, width),
        "attn.qkv.bias": source.take(at + "self_attention.in_proj_bias", 3 * width),
    }
    new |= linear(source, "attn.proj", at + "self_attention.out_proj", width, width)
    new |= norm(source, "norm1", at + "ln_1", width) | norm(source, "norm2", at + "ln_2", width)
    new |= linear(source, "mlp.fc1", f"{at}mlp.{first}", hidden, width)
    return new | linear(source, "mlp.fc2", f"{at}mlp.{second}", width, hidden)


def about_torchvision(weights: Any) -> Pretrained:
    """How to feed published weights and what their outputs mean.

    Args:
        weights: a member of an enum of weights, such as `torchvision.models.ViT_B_16_Weights.IMAGENET1K_V1`. It is read
            only; nothing is downloaded.

    Raises:
        ConvertError: for weights whose transforms are not those of image classification.
    """
    transforms, meta = weights.transforms(), weights.meta
    wanted = ("resize_size", "crop_size", "mean", "std", "interpolation")
    if missing := [name for name in wanted if not hasattr(transforms, name)]:
        raise ConvertError(f"Expected the transforms of an image classifier, got one without {', '.join(missing)}.")
    side = transforms.crop_size[0]
    licence = "unknown: torchvision (BSD-3-Clause) states none for these weights"
    if _SWAG in f"{meta.get('license', '')} {meta.get('recipe', '')}":
        licence = f"CC-BY-NC-4.0 ({meta['license']})"
    elif "license" in meta:
        licence = str(meta["license"])
    return Pretrained(
        name=f"{re.sub('_Weights$', '', type(weights).__name__)} {weights.name}",
        preprocess=Preprocess(
            height=side,
            width=side,
            mode="crop",
            resize=transforms.resize_size[0],
            interpolation=transforms.interpolation.value,
            mean=tuple(transforms.mean),
            std=tuple(transforms.std),
        ),
        labels=tuple(meta["categories"]),
        licence=licence,
        source=f"{weights.url} ({meta['recipe']})",
    )


def convert_torchvision(model: nn.Module, weights: Any = None) -> ViT:
    """A Vision Transformer of torchvision as one of ours: float32, in eval mode, sharing no memory with it.

    Args:
        model: a `torchvision.models.VisionTransformer`, also one with a classifier for other classes.
        weights: the member of the enum of weights that it was loaded with: what travels with them; `None` for others.

    Raises:
        ConvertError: for another model, or one that was changed beyond its classifier.
        ModelError: if the weights name another number of classes.
    """
    torchvision = import_torchvision()
    from torchvision.models import VisionTransformer

    if not isinstance(model, VisionTransformer):
        raise ConvertError(
            f"Expected a VisionTransformer of torchvision {torchvision.__version__}, got {type(model).__name__}."
        )
    blocks = list(model.encoder.layers)
    head = getattr(model.heads, "head", None)
    settings = {
        "image_size": model.image_size,
        "patch_size": model.patch_size,
        "num_layers": len(blocks),
        "num_heads": blocks[0].num_heads,
        "hidden_dim": model.hidden_dim,
        "mlp_dim": model.mlp_dim,
        # The classifier that is there, not the one that the model was made with: fine-tuning replaces it.
        "num_classes": head.out_features if isinstance(head, nn.Linear) else 0,
        "representation_size": model.representation_size,
        "conv_stem_configs": None if isinstance(model.conv_proj, nn.Conv2d) else "several convolutions",
        "norm_eps": model.encoder.ln.eps,
    }
    config, state = torchvision_vit({name: tensor.detach() for name, tensor in model.state_dict().items()}, settings)
    ours = ViT(config, about_torchvision(weights) if weights is not None else None)
    ours.load_state_dict(state, strict=True)
    return ours.eval()
