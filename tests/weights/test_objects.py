"""Models that are in memory, and folders as people who fine-tune have them: loaded, explained, and nothing claimed."""

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
from hf_cases import CASES, CLASSES
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


def about(source: Any, **options: Any) -> vitviz.Pretrained:
    """What a model says of itself, once it is loaded."""
    model = source if isinstance(source, vitviz.ViT) else vitviz.load(source, **options)
    return model.pretrained


def facts_of(source: Any, **options: Any) -> tuple[float, int, str]:
    """The mean of the first colour, the height and the mode of a model's preprocessing."""
    preprocess = about(source, **options).preprocess
    return preprocess.mean[0], preprocess.height, preprocess.mode


def adapted(model: Any, head: bool = True, **options: Any) -> Any:
    saved = ["classifier"] if head else None
    settings = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], modules_to_save=saved, **options)
    return peft.get_peft_model(model, settings)


def with_adapters(head: bool = True) -> Any:
    """A model with adapters whose every number is random: merging them changes what the model computes."""
    return timm_models.shaken(adapted(CASE.build(), head, lora_alpha=3))


@torch.no_grad()
@pytest.mark.parametrize("head", [True, False])
def test_adapters_are_merged_into_a_copy(head: bool) -> None:
    theirs = with_adapters(head)
    before = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    ours = vitviz.load(theirs)
    assert theirs.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in theirs.state_dict().items())
    images = torch.randn(2, 3, 44, 44)
    expected = theirs(images).logits
    torch.testing.assert_close(ours(images), expected, rtol=0, atol=1e-4)
    assert not torch.allclose(CASE.build()(images).logits, expected, atol=1e-2)


@torch.no_grad()
def test_wrappers_are_looked_through_and_our_own_models_copied(tmp_path: Path) -> None:
    theirs = timm_model()
    ours = vitviz.load(theirs)
    images = torch.randn(2, 3, 48, 48)
    torch.testing.assert_close(ours(images), theirs(images), rtol=0, atol=1e-4)
    save(ours, tmp_path)
    for source in (theirs, nn.DataParallel(theirs), torch.compile(theirs), ours, tmp_path):
        state = vitviz.Explorer(source).model.state_dict()
        assert all(torch.equal(tensor, state[name]) for name, tensor in ours.state_dict().items())
    again = vitviz.load(ours, labels=LABELS[:2] * 500)
    assert about(again).labels != about(ours).labels
    again.norm.weight.fill_(7.0)
    assert not torch.equal(again.norm.weight, ours.norm.weight)


# --- what is claimed, and what is assumed


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224.augreg_in21k_ft_in1k", "vit_small_patch14_dinov2.lvd142m"])
def test_an_object_claims_nothing_of_the_published_weights(name: str) -> None:
    theirs = timm_model(name, img_size=3 * int(name.partition("patch")[2][:2]))
    assert theirs.pretrained_cfg["license"]
    facts = about(theirs)
    assert facts.licence == "unknown"
    assert name.partition(".")[2] not in f"{facts.name} {facts.source}"
    assert "http" not in facts.source
    assert facts.preprocess.mean == tuple(theirs.pretrained_cfg["mean"])
    assert any(words.startswith("labels:") for words in facts.assumed) == bool(facts.labels)


def test_labels_of_imagenet_are_assumed_for_a_thousand_classes_only() -> None:
    whole = about(test_from_torchvision.tiny(num_classes=1000))
    assert whole.labels[0] == "tench"
    assert [words.partition(":")[0] for words in whole.assumed] == ["preprocessing", "labels"]
    other = vitviz.load(test_from_torchvision.tiny())
    assert about(other).labels[:2] == ("class 0", "class 1")


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
    facts = about(tmp_path)
    assert facts_of(tmp_path) == facts_of(theirs) == (mean, size, mode)
    assert f"preprocessing: {facts.preprocess.describe()}" in facts.assumed
    assert facts.preprocess == about(theirs).preprocess
    assert any(words.startswith("labels: LABEL_0") for words in facts.assumed) == bool(facts.labels)


def test_what_is_assumed_is_said_on_the_page_and_kept_in_a_checkpoint(tmp_path: Path) -> None:
    ours = vitviz.load(CASE.build())
    scene = Scene.of(vitviz.Explorer(ours).open(PHOTO), caveat="An example.")
    assert about(ours).assumed
    assert all(words in scene.caveat for words in ("An example.", *about(ours).assumed))
    save(ours, tmp_path)
    assert load_folder(tmp_path).pretrained == ours.pretrained
    told = vitviz.load(tmp_path, labels=LABELS, preprocess="half")
    assert about(told).assumed == ()
    assert Scene.of(vitviz.Explorer(told).open(PHOTO)).caveat == ""
    save(told, tmp_path)
    assert "assumed" not in json.loads((tmp_path / "config.json").read_text())


def test_labels_in_the_forms_in_which_people_have_them(tmp_path: Path) -> None:
    theirs = test_from_torchvision.tiny()
    named = {str(index): name for index, name in reversed(list(enumerate(LABELS)))}
    contents = {"names.txt": "\n".join(LABELS) + "\n", "list.json": json.dumps(LABELS)}
    for name, text in (contents | {"config.json": json.dumps({"id2label": named})}).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert about(theirs, labels=tmp_path / name).labels == tuple(LABELS)
    for labels in (LABELS, tuple(LABELS), dict(enumerate(LABELS)), named, str(tmp_path / "names.txt")):
        assert about(theirs, labels=labels).labels == tuple(LABELS)
    for wrong, words in (
        (LABELS[:-1], "Expected 13 labels, one for each class, got 12"),
        (["a", "", *LABELS[2:]], "Expected the names of the classes"),
        (tmp_path / "nothing.txt", "nothing.txt"),
        (3, "Expected the names of the classes"),
        ({0: "a", 2: "b"}, "id2label with the classes 0 to 1"),
    ):
        with pytest.raises(CheckpointError, match=words):
            vitviz.load(theirs, labels=wrong)
    with pytest.raises(CheckpointError, match="Expected 0 labels"):
        vitviz.load(timm_model(num_classes=0), labels=LABELS)
    torch.save(theirs.state_dict(), tmp_path / "mine.pt")
    facts = about(tmp_path / "mine.pt", heads=5, labels=LABELS, preprocess="half")
    assert (facts.labels, facts.preprocess.mean) == (tuple(LABELS), (0.5, 0.5, 0.5))
    assert [words.partition(":")[0] for words in facts.assumed if "preprocessing" in words] == []
    assert any("norm epsilon" in words for words in facts.assumed)
    assert about("vit-cifar10", labels=list("abcdefghij")).labels == tuple("abcdefghij")


def test_preprocessing_in_the_forms_in_which_people_have_it(tmp_path: Path) -> None:
    theirs = test_from_torchvision.tiny(image_size=48)
    processor = hf.ViTImageProcessor(size={"height": 48, "width": 48}, image_mean=[0.1] * 3)
    processor.save_pretrained(tmp_path)
    data = timm.data.resolve_model_data_config(timm_model())
    own = vitviz.Preprocess(height=33, width=33, mode="pad")
    save(vitviz.load(theirs, preprocess=own, labels=LABELS), tmp_path / "ours")
    for given, mean, size, mode in (
        (own, 0.485, 33, "pad"),
        (tmp_path / "ours" / "config.json", 0.485, 33, "pad"),
        (processor, 0.1, 48, "squash"),
        (tmp_path / "preprocessor_config.json", 0.1, 48, "squash"),
        (data, data["mean"][0], 48, "crop"),
        (ViT_B_16_Weights.IMAGENET1K_V1.transforms(crop_size=48, resize_size=60), 0.485, 48, "crop"),
        ("clip", 0.48145466, 48, "crop"),
        ("half", 0.5, 48, "squash"),
        ("imagenet", 0.485, 48, "crop"),
    ):
        assert facts_of(theirs, preprocess=given) == (mean, size, mode)
        assert not any("preprocessing" in words for words in about(theirs, preprocess=given).assumed)
    for wrong, words in (
        (3, "Expected preprocessing as vitviz.Preprocess"),
        ("caffe", "caffe"),
        ({"image_mean": [0.5]}, "Expected all Preprocessing settings"),
        (vitviz.Preprocess(height=32, width=32), "multiples of the patch"),
    ):
        with pytest.raises(CheckpointError, match=words):
            vitviz.load(theirs, preprocess=wrong)


@torch.no_grad()
def test_a_folder_of_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CASE.build().save_pretrained(tmp_path / "base")
    folder = tmp_path / "mine"
    theirs = adapted(hf.ViTForImageClassification.from_pretrained(tmp_path / "base")).eval()
    for parameter in theirs.parameters():  # those of the base model are not saved, and stay as they are
        parameter.add_(torch.randn_like(parameter) * (0.2 if parameter.requires_grad else 0))
    theirs.save_pretrained(folder)
    ours = vitviz.load(folder)
    images = torch.randn(2, 3, 44, 44)
    torch.testing.assert_close(ours(images), theirs(images).logits, rtol=0, atol=1e-4)
    assert (about(ours).name, about(ours).licence) == ("mine", "unknown")
    assert about(ours).source == "adapters of mine, merged into base"
    assert [words.partition(":")[0] for words in about(ours).assumed] == ["preprocessing", "labels"]
    hf.ViTImageProcessor(size={"height": 48, "width": 48}).save_pretrained(tmp_path / "base")
    assert about(folder).preprocess.height == 48
    hf.ViTImageProcessor(size={"height": 40, "width": 40}).save_pretrained(folder)
    assert about(folder, labels=LABELS).preprocess.height == 40

    def assert_refused(words: str) -> None:
        with pytest.raises(ValueError, match=words):
            vitviz.load(folder)

    settings = folder / "adapter_config.json"
    said = json.loads(settings.read_text())
    for change, words in (
        ({"base_model_name_or_path": None}, "Expected the name of the base model"),
        ({"base_model_name_or_path": "nobody/nothing"}, "cannot be reached"),
        ({"target_modules": ["elsewhere"]}, "Expected adapters of an image model"),
        ({"peft_type": "NEW"}, "Expected adapters of an image model"),
    ):
        settings.write_text(json.dumps(said | change))
        assert_refused(words)
    settings.write_text(json.dumps(said))
    monkeypatch.setitem(sys.modules, "peft", None)
    assert_refused(r"Expected the package peft .* pip install peft")
    monkeypatch.undo()
    (folder / "adapter_model.safetensors").unlink()
    assert_refused("adapter_model")


def test_models_of_others_are_refused(tmp_path: Path) -> None:
    class Mine(hf.ViTForImageClassification):
        """May compute something else."""

    for step in (500, 1500, 1000):
        (tmp_path / f"checkpoint-{step}").mkdir()
    for wrong, words in (
        (nn.Linear(2, 3), "Expected a Vision Transformer of timm, torchvision, transformers, peft"),
        (Mine(CASE.config(**CASE.settings)), "a class of transformers, got .*Mine"),
        (timm.create_model("resnet10t"), "ResNet"),
        (with_adapters().base_model.model, "adapters merged"),
        (timm_model().to("meta"), "Expected weights in memory"),
        (timm_model().to(torch.float8_e5m2), "Expected weights in memory"),
        (tmp_path, r"such as the last: .*checkpoint-1500"),
    ):
        with pytest.raises(CheckpointError if wrong is tmp_path else ConvertError, match=words):
            vitviz.load(wrong)
    with pytest.raises(CheckpointError, match="no family and heads"):
        vitviz.load(timm_model(), heads=5)
