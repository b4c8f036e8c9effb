"""Check that state dicts of models from tutorials load with equal logits: Bourke's, and vit_pytorch's as of 2022."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from documents import blocks
from timm_models import assert_equal
from torch import Tensor, nn

import vitviz
from vitviz.weights.checks import ConvertError


def of_the_guide(**sizes: int) -> nn.Module:
    names: dict[str, type[nn.Module]] = {}
    exec(compile(blocks("docs/guide/textbook.md", "python")[0], "textbook", "exec"), names)
    return names["ViT"](**sizes).eval()


class PreNorm(nn.Module):
    def __init__(self, dim: int, fn: nn.Module) -> None:
        super().__init__()
        self.norm, self.fn = nn.LayerNorm(dim), fn

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fn(self.norm(x))
        return out


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, head: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * heads * head, bias=False)
        self.to_out = nn.Sequential(nn.Linear(heads * head, dim), nn.Dropout())

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.to_qkv(x).chunk(3, dim=-1))
        weights = (q @ k.transpose(2, 3) * q.shape[-1] ** -0.5).softmax(-1)
        out: Tensor = self.to_out((weights @ v).transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        parts = nn.Linear(dim, hidden), nn.GELU(), nn.Dropout(), nn.Linear(hidden, dim), nn.Dropout()
        self.net = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out


class Pixels(nn.Module):
    """Cut patches into vectors of p x p pixels of 3 channels, in einops' order (p1 p2 c)."""

    def __init__(self, p: int) -> None:
        super().__init__()
        self.p = p

    def forward(self, images: Tensor) -> Tensor:
        p, (batch, channels, height, width) = self.p, images.shape
        cut = images.reshape(batch, channels, height // p, p, width // p, p)
        return cut.permute(0, 2, 4, 3, 5, 1).reshape(batch, -1, p * p * channels)


class VitPytorch(nn.Module):
    """Vision Transformer of vit_pytorch as of 2022."""

    def __init__(self, image: int, p: int, dim: int, depth: int, heads: int, head: int, hidden: int, classes: int):
        super().__init__()
        self.to_patch_embedding = nn.Sequential(Pixels(p), nn.Linear(3 * p * p, dim))
        self.pos_embedding = nn.Parameter(torch.randn(1, (image // p) ** 2 + 1, dim))
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim))
        self.transformer = nn.Module()
        self.transformer.layers = nn.ModuleList(
            nn.ModuleList([PreNorm(dim, Attention(dim, heads, head)), PreNorm(dim, FeedForward(dim, hidden))])
            for _ in range(depth)
        )
        self.mlp_head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, classes))

    def forward(self, images: Tensor) -> Tensor:
        x = self.to_patch_embedding(images)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embedding
        for attention, feed_forward in self.transformer.layers:
            x = x + attention(x)
            x = x + feed_forward(x)
        out: Tensor = self.mlp_head(x[:, 0])
        return out


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
