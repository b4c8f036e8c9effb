"""Convert timm models: config, tensors, labels and preprocessing."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from vitviz.images.bands import band_names
from vitviz.images.preprocess import Preprocess
from vitviz.images.torchvision_import import import_torchvision
from vitviz.model.config import ViTConfig
from vitviz.model.vit import Pretrained, ViT
from vitviz.weights import naming
from vitviz.weights.checks import ConvertError, assemble, checked_parts, checked_settings
from vitviz.weights.classifier import read_classifiers
from vitviz.weights.describe import describe
from vitviz.weights.naming import State
from vitviz.weights.shapes import merge_fields, shown_settings
from vitviz.weights.timm_state import Channels, rearranged, reorder_channels
from vitviz.weights.verify import verified

_CLASSIFIERS = ("head", "head_dist")
_WINDOWED = ("SwinTransformer", "SwinTransformerV2", "SwinTransformerV2Cr", "VisionTransformerSAM")
_MIXED = ("MaxxVit", "DaVit", "TinyVit", "GlobalContextVit")
_PYRAMIDS = ("PoolingVisionTransformer", "MultiScaleVit", "Hiera", "PyramidVisionTransformerV2")
_IN_WINDOWS = "its windows run as they are, if its classifier reads the mean"
_DIFFERENCE = "its attention is the difference of two softmaxes, which does not sum to 1"
WHY_NOT = {
    **dict.fromkeys(_WINDOWED, _IN_WINDOWS),
    **dict.fromkeys(_PYRAMIDS, "the number of its patches changes from stage to stage"),
    **dict.fromkeys(_MIXED, "it has convolutions between attention in windows"),
    "ConVit": "it mixes attention by content with attention by position",
    "CrossVit": "it has two streams of patches of two sizes",
    "TNT": "it has a second transformer inside every patch",
    "Xcit": "its attention runs between channels, not between patches",
    **dict.fromkeys(("DiffAttention", "DiffParallelScalingBlock"), _DIFFERENCE),
    "HybridEmbed": "its stem is a convolutional network: a patch depends on pixels far outside its square",
    "AttentionPoolPrr": "its pooling refines the patches by another attention",
    "RotaryEmbeddingMRope": "its rotations also depend on time",
}
"""Name of a timm class -> the reason why a model that contains it cannot be converted."""


_ADVICE = "Set model.pretrained_cfg = None, and pass the preprocessing: vitviz.load(model, preprocess=...)."


@checked_parts()
@checked_settings()
def convert_timm(model: nn.Module) -> ViT:
    """Convert a timm model to a `ViT` with the same outputs and attention: a copy in float32 and in eval mode.

    Covers `VisionTransformer` (ViT, DeiT III, DINO, MAE, DINOv2, CLIP, SigLIP, AIMv2, RADIO and related models), its
    distilled form (DeiT), `Eva` (EVA, EVA-02, the Perception Encoder, DINOv3, RoPE-ViT, Sapiens2), `Beit`, `Cait`,
    `VisionTransformerRelPos` and `NaFlexVit`. Dropout rates are not carried over.

    Args:
        model: built by timm.

    Raises:
        ConvertError: with the reason, for a model without a single N x N attention in each block, or with an operation
            that `ViT` does not have, or if it computes something else than its class and parameters say.
        CheckpointError: if its tensors do not match its settings.
    """
    config, channels = config_of(model)
    new = naming.TIMM.convert(_tensors(model)[0], config)
    reorder_channels(new, config, channels)
    return verified(assemble(config, new), model)


# --- settings of a built model


@checked_settings()
def config_of(model: nn.Module) -> tuple[ViTConfig, Channels]:
    """Return the config of a built model, which may be on the meta device, and the order of its heads' channels.

    Only the first block is read: `assemble` compares the shape of every tensor, and `verify` what every part computes.

    Raises:
        ConvertError: with the reason, for a model that cannot be converted.
    """
    _check_class(model)
    state, classes = _tensors(model)
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    built = _Built(model, shown_settings(shapes, naming.TIMM), shapes["blocks.0.attn.proj.weight"][1])
    fields = {name: read(built) for name, read in SETTINGS.items()}
    config = ViTConfig(**merge_fields(built.shown, fields, {"classes": classes}))
    neighbors = not getattr(built.attention, "rotate_half", True)
    return config, Channels(neighbors, columns_first=getattr(built.rope, "grid_indexing", "") == "xy")


def _tensors(model: nn.Module) -> tuple[State, int]:
    """Return tensors with names of `naming.TIMM`, and the number of classes; `num_classes` may be outdated."""
    state, classes = read_classifiers(model, model.state_dict(), *_CLASSIFIERS)
    return rearranged(model, state), classes


class _Built:
    """Parts of a built model that hold settings, under any class's names.

    Args:
        model: the model.
        shown: the settings that its tensors show.
        inner: number of heads times the width of a head.
    """

    def __init__(self, model: Any, shown: dict[str, Any], inner: int) -> None:
        self.model, self.shown, self.inner, self.block = model, shown, inner, model.blocks[0]
        self.flexible = hasattr(model, "embeds")
        self.stem = model.embeds if self.flexible else model.patch_embed
        self.rope: Any = getattr(model, "rope", None)
        self.pool: Any = getattr(model, "attn_pool", None)
        self.attention = next(part for part in self.block.modules() if hasattr(part, "num_heads"))
        mlps = [part for name, part in self.block.named_modules() if "attn" not in name]
        self.act = next(getattr(part, name) for part in mlps for name in ("act", "mlp_act") if hasattr(part, name))

    @property
    def head_width(self) -> int:
        """Return d, the width of a head."""
        own = getattr(self.attention, "head_dim", None)
        return int(own or self.attention.proj.in_features // self.attention.num_heads)

    @property
    def gate(self) -> str:
        """Return the kind of gate, "" without one."""
        return GATES.get(type(self.act).__name__, "geglu") if self.shown["mlp"] != "mlp" else ""

    @property
    def size(self) -> tuple[int, ...]:
        """Return (height, width) in pixels: of a model for any size, in its `pretrained_cfg`, or of its positions."""
        if not self.flexible:
            return tuple(self.stem.img_size)
        published = (getattr(self.model, "pretrained_cfg", None) or {}).get("input_size")
        grid, patch = self.stem.pos_embed_grid_size or (14, 14), self.stem.patch_size
        return tuple(published[1:]) if published else (grid[0] * patch[0], grid[1] * patch[1])


def _is(part: Any, *kinds: str) -> bool:
    """Return whether a part is of one of these classes, or of a class that derives from one."""
    return any(kind.__name__ in kinds for kind in type(part).__mro__)


def _activation(built: _Built) -> str:
    """Return our name of the activation, or the name of its class, which `ViTConfig` refuses."""
    if built.gate not in ("", "geglu"):
        return "gelu"
    name = type(built.act).__name__  # torch's GELU or timm's
    known = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu"}
    return "gelu_tanh" if getattr(built.act, "approximate", "none") == "tanh" else known.get(name, name)


def _pooling(built: _Built) -> str:
    pool = built.model.global_pool
    return "attention" if built.shown["pool"]["blocks"] or built.pool else POOLS.get(pool, pool)


def _pool(built: _Built) -> dict[str, Any]:
    """Return the settings of attention pooling. Eva's, which has no `pool_include_prefix`, always reads the prefix."""
    reads = built.pool is None or getattr(built.model, "pool_include_prefix", None) is not False
    heads = None if built.pool is None else built.pool.num_heads
    return {"heads": heads, "prefix": reads or not built.model.num_prefix_tokens}


def _positions(built: _Built) -> str:
    if built.rope is None:
        return str(built.shown["positions"])
    return "learned+rotary" if built.shown["positions"] == "learned" else "rotary"


def _rotary(built: _Built) -> dict[str, Any]:
    rope = built.rope
    rotary = {} if rope is None else {"base": rope.temperature}
    if _is(rope, "RotaryEmbeddingMixed"):
        rotary |= {"places": "index", "learned": True}
    elif _is(rope, "RotaryEmbeddingCat"):
        scaled = None if rope.ref_feat_shape is None else tuple(rope.ref_feat_shape)
        rotary |= {"places": "index", "grid": scaled, "offset": float(rope.grid_offset)}
    return rotary


def _table(built: _Built) -> dict[str, Any]:
    """Return how a NaFlex model stores and interpolates its positions; {} for other models, which use the defaults."""
    stem = built.stem
    if not built.flexible:
        return {}
    grid, crop = tuple(stem.pos_embed_grid_size or ()), bool(stem.pos_embed_ar_preserving)
    if stem.pos_embed_type == "factorized":  # linear interpolation of the sums equals that of the terms
        return {"mode": "bilinear", "antialias": False, "grid": grid, "crop": crop}
    return {
        "mode": stem.pos_embed_interp_mode,
        "antialias": bool(stem.pos_embed_antialias),
        "grid": None if stem.pos_embed is None else grid,
        "crop": crop,
        "corners": bool(stem.pos_embed_align_corners),
    }


def _epsilon(built: _Built) -> float:
    """Return the epsilon of all norms; random images need not show that one of them differs."""
    values = {module.eps for module in built.model.modules() if hasattr(module, "eps")}
    if len(values) != 1:
        raise ConvertError(f"Expected norms of one epsilon, got {sorted(values)}. Choose another model.")
    return float(values.pop())


GATES = {"SiLU": "swiglu", "ReLU": "reglu"}
"""Name of an activation's class -> `ViTConfig.mlp`; GELU and its forms are "geglu"."""
POOLS = {"token": "cls", "avg": "mean"}
"""timm's `global_pool` -> `ViTConfig.pooling`."""
SETTINGS: dict[str, Callable[[_Built], Any]] = {
    # Like timm, leave out the pixels at the right and bottom that do not fill a patch.
    "image_size": lambda built: tuple(side - side % built.shown["patch_size"] for side in built.size),
    "heads": lambda built: built.inner // built.head_width,
    "head_width": lambda built: built.head_width,
    "mlp": lambda built: built.gate or "mlp",
    "activation": _activation,
    "parallel": lambda built: _is(built.block, "ParallelScalingBlock"),
    "norms": lambda built: {
        "kind": "rms" if any(_is(part, "RmsNorm") for part in built.model.modules()) else "layer",
        "eps": _epsilon(built),
        "post": _is(built.block, "ResPostBlock", "EvaBlockPostNorm", "ResPostRelPosBlock"),
    },
    "positions": _positions,
    "rotary": _rotary,
    "table": _table,
    "pooling": _pooling,
    "pool": _pool,
}
"""Field of `ViTConfig` -> function that reads it from a built model, if tensors do not show it."""


def _check_class(model: Any) -> None:
    """Refuse models of other classes, and models with a part of which vitviz knows why it cannot be converted."""
    import_torchvision()
    from timm.models.beit import Beit
    from timm.models.cait import Cait
    from timm.models.eva import Eva
    from timm.models.naflexvit import NaFlexVit
    from timm.models.vision_transformer import VisionTransformer
    from timm.models.vision_transformer_relpos import VisionTransformerRelPos

    parts = (type(part).__name__ for part in model.modules())
    reason = next(((name, WHY_NOT[name]) for name in parts if name in WHY_NOT), None)
    known = (VisionTransformer, Eva, Beit, Cait, VisionTransformerRelPos, NaFlexVit)
    if reason is None and isinstance(model, known):
        return
    name, why = reason or (type(model).__name__, "it is another architecture")
    raise ConvertError(f"Expected a model whose attention can be shown, got an unsupported timm model ({name}): {why}.")


# --- labels and preprocessing


@checked_settings()
def about_timm(
    cfg: Mapping[str, Any], config: ViTConfig, *, source: str = "", preprocess: Preprocess | None = None
) -> Pretrained:
    """Return the labels and preprocessing in timm's `model.pretrained_cfg`, for the size of `config`.

    Args:
        cfg: describes the published weights.
        config: sizes of the model.
        source: origin of other weights. Their name, address and licence are left out, and labels count as assumed.
        preprocess: preprocessing in place of that of `cfg`.

    Raises:
        ConvertError: if the `pretrained_cfg` is incomplete, or has preprocessing that `Preprocess` does not support.
    """
    labels, class_ids = labels_timm(cfg, config.classes)
    own = preprocess or preprocess_timm(cfg, config)
    if source:
        features = config.norms.pre and config.classes == cfg.get("num_classes")  # CLIP's projection
        averaged = f"preprocessing: {own.describe()}, each with the average of its pretrained_cfg"
        same = preprocess is not None or config.channels == len(cfg["mean"])
        return describe(
            cfg.get("architecture") or "timm model", own, 0 if features else config.classes, labels,
            labels_of="its pretrained_cfg", assumed=() if same else (averaged,), class_ids=class_ids, source=source,
        )  # fmt: skip
    name = ".".join(str(cfg[part]) for part in ("architecture", "tag") if cfg.get(part))
    hub = cfg.get("hf_hub_id")
    origin = f"https://huggingface.co/{hub}" if hub else cfg.get("url") or cfg.get("origin_url") or "timm"
    licence = cfg.get("license") or "unknown"
    return describe(name or "timm model", own, 0, labels, class_ids=class_ids, licence=licence, source=origin)


def preprocess_timm(cfg: Mapping[str, Any], config: ViTConfig) -> Preprocess:
    """Return timm's evaluation transform (`timm.data.create_transform`) for images of the model's size.

    Raises:
        ConvertError: if settings are missing, or `Preprocess` does not support them.
    """
    needed = ("mean", "std", "interpolation", "crop_pct", "crop_mode")
    if missing := ", ".join(name for name in needed if cfg.get(name) is None):
        raise ConvertError(f"Expected a pretrained_cfg with preprocessing, got one without {missing}. {_ADVICE}")
    (height, width), share, mode = config.image_size, cfg["crop_pct"], cfg["crop_mode"]
    if cfg["interpolation"] not in ("bilinear", "bicubic", "lanczos", "nearest"):
        raise ConvertError(
            f"Expected bilinear, bicubic, lanczos or nearest interpolation, got {cfg['interpolation']!r}. {_ADVICE}"
        )
    common = {"height": height, "width": width, "interpolation": cfg["interpolation"]}
    common |= {"mean": tuple(cfg["mean"]), "std": tuple(cfg["std"]), "bands": band_names(len(cfg["mean"]))}
    box = math.floor(height / share), math.floor(width / share)
    if mode == "center":
        own = Preprocess(mode="crop", resize=box[0] if box[0] == box[1] else box, **common)
    elif mode == "squash":
        own = Preprocess(mode="squash", resize=None if share == 1.0 else box, **common)
    elif mode == "border" and share == 1.0:
        own = Preprocess(mode="pad", **common)
    else:
        raise ConvertError(
            "Expected crop_mode 'center' or 'squash', or 'border' of the whole image (crop_pct 1), got "
            f"crop_mode={mode!r} with crop_pct={share} for {height} x {width} pixels. {_ADVICE}"
        )
    return own.with_channels(config.channels)


def labels_timm(cfg: Mapping[str, Any], classes: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return labels and class ids of the weights, or of the ImageNet subset with this number of classes."""
    import_torchvision()
    import timm.data

    data: Any = timm.data
    if not classes or classes != cfg.get("num_classes") or cfg.get("label_offset"):
        return (), ()  # not the classifier of the published weights
    if names := cfg.get("label_names"):
        words = cfg.get("label_descriptions") or {}
        return tuple(str(words.get(name, name)) for name in names), tuple(map(str, names))
    if (subset := data.infer_imagenet_subset({"num_classes": classes})) is None:
        return (), ()
    info = data.ImageNetInfo(subset)
    return tuple(info.label_descriptions()), tuple(info.label_names())
