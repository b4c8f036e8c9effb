"""Checkpoint folders: what is saved comes back, whole, and a save that fails leaves no trace."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import checkpoint_folders
import pytest
import torch
from checkpoint_folders import ABOUT, CONFIG, LABELS
from hypothesis import given
from hypothesis import strategies as st

from vitviz.config import ViTConfig
from vitviz.model import Pretrained
from vitviz.preprocess import Preprocess
from vitviz.weights import checkpoint
from vitviz.weights.checkpoint import CheckpointError, load_folder, save


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(checkpoint_folders.model(), tmp_path / "model")
    return tmp_path / "model"


def test_what_is_saved_comes_back(folder: Path) -> None:
    model, again = checkpoint_folders.model(), load_folder(folder)
    assert again.config == CONFIG
    assert again.pretrained == ABOUT
    assert not again.training
    assert all(parameter.requires_grad for parameter in again.parameters())
    assert {parameter.device.type for parameter in again.parameters()} == {"cpu"}
    images = torch.randn(2, 3, 10, 15)
    assert torch.equal(again(images), model(images))
    again(images).sum().backward()  # the weights are real parameters
    assert all(parameter.grad is not None for parameter in again.parameters())


@given(
    heads=st.integers(1, 3),
    head_width=st.none() | st.integers(1, 5),
    depth=st.integers(1, 3),
    registers=st.integers(0, 2),
    classes=st.integers(0, 3),
    class_token=st.booleans(),
    distillation_token=st.booleans(),
    positions=st.sampled_from(["learned", "sincos", "none"]),
    layer_scale=st.none() | st.just(0.1),
    qkv_bias=st.booleans(),
    position_grid=st.none() | st.just((3, 4)),
)
def test_every_kind_of_model_comes_back(tmp_path_factory: pytest.TempPathFactory, **options: Any) -> None:
    pooling = "cls+mean" if options["class_token"] else "mean"
    config = ViTConfig(image_size=(6, 9), patch_size=3, width=options["heads"] * 4, pooling=pooling, **options)
    labels = tuple("abc"[: config.classes])
    model = checkpoint_folders.model(config, Pretrained(name="x", preprocess=Preprocess(), labels=labels))
    folder = tmp_path_factory.mktemp("model")
    save(model, folder)
    again = load_folder(folder)
    assert again.config == config
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_other_precisions_become_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    model = checkpoint_folders.model()
    save(model, tmp_path, dtype=dtype)
    again = load_folder(tmp_path)
    for name, tensor in model.state_dict().items():
        assert again.state_dict()[name].dtype is torch.float32
        assert torch.equal(again.state_dict()[name], tensor.to(dtype).float()), name


def test_loading_draws_no_random_numbers(folder: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    load_folder(folder)
    assert torch.equal(torch.rand(2), expected)


def test_saving_again_replaces_and_leaves_nothing_behind(folder: Path) -> None:
    model = checkpoint_folders.model()
    with torch.no_grad():
        model.norm.bias.add_(1.0)
    save(model, folder)
    assert torch.equal(load_folder(folder).norm.bias, model.norm.bias)
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors"]


def test_an_interrupted_save_keeps_the_old_checkpoint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object, **_options: object) -> None:
        raise OSError("No space left on device")

    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        save(checkpoint_folders.model(), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_both_files_can_be_read_by_others_alike(folder: Path) -> None:
    modes = {path.stat().st_mode & 0o777 for path in folder.iterdir()}
    (folder / "plain").touch()
    assert modes == {(folder / "plain").stat().st_mode & 0o777}


def test_saving_what_could_not_be_loaded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"Set model\.pretrained"):
        save(checkpoint_folders.model(about=None), tmp_path)
    short = checkpoint_folders.model()
    short.pretrained = Pretrained(name="x", preprocess=Preprocess(), labels=LABELS[:2])
    with pytest.raises(CheckpointError, match="labels for each of 3 classes, got 2"):
        save(short, tmp_path)
    model = checkpoint_folders.model()
    with torch.no_grad():
        model.norm.bias[1] = 1e6  # finite here, infinite in half precision
    with pytest.raises(CheckpointError, match=r"norm\.bias"):
        save(model, tmp_path, dtype=torch.float16)
    assert not list(tmp_path.iterdir())
