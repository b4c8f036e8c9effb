"""Find orders of the patches that are better than those of maps, by removing greedily.

In each of a few rounds, every square that is left is removed alone, and those are removed that lower the probability
most (for deletion) or least (for insertion). A map can be better than these orders, which rank squares, not patches.

Shapes: n = gh x gw patches, U squares of patches.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitviz.analysis.interventions import Drop
from vitviz.evaluation.faithfulness import visible_counts
from vitviz.evaluation.masking import MaskedModel
from vitviz.model.vit import ViT

SQUARES, ROUNDS = 64, 4
"""Maximum number of squares, and rounds of removing. With more patches, a square has several."""


def best_maps(
    model: ViT, images: Tensor, target: int, baseline: Drop
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return maps (gh, gw) in the greedy order for deletion, and for insertion.

    Args:
        model: a classifier in eval mode.
        images: (1, channels, H, W) normalised pixels.
        target: index of the class.
        baseline: replacement of removed patches.
    """
    masked = MaskedModel(model, images, baseline)
    squares = _squares(masked.grid)  # (U, n)
    signs = (1, -1)  # of the probabilities by which squares are sorted: lowest first, and highest first
    orders: list[list[int]] = [[] for _ in signs]  # removed squares, first to last
    for count in visible_counts(len(squares), ROUNDS, 0)[1:]:
        left = [[square for square in range(len(squares)) if square not in order] for order in orders]
        # (squares that are left, n) each: all but one of them
        tried = [squares[each].any(0) & ~squares[each] for each in left]
        rows = torch.cat(tried)  # equal rows run once
        if int(rows.sum(1).min()) < masked.least:  # one square is left, without which the model cannot run
            probabilities = [torch.zeros(len(each)) for each in tried]
        else:
            outputs = masked.outputs(rows, torch.zeros(len(rows), dtype=torch.long))
            probabilities = [*outputs.softmax(1)[:, target].split([len(each) for each in tried])]
        for sign, order, each, values in zip(signs, orders, left, probabilities, strict=True):
            ranked = (sign * values).argsort(stable=True)[: len(each) - count]
            order += [each[index] for index in ranked.tolist()]
    maps = []
    for sign, order in zip(signs, orders, strict=True):
        places = torch.zeros(len(squares), dtype=torch.float64)
        places[order] = torch.arange(len(order), dtype=torch.float64)
        scores = (squares.double() * -sign * places[:, None]).sum(0)  # (n,); insertion shows the last ones first
        maps.append(np.asarray(scores.unflatten(0, masked.grid)))
    return maps[0], maps[1]


def _squares(grid: tuple[int, int]) -> Tensor:
    """Return the patches of each square, (U, n) bools; the last squares of rows and columns may be smaller."""
    side = 1
    while -(-grid[0] // side) * -(-grid[1] // side) > SQUARES:
        side += 1
    rows, columns = torch.arange(grid[0]) // side, torch.arange(grid[1]) // side
    index = (rows[:, None] * (int(columns[-1]) + 1) + columns).flatten()  # (n,)
    return index == torch.arange(int(index.max()) + 1)[:, None]
