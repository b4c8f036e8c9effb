"""Photographs made of numbers, and what a model saw of them, for the tests of what is prepared and drawn."""

import numpy as np
from image_files import random_rgb
from PIL import Image, ImageColor

from vitviz.images.geometry import Geometry

GH, GW = 3, 7  # patches of the maps that are drawn; different primes: a swapped axis cannot hide


def photograph(width: int, height: int, seed: int = 0) -> Image.Image:
    """Nothing in it repeats: every pixel is another."""
    return Image.fromarray(random_rgb(height, width, seed))


def flat(width: int, height: int, level: int) -> Image.Image:
    return Image.new("RGB", (width, height), (level, level, level))


def has(picture: Image.Image, color: str) -> bool:
    """Whether any pixel has exactly this color."""
    return bool((np.asarray(picture) == ImageColor.getrgb(color)).all(-1).any())


def pixels(image: Image.Image) -> np.ndarray:
    """(height, width, 3), of a type that can be subtracted."""
    return np.asarray(image).astype(int)


def whole(width: int, height: int) -> Geometry:
    """The model saw all of the photograph and nothing else."""
    return Geometry(image=(width, height), input=(GH * 16, GW * 16), frame=(0.0, 0.0, float(width), float(height)))


def inside(width: int = 120, height: int = 90) -> Geometry:
    """The model saw the middle of the photograph, cut between pixels."""
    return Geometry(image=(width, height), input=(48, 112), frame=(20.3, 11.7, width - 18.2, height - 9.4))
