"""Describe attention in windows as a sparse matrix between the tokens of a stage (Liu et al. 2021, "Swin Transformer").

A windowed model has stages: the tokens of the first are the patches, and each later stage merges 2 x 2 tokens into one.
A token attends to the tokens of its window. Swin shifts the windows of every second block. SAM has one stage, pads the
windows at the border with zeros, and some blocks have one window, the whole grid. Tokens are in reading order, without
the shift, so token (row, column) covers the same square of the image in every block of its stage.

Shapes: B images, H heads of a block, n = gh x gw tokens of its stage, W windows of M tokens each.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from vitviz.formatting import short_repr


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows of one block.

    Args:
        stage: number of the stage, from 0.
        grid: (gh, gw), rows and columns of tokens.
        merges: whether the block first merges 2 x 2 tokens of the stage before.
        members: (W, M), the tokens of each window; n where padding fills a window.
    """

    stage: int
    grid: tuple[int, int]
    merges: bool
    members: Tensor

    @property
    def tokens(self) -> int:
        """Return n, the number of tokens of the stage."""
        return self.grid[0] * self.grid[1]

    @property
    def whole(self) -> Tensor:
        """Return which windows have no padding, (W,)."""
        return self.members.lt(self.tokens).all(1)

    @property
    def side(self) -> tuple[int, int]:
        """Return rows and columns of a window, all windows being equal."""
        window = self.members[int(self.whole.int().argmax())]
        rows = int((window % self.grid[1] == window[0] % self.grid[1]).sum())
        return (rows, len(window) // rows) if self.whole.any() else (math.isqrt(len(window)),) * 2

    @property
    def spacing(self) -> tuple[int, int]:
        """Return the distance between neighbors in a window, in rows and columns of the grid."""
        (rows, columns), window = self.side, self.members[int(self.whole.int().argmax())]
        down = int(window[columns] - window[0]) // self.grid[1] if rows > 1 else 1
        return down, int(window[1] - window[0]) if columns > 1 else 1

    def place_of(self, token: int) -> tuple[int, int]:
        """Return the window of a token, and its index there."""
        window, index = self.members.eq(token).nonzero()[0].tolist()
        return window, index

    def split(self, tokens: Tensor) -> Tensor:
        """Return the tokens of each window, zeros as padding: (B, n, ...) -> (B * W, M, ...)."""
        if self.members.numel() > self.tokens:
            tokens = torch.cat([tokens, torch.zeros_like(tokens[:, :1])], dim=1)
        return tokens[:, self.members].flatten(0, 1)

    def join(self, tokens: Tensor) -> Tensor:
        """Return tokens in reading order, without padding: (B * W, M, ...) -> (B, n, ...)."""
        order = self.members.flatten().argsort()[: self.tokens]
        return cast(Tensor, tokens.unflatten(0, (-1, len(self.members))).flatten(1, 2)[:, order])


@dataclass(frozen=True, eq=False)
class SparseAttention:
    """Attention of one block: a sparse matrix between the n tokens of its stage.

    Its rows sum to 1, except in windows with padding, which gets the rest.

    Args:
        probabilities: (B * W, H, M, M), from and to the tokens of each window.
        windows: the windows.
        weights: function that returns a query as weights over the tokens, (B, n).
    """

    probabilities: Tensor
    windows: Windows
    weights: Callable[[Any], Tensor]

    __repr__ = short_repr

    @property
    def shape(self) -> tuple[int, ...]:
        """Return (B, H, n, n), the shape of `dense()`."""
        tokens = self.windows.tokens
        return len(self.probabilities) // len(self.windows.members), self.probabilities.shape[1], tokens, tokens

    def row(self, query: Any = "mean") -> Tensor:
        """Return the attention from a patch (row, column) of the stage, or the mean over all: (B, H, n)."""
        return self._mix(query, self.probabilities)

    def column(self, key: Any = "mean") -> Tensor:
        """Return the attention from each token to a patch of the stage, or the mean over all patches: (B, H, n)."""
        return self._mix(key, self.probabilities.mT)

    def dense(self) -> Tensor:
        """Return the whole matrix, with zeros between windows: (B, H, n, n)."""
        batch, _, tokens, _ = self.shape
        places = torch.eye(tokens + 1, device=self.windows.members.device)[self.windows.members, :tokens]  # (W, M, n)
        windows = self.probabilities.unflatten(0, (batch, -1)).float()  # (B, W, H, M, M)
        return torch.einsum("bwhqk,wqm,wkn->bhmn", windows, places, places)

    def _mix(self, query: Any, matrices: Tensor) -> Tensor:
        weights = self.windows.split(self.weights(query)).float()  # (B * W, M)
        mixed = torch.einsum("bq,bhqk->bkh", weights, matrices.float())
        return self.windows.join(mixed).transpose(1, 2)  # (B, n, H) -> (B, H, n)
