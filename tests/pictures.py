"""Make photographs and geometries for the tests of preprocessing and drawing."""

import numpy as np
from image_files import random_rgb
from PIL import Image, ImageColor

from vitviz.images.geometry import Geometry

GH, GW = 3, 7  # grid of the drawn maps; different primes reveal a swapped axis


def photograph(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(random_rgb(height, width, seed))


def flat(width: int, height: int, level: int) -> Image.Image:
    return Image.new("RGB", (width, height), (level, level, level))


def has(picture: Image.Image, color: str) -> bool:
    return bool((np.asarray(picture) == ImageColor.getrgb(color)).all(-1).any())


def pixels(image: Image.Image) -> np.ndarray:
    """Return the pixels as integers: (height, width, 3)."""
    return np.asarray(image).astype(int)


def whole(width: int, height: int) -> Geometry:
    """Return the geometry of an input that shows the whole photograph."""
    return Geometry(image=(width, height), input=(GH * 16, GW * 16), frame=(0.0, 0.0, float(width), float(height)))


def inside(width: int = 120, height: int = 90) -> Geometry:
    """Return the geometry of a central crop, cut between pixels."""
    return Geometry(image=(width, height), input=(48, 112), frame=(20.3, 11.7, width - 18.2, height - 9.4))
