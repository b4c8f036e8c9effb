"""Checkpoint folders: what is saved comes back, whole, and a save that fails leaves no trace."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import checkpoint_folders
import hf_cases
import pytest
import torch
import transformers as hf
from checkpoint_folders import ABOUT, CONFIG, LABELS
from hypothesis import given
from hypothesis import strategies as st
from weight_files import TIMM, state_of, written

import vitviz
from vitviz.images.preprocess import Preprocess
from vitviz.model.config import ViTConfig
from vitviz.model.vit import Pretrained
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


def test_a_model_without_a_measured_threshold_comes_back_without_one(tmp_path: Path) -> None:
    about = replace(ABOUT, sure_above=None)
    save(checkpoint_folders.model(about=about), tmp_path)
    assert "sure_above" not in (tmp_path / "config.json").read_text()
    assert load_folder(tmp_path).pretrained == about


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
    about = Pretrained(name="x", preprocess=Preprocess(height=6, width=9), labels=labels)
    model = checkpoint_folders.model(config, about)
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
    short.pretrained = Pretrained(name="x", preprocess=ABOUT.preprocess, labels=LABELS[:2])
    with pytest.raises(CheckpointError, match="labels for each of 3 classes, got 2"):
        save(short, tmp_path)
    short.pretrained = Pretrained(name="x", preprocess=Preprocess(), labels=LABELS)
    with pytest.raises(CheckpointError, match="multiples of the patch, 5 pixels, got 224 x 224"):
        save(short, tmp_path)
    model = checkpoint_folders.model()
    with torch.no_grad():
        model.norm.bias[1] = 1e6  # finite here, infinite in half precision
    with pytest.raises(CheckpointError, match=r"norm\.bias"):
        save(model, tmp_path, dtype=torch.float16)
    assert not list(tmp_path.iterdir())


def of_ours(folder: Path) -> Path:
    save(checkpoint_folders.model(), folder)
    return folder / "model.safetensors"


def of_transformers(folder: Path) -> Path:
    hf_cases.CASES["ViT"].build().save_pretrained(folder)
    hf.ViTImageProcessor(size={"height": 44, "width": 44}).save_pretrained(folder)
    return folder / "model.safetensors"


def single(suffix: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        return written(state_of(TIMM["vit"][0]()), folder, suffix)

    return write


@pytest.mark.parametrize(
    "write", [of_ours, of_transformers, single(".safetensors"), single(".pt")], ids=["ours", "transformers", "st", "pt"]
)
def test_a_file_that_is_overwritten_does_not_change_a_loaded_model(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    path = write(tmp_path)
    model = vitviz.load(path, heads=5) if path.stem == "weights" else vitviz.load(tmp_path)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with path.open("r+b") as file:
        file.seek(-path.stat().st_size // 2, os.SEEK_END)
        file.write(b"\x11" * (path.stat().st_size // 2))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    os.truncate(path, 0)  # a mapped tensor would end the process with SIGBUS
    assert all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())
