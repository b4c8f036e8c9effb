"""Convert models of Hugging Face's `transformers`: `config.json` -> `ViTConfig`, tensors by `naming`.

One function per family maps settings to a config and tensor names. Missing settings take `transformers`' defaults.
Types are checked, because the file may be untrusted. Dropout rates are not read, because only training uses them.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from vitviz.fields import describe_type, matches_type
from vitviz.model.config import ViTConfig
from vitviz.model.vit import Pretrained, ViT
from vitviz.weights import naming
from vitviz.weights.checks import ConvertError, assemble, checked_settings
from vitviz.weights.naming import VITDET, Naming

Converted = tuple[ViTConfig, Naming]

_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
}
VIT_DEFAULTS = _DEFAULTS | {"layer_norm_eps": 1e-12, "qkv_bias": True}
BEIT_DEFAULTS = _DEFAULTS | {"layer_norm_eps": 1e-12, "layer_scale_init_value": 0.1, "use_mean_pooling": True}
BEIT_TABLES = ("use_relative_position_bias", "use_shared_relative_position_bias")
BEIT_DEFAULTS |= dict.fromkeys(("use_absolute_position_embeddings", *BEIT_TABLES), False)
MSN_DEFAULTS = VIT_DEFAULTS | {"layer_norm_eps": 1e-6}
DINOV2_DEFAULTS: dict[str, Any] = {"hidden_act": "gelu", "layer_norm_eps": 1e-6, "num_channels": 3, "qkv_bias": True}
DINOV2_DEFAULTS |= {"layerscale_value": 1.0, "use_swiglu_ffn": False}
DINOV2_DEFAULTS |= {"num_register_tokens": 4}  # with registers only
DINOV3_DEFAULTS = _DEFAULTS | {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
DINOV3_DEFAULTS |= {"layer_norm_eps": 1e-5, "rope_theta": 100.0, "layerscale_value": 1.0, "num_register_tokens": 0}
DINOV3_DEFAULTS |= dict.fromkeys(("query_bias", "value_bias", "proj_bias", "mlp_bias"), True)
DINOV3_DEFAULTS |= {"key_bias": False, "use_gated_mlp": False}
CLIP_DEFAULTS = _DEFAULTS | {"patch_size": 32, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
SIGLIP_DEFAULTS = _DEFAULTS | {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6, "vision_use_head": True}

VIDEOMAE_DEFAULTS = _DEFAULTS | {"layer_norm_eps": 1e-12, "num_frames": 16, "tubelet_size": 2, "qv_bias": True}
VIDEOMAE_DEFAULTS |= {"use_mean_pooling": True}
VIVIT_DEFAULTS = {name: value for name, value in _DEFAULTS.items() if name != "patch_size"} | {"qkv_bias": True}
VIVIT_DEFAULTS |= {"layer_norm_eps": 1e-6, "num_frames": 32, "tubelet_size": [2, 16, 16], "hidden_act": "gelu_fast"}
YOLOS_DEFAULTS = VIT_DEFAULTS | {"image_size": [512, 864], "num_detection_tokens": 100}
YOLOS_DEFAULTS |= {"use_mid_position_embeddings": True}
DPT_DEFAULTS = VIT_DEFAULTS | {"image_size": 384, "is_hybrid": False, "backbone_config": None}
BLIP_DEFAULTS = _DEFAULTS | {"image_size": 384, "layer_norm_eps": 1e-5}
MLCD_DEFAULTS = _DEFAULTS | {"hidden_size": 1664, "num_hidden_layers": 48, "num_attention_heads": 16, "patch_size": 14}
MLCD_DEFAULTS |= {"intermediate_size": 8192, "image_size": 336, "layer_norm_eps": 1e-5, "num_key_value_groups": 1}
MLCD_DEFAULTS |= {"rope_parameters": {"rope_type": "axial", "rope_theta": 10_000.0}}
AIMV2_DEFAULTS = _DEFAULTS | {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 8, "patch_size": 14}
AIMV2_DEFAULTS |= {"intermediate_size": 2816, "layer_norm_eps": 1e-5, "rms_norm_eps": 1e-5, "hidden_act": "silu"}
AIMV2_DEFAULTS |= {"use_head": True, "is_native": False, "qkv_bias": False, "mlp_bias": False}
_BY_RATIO = {name: value for name, value in _DEFAULTS.items() if name != "intermediate_size"} | {"mlp_ratio": 4.0}
VITDET_DEFAULTS = _BY_RATIO | {"layer_norm_eps": 1e-6, "pretrain_image_size": 224, "window_size": 0}
VITDET_DEFAULTS |= {"window_block_indices": [], "residual_block_indices": [], "qkv_bias": True}
VITDET_DEFAULTS |= {"use_absolute_position_embeddings": True, "use_relative_position_embeddings": False}
MAX_BLOCKS = 1_000  # of SAM and ViTDet, whose blocks are numbered while reading the settings

ACTIVATIONS = {"gelu": "gelu", "gelu_python": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "quick_gelu": "quick_gelu"}
ACTIVATIONS |= {"gelu_fast": "gelu_tanh", "gelu_new": "gelu_tanh"}  # equal up to rounding
"""Hugging Face's names of the activations that `ViT` supports -> ours."""

GATES = {"silu": "swiglu", "swish": "swiglu", "relu": "reglu"}
"""Hugging Face's names of gates -> `ViTConfig.mlp`; those in `ACTIVATIONS` are "geglu"."""


class TypedSettings:
    """Settings by name, with checks of their types.

    Args:
        values: content of the `config.json`.
        family: name of the model family, for errors.
        defaults: `transformers`' defaults for missing settings.
    """

    def __init__(self, values: Mapping[str, Any], family: str, defaults: Mapping[str, Any]) -> None:
        self._values, self._family, self._defaults = values, family, defaults

    def get(self, name: str) -> Any:
        """Return the unchecked value, or the default.

        Raises:
            ConvertError: if the setting has neither.
        """
        if name not in self._defaults:
            self.need(name)
        return self._values[name] if name in self._values else self._defaults[name]

    def need(self, *names: str) -> None:
        """Check that these settings exist, for families without reliable defaults."""
        if missing := [name for name in names if name not in self._values]:
            raise ConvertError(
                f"Expected all {self._family} settings, got a file without {', '.join(missing)}. Fetch it again."
            )

    def states(self, name: str) -> bool:
        """Return whether the file has a value for a setting, other than null."""
        return self._values.get(name) is not None

    def typed(self, name: str, hint: Any) -> Any:
        """Return a value after checking its type; the caller checks its range."""
        value = self.get(name)
        if not matches_type(value, hint):
            raise self.refuse(name, describe_type(hint))
        return value

    def pair(self, name: str) -> tuple[int, int]:
        """Return (height, width) in pixels, from one whole number or two."""
        value = self.get(name)
        values = list(value) if isinstance(value, list | tuple) else [value, value]
        if not matches_type(values, tuple[int, int]) or min(values) < 1:
            raise self.refuse(name, "a whole number of pixels, or two of them")
        return values[0], values[1]

    def square(self, name: str) -> int:
        """Return the side of a square in pixels."""
        height, width = self.pair(name)
        if height != width:
            raise self.refuse(name, "a square, with one whole number as its side")
        return height

    def image(self, patch: int, *, square: bool = True) -> tuple[int, int]:
        """Return (height, width) of the model's grid in pixels.

        If patches do not fill the image (SigLIP with 384 pixels and patches of 14), transformers drops the remaining
        pixels at the right and at the bottom, and this size leaves them out too.
        """
        height, width = (self.square("image_size"),) * 2 if square else self.pair("image_size")
        if min(height, width) < patch:
            raise self.refuse("image_size", f"room for a patch of {patch} x {patch}")
        return height // patch * patch, width // patch * patch

    def activation(self) -> str:
        """Return our name for the MLP's activation."""
        activation = self.get("hidden_act")
        if not isinstance(activation, str) or activation not in ACTIVATIONS:
            raise self.refuse("hidden_act", f"one of {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[activation]

    def gated(self) -> dict[str, Any]:
        """Return the config fields of a gated MLP."""
        if gate := GATES.get(str(self.get("hidden_act"))):
            return {"mlp": gate}
        return {"mlp": "geglu", "activation": self.activation()}

    def architecture(self, allowed: Collection[str]) -> str:
        """Return the class of the weights, one of `allowed`; by default the first, the model without a head.

        Raises:
            ConvertError: for any other class, whose head may read the tokens differently.
        """
        names = self._values.get("architectures") or [next(iter(allowed))]
        if not isinstance(names, list | tuple) or len(names) != 1 or names[0] not in allowed:
            raise ConvertError(
                f"Expected {self._family} weights for one of {', '.join(allowed)}, got {names!r:.120}. Choose one."
            )
        return str(names[0])

    def refuse(self, name: str, expected: str) -> ConvertError:
        """Return the error for an unsupported setting."""
        return ConvertError(
            f"Expected {self._family} settings with {name} as {expected}, got {self.get(name)!r:.80}. Correct it."
        )


def labels(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the classes in the order of the logits; by default LABEL_0, ... as in `transformers`.

    Raises:
        ConvertError: if `id2label` does not number its names from 0.
    """
    names = settings.get("id2label")
    if names is None:
        count = settings.get("num_labels", 2)  # transformers' default
        if not matches_type(count, int) or not 0 <= count <= 10**6:
            raise ConvertError(f"Expected num_labels as a whole number, got {count!r:.80}. Correct config.json.")
        return tuple(f"LABEL_{index}" for index in range(count))
    try:
        by_index = {int(index): name for index, name in names.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ConvertError(f"Expected id2label from class numbers to names, got something else: {error}.") from error
    if sorted(by_index) != list(range(len(names))) or not all(isinstance(name, str) for name in by_index.values()):
        raise ConvertError(
            f"Expected id2label with the classes 0 to {len(names) - 1}, got others or no names. Correct config.json."
        )
    return tuple(by_index[index] for index in range(len(by_index)))


def is_classifier(settings: Mapping[str, Any]) -> bool:
    """Return whether the settings name a class with a classifier, of images or videos."""
    return any(f"For{kind}Classification" in str(settings.get("architectures")) for kind in ("Image", "Video"))


def fit_labels(settings: dict[str, Any], classes: int) -> dict[str, Any]:
    """Return the settings, without a classifier's class names if their number is not `classes`.

    Fine-tuning may replace the classifier and leave the old names in the settings.
    """
    if not is_classifier(settings) or len(labels(settings)) == classes:
        return settings
    return {**settings, "id2label": None, "num_labels": classes}


@checked_settings()
def convert_transformers(
    state: Mapping[str, Tensor],
    settings: Mapping[str, Any],
    about: Pretrained | None = None,
    *,
    where: str = "these weights",
) -> ViT:
    """Convert any supported Hugging Face `transformers` model: a copy in float32 and in eval mode.

    Args:
        state: tensors as in `model.safetensors`, with or without the base model's prefix such as `vit.`.
        settings: content of the `config.json`. `architectures` names the head; without it, the model has no head.
        about: labels and preprocessing.
        where: the file, for errors.

    Raises:
        ConvertError: if the family or a setting is not supported, or tensors do not belong to the family.
        CheckpointError: if tensors are missing, unexpected, of other shapes or not finite.
    """
    config, names = read_settings(settings)
    new = names.convert(state, config)
    bare = names is naming.BEIT and config.norms.pooled and not config.classes
    if bare and not {"norm.weight", "norm.bias"} & {*new}:
        config = replace(config, norms=replace(config.norms, final="none"))  # Data2Vec's model has no pooler by default
    return assemble(config, new, about, where=where)


def read_settings(settings: Mapping[str, Any]) -> Converted:
    """Return the config in these settings, and the names of its tensors.

    Raises:
        ConvertError: if the family or a setting is not supported.
    """
    kind = settings.get("model_type")
    kind = kind if isinstance(kind, str) else None
    if kind not in FAMILIES:
        why = REFUSED.get(kind or "", "it is not known")
        raise ConvertError(f"Expected one of {', '.join(FAMILIES)}, got model_type {kind!r}: {why}.")
    return FAMILIES[kind](settings)


def _config(checked: TypedSettings, *, square: bool = True, **more: Any) -> ViTConfig:
    """Return the config from settings that most families share; `ViTConfig` checks types and ranges."""
    patch = more.get("patch_size") or checked.square("patch_size")
    common: dict[str, Any] = {
        "image_size": more.get("image_size") or checked.image(patch, square=square),
        "patch_size": patch,
        "channels": checked.get("num_channels"),
        "width": checked.get("hidden_size"),
        "depth": checked.get("num_hidden_layers"),
        "heads": checked.get("num_attention_heads"),
    }
    common["norms"] = {"eps": checked.get("layer_norm_eps")} | more.pop("norms", {})
    common["table"] = {"antialias": False} | more.pop("table", {})
    if "mlp_width" not in more:
        common["mlp_width"] = checked.get("intermediate_size")
    if "mlp" not in more:
        common["activation"] = checked.activation()
    return ViTConfig(**common | more)


def _vit(settings: Mapping[str, Any]) -> Converted:
    """Read ViT and models like it: Google's, DINO, MSN, MAE's encoder, I-JEPA, and DeiT with and without distillation.

    Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words"; Caron et al. 2021, "Emerging Properties in Self-Supervised
    Vision Transformers"; Touvron et al. 2021, "Training data-efficient image transformers". The classifier reads the
    class token, and without a classifier the model returns this token. I-JEPA (Assran et al. 2023) has no class token
    and averages the patches. `DeiTForImageClassificationWithTeacher` averages the logits of two classifiers;
    `DeiTForImageClassification` has only the classifier of the class token.
    """
    stems = {"deit": "DeiT", "vit_msn": "ViTMSN", "vit_mae": "ViTMAE", "ijepa": "IJepa"}
    stem = stems.get(str(settings.get("model_type")), "ViT")
    classes = (f"{stem}Model", f"{stem}ForPreTraining" if stem == "ViTMAE" else f"{stem}ForImageClassification")
    checked = TypedSettings(settings, stem, MSN_DEFAULTS if stem == "ViTMSN" else VIT_DEFAULTS)
    kind = checked.architecture((*classes, f"{classes[1]}WithTeacher") if stem == "DeiT" else classes)
    bare = kind == classes[0] or stem == "ViTMAE"  # MAE's encoder is shown with all patches, without the decoder
    without_token: dict[str, Any] = {"class_token": False, "pooling": "mean"} if stem == "IJepa" else {}
    config = _config(
        checked,
        square=False,
        head_width=settings.get("head_dim"),  # optional; ViTConfig checks it
        qkv_bias=checked.get("qkv_bias"),
        classes=0 if bare else len(labels(settings)),
        distillation_token=stem == "DeiT",
        **without_token,
    )
    return config, naming.DEIT if stem == "DeiT" else naming.VIT


def _beit(settings: Mapping[str, Any]) -> Converted:
    """Read BEiT and Data2Vec, with relative position biases in each block, or shared by all blocks, or without.

    Bao et al. 2022, "BEiT: BERT Pre-Training of Image Transformers"; Baevski et al. 2022, "data2vec". The classifier
    reads the mean over patches after a norm, or the class token.
    """
    stem = {"beit": "Beit"}.get(str(settings.get("model_type")), "Data2VecVision")
    checked = TypedSettings(settings, stem, BEIT_DEFAULTS)
    classified = checked.architecture((f"{stem}Model", f"{stem}ForImageClassification")) != f"{stem}Model"
    mean, scale = checked.typed("use_mean_pooling", bool), checked.typed("layer_scale_init_value", float)
    config = _config(
        checked,
        square=False,
        classes=len(labels(settings)) if classified else 0,
        pooling="mean" if mean else "cls",
        norms={"final": "pooled" if mean else "tokens"},
        positions="learned" if checked.typed("use_absolute_position_embeddings", bool) else "none",
        relative_bias=any(checked.typed(name, bool) for name in BEIT_TABLES),
        layer_scale=scale if scale > 0 else None,
    )
    return config, naming.BEIT


def _dinov2(settings: Mapping[str, Any]) -> Converted:
    """Read DINOv2, with or without registers. Sizes have no defaults, because a default may belong to another model.

    Oquab et al. 2024, "DINOv2: Learning Robust Visual Features without Supervision"; Darcet et al. 2024, "Vision
    Transformers Need Registers". When downscaling positions, `transformers` antialiases only in models with registers,
    and `PositionTable.antialias` does the same. The classifiers read the class token and the mean over patches.
    """
    checked = TypedSettings(settings, "DINOv2", DINOV2_DEFAULTS)
    registered = settings.get("model_type") == "dinov2_with_registers"
    stem = "Dinov2WithRegisters" if registered else "Dinov2"
    classifier = stem + "ForImageClassification"
    classified = checked.architecture((stem + "Model", classifier, stem + "Backbone")) == classifier
    checked.need("hidden_size", "num_hidden_layers", "num_attention_heads", "mlp_ratio", "image_size", "patch_size")
    hidden = int(checked.typed("hidden_size", int) * checked.typed("mlp_ratio", float))
    gated = checked.typed("use_swiglu_ffn", bool)
    more: dict[str, Any] = {"mlp": "swiglu"} if gated else {}
    config = _config(
        checked,
        # A gated MLP has three matrices instead of two, so its width is two thirds, rounded up to a multiple of 8.
        mlp_width=(int(hidden * 2 / 3) + 7) // 8 * 8 if gated else hidden,
        classes=len(labels(settings)) if classified else 0,
        pooling="cls+mean" if classified else "cls",
        registers=checked.get("num_register_tokens") if registered else 0,
        table={"antialias": registered},
        layer_scale=checked.get("layerscale_value"),
        qkv_bias=checked.get("qkv_bias"),
        **more,
    )
    return config, naming.DINOV2


def _dinov3(settings: Mapping[str, Any]) -> Converted:
    """Read DINOv3's Vision Transformers: rotary positions, registers, keys without a bias.

    Siméoni et al. 2025, "DINOv3". Positions have no weights, so no grid needs interpolation.
    """
    checked = TypedSettings(settings, "DINOv3", DINOV3_DEFAULTS)
    checked.architecture(("DINOv3ViTModel", "DINOv3ViTBackbone"))
    gated = checked.typed("use_gated_mlp", bool)
    maps = {"query_bias": "q_proj", "key_bias": "k_proj", "value_bias": "v_proj", "proj_bias": "o_proj"}
    unbiased = {name for setting, name in maps.items() if not checked.typed(setting, bool)}
    config = _config(
        checked,
        square=False,
        classes=0,
        registers=checked.get("num_register_tokens"),
        positions="rotary",
        table={"antialias": True},
        rotary={"base": checked.get("rope_theta")},
        layer_scale=checked.get("layerscale_value"),
        qkv_bias=not {"q_proj", "k_proj", "v_proj"} <= unbiased,
        mlp_bias=checked.get("mlp_bias"),
        **(checked.gated() if gated else {}),
    )
    return config, naming.DINOV3.without_biases(f"layer.#.attention.{name}" for name in unbiased)


def _clip(settings: Mapping[str, Any]) -> Converted:
    """Read the vision tower of CLIP or a related model, with or without its projection, or inside a `CLIPModel`.

    Radford et al. 2021, "Learning Transferable Visual Models From Natural Language Supervision". The model returns the
    class token after the final norm, before the projection into the text space. `CLIPForImageClassification` reads the
    mean over patches without that norm.
    """
    stem = CLIPS[str(settings.get("model_type")).removesuffix("_vision_model")]
    classifier = f"{stem}ForImageClassification"
    alone = (f"{stem}VisionModel", f"{stem}VisionModelWithProjection", classifier)
    checked, kind = _tower(settings, stem, alone, CLIP_DEFAULTS)
    final = "none" if kind == classifier else "pooled"
    common: dict[str, Any] = {"norms": {"pre": True, "final": final}, "patch_bias": False}
    if kind == classifier:
        config = _config(checked, classes=len(labels(settings)), pooling="mean", **common)
        return config, naming.CLIP_CLASSIFIER
    return _config(checked, classes=0, **common), naming.CLIP


CLIPS = {"clip": "CLIP", "metaclip_2": "MetaClip2", "chinese_clip": "ChineseCLIP", "altclip": "AltCLIP"}
"""Families with CLIP's vision tower: model_type -> prefix of their classes' names."""


WITH_TEXTS = {"clip": "CLIPModel", "siglip": "SiglipModel"}
"""model_type -> class of a model with both towers, for images and texts."""


def has_text_tower(settings: Mapping[str, Any]) -> bool:
    """Return whether a `config.json` describes a model with a text tower that vitviz can load."""
    whole = WITH_TEXTS.get(str(settings.get("model_type")))
    return whole is not None and (settings.get("architectures") or [whole]) == [whole]


def _siglip(settings: Mapping[str, Any]) -> Converted:
    """Read SigLIP's vision tower, alone or inside a `SiglipModel`, and its classifier.

    Zhai et al. 2023, "Sigmoid Loss for Language Image Pre-Training". Without a class token, a learned query pools the
    patches. `SiglipForImageClassification` reads their mean instead.
    """
    flexible = str(settings.get("model_type")).startswith("siglip2")
    stem = "Siglip2" if flexible else "Siglip"
    classifier = f"{stem}ForImageClassification"
    defaults = SIGLIP_DEFAULTS | {"num_patches": 256}
    checked, kind = _tower(settings, "SigLIP", (f"{stem}VisionModel", classifier), defaults)
    mean = kind == classifier
    if not mean and not checked.typed("vision_use_head", bool):
        raise checked.refuse("vision_use_head", "true: without it the model has no output for the image")
    classes = len(labels(settings)) if mean else 0
    more: dict[str, Any] = {"classes": classes, "class_token": False, "pooling": "mean" if mean else "attention"}
    if flexible:
        side = math.isqrt(checked.typed("num_patches", int)) * checked.square("patch_size")
        more |= {"image_size": (side, side), "table": {"mode": "bilinear", "antialias": True}}
        if checked.get("num_channels") != 3:
            raise checked.refuse("num_channels", "3")
        return _config(checked, **more), naming.SIGLIP2_CLASSIFIER if mean else naming.SIGLIP2
    return _config(checked, **more), naming.SIGLIP_CLASSIFIER if mean else naming.SIGLIP


def _yolos(settings: Mapping[str, Any]) -> Converted:
    """Read YOLOS, whose detection tokens are shown as registers in front of the patches.

    Fang et al. 2021, "You Only Look at One Sequence". The detection heads are left out.
    """
    checked = TypedSettings(settings, "YOLOS", YOLOS_DEFAULTS)
    checked.architecture(("YolosModel", "YolosForObjectDetection"))
    config = _config(
        checked,
        square=False,
        classes=0,
        registers=checked.typed("num_detection_tokens", int),
        qkv_bias=checked.get("qkv_bias"),
        table={"between": checked.typed("use_mid_position_embeddings", bool)},
    )
    return config, naming.YOLOS


def _videomae(settings: Mapping[str, Any]) -> Converted:
    """Read VideoMAE, whose tubes of frames are patches; the pictures of its tubes are below one another in the input.

    Tong et al. 2022, "VideoMAE". The classifier reads the mean over patches after a norm. The decoder is left out, and
    the fixed positions become a table.
    """
    classifier = "VideoMAEForVideoClassification"
    checked = TypedSettings(settings, "VideoMAE", VIDEOMAE_DEFAULTS)
    classified = checked.architecture(("VideoMAEModel", classifier, "VideoMAEForPreTraining")) == classifier
    mean = checked.typed("use_mean_pooling", bool)
    if classified and not mean:
        raise checked.refuse("use_mean_pooling", "true: else the classifier reads the first patch")
    config = _video(
        checked,
        (checked.typed("tubelet_size", int), checked.square("patch_size")),
        class_token=False,
        pooling="mean",
        norms={
            "final": "pooled" if classified else "none" if mean else "tokens",
            "final_eps": 1e-5 if classified else None,  # not in the settings
        },
        qkv_bias=checked.get("qv_bias"),
        classes=len(labels(settings)) if classified else 0,
    )
    return config, naming.VIDEOMAE


def _vivit(settings: Mapping[str, Any]) -> Converted:
    """Read ViViT with attention between all tubes, whose classifier reads the class token.

    Arnab et al. 2021, "ViViT: A Video Vision Transformer", model 1.
    """
    checked = TypedSettings(settings, "ViViT", VIVIT_DEFAULTS)
    classified = checked.architecture(("VivitModel", "VivitForVideoClassification")) != "VivitModel"
    tube = checked.typed("tubelet_size", tuple[int, int, int] | list[int])
    if len(tube) != 3 or tube[1] != tube[2]:
        raise checked.refuse("tubelet_size", "frames, and two equal sides in pixels")
    classes = len(labels(settings)) if classified else 0
    return _video(checked, (tube[0], tube[1]), qkv_bias=checked.get("qkv_bias"), classes=classes), naming.VIVIT


def _video(checked: TypedSettings, tube: tuple[int, int], **more: Any) -> ViTConfig:
    """Return the config of a video model with tubes of (frames, pixels)."""
    length, patch = tube
    count = checked.typed("num_frames", int)
    if min(length, patch, count) < 1 or count % length:
        raise checked.refuse("num_frames", f"a multiple of {length} frames, the length of a tube")
    height, width = checked.image(patch, square=False)
    return _config(
        checked,
        patch_size=patch,
        image_size=(count // length * height, width),
        frames=count // length,
        channels=length * checked.typed("num_channels", int),
        **more,
    )


def _dpt(settings: Mapping[str, Any]) -> Converted:
    """Read DPT's encoder: a ViT whose positions are interpolated linearly; its decoder is left out.

    Ranftl et al. 2021, "Vision Transformers for Dense Prediction".
    """
    checked = TypedSettings(settings, "DPT", DPT_DEFAULTS)
    checked.architecture(("DPTModel", "DPTForDepthEstimation", "DPTForSemanticSegmentation"))
    if checked.typed("is_hybrid", bool) or checked.get("backbone_config") is not None:
        raise checked.refuse("is_hybrid", "false and no backbone_config, because its patches come from another network")
    return _config(checked, classes=0, qkv_bias=checked.get("qkv_bias"), table={"mode": "bilinear"}), naming.DPT


def _blip(settings: Mapping[str, Any]) -> Converted:
    """Read BLIP's vision encoder. Its features are the class token after the final norm, which the text model reads.

    Li et al. 2022, "BLIP". transformers' `pooler_output` applies the final norm twice.
    """
    heads = ("ForConditionalGeneration", "ForQuestionAnswering", "ForImageTextRetrieval")
    alone = ("BlipVisionModel", *(f"Blip{head}" for head in heads))
    checked, _ = _tower(settings, "BLIP", alone, BLIP_DEFAULTS)
    return _config(checked, classes=0), naming.BLIP


def _mlcd(settings: Mapping[str, Any]) -> Converted:
    """Read MLCD's vision tower: CLIP's with rotary positions, which also rotate the class token by a learned angle.

    An et al. 2024, "Multi-label Cluster Discrimination for Visual Representation Learning".
    """
    checked = TypedSettings(settings, "MLCD", MLCD_DEFAULTS)
    checked.architecture(("MLCDVisionModel",))
    if checked.get("num_key_value_groups") != 1:
        raise checked.refuse("num_key_value_groups", "1")
    rope = checked.typed("rope_parameters", dict)
    if rope.get("rope_type", "axial") != "axial":
        raise checked.refuse("rope_parameters", "axial")
    config = _config(
        checked,
        classes=0,
        norms={"pre": True, "final": "pooled"},
        patch_bias=False,
        positions="rotary",
        rotary={"places": "index", "class_token": True, "base": rope.get("rope_theta", 10_000.0)},
    )
    return config, naming.MLCD


def _aimv2(settings: Mapping[str, Any]) -> Converted:
    """Read AIMv2's vision tower with its attention pooling, which has no MLP.

    Fini et al. 2024, "Multimodal Autoregressive Pre-training of Large Vision Encoders".
    """
    checked, _ = _tower(settings, "AIMv2", ("Aimv2VisionModel",), AIMV2_DEFAULTS)
    for name, needed in {"is_native": False, "use_head": True}.items():
        if checked.get(name) != needed:
            raise checked.refuse(name, str(needed).lower())
    config = _config(
        checked,
        classes=0,
        class_token=False,
        pooling="attention",
        pool={"mlp_width": 0},
        norms={"kind": "rms", "patch": True, "eps": checked.get("rms_norm_eps")},
        qkv_bias=checked.get("qkv_bias"),
        mlp_bias=checked.get("mlp_bias"),
        **checked.gated(),
    )
    return config, naming.AIMV2


def _tower(
    settings: Mapping[str, Any], family: str, alone: tuple[str, ...], defaults: Mapping[str, Any]
) -> tuple[TypedSettings, str]:
    """Return the settings of the vision tower, and the class of the weights; `alone` are classes without a text tower.

    Older files also have the tower's settings under a second name, which has priority.
    """
    if str(settings.get("model_type")).endswith("_vision_model"):
        return TypedSettings(settings, family, defaults), TypedSettings(settings, family, {}).architecture(alone)
    kind = TypedSettings(settings, family, {}).architecture((alone[0].replace("Vision", ""), *alone))
    names = ("vision_config_dict", "vision_config")
    tower: Any = next((settings[name] for name in names if settings.get(name) is not None), {})
    if not isinstance(tower, Mapping):
        raise ConvertError(
            f"Expected {family} settings with vision_config as an object, got {tower!r:.80}. Fetch config.json again."
        )
    return TypedSettings(tower, family, defaults), kind


def _vitdet(settings: Mapping[str, Any]) -> Converted:
    """Read ViTDet's encoder, without convolutions between its blocks.

    Li et al. 2022, "Exploring Plain Vision Transformer Backbones for Object Detection". The features are the mean over
    patches. Only without windows and relative positions is it a plain Vision Transformer.
    """
    checked = TypedSettings(settings, "ViTDet", VITDET_DEFAULTS)
    checked.architecture(("VitDetModel", "VitDetBackbone"))
    if checked.typed("residual_block_indices", list[int] | tuple[int, ...]):
        raise checked.refuse("residual_block_indices", "empty: convolutions between blocks are not supported")
    learned = checked.typed("use_absolute_position_embeddings", bool)
    side = checked.square("pretrain_image_size") // checked.square("patch_size")
    more: dict[str, Any] = {
        "mlp_width": _by_ratio(checked),
        "positions": "learned" if learned else "none",
        "table": {"grid": (side, side) if learned else None},
    }
    listed = checked.typed("window_block_indices", list[int] | tuple[int, ...])
    if listed and checked.typed("window_size", int) > 0:
        raise ConvertError(f"Expected a model with attention over all tokens, got ViTDet: {_WINDOWS}.")
    if checked.typed("use_relative_position_embeddings", bool):
        raise checked.refuse("use_relative_position_embeddings", "false")
    more |= {"qkv_bias": checked.get("qkv_bias"), "norms": {"final": "none"}, "class_token": False, "pooling": "mean"}
    return _config(checked, square=False, classes=0, **more), VITDET


def _by_ratio(checked: TypedSettings) -> int:
    return int(checked.typed("hidden_size", int) * checked.typed("mlp_ratio", float))


FAMILIES: dict[str, Callable[[Mapping[str, Any]], Converted]] = {
    "vit": _vit,
    "deit": _vit,
    "beit": _beit,
    "data2vec-vision": _beit,
    "dinov2": _dinov2,
    "dinov2_with_registers": _dinov2,
    "dinov3_vit": _dinov3,
    "vit_msn": _vit,
    "vit_mae": _vit,
    "ijepa": _vit,
    **{f"{kind}_vision_model": _clip for kind in CLIPS},
    **dict.fromkeys(("clip", "metaclip_2", "chinese_clip"), _clip),
    **dict.fromkeys(("siglip", "siglip_vision_model", "siglip2", "siglip2_vision_model"), _siglip),
    "yolos": _yolos,
    "videomae": _videomae,
    "vivit": _vivit,
    "dpt": _dpt,
    **dict.fromkeys(("blip", "blip_vision_model"), _blip),
    **dict.fromkeys(("mlcd", "mlcd_vision_model"), _mlcd),
    **dict.fromkeys(("aimv2", "aimv2_vision_model"), _aimv2),
    "vitdet": _vitdet,
}

_WINDOWS = "its attention stays inside windows, so no block has one attention matrix over the image"
_CONVOLUTIONS = "it mixes convolutions with attention"
_LANGUAGE = "it is a language model with an image encoder"
REFUSED: dict[str, str] = {
    **dict.fromkeys(("swin", "swinv2", "hiera", "maxvit"), _WINDOWS),
    **dict.fromkeys(("sam", "sam_vision_model", "sam_hq", "sam_hq_vision_model"), _WINDOWS),
    **dict.fromkeys(("levit", "cvt", "mobilevit", "mobilevitv2", "efficientformer"), _CONVOLUTIONS),
    **dict.fromkeys(("cohere2_vision", "llama4", "shieldgemma2"), _LANGUAGE),
    **dict.fromkeys(("donut-swin", "swin2sr"), "of Swin, only swin and swinv2 open"),
    "dinat": "each of its patches attends to a neighbourhood of its own",
    "pixio": "its features are the mean over several class tokens",
    "timesformer": "its attention over space and its attention over time are separate",
    "tipsv2_vision_model": "it is a DINOv2 with two class tokens, whose names are not known yet",
    "altclip": "only its vision tower is supported; save it alone, model.vision_model.save_pretrained(folder)",
    "vit_hybrid": "its patches come from a ResNet",
    "dinov3_convnext": "it is a convolutional network without attention",
    "timm_wrapper": "it wraps a timm model; load its timm_model in memory",
}
