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


def of(library: str) -> list[CatalogEntry]:
    return [one for one in CATALOG if one.source.startswith(f"{library}:")]


def name(one: CatalogEntry) -> str:
    return one.source.partition(":")[2]


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_there_are_ten_from_three_libraries_each_once() -> None:
    assert len(CATALOG) == len({one.source for one in CATALOG}) == len({one.title for one in CATALOG}) == 10
    assert {one.source.partition(":")[0] for one in CATALOG} == set(LIBRARIES)


@pytest.mark.parametrize("one", of("timm"), ids=name)
def test_those_of_timm_are_what_timm_says(one: CatalogEntry) -> None:
    cfg = timm.get_pretrained_cfg(name(one))
    assert cfg is not None
    assert cfg.hf_hub_id == f"timm/{name(one)}"  # it can be fetched,
    assert cfg.num_classes == one.classes
    assert cfg.hf_hub_filename is None  # from the file that we ask for
    assert cfg.license.replace("-license", " license") == one.licence.lower()
    with torch.device("meta"):
        built = timm.create_model(name(one).split(".")[0], num_classes=cfg.num_classes)
    assert count(built) == one.parameters
    config, _ = config_of(built)  # refuses what cannot be converted
    preprocess = about_timm(cfg.to_dict() | {"num_classes": built.num_classes}, config).preprocess
    assert (preprocess.height, preprocess.width) == (one.input_size, one.input_size)


@pytest.mark.parametrize("one", of("torchvision"), ids=name)
def test_those_of_torchvision_are_what_torchvision_says(one: CatalogEntry) -> None:
    architecture, _, tag = name(one).partition(".")
    weights = models.get_model_weights(architecture)[tag]
    assert weights.meta["num_params"] == one.parameters
    assert weights.meta["_file_size"] * 2**20 == pytest.approx(one.size, rel=0.001)  # torchvision counts in MiB
    said = about_torchvision(weights)
    assert (said.preprocess.height, said.preprocess.width) == (one.input_size, one.input_size)
    assert len(said.labels) == one.classes
    assert said.licence.startswith("unknown") == (one.licence == "licence not stated")
    with torch.device("meta"):
        built = models.get_model(architecture)
        assert count(built) == one.parameters
    assert architecture in BUILDERS


@pytest.mark.parametrize("one", of("hf"), ids=name)
def test_those_of_hugging_face_are_what_transformers_documents(one: CatalogEntry, tmp_path: Path) -> None:
    assert name(one) == "google/vit-base-patch16-224"  # another one needs its own config here
    settings = {"num_labels": one.classes, "architectures": ["ViTForImageClassification"]}
    config = hf.ViTConfig(**settings)  # its defaults are this model
    with torch.device("meta"):
        assert count(hf.ViTForImageClassification(config)) == one.parameters
    assert config.image_size == one.input_size
    # The names in a file are not those in memory: written out with one block, where all twelve would be 346 MB.
    state, said = on_disk(hf.ViTForImageClassification(hf.ViTConfig(num_hidden_layers=1, **settings)), tmp_path)
    model = convert_transformers(state, said)
    config = model.config
    assert (config.width, config.patch_size, config.classes, config.image_size) == (768, 16, 1000, (224, 224))
    assert model.head is not None
    assert model.head.weight.shape == (1000, 768)
