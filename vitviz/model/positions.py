"""Compute positions of patches: learned tables on another grid, fixed sines, rotations, relative position biases.

Shapes: B images, H heads, gh x gw patches, D width, d head width, P prefix tokens, N = P + gh * gw tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from vitviz.model.config import PositionTable


@dataclass(frozen=True, eq=False)
class Angles:
    """Positions of the patches for the blocks: one kind, according to the model.

    Tensors are (gh * gw, m), or (B, 1, K, m) if each image keeps its own K patches.

    Args:
        cos, sin: cosine and sine of each patch's rotation, m = d, if all blocks share their rotations.
        places: row and column of each patch, m = 2, for learned rotations and relative position biases, which differ
            between blocks.
        tables: L - 1 tables, m = D, added between blocks.
    """

    cos: Tensor | None = None
    sin: Tensor | None = None
    places: Tensor | None = None
    tables: tuple[Tensor, ...] = ()

    @property
    def rotation(self) -> tuple[Tensor, Tensor] | None:
        """Return cosine and sine of each patch's rotation, if all blocks share them."""
        return None if self.cos is None or self.sin is None else (self.cos, self.sin)

    def keep(self, patches: Tensor) -> Angles:
        """Return the positions of the patches that each image keeps, by index (B, K): (n, m) -> (B, 1, K, m)."""
        return self._map(lambda values: values[patches][:, None])

    def image(self, index: int) -> Angles:
        """Return the positions in one image, if each image keeps its own patches; else all."""
        return self._map(lambda values: values[index : index + 1] if values.ndim == 4 else values)

    def _map(self, change: Callable[[Tensor], Tensor]) -> Angles:
        cos, sin, places = (None if values is None else change(values) for values in (self.cos, self.sin, self.places))
        return replace(self, cos=cos, sin=sin, places=places, tables=tuple(map(change, self.tables)))


def sincos_positions(grid: tuple[int, int], width: int, temperature: float = 10_000.0) -> Tensor:
    """Return fixed two-dimensional positions (1, gh * gw, D): a quarter each of sin x, cos x, sin y, cos y.

    As in Chen et al. 2021 (MoCo v3) and Beyer et al. 2022, "Better plain ViT baselines for ImageNet-1k".
    """
    y, x = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")  # (gh, gw)
    quarter = width // 4
    frequency = temperature ** (-torch.arange(quarter) / max(1, quarter - 1))  # (D / 4,)
    y, x = (axis.flatten()[:, None].float() * frequency for axis in (y, x))  # (gh * gw, D / 4)
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1)[None]


def sincos1d_positions(
    grid: tuple[int, int], width: int, temperature: float = 10_000.0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return fixed positions in reading order (1, gh * gw, D): alternating sine and cosine, as for text.

    Vaswani et al. 2017, "Attention Is All You Need", section 3.5. The patch one row below is gw positions away. In
    float32, the positions of 1,500 patches have errors of 1e-4.
    """
    place = torch.arange(grid[0] * grid[1])[:, None].to(dtype)  # (gh * gw, 1)
    angles = place * temperature ** (-torch.arange(width // 2).to(dtype) * 2 / width)  # (gh * gw, D / 2)
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[None]  # (gh * gw, D / 2, 2) -> (1, gh * gw, D)


FIXED = {"sincos": sincos_positions, "sincos1d": sincos1d_positions}
"""Fixed positions computed from the grid, by name in `ViTConfig.positions`."""


def resize_positions(table: Tensor, old: tuple[int, int], new: tuple[int, int], settings: PositionTable) -> Tensor:
    """Interpolate learned positions to another grid: (1, oh * ow, D) -> (1, nh * nw, D).

    `table` may also stack L tables, (L, oh * ow, D).
    """
    image = table.float().unflatten(1, old).permute(0, 3, 1, 2)  # (1, D, oh, ow)
    size = (max(new),) * 2 if settings.crop else new
    corners, antialias = settings.corners or None, settings.antialias
    image = F.interpolate(image, size=size, mode=settings.mode, align_corners=corners, antialias=antialias)
    image = image[..., : new[0], : new[1]]  # (1, D, nh, nw)
    return image.flatten(2).transpose(1, 2).to(table.dtype)  # (1, nh * nw, D)


def resize_biases(table: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Resize a relative position bias table to another grid by bilinear interpolation: (R, H) -> (R', H)."""
    rows, columns = (2 * side - 1 for side in old)
    image = table[: rows * columns].T.reshape(1, -1, rows, columns)  # (1, H, 2 oh - 1, 2 ow - 1)
    image = F.interpolate(image, [2 * side - 1 for side in new], mode="bilinear")
    return torch.cat([image.flatten(2)[0].T, table[rows * columns :]])


def image_places(grid: tuple[int, int]) -> Tensor:
    """Return (row, column) of each patch's centre, (gh * gw, 2), relative to the image: -1..1 for any grid (DINOv3)."""
    return _places(*((torch.arange(count) + 0.5) / count * 2 - 1 for count in grid))


def index_places(grid: tuple[int, int], scaled: tuple[int, int] | None = None, offset: float = 0.0) -> Tensor:
    """Return (row, column) of each patch, (gh * gw, 2), counted from `offset`; `scaled` to another grid (EVA-02)."""
    sizes = zip(grid, scaled or grid, strict=True)
    return _places(*((torch.arange(count) + offset) / count * own for count, own in sizes))


def _places(y: Tensor, x: Tensor) -> Tensor:
    return torch.stack(torch.meshgrid(y, x, indexing="ij"), dim=-1).flatten(0, 1)  # (gh), (gw) -> (gh * gw, 2)


def rotary_rates(head_width: int, base: float) -> Tensor:
    """Return the rotation rates (frequencies) for row and column, (2, 1, d / 2): base ** (-4 i / d).

    The first half of the pairs of channels rotates with the row and the second with the column: Siméoni et al. 2025
    (DINOv3), Fang et al. 2024 (EVA-02), after Su et al. 2021 (RoFormer).
    """
    rates = base ** -(torch.arange(head_width // 4) * 4 / head_width)  # (d / 4,)
    zeros = torch.zeros_like(rates)
    return torch.stack([torch.cat([rates, zeros]), torch.cat([zeros, rates])])[:, None]


def rotary_angles(places: Tensor, rates: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of each patch's rotation: (..., n, 2), (2, H, d / 2) -> (..., H, n, d) each.

    The second half of the channels, which forms pairs with the first, has the same angles. Heo et al. 2024, "Rotary
    Position Embedding for Vision Transformer": with learned rates, an angle depends on both row and column.
    """
    angles = places[..., :1] * rates[0, :, None] + places[..., 1:] * rates[1, :, None]  # (..., H, n, d / 2)
    angles = angles.repeat(*(1,) * (angles.ndim - 1), 2)
    return angles.cos(), angles.sin()


def wide(x: Tensor) -> Tensor:
    """Convert a half-precision tensor to float32; return others unchanged."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor], class_angle: Tensor | None = None) -> Tensor:
    """Rotate the patch tokens of (B, H, N, d) by `rotation`, and the class token by `class_angle` (d / 2), if given."""
    count = rotation[0].shape[-2]
    prefix, patches = x.split([x.shape[2] - count, count], dim=2)
    if class_angle is not None:
        turn = wide(class_angle).repeat(2)[None]  # (1, d)
        prefix = torch.cat([_turned(prefix[:, :, :1], (turn.cos(), turn.sin())), prefix[:, :, 1:]], dim=2)
    return torch.cat([prefix, _turned(patches, rotation)], dim=2)


def _turned(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = (values.to(x) for values in rotation)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def relative_places(grid: tuple[int, int], table: tuple[int, int]) -> Tensor:
    """Return (row, column) of each patch, (gh * gw, 2), in units of a table of relative positions for another grid.

    Two patches that are m rows apart differ by m (2 th - 1) / (2 gh - 1), so the bilinear interpolation in
    `relative_bias` equals a table resized to 2 gh - 1 rows, as in transformers.
    """
    sizes = zip(grid, table, strict=True)
    return _places(*(torch.arange(count) * ((2 * own - 1) / (2 * count - 1)) for count, own in sizes))


def relative_bias(table: Tensor, grid: tuple[int, int], places: Tensor, prefix: int) -> Tensor:
    """Return the relative position bias of each pair of tokens: (1, H, N, N), or (B, H, N, N) with `places` by image.

    Bao et al. 2022, "BEiT: BERT Pre-Training of Image Transformers".

    Args:
        table: ((2 th - 1) * (2 tw - 1) + 3, H): one row for each difference query - key of rows and columns, then
            one row each for prefix to patch, patch to prefix and prefix to prefix, unless the model has no prefix.
        grid: (th, tw).
        places: `relative_places`.
        prefix: P.
    """
    rows, columns = (2 * side - 1 for side in grid)
    table = wide(table)
    image = table[: rows * columns].T.reshape(1, -1, rows, columns)  # (1, H, 2 th - 1, 2 tw - 1)
    offsets = places[..., :, None, :] - places[..., None, :, :]  # (n, n, 2) or (B, 1, n, n, 2)
    reach = torch.tensor([max(1, side - 1) for side in grid], device=places.device)
    at = (offsets / reach).flip(-1).flatten(0, -4) if offsets.ndim > 3 else (offsets / reach).flip(-1)[None]  # x, y
    image, at = image.expand(at.shape[0], -1, -1, -1), at.to(image)
    # Clamped places need no padding, whose mode "border" PyTorch before 2.13 does not have on MPS.
    bias = F.grid_sample(image, at.clamp(-1, 1), align_corners=True)  # (1 or B, H, n, n)
    if prefix:
        to_patch, from_patch, within = table[rows * columns :, None, :, None, None]  # (1, H, 1, 1) each
        shape = (*bias.shape[:2], prefix)
        bias = torch.cat([from_patch.expand(*bias.shape[:3], prefix), bias], dim=3)  # (1 or B, H, n, N)
        top = [within.expand(*shape, prefix), to_patch.expand(*shape, bias.shape[2])]
        bias = torch.cat([torch.cat(top, dim=3), bias], dim=2)  # (1 or B, H, N, N)
    return bias
