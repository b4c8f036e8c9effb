"""The table of famous models, held to the libraries that publish them. Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
import transformers as hf
from hf_cases import on_disk
from torch import nn
from torchvision import models

from vitviz.config import ViTConfig
from vitviz.weights.famous import FAMOUS, Famous
from vitviz.weights.from_timm import about
from vitviz.weights.from_torchvision import BUILDERS, about_torchvision, torchvision_vit
from vitviz.weights.from_transformers import vit
from vitviz.weights.timm_settings import settings_of
from vitviz.weights.zoo import LIBRARIES


def of(library: str) -> list[Famous]:
    return [one for one in FAMOUS if one.source.startswith(f"{library}:")]


def name(one: Famous) -> str:
    return one.source.partition(":")[2]


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_there_are_ten_from_three_libraries_each_once() -> None:
    assert len(FAMOUS) == len({one.source for one in FAMOUS}) == len({one.title for one in FAMOUS}) == 10
    assert {one.source.partition(":")[0] for one in FAMOUS} == set(LIBRARIES)


@pytest.mark.parametrize("one", of("timm"), ids=name)
def test_those_of_timm_are_what_timm_says(one: Famous) -> None:
    cfg = timm.get_pretrained_cfg(name(one))
    assert cfg is not None
    assert cfg.hf_hub_id  # it can be fetched,
    assert cfg.hf_hub_filename is None  # from the file that we ask for
    assert cfg.license.replace("-license", " license") == one.licence.lower()
    with torch.device("meta"):
        built = timm.create_model(name(one).split(".")[0], num_classes=cfg.num_classes)
    assert count(built) == one.parameters
    settings = settings_of(built)  # refuses what cannot be converted
    config = ViTConfig(**{field: settings[field] for field in settings if field in ViTConfig.__dataclass_fields__})
    preprocess = about(cfg.to_dict() | {"num_classes": built.num_classes}, config).preprocess
    assert (preprocess.height, preprocess.width) == (one.side, one.side)


@pytest.mark.parametrize("one", of("torchvision"), ids=name)
def test_those_of_torchvision_are_what_torchvision_says(one: Famous) -> None:
    architecture, _, tag = name(one).partition(".")
    weights = models.get_model_weights(architecture)[tag]
    assert weights.meta["num_params"] == one.parameters
    assert weights.meta["_file_size"] * 2**20 == pytest.approx(one.size, rel=0.001)  # torchvision counts in MiB
    said = about_torchvision(weights)
    assert (said.preprocess.height, said.preprocess.width) == (one.side, one.side)
    assert said.licence.startswith("unknown") == (one.licence == "licence not stated")
    with torch.device("meta"):
        built = models.get_model(architecture)
        assert count(built) == one.parameters
        torchvision_vit(built.state_dict(), BUILDERS[architecture])


@pytest.mark.parametrize("one", of("hf"), ids=name)
def test_those_of_hugging_face_are_of_the_architecture_that_transformers_documents(one: Famous, tmp_path: Path) -> None:
    assert name(one) == "google/vit-base-patch16-224"  # another one needs its own config here
    settings = {"num_labels": 1000, "architectures": ["ViTForImageClassification"]}
    config = hf.ViTConfig(**settings)  # its defaults are this model
    with torch.device("meta"):
        assert count(hf.ViTForImageClassification(config)) == one.parameters
    assert config.image_size == one.side
    # The names in a file are not those in memory: written out with one block, where all twelve would be 346 MB.
    model, state = vit(*on_disk(hf.ViTForImageClassification(hf.ViTConfig(num_hidden_layers=1, **settings)), tmp_path))
    assert (model.width, model.patch_size, model.classes, model.image_size) == (768, 16, 1000, (224, 224))
    assert state["head.weight"].shape == (1000, 768)
