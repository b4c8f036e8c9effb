"""Check that converted timm models give timm's logits, attention and preprocessing, or are refused with a reason."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import skimage.data
import timm
import torch
from timm.data import create_transform, resolve_data_config
from timm.layers import Attention, GluMlp, LayerNorm, RmsNorm
from timm.models.vision_transformer import ParallelThingsBlock, VisionTransformer
from timm_models import FAMILIES, OTHER, ROTARY, SIZES, cait, distilled, eva, naflex, shaken, vit
from torch import Tensor, nn

from vitviz.images.decoding import decode
from vitviz.model.config import ViTConfig
from vitviz.model.vit import ViT
from vitviz.weights.checks import CheckpointError, ConvertError, attach
from vitviz.weights.from_timm import about_timm, convert_timm

pytestmark = pytest.mark.usefixtures("one_thread")


@torch.no_grad()
def check_equal(theirs: Any, ours: ViT, images: Tensor) -> None:
    """Compare outputs, tokens and the attention of every block with timm's unfused path."""
    expected: list[Tensor] = []
    hooks = []
    for module in theirs.blocks.modules():
        if hasattr(module, "attn_drop"):
            module.fused_attn = False
            hooks.append(module.attn_drop.register_forward_hook(lambda _module, _given, out: expected.append(out)))
    logits = theirs(images)
    for hook in hooks:
        hook.remove()
    trace = ours.trace(images)
    count = len(expected) // len(trace.attentions)  # attentions of a block that we show as one
    assert len(expected) == count * len(trace.attentions) == count * len(theirs.blocks)
    expected = [torch.cat(expected[at : at + count], dim=1) for at in range(0, len(expected), count)]
    for block, attention, reference in zip(ours.blocks, trace.attentions, expected, strict=True):
        torch.testing.assert_close(block.attn.talk(attention), reference, rtol=0, atol=1e-5)
        assert reference.std() > 1e-3  # the outputs are not uniform
    tokens, theirs_last = trace.tokens, theirs.forward_features(images)
    if ours.config.pool.blocks:  # timm normalises the class token, which is in front, together with the patches
        tokens, theirs_last = ours.norm(tokens), theirs_last[:, 1:]
    torch.testing.assert_close(tokens, theirs_last, rtol=0, atol=1e-4)
    assert logits[0].std() > 1e-2
    torch.testing.assert_close(ours(images), logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_family_matches_timm(family: str) -> None:
    theirs = FAMILIES[family]()
    ours = convert_timm(theirs)
    assert not ours.training
    for size in (SIZES["img_size"], OTHER) if getattr(theirs, "dynamic_img_size", False) else (SIZES["img_size"],):
        images = torch.randn(2, ours.config.channels, *size, generator=torch.Generator().manual_seed(1))
        check_equal(theirs, ours, images)


# timm's names and tags, built at small sizes.
NAMED = """
    vit_tiny_patch16_224.augreg_in21k_ft_in1k vit_base_patch16_224.mae vit_small_patch16_224.dino
    deit_tiny_patch16_224.fb_in1k deit_tiny_distilled_patch16_224.fb_in1k deit3_small_patch16_224.fb_in22k_ft_in1k
    vit_small_patch14_dinov2.lvd142m vit_small_patch14_reg4_dinov2.lvd142m vit_giant_patch14_dinov2.lvd142m
    vit_base_patch32_clip_quickgelu_224.openai vit_base_patch16_clip_224.openai eva_giant_patch14_224.clip_ft_in1k
    vit_base_patch16_siglip_224.webli vit_base_patch16_siglip_gap_224.webli vit_medium_patch16_gap_240.sw_in12k
    vit_medium_patch16_reg4_gap_256.sbb_in12k_ft_in1k vit_small_patch16_dinov3.lvd1689m
    vit_small_patch16_dinov3_qkvb.lvd1689m vit_small_plus_patch16_dinov3.lvd1689m
    eva02_base_patch14_448.mim_in22k_ft_in22k_in1k eva02_base_patch16_clip_224.merged2b
    vit_pe_spatial_base_patch16_512.fb vit_base_patch16_rope_mixed_ape_224.naver_in1k
    aimv2_large_patch14_224.apple_pt vit_base_patch16_radio_v3.c_radio beit3_base_patch16_224.in22k_ft_in1k
"""


@pytest.mark.parametrize("name", NAMED.split())
def test_named_model_matches_timm(name: str) -> None:
    patch = int(name.partition("patch")[2][:2])
    sizes = {"depth": 2, "embed_dim": 60, "num_heads": 5, "img_size": (3 * patch, 2 * patch)}
    theirs = timm.create_model(name, pretrained=False, **sizes)
    cfg = {**theirs.pretrained_cfg, "crop_mode": "squash", "crop_pct": 1.0}  # the model's own is for square inputs
    theirs.pretrained_cfg = cfg
    ours = convert_timm(shaken(theirs))
    ours = attach(ours, about_timm(cfg, ours.config))
    assert (ours.config.image_size, ours.config.patch_size) == (sizes["img_size"], patch)
    check_equal(theirs, ours, torch.randn(1, 3, *sizes["img_size"]))
    assert ours.pretrained.name == name
    assert ours.pretrained.licence == cfg["license"]
    assert ours.pretrained.source == f"https://huggingface.co/{cfg['hf_hub_id']}"
    assert ours.pretrained.preprocess.mean == tuple(cfg["mean"])
    assert len(ours.pretrained.labels) in (0, ours.config.classes)


@torch.no_grad()
def test_partial_patches_and_fixed_sizes_match_timm() -> None:
    """SigLIP so400m splits 384 pixels into 27 patches of 14 pixels and drops the remaining 6 pixels."""
    name = "vit_so400m_patch14_siglip_384.webli"
    theirs = timm.create_model(name, depth=2, embed_dim=60, num_heads=5, img_size=(47, 59))
    images = torch.randn(1, 3, 47, 59)
    ours = convert_timm(shaken(theirs))
    assert ours.config.image_size == (42, 56)
    torch.testing.assert_close(ours(images[..., :42, :56]), theirs(images), rtol=0, atol=1e-4)
    fixed = vit(dynamic_img_size=False)
    ours = convert_timm(fixed)
    fixed.set_input_size(img_size=OTHER)
    check_equal(fixed, ours, torch.randn(1, 3, *OTHER))
    assert convert_timm(fixed).config.image_size == OTHER


def cfg_of(**changes: Any) -> dict[str, Any]:
    return {**timm.get_pretrained_cfg("vit_tiny_patch16_224").to_dict(), **changes}


@pytest.mark.parametrize(
    ("mode", "share", "side", "interpolation"),
    [
        ("center", 0.9, 224, "bicubic"),
        ("center", 0.875, 240, "bilinear"),
        ("center", 0.95, 384, "bicubic"),
        ("center", 1.0, 256, "lanczos"),
        ("squash", 1.0, 224, "bicubic"),
        ("squash", 0.9, 224, "bicubic"),
        ("border", 1.0, 224, "bicubic"),
    ],
)
def test_preprocessing_matches_timm(mode: str, share: float, side: int, interpolation: str) -> None:
    cfg = cfg_of(crop_mode=mode, crop_pct=share, interpolation=interpolation, input_size=(3, side, side))
    cfg["mean"] = (0.3, 0.4, 0.5)
    prepare = about_timm(cfg, ViTConfig(image_size=(side, side))).preprocess
    assert (prepare.mode == "pad") == (mode == "border")
    transform = create_transform(**resolve_data_config(pretrained_cfg=cfg), is_training=False)
    rounding = 0.5 / 255 / 0.5 if mode == "border" else 0.0  # rounding of the border's colour
    other = about_timm(cfg, ViTConfig(image_size=(96, 96))).preprocess  # preprocessing has the model's size
    assert (other.height, other.width) == (96, 96)
    assert mode != "center" or other.resize == int(96 / share)
    image = decode(skimage.data.chelsea())  # 451 x 300
    for photo in (image, image.rotate(90, expand=True)):
        expected = transform(photo).numpy()
        assert expected.shape == (3, side, side)
        np.testing.assert_allclose(prepare(photo).pixels, expected, rtol=0, atol=rounding + 1e-5)


def test_labels_come_from_the_weights_or_imagenet() -> None:
    pretrained = about_timm(cfg_of(num_classes=1000), ViTConfig(classes=1000))
    assert (pretrained.labels[0], pretrained.class_ids[0]) == ("tench, Tinca tinca", "n01440764")
    assert len(pretrained.labels) == len(pretrained.class_ids) == 1000
    cfg = cfg_of(num_classes=2, label_names=["a", "b"], label_descriptions={"a": "ant"})
    pretrained = about_timm(cfg, ViTConfig(classes=2))
    assert (pretrained.labels, pretrained.class_ids) == (("ant", "b"), ("a", "b"))
    for changes, classes in (
        ({"num_classes": 1000}, 0),
        ({"num_classes": 512}, 1000),  # not the head of the weights
        ({"num_classes": 512}, 512),  # a projection of CLIP, not classes
        ({"num_classes": 1000, "label_offset": 1}, 1000),
    ):
        pretrained = about_timm(cfg_of(**changes), ViTConfig(classes=classes))
        assert (pretrained.labels, pretrained.class_ids) == ((), ())


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"crop_mode": "border", "crop_pct": 0.95}, "crop_mode='border' with crop_pct=0.95"),
        ({"crop_mode": "spiral"}, "crop_mode='spiral'"),
        ({"interpolation": "random"}, "interpolation, got 'random'"),
        ({"mean": None, "crop_pct": None}, "without mean, crop_pct"),
    ],
)
def test_unsupported_preprocessing_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConvertError, match=text):
        about_timm(cfg_of(**changes), ViTConfig(classes=0))


def changed(model: nn.Module, name: str, value: object) -> nn.Module:
    """Return a model with one part replaced in a way that timm's options do not offer."""
    part, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(part), attribute, value)
    return model


def siglip(**changes: Any) -> nn.Module:
    return vit(class_token=False, global_pool="map", **changes)


UNUSUAL: dict[str, Callable[[], nn.Module]] = {
    "another patch shape": lambda: vit(patch_size=(5, 7), img_size=(15, 35)),
    "padded images": lambda: vit(img_size=(17, 35), dynamic_img_pad=True),
    "two kinds of norms": lambda: vit(embed_norm_layer=RmsNorm),
    "parallel with inner norms": lambda: vit(block_fn=ParallelThingsBlock, qk_norm=True),
    "gated attention": lambda: changed(vit(), "blocks.0.attn", Attention(60, num_heads=5, gated=True)),
    "relu": lambda: vit(act_layer=nn.ReLU),
    "another gate": lambda: vit(mlp_layer=GluMlp, act_layer=nn.Sigmoid),
    "norm without weights": lambda: vit(norm_layer=partial(LayerNorm, affine=False)),
    "two norms": lambda: eva(use_post_transformer_norm=True),
    "maximum": lambda: vit(global_pool="max"),
    "no pooling": lambda: vit(global_pool=""),
    "mean with prefix": lambda: vit(global_pool="avg", pool_include_prefix=True),
    "sums of rows and columns": lambda: naflex(pos_embed="factorized", pos_embed_ar_preserving=True),
    "gates and pooling": lambda: eva(global_pool="map", swiglu_mlp=True),
    "shifted rotations": lambda: eva(**ROTARY, rope_grid_offset=0.5),
    "distilled without a classifier": lambda: distilled(num_classes=0),
    "different blocks": lambda: changed(vit(), "blocks.1", vit(num_heads=3).blocks[1]),
    "a bias in half of the MLP": lambda: changed(vit(), "blocks.0.mlp.fc2.bias", None),
    "two epsilons": lambda: changed(vit(), "norm.eps", 0.1),
    "a block without a norm": lambda: changed(vit(), "blocks.0.norm2", nn.Identity()),
    "class attention of patches": lambda: cait(global_pool="avg"),
    "class attention with other heads": lambda: changed(
        cait(), "blocks_token_only.1", cait(num_heads=3).blocks_token_only[1]
    ),
    "no class attention": lambda: cait(depth_token_only=0),
    "positions in pooling": lambda: changed(siglip(), "attn_pool.pos_embed", nn.Parameter(torch.ones(21, 60))),
    "pooling without a norm": lambda: changed(siglip(), "attn_pool.norm", nn.Identity()),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_model_that_computes_something_else_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError):
        convert_timm(UNUSUAL[name]())


@torch.no_grad()
def test_unusual_models_that_compute_the_same_open() -> None:
    for model in (
        shaken(type("Mine", (VisionTransformer,), {})(**SIZES)),
        siglip(fc_norm=True),
        changed(changed(eva(**ROTARY), "rope.min_period", 1.0), "rope.max_period", 9.0),
    ):
        check_equal(model, convert_timm(model), torch.randn(1, 3, *SIZES["img_size"]))


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a plain module": (lambda: nn.Linear(2, 3), r"\(Linear\).*another architecture"),
    "difference": (lambda: vit(attn_layer="diff", embed_dim=60), r"\(DiffAttention\).*difference of two"),
    "refined patches": (lambda: vit(global_pool="prr"), r"\(AttentionPoolPrr\)"),
    "rotations in time": (lambda: eva(**ROTARY | {"rope_type": "mrope"}), r"\(RotaryEmbeddingMRope\).*depend on time"),
}
# Options that make each architecture small.
SMALL: dict[str, Any] = {"embed_dim": 60, "depth": 1, "num_heads": 5}
SWIN: dict[str, Any] = {"embed_dim": 12, "depths": (1, 1), "num_heads": (1, 1)}
MAXVIT: dict[str, Any] = {"depths": (1,), "embed_dim": (32,), "block_type": ("M",)}
REFUSED |= {
    name: (partial(timm.create_model, name, **sizes), words)
    for name, sizes, words in (
        ("vit_tiny_r_s16_p8_224", SMALL | {"img_size": 64}, r"\(HybridEmbed\).*convolutional"),
        ("swinv2_cr_tiny_ns_224", SWIN, r"\(SwinTransformerV2Cr\).*its windows run as they are"),
        ("maxvit_rmlp_pico_rw_256", MAXVIT, r"\(MaxxVit\).*convolutions between attention"),
        ("xcit_nano_12_p16_224", SMALL | {"embed_dim": 64, "num_heads": 4}, r"\(Xcit\).*between channels"),
    )
}


@pytest.mark.parametrize(("build", "text"), REFUSED.values(), ids=REFUSED)
def test_unsupported_model_is_refused_with_the_reason(build: Callable[[], nn.Module], text: str) -> None:
    with pytest.raises(ConvertError, match=text):
        convert_timm(build())
