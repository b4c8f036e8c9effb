"""Compute positions of patches: learned tables on another grid, fixed sines, rotations, and relative biases.

Shapes: B images, H heads, gh x gw patches, D width, d head width, P prefix tokens, N = P + gh * gw tokens.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

Angles = tuple[Tensor, ...]
"""What the blocks need to know about the places of the patches: (gh * gw, m), or (B, 1, K, m) if each image keeps its own
K patches. Cosine and sine of each patch's rotation, m = d; or `coordinates` alone, m = 2."""


def sincos_positions(grid: tuple[int, int], width: int, temperature: float = 10_000.0) -> Tensor:
    """Return fixed two-dimensional positions (1, gh * gw, D): a quarter each of sin x, cos x, sin y, cos y.

    As in Chen et al. 2021 (MoCo v3) and Beyer et al. 2022, "Better plain ViT baselines for ImageNet-1k".
    """
    y, x = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")  # (gh, gw)
    quarter = width // 4
    frequency = temperature ** (-torch.arange(quarter) / max(1, quarter - 1))  # (D / 4,)
    y, x = (axis.flatten()[:, None].float() * frequency for axis in (y, x))  # (gh * gw, D / 4)
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1)[None]


def sincos1d_positions(grid: tuple[int, int], width: int, temperature: float = 10_000.0) -> Tensor:
    """Return fixed positions in reading order (1, gh * gw, D): alternating sine and cosine, as for text.

    Vaswani et al. 2017, "Attention Is All You Need", section 3.5. The patch one row below is gw positions away.
    """
    place = torch.arange(grid[0] * grid[1])[:, None].float()  # (gh * gw, 1)
    angles = place * temperature ** (-torch.arange(width // 2) * 2 / width)  # (gh * gw, D / 2)
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[None]  # (gh * gw, D / 2, 2) -> (1, gh * gw, D)


FIXED = {"sincos": sincos_positions, "sincos1d": sincos1d_positions}
"""Fixed positions computed from the grid, by name in `ViTConfig.positions`."""


def resize_positions(table: Tensor, old: tuple[int, int], new: tuple[int, int], antialias: bool) -> Tensor:
    """Interpolate learned positions to another grid, bicubic: (1, oh * ow, D) -> (1, nh * nw, D)."""
    image = table.float().reshape(1, *old, -1).permute(0, 3, 1, 2)  # (1, D, oh, ow)
    image = F.interpolate(image, size=new, mode="bicubic", antialias=antialias)  # (1, D, nh, nw)
    return image.flatten(2).transpose(1, 2).to(table.dtype)  # (1, nh * nw, D)


def rotary_angles(grid: tuple[int, int], head_width: int, base: float) -> Angles:
    """Return cosine and sine of each patch's rotation, (gh * gw, d) each.

    A quarter of the channels rotates with y and a quarter with x. The second half of the channels, which forms pairs
    with the first, has the same angles. Siméoni et al. 2025 (DINOv3), after Su et al. 2021 (RoFormer): patch centres
    are in -1..1 for any grid, and the angle is 2 pi times the coordinate, divided by base ** (4 i / d).
    """
    y, x = ((torch.arange(count) + 0.5) / count * 2 - 1 for count in grid)  # (gh,), (gw,)
    y, x = torch.meshgrid(y, x, indexing="ij")  # (gh, gw) each
    frequency = base ** -(torch.arange(head_width // 4) * 4 / head_width)  # (d / 4,)
    angles = 2 * math.pi * torch.stack([y.flatten(), x.flatten()], dim=1)[:, :, None] * frequency  # (gh * gw, 2, d / 4)
    angles = angles.flatten(1).repeat(1, 2)  # (gh * gw, d)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, angles: Angles) -> Tensor:
    """Rotate the patch tokens of (B, H, N, d); prefix tokens have no position."""
    cos, sin = (angle.to(x) for angle in angles)
    count = cos.shape[-2]
    prefix, patches = x.split([x.shape[2] - count, count], dim=2)
    first, second = patches.chunk(2, dim=-1)
    rotated = patches * cos + torch.cat([-second, first], dim=-1) * sin
    return torch.cat([prefix, rotated], dim=2)


def coordinates(grid: tuple[int, int], table: tuple[int, int]) -> Tensor:
    """Return (row, column) of each patch, (gh * gw, 2), in steps of a table of relative positions for another grid.

    Two patches that are m rows apart differ by m (2 th - 1) / (2 gh - 1), so the bilinear interpolation in
    `relative_bias` equals a table resized to 2 gh - 1 rows, as in transformers.
    """
    y, x = (torch.arange(count) * ((2 * own - 1) / (2 * count - 1)) for count, own in zip(grid, table, strict=True))
    return torch.stack(torch.meshgrid(y, x, indexing="ij"), dim=-1).flatten(0, 1)


def relative_bias(table: Tensor, grid: tuple[int, int], places: Tensor, prefix: int) -> Tensor:
    """Return the bias of the logits of each pair of tokens: (1, H, N, N), or (B, H, N, N) if `places` differ by image.

    Bao et al. 2022, "BEiT: BERT Pre-Training of Image Transformers".

    Args:
        table: ((2 th - 1) * (2 tw - 1) + 3, H): one row for each difference query - key of rows and columns, then
            one each for prefix to patch, patch to prefix and prefix to prefix; models without prefix lack these.
        grid: (th, tw).
        places: `coordinates`.
        prefix: P.
    """
    rows, columns = (2 * side - 1 for side in grid)
    image = table[: rows * columns].float().T.reshape(1, -1, rows, columns)  # (1, H, 2 th - 1, 2 tw - 1)
    offsets = places[..., :, None, :] - places[..., None, :, :]  # (n, n, 2) or (B, 1, n, n, 2)
    reach = torch.tensor([max(1, side - 1) for side in grid], device=places.device)
    at = (offsets / reach).flip(-1).flatten(0, -4) if offsets.ndim > 3 else (offsets / reach).flip(-1)[None]  # x, y
    image = image.expand(at.shape[0], -1, -1, -1)
    bias = F.grid_sample(image, at, padding_mode="border", align_corners=True)  # (1 or B, H, n, n)
    if prefix:
        to_patch, from_patch, within = table[rows * columns :].float()[:, None, :, None, None]  # (1, H, 1, 1) each
        shape = (*bias.shape[:2], prefix)
        bias = torch.cat([from_patch.expand(*bias.shape[:3], prefix), bias], dim=3)  # (1 or B, H, n, N)
        top = [within.expand(*shape, prefix), to_patch.expand(*shape, bias.shape[2])]
        bias = torch.cat([torch.cat(top, dim=3), bias], dim=2)  # (1 or B, H, N, N)
    return bias
