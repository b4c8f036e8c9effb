"""Map patches back to the pixels of the photograph.

Boxes are (left, top, right, bottom) in pixels of the upright photograph: x runs right, y runs down, and pixel (0, 0)
covers the square from (0, 0) to (1, 1). Positions in the patch grid are (row, column) from the top left.
"""

from bisect import bisect_right
from dataclasses import dataclass, replace

from vitviz.images.limits import ImageError

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Geometry:
    """Position of a model's input in the upright photograph.

    Args:
        image: (width, height) of the photograph in pixels.
        input: (height, width) of the model's input in pixels.
        frame: box of the whole input in the photograph; extends beyond the photograph if padded.
    """

    image: tuple[int, int]
    input: tuple[int, int]
    frame: Box

    def __post_init__(self) -> None:
        left, top, right, bottom = self.frame
        if min(*self.image, *self.input) < 1 or not (left < right and top < bottom):
            raise ImageError(
                f"Expected positive sizes and a frame (left, top, right, bottom), got {self}. Use Preprocess."
            )

    @property
    def seen(self) -> Box:
        """Return the visible box of the photograph: the frame without padding."""
        left, top, right, bottom = self.frame
        return max(left, 0.0), max(top, 0.0), min(right, float(self.image[0])), min(bottom, float(self.image[1]))

    def rescaled(self, size: tuple[int, int]) -> "Geometry":
        """Return the geometry of the same photograph at another (width, height)."""
        fx, fy = size[0] / self.image[0], size[1] / self.image[1]
        left, top, right, bottom = self.frame
        return replace(self, image=size, frame=(left * fx, top * fy, right * fx, bottom * fy))

    def patch_box(self, row: int, col: int, grid: tuple[int, int]) -> Box:
        """Return the box of patch (row, col) of a grid (gh, gw); neighbours share edges, padding lies outside."""
        gh, gw = _check_grid(grid)
        if not (0 <= row < gh and 0 <= col < gw):
            raise ImageError(
                f"Expected a patch in the grid of {gh} rows and {gw} columns, got ({row}, {col}). Count from 0."
            )
        left, top, right, bottom = self.frame
        return (
            _edge(left, right, col, gw),
            _edge(top, bottom, row, gh),
            _edge(left, right, col + 1, gw),
            _edge(top, bottom, row + 1, gh),
        )

    def patch_at(self, x: float, y: float, grid: tuple[int, int]) -> tuple[int, int] | None:
        """Return the patch (row, col) at point (x, y) of the photograph, or None outside the visible part."""
        gh, gw = _check_grid(grid)
        left, top, right, bottom = self.seen
        if not (left <= x < right and top <= y < bottom):
            return None
        # Search the edges of patch_box, so that both agree exactly.
        row = bisect_right(range(gh), y, key=lambda i: _edge(self.frame[1], self.frame[3], i, gh)) - 1
        col = bisect_right(range(gw), x, key=lambda i: _edge(self.frame[0], self.frame[2], i, gw)) - 1
        return row, col


def _edge(start: float, end: float, index: int, count: int) -> float:
    """Return edge `index` of count + 1 edges from start to end, exact at both ends."""
    return end if index == count else start + (end - start) * index / count


def _check_grid(grid: tuple[int, int]) -> tuple[int, int]:
    gh, gw = grid
    if gh < 1 or gw < 1:
        raise ImageError(f"Expected a patch grid of at least 1 x 1, got {grid}. Give its rows and columns.")
    return gh, gw
