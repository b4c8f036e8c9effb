"""Check that single weights files give the source library's logits, list assumptions, or are refused."""

import argparse
import collections
import json
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hf_cases
import numpy as np
import pytest
import skimage.data
import timm
import torch
import transformers as hf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pairwise import pairs
from timm.layers import SwiGLUPacked
from timm.models.vision_transformer import checkpoint_filter_fn
from timm_models import (
    DINOV3,
    FAMILIES,
    PIXELS,
    REARRANGED,
    SQUARE,
    TIMM,
    UNDETERMINED,
    State,
    assert_equal,
    eva,
    of,
    shaken,
    state_of,
    vit,
    written,
)
from torch import nn
from torchvision import models
from torchvision.models import VisionTransformer as TorchvisionViT

import vitviz
from vitviz.cli.main import main
from vitviz.images.decoding import decode
from vitviz.model.vit import ViT
from vitviz.weights import naming
from vitviz.weights.checkpoint import save
from vitviz.weights.checks import CheckpointError, ConvertError
from vitviz.weights.files import NESTS, load_file
from vitviz.weights.from_timm import config_of
from vitviz.weights.infer import Architecture, Reference
from vitviz.weights.timm_state import check_file_names

pytestmark = pytest.mark.usefixtures("one_thread")
SUFFIXES = (".pt", ".bin", ".safetensors")


@pytest.mark.parametrize("family", TIMM)
def test_file_in_timm_names_gives_timms_logits_and_lists_assumptions(tmp_path: Path, family: str) -> None:
    theirs = TIMM[family]()
    for suffix in SUFFIXES:
        model = vitviz.load(written(state_of(theirs), tmp_path, suffix), heads=5)
        assert_equal(model, theirs)
        about = model.pretrained
        assert about.labels == tuple(f"class {index}" for index in range(model.config.classes))
        assert about.name == "weights"
        assert f"weights{suffix}" in about.source
        assert any(assumption.startswith("norm epsilon") for assumption in about.assumed)
        assert f"preprocessing: {about.preprocess.describe()}" in about.assumed
        if "dinov3" not in family:
            assert model.config.image_size == (PIXELS, PIXELS)
            assert (about.preprocess.height, about.preprocess.width) == (PIXELS, PIXELS)


WIDTHS = "vit_huge_patch14_224 vit_gigantic_patch14_224 vit_giant_patch14_dinov2 vit_huge_plus_patch16_dinov3"
WIDTHS += " vit_7b_patch16_dinov3 vit_base_patch16_224 vit_large_patch16_dinov3_qkvb vit_medium_patch32_224"
WIDTHS += " vit_tiny_patch16_224 deit3_small_patch16_224 vit_small_patch14_reg4_dinov2"


@pytest.mark.parametrize("name", [name for name in WIDTHS.split() if timm.is_model(name)])
def test_published_width_determines_the_heads_of_timm(name: str) -> None:
    with torch.device("meta"):
        theirs: Any = timm.create_model(name, depth=1)
    architecture = Architecture({name: tuple(tensor.shape) for name, tensor in theirs.state_dict().items()})
    heads = theirs.blocks[0].attn.num_heads
    assert f"{heads} heads of width {theirs.embed_dim // heads}" in architecture.assumed


# --- settings of another model: like


def reference_of(model: nn.Module, **changes: Any) -> Reference:
    check_file_names(model)
    config, channels = config_of(model)
    height, width = config.image_size
    labels = tuple(f"label {index}" for index in range(config.classes))
    about = vitviz.Pretrained(name="a", preprocess=vitviz.Preprocess(height=height, width=width), labels=labels)
    return Reference("timm:a", config, about, channels)


@pytest.mark.parametrize("family", [name for name in FAMILIES if "colour" not in name])
@torch.no_grad()
def test_file_like_a_model_of_timm_gives_its_logits(tmp_path: Path, family: str) -> None:
    theirs = FAMILIES[family]()
    if family in REARRANGED:
        with pytest.raises(ConvertError, match="checkpoint_path=FILE"):
            reference_of(theirs)
        return
    like = reference_of(theirs)
    model = load_file(written(state_of(theirs), tmp_path, ".pt"), like=like)
    images = torch.randn(2, 3, *model.config.image_size, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(model(images), theirs(images), rtol=0, atol=1e-4)
    assert (model.config, model.pretrained.preprocess) == (like.config, like.about.preprocess)
    assert model.pretrained.labels == like.about.labels
    assert "built like timm:a" in model.pretrained.source


def test_file_like_a_model_may_differ_in_classes_input_size_and_pooling(tmp_path: Path) -> None:
    like = reference_of(of("vit")())
    for name, changes in (
        ("vit", {"num_classes": 3}),
        ("vit without a classifier", {}),
        ("vit", {"img_size": 50}),
        ("gap with a class token", {"num_classes": 3}),  # fc_norm
        ("gap with a class token", {"fc_norm": False, "global_pool": "token"}),
    ):
        theirs = of(name, **changes)()
        model = load_file(written(state_of(theirs), tmp_path, ".pt"), like=like)
        assert_equal(model, theirs, side := changes.get("img_size", PIXELS))
        assert (model.pretrained.preprocess.height, model.config.image_size) == (side, (side, side))
        same = model.config.classes == like.config.classes
        assert model.pretrained.labels[:1] == (("label 0",) if same else ("class 0",))[: model.config.classes]


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("vit", {"depth": 2}, r"3 blocks.*like timm:a.*got 2"),
        ("vit", {"embed_dim": 65}, r"\(like timm:a\), got tensors of other shapes: blocks"),
        ("vit", {"patch_size": 7}, r"other shapes: patch_embed\.proj\.weight \(expected .*, 5, 5\), got .*, 7, 7\)"),
        ("dinov2", {}, "unexpected tensors: blocks.0.ls1.gamma"),
        ("deit", {}, "51 rows, which fit none"),
        ("gap", {"fc_norm": False}, "prefix tokens|missing tensors: cls_token"),
    ],
)
def test_file_whose_shapes_differ_from_like_is_refused(
    tmp_path: Path, family: str, changes: dict[str, Any], words: str
) -> None:
    path = written(state_of(of(family, **changes)()), tmp_path, ".pt")
    with pytest.raises(CheckpointError, match=words):
        load_file(path, like=reference_of(of("vit")()))


def test_like_reads_settings_of_timm_torchvision_folders_and_bundled_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = shaken(timm.create_model("test_vit", img_size=96)).eval()
    path = written(state_of(theirs), tmp_path, ".pth")
    model = vitviz.load(path, like="timm:test_vit.r160_in1k")
    assert_equal(model, theirs, 96)
    about = model.pretrained
    assert (about.labels[0], about.preprocess.mean[0]) == ("tench, Tinca tinca", 0.5)
    assert about.assumed == ("labels: the 1,000 of timm:test_vit.r160_in1k",)
    for source, words in (
        ("torchvision:vit_b_16", "12 blocks.*got 6"),
        ("timm:swin_tiny_patch4_window7_224", "its windows run as they are"),
        ("timm:no_such_model", "Expected a timm model"),
        (path, "torchvision:NAME"),
        ("", "Expected like as a bundled model"),
    ):
        with pytest.raises(vitviz.VitvizError, match=words):
            vitviz.load(path, like=source)
    with pytest.raises(CheckpointError, match="Expected like or heads, got both"):
        vitviz.load(path, like="timm:test_vit", heads=2)
    plain = vitviz.load("vit-cifar10")
    ours = vitviz.load(written(state_of(plain), tmp_path, ".pt"), like="vit-cifar10")
    assert (ours.config, ours.pretrained.labels) == (plain.config, plain.pretrained.labels)
    case = hf_cases.CASES["CLIP-whole"]
    clip = hf_cases.saved(case, tmp_path / "folder")
    state, _ = hf_cases.on_disk(clip, tmp_path / "state")
    path = written(state, tmp_path, ".safetensors")
    hf_cases.assert_same(case, clip, vitviz.load(path, like=tmp_path / "folder"), hf_cases.NATIVE)
    assert main(["summary", "--model", str(path)]) == 2
    assert "--like timm:NAME" in capsys.readouterr().err
    assert main(["summary", "--model", str(path), "--like", str(tmp_path / "folder")]) == 0


@pytest.mark.parametrize("family", [*UNDETERMINED, "CLIP of transformers"])
def test_names_that_do_not_determine_settings_ask_for_like(tmp_path: Path, family: str) -> None:
    if family in UNDETERMINED:
        state = state_of(UNDETERMINED[family]())
    else:
        state, _ = hf_cases.files_of(hf_cases.CASES["CLIP"])
    with pytest.raises(ConvertError, match=r"several published models have.*like=\"timm:NAME\""):
        vitviz.load(written(state, tmp_path, ".pt"), heads=5)


# --- names of other libraries


def loaded(state: State, folder: Path, heads: int | None = 5) -> ViT:
    return load_file(written(state, folder, ".pth"), heads=heads)


def renamed(state: State, **names: str) -> State:
    """Replace parts of the tensors' names, one after another: `new="old"`, with two underscores for a dot."""
    for new, old in names.items():
        state = {name.replace(old, new.replace("__", ".")): t for name, t in state.items()}
    return state


def test_dinov2_and_mae_load_in_facebookresearchs_names(tmp_path: Path) -> None:
    """DINOv2 has `w12` and `w3`, and a mask token that is ignored whatever its values are."""
    theirs = vit(**SQUARE, mlp_layer=SwiGLUPacked, act_layer=nn.SiLU, init_values=1e-5, num_classes=0)
    state = renamed(state_of(theirs), mlp__w12="mlp.fc1", mlp__w3="mlp.fc2")
    model = loaded(state | {"mask_token": torch.full((1, 60), torch.nan)}, tmp_path)
    assert_equal(model, theirs)
    assert not model.config.table.antialias
    assert "facebookresearch" in model.pretrained.source
    assert "without the mask token" in model.pretrained.source
    theirs = vit(**SQUARE, num_classes=0)
    decoder = {"decoder_embed.weight": torch.zeros(3, 60), "decoder_blocks.0.norm1.weight": torch.zeros(3)}
    decoder |= {"decoder_pos_embed": torch.zeros(1, 50, 3), "mask_token": torch.zeros(1, 1, 3)}
    model = loaded(state_of(theirs) | decoder, tmp_path)
    assert_equal(model, theirs)
    assert "decoder of MAE" in model.pretrained.source


def test_dinov2_with_registers_loads_in_facebookresearchs_names(tmp_path: Path) -> None:
    """The position table has a row for the class token and none for registers."""
    theirs = vit(**SQUARE, init_values=1e-5, reg_tokens=4, no_embed_class=True, num_classes=0)
    state, first = state_of(theirs), torch.randn(1, 1, 60)
    state["cls_token"] = state["cls_token"] - first
    state["pos_embed"] = torch.cat([first, state["pos_embed"]], dim=1)
    state = renamed(state, register_tokens="reg_token") | {"mask_token": torch.zeros(1, 60)}
    model = loaded(state, tmp_path)
    assert_equal(model, theirs)
    assert model.config.table.antialias
    chunked = {re.sub(r"^blocks\.(\d+)", r"blocks.0.\1", name): tensor for name, tensor in state.items()}
    assert_equal(loaded(chunked, tmp_path), theirs)


def test_dinov3_loads_in_facebookresearchs_names(tmp_path: Path) -> None:
    theirs = eva(**DINOV3, swiglu_mlp=True, swiglu_align_to=8, num_classes=0, global_pool="token")
    state = renamed(state_of(theirs), storage_tokens="reg_token", ls1__gamma="gamma_1", ls2__gamma="gamma_2")
    state = renamed(state, mlp__w1="mlp.fc1_g", mlp__w2="mlp.fc1_x", mlp__w3="mlp.fc2")
    for index in range(3):
        at = f"blocks.{index}.attn."
        q, v = state.pop(at + "q_bias"), state.pop(at + "v_bias")
        state[at + "qkv.bias"] = torch.cat([q, torch.randn(60), v])  # the keys' bias is stored, but masked
        state[at + "qkv.bias_mask"] = torch.full((180,), torch.nan)
    state |= {"rope_embed.periods": 100 ** (torch.arange(3) / 3), "mask_token": torch.zeros(1, 60)}
    assert_equal(loaded(state, tmp_path), theirs)
    with pytest.raises(ConvertError, match="rotations of base 100"):
        loaded(state | {"rope_embed.periods": 31 ** (torch.arange(3) / 3)}, tmp_path)


# "DINOv3-no-bias" has no MLP biases, and "DINOv3-gated-by-gelu" another gate, unlike published models.
EPSILON = {"ViT": 1e-12, "DeiT": 1e-12, "DINOv2": 1e-6, "DINOv3": 1e-5, "SigLIP": 1e-6}


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in hf_cases.CASES
        if name.partition("-")[0] in EPSILON and not name.endswith(("no-bias", "by-gelu"))
    ],
)
def test_file_in_transformers_names_gives_transformers_outputs(tmp_path: Path, name: str) -> None:
    case, family = hf_cases.CASES[name], name.partition("-")[0]
    changes = {"rope_theta": 100.0, "image_size": 44} if family == "DINOv3" else {}
    theirs = case.build(layer_norm_eps=EPSILON[family], **changes)
    state, _ = hf_cases.on_disk(theirs, tmp_path / "folder")
    model = vitviz.load(written(state, tmp_path, ".safetensors"), heads=5)
    hf_cases.assert_same(case, theirs, model, hf_cases.NATIVE)
    assert model.config.classes == (hf_cases.CLASSES if case.read is hf_cases.logits else 0)


@pytest.mark.parametrize("pooling", ["cls", "cls+mean", "torchvision"])
def test_files_of_torchvision_and_of_our_models_load(tmp_path: Path, pooling: Any) -> None:
    ours: Any = {"width": 60, "depth": 2, "heads": 5, "classes": 7, "registers": 2, "image_size": (35, 35)}
    others: Any = {"num_layers": 3, "num_heads": 5, "hidden_dim": 35, "mlp_dim": 23}
    if pooling == "torchvision":
        source = shaken(TorchvisionViT(image_size=PIXELS, patch_size=5, **others))
    else:
        source = shaken(ViT(vitviz.ViTConfig(patch_size=5, pooling=pooling, **ours)))
    model = vitviz.load(written(state_of(source), tmp_path, ".safetensors"), heads=5)
    assert_equal(model, source)
    if pooling == "torchvision":
        settings, usual = model.pretrained.preprocess, models.ViT_B_16_Weights.IMAGENET1K_V1.transforms()
        assert (settings.mean, settings.std) == (tuple(usual.mean), tuple(usual.std))
        assert settings.resize == round(settings.height * usual.resize_size[0] / usual.crop_size[0])
        assert settings.interpolation == usual.interpolation.value


def test_weights_of_a_folder_are_loaded_with_its_settings(tmp_path: Path) -> None:
    config = vitviz.ViTConfig(image_size=(15, 35), patch_size=5, width=60, depth=1, heads=3, classes=0, pooling="mean")
    ours = ViT(config, vitviz.Pretrained(name="a", preprocess=vitviz.Preprocess(height=15, width=35)))
    save(ours, tmp_path)
    model = vitviz.load(tmp_path / "model.safetensors")
    assert (model.config, model.pretrained) == (config, ours.pretrained)
    case = hf_cases.CASES["ViT"]
    theirs = hf_cases.saved(case, tmp_path / "theirs")
    hf_cases.assert_same(case, theirs, vitviz.load(tmp_path / "theirs" / "model.safetensors"))
    with pytest.raises(CheckpointError, match="has its own settings"):
        vitviz.load(tmp_path, heads=5)


def test_folder_without_settings_names_the_models_inside(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for name in ("optimizer.pt", "checkpoints/last.ckpt"):
        (tmp_path / "run" / name).touch()
    with pytest.raises(CheckpointError, match=r"without it\. Load what it contains: '.*last\.ckpt'\.$"):
        vitviz.load(tmp_path / "run")
    _, settings = hf_cases.on_disk(hf_cases.CASES["ViT-classifier"].build(), tmp_path / "run" / "snapshots" / "a")
    with pytest.raises(CheckpointError, match=r"Load what it contains: '[^']*snapshots/a'\.$"):
        vitviz.load(tmp_path / "run")
    folder = tmp_path / "run" / "snapshots" / "a"
    (folder / "config.json").write_text(json.dumps(settings | {"image_size": 99}))
    with pytest.raises(ConvertError, match="Correct the sizes of image and patch"):
        vitviz.load(folder)
    (folder / "config.json").write_text(json.dumps(settings | {"architectures": None}))
    with pytest.raises(ConvertError, match=r"in architectures of config\.json, got none"):
        vitviz.load(folder)


# --- wrappers and other precisions


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


AVERAGED: dict[str, Callable[[State], Any]] = {
    "SWA": lambda state: {"n_averaged": torch.tensor(3), **prefixed("module.", state)},
    "EMA beside the model": lambda state: {"model": {"a": torch.zeros(2)}, "model_ema": prefixed("module.", state)},
    "EMA in one state dict": lambda state: {"state_dict": prefixed("net.", state) | prefixed("ema.module.", state)},
    "EMA beside a prefix of transformers": lambda state: prefixed("model.", state) | prefixed("ema.", state),
    "student and teacher": lambda state: prefixed("student.", state) | prefixed("teacher.backbone.", state),
}
BESIDE: dict[str, Callable[[State], Any]] = {
    "loss": lambda state: prefixed("model.", state) | {"criterion.weight": torch.ones(3)},
    "metric": lambda state: prefixed("model.", state) | {"val_acc.tp": torch.tensor(3), "loss_fn.w": torch.ones(2)},
    "epoch": lambda state: state | {"epoch": 3, "name": "mine", "lr": 0.1},
    "counter": lambda state: state | {"steps": torch.tensor(7)},
    "compiled part": lambda state: {name.replace("blocks.0.", "blocks.0._orig_mod."): t for name, t in state.items()},
    "checkpointed and sharded": lambda state: {
        f"_fsdp_wrapped_module.{name}".replace("blocks.1.", "blocks.1._checkpoint_wrapped_module."): tensor
        for name, tensor in state.items()
    },
}


@pytest.mark.parametrize("kind", AVERAGED | BESIDE)
def test_files_of_training_programs_load_and_name_averages(tmp_path: Path, kind: str) -> None:
    theirs = vit(**SQUARE, num_classes=3)
    torch.save((AVERAGED | BESIDE)[kind](state_of(theirs)), tmp_path / "best.pth.tar")
    model = vitviz.load(tmp_path / "best.pth.tar", heads=5)
    assert_equal(model, theirs)
    assert model.pretrained.name == "best"
    averaged = any(words.startswith("weights: the averaged") for words in model.pretrained.assumed)
    assert averaged == (kind in AVERAGED and kind != "SWA")
    if kind in ("loss", "counter"):
        assert "without criterion.weight" in model.pretrained.source or "without steps" in model.pretrained.source


def test_settings_of_training_programs_are_read_and_code_is_refused(tmp_path: Path) -> None:
    theirs = vit(**SQUARE, num_classes=3)
    beside = {"args": argparse.Namespace(lr=1, out=Path("runs")), "best": np.float64(0.5), "rng": np.arange(3.0)}
    beside |= {"log": collections.Counter({"loss": 2}), "optimizer": {"state": {}, "lr": 0.1}}
    for suffix in (".ckpt", ".pth.tar", ".pt"):
        torch.save(beside | {"state_dict": prefixed("model.", state_of(theirs))}, tmp_path / f"last{suffix}")
        assert_equal(vitviz.load(tmp_path / f"last{suffix}", heads=5), theirs)
    torch.save(beside | {"state_dict": state_of(theirs), "trainer": re.compile("a")}, tmp_path / "code.ckpt")
    with pytest.raises(CheckpointError, match=r"refers to re\._compile.*None of its code was run"):
        vitviz.load(tmp_path / "code.ckpt", heads=5)


def test_classifier_beside_a_backbone_is_kept_by_the_advice(tmp_path: Path) -> None:
    backbone, head = vit(**SQUARE, num_classes=0), nn.Linear(60, 3)
    whole = prefixed("backbone.", state_of(backbone)) | prefixed("fc.", state_of(head))
    path = written(whole, tmp_path, ".pt")
    with pytest.raises(ConvertError, match=r"fc is the classifier .* renaming its tensors to backbone\.head\.weight"):
        vitviz.load(path, heads=5)
    renamed_head = {name.replace("fc.", "backbone.head."): tensor for name, tensor in whole.items()}
    assert_equal(vitviz.load(written(renamed_head, tmp_path, ".pt"), heads=5), lambda images: head(backbone(images)))
    flat = state_of(backbone) | prefixed("my_head.", state_of(head))
    with pytest.raises(ConvertError, match=r"my_head is the classifier .* to head\.weight and head\.bias"):
        vitviz.load(written(flat, tmp_path, ".pt"), heads=5)
    two = prefixed("a.", state_of(backbone)) | prefixed("b.", state_of(backbone))
    with pytest.raises(ConvertError, match=r"tensors of one model, got several, under a\., b\."):
        vitviz.load(written(two, tmp_path, ".pt"), heads=5)


def test_classifier_beside_a_pooler_is_refused(tmp_path: Path) -> None:
    state, _ = hf_cases.on_disk(hf_cases.CASES["ViT"].build(layer_norm_eps=1e-12), tmp_path / "folder")
    own = {"classifier.weight": torch.zeros(3, 35), "classifier.bias": torch.zeros(3)}
    with pytest.raises(ConvertError, match="beside a pooler"):
        vitviz.load(written(prefixed("vit.", state) | own, tmp_path, ".pt"), heads=5)
    assert vitviz.load(written(state, tmp_path, ".pt"), heads=5).config.classes == 0


@pytest.mark.parametrize(
    "name", ["ViT-classifier", "DeiT-classifier", "DINOv2-classifier", "DINOv2-gated", "DINOv3", "SigLIP-classifier"]
)
def test_state_dict_of_transformers_in_memory_gives_its_outputs(tmp_path: Path, name: str) -> None:
    """Names in memory differ from names in files since transformers 5."""
    case, family = hf_cases.CASES[name], name.partition("-")[0]
    theirs = case.build(layer_norm_eps=EPSILON[family], **({"image_size": 44} if family == "DINOv3" else {}))
    wrapped = prefixed("model.", state_of(theirs)) if name == "ViT-classifier" else state_of(theirs)
    model = vitviz.load(written(wrapped, tmp_path, ".pt"), heads=5)
    hf_cases.assert_same(case, theirs, model, hf_cases.NATIVE)


def test_grid_and_resizing_of_positions_are_assumptions(tmp_path: Path) -> None:
    assumed = vitviz.load(written(state_of(vit(**SQUARE)), tmp_path, ".pt"), heads=5).pretrained.assumed
    assert "a square of 7 x 7 patches" in assumed
    assert "positions at other sizes: bicubic, with a low-pass filter" in assumed


@pytest.mark.parametrize("wrap", WRAPPED | BARE)
def test_prefixes_and_keys_of_wrappers_are_removed(tmp_path: Path, wrap: str) -> None:
    theirs = vit(**SQUARE, num_classes=0)
    torch.save((WRAPPED | BARE)[wrap](state_of(theirs)), tmp_path / "weights.pth")
    model = vitviz.load(tmp_path / "weights.pth", heads=5)
    assert_equal(model, theirs)
    assert ("weights under" in model.pretrained.source) == (wrap in WRAPPED)


def test_prefix_of_some_tensors_is_refused_and_other_precisions_become_float32(tmp_path: Path) -> None:
    theirs = vit(**SQUARE)
    state = prefixed("module.", state_of(theirs)) | {"norm2.weight": torch.zeros(2)}
    classifier = prefixed("backbone.", state_of(vit(**SQUARE, num_classes=0))) | {"head.weight": torch.zeros(3, 60)}
    for tensors in (state, classifier):  # a classifier is not dropped silently
        with pytest.raises(ConvertError, match=r"outside of|1 tensor unknown"):
            vitviz.load(written(tensors, tmp_path, ".pt"), heads=5)
    for suffix, dtype in pairs(SUFFIXES, [torch.float16, torch.bfloat16, torch.float64]):
        state = {name: tensor.to(dtype) for name, tensor in state_of(theirs).items()}
        theirs.load_state_dict(state)
        model = vitviz.load(written(state, tmp_path, suffix), heads=5)
        assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}
        assert_equal(model, theirs)


def test_moco_v3_small_asks_for_its_heads(tmp_path: Path) -> None:
    theirs = timm.create_model("vit_small_patch16_224", depth=1, num_heads=12, img_size=32, num_classes=3).eval()
    with torch.no_grad():
        theirs.head.weight.normal_()
        theirs.pos_embed[:, 0] = 0.0  # in MoCo v3 positions are fixed, and the class token has none
    path = written(theirs.state_dict(), tmp_path, ".pth")
    with pytest.raises(ConvertError, match=r"MoCo v3.*--heads 12"):
        vitviz.load(path)
    images = torch.randn(1, 3, 32, 32)
    torch.testing.assert_close(vitviz.load(path, heads=12)(images), theirs(images), atol=1e-4, rtol=1e-4)


def test_unpublished_width_asks_for_heads(tmp_path: Path) -> None:
    path = written(state_of(vit(**SQUARE)), tmp_path, ".pt")
    cases: list[tuple[Any, str]] = [(None, r"width 60.*--heads"), (7, "Expected a divisor of 60, got 7")]
    for heads, words in (*cases, *((wrong, "whole number") for wrong in (0, -5, True, 2.5))):
        with pytest.raises(CheckpointError, match=words):
            vitviz.load(path, heads=heads)


BUILT = {name: (TIMM | UNDETERMINED)[name]() for name in ("deit", "dinov2 with registers", "dinov3 swiglu", "siglip")}
STATES = {name: state_of(model) for name, model in BUILT.items()}
SIGLIP = reference_of(BUILT["siglip"])


@given(data=st.data())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_missing_or_reshaped_tensor_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(STATES)))
    state = dict(STATES[kind])
    # Without registers, or without the class token, the remaining tensors form a complete model of another kind.
    optional = {"reg_token", "cls_token"} if kind == "dinov2 with registers" else set()
    name = data.draw(st.sampled_from(sorted(set(state) - optional)))
    tensor = state.pop(name)
    changes: dict[str, dict[str, torch.Tensor]] = {
        "missing": {},
        "longer": {name: torch.cat([tensor, tensor[-1:]])},
        "one axis more": {name: tensor[None].clone()},
        "beside": {name: tensor, name + "_2": tensor.clone()},
        "empty": {name: tensor[:0].clone()},
        "a single number": {name: tensor.sum()},
    }
    turned = tensor.movedim(0, -1).contiguous() if tensor.ndim > 1 else tensor[:-1].clone()
    if turned.shape != tensor.shape:  # not a square matrix
        changes["turned"] = {name: turned}
    state |= changes[data.draw(st.sampled_from(sorted(changes)))]
    path = written(state, tmp_path, data.draw(st.sampled_from([".pt", ".safetensors"])))
    with pytest.raises(CheckpointError):
        load_file(path, like=SIGLIP) if kind == "siglip" else load_file(path, heads=5)


def test_empty_registers_of_a_damaged_file_are_refused(tmp_path: Path) -> None:
    """Registers of shape (1, 0, D) mean none; the shape (0, R, D) is an error."""
    state = STATES["dinov3 swiglu"]
    path = written(state | {"reg_token": state["reg_token"][:0].clone()}, tmp_path, ".pt")
    with pytest.raises(CheckpointError, match="reg_token"):
        vitviz.load(path, heads=5)


def test_incomplete_parts_are_refused(tmp_path: Path) -> None:
    """Without the first tensor of a part, the shapes match a model that lacks this part."""
    for name in ("head.weight", "head_dist.weight", "dist_token", "cls_token", "norm.bias"):
        state = {other: tensor for other, tensor in STATES["deit"].items() if other != name}
        with pytest.raises(CheckpointError):
            vitviz.load(written(state, tmp_path, ".pt"), heads=5)


NOT_SHOWN: dict[str, tuple[Callable[[], nn.Module], str]] = {
    name: (lambda name=name: timm.create_model(name), words)
    for name, words in {
        "swin_tiny_patch4_window7_224": "Swin.*load the file into",
        "beit_base_patch16_224": "several published models",
        "samvit_base_patch16_224": "SAM.*open only whole; load the file into",
        "resnet18": "convolutional.*no attention",
        "maxvit_tiny_tf_224": "hybrid network",
        "xcit_nano_12_p16_224": "hybrid network",
        "eva02_tiny_patch14_224": "several published models",
        "vit_pe_core_tiny_patch16_384": "several published models",
        "vit_base_patch16_rope_reg1_gap_256": "several published models",
        "vit_small_patch16_rope_ape_224": "several published models",
    }.items()
    if timm.is_model(name)
} | {
    "torchvision's Swin": (lambda: models.swin_t(), "Swin"),
    "transformers' Swin v2": (lambda: hf.Swinv2Model(hf.Swinv2Config()), "Swin"),
    "transformers' BERT": (lambda: hf.BertModel(hf.BertConfig(num_hidden_layers=1)), "Expected .* with tensor names"),
}


@pytest.mark.parametrize("name", NOT_SHOWN)
def test_unsupported_model_is_refused(name: str) -> None:
    build, words = NOT_SHOWN[name]
    with torch.device("meta"):
        shapes = {key: tuple(tensor.shape) for key, tensor in build().state_dict().items()}
    with pytest.raises(ConvertError, match=words):
        Architecture(shapes)


@pytest.mark.parametrize(
    ("surplus", "words"),
    [
        (
            ("stem.a", "stem.b", "mask_token"),
            r"looks like DINOv2 with timm's .*: 2 tensors unknown: stem\.a, stem\.b\. ",
        ),
        (("storage_tokens", "extra.weight"), r"looks like DINOv3 .*: 1 tensor unknown: extra\.weight\. "),
        (
            ("blocks.0.attn.rel_pos_h",),
            r"looks like ViT .*: 1 tensor unknown: .*\. That is SAM, ViTDet or MViT.*open only whole",
        ),
        (("blocks.0.attn.qkv.lora_A",), r"weights in several parts .*merge the parts before saving"),
        (("head.parametrizations.weight.original1",), r"weights in several parts .*merge the parts before saving"),
    ],
)
def test_unknown_tensors_are_listed_with_the_closest_naming(surplus: tuple[str, ...], words: str) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in STATES["dinov2 with registers"].items()}
    with pytest.raises(ConvertError, match=words):
        Architecture(shapes | dict.fromkeys(surplus, (19,)))


def test_file_without_a_mark_is_compared_with_the_closest_naming() -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in STATES["deit"].items() if name != "patch_embed.proj.weight"}
    with pytest.raises(ConvertError, match=r"looks like ViT with timm's .*: patch_embed\.proj\.weight missing\. "):
        Architecture(shapes)
    with pytest.raises(ConvertError, match=r"names for \w+ are the closest"):
        Architecture({"to_patch_embedding.3.weight": (19,)})


@pytest.mark.parametrize("text", [False, True])
@torch.no_grad()
def test_clip_in_openais_names_gives_timms_embedding(tmp_path: Path, text: bool) -> None:
    theirs: Any = FAMILIES["clip"](img_size=PIXELS, class_token=True)
    parts: dict[str, Any] = {"conv1.weight": (60, 3, 5, 5), "class_embedding": (60,), "proj": (60, 29)}
    parts["positional_embedding"] = (50, 60)
    parts |= {f"ln_{at}.{kind}": (60,) for at in ("pre", "post") for kind in ("weight", "bias")}
    block = {"attn.in_proj_weight": (180, 60), "attn.in_proj_bias": (180,), "attn.out_proj.weight": (60, 60)}
    block |= {"mlp.c_fc.weight": (132, 60), "mlp.c_fc.bias": (132,), "mlp.c_proj.weight": (60, 132)}
    block |= dict.fromkeys(("attn.out_proj.bias", "mlp.c_proj.bias"), (60,))
    block |= {f"ln_{half}.{kind}": (60,) for half in "12" for kind in ("weight", "bias")}
    parts |= {f"transformer.resblocks.{index}.{name}": shape for index in range(3) for name, shape in block.items()}
    draw = torch.Generator().manual_seed(2)
    state = {f"visual.{name}": torch.randn(shape, generator=draw) * 0.2 for name, shape in parts.items()}
    theirs.load_state_dict(checkpoint_filter_fn(state, theirs))
    if text:
        state |= {"positional_embedding": torch.zeros(7, 11), "transformer.resblocks.0.ln_1.weight": torch.ones(11)}
        state |= {"logit_scale": torch.tensor(4.0)}
    path = written(state, tmp_path, ".pt")
    with pytest.raises(ConvertError, match="several published models"):
        vitviz.load(path, heads=5)
    model = load_file(path, like=reference_of(theirs))
    assert_equal(model, theirs)
    assert not model.pretrained.labels
    assert ("without the text tower" in model.pretrained.source) == text


@torch.no_grad()
def test_open_clip_with_a_timm_trunk_gives_its_features(tmp_path: Path) -> None:
    theirs = FAMILIES["siglip without a classifier"](img_size=PIXELS)
    state = prefixed("visual.trunk.", state_of(theirs)) | {"visual.head.proj.weight": torch.ones(2, 60)}
    path = written(state | {"text.transformer.resblocks.0.ln_1.weight": torch.ones(3)}, tmp_path, ".pt")
    assert_equal(load_file(path, like=reference_of(theirs)), theirs)


# --- renaming and merging


def test_missing_biases_become_zeros_only_with_free_biases() -> None:
    """Queries, keys and values are stacked in this order."""
    qkv = {f"blocks.0.attn.{part}.weight": torch.ones(4, 3) for part in "qkv"}
    qkv |= {f"blocks.0.attn.{part}.bias": torch.ones(4) for part in "qkv"}
    state = {name: tensor for name, tensor in qkv.items() if name != "blocks.0.attn.k.bias"}
    state["blocks.0.attn.proj.weight"] = torch.ones(3, 4)
    with pytest.raises(ConvertError, match="same shape, got 2"):
        naming.merge(dict(state), patches=0)
    merged = naming.merge(dict(state), patches=0, free_biases=True)
    assert merged["blocks.0.attn.qkv.bias"].tolist() == [1] * 4 + [0] * 4 + [1] * 4
    assert merged["blocks.0.attn.proj.bias"].tolist() == [0] * 3
    another = {name.replace(".0.", ".1."): tensor for name, tensor in qkv.items()}
    with pytest.raises(ConvertError, match=r"blocks\.0.*same shape, got 2"):
        naming.merge(state | another, patches=0, free_biases=True)
    for shape in ((3, 3), (4, 2), (4, 3, 1)):
        with pytest.raises(ConvertError, match="of the same shape, got"):
            naming.merge(qkv | {"blocks.0.attn.q.weight": torch.ones(shape)}, patches=0)


def test_positions_of_prefix_tokens_are_added_to_them() -> None:
    state = {"cls_token": torch.ones(1, 1, 2), "reg_token": torch.ones(1, 3, 2)}
    state["pos_embed"] = torch.arange(16.0).reshape(1, 8, 2)
    merged = naming.merge(dict(state), patches=7)
    assert merged["cls_token"].flatten().tolist() == [1, 2]
    assert merged["reg_token"].equal(state["reg_token"])
    assert merged["pos_embed"].equal(state["pos_embed"][:, 1:])
    assert naming.merge(dict(state), patches=4)["reg_token"].flatten().tolist() == [3, 4, 5, 6, 7, 8]
    for patches in (-1, 3, 6, 9):
        with pytest.raises(ConvertError, match=r"rows of the position table|Expected positions (for|of)"):
            naming.merge(dict(state), patches=patches)
    with pytest.raises(ConvertError, match="Expected positions for cls_token"):
        naming.merge(state | {"pos_embed": torch.zeros(8, 2)}, patches=7)


def test_unknown_names_and_names_of_one_tensor_are_refused() -> None:
    with pytest.raises(ConvertError, match=r"surplus\.weight"):
        naming.VIT.convert({"surplus.weight": torch.zeros(2)}, vitviz.ViTConfig())
    with pytest.raises(ConvertError, match=r"scalars: layernorm\.bias"):
        naming.VIT.convert({"layernorm.bias": torch.tensor(1.0)}, vitviz.ViTConfig())
    with pytest.raises(ConvertError, match=r"'vit\.layernorm\.bias' and 'layernorm\.bias'"):
        naming.VIT.rename(["vit.layernorm.bias", "layernorm.bias"])
    for known in naming.NAMINGS:
        assert not known.rename(known.marks).unknown


def test_bundled_backbone_matches_onnxruntime() -> None:
    script = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "checkpoints" / "build_dinov2_imagenette.py"))
    onnx_path = script["find_onnx"]()
    model = script["build_backbone"](onnx_path)
    images = torch.from_numpy(vitviz.Preprocess(mode="squash")(decode(skimage.data.chelsea())).pixels)[None]
    with torch.no_grad():
        tokens = model.trace(images, blocks=[0]).tokens
    expected = script["onnx_tokens"](onnx_path, images)
    assert tokens.shape == expected.shape == (1, 257, 384)
    assert expected.std() > 0.1  # the outputs are not blank
    torch.testing.assert_close(tokens, expected, rtol=0, atol=1e-4)
