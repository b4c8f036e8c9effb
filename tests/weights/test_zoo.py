"""Models by name, and the one that is bundled."""

from __future__ import annotations

from pathlib import Path

import checkpoint_folders
import numpy as np
import pytest
import skimage.data
import torch
from checkpoint_folders import ABOUT

from vitviz.images.decoding import decode
from vitviz.model.vit import ViT
from vitviz.weights import zoo
from vitviz.weights.checkpoint import CheckpointError, save


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(checkpoint_folders.model(), tmp_path / "model")
    return tmp_path / "model"


# --- by name


def test_models_by_name_and_by_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITVIZ_CHECKPOINTS", str(folder.parent))
    (folder.parent / "not a checkpoint").mkdir()
    assert zoo.bundled() == ["model"]
    for source in ("model", folder, str(folder)):
        assert zoo.load(source).pretrained == ABOUT
    for unknown in ("resnet50", "keras:vit_small", "", "no such/folder"):
        with pytest.raises(CheckpointError, match=f"got {unknown!r}. Bundled models: model"):
            zoo.load(unknown)


def test_without_any_checkpoint_the_error_says_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITVIZ_CHECKPOINTS", str(tmp_path / "gone"))
    assert zoo.bundled() == []
    with pytest.raises(CheckpointError, match=r"no checkpoint was found in .*gone"):
        zoo.load("model")


# --- the bundled model

BUNDLED = "dinov2-s14-imagenette"


def test_the_bundled_model_is_small_and_has_its_card() -> None:
    folder = zoo.CHECKPOINTS / BUNDLED
    assert BUNDLED in zoo.bundled()
    assert (folder / "model.safetensors").stat().st_size <= 46e6
    card = (folder / "README.md").read_text(encoding="utf-8")
    model = zoo.load(BUNDLED)
    assert model.pretrained is not None
    for label in model.pretrained.labels:
        assert label in card


def test_the_model_from_nothing_is_plain_and_small_and_knows_animals() -> None:
    model = zoo.load("vit-cifar10")
    about, config = model.pretrained, model.config
    assert about is not None
    assert (config.image_size, config.patch_size, config.prefix, config.registers) == ((32, 32), 4, (), 0)
    assert sum(p.numel() for p in model.parameters()) <= 6e6
    card = (zoo.CHECKPOINTS / "vit-cifar10" / "README.md").read_text(encoding="utf-8")
    assert all(label in card for label in about.labels)
    horse = np.repeat(np.uint8(255) * skimage.data.horse()[..., None], 3, axis=2)  # a silhouette
    for photo, name, place in ((horse, "horse", 0), (skimage.data.chelsea(), "cat", 1)):  # that cat passes for a dog
        with torch.no_grad():
            logits = model(torch.from_numpy(about.preprocess(decode(photo)).pixels)[None])
        assert about.labels[int(logits[0].argsort(descending=True)[place])] == name


@pytest.fixture(scope="module")
def bundled() -> ViT:
    return zoo.load(BUNDLED)


def test_the_bundled_model_takes_photographs_of_any_shape(bundled: ViT) -> None:
    about = bundled.pretrained
    assert about is not None
    assert len(about.labels) == len(about.class_ids) == bundled.config.classes == 10
    for photo in (skimage.data.chelsea(), skimage.data.rocket()[:, 200:400]):
        pixels = torch.from_numpy(about.preprocess(decode(photo)).pixels)[None]
        with torch.no_grad():
            logits = bundled(pixels)
            trace = bundled.trace(pixels, blocks=[-1])
        assert logits.shape == (1, 10)
        torch.testing.assert_close(trace.logits, logits, rtol=0, atol=1e-4)
        assert 200 <= trace.grid[0] * trace.grid[1] <= 300


def test_the_bundled_model_recognises_a_parachute_and_a_golf_ball(bundled: ViT) -> None:
    """Drawings, made here: a striped canopy with lines in a blue sky, and a dimpled white ball on grass."""
    from PIL import Image, ImageDraw

    sky = Image.new("RGB", (400, 300), (90, 150, 220))
    draw = ImageDraw.Draw(sky)
    for index, colour in enumerate(["red", "white", "red", "white", "red", "white"]):
        draw.pieslice((120, 40, 280, 180), 180 + index * 30, 210 + index * 30, fill=colour)
        draw.line((133 + index * 27, 110, 200, 230), fill="black")
    draw.ellipse((194, 228, 206, 256), fill="black")
    grass = Image.new("RGB", (300, 300), (50, 130, 40))
    draw = ImageDraw.Draw(grass)
    draw.ellipse((90, 90, 210, 210), fill=(240, 240, 240))
    for x in range(100, 205, 13):
        for y in range(100, 205, 13):
            if (x - 150) ** 2 + (y - 150) ** 2 < 52**2:
                draw.ellipse((x - 4, y - 4, x + 4, y + 4), fill=(205, 205, 205))
    about = bundled.pretrained
    assert about is not None
    for image, label in ((sky, "parachute"), (grass, "golf ball")):
        with torch.no_grad():
            logits = bundled(torch.from_numpy(about.preprocess(image).pixels)[None])
        assert about.labels[int(logits.argmax())] == label
