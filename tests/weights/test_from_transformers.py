"""Check that converted models and folders of Hugging Face's transformers match transformers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from hf_cases import (
    CASES,
    CLASSES,
    MAJOR,
    NATIVE,
    SIZES,
    Case,
    assert_same,
    each_case,
    files_of,
    logits,
    on_disk,
    saved,
)
from hostile_files import Call
from image_files import random_rgb
from PIL import Image
from safetensors.torch import load_file, save_file
from timm_models import shaken

import vitviz.weights.from_transformers as ours_of
from vitviz.explorer import Explorer
from vitviz.images.bands import stack_frames
from vitviz.images.limits import ImageError
from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ModelError
from vitviz.model.vit import ViT
from vitviz.weights.checks import CheckpointError, ConvertError
from vitviz.weights.from_transformers import FAMILIES, REFUSED, convert_transformers
from vitviz.weights.transformers_folder import PROCESSORS, about_transformers, load_transformers_folder
from vitviz.weights.zoo import load

pytestmark = pytest.mark.usefixtures("one_thread")


def pil_processor(name: str) -> Any:
    """Return the image processor that resizes with Pillow; in transformers 4 its name has no suffix."""
    processor = f"{name}ImageProcessor"
    return getattr(hf, f"{processor}Pil" if MAJOR > 4 else processor)


def assert_equal(model: ViT, expected: ViT) -> None:
    state = expected.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


@each_case
def test_folder_and_object_match_transformers(tmp_path: Path, case: Case) -> None:
    theirs = saved(case, tmp_path / "my-model")
    ours, of_object = load_transformers_folder(tmp_path / "my-model"), load(theirs)
    assert_equal(of_object, ours)
    assert (of_object.config, of_object.training, ours.training) == (ours.config, False, False)
    assert of_object.pretrained.name == type(theirs).__name__
    about, classes = ours.pretrained, CLASSES if case.read is logits else 0
    assert (about.name, about.licence, about.preprocess.mode) == ("my-model", "unknown", "squash")
    assert len(about.labels) == ours.config.classes == classes
    other = () if case.family.startswith("Aimv2") else ((28, 52), (60, 24))  # AIMv2 takes images of its own size only
    for size in (ours.config.image_size, *other):
        assert_same(case, theirs, ours, size)
    state, settings = files_of(case)
    with torch.no_grad():
        for parameter in convert_transformers(state, settings).parameters():  # no memory is shared with the tensors
            parameter.fill_(7.0)
    half = convert_transformers({name: tensor.half().float() for name, tensor in state.items()}, settings)
    assert_equal(convert_transformers({name: tensor.half() for name, tensor in state.items()}, settings), half)
    assert_equal(convert_transformers(state, settings), ours)


def test_dinov3_accepts_names_in_memory_and_refuses_a_bias_that_settings_exclude() -> None:
    """Blocks are named `model.layer.0` in memory and `layer.0` in files."""
    state, settings = files_of(CASES["DINOv3"])
    named_in_memory = CASES["DINOv3"].build().state_dict()
    assert MAJOR == 4 or named_in_memory.keys() != state.keys()
    assert_equal(convert_transformers(named_in_memory, settings), convert_transformers(state, settings))
    name = "layer.1.attention.k_proj"
    with pytest.raises(ConvertError, match=rf"1 unexpected tensors: {name}\.bias"):
        convert_transformers(state | {f"{name}.bias": state[f"{name}.weight"][:, 0]}, settings)


def test_older_names_and_settings_convert_to_the_same_model() -> None:
    """Older CLIP files have position indices, and the tower's settings under two names, of which one is wrong."""
    state, settings = files_of(CASES["CLIP-whole"])
    counted = {f"{part}.embeddings.position_ids": torch.arange(122)[None] for part in ("vision_model", "text_model")}
    state = state | counted
    expected = convert_transformers(state, settings)
    older = settings | {"vision_config_dict": settings["vision_config"], "vision_config": {"hidden_size": 999}}
    for other in (settings["vision_config"], older):
        assert_equal(convert_transformers(state, other), expected)
    # Names with a prefix, and defaults for missing settings.
    state, settings = files_of(CASES["ViT"])
    expected = convert_transformers(state, settings)
    prefixed = {f"vit.{name}": tensor for name, tensor in state.items()}
    model = convert_transformers(prefixed, {name: settings[name] for name in ("model_type", *SIZES)})
    assert model.config == expected.config
    assert_equal(model, expected)
    with pytest.raises(ConvertError, match="Expected each tensor once"):
        convert_transformers(state | prefixed, settings)


def test_partial_patches_are_dropped(tmp_path: Path) -> None:
    """SigLIP with 384 pixels and patches of 14 ignores the last pixels."""
    theirs = CASES["SigLIP"].build(image_size=47)
    ours = convert_transformers(*on_disk(theirs, tmp_path))
    assert ours.config.image_size == (44, 44)
    images = torch.randn(2, 3, 47, 47)
    with torch.no_grad():
        torch.testing.assert_close(ours(images[..., :44, :44]), theirs(images).pooler_output, rtol=0, atol=1e-4)


VIDEO = {name: value for name, value in SIZES.items() if name != "patch_size"} | {"image_size": 12, "num_frames": 6}
MAE = VIDEO | {"hidden_size": 30, "patch_size": 4, "tubelet_size": 2, "num_labels": CLASSES}
VIVIT = VIDEO | {"tubelet_size": [3, 4, 4], "num_labels": CLASSES}
VIDEOS: dict[str, Callable[[], Any]] = {
    "VideoMAE": lambda: hf.VideoMAEModel(hf.VideoMAEConfig(**MAE)),
    "VideoMAE with a norm": lambda: hf.VideoMAEModel(hf.VideoMAEConfig(**MAE, use_mean_pooling=False, qv_bias=False)),
    "VideoMAE-classifier": lambda: hf.VideoMAEForVideoClassification(hf.VideoMAEConfig(**MAE)),
    "ViViT": lambda: hf.VivitModel(hf.VivitConfig(**VIVIT)),
    "ViViT-classifier": lambda: hf.VivitForVideoClassification(hf.VivitConfig(**VIVIT)),
}


@pytest.mark.parametrize("name", VIDEOS)
def test_videos_match_transformers(name: str, tmp_path: Path) -> None:
    """A tube of frames is a patch, and pictures of tubes are below one another."""
    theirs = VIDEOS[name]()
    theirs.set_attn_implementation("eager")
    theirs = shaken(theirs)
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path)
    assert_equal(load(theirs), ours)
    preprocess, tube = ours.pretrained.preprocess, ours.config.channels // 3
    assert (ours.config.frames, preprocess.mode) == (6 // tube, "squash")
    frames = np.random.default_rng(0).integers(0, 255, (6, 12, 12, 3), np.uint8)
    view = Explorer(ours).open(stack_frames(frames, ours.config.channels))
    mean, std = (torch.tensor(each[:3])[:, None, None] for each in (preprocess.mean, preprocess.std))
    with torch.no_grad():
        pixels = (torch.from_numpy(frames).permute(0, 3, 1, 2) / 255 - mean) / std
        out = theirs(pixels[None], output_attentions=True)
    tokens = out.get("last_hidden_state")
    if tokens is not None:
        torch.testing.assert_close(view.trace.tokens, tokens, rtol=0, atol=1e-5)
    for attention, reference in zip(view.trace.attentions, out.attentions, strict=True):
        torch.testing.assert_close(attention, reference, rtol=0, atol=1e-5)
    if tokens is None:
        torch.testing.assert_close(view.trace.logits, out.logits, rtol=0, atol=1e-5)
        assert len(ours.pretrained.labels) == CLASSES
    else:
        features = tokens[:, 0] if name == "ViViT" else tokens.mean(1)
        torch.testing.assert_close(ours(view.images), features, rtol=0, atol=1e-5)
    assert view.attention(1, query=(3, 2)).grid == (3 * ours.config.frames, 3)
    with pytest.raises(ModelError, match="Stack them with stack_frames"):
        ours(view.images[:, :, :12])
    with pytest.raises(ImageError, match="fill tubes"):
        stack_frames(frames[:5], ours.config.channels)


def test_defaults_match_transformers() -> None:
    elsewhere = {"mlcd", "mlcd_vision_model", "videomae", "vivit"}  # below
    assert {case.config.model_type for case in CASES.values()} | elsewhere == set(FAMILIES)
    without_registers = {name: value for name, value in ours_of.DINOV2_DEFAULTS.items() if "register" not in name}
    for ours, theirs in (
        (ours_of.VIT_DEFAULTS, hf.ViTConfig()),
        (ours_of.VIT_DEFAULTS, hf.DeiTConfig()),
        (ours_of.VIT_DEFAULTS, hf.ViTMAEConfig()),
        (ours_of.MSN_DEFAULTS, hf.ViTMSNConfig()),
        (ours_of.BEIT_DEFAULTS, hf.BeitConfig()),
        (ours_of.BEIT_DEFAULTS, hf.Data2VecVisionConfig()),
        (without_registers, hf.Dinov2Config()),
        (ours_of.DINOV2_DEFAULTS, hf.Dinov2WithRegistersConfig()),
        (ours_of.TIPSV2_DEFAULTS, hf.Tipsv2VisionConfig()),
        (ours_of.DINOV3_DEFAULTS, hf.DINOv3ViTConfig()),
        (ours_of.CLIP_DEFAULTS, hf.CLIPVisionConfig()),
        (ours_of.SIGLIP_DEFAULTS, hf.SiglipVisionConfig()),
        (ours_of.YOLOS_DEFAULTS, hf.YolosConfig()),
        (ours_of.DPT_DEFAULTS, hf.DPTConfig()),
        (ours_of.BLIP_DEFAULTS, hf.BlipVisionConfig(num_channels=3)),
        (ours_of.MLCD_DEFAULTS, hf.MLCDVisionConfig()),
        (ours_of.AIMV2_DEFAULTS, hf.Aimv2VisionConfig(layer_norm_eps=1e-5)),
        (ours_of.VIDEOMAE_DEFAULTS, hf.VideoMAEConfig()),
        (ours_of.VIVIT_DEFAULTS, hf.VivitConfig()),
    ):
        expected = (ours if MAJOR == 4 else {}) | theirs.to_dict()
        assert ours == {name: expected[name] for name in ours}, type(theirs).__name__
    # SigLIP's own files have an empty vision_config.
    sparse = {"model_type": "siglip", "architectures": ["SiglipModel"], "vision_config": {}}
    with pytest.raises(CheckpointError, match=r"Expected 12 blocks .*got 0"):
        convert_transformers({}, sparse)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        *[({"model_type": kind}, f"got model_type {kind!r}: ") for kind in (*REFUSED, "resnet", None)],
        ({"model_type": "vit", "architectures": ["ViTForMaskedImageModeling"]}, "got .*ViTForMaskedImageModeling"),
        ({"model_type": "siglip_vision_model", "vision_use_head": False}, "vision_use_head as true.*got False"),
        ({"model_type": "vit", "hidden_act": "relu"}, "hidden_act as one of gelu, .*got 'relu'"),
        ({"model_type": "vit", "hidden_size": "768"}, "width to be a whole number .*got '768'"),
        ({"model_type": "vit", "layer_norm_eps": None}, "norms.eps to be a number .*got None"),
        ({"model_type": "vit", "patch_size": [16, 8]}, r"patch_size as a square.*got \[16, 8\]"),
        ({"model_type": "clip", "vision_config": 3}, "vision_config as an object, got 3"),
        ({"model_type": "clip_vision_model", "image_size": [224, 448]}, "as a square"),
        ({"model_type": "clip_vision_model", "image_size": 31}, "room for a patch of 32 x 32"),
        ({"model_type": "dinov3_vit", "use_gated_mlp": True, "hidden_act": "tanh"}, "hidden_act as .*got 'tanh'"),
        ({"model_type": "dinov2", "image_size": 224}, "without hidden_size"),
        ({"model_type": "dpt", "is_hybrid": True}, "is_hybrid as false"),
        ({"model_type": "mlcd", "num_key_value_groups": 2}, "num_key_value_groups as 1"),
        ({"model_type": "aimv2_vision_model", "is_native": True}, "is_native as false"),
        ({"model_type": "siglip2_vision_model", "num_channels": 1}, "num_channels as 3"),
    ],
)
def test_unsupported_types_and_settings_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConvertError, match=text):
        convert_transformers({}, settings)


# --- folders: labels and preprocessing


NEW = ("Blip", "DPT", "Yolos", "Siglip2", "Sam") if MAJOR > 4 else ()


def test_preprocessing_defaults_match_transformers() -> None:
    for ours in ("ViT", "DeiT", "CLIP", "Siglip", "DINOv3ViT", "Bit", "Beit", *NEW):
        dinov3 = "Fast" if MAJOR == 4 and ours == "DINOv3ViT" else ""
        processor = getattr(hf, f"{ours}ImageProcessor{dinov3}")().to_dict()
        settings = {"model_type": "vit"}
        expected = about_transformers(settings, processor, "a").preprocess
        for name in (f"{ours}ImageProcessor", f"{ours}FeatureExtractor", f"{ours}ImageProcessorFast"):
            assert about_transformers(settings, {"image_processor_type": name}, "a").preprocess == expected
        assert set(PROCESSORS[ours]) <= {*processor, "do_center_crop"}


@pytest.mark.parametrize(
    ("processor", "patch"),
    [
        (pil_processor("ViT")(size={"height": 28, "width": 44}), 4),
        (pil_processor("Siglip")(size={"height": 45, "width": 45}, image_mean=[0.1, 0.2, 0.3]), 5),
        (pil_processor("CLIP")(size={"shortest_edge": 32}, crop_size={"height": 24, "width": 28}), 4),
        (pil_processor("Bit")(size={"shortest_edge": 32}, crop_size=28, resample=2), 7),
        (pil_processor("ViT")(size={"height": 28, "width": 28}, do_normalize=False, rescale_factor=1 / 127.5), 4),
        (pil_processor("ViT")(size={"height": 28, "width": 28}, do_rescale=False, image_std=[9.0, 8.0, 7.0]), 4),
        (pil_processor("ViT")(size={"height": 28, "width": 28}, resample=0), 4),
    ],
)
def test_pixels_match_transformers(processor: Any, patch: int) -> None:
    picture = Image.fromarray(random_rgb(64, 92))
    expected = processor(picture, return_tensors="pt").pixel_values[0]
    preprocess = about_transformers({"patch_size": patch}, processor.to_dict(), "a").preprocess
    pixels = torch.from_numpy(preprocess(picture).pixels)
    torch.testing.assert_close(pixels, expected, rtol=1e-5, atol=1e-5)


HALF: dict[str, Any] = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
OLD_VIT = {"do_normalize": True, "do_resize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": 224}
DEIT = {"crop_size": 224, "do_center_crop": True, "feature_extractor_type": "DeiTFeatureExtractor", "size": 256}
SIGLIP = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 384, "width": 384}}
NULLS = {"image_processor_type": "DINOv3ViTImageProcessorFast", "crop_size": None, "do_center_crop": None}


@pytest.mark.parametrize(
    ("kind", "patch", "processor", "expected"),
    [
        ("vit", 16, OLD_VIT, Preprocess(mode="squash", interpolation="bilinear", **HALF)),
        ("deit", 16, DEIT, Preprocess(resize=256, **HALF)),
        ("siglip", 14, SIGLIP, Preprocess(height=378, width=378, mode="squash", **HALF)),  # 27 patches of 14
        ("dinov3_vit", 16, NULLS, Preprocess(mode="squash", interpolation="bilinear")),
    ],
)
def test_published_processor_files_are_read(
    kind: str, patch: int, processor: dict[str, Any], expected: Preprocess
) -> None:
    """Settings copied from published files."""
    inner = {"patch_size": patch}
    settings = {"model_type": kind} | ({"vision_config": inner} if kind == "siglip" else inner)
    assert about_transformers(settings, processor, "a").preprocess == expected


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"do_resize": False}, "do_resize as true.*got False"),
        ({"resample": 4}, "resample as .*got 4"),
        ({"resample": [3]}, "resample"),
        ({"size": {"shortest_edge": 224}}, "without do_center_crop"),
        ({"size": {"longest_edge": 224}}, "size as"),
        ({"size": {"height": 256, "width": 224}, "do_center_crop": True, "crop_size": 224}, "keeps its shape"),
        ({"image_mean": [0.5, 0.5]}, "image_mean as"),
        ({"image_processor_type": "NewImageProcessor"}, "without size, resample, image_mean, image_std"),
    ],
)
def test_unsupported_preprocessing_is_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ConvertError, match=text):
        about_transformers({"model_type": "vit"}, change, "a")


def test_labels_follow_the_order_of_the_logits() -> None:
    settings = {"model_type": "vit", "architectures": ["ViTForImageClassification"]}
    named = {str(index): f"class {index}" for index in reversed(range(12))}
    about = about_transformers(settings | {"id2label": named}, {}, "a", licence="Apache-2.0", source="b")
    assert about.labels == tuple(f"class {index}" for index in range(12))
    assert (about.name, about.licence, about.source) == ("a", "Apache-2.0", "b")
    assert about_transformers(settings, {}, "a").labels == ("LABEL_0", "LABEL_1")
    assert about_transformers({"model_type": "vit", "id2label": named}, {}, "a").labels == ()  # without a classifier
    for wrong in ({"0": "a", "2": "b"}, {"x": "a"}, ["a"], {"0": 3}):
        with pytest.raises(ConvertError, match="Expected id2label"):
            about_transformers(settings | {"id2label": wrong}, {}, "a")


def test_sharded_and_torch_files_and_a_joint_processor_load(tmp_path: Path) -> None:
    case = CASES["ViT-classifier"]
    theirs = saved(case, tmp_path, max_shard_size="20KB")
    assert not (tmp_path / "model.safetensors").exists()
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert_same(case, theirs, load_transformers_folder(tmp_path, name="a"), NATIVE)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    state = {name: tensor for path in tmp_path.glob("model-*.safetensors") for name, tensor in load_file(path).items()}
    assert sorted(state) == sorted(index["weight_map"])
    for path in tmp_path.glob("model*"):
        path.unlink()
    torch.save(state, tmp_path / "pytorch_model.bin")
    assert_same(case, theirs, load_transformers_folder(tmp_path, licence="MIT"), NATIVE)
    (tmp_path / "preprocessor_config.json").unlink()
    joint = {"image_processor": {"image_processor_type": "ViTImageProcessor", "size": 48}}
    (tmp_path / "processor_config.json").write_text(json.dumps(joint))
    about = load_transformers_folder(tmp_path).pretrained
    assert about.preprocess.height == 48


def test_incomplete_and_damaged_folders_are_refused(tmp_path: Path) -> None:
    """See test_hostile.py for damaged weights files."""

    def assert_refused(text: str) -> None:
        with pytest.raises(CheckpointError, match=text):
            load_transformers_folder(tmp_path)

    assert_refused(r"with config\.json")
    saved(CASES["ViT"], tmp_path)
    weights, index = tmp_path / "model.safetensors", tmp_path / "model.safetensors.index.json"
    weights.unlink()
    assert_refused("got none of them")
    torch.save({"a": Call(print, "ran")}, tmp_path / "pytorch_model.bin")
    assert_refused(r"got other objects: it refers to (builtins\.)?print")
    index.write_text('{"weight_map": {"a": "b.safetensors"}}')
    assert_refused(r"has no b\.safetensors")
    save_file({"c": torch.zeros(2)}, tmp_path / "b.safetensors")
    assert_refused(r"got differences: a, c")
    for file in ("../b.safetensors", "/b.safetensors", "a/b.safetensors", "pytorch_model.bin"):
        index.write_text(json.dumps({"weight_map": {"c": file}}))
        assert_refused("Expected safetensors files beside")
    index.write_text("[1, 2")
    assert_refused("Expected JSON")
