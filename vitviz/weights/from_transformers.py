"""Convert models of Hugging Face's `transformers`: `config.json` -> `ViTConfig`, tensors by `naming`.

The table `FAMILIES` says how settings become a config and names of tensors. Missing settings take `transformers`'
defaults. Types are checked, because the file may be untrusted. Dropout rates are not
read, because only training uses them.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from vitviz.fields import describe_type, matches_type
from vitviz.model.config import ViTConfig
from vitviz.model.vit import Pretrained, ViT
from vitviz.weights import naming
from vitviz.weights.checks import ConvertError, assemble, checked_settings
from vitviz.weights.naming import Naming
from vitviz.weights.shapes import merge_fields

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
TIPSV2_DEFAULTS = DINOV2_DEFAULTS | {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
TIPSV2_DEFAULTS |= {"image_size": 448, "patch_size": 14, "mlp_ratio": 4, "num_register_tokens": 1}
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
    return family_of(settings).read(settings)


def family_of(settings: Mapping[str, Any]) -> "Family":
    """Return the family of models with these settings.

    Raises:
        ConvertError: if it is not supported.
    """
    kind = settings.get("model_type")
    kind = kind if isinstance(kind, str) else None
    if kind not in FAMILIES:
        why = REFUSED.get(kind or "", "it is not known")
        raise ConvertError(f"Expected one of {', '.join(FAMILIES)}, got model_type {kind!r}: {why}.")
    return FAMILIES[kind]


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


Fields = dict[str, Any]


def _get(name: str, hint: Any = None) -> Callable[[TypedSettings], Any]:
    """Return a function that reads a setting, and checks its type if there is a hint."""
    return lambda checked: checked.get(name) if hint is None else checked.typed(name, hint)


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of models: which classes open, and how their settings become a config and the names of tensors.

    Args:
        name: for messages.
        models: classes that open without a classifier, the class without a head first.
        classifiers: classes that open with their classifier.
        defaults: `transformers`' defaults for missing settings.
        naming: names of the tensors; also those of classifiers, unless `classifier_naming` is given.
        needed: settings that have no reliable default.
        whole: the class with a text tower, whose settings have those of the vision tower in `vision_config`.
        square: whether images must be square.
        fields: config fields that the settings do not change, or functions of the settings.
        of_classifiers, of_models: the same, only for models with or without a classifier.
        refused: settings that must have a value, with what to expect in the error.
        computed: function of the settings that returns further config fields.
        biases: settings that say whether a linear map has a bias -> its tensor.
    """

    name: str
    models: tuple[str, ...]
    classifiers: tuple[str, ...] = ()
    defaults: Mapping[str, Any]
    naming: Naming
    classifier_naming: Naming | None = None
    needed: tuple[str, ...] = ()
    whole: str = ""
    square: bool = True
    fields: Fields = field(default_factory=dict)
    of_classifiers: Fields = field(default_factory=dict)
    of_models: Fields = field(default_factory=dict)
    refused: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    computed: Callable[[TypedSettings], Fields] = lambda _: {}
    biases: Mapping[str, str] = field(default_factory=dict)

    def read(self, settings: Mapping[str, Any]) -> Converted:
        """Return the config in these settings, and the names of the tensors."""
        checked, architecture = self._open(settings)
        checked.need(*self.needed)
        classified = architecture in self.classifiers
        for name, (value, expected) in self.refused.items():
            if checked.get(name) != value:
                raise checked.refuse(name, expected)
        parts = self.fields, self.of_classifiers if classified else self.of_models, self.computed(checked)
        classes = {"classes": len(labels(settings)) if classified else 0}
        more = merge_fields(classes, *(_resolved(part, checked) for part in parts))
        unbiased = [tensor for setting, tensor in self.biases.items() if not checked.typed(setting, bool)]
        names = (classified and self.classifier_naming) or self.naming
        return _config(checked, square=self.square, **more), names.without_biases(unbiased) if unbiased else names

    def _open(self, settings: Mapping[str, Any]) -> tuple[TypedSettings, str]:
        """Return the settings of the model or its vision tower, and the class of the weights.

        Older files also have the tower's settings under a second name, which has priority.
        """
        own = TypedSettings(settings, self.name, self.defaults)
        allowed = (*self.models, *self.classifiers)
        if not self.whole or str(settings.get("model_type")).endswith("_vision_model"):
            return own, own.architecture(allowed)
        architecture = own.architecture((self.whole, *allowed))
        names = ("vision_config_dict", "vision_config")
        tower: Any = next((settings[name] for name in names if settings.get(name) is not None), {})
        if not isinstance(tower, Mapping):
            raise ConvertError(
                f"Expected {self.name} settings with vision_config as an object, got {tower!r:.80}. Fetch config.json "
                "again."
            )
        return TypedSettings(tower, self.name, self.defaults), architecture


def _resolved(fields: Fields, checked: TypedSettings) -> Fields:
    """Return config fields with the values of functions of the settings."""
    return {
        name: _resolved(value, checked) if isinstance(value, dict) else value(checked) if callable(value) else value
        for name, value in fields.items()
    }


def _beit(checked: TypedSettings) -> Fields:
    mean, scale = checked.typed("use_mean_pooling", bool), checked.typed("layer_scale_init_value", float)
    return {
        "pooling": "mean" if mean else "cls",
        "norms": {"final": "pooled" if mean else "tokens"},
        "positions": "learned" if checked.typed("use_absolute_position_embeddings", bool) else "none",
        "relative_bias": any(checked.typed(name, bool) for name in BEIT_TABLES),
        "layer_scale": scale if scale > 0 else None,
    }


def _dinov2(checked: TypedSettings) -> Fields:
    hidden, gated = _by_ratio(checked), checked.typed("use_swiglu_ffn", bool)
    # A gated MLP has three matrices instead of two, so its width is two thirds, rounded up to a multiple of 8.
    return {"mlp_width": (int(hidden * 2 / 3) + 7) // 8 * 8, "mlp": "swiglu"} if gated else {"mlp_width": hidden}


def _dinov3(checked: TypedSettings) -> Fields:
    fields = checked.gated() if checked.typed("use_gated_mlp", bool) else {}
    biases = [checked.typed(name, bool) for name in ("query_bias", "key_bias", "value_bias")]
    return fields | {"qkv_bias": any(biases)}


def _learned_query(checked: TypedSettings) -> str:
    if not checked.typed("vision_use_head", bool):
        raise checked.refuse("vision_use_head", "true: without it the model has no output for the image")
    return "attention"


def _siglip2(checked: TypedSettings) -> Fields:
    side = math.isqrt(checked.typed("num_patches", int)) * checked.square("patch_size")
    return {"image_size": (side, side)}


def _videomae(checked: TypedSettings) -> Fields:
    return _tubes(checked, (checked.typed("tubelet_size", int), checked.square("patch_size")))


def _norms_of_classifier(checked: TypedSettings) -> Fields:
    if not checked.typed("use_mean_pooling", bool):
        raise checked.refuse("use_mean_pooling", "true: else the classifier reads the first patch")
    return {"final": "pooled", "final_eps": 1e-5}


def _vivit(checked: TypedSettings) -> Fields:
    tube = checked.typed("tubelet_size", tuple[int, int, int] | list[int])
    if len(tube) != 3 or tube[1] != tube[2]:
        raise checked.refuse("tubelet_size", "frames, and two equal sides in pixels")
    return _tubes(checked, (tube[0], tube[1]))


def _tubes(checked: TypedSettings, tube: tuple[int, int]) -> Fields:
    """Return the config fields of a video model with tubes of (frames, pixels)."""
    length, patch = tube
    count = checked.typed("num_frames", int)
    if min(length, patch, count) < 1 or count % length:
        raise checked.refuse("num_frames", f"a multiple of {length} frames, the length of a tube")
    height, width = checked.image(patch, square=False)
    channels = length * checked.typed("num_channels", int)
    size = (count // length * height, width)
    return {"patch_size": patch, "image_size": size, "frames": count // length, "channels": channels}


def _mlcd(checked: TypedSettings) -> Fields:
    rope = checked.typed("rope_parameters", dict)
    if rope.get("rope_type", "axial") != "axial":
        raise checked.refuse("rope_parameters", "axial")
    return {"rotary": {"places": "index", "class_token": True, "base": rope.get("rope_theta", 10_000.0)}}


def _by_ratio(checked: TypedSettings) -> int:
    return int(checked.typed("hidden_size", int) * checked.typed("mlp_ratio", float))


CLIPS = {"clip": "CLIP", "metaclip_2": "MetaClip2", "chinese_clip": "ChineseCLIP", "altclip": "AltCLIP"}
"""Families with CLIP's vision tower: model_type -> prefix of their classes' names."""


WITH_TEXTS = {"clip": "CLIPModel", "siglip": "SiglipModel"}
"""model_type -> class of a model with both towers, for images and texts."""


def has_text_tower(settings: Mapping[str, Any]) -> bool:
    """Return whether a `config.json` describes a model with a text tower that vitviz can load."""
    whole = WITH_TEXTS.get(str(settings.get("model_type")))
    return whole is not None and (settings.get("architectures") or [whole]) == [whole]


_MEAN: Fields = {"class_token": False, "pooling": "mean"}
_QKV: Fields = {"qkv_bias": _get("qkv_bias")}
_SCALE: Fields = {"layer_scale": _get("layerscale_value")}
_IMAGES = "ForImageClassification"
# Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words"; Caron et al. 2021 (DINO). The classifier reads the class
# token.
_VIT = Family(
    name="ViT", models=("ViTModel",), classifiers=(f"ViT{_IMAGES}",), defaults=VIT_DEFAULTS | {"head_dim": None},
    naming=naming.VIT, square=False, fields=_QKV | {"head_width": _get("head_dim")},
)  # fmt: skip
# Bao et al. 2022, "BEiT"; Baevski et al. 2022, "data2vec": relative position biases in each block, or shared by all
# blocks, or none. The classifier reads the mean over patches after a norm, or the class token.
_BEIT = Family(
    name="Beit", models=("BeitModel",), classifiers=(f"Beit{_IMAGES}",), defaults=BEIT_DEFAULTS, naming=naming.BEIT,
    square=False, computed=_beit,
)  # fmt: skip
# Oquab et al. 2024, "DINOv2: Learning Robust Visual Features without Supervision". Its sizes have no defaults, because
# a default may belong to another model. The classifier reads the class token and the mean over patches.
_DINOV2 = Family(
    name="DINOv2", models=("Dinov2Model", "Dinov2Backbone"), classifiers=(f"Dinov2{_IMAGES}",),
    defaults=DINOV2_DEFAULTS,
    needed=("hidden_size", "num_hidden_layers", "num_attention_heads", "mlp_ratio", "image_size", "patch_size"),
    naming=naming.DINOV2, fields=_QKV | _SCALE, of_classifiers={"pooling": "cls+mean"}, computed=_dinov2,
)  # fmt: skip
# Zhai et al. 2023, "Sigmoid Loss for Language Image Pre-Training". A learned query pools the patches; the classifier
# reads their mean instead.
_SIGLIP = Family(
    name="SigLIP", models=("SiglipVisionModel",), classifiers=(f"Siglip{_IMAGES}",), whole="SiglipModel",
    defaults=SIGLIP_DEFAULTS | {"num_patches": 256}, naming=naming.SIGLIP, classifier_naming=naming.SIGLIP_CLASSIFIER,
    fields={"class_token": False}, of_models={"pooling": _learned_query}, of_classifiers={"pooling": "mean"},
)  # fmt: skip
_SIGLIP2 = replace(
    _SIGLIP, models=("Siglip2VisionModel",), classifiers=(f"Siglip2{_IMAGES}",), whole="Siglip2Model",
    naming=naming.SIGLIP2, classifier_naming=naming.SIGLIP2_CLASSIFIER, refused={"num_channels": (3, "3")},
    fields={"class_token": False, "table": {"mode": "bilinear", "antialias": True}}, computed=_siglip2,
)  # fmt: skip
# Li et al. 2022, "BLIP". The features are the class token after the final norm, which the text model reads;
# transformers' `pooler_output` applies this norm twice.
_BLIP_HEADS = ("ForConditionalGeneration", "ForQuestionAnswering", "ForImageTextRetrieval")
_BLIP = Family(
    name="BLIP", models=("BlipVisionModel", *(f"Blip{head}" for head in _BLIP_HEADS)), whole="BlipModel",
    defaults=BLIP_DEFAULTS, naming=naming.BLIP,
)  # fmt: skip
# An et al. 2024, "Multi-label Cluster Discrimination": CLIP's tower with rotary positions, which also rotate the class
# token by a learned angle.
_MLCD = Family(
    name="MLCD", models=("MLCDVisionModel",), defaults=MLCD_DEFAULTS, naming=naming.MLCD, computed=_mlcd,
    fields={"norms": {"pre": True, "final": "pooled"}, "patch_bias": False, "positions": "rotary"},
    refused={"num_key_value_groups": (1, "1")},
)  # fmt: skip
# Fini et al. 2024, "Multimodal Autoregressive Pre-training of Large Vision Encoders": attention pooling without an MLP.
_AIMV2 = Family(
    name="AIMv2", models=("Aimv2VisionModel",), whole="Aimv2Model", defaults=AIMV2_DEFAULTS, naming=naming.AIMV2,
    refused={"is_native": (False, "false"), "use_head": (True, "true")}, computed=TypedSettings.gated,
    fields=_QKV | {
        "class_token": False, "pooling": "attention", "pool": {"mlp_width": 0}, "mlp_bias": _get("mlp_bias"),
        "norms": {"kind": "rms", "patch": True, "eps": _get("rms_norm_eps")},
    },
)  # fmt: skip


def _clip(stem: str) -> Family:
    """Return a family with CLIP's vision tower, whose output is the class token before the projection.

    Radford et al. 2021, "Learning Transferable Visual Models From Natural Language Supervision". The classifier reads
    the mean over patches without the final norm.
    """
    return Family(
        name=stem, models=(f"{stem}VisionModel", f"{stem}VisionModelWithProjection"), classifiers=(stem + _IMAGES,),
        whole=f"{stem}Model", defaults=CLIP_DEFAULTS, naming=naming.CLIP, classifier_naming=naming.CLIP_CLASSIFIER,
        fields={"norms": {"pre": True}, "patch_bias": False}, of_models={"norms": {"final": "pooled"}},
        of_classifiers={"pooling": "mean", "norms": {"final": "none"}},
    )  # fmt: skip


def _named(family: Family, stem: str, **changes: Any) -> Family:
    """Return a family like another one, whose classes have other names."""
    own = {"models": (f"{stem}Model",), "classifiers": (stem + _IMAGES,)}
    return replace(family, **{"name": stem, **own, **changes})


FAMILIES: dict[str, Family] = {
    "vit": _VIT,
    # Touvron et al. 2021, "Training data-efficient image transformers". With a teacher, the logits of two classifiers
    # are averaged; else the classifier reads the class token alone.
    "deit": _named(
        _VIT, "DeiT", classifiers=(f"DeiT{_IMAGES}", f"DeiT{_IMAGES}WithTeacher"), naming=naming.DEIT,
        fields=_VIT.fields | {"distillation_token": True},
    ),
    "vit_msn": _named(_VIT, "ViTMSN", defaults=MSN_DEFAULTS | {"head_dim": None}),
    # The encoder with all patches, without the decoder.
    "vit_mae": _named(_VIT, "ViTMAE", models=("ViTMAEModel", "ViTMAEForPreTraining"), classifiers=()),
    "ijepa": _named(_VIT, "IJepa", fields=_VIT.fields | _MEAN),  # Assran et al. 2023
    "beit": _BEIT,
    "data2vec-vision": _named(_BEIT, "Data2VecVision"),
    "dinov2": _DINOV2,
    # Darcet et al. 2024, "Vision Transformers Need Registers". When downscaling positions, transformers antialiases
    # only in models with registers.
    "dinov2_with_registers": _named(
        _DINOV2, "Dinov2WithRegisters", name="DINOv2",
        models=("Dinov2WithRegistersModel", "Dinov2WithRegistersBackbone"),
        fields=_DINOV2.fields | {"registers": _get("num_register_tokens"), "table": {"antialias": True}},
    ),
    # DINOv2 with registers, the first of which is a second class token.
    **dict.fromkeys(
        ("tipsv2", "tipsv2_vision_model"),
        replace(
            _DINOV2, name="TIPSv2", models=("Tipsv2VisionModel", "Tipsv2VisionBackbone"), classifiers=(),
            whole="Tipsv2Model", naming=naming.TIPSV2, needed=(), defaults=TIPSV2_DEFAULTS,
            fields=_DINOV2.fields | {
                "registers": _get("num_register_tokens"), "table": {"mode": "bilinear", "antialias": True},
            },
        ),
    ),
    # Siméoni et al. 2025, "DINOv3". Positions have no weights, so no grid needs interpolation.
    "dinov3_vit": Family(
        name="DINOv3", models=("DINOv3ViTModel", "DINOv3ViTBackbone"), defaults=DINOV3_DEFAULTS, naming=naming.DINOV3,
        square=False, computed=_dinov3,
        fields=_SCALE | {
            "positions": "rotary", "rotary": {"base": _get("rope_theta")}, "table": {"antialias": True},
            "registers": _get("num_register_tokens"), "mlp_bias": _get("mlp_bias"),
        },
        biases={
            f"{name}_bias": f"layer.#.attention.{part}_proj"
            for name, part in {"query": "q", "key": "k", "value": "v", "proj": "o"}.items()
        },
    ),
    **{f"{kind}_vision_model": _clip(stem) for kind, stem in CLIPS.items()},
    **{kind: _clip(CLIPS[kind]) for kind in ("clip", "metaclip_2", "chinese_clip")},
    **dict.fromkeys(("siglip", "siglip_vision_model"), _SIGLIP),
    **dict.fromkeys(("siglip2", "siglip2_vision_model"), _SIGLIP2),
    # Fang et al. 2021, "You Only Look at One Sequence". Detection tokens are registers; detection heads are left out.
    "yolos": Family(
        name="YOLOS", models=("YolosModel", "YolosForObjectDetection"), defaults=YOLOS_DEFAULTS, naming=naming.YOLOS,
        square=False, fields=_QKV | {
            "registers": _get("num_detection_tokens", int),
            "table": {"between": _get("use_mid_position_embeddings", bool)},
        },
    ),
    # Tong et al. 2022, "VideoMAE": tubes of frames are patches, and the pictures of tubes are below one another in the
    # input. The decoder is left out, and the fixed positions become a table. Models that average the patches have a
    # norm only in front of the classifier, with an epsilon that is not in the settings.
    "videomae": Family(
        name="VideoMAE", models=("VideoMAEModel", "VideoMAEForPreTraining"),
        classifiers=("VideoMAEForVideoClassification",), defaults=VIDEOMAE_DEFAULTS, naming=naming.VIDEOMAE,
        fields=_MEAN | {"qkv_bias": _get("qv_bias")}, of_classifiers={"norms": _norms_of_classifier},
        computed=_videomae,
        of_models={"norms": {"final": lambda own: "none" if own.typed("use_mean_pooling", bool) else "tokens"}},
    ),
    # Arnab et al. 2021, "ViViT: A Video Vision Transformer", model 1.
    "vivit": Family(
        name="ViViT", models=("VivitModel",), classifiers=("VivitForVideoClassification",), defaults=VIVIT_DEFAULTS,
        naming=naming.VIVIT, fields=_QKV, computed=_vivit,
    ),
    # Ranftl et al. 2021, "Vision Transformers for Dense Prediction". The decoder is left out.
    "dpt": Family(
        name="DPT", models=("DPTModel", "DPTForDepthEstimation", "DPTForSemanticSegmentation"), defaults=DPT_DEFAULTS,
        naming=naming.DPT, fields=_QKV | {"table": {"mode": "bilinear"}},
        refused={
            "is_hybrid": (False, "false, because its patches come from another network"),
            "backbone_config": (None, "null, because its patches come from another network"),
        },
    ),
    **dict.fromkeys(("blip", "blip_vision_model"), _BLIP),
    **dict.fromkeys(("mlcd", "mlcd_vision_model"), _MLCD),
    **dict.fromkeys(("aimv2", "aimv2_vision_model"), _AIMV2),
}  # fmt: skip

_WINDOWS = "its attention stays inside windows, so no block has one attention matrix over the image"
_CONVOLUTIONS = "it mixes convolutions with attention"
_LANGUAGE = "it is a language model with an image encoder"
REFUSED: dict[str, str] = {
    **dict.fromkeys(("swin", "swinv2", "hiera", "maxvit", "vitdet"), _WINDOWS),
    **dict.fromkeys(("sam", "sam_vision_model", "sam_hq", "sam_hq_vision_model"), _WINDOWS),
    **dict.fromkeys(("levit", "cvt", "mobilevit", "mobilevitv2", "efficientformer"), _CONVOLUTIONS),
    **dict.fromkeys(("cohere2_vision", "llama4", "shieldgemma2"), _LANGUAGE),
    **dict.fromkeys(("donut-swin", "swin2sr"), "of Swin, only swin and swinv2 open"),
    "dinat": "each of its patches attends to a neighbourhood of its own",
    "pixio": "its features are the mean over several class tokens",
    "timesformer": "its attention over space and its attention over time are separate",
    "altclip": "only its vision tower is supported; save it alone, model.vision_model.save_pretrained(folder)",
    "vit_hybrid": "its patches come from a ResNet",
    "dinov3_convnext": "it is a convolutional network without attention",
    "timm_wrapper": "it wraps a timm model; load its timm_model in memory",
}
