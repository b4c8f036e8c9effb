"""Models that a tutorial writes itself load from their state dict, with equal logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from textbook_models import VitPytorch, of_the_guide
from weight_files import assert_equal, state_of, written

import vitviz
from vitviz.weights.checks import ConvertError


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_the_tutorials_vit_loads_with_equal_logits(suffix: str, tmp_path: Path) -> None:
    theirs = of_the_guide(
        img_size=35, patch_size=5, num_transformer_layers=3, embedding_dim=12, mlp_size=29, num_heads=3, num_classes=7
    )
    tiny.randomise(theirs, 3)
    path = written(state_of(theirs), tmp_path, suffix)
    assert_equal(vitviz.load(path, heads=3), theirs)
    with pytest.raises(ConvertError, match="Expected the number of heads"):
        vitviz.load(path)


def test_vit_pytorch_of_2022_loads_with_equal_logits(tmp_path: Path) -> None:
    theirs = VitPytorch(image=35, p=5, dim=19, depth=2, heads=3, head=11, hidden=23, classes=7).eval()
    tiny.randomise(theirs, 4)
    state = state_of(theirs)
    assert_equal(vitviz.load(written(state, tmp_path, ".pt"), heads=3), theirs)
    newer = state | {f"to_patch_embedding.3.{kind}": torch.ones(19) for kind in ("weight", "bias")}
    with pytest.raises(ConvertError, match="norms the pixels of a patch before the projection"):
        vitviz.load(written(newer, tmp_path, ".safetensors"), heads=3)
