"""Find the pixels of the photograph that each image token of a vision-language model sees.

A processor shows the vision tower one or several frames of the photograph: tiles, crops, or the whole photograph in
small. Each frame is a rectangle of the photograph, resized, of which a window is divided into a grid of image tokens.
Sizes are (height, width) in pixels, grids (rows, columns) of image tokens.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

Size = tuple[int, int]


class Rectangle(NamedTuple):
    """Rectangle in pixels."""

    top: int
    left: int
    height: int
    width: int


@dataclass(frozen=True)
class Frame:
    """One image that the vision encoder receives: a tile of the photograph, or the whole photograph as a thumbnail.

    Args:
        source: the rectangle of the photograph that the image shows; with padding, it extends beyond the photograph.
        sizes: size of the image after each resize, in order.
        window: the rectangle, in pixels of the last size, that the grid of image tokens divides.
        grid: rows and columns of image tokens, in order of rows, after pixel shuffle, pooling or merging.
        newlines: whether an image token without pixels follows each row.
    """

    source: Rectangle
    sizes: tuple[Size, ...]
    window: Rectangle
    grid: Size
    newlines: bool = False

    @property
    def shape(self) -> Size:
        """Return the rows and columns of image tokens, with those that end a row."""
        return self.grid[0], self.grid[1] + self.newlines

    @property
    def count(self) -> int:
        """Return the number of image tokens."""
        return math.prod(self.shape)

    @property
    def boxes(self) -> Tensor:
        """Return (left, top, right, bottom) of each token in pixels of the photograph: (`count`, 4), float64.

        The box of a token that ends a row has no width.
        """
        edges = []
        for axis in (0, 1):  # rows, then columns
            start, length = self.window[axis], self.window[axis + 2]
            steps = torch.arange(self.grid[axis] + 1, dtype=torch.float64) / self.grid[axis]
            scale = self.source[axis + 2] / self.sizes[-1][axis]
            edges.append(self.source[axis] + (start + steps * length) * scale)
        if self.newlines:
            edges[1] = torch.cat([edges[1], edges[1][-1:]])
        tops, lefts = torch.meshgrid(edges[0][:-1], edges[1][:-1], indexing="ij")  # (rows, columns)
        bottoms, rights = torch.meshgrid(edges[0][1:], edges[1][1:], indexing="ij")
        return torch.stack([lefts, tops, rights, bottoms], dim=-1).flatten(0, 1)


class Prepared(NamedTuple):
    """A photograph as a processor has prepared it for a model.

    Args:
        photo: size of the photograph.
        images: image processor.
        inputs: tensors for the model.
        config: settings of the model.
    """

    photo: Size
    images: Any
    inputs: Mapping[str, Any]
    config: Any

    @property
    def whole(self) -> Rectangle:
        """Return the rectangle of the whole photograph."""
        return Rectangle(0, 0, *self.photo)

    @property
    def patch(self) -> int:
        """Return the side length of a patch of the vision tower in pixels."""
        size = self.config.vision_config.patch_size
        return int(size if isinstance(size, int) else size[0])

    @property
    def size(self) -> Size:
        """Return the size to which the image processor resizes a frame, if it is fixed."""
        return self.images.size["height"], self.images.size["width"]

    def frame(self, *sizes: Size, source: Rectangle | None = None, at: Size = (0, 0), within: Size, side: int) -> Frame:
        """Return a frame whose tokens see squares.

        Args:
            sizes: of the source after each resize.
            source: rectangle of the photograph; the whole by default.
            at: top and left of the frame in the last size.
            within: size of the frame; pixels on its right and bottom that fill no token are not seen.
            side: side length of a token in pixels.
        """
        rows, columns = within[0] // side, within[1] // side
        window = Rectangle(*at, rows * side, columns * side)
        return Frame(source or self.whole, sizes, window, (rows, columns))


def _idefics3(prepared: Prepared) -> list[Frame]:
    """Resize, enlarge to whole tiles, cut them, and add the whole photograph in one tile."""
    images, side = prepared.images, prepared.patch * prepared.config.scale_factor
    edge = images.max_image_size["longest_edge"]
    tile = edge, edge
    first = _longest_edge(prepared.photo, images.size["longest_edge"]) if images.do_resize else prepared.photo
    if not images.do_image_splitting:
        return [prepared.frame(first, tile, within=tile, side=side)]
    second = _whole_tiles(first, edge)
    tiles = [
        prepared.frame(first, second, at=(top, left), within=tile, side=side)
        for top in range(0, second[0], edge)
        for left in range(0, second[1], edge)
    ]
    return tiles if second == tile else [*tiles, prepared.frame(first, second, tile, within=tile, side=side)]


def _longest_edge(size: Size, longest: int) -> Size:
    """Return a size with this longest edge; the other is even."""
    height, width = size
    ratio, wide = width / height, width >= height
    other = int(longest / ratio if wide else longest * ratio)
    other += other % 2
    return (max(other, 1), longest) if wide else (longest, max(other, 1))


def _whole_tiles(size: Size, edge: int) -> Size:
    """Return the size whose edges are multiples of a tile's, first the longer one."""
    height, width = size
    ratio = width / height
    if width >= height:
        columns = math.ceil(width / edge)
        return math.ceil(int(columns * edge / ratio) / edge) * edge, columns * edge
    rows = math.ceil(height / edge)
    return rows * edge, math.ceil(int(rows * edge * ratio) / edge) * edge


def _llava(prepared: Prepared) -> list[Frame]:
    """Pad to a square if the processor does, resize, and crop the centre."""
    images, source, last = prepared.images, prepared.whole, prepared.photo
    if getattr(images, "do_pad", False):
        edge = max(last)
        source = Rectangle(-((edge - last[0]) // 2), -((edge - last[1]) // 2), edge, edge)
    if "shortest_edge" in dict(images.size):
        short, shortest = min(source[2:]), images.size["shortest_edge"]
        height, width = (shortest if edge == short else int(shortest * edge / short) for edge in source[2:])
        last = height, width
    else:
        last = prepared.size
    within = last
    if getattr(images, "do_center_crop", False):
        within = images.crop_size["height"], images.crop_size["width"]
    at = (last[0] - within[0]) // 2, (last[1] - within[1]) // 2
    return [prepared.frame(last, source=source, at=at, within=within, side=prepared.patch)]


def _llava_next(prepared: Prepared) -> list[Frame]:
    """Resize the whole to one tile; and resize it into a canvas of tiles, whose padded rows or columns are left out."""
    images, photo, side = prepared.images, prepared.photo, prepared.patch
    library = import_module("transformers.models.llava_next.modeling_llava_next")
    tile = images.crop_size["height"], images.crop_size["width"]
    canvas = library.select_best_resolution(photo, images.image_grid_pinpoints)
    whole = torch.empty(1, canvas[0] // side, canvas[1] // side, device="meta")  # a number for each token
    grid = library.unpad_image(whole, photo).shape[1:]
    scale = min(canvas[0] / photo[0], canvas[1] / photo[1])
    size = min(math.ceil(photo[0] * scale), canvas[0]), min(math.ceil(photo[1] * scale), canvas[1])
    top, left = ((whole.shape[1 + n] - grid[n]) // 2 * side - (canvas[n] - size[n]) // 2 for n in (0, 1))
    tiles = prepared.frame(size, at=(top, left), within=(grid[0] * side, grid[1] * side), side=side)
    return [prepared.frame(tile, within=tile, side=side), replace(tiles, newlines=True)]


def _qwen2_vl(prepared: Prepared) -> list[Frame]:
    """Resize to whole tokens of merged patches."""
    images, (_frames, *grid) = prepared.images, prepared.inputs["image_grid_thw"][0].tolist()
    size = grid[0] * images.patch_size, grid[1] * images.patch_size
    return [prepared.frame(size, within=size, side=images.patch_size * images.merge_size)]


def _paligemma(prepared: Prepared) -> list[Frame]:
    """Resize to the tower's size."""
    return [prepared.frame(prepared.size, within=prepared.size, side=prepared.patch)]


def _gemma3(prepared: Prepared) -> list[Frame]:
    """Resize the whole and each crop (pan and scan) to the tower's size, and average squares of patches."""
    tokens = math.isqrt(prepared.config.mm_tokens_per_image)
    patches = prepared.config.vision_config.image_size // prepared.patch
    sources, crops = [prepared.whole], len(prepared.inputs["pixel_values"]) - 1
    axis = int(prepared.photo[1] >= prepared.photo[0])  # the longer one is divided
    for crop in range(crops):
        step = math.ceil(prepared.photo[axis] / crops)
        start, length = [0, 0], [*prepared.photo]
        start[axis], length[axis] = crop * step, min(step, prepared.photo[axis] - crop * step)
        sources.append(Rectangle(start[0], start[1], length[0], length[1]))
    side = patches // tokens * prepared.patch
    return [prepared.frame(prepared.size, source=source, within=prepared.size, side=side) for source in sources]


def _internvl(prepared: Prepared) -> list[Frame]:
    """Resize to whole tiles, cut them, and add the whole photograph in one tile."""
    from transformers.models.got_ocr2.image_processing_got_ocr2 import get_optimal_tiled_canvas

    images, (height, width) = prepared.images, prepared.size
    side = round(prepared.patch / prepared.config.downsample_ratio)
    whole = prepared.frame((height, width), within=(height, width), side=side)
    if len(prepared.inputs["pixel_values"]) == 1:
        return [whole]
    columns, rows = get_optimal_tiled_canvas(prepared.photo, (height, width), images.min_patches, images.max_patches)
    canvas = rows * height, columns * width
    tiles = [
        prepared.frame(canvas, at=(row * height, column * width), within=(height, width), side=side)
        for row in range(rows)
        for column in range(columns)
    ]
    return [*tiles, whole]


class Family(NamedTuple):
    """What is known about models of one kind.

    Args:
        processors: names of the classes of their processors.
        frames: function that returns the frames in the order of their tokens.
        tower: name of the vision tower in the model.
    """

    processors: tuple[str, ...]
    frames: Callable[[Prepared], list[Frame]]
    tower: str = "vision_tower"


# transformers' `model_type` -> its family.
FAMILIES = {
    "smolvlm": Family(("SmolVLMProcessor",), _idefics3, "vision_model"),
    "idefics3": Family(("Idefics3Processor",), _idefics3, "vision_model"),
    "llava": Family(("LlavaProcessor",), _llava),
    "llava_next": Family(("LlavaNextProcessor",), _llava_next),
    "qwen2_vl": Family(("Qwen2VLProcessor",), _qwen2_vl, "visual"),
    "qwen2_5_vl": Family(("Qwen2_5_VLProcessor",), _qwen2_vl, "visual"),
    "qwen3_vl": Family(("Qwen3VLProcessor",), _qwen2_vl, "visual"),
    "paligemma": Family(("PaliGemmaProcessor",), _paligemma),
    "gemma3": Family(("Gemma3Processor",), _gemma3),
    "internvl": Family(("InternVLProcessor",), _internvl),
}
