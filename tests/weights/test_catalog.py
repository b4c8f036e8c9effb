"""The catalog, held to the libraries that publish them. Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
import transformers as hf
from hf_cases import on_disk
from torch import nn
from torchvision import models

from vitviz.weights.catalog import CATALOG, CatalogEntry
from vitviz.weights.from_timm import about_timm, config_of
from vitviz.weights.from_torchvision import BUILDERS, about_torchvision
from vitviz.weights.from_transformers import convert_transformers
from vitviz.weights.zoo import LIBRARIES


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
    assert cfg is not None
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
def test_transformers_documents_the_same(entry: CatalogEntry, tmp_path: Path) -> None:
    assert name_of(entry) == "google/vit-base-patch16-224"  # another one needs its own config here
    settings = {"num_labels": entry.classes, "architectures": ["ViTForImageClassification"]}
    config = hf.ViTConfig(**settings)  # its defaults are this model
    with torch.device("meta"):
        assert count(hf.ViTForImageClassification(config)) == entry.parameters
    assert config.image_size == entry.input_size
    # The names in a file are not those in memory: written out with one block, where all twelve would be 346 MB.
    model = convert_transformers(
        *on_disk(hf.ViTForImageClassification(hf.ViTConfig(num_hidden_layers=1, **settings)), tmp_path)
    )
    ours = model.config
    assert (ours.width, ours.patch_size, ours.classes, ours.image_size) == (768, 16, 1000, (224, 224))
    assert model.head is not None
    assert model.head.weight.shape == (1000, 768)
