"""Checkpoint folders that are damaged or hostile are refused in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoint_folders
import pytest
import torch
from checkpoint_folders import edit_config, edit_weights, header

from vitviz.weights.checkpoint import load_folder, save
from vitviz.weights.checks import MAX_JSON_BYTES, CheckpointError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(checkpoint_folders.model(), tmp_path / "model")
    return tmp_path / "model"


# --- the config


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda c: c.update(format=2), "format 1, got 2"),
        (lambda c: c.pop("format"), "format 1, got None"),
        (lambda c: c.pop("labels"), r"missing: \['labels'\]"),
        (lambda c: c.update(extra=1), r"unknown: \['extra'\]"),
        (lambda c: c.update(labels=["ash"]), "labels for each of 3 classes, got 1"),
        (lambda c: c.update(class_ids=["n1", "n2"]), "class_ids for each of 3 classes, got 2"),
        (lambda c: c.update(labels=["ash", "birch", 3]), "Expected labels to be"),
        (lambda c: c.update(sure_above="often"), "sure_above to be float or None, got 'often'"),
        (lambda c: c.update(sure_above=27), "sure_above as a probability, got 27"),
        (lambda c: c.update(name=None), "name to be str, got None"),
        (lambda c: c.update(model=[]), "settings as a mapping, got \\[\\]"),
        (lambda c: c.update(preprocess="crop"), "settings as a mapping, got 'crop'"),
        (lambda c: c["preprocess"].update(mode="stretch"), "stretch"),
        (lambda c: c["preprocess"].update(zoom=2), "zoom"),
        (lambda c: c["model"].update(colour="blue"), "colour"),
        (lambda c: c["model"].update(width="14"), "width to be int of at least 1, got '14'"),
        (lambda c: c["model"].update(width=True), "width to be int of at least 1, got True"),
        (lambda c: c["model"].update(width=14.0), "width to be int"),
        (lambda c: c["model"].update(depth=-1), "depth"),
        (lambda c: c["model"].update(image_size=[10, "15"]), "Expected image_size to be"),
        (lambda c: c["model"].update(image_size=[10, 15, 20]), "Expected image_size to be"),
        (lambda c: c["model"].update(image_size=[10, 16]), "16"),
        (lambda c: c["model"].update(position_grid=[0, 3]), r"position_grid to be .* of at least 1"),
        (lambda c: c["model"].update(head_width=0), "head_width to be .* of at least 1"),
        (lambda c: c["model"].update(mlp_width=-11), "mlp_width to be .* of at least 1"),
        (lambda c: c["model"].update(pooling="max"), "Expected pooling to be"),
        (lambda c: c["model"].update(class_token=1), "class_token to be bool"),
        (lambda c: c["model"].update(layer_scale="big"), "Expected layer_scale to be"),
        (lambda c: c["model"].update(norm_eps=float("nan")), "norm_eps to be float .*got nan"),
        (lambda c: c["model"].update(layer_scale=float("inf")), "layer_scale to be float .*got inf"),
    ],
)
def test_a_config_that_says_nonsense_is_refused(
    folder: Path, change: Callable[[dict[str, Any]], object], text: str
) -> None:
    edit_config(folder, change)
    with pytest.raises(CheckpointError, match=text):
        load_folder(folder)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "[" * 100_000, '{"format": NaN}', '{"format": ' + "1" * 5000 + "}", "\0"]
)
def test_a_config_that_is_not_one_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"Expected (a )?JSON|in format 1"):
        load_folder(folder)


def test_a_config_in_another_encoding_or_far_too_long_is_refused(folder: Path) -> None:
    (folder / "config.json").write_bytes(b'{"name": "\xff"}')
    with pytest.raises(CheckpointError, match="Expected JSON"):
        load_folder(folder)
    with (folder / "config.json").open("wb") as file:
        file.truncate(MAX_JSON_BYTES + 1)
    with pytest.raises(CheckpointError, match="Expected at most 10,485,760 bytes"):
        load_folder(folder)


# --- the weights

HUGE = 10**15


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ({"depth": HUGE}, "blocks"),
        ({"depth": 2}, "Expected 2 blocks .*got 3"),
        ({"width": HUGE * 2, "mlp_width": None}, "other shapes|beyond any memory"),
        ({"mlp_width": HUGE}, r"fc1.bias \(expected \(1000000000000000,\), got \(11,\)"),
        ({"heads": HUGE, "head_width": 7}, "other shapes: .*attn"),
        ({"head_width": HUGE}, "other shapes: .*attn"),
        ({"channels": HUGE}, "other shapes: patch_embed"),
        ({"registers": HUGE}, "other shapes: reg_token"),
        ({"position_grid": [HUGE, HUGE]}, "beyond any memory"),
        ({"image_size": [5 * HUGE, 5 * HUGE]}, "image_size of at most"),
        ({"patch_size": 5 * HUGE, "image_size": [5 * HUGE, 5 * HUGE]}, "image_size of at most"),
        ({"registers": 3}, r"reg_token \(expected \(1, 3, 14\), got \(1, 2, 14\)\)"),
        ({"mlp_width": 13}, "other shapes: .* and 6 more"),
        ({"layer_scale": None}, "tensors too many: blocks.0.ls1.gamma, .* and 3 more"),
        ({"distillation_token": True}, "tensors missing: dist_token"),
    ],
)
def test_a_config_that_the_weights_do_not_bear_out_is_refused(folder: Path, sizes: dict[str, Any], text: str) -> None:
    edit_config(folder, lambda c: c["model"].update(sizes))
    with pytest.raises(CheckpointError, match=text):
        load_folder(folder)


def test_a_hundred_million_labels_would_need_a_file_that_long(folder: Path) -> None:
    edit_config(folder, lambda c: (c["model"].update(classes=1000), c.update(labels=["x"] * 1000, class_ids=[])))
    with pytest.raises(CheckpointError, match=r"head.bias \(expected \(1000,\), got \(3,\)"):
        load_folder(folder)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda s: s.pop("norm.weight"), r"tensors missing: norm\.weight"),
        (lambda s: s.update(extra=torch.zeros(2)), "tensors too many: extra"),
        (lambda s: s.update({"norm.weight": torch.zeros(15)}), r"norm\.weight \(expected \(14,\), got \(15,\)\)"),
        (lambda s: s.update({"norm.weight": torch.zeros(14, dtype=torch.int8)}), r"got torch.int8 in 'norm\.weight'"),
        (lambda s: s["norm.weight"].__setitem__(3, float("nan")), r"NaN or infinity in norm\.weight"),
        (lambda s: s["head.bias"].__setitem__(0, float("-inf")), r"NaN or infinity in head\.bias"),
        (lambda s: s.update({"norm.bias": torch.full((14,), 1e300, dtype=torch.float64)}), r"infinity in norm\.bias"),
        (lambda s: s.clear(), "Expected 3 blocks .*got 0"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    folder: Path, change: Callable[[dict[str, torch.Tensor]], object], text: str
) -> None:
    edit_weights(folder, change)
    with pytest.raises(CheckpointError, match=text):
        load_folder(folder)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "empty file"),
        (b"\x00" * 7, "cut short"),
        (b"PK\x03\x04" + b"\x00" * 60, "got one of torch.save"),  # a zip, as torch.save writes
        (b"\x80\x02}q\x00." + b"." * 60, "got one of torch.save"),  # a pickle
        (header({}, 2 * 2**30), "a header of 2,147,483,648 bytes"),
        (header({}, 2**64 - 1), "a header of"),
        (header([1, 2, 3]), "damaged"),
        (header({"norm.weight": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 4]}}), "damaged"),
        (header({"norm.weight": {"dtype": "F32", "shape": [14], "data_offsets": [0, 56]}}), "damaged"),
        (header({"norm.weight": {"dtype": "F32", "shape": [-14], "data_offsets": [0, 56]}}) + b"\0" * 56, "damaged"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
    ],
)
def test_a_file_that_is_no_safetensors_file_is_refused(folder: Path, content: bytes, text: str) -> None:
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=text):
        load_folder(folder)


@pytest.mark.parametrize("keep", [0.05, 0.5, 0.999])
def test_a_truncated_file_is_refused(folder: Path, keep: float) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(CheckpointError, match=r"cut short|damaged"):
        load_folder(folder)


def test_a_pickle_beside_the_config_is_never_opened(folder: Path) -> None:
    torch.save({}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"has no model\.safetensors"):
        load_folder(folder)


def test_a_missing_folder_or_config_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="Expected a checkpoint folder"):
        load_folder(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="Expected a checkpoint folder"):
        load_folder(folder / "config.json")
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        load_folder(folder)
