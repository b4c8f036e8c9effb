"""Classifiers that fine-tuning replaced: the same logits as the source library, the right number of classes and labels.

A file of such a model, and the folder that transformers saves with the old settings, are those of the model in memory.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_from_torchvision
import timm
import torch
from hf_cases import CASES
from image_files import random_rgb
from PIL import Image
from timm_models import shaken
from torch import Tensor, nn
from weight_files import written

import vitviz
from vitviz.weights.checks import ConvertError

pytestmark = pytest.mark.usefixtures("one_thread")

PHOTO = Image.fromarray(random_rgb(90, 70))
CLASSES = 3
Build = Callable[[], Any]
# Name: the model, the attribute of its classifier, the side of its images, the width that the classifier reads.
MODELS: dict[str, tuple[Build, str, int, int]] = {
    "timm": (
        lambda: timm.create_model("vit_tiny_patch16_224", embed_dim=60, depth=2, num_heads=5, img_size=48).eval(),
        "head",
        48,
        60,
    ),
    "torchvision": (test_from_torchvision.tiny, "heads", 33, 35),
    "transformers": (CASES["ViT-classifier"].build, "classifier", 44, 35),
    "transformers, class token and mean": (CASES["DINOv2-classifier"].build, "classifier", 44, 70),
}
HEADS: dict[str, Callable[[int], nn.Module]] = {
    "linear": lambda width: nn.Linear(width, CLASSES),
    "without a bias": lambda width: nn.Linear(width, CLASSES, bias=False),
    "dropout": lambda width: nn.Sequential(nn.Dropout(), nn.Linear(width, CLASSES)),
    "nested": lambda width: nn.Sequential(nn.Identity(), nn.Sequential(nn.Linear(width, CLASSES), nn.Dropout())),
}


def replaced(name: str, head: Callable[[int], nn.Module]) -> Any:
    build, attribute, _, width = MODELS[name]
    model = build()
    setattr(model, attribute, head(width))
    return shaken(model).eval()


def assert_same(ours: vitviz.ViT, theirs: Any, side: int) -> None:
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(3))
    answer = theirs(images)
    expected: Tensor = answer if isinstance(answer, Tensor) else answer.logits
    torch.testing.assert_close(ours(images), expected, rtol=0, atol=1e-4)
    assert expected.shape == (2, CLASSES)


def assert_numbered(ours: vitviz.ViT) -> None:
    """The old labels are gone, it is said, and predictions work."""
    about = ours.pretrained
    assert about is not None
    assert about.labels in (("class 0", "class 1", "class 2"), ("LABEL_0", "LABEL_1", "LABEL_2"))
    assert any(words.startswith(f"labels: {about.labels[0]}, ") for words in about.assumed)
    view = vitviz.Explorer(ours).open(PHOTO)
    assert {label for label, _ in view.predictions()} == {*about.labels}
    assert view.describe()


@torch.no_grad()
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", MODELS)
def test_a_replaced_classifier_says_how_many_classes(name: str, head: str) -> None:
    theirs = replaced(name, HEADS[head])
    ours = vitviz.load(theirs)
    assert_same(ours, theirs, MODELS[name][2])
    assert_numbered(ours)
    named = vitviz.load(theirs, labels=["ant", "bee", "cat"])
    assert named.pretrained is not None
    assert not any(words.startswith("labels") for words in named.pretrained.assumed)


@torch.no_grad()
@pytest.mark.parametrize("head", ["linear", "dropout"])
@pytest.mark.parametrize("name", ["timm", "torchvision"])
def test_a_file_of_a_replaced_classifier(name: str, head: str, tmp_path: Path) -> None:
    theirs = replaced(name, HEADS[head])
    for suffix in (".pth", ".safetensors"):
        ours = vitviz.load(written(theirs.state_dict(), tmp_path, suffix), heads=5)
        assert_same(ours, theirs, MODELS[name][2])
        assert_numbered(ours)


@torch.no_grad()
@pytest.mark.parametrize("head", ["linear", "dropout"])
def test_a_folder_of_transformers_with_the_settings_of_the_old_classifier(head: str, tmp_path: Path) -> None:
    theirs = replaced("transformers", HEADS[head])
    theirs.save_pretrained(tmp_path)
    ours = vitviz.load(tmp_path)
    assert_same(ours, theirs, MODELS["transformers"][2])
    assert_numbered(ours)


@pytest.mark.parametrize("name", MODELS)
def test_a_classifier_that_was_taken_off(name: str) -> None:
    ours = vitviz.load(replaced(name, lambda _width: nn.Identity()))
    assert ours.config.classes == 0
    assert ours.pretrained is not None
    assert not ours.pretrained.labels


@pytest.mark.parametrize("name", ["timm", "torchvision", "transformers"])
def test_what_is_more_than_a_linear_layer_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    attribute = MODELS[name][1]

    def hidden(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(width, 7), nn.ReLU(), nn.Linear(7, CLASSES))

    for head, words in (
        (hidden, rf"the hidden layer {attribute}\.0\."),
        (lambda width: nn.Sequential(nn.Linear(width, CLASSES), nn.Sigmoid()), rf"{attribute}\.1, which is Sigmoid"),
        (lambda width: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 3)), rf"{attribute}\.0, which is LayerNorm"),
        (lambda width: nn.Bilinear(width, 2, CLASSES), f"{attribute}, which is Bilinear"),
    ):
        with pytest.raises(ConvertError, match=words):
            vitviz.load(replaced(name, head))
    if name != "transformers":
        path = written(replaced(name, hidden).state_dict(), tmp_path, ".pth")
        with pytest.raises(ConvertError, match=rf"the hidden layer or norm '{attribute}\.0\.weight'"):
            vitviz.load(path, heads=5)


def test_two_classifiers_of_other_sizes_are_refused() -> None:
    theirs = timm.create_model("deit_tiny_distilled_patch16_224", embed_dim=60, depth=2, num_heads=5, img_size=48)
    theirs.head = nn.Linear(60, CLASSES)
    with pytest.raises(ConvertError, match="several: head of 3 classes, head_dist of 1000 classes"):
        vitviz.load(theirs)
