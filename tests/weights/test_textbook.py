"""State dicts of tutorials' own models load with equal logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from textbook_models import VitPytorch, of_the_guide
from torch import nn

import vitviz
from vitviz.weights.checks import ConvertError


@torch.no_grad()
def assert_equal_logits(path: Path, theirs: nn.Module) -> None:
    images = torch.randn(2, 3, 35, 35, generator=torch.Generator().manual_seed(5))
    expected = theirs(images)
    assert expected.std() > 1e-2
    torch.testing.assert_close(vitviz.load(path, heads=3)(images), expected, rtol=0, atol=1e-4)


def test_tutorial_model_loads_with_equal_logits(tmp_path: Path) -> None:
    theirs = of_the_guide(
        img_size=35, patch_size=5, num_transformer_layers=3, embedding_dim=12, mlp_size=29, num_heads=3, num_classes=7
    )
    tiny.randomise(theirs, 3)
    torch.save(theirs.state_dict(), path := tmp_path / "tutorial.pth")
    assert_equal_logits(path, theirs)
    with pytest.raises(ConvertError, match="Expected the number of heads"):
        vitviz.load(path)


def test_vit_pytorch_of_2022_loads_with_equal_logits(tmp_path: Path) -> None:
    theirs = VitPytorch(image=35, p=5, dim=19, depth=2, heads=3, head=11, hidden=23, classes=7).eval()
    tiny.randomise(theirs, 4)
    torch.save(theirs.state_dict(), path := tmp_path / "lucidrains.pth")
    assert_equal_logits(path, theirs)


def test_current_vit_pytorch_is_refused(tmp_path: Path) -> None:
    """Names and shapes of release 1.26.11."""
    dim, pixels, inner, hidden, classes = 19, 3 * 5 * 5, 33, 23, 7
    shapes: dict[str, tuple[int, ...]] = {"cls_token": (1, dim), "pos_embedding": (50, dim)}
    for name, width, outputs in (
        ("to_patch_embedding.1", pixels, None),
        ("to_patch_embedding.2", pixels, dim),
        ("to_patch_embedding.3", dim, None),
        ("transformer.norm", dim, None),
        ("transformer.layers.0.0.norm", dim, None),
        ("transformer.layers.0.0.to_out.0", inner, dim),
        ("transformer.layers.0.1.net.0", dim, None),
        ("transformer.layers.0.1.net.1", dim, hidden),
        ("transformer.layers.0.1.net.4", hidden, dim),
        ("mlp_head", dim, classes),
    ):
        shapes |= {f"{name}.weight": (outputs, width) if outputs else (width,), f"{name}.bias": (outputs or width,)}
    shapes["transformer.layers.0.0.to_qkv.weight"] = (3 * inner, dim)
    torch.save({name: torch.ones(shape) for name, shape in shapes.items()}, path := tmp_path / "today.pth")
    with pytest.raises(ConvertError, match=r"vit_pytorch .*norms the pixels of a patch before the projection"):
        vitviz.load(path, heads=3)
