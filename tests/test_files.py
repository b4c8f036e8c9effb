"""One file of weights: the family is recognised, what was assumed is said, and the numbers are those of the library."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import hf_cases
import pytest
import timm
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from timm.layers import LayerNorm, QuickGELU, SwiGLUPacked
from timm_models import ROTARY, distilled, eva, shaken, vit
from torch import Tensor, nn
from torchvision.models import VisionTransformer as TorchvisionViT

import vitviz
from vitviz.cli import main
from vitviz.model import ViT
from vitviz.weights.checkpoint import save
from vitviz.weights.checks import CheckpointError
from vitviz.weights.families import FAMILIES
from vitviz.weights.files import NESTS, load_file
from vitviz.weights.recognise import recognise
from vitviz.weights.source import ConvertError

State = dict[str, Tensor]
PIXELS = 35  # the tiny models of timm see 7 x 7 patches of 5
SQUARE: dict[str, Any] = {"img_size": PIXELS, "norm_layer": partial(LayerNorm, eps=1e-6)}
EPS5: dict[str, Any] = {"img_size": PIXELS, "norm_layer": partial(LayerNorm, eps=1e-5)}
DINOV3: dict[str, Any] = ROTARY | EPS5 | {"rope_temperature": 100.0}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """On tensors this small, threads spend their time waiting for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def state_of(model: nn.Module) -> State:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def written(state: State, folder: Path, suffix: str) -> Path:
    path = folder / f"weights{suffix}"
    if suffix == ".safetensors":
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=suffix != ".bin")  # .bin: as torch wrote before 1.6
    return path


@torch.no_grad()
def assert_equal(model: ViT, theirs: Callable[[Tensor], Tensor], side: int = PIXELS) -> None:
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(5))
    expected = theirs(images)
    assert expected[0].std() > 1e-2
    torch.testing.assert_close(model(images), expected, rtol=0, atol=1e-4)
    assert not model.training


# --- timm's names

TIMM: dict[str, tuple[Callable[[], nn.Module], str | None]] = {
    "vit": (lambda: vit(**SQUARE), None),
    "vit without a classifier": (lambda: vit(**SQUARE, num_classes=0), None),
    "vit without biases": (lambda: vit(**SQUARE, qkv_bias=False, proj_bias=False), None),
    "vit with normed queries and keys": (lambda: vit(**SQUARE, qk_norm=True), None),
    "deit": (lambda: distilled(**SQUARE), None),
    "deit3": (lambda: vit(**SQUARE, no_embed_class=True, init_values=1e-6), None),
    "dinov2": (lambda: vit(**SQUARE, init_values=1e-5, num_classes=0), None),
    "dinov2 with registers": (lambda: vit(**SQUARE, init_values=1e-5, reg_tokens=4, no_embed_class=True), None),
    "dinov2 giant": (lambda: vit(**SQUARE, mlp_layer=SwiGLUPacked, act_layer=nn.SiLU, init_values=1e-5), None),
    "mae, fine-tuned": (lambda: vit(**SQUARE, global_pool="avg"), None),
    "gap with registers": (
        lambda: vit(**SQUARE, class_token=False, global_pool="avg", reg_tokens=2, no_embed_class=True, fc_norm=False),
        None,
    ),
    "gap": (lambda: vit(**SQUARE, class_token=False, global_pool="avg"), "vit"),
    "clip": (lambda: vit(**EPS5, pre_norm=True), "clip"),
    "clip, quick gelu": (lambda: vit(**EPS5, pre_norm=True, act_layer=QuickGELU), "clip-quickgelu"),
    "siglip": (lambda: vit(**SQUARE, class_token=False, global_pool="map"), "siglip"),
    "siglip 2": (lambda: vit(**SQUARE, class_token=False, global_pool="map", act_layer="gelu_tanh"), "siglip-tanh"),
    "siglip gap": (
        lambda: vit(**SQUARE, class_token=False, global_pool="avg", fc_norm=False, act_layer="gelu_tanh"),
        "siglip-tanh",
    ),
    "dinov3": (lambda: eva(**DINOV3, qkv_bias=False, num_classes=0), None),
    "dinov3 with biases": (lambda: eva(**DINOV3), None),
    "dinov3 swiglu": (lambda: eva(**DINOV3, swiglu_mlp=True, swiglu_align_to=8), None),
}


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
    for words in (f"weights{suffix}", "norm epsilon", "preprocessing assumed"):
        assert words in about.source
    assert ("ImageNet mean" in about.source) == (about.preprocess.mean[0] == 0.485)
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
    assert f"{model.config.heads} heads of width 64 assumed" in model.pretrained.source


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
    found = recognise({name: tuple(tensor.shape) for name, tensor in theirs.state_dict().items()})
    assert any(f"{theirs.blocks[0].attn.num_heads} heads" in words for words in found.assumed)


def test_a_width_that_is_not_published_asks_for_its_heads(tmp_path: Path) -> None:
    path = written(state_of(vit(**SQUARE)), tmp_path, ".pt")
    with pytest.raises(ConvertError, match=r"width 60.*--heads"):
        vitviz.load(path)
    with pytest.raises(ConvertError, match="expected a divisor of 60, got 7"):
        vitviz.load(path, heads=7)
    for wrong in (0, -5, True, 2.5):
        with pytest.raises(ConvertError, match="whole number of at least 1"):
            vitviz.load(path, heads=wrong)  # type: ignore[arg-type]
    normed = written(state_of(vit(**SQUARE, qk_norm=True)), tmp_path, ".pth")
    assert vitviz.load(normed).config.heads == 5  # the norm of a query is as long as a head is wide
    with pytest.raises(ConvertError, match="expected 5 heads of width 12, got 6"):
        vitviz.load(normed, heads=6)


@pytest.mark.parametrize("family", ["clip", "siglip", "gap"])
def test_what_names_do_not_tell_is_asked_for(tmp_path: Path, family: str) -> None:
    path = written(state_of(TIMM[family][0]()), tmp_path, ".pt")
    with pytest.raises(ConvertError, match=r"do not tell .*--family.*GELU|do not tell .*--family.*siglip"):
        vitviz.load(path, heads=5)
    with pytest.raises(ConvertError, match=r"not those of family dinov3: expected"):
        vitviz.load(path, heads=5, family="dinov3")
    with pytest.raises(ConvertError, match="Unknown family 'resnet': expected one of vit"):
        vitviz.load(path, heads=5, family="resnet")


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
@pytest.mark.parametrize("name", hf_cases.CASES)
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


# --- wrappers

WRAPPED: dict[str, Callable[[State], Any]] = {
    **{nest: (lambda state, nest=nest: {nest: state, "epoch": 3, "lr": [0.1, None]}) for nest in NESTS},
    "two deep": lambda state: {"state_dict": {"model": state}},
    "teacher first": lambda state: {"student": {"a": torch.zeros(2)}, "teacher": state, "model": {"b": torch.zeros(1)}},
    "module.": lambda state: {f"module.{name}": tensor for name, tensor in state.items()},
    "module.backbone.": lambda state: {"model": {f"module.backbone.{name}": tensor for name, tensor in state.items()}},
    "_orig_mod.": lambda state: {f"_orig_mod.{name}": tensor for name, tensor in state.items()},
    "parameters": lambda state: {name: nn.Parameter(tensor) for name, tensor in state.items()},
    "half": lambda state: {name: tensor.half().float() for name, tensor in state.items()},
    "not contiguous": lambda state: {
        name: tensor.t().clone().t() if tensor.ndim == 2 else tensor for name, tensor in state.items()
    },
    "with a projection head": lambda state: {
        "teacher": {f"backbone.{name}": tensor for name, tensor in state.items()}
        | {"dino_head.mlp.0.weight": torch.zeros(2, 3)}
    },
}


@pytest.mark.parametrize("wrap", WRAPPED)
def test_wrappers_are_taken_off(tmp_path: Path, wrap: str) -> None:
    theirs = vit(**SQUARE, num_classes=0)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(parameter.half().float())
    path = tmp_path / "weights.pth"
    torch.save(WRAPPED[wrap](state_of(theirs)), path)
    model = vitviz.load(path, heads=5)
    assert_equal(model, theirs)
    assert model.pretrained is not None
    assert ("weights under" in model.pretrained.source) == (
        wrap in NESTS or "teacher" in wrap or wrap in ("two deep", "module.backbone.", "with a projection head")
    )


def test_a_prefix_that_one_tensor_lacks_stays(tmp_path: Path) -> None:
    state = {f"module.{name}": tensor for name, tensor in state_of(vit(**SQUARE)).items()}
    with pytest.raises(ConvertError, match="Cannot tell a family"):
        vitviz.load(written(state | {"norm2.weight": torch.zeros(2)}, tmp_path, ".pt"), heads=5)
    classifier = {f"backbone.{name}": tensor for name, tensor in state_of(vit(**SQUARE, num_classes=0)).items()}
    with pytest.raises(ConvertError, match="Cannot tell a family"):  # not dropped in silence
        vitviz.load(written(classifier | {"head.weight": torch.zeros(3, 60)}, tmp_path, ".pt"), heads=5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_other_precisions_become_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    theirs = vit(**SQUARE)
    state = {name: tensor.to(dtype) for name, tensor in state_of(theirs).items()}
    theirs.load_state_dict(state)
    for suffix in (".pt", ".bin", ".safetensors"):
        model = vitviz.load(written(state, tmp_path, suffix), heads=5)
        assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}
        assert_equal(model, theirs)


# --- nothing is forced

WHOLE = ["deit", "dinov2 with registers", "siglip", "dinov3 swiglu", "vit with normed queries and keys"]
STATES = {name: state_of(TIMM[name][0]()) for name in WHOLE}


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_tensor_that_is_missing_reshaped_or_too_many_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(WHOLE))
    state = dict(STATES[kind])
    # Without registers, and without a class token beside them, it is a whole model of another kind.
    whole = {"reg_token", "cls_token"} if kind == "dinov2 with registers" else set()
    name = data.draw(st.sampled_from(sorted(set(state) - whole)))
    tensor = state.pop(name)
    change = data.draw(st.sampled_from(["missing", "longer", "one axis more", "turned", "beside", "empty"]))
    if change == "longer":
        state[name] = torch.cat([tensor, tensor[-1:]])
    elif change == "one axis more":
        state[name] = tensor[None].clone()
    elif change == "turned":
        state[name] = tensor.movedim(0, -1).contiguous() if tensor.ndim > 1 else tensor[:-1].clone()
    elif change == "beside":
        state |= {name: tensor, name + "_2": tensor.clone()}
    elif change == "empty":
        state[name] = tensor[:0].clone()
    if state.get(name) is not None and change != "beside" and state[name].shape == tensor.shape:
        return  # a square matrix turned
    path = written(state, tmp_path, data.draw(st.sampled_from([".pt", ".safetensors"])))
    with pytest.raises((CheckpointError, ConvertError)):
        vitviz.load(path, family=TIMM[kind][1], heads=5)


# Only the first tensor of a part of the model is missing: the part is not there, and that is another model.
@pytest.mark.parametrize("name", ["head.weight", "head_dist.weight", "dist_token", "cls_token", "norm.bias"])
def test_half_of_a_part_is_refused(tmp_path: Path, name: str) -> None:
    state = dict(STATES["deit"])
    del state[name]
    with pytest.raises(ConvertError):
        vitviz.load(written(state, tmp_path, ".pt"), heads=5)


# --- models that cannot be shown

NOT_SHOWN = {
    "swin_tiny_patch4_window7_224": "Swin.*windows",
    "swinv2_tiny_window8_256": "Swin.*windows",
    "maxvit_tiny_tf_224": "MaxViT.*windows",
    "beit_base_patch16_224": "BEiT.*bias",
    "vit_base_r50_s16_224": "hybrid.*stem",
    "cait_xxs24_224": "CaiT.*heads",
    "convit_tiny": "ConViT.*position",
    "xcit_nano_12_p16_224": "XCiT.*channels",
    "tnt_s_patch16_224": "TNT.*inside",
    "pvt_v2_b0": "stages",
    "samvit_base_patch16_224": "SAM.*windows",
    "resnet18": "convolutional network.*no attention",
    "eva02_tiny_patch14_224": "EVA",
    "vit_pe_core_tiny_patch16_384": "position|Perception",
    "vit_base_patch16_rope_reg1_gap_256": "position",
    "vit_small_patch16_rope_ape_224": "EVA",
}


@pytest.mark.parametrize("name", [name for name in NOT_SHOWN if timm.is_model(name)])
def test_a_model_that_cannot_be_shown_is_refused_by_name(name: str) -> None:
    with torch.device("meta"):
        state = timm.create_model(name).state_dict()
    with pytest.raises(ConvertError, match=NOT_SHOWN[name]):
        recognise({key: tuple(tensor.shape) for key, tensor in state.items()})


def test_other_libraries_models_that_cannot_be_shown_are_refused_by_name() -> None:
    import transformers as hf
    from torchvision import models

    cases = [
        (lambda: models.swin_t(), "Swin"),
        (lambda: models.maxvit_t(), "MaxViT"),
        (lambda: hf.SwinForImageClassification(hf.SwinConfig()), "Swin"),
        (lambda: hf.Swinv2Model(hf.Swinv2Config()), "Swin"),
        (lambda: hf.BeitForImageClassification(hf.BeitConfig(use_relative_position_bias=True)), "BEiT"),
        (lambda: hf.ViTMAEForPreTraining(hf.ViTMAEConfig()), "MAE"),
        (lambda: hf.ResNetModel(hf.ResNetConfig()), "names"),
        (lambda: hf.BertModel(hf.BertConfig(num_hidden_layers=1)), "names"),
    ]
    for build, words in cases:
        with torch.device("meta"):
            state = build().state_dict()
        with pytest.raises(ConvertError, match=words):
            recognise({key: tuple(tensor.shape) for key, tensor in state.items()})


def test_every_family_can_be_named_and_is_described() -> None:
    assert set(FAMILIES) >= {family for _, family in TIMM.values() if family}
    assert all(family.who for family in FAMILIES.values())


# --- the command line


def test_the_command_line_passes_family_and_heads_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(state_of(TIMM["clip"][0]()), tmp_path, ".pt")
    assert main(["summary", "--model", str(path), "--heads", "5"]) == 2
    assert "--family" in capsys.readouterr().err
    assert main(["summary", "--model", str(path), "--heads", "5", "--family", "clip"]) == 0
    assert main(["summary", "--heads", "5"]) == 2
    assert "brings its own settings" in capsys.readouterr().err
