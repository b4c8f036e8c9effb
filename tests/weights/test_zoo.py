"""Models by name, and those that are bundled."""

from __future__ import annotations

from pathlib import Path

import checkpoint_folders
import numpy as np
import pytest
import skimage.data
import torch
from checkpoint_folders import ABOUT
from PIL import Image

from vitviz.images.decoding import decode
from vitviz.model.vit import Pretrained, ViT
from vitviz.weights import zoo
from vitviz.weights.checkpoint import CheckpointError, save

pytestmark = pytest.mark.usefixtures("one_thread")


# --- by name


def test_models_by_name_and_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITVIZ_CHECKPOINTS", str(tmp_path))
    folder = tmp_path / "model"
    save(checkpoint_folders.model(), folder)
    (tmp_path / "not a checkpoint").mkdir()
    assert zoo.bundled() == ["model"]
    for source in ("model", folder, str(folder)):
        assert zoo.load(source).pretrained == ABOUT
    for unknown in ("resnet50", "keras:vit_small", "", "no such/folder"):
        with pytest.raises(CheckpointError, match=f"got {unknown!r}. Bundled models: model"):
            zoo.load(unknown)
    monkeypatch.setenv("VITVIZ_CHECKPOINTS", str(tmp_path / "gone"))
    assert zoo.bundled() == []
    with pytest.raises(CheckpointError, match=r"no checkpoint was found in .*gone"):
        zoo.load("model")


# --- the bundled models

EXAMPLES = Path(__file__).parents[2] / "examples"
BUNDLED, PLAIN = "dinov2-s14-imagenette", "vit-cifar10"


@pytest.fixture(scope="module")
def bundled() -> ViT:
    return zoo.load(BUNDLED)


def about(model: ViT) -> Pretrained:
    assert model.pretrained is not None
    return model.pretrained


@torch.no_grad()
def best(model: ViT, image: Image.Image) -> list[str]:
    """The labels of the classes, the most probable first."""
    logits = model(torch.from_numpy(about(model).preprocess(image).pixels)[None])[0]
    return [about(model).labels[int(index)] for index in logits.argsort(descending=True)]


def test_bundled_models_are_small_and_have_their_cards(bundled: ViT) -> None:
    assert BUNDLED in zoo.bundled()
    assert (zoo.CHECKPOINTS / BUNDLED / "model.safetensors").stat().st_size <= 46e6
    plain = zoo.load(PLAIN)
    config = plain.config
    assert (config.image_size, config.patch_size, config.prefix, config.registers) == ((32, 32), 4, (), 0)
    assert sum(parameter.numel() for parameter in plain.parameters()) <= 6e6
    for name, model in ((BUNDLED, bundled), (PLAIN, plain)):
        card = (zoo.CHECKPOINTS / name / "README.md").read_text(encoding="utf-8")
        assert all(label in card for label in about(model).labels)
        assert len(about(model).labels) == model.config.classes == 10
    assert len(about(bundled).class_ids) == 10
    horse = np.repeat(np.uint8(255) * skimage.data.horse()[..., None], 3, axis=2)  # a silhouette
    assert best(plain, decode(horse))[0] == "horse"
    assert best(plain, decode(skimage.data.chelsea()))[1] == "cat"  # that one passes for a dog


def test_the_bundled_model_recognises_a_church_and_a_dog(bundled: ViT) -> None:
    for name, label in (("church", "church"), ("dog", "English springer")):
        assert best(bundled, decode(EXAMPLES / f"{name}.jpg"))[0] == label
    for photo in (skimage.data.chelsea(), skimage.data.rocket()[:, 200:400]):  # of any shape
        height, width = about(bundled).preprocess(decode(photo)).geometry.input
        assert 200 <= (height // 14) * (width // 14) <= 300
