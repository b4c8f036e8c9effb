"""Models by name, those that are bundled, and the catalog, which is held to the libraries that publish them."""

from pathlib import Path

import checkpoint_folders
import numpy as np
import pytest
import skimage.data
import timm
import torch
import transformers as hf
from checkpoint_folders import ABOUT
from PIL import Image
from torch import nn
from torchvision import models

from vitviz.images.decoding import decode
from vitviz.model.vit import ViT
from vitviz.weights import zoo
from vitviz.weights.catalog import CATALOG, CatalogEntry
from vitviz.weights.checkpoint import CheckpointError, save
from vitviz.weights.from_timm import about_timm, config_of
from vitviz.weights.from_torchvision import BUILDERS, about_torchvision
from vitviz.weights.zoo import LIBRARIES

pytestmark = pytest.mark.usefixtures("one_thread")


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


EXAMPLES = Path(__file__).parents[2] / "examples"
BUNDLED, PLAIN = "dinov2-s14-imagenette", "vit-cifar10"


@pytest.fixture(scope="module")
def bundled() -> ViT:
    return zoo.load(BUNDLED)


@torch.no_grad()
def best(model: ViT, image: Image.Image) -> list[str]:
    """The labels of the classes, the most probable first."""
    logits = model(torch.from_numpy(model.pretrained.preprocess(image).pixels)[None])[0]
    return [model.pretrained.labels[int(index)] for index in logits.argsort(descending=True)]


def test_bundled_models_are_small_and_have_their_cards(bundled: ViT) -> None:
    assert BUNDLED in zoo.bundled()
    assert (zoo.CHECKPOINTS / BUNDLED / "model.safetensors").stat().st_size <= 46e6
    plain = zoo.load(PLAIN)
    config = plain.config
    assert (config.image_size, config.patch_size, config.prefix, config.registers) == ((32, 32), 4, (), 0)
    assert sum(parameter.numel() for parameter in plain.parameters()) <= 6e6
    for name, model in ((BUNDLED, bundled), (PLAIN, plain)):
        card = (zoo.CHECKPOINTS / name / "README.md").read_text(encoding="utf-8")
        assert all(label in card for label in model.pretrained.labels)
        assert len(model.pretrained.labels) == model.config.classes == 10
    assert len(bundled.pretrained.class_ids) == 10
    horse = np.repeat(np.uint8(255) * skimage.data.horse()[..., None], 3, axis=2)  # a silhouette
    assert best(plain, decode(horse))[0] == "horse"
    assert best(plain, decode(skimage.data.chelsea()))[1] == "cat"  # that one passes for a dog


def test_the_bundled_model_recognises_a_church_and_a_dog(bundled: ViT) -> None:
    for name, label in (("church", "church"), ("dog", "English springer")):
        assert best(bundled, decode(EXAMPLES / f"{name}.jpg"))[0] == label
    for photo in (skimage.data.chelsea(), skimage.data.rocket()[:, 200:400]):  # of any shape
        height, width = bundled.pretrained.preprocess(decode(photo)).geometry.input
        assert 200 <= (height // 14) * (width // 14) <= 300


# --- the catalog. Nothing is downloaded


def each_of(library: str) -> pytest.MarkDecorator:
    entries = [entry for entry in CATALOG if entry.source.startswith(f"{library}:")]
    return pytest.mark.parametrize("entry", entries, ids=name_of)


def name_of(entry: CatalogEntry) -> str:
    return entry.source.partition(":")[2]


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_there_are_ten_from_three_libraries_each_once() -> None:
    assert len(CATALOG) == len({entry.source for entry in CATALOG}) == len({entry.title for entry in CATALOG}) == 10
    assert {entry.source.partition(":")[0] for entry in CATALOG} == set(LIBRARIES)


@each_of("timm")
def test_timm_says_the_same(entry: CatalogEntry) -> None:
    name = name_of(entry)
    cfg = timm.get_pretrained_cfg(name)
    assert (cfg.hf_hub_id, cfg.hf_hub_filename) == (f"timm/{name}", None)  # it can be fetched, from what we ask for
    assert cfg.num_classes == entry.classes
    assert cfg.license.replace("-license", " license") == entry.licence.lower()
    with torch.device("meta"):
        built = timm.create_model(name.split(".")[0], num_classes=cfg.num_classes)
    assert count(built) == entry.parameters
    config, _ = config_of(built)  # refuses what cannot be converted
    preprocess = about_timm(cfg.to_dict() | {"num_classes": built.num_classes}, config).preprocess
    assert (preprocess.height, preprocess.width) == (entry.input_size, entry.input_size)


@each_of("torchvision")
def test_torchvision_says_the_same(entry: CatalogEntry) -> None:
    architecture, _, tag = name_of(entry).partition(".")
    weights = models.get_model_weights(architecture)[tag]
    assert weights.meta["_file_size"] * 2**20 == pytest.approx(entry.size, rel=0.001)  # torchvision counts in MiB
    about = about_torchvision(weights)
    assert (about.preprocess.height, about.preprocess.width) == (entry.input_size, entry.input_size)
    assert len(about.labels) == entry.classes
    assert about.licence.startswith("unknown") == (entry.licence == "licence not stated")
    with torch.device("meta"):
        assert count(models.get_model(architecture)) == weights.meta["num_params"] == entry.parameters
    assert architecture in BUILDERS


@each_of("hf")
def test_transformers_documents_the_same(entry: CatalogEntry) -> None:
    assert name_of(entry) == "google/vit-base-patch16-224"  # another one needs its own config here
    config = hf.ViTConfig(num_labels=entry.classes)  # its defaults are this model
    with torch.device("meta"):
        assert count(hf.ViTForImageClassification(config)) == entry.parameters
    assert config.image_size == entry.input_size
