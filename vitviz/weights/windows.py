"""Describe attention in windows as a sparse matrix between the tokens of a stage (Liu et al. 2021, "Swin Transformer").

A windowed model has stages: the tokens of the first are the patches, and each later stage merges 2 x 2 tokens into one.
A token attends to the tokens of its window. Swin shifts the windows of every second block. SAM has one stage, pads the
windows at the border with zeros, and some blocks have one window, the whole grid. Tokens are in reading order, without
the shift, so token (row, column) covers the same square of the image in every block of its stage.

Shapes: B images, H heads of a block, n = gh x gw tokens of its stage, W windows of M tokens each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from vitviz.formatting import short_repr

MASKED = -100.0
"""Number that Swin adds to the logits of two tokens of a window that are not neighbours in the image."""


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows of one block.

    Args:
        stage: number of the stage, from 0.
        grid: (gh, gw), rows and columns of tokens.
        merges: whether the block first merges 2 x 2 tokens of the stage before.
        members: (W, M), the tokens of each window; n where padding fills a window.
        places: (M, 2), row and column of each token in its window.
        mask: (W, 1, M, M), `MASKED` between tokens that a shift brings into one window, else 0; `None` without shift.
    """

    stage: int
    grid: tuple[int, int]
    merges: bool
    members: Tensor
    places: Tensor
    mask: Tensor | None

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
        """Return the rows and columns of tokens of a window."""
        rows, columns = (self.places[-1] + 1).tolist()
        return rows, columns

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


def partition(
    stage: int, grid: tuple[int, int], window: tuple[int, int], device: Any, *, shifts: bool = False, merges: bool
) -> Windows:
    """Return the windows of a block; `shifts` moves them by half a window along sides with several."""
    shift = [side // 2 if shifts and whole > side else 0 for side, whole in zip(window, grid, strict=True)]

    def windows(of_tokens: Tensor) -> Tensor:  # (rows, columns) -> (W, M)
        rolled = of_tokens.roll([-steps for steps in shift], (0, 1)).unflatten(0, (-1, window[0]))
        squares: Tensor = rolled.unflatten(2, (-1, window[1])).transpose(1, 2)
        return squares.flatten(2).flatten(0, 1)

    padded = [-(-whole // side) * side for side, whole in zip(window, grid, strict=True)]
    rows, columns = torch.arange(padded[0], device=device)[:, None], torch.arange(padded[1], device=device)
    # The roll moves the first tokens of each axis into the last window.
    parts = windows((rows < shift[0]) * 2 + (columns < shift[1]))
    mask = (parts[:, None, :, None] != parts[:, None, None, :]) * MASKED if any(shift) else None
    places = torch.cartesian_prod(*(torch.arange(side, device=device) for side in window)).view(-1, 2)
    inside = (rows < grid[0]) & (columns < grid[1])
    members = windows(torch.where(inside, rows * grid[1] + columns, grid[0] * grid[1]))
    return Windows(stage, grid, merges, members, places, mask)


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
