"""What a model built by timm says about itself: the settings that `from_timm` converts by, or why it does not.

timm's classes are compared exactly and its options one by one: an attention that is not one N x N softmax over all
tokens in every block cannot be shown as if it were.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from torch import nn

from vitviz.compat import import_torchvision
from vitviz.config import ViTConfig
from vitviz.weights.source import ConvertError

_WINDOWS = "its attention looks through windows, not at all patches"
_BIAS = "it adds a bias for relative positions to the attention logits"
_STAGES = "the number of its patches changes from stage to stage"
_BESIDE = "attention and MLP lie side by side in its blocks"
_POST = "its blocks norm what a branch returns, not what it is given"
WHY_NOT = {
    "Beit": _BIAS,
    "VisionTransformerRelPos": _BIAS,
    "VisionTransformerSAM": _WINDOWS,
    "SwinTransformer": _WINDOWS,
    "SwinTransformerV2": _WINDOWS,
    "SwinTransformerV2Cr": _WINDOWS,
    "MaxxVit": "its attention looks through windows and grids, between convolutions",
    "Cait": "it mixes its heads before and after the softmax (talking heads)",
    "ConVit": "it mixes attention by content with attention by position",
    "CrossVit": "it has two streams of patches of two sizes",
    "TNT": "it has a second transformer inside every patch",
    "Xcit": "its attention runs between channels, not between patches",
    "PoolingVisionTransformer": _STAGES,
    "MultiScaleVit": _STAGES,
    "Hiera": _STAGES,
    "PyramidVisionTransformerV2": _STAGES,
    "NaFlexVit": "it takes lists of patches; build the same model with use_naflex=False",
    "ParallelScalingBlock": _BESIDE,
    "DiffParallelScalingBlock": _BESIDE,
    "ParallelThingsBlock": "several attentions lie side by side in its blocks",
    "ResPostBlock": _POST,
    "EvaBlockPostNorm": _POST,
    "DiffAttention": "its attention is the difference of two, which does not sum to 1",
    "HybridEmbed": "its stem is a convolutional network: a patch has seen pixels far outside its square",
    "AttentionPoolPrr": "its pooling refines the patches by another attention",
    "RotaryEmbeddingCat": "its rotations count patches; only those of DINOv3, relative to the image, are supported",
    "RotaryEmbeddingMixed": "its rotations are learned; only those of DINOv3 are supported",
}
"""Why a model with this timm class in it cannot be converted."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How timm arranges the tensors; what they compute is in the `ViTConfig`."""

    prefix_positions: bool  # the position table has rows for the prefix tokens, in front
    split: bool  # three matrices q_proj, k_proj, v_proj instead of one qkv
    biased: str  # which of "qkv" have a bias; the bias of the others is zero
    output_bias: bool  # whether the output projection of attention has one
    gate_apart: bool  # the gate of a SwiGLU is a matrix of its own
    eva: bool  # layer scales are named as in EVA
    interleaved: bool  # rotations turn neighbouring channels, not those half a head apart


LAYOUT = {field.name for field in dataclasses.fields(Layout)}
CONFIG = {field.name for field in dataclasses.fields(ViTConfig)}


def settings_of(model: nn.Module) -> dict[str, Any]:
    """The settings that `timm_model` needs, read from a built model: the fields of `ViTConfig`, and timm's layout.

    Works on the meta device too. Raises `ConvertError` with the reason for a model that cannot be converted.
    """
    import_torchvision()
    from timm.models.deit import VisionTransformerDistilled
    from timm.models.eva import Eva
    from timm.models.vision_transformer import VisionTransformer

    built: Any = model  # timm's attributes have no types of their own
    _only(built, VisionTransformer, VisionTransformerDistilled, Eva)
    stem, blocks = built.patch_embed, list(built.blocks)
    _only(stem, _layers().PatchEmbed)
    if type(stem.norm) is not nn.Identity:
        _refuse("its patch embedding ends in a norm")
    patch = stem.patch_size
    if patch[0] != patch[1] or any(side % patch[0] for side in stem.img_size):
        _refuse(
            f"its images of {stem.img_size} do not divide into square patches, with {patch} for a patch; "
            "build it with another img_size"
        )
    block, *others = (_block_settings(block) for block in blocks)
    for index, other in enumerate(others, 1):
        if differ := [name for name in block if block[name] != other[name]]:
            _refuse(f"its blocks 0 and {index} differ in {', '.join(differ)}")
    registers = 0 if built.reg_token is None else built.reg_token.shape[1]
    settings = block | {
        "image_size": tuple(stem.img_size),
        "patch_size": patch[0],
        "channels": stem.proj.in_channels,
        "patch_bias": stem.proj.bias is not None,
        "width": built.embed_dim,
        "depth": len(blocks),
        "classes": built.num_classes,
        "class_token": built.cls_token is not None,
        "distillation_token": type(built) is VisionTransformerDistilled,
        "registers": registers,
        "norm_pre": _is_norm(built.norm_pre),
        "norm_eps": _epsilon(built),
        "prefix_positions": built.pos_embed is not None and not built.no_embed_class,
        "eva": type(built) is Eva,
    }
    settings |= _positions(built) | _pooling(built, block)
    if settings["distillation_token"] and (registers or not built.num_classes or settings["norm_pooled"]):
        _refuse("its distillation token comes with registers, without a classifier, or with a norm after pooling")
    config = ViTConfig(**{name: value for name, value in settings.items() if name in CONFIG})
    return config.to_dict() | {name: settings[name] for name in sorted(LAYOUT)}


def _block_settings(block: Any) -> dict[str, Any]:
    """What one block computes, and how its tensors are named."""
    from timm.models.eva import EvaAttention, EvaBlock
    from timm.models.vision_transformer import Block

    _only(block, Block, EvaBlock)
    attn: Any = block.attn
    layers = _layers()
    _only(attn, layers.Attention, EvaAttention, layers.AttentionRope)
    if type(attn.norm) is not nn.Identity:
        _refuse("it has norms inside attention (sub-layer norms)")
    if getattr(attn, "gate", None) is not None:
        _refuse("what its attention returns is gated")
    if getattr(attn, "num_kv_groups", 1) != 1:
        _refuse("its heads share keys (grouped-query attention)")
    if not (_is_norm(block.norm1) and _is_norm(block.norm2)):
        _refuse("its blocks lack a norm before attention or MLP")
    is_eva = type(block) is EvaBlock
    if is_eva:
        if (block.gamma_1 is None) != (block.gamma_2 is None):
            _refuse("it scales attention and not the MLP")
        scale = None if block.gamma_1 is None else float(block.init_values)
    else:
        for part in (block.ls1, block.ls2):
            _only(part, layers.LayerScale, nn.Identity)
        scale = None if type(block.ls1) is nn.Identity else float(block.ls1.init_values)
    split = attn.qkv is None
    if split:
        biased = "".join(part for part in "qkv" if getattr(attn, f"{part}_proj").bias is not None)
    elif attn.qkv.bias is not None:
        biased = "qkv"
    else:  # EVA's key bias is a buffer of zeros that is not saved
        biased = "qv" if getattr(attn, "q_bias", None) is not None else ""
    return {
        "heads": attn.num_heads,
        "head_width": attn.head_dim,
        "qk_norm": _is_norm(attn.q_norm),
        "qkv_bias": bool(biased),
        "layer_scale": scale,
        "split": split,
        "biased": biased,
        "output_bias": attn.proj.bias is not None,
        "interleaved": not getattr(attn, "rotate_half", True),
    } | _mlp_settings(block.mlp)


def _mlp_settings(mlp: Any) -> dict[str, Any]:
    layers = _layers()
    _only(mlp, layers.Mlp, layers.GluMlp, layers.SwiGLU)
    if type(mlp.norm) is not nn.Identity:
        _refuse("it has norms inside its MLPs (sub-layer norms)")
    gated, apart = type(mlp) is not layers.Mlp, type(mlp) is layers.SwiGLU
    if gated and (type(mlp.act) is not nn.SiLU or getattr(mlp, "gate_last", False)):
        _refuse(f"its MLP is gated by {type(mlp.act).__name__} of the second half: only SiLU of the first is supported")
    first = mlp.fc1_g if apart else mlp.fc1
    if (first.bias is None) != (mlp.fc2.bias is None):
        _refuse("one layer of its MLP has a bias and the other has none")
    return {
        "mlp": "swiglu" if gated else "mlp",
        "mlp_width": mlp.fc2.in_features,
        "mlp_bias": mlp.fc2.bias is not None,
        "gate_apart": apart,
        "activation": "gelu" if gated else _activation(mlp.act),
    }


def _activation(act: nn.Module) -> str:
    name = type(act).__name__  # torch's GELU or timm's
    known = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu"}
    if name not in known:
        _refuse(f"the activation of its MLP is {name}: only GELU, its tanh form and QuickGELU are supported")
    return "gelu_tanh" if getattr(act, "approximate", "none") == "tanh" else known[name]


def _positions(built: Any) -> dict[str, Any]:
    rope = getattr(built, "rope", None)
    if rope is None:
        return {"positions": "none" if built.pos_embed is None else "learned", "interleaved": False}
    _only(rope, _layers().RotaryEmbeddingDinoV3)
    if built.pos_embed is not None:
        _refuse("it has learned and rotary positions at once")
    if rope.grid_indexing != "ij" or rope.grid_offset or rope.normalize_coords != "separate":
        _refuse("its rotary positions are counted otherwise than DINOv3's")
    if rope.min_period is not None and rope.max_period is not None:
        _refuse("its rotary positions have a shortest and a longest period: only a temperature is supported")
    return {"positions": "rotary", "rotary_base": rope.temperature}


def _pooling(built: Any, block: Mapping[str, Any]) -> dict[str, Any]:
    """What the classifier reads."""
    prefix, include = built.num_prefix_tokens, getattr(built, "pool_include_prefix", None)
    pool = "map" if built.attn_pool is not None else built.global_pool
    if pool not in ("token", "avg", "map"):
        _refuse(f"its global_pool={pool!r}: expected 'token', 'avg' or 'map', such as create_model(global_pool='avg')")
    if pool == "avg" and include and prefix:
        _refuse("it averages prefix tokens and patches together")
    if pool == "map":
        if include is False and prefix:  # None: Eva, which always includes them
            _refuse("its attention pooling leaves out the prefix tokens")
        _check_pool(built.attn_pool, block)
    before, after = _is_norm(built.norm), _is_norm(built.fc_norm)
    if before == after:
        _refuse("it norms its tokens twice at the end" if before else "it has no norm at the end")
    if pool == "map" and after:
        _refuse("it norms what its attention pooling returns")
    return {"pooling": {"token": "cls", "avg": "mean", "map": "attention"}[pool], "norm_pooled": after}


def _check_pool(pool: Any, block: Mapping[str, Any]) -> None:
    """Attention pooling that is like ours: the heads, MLP and activation of the blocks, one query."""
    _only(pool, _layers().AttentionPoolLatent)
    _only(pool.mlp, _layers().Mlp)
    plain = (pool.q_norm, pool.k_norm)
    if pool.latent_len != 1 or pool.pos_embed is not None or any(type(part) is not nn.Identity for part in plain):
        _refuse("its attention pooling has several queries, positions or more norms")
    if not (_is_norm(pool.norm) and isinstance(pool.q, nn.Linear) and pool.q.bias is not None):
        _refuse("its attention pooling lacks the norm or the projection of the query, or its bias")
    mlp = _mlp_settings(pool.mlp)
    if pool.num_heads != block["heads"] or any(mlp[name] != block[name] for name in mlp):
        _refuse("its attention pooling has other heads or another MLP than its blocks")


def _is_norm(module: nn.Module) -> bool:
    """Whether there is a layer norm with weight and bias; nothing instead of one is fine, another norm is not."""
    if type(module) is nn.Identity:
        return False
    if (
        type(module) not in (nn.LayerNorm, _layers().LayerNorm, _layers().LayerNormFp32)
        or getattr(module, "bias", None) is None
    ):
        _refuse(f"it norms with {type(module).__name__}: expected LayerNorm with weight and bias")
    return True


def _epsilon(model: nn.Module) -> float:
    values = {module.eps for module in model.modules() if isinstance(module, nn.LayerNorm)}
    if len(values) != 1:
        _refuse(f"its layer norms have different epsilons {sorted(values)}")
    return float(values.pop())


def _only(part: object, *allowed: type) -> None:
    """Refuse what is not exactly of one of these types: a subclass may compute something else."""
    if type(part) not in allowed:
        name, wanted = type(part).__name__, " or ".join(kind.__name__ for kind in allowed)
        _refuse(WHY_NOT.get(name, f"it has a {name} where {wanted} is supported"), name)


def _refuse(why: str, name: str | None = None) -> NoReturn:
    what = f" ({name})" if name else ""
    raise ConvertError(f"This timm model cannot be converted{what}: {why}.")


def _layers() -> Any:
    """The parts of timm, which do not come with types that a checker can follow."""
    import timm.layers

    return timm.layers
