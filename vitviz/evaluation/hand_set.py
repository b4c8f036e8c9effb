"""A small ViT whose weights are set by hand, so that the evidence for its classes is known exactly.

The patches of a picture are gray, red, green or blue. The class token attends to them with two heads. The first attends
to the blue patches, but its values are zero, so blue patches attract attention without any effect. The second head
attends equally to red and green patches; red ones raise the logit of the first class, and green ones that of the
second. The red patches are therefore the only evidence for the first class.

Shapes: D width, d head width, gh x gw patches.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitviz.model.config import Norms, ViTConfig
from vitviz.model.vit import ViT

GRID, PATCH = (5, 7), 4
KINDS = ("class token", "gray", "red", "green", "blue")
COUNTS = {"red": 2, "green": 2, "blue": 3}
"""Number of patches of each color in a picture; the others are gray."""
ATTENTION_LOGIT = 12.0  # of a colored patch; gray ones have 0
CLASS_WEIGHT = 8.0  # of the classifier
_ONE = len(KINDS)  # a token of kind k is 1 in channel k and -1 in channel k + _ONE, so that all have the same norm
_WIDTH, _HEAD = 2 * _ONE + 2, 2  # the last two channels hold what the classes read


@torch.no_grad()
def hand_set() -> ViT:
    """Return the model, with one block, two heads and two classes, in eval mode."""
    config = ViTConfig(
        image_size=(GRID[0] * PATCH, GRID[1] * PATCH), patch_size=PATCH, width=_WIDTH, depth=1, heads=2,
        head_width=_HEAD, mlp_width=1, classes=2, positions="none", norms=Norms(final="none"),
    )  # fmt: skip
    model = ViT(config).eval()
    for weight in model.parameters():
        weight.zero_()
    assert model.cls_token is not None
    assert model.head is not None
    assert model.patch_embed.proj.bias is not None
    kind = {name: _code(index) for index, name in enumerate(KINDS)}  # (D,) each
    model.cls_token.copy_(kind["class token"])
    model.patch_embed.proj.bias.copy_(kind["gray"])
    for channel, color in enumerate(("red", "green", "blue")):  # of a pixel, 0 or 1
        change = (kind[color] - kind["gray"]) / PATCH**2
        model.patch_embed.proj.weight[:, channel] = change[:, None, None]
    (block,) = model.blocks
    deviation = (2 * _ONE / _WIDTH) ** 0.5  # of each token, so that the layer norms change nothing
    for name, weight in block.named_parameters():
        if name in ("norm1.weight", "norm2.weight"):
            weight.fill_(deviation)
    read = {name: code / 2 for name, code in kind.items()}  # the dot product with a token of this kind is 1
    queries, keys, values = block.attn.qkv.weight.unflatten(0, (3, 2, _HEAD))  # (H, d, D) each
    queries[:, 0] = read["class token"]
    scaled = ATTENTION_LOGIT / block.attn.scale
    keys[0, 0] = scaled * read["blue"]
    keys[1, 0] = scaled * (read["red"] + read["green"])
    values[1] = torch.stack([read["red"], read["green"]])
    block.attn.proj.weight[-2:, _HEAD:] = torch.eye(2)  # the values of the second head
    model.head.weight[:, -2:] = CLASS_WEIGHT * torch.eye(2)
    return model


def picture(random: np.random.Generator) -> tuple[Tensor, NDArray[np.bool_]]:
    """Return a picture (1, 3, H, W) with colored patches at random places, and the pixels of the red ones (H, W)."""
    colors = np.zeros((GRID[0] * GRID[1], 3), np.float32)
    places = random.permutation(len(colors))[: sum(COUNTS.values())]
    colors[places, np.repeat(np.arange(3), [*COUNTS.values()])] = 1.0
    pixels = colors.reshape(*GRID, 3).repeat(PATCH, axis=0).repeat(PATCH, axis=1)  # (H, W, 3)
    return torch.from_numpy(pixels).permute(2, 0, 1)[None], pixels[..., 0] > 0


def _code(index: int) -> Tensor:
    """Return the token of a kind, (D,)."""
    code = torch.zeros(_WIDTH)
    code[index], code[index + _ONE] = 1.0, -1.0
    return code
