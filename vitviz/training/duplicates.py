"""Find duplicate photographs in two classes, or in both splits of a data set.

A photograph in both splits can be memorised and then counts as right; a photograph in two classes cannot be learned.
Equal pixels have equal hashes. Near duplicates, such as resized or re-encoded copies, are found by a perceptual hash
(Zauner 2010, "Implementation and Benchmarking of Perceptual Image Hash Functions") and a thumbnail of 8 x 8 pixels,
which also compares colors. Mirrored, cropped or recolored copies are not found.

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
"""Maximum number of different bits, of 256, between copies.

Among 1,000 validation photographs of Imagenette and 256 everyday classes, no two differed in fewer than 78 bits; copies
saved at JPEG quality 30 or at half the size differed in up to 22. Only photographs that agree in one of 16 bands are
compared: always the case up to 15 different bits, and in at least four of five cases up to 24.
"""
NEAR_LEVELS = 6.0  # of 255, mean difference of thumbnails without their mean level
_ROWS = 2048  # photographs per comparison within a band


@dataclass(frozen=True)
class Print:
    """Fingerprints of a photograph.

    Args:
        digest: hash of size and pixels.
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
    """Return duplicates between groups: (first photograph, copy, number of different bits).

    Args:
        prints: n fingerprints.
        groups: n, split and class of each; copies within a group are ignored.

    Returns:
        Pairs in the order of the copies; -1 bits for the same pixels.
    """
    firsts: dict[bytes, dict[object, int]] = defaultdict(dict)  # digest -> the first photograph of each group
    duplicates: dict[int, tuple[int, int]] = {}  # copy -> its first photograph, different bits
    for index, (fingerprint, group) in enumerate(zip(prints, groups, strict=True)):
        equals = firsts[fingerprint.digest]
        if others := [other for other_group, other in equals.items() if other_group != group]:
            duplicates[index] = others[0], -1
        equals.setdefault(group, index)
    single = [next(iter(equals.values())) for equals in firsts.values()]  # one photograph of each pixel-equal set
    for left, right, bits in _near([prints[index] for index in single]):
        first, copy = single[left], single[right]
        if groups[first] != groups[copy] and (first, bits) < duplicates.get(copy, (len(prints), 0)):
            duplicates[copy] = first, bits
    return [(first, copy, bits) for copy, (first, bits) in sorted(duplicates.items())]


def _near(prints: Sequence[Print]) -> Iterator[tuple[int, int, int]]:
    """Yield pairs (earlier, later, different bits) with similar hashes and thumbnails; pairs may repeat."""
    hashes = np.stack([fingerprint.bands for fingerprint in prints])  # (n, 16)
    thumbnails = np.stack([fingerprint.thumbnail for fingerprint in prints])  # (n, 192)
    signs = 1.0 - 2.0 * np.unpackbits(hashes.view(np.uint8), axis=1).astype(np.float32)  # (n, 256) of -1 and 1
    for band in hashes.T:
        order = np.argsort(band, kind="stable")
        starts = np.flatnonzero(np.diff(band[order], prepend=-1, append=-1))
        for start, end in itertools.pairwise(starts):
            candidates = order[start:end]  # equal values of the band, in ascending order
            for at in range(0, len(candidates) - 1, _ROWS):
                rows = candidates[at : at + _ROWS]
                bits = (signs.shape[1] - signs[rows] @ signs[candidates].T) / 2  # (k, m)
                for left, right in np.argwhere(bits <= NEAR_BITS):
                    first, second = int(rows[left]), int(candidates[right])
                    if first < second and np.abs(thumbnails[first] - thumbnails[second]).mean() <= NEAR_LEVELS:
                        yield first, second, int(bits[left, right])
