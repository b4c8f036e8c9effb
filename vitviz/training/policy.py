"""TrivialAugment and RandAugment for a batch in which every image has its own operation and strength.

torchvision's classes give one operation to all images that they get at once. Here the images are sorted by operation
and each operation is done to all of its images in one go, which makes the papers' choice for each image cheap. What an
operation does to an image is what torchvision's does.

Shapes: k images in the batch, n of them with one operation, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from vitviz.compat import import_torchvision

BINS = 31  # steps of magnitude, in both policies
RAND_BIN = 9  # RandAugment's magnitude, torchvision's default
Numbers = npt.NDArray[np.float64]

MOVES = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
BLENDS = ("Brightness", "Color", "Contrast", "Sharpness")
OPERATIONS = ("Identity", *MOVES, *BLENDS, "Posterize", "Solarize", "AutoContrast", "Equalize")
_SIGNED = frozenset(MOVES + BLENDS)


def apply_policy(
    pixels: Tensor, policy: Literal["none", "trivial", "rand"], operation: Numbers, magnitude: Numbers, sign: Numbers
) -> Tensor:
    """One operation for each image.

    Args:
        pixels: (k, 3, H, W) uint8.
        policy: whose magnitudes: "trivial" (Müller and Hutter 2021, Wide) draws them, "rand" (Cubuk et al. 2020) has
            the same for all.
        operation, magnitude, sign: (k,) draws from 0 to 1.

    Returns:
        (k, 3, H, W) uint8.
    """
    if policy == "none":
        return pixels
    table = magnitudes(policy == "trivial", *pixels.shape[2:])
    number = (operation * len(OPERATIONS)).astype(np.int64)
    step = (magnitude * BINS).astype(np.int64) if policy == "trivial" else np.full(len(number), RAND_BIN)
    names = np.array(OPERATIONS)[number]
    strength = table[number, step] * np.where(np.isin(names, [*_SIGNED]) & (sign <= 0.5), -1.0, 1.0)
    return operate(pixels, names, strength)


def magnitudes(trivial: bool, height: int, width: int) -> Numbers:
    """(operations, bins): each operation's magnitudes from weak to strong, in its own unit, as torchvision has them."""

    def steps(most: float, least: float = 0.0) -> Numbers:
        return torch.linspace(least, most, BINS).double().numpy()

    blend, bits = steps(0.99 if trivial else 0.9), 6 if trivial else 4
    shear = steps(0.99 if trivial else 0.3)
    table = {
        "ShearX": shear,  # tangent of the angle
        "ShearY": shear,
        "TranslateX": steps(32.0 if trivial else 150.0 / 331.0 * width),  # pixels
        "TranslateY": steps(32.0 if trivial else 150.0 / 331.0 * height),
        "Rotate": steps(135.0 if trivial else 30.0),  # degrees
        **dict.fromkeys(BLENDS, blend),  # the factor is 1 more
        "Posterize": (8 - torch.arange(BINS) / ((BINS - 1) / bits)).round().double().numpy(),  # bits that are left
        "Solarize": steps(0.0, 1.0),  # share of white above which a pixel is inverted
    }
    return np.stack([table.get(name, np.zeros(BINS)) for name in OPERATIONS])


def operate(pixels: Tensor, names: npt.NDArray[np.str_], strength: Numbers) -> Tensor:
    """The operations of these names: (k, 3, H, W) uint8 -> (k, 3, H, W) uint8, names and strength (k,)."""
    rows = [np.flatnonzero(names == name) for name in OPERATIONS]
    order = np.concatenate(rows)
    sorted_ = pixels.index_select(0, torch.from_numpy(order).to(pixels.device))
    values = torch.from_numpy(strength[order]).to(pixels.device).view(-1, 1, 1, 1)
    counts = [len(one) for one in rows]
    parts = zip(OPERATIONS, sorted_.split(counts), values.split(counts), strict=True)
    done = [_OPERATIONS[name](part, value) if len(part) else part for name, part, value in parts]
    back = torch.from_numpy(order.argsort()).to(pixels.device)
    return torch.cat(done).index_select(0, back)


def _moved(pixels: Tensor, matrix: Tensor) -> Tensor:
    """Nearest pixel, black outside.

    matrix: (n, 2, 3) float64, from a place in the result to where its colour comes from; x first, in pixels from the
        image's centre.
    """
    height, width = pixels.shape[2:]
    matrix = matrix.float()
    y, x = (torch.arange(side, device=pixels.device) - (side - 1) / 2 for side in (height, width))
    places = torch.stack([x.expand(height, -1), y[:, None].expand(-1, width), torch.ones_like(x).expand(height, -1)], 2)
    half = matrix.new_tensor([width / 2, height / 2])
    grid = places.flatten(0, 1) @ (matrix.transpose(1, 2) / half)  # (H W, 3) @ (n, 3, 2) -> (n, H W, 2), from -1 to 1
    moved = F.grid_sample(pixels.float(), grid.view(-1, height, width, 2), "nearest", "zeros", align_corners=False)
    return moved.to(torch.uint8)


def _matrix(value: Tensor, *six: Tensor | float) -> Tensor:
    """(n, 2, 3), row by row, from numbers and (n, 1, 1, 1)."""
    columns = [one.flatten() if isinstance(one, Tensor) else torch.full_like(value, one).flatten() for one in six]
    return torch.stack(columns, dim=1).view(-1, 2, 3)


def _shear_x(pixels: Tensor, tangent: Tensor) -> Tensor:
    return _moved(pixels, _matrix(tangent, 1, tangent, tangent * pixels.shape[2] / 2, 0, 1, 0))  # the top row stays


def _shear_y(pixels: Tensor, tangent: Tensor) -> Tensor:
    return _moved(pixels, _matrix(tangent, 1, 0, 0, tangent, 1, tangent * pixels.shape[3] / 2))  # the left column stays


def _translate_x(pixels: Tensor, distance: Tensor) -> Tensor:
    return _moved(pixels, _matrix(distance, 1, 0, -distance.trunc(), 0, 1, 0))


def _translate_y(pixels: Tensor, distance: Tensor) -> Tensor:
    return _moved(pixels, _matrix(distance, 1, 0, 0, 0, 1, -distance.trunc()))


def _rotate(pixels: Tensor, degrees: Tensor) -> Tensor:
    cos, sin = degrees.deg2rad().cos(), degrees.deg2rad().sin()
    return _moved(pixels, _matrix(degrees, cos, -sin, 0, sin, cos, 0))


def _blend(image: Tensor, plain: Tensor, change: Tensor) -> Tensor:
    """`image` at the factor 1 + change, `plain` at the factor 0, cut off at 0 and 255 and rounded down."""
    factor = 1.0 + change
    return (image * factor.float()).add_(plain * (1.0 - factor).float()).clamp_(0, 255).to(torch.uint8)


def _brightness(image: Tensor, change: Tensor) -> Tensor:
    return (image * (1.0 + change).float()).clamp_(0, 255).to(torch.uint8)


def _grey(image: Tensor) -> Tensor:
    """Luma in whole numbers: (n, 3, H, W) -> (n, 1, H, W) float32."""
    red, green, blue = image.unbind(1)
    return red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).floor_()[:, None]


def _color(image: Tensor, change: Tensor) -> Tensor:
    return _blend(image, _grey(image), change)


def _contrast(image: Tensor, change: Tensor) -> Tensor:
    return _blend(image, _grey(image).mean((1, 2, 3), keepdim=True), change)


def _sharpness(image: Tensor, change: Tensor) -> Tensor:
    if min(image.shape[2:]) <= 2:
        return image
    kernel = torch.full((3, 1, 3, 3), 1 / 13, device=image.device)
    kernel[:, :, 1, 1] = 5 / 13
    smooth = image.float()
    smooth[:, :, 1:-1, 1:-1] = F.conv2d(image.float(), kernel, groups=3).round_()  # the rim stays as it is
    return _blend(image, smooth, change)


def _posterize(image: Tensor, bits: Tensor) -> Tensor:
    return image & (256 - 2 ** (8 - bits)).to(torch.uint8)


def _solarize(image: Tensor, share: Tensor) -> Tensor:
    return torch.where(image >= (255 * share).float().ceil().to(torch.uint8), ~image, image)


def _autocontrast(image: Tensor, _: Tensor) -> Tensor:
    import_torchvision()
    from torchvision.transforms.v2 import functional

    stretched: Tensor = functional.autocontrast(image)
    return stretched


def _equalize(image: Tensor, _: Tensor) -> Tensor:
    import_torchvision()
    from torchvision.transforms.v2 import functional

    equal: Tensor = functional.equalize(image)
    return equal


_OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Identity": lambda image, _: image,
    "ShearX": _shear_x,
    "ShearY": _shear_y,
    "TranslateX": _translate_x,
    "TranslateY": _translate_y,
    "Rotate": _rotate,
    "Brightness": _brightness,
    "Color": _color,
    "Contrast": _contrast,
    "Sharpness": _sharpness,
    "Posterize": _posterize,
    "Solarize": _solarize,
    "AutoContrast": _autocontrast,
    "Equalize": _equalize,
}
