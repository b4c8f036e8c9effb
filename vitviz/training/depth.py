"""Stochastic depth whose draws do not depend on how a batch is divided (Huang et al. 2016).

An ordinary layer draws for the images that it sees, so that two processes, or one that runs its batch in parts, would
drop other branches than one process does with the whole batch. Here all branches of all images of a step are drawn at
once, from the step's own seed, and each part takes its images' columns.

Shapes: G images in a step, k of them in a part, L blocks with two branches each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from vitviz.layers import Block, DropPath
from vitviz.model import ViT


class Draws:
    """What the branches are multiplied by, for the images that run now.

    Args:
        rates: of each block, 0..1.
    """

    def __init__(self, rates: list[float]) -> None:
        self.rates = torch.tensor(rates).repeat_interleave(2)[:, None]  # (2 L, 1)
        self.part = torch.ones(len(self.rates), 0)  # (2 L, k)
        self._step = self.part  # (2 L, G)
        self.branches: list[Branch] = []

    def draw(self, seed: int, images: int, _done: float = 0.0) -> None:
        """For all images of a step: kept branches grow by 1 / (1 - rate), so that the mean stays."""
        numbers = torch.rand(len(self.rates), images, generator=torch.Generator().manual_seed(seed))
        self._step = (numbers >= self.rates) / (1.0 - self.rates)

    def take(self, images: slice, device: torch.device) -> None:
        """Those images of the step are next."""
        self.part = self._step[:, images].to(device, non_blocking=True)
        for branch in self.branches:
            branch.second = False  # also after a forward pass that failed half-way


class Branch(nn.Module):
    """In a block's place for stochastic depth: called for its attention, then for its MLP."""

    def __init__(self, draws: Draws, block: int) -> None:
        super().__init__()
        self.draws, self.block, self.second = draws, block, False

    def forward(self, x: Tensor) -> Tensor:
        """(k, N, D) -> (k, N, D)."""
        if not self.training:
            return x
        scale = self.draws.part[2 * self.block + self.second]
        self.second = not self.second
        return x * scale[:, None, None]


@contextmanager
def stochastic_depth(model: ViT) -> Iterator[Draws | None]:
    """Within, the model drops branches by `Draws`; `None` for a model that drops none."""
    blocks = [block for block in model.blocks if isinstance(block, Block)]
    own = [block.drop_path for block in blocks]
    rates = [one.rate for one in own if isinstance(one, DropPath)]
    if not any(rates):
        yield None
        return
    draws = Draws(rates)
    try:
        for index, block in enumerate(blocks):
            if rates[index] > 0.0:
                branch = Branch(draws, index).train(block.training)
                draws.branches.append(branch)
                block.drop_path = branch  # type: ignore[assignment]
        yield draws
    finally:
        for block, one in zip(blocks, own, strict=True):
            block.drop_path = one.train(block.training)


def set_dropout(model: ViT, dropout: float, path_dropout: float) -> None:
    """Give a model these probabilities, in its modules and in its config, which is saved with it."""
    model.config = replace(model.config, dropout=dropout, path_dropout=path_dropout)
    depth = model.config.depth
    for index, block in enumerate(model.blocks):
        assert isinstance(block, Block)  # for the type checker: a ModuleList holds any module
        block.drop_path.rate = path_dropout * index / max(1, depth - 1)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
