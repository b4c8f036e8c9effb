"""Search greedily for the orders of patches with the best deletion and insertion AUC, as a reference for maps.

The patches are grouped into squares. Each round tries to remove each remaining square alone, and then removes those
whose removal lowers the probability most (for deletion) or least (for insertion). A map can still be better, because
the search is greedy and ranks squares instead of patches.

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

SQUARES = 64
"""Maximum number of squares. With more patches than this, a square has several."""
ROUNDS = 4
"""Number of rounds."""


def best_maps(
    model: ViT, images: Tensor, target: int, baseline: Drop
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return a map (gh, gw) that has the greedy order for deletion, and one for insertion.

    Args:
        model: a classifier in eval mode.
        images: (1, channels, H, W) normalised pixels.
        target: index of the class.
        baseline: replacement of removed patches.
    """
    masked = MaskedModel(model, images, baseline)
    squares = _squares(masked.grid)  # (U, n)
    signs = (1, -1)  # deletion removes the squares with the lowest probabilities first, insertion the highest
    orders: list[list[int]] = [[] for _ in signs]  # removed squares, first to last
    for count in visible_counts(len(squares), ROUNDS, 0)[1:]:
        remaining = [[square for square in range(len(squares)) if square not in order] for order in orders]
        # visible patches with one more square removed, (remaining squares, n) each
        tried = [squares[each].any(0) & ~squares[each] for each in remaining]
        rows = torch.cat(tried)  # equal rows run once
        if int(rows.sum(1).min()) < masked.least:  # the model cannot run without the last square
            probabilities = [torch.zeros(len(each)) for each in tried]
        else:
            outputs = masked.outputs(rows, torch.zeros(len(rows), dtype=torch.long))
            probabilities = [*outputs.softmax(1)[:, target].split([len(each) for each in tried])]
        for sign, order, each, values in zip(signs, orders, remaining, probabilities, strict=True):
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
