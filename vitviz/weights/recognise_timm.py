"""State dicts in timm's names, and in those of facebookresearch that differ a little -> settings for `timm_model`.

One name may stand for several models here. EVA-02 and its kin turn queries and keys by rotations that have no weights:
their names are refused, because nothing would show that the rotation was forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitviz.config import ViTConfig
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
from vitviz.weights.from_timm import timm_model
from vitviz.weights.parts import State
from vitviz.weights.source import ConvertError

CHUNK = r"^blocks\.\d+\.(\d+)\."  # blocks in chunks, as DINOv2 trains them; the second number is the block's own
MARKS = ("patch_embed.proj.weight", "blocks.0.norm1.weight")

# What training leaves behind; no image meets it afterwards.
_UNREAD = (
    (r"mask_token$", "mask token"),  # stands in for hidden patches
    (r"decoder_(embed|pos_embed|blocks|norm|pred)\b", "decoder of MAE"),  # paints the hidden patches
    (r"local_cls_norm\.", "norm of local crops"),
    (r"rope_embed\.periods$", ""),  # the rotations themselves: always the same numbers, checked when converted
    (r"blocks\.\d+\.attn\.qkv\.bias_mask$", ""),  # zero for keys, which `_keyless` does
)
_ROTARY_BASE = 100.0
_MOCO_WIDTH = 384
_PERIODS = "rope_embed.periods"


def recognise_timm(found: Shapes, family: str | None, heads: int | None) -> Recognised:
    """The settings of a state dict in timm's names or facebookresearch's; see `recognise`."""
    ours, unread, left_out = _timm_names(found)
    shapes = {name: found[theirs] for name, theirs in ours.items()}
    own = "register_tokens" in found or "storage_tokens" in found or "mask_token" in found
    rotary, eva = "pos_embed" not in shapes, "blocks.0.gamma_1" in shapes
    family = _family(shapes, family, rotary=rotary, eva=eva, facebook=_PERIODS in found or "storage_tokens" in found)
    width, channels, patch = patch_of(shapes, "patch_embed.proj.weight")
    layout = _layout(shapes, eva)
    block = _block(shapes, family)
    told = found[_PERIODS][0] * 4 if len(found.get(_PERIODS, ())) == 1 else None
    told = shapes["blocks.0.attn.q_norm.weight"][0] if block["qk_norm"] else told
    inner = shape_of(shapes, "blocks.0.attn.proj.weight", 2)[1]
    count, words = heads_of(
        width,
        inner,
        heads,
        told=told,
        published=DINOV3_HEADS if rotary else DINOV2_HEADS if block["layer_scale"] else None,
        sure=rotary or block["qkv_bias"],  # without biases other widths of a head have been published
    )
    tokens = _tokens(shapes)
    side, front = _grid(shapes, tokens, patch)
    head = shapes.get("head.weight", (0, 0))
    pooling, pooled = _pooling(shapes, head, width, mean=rotary and eva)
    config = ViTConfig(
        image_size=(side * patch, side * patch),
        patch_size=patch,
        channels=channels,
        width=width,
        depth=count_blocks(shapes, r"blocks\.(\d+)\."),
        heads=count,
        head_width=inner // count,
        classes=head[0],
        pooling=pooling,
        norm_pooled=pooled,
        positions="rotary" if rotary else "learned",
        # DINOv2's own code filters positions only in its models with registers.
        position_antialias=not (own and not tokens["registers"]),
        rotary_base=_ROTARY_BASE,
        norm_pre="norm_pre.weight" in shapes,
        norm_eps=FAMILIES[family].norm_eps,
        patch_bias="norm_pre.weight" not in shapes,  # CLIP alone has none; elsewhere one that is missing is a fault
        **tokens,
        **block,
    )
    layout["prefix_positions"] = front == len(config.prefix) and front > 0
    settings = config.to_dict() | layout

    def convert(tensors: Mapping[str, Tensor]) -> tuple[ViTConfig, State]:
        named = {name: tensors[theirs].float() for name, theirs in ours.items()}
        if heads is None and told is None and width == _MOCO_WIDTH and front and not named["pos_embed"][:, 0].any():
            raise ConvertError(
                "Fixed positions at this width are those of MoCo v3's ViT-S, which has 12 heads where others have 6; "
                "nothing in the file says which. Expected the number of heads: pass --heads 12 (heads=12 in Python)."
            )
        if _PERIODS in found:
            _check_periods(tensors[_PERIODS])
        if rotary and not eva:
            _keyless(named, width=inner)
        if 0 < front < len(config.prefix):  # DINOv2 with registers: only the class token has a position
            named["cls_token"] = named["cls_token"] + named["pos_embed"][:, :1]
            named["pos_embed"] = named["pos_embed"][:, 1:]
        if config.pooling == "cls+mean":  # no head of timm's, but of models saved here, in their own names
            return config, {name: tensor.clone() for name, tensor in named.items()}
        return timm_model(named, settings)

    assumed = [words, f"norm epsilon {config.norm_eps:g}", *_said(config, rotary)]
    return Recognised(
        family=family,
        names="facebookresearch's" if own or _PERIODS in found else "timm's",
        convert=convert,
        assumed=tuple(word for word in assumed if word),
        left_out=left_out,
        unread=unread,
    )


def _timm_names(found: Shapes) -> tuple[dict[str, str], frozenset[str], tuple[str, ...]]:
    """Timm's names -> names in the file; those that are not read; and what they are, in words."""
    ours: dict[str, str] = {}
    unread: dict[str, str] = {}
    gated = any(re.search(r"\.mlp\.w12\.", name) for name in found)
    for theirs in found:
        if words := [words for pattern, words in _UNREAD if re.match(pattern, theirs)]:
            unread[theirs] = words[0]
            continue
        name = re.sub(CHUNK, r"blocks.\1.", theirs)
        name = re.sub(r"^(register|storage)_tokens$", "reg_token", name)
        for old, new in (("w12", "fc1"), ("w1", "fc1_g"), ("w2", "fc1_x"), ("w3", "fc2")):
            if old != "w1" or not gated:
                name = name.replace(f".mlp.{old}.", f".mlp.{new}.")
        if name in ours:
            raise ConvertError(f"Expected each tensor once, but {theirs!r:.80} and {ours[name]!r:.80} are the same.")
        ours[name] = theirs
    return ours, frozenset(unread), tuple(sorted({words for words in unread.values() if words}))


def _family(shapes: Shapes, asked: str | None, *, rotary: bool, eva: bool, facebook: bool) -> str:
    """Which family has these names."""
    cls, pool = "cls_token" in shapes, "attn_pool.latent" in shapes
    scaled, registers = "blocks.0.ls1.gamma" in shapes, "reg_token" in shapes
    if rotary:
        if not (cls and registers and (eva or scaled)):
            raise ConvertError(
                "There is no position table: nothing tells whether positions are rotary, fixed, or not there. Load "
                "the folder with its settings, or the model by its library's name."
            )
        return choose(
            asked, ("dinov3",), "whether positions are rotary, fixed, or not there", ask=not (eva or facebook)
        )
    if eva or any(f"blocks.0.{name}" in shapes for name in ("attn.q_bias", "attn.q_proj.weight", "mlp.fc1_g.weight")):
        raise ConvertError(
            "These are weights of an EVA model with a position table, which cannot be loaded from one file: nothing "
            "tells whether it turns queries and keys as well. Load the model by its library's name (timm:NAME)."
        )
    if pool or "norm_pre.weight" in shapes:
        if (pool and cls) or (not pool and not cls) or scaled or registers:
            raise ConvertError(
                "These look like weights of a Perception Encoder, which are not supported: it turns queries and keys "
                "by rotations that no weight shows."
            )
        return choose(asked, ("siglip", "siglip-tanh") if pool else ("clip", "clip-quickgelu"), "the MLP's activation")
    if not (cls or scaled or registers):
        return choose(asked, ("vit", "siglip", "siglip-tanh"), "the MLP's activation, and how photographs are prepared")
    return choose(asked, ("vit",))


def _layout(shapes: Shapes, eva: bool) -> dict[str, Any]:
    """How the tensors are arranged: the fields of timm's `Layout` but one."""
    at = "blocks.0.attn."
    split = at + "q_proj.weight" in shapes
    name = "_proj.bias" if split else "_bias"
    biased = "qkv" if at + "qkv.bias" in shapes else "".join(part for part in "qkv" if at + part + name in shapes)
    return {
        "split": split,
        "biased": biased,
        "output_bias": at + "proj.bias" in shapes,
        "gate_apart": "blocks.0.mlp.fc1_g.weight" in shapes,
        "eva": eva,
        "interleaved": False,
    }


def _block(shapes: Shapes, family: str) -> dict[str, Any]:
    """What one block computes; the converter checks that all are like the first."""
    hidden = shape_of(shapes, "blocks.0.mlp.fc2.weight", 2)[1]
    apart = "blocks.0.mlp.fc1_g.weight" in shapes
    gated = apart or shape_of(shapes, "blocks.0.mlp.fc1.weight", 2)[0] == 2 * hidden
    more: dict[str, Any] = {"mlp": "swiglu"} if gated else {"activation": FAMILIES[family].activation}
    biases = ("qkv.bias", "q_bias", "q_proj.bias", "v_bias", "v_proj.bias")
    scaled = "blocks.0.ls1.gamma" in shapes or "blocks.0.gamma_1" in shapes
    return {
        "mlp_width": hidden,
        "mlp_bias": "blocks.0.mlp.fc2.bias" in shapes,
        "qkv_bias": any(f"blocks.0.attn.{name}" in shapes for name in biases),
        "qk_norm": "blocks.0.attn.q_norm.weight" in shapes,
        "layer_scale": 1e-5 if scaled else None,  # where training began; the scales themselves are weights
        **more,
    }


def _tokens(shapes: Shapes) -> dict[str, Any]:
    return {
        "class_token": "cls_token" in shapes,
        "distillation_token": "dist_token" in shapes,
        "registers": shape_of(shapes, "reg_token", 3)[1] if "reg_token" in shapes else 0,
    }


def _grid(shapes: Shapes, tokens: Mapping[str, Any], patch: int) -> tuple[int, int]:
    """The side of the grid in patches, and the rows of the position table in front of it."""
    if "pos_embed" not in shapes:
        return max(1, 224 // patch), 0
    prefix = tokens["class_token"] + tokens["distillation_token"] + tokens["registers"]
    front = {0, prefix} | ({1} if tokens["registers"] and tokens["class_token"] else set())
    return side_of(shape_of(shapes, "pos_embed", 3)[1], front)


def _pooling(shapes: Shapes, head: tuple[int, ...], width: int, mean: bool) -> tuple[Any, bool]:
    """What the classifier reads, and whether the norm comes after the pooling."""
    if "attn_pool.latent" in shapes:
        return "attention", False
    if "cls_token" not in shapes or "fc_norm.weight" in shapes or mean:
        return "mean", "fc_norm.weight" in shapes
    return ("cls+mean" if head[1:] == (2 * width,) else "cls"), False


def _said(config: ViTConfig, rotary: bool) -> list[str]:
    """What else was taken from convention."""
    activation = {"gelu": "exact GELU", "gelu_tanh": "GELU by tanh", "quick_gelu": "QuickGELU"}[config.activation]
    words = [] if config.mlp == "swiglu" else [activation]
    if rotary:
        words += [f"rotary positions of base {config.rotary_base:g}", f"image size {config.image_size[0]}"]
    if config.class_token and config.pooling == "cls" and config.classes:
        words.append("a classifier that reads the class token")
    if config.class_token and config.pooling == "mean":
        words.append("pooling over the patches, as in timm")
    return words


def _keyless(named: dict[str, Tensor], width: int) -> None:
    """DINOv3's keys have no bias: facebookresearch multiplies what is stored for them by a mask of zeros."""
    for name in [name for name in named if name.endswith("attn.qkv.bias")]:
        bias = named[name].clone()
        bias[width : 2 * width] = 0.0
        named[name] = bias


def _check_periods(periods: Tensor) -> None:
    """The rotations are those that the model computes: base ** (4 i / d) for i = 0, 1, ..., d / 4 - 1."""
    count = len(periods)
    expected = _ROTARY_BASE ** (torch.arange(count) / count)
    if not torch.allclose(periods.float(), expected, rtol=2e-2):
        raise ConvertError(f"Expected DINOv3's rotations of base {_ROTARY_BASE:g}, got others in {_PERIODS!r}.")
