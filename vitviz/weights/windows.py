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
        heads_first: whether the axis of heads is in front of that of windows in the module's attention.
        rows: (M,), the row of each token of a window in the module's attention, where queries are pooled over 2 x 2
            tokens, so that four tokens share a row; `None` if tokens and rows are the same.
        columns: (M,), the column of each token of a window, if the module has them in another order.
        order: (W, n / W), see `Parts.orders`: of the tokens that leave the block, a quarter after pooled queries.
    """

    stage: int
    grid: tuple[int, int]
    merges: bool
    members: Tensor
    heads_first: bool = False
    rows: Tensor | None = None
    columns: Tensor | None = None
    order: Tensor | None = None

    @property
    def leaving(self) -> tuple[int, int]:
        """Return the rows and columns of the tokens that leave the block."""
        return self.grid if self.rows is None else (self.grid[0] // 2, self.grid[1] // 2)

    @property
    def call_shape(self) -> tuple[int, int, int]:
        """Return the numbers of windows, rows and columns of the module's attention."""
        count, size = self.members.shape
        return count, size if self.rows is None else size // 4, size

    @property
    def rearranges(self) -> bool:
        """Return whether the module's attention has another form than that between the tokens of each window."""
        return self.heads_first or self.rows is not None or self.columns is not None

    def arranged(self, tensor: Tensor, batch: int, *, rows: bool = True, columns: bool = False) -> Tensor:
        """Return queries, keys or matrices of the module's attention for the tokens of each window, a copy.

        Args:
            tensor: (B * W, H, m, x), or (B * H, W, m, x) with the heads first.
            batch: B.
            rows: whether the m entries are queries, not keys.
            columns: whether the x entries are keys, not channels.

        Returns:
            (B * W, H, M, x).
        """
        if self.heads_first:
            tensor = tensor.unflatten(0, (batch, -1)).transpose(1, 2).flatten(0, 1)
        own = self.columns if self.rows is None or not rows else self.rows
        if own is not None:
            tensor = tensor[:, :, own]
        return tensor[..., self.columns] if columns and self.columns is not None else tensor

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
