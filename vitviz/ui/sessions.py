"""What the server remembers: models, and for each visitor the photograph that is open."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from PIL import Image

from vitviz.explorer import Explorer, View, best_device
from vitviz.preprocess import Geometry
from vitviz.weights.zoo import load

STAGE_SIDE = 1024  # pixels; the longer side of the photograph on the page
THUMB_SIDE = 168

# Memory for open photographs, in bytes. ViT-S at 224 px keeps 10 MB of queries and keys, a phone's photograph 36 MB.
OPEN_BYTES = 2**30


@dataclass(frozen=True, eq=False)
class Shown:
    """An open photograph, with the smaller copies that the page shows."""

    view: View

    @cached_property
    def stage(self) -> tuple[Image.Image, Geometry]:
        """The photograph at the size of the large picture, and the geometry that fits it."""
        return shrink(self.view.photo, self.view.geometry, STAGE_SIDE)

    @cached_property
    def thumb(self) -> tuple[Image.Image, Geometry]:
        """The photograph at the size of a thumbnail, and the geometry that fits it."""
        return shrink(self.view.photo, self.view.geometry, THUMB_SIDE)


    @property
    def size(self) -> int:
        """Bytes that stay in memory while the photograph is open."""
        view = self.view
        return 3 * view.photo.width * view.photo.height + view.trace.nbytes


def shrink(photo: Image.Image, geometry: Geometry, side: int) -> tuple[Image.Image, Geometry]:
    """A copy whose longer side is at most `side` pixels, with the frame scaled along."""
    factor = min(1.0, side / max(photo.size))
    width, height = (max(1, round(length * factor)) for length in photo.size)
    small = photo if factor == 1.0 else photo.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0)
    across, down = width / photo.width, height / photo.height
    left, top, right, bottom = geometry.frame
    frame = (left * across, top * down, right * across, bottom * down)
    return small, replace(geometry, image=(width, height), frame=frame)


class Sessions:
    """Models by name, loaded once; open photographs by visitor, the least recently used forgotten first.

    Forgetting loses nothing: every request names its photograph and model, and the photograph is opened again.

    Args:
        models: the models on offer; the first is the default.
        default: the photograph of a visitor who has none.
        limit: memory for open photographs, in bytes; the newest one is kept whatever its size.
    """

    def __init__(self, models: Sequence[str], default: Path, limit: int = OPEN_BYTES) -> None:
        if not models:
            raise ValueError("Expected at least one model, found none. Put a checkpoint folder into checkpoints/.")
        self.models, self.default = tuple(models), default
        self._limit = limit
        self._explorers: dict[str, Explorer] = {}
        self._open: OrderedDict[str, tuple[str, str, Shown]] = OrderedDict()
        self._lock = threading.Lock()

    def explorer(self, model: str) -> Explorer:
        """The explorer of a model; loads it the first time."""
        if model not in self.models:
            raise ValueError(f"Expected one of the models {', '.join(self.models)}; got {model!r}.")
        with self._lock:
            if model not in self._explorers:
                self._explorers[model] = Explorer(load(model), device=best_device())
            return self._explorers[model]

    def open(self, visitor: str, photo: str | Path | None, model: str) -> Shown:
        """The visitor's photograph as the model saw it; the model runs only if either changed.

        A visitor who took the photograph away (`None`) keeps the last one, or gets the default.
        """
        with self._lock:
            held = self._open.get(visitor)
            path = str(photo or (held[0] if held else self.default))
            if held is not None and held[:2] == (path, model):
                self._open.move_to_end(visitor)
                return held[2]
        shown = Shown(self.explorer(model).open(path))
        with self._lock:
            self._open[visitor] = (path, model, shown)
            self._open.move_to_end(visitor)
            while len(self._open) > 1 and sum(one.size for _, _, one in self._open.values()) > self._limit:
                self._open.popitem(last=False)
        return shown

    def close(self, visitor: str) -> None:
        """Forget a visitor who left."""
        with self._lock:
            self._open.pop(visitor, None)
