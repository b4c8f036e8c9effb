"""Find photographs that occur twice: in two classes, or in both splits of a data set.

A photograph that is in both splits is learnt by heart and counted as a right answer; one in two classes cannot be
learnt. The same pixels are told by a hash of them. Near duplicates, such as a copy that was resized or saved again,
are told by a perceptual hash (Zauner 2010, "Implementation and Benchmarking of Perceptual Image Hash Functions") and
by a thumbnail of 8 x 8 pixels, which also compares colors. A copy that was mirrored, cut or recolored is not found.

Shapes: n photographs, training images first.
"""

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitviz.extras import extra

BITS = 16  # the perceptual hash is 16 x 16 of the lowest frequencies of 64 x 64 pixels
NEAR_BITS = 24
"""Bits of 256 in which a copy differs at most.

Of 1,000 photographs of the validation images of Imagenette and 256 everyday classes no two differed in fewer than 78;
copies saved at JPEG quality 30 or made half as large differed in up to 22. Only photographs that agree in one of 16
bands of bits are compared, as those do surely up to 15 bits, and up to 24 in four of five cases and more.
"""
NEAR_LEVELS = 6.0  # of 255, mean difference of thumbnails, whose mean level does not count
_ROWS = 2048  # photographs of one band that are compared with the others at once


@dataclass(frozen=True)
class Print:
    """The fingerprints of a photograph.

    Args:
        digest: of its size and pixels.
        bands: the perceptual hash, (16,) uint16.
        thumbnail: 8 x 8 pixels without their mean level, (192,) float32.
    """

    digest: bytes
    bands: NDArray[np.uint16]
    thumbnail: NDArray[np.float32]


def fingerprints(picture: Image.Image) -> Print:
    """Return the fingerprints of an upright RGB picture."""
    with extra("train"):
        import imagehash

    digest = hashlib.blake2b(f"{picture.size}".encode(), digest_size=16)
    digest.update(picture.tobytes())
    small = picture.resize((4 * BITS, 4 * BITS), Image.Resampling.BOX)
    bits = np.asarray(imagehash.phash(small, hash_size=BITS, highfreq_factor=4).hash, bool)  # (16, 16)
    levels = np.asarray(small.resize((8, 8), Image.Resampling.BOX), np.float32).reshape(-1)
    return Print(digest.digest(), np.packbits(bits, axis=1).view(np.uint16)[:, 0], levels - levels.mean())


def find_duplicates(prints: Sequence[Print], groups: Sequence[object]) -> list[tuple[int, int, int]]:
    """Return each photograph that is also in another group, with the first such: (first, its copy, bits that differ).

    Args:
        prints: n fingerprints.
        groups: n, split and class of each; copies within one group do no harm.

    Returns:
        Pairs in the order of the copies; -1 bits for the same pixels.
    """
    firsts: dict[bytes, dict[object, int]] = defaultdict(dict)  # digest -> the first photograph of each group
    found: dict[int, tuple[int, int]] = {}
    for index, (one, group) in enumerate(zip(prints, groups, strict=True)):
        equals = firsts[one.digest]
        if others := [other for where, other in equals.items() if where != group]:
            found[index] = others[0], -1
        equals.setdefault(group, index)
    single = [next(iter(equals.values())) for equals in firsts.values()]  # of the same pixels one is compared further
    for left, right, bits in _near([prints[index] for index in single]):
        first, copy = single[left], single[right]
        if groups[first] != groups[copy] and (first, bits) < found.get(copy, (len(prints), 0)):
            found[copy] = first, bits
    return [(first, copy, bits) for copy, (first, bits) in sorted(found.items())]


def _near(prints: Sequence[Print]) -> Iterator[tuple[int, int, int]]:
    """Yield pairs (one, a later one, bits that differ) whose hashes and thumbnails are near, some of them twice."""
    hashes = np.stack([one.bands for one in prints])  # (n, 16)
    thumbnails = np.stack([one.thumbnail for one in prints])  # (n, 192)
    signs = 1.0 - 2.0 * np.unpackbits(hashes.view(np.uint8), axis=1).astype(np.float32)  # (n, 256) of -1 and 1
    for band in hashes.T:
        order = np.argsort(band, kind="stable")
        starts = np.flatnonzero(np.diff(band[order], prepend=-1, append=-1))
        for start, end in itertools.pairwise(starts):
            alike = order[start:end]  # of one value of the band, in ascending order
            for at in range(0, len(alike) - 1, _ROWS):
                rows = alike[at : at + _ROWS]
                differ = (signs.shape[1] - signs[rows] @ signs[alike].T) / 2  # (k, m)
                for left, right in np.argwhere(differ <= NEAR_BITS):
                    one, other = int(rows[left]), int(alike[right])
                    if one < other and np.abs(thumbnails[one] - thumbnails[other]).mean() <= NEAR_LEVELS:
                        yield one, other, int(differ[left, right])
