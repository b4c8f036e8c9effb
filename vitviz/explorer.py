"""A model, ready to open photographs."""

import time
from typing import Any

import torch
from PIL import Image

from vitviz.images.decoding import decode
from vitviz.images.preprocess import Preprocess
from vitviz.model import memory
from vitviz.model.vit import ViT
from vitviz.view import ExplorerError, View


class Explorer:
    """A model, ready to open photographs.

    >>> import numpy as np, vitviz
    >>> model = vitviz.ViT(vitviz.preset("tiny", image_size=(64, 64), classes=10))
    >>> view = Explorer(model).open(np.zeros((48, 64, 3), np.uint8))
    >>> view.attention(block=11, head=2, query=(0, 3)).values.shape
    (4, 4)

    Args:
        model: any `ViT`; it is put into eval mode.
        device: where to run; by default where the model is.
    """

    def __init__(self, model: ViT, device: torch.device | str | None = None) -> None:
        self.model = model.eval() if device is None else model.eval().to(device)
        self.device = next(model.parameters()).device
        height, width = model.config.image_size
        own = model.pretrained.preprocess if model.pretrained else None
        self.preprocess = own or Preprocess(height=height, width=width, mode="squash")

    def open(self, image: Any, *, size: int | None = None) -> View:
        """Decode a photograph and run the model once.

        Args:
            image: a path, the bytes of a file, a PIL image, or an array (H, W), (H, W, 3) or (H, W, 4).
            size: of the model's input, in pixels, see `Preprocess.at`; the model's own by default.

        Raises:
            ImageError: if the image cannot be decoded, or the size is below one patch or absurdly large.
            ModelError: if the size does not fit the model.
            ExplorerError: if the memory is not enough; the text names the largest size that fits.
        """
        photo = decode(image)
        preprocess = self._at(size)
        need, free = self._bytes(preprocess, photo), memory.available_bytes(self.device)
        if free is not None and need > free:
            raise self._too_large(preprocess, photo, f"about {_size(need)} of memory, and {_size(free)} are free", free)
        try:
            return self._run(preprocess, photo)
        except (RuntimeError, MemoryError) as error:
            if not memory.is_out_of_memory(error):
                raise
        # Outside of the except block, because the error's traceback keeps the tensors alive. The estimate was too low,
        # so half of it is taken for what is free.
        raise self._too_large(preprocess, photo, "more memory than there was", need // 2)

    def _at(self, size: int | None) -> Preprocess:
        return self.preprocess if size is None else self.preprocess.at(size, self.model.config.patch_size)

    def _run(self, preprocess: Preprocess, photo: Image.Image) -> View:
        prepared = preprocess(photo)
        precision = next(self.model.parameters()).dtype  # half-precision weights take half-precision pixels
        pixels = torch.from_numpy(prepared.pixels)[None].to(self.device, precision)  # (1, 3, H, W)
        began = time.perf_counter()
        trace = self.model.trace(pixels)
        if self.device.type != "cpu":
            torch.accelerator.synchronize()  # kernels run asynchronously
        seconds = time.perf_counter() - began
        return View(self.model, preprocess, photo, prepared.pixels, prepared.geometry, trace, seconds)

    def _tokens(self, preprocess: Preprocess, photo: Image.Image) -> int:
        rows, columns = self.model.config.grid_of(*preprocess.input_size(*photo.size))
        return len(self.model.config.prefix) + rows * columns

    def _bytes(self, preprocess: Preprocess, photo: Image.Image) -> int:
        itemsize = next(self.model.parameters()).dtype.itemsize
        return memory.forward_bytes(self.model.config, self._tokens(preprocess, photo), itemsize=itemsize)

    def _too_large(self, preprocess: Preprocess, photo: Image.Image, takes: str, free: int) -> ExplorerError:
        """Return the error for a photograph that does not fit, with the largest size that fits into `free` bytes."""
        height, width = preprocess.input_size(*photo.size)
        patch, below = self.model.config.patch_size, max(preprocess.height, preprocess.width)
        fits = memory.largest_side(lambda side: self._bytes(self._at(side), photo), free, patch, below)
        advice = f"The largest that fits is size={fits}." if fits else "No size fits: free some memory."
        return ExplorerError(
            f"Expected an image that fits into memory, got one of {height} x {width} pixels, "
            f"{self._tokens(preprocess, photo):,} tokens, which takes {takes} on {self.device.type.upper()}. {advice}"
        )


def _size(count: int) -> str:
    """Return a number of bytes for people."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
