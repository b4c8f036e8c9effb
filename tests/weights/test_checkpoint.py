"""Checkpoint folders: what is saved comes back, whole, and a save that fails leaves no trace."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import checkpoint_folders
import hf_cases
import pytest
import tiny
import torch
from checkpoint_folders import ABOUT, CONFIG, LABELS
from weight_files import TIMM, state_of, written

import vitviz
from vitviz.images.preprocess import Preprocess
from vitviz.model.vit import Pretrained
from vitviz.weights import checkpoint
from vitviz.weights.checkpoint import CheckpointError, load_folder, save


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(checkpoint_folders.model(), tmp_path / "model")
    return tmp_path / "model"


def test_what_is_saved_comes_back(folder: Path) -> None:
    model = checkpoint_folders.model()
    torch.manual_seed(3)
    again = load_folder(folder)
    assert torch.equal(torch.rand(2), torch.rand(2, generator=torch.Generator().manual_seed(3)))  # it drew no numbers
    assert (again.config, again.pretrained, again.training) == (CONFIG, ABOUT, False)
    assert {(parameter.requires_grad, parameter.device.type) for parameter in again.parameters()} == {(True, "cpu")}
    images = torch.randn(2, 3, 10, 15)
    assert torch.equal(again(images), model(images))
    again(images).sum().backward()  # the weights are real parameters
    assert all(parameter.grad is not None for parameter in again.parameters())
    model.pretrained = replace(ABOUT, sure_above=None, known_above=None, groups=())
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        save(model, folder, dtype=dtype)
        settings = json.loads((folder / "config.json").read_text())
        assert not {"sure_above", "known_above", "groups"} & settings.keys()
        again = load_folder(folder)
        assert again.pretrained == model.pretrained
        for name, tensor in model.state_dict().items():
            assert again.state_dict()[name].dtype is torch.float32
            assert torch.equal(again.state_dict()[name], tensor.to(dtype).float()), name


@pytest.mark.parametrize("changes", [*tiny.KINDS.values(), {"classes": 0, "position_grid": (3, 4)}], ids=str)
def test_every_kind_of_model_comes_back(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = tiny.model(**tiny.SMALL, **changes)
    preprocess = Preprocess(height=6, width=10, multiple=2)
    labels = tuple(str(index) for index in range(model.config.classes))
    model.pretrained = Pretrained(name="x", preprocess=preprocess, labels=labels)
    save(model, tmp_path)
    again = load_folder(tmp_path)
    assert (again.config, again.pretrained) == (model.config, model.pretrained)
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_a_second_save_replaces_the_first_and_a_failed_one_does_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = checkpoint_folders.model()
    with torch.no_grad():
        model.norm.bias.add_(1.0)
    save(model, folder)
    assert torch.equal(load_folder(folder).norm.bias, model.norm.bias)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert sorted(before) == ["config.json", "model.safetensors"]
    modes = {path.stat().st_mode & 0o777 for path in folder.iterdir()}  # both can be read by whoever reads other files
    (folder / "plain").touch()
    assert modes == {(folder / "plain").stat().st_mode & 0o777}
    (folder / "plain").unlink()

    def full(*_args: object, **_options: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        save(checkpoint_folders.model(), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_saving_what_could_not_be_loaded_is_refused(tmp_path: Path) -> None:
    model = checkpoint_folders.model()
    for about, words in (
        (None, r"Set model\.pretrained"),
        (replace(ABOUT, labels=LABELS[:2]), "labels for each of 3 classes, got 2"),
        (replace(ABOUT, preprocess=Preprocess()), "multiples of the patch, 5 pixels, got 224 x 224"),
    ):
        model.pretrained = about
        with pytest.raises(CheckpointError, match=words):
            save(model, tmp_path)
    model = checkpoint_folders.model()
    with torch.no_grad():
        model.norm.bias[1] = 1e6  # finite here, infinite in half precision
    with pytest.raises(CheckpointError, match=r"norm\.bias"):
        save(model, tmp_path, dtype=torch.float16)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["ours", "transformers", ".safetensors", ".pt"])
def test_a_file_that_is_overwritten_does_not_change_a_loaded_model(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.safetensors"
    if kind.startswith("."):
        path = written(state_of(TIMM["vit"][0]()), tmp_path, kind)
        model = vitviz.load(path, heads=5)
    else:
        save(checkpoint_folders.model(), tmp_path) if kind == "ours" else hf_cases.saved(
            hf_cases.CASES["ViT"], tmp_path
        )
        model = vitviz.load(tmp_path)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with path.open("r+b") as file:
        file.seek(-path.stat().st_size // 2, os.SEEK_END)
        file.write(b"\x11" * (path.stat().st_size // 2))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    os.truncate(path, 0)  # a mapped tensor would end the process with SIGBUS
    assert all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())
