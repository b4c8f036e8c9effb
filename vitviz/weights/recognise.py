"""Names and shapes of a state dict -> which family it is, and the settings that its converter needs.

Pure: nothing here sees a number. Sizes are read from shapes. What shapes do not show (how many heads, the epsilon of
the norms, the activation, how photographs are prepared) is taken from the family's convention and written down, or
asked for where families differ. A model whose attention cannot be shown is refused with its name and the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from vitviz.weights.families import (
    DINOV2_HEADS,
    DINOV3_HEADS,
    FAMILIES,
    Recognised,
    Shapes,
    choose,
    count_blocks,
    heads_of,
    patch_of,
    shape_of,
    side_of,
)
from vitviz.weights.from_clip import CLIP_DEFAULTS, SIGLIP_DEFAULTS
from vitviz.weights.from_torchvision import torchvision_vit
from vitviz.weights.from_transformers import (
    DINOV2_DEFAULTS,
    DINOV3_DEFAULTS,
    REFUSED,
    VIT_DEFAULTS,
    convert_transformers,
)
from vitviz.weights.recognise_timm import CHUNK, MARKS, recognise_timm
from vitviz.weights.source import ConvertError
from vitviz.weights.timm_settings import WHY_NOT

# Names that only such a model has: a pattern, what it is, and why it cannot be shown. The first that is found counts.
NOT_SHOWN: tuple[tuple[str, str, str], ...] = (
    (r"attn_(block|grid)\.|\.attn_(layer|block)\.|\.(grid|window)_attention\.", "MaxViT", WHY_NOT["MaxxVit"]),
    (r"(^|\.)(layers|features)\.\d+\.(blocks\.)?\d+\.att(n|ention)\.", "Swin", WHY_NOT["SwinTransformer"]),
    (r"\.rel_pos_[hw]$", "SAM or MViT", WHY_NOT["VisionTransformerSAM"]),
    (r"relative_position_bias|rel_pos_bias", "BEiT", WHY_NOT["Beit"]),
    (r"patch_embed(dings)?\.backbone\.", "a hybrid model", WHY_NOT["HybridEmbed"]),
    (r"blocks_token_only\.|\.attn\.proj_l\.", "CaiT", WHY_NOT["Cait"]),
    (r"\.attn\.gating_param$", "ConViT", WHY_NOT["ConVit"]),
    (r"\.local_mp\.", "XCiT", WHY_NOT["Xcit"]),
    (r"^blocks\.\d+\.(norm_in|attn_in)\.", "TNT", WHY_NOT["TNT"]),
    (r"^patch_embed1\.|^stages\.\d+\..*\.attn\.", "a pyramid of stages", WHY_NOT["PyramidVisionTransformerV2"]),
    (r"^decoder\.decoder_layers\.", "MAE with its decoder, in transformers' names", REFUSED["vit_mae"]),
    (
        r"(^|\.)resblocks\.\d+\.",
        "CLIP in OpenAI's or OpenCLIP's names",
        "only timm's and transformers' names of it are known; load it as timm:NAME or hf:NAME",
    ),
    (r"(^|\.)bn\d?\.running_mean$|^layer1\.0\.conv1\.|^stem\.", "a convolutional network", "it has no attention"),
)

# Where files of whole models put the model that their heads read.
_BASES = ("vit.", "deit.", "dinov2.", "dinov2_with_registers.", "dinov3_vit.", "vision_model.", "model.")


def recognise(shapes: Shapes, *, family: str | None = None, heads: int | None = None) -> Recognised:
    """The family of a state dict.

    Args:
        shapes: shape of each tensor by name.
        family: one of `FAMILIES`, where names and shapes leave a choice.
        heads: attention heads in each block, where the width is none of the published ones.

    Raises:
        ConvertError: if it is none that can be shown, not known, or not told apart without `family` or `heads`.
    """
    if family is not None and family not in FAMILIES:
        raise ConvertError(f"Unknown family {family!r}: expected one of {', '.join(FAMILIES)}.")
    if heads is not None and (not isinstance(heads, int) or isinstance(heads, bool) or heads < 1):
        raise ConvertError(f"heads: expected a whole number of at least 1, got {heads!r}.")
    for pattern, what, why in NOT_SHOWN:
        if any(re.search(pattern, name) for name in shapes):
            raise ConvertError(f"These are weights of {what}, which are not supported: {why}.")
    bare = {_bare(name): shape for name, shape in shapes.items()}
    for marks, reader in _READERS:
        if all(mark in bare for mark in marks):
            # timm's and torchvision's names have no base in front; a converter takes them as they are.
            return reader(shapes if reader in (recognise_timm, _torchvision) else bare, family, heads)
    names = sorted(shapes)
    raise ConvertError(
        f"Cannot tell a family from the names {', '.join(f'{name:.80}' for name in names[:3])}, ... of these "
        f"{len(names)} tensors: expected the names that timm, facebookresearch, transformers or torchvision give to a "
        f"Vision Transformer ({'; '.join(one.who for one in FAMILIES.values())})."
    )


def _bare(name: str) -> str:
    base = next((base for base in _BASES if name.startswith(base)), "")
    return re.sub(CHUNK, r"blocks.\1.", name.removeprefix(base))


# --- transformers

_PATCHES = "embeddings.patch_embeddings.projection.weight"
_POSITIONS = "embeddings.position_embeddings"
_LAYERS = r"encoder\.layer\.(\d+)\."


def _encoder(shapes: Shapes, family: str | None, heads: int | None) -> Recognised:
    """ViT, DeiT and DINOv2: one trunk of names, with small differences."""
    at = "encoder.layer.0."
    family = choose(family, ("vit",))
    second = "layer_scale1.lambda1"
    kind, defaults = ("dinov2", DINOV2_DEFAULTS) if at + second in shapes else ("vit", VIT_DEFAULTS)
    kind = "deit" if "embeddings.distillation_token" in shapes else kind
    registers = shapes.get("embeddings.register_tokens", (1, 0, 0))[1]
    if kind == "dinov2" and "embeddings.register_tokens" in shapes:
        kind = "dinov2_with_registers"
    width, channels, patch = patch_of(shapes, _PATCHES)
    inner = shape_of(shapes, at + "attention.attention.query.weight", 2)[0]
    bias = at + "attention.attention.query.bias" in shapes
    count, words = heads_of(
        width, inner, heads, published=DINOV2_HEADS if kind.startswith("dinov2") else None, sure=bias
    )
    side, _ = side_of(shape_of(shapes, _POSITIONS, 3)[1], (1 + (kind == "deit"),))
    settings: dict[str, Any] = {
        "hidden_size": width,
        "num_hidden_layers": count_blocks(shapes, _LAYERS),
        "num_attention_heads": count,
        "num_channels": channels,
        "patch_size": patch,
        "image_size": side * patch,
        "qkv_bias": bias,
    }
    if inner != width:
        settings["head_dim"] = inner // count
    if kind.startswith("dinov2"):
        settings |= _dinov2_mlp(shapes, at, width) | {"num_register_tokens": registers}
    else:
        settings["intermediate_size"] = shape_of(shapes, at + "intermediate.dense.weight", 2)[0]
    return _transformers(shapes, family, kind, settings, defaults, words)


def _dinov2_mlp(shapes: Shapes, at: str, width: int) -> dict[str, Any]:
    """The ratio that makes the MLP as wide as it is; a gated one has two thirds of it, up to a multiple of 8."""
    if at + "mlp.weights_out.weight" in shapes:
        hidden = shape_of(shapes, at + "mlp.weights_out.weight", 2)[1]
        return {"use_swiglu_ffn": True, "mlp_ratio": hidden * 3 / 2 / width}
    return {"mlp_ratio": (shape_of(shapes, at + "mlp.fc1.weight", 2)[0] + 0.5) / width}


def _dinov3(shapes: Shapes, family: str | None, heads: int | None) -> Recognised:
    at = "layer.0."
    family = choose(family, ("dinov3",))
    width, channels, patch = patch_of(shapes, "embeddings.patch_embeddings.weight")
    count, words = heads_of(width, width, heads, published=DINOV3_HEADS)
    hidden = shape_of(shapes, at + "mlp.down_proj.weight", 2)[1]
    gated = at + "mlp.gate_proj.weight" in shapes
    settings: dict[str, Any] = {
        "hidden_size": width,
        "num_hidden_layers": count_blocks(shapes, r"layer\.(\d+)\."),
        "num_attention_heads": count,
        "intermediate_size": hidden,
        "num_channels": channels,
        "patch_size": patch,
        "image_size": max(1, 224 // patch) * patch,
        "num_register_tokens": shapes.get("embeddings.register_tokens", (1, 0, 0))[1],
        "use_gated_mlp": gated,
        "proj_bias": at + "attention.o_proj.bias" in shapes,
        "mlp_bias": at + "mlp.down_proj.bias" in shapes,
    }
    settings |= {f"{part}_bias": f"{at}attention.{part[0]}_proj.bias" in shapes for part in ("query", "key", "value")}
    if gated:
        settings["hidden_act"] = "silu"
    more = (f"rotary positions of base {DINOV3_DEFAULTS['rope_theta']:g}", f"image size {settings['image_size']}")
    return _transformers(shapes, family, "dinov3_vit", settings, DINOV3_DEFAULTS, words, more)


def _tower(shapes: Shapes, family: str | None, heads: int | None) -> Recognised:
    """The vision towers of CLIP and SigLIP, alone or beside that of texts."""
    clip = "embeddings.class_embedding" in shapes
    if clip:
        family, defaults = choose(family, ("clip", "clip-quickgelu"), "the MLP's activation"), CLIP_DEFAULTS
    else:
        family, defaults = choose(family, ("siglip",)), SIGLIP_DEFAULTS
    width, channels, patch = patch_of(shapes, "embeddings.patch_embedding.weight")
    count, words = heads_of(width, width, heads)
    side, _ = side_of(shape_of(shapes, "embeddings.position_embedding.weight", 2)[0], (int(clip),))
    settings: dict[str, Any] = {
        "hidden_size": width,
        "num_hidden_layers": count_blocks(shapes, r"encoder\.layers\.(\d+)\."),
        "num_attention_heads": count,
        "intermediate_size": shape_of(shapes, "encoder.layers.0.mlp.fc1.weight", 2)[0],
        "num_channels": channels,
        "patch_size": patch,
        "image_size": side * patch,
    }
    if clip:
        settings["hidden_act"] = "quick_gelu" if family == "clip-quickgelu" else "gelu"
    kind = "clip_vision_model" if clip else "siglip_vision_model"
    return _transformers(shapes, family, kind, settings, defaults, words)


# The class that each kind of weights is for, with the tensor that shows it; the bare model is the last.
_CLASSES: dict[str, tuple[tuple[str, str], ...]] = {
    "vit": (("classifier.weight", "ViTForImageClassification"), ("", "ViTModel")),
    "deit": (
        ("cls_classifier.weight", "DeiTForImageClassificationWithTeacher"),
        ("classifier.weight", "DeiTForImageClassification"),
        ("", "DeiTModel"),
    ),
    "dinov2": (("classifier.weight", "Dinov2ForImageClassification"), ("", "Dinov2Model")),
    "dinov2_with_registers": (
        ("classifier.weight", "Dinov2WithRegistersForImageClassification"),
        ("", "Dinov2WithRegistersModel"),
    ),
    "dinov3_vit": (("", "DINOv3ViTModel"),),
    "clip_vision_model": (("", "CLIPVisionModel"),),
    "siglip_vision_model": (("classifier.weight", "SiglipForImageClassification"), ("", "SiglipVisionModel")),
}


def _transformers(
    shapes: Shapes,
    family: str,
    kind: str,
    settings: dict[str, Any],
    defaults: dict[str, Any],
    heads: str,
    more: tuple[str, ...] = (),
) -> Recognised:
    """A `config.json` as far as shapes tell it; where it is silent, the converter takes transformers' defaults."""
    head, name = next(pair for pair in _CLASSES[kind] if not pair[0] or pair[0] in shapes)
    settings = settings | {"model_type": kind, "architectures": [name]}
    if head:
        settings["num_labels"] = shape_of(shapes, head, 2)[0]
    activation = settings.get("hidden_act", defaults["hidden_act"])
    assumed = (heads, f"norm epsilon {defaults['layer_norm_eps']:g}", f"activation {activation}", *more)
    return Recognised(
        family=family,
        names="transformers'",
        convert=lambda tensors: convert_transformers(tensors, settings),
        assumed=tuple(word for word in assumed if word),
    )


# --- torchvision


def _torchvision(shapes: Shapes, family: str | None, heads: int | None) -> Recognised:
    family = choose(family, ("torchvision",))
    at = "encoder.layers.encoder_layer_0."
    width, _, patch = patch_of(shapes, "conv_proj.weight")
    count, words = heads_of(width, width, heads)
    side, _ = side_of(shape_of(shapes, "encoder.pos_embedding", 3)[1], (1,))
    first = at + ("mlp.linear_1.weight" if at + "mlp.linear_1.weight" in shapes else "mlp.0.weight")
    settings = {
        "patch_size": patch,
        "num_layers": count_blocks(shapes, r"encoder\.layers\.encoder_layer_(\d+)\."),
        "num_heads": count,
        "hidden_dim": width,
        "mlp_dim": shape_of(shapes, first, 2)[0],
        "image_size": side * patch,
        "num_classes": shapes.get("heads.head.weight", (0,))[0],
    }
    return Recognised(
        family=family,
        names="torchvision's",
        convert=lambda tensors: torchvision_vit(tensors, settings),
        assumed=tuple(word for word in (words, f"norm epsilon {FAMILIES[family].norm_eps:g}") if word),
    )


# Tensors that only one library names so, and the reader of its names.
_READERS: tuple[tuple[tuple[str, ...], Callable[[Shapes, str | None, int | None], Recognised]], ...] = (
    (MARKS, recognise_timm),
    ((_PATCHES, "encoder.layer.0.attention.attention.query.weight"), _encoder),
    (("embeddings.patch_embeddings.weight", "layer.0.attention.q_proj.weight"), _dinov3),
    (("embeddings.patch_embedding.weight", "encoder.layers.0.self_attn.q_proj.weight"), _tower),
    (("conv_proj.weight", "encoder.layers.encoder_layer_0.ln_1.weight"), _torchvision),
)
