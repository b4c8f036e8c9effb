"""Checkpoint folders that are damaged or hostile are refused in words. Hostile files of weights: test_hostile.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoint_folders
import pytest
import torch
from checkpoint_folders import edit_config, edit_weights

from vitviz.weights.checkpoint import load_folder, save
from vitviz.weights.checks import MAX_JSON_BYTES, CheckpointError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(checkpoint_folders.model(), tmp_path / "model")
    return tmp_path / "model"


HUGE = 10**15
REMOVED = object()
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("", {"format": 2}, "format 1, got 2"),
    ("", {"labels": REMOVED}, r"missing: \['labels'\]"),
    ("", {"extra": 1}, r"unknown: \['extra'\]"),
    ("", {"labels": ["ash"]}, "labels for each of 3 classes, got 1"),
    ("", {"class_ids": ["n1", "n2"]}, "class_ids for each of 3 classes, got 2"),
    ("", {"labels": ["ash", "birch", 3]}, "Expected labels to be"),
    ("", {"sure_above": "often"}, "sure_above to be float or None, got 'often'"),
    ("", {"sure_above": 27}, "sure_above as a probability, got 27"),
    ("", {"known_above": "often"}, "known_above to be float or None, got 'often'"),
    ("", {"groups": ["ash"]}, "Expected groups to be"),
    ("", {"groups": [["tree", "ash"]]}, r"two of the labels or more, got \('tree', 'ash'\)"),
    ("", {"groups": [["tree", "ash", "oak"]]}, "two of the labels or more, got"),
    ("", {"name": None}, "name to be str, got None"),
    ("", {"model": []}, "settings as a mapping, got \\[\\]"),
    ("", {"preprocess": "crop"}, "settings as a mapping, got 'crop'"),
    ("preprocess", {"mode": "stretch"}, "stretch"),
    ("preprocess", {"mode": "squash", "height": 12}, "multiples of the patch"),
    ("preprocess", {"mode": "crop", "width": 13}, "multiples of the patch"),
    ("preprocess", {"mode": "native", "multiple": 3}, "multiples of the patch"),
    ("preprocess", {"std": [1e-320, 1.0, 1.0]}, "std"),
    ("model", {"colour": "blue"}, "colour"),
    ("model", {"width": "14"}, "width to be int of at least 1, got '14'"),
    ("model", {"image_size": [10, "15"]}, "Expected image_size to be"),
    ("model", {"class_token": 1}, "class_token to be bool"),
    ("model", {"layer_scale": "big"}, "Expected layer_scale to be"),
    ("model", {"norm_eps": float("nan")}, "norm_eps to be float .*got nan"),
    ("model", {"layer_scale": float("inf")}, "layer_scale to be float .*got inf"),
    # what the weights do not bear out, however large
    ("model", {"depth": HUGE}, "blocks"),
    ("model", {"depth": 2}, "Expected 2 blocks .*got 3"),
    ("model", {"width": HUGE * 2, "mlp_width": None}, "other shapes|beyond any memory"),
    ("model", {"mlp_width": HUGE}, r"fc1.bias \(expected \(1000000000000000,\), got \(11,\)"),
    ("model", {"heads": HUGE, "head_width": 7}, "other shapes: .*attn"),
    ("model", {"channels": HUGE}, "other shapes: patch_embed"),
    ("model", {"position_grid": [HUGE, HUGE]}, "beyond any memory"),
    ("model", {"image_size": [5 * HUGE, 5 * HUGE]}, "image_size of at most"),
    ("model", {"patch_size": 5 * HUGE, "image_size": [5 * HUGE, 5 * HUGE]}, "image_size of at most"),
    ("model", {"registers": 3}, r"reg_token \(expected \(1, 3, 14\), got \(1, 2, 14\)\)"),
    ("model", {"mlp_width": 13}, "other shapes: .* and 6 more"),
    ("model", {"layer_scale": None}, "tensors too many: blocks.0.ls1.gamma, .* and 3 more"),
    ("model", {"distillation_token": True}, "tensors missing: dist_token"),
]  # fmt: skip


def assert_refused(folder: Path, text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        load_folder(folder)


@pytest.mark.parametrize(("part", "changes", "text"), REFUSED)
def test_settings_that_make_no_sense_are_refused(folder: Path, part: str, changes: dict[str, Any], text: str) -> None:
    def change(config: dict[str, Any]) -> None:
        settings = config[part] if part else config
        settings.update(changes)
        for name in (name for name in changes if changes[name] is REMOVED):
            del settings[name]

    edit_config(folder, change)
    assert_refused(folder, text)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda s: s.pop("norm.weight"), r"tensors missing: norm\.weight"),
        (lambda s: s.update(extra=torch.zeros(2)), "tensors too many: extra"),
        (lambda s: s.update({"norm.weight": torch.zeros(15)}), r"norm\.weight \(expected \(14,\), got \(15,\)\)"),
        (lambda s: s.update({"norm.weight": torch.zeros(14, dtype=torch.int8)}), r"got torch.int8 in 'norm\.weight'"),
        (lambda s: s["norm.weight"].__setitem__(3, float("nan")), r"NaN or infinity in norm\.weight"),
        (lambda s: s["head.bias"].__setitem__(0, float("-inf")), r"NaN or infinity in head\.bias"),
        (lambda s: s.clear(), "Expected 3 blocks .*got 0"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    folder: Path, change: Callable[[dict[str, torch.Tensor]], object], text: str
) -> None:
    edit_weights(folder, change)
    assert_refused(folder, text)


def test_missing_and_damaged_files_are_refused(folder: Path, tmp_path: Path) -> None:
    config, weights = folder / "config.json", folder / "model.safetensors"
    assert_refused(tmp_path / "nowhere", "Expected a checkpoint folder")
    assert_refused(config, "Expected a checkpoint folder")
    whole = config.read_bytes()
    number = '{"format": ' + "1" * 5000 + "}"
    for text in ("", "{", "[]", "null", "[" * 100_000, '{"format": NaN}', number, "\0", '{"a": "\xff"}'):
        config.write_text(text, encoding="latin-1")
        assert_refused(folder, r"Expected (a )?JSON|in format 1")
    config.write_bytes(bytes(MAX_JSON_BYTES + 1))
    assert_refused(folder, "Expected at most 10,485,760 bytes")
    config.write_bytes(whole)
    weights.write_bytes(weights.read_bytes()[:-1])
    assert_refused(folder, "cut short|damaged")
    weights.unlink()
    torch.save({}, folder / "pytorch_model.bin")  # a pickle beside the config is never opened
    assert_refused(folder, r"has no model\.safetensors")
    config.unlink()
    assert_refused(folder, r"has no config\.json")
