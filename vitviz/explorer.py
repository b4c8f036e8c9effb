"""Open photographs with a model."""

import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn

from vitviz.fields import check_arguments
from vitviz.formatting import describe_bytes
from vitviz.images.bands import Bands, read_bands
from vitviz.images.decoding import decode, display_name
from vitviz.images.folders import find_images, spread
from vitviz.images.limits import ImageError
from vitviz.images.preprocess import Preprocess
from vitviz.model import memory
from vitviz.model.devices import Precision, check_precision, device_named
from vitviz.model.vit import ViT
from vitviz.progress import bar, watch
from vitviz.view import ExplorerError, View
from vitviz.weights.text_tower import TextTower, classify_texts
from vitviz.weights.zoo import load

Photo = Image.Image | Bands
MANY_TOKENS = 4_000  # with more tokens, the first layer may take seconds


@check_arguments(ExplorerError)
class Explorer:
    """Opens photographs with a model.

    >>> import numpy as np, vitviz
    >>> model = vitviz.ViT(vitviz.preset("tiny", image_size=(64, 64), classes=10))
    >>> view = Explorer(model).open(np.zeros((48, 64, 3), np.uint8))
    >>> view.attention(block=11, head=2, query=(0, 3)).values.shape
    (4, 4)

    Args:
        model: a `ViT`, which is put into eval mode, or a source for `vitviz.load`: a name, a path, or a timm,
            torchvision or transformers model.
        device: device to run on; by default, the model's device. A `ViT` is moved to it.
        precision: "float32", "bfloat16", "float16" or "float64", to which the weights are converted (in place, if they
            are those of a `ViT`); by default, the model's precision. The half precisions need half the memory, and are
            fast on GPUs.

    Raises:
        DeviceError: if the device does not exist, or does not compute with this precision.
    """

    @check_arguments(ExplorerError)
    def __init__(
        self,
        model: nn.Module | str | os.PathLike[str],
        device: torch.device | str | None = None,
        precision: Precision | None = None,
    ) -> None:
        model = model if isinstance(model, ViT) else load(model)
        self.device = next(model.parameters()).device if device is None else device_named(str(device))
        dtype = None if precision is None else check_precision(precision, self.device)
        self.model = model.eval().to(self.device, dtype)
        height, width = model.config.image_size
        own = model.pretrained.preprocess if model.pretrained else None
        self.preprocess = own or Preprocess(height=height, width=width, mode="squash").with_channels(
            model.config.channels
        )

    def texts(self, texts: Sequence[str], tower: TextTower | str | os.PathLike[str] | None = None) -> "Explorer":
        """Return an explorer whose classes are texts, for CLIP and SigLIP; see `View.texts`."""
        explorer = Explorer(classify_texts(self.model, texts, tower))
        explorer.preprocess = self.preprocess
        return explorer

    def open(self, image: Any, *, size: int | None = None) -> View:
        """Decode a photograph and run the model once.

        Args:
            image: a path, an open file or its bytes, a PIL image, an array (H, W), (H, W, 3) or (H, W, 4), or a tensor
                (H, W) or (3, H, W), without resizing or normalization. For a model with other bands than red, green and
                blue: an array (H, W, channels), a `.npy` file with one, or `vitviz.Bands`.
            size: input size in pixels, see `Preprocess.at`; by default, the model's own size.

        Raises:
            ImageError: if the image cannot be decoded, or the size is below one patch or too large.
            ModelError: if the size does not fit the model.
            ExplorerError: if memory is insufficient (the message gives the largest size that fits), or for a list.
        """
        if isinstance(image, list | tuple):
            raise ExplorerError(
                f"Expected one photograph, got a {type(image).__name__} of {len(image)}. Use open_many for several, "
                "or numpy.asarray for pixels in lists."
            )
        (view,) = self._fit(self._at(size), [self._read(image)])
        return view

    def open_many(
        self,
        images: Iterable[Any] | str | os.PathLike[str],
        *,
        size: int | None = None,
        batch_size: int = 8,
        progress: bool = True,
    ) -> "Views":
        """Open photographs in batches, and yield their views in order.

        Photographs are read lazily. The views of a batch share memory, which is freed when the last of them is deleted.
        Photographs that cannot be read are left out: `Views.errors` lists them, and so does a warning at the end.

        Args:
            images: arguments of `open`, or a folder, searched recursively and sorted by name.
            size: as for `open`.
            batch_size: photographs per forward pass; fewer if input sizes differ or memory is short.
            progress: show progress on standard error.

        Raises:
            DataError: if the folder does not exist or has no images.
            ExplorerError: if batch_size is below 1.
            ModelError: as for `open`, when the photograph is read.

        Example:
            >>> import numpy as np, vitviz
            >>> explorer = Explorer(vitviz.ViT(vitviz.preset("tiny", image_size=(64, 64), classes=10)))
            >>> photos = [np.full((48, 64, 3), level, np.uint8) for level in (0, 99, 255)]
            >>> [view.best(1)[0] < 10 for view in explorer.open_many(photos, batch_size=2)]
            [True, True, True]
        """
        if batch_size < 1:
            raise ExplorerError(f"Expected batch_size of at least 1, got {batch_size}. Raise it.")
        if isinstance(images, str | os.PathLike):
            images = [path for path, _ in spread(find_images(Path(images)), None)]
        errors: dict[str, ImageError] = {}
        return Views(self._views(images, self._at(size), batch_size, progress, errors), errors)

    def _views(
        self,
        images: Iterable[Any],
        preprocess: Preprocess,
        batch_size: int,
        progress: bool,
        errors: dict[str, ImageError],
    ) -> Iterator[View]:
        """Yield the views of `open_many`, and collect the errors of photographs that cannot be read."""
        total, pending, count = len(images) if isinstance(images, Sequence) else None, enumerate(images), 0
        with bar(total, show=progress) as counted:
            while batch := list(islice(pending, batch_size)):
                photos = [photo for place in batch if (photo := self._read_if_readable(*place, preprocess, errors))]
                sizes = [preprocess.input_size(*photo.size) for photo, _ in photos]
                views: dict[int, View] = {}
                for size in dict.fromkeys(sizes):
                    same = [index for index, other in enumerate(sizes) if other == size]
                    views |= zip(same, self._fit(preprocess, [photos[index] for index in same]), strict=True)
                counted.update(len(batch))
                count += len(batch)
                yield from (views[index] for index in range(len(photos)))
        if errors:
            warnings.warn(describe_unreadable(errors, count), stacklevel=3)

    def _read_if_readable(
        self, index: int, image: Any, preprocess: Preprocess, errors: dict[str, ImageError]
    ) -> tuple[Photo, str] | None:
        """Return what `_read` does, or add the error to `errors` and return `None`."""
        try:
            photo, name = self._read(image)
            preprocess.input_size(*photo.size)  # raises an error for a photograph that is too narrow
        except ImageError as error:
            errors[_path_of(image) or f"image {index}"] = error
            return None
        return photo, name

    def _read(self, image: Any) -> tuple[Photo, str]:
        """Decode a photograph or read bands, and return it with its file name, or ""."""
        path = _path_of(image)
        image = read_bands(image, self.preprocess.bands)
        photo = image if isinstance(image, Bands) else decode(image)
        return photo, display_name(path) if path else ""

    def _fit(self, preprocess: Preprocess, photos: Sequence[tuple[Photo, str]]) -> list[View]:
        """Run photographs of equal input size in one batch, or in halves if memory is short."""
        photo, _ = photos[0]
        need, free = self._bytes(preprocess, photo, len(photos)), memory.available_bytes(self.device)
        if free is None or need <= free:
            try:
                return self._run(preprocess, photos)
            except (RuntimeError, MemoryError) as error:
                if not memory.is_out_of_memory(error):
                    raise
            # Continue outside the except block, whose traceback keeps the tensors alive. The estimate was too low, so
            # assume that only half of the estimated memory is free.
            takes, free = "more memory than was free", need // 2
        else:
            takes = f"about {describe_bytes(need)} of memory, and {describe_bytes(free)} are free"
        if half := len(photos) // 2:
            return self._fit(preprocess, photos[:half]) + self._fit(preprocess, photos[half:])
        raise self._too_large(preprocess, photo, takes, free)

    def _at(self, size: int | None) -> Preprocess:
        return self.preprocess if size is None else self.preprocess.at(size, self.model.config.size_multiple)

    def _run(self, preprocess: Preprocess, photos: Sequence[tuple[Photo, str]]) -> list[View]:
        prepared = [preprocess(photo) for photo, _ in photos]
        precision = next(self.model.parameters()).dtype  # half-precision weights need half-precision pixels
        stacked = torch.stack([torch.from_numpy(image.pixels) for image in prepared])  # B x (C, H, W) -> (B, C, H, W)
        pixels = stacked.to(self.device, precision)
        began = time.perf_counter()
        tokens = self._tokens(preprocess, photos[0][0])
        with watch(f"Input of {tokens:,} tokens", len(photos), tokens, delay=0 if tokens > MANY_TOKENS else None):
            trace = self.model.trace(pixels)
        if self.device.type != "cpu":
            torch.accelerator.synchronize()  # kernels run asynchronously
        seconds = (time.perf_counter() - began) / len(photos)
        traces = [trace] if len(photos) == 1 else [trace.image(index) for index in range(len(photos))]
        return [
            View(self.model, preprocess, preprocess.picture(photo), image.pixels, image.geometry, trace, seconds, name)
            for (photo, name), image, trace in zip(photos, prepared, traces, strict=True)
        ]

    def _tokens(self, preprocess: Preprocess, photo: Photo) -> int:
        rows, columns = self.model.config.grid_of(*preprocess.input_size(*photo.size))
        return len(self.model.config.prefix) + rows * columns

    def _bytes(self, preprocess: Preprocess, photo: Photo, batch: int = 1) -> int:
        itemsize = next(self.model.parameters()).dtype.itemsize
        return memory.forward_bytes(self.model.config, self._tokens(preprocess, photo), batch, itemsize)

    def _too_large(self, preprocess: Preprocess, photo: Photo, takes: str, free: int) -> ExplorerError:
        """Return the error for a photograph that does not fit, with the largest size that fits into `free` bytes."""
        height, width = preprocess.input_size(*photo.size)
        multiple, below = self.model.config.size_multiple, max(preprocess.height, preprocess.width)
        fits = memory.largest_side(lambda side: self._bytes(self._at(side), photo), free, multiple, below)
        advice = f"The largest that fits is size={fits}." if fits else "No size fits: free some memory."
        return ExplorerError(
            f"Expected an image that fits into memory, got one of {height} x {width} pixels, "
            f"{self._tokens(preprocess, photo):,} tokens, which takes {takes} on {self.device.type.upper()}. {advice}"
        )


class Views(Iterator[View]):
    """Views of `Explorer.open_many`, in order.

    Attributes:
        errors: the error of each photograph that could not be read so far, by its path, or by its position among the
            images, counted from 0: "image 3".
    """

    def __init__(self, views: Iterator[View], errors: Mapping[str, ImageError]) -> None:
        self._views, self.errors = views, errors

    def __next__(self) -> View:
        return next(self._views)


def describe_unreadable(errors: Mapping[Any, ImageError], count: int) -> str:
    """Return the text about those of several photographs that cannot be read, with one line for each."""
    listed = "".join(f"\n  {name}: {error}" for name, error in errors.items())
    return f"Expected photographs, got {len(errors)} of {count} that cannot be read:{listed}"


def _path_of(image: Any) -> str:
    """Return the path of a photograph or an open file, or ""."""
    path = image if isinstance(image, str | os.PathLike) else getattr(image, "name", None)
    return os.fsdecode(path) if isinstance(path, str | os.PathLike) else ""
