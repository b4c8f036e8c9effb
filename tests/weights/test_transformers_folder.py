"""Folders of Hugging Face's transformers: what travels with the weights, and the files themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from hf_cases import CASES, CLASSES, NATIVE, Case, assert_same, each_case, logits, saved
from hostile_files import Call
from image_files import random_rgb
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from vitviz.images.preprocess import Preprocess
from vitviz.weights import checkpoint
from vitviz.weights.checks import CheckpointError, ConvertError
from vitviz.weights.transformers_folder import PROCESSORS, about_transformers, load_transformers_folder
from vitviz.weights.zoo import load

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_defaults_of_preprocessing_are_those_of_transformers() -> None:
    for ours in ("ViT", "DeiT", "CLIP", "Siglip", "DINOv3ViT", "Bit"):
        said = getattr(hf, f"{ours}ImageProcessor")().to_dict()
        settings = {"model_type": "vit"}
        expected = about_transformers(settings, said, "a").preprocess
        for name in (f"{ours}ImageProcessor", f"{ours}FeatureExtractor", f"{ours}ImageProcessorFast"):
            assert about_transformers(settings, {"image_processor_type": name}, "a").preprocess == expected
        assert set(PROCESSORS[ours]) <= {*said, "do_center_crop"}


@pytest.mark.parametrize(
    ("processor", "patch"),
    [
        (ViTImageProcessorPil(size={"height": 28, "width": 44}), 4),
        (SiglipImageProcessorPil(size={"height": 45, "width": 45}, image_mean=[0.1, 0.2, 0.3]), 5),
        (CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 24, "width": 28}), 4),
        (BitImageProcessorPil(size={"shortest_edge": 32}, crop_size=28, resample=2), 7),
        (ViTImageProcessorPil(size={"height": 28, "width": 28}, do_normalize=False, rescale_factor=1 / 127.5), 4),
        (ViTImageProcessorPil(size={"height": 28, "width": 28}, do_rescale=False, image_std=[9.0, 8.0, 7.0]), 4),
        (ViTImageProcessorPil(size={"height": 28, "width": 28}, resample=0), 4),
    ],
)
def test_pixels_are_those_of_transformers(processor: Any, patch: int) -> None:
    picture = Image.fromarray(random_rgb(64, 92))
    expected = processor(picture, return_tensors="pt").pixel_values[0]
    preprocess = about_transformers({"patch_size": patch}, processor.to_dict(), "a").preprocess
    pixels = torch.from_numpy(preprocess(picture).pixels)
    torch.testing.assert_close(pixels, expected, rtol=1e-5, atol=1e-5)


HALF: dict[str, Any] = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
OLD_VIT = {"do_normalize": True, "do_resize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": 224}
DEIT = {"crop_size": 224, "do_center_crop": True, "feature_extractor_type": "DeiTFeatureExtractor", "size": 256}
CLIP = {"feature_extractor_type": "CLIPFeatureExtractor", "size": 336, "crop_size": 336, "do_center_crop": True}
SIGLIP = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 384, "width": 384}}
NULLS = {"image_processor_type": "DINOv3ViTImageProcessorFast", "crop_size": None, "do_center_crop": None}


@pytest.mark.parametrize(
    ("kind", "patch", "said", "expected"),
    [
        ("vit", 16, OLD_VIT, Preprocess(mode="squash", interpolation="bilinear", **HALF)),
        ("deit", 16, DEIT, Preprocess(resize=256, **HALF)),
        ("clip", 14, CLIP, Preprocess(height=336, width=336, resize=336, mean=CLIP_MEAN, std=CLIP_STD)),
        ("siglip", 14, SIGLIP, Preprocess(height=378, width=378, mode="squash", **HALF)),  # 27 patches of 14
        ("dinov3_vit", 16, NULLS, Preprocess(mode="squash", interpolation="bilinear")),
    ],
)
def test_files_on_the_hub_are_understood(kind: str, patch: int, said: dict[str, Any], expected: Preprocess) -> None:
    """What the published models say, written down from their files."""
    inner = {"patch_size": patch}
    settings = {"model_type": kind} | ({"vision_config": inner} if kind in ("clip", "siglip") else inner)
    assert about_transformers(settings, said, "a").preprocess == expected


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
def test_preprocessing_that_does_not_exist_here_is_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ConvertError, match=text):
        about_transformers({"model_type": "vit"}, change, "a")


def test_labels_come_in_the_order_of_the_logits() -> None:
    settings = {"model_type": "vit", "architectures": ["ViTForImageClassification"]}
    named = {str(index): f"class {index}" for index in reversed(range(12))}
    about = about_transformers(settings | {"id2label": named}, {}, "a", licence="Apache-2.0", source="b")
    assert about.labels == tuple(f"class {index}" for index in range(12))
    assert (about.name, about.licence, about.source) == ("a", "Apache-2.0", "b")
    assert about_transformers(settings, {}, "a").labels == ("LABEL_0", "LABEL_1")
    assert about_transformers({"model_type": "vit", "id2label": named}, {}, "a").labels == ()  # no classifier
    for wrong in ({"0": "a", "2": "b"}, {"x": "a"}, ["a"], {"0": 3}):
        with pytest.raises(ConvertError, match="Expected id2label"):
            about_transformers(settings | {"id2label": wrong}, {}, "a")


# --- folders


def test_load_knows_such_a_folder_from_ours(tmp_path: Path) -> None:
    saved(CASES["ViT-classifier"], tmp_path / "theirs")
    torch.manual_seed(3)
    checkpoint.save(load(tmp_path / "theirs"), tmp_path / "ours")
    assert torch.equal(torch.rand(2), torch.rand(2, generator=torch.Generator().manual_seed(3)))  # it drew no numbers
    first, second = load(tmp_path / "theirs"), load(tmp_path / "ours")
    assert (first.config, first.pretrained) == (second.config, second.pretrained)
    assert all(torch.equal(tensor, second.state_dict()[name]) for name, tensor in first.state_dict().items())
    (tmp_path / "theirs" / "config.json").write_text('{"model_type": "swin"}')
    with pytest.raises(ConvertError, match="swin"):
        load(tmp_path / "theirs")


@each_case
def test_a_folder_and_an_object_load(tmp_path: Path, case: Case) -> None:
    theirs = saved(case, tmp_path / "my-model")
    ours, of_object = load_transformers_folder(tmp_path / "my-model"), load(theirs)
    for model in (ours, of_object):
        assert_same(case, theirs, model)
        assert not model.training
    about = ours.pretrained
    assert about is not None
    assert (about.name, about.licence, about.preprocess.mode) == ("my-model", "unknown", "squash")
    assert len(about.labels) == (CLASSES if case.read is logits else 0)
    assert of_object.pretrained is not None
    assert of_object.pretrained.name == type(theirs).__name__


def test_folders_in_several_files_of_torch_and_with_a_joint_processor_load(tmp_path: Path) -> None:
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
    assert about is not None
    assert about.preprocess.height == 48


def test_what_is_wrong_with_a_folder_is_said(tmp_path: Path) -> None:
    """What is wrong inside a file of weights: test_hostile.py, whose reader is the same."""

    def assert_refused(text: str) -> None:
        with pytest.raises(CheckpointError, match=text):
            load_transformers_folder(tmp_path)

    assert_refused(r"with config\.json")
    saved(CASES["ViT"], tmp_path)
    weights, index = tmp_path / "model.safetensors", tmp_path / "model.safetensors.index.json"
    state = load_file(weights)
    state["layernorm.weight"][0] = float("nan")
    save_file(state, weights)
    assert_refused(r"NaN or infinity in norm\.weight")
    weights.write_bytes(weights.read_bytes()[:100])
    assert_refused(r"is damaged|cut short")
    weights.unlink()
    assert_refused("got none of them")
    torch.save({"a": Call(print, "ran")}, tmp_path / "pytorch_model.bin")
    assert_refused(r"got more: it asks for print")
    index.write_text('{"weight_map": {"a": "b.safetensors"}}')
    assert_refused(r"has no b\.safetensors")
    save_file({"c": torch.zeros(2)}, tmp_path / "b.safetensors")
    assert_refused(r"got others: a, c")
    for file in ("../b.safetensors", "/b.safetensors", "a/b.safetensors", "pytorch_model.bin"):
        index.write_text(json.dumps({"weight_map": {"c": file}}))
        assert_refused("Expected safetensors files beside")
    index.write_text("[1, 2")
    assert_refused("Expected JSON")
