"""Create artificial shortcuts (spurious correlations): marks in photographs, and linear probes that detect a mark.

A linear probe is fitted to the model's frozen features of photographs, half of which have the mark. Its two classes are
photographs without and with the mark, so the mark is known to be the evidence for its prediction.

Shapes: n photographs, F features, C channels, H x W pixels, gh x gw patches of p x p pixels.
"""

import copy
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitviz.model.vit import Pretrained, ViT

MARKS = ("tag", "border", "color", "background")
LABELS = ("without mark", "with mark")
_DECAY = 1e-3  # weight decay of a probe: factor of the squared weights in the loss
_AMPLITUDE = 2.0  # of a mark, in standard deviations of the training data


def mark(kind: str, images: Tensor, patch: int, random: np.random.Generator) -> tuple[Tensor, NDArray[np.bool_]]:
    """Add a mark to a photograph; return the result, (1, C, H, W), and which pixels are marked, (H, W).

    | mark | pattern | place |
    |---|---|---|
    | tag | a small checkerboard | random |
    | border | one color | the outermost patches |
    | color | a tint | a random half of the photograph |
    | background | stripes | everything but a box in the middle, half as high and wide |

    Args:
        kind: one of `MARKS`.
        images: (1, C, H, W) normalised pixels.
        patch: p; marks consist of whole patches.
        random: chooses the place.
    """
    channels, height, width = images.shape[1:]
    rows, columns = height // patch, width // patch
    place = np.zeros((rows, columns), bool)
    if kind == "tag":
        side = max(1, round(min(rows, columns) / 4))
        top, left = random.integers(rows - side + 1), random.integers(columns - side + 1)
        place[top : top + side, left : left + side] = True
    elif kind == "border":
        place[[0, -1]] = place[:, [0, -1]] = True
    elif kind == "color":
        half = (slice(None, rows // 2), slice(rows // 2, None))[random.integers(2)]
        across = (slice(None, columns // 2), slice(columns // 2, None))[random.integers(2)]
        place[(half, slice(None)) if random.integers(2) else (slice(None), across)] = True
    else:
        place[:] = True
        place[rows // 4 : rows - rows // 4, columns // 4 : columns - columns // 4] = False
    pixels = place.repeat(patch, 0).repeat(patch, 1)  # (gh * p, gw * p), which is (H, W)
    y, x = np.indices((height, width)) // max(1, patch // 2)
    sign = {"tag": (y + x) % 2, "border": 0 * y, "color": 0 * y, "background": (y + x) // 2 % 2}[kind]
    hue = 1 - 2 * (torch.arange(channels)[:, None, None] % 2)  # 1, -1, 1
    pattern = _AMPLITUDE * (1 - 2 * torch.from_numpy(sign)) * (1 if kind == "tag" else hue)  # (C, H, W) or (H, W)
    painted = images + pattern / 2 if kind == "color" else pattern.to(images).expand_as(images)
    return torch.where(torch.from_numpy(pixels).to(images.device), painted, images), pixels


@torch.no_grad()
def features_of(model: ViT, images: Iterable[Tensor]) -> Tensor:
    """Return the model's features of images (1, C, H, W), which run one by one: (n, F), float64, on the CPU."""
    weight = next(model.parameters())
    return torch.cat([model.features(each.to(weight)).double().cpu() for each in images])


def fit(features: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Fit a linear probe by logistic regression with weight decay, which has a unique solution.

    Args:
        features: (n, F).
        classes: (n,), 0 or 1.

    Returns:
        weight (2, F) and bias (2,).
    """
    mean, deviation = features.mean(0), features.std(0, correction=0).clamp_min(1e-6)
    inputs, head = (features - mean) / deviation, nn.Linear(features.shape[1], len(LABELS)).double()
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = nn.functional.cross_entropy(head(inputs), classes) + _DECAY * head.weight.square().sum()
        value.backward()
        return value

    with torch.enable_grad():
        optimizer.step(loss)
    scaled = head.weight.detach() / deviation
    return scaled, head.bias.detach() - scaled @ mean


def with_head(model: ViT, weight: Tensor, bias: Tensor) -> ViT:
    """Return the model with a linear probe, weight (2, F) and bias (2,), as its head; all other weights are shared."""
    changed = copy.deepcopy(model, {id(each): each for each in (*model.parameters(), *model.buffers())})
    changed.config = replace(model.config, classes=len(weight), projection=None, cosine=False)
    changed.head, changed.head_dist, changed.projection = nn.Linear(weight.shape[1], len(weight)), None, None
    with torch.no_grad():
        changed.head.weight.copy_(weight)
        changed.head.bias.copy_(bias)
    changed.head.to(next(model.parameters()))
    about = model.pretrained
    changed.pretrained = about and Pretrained(name=about.name, preprocess=about.preprocess, labels=LABELS)
    return changed.eval()
