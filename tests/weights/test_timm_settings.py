"""What of timm cannot be converted is refused with the reason; what can be is read without its weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import timm
import torch
from timm.layers import Attention, LayerNorm, RmsNorm, SwiGLUPacked
from timm.models.vision_transformer import (
    ParallelScalingBlock,
    ParallelThingsBlock,
    ResPostBlock,
    VisionTransformer,
)
from timm_models import ROTARY, SIZES, distilled, eva, vit
from torch import nn

from vitviz.weights.checks import ConvertError
from vitviz.weights.from_timm import config_of, convert_timm


def test_settings_can_be_read_without_weights() -> None:
    with torch.device("meta"):
        theirs = timm.create_model("vit_huge_plus_patch16_dinov3")
    config, interleaved = config_of(theirs)
    assert (config.width, config.depth, config.positions) == (1280, 32, "rotary")
    assert (config.mlp, config.registers, config.pooling) == ("swiglu", 4, "mean")
    assert not interleaved


def mixed_blocks() -> nn.Module:
    model = vit()
    model.blocks[1] = vit(num_heads=3).blocks[1]
    return model


def changed(model: nn.Module, name: str, value: object) -> nn.Module:
    """A model of which a part was exchanged by hand, as timm's own options do not."""
    part, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(part), attribute, value)
    return model


def siglip(**changes: Any) -> nn.Module:
    return vit(class_token=False, global_pool="map", **changes)


TURNED = ROTARY | {"rope_rotate_half": False}
REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a plain module": (lambda: nn.Linear(2, 3), r"\(Linear\).*VisionTransformer or VisionTransformerDistilled or Eva"),
    "a subclass": (lambda: type("Mine", (VisionTransformer,), {})(**SIZES), r"\(Mine\)"),
    "another patch shape": (lambda: vit(patch_size=(5, 7), img_size=(15, 35)), r"patches of \(5, 7\) are no squares"),
    "padded images": (lambda: vit(img_size=(17, 35), dynamic_img_pad=True), r"of \(17, 35\).*dynamic_img_pad=False"),
    "patch norm": (lambda: vit(embed_norm_layer=LayerNorm), "patch embedding ends in a norm"),
    "parallel": (lambda: vit(block_fn=ParallelScalingBlock), r"\(ParallelScalingBlock\): attention and MLP lie side"),
    "twice parallel": (lambda: vit(block_fn=ParallelThingsBlock), "several attentions lie side by side"),
    "post norm": (lambda: vit(block_fn=ResPostBlock), "norm what a branch returns"),
    "post norm in eva": (lambda: eva(use_post_norm=True), r"\(EvaBlockPostNorm\)"),
    "difference": (lambda: vit(attn_layer="diff", embed_dim=60), r"\(DiffAttention\).*difference of two"),
    "norm in attention": (lambda: vit(scale_attn_norm=True), "norms inside"),
    "norm in the MLP": (lambda: vit(scale_mlp_norm=True), "norms inside"),
    "gated attention": (lambda: vit(attn_layer=gated()), "gated"),
    "shared keys": (lambda: eva(**ROTARY, attn_type="rope", qkv_fused=False, num_kv_heads=1), "grouped-query"),
    "scale of attention alone": (lambda: eva(init_values=0.1, attn_only_layer_scale=True), "scales attention and not"),
    "relu": (lambda: vit(act_layer=nn.ReLU), "activation of its MLP is ReLU"),
    "another gate": (lambda: vit(mlp_layer=partial(SwiGLUPacked, gate_last=True)), "second half"),
    "rms norm": (lambda: vit(norm_layer=RmsNorm), "norms with RmsNorm"),
    "norm without weights": (lambda: vit(norm_layer=partial(LayerNorm, affine=False)), "weight and bias"),
    "two norms": (lambda: eva(use_post_transformer_norm=True), "norms its tokens twice"),
    "no norm": (lambda: vit(final_norm=False), "no norm at the end"),
    "maximum": (lambda: vit(global_pool="max"), "global_pool='max'"),
    "no pooling": (lambda: vit(global_pool=""), "global_pool=''"),
    "refined patches": (lambda: vit(global_pool="prr"), r"\(AttentionPoolPrr\)"),
    "mean with prefix": (lambda: vit(global_pool="avg", pool_include_prefix=True), "averages prefix tokens"),
    "a norm after pooling": (lambda: siglip(fc_norm=True), "norms what its attention"),
    "pooling without prefix": (lambda: vit(global_pool="map"), "leaves out the prefix"),
    "other heads in pooling": (lambda: eva(global_pool="map", attn_pool_num_heads=3), "other heads or another MLP"),
    "another MLP in pooling": (lambda: eva(global_pool="map", attn_pool_mlp_ratio=3.0), "other heads or another MLP"),
    "gates and pooling": (lambda: eva(global_pool="map", swiglu_mlp=True), "other heads or another MLP"),
    "both positions": (lambda: eva(**ROTARY | {"use_abs_pos_emb": True}), "learned and rotary positions at once"),
    "eva02": (lambda: eva(**ROTARY | {"rope_type": "cat"}), r"\(RotaryEmbeddingCat\)"),
    "learned rotations": (lambda: eva(**TURNED | {"rope_type": "mixed"}), r"\(RotaryEmbeddingMixed\)"),
    "columns first": (lambda: eva(**ROTARY, rope_grid_indexing="xy"), "counted otherwise"),
    "shifted rotations": (lambda: eva(**ROTARY, rope_grid_offset=0.5), "counted otherwise"),
    "distilled without a classifier": (lambda: distilled(num_classes=0), "distillation token"),
    "different blocks": (mixed_blocks, "blocks 0 and 1 differ in heads, head_width"),
    "a bias in half of the MLP": (lambda: changed(vit(), "blocks.0.mlp.fc2.bias", None), "one layer of its MLP has a"),
    "two epsilons": (lambda: changed(vit(), "norm.eps", 0.1), r"different epsilons \[1e-06, 0.1\]"),
    "a block without a norm": (lambda: changed(vit(), "blocks.0.norm2", nn.Identity()), "lack a norm"),
    "least and greatest period": (
        lambda: changed(changed(eva(**ROTARY), "rope.min_period", 1.0), "rope.max_period", 9.0),
        "shortest and a longest period",
    ),
    "positions in pooling": (
        lambda: changed(siglip(), "attn_pool.pos_embed", nn.Parameter(torch.ones(21, 60))),
        "several queries, positions or more norms",
    ),
    "pooling without a norm": (lambda: changed(siglip(), "attn_pool.norm", nn.Identity()), "lacks the norm or the pro"),
}
# The smallest of each architecture, by what makes it small.
SMALL: dict[str, Any] = {"embed_dim": 60, "depth": 1, "num_heads": 5}
SWIN: dict[str, Any] = {"embed_dim": 12, "depths": (1, 1), "num_heads": (1, 1)}
MAXVIT: dict[str, Any] = {"depths": (1,), "embed_dim": (32,), "block_type": ("M",)}
REFUSED |= {
    name: (partial(timm.create_model, name, **sizes), words)
    for name, sizes, words in (
        ("vit_tiny_r_s16_p8_224", SMALL | {"img_size": 64}, r"\(HybridEmbed\).*convolutional"),
        ("swin_tiny_patch4_window7_224", SWIN, r"\(SwinTransformer\).*windowed"),
        ("maxvit_rmlp_pico_rw_256", MAXVIT, r"\(MaxxVit\).*windows and grids"),
        ("beit_base_patch16_224", SMALL, r"\(Beit\).*bias for relative positions"),
        ("vit_relpos_small_patch16_224", SMALL, r"\(VisionTransformerRelPos\).*bias for relative"),
        ("cait_xxs24_224", SMALL, r"\(Cait\).*talking heads"),
        ("xcit_nano_12_p16_224", SMALL | {"embed_dim": 64, "num_heads": 4}, r"\(Xcit\).*between channels"),
        ("vit_tiny_patch16_224", SMALL | {"use_naflex": True}, r"\(NaFlexVit\).*the vit_ model of the same size"),
    )
}


def gated() -> type[nn.Module]:
    """A class, as timm asks for one, that makes gated attentions of timm's own class."""

    class Gated(Attention):
        def __new__(cls, *args: Any, **words: Any) -> Any:
            return Attention(*args, **words, gated=True)

    return Gated


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_converted_is_refused_with_the_reason(what: str) -> None:
    build, text = REFUSED[what]
    with pytest.raises(ConvertError, match=text):
        convert_timm(build())
