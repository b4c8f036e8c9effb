"""One file of weights: the family is recognised, what was assumed is said, the numbers are those of the library."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hf_cases
import pytest
import timm
import torch
from pairwise import pairs
from timm.layers import SwiGLUPacked
from timm_models import eva, shaken, vit
from torch import nn
from torchvision.models import VisionTransformer as TorchvisionViT
from weight_files import DINOV3, PIXELS, SQUARE, TIMM, State, assert_equal, state_of, written

import vitviz
from vitviz.cli.main import main
from vitviz.model.vit import ViT
from vitviz.weights.checkpoint import save
from vitviz.weights.checks import CheckpointError, ConvertError
from vitviz.weights.files import NESTS, load_file
from vitviz.weights.infer import Architecture

pytestmark = pytest.mark.usefixtures("one_thread")
SUFFIXES = (".pt", ".bin", ".safetensors")


# --- timm's names


@pytest.mark.parametrize("family", TIMM)
def test_a_file_in_timms_names_equals_timm(tmp_path: Path, family: str) -> None:
    build, named = TIMM[family]
    theirs = build()
    for suffix in SUFFIXES:
        model = vitviz.load(written(state_of(theirs), tmp_path, suffix), family=named, heads=5)
        assert_equal(model, theirs)
        about = model.pretrained
        assert about is not None
        assert (about.labels, about.name) == ((), "weights")
        assert f"weights{suffix}" in about.source
        assert any(words.startswith("norm epsilon") for words in about.assumed)
        assert about.assumed[-1] == f"preprocessing: {about.preprocess.describe()}"
        assert ("ImageNet's mean" in about.assumed[-1]) == (about.preprocess.mean[0] == 0.485)
        if "dinov3" not in family:
            assert model.config.image_size == (PIXELS, PIXELS)
            assert (about.preprocess.height, about.preprocess.width) == (PIXELS, PIXELS)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit3_small_patch16_224", "vit_small_patch14_reg4_dinov2"])
def test_a_published_width_tells_its_heads(tmp_path: Path, name: str) -> None:
    patch = int(name.partition("patch")[2][:2])
    theirs = shaken(timm.create_model(name, depth=1, img_size=4 * patch))
    model = vitviz.load(written(state_of(theirs), tmp_path, ".pt"))
    assert_equal(model, theirs, 4 * patch)
    assert model.pretrained is not None
    assert f"{model.config.heads} heads of width 64" in model.pretrained.assumed


WIDTHS = "vit_huge_patch14_224 vit_gigantic_patch14_224 vit_giant_patch14_dinov2 vit_huge_plus_patch16_dinov3"
WIDTHS += " vit_7b_patch16_dinov3 vit_base_patch16_224 vit_large_patch16_dinov3_qkvb vit_medium_patch32_224"


@pytest.mark.parametrize("name", [name for name in WIDTHS.split() if timm.is_model(name)])
def test_heads_of_large_models_are_those_of_timm(name: str) -> None:
    with torch.device("meta"):
        theirs: Any = timm.create_model(name, depth=1)
    architecture = Architecture({name: tuple(tensor.shape) for name, tensor in theirs.state_dict().items()})
    assert any(f"{theirs.blocks[0].attn.num_heads} heads" in words for words in architecture.assumed)


# --- facebookresearch's names


def loaded(state: State, folder: Path, heads: int | None = 5) -> ViT:
    return load_file(written(state, folder, ".pth"), heads=heads)


def renamed(state: State, **names: str) -> State:
    for new, old in names.items():
        state = {name.replace(old, new.replace("__", ".")): t for name, t in state.items()}
    return state


def test_dinov2_and_mae_in_their_own_names(tmp_path: Path) -> None:
    """`w12` and `w3`, and a mask token that is not read, so whatever it holds is no matter."""
    theirs = vit(**SQUARE, mlp_layer=SwiGLUPacked, act_layer=nn.SiLU, init_values=1e-5, num_classes=0)
    state = renamed(state_of(theirs), mlp__w12="mlp.fc1", mlp__w3="mlp.fc2")
    model = loaded(state | {"mask_token": torch.full((1, 60), torch.nan)}, tmp_path)
    assert_equal(model, theirs)
    assert not model.config.position_antialias
    assert model.pretrained is not None
    assert "facebookresearch" in model.pretrained.source
    assert "without the mask token" in model.pretrained.source
    theirs = vit(**SQUARE, num_classes=0)
    decoder = {"decoder_embed.weight": torch.zeros(3, 60), "decoder_blocks.0.norm1.weight": torch.zeros(3)}
    decoder |= {"decoder_pos_embed": torch.zeros(1, 50, 3), "mask_token": torch.zeros(1, 1, 3)}
    model = loaded(state_of(theirs) | decoder, tmp_path)
    assert_equal(model, theirs)
    assert model.pretrained is not None
    assert "decoder of MAE" in model.pretrained.source


def test_dinov2_with_registers_in_its_own_names(tmp_path: Path) -> None:
    """There the position table has a row for the class token and none for registers."""
    theirs = vit(**SQUARE, init_values=1e-5, reg_tokens=4, no_embed_class=True, num_classes=0)
    state, first = state_of(theirs), torch.randn(1, 1, 60)
    state["cls_token"] = state["cls_token"] - first
    state["pos_embed"] = torch.cat([first, state["pos_embed"]], dim=1)
    state = renamed(state, register_tokens="reg_token") | {"mask_token": torch.zeros(1, 60)}
    model = loaded(state, tmp_path)
    assert_equal(model, theirs)
    assert model.config.position_antialias
    chunked = {re.sub(r"^blocks\.(\d+)", r"blocks.0.\1", name): tensor for name, tensor in state.items()}
    assert_equal(loaded(chunked, tmp_path), theirs)


def test_dinov3_in_its_own_names(tmp_path: Path) -> None:
    theirs = eva(**DINOV3, swiglu_mlp=True, swiglu_align_to=8, num_classes=0, global_pool="token")
    state = renamed(state_of(theirs), storage_tokens="reg_token", ls1__gamma="gamma_1", ls2__gamma="gamma_2")
    state = renamed(state, mlp__w1="mlp.fc1_g", mlp__w2="mlp.fc1_x", mlp__w3="mlp.fc2")
    for index in range(3):
        at = f"blocks.{index}.attn."
        q, v = state.pop(at + "q_bias"), state.pop(at + "v_bias")
        state[at + "qkv.bias"] = torch.cat([q, torch.randn(60), v])  # a key's bias is stored, and masked
        state[at + "qkv.bias_mask"] = torch.full((180,), torch.nan)
    state |= {"rope_embed.periods": 100 ** (torch.arange(3) / 3), "mask_token": torch.zeros(1, 60)}
    model = loaded(state, tmp_path, heads=None)  # the rotations tell the width of a head
    assert_equal(model, theirs)
    assert model.config.heads == 5
    with pytest.raises(ConvertError, match="rotations of base 100"):
        loaded(state | {"rope_embed.periods": 31 ** (torch.arange(3) / 3)}, tmp_path, heads=None)


# --- the names of transformers, of torchvision, and our own

EPSILON = {"ViT": 1e-12, "DeiT": 1e-12, "DINOv2": 1e-6, "DINOv3": 1e-5, "CLIP": 1e-5, "SigLIP": 1e-6}


@pytest.mark.parametrize("name", [name for name in hf_cases.CASES if name.partition("-")[0] in EPSILON])
def test_a_file_in_transformers_names_equals_transformers(tmp_path: Path, name: str) -> None:
    case, kind = hf_cases.CASES[name], name.partition("-")[0]
    changes = {"rope_theta": 100.0, "image_size": 44} if kind == "DINOv3" else {}
    theirs = case.build(layer_norm_eps=EPSILON[kind], **changes)
    state, _ = hf_cases.on_disk(theirs, tmp_path / "folder")
    exact = "clip" if name == "CLIP-whole" else "clip-quickgelu"
    for suffix in (".pt", ".safetensors"):
        model = vitviz.load(written(state, tmp_path, suffix), heads=5, family=exact if kind == "CLIP" else None)
        hf_cases.assert_same(case, theirs, model, hf_cases.NATIVE)
        assert model.config.classes == (hf_cases.CLASSES if case.read is hf_cases.logits else 0)


@pytest.mark.parametrize("pooling", ["cls", "cls+mean", "torchvision"])
def test_a_file_of_torchvision_and_of_our_own(tmp_path: Path, pooling: Any) -> None:
    ours: Any = {"width": 60, "depth": 2, "heads": 5, "classes": 7, "registers": 2, "image_size": (35, 35)}
    others: Any = {"num_layers": 3, "num_heads": 5, "hidden_dim": 35, "mlp_dim": 23}
    torch.manual_seed(3)
    if pooling == "torchvision":
        source = shaken(TorchvisionViT(image_size=PIXELS, patch_size=5, **others))
    else:
        source = shaken(ViT(vitviz.ViTConfig(patch_size=5, pooling=pooling, **ours)))
    for suffix in SUFFIXES:
        model = vitviz.load(written(state_of(source), tmp_path, suffix), heads=5)
        assert_equal(model, source)
        assert model.config.classes == (1000 if pooling == "torchvision" else 7)


def test_the_weights_of_a_folder_are_loaded_with_its_settings(tmp_path: Path) -> None:
    config = vitviz.ViTConfig(image_size=(15, 35), patch_size=5, width=60, depth=1, heads=3, classes=0, pooling="mean")
    ours = ViT(config, vitviz.Pretrained(name="a", preprocess=vitviz.Preprocess(height=15, width=35)))
    save(ours, tmp_path)
    model = vitviz.load(tmp_path / "model.safetensors")
    assert (model.config, model.pretrained) == (config, ours.pretrained)
    case = hf_cases.CASES["ViT"]
    theirs = hf_cases.saved(case, tmp_path / "theirs")
    hf_cases.assert_same(case, theirs, vitviz.load(tmp_path / "theirs" / "model.safetensors"))
    with pytest.raises(CheckpointError, match="brings its own settings"):
        vitviz.load(tmp_path, heads=5)


# --- files as people write them: wrapped, in another precision, named on the command line


def prefixed(prefix: str, state: State) -> State:
    return {prefix + name: tensor for name, tensor in state.items()}


HEAD = {"dino_head.mlp.0.weight": torch.zeros(2, 3)}
WRAPPED: dict[str, Callable[[State], Any]] = {
    **{nest: (lambda state, nest=nest: {nest: state, "epoch": 3, "lr": [0.1, None]}) for nest in NESTS},
    "two deep": lambda state: {"state_dict": {"model": state}},
    "teacher first": lambda state: {"student": {"a": torch.zeros(2)}, "teacher": state, "model": {"b": torch.zeros(1)}},
    "module.backbone.": lambda state: {"model": prefixed("module.backbone.", state)},
    "with a projection head": lambda state: {"teacher": prefixed("backbone.", state) | HEAD},
}
BARE: dict[str, Callable[[State], Any]] = {
    "module.": lambda state: prefixed("module.", state),
    "_orig_mod.": lambda state: prefixed("_orig_mod.", state),
    "parameters": lambda state: {name: nn.Parameter(tensor) for name, tensor in state.items()},
    "not contiguous": lambda state: {name: t.t().clone().t() if t.ndim == 2 else t for name, t in state.items()},
}


@pytest.mark.parametrize("wrap", WRAPPED | BARE)
def test_wrappers_are_taken_off(tmp_path: Path, wrap: str) -> None:
    theirs = vit(**SQUARE, num_classes=0)
    torch.save((WRAPPED | BARE)[wrap](state_of(theirs)), tmp_path / "weights.pth")
    model = vitviz.load(tmp_path / "weights.pth", heads=5)
    assert_equal(model, theirs)
    assert model.pretrained is not None
    assert ("weights under" in model.pretrained.source) == (wrap in WRAPPED)


def test_a_prefix_that_one_tensor_lacks_stays_and_other_precisions_become_float32(tmp_path: Path) -> None:
    theirs = vit(**SQUARE)
    state = prefixed("module.", state_of(theirs)) | {"norm2.weight": torch.zeros(2)}
    classifier = prefixed("backbone.", state_of(vit(**SQUARE, num_classes=0))) | {"head.weight": torch.zeros(3, 60)}
    for tensors in (state, classifier):  # the classifier is not dropped in silence
        with pytest.raises(ConvertError, match="Expected names that timm"):
            vitviz.load(written(tensors, tmp_path, ".pt"), heads=5)
    for suffix, dtype in pairs(SUFFIXES, [torch.float16, torch.bfloat16, torch.float64]):
        state = {name: tensor.to(dtype) for name, tensor in state_of(theirs).items()}
        theirs.load_state_dict(state)
        model = vitviz.load(written(state, tmp_path, suffix), heads=5)
        assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}
        assert_equal(model, theirs)


def test_the_command_line_passes_family_and_heads_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(state_of(TIMM["clip"][0]()), tmp_path, ".pt")
    assert main(["summary", "--model", str(path), "--heads", "5"]) == 2
    assert "--family" in capsys.readouterr().err
    assert main(["summary", "--model", str(path), "--heads", "5", "--family", "clip"]) == 0
    assert main(["summary", "--heads", "5"]) == 2
    assert "brings its own settings" in capsys.readouterr().err
