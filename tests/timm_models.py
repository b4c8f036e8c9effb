"""Make small random timm models, one for each family, and files of their weights."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from timm.layers import GELU, GluMlp, LayerNorm, QuickGELU, RmsNorm, SwiGLU, SwiGLUPacked
from timm.models.beit import Beit
from timm.models.cait import Cait
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva
from timm.models.naflexvit import NaFlexVit, NaFlexVitCfg
from timm.models.vision_transformer import (
    ParallelScalingBlock,
    ParallelThingsBlock,
    ResPostBlock,
    VisionTransformer,
)
from timm.models.vision_transformer_relpos import ResPostRelPosBlock, VisionTransformerRelPos
from tiny import shaken
from torch import Tensor, nn

from vitviz.model.vit import ViT

# Each size is a different prime (times its required divisor), so that a swapped axis cannot fit by chance.
SIZES: dict[str, Any] = {"img_size": (3 * 5, 7 * 5), "patch_size": 5, "embed_dim": 5 * 12, "depth": 3}
SIZES |= {"num_heads": 5, "mlp_ratio": 2.2, "num_classes": 29, "dynamic_img_size": True}
OTHER = (11 * 5, 2 * 5)  # a grid that differs in both directions
ROTARY: dict[str, Any] = {"rope_type": "dinov3", "rope_temperature": 31.0, "rope_rotate_half": True}
ROTARY |= {"use_rot_pos_emb": True, "use_abs_pos_emb": False, "num_reg_tokens": 2, "use_fc_norm": False}
ROTARY |= {"init_values": 0.5, "norm_layer": partial(LayerNorm, eps=1e-3)}
INDEX: dict[str, Any] = {"use_rot_pos_emb": True, "ref_feat_shape": (7, 3), "norm_layer": partial(LayerNorm, eps=1e-3)}


def vit(**changes: Any) -> nn.Module:
    return shaken(VisionTransformer(**{**SIZES, **changes}))


def distilled(**changes: Any) -> nn.Module:
    return shaken(VisionTransformerDistilled(**{**SIZES, **changes}))


def eva(**changes: Any) -> nn.Module:
    return shaken(Eva(**{**SIZES, **changes}))


FIXED = {name: value for name, value in SIZES.items() if name != "dynamic_img_size"}


def beit(**changes: Any) -> nn.Module:
    return shaken(Beit(**FIXED, **{"use_rel_pos_bias": True, "use_abs_pos_emb": False, **changes}))


def relpos(**changes: Any) -> nn.Module:
    return shaken(VisionTransformerRelPos(**{**FIXED, "class_token": True, "init_values": 0.5, **changes}))


def cait(**changes: Any) -> nn.Module:
    return shaken(Cait(**{**FIXED, "init_values": 0.5, "mlp_ratio_token_only": 3.0, **changes}))


def naflex(**changes: Any) -> nn.Module:
    sizes = {"patch_size": 5, "embed_dim": 60, "depth": 3, "num_heads": 5, "mlp_ratio": 2.2, "reg_tokens": 2}
    model = NaFlexVit(NaFlexVitCfg(**{**sizes, "pos_embed_grid_size": (3, 7), **changes}), num_classes=29)
    model.dynamic_img_size = True
    return shaken(model)


FAMILIES: dict[str, Callable[..., nn.Module]] = {
    "vit": vit,
    "vit without a classifier": partial(vit, num_classes=0),
    "vit of one colour": partial(vit, in_chans=1),
    "vit without biases": partial(vit, qkv_bias=False, proj_bias=False),
    "vit without positions": partial(vit, pos_embed="none"),
    "deit": distilled,
    "deit3": partial(vit, no_embed_class=True, init_values=1e-6),
    "dinov2": partial(vit, init_values=1e-5, num_classes=0),
    "dinov2 with registers": partial(vit, init_values=1e-5, reg_tokens=2, no_embed_class=True),
    "registers with positions": partial(vit, reg_tokens=2),
    "dinov2 giant": partial(vit, mlp_layer=SwiGLUPacked, act_layer=nn.SiLU, init_values=1e-5),
    "gated by gelu": partial(vit, mlp_layer=GluMlp, act_layer="gelu_tanh"),
    "gated by relu, gate first": partial(vit, mlp_layer=partial(GluMlp, gate_last=False), act_layer=nn.ReLU),
    "clip": partial(vit, pre_norm=True, norm_layer=partial(LayerNorm, eps=1e-5), act_layer=QuickGELU),
    "clip with exact gelu": partial(vit, pre_norm=True, norm_layer=nn.LayerNorm, act_layer=GELU),
    "siglip": partial(vit, class_token=False, global_pool="map", act_layer="gelu_tanh"),
    "siglip with exact gelu": partial(vit, class_token=False, global_pool="map"),
    "siglip with torch's gelu": partial(
        vit, class_token=False, global_pool="map", act_layer=partial(nn.GELU, approximate="tanh")
    ),
    "siglip without a classifier": partial(vit, class_token=False, global_pool="map", num_classes=0),
    "attention pooling over prefix and patches": partial(vit, global_pool="map", pool_include_prefix=True),
    "gap": partial(vit, class_token=False, global_pool="avg", reg_tokens=2, no_embed_class=True),
    "gap with a class token": partial(vit, global_pool="avg"),
    "gap, norm before": partial(vit, class_token=False, global_pool="avg", fc_norm=False),
    "qk norm": partial(vit, qk_norm=True, norm_layer=partial(LayerNorm, eps=1e-2)),
    "eva": eva,
    "eva without a bias": partial(eva, qkv_bias=False, global_pool="token"),
    "eva with attention pooling": partial(eva, global_pool="map"),
    "beit": partial(beit, init_values=0.5),
    "beit, one shared table": partial(beit, use_rel_pos_bias=False, use_shared_rel_pos_bias=True, global_pool="token"),
    "beit, both tables and positions": partial(
        beit, use_shared_rel_pos_bias=True, use_abs_pos_emb=True, swiglu_mlp=True
    ),
    "cait": cait,
    "cait without biases and a classifier": partial(cait, qkv_bias=False, num_classes=0, depth_token_only=1),
    "relative positions by a network": partial(relpos, fc_norm=True),
    "relative positions by Swin v2's network": partial(relpos, rel_pos_type="mlp-swin", class_token=False),
    "relative positions by a table": partial(relpos, rel_pos_type="bias", global_pool="token", qk_norm=True),
    "relative positions shared": partial(relpos, shared_rel_pos=True, rel_pos_dim=7),
    "dinov3": partial(eva, **ROTARY, qkv_bias=False),
    "dinov3 with biases": partial(eva, **ROTARY, global_pool="token"),
    "dinov3 swiglu": partial(eva, **ROTARY, swiglu_mlp=True, swiglu_align_to=8),
    "rotary, packed swiglu": partial(eva, **ROTARY, swiglu_mlp=True),
    "rotary, neighbours turned": partial(eva, **ROTARY | {"rope_rotate_half": False}),
    "rotary, neighbours turned, qk norm": partial(eva, **ROTARY | {"rope_rotate_half": False}, qk_norm=True),
    "eva02": partial(eva, **INDEX, swiglu_mlp=True, scale_mlp=True, qkv_fused=False, qk_norm=True),
    "eva02 with inner norms": partial(eva, **INDEX, swiglu_mlp=True, scale_mlp=True, scale_attn_inner=True),
    "eva02 with norms after": partial(eva, **INDEX, use_post_norm=True, init_values=0.5, global_pool="token", depth=2),
    "perception encoder": partial(
        eva,
        **INDEX,
        attn_type="rope",
        rope_grid_offset=1.0,
        rope_grid_indexing="xy",
        use_pre_transformer_norm=True,
        global_pool="map",
        attn_pool_num_heads=3,
    ),
    "rotary by axis, columns first": partial(
        eva,
        **INDEX | {"use_abs_pos_emb": False, "ref_feat_shape": None},
        rope_grid_indexing="xy",
        rope_rotate_half=True,
    ),
    "learned rotations": partial(eva, **INDEX | {"rope_type": "mixed"}, rope_grid_indexing="xy", no_embed_class=True),
    "learned rotations, rows first": partial(eva, **INDEX | {"rope_type": "mixed", "use_abs_pos_emb": False}),
    "sapiens2": partial(
        eva,
        **ROTARY | {"norm_layer": partial(RmsNorm, eps=1e-3)},
        attn_type="rope",
        qkv_fused=False,
        qk_norm=True,
        num_kv_heads=(1, 5, 1),
        attn_only_layer_scale=True,
        swiglu_mlp=True,
    ),
    "no norm at the end": partial(vit, final_norm=False),
    "aimv2": partial(
        vit,
        class_token=False,
        fc_norm=False,
        global_pool="avg",
        qkv_bias=False,
        proj_bias=False,
        act_layer="silu",
        norm_layer=partial(RmsNorm, eps=1e-3),
        embed_norm_layer=partial(RmsNorm, eps=1e-3),
        mlp_layer=SwiGLU,
    ),
    "beit3": partial(vit, scale_attn_norm=True, scale_mlp_norm=True),
    "norms after": partial(vit, block_fn=ResPostBlock, depth=2),
    "relative positions, norms after": partial(relpos, block_fn=ResPostRelPosBlock, init_values=None, depth=2),
    "parallel": partial(vit, block_fn=ParallelScalingBlock, init_values=0.5, qk_norm=True),
    "parallel, one output": partial(
        vit, block_fn=partial(ParallelScalingBlock, fuse_out_proj=True), qkv_bias=False, proj_bias=False
    ),
    "two attentions and two MLPs": partial(vit, block_fn=ParallelThingsBlock, init_values=0.5),
    "two attentions without biases": partial(vit, block_fn=ParallelThingsBlock, qkv_bias=False, proj_bias=False),
    "naflex": partial(naflex, global_pool="avg", fc_norm=True, init_values=0.5, pos_embed_interp_mode="bilinear"),
    "naflex, cropped positions": partial(
        naflex, class_token=True, global_pool="token", final_norm=False, pos_embed_ar_preserving=True
    ),
    "naflex, aligned corners": partial(
        naflex,
        class_token=True,
        pos_embed_align_corners=True,
        pos_embed_interp_mode="bilinear",
        pos_embed_antialias=False,
        global_pool="token",
    ),
    "naflex, sums of rows and columns": partial(naflex, pos_embed="factorized", global_pool="avg"),
    "naflex, sums of rows and columns, cropped": partial(
        naflex, pos_embed="factorized", global_pool="avg", pos_embed_ar_preserving=True, pos_embed_grid_size=(5, 5)
    ),
    "naflex with attention pooling": partial(naflex, global_pool="map", class_token=True, embed_proj_type="conv"),
    "naflex, rotary": partial(naflex, pos_embed="none", rope_type="axial", global_pool="avg"),
    "attention pooling with another MLP": partial(eva, global_pool="map", attn_pool_mlp_ratio=3.0),
    "attention pooling of patches": partial(vit, global_pool="map", reg_tokens=2, pool_include_prefix=False),
    "rotary, three projections": partial(eva, **ROTARY, qkv_fused=False),
    "rotary, three projections without a bias": partial(eva, **ROTARY, qkv_fused=False, qkv_bias=False),
    "rotary, plain attention": partial(eva, **ROTARY, attn_type="rope"),
    "rotary, plain attention, three projections": partial(eva, **ROTARY, attn_type="rope", qkv_fused=False),
}

REARRANGED = {"relative positions by a network", "relative positions by Swin v2's network", "relative positions shared"}
REARRANGED |= {"relative positions, norms after", "sapiens2", "parallel", "parallel, one output"}
REARRANGED |= {"gated by gelu"}
REARRANGED |= {name for name in FAMILIES if name.startswith("naflex")}
REARRANGED |= {"two attentions and two MLPs", "two attentions without biases"}
"""Families whose files can be read only with the model."""


# --- single files of weights

State = dict[str, Tensor]
PIXELS = 35  # timm's tiny models take 7 x 7 patches of 5 x 5 pixels
SQUARE: dict[str, Any] = {"img_size": PIXELS, "norm_layer": partial(LayerNorm, eps=1e-6)}
EPS5: dict[str, Any] = {"img_size": PIXELS, "norm_layer": partial(LayerNorm, eps=1e-5)}
DINOV3: dict[str, Any] = ROTARY | EPS5 | {"rope_temperature": 100.0}


def state_of(model: nn.Module) -> State:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def written(state: State, folder: Path, suffix: str) -> Path:
    path = folder / f"weights{suffix}"
    if suffix == ".safetensors":
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=suffix != ".bin")  # .bin: the format before torch 1.6
    return path


@torch.no_grad()
def assert_equal(model: ViT, theirs: Callable[[Tensor], Tensor], side: int = PIXELS) -> None:
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(5))
    expected = theirs(images)
    assert expected[0].std() > 1e-2
    torch.testing.assert_close(model(images), expected, rtol=0, atol=1e-4)
    assert not model.training


def of(family: str, **changes: Any) -> Callable[[], nn.Module]:
    """Return one of `FAMILIES` as published: square, with its usual epsilons and rotations."""
    rotary = "dinov3" in family
    usual = EPS5 | {"rope_temperature": 100.0} if rotary else EPS5 if "clip" in family else SQUARE
    return partial(FAMILIES[family], **(usual | changes))


# Models whose names and shapes determine their settings, and models that need `like`.
TIMM: dict[str, Callable[[], nn.Module]] = {
    **{name: of(name) for name in ("vit", "vit without a classifier", "deit", "deit3", "dinov2", "dinov2 giant")},
    "vit without qkv biases": of("vit", qkv_bias=False),
    "cait": of("cait"),
    "dinov2 with registers": of("dinov2 with registers", reg_tokens=4),
    "mae, fine-tuned": of("gap with a class token"),
    "gap with registers": of("gap", fc_norm=False),
    "dinov3": of("dinov3", num_classes=0),
    "dinov3 with biases": of("dinov3 with biases", global_pool="avg"),
    "dinov3 swiglu": of("dinov3 swiglu"),
}
UNDETERMINED: dict[str, Callable[[], nn.Module]] = {
    "gap": of("gap, norm before", fc_norm=None),
    "clip": of("clip with exact gelu"),
    "siglip": of("siglip"),
    "qk norm": of("qk norm"),
    "eva": of("eva"),
    "one rotary projection": of("dinov3 with biases", num_reg_tokens=0),
}
