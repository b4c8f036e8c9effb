"""Folders of Hugging Face's transformers: what travels with the weights, and the files themselves."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from hf_cases import CASES, CLASSES, NATIVE, ODD, Case, assert_same, each_case, logits
from image_files import random_rgb
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from vitviz.explorer import Explorer
from vitviz.images.preprocess import Preprocess
from vitviz.weights import checkpoint
from vitviz.weights.checks import CheckpointError, ConvertError
from vitviz.weights.transformers_folder import PROCESSORS, about_transformers, load_transformers_folder
from vitviz.weights.zoo import load


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("ViT", hf.ViTImageProcessor),
        ("DeiT", hf.DeiTImageProcessor),
        ("CLIP", hf.CLIPImageProcessor),
        ("Siglip", hf.SiglipImageProcessor),
        ("DINOv3ViT", hf.DINOv3ViTImageProcessor),
        ("Bit", hf.BitImageProcessor),
    ],
)
def test_the_defaults_of_preprocessing_are_those_of_transformers(ours: str, theirs: type) -> None:
    said = theirs().to_dict()
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


def test_files_on_the_hub_are_understood() -> None:
    """What the published models say, written down from their files."""
    old = {"do_normalize": True, "do_resize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": 224}
    half = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
    assert about_transformers({"model_type": "vit", "patch_size": 16}, old, "a").preprocess == Preprocess(
        mode="squash", interpolation="bilinear", **half
    )
    deit = {"crop_size": 224, "do_center_crop": True, "feature_extractor_type": "DeiTFeatureExtractor", "size": 256}
    assert about_transformers({"model_type": "deit"}, deit, "a").preprocess == Preprocess(resize=256, **half)
    clip = about_transformers(
        {"model_type": "clip", "vision_config": {"patch_size": 14}},
        {"feature_extractor_type": "CLIPFeatureExtractor", "size": 336, "crop_size": 336, "do_center_crop": True},
        "a",
    ).preprocess
    assert (clip.mode, clip.resize, clip.height, clip.mean[0]) == ("crop", 336, 336, 0.48145466)
    siglip = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 384, "width": 384}}
    siglip_settings = {"model_type": "siglip", "vision_config": {"patch_size": 14}}
    assert about_transformers(siglip_settings, siglip, "a").preprocess.height == 378  # 27 patches of 14
    nulls = {"image_processor_type": "DINOv3ViTImageProcessorFast", "crop_size": None, "do_center_crop": None}
    dino = about_transformers({"model_type": "dinov3_vit"}, nulls, "a").preprocess
    assert dino == Preprocess(mode="squash", interpolation="bilinear")


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


def test_odd_preprocessing_ends_in_words() -> None:
    said = hf.CLIPImageProcessor().to_dict()
    inside = (("size", "shortest_edge"), ("size", "height"), ("crop_size", "height"))
    tried = [said | {name: value} for name in said for value in ODD]
    tried += [said | {name: {part: value}} for name, part in inside for value in ODD]
    for changed in tried:
        with suppress(ConvertError):
            about_transformers({"model_type": "clip"}, changed, "a")


# --- folders


def saved(case: Case, folder: Path, **more: Any) -> torch.nn.Module:
    theirs = case.build()
    theirs.save_pretrained(folder, **more)
    hf.ViTImageProcessor(size={"height": 44, "width": 44}).save_pretrained(folder)
    return theirs


def test_load_knows_such_a_folder_from_ours(tmp_path: Path) -> None:
    saved(CASES["ViT-classifier"], tmp_path / "theirs")
    model = load(tmp_path / "theirs")
    checkpoint.save(model, tmp_path / "ours")
    photo = random_rgb(90, 70)
    first, second = (Explorer(load(tmp_path / name)).open(photo) for name in ("theirs", "ours"))
    assert [label for label, _ in first.predictions()] == [label for label, _ in second.predictions()]
    torch.testing.assert_close(first.trace.logits, second.trace.logits)
    torch.testing.assert_close(first.trace.attentions[0], second.trace.attentions[0])
    (tmp_path / "theirs" / "config.json").write_text('{"model_type": "swin"}')
    with pytest.raises(ConvertError, match="swin"):
        load(tmp_path / "theirs")


@each_case
def test_a_folder_loads(tmp_path: Path, case: Case) -> None:
    theirs = saved(case, tmp_path / "my-model")
    ours = load_transformers_folder(tmp_path / "my-model")
    assert_same(case, theirs, ours, (28, 52))
    assert not ours.training
    assert ours.pretrained is not None
    assert ours.pretrained.name == "my-model"
    assert ours.pretrained.licence == "unknown"
    assert len(ours.pretrained.labels) == (CLASSES if case.read is logits else 0)
    assert ours.pretrained.preprocess.mode == "squash"


def test_a_folder_of_several_files_and_an_old_one_load(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("file", ["../model.safetensors", "/model.safetensors", "a/b.safetensors", "pytorch_model.bin"])
def test_an_index_names_only_files_beside_it(tmp_path: Path, file: str) -> None:
    saved(CASES["ViT"], tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path.parent / "model.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": file}}))
    with pytest.raises(ConvertError, match="Expected safetensors files beside"):
        load_transformers_folder(tmp_path)


def test_what_is_wrong_with_a_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"with config\.json"):
        load_transformers_folder(tmp_path)
    theirs = saved(CASES["ViT"], tmp_path)
    path = tmp_path / "model.safetensors"
    state = load_file(path)
    state["layernorm.weight"][0] = float("nan")
    save_file(state, path)
    with pytest.raises(CheckpointError, match=r"NaN or infinity in norm\.weight"):
        load_transformers_folder(tmp_path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"is damaged|cut short"):
        load_transformers_folder(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    path.unlink()
    with pytest.raises(CheckpointError, match="got none of them"):
        load_transformers_folder(tmp_path)
    index.write_text('{"weight_map": {"a": "b.safetensors"}}')
    with pytest.raises(CheckpointError, match=r"has no b\.safetensors"):
        load_transformers_folder(tmp_path)
    save_file({"c": torch.zeros(2)}, tmp_path / "b.safetensors")
    with pytest.raises(CheckpointError, match=r"got others: a, c"):
        load_transformers_folder(tmp_path)
    index.write_text("[1, 2")
    with pytest.raises(CheckpointError, match="Expected JSON"):
        load_transformers_folder(tmp_path)
    index.unlink()
    theirs.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    joint = {"image_processor": {"image_processor_type": "ViTImageProcessor", "size": 44}}
    (tmp_path / "processor_config.json").write_text(json.dumps(joint))
    about = load_transformers_folder(tmp_path).pretrained
    assert about is not None
    assert about.preprocess.height == 44


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("ran",))


def test_a_file_that_would_run_code_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(CASES["ViT"], tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({"a": Harmful()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"got more: it asks for print"):
        load_transformers_folder(tmp_path)
    assert "ran" not in capsys.readouterr().out
    torch.save([torch.zeros(2)], tmp_path / "pytorch_model.bin")
    with pytest.raises(ConvertError, match="Expected tensors by name"):
        load_transformers_folder(tmp_path)


@pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin"])
def test_a_folder_is_checked_before_it_is_read(tmp_path: Path, kind: str) -> None:
    """The same checks as for a file of weights: what the header says first, then the numbers."""
    saved(CASES["ViT"], tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()

    def write(changed: dict[str, torch.Tensor]) -> None:
        save_file(changed, tmp_path / kind) if kind.endswith("safetensors") else torch.save(changed, tmp_path / kind)

    write(state | {"layernorm.bias": torch.zeros(35, dtype=torch.int8)})
    with pytest.raises(CheckpointError, match=r"got torch.int8 in 'layernorm\.bias'"):
        load_transformers_folder(tmp_path)
    write(state | {"layernorm.bias": torch.zeros(0, 2**40)})
    with pytest.raises(CheckpointError, match="Expected numbers in every tensor"):
        load_transformers_folder(tmp_path)
    if kind.endswith("bin"):
        write(state | {"layernorm.bias": torch.zeros(1).expand(2**40)})
        with pytest.raises(CheckpointError, match="they share their numbers"):
            load_transformers_folder(tmp_path)


def test_loading_a_folder_draws_no_random_numbers(tmp_path: Path) -> None:
    saved(CASES["ViT-classifier"], tmp_path)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    load_transformers_folder(tmp_path)
    assert torch.equal(torch.rand(2), expected)
