"""Convert timm models: config, tensors, labels and preprocessing."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from vitviz.images.bands import band_names
from vitviz.images.preprocess import Preprocess
from vitviz.images.torchvision_import import import_torchvision
from vitviz.model.config import AttentionPooling, Norms, PositionTable, Rotary, ViTConfig
from vitviz.model.vit import Pretrained, ViT
from vitviz.weights import naming
from vitviz.weights.checks import ConvertError, assemble, checked_parts, checked_settings
from vitviz.weights.classifier import read_classifiers
from vitviz.weights.describe import describe
from vitviz.weights.timm_state import OWN_TABLE, SHARED_TABLES, Channels, rearranged, reorder_channels
from vitviz.weights.verify import verified

_CLASSIFIERS = ("head", "head_dist")
_WINDOWED = ("SwinTransformer", "SwinTransformerV2", "VisionTransformerSAM")
_PYRAMIDS = ("PoolingVisionTransformer", "MultiScaleVit", "Hiera", "PyramidVisionTransformerV2")
_IN_WINDOWS = "its windows run as they are, if these divide its input and its classifier reads the mean"
_DIFFERENCE = "its attention is the difference of two softmaxes, which does not sum to 1"
WHY_NOT = {
    **dict.fromkeys(_WINDOWED, _IN_WINDOWS),
    "SwinTransformerV2Cr": "it computes relative position biases and norms of Swin v2 in another way",
    **dict.fromkeys(_PYRAMIDS, "the number of its patches changes from stage to stage"),
    "MaxxVit": "it uses attention in windows and grids, between convolutions",
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
def convert_timm(model: nn.Module, cfg: Mapping[str, Any] | None = None) -> ViT:
    """Convert a timm model to a `ViT` with the same outputs and attention: a copy in float32 and in eval mode.

    Covers `VisionTransformer` (ViT, DeiT III, DINO, MAE, DINOv2, CLIP, SigLIP, AIMv2, RADIO and related models), its
    distilled form (DeiT), `Eva` (EVA, EVA-02, the Perception Encoder, DINOv3, RoPE-ViT, Sapiens2), `Beit`, `Cait`,
    `VisionTransformerRelPos` and `NaFlexVit`. Dropout rates are not carried over.

    Args:
        model: built by timm.
        cfg: the `pretrained_cfg` of published weights, with labels and preprocessing; `None` for other weights.

    Raises:
        ConvertError: with the reason, for a model without a single N x N attention in each block, or with an operation
            that `ViT` does not have, or if it computes something else than its class and parameters say.
        CheckpointError: if its tensors do not match its settings.
    """
    _check_class(model)
    config, channels = config_of(model)
    state, _ = read_classifiers(model, model.state_dict(), *_CLASSIFIERS)
    new = naming.TIMM.convert(rearranged(model, state), config)
    reorder_channels(new, config, channels)
    return verified(assemble(config, new, about_timm(cfg, config) if cfg else None), model)


# --- settings of a built model


@checked_settings()
def config_of(model: nn.Module) -> tuple[ViTConfig, Channels]:
    """Return the config of a built model, which may be on the meta device, and the order of its heads' channels.

    Only the first block is read: `assemble` compares the shape of every tensor, and `verify` what every part computes.

    Raises:
        ConvertError: with the reason, for a model that cannot be converted.
    """
    built: Any = model  # timm's attributes have no type hints
    _check_class(built)
    from timm.models.cait import Cait
    from timm.models.deit import VisionTransformerDistilled
    from timm.models.naflexvit import NaFlexVit

    flexible = isinstance(built, NaFlexVit)
    first = built.blocks[0]
    stem, tokens = (built.embeds, built.embeds) if flexible else (built.patch_embed, built)
    patch = stem.patch_size[0]
    size = _flexible_size(built) if flexible else stem.img_size
    block = _block_settings(first)
    settings = block | {
        # Like timm, leave out the pixels at the right and bottom that do not fill a patch.
        "image_size": tuple(side // patch * patch for side in size),
        "patch_size": patch,
        "channels": stem.in_chans if flexible else stem.proj.in_channels,
        "patch_bias": stem.proj.bias is not None,
        "width": built.embed_dim,
        "depth": len(built.blocks),
        "classes": read_classifiers(built, {}, *_CLASSIFIERS)[1],  # num_classes may describe a replaced classifier
        "class_token": not isinstance(built, Cait) and tokens.cls_token is not None,
        "distillation_token": isinstance(built, VisionTransformerDistilled),
        "registers": 0 if (registers := getattr(tokens, "reg_token", None)) is None else registers.shape[1],
        "norms": _norms(built, stem, first),
        "relative_bias": block.pop("relative_bias") or any(getattr(built, name, None) for name in SHARED_TABLES),
    }
    settings |= _positions(built, tokens)
    settings |= _class_attention(built) if isinstance(built, Cait) else _pooling(built, block)
    settings |= {"table": _flexible_table(stem)} if flexible else {}
    neighbors = not getattr(getattr(first, "attn", None), "rotate_half", True)
    columns_first = getattr(getattr(built, "rope", None), "grid_indexing", "") == "xy"
    return ViTConfig(**settings), Channels(neighbors, columns_first)


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


def _flexible_size(built: Any) -> tuple[int, ...]:
    """Return the input size in the `pretrained_cfg` of a model that accepts any size, or the size of its positions."""
    published = (getattr(built, "pretrained_cfg", None) or {}).get("input_size")
    grid, patch = built.embeds.pos_embed_grid_size or (14, 14), built.embeds.patch_size
    return tuple(published[1:]) if published else (grid[0] * patch[0], grid[1] * patch[1])


def _flexible_table(stem: Any) -> PositionTable:
    """Return the settings of NaFlex positions."""
    grid, crop = tuple(stem.pos_embed_grid_size or ()), bool(stem.pos_embed_ar_preserving)
    if stem.pos_embed_type == "factorized":  # linear interpolation of the sums equals that of the terms
        return PositionTable(mode="bilinear", antialias=False, grid=grid, crop=crop)
    return PositionTable(
        mode=stem.pos_embed_interp_mode,
        antialias=bool(stem.pos_embed_antialias),
        grid=None if stem.pos_embed is None else grid,
        crop=crop,
        corners=bool(stem.pos_embed_align_corners),
    )


INITIAL_SCALE = 1e-5  # of layer scale, for models that do not keep it


def _block_settings(block: Any) -> dict[str, Any]:
    """Return the config fields of a block."""
    from timm.models import cait, vision_transformer

    if isinstance(block, vision_transformer.ParallelScalingBlock | vision_transformer.ParallelThingsBlock):
        return _parallel_settings(block)
    attn: Any = block.attn
    bias = any(getattr(attn, name, None) is not None for name in ("rel_pos", OWN_TABLE))
    return _usual_settings(block) | {"relative_bias": bias, "talking_heads": isinstance(attn, cait.TalkingHeadAttn)}


def _norms(built: Any, stem: Any, block: Any) -> Norms:
    """Return where a model has norms, from its first block."""
    from timm.models import cait, eva, vision_transformer
    from timm.models import vision_transformer_relpos as relpos

    post = (vision_transformer.ResPostBlock, eva.EvaBlockPostNorm, relpos.ResPostRelPosBlock)
    attn, mlp = getattr(block, "attn", None), getattr(block, "mlp", None)
    pooled = isinstance(built, cait.Cait) or _is_norm(built.fc_norm)
    return Norms(
        kind="rms" if _modules(built, _layers().RmsNorm) else "layer",
        eps=_epsilon(built),
        patch=_is_norm(stem.norm),
        pre=_has_norm(built, "norm_pre"),
        post=isinstance(block, post),
        qk=_has_norm(attn, "q_norm") or _has_norm(block, "q_norm"),
        attention=_has_norm(attn, "norm"),
        mlp=_has_norm(mlp, "norm"),
        final="pooled" if pooled else "tokens" if _is_norm(built.norm) else "none",
    )


def _usual_settings(block: Any) -> dict[str, Any]:
    """Return the config fields that blocks with an attention and an MLP share."""
    attn = block.attn
    # EVA's post-norm blocks have no scales, whatever `init_values` is.
    parts = [getattr(block, name, None) for name in ("gamma_1", "ls1")]
    scales = [part for part in parts if part is not None and not isinstance(part, nn.Identity)]
    initial = getattr(scales[0], "init_values", getattr(block, "init_values", INITIAL_SCALE)) if scales else None
    # EVA's keys have no bias. If one map computes all three, the biases of queries and values are separate tensors.
    maps: tuple[Any, ...] = (attn.qkv,) if attn.qkv is not None else (attn.q_proj, attn.k_proj, attn.v_proj)
    biases = [getattr(attn, "q_bias", None), *(linear.bias for linear in maps)]
    return {
        "heads": attn.num_heads,
        "head_width": attn.proj.in_features // attn.num_heads,
        "qkv_bias": any(bias is not None for bias in biases),
        "layer_scale": None if initial is None else float(initial),
    } | _mlp_settings(block.mlp)


def _parallel_settings(block: Any) -> dict[str, Any]:
    """Return the config fields of a block with parallel branches, as `rearranged` converts it."""
    from timm.models.vision_transformer import ParallelThingsBlock

    if isinstance(block, ParallelThingsBlock):
        branches: Any = block
        attn, count = branches.attns[0].attn, len(branches.attns)
        # The branches' norms and scales become part of their linear maps, which need biases.
        more = {"head_width": attn.head_dim, "relative_bias": False, "qkv_bias": True, "mlp_bias": True}
        fields = _mlp_settings(branches.ffns[0].mlp) | more
        return fields | {"heads": attn.num_heads * count, "mlp_width": fields["mlp_width"] * count}
    scaled = not isinstance(block.ls, nn.Identity)
    return {
        "heads": block.num_heads,
        "head_width": block.head_dim,
        "qkv_bias": block.in_proj.bias is not None,
        "layer_scale": float(block.ls.init_values) if scaled else None,
        "parallel": True,
        "mlp": "mlp",
        "mlp_width": block.in_split[0],
        "activation": _activation(block.mlp_act),
        "relative_bias": False,
    }


def _mlp_settings(mlp: Any) -> dict[str, Any]:
    layers = _layers()
    gated = isinstance(mlp, layers.GluMlp | layers.SwiGLU)
    gate = GATES.get(type(mlp.act).__name__, "geglu")
    return {
        "mlp": gate if gated else "mlp",
        "mlp_width": mlp.fc2.in_features,
        "mlp_bias": mlp.fc2.bias is not None,
        "activation": "gelu" if gated and gate != "geglu" else _activation(mlp.act),
    }


GATES = {"SiLU": "swiglu", "ReLU": "reglu"}
"""Name of an activation's class -> `ViTConfig.mlp`; GELU and its forms are "geglu"."""


def _activation(act: nn.Module) -> str:
    """Return our name of an activation, or the name of its class, which `ViTConfig` refuses."""
    name = type(act).__name__  # torch's GELU or timm's
    known = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu"}
    return "gelu_tanh" if getattr(act, "approximate", "none") == "tanh" else known.get(name, name)


def _positions(built: Any, tokens: Any) -> dict[str, Any]:
    layers, rope = _layers(), getattr(built, "rope", None)
    learned = any(getattr(tokens, name, None) is not None for name in ("pos_embed", "pos_embed_y"))
    if rope is None:
        return {"positions": "learned" if learned else "none"}
    rotary = Rotary(base=rope.temperature)
    if isinstance(rope, layers.RotaryEmbeddingMixed):
        rotary = replace(rotary, places="index", learned=True)
    elif isinstance(rope, layers.RotaryEmbeddingCat):
        scaled = None if rope.ref_feat_shape is None else tuple(rope.ref_feat_shape)
        rotary = replace(rotary, places="index", grid=scaled, offset=float(rope.grid_offset))
    return {"positions": "learned+rotary" if learned else "rotary", "rotary": rotary}


def _pooling(built: Any, block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config fields of the pooling before the classifier."""
    prefix, include = built.num_prefix_tokens, getattr(built, "pool_include_prefix", None)
    pool = "map" if getattr(built, "attn_pool", None) is not None else built.global_pool
    width = built.attn_pool.mlp.fc2.in_features if pool == "map" else block["mlp_width"]
    return {
        "pooling": {"token": "cls", "avg": "mean", "map": "attention"}.get(pool, pool),
        "pool": AttentionPooling(
            heads=built.attn_pool.num_heads if pool == "map" else None,
            mlp_width=None if width == block["mlp_width"] else width,
            prefix=pool != "map" or not prefix or include is not False,  # None: Eva, which always reads them
        ),
    }


def _class_attention(built: Any) -> dict[str, Any]:
    """Return the config fields of CaiT's class attention, whose blocks may have another width of the MLP."""
    blocks = built.blocks_token_only
    width = _mlp_settings(blocks[0].mlp)["mlp_width"]
    return {"pooling": "attention", "pool": AttentionPooling(blocks=len(blocks), mlp_width=width)}


def _is_norm(module: nn.Module) -> bool:
    return not isinstance(module, nn.Identity)


def _has_norm(module: Any, name: str) -> bool:
    return _is_norm(getattr(module, name, None) or nn.Identity())


def _modules(model: nn.Module, kind: type) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, kind)]


def _epsilon(model: nn.Module) -> float:
    """Return the epsilon of all norms; random images need not show that one of them differs."""
    norms = (*_modules(model, nn.LayerNorm), *_modules(model, _layers().RmsNorm))
    values = {module.eps for module in norms}
    if len(values) != 1:
        raise ConvertError(f"Expected norms of one epsilon, got {sorted(values)}. Choose another model.")
    return float(values.pop())


def _layers() -> Any:
    """Return the module `timm.layers`, as `Any` because it lacks type hints."""
    import timm.layers

    return timm.layers


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
        crop = Preprocess(mode="crop", resize=box[0] if box[0] == box[1] else box, **common)
        return crop.with_channels(config.channels)
    if mode == "squash":
        squashed = Preprocess(mode="squash", resize=None if share == 1.0 else box, **common)
        return squashed.with_channels(config.channels)
    if mode == "border" and share == 1.0:
        return Preprocess(mode="pad", **common).with_channels(config.channels)
    raise ConvertError(
        "Expected crop_mode 'center' or 'squash', or 'border' of the whole image (crop_pct 1), got "
        f"crop_mode={mode!r} with crop_pct={share} for {height} x {width} pixels. {_ADVICE}"
    )


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
