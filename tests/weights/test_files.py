"""One file of weights: the family is recognised, what was assumed is said, the numbers are those of the library."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import hf_cases
import pytest
import timm
import torch
from timm.layers import SwiGLUPacked
from timm_models import eva, shaken, vit
from torch import nn
from torchvision.models import VisionTransformer as TorchvisionViT
from weight_files import DINOV3, PIXELS, SQUARE, TIMM, State, assert_equal, state_of, written

import vitviz
from vitviz.model.vit import ViT
from vitviz.weights.checkpoint import save
from vitviz.weights.checks import CheckpointError, ConvertError
from vitviz.weights.files import load_file
from vitviz.weights.infer import Architecture

pytestmark = pytest.mark.usefixtures("one_thread")


# --- timm's names


@pytest.mark.parametrize("suffix", [".pt", ".bin", ".safetensors"])
@pytest.mark.parametrize("family", TIMM)
def test_a_file_in_timms_names_equals_timm(tmp_path: Path, family: str, suffix: str) -> None:
    build, named = TIMM[family]
    theirs = build()
    model = vitviz.load(written(state_of(theirs), tmp_path, suffix), family=named, heads=5)
    assert_equal(model, theirs)
    about = model.pretrained
    assert about is not None
    assert about.labels == ()
    assert about.name == "weights"
    assert f"weights{suffix}" in about.source
    assert any(one.startswith("norm epsilon") for one in about.assumed)
    assert about.assumed[-1] == f"preprocessing: {about.preprocess.describe()}"
    assert ("ImageNet's mean" in about.assumed[-1]) == (about.preprocess.mean[0] == 0.485)
    if "dinov3" not in family:
        assert model.config.image_size == (PIXELS, PIXELS)
        assert (about.preprocess.height, about.preprocess.width) == (PIXELS, PIXELS)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit3_small_patch16_224", "vit_small_patch14_reg4_dinov2"])
def test_a_published_width_tells_its_heads(tmp_path: Path, name: str) -> None:
    patch = int(name.partition("patch")[2][:2])
    theirs = shaken(timm.create_model(name, depth=2, img_size=4 * patch))
    model = vitviz.load(written(state_of(theirs), tmp_path, ".pt"))
    assert_equal(model, theirs, 4 * patch)
    assert model.pretrained is not None
    assert f"{model.config.heads} heads of width 64" in model.pretrained.assumed


WIDTHS = [
    "vit_huge_patch14_224",
    "vit_gigantic_patch14_224",
    "vit_giant_patch14_dinov2",
    "vit_huge_plus_patch16_dinov3",
]
WIDTHS += ["vit_7b_patch16_dinov3", "vit_base_patch16_224", "vit_large_patch16_dinov3_qkvb", "vit_medium_patch32_224"]


@pytest.mark.parametrize("name", [name for name in WIDTHS if timm.is_model(name)])
def test_heads_of_large_models_are_those_of_timm(name: str) -> None:
    with torch.device("meta"):
        theirs: Any = timm.create_model(name, depth=1)
    found = Architecture({name: tuple(tensor.shape) for name, tensor in theirs.state_dict().items()})
    assert any(f"{theirs.blocks[0].attn.num_heads} heads" in words for words in found.assumed)


# --- facebookresearch's names


def as_dinov2(state: State) -> State:
    """Timm's DINOv2 in the names of facebookresearch's files: w12 and w3, registers, and a mask token."""
    state = {name.replace("mlp.fc1", "mlp.w12").replace("mlp.fc2", "mlp.w3"): t for name, t in state.items()}
    return state | {"mask_token": torch.full((1, 60), torch.nan)}  # not read, so whatever it holds is no matter


def test_dinov2_in_its_own_names(tmp_path: Path) -> None:
    theirs = vit(**SQUARE, mlp_layer=SwiGLUPacked, act_layer=nn.SiLU, init_values=1e-5, num_classes=0)
    model = load_file(written(as_dinov2(state_of(theirs)), tmp_path, ".pth"), heads=5)
    assert_equal(model, theirs)
    assert not model.config.position_antialias
    assert model.pretrained is not None
    assert "facebookresearch" in model.pretrained.source
    assert "without the mask token" in model.pretrained.source


def test_dinov2_with_registers_in_its_own_names(tmp_path: Path) -> None:
    """There the position table has a row for the class token and none for registers."""
    theirs = vit(**SQUARE, init_values=1e-5, reg_tokens=4, no_embed_class=True, num_classes=0)
    state = state_of(theirs)
    first = torch.randn(1, 1, 60)
    state["cls_token"] = state["cls_token"] - first
    state["pos_embed"] = torch.cat([first, state["pos_embed"]], dim=1)
    state["register_tokens"] = state.pop("reg_token")
    state["mask_token"] = torch.zeros(1, 60)
    model = load_file(written(state, tmp_path, ".pth"), heads=5)
    assert_equal(model, theirs)
    assert model.config.position_antialias
    chunked = {re.sub(r"^blocks\.(\d+)", r"blocks.0.\1", name): tensor for name, tensor in state.items()}
    assert_equal(load_file(written(chunked, tmp_path, ".pth"), heads=5), theirs)


def test_dinov3_in_its_own_names(tmp_path: Path) -> None:
    theirs = eva(**DINOV3, swiglu_mlp=True, swiglu_align_to=8, num_classes=0, global_pool="token")
    state = state_of(theirs)
    state["storage_tokens"] = state.pop("reg_token")
    for old, new in (("gamma_1", "ls1.gamma"), ("gamma_2", "ls2.gamma")):
        state = {name.replace(old, new): tensor for name, tensor in state.items()}
    for old, new in (("fc1_g", "w1"), ("fc1_x", "w2"), ("fc2", "w3")):
        state = {name.replace(f"mlp.{old}", f"mlp.{new}"): tensor for name, tensor in state.items()}
    for index in range(3):
        at = f"blocks.{index}.attn."
        q, v = state.pop(at + "q_bias"), state.pop(at + "v_bias")
        state[at + "qkv.bias"] = torch.cat([q, torch.randn(60), v])  # a key's bias is stored, and masked
        state[at + "qkv.bias_mask"] = torch.full((180,), torch.nan)
    state["rope_embed.periods"] = 100 ** (torch.arange(3) / 3)
    state["mask_token"] = torch.zeros(1, 60)
    model = load_file(written(state, tmp_path, ".pth"))  # the rotations tell the width of a head
    assert_equal(model, theirs)
    assert model.config.heads == 5
    state["rope_embed.periods"] = 31 ** (torch.arange(3) / 3)
    with pytest.raises(ConvertError, match="rotations of base 100"):
        load_file(written(state, tmp_path, ".pth"))


def test_mae_with_its_decoder(tmp_path: Path) -> None:
    theirs = vit(**SQUARE, num_classes=0)
    decoder = {"decoder_embed.weight": torch.zeros(3, 60), "decoder_blocks.0.norm1.weight": torch.zeros(3)}
    decoder |= {"decoder_pos_embed": torch.zeros(1, 50, 3), "mask_token": torch.zeros(1, 1, 3)}
    model = load_file(written(state_of(theirs) | decoder, tmp_path, ".pth"), heads=5)
    assert_equal(model, theirs)
    assert model.pretrained is not None
    assert "decoder of MAE" in model.pretrained.source


# --- transformers' names

EPSILON = {"ViT": 1e-12, "DeiT": 1e-12, "DINOv2": 1e-6, "DINOv3": 1e-5, "CLIP": 1e-5, "SigLIP": 1e-6}


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("name", [name for name in hf_cases.CASES if name.partition("-")[0] in EPSILON])
def test_a_file_in_transformers_names_equals_transformers(tmp_path: Path, name: str, suffix: str) -> None:
    case, kind = hf_cases.CASES[name], name.partition("-")[0]
    changes: dict[str, Any] = {"layer_norm_eps": EPSILON[kind]}
    changes |= {"rope_theta": 100.0, "image_size": 44} if kind == "DINOv3" else {}
    theirs = case.build(**changes)
    state, _ = hf_cases.on_disk(theirs, tmp_path / "folder")
    exact = "clip" if name == "CLIP-whole" else "clip-quickgelu"
    model = vitviz.load(written(state, tmp_path, suffix), heads=5, family=exact if kind == "CLIP" else None)
    hf_cases.assert_same(case, theirs, model, hf_cases.NATIVE)
    assert model.config.classes == (hf_cases.CLASSES if case.read is hf_cases.logits else 0)


# --- torchvision's names and our own


def test_a_file_of_torchvision(tmp_path: Path) -> None:
    torch.manual_seed(3)
    theirs = shaken(TorchvisionViT(image_size=33, patch_size=3, num_layers=3, num_heads=5, hidden_dim=35, mlp_dim=23))
    for suffix in (".pth", ".safetensors"):
        model = vitviz.load(written(state_of(theirs), tmp_path, suffix), heads=5)
        assert_equal(model, theirs, 33)
        assert model.config.classes == 1000


@pytest.mark.parametrize("pooling", ["cls", "cls+mean"])
def test_a_bare_file_of_our_own(tmp_path: Path, pooling: Any) -> None:
    config = vitviz.ViTConfig(
        image_size=(35, 35), patch_size=5, width=60, depth=2, heads=5, classes=7, registers=2, pooling=pooling
    )
    ours = shaken(ViT(config))
    for suffix in (".pt", ".safetensors"):
        assert_equal(vitviz.load(written(state_of(ours), tmp_path, suffix), heads=5), ours)


def test_the_weights_of_a_folder_are_loaded_with_its_settings(tmp_path: Path) -> None:
    config = vitviz.ViTConfig(image_size=(15, 35), patch_size=5, width=60, depth=1, heads=3, classes=0, pooling="mean")
    ours = ViT(config, vitviz.Pretrained(name="a", preprocess=vitviz.Preprocess(height=15, width=35)))
    save(ours, tmp_path)
    model = vitviz.load(tmp_path / "model.safetensors")
    assert (model.config, model.pretrained) == (config, ours.pretrained)
    case = hf_cases.CASES["ViT"]
    theirs = case.build()
    theirs.save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "preprocessor_config.json").write_text('{"image_processor_type": "ViTImageProcessor"}')
    hf_cases.assert_same(case, theirs, vitviz.load(tmp_path / "theirs" / "model.safetensors"), (28, 52))
    with pytest.raises(CheckpointError, match="brings its own settings"):
        vitviz.load(tmp_path, heads=5)
