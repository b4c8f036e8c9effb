"""Weights in Hugging Face's names -> weights in ours.

One pure function for each family: (state, settings) -> (`ViTConfig`, state). Every tensor of the source is taken
exactly once with the shape it must have, dropped by name with a reason, or reported. Names are those of the files
(`model.safetensors`), with or without the base model's prefix such as `vit.`; settings are the `config.json`, and where
it is silent `transformers`' own defaults hold. Dropouts are not read: they belong to training.

`convert_transformers` chooses the family. CLIP and SigLIP live in `from_clip.py`.

Shapes: D width, M hidden width of the MLP, R registers, p patch side, gh x gw the grid of the position table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from vitviz.config import ViTConfig
from vitviz.weights.from_clip import clip, siglip
from vitviz.weights.parts import State, finish, linear, norm, open_source, patches, stacked, within
from vitviz.weights.settings import Settings, labels
from vitviz.weights.source import ConvertError, Source

Converted = tuple[ViTConfig, State]

VIT_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
    "qkv_bias": True,
}
DINOV2_DEFAULTS: dict[str, Any] = {
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "num_channels": 3,
    "qkv_bias": True,
    "layerscale_value": 1.0,
    "use_swiglu_ffn": False,
    "num_register_tokens": 4,  # with registers only
}
DINOV3_DEFAULTS: dict[str, Any] = {
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "intermediate_size": 1536,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
    "rope_theta": 100.0,
    "query_bias": True,
    "key_bias": False,
    "value_bias": True,
    "proj_bias": True,
    "mlp_bias": True,
    "layerscale_value": 1.0,
    "use_gated_mlp": False,
    "num_register_tokens": 0,
}


def convert_transformers(state: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Converted:
    """Any supported model of Hugging Face's `transformers`: the family is that of `model_type`.

    Args:
        state: tensors as in `model.safetensors`.
        settings: the `config.json` beside it. `architectures` says which head there is; where it is absent, none.

    Returns:
        The config and the state dict for `ViT(config)`.

    Raises:
        ConvertError: if the family or a setting is not supported, or tensors are missing, misshaped or left over.
    """
    kind = settings.get("model_type")
    kind = kind if isinstance(kind, str) else None
    if kind in REFUSED:
        raise ConvertError(f"Weights of model_type {kind!r} are not supported: {REFUSED[kind]}.")
    if kind not in FAMILIES:
        raise ConvertError(f"Weights of model_type {kind!r} are not supported: expected one of {', '.join(FAMILIES)}.")
    return FAMILIES[kind](state, settings)


# --- ViT and DeiT


def vit(state: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Converted:
    """ViT, and what has its shape: Google's, DINO's, DeiT's without distillation (`ViTModel`).

    Dosovitskiy et al. 2021; Caron et al. 2021, "Emerging Properties in Self-Supervised Vision Transformers". With
    `ViTForImageClassification` the classifier reads the class token; without, the model returns that token.
    """
    said = Settings(settings, "ViT", VIT_DEFAULTS)
    architecture = said.architecture(("ViTModel", "ViTForImageClassification"))
    classes = len(labels(settings)) if architecture == "ViTForImageClassification" else 0
    config = _vit_config(said, settings, classes=classes)
    source, _ = open_source(state, "ViT", prefix="vit.")
    new = _vit_trunk(source, config)
    if classes:
        new |= linear(source, "head", "classifier", classes, config.width)
    return config, finish(source, new)


def deit(state: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Converted:
    """DeiT with its distillation token (`DeiTModel`).

    Touvron et al. 2021, "Training data-efficient image transformers". `DeiTForImageClassificationWithTeacher` has two
    classifiers, whose logits are averaged; `DeiTForImageClassification` has the class token's alone.
    """
    said = Settings(settings, "DeiT", VIT_DEFAULTS)
    both, one = "DeiTForImageClassificationWithTeacher", "DeiTForImageClassification"
    architecture = said.architecture(("DeiTModel", one, both))
    classes = 0 if architecture == "DeiTModel" else len(labels(settings))
    config = _vit_config(said, settings, classes=classes, distillation_token=True)
    source, _ = open_source(state, "DeiT", prefix="deit.")
    new = _vit_trunk(source, config)
    if classes and architecture == both:
        new |= linear(source, "head", "cls_classifier", classes, config.width)
        new |= linear(source, "head_dist", "distillation_classifier", classes, config.width)
    elif classes:
        # Our logits are the mean of two classifiers. Twice this one and a second that says nothing is exactly this one.
        head = linear(source, "head", "classifier", classes, config.width)
        new |= {name: 2 * tensor for name, tensor in head.items()}
        new |= {name.replace("head", "head_dist"): tensor.new_zeros(tensor.shape) for name, tensor in head.items()}
    return config, finish(source, new)


def _vit_config(said: Settings, settings: Mapping[str, Any], **more: Any) -> ViTConfig:
    patch = said.square("patch_size")
    return ViTConfig(
        image_size=said.image(patch, square=False),
        patch_size=patch,
        channels=said.whole("num_channels"),
        width=said.whole("hidden_size"),
        depth=said.whole("num_hidden_layers"),
        heads=said.whole("num_attention_heads"),
        head_width=settings.get("head_dim"),  # a file may have it; checked where it arrives
        mlp_width=said.whole("intermediate_size"),
        activation=said.activation(),
        position_antialias=False,
        qkv_bias=said.flag("qkv_bias"),
        norm_eps=said.number("layer_norm_eps"),
        **more,
    )


def _vit_trunk(source: Source, config: ViTConfig) -> State:
    """All but the classifier."""
    width, hidden, inner = config.width, config.hidden, config.heads * config.head_size
    _drop_training(source)
    # A dense layer with tanh on the class token, for tasks that fine-tune it. No classifier of these reads it.
    source.drop("pooler.dense.weight", "pooler.dense.bias")
    new = _embeddings(source, config)
    new |= norm(source, "norm", "layernorm", width)
    for index in range(config.depth):
        at = f"encoder.layer.{index}."
        block = stacked(source, "attn.qkv", _qkv(at), inner, width, (config.qkv_bias,) * 3)
        block |= linear(source, "attn.proj", at + "attention.output.dense", width, inner)
        block |= norm(source, "norm1", at + "layernorm_before", width)
        block |= norm(source, "norm2", at + "layernorm_after", width)
        block |= linear(source, "mlp.fc1", at + "intermediate.dense", hidden, width)
        block |= linear(source, "mlp.fc2", at + "output.dense", width, hidden)
        new |= within(f"blocks.{index}.", block)
    return new


def _embeddings(source: Source, config: ViTConfig) -> State:
    """Patches, prefix tokens and positions. Our prefix tokens have no position: theirs never changes, so it is added
    here once.
    """
    width, patch = config.width, config.patch_size
    rows, columns = config.learned_grid
    tokens = 1 + config.distillation_token
    table = source.take("embeddings.position_embeddings", 1, tokens + rows * columns, width)
    new = {
        "cls_token": source.take("embeddings.cls_token", 1, 1, width) + table[:, :1],
        "pos_embed": table[:, tokens:],
    }
    if config.distillation_token:
        new["dist_token"] = source.take("embeddings.distillation_token", 1, 1, width) + table[:, 1:2]
    shape = (width, config.channels, patch, patch)
    return new | patches(source, "embeddings.patch_embeddings.projection", shape)


def _qkv(at: str) -> tuple[str, ...]:
    return tuple(f"{at}attention.attention.{part}" for part in ("query", "key", "value"))


def _drop_training(source: Source) -> None:
    source.drop("embeddings.mask_token")  # stands in for hidden patches in training; no image ever meets it


# --- DINOv2 and DINOv3


def dinov2(state: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Converted:
    """DINOv2, with or without registers (`Dinov2Model`, `Dinov2WithRegistersModel`).

    Oquab et al. 2024, "DINOv2: Learning Robust Visual Features without Supervision"; Darcet et al. 2024, "Vision
    Transformers Need Registers". `transformers` with registers filters positions when it shrinks them and without
    does not; `position_antialias` follows it. The classifiers read the class token and the mean over patches.

    Args:
        state: tensors as in `model.safetensors`, with or without a prefix such as `dinov2.`.
        settings: the `config.json` beside it. Sizes have no defaults here: a guess would fit the wrong model.

    Returns:
        The config and the state dict for `ViT(config)`.

    Raises:
        ConvertError: if settings are missing or not supported, or tensors are missing, misshaped or left over.
    """
    said = Settings(settings, "DINOv2", DINOV2_DEFAULTS)
    registered = settings.get("model_type", "dinov2") == "dinov2_with_registers"
    stem = "Dinov2WithRegisters" if registered else "Dinov2"
    bare, classifier = stem + "Model", stem + "ForImageClassification"
    architecture = said.architecture((bare, classifier, stem + "Backbone"))
    config = _dinov2_config(said, settings, registered, architecture == classifier)
    width = config.width
    source, _ = open_source(state, "DINOv2", prefix="dinov2_with_registers." if registered else "dinov2.")
    _drop_training(source)
    new = _embeddings(source, config) | norm(source, "norm", "layernorm", width)
    if config.registers:
        new["reg_token"] = source.take("embeddings.register_tokens", 1, config.registers, width)
    for index in range(config.depth):
        new |= within(f"blocks.{index}.", _dinov2_block(source, f"encoder.layer.{index}.", config))
    if config.classes:
        new |= linear(source, "head", "classifier", config.classes, 2 * width)
    return config, finish(source, new)


def _dinov2_block(source: Source, at: str, config: ViTConfig) -> State:
    """One block, whose tensors are named `at` + ...; ours without the block's prefix."""
    width, hidden = config.width, config.hidden
    new = stacked(source, "attn.qkv", _qkv(at), width, width, (config.qkv_bias,) * 3)
    new |= linear(source, "attn.proj", at + "attention.output.dense", width, width)
    for half in "12":
        new[f"ls{half}.gamma"] = source.take(f"{at}layer_scale{half}.lambda1", width)
        new |= norm(source, "norm" + half, f"{at}norm{half}", width)
    gated = config.mlp == "swiglu"
    first, second = ("weights_in", "weights_out") if gated else ("fc1", "fc2")
    new |= linear(source, "mlp.fc1", f"{at}mlp.{first}", 2 * hidden if gated else hidden, width)
    return new | linear(source, "mlp.fc2", f"{at}mlp.{second}", width, hidden)


def _dinov2_config(said: Settings, settings: Mapping[str, Any], registered: bool, classifier: bool) -> ViTConfig:
    """The config that a `config.json` of DINOv2 describes."""
    said.need("hidden_size", "num_hidden_layers", "num_attention_heads", "mlp_ratio", "image_size", "patch_size")
    width, patch, gated = said.whole("hidden_size"), said.square("patch_size"), said.flag("use_swiglu_ffn")
    hidden = int(width * said.number("mlp_ratio"))
    more: dict[str, Any] = {"mlp": "swiglu"} if gated else {"activation": said.activation()}
    if registered:
        more["registers"] = said.whole("num_register_tokens", 0)
    return ViTConfig(
        image_size=said.image(patch),
        patch_size=patch,
        channels=said.whole("num_channels"),
        width=width,
        depth=said.whole("num_hidden_layers"),
        heads=said.whole("num_attention_heads"),
        # A gated MLP has three matrices instead of two: two thirds of the width, up to a multiple of 8.
        mlp_width=(int(hidden * 2 / 3) + 7) // 8 * 8 if gated else hidden,
        classes=len(labels(settings)) if classifier else 0,
        pooling="cls+mean" if classifier else "cls",
        position_antialias=registered,
        layer_scale=said.number("layerscale_value"),
        qkv_bias=said.flag("qkv_bias"),
        norm_eps=said.number("layer_norm_eps"),
        **more,
    )


def dinov3(state: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Converted:
    """DINOv3's Vision Transformers (`DINOv3ViTModel`): rotary positions, registers, keys without a bias.

    Siméoni et al. 2025, "DINOv3". Positions have no weights, so any grid is as exact as the native one.
    """
    said = Settings(settings, "DINOv3", DINOV3_DEFAULTS)
    said.architecture(("DINOv3ViTModel", "DINOv3ViTBackbone"))
    config = _dinov3_config(said)
    width, hidden, patch = config.width, config.hidden, config.patch_size
    source, names = open_source(state, "DINOv3")
    _drop_training(source)
    new = {"cls_token": source.take("embeddings.cls_token", 1, 1, width)}
    if config.registers or "embeddings.register_tokens" in names:  # without registers a tensor of shape (1, 0, D)
        new["reg_token"] = source.take("embeddings.register_tokens", 1, config.registers, width)
    new |= patches(source, "embeddings.patch_embeddings", (width, config.channels, patch, patch))
    new |= norm(source, "norm", "norm", width)
    biases = tuple(said.flag(f"{part}_bias") for part in ("query", "key", "value"))
    inside = "model." if any(name.startswith("model.layer.") for name in names) else ""  # names in memory, and in files
    for index in range(config.depth):
        at = f"{inside}layer.{index}."
        qkv = tuple(f"{at}attention.{part}_proj" for part in "qkv")
        block = stacked(source, "attn.qkv", qkv, width, width, biases)
        block |= linear(source, "attn.proj", at + "attention.o_proj", width, width, bias=said.flag("proj_bias"))
        block.setdefault("attn.proj.bias", new["norm.bias"].new_zeros(width))
        for half in "12":
            block[f"ls{half}.gamma"] = source.take(f"{at}layer_scale{half}.lambda1", width)
            block |= norm(source, "norm" + half, f"{at}norm{half}", width)
        first = ("gate_proj", "up_proj") if config.mlp == "swiglu" else ("up_proj",)
        parts = tuple(f"{at}mlp.{part}" for part in first)
        block |= stacked(source, "mlp.fc1", parts, hidden, width, (config.mlp_bias,) * len(parts))
        block |= linear(source, "mlp.fc2", at + "mlp.down_proj", width, hidden, bias=config.mlp_bias)
        new |= within(f"blocks.{index}.", block)
    if not config.registers:
        new.pop("reg_token", None)
    return config, finish(source, new)


def _dinov3_config(said: Settings) -> ViTConfig:
    """The config that a `config.json` of DINOv3 describes."""
    patch, gated = said.square("patch_size"), said.flag("use_gated_mlp")
    if gated and said.get("hidden_act") != "silu":
        raise said.refuse("hidden_act", "expected silu in a gated MLP")
    more: dict[str, Any] = {"mlp": "swiglu"} if gated else {"activation": said.activation()}
    return ViTConfig(
        image_size=said.image(patch, square=False),
        patch_size=patch,
        channels=said.whole("num_channels"),
        width=said.whole("hidden_size"),
        depth=said.whole("num_hidden_layers"),
        heads=said.whole("num_attention_heads"),
        mlp_width=said.whole("intermediate_size"),
        classes=0,
        registers=said.whole("num_register_tokens", 0),
        positions="rotary",
        rotary_base=said.number("rope_theta"),
        layer_scale=said.number("layerscale_value"),
        qkv_bias=any(said.flag(f"{part}_bias") for part in ("query", "key", "value")),
        mlp_bias=said.flag("mlp_bias"),
        norm_eps=said.number("layer_norm_eps"),
        **more,
    )


FAMILIES: dict[str, Callable[[Mapping[str, Tensor], Mapping[str, Any]], Converted]] = {
    "vit": vit,
    "deit": deit,
    "dinov2": dinov2,
    "dinov2_with_registers": dinov2,
    "dinov3_vit": dinov3,
    "clip": clip,
    "clip_vision_model": clip,
    "siglip": siglip,
    "siglip_vision_model": siglip,
}

_WINDOWS = "its attention stays inside windows, so no block has one attention matrix over the image"
_BIAS = "it adds a relative position bias to the attention logits, which the model does not have"
_CONVOLUTIONS = "it mixes convolutions with attention"
REFUSED: dict[str, str] = {
    "swin": _WINDOWS,
    "swinv2": _WINDOWS,
    "hiera": _WINDOWS,
    "maxvit": _WINDOWS,
    "beit": _BIAS,
    "data2vec-vision": _BIAS,
    "vit_hybrid": "its patches come from a ResNet",
    "vit_mae": "it hides three quarters of the patches; the encoders fine-tuned from it have model_type 'vit'",
    "siglip2": "it takes cut patches of any number with a mask; SigLIP 2 of a fixed size has model_type 'siglip'",
    "dinov3_convnext": "it is a convolutional network without attention",
    "levit": _CONVOLUTIONS,
    "cvt": _CONVOLUTIONS,
    "mobilevit": _CONVOLUTIONS,
    "mobilevitv2": _CONVOLUTIONS,
    "efficientformer": _CONVOLUTIONS,
    "timm_wrapper": "it is a timm model in another coat; convert it as one of timm",
}
