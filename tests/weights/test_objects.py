"""Models that are in memory, and folders as people who fine-tune have them: loaded, explained, and nothing claimed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import peft
import pytest
import test_from_torchvision
import timm
import timm_models
import torch
import transformers as hf
from hf_cases import CASES, CLASSES, Case, assert_same, each_case
from image_files import random_rgb
from PIL import Image
from torch import nn
from torchvision.models import ViT_B_16_Weights

import vitviz
from vitviz.web.scene import Scene
from vitviz.weights.checkpoint import load_folder, save
from vitviz.weights.checks import CheckpointError, ConvertError

pytestmark = pytest.mark.usefixtures("one_thread")

CASE = CASES["ViT-classifier"]
PHOTO = Image.fromarray(random_rgb(90, 70))
LABELS = [f"thing {index}" for index in range(CLASSES)]


def timm_model(name: str = "vit_tiny_patch16_224", **changes: Any) -> Any:
    sizes = {"embed_dim": 60, "depth": 2, "num_heads": 5, "img_size": 48}
    return timm_models.shaken(timm.create_model(name, **sizes | changes))


def about(model: vitviz.ViT) -> vitviz.Pretrained:
    assert model.pretrained is not None
    return model.pretrained


def with_adapters(case: Case = CASE, head: bool = True) -> Any:
    """A model with adapters whose every number is random: merging them changes what the model computes."""
    config = peft.LoraConfig(
        r=2, target_modules=["q_proj", "v_proj"], modules_to_save=["classifier"] if head else None, lora_alpha=3
    )
    return timm_models.shaken(peft.get_peft_model(case.build(), config))


# --- three lines for each library


def test_a_timm_object() -> None:
    model = vitviz.load(timm_model(num_classes=CLASSES), labels=LABELS)
    why = vitviz.Explorer(model).open(PHOTO).explain("gae", target="thing 3")
    assert why.values.shape == (3, 3)


def test_a_torchvision_object() -> None:
    model = vitviz.load(test_from_torchvision.tiny(), labels=LABELS)
    why = vitviz.Explorer(model).open(PHOTO).explain("gae", target="thing 3")
    assert why.values.shape == (11, 11)


def test_an_object_of_transformers_with_its_adapters_merged() -> None:
    model = vitviz.load(with_adapters().merge_and_unload(), labels=LABELS)
    why = vitviz.Explorer(model).open(PHOTO).explain("gae", target="thing 3")
    assert why.values.shape == (11, 11)


def test_a_checkpoint_of_a_trainer(tmp_path: Path) -> None:
    train(CASE.build(), tmp_path)
    model = vitviz.load(tmp_path / "checkpoint-2", labels=LABELS)
    why = vitviz.Explorer(model).open(PHOTO).explain("gae", target="thing 3")
    assert why.values.shape == (11, 11)


def train(model: Any, out: Path) -> None:
    """Train for two steps with the Trainer of transformers, which writes a checkpoint after each."""
    data = [{"pixel_values": torch.randn(3, 44, 44), "labels": index} for index in range(4)]
    options: dict[str, Any] = {"max_steps": 2, "save_steps": 1, "per_device_train_batch_size": 2, "report_to": "none"}
    arguments = hf.TrainingArguments(str(out), use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False, **options)
    hf.Trainer(model, arguments, train_dataset=data).train()


# --- the numbers are those of the object


@each_case
def test_objects_of_transformers_compute_the_same(case: Case) -> None:
    theirs = case.build()
    ours = vitviz.load(theirs)
    assert_same(case, theirs, ours, (28, 52))
    assert about(ours).name == type(theirs).__name__


@pytest.mark.parametrize("family", ["vit", "deit", "clip", "siglip", "dinov3"])
def test_objects_of_timm_compute_the_same(family: str) -> None:
    theirs = timm_models.FAMILIES[family]()
    images = torch.randn(2, 3, *theirs.patch_embed.img_size)
    with torch.no_grad():
        torch.testing.assert_close(vitviz.load(theirs)(images), theirs(images), rtol=0, atol=1e-4)


@pytest.mark.parametrize("head", [True, False])
def test_adapters_are_merged_into_a_copy(head: bool) -> None:
    theirs = with_adapters(head=head)
    before = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    ours = vitviz.load(theirs)
    assert theirs.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in theirs.state_dict().items())
    images = torch.randn(2, 3, 44, 44)
    with torch.no_grad():
        expected = theirs(images).logits
        torch.testing.assert_close(ours(images), expected, rtol=0, atol=1e-4)
        assert not torch.allclose(CASE.build()(images).logits, expected, atol=1e-2)


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile], ids=["parallel", "compiled"])
def test_wrappers_are_looked_through(wrap: Any) -> None:
    theirs = timm_model()
    state = vitviz.load(theirs).state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in vitviz.load(wrap(theirs)).state_dict().items())


def test_our_own_model_is_copied() -> None:
    ours = vitviz.load(timm_model())
    again = vitviz.load(ours, labels=LABELS[:2] * 500)
    assert about(again).labels != about(ours).labels
    with torch.no_grad():
        again.norm.weight.fill_(7.0)
    assert not torch.equal(again.norm.weight, ours.norm.weight)


def test_the_explorer_takes_objects_and_paths(tmp_path: Path) -> None:
    theirs = timm_model()
    save(vitviz.load(theirs), tmp_path / "saved")
    views = [vitviz.Explorer(one).open(PHOTO) for one in (theirs, vitviz.load(theirs), tmp_path / "saved")]
    for view in views:
        torch.testing.assert_close(view.trace.logits, views[0].trace.logits)


# --- what is claimed, and what is assumed


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224.augreg_in21k_ft_in1k", "vit_small_patch14_dinov2.lvd142m"])
def test_an_object_claims_nothing_of_the_published_weights(name: str) -> None:
    theirs = timm_model(name, img_size=3 * int(name.partition("patch")[2][:2]))
    assert theirs.pretrained_cfg["license"]
    found = about(vitviz.load(theirs))
    assert found.licence == "unknown"
    assert name.partition(".")[2] not in f"{found.name} {found.source}"
    assert "http" not in found.source
    assert found.preprocess.mean == tuple(theirs.pretrained_cfg["mean"])
    assert any(one.startswith("labels:") for one in found.assumed) == bool(found.labels)


def test_labels_of_imagenet_are_assumed_for_a_thousand_classes_only() -> None:
    whole = about(vitviz.load(test_from_torchvision.tiny(num_classes=1000)))
    assert whole.labels[0] == "tench"
    assert [one.partition(":")[0] for one in whole.assumed] == ["preprocessing", "labels"]
    other = vitviz.load(test_from_torchvision.tiny())
    assert about(other).labels == ()
    with pytest.raises(ValueError, match=r"name them by labels"):
        vitviz.Explorer(other).open(PHOTO).predictions()


@pytest.mark.parametrize(
    ("name", "mean", "size", "mode"),
    [
        ("ViT-classifier", 0.5, 44, "squash"),
        ("DeiT-classifier", 0.485, 44, "crop"),
        ("DINOv2-classifier", 0.485, 224, "crop"),
        ("DINOv3", 0.485, 44, "squash"),
        ("CLIP-whole", 0.48145466, 44, "crop"),
        ("SigLIP-classifier", 0.5, 44, "squash"),
    ],
)
def test_a_folder_without_a_processor_is_prepared_as_is_usual(
    name: str, mean: float, size: int, mode: str, tmp_path: Path
) -> None:
    theirs = CASES[name].build()
    theirs.save_pretrained(tmp_path)
    found = about(vitviz.load(tmp_path))
    assert (found.preprocess.mean[0], found.preprocess.height, found.preprocess.mode) == (mean, size, mode)
    assert f"preprocessing: {found.preprocess.describe()}" in found.assumed
    assert found.preprocess == about(vitviz.load(theirs)).preprocess
    assert any(one.startswith("labels: LABEL_0") for one in found.assumed) == bool(found.labels)


def test_what_is_assumed_is_said_on_the_page_and_kept_in_a_checkpoint(tmp_path: Path) -> None:
    ours = vitviz.load(CASE.build())
    scene = Scene.of(vitviz.Explorer(ours).open(PHOTO), caveat="An example.")
    assert about(ours).assumed
    assert all(one in scene.caveat for one in ("An example.", *about(ours).assumed))
    save(ours, tmp_path)
    assert load_folder(tmp_path).pretrained == ours.pretrained
    told = vitviz.load(tmp_path, labels=LABELS, preprocess="half")
    assert about(told).assumed == ()
    assert Scene.of(vitviz.Explorer(told).open(PHOTO)).caveat == ""
    save(told, tmp_path)
    assert "assumed" not in json.loads((tmp_path / "config.json").read_text())


# --- labels and preprocessing that are given


def test_labels_in_the_forms_in_which_people_have_them(tmp_path: Path) -> None:
    theirs = test_from_torchvision.tiny()
    named = {str(index): name for index, name in reversed(list(enumerate(LABELS)))}
    (tmp_path / "names.txt").write_text("\n".join(LABELS) + "\n", encoding="utf-8")
    (tmp_path / "list.json").write_text(json.dumps(LABELS), encoding="utf-8")
    (tmp_path / "config.json").write_text(json.dumps({"id2label": named}), encoding="utf-8")
    files = [tmp_path / name for name in ("names.txt", "list.json", "config.json")]
    for given in (LABELS, tuple(LABELS), dict(enumerate(LABELS)), named, *files, str(files[0])):
        assert about(vitviz.load(theirs, labels=given)).labels == tuple(LABELS)
    for wrong, words in (
        (LABELS[:-1], "Expected 13 labels, one for each class, got 12"),
        (["a", "", *LABELS[2:]], "Expected the names of the classes"),
        (tmp_path / "nothing.txt", "nothing.txt"),
        (3, "Expected the names of the classes"),
        ({0: "a", 2: "b"}, "id2label with the classes 0 to 1"),
    ):
        with pytest.raises(CheckpointError, match=words):
            vitviz.load(theirs, labels=wrong)


def test_a_classifier_is_needed_for_labels() -> None:
    with pytest.raises(CheckpointError, match="Expected 0 labels"):
        vitviz.load(timm_model(num_classes=0), labels=LABELS)


def test_preprocessing_in_the_forms_in_which_people_have_it(tmp_path: Path) -> None:
    theirs = test_from_torchvision.tiny(image_size=48)
    processor = hf.ViTImageProcessor(size={"height": 48, "width": 48}, image_mean=[0.1] * 3)
    processor.save_pretrained(tmp_path)
    data = timm.data.resolve_model_data_config(timm_model())
    own = vitviz.Preprocess(height=33, width=33, mode="pad")
    save(vitviz.load(theirs, preprocess=own, labels=LABELS), tmp_path / "ours")
    file = tmp_path / "preprocessor_config.json"
    for given, mean, size, mode in (
        (own, 0.485, 33, "pad"),
        (tmp_path / "ours" / "config.json", 0.485, 33, "pad"),
        (processor, 0.1, 48, "squash"),
        (file, 0.1, 48, "squash"),
        (data, data["mean"][0], 48, "crop"),
        (ViT_B_16_Weights.IMAGENET1K_V1.transforms(crop_size=48, resize_size=60), 0.485, 48, "crop"),
        ("clip", 0.48145466, 48, "crop"),
        ("half", 0.5, 48, "squash"),
        ("imagenet", 0.485, 48, "crop"),
    ):
        found = about(vitviz.load(theirs, preprocess=given))
        assert (found.preprocess.mean[0], found.preprocess.height, found.preprocess.mode) == (mean, size, mode)
        assert not found.assumed
    for wrong, words in (
        (3, "Expected preprocessing as vitviz.Preprocess"),
        ("caffe", "caffe"),
        ({"image_mean": [0.5]}, "Expected all Preprocessing settings"),
        (vitviz.Preprocess(height=32, width=32), "multiples of the patch"),
    ):
        with pytest.raises(CheckpointError, match=words):
            vitviz.load(theirs, preprocess=wrong)


def test_names_and_files_take_labels_and_preprocessing_too(tmp_path: Path) -> None:
    theirs = test_from_torchvision.tiny()
    torch.save(theirs.state_dict(), tmp_path / "mine.pt")
    ours = vitviz.load(tmp_path / "mine.pt", heads=5, labels=LABELS, preprocess="half")
    assert about(ours).labels == tuple(LABELS)
    assert about(ours).preprocess.mean == (0.5, 0.5, 0.5)
    assert any("norm epsilon" in one for one in about(ours).assumed)
    assert not any("preprocessing" in one for one in about(ours).assumed)
    small = vitviz.load("vit-cifar10", labels=list("abcdefghij"))
    assert about(small).labels == tuple("abcdefghij")


# --- adapters on disk


@pytest.fixture
def adapters(tmp_path: Path) -> tuple[Any, Path]:
    """A model with adapters, and the folder that it leaves: its base model lies in another one."""
    CASE.build().save_pretrained(tmp_path / "base")
    base = hf.ViTForImageClassification.from_pretrained(tmp_path / "base")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], modules_to_save=["classifier"])
    theirs = peft.get_peft_model(base, config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():  # those of the base model are not saved, and stay as they are
            parameter.add_(torch.randn_like(parameter) * (0.2 if parameter.requires_grad else 0))
    theirs.save_pretrained(tmp_path / "mine")
    return theirs, tmp_path / "mine"


def test_a_folder_of_adapters(adapters: tuple[Any, Path]) -> None:
    theirs, folder = adapters
    ours = vitviz.load(folder)
    images = torch.randn(2, 3, 44, 44)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images).logits, rtol=0, atol=1e-4)
    assert (about(ours).name, about(ours).licence) == ("mine", "unknown")
    assert about(ours).source == "adapters of mine, merged into base"
    assert [one.partition(":")[0] for one in about(ours).assumed] == ["preprocessing", "labels"]
    hf.ViTImageProcessor(size={"height": 48, "width": 48}).save_pretrained(folder.parent / "base")
    assert about(vitviz.load(folder)).preprocess.height == 48
    hf.ViTImageProcessor(size={"height": 40, "width": 40}).save_pretrained(folder)
    assert about(vitviz.load(folder, labels=LABELS)).preprocess.height == 40


def test_adapters_without_peft_name_it(adapters: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(CheckpointError, match=r"Expected the package peft .* pip install peft"):
        vitviz.load(adapters[1])


def test_wrong_adapters_end_in_words(adapters: tuple[Any, Path]) -> None:
    _, folder = adapters
    settings = folder / "adapter_config.json"
    said = json.loads(settings.read_text())
    for change, words in (
        ({"base_model_name_or_path": None}, "Expected the name of the base model"),
        ({"base_model_name_or_path": "nobody/nothing"}, "cannot be reached"),
        ({"target_modules": ["elsewhere"]}, "Expected adapters of an image model"),
        ({"peft_type": "NEW"}, "Expected adapters of an image model"),
    ):
        settings.write_text(json.dumps(said | change))
        with pytest.raises(ValueError, match=words):
            vitviz.load(folder)
    settings.write_text(json.dumps(said))
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="adapter_model"):
        vitviz.load(folder)


# --- what is refused


def test_models_of_others_are_refused() -> None:
    class Mine(hf.ViTForImageClassification):
        """May compute something else."""

    for wrong, words in (
        (nn.Linear(2, 3), "Expected a Vision Transformer of timm, torchvision, transformers, peft"),
        (Mine(CASE.config(**CASE.settings)), "a class of transformers, got .*Mine"),
        (timm.create_model("resnet10t"), "ResNet"),
        (with_adapters().base_model.model, "adapters merged"),
        (timm_model().to("meta"), "Expected weights in memory"),
        (timm_model().to(torch.float8_e5m2), "Expected weights in memory"),
    ):
        with pytest.raises(ConvertError, match=words):
            vitviz.load(wrong)
    with pytest.raises(CheckpointError, match="no family and heads"):
        vitviz.load(timm_model(), heads=5)


def test_a_folder_of_checkpoints_names_the_last(tmp_path: Path) -> None:
    for step in (500, 1500, 1000):
        (tmp_path / f"checkpoint-{step}").mkdir()
    with pytest.raises(CheckpointError, match=r"such as the last: .*checkpoint-1500"):
        vitviz.load(tmp_path)
