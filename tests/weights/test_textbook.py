"""Check that state dicts of models from tutorials load with equal logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from textbook_models import VitPytorch, of_the_guide
from timm_models import assert_equal

import vitviz
from vitviz.weights.checks import ConvertError


def test_tutorial_model_loads_with_equal_logits(tmp_path: Path) -> None:
    theirs = of_the_guide(
        img_size=35, patch_size=5, num_transformer_layers=3, embedding_dim=12, mlp_size=29, num_heads=3, num_classes=7
    )
    tiny.randomise(theirs, 3)
    torch.save(theirs.state_dict(), path := tmp_path / "tutorial.pth")
    assert_equal(vitviz.load(path, heads=3), theirs, 35)
    with pytest.raises(ConvertError, match="Expected the number of heads"):
        vitviz.load(path)


def test_vit_pytorch_of_2022_loads_with_equal_logits(tmp_path: Path) -> None:
    theirs = VitPytorch(image=35, p=5, dim=19, depth=2, heads=3, head=11, hidden=23, classes=7).eval()
    tiny.randomise(theirs, 4)
    torch.save(theirs.state_dict(), path := tmp_path / "lucidrains.pth")
    assert_equal(vitviz.load(path, heads=3), theirs, 35)
